package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"fdbfifo/internal/linear"
	"fdbfifo/kv"
	"fdbfifo/layer"
)

type outcome int

const (
	done    outcome = iota
	refused         // nothing has happened
	unknown         // it may have happened, or may yet
)

// op is one call of an actor, and its answer.
type op struct {
	kind       string
	actor, who int
	begin, end int // steps of the driver
	outcome    outcome
	told       linear.Outcome // the outcome by its error
	doubted    bool           // while it ran, its handle tried again after a commit of unknown outcome
	limited    bool           // its context may end before it does
	leaves     bool           // its context ends while it runs, or a little later
	over       bool           // it returned; an actor that died did not live to see it
	lent       []func()       // write over what the call was given
	beginAt    time.Time
	endAt      time.Time
	by         author

	bodies    []string // enqueue: the labels of its messages
	groups    []string // enqueue: the groups of its messages
	messages  []layer.Message
	sent      []layer.ID
	duplicate []bool // of sent
	varied    bool   // enqueue: an attempt had fewer messages
	full      string // the group because of which it was refused

	// The items that it finishes: of a claim, or of its own choice.
	group  string
	token  int64 // of a configure: its version; of a force-release: that of the claim it ended
	settle bool  // it settles a claim: token and group
	all    bool  // all items that the claim still has; also of an advance
	ids    []layer.ID
	tried  []layer.ID     // take: of all attempts; the outcome may be unknown
	tries  [][]layer.Item // take: the items of each attempt
	nack   layer.NackOptions
	effect bool // counted under the effect keys, in the same transaction

	until time.Time // extend: the new end

	claims     []*layer.Claim // receive
	attemptID  string         // receive: its receive id
	wantsState bool           // receive: it asks for the state
	beats      bool           // receive: by heartbeat
	items      []layer.Item   // take

	rates    bool          // it changes the rate of the groups
	every    time.Duration // sweep: of many
	swept    bool          // sweep: it went on
	whole    bool          // replay: it went to the end
	portions bool          // replay: in several calls with a limit
	replayed int64         // replay: the number in its report
	named    string        // pause of the queue: the actor that pauses
	toldBy   string        // pause of the queue, and its end: the actor that has paused it

	sweeping bool // it may remove anything (purge), of group if that is not ""
	forcing  bool // it may end any claim

	discarding bool              // it may discard any dead letter
	edits      layer.ID          // edit: the item
	body       string            // edit: what its body becomes
	headers    map[string]string // replace: what its headers become
	retimes    layer.ID          // reschedule: the item
	dueAt      time.Time         // reschedule: to when; zero = at once
	// seen reports whether the answer of a call that changes nothing is right in a state; saw is the answer.
	seen      func(m *model) bool
	saw       string
	sets      bool   // it sets the state of the group
	state     []byte // the state that it sets; empty = cleared
	anyHolder bool   // it sets the state without a claim
	override  bool   // it sets the state also of a held group

	where    layer.Template // take, handler: the template
	advanced []layer.ID     // advance: the items
	staged   layer.ID       // handler of a stage: the item
	next     layer.Template // advance, edit, handler of a stage: the facets that the items get

	item    *layer.Item // of a handler
	plain   bool        // handler: its worker is unordered; or of a take
	handled bool        // by a handler, without an error

	rejected layer.ID // handler, nack: the item, if it is rejected
}

// author is who made a call.
type author int

const (
	byActor  author = iota
	byWorker        // a handler of a worker.Worker, which acks and gives back by itself
)

// judge says what an error leaves open, and whether it may come at all.
func judge(err error, limited bool) (outcome, bool) {
	if err == nil {
		return done, true
	}
	if kv.MaybeCommitted(err) {
		return unknown, true
	}
	for _, e := range []error{
		layer.ErrClaimLost, layer.ErrNotInClaim, layer.ErrNoItem, layer.ErrInFlight, layer.ErrNotHeld, layer.ErrNotPaused,
		layer.ErrNotDelayed, layer.ErrNotDead, layer.ErrHeld, layer.ErrNoSubscription,
		errNotMoved,
	} {
		if errors.Is(err, e) {
			return refused, true
		}
	}
	if full := new(layer.FullError); errors.As(err, &full) {
		return refused, true
	}
	var e *kv.Error
	if errors.As(err, &e) {
		return refused, limited || e.Code == kv.CodeTransactionTimedOut
	}
	ended := []error{context.DeadlineExceeded, context.Canceled, errHandler} // causes of the end of a context
	if limited && slices.ContainsFunc(ended, func(e error) bool { return errors.Is(err, e) }) {
		return unknown, true // of a receive: what it claims is given back
	}
	return refused, false
}

// is reports whether it is a call of that kind, by itself or in a transaction of the caller's.
func (o *op) is(kind string) bool { return o.kind == kind || o.kind == kind+"-tx" }

func (o *op) String() string {
	return fmt.Sprintf("%s by actor %d (handle %d), steps %d-%d, outcome %d, group %q token %d ids %v sent %v",
		o.kind, o.actor, o.who, o.begin, o.end, o.outcome, o.group, o.token, o.ids, o.sent)
}
