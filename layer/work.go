package layer

import (
	"context"
	"fmt"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

// work is one attempt of a transaction: what the operations in it share.
type work struct {
	ctx     context.Context
	q       *Queue
	tx      kv.Tx
	nowMS   int64
	version kv.Future[int64]
	follow  *following
	anew    bool            // follow was read in this transaction, whatever the handle knew
	ready   map[string]bool // the groups that this transaction leaves ready
	hinted  []candidate     // the hints it has set, in their order
	settled map[string]bool // the groups whose claims it has ended
	// requests is those that may be woken, being read from the first hint on.
	requests kv.Future[[]kv.KV]
	counts   map[string]int // by how much each counter goes up
	// mayStage: this transaction, of those that the handle has in flight, may register or clear its request.
	mayStage bool
	flight   *flight // of the handle's own transactions
	beside   int     // how many groups the others of those are likely to take
	others   int     // groups granted to other handles
	wrote    bool    // something that a retry must not do again
	cleared  bool    // something stale
	// What was overdue and was settled.
	agedItems, agedBytes int
}

func (q *Queue) work(ctx context.Context, tx kv.Tx) *work {
	w := &work{ctx: ctx, q: q, tx: tx, nowMS: q.nowMS(), version: tx.ReadVersion(), follow: q.follow(tx)}
	w.anew = w.follow.stored != nil
	return w
}

// clock is the read version and the queue's offset: what indexes and tokens are made of.
func (w *work) clock() (int64, error) {
	rv, err := w.version.Wait(w.ctx)
	if err != nil {
		return 0, fmt.Errorf("read version: %w", err)
	}
	return rv + w.q.offset, nil
}

// config is the queue's configuration, which holds for the whole transaction.
func (w *work) config() (Config, error) { return w.follow.wait(w.ctx) }

// paused reports whether the queue is paused, as this transaction sees it.
func (w *work) paused() (bool, error) {
	_, err := w.config()
	return w.follow.paused != nil, err
}

// hint says that group is ready. attempts is how often its head has failed, as far as is known.
func (w *work) hint(index int64, group string, attempts int) {
	var value []byte
	if attempts > 0 {
		value = tuple.AppendInt(nil, int64(attempts))
	}
	key := w.q.keys.ready(index, group)
	w.tx.Set(key, value)
	if w.ready == nil {
		w.ready = make(map[string]bool)
	}
	w.ready[group] = true
	w.hinted = append(w.hinted, candidate{key: key, group: group, index: index, attempts: attempts})
	w.readRequests()
}

// readRequests starts reading the requests that may be woken.
func (w *work) readRequests() {
	if w.requests == nil {
		w.requests = w.tx.Snapshot().GetRange(w.q.keys.section(nameRequest).Selectors(), kv.RangeOptions{Limit: wakeProbe})
	}
}

// rehint is hint for a group that was in hand: where it takes its place is the queue's schedule.
func (w *work) rehint(headIndex int64, group string, attempts int) error {
	index, err := w.placeOf(headIndex)
	if err != nil {
		return err
	}
	w.hint(index, group, attempts)
	return nil
}

// placeOf is the index of the hint of a group that was in hand.
func (w *work) placeOf(headIndex int64) (int64, error) {
	config, err := w.config()
	if err != nil || config.Schedule != RoundRobin {
		return headIndex, err
	}
	now, err := w.clock()
	return max(headIndex, now), err
}

// count adds to a counter, once for all operations of the transaction.
func (w *work) count(name string, n int) {
	if n == 0 {
		return
	}
	if w.counts == nil {
		w.counts = make(map[string]int)
	}
	w.counts[name] += n
}

// finish ends a transaction's work on the queue: it writes the counters, and if a group is left ready it wakes the
// oldest waiting request. That one fulfils for all, so one is enough, however many groups there are.
func (w *work) finish() error {
	// Also where nothing asked for it: a handle whose transactions never do would not follow.
	if _, err := w.config(); err != nil {
		return err
	}
	if err := w.follow.guardDrop(w.ctx, w.tx); err != nil {
		return err
	}
	for name, n := range w.counts {
		w.q.add(w.tx, name, n)
	}
	if len(w.ready) == 0 {
		return nil
	}
	return w.wakeOldest()
}
