package layer

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/advice"
	"fdbfifo/layer/internal/line"
	"fdbfifo/layer/internal/rec"

	crand "crypto/rand"
)

// Options configure a handle. The zero value is the normal use.
type Options struct {
	// Owner names the holder in locks, for people. Defaults to host:pid:random. At most 256 bytes of UTF-8.
	Owner string
	// Now is the clock for leases and times. Defaults to time.Now. A clock which differs from other workers' clocks
	// shortens or lengthens leases, but cannot break order or exclusion. If a call of Now panics, time.Now takes its
	// place; the first panic is written to slog.Default.
	Now func() time.Time
	// Tx applies to each transaction which the handle begins itself. A call may need several: the bounds apply to each
	// transaction, and a receive that waits continues to wait after a turn that has reached them. The handle sets Call,
	// Patient and UntilConflict itself, and Batch for jobs.
	Tx kv.TxOptions
	// Poll is the mean pause between two looks of a handle whose receives wait and that is not woken: 1 ms or more; 0 =
	// 1 s. A lost wake is noticed after about Poll: the first waiting handle notices it, for the others too. A handle
	// that is not the first in line looks up to 5 times less often, and up to 17 times less often while those before it
	// are served. If a look finds that those are dead, the handle looks as often as the first.
	Poll time.Duration
	// Config is the configuration which Create writes, and with which Ensure compares the stored configuration. Open
	// ignores this field and reads the stored configuration.
	Config Config
	// Mend: Ensure stores Config where the stored configuration differs. Open and Create ignore this field.
	Mend bool
	// Hooks are told of every operation of the handle, the first begun first and ended last. The handle keeps a copy of
	// the slice.
	Hooks []Hook
	// Test, if not nil, is for simulations and tests of the library itself. The handle keeps a copy.
	Test *TestOptions
}

// TestOptions are for simulations and tests of the library itself. A program that uses a queue needs none of them. The
// zero value changes nothing.
type TestOptions struct {
	// Seed makes the handle's random choices (message ids among others) repeatable. 0 = not repeatable. No two handles
	// may have the same seed, because otherwise their messages and receipts would have the same ids.
	Seed uint64
	// Yield, if not nil, is called by a goroutine of the handle which has just begun, or which another goroutine or a
	// timer has woken, before the goroutine touches shared state. The argument who names the goroutine. So a simulation
	// can let a single goroutine run at a time. ctx is the caller's if the goroutine runs for one caller alone.
	Yield func(ctx context.Context, who string)
	// NoLooks leaves a receive which waits to wakes and to the poll: it does not look again shortly after it has begun
	// to wait.
	NoLooks bool
}

// Pause calls Yield with the name of the goroutine that ctx is for, see Named. It does nothing without Yield.
func (o *TestOptions) Pause(ctx context.Context, who string) {
	if o == nil || o.Yield == nil {
		return
	}
	if name, ok := ctx.Value(yieldName{}).(string); ok {
		who += " of " + name
	}
	o.Yield(ctx, who)
}

// Named returns ctx with a name for the goroutine which ctx is for. Without Yield it returns ctx.
func (o *TestOptions) Named(ctx context.Context, format string, args ...any) context.Context {
	if o == nil || o.Yield == nil {
		return ctx
	}
	return context.WithValue(ctx, yieldName{}, fmt.Sprintf(format, args...))
}

