package layer

import (
	"context"

	"fdbfifo/kv"
)

// Admin is the operator's side of a queue, beside the programs which use the queue: look inside, change waiting
// messages, pause, repair, configure. Admin is a view of the handle: copy an Admin freely, use an Admin from several
// goroutines. Admin ends with the handle's Close. All calls work while the queue is in use.
type Admin struct {
	q  *Queue
	by string // "" = the handle's Owner
}

// Admin returns the operator's side of the handle.
func (q *Queue) Admin() Admin { return Admin{q: q} }

// As returns the operator's side for somebody: hooks are told that name has done what is done through the result, and
// so are marks, dead letters and attempts which say who has made them, unless options name somebody else. At most
// MaxQueueNameSize bytes of UTF-8, or else the operations fail with *LimitError or ErrInvalidUTF8; "" = the handle's
// Owner.
func (a Admin) As(name string) Admin { return Admin{q: a.q, by: name} }

// who is who does it, for people.
func (a Admin) who() string {
	if a.by != "" {
		return a.by
	}
	return a.q.opts.Owner
}

// act runs an operator's call for the hooks, and names the call's error. do returns how many items it has changed.
func (a Admin) act(
	ctx context.Context, v Verb, group *string, id ID, do func(ctx context.Context) (items int, err error),
) error {
	ctx, w := a.q.observe(ctx, Operation{Verb: v, By: a.who(), Group: group, ID: id})
	items := 0
	err := checkByReason(a.by, "")
	if err == nil {
		items, err = do(ctx)
	}
	if w != nil && (err == nil || a.partly(v)) {
		w.Items = items
	}
	return w.end(ctx, wrap(string(v), err))
}

// partly reports whether a verb takes several transactions, so that something may have been done before an error.
func (a Admin) partly(v Verb) bool {
	return v == VerbPurge || v == VerbRedrive || v == VerbDiscard || v == VerbReplay
}

// actMark is act for a call that returns a mark. by, if not "", is who does it.
func (a Admin) actMark(
	ctx context.Context, v Verb, group *string, by string, do func(tx kv.Tx) (Mark, error),
) (m Mark, err error) {
	if by != "" {
		a.by = by
	}
	err = a.act(ctx, v, group, ID{}, func(ctx context.Context) (n int, err error) {
		m, err = a.q.onceMark(ctx, string(v), do)
		return 0, err
	})
	return m, err
}
