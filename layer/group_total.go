package layer

import (
	"context"
	"fmt"
	"time"

	"fdbfifo/kv"
)

// reserve returns how many of n items the queue's rate (MaxRateTotal) lets this transaction deliver, and books them. If
// none, the transaction delivers nothing more: w.shortMS is when to look again. See tx_budget.go.
func (w *txn) reserve(n int) (int, error) {
	config, err := w.config()
	if err != nil || config.MaxRateTotal.isNone() || n == 0 {
		return n, err
	}
	if w.shortMS > 0 {
		return 0, nil
	}
	got, untilMS, err := w.q.budget.reserve(
		w.ctx, config.MaxRateTotal, n, w.booked, w.q.nowMS,
		func(wait int) { w.q.yield(w.ctx, fmt.Sprint("drawn ", wait)) },
		func(want int64) (int64, int64, error) { return w.q.draw(w, config.MaxRateTotal, want) },
	)
	if err != nil {
		return 0, fmt.Errorf("draw from the queue's rate: %w", err)
	}
	if got == 0 {
		w.shortMS = untilMS
	}
	return got, nil
}

// unreserve gives back n of the items booked last.
func (w *txn) unreserve(n int) {
	if n == 0 {
		return
	}
	if config, err := w.config(); err == nil && !config.MaxRateTotal.isNone() {
		w.q.budget.giveBackLast(w.booked, n)
	}
}

// short reports whether the queue's rate is used up as far as the handle knows, so that there is no use in looking for
// groups.
func (w *txn) short() (bool, error) {
	config, err := w.config()
	if err != nil || config.MaxRateTotal.isNone() {
		return false, err
	}
	if w.shortMS == 0 {
		w.shortMS = w.q.budget.usedUp(config.MaxRateTotal, w.q.nowMS())
	}
	return w.shortMS > 0, nil
}

// runWithin is run within the queue's rate: nothing if the rate is used up.
func (w *txn) runWithin(
	f *found, limit int, fits func(size int) bool,
) (items []Item, out []delivered, err error) {
	room, err := w.reserve(min(limit, f.rows.due(w.nowMS), f.allowed.items))
	if err != nil || room == 0 {
		return nil, nil, err
	}
	items, out, err = w.run(f, room, fits)
	w.unreserve(room - len(out))
	return items, out, err
}

// paceAhead is how far the time up to which the queue's rate is used up may lie ahead of a handle's clock. No handle
// writes a time ahead of its own clock. So what lies further ahead was written by a clock that was wrong, or is by a
// clock that is, and must not stop the queue for as long.
const paceAhead = time.Minute

// draw takes up to want items from the queue's rate in a transaction of its own. If there are none, draw writes nothing
// and returns when there will be.
//
// Footprint: reads and writes the queue's pair, with a conflict on the pair alone, so that of two draws at the same
// time one sees the other. A draw of unknown outcome is done again: if the first was applied, its items are lost.
func (q *Queue) draw(by *txn, rate Rate, want int64) (got, untilMS int64, err error) {
	key := q.keys.meta(metaPace)
	_, err = kv.Run(by.ctx, q.db, q.opts.Tx, func(tx kv.Tx, _ kv.Attempt) error {
		got, untilMS = 0, 0
		w := q.txn(by.ctx, tx)
		a, err := q.allowanceTotal(w.ctx, tx.Snapshot(), rate, w.nowMS)
		if err != nil || a.items == 0 {
			untilMS = a.untilMS
			return err
		}
		if err := guardTotalDraw.read(tx, kv.SingleKey(key)); err != nil {
			return err
		}
		got = min(want, int64(a.items))
		tx.Set(key, a.after(got).pack())
		return w.finish()
	})
	if err != nil {
		return 0, 0, err
	}
	return got, untilMS, nil
}

// allowanceTotal returns what the queue's rate leaves at nowMS, as far as nobody has drawn it.
func (q *Queue) allowanceTotal(ctx context.Context, tx kv.ReadTx, rate Rate, nowMS int64) (allowance, error) {
	key := q.keys.meta(metaPace)
	v, err := tx.Get(key).Wait(ctx)
	if err != nil {
		return allowance{}, fmt.Errorf("read pace of the queue: %w", err)
	}
	var p pace
	if v != nil {
		if p, err = unpackPace(key, v); err != nil {
			return allowance{}, err
		}
	}
	if p.us-nowMS*1000 > paceAhead.Microseconds() {
		p = pace{us: nowMS*1000 - rate.Per.Microseconds()/int64(rate.Count) - 1} // a single item
	}
	return rate.allowance(p, nowMS), nil
}
