package sim

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// Owners: programs that change messages of their own while these wait (Reschedule, Replace), and look for them (Find,
// Peek, GroupState). The checks compare the result of a change with its call. They compare every answer with the state
// of the queue at some moment between the begin and the end of the call.

// owned: messages that are delayed and changed all the time, with claims, different clocks, and slow commits.
func (k *knobs) owned(rng *rand.Rand) {
	k.seeking(rng)
	k.owners, k.operators, k.operations = 2+rng.IntN(3), rng.IntN(2), []int{7, 10, 11, 15}
	k.delayed, k.named, k.same, k.state = 0.5*rng.Float64(), 0.5, 0, 0.3
	k.config.DedupByContent, k.config.DedupForPending = false, rng.IntN(2) == 1
	k.config.DedupWindow = time.Second + time.Duration(rng.Int64N(int64(time.Minute)))
	k.config.Lease, k.think = layer.MinLease, time.Second
	k.takers = rng.IntN(2)
	if rng.IntN(2) == 0 {
		k.apart(rng)
	}
}

// owned is a message as its owner knows it.
type owned struct {
	id             layer.ID
	label, dedupID string
	group          string // of the message: of a duplicate, where it was sent to
}

// owns notes the messages that a call has sent.
func (w *world) owns(o *op) {
	for i, id := range o.sent {
		if !o.duplicate[i] {
			w.ownedBy = append(w.ownedBy, owned{id, o.bodies[i], o.messages[i].DedupID, o.groups[i]})
		}
	}
}

// ownMessages is the role of an owner.
func (a *actor) ownMessages() {
	for a.more() {
		n := len(a.w.ownedBy)
		if n == 0 {
			a.sleep(a.below(a.w.knobs.think))
			continue
		}
		mine := a.w.ownedBy[a.rng.IntN(n)]
		if a.rng.IntN(4) > 0 { // which may still wait
			mine = a.w.ownedBy[n-1-a.rng.IntN(min(n, 6))]
		}
		switch a.rng.IntN(8) {
		case 0, 1, 2:
			a.reschedule(mine)
		case 3, 4:
			if a.w.knobs.plan == nil { // its facets would go with the headers
				a.replace(mine)
			}
		case 5:
			a.find(mine)
		case 6:
			a.peek(mine.id.Group)
		case 7:
			a.groupState(mine.id.Group)
		}
		a.sleep(a.below(a.w.knobs.think))
	}
}

func (a *actor) reschedule(mine owned) {
	o := &op{kind: "reschedule", group: mine.id.Group, retimes: mine.id}
	switch now := time.Now().Add(a.w.skewOf(a.who)); a.rng.IntN(5) {
	case 0: // at once
	case 1:
		o.dueAt = now.Add(-a.below(maxDelay))
	default:
		o.dueAt = now.Add(a.below(maxDelay))
	}
	err := a.once(o, func(ctx context.Context) error { return a.q.Reschedule(ctx, mine.id, o.dueAt) },
		func(ctx context.Context, tx kv.Tx) error { return a.q.RescheduleTx(ctx, tx, mine.id, o.dueAt) })
	if err == nil {
		a.w.mark("rescheduled")
	}
}

func (a *actor) replace(mine owned) {
	a.n++
	o := &op{kind: "replace", group: mine.id.Group, edits: mine.id, body: fmt.Sprintf("replaced a%d.%d", a.id, a.n)}
	if a.rng.IntN(8) == 0 {
		o.body += strings.Repeat(string(rune('a'+a.rng.IntN(26))), 90_000+a.rng.IntN(100_000)) // in parts
	}
	o.headers = map[string]string{labelHeader: mine.label, "by": o.body[:min(len(o.body), 20)]}
	body, headers := o.lendBytes([]byte(o.body)), lendMap(o, o.headers)
	err := a.once(o, func(ctx context.Context) error { return a.q.Replace(ctx, mine.id, body, headers) },
		func(ctx context.Context, tx kv.Tx) error { return a.q.ReplaceTx(ctx, tx, mine.id, body, headers) })
	if err == nil {
		a.w.mark("replaced")
	}
}

func (a *actor) find(mine owned) {
	if mine.dedupID == "" {
		return
	}
	var f layer.Found
	o := &op{kind: "find", group: mine.group}
	o.seen = func(m *model) bool { return m.finds(mine, &f) }
	err := a.call(o, func(ctx context.Context) (err error) {
		f, err = a.q.Find(ctx, mine.group, mine.dedupID)
		return err
	})
	if err == nil {
		o.saw = fmt.Sprintf("%+v", f)
		a.w.mark("found " + string(f.Where))
	}
}

