package sim

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strings"

	"github.com/google/uuid"

	"fdbfifo/internal/linear"
	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// This file reads the queue's keys by their table in the design, with nothing of the layer's code.

// section is the range of the keys with that name.
func section(name string) kv.KeyRange {
	k := tuple.Tuple{queueName, name}.Pack()
	k = append([]byte(queuePrefix), k...)
	return kv.KeyRange{Begin: append(bytes.Clone(k), 0), End: append(bytes.Clone(k), 0xff)}
}

// modelled are the names of the keys that the model knows.
var modelled = []string{
	"archive", "archived", "dead", "dedup", "due", "grant", "item", "kept", "lane", "lock", "open", "part", "ready",
	"request", "state", "timer", "hold", "beat", "held",
}

func isModelled(name string) bool { return slices.Contains(modelled, name) }

// touchesModelled reports whether a range has keys that the model knows.
func touchesModelled(begin, end []byte) bool {
	return slices.ContainsFunc(modelled, func(name string) bool {
		r := section(name)
		return bytes.Compare(begin, r.End) < 0 && bytes.Compare(r.Begin, end) < 0
	})
}

func keyFor(name string, of ...any) string {
	return queuePrefix + string(append(tuple.Tuple{queueName, name}, of...).Pack())
}

func itemKeyFor(name string, id layer.ID) string { return keyFor(name, id.Group, id.Index, id.Random) }

// keyOf takes a key apart: its name and what follows; "" if it is none of the queue's.
func keyOf(key []byte) (name string, rest tuple.Tuple) {
	tail, ok := bytes.CutPrefix(key, []byte(queuePrefix))
	if !ok {
		return "", nil
	}
	t, err := tuple.Unpack(tail)
	if err != nil || len(t) < 2 {
		return "", nil
	}
	name, _ = t[1].(string)
	rest = t[2:]
	if name == "timer" || name == "due" { // the shard of a timer is not looked at: every receive reads them all
		rest = slices.DeleteFunc(rest, func(e any) bool { _, shard := e.(tuple.Tuple); return shard })
	}
	return name, rest
}

// keyParts is what keyOf makes of a key.
type keyParts struct {
	name string
	rest tuple.Tuple
}

// keyOf is keyOf once for each key: a record looks at each of its keys several times, and the next ones do at the same.
func (m *model) keyOf(key []byte) (name string, rest tuple.Tuple) {
	p, known := m.parts[string(key)]
	if !known {
		p.name, p.rest = keyOf(key)
		m.parts[string(key)] = p
	}
	return p.name, p.rest
}

func idOf(t tuple.Tuple) layer.ID {
	group, _ := t[0].(string)
	index, _ := t[1].(int64)
	random, _ := t[2].(uuid.UUID)
	return layer.ID{Group: group, Index: index, Random: random}
}

func before(a, b layer.ID) bool {
	return cmp.Or(cmp.Compare(a.Index, b.Index), bytes.Compare(a.Random[:], b.Random[:])) < 0
}

// lockState is the value of a lock.
type lockState struct {
	kind  string
	token int64
	owner string
	endMS int64
	out   []layer.ID
	beat  string // of a claim by heartbeat, which is endless then; "" = it has a lease of its own
	// marked is "pause" or "halt" if the lock is such a mark, or a claim that becomes one.
	marked string
	noted  int64 // the token of the record, which is greater than that of a claim which is proven
	// trulyMS is its end by the world's clock, and wrongMS how far its writer's clock is ahead of that: see clocks.go.
	trulyMS, wrongMS int64
}

// proven reports whether the handle of the claim has noted that it has it.
func (l *lockState) proven() bool { return l.is("claim") && l.noted > l.token }

func lockOf(group string, value []byte) (*lockState, error) {
	t, err := tuple.Unpack(value)
	if err != nil {
		return nil, fmt.Errorf("lock of %q: %w", group, err)
	}
	if len(t) < 2 {
		return nil, fmt.Errorf("lock of %q: %v", group, t)
	}
	l := &lockState{}
	l.token, _ = t[0].(int64)
	l.noted = l.token
	if note, _ := t[1].(tuple.Tuple); len(note) > 1 {
		l.marked, _ = note[0].(string)
		l.kind, l.endMS = l.marked, math.MaxInt64
		l.owner, _ = note[1].(string)
	}
	if len(t) == 2 {
		return l, nil
	}
	h, _ := t[2].(tuple.Tuple)
	if len(t) > 5 || len(h) < 4 { // a claim is followed by the time at which it was made, and perhaps by its beat
		return nil, fmt.Errorf("lock of %q: %v", group, t)
	}
	l.kind, _ = h[0].(string)
	l.token, _ = h[1].(int64)
	l.owner, _ = h[2].(string)
	l.endMS, _ = h[3].(int64)
	if l.beat = beatOf(t); l.beat != "" {
		l.endMS = endless
	}
	var ok bool
	if l.out, ok = outstanding(group, h[4:]); !ok {
		return nil, fmt.Errorf("lock of %q: %v", group, t)
	}
	return l, nil
}

