package layer_test

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"fdbfifo/internal/seeds"
	"fdbfifo/kv"
	"fdbfifo/kv/fault"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

func init() {
	if err := flag.Set("rapid.seed", fmt.Sprint(seeds.Of("layertest"))); err != nil {
		panic(err)
	}
}

// TestModel runs random operations against the queue, and against a model that is too simple to be wrong. After each
// operation it compares everything that a caller can see (G1, G2, G3, and section 8 of the design: attempts).
//
// Replay: rapid prints the seed and a file; faults and random choices hang on values that it draws.
func TestModel(t *testing.T) {
	onEngines(t, func(e *env) {
		var runs atomic.Int64
		faults := len(e.plan.Chances) > 0
		rapid.Check(e.t, func(t *rapid.T) {
			if n := runs.Add(1); strings.HasSuffix(e.t.Name(), "/disk") && n > maxModelRunsOnDisk {
				return
			}
			m := newModelTest(t, e, fmt.Sprintf("model-%d", runs.Load()), faults)
			t.Repeat(map[string]func(*rapid.T){
				"":         m.compare,
				"enqueue":  m.enqueue,
				"enqueue+": m.enqueue, // as often again: else the queue is empty most of the time
				"receive":  m.receive,
				"receive+": m.receive,
				"ack":      m.ack,
				"nack":     m.nack,
				"extend":   m.extend,
				"take":     m.take,
				"cancel":   m.cancel,
				"skip":     m.skip,
				"edit":     m.edit,
				"replace":  m.edit,
				"move":     m.reschedule,
				"force":    m.force,
				"retry":    m.retry,
				"purge":    m.purge,
				"pause":    m.pause,
				"resume":   m.resume,
				"advance":  m.advance,
				"abort":    m.abort,
				"redrive":  m.redrive,
				"discard":  m.discard,
				"check":    m.check,
				"dedup":    m.changeDedup,
			})
			m.drain(t)
			m.check(t)
		})
	})
}

// maxModelRunsOnDisk keeps the syncs of the disk engine from taking the time of the whole suite: what it has of
// its own is tested with the engine.
const maxModelRunsOnDisk = 10

// model is what a queue is: groups, each with items in order, and at most one lock.
type model struct {
	groups map[string]*modelGroup
	config layer.Config
	stats  layer.Stats
	sent   map[modelSent]*modelEntry // what is remembered
}

// modelSent is what two duplicates have in common.
type modelSent struct {
	inGroup        bool
	group, dedupID string
}

type modelEntry struct {
	id      layer.ID
	pending bool  // it lasts while the message is there
	untilMS int64 // of the window
	purged  bool  // since
}

// dedupID returns the dedup id of a message, or "".
func (m *model) dedupID(msg layer.Message) string {
	if msg.DedupID == "" && m.config.DedupByContent {
		return "body " + string(msg.Body)
	}
	return msg.DedupID
}

func (m *model) sentAs(group, dedupID string) modelSent {
	if !m.config.DedupInGroup {
		group = ""
	}
	return modelSent{m.config.DedupInGroup, group, dedupID}
}

// duplicate returns the message that msg is a duplicate of, or nil.
func (m *model) duplicate(msg layer.Message, nowMS int64) *layer.ID {
	dedupID := m.dedupID(msg)
	entry := m.sent[m.sentAs(msg.Group, dedupID)]
	if entry == nil || dedupID == "" {
		return nil
	}
	g := m.groups[entry.id.Group]
	there := slices.ContainsFunc(append(slices.Clone(g.items), g.dead...), func(item *modelItem) bool { return item.id == entry.id })
	if entry.pending && there || !entry.pending && nowMS < entry.untilMS && (there || !entry.purged) {
		return &entry.id
	}
	return nil
}

// full returns why an enqueue is refused, or nil.
func (m *model) full(msgs []layer.Message, nowMS int64) *layer.FullError {
	adding, seen := make(map[string]int), make(map[modelSent]bool)
	var groups []string
	for _, msg := range msgs {
		as := m.sentAs(msg.Group, m.dedupID(msg))
		if as.dedupID != "" && (seen[as] || m.duplicate(msg, nowMS) != nil) {
			continue
		}
		seen[as] = true
		if adding[msg.Group]++; adding[msg.Group] == 1 {
			groups = append(groups, msg.Group)
		}
	}
	for _, group := range groups {
		waiting := 0
		if g := m.groups[group]; g != nil {
			waiting = len(g.items)
		}
		if limit := m.config.MaxWaiting; limit > 0 && waiting+adding[group] > limit {
			return &layer.FullError{Group: group, Adding: int64(adding[group]), Max: int64(limit)}
		}
	}
	return nil
}

// A group's rate is counted in milliseconds times the rate's count: an item takes as many as the rate's time has
// milliseconds.

// saved is what a group has not used of its rate.
func (m *model) saved(g *modelGroup, nowMS int64) int64 {
	r := m.config.MaxRate
	most := max(1, int64(r.Count)*1000/r.Per.Milliseconds()) * r.Per.Milliseconds()
	return min(nowMS*int64(r.Count)-g.used, most)
}

// due is how many items of a group may be delivered by a clock that shows nowMS: those that are not delayed, as far as its
// rate goes.
func (m *model) due(g *modelGroup, nowMS int64) int {
	n := g.due(nowMS)
	if r := m.config.MaxRate; r.Count > 0 {
		n = min(n, int(max(0, m.saved(g, nowMS))/r.Per.Milliseconds()))
	}
	return n
}

// spend counts items that start their delivery.
func (m *model) spend(g *modelGroup, nowMS int64, n int) {
	if r := m.config.MaxRate; r.Count > 0 {
		g.used = nowMS*int64(r.Count) - m.saved(g, nowMS) + int64(n)*r.Per.Milliseconds()
	}
}

// pacedUntil is when a group's rate has room for an item.
func (m *model) pacedUntil(g *modelGroup) int64 {
	r := m.config.MaxRate
	if r.Count == 0 {
		return 0
	}
	return (g.used + r.Per.Milliseconds() + int64(r.Count) - 1) / int64(r.Count)
}

type modelGroup struct {
	items []*modelItem
	lock  *modelLock
	mark  *layer.Mark
	token int64 // the largest so far
	dead  []*modelItem
	done  []layer.ID // acked or taken, in the order of completion
	used  int64      // of its rate
}

type modelItem struct {
	id       layer.ID
	body     string
	dedupID  string
	dueMS    int64 // it is not delivered before
	attempts int
	suspect  bool // its lease has expired, and no call has ended since
	lastErr  string
	reason   string // of a dead letter
	deadMS   int64  // of a dead letter
}

type modelLock struct {
	claim       bool // else a delay
	proven      bool // its holder is known to know of it
	token       int64
	owner       string
	endMS       int64
	outstanding []layer.ID
	index       int64 // of the head when the timer was written: the group's place among those ready
}

func (g *modelGroup) item(id layer.ID) *modelItem {
	i := slices.IndexFunc(g.items, func(item *modelItem) bool { return item.id == id })
	if i < 0 {
		return nil
	}
	return g.items[i]
}

func (g *modelGroup) remove(ids []layer.ID) {
	gone := func(id layer.ID) bool { return slices.Contains(ids, id) }
	g.items = slices.DeleteFunc(g.items, func(item *modelItem) bool { return gone(item.id) })
	if g.lock != nil {
		g.lock.outstanding = slices.DeleteFunc(g.lock.outstanding, gone)
	}
}

