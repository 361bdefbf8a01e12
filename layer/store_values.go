package layer

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

// decoder reads the elements of a tuple in order and keeps the first error, which end returns. So a record is read in a
// single expression and checked once. For example the value of a request:
//
//	d := decoder{rest: value}
//	r := request{owner: d.str(), wants: d.int(), deadlineMS: d.int()}
//	return r, d.end(key)
type decoder struct {
	rest []byte
	err  error
}

// end returns the first error, with the key whose value or name is being read. Left-over bytes are an error: otherwise
// two different values could mean the same.
func (d *decoder) end(key []byte) error {
	if err := d.left(); err != nil {
		return corrupt(key, err)
	}
	return nil
}

// left is end for bytes whose key is not known.
func (d *decoder) left() error {
	if d.err == nil && len(d.rest) > 0 {
		d.err = fmt.Errorf("%d bytes too many", len(d.rest))
	}
	return d.err
}

// more reports whether elements follow.
func (d *decoder) more() bool { return d.err == nil && len(d.rest) > 0 }

// check makes the value corrupt if ok is false: text says why.
func (d *decoder) check(ok bool, text string, args ...any) {
	if d.err == nil && !ok {
		d.err = fmt.Errorf(text, args...)
	}
}

func (d *decoder) str() (v string) {
	if d.err == nil {
		v, d.rest, d.err = tuple.DecodeString(d.rest)
	}
	return v
}

func (d *decoder) bytes() (v []byte) {
	if d.err == nil {
		v, d.rest, d.err = tuple.DecodeBytes(d.rest)
	}
	return v
}

func (d *decoder) int() (v int64) {
	if d.err == nil {
		v, d.rest, d.err = tuple.DecodeInt(d.rest)
	}
	return v
}

func (d *decoder) uuid() (v uuid.UUID) {
	if d.err == nil {
		v, d.rest, d.err = tuple.DecodeUUID(d.rest)
	}
	return v
}

func (d *decoder) versionstamp() (v tuple.Versionstamp) {
	if d.err == nil {
		v, d.rest, d.err = tuple.DecodeVersionstamp(d.rest)
	}
	return v
}

// The type codes of the tuple encoding which tell apart what may stand in the same place.
const (
	codeNull   = 0x00 // at the top; within a nested tuple: its end
	codeString = 0x02
	codeUUID   = 0x30
	codeNested = 0x05
)

// follows reports whether the next byte is code.
func (d *decoder) follows(code byte) bool { return d.more() && d.rest[0] == code }

// null reports whether the next element is nil, and if so passes over the element.
func (d *decoder) null() bool {
	is := d.follows(codeNull)
	if is {
		d.rest = d.rest[1:]
	}
	return is
}

// list reads a nested tuple: until the tuple ends, list calls read, which reads an element or more. No element may be
// nil, because only nil is encoded differently within a nested tuple.
func (d *decoder) list(read func()) {
	d.check(d.follows(codeNested), "no nested tuple")
	for begun := false; d.err == nil; begun = true {
		switch {
		case !begun:
			d.rest = d.rest[1:]
		case d.follows(codeNull):
			d.rest = d.rest[1:]
			return
		default:
			read()
		}
	}
}

// packInt is the value of a record which is an integer: a grant's token, the failed deliveries of a hint's head, the
// queue's format and offset, and when a drop has begun (ms).
func packInt(n int64) []byte { return tuple.AppendInt(nil, n) }

func unpackInt(key, value []byte) (int64, error) {
	d := decoder{rest: value}
	n := d.int()
	return n, d.end(key)
}

// packCount is the value of a counter or a wake key, and the operand of an atomic add to either.
func packCount(n int64) []byte { return binary.LittleEndian.AppendUint64(nil, uint64(n)) }

func unpackCount(key, value []byte) (int64, error) {
	if len(value) != 8 {
		return 0, corrupt(key, fmt.Errorf("counter of %d bytes", len(value)))
	}
	return int64(binary.LittleEndian.Uint64(value)), nil
}

// request is the value of a request.
type request struct {
	owner      string
	wants      int64 // groups
	deadlineMS int64
}

