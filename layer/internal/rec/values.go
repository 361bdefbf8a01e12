package rec

import (
	"encoding/binary"
	"fmt"

	"github.com/google/uuid"

	"fdbfifo/kv/tuple"
)

// PackInt returns a value that is one integer: the token of a grant, the failed deliveries of a hint's head, the format
// and the offset of a queue, and the time (ms) at which a drop began.
func PackInt(n int64) []byte { return tuple.AppendInt(nil, n) }

// UnpackInt reads a value that is one integer.
func UnpackInt(key, value []byte) (int64, error) {
	d := Decode(value)
	n := d.Int()
	return n, d.End(key)
}

// PackCount returns the value of a counter, of a wake key, or of the field changed of meta, and the operand of an
// atomic add to one of these: 8 bytes, the lowest first.
func PackCount(n int64) []byte { return binary.LittleEndian.AppendUint64(nil, uint64(n)) }

// UnpackCount reads the value of a counter or of a wake key.
func UnpackCount(key, value []byte) (int64, error) {
	if len(value) != 8 {
		return 0, Corrupt(key, fmt.Errorf("counter of %d bytes", len(value)))
	}
	return int64(binary.LittleEndian.Uint64(value)), nil
}

// PackKey returns a value that is a key: the last row that a sweep has passed, or the last row of changes that was
// cleared before every subscription had seen the row.
func PackKey(k []byte) []byte { return tuple.AppendBytes(nil, k) }

// UnpackKey reads a value that is a key.
func UnpackKey(key, value []byte) (k []byte, err error) {
	d := Decode(value)
	k = d.Bytes()
	return k, d.End(key)
}

// CheckEmpty checks a value that must have no bytes. Example: the value under the key of a mark.
func CheckEmpty(key, value []byte) error {
	if len(value) > 0 {
		return Corrupt(key, fmt.Errorf("%d bytes, should be none", len(value)))
	}
	return nil
}

// Config is the value of a queue's configuration.
type Config struct {
	Version     int64     // grows with each change
	Document    string    // the settings, in JSON
	Incarnation uuid.UUID // tells the queue from others that had the same name
	// WriteShards is the number of shards in which handles write, if the number of shards was ever raised; else 0.
	WriteShards int64
	// EarlierShards are the numbers before, in ascending order. nil = the number of shards was never raised.
	EarlierShards []int64
}

// MaxShards is the most shards that a queue may have.
const MaxShards = 64

// Pack returns the value: the tuple (version, document, incarnation), and after a raise WriteShards and EarlierShards.
func (c Config) Pack() []byte {
	value := tuple.Append(nil, c.Version, c.Document, c.Incarnation)
	if c.EarlierShards == nil {
		return value
	}
	for _, n := range append([]int64{c.WriteShards}, c.EarlierShards...) {
		value = tuple.AppendInt(value, n)
	}
	return value
}

// UnpackConfig reads the value of a configuration. It does not read the document.
func UnpackConfig(key, value []byte) (Config, error) {
	d := Decode(value)
	c := Config{Version: d.Int(), Document: d.Text(), Incarnation: d.UUID()}
	if d.More() {
		d.shards(&c)
	}
	return c, d.End(key)
}

// shards reads into c the elements that a raise of the shards has added: WriteShards, and EarlierShards, which must be
// in ascending order.
func (d *Decoder) shards(c *Config) {
	c.WriteShards = d.Int()
	for last := int64(0); d.More(); {
		n := d.Int()
		d.Check(last < n && n <= MaxShards, "shards %d after %d", n, last)
		last, c.EarlierShards = n, append(c.EarlierShards, n)
	}
	d.Check(c.EarlierShards != nil && 0 < c.WriteShards && c.WriteShards <= MaxShards, "%d shards", c.WriteShards)
}

// Request is the value of a request: a handle that waits for groups.
type Request struct {
	Owner      string // of the handle
	Wants      int64  // how many groups more
	DeadlineMS int64  // the request is dead after this time, unless the handle renews it
}

