package layer

import (
	"context"
	"fmt"
	"maps"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"fdbfifo/layer/internal/advice"
)

// Claim is one holder's exclusive right to a group, to the items of a group that match a template, or to a single item.
// It has the items delivered under it, in order. A Claim is plain data: Ack, Nack and Extend need only Group, Token,
// the items' ids, and, if set, Where and Hold, in any process. Stored returns just these, to be kept elsewhere.
//
// After success, Ack, Nack and Extend update the Claim. Extend sets Until. An ack of some items, or a Nack with From,
// removes the items that left the claim from Items. The …Tx forms do not update it, because their commit is the
// caller's. So a loop that acks must range over the values. It then ranges over the items which the Claim had at the
// start of the loop:
//
//	for _, item := range c.Items { // not: for i := range c.Items
//		err := q.AckItems(ctx, c, []ID{item.ID})
//	}
//
// An ack of all items (Ack, FinishAll) does not change Items. An ack by ids removes the named items, also if they are
// the last.
//
// Calls on the same Claim may run at the same time, for example an Extend and an Ack. A goroutine must not read Until
// or Items while another calls Ack, Nack or Extend on the Claim. It must read a copy of the Claim made before, or use a
// lock around both.
type Claim struct {
	// Queue is the name of the queue. On a handle of another queue the claim is lost (ErrClaimLost); "" is not checked.
	Queue string
	Group string
	// Where is the template of the receive; nil = the claim is of the whole group, or of the item in Hold.
	Where Template
	// Hold is the item of a claim of one item, by an unordered receive, or in a queue with LeasePerItem; zero = the
	// claim is of a group.
	Hold ID
	// Token grows from claim to claim of a group, and from claim to claim of each item. Pass the token to systems
	// outside the database, so that such a system can refuse a holder whose group has a later claim. A token alone
	// names no claim: claims of several groups by the same receive may have the same token, and so may two stages of
	// one group, which are in flight at the same time. TokenKey says within what a system outside compares tokens.
	Token int64
	Items []Item    // delivered, and not acked as far as the calls on this Claim have said
	Until time.Time // the end of the lease, by this worker's clock
	// State is the group's state (Settlement.State) as of the claim, if ReceiveOptions.State asked; nil = there is
	// none.
	State []byte

	// TakenFrom is the Owner of the holder whose lease had expired, if the claim took the group over; "" otherwise, and
	// of a claim with Hold.
	TakenFrom string

	// ends is Until by the system's monotonic clock; zero = the claim was not received by this process.
	ends time.Time
	// beat is the number of the beat that keeps a claim by heartbeat alive. uuid.Nil = the claim has a lease of its
	// own, or was not received by this process.
	beat  uuid.UUID
	pulse *pulse // of beat; nil = the claim has a lease of its own, or the handle has left the beat

	suspect bool // the claim is of one suspect item, and not proven: see group_verdict.go
	failed  bool // some item of the group had failed before the receive: items behind the claim may be suspect
}

// pulse is what the handle knows of one beat, from its begin to its end. A beat is a time in the database up to which
// the handle's claims by heartbeat last; the handle moves it while the process lives. See tx_beat.go.
type pulse struct {
	handle uuid.UUID                 // the number of the beat, in its keys
	dueMS  atomic.Int64              // when the beat is due, as last committed, as far as the handle knows
	clock  atomic.Int64              // the queue's version when the beat was last moved
	due    atomic.Pointer[time.Time] // dueMS by the monotonic clock; nil = none yet
	ended  <-chan struct{}           // closed when the handle no longer moves the beat, at the latest by Close
	leave  context.CancelFunc        // closes ended
}

// left returns for how long the beat still keeps its claims, by the monotonic clock. 0 or less = the beat is due, or
// was not written yet.
func (p *pulse) left() time.Duration {
	if due := p.due.Load(); due != nil {
		return time.Until(*due)
	}
	return 0
}

// Lasts returns when the claim ends, by this process's clock, unless it is extended. A claim by heartbeat lasts longer
// with each beat of the handle. ended is closed when the handle no longer keeps the claim by heartbeat. The caller must
// then extend the claim, or stop its work. A Close of the handle closes ended, too. ended is nil if the claim has a
// lease of its own, and then until is Until.
func (c *Claim) Lasts() (until time.Time, ended <-chan struct{}) {
	claimsMu.Lock()
	defer claimsMu.Unlock()
	if c.pulse == nil {
		return c.Until, nil
	}
	return fromMillis(max(millis(c.Until), c.pulse.dueMS.Load())), c.pulse.ended
}

