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

// txn is one attempt of a transaction on the queue: a view (tx_read.go) that also writes, and the notes that its
// operations share. Operations write their own keys at once. They leave the counters, the changes and the wakes as
// notes, and finish writes those at the end. The notes of each feature have a type of their own.
type txn struct {
	view                     // at snapshot, with keys in sizes.room; for reads with a conflict see guarded
	tx      kv.Tx            // sizes.own
	version kv.Future[int64] // the read version
	follow  *following       // the queue's settings and pause, as this transaction sees them: see tx_config.go

	sizes    sizes // the bytes that the transaction has so far: see tx_read.go
	did      did
	told     told
	noted    laneNotes
	wakes    wakes
	holds    turns
	suspects suspectNotes
	beats    beats
	along    advised // the guesses of the handle for this transaction: see handle.go
	chores   chores

	// named has the rows repeat that this transaction has written: their values, by receive id.
	named map[string][]byte
	// shortMS: the rate of the whole queue is used up until this time, and no group can be delivered before. 0 = the
	// rate is not used up, as far as known.
	shortMS int64
	broken  error // of a take: the error of the first unreadable group
}

// did is the part of a transaction's writes that later steps ask for.
type did struct {
	wrote   bool  // something that a retry after an unknown outcome must not do again
	cleared bool  // a hint, timer, grant or request: a turn that found nothing must look again
	illegal error // of a forbidden change of a lock: see put; finish returns it
}

// told is what a transaction adds to the counters, and the changes that it tells subscriptions.
type told struct {
	counts  []count       // by how much each counter goes up
	changes []rec.Changes // in order
}

// laneNotes is the lanes that a transaction has changed. A lane is a group, or a part of a group: see package lanes.
type laneNotes struct {
	ready    map[string]bool      // the lanes left ready
	hinted   []candidate          // the hints set, in order
	settled  map[string]bool      // lanes whose claims have ended; false = no receive here may keep the lane
	behind   map[string]bool      // the lanes with items of an unordered queue to which items were appended
	unlocked map[string]bool      // the lanes whose locks were cleared, if Plan.KeepsHints
	unkept   []kv.Future[[]kv.KV] // kept hints to put back, being read: see readKept
	vacated  map[string][]int64   // the indexes of the items taken out of lanes, in a queue whose items have several
}

// turns is the holds that a transaction has begun or ended, in a queue with a lease for each item. There a hold is the
// claim of a single item, and a group is delivered only up to its first item in flight (group_hold.go).
type turns struct {
	turned map[string]bool // the lanes of the holds
	let    map[string]bool // the groups of the ended holds, which need a hint if their heads are free
	lead   func() error    // writes these hints; nil = no hold has begun or ended
}

// suspectNotes is what a transaction notes of suspect items. An item is suspect if the lease of a claim with the item
// has expired, and no call of a handler has ended since (group_verdict.go). A receive gives such an item alone.
type suspectNotes struct {
	turn *suspectTurn // the right to give one such item; nil = the transaction is the caller's
	gave bool         // the attempt gives one suspect item
	// refused: the attempt has met a suspect item that the handle may not give. refusedGrave: the same of an item that
	// was alone when its lease expired. Of the next such item the handle need not read the claims again.
	refused, refusedGrave bool
	// countExpired: a receive of the transaction counts receives, and so all leases that have expired.
	countExpired bool
	// early has the groups of claims that the transaction has judged as ended early: see isEarly and isAged.
	early map[string]bool
}

// txn begins an attempt of a transaction on tx. It starts reading the read version, and, if the handle's copy is more
// than half a second old, the queue's configuration and pause (meta), at snapshot. After the operations the caller must
// call finish, which writes their notes and adds the conflict with a drop. Two cases need no finish: a transaction that
// writes nothing, and Queue.configure, whose read of the configuration conflicts with a drop.
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

// followAnew makes the transaction read the configuration and the pause (meta), even if the handle's copy is fresh.
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

// moment returns the transaction's time by the handle's clock, and by the database's version.
func (w *txn) moment() (moment, error) {
	clock, err := w.clock()
	return moment{nowMS: w.nowMS, clock: clock, opened: w.q.opened.clock, open: w.at.Sub(w.q.opened.at)}, err
}

