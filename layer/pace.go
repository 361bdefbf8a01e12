package layer

import (
	"context"
	"fmt"
	"math"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

// A queue may bound how many items of a group start their delivery in a time (MaxRate). What a group has left of its rate
// it saves up, for a second, or for as long as one item takes if that is longer. So a claim or a take is given at most as
// many items as a second has, one at least, and over any time T it is at most rate × T and those. A delivery counts when
// it starts, a redelivery anew, whatever becomes of it.
//
// One pair a group says up to when its rate is used up. Whoever claims or takes reads it beside the lock, writes it on, and
// is given no more than there is room for between that time and now. If there is no room for one, the head is not due, see
// early.go: a timer leads to the group when it is. So the group costs no worker meanwhile, and nobody looks for it.
//
// The pair is written by who takes hold of the group, in a transaction with the lock, so it needs no conflict of its own.
// The time is by their clocks, and no clock writes one that it has not seen pass: a clock that is ahead by some time lets as
// much more through, once, and then the others wait for as long.
//
// A pair from so long ago that the group has saved up what it may is as none. A sweep clears it.

// paceFresh is how far ahead a group is left to its rate without another look at what that is: handles may have the
// configuration of as long ago.
const paceFresh = followLimit

// pace is up to when a group's rate is used up: a time and, so that a rate that does not go up in whole microseconds is
// exact, a part of one more.
type pace struct {
	us   int64
	part int64 // part/of of a microsecond; part < of
	of   int64 // the count of the rate
}

func (p pace) pack() []byte { return tuple.Tuple{p.us, p.part, p.of}.Pack() }

func unpackPace(key, value []byte) (pace, error) {
	d := keyDecoder{rest: value}
	p := pace{us: d.int(), part: d.int(), of: d.int()}
	if d.err == nil && (len(d.rest) > 0 || p.part < 0 || p.part >= p.of) {
		d.err = fmt.Errorf("no time")
	}
	if d.err != nil {
		return pace{}, corrupt(key, d.err)
	}
	return p, nil
}

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
func (w *work) allow(group string, f kv.Future[[]byte]) (allowance, error) {
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
func (w *work) spend(group string, a allowance, n int) {
	if a.rate.isNone() {
		return
	}
	count := int64(a.rate.Count)
	left := a.saved - int64(n)*a.rate.Per.Microseconds()
	back := (left + count - 1) / count
	p := pace{us: a.nowUS - back, part: back*count - left, of: count}
	w.tx.Set(w.q.keys.pace(group), p.pack())
}

// paces clears the pairs that are as none, and looks at the groups that wait by a rate that was another.
func (s *sweeper) paces() error {
	config, err := s.configuration()
	if err != nil {
		return err
	}
	return s.pagesUntil(s.q.keys.section(namePace), func(tx kv.Tx, rows []kv.KV, _ bool) (int64, error) {
		w := s.q.work(s.ctx, tx)
		groups := make([]string, len(rows))
		heads := make([]kv.Future[[]byte], len(rows))
		for i, row := range rows {
			p, err := s.q.keys.parse(row.Key)
			if err != nil {
				return 0, fmt.Errorf("%w: %w", ErrCorrupt, err)
			}
			groups[i], heads[i] = p.group, w.head(p.group)
		}
		cleared := int64(0)
		for i, row := range rows {
			used, err := unpackPace(row.Key, row.Value)
			if err != nil {
				continue // Check names it
			}
			head, err := heads[i].Wait(s.ctx)
			if err != nil {
				return 0, fmt.Errorf("read head: %w", err)
			}
			whole := config.MaxRate.whole(used, w.nowMS)
			items := s.q.keys.items(groups[i])
			empty := !items.Contains(head)
			if !empty {
				if err := w.repace(groups[i], config.MaxRate, used); err != nil {
					return 0, err
				}
			}
			if !whole {
				continue
			}
			if empty {
				// What came meanwhile may have been left to the rate, by a configuration that is newer than ours. Whoever
				// changes that one finds the group by its pair.
				if err := guardPaceEmpty.read(tx, items); err != nil {
					return 0, err
				}
			}
			if err := guardPaceSweep.read(tx, kv.SingleKey(row.Key)); err != nil {
				return 0, err
			}
			tx.Clear(row.Key)
			cleared++
		}
		return cleared, w.finish()
	}, &s.report.Paces, nil)
}

// repace makes something lead to a group with items when its rate lets it go on.
//
// Footprint: a write conflict on the lock, so that nobody leaves the group to a rate that is out of date, at the end of a
// claim or a delay either. If nothing has to be written for now, because somebody holds the group or it waits for as long
// already, a read conflict on what says so: the lock, or the timer. If it has to wait, one on the gap up to the head. A hint
// or timer too many does no harm, so all else is read at snapshot.
func (w *work) repace(group string, rate Rate, used pace) error {
	rows, err := w.tx.Snapshot().GetRange(w.q.keys.items(group).Selectors(), kv.RangeOptions{Limit: 1}).Wait(w.ctx)
	if err != nil || len(rows) == 0 {
		return err
	}
	untilMS, err := w.early(rows[0])
	if err != nil {
		return nil // Check names it
	}
	if !rate.isNone() {
		untilMS = max(untilMS, rate.allowance(used, w.nowMS).untilMS)
	}
	if err := w.excludeHolders(guardPaceExclude, group); err != nil {
		return err
	}
	if untilMS > w.nowMS {
		v, err := guardPaceExclude.get(w.tx, w.q.keys.timer(untilMS, group)).Wait(w.ctx)
		if err != nil || v != nil {
			return err // it waits for that
		}
	}
	l, err := w.q.readLock(w.ctx, w.tx.Snapshot(), group)
	if err != nil {
		return err
	}
	if l != nil {
		return guardPaceExclude.read(w.tx, kv.SingleKey(w.q.keys.lock(group)))
	}
	if untilMS > w.nowMS {
		return w.awaitHead(nil, rows[0], untilMS)
	}
	return w.free(group)
}
