package layer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
)

// txn is an attempt of a transaction: the state shared by the operations in the transaction.
type txn struct {
	ctx     context.Context
	q       *Queue
	keys    subspace // q's, in room
	room    room
	tx      kv.Tx
	nowMS   int64
	version kv.Future[int64]
	follow  *following
	anew    bool            // follow was read in this transaction, even if the handle knew a configuration
	ready   map[string]bool // the lanes left ready by this transaction
	hinted  []candidate     // the hints set by this transaction, in order
	settled map[string]bool // the lanes whose claims this transaction has ended
	// requests are the requests which may be woken, being read from the first hint on.
	requests kv.Future[[]kv.KV]
	unlocked map[string]bool      // the lanes whose locks this transaction has cleared, in a queue with facets
	unkept   []kv.Future[[]kv.KV] // the hints put aside under locks which this transaction has released
	vacated  map[string][]int64   // the indexes of the items taken out of lanes, in a queue whose items have several
	counts   []count              // by how much each counter goes up
	changes  []changed            // what subscriptions are told, in order
	// named has what this transaction has recorded under receive ids.
	named map[string][]byte
	// mayStage: of the handle's transactions in flight, only this may register or clear the handle's request.
	mayStage bool
	flight   *flight // the groups which no other transaction of the handle should claim; may be nil
	beside   int     // how many groups the handle's other transactions in flight are likely to take
	others   int     // groups granted to other handles
	// withhold is asked before the oldest of the requests is woken: owes says that the wake comes later, if at all.
	// nil = no wake is owed. See staging_keep.go.
	withhold func(requests []kv.KV) (owes bool, err error)
	woke     uuid.UUID       // whose wake key this transaction touched last
	owedLane string          // the lane whose wake an earlier transaction of the handle owes; "" = none
	wrote    bool            // something a retry must not do again
	cleared  bool            // something stale
	illegal  error           // a forbidden step of a group; see put
	turned   map[string]bool // the holds which this transaction has begun or ended, in turn
	lead     func() error    // leaves the groups in let findable; nil = there are none
	let      map[string]bool // the groups of which this transaction has ended holds, in turn: see group_turn.go
	// shortMS: the queue's rate is used up, and there may be more from then on; 0 = it is not, as far as known.
	shortMS int64
	booked  *bookings // of the queue's rate; nil = what is booked stays so, because the transaction is the caller's
	// grants has the keys of the grants to this handle which are not taken yet.
	grants   map[string]bool
	dueBeats []dueBeat // met by this transaction's looks
	chores
}

func (q *Queue) txn(ctx context.Context, tx kv.Tx) *txn {
	w := &txn{ctx: ctx, q: q, tx: tx, nowMS: q.nowMS(), version: tx.ReadVersion(), follow: q.follow(tx)}
	w.anew, w.halvings = w.follow.stored != nil, q.stride.halvings.Load()
	w.keys = q.keys
	w.keys.room = &w.room
	return w
}

// followAnew makes the transaction read the configuration, even if the handle knows one which is fresh enough.
func (w *txn) followAnew() {
	guest := w.follow.guest
	w.follow, w.anew = w.q.followAnew(w.tx, w.follow.begun), true
	w.follow.guest = guest
}

// clock is the read version plus the queue's offset: the source of indexes and tokens.
func (w *txn) clock() (int64, error) {
	rv, err := w.version.Wait(w.ctx)
	if err != nil {
		return 0, fmt.Errorf("read version: %w", err)
	}
	return rv + w.q.offset, nil
}

// config is the queue's configuration, the same throughout the transaction.
func (w *txn) config() (Config, error) { return w.follow.wait(w.ctx) }

// paused reports whether the queue is paused, as this transaction sees it.
func (w *txn) paused() (bool, error) {
	_, err := w.config()
	return w.follow.paused != nil, err
}

// hint writes the hint of a ready lane. attempts is how often the group's head has failed, as far as known.
func (w *txn) hint(index int64, lane string, attempts int) (key []byte) {
	var value []byte
	if attempts > 0 {
		value = packInt(int64(attempts))
	}
	key = w.keys.ready(index, lane)
	w.tx.Set(key, value)
	if w.ready == nil {
		w.ready = make(map[string]bool)
	}
	w.ready[lane] = true
	w.hinted = append(w.hinted, candidate{key: key, lane: lane, index: index, attempts: attempts})
	w.readRequests()
	return key
}

// readRequests starts reading the requests which may be woken.
func (w *txn) readRequests() {
	if w.requests == nil {
		limit := wakeProbe
		if w.keys.plan != nil {
			limit = requestsProbe
		}
		w.requests = w.tx.Snapshot().GetRange(w.keys.requests().Selectors(), kv.RangeOptions{Limit: limit})
	}
}

