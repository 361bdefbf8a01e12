package layer

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

// The archive of a queue keeps, for as long as its configuration says, what was finished: acked, or taken. An item goes
// there in the transaction that finishes it, under its own id, so that a group's items lie together and in their order;
// its parts stay where they are. Beside them, each ack leaves one entry that names its items. The entries are in the
// order of completion: within a group exactly, across groups by the read versions of the acks. Listings by time and the
// sweep go by the entries.
//
// An ack does not read items, unless the queue has an archive: then it reads those that it finishes, beside its lock,
// and writes each again, and the entry.
//
// The value of an archived item is when and where it was completed, and then the item's value as it was:
//
//	byte 0       version: 1
//	uvarint      length of the tuple that follows, in bytes
//	tuple        (completed (ms), place, and index and random of the first item of its entry)
//	rest         the value of the item, see envelope.go
const archiveVersion = 1

// archiveClaimBytes bounds the values of the items that a claim of a queue with an archive is given: its ack writes them
// all again, in one transaction.
const archiveClaimBytes = 4 << 20

// completion is where in the order of completion the items of one ack stand.
type completion struct {
	place  int64 // the read version of the ack, as indexes count
	index  int64 // of the first item
	random uuid.UUID
}

// archived is the value of an archived item.
type archived struct {
	completedMS int64
	at          completion
	item        []byte // the item's value
}

func (a *archived) pack() []byte {
	packed := tuple.Tuple{a.completedMS, a.at.place, a.at.index, a.at.random}.Pack()
	value := append(make([]byte, 0, 4+len(packed)+len(a.item)), archiveVersion)
	value = binary.AppendUvarint(value, uint64(len(packed)))
	return append(append(value, packed...), a.item...)
}

// unpackArchived takes the value of an archived item apart; item aliases value.
func unpackArchived(key, value []byte) (*archived, error) {
	if len(value) == 0 || value[0] != archiveVersion {
		return nil, corrupt(key, fmt.Errorf("archived item of unknown version"))
	}
	packed, item, ok := cutCounted(value[1:])
	if !ok {
		return nil, corrupt(key, fmt.Errorf("archived item cut short"))
	}
	a := &archived{item: item}
	t := keyDecoder{rest: packed}
	a.completedMS, a.at.place, a.at.index, a.at.random = t.int(), t.int(), t.int(), t.uuid()
	if t.err == nil && len(t.rest) > 0 {
		t.err = fmt.Errorf("%d bytes too many", len(t.rest))
	}
	if t.err != nil {
		return nil, corrupt(key, t.err)
	}
	return a, nil
}

// archiveEntry is the value of an entry: what one ack has finished.
type archiveEntry struct {
	completedMS int64
	group       string
	items       []delivered
}

func (e *archiveEntry) pack() []byte {
	t := make(tuple.Tuple, 2, 2+3*len(e.items))
	t[0], t[1] = e.completedMS, e.group
	for _, d := range e.items {
		t = append(t, d.index, d.random, d.parts)
	}
	return t.Pack()
}

func unpackArchiveEntry(key, value []byte) (*archiveEntry, error) {
	d := keyDecoder{rest: value}
	e := &archiveEntry{completedMS: d.int(), group: d.str()}
	for d.err == nil && len(d.rest) > 0 {
		e.items = append(e.items, delivered{index: d.int(), random: d.uuid(), parts: d.int()})
	}
	if d.err == nil && len(e.items) == 0 {
		d.err = fmt.Errorf("no items")
	}
	if d.err != nil {
		return nil, corrupt(key, d.err)
	}
	return e, nil
}

// archives reports whether what is finished is kept.
func (w *work) archives() (bool, error) {
	config, err := w.config()
	return config.Archive > 0, err
}

// archive keeps the items that are being finished. values are theirs; one that is nil is not there. The caller then
// removes them, without their parts.
func (w *work) archive(group string, items []delivered, values [][]byte) error {
	if len(items) == 0 {
		return nil
	}
	place, err := w.clock()
	if err != nil {
		return err
	}
	at := completion{place: place, index: items[0].index, random: items[0].random}
	for i, d := range items {
		a := archived{completedMS: w.nowMS, at: at, item: values[i]}
		if values[i] != nil {
			w.tx.Set(w.q.keys.archive(d.id(group)), a.pack())
		}
	}
	e := archiveEntry{completedMS: w.nowMS, group: group, items: items}
	w.tx.Set(w.q.keys.archived(at), e.pack())
	return nil
}

// finishing is the values of the items that a settlement is about to finish, being read if the queue has an archive.
type finishing struct {
	gets map[ID]kv.Future[[]byte]
	run  kv.Future[[]kv.KV] // of all items of a claim
}

