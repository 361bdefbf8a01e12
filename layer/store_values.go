package layer

import (
	"cmp"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/lanes"
	"fdbfifo/layer/internal/rec"
)

// storedConfig is the value of a queue's configuration (the key meta, "config").
type storedConfig struct {
	config      Config
	version     int64     // grows with each change
	incarnation uuid.UUID // drawn by Create: tells the queue from others that had the same name; see tx_config.go
	shards      shardCounts
}

// pack returns the value to store.
func (s storedConfig) pack() ([]byte, error) {
	document, err := json.Marshal(s.config)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	return rec.Config{
		Version: s.version, Document: string(document), Incarnation: s.incarnation,
		WriteShards: s.shards.write, EarlierShards: s.shards.earlier,
	}.Pack(), nil
}

// unpackConfig reads the value of a stored configuration. If value is nil, there is no queue: ErrNoQueue. If the error
// is in the document (the settings as JSON), no setting is known, but the version and the incarnation are.
func unpackConfig(key, value []byte) (s storedConfig, err error) {
	if value == nil {
		return s, ErrNoQueue
	}
	row, err := rec.UnpackConfig(key, value)
	if err != nil {
		return s, err
	}
	s = storedConfig{
		version: row.Version, incarnation: row.Incarnation,
		shards: shardCounts{write: row.WriteShards, earlier: row.EarlierShards},
	}
	s.config, err = readConfig(key, row.Document)
	s.shards.read = int64(s.config.Shards)
	if row.EarlierShards == nil {
		s.shards.write = s.shards.read
	}
	return s, err
}

// split lays out the message m as the value of its item and the values of its parts. e has the times and the dedup id,
// and split adds the headers. The value is appended to dst, which is empty.
func split(dst []byte, m *Message, e rec.Envelope) (value []byte, parts [][]byte) {
	e.Headers = m.Headers
	return rec.LayOut(dst, e, m.Body)
}

// idOf returns the id of an item of a group.
func idOf(d rec.Item, group string) ID { return ID{Group: group, Index: d.Index, Random: d.Random} }

// idsOf returns the ids of items of a group.
func idsOf(all []rec.Item, group string) []ID {
	ids := make([]ID, len(all))
	for i, d := range all {
		ids[i] = idOf(d, group)
	}
	return ids
}

// setOf returns the set of the ids.
func setOf(ids []ID) map[ID]bool {
	set := make(map[ID]bool, len(ids))
	for _, id := range ids {
		set[id] = true
	}
	return set
}

// itemIDs returns the ids of items.
func itemIDs(items []Item) []ID {
	ids := make([]ID, len(items))
	for i := range items {
		ids[i] = items[i].ID
	}
	return ids
}

// rememberedID returns the id of the accepted message that a dedup entry has.
func rememberedID(r rec.DedupEntry) ID { return ID{Group: r.Group, Index: r.Index, Random: r.Random} }

// witnessOf returns when a receipt was written, by both clocks (moment). ok is false if an earlier version has written
// the receipt, with one clock only.
func witnessOf(r rec.Receipt) (w moment, ok bool) {
	clock, ok := r.Clock()
	return moment{nowMS: r.WrittenMS, clock: clock}, ok
}

// checkStoredState returns an error for a value that no handle can have stored as the state of a group. Example: no
// bytes, because a group with an empty state has no state key.
func checkStoredState(key, value []byte) error {
	if len(value) == 0 {
		return rec.Corrupt(key, fmt.Errorf("a state of no bytes"))
	}
	if err := checkState(value); err != nil {
		return rec.Corrupt(key, err)
	}
	return nil
}

// rows are items of one group as read, in key order. Each row is decoded once, on first use.
type rows struct {
	keys  subspace
	lane  string      // the lane in which the items were read
	group string      // of the lane
	of    kv.KeyRange // the lane's items
	retro retro       // how the queue delays messages
	now   moment      // the time by which wrong stored times are corrected; zero = the times stay as stored
	list  []row
}

// row is one stored item.
type row struct {
	kv.KV
	rec.Item
	envelope rec.Envelope
	dueMS    int64  // the earliest delivery time; 0 = the item is not delayed
	sentMS   int64  // the time of the enqueue as stored
	tamed    bool   // the envelope's times were wrong, and are not as stored
	body     []byte // inline; the rest is in the parts
	opened   bool   // the row is decoded
	err      error  // the item cannot be read; wraps ErrCorrupt
}