// Left returns for how long the claim still lasts, by the monotonic clock: a step of the wall clock changes nothing. An
// extension makes Left longer, and so does each beat of a handle that keeps the claim by heartbeat. 0 or less means
// that the lease has expired and another holder may have the group. For a claim that was not received by this process
// (see Stored) Left is the time until Until by the system's clock.
func (c *Claim) Left() time.Duration {
	claimsMu.Lock()
	defer claimsMu.Unlock()
	switch {
	case c.pulse != nil:
		return c.pulse.left()
	case c.ends.IsZero():
		return time.Until(c.Until)
	}
	return time.Until(c.ends)
}

// claimsMu guards Until and Items of the callers' claims against calls on the same claim at the same time. The mutex is
// held for an assignment, never during a transaction, so one for all claims is enough.
var claimsMu sync.Mutex

// The wall clock may step. So a handle does not take a group from itself before the lease is over by the monotonic
// clock and by versions of the database, which grow by about a million a second. Example: a laptop wakes after an hour,
// and by the wall clock all leases have ended. The handle first gives the claims that its goroutines still hold a new
// end. It leaves a heartbeat that is due by the wall clock alone to the goroutine of the heartbeat: see ownBeat.

// ownClaims is the handle's list, in memory, of the claims that it has made or extended. Claims by heartbeat are not
// among them. None of its methods reads or writes a key: keepOwn (group.go) extends the claims. A transaction notes a
// claim before the commit, and a claim that it ends stays noted until after the commit: another transaction of the
// handle may see the database before that or after. So some of these claims are not in the database. Only a transaction
// that was applied, or the time, removes a claim from the list.
type ownClaims struct {
	mu      sync.Mutex
	all     map[ownKey]ownClaim // guarded by mu
	firstMS int64               // guarded by mu; none of them ends before
	most    int                 // guarded by mu; with more of them, note removes those that have ended
}

// ownKey names a claim in the list. Claims of a lane (a group or a part of one) by two handles may have the same token,
// if their receives have read the same version. So the time of the claim is a part of the key.
type ownKey struct {
	lane           string
	token, sinceMS int64 // sinceMS is when the claim was made
}

// ownClaim is a claim that the handle has made or extended.
type ownClaim struct {
	endMS int64         // the end of the lease in the database, by the wall clock, or an earlier time: see note
	ends  time.Time     // the end by the monotonic clock
	clock int64         // the version at which the claim was made or extended
	lease time.Duration // from then on
	next  *ownClaim     // the claim with its extension, which may be committed or not; nil = there is none
}

// transactionLife is how long after its first read a transaction can commit; the database makes it 5 s.
const transactionLife = 5 * time.Second

// ownSlack is the shortest time left of a lease for which keepOwn extends the claim.
const ownSlack = 100 * time.Millisecond

// left returns the time that is left of the lease: by the monotonic clock or by versions, whichever is less. m is the
// present by the wall clock and by the version.
func (c *ownClaim) left(m moment) time.Duration {
	return min(time.Until(c.ends), c.lease-m.span(c.clock))
}

// as returns the claim with the end that the lock in the database has, endMS: c as it was, or with its extension
// (next).
func (c *ownClaim) as(endMS int64) *ownClaim {
	if c.next != nil && c.next.endMS == endMS {
		return c.next
	}
	return c
}

// mayLast reports whether more than ownSlack is left of the lease, or would be if the extension was committed.
func (c *ownClaim) mayLast(m moment) bool {
	return c.left(m) > ownSlack || c.next != nil && c.next.left(m) > ownSlack
}

// note adds a claim that a transaction is about to make. If the claim is in the list, the transaction extends it. Then
// the claim stays as it was, with the extension as next, because the commit may fail: confirm takes the extension over.
// But its endMS becomes the earlier of the two ends, because either may be in the database. Before note adds a claim to
// a long list, it removes claims whose leases are over.
func (o *ownClaims) note(key ownKey, c ownClaim) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if len(o.all) == 0 {
		o.all, o.firstMS = make(map[ownKey]ownClaim), c.endMS
	}
	if before, ok := o.all[key]; ok {
		before.endMS, before.next = min(c.endMS, before.endMS), &c
		o.all[key], o.firstMS = before, min(o.firstMS, before.endMS)
		return
	} else if len(o.all) >= o.most {
		maps.DeleteFunc(o.all, func(_ ownKey, c ownClaim) bool {
			return time.Until(c.ends) <= 0 && (c.next == nil || time.Until(c.next.ends) <= 0)
		})
		o.most = max(100, 2*len(o.all))
	}
	o.all[key], o.firstMS = c, min(o.firstMS, c.endMS)
}

