package layer

import (
	"encoding/binary"
	"fmt"
	"slices"
	"sort"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv/tuple"
)

// attempt is the record of an item's failed deliveries. An attempt changes only under a read conflict on the group's
// lock, and so needs no conflict of its own.
type attempt struct {
	count   int
	firstMS int64
	lastMS  int64
	lastErr string
	// deliveredMS is when the delivery began that failed first; 0 = not known.
	deliveredMS int64
}

// failed returns a with another failure added, of a delivery which began at sinceMS. A failure without a text leaves
// lastErr as it is.
func (a attempt) failed(sinceMS, nowMS int64, text string) attempt {
	if a.count == 0 {
		a.firstMS, a.deliveredMS = nowMS, sinceMS
	}
	a.count, a.lastMS = a.count+1, nowMS
	if text != "" {
		a.lastErr = cut(text)
	}
	return a
}

func (a attempt) pack() []byte {
	return withTime(tuple.Tuple{int64(a.count), a.firstMS, a.lastMS, a.lastErr}, a.deliveredMS).Pack()
}

// withTime returns t with a time at the end, which is left out if it is 0.
func withTime(t tuple.Tuple, ms int64) tuple.Tuple {
	if ms > 0 {
		t = append(t, ms)
	}
	return t
}

// timeAtEnd reads what withTime has added.
func (d *decoder) timeAtEnd() (ms int64) {
	if d.more() {
		ms = d.int()
		d.check(ms > 0, "time %d", ms)
	}
	return ms
}

func unpackAttempt(key, value []byte) (attempt, error) {
	d := decoder{rest: value}
	a := attempt{count: int(d.int()), firstMS: d.int(), lastMS: d.int(), lastErr: d.str()}
	a.deliveredMS = d.timeAtEnd()
	return a, d.end(key)
}

// failedBefore sets what the record of the item's failed deliveries says.
func (i *Item) failedBefore(record attempt) {
	if i.Attempts = record.count; record.deliveredMS > 0 {
		i.FirstDelivered = fromMillis(record.deliveredMS)
	}
	if record.count > 0 {
		i.LastFailed = fromMillis(record.lastMS)
	}
}

// The values of an item, of a dead letter and of an archived item have the same form: a head, and a rest.
//
//	byte 0       version of the form: 1
//	uvarint      length of the head, in bytes
//	head         a tuple: see envelope, dead and archived
//	rest         of an item: its body, or the first bytes of the body; else: the item's value, unchanged
const headVersion = 1

// packHead builds a value of a head and a rest.
func packHead(head tuple.Tuple, rest []byte) []byte {
	packed := head.Pack()
	value := append(make([]byte, 0, 4+len(packed)+len(rest)), headVersion)
	value = binary.AppendUvarint(value, uint64(len(packed)))
	return append(append(value, packed...), rest...)
}

// openHead splits a value into the head, to be read, and the rest, which aliases the value. If the value does not have
// the form, the end of the head is an error which names what, such as "dead letter".
func openHead(what string, value []byte) (head decoder, rest []byte) {
	if len(value) == 0 {
		return decoder{err: fmt.Errorf("%s of no bytes", what)}, nil
	}
	if value[0] != headVersion {
		return decoder{err: fmt.Errorf("%s of version %d", what, value[0])}, nil
	}
	packed, rest, ok := cutCounted(value[1:])
	if !ok {
		return decoder{err: fmt.Errorf("%s cut short", what)}, nil
	}
	return decoder{rest: packed}, rest
}

// dead is the value of a dead letter. The tuple of its head is
//
//	(reason, last error, attempts, first (ms), last (ms), dead-lettered (ms), first delivered (ms))
//
// The texts are cut so that the value stays below FoundationDB's limit. The parts of a large body belong to the dead
// letter and stay under the item's own key, which the dead letter has too.
type dead struct {
	reason   string
	lastErr  string
	attempts int
	firstMS  int64 // of the first failure, as lastMS of the last failure
	lastMS   int64
	deadMS   int64
	item     []byte // the item's value
	// deliveredMS is as of attempt: left out if 0.
	deliveredMS int64
}

func (d *dead) pack() []byte {
	head := tuple.Tuple{d.reason, d.lastErr, int64(d.attempts), d.firstMS, d.lastMS, d.deadMS}
	return packHead(withTime(head, d.deliveredMS), d.item)
}

