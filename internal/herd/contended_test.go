package herd

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/internal/seeds"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
)

// TestContendedHandles: many goroutines of many handles wait for few messages. No claim is lost, an ack takes as long
// as its own transaction, and no message waits until a grant ends.
func TestContendedHandles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := &slowDB{embedded.OpenMemory(embedded.Options{}), clusterLatency}
		c := &contended{groups: 200}
		c.left.Store(800)
		var ctx context.Context
		ctx, c.stop = context.WithCancel(t.Context())
		q, err := layer.Create(ctx, db, nil, queueName, layer.Options{})
		require.NoError(t, err)
		handles := []*layer.Queue{q}
		var wg sync.WaitGroup
		for range 20 {
			h, err := layer.Open(ctx, db, nil, queueName, layer.Options{})
			require.NoError(t, err)
			handles = append(handles, h)
			for hand := range 10 {
				wg.Go(func() {
					if err := c.work(ctx, h, hand%2 == 0); err != nil {
						t.Error(err)
						c.stop()
					}
				})
			}
		}
		random := seeds.Concurrent("contended")
		for n := range c.left.Load() {
			at := time.Duration(n) * time.Millisecond / 2
			wg.Go(func() {
				time.Sleep(at)
				group := fmt.Sprint("g", random.Int64N(c.groups))
				m := layer.Message{Group: group, Body: fmt.Append(nil, time.Now().UnixNano())}
				if _, err := q.Enqueue(t.Context(), m); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		for _, h := range handles {
			c.conflicts += h.Paths().Conflicts
			require.NoError(t, h.Close(t.Context()))
		}
		require.NoError(t, db.Close())
		slices.Sort(c.waits)
		slices.Sort(c.acks)
		n := len(c.waits)
		p99, ack := c.waits[n*99/100], c.acks[len(c.acks)-1]
		t.Logf("%d claims lost; waits: median %s, p99 %s, longest %s; longest ack %s; %.2f conflicts a message",
			c.lost, c.waits[n/2], p99, c.waits[n-1], ack, float64(c.conflicts)/float64(n))
		require.Zero(t, c.lost)
		require.LessOrEqual(t, p99, 300*time.Millisecond)
		require.LessOrEqual(t, c.waits[n-1], time.Second)
		require.LessOrEqual(t, ack, 100*time.Millisecond)
	})
}

// contended is what the handles of TestContendedHandles share.
type contended struct {
	groups    int64
	left      atomic.Int64 // messages
	stop      context.CancelFunc
	conflicts int64

	mu          sync.Mutex
	lost        int             // claims; guarded by mu
	waits, acks []time.Duration // guarded by mu
}

// work receives and acks until no message is left. apart: the ack and the next receive are two calls.
func (c *contended) work(ctx context.Context, h *layer.Queue, apart bool) error {
	o := layer.ReceiveOptions{Max: 1, Wait: layer.MaxWait, Lease: 3 * time.Second, Stop: ctx.Done()}
	life := context.WithoutCancel(ctx)
	claims, err := h.Receive(life, o)
	for ctx.Err() == nil {
		if errors.Is(err, layer.ErrClaimLost) {
			c.note(func() { c.lost++ })
			claims, err = nil, nil
		}
		if err != nil {
			return err
		}
		if len(claims) == 0 {
			claims, err = h.Receive(life, o)
			continue
		}
		var sent int64
		if _, err := fmt.Sscan(string(claims[0].Items[0].Body), &sent); err != nil {
			return err
		}
		c.note(func() { c.waits = append(c.waits, time.Since(time.Unix(0, sent))) })
		begun := time.Now()
		switch claim := claims[0]; {
		case apart:
			if claims, err = nil, h.Ack(life, claim); err == nil {
				c.note(func() { c.acks = append(c.acks, time.Since(begun)) })
			}
		default:
			claims, err = h.SettleReceive(life, layer.Settlement{Claim: claim, FinishAll: true}, o)
		}
		if err == nil && c.left.Add(-1) == 0 {
			c.stop()
		}
	}
	return err
}

func (c *contended) note(fn func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	fn()
}