// config returns the queue's configuration, which stays the same in a transaction unless it calls followAnew. The
// configuration may be up to followLimit old. following.wait has the reads and the errors. ErrNoQueue means that the
// queue is gone.
func (w *txn) config() (Config, error) { return w.follow.wait(w.ctx) }

// paused reports whether the whole queue is paused, as this transaction sees it. The mark of a group does not count.
func (w *txn) paused() (bool, error) {
	_, err := w.config()
	return w.follow.paused != nil, err
}

// hint writes the hint of a ready lane: a key ("ready", or "open" for a lane that is no whole group) that leads
// receives to the lane. index is the lane's place among the hints, usually the index of its head (first item). finish
// then wakes a handle that waits for the lane, so hint starts reading the requests. key is the hint's key. A receive of
// the same transaction finds the hint in noted.hinted.
//
// attempts is the number for the value of the hint: how often the head has failed, or unread if the receive must read
// the attempt records. In a queue that is not plain (package lanes) the receive reads them in any case (isCounted).
// There attempts may be 0 although the transaction has not read them.
func (w *txn) hint(index int64, lane string, attempts int) (key []byte) {
	key = w.keys.ready(index, lane)
	w.tx.Set(key, packHint(attempts))
	w.leftReady(lane)
	w.noted.hinted = append(w.noted.hinted, candidate{key: key, lane: lane, index: index, attempts: attempts})
	return key
}

// readRequests starts reading the first few requests in the order of the keys (reqgroup, reqlane, request), at
// snapshot, if no call before has. A request is the row of a handle whose receives wait (staging.go). Only the keys
// request are in the order of their age. finish wakes the handles of such requests.
func (w *txn) readRequests() {
	if w.wakes.requests == nil {
		limit := wakeProbe
		if !w.keys.plan.IsPlain() {
			limit = requestsProbe
		}
		w.wakes.requests = w.read.GetRange(w.keys.requests().Selectors(), kv.RangeOptions{Limit: limit})
	}
}

// rehint is hint for a lane that was held, and is ready now: the hint gets the index that placeOf returns.
func (w *txn) rehint(headIndex int64, lane string, attempts int) (key []byte, err error) {
	index, err := w.placeOf(headIndex, w.nowMS)
	if err != nil {
		return nil, err
	}
	return w.hint(index, lane, attempts), nil
}

// lastPlace returns the index for the hint of a group that goes behind all groups that are ready now: the transaction's
// clock, or the head's index if that is greater.
func (w *txn) lastPlace(headIndex int64) (int64, error) {
	now, err := w.clock()
	return max(headIndex, now), err
}

// placeOf returns the place, among the hints, of a group that was held, or delayed, and has become ready at sinceMS:
// the index of its head. So an old head comes before younger heads. In a queue with Config.RoundRobin the group goes
// behind all that were ready then: its place is the version at sinceMS, or the index if that is greater. So there
// groups that fail all the time do not always come before all others.
func (w *txn) placeOf(headIndex, sinceMS int64) (int64, error) {
	config, err := w.config()
	if err != nil || !config.RoundRobin {
		return headIndex, err
	}
	now, err := w.clock()
	return max(headIndex, now-(w.nowMS-sinceMS)*versionsPerMS), err
}

// count notes n for the counter of that name. finish writes one atomic add for each counter, however many operations
// the transaction has.
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

// count is by how much a counter of the queue goes up, or down if n is negative.
type count struct {
	name string
	n    int
}

