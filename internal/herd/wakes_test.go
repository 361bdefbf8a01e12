package herd

import (
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
)

// unsteadyDisk is a disk that others use too: a commit takes up to eight times as long as the shortest.
var unsteadyDisk = latency{commit: [2]time.Duration{1500 * time.Microsecond, 12 * time.Millisecond}}

// TestWakes: a receive that begins to wait just before or while a message is sent returns the message within six round
// trips of the send. The poll is a minute: no poll can stand in for a wake.
func TestWakes(t *testing.T) {
	wakes(t, clusterLatency, 20*time.Millisecond)
	wakes(t, unsteadyDisk, 40*time.Millisecond)
}

func wakes(t *testing.T, l latency, late time.Duration) {
	const waits = 2000
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		db := &slowDB{embedded.OpenMemory(embedded.Options{}), l}
		sender, err := layer.Create(ctx, db, nil, queueName, layer.Options{})
		require.NoError(t, err)
		h, err := layer.Open(ctx, db, nil, queueName, layer.Options{Poll: time.Minute})
		require.NoError(t, err)
		took := make([]time.Duration, waits)
		for n := range took {
			var at time.Time
			got := make(chan error)
			go func() {
				claims, err := h.Receive(ctx, layer.ReceiveOptions{Wait: layer.MaxWait})
				at = time.Now()
				if err == nil {
					err = h.Ack(ctx, claims[0])
				}
				got <- err
			}()
			time.Sleep(below(11 * time.Millisecond))
			_, err := sender.Enqueue(ctx, layer.Message{Group: fmt.Sprint("g", n%10)})
			sent := time.Now()
			require.NoError(t, err)
			require.NoError(t, <-got)
			took[n] = at.Sub(sent)
		}
		for _, q := range []*layer.Queue{h, sender} {
			require.NoError(t, q.Close(ctx))
		}
		require.NoError(t, db.Close())
		slices.Sort(took)
		t.Logf("median %s, p99 %s, p99.9 %s, longest %s; %d conflicts",
			took[waits/2], took[waits*99/100], took[waits*999/1000], took[waits-1], h.Paths().Conflicts)
		require.LessOrEqual(t, took[waits-1], late)
	})
}