// rows makes rows of items that were read in a lane, in key order. Each pair is an item's own key and value, also if
// the lane is no whole group. delay says how the queue delays messages.
func (s subspace) rows(lane string, pairs []kv.KV, delay retro) rows {
	rs := rows{
		keys: s, lane: lane, group: lanes.GroupOf(lane), of: s.items(lane), retro: delay, list: make([]row, len(pairs)),
	}
	for i, pair := range pairs {
		rs.list[i].KV = pair
	}
	return rs
}

func (rs rows) len() int { return len(rs.list) }

// first returns the first n rows.
func (rs rows) first(n int) rows {
	rs.list = rs.list[:n]
	return rs
}

// from returns the rows behind the first n.
func (rs rows) from(n int) rows {
	rs.list = rs.list[n:]
	return rs
}

// at returns the i-th row, decoded. If the row cannot be read, the row's err says why.
func (rs rows) at(i int) *row {
	r := &rs.list[i]
	if r.opened {
		return r
	}
	r.opened = true
	p, err := rs.keys.parseItem(r.Key, rs.group, rs.of)
	if err != nil {
		r.err = err
		return r
	}
	r.Index, r.Random = p.index, p.id
	if r.envelope, r.body, err = rec.OpenEnvelope(r.Value); err != nil {
		r.err = rec.Corrupt(r.Key, err)
	}
	if r.sentMS = r.envelope.EnqueuedMS; rs.now != (moment{}) {
		r.tamed = rs.now.tame(&r.envelope, r.Index)
	}
	r.dueMS = rs.retro.due(&r.envelope)
	r.Parts, r.Facets = r.envelope.Parts, rs.keys.plan.Pack(r.envelope.Headers)
	return r
}

// id returns the item's id, even if the value cannot be read.
func (rs rows) id(i int) ID { return idOf(rs.at(i).Item, rs.group) }

// delivered returns all rows, in order, in the form that a claim's record (key lock) keeps items. It reads no key: the
// rows are in memory. If a row could not be read, the error is that of the first such row.
func (rs rows) delivered() ([]rec.Item, error) {
	all := make([]rec.Item, rs.len())
	for i := range all {
		r := rs.at(i)
		if r.err != nil {
			return nil, r.err
		}
		all[i] = r.Item
	}
	return all, nil
}

// due returns how many of the rows, from the head on, may be delivered at nowMS. An unreadable row counts as due, so
// that the call that takes the row reports the fault.
func (rs rows) due(nowMS int64) int {
	for i := range rs.list {
		if r := rs.at(i); r.err == nil && r.dueMS > nowMS {
			return i
		}
	}
	return len(rs.list)
}

// timing returns the time for the key of a timer that leads to the head, the first row, at untilMS. With retroactive
// delay that is another time if untilMS is the head's own due time: see retro.timing.
func (rs rows) timing(untilMS int64) int64 {
	if head := rs.at(0); untilMS == head.dueMS {
		return rs.retro.timing(&head.envelope)
	}
	return untilMS
}

// ChangeKind is what has happened to an item.
type ChangeKind int

// The kinds. The numbers are stored.
const (
	ChangeEnqueued     ChangeKind = iota // a new message, also one that has joined its group; an item that was replayed
	ChangeFinished                       // acked, or taken
	ChangeDeadLettered                   // failed for good, or past retention
	ChangeRedriven                       // a dead letter is in its group again; to the tail: under the ID's new index
	ChangeDiscarded                      // a dead letter was deleted
	ChangeCancelled                      // an operator has removed the waiting item
	ChangeExpired                        // past retention, and dropped
	ChangePurged                         // a purge has removed items of the group: Change.Items says how many
	ChangeAdvanced                       // the holder has rewritten the item in its place
	ChangeEdited                         // Edit or Replace has rewritten the waiting item in its place
	// ChangeLeft tells a subscription with a template that an advance or an edit gave the item other facets, so that
	// the item agrees with the template no longer. The database stores the advance or the edit.
	ChangeLeft
	changeKinds
)

// The stored form has two of the kinds by their numbers: a purge, and the first that is not stored.
var (
	_ [ChangePurged]struct{} = [rec.ChangePurge]struct{}{}
	_ [ChangeLeft]struct{}   = [rec.ChangeKinds]struct{}{}
)