// finish ends a transaction's work on the queue. The caller must call it once, after all operations. The error is that
// of a forbidden change of a lock, ErrNoQueue if the queue is gone, or that of a read.
//
// finish adds a read conflict on the mark of a drop (the field dropped of meta), so that the transaction fails if the
// queue is dropped. It puts back the kept hints of released locks, and writes the hints that notes ask for
// (leadBackAll, leadToNext: they read locks, holds and heads). It adds to the counters (count), and writes the rows of
// changes (change, and the field changed of meta). For the lanes left ready it reads requests at snapshot, and wakes
// handles (wake): a few that wait for a lane by its name, those that a template needs, and one that waits for any
// group. One is enough for all whole groups, because the woken handle serves the requests behind its own too.
func (w *txn) finish() error {
	if w.did.illegal != nil {
		return w.did.illegal
	}
	// This waits for the configuration even if no operation asked. Otherwise a handle whose transactions never ask
	// would not follow.
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

// candidate is a lane that may be ready, with the key that led to it: a hint, a due timer, or a grant to this handle.
type candidate struct {
	key      []byte // of the hint, timer or grant; nil if the caller has named the group
	lane     string
	index    int64 // of the head, when the hint or timer was written; with RoundRobin, the group's place
	attempts int   // of the head, when the hint was written
	timer    bool  // a timer of a lock
	head     bool  // a timer of a head: like a hint, but without the attempts; or a hint that cannot be read
	grant    int64 // the grant's token; 0 = the key is no grant
}

// group is the group of the candidate's lane.
func (c *candidate) group() string { return lanes.GroupOf(c.lane) }

// accepts reports whether the candidate is the very grant that the lock r holds now. A grant with another token, or one
// whose group has a claim, no longer counts.
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

// clear clears a hint, a timer or a grant. nil = there is nothing to clear. The caller must have a read conflict on a
// key that proves this one stale, for example the lane's lock. Otherwise clear may remove a key that another
// transaction has just written again.
func (w *txn) clear(key []byte) {
	if key != nil {
		delete(w.wakes.grants, string(key))
		w.tx.Clear(key)
		w.did.cleared = true
	}
}

// ended notes that this transaction ends the claim of a lane. A search that has read a timer of the lane before must
// not use that timer.
func (w *txn) ended(lane string) {
	setIn(&w.noted.settled, lane, true)
}

// wakeProbe is how many requests a transaction reads to find one whose handle lives and wants groups.
const wakeProbe = 4

// touch changes the wake key of a handle, by an atomic add, so that the handle's watch fires. random names the handle.
// A second touch in the same transaction does nothing, because a handle that waits for many groups has one wake key.
func (w *txn) touch(random uuid.UUID) {
	if w.wakes.touched[random] {
		return
	}
	setIn(&w.wakes.touched, random, true)
	w.tx.Atomic(kv.Add, w.keys.wake(random), rec.PackCount(1))
}

// wakeOldest wakes handles that wait for the groups left ready: the handle of the oldest request for any group
// (request) that lives and wants groups, and handles that wait for one of these groups by name (reqgroup). It looks at
// the oldest wakeProbe requests for any group: if all of them are of dead handles, it wakes none for these. To wake a
// handle means to touch its wake key. If no handle waits for a named group, an ack may owe the wake instead: see
// withhold.
//
// The reads are at snapshot, because transactions which make groups ready must conflict neither with requests nor with
// each other. If the first read finds no request for a named group, there is no second read.
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
	w.wake(rows, 1)
	return nil
}