// index is the group's place among those ready.
func (g *modelGroup) index() int64 {
	if g.lock != nil {
		return g.lock.index
	}
	return g.items[0].id.Index
}

// older reports whether a comes before b: by place, then by name.
func older(a, b *modelGroup) bool {
	x, y := a.index(), b.index()
	return x < y || x == y && a.items[0].id.Group < b.items[0].id.Group
}

// due is how many of the first items are not delayed by a clock that shows nowMS.
func (g *modelGroup) due(nowMS int64) int {
	i := slices.IndexFunc(g.items, func(item *modelItem) bool { return item.dueMS > nowMS })
	if i < 0 {
		return len(g.items)
	}
	return i
}

// free reports whether the group has items, and is not held by a clock that shows nowMS.
func (g *modelGroup) free(nowMS int64) bool {
	return len(g.items) > 0 && g.mark == nil && (g.lock == nil || g.lock.endMS <= nowMS)
}

// expired is whether a claim of the group has run out.
func (g *modelGroup) expired(nowMS int64) bool {
	return g.lock != nil && g.lock.claim && g.lock.endMS <= nowMS
}

// gives is free and due, for a receive that may have to dead-letter something first.
func (m *model) gives(g *modelGroup, nowMS int64) bool {
	if !g.free(nowMS) {
		return false
	}
	if !g.expired(nowMS) || !g.lock.proven || !m.fatal(g.item(g.lock.outstanding[0]).attempts+1, "") {
		return m.due(g, nowMS) > 0
	}
	rest := modelGroup{items: slices.Clone(g.items), used: g.used}
	rest.remove(g.lock.outstanding[:1])
	return m.config.OnFailure == layer.DeadLetterItem && m.due(&rest, nowMS) > 0
}

// tried reports whether the first item that a receive would give is suspect, and its failed attempts by then.
func (m *model) tried(g *modelGroup, nowMS int64) (suspect bool, attempts int) {
	if !g.expired(nowMS) {
		return g.items[0].suspect, g.items[0].attempts
	}
	tried := g.item(g.lock.outstanding[0])
	switch failed := tried.attempts + 1; {
	case g.lock.proven && m.fatal(failed, ""): // it becomes a dead letter: see gives
		next := g.items[slices.IndexFunc(g.items, func(item *modelItem) bool { return item != tried })]
		return next.suspect, next.attempts
	case g.lock.proven, !tried.suspect && !m.fatal(failed, ""):
		return true, failed
	}
	return true, tried.attempts
}

// fatal reports whether an item has failed for good after so many attempts.
func (m *model) fatal(attempts int, rejected string) bool {
	c := m.config
	return c.OnFailure != layer.Block && (rejected != "" || c.MaxAttempts > 0 && attempts >= c.MaxAttempts)
}

// expire is fail for a claim whose lease has ended. If its holder may not know of it nothing counts twice, nor for the
// last time, and its items are suspect.
func (m *model) expire(g *modelGroup, w *modelWorker, spared *layer.ID) {
	text, tried := "lease expired, held by "+g.lock.owner, g.item(g.lock.outstanding[0])
	if g.lock.proven {
		m.fail(g, w, text, "", spared)
		tried.suspect = true
		return
	}
	if !tried.suspect && !m.fatal(tried.attempts+1, "") {
		tried.attempts++
	}
	for _, id := range g.lock.outstanding {
		g.item(id).suspect, g.item(id).lastErr = true, text
	}
}

// fail counts a failed delivery of the item that was tried under the group's claim, which ends. It returns false if
// the item has failed for good.
func (m *model) fail(g *modelGroup, w *modelWorker, text, rejected string, spared *layer.ID) bool {
	tried := g.item(g.lock.outstanding[0])
	tried.attempts++
	tried.suspect, tried.lastErr = false, text
	g.lock = nil
	if !m.fatal(tried.attempts, rejected) || spared != nil && *spared == tried.id {
		return true
	}
	reason := rejected
	if reason == "" {
		reason = fmt.Sprintf("%d attempts failed", tried.attempts)
		if tried.attempts == 1 {
			reason = "1 attempt failed"
		}
	}
	now := w.now().UnixMilli()
	if m.config.OnFailure == layer.HaltGroup {
		if g.mark == nil || g.mark.Status != layer.Halted {
			g.mark = &layer.Mark{Status: layer.Halted, By: w.name, Reason: reason + ": " + text, Since: time.UnixMilli(now)}
		}
		return false
	}
	m.putAside(g, tried, reason, now)
	return false
}

// putAside makes a dead letter of an item, or halts its group.
func (m *model) putAside(g *modelGroup, item *modelItem, reason string, nowMS int64) {
	item.reason, item.deadMS, item.suspect = reason, nowMS, false
	g.remove([]layer.ID{item.id})
	g.dead = append(g.dead, item)
	slices.SortFunc(g.dead, func(a, b *modelItem) int { return cmp.Compare(a.id.Index, b.id.Index) })
	m.stats.DeadLettered++
}

// modelTest drives a queue and its model.
type modelTest struct {
	e       *env
	faults  bool
	model   model
	workers []*modelWorker
	calm    *layer.Queue // without faults and skew
	name    string       // of the queue
	claims  []*modelClaim
	gone    []layer.ID // cancelled
	// jumped: an item came back to its old place. Then hints and claims may not know of failures before it, and a group
	// may have more than one hint. With RoundRobin the same applies, and the places of groups differ. With shards the
	// places of heads of the same index differ.
	jumped bool
	// delays: messages may be delayed. kept: one was, or groups have a rate. Then hints and timers may be stale, and the
	// order between groups hangs on which are met first.
	delays, kept bool
	bodies       int
	// names are the groups, and dedupIDs what messages draw their dedup ids from. In one run of four all are as long as
	// they may be, and of NULs, which are two bytes each in a key. large: in such a run bodies are large, too.
	names, dedupIDs []string
	large           bool
}

type modelWorker struct {
	name string
	q    *layer.Queue
	now  func() time.Time
	gave []modelSuspect // the claims of suspect items that may last, in order
}

// modelSuspect is a claim of a suspect item that a worker was given.
type modelSuspect struct {
	group   string
	token   int64
	sinceMS int64
	grave   bool // the item was alone when its lease expired
}

// modelClaim is a claim that a worker was given at some time, and never forgets.
type modelClaim struct {
	w     *modelWorker
	claim *layer.Claim
}