// rehint is hint for a group which was held: the queue's schedule decides the hint's index.
func (w *txn) rehint(headIndex int64, lane string, attempts int) (key []byte, err error) {
	index, err := w.placeOf(headIndex)
	if err != nil {
		return nil, err
	}
	return w.hint(index, lane, attempts), nil
}

// placeOf returns the index for the hint of a group which was held. RoundRobin puts the group behind all others.
func (w *txn) placeOf(headIndex int64) (int64, error) {
	config, err := w.config()
	if err != nil || config.Schedule != RoundRobin {
		return headIndex, err
	}
	now, err := w.clock()
	return max(headIndex, now), err
}

// versionsPerMS is how fast the database's versions advance, about.
const versionsPerMS = 1000

// placeOfDue returns the place of a group to which a timer due at dueMS leads. With RoundRobin the place is where the
// group became deliverable: two groups which fail all the time would otherwise come before all others for ever.
func (w *txn) placeOfDue(headIndex, dueMS int64) (int64, error) {
	config, err := w.config()
	if err != nil || config.Schedule != RoundRobin {
		return headIndex, err
	}
	now, err := w.clock()
	return max(headIndex, now-(w.nowMS-dueMS)*versionsPerMS), err
}

// count adds to a counter, once for all operations of the transaction.
func (w *txn) count(name string, n int) {
	if n == 0 {
		return
	}
	for i := range w.counts {
		if w.counts[i].name == name {
			w.counts[i].n += n
			return
		}
	}
	w.counts = append(w.counts, count{name, n})
}

// count is by how much a counter goes up.
type count struct {
	name string
	n    int
}

// finish ends a transaction's work on the queue: writes the counters and, if a group is left ready, wakes the oldest
// request. A single wake is enough, however many groups: the woken handle serves the other requests too.
func (w *txn) finish() error {
	if w.illegal != nil {
		return w.illegal
	}
	// Read even if no operation asked: a handle whose transactions never ask would otherwise not follow.
	if _, err := w.config(); err != nil {
		return err
	}
	if err := w.follow.guardDrop(w.ctx, w.tx); err != nil {
		return err
	}
	if w.lead != nil {
		if err := w.lead(); err != nil {
			return err
		}
	}
	if err := w.putBackKept(); err != nil {
		return err
	}
	if err := w.leadToNext(); err != nil {
		return err
	}
	for _, c := range w.counts {
		w.q.add(w.tx, w.keys, c.name, c.n)
	}
	if err := w.writeChanges(); err != nil {
		return err
	}
	return w.wakeReady()
}

// candidate is a hint, a due timer or a grant: a group which may be ready.
type candidate struct {
	key      []byte // of the hint, timer or grant; nil if the group was named by the caller
	lane     string
	index    int64 // of the head, when the hint or timer was written; with RoundRobin, the group's place
	attempts int   // of the head, when the hint was written
	timer    bool  // a timer of a lock
	head     bool  // a timer of a head: like a hint, but without the attempts
	grant    int64 // the token, if the candidate is a grant to this handle
}

// group is the group of the candidate's lane.
func (c *candidate) group() string { return groupOf(c.lane) }

// accepts reports whether c is the very grant recorded in the lock: an older grant no longer counts.
func (c *candidate) accepts(r *record) bool {
	return c.grant != 0 && r.is(kindGrant) && r.holding().token == c.grant
}

// lease returns d, or the queue's lease if d is 0.
func (w *txn) lease(d time.Duration) (time.Duration, error) {
	if d > 0 {
		return d, nil
	}
	config, err := w.config()
	return config.Lease, err
}

// clear clears a key, unless the key is nil.
func (w *txn) clear(key []byte) {
	if key != nil {
		delete(w.grants, string(key))
		w.tx.Clear(key)
		w.cleared = true
	}
}

// ended notes the end of a claim by this transaction: the timers of the group, if read before, are void.
func (w *txn) ended(lane string) {
	if w.settled == nil {
		w.settled = make(map[string]bool)
	}
	w.settled[lane] = true
}

// wakeProbe is how many requests a waker reads to find one which is alive and wants groups.
const wakeProbe = 4

// touch changes a wake key.
func (w *txn) touch(random uuid.UUID) {
	w.tx.Atomic(kv.Add, w.keys.wake(random), packCount(1))
}

