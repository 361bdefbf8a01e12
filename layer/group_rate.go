package layer

import (
	"context"
	"fmt"
	"math"

	"fdbfifo/kv"
)

// A queue may bound how many items of a group start their delivery per time (MaxRate). A group saves up unused rate,
// for a second, or for the time of one item if longer. So a claim or a take gets at most a second's worth of items, at
// least one, and over any time T at most rate × T plus a second's worth start. A delivery counts at the start, whatever
// the outcome; a redelivery again.
//
// Each group has a pair: the time up to which its rate is used up. Whoever claims or takes reads the pair beside the
// lock, moves the time on, and gets no more items than fit between the time and now. If no item fits, the head is not
// due, see group_delay.go: a timer leads to the group later. Meanwhile the group costs no worker, nor a search.
//
// The pair is written by whoever takes hold of the group, in a transaction with the lock, so no conflict on the pair is
// needed. The stored time is never ahead of the writer's clock. Example: a worker 5 s fast delivers 5 s' worth too
// much, once; the others then wait 5 s longer.
//
// A pair so old that the group has saved up the maximum means the same as no pair. A sweep clears the pair.

// paceFresh is the longest wait by a rate for which the configuration is not read anew, because a handle's
// configuration may be as old anyway.
const paceFresh = followLimit

// allowance is what a group's rate leaves, counted in parts of a microsecond, as many parts as the rate has items.
// Example: at 3/10s a microsecond has 3 parts, and an item takes 10,000,000 parts.
type allowance struct {
	rate    Rate // none = no bound
	nowUS   int64
	saved   int64 // unused parts, at most a burst's
	items   int   // how many may be delivered now
	untilMS int64 // when the next item may be delivered, if none may now
}

// allowance returns what the rate leaves of a group whose rate is used up as p says.
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

// whole reports whether a group's token bucket is full. A full bucket need not be stored.
func (r Rate) whole(p pace, nowMS int64) bool {
	return r.isNone() || r.allowance(p, nowMS).saved == r.burst()*r.Per.Microseconds()
}

// readPace starts reading the group's pair, unless the queue has no rate as far as the handle knows.
func (q *Queue) readPace(tx kv.ReadTx, group string) kv.Future[[]byte] {
	if q.Config().MaxRate.isNone() {
		return nil
	}
	return tx.Get(q.keys.pace(group))
}

// allow returns what a group's rate leaves. f is the read which readPace started, or nil.
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
	// Whoever raised the rate has just freed the waiting groups. A handle still at the old rate must not undo this.
	w.followAnew()
	return w.allow(group, f)
}

// allowance returns what the rate leaves of a group whose pair f reads.
func (q *Queue) allowance(
	ctx context.Context, rate Rate, group string, f kv.Future[[]byte], nowMS int64,
) (allowance, error) {
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

// spend counts n items which start their delivery. The caller has a read conflict on the lock.
func (w *txn) spend(group string, a allowance, n int) {
	if a.rate.isNone() {
		return
	}
	w.tx.Set(w.q.keys.pace(group), a.after(int64(n)).pack())
}

// after is up to when the rate is used up once n of the allowed items have started.
func (a allowance) after(n int64) pace {
	count := int64(a.rate.Count)
	left := a.saved - n*a.rate.Per.Microseconds()
	back := (left + count - 1) / count
	return pace{us: a.nowUS - back, part: back*count - left, of: count}
}