// confirm sets a claim of the list to c, the claim as the database has it now. A claim that is not in the list stays
// out.
func (o *ownClaims) confirm(key ownKey, c ownClaim) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if _, ok := o.all[key]; ok {
		o.all[key], o.firstMS = c, min(o.firstMS, c.endMS)
	}
}

// ending is for a claim that a transaction of the caller ends. Nothing tells whether the transaction is committed, but
// it is over within transactionLife. Until then the claim stays in the list, and keepOwn may extend it. A claim that is
// not in the list stays out.
func (o *ownClaims) ending(key ownKey) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if c, ok := o.all[key]; ok {
		if soon := time.Now().Add(transactionLife); soon.Before(c.ends) {
			c.ends, c.next = soon, nil
		}
		o.all[key] = c
	}
}

// due reports whether a claim of the list may have ended by the wall clock.
func (o *ownClaims) due(nowMS int64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.all) > 0 && o.firstMS <= nowMS
}

// early returns the claims that have ended by the wall clock alone, because that clock has stepped: by the monotonic
// clock and by versions more than ownSlack is left of their leases, or of their extensions (mayLast). It removes from
// the list the other claims that have ended by the wall clock.
func (o *ownClaims) early(m moment) map[ownKey]ownClaim {
	o.mu.Lock()
	defer o.mu.Unlock()
	early := make(map[ownKey]ownClaim)
	o.firstMS = math.MaxInt64
	for key, c := range o.all {
		switch {
		case c.endMS > m.nowMS:
			o.firstMS = min(o.firstMS, c.endMS)
		case c.mayLast(m):
			early[key], o.firstMS = c, min(o.firstMS, c.endMS)
		default:
			delete(o.all, key)
		}
	}
	return early
}

// ownChanges are the changes that a transaction of the handle makes to its own claims. They are carried out in the list
// when the transaction has been applied.
type ownChanges struct {
	owns  *ownClaims          // the handle's list
	ended []ownKey            // the claims that are ended
	made  map[ownKey]ownClaim // the claims that are made or extended
}

// Attempt forgets what the attempt before has noted, because that attempt has changed nothing.
func (c *ownChanges) Attempt() { c.ended, c.made = nil, nil }

// lasts notes a claim that the transaction makes or extends.
func (c *ownChanges) lasts(key ownKey, as ownClaim) {
	setIn(&c.made, key, as)
}

// ends notes a claim that the transaction ends.
func (c *ownChanges) ends(key ownKey) { c.ended = append(c.ended, key) }

// End notes how the transaction has ended. If it was applied, End confirms the claims that it has made or extended, and
// removes those that it has ended from the list. Otherwise the list stays.
func (c *ownChanges) End(outcome advice.Outcome) {
	if outcome != advice.Applied {
		return
	}
	for key, as := range c.made {
		c.owns.confirm(key, as)
	}
	c.owns.mu.Lock()
	defer c.owns.mu.Unlock()
	for _, key := range c.ended {
		delete(c.owns.all, key)
	}
}

// snapshot returns a copy of the claim, for a transaction or for hooks: the caller's own may change while the
// transaction runs. The copy shares Where and the array of Items with the claim. nil for nil.
func (c *Claim) snapshot() *Claim {
	claimsMu.Lock()
	defer claimsMu.Unlock()
	return own(c)
}

// own returns a pointer to a copy of *p; nil for nil. The caller of the package cannot change the copy, except through
// maps and slices, which the copy shares with *p.
func own[T any](p *T) *T {
	if p == nil {
		return nil
	}
	return new(*p)
}

// setIn sets m[key] = value, and first makes the map if it is nil. Most maps of a transaction are never made.
func setIn[K comparable, V any](m *map[K]V, key K, value V) {
	if *m == nil {
		*m = make(map[K]V)
	}
	(*m)[key] = value
}

// ClaimError says that a Settle has not settled one of its claims. Err says why, for example ErrClaimLost.
type ClaimError struct {
	Claim *Claim // the caller's; nil if the caller gave none
	Err   error
}

// Error returns the group and the token of the claim, and the text of Err.
func (e *ClaimError) Error() string {
	if e == nil {
		return "<nil>"
	}
	if e.Claim == nil {
		return fmt.Sprint(e.Err)
	}
	return fmt.Sprintf("group %q, token %d: %v", e.Claim.Group, e.Claim.Token, e.Err)
}

// Unwrap returns Err.
func (e *ClaimError) Unwrap() error {
	if e == nil {
		return nil
	}
	return e.Err
}
