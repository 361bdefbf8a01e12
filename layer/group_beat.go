package layer

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer/internal/guard"
	"fdbfifo/layer/internal/lanes"
	"fdbfifo/layer/internal/rec"
)

// This file ends the claims by heartbeat of dead handles, and finds timers with wrong times. tx_beat.go explains beats:
// a beat is a key with the time up to which all claims by heartbeat of one handle last.

// beatPage is how many claims of a handle one transaction ends, in addition to those of the lanes that led to the beat.
const beatPage = 100

// overAt returns when the time of a lane's holding is over (ms); 0 = there is no holding. r is the record of the lane's
// lock. For a claim by heartbeat overAt reads the beat, at snapshot, and returns the time at which the beat is due, or
// 0 if the beat is gone or cannot be read. If the beat is due, is being ended, or cannot be read, overAt adds it to
// w.beats.due. The beats there must be ended, by this transaction (endBeats) or by a look of the handle after it
// (lookLater). But a beat that is due and may still be kept alive (ownBeat, mayLive) stays: the time is then a second
// from now.
func (w *txn) overAt(lane string, r *rec.Record) (dueMS int64, err error) {
	h := r.Holding()
	switch {
	case h == nil:
		return 0, nil
	case !h.ByBeat():
		return h.EndMS, nil
	}
	b, found, err := w.readBeat(h.Beat)
	if found = found || w.skipsRow(err); !found {
		return 0, err
	}
	own, err := ownBeat(w, h.Beat)
	if err != nil {
		return 0, err
	}
	if !b.Ended && b.DueMS <= w.nowMS {
		lives := own // if it is own, keepBeating moves the beat
		if !own {
			if lives, err = mayLive(w, h, b); err != nil {
				return 0, err
			}
		}
		if lives {
			return w.nowMS + time.Second.Milliseconds(), nil
		}
	}
	if b.Ended || b.DueMS <= w.nowMS {
		w.beats.due = append(w.beats.due, dueBeat{handle: h.Beat, held: [][]byte{w.keys.held(h.Beat, lane)}})
	}
	return b.DueMS, nil
}

// endOwner ends a page of the claims of the handle by whose heartbeat a lane is held, if the beat is due: see endBeat.
// r is the record of the lane's lock. ended: a claim was ended, so the caller may look at the lane again.
func (w *txn) endOwner(lane string, r *rec.Record) (ended bool, err error) {
	due := w.beats.due
	w.beats.due = nil
	if _, err := w.overAt(lane, r); err != nil {
		return false, err
	}
	met := w.beats.due
	w.beats.due = due
	return w.endBeats(met)
}

// withoutDead returns the record of a lane's lock, after it has ended a claim that a dead handle has by heartbeat
// (endOwner). The record still has that claim, but with a lease of its own that has expired. Any other claim stays as
// it is. r is the record as read before. If r has a claim by heartbeat, withoutDead reads the lock again, with a
// conflict by the guard g: the transaction may have ended the claim since, together with another claim of the handle.
//
// Footprint: nothing if r has no claim by heartbeat. Of a handle that lives: its beat at snapshot, and the lock. If the
// handle is dead, up to 100 of its other claims end, too, with the keys that Admin.SetGroupStateTx lists.
func withoutDead(w *txn, g guard.Guard, lane string, r *rec.Record) (*rec.Record, error) {
	if c := r.Claim(); c == nil || hasLease(c) {
		return r, nil
	}
	if _, err := w.endOwner(lane, r); err != nil {
		return nil, err
	}
	return w.guarded(g).readLock(lane)
}

// beatsAtOnce is of how many handles one transaction ends claims. It reads the beats one after the other.
const beatsAtOnce = 16

// endBeats ends a page of the claims of each of the first beatsAtOnce handles in due, whose beats a look has found due:
// see endBeat. ended: a claim was ended. Then endBeats also wakes the handles that wait (wakeAll). If it leaves handles
// to the next transaction, because they are too many or the transaction is crowded, it sets postponed.
func (w *txn) endBeats(due []dueBeat) (ended bool, err error) {
	for i, d := range together(due) {
		if i == w.chores.most(beatsAtOnce) || i > 0 && w.crowded() {
			w.chores.postponed = true
			break
		}
		n, err := w.endBeat(d)
		if err != nil {
			return false, err
		}
		ended = ended || n > 0
	}
	if ended {
		// A handle that waits for one of the groups, or by another template, does not wait for a timer of these claims:
		// wake it.
		return true, w.wakeAll()
	}
	return false, nil
}

