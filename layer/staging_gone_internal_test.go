package layer

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer/internal/rec"
)

// TestLeftRequestEndsThePassing: handles which pass wakes on may have requests that they do not know of, because a
// commit of unknown outcome has left them. A handle wakes neither itself by such a request nor another in turn without
// end: it clears its own.
func TestLeftRequestEndsThePassing(t *testing.T) {
	eventually := func(holds func() bool) {
		t.Helper()
		require.Eventually(t, holds, 4*time.Second, time.Millisecond)
	}
	for _, handles := range []int{1, 2} {
		db := embedded.OpenMemory(embedded.Options{})
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		_, err := Create(t.Context(), db, nil, "q", Options{})
		require.NoError(t, err)
		var gone []*Queue
		for range handles {
			q, err := Open(t.Context(), db, nil, "q", Options{})
			require.NoError(t, err)
			gone = append(gone, q)
			waiting, stop := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				_, err := q.Receive(waiting, ReceiveOptions{Wait: time.Minute})
				ended <- err
			}()
			eventually(func() bool { index, _ := q.staging.requested(); return index != 0 })
			stop()
			require.ErrorIs(t, <-ended, context.Canceled)
			eventually(func() bool {
				index, _ := q.staging.requested()
				return index == 0 && q.staging.goneLeft() > 0
			})
		}
		run := func(body func(tx kv.Tx) error) {
			_, err := kv.Run(t.Context(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error { return body(tx) })
			require.NoError(t, err)
		}
		run(func(tx kv.Tx) error {
			for i, q := range gone {
				r := rec.Request{Owner: q.opts.Owner, Wants: 9, DeadlineMS: q.nowMS() + requestLife.Milliseconds()}
				tx.Set(q.keys.request(int64(5+i), q.waitID), r.Pack())
			}
			return nil
		})
		sender, err := Open(t.Context(), db, nil, "q", Options{})
		require.NoError(t, err)
		_, err = sender.Enqueue(t.Context(), Message{Group: "A"})
		require.NoError(t, err)
		wakes := func() (n int64) {
			run(func(tx kv.Tx) error {
				n = 0
				for _, q := range gone {
					key := q.keys.wake(q.waitID)
					value, err := tx.Snapshot().Get(key).Wait(t.Context())
					if err != nil || value == nil {
						return err
					}
					count, err := rec.UnpackCount(key, value)
					if err != nil {
						return err
					}
					n += count
				}
				return nil
			})
			return n
		}
		left := func() (n int) {
			run(func(tx kv.Tx) error {
				requests := sender.keys.section(nameRequest).Selectors()
				rows, err := tx.Snapshot().GetRange(requests, kv.RangeOptions{}).Wait(t.Context())
				n = len(rows)
				return err
			})
			return n
		}
		eventually(func() bool { return left() == 0 })
		time.Sleep(50 * time.Millisecond)
		require.LessOrEqual(t, wakes(), int64(2*handles), "wakes of %d handles", handles)
	}
}