func (a *actor) peek(group string) {
	var items []layer.Item
	o := &op{kind: "peek", group: group}
	most := 1 + a.rng.IntN(5)
	o.seen = func(m *model) bool { return m.peeks(group, most, items) }
	err := a.call(o, func(ctx context.Context) (err error) {
		items, err = a.q.Peek(ctx, group, most, nil)
		return err
	})
	if err == nil && len(items) > 0 {
		o.saw = fmt.Sprintf("%d items of %d from %s on", len(items), most, items[0].ID)
		a.w.mark("peeked")
	}
}

func (a *actor) groupState(group string) {
	var state []byte
	o := &op{kind: "group-state", group: group}
	o.seen = func(m *model) bool { return string(m.db[keyFor("state", group)]) == string(state) }
	err := a.call(o, func(ctx context.Context) (err error) {
		state, err = a.q.GroupState(ctx, group)
		return err
	})
	if err == nil && len(state) > 0 {
		o.saw = string(state)
		a.w.mark("state of a group seen")
	}
}

// finds reports whether a message is where an answer says, in the state of the model.
func (m *model) finds(mine owned, f *layer.Found) bool {
	was, known := m.dedup[m.dedupKey(mine.group, mine.dedupID)]
	if !known || f.Where == layer.WhereUnknown {
		return !known && f.Where == layer.WhereUnknown
	}
	if f.ID != was.id {
		return false
	}
	g := m.group(f.ID.Group)
	s, there := g.items[f.ID]
	_, lock := m.holderOf(f.ID)
	switch {
	case there && lock.is("claim") && lock.has(f.ID) && lock.beat != "":
		return f.Where == layer.WhereInFlight && f.Token == lock.token
	case there && lock.is("claim") && lock.has(f.ID):
		return f.Where == layer.WhereInFlight && f.Token == lock.token && f.Until.UnixMilli() == lock.endMS
	case there:
		ahead := int64(0)
		for id := range g.items {
			if before(id, f.ID) {
				ahead++
			}
		}
		due := int64(0)
		if !f.DeliverAt.IsZero() {
			due = f.DeliverAt.UnixMilli()
		}
		return f.Where == layer.WhereWaiting && due == s.dueMS && (f.Ahead == ahead || f.AheadMore && f.Ahead < ahead)
	case m.db[itemKeyFor("dead", f.ID)] != nil:
		return f.Where == layer.WhereDead
	case m.db[itemKeyFor("archive", f.ID)] != nil:
		return f.Where == layer.WhereArchived
	}
	return f.Where == layer.WhereGone
}

// peeks reports whether a group begins with items, in the state of the model. Large bodies may cut a look short.
func (m *model) peeks(group string, most int, items []layer.Item) bool {
	g := m.group(group)
	ids := make([]layer.ID, 0, len(g.items))
	for id := range g.items {
		ids = append(ids, id)
	}
	slices.SortFunc(ids, func(a, b layer.ID) int {
		if before(a, b) {
			return -1
		}
		return 1
	})
	if len(items) != min(most, len(ids)) {
		size := 0
		for _, id := range ids[:min(most, len(ids))] {
			size += len(g.items[id].body)
		}
		if len(items) > len(ids) || len(items) == 0 || size <= 1<<20 {
			return false
		}
	}
	for i := range items {
		if items[i].ID != ids[i] || string(items[i].Body) != g.items[ids[i]].body {
			return false
		}
	}
	return true
}

// looking holds the answers of calls that change nothing to the states that they may have seen.
type looking struct {
	looks []*op // that have an answer which no state has given yet, by their begins
	from  int   // the step from which on the state before the record under replay was there
}

func newLooking(w *world) *looking {
	l := &looking{}
	for _, o := range w.ops {
		if o.seen != nil && o.outcome == done {
			l.looks = append(l.looks, o)
		}
	}
	return l
}

// look lets calls see the state as it is before a record is applied; r is nil after the last.
func (m *model) look(r *record) {
	l := m.looking
	l.looks = slices.DeleteFunc(l.looks, func(o *op) bool {
		switch {
		case l.from > o.end:
			m.w.violation("%s: nothing was like that at any moment of the call: %s", o, o.saw)
			return true
		case r != nil && r.to < o.begin:
			return false
		}
		return o.seen(m)
	})
	if r == nil {
		for _, o := range l.looks {
			m.w.violation("%s: nothing was like that at any moment of the call: %s", o, o.saw)
		}
		return
	}
	l.from = r.from
}

