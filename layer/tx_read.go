package layer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/guard"
	"fdbfifo/layer/internal/lanes"
	"fdbfifo/layer/internal/rec"
)

// view is the queue at one version of the database. A view only reads, so a function with a view and without a txn
// writes nothing. Only one goroutine may use a view.
type view struct {
	ctx   context.Context
	q     *Queue // for facts that the handle knows without a read
	keys  subspace
	read  kv.ReadTx // reads at snapshot; in a guarded view with conflicts
	nowMS int64     // by the handle's clock, when the view was made
	at    time.Time // nowMS by the system's monotonic clock
}

// viewOf returns a view that reads by read.
func (q *Queue) viewOf(ctx context.Context, read kv.ReadTx) view {
	return view{ctx: ctx, q: q, keys: q.keys, read: read, at: time.Now(), nowMS: q.nowMS()}
}

// byMonotonic converts ms, a time by the handle's clock, to the system's monotonic clock. The result does not change if
// the wall clock is set later. It reads no key.
func byMonotonic(v *view, ms int64) time.Time {
	return v.at.Add(time.Duration(ms-v.nowMS) * time.Millisecond)
}

// moment returns the present by two clocks, which together tell whether a row is old: the handle's clock, and the read
// version plus the queue's offset (see type moment in store_values.go).
func (v *view) moment() (moment, error) {
	rv, err := v.read.ReadVersion().Wait(v.ctx)
	return moment{nowMS: v.nowMS, clock: rv + v.q.offset, opened: v.q.opened.clock, open: v.at.Sub(v.q.opened.at)}, err
}

// momentOf returns the present by both clocks, as view.moment does, for a transaction that has no view.
func momentOf(ctx context.Context, q *Queue, tx kv.Tx) (moment, error) {
	v := q.viewOf(ctx, tx.Snapshot())
	return v.moment()
}

// view runs fn, which only reads, at snapshot, in a transaction of its own. fn may run several times. The transaction
// also reads the configuration (meta), unless the handle's copy is fresh. The error is ErrNoQueue if the queue is gone,
// and ErrClosed if the handle is closed.
func (q *Queue) view(ctx context.Context, fn func(v *view) error) error {
	return q.readOnly(ctx, txFor(q, "read"), func(tx kv.Tx, _ kv.Attempt) error {
		v := q.viewOf(ctx, tx.Snapshot())
		return fn(&v)
	})
}

// readOnly is view with the given options of the transaction. fn gets the transaction itself, and must only read.
func (q *Queue) readOnly(ctx context.Context, o kv.TxOptions, fn func(tx kv.Tx, a kv.Attempt) error) error {
	if q.isClosed() {
		return ErrClosed
	}
	_, err := kv.Run(ctx, q.db, o, func(tx kv.Tx, a kv.Attempt) error {
		follow := q.follow(tx)
		if err := fn(tx, a); err != nil {
			return err
		}
		_, err := follow.wait(ctx) // ErrNoQueue if the queue is being dropped: without its keys the result is wrong
		return err
	})
	return err
}

// viewFor is Queue.view for a look that has a result. If the view fails, the result is the zero value. look may run
// several times, and the result is that of the last run.
func viewFor[T any](ctx context.Context, q *Queue, look func(v *view) (T, error)) (T, error) {
	var result T
	err := q.view(ctx, func(v *view) (err error) {
		result, err = look(v)
		return err
	})
	if err != nil {
		var none T
		return none, err
	}
	return result, nil
}

// guarded returns the transaction's view with reads that add read conflicts. g names the reason (package guard).
func (w *txn) guarded(g guard.Guard) *view {
	v := w.view
	v.read = g.Reads(w.tx)
	return &v
}

// known is the configuration that the handle has read last. A transaction that writes must use txn.config instead.
func (v *view) known() Config { return v.q.knownConfig() }

// skipsRow reports whether err says that a row cannot be read (ErrCorrupt), and counts the row. The caller then
// continues without the row. So an unreadable hint or timer stops only its own group. false = err is nil or another
// error, which the caller must return. A call that needs a lock, a mark, an item or the configuration must not use
// skipsRow for it. But a sweep, or a withdrawal of grants, may leave out the group of such a row, and an unreadable
// pause counts as a pause.
func (q *Queue) skipsRow(err error) bool {
	if !isCorrupt(err) {
		return false
	}
	q.unreadable.Add(1)
	return true
}

// skipsRow is Queue.skipsRow.
func (v *view) skipsRow(err error) bool { return v.q.skipsRow(err) }

// waitRow waits for the read of the row with the given key, and returns its value as unpack unpacks it. found is false
// if there is no row, or, with an error, if it cannot be read: then the error wraps ErrCorrupt. row names the row in
// the text of an error of the read.
func waitRow[T any](
	ctx context.Context, read kv.Future[[]byte], row string, key []byte, unpack func(key, value []byte) (T, error),
) (unpacked T, found bool, err error) {
	value, err := read.Wait(ctx)
	if err != nil {
		return unpacked, false, fmt.Errorf("read %s: %w", row, err)
	}
	if value == nil {
		return unpacked, false, nil
	}
	unpacked, err = unpack(key, value)
	return unpacked, err == nil, err
}

// readLock returns the record of a lane: the value of its lock, or of its hold if the lane is a single item. nil =
// there is no record, so nothing holds or stops the lane. It reads at snapshot, and with a conflict in a guarded view.
// Errors: of the read, or ErrCorrupt.
func (v *view) readLock(lane string) (*rec.Record, error) {
	return v.waitLock(lane, v.read.Get(v.keys.lock(lane)))
}

// waitLock is readLock for a read of the lock that has begun.
func (v *view) waitLock(lane string, read kv.Future[[]byte]) (*rec.Record, error) {
	r, _, err := waitRow(v.ctx, read, "lock", v.keys.lock(lane), rec.UnpackRecord)
	return r, err
}

// readItem makes an item from its row, which the caller has read. It reads the further parts of a large body (part).
func (v *view) readItem(row kv.KV) (Item, error) {
	p, err := v.keys.parse(row.Key)
	if err != nil {
		return Item{}, err
	}
	e, body, err := rec.OpenEnvelope(row.Value)
	if err != nil {
		return Item{}, rec.Corrupt(row.Key, err)
	}
	return v.assemble(p.itemID(), e, body, v.known().retro())
}