func (l *lockState) is(kind string) bool { return l != nil && l.kind == kind }

func (l *lockState) has(id layer.ID) bool { return l != nil && slices.Contains(l.out, id) }

// envelope is what an item's value begins with.
type envelope struct {
	enqueuedMS int64
	label      string
	parts      int64
	dedupID    string
	dueMS      int64
	joins      bool   // it joins its group when it is due
	replayOf   string // the id of the archived item that it repeats
	headers    map[string]string
	inline     []byte // the body, or its first bytes
}

func envelopeOf(value []byte) (e envelope, err error) {
	packed, rest, err := headed(value)
	if err != nil {
		return e, err
	}
	t, err := tuple.Unpack(packed)
	if err != nil {
		return e, fmt.Errorf("envelope: %w", err)
	}
	t = append(t, make(tuple.Tuple, 7)...)
	e.enqueuedMS, _ = t[0].(int64)
	headers, _ := t[1].(tuple.Tuple)
	e.headers = make(map[string]string)
	for i := 0; i+1 < len(headers); i += 2 {
		name, _ := headers[i].(string)
		e.headers[name], _ = headers[i+1].(string)
		if headers[i] == labelHeader {
			e.label, _ = headers[i+1].(string)
		}
		if headers[i] == replayHeader {
			e.replayOf, _ = headers[i+1].(string)
		}
	}
	if e.replayOf != "" {
		e.label += ", replayed from " + e.replayOf
	}
	e.parts, _ = t[3].(int64)
	e.dedupID, _ = t[4].(string)
	e.dueMS, _ = t[5].(int64)
	e.joins = t[6] == int64(1)
	e.inline = rest
	return e, nil
}

// headed takes a value apart that begins with a version and a tuple with its length.
func headed(value []byte) (head, rest []byte, err error) {
	if len(value) < 2 {
		return nil, nil, fmt.Errorf("a value of %d bytes", len(value))
	}
	n, width := binary.Uvarint(value[1:])
	if width <= 0 || int(n) > len(value)-1-width {
		return nil, nil, errors.New("a value cut short")
	}
	return value[1+width : 1+width+int(n)], value[1+width+int(n):], nil
}

// stored is an item of the model.
type stored struct {
	envelope
	value   []byte
	body    string // with its parts
	version int64  // of the commit that put it there
	back    bool   // by a redrive, which no later commit may have missed
}

// groupState is a group of the model.
type groupState struct {
	items map[layer.ID]stored
	lock  *lockState
	token int64 // the greatest so far
	// newest is, by the version of the commits, the greatest index so far.
	newest []indexAt
}

type indexAt struct{ version, index int64 }

// newestAt is the greatest index that had been committed at a version.
func (g *groupState) newestAt(version int64) int64 {
	i, _ := slices.BinarySearchFunc(g.newest, version+1, func(a indexAt, v int64) int { return cmp.Compare(a.version, v) })
	if i == 0 {
		return -1
	}
	return g.newest[i-1].index
}

// finished says how an item left the queue.
type finished struct {
	r        *record
	item     stored
	lane     string          // the lane whose claim had it; its group if there was none
	lock     *lockState      // of that, before
	under    bool            // it was outstanding under that lock, a claim
	over     bool            // others of its group stood before it, and stayed
	overIn   map[string]bool // the same, by its lanes
	held     []string        // the lanes of its group that were held
	archived bool            // in the same transaction
	wrong    bool            // clocks are wrong: the end of a lease tells nothing
}

// claimed reports whether the group was in the hands of others.
func (f *finished) claimed() bool { return f.lock != nil && f.lock.endMS > f.r.nowMS && !f.wrong }

// seen reports whether the record's transaction must have seen an item.
func (m *model) seen(s stored) bool { return s.back || s.version <= m.r.rv }

// over reports whether others that the record's transaction must have seen stand before an item. Those of the same
// record are gone by then: it is followed in the order of the keys.
func (m *model) over(g *groupState, id layer.ID) bool {
	for other, s := range g.items {
		if m.seen(s) && before(other, id) {
			return true
		}
	}
	return false
}

// aside is an item that became a dead letter (linear.Drop), or came back from there (linear.Put).
type aside struct {
	r    *record
	id   layer.ID
	kind linear.Kind
	// headers are those of an item that came back.
	headers map[string]string
}

// claimed is a claim as it was written.
type claimed struct {
	r      *record
	out    []layer.ID
	bodies []string
	state  string // of the group
	ends   int    // the step of the commit that ended it; 0 = none
	alone  int    // the step of the commit that ended its heartbeat; 0 = none
}

type claimKey struct {
	group string
	token int64
}

// remembered is what is known of a dedup id.
type remembered struct {
	id      layer.ID
	untilMS int64
	rv      int64
	at      writtenAt
}

