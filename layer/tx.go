package layer

import (
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
)

// work is one attempt of a transaction: what the operations in it share.
type txn struct {
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
	illegal  error   // a step that no group may take; see put
	// grants is the keys of the grants to this handle that are not taken yet.
	grants map[string]bool
	// What was overdue and was settled.
	agedItems, agedBytes int
}

func (q *Queue) txn(ctx context.Context, tx kv.Tx) *txn {
	w := &txn{ctx: ctx, q: q, tx: tx, nowMS: q.nowMS(), version: tx.ReadVersion(), follow: q.follow(tx)}
	w.anew = w.follow.stored != nil
	return w
}

// clock is the read version and the queue's offset: what indexes and tokens are made of.
func (w *txn) clock() (int64, error) {
	rv, err := w.version.Wait(w.ctx)
	if err != nil {
		return 0, fmt.Errorf("read version: %w", err)
	}
	return rv + w.q.offset, nil
}

// config is the queue's configuration, which holds for the whole transaction.
func (w *txn) config() (Config, error) { return w.follow.wait(w.ctx) }

// paused reports whether the queue is paused, as this transaction sees it.
func (w *txn) paused() (bool, error) {
	_, err := w.config()
	return w.follow.paused != nil, err
}

// hint says that group is ready. attempts is how often its head has failed, as far as is known.
func (w *txn) hint(index int64, group string, attempts int) (key []byte) {
	var value []byte
	if attempts > 0 {
		value = packInt(int64(attempts))
	}
	key = w.q.keys.ready(index, group)
	w.tx.Set(key, value)
	if w.ready == nil {
		w.ready = make(map[string]bool)
	}
	w.ready[group] = true
	w.hinted = append(w.hinted, candidate{key: key, group: group, index: index, attempts: attempts})
	w.readRequests()
	return key
}

// readRequests starts reading the requests that may be woken.
func (w *txn) readRequests() {
	if w.requests == nil {
		w.requests = w.tx.Snapshot().GetRange(w.q.keys.section(nameRequest).Selectors(), kv.RangeOptions{Limit: wakeProbe})
	}
}

// rehint is hint for a group that was held: the queue's schedule says where the group takes its place.
func (w *txn) rehint(headIndex int64, group string, attempts int) (key []byte, err error) {
	index, err := w.placeOf(headIndex)
	if err != nil {
		return nil, err
	}
	return w.hint(index, group, attempts), nil
}

// placeOf is the index of the hint of a group that was in flight.
func (w *txn) placeOf(headIndex int64) (int64, error) {
	config, err := w.config()
	if err != nil || config.Schedule != RoundRobin {
		return headIndex, err
	}
	now, err := w.clock()
	return max(headIndex, now), err
}

// count adds to a counter, once for all operations of the transaction.
func (w *txn) count(name string, n int) {
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
func (w *txn) finish() error {
	if w.illegal != nil {
		return w.illegal
	}
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

// candidate is a hint, a due timer or a grant: a group that may be ready.
type candidate struct {
	key      []byte // of the hint, timer or grant; nil if the group was named by the caller
	group    string
	index    int64 // of the head, when the hint or timer was written
	attempts int   // of the head, when the hint was written
	timer    bool  // of a lock
	head     bool  // the timer of a head: like a hint, but that it does not know of attempts
	grant    int64 // the token, if this is a grant to us
}

// accepts reports whether this is the grant that the group is kept for.
func (c *candidate) accepts(r *record) bool {
	return c.grant != 0 && r.is(kindGrant) && r.holding().token == c.grant
}

// lease is the queue's if d is 0.
func (w *txn) lease(d time.Duration) (time.Duration, error) {
	if d > 0 {
		return d, nil
	}
	config, err := w.config()
	return config.Lease, err
}

// clear clears a key, if it is one.
func (w *txn) clear(key []byte) {
	if key != nil {
		delete(w.grants, string(key))
		w.tx.Clear(key)
		w.cleared = true
	}
}

// ended notes that the transaction ends the claim of a group: what was read of its timer before is void.
func (w *txn) ended(group string) {
	if w.settled == nil {
		w.settled = make(map[string]bool)
	}
	w.settled[group] = true
}

// wakeProbe is how many requests a waker looks at to find one that lives and wants.
const wakeProbe = 4

// touch changes a wake key.
func (w *txn) touch(random uuid.UUID) {
	w.tx.Atomic(kv.Add, w.q.keys.wake(random), packCount(1))
}

// wakeOldest touches the wake key of the oldest request that lives and wants. It reads at snapshot: whoever makes
// groups ready conflicts neither with requests nor with each other.
func (w *txn) wakeOldest() error {
	w.readRequests()
	rows, err := w.requests.Wait(w.ctx)
	if err != nil {
		return fmt.Errorf("read requests: %w", err)
	}
	for _, row := range rows {
		p, err := w.q.keys.parse(row.Key)
		if err != nil {
			return err
		}
		r, err := unpackRequest(row.Key, row.Value)
		if err != nil {
			return err
		}
		if r.wants > 0 && r.deadlineMS > w.nowMS {
			w.touch(p.id)
			return nil
		}
	}
	return nil
}

// operate runs fn as an operation of its own in a transaction.
func (q *Queue) operate(ctx context.Context, tx kv.Tx, fn func(w *txn) error) error {
	if q.isClosed() {
		return ErrClosed
	}
	w := q.txn(ctx, tx)
	if err := fn(w); err != nil {
		return err
	}
	return w.finish()
}
