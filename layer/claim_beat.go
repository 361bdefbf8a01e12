package layer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/guard"
	"fdbfifo/layer/internal/rec"
)

// joining is the reads of a transaction which claims by heartbeat.
type joining struct {
	p     *pulse
	row   kv.Future[[]byte]
	timer kv.Future[[]byte]
	dueMS int64 // that the reads have found; 0 = the beat cannot be joined
	done  bool
}

// readJoin starts the reads if a receive of the transaction asks for claims by heartbeat.
func (c *claimer) readJoin() {
	if c.join != nil {
		return
	}
	for _, r := range c.owed {
		if p := c.q.heart.pulse(); r.o.Heartbeat && p != nil {
			snapshot := c.tx.Snapshot()
			c.join = &joining{
				p: p, row: snapshot.Get(c.keys.beat(p.handle)),
				timer: snapshot.Get(c.keys.beatTimer(p.dueMS.Load(), p.handle)),
			}
			return
		}
	}
}

// byHeartbeat makes the claim of h a claim by heartbeat, if the handle's beat can be joined. Otherwise, for example if
// the beat has just been ended, the claim has a lease of its own. byHeartbeat returns the end of the claim.
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

// waitJoin waits for the reads, and decides whether the handle's beat can be joined: then it sets dueMS, and makes the
// transaction fail if the beat is ended before it commits. A beat that moves does not disturb it.
func (c *claimer) waitJoin(j *joining) error {
	key := c.keys.beat(j.p.handle)
	v, err := j.row.Wait(c.ctx)
	if err != nil {
		return fmt.Errorf("read beat: %w", err)
	}
	timer, err := j.timer.Wait(c.ctx)
	if err != nil {
		return fmt.Errorf("read the beat's timer: %w", err)
	}
	if v == nil {
		return nil
	}
	b, err := rec.UnpackBeat(key, v)
	if c.passes(err) || b.Ended || b.DueMS <= c.nowMS {
		return nil
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

// ensureBeat begins a beat of the handle, if it has none. If that fails, claims have leases of their own.
func (q *Queue) ensureBeat(ctx context.Context) {
	h := q.heart
	if h.pulse() != nil {
		return
	}
	select {
	case h.turn <- struct{}{}:
	case <-h.life.Done(): // Close keeps the turn
		return
	case <-ctx.Done():
		return
	}
	defer func() { <-h.turn }()
	q.yield(ctx, "begin beat")
	if h.pulse() != nil || q.isClosed() {
		return
	}
	p := &pulse{handle: q.random.uuid(), ended: make(chan struct{})}
	if there, err := q.writeBeat(ctx, p, true); err != nil || !there {
		return // if it was written after all, it is due soon, with nothing to end
	}
	h.begin(p)
	h.wg.Go(func() { q.keepBeating(p) })
}

// writeBeat is moveBeat in a transaction of its own. If begins is set, it begins the beat. there is false if another
// handle has ended the beat.
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

// moveBeat moves the end of a beat to a lease from now, but never to an earlier time, because receives have returned
// claims with an end (Claim.Until). That matters when the queue's lease has just been made shorter. A beat that moves
// always changes its time, because other handles take one that stands for dead. If begins is set, the beat begins, and
// one that is there was written by an earlier attempt: it need not change. moveBeat returns when the beat is due; 0 =
// another has ended the beat.
func (w *txn) moveBeat(p *pulse, begins bool) (dueMS int64, err error) {
	keys, handle := w.keys, p.handle
	key := keys.beat(handle)
	config, err := w.config()
	if err != nil {
		return 0, err
	}
	v, err := guard.BeatMove.Get(w.tx, key).Wait(w.ctx)
	if err != nil {
		return 0, fmt.Errorf("read beat: %w", err)
	}
	if v == nil && !begins {
		return 0, nil
	}
	dueMS = w.nowMS + config.Lease.Milliseconds()
	if v != nil {
		b, err := rec.UnpackBeat(key, v)
		if w.passes(err) || b.Ended {
			return 0, nil
		}
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

// keepBeating moves a beat each third of a lease, until it was ended, or the handle is closed or leaves it.
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
		case <-ctx.Done():
		}
		timer.Stop()
		q.yield(ctx, "beat")
		if isEnded(p) || ctx.Err() != nil {
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

// untilNextBeat is a third of the lease, or of the time for which the beat still keeps its claims if that is less: the
// handle may have learned of a longer lease since the transaction that moved the beat.
func untilNextBeat(q *Queue, p *pulse) time.Duration { return min(q.knownConfig().Lease, p.left()) / 3 }

func isEnded(p *pulse) bool {
	select {
	case <-p.ended:
		return true
	default:
		return false
	}
}

// leaveIfUnsettled makes the handle leave the beat of a claim whose settlement has failed with err, because perhaps no
// call settles the claim any more. Example: the outcome of an ack is unknown. If the claim had a lease of its own, the
// lease would expire. The holders of the handle's other claims must extend them. The handle keeps the beat after an
// error of the call itself, of which the caller knows that nothing was done.
func (q *Queue) leaveIfUnsettled(ctx context.Context, handle uuid.UUID, err error) {
	if kv.Code(err) != 0 || kv.MaybeCommitted(err) || isCorrupt(err) || err != nil && ctx.Err() != nil {
		q.heart.end(q.heart.of(handle))
	}
}

// endDueBeats ends the due beats which looks of the handle have met. It ignores an error, because the next look meets
// the beats again.
func (q *Queue) endDueBeats(ctx context.Context, due []dueBeat) (ended bool) {
	_, err := kv.Run(ctx, q.db, txFor(q, "heartbeat"), func(tx kv.Tx, a kv.Attempt) (err error) {
		w := q.txn(ctx, tx)
		if ended, err = w.endBeats(due); err != nil {
			return err
		}
		ended = ended || a.MaybeCommitted // an earlier attempt may have left nothing to end
		return w.finish()
	})
	return ended && err == nil
}

// stopBeat ends the heartbeat of a handle which is being closed. If the handle has claims by heartbeat left, the beat
// stays, and is due within a lease: the claims last until then.
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

// clearBeat clears a beat that keeps no claim. A claim that is to join the beat, and is committed later, must fail.
func clearBeat(q *Queue, tx kv.Tx, handle uuid.UUID, value []byte) error {
	if err := guard.BeatJoin.Write(tx, q.keys.beatJoin(handle)); err != nil {
		return err
	}
	key := q.keys.beat(handle)
	b, err := rec.UnpackBeat(key, value)
	q.passes(err) // its timer is cleared when met
	tx.Clear(key)
	tx.Clear(q.keys.beatTimer(b.DueMS, handle))
	return nil
}
