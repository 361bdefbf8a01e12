package layer

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"fdbfifo/internal/callback"
	"fdbfifo/kv"
	"fdbfifo/layer/internal/rec"
)

// Errors which a caller may meet and tell apart with errors.Is; the engine's own are *kv.Error. Unless an error's
// comment says so, do not retry the same call. The error returned by a call has the text "layer: CALL: …".
var (
	// ErrNoQueue: the queue does not exist under this prefix. Create it.
	ErrNoQueue = errors.New("no such queue")
	// ErrClock: the clock of this process is ahead by more than five minutes of a clock that was written down in the
	// last 90 s, by another process or by this one before its clock stepped. It is not known which of the two is
	// wrong, so nothing was removed that is old by this clock alone. The text has both times. Set the clock.
	ErrClock = errors.New("clocks disagree")
	// ErrQueueExists: Create found the queue there already. Open it.
	ErrQueueExists = errors.New("queue exists already")
	// ErrNoQueueName: a queue's name may not be empty.
	ErrNoQueueName = errors.New("empty queue name")
	// ErrInvalidUTF8: a name, an id, a header or another text that the queue stores is not valid UTF-8. The bodies of
	// messages and the states of groups may be any bytes.
	ErrInvalidUTF8 = errors.New("invalid UTF-8")
	// ErrClaimLost: the group is no longer held under the claim's token. Nothing was changed, and the caller must drop
	// the claim. There are two causes. The claim was ended before, for example by an earlier ack of it: then the acked
	// items are done. Or the lease has expired and another has taken over: then the remaining items are delivered
	// again. The text says whether the group is held now, because the queue stores no more than that. For a call that
	// is repeated after a lost answer the first cause is likely: see Once.
	ErrClaimLost = errors.New("claim lost")
	// ErrNotInClaim: an item to be acked is not outstanding in the claim. Nothing was changed.
	ErrNotInClaim = errors.New("item is not outstanding in this claim")
	// ErrCorrupt: a key or value of the queue does not have the required form. Corrupt data is never taken for "empty";
	// the text names the key as fdbcli prints keys.
	ErrCorrupt = rec.ErrCorrupt
	// ErrClosed: the queue's handle, its database, or the worker was closed.
	ErrClosed = kv.ErrClosed
	// ErrLimit: a value lies outside its limits. The error is a *LimitError, which names the value and the allowed
	// range.
	ErrLimit = errors.New("out of limits")
	// ErrFull: a group is full. The error is a *FullError, which names the group. Try again when some of the group's
	// messages have been handled.
	ErrFull = errors.New("group is full")
	// ErrNoGroup: a message names no group, and the queue refuses such messages (Config.GroupRequired).
	ErrNoGroup = errors.New("no group, which the queue requires (group_required)")
	// ErrOptions: options contradict each other, or an option has an unknown value.
	ErrOptions = errors.New("contradictory or unknown options")
	// ErrInvalidID: a message's id, or the text of an id, does not have the form of an id.
	ErrInvalidID = errors.New("malformed message id")
	// ErrChanged: the queue has changed since the caller looked at it. Nothing was changed by the call.
	ErrChanged = errors.New("changed meanwhile")
	// ErrForeignKeys: a queue cannot be created where keys of something else lie, because Drop would remove the keys.
	ErrForeignKeys = errors.New("keys of something else are where the queue would be: use a prefix")
	// ErrNoItem: there is no such item in its group. It was acked, taken, cancelled or purged, became a dead letter,
	// was dropped past retention, has joined another group (Message.JoinWhenDue), or was never there. Or a call wants
	// the head of a group that is empty.
	ErrNoItem = errors.New("no such item")
	// ErrNotDead: there is no such dead letter. It was redriven, discarded, or removed after Config.DeadRetention, or
	// was never there.
	ErrNotDead = errors.New("no such dead letter")
	// ErrInFlight: the item was delivered under a claim whose lease lasts. Wait for the claim to end, or end the claim
	// with ForceRelease.
	ErrInFlight = errors.New("item is in flight")
	// ErrNotHeld: the group has no claim.
	ErrNotHeld = errors.New("group is not held")
	// ErrHeld: the group has a claim. Wait for the claim to end, or use force.
	ErrHeld = errors.New("group is held")
	// ErrNotPaused: the group, or the queue, is not paused.
	ErrNotPaused = errors.New("not paused")
	// ErrNoSubscription: there is no subscription of this name.
	ErrNoSubscription = errors.New("no such subscription")
	// ErrNotDelayed: the group does not wait for a retry, and its head is not delayed.
	ErrNotDelayed = errors.New("group is not delayed")
)