// changeKindNames are the names of the kinds, by their numbers.
var changeKindNames = []string{
	"enqueued", "finished", "dead_lettered", "redriven", "discarded", "cancelled", "expired", "purged", "advanced",
	"edited", "left",
}

// String returns the name of the kind. Example: "finished".
func (k ChangeKind) String() string { return nameOf(k, changeKindNames) }

// Change is something that has happened to an item, in the order of commits. A Change has no body, and of the headers
// only the facets: the item may be gone by the time the change is read.
type Change struct {
	Kind  ChangeKind
	ID    ID        // of a purge: only the group
	Items int       // 1; of a purge: how many items of the group are gone
	At    time.Time // of the transaction, by the clock of its handle
	// Facets, in a queue with facets, has the item's values: after the change, if the change rewrote the item. nil of a
	// purge. The map is the caller's.
	Facets map[string]string
	// Was, of an advance or an edit that gave the item other facets, has the values before. nil of any other change.
	// The map is the caller's.
	Was map[string]string

	facets, was string // Facets and Was, packed
}

// unpackChanges returns the changes in a row of changes. It reads no key.
func unpackChanges(key, value []byte) (all []Change, err error) {
	ms, stored, err := rec.UnpackChanges(key, value)
	for _, c := range stored {
		all = append(all, Change{
			Kind: ChangeKind(c.Kind), ID: ID{Group: c.Group, Index: c.Index, Random: c.Random}, Items: int(c.N),
			At: fromMillis(ms), facets: c.Facets, was: c.Was,
		})
	}
	return all, err
}

// leaseOf returns the lease of the holder of a subscription; 0 = not known. r is the value of the reader key.
func leaseOf(r *rec.Reader) time.Duration {
	lease := r.Lease()
	if checkLease(lease) != nil {
		return 0
	}
	return lease
}

// longestReader returns the longest lease that the holder of a subscription may have.
func longestReader(r *rec.Reader) time.Duration { return cmp.Or(leaseOf(r), MaxLease) }

// A stored wall time was written by the clock of another process, and that clock may have been wrong. Each time has a
// bound: no process may store a later time. Example: a lease ends at most MaxLease after its claim. A time beyond the
// bound is wrong, whoever's clock it was, and is replaced when it is read.
//
// The database's version is the second clock: a million a second, and no process sets it. The index of a message and
// the token of a claim are versions. So the age of a message is known without the clock of its producer. Versions jump
// at a recovery, and stand while no process has a folder open: such an age is about right, and used only in the place
// of a time that is provably wrong. docs/guarantees.md lists the stored times with their bounds.

// clockSlack is how far the clocks of two processes may differ before one counts as wrong.
const clockSlack = 5 * time.Minute

// sinceSlack is by how much the clock of a holder must have stepped ahead since the claim was made, by versions, before
// an extension changes the begin of the claim. It is more than a right clock drifts from versions while a claim lasts.
// If it were clockSlack, a clock that steps twice by less could be nearly ten minutes ahead without a trace.
const sinceSlack = 10 * time.Second

// versionsPerMS is how fast the database's versions advance, about.
const versionsPerMS = 1000

// offsetSlack is how far hints and receipts may run ahead of the clock before Open concludes that the database's
// versions went back. Ten seconds' worth is far more than batches of 1,000 can get ahead, and far less than a restore
// loses.
const offsetSlack = 10_000_000 // versions

// paceAhead is how far the time up to which a rate is used up may lie ahead of a handle's clock. No handle writes a
// time ahead of its own clock. So a time that lies further ahead was written by a clock that was wrong, or is read by
// one.
const paceAhead = time.Minute

// requestLife is the time from the writing of a request to its deadline. A handle renews the deadline at half of
// requestLife. The clocks of processes usually differ by much less. If another handle takes a request for dead too
// early, because either clock is wrong, the request's handle finds the group by a poll, and nothing else is lost.
const requestLife = 60 * time.Second

// grantLease is how long a granted group waits for the requester. A live requester accepts in milliseconds.
const grantLease = 2 * time.Second

// moment is the time of a transaction by both clocks: the wall time of the handle, and the database's version.
type moment struct {
	nowMS int64 // by the handle's clock
	clock int64 // the read version + the queue's offset, as indexes count; 0 = not known
	// Since the handle was opened: its version then, and the time since by the monotonic clock.
	opened int64
	open   time.Duration
}

