package sim

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"maps"
	"math"
	"slices"
	"strings"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// verify replays the records in commit order. It compares the model with the answers of the actors and with the rows
// that are left.
func (w *world) verify(drained bool) {
	m := newModel(w)
	rows := w.rows(kv.PrefixRange([]byte(recordPrefix)), 0)
	w.report.Commits = len(rows)
	records := make([]record, len(rows))
	for i, row := range rows {
		r, err := unpackRecord(row.Value, w.large)
		if err != nil {
			w.violation("%v", err)
			return
		}
		r.stamp = [10]byte(row.Key[len(recordPrefix):])
		r.version, r.order = int64(binary.BigEndian.Uint64(row.Key[len(recordPrefix):])), i
		records[i] = r
	}
	w.land(records)
	m.pacing = newPacing(w, records)
	for i := range records {
		m.apply(&records[i])
		w.markOutcome(&records[i])
	}
	m.rateChanged(nil)
	m.look(nil)
	m.compareState()
	m.compareEnqueues()
	m.compareFinished()
	m.compareLaws()
	m.compareDeadly(drained)
	m.compareClocks()
	m.compareMarks()
	m.compareLanes()
	m.compareClaims()
	w.compareRepeats()
	m.compareStates()
	m.compareOverrides()
	m.compareRefused()
	m.compareTwins()
	m.compareEdits()
	m.compareDiscards()
	m.compareTurns()
	m.compareReplays()
	m.compareMoves(records)
	m.compareReschedules()
	m.compareHearings()
	m.compareTotal()
	w.compareHistories(m)
	w.compareOrder(m)
	if w.knobs.clocks {
		return
	}
	w.compareExclusion()
	// A forced pause in steps ends claims at several moments, and linear knows one. A message that joins its group
	// comes there at a moment that is in no call.
	if w.o.Linear && !w.knobs.stepped && w.knobs.joins == 0 {
		w.report.calls = w.histories(m, drained)
	}
}

// land notes between which steps each record was applied: at the step at which it was sent, or if it came late, between
// those of its neighbours that did not.
func (w *world) land(records []record) {
	late := func(r *record) bool {
		return mayLandLate(w.outcomes[attemptID{r.who, r.tx, r.attempt}])
	}
	first := 0
	for i := range records {
		r := &records[i]
		if !late(r) {
			first = r.step
		}
		r.from, r.to = first, r.step
	}
	last := math.MaxInt
	for i := len(records) - 1; i >= 0; i-- {
		r := &records[i]
		if late(r) {
			r.to = last
		} else {
			last = r.step
		}
	}
}

// markOutcome notes which kinds of work had an unknown outcome and were applied.
func (w *world) markOutcome(r *record) {
	code := w.outcomes[attemptID{r.who, r.tx, r.attempt}]
	if code == 0 {
		return
	}
	suffix := " applied, and unknown"
	if mayLandLate(code) {
		suffix = " applied late"
	}
	for _, wr := range r.writes {
		switch name, _ := keyOf(wr.key); {
		case name == "item" && wr.kind == wrote:
			w.mark("enqueue" + suffix)
		case name == "item" && wr.kind == cleared:
			w.mark("removal" + suffix)
		case name == "lock" && wr.kind == wrote:
			w.mark("lock" + suffix)
		}
	}
}

// compareState: what is left in the database is what the records come to.
func (m *model) compareState() {
	left := 0
	for _, name := range modelled {
		for _, row := range m.w.rows(section(name), 0) {
			left++
			if v, ok := m.db[string(row.Key)]; !ok || !bytes.Equal(v, row.Value) {
				m.w.violation("state: %q is %q in the database and %q (%t) in the model", row.Key, row.Value, v, ok)
			}
		}
	}
	if left != len(m.db) {
		m.w.violation("state: %d keys in the database, %d in the model", left, len(m.db))
	}
}

