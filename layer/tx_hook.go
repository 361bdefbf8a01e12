package layer

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"fdbfifo/internal/callback"
	"fdbfifo/kv"
)

// Hook is told of the operations of a handle: calls which run in transactions of the handle's own. The …Tx forms are
// not told, because their commit is the caller's. Each function is called on a goroutine of its own, one after the
// other. The functions must be safe for concurrent use and must return at once. A handle without hooks pays nothing.
//
// No hook changes what becomes of an operation. The handle survives a panic, and a runtime.Goexit. The operation waits
// 0.25 s for Begin, and for End. After that time it continues without the hook, and End is not called if Begin has not
// returned. SetHeader then does nothing, and the function must not read Messages and Claims any more, because they
// belong to the caller again. Until the function returns, the hook is not told of other operations that begin. The
// handle writes such a failure to slog.Default, with its stack, at most once in ten seconds.
type Hook struct {
	// Begin, if not nil, is called before the operation reads or writes anything. A call with wrong options may end
	// before, and then no hook is told of it. The operation, and End, get the values of the context that Begin returns;
	// it must be ctx or made from ctx. Its deadline and its end change nothing. Of an enqueue Begin may set headers
	// (Operation.SetHeader), for a trace that travels with the message. If they make a message, or the messages
	// together, too large, or are no UTF-8, the messages are enqueued without these headers.
	Begin func(ctx context.Context, o *Operation) context.Context
	// End, if not nil, is called when the outcome is known, or the caller has gone.
	End func(ctx context.Context, o *Operation)
	// Trouble, if not nil, is called when the database keeps a transaction of the handle waiting: after one second of
	// attempts that fail, or five seconds without an answer. It is called again at most once in ten seconds, and once
	// more, with Over set, when no transaction waits any more. No transaction waits for Trouble, and the handle
	// continues without a call that takes two minutes. If no hook has Trouble, and Options.Tx has no OnTrouble, the
	// handle writes a warning to slog.Default instead.
	Trouble func(queue string, t kv.Trouble)
}

// Verb is what an operation does.
type Verb string

// The verbs of programs and workers.
const (
	VerbEnqueue    Verb = "enqueue"
	VerbReceive    Verb = "receive"
	VerbAck        Verb = "ack"
	VerbNack       Verb = "nack"
	VerbRelease    Verb = "release" // a nack without a failed attempt
	VerbExtend     Verb = "extend"
	VerbSetState   Verb = "set state"
	VerbAdvance    Verb = "advance"
	VerbReschedule Verb = "reschedule"
	VerbReplace    Verb = "replace"
)

// The verbs of operators, see Admin.
const (
	VerbCancel        Verb = "cancel"
	VerbSkip          Verb = "skip"
	VerbEdit          Verb = "edit"
	VerbPause         Verb = "pause"
	VerbResume        Verb = "resume"
	VerbForceRelease  Verb = "force release"
	VerbRetryNow      Verb = "retry now"
	VerbSetGroupState Verb = "set group state"
	VerbPurge         Verb = "purge"
	VerbRedrive       Verb = "redrive"
	VerbDiscard       Verb = "discard"
	VerbReplay        Verb = "replay"
	VerbConfigure     Verb = "configure"
	VerbUnsubscribe   Verb = "unsubscribe"
)

var programsVerbs = []Verb{
	VerbEnqueue, VerbReceive, VerbAck, VerbNack, VerbRelease, VerbExtend, VerbSetState, VerbAdvance, VerbReschedule,
	VerbReplace,
}

var operatorsVerbs = []Verb{
	VerbCancel, VerbSkip, VerbEdit, VerbPause, VerbResume, VerbForceRelease, VerbRetryNow, VerbSetGroupState, VerbPurge,
	VerbRedrive, VerbDiscard, VerbReplay, VerbConfigure, VerbUnsubscribe,
}

// Verbs returns all verbs, those of programs first. The slice belongs to the caller.
func Verbs() []Verb { return slices.Concat(programsVerbs, operatorsVerbs) }