// Queue is a handle on one queue. Queue is safe for concurrent use, holds no claim, and caches nothing of the database
// except the queue's settings and pause. Make one per process, share the handle, and close the handle when done.
//
// After its return a call keeps none of its arguments: slices, maps, pointers and functions are the caller's again,
// also if the call has returned because its context has ended while its transaction continues.
type Queue struct {
	db       kv.DB
	name     string
	keys     subspace
	opts     Options
	offset   int64    // indexes and tokens are read versions + offset; the field offset of meta
	random   *entropy // the source of ids and random choices
	receipts receipts // to be cleared: see tx.go
	suspects suspects
	orphans  orphans    // the goroutines that give back claims: see claim_orphan.go
	looks    laterLooks // the look after a transaction: see trip.go
	noticed  noticed    // guesses from earlier transactions
	paths    pathCounts // see Paths
	// unreadable counts rows that could not be read, and were passed over.
	unreadable atomic.Int64
	// hookReported is when a failure of a hook was reported last, by the system's clock in nanoseconds; 0 = never.
	hookReported atomic.Int64
	hooksStuck   []atomic.Int64 // by Options.Hooks: how many calls still run that no operation waits for
	// watchTold: a failed watch was reported.
	watchTold atomic.Bool
	// subscribers is the pace of the looks of subscriptions that find nothing.
	subscribers advice.Pace
	// readers are the subscriptions that calls of this handle hold: by token, when the lease ends (a time.Time with the
	// monotonic clock).
	readers  sync.Map
	counting counting // the slots of this handle's counters
	followed followed // the known configuration and pause: see tx_config.go
	aging    aging    // the clock for the age of followed
	// restored is up to where receipts tell nothing, because they may be older than a restore; 0 = the handle has found
	// no versions that went back.
	restored int64
	opened   opening   // the version and the time at which the handle was opened
	owns     ownClaims // the claims that the handle has made: see claim.go
	// incarnation tells the queue from others of the same name, before and after it: see tx_config.go. Drawn by Create,
	// read by Open, and never changed after.
	incarnation uuid.UUID

	// pipeline makes operations share transactions, and line has the receives that wait: see package line.
	pipeline line.Pipeline[*operation]
	troubles kv.Troubles // transactions that the database keeps waiting
	waitID   uuid.UUID   // in the keys of the handle's requests, of the grants to it, and of its wakes
	line     line.Line[*operation]
	staging  staging // the handle's requests: see staging.go
	heart    *heart  // the heartbeat: see claim_beat.go
}

// suspects are the claims of suspect items that the handle has given, and the transaction that may give one now. An
// item is suspect if a claim with the item has expired; a handle gives such items one at a time: see group_verdict.go.
type suspects struct {
	mu    sync.Mutex
	given []givenSuspect // guarded by mu; those that may last, in order
	by    *suspectTurn   // guarded by mu; nil = no transaction under way may
}

// givers are the handles of the process that have a suspectTurn in use (suspects.by), or claims in suspects.given. A
// message that kills its process kills the handlers of all queues there. So a handle heeds the suspect items of the
// handles of other queues, if they share its database (kv.DB). It can read their locks then.
var givers struct {
	mu  sync.Mutex
	all []*Queue // guarded by mu
	// numbered counts the claims of suspect items that the handles of the process have given.
	numbered atomic.Int64
}

// heeds reports whether q must heed the suspect items of o: both have one database, and different queues.
func (q *Queue) heeds(o *Queue) bool {
	return reflect.ValueOf(q.db).Comparable() && reflect.ValueOf(o.db).Comparable() && q.db == o.db &&
		!bytes.Equal(q.keys.prefix, o.keys.prefix)
}

// givenSuspect is a claim of a suspect item that a handle has given.
type givenSuspect struct {
	rec.ClaimRef
	q       *Queue
	number  int   // see givers.numbered
	sinceMS int64 // when it was given, by the handle's clock
	grave   bool  // its lease has expired under a proven claim before
}

// suspectTurn is the right of one transaction of the handle to give a suspect item, over all its attempts: see trip.
// Only one transaction at a time has begun to use its right.
type suspectTurn struct {
	q     *Queue
	known int // at least so many suspect items had the process given before the attempt's read version
}

// attempt begins an attempt of the transaction, and returns its txn. It also notes in known how many suspect items the
// process has given so far, because the attempt sees their claims. The attempt has no read version yet, except after a
// commit of unknown outcome: then the look for the receipt has read before, and known stays as it is.
func (t *suspectTurn) attempt(ctx context.Context, tx kv.Tx, a kv.Attempt) *txn {
	if !a.MaybeCommitted {
		t.known = int(givers.numbered.Load())
	}
	w := t.q.txn(ctx, tx)
	w.suspects.turn = t
	return w
}