// withhold lets an ack keep its group: it notes that the handle owes a wake for the lane left ready, instead of waking.
// The next receive of the handle claims the lane, or pays the wake (package advice, Keeping). requests are the oldest
// requests for any group. owes is false, and the ack must wake as usual, if it has left several lanes ready, if the
// oldest request that wants groups is the handle's own, or if no request wants groups. withhold writes nothing.
func (w *txn) withhold(requests []kv.KV) (owes bool) {
	for _, row := range requests {
		p, wants, err := w.wanting(row)
		if w.skipsRow(err) || wants == 0 {
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

// wakeNamed wakes the handles with receives that name one of the groups which this transaction leaves ready. It reads
// their requests (reqgroup) at snapshot, and touches the wake keys (wake) of up to wakeProbe handles for each group,
// unless the deadline of a request is over. One of the woken receives gets the group, and the others wait on. Several
// are woken because a process may have died while its request has time left. If very many requests of a group are of
// dead handles, it touches the shared wake key (probe.wait). It clears requests that are left over (isLeftOver).
//
// If more than wakeGroups groups are ready, wakeNamed first reads the first wakePage requests for named groups,
// whichever groups they name. If there are no more, it wakes each handle among them that waits for a ready group. If
// there may be more, it reads the requests of each group after all.
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
			w.wake(rows, wakePage)
			return nil
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
		w.wake(rows, wakeProbe)
	}
	return nil
}

// probe is a read of the first wakeProbe requests of a range.
type probe struct {
	of   kv.KeyRange
	rows kv.Future[[]kv.KV]
}

// probe starts reading the first wakeProbe requests of a range, at snapshot.
func (w *txn) probe(of kv.KeyRange) probe {
	return probe{of, w.read.GetRange(of.Selectors(), kv.RangeOptions{Limit: wakeProbe})}
}

// wait returns the first requests of the range. If none of the first wakeProbe is of a live handle that wants groups,
// it reads up to wakePage requests, at snapshot, and returns these. There may be many of dead handles: their requests
// for named groups and lanes stay until a sweep. If none of the wakePage requests is of such a handle either, wait
// wakes every handle that waits for a named group, a lane or a template (touchShared).
func (p probe) wait(w *txn) ([]kv.KV, error) {
	rows, err := p.rows.Wait(w.ctx)
	if err != nil {
		return nil, fmt.Errorf("read requests: %w", err)
	}
	alive := func(row kv.KV) bool {
		_, wants, err := w.wanting(row)
		return err == nil && wants > 0
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

// wakeAll wakes the handles of all requests for named groups and lanes, of all requests by templates, and of the oldest
// request for any group, which serves the others. It is for a change of the whole queue, such as a resume or a new
// configuration. It reads the requests at snapshot and touches wake keys.
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
		w.wake(requests, wakePage)
	}
	return w.wakeOldest()
}

// touchShared wakes all handles that wait for a named group, for a lane, or by a template: they all watch the wake key
// of uuid.Nil. It is for a transaction that owes more wakes than it may read requests: it costs one write, however many
// handles wait.
func (w *txn) touchShared() { w.touch(uuid.Nil) }

const (
	// wakeGroups is the number of groups left ready up to which the requests for each are read by themselves.
	wakeGroups = 16
	// wakePage bounds the requests that are read together for more groups. If there are as many, the requests for each
	// group are read by themselves after all.
	wakePage = 200
)

// wake touches the wake keys of the handles of the first n of these requests that live and want groups. It skips
// requests that cannot be read. It clears left-over requests for lanes and by templates, see isLeftOver.
func (w *txn) wake(requests []kv.KV, n int) {
	for _, row := range requests {
		p, wants, err := w.wanting(row)
		if w.skipsRow(err) {
			continue
		}
		if wants > 0 && !w.isLeftOver(row.Key, p) {
			w.touch(p.id)
			w.along.kept.Woke(p.id != w.q.waitID)
			if n--; n == 0 {
				return
			}
		}
	}
}

// leftOver are the requests of this handle for which no receive waits. Commits of unknown outcome have left them. The
// handle would wake itself by them again and again.
type leftOver struct {
	of    uuid.UUID // the handle
	index int64     // of its request for any group, which the caller withdraws with its grants; 0 = none was met
}

// isLeftOver reports whether the request with the key is left over: it is one of the handle in w.wakes.leftOver. If it
// is for a lane or by a template, isLeftOver clears it. If it is for any group, isLeftOver notes its index for the
// caller.
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

// wanting unpacks the row of a request (request, reqgroup or reqlane). p.id is the handle that waits. wants is how many
// more groups or lanes the handle wants. It is 0 if the handle does not live as far as times tell: the deadline of the
// request has passed. err wraps ErrCorrupt for a row that cannot be read, and the caller must look at err first.
// wanting reads no key.
func (w *txn) wanting(row kv.KV) (p parsedKey, wants int64, err error) {
	p, r, err := w.keys.openRequest(row)
	if err != nil || !lives(r, w.nowMS) {
		return p, 0, err
	}
	return p, max(r.Wants, 0), nil
}

// openRequest takes apart the row of a request (request, reqgroup or reqlane). The error wraps ErrCorrupt.
func (s subspace) openRequest(row kv.KV) (p parsedKey, r rec.Request, err error) {
	if p, err = s.parse(row.Key); err == nil {
		r, err = rec.UnpackRequest(row.Key, row.Value)
	}
	return p, r, err
}

// operate runs fn on the queue in tx, a transaction of the caller, and then calls finish. The commit is left to the
// caller. operate is the frame of the …Tx calls. tx may have begun seconds ago, and its read version is as old. So the
// handle must not take the configuration found there for new: the handle's next transaction reads it again.
//
// operate returns ErrClosed if the handle is closed, and a *LimitError if the transaction has become too large to be
// committed. If fn returns an error that is not the engine's, and the queue is gone, operate returns ErrNoQueue
// instead. So a call that finds nothing says why.
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

// runApart runs fn in a transaction of its own, and commits it. The transaction in the parameter by needs the result,
// and stays open until then. call is the name of the new transaction. fn may run several times, and its effect may
// happen twice.
//
// If the outcome of the commit is unknown, runApart returns a retryable error with another code, so that the
// transaction of by is tried again. Otherwise the callers that share that transaction would learn that its own outcome
// is unknown.
func runApart(by *txn, call string, fn func(tx kv.Tx) error) error {
	_, err := kv.Run(by.ctx, by.q.db, txFor(by.q, call), func(tx kv.Tx, _ kv.Attempt) error { return fn(tx) })
	if kv.MaybeCommitted(err) {
		return &kv.Error{Code: kv.CodeProcessBehind, Cause: errors.New(err.Error())}
	}
	return err
}

// chores counts a transaction's work for groups that have given no items. Example: a receive ends the expired claims of
// a dead worker. A chore removes the key or the holding that led to the group, so no later transaction does it again.
// There may be many chores, and the reads of each come one after the other. A transaction that did all of them would
// last too long on a slow engine, and fail again and again. Therefore it does a bounded number and leaves the rest to
// the next transaction. If a handle's transactions fail during chores, the handle does fewer of them: see
// advice.Stride.
type chores struct {
	halvings             int  // how often the bounds are halved, see advice.Stride
	done                 int  // in all: each removes its cause
	lapsed               int  // holdings (claims, delays, grants) ended whose time was over, see lapse
	reached              int  // as many of them may be ended for a group that the receive is about to claim, see tired
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

// most returns a bound of chores after the handle's halvings: at least 1.
func (c *chores) most(bound int) int { return halved(bound, c.halvings) }

// halved halves a bound the given number of times, down to 1 at least.
func halved(bound, times int) int { return max(1, bound>>min(times, 16)) }

// enough reports whether the transaction has done maxChores, or has no room for more bytes (crowded). It must then
// leave all further chores to the next transaction.
func (w *txn) enough() bool { return w.chores.done >= w.chores.most(maxChores) || w.crowded() }

// tired reports whether the transaction has ended maxLapsed holdings whose time was over, or is crowded. It must then
// end no more of them. The bound is higher (chores.reached) for a group whose items the receive is about to claim one
// by one. Otherwise items whose holds are left would wait until the items before them are settled.
func (w *txn) tired() bool {
	return w.chores.lapsed >= w.chores.most(max(maxLapsed, w.chores.reached)) || w.crowded()
}

// leaves reports whether the transaction may have left chores to the next, so that the caller should look again. A
// transaction that has written nothing has left none: the next one would read the same groups and come no further.
// Example: its reads of many unreadable groups have filled it.
func (w *txn) leaves() bool {
	return w.sizes.own.wrote && (w.chores.postponed || w.tired() || w.enough())
}

// spent reports whether the transaction has removed overdueItems items past retention, or overdueBytes of them, or is
// crowded.
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
//
// Errors: fn's, ErrNoQueue, ErrClosed, ErrOptions if fn is nil, and the engine's.
//
// Once reads the configuration and the pause (meta) at snapshot, if the handle's copy is old. It writes a receipt with
// a read conflict on it, clears up to two old receipts, and has a read conflict with a drop of the queue.
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

// onceWith is Once with the given options of the transaction. It always writes a receipt, and adds the read conflict of
// guardReceiptDrop.
func onceWith(ctx context.Context, q *Queue, o kv.TxOptions, fn func(tx kv.Tx) error) error {
	_, err := onceOf(ctx, q, o, func(tx kv.Tx) (none struct{}, err error) {
		// This read begins before fn. fn may set the configuration, and a read behind it would return a value that is
		// not committed.
		follow := q.follow(tx)
		if err := fn(tx); err != nil {
			return none, err
		}
		return none, q.guardReceiptDrop(ctx, tx, follow)
	})
	return err
}

// guardReceiptDrop makes a transaction fail if the queue is dropped before its commit: it adds a read conflict on the
// mark of a drop (the field dropped of meta). The transaction may have written nothing but its receipt, and otherwise
// the receipt would stay behind. follow is the queue's configuration as the transaction found it at its begin.
func (q *Queue) guardReceiptDrop(ctx context.Context, tx kv.Tx, follow *following) error {
	// Fix the read version now: a version fetched at commit is too late, because a drop before makes no conflict.
	if _, err := tx.ReadVersion().Wait(ctx); err != nil {
		return fmt.Errorf("read version: %w", err)
	}
	return follow.guardDrop(ctx, tx)
}

// onceFor runs body in a transaction whose effect happens exactly once, and returns the result. It is the frame of
// every operation that writes. wrote: body has done something that must not happen twice. Then onceFor also writes a
// receipt, the row ("receipt", random) with the number of the attempt, and clears a few old receipts of the handle. If
// wrote is false, body may run again, and no receipt is written.
//
// After a commit of unknown outcome the next attempt reads the receipt. If it is there, body does not run again, and
// the result is that of the attempt which the receipt names: the handle keeps the result of each attempt in memory. So
// a receipt has the same few bytes for every operation, and a result may be of any size and type. A later attempt must
// not change an earlier result.
func onceFor[T any](
	ctx context.Context, q *Queue, o kv.TxOptions,
	body func(tx kv.Tx, a kv.Attempt) (result T, wrote bool, err error),
) (T, error) {
	return onceKnown(ctx, q, o, body,
		func(kv.Tx, T) error { return nil }, func(*ownReceipt, map[int64]T) bool { return false })
}

// onceOf is onceFor for a body that always writes.
func onceOf[T any](ctx context.Context, q *Queue, o kv.TxOptions, body func(tx kv.Tx) (T, error)) (T, error) {
	return onceFor(ctx, q, o, func(tx kv.Tx, _ kv.Attempt) (T, bool, error) {
		result, err := body(tx)
		return result, true, err
	})
}

// onceKnown is onceFor with two more functions. applied is called with the result of an earlier attempt, and may read
// in the same transaction. unknown is called if the outcome is still unknown at the end. It gets the receipt, and the
// results of the attempts that may have been applied, by number of attempt. If it returns true, it has taken over the
// receipt, and must end it.
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
	if kv.MaybeCommitted(err) {
		taken = unknown(r, results)
	}
	if err != nil {
		return none, err
	}
	return result, nil
}

// ownReceipt is the receipt of one operation of this handle, over all attempts of its transaction. The transaction also
// clears a few old receipts of the handle.
type ownReceipt struct {
	q       *Queue
	own     uuid.UUID   // the random of the operation's receipt
	old     []uuid.UUID // receipts of ended operations, which the transaction clears
	key     []byte      // of own
	begunMS int64
	clock   int64 // the version at which an attempt wrote the receipt first; 0 = none did
	// written: own may be in the database. cleared: the applied attempt has cleared old.
	written, cleared bool
	succeeded        bool // the operation has ended without an error
}

// beginReceipt draws the random of a new receipt, and takes old receipts to clear with it. The caller must call
// ownReceipt.end, or pass the receipt to a goroutine that does. beginReceipt touches memory only.
func (q *Queue) beginReceipt() *ownReceipt {
	r := &ownReceipt{q: q, own: receiptRandom(q), old: q.receipts.take(receiptsCleared), begunMS: q.nowMS()}
	r.key = q.keys.receipt(r.own)
	return r
}

// look reads the operation's receipt, with a conflict, after a commit of unknown outcome. If that commit may still
// land, look first writes a conflict on the receipt in another transaction (fenceReceipt). If found, the attempt with
// the number landed was applied. If not found, none was and none will be. The error wraps errOutcomeLost if a missing
// receipt proves nothing: the receipt may be so old that a sweep has cleared it, or the queue was dropped, with its
// receipts. To see a drop, look reads the configuration (meta) at snapshot.
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
	m, err := momentOf(ctx, r.q, tx)
	if err != nil {
		return 0, false, err
	}
	old := r.clock > 0 && m.old(r.clock, receiptTrust)
	if old || m.nowMS-r.begunMS > receiptTrust.Milliseconds() {
		return 0, false, errOutcomeLost
	}
	// A drop clears the receipts, too.
	v := r.q.viewOf(ctx, tx.Snapshot())
	if _, err = v.readStored(); errors.Is(err, ErrNoQueue) {
		err = fmt.Errorf("%w: %w", errOutcomeLost, err)
	}
	return 0, false, err
}

