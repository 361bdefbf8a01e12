package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"path/filepath"
	"strconv"
	"time"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
)

// fdbfifo is the queue of this project, on a disk.
type fdbfifo struct {
	db *embedded.DB
	q  *layer.Queue
}

func openFdbfifo(ctx context.Context, folder string) (peer, error) {
	db, err := embedded.OpenDisk(filepath.Join(folder, "data"), embedded.Options{})
	if err != nil {
		return nil, err
	}
	q, err := layer.Create(ctx, db, nil, "peers", layer.Options{})
	if err != nil {
		return nil, err
	}
	return &fdbfifo{db, q}, nil
}

func (f *fdbfifo) about() about {
	return about{
		Name: "fdbfifo", Ordered: true,
		What: "this project, its engine on a disk, every commit synced; a worker with the defaults",
	}
}

func (f *fdbfifo) send(ctx context.Context, msgs []message) error {
	all := make([]layer.Message, len(msgs))
	for i, m := range msgs {
		all[i] = layer.Message{Group: strconv.Itoa(m.Group), Body: m.pack()}
	}
	_, err := f.q.Enqueue(ctx, all...)
	return err
}

func (f *fdbfifo) work(ctx context.Context, workers int, handle func(message)) error {
	w, err := layer.NewWorker(f.q, layer.Handle(func(_ context.Context, d *layer.Delivery) error {
		m, err := unpack(d.Body)
		if err == nil {
			handle(m)
		}
		return err
	}), layer.WorkerOptions{Concurrency: workers, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
	if err != nil {
		return err
	}
	return w.Run(ctx)
}

func (f *fdbfifo) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	f.q.Close(ctx)
	f.db.Close()
}

// recipe is the queue of FoundationDB's documentation, on the same engine: keys (index, random), an item is dequeued by
// reading the first pair and clearing it. An empty queue is looked at again after recipePause.
type recipe struct{ db *embedded.DB }

const recipePause = 10 * time.Millisecond

func openRecipe(_ context.Context, folder string) (peer, error) {
	db, err := embedded.OpenDisk(filepath.Join(folder, "data"), embedded.Options{})
	if err != nil {
		return nil, err
	}
	return &recipe{db}, nil
}

func (r *recipe) about() about {
	return about{
		Name: "recipe",
		What: "the queue of FoundationDB's recipes on the same engine; each item taken in a transaction, then handled",
	}
}

func (r *recipe) send(ctx context.Context, msgs []message) error {
	_, err := kv.Run(ctx, r.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		last, err := tx.Snapshot().GetKey(kv.LastLessThan(recipeKeys.End)).Wait(ctx)
		if err != nil {
			return fmt.Errorf("read last key: %w", err)
		}
		index, err := recipeIndex(last)
		if err != nil {
			return err
		}
		for i, m := range msgs {
			tx.Set(recipeKey(index+1+int64(i)), m.pack())
		}
		return nil
	})
	return err
}

func (r *recipe) work(ctx context.Context, workers int, handle func(message)) error {
	return together(ctx, workers, func() error {
		var value []byte
		_, err := kv.Run(ctx, r.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			rows, err := tx.GetRange(recipeKeys.Selectors(), kv.RangeOptions{Limit: 1}).Wait(ctx)
			if err != nil {
				return fmt.Errorf("read first pair: %w", err)
			}
			if value = nil; len(rows) > 0 {
				value = rows[0].Value
				tx.Clear(rows[0].Key)
			}
			return nil
		})
		if err != nil {
			return err
		}
		if value == nil {
			return pause(ctx, recipePause)
		}
		m, err := unpack(value)
		if err == nil {
			handle(m)
		}
		return err
	})
}

func (r *recipe) close() { r.db.Close() }