// retimed is a change of the time of an item by a reschedule.
type retimed struct {
	r     *record
	dueMS int64
	by    []*op // who may have made it
}

// dueMS is when a reschedule makes an item due, up to the clock of its transaction if the time is over by then.
func (o *op) dueMS() int64 {
	if o.dueAt.IsZero() {
		return 0
	}
	return (o.dueAt.UnixNano() + 999_999) / 1_000_000
}

// mayRetime reports whether a reschedule may have made an item due at dueMS with a record.
func (o *op) mayRetime(r *record, id layer.ID, dueMS int64) bool {
	if o.retimes != id || !o.is("reschedule") || !o.maybeAt(r) {
		return false
	}
	return dueMS == o.dueMS() || o.dueMS() <= r.nowMS && r.begunMS <= dueMS && dueMS <= r.nowMS
}

// retime follows a change of the time of an item, if a reschedule may have made it.
func (m *model) retime(id layer.ID, was, is stored) bool {
	var by []*op
	for _, o := range m.w.ops {
		if o.mayRetime(m.r, id, is.dueMS) {
			by = append(by, o)
		}
	}
	if len(by) == 0 {
		return false
	}
	// An operator that ends the delay of the group's head leaves the same state as a reschedule to now.
	ended := is.dueMS == m.w.knobs.atOnce(is.enqueuedMS) || m.madeDue(is.dueMS, was.dueMS)
	for _, o := range m.w.ops {
		if ended && o.is("retry-now") && groupOfLane(o.group) == id.Group && o.maybeAt(m.r) {
			by = append(by, o)
		}
	}
	m.retimes[id] = append(m.retimes[id], retimed{m.r, is.dueMS, by})
	switch {
	case is.dueMS > was.dueMS:
		m.w.mark("rescheduled to later")
	case is.dueMS < was.dueMS:
		m.w.mark("rescheduled to earlier")
	}
	return true
}

// headersOf are the headers of a stored item.
func headersOf(value []byte) map[string]string {
	packed, _, err := headed(value)
	if err != nil {
		return nil
	}
	t, err := tuple.Unpack(packed)
	if err != nil || len(t) < 2 {
		return nil
	}
	headers, _ := t[1].(tuple.Tuple)
	all := make(map[string]string)
	for i := 0; i+1 < len(headers); i += 2 {
		k, _ := headers[i].(string)
		all[k], _ = headers[i+1].(string)
	}
	return all
}

// compareReschedules: a call that returned that a message was rescheduled has done so, once, or there was nothing to do
// because both times were over. A message is not delivered before its time (see model.claim and taken).
func (m *model) compareReschedules() {
	for _, o := range m.w.ops {
		if !o.is("reschedule") {
			continue
		}
		alone, there := 0, false
		for _, t := range m.retimes[o.retimes] {
			if !slices.Contains(t.by, o) {
				continue
			}
			there = true
			if len(t.by) == 1 {
				alone++
			}
		}
		if alone > 1 {
			m.w.violation("G3: %s happened %d times", o, alone)
		}
		if o.outcome == done && !there && !m.needless(o) {
			m.w.violation("%s, to %d: the message was not rescheduled", o, o.dueMS())
		}
	}
}

// needless reports whether a message was due already at some moment of a reschedule to a time that was over, too.
func (m *model) needless(o *op) bool {
	endMS := o.endAt.Add(m.w.skewOf(o.who)).UnixMilli() + 1
	if o.dueMS() > endMS {
		return false
	}
	for i, t := range m.dueLog[o.retimes] {
		next := int(^uint(0) >> 1)
		if log := m.dueLog[o.retimes]; i+1 < len(log) {
			next = log[i+1].r.to
		}
		if t.r.from <= o.end && next >= o.begin && t.dueMS <= endMS {
			return true
		}
	}
	return false
}

// compareReplaced: a message has the headers that it was given with its body.
func (m *model) compareReplaced(id layer.ID, s stored) {
	for _, o := range m.w.ops {
		if o.headers == nil || o.body != s.body {
			continue
		}
		got := headersOf(s.value)
		if !maps.Equal(got, o.headers) || o.edits != id {
			m.violation("%s: %s has the headers %v", o, id, got)
		}
		m.w.mark("replaced in its place")
	}
}
