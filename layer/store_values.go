package layer

import (
	"encoding/binary"
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

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

// appendClaims appends claims as records and receipts keep them: group, token, group, token …
func appendClaims(b []byte, claims []claimRef) []byte {
	for _, c := range claims {
		b = tuple.AppendInt(tuple.AppendString(b, c.lane), c.token)
	}
	return b
}

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

// packReceipt is the value of a receipt: when written, and the packed result of the operation, see tx_receipt.go.
func packReceipt(writtenMS int64, result []byte) []byte {
	return append(tuple.AppendInt(make([]byte, 0, 9+len(result)), writtenMS), result...)
}

func unpackReceipt(key, value []byte) (writtenMS int64, result tuple.Tuple, err error) {
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

// unpackConfig reads a stored configuration. No value means: no queue. No setting is known if the error is one of the
// document; the incarnation is, all the same.
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

// checkMarkKey checks the value beside the key of a mark.
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
