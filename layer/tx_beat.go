package layer

import (
	"context"
	"sync"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/rec"
)

// beats is what a transaction has found out about beats: see below.
type beats struct {
	due       []dueBeat // the beats that the looks of the transaction have found due
	presentMS int64     // the result of txn.present (tx_read.go); 0 = not called yet
}

// A handle with claims by heartbeat (ReceiveOptions.Heartbeat) has a beat: a time in the database up to which all these
// claims last. The handle moves the beat on while the process lives. So a claim by heartbeat is never extended: for
// 10,000 groups in flight, the beat is the only write. The price is a key for each claim, in a list of the handle's
// claims; the key replaces the claim's timer.
//
// A search for due timers that finds a beat ends the handle (txn.endBeat), a page of claims at a time: each claim gets
// the beat's deadline as a lease of the claim's own, and the lease has run out. From then on the claim is like any
// claim whose lease has run out: the holder has the claim until a takeover of the group. So a group changes hands only
// by the group's record, under the guards of every takeover, and an ack looks at the record alone.
//
// The handle learns of the end when the handle moves the beat. The handle then begins a beat with another number, and
// the workers extend, one by one, the claims in flight.

// heart is the handle's own side of its beat.
type heart struct {
	turn chan struct{}      // has a token while a goroutine begins a beat, so that only one does; full after Close
	life context.Context    // of the handle: ends with Close
	stop context.CancelFunc // ends life
	wg   sync.WaitGroup     // the goroutines that move beats

	mu  sync.Mutex
	now *pulse // guarded by mu; nil = the handle has no beat
}

// newHeart returns the heart of a handle that has no beat yet.
func newHeart() *heart {
	h := &heart{turn: make(chan struct{}, 1)}
	h.life, h.stop = context.WithCancel(context.Background())
	return h
}

// pulse returns the handle's beat; nil = the handle has none.
func (h *heart) pulse() *pulse {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.now
}

// of returns the handle's beat if it has the number handle; nil = the handle no longer moves that beat, or never did.
func (h *heart) of(handle uuid.UUID) *pulse {
	if p := h.pulse(); p != nil && p.handle == handle && handle != uuid.Nil {
		return p
	}
	return nil
}

// newPulse returns a beat with the number handle, which the handle does not move yet. Close closes its channel ended.
func (h *heart) newPulse(handle uuid.UUID) *pulse {
	life, leave := context.WithCancel(h.life)
	return &pulse{handle: handle, ended: life.Done(), leave: leave}
}

// begin makes p the handle's beat.
func (h *heart) begin(p *pulse) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.now = p
}

// end makes the handle leave its beat p, and closes p.ended. The handle then begins another beat with the next claim by
// heartbeat. end writes nothing: the old beat is due soon, or was ended already. It does nothing if p is nil, or if the
// handle has left p before.
func (h *heart) end(p *pulse) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if p != nil && h.now == p {
		h.now = nil
		p.leave()
	}
}

// dueBeat is a beat that a look has found due, and how the look came to it.
type dueBeat struct {
	handle uuid.UUID // the number of the beat
	key    []byte    // of the beat's timer, if it led here; nil = a claim did
	held   [][]byte  // the held keys of the claims that led here
}

// readBeat reads the beat with the number handle. found is false if the beat is gone, or, with an error, if it cannot
// be read.
func (v *view) readBeat(handle uuid.UUID) (b rec.Beat, found bool, err error) {
	return v.waitBeat(handle, v.read.Get(v.keys.beat(handle)))
}

// waitBeat is readBeat for a read of the beat's key that has begun.
func (v *view) waitBeat(handle uuid.UUID, read kv.Future[[]byte]) (b rec.Beat, found bool, err error) {
	return waitRow(v.ctx, read, "beat", v.keys.beat(handle), rec.UnpackBeat)
}

// beatsSeen has, by the number of a beat, the time at which the beat is due (ms). It is for a call that shows claims to
// people, so that the call reads each beat once. 0 = the beat is being ended, is gone, or cannot be read.
type beatsSeen map[uuid.UUID]int64

// withPresentEnd returns the record r for a call that shows r to people; r may be nil. If r has a claim by heartbeat,
// the result is a copy in which the claim ends when its beat is due. If the beat is due already, is ended or gone, or
// cannot be read, the claim in the copy has an expired lease and no heartbeat, even if the lock is still unchanged. Any
// other r is returned as is. withPresentEnd reads the beats (beat) that are not in seen, adds them to seen, and writes
// nothing.
func (v *view) withPresentEnd(r *rec.Record, seen beatsSeen) (*rec.Record, error) {
	if err := v.seeBeats([]*rec.Record{r}, seen); err != nil {
		return nil, err
	}
	h := r.Holding()
	if h == nil {
		return r, nil
	}
	due, byBeat := seen[h.Beat]
	if !byBeat {
		return r, nil
	}
	shown := *h
	if due > 0 {
		shown.EndMS = due
	}
	if due <= v.nowMS {
		shown.Beat, shown.EndMS = uuid.Nil, min(shown.EndMS, v.nowMS)
	}
	return r.WithHolding(shown), nil
}

// seeBeats adds to seen the beats of the claims by heartbeat in records; a record may be nil. It reads the beats (beat)
// that are not in seen, all at the same time.
func (v *view) seeBeats(records []*rec.Record, seen beatsSeen) error {
	reads := make(map[uuid.UUID]kv.Future[[]byte])
	var handles []uuid.UUID
	for _, r := range records {
		if !r.Holding().ByBeat() {
			continue
		}
		handle := r.Holding().Beat
		if _, known := seen[handle]; !known && reads[handle] == nil {
			reads[handle] = v.read.Get(v.keys.beat(handle))
			handles = append(handles, handle)
		}
	}
	for _, handle := range handles {
		b, found, err := v.waitBeat(handle, reads[handle])
		if err != nil && !v.skipsRow(err) { // a transaction that meets a beat that cannot be read ends it
			return err
		}
		if seen[handle] = b.DueMS; !found || b.Ended {
			seen[handle] = 0
		}
	}
	return nil
}

// leftOf returns how long the claim h still lasts, in words, for the text of an error. If its lease has expired by the
// handle's clock alone (isEarly), the versions count.
func leftOf(h *rec.Holding, m moment) string {
	if h.ByBeat() {
		return "as long as its handle lives"
	}
	left := time.Duration(h.EndMS-m.nowMS) * time.Millisecond
	if left <= 0 {
		lease, age := m.leaseOf(h)
		left = (lease - age).Round(time.Millisecond)
	}
	return left.String()
}
