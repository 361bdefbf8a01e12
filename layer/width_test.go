package layer_test

import (
	"context"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv/embedded"
	"fdbfifo/kv/fault"
	"fdbfifo/layer"
)

// TestLargeWorkGetsNarrow: a step of a large piece of work that fails goes on with less, so that each of them comes to its
// end although one read in five fails: one of hundreds of reads never would.
func TestLargeWorkGetsNarrow(t *testing.T) {
	t.Parallel()
	const n = 150
	plain := layer.Config{DedupFor: layer.DedupForPending, Archive: time.Hour, Retention: time.Hour, OnExpiry: layer.DeadLetterExpired}
	bodies := make([]layer.Message, n)
	for i := range bodies {
		bodies[i] = layer.Message{Group: fmt.Sprintf("G%03d", i), Body: make([]byte, 100_000), DedupID: fmt.Sprint("id", i)}
	}
	works := []struct {
		name   string
		before func(ctx context.Context, q *layer.Queue) error // without faults
		do     func(ctx context.Context, q *layer.Queue) (int64, error)
	}{
		{"sweep of ids", nil, func(ctx context.Context, q *layer.Queue) (int64, error) {
			r, err := q.Admin().Sweep(ctx, layer.SweepOptions{})
			return r.Keys - n - 1, err // the items are looked at too, and the wake key of who enqueued
		}},
		{"sweep of what is overdue", func(ctx context.Context, q *layer.Queue) error {
			time.Sleep(2 * time.Hour)
			return nil
		}, func(ctx context.Context, q *layer.Queue) (int64, error) {
			r, err := q.Admin().Sweep(ctx, layer.SweepOptions{})
			return r.PastRetention, err
		}},
		{"sweep of the archive", func(ctx context.Context, q *layer.Queue) error {
			defer time.Sleep(2 * time.Hour)
			return finish(ctx, q)
		}, func(ctx context.Context, q *layer.Queue) (int64, error) {
			r, err := q.Admin().Sweep(ctx, layer.SweepOptions{})
			return r.Archived, err
		}},
		{"purge", func(ctx context.Context, q *layer.Queue) error {
			_, err := q.Admin().PauseGroup(ctx, "paused", layer.PauseOptions{}) // so it goes by steps
			return err
		}, func(ctx context.Context, q *layer.Queue) (int64, error) {
			r, err := q.Admin().Purge(ctx, layer.PurgeOptions{})
			return r.Items, err
		}},
		{"redrive", park, func(ctx context.Context, q *layer.Queue) (int64, error) {
			r, err := q.Admin().Redrive(ctx, layer.DeadFilter{}, layer.RedriveOptions{})
			return r.Done, err
		}},
		{"list of dead letters", park, func(ctx context.Context, q *layer.Queue) (int64, error) {
			done := int64(0)
			for o := (layer.DeadOptions{Bodies: true}); ; {
				page, err := q.Admin().DeadLetters(ctx, o)
				if done += int64(len(page.Letters)); err != nil || page.Next == nil {
					return done, err
				}
				o.After = page.Next
			}
		}},
		{"list of the archive", finish, func(ctx context.Context, q *layer.Queue) (int64, error) {
			done := int64(0)
			for o := (layer.ArchiveOptions{Bodies: true}); ; {
				page, err := q.Admin().Archive(ctx, o)
				if done += int64(len(page.Items)); err != nil || page.Next == nil {
					return done, err
				}
				o.After = page.Next
			}
		}},
		{"replay", finish, func(ctx context.Context, q *layer.Queue) (int64, error) {
			r, err := q.Admin().Replay(ctx, layer.ArchiveFilter{}, layer.ReplayOptions{})
			return r.Done, err
		}},
	}
	for _, w := range works {
		t.Run(w.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				raw := embedded.OpenMemory(embedded.Options{})
				defer raw.Close()
				calm, err := layer.Create(t.Context(), raw, testPrefix, testQueue, layer.Options{Config: plain})
				require.NoError(t, err)
				for some := range slices.Chunk(bodies, 30) {
					_, err := calm.Enqueue(t.Context(), some...)
					require.NoError(t, err)
				}
				if w.before != nil {
					require.NoError(t, w.before(t.Context(), calm))
				}
				plan := &fault.Plan{Seed: *seedFlag}
				q, err := layer.Open(t.Context(), fault.Wrap(raw, plan), testPrefix, testQueue, layer.Options{})
				require.NoError(t, err)
				plan.Chances = map[fault.Kind]float64{fault.ReadTooOld: 0.2}
				ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
				defer cancel()
				begun := time.Now()
				done, err := w.do(ctx, q)
				require.NoError(t, err)
				require.EqualValues(t, n, done)
				t.Logf("%s, %d faults", time.Since(begun), plan.Counts()[fault.ReadTooOld])
				plan.Chances = nil
				report, err := calm.Admin().Check(t.Context(), layer.CheckOptions{})
				require.NoError(t, err)
				require.Empty(t, report.Violations)
				require.NoError(t, q.Close(t.Context()))
				require.NoError(t, calm.Close(t.Context()))
			})
		})
	}
}

func park(ctx context.Context, q *layer.Queue) error {
	return inHand(ctx, q, func(c *layer.Claim) error { return q.Nack(ctx, c, layer.NackOptions{Reject: "test"}) })
}

func finish(ctx context.Context, q *layer.Queue) error {
	return inHand(ctx, q, func(c *layer.Claim) error { return q.Ack(ctx, c) })
}

// inHand does something to a claim of each group.
func inHand(ctx context.Context, q *layer.Queue, do func(c *layer.Claim) error) error {
	for {
		claims, err := q.Receive(ctx, layer.ReceiveOptions{})
		if err != nil || len(claims) == 0 {
			return err
		}
		for _, c := range claims {
			if err := do(c); err != nil {
				return err
			}
		}
	}
}