// Operation is one call, as hooks are told of it. A hook may read an Operation until End returns. It must not keep
// Messages or Claims. Fields that have nothing to say are zero.
type Operation struct {
	Queue string
	Verb  Verb
	// By is who does it, of an operator's verb: the name of Admin.As, or else the handle's Owner.
	By string
	// Group is the group that the call names, or that the claim is of; nil = none, or several.
	Group *string
	ID    ID // of the item that the call names
	// Messages are those of an enqueue. They belong to the caller of Enqueue, and a hook must not change them.
	// SetHeader sets a header in a copy, which the caller does not see.
	Messages []Message
	own      []bool // by message: its headers are a copy; nil = Messages is the caller's slice
	lent     *lent  // Messages, while Hook.Begin runs; nil = they are not lent to a hook
	// Sent is the result of an enqueue, one for each of Messages.
	Sent []Sent
	// Claims is the result of a receive.
	Claims []*Claim
	// Settled is a copy of the claim which is acked, given back, extended, advanced, or whose state is set, as of the
	// call; of a receive, the claim which is settled first (SettleReceive).
	Settled *Claim
	// Items is how many items the call has enqueued, received, settled, or changed; of a receive which acks first, only
	// those received. 0 after an error, except of redrive, discard, replay and purge.
	Items int
	// Follows is what has become of the item whose attempt has failed, of a nack.
	Follows Follows
	Begun   time.Time // by the system's clock, not Options.Now
	Took    time.Duration
	// Waited is how much of Took had passed when the transaction began which claimed, or which looked last.
	Waited time.Duration
	Err    error // of the call; the caller gets it with the name of the call
}

// lent is memory or a function of a caller that a hook or another goroutine may use for a time. It belongs to the
// caller again when the caller's call has returned. The methods may be called from several goroutines.
type lent struct {
	turn chan struct{} // holds a token while it is in use, or over changes
	over bool          // it has gone back to the caller
}

// newLent returns a lent that may be used.
func newLent() lent { return lent{turn: make(chan struct{}, 1)} }

// use calls fn, which uses the lent, and returns true. If the lent has gone back to its caller, use returns false. Only
// one fn runs at a time.
func (l *lent) use(fn func()) bool {
	l.turn <- struct{}{}
	defer func() { <-l.turn }()
	if l.over {
		return false
	}
	fn()
	return true
}

// end gives the lent back: it waits until no fn of use runs, and prevents further use.
func (l *lent) end() {
	l.turn <- struct{}{}
	l.over = true
	<-l.turn
}

// SetHeader sets a header of the i-th of Messages, from 0 to len(Messages) - 1. It must be called only in Hook.Begin.
// It does nothing when the operation has continued without the hook.
func (o *Operation) SetHeader(i int, name, value string) {
	if o.lent == nil {
		o.setHeader(i, name, value)
		return
	}
	o.lent.use(func() { o.setHeader(i, name, value) })
}

// setHeader sets a header of the i-th message, in a copy of its headers. The first call copies the slice of messages.
func (o *Operation) setHeader(i int, name, value string) {
	if o.own == nil {
		o.own, o.Messages = make([]bool, len(o.Messages)), slices.Clone(o.Messages)
	}
	m := &o.Messages[i]
	if !o.own[i] {
		headers := make(map[string]string, len(m.Headers)+2)
		maps.Copy(headers, m.Headers)
		m.Headers, o.own[i] = headers, true
	}
	m.Headers[name] = value
}

// Operator reports whether the verb is one of operators, see Admin.
func (v Verb) Operator() bool { return slices.Contains(operatorsVerbs, v) }

// observed is an operation that hooks are told of. nil = the handle has no hooks.
type observed struct {
	Operation
	q     *Queue
	blind []bool // by hook: it is not told of this operation, because a call of it has not returned; nil = all are told
}

// observe begins an operation for the hooks: it calls Begin of each, and returns the context for the operation. When
// the operation has ended, the caller must call end of the result. Without hooks it returns ctx and nil, and the
// methods of nil do nothing.
func (q *Queue) observe(ctx context.Context, o Operation) (context.Context, *observed) {
	if len(q.opts.Hooks) == 0 {
		return ctx, nil
	}
	return q.observeHooks(ctx, o)
}

// observeHooks is observe with hooks. It is a function of its own, so that observe is small, and o stays on the stack
// without hooks. If a call of Begin does not return in time, the hook is told no more of this operation: it is blind.
func (q *Queue) observeHooks(ctx context.Context, o Operation) (context.Context, *observed) {
	w := &observed{Operation: o, q: q}
	w.Queue, w.Begun = q.name, time.Now()
	for i, h := range q.opts.Hooks {
		stuck := q.hooksStuck[i].Load() > 0
		if before := w.Operation; !stuck && h.Begin != nil {
			of, told, inner := ctx, &w.Operation, context.Context(nil)
			messages := newLent()
			told.own, told.lent = nil, &messages // each hook has its own copy, which it may leave half-done
			if stuck = !w.call(i, "Hook.Begin", func() { inner = withValues(of, h.Begin(of, told)) }); stuck {
				messages.end()
				w = &observed{Operation: before, q: q, blind: w.blind}
			} else if inner != nil {
				ctx = inner
			}
		}
		if stuck {
			if w.blind == nil {
				w.blind = make([]bool, len(q.opts.Hooks))
			}
			w.blind[i] = true
		}
	}
	return ctx, w
}

