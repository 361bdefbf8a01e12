package rec

import (
	"encoding/binary"
	"fmt"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"github.com/google/uuid"

	"fdbfifo/kv/tuple"
)

// The values of an item, of a dead letter and of an archived item have one form:
//
//	byte 0     headVersion
//	uvarint    the length of the head, in bytes
//	head       a tuple, see Envelope, DeadLetter and Archived
//	rest       of an item the body or its first bytes, of the others the value of the item
const headVersion = 1

const (
	// MaxInline bounds the value of an item, in bytes. The rest of a larger body goes into parts of at most this size.
	// FoundationDB's limit for a value is 100,000 bytes.
	MaxInline = 90_000
	// MaxBody is layer.MaxBodySize, in bytes.
	MaxBody = 4 << 20
	// MaxErrorText bounds a stored text of an error or a reason, in bytes.
	MaxErrorText = 1000
)

// Cut replaces bytes of a text that are not UTF-8, and shortens it to MaxErrorText bytes. It cuts no letter.
func Cut(text string) string {
	if text = strings.ToValidUTF8(text, "\uFFFD"); len(text) <= MaxErrorText {
		return text
	}
	end := MaxErrorText
	for !utf8.RuneStart(text[end]) {
		end--
	}
	return text[:end]
}

// packHead returns the value with a head and a rest.
func packHead(head tuple.Tuple, rest []byte) []byte {
	packed := head.Pack()
	value := append(make([]byte, 0, 4+len(packed)+len(rest)), headVersion)
	value = binary.AppendUvarint(value, uint64(len(packed)))
	return append(append(value, packed...), rest...)
}

// openHead splits a value into its head, to be decoded, and its rest. The rest aliases the value. If the value does not
// have the form, the End of the head returns an error. If the fault is not in the head itself, the error has the text
// what, for example "dead letter".
func openHead(what string, value []byte) (head Decoder, rest []byte) {
	if len(value) == 0 {
		return Decoder{err: fmt.Errorf("%s of no bytes", what)}, nil
	}
	if value[0] != headVersion {
		return Decoder{err: fmt.Errorf("%s of version %d", what, value[0])}, nil
	}
	packed, rest, ok := cutCounted(value[1:])
	if !ok {
		return Decoder{err: fmt.Errorf("%s cut short", what)}, nil
	}
	return Decode(packed), rest
}

// cutCounted splits b: counted has as many bytes as the uvarint at the beginning of b says, and rest has those behind.
// ok is false if b is too short, or if the uvarint is not in its shortest form.
func cutCounted(b []byte) (counted, rest []byte, ok bool) {
	n, w := binary.Uvarint(b)
	if w <= 0 || w > 1 && b[w-1] == 0 || n > uint64(len(b)-w) { // a zero at the end: there is a shorter form
		return nil, nil, false
	}
	return b[w : w+int(n)], b[w+int(n):], true
}

// Envelope is the head of an item's value: all of the message except the body. It is a tuple:
//
//	(enqueued (ms), headers, size, parts, dedup id, due (ms), 1 if the message joins its group when it is due)
//
// The headers are nil, or a nested tuple name, value, name, value …, sorted by name. Elements at the end of the tuple
// that are nil or zero are left out. Example: the envelope of a small message without headers is (enqueued).
type Envelope struct {
	EnqueuedMS int64
	Headers    map[string]string
	Size       int64  // of the whole body, in bytes; 0 = the whole body is in the value of the item
	Parts      int64  // how many parts have the rest of the body
	DedupID    string // "" = none
	// DueMS is the earliest time of delivery. 0 = the message has no delay of its own.
	DueMS int64
	// Joins: the message waits in a group of its own, and joins its group when it is due.
	Joins bool
}

// Append appends the value of an item without its body to dst: the version, and the envelope as its head.
func (e Envelope) Append(dst []byte) []byte {
	more := e.DedupID != "" || e.DueMS > 0 || e.Joins
	if len(e.Headers) == 0 && e.Parts == 0 && !more {
		// The head is a single integer, so its length fits a byte, filled in afterwards: nothing is allocated.
		begin := len(dst)
		dst = tuple.AppendInt(append(dst, headVersion, 0), e.EnqueuedMS)
		dst[begin+1] = byte(len(dst) - begin - 2)
		return dst
	}
	packed := tuple.AppendInt(nil, e.EnqueuedMS)
	packed = tuple.Append(packed, NestedHeaders(e.Headers))
	if e.Parts > 0 || more {
		packed = tuple.AppendInt(tuple.AppendInt(packed, e.Size), e.Parts)
	}
	if more {
		packed = tuple.AppendString(packed, e.DedupID)
	}
	if e.DueMS > 0 || e.Joins {
		packed = tuple.AppendInt(packed, e.DueMS)
	}
	if e.Joins {
		packed = tuple.AppendInt(packed, 1)
	}
	dst = append(dst, headVersion)
	dst = binary.AppendUvarint(dst, uint64(len(packed)))
	return append(dst, packed...)
}