// opening is when a handle has read its queue first.
type opening struct {
	clock int64     // the version, as indexes count
	at    time.Time // by the system's monotonic clock, not before that version
}

// note sets o to the present, at which the queue's version is clock.
func (o *opening) note(clock int64) { o.clock, o.at = clock, time.Now() }

// at returns when (ms), by the handle's clock, the queue's version was clock; for a version still to come, now.
func (m moment) at(clock int64) int64 { return m.nowMS - max(0, m.clock-clock)/versionsPerMS }

// span returns the time since the version clock, by versions. It is negative for a version still to come.
func (m moment) span(clock int64) time.Duration {
	return time.Duration(m.clock-clock) * time.Microsecond
}

// leaseOf returns the lease of a claim, with its extensions, and the age of the claim by versions: the claim's token is
// the version at which the claim was made. If the claim is not extended, one clock has written both its begin and its
// end. Both results are 0 if the holding has no begin (SinceMS), or its age is not known: a token more than offsetSlack
// ahead is from before a restore.
func (m moment) leaseOf(h *rec.Holding) (lease, age time.Duration) {
	if h.SinceMS == 0 || h.Token > m.clock+offsetSlack {
		return 0, 0
	}
	return time.Duration(h.EndMS-h.SinceMS) * time.Millisecond, m.span(h.Token)
}

// leaseIsOver reports whether the lease of a claim, with its extensions, is over by versions. A jump of the versions
// since the handle was opened counts as no time. A lease that is not known, or that no claim may have, counts as over.
func (m moment) leaseIsOver(h *rec.Holding) bool {
	lease, age := m.leaseOf(h)
	left := lease - max(0, age-m.jumped())
	return left <= 0 || left > MaxLease
}

// jumped returns by how much the versions have advanced more than the monotonic clock since the handle was opened.
func (m moment) jumped() time.Duration { return max(m.span(m.opened)-m.open, 0) }

// lag returns by how much the wall time has advanced more than the version since w. w may be by another handle's clock:
// then the lag is also the difference of the clocks.
func (m moment) lag(w moment) time.Duration {
	return time.Duration(m.nowMS-w.nowMS)*time.Millisecond - m.span(w.clock)
}

// old reports whether a row that was written at the version clock is at least d old by versions. Callers ask only about
// a row that is so old by wall time, because that time, or the clock of this process, may be wrong. A version more than
// offsetSlack ahead is from before a restore and tells nothing. Then old returns true, and the wall time alone decides.
func (m moment) old(clock int64, d time.Duration) bool {
	return m.span(clock) >= d || clock > m.clock+offsetSlack
}

// past reports whether at is more than d ago both by the handle's clock and by versions. The zero at is long past. A
// wall time that is ahead says nothing: then the versions alone decide.
func (m moment) past(at rec.Instant, d time.Duration) bool {
	return at == rec.Instant{} || (ahead(at.AtMS, m.nowMS) || m.nowMS-at.AtMS > d.Milliseconds()) && m.old(at.Clock, d)
}

// isLongOver reports whether an id (of a dedup entry, or of a receive) is over by versions alone, whatever its stored
// time says. The id was stored at the version clock, to last for d. It is over by versions when it is at least twice d
// and clockSlack old. Two cases need this. A handle whose clock stands still would never end the id. And a clock that
// was 20 minutes ahead has written a time that others take for a right one a quarter of an hour later.
//
// Versions may have jumped, so isLongOver believes no age that the handle's monotonic clock does not confirm. The age
// counts from the write of the id (clock), or from the opening of the handle if that is later. Jumps are subtracted.
func (m moment) isLongOver(clock int64, d time.Duration) bool {
	return min(m.span(clock), m.span(m.opened))-m.jumped() >= 2*d+clockSlack
}

// ahead reports whether a time ms, which was the present of its writer, is more than clockSlack later than nowMS. Then
// one of the two clocks is wrong.
func ahead(ms, nowMS int64) bool {
	return ms-nowMS > clockSlack.Milliseconds()
}

// tooLate reports whether ms is later than any right clock may have stored it: later than nowMS plus the longest legal
// duration, by more than clockSlack.
func tooLate(ms, nowMS int64, longest time.Duration) bool {
	return ahead(ms, nowMS+longest.Milliseconds())
}