// assemble makes an item from its id, its envelope and the first part of its body. It reads the other parts (part). If
// one is missing, the error wraps ErrCorrupt. delay says how the queue delays messages that have no delay of their own.
func (v *view) assemble(id ID, e rec.Envelope, body []byte, delay retro) (Item, error) {
	if e.Parts > 0 {
		rows, err := v.read.GetRange(v.keys.parts(id).Selectors(), kv.RangeOptions{}).Wait(v.ctx)
		if err != nil {
			return Item{}, fmt.Errorf("read parts: %w", err)
		}
		whole := append(make([]byte, 0, e.Size), body...)
		for _, r := range rows {
			whole = append(whole, r.Value...)
		}
		if int64(len(rows)) != e.Parts || int64(len(whole)) != e.Size {
			return Item{}, rec.Corrupt(v.keys.item(id), fmt.Errorf("%d bytes in %d parts, should be %d in %d",
				len(whole), len(rows), e.Size, e.Parts))
		}
		body = whole
	}
	return Item{
		ID: id, Body: body, Headers: e.Headers, Enqueued: fromMillis(e.EnqueuedMS), DeliverAt: delay.deliverAt(&e),
		DedupID: e.DedupID,
	}, nil
}

// rowsOf reads the first rows of each range, all at the same time, and returns them together. It reads up to limit rows
// of a range; 0 = all, and then full says nothing. Otherwise full says that a range has limit rows, and so may have
// more.
func (v *view) rowsOf(ranges []kv.KeyRange, limit int) (rows []kv.KV, full bool, err error) {
	reads := make([]kv.Future[[]kv.KV], len(ranges))
	for i, r := range ranges {
		reads[i] = v.read.GetRange(r.Selectors(), kv.RangeOptions{Limit: limit})
	}
	for _, read := range reads {
		some, err := read.Wait(v.ctx)
		if err != nil {
			return nil, false, err
		}
		rows, full = append(rows, some...), full || len(some) == limit
	}
	return rows, full, nil
}

// firstItem returns the first key in a range; nil = the range is empty. The range usually has the items of a group
// (keys item) or of a lane (keys lane). Some callers pass other ranges, for example all locks and holds. firstItem
// reads no value. It reads at snapshot, or with a conflict if the view's reads have conflicts. Errors: of the read.
func (v *view) firstItem(items kv.KeyRange) ([]byte, error) {
	k, err := v.read.GetKey(kv.FirstGreaterOrEqual(items.Begin)).Wait(v.ctx)
	if err != nil {
		return nil, fmt.Errorf("read head: %w", err)
	}
	if !items.Contains(k) {
		return nil, nil
	}
	return k, nil
}

// readHead returns the id of the first item of a lane. It reads as firstItem does. For a hold it reads nothing, and
// returns the item of the hold. found is false if the lane is empty. It is also false with an error, which wraps
// ErrCorrupt if the key of the item cannot be read.
func (v *view) readHead(lane string) (id ID, found bool, err error) {
	if id, held := holdOf(lane); held {
		return id, true, nil
	}
	items := v.keys.items(lane)
	key, err := v.firstItem(items)
	if err != nil || key == nil {
		return id, false, err
	}
	p, err := v.keys.parseItem(key, lanes.GroupOf(lane), items)
	return p.itemID(), err == nil, err
}

// readAttempt returns the record of an item's failed attempts (attempt); the zero value = it has never failed. A record
// changes only in a transaction that reads the lock (or hold) of a claim of the item with a conflict, or adds a write
// conflict on it. So a caller that reads this lock or hold with a conflict needs no other conflict.
func (v *view) readAttempt(id ID) (rec.Attempt, error) {
	key := v.keys.attempt(id)
	record, _, err := waitRow(v.ctx, v.read.Get(key), "attempts", key, rec.UnpackAttempt)
	return record, err
}

// readAttempts returns the records of failed attempts (attempt) of items of one group, which must be in the order of
// their keys. An item without a record has never failed, and is not in the result. Few items have a record, so one
// range read finds all of them. But the items of a lane may be far apart in their group, and many items between them
// may have records. Then each record is read by its key. of must not be empty.
func (v *view) readAttempts(of []ID) (map[ID]rec.Attempt, error) {
	most := len(of) + 1
	rows, err := v.read.GetRange(kv.Range{
		Begin: kv.FirstGreaterOrEqual(v.keys.attempt(of[0])), End: kv.FirstGreaterThan(v.keys.attempt(of[len(of)-1])),
	}, kv.RangeOptions{Limit: most}).Wait(v.ctx)
	if err == nil && len(rows) == most {
		rows, err = v.readRows(of, v.keys.attempt)
	}
	if err != nil {
		return nil, fmt.Errorf("read attempts: %w", err)
	}
	records := make(map[ID]rec.Attempt, len(rows))
	for _, row := range rows {
		p, err := v.keys.parse(row.Key)
		if err != nil {
			return nil, err
		}
		if records[p.itemID()], err = rec.UnpackAttempt(row.Key, row.Value); err != nil {
			return nil, err
		}
	}
	return records, nil
}

// readRows reads a row of each item, and returns the rows that there are, in the order of the items. key returns the
// key of an item's row: of the item itself, of its attempts, or of its dead letter.
func (v *view) readRows(of []ID, key func(ID) []byte) (rows []kv.KV, err error) {
	reads := make([]kv.Future[[]byte], len(of))
	for i, id := range of {
		reads[i] = v.read.Get(key(id))
	}
	for i, id := range of {
		value, err := reads[i].Wait(v.ctx)
		if err != nil {
			return nil, err
		}
		if value != nil {
			rows = append(rows, kv.KV{Key: key(id), Value: value})
		}
	}
	return rows, nil
}

// readPace starts reading the group's row of its rate (pace): up to which time the rate is used up. nil = nothing is
// read, because the configuration that the handle knows has no MaxRate.
func (v *view) readPace(group string) kv.Future[[]byte] {
	if v.known().MaxRate.isNone() {
		return nil
	}
	return v.read.Get(v.keys.pace(group))
}

// waitPace returns the result of the read that readPace has started; f must not be nil. A group without a row has the
// zero value: its rate is not used up. See repairedPace for a time far ahead.
func (v *view) waitPace(group string, f kv.Future[[]byte]) (p rec.Pace, err error) {
	p, _, err = waitRow(v.ctx, f, "pace", v.keys.pace(group), rec.UnpackPace)
	return repairedPace(p, v.known().MaxRate, v.nowMS), err
}

