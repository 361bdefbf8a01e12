package layer

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/guard"
	"fdbfifo/layer/internal/rec"
)

// This file has claims by heartbeat, from the side of the handle. tx_beat.go explains them, and store_hold.go the keys.
// In short: a handle has a beat, a time in the database up to which all its claims by heartbeat last, and moves the
// beat while its process lives. The key "beat" has that time. A timer of kind "beat" leads other handles to the beat
// when it is due: then they end the claims. Each such claim has a key "held" in place of a timer. A beat has a number
// (handle in the keys, a UUID), and a pulse is what the handle knows of its beat. A claim joins the beat if it is made
// to last as long as the beat. A handle that leaves a beat moves it no longer.

// joining has the reads that tell a transaction whether its claims can join the handle's beat.
type joining struct {
	p     *pulse            // of the beat
	row   kv.Future[[]byte] // of the key "beat"
	timer kv.Future[[]byte] // of the beat's timer
	dueMS int64             // when the beat is due, once done; 0 = the beat cannot be joined
	done  bool              // the reads were waited for
}

// readJoin starts reading the handle's beat and its timer, at snapshot, if a receive of the transaction asks for claims
// by heartbeat. It does nothing if the handle has no beat, or if the reads have begun.
func (c *claimer) readJoin() {
	p := c.q.heart.pulse()
	if c.join != nil || p == nil || !slices.ContainsFunc(c.owed, func(r *reception) bool { return r.o.Heartbeat }) {
		return
	}
	c.join = &joining{
		p: p, row: c.view.read.Get(c.keys.beat(p.handle)),
		timer: c.view.read.Get(c.keys.beatTimer(p.dueMS.Load(), p.handle)),
	}
}

// byHeartbeat makes h, the claim that r is about to get, a claim by heartbeat: it sets h.Beat, and h.EndMS to the time
// at which the beat is due. It changes nothing if r does not ask for that, or if the handle's beat cannot be joined,
// for example because the beat has just been ended. Then the claim has a lease of its own.
func (c *claimer) byHeartbeat(r *reception, h *rec.Holding) error {
	if !r.o.Heartbeat || c.join == nil {
		return nil
	}
	j := c.join
	if !j.done {
		if err := c.waitJoin(j); err != nil {
			return err
		}
		j.done = true
	}
	if j.dueMS > 0 {
		h.Beat, h.EndMS = j.p.handle, j.dueMS
	}
	return nil
}

// waitJoin waits for the reads, and decides whether the handle's beat can be joined. If so, it sets j.dueMS, and adds a
// read conflict on the key beatJoin, so that the transaction fails if the beat is ended before it commits. A beat that
// moves does not disturb it. If the beat's timer is missing, waitJoin sets it.
func (c *claimer) waitJoin(j *joining) error {
	b, found, err := c.waitBeat(j.p.handle, j.row)
	if err != nil && !c.skipsRow(err) {
		return err
	}
	if !found || b.Ended || b.DueMS <= c.nowMS {
		return nil
	}
	timer, err := j.timer.Wait(c.ctx)
	if err != nil {
		return fmt.Errorf("read the beat's timer: %w", err)
	}
	if timer == nil {
		// The beat has moved, with its timer, after readJoin had chosen the timer to read. Or a purge of all items has
		// cleared the timer. If the beat has moved again, the timer set here leads to nothing, and the next search
		// clears it.
		c.tx.Set(c.keys.beatTimer(b.DueMS, j.p.handle), rec.PackTimer(rec.KindBeat, 0))
	}
	j.dueMS = b.DueMS
	return guard.BeatJoin.Read(c.tx, kv.SingleKey(c.keys.beatJoin(j.p.handle)))
}

// ensureBeat begins a beat of the handle, if it has none, and waits until the beat is written: see beginBeat. If
// another goroutine is doing so, ensureBeat waits for that.
func (q *Queue) ensureBeat(ctx context.Context) {
	h := q.heart
	if h.pulse() != nil {
		return
	}
	select {
	case h.turn <- struct{}{}:
		beginBeat(ctx, q)
		return
	default:
	}
	select {
	case h.turn <- struct{}{}: // the other goroutine has begun the beat, or failed just now
		<-h.turn
	case <-h.life.Done(): // the handle is being closed, and stopBeat keeps the turn
	case <-ctx.Done():
	}
}

// ensureBeatLater begins a beat of the handle, if it has none, in a goroutine of its own. It is for a receive that also
// settles a claim, because the settlement must not wait for the beat. The claims of this receive have leases of their
// own unless the beat is written first. The goroutine gives up after a third of a lease, or longestBegin if that is
// less: a later receive tries again.
func ensureBeatLater(q *Queue) {
	h := q.heart
	if h.pulse() != nil {
		return
	}
	select {
	case h.turn <- struct{}{}:
		within, cancel := context.WithTimeout(h.life, min(q.knownConfig().Lease/3, longestBegin))
		go func() {
			defer cancel()
			beginBeat(q.named(within, "begin beat"), q)
		}()
	default: // another goroutine is doing so, or the handle is being closed
	}
}

