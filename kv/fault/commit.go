package fault

import "fdbfifo/kv"

// Commit goes to the engine unless a fault forbids it. A transaction that wrote nothing meets no fault of the
// commit: FoundationDB sends no such commit anywhere.
func (t *faultyTx) Commit() kv.Future[struct{}] {
	t.mu.Lock()
	err, wrote, inner := t.beforeCommit(), t.wrote, t.inner
	t.mu.Unlock()
	if err != nil {
		return kv.Done(struct{}{}, err)
	}
	e := event{kind: None}
	if wrote && !fails(inner) {
		// Without t.mu: the hook may use other transactions, and this one's.
		e = t.db.plan.chooseCommit(inner)
		t.db.plan.overtake()
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	switch e.kind {
	case None:
		spurious := t.spurious
		return &after{Future: inner.Commit(), success: func() error {
			for _, w := range spurious {
				w.override(struct{}{}, nil)
			}
			return nil
		}}
	case UnknownApplied, UnnamedApplied:
		t.failed = true
		lose := t.loser()
		return &after{Future: inner.Commit(), success: func() error {
			t.db.plan.record(e)
			return lose(e.kind.err())
		}}
	case TimedOutLate, VersionChangedLate, VersionChangedLost:
		// The engine's transaction is in flight, or lost. The caller's transaction continues with another one.
		if t.inner, err = t.db.DB.Begin(t.options); err != nil {
			t.inner = inner
			return kv.Done(struct{}{}, err)
		}
		if e.kind == VersionChangedLost {
			inner.Cancel()
		} else {
			t.db.plan.postpone(inner, e)
		}
	}
	t.db.plan.record(e)
	t.failed, t.changed = true, e.kind == VersionChangedLate || e.kind == VersionChangedLost
	t.broken = usedDuringCommit()
	if err = e.kind.err(); kv.Code(err) == kv.CodeTransactionTimedOut {
		t.broken = err
	}
	return kv.Done(struct{}{}, t.loser()(err))
}

// fails reports whether the commit of a transaction will fail before it comes to the engine. Such a commit meets no
// fault of a plan above, and no hook: these count the commits that come to the engine.
func fails(tx kv.ManagedTx) bool {
	t, ok := tx.(interface{ refused() bool })
	return ok && t.refused()
}

func (t *faultyTx) refused() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.refusal() != nil || fails(t.inner)
}

// refusal returns why no commit can be sent, if it cannot; t.mu is held.
func (t *faultyTx) refusal() error {
	switch {
	case t.broken != nil:
		return t.broken
	case t.poison != nil:
		return t.poison
	case t.wrote:
		return t.version()
	}
	return nil
}

// beforeCommit is refusal for the commit itself: a transaction that is refused there cannot be used on.
func (t *faultyTx) beforeCommit() error {
	if t.broken != nil {
		return t.broken
	}
	err := t.refusal()
	if err != nil {
		t.failed = true
		t.broken = usedDuringCommit()
	}
	return err
}

// loser returns what fails the watches and stamps of the attempt along with its commit; t.mu is held.
func (t *faultyTx) loser() func(error) error {
	watches, stamps := t.watches, t.stamps
	return func(err error) error {
		for _, w := range watches {
			w.override(struct{}{}, err)
		}
		for _, s := range stamps {
			s.override([10]byte{}, &kv.Error{Code: kv.CodeTransactionInvalidVer})
		}
		return err
	}
}

// usedDuringCommit returns the error of each call between a commit and OnError or Reset.
func usedDuringCommit() error { return &kv.Error{Code: kv.CodeUsedDuringCommit} }