// readPaceTotal reads how far the rate of the whole queue is used up (the field pace of meta). All portions that
// handles have drawn are counted as used. A value that cannot be read counts as one that is far ahead, see
// repairedPace. The next draw replaces it.
func (v *view) readPaceTotal(rate Rate) (p rec.Pace, err error) {
	key := v.keys.meta(metaPace)
	p, _, err = waitRow(v.ctx, v.read.Get(key), "pace of the queue", key, rec.UnpackPace)
	if v.skipsRow(err) {
		p.US, err = math.MaxInt64, nil
	}
	return repairedPace(p, rate, v.nowMS), err
}

// readPause reads the pause of the whole queue (the field paused of meta); nil = the queue is not paused. See pauseOf.
func (v *view) readPause() (*rec.Mark, error) {
	key := v.keys.meta(metaPaused)
	value, err := v.read.Get(key).Wait(v.ctx)
	if err != nil {
		return nil, fmt.Errorf("read pause: %w", err)
	}
	return v.q.pauseOf(key, value), nil
}

// pauseOf returns the pause in the value of the field paused of meta; nil = the queue is not paused. If the value
// cannot be read, the queue counts as paused, with the error as the reason, until Resume. pauseOf reads no key.
func (q *Queue) pauseOf(key, value []byte) *rec.Mark {
	m, err := rec.UnpackPause(key, value)
	if q.skipsRow(err) {
		return &rec.Mark{Kind: rec.MarkPause, Reason: err.Error()}
	}
	return m
}

// seenHead returns ErrChanged if head is not the head that the caller has seen. head is the zero ID if the group is
// empty. If seen is the zero ID, any head is right.
func seenHead(seen, head ID) error {
	switch {
	case seen == ID{} || seen == head:
		return nil
	case head == ID{}:
		return fmt.Errorf("%w: the group is empty, the head was %s", ErrChanged, seen)
	}
	return fmt.Errorf("%w: the head is %s, not %s", ErrChanged, head, seen)
}

// sawHead reads the key of the head (first item) of a lane, and returns ErrChanged if it is not seen, as seenHead does.
// If seen is the zero ID, it reads nothing.
func (v *view) sawHead(lane string, seen ID) error {
	if seen == (ID{}) {
		return nil
	}
	head, _, err := v.readHead(lane)
	if err != nil {
		return err
	}
	return seenHead(seen, head)
}

// heldLane is a lane with its record: the value of its lock or hold.
type heldLane struct {
	lane   string
	record *rec.Record
}

// A group may have thousands of lanes in flight, each with a lock of up to 95 kB. So a look at a lane does not read all
// locks of the group. It reads the lane's own lock, and the first locks of each range in which locks of intersecting
// lanes lie. One lock of an intersecting lane is enough: either it excludes the lane, or it has expired and must be
// ended first.
//
// A range may also have locks of lanes that do not intersect. Example: the views are "state" and "region,state". A look
// at the lane state=NEW reads past the locks of all regions, because one may be of (EU, NEW). The look reads past at
// most maxPassed locks. If there are more, the next lock counts as one that excludes the lane.
const (
	// locksAtOnce bounds the locks of a range that a look reads at first.
	locksAtOnce = 10
	// locksOfPage bounds the locks of a page, and those that an inspection reads of a range at first.
	locksOfPage = 100
	// maxPassed and passedBytes bound the locks of other lanes that a look reads past, and the locks and marks of a
	// group that an operator's call reads.
	maxPassed   = 1000
	passedBytes = 10_000_000
)

// locksRead counts the locks and marks that a transaction reads.
type locksRead struct{ rows, bytes int }

// add counts a row.
func (l *locksRead) add(row kv.KV) { l.rows, l.bytes = l.rows+1, l.bytes+len(row.Value) }

// over reports whether the rows are more than maxPassed, or more than passedBytes. A single row is never too many.
func (l *locksRead) over() bool { return l.rows > maxPassed || l.bytes > passedBytes && l.rows > 1 }

// limit is the error of a call that must read all locks and marks of a group, when there are too many.
func (l *locksRead) limit() error {
	if l.rows > maxPassed {
		return &LimitError{What: whatLocks, Unit: "rows", Got: int64(l.rows), Max: maxPassed}
	}
	return &LimitError{What: whatLocks, Unit: "bytes", Got: int64(l.bytes), Max: passedBytes}
}

// whatLocks is LimitError.What of a group that has too many locks and marks for a call.
const whatLocks = "locks and marks of the group"

// laneLock has the reads of a lane's lock, and in a queue whose plan is not plain those of other locks that may exclude
// the lane.
type laneLock struct {
	lock kv.Future[[]byte]  // of the lane's own lock; nil if the plan is not plain: the lock is in one of over
	over []lockRead         // of the ranges in which locks of intersecting lanes may be
	hold kv.Future[[]kv.KV] // the first hold of the group; nil if no hold can exclude the lane
}

// lockRead is the read of the first locks of a range, under way.
type lockRead struct {
	by    kv.ReadTx
	of    kv.KeyRange
	limit int // 0 = none
	rows  kv.Future[[]kv.KV]
}

// readLaneLock starts reading what may keep a lane from a claim: its own lock, the locks of lanes that may share an
// item with the lane (intersecting lanes), and the first hold of the group. The lane must not be a hold. In a plain
// queue, each group of which is one lane, it reads the lane's lock alone. In other queues it reads the ranges that may
// have locks of intersecting lanes: in a queue with facets up to most + 1 locks of each, otherwise all. The reader
// given as locks reads these ranges, and so decides whether the reads have conflicts. v.read reads the lock of a plain
// queue and the first hold.
func (v *view) readLaneLock(locks kv.ReadTx, lane string, most int) laneLock {
	if v.keys.plan.IsPlain() {
		return laneLock{lock: v.read.Get(v.keys.lock(lane))}
	}
	var l laneLock
	over, many := v.keys.looked(lane)
	limit := 0
	if many {
		limit = most + 1 // the lane's own may be one
	}
	for _, r := range over {
		read := lockRead{by: locks, of: r, limit: limit}
		read.rows = locks.GetRange(r.Selectors(), kv.RangeOptions{Limit: read.limit})
		l.over = append(l.over, read)
	}
	l.hold = v.firstHold(lane)
	return l
}

// waitLaneLock waits for the reads of a laneLock, except that of the first hold. own is the lane's own record; nil =
// there is none. others are records of intersecting lanes, also expired ones: at least one of them if there are any. If
// a range has too many locks to look at, the next lock stands for an intersecting one, see pass.
func (v *view) waitLaneLock(lane string, l laneLock) (own *rec.Record, others []heldLane, err error) {
	if l.over == nil {
		own, err = v.waitLock(lane, l.lock)
		return own, nil, err
	}
	for _, read := range l.over {
		found, exclude, err := read.wait(v, lane)
		if err != nil {
			return nil, nil, err
		}
		if found != nil {
			own = found
		}
		others = append(others, exclude...)
	}
	return own, others, nil
}

