package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/redis/go-redis/v9"
)

// redisStream is a Redis stream with a consumer group.
type redisStream struct {
	client *redis.Client
	server *exec.Cmd
}

const stream, consumers = "messages", "workers"

func openRedis(ctx context.Context, folder string) (peer, error) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return nil, &missingError{"redis-server", "on Debian: apt-get install redis-server"}
	}
	socket := filepath.Join(folder, "socket")
	r := &redisStream{server: exec.Command(path, "--port", "0", "--unixsocket", socket, "--dir", folder,
		"--appendonly", "yes", "--appendfsync", "always", "--save", "")}
	if err := r.server.Start(); err != nil {
		return nil, fmt.Errorf("start redis-server: %w", err)
	}
	r.client = redis.NewClient(&redis.Options{Network: "unix", Addr: socket, PoolSize: 24})
	group := func() error { return r.client.XGroupCreateMkStream(ctx, stream, consumers, "0").Err() }
	if err := answers(ctx, "redis-server", group); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

func (r *redisStream) about() about {
	return about{
		Name: "redis",
		What: "a stream of Redis 7 with a consumer group, appendfsync always; XREADGROUP of ten, XACK and XDEL of each",
	}
}

func (r *redisStream) send(ctx context.Context, msgs []message) error {
	_, err := r.client.TxPipelined(ctx, func(p redis.Pipeliner) error {
		for _, m := range msgs {
			p.XAdd(ctx, &redis.XAddArgs{Stream: stream, Values: []any{"m", m.pack()}})
		}
		return nil
	})
	return err
}

func (r *redisStream) work(ctx context.Context, workers int, handle func(message)) error {
	return together(ctx, workers, func() error {
		// The messages of a read must be handled. If ctx ended the read, its messages would stay pending.
		got, err := r.client.XReadGroup(context.WithoutCancel(ctx), &redis.XReadGroupArgs{
			Group: consumers, Consumer: "one", Streams: []string{stream, ">"}, Count: 10, Block: 500 * time.Millisecond,
		}).Result()
		if errors.Is(err, redis.Nil) {
			return nil
		} else if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		for _, row := range got[0].Messages {
			text, _ := row.Values["m"].(string)
			m, err := unpack([]byte(text))
			if err != nil {
				return err
			}
			handle(m)
			_, err = r.client.TxPipelined(context.WithoutCancel(ctx), func(p redis.Pipeliner) error {
				p.XAck(ctx, stream, consumers, row.ID)
				p.XDel(ctx, stream, row.ID)
				return nil
			})
			if err != nil {
				return fmt.Errorf("ack: %w", err)
			}
		}
		return nil
	})
}

func (r *redisStream) close() {
	r.client.Close()
	r.server.Process.Kill()
	r.server.Wait()
}
