package main

import (
	"context"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

// together has so many workers take one step after the other, until ctx has ended.
func together(ctx context.Context, workers int, step func() error) error {
	var all errgroup.Group
	for range workers {
		all.Go(func() error {
			for ctx.Err() == nil {
				if err := step(); err != nil && ctx.Err() == nil {
					return err
				}
			}
			return nil
		})
	}
	return all.Wait()
}

func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

// recipePrefix is where the recipe's pairs are.
var recipePrefix = tuple.Tuple{"recipe"}.Pack()

var recipeKeys = kv.PrefixRange(recipePrefix)

func recipeKey(index int64) []byte {
	id := uuid.New()
	return append(tuple.AppendInt(append([]byte(nil), recipePrefix...), index), id[:]...)
}

// recipeIndex returns the index in a key, or 0 if the key is not of the recipe.
func recipeIndex(key []byte) (int64, error) {
	if !recipeKeys.Contains(key) {
		return 0, nil
	}
	index, _, err := tuple.DecodeInt(key[len(recipePrefix):])
	return index, err
}