// sizeAt is how many items a group had after a record that was applied between two steps.
type sizeAt struct{ from, to, n int }

// model is the queue after some records.
type model struct {
	w        *world
	r        *record // under replay
	latestMS int64   // the latest time of the world at which a record so far was sent
	db       map[string][]byte
	parts    map[string]keyParts // of the keys that were looked at
	groups   map[string]*groupState
	requests map[string]int // by their random: the handle
	entered  map[layer.ID]*record
	first    map[layer.ID]stored // as it entered
	finished map[layer.ID][]finished
	claims   map[claimKey]claimed

	moved     map[layer.ID]bool    // dead letters that went to the tail under another id
	movedIn   map[layer.ID]bool    // the other ids
	discarded map[layer.ID]*record // dead letters
	everDead  map[layer.ID]bool
	dedup     map[string]remembered
	voided    map[string]int64 // by group, "" with purgedAll: the read version of the last step of a purge
	voidedAll int64
	sizes     map[string][]sizeAt
	asides    []aside                // in commit order
	retimes   map[layer.ID][]retimed // by reschedules
	dueLog    map[layer.ID][]retimed // by whatever
	states    map[string]*record     // by the value that was set
	stateLog  map[string][]stateAt   // by group
	voids     []voidAt
	edits     map[string]*record // by the body that was set
	after     map[string][]byte  // what the record under replay makes of the keys; nil = cleared
	*invariants
	*pacing
	*looking
	beats    beats
	blame    *blame
	feed     *feed
	starts   []startedAt // under the queue's rate
	turns    turns
	repeated map[string]writtenAt  // receive ids
	marked   map[string][]markedAt // by group, see stepped.go
	replays  replays
	lanes    laneIndex
}

func newModel(w *world) *model {
	return &model{
		w: w, db: make(map[string][]byte), parts: make(map[string]keyParts),
		groups: make(map[string]*groupState), requests: make(map[string]int),
		entered: make(map[layer.ID]*record), first: make(map[layer.ID]stored), finished: make(map[layer.ID][]finished),
		claims: make(map[claimKey]claimed), moved: make(map[layer.ID]bool), movedIn: make(map[layer.ID]bool),
		discarded: make(map[layer.ID]*record), everDead: make(map[layer.ID]bool), dedup: make(map[string]remembered),
		voided: make(map[string]int64), sizes: make(map[string][]sizeAt), states: make(map[string]*record), edits: make(map[string]*record),
		stateLog: make(map[string][]stateAt),
		retimes:  make(map[layer.ID][]retimed), dueLog: make(map[layer.ID][]retimed), looking: newLooking(w),
		feed:       newFeed(w),
		beats:      make(beats),
		repeated:   make(map[string]writtenAt),
		marked:     make(map[string][]markedAt),
		blame:      newBlame(),
		invariants: newInvariants(), turns: turns{pauses: make(map[string]*record)},
		replays: replays{kept: make(map[layer.ID]*keptAt)}, lanes: newLaneIndex(),
	}
}

func (m *model) group(name string) *groupState {
	g := m.groups[name]
	if g == nil {
		g = &groupState{items: make(map[layer.ID]stored)}
		m.groups[name] = g
	}
	return g
}

func (m *model) violation(format string, args ...any) {
	m.w.violation("commit %d (step %d, handle %d, transaction %d): %s", m.r.order, m.r.step, m.r.who, m.r.tx, fmt.Sprintf(format, args...))
}