// begin reports whether the transaction may look for a suspect item to give: no other transaction of the handle, or of
// a handle that it heeds, is doing so. After true no other transaction of these handles may, until endSuspectTurn is
// called for t. given are the claims of suspect items that these handles have given before. The claims of a handle
// stand together and in order.
func (t *suspectTurn) begin() (given []givenSuspect, may bool) {
	givers.mu.Lock()
	defer givers.mu.Unlock()
	givers.all = slices.DeleteFunc(givers.all, func(o *Queue) bool {
		o.suspects.mu.Lock()
		defer o.suspects.mu.Unlock()
		return o.suspects.by == nil && len(o.suspects.given) == 0
	})
	for _, o := range givers.all {
		if o != t.q && !t.q.heeds(o) {
			continue
		}
		o.suspects.mu.Lock()
		by := o.suspects.by
		given = append(given, o.suspects.given...)
		o.suspects.mu.Unlock()
		if by != nil && by != t {
			return nil, false
		}
	}
	t.q.suspects.mu.Lock()
	t.q.suspects.by = t
	t.q.suspects.mu.Unlock()
	if !slices.Contains(givers.all, t.q) {
		givers.all = append(givers.all, t.q)
	}
	return given, true
}

// endGiving removes a handle that is closed from the givers.
func endGiving(q *Queue) {
	givers.mu.Lock()
	defer givers.mu.Unlock()
	givers.all = slices.DeleteFunc(givers.all, func(o *Queue) bool { return o == q })
}

// forget removes a claim that has ended from those that the handle has given. A transaction that is not committed may
// have ended it: the handle then gives another item a little early.
func (s *suspects) forget(over rec.ClaimRef) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.given = slices.DeleteFunc(s.given, func(g givenSuspect) bool { return g.ClaimRef == over })
}

// orphans are the handle's goroutines that give back claims of which no caller knows (claim_orphan.go). Close waits for
// them, because a claim that stays holds its group until the lease ends. A few work at a time. Otherwise there would be
// one transaction a second for each receive of an outage, as long as the database does not answer.
type orphans struct {
	life context.Context // ends when Close no longer waits
	end  context.CancelFunc
	turn chan struct{} // has a token for each goroutine that works

	mu      sync.Mutex
	running sync.WaitGroup // the goroutines for which Close waits; added to under mu
	count   int            // guarded by mu; how many goroutines have not ended
	closed  bool           // guarded by mu: Close waits for no more of them
}

const (
	// mostOrphans bounds the receives whose claims a handle gives back at a time. Claims of further receives stay until
	// their leases end.
	mostOrphans = 1000
	// workingOrphans is how many of the goroutines work at a time.
	workingOrphans = 4
)

// start starts a goroutine that gives back claims, and reports whether there was room for it. The context of giveBack
// ends after during, or when Close no longer waits. giveBack is called in any case, also if its context has ended
// before the goroutine has a turn. Close waits for the goroutine if it is started before the handle's last transaction
// has ended. A later goroutine has at most endTimeout, and no Close ends it. Example: Close has given up before the
// transaction has ended.
func (o *orphans) start(during time.Duration, giveBack func(ctx context.Context)) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.count == mostOrphans {
		return false
	}
	o.count++
	life := o.life
	if o.closed {
		life, during = context.Background(), min(during, endTimeout)
	} else {
		o.running.Add(1)
	}
	go func(waited bool) {
		defer func() {
			o.mu.Lock()
			defer o.mu.Unlock()
			if o.count--; waited {
				o.running.Done()
			}
		}()
		ctx, cancel := context.WithTimeout(life, during)
		defer cancel()
		select {
		case o.turn <- struct{}{}:
			defer func() { <-o.turn }()
		case <-ctx.Done():
		}
		giveBack(ctx) // also without a turn: it may have to end a receipt
	}(!o.closed)
	return true
}

// stop waits until all claims of which no caller knows were given back, or for the end of ctx. Then it ends the
// contexts of the goroutines that it has waited for. The handle must be closed. stop does not wait for a goroutine that
// starts after the call: see start.
func (o *orphans) stop(ctx context.Context) error {
	defer o.end()
	o.mu.Lock()
	o.closed = true
	count := o.count
	o.mu.Unlock()
	if count == 0 {
		return nil // also if ctx has ended
	}
	return waitFor(ctx, &o.running)
}