// wakeOldest touches the wake key of the oldest request which is alive and wants groups, and of the requests for the
// groups left ready. The reads are at snapshot, because transactions which make groups ready must conflict neither with
// requests nor with each other. Only if there are requests for groups are there reads behind the first.
func (w *txn) wakeOldest() error {
	w.readRequests()
	rows, err := w.requests.Wait(w.ctx)
	if err != nil {
		return fmt.Errorf("read requests: %w", err)
	}
	if len(rows) > 0 && !w.keys.section(nameRequest).Contains(rows[0].Key) {
		oldest := w.tx.Snapshot().GetRange(
			w.keys.section(nameRequest).Selectors(), kv.RangeOptions{Limit: wakeProbe},
		)
		if err := w.wakeNamed(); err != nil {
			return err
		}
		if rows, err = oldest.Wait(w.ctx); err != nil {
			return fmt.Errorf("read requests: %w", err)
		}
	} else if w.withhold != nil {
		if owes, err := w.withhold(rows); err != nil || owes {
			return err
		}
	}
	return w.wake(rows, 1)
}

// wakeNamed touches the wake keys of the requests for the groups left ready, a few for each: one of the receives gets
// the group, the others go on waiting, and a handle which has died keeps nobody waiting.
func (w *txn) wakeNamed() error {
	if len(w.ready) > wakeGroups {
		for row, err := range walk(w.ctx, w.tx.Snapshot(), w.keys.section(nameNamed), wakePage) {
			if err != nil {
				return fmt.Errorf("read requests: %w", err)
			}
			if p, err := w.keys.parse(row.Key); err == nil && w.ready[p.group] {
				if err := w.wake([]kv.KV{row}, 1); err != nil {
					return err
				}
			}
		}
		return nil
	}
	found := make([]kv.Future[[]kv.KV], 0, len(w.ready))
	for _, group := range slices.Sorted(maps.Keys(w.ready)) {
		found = append(found, w.tx.Snapshot().GetRange(
			w.keys.namedFor(group).Selectors(), kv.RangeOptions{Limit: wakeProbe},
		))
	}
	for _, f := range found {
		rows, err := f.Wait(w.ctx)
		if err != nil {
			return fmt.Errorf("read requests: %w", err)
		}
		if err := w.wake(rows, wakeProbe); err != nil {
			return err
		}
	}
	return nil
}

// wakeAll wakes the oldest request, which serves the others, and the requests for groups, and by templates, up to
// wakePage of each.
func (w *txn) wakeAll() error {
	named, err := w.tx.Snapshot().GetRange(
		w.keys.section(nameNamed).Selectors(), kv.RangeOptions{Limit: wakePage},
	).Wait(w.ctx)
	if err != nil {
		return fmt.Errorf("read requests: %w", err)
	}
	if err := w.wake(named, wakePage); err != nil {
		return err
	}
	if w.keys.plan != nil {
		byLane, err := w.tx.Snapshot().GetRange(
			w.keys.section(nameByLane).Selectors(), kv.RangeOptions{Limit: wakePage},
		).Wait(w.ctx)
		if err != nil {
			return fmt.Errorf("read requests: %w", err)
		}
		if err := w.wake(byLane, wakePage); err != nil {
			return err
		}
	}
	return w.wakeOldest()
}

const (
	// wakeGroups is the number of groups left ready up to which the requests for each are read by themselves.
	wakeGroups = 16
	// wakePage is how many requests for groups are read together otherwise.
	wakePage = 200
)

// wake touches the wake keys of up to n of the requests which are alive and want groups.
func (w *txn) wake(requests []kv.KV, n int) error {
	for _, row := range requests {
		id, wants, err := w.wanting(row)
		if err != nil {
			return err
		}
		if wants {
			w.touch(id)
			w.woke = id
			if n--; n == 0 {
				return nil
			}
		}
	}
	return nil
}

// wanting returns whose request the row is, and whether the request wants groups now.
func (w *txn) wanting(row kv.KV) (id uuid.UUID, wants bool, err error) {
	p, err := w.keys.parse(row.Key)
	if err != nil {
		return id, false, err
	}
	r, err := unpackRequest(row.Key, row.Value)
	return p.id, r.wants > 0 && r.deadlineMS > w.nowMS, err
}

// operate runs fn as an operation of its own in a transaction which the caller has begun, perhaps seconds ago. The read
// version is as old, so the handle must not take the configuration found there for new: the next transaction looks
// again.
func (q *Queue) operate(ctx context.Context, tx kv.Tx, fn func(w *txn) error) error {
	if q.isClosed() {
		return ErrClosed
	}
	w := q.txn(ctx, tx)
	w.follow.guest = true
	err := fn(w)
	q.stride.learn(&w.chores, err)
	if err == nil {
		return w.finish()
	}
	if kv.Code(err) != 0 {
		return err
	}
	// Whoever finds nothing where the queue was must hear that the queue is gone; if that cannot be read, fn runs
	// again.
	if _, unread := w.config(); errors.Is(unread, ErrNoQueue) || kv.Code(unread) != 0 {
		return unread
	}
	return err
}