// apply replays a record. It follows the locks write by write, and the other keys by their final values.
func (m *model) apply(r *record) {
	m.rateChanged(r)
	m.look(r)
	m.r, m.latestMS = r, max(m.latestMS, m.w.worldMS(r))
	m.lanes.left, m.lanes.passed = make(map[string]map[layer.ID]bool), make(map[layer.ID]int64)
	m.blames(r)
	after := make(map[string][]byte)     // nil = cleared
	grantsTaken := make(map[string]bool) // groups
	var lockWrites []write
	for _, w := range r.writes {
		if w.kind == clearedRange {
			if !touchesModelled(w.key, w.value) {
				continue
			}
			for k := range m.db {
				if k >= string(w.key) && k < string(w.value) {
					after[k] = nil
				}
			}
			for k := range after {
				if k >= string(w.key) && k < string(w.value) {
					after[k] = nil
				}
			}
			continue
		}
		name, rest := m.keyOf(w.key)
		m.purge(name, rest, w)
		m.recalls(name, rest, w)
		if !isModelled(name) {
			continue
		}
		value := w.value
		if w.kind == wrote && value == nil {
			value = []byte{}
		}
		if w.kind == cleared {
			value = nil
		}
		after[string(w.key)] = value
		switch name {
		case "lock", "hold":
			lockWrites = append(lockWrites, w)
		case "grant":
			if w.kind == cleared && len(rest) >= 2 {
				grantsTaken[m.ofKey(name, rest)] = true
			}
		}
	}
	keys := slices.Sorted(maps.Keys(after))
	gone, come := make(map[layer.ID]bool), make(map[layer.ID]envelope)
	for _, k := range keys {
		name, rest := m.keyOf([]byte(k))
		switch {
		case name != "item":
		case after[k] == nil && m.db[k] != nil:
			gone[idOf(rest)] = true
		case after[k] != nil && m.db[k] == nil:
			e, err := envelopeOf(after[k])
			if err != nil {
				m.violation("%v", err)
			}
			come[idOf(rest)] = e
		}
	}
	m.rooms(come, gone, after)
	m.sweptWith(after)
	for _, wr := range r.writes { // also a state that another holder of the claim has set again in this transaction
		if name, _ := m.keyOf(wr.key); name == "state" && wr.kind == wrote {
			m.states[string(wr.value)] = r
		}
	}
	// The keys that are new or gone, as they are after this record.
	for _, k := range keys {
		name, rest := m.keyOf([]byte(k))
		switch name {
		case "item":
			m.item(k, idOf(rest), come, gone, after)
		case "request":
			m.staging(k, rest, after)
		case "dead":
			m.deadLetter(k, idOf(rest), come, after)
		case "state":
			m.setState(rest, after[k])
		case "archive":
			m.keeps(idOf(rest), after[k])
			m.archived(k, after)
		}
	}
	m.follow(r)
	m.complete(come, gone, after)
	m.after = after
	ended := make(map[string]*lockState) // the claims that end, by their groups
	for _, w := range lockWrites {
		lane := m.ofKey(m.keyOf(w.key))
		var next *lockState
		if w.kind == wrote {
			var err error
			if next, err = lockOf(groupOfLane(lane), w.value); err != nil {
				m.violation("%v", err)
			}
		}
		if l := m.group(lane).lock; l.is("claim") && next == nil && !m.lapsing(lane) {
			ended[lane] = l
		}
		m.lock(lane, next, gone, grantsTaken[lane])
	}
	for k, v := range after {
		if name, rest := m.keyOf([]byte(k)); (name == "ready" || name == "open") && v != nil {
			m.hinted(name, rest, ended, gone)
		}
	}
	m.begin(r, after)
	for k, v := range after {
		if v == nil {
			delete(m.db, k)
		} else {
			m.db[k] = v
		}
	}
	m.endBeats(after)
	m.end(after)
	m.endLanes(after)
	m.endPlain(after)
	m.paced(r, after, gone)
	m.turn(r)
	for id := range come {
		m.size(id.Group)
	}
	for id := range gone {
		m.size(id.Group)
	}
}

func (m *model) size(group string) {
	m.sizes[group] = append(m.sizes[group], sizeAt{m.r.from, m.r.to, len(m.group(group).items)})
}

// purge notes that what is remembered of a group, or of the queue, is void.
func (m *model) purge(name string, rest tuple.Tuple, w write) {
	switch {
	case w.kind != wrote:
	case name == "purged" && len(rest) == 1:
		group, _ := rest[0].(string)
		m.voided[group] = m.r.rv
		m.voids = append(m.voids, voidAt{m.r, group})
	case name == "meta" && len(rest) == 1 && rest[0] == "purged":
		m.voidedAll = m.r.rv
		m.voids = append(m.voids, voidAt{m.r, ""})
	}
}

// rooms checks new items against the bound of their groups. It counts the items that the enqueue must have seen.
func (m *model) rooms(come map[layer.ID]envelope, gone map[layer.ID]bool, after map[string][]byte) {
	most := m.w.knobs.config.MaxWaiting
	if most == 0 {
		return
	}
	adding := make(map[string]int)
	for id := range come {
		if come[id].replayOf == "" && !m.returns(id, come, after) {
			adding[id.Group]++
		}
	}
	for group, n := range adding {
		there := 0
		for id, s := range m.group(group).items {
			if s.version <= m.r.rv && !gone[id] {
				there++
			}
		}
		if there+n > most {
			m.violation("%q has %d items, gets %d, and may have %d", group, there, n, most)
		}
	}
}

// returns reports whether an item that comes is a dead letter on its way back.
func (m *model) returns(id layer.ID, come map[layer.ID]envelope, after map[string][]byte) bool {
	return m.comesFrom(id, come[id].label, after) != nil
}

// comesFrom is the dead letter that comes back in this record as the item id, or the item that joins its group so, or
// nil.
func (m *model) comesFrom(id layer.ID, label string, after map[string][]byte) *layer.ID {
	if old := m.joinsFrom(id, after); old != nil {
		return old
	}
	for k, v := range after {
		name, rest := m.keyOf([]byte(k))
		if name != "dead" || v != nil || m.db[k] == nil {
			continue
		}
		if old := idOf(rest); old == id || m.isMoved(old, id, label) {
			return &old
		}
	}
	return nil
}