// together merges the entries of each handle: one entry, with the timer and all held keys that have led to its beat.
func together(due []dueBeat) (all []dueBeat) {
	for _, d := range due {
		i := slices.IndexFunc(all, func(other dueBeat) bool { return other.handle == d.handle })
		if i < 0 {
			all = append(all, dueBeat{handle: d.handle})
			i = len(all) - 1
		}
		if d.key != nil {
			all[i].key = d.key
		}
		all[i].held = append(all[i].held, d.held...)
	}
	return all
}

// endBeat ends a page of the claims of a handle whose beat is due, and the claims that led here. Each gets the time at
// which the beat was due as the end of a lease of its own, and a timer there. Its held key is cleared. The transaction
// that ends the last page also clears the beat and its timer. Any other transaction marks the beat as ended. ended is
// the number of claims ended. If the beat is gone, is not due, or may still be kept alive (ownBeat, mayHoldersLive),
// endBeat only clears or replaces an old timer that led here.
//
// Footprint: a read conflict on the beat, which a handle that lives moves; a write conflict on the right to join the
// beat, so no claim joins a beat which is being ended; read conflicts on the locks, and, if a single page is all, on
// the list of the handle's claims (held). That list, the beat's timer, and the locks of mayHoldersLive are read at
// snapshot. A repetition does no harm.
func (w *txn) endBeat(d dueBeat) (ended int, err error) {
	keys, key := w.keys, w.keys.beat(d.handle)
	v, err := guard.BeatEnd.Get(w.tx, key).Wait(w.ctx)
	if err != nil {
		return 0, fmt.Errorf("read beat: %w", err)
	}
	var b rec.Beat
	if v != nil {
		if b, err = rec.UnpackBeat(key, v); w.skipsRow(err) {
			// It is unknown whether the handle still lives. So the beat ends now, which has the same effect as a lease
			// that was cut short.
			b.DueMS = w.nowMS
		}
	}
	timer := keys.beatTimer(b.DueMS, d.handle)
	if d.key != nil && (v == nil || !bytes.Equal(timer, d.key)) {
		w.tx.Clear(d.key) // a timer of a beat that has moved on, or is gone
		if v != nil {
			w.tx.Set(timer, rec.PackTimer(rec.KindBeat, 0))
		}
	}
	if v == nil || !b.Ended && b.DueMS > w.nowMS {
		return 0, nil
	}
	if own, err := ownBeat(w, d.handle); err != nil || own && !b.Ended {
		return 0, err // keepBeating moves it
	}
	rows, err := w.read.GetRange(
		keys.heldBy(d.handle).Selectors(), kv.RangeOptions{Limit: beatPage}).Wait(w.ctx)
	if err != nil {
		return 0, fmt.Errorf("read claims by heartbeat: %w", err)
	}
	if lives, err := mayHoldersLive(w, d.handle, b, rows); err != nil || lives {
		return 0, err
	}
	if err := guard.BeatJoin.Write(w.tx, keys.beatJoin(d.handle)); err != nil {
		return 0, err
	}
	ending := slices.Clip(rows)
	for _, held := range d.held { // so that a caller that asks for this group need not go through all pages
		if !slices.ContainsFunc(ending, func(row kv.KV) bool { return bytes.Equal(row.Key, held) }) {
			ending = append(ending, kv.KV{Key: held})
		}
	}
	ended, cut, err := w.endByBeat(d.handle, b.DueMS, ending)
	if err != nil {
		return 0, err
	}
	last := len(rows) < beatPage && !cut
	if last && !b.Ended {
		// A claim may have joined the beat after these reads, and so be in no page. Once the beat is marked as ended,
		// no claim can join. Without the mark, the conflict on the list of the handle's claims excludes such a claim.
		if err := guard.BeatLast.Read(w.tx, keys.heldBy(d.handle)); err != nil {
			return 0, err
		}
	}
	switch {
	case last:
		w.tx.Clear(key)
		w.tx.Clear(timer)
	case !b.Ended:
		b.Ended = true
		w.tx.Set(key, b.Pack())
	}
	return ended, nil
}

// ownBeat reports whether the beat with this number is the handle's own, and is still in force by the monotonic clock
// and by versions. A due time that has passed is then due to a step of the wall clock: see ownClaims in claim.go.
func ownBeat(w *txn, handle uuid.UUID) (bool, error) {
	p := w.q.heart.of(handle)
	if p == nil {
		return false, nil
	}
	m, err := w.moment()
	return p.left() > ownSlack && m.span(p.clock.Load()) < w.q.knownConfig().Lease, err
}

