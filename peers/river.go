package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
)

// riverArgs is a message as a job.
type riverArgs struct {
	Message message `json:"message"`
}

func (riverArgs) Kind() string { return "message" }

type riverWorker struct {
	river.WorkerDefaults[riverArgs]
	handle func(message)
}

func (w *riverWorker) Work(_ context.Context, job *river.Job[riverArgs]) error {
	w.handle(job.Args.Message)
	return nil
}

// riverQueue is River's queue of jobs.
type riverQueue struct {
	*postgres
	driver *riverpgxv5.Driver
	client *river.Client[pgx.Tx] // to send
}

var quiet = slog.New(slog.NewTextHandler(io.Discard, nil))

func openRiver(ctx context.Context, folder string) (peer, error) {
	p, err := openPostgres(ctx, folder)
	if err != nil {
		return nil, err
	}
	r := &riverQueue{postgres: p, driver: riverpgxv5.New(p.pool)}
	migrator, err := rivermigrate.New(r.driver, &rivermigrate.Config{Logger: quiet})
	if err == nil {
		_, err = migrator.Migrate(ctx, rivermigrate.DirectionUp, nil)
	}
	if err == nil {
		r.client, err = river.NewClient(r.driver, &river.Config{Logger: quiet})
	}
	if err != nil {
		p.close()
		return nil, fmt.Errorf("open River: %w", err)
	}
	return r, nil
}

func (r *riverQueue) about() about {
	return about{
		Name: "river",
		What: "River 0.51 on PostgreSQL 15 with fsync; FetchCooldown at its least, 1 ms, instead of 100 ms",
	}
}

func (r *riverQueue) send(ctx context.Context, msgs []message) error {
	if len(msgs) == 1 {
		_, err := r.client.Insert(ctx, riverArgs{msgs[0]}, nil)
		return err
	}
	all := make([]river.InsertManyParams, len(msgs))
	for i, m := range msgs {
		all[i].Args = riverArgs{m}
	}
	_, err := r.client.InsertMany(ctx, all)
	return err
}

func (r *riverQueue) work(ctx context.Context, workers int, handle func(message)) error {
	all := river.NewWorkers()
	river.AddWorker(all, &riverWorker{handle: handle})
	client, err := river.NewClient(r.driver, &river.Config{
		Logger: quiet, Workers: all, FetchCooldown: time.Millisecond,
		Queues: map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: workers}},
	})
	if err != nil {
		return err
	}
	if err := client.Start(context.WithoutCancel(ctx)); err != nil {
		return err
	}
	<-ctx.Done()
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
	defer cancel()
	return client.Stop(ending)
}