// wait returns the lane's own lock, if it is in this range, and locks of intersecting lanes: at least one, if there are
// any. If the first rows have none, and there may be more, pass reads on. The own lock is always in the first rows.
func (l *lockRead) wait(v *view, lane string) (own *rec.Record, others []heldLane, err error) {
	rows, err := l.rows.Wait(v.ctx)
	if err != nil {
		return nil, nil, fmt.Errorf("read locks: %w", err)
	}
	own, others, err = v.unpackLocks(lane, rows)
	if err == nil && len(others) == 0 && l.limit > 0 && len(rows) == l.limit {
		others, err = l.pass(v, lane, rows)
	}
	return own, others, err
}

// pass continues a read of locks behind the rows in passed, none of which is of an intersecting lane. It reads page by
// page, and returns the first lock of an intersecting lane; nothing if there is none. Behind maxPassed locks, or
// passedBytes, it returns the next lock, of any lane: then the lane counts as excluded.
func (l *lockRead) pass(v *view, lane string, passed []kv.KV) (excludes []heldLane, err error) {
	var read locksRead
	for _, row := range passed {
		read.add(row)
	}
	rest := kv.KeyRange{Begin: kv.KeyAfter(passed[len(passed)-1].Key), End: l.of.End}
	for row, err := range walk(v.ctx, l.by, rest, locksOfPage) {
		if err != nil {
			return nil, fmt.Errorf("read locks: %w", err)
		}
		read.add(row)
		_, found, err := v.unpackLocks(lane, []kv.KV{row})
		if err == nil && len(found) == 0 && read.over() {
			found, err = v.unpackHolds([]kv.KV{row})
		}
		if err != nil || len(found) > 0 {
			return found, err
		}
	}
	return nil, nil
}

// unpackLocks returns the records in rows of locks that were read: the lane's own, and those of intersecting lanes. It
// leaves out locks of lanes that cannot share an item with the lane.
func (v *view) unpackLocks(lane string, rows []kv.KV) (own *rec.Record, others []heldLane, err error) {
	for _, row := range rows {
		p, err := v.keys.parse(row.Key)
		if err != nil {
			return nil, nil, err
		}
		if p.lane != lane && !v.keys.plan.Intersect(p.lane, lane) {
			continue
		}
		r, err := rec.UnpackRecord(row.Key, row.Value)
		if err != nil {
			return nil, nil, err
		}
		if p.lane == lane {
			own = r
		} else {
			others = append(others, heldLane{lane: p.lane, record: r})
		}
	}
	return own, others, nil
}

// laneRead reads the items of a lane that is not a whole group. It reads the lane's keys (lane) first, and then each
// item by its key (item), because the lane's items may be far apart in the group. A laneRead is a kv.Future of the
// items.
type laneRead struct {
	keys   subspace
	lane   string
	first  kv.Future[[]kv.KV]  // the lane's keys
	values kv.ReadTx           // the reader of the items
	got    []kv.Future[[]byte] // the values of the items, being read
	pairs  []kv.KV             // the items, in the same order
	err    error
	begun  bool // the keys were waited for
	ended  bool // Wait has returned
}

// readItems starts reading the first items of a lane, at most limit. The result has the items' own keys and values.
// v.read reads the items of a whole group. Of another lane it reads only the keys (lane), and the reader given as
// values reads the items themselves, because only the read of the lane's keys may need a conflict.
func (v *view) readItems(values kv.ReadTx, lane string, limit int) kv.Future[[]kv.KV] {
	return v.readItemsIn(values, lane, v.keys.items(lane), limit)
}

// readItemsIn is readItems for a part of the lane's keys: for the range in keys.
func (v *view) readItemsIn(values kv.ReadTx, lane string, keys kv.KeyRange, limit int) kv.Future[[]kv.KV] {
	first := v.read.GetRange(keys.Selectors(), kv.RangeOptions{Limit: limit})
	if !lanes.IsPart(lane) {
		return first
	}
	return &laneRead{keys: v.keys, lane: lane, first: first, values: values}
}

// begin waits for the lane's keys, and starts reading the items. A second call does nothing.
func (r *laneRead) begin(ctx context.Context) {
	if r.begun {
		return
	}
	r.begun = true
	rows, err := r.first.Wait(ctx)
	if err != nil {
		r.err = err
		return
	}
	of, group := r.keys.items(r.lane), lanes.GroupOf(r.lane)
	for _, row := range rows {
		p, err := r.keys.parseItem(row.Key, group, of)
		if err != nil {
			r.err = err
			return
		}
		key := r.keys.item(p.itemID())
		r.pairs = append(r.pairs, kv.KV{Key: key})
		r.got = append(r.got, r.values.Get(key))
	}
}

// Wait returns the items as pairs of their own keys and values. The error wraps ErrCorrupt if a key of the lane leads
// to no item.
func (r *laneRead) Wait(ctx context.Context) ([]kv.KV, error) {
	r.begin(ctx)
	for i := 0; r.err == nil && !r.ended && i < len(r.got); i++ {
		if r.pairs[i].Value, r.err = r.got[i].Wait(ctx); r.err == nil && r.pairs[i].Value == nil {
			r.err = rec.Corrupt(r.pairs[i].Key, fmt.Errorf("no item, though in a lane"))
		}
	}
	r.ended = true
	return r.pairs, r.err
}

// Ready reports whether Wait has returned before: then it returns at once.
func (r *laneRead) Ready() bool { return r.ended }

// Cancel gives the reads up.
func (r *laneRead) Cancel() {
	r.first.Cancel()
	for _, f := range r.got {
		f.Cancel()
	}
}

// reloadItems reads the items of the claim h again, for a receive that is answered a second time. It leaves out items
// between them that are not of the claim, such as an item whose enqueue has committed late. It reads the items with
// their parts, and the failed attempts of the first item (attempt). If an item is gone, the error wraps ErrCorrupt.
func (v *view) reloadItems(lane string, h *rec.Holding) ([]Item, error) {
	out := h.Items
	if len(out) == 0 {
		return nil, rec.Corrupt(v.keys.lock(lane), errors.New("a claim of nothing"))
	}
	group := lanes.GroupOf(lane)
	found := v.reloadRows(lane, out)
	// As in a new claim, only the first item has its failed attempts.
	record, err := v.readAttempt(idOf(out[0], group))
	if err != nil {
		return nil, err
	}
	rows, err := found.Wait(v.ctx)
	if err == nil && len(rows) > len(out) {
		rows, err = v.readRows(idsOf(out, group), v.keys.item)
	}
	if err != nil {
		return nil, fmt.Errorf("read items: %w", err)
	}
	items := make([]Item, 0, len(out))
	for i, d := range out {
		key := v.keys.item(idOf(d, group))
		if i >= len(rows) || !bytes.Equal(rows[i].Key, key) {
			return nil, rec.Corrupt(key, errors.New("held, and not there"))
		}
		item, err := v.readItem(rows[i])
		if err != nil {
			return nil, err
		}
		if item.FirstDelivered = fromMillis(h.SinceMS); i == 0 {
			item.failedBefore(record)
		}
		items = append(items, item)
	}
	return items, nil
}