// Pack returns the value: the tuple (owner, wants, deadline (ms)).
func (r Request) Pack() []byte { return tuple.Tuple{r.Owner, r.Wants, r.DeadlineMS}.Pack() }

// UnpackRequest reads the value of a request.
func UnpackRequest(key, value []byte) (Request, error) {
	d := Decode(value)
	r := Request{Owner: d.Text(), Wants: d.Int(), DeadlineMS: d.Int()}
	return r, d.End(key)
}

// Pace is the time up to which a rate is used up, of a group or of the whole queue. The time is US + Part/Of, in
// microseconds since 1970. The fraction makes all rates exact. Example: at 3/s an item takes 333,333 1/3 µs.
type Pace struct {
	US   int64
	Part int64 // less than Of
	Of   int64 // the count of the rate
}

// Pack returns the value: the tuple (US, Part, Of).
func (p Pace) Pack() []byte { return tuple.Tuple{p.US, p.Part, p.Of}.Pack() }

// UnpackPace reads the value of a pace.
func UnpackPace(key, value []byte) (Pace, error) {
	d := Decode(value)
	p := Pace{US: d.Int(), Part: d.Int(), Of: d.Int()}
	d.Check(p.Part >= 0 && p.Part < p.Of, "no time")
	return p, d.End(key)
}

// Beat is the value of a beat key: the time up to which the heartbeat of a handle keeps its claims alive. The handle
// moves the time forward, never back.
type Beat struct {
	DueMS int64  // after this time the handle counts as dead
	Owner string // of the handle
	// Ended says that the beat was due, and that its claims are being ended. No claim may join the beat.
	Ended bool
}

// Pack returns the value: the tuple (due (ms), owner), and 1 if Ended is set.
func (b Beat) Pack() []byte {
	t := tuple.Tuple{b.DueMS, b.Owner}
	if b.Ended {
		t = append(t, int64(1))
	}
	return t.Pack()
}

// UnpackBeat reads the value of a beat.
func UnpackBeat(key, value []byte) (b Beat, err error) {
	d := Decode(value)
	b = Beat{DueMS: d.Int(), Owner: d.Text()}
	if d.More() {
		b.Ended = true
		n := d.Int()
		d.Check(n == 1, "%d for an end", n)
	}
	return b, d.End(key)
}

// DedupEntry is the value of a dedup entry: the message that was accepted under the dedup id.
type DedupEntry struct {
	Group   string
	Index   int64
	Random  uuid.UUID
	UntilMS int64 // when the id may be used again; 0 = once the message is no longer in the queue
	Clock   int64 // the version at which the message was enqueued
}

// Pack returns the value: the tuple (group, index, random, until (ms), clock).
func (r DedupEntry) Pack() []byte {
	return tuple.Tuple{r.Group, r.Index, r.Random, r.UntilMS, r.Clock}.Pack()
}

// UnpackDedupEntry reads the value of a dedup entry.
func UnpackDedupEntry(key, value []byte) (DedupEntry, error) {
	d := Decode(value)
	r := DedupEntry{Group: d.Text(), Index: d.Int(), Random: d.UUID(), UntilMS: d.Int(), Clock: d.Int()}
	return r, d.End(key)
}

// Instant is the value of a row that says when something was, by both clocks. Two rows have it: the note of a purge, of
// a group (the key purged) or of the whole queue (in meta), has the last step of the purge. The field eased of meta has
// the last change that made the delay of the queue shorter.
type Instant struct {
	Clock int64 // by the database's version
	AtMS  int64 // by the clock of the handle
}

// Pack returns the value: the tuple (clock, at (ms)).
func (n Instant) Pack() []byte { return tuple.Tuple{n.Clock, n.AtMS}.Pack() }

