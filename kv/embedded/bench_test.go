package embedded_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

func key16(i uint64) []byte {
	k := make([]byte, 16)
	binary.BigEndian.PutUint64(k, i*0x9E3779B97F4A7C15>>1)
	binary.BigEndian.PutUint64(k[8:], i)
	return k
}

// Sets in transactions of 10 and of 100, keys in no order.
func BenchmarkSet(b *testing.B) {
	for _, per := range []int{10, 100} {
		b.Run(map[int]string{10: "per=10", 100: "per=100"}[per], func(b *testing.B) {
			db := embedded.OpenMemory(embedded.Options{})
			defer db.Close()
			value := make([]byte, 100)
			b.ReportAllocs()
			for i := 0; i < b.N; i += per {
				_, err := kv.Run(context.Background(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
					for j := range per {
						tx.Set(key16(uint64(i+j)), value)
					}
					return nil
				})
				if err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// Serialisable point reads of one transaction, in a database of 100,000 keys.
func BenchmarkGet(b *testing.B) {
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	const keys = 100_000
	load(b, db, keys)
	b.ReportAllocs()
	for i := 0; i < b.N; {
		_, err := kv.Run(context.Background(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			for range 100 {
				if _, err := tx.Get(key16(uint64(i % keys))).Wait(context.Background()); err != nil {
					return err
				}
				i++
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}

func load(b *testing.B, db kv.DB, keys int) {
	b.Helper()
	value := make([]byte, 100)
	for i := 0; i < keys; i += 1000 {
		_, err := kv.Run(context.Background(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			for j := range 1000 {
				tx.Set(key16(uint64(i+j)), value)
			}
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}

// Range reads of 100 rows, in a database of 100,000 keys.
func BenchmarkGetRange(b *testing.B) {
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	load(b, db, 100_000)
	b.ReportAllocs()
	for i := range b.N {
		_, err := kv.Run(context.Background(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			r := kv.KeyRange{Begin: key16(uint64(i)), End: []byte{0xff}}
			_, err := tx.GetRange(r.Selectors(), kv.RangeOptions{Limit: 100}).Wait(context.Background())
			return err
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}

// One set a transaction, synced, by many goroutines at once: they share the syncs.
func BenchmarkDiskCommit(b *testing.B) {
	for _, writers := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("writers=%d", writers), func(b *testing.B) {
			db, err := embedded.OpenDisk(b.TempDir(), embedded.Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer db.Close()
			var next atomic.Int64
			var all sync.WaitGroup
			for range writers {
				all.Go(func() {
					for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
						_, err := kv.Run(context.Background(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
							tx.Set(key16(uint64(i)), make([]byte, 100))
							return nil
						})
						if err != nil {
							b.Error(err)
							return
						}
					}
				})
			}
			all.Wait()
		})
	}
}

// Read, clear and set in one transaction, in a database of 1,000,000 keys: a snapshot before every commit.
func BenchmarkReadModifyWrite(b *testing.B) {
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	const keys = 1_000_000
	load(b, db, keys)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		_, err := kv.Run(context.Background(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			k := key16(uint64(i % keys))
			if _, err := tx.Get(k).Wait(context.Background()); err != nil {
				return err
			}
			tx.Clear(k)
			tx.Set(key16(uint64(i%keys)+keys), make([]byte, 100))
			return nil
		})
		if err != nil {
			b.Fatal(err)
		}
	}
}
