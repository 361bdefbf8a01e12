package fdbkv

import (
	"context"
	"math"
	"sync"

	"github.com/apple/foundationdb/bindings/go/src/fdb"

	"fdbfifo/kv"
)

// GetRange implements kv.ReadTx.
//
// Mode EXACT makes the C client fetch all rows under this one call, in as many replies of 80,000 bytes as it takes.
// The other modes would leave later batches to later calls, which would see what was written in between. EXACT asks
// for a limit; the largest one stands for none.
func (r reader) GetRange(q kv.Range, o kv.RangeOptions) kv.Future[[]kv.KV] {
	if o.Limit < 0 {
		// The C client takes -1 for "no limit".
		return kv.Done[[]kv.KV](nil, failure(kv.CodeRangeLimitsInvalid))
	}
	limit := min(o.Limit, math.MaxInt32)
	if limit == 0 {
		limit = math.MaxInt32
	}
	result := r.from.GetRange(
		fdb.SelectorRange{Begin: selector(q.Begin), End: selector(q.End)},
		fdb.RangeOptions{Limit: limit, Mode: fdb.StreamingModeExact, Reverse: o.Reverse})
	f := &rangeFuture{done: make(chan struct{})}
	go func() {
		rows, err := result.GetSliceWithError()
		f.end(pairs(rows), r.large.named(converted(err)))
	}()
	return f
}

func pairs(rows []fdb.KeyValue) []kv.KV {
	if len(rows) == 0 {
		return nil
	}
	out := make([]kv.KV, len(rows))
	for i, row := range rows {
		out[i] = kv.KV{Key: row.Key, Value: row.Value}
	}
	return out
}

// rangeFuture is a range read. The binding's RangeResult can neither be asked whether it is ready nor be cancelled,
// so a goroutine waits for it. A cancelled read goes on unheard until its transaction ends.
type rangeFuture struct {
	done chan struct{}
	once sync.Once
	rows []kv.KV // set before done is closed
	err  error
}

func (f *rangeFuture) end(rows []kv.KV, err error) {
	f.once.Do(func() {
		f.rows, f.err = rows, err
		close(f.done)
	})
}

// Ready implements kv.Future.
func (f *rangeFuture) Ready() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// Cancel implements kv.Future.
func (f *rangeFuture) Cancel() { f.end(nil, failure(kv.CodeOperationCancelled)) }

// Wait implements kv.Future.
func (f *rangeFuture) Wait(ctx context.Context) ([]kv.KV, error) {
	select {
	case <-f.done:
	case <-ctx.Done():
		f.Cancel()
		<-f.done
		if kv.Code(f.err) == kv.CodeOperationCancelled {
			return nil, context.Cause(ctx)
		}
	}
	return f.rows, f.err
}
