package layer

import (
	"encoding/json"
	"fmt"

	"github.com/google/uuid"

	"fdbfifo/kv/tuple"
)

func unpackInt(key, value []byte) (int64, error) {
	n, rest, err := tuple.DecodeInt(value)
	if err != nil {
		return 0, corrupt(key, err)
	}
	if len(rest) > 0 {
		return 0, corrupt(key, fmt.Errorf("%d bytes too many", len(rest)))
	}
	return n, nil
}

// request is the value of a request.
type request struct {
	owner      string
	wants      int64 // groups
	deadlineMS int64
}

func (r request) pack() []byte { return tuple.Tuple{r.owner, r.wants, r.deadlineMS}.Pack() }

func unpackRequest(key, value []byte) (request, error) {
	d := keyDecoder{rest: value}
	r := request{owner: d.str(), wants: d.int(), deadlineMS: d.int()}
	if err := d.end(); err != nil {
		return request{}, corrupt(key, err)
	}
	return r, nil
}

// pace is up to when a group's rate is used up: a time and, so that a rate that does not go up in whole microseconds is
// exact, a part of one more.
type pace struct {
	us   int64
	part int64 // part/of of a microsecond; part < of
	of   int64 // the count of the rate
}

func (p pace) pack() []byte { return tuple.Tuple{p.us, p.part, p.of}.Pack() }

func unpackPace(key, value []byte) (pace, error) {
	d := keyDecoder{rest: value}
	p := pace{us: d.int(), part: d.int(), of: d.int()}
	if d.err == nil && (len(d.rest) > 0 || p.part < 0 || p.part >= p.of) {
		d.err = fmt.Errorf("no time")
	}
	if d.err != nil {
		return pace{}, corrupt(key, d.err)
	}
	return p, nil
}

// remembered is the value of a dedup entry.
type remembered struct {
	id      ID    // of the message that was accepted
	untilMS int64 // 0 = while that is in the queue
	clock   int64 // when it was enqueued, as indexes count
}

func (r remembered) pack() []byte {
	return tuple.Tuple{r.id.Group, r.id.Index, r.id.Random, r.untilMS, r.clock}.Pack()
}

func unpackRemembered(key, value []byte) (remembered, error) {
	d := keyDecoder{rest: value}
	r := remembered{id: ID{Group: d.str(), Index: d.int(), Random: d.uuid()}, untilMS: d.int(), clock: d.int()}
	if d.err == nil && len(d.rest) > 0 {
		d.err = fmt.Errorf("%d bytes too many", len(d.rest))
	}
	if d.err != nil {
		return remembered{}, corrupt(key, d.err)
	}
	return r, nil
}

// unpackPurged takes the note of a purge apart: when it was, as indexes count and in ms.
func unpackPurged(key, value []byte) (clock, ms int64, err error) {
	d := keyDecoder{rest: value}
	clock, ms = d.int(), d.int()
	if d.err == nil && len(d.rest) > 0 {
		d.err = fmt.Errorf("%d bytes too many", len(d.rest))
	}
	if d.err != nil {
		return 0, 0, corrupt(key, d.err)
	}
	return clock, ms, nil
}

// unpackRepeat returns when a receive id was used, and the claims, each as group and token.
func unpackRepeat(key, value []byte) (ms int64, claims tuple.Tuple, err error) {
	t, err := tuple.Unpack(value)
	if err != nil {
		return 0, nil, corrupt(key, err)
	}
	ok := len(t) >= 3 && len(t)%2 == 1
	if ok {
		ms, ok = t[0].(int64)
	}
	for i := 1; ok && i < len(t); i += 2 {
		_, isGroup := t[i].(string)
		_, isToken := t[i+1].(int64)
		ok = isGroup && isToken
	}
	if !ok {
		return 0, nil, corrupt(key, fmt.Errorf("claims %v", t))
	}
	return ms, t[1:], nil
}

// unpackLastSweep reads the note of the last sweep: when it began, and its random.
func unpackLastSweep(key, value []byte) (begunMS int64, random uuid.UUID, err error) {
	d := keyDecoder{rest: value}
	begunMS, random = d.int(), d.uuid()
	if d.err == nil && len(d.rest) > 0 {
		d.err = fmt.Errorf("%d bytes too many", len(d.rest))
	}
	if d.err != nil {
		return 0, uuid.Nil, corrupt(key, d.err)
	}
	return begunMS, random, nil
}

// packConfig lays out the stored configuration.
func packConfig(c Config, version int64) ([]byte, error) {
	document, err := json.Marshal(c)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	return tuple.Tuple{version, string(document)}.Pack(), nil
}

func unpackConfig(key, value []byte) (Config, int64, error) {
	if value == nil {
		return Config{}, 0, ErrNoQueue
	}
	d := keyDecoder{rest: value}
	version, document := d.int(), d.str()
	if d.err == nil && len(d.rest) > 0 {
		d.err = fmt.Errorf("%d bytes too many", len(d.rest))
	}
	if d.err != nil {
		return Config{}, 0, corrupt(key, d.err)
	}
	c, err := readConfig(key, document)
	return c, version, err
}

// checkStoredState holds a state in the database to its form.
func checkStoredState(key, value []byte) error {
	if len(value) == 0 {
		return corrupt(key, fmt.Errorf("a state of no bytes"))
	}
	if err := checkState(value); err != nil {
		return corrupt(key, err)
	}
	return nil
}
