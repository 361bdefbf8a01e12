package layer

import (
	"encoding/binary"
	"fmt"
	"sort"

	"fdbfifo/kv/tuple"
)

// attempt is the record of an item's failed deliveries. It changes only under a read conflict on the group's
// lock, so it needs none of its own.
type attempt struct {
	count   int
	firstMS int64
	lastMS  int64
	lastErr string
}

// failed returns a with one failure more. A failure without a text leaves the last one that had one.
func (a attempt) failed(nowMS int64, text string) attempt {
	if a.count == 0 {
		a.firstMS = nowMS
	}
	a.count, a.lastMS = a.count+1, nowMS
	if text != "" {
		a.lastErr = cut(text)
	}
	return a
}

func (a attempt) pack() []byte {
	return tuple.Tuple{int64(a.count), a.firstMS, a.lastMS, a.lastErr}.Pack()
}

func unpackAttempt(key, value []byte) (attempt, error) {
	d := keyDecoder{rest: value}
	a := attempt{count: int(d.int()), firstMS: d.int(), lastMS: d.int(), lastErr: d.str()}
	if err := d.end(); err != nil {
		return attempt{}, corrupt(key, err)
	}
	return a, nil
}

// The value of a dead letter is what is known of its failure, and then the item's value as it was:
//
//	byte 0       version: 1
//	uvarint      length of the tuple that follows, in bytes
//	tuple        (reason, last error, attempts, first (ms), last (ms), parked (ms))
//	rest         the value of the item, see store_item.go
//
// The texts are cut so that this stays below FoundationDB's limit for a value. The parts of a large body stay under
// the item's own key, which the dead letter has too: they belong to it.
const deadVersion = 1

type dead struct {
	reason   string
	lastErr  string
	attempts int
	firstMS  int64 // of the failures
	lastMS   int64
	parkedMS int64
	item     []byte // the item's value
}

func (d *dead) pack() []byte {
	packed := tuple.Tuple{d.reason, d.lastErr, int64(d.attempts), d.firstMS, d.lastMS, d.parkedMS}.Pack()
	value := append(make([]byte, 0, 4+len(packed)+len(d.item)), deadVersion)
	value = binary.AppendUvarint(value, uint64(len(packed)))
	return append(append(value, packed...), d.item...)
}

// unpackDead takes the value of a dead letter apart; item aliases value.
func unpackDead(key, value []byte) (*dead, error) {
	if len(value) == 0 || value[0] != deadVersion {
		return nil, corrupt(key, fmt.Errorf("dead letter of unknown version"))
	}
	packed, item, ok := cutCounted(value[1:])
	if !ok {
		return nil, corrupt(key, fmt.Errorf("dead letter cut short"))
	}
	d := &dead{item: item}
	t := keyDecoder{rest: packed}
	d.reason, d.lastErr, d.attempts = t.str(), t.str(), int(t.int())
	d.firstMS, d.lastMS, d.parkedMS = t.int(), t.int(), t.int()
	if t.err == nil && len(t.rest) > 0 {
		t.err = fmt.Errorf("%d bytes too many", len(t.rest))
	}
	if t.err != nil {
		return nil, corrupt(key, t.err)
	}
	return d, nil
}

// The value of an item is its envelope and its body, or the body's first bytes:
//
//	byte 0       version of the envelope: 1
//	uvarint      length of the tuple that follows, in bytes
//	tuple        (enqueued (ms), headers, length of the whole body, number of parts, dedup id, not to be delivered before (ms))
//	rest         the body, up to maxInline bytes of the value in all; the remainder is in the parts
//
// headers is nil or a nested tuple name, value, name, value …, sorted by name. Elements that are nil or zero at
// the end of the tuple are left out: a small body without headers has (enqueued) only.
const envelopeVersion = 1

type envelope struct {
	enqueuedMS int64
	headers    map[string]string
	size       int64 // of the whole body; 0 if the body is all inline
	parts      int64
	dedupID    string // that the message went by; "" = none
	dueMS      int64  // it is not delivered before; 0 = it was not kept back
}