// write sets the receipt of attempt a, and clears the old receipts. In an attempt that has not read the receipt (look),
// it adds a read conflict on the receipt.
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
	if r.clock == 0 {
		r.clock = written.clock
	}
	tx.Set(r.key, rec.PackReceipt(written.nowMS, int64(a.N), written.clock))
	for _, id := range r.old {
		tx.Clear(r.q.keys.receipt(id))
	}
	return nil
}

// end puts the receipts that may be in the database on the handle's list of receipts to clear: own, and old unless the
// transaction has cleared them. An id that was never written is not put there: otherwise the list would grow with each
// failed operation. A later transaction of the handle clears them. If the handle is closed, end clears the list itself
// (returnReceipts).
func (r *ownReceipt) end(ctx context.Context) {
	q := r.q
	if r.written {
		q.receipts.putBack(r.own)
	}
	left := r.old
	if r.succeeded && r.cleared {
		left = nil
	}
	q.returnReceipts(ctx, left)
}

// returnReceipts puts receipts on the handle's list of receipts to clear. If the handle is closed, it clears all
// receipts of the list at once, in a transaction of its own, because Close may have missed them. A receipt that cannot
// be cleared before ctx ends is left to the next sweep. But if ctx has ended, the caller must not wait, so the receipts
// stay on the list: Close clears the list, or a sweep clears their rows.
func (q *Queue) returnReceipts(ctx context.Context, ids []uuid.UUID) {
	for _, id := range ids {
		q.receipts.putBack(id)
	}
	if q.isClosed() && ctx.Err() == nil {
		ctx, cancel := context.WithTimeout(ctx, endTimeout)
		defer cancel()
		_ = q.clearReceipts(ctx)
	}
}

