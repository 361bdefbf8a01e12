package layer

import (
	"fmt"

	"fdbfifo/kv"
)

// A queue may bound the messages of a group (MaxWaiting). An enqueue does not count messages, but reads the key of the
// item which would be one too many: one key read a group, at snapshot, so that enqueues still do not conflict with each
// other. Therefore enqueues under way at the same time do not see each other's messages.

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
			t.full = kv.Done(t.items.Begin, nil) // too many, whatever the group has
			continue
		}
		t.full = a.readOverflow(t, n)
	}
}

// readOverflow starts reading the item too many if n are added. Example: MaxWaiting 100, n 3: the 98th item.
func (a *appending) readOverflow(t *tail, n int) kv.Future[[]byte] {
	at := kv.FirstGreaterOrEqual(t.items.Begin)
	at.Offset += a.config.MaxWaiting - n
	return a.tx.Snapshot().GetKey(at)
}

// room looks for room for the messages of e, except for duplicates. The error returned says why there is no room. room
// sees the writes of the transaction's earlier enqueues.
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
		// There is no room for the whole transaction; is there room for e alone?
		if k, err = a.readOverflow(t, n).Wait(a.ctx); err != nil {
			return nil, fmt.Errorf("read room: %w", err)
		}
		if t.overflows(k) {
			return full, nil
		}
	}
	return nil, nil
}

// overflows reports whether the key read by readOverflow is an item, so that MaxWaiting would be exceeded. readRoom
// passes the range's first key to say "yes" without a read.
func (t *tail) overflows(k []byte) bool { return t.items.Contains(k) }