// hookContext is the context of an operation, with the values of the context that a hook has returned. It ends with the
// context of the caller alone. Otherwise a hook would end an operation by a context that it cancels too early.
type hookContext struct {
	context.Context
	values context.Context
}

// withValues returns ctx with the values of a context that a hook has returned; nil = none. It panics if the methods of
// that context panic, as those of a nil pointer do.
func withValues(ctx, hooks context.Context) context.Context {
	if hooks == nil {
		return ctx
	}
	c := hookContext{ctx, context.WithoutCancel(hooks)} // so that context.Cause does not find the hook's cause
	c.Value(hookContext{})
	return c
}

// String is the text of the caller's context, as those of package context have one. It has no addresses.
func (c hookContext) String() string { return fmt.Sprint(c.Context) + ".WithValues" }

// Value implements context.Context.
func (c hookContext) Value(key any) any {
	if v := c.values.Value(key); v != nil {
		return v
	}
	return c.Context.Value(key)
}

const (
	// hookPatience is how long an operation waits for a function of a hook. A worker extends a lease of MinLease after
	// a third of it, and is in time also if that waits for Hook.Begin and for Hook.End.
	hookPatience = callback.Shield(MinLease / 4)
	// hookReports is how often a handle reports failures of its hooks at most.
	hookReports = 10 * time.Second
)

// call calls fn, which calls a function of the i-th hook, and waits at most hookPatience. returned is false if the
// function has not returned: then the caller must not read the variables that fn writes, and the hook is not told of
// operations that begin until the function returns. what names the function for the report of a failure.
func (w *observed) call(i int, what string, fn func()) (returned bool) {
	err := hookPatience.TryCounted(&w.q.hooksStuck[i], what, fn)
	if err == nil {
		return true
	}
	now, last := time.Now().UnixNano(), w.q.hookReported.Load()
	if (last == 0 || now-last >= int64(hookReports)) && w.q.hookReported.CompareAndSwap(last, now) {
		callback.Report("queue: a hook has failed", err, "queue", w.Queue, "verb", string(w.Verb))
	}
	return !errors.As(err, new(*callback.StuckError))
}

// end tells the hooks the outcome (Hook.End), the last hook first, and returns err. Of nil it only returns err.
func (w *observed) end(ctx context.Context, err error) error {
	if w == nil {
		return err
	}
	w.Took, w.Err = time.Since(w.Begun), err
	for i := len(w.q.opts.Hooks) - 1; i >= 0; i-- {
		if h := w.q.opts.Hooks[i]; h.End != nil && (w.blind == nil || !w.blind[i]) {
			w.call(i, "Hook.End", func() { h.End(ctx, &w.Operation) })
		}
	}
	return err
}

// errorKinds are the kinds of errors that ErrorKind tells apart, the most telling first.
var errorKinds = []struct {
	kind string
	is   error
}{
	{"claim_lost", ErrClaimLost}, {"full", ErrFull}, {"closed", ErrClosed}, {"no_queue", ErrNoQueue},
	{"changed", ErrChanged}, {"corrupt", ErrCorrupt}, {"limit", ErrLimit},
	{"timeout", context.DeadlineExceeded}, {"cancelled", context.Canceled},
}

// ErrorKind is a word for the kind of an operation's error, for labels of metrics: one of eleven, never a text of the
// error's own; "" for nil. Examples: "claim_lost", "timeout". "engine" is any other error of the database, "other" the
// rest.
func ErrorKind(err error) string {
	if err == nil {
		return ""
	}
	for _, k := range errorKinds {
		if errors.Is(err, k.is) {
			return k.kind
		}
	}
	if kv.Code(err) != 0 {
		return "engine"
	}
	return "other"
}

