package layer

import (
	"cmp"
	"maps"
	"slices"

	"fdbfifo/kv"
)

// A handle has a request of its own for each lane and each template that its receives wait for, beside the request for
// any group. Nothing is granted to such a request: whoever leaves a lane ready touches the wake key of the oldest
// handles that wait for a lane like this one, as many as there are lanes, and a handle which was woken and finds more
// than it can take touches the next. A handle writes and clears its own requests only, so nobody conflicts but with a
// sweep that takes the handle for dead.

// want is what receives wait for which do not take any group. Comparable.
type want struct {
	one bool   // the lane of the name; otherwise any lane of the template, packed
	of  string // the lane, or the template
}

func (a want) compare(b want) int {
	if a.one != b.one {
		if a.one {
			return -1
		}
		return 1
	}
	return cmp.Compare(a.of, b.of)
}

// want returns what the receive waits for; any means: any whole group.
func (r *reception) want() (w want, any bool) {
	switch {
	case r.o.Group != nil:
		return want{one: true, of: laneName(*r.o.Group, r.where)}, false
	case r.where != "":
		return want{of: r.where}, false
	}
	return want{}, true
}

// ownRequest is a request of the handle for a lane or by a template, as far as the handle knows.
type ownRequest struct {
	sinceMS    int64 // part of the key, so chosen before the transaction which writes the request
	deadlineMS int64 // 0 = not known
}

// wanted is the key of the handle's request for w.
func (q *Queue) wanted(w want, own ownRequest) []byte {
	if w.one {
		return q.keys.named(w.of, q.staging.random)
	}
	return q.keys.byLane(w.of, own.sinceMS, q.staging.random)
}

// expect notes that a transaction is about to write requests, and returns those that are new. If the outcome is never
// known, the requests are cleared all the same when nobody waits any more.
func (s *staging) expect(wants []want, nowMS int64) (added []want) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(wants) > 0 && s.wants == nil {
		s.wants = make(map[want]ownRequest)
	}
	for _, w := range wants {
		if _, known := s.wants[w]; !known {
			s.wants[w] = ownRequest{sinceMS: nowMS}
			added = append(added, w)
		}
	}
	return added
}

// unexpect forgets what no request was written for after all.
func (s *staging) unexpect(wants []want) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range wants {
		if s.wants[w].deadlineMS == 0 {
			delete(s.wants, w)
		}
	}
}

// wanting returns what the handle may have requests for, in order, and the requests.
func (s *staging) wanting() (wants []want, own map[want]ownRequest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.SortedFunc(maps.Keys(s.wants), want.compare), maps.Clone(s.wants)
}

// hasWants reports whether the handle may have requests for lanes or by templates.
func (s *staging) hasWants() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.wants) > 0
}

// wantsOf returns what the waiting receives of the batch want.
func wantsOf(batch []*operation) (wants []want) {
	for _, o := range batch {
		if o.waits {
			if w, any := o.receive.want(); !any {
				wants = append(wants, w)
			}
		}
	}
	return wants
}

// stageWants writes the requests for what unserved receives wait for, unless the requests are there and have half of
// their lives left.
func (w *txn) stageWants(waiting []*operation) (written map[want]int64) {
	_, known := w.q.staging.wanting()
	unserved := make(map[want]int)
	for _, o := range waiting {
		if wanted, any := o.receive.want(); !any && o.receive.unserved() {
			unserved[wanted]++
		}
	}
	for _, wanted := range slices.SortedFunc(maps.Keys(unserved), want.compare) {
		own := known[wanted]
		if own.deadlineMS-w.nowMS > requestLife.Milliseconds()/2 {
			continue
		}
		if written == nil {
			written = make(map[want]int64)
		}
		r := request{owner: w.q.opts.Owner, wants: 1, deadlineMS: w.nowMS + requestLife.Milliseconds()}
		if !wanted.one {
			r.wants = int64(min(unserved[wanted], maxWave))
		}
		w.tx.Set(w.q.wanted(wanted, own), r.pack())
		written[wanted] = r.deadlineMS
		w.wrote = true
	}
	return written
}

// clearWants clears the requests for what no receive waits for any more.
func (w *txn) clearWants(waiting []*operation, outcome *staged) {
	if !w.mayStage {
		return
	}
	wants, known := w.q.staging.wanting()
	for _, wanted := range wants {
		awaited := func(o *operation) bool { return o.awaits(wanted) && o.receive.unserved() }
		if slices.ContainsFunc(waiting, awaited) || w.q.line.awaits(wanted) {
			continue
		}
		w.tx.Clear(w.q.wanted(wanted, known[wanted]))
		w.cleared = true
		if outcome.wants == nil {
			outcome.wants = make(map[want]int64)
		}
		outcome.wants[wanted] = 0
	}
}

// passOn wakes the next handles that wait by the claimer's template, if the claimer has found more lanes than it could
// take. So a few wakes are enough for many lanes, and one for lanes that become ready while the woken handle is at
// work. requests are the oldest by the template. Those behind the handle's own come first: the handles before were
// woken before, and several that pass on at once do not wake each other.
func (c *claimer) passOn(requests []kv.KV) error {
	left := c.left()
	if c.taken == 0 || left == 0 || lacks(guardPassOn) {
		return nil
	}
	k := c.waking()
	k.templates[c.where], k.besides = left, c.q.staging.random
	own := slices.IndexFunc(requests, func(row kv.KV) bool {
		p, err := c.q.keys.parse(row.Key)
		return err == nil && p.id == k.besides
	})
	if err := k.seeAll(requests[own+1:]); err != nil {
		return err
	}
	return k.seeAll(requests[:own+1])
}

// left returns how many lanes the claimer has found, or may find, and not looked at.
func (c *claimer) left() int {
	n := len(c.looks) + len(c.search.pending) + len(c.remains)
	if n == 0 && c.search.begun && (c.search.away || c.search.nearby || !c.search.exhausted()) {
		return 1 // a search which began behind the oldest has not seen them
	}
	return n
}
