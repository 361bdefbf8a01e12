package worker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// Handler is what a worker does with items: Handle, HandleTx, HandleCommit and HandleBatch make one. The zero value
// is none, and New refuses it.
//
// For every kind: nil finishes the item, for good. An error or a panic (runtime.Goexit too) is a failed attempt: the
// item is given back with those behind it in its group, and tried again as the queue's retry policy has it, or as a
// *RetryError says; a *RejectError says that it will never succeed. The context ends when the item's Timeout is over,
// when the claim is lost, or when the worker is stopped by force: return then.
//
// A nil pointer to an error type of this module, such as a nil *RetryError, counts as nil, and the worker reports the
// mistake to the log and to OnError. Such an error is not equal to nil in Go, but its handler has met no error: the
// item was handled, and another attempt would handle it twice. A nil pointer of any other type is a failed attempt: the
// worker does not know the type, and an attempt too many is better than a lost message.
type Handler struct {
	call  func(ctx context.Context, ds []*Delivery) error // nil = no handler
	batch bool                                            // call is given all items of a claim
	inTx  bool                                            // the effect is committed in a transaction with the ack
	stage bool                                            // what it returns are the item's next facets
}

// Handle makes a handler of a function. The item is acked when h has returned nil: the ack travels while h is called
// for the next of its group, and items that are finished meanwhile share the next ack, so that what comes of an item
// changes nothing for those before. The effect happens at least once, and at most once more for each time that the
// process dies, or its lease ends, between the effect and the ack, which is a round trip to the database away: make the
// effect repeatable, or use HandleTx or HandleCommit.
func Handle(h func(ctx context.Context, d *Delivery) error) Handler {
	if h == nil {
		return Handler{}
	}
	return Handler{call: func(ctx context.Context, ds []*Delivery) error { return ds[0].meant(h(ctx, ds[0])) }}
}

// HandleTx makes a handler of a function that runs in the transaction that acks the item: what it writes through tx is
// there if and only if the item is gone, exactly once. h may be called several times for one item, and only what it
// does through tx counts once; it assigns results and never appends. ctx ends after 4.8 s at the latest, because a
// transaction lasts 5 s, and with a lease below 5 s after 0.94 of the lease: what takes longer is a failed attempt. Use
// HandleCommit for slow work.
//
// While the transaction is open the claim cannot be extended. So before an item the worker extends the claim if less
// than 6 s of its lease are left, or less than 0.98 of a shorter lease: a lease below 12 s costs a transaction more for
// an item or two.
func HandleTx(h func(ctx context.Context, tx kv.Tx, d *Delivery) error) Handler {
	if h == nil {
		return Handler{}
	}
	return Handler{inTx: true, call: func(ctx context.Context, ds []*Delivery) error {
		return ds[0].commit(ctx, func(ctx context.Context, tx kv.Tx) error { return ds[0].meant(h(ctx, tx, ds[0])) })
	}}
}

// HandleCommit makes a handler of two functions: work, which may take as long as Timeout allows, under a lease that the
// worker extends; and then commit, which writes what came of it in the transaction that acks the item, as with
// HandleTx. Both are called anew if either fails.
func HandleCommit[T any](
	work func(ctx context.Context, d *Delivery) (T, error),
	commit func(ctx context.Context, tx kv.Tx, d *Delivery, result T) error,
) Handler {
	if work == nil || commit == nil {
		return Handler{}
	}
	return Handler{inTx: true, call: func(ctx context.Context, ds []*Delivery) error {
		result, err := work(ctx, ds[0])
		if err = ds[0].meant(err); err != nil {
			return err
		}
		return ds[0].commit(ctx, func(ctx context.Context, tx kv.Tx) error {
			return ds[0].meant(commit(ctx, tx, ds[0], result))
		})
	}}
}

// HandleBatch makes a handler of a function that is given all items of a claim together, in order: at least one, at
// most Options.Batch. nil finishes all. A *BatchError says how far it came, and names the item that has
// failed. Timeout is for all of them together.
//
// Any other error, a panic or a timeout finishes none and names none. If the call had several items the worker calls
// the function again, at once, with the first half of them. So a single item is blamed in the end, and no attempt is
// counted for the others. A RetryError with Uncounted gives all back as it says.
func HandleBatch(h func(ctx context.Context, ds []*Delivery) error) Handler {
	if h == nil {
		return Handler{}
	}
	return Handler{batch: true, call: func(ctx context.Context, ds []*Delivery) error {
		return ds[0].meant(h(ctx, ds))
	}}
}

// nilErrors are the nil pointers to the error types of this module.
var nilErrors = []error{
	(*RetryError)(nil), (*RejectError)(nil), (*BatchError)(nil), (*HandlerError)(nil), (*StuckError)(nil),
	(*StopError)(nil), (*kv.Error)(nil), (*layer.ClaimError)(nil), (*layer.FullError)(nil), (*layer.LimitError)(nil),
	(*layer.MessageError)(nil), (*layer.ValueError)(nil), (*layer.TemplateError)(nil), (*layer.FormatError)(nil),
	(*layer.UnknownSettingError)(nil), (*layer.ChangeError)(nil), (*layer.MissedError)(nil),
}

// meant returns what a function of the handler has meant by err: no error, if err is one of nilErrors.
func (d *Delivery) meant(err error) error {
	if err == nil || !slices.Contains(nilErrors, err) {
		return err
	}
	d.slip = err
	return nil
}

// BatchError is how far a handler of HandleBatch came: the first Done items are finished, and the next has failed
// with Err.
type BatchError struct {
	Done int // 0 to the number of items less one
	Err  error
}

func (e *BatchError) Error() string {
	if e == nil {
		return "<nil>"
	}
	return fmt.Sprintf("after %d items: %v", e.Done, e.Err)
}

// Unwrap returns Err.
func (e *BatchError) Unwrap() error {
	if e == nil {
		return nil
	}
	return e.Err
}

// RetryError, returned or wrapped by a handler, says when the item is to be tried again, and whose fault it was.
type RetryError struct {
	// After is how long the group waits, 0 to MaxDelay (it is cut); 0 = as the policy has it, or, if Uncounted, not
	// at all.
	After time.Duration
	// Uncounted: it is no fault of the item (snooze, a service that is down), and counts no failed attempt. The item
	// then comes again for ever, until it is finished.
	Uncounted bool
	Err       error // kept with the attempt if it is counted; may be nil
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
	Err    error  // likewise; may be nil
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

// as is errors.As for a pointer, which is not nil if there is one.
func as[E any, P interface {
	*E
	error
}](err error) (e P, ok bool) {
	ok = errors.As(err, &e) && e != nil
	return e, ok
}

// wrap names the worker's call in an error.
func wrap(call string, err error) error {
	if err == nil {
		return nil
	}
	return fmt.Errorf("worker: %s: %w", call, err)
}