func newModelTest(t *rapid.T, e *env, name string, faults bool) *modelTest {
	m := &modelTest{e: e, name: name, faults: faults, model: model{
		groups: make(map[string]*modelGroup), sent: make(map[modelSent]*modelEntry),
	}}
	m.names, m.dedupIDs = []string{"A", "B", "C", "D", ""}, []string{"", "", "", "", "x", "y", "z"}
	if m.large = rapid.IntRange(0, 3).Draw(t, "sizes") == 3; m.large {
		for i := range 4 {
			m.names[i] = nuls(layer.MaxGroupSize, i)
			m.dedupIDs[3+i] = nuls(layer.MaxDedupIDSize, i)
		}
	}
	seed := rapid.Uint64Range(1, 1<<40).Draw(t, "seed")
	db := e.raw
	if faults {
		plan := fault.Default(seed)
		db = fault.Wrap(e.raw, plan)
		t.Cleanup(func() {
			if t.Failed() {
				t.Logf("%s", plan)
			}
		})
	}
	handles := uint64(0)
	open := func(db kv.DB, owner string, skew time.Duration) *modelWorker {
		handles++ // no two of one seed: they would give the same ids
		w := &modelWorker{name: owner, now: func() time.Time { return e.clock.now().Add(skew) }}
		var err error
		w.q, err = layer.Open(e.ctx, db, testPrefix, name, layer.Options{
			Owner: owner, Now: w.now, Test: &layer.TestOptions{Seed: seed + handles}, Tx: kv.TxOptions{MaxRetryDelay: time.Millisecond},
		})
		require.NoError(t, err)
		return w
	}
	m.delays = rapid.Bool().Draw(t, "delays")
	m.model.config = layer.Config{
		Retry:           layer.RetryPolicy{Kind: rapid.SampledFrom([]layer.RetryKind{layer.RetryAtOnce, layer.RetryConstant}).Draw(t, "retry")},
		MaxAttempts:     rapid.IntRange(0, 3).Draw(t, "max attempts"),
		OnFailure:       layer.OnFailure(rapid.IntRange(0, 2).Draw(t, "on failure")),
		DedupForPending: rapid.Bool().Draw(t, "dedup for pending"),
		DedupInGroup:    rapid.Bool().Draw(t, "dedup in group"),
		DedupByContent:  rapid.SampledFrom([]bool{false, false, true}).Draw(t, "dedup by content"),
		DedupWindow:     time.Minute,
		MaxWaiting:      rapid.SampledFrom([]int{0, 0, 4}).Draw(t, "max waiting"),
		MaxRate: rapid.SampledFrom([]layer.Rate{
			{}, {}, {}, {Count: 3, Per: time.Second}, {Count: 7, Per: time.Minute}, {Count: 2, Per: 2500 * time.Millisecond},
		}).Draw(t, "max rate"),
		Archive:    rapid.SampledFrom([]time.Duration{0, 10 * 365 * 24 * time.Hour}).Draw(t, "archive"),
		RoundRobin: rapid.SampledFrom([]bool{false, false, true}).Draw(t, "round robin"),
		Shards:     rapid.SampledFrom([]int{1, 1, 1, 3}).Draw(t, "shards"),
	}
	m.jumped = m.model.config.RoundRobin || m.model.config.Shards > 1
	m.kept = m.model.config.MaxRate.Count > 0
	_, err := layer.Create(e.ctx, e.raw, testPrefix, name, layer.Options{Test: &layer.TestOptions{Seed: seed}, Config: m.model.config})
	require.NoError(t, err)
	m.workers = []*modelWorker{open(db, "even", 0), open(db, "ahead", 30*time.Second), open(db, "behind", -30*time.Second)}
	m.calm = open(e.raw, "", 0).q
	return m
}

// key builds a key of the queue by hand.
func (m *modelTest) key(elements ...any) []byte {
	return append(append([]byte(nil), testPrefix...), append(tuple.Tuple{m.name}, elements...).Pack()...)
}

func (m *modelTest) worker(t *rapid.T) *modelWorker {
	return m.workers[rapid.IntRange(0, len(m.workers)-1).Draw(t, "worker")]
}

func (m *modelTest) group(name string) *modelGroup {
	g := m.model.groups[name]
	if g == nil {
		g = &modelGroup{}
		m.model.groups[name] = g
	}
	return g
}

// mostInline is how large a value of an item is, before the rest of the body goes into parts.
const mostInline = 90_000 // bytes

func (m *modelTest) messages(t *rapid.T) []layer.Message {
	msgs := make([]layer.Message, rapid.IntRange(1, 6).Draw(t, "messages"))
	for i := range msgs {
		m.bodies++
		msgs[i] = layer.Message{
			Group: rapid.SampledFrom(m.names).Draw(t, "group"),
			Body:  []byte(fmt.Sprint(m.bodies)),

			DedupID: rapid.SampledFrom(m.dedupIDs).Draw(t, "dedup id"),
		}
		if rapid.IntRange(0, 3).Draw(t, "the same body") == 0 {
			msgs[i].Body = []byte(rapid.SampledFrom([]string{"u", "v"}).Draw(t, "body"))
		} else if m.large && rapid.IntRange(0, 5).Draw(t, "size") == 0 {
			// The size is near that from which a body has parts, whatever the headers.
			size := mostInline - rapid.IntRange(0, 200).Draw(t, "bytes less")
			if rapid.Bool().Draw(t, "headers") {
				msgs[i].Headers = map[string]string{"h": nuls(layer.MaxHeadersSize-1, i)}
				size -= 2 * layer.MaxHeadersSize
			}
			msgs[i].Body = append(msgs[i].Body, strings.Repeat(" ", size)...)
		}
	}
	for i := range msgs {
		if m.delays {
			msgs[i].Delay = time.Duration(rapid.SampledFrom([]int{0, 0, 0, 5, 20, 40}).Draw(t, "delay")) * time.Second
		}
	}
	return msgs
}

func (m *modelTest) enqueue(t *rapid.T) {
	w, msgs := m.worker(t), m.messages(t)
	var sent []layer.Sent
	var err error
	found := false
	alike := slices.ContainsFunc(msgs, func(msg layer.Message) bool { return msg.Body[0] >= 'a' }) // not to be found by its body
	if alike || rapid.Bool().Draw(t, "in own transaction") {
		sent, err = w.q.Enqueue(m.e.ctx, msgs...)
	} else {
		err = w.q.Once(m.e.ctx, func(tx kv.Tx) (err error) {
			sent, err = w.q.EnqueueTx(m.e.ctx, tx, msgs...)
			return err
		})
		if err == nil && m.faults {
			// The attempt that landed may be another than the last that ran: look the ids up.
			sent, found = m.find(t, msgs), true
		}
	}
	if full := m.model.full(msgs, w.now().UnixMilli()); full != nil {
		var got *layer.FullError
		require.ErrorAs(t, err, &got)
		require.Equal(t, full, got)
		return
	}
	require.NoError(t, err)
	require.Len(t, sent, len(msgs))
	accepted := int64(0)
	for i, id := range idsOf(sent) {
		g := m.group(msgs[i].Group)
		first := m.model.duplicate(msgs[i], w.now().UnixMilli())
		switch {
		case first != nil && found:
			m.model.stats.Duplicates++
			require.Zero(t, id, "message %s is a duplicate", msgs[i].Body)
			continue
		case first != nil:
			m.model.stats.Duplicates++
			require.Equal(t, layer.Sent{ID: *first, Duplicate: true}, sent[i])
			continue
		}
		require.False(t, sent[i].Duplicate, "message %s is no duplicate", msgs[i].Body)
		accepted++
		require.Equal(t, msgs[i].Group, id.Group)
		if n := len(g.items); n > 0 {
			require.Greater(t, id.Index, g.items[n-1].id.Index, "the index of a group grows (G1)")
		}
		item := &modelItem{id: id, body: string(msgs[i].Body), dedupID: m.model.dedupID(msgs[i])}
		if msgs[i].Delay > 0 {
			item.dueMS, m.kept = w.now().Add(msgs[i].Delay).UnixMilli(), true
		}
		g.items = append(g.items, item)
		if item.dedupID != "" {
			m.model.sent[m.model.sentAs(msgs[i].Group, item.dedupID)] = &modelEntry{
				id: id, pending: m.model.config.DedupForPending,
				untilMS: w.now().Add(m.model.config.DedupWindow).UnixMilli(),
			}
		}
	}
	m.model.stats.Enqueued += accepted
}