// compareEnqueues: each enqueued message is there once, in one transaction, under the returned id. Or it is a duplicate
// of a message that is there, or was refused because the group is full.
func (m *model) compareEnqueues() {
	where := make(map[string][]layer.ID)
	for id, s := range m.first {
		where[s.label] = append(where[s.label], id)
	}
	matched := 0
	for _, o := range m.w.ops {
		for i, label := range o.bodies {
			ids := where[label]
			slices.SortFunc(ids, func(a, b layer.ID) int { return m.entered[a].order - m.entered[b].order })
			matched += len(ids)
			for _, id := range ids[min(1, len(ids)):] {
				if !m.movedIn[id] {
					m.w.report.Doubled++
					m.w.violation("G3: doubled: %s is there as %v", label, ids)
				}
			}
			duplicate := o.outcome == done && o.duplicate[i]
			switch {
			case duplicate && len(ids) > 0:
				m.w.report.Doubled++
				m.w.violation("G3: %s is a duplicate of %s, and is there as %v", label, o.sent[i], ids)
			case duplicate:
				m.compareDuplicate(o, i)
			case o.outcome == done && len(ids) == 0:
				m.w.report.Lost++
				m.w.violation("G3: lost: %s of %s", label, o)
			case o.outcome == done && ids[0] != o.sent[i]:
				m.w.violation("%s: sent as %s, there as %s", label, o.sent[i], ids[0])
			case o.outcome == refused && len(ids) > 0:
				m.w.report.Unexpected++
				m.w.violation("G3: unexpected: %s of %s, which was refused", ids[0], o)
			case o.outcome == unknown && len(ids) > 0:
				m.w.report.Recovered++
				m.w.mark("enqueue of unknown outcome found")
			}
			if len(ids) == 0 {
				continue
			}
			m.compareMessage(o, i, ids[0])
			if r := m.entered[ids[0]]; o.outcome == done && !o.maybeAt(r) {
				m.w.violation("%s: committed at step %d, outside its call: %s", label, r.step, o)
			}
			if first := m.firstOf(o, where); first != m.entered[ids[0]] {
				m.w.violation("%s of %s was not committed with the others", label, o)
			}
		}
		if o.full != "" {
			m.compareRefusal(o)
		}
	}
	for _, s := range m.first {
		if s.replayOf != "" {
			matched++ // see compareReplays
		}
	}
	if matched != len(m.entered) {
		m.w.report.Unexpected += len(m.entered) - matched
		m.w.violation("G3: unexpected: %d items entered, %d were enqueued", len(m.entered), matched)
	}
}

// firstOf is where the first of an enqueue's messages entered that is no duplicate.
func (m *model) firstOf(o *op, where map[string][]layer.ID) *record {
	for _, label := range o.bodies {
		if ids := where[label]; len(ids) > 0 {
			return m.entered[ids[0]]
		}
	}
	return nil
}

