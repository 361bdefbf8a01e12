package sim

import (
	"bytes"
	"encoding/binary"
	"maps"
	"math"
	"slices"
	"sort"
	"strings"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// The laws of subscriptions.
//
//   - A transaction writes a change for each item that it puts, removes or moves, and for nothing else.
//   - A new subscription begins with the changes behind the read version at which it began, or with the oldest.
//   - SubscribeTx commits each change that the subscription wants, once, in the order of the commits. It leaves out
//     only changes that were cleared for their age, and then its subscriber is told.
//   - A place moves only behind changes for which a handler of the same process has returned without an error.
//   - A call of a handler has changes in the order of the commits, without a gap, from no later than the place on, and
//     from no earlier than the place where its subscriber began.
//   - The lease of one process is not taken by another before it ends, by the clock of the other.
//   - One call at a time of each subscription, or of each group with Parallel; by several processes only if a lease
//     has ended.
//   - Changes are cleared when every subscription has seen them, or for their age.
//   - Every subscription comes to its end in bounded time when the faults have stopped (finishTopics).
//
// In runs without faults, with clocks that agree, and with handlers that may still outlive leases:
//
//   - No change is given again to a handler after one has returned from it without an error, and no two calls of a
//     subscription overlap.
//   - A change waits at most waitAtMost from its commit to its first handler, while a subscriber exists and no handler
//     runs.

// fed is a change as it was written.
type fed struct {
	kind  layer.ChangeKind
	id    layer.ID
	n     int
	text  string
	row   *feedRow
	group string
}

// feedRow is a row of changes.
type feedRow struct {
	r       *record
	key     []byte
	ms      int64
	cleared *record
}

// heldAt is a place of a subscription from a record on.
type heldAt struct {
	r     *record
	place int
	began bool // it is new
}

// audience is a subscription in the model.
type audience struct {
	topic   *topic
	there   bool
	began   *record // the record that made it
	place   int     // changes before it are done
	places  []heldAt
	ended   *record // the last of its name was removed by it, if any
	endedAt int     // and had come to this place
	skipped int     // changes that it has not seen before they were cleared
	reader  []byte
}

// feed is the changes of the queue, and the places of its subscriptions.
type feed struct {
	changes   []fed
	rows      []*feedRow
	audiences map[string]*audience
	at        map[string][]int // of changes, by their texts
}

func newFeed(w *world) *feed {
	f := &feed{audiences: make(map[string]*audience), at: make(map[string][]int)}
	for _, t := range w.knobs.topics {
		f.audiences[t.name] = &audience{topic: t}
	}
	return f
}

// stampedKey is the key that a SetVersionstampedKey has written.
func stampedKey(key []byte, stamp [10]byte) []byte {
	at := binary.LittleEndian.Uint32(key[len(key)-4:])
	k := bytes.Clone(key[:len(key)-4])
	copy(k[at:], stamp[:])
	return k
}

// noteStamped reports whether a write under a versionstamp belongs into the record.
func noteStamped(key []byte) bool {
	return bytes.HasPrefix(key, []byte(keyFor("change"))) || bytes.HasPrefix(key, []byte(journalPrefix))
}

// follow follows a record to the changes that it writes, clears, and hands on.
func (m *model) follow(r *record) {
	if m.w.knobs.config.Changes == 0 {
		return
	}
	journals := make(map[string][]string)
	for _, wr := range r.writes {
		if wr.kind == stamped {
			if name, ok := strings.CutPrefix(string(wr.key), journalPrefix); ok {
				name, _, _ = strings.Cut(name, "\x00")
				journals[name] = append(journals[name], string(wr.value))
				continue
			}
			m.changed(r, wr)
			continue
		}
		switch name, rest := m.keyOf(wr.key); name {
		case "change":
			m.clearChange(r, wr.key)
			if wr.kind == clearedRange { // with changes whose times lie in the future
				m.clearChanges(r, wr.key, wr.value)
			}
		case "reader":
			m.readerSet(r, rest, wr)
		}
	}
	for _, wr := range r.writes {
		if name, rest := m.keyOf(wr.key); name == "cursor" {
			name, _ := rest[0].(string)
			m.handedOn(r, name, wr, journals[name])
			delete(journals, name)
		}
	}
	for name := range journals {
		m.violation("the effect of a handler of %s is there, and its place has not moved", name)
	}
}

// changed adds a row.
func (m *model) changed(r *record, wr write) {
	f := m.feed
	t, err := tuple.Unpack(wr.value)
	if err != nil || len(t) < 4 {
		m.violation("changes: %v, %v", t, err)
		return
	}
	row := &feedRow{r: r, key: stampedKey(wr.key, r.stamp)}
	row.ms, _ = t[0].(int64)
	f.rows = append(f.rows, row)
	for t = t[1:]; len(t) >= 3; {
		c := fed{row: row, n: 1}
		kind, _ := t[0].(int64)
		c.kind = layer.ChangeKind(kind)
		c.group, _ = t[1].(string)
		c.id.Group = c.group
		index, _ := t[2].(int64)
		if t = t[3:]; c.kind == layer.ChangePurged {
			c.n = int(index)
		} else {
			c.id.Index = index
			c.id.Random, _ = t[0].(uuid.UUID)
			t = t[1:]
		}
		for range 2 { // the facets, and those before
			if len(t) == 0 {
				break
			}
			if facets, ok := t[0].(tuple.Tuple); ok {
				if p := m.w.knobs.plan; p == nil || len(facets) != len(p.facets) {
					m.violation("changes: %s has %d facets", c.id, len(facets))
				}
				t = t[1:]
			}
		}
		c.text = heardText(c.kind, c.id, c.n)
		f.at[c.text] = append(f.at[c.text], len(f.changes))
		f.changes = append(f.changes, c)
	}
}

// placeOf is how many changes come before a key, and so many of its row.
func (f *feed) placeOf(from []byte, done int64) int {
	key := append(append([]byte(queuePrefix), tuple.Tuple{queueName}.Pack()...), from...)
	i := sort.Search(len(f.changes), func(i int) bool { return bytes.Compare(f.changes[i].row.key, key) >= 0 })
	if i < len(f.changes) && bytes.Equal(f.changes[i].row.key, key) {
		i += int(done)
	}
	return i
}

// next is the first change from a place on that a subscription wants and that was not cleared before.
func (f *feed) next(t *topic, place int, group *string, cleared func(row *feedRow) bool) int {
	for place < len(f.changes) {
		c := &f.changes[place]
		if t.wants(c.kind) && (group == nil || c.group == *group) && !cleared(c.row) {
			break
		}
		place++
	}
	return place
}

func gone(row *feedRow) bool { return row.cleared != nil }

// clearChange holds what leaves the changes to its cause.
func (m *model) clearChange(r *record, key []byte) {
	f := m.feed
	i := sort.Search(len(f.rows), func(i int) bool { return bytes.Compare(f.rows[i].key, key) >= 0 })
	if i == len(f.rows) || !bytes.Equal(f.rows[i].key, key) {
		m.violation("a row of changes is cleared which is not there: %q", key)
		return
	}
	row := f.rows[i]
	if row.cleared != nil {
		return
	}
	row.cleared = r
	m.w.mark("changes cleared")
	first := sort.Search(len(f.changes), func(i int) bool { return bytes.Compare(f.changes[i].row.key, key) >= 0 })
	behind := first
	for behind < len(f.changes) && f.changes[behind].row == row {
		behind++
	}
	seen, any := true, false
	for _, a := range f.audiences {
		if a.there && a.began.version <= r.rv {
			seen, any = seen && a.place >= behind, true
		}
		if a.ended != nil && a.ended.version > r.rv { // the sweep has seen the subscription that is no more
			seen, any = seen && a.endedAt >= behind, true
		}
	}
	young := row.ms > r.nowMS-m.w.knobs.config.Changes.Milliseconds() || m.w.knobs.clocks
	if (!seen || !any) && young {
		m.violation("changes are cleared after %d ms, which are kept for %s, and some subscription has not seen them",
			r.nowMS-row.ms, m.w.knobs.config.Changes)
	}
}

// clearChanges is clearChange for the rows behind the first key up to the last.
func (m *model) clearChanges(r *record, first, last []byte) {
	for _, row := range m.feed.rows {
		if row.cleared == nil && bytes.Compare(row.key, first) > 0 && bytes.Compare(row.key, last) < 0 {
			m.clearChange(r, row.key)
		}
	}
}

// readerSet holds the lease of a subscription to its time.
func (m *model) readerSet(r *record, rest tuple.Tuple, wr write) {
	name, _ := rest[0].(string)
	a := m.feed.audiences[name]
	if a == nil {
		m.violation("a subscription %q that nobody has", name)
		return
	}
	old := a.reader
	if a.reader = nil; wr.kind == wrote {
		a.reader = wr.value
	}
	if old == nil || wr.kind != wrote {
		return
	}
	was, err1 := tuple.Unpack(old)
	is, err2 := tuple.Unpack(wr.value)
	if err1 != nil || err2 != nil || len(was) != 3 || len(is) != 3 {
		m.violation("reader of %s: %v, %v", name, was, is)
		return
	}
	if was[0] == is[0] {
		return
	}
	end, _ := was[2].(int64)
	if end > r.nowMS {
		m.mistimed("the subscription %s is taken from %v, whose lease lasts for %d ms", name, was[1], end-r.nowMS)
	}
	m.w.mark("subscription taken over")
}

// handedOn follows the place of a subscription, and what its handler has committed with it.
func (m *model) handedOn(r *record, name string, wr write, journal []string) {
	f, a := m.feed, m.feed.audiences[name]
	if a == nil {
		m.violation("a subscription %q that nobody has", name)
		return
	}
	if wr.kind != wrote {
		a.there, a.ended, a.endedAt = false, r, a.place
		a.places = append(a.places, heldAt{r: r, place: 0, began: true})
		return
	}
	t, err := tuple.Unpack(wr.value)
	if err != nil || len(t) != 3 {
		m.violation("cursor of %s: %v, %v", name, t, err)
		return
	}
	from, _ := t[1].([]byte)
	count, _ := t[2].(int64)
	place := f.placeOf(from, count)
	if !a.there {
		want := 0
		if !a.topic.oldest {
			want = sort.Search(len(f.changes), func(i int) bool { return f.changes[i].row.r.version > r.rv })
		}
		if f.next(a.topic, want, nil, gone) != f.next(a.topic, place, nil, gone) {
			m.violation("the new subscription %s begins at change %d, should at %d", name, place, want)
		}
		a.there, a.began, a.place = true, r, place
		a.places = append(a.places, heldAt{r, place, true})
		m.w.mark("subscription begun")
		return
	}
	was := a.place
	for i := was; i < place; i++ {
		c := &f.changes[i]
		// A sweep that has read before the subscription began clears changes for which no subscription waited.
		if by := c.row.cleared; !a.topic.wants(c.kind) || by == nil || by.rv < a.began.version {
			continue
		}
		if !m.handledBefore(r, a.topic, c.text) {
			a.skipped++
		}
	}
	if a.topic.inTx {
		if !m.committed(a, place, journal) {
			return
		}
	} else {
		for i := f.next(a.topic, was, nil, gone); i < place; i = f.next(a.topic, i+1, nil, gone) {
			if !m.handledBefore(r, a.topic, f.changes[i].text) {
				m.violation("%s moves on to change %d, and nobody has handled %q", name, place, f.changes[i].text)
			}
			m.w.mark("change handled")
		}
	}
	if place < was {
		m.violation("the place of %s goes back from change %d to %d", name, was, place)
	}
	a.place = place
	if place > was {
		a.places = append(a.places, heldAt{r, place, false})
	}
}

// committed checks that the changes that a handler has committed are the next ones, up to the place that its
// transaction moves to.
func (m *model) committed(a *audience, place int, journal []string) bool {
	f, at, whichever := m.feed, a.place, func(*feedRow) bool { return false }
	for _, text := range journal {
		at = f.next(a.topic, at, nil, whichever)
		// The same may have happened to an item twice, and the first time been cleared.
		if there := f.next(a.topic, at, nil, gone); there < len(f.changes) && f.changes[there].text == text {
			at = there
		}
		for at < len(f.changes) && f.changes[at].text != text && gone(f.changes[at].row) {
			at = f.next(a.topic, at+1, nil, whichever)
		}
		if at == len(f.changes) || f.changes[at].text != text {
			m.violation("a handler of %s commits %q, and change %d is next", a.topic.name, text, at)
			return false
		}
		at++
		m.w.mark("change handled in a transaction")
	}
	if missed := f.next(a.topic, at, nil, gone); missed < place {
		m.violation("%s moves on from change %d to %d, and its handler has committed what is before %d, and not %q",
			a.topic.name, a.place, place, at, f.changes[missed].text)
	}
	return true
}

// handledBefore reports whether a handler of the process that made a record had returned from a change without an
// error.
func (m *model) handledBefore(r *record, t *topic, text string) bool {
	return slices.ContainsFunc(m.w.hearings, func(h *hearing) bool {
		return h.topic == t && h.by.who == r.who && h.end > 0 && h.end <= r.step && !h.failed &&
			slices.Contains(h.changes, text)
	})
}

// rewrites reports whether the record sets the item, whatever becomes of the item after that.
func (m *model) rewrites(id layer.ID) bool {
	key := itemKeyFor("item", id)
	return slices.ContainsFunc(m.r.writes, func(w write) bool { return w.kind == wrote && string(w.key) == key })
}

// otherMessage reports whether an item that stays in its place has other headers, or another body.
func otherMessage(old, now []byte) bool {
	if old == nil || now == nil {
		return false
	}
	was, err1 := envelopeOf(old)
	is, err2 := envelopeOf(now)
	return err1 == nil && err2 == nil && (!maps.Equal(was.headers, is.headers) || !bytes.Equal(was.inline, is.inline))
}

// complete checks that a record's changes are those of its writes.
func (m *model) complete(come map[layer.ID]envelope, left map[layer.ID]bool, after map[string][]byte) {
	if m.w.knobs.config.Changes == 0 {
		return
	}
	want := make(map[string]int)
	text := func(what string, id layer.ID) string { return what + " " + id.String() }
	back := make(map[layer.ID]bool)
	for id, e := range come {
		what := "enqueued"
		if from := m.comesFrom(id, e.label, after); from != nil && !m.isJoined(*from, id) {
			what, back[*from] = "redriven", true
		} else if e.joins {
			continue // told when it joins its group
		}
		want[text(what, id)]++
	}
	for id := range left {
		if m.joinedAs(id, come) != nil {
			continue
		}
		if through := m.passesThrough(id); through != nil {
			want[text("enqueued", *through)]++
			want[text("gone", *through)]++
			continue
		}
		what := "gone"
		if after[itemKeyFor("dead", id)] != nil {
			what = "dead_lettered"
		}
		want[text(what, id)]++
	}
	for k, v := range after {
		name, rest := m.keyOf([]byte(k))
		if name == "dead" && v == nil && m.db[k] != nil && !back[idOf(rest)] {
			want[text("discarded", idOf(rest))]++
		}
	}
	for id := range m.lanes.passed {
		want[text("advanced", id)]++
	}
	for k, v := range after {
		name, rest := m.keyOf([]byte(k))
		if name == "item" && m.lanes.passed[idOf(rest)] == 0 && otherMessage(m.db[k], v) {
			want[text("edited", idOf(rest))]++
			m.w.mark("edit told to subscribers")
		}
	}
	f := m.feed
	purged := make(map[string]int)
	for i := len(f.changes) - 1; i >= 0 && f.changes[i].row.r == m.r; i-- {
		c := &f.changes[i]
		what := c.kind.String()
		if c.kind == layer.ChangePurged {
			purged[c.group] += c.n
			continue
		}
		if c.kind == layer.ChangeFinished || c.kind == layer.ChangeCancelled || c.kind == layer.ChangeExpired {
			what = "gone"
		}
		if c.kind == layer.ChangeAdvanced && left[c.id] && m.rewrites(c.id) {
			continue // and then removed, for its age, by a receive in the same transaction
		}
		if c.kind == layer.ChangeEdited && want[text(what, c.id)] == 0 && m.rewrites(c.id) {
			continue // to the old content of the message, or to another body in parts
		}
		want[text(what, c.id)]--
	}
	for what, n := range want {
		if n == 1 && strings.HasPrefix(what, "gone ") {
			id, err := layer.ParseID(strings.TrimPrefix(what, "gone "))
			if err == nil && purged[id.Group] > 0 {
				purged[id.Group]--
				continue
			}
		}
		if n != 0 {
			m.violation("%s %d times more than the changes say", what, n)
		}
	}
	for group, n := range purged {
		if n != 0 {
			m.violation("the changes say that %d items more of %q were purged than were", n, group)
		}
	}
}

// compareHearings holds the calls of handlers to the order of the commits and to the places.
func (m *model) compareHearings() {
	w := m.w
	for _, h := range w.hearings {
		m.compareHearing(h)
	}
	for _, a := range m.feed.audiences {
		if a.skipped > 0 && w.missed[a.topic.name] == 0 {
			w.violation("%s has missed %d changes, and nobody was told", a.topic.name, a.skipped)
		}
		if w.missed[a.topic.name] > 0 && !slices.ContainsFunc(m.feed.rows, gone) {
			w.violation("a subscriber of %s was told that it has missed changes, and none are cleared", a.topic.name)
		}
	}
	for _, t := range w.knobs.topics {
		var mine []*hearing
		for _, h := range w.hearings {
			if h.topic == t {
				mine = append(mine, h)
			}
		}
		w.compareOverlaps(mine)
		if w.knobs.calmly {
			m.compareCalmly(t, mine)
		}
	}
}

// compareHearing holds one call to the places of its subscription.
func (m *model) compareHearing(h *hearing) {
	a := m.feed.audiences[h.topic.name]
	least, most := math.MaxInt, 0
	for i, p := range a.places {
		if p.r.from > h.begin {
			break
		}
		most = max(most, p.place)
		if i+1 == len(a.places) || a.places[i+1].r.to >= h.by.begin {
			least = min(least, p.place)
		}
	}
	if len(h.changes) == 0 {
		m.w.violation("a handler of %s was called with nothing", h.topic.name)
		return
	}
	groups := []*string{nil}
	if h.topic.parallel > 1 {
		groups = nil
		for i := range h.groups {
			if slices.Index(h.groups, h.groups[i]) == i {
				groups = append(groups, &h.groups[i])
			}
		}
	}
	for _, group := range groups {
		var texts []string
		for i, text := range h.changes {
			if group == nil || h.groups[i] == *group {
				texts = append(texts, text)
			}
		}
		ok := slices.ContainsFunc(m.feed.at[texts[0]], func(at int) bool {
			return m.window(h, at, group, texts) && at >= least &&
				m.feed.next(h.topic, most, group, m.goneBy(h)) >= at
		})
		if !ok {
			m.w.violation("a handler of %s (handle %d, steps %d-%d) was called with %d changes from %q (%v) on, at %d-%d",
				h.topic.name, h.by.who, h.begin, h.end, len(texts), texts[0], m.feed.at[texts[0]], least, most)
		}
	}
}

// goneBy reports whether a row may have been cleared when a handler was called.
func (m *model) goneBy(h *hearing) func(row *feedRow) bool {
	return func(row *feedRow) bool { return row.cleared != nil && row.cleared.from <= h.begin }
}

// window reports whether texts are what follows on a change, without a gap.
func (m *model) window(h *hearing, at int, group *string, texts []string) bool {
	f := m.feed
	for _, text := range texts {
		for at < len(f.changes) && f.changes[at].text != text {
			c := &f.changes[at]
			if h.topic.wants(c.kind) && (group == nil || c.group == *group) && !m.goneBy(h)(c.row) {
				return false
			}
			at++
		}
		if at == len(f.changes) || f.changes[at].row.r.from > h.begin {
			return false
		}
		at++
	}
	return true
}

// compareOverlaps: one call at a time, of one subscriber or of all where no lease ends.
func (w *world) compareOverlaps(mine []*hearing) {
	for i, h := range mine {
		for _, o := range mine[:i] {
			if o.end > 0 && o.end <= h.begin || h.end > 0 && h.end <= o.begin {
				continue
			}
			if o.by != h.by && (!w.knobs.calmly || w.handleOf(o.by.who).closedBy(h.begin)) {
				continue // the lease of one may have ended
			}
			shared := slices.ContainsFunc(h.groups, func(g string) bool { return slices.Contains(o.groups, g) })
			if o.by == h.by && (o.end == 0 || h.end == 0) {
				continue // a process that died
			}
			if shared || o.by != h.by || h.topic.parallel == 1 {
				w.violation("two calls of handlers of %s at once: steps %d-%d (handle %d) and %d-%d (handle %d)",
					h.topic.name, o.begin, o.end, o.by.who, h.begin, h.end, h.by.who)
			}
		}
	}
}

// waitAtMost is how long a change may wait for its first handler while a subscriber exists. It is the sum of the poll,
// if a watch was lost, the longest pause after failures, and the lease of another subscriber.
const waitAtMost = 45 * time.Second

// compareCalmly holds a subscription without faults to the strict laws.
func (m *model) compareCalmly(t *topic, mine []*hearing) {
	done := make(map[string]int)
	for i, h := range mine {
		for _, text := range h.changes {
			if end, twice := done[text]; twice && end <= h.begin && len(m.feed.at[text]) == 1 && t.parallel == 1 {
				m.w.violation("a handler of %s was called at step %d with %q, which was handled at step %d",
					t.name, h.begin, text, end)
			}
			if h.end > 0 && !h.failed && !m.w.cutOff(h, mine[i+1:]) {
				done[text] = h.end
			}
		}
	}
	for i, h := range mine {
		var since time.Time // from when on nothing was in the way
		for _, o := range mine[:i] {
			if o.end > 0 && o.end <= h.begin && o.endAt.After(since) {
				since = o.endAt
			}
		}
		if h.by.beginAt.After(since) {
			since = h.by.beginAt
		}
		for _, text := range h.changes {
			at := m.feed.at[text]
			if len(at) != 1 || done[text] > 0 && done[text] < h.begin {
				continue
			}
			from := since
			if written := time.UnixMilli(m.w.worldMS(m.feed.changes[at[0]].row.r)); written.After(from) {
				from = written
			}
			if waited := h.beginAt.Sub(from); waited > waitAtMost {
				m.w.violation("%q waited for %s until a handler of %s was called at step %d",
					text, waited, t.name, h.begin)
			}
		}
	}
	m.w.mark("subscription without faults")
}

// cutOff reports whether a call is the last of a subscription whose handle was closed, so that its place may not have
// been stored. later are the calls after it.
func (w *world) cutOff(h *hearing, later []*hearing) bool {
	return w.handleOf(h.by.who).retired && !slices.ContainsFunc(later, func(o *hearing) bool { return o.by == h.by })
}

// heardAll reports whether a subscription stands behind all changes.
func (w *world) heardAll(t *topic) bool {
	name := keyFor("cursor", t.name)
	rows := w.rows(kv.SingleKey([]byte(name)), 1)
	if len(rows) == 0 {
		return false
	}
	v, err := tuple.Unpack(rows[0].Value)
	if err != nil || len(v) != 3 {
		return false
	}
	from, _ := v[1].([]byte)
	key := append(append([]byte(queuePrefix), tuple.Tuple{queueName}.Pack()...), from...)
	return len(w.rows(kv.KeyRange{Begin: key, End: section("change").End}, 1)) == 0
}
