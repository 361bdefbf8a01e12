package layer_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/layer"
)

// TestStageWorkers: workers of three stages hand the messages of each group on in their order, in place, though
// handlers fail now and then; each message passes each stage once more than the stage has failed for it, and the last
// finishes it.
func TestStageWorkers(t *testing.T) {
	inBubble(t, layer.Config{Facets: []string{"state"}, Views: "*; state", Retry: eachSecond}, func(b *bubble) {
		const groups, each = 3, 5
		for n := range groups * each {
			_, err := b.q.Enqueue(b.t.Context(), layer.Message{
				Group: fmt.Sprint(n % groups), Headers: map[string]string{"state": "NEW", "trace": fmt.Sprint(n)},
			})
			require.NoError(b.t, err)
		}
		next := map[string]layer.Template{"NEW": {"state": "PAID"}, "PAID": {"state": "DONE"}, "DONE": nil}
		var mu sync.Mutex
		last := make(map[string]layer.ID)
		done := 0
		for stage := range next {
			w := b.worker(layer.HandleStage(func(_ context.Context, d *layer.Delivery) (layer.Template, error) {
				mu.Lock()
				defer mu.Unlock()
				if d.Attempt == 1 && d.ID.Index%3 == 0 {
					return nil, errors.New("not yet")
				}
				require.Equal(b.t, stage, d.Headers["state"])
				require.NotEmpty(b.t, d.Headers["trace"], "other headers stay")
				key := stage + d.ID.Group
				require.Greater(b.t, d.ID.Index, last[key].Index, "in order, each once")
				last[key] = d.ID
				if next[stage] == nil {
					done++
				}
				return next[stage], nil
			}), layer.WorkerOptions{Where: layer.Template{"state": stage}, Concurrency: 2, Batch: 2})
			w.Start()
			defer func() { require.NoError(b.t, w.Stop(b.t.Context())) }()
		}
		time.Sleep(2 * time.Minute)
		mu.Lock()
		defer mu.Unlock()
		require.Equal(b.t, groups*each, done)
	})
}

// TestStageToNowhere: a handler that names no facet of the queue has failed, and a worker by no template of the queue
// is not made.
func TestStageToNowhere(t *testing.T) {
	config := layer.Config{Facets: []string{"state"}, Views: "state", MaxAttempts: 1}
	inBubble(t, config, func(b *bubble) {
		_, err := b.q.Enqueue(b.t.Context(), layer.Message{Group: "A", Headers: map[string]string{"state": "NEW"}})
		require.NoError(b.t, err)
		stage := layer.HandleStage(func(context.Context, *layer.Delivery) (layer.Template, error) {
			return layer.Template{"stage": "PAID"}, nil
		})
		_, err = layer.NewWorker(b.q, stage, layer.WorkerOptions{})
		var wrong *layer.TemplateError
		require.ErrorAs(b.t, err, &wrong)
		_, err = layer.NewWorker(b.q, layer.HandleStage(nil), layer.WorkerOptions{Where: isNew})
		require.ErrorIs(b.t, err, layer.ErrOptions)
		b.run(b.worker(stage, layer.WorkerOptions{Where: isNew}), nil, time.Minute)
		page, err := b.q.Admin().DeadLetters(b.t.Context(), layer.DeadOptions{})
		require.NoError(b.t, err)
		require.Len(b.t, page.Letters, 1)
		require.Contains(b.t, page.Letters[0].LastError, "stage=PAID is of no view")
	})
}