// isMoved reports whether a dead letter is what has gone to the tail as the item id. It keeps its random, by which two
// that repeat the same item, and have the same label, are told apart.
func (m *model) isMoved(old, id layer.ID, label string) bool {
	sameGroup := old.Group == id.Group || groupToJoin(old.Group) == id.Group
	return sameGroup && old.Random == id.Random && m.first[old].label == label
}

// deadLetter follows one that the record sets or clears.
func (m *model) deadLetter(k string, id layer.ID, come map[layer.ID]envelope, after map[string][]byte) {
	switch {
	case after[k] != nil:
		m.everDead[id] = true
		if law := m.w.law(id); m.w.strict() && law.done > 0 && law.done < m.r.step && law.lost == 0 {
			m.violation("G3: %s becomes a dead letter, and its good handler has returned at step %d", id, law.done)
		}
		redated := m.w.knobs.clocks && m.db[k] != nil // by a sweep, because its time of death was still to come
		if m.db[itemKeyFor("item", id)] == nil && !redated {
			m.violation("dead letter of %s, which is not there", id)
		}
		return
	case m.db[k] == nil:
		return
	}
	if _, back := come[id]; back {
		return
	}
	for other, e := range come {
		if m.isMoved(id, other, e.label) {
			m.moved[id], m.movedIn[other] = true, true
			m.w.mark("redriven to the tail")
			m.asides = append(m.asides, aside{m.r, other, linear.Put, e.headers})
			return
		}
	}
	m.discarded[id] = m.r
	m.w.mark("dead letter discarded")
}

// archived holds what leaves the archive to its time.
func (m *model) archived(k string, after map[string][]byte) {
	old := m.db[k]
	if after[k] != nil || old == nil {
		return
	}
	head, _, err := headed(old)
	if err != nil {
		m.violation("%v", err)
		return
	}
	t, err := tuple.Unpack(head)
	if err != nil || len(t) == 0 {
		m.violation("archive: %v, %v", t, err)
		return
	}
	at, _ := t[0].(int64)
	if keep := m.w.knobs.config.Archive.Milliseconds(); at+keep > m.r.nowMS || m.w.knobs.clocks {
		m.violation("%q left the archive after %d ms of %d", k, m.r.nowMS-at, keep)
	}
	m.w.mark("cleared from the archive")
}

// staging follows a request that the record sets or clears.
func (m *model) staging(k string, rest tuple.Tuple, after map[string][]byte) {
	random, _ := rest[1].(uuid.UUID)
	name := random.String()
	old, now := m.db[k], after[k]
	mine := m.requests[name] == m.r.who
	switch {
	case now != nil && old == nil:
		m.requests[name] = registrant(m.requests, name, m.r.who)
		m.w.mark("request registered")
	case now != nil && mine && wantsNothing(old):
		m.w.mark("request wants again")
	case now != nil && mine:
		m.w.mark("request renewed")
	case now != nil:
		m.w.mark("request served by another handle")
	case old != nil && !mine:
		m.w.mark("request of a dead handle swept")
	case old != nil:
		kind := "request withdrawn"
		for _, w := range m.r.writes {
			if name, _ := m.keyOf(w.key); name == "lock" && w.kind != cleared {
				kind = "request cleared when served"
			}
		}
		m.w.mark(kind)
		for _, w := range m.r.writes {
			if name, _ := m.keyOf(w.key); name == "grant" && w.kind == cleared {
				m.w.mark("request withdrawn with a grant")
			}
		}
	}
}

// wantsNothing reports whether a request has been granted all that it wanted.
func wantsNothing(request []byte) bool {
	t, err := tuple.Unpack(request)
	return err == nil && len(t) == 3 && t[1] == int64(0)
}

// registrant is who has registered a request first: others rewrite it.
func registrant(known map[string]int, random string, who int) int {
	if first, ok := known[random]; ok {
		return first
	}
	return who
}