func (e envelope) append(dst []byte) []byte {
	more := e.dedupID != "" || e.dueMS > 0
	if len(e.headers) == 0 && e.parts == 0 && !more {
		// One integer, so the length is one byte, put in when it is known.
		begin := len(dst)
		dst = tuple.AppendInt(append(dst, envelopeVersion, 0), e.enqueuedMS)
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
	dst = append(dst, envelopeVersion)
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

// split lays out a message as the value of its item and the values of its parts. Of e it takes what is not in the body.
func split(m *Message, e envelope) (value []byte, parts [][]byte) {
	e.headers, e.size, e.parts = m.Headers, 0, 0
	head := e.append(make([]byte, 0, 16+len(m.Body)))
	if len(head)+len(m.Body) <= maxInline {
		return append(head, m.Body...), nil
	}
	// The first part's worth stays with the item. The counts are known before the envelope is written:
	// room is left for its longest form.
	const spare = 32 // bytes: two integers of at most 9 bytes, and what they add to the length
	inline := maxInline - len(head) - spare
	for rest := m.Body[inline:]; len(rest) > 0; {
		n := min(len(rest), maxInline)
		parts = append(parts, rest[:n])
		rest = rest[n:]
	}
	e.size, e.parts = int64(len(m.Body)), int64(len(parts))
	return append(e.append(make([]byte, 0, maxInline)), m.Body[:inline]...), parts
}

// openEnvelope takes an item's value apart; body is the inline part and aliases value.
func openEnvelope(value []byte) (e envelope, body []byte, err error) {
	if len(value) == 0 {
		return e, nil, fmt.Errorf("%w: empty envelope", ErrCorrupt)
	}
	if value[0] != envelopeVersion {
		return e, nil, fmt.Errorf("%w: envelope of version %d", ErrCorrupt, value[0])
	}
	packed, body, ok := cutCounted(value[1:])
	if !ok {
		return e, nil, fmt.Errorf("%w: envelope cut short", ErrCorrupt)
	}
	ms, rest, err := tuple.DecodeInt(packed)
	if err != nil {
		return e, nil, fmt.Errorf("%w: envelope: %w", ErrCorrupt, err)
	}
	e.enqueuedMS = ms
	if len(rest) == 0 {
		return e, body, nil
	}
	t, err := tuple.Unpack(rest)
	if err != nil {
		return e, nil, fmt.Errorf("%w: envelope: %w", ErrCorrupt, err)
	}
	if e.headers, err = readHeaders(t[0]); err != nil {
		return e, nil, err
	}
	if len(t) >= 3 {
		var ok, ok2 bool
		e.size, ok = t[1].(int64)
		e.parts, ok2 = t[2].(int64)
		whole := e.parts == 0 && e.size == 0 && len(t) > 3 // without parts, but with what follows
		if !ok || !ok2 || !whole && (e.parts <= 0 || e.parts > MaxBodySize/maxInline+1 || e.size < int64(len(body)) ||
			e.size > MaxBodySize) {
			return e, nil, fmt.Errorf("%w: envelope with size %v in %v parts", ErrCorrupt, t[1], t[2])
		}
	}
	if len(t) > 3 {
		var ok bool
		if e.dedupID, ok = t[3].(string); !ok {
			return e, nil, fmt.Errorf("%w: envelope with dedup id %v", ErrCorrupt, t[3])
		}
	}
	if len(t) > 4 {
		var ok bool
		if e.dueMS, ok = t[4].(int64); !ok || e.dueMS <= 0 {
			return e, nil, fmt.Errorf("%w: envelope with due time %v", ErrCorrupt, t[4])
		}
	}
	if len(t) == 2 || len(t) > 5 || len(t) == 1 && e.headers == nil || len(t) == 4 && e.dedupID == "" {
		return e, nil, fmt.Errorf("%w: envelope of %d elements, %v", ErrCorrupt, 1+len(t), t)
	}
	return e, body, nil
}

// cutCounted splits b behind the bytes that the uvarint at its beginning counts.
func cutCounted(b []byte) (counted, rest []byte, ok bool) {
	n, w := binary.Uvarint(b)
	if w <= 0 || w > 1 && b[w-1] == 0 || n > uint64(len(b)-w) { // a zero at its end: it has a shorter form
		return nil, nil, false
	}
	return b[w : w+int(n)], b[w+int(n):], true
}

func readHeaders(v any) (map[string]string, error) {
	if v == nil {
		return nil, nil
	}
	t, ok := v.(tuple.Tuple)
	if !ok || len(t) == 0 || len(t)%2 != 0 {
		return nil, fmt.Errorf("%w: headers %v", ErrCorrupt, v)
	}
	headers := make(map[string]string, len(t)/2)
	for i := 0; i < len(t); i += 2 {
		name, ok := t[i].(string)
		value, ok2 := t[i+1].(string)
		if !ok || !ok2 || i > 0 && name <= t[i-2].(string) {
			return nil, fmt.Errorf("%w: headers %v", ErrCorrupt, v)
		}
		headers[name] = value
	}
	return headers, nil
}
