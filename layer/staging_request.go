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

// stage keeps the handle's requests in step with its waiting receives. A request is the row by which a handle waits:
// ("request", index, random) for any group, see staging.go. stage registers the request if receives wait. If all wanted
// groups were granted and receives still wait, the request wants groups again. When the last receive has been served,
// and no grant to the handle may be left (holdsGrants), stage clears the request. It also writes the requests for lanes
// and by templates (stageWants). requests are the oldest requests for any group, as far as they were read. claimers are
// those that have looked for groups; nil = there are none. stage does nothing unless the transaction may change the
// handle's requests (mayStage). The result says what stage has done.
//
// Footprint: registering adds no conflict. Rewriting adds a read conflict on the request. It conflicts only with a
// sweep that takes the handle for dead, because no handle grants to a request that wants nothing. Clearing adds a read
// conflict on the request, because a grant rewrites the request.
func (w *txn) stage(waiting []*operation, claimers []*claimer, requests []kv.KV) (staged, error) {
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
	outcome, err := w.stageAny(unserved, claimers, requests)
	outcome.wants, outcome.began = wants, outcome.began || began
	return outcome, err
}

// stageAny is stage for the request for any group. unserved is how many of the receives that take any group have got
// nothing.
func (w *txn) stageAny(unserved int, claimers []*claimer, requests []kv.KV) (staged, error) {
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
		if !q.skipsRow(err) && r.Wants > 0 {
			return staged{}, nil
		}
		if err := guard.RenewRequest.Read(w.tx, kv.SingleKey(key)); err != nil {
			return staged{}, err
		}
		return w.request(index, unserved), nil
	case unserved == 0 && index != 0 && !q.line.SomeTakeAny() && !w.holdsGrants(claimers):
		key := q.keys.request(index, q.waitID)
		if err := guard.RequestClear.Read(w.tx, kv.SingleKey(key)); err != nil {
			return staged{}, err
		}
		w.tx.Clear(key)
		return staged{gone: true}, nil
	}
	return staged{}, nil
}

// request sets the key of the handle's request for any group, with a deadline requestLife ahead. wants is how many
// groups the request wants.
func (w *txn) request(index int64, wants int) staged {
	q := w.q
	r := rec.Request{
		Owner: q.opts.Owner, Wants: int64(min(wants, line.MaxWave)), DeadlineMS: w.nowMS + requestLife.Milliseconds(),
	}
	w.tx.Set(q.keys.request(index, q.waitID), r.Pack())
	w.did.wrote = true
	return staged{request: index, deadlineMS: r.DeadlineMS, began: true}
}

