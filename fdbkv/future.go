package fdbkv

import (
	"context"
	"runtime"

	"github.com/apple/foundationdb/bindings/go/src/fdb"

	"fdbfifo/kv"
)

// future adapts one future of the binding.
type future[T any] struct {
	fdb.Future
	get func() (T, error)
	// owner is the transaction the result comes from, kept from its finalizer while the future is held. A watch
	// has none: it lives on without its transaction, and should not keep its memory.
	owner any
	large *oversize // of the transaction
}

func newFuture[T any](f fdb.Future, get func() (T, error), owner any, large *oversize) *future[T] {
	return &future[T]{Future: f, get: get, owner: owner, large: large}
}

// Ready implements kv.Future.
func (f *future[T]) Ready() bool { return f.IsReady() }

// Wait implements kv.Future.
func (f *future[T]) Wait(ctx context.Context) (T, error) {
	if ctx.Done() != nil && !f.IsReady() {
		stop := context.AfterFunc(ctx, f.Cancel)
		defer stop()
	}
	v, err := f.get()
	runtime.KeepAlive(f) // the owner too must last until here
	if err == nil {
		return v, nil
	}
	var none T
	err = f.large.named(converted(err))
	if ctx.Err() != nil && kv.Code(err) == kv.CodeOperationCancelled {
		return none, context.Cause(ctx)
	}
	return none, err
}

// newNilFuture adapts a future without a value.
func newNilFuture(f fdb.FutureNil, owner any, large *oversize) *future[struct{}] {
	return newFuture(f, func() (struct{}, error) { return struct{}{}, f.Get() }, owner, large)
}
