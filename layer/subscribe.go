package layer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"fdbfifo/kv"
)

// SubscribeOptions configure a subscription. The zero value is the normal use.
type SubscribeOptions struct {
	// Kinds are the changes to be told of; none = all.
	Kinds []ChangeKind
	// Where, if not nil, is a template: be told only of items that agree with it, of an advance by the facets which it
	// gave. Of any of the queue's facets: no view is needed. A purge names no items, so it is told in any case, unless
	// Kinds leaves it out; and so are changes made before the queue's handles kept facets with changes.
	Where Template
	// FromOldest makes a new subscription begin with the oldest change which the queue keeps. Otherwise a new
	// subscription begins with the changes committed after the call. An old subscription goes on where it stands.
	FromOldest bool
	// Max is how many changes a call of the handler gets at most, 1 to MaxBatch; 0 = DefaultChanges.
	Max int
	// Parallel is how many calls may run at the same time, each with the changes of other groups; the changes of a
	// group still come one call after the other. Only of Subscribe. 0 = 1, at most MaxParallel.
	Parallel int
	// Lease is for how long a process which has died keeps the others from the subscription: MinLease to MaxLease; 0 =
	// DefaultLease.
	Lease time.Duration
	// OnError is told the errors after which the subscription goes on: a handler's (*ChangeError), the engine's, and
	// *MissedError. nil = they are logged with slog.Default.
	OnError func(err error)
}

// Limits of subscriptions.
const (
	// DefaultChanges is how many changes a call of the handler gets at most.
	DefaultChanges = 100
	// MaxParallel bounds the calls of one subscription at the same time.
	MaxParallel = 64
)

// ChangeError: a handler of changes has failed or panicked. The same changes follow again after a pause, fewer at a
// time; the place of the subscription has not moved.
type ChangeError struct {
	Subscription string
	First        Change // of the call
	Changes      int    // of the call
	Err          error
}

func (e *ChangeError) Error() string {
	return wrap("subscription "+e.Subscription,
		fmt.Errorf("%d changes from %s of %s on: %w", e.Changes, e.First.Kind, e.First.ID, e.Err)).Error()
}

// Unwrap returns the handler's error.
func (e *ChangeError) Unwrap() error { return e.Err }

// MissedError: changes were cleared, being older than the queue keeps changes, before the subscription had come to
// them. The subscription goes on with the oldest change there is.
type MissedError struct{ Subscription string }

func (e *MissedError) Error() string {
	return wrap("subscription "+e.Subscription, errors.New("changes were cleared before they were read")).Error()
}

// Subscribe calls handler for the queue's changes, in the order of their commits, until ctx ends: then Subscribe
// returns nil. The queue must keep changes (Config.Changes; otherwise ErrOptions). name says which subscription: its
// place is kept in the database, so a later call goes on behind the last changes whose handler has returned nil. Of all
// processes with the same name one at a time holds the subscription; the others wait and take over when its lease ends.
//
// Each change is delivered at least once: again if the process dies before the place is stored, or if the handler
// fails. After an error or a panic the same changes come again, because order is kept; a handler which wants to pass
// over a change returns nil. The handler's context ends when another process has taken over, or ctx ends. For effects
// that happen once use SubscribeTx.
//
// Errors: ErrOptions, *LimitError, *ValueError, *TemplateError of Where in a queue without facets, ErrInvalidUTF8,
// ErrNoQueue, ErrCorrupt, and ErrClosed. All else is told to OnError.
func (q *Queue) Subscribe(
	ctx context.Context, name string, handler func(ctx context.Context, changes []Change) error, o SubscribeOptions,
) error {
	s, err := q.newSubscription(name, handler == nil, o)
	if err != nil {
		return wrap("subscribe", err)
	}
	s.plain = handler
	return wrap("subscribe", s.run(ctx))
}

// SubscribeTx is Subscribe with a handler whose transaction also moves the subscription's place: what the handler
// writes through tx happens exactly once for each change. The handler may be called several times for the same changes,
// must end within 4 s, and must return every error of tx. Parallel is refused.
//
// Footprint of the transaction, beside the handler's: reads and writes the subscription's cursor, with a conflict.
func (q *Queue) SubscribeTx(
	ctx context.Context, name string, handler func(ctx context.Context, tx kv.Tx, changes []Change) error,
	o SubscribeOptions,
) error {
	s, err := q.newSubscription(name, handler == nil, o)
	if err == nil && o.Parallel > 1 {
		err = fmt.Errorf("%w: parallel calls in one transaction", ErrOptions)
	}
	if err != nil {
		return wrap("subscribe", err)
	}
	s.inTx = handler
	return wrap("subscribe", s.run(ctx))
}
