package soak

import (
	"context"
	"fmt"
	"runtime"
	"slices"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
)

// figure is something that must not grow.
type figure struct {
	name string
	// How much it may grow, in addition to a tenth: the part that depends on chance at the moment of the count.
	slack int64
}

const (
	mib       = 1 << 20
	heapSlack = 6 * mib
	fileSlack = 16 * mib
	// The memory of an embedded engine for the commits of the last five seconds depends on their number.
	restlessSlack = 150 * mib
	// A receipt for each transaction that a handle has had at a time, a receive id that is still kept.
	rowSlack = 12
	// Each counter has a fixed number of rows, which come one by one.
	counterRows = 300
)

// figures are the columns of the table: those of the process and the engine, then the rows of each kind of key.
func figures(settled bool) []figure {
	heap := figure{"heap", heapSlack}
	if !settled {
		heap.slack = restlessSlack
	}
	all := []figure{
		heap, {"goroutines", 12}, {"snapshots", 3}, {"open tx", 3}, {"watches", 12}, {"file", fileSlack},
	}
	for _, name := range layer.KeyNames() {
		f := figure{name, rowSlack}
		if name == "count" {
			f.slack = counterRows
		}
		all = append(all, f)
	}
	return all
}

// meter is an engine that says what it holds.
type meter interface{ Usage() embedded.Usage }

// measure counts all figures, in their order. The load must stand still.
func measure(ctx context.Context, db kv.DB, prefix []byte, queues []string) ([]int64, error) {
	var values []int64
	runtime.GC()
	runtime.GC() // what finalizers of the first have let go
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	values = append(values, int64(m.HeapAlloc), int64(runtime.NumGoroutine()))
	var u embedded.Usage
	if engine, ok := db.(meter); ok {
		u = engine.Usage()
	}
	values = append(values, int64(u.Snapshots), int64(u.Transactions), int64(u.Watches), u.FileSize)
	for _, name := range layer.KeyNames() {
		total := int64(0)
		for _, queue := range queues {
			n, err := countRows(ctx, db, prefix, queue, name)
			if err != nil {
				return nil, fmt.Errorf("soak: count %s of %s: %w", name, queue, err)
			}
			total += n
		}
		values = append(values, total)
	}
	return values, nil
}

func countRows(ctx context.Context, db kv.DB, prefix []byte, queue, name string) (total int64, err error) {
	r, _ := layer.Section(prefix, queue, name)
	for _, err := range kv.Rows(ctx, db, r) {
		if err != nil {
			return 0, err
		}
		total++
	}
	return total, nil
}

// grown says which figures have grown from the second fifth of the samples to the last.
func grown(all []figure, samples [][]int64) (problems []string) {
	fifth := len(samples) / 5
	if fifth == 0 {
		return []string{fmt.Sprintf("%d samples are too few to compare", len(samples))}
	}
	for i, f := range all {
		before, after := median(samples[fifth:2*fifth], i), median(samples[len(samples)-fifth:], i)
		if after > before+before/10+f.slack {
			problems = append(problems, fmt.Sprintf("%s: %s in the second fifth, %s in the last", f.name, f.show(before), f.show(after)))
		}
	}
	return problems
}

func median(samples [][]int64, i int) int64 {
	values := make([]int64, len(samples))
	for n, s := range samples {
		values[n] = s[i]
	}
	slices.Sort(values)
	return values[len(values)/2]
}

// show writes a value as the table has it: bytes in MiB.
func (f figure) show(v int64) string {
	if f.slack >= mib {
		return fmt.Sprintf("%.1fM", float64(v)/mib)
	}
	return fmt.Sprint(v)
}
