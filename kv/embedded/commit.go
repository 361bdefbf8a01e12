package embedded

import (
	"slices"

	"fdbfifo/kv"
)

// Commit implements kv.ManagedTx.
func (t *transaction) Commit() kv.Future[struct{}] {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.usable(); err != nil {
		return kv.Done(struct{}{}, err)
	}
	t.committing = true
	c := t.commitOfAttempt()
	if t.current.reading > 0 {
		return t.commitLater(c)
	}
	if err := t.send(c); err != nil {
		return kv.Done(struct{}{}, err)
	}
	if c.finished() {
		return kv.Done(struct{}{}, c.err)
	}
	return newPending(t, c.done, func() (struct{}, error) { return struct{}{}, c.err }, c.giveUp)
}

// send submits the commit. If a read of the transaction has failed, it returns that error and sends nothing. As in
// FoundationDB 7.3, the versionstamp's future and the watches do not get the error then.
func (t *transaction) send(c *commit) error {
	defer t.letGo()
	if t.poison != nil {
		return t.poison
	}
	c.watches, t.watches = t.watches, nil
	if err := t.prepare(c); err != nil {
		c.err = err
		c.finish(t.db)
	} else if c.readOnly() {
		// Nothing is checked and nothing sent. A watch is registered with the value at the read version.
		c.version = noVersion
		c.finish(t.db)
	} else if t.db.refuses != nil {
		c.err = t.db.refuses
		c.finish(t.db)
	} else {
		// The snapshot is released before the commit. Without a reader it costs the store in memory nothing, and the
		// release and the commit go to a serving process in one write.
		t.letGo()
		t.db.submit(c)
	}
	return nil
}

// commitLater sends the commit when the reads in flight have ended.
func (t *transaction) commitLater(c *commit) kv.Future[struct{}] {
	a, sent := t.current, make(chan struct{})
	idle, ended := a.wait(), a.end()
	var failed error
	go func() {
		defer close(sent)
		select {
		case <-idle:
		case <-ended:
		}
		t.mu.Lock()
		if failed = a.err; failed == nil {
			failed = t.send(c)
		}
		t.mu.Unlock()
		if failed == nil {
			<-c.done
			failed = c.err
		}
	}()
	return newPending(t, sent, func() (struct{}, error) { return struct{}{}, failed }, c.giveUp)
}

// noVersion is the committed version of a transaction that wrote nothing, or was never committed.
const noVersion = -1

func (c *commit) readOnly() bool { return len(c.mutations) == 0 && len(c.writes) == 0 }

func (t *transaction) commitOfAttempt() *commit {
	if t.current.commit == nil {
		t.current.commit = &commit{version: noVersion, done: make(chan struct{})}
	}
	return t.current.commit
}

// prepare fills in the fields that the pipeline reads.
func (t *transaction) prepare(c *commit) error {
	all := keyRange{"", maxKey}
	c.mutations = t.own.mutations(t.sent, all)
	c.writes = merge(t.own.writeConflicts(slices.Clip(t.sentWrites)))
	if c.readOnly() {
		return nil
	}
	// Sorting the reads must not change ConflictRanges' list, except its order.
	t.reads = merge(t.reads)
	c.reads = shortened(t.reads)
	limit := int64(kv.MaxTransactionSize)
	if t.options.SizeLimit > 0 {
		limit = min(limit, int64(t.options.SizeLimit))
	}
	if c.size() > limit {
		return kv.TransactionTooLarge(c.size())
	}
	if home := t.db.local.Load(); t.readVersion == 0 && home != nil {
		v, err := home.readVersion()
		if err != nil {
			return err
		}
		t.readVersion = v
	}
	c.readVersion, t.blind = t.readVersion, t.readVersion == 0
	return nil
}

// shortened returns the ranges with shortBound's bounds, as FoundationDB's client sends them. A range without a key in
// it is left out.
func shortened(ranges []keyRange) []keyRange {
	long := func(r keyRange) bool { return max(len(r.begin), len(r.end)) > maxReadKey+1 }
	if !slices.ContainsFunc(ranges, long) {
		return ranges
	}
	short := make([]keyRange, 0, len(ranges))
	for _, r := range ranges {
		if r = (keyRange{shortBound(r.begin), shortBound(r.end)}); !r.empty() {
			short = append(short, r)
		}
	}
	return short
}

// size returns the bytes of a commit as FoundationDB counts them.
func (c *commit) size() int64 {
	n := 0
	for _, m := range c.mutations {
		n += len(m.key) + len(m.value) + mutationOverhead
	}
	for _, ranges := range [][]keyRange{c.reads, c.writes} {
		for _, r := range ranges {
			n += len(r.begin) + len(r.end) + rangeOverhead
		}
	}
	return int64(n)
}

// CommittedVersion implements kv.ManagedTx. The version stays the same after a reset, and after a commit that fails.
func (t *transaction) CommittedVersion() (int64, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if c := t.current.commit; c != nil && c.finished() && c.err == nil {
		return c.version, nil
	}
	return t.version, nil
}

// Versionstamp implements kv.Tx.
func (t *transaction) Versionstamp() kv.Future[[10]byte] {
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.usable(); err != nil {
		return kv.Done([stampSize]byte{}, err)
	}
	c := t.commitOfAttempt()
	return newPending(t, c.done, func() ([stampSize]byte, error) {
		switch {
		case c.err != nil:
			return [stampSize]byte{}, &kv.Error{Code: kv.CodeTransactionInvalidVer, Cause: c.err}
		case c.version == noVersion:
			return [stampSize]byte{}, codeError(kv.CodeNoCommitVersion)
		}
		return makeStamp(c.version, c.index), nil
	}, nil)
}