// unpackDead splits the value of a dead letter; item aliases value.
func unpackDead(key, value []byte) (*dead, error) {
	head, item := openHead("dead letter", value)
	d := &dead{
		reason: head.str(), lastErr: head.str(), attempts: int(head.int()),
		firstMS: head.int(), lastMS: head.int(), deadMS: head.int(), item: item,
	}
	d.deliveredMS = head.timeAtEnd()
	return d, head.end(key)
}

// envelope is the head of an item's value. The head's tuple is
//
//	(enqueued (ms), headers, length of the whole body, number of parts, dedup id, not to be delivered before (ms))
//
// headers is nil or a nested tuple name, value, name, value …, sorted by name. Elements at the end of the tuple which
// are nil or zero are left out. Example: a small body without headers has (enqueued) only. Behind the head stands the
// body, up to maxInline bytes of the value in all; the remainder is in the parts.
type envelope struct {
	enqueuedMS int64
	headers    map[string]string
	size       int64 // of the whole body; 0 if the body is all inline
	parts      int64
	dedupID    string // the dedup id of the message; "" = none
	dueMS      int64  // the earliest delivery time; 0 = the message was not delayed, or see retro
}

// due returns the earliest delivery time (ms); 0 = the message is not delayed.
func (r retro) due(e *envelope) int64 {
	if e.dueMS > 0 || !r.on || r.delayMS == 0 {
		return e.dueMS
	}
	return e.enqueuedMS + r.delayMS
}

// deliverAt returns the earliest delivery as callers are told it; the zero time if the message is not delayed. A time
// before the enqueue's is by another clock: that of the process that rescheduled the message.
func (r retro) deliverAt(e *envelope) time.Time {
	due := r.due(e)
	if due == 0 || r.on && due == r.own(e.enqueuedMS) {
		return time.Time{}
	}
	return fromMillis(due)
}

// timing returns the time in the key of the timer that leads to a head until it is due.
func (r retro) timing(e *envelope) int64 {
	if e.dueMS > 0 || !r.on {
		return e.dueMS
	}
	return sinceBase + e.enqueuedMS
}

func (e envelope) append(dst []byte) []byte {
	more := e.dedupID != "" || e.dueMS > 0
	if len(e.headers) == 0 && e.parts == 0 && !more {
		// The head is a single integer, so its length fits a byte, filled in afterwards.
		begin := len(dst)
		dst = tuple.AppendInt(append(dst, headVersion, 0), e.enqueuedMS)
		dst[begin+1] = byte(len(dst) - begin - 2)
		return dst
	}
	packed := tuple.AppendInt(nil, e.enqueuedMS)
	packed = tuple.Append(packed, nestedHeaders(e.headers))
	if e.parts > 0 || more {
		packed = tuple.AppendInt(tuple.AppendInt(packed, e.size), e.parts)
	}
	if more {
		packed = tuple.AppendString(packed, e.dedupID)
	}
	if e.dueMS > 0 {
		packed = tuple.AppendInt(packed, e.dueMS)
	}
	dst = append(dst, headVersion)
	dst = binary.AppendUvarint(dst, uint64(len(packed)))
	return append(dst, packed...)
}

func nestedHeaders(headers map[string]string) any {
	if len(headers) == 0 {
		return nil
	}
	names := make([]string, 0, len(headers))
	for name := range headers {
		names = append(names, name)
	}
	sort.Strings(names)
	t := make(tuple.Tuple, 0, 2*len(names))
	for _, name := range names {
		t = append(t, name, headers[name])
	}
	return t
}

// split lays out a message as the value of its item and the values of its parts. e gives the times and the dedup id.
// The value is appended to dst, which is empty.
func split(dst []byte, m *Message, e envelope) (value []byte, parts [][]byte) {
	e.headers, e.size, e.parts = m.Headers, 0, 0
	head := e.append(slices.Grow(dst, 16+min(len(m.Body), maxInline)))
	if len(head)+len(m.Body) <= maxInline {
		return append(head, m.Body...), nil
	}
	// The first part's worth stays with the item. The counts are known before the envelope is written: leave room for
	// the envelope's longest form.
	const spare = 32 // bytes: two integers of at most 9 bytes, and the growth of the length
	inline := maxInline - len(head) - spare
	for rest := m.Body[inline:]; len(rest) > 0; {
		n := min(len(rest), maxInline)
		parts = append(parts, rest[:n])
		rest = rest[n:]
	}
	e.size, e.parts = int64(len(m.Body)), int64(len(parts))
	return append(e.append(slices.Grow(dst, maxInline)), m.Body[:inline]...), parts
}