// NestedHeaders returns the headers as an element of a tuple: a nested tuple name, value …, sorted by name; nil if
// there are none.
func NestedHeaders(headers map[string]string) any {
	if len(headers) == 0 {
		return nil
	}
	t := make(tuple.Tuple, 0, 2*len(headers))
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		t = append(t, name, headers[name])
	}
	return t
}

// LayOut lays out a message as the value of its item and the values of its parts. e has the times, the headers and the
// dedup id; LayOut sets Size and Parts. The value is appended to dst, which must be empty. The parts alias body.
func LayOut(dst []byte, e Envelope, body []byte) (value []byte, parts [][]byte) {
	e.Size, e.Parts = 0, 0
	head := e.Append(slices.Grow(dst, 16+min(len(body), MaxInline)))
	if len(head)+len(body) <= MaxInline {
		return append(head, body...), nil
	}
	// The first part's worth stays with the item. The counts are known before the envelope is written: leave room for
	// the envelope's longest form.
	const spare = 32 // bytes: two integers of at most 9 bytes, and the growth of the length
	inline := MaxInline - len(head) - spare
	for rest := body[inline:]; len(rest) > 0; {
		n := min(len(rest), MaxInline)
		parts = append(parts, rest[:n])
		rest = rest[n:]
	}
	e.Size, e.Parts = int64(len(body)), int64(len(parts))
	return append(e.Append(slices.Grow(dst, MaxInline)), body[:inline]...), parts
}

// OpenEnvelope splits the value of an item into its envelope and its body. The body lacks the bytes that are in the
// parts, and aliases the value. The error wraps ErrCorrupt and names no key.
func OpenEnvelope(value []byte) (e Envelope, body []byte, err error) {
	d, body := openHead("envelope", value)
	e.EnqueuedMS = d.Int()
	if d.More() {
		d.headers(&e)
		d.Check(d.More() || e.Headers != nil, "envelope with headers that are none")
	}
	if d.More() {
		e.Size, e.Parts = d.Int(), d.Int()
		whole := e.Parts == 0 && e.Size == 0 && d.More() // without parts, but with later elements
		inParts := 0 < e.Parts && e.Parts <= MaxBody/MaxInline+1
		fits := int64(len(body)) <= e.Size && e.Size <= MaxBody
		d.Check(whole || inParts && fits, "envelope with size %d in %d parts", e.Size, e.Parts)
	}
	if d.More() {
		e.DedupID = d.Text()
		d.Check(d.More() || e.DedupID != "", "envelope with a dedup id that is none")
	}
	if d.More() {
		e.DueMS = d.Int()
		d.Check(e.DueMS > 0 || e.DueMS == 0 && d.More(), "envelope with due time %d", e.DueMS)
	}
	if d.More() {
		n := d.Int()
		d.Check(n == 1, "envelope with the sign %d of a message that joins", n)
		e.Joins = true
	}
	if err := d.Left(); err != nil {
		return e, nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
	}
	return e, body, nil
}

// headers reads the headers of an envelope into e. They are nil, or a nested tuple with at least one header, sorted by
// name.
func (d *Decoder) headers(e *Envelope) {
	if d.null() {
		return
	}
	e.Headers = make(map[string]string)
	last := ""
	d.List(func() {
		name, value := d.Text(), d.Text()
		d.Check(len(e.Headers) == 0 || name > last, "header %q behind %q", name, last)
		e.Headers[name], last = value, name
	})
	d.Check(len(e.Headers) > 0, "no headers in a list of them")
}

// Attempt is the attempt record of an item: the value of its attempt key. It has the failed deliveries of the item.
// Most items have no record, because they have never failed. The value is the tuple
//
//	(count, first (ms), last (ms), last error, first delivered (ms))
//
// The last element is left out if it is 0.
type Attempt struct {
	Count       int    // how many deliveries have failed; 0 = none: the item is suspect, or was released with a delay
	FirstMS     int64  // of the first failure
	LastMS      int64  // of the last failure, or of a release with a delay since
	LastError   string // of the last failure with a text
	DeliveredMS int64  // when the delivery began that failed first; 0 = not known
}

// lapsePrefix begins the text of an attempt that failed because a lease expired. Earlier versions write the same text.
const lapsePrefix = "lease expired, held by "

// Failed returns the record a with one more failure, at nowMS, of a delivery that began at sinceMS. text is the error.
// An empty text leaves LastError as it is.
func (a Attempt) Failed(sinceMS, nowMS int64, text string) Attempt {
	if a.Count == 0 {
		a.FirstMS, a.DeliveredMS = nowMS, sinceMS
	}
	a.Count, a.LastMS = a.Count+1, nowMS
	if text != "" {
		a.LastError = Cut(text)
	}
	return a
}

// Suspect reports whether the item is suspect: it may have killed the process of its handler. LastError then says that
// the lease of a claim of the item has expired (Holding.LapseText).
func (a Attempt) Suspect() bool { return strings.HasPrefix(a.LastError, lapsePrefix) }