// reloadRows starts reading the rows of the items of a claim, for reloadItems. Those of a lane are read by key, because
// they may be far apart in the group. Those of a whole group are read as a range. The result has more rows than the
// claim has items if other items lie between them.
func (v *view) reloadRows(lane string, out []rec.Item) kv.Future[[]kv.KV] {
	group := lanes.GroupOf(lane)
	if lanes.IsPart(lane) {
		r := &laneRead{keys: v.keys, lane: lane, first: kv.Done[[]kv.KV](nil, nil), values: v.read, begun: true}
		for _, d := range out {
			key := v.keys.item(idOf(d, group))
			r.pairs, r.got = append(r.pairs, kv.KV{Key: key}), append(r.got, v.read.Get(key))
		}
		return r
	}
	return v.read.GetRange(kv.Range{
		Begin: kv.FirstGreaterOrEqual(v.keys.item(idOf(out[0], group))),
		End:   kv.FirstGreaterThan(v.keys.item(idOf(out[len(out)-1], group))),
	}, kv.RangeOptions{Limit: len(out) + 1})
}

// firstHold starts reading the first hold of the lane's group. A hold is the claim or delay of a single item, and can
// keep that item from a claim of the lane; nil = nothing is read, because no hold can.
func (v *view) firstHold(lane string) kv.Future[[]kv.KV] {
	if !v.keys.plan.MeetsHolds(lane) {
		return nil
	}
	return v.read.GetRange(v.keys.holds(lane).Selectors(), kv.RangeOptions{Limit: 1})
}

// unpackHolds unpacks the rows of holds, or of locks, that were read. It reads no key.
func (v *view) unpackHolds(rows []kv.KV) ([]heldLane, error) {
	all := make([]heldLane, 0, len(rows))
	for _, row := range rows {
		p, err := v.keys.parse(row.Key)
		if err != nil {
			return nil, err
		}
		r, err := rec.UnpackRecord(row.Key, row.Value)
		if err != nil {
			return nil, err
		}
		all = append(all, heldLane{lane: p.lane, record: r})
	}
	return all, nil
}

// inHandMost bounds the holds that inHand reads.
const inHandMost = 10_000

// inHand counts the items of a group that are in flight under a claim of their own (hold). It reads only the first
// inHandMost holds. A hold that delays an item does not count.
func (v *view) inHand(group string) (n int, err error) {
	rows, err := v.read.GetRange(v.keys.holds(group).Selectors(), kv.RangeOptions{Limit: inHandMost}).Wait(v.ctx)
	if err != nil {
		return 0, fmt.Errorf("read holds: %w", err)
	}
	all, err := v.unpackHolds(rows)
	for _, held := range all {
		if held.record.Claim() != nil {
			n++
		}
	}
	return n, err
}

// cursor is the part of a range that is not read yet. A caller reads a page, and then tells the cursor the rows.
type cursor struct {
	begin     kv.KeySelector
	end       []byte
	exhausted bool // nothing is left to read
}

// newCursor returns a cursor at the begin of a range.
func newCursor(r kv.KeyRange) cursor {
	return cursor{begin: kv.FirstGreaterOrEqual(r.Begin), end: r.End}
}

// read starts reading the next rows, at most limit.
func (c *cursor) read(tx kv.ReadTx, limit int) kv.Future[[]kv.KV] {
	if c.exhausted {
		return kv.Done[[]kv.KV](nil, nil)
	}
	return tx.GetRange(kv.Range{Begin: c.begin, End: kv.FirstGreaterOrEqual(c.end)}, kv.RangeOptions{Limit: limit})
}

// passed moves the cursor behind rows, which read has returned with the same limit.
func (c *cursor) passed(rows []kv.KV, limit int) {
	if len(rows) < limit {
		c.exhausted = true
		return
	}
	c.begin = kv.FirstGreaterThan(rows[len(rows)-1].Key)
}

// walk returns the rows of r, which it reads by tx page by page. page is the number of rows of a page. An error ends
// the sequence.
func walk(ctx context.Context, tx kv.ReadTx, r kv.KeyRange, page int) iter.Seq2[kv.KV, error] {
	return func(yield func(kv.KV, error) bool) {
		for rest := newCursor(r); !rest.exhausted; {
			rows, err := rest.read(tx, page).Wait(ctx)
			if !give(rows, err, yield) {
				return
			}
			rest.passed(rows, page)
		}
	}
}

// give passes the entries of a page to yield, and then the page's error, if any. It reports whether the caller may read
// the next page.
func give[T any](entries []T, err error, yield func(T, error) bool) bool {
	for _, e := range entries {
		if !yield(e, nil) {
			return false
		}
	}
	if err != nil {
		var none T
		yield(none, err)
	}
	return err == nil
}

// maxStride bounds the keys that one read of countKeys skips.
const maxStride = 1000

// countKeys counts the keys of r up to limit. It reads keys, no values.
func (v *view) countKeys(r kv.KeyRange, limit int64) (int64, error) {
	counts, err := v.countKeysOfEach([]kv.KeyRange{r}, limit)
	if err != nil {
		return 0, err
	}
	return counts[0], nil
}

// countKeysOfEach counts the keys of each range up to limit. Each read is a key selector with an offset, so no value is
// transferred. It works in rounds, see keyCount: in a round one read for each unfinished range is in flight.
func (v *view) countKeysOfEach(ranges []kv.KeyRange, limit int64) ([]int64, error) {
	all, counts := make([]keyCount, len(ranges)), make([]int64, len(ranges))
	for i, r := range ranges {
		all[i] = keyCount{of: r, at: r.Begin, offset: 1, stride: 1, growing: true}
	}
	for more := true; more; {
		more = false
		for i := range all {
			if c := &all[i]; c.stride > 0 && c.n < limit {
				c.step, more = v.read.GetKey(kv.KeySelector{Key: c.at, Offset: c.offset}), true
			}
		}
		for i := range all {
			if err := all[i].take(v.ctx); err != nil {
				return nil, err
			}
		}
	}
	for i := range all {
		counts[i] = min(all[i].n, limit)
	}
	return counts, nil
}

