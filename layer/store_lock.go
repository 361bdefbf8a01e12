package layer

import (
	"fmt"
	"math"

	"github.com/google/uuid"

	"fdbfifo/kv/tuple"
)

// The kinds of a lock.
const (
	kindClaim = "claim" // held by a claim's owner
	kindDelay = "delay" // held by nobody until its end: a retry delay
	kindGrant = "grant" // kept for a waiting request until its end: its owner is the request's random
	kindPause = "pause" // held by nobody, without end: see group_mark.go
	kindPark  = "park"  // likewise
	kindHead  = "head"  // of a timer only: the head of a group that nobody holds is due then
)

// lock is the value of a group's lock.
type lock struct {
	token       int64
	owner       string
	endMS       int64
	outstanding []delivered // of a claim, in key order: what was delivered and is not acked yet
	kind        string
	mark        *mark // of a claim: what follows it; of a pause or park: itself; else nil
}

// delivered is one item under a claim. parts says how many parts its body has, so that an ack can clear them
// without reading the item.
type delivered struct {
	index  int64
	random uuid.UUID
	parts  int64
}

func (d delivered) id(group string) ID { return ID{Group: group, Index: d.index, Random: d.random} }

func (l *lock) pack() []byte {
	out := make(tuple.Tuple, 0, 3*len(l.outstanding))
	for _, d := range l.outstanding {
		out = append(out, d.index, d.random, d.parts)
	}
	t := tuple.Tuple{l.token, l.owner, l.endMS, out, l.kind}
	if l.mark != nil {
		t = append(t, l.mark.note())
	}
	return t.Pack()
}

func unpackLock(key, value []byte) (*lock, error) {
	t, err := tuple.Unpack(value)
	if err != nil {
		return nil, corrupt(key, err)
	}
	l := &lock{}
	ok := len(t) == 5 || len(t) == 6
	var out tuple.Tuple
	if ok {
		var oks [5]bool
		l.token, oks[0] = t[0].(int64)
		l.owner, oks[1] = t[1].(string)
		l.endMS, oks[2] = t[2].(int64)
		out, oks[3] = t[3].(tuple.Tuple)
		l.kind, oks[4] = t[4].(string)
		noted := true
		if len(t) == 6 {
			l.mark, noted = unpackNote(t[5])
			noted = noted && l.mark != nil
		}
		ok = oks == [5]bool{true, true, true, true, true} && len(out)%3 == 0 && noted && l.sound()
	}
	if !ok {
		return nil, corrupt(key, fmt.Errorf("lock %v", t))
	}
	l.outstanding = make([]delivered, 0, len(out)/3)
	for i := 0; i < len(out); i += 3 {
		index, ok := out[i].(int64)
		random, ok2 := out[i+1].(uuid.UUID)
		parts, ok3 := out[i+2].(int64)
		if !ok || !ok2 || !ok3 {
			return nil, corrupt(key, fmt.Errorf("lock %v", t))
		}
		l.outstanding = append(l.outstanding, delivered{index: index, random: random, parts: parts})
	}
	return l, nil
}

// sound reports whether kind and mark fit.
func (l *lock) sound() bool {
	switch l.kind {
	case kindClaim:
		return true
	case kindDelay, kindGrant:
		return l.mark == nil
	}
	return l.isMark() && l.mark != nil && l.mark.kind == l.kind && l.endMS == noEnd
}

// grantedTo returns the random of the request that a group is kept for.
func (l *lock) grantedTo() (uuid.UUID, bool) {
	if l == nil || l.kind != kindGrant {
		return uuid.Nil, false
	}
	random, err := uuid.Parse(l.owner)
	return random, err == nil
}

// mark is the note in a lock.
type mark struct {
	kind    string // kindPause or kindPark
	who     string
	reason  string
	sinceMS int64
}

// noEnd is the end of a lock that has none.
const noEnd = math.MaxInt64

// lock is the lock that a marked group has when nobody holds it. token is that of the lock it takes the place of.
func (m mark) lock(token int64) *lock {
	return &lock{token: token, owner: m.who, endMS: noEnd, kind: m.kind, mark: &m}
}

// isMark reports whether l keeps its group from everybody.
func (l *lock) isMark() bool { return l.kind == kindPause || l.kind == kindPark }

func (m *mark) note() any {
	if m == nil {
		return nil
	}
	return tuple.Tuple{m.kind, m.who, m.reason, m.sinceMS}
}

func unpackNote(v any) (*mark, bool) {
	if v == nil {
		return nil, true
	}
	t, ok := v.(tuple.Tuple)
	if !ok || len(t) != 4 {
		return nil, false
	}
	m := &mark{}
	var oks [4]bool
	m.kind, oks[0] = t[0].(string)
	m.who, oks[1] = t[1].(string)
	m.reason, oks[2] = t[2].(string)
	m.sinceMS, oks[3] = t[3].(int64)
	return m, oks == [4]bool{true, true, true, true} && (m.kind == kindPause || m.kind == kindPark)
}

// packPause is the value of the field that says that the queue is paused.
func (m mark) packPause() []byte { return tuple.Tuple{m.sinceMS, m.who, m.reason}.Pack() }

// unpackPause returns nil if there is no value.
func unpackPause(key, value []byte) (*mark, error) {
	if value == nil {
		return nil, nil
	}
	d := decoder{rest: value}
	m := &mark{kind: kindPause, sinceMS: d.int(), who: d.str(), reason: d.str()}
	return m, d.end(key)
}

func packTimer(kind string, headIndex int64) []byte {
	return tuple.AppendInt(tuple.AppendString(nil, kind), headIndex)
}

func unpackTimer(key, value []byte) (kind string, headIndex int64, err error) {
	d := decoder{rest: value}
	kind, headIndex = d.str(), d.int()
	if err := d.end(key); err != nil {
		return "", 0, err
	}
	return kind, headIndex, nil
}
