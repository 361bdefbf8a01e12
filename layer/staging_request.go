package layer

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sort"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/guard"
	"fdbfifo/layer/internal/lanes"
	"fdbfifo/layer/internal/line"
	"fdbfifo/layer/internal/rec"
)

// stage keeps the handle's request in step with its waiting receives. It registers the request if receives wait. If all
// wanted groups were granted and receives still wait, the request wants groups again. When the last receive has been
// served, stage clears the request. requests are the oldest requests, as far as they were read.
//
// Footprint: registering adds no conflict. Rewriting adds a read conflict on the request. It conflicts only with a
// sweep that takes the handle for dead, because no handle grants to a request that wants nothing. Clearing adds a read
// conflict on the request, because a grant rewrites the request.
func (w *txn) stage(waiting []*operation, c *claimer, requests []kv.KV) (staged, error) {
	if len(waiting) == 0 || !w.wakes.mayStage {
		return staged{}, nil
	}
	unserved := 0
	wants, began := w.stageWants(waiting)
	for _, o := range waiting {
		if _, any := o.receive.want(); any && o.receive.unserved() {
			unserved++
		}
	}
	outcome, err := w.stageAny(unserved, c, requests)
	outcome.wants, outcome.began = wants, outcome.began || began
	return outcome, err
}

// stageAny is stage for receives which take any group, of which so many are unserved.
func (w *txn) stageAny(unserved int, c *claimer, requests []kv.KV) (staged, error) {
	q := w.q
	index, _ := q.staging.requested()
	switch {
	case unserved > 0 && index == 0:
		now, err := w.clock()
		if err != nil {
			return staged{}, err
		}
		return w.request(now, unserved), nil
	case unserved > 0:
		// Granted groups may be gone by now, or more receives wait. A request which wants nothing is never woken.
		key := q.keys.request(index, q.waitID)
		i := slices.IndexFunc(requests, func(row kv.KV) bool { return bytes.Equal(row.Key, key) })
		if i < 0 {
			return staged{}, nil
		}
		r, err := rec.UnpackRequest(key, requests[i].Value)
		if !q.passes(err) && r.Wants > 0 {
			return staged{}, nil
		}
		if err := guard.RenewRequest.Read(w.tx, kv.SingleKey(key)); err != nil {
			return staged{}, err
		}
		return w.request(index, unserved), nil
	case unserved == 0 && index != 0 && !q.line.SomeTakeAny() && !c.holdsGrants():
		key := q.keys.request(index, q.waitID)
		if err := guard.RequestClear.Read(w.tx, kv.SingleKey(key)); err != nil {
			return staged{}, err
		}
		w.tx.Clear(key)
		return staged{gone: true}, nil
	}
	return staged{}, nil
}

// request writes the handle's request.
func (w *txn) request(index int64, wants int) staged {
	q := w.q
	r := rec.Request{
		Owner: q.opts.Owner, Wants: int64(min(wants, line.MaxWave)), DeadlineMS: w.nowMS + requestLife.Milliseconds(),
	}
	w.tx.Set(q.keys.request(index, q.waitID), r.Pack())
	w.did.wrote = true
	return staged{request: index, deadlineMS: r.DeadlineMS, began: true}
}

// acquireFor is acquire for a transaction that changes the request with the index; 0 = there is no request for any
// group. It returns false if another transaction may change the request, or has changed it since the caller looked. The
// caller must then look again. The error is the end of ctx.
func acquireFor(ctx context.Context, q *Queue, index int64) (ok bool, err error) {
	if !q.staging.acquire() {
		if !q.line.Rest(ctx, line.BusyPause) { // a receive is about to use or clear the request
			return false, context.Cause(ctx)
		}
		return false, nil
	}
	if now, _ := q.staging.requested(); now != 0 && now != index {
		q.staging.release()
		return false, nil
	}
	return true, nil
}