func (r request) pack() []byte { return tuple.Tuple{r.owner, r.wants, r.deadlineMS}.Pack() }

func unpackRequest(key, value []byte) (request, error) {
	d := decoder{rest: value}
	r := request{owner: d.str(), wants: d.int(), deadlineMS: d.int()}
	return r, d.end(key)
}

// pace is the time up to which a group's rate is used up. The time has a fraction of a microsecond, because otherwise
// a rate like 3 a second (333,333 1/3 µs an item) would not be exact.
type pace struct {
	us   int64
	part int64 // part/of of a microsecond; part < of
	of   int64 // the count of the rate
}

func (p pace) pack() []byte { return tuple.Tuple{p.us, p.part, p.of}.Pack() }

func unpackPace(key, value []byte) (pace, error) {
	d := decoder{rest: value}
	p := pace{us: d.int(), part: d.int(), of: d.int()}
	d.check(p.part >= 0 && p.part < p.of, "no time")
	return p, d.end(key)
}

// remembered is the value of a dedup entry.
type remembered struct {
	id      ID    // of the message that was accepted
	untilMS int64 // 0 = while the message is in the queue
	clock   int64 // when the message was enqueued, as indexes count
}

func (r remembered) pack() []byte {
	return tuple.Tuple{r.id.Group, r.id.Index, r.id.Random, r.untilMS, r.clock}.Pack()
}

func unpackRemembered(key, value []byte) (remembered, error) {
	d := decoder{rest: value}
	r := remembered{id: ID{Group: d.str(), Index: d.int(), Random: d.uuid()}, untilMS: d.int(), clock: d.int()}
	return r, d.end(key)
}

// purgeNote is the note of a purge: when its last step was.
type purgeNote struct {
	clock int64 // as indexes count
	ms    int64
}

func (n purgeNote) pack() []byte { return tuple.Tuple{n.clock, n.ms}.Pack() }

func unpackPurged(key, value []byte) (purgeNote, error) {
	d := decoder{rest: value}
	n := purgeNote{clock: d.int(), ms: d.int()}
	return n, d.end(key)
}

// repeat is the value of a receive id: when the id was used, and the claims given to the receive; at least one.
type repeat struct {
	ms     int64
	claims []claimRef
}

// claimRef names a claim.
type claimRef struct {
	lane  string
	token int64
}

func (r repeat) pack() []byte { return appendClaims(tuple.AppendInt(nil, r.ms), r.claims) }

// appendClaims appends claims: group, token, group, token …
func appendClaims(b []byte, claims []claimRef) []byte {
	for _, c := range claims {
		b = tuple.AppendInt(tuple.AppendString(b, c.lane), c.token)
	}
	return b
}

// claimRefSize is, with ample room, how many bytes the claim of a lane, or of an item of a lane, takes there. A NUL
// takes two bytes, and in a lane that is no whole group another one.
func claimRefSize(lane string) int { return 3*len(lane) + 2*(9+17) + 16 }

// claims reads the rest of a value, a list of claims.
func (d *decoder) claims() (claims []claimRef) {
	for d.more() {
		claims = append(claims, claimRef{lane: d.str(), token: d.int()})
	}
	return claims
}

func unpackRepeat(key, value []byte) (repeat, error) {
	d := decoder{rest: value}
	r := repeat{ms: d.int(), claims: d.claims()}
	d.check(len(r.claims) > 0, "no claims")
	return r, d.end(key)
}

// packReceipt is the value of a receipt: when written, by which attempt of the transaction.
func packReceipt(written moment, attempt int64) []byte {
	b := tuple.AppendInt(tuple.AppendInt(make([]byte, 0, 3*9), written.nowMS), attempt)
	return tuple.AppendInt(b, written.clock)
}

// witnessOf returns when a receipt was written, by both clocks. Earlier versions wrote only one.
func witnessOf(writtenMS int64, rest tuple.Tuple) (w moment, ok bool) {
	if len(rest) != 2 {
		return w, false
	}
	clock, ok := rest[1].(int64)
	return moment{nowMS: writtenMS, clock: clock}, ok
}

