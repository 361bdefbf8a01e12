package layer

import (
	"fmt"

	"fdbfifo/kv"
)

// A queue may bound the messages of a group (MaxWaiting). An enqueue does not count them: it asks for the key of the item
// that would be one too many. That is one key read a group, at snapshot, so that enqueues still do not conflict with each
// other; what those under way at the same time add is not seen.

// readRoom starts reading, for each group, whether there is room for all messages of the transaction.
func (a *appending) readRoom(all []*enqueuing) {
	if a.config.MaxWaiting == 0 {
		return
	}
	adding := make(map[string]int)
	var groups []string // in the order of the messages, so that a simulation can be repeated
	for _, e := range all {
		for i := range e.msgs {
			group := e.msgs[i].Group
			if e.redriven {
				continue
			}
			if adding[group]++; adding[group] == 1 {
				groups = append(groups, group)
			}
		}
	}
	for _, group := range groups {
		t, n := a.tails[group], adding[group]
		if n > a.config.MaxWaiting {
			t.full = kv.Done(t.items.Begin, nil) // whatever there is
			continue
		}
		t.full = a.readOverflow(t, n)
	}
}

// readOverflow starts reading the item that is one too many if n are added.
func (a *appending) readOverflow(t *tail, n int) kv.Future[[]byte] {
	at := kv.FirstGreaterOrEqual(t.items.Begin)
	at.Offset += a.config.MaxWaiting - n
	return a.tx.Snapshot().GetKey(at)
}

// room looks for room for the messages of e, without its duplicates. If there is none it returns why. It sees what was
// written for the enqueues before.
func (a *appending) room(e *enqueuing) (*FullError, error) {
	if a.config.MaxWaiting == 0 || e.redriven {
		return nil, nil
	}
	adding := make(map[string]int)
	first := make(map[*meeting]bool)
	var groups []string
	for i := range e.msgs {
		group := e.msgs[i].Group
		if id := e.dedupID(i, &a.config); id != "" {
			met := a.met[string(a.q.keys.dedupKey(a.config.DedupScope, group, id))]
			if met.lasts || first[met] {
				continue
			}
			first[met] = true
		}
		if adding[group]++; adding[group] == 1 {
			groups = append(groups, group)
		}
	}
	for _, group := range groups {
		t, n := a.tails[group], adding[group]
		k, err := t.full.Wait(a.ctx)
		if err != nil {
			return nil, fmt.Errorf("read room: %w", err)
		}
		if !t.overflows(k) {
			continue
		}
		full := &FullError{Group: group, Adding: int64(n), Max: int64(a.config.MaxWaiting)}
		if n > a.config.MaxWaiting {
			return full, nil
		}
		// Not for all of the transaction; for these alone?
		if k, err = a.readOverflow(t, n).Wait(a.ctx); err != nil {
			return nil, fmt.Errorf("read room: %w", err)
		}
		if t.overflows(k) {
			return full, nil
		}
	}
	return nil, nil
}

// overflows reports whether k, as readOverflow reads it, is an item of the group. The begin of the range, which is none,
// stands for one.
func (t *tail) overflows(k []byte) bool { return t.items.Contains(k) }
