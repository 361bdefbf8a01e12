package sim

import (
	"bytes"
	"encoding/binary"
	"slices"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// verify replays the records in commit order, and compares with what the actors were told and with what is left.
func (w *world) verify() {
	m := newModel(w)
	rows := w.rows(kv.PrefixRange([]byte(recordPrefix)), 0)
	w.report.Commits = len(rows)
	for i, row := range rows {
		r, err := unpackRecord(row.Value)
		if err != nil {
			w.violation("%v", err)
			return
		}
		r.version, r.order = int64(binary.BigEndian.Uint64(row.Key[len(recordPrefix):])), i
		m.apply(&r)
		w.markOutcome(&r)
	}
	m.compareState()
	m.compareEnqueues()
	m.compareFinished()
	m.compareClaims()
	w.compareHistories(m)
}

// markOutcome notes which kinds of work had an unknown outcome and were applied.
func (w *world) markOutcome(r *record) {
	code := w.outcomes[attemptID{r.who, r.tx, r.attempt}]
	if code == 0 {
		return
	}
	suffix := " applied, and unknown"
	if code == kv.CodeTransactionTimedOut {
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

// compareEnqueues: what was enqueued is there once, in one transaction, under the ids that were returned.
func (m *model) compareEnqueues() {
	where := make(map[string][]layer.ID)
	for id := range m.entered {
		where[bodyOf(m.values[id])] = append(where[bodyOf(m.values[id])], id)
	}
	redriven := make(map[string]bool)
	for _, o := range m.w.ops {
		if o.kind == "redrive" {
			redriven["to the tail"] = true
		}
	}
	matched := 0
	for _, o := range m.w.ops {
		if len(o.bodies) == 0 {
			continue
		}
		for i, body := range o.bodies {
			ids := where[body]
			slices.SortFunc(ids, func(a, b layer.ID) int { return int(m.entered[a].order - m.entered[b].order) })
			matched += len(ids)
			if len(ids) > 1 && !redriven["to the tail"] {
				m.w.report.Doubled++
				m.w.violation("G3: doubled: %s is there as %v", body, ids)
			}
			switch {
			case o.outcome == done && len(ids) == 0:
				m.w.report.Lost++
				m.w.violation("G3: lost: %s of %s", body, o)
			case o.outcome == done && ids[0] != o.sent[i]:
				m.w.violation("%s: sent as %s, there as %s", body, o.sent[i], ids[0])
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
			if ids[0].Group != o.groups[i] {
				m.w.violation("%s: enqueued into %q, there as %s", body, o.groups[i], ids[0])
			}
			if r := m.entered[ids[0]]; o.outcome == done && !o.maybeAt(r) {
				m.w.violation("%s: committed at step %d, outside its call: %s", body, r.step, o)
			}
			if first := where[o.bodies[0]]; len(first) == 0 || m.entered[first[0]] != m.entered[ids[0]] {
				m.w.violation("%s and %s of one enqueue were not committed together", o.bodies[0], body)
			}
		}
	}
	if matched != len(m.entered) {
		m.w.report.Unexpected += len(m.entered) - matched
		m.w.violation("G3: unexpected: %d items entered, %d were enqueued", len(m.entered), matched)
	}
}

// bodyOf is the body of an item's value: what follows the envelope.
func bodyOf(value []byte) string {
	if len(value) < 2 {
		return ""
	}
	n, width := binary.Uvarint(value[1:])
	return string(value[1+width+int(n):])
}

// compareFinished: what was finished was so once, by the operation that says so, and by nobody whom it did not belong to.
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
		sure, maybe := 0, 0
		effect := false
		for _, o := range candidates[id] {
			if o.kind == "take" && (f.over || f.lock != nil && f.lock.endMS > f.r.nowMS) {
				continue // it takes heads, of groups that nobody holds
			}
			if !o.maybeAt(f.r) || o.settle && !(f.under && f.lock.token == o.token) || !o.settle && f.under && f.lock.endMS > f.r.nowMS {
				continue
			}
			effect = effect || o.effect
			if o.outcome == done {
				sure++
			} else {
				maybe++
			}
		}
		if sure+maybe == 0 && !m.purged(id, f) {
			m.w.report.Unexpected++
			m.w.violation("G3: unexpected: %s was finished at step %d (under a claim: %t) by nobody of %v", id, f.r.step, f.under, candidates[id])
		}
		if sure > 1 {
			m.w.violation("G3: %s was finished by %d operations: %v", id, sure, candidates[id])
		}
		if effect {
			effects[id] = 1
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
		if _, there := m.group(id.Group).items[id]; !there && len(m.finished[id]) == 0 && m.db[deadKey(id)] == nil && !m.moved(id) {
			m.w.report.Lost++
			m.w.violation("G3: lost: %s", id)
		}
	}
}

// moved reports whether a dead letter may have gone to the tail under another id.
func (m *model) moved(id layer.ID) bool {
	for other := range m.entered {
		if other != id && bodyOf(m.values[other]) == bodyOf(m.values[id]) && m.entered[other].order > m.entered[id].order {
			return true
		}
	}
	return false
}

// purged reports whether a purge may have removed the item.
func (m *model) purged(id layer.ID, f finished) bool {
	for _, o := range m.w.ops {
		if o.sweeping && o.group == id.Group && o.maybeAt(f.r) && (o.forcing || !f.under || f.lock.endMS <= f.r.nowMS) {
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
			m.w.violation("G3: the effect of %s happened %d times, its item was finished with it %d times", id, n, want[id])
		}
	}
	m.w.marks["effect with its ack"] += len(seen)
}

// compareClaims: every claim that was returned was committed as returned, and to one receive alone.
func (m *model) compareClaims() {
	returned := make(map[claimKey]*op)
	for _, o := range m.w.ops {
		for _, c := range o.claims {
			key := claimKey{c.Group, c.Token}
			if first := returned[key]; first != nil {
				m.w.violation("G2: claim %d of %q was returned to %s and to %s", c.Token, c.Group, first, o)
			}
			returned[key] = o
			was, ok := m.claims[key]
			if !ok || !o.maybeAt(was.r) {
				m.w.violation("G2: claim %d of %q was returned to %s and not committed in it", c.Token, c.Group, o)
				continue
			}
			if was.r.who != o.who {
				m.w.violation("G2: claim %d of %q of handle %d was returned to %s", c.Token, c.Group, was.r.who, o)
			}
			var ids []layer.ID
			for _, item := range c.Items {
				ids = append(ids, item.ID)
				if bodyOf(m.values[item.ID]) != string(item.Body) {
					m.w.violation("G3: %s has the body %q and was delivered with %q", item.ID, bodyOf(m.values[item.ID]), item.Body)
				}
			}
			if !slices.Equal(ids, was.out) {
				m.w.violation("G3: claim %d of %q has %v and was returned with %v", c.Token, c.Group, was.out, ids)
			}
		}
		for _, item := range o.items {
			if o.outcome == done && bodyOf(m.values[item.ID]) != string(item.Body) {
				m.w.violation("G3: %s has the body %q and was taken with %q", item.ID, bodyOf(m.values[item.ID]), item.Body)
			}
		}
	}
	for key, c := range m.claims {
		if returned[key] == nil {
			m.w.mark("claim that nobody was told of")
			m.untold(key, c)
		}
	}
}

// untold holds a claim that no call returned to its causes: a caller that may have gone before, one who never learned of
// the outcome, or that it was lost before its transaction was known to have been applied.
func (m *model) untold(key claimKey, c claimed) {
	for _, o := range m.w.ops {
		if o.who != c.r.who || o.begin > c.r.step || o.kind != "receive" && o.kind != "ack-receive" {
			continue
		}
		if o.limited || o.outcome == unknown || c.ends > 0 && c.ends <= o.end && c.r.step <= o.end {
			return
		}
	}
	m.w.violation("G3: claim %d of %q, committed at step %d by handle %d, was returned to nobody", key.token, key.group, c.r.step, c.r.who)
}

// compareHistories looks at what the actors saw alone: nothing is delivered after it was finished, and what is
// delivered anew is counted.
func (w *world) compareHistories(m *model) {
	finishedAt := make(map[layer.ID]int)
	for _, o := range w.ops {
		if o.outcome != done {
			continue
		}
		for _, id := range o.ids {
			finishedAt[id] = o.end
		}
	}
	versions := make(map[int64]*op)
	for _, o := range w.ops {
		if o.kind != "configure" || o.outcome != done {
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
			if p := last[c.Group]; p != nil && lastOp[c.Group].end < o.begin && c.Token <= p.Token {
				w.violation("G2: token %d of %q was returned after %d", c.Token, c.Group, p.Token)
			}
			last[c.Group], lastOp[c.Group] = c, o
		}
	}
}
