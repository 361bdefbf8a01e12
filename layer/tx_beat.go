package layer

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
)

// A handle whose receives ask for it (ReceiveOptions.Heartbeat) has a beat: a time in the database up to which all its
// claims by heartbeat last, and which the handle moves on while it lives. So such a claim is never extended: of 10,000
// groups in hand, a beat is the only write. The price is a key for each claim in a list of the handle's, in the place
// of the claim's timer.
//
// Whoever looks for due timers and finds a beat ends the handle (txn.endBeat), a page of its claims at a time: each
// claim gets the time at which the beat was due as a lease of its own, which has run out. From then on the claim is as
// any claim whose lease has run out: its holder has the claim until somebody takes the group over. So no group changes
// hands but by its own record, under the guards of every takeover, and an ack needs to look at the record alone.
//
// The handle learns that it was ended when it moves its beat. It then takes another number, and its workers extend, one
// by one, what they have in hand.

// heart is the handle's own side of its beat.
type heart struct {
	turn chan struct{} // has a token while a beat is being begun
	life context.Context
	stop context.CancelFunc
	wg   sync.WaitGroup

	mu  sync.Mutex
	now *pulse // guarded by mu; nil = the handle has no beat
}

// pulse is one beat of the handle, from its begin to its end.
type pulse struct {
	handle uuid.UUID
	dueMS  atomic.Int64  // as last committed, as far as the handle knows
	ended  chan struct{} // closed when the handle no longer moves the beat
}

func newHeart() *heart {
	h := &heart{turn: make(chan struct{}, 1)}
	h.life, h.stop = context.WithCancel(context.Background())
	return h
}

// pulse returns the handle's beat, or nil.
func (h *heart) pulse() *pulse {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now
}

// of returns the pulse with a number; nil if the handle no longer moves that beat, or never did.
func (h *heart) of(handle uuid.UUID) *pulse {
	if p := h.pulse(); p != nil && p.handle == handle && handle != uuid.Nil {
		return p
	}
	return nil
}

// begin makes p the handle's beat.
func (h *heart) begin(p *pulse) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now = p
}

// end makes the handle leave a beat, and begin with another at its next claim by heartbeat. The beat is due soon then,
// if another has not ended it already.
func (h *heart) end(p *pulse) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p != nil && h.now == p {
		h.now = nil
		close(p.ended)
	}
}

// dueBeat is a beat that a look has found due.
type dueBeat struct {
	handle uuid.UUID
	key    []byte   // of the timer that led here; nil = a claim did
	held   [][]byte // the keys by which the handle knows of the claims that led here
}

// readBeat returns the beat of a handle; there is none if found is false.
func (q *Queue) readBeat(ctx context.Context, tx kv.ReadTx, handle uuid.UUID) (b beat, found bool, err error) {
	key := q.keys.beat(handle)
	v, err := tx.Get(key).Wait(ctx)
	if err != nil {
		return b, false, fmt.Errorf("read beat: %w", err)
	}
	if v == nil {
		return b, false, nil
	}
	b, err = unpackBeat(key, v)
	return b, err == nil, err
}

// beatsSeen are the ends of beats, as a look for people has read them; 0 = the handle is being ended, or is gone.
type beatsSeen map[uuid.UUID]int64

// lasting returns r with the present end of a claim by heartbeat, for whoever shows the record to people. A claim whose
// handle's beat is due, or gone, is shown as one whose lease has run out, though nobody has met the beat yet.
func (q *Queue) lasting(ctx context.Context, tx kv.ReadTx, r *record, seen beatsSeen) (*record, error) {
	h := r.holding()
	if !h.byBeat() {
		return r, nil
	}
	if _, known := seen[h.beat]; !known {
		b, found, err := q.readBeat(ctx, tx, h.beat)
		if err != nil {
			return nil, err
		}
		if seen[h.beat] = b.dueMS; !found || b.ended {
			seen[h.beat] = 0
		}
	}
	shown := *h
	if due := seen[h.beat]; due > 0 {
		shown.endMS = due
	}
	if seen[h.beat] <= q.nowMS() {
		shown.beat, shown.endMS = uuid.Nil, min(shown.endMS, q.nowMS())
	}
	view := *r
	view.holdings = []holding{shown}
	return &view, nil
}

// leftOf is how long a claim lasts, for an error's text.
func (h *holding) leftOf(nowMS int64) string {
	if h.byBeat() {
		return "as long as its handle lives"
	}
	return (time.Duration(h.endMS-nowMS) * time.Millisecond).String()
}
