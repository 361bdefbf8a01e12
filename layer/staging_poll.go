package layer

import (
	"slices"
	"time"

	"fdbfifo/kv"
)

// A handle that looks without having been woken leaves a group alone which may be in the hands of another all the same:
// who acks and receives again (see staging_keep.go) leaves the group ready for as long as a receive takes, and a claim
// of the looking handle would fail, or make the other's fail. After a while the handle looks again. A hint that still
// stands was left behind, because the hint of the next item is another: then the handle claims. If there is another
// hint, somebody is at work there.

// cue is why waiting receives have a turn, and what the handle knows.
type cue struct {
	why why
	// seen are the hints which the handle has left alone, when it last looked.
	seen map[string]bool
	// fresh are the hints which the turn has left alone; nil = it has left nothing alone.
	fresh map[string]bool
	// again: the handle has looked a while ago.
	again bool
	// back: of a receive that stands back, the handle has just woken another.
	back bool
}

type why int

const (
	whyNew   why = iota // the receives have just come into the line, or the last turn wrote
	whyWoken            // by somebody, or by a time that has come
	whyPoll
)

// aWhileMost bounds how long a handle stands back, and how long it leaves a group alone before it looks again.
const aWhileMost = 100 * time.Millisecond

// aWhile is the time that a few transactions take, one after the other.
func (p *pipeline) aWhile() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return min(max(4*p.took, time.Millisecond), aWhileMost)
}

// leaveAlone reports whether the receives leave alone what the search has found, and notes in the cue what that is.
// That goes for turns that are polls; and of a handle that has lost a group to another just now, for the receive that
// is about to wait, and for the turn after that.
func (w *txn) leaveAlone(claimers []*claimer, waiting []*operation, conflicts int) (alone bool, err error) {
	if w.q.keys.plan != nil || len(waiting) == 0 || len(claimers) != 1 || w.owedLane != "" {
		return false, nil
	}
	c, first := claimers[0], waiting[0]
	at := &first.cue
	if first.turn != nil {
		at = &first.turn.cue
	}
	switch {
	case first.turn == nil:
		if *at = (cue{again: conflicts > 0}); conflicts == 0 {
			return false, nil
		}
	case at.why == whyWoken, at.why == whyNew && !first.cue.back && !w.q.spread.contended():
		return false, nil
	case at.why == whyNew:
		at.seen, at.again = first.cue.fresh, first.cue.again
	}
	other := func(o *operation) bool {
		r := o.receive
		return o.settle != nil || r.o.Group != nil || r.where != "" || r.o.Unordered || r.o.ReceiveID != ""
	}
	if slices.ContainsFunc(waiting, other) {
		return false, nil
	}
	if c.granted != nil {
		if rows, err := c.granted.Wait(c.ctx); err != nil || len(rows) > 0 {
			return false, err
		}
	}
	n, _ := c.wanted()
	if err := c.search.find(n); err != nil {
		return false, err
	}
	found := c.search.pending
	if len(found) == 0 || len(found) > n {
		return false, nil // nothing, or plenty
	}
	fresh := make(map[string]bool, len(found))
	for _, l := range found {
		if l.timer || l.head || at.seen[string(l.key)] {
			return false, nil
		}
		fresh[string(l.key)] = true
	}
	at.fresh = fresh
	return true, nil
}

// lookAgain has the handle look again, after a turn which has left hints alone.
func (r *rest) lookAgain(at cue, aWhile time.Duration) {
	r.next = cue{seen: at.fresh, again: !at.again}
	if !at.again {
		r.wait = min(r.wait, aWhile)
	}
}

// pollPlaces is how many requests before a handle's own double the time between its polls.
const pollPlaces = 4

// noteLostWake notes that a poll has claimed a group for which nobody was woken: whoever was to be woken is dead.
func (w *txn) noteLostWake(waiting []*operation, receives []*reception) {
	if len(waiting) == 0 || waiting[0].turn == nil || waiting[0].turn.cue.why != whyPoll {
		return
	}
	if slices.ContainsFunc(receives, func(r *reception) bool { return len(r.claims) > 0 }) {
		w.q.staging.lostUntil.Store(w.nowMS + requestLife.Milliseconds())
	}
}

// pollOf is how long a handle waits that nobody wakes. The turns of the handles before it in the line serve it, too, so
// it need not look as often as the first: up to five times as rarely. If the first is another than when the handle last
// looked, those before live and are served: then up to 17 times as rarely. Not so if they are dead: from the first
// group that a poll claims on, the handle polls as the first does, until the requests of the dead have ended.
func (w *txn) pollOf(turns []*turning, receives []*reception) time.Duration {
	poll := w.q.opts.Poll
	poll = poll*3/4 + time.Duration(w.q.random.float()*float64(poll)/2)
	if w.nowMS < w.q.staging.lostUntil.Load() {
		return poll
	}
	named := func(r *reception) bool { return r.o.Group != nil }
	if len(turns) != 1 || turns[0] == nil || turns[0].where != "" || slices.ContainsFunc(receives, named) {
		return poll
	}
	own := func(row kv.KV) bool {
		p, err := w.q.keys.parse(row.Key)
		return err == nil && p.id == w.q.staging.random
	}
	before := slices.IndexFunc(turns[0].rows, own)
	if before < 0 {
		before = len(turns[0].rows)
	}
	places := time.Duration(before)
	if w.q.staging.moved(turns[0].rows) && before > pollPlaces {
		return poll + poll*places*places/(pollPlaces*pollPlaces)
	}
	return poll + poll*places/pollPlaces
}

// moved reports whether the first request is another than when the handle last looked. Advice.
func (s *staging) moved(rows []kv.KV) bool {
	if len(rows) == 0 {
		s.front.Store(nil)
		return false
	}
	first := string(rows[0].Key)
	before := s.front.Swap(&first)
	return before != nil && *before != first
}
