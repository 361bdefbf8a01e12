package bench

import (
	"context"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv/embedded"
	"fdbfifo/kv/tuple"
)

// The two sides of engine_ratio in memory, by one caller and by several: a batch that the queue enqueues, claims and
// acks, and a batch that the engine alone sets and clears. By one caller, objects and bytes depend on no machine.
func BenchmarkEngineRatio(b *testing.B) {
	ctx := context.Background()
	const callers = 4
	space := Space{DB: embedded.OpenMemory(embedded.Options{}), Prefix: tuple.Tuple{"bench"}.Pack()}
	defer space.DB.Close()
	q, err := newQueue(ctx, Env{}, space, "engine")
	require.NoError(b, err)
	require.NoError(b, q.load(ctx, 0, groupsEach*callers, batchesEach*batch))
	raw, err := newRawItems(ctx, space, callers)
	require.NoError(b, err)
	sides := []struct {
		name string
		do   func(ctx context.Context, worker int) (items int, err error)
	}{{"queue", newQueueCycle(q, groupsEach*callers).batch}, {"engine", raw.batch}}
	for _, side := range sides {
		b.Run(side.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				_, err := side.do(ctx, 0)
				require.NoError(b, err)
			}
		})
	}
	for _, side := range sides {
		b.Run(side.name+"-by-several", func(b *testing.B) {
			b.ReportAllocs()
			var left, workers atomic.Int64
			left.Store(int64(b.N))
			done := make(chan error, callers)
			b.ResetTimer()
			for range callers {
				worker := int(workers.Add(1)) - 1
				go func() {
					var err error
					for err == nil && left.Add(-1) >= 0 {
						_, err = side.do(ctx, worker)
					}
					done <- err
				}()
			}
			for range callers {
				require.NoError(b, <-done)
			}
		})
	}
	require.NoError(b, q.verify(ctx))
}
