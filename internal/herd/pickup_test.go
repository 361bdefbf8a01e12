package herd

import (
	"context"
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
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// TestPickup: a message waits about as long as its enqueue, a look and a claim take, while the 16 goroutines of a
// handle have time to spare: at a third and two thirds of the rate at which they are always busy. Each enqueue wakes
// the handle, which may lose no conflict by that; and neither may its own transactions among each other.
//
// The order of goroutines in an instant is not of the seed. Two transactions of the handle conflict once in 1,500
// messages or so, and the 20 to 40 messages that come until both are done wait behind them. So there are as many
// messages as it takes for the 99th percentile to tell little of that.
func TestPickup(t *testing.T) {
	for _, perSecond := range []int{700, 1600} {
		synctest.Test(t, func(t *testing.T) {
			p := pickup(t, perSecond, 6000)
			n := len(p.waits)
			median, p90, p99, longest := p.waits[n/2], p.waits[n*9/10], p.waits[n*99/100], p.waits[n-1]
			t.Logf("%d messages/s: median %s, p90 %s, p99 %s, longest %s; %d conflicts",
				perSecond, median, p90, p99, longest, p.conflicts)
			require.LessOrEqual(t, median, 13*time.Millisecond)
			require.LessOrEqual(t, p90, 20*time.Millisecond)
			require.LessOrEqual(t, p99, 80*time.Millisecond)
			require.LessOrEqual(t, longest, 300*time.Millisecond)
			require.LessOrEqual(t, p.conflicts, int64(n/200))
		})
	}
}

// pickups are the times from when a message should be sent to when a receive returns it, in order.
type pickups struct {
	waits     []time.Duration
	conflicts int64
}

// pickup sends so many messages at a rate to random groups of 10,000, and has a handle receive and ack.
func pickup(t *testing.T, perSecond, messages int) pickups {
	db := &slowDB{embedded.OpenMemory(embedded.Options{}), clusterLatency}
	sender, err := layer.Create(t.Context(), db, nil, queueName, layer.Options{})
	require.NoError(t, err)
	h, err := layer.Open(t.Context(), db, nil, queueName, layer.Options{})
	require.NoError(t, err)
	begun := time.Now().Add(time.Second)
	due := func(n int) time.Time { return begun.Add(time.Duration(n) * time.Second / time.Duration(perSecond)) }
	p := pickups{waits: make([]time.Duration, messages)}
	var left atomic.Int64
	left.Store(int64(messages))
	receiving, stop := context.WithCancel(t.Context())
	defer stop()
	var hands, sends sync.WaitGroup
	for range 16 {
		hands.Go(func() {
			o := layer.ReceiveOptions{Max: 1, MaxGroups: 1, Wait: layer.MaxWait, Stop: receiving.Done()}
			claims, err := h.Receive(t.Context(), o)
			for len(claims) > 0 && err == nil {
				n, _, _ := tuple.DecodeInt(claims[0].Items[0].Body)
				p.waits[n] = time.Since(due(int(n)))
				if left.Add(-1) == 0 {
					stop()
				}
				claims, err = h.SettleReceive(t.Context(), layer.Settlement{Claim: claims[0], FinishAll: true}, o)
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	random := seeds.Concurrent("pickup")
	for n := range messages {
		sends.Go(func() {
			time.Sleep(time.Until(due(n)))
			m := layer.Message{Group: fmt.Sprint("g", random.Int64N(10_000)), Body: tuple.AppendInt(nil, int64(n))}
			if _, err := sender.Enqueue(t.Context(), m); err != nil {
				t.Error(err)
			}
		})
	}
	sends.Wait()
	hands.Wait()
	p.conflicts = h.Paths().Conflicts
	for _, q := range []*layer.Queue{h, sender} {
		require.NoError(t, q.Close(t.Context()))
	}
	require.NoError(t, db.Close())
	slices.Sort(p.waits)
	return p
}
