package layer_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/layer"
)

// gated is a handler that ends when the gate opens, and counts.
type gated struct {
	gate chan struct{}
	mu   sync.Mutex
	now  int // guarded by mu; how many run
	most int // guarded by mu
	done int // guarded by mu
}

func newGated() *gated { return &gated{gate: make(chan struct{})} }

func (g *gated) handle(_ context.Context, _ *layer.Delivery) error {
	g.mu.Lock()
	g.now++
	g.most = max(g.most, g.now)
	g.mu.Unlock()
	<-g.gate
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now--
	g.done++
	return nil
}

func (g *gated) counts() (most, done int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.most, g.done
}

// spread enqueues one message into each of n groups.
func (b *bubble) spread(n int) {
	b.t.Helper()
	msgs := make([]layer.Message, n)
	for i := range msgs {
		msgs[i].Group = fmt.Sprint("g", i)
	}
	_, err := b.q.Enqueue(b.t.Context(), msgs...)
	require.NoError(b.t, err)
}

func (b *bubble) hands(w *layer.Worker, all, idle int) {
	b.t.Helper()
	synctest.Wait()
	require.Equal(b.t, layer.Hands{All: all, Idle: idle}, w.Hands())
}

// TestWorkerGrowsAndShrinks: a worker has one hand more whenever all are busy, up to the most, and loses those that
// receive in vain, but for the least and one that waits; on one queue and on two.
func TestWorkerGrowsAndShrinks(t *testing.T) {
	for _, queues := range []int{1, 2} {
		inBubble(t, layer.Config{}, func(b *bubble) {
			g := newGated()
			o := layer.WorkerOptions{Concurrency: 1, MaxConcurrency: 4, Poll: 10 * time.Second, Timeout: -1}
			if queues == 2 {
				other, err := layer.Create(b.t.Context(), b.db, testPrefix, "other", layer.Options{})
				require.NoError(b.t, err)
				defer func() { require.NoError(b.t, other.Close(context.Background())) }()
				o.Also = []layer.Source{{Queue: other, Handler: layer.Handle(g.handle)}}
			}
			w := b.worker(layer.Handle(g.handle), o)
			b.hands(w, 0, 0)
			w.Start()
			b.hands(w, 1, 1)
			time.Sleep(5 * time.Minute)
			b.hands(w, 1, 1) // nothing to do
			b.spread(6)
			b.hands(w, 4, 0)
			close(g.gate)
			time.Sleep(3 * time.Second) // a wake may be lost, and then the next look takes what is left
			most, done := g.counts()
			require.Equal(b.t, 4, most)
			require.Equal(b.t, 6, done)
			b.hands(w, 4, 4)
			time.Sleep(20 * time.Second)
			b.hands(w, 4, 4) // two receives in vain are no reason
			time.Sleep(time.Minute)
			b.hands(w, 1, 1)
			g.gate = make(chan struct{})
			b.spread(1)
			b.hands(w, 2, 1)
			time.Sleep(5 * time.Minute)
			b.hands(w, 2, 1) // somebody waits for what comes
			close(g.gate)
			time.Sleep(time.Minute)
			b.hands(w, 1, 1)
			require.NoError(b.t, w.Stop(b.t.Context()))
			b.hands(w, 0, 0)
			require.Empty(b.t, b.reported())
		})
	}
}

// TestSetConcurrency: the number of hands follows at once; hands that are busy finish what they hold.
func TestSetConcurrency(t *testing.T) {
	inBubble(t, layer.Config{}, func(b *bubble) {
		g := newGated()
		w := b.worker(layer.Handle(g.handle), layer.WorkerOptions{Concurrency: 2, Timeout: -1})
		require.NoError(b.t, w.SetConcurrency(3, 0)) // before Start
		w.Start()
		b.hands(w, 3, 3)
		require.NoError(b.t, w.SetConcurrency(5, 5))
		b.hands(w, 5, 5)
		require.NoError(b.t, w.SetConcurrency(2, 2))
		b.hands(w, 2, 2) // at once, not after a poll
		b.spread(6)
		b.hands(w, 2, 0)
		require.NoError(b.t, w.SetConcurrency(2, 4))
		b.hands(w, 4, 0)
		require.NoError(b.t, w.SetConcurrency(1, 1))
		b.hands(w, 4, 0) // they are not interrupted
		close(g.gate)
		b.hands(w, 1, 1)
		most, done := g.counts()
		require.Equal(b.t, 4, most)
		require.Equal(b.t, 6, done)
		for _, bad := range [][2]int{{0, 1}, {-1, 0}, {3, 2}, {1, 1 << 20}, {1 << 20, 0}} {
			var limit *layer.LimitError
			require.ErrorAs(b.t, w.SetConcurrency(bad[0], bad[1]), &limit, "%v", bad)
		}
		require.NoError(b.t, w.Stop(b.t.Context()))
		require.NoError(b.t, w.SetConcurrency(7, 7))
		b.hands(w, 0, 0)
		require.Empty(b.t, b.reported())
	})
}

// TestNextWhere: a worker asks for its template before each receive, and goes on after one that the queue's views do
// not allow.
func TestNextWhere(t *testing.T) {
	inBubble(t, layer.Config{Facets: []string{"state"}, Views: "state"}, func(b *bubble) {
		var mu sync.Mutex
		where := layer.Template{"state": "NEW"}
		set := func(t layer.Template) {
			mu.Lock()
			defer mu.Unlock()
			where = t
		}
		var handled []string
		w := b.worker(layer.Handle(func(_ context.Context, d *layer.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			handled = append(handled, d.Headers["state"])
			return nil
		}), layer.WorkerOptions{Concurrency: 1, Poll: 2 * time.Second, NextWhere: func() layer.Template {
			mu.Lock()
			defer mu.Unlock()
			return where
		}})
		send := func() {
			for _, state := range []string{"NEW", "PAID"} {
				m := layer.Message{Group: "A", Headers: map[string]string{"state": state}}
				_, err := b.q.Enqueue(b.t.Context(), m)
				require.NoError(b.t, err)
			}
		}
		expect := func(states ...string) {
			b.t.Helper()
			synctest.Wait()
			mu.Lock()
			defer mu.Unlock()
			require.Equal(b.t, states, handled)
		}
		w.Start()
		synctest.Wait() // the worker's receive waits: an enqueue before it does might leave it to the next look
		send()
		expect("NEW")
		set(layer.Template{"state": "PAID"})
		time.Sleep(2 * time.Second) // the wait under way keeps its template
		expect("NEW", "PAID")
		set(layer.Template{"color": "red"})
		time.Sleep(5 * time.Second)
		require.NotEmpty(b.t, b.reported())
		var refused *layer.TemplateError
		require.True(b.t, errors.As(b.reported()[0], &refused), "%v", b.reported()[0])
		set(layer.Template{"state": "NEW"})
		send()
		time.Sleep(time.Second)
		expect("NEW", "PAID", "NEW")
		require.NoError(b.t, w.Stop(b.t.Context()))
	})
}
