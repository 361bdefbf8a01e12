package layer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/guard"
	"fdbfifo/layer/internal/lanes"
	"fdbfifo/layer/internal/rec"
)

// txn is an attempt of a transaction: a view that writes, and the state shared by the operations in the transaction.
// The notes of each feature have a type of their own.
type txn struct {
	view          // at snapshot, with keys in sizes.room; for reads with a conflict see guarded
	tx      kv.Tx // sizes.own
	version kv.Future[int64]
	follow  *following

	sizes    sizes
	did      did
	told     told
	noted    laneNotes
	wakes    wakes
	holds    turns
	suspects suspectNotes
	beats    beats
	along    advised
	chores   chores

	// named has what this transaction has recorded under receive ids.
	named map[string][]byte
	// shortMS: the queue's rate is used up, and there may be more from then on; 0 = it is not, as far as known.
	shortMS int64
	broken  error // of a take: the error of the first unreadable group
}

// did is what a transaction has done to keys.
type did struct {
	wrote   bool  // something that a retry after an unknown outcome must not do again
	cleared bool  // a hint, a timer, a grant or a request: a turn that found nothing must look again
	illegal error // a forbidden step of a group; see put
}

// told is what a transaction adds to counters and tells subscriptions.
type told struct {
	counts  []count       // by how much each counter goes up
	changes []rec.Changes // in order
}

// laneNotes is the lanes whose state a transaction has changed.
type laneNotes struct {
	ready    map[string]bool      // the lanes left ready
	hinted   []candidate          // the hints set, in order
	settled  map[string]bool      // the lanes whose claims have ended; false = a walk of this handle must not keep it
	behind   map[string]bool      // the lanes with items of an unordered queue to which items were appended
	unlocked map[string]bool      // the lanes whose locks were cleared, if Plan.KeepsHints
	unkept   []kv.Future[[]kv.KV] // the hints put aside under locks which were released
	vacated  map[string][]int64   // the indexes of the items taken out of lanes, in a queue whose items have several
}

// turns is the holds in turn that a transaction has begun or ended.
type turns struct {
	turned map[string]bool // the holds
	let    map[string]bool // the groups of ended holds
	lead   func() error    // leaves the groups in let findable; nil = there are none
}

// suspectNotes is what a transaction notes of suspect items.
type suspectNotes struct {
	turn *suspectTurn // of the transaction; nil = it is the caller's
	gave bool         // the attempt gives one suspect item
	// refused: the attempt has met a suspect item that the handle may not give. refusedGrave: the same of an item that
	// was alone when its lease expired. Of the next such item the handle need not read the claims again.
	refused, refusedGrave bool
	// countExpired: a receive of the transaction counts receives, and so all leases that have expired.
	countExpired bool
}

func (q *Queue) txn(ctx context.Context, tx kv.Tx) *txn {
	w := &txn{
		view: q.viewOf(ctx, tx.Snapshot()), version: tx.ReadVersion(), follow: q.follow(tx),
	}
	w.sizes.own.Tx = tx
	w.tx = &w.sizes.own
	w.chores.halvings = q.noticed.stride.Halvings()
	w.keys.room = &w.sizes.room
	return w
}