// keyCount is the count of one range. Each step moves on by stride keys. The stride doubles until a step leads out of
// the range. From then on each step that leads out halves the stride, until it is 0. Example: 5 keys are counted by the
// strides 1, 1, 2, then 4, which leads out, then 2, which leads out, then 1.
type keyCount struct {
	of      kv.KeyRange
	at      []byte
	n       int64
	offset  int // of the next read: the first read finds the first key, all others a key behind at
	stride  int // 0 = the count is done
	growing bool
	step    kv.Future[[]byte] // the read in flight; nil = none
}

// take waits for the read in flight, adds the keys that the step has passed to n, and computes the next stride and
// offset.
func (c *keyCount) take(ctx context.Context) error {
	if c.step == nil {
		return nil
	}
	k, err := c.step.Wait(ctx)
	if err != nil {
		return fmt.Errorf("count keys: %w", err)
	}
	c.step = nil
	switch {
	case c.of.Contains(k):
		c.n += int64(c.stride)
		c.at = k
		if c.growing && c.n > 1 {
			c.stride = min(2*c.stride, maxStride)
		}
	case c.n == 0:
		c.stride = 0
	default:
		c.growing = false
		c.stride /= 2
	}
	c.offset = 1 + c.stride
	return nil
}

// setState writes the state of a group (state), the bytes that holders keep with it. An empty state clears the row. The
// caller must also write the group's lock, or add a write conflict on it: a claim reads the state without a conflict.
func (w *txn) setState(group string, state []byte) {
	if len(state) == 0 {
		w.tx.Clear(w.keys.state(group))
		return
	}
	w.tx.Set(w.keys.state(group), state)
}

// readState starts reading a group's state (state); nil if it is not wanted.
func (v *view) readState(group string, wanted bool) kv.Future[[]byte] {
	if !wanted {
		return nil
	}
	return v.read.Get(v.keys.state(group))
}

// waitState waits for a read that readState has begun, and returns the group's state; nil if the state was not wanted,
// or the group has none.
func (v *view) waitState(f kv.Future[[]byte]) ([]byte, error) {
	if f == nil {
		return nil, nil
	}
	state, err := f.Wait(v.ctx)
	if err != nil {
		return nil, fmt.Errorf("read state: %w", err)
	}
	return state, nil
}

// The size of transactions. FoundationDB refuses a commit of more than 10,000,000 bytes (transaction_too_large, 2101).
// Mutations and conflict ranges count, so a written key counts three times and a cleared key four times. Keys have the
// prefix and the names of queue and group. So long names reduce how many groups a receive can claim and how many items
// an ack can finish, and a fixed number of items is not a safe bound.
//
// Therefore each transaction counts the bytes that it adds. A call that can do less stops when the transaction is
// crowded: a receive gives fewer claims, a claim has fewer items. A call that cannot, because its caller has named all
// items, returns a *LimitError.

const (
	// crowdedShare is a share of a transaction's limit, in percent. Above it the transaction is crowded: a receive
	// takes no further group. The rest is for the claim that was begun, and for the last writes of the transaction:
	// kept hints, changes, counters, wakes.
	crowdedShare = 50
	// maxFinishSize bounds the bytes that an ack or a take of one claim's items may add to its transaction. It also
	// bounds the claims of single items that a receive makes in a group. The first item may always be claimed, even if
	// it alone adds more.
	maxFinishSize = 3_000_000 // bytes
	// maxLockItems bounds the items in the value of a lock. FoundationDB allows 100,000 bytes for a value. The rest is
	// for the owner and a mark.
	maxLockItems = 90_000 // bytes
	// maxRepeatSize bounds the row under a receive id, for the same reason.
	maxRepeatSize = 90_000 // bytes
	// maxReceiveSize bounds the bodies and states of a receive together, also if MaxBytes is larger. The handle reads
	// them in one transaction, which may last five seconds. The first item may always be received, even if it alone is
	// larger.
	maxReceiveSize = 8 << 20 // bytes
)

// The bytes that FoundationDB counts for a mutation, and for a conflict range, in addition to keys and values.
const (
	mutationSize = 44
	rangeSize    = 24
)

// setSize, conflictSize and clearSize return the bytes that a transaction grows by. setSize is for a key that is set,
// with its write conflict. key and value are their lengths.
func setSize(key, value int) int { return 3*key + value + mutationSize + rangeSize + 1 }

// conflictSize is for the read conflict of a key.
func conflictSize(key int) int { return 2*key + rangeSize + 1 }

// clearSize is for a key that is cleared. It includes the conflict range that a cleared key may cost, because a read
// conflict on a range is split at each key in the range that the transaction has written. Example: an ack clears the
// last three items of a group, one by one, and conflicts on the emptiness of the group: four ranges.
func clearSize(key int) int { return 4*key + mutationSize + rangeSize + 2 + conflictSize(key) }

// sizes has the size of a transaction, as far as the handle knows it.
type sizes struct {
	own  sized // what this attempt adds
	room room  // of keys
	// before is the read of how large the caller's transaction was before this call; measure moves the result to
	// callers. If the handle has begun the transaction, before is nil and callers is 0.
	before  kv.Future[int64]
	callers int
}

// sized is a kv.Tx that counts the bytes that its calls add to the transaction. The count is about FoundationDB's, or
// higher. Reads at snapshot add no bytes.
type sized struct {
	kv.Tx
	added int  // bytes
	wrote bool // a key was set or cleared
}

// Set implements kv.Tx.
func (t *sized) Set(key, value []byte) {
	t.added, t.wrote = t.added+setSize(len(key), len(value)), true
	t.Tx.Set(key, value)
}

// Clear implements kv.Tx.
func (t *sized) Clear(key []byte) {
	t.added, t.wrote = t.added+clearSize(len(key)), true
	t.Tx.Clear(key)
}

// ClearRange implements kv.Tx. It counts as the clear of a key of the average length of the two ends.
func (t *sized) ClearRange(r kv.KeyRange) {
	t.added, t.wrote = t.added+clearSize((len(r.Begin)+len(r.End)+1)/2), true
	t.Tx.ClearRange(r)
}

// Atomic implements kv.Tx.
func (t *sized) Atomic(op kv.MutationType, key, operand []byte) {
	t.added, t.wrote = t.added+setSize(len(key), len(operand)), true
	t.Tx.Atomic(op, key, operand)
}