// LogHook returns a hook that writes a log. An operator's actions have the level info, with the operator's name. A
// refused action and a lost claim are warnings. A nack that leads to a dead letter or halts its group is an error.
// Every other operation has the level debug. Trouble with the database is a warning, and its end an info. Bodies and
// headers are never written.
func LogHook(log *slog.Logger) Hook {
	troubled := func(queue string, t kv.Trouble) { logTrouble(log, queue, t) }
	return Hook{Trouble: troubled, End: func(ctx context.Context, o *Operation) {
		level := o.level()
		if log.Enabled(ctx, level) {
			log.LogAttrs(ctx, level, "queue: "+string(o.Verb), o.attrs()...)
		}
	}}
}

// level returns the level at which LogHook writes the operation. It is error if a nack has led to a dead letter or a
// halt (Operation.Follows). It is warning for an operator's verb that has failed, and for a lost claim. It is info for
// an operator's verb that has succeeded. All else is debug. Other failed calls are debug too, because the program gets
// their errors.
func (o *Operation) level() slog.Level {
	switch {
	case o.Follows == FollowsDeadLetter || o.Follows == FollowsHalt:
		return slog.LevelError
	case o.Err != nil && (o.Verb.Operator() || errors.Is(o.Err, ErrClaimLost)):
		return slog.LevelWarn
	case o.Verb.Operator():
		return slog.LevelInfo
	}
	return slog.LevelDebug
}

// attrs returns the attributes with which LogHook writes the operation: only those that it has.
func (o *Operation) attrs() []slog.Attr {
	all := []slog.Attr{slog.String("queue", o.Queue)}
	if o.By != "" {
		all = append(all, slog.String("by", o.By))
	}
	if o.ID != (ID{}) {
		all = append(all, slog.String("item", o.ID.String()))
	} else if o.Group != nil {
		all = append(all, slog.String("group", *o.Group))
	}
	if o.Settled != nil && (o.Verb != VerbReceive || o.Err != nil) { // else the claim that it got is another
		all = append(all, slog.Int64("token", o.Settled.Token))
	}
	if o.Items > 0 {
		all = append(all, slog.Int("items", o.Items))
	}
	if o.Follows != "" {
		all = append(all, slog.String("follows", string(o.Follows)))
	}
	all = append(all, slog.Duration("took", o.Took))
	if o.Err != nil {
		all = append(all, slog.String("error", o.Err.Error()))
	}
	return all
}

// sayTrouble tells the hooks that the database keeps a transaction of the handle waiting. If no hook has Trouble,
// sayTrouble writes a warning to slog.Default, unless the caller observes trouble by Options.Tx. observed: the caller
// does so.
func sayTrouble(q *Queue, t kv.Trouble, observed bool) {
	told := observed
	for _, h := range q.opts.Hooks {
		if h.Trouble != nil {
			told = true
			trouble(q, "Hook.Trouble", func() { h.Trouble(q.name, t) })
		}
	}
	if !told {
		callback.Default(func(log *slog.Logger) { logTrouble(log, q.name, t) })
	}
}

// trouble calls fn, which tells a hook or the caller's observer of trouble. It reports a panic of fn, or a call that
// does not return in time, to slog.Default. what names the function there.
func trouble(q *Queue, what string, fn func()) {
	err := callback.Shield(callback.Patience).Try(what, fn)
	callback.Report("queue: a hook has failed", err, "queue", q.name)
}

// observeTrouble makes trouble of the handle's transactions known: to the caller's own observer (Options.Tx.OnTrouble)
// and to the hooks. It changes q.opts, and must be called once, before the first transaction.
func observeTrouble(q *Queue) {
	outer := q.opts.Tx.OnTrouble
	q.troubles.Say = func(t kv.Trouble) { sayTrouble(q, t, outer != nil) }
	q.opts.Tx.OnTrouble = func(t kv.Trouble) {
		if outer != nil {
			trouble(q, "TxOptions.OnTrouble", func() { outer(t) })
		}
		q.troubles.Note(t)
	}
}

// logTrouble writes t to a log: a warning, or, when no transaction waits any more, an info.
func logTrouble(log *slog.Logger, queue string, t kv.Trouble) {
	if t.Over {
		log.Info("queue: the database answers again", "queue", queue, "call", t.Call, "since", t.Since)
		return
	}
	log.Warn("queue: the database keeps a transaction waiting",
		"queue", queue, "call", t.Call, "since", t.Since, "attempts", t.Attempts, "error", t.Err,
		"remedy", "look at the database: its processes, its disk and the network")
}

// txFor returns the options for a transaction of the handle: the caller's (Options.Tx), with the name of the call.
func txFor(q *Queue, call string) kv.TxOptions {
	o := q.opts.Tx
	o.Call = call
	return o
}
