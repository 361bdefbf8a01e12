package fault

import (
	"context"
	"sync"
	"sync/atomic"

	"fdbfifo/kv"
)

// overridable is an engine's future whose result the wrapper may replace.
type overridable[T any] struct {
	kv.Future[T]
	forced atomic.Pointer[result[T]]
}

type result[T any] struct {
	v   T
	err error
}

// override replaces the result. It cancels the engine's operation, which ends every Wait.
func (o *overridable[T]) override(v T, err error) {
	o.forced.CompareAndSwap(nil, &result[T]{v, err})
	o.Future.Cancel()
}

func (o *overridable[T]) Wait(ctx context.Context) (T, error) {
	if r := o.forced.Load(); r != nil {
		return r.v, r.err
	}
	v, err := o.Future.Wait(ctx)
	if r := o.forced.Load(); r != nil {
		return r.v, r.err
	}
	return v, err
}

func (o *overridable[T]) Ready() bool { return o.forced.Load() != nil || o.Future.Ready() }

// after is an engine's future with something to do at its first success.
type after struct {
	kv.Future[struct{}]
	once    sync.Once
	success func() error // its error is the future's result
	err     error
}

func (a *after) Wait(ctx context.Context) (struct{}, error) {
	if _, err := a.Future.Wait(ctx); err != nil {
		return struct{}{}, err
	}
	a.once.Do(func() { a.err = a.success() })
	return struct{}{}, a.err
}