// AddReadConflictRange implements kv.Tx.
func (t *sized) AddReadConflictRange(r kv.KeyRange) error {
	t.added += len(r.Begin) + len(r.End) + rangeSize
	return t.Tx.AddReadConflictRange(r)
}

// AddWriteConflictRange implements kv.Tx.
func (t *sized) AddWriteConflictRange(r kv.KeyRange) error {
	t.added += len(r.Begin) + len(r.End) + rangeSize
	return t.Tx.AddWriteConflictRange(r)
}

// Get implements kv.Tx. It counts the read conflict.
func (t *sized) Get(key []byte) kv.Future[[]byte] {
	t.added += conflictSize(len(key))
	return t.Tx.Get(key)
}

// GetKey implements kv.Tx. GetKey and GetRange have a conflict up to the key that they find. Usually it is longer than
// the given keys by at most foundKey bytes.
func (t *sized) GetKey(s kv.KeySelector) kv.Future[[]byte] {
	t.added += conflictSize(len(s.Key) + foundKey)
	return t.Tx.GetKey(s)
}

// GetRange implements kv.Tx. It counts the read conflict as GetKey does.
func (t *sized) GetRange(r kv.Range, o kv.RangeOptions) kv.Future[[]kv.KV] {
	t.added += conflictSize(max(len(r.Begin.Key), len(r.End.Key)) + foundKey)
	return t.Tx.GetRange(r, o)
}

// foundKey is what a key of an item has behind the key of its group.
const foundKey = 32

// used returns the size of the transaction (bytes). The size has the writes that its caller has made before only if
// measure was called.
func (w *txn) used() int { return w.sizes.callers + w.sizes.own.added }

// txLimit returns how large (bytes) a transaction of the handle may become.
func (q *Queue) txLimit() int {
	if n := q.opts.Tx.SizeLimit; n > 0 {
		return min(n, kv.MaxTransactionSize)
	}
	return kv.MaxTransactionSize
}

// crowded reports whether the transaction has used crowdedShare of its limit, so that it has no room for another claim.
func (w *txn) crowded() bool { return w.used() > w.q.txLimit()/100*crowdedShare }

// measure waits for the size that the caller's transaction had before this call, and adds it to the size in sizes. A
// transaction that the handle has begun had none.
func (w *txn) measure() error {
	if w.sizes.before == nil {
		return nil
	}
	n, err := w.sizes.before.Wait(w.ctx)
	if err != nil {
		return fmt.Errorf("size of the transaction: %w", err)
	}
	w.sizes.callers, w.sizes.before = int(n), nil
	return nil
}

// checkRoom returns a *LimitError if the caller's transaction is crowded, so that it has no room for a claim or a take.
func (w *txn) checkRoom() error {
	if err := w.measure(); err != nil || !w.crowded() {
		return err
	}
	return &LimitError{
		What: "transaction before a receive or take", Unit: "bytes", Got: int64(w.used()),
		Max: int64(w.q.txLimit() / 100 * crowdedShare),
	}
}

// checkSize returns a *LimitError if the transaction has become too large to be committed, with a receipt added. It
// asks the engine for the size only if the layer's own count is high (crowded).
func (w *txn) checkSize() error {
	if err := w.measure(); err != nil || !w.crowded() {
		return err
	}
	w.sizes.before = w.sizes.own.ApproximateSize() // the engine's count replaces the layer's
	w.sizes.own.added = 0
	if err := w.measure(); err != nil {
		return err
	}
	with := w.used() + w.q.receiptRoom()
	if with <= w.q.txLimit() {
		return nil
	}
	return &LimitError{What: whatTransaction, Unit: "bytes", Got: int64(with), Max: int64(w.q.txLimit())}
}

// receiptRoom is how many bytes Once adds to a transaction at the end: its receipt, a conflict, and the clears of
// earlier receipts.
func (q *Queue) receiptRoom() int {
	key := len(q.keys.receipt(uuid.Nil))
	return setSize(key, receiptSize) + conflictSize(key) + receiptsCleared*clearSize(key)
}

// receiptSize bounds the value of a receipt: see rec.PackReceipt.
const receiptSize = 3 * 9 // bytes

// whatTransaction is LimitError.What of a transaction that has become too large.
const whatTransaction = "transaction"

// itemSizes computes how many bytes an item of a group adds to a transaction, without its value. In its methods facets
// is the size of the item's packed facets.
type itemSizes struct {
	key   int // the longest of an item's keys, without facets
	lanes int // the item's lanes, without the whole group
	told  int // bytes in a row of changes for subscriptions; 0 = the queue writes none
}

// sizesIn returns the sizes for the items of a group. changes is Config.Changes; 0 = no rows of changes are written.
func (s subspace) sizesIn(group string, changes time.Duration) itemSizes {
	key := s.itemKey(nameAttempt, ID{Group: group, Index: math.MaxInt64}, 0)
	z := itemSizes{key: len(key), lanes: s.plan.CountParts()}
	if changes > 0 {
		z.told = rec.ChangeSize + len(group) + strings.Count(group, "\x00")
	}
	return z
}

// change is the size of an item in a row of changes for subscriptions.
func (z itemSizes) change(facets int) int {
	if z.told == 0 {
		return 0
	}
	return z.told + facets
}

// finish is the size for an item that is removed: its row, its attempts and parts, its keys in lanes with their hints,
// and the record, timer and conflict of a hold. The claim of a single item adds no more.
func (z itemSizes) finish(facets int) int {
	return (5+2*z.lanes)*clearSize(z.key+facets) + z.change(facets)
}

// expire is the size for an item that becomes a dead letter.
func (z itemSizes) expire(facets int) int { return setSize(z.key, deadHead) + z.finish(facets) }

// deadHead is more than the bytes by which the value of a dead letter is larger than the value of its item.
const deadHead = 5000

// errTooLarge: the layer has refused to commit one of its own transactions.
var errTooLarge = errors.New("the transaction is too large")

// tooLarge reports whether a transaction had no effect because it, or one of its values, was too large.
func tooLarge(err error) bool {
	if kv.MaybeCommitted(err) {
		return false
	}
	code := kv.Code(err)
	return errors.Is(err, errTooLarge) || code == kv.CodeTransactionTooLarge || code == kv.CodeValueTooLarge
}

