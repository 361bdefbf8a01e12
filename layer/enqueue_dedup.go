package layer

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/guard"
	"fdbfifo/layer/internal/rec"
)

// De-duplication. A message with a dedup id is accepted once and leaves an entry. While the entry lasts, a second
// message with the id is not enqueued, and its sender gets the id of the first. An entry lasts for the queue's window,
// which begins with the first message and does not slide. If the queue's configuration says so, the entry lasts instead
// while the message is in the queue or among its dead letters. In the window the entry outlives ack, cancel and
// dead-lettering, but not a purge.
//
// A message costs a point read, with a conflict, and a write. So two messages with the same id exclude each other, and
// messages with different ids never do.
//
// A purge cannot clear the entries of the purged items at a bounded cost, because the keys of entries begin with the
// dedup id. The purge leaves a note for the group or the queue instead. An entry older than the note is void, unless
// its item is still there, for example in flight. A sweep clears the other entries when their time is over.

// contentIDSize is the length of the dedup id that contentID makes of a body, in bytes.
const contentIDSize = len("sha256:") + 2*sha256.Size

// contentID returns the dedup id that stands for a body: "sha256:" and the hash. A message sent with this text as its
// DedupID is a duplicate of a message with this body, too.
func contentID(body []byte) string {
	sum := sha256.Sum256(body)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// dedupID returns the dedup id of the i-th message: its own or, with DedupByContent, that of its body. "" = the message
// is not de-duplicated, because it has no id, or because it is not a new message (redriven).
func (e *enqueuing) dedupID(i int, c *Config) string {
	if e.redriven {
		return ""
	}
	if id := e.msgs[i].DedupID; id != "" || !c.DedupByContent {
		return id
	}
	if e.contents == nil {
		e.contents = make([]string, len(e.msgs)) // for all attempts
	}
	if e.contents[i] == "" {
		e.contents[i] = contentID(e.msgs[i].Body)
	}
	return e.contents[i]
}

// meeting is the state of a dedup id during the enqueues of a transaction: its stored entry, and whether the entry
// makes duplicates.
type meeting struct {
	stored kv.Future[[]byte] // the read of the entry
	entry  rec.DedupEntry    // the stored entry, or the one that this transaction has written; zero = there is none
	known  bool              // the entry holds: a message with the id is a duplicate
	// The reads that decide whether an entry still holds: of the notes of the last purges, of its group and of the
	// queue, and of the keys item and dead, by which its item is found.
	purges, places []keyRead
}

// keyRead is a read of a key, under way.
type keyRead struct {
	key  []byte
	read kv.Future[[]byte]
}

// meet reads the dedup entries of the messages' dedup ids, and decides which of them still hold. The result is by the
// keys of the entries. It writes nothing. The reads of all entries are under way together.
//
// Footprint: a conflict on the entry of each id, and on the keys that decide whether the entry still holds: item and
// dead, or purged and the field purged of meta. After a purge, decide reads item and dead too, one entry after the
// other.
func (w *txn) meet(all []*enqueuing, c *Config) (map[string]*meeting, error) {
	var met map[string]*meeting
	var order []string
	for _, e := range all {
		for i := range e.msgs {
			id := e.dedupID(i, c)
			if id == "" {
				continue
			}
			key := string(dedupKeyOf(w, e, i, id, c))
			if met[key] == nil {
				setIn(&met, key, &meeting{stored: guard.Dedup.Get(w.tx, []byte(key))})
				order = append(order, key)
			}
		}
	}
	for _, key := range order {
		if err := w.recall(met[key], []byte(key), c); err != nil {
			return nil, err
		}
	}
	for _, key := range order {
		if err := w.decide(met[key]); err != nil {
			return nil, err
		}
	}
	return met, nil
}

// recall waits for an entry, and starts the reads that decide whether the entry still holds, with conflicts:
//
//   - Without a time (UntilMS 0) the entry holds as long as its item is there: the keys item and dead, see seek.
//   - With a time that is not over (moment.lasts) the entry holds until then, unless a purge came since (decide): the
//     key purged of its group, and the field purged of meta.
//   - With a time that is over the entry does not hold, and nothing is read.
func (w *txn) recall(m *meeting, key []byte, c *Config) error {
	entry, found, err := waitRow(w.ctx, m.stored, "dedup entry", key, rec.UnpackDedupEntry)
	if err != nil || !found {
		return err
	}
	m.entry = entry
	now, err := w.moment()
	if err != nil {
		return err
	}
	switch {
	case m.entry.UntilMS == 0:
		return w.seek(m)
	case now.lasts(m.entry, c.DedupWindow):
		for _, key := range [][]byte{w.keys.purged(m.entry.Group), w.keys.meta(metaPurged)} {
			m.purges = append(m.purges, keyRead{key, guard.DedupPurge.Get(w.tx, key)})
		}
	}
	return nil
}

// seek starts looking for the item of an entry, in the queue and among the dead letters: for the keys item and dead,
// with a conflict on both. It reads only keys, and no body.
func (w *txn) seek(m *meeting) error {
	id := rememberedID(m.entry)
	for _, key := range [][]byte{w.keys.item(id), w.keys.dead(id)} {
		if err := guard.DedupItem.Read(w.tx, kv.SingleKey(key)); err != nil {
			return err
		}
		m.places = append(m.places, keyRead{key, w.read.GetKey(kv.FirstGreaterOrEqual(key))})
	}
	return nil
}

// decide waits for the reads that recall has started, and sets known: whether the entry still holds. If there was a
// purge since the entry was written, decide looks for the item of the entry (seek). Then the entry holds only if the
// item is in the queue or among the dead letters.
func (w *txn) decide(m *meeting) error {
	if m.purges != nil {
		purged, err := w.purgedSince(m)
		if err != nil {
			return err
		}
		if m.known = !purged; m.known {
			return nil
		}
		if err := w.seek(m); err != nil {
			return err
		}
	}
	for _, place := range m.places {
		key, err := place.read.Wait(w.ctx)
		if err != nil {
			return fmt.Errorf("look for item: %w", err)
		}
		m.known = m.known || bytes.Equal(key, place.key)
	}
	return nil
}

// purgedSince reports whether an entry's group or the queue may have been purged since the enqueue that wrote the
// entry. It compares the clocks (read version + offset) of both. If they are equal it says yes, and then the entry's
// item decides.
func (w *txn) purgedSince(m *meeting) (bool, error) {
	for _, p := range m.purges {
		note, found, err := waitRow(w.ctx, p.read, "purge", p.key, rec.UnpackInstant)
		if err != nil {
			return false, err
		}
		if found && m.entry.Clock <= note.Clock {
			return true, nil
		}
	}
	return false, nil
}

// remember writes the dedup entry of an accepted message, under key. From then on a message with the same dedup id is a
// duplicate, also a later one of this transaction.
func (a *appending) remember(m *meeting, key []byte, id ID) {
	m.entry, m.known = rec.DedupEntry{Group: id.Group, Index: id.Index, Random: id.Random, Clock: a.now}, true
	if !a.config.DedupForPending {
		m.entry.UntilMS = a.nowMS + a.config.DedupWindow.Milliseconds()
	}
	a.tx.Set(key, m.entry.Pack())
}

// renamed points the dedup entry of a message which continues under another id, in another place, to the new id. If
// there is no entry, if the entry cannot be read, or if it is of another message than old, renamed writes nothing.
//
// Footprint: reads the entry with a conflict, and writes it. Without a dedup id it reads nothing.
func (w *txn) renamed(dedupID string, old, id ID) error {
	if dedupID == "" {
		return nil
	}
	c, err := w.config()
	if err != nil {
		return err
	}
	key := w.keys.dedupKey(c.DedupInGroup, id.Group, dedupID)
	r, found, err := waitRow(w.ctx, guard.DedupRename.Get(w.tx, key), "dedup entry", key, rec.UnpackDedupEntry)
	if w.skipsRow(err) {
		return nil
	}
	if err != nil || !found || rememberedID(r) != old {
		return err
	}
	r.Group, r.Index, r.Random = id.Group, id.Index, id.Random
	w.tx.Set(key, r.Pack())
	return nil
}

// notePurge writes that a group, or the queue if group is nil, is purged now: the key purged, or the field purged of
// meta. Dedup entries that are older are void, unless their items are still there.
//
// Footprint: a read conflict on the note, so that the note's time does not go back.
func (w *txn) notePurge(group *string) error {
	clock, err := w.clock()
	if err != nil {
		return err
	}
	key := w.keys.meta(metaPurged)
	if group != nil {
		key = w.keys.purged(*group)
	}
	if err := guard.PurgeNote.Read(w.tx, kv.SingleKey(key)); err != nil {
		return err
	}
	w.tx.Set(key, rec.Instant{Clock: clock, AtMS: w.nowMS}.Pack())
	return nil
}