// renew moves the deadline of the handle's request, which then wants a group for each receive that takes any group. If
// a sweep has cleared the request, the next turn writes another. renew also writes the handle's last receipt again:
// other handles learn the clock of one that only waits.
func (q *Queue) renew(ctx context.Context, index int64) error {
	key := q.keys.request(index, q.waitID)
	if ok, err := acquireFor(ctx, q, index); !ok {
		return err
	}
	defer q.staging.release()
	last := q.receipts.take(1)
	defer q.returnReceipts(ctx, last)
	var outcome staged
	_, err := kv.Run(ctx, q.db, txFor(q, "wait"), func(tx kv.Tx, _ kv.Attempt) error {
		v, err := guard.RenewRequest.Get(tx, key).Wait(ctx)
		if err != nil {
			return fmt.Errorf("read request: %w", err)
		}
		outcome = staged{gone: true}
		if v == nil {
			return nil
		}
		r, err := rec.UnpackRequest(key, v)
		if q.passes(err) {
			r = rec.Request{Owner: q.opts.Owner}
		}
		r.DeadlineMS = q.nowMS() + requestLife.Milliseconds()
		r.Wants = int64(min(max(takeAny(q), 1), line.MaxWave))
		tx.Set(key, r.Pack())
		outcome = staged{request: index, deadlineMS: r.DeadlineMS}
		if len(last) == 0 {
			return nil
		}
		now, err := momentOf(ctx, q, tx)
		if err != nil {
			return err
		}
		tx.Set(q.keys.receipt(last[0]), rec.PackReceipt(now.nowMS, 0, now.clock))
		return nil
	})
	if err == nil {
		q.staging.set(outcome)
	}
	return err
}

// takeAny returns how many receives in the handle's line take any group.
func takeAny(q *Queue) (n int) {
	q.line.Each(func(o *operation) {
		if _, any := o.receive.want(); any {
			n++
		}
	})
	return n
}

// withdraw clears the handle's requests for which no receive waits, and returns the granted groups. index is 0 if there
// is no request for any group. It is safe to repeat a withdraw. If more than clearedTogether requests are left over,
// the caller must withdraw again.
func (q *Queue) withdraw(ctx context.Context, index int64) error {
	if ok, err := acquireFor(ctx, q, index); !ok {
		return err
	}
	defer q.staging.release()
	wants, own := notAwaited(q, waitsInLine(q))
	outcome := staged{gone: index != 0, wants: make(map[want]int64, len(wants))}
	for _, w := range wants {
		outcome.wants[w] = 0
	}
	freed := make(map[string]bool) // by any attempt, because the last may find what an earlier one has done
	_, err := kv.Run(ctx, q.db, txFor(q, "wait"), func(tx kv.Tx, _ kv.Attempt) error {
		outcome.past = nil // of a failed attempt
		for _, w := range wants {
			tx.Clear(q.wanted(w, own[w]))
		}
		w := q.txn(ctx, tx)
		if err := w.withdraw(index); err != nil {
			return err
		}
		for lane := range w.noted.ready {
			freed[lane] = true
		}
		return w.noteCleared(&outcome, index != 0)
	})
	if errors.Is(err, ErrNoQueue) {
		err = nil // the request went with the queue
	}
	if err != nil {
		return err
	}
	q.staging.set(outcome)
	if len(freed) == 0 {
		return nil
	}
	// A handle that has begun to wait in the meantime may have seen this handle's request before its own. Then it looks
	// again only at its poll.
	return q.wakeFor(ctx, slices.Sorted(maps.Keys(freed)), nil)
}