// compareMessage: a message is there as it was sent.
func (m *model) compareMessage(o *op, i int, id layer.ID) {
	s, sent, config := m.first[id], o.messages[i], m.w.knobs.config
	if p := m.w.knobs.plan; p != nil && sortedFacets(sent.Headers, p) != sortedFacets(s.headers, p) {
		m.w.violation("%s: sent with %v, there with %v", s.label, sent.Headers, s.headers)
	}
	waiting := m.compareWaiting(o, i, id)
	if id.Group != o.groups[i] && !waiting {
		m.w.violation("%s: enqueued into %q, there as %s", s.label, o.groups[i], id)
	}
	if s.body != string(sent.Body) {
		m.w.violation("%s: sent with %d bytes, there with %d: %.40q, %.40q", s.label, len(sent.Body), len(s.body), sent.Body, s.body)
	}
	if !maps.Equal(s.headers, sent.Headers) {
		m.w.violation("%s: sent with the headers %v, there with %v", s.label, sent.Headers, s.headers)
	}
	due := int64(0)
	switch {
	case sent.AtOnce:
		due = m.w.knobs.atOnce(s.enqueuedMS)
	case !sent.DeliverAt.IsZero():
		if due = (sent.DeliverAt.UnixNano() + 999_999) / 1_000_000; due <= s.enqueuedMS {
			due = m.w.knobs.atOnce(s.enqueuedMS)
		}
	case sent.Delay > 0:
		due = s.enqueuedMS + sent.Delay.Milliseconds()
	case config.Delay >= time.Millisecond && !config.RetroactiveDelay: // the queue keeps whole milliseconds
		due = s.enqueuedMS + config.Delay.Milliseconds()
	}
	if s.dueMS != due && !waiting {
		m.w.violation("%s: is due at %d, should be at %d", s.label, s.dueMS, due)
	}
	if dedupID := dedupIDOf(&sent, config.DedupByContent); s.dedupID != dedupID {
		m.w.violation("%s: has the dedup id %q, should have %q", s.label, s.dedupID, dedupID)
	}
}

