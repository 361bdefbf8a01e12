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
	plain := layer.Config{DedupForPending: true, Archive: time.Hour, Retention: time.Hour, DeadLetterExpired: true}
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
			return r.Keys - n - 1, err // the items are looked at too, and the wake key of the producer
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
			_, err := q.Admin().PauseGroup(ctx, "paused", layer.PauseOptions{}) // so it works in steps
			return err
		}, func(ctx context.Context, q *layer.Queue) (int64, error) {
			r, err := q.Admin().Purge(ctx, layer.PurgeOptions{All: true})
			return r.Items, err
		}},
		{"redrive", toDeadLetters, func(ctx context.Context, q *layer.Queue) (int64, error) {
			r, err := q.Admin().Redrive(ctx, layer.DeadFilter{All: true}, layer.RedriveOptions{})
			return r.Done, err
		}},
		{"list of dead letters", toDeadLetters, func(ctx context.Context, q *layer.Queue) (int64, error) {
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
			r, err := q.Admin().Replay(ctx, layer.ArchiveFilter{All: true}, layer.ReplayOptions{})
			return r.Done, err
		}},
	}
	for _, w := range works {
		t.Run(w.name, func(t *testing.T) {
			amidFailures(t, plain, func(ctx context.Context, calm *layer.Queue) error {
				for some := range slices.Chunk(bodies, 30) {
					if _, err := calm.Enqueue(ctx, some...); err != nil {
						return err
					}
				}
				if w.before == nil {
					return nil
				}
				return w.before(ctx, calm)
			}, func(ctx context.Context, q *layer.Queue) {
				done, err := w.do(ctx, q)
				require.NoError(t, err)
				require.EqualValues(t, n, done)
			})
		})
	}
}

// amidFailures calls do with a handle one in five of whose reads fails, on a queue that before has prepared.
func amidFailures(
	t *testing.T, config layer.Config, before func(ctx context.Context, calm *layer.Queue) error,
	do func(ctx context.Context, q *layer.Queue),
) {
	synctest.Test(t, func(t *testing.T) {
		raw := embedded.OpenMemory(embedded.Options{})
		defer raw.Close()
		calm, err := layer.Create(t.Context(), raw, testPrefix, testQueue, layer.Options{Config: config})
		require.NoError(t, err)
		require.NoError(t, before(t.Context(), calm))
		plan := &fault.Plan{Seed: *seedFlag}
		q, err := layer.Open(t.Context(), fault.Wrap(raw, plan), testPrefix, testQueue, layer.Options{})
		require.NoError(t, err)
		plan.Chances = map[fault.Kind]float64{fault.ReadTooOld: 0.2}
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Minute)
		defer cancel()
		begun := time.Now()
		do(ctx, q)
		t.Logf("%s, %d faults", time.Since(begun), plan.Counts()[fault.ReadTooOld])
		plan.Chances = nil
		report, err := calm.Admin().Check(t.Context(), layer.CheckOptions{})
		require.NoError(t, err)
		require.Empty(t, report.Violations)
		require.NoError(t, q.Close(t.Context()))
		require.NoError(t, calm.Close(t.Context()))
	})
}

func toDeadLetters(ctx context.Context, q *layer.Queue) error {
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

// TestChoresGetFewer (G5): a receive or a take with much in its way does less of it in a transaction after each that
// fails, and so comes through although one read in five fails.
func TestChoresGetFewer(t *testing.T) {
	t.Parallel()
	const n = 100
	where := layer.Template{"state": "new"}
	lanes := layer.Config{Facets: []string{"state"}, Views: "state;*", Retention: 6 * time.Hour, Lease: time.Hour}
	unordered := layer.Config{Unordered: true, MaxAttempts: 1}
	message := func(group, body string) layer.Message {
		return layer.Message{Group: group, Headers: map[string]string{"state": "new"}, Body: []byte(body)}
	}
	receive := func(o layer.ReceiveOptions) func(ctx context.Context, q *layer.Queue) (string, error) {
		o.Max = 1
		return func(ctx context.Context, q *layer.Queue) (string, error) {
			claims, err := q.Receive(ctx, o)
			if err != nil || len(claims) == 0 {
				return "", err
			}
			return string(claims[0].Items[0].Body), q.Ack(ctx, claims[0])
		}
	}
	group := "A"
	for _, c := range []struct {
		name   string
		config layer.Config
		before func(ctx context.Context, q *layer.Queue) error // without faults, before the last message comes
		last   layer.Message
		do     func(ctx context.Context, q *layer.Queue) (string, error)
	}{
		{"holds of a dead worker", unordered, func(ctx context.Context, q *layer.Queue) error {
			for i := range n {
				if _, err := q.Enqueue(ctx, message(group, fmt.Sprint(i))); err != nil {
					return err
				}
			}
			defer time.Sleep(2 * time.Hour)
			_, err := q.Receive(ctx, layer.ReceiveOptions{Max: n, Unordered: true, CountExpired: true})
			return err
		}, message(group, "last"), receive(layer.ReceiveOptions{Group: &group})},
		{"past retention in a lane", lanes, func(ctx context.Context, q *layer.Queue) error {
			for i := range n {
				if _, err := q.Enqueue(ctx, message(group, fmt.Sprint(i))); err != nil {
					return err
				}
			}
			time.Sleep(12 * time.Hour)
			return nil
		}, message(group, "last"), receive(layer.ReceiveOptions{Where: where})},
		{"hints of groups in flight", lanes, func(ctx context.Context, q *layer.Queue) error {
			for i := range n {
				if _, err := q.Enqueue(ctx, message(fmt.Sprint("G", i), "held")); err != nil {
					return err
				}
			}
			_, err := q.Receive(ctx, layer.ReceiveOptions{Max: n, Strategy: layer.Heads})
			return err
		}, message(group, "last"), func(ctx context.Context, q *layer.Queue) (string, error) {
			items, err := takeFrom(ctx, q, 1, layer.TakeOptions{Where: where})
			if err != nil || len(items) == 0 {
				return "", err
			}
			return string(items[0].Body), nil
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			amidFailures(t, c.config, func(ctx context.Context, calm *layer.Queue) error {
				if err := c.before(ctx, calm); err != nil {
					return err
				}
				_, err := calm.Enqueue(ctx, c.last)
				return err
			}, func(ctx context.Context, q *layer.Queue) {
				got, err := c.do(ctx, q)
				require.NoError(t, err)
				require.Equal(t, "last", got)
			})
		})
	}
}
