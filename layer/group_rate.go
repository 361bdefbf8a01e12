package layer

import (
	"context"
	"fmt"
	"math"

	"fdbfifo/kv"
)

// A queue may bound how many items of a group start their delivery in a time (MaxRate). What a group has left of its rate
// it saves up, for a second, or for as long as one item takes if that is longer. So a claim or a take is given at most as
// many items as a second has, one at least, and over any time T it is at most rate × T and those. A delivery counts when
// it starts, a redelivery anew, whatever becomes of it.
//
// One pair a group says up to when its rate is used up. Whoever claims or takes reads it beside the lock, writes it on, and
// is given no more than there is room for between that time and now. If there is no room for one, the head is not due, see
// group_delay.go: a timer leads to the group when it is. So the group costs no worker meanwhile, and nobody looks for it.
//
// The pair is written by who takes hold of the group, in a transaction with the lock, so it needs no conflict of its own.
// The time is by their clocks, and no clock writes one that it has not seen pass: a clock that is ahead by some time lets as
// much more through, once, and then the others wait for as long.
//
// A pair from so long ago that the group has saved up what it may is as none. A sweep clears it.

// paceFresh is how far ahead a group is left to its rate without another look at what that is: handles may have the
// configuration of as long ago.
const paceFresh = followLimit

// allowance is what a group's rate leaves. Time is counted in parts of a microsecond, as many as the rate has items: an item
// takes as many parts as the rate's time has microseconds.
type allowance struct {
	rate    Rate // none = no bound
	nowUS   int64
	saved   int64 // parts that are not used; what may be saved up at most
	items   int   // that may be delivered now
	untilMS int64 // when the next may, if none may now
}

// allowance is what the rate leaves of a group that has used it up as p says.
func (r Rate) allowance(p pace, nowMS int64) allowance {
	a := allowance{rate: r, nowUS: nowMS * 1000}
	count, item := int64(r.Count), r.Per.Microseconds()
	most := r.burst() * item
	if p.of != count {
		p.us, p.part = p.us+min(p.part, 1), 0 // of another rate
	}
	from := p.us
	if behind := a.nowUS - p.us; behind > 0 {
		from, a.saved = a.nowUS, min(behind, most/count+1)*count-p.part
		a.saved, p.part = min(a.saved, most), 0
	}
	if a.items = int(a.saved / item); a.items == 0 {
		a.untilMS = (from + (item-a.saved+p.part+count-1)/count + 999) / 1000
	}
	return a
}

// whole reports whether a group has saved up what it may: what is kept of its rate is as none.
func (r Rate) whole(p pace, nowMS int64) bool {
	return r.isNone() || r.allowance(p, nowMS).saved == r.burst()*r.Per.Microseconds()
}

// readPace starts reading how far a group's rate is used up, if the queue has one as far as the handle knows.
func (q *Queue) readPace(tx kv.ReadTx, group string) kv.Future[[]byte] {
	if q.Config().MaxRate.isNone() {
		return nil
	}
	return tx.Get(q.keys.pace(group))
}

// allow says what a group's rate leaves. f is as readPace returns it.
func (w *txn) allow(group string, f kv.Future[[]byte]) (allowance, error) {
	config, err := w.config()
	if err != nil || config.MaxRate.isNone() {
		return allowance{items: math.MaxInt}, err
	}
	if f == nil {
		f = w.tx.Snapshot().Get(w.q.keys.pace(group))
	}
	a, err := w.q.allowance(w.ctx, config.MaxRate, group, f, w.nowMS)
	if err != nil || w.anew || lacks(guardPaceFresh) || a.untilMS-w.nowMS <= paceFresh.Milliseconds() {
		return a, err
	}
	// Whoever has just raised the rate has seen to the groups that wait: it must not be undone by one who does not know.
	w.follow, w.anew = w.q.followAnew(w.tx, w.follow.begun), true
	return w.allow(group, f)
}

// allowance is what a rate leaves of a group whose pair f reads.
func (q *Queue) allowance(ctx context.Context, rate Rate, group string, f kv.Future[[]byte], nowMS int64) (allowance, error) {
	v, err := f.Wait(ctx)
	if err != nil {
		return allowance{}, fmt.Errorf("read pace: %w", err)
	}
	var p pace
	if v != nil {
		if p, err = unpackPace(q.keys.pace(group), v); err != nil {
			return allowance{}, err
		}
	}
	return rate.allowance(p, nowMS), nil
}

// spend counts n items that start their delivery, under the conflict on the lock that the caller has.
func (w *txn) spend(group string, a allowance, n int) {
	if a.rate.isNone() {
		return
	}
	count := int64(a.rate.Count)
	left := a.saved - int64(n)*a.rate.Per.Microseconds()
	back := (left + count - 1) / count
	p := pace{us: a.nowUS - back, part: back*count - left, of: count}
	w.tx.Set(w.q.keys.pace(group), p.pack())
}
