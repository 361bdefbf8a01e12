package worker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"fdbfifo/internal/callback"
	"fdbfifo/kv"
)

// Handler is what a worker does with items: Handle, HandleTx, HandleCommit, HandleBatch and HandleStage make
// one. The zero value is none, and New refuses it.
//
// For every kind: nil finishes the item, for good, or advances it (AdvanceTo). An error or a panic (runtime.Goexit too)
// is a failed attempt: the item is given back with those behind it in its group, and tried again as a *RetryError,
// Options.RetryDelay or the queue's retry policy says; a *RejectError says that it will never succeed. The context ends
// when the item's Timeout is over, when the claim is lost or its lease ends, or when the worker is stopped by force.
// The handler must return then.
//
// A nil pointer to an error type of this module, such as a nil *RetryError, counts as nil, also if errors.Join has
// joined several. The worker reports the mistake to the log and to OnError. Such an error is not equal to nil in Go,
// but its handler has met no error: the item was handled, and another attempt would handle it twice. A nil pointer of
// any other type is a failed attempt: the worker does not know the type, and an additional attempt does less harm than
// a lost message.
type Handler struct {
	call  func(ctx context.Context, ds []*Delivery) error // nil = no handler
	batch bool                                            // call is given all items of a claim
	inTx  bool                                            // the effect is committed in a transaction with the ack
	stage bool                                            // it returns the item's next facets
}

// Handle makes a handler of a function. The item is acked when h has returned nil. The ack is sent while h is called
// for the next item of the group, and items that are finished in that time share the next ack. So the result of an item
// changes nothing for those before. The effect of h happens at least once. It happens once more each time that the
// process dies, or its lease expires, between the effect and the ack, which takes a round trip to the database. The
// effect must therefore be repeatable; otherwise use HandleTx or HandleCommit.
func Handle(h func(ctx context.Context, d *Delivery) error) Handler {
	if h == nil {
		return Handler{}
	}
	return Handler{call: func(ctx context.Context, ds []*Delivery) error { return ds[0].meant(h(ctx, ds[0].lend())) }}
}

// HandleTx makes a handler of a function that runs in the transaction that acks the item. Its writes through tx happen
// exactly once: they are there if and only if the item is gone. h may be called several times for one item, and only
// its effects through tx count once. It must assign results and never append. ctx ends after 4.8 s at the latest,
// because a transaction lasts 5 s, and with a lease below 5 s after 0.94 to 0.96 of the lease. A call that takes longer
// is a failed attempt, unless its transaction still commits. Use HandleCommit for slow work.
//
// If h returns an error of the database (kv.Error) after which a transaction may be tried again, h is called again at
// once, as layer.Queue.Once does. It is not if the error is in a *RetryError or a *RejectError.
//
// If h succeeds, or was not called, and the database fails (for example io_error), no attempt counts. The same holds if
// the time ends because the database does not answer, or because the commit is tried again and again. A transaction
// that the database refuses, for example because it is too large, is a failed attempt.
//
// While the transaction is open the claim cannot be extended. So before an item the worker extends the claim if less
// than 6 s of its lease are left, or less than 0.98 of a shorter lease: a lease below 12 s costs a transaction more for
// an item or two.
func HandleTx(h func(ctx context.Context, tx kv.Tx, d *Delivery) error) Handler {
	if h == nil {
		return Handler{}
	}
	return Handler{inTx: true, call: func(ctx context.Context, ds []*Delivery) error {
		outliving, cancel := ds[0].in.outlive(ctx)
		defer cancel()
		return ds[0].commit(outliving, ctx, func(ctx context.Context, tx kv.Tx) error {
			return ds[0].meant(h(ctx, tx, ds[0].lend()))
		})
	}}
}

// HandleCommit makes a handler of two functions. work may take as long as Timeout allows, under a lease that the worker
// extends. Then commit writes the result in the transaction that acks the item, as with HandleTx. If either fails, both
// are called again. If work succeeds late, commit is still called. Its context ends 10 s after Timeout at the latest,
// and commit is stuck if it has not returned 5 s later.
func HandleCommit[T any](
	work func(ctx context.Context, d *Delivery) (T, error),
	commit func(ctx context.Context, tx kv.Tx, d *Delivery, result T) error,
) Handler {
	if work == nil || commit == nil {
		return Handler{}
	}
	return Handler{inTx: true, call: func(ctx context.Context, ds []*Delivery) error {
		result, err := work(ctx, ds[0].lend())
		if err = ds[0].meant(err); err != nil {
			return err
		}
		ctx, cancel := ds[0].in.outlive(ctx)
		defer cancel()
		ds[0].in.outlives.Store(true)
		defer ds[0].in.outlives.Store(false)
		return ds[0].commit(ctx, ctx, func(ctx context.Context, tx kv.Tx) error {
			return ds[0].meant(commit(ctx, tx, ds[0].lend(), result))
		})
	}}
}