// item follows one item that the record sets or clears.
func (m *model) item(
	k string, id layer.ID, come map[layer.ID]envelope, gone map[layer.ID]bool, after map[string][]byte,
) {
	g, old, now := m.group(id.Group), m.db[k], after[k]
	dead := itemKeyFor("dead", id)
	deadNow, deadTouched := after[dead]
	switch {
	case now != nil && old != nil:
		m.rewritten(g, id, now, after)
	case now != nil:
		s := m.read(id, now, after)
		if deadTouched && deadNow == nil && m.db[dead] != nil {
			m.w.mark("redriven to its place")
			m.asides = append(m.asides, aside{m.r, id, linear.Put, s.headers})
			if m.r.step < m.w.calm {
				m.w.mark("redriven under load")
			}
			s.back = true
		} else {
			if m.entered[id] != nil {
				m.violation("%s enters a second time", id)
			}
			m.entered[id], m.first[id] = m.r, s
			if s.replayOf != "" && m.comesFrom(id, s.label, after) == nil {
				m.repeats(id, s)
			}
			m.behind(g, id)
			m.accept(id, s, after)
		}
		last := int64(-1)
		if n := len(g.newest); n > 0 {
			last = g.newest[n-1].index
		}
		if id.Index > last {
			g.newest = append(g.newest, indexAt{m.r.version, id.Index})
		} else if last > id.Index {
			m.w.mark("enqueue committed late")
		}
		g.items[id] = s
		m.dueLog[id] = append(m.dueLog[id], retimed{r: m.r, dueMS: s.dueMS})
		m.settles(id, nil, &s)
	case old != nil:
		s := g.items[id]
		delete(g.items, id)
		m.settles(id, &s, nil)
		lane, lock := m.holderOf(id)
		if joined := m.joinedAs(id, come); joined != nil {
			m.join(id, *joined, s, gone)
			return
		}
		if through := m.passesThrough(id); through != nil {
			m.join(id, *through, s, gone)
			m.passThrough(id, *through, s, after)
			return
		}
		if deadTouched && deadNow != nil {
			m.w.mark("item dead-lettered")
			m.asides = append(m.asides, aside{m.r, id, linear.Drop, nil})
			return
		}
		kept, archived := after[itemKeyFor("archive", id)]
		if archived = archived && kept != nil; archived && !bytes.HasSuffix(kept, old) {
			m.violation("%s is in the archive with another value", id)
		}
		m.finished[id] = append(m.finished[id], finished{
			r: m.r, item: s, lane: lane, lock: m.lasting(lock), under: lock.is("claim") && lock.has(id),
			over: m.over(g, id), overIn: m.overIn(id, s), archived: archived,
			held: m.spare(m.held(id.Group), []layer.ID{id}), wrong: m.w.knobs.clocks,
		})
	default:
		// Entered and finished in the same transaction, or cleared though not there.
		return
	}
}

// read is an item as the record leaves it.
func (m *model) read(id layer.ID, value []byte, after map[string][]byte) stored {
	e, err := envelopeOf(value)
	if err != nil {
		m.violation("%s: %v", id, err)
	}
	body := string(e.inline)
	for n := range e.parts {
		k := keyFor("part", id.Group, id.Index, id.Random, n)
		part, written := after[k]
		if !written {
			part = m.db[k]
		}
		if part == nil {
			m.violation("%s has no part %d", id, n)
		}
		body += string(part)
	}
	return stored{envelope: e, value: value, body: body, version: m.r.version}
}

// madeDue reports whether an item whose delay was ended is due since a time that fits: in a queue with a retention
// since the moment of the call, so that the time it has waited does not count; in others there is no due time left.
func (m *model) madeDue(dueMS, wasMS int64) bool {
	earlier := dueMS < wasMS || wasMS == 0 && m.w.knobs.config.RetroactiveDelay
	return m.w.knobs.config.Retention > 0 && earlier && dueMS <= m.r.nowMS
}

// tamed reports whether a head of a wrong clock was given both its times by its finder's clock. No other write changes
// the time of an enqueue.
func (m *model) tamed(was, is stored) bool {
	wrong := was.enqueuedMS-m.r.begunMS > clocksDiffer
	return wrong && is.dueMS != was.dueMS && is.enqueuedMS <= m.r.nowMS
}

// clocksDiffer is how far two clocks may differ before one counts as wrong.
const clocksDiffer = 5 * 60_000 // ms

// rewritten follows an item that stays: it was edited, or its delay was ended.
func (m *model) rewritten(g *groupState, id layer.ID, now []byte, after map[string][]byte) {
	was := g.items[id]
	s := m.read(id, now, after)
	s.version, s.back = was.version, was.back
	g.items[id] = s
	m.passes(id, &was, &s)
	m.settles(id, &was, &s)
	switch {
	case s.label != was.label || s.enqueuedMS != was.enqueuedMS && !m.tamed(was, s) || s.dedupID != was.dedupID:
		m.violation("%s was %+v and is %+v", id, was.envelope, s.envelope)
	case s.body != was.body:
		m.edits[s.body] = m.r
		m.compareReplaced(id, s)
	case s.dueMS != was.dueMS && m.retime(id, was, s):
	case s.dueMS != was.dueMS && s.dueMS != m.w.knobs.atOnce(s.enqueuedMS) && !m.madeDue(s.dueMS, was.dueMS):
		m.mistimed("%s was due at %d and is at %d", id, was.dueMS, s.dueMS)
	case s.dueMS != was.dueMS:
		m.w.mark("delay of a head ended early")
	}
	m.dueLog[id] = append(m.dueLog[id], retimed{r: m.r, dueMS: s.dueMS})
	if _, l := m.holderOf(id); l.is("claim") && l.has(id) && m.lasting(l).endMS > m.r.nowMS && m.lanes.passed[id] == 0 {
		m.mistimed("G2: %s was changed in its holder's hands", id)
	}
}

