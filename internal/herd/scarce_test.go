package herd

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv/embedded"
	"fdbfifo/kv/record"
	"fdbfifo/layer"
)

// TestOneGroup: many handles at one group, each of which receives and acks, in two transactions. Nearly all
// transactions are those two, because the handles do not fight; and yet each handle gets its share.
func TestOneGroup(t *testing.T) {
	for _, of := range []struct {
		handles int
		most    float64 // transactions an item
	}{{16, 2.2}, {64, 2.5}} {
		synctest.Test(t, func(t *testing.T) {
			// A handle gives the group to the next one after about 33 items, so each handle has about 15 turns. With
			// four turns, a handle with two short ones would count as starved.
			items := 500 * of.handles
			db := embedded.OpenMemory(embedded.Options{})
			q, err := layer.Create(t.Context(), db, nil, queueName, layer.Options{})
			require.NoError(t, err)
			require.NoError(t, load(t.Context(), q, Options{Groups: 1, Items: items}))
			counting := record.WrapCounting(&slowDB{db, clusterLatency})
			handles := make([]*layer.Queue, of.handles)
			for i := range handles {
				options := layer.Options{Owner: fmt.Sprint("h", i)}
				handles[i], err = layer.Open(t.Context(), counting, nil, queueName, options)
				require.NoError(t, err)
			}
			before, begun := counting.Counters(), time.Now()
			got := takeAll(t, handles, items)
			counted, took := counting.Counters().Sub(before), time.Since(begun)
			r := shares(make([]int64, of.handles), got)
			each := float64(counted.Commits+counted.Conflicts+counted.Failures) / float64(items)
			t.Logf("%d handles, %d items in %s: %.2f transactions an item, %.3f conflicts", of.handles, items, took,
				each, r.PerClaim(counted.Conflicts))
			t.Logf("least_share %.2f, most_share %.2f of the mean", r.Least, r.Most)
			require.LessOrEqual(t, each, of.most)
			require.Zero(t, r.Starved)
			for _, h := range append(handles, q) {
				require.NoError(t, h.Close(t.Context()))
			}
			require.NoError(t, db.Close())
		})
	}
}

// takeAll lets each handle receive and ack until so many items are acked, and returns how many items each has got.
func takeAll(t *testing.T, handles []*layer.Queue, items int) (got []int64) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	got = make([]int64, len(handles))
	var mu sync.Mutex
	all := 0 // guarded by mu, as is got
	var working sync.WaitGroup
	for i, h := range handles {
		working.Go(func() {
			for ctx.Err() == nil {
				claims, err := h.Receive(ctx, layer.ReceiveOptions{Max: 1, Wait: 20 * time.Second})
				if err == nil && len(claims) > 0 {
					err = h.Ack(t.Context(), claims[0])
				}
				if ctx.Err() == nil && err != nil {
					t.Error(err)
					stop()
				}
				if len(claims) == 0 || err != nil {
					continue
				}
				mu.Lock()
				got[i]++
				all++
				if all == items {
					stop()
				}
				mu.Unlock()
			}
		})
	}
	working.Wait()
	return got
}