// withdraw is Queue.withdraw in a single transaction. Footprint: a read conflict on the request, because every grant
// rewrites the request; per grant, a read conflict on the lock, and the footprint of a release.
func (w *txn) withdraw(index int64) error {
	q, tx, random := w.q, w.tx, w.q.waitID
	if index == 0 {
		return w.finish()
	}
	key := q.keys.request(index, random)
	if err := guard.WithdrawRequest.Read(tx, kv.SingleKey(key)); err != nil {
		return err
	}
	rows, err := tx.Snapshot().GetRange(q.keys.grants(random).Selectors(), kv.RangeOptions{}).Wait(w.ctx)
	if err != nil {
		return fmt.Errorf("read grants: %w", err)
	}
	for _, row := range rows {
		p, err := q.keys.parse(row.Key)
		token := int64(0)
		if err == nil {
			token, err = rec.UnpackInt(row.Key, row.Value)
		}
		if q.passes(err) {
			tx.Clear(row.Key) // the timer of the grant's end leads to the group
			continue
		}
		r, err := w.guarded(guard.WithdrawLock).readLock(p.lane)
		if q.passes(err) {
			tx.Clear(row.Key) // the group waits for its repair, and no other group does
			continue
		}
		if err != nil {
			return err
		}
		if lead := (candidate{grant: token}); !lead.accepts(r) {
			tx.Clear(row.Key)
			continue // taken over
		}
		w.end(p.lane, r, nil)
		if _, _, err := w.leave(p.lane, nil, guard.ReleaseEmpty, true); err != nil {
			return err
		}
	}
	tx.Clear(key)
	return w.finish()
}

// sweepRequests clears the requests of dead handles for whole groups ("") and by other templates, with the grants and
// wake keys of handles that have no other request which lives. The groups granted to a dead handle come back when the
// short lease of the grant ends.
func (q *Queue) sweepRequests(ctx context.Context, templates []string) error {
	_, err := kv.Run(ctx, q.db, q.batchOptions(), func(tx kv.Tx, _ kv.Attempt) error {
		all, err := tx.Snapshot().GetRange(q.keys.requests().Selectors(), kv.RangeOptions{Limit: wakePage}).Wait(ctx)
		if err != nil {
			return fmt.Errorf("sweep requests: %w", err)
		}
		for _, where := range templates {
			if err := q.sweepRequestsOf(ctx, tx, where, all); err != nil {
				return err
			}
		}
		return nil
	})
	return err
}

// sweepRequestsOf is sweepRequests for one template. all are the first wakePage requests of any kind.
func (q *Queue) sweepRequestsOf(ctx context.Context, tx kv.Tx, where string, all []kv.KV) error {
	now := q.nowMS()
	requests := q.keys.byLaneFor(where).Selectors()
	rows, err := tx.Snapshot().GetRange(requests, kv.RangeOptions{Limit: grantProbe}).Wait(ctx)
	if err != nil {
		return fmt.Errorf("sweep requests: %w", err)
	}
	for _, row := range rows {
		p, err := q.keys.parse(row.Key)
		if q.passes(err) {
			tx.Clear(row.Key)
			continue
		}
		r, err := rec.UnpackRequest(row.Key, row.Value)
		q.passes(err) // as one of a dead handle
		if lives(r, now) || p.id == q.waitID {
			continue
		}
		if err := guard.SweepRequest.Read(tx, kv.SingleKey(row.Key)); err != nil {
			return err
		}
		tx.Clear(row.Key)
		if len(all) == wakePage || hasLiving(q, p.id, all, now) {
			continue // a commit of unknown outcome has left the request, and the handle has another
		}
		tx.ClearRange(q.keys.grants(p.id))
		tx.Clear(q.keys.wake(p.id))
	}
	return nil
}

// hasLiving reports whether the handle with the random has a request that lives.
func hasLiving(q *Queue, random uuid.UUID, requests []kv.KV, nowMS int64) bool {
	return slices.ContainsFunc(requests, func(row kv.KV) bool {
		p, err := q.keys.parse(row.Key)
		if err != nil || p.id != random {
			return false
		}
		r, err := rec.UnpackRequest(row.Key, row.Value)
		return err == nil && lives(r, nowMS)
	})
}

