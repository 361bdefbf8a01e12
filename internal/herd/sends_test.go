package herd

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
)

// TestSends: at a cluster's latencies, and with all the processors that it takes, producers of one handle who enqueue
// one message at a time are nearly as fast as bare sets, though each enqueue reads before it writes.
func TestSends(t *testing.T) {
	for _, of := range []struct {
		callers int
		empty   bool // each message goes to an empty group, so a receive may wait for it
	}{{1, false}, {1, true}, {16, false}, {16, true}} {
		synctest.Test(t, func(t *testing.T) {
			db := &slowDB{embedded.OpenMemory(embedded.Options{}), clusterLatency}
			q, err := layer.Create(t.Context(), db, nil, queueName, layer.Options{})
			require.NoError(t, err)
			var sent atomic.Int64
			send := func(caller, _ int) error {
				group := fmt.Sprint("g", caller)
				if of.empty {
					group = fmt.Sprint("g", sent.Add(1))
				}
				_, err := q.Enqueue(t.Context(), layer.Message{Group: group})
				return err
			}
			callers(t, of.callers, send)
			queue := callers(t, of.callers, send)
			bare := callers(t, of.callers, func(caller, n int) error {
				_, err := kv.Run(t.Context(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
					tx.Set(fmt.Append(nil, "raw", caller, " ", n), nil)
					return nil
				})
				return err
			})
			ratio := bare.Seconds() / queue.Seconds()
			t.Logf("%d callers, empty groups %t: send_ratio %.2f (%s, %s bare)",
				of.callers, of.empty, ratio, queue, bare)
			if ratio < 0.7 {
				t.Errorf("send_ratio %.2f, should be 0.7 at least", ratio)
			}
			require.NoError(t, q.Close(t.Context()))
			require.NoError(t, db.Close())
		})
	}
}

const sends = 200 // of a caller, one after the other

// callers lets so many send at the same time, and returns the median time of a send.
func callers(t *testing.T, n int, send func(caller, n int) error) time.Duration {
	var wg sync.WaitGroup
	took := make([][]time.Duration, n)
	for caller := range n {
		wg.Go(func() {
			for n := range sends {
				begun := time.Now()
				if err := send(caller, n); err != nil {
					t.Error(err)
					return
				}
				took[caller] = append(took[caller], time.Since(begun))
			}
		})
	}
	wg.Wait()
	all := slices.Concat(took...)
	slices.Sort(all)
	return all[len(all)/2]
}