// readReceipt reads a receipt and returns the number of the attempt that was applied; found is false if there is no
// receipt. The read has a conflict. If this attempt's own commit may still land when the next attempt begins, the next
// attempt writes a conflict on the receipt first (fenceReceipt), and this commit fails.
func (q *Queue) readReceipt(ctx context.Context, tx kv.Tx, key []byte) (attempt int64, found bool, err error) {
	stored, found, err := waitRow(ctx, guard.ReceiptConflict.Get(tx, key), "receipt", key, rec.UnpackReceipt)
	if err != nil || !found {
		return 0, false, err
	}
	if n, ok := stored.Attempt(); ok {
		return n, true, nil
	}
	return 0, false, rec.Corrupt(key, fmt.Errorf("receipt of no attempt: %v", stored.Rest))
}

// fenceReceipt makes sure that the commit of an earlier attempt which may still land (1039) has landed, or never will.
// Every such commit has a read conflict on its receipt, and fenceReceipt commits a write conflict on the receipt, in a
// transaction of its own. So this attempt finds either the receipt, or a database in which nothing has happened and
// nothing will. A result or a refusal of this attempt is then final. If no commit may still land (a.InFlight is false),
// fenceReceipt does nothing. After 1021 the client has done the same already.
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

// receiptsCleared is how many old receipts a transaction that writes a receipt clears. With more than one, the receipts
// of failed transactions go soon.
const receiptsCleared = 2