// mayLive reports whether the process that moves a beat may still live although the beat b is due, because the clocks
// of the two processes differ too much. h is a claim by this beat. It tells how far the clock of this process is ahead:
// the claim has a time by the clock of its holder (SinceMS), and a token, which is a version. If that is more than
// clockSlack, this handle must first see for one lease that no process moves the beat. A process that lives moves its
// beat each third of a lease.
func mayLive(w *txn, h *rec.Holding, b rec.Beat) (bool, error) {
	if h.SinceMS == 0 {
		return false, nil
	}
	m, err := w.moment()
	if err != nil || h.Token > m.clock+offsetSlack || m.lag(moment{nowMS: h.SinceMS, clock: h.Token}) <= clockSlack {
		return false, err
	}
	key, lease, err := moveOf(w, h.Beat, b)
	return err == nil && !w.q.noticed.far.IsOver(key, b.DueMS, time.Now(), lease), err
}

// mayIdlerLive is mayLive for a beat without claims, by its number. Nothing tells a clock that is ahead from a process
// that has died. So the time since the last move of the beat counts, instead of the difference of the clocks. If this
// handle ended the beat of a process that lives, the next claims of that process would have leases of their own.
func mayIdlerLive(w *txn, handle uuid.UUID, b rec.Beat) (bool, error) {
	key, lease, err := moveOf(w, handle, b)
	if err != nil || !ahead(w.nowMS, b.DueMS-lease.Milliseconds()) {
		return false, err
	}
	return !w.q.noticed.far.IsOver(key, b.DueMS, time.Now(), lease), nil
}

// moveOf returns the key of the timer of the beat b, and the lease from the last move of the beat to its due time. It
// reads the timer, at snapshot.
func moveOf(w *txn, handle uuid.UUID, b rec.Beat) (key []byte, lease time.Duration, err error) {
	key = w.keys.beatTimer(b.DueMS, handle)
	v, err := w.read.Get(key).Wait(w.ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("read the beat's timer: %w", err)
	}
	_, movedMS, err := rec.UnpackTimer(key, v)
	if v == nil || w.skipsRow(err) {
		movedMS = 0
	}
	return key, leaseOfBeat(&w.view, b.DueMS, movedMS), nil
}

// mayHoldersLive is mayLive for the beat of a handle. rows are held keys of the handle. The first claim by the beat
// that mayHoldersLive can read decides; it reads the locks, at snapshot. If there is none, mayIdlerLive decides, unless
// the beat is being ended: then the result is false.
func mayHoldersLive(w *txn, handle uuid.UUID, b rec.Beat, rows []kv.KV) (bool, error) {
	for i := range rows {
		p, err := w.keys.parse(rows[i].Key)
		if w.skipsRow(err) {
			continue
		}
		r, err := w.readLock(p.lane)
		if w.skipsRow(err) {
			continue
		}
		if err != nil {
			return false, err
		}
		if c := r.Claim(); c != nil && c.Beat == handle {
			return mayLive(w, c, b)
		}
	}
	if b.Ended {
		return false, nil
	}
	return mayIdlerLive(w, handle, b)
}

// leaseOfBeat returns the lease of a beat's handle: the time from movedMS, when the beat was last moved, to dueMS. If
// the time of the move is not known (0), it returns the queue's lease.
func leaseOfBeat(v *view, dueMS, movedMS int64) time.Duration {
	if movedMS == 0 {
		return v.known().Lease
	}
	return min(time.Duration(dueMS-movedMS)*time.Millisecond, MaxLease)
}

// endByBeat ends claims by the heartbeat of a handle: each gets a lease of its own, which has ended at dueMS. rows are
// the held keys of the claims. endByBeat reads the locks with a conflict, and writes locks and timers. It clears the
// held keys, also one that leads to no such claim. ended is the number of claims ended. cut: the transaction is full,
// and some rows are left to the next one.
func (w *txn) endByBeat(handle uuid.UUID, dueMS int64, rows []kv.KV) (ended int, cut bool, err error) {
	locks := make([]kv.Future[[]byte], len(rows))
	groups := make([]string, len(rows))
	for i, row := range rows {
		p, err := w.keys.parse(row.Key)
		if w.skipsRow(err) {
			continue
		}
		groups[i] = p.lane
		locks[i] = guard.BeatLock.Get(w.tx, w.keys.lock(p.lane))
	}
	for i, group := range groups {
		if locks[i] == nil {
			w.tx.Clear(rows[i].Key)
			continue
		}
		if i > 0 && w.crowded() {
			return ended, true, nil
		}
		r, err := w.waitLock(group, locks[i])
		if err != nil && !isCorrupt(err) {
			return 0, false, err
		}
		c := r.Claim()
		if c == nil || c.Beat != handle {
			w.tx.Clear(rows[i].Key) // a lock that cannot be read is left to an operator, like every such lock
			continue
		}
		w.put(group, r, r.Until(dueMS), c.FirstIndex())
		ended++
	}
	return ended, false, nil
}

