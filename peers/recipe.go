package main

import (
	"context"
	"path/filepath"
	"time"

	"fdbfifo/internal/recipe"
	"fdbfifo/kv/embedded"
)

// recipeQueue is the queue of FoundationDB's documentation, on the same engine. An empty queue is looked at again after
// recipePause.
type recipeQueue struct {
	recipe.Queue
	db *embedded.DB
}

const recipePause = 10 * time.Millisecond

func openRecipe(_ context.Context, folder string) (peer, error) {
	db, err := embedded.OpenDisk(filepath.Join(folder, "data"), embedded.Options{})
	if err != nil {
		return nil, err
	}
	return &recipeQueue{recipe.Queue{DB: db, Prefix: []byte("recipe")}, db}, nil
}

func (r *recipeQueue) about() about {
	return about{
		Name: "recipe",
		What: "the queue of FoundationDB's recipes on the same engine; each item taken in a transaction, then handled",
	}
}

func (r *recipeQueue) send(ctx context.Context, msgs []message) error {
	values := make([][]byte, len(msgs))
	for i, m := range msgs {
		values[i] = m.pack()
	}
	return r.Push(ctx, values...)
}

func (r *recipeQueue) work(ctx context.Context, workers int, handle func(message)) error {
	return together(ctx, workers, func() error {
		value, ok, err := r.Pop(ctx)
		if err != nil {
			return err
		}
		if !ok {
			return pause(ctx, recipePause)
		}
		m, err := unpack(value)
		if err == nil {
			handle(m)
		}
		return err
	})
}

func (r *recipeQueue) close() { r.db.Close() }