// followAnew makes the transaction read the configuration, even if the handle knows one which is fresh enough.
func (w *txn) followAnew() {
	guest := w.follow.guest
	w.follow = w.q.followAnew(w.tx, w.follow.begun)
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

// moment returns the transaction's time by both clocks.
func (w *txn) moment() (moment, error) {
	clock, err := w.clock()
	return moment{nowMS: w.nowMS, clock: clock, opened: w.q.opened.clock, open: w.at.Sub(w.q.opened.at)}, err
}

// config returns the configuration by which the transaction goes. It may be up to followLimit old, and stays the same
// unless the transaction calls followAnew.
func (w *txn) config() (Config, error) { return w.follow.wait(w.ctx) }

// paused reports whether the queue is paused, as this transaction sees it.
func (w *txn) paused() (bool, error) {
	_, err := w.config()
	return w.follow.paused != nil, err
}

// hint writes the hint of a ready lane. attempts is how often the group's head has failed, as far as known, or unread.
func (w *txn) hint(index int64, lane string, attempts int) (key []byte) {
	var value []byte
	if attempts > 0 {
		value = rec.PackInt(int64(attempts))
	}
	key = w.keys.ready(index, lane)
	w.tx.Set(key, value)
	if w.noted.ready == nil {
		w.noted.ready = make(map[string]bool)
	}
	w.noted.ready[lane] = true
	w.noted.hinted = append(w.noted.hinted, candidate{key: key, lane: lane, index: index, attempts: attempts})
	w.readRequests()
	return key
}

// readRequests starts reading the requests which may be woken.
func (w *txn) readRequests() {
	if w.wakes.requests == nil {
		limit := wakeProbe
		if !w.keys.plan.IsPlain() {
			limit = requestsProbe
		}
		w.wakes.requests = w.read.GetRange(w.keys.requests().Selectors(), kv.RangeOptions{Limit: limit})
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
	if err != nil || !config.RoundRobin {
		return headIndex, err
	}
	return w.lastPlace(headIndex)
}

// lastPlace returns the index for the hint of a group that goes behind all others.
func (w *txn) lastPlace(headIndex int64) (int64, error) {
	now, err := w.clock()
	return max(headIndex, now), err
}

// placeOfDue returns the place of a group to which a timer due at dueMS leads. With RoundRobin the place is where the
// group became deliverable. Otherwise two groups that fail all the time would always come before all others.
func (w *txn) placeOfDue(headIndex, dueMS int64) (int64, error) {
	config, err := w.config()
	if err != nil || !config.RoundRobin {
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
	for i := range w.told.counts {
		if w.told.counts[i].name == name {
			w.told.counts[i].n += n
			return
		}
	}
	w.told.counts = append(w.told.counts, count{name, n})
}

// count is by how much a counter goes up.
type count struct {
	name string
	n    int
}

// finish ends a transaction's work on the queue: writes the counters and, if a group is left ready, wakes the oldest
// request. A single wake is enough, however many groups: the woken handle serves the other requests too.
func (w *txn) finish() error {
	if w.did.illegal != nil {
		return w.did.illegal
	}
	// Read even if no operation asked: a handle whose transactions never ask would otherwise not follow.
	if _, err := w.config(); err != nil {
		return err
	}
	if err := w.follow.guardDrop(w.ctx, w.tx); err != nil {
		return err
	}
	if w.holds.lead != nil {
		if err := w.holds.lead(); err != nil {
			return err
		}
	}
	if err := w.putBackKept(); err != nil {
		return err
	}
	if err := w.leadToNext(); err != nil {
		return err
	}
	for _, c := range w.told.counts {
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
	head     bool  // a timer of a head: like a hint, but without the attempts; or a hint that cannot be read
	grant    int64 // the token, if the candidate is a grant to this handle
}

// group is the group of the candidate's lane.
func (c *candidate) group() string { return lanes.GroupOf(c.lane) }

// accepts reports whether c is the very grant recorded in the lock: an older grant no longer counts.
func (c *candidate) accepts(r *rec.Record) bool {
	return c.grant != 0 && r.Is(rec.KindGrant) && r.Holding().Token == c.grant
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
		delete(w.wakes.grants, string(key))
		w.tx.Clear(key)
		w.did.cleared = true
	}
}

// ended notes the end of a claim by this transaction: the timers of the group, if read before, are void.
func (w *txn) ended(lane string) {
	if w.noted.settled == nil {
		w.noted.settled = make(map[string]bool)
	}
	w.noted.settled[lane] = true
}

// wakeProbe is how many requests a waker reads to find one which is alive and wants groups.
const wakeProbe = 4

// touch changes a wake key, once: a handle which waits for many groups has one wake key.
func (w *txn) touch(random uuid.UUID) {
	if w.wakes.touched[random] {
		return
	}
	if w.wakes.touched == nil {
		w.wakes.touched = make(map[uuid.UUID]bool)
	}
	w.wakes.touched[random] = true
	w.tx.Atomic(kv.Add, w.keys.wake(random), rec.PackCount(1))
}

// wakeOldest touches the wake key of the oldest request which is alive and wants groups, and of the requests for the
// groups left ready. The reads are at snapshot, because transactions which make groups ready must conflict neither with
// requests nor with each other. Only if there are requests for groups are there reads behind the first.
func (w *txn) wakeOldest() error {
	w.readRequests()
	rows, err := w.wakes.requests.Wait(w.ctx)
	if err != nil {
		return fmt.Errorf("read requests: %w", err)
	}
	if len(rows) > 0 && !w.keys.section(nameRequest).Contains(rows[0].Key) {
		oldest := w.read.GetRange(
			w.keys.section(nameRequest).Selectors(), kv.RangeOptions{Limit: wakeProbe},
		)
		if err := w.wakeNamed(); err != nil {
			return err
		}
		if rows, err = oldest.Wait(w.ctx); err != nil {
			return fmt.Errorf("read requests: %w", err)
		}
	} else if w.along.kept.Withholds() && w.withhold(rows) {
		return nil
	}
	return w.wake(rows, 1)
}

// withhold owes the wake of the only lane that the transaction has left ready, if the oldest request that wants groups
// is another handle's.
func (w *txn) withhold(requests []kv.KV) (owes bool) {
	for _, row := range requests {
		p, wants, err := w.wanting(row)
		if w.passes(err) || !wants {
			continue
		}
		if p.id == w.q.waitID || len(w.noted.ready) > 1 {
			return false
		}
		for lane := range w.noted.ready {
			w.along.kept.Owe(lane)
		}
		return true
	}
	return false
}

// wakeNamed touches the wake keys of the requests for the groups left ready, a few for each group. One of the woken
// receives gets the group, and the others wait on. A dead handle so keeps no other handle waiting.
func (w *txn) wakeNamed() error {
	if len(w.noted.ready) > wakeGroups {
		rows, err := w.read.GetRange(
			w.keys.section(nameNamed).Selectors(), kv.RangeOptions{Limit: wakePage}).Wait(w.ctx)
		if err != nil {
			return fmt.Errorf("read requests: %w", err)
		}
		if len(rows) < wakePage {
			rows = slices.DeleteFunc(rows, func(row kv.KV) bool {
				p, err := w.keys.parse(row.Key)
				return err != nil || !w.noted.ready[p.group]
			})
			return w.wake(rows, wakePage)
		}
	}
	found := make([]probe, 0, len(w.noted.ready))
	for _, group := range slices.Sorted(maps.Keys(w.noted.ready)) {
		found = append(found, w.probe(w.keys.namedFor(group)))
	}
	for _, p := range found {
		rows, err := p.wait(w)
		if err != nil {
			return err
		}
		if err := w.wake(rows, wakeProbe); err != nil {
			return err
		}
	}
	return nil
}

// probe is a read of the first wakeProbe requests of a range.
type probe struct {
	of   kv.KeyRange
	rows kv.Future[[]kv.KV]
}

func (w *txn) probe(of kv.KeyRange) probe {
	return probe{of, w.read.GetRange(of.Selectors(), kv.RangeOptions{Limit: wakeProbe})}
}

// wait returns the requests, and those behind them if all are of handles which have died. There may be many: Sweep
// alone clears the requests of dead handles for named groups and lanes. If a whole page is theirs, all handles that
// wait are woken.
func (p probe) wait(w *txn) ([]kv.KV, error) {
	rows, err := p.rows.Wait(w.ctx)
	if err != nil {
		return nil, fmt.Errorf("read requests: %w", err)
	}
	alive := func(row kv.KV) bool {
		_, wants, err := w.wanting(row)
		return err == nil && wants
	}
	if len(rows) < wakeProbe || slices.ContainsFunc(rows, alive) {
		return rows, nil
	}
	if rows, err = w.read.GetRange(p.of.Selectors(), kv.RangeOptions{Limit: wakePage}).Wait(w.ctx); err != nil {
		return nil, fmt.Errorf("read requests: %w", err)
	}
	if len(rows) == wakePage && !slices.ContainsFunc(rows, alive) {
		w.touchShared()
	}
	return rows, nil
}

// wakeAll wakes the oldest request, which serves the others, and all requests for groups and by templates.
func (w *txn) wakeAll() error {
	for _, of := range w.keys.sections(nameNamed, nameByLane) {
		requests, err := w.read.GetRange(of.Selectors(), kv.RangeOptions{Limit: wakePage}).Wait(w.ctx)
		if err != nil {
			return fmt.Errorf("read requests: %w", err)
		}
		if len(requests) == wakePage {
			w.touchShared()
			continue
		}
		if err := w.wake(requests, wakePage); err != nil {
			return err
		}
	}
	return w.wakeOldest()
}

// touchShared wakes all handles that wait for a group, for a lane, or by a template. It is for a transaction that owes
// more wakes than it may read requests: they cost one write, however many handles wait.
func (w *txn) touchShared() { w.touch(uuid.Nil) }

const (
	// wakeGroups is the number of groups left ready up to which the requests for each are read by themselves.
	wakeGroups = 16
	// wakePage bounds the requests that are read together for more groups. If there are as many, the requests for each
	// group are read by themselves after all.
	wakePage = 200
)

// wake touches the wake keys of up to n of the requests which are alive and want groups.
func (w *txn) wake(requests []kv.KV, n int) error {
	for _, row := range requests {
		p, wants, err := w.wanting(row)
		if w.passes(err) {
			continue
		}
		if wants && !w.isLeftOver(row.Key, p) {
			w.touch(p.id)
			w.along.kept.Woke(p.id != w.q.waitID)
			if n--; n == 0 {
				return nil
			}
		}
	}
	return nil
}

// leftOver are requests of a handle for which no receive waits. Commits of unknown outcome have left them.
type leftOver struct {
	of    uuid.UUID // whose
	index int64     // of that for any group, which may have grants: the caller withdraws it; 0 = none was met
}

// isLeftOver reports whether the request is left over. One for a lane, or by a template, is cleared.
func (w *txn) isLeftOver(key []byte, p parsedKey) bool {
	if w.wakes.leftOver == nil || p.id != w.wakes.leftOver.of {
		return false
	}
	if p.name == nameRequest {
		w.wakes.leftOver.index = p.index
	} else {
		w.tx.Clear(key)
	}
	return true
}

// wanting reads a row of a request (request, reqgroup or reqlane). p.id is the handle that waits. wants is true if the
// handle wants more groups or lanes and lives, as far as times tell. The caller must look at err first.
func (w *txn) wanting(row kv.KV) (p parsedKey, wants bool, err error) {
	if p, err = w.keys.parse(row.Key); err != nil {
		return p, false, err
	}
	r, err := rec.UnpackRequest(row.Key, row.Value)
	return p, r.Wants > 0 && lives(r, w.nowMS), err
}

// operate runs fn as an operation of its own in a transaction which the caller has begun, perhaps seconds ago. The read
// version is as old, so the handle must not take the configuration found there for new: the next transaction looks
// again.
func (q *Queue) operate(ctx context.Context, tx kv.Tx, fn func(w *txn) error) error {
	if q.isClosed() {
		return ErrClosed
	}
	size := tx.ApproximateSize() // before the layer's own reads: a transaction tells its size when its reads have ended
	w := q.txn(ctx, tx)
	w.follow.guest, w.sizes.before = true, size
	err := fn(w)
	q.learn(&w.chores, err)
	if err == nil {
		if err = w.finish(); err != nil {
			return err
		}
		return w.checkSize()
	}
	if kv.Code(err) != 0 {
		return err
	}
	// A call that finds nothing where the queue was must return that the queue is gone. If that cannot be read, fn runs
	// again.
	if _, unread := w.config(); errors.Is(unread, ErrNoQueue) || kv.Code(unread) != 0 {
		return unread
	}
	return err
}

// chores counts the work of a transaction of receives, or of a take, for groups that have given no items. Example: it
// ends the expired claims of a dead worker. There may be many chores, and the reads of each come one after the other. A
// transaction that did all of them would last too long on a slow engine, and fail again and again. Therefore it does a
// bounded number and leaves the rest to the next transaction. If a handle's transactions fail during chores, the handle
// does fewer of them: see advice.Stride.
type chores struct {
	halvings             int  // of the bounds, see advice.Stride
	done                 int  // in all: each removes its cause
	lapsed               int  // holdings ended, see lapse
	agedItems, agedBytes int  // items past retention removed, and the bytes of their values
	postponed            bool // a group was left to the next transaction
}

const (
	// maxChores bounds the chores of a transaction.
	maxChores = 100
	// maxLapsed bounds the holdings that a transaction ends, besides those that it takes over.
	maxLapsed = 8
	// overdueWidth bounds the items which one look reads: 5 MB with the largest values.
	overdueWidth = 50
	// overdueItems and overdueBytes bound the overdue items that a transaction removes before it finds an item to
	// deliver. They also bound a step of a sweep. The bounds are small because dead-lettered items are written again.
	overdueItems = 200
	overdueBytes = 1 << 20
)

// most returns the bound after the halvings.
func (c *chores) most(bound int) int { return halved(bound, c.halvings) }

// halved halves a bound so many times; to 1 at least.
func halved(bound, times int) int { return max(1, bound>>min(times, 16)) }

// enough reports whether the transaction has done maxChores, or is crowded.
func (w *txn) enough() bool { return w.chores.done >= w.chores.most(maxChores) || w.crowded() }

// tired reports whether the transaction has ended maxLapsed holdings.
func (w *txn) tired() bool { return w.chores.lapsed >= w.chores.most(maxLapsed) || w.crowded() }

// leaves reports whether the transaction may have left chores to the next. A transaction that has written nothing has
// not: the next one would read the same groups and come no further. Example: its reads of many unreadable groups have
// filled it.
func (w *txn) leaves() bool {
	return w.sizes.own.wrote && (w.chores.postponed || w.tired() || w.enough())
}

// spent reports whether the transaction has reached overdueItems or overdueBytes.
func (w *txn) spent() bool {
	return w.chores.agedItems >= w.chores.most(overdueItems) || w.chores.agedBytes >= overdueBytes || w.crowded()
}

// Once runs fn in a transaction whose effect happens exactly once, even if the outcome of a commit is unknown: the
// transaction also writes a receipt, and an attempt after an unknown commit looks for the receipt first. So a message
// can be enqueued or acked together with the caller's own data, with no further care:
//
//	q.Once(ctx, func(tx kv.Tx) error {
//		tx.Set(seatKey, passenger)
//		return q.AckTx(ctx, tx, claim)
//	})
//
// A message enqueued in fn has its place by the first read of fn, see EnqueueTx. So it may come before a message which
// another process enqueues after that read, and before the EnqueueTx. Message.BehindAll excludes that.
//
// fn may run several times, so it must assign its results and must not append to them. fn must return within five
// seconds, because a transaction lasts no longer: a slower fn runs again and again until ctx or Options.Tx ends it. fn
// must return every error of the …Tx calls. An error of fn ends the transaction without effect and comes back
// unchanged, unless the error wraps a *kv.Error: after a retryable error fn runs again. Once is a transaction of the
// queue even if fn does nothing there: after a drop of the queue the error wraps ErrNoQueue.
//
// If kv.MaybeCommitted is true of the error, the outcome is unknown: the effect may have happened, or, if the *kv.Error
// has InFlight set, may still happen. It is so if ctx or Options.Tx (Timeout, Retries) ends the attempts during a
// commit or after an unknown one, if the database then does not answer, if the outcome is unknown after half an hour,
// and if a drop of the queue comes before it is known (then the error wraps ErrNoQueue, too). After any other error
// nothing has happened.
func (q *Queue) Once(ctx context.Context, fn func(tx kv.Tx) error) error {
	if fn == nil {
		return wrap("once", fmt.Errorf("%w: no function", ErrOptions))
	}
	var own error // fn's, of the last attempt
	o := txFor(q, "once")
	o.Patient = true
	err := onceWith(ctx, q, o, func(tx kv.Tx) error {
		own = fn(tx)
		return own
	})
	if own != nil && kv.Code(err) == 0 {
		return err
	}
	return wrap("once", err)
}

// onceTx is Once for the layer's own calls, whose errors carry the call's own name.
func (q *Queue) onceTx(ctx context.Context, fn func(tx kv.Tx) error) error {
	return onceWith(ctx, q, txFor(q, "once"), fn)
}

func onceWith(ctx context.Context, q *Queue, o kv.TxOptions, fn func(tx kv.Tx) error) error {
	_, err := onceFor(ctx, q, o, func(tx kv.Tx, _ kv.Attempt) (none struct{}, wrote bool, err error) {
		// Before fn, which may change the configuration: the handle must not use a change that is not committed.
		follow := q.follow(tx)
		if err := fn(tx); err != nil {
			return none, false, err
		}
		return none, true, q.guardReceiptDrop(ctx, tx, follow)
	}, nil)
	return err
}

// guardReceiptDrop makes a transaction fail if the queue is dropped. The transaction may have written nothing but its
// receipt, and otherwise the receipt would stay behind.
func (q *Queue) guardReceiptDrop(ctx context.Context, tx kv.Tx, follow *following) error {
	// Fix the read version now: a version fetched at commit is too late, because a drop before makes no conflict.
	if _, err := tx.ReadVersion().Wait(ctx); err != nil {
		return fmt.Errorf("read version: %w", err)
	}
	if _, err := follow.wait(ctx); err != nil {
		return err
	}
	return follow.guardDrop(ctx, tx)
}

// onceFor is the frame of every operation that writes. onceFor runs body in a transaction whose effect happens exactly
// once, and returns the result; after an unknown commit, the result of the applied attempt. wrote: body has done
// something that must not happen twice. Otherwise body may run again, and no receipt is written.
//
// The receipt names the attempt, and the handle keeps the result of each attempt. So a receipt has the same few bytes
// for every operation, and a result may be of any size and type. A later attempt must not change an earlier result.
//
// If an earlier attempt turns out to have been applied, applied is called with its result, unless applied is nil;
// applied may read in the same transaction.
func onceFor[T any](
	ctx context.Context, q *Queue, o kv.TxOptions,
	body func(tx kv.Tx, a kv.Attempt) (result T, wrote bool, err error),
	applied func(tx kv.Tx, result T) error,
) (T, error) {
	return onceKnown(ctx, q, o, body, applied, nil)
}

// onceKnown is onceFor, and calls unknown, if not nil, when the outcome stays unknown: with the receipt, and the
// results of the attempts that may have landed. If unknown returns true it has taken the receipt, and ends it.
func onceKnown[T any](
	ctx context.Context, q *Queue, o kv.TxOptions,
	body func(tx kv.Tx, a kv.Attempt) (result T, wrote bool, err error),
	applied func(tx kv.Tx, result T) error,
	unknown func(r *ownReceipt, results map[int64]T) (taken bool),
) (T, error) {
	var result, none T
	if q.isClosed() {
		return none, ErrClosed
	}
	r := q.beginReceipt()
	taken := false
	defer func() { // also after a panic of fn, because the caller may recover
		if !taken {
			r.end(ctx)
		}
	}()
	results := make(map[int64]T, 1) // of the attempts which wrote a receipt and may have been applied
	proved := false                 // the last attempt has found that none before it was applied
	_, err := kv.Run(ctx, q.db, o, func(tx kv.Tx, a kv.Attempt) error {
		r.written, r.cleared, proved = a.MaybeCommitted, false, false
		if a.MaybeCommitted {
			landed, found, err := r.look(ctx, tx, o, a)
			if err != nil {
				return err
			}
			if found {
				kept, known := results[landed]
				if !known {
					return rec.Corrupt(r.key, fmt.Errorf("receipt of attempt %d, which there was not", landed))
				}
				result, r.cleared = kept, true
				if applied == nil {
					return nil
				}
				return applied(tx, kept)
			}
			proved = true
		}
		if !a.InFlight {
			clear(results) // none of the earlier attempts was applied, and none will be
		}
		found, wrote, err := body(tx, a)
		if err != nil {
			return err
		}
		if result = found; !wrote {
			return nil
		}
		results[int64(a.N)] = found
		return r.write(ctx, tx, a)
	})
	r.succeeded = err == nil
	if proved {
		err = kv.LastAttempt(err)
	}
	if unknown != nil && kv.MaybeCommitted(err) {
		taken = unknown(r, results)
	}
	if err != nil {
		return none, err
	}
	return result, nil
}

// ownReceipt is the receipt of one operation, over all attempts of its transaction.
type ownReceipt struct {
	q                *Queue
	own              uuid.UUID
	old              []uuid.UUID // receipts of the handle that are not needed any more
	key              []byte      // of own
	begunMS          int64
	written, cleared bool // own may be in the database; the applied attempt has cleared old
	succeeded        bool
}

func (q *Queue) beginReceipt() *ownReceipt {
	r := &ownReceipt{q: q, own: q.random.uuid(), old: q.receipts.take(receiptsCleared), begunMS: q.nowMS()}
	r.key = q.keys.receipt(r.own)
	return r
}

// look returns the earlier attempt of unknown outcome that was applied, if there is one.
func (r *ownReceipt) look(
	ctx context.Context, tx kv.Tx, o kv.TxOptions, a kv.Attempt,
) (landed int64, found bool, err error) {
	if err := r.q.fenceReceipt(ctx, o, r.key, a); err != nil {
		return 0, false, err
	}
	landed, found, err = r.q.readReceipt(ctx, tx, r.key)
	if err != nil || found {
		return landed, found, err
	}
	if r.q.nowMS()-r.begunMS > receiptTrust.Milliseconds() {
		return 0, false, errOutcomeLost
	}
	// A drop clears the receipts, too.
	v := r.q.viewOf(ctx, tx.Snapshot())
	if _, err = v.readStored(); errors.Is(err, ErrNoQueue) {
		err = fmt.Errorf("%w: %w", errOutcomeLost, err)
	}
	return 0, false, err
}

// write writes the receipt of an attempt, and clears the old ones.
func (r *ownReceipt) write(ctx context.Context, tx kv.Tx, a kv.Attempt) error {
	r.written, r.cleared = true, true
	if !a.MaybeCommitted {
		// Before the set: a commit which may still land at the next attempt (1039) then fails by the fence.
		if err := guard.ReceiptLate.Read(tx, kv.SingleKey(r.key)); err != nil {
			return err
		}
	}
	written, err := momentOf(ctx, r.q, tx)
	if err != nil {
		return err
	}
	tx.Set(r.key, rec.PackReceipt(written.nowMS, int64(a.N), written.clock))
	for _, id := range r.old {
		tx.Clear(r.q.keys.receipt(id))
	}
	return nil
}

// end puts the ids that may be in the database on the handle's list of receipts to clear. An id that was never written
// is not put there: otherwise the list would grow with each failed operation.
func (r *ownReceipt) end(ctx context.Context) {
	q := r.q
	if r.written {
		q.receipts.free(r.own)
	}
	left := r.old
	if r.succeeded && r.cleared {
		q.receipts.forget(r.old)
		left = nil
	}
	q.returnReceipts(ctx, left)
}

// returnReceipts keeps receipts to clear. After Close it clears all that are kept.
func (q *Queue) returnReceipts(ctx context.Context, ids []uuid.UUID) {
	for _, id := range ids {
		q.receipts.free(id)
	}
	if q.isClosed() {
		q.clearLate(ctx)
	}
}

// readReceipt returns which attempt was applied, if one was. With a conflict: if its commit may still land at the next
// attempt, the fence makes the commit fail.
func (q *Queue) readReceipt(ctx context.Context, tx kv.Tx, key []byte) (attempt int64, found bool, err error) {
	v, err := guard.ReceiptConflict.Get(tx, key).Wait(ctx)
	if err != nil {
		return 0, false, fmt.Errorf("read receipt: %w", err)
	}
	if v == nil {
		return 0, false, nil
	}
	stored, err := rec.UnpackReceipt(key, v)
	if err != nil {
		return 0, false, err
	}
	if n, ok := stored.Attempt(); ok {
		return n, true, nil
	}
	return 0, false, rec.Corrupt(key, fmt.Errorf("receipt of no attempt: %v", stored.Rest))
}

// fenceReceipt makes an earlier commit which may still land (1039) land now or never: every such commit has a read
// conflict on its receipt, and the fence a write conflict. So this attempt finds either the receipt or a database in
// which nothing has happened and nothing will. A result or a refusal of this attempt is then final. After 1021 the
// client has done the same already.
func (q *Queue) fenceReceipt(ctx context.Context, o kv.TxOptions, key []byte, a kv.Attempt) error {
	if !a.InFlight {
		return nil
	}
	_, err := kv.Run(ctx, q.db, o, func(tx kv.Tx, _ kv.Attempt) error { return guard.ReceiptFence.Write(tx, key) })
	if err != nil {
		return fmt.Errorf("fence receipt: %w", err)
	}
	return nil
}

// clearLate clears the receipts of an operation which ended after Close, because Close may have missed the receipts. A
// receipt which cannot be cleared is left to the next sweep.
func (q *Queue) clearLate(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	_ = q.clearReceipts(ctx)
}

// receiptsCleared is how many receipts a transaction that writes one clears. With more than one, the receipts of
// transactions that failed go soon.
const receiptsCleared = 2

// receipts are the handle's receipts which may be in the database and are no longer needed. Each transaction clears up
// to receiptsCleared of them. So there are not many more receipts than there are transactions at a time.
type receipts struct {
	mu    sync.Mutex
	idle  []uuid.UUID        // guarded by mu
	there map[uuid.UUID]bool // guarded by mu; idle ones, and those that a transaction is clearing
}

// has reports whether a receipt is the handle's own.
func (r *receipts) has(id uuid.UUID) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.there[id]
}

// forget is for receipts that are no longer in the database.
func (r *receipts) forget(ids []uuid.UUID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, id := range ids {
		delete(r.there, id)
	}
}

// take returns receipts to clear, at most so many.
func (r *receipts) take(most int) []uuid.UUID {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := max(0, len(r.idle)-most)
	ids := slices.Clone(r.idle[n:])
	r.idle = r.idle[:n]
	return ids
}

// free keeps a receipt to clear, unless there are too many.
func (r *receipts) free(id uuid.UUID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.idle) >= mostReceipts {
		delete(r.there, id)
		return
	}
	if r.idle = append(r.idle, id); r.there == nil {
		r.there = make(map[uuid.UUID]bool)
	}
	r.there[id] = true
}

func (r *receipts) takeAll() []uuid.UUID {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.idle
	r.idle, r.there = nil, nil
	return all
}

// clearReceipts clears all receipts of the handle which no operation is using.
func (q *Queue) clearReceipts(ctx context.Context) error {
	for page := range slices.Chunk(q.receipts.takeAll(), receiptsPage) {
		// Clearing twice does no harm, so a clear of unknown outcome may simply run again.
		_, err := kv.Run(ctx, q.db, txFor(q, "clear receipts"), func(tx kv.Tx, _ kv.Attempt) error {
			for _, id := range page {
				tx.Clear(q.keys.receipt(id))
			}
			return nil
		})
		if err != nil {
			return fmt.Errorf("clear receipts: %w", err)
		}
	}
	return nil
}

// mostReceipts bounds the receipts that a handle keeps to clear. In an outage each operation may leave one. A sweep
// clears the others.
const mostReceipts = 10_000

// receiptsPage bounds the receipts that one transaction of clearReceipts clears. There may be many more: each operation
// leaves one whose commit has timed out.
const receiptsPage = 500

// receiptLife is how old a receipt is when a sweep removes the receipt. A handle clears its receipts with its next
// transactions and in Close. So an older receipt was left by a killed process, or by a handle that has been idle since.
// Neither needs the receipt.
const receiptLife = time.Hour

// receiptTrust is for how long, by the clock of the handle which wrote the receipt, a missing receipt proves that its
// transaction was not applied. The rest of receiptLife is for clocks which differ.
const receiptTrust = receiptLife / 2
