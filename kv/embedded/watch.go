package embedded

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/tidwall/btree"

	"fdbfifo/kv"
)

// watch waits for the value of a key to differ from its baseline.
type watch struct {
	key      string
	baseline value
	slots    *watchSlots

	// unknown says that the baseline is still being read, and written what the transaction has done to the key since.
	// Both are guarded by the transaction's mutex.
	unknown bool
	written []write

	// The place among the watches on key; guarded by the table's mutex.
	index int

	mu    sync.Mutex // guards what follows
	done  chan struct{}
	err   error
	ended bool
	at    registry     // where it is registered; nil before
	told  func(*watch) // called at the end, if there is one; must not wait for anything
}

// write is what a transaction has done to a watched key: a value, or one that it does not know.
type write struct {
	value value
	known bool
}

// registry is the place where a committed watch is registered.
type registry interface{ remove(w *watch) }

// watchSlots counts the watches of a DB, from their creation on.
type watchSlots struct {
	limit int64
	used  atomic.Int64
}

// create takes a slot; error 1032 if there is none.
func (s *watchSlots) create(key string, baseline value) (*watch, error) {
	if s.used.Add(1) > s.limit {
		s.used.Add(-1)
		return nil, codeError(kv.CodeTooManyWatches)
	}
	return &watch{key: key, baseline: baseline, slots: s, done: make(chan struct{})}, nil
}

// enter notes where the watch is registered; false if it has ended.
func (w *watch) enter(at registry) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.ended {
		w.at = at
	}
	return !w.ended
}

// end completes the watch, once, and frees its slot.
func (w *watch) end(err error) {
	w.mu.Lock()
	if w.ended {
		w.mu.Unlock()
		return
	}
	w.ended, w.err = true, err
	w.slots.used.Add(-1) // before: a caller that has seen the end may set another watch
	close(w.done)
	at := w.at
	w.mu.Unlock()
	if at != nil {
		at.remove(w)
	}
	if w.told != nil {
		w.told(w)
	}
}

// watchTable holds the registered watches by key.
type watchTable struct {
	mu     sync.Mutex // guards what follows
	closed bool
	keys   btree.Map[string, []*watch]
	held   []mutation // of groups whose watches a hook holds back
}

// add registers a watch that was committed, unless it has ended already.
func (t *watchTable) add(w *watch) (added bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || !w.enter(t) {
		return false
	}
	same, _ := t.keys.Get(w.key)
	w.index = len(same)
	t.keys.Set(w.key, append(same, w))
	return true
}

func (t *watchTable) remove(w *watch) {
	t.mu.Lock()
	defer t.mu.Unlock()
	same, _ := t.keys.Get(w.key)
	last := len(same) - 1
	same[w.index] = same[last]
	same[w.index].index = w.index
	same[last] = nil
	if last == 0 {
		t.keys.Delete(w.key)
	} else {
		t.keys.Set(w.key, same[:last])
	}
}

// touched returns the watches on keys that the batch wrote.
func (t *watchTable) touched(batch []mutation) []*watch {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.keys.Len() == 0 {
		return nil
	}
	var hit []*watch
	for _, m := range batch {
		if m.kind != opClear {
			same, _ := t.keys.Get(m.key)
			hit = append(hit, same...)
			continue
		}
		t.keys.Ascend(m.key, func(key string, same []*watch) bool {
			if key >= m.value {
				return false
			}
			hit = append(hit, same...)
			return true
		})
	}
	return hit
}

func (t *watchTable) close() {
	t.mu.Lock()
	t.closed = true
	var all []*watch
	t.keys.Scan(func(_ string, same []*watch) bool {
		all = append(all, same...)
		return true
	})
	t.mu.Unlock()
	for _, w := range all {
		w.end(&kv.Error{Code: kv.CodeOperationCancelled, Cause: errClosed})
	}
}

// fire ends the watches whose key the batch has given another value.
func (e *engine) fire(batch []mutation) {
	t := e.watches
	if e.hooks.HoldWatches != nil {
		if e.hooks.HoldWatches() {
			t.held = append(t.held, batch...)
			return
		}
		batch = append(t.held, batch...)
		t.held = nil
	}
	e.compare(t.touched(batch))
}

// register adds watches, and then ends those whose key has changed since their transaction read it. So no change is
// missed: register sees earlier commits, and later commits see the watch.
func (e *engine) register(watches []*watch) {
	added := make([]*watch, 0, len(watches))
	for _, w := range watches {
		if e.watches.add(w) {
			added = append(added, w)
			continue
		}
		w.end(&kv.Error{Code: kv.CodeOperationCancelled, Cause: errClosed})
	}
	e.compare(added)
}

// compare ends those watches whose baseline differs from the newest value.
func (e *engine) compare(watches []*watch) {
	if len(watches) == 0 {
		return
	}
	s, err := e.acquireNewest()
	if err != nil {
		for _, w := range watches {
			w.end(err)
		}
		return
	}
	defer e.release(s)
	for _, w := range watches {
		var v value
		err := s.read(func(b view) (err error) {
			v, err = b.get(w.key)
			return err
		})
		if err != nil {
			w.end(err)
		} else if v != w.baseline {
			w.end(nil)
		}
	}
}

// Wait implements kv.Future.
func (w *watch) Wait(ctx context.Context) (struct{}, error) {
	if !isClosed(w.done) {
		select {
		case <-w.done:
		case <-ctx.Done():
			if !isClosed(w.done) {
				w.Cancel()
				return struct{}{}, context.Cause(ctx)
			}
		}
	}
	return struct{}{}, w.err
}

// Ready implements kv.Future.
func (w *watch) Ready() bool { return isClosed(w.done) }

// Cancel implements kv.Future. It frees the watch's slot.
func (w *watch) Cancel() { w.end(codeError(kv.CodeOperationCancelled)) }

// timedWatch is a watch of a transaction with a timeout, which ends it as long as it was not committed.
type timedWatch struct {
	*watch
	tx *transaction
	of *attempt
}

func (w *timedWatch) Wait(ctx context.Context) (struct{}, error) {
	for w.tx.uncommitted(w.of) && !w.Ready() {
		left, _ := w.tx.left()
		select {
		case <-w.done:
		case <-ctx.Done():
			return w.watch.Wait(ctx)
		case <-w.tx.db.clock.After(left):
			w.tx.expire(w.of)
		}
	}
	return w.watch.Wait(ctx)
}