func (m *modelTest) find(t *rapid.T, msgs []layer.Message) []layer.Sent {
	sent := make([]layer.Sent, len(msgs))
	for i, msg := range msgs {
		items, err := m.calm.Peek(m.e.ctx, msg.Group, layer.MaxBatch, nil)
		require.NoError(t, err)
		for _, item := range items {
			if string(item.Body) == string(msg.Body) {
				require.Zero(t, sent[i], "message %s is there twice", msg.Body)
				sent[i].ID = item.ID
			}
		}
	}
	return sent
}

// findRandom finds an item that goes on under another id.
func (m *modelTest) findRandom(t *rapid.T, old layer.ID) layer.ID {
	items, err := m.calm.Peek(m.e.ctx, old.Group, layer.MaxBatch, nil)
	require.NoError(t, err)
	for _, item := range items {
		if item.ID.Random == old.Random {
			return item.ID
		}
	}
	t.Fatalf("%s is not there", old)
	return layer.ID{}
}

// changeDedup changes the settings of de-duplication. The remembered entries stay unchanged.
func (m *modelTest) changeDedup(t *rapid.T) {
	change := func(c *layer.Config) {
		c.DedupByContent, c.DedupInGroup = m.model.config.DedupByContent, m.model.config.DedupInGroup
		c.DedupForPending = m.model.config.DedupForPending
		c.DedupWindow = m.model.config.DedupWindow
	}
	c := &m.model.config
	c.DedupByContent = rapid.Bool().Draw(t, "dedup by content")
	c.DedupInGroup = rapid.Bool().Draw(t, "dedup in group")
	c.DedupForPending = rapid.Bool().Draw(t, "dedup for pending")
	c.DedupWindow = time.Duration(rapid.IntRange(1, 120).Draw(t, "dedup window")) * time.Second
	_, _, err := m.worker(t).q.Admin().Configure(m.e.ctx, change)
	require.NoError(t, err)
	m.e.clock.advance(time.Second) // until when all follow
}

func (m *modelTest) receive(t *rapid.T) {
	w := m.worker(t)
	o := layer.ReceiveOptions{
		Max:       rapid.IntRange(1, 8).Draw(t, "max"),
		MaxGroups: rapid.IntRange(0, 3).Draw(t, "groups"),
		Lease:     time.Duration(rapid.IntRange(1, 60).Draw(t, "lease")) * time.Second,
	}
	claims, err := w.q.Receive(m.e.ctx, o)
	require.NoError(t, err)
	m.received(t, w, o, claims)
}

// received checks the claims against the model, and adds them to it.
func (m *modelTest) received(t *rapid.T, w *modelWorker, o layer.ReceiveOptions, claims []*layer.Claim) {
	now := w.now().UnixMilli()
	defer m.met(t, w)
	m.checkChoice(t, w, o, claims)
	left := o.Max
	for _, c := range claims {
		g := m.group(c.Group)
		require.True(t, g.free(now), "group %q is held or empty", c.Group)
		require.Greater(t, c.Token, g.token, "the token of a group grows")
		require.Equal(t, now+o.Lease.Milliseconds(), c.Until.UnixMilli())
		m.lapse(g, w, nil)
		n := min(left, m.model.due(g, now))
		suspect := g.items[0].suspect
		if suspect {
			n = min(n, 1)
			require.Len(t, claims, 1, "a suspect message comes alone")
		}
		for i := 1; i < n; i++ {
			if g.items[i].suspect {
				n = i
			}
		}
		require.Len(t, c.Items, n, "all that fits of a group and is due is delivered, up to a suspect message")
		m.model.spend(g, now, n)
		g.lock = &modelLock{claim: true, token: c.Token, owner: w.name, endMS: now + o.Lease.Milliseconds()}
		if g.token, g.lock.proven = c.Token, suspect; suspect {
			w.gave = append(w.gave, modelSuspect{c.Group, c.Token, now, g.items[0].attempts > 1})
		}
		for i, item := range c.Items {
			m.delivered(t, g.items[i], item)
			g.lock.outstanding = append(g.lock.outstanding, item.ID)
		}
		g.lock.index = g.items[0].id.Index
		left -= n
		m.model.stats.Received += int64(n)
		m.claims = append(m.claims, &modelClaim{w, c})
	}
}

// lapse ends the lock of a group whose time has run out, as the worker that met it would. An item that is spared is not
// a dead letter.
func (m *modelTest) lapse(g *modelGroup, w *modelWorker, spared *layer.ID) {
	if g.lock != nil && g.lock.claim {
		m.model.stats.Expired++
		m.model.expire(g, w, spared)
	}
	g.lock = nil
}

// checkChoice holds a receive to the choice of groups: it finds something if there is something, and if no fault
// makes it spread and no timer is due, it takes the oldest heads, and as many as it may.
func (m *modelTest) checkChoice(t *rapid.T, w *modelWorker, o layer.ReceiveOptions, claims []*layer.Claim) {
	now := w.now().UnixMilli()
	var ready []*modelGroup
	due, refused := 0, 0
	for _, g := range m.model.groups {
		switch {
		case !m.model.gives(g, now):
		case !m.mayGive(w, g, now):
			refused++
		default:
			ready = append(ready, g)
			if g.lock != nil {
				due++
			}
		}
	}
	require.Equal(t, len(ready) > 0, len(claims) > 0, "something is found if and only if something is ready")
	if m.faults || m.jumped || len(ready) == 0 || m.kept || refused > 0 {
		return
	}
	sort.Slice(ready, func(i, j int) bool { return older(ready[i], ready[j]) })
	if due <= 1 {
		require.Equal(t, ready[0].index(), m.group(claims[0].Group).index(), "the oldest head comes first")
	}
	items, groups, maxGroups := 0, 0, o.MaxGroups
	if maxGroups == 0 {
		maxGroups = o.Max
	}
	for _, g := range ready {
		if items == o.Max || groups == maxGroups || groups > 0 && m.comesAlone(g, now) {
			break
		}
		if due == 0 {
			require.Greater(t, len(claims), groups, "there is more")
			require.Equal(t, g.items[0].id, claims[groups].Items[0].ID, "oldest heads first")
		}
		items += min(o.Max-items, len(g.items))
		if groups++; m.comesAlone(g, now) {
			break
		}
	}
	if due == 0 {
		require.Len(t, claims, groups)
	}
}

// suspectPause is how long a worker waits for a suspect item that it has, before it gets another.
const suspectPause = 30_000 // ms

// mayGive reports whether a receive of the worker may find a group that is free, and forgets what is over. A worker
// gets the next suspect item when the one before is settled, or after a pause. One that was alone when its lease
// expired excludes all others.
func (m *modelTest) mayGive(w *modelWorker, g *modelGroup, now int64) bool {
	alone, attempts := m.model.tried(g, now)
	if !alone {
		return true
	}
	grave, last := attempts > 1, len(w.gave)-1
	var over []modelSuspect
	defer func() {
		w.gave = slices.DeleteFunc(w.gave, func(s modelSuspect) bool { return slices.Contains(over, s) })
	}()
	for i, s := range w.gave {
		if !s.grave && !grave && (i < last || now < s.sinceMS || now-s.sinceMS >= suspectPause) {
			continue
		}
		if lock := m.group(s.group).lock; lock != nil && lock.token == s.token && lock.endMS > now {
			return false
		}
		over = append(over, s)
	}
	return true
}

// comesAlone reports whether the group's head is suspect once it is received.
func (m *modelTest) comesAlone(g *modelGroup, now int64) bool {
	return g.items[0].suspect || g.expired(now)
}

func (m *modelTest) same(t *rapid.T, want *modelItem, got layer.Item) {
	require.Equal(t, want.id, got.ID)
	require.Equal(t, want.body, string(got.Body))
	require.Equal(t, want.attempts, got.Attempts, "attempts of %s", want.body)
}

