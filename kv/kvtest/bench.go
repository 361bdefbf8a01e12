package kvtest

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"fdbfifo/kv"
)

// Sizes of the benchmarks' data: keys and values as a queue has them.
const (
	benchRows      = 10_000
	benchValueSize = 100 // bytes
)

// Bench measures the engine that open returns. One operation is one transaction. A sub-benchmark is named for the
// operation, then "keys=" for the keys of a transaction and "goroutines=" for the goroutines at once. Goroutines write
// disjoint keys, so the figures are without conflicts.
func Bench(b *testing.B, open func(b *testing.B) Engine) {
	for _, keys := range []int{1, 10, 100} {
		for _, goroutines := range []int{1, 16, 64} {
			b.Run(fmt.Sprintf("set/keys=%d/goroutines=%d", keys, goroutines), func(b *testing.B) {
				newBench(b, open).run(goroutines, keys, func(f *bench, worker, n int) error {
					return f.update(func(tx kv.Tx) error {
						for i := range keys {
							tx.Set(f.key(worker, n*keys+i), f.value)
						}
						return nil
					})
				})
			})
		}
	}
	for _, goroutines := range []int{1, 16, 64} {
		on := fmt.Sprintf("/goroutines=%d", goroutines)
		b.Run("set and clear"+on, func(b *testing.B) {
			newBench(b, open).run(goroutines, 2, func(f *bench, worker, n int) error {
				return f.update(func(tx kv.Tx) error {
					tx.Set(f.key(worker, n+1), f.value)
					tx.Clear(f.key(worker, n))
					return nil
				})
			})
		})
		b.Run("get"+on, func(b *testing.B) {
			newBench(b, open).fill().run(goroutines, 1, func(f *bench, worker, n int) error {
				return f.update(func(tx kv.Tx) error {
					_, err := tx.Get(f.key(0, scattered(worker, n))).Wait(f.ctx)
					return err
				})
			})
		})
		b.Run("range/keys=100"+on, func(b *testing.B) {
			newBench(b, open).fill().run(goroutines, 100, func(f *bench, worker, n int) error {
				return f.update(func(tx kv.Tx) error {
					r := kv.KeyRange{Begin: f.key(0, scattered(worker, n)%(benchRows-100)), End: f.key(1, 0)}
					_, err := tx.GetRange(r.Selectors(), kv.RangeOptions{Limit: 100}).Wait(f.ctx)
					return err
				})
			})
		})
		b.Run("tail key"+on, func(b *testing.B) {
			newBench(b, open).fill().run(goroutines, 1, func(f *bench, _, _ int) error {
				return f.update(func(tx kv.Tx) error {
					_, err := tx.GetKey(kv.LastLessThan(f.key(1, 0))).Wait(f.ctx)
					return err
				})
			})
		})
	}
}

// bench is one sub-benchmark under its own prefix.
type bench struct {
	b      *testing.B
	db     kv.DB
	ctx    context.Context
	prefix []byte
	value  []byte
}

func newBench(b *testing.B, open func(b *testing.B) Engine) *bench {
	f := &bench{b: b, db: open(b).DB, ctx: context.Background(), prefix: randomPrefix(), value: make([]byte, benchValueSize)}
	b.Cleanup(func() {
		if err := clearPrefix(f.ctx, f.db, f.prefix); err != nil {
			b.Errorf("clearing the benchmark's prefix: %v", err)
		}
	})
	return f
}

// key returns the nth key of a worker; the numbers repeat after benchRows.
func (f *bench) key(worker, n int) []byte {
	k := append([]byte(nil), f.prefix...)
	k = binary.BigEndian.AppendUint16(k, uint16(worker))
	return binary.BigEndian.AppendUint32(k, uint32(n%benchRows))
}

// scattered spreads the reads of all workers over the rows.
func scattered(worker, n int) int { return (n*64 + worker) * 7919 % benchRows }

func (f *bench) update(fn func(tx kv.Tx) error) error {
	_, err := kv.Run(f.ctx, f.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error { return fn(tx) })
	return err
}

// fill stores the rows of worker 0.
func (f *bench) fill() *bench {
	const batch = 1000
	for n := 0; n < benchRows; n += batch {
		err := f.update(func(tx kv.Tx) error {
			for i := range batch {
				tx.Set(f.key(0, n+i), f.value)
			}
			return nil
		})
		if err != nil {
			f.b.Fatal(err)
		}
	}
	return f
}

// run shares b.N transactions among workers, each of which counts its own from 0, and reports the keys touched.
func (f *bench) run(goroutines, keys int, do func(f *bench, worker, n int) error) {
	f.b.ReportAllocs()
	var (
		next  atomic.Int64
		wg    sync.WaitGroup
		once  sync.Once
		first error
	)
	f.b.ResetTimer()
	for worker := range goroutines {
		wg.Go(func() {
			for n := 0; int(next.Add(1)) <= f.b.N; n++ {
				if err := do(f, worker, n); err != nil {
					once.Do(func() { first = err })
					return
				}
			}
		})
	}
	wg.Wait()
	f.b.StopTimer()
	if first != nil {
		f.b.Fatal(first)
	}
	f.b.ReportMetric(float64(f.b.N*keys)/f.b.Elapsed().Seconds(), "keys/s")
}