// longestBegin bounds the time in which the goroutine of ensureBeatLater writes a beat.
const longestBegin = 5 * time.Second

// beginBeat begins a beat of the handle, if it has none: it writes the beat and its timer, and starts the goroutine
// that moves the beat. If that fails, claims have leases of their own. The caller must have taken heart.turn, and
// beginBeat gives it back.
func beginBeat(ctx context.Context, q *Queue) {
	h := q.heart
	defer func() { <-h.turn }()
	q.yield(ctx, "begin beat")
	if h.pulse() != nil || q.isClosed() {
		return
	}
	p := h.newPulse(q.random.uuid())
	if there, err := q.writeBeat(ctx, p, true); err != nil || !there {
		p.leave()
		return // if it was written after all, it is due soon, with nothing to end
	}
	h.begin(p)
	h.wg.Go(func() { q.keepBeating(p) })
}

// writeBeat is moveBeat in a transaction of its own, and notes in p when the beat is due. If begins is set, it begins
// the beat. there reports whether the beat is the handle's still; false = it was ended, is gone or cannot be read, or
// there is an error. The error is ErrNoQueue if the queue is gone.
//
// Footprint: a read conflict on the beat, so that either a move or an end fails. A move of unknown outcome that lands
// late fails too, because the retry has written the beat. Otherwise a retry is safe, because each attempt reads the
// beat again.
func (q *Queue) writeBeat(ctx context.Context, p *pulse, begins bool) (there bool, err error) {
	var dueMS, clock int64
	var due time.Time
	_, err = kv.Run(ctx, q.db, txFor(q, "heartbeat"), func(tx kv.Tx, _ kv.Attempt) (err error) {
		w := q.txn(ctx, tx)
		if dueMS, err = w.moveBeat(p, begins); err != nil {
			return err
		}
		due = byMonotonic(&w.view, dueMS)
		if clock, err = w.clock(); err != nil {
			return err
		}
		return w.finish()
	})
	if err != nil || dueMS == 0 {
		return false, err
	}
	p.dueMS.Store(dueMS)
	p.due.Store(&due)
	p.clock.Store(clock)
	return true, nil
}

// moveBeat moves the time at which a beat is due to a lease from now. It does not choose an earlier time than the
// present one, because receives have returned claims with an end (Claim.Until). That matters when the queue's lease has
// just been made shorter. But if the handle's clock was ahead when it last moved the beat, the time becomes earlier.
// moveBeat reads the beat, with a conflict, writes it, clears its timer, and sets another.
//
// A beat that moves always gets another time, because other handles take a beat that keeps its time for a dead
// handle's. If begins is set, the beat begins, and one that is there was written by an earlier attempt: it need not
// change. dueMS is the new time. 0 = the beat was ended, is gone or cannot be read, and moveBeat has written nothing.
func (w *txn) moveBeat(p *pulse, begins bool) (dueMS int64, err error) {
	keys, handle := w.keys, p.handle
	key := keys.beat(handle)
	config, err := w.config()
	if err != nil {
		return 0, err
	}
	b, found, err := w.waitBeat(handle, guard.BeatMove.Get(w.tx, key))
	if err != nil && !w.skipsRow(err) {
		return 0, err
	}
	if err != nil || b.Ended || !found && !begins {
		return 0, nil // it cannot be read, it was ended, or it is gone
	}
	dueMS = w.nowMS + config.Lease.Milliseconds()
	if found {
		w.tx.Clear(keys.beatTimer(b.DueMS, handle))
		if !tooLate(b.DueMS, w.nowMS, max(p.left(), 0)) { // else the handle's clock was ahead when it moved the beat
			if dueMS = max(dueMS, b.DueMS); dueMS == b.DueMS && !begins {
				dueMS++
			}
		}
	}
	w.tx.Set(key, rec.Beat{DueMS: dueMS, Owner: w.q.opts.Owner}.Pack())
	w.tx.Set(keys.beatTimer(dueMS, handle), rec.PackTimer(rec.KindBeat, w.nowMS))
	return dueMS, nil
}

// keepBeating moves a beat each third of a lease. It returns when the handle has left the beat, another handle has
// ended it, or it is due and was not moved in time. It also returns when the queue is gone or the handle is closed.
// Except at a close the handle has no beat then, and the next claim by heartbeat begins another.
func (q *Queue) keepBeating(p *pulse) {
	ctx := q.named(q.heart.life, "beat")
	defer func() {
		if ctx.Err() == nil { // else the handle is being closed, and stopBeat clears the beat
			q.heart.end(p)
		}
	}()
	wait := untilNextBeat(q, p)
	for {
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-p.ended:
		}
		timer.Stop()
		q.yield(ctx, "beat")
		if isEnded(p) {
			return
		}
		within, cancel := context.WithTimeout(ctx, p.left()) // when the beat is due it is too late
		there, err := q.writeBeat(within, p, false)
		cancel()
		if p.left() <= 0 {
			return // whatever the database does: others may have the groups by now
		}
		wait = untilNextBeat(q, p)
		switch {
		case errors.Is(err, ErrNoQueue), err == nil && !there:
			return
		case err != nil:
			wait = max(min(wait/2, time.Second), leastBeatPause)
		}
	}
}