// dedupKey returns the key for de-duplication of a message of a group; "" = none.
func (m *model) dedupKey(group, dedupID string) string {
	if dedupID == "" {
		return ""
	}
	if m.w.knobs.config.DedupInGroup {
		return groupToJoin(group) + "/" + dedupID
	}
	return dedupID
}

// leaves reports whether the record removes an item, and makes no dead letter of it.
func (m *model) leaves(id layer.ID, after map[string][]byte) bool {
	now, touched := after[itemKeyFor("item", id)]
	return touched && now == nil && after[itemKeyFor("dead", id)] == nil
}

// accept holds a new item to de-duplication: no other with its dedup id is remembered.
func (m *model) accept(id layer.ID, s stored, after map[string][]byte) {
	key := m.dedupKey(id.Group, s.dedupID)
	if key == "" {
		return
	}
	was, known := m.dedup[key]
	if from := m.comesFrom(id, s.label, after); from != nil {
		if known && was.id == *from {
			was.id = id
			m.dedup[key] = was
		}
		return
	}
	config := m.w.knobs.config
	if known {
		there := m.isThere(was.id) && !m.leaves(was.id, after)
		void := was.rv <= max(m.voided[was.id.Group], m.voidedAll)
		lasts := there
		if !config.DedupForPending {
			lasts = s.enqueuedMS < was.untilMS
			if m.w.knobs.clocks {
				lasts = m.earlyDedup(was.at) > 0
			}
			lasts = lasts && (!void || there)
		}
		if lasts {
			m.violation("G3: %s was accepted though %s has the dedup id %q", id, was.id, key)
		} else if void && s.enqueuedMS < was.untilMS {
			m.w.mark("dedup id free after a purge")
		} else {
			m.w.mark("dedup id free again")
		}
	}
	m.dedup[key] = remembered{id, s.enqueuedMS + config.DedupWindow.Milliseconds(), m.r.rv, m.written()}
}

// isThere reports whether an item is in the queue, or a dead letter.
func (m *model) isThere(id layer.ID) bool {
	_, there := m.group(id.Group).items[id]
	return there || m.db[itemKeyFor("dead", id)] != nil
}

// behind holds a new item to G1: its key is behind those of all items of its group that had been committed before its
// transaction began and are still there. One that is gone may have had a greater index: a batch runs ahead of the clock
// of the indexes by up to its length.
func (m *model) behind(g *groupState, id layer.ID) {
	newest := g.newestAt(m.r.rv)
	if id.Index > newest {
		return
	}
	m.w.mark("index behind one that is gone")
	acked := make(map[string]bool) // in the same transaction
	for _, wr := range m.r.writes {
		if wr.kind == cleared {
			acked[string(wr.key)] = true
		}
	}
	for other, s := range g.items {
		if s.version <= m.r.rv && before(id, other) && !acked[itemKeyFor("item", other)] {
			m.violation("G1: %s comes before %s, which had been committed before it began", id, other)
		}
	}
}

// lock follows one write of a lock.
func (m *model) lock(group string, next *lockState, gone map[layer.ID]bool, grantTaken bool) {
	g := m.group(group)
	old := g.lock
	g.lock = next
	live := old != nil && m.lasting(old).endMS > m.r.nowMS
	m.timed(old, next)
	m.marks(group, old, next)
	switch hold := isHoldLane(group); {
	case hold && old == nil && next != nil:
		m.holdBegins(group, next)
	case hold && old != nil && next == nil:
		defer m.holdEnds(group)
	}
	if old.is("claim") && (next == nil || next.token != old.token || next.kind != old.kind) {
		m.stop(claimKey{group, old.token})
	}
	if old.is("claim") && (next == nil || next.token != old.token) && live {
		m.ended(group, old, gone)
	}
	if old != nil && old.marked != "" && (next == nil || next.marked == "") {
		m.unmarked(group, old)
	}
	switch {
	case next == nil:
		return
	case next.kind == "halt":
		m.w.mark("group halted")
		return
	case next.kind == "pause":
		m.w.mark("group paused")
		return
	case next.kind == "delay":
		m.w.mark("group delayed")
		return
	}
	if old != nil && next.kind == old.kind && next.token == old.token {
		for _, id := range next.out {
			if !old.has(id) {
				m.violation("claim %d of %q now has %s, which it had not", next.token, group, id)
			}
		}
		m.rejoined(group, old, next)
		m.proves(group, old, next)
		return
	}
	// A new claim or grant.
	accepted := old.is("grant") && next.is("claim") && grantTaken && m.requests[old.owner] == m.r.who
	switch {
	case accepted:
		m.w.mark("grant accepted")
		if old.endMS <= m.r.nowMS {
			m.w.mark("grant accepted after its end")
		}
	case old == nil:
	case old.is("halt"), old.is("pause"):
		m.violation("G2: %q is claimed under token %d though it is %sd", group, next.token, old.kind)
	case live:
		m.mistimed("G2: %q is claimed under token %d, while %s %d of %s lasts for %d ms",
			group, next.token, old.kind, old.token, old.owner, old.endMS-m.r.nowMS)
	case old.is("claim"):
		m.w.mark("takeover of an expired claim")
	case old.is("grant"):
		m.w.mark("takeover of an expired grant")
	case old.is("delay"):
		m.w.mark("claim after a delay")
	}
	if next.token < g.token || next.token == g.token && !accepted {
		m.violation("G2: token %d of %q does not grow: %d was there", next.token, group, g.token)
	}
	g.token = max(g.token, next.token)
	if other := m.excluded(m.spare(m.held(groupOfLane(group)), next.out), group); other != "" {
		m.violation("G2: %q is claimed under token %d, while %q is held", group, next.token, other)
	}
	if next.is("grant") {
		if d := next.endMS - m.r.nowMS; d > longestGrant {
			m.mistimed("%q is kept for %s for %d ms before that accepts it", group, next.owner, d)
		}
		m.grantedTo(next, group)
		m.w.mark("grant given")
		return
	}
	m.w.mark("claim")
	if isHoldLane(group) {
		h := m.lanes.holds[slices.IndexFunc(m.lanes.holds, func(h *holdSpan) bool {
			return h.id == m.lanes.item[group] && h.to == nil
		})]
		h.tokens = append(h.tokens, next.token)
	}
	m.joins(group, next)
	m.claim(group, g, next)
}