// delivered is same for an item that was delivered: a claim may know of fewer attempts than the record.
func (m *modelTest) delivered(t *rapid.T, want *modelItem, got layer.Item) {
	if m.jumped {
		require.LessOrEqual(t, got.Attempts, want.attempts)
		got.Attempts = want.attempts
	}
	m.same(t, want, got)
}

// pick chooses a claim, live or lost, and some of the items it was given.
func (m *modelTest) pick(t *rapid.T) (*modelClaim, []layer.ID) {
	if len(m.claims) == 0 {
		t.Skip("no claim yet")
	}
	// The late ones more often: most of the old ones are lost.
	i := min(rapid.IntRange(0, len(m.claims)-1).Draw(t, "claim"), rapid.IntRange(0, len(m.claims)-1).Draw(t, "or"))
	given := m.claims[len(m.claims)-1-i]
	same := *given.claim // as it was given, so that acks twice are tried
	c := &modelClaim{given.w, &same}
	var ids []layer.ID
	for _, item := range c.claim.Items {
		if rapid.Bool().Draw(t, "this") {
			ids = append(ids, item.ID)
		}
	}
	return c, ids
}

// held returns the claim's group if the claim is live, and checks err if it is not, or if ids are not all
// outstanding: then nothing may have changed.
func (m *modelTest) held(t *rapid.T, c *modelClaim, ids []layer.ID, err error) *modelGroup {
	g := m.group(c.claim.Group)
	if g.lock == nil || !g.lock.claim || g.lock.token != c.claim.Token {
		require.ErrorIs(t, err, layer.ErrClaimLost)
		return nil
	}
	for _, id := range ids {
		if !slices.Contains(g.lock.outstanding, id) {
			require.ErrorIs(t, err, layer.ErrNotInClaim)
			return nil
		}
	}
	require.NoError(t, err)
	return g
}

func (m *modelTest) ack(t *rapid.T) {
	c, ids := m.pick(t)
	q := m.worker(t).q // any handle may settle a claim
	var err error
	own := rapid.Bool().Draw(t, "in own transaction")
	switch {
	case own && len(ids) == 0:
		err = q.Ack(m.e.ctx, c.claim)
	case own:
		err = q.AckItems(m.e.ctx, c.claim, ids)
	default:
		err = q.Once(m.e.ctx, func(tx kv.Tx) error {
			if len(ids) == 0 {
				return q.AckTx(m.e.ctx, tx, c.claim)
			}
			return q.AckItemsTx(m.e.ctx, tx, c.claim, ids)
		})
	}
	g := m.held(t, c, ids, err)
	if g == nil {
		return
	}
	if len(ids) == 0 {
		ids = slices.Clone(g.lock.outstanding)
	}
	m.acked(g, ids)
}

// acked removes items, and ends the claim with its last.
func (m *modelTest) acked(g *modelGroup, ids []layer.ID) {
	g.remove(ids)
	g.done = append(g.done, ids...)
	m.model.stats.Acked += int64(len(ids))
	if len(g.lock.outstanding) == 0 {
		g.lock = nil
	}
}

func (m *modelTest) nack(t *rapid.T) {
	c, ids := m.pick(t)
	w := m.worker(t)
	o := layer.NackOptions{
		Release: rapid.Bool().Draw(t, "release"),
		Delay:   time.Duration(rapid.SampledFrom([]int{0, 0, 1, 10, 60}).Draw(t, "delay")) * time.Second,
		Err:     errors.New("boom"),
	}
	if !o.Release && o.Delay == 0 && rapid.IntRange(0, 3).Draw(t, "reject") == 0 {
		o.Reject = "no use"
	}
	if o.Release && o.Delay == 0 && rapid.Bool().Draw(t, "behind") {
		o.Behind, m.jumped = true, true // the place of the group is not its head's
	}
	nack := func() error {
		return w.q.Settle(m.e.ctx, layer.Settlement{Claim: c.claim, Finish: ids, Nack: &o})
	}
	named := ids
	if o.Release && !o.Behind && o.Delay == 0 && rapid.Bool().Draw(t, "from one on") {
		from := rapid.SampledFrom(c.claim.Items).Draw(t, "from").ID
		o.From = &from
		if slices.Contains(ids, from) {
			// It is acked and so not there to be given back; or the claim is lost.
			err := nack()
			require.True(t, errors.Is(err, layer.ErrNotInClaim) || errors.Is(err, layer.ErrClaimLost), "%v", err)
			return
		}
		named = append(slices.Clone(ids), from)
	}
	g := m.held(t, c, named, nack())
	if g == nil {
		return
	}
	if o.From != nil {
		var kept []layer.ID
		for _, id := range g.lock.outstanding {
			if id == *o.From {
				break
			}
			if !slices.Contains(ids, id) {
				kept = append(kept, id)
			}
		}
		g.remove(ids)
		g.done = append(g.done, ids...)
		m.model.stats.Acked += int64(len(ids))
		if g.lock.outstanding = kept; len(kept) == 0 {
			g.lock = nil
		}
		return
	}
	if m.acked(g, ids); g.lock == nil {
		return
	}
	head := g.lock.outstanding[0]
	again := true
	if !o.Release {
		m.model.stats.Nacked++
		again = m.model.fail(g, w, "boom", o.Reject, nil)
		if o.Delay == 0 && m.model.config.Retry.Kind == layer.RetryConstant {
			o.Delay = 100 * time.Millisecond
		}
	}
	g.lock = nil
	if again && o.Delay > 0 && g.mark == nil {
		g.lock = &modelLock{endMS: w.now().Add(o.Delay).UnixMilli(), index: head.Index}
	}
}

func (m *modelTest) extend(t *rapid.T) {
	c, _ := m.pick(t)
	w := m.worker(t)
	lease := time.Duration(rapid.IntRange(1, 60).Draw(t, "lease")) * time.Second
	until, err := w.q.Extend(m.e.ctx, c.claim, lease)
	if g := m.held(t, c, nil, err); g != nil {
		g.lock.endMS, g.lock.index = w.now().Add(lease).UnixMilli(), g.lock.outstanding[0].Index
		require.Equal(t, g.lock.endMS, until.UnixMilli())
	}
}

func (m *modelTest) take(t *rapid.T) {
	w, limit := m.worker(t), rapid.IntRange(1, 5).Draw(t, "max")
	now := w.now().UnixMilli()
	defer m.met(t, w)
	var oldest *modelGroup
	due := 0
	for _, g := range m.model.groups {
		if !m.model.gives(g, now) {
			continue
		}
		if g.lock != nil {
			due++
		}
		if oldest == nil || older(g, oldest) {
			oldest = g
		}
	}
	items, err := m.e.take(w.q, limit, layer.TakeOptions{})
	require.NoError(t, err)
	if oldest == nil {
		require.Empty(t, items)
		return
	}
	require.NotEmpty(t, items)
	g := m.group(items[0].ID.Group)
	require.True(t, g.free(now), "group %q is held", items[0].ID.Group)
	if due <= 1 && !m.jumped && !m.kept {
		require.Equal(t, oldest.index(), g.index(), "the oldest head is taken")
	}
	m.lapse(g, w, nil)
	require.Equal(t, g.items[0].id, items[0].ID)
	require.Len(t, items, min(limit, m.model.due(g, now)))
	m.model.spend(g, now, len(items))
	var ids []layer.ID
	for i, item := range items {
		m.delivered(t, g.items[i], item)
		ids = append(ids, item.ID)
	}
	g.remove(ids)
	g.done = append(g.done, ids...)
	m.model.stats.Taken += int64(len(ids))
}