// readFinishing starts reading what s will finish, as far as that can be known before the lock is read.
func (s *settlement) readFinishing(w *work) {
	s.finishing = finishing{}
	if s.extends || s.keeps || w.q.Config().Archive == 0 {
		return
	}
	snapshot := w.tx.Snapshot()
	if n := len(s.claim.Items); len(s.ids) == 0 && s.back == nil && n > 0 {
		s.finishing.run = snapshot.GetRange(kv.Range{
			Begin: kv.FirstGreaterOrEqual(w.q.keys.item(s.claim.Items[0].ID)),
			End:   kv.FirstGreaterThan(w.q.keys.item(s.claim.Items[n-1].ID)),
		}, kv.RangeOptions{})
		return
	}
	s.finishing.gets = make(map[ID]kv.Future[[]byte], len(s.ids))
	for _, id := range s.ids {
		s.finishing.gets[id] = snapshot.Get(w.q.keys.item(id))
	}
}

// archive keeps the acked items if the queue has an archive; kept says so. An error means that nothing was written.
func (s *settlement) archive(w *work, acked []delivered) (kept bool, err error) {
	if kept, err = w.archives(); err != nil || !kept || len(acked) == 0 {
		return kept, err
	}
	group := s.claim.Group
	found := make(map[string][]byte)
	if s.finishing.run != nil {
		rows, err := s.finishing.run.Wait(w.ctx)
		if err != nil {
			return false, fmt.Errorf("read items: %w", err)
		}
		for _, row := range rows {
			found[string(row.Key)] = row.Value
		}
	}
	gets := make([]kv.Future[[]byte], len(acked))
	for i, d := range acked {
		id := d.id(group)
		key := w.q.keys.item(id)
		if v := found[string(key)]; v != nil {
			gets[i] = kv.Done(v, nil)
		} else if gets[i] = s.finishing.gets[id]; gets[i] == nil {
			gets[i] = w.tx.Snapshot().Get(key)
		}
	}
	values := make([][]byte, len(acked))
	for i := range gets {
		if values[i], err = gets[i].Wait(w.ctx); err != nil {
			return false, fmt.Errorf("read item: %w", err)
		}
	}
	return true, w.archive(group, acked, values)
}

// archived clears what has been kept for as long as the queue keeps it, or all of it if it keeps nothing any more.
func (s *sweeper) archived() error {
	config, err := s.configuration()
	if err != nil {
		return err
	}
	rest := newCursor(s.q.keys.section(nameArchived))
	for !rest.exhausted {
		var rows []kv.KV
		var cleared int64
		width, begun := archiveSweepRows, time.Now()
		_, err := kv.Run(s.ctx, s.q.db, s.q.batchOptions(), func(tx kv.Tx, a kv.Attempt) error {
			width = stepWidth(archiveSweepRows, a)
			var err error
			if rows, err = rest.read(tx.Snapshot(), width).Wait(s.ctx); err != nil {
				return fmt.Errorf("read archive: %w", err)
			}
			cleared, rows, err = s.forget(tx, rows, config.Archive)
			return err
		})
		if err != nil {
			return err
		}
		took := time.Since(begun)
		rest.passed(rows, width)
		s.report.Keys += int64(len(rows))
		s.report.Archived += cleared
		if cleared > 0 {
			rest.exhausted = false
			if s.o.Progress != nil {
				s.o.Progress(s.report)
			}
			s.q.restAfter(s.ctx, took)
		}
	}
	return nil
}

const (
	// archiveSweepRows and archiveSweepItems bound what one step of the sweep reads and clears.
	archiveSweepRows  = 100
	archiveSweepItems = 1000
)

// forget clears the archived items of the entries that are too old. It returns how many these were, and the entries that it
// has done with; it stops at the first one that is young enough.
func (s *sweeper) forget(tx kv.Tx, rows []kv.KV, keep time.Duration) (items int64, done []kv.KV, err error) {
	for i, row := range rows {
		e, err := unpackArchiveEntry(row.Key, row.Value)
		if err != nil {
			continue // Check names it
		}
		if s.q.nowMS()-e.completedMS < keep.Milliseconds() || items > 0 && items+int64(len(e.items)) > archiveSweepItems {
			return items, rows[:i], nil
		}
		for _, d := range e.items {
			id := d.id(e.group)
			tx.Clear(s.q.keys.archive(id))
			if d.parts > 0 {
				tx.ClearRange(s.q.keys.parts(id))
			}
		}
		items += int64(len(e.items))
		tx.Clear(row.Key)
	}
	return items, rows, nil
}
