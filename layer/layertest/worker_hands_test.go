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
	"fdbfifo/worker"
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

func (g *gated) handle(_ context.Context, _ *worker.Delivery) error {
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

func (b *bubble) hands(w *worker.Worker, all, idle int) {
	b.t.Helper()
	synctest.Wait()
	now := w.Hands()
	require.Equal(b.t, [2]int{all, idle}, [2]int{now.All, now.Idle})
}

// TestWorkerGrowsAndShrinks: a worker gets one more hand whenever all are busy, up to the most. It loses hands that
// receive nothing, except the least number and one that waits. The test runs on one queue and on two.
func TestWorkerGrowsAndShrinks(t *testing.T) {
	for _, queues := range []int{1, 2} {
		inBubble(t, layer.Config{}, func(b *bubble) {
			g := newGated()
			o := worker.Options{Concurrency: 1, MaxConcurrency: 4, Poll: 10 * time.Second, Timeout: -1}
			if queues == 2 {
				other, err := layer.Create(b.t.Context(), b.db, testPrefix, "other", layer.Options{})
				require.NoError(b.t, err)
				defer func() { require.NoError(b.t, other.Close(context.Background())) }()
				o.Also = []worker.Source{{Queue: other, Handler: worker.Handle(g.handle)}}
			}
			w := b.worker(worker.Handle(g.handle), o)
			b.hands(w, 0, 0)
			w.Start()
			b.hands(w, 1, 1)
			time.Sleep(5 * time.Minute)
			b.hands(w, 1, 1) // nothing to do
			b.spread(6)
			b.hands(w, 4, 0)
			close(g.gate)
			time.Sleep(3 * time.Second) // a wake may be lost, and then the next look takes the rest
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
			b.hands(w, 2, 1) // one hand waits for new groups
			close(g.gate)
			time.Sleep(time.Minute)
			b.hands(w, 1, 1)
			require.NoError(b.t, w.Stop(b.t.Context()))
			b.hands(w, 0, 0)
			require.True(b.t, w.Hands().Ended)
			require.Empty(b.t, b.reported())
		})
	}
}

// TestSetConcurrency: the number of hands follows at once; hands that are busy finish what they hold.
func TestSetConcurrency(t *testing.T) {
	inBubble(t, layer.Config{}, func(b *bubble) {
		g := newGated()
		w := b.worker(worker.Handle(g.handle), worker.Options{Concurrency: 2, Timeout: -1})
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

// TestWorkerOfAGroup: a worker of one group handles its messages in order as they come, and leaves those of others.
func TestWorkerOfAGroup(t *testing.T) {
	inBubble(t, layer.Config{}, func(b *bubble) {
		var mu sync.Mutex
		var handled []string
		w := b.worker(worker.Handle(func(_ context.Context, d *worker.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			handled = append(handled, string(d.Body))
			return nil
		}), worker.Options{Concurrency: 4, Group: layer.OnlyGroup("B")})
		w.Start()
		synctest.Wait()
		for n := range 6 {
			for _, group := range []string{"A", "B"} {
				m := layer.Message{Group: group, Body: fmt.Appendf(nil, "%s%d", group, n)}
				_, err := b.q.Enqueue(b.t.Context(), m)
				require.NoError(b.t, err)
			}
		}
		time.Sleep(5 * time.Second)
		require.NoError(b.t, w.Stop(b.t.Context()))
		require.Equal(b.t, []string{"B0", "B1", "B2", "B3", "B4", "B5"}, handled)
		left, err := b.q.Admin().Group(b.t.Context(), "A", nil)
		require.NoError(b.t, err)
		require.EqualValues(b.t, 6, left.Depth)
		require.Empty(b.t, b.reported())
		_, err = worker.New(b.q, worker.Handle(func(context.Context, *worker.Delivery) error { return nil }),
			worker.Options{Group: layer.OnlyGroup("\xff")})
		require.ErrorIs(b.t, err, layer.ErrInvalidUTF8)
	})
}

// TestNext: a worker asks for its template and its group before each receive, and goes on after one that the queue's
// views do not allow, or that can be no group.
func TestNext(t *testing.T) {
	inBubble(t, layer.Config{Facets: []string{"state"}, Views: "state"}, func(b *bubble) {
		var mu sync.Mutex
		where, group := layer.Template{"state": "NEW"}, (*string)(nil)
		set := func(t layer.Template, g *string) {
			mu.Lock()
			defer mu.Unlock()
			where, group = t, g
		}
		var handled []string
		w := b.worker(worker.Handle(func(_ context.Context, d *worker.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			handled = append(handled, d.ID.Group+" "+d.Headers["state"])
			return nil
		}), worker.Options{Concurrency: 1, Poll: 2 * time.Second, Next: func() (layer.Template, *string) {
			mu.Lock()
			defer mu.Unlock()
			return where, group
		}})
		send := func(group string) {
			for _, state := range []string{"NEW", "PAID"} {
				m := layer.Message{Group: group, Headers: map[string]string{"state": state}}
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
		send("A")
		expect("A NEW")
		set(layer.Template{"state": "PAID"}, nil)
		time.Sleep(2 * time.Second) // the wait under way keeps its template
		expect("A NEW", "A PAID")
		set(layer.Template{"color": "red"}, nil)
		time.Sleep(5 * time.Second)
		require.NotEmpty(b.t, b.reported())
		var refused *layer.TemplateError
		require.True(b.t, errors.As(b.reported()[0], &refused), "%v", b.reported()[0])
		set(layer.Template{"state": "NEW"}, layer.OnlyGroup("C"))
		time.Sleep(time.Second) // the pause after the error
		send("B")
		send("C")
		time.Sleep(5 * time.Second)
		expect("A NEW", "A PAID", "C NEW")
		set(layer.Template{"state": "NEW"}, layer.OnlyGroup("\xff"))
		before := len(b.reported())
		time.Sleep(5 * time.Second)
		require.Greater(b.t, len(b.reported()), before)
		require.ErrorIs(b.t, b.reported()[before], layer.ErrInvalidUTF8)
		set(layer.Template{"state": "NEW"}, nil)
		time.Sleep(5 * time.Second)
		expect("A NEW", "A PAID", "C NEW", "B NEW")
		require.NoError(b.t, w.Stop(b.t.Context()))
	})
}