// dedupIDOf returns the dedup id of a message.
func dedupIDOf(sent *layer.Message, byContent bool) string {
	if sent.DedupID != "" || !byContent {
		return sent.DedupID
	}
	sum := sha256.Sum256(sent.Body)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// compareDuplicate: the message that a duplicate is one of was there, and was still remembered.
func (m *model) compareDuplicate(o *op, i int) {
	id, config := o.sent[i], m.w.knobs.config
	r, sent := m.entered[id], &o.messages[i]
	if r == nil || r.step > o.end {
		m.w.violation("G3: %s is a duplicate of %s, which is not there: %s", o.bodies[i], id, o)
		return
	}
	want := m.dedupKey(sent.Group, dedupIDOf(sent, config.DedupByContent))
	if s := m.first[id]; m.dedupKey(id.Group, s.dedupID) != want {
		m.w.violation("G3: %s is a duplicate of %s, which has the dedup id %q", o.bodies[i], id, s.dedupID)
	}
	f := m.finished[id]
	there := len(f) == 0 && m.discarded[id] == nil && !m.moved[id] || len(f) > 0 && f[0].r.to >= o.begin ||
		m.discarded[id] != nil && m.discarded[id].to >= o.begin || m.moved[id]
	begunMS := o.beginAt.Add(m.w.skewOf(o.who)).UnixMilli()
	inWindow := begunMS < m.first[id].enqueuedMS+config.DedupWindow.Milliseconds()
	if m.w.knobs.clocks {
		inWindow = m.w.handleOf(o.who).mayLast(time.UnixMilli(r.atMS), o.beginAt, config.DedupWindow)
	}
	lasts := there || !config.DedupForPending && inWindow
	if !lasts && !m.movedIn[id] {
		m.w.violation("G3: %s is a duplicate of %s, which is remembered no more: %s", o.bodies[i], id, o)
	}
	if !there && !m.movedIn[id] && m.voidedBefore(id, o.begin) {
		m.w.violation("G3: %s is a duplicate of %s, which was purged before: %s", o.bodies[i], id, o)
	}
}

// voidedBefore reports whether a purge that was applied before a step has made void what is remembered of a message.
func (m *model) voidedBefore(id layer.ID, step int) bool {
	return slices.ContainsFunc(m.voids, func(v voidAt) bool {
		return v.r.to < step && m.entered[id].rv <= v.r.rv && (v.group == "" || v.group == id.Group)
	})
}

// compareRefusal: for want of room a call is refused only if there was none at some moment of it.
func (m *model) compareRefusal(o *op) {
	most, n := 0, 0
	for i, s := range m.sizes[o.full] {
		if s.from > o.end {
			break
		}
		if sizes := m.sizes[o.full]; s.to >= o.begin || i+1 == len(sizes) || sizes[i+1].to >= o.begin {
			most = max(most, s.n)
		}
	}
	for _, g := range o.groups {
		if g == o.full {
			n++
		}
	}
	// It may have shared a transaction with others, whose messages came in addition to those at the read version.
	for id, r := range m.entered {
		if id.Group == o.full && r.who == o.who && r.step >= o.begin && r.step <= o.end {
			most++
		}
	}
	if limit := m.w.knobs.config.MaxWaiting; limit == 0 || most+n <= limit {
		m.w.violation("%s was refused because of %q, which had %d items of %d at most, and %d were to come", o, o.full, most, limit, n)
	}
}

// compareFinished: each finished item was finished once, by the operation that says so, and only by an operation that
// was allowed to.
func (m *model) compareFinished() {
	candidates := make(map[layer.ID][]*op)
	for _, o := range m.w.ops {
		ids := o.ids
		if o.kind == "take" && o.outcome != done {
			ids = o.tried
		}
		for _, id := range ids {
			if !slices.Contains(candidates[id], o) {
				candidates[id] = append(candidates[id], o)
			}
		}
	}
	effects := make(map[layer.ID]int)
	for id, all := range m.finished {
		if len(all) > 1 {
			m.w.report.Doubled++
			m.w.violation("G3: doubled: %s was finished %d times", id, len(all))
		}
		f := all[0]
		sure, rest, maybe := 0, 0, 0
		effect, always, acked := false, true, true
		for _, o := range candidates[id] {
			if !o.mayFinish(&f) {
				continue
			}
			effect, always = effect || o.effect, always && o.effect
			acked = acked && (o.settle || o.by == byWorker || o.kind == "take")
			switch {
			case o.outcome != done:
				maybe++
			case o.all:
				rest++
			default:
				sure++
			}
		}
		if sure == 0 {
			sure = rest // else what another with the same claim had acked by its id was not in that rest
		}
		aged := sure == 0 && m.agedOut(&f)
		if aged {
			m.w.mark("aged out")
		}
		swept := aged || m.purged(id, f)
		if sure+maybe > 0 && !swept && acked && f.archived != (m.w.knobs.config.Archive > 0) {
			m.w.violation("%s was finished at step %d; in the archive: %t", id, f.r.step, f.archived)
		}
		if sure+maybe == 0 && !swept {
			m.w.report.Unexpected++
			m.w.violation("G3: unexpected: %s was finished at step %d (under a claim: %t) by nobody of %v", id, f.r.step, f.under, candidates[id])
		}
		if sure > 1 {
			m.w.violation("G3: %s was finished by %d operations: %v", id, sure, candidates[id])
		}
		if effect {
			effects[id] = 1
		}
		if effect && always && !swept {
			effects[id] = 2 // it must be there
		}
	}
	for id, ops := range candidates {
		for _, o := range ops {
			if o.outcome == done && len(m.finished[id]) == 0 {
				m.w.report.Lost++
				m.w.violation("G3: %s: %s was never finished", o, id)
			}
		}
	}
	m.compareEffects(effects)
	for id := range m.entered {
		if !m.isThere(id) && len(m.finished[id]) == 0 && !m.moved[id] && m.discarded[id] == nil {
			m.w.report.Lost++
			m.w.violation("G3: lost: %s", id)
		}
	}
}

// mayFinish reports whether the operation may have finished an item so.
func (o *op) mayFinish(f *finished) bool {
	switch {
	case !o.maybeAt(f.r):
		return false
	case o.is("take") && o.where != nil:
		lane := laneText(groupOfLane(f.lane), o.where)
		return !f.overIn[lane] && !slices.ContainsFunc(f.held, func(held string) bool { return meet(held, lane) })
	case o.is("take") && o.plain:
		return !f.overIn[freeLaneOf(groupOfLane(f.lane))] && len(f.held) == 0
	case o.is("take") && len(f.held) > 0:
		return false
	case o.is("take") && (f.over || f.claimed()):
		return false // it takes heads, of groups without a claim
	case o.by == byWorker:
		return f.under && o.who == f.r.who && (o.handled || o.effect)
	case o.settle:
		return f.under && f.lock.token == o.token && f.lane == o.group
	}
	if o.kind == "take" && (f.over || f.claimed()) {
		return false // it takes heads, of groups without a claim
	}
	return !f.under || !f.claimed()
}

// agedOut reports whether an item was dropped because it had waited too long. It may have been in the hands of a claim that
// the same transaction gave back; whose right that was, is held to when the claim ends.
func (m *model) agedOut(f *finished) bool {
	c := m.w.knobs.config
	if c.Retention == 0 || c.DeadLetterExpired || m.w.knobs.clocks {
		return false
	}
	if f.under && f.lock.endMS > f.r.nowMS && m.claims[claimKey{f.lane, f.lock.token}].ends != f.r.step {
		return false
	}
	easedMS := m.easedMS(f)
	if max(f.item.enqueuedMS, f.item.dueMS, easedMS)+c.Retention.Milliseconds() >= f.r.nowMS {
		return false
	}
	if easedMS > f.item.enqueuedMS {
		m.w.mark("expired after a shorter delay")
	}
	return true
}

// purged reports whether a purge may have removed the item.
func (m *model) purged(id layer.ID, f finished) bool {
	for _, o := range m.w.ops {
		if o.sweeping && (o.group == "" || o.group == id.Group) && o.maybeAt(f.r) && (o.forcing || !f.under || f.lock.endMS <= f.r.nowMS) {
			return true
		}
	}
	return false
}

// compareEffects: the effect of a transaction that finishes an item is there exactly if the item is finished by it.
func (m *model) compareEffects(want map[layer.ID]int) {
	rows := m.w.rows(kv.PrefixRange([]byte(effectPrefix)), 0)
	seen := make(map[layer.ID]bool)
	for _, row := range rows {
		id, err := layer.ParseID(string(row.Key[len(effectPrefix):]))
		if err != nil {
			m.w.violation("effect: %v", err)
			continue
		}
		seen[id] = true
		if n := binary.LittleEndian.Uint64(row.Value); n != 1 || want[id] == 0 {
			m.w.violation("G3: the effect of %s happened %d times, its item was finished with it: %t", id, n, want[id] > 0)
		}
	}
	for id, n := range want {
		if n == 2 && !seen[id] {
			m.w.violation("G3: %s was finished, and the effect that goes with it did not happen", id)
		}
	}
	m.w.marks["effect with its ack"] += len(seen)
}

// compareClaims: every returned claim was committed as returned, and to one receive only, except its repetitions.
func (m *model) compareClaims() {
	returned := make(map[claimKey]*op)
	mayRepeat := make(map[string][]*op)
	for _, o := range m.w.ops {
		if o.attemptID != "" {
			mayRepeat[o.attemptID] = append(mayRepeat[o.attemptID], o)
		}
	}
	for _, o := range m.w.ops {
		for _, c := range o.claims {
			key := claimKey{claimLane(c), c.Token}
			first := returned[key]
			repeats := first != nil && o.attemptID != "" && o.attemptID == first.attemptID
			if first != nil && !repeats {
				m.w.violation("G2: claim %d of %q was returned to %s and to %s", c.Token, c.Group, first, o)
			}
			if first == nil {
				returned[key] = o
			}
			was, ok := m.claims[key]
			maker := o
			for _, other := range mayRepeat[o.attemptID] {
				if ok && other.maybeAt(was.r) && was.r.who == other.who {
					maker = other
				}
			}
			if !ok || !maker.maybeAt(was.r) {
				m.w.violation("G2: claim %d of %q was returned to %s and not committed in it", c.Token, c.Group, o)
				continue
			}
			if was.r.who != maker.who {
				m.w.violation("G2: claim %d of %q of handle %d was returned to %s", c.Token, c.Group, was.r.who, o)
			}
			if maker != o {
				m.w.mark("claim of a repeated receive")
			}
			m.compareItems(o, c, &was)
			if o.wantsState && o.attemptID == "" && !m.mayHaveHad(c.Group, string(c.State), &was, o) {
				m.w.violation("claim %d of %q was returned with the state %q, it was %q", c.Token, c.Group, c.State, was.state)
			}
		}
		for i := range o.items {
			if item := &o.items[i]; o.outcome == done && len(m.finished[item.ID]) > 0 && m.finished[item.ID][0].item.body != string(item.Body) {
				m.w.violation("G3: %s has the body %.40q and was taken with %.40q", item.ID, m.finished[item.ID][0].item.body, item.Body)
			}
		}
		if o.item != nil && !m.hadBody(o.item.ID, string(o.item.Body)) {
			m.w.violation("G3: %s was handled with the body %.40q", o.item.ID, o.item.Body)
		}
	}
	for key, c := range m.claims {
		if returned[key] == nil && !m.w.handleOf(c.r.who).consumed {
			m.w.mark("claim that nobody was told of")
			m.untold(key, c)
		}
	}
}

// untold checks that a claim that no call returned has a cause. The caller may have left before, or may never have
// learned of the outcome. Or the claim was lost before its transaction was known to be applied. For claims of items in
// turn, an earlier claim may have been lost.
func (m *model) untold(key claimKey, c claimed) {
	if m.w.handleOf(c.r.who).consumed {
		return // its worker may have been told
	}
	for _, o := range m.w.ops {
		if o.who != c.r.who || o.begin > c.r.step || !strings.Contains(o.kind, "receive") {
			continue
		}
		lost := o.kind == "ack-receive" && o.outcome == done && len(o.claims) == 0 // its receive may have failed after the ack
		if o.limited || o.outcome == unknown || lost || m.lostBy(o.end, c) {
			return
		}
	}
	m.w.violation("G3: claim %d of %q, committed at step %d by handle %d, was returned to nobody", key.token, key.group, c.r.step, c.r.who)
}

// lostBy reports whether a claim, or its heartbeat, or a claim of the same commit of an item before it in turn, had
// ended by a step.
func (m *model) lostBy(step int, c claimed) bool {
	ended := func(c claimed) bool {
		return c.r.step <= step && (c.ends > 0 && c.ends <= step || c.alone > 0 && c.alone <= step)
	}
	if ended(c) || !m.w.knobs.inTurn || len(c.out) == 0 {
		return ended(c)
	}
	for _, before := range m.claims {
		if before.r == c.r && ended(before) && slices.ContainsFunc(before.out, func(id layer.ID) bool {
			return id.Group == c.out[0].Group && id.Index < c.out[0].Index
		}) {
			return true
		}
	}
	return false
}

// compareItems: a claim is returned with its items; a repeated receive, only with those that are left.
func (m *model) compareItems(o *op, c *layer.Claim, was *claimed) {
	at := 0
	for i := range c.Items {
		item := &c.Items[i]
		n := slices.Index(was.out[at:], item.ID)
		if n < 0 || o.attemptID == "" && n > 0 {
			m.w.violation("G3: claim %d of %q has %v and was returned with %s to %s", c.Token, c.Group, was.out, item.ID, o)
			return
		}
		at += n + 1
		if body := was.bodies[at-1]; body != string(item.Body) {
			m.w.violation("G3: %s has the body %.40q and was delivered with %.40q", item.ID, body, item.Body)
		}
	}
	if o.attemptID == "" && at != len(was.out) {
		m.w.violation("G3: claim %d of %q has %v and was returned with %d of them", c.Token, c.Group, was.out, len(c.Items))
	}
}

// hadBody reports whether an item has had that body at any time.
func (m *model) hadBody(id layer.ID, body string) bool {
	return m.first[id].body == body || m.edits[body] != nil
}

// compareStates: a state is there if it was set, and was set together with the ack that it came with.
func (m *model) compareStates() {
	for _, o := range m.w.ops {
		if !o.sets || len(o.state) == 0 {
			continue
		}
		r := m.states[string(o.state)]
		switch {
		case o.outcome == done && (r == nil || !o.maybeAt(r)):
			m.w.violation("%s: the state %s was not set", o, o.state)
		case o.outcome == refused && r != nil:
			m.w.violation("%s: the state %s was set at step %d", o, o.state, r.step)
		case o.outcome == done && len(o.ids) > 0 && !slices.ContainsFunc(m.finished[o.ids[0]], func(f finished) bool { return f.r == r }):
			m.w.violation("%s: the state %s was set without the ack", o, o.state)
		}
	}
}

// compareEdits: a body is changed if and only if the edit says so.
func (m *model) compareEdits() {
	known := make(map[string]bool)
	for _, o := range m.w.ops {
		if o.body == "" {
			continue
		}
		known[o.body] = true
		r := m.edits[o.body]
		if o.outcome == done && (r == nil || !o.maybeAt(r)) || o.outcome == refused && r != nil {
			m.w.violation("%s: outcome %d; edited: %t", o, o.outcome, r != nil)
		}
	}
	for body := range m.edits {
		if !known[body] {
			m.w.violation("an item was rewritten with %.40q by nobody", body)
		}
	}
}

// compareDiscards: only an operator discards a dead letter.
func (m *model) compareDiscards() {
	for id, r := range m.discarded {
		if !slices.ContainsFunc(m.w.ops, func(o *op) bool { return o.discarding && o.maybeAt(r) }) {
			m.w.report.Lost++
			m.w.violation("G3: lost: the dead letter %s was discarded at step %d by no call", id, r.step)
		}
	}
}

// compareHistories uses only the answers that the actors saw. No item is delivered after it was finished, and repeated
// deliveries are counted.
func (w *world) compareHistories(m *model) {
	finishedAt := make(map[layer.ID]int)
	for _, o := range w.ops {
		if o.outcome != done {
			continue
		}
		for _, id := range o.ids {
			// An ack of all items does not finish those that another with the same claim has advanced.
			if f := m.finished[id]; o.all && (len(f) == 0 || f[0].r.step > o.end) {
				continue
			}
			finishedAt[id] = o.end
		}
	}
	repeated := func(o *op, p *op) bool { return o.attemptID != "" && o.attemptID == p.attemptID }
	versions := make(map[int64]*op)
	for _, o := range w.ops {
		if !strings.HasPrefix(o.kind, "configure") || o.outcome != done {
			continue
		}
		if other := versions[o.token]; other != nil {
			w.violation("version %d of the configuration is that of %s and of %s", o.token, other, o)
		}
		versions[o.token] = o
	}
	deliveries := make(map[layer.ID]int)
	last := make(map[string]*layer.Claim)
	lastOp := make(map[string]*op)
	for _, o := range w.ops {
		for _, c := range o.claims {
			for _, item := range c.Items {
				if end, ok := finishedAt[item.ID]; ok && end < o.begin {
					w.report.Doubled++
					w.violation("G3: %s was delivered by %s, after it had been finished at step %d", item.ID, o, end)
				}
				if deliveries[item.ID]++; deliveries[item.ID] == 2 {
					w.report.Recovered++
				}
			}
			lane := claimLane(c)
			if p := last[lane]; p != nil && lastOp[lane].end < o.begin && c.Token <= p.Token && !repeated(o, lastOp[lane]) {
				w.violation("G2: token %d of %q was returned after %d", c.Token, c.Group, p.Token)
			}
			if o.over { // one that died with its claim has no end, after which another could begin
				last[lane], lastOp[lane] = c, o
			}
		}
	}
}