// Suspected returns the record a of an item that is suspect from then on, without one more failure. text is
// Holding.LapseText.
func (a Attempt) Suspected(text string) Attempt {
	a.LastError = Cut(text)
	return a
}

// Pack returns the value.
func (a Attempt) Pack() []byte {
	return withTime(tuple.Tuple{int64(a.Count), a.FirstMS, a.LastMS, a.LastError}, a.DeliveredMS).Pack()
}

// UnpackAttempt reads the attempt record of an item.
func UnpackAttempt(key, value []byte) (Attempt, error) {
	d := Decode(value)
	a := Attempt{Count: int(d.Int()), FirstMS: d.Int(), LastMS: d.Int(), LastError: d.Text()}
	a.DeliveredMS = d.timeAtEnd()
	return a, d.End(key)
}

// DeadLetter is the value of a dead letter. Its head is the tuple
//
//	(reason, last error, attempts, first (ms), last (ms), dead-lettered (ms), first delivered (ms))
//
// The last element is left out if it is 0. The texts must be cut (Cut), so that the value stays below FoundationDB's
// limit. The parts of a large body belong to the dead letter. They stay under the id of the item, which is that of the
// dead letter too.
type DeadLetter struct {
	Reason      string // why the item is a dead letter
	LastError   string // as of Attempt, like the attempts and the times of the failures
	Attempts    int
	FirstMS     int64
	LastMS      int64
	DeadMS      int64  // when the item became a dead letter
	Item        []byte // the value of the item
	DeliveredMS int64  // when the delivery began that failed first; 0 = not known
}

// Pack returns the value.
func (d *DeadLetter) Pack() []byte {
	head := tuple.Tuple{d.Reason, d.LastError, int64(d.Attempts), d.FirstMS, d.LastMS, d.DeadMS}
	return packHead(withTime(head, d.DeliveredMS), d.Item)
}

// UnpackDeadLetter reads the value of a dead letter. Item aliases the value.
func UnpackDeadLetter(key, value []byte) (*DeadLetter, error) {
	head, item := openHead("dead letter", value)
	d := &DeadLetter{
		Reason: head.Text(), LastError: head.Text(), Attempts: int(head.Int()),
		FirstMS: head.Int(), LastMS: head.Int(), DeadMS: head.Int(), Item: item,
	}
	d.DeliveredMS = head.timeAtEnd()
	return d, head.End(key)
}

// Completion is the place of an ack or a take in the order of completion, which is the order of the archive. The order
// is exact inside a group. Across groups it is the order of the read versions.
type Completion struct {
	Place  int64 // the read version of the ack or the take, plus the queue's offset
	Index  int64 // of the first item
	Random uuid.UUID
}

// Archived is the value of an archive key: an item that was acked or taken, and is kept for a time. Its head is the
// tuple
//
//	(completed (ms), place, index, random)
//
// of which the last three are the position of the item's ArchiveEntry. The parts of a large body stay under the id of
// the item.
type Archived struct {
	CompletedMS int64      // when the item was acked or taken
	At          Completion // the key of its ArchiveEntry
	Item        []byte     // the value of the item
}

// Pack returns the value.
func (a *Archived) Pack() []byte {
	return packHead(tuple.Tuple{a.CompletedMS, a.At.Place, a.At.Index, a.At.Random}, a.Item)
}

// UnpackArchived reads the value of an archive key. Item aliases the value.
func UnpackArchived(key, value []byte) (*Archived, error) {
	head, item := openHead("archived item", value)
	a := &Archived{
		CompletedMS: head.Int(), At: Completion{Place: head.Int(), Index: head.Int(), Random: head.UUID()}, Item: item,
	}
	return a, head.End(key)
}

// ArchiveEntry is the value of an archived key: the items that one ack or take has finished. Its key has the place in
// the order of completion (Completion). It is the tuple (completed (ms), group), and index, random and number of parts
// of each item.
type ArchiveEntry struct {
	CompletedMS int64
	Group       string
	Items       []Item // at least one; without their facets
}

// Pack returns the value.
func (e *ArchiveEntry) Pack() []byte {
	t := make(tuple.Tuple, 2, 2+3*len(e.Items))
	t[0], t[1] = e.CompletedMS, e.Group
	for _, d := range e.Items {
		t = append(t, d.Index, d.Random, d.Parts)
	}
	return t.Pack()
}

// UnpackArchiveEntry reads the value of an archived key.
func UnpackArchiveEntry(key, value []byte) (*ArchiveEntry, error) {
	d := Decode(value)
	e := &ArchiveEntry{CompletedMS: d.Int(), Group: d.Text()}
	for d.More() {
		e.Items = append(e.Items, Item{Index: d.Int(), Random: d.UUID(), Parts: d.Int()})
	}
	d.Check(len(e.Items) > 0, "no items")
	return e, d.End(key)
}