// Besides the request for any group, a handle has a request for each lane and each template that its receives wait for.
// Nothing is granted to such a request. A transaction that leaves lanes ready touches the wake keys of the oldest
// handles that wait for such lanes, one handle for each lane. A woken handle that finds more than it can take touches
// the wake key of the next. A handle writes and clears only its own requests, so it conflicts only with a sweep that
// takes it for dead.

// want is the lane or the template that receives wait for, if they do not take any group. It is comparable.
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

// place names the lane or the template in one string.
func (a want) place() string {
	if a.one {
		return "1" + a.of
	}
	return "*" + a.of
}

// wantAt is the inverse of place.
func wantAt(place string) want { return want{one: place[0] == '1', of: place[1:]} }

// want returns what the receive waits for; any means: any whole group.
func (r *reception) want() (w want, any bool) {
	switch {
	case r.o.Group != nil:
		return want{one: true, of: lanes.Name(*r.o.Group, r.where)}, false
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
		return q.keys.named(w.of, q.waitID)
	}
	return q.keys.byLane(w.of, own.sinceMS, q.waitID)
}

// expect notes that a transaction is about to write requests, and returns those that are new. If the outcome stays
// unknown, the requests are still cleared when no receive waits any more.
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
		if o.Waits {
			if w, any := o.receive.want(); !any {
				wants = append(wants, w)
			}
		}
	}
	return wants
}

// renewedTogether bounds the requests that are renewed because others are.
const renewedTogether = 256

// stageWants writes the requests for what unserved receives wait for, unless the requests are there and have half of
// their lives left. If one has not, stageWants also renews those of the receives in the line, so that many receives
// need few transactions for that.
func (w *txn) stageWants(waiting []*operation) (written map[want]int64, began bool) {
	_, known := w.q.staging.wanting()
	unserved := make(map[want]int)
	for _, o := range waiting {
		if wanted, any := o.receive.want(); !any && o.receive.unserved() {
			unserved[wanted]++
		}
	}
	lasts := func(a want) bool { return known[a].lasts(w.nowMS) }
	all := slices.DeleteFunc(slices.SortedFunc(maps.Keys(unserved), want.compare), lasts)
	if len(all) > 0 {
		var more []want
		for a, n := range waitsInLine(w.q) {
			if unserved[a] == 0 && known[a].deadlineMS > 0 && !lasts(a) {
				more = append(more, a)
			}
			unserved[a] += n
		}
		slices.SortFunc(more, want.compare)
		all = append(all, more[:min(len(more), renewedTogether)]...)
	}
	for _, wanted := range all {
		own := known[wanted]
		if written == nil {
			written = make(map[want]int64)
		}
		r := rec.Request{Owner: w.q.opts.Owner, Wants: 1, DeadlineMS: w.nowMS + requestLife.Milliseconds()}
		if !wanted.one {
			r.Wants = int64(min(unserved[wanted], line.MaxWave))
		}
		w.tx.Set(w.q.wanted(wanted, own), r.Pack())
		written[wanted] = r.DeadlineMS
		began = began || own.deadlineMS == 0
		w.did.wrote = true
	}
	return written, began
}

// waitsInLine returns how many receives in the handle's line wait for each lane and by each template.
func waitsInLine(q *Queue) map[want]int {
	waits := make(map[want]int)
	q.line.Each(func(o *operation) {
		if wanted, any := o.receive.want(); !any {
			waits[wanted]++
		}
	})
	return waits
}

// clearedTogether bounds the requests for lanes and by templates that one transaction clears. Example: a handle's
// receives wait for 100,000 groups, and all their callers leave at once. A transaction that clears all the requests is
// too large.
const clearedTogether = 256

// notAwaited returns the first clearedTogether of the handle's requests for lanes and by templates that are not in
// waits, in order.
func notAwaited(q *Queue, waits map[want]int) (wants []want, own map[want]ownRequest) {
	wants, own = q.staging.wanting()
	wants = slices.DeleteFunc(wants, func(w want) bool { return waits[w] > 0 })
	return wants[:min(len(wants), clearedTogether)], own
}