// A process whose clock is a year ahead, and which dies, leaves timers a year ahead: of claims, delays, grants, heads
// and its heartbeat. No search for due timers finds them. So a handle that receives also looks far ahead, each quarter
// of the queue's lease, at a few timers (advice.Far). It ends what is wrong:
//
//   - A claim, a grant or a heartbeat whose end is wrong has lapsed if no process moves it for long enough: a claim for
//     a lease of the queue, or for its own longer lease if that is not over by versions; a grant for 2 s; a heartbeat
//     for the lease of its handle. Which of the two clocks is wrong does not matter: a holder that lives extends its
//     claim each third of its lease.
//   - A retry delay has lapsed once the handle has seen it for as long as the nack wanted it to last.
//   - The timer of a head gives way to a hint. The receive that meets the hint reads the times of the message as
//     moment.tame does, and delivers the message or sets the right timer.

const (
	// farPage bounds the timers of a shard that a look reads beyond the latest that any process may store.
	farPage = 50
	// farSample is the same for timers that may be right. Each look continues behind the last.
	farSample = 10
	// farRows bounds both in a queue with many shards: see farMost.
	farRows = 200
)

// farTimer is a timer with a wrong time, which lies far ahead.
type farTimer struct {
	key   []byte
	name  []byte    // for advice.Far.IsOver: the lock and the token of the timer's holding, or else the key
	dueMS int64     // in the key
	lane  string    // the lane to which the timer leads; not set for a timer of a beat
	beat  uuid.UUID // the number of the beat; uuid.Nil = the timer is no beat's
	index int64     // of the head; of a beat the time of its last move (ms)
}

// lookFar looks at timers that lie far ahead, and ends what wrong timers keep waiting (endFar). It looks at the timers
// of one packed template, where; "" = whole groups. Then lookFar wakes the handles that wait (wakeAll). advice.Far
// tells the caller when it is time. ended: something may have been ended, so the receives must look again. An error is
// ignored: the next look meets the same timers.
func lookFar(ctx context.Context, q *Queue, where string) (ended bool) {
	q.yield(ctx, "look far")
	over, err := viewFor(ctx, q, func(v *view) ([]farTimer, error) { return farTimers(v, where) })
	if err != nil || len(over) == 0 {
		return false
	}
	_, err = kv.Run(ctx, q.db, txFor(q, "heartbeat"), func(tx kv.Tx, _ kv.Attempt) error {
		w := q.txn(ctx, tx)
		for i, t := range over {
			if i > 0 && w.crowded() {
				break
			}
			if err := endFar(w, t); err != nil {
				return err
			}
		}
		if err := w.wakeAll(); err != nil {
			return err
		}
		return w.finish()
	})
	return err == nil
}