// HandleBatch makes a handler of a function that is given all items of a claim together, in order: at least one, at
// most Options.Batch. nil finishes all. A *BatchError says how far it came, and names the item that has
// failed. Timeout is for all of them together.
//
// Any other error, a panic or a timeout finishes none and names none. If the call had several items the worker calls
// the function again, at once, with the first half of them. So in the end a call has a single item, and only this item
// counts a failed attempt. After a RetryError with Uncounted, which names none either, the worker gives all items back.
func HandleBatch(h func(ctx context.Context, ds []*Delivery) error) Handler {
	if h == nil {
		return Handler{}
	}
	return Handler{batch: true, call: func(ctx context.Context, ds []*Delivery) error {
		mine := make([]*Delivery, len(ds))
		for i, d := range ds {
			mine[i] = d.lend()
		}
		err := ds[0].meant(h(ctx, mine))
		partly, ok := as[BatchError](err)
		if !ok || partly.Done < 0 {
			return err
		}
		failed, slip := callback.Meant(partly.Err)
		switch next := min(partly.Done, len(ds)) + 1; {
		case slip != nil && next < len(ds): // the function has stopped for no reason
			return &BatchError{Done: next, Err: &RetryError{Uncounted: true, Err: slip}}
		case slip != nil && next == len(ds):
			ds[0].slip = slip
		case next <= len(ds):
			return err
		case failed != nil:
			ds[0].slip = fmt.Errorf("all %d items of the call are finished: %w", len(ds), err)
		}
		return nil
	}}
}

// meant returns the error that a function of the handler has meant by err: see callback.Meant.
func (d *Delivery) meant(err error) error {
	meant, slip := callback.Meant(err)
	if slip != nil {
		d.slip = slip
	}
	return meant
}

// BatchError says how many items a handler of HandleBatch has finished: the first Done items are finished, and the next
// has failed with Err.
type BatchError struct {
	// Done is 0 to the number of items less one. Less than 0 names no item: see HandleBatch. If Done is the number of
	// items or more, all are finished, and the worker reports Err to the log and to OnError.
	Done int
	// Err may wrap a *RetryError or a *RejectError. nil = the item has failed for no known reason. A nil pointer to an
	// error type of this module is a slip of the handler: the item counts as finished, and no attempt counts.
	Err error
}

func (e *BatchError) Error() string {
	if e == nil {
		return "<nil>"
	}
	s := fmt.Sprintf("after %d items", e.Done)
	if e.Err != nil {
		s += ": " + e.Err.Error() // and not by fmt, which hides that it panics: see sound
	}
	return s
}

// Unwrap returns Err.
func (e *BatchError) Unwrap() error {
	if e == nil {
		return nil
	}
	return e.Err
}

// RetryError, returned or wrapped by a handler, says when the item is to be tried again, and whether the attempt
// counts.
type RetryError struct {
	// After is how long the group waits, 0 to MaxDelay; a longer time counts as MaxDelay. 0 = as Options.RetryDelay or
	// the retry policy says, or, if Uncounted, not at all.
	After time.Duration
	// Uncounted: the item is not the cause (the handler postpones it, or a service is down), and the attempt does not
	// count. The item is delivered again until it is finished, without a limit of attempts. Without After the group
	// comes behind the groups that are ready now.
	Uncounted bool
	Err       error // stored with the attempt if it counts; may be nil
}

func (e *RetryError) Error() string {
	if e == nil {
		return "<nil>"
	}
	s := "try again"
	if e.After > 0 {
		s += " after " + e.After.String()
	}
	if e.Err != nil {
		s += ": " + e.Err.Error()
	}
	return s
}

// Unwrap returns Err.
func (e *RetryError) Unwrap() error {
	if e == nil {
		return nil
	}
	return e.Err
}

// RejectError, returned or wrapped by a handler, says that the item will never succeed: the item fails for
// good at once, see layer.Config.OnFailure.
type RejectError struct {
	Reason string // stored with the dead letter; may be empty
	Err    error  // stored with the dead letter; may be nil
}

func (e *RejectError) Error() string {
	if e == nil {
		return "<nil>"
	}
	text := "rejected"
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns Err.
func (e *RejectError) Unwrap() error {
	if e == nil {
		return nil
	}
	return e.Err
}

// sound is callback.Sound, and keeps the verdict of a broken error. Example: a BatchError whose Err is broken says how
// many items are finished.
func sound(err error) error {
	whole := callback.Sound(err)
	if _, broken := as[callback.PanicError](whole); !broken {
		return whole
	}
	_ = callback.Try("methods of the error", func() {
		for at := err; at != nil; at = errors.Unwrap(at) {
			switch e := at.(type) {
			case *BatchError:
				whole = &BatchError{Done: e.Done, Err: sound(e.Err)}
			case *RejectError:
				whole = &RejectError{Reason: e.Reason, Err: sound(e.Err)}
			case *RetryError:
				whole = &RetryError{After: e.After, Uncounted: e.Uncounted, Err: sound(e.Err)}
			default:
				continue
			}
			return
		}
	})
	return whole
}

// as is errors.As for a pointer. It passes over nil pointers.
func as[E any, P interface {
	*E
	error
}](err error) (e P, ok bool) {
	for err != nil {
		if e, ok = err.(P); ok {
			return e, e != nil
		}
		if x, is := err.(interface{ As(target any) bool }); is && x.As(&e) && e != nil {
			return e, true
		}
		switch x := err.(type) {
		case interface{ Unwrap() error }:
			err = x.Unwrap()
		case interface{ Unwrap() []error }:
			for _, inner := range x.Unwrap() {
				if e, ok = as[E, P](inner); ok {
					return e, true
				}
			}
			return nil, false
		default:
			return nil, false
		}
	}
	return nil, false
}

// wrap names the worker's call in an error.
func wrap(call string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("worker: %s: %w", call, err)
}