// anyItem chooses an item that is there, or now and then one that was.
func (m *modelTest) anyItem(t *rapid.T) layer.ID {
	var ids []layer.ID
	for _, name := range slices.Sorted(maps.Keys(m.model.groups)) {
		for _, item := range m.model.groups[name].items {
			ids = append(ids, item.id)
		}
	}
	ids = append(ids, m.gone...)
	if len(ids) == 0 {
		t.Skip("no item yet")
	}
	return rapid.SampledFrom(ids).Draw(t, "item")
}

// waits returns the group of an item that an operator of the worker may change, and checks err if he may not.
func (m *modelTest) waits(t *rapid.T, w *modelWorker, id layer.ID, err error) *modelGroup {
	g := m.group(id.Group)
	if g.item(id) == nil {
		require.ErrorIs(t, err, layer.ErrNoItem)
		return nil
	}
	if g.lock != nil && slices.Contains(g.lock.outstanding, id) {
		if g.lock.endMS > w.now().UnixMilli() {
			require.ErrorIs(t, err, layer.ErrInFlight)
			return nil
		}
		m.lapse(g, w, &id)
	}
	require.NoError(t, err)
	return g
}

func (m *modelTest) cancel(t *rapid.T) {
	w, id := m.worker(t), m.anyItem(t)
	m.cancelled(t, w, id, w.q.Admin().Cancel(m.e.ctx, id))
}

func (m *modelTest) cancelled(t *rapid.T, w *modelWorker, id layer.ID, err error) {
	if g := m.takenOut(t, w, id, err); g != nil {
		g.remove([]layer.ID{id})
		m.gone = append(m.gone, id)
		m.model.stats.Cancelled++
	}
}

// takenOut returns the group of an item that was to be taken out of it, or nil if it was not.
func (m *modelTest) takenOut(t *rapid.T, w *modelWorker, id layer.ID, err error) *modelGroup {
	g := m.waits(t, w, id, err)
	if g != nil && g.lock != nil && !g.lock.claim && g.items[0].id == id {
		g.lock = nil // the delay was for this item
	}
	return g
}

func (m *modelTest) skip(t *rapid.T) {
	w := m.worker(t)
	name := rapid.SampledFrom(m.names).Draw(t, "group")
	id, err := w.q.Admin().Skip(m.e.ctx, name, layer.SkipOptions{By: "op", Reason: "why"})
	g := m.group(name)
	if len(g.items) == 0 {
		require.ErrorIs(t, err, layer.ErrNoItem)
		return
	}
	head := g.items[0]
	if err == nil {
		require.Equal(t, head.id, id)
	}
	if m.takenOut(t, w, head.id, err) != nil {
		m.model.putAside(g, head, "skipped by op: why", w.now().UnixMilli())
	}
}

func (m *modelTest) edit(t *rapid.T) {
	w, id := m.worker(t), m.anyItem(t)
	m.bodies++
	body := fmt.Sprint(m.bodies)
	err := error(nil)
	if rapid.Bool().Draw(t, "replace") {
		err = w.q.Replace(m.e.ctx, id, []byte(body), nil)
	} else {
		err = w.q.Admin().Edit(m.e.ctx, id, func(msg *layer.Message) error {
			msg.Body = []byte(body)
			return nil
		})
	}
	if g := m.waits(t, w, id, err); g != nil {
		g.item(id).body = body
	}
}

func (m *modelTest) reschedule(t *rapid.T) {
	w, id := m.worker(t), m.anyItem(t)
	in := time.Duration(rapid.SampledFrom([]int{-10, 0, 0, 5, 20, 40}).Draw(t, "in")) * time.Second
	now := w.now().UnixMilli()
	err := w.q.Reschedule(m.e.ctx, id, w.now().Add(in))
	dueMS := max(now, w.now().Add(in).UnixMilli())
	g := m.group(id.Group)
	if item := g.item(id); item != nil && max(item.dueMS, dueMS) <= now {
		held := g.lock != nil && g.lock.claim && g.lock.endMS > now && slices.Contains(g.lock.outstanding, id)
		require.Equal(t, held, errors.Is(err, layer.ErrInFlight))
		require.True(t, held || err == nil, "%v", err)
		return // due before and after: nothing changes
	}
	if g := m.waits(t, w, id, err); g != nil {
		g.item(id).dueMS, m.kept = dueMS, true
	}
}

func (m *modelTest) force(t *rapid.T) {
	w := m.worker(t)
	name := rapid.SampledFrom(m.names).Draw(t, "group")
	o := layer.ForceReleaseOptions{CountAttempt: rapid.Bool().Draw(t, "count")}
	h, err := w.q.Admin().ForceRelease(m.e.ctx, name, o)
	g := m.group(name)
	if g.lock == nil || !g.lock.claim {
		require.ErrorIs(t, err, layer.ErrNotHeld)
		return
	}
	require.NoError(t, err)
	require.Equal(t, layer.Holder{Owner: g.lock.owner, Token: g.lock.token, Outstanding: len(g.lock.outstanding)}, h)
	if o.CountAttempt {
		m.model.fail(g, w, "released by force, held by "+g.lock.owner, "", nil)
	}
	g.lock = nil
	m.model.stats.Forced++
}

func (m *modelTest) retry(t *rapid.T) {
	w := m.worker(t)
	name := rapid.SampledFrom(m.names).Draw(t, "group")
	err := w.q.Admin().RetryNow(m.e.ctx, name, layer.RetryOptions{})
	g := m.group(name)
	early := g.mark == nil && len(g.items) > 0 && g.due(w.now().UnixMilli()) == 0
	if g.lock == nil && !early || g.lock != nil && g.lock.claim {
		require.ErrorIs(t, err, layer.ErrNotDelayed)
		return
	}
	require.NoError(t, err)
	g.lock = nil
	if early {
		g.items[0].dueMS = 0
	}
}

func (m *modelTest) purge(t *rapid.T) {
	w := m.worker(t)
	names := slices.Sorted(maps.Keys(m.model.groups))
	o := layer.PurgeOptions{Force: rapid.Bool().Draw(t, "force")}
	if o.All = !rapid.Bool().Draw(t, "one group"); !o.All {
		name := rapid.SampledFrom(m.names).Draw(t, "group")
		o.Group, names = &name, []string{name}
	}
	got, err := w.q.Admin().Purge(m.e.ctx, o)
	require.NoError(t, err)
	for _, entry := range m.model.sent {
		entry.purged = entry.purged || o.Group == nil || *o.Group == entry.id.Group
	}
	var want layer.PurgeReport
	for _, name := range names {
		g := m.group(name)
		live := g.lock != nil && g.lock.claim && g.lock.endMS > w.now().UnixMilli()
		if !live || o.Force {
			g.used = 0
		}
		if len(g.items) == 0 {
			continue
		}
		var gone []layer.ID
		for _, item := range g.items {
			if live && !o.Force && slices.Contains(g.lock.outstanding, item.id) {
				want.Kept++
				continue
			}
			gone = append(gone, item.id)
		}
		want.Items += int64(len(gone))
		if live && o.Force {
			want.Forced++
		}
		if !live || o.Force {
			g.lock = nil
		}
		g.remove(gone)
		m.gone = append(m.gone, gone...)
	}
	require.Equal(t, want, got)
	m.model.stats.Purged += want.Items
	m.model.stats.Forced += want.Forced
}

