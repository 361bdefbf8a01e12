package main

import (
	"context"
	"io"
	"log/slog"
	"path/filepath"
	"strconv"
	"time"

	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
	"fdbfifo/worker"
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
	w, err := worker.New(f.q, worker.Handle(func(_ context.Context, d *worker.Delivery) error {
		m, err := unpack(d.Body)
		if err == nil {
			handle(m)
		}
		return err
	}), worker.Options{Concurrency: workers, Logger: slog.New(slog.NewTextHandler(io.Discard, nil))})
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