// UnpackInstant reads the note of a purge, or the time of a change of the delay.
func UnpackInstant(key, value []byte) (Instant, error) {
	d := Decode(value)
	n := Instant{Clock: d.Int(), AtMS: d.Int()}
	return n, d.End(key)
}

// SweepNote is the value of the note of the last sweep, in meta.
type SweepNote struct {
	BegunMS int64     // when the sweep began
	Random  uuid.UUID // of the sweep
}

// Pack returns the value: the tuple (begun (ms), random).
func (n SweepNote) Pack() []byte { return tuple.Tuple{n.BegunMS, n.Random}.Pack() }

// UnpackSweepNote reads the note of the last sweep.
func UnpackSweepNote(key, value []byte) (SweepNote, error) {
	d := Decode(value)
	n := SweepNote{BegunMS: d.Int(), Random: d.UUID()}
	return n, d.End(key)
}

// Repeat is the value of a repeat key, which stands for a receive id: when the id was used, and the claims that the
// receive was given.
type Repeat struct {
	AtMS   int64
	Claims []ClaimRef // at least one
}

// ClaimRef names a claim by its lane and its token.
type ClaimRef struct {
	Lane  string // the name of the lane
	Token int64
}

// ClaimRefSize bounds the bytes that the claim of a lane, or of an item of the lane, takes in the value of a Repeat.
func ClaimRefSize(lane string) int { return 3*len(lane) + 2*(9+17) + 16 } // a NUL takes up to three bytes

// Pack returns the value: the tuple (at (ms)), and lane and token of each claim.
func (r Repeat) Pack() []byte {
	b := tuple.AppendInt(nil, r.AtMS)
	for _, c := range r.Claims {
		b = tuple.AppendInt(tuple.AppendString(b, c.Lane), c.Token)
	}
	return b
}

// UnpackRepeat reads the value of a receive id.
func UnpackRepeat(key, value []byte) (Repeat, error) {
	d := Decode(value)
	r := Repeat{AtMS: d.Int()}
	for d.More() {
		r.Claims = append(r.Claims, ClaimRef{Lane: d.Text(), Token: d.Int()})
	}
	d.Check(len(r.Claims) > 0, "no claims")
	return r, d.End(key)
}

// Receipt is the value of a receipt: the proof that a transaction was committed. Rest has the attempt of the
// transaction, and the version at which the receipt was written. An earlier release of this library wrote the attempt
// alone, or the result of the transaction.
type Receipt struct {
	WrittenMS int64       // when the receipt was written, by the clock of its handle
	Rest      tuple.Tuple // the elements behind the time: see Attempt and Clock
}

// Attempt returns the number of the attempt that was committed; false = the receipt does not have it.
func (r Receipt) Attempt() (attempt int64, ok bool) {
	if len(r.Rest) == 0 {
		return 0, false
	}
	attempt, ok = r.Rest[0].(int64)
	return attempt, ok
}

// Clock returns the version at which the receipt was written; false = the receipt does not have it.
func (r Receipt) Clock() (clock int64, ok bool) {
	if len(r.Rest) != 2 {
		return 0, false
	}
	clock, ok = r.Rest[1].(int64)
	return clock, ok
}

// PackReceipt returns the value of a receipt: the tuple (written (ms), attempt, clock).
func PackReceipt(writtenMS, attempt, clock int64) []byte {
	b := tuple.AppendInt(tuple.AppendInt(make([]byte, 0, 3*9), writtenMS), attempt)
	return tuple.AppendInt(b, clock)
}

// UnpackReceipt reads the value of a receipt.
func UnpackReceipt(key, value []byte) (Receipt, error) {
	t, err := tuple.Unpack(value)
	if err != nil {
		return Receipt{}, Corrupt(key, err)
	}
	if len(t) > 0 {
		if ms, ok := t[0].(int64); ok {
			return Receipt{WrittenMS: ms, Rest: t[1:]}, nil
		}
	}
	return Receipt{}, Corrupt(key, fmt.Errorf("receipt %v without a time", t))
}