func (m *modelTest) pause(t *rapid.T) {
	w := m.worker(t)
	name := rapid.SampledFrom(m.names).Draw(t, "group")
	o := layer.PauseOptions{By: "op", Reason: "why", Force: rapid.Bool().Draw(t, "force")}
	got, err := w.q.Admin().PauseGroup(m.e.ctx, name, o)
	require.NoError(t, err)
	g := m.group(name)
	if g.mark == nil {
		g.mark = &layer.Mark{Status: layer.Paused, By: "op", Reason: "why", Since: w.now()}
	}
	require.Equal(t, *g.mark, got)
	switch {
	case g.lock == nil:
	case !g.lock.claim:
		g.lock = nil
	case o.Force:
		g.lock = nil
		m.model.stats.Forced++
	}
}

func (m *modelTest) resume(t *rapid.T) {
	m.resumeGroup(t, m.worker(t), rapid.SampledFrom(m.names).Draw(t, "group"))
}

func (m *modelTest) resumeGroup(t *rapid.T, w *modelWorker, name string) {
	got, err := w.q.Admin().ResumeGroup(m.e.ctx, name, layer.ResumeOptions{})
	g := m.group(name)
	if g.mark == nil {
		require.ErrorIs(t, err, layer.ErrNotPaused)
		return
	}
	require.NoError(t, err)
	require.Equal(t, *g.mark, got)
	if g.mark.Status == layer.Halted && len(g.items) > 0 {
		g.items[0].attempts, g.items[0].suspect, g.items[0].lastErr = 0, false, "" // its attempts begin at 0 again
	}
	g.mark = nil
}

// met takes over what a receive or a take may have done on its way: a claim that has run out ends when it is met, on a
// paused group, and on one of which nothing is left to deliver because its head has failed for good.
func (m *modelTest) met(t *rapid.T, w *modelWorker) {
	for name, g := range m.model.groups {
		if g.lock == nil || g.lock.endMS > w.now().UnixMilli() {
			continue
		}
		tx, err := m.e.raw.Begin(kv.TxOptions{})
		require.NoError(t, err)
		held, err := tx.Get(m.key("lock", name)).Wait(m.e.ctx)
		require.NoError(t, err)
		tx.Cancel()
		if held != nil {
			l, err := tuple.Unpack(held)
			require.NoError(t, err)
			if h := l[2:]; len(h) > 0 {
				continue
			}
		}
		m.lapse(g, w, nil)
	}
}

func (m *modelTest) advance(t *rapid.T) {
	m.e.clock.advance(time.Duration(rapid.IntRange(1, 40_000).Draw(t, "ms")) * time.Millisecond)
}

// abort does much in one transaction and gives it up: nothing has happened (G6).
func (m *modelTest) abort(t *rapid.T) {
	w, msgs := m.worker(t), m.messages(t)
	abort := errors.New("changed my mind")
	err := w.q.Once(m.e.ctx, func(tx kv.Tx) error {
		var full *layer.FullError
		if _, err := w.q.EnqueueTx(m.e.ctx, tx, msgs...); err != nil && !errors.As(err, &full) {
			return err
		}
		claims, err := w.q.ReceiveTx(m.e.ctx, tx, layer.ReceiveOptions{})
		if err != nil {
			return err
		}
		for _, c := range claims {
			if err := w.q.AckItemsTx(m.e.ctx, tx, c, []layer.ID{c.Items[0].ID}); err != nil {
				return err
			}
		}
		if _, _, err := w.q.TakeTx(m.e.ctx, tx, 3, layer.TakeOptions{}); err != nil {
			return err
		}
		return abort
	})
	require.ErrorIs(t, err, abort)
}

// someDead chooses dead letters: some by their ids, or none by an empty list, a group's, or all.
func (m *modelTest) someDead(t *rapid.T) (layer.DeadFilter, []*modelItem) {
	var f layer.DeadFilter
	var chosen []*modelItem
	group := rapid.SampledFrom(append([]string{"*"}, m.names...)).Draw(t, "group")
	byID := rapid.Bool().Draw(t, "by id")
	if byID {
		f.IDs = []layer.ID{}
	}
	for _, name := range slices.Sorted(maps.Keys(m.model.groups)) {
		for _, item := range m.model.groups[name].dead {
			if group != "*" && group != name || byID && rapid.Bool().Draw(t, "not this") {
				continue
			}
			chosen = append(chosen, item)
			if byID {
				f.IDs = append(f.IDs, item.id)
			}
		}
	}
	if f.All = !byID && group == "*"; !byID && !f.All {
		f.Group = &group
	}
	return f, chosen
}

func (m *modelTest) redrive(t *rapid.T) {
	f, chosen := m.someDead(t)
	o := layer.RedriveOptions{ToTail: rapid.Bool().Draw(t, "to the tail")}
	suffix := ""
	if rapid.Bool().Draw(t, "edit") {
		suffix = "e"
		o.Edit = func(_ layer.DeadLetter, msg *layer.Message) error {
			msg.Body = append(msg.Body, suffix...)
			return nil
		}
	}
	report, err := m.worker(t).q.Admin().Redrive(m.e.ctx, f, o)
	require.NoError(t, err)
	require.Equal(t, layer.DeadReport{Scanned: int64(len(chosen)), Done: int64(len(chosen))}, report)
	m.buried(chosen)
	m.model.stats.Redriven += int64(len(chosen))
	for _, item := range chosen {
		g := m.group(item.id.Group)
		old := item.id
		item.attempts, item.lastErr, item.body = 0, "", item.body+suffix
		if !o.ToTail {
			m.jumped = true
			g.items = append(g.items, item)
			slices.SortFunc(g.items, func(a, b *modelItem) int {
				return cmp.Or(cmp.Compare(a.id.Index, b.id.Index), strings.Compare(string(a.id.Random[:]), string(b.id.Random[:])))
			})
			continue
		}
		item.id = m.findRandom(t, old)
		require.NotEqual(t, old, item.id)
		if entry := m.model.sent[m.model.sentAs(old.Group, item.dedupID)]; entry != nil && entry.id == old {
			entry.id = item.id
		}
		item.dueMS = 0
		if n := len(g.items); n > 0 {
			require.Greater(t, item.id.Index, g.items[n-1].id.Index, "the tail")
		}
		g.items = append(g.items, item)
	}
}

func (m *modelTest) discard(t *rapid.T) {
	f, chosen := m.someDead(t)
	report, err := m.worker(t).q.Admin().Discard(m.e.ctx, f, layer.DiscardOptions{})
	require.NoError(t, err)
	require.EqualValues(t, len(chosen), report.Done)
	m.buried(chosen)
	m.model.stats.Discarded += int64(len(chosen))
}

// buried takes items out of the dead letters.
func (m *modelTest) buried(chosen []*modelItem) {
	for _, g := range m.model.groups {
		g.dead = slices.DeleteFunc(g.dead, func(item *modelItem) bool { return slices.Contains(chosen, item) })
	}
}

// drain receives and acks until nothing is left: everything that was enqueued is delivered, or a dead letter.
func (m *modelTest) drain(t *rapid.T) {
	m.e.clock.advance(10 * time.Minute)
	for range 2 { // a lease that has run out may halt its group
		for _, name := range slices.Sorted(maps.Keys(m.model.groups)) {
			m.resumeGroup(t, m.workers[0], name)
		}
		m.drainReady(t)
	}
	m.compare(t)
	for name, g := range m.model.groups {
		require.Empty(t, g.items, "group %q was never delivered", name)
	}
}