// unpackReceipt returns when a receipt was written, and the rest of it: the attempt, and see witnessOf. Earlier
// versions wrote the result of the transaction there.
func unpackReceipt(key, value []byte) (writtenMS int64, rest tuple.Tuple, err error) {
	t, err := tuple.Unpack(value)
	if err != nil {
		return 0, nil, corrupt(key, err)
	}
	if len(t) > 0 {
		if ms, ok := t[0].(int64); ok {
			return ms, t[1:], nil
		}
	}
	return 0, nil, corrupt(key, fmt.Errorf("receipt %v without a time", t))
}

// sweepNote is the value of the note of the last sweep.
type sweepNote struct {
	begunMS int64
	random  uuid.UUID // the sweep's
}

func (n sweepNote) pack() []byte { return tuple.Tuple{n.begunMS, n.random}.Pack() }

func unpackSweepNote(key, value []byte) (sweepNote, error) {
	d := decoder{rest: value}
	n := sweepNote{begunMS: d.int(), random: d.uuid()}
	return n, d.end(key)
}

// packSweptTo is the note of the last dedup entry which was swept: the next sweep goes on behind its key.
func packSweptTo(last []byte) []byte { return tuple.AppendBytes(nil, last) }

func unpackSweptTo(key, value []byte) (last []byte, err error) {
	d := decoder{rest: value}
	last = d.bytes()
	return last, d.end(key)
}

// storedConfig is the stored configuration, and which queue of the name the configuration is of.
type storedConfig struct {
	config      Config
	version     int64
	incarnation uuid.UUID // drawn by Create; see tx_config.go
	shards      shardCounts
}

func (s storedConfig) pack() ([]byte, error) {
	document, err := json.Marshal(s.config)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	value := tuple.Append(nil, s.version, string(document), s.incarnation)
	if s.shards.earlier == nil {
		return value, nil
	}
	for _, n := range append([]int64{s.shards.write}, s.shards.earlier...) {
		value = tuple.AppendInt(value, n)
	}
	return value, nil
}

// unpackConfig reads a stored configuration. No value means: no queue. If the error is one of the document, no setting
// is known, but the incarnation is.
func unpackConfig(key, value []byte) (s storedConfig, err error) {
	if value == nil {
		return s, ErrNoQueue
	}
	d := decoder{rest: value}
	version, document, incarnation := d.int(), d.str(), d.uuid()
	shards := d.shardCounts()
	if err := d.end(key); err != nil {
		return s, err
	}
	s = storedConfig{version: version, incarnation: incarnation, shards: shards}
	s.config, err = readConfig(key, document)
	s.shards.read = int64(s.config.Shards)
	if shards.earlier == nil {
		s.shards.write = s.shards.read
	}
	return s, err
}

// checkMarkKey checks the value under the key of a mark.
func checkMarkKey(key, value []byte) error {
	if len(value) > 0 {
		return corrupt(key, fmt.Errorf("%d bytes, should be none", len(value)))
	}
	return nil
}

// checkStoredState checks the form of a state in the database.
func checkStoredState(key, value []byte) error {
	if len(value) == 0 {
		return corrupt(key, fmt.Errorf("a state of no bytes"))
	}
	if err := checkState(value); err != nil {
		return corrupt(key, err)
	}
	return nil
}

// rows are items of one group as read, in key order. Each row is decoded once, on first use.
type rows struct {
	keys  subspace
	lane  string
	group string      // of the lane
	of    kv.KeyRange // the lane's items
	retro retro       // of the queue
	now   moment      // zero = the times stay as stored
	list  []row
}

// row is one stored item.
type row struct {
	kv.KV
	delivered
	envelope envelope
	dueMS    int64  // the earliest delivery time; 0 = the item is not delayed
	sentMS   int64  // the time of the enqueue as stored
	tamed    bool   // the envelope's times were wrong, and are not as stored
	body     []byte // inline; the rest is in the parts
	opened   bool
	err      error // the item cannot be read; wraps ErrCorrupt
}