// leastBeatPause bounds the pause between two tries to move a beat.
const leastBeatPause = 50 * time.Millisecond

// untilNextBeat returns the time until the next move of the beat: a third of the lease, or of the time for which the
// beat still keeps its claims if that is less. The handle may have learned of a longer lease since it moved the beat.
func untilNextBeat(q *Queue, p *pulse) time.Duration { return min(q.knownConfig().Lease, p.left()) / 3 }

// isEnded reports whether the handle has left the beat, or is being closed.
func isEnded(p *pulse) bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// leaveIfUnsettled makes the handle leave the beat of a claim if the claim may never be settled. err is the error of a
// settlement of this claim. Example: the outcome of an ack is unknown, and the caller gives up. A lease of the claim's
// own would expire, but a claim by heartbeat would last as long as the process. The price is that the holders of the
// handle's other claims by the beat must extend them.
//
// handle is the number of the beat; uuid.Nil = the claim has a lease of its own. The handle keeps the beat after
// success, and after an error of the call itself, of which the caller knows that nothing was done. Example:
// ErrNotInClaim. leaveIfUnsettled touches memory only.
func (q *Queue) leaveIfUnsettled(ctx context.Context, handle uuid.UUID, err error) {
	if kv.Code(err) != 0 || kv.MaybeCommitted(err) || isCorrupt(err) || err != nil && ctx.Err() != nil {
		q.heart.end(q.heart.of(handle))
	}
}

// endDueBeats ends claims of the handles whose beats are due, in transactions of its own: of beatsAtOnce handles in
// each, until one transaction has ended a claim. Looks of this handle have met the beats. ended reports whether a claim
// was ended, so that its group may be ready. endDueBeats ignores an error, because the next look meets the beats again.
// endBeat has the keys.
func (q *Queue) endDueBeats(ctx context.Context, due []dueBeat) (ended bool) {
	for some := range slices.Chunk(together(due), beatsAtOnce) {
		_, err := kv.Run(ctx, q.db, txFor(q, "heartbeat"), func(tx kv.Tx, a kv.Attempt) (err error) {
			w := q.txn(ctx, tx)
			w.chores.halvings += a.N
			if ended, err = w.endBeats(some); err != nil {
				return err
			}
			ended = ended || a.MaybeCommitted // an earlier attempt may have left nothing to end
			return w.finish()
		})
		if err != nil || ended {
			return err == nil
		}
	}
	return false
}

// stopBeat ends the heartbeat of a handle that is being closed: it stops the goroutine that moves the beat, and clears
// the beat and its timer (clearBeat). If a claim by the beat is left (a key "held"), the beat stays, and is due within
// a lease: the claims last until then. stopBeat reads the beat and its first key held, both with a conflict. It keeps
// heart.turn, so that no beat begins afterwards.
func (q *Queue) stopBeat(ctx context.Context) error {
	select {
	case q.heart.turn <- struct{}{}: // for good: no beat is begun from now on
	default:
		select {
		case q.heart.turn <- struct{}{}:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	p := q.heart.pulse()
	q.heart.stop()
	q.heart.wg.Wait()
	if p == nil {
		return nil
	}
	key := q.keys.beat(p.handle)
	_, err := kv.Run(ctx, q.db, txFor(q, "heartbeat"), func(tx kv.Tx, _ kv.Attempt) error {
		first, held := tx.Get(key), q.keys.heldBy(p.handle)
		left := tx.GetRange(held.Selectors(), kv.RangeOptions{Limit: 1})
		v, err := first.Wait(ctx)
		if err != nil {
			return fmt.Errorf("read beat: %w", err)
		}
		rows, err := left.Wait(ctx)
		if err != nil {
			return fmt.Errorf("read claims by heartbeat: %w", err)
		}
		if v == nil || len(rows) > 0 {
			return nil
		}
		return clearBeat(q, tx, p.handle, v)
	})
	if err != nil {
		return fmt.Errorf("end beat: %w", err)
	}
	return nil
}

// clearBeat clears a beat that keeps no claim, and its timer. value is the beat's value. The caller must have read the
// beat and its keys held, with conflicts. A write conflict on the key beatJoin makes a claim fail that is to join the
// beat and is committed later.
func clearBeat(q *Queue, tx kv.Tx, handle uuid.UUID, value []byte) error {
	if err := guard.BeatJoin.Write(tx, q.keys.beatJoin(handle)); err != nil {
		return err
	}
	key := q.keys.beat(handle)
	b, err := rec.UnpackBeat(key, value)
	q.skipsRow(err) // its timer is cleared when met
	tx.Clear(key)
	tx.Clear(q.keys.beatTimer(b.DueMS, handle))
	return nil
}