// acquireFor acquires the right to change the handle's requests (staging.acquire). index is that of the handle's
// request for any group, as the caller knows it; 0 = the caller knows of none. If ok, the caller must release the
// right.
//
// If another transaction has the right, acquireFor waits for up to BusyPause, and ok is false; the error is the cause
// of ctx if ctx has ended. ok is also false if a request with another index was registered since the caller looked.
// Then the caller must look again. acquireFor reads and writes no key.
func acquireFor(ctx context.Context, q *Queue, index int64) (ok bool, err error) {
	if !q.staging.acquire() {
		if !q.line.Rest(ctx, line.BusyPause) {
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

// renew moves the deadline of the handle's request for any group, in a transaction of its own. The request then wants a
// group for each receive that takes any group. renew reads the request with a conflict. If a sweep has cleared it, the
// next turn writes another. If another transaction may change the requests, renew does nothing (acquireFor). renew also
// writes one of the handle's old receipts again, with the present time: so other handles learn the clock of a handle
// that only waits.
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
		if q.skipsRow(err) {
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

// withdraw clears the handle's request for any group, and returns the groups that were granted to it: see txn.withdraw.
// (A grant is a lock that keeps a group for a request for 2 s.) index is the index of that request; 0 = there is none.
// The caller must have found that no receive waits for any group. withdraw also clears the requests for lanes and by
// templates (reqgroup, reqlane) for which no receive waits in the line, without a conflict. It clears at most
// clearedTogether of these: the caller must call again while some are left over.
//
// If another transaction may change the requests, withdraw does nothing (acquireFor). If granted groups are ready
// again, withdraw wakes other handles for them, in a second transaction. It also remembers the count of the handle's
// wake key, so that the handle can pass on a late wake (noteCleared). It is safe to repeat a withdraw.
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

// withdraw clears the request for any group with the index, in this transaction, and returns the granted groups. It
// reads the grants to the handle at snapshot. For each grant that still holds its group, it ends the holding, which
// clears lock, timer and grant, and leaves a hint. If the group was taken over, or the grant or the lock cannot be
// read, it clears the grant key alone. index 0 = there is no request. withdraw also finishes the transaction.
//
// Footprint: a read conflict on the request, because every grant rewrites the request; per grant, a read conflict on
// the lock, and the footprint of a release.
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
		if q.skipsRow(err) {
			tx.Clear(row.Key) // the timer of the grant's end leads to the group
			continue
		}
		r, err := w.guarded(guard.WithdrawLock).readLock(p.lane)
		if q.skipsRow(err) {
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

// sweepRequests clears the first requests of dead handles: for any group (template "") and by the other templates, up
// to grantProbe of each. It also clears the grants and the wake keys of these handles, unless a handle has another
// request that lives. It reads at snapshot, and adds a read conflict on each request that it takes for a dead handle's.
// The handle calls it after a turn that has met a dead handle's request as the oldest of a template. The groups granted
// to a dead handle become ready when the short lease of the grant ends: the timer of the lock leads to them.
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

// sweepRequestsOf is sweepRequests for one template. all are the first wakePage requests of any kind, to see which
// handles have another request. With as many as wakePage it cannot see that, and leaves grants and wake keys alone. If
// the value of a request cannot be read, it counts as a dead handle's. A request whose key cannot be read is cleared
// without a conflict. The handle's own requests stay.
func (q *Queue) sweepRequestsOf(ctx context.Context, tx kv.Tx, where string, all []kv.KV) error {
	now := q.nowMS()
	requests := q.keys.byLaneFor(where).Selectors()
	rows, err := tx.Snapshot().GetRange(requests, kv.RangeOptions{Limit: grantProbe}).Wait(ctx)
	if err != nil {
		return fmt.Errorf("sweep requests: %w", err)
	}
	for _, row := range rows {
		p, err := q.keys.parse(row.Key)
		if q.skipsRow(err) {
			tx.Clear(row.Key)
			continue
		}
		r, err := rec.UnpackRequest(row.Key, row.Value)
		q.skipsRow(err) // as one of a dead handle
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

// hasLiving reports whether one of these requests is the given handle's and lives: its deadline has not passed. random
// is the handle's.
func hasLiving(q *Queue, random uuid.UUID, requests []kv.KV, nowMS int64) bool {
	return slices.ContainsFunc(requests, func(row kv.KV) bool {
		p, r, err := q.keys.openRequest(row)
		return err == nil && p.id == random && lives(r, nowMS)
	})
}

// Besides the request for any group, a handle has a request for each lane and each template that its receives wait for.
// Nothing is granted to such a request. A transaction that leaves lanes ready touches the wake keys of the oldest
// handles that wait for such lanes: for each lane those of up to wakeProbe handles that name the lane, and by each
// template those of as many handles as there are lanes. A woken handle that finds more than it can take touches the
// wake key of the next. A handle writes and clears only its own requests, so it conflicts only with a sweep that takes
// it for dead.

// want is the lane or the template that receives wait for, if they do not take any group. It is comparable.
type want struct {
	one bool   // the lane of the name; otherwise any lane of the template, packed
	of  string // the lane, or the template
}

// compare orders wants: lanes before templates, each by name.
func (a want) compare(b want) int {
	if a.one != b.one {
		if a.one {
			return -1
		}
		return 1
	}
	return cmp.Compare(a.of, b.of)
}

// place names the lane or the template in one string, as package line has it.
func (a want) place() string {
	if a.one {
		return "1" + a.of
	}
	return "*" + a.of
}

// wantAt is the inverse of place.
func wantAt(place string) want { return want{one: place[0] == '1', of: place[1:]} }

// want returns the lane or the template that the receive waits for. any: the receive takes any whole group, and w is
// the zero value.
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
	sinceMS    int64 // when the handle began to wait; part of the key, so chosen before the first write
	deadlineMS int64 // 0 = not known
}

// wanted is the key of the handle's request for w: ("reqgroup", lane, random) of a lane, ("reqlane", template, since,
// random) by a template.
func (q *Queue) wanted(w want, own ownRequest) []byte {
	if w.one {
		return q.keys.named(w.of, q.waitID)
	}
	return q.keys.byLane(w.of, own.sinceMS, q.waitID)
}

// expect notes in memory that a transaction is about to write requests for wants. added are those of which there was no
// note. When the outcome of the transaction is known, the caller must pass added to unexpect, after a call of set if
// there is one. If the outcome of the transaction stays unknown, the requests are still cleared when no receive waits
// any more.
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

// unexpect forgets the notes of expect for which no request was written after all.
func (s *staging) unexpect(wants []want) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, w := range wants {
		if s.wants[w].deadlineMS == 0 {
			delete(s.wants, w)
		}
	}
}

// wanting returns the lanes and templates for which the handle may have requests, in order, and the requests.
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

// wantsOf returns the lanes and templates that the receives of the batch wait for.
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

// stageWants writes the handle's requests (reqgroup, reqlane) for the lanes and templates that unserved receives wait
// for. It adds no conflict. A request with half of its life left stays as it is. If one must be written, stageWants
// also renews up to renewedTogether of the requests that the receives in the line need, so that many receives need few
// transactions for that. written has the new deadline (ms) of each; began: one of them may be new in the database.
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

// clearWants clears the handle's requests for lanes and by templates (reqgroup, reqlane) that no receive waits for any
// more, up to clearedTogether, and notes them in outcome. waiting are the receives of this transaction. They are not in
// the line, and those still unserved keep their requests. clearWants adds no conflict. It does nothing unless the
// transaction may change the requests (mayStage).
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
		setIn(&outcome.wants, wanted, 0)
	}
}

// passOn wakes the next handles that wait by the claimer's template, if the claimer has claimed, and has left lanes
// that it could not or may not take. So the transaction that makes many lanes ready needs to wake only one handle. If
// the woken handle finds more than it can take, it wakes the next ones. requests are the oldest by the template, of
// which passOn touches the wake keys. Those behind the handle's own come first: the handles before were woken before,
// and several that pass on at once do not wake each other.
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
	own := ownRow(c.q, requests)
	if err := k.seeAll(requests[own+1:]); err != nil {
		return err
	}
	return k.seeAll(requests[:own+1])
}

// left returns how many lanes the claimer has found and not decided about. 1 may also mean that there may be lanes that
// the search has not seen.
func (c *claimer) left() int {
	n := len(c.looks) + len(c.search.pending) + len(c.remains)
	if n == 0 && c.search.begun && (c.search.away || c.search.nearby || !c.search.exhausted()) {
		return 1 // a search which began behind the oldest has not seen them
	}
	return n
}

// A turn is a transaction for receives that wait in the line (package line). A turn looks for the receives of a few
// groups and templates, because each has reads of its own: see line.NamedWave. At the groups and templates of the other
// receives the turn only glances. At a template it reads whether there is any hint, and the first timer. At a group it
// reads whether there is any item, and if so, whether the group is free. So a handle whose receives name a hundred
// groups looks with one transaction, not with seven, and only where the glance has found something do receives have a
// turn of their own. The receives that have had a turn stand last in the line, so that a few polls later each has had
// one, which also meets the requests of dead handles.

// glances reports whether a turn that does not serve the receive may glance at its place (line.Env.Glances). The
// receive must name a group or a template, and have a request that needs no renewal. A receive with a receive id or
// with OnlyIfAny always needs a turn. glances touches memory only.
func glances(q *Queue, o *operation) bool {
	w, any := o.receive.want()
	if any || o.receive.o.ReceiveID != "" || o.receive.o.OnlyIfAny {
		return false
	}
	q.staging.mu.Lock()
	defer q.staging.mu.Unlock()
	return q.staging.wants[w].lasts(q.nowMS())
}

// lasts reports whether the request needs no renewal, see lastsUntil.
func (r ownRequest) lasts(nowMS int64) bool { return lastsUntil(r.deadlineMS, nowMS) }

// lastsUntil reports whether a request with this deadline needs no renewal: half of its life is left. A deadline that
// is more than two lives ahead was written before the clock was set back. Such a request must be renewed, because other
// handles take it for a dead handle's if the deadline is too far ahead (lives).
func lastsUntil(deadlineMS, nowMS int64) bool {
	left := deadlineMS - nowMS
	return left > requestLife.Milliseconds()/2 && left <= 2*requestLife.Milliseconds()
}

// glance looks at places (see want.place), with reads at snapshot, and changes left, the rest of the turn. The places
// where there may be something to receive go into left.Found. If a lease or a delay at a place ends before left.Wait,
// left.Wait becomes shorter, because there may be something to receive at that time. glanceAtLanes and
// glanceAtTemplates say which keys. While the queue is paused, or its rate is used up, no receive gets anything: then
// glance looks at no place.
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

// glanceAtTemplates is glance for templates. A template is found if it has a hint (open), or a timer (due) whose time
// has come. For each other template the time of its first timer bounds the rest, see restOfGlance.
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
		if at <= w.nowMS {
			found[where] = true
		}
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

// glanceAtLanes is glance for named groups and lanes. It first reads whether a lane has any item (item, lane). Of a
// lane with items it reads the locks that may exclude the lane, and then the head if the lane is free. If receives
// claim single items of the group, it also reads the first holds, because all items of the lane may be under holds. Of
// a claim by heartbeat it reads the beat, and of a free lane, in a queue with a rate, the pace. A heartbeat that is due
// is noted in w.beats.due, for the caller to end.
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

// glimpse is a look at one lane: either at its lock and its head, or at the holds of its group.
type glimpse struct {
	lane  string
	lock  laneLock           // the reads of the locks
	items kv.Future[[]kv.KV] // the head; nil = the lane is held
	holds kv.Future[[]kv.KV] // the first holds of the group; nil = the glimpse is of the lane's items

	// ready: a receive may get something, or must report that the lane cannot be read.
	ready bool
	dueMS int64 // when the time ends that keeps the lane from receives; 0 = no time does
}

// begin waits for the locks. If the lane is free it starts reading the head. If a holding keeps the lane, it notes the
// end in dueMS. A holding whose time is over makes the lane ready, because a receive ends such a holding.
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

// end waits for the head, or for the holds, and notes in ready and dueMS what they show.
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

// spoilt returns nil for the error of a row that cannot be read, and makes the lane count as ready: then its receive
// has a turn, which reports the error. It returns any other error.
func (g *glimpse) spoilt(err error) error {
	if !isCorrupt(err) {
		return err
	}
	g.ready = true
	return nil
}

// restOfGlance shortens left.Wait to the time at which the next timer of a template is due. dueMS has the time of the
// first timer of each template with nothing ready. For up to line.NamedWave templates with the soonest times it reads
// the oldest requests and again the first timers, at snapshot. The handle of the first request wakes before the others:
// see restOfAny, which also notes templates in left.Dead.
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

// eachFirst calls found for the first key of each range in which there is one. The ranges must be disjoint, and
// eachFirst sorts them. where names the range's template or lane. The reads are at snapshot.
//
// The first read asks for the first key at or behind the begin of the first range. If the key lies behind all ranges,
// they are empty. Otherwise the ranges behind the key are halved, each half is searched in the same way, and so on. So
// ranges between which there is nothing cost one read, and n ranges at most 2n reads, in about log n rounds.
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

// afterFirst waits for first: the read of the first key of the database at or behind the begin of the first range. The
// ranges are in the order of their keys and do not overlap, and where says for which template or lane a range is. If
// the key lies in a range, afterFirst calls found with the key and the range's where. rest are the ranges that lie
// behind the key as a whole, which eachFirst still has to search.
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