func (m *modelTest) drainReady(t *rapid.T) {
	w := m.workers[0]
	for {
		o := layer.ReceiveOptions{Max: 8, Lease: time.Minute}
		claims, err := w.q.Receive(m.e.ctx, o)
		require.NoError(t, err)
		m.received(t, w, o, claims)
		if len(claims) == 0 {
			paced := slices.ContainsFunc(slices.Collect(maps.Values(m.model.groups)), func(g *modelGroup) bool {
				return g.free(w.now().UnixMilli()) && m.model.due(g, w.now().UnixMilli()) == 0
			})
			if m.model.config.MaxRate.Count == 0 || !paced {
				break
			}
			m.e.clock.advance(m.model.config.MaxRate.Per)
			continue
		}
		for _, c := range claims {
			require.NoError(t, w.q.Ack(m.e.ctx, c))
			g := m.group(c.Group)
			m.acked(g, slices.Clone(g.lock.outstanding))
		}
	}
}

// compare holds the queue to the model.
func (m *modelTest) compare(t *rapid.T) {
	now := m.e.clock.now().UnixMilli()
	var want []layer.GroupInfo
	for _, name := range slices.Sorted(maps.Keys(m.model.groups)) {
		g := m.model.groups[name]
		items, err := m.calm.Peek(m.e.ctx, name, layer.MaxBatch, nil)
		require.NoError(t, err)
		require.Len(t, items, len(g.items), "group %q", name)
		for i, item := range items {
			m.same(t, g.items[i], item)
		}
		if len(g.items) == 0 {
			continue
		}
		head := g.items[0]
		info := layer.GroupInfo{
			Group: name, Status: layer.Ready, Mark: g.mark, Depth: int64(len(g.items)), Head: head.id,
			Attempts: head.attempts, LastError: head.lastErr,
		}
		switch l := g.lock; {
		case l == nil && g.mark != nil:
			info.Status = g.mark.Status
		case l == nil:
		case l.claim:
			info.Status, info.Owner, info.Token, info.Outstanding = layer.Held, l.owner, l.token, len(l.outstanding)
			info.Left = time.Duration(l.endMS-now) * time.Millisecond
			if l.endMS <= now {
				info.Status = layer.Expired
			}
		case l.endMS > now:
			info.Status, info.Left = layer.Delayed, time.Duration(l.endMS-now)*time.Millisecond
		}
		if info.Status == layer.Ready && head.dueMS > now {
			info.Status, info.Left = layer.Delayed, time.Duration(head.dueMS-now)*time.Millisecond
		} else if until := m.model.pacedUntil(g); info.Status == layer.Ready && until > now {
			info.Status, info.Left = layer.RateLimited, time.Duration(until-now)*time.Millisecond
		}
		want = append(want, info)
	}
	page, err := m.calm.Admin().Groups(m.e.ctx, layer.GroupsOptions{})
	require.NoError(t, err)
	for i := range page.Groups {
		page.Groups[i].HeadAge = 0 // by the enqueuer's clock
	}
	require.Equal(t, want, page.Groups)
	m.compareDead(t)
}

// compareDead holds the dead letters to the model.
func (m *modelTest) compareDead(t *rapid.T) {
	page, err := m.calm.Admin().DeadLetters(m.e.ctx, layer.DeadOptions{Limit: layer.MaxBatch, Bodies: true})
	require.NoError(t, err)
	require.Nil(t, page.Next)
	letters := page.Letters
	for _, name := range slices.Sorted(maps.Keys(m.model.groups)) {
		for _, want := range m.model.groups[name].dead {
			require.NotEmpty(t, letters, "dead letter %s is missing", want.body)
			got := letters[0]
			letters = letters[1:]
			require.Equal(t, want.id, got.ID)
			require.Equal(t, want.body, string(got.Body))
			require.Equal(t, want.reason, got.Reason)
			require.Equal(t, want.lastErr, got.LastError)
			require.Equal(t, want.attempts, got.Attempts)
			require.Equal(t, want.deadMS, got.DeadLettered.UnixMilli())
		}
	}
	require.Empty(t, letters)
}

// checkArchive compares the archive: the groups' items in the order of completion, or none.
func (m *modelTest) checkArchive(t *rapid.T) {
	want, got := make(map[string][]layer.ID), make(map[string][]layer.ID)
	if m.model.config.Archive > 0 {
		for name, g := range m.model.groups {
			if len(g.done) > 0 {
				want[name] = g.done
			}
		}
	}
	var o layer.ArchiveOptions
	for {
		page, err := m.calm.Admin().Archive(m.e.ctx, o)
		require.NoError(t, err)
		for _, item := range page.Items {
			require.NoError(t, item.Err)
			got[item.ID.Group] = append(got[item.ID.Group], item.ID)
		}
		if o.After = page.Next; o.After == nil {
			break
		}
	}
	require.Equal(t, want, got)
}

func (m *modelTest) check(t *rapid.T) {
	m.checkArchive(t)
	report, err := m.calm.Admin().Check(m.e.ctx, layer.CheckOptions{})
	require.NoError(t, err)
	require.Empty(t, report.Violations)
	items := int64(0)
	for _, g := range m.model.groups {
		items += int64(len(g.items))
	}
	require.Equal(t, items, report.Items)

	want := m.model.stats
	want.Depth = items
	for _, g := range m.model.groups {
		want.Dead += int64(len(g.dead))
	}
	require.Equal(t, want.Dead, report.Dead)
	stats, err := m.calm.Stats(m.e.ctx, layer.StatsOptions{})
	require.NoError(t, err)
	stats.OldestReady, stats.OldestHead = 0, 0
	now := m.e.clock.now().UnixMilli()
	require.GreaterOrEqual(t, stats.Duplicates, want.Duplicates)
	if m.faults {
		stats.Duplicates = want.Duplicates // after a commit of unknown outcome some count twice
	}
	for _, g := range m.model.groups {
		if g.lock != nil {
			want.InFlight += int64(len(g.lock.outstanding))
		}
		// A stale hint of a group that is busy or marked counts as ready; every other figure is exact.
		switch {
		case g.lock != nil && g.lock.endMS > now && g.lock.claim:
			want.HeldGroups++
			want.BusyGroups++
		case g.lock != nil && g.lock.endMS > now:
			want.DelayedGroups++
			want.BusyGroups++
			want.Delayed += int64(len(g.items))
		case g.free(now) && m.model.due(g, now) > 0:
			want.ReadyGroups++
		}
	}
	if m.kept {
		// A timer of a head may be stale, or a hint stand in its place.
		require.GreaterOrEqual(t, stats.DelayedGroups, want.DelayedGroups)
		require.GreaterOrEqual(t, stats.BusyGroups, want.BusyGroups)
		require.GreaterOrEqual(t, stats.Delayed, want.Delayed)
		stats.DelayedGroups, stats.BusyGroups, stats.Delayed = want.DelayedGroups, want.BusyGroups, want.Delayed
	}
	require.GreaterOrEqual(t, stats.ReadyGroups, want.ReadyGroups)
	stats.ReadyGroups = want.ReadyGroups
	for _, g := range m.model.groups {
		switch {
		case g.mark == nil:
		case g.mark.Status == layer.Halted:
			want.HaltedGroups++
		default:
			want.PausedGroups++
		}
	}
	require.LessOrEqual(t, stats.FailingGroups, stats.DelayedGroups)
	stats.FailingGroups, stats.LongestHold, stats.WaitingHandles = 0, 0, 0 // of the real time, and of others
	require.Equal(t, want, stats)
}