// receipts are the handle's receipts that may be in the database and are no longer needed. Each transaction clears up
// to receiptsCleared of them. So there are not many more receipts than there are transactions at a time. The methods
// touch memory only.
type receipts struct {
	mu   sync.Mutex
	idle []uuid.UUID // guarded by mu; no transaction is clearing them
}

// take takes up to most receipts off the list, for transactions that clear them.
func (r *receipts) take(most int) []uuid.UUID {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := max(0, len(r.idle)-most)
	ids := slices.Clone(r.idle[n:])
	r.idle = r.idle[:n]
	return ids
}

// putBack puts a receipt on the list, for a later transaction of the handle to clear. With mostReceipts there already,
// the receipt is forgotten, and left to a sweep.
func (r *receipts) putBack(id uuid.UUID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.idle) >= mostReceipts {
		return
	}
	r.idle = append(r.idle, id)
}

// clearReceipts empties the handle's list of receipts that no operation needs, and clears these receipts in
// transactions of its own. After an error it forgets the rest: a sweep clears them.
func (q *Queue) clearReceipts(ctx context.Context) error {
	for page := range slices.Chunk(q.receipts.take(mostReceipts), receiptsPage) {
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

// receiptTrust is for how long a missing receipt proves that its transaction was not applied: by the clock of the
// handle which wrote the receipt, and by versions, because that clock may stand. The rest of receiptLife is for clocks
// which differ.
const receiptTrust = receiptLife / 2
