package embedded

import (
	"fdbfifo/kv"
)

// Reads of a database that another process has open. Each read runs in a goroutine of its own. It sees the
// transaction's own writes as they were at its call. The transaction may write more while the read runs.

// writable returns the transaction's own writes, for a caller that adds a write. It copies them first if reads in
// flight may look at them.
func (t *transaction) writable() *overlay {
	if t.frozen != nil {
		if t.current.reading > 0 {
			t.own = t.own.clone()
		}
		t.frozen = nil
	}
	return &t.own
}

// freeze returns the transaction's own writes as they are now, for reads in flight.
func (t *transaction) freeze() *overlay {
	if t.frozen == nil {
		own := t.own
		t.frozen = &own
	}
	return t.frozen
}

// wait returns a channel that is closed when no read is in flight.
func (a *attempt) wait() <-chan struct{} {
	if a.idle == nil {
		a.idle = make(chan struct{})
		if a.reading == 0 {
			close(a.idle)
		}
	}
	return a.idle
}

// readFar starts a read in the process that has the database. end is called with the transaction locked, once.
func (t *transaction) readFar(
	begun *merged, run func(m *merged) error, end func(a *attempt, own *overlay, err error),
) {
	if t.far == nil {
		t.far = t.db.link.snapshot(t.readVersion)
	}
	a, far := t.current, t.far
	if a.reading == 0 {
		a.idle = nil
	}
	a.reading++
	m := merged{own: t.freeze(), tx: t, fresh: begun.fresh, far: &farReads{snapshot: far, stop: a.end()}}
	go func() {
		err := run(&m)
		t.mu.Lock()
		defer t.mu.Unlock()
		if v := far.versionNow(); a == t.current && t.readVersion == 0 && v != 0 {
			t.readVersion = v
		}
		if a.err != nil {
			err = a.err
		}
		end(a, m.own, err)
		a.reading--
		if a.reading == 0 && a.idle != nil {
			close(a.idle)
		}
	}()
}

// later is a read that waits for another process.
func later[T any](t *transaction, begun *merged, r reading[T], snapshot bool) kv.Future[T] {
	done := make(chan struct{})
	var failed error
	t.readFar(begun, r.run, func(a *attempt, own *overlay, err error) {
		defer close(done)
		switch {
		case a.err != nil:
			failed = a.err
		case err != nil:
			failed = t.keepError(err)
		case !snapshot:
			r.depends(t, own)
		}
	})
	return newPending(t, done, func() (T, error) {
		if failed != nil {
			var none T
			return none, failed
		}
		return r.result(), nil
	}, nil)
}

// farVersion is the read version, from another process; end is called with the transaction locked.
func (t *transaction) farVersion(end func()) kv.Future[int64] {
	done := make(chan struct{})
	var version int64
	var failed error
	m := t.startRead()
	t.readFar(&m, func(m *merged) error { return m.far.open() }, func(a *attempt, _ *overlay, err error) {
		version, failed = t.readVersion, err
		end()
		close(done)
	})
	return newPending(t, done, func() (int64, error) { return version, failed }, nil)
}

// lateVersion returns a read version for a transaction that has called Commit and reads no more.
func (t *transaction) lateVersion() kv.Future[int64] {
	if home := t.db.local.Load(); home != nil {
		var err error
		t.readVersion, err = home.readVersion()
		return kv.Done(t.readVersion, err)
	}
	held := t.far
	f := t.farVersion(func() {
		if held == nil {
			t.letGo()
		}
	})
	return f
}
