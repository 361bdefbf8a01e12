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
	if t.poison != nil {
		// It is not even sent. FoundationDB 7.3 tells neither the versionstamp's future nor the watches.
		t.letGo()
		return kv.Done(struct{}{}, t.poison)
	}
	c := t.commitOfAttempt()
	c.watches, t.watches = t.watches, nil
	if err := t.prepare(c); err != nil {
		c.err = err
		c.finish(t.db)
	} else if c.readOnly() {
		// Nothing is checked and nothing sent. A watch is registered with the value at the read version.
		c.version = noVersion
		c.finish(t.db)
	} else {
		t.db.submit(c)
	}
	t.letGo()
	if c.finished() {
		return kv.Done(struct{}{}, c.err)
	}
	return newPending(t, c.done, func() (struct{}, error) { return struct{}{}, c.err }, nil)
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

// prepare fills in what the pipeline needs.
func (t *transaction) prepare(c *commit) error {
	all := keyRange{"", maxKey}
	c.mutations = t.own.mutations(t.sent, all)
	c.writes = merge(t.own.writeConflicts(slices.Clip(t.sentWrites)))
	if c.readOnly() {
		return nil
	}
	// Sorting the reads must not disturb ConflictRanges' list, but for its order.
	t.reads = merge(t.reads)
	c.reads = t.reads
	limit := int64(kv.MaxTransactionSize)
	if t.options.SizeLimit > 0 {
		limit = min(limit, int64(t.options.SizeLimit))
	}
	if c.size() > limit {
		return codeError(kv.CodeTransactionTooLarge)
	}
	if t.readVersion == 0 {
		v, err := t.db.readVersion()
		if err != nil {
			return err
		}
		t.readVersion = v
	}
	c.readVersion = t.readVersion
	return nil
}

// size is FoundationDB's count of what a commit sends.
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

// CommittedVersion implements kv.ManagedTx. It outlives a reset, and a commit that fails.
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