// claim holds a new claim to G1: it has the first items of its group, as its transaction saw it.
func (m *model) claim(group string, g *groupState, l *lockState) {
	key := claimKey{group, l.token}
	if _, twice := m.claims[key]; twice {
		m.violation("claim %d of %q is there twice", l.token, group)
	}
	made := claimed{r: m.r, out: l.out, state: string(m.db[keyFor("state", group)])}
	if set, now := m.after[keyFor("state", group)]; now {
		made.state = string(set) // by an ack in the same transaction
	}
	if len(l.out) == 0 {
		m.violation("claim %d of %q has no items", l.token, group)
		return
	}
	for i, id := range l.out {
		s, there := g.items[id]
		if !there {
			m.violation("G3: claim %d of %q has %s, which is not there", l.token, group, id)
		}
		if due := m.earliest(&s); due > m.r.nowMS {
			m.mistimed("claim %d of %q has %s, which is due in %d ms", l.token, group, id, due-m.r.nowMS)
		}
		if s.dueMS > 0 {
			m.w.mark("claim of what was kept back")
		}
		made.bodies = append(made.bodies, s.body)
		if i > 0 && !before(l.out[i-1], id) {
			m.violation("G1: claim %d of %q is out of order at %s", l.token, group, id)
		}
	}
	m.claims[key] = made
	m.pacing.started[group] += len(l.out)
	last := l.out[len(l.out)-1]
	for id, s := range g.items {
		if m.seen(s) && before(id, last) && !l.has(id) {
			m.violation("G1: claim %d of %q passes over %s", l.token, group, id)
		}
	}
}

// stop notes when a claim ended.
func (m *model) stop(key claimKey) {
	c := m.claims[key]
	c.ends = m.r.step
	m.claims[key] = c
}

// ended holds the end of a claim whose lease lasts to its causes: its holder, or an operator.
func (m *model) ended(group string, l *lockState, gone map[layer.ID]bool) {
	for _, o := range m.w.ops {
		if (o.limited || o.outcome == unknown || o.kind == "ack-receive") && o.attemptID == "" && o.who == m.r.who && l.owner == fmt.Sprintf("handle %d", m.r.who) && o.begin <= m.r.step && len(o.claims) == 0 && (o.kind == "receive" || o.kind == "ack-receive") {
			return // its claim is returned, because its caller has left
		}
		if !o.maybeAt(m.r) {
			continue
		}
		if o.group == group && (o.settle && o.token == l.token || o.forcing && !o.spares(l)) || o.forces(group) {
			return
		}
	}
	if m.w.handleOf(m.r.who).consumed && l.owner == fmt.Sprintf("handle %d", m.r.who) {
		return // its worker has ended it
	}
	m.mistimed("G2: claim %d of %q, which lasts for %d ms, was ended by nobody", l.token, group, l.endMS-m.r.nowMS)
}

// spares reports whether an operation that may end claims was told that it has ended another.
func (o *op) spares(l *lockState) bool {
	return strings.HasPrefix(o.kind, "force-release") && o.outcome == done && o.token != l.token
}

// maybeAt reports whether the operation may have made the record.
func (o *op) maybeAt(r *record) bool {
	switch o.outcome {
	case done:
		return o.begin <= r.step && r.step <= o.end
	case unknown:
		return o.begin <= r.step
	case refused:
	}
	return false
}