// farTimers returns the timers of a template that must be ended: they are wrong, and this handle has seen them
// unchanged for long enough, by the monotonic clock. No step of the wall clock ends a timer. farTimers reads, at
// snapshot, timers, and what each leads to: see readFar.
func farTimers(v *view, where string) (over []farTimer, err error) {
	type look struct {
		read    kv.Future[[]kv.KV]
		section []byte // of a sample, whose timers may be right: the shard's part; nil = all times read are wrong
	}
	var looks []look
	begin := func(r kv.KeyRange, limit int, section []byte) {
		read := v.read.GetRange(r.Selectors(), kv.RangeOptions{Limit: limit})
		looks = append(looks, look{read, section})
	}
	soon := v.nowMS + clockSlack.Milliseconds()
	last := soon + MaxDelay.Milliseconds()
	shards := v.keys.shards.all()
	page, sample := farMost(farPage, shards), farMost(farSample, shards)
	for shard := range shards {
		// Later than any process may store: as a due time, and as the time of an enqueue (retro).
		begin(v.keys.dueFrom(where, shard, last, sinceBase-1), page, nil)
		begin(v.keys.dueFrom(where, shard, sinceBase+soon, 2*sinceBase), page, nil)
		// A few of the times that may be right, behind those of the last look.
		some, section := v.keys.dueFrom(where, shard, soon, last-1), v.keys.timerIn(where, shard, 0)
		if at := v.q.noticed.far.Place(section); at != nil && some.Contains(at) {
			some.Begin = kv.KeyAfter(at)
		}
		begin(some, sample, section)
	}
	for _, l := range looks {
		rows, err := l.read.Wait(v.ctx)
		if err != nil {
			return nil, fmt.Errorf("read timers: %w", err)
		}
		if l.section != nil {
			var at []byte
			if len(rows) == sample {
				at = rows[len(rows)-1].Key
			}
			v.q.noticed.far.Next(l.section, at)
		}
		for _, row := range rows {
			t, wrong, wait, err := readFar(v, row, l.section != nil)
			if v.skipsRow(err) {
				continue
			}
			if err != nil {
				return nil, err
			}
			if wrong && v.q.noticed.far.IsOver(t.name, t.dueMS, time.Now(), wait) {
				over = append(over, t)
			}
		}
	}
	return over, nil
}

// readFar reads one timer, row. wrong reports whether its time is wrong, and wait says how long the handle must see the
// timer unchanged before it may end the timer. sample: the time in the key is one that a timer may have. Of a beat's
// timer readFar reads nothing else. Otherwise it reads the lock of the lane, at snapshot, and compares the time with
// the holding. Of a delay it also reads the keys of delayIsWrong. Without a holding the time is wrong, except in a
// sample: there the times of the head decide (headIsWrong).
func readFar(v *view, row kv.KV, sample bool) (t farTimer, wrong bool, wait time.Duration, err error) {
	p, err := v.keys.parse(row.Key)
	if err != nil {
		return t, false, 0, err
	}
	_, index, err := rec.UnpackTimer(row.Key, row.Value)
	if err != nil {
		return t, false, 0, err
	}
	t = farTimer{key: row.Key, name: row.Key, dueMS: p.index, lane: p.lane, index: index}
	lease := v.known().Lease
	if p.name == nameTimer && p.id != uuid.Nil {
		t.beat = p.id
		lease = leaseOfBeat(v, p.index, index)
		if index == 0 { // not known when it was moved
			return t, tooLate(p.index, v.nowMS, MaxLease), lease, nil
		}
		return t, ahead(index, v.nowMS), lease, nil
	}
	r, err := v.readLock(p.lane)
	if err != nil {
		return t, false, 0, err
	}
	h := r.Holding()
	switch {
	case h == nil && sample:
		wrong, err = headIsWrong(v, p.lane)
		return t, wrong, 0, err
	case h == nil:
		return t, true, 0, nil
	case h.EndMS != p.index:
		return t, true, lease, nil // the timer leads to nothing
	}
	t.name = tuple.AppendInt(v.keys.lock(p.lane), h.Token)
	if _, granted := r.GrantedTo(); granted {
		return t, isWrong(h, v.nowMS), grantLease, nil
	}
	if r.Claim() == nil {
		wait, wrong, err = delayIsWrong(v, p.lane, h, index)
		return t, wrong, wait, err
	}
	// After a jump of the versions leaseIsOver may be false for long. The claim's own lease, by the monotonic clock of
	// this handle, is long enough in any case.
	m, err := v.moment()
	if own, _ := m.leaseOf(h); !m.leaseIsOver(h) {
		lease = max(lease, min(own, MaxLease))
	}
	return t, isWrong(h, v.nowMS), lease, err
}

// headIsWrong reads the first item of a lane and reports whether its stored times are wrong (moment.tame). It is false
// if the lane is empty.
func headIsWrong(v *view, lane string) (bool, error) {
	id, found, err := v.readHead(lane)
	if err != nil || !found {
		return false, err
	}
	value, err := v.read.Get(v.keys.item(id)).Wait(v.ctx)
	if err != nil {
		return false, fmt.Errorf("read head: %w", err)
	}
	if value == nil { // the item of a hold that has ended
		return false, nil
	}
	e, _, err := rec.OpenEnvelope(value)
	if err != nil {
		return false, rec.Corrupt(v.keys.item(id), err)
	}
	return moment{nowMS: v.nowMS}.tame(&e, id.Index), nil
}

