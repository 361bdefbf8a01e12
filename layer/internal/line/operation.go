package line

import (
	"container/list"
	"context"
	"time"
)

// Operation is the work of one caller in one transaction: a settlement, an enqueue, a receive, or several of these. A
// type is an Operation if it embeds Op and has the methods below. The package knows no more of an operation.
type Operation interface {
	comparable
	op() *Op

	// Size is what the operation adds to a transaction.
	Size() Size
	// Settles, Enqueues and Receives report what the operation consists of. Settles is false once the settlement is
	// done and only a receive is left.
	Settles() bool
	Enqueues() bool
	Receives() bool
	// Err returns the error with which the caller's call ends, if the operation ended now.
	Err() error

	// The methods below are called only if Receives is true.

	// Named reports whether the receive names a group. Otherwise it takes any group, or any lane of Template. A lane is
	// the part of a group that a template matches.
	Named() bool
	// Template is the packed template of the receive; "" = none.
	Template() string
	// Place names the group, the lane or the template that the receive waits for: receives with equal places are
	// looked for once. "" = the receive takes any group.
	Place() string
	// Unserved reports whether the receive has got nothing, so that one which waits must continue to wait.
	Unserved() bool
	// Keeps reports whether the claims of the receive stay if its caller leaves, because the caller can repeat the
	// receive. Otherwise the pipeline gives them back.
	Keeps() bool
	// Forget forgets what the receive got in its latest transaction.
	Forget()
	// Settled is called when the settlement is done, and only the receive is left.
	Settled()
}

// Op is the part of an operation that this package needs.
//
// An operation has one owner at a time, and only the owner reads and writes the exported fields. The caller owns the
// operation until it submits the operation, and again when the submit has returned. In between the owner is the
// pipeline (under its mutex), the transaction that runs the operation, or the line.
type Op struct {
	Waits bool  // the receive joins the line if nothing is ready
	Turn  *Turn // the latest turn that the line gave the receive; nil = none yet
	Cue   Cue   // of a receive which is about to wait, and for its first turn
	// StandsBack is for how long the receive has no turn, because the handle has just woken another handle.
	StandsBack time.Duration

	// Lost is how many conflicts the receive has lost in transactions that have ended. A receive that has lost one
	// travels with other such receives alone.
	Lost int
	// First: the transaction only settles and enqueues for this operation. Later: it has done so, and the receive needs
	// another transaction.
	First, Later bool
	TxErr        error // of the operation's last transaction; nil = it succeeded
	// Contends: the operation enqueues, and conflicts with every other enqueue into a group. So its transaction may
	// lose one conflict after the other. It travels only with other such operations.
	Contends bool

	// The pipeline's mutex guards the fields below.

	ended     chan struct{} // closed when the results are there; the caller waits without the mutex
	load      Size          // what the operation adds to a transaction
	state     state
	place     *list.Element // in the queue of the pipeline, or in the line; nil = in neither
	abandoned error         // why the caller has gone; nil = it has not
	tx        *transaction  // in which the operation runs
	lastTurn  bool          // the receive ends after this turn, also if it has got nothing
	back      chan struct{} // closed when a called receive has ended or is waiting again
}

func (o *Op) op() *Op { return o }

// state is the place of an operation on its way through the pipeline and the line.
type state int

const (
	isQueued  state = iota // waits for a transaction
	isRunning              // in a transaction
	isWaiting              // in the line, or called by the line this moment
	hasEnded
)

// Size is what an operation, or a transaction, has of each kind that is bounded.
type Size struct {
	Messages int // enqueued
	Bytes    int // of messages
	Settled  int // items acked
	Received int // items asked for
}

// Plus returns the sum.
func (s Size) Plus(t Size) Size {
	return Size{s.Messages + t.Messages, s.Bytes + t.Bytes, s.Settled + t.Settled, s.Received + t.Received}
}

// Exceeds reports whether s is more than most of any kind.
func (s Size) Exceeds(most Size) bool {
	return s.Messages > most.Messages || s.Bytes > most.Bytes || s.Settled > most.Settled || s.Received > most.Received
}

// transaction is a transaction of the pipeline.
type transaction struct {
	groups int // how many groups the receives are likely to take; 0 = there are no receives
	others int // how many groups the receives of other transactions in flight are likely to take
	ctx    context.Context
	cancel context.CancelCauseFunc
	left   int // guarded by the pipeline's mutex; how many callers have not gone
	// losing: the receives have lost a conflict, and try again. Guarded by the pipeline's mutex.
	losing   bool
	contends bool      // its operations are those with Contends
	begun    time.Time // when the batch was made
}
