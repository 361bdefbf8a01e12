package layer

import (
	"errors"
	"fmt"
	"strings"

	"fdbfifo/kv/tuple"
)

// Errors that a caller may meet and tell apart with errors.Is; the engine's own are *kv.Error. None of them is
// worth a retry of the same call, unless it says so.
var (
	// ErrNoQueue: the queue does not exist under this prefix. Create it.
	ErrNoQueue = errors.New("layer: no such queue")
	// ErrQueueExists: Create found the queue there already. Open it.
	ErrQueueExists = errors.New("layer: queue exists already")
	// ErrNoQueueName: a queue's name may not be empty.
	ErrNoQueueName = errors.New("layer: empty queue name")
	// ErrInvalidUTF8: a group, a queue's name, or a header is not valid UTF-8.
	ErrInvalidUTF8 = errors.New("layer: invalid UTF-8")
	// ErrClaimLost: the group is no longer held under the claim's token; its lease ran out and another has
	// taken over, or it was ended before. Nothing was changed. Drop the claim: its items are delivered anew.
	ErrClaimLost = errors.New("layer: claim lost")
	// ErrNotInClaim: an item that was to be acked is not outstanding in the claim. Nothing was changed.
	ErrNotInClaim = errors.New("layer: item is not outstanding in this claim")
	// ErrCorrupt: a key or value of the queue does not have the form it must have. It is never taken for
	// "empty"; the text names the key as fdbcli prints it.
	ErrCorrupt = errors.New("layer: corrupt data")
	// ErrClosed: the queue's handle, or the worker, was closed.
	ErrClosed = errors.New("layer: closed")
	// ErrOptions: options that contradict each other, or a value that is none of those there are.
	ErrOptions = errors.New("layer: contradictory or unknown options")
	// ErrInvalidID: a message's id, or the text of one, does not have the form of an id.
	ErrInvalidID = errors.New("layer: malformed message id")
	// ErrNoItem: there is no such item (any more): it was acked, taken, cancelled or purged, or never there.
	ErrNoItem = errors.New("layer: no such item")
	// ErrNotDead: there is no such dead letter (any more): it was redriven or discarded, or never there.
	ErrNotDead = errors.New("layer: no such dead letter")
	// ErrInHand: the item was delivered under a claim whose lease lasts. Wait for it to end, or end it with
	// ForceRelease.
	ErrInHand = errors.New("layer: item is in a holder's hands")
	// ErrNotHeld: nobody holds the group.
	ErrNotHeld = errors.New("layer: group is not held")
	// ErrHeld: somebody holds the group. Wait for the claim to end, or use force.
	ErrHeld = errors.New("layer: group is held")
	// ErrNotPaused: the group, or the queue, is not paused.
	ErrNotPaused = errors.New("layer: not paused")
	// ErrNotDelayed: the group does not wait for a retry, and its head is not kept back.
	ErrNotDelayed = errors.New("layer: group is not delayed")
)

// FullError: a group has as many messages as the queue's MaxWaiting allows, or would have more. Nothing was enqueued. Try
// again when some have been handled.
type FullError struct {
	Group  string
	Adding int64 // messages of the enqueue for this group
	Max    int64 // that it may have
}

func (e *FullError) Error() string {
	return fmt.Sprintf("layer: group %q is full: with %d more it would have over %d messages", e.Group, e.Adding, e.Max)
}

// LimitError: a value lies outside its limits. Nothing was done.
type LimitError struct {
	What string // the name of what is limited, e.g. "group"
	Unit string // "bytes", "ms", "items"
	Got  int64
	Min  int64
	Max  int64
}

func (e *LimitError) Error() string {
	unit := ""
	if e.Unit != "" {
		unit = " " + e.Unit
	}
	return fmt.Sprintf("layer: %s is %d%s, allowed are %d to %d", e.What, e.Got, unit, e.Min, e.Max)
}

// ValueError: a value is none of those there are. It wraps ErrOptions. Nothing was done.
type ValueError struct {
	What    string // the name of what has the value, e.g. "schedule"
	Got     string
	Allowed string // in words
}

func (e *ValueError) Error() string {
	return fmt.Sprintf("layer: %s is %q, allowed is: %s", e.What, e.Got, e.Allowed)
}

// Unwrap returns ErrOptions.
func (e *ValueError) Unwrap() error { return ErrOptions }

// UnknownSettingError: a configuration has settings that this version of the library does not have.
type UnknownSettingError struct{ Names []string }

func (e *UnknownSettingError) Error() string {
	return "layer: unknown setting " + strings.Join(e.Names, ", ")
}

// FormatError: the queue was written in a format that this version of the library does not know.
type FormatError struct {
	Queue string
	Found int64
	Known int64 // the newest format this version reads and writes
}

func (e *FormatError) Error() string {
	return fmt.Sprintf("layer: queue %q has format %d, this version knows format %d: use a newer version",
		e.Queue, e.Found, e.Known)
}

func wrap(verb string, err error) error {
	if err != nil {
		return fmt.Errorf("layer: %s: %w", verb, err)
	}
	return nil
}

// corrupt names the key whose value cannot be read.
func corrupt(key []byte, err error) error {
	return fmt.Errorf("%w: key %s: %w", ErrCorrupt, tuple.Printable(key), err)
}

// errOutcomeLost says that a receipt was looked for so late that a sweep may have cleared it.
var errOutcomeLost = errors.New("too late to learn what became of the commit")

// ErrDropping: the queue is being dropped, or a Drop of it was interrupted. It wraps ErrNoQueue. Drop it to the end.
var ErrDropping = fmt.Errorf("%w: it is being dropped", ErrNoQueue)

// RejectError, returned or wrapped by a worker's handler, says that the item will never succeed: it fails for good
// at once, see OnFailure.
type RejectError struct {
	Reason string // kept with the dead letter
	Err    error  // likewise; may be nil
}

func (e *RejectError) Error() string {
	if e.Err == nil {
		return "rejected: " + e.Reason
	}
	return fmt.Sprintf("rejected: %s: %v", e.Reason, e.Err)
}

// Unwrap returns Err.
func (e *RejectError) Unwrap() error { return e.Err }

// errStep says that a group's record was to change as none may: a fault of this package.
var errStep = errors.New("illegal change of a group")

func isCorrupt(err error) bool { return errors.Is(err, ErrCorrupt) }
