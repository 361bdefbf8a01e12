//go:build linux || darwin

package embedded_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
)

// The life of a message of a queue, by one caller: enqueue, receive, ack. In turns on a database on disk that this
// process has open, and on one that another process has; "ratio" is the speed of the second in that of the first.
func BenchmarkLifecycle(b *testing.B) {
	here, err := embedded.OpenDisk(b.TempDir(), embedded.Options{Exclusive: true})
	require.NoError(b, err)
	defer here.Close()
	there, _ := served(b, embedded.Options{})
	ctx := context.Background()
	var took [2]time.Duration
	var queues [2]*layer.Queue
	for i, db := range []kv.DB{here, there} {
		queues[i], err = layer.Create(ctx, db, []byte("bench"), "q", layer.Options{})
		require.NoError(b, err)
		defer queues[i].Close(ctx)
	}
	b.ResetTimer()
	for n := range b.N {
		for turn := range queues {
			i := (n + turn) % 2 // a sync that follows another is quicker
			begun := time.Now()
			lifecycle(b, ctx, queues[i])
			took[i] += time.Since(begun)
		}
	}
	b.ReportMetric(float64(took[0])/float64(took[1]), "ratio")
	b.ReportMetric(float64(took[0].Microseconds())/float64(b.N), "µs-here")
	b.ReportMetric(float64(took[1].Microseconds())/float64(b.N), "µs-there")
}

func lifecycle(b *testing.B, ctx context.Context, q *layer.Queue) {
	_, err := q.Enqueue(ctx, layer.Message{Group: "a", Body: []byte("body")})
	require.NoError(b, err)
	claims, err := q.Receive(ctx, layer.ReceiveOptions{Max: 1})
	require.NoError(b, err)
	require.Len(b, claims, 1)
	require.NoError(b, q.Ack(ctx, claims[0]))
}
