package embedded

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"fdbfifo/kv"
)

// commit is one transaction on its way through the pipeline.
type commit struct {
	readVersion   int64
	reads, writes []keyRange // sorted and merged
	mutations     []mutation
	watches       []*watch
	empty         bool // no transaction: only writes down the version
	bytes         int  // that a session counts for it; 0 in process

	// givenUp says that no caller waits for the commit any more. It is set at any time.
	givenUp atomic.Bool

	// told, if there is one, is called with the result. It must not wait for anything.
	told func(c *commit)

	// The result, valid once done is closed.
	done    chan struct{}
	version int64
	index   uint16
	err     error
}

func (c *commit) giveUp() { c.givenUp.Store(true) }

func (c *commit) finished() bool {
	select {
	case <-c.done:
		return true
	default:
		return false
	}
}

// watcher takes over the watches of a commit.
type watcher interface{ register(watches []*watch) }

// finish publishes the result. It registers the watches first, so that no change after the commit is missed.
func (c *commit) finish(at watcher) {
	if c.err == nil {
		at.register(c.watches)
	} else {
		for _, w := range c.watches {
			w.end(c.err)
		}
	}
	close(c.done)
	if c.told != nil {
		c.told(c)
	}
}

// pipeline collects commits. A goroutine that finds no leader leads. It takes all waiting commits as one group, and the
// commits that come in the meantime are the next.
type pipeline struct {
	mu      sync.Mutex
	idle    sync.Cond
	waiting []*commit
	leading bool
	closed  bool
	history history // the leader's
}

// maxGroup bounds the commits that share one version; a versionstamp has 16 bits for them.
const maxGroup = 4096

// maxGroupBytes bounds what one write of the store takes in.
const maxGroupBytes = 4 * kv.MaxTransactionSize

func (e *engine) submit(c *commit) {
	if c.readVersion == 0 && !c.empty {
		if c.readVersion, c.err = e.readVersion(); c.err != nil {
			c.finish(e)
			return
		}
	}
	p := &e.queue
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		c.err = &kv.Error{Code: kv.CodeOperationCancelled, Cause: errClosed}
		c.finish(e)
		return
	}
	p.waiting = append(p.waiting, c)
	if p.leading {
		p.mu.Unlock()
		return
	}
	p.leading = true
	p.mu.Unlock()
	if e.durable {
		go e.lead()
		return
	}
	// In memory the caller does its own group: it is done before a goroutine would have started.
	e.group(p.take())
	if p.more() {
		go e.lead()
	}
}

func (e *engine) lead() {
	for {
		e.group(e.queue.take())
		if !e.queue.more() {
			return
		}
	}
}

// take removes the next group.
func (p *pipeline) take() []*commit {
	p.mu.Lock()
	defer p.mu.Unlock()
	n, bytes := 0, 0
	for n < len(p.waiting) && n < maxGroup && bytes < maxGroupBytes {
		for _, m := range p.waiting[n].mutations {
			bytes += len(m.key) + len(m.value)
		}
		n++
	}
	group := p.waiting[:n:n]
	p.waiting = p.waiting[n:]
	if len(p.waiting) == 0 {
		p.waiting = nil
	}
	return group
}

// more reports whether the leader must continue. If not, the caller is not the leader any more.
func (p *pipeline) more() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.waiting) > 0 {
		return true
	}
	p.leading = false
	p.idle.Broadcast()
	return false
}

// drain refuses new commits and waits for those under way.
func (p *pipeline) drain() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.closed = true
	for p.leading {
		p.idle.Wait()
	}
}

// group commits the taken commits, under one version and with one write of the store. Nothing is visible before it is
// durable, and futures complete in order.
func (e *engine) group(commits []*commit) {
	if e.hooks.BeforeGroup != nil {
		e.hooks.BeforeGroup(len(commits))
	}
	version, failed := e.beginGroup()
	batch := e.check(commits, version, failed)
	write := len(batch) > 0 || e.mustStore(version)
	if failed == nil && write {
		if failed = e.apply(version, batch); failed != nil {
			code := kv.CodeCommitUnknownResult
			if un := (*unwritten)(nil); errors.As(failed, &un) {
				code = kv.CodeIOError
			}
			failed = fmt.Errorf("embedded: commit group at version %d: %w", version, failed)
			for _, c := range commits {
				if c.err == nil {
					c.err = &kv.Error{Code: code, Cause: failed}
				}
			}
		}
	}
	e.endGroup(version, len(batch) > 0, write, failed)
	for _, c := range commits {
		c.finish(e)
	}
	if failed == nil && len(batch) > 0 {
		e.fire(batch)
	}
	e.queue.history.forget(version)
	e.reap()
}