// FullError: a group has as many messages, in flight included, as MaxWaiting allows, or would have more. It wraps
// ErrFull. Nothing was enqueued. Try again when some messages have been handled.
type FullError struct {
	Group  string
	Adding int64 // messages of the enqueue for this group
	Max    int64 // messages which the group may have
}

func (e *FullError) Error() string {
	if e == nil {
		return "<nil>"
	}
	return fmt.Sprintf("group %q is full: with %d more it would have over %d messages", e.Group, e.Adding, e.Max)
}

// Unwrap returns ErrFull.
func (e *FullError) Unwrap() error { return ErrFull }

// LimitError: a value lies outside its limits. LimitError wraps ErrLimit. Nothing was done. A call in the caller's own
// transaction that returns a LimitError may have written into the transaction: end it without a commit, as Once does if
// you return the error.
type LimitError struct {
	What string // the name of the limited value, for example "group"
	Unit string // of the numbers: "bytes" or "items" or another; "ns" = the text prints them as durations
	Got  int64
	Min  int64
	Max  int64 // math.MaxInt64 = there is no upper limit
}

// durationLimit returns the error of a duration outside its limits.
func durationLimit(what string, got, low, high time.Duration) *LimitError {
	return &LimitError{What: what, Unit: unitDuration, Got: int64(got), Min: int64(low), Max: int64(high)}
}

// unitDuration is the unit of a LimitError about a duration.
const unitDuration = "ns"

func (e *LimitError) Error() string {
	if e == nil {
		return "<nil>"
	}
	if e.Max == noLimit {
		return fmt.Sprintf("%s is %s, allowed are %s or more", e.What, e.text(e.Got, true), e.text(e.Min, false))
	}
	return fmt.Sprintf("%s is %s, allowed are %s to %s",
		e.What, e.text(e.Got, true), e.text(e.Min, false), e.text(e.Max, false))
}

// text returns n as a duration, or as a number with the unit if unit is set.
func (e *LimitError) text(n int64, unit bool) string {
	switch {
	case e.Unit == unitDuration:
		return time.Duration(n).String()
	case unit && e.Unit != "":
		return fmt.Sprintf("%d %s", n, e.Unit)
	}
	return fmt.Sprint(n)
}

// Unwrap returns ErrLimit.
func (e *LimitError) Unwrap() error { return ErrLimit }

// MessageError: a message of an enqueue is not allowed. Nothing was enqueued. Err says why: a *LimitError, or an error
// which wraps ErrOptions, ErrNoGroup or ErrInvalidUTF8.
type MessageError struct {
	Index int // of the first bad message, among the messages of the enqueue
	Err   error
}

func (e *MessageError) Error() string {
	if e == nil {
		return "<nil>"
	}
	return fmt.Sprintf("message %d: %v", e.Index, e.Err)
}

// Unwrap returns Err.
func (e *MessageError) Unwrap() error {
	if e == nil {
		return nil
	}
	return e.Err
}

// ValueError: a value is not among the allowed values. ValueError wraps ErrOptions. Nothing was done.
type ValueError struct {
	What    string // the name of the thing with the value, for example "schedule"
	Got     string
	Allowed string // in words
}

func (e *ValueError) Error() string {
	if e == nil {
		return "<nil>"
	}
	return fmt.Sprintf("%s is %q, allowed is: %s", e.What, e.Got, e.Allowed)
}

// Unwrap returns ErrOptions.
func (e *ValueError) Unwrap() error { return ErrOptions }

// UnknownSettingError: a configuration has settings unknown to this version of the library.
type UnknownSettingError struct{ Names []string }