// delayIsWrong reports whether the end of a retry delay is wrong. h is the delay, the holding of a lane. wait is how
// long the nack wanted the delay to last: the end and the time of the last nack, in the attempt record of the message,
// are by one clock. The queue's lease stands for a delay without that time.
//
// The message of the delay has the index in the timer. It need not be the head any more: a dead letter may have
// returned to its place before it. A delay whose message is gone is wrong. Few messages have the same index: those of
// enqueues at the same read version. delayIsWrong reads at most sameIndex attempt records, and an item key if there are
// none.
func delayIsWrong(v *view, lane string, h *rec.Holding, index int64) (wait time.Duration, wrong bool, err error) {
	wait, wrong = v.known().Lease, isWrong(h, v.nowMS)
	first := ID{Group: lanes.GroupOf(lane), Index: index}
	past := ID{Group: first.Group, Index: index + 1}
	records := kv.KeyRange{Begin: v.keys.attempt(first), End: v.keys.attempt(past)}
	rows, err := v.read.GetRange(records.Selectors(), kv.RangeOptions{Limit: sameIndex}).Wait(v.ctx)
	if err != nil {
		return 0, false, fmt.Errorf("read attempts: %w", err)
	}
	for _, row := range rows {
		last, err := rec.UnpackAttempt(row.Key, row.Value)
		if err == nil && ahead(last.LastMS, v.nowMS) && last.LastMS <= h.EndMS {
			return min(time.Duration(h.EndMS-last.LastMS)*time.Millisecond, MaxDelay), true, nil
		}
	}
	if len(rows) > 0 {
		return wait, wrong, nil
	}
	messages := kv.KeyRange{Begin: v.keys.item(first), End: v.keys.item(past)}
	items, err := v.read.GetRange(messages.Selectors(), kv.RangeOptions{Limit: 1}).Wait(v.ctx)
	if err != nil {
		return 0, false, fmt.Errorf("read items: %w", err)
	}
	return wait, wrong || len(items) == 0, nil
}

// sameIndex bounds the records of failed attempts at one index that a look at a delay reads.
const sameIndex = 100

// farMost returns how many rows a look reads in each shard: bound, or fewer in a queue with many shards, because the
// look reads the locks of the rows one after the other.
func farMost(bound int, shards int64) int { return min(bound, max(1, farRows/int(shards))) }

// endFar ends what a timer with a wrong time keeps waiting, if the timer is still there. The end of a claim becomes
// now, so that the next receive ends it. A heartbeat becomes due, so that the next search ends it. A delay or grant is
// over, and the lane is free. If the timer belongs to a head alone, a hint takes its place. A timer that no longer
// agrees with the lock is cleared.
//
// Footprint: a read conflict on the timer, and one on the lock or, of a heartbeat, on its row. Otherwise see put, free
// and lapseAndFree. A repetition does no harm.
func endFar(w *txn, t farTimer) error {
	value, err := w.tx.Get(t.key).Wait(w.ctx)
	if err != nil || value == nil {
		return err
	}
	if t.beat != uuid.Nil {
		return endFarBeat(w, t)
	}
	r, err := w.guarded(guard.RetryLock).readLock(t.lane)
	if w.skipsRow(err) {
		return nil
	}
	if err != nil {
		return err
	}
	h := r.Holding()
	switch {
	case h == nil:
		w.clear(t.key)
		return w.free(t.lane)
	case h.EndMS != t.dueMS:
		w.clear(t.key)
		return nil
	case r.Claim() != nil:
		w.put(t.lane, r, r.Until(w.nowMS), t.index)
		return nil
	}
	return w.lapseAndFree(t.lane, r)
}

// endFarBeat is endFar for the timer t of a beat. It makes the beat due now, with a new timer: the next search ends the
// beat, or its handle moves it. If the beat is gone, has moved, or cannot be read, it only clears t.
func endFarBeat(w *txn, t farTimer) error {
	key := w.keys.beat(t.beat)
	b, found, err := waitRow(w.ctx, guard.BeatEnd.Get(w.tx, key), "beat", key, rec.UnpackBeat)
	if err != nil && !isCorrupt(err) {
		return err
	}
	w.tx.Clear(t.key)
	if w.skipsRow(err) || !found || b.DueMS != t.dueMS {
		return nil
	}
	b.DueMS = w.nowMS
	w.tx.Set(key, b.Pack())
	w.tx.Set(w.keys.beatTimer(b.DueMS, t.beat), rec.PackTimer(rec.KindBeat, 0))
	return nil
}