// openEnvelope splits an item's value; body is the inline part and aliases value.
func openEnvelope(value []byte) (e envelope, body []byte, err error) {
	d, body := openHead("envelope", value)
	e.enqueuedMS = d.int()
	if d.more() {
		d.headers(&e)
		d.check(d.more() || e.headers != nil, "envelope with headers that are none")
	}
	if d.more() {
		e.size, e.parts = d.int(), d.int()
		whole := e.parts == 0 && e.size == 0 && d.more() // without parts, but with later elements
		inParts := 0 < e.parts && e.parts <= MaxBodySize/maxInline+1
		fits := int64(len(body)) <= e.size && e.size <= MaxBodySize
		d.check(whole || inParts && fits, "envelope with size %d in %d parts", e.size, e.parts)
	}
	if d.more() {
		e.dedupID = d.str()
		d.check(d.more() || e.dedupID != "", "envelope with a dedup id that is none")
	}
	if d.more() {
		e.dueMS = d.int()
		d.check(e.dueMS > 0, "envelope with due time %d", e.dueMS)
	}
	if err := d.left(); err != nil {
		return e, nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return e, body, nil
}

// headers reads the headers of an envelope.
func (d *decoder) headers(e *envelope) {
	if d.null() {
		return
	}
	e.headers = make(map[string]string)
	last := ""
	d.list(func() {
		name, value := d.str(), d.str()
		d.check(len(e.headers) == 0 || name > last, "header %q behind %q", name, last)
		e.headers[name], last = value, name
	})
	d.check(len(e.headers) > 0, "no headers in a list of them")
}

// cutCounted splits b behind the bytes counted by the uvarint at the beginning of b.
func cutCounted(b []byte) (counted, rest []byte, ok bool) {
	n, w := binary.Uvarint(b)
	if w <= 0 || w > 1 && b[w-1] == 0 || n > uint64(len(b)-w) { // a zero at the end: there is a shorter form
		return nil, nil, false
	}
	return b[w : w+int(n)], b[w+int(n):], true
}

// The archive of a queue keeps finished items, acked or taken, for as long as the configuration says. An item goes
// there in the transaction which finishes the item, under its own id, so that a group's items lie together and in
// order; the item's parts stay where they are. Beside the items, each ack or take leaves an entry which names its
// items. The entries are in the order of completion: within a group exactly, across groups by the read versions of the
// acks and takes. Listings by time and the sweep go by the entries.
//
// An ack does not read items, unless the queue has an archive: then the ack reads the finished items, beside its lock,
// and writes each item again, and the entry.

// completion is the position of the items of an ack or take in the order of completion.
type completion struct {
	place  int64 // the read version of the ack or take, as indexes count
	index  int64 // of the first item
	random uuid.UUID
}

// archived is the value of an archived item. The tuple of the head is
//
//	(completed (ms), place, and index and random of the first item of its entry)
type archived struct {
	completedMS int64
	at          completion
	item        []byte // the item's value
}

func (a *archived) pack() []byte {
	return packHead(tuple.Tuple{a.completedMS, a.at.place, a.at.index, a.at.random}, a.item)
}

// unpackArchived splits the value of an archived item; item aliases value.
func unpackArchived(key, value []byte) (*archived, error) {
	head, item := openHead("archived item", value)
	a := &archived{
		completedMS: head.int(), at: completion{place: head.int(), index: head.int(), random: head.uuid()}, item: item,
	}
	return a, head.end(key)
}

// archiveEntry is the value of an entry: the items finished by an ack or a take.
type archiveEntry struct {
	completedMS int64
	group       string
	items       []delivered
}

func (e *archiveEntry) pack() []byte {
	t := make(tuple.Tuple, 2, 2+3*len(e.items))
	t[0], t[1] = e.completedMS, e.group
	for _, d := range e.items {
		t = append(t, d.index, d.random, d.parts)
	}
	return t.Pack()
}

func unpackArchiveEntry(key, value []byte) (*archiveEntry, error) {
	d := decoder{rest: value}
	e := &archiveEntry{completedMS: d.int(), group: d.str()}
	for d.more() {
		e.items = append(e.items, delivered{index: d.int(), random: d.uuid(), parts: d.int()})
	}
	d.check(len(e.items) > 0, "no items")
	return e, d.end(key)
}