// otherEnd returns the end (ms) to store for a claim or subscription that is extended until endMS. It is endMS, or a
// millisecond more than the end so far, wasMS, if endMS is the same or up to sameEnd earlier. To other processes an end
// in the future that does not change is that of a dead process (lookFar, outlived). So the end must change, also if
// the handle's clock stands still.
func otherEnd(endMS, wasMS int64) int64 {
	if back := wasMS - endMS; back >= 0 && back < sameEnd.Milliseconds() {
		return wasMS + 1
	}
	return endMS
}

// sameEnd is a bound of otherEnd: an end that would become earlier by less than sameEnd is stored as a later end. So if
// the handle's clock stands, the stored end takes the same value again only after a hundred extensions. If it did so
// after two, a process that looks after each second extension would see no change.
const sameEnd = 100 * time.Millisecond

// tame corrects the times of a message whose producer's clock was ahead, by this handle's clock. index is the message's
// index, the version of its enqueue. changed reports whether e has changed. The delay stays as long as the producer
// wanted. Example: a producer whose clock is a year ahead enqueues with a delay of 10 s: the message is due 10 s after
// the version of its enqueue. A time that an operator whose clock was ahead has set becomes the latest legal time from
// now.
func (m moment) tame(e *rec.Envelope, index int64) (changed bool) {
	if ahead(e.EnqueuedMS, m.nowMS) {
		sent := m.at(index)
		if delay := e.DueMS - e.EnqueuedMS; delay >= 0 && delay <= MaxDelay.Milliseconds() {
			e.DueMS = sent + delay
		}
		e.EnqueuedMS, changed = sent, true
	}
	if tooLate(e.DueMS, m.nowMS, MaxDelay) {
		e.DueMS, changed = m.nowMS+MaxDelay.Milliseconds(), true
	}
	return changed
}

// lasts reports whether a dedup entry with a time (UntilMS) still makes duplicates of messages with its id. window is
// the queue's present dedup window. A time is not believed if it lies further ahead than this window, by more than
// clockSlack. If the entry's version is still to come, the longest legal window counts instead. An entry whose time is
// not believed has the present window from its version on. In two other cases versions decide: isLongOver ends an
// entry, and one that would end too early (early) lasts until it is old.
func (m moment) lasts(r rec.DedupEntry, window time.Duration) bool {
	if m.isLongOver(r.Clock, window) {
		return false
	}
	untilMS := r.UntilMS
	if tooLate(untilMS, m.nowMS, maxDedupWindow) || tooLate(untilMS, m.nowMS, window) && m.at(r.Clock) < m.nowMS {
		untilMS = m.at(r.Clock) + window.Milliseconds()
	}
	// early: the entry ends too early for this window. The clock of its writer was behind, or the window was shorter
	// then. Such an entry must be old by versions, too.
	early := window-time.Duration(untilMS-m.at(r.Clock))*time.Millisecond > clockSlack
	return untilMS > m.nowMS || early && !m.old(r.Clock, window)
}

// repairedPace returns p, unless p is more than paceAhead ahead of now. Then one of the two clocks is wrong, because no
// handle writes a time ahead of its own. In that case it returns a pace that lets one item start now, and the next one
// when the rate allows it.
func repairedPace(p rec.Pace, rate Rate, nowMS int64) rec.Pace {
	if rate.isNone() || p.US-nowMS*1000 <= paceAhead.Microseconds() {
		return p
	}
	return rec.Pace{US: nowMS*1000 - rate.Per.Microseconds()/int64(rate.Count) - 1}
}

// lives reports whether the handle of a request still waits: the deadline is to come, and is no later than a handle may
// have stored it.
func lives(r rec.Request, nowMS int64) bool {
	return r.DeadlineMS > nowMS && !tooLate(r.DeadlineMS, nowMS, requestLife)
}

// longest is how far ahead of its writer's clock the time in a timer of each kind may lie.
var longest = map[rec.Kind]time.Duration{
	rec.KindClaim: MaxLease, rec.KindGrant: grantLease, rec.KindDelay: MaxDelay, rec.KindHead: MaxDelay,
	rec.KindBeat: MaxLease,
}

// isWrong reports whether the end of a holding is provably wrong: it lies beyond the latest that any holder may have,
// or both the begin of the claim and its end lie more than clockSlack in the future.
func isWrong(h *rec.Holding, nowMS int64) bool {
	return tooLate(h.EndMS, nowMS, longest[h.Kind]) || ahead(h.SinceMS, nowMS) && ahead(h.EndMS, nowMS)
}