// The clock of one process is not enough to remove a row by its age. The database's version is the second clock: see
// moment. A version cannot be compared with a time. A handle compares how much both have grown since a row was written.
// There are two checks:
//
//   - A row must also be old by its own version: see moment.old. Example: by its stored time a message was enqueued 45
//     days ago, but its index is only ten seconds of versions old. One of the clocks is wrong, and the message stays.
//   - Each transaction of a handle leaves a receipt with the wall time and the version. Example: a receipt says
//     12:00:00 at version V. A handle reads the receipt at version V + 10,000,000, ten seconds later, but its own clock
//     is two days ahead of 12:00:10. It cannot know which clock is wrong. Some rows, such as dead letters, have no
//     version that protects them, so its sweeps remove nothing by such times.
//
// Versions do not grow while a cluster is down. So a row may be removed too late, but not too early.

const (
	// witnessLife is how old, by versions, a receipt may be to be compared. It is less than the jump of versions at a
	// recovery (100 s), so no receipt of the time before a recovery is compared.
	witnessLife = 90 * time.Second
	// witnessPage bounds the receipts that a transaction reads to compare the clocks.
	witnessPage = 1000
)

// clockError wraps ErrClock, and has the two times that disagree: by this process's clock, and by the clock of the
// process that wrote a receipt.
type clockError struct {
	queue, own   string        // the queue's name; the handle's Owner
	nowMS        int64         // by this process's clock
	apart, since time.Duration // between the clocks; since the receipt was written, by versions
}

// Unwrap returns ErrClock.
func (e *clockError) Unwrap() error { return ErrClock }

// Error says what time it is by each of the two clocks.
func (e *clockError) Error() string {
	return fmt.Sprintf("%v: it is %s by the clock of %s, and %s by what was written in queue %q %s ago: "+
		"nothing is removed by its age until they agree", ErrClock, timeWords(e.nowMS), e.own,
		timeWords(e.nowMS-e.apart.Milliseconds()), e.queue, e.since.Round(time.Second))
}

// witness is the time, by the writer's clock and by the version, at which a transaction wrote a receipt.
type witness struct {
	moment
	of writer
}

// writer is the part of a receipt's random that all receipts of one handle share.
type writer [4]byte

// writerOf returns the writer of the receipt with this random, or, of a waitID, the handle's own.
func writerOf(random uuid.UUID) writer { return writer(random[len(random)-len(writer{}):]) }

// receiptRandom draws the random of a receipt. Its end is that of the handle's waitID: otherwise a process with many
// transactions at a time would count as many clocks (otherTimes). The begin is random, so that the first receipts in
// the order of the keys are of all handles. In a receipt of an earlier release the end is random, too.
func receiptRandom(q *Queue) uuid.UUID {
	id, own := q.random.uuid(), writerOf(q.waitID)
	copy(id[len(id)-len(own):], own[:])
	return id
}

// witnesses returns the view's own time by both clocks, and the times in the receipts of the last witnessLife. It reads
// the read version and the first witnessPage receipts (receipt). It leaves out receipts that cannot be read, and those
// from before a restore of the database.
func (v *view) witnesses() (m moment, all []witness, err error) {
	read := v.read.GetRange(v.keys.section(nameReceipt).Selectors(), kv.RangeOptions{Limit: witnessPage})
	if m, err = v.moment(); err != nil {
		return m, nil, fmt.Errorf("read version: %w", err)
	}
	rows, err := read.Wait(v.ctx)
	if err != nil {
		return m, nil, fmt.Errorf("read receipts: %w", err)
	}
	for _, row := range rows {
		r, err := rec.UnpackReceipt(row.Key, row.Value)
		if v.skipsRow(err) {
			continue
		}
		w, ok := witnessOf(r)
		if ok && w.clock > v.q.restored && w.clock <= m.clock && m.span(w.clock) < witnessLife {
			if p, err := v.keys.parse(row.Key); err == nil {
				all = append(all, witness{w, writerOf(p.id)})
			}
		}
	}
	return m, all, nil
}

// disagreement returns the two times that disagree if a receipt of the last witnessLife shows another clock that is
// more than clockSlack behind this process's clock. Of several such clocks it names the one that is farthest behind.
// nil = there is none. The error is that of a read. disagreement reads receipts, by witnesses.
func (v *view) disagreement() (*clockError, error) {
	m, all, err := v.witnesses()
	if err != nil {
		return nil, err
	}
	var found *clockError
	for _, w := range all {
		if lag := m.lag(w.moment); lag > clockSlack && (found == nil || lag > found.apart) {
			found = &clockError{
				queue: v.q.name, own: v.q.opts.Owner, nowMS: m.nowMS, apart: lag, since: m.span(w.clock),
			}
		}
	}
	return found, nil
}

// clocksApart returns the largest difference among this process's clock and the clocks in the receipts of the last
// witnessLife; 0 = they differ by at most clockSlack. It reads receipts.
func (v *view) clocksApart() (time.Duration, error) {
	m, all, err := v.witnesses()
	if err != nil {
		return 0, err
	}
	least, most := time.Duration(0), time.Duration(0)
	for _, w := range all {
		least, most = min(least, m.lag(w.moment)), max(most, m.lag(w.moment))
	}
	if most-least <= clockSlack {
		return 0, nil
	}
	return most - least, nil
}

// present returns the time (ms) to store in a row that has no version, and that another process later removes by this
// time. Example: the time of death of a dead letter. present takes the median of the handle's own clock and the clocks
// of other handles (otherTimes); of two clocks, the later. If the median is not more than clockSlack later than the
// handle's clock, present returns the handle's time. Too late a time keeps the row too long, and too early a time
// destroys it. present reads receipts once for each transaction, at snapshot.
func (w *txn) present() (int64, error) {
	if w.beats.presentMS > 0 {
		return w.beats.presentMS, nil
	}
	w.beats.presentMS = w.nowMS
	m, all, err := w.witnesses()
	if err != nil {
		return 0, err
	}
	times := append(otherTimes(w.q, m, all), m.nowMS)
	slices.Sort(times)
	if middle := times[len(times)/2]; ahead(middle, m.nowMS) {
		w.beats.presentMS = middle
	}
	return w.beats.presentMS, nil
}

// otherTimes returns the present (ms) by the clocks of other handles: one time for each handle that has a receipt in
// the list all. Of several receipts of a handle the last counts.
func otherTimes(q *Queue, m moment, all []witness) []int64 {
	last := make(map[writer]moment)
	for _, one := range all {
		if one.of != writerOf(q.waitID) && one.clock >= last[one.of].clock {
			last[one.of] = one.moment
		}
	}
	times := make([]int64, 0, len(last)+1)
	for _, one := range last {
		times = append(times, m.nowMS-m.lag(one).Milliseconds())
	}
	return times
}