// rows takes the items of a lane, in key order: pairs of an item's key and value, whichever lane it is.
func (s subspace) rows(lane string, pairs []kv.KV, delay retro) rows {
	rs := rows{
		keys: s, lane: lane, group: groupOf(lane), of: s.items(lane), retro: delay, list: make([]row, len(pairs)),
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

// at decodes the i-th row. If the row cannot be read, the row's err says why.
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
	r.index, r.random = p.index, p.id
	if r.envelope, r.body, err = openEnvelope(r.Value); err != nil {
		r.err = corrupt(r.Key, err)
	}
	if r.sentMS = r.envelope.enqueuedMS; rs.now != (moment{}) {
		r.tamed = rs.now.tame(&r.envelope, r.index)
	}
	r.dueMS = rs.retro.due(&r.envelope)
	r.parts, r.facets = r.envelope.parts, rs.keys.plan.pack(r.envelope.headers)
	return r
}

// id returns the item's id, even if the value cannot be read.
func (rs rows) id(i int) ID { return rs.at(i).delivered.id(rs.group) }

// delivered returns what a claim's record keeps of the rows, or the error of the first unreadable row.
func (rs rows) delivered() ([]delivered, error) {
	all := make([]delivered, rs.len())
	for i := range all {
		r := rs.at(i)
		if r.err != nil {
			return nil, r.err
		}
		all[i] = r.delivered
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

// timing returns the time in the key of a timer that leads to the head, the first row, at untilMS.
func (rs rows) timing(untilMS int64) int64 {
	if head := rs.at(0); untilMS == head.dueMS {
		return rs.retro.timing(&head.envelope)
	}
	return untilMS
}

// A row of changes is a tuple: the time of its transaction (ms), and for each change
//
//	kind, group, index, random     of the item; then, in a queue with facets, a nested tuple of their values, and,
//	                               if the change gave the item other facets, a nested tuple of those before
//	kind, group, n                 of a purge: n items of the group are gone
//
// For example an ack of two items of group A: (1700000000000, 1, "A", 7, r1, 1, "A", 8, r2).

// ChangeKind is what has happened to an item.
type ChangeKind int

// The kinds. The numbers are stored.
const (
	ChangeEnqueued     ChangeKind = iota // a new message, or an archived item that Replay has enqueued again
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

var changeKindNames = []string{
	"enqueued", "finished", "dead_lettered", "redriven", "discarded", "cancelled", "expired", "purged", "advanced",
	"edited", "left",
}

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

	facets, was string // packed
}

// changed is changes of a single kind to items of a single group, made one after the other by one transaction.
type changed struct {
	kind  ChangeKind
	group string
	items []delivered // none of a purge
	was   []string    // the packed facets before, for each of items; nil = the change is of no facets
	n     int         // only of a purge: how many items
}

// changeSize is the most bytes that a change takes in its row, without the group's name.
const changeSize = 2 + 2 + 9 + 17

// appendItem appends the change of items[i] to a row.
func (c *changed) appendItem(row []byte, i int) []byte {
	d := &c.items[i]
	row = tuple.AppendString(tuple.AppendInt(row, int64(c.kind)), c.group)
	row = tuple.AppendUUID(tuple.AppendInt(row, d.index), d.random)
	if d.facets == "" {
		return row
	}
	row = appendNested(row, d.facets)
	if c.was == nil || c.was[i] == "" || c.was[i] == d.facets {
		return row
	}
	return appendNested(row, c.was[i])
}

// appendPurge appends a purge to a row.
func (c *changed) appendPurge(row []byte) []byte {
	row = tuple.AppendString(tuple.AppendInt(row, int64(c.kind)), c.group)
	return tuple.AppendInt(row, int64(c.n))
}

// unpackChanges reads a row of changes.
func unpackChanges(key, value []byte) (ms int64, all []Change, err error) {
	d := decoder{rest: value}
	ms = d.int()
	for d.more() {
		c := Change{Kind: ChangeKind(d.int()), ID: ID{Group: d.str(), Index: d.int()}, Items: 1, At: fromMillis(ms)}
		d.check(c.Kind >= 0 && c.Kind < ChangeLeft, "unknown kind %d", c.Kind)
		if c.Kind == ChangePurged {
			c.ID.Index, c.Items = 0, int(c.ID.Index)
		} else {
			c.ID.Random = d.uuid()
			c.facets = d.facets()
			c.was = d.facets()
		}
		all = append(all, c)
	}
	d.check(len(all) > 0, "no changes")
	return ms, all, d.end(key)
}

// facets reads the packed facets of a change; "" = none follow.
func (d *decoder) facets() string {
	if !d.follows(codeNested) {
		return ""
	}
	var values []string
	d.list(func() { values = append(values, d.str()) })
	d.check(len(values) > 0, "no facets")
	return packStrings(values)
}

// position is how far a subscription has come: everything before the key from is done, and of the row at from so many
// changes. The key counts from the first byte behind the queue's prefix.
type position struct {
	from []byte
	done int64
}

func (p position) equal(q position) bool { return bytes.Equal(p.from, q.from) && p.done == q.done }

// progress is the value of a cursor: a subscription's place, and the token of its holder.
type progress struct {
	token uuid.UUID
	position
}

func (p *progress) pack() []byte {
	return tuple.Tuple{p.token, p.from, p.done}.Pack()
}

func unpackProgress(key, value []byte) (p progress, err error) {
	d := decoder{rest: value}
	p = progress{token: d.uuid(), position: position{from: d.bytes(), done: d.int()}}
	d.check(len(p.from) > 0 && p.done >= 0, "no place")
	return p, d.end(key)
}

// reader is the value of a subscription's reader: its holder, and the end of the lease. The token says how long the
// lease is, so that others see that the end is wrong: the first four bytes are readerMark, and the next four the lease
// (ms). A token of a version before is random.
type reader struct {
	token uuid.UUID
	owner string
	endMS int64
}

func (r *reader) pack() []byte { return tuple.Tuple{r.token, r.owner, r.endMS}.Pack() }

const readerMark = 0x6c656173

// readerToken makes a token of a random number.
func readerToken(random uuid.UUID, lease time.Duration) uuid.UUID {
	binary.BigEndian.PutUint32(random[:4], readerMark)
	binary.BigEndian.PutUint32(random[4:8], uint32(lease.Milliseconds()))
	return random
}

// lease is the holder's lease; 0 = not known.
func (r *reader) lease() time.Duration {
	lease := time.Duration(binary.BigEndian.Uint32(r.token[4:8])) * time.Millisecond
	if binary.BigEndian.Uint32(r.token[:4]) != readerMark || checkLease(lease) != nil {
		return 0
	}
	return lease
}

// longest is the longest lease that the holder may have.
func (r *reader) longest() time.Duration { return cmp.Or(r.lease(), MaxLease) }

func unpackReader(key, value []byte) (r reader, err error) {
	d := decoder{rest: value}
	r = reader{token: d.uuid(), owner: d.str(), endMS: d.int()}
	return r, d.end(key)
}

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

// versionsPerMS is how fast the database's versions advance, about.
const versionsPerMS = 1000

// offsetSlack is how far the items may run ahead of the clock before Open concludes: the database's versions went back.
// Ten seconds' worth is far more than batches of 1,000 can get ahead, and far less than a restore loses.
const offsetSlack = 10_000_000 // versions

// paceAhead is how far the time up to which a rate is used up may lie ahead of a handle's clock. No handle writes a
// time ahead of its own clock. So a time that lies further ahead was written by a clock that was wrong, or is read by
// one.
const paceAhead = time.Minute

// grantLease is how long a granted group waits for the requester. A live requester accepts in milliseconds.
const grantLease = 2 * time.Second

// moment is the time of a transaction by both clocks.
type moment struct {
	nowMS int64
	clock int64 // the version, as indexes count; 0 = not known
}

// at returns when (ms), by the handle's clock, the queue's version was clock.
func (m moment) at(clock int64) int64 { return m.nowMS - max(0, m.clock-clock)/versionsPerMS }

// span returns the time since a version, by versions.
func (m moment) span(clock int64) time.Duration {
	return time.Duration(m.clock-clock) * time.Microsecond
}

// lag returns by how much the wall time has advanced more than the version since w.
func (m moment) lag(w moment) time.Duration {
	return time.Duration(m.nowMS-w.nowMS)*time.Millisecond - m.span(w.clock)
}

// old reports whether a row that was written at a version is at least d old by versions. Callers ask when the row is so
// old by wall time, because the clock that wrote the time, or the clock of this process, may be wrong. A version that
// is still to come is from before a restore. It tells nothing, and then old returns true.
func (m moment) old(clock int64, d time.Duration) bool {
	return m.span(clock) >= d || clock > m.clock+offsetSlack || lacks(guardClockAsk)
}

// ahead reports whether a time that was the present of its writer is later than now, beyond what clocks differ by.
func ahead(ms, nowMS int64) bool {
	return ms-nowMS > clockSlack.Milliseconds() && !lacks(guardClockBound)
}

// tooLate reports whether a time lies beyond the longest legal duration from now.
func tooLate(ms, nowMS int64, longest time.Duration) bool {
	return ahead(ms, nowMS+longest.Milliseconds())
}

// tame moves the times of a message whose producer's clock was ahead to this handle's clock, and reports whether it has
// changed e. The delay stays as long as the producer wanted. Example: a producer whose clock is a year ahead enqueues
// with a delay of 10 s: the message is due 10 s after the version of its enqueue. A time that an operator whose clock
// was ahead has set becomes the latest legal time from now.
func (m moment) tame(e *envelope, index int64) (changed bool) {
	if ahead(e.enqueuedMS, m.nowMS) {
		sent := m.at(index)
		if delay := e.dueMS - e.enqueuedMS; delay >= 0 && delay <= MaxDelay.Milliseconds() {
			e.dueMS = sent + delay
		}
		e.enqueuedMS, changed = sent, true
	}
	if tooLate(e.dueMS, m.nowMS, MaxDelay) {
		e.dueMS, changed = m.nowMS+MaxDelay.Milliseconds(), true
	}
	return changed
}

// lasts reports whether a dedup entry with a time still makes duplicates. An entry beyond the longest window has the
// queue's window from its version on.
func (m moment) lasts(r remembered, window time.Duration) bool {
	untilMS := r.untilMS
	if tooLate(untilMS, m.nowMS, MaxDedupWindow) || tooLate(untilMS, m.nowMS, window) && m.at(r.clock) < m.nowMS {
		untilMS = m.at(r.clock) + window.Milliseconds()
	}
	// The window may have been shorter when the entry was written, though not much if the clocks agree.
	early := window-time.Duration(untilMS-m.at(r.clock))*time.Millisecond > clockSlack
	return untilMS > m.nowMS || early && !m.old(r.clock, window)
}

// plausible returns the pace, or that of a single item if the time is ahead of now: no handle writes a time ahead of
// its own clock.
func (p pace) plausible(rate Rate, nowMS int64) pace {
	if rate.isNone() || p.us-nowMS*1000 <= paceAhead.Microseconds() || lacks(guardClockBound) {
		return p
	}
	return pace{us: nowMS*1000 - rate.Per.Microseconds()/int64(rate.Count) - 1}
}

// lives reports whether the handle of a request waits, as far as times tell.
func (r request) lives(nowMS int64) bool {
	return r.deadlineMS > nowMS && !tooLate(r.deadlineMS, nowMS, MaxLease)
}

// longest is how far ahead of its writer's clock the time in a timer of each kind may lie.
var longest = map[kind]time.Duration{
	kindClaim: MaxLease, kindGrant: grantLease, kindDelay: MaxDelay, kindHead: MaxDelay, kindBeat: MaxLease,
}

// isWrong reports whether the end of a holding is provably wrong: it lies beyond the latest that any holder may have,
// or the claim was made in the future.
func (h *holding) isWrong(nowMS int64) bool {
	return tooLate(h.endMS, nowMS, longest[h.kind]) || ahead(h.sinceMS, nowMS) && ahead(h.endMS, nowMS)
}