// laterLook is a look of the handle after a transaction, in a goroutine of its own. It ends the claims of the due
// heartbeats that the transaction has met, and looks for timers with wrong times (lookFar). One look runs at a time. If
// a look ends claims, it wakes the handles that wait. The receives of the transaction wait for the look (looked), but
// enqueues and settlements do not: they are committed.
type laterLook struct {
	over  chan struct{} // closed at the end
	ended bool          // claims were ended, so that groups may be ready; set before over is closed
}

// laterLooks has the later look of a handle that is under way.
type laterLooks struct {
	mu  sync.Mutex
	now *laterLook // guarded by mu; nil = none
}

// stop waits for the end of the look under way, or for the end of ctx. The handle must be closed: then lookLater begins
// no further look.
func (l *laterLooks) stop(ctx context.Context) error {
	l.mu.Lock()
	now := l.now
	l.mu.Unlock()
	if now == nil {
		return nil // also if ctx has ended
	}
	return now.wait(ctx)
}

// wait waits for the end of the look, or for the end of ctx: then the error is the cause of ctx.
func (l *laterLook) wait(ctx context.Context) error {
	select {
	case <-l.over:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// waitFor waits for goroutines of the handle, or for the end of ctx: then the error is the cause of ctx.
func waitFor(ctx context.Context, all *sync.WaitGroup) error {
	ended := make(chan struct{})
	go func() {
		all.Wait()
		close(ended)
	}()
	select {
	case <-ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// isClosed reports whether the handle was closed.
func (q *Queue) isClosed() bool { return q.pipeline.IsClosed() }

// Now returns the time by the handle's clock (Options.Now): compare Claim.Until with Now.
func (q *Queue) Now() time.Time { return q.opts.Now() }

// Name returns the queue's name.
func (q *Queue) Name() string { return q.name }

// yield lets a simulation decide when a goroutine which was woken continues. who names the goroutine. Outside of
// simulations it does nothing.
func (q *Queue) yield(ctx context.Context, who string) { q.opts.Test.Pause(ctx, who) }

// yieldName is the context key of a goroutine's name in a simulation.
type yieldName struct{}

// named returns ctx with a name for the goroutine which ctx is for.
func (q *Queue) named(ctx context.Context, format string, args ...any) context.Context {
	return q.opts.Test.Named(ctx, format, args...)
}

// nowMS returns the time by the handle's clock, in ms since 1970.
func (q *Queue) nowMS() int64 { return millis(q.opts.Now()) }

// batchOptions returns the transaction options of a job, such as a sweep. Its transactions have a lower priority than
// all others.
func (q *Queue) batchOptions() kv.TxOptions {
	o := txFor(q, "job")
	o.Batch = true
	return o
}

// Admin is the operator's side of a queue, while programs use the queue. It looks inside, changes waiting messages,
// pauses, repairs and configures. An Admin is a view of the handle. You may copy it and use it from several goroutines.
// It ends with the handle's Close. All calls work while the queue is in use.
type Admin struct {
	q  *Queue
	by string // "" = the handle's Owner
}

// Admin returns the operator's side of the handle.
func (q *Queue) Admin() Admin { return Admin{q: q} }

// As returns the operator's side under a name. Hooks get the name with each operation of the result. Marks, dead
// letters and attempts get it as their author, unless options give another name. name has at most 256 bytes
// of UTF-8, or else the operations fail with *LimitError or ErrInvalidUTF8. "" = the handle's Owner.
func (a Admin) As(name string) Admin { return Admin{q: a.q, by: name} }

// who returns the name of the operator, for people.
func (a Admin) who() string { return cmp.Or(a.by, a.q.opts.Owner) }

// act runs do, an operator's call, tells the hooks, and puts the verb into the call's error. It first checks the
// operator's name. group and id are those that the call names, for the hooks. do returns how many items it has changed.
func (a Admin) act(
	ctx context.Context, v Verb, group *string, id ID, do func(ctx context.Context) (items int, err error),
) error {
	ctx, w := a.q.observe(ctx, Operation{Verb: v, By: a.who(), Group: group, ID: id})
	items := 0
	err := checkByReason(a.by, "")
	if err == nil {
		items, err = do(ctx)
	}
	if w != nil && (err == nil || a.partly(v)) {
		w.Items = items
	}
	return w.end(ctx, wrap(string(v), err))
}

// partly reports whether a verb takes several transactions, so that something may have been done before an error.
func (a Admin) partly(v Verb) bool {
	return v == VerbPurge || v == VerbRedrive || v == VerbDiscard || v == VerbReplay
}

// The counters of items.
const (
	countEnqueued     = "enqueued"
	countReceived     = "received"
	countAcked        = "acked"
	countNacked       = "nacked"
	countExpired      = "expired"
	countTaken        = "taken"
	countDeadLettered = "dead_lettered"
	countRedriven     = "redriven"
	countDiscarded    = "discarded"
	countCancelled    = "cancelled"
	countPurged       = "purged"
	countForced       = "forced"
	countAgedOut      = "past_retention"
	countDuplicates   = "duplicates"
	// Items which left a claim without being acked: given back, taken over, advanced, dead-lettered, removed by force.
	// The items in flight are those received, less those acked and those returned. So neither a receive nor an ack
	// writes another counter for them.
	countReturned = "returned"

	// Of groups: how many are marked now; so the numbers also go down.
	countPausedGroups = "paused_groups"
	countHaltedGroups = "halted_groups"
)

// Each counter is spread over slots, so that handles do not all write the same key. A handle writes one of
// counterSlots. In a queue with several shards it has as many slots as there are shards, but at most counterTurns, and
// writes them in turn.
const (
	counterSlots = 16
	// counterTurns bounds the slots of a handle, because a read of the counters reads all slots.
	counterTurns = 16
)

// counting is where a handle's counts go.
type counting struct {
	slot int64

	mu    sync.Mutex
	turns map[string]int64 // guarded by mu; by counter: a handle whose transactions alternate would else skip slots
}

// next returns the slot to which the next count of a counter goes, in a queue with so many shards. name is the
// counter's.
func (c *counting) next(name string, shards int64) int64 {
	if shards == 1 {
		return c.slot
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.turns == nil {
		c.turns = make(map[string]int64)
	}
	c.turns[name]++
	return c.slot + counterSlots*(c.turns[name]%min(shards, counterTurns))
}

// add adds n to a counter: an atomic add to the key (count) of one of its slots. n may be negative. No decision depends
// on the number, so add needs neither a read nor a conflict.
func (q *Queue) add(tx kv.Tx, keys subspace, name string, n int) {
	if n == 0 {
		return
	}
	slot := q.counting.next(name, keys.shards.all())
	tx.Atomic(kv.Add, keys.count(name, slot), rec.PackCount(int64(n)))
}

// countMark adds n to the counter of paused or of halted groups, by the kind of the mark m: 1 for a mark that is set,
// -1 for one that is removed. m = nil changes nothing. finish writes the counter.
func (w *txn) countMark(m *rec.Mark, n int) {
	switch {
	case m == nil:
	case m.Kind == rec.MarkPause:
		w.count(countPausedGroups, n)
	default:
		w.count(countHaltedGroups, n)
	}
}

// readCounts reads all counters (count), and returns the sum of the slots of each by its name. The amount in a row that
// cannot be read is missing in its counter.
func (v *view) readCounts() (map[string]int64, error) {
	rows, err := v.read.GetRange(v.keys.section(nameCount).Selectors(), kv.RangeOptions{}).Wait(v.ctx)
	if err != nil {
		return nil, fmt.Errorf("read counters: %w", err)
	}
	counts := make(map[string]int64)
	for _, row := range rows {
		p, err := v.keys.parse(row.Key)
		if err == nil {
			var n int64
			n, err = rec.UnpackCount(row.Key, row.Value)
			counts[p.field] += n
		}
		v.skipsRow(err)
	}
	return counts, nil
}

// depth returns the number of items in the queue, from its counters.
func depth(counts map[string]int64) int64 {
	n := counts[countEnqueued] + counts[countRedriven]
	for _, gone := range []string{
		countAcked, countTaken, countDeadLettered, countCancelled, countPurged, countAgedOut,
	} {
		n -= counts[gone]
	}
	return n
}

// noticed is what a handle has learnt from earlier transactions, and uses until it learns better. See package advice.
// Nothing in that package can touch a key, so order and exclusion do not depend on it.
type noticed struct {
	spreads  advice.Spreads  // at which hints searches begin
	flights  advice.Flights  // the lanes that transactions of the handle are about to claim
	portions advice.Portions // the handle's share of the queue's rate
	stride   advice.Stride   // how much clearing a transaction does
	empties  advice.Empties  // whether enqueues usually find empty groups
	keeping  advice.Keeping  // the wake that an ack owes
	far      advice.Far      // when to look for timers that are due far ahead
}

// advised is the advice of a transaction of the handle, for all its attempts. A transaction of the caller's own has the
// zero value.
type advised struct {
	flight *advice.Flight   // the groups which no other transaction of the handle should claim; may be nil
	booked *advice.Bookings // of the queue's rate; nil = what is booked stays so
	kept   *advice.Keep     // may be nil
	own    *ownChanges      // the handle's claims that the transaction makes and ends
	beside int              // how many groups the handle's other transactions in flight are likely to take
}

// attempt tells the parts that another attempt begins: the notes of the attempt before have not happened.
func (a *advised) attempt() {
	a.flight.Attempt()
	a.booked.Attempt()
	a.kept.Attempt()
	a.own.Attempt()
}

// end tells the parts how the transaction has ended with err: applied, without effect, or of unknown outcome. The
// flight ends by its Land.
func (a *advised) end(err error) {
	outcome := advice.Applied
	switch {
	case kv.MaybeCommitted(err):
		outcome = advice.Unknown
	case err != nil:
		outcome = advice.Failed
	}
	a.booked.End(outcome)
	a.kept.End(outcome)
	a.own.End(outcome)
}

// spreadOf returns the handle's guesses about the hints of a packed template; "" = of whole groups.
func (q *Queue) spreadOf(where string) *advice.Spread { return q.noticed.spreads.Of(where) }

// learn notes how the body of a transaction with chores has ended. After an error of the engine the handle does fewer
// chores in a transaction: see the type chores.
func (q *Queue) learn(c *chores, err error) {
	switch {
	case c.done == 0:
	case err == nil:
		q.noticed.stride.Came(c.halvings)
	case kv.Code(err) != 0:
		q.noticed.stride.Failed(c.halvings)
	}
}

// entropy is the handle's source of random numbers and UUIDs: cryptographic unless seeded.
type entropy struct {
	mu   sync.Mutex
	src  *rand.ChaCha8 // guarded by mu
	rand *rand.Rand    // over src; guarded by mu
}

// newEntropy returns a source of random numbers. seed 0 = a cryptographic one. Otherwise the numbers follow from the
// seed.
func newEntropy(seed uint64) *entropy {
	var s [32]byte
	if seed == 0 {
		crand.Read(s[:]) // never fails
	} else {
		binary.LittleEndian.PutUint64(s[:], seed)
	}
	src := rand.NewChaCha8(s)
	return &entropy{src: src, rand: rand.New(src)}
}

// N returns a random number from 0 to below - 1. below must be at least 1, or else N panics.
func (e *entropy) N(below int) int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.rand.IntN(below)
}

// Float returns a random number in [0, 1).
func (e *entropy) Float() float64 {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.rand.Float64()
}

// uuid returns a random UUID.
func (e *entropy) uuid() (id uuid.UUID) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.draw(&id)
	return id
}

// uuids returns the random parts of the ids of n new messages.
func (e *entropy) uuids(n int) []uuid.UUID {
	e.mu.Lock()
	defer e.mu.Unlock()
	ids := make([]uuid.UUID, n)
	for i := range ids {
		e.draw(&ids[i])
	}
	return ids
}

// draw sets id to a random UUID. mu is held.
func (e *entropy) draw(id *uuid.UUID) {
	e.src.Read(id[:])         // never fails
	id[6] = id[6]&0x0f | 0x40 // version 4, random
	id[8] = id[8]&0x3f | 0x80 // variant of RFC 4122
}
