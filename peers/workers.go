package main

import (
	"context"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"
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

// answers asks a server that has been started until it answers.
func answers(ctx context.Context, name string, ask func() error) error {
	const patience = 30 * time.Second
	for began := time.Now(); ; {
		err := ask()
		if err == nil {
			return nil
		}
		if time.Since(began) > patience {
			return fmt.Errorf("%s does not answer: %w", name, err)
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
}