// beginGroup assigns the group's version. From here to endGroup only the leader may use the store. failed is the error
// of a store that has failed.
func (e *engine) beginGroup() (version int64, failed error) {
	if e.hooks.VersionGap != nil {
		e.base.Add(e.hooks.VersionGap())
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	version = max(e.version+1, e.now())
	failed = e.failed
	if e.durable && failed == nil {
		// The write of a group takes as long as the disk. Reads continue in that time, and need a snapshot.
		if failed = e.viewLocked(); failed != nil {
			failed = errors.Unwrap(failed) // the cause: check gives the code to each commit
		}
	}
	e.applying = true
	return version, failed
}

// check decides each commit in order and returns the mutations of those that pass.
func (e *engine) check(commits []*commit, version int64, failed error) (batch []mutation) {
	for i, c := range commits {
		c.version, c.index = version, uint16(i)
		switch {
		case c.empty:
			continue
		case failed != nil:
			c.err = &kv.Error{Code: kv.CodeIOError, Cause: failed}
		case c.readVersion < version-window:
			c.err = codeError(kv.CodeTransactionTooOld)
		case e.queue.history.conflicts(c.reads, c.readVersion):
			c.err = codeError(kv.CodeNotCommitted)
		}
		if c.err != nil {
			continue
		}
		c.resolveStamps()
		e.queue.history.add(c.writes, version)
		if len(commits) == 1 {
			batch = c.mutations
		} else {
			batch = append(batch, c.mutations...)
		}
	}
	return batch
}

// resolveStamps fills in the versionstamps, and adds the write conflicts of the keys that they complete.
func (c *commit) resolveStamps() {
	for i, m := range c.mutations {
		switch m.kind {
		case kv.SetVersionstampedKey:
			key := stamped(m.key, makeStamp(c.version, c.index))
			c.mutations[i] = mutation{opSet, key, m.value}
			c.writes = append(c.writes, keyRange{key, key + "\x00"})
		case kv.SetVersionstampedValue:
			c.mutations[i] = mutation{opSet, m.key, stamped(m.value, makeStamp(c.version, c.index))}
		}
	}
}

// mustStore reports whether a group without mutations must be written for its version's sake, also if all its commits
// have failed.
func (e *engine) mustStore(version int64) bool {
	return e.durable && version-e.stored >= reopenJump/4
}

// apply writes the group. While it runs, snapshots past the window are reaped: bbolt cannot grow its map below an
// open one.
func (e *engine) apply(version int64, batch []mutation) error {
	if e.hooks.Apply != nil {
		if err := e.hooks.Apply(); err != nil {
			return err
		}
	}
	if !e.durable {
		e.closeIdle()
		return e.store.apply(version, batch)
	}
	done := make(chan struct{})
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-done:
				return
			case <-e.clock.After(time.Second):
				e.reap()
			}
		}
	}()
	err := e.store.apply(version, batch)
	close(done)
	<-stopped
	if e.hooks.Synced != nil {
		err = e.hooks.Synced(err)
	}
	return err
}

// endGroup publishes the group, or marks the store as failed.
func (e *engine) endGroup(version int64, changed, stored bool, failed error) {
	var dead *snapshot
	e.mu.Lock()
	if failed != nil {
		e.failed = failed
	} else {
		if changed {
			dead = e.retireLocked(version)
			e.changed = version
		}
		if stored {
			e.stored = version
		}
		e.version = version
	}
	e.applying = false
	e.groups.Add(1)
	e.published.Broadcast()
	e.mu.Unlock()
	if dead != nil {
		dead.close()
	}
}