// clearWants clears the requests for lanes and by templates that no receive waits for any more, up to clearedTogether.
func (w *txn) clearWants(waiting []*operation, outcome *staged) {
	if !w.wakes.mayStage {
		return
	}
	waits := waitsInLine(w.q)
	for _, o := range waiting {
		if wanted, any := o.receive.want(); !any && o.receive.unserved() {
			waits[wanted]++
		}
	}
	wants, known := notAwaited(w.q, waits)
	for _, wanted := range wants {
		w.tx.Clear(w.q.wanted(wanted, known[wanted]))
		w.did.cleared = true
		if outcome.wants == nil {
			outcome.wants = make(map[want]int64)
		}
		outcome.wants[wanted] = 0
	}
}

// passOn wakes the next handles that wait by the claimer's template, if the claimer has found more lanes than it could
// take or may take. So a few wakes are enough for many lanes, and one for lanes that become ready while the woken
// handle is at work. requests are the oldest by the template. Those behind the handle's own come first: the handles
// before were woken before, and several that pass on at once do not wake each other.
func (c *claimer) passOn(requests []kv.KV) error {
	left := c.left()
	if c.taken == 0 || left == 0 {
		return nil
	}
	k := c.waking()
	if k.besides = c.q.waitID; c.where == "" {
		k.groups = 1 // the handle that is woken serves the others
	} else {
		k.templates[c.where] = left
	}
	own := slices.IndexFunc(requests, func(row kv.KV) bool {
		p, err := c.keys.parse(row.Key)
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

// A turn looks for the receives of a few groups and templates, because each has reads of its own: see line.NamedWave.
// At the groups and templates of the other receives the turn only glances. At a template it reads whether there is any
// hint, and the first timer. At a group it reads whether there is any item, and if so, whether the group is free. So a
// handle whose receives name a hundred groups looks with one transaction, not with seven, and only where the glance has
// found something do receives have a turn of their own. The receives that have had a turn stand last in the line, so
// that a few polls later each has had one, which also meets the requests of dead handles.

// glances is line.Env.Glances.
func glances(q *Queue, o *operation) bool {
	w, any := o.receive.want()
	if any || o.receive.o.ReceiveID != "" || o.receive.o.OnlyIfAny {
		return false
	}
	q.staging.mu.Lock()
	defer q.staging.mu.Unlock()
	return q.staging.wants[w].lasts(q.nowMS())
}

// lasts is lastsUntil for the request's deadline.
func (r ownRequest) lasts(nowMS int64) bool { return lastsUntil(r.deadlineMS, nowMS) }

// lastsUntil reports whether a request with this deadline needs no renewal: half of its life is left. A deadline that
// is more than two lives ahead was written before the clock was set back. Such a request must be renewed, because other
// handles take it for a dead handle's if the deadline is hours ahead.
func lastsUntil(deadlineMS, nowMS int64) bool {
	left := deadlineMS - nowMS
	return left > requestLife.Milliseconds()/2 && left <= 2*requestLife.Milliseconds()
}

// glance looks where there is anything at the places, and until when there is nothing. While the queue is paused there
// is nothing anywhere, and neither while its rate is used up.
func (w *txn) glance(places []string, left *line.Rest) error {
	if len(places) == 0 {
		return nil
	}
	if paused, err := w.paused(); err != nil || paused {
		return err
	}
	if short, err := w.short(); err != nil || short {
		return err
	}
	left.Found = make(map[string]bool)
	var templates, named []want
	for _, place := range places {
		if at := wantAt(place); at.one {
			named = append(named, at)
		} else {
			templates = append(templates, at)
		}
	}
	if err := glanceAtLanes(w, named, left); err != nil {
		return err
	}
	return glanceAtTemplates(w, templates, left)
}

func glanceAtTemplates(w *txn, templates []want, left *line.Rest) error {
	config, err := w.config()
	if err != nil {
		return err
	}
	var hints, timers []placed
	for _, t := range templates {
		for _, r := range w.keys.hintsOf(t.of) {
			hints = append(hints, placed{r, t.of})
		}
		for _, r := range w.keys.timersWithin(t.of, config.retro().times()) {
			timers = append(timers, placed{r, t.of})
		}
	}
	found := make(map[string]bool)
	err = w.eachFirst(hints, func(_ []byte, where string) { found[where] = true })
	if err != nil {
		return fmt.Errorf("read ready hints: %w", err)
	}
	dueMS := make(map[string]int64)
	err = w.eachFirst(timers, func(key []byte, where string) {
		at := w.dueAt(key, config.retro())
		if known, ok := dueMS[where]; !ok || at < known {
			dueMS[where] = at
		}
		found[where] = found[where] || at <= w.nowMS
	})
	if err != nil {
		return fmt.Errorf("read timers: %w", err)
	}
	for where := range found {
		left.Found[want{of: where}.place()] = true
	}
	maps.DeleteFunc(dueMS, func(where string, _ int64) bool { return found[where] })
	return w.restOfGlance(dueMS, left)
}

// glanceAtLanes reads nothing more of lanes in which there is no item. If items are claimed by themselves, a lane may
// have none but claimed ones.
func glanceAtLanes(w *txn, named []want, left *line.Rest) error {
	var items, holds []placed
	for _, l := range named {
		items = append(items, placed{w.keys.items(l.of), l.of})
		if group, where := lanes.Split(l.of); w.keys.plan.ClaimsItems(where) {
			holds = append(holds, placed{w.keys.holds(group), l.of})
		}
	}
	var all []*glimpse
	see := func(_ []byte, lane string) {
		all = append(all, &glimpse{lane: lane, lock: w.readLaneLock(w.read, lane, locksAtOnce)})
	}
	if err := w.eachFirst(items, see); err != nil {
		return fmt.Errorf("read items: %w", err)
	}
	held := func(_ []byte, lane string) {
		r := w.keys.holds(lanes.GroupOf(lane)).Selectors()
		all = append(all, &glimpse{lane: lane, holds: w.read.GetRange(r, kv.RangeOptions{Limit: namedHolds})})
	}
	if err := w.eachFirst(holds, held); err != nil {
		return fmt.Errorf("read holds: %w", err)
	}
	for _, g := range all {
		if err := g.begin(w); err != nil {
			return err
		}
	}
	for _, g := range all {
		if err := g.end(w); err != nil {
			return err
		}
		switch {
		case g.ready || g.dueMS > 0 && g.dueMS <= w.nowMS:
			left.Found[want{one: true, of: g.lane}.place()] = true
		case g.dueMS > 0:
			left.Wait = min(left.Wait, time.Duration(g.dueMS-w.nowMS)*time.Millisecond)
		}
	}
	return nil
}

// glimpse is what keeps a lane with items, or with claimed items, from receives.
type glimpse struct {
	lane  string
	lock  laneLock
	items kv.Future[[]kv.KV] // the head; nil = the lane is held
	holds kv.Future[[]kv.KV] // nil = the glimpse is of the lane's items

	ready bool
	dueMS int64 // when the time ends that keeps the lane from receives; 0 = no time does
}

// begin reads the lock, and then starts to read the head of a lane that is free.
func (g *glimpse) begin(w *txn) error {
	if g.holds != nil {
		return nil
	}
	record, _, err := w.waitLaneLock(g.lane, g.lock)
	switch held := record.Holding(); {
	case err != nil:
		return g.spoilt(err)
	case record == nil:
		g.items = w.readItems(w.read, g.lane, 1)
	case !record.At(w.nowMS).Keeps():
		g.ready = true // a receive ends what is over
	case held != nil:
		dueMS, err := w.overAt(g.lane, record)
		g.dueMS = cmp.Or(dueMS, held.EndMS)
		return err
	}
	return nil
}

// end says what the reads of the glimpse have found.
func (g *glimpse) end(w *txn) error {
	switch {
	case g.holds != nil:
		rows, err := g.holds.Wait(w.ctx)
		if err != nil {
			return fmt.Errorf("read holds: %w", err)
		}
		all, err := w.unpackHolds(rows)
		if err != nil {
			return g.spoilt(err)
		}
		for _, h := range all {
			g.ready = g.ready || !h.record.At(w.nowMS).Keeps()
			if held := h.record.Holding(); held != nil && (g.dueMS == 0 || held.EndMS < g.dueMS) {
				g.dueMS = held.EndMS
			}
		}
	case g.items != nil:
		f, err := w.await(candidate{lane: g.lane}, g.lock, g.items)
		if err == nil {
			err = w.assess(f)
		}
		if err != nil {
			return g.spoilt(err)
		}
		g.ready = g.ready || mayGive(f.verdict)
		g.dueMS, err = keptUntil(w, f)
		return err
	}
	return nil
}

// spoilt notes that a lane cannot be read, so that its receive has a turn, which says so. It returns any other error.
func (g *glimpse) spoilt(err error) error {
	if !isCorrupt(err) {
		return err
	}
	g.ready = true
	return nil
}

// restOfGlance ends the rest with the first of the times at which something is due at a template.
func (w *txn) restOfGlance(dueMS map[string]int64, left *line.Rest) error {
	soonest := slices.SortedFunc(maps.Keys(dueMS), func(a, b string) int {
		return cmp.Or(cmp.Compare(dueMS[a], dueMS[b]), cmp.Compare(a, b))
	})
	for _, where := range soonest[:min(len(soonest), line.NamedWave)] {
		if dueMS[where]-w.nowMS >= left.Wait.Milliseconds() {
			return nil
		}
		t := w.beginTurn(where)
		if _, err := t.wait(w); err != nil {
			return err
		}
		if err := w.restOfAny(t, left); err != nil {
			return err
		}
	}
	return nil
}

// placed is a range of keys of a template, or of a lane.
type placed struct {
	kv.KeyRange
	where string
}

// eachFirst calls found for the first key of each range in which there is one. The ranges are disjoint.
//
// The first read asks for the first key from all ranges on: if it lies behind them, they are empty. Otherwise the
// ranges behind the key are halved, and so on. So ranges between which there is nothing cost one read, and n ranges at
// most 2n reads, in about log n rounds.
func (w *txn) eachFirst(ranges []placed, found func(key []byte, where string)) error {
	if len(ranges) == 0 {
		return nil
	}
	slices.SortFunc(ranges, func(a, b placed) int { return bytes.Compare(a.Begin, b.Begin) })
	for parts := [][]placed{ranges}; len(parts) > 0; {
		first := make([]kv.Future[[]byte], len(parts))
		for i, part := range parts {
			first[i] = w.read.GetKey(kv.FirstGreaterOrEqual(part[0].Begin))
		}
		var halves [][]placed
		for i, part := range parts {
			rest, err := afterFirst(w.ctx, first[i], part, found)
			if err != nil {
				return err
			}
			half := len(rest) / 2
			for _, p := range [][]placed{rest[:half], rest[half:]} {
				if len(p) > 0 {
					halves = append(halves, p)
				}
			}
		}
		parts = halves
	}
	return nil
}

// afterFirst calls found if the first key from the ranges on lies in one of them, and returns the ranges behind it.
func afterFirst(
	ctx context.Context, first kv.Future[[]byte], ranges []placed, found func(key []byte, where string),
) (rest []placed, err error) {
	key, err := first.Wait(ctx)
	if err != nil {
		return nil, err
	}
	rest = ranges[sort.Search(len(ranges), func(i int) bool { return bytes.Compare(key, ranges[i].End) < 0 }):]
	if len(rest) > 0 && rest[0].Contains(key) {
		found(key, rest[0].where)
		rest = rest[1:]
	}
	return rest, nil
}