func (e *UnknownSettingError) Error() string {
	if e == nil {
		return "<nil>"
	}
	return "unknown setting " + strings.Join(e.Names, ", ")
}

// FormatError: the queue was written in a format which this version of the library does not read: a later format, or a
// format from before the first release.
type FormatError struct {
	Queue string
	Found int64
	Known int64 // the only format which this version reads and writes
}

func (e *FormatError) Error() string {
	if e == nil {
		return "<nil>"
	}
	use := "use a newer version"
	if e.Found < e.Known {
		use = "use the version that wrote it"
	}
	return fmt.Sprintf("queue %q has format %d, this version knows format %d alone: %s", e.Queue, e.Found, e.Known, use)
}

// callError is the error of a public call: "layer: CALL: …". A call may consist of other calls. The text then still has
// a single prefix, at the front.
type callError struct {
	call string
	err  error
}

// wrap returns err with the name of the public call. nil stays nil. An error which a call inside has named already
// stays as it is.
func wrap(call string, err error) error {
	if err == nil {
		return nil
	}
	if _, named := err.(*callError); named {
		return err
	}
	return &callError{call: call, err: err}
}

// rewrap is wrap for a call which is made of other public calls: the error names the outer call alone.
func rewrap(call string, err error) error {
	if named, ok := err.(*callError); ok {
		err = named.err
	}
	return wrap(call, err)
}

func (e *callError) Error() string {
	text := e.err.Error()
	var inner *callError
	if errors.As(e.err, &inner) {
		text = strings.Replace(text, inner.Error(), inner.err.Error(), 1)
	}
	return "layer: " + e.call + ": " + text
}

func (e *callError) Unwrap() error { return e.err }

// givenError is an error that a function of the caller's has returned in a transaction of the layer. Such an error may
// wrap a *kv.Error, for example one of another database. Therefore the transaction cannot look into it: it must not
// take the caller's error for an error of its own. When the transaction has ended, reveal sets open: from then on
// Unwrap returns err.
type givenError struct {
	err  error
	open bool
}

// given returns err, the error of a function of the caller's, as the transaction must see it. nil stays nil. If a
// method of err panics, the result says so. given calls these methods.
func given(err error) error {
	if err == nil {
		return nil
	}
	return &givenError{err: callback.Sound(err)}
}

// reveal returns the error of a transaction that has ended, for the caller. If the transaction was ended by an error of
// the caller's own function, the result wraps that error.
func reveal(err error) error {
	var own *givenError
	if errors.As(err, &own) {
		own.open = true
	}
	return err
}

func (e *givenError) Error() string { return e.err.Error() }

// Unwrap returns the caller's error after reveal, and nil before.
func (e *givenError) Unwrap() error {
	if e.open {
		return e.err
	}
	return nil
}

// errOutcomeLost says: it stays unknown whether a transaction was committed. A receipt is the row that would prove the
// commit. It was looked for too late: a sweep or a drop may have cleared it.
var errOutcomeLost = errors.New("too late to learn what became of the commit")

// ErrDropping: the queue is being dropped, or a Drop was interrupted. ErrDropping wraps ErrNoQueue. Finish the Drop.
var ErrDropping = fmt.Errorf("%w: it is being dropped", ErrNoQueue)

// errorText returns the text of an error that the caller has given. If its Error panics, the text says that.
func errorText(err error) (text string) {
	if failed := callback.Try(fmt.Sprintf("%T.Error", err), func() { text = err.Error() }); failed != nil {
		return failed.Error()
	}
	return text
}

// isCorrupt reports whether err says that a key or a value of the queue cannot be read.
func isCorrupt(err error) bool { return errors.Is(err, ErrCorrupt) }

// timeoutError is the error in a *ChangeError if a handler of SubscribeTx took too long. The field what names the thing
// that has not ended in time.
type timeoutError struct {
	after time.Duration
	what  string
}

func (e *timeoutError) Error() string {
	return fmt.Sprintf("%s has not ended after %s", e.what, e.after)
}

// Unwrap returns context.DeadlineExceeded.
func (e *timeoutError) Unwrap() error { return context.DeadlineExceeded }
