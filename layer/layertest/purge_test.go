package layer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/fault"
	"fdbfifo/layer"
)

// fill enqueues n items to a group.
func (e *env) fill(group string, n int) {
	e.t.Helper()
	for n > 0 {
		size := min(n, layer.MaxBatch)
		e.enqueue(group, make([]string, size)...)
		n -= size
	}
}

// TestPurgeKeepsWhatIsInHand: a purge removes the items with their parts and attempts, whatever the depth. Items in
// flight stay, and so do dead letters, and other groups if one was named. The counters stay exact.
func TestPurgeKeepsWhatIsInHand(t *testing.T) {
	onEngines(t, func(e *env) {
		e.fill("deep", 2500)
		_, err := e.q.Enqueue(e.ctx, layer.Message{Group: "deep", Body: make([]byte, 300_000)})
		require.NoError(e.t, err)
		for i := range 150 {
			e.enqueue(fmt.Sprintf("one-%d", i), "x")
		}
		group := "deep"
		report, err := e.q.Admin().Purge(e.ctx, layer.PurgeOptions{Group: &group})
		require.NoError(e.t, err)
		require.Equal(e.t, layer.PurgeReport{Items: 2501}, report)
		require.Empty(e.t, e.all("deep"))
		require.Len(e.t, e.all("one-7"), 1)
		e.check()

		c := e.receive(e.q, 1)
		require.NoError(e.t, e.q.Nack(e.ctx, c, layer.NackOptions{Delay: time.Hour, Err: errors.New("boom")}))
		c = e.receive(e.q, 1)
		e.enqueue(c.Group, "behind", "behind")
		steps := 0
		report, err = e.q.Admin().Purge(e.ctx, layer.PurgeOptions{All: true, Progress: func(layer.PurgeReport) {
			steps++
		}})
		require.NoError(e.t, err)
		require.Equal(e.t, layer.PurgeReport{Items: 151, Kept: 1}, report)
		require.GreaterOrEqual(e.t, steps, 3)
		e.check()
		for _, name := range []string{"attempt", "part"} {
			require.Empty(e.t, e.rows(kv.PrefixRange(key(name))), name)
		}
		s, err := e.calm().Stats(e.ctx, layer.StatsOptions{})
		require.NoError(e.t, err)
		require.EqualValues(e.t, 1, s.Depth)
		require.EqualValues(e.t, 2652, s.Purged)
		require.EqualValues(e.t, 1, s.HeldGroups)
		if e.plan.Chances == nil {
			require.Zero(e.t, s.ReadyGroups, "no hint is left, unless conflicts came between")
		}
		require.NoError(e.t, e.q.Ack(e.ctx, c))
		report, err = e.q.Admin().Purge(e.ctx, layer.PurgeOptions{All: true})
		require.NoError(e.t, err)
		require.Zero(e.t, report)
	})
}

// TestPurgeKeepsDeadLetters: the parts of a dead letter lie between those of the items around it, and stay.
func TestPurgeKeepsDeadLetters(t *testing.T) {
	for _, around := range []int{3, 1500} { // exact keys, and ranges
		e := newEnv(t, anyEngine, false)
		_, err := e.q.Enqueue(e.ctx, layer.Message{Group: "A", Body: []byte("head")}, layer.Message{Group: "A", Body: make([]byte, 300_000)})
		require.NoError(t, err)
		e.fill("A", around)
		for range 2 {
			_, err := e.q.Admin().Skip(e.ctx, "A", layer.SkipOptions{})
			require.NoError(t, err)
		}
		// An item before the dead letters: their place lies between.
		e.write(func(tx kv.Tx) {
			items := e.rows(kv.PrefixRange(key("item", "A")))
			tx.Set(key("item", "A", int64(1), e.all0("A").Random), items[0].Value)
		})
		e.enqueue("A", "last")
		report, err := e.q.Admin().Purge(e.ctx, layer.PurgeOptions{All: true})
		require.NoError(t, err)
		require.EqualValues(t, around+2, report.Items)
		require.Len(t, e.rows(kv.PrefixRange(key("part"))), 3)
		page, err := e.q.Admin().DeadLetters(e.ctx, layer.DeadOptions{Bodies: true})
		require.NoError(t, err)
		require.Len(t, page.Letters, 2)
		require.Len(t, page.Letters[1].Body, 300_000)
	}
}

// TestPurgeKeepsArchive: the parts of an archived item lie between those of the items around it, and stay.
func TestPurgeKeepsArchive(t *testing.T) {
	for _, behind := range []int{3, 1500} { // exact keys, and ranges
		e := newEnv(t, anyEngine, false)
		e.configure(func(c *layer.Config) { c.Archive = time.Hour })
		body := strings.Repeat("x", 300_000)
		e.enqueue("A", "first", body)
		c := e.receive(e.q, 2)
		require.NoError(t, e.q.AckItems(e.ctx, c, []layer.ID{c.Items[1].ID}))
		require.NoError(t, e.q.Nack(e.ctx, c, layer.NackOptions{Release: true}))
		e.fill("A", behind)
		report, err := e.q.Admin().Purge(e.ctx, layer.PurgeOptions{All: true})
		require.NoError(t, err)
		require.EqualValues(t, behind+1, report.Items)
		require.Equal(t, []string{body}, e.archivedBodies(layer.ArchiveFilter{}, 1))
	}
}

// all0 is the id of a group's head.
func (e *env) all0(group string) layer.ID {
	items, err := e.calm().Peek(context.Background(), group, 1, nil)
	require.NoError(e.t, err)
	return items[0].ID
}

// TestPurgeForce: with force, holders lose their groups and the items in flight.
func TestPurgeForce(t *testing.T) {
	onEngines(t, func(e *env) {
		e.enqueue("A", "a1", "a2", "a3")
		e.enqueue("B", "b1")
		var claims []*layer.Claim
		for range 2 {
			claims = append(claims, e.receive(e.q, 2))
		}
		report, err := e.q.Admin().Purge(e.ctx, layer.PurgeOptions{All: true, Force: true})
		require.NoError(e.t, err)
		require.Equal(e.t, layer.PurgeReport{Items: 4, Forced: 2}, report)
		for _, c := range claims {
			require.ErrorIs(e.t, e.q.Ack(e.ctx, c), layer.ErrClaimLost)
		}
		for _, name := range []string{"item", "lock", "timer"} {
			require.Empty(e.t, e.rows(kv.PrefixRange(key(name))), name)
		}
		// A later claim's token is greater.
		e.enqueue("A", "a4")
		require.Greater(e.t, e.receive(e.q, 1).Token, claims[0].Token)
	})
}

// TestPurgeGoesOn: a purge that was stopped has done what it reports; the next one does the rest.
func TestPurgeGoesOn(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.fill("A", 3000)
	for i := range 200 {
		e.enqueue(fmt.Sprintf("B-%d", i), "x")
	}
	_, err := e.q.Admin().PauseGroup(e.ctx, "paused", layer.PauseOptions{}) // so it works in steps
	require.NoError(t, err)
	total := int64(0)
	for runs := 0; ; runs++ {
		ctx, cancel := context.WithCancel(e.ctx)
		report, err := e.q.Admin().Purge(ctx, layer.PurgeOptions{All: true, Progress: func(layer.PurgeReport) {
			cancel()
		}})
		cancel()
		total += report.Items
		e.check()
		s, serr := e.q.Stats(e.ctx, layer.StatsOptions{})
		require.NoError(t, serr)
		require.EqualValues(t, 3200-total, s.Depth)
		if err == nil {
			require.Greater(t, runs, 3)
			break
		}
		require.ErrorIs(t, err, context.Canceled)
		require.NotZero(t, report.Items, "each run gets on")
	}
	require.EqualValues(t, 3200, total)
}

// TestPurgeUnknownCommit: a step whose commit was unknown counts once.
func TestPurgeUnknownCommit(t *testing.T) {
	for _, kind := range []fault.Kind{fault.UnknownApplied, fault.UnknownLost} {
		e := newEnv(t, anyEngine, false)
		e.fill("A", 100)
		e.plan.ForceNext(kind)
		report, err := e.q.Admin().Purge(e.ctx, layer.PurgeOptions{All: true})
		require.NoError(t, err)
		require.Equal(t, layer.PurgeReport{Items: 100}, report)
		s, err := e.q.Stats(e.ctx, layer.StatsOptions{})
		require.NoError(t, err)
		require.EqualValues(t, 100, s.Purged)
		require.Zero(t, s.Depth)
	}
}

// beforeCommit runs a function before each of the next commits, as many as are left, behind those skipped.
type beforeCommit struct {
	kv.DB
	skip atomic.Int64
	left atomic.Int64
	run  func()
}

func (b *beforeCommit) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := b.DB.Begin(o)
	return beforeCommitTx{tx, b}, err
}

type beforeCommitTx struct {
	kv.ManagedTx
	b *beforeCommit
}

func (t beforeCommitTx) Commit() kv.Future[struct{}] {
	if t.b.skip.Add(-1) < 0 && t.b.left.Add(-1) >= 0 {
		t.b.run()
	}
	return t.ManagedTx.Commit()
}

// TestPurgeByForceOfAnUnreadablePause: of a pause of an empty group that cannot be read nothing is left, so the group
// counts as paused no more.
func TestPurgeByForceOfAnUnreadablePause(t *testing.T) {
	for _, o := range []layer.PurgeOptions{{All: true, Force: true}, {Group: ptr("A"), Force: true}} {
		e := newEnv(t, anyEngine, false)
		_, err := e.q.Admin().PauseGroup(e.ctx, "A", layer.PauseOptions{})
		require.NoError(t, err)
		e.spoil(key("lock", "A"))
		_, err = e.q.Admin().Purge(e.ctx, o)
		require.NoError(t, err)
		require.Empty(t, e.rows(kv.PrefixRange(key("mark"))))
		e.enqueue("A", "a1")
		require.NotNil(t, e.receive(e.q, 1))
	}
}

// TestPurgeAmidPurge: what a purge has removed is not remembered again because another began before it, and ended after
// it.
func TestPurgeAmidPurge(t *testing.T) {
	for _, all := range []bool{false, true} {
		e := newEnv(t, anyEngine, false)
		group, o := "A", layer.PurgeOptions{All: all}
		if !all {
			o.Group = &group
		}
		db := &beforeCommit{DB: e.raw}
		q, err := layer.Open(e.ctx, db, testPrefix, testQueue, e.options(3))
		require.NoError(t, err)
		db.run = func() {
			e.enqueue("B", "later than the first has begun")
			require.False(t, e.sendAs(e.q, group, "x").Duplicate)
			report, err := e.q.Admin().Purge(e.ctx, o)
			require.NoError(t, err)
			require.NotZero(t, report.Items)
		}
		db.skip.Store(2) // a purge looks for the states and the paces of groups first
		db.left.Store(1)
		_, err = q.Admin().Purge(e.ctx, o)
		require.NoError(t, err)
		require.LessOrEqual(t, db.left.Load(), int64(0), "it was met")
		require.False(t, e.sendAs(e.q, group, "x").Duplicate)
	}
}

// TestPurgeOfASeenHeadIsAllOrNothing: the head of a group changes while a purge of the head that the operator has seen
// is under way. Either the purge removes the messages and the state, or its error is ErrChanged and it has cleared
// nothing (contract).
func TestPurgeOfASeenHeadIsAllOrNothing(t *testing.T) {
	refused := 0
	for _, k := range purgedKinds {
		for skip := range int64(4) {
			e := newEnvOf(t, anyEngine, false, func(c *layer.Config) {
				k.configure(c)
				if k.name == plain.name { // the others refuse a rate
					c.MaxRate = layer.Rate{Count: 100, Per: time.Hour}
				}
			})
			e.enqueueNew("A", "a1", "a2", "a3")
			require.NoError(t, e.q.Admin().SetGroupState(e.ctx, "A", []byte("state"), layer.SetGroupStateOptions{}))
			take := func() {
				o := layer.TakeOptions{Where: k.o.Where, Unordered: k.o.Unordered}
				require.NoError(t, e.q.Once(e.ctx, func(tx kv.Tx) error {
					items, _, err := e.q.TakeTx(e.ctx, tx, 1, o)
					require.LessOrEqual(t, len(items), 1, k.name)
					return err
				}))
			}
			take()
			head := e.all0("A")
			db := &beforeCommit{DB: e.raw, run: take}
			q, err := layer.Open(e.ctx, db, testPrefix, testQueue, e.options(3))
			require.NoError(t, err)
			db.skip.Store(skip)
			db.left.Store(1)
			report, err := q.Admin().Purge(e.ctx, layer.PurgeOptions{Group: ptr("A"), Head: head})
			state := e.rows(kv.PrefixRange(key("state")))
			if errors.Is(err, layer.ErrChanged) {
				refused++
				require.Zero(t, report, "%s, after %d commits", k.name, skip)
				require.Equal(t, []string{"a3"}, e.all("A"), "%s, after %d commits", k.name, skip)
				require.NotEmpty(t, state, "%s, after %d commits", k.name, skip)
				require.Equal(t, k.name == plain.name, len(e.rows(kv.PrefixRange(key("pace")))) > 0)
			} else {
				require.NoError(t, err, "%s, after %d commits", k.name, skip)
				require.Empty(t, state, "%s, after %d commits", k.name, skip)
				require.Empty(t, e.all("A"), "%s, after %d commits", k.name, skip)
			}
			e.check()
		}
	}
	require.NotZero(t, refused)
}

// TestPurgeAmidEnqueues (I1): items that are enqueued between a step's reads and its commit are reachable afterwards,
// and a stream of them cannot hold the purge up: after a few conflicts it leaves the group's hint.
func TestPurgeAmidEnqueues(t *testing.T) {
	for _, n := range []int64{1, 10} {
		for _, items := range []int{1, 5, 1001} {
			e := newEnv(t, anyEngine, false)
			e.fill("A", items)
			db := &beforeCommit{DB: e.raw}
			q, err := layer.Open(e.ctx, db, testPrefix, testQueue, e.options(3))
			require.NoError(t, err)
			came := int64(0)
			db.run = func() {
				came++
				e.enqueue("A", "meanwhile")
			}
			db.skip.Store(2) // a purge looks for the states and the paces of groups first
			db.left.Store(n)
			report, err := q.Admin().Purge(e.ctx, layer.PurgeOptions{All: true})
			require.NoError(t, err)
			require.NotZero(t, came)
			if items == 1 {
				require.LessOrEqual(t, came, int64(5), "one step, three conflicts at most, and the look for states")
			}
			require.Equal(t, int64(items)+came, int64(len(e.all("A")))+report.Items)
			e.check()
			if left := len(e.all("A")); left > 0 {
				require.Len(t, e.receive(e.q, 10).Items, left)
			}
		}
	}
}

// TestPurgeAmidEnqueuesToAnyGroup (I1): the same for a group that is not the first of its step, and for groups whose
// claim or delay the purge has ended, which have no hint but the one that it leaves.
func TestPurgeAmidEnqueuesToAnyGroup(t *testing.T) {
	for name, setup := range map[string]func(e *env) any{"ready": having("a1"), "expired": expired(1, 1), "delayed": delayed(1)} {
		for _, target := range []string{"A", "B"} {
			e := newEnv(t, anyEngine, false)
			setup(e)
			e.enqueue("B", "b1")
			db := &beforeCommit{DB: e.raw}
			q, err := layer.Open(e.ctx, db, testPrefix, testQueue, e.options(3))
			require.NoError(t, err)
			came := int64(0)
			db.run = func() {
				came++
				e.enqueue(target, "meanwhile")
			}
			db.skip.Store(2) // a purge looks for the states and the paces of groups first
			// One more for the purge of all at once.
			db.left.Store(map[string]int64{"A": 10, "B": 2}[target])
			report, err := q.Admin().Purge(e.ctx, layer.PurgeOptions{All: true})
			require.NoError(t, err)
			require.Equal(t, 2+came, int64(len(e.all("A"))+len(e.all("B")))+report.Items, name)
			e.check()
		}
	}
}

// TestPurgeOfAll: where nothing is in flight, delayed or paused, a purge of the queue removes everything in one
// transaction, leaves no key of an item behind, and counts exactly.
func TestPurgeOfAll(t *testing.T) {
	onEngines(t, func(e *env) {
		for i := range 300 {
			e.enqueue(fmt.Sprintf("group-%d", i%100), "x")
		}
		_, err := e.q.Enqueue(e.ctx,
			layer.Message{Group: "large", Body: make([]byte, 300_000)}, layer.Message{Group: "later", Delay: time.Hour})
		require.NoError(e.t, err)
		c := e.receive(e.q, 1)
		require.NoError(e.t, e.q.Nack(e.ctx, c, layer.NackOptions{AtOnce: true, Err: errors.New("an attempt")}))
		steps := 0
		report, err := e.q.Admin().Purge(e.ctx, layer.PurgeOptions{All: true, Progress: func(layer.PurgeReport) {
			steps++
		}})
		require.NoError(e.t, err)
		require.Equal(e.t, layer.PurgeReport{Items: 302}, report)
		if e.plan.Chances == nil {
			require.Equal(e.t, 1, steps)
			for _, name := range []string{"item", "part", "attempt", "ready", "timer", "lock"} {
				require.Empty(e.t, e.rows(kv.PrefixRange(key(name))), name)
			}
		}
		e.check()
		s, err := e.calm().Stats(e.ctx, layer.StatsOptions{})
		require.NoError(e.t, err)
		require.Zero(e.t, s.Depth)
		require.EqualValues(e.t, 302, s.Purged)
		// A later message is delivered.
		e.enqueue("group-1", "new")
		require.Len(e.t, e.receive(e.q, 1).Items, 1)
	})
}

// TestPurgeOfAllLanes: the same in the other kinds of queues: no key of a lane is left behind.
func TestPurgeOfAllLanes(t *testing.T) {
	for _, k := range purgedKinds {
		e := newEnvOf(t, anyEngine, false, k.configure)
		for i := range 100 {
			e.enqueueNew(fmt.Sprintf("group-%d", i%50), "x")
		}
		_, err := e.q.Enqueue(e.ctx, layer.Message{Group: "later", Headers: newHeaders, Delay: time.Hour})
		require.NoError(t, err)
		steps := 0
		report, err := e.q.Admin().Purge(e.ctx, layer.PurgeOptions{All: true, Progress: func(layer.PurgeReport) {
			steps++
		}})
		require.NoError(t, err, k.name)
		require.Equal(t, layer.PurgeReport{Items: 101}, report, k.name)
		require.Equal(t, 1, steps, k.name)
		for _, name := range []string{"item", "ready", "timer", "lock", "lane", "open", "due", "hold", "kept"} {
			require.Empty(t, e.rows(kv.PrefixRange(key(name))), "%s %s", k.name, name)
		}
		e.enqueueNew("group-1", "new")
		claims, err := e.q.Receive(e.ctx, k.o)
		require.NoError(t, err, k.name)
		require.Len(t, claims, 1, k.name)
	}
}

// purgedKinds are the kinds of queues, with receives that leave the claim of one item.
var purgedKinds = []struct {
	kind
	o layer.ReceiveOptions
}{
	{plain, layer.ReceiveOptions{}},
	{facets("*; state"), layer.ReceiveOptions{}},
	{facets("*; state"), layer.ReceiveOptions{Where: isNew}},
	{facets("state"), layer.ReceiveOptions{Where: isNew}},
	{unordered, layer.ReceiveOptions{}},
	{unordered, layer.ReceiveOptions{Unordered: true}},
	{itemLeases, layer.ReceiveOptions{}},
}

// newHeaders have a value for each facet.
var newHeaders = map[string]string{"state": "NEW", "region": "EU"}

// enqueueNew is enqueue with newHeaders.
func (e *env) enqueueNew(group string, bodies ...string) {
	e.t.Helper()
	for _, body := range bodies {
		_, err := e.q.Enqueue(e.ctx, layer.Message{Group: group, Body: []byte(body), Headers: newHeaders})
		require.NoError(e.t, err)
	}
}

// TestPurgeOfAllTellsSubscriptions: if changes are kept, a purge works group by group, so that there is a change for
// each.
func TestPurgeOfAllTellsSubscriptions(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	_, _, err := e.q.Admin().Configure(e.ctx, func(c *layer.Config) { c.Changes = time.Hour })
	require.NoError(t, err)
	e.enqueue("A", "a1", "a2")
	e.enqueue("B", "b1")
	before := len(e.rows(kv.PrefixRange(key("change"))))
	_, err = e.q.Admin().Purge(e.ctx, layer.PurgeOptions{All: true})
	require.NoError(t, err)
	require.Len(t, e.rows(kv.PrefixRange(key("change"))), before+1, "a row with both groups")
	e.check()
}

// amidPurge runs the function meanwhile between the reads and the commit of a purge of the queue. It returns the report
// of the purge.
func amidPurge(e *env, meanwhile func()) layer.PurgeReport {
	e.t.Helper()
	db := &beforeCommit{DB: e.raw, run: meanwhile}
	q, err := layer.Open(e.ctx, db, testPrefix, testQueue, e.options(3))
	require.NoError(e.t, err)
	db.skip.Store(2) // a purge looks for the states and the paces of groups first
	db.left.Store(1)
	report, err := q.Admin().Purge(e.ctx, layer.PurgeOptions{All: true})
	require.NoError(e.t, err)
	require.LessOrEqual(e.t, db.left.Load(), int64(0), "the purge was met")
	return report
}

// TestPurgeOfAllMeetsClaim (G2): a claim that begins while a purge removes all at once keeps its item.
func TestPurgeOfAllMeetsClaim(t *testing.T) {
	for _, k := range purgedKinds {
		e := newEnvOf(t, anyEngine, false, k.configure)
		e.enqueueNew("A", "a1", "a2")
		e.enqueueNew("B", "b1")
		var claims []*layer.Claim
		report := amidPurge(e, func() {
			o := k.o
			o.Max = 1
			var err error
			claims, err = e.q.Receive(e.ctx, o)
			require.NoError(t, err, k.name)
		})
		require.Equal(t, layer.PurgeReport{Items: 2, Kept: 1}, report, k.name)
		require.Equal(t, []string{"a1"}, e.all("A"), k.name)
		e.check()
		require.NoError(t, e.q.Ack(e.ctx, claims[0]), k.name)
		e.check()
	}
}

// TestPurgeOfAllCountsLateItem (trap 1): items that come or go while a purge removes all at once are counted right.
func TestPurgeOfAllCountsLateItem(t *testing.T) {
	for name, meanwhile := range map[string]func(e *env){
		"late in a group":  func(e *env) { e.enqueue("A", "late") },
		"of a new group":   func(e *env) { e.enqueue("C", "late") },
		"cancelled":        func(e *env) { require.NoError(e.t, e.q.Admin().Cancel(e.ctx, e.all0("B"))) },
		"become a letter":  func(e *env) { e.bury("D", "dead") },
		"claimed and done": func(e *env) { require.NoError(e.t, e.q.Ack(e.ctx, e.receive(e.q, 1))) },
	} {
		e := newEnv(t, anyEngine, false)
		e.enqueue("A", "a1", "a2")
		e.enqueue("B", "b1")
		amidPurge(e, func() { meanwhile(e) })
		s, err := e.q.Stats(e.ctx, layer.StatsOptions{})
		require.NoError(t, err, name)
		require.EqualValues(t, len(e.all("A"))+len(e.all("B"))+len(e.all("C"))+len(e.all("D")), s.Depth, name)
		e.check()
	}
}

// TestPurgeCountsLateItem (trap 1): the enqueue of an item commits late, and the item lies between those of a purge
// step that knows only the bounds of its range. The item is counted if it is removed.
func TestPurgeCountsLateItem(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.enqueue("A", "a1")
	_, err := e.q.Admin().PauseGroup(e.ctx, "A", layer.PauseOptions{}) // else the end of the step guards the same range
	require.NoError(t, err)
	late, err := e.raw.Begin(kv.TxOptions{})
	require.NoError(t, err)
	_, err = e.q.EnqueueTx(e.ctx, late, layer.Message{Group: "A", Body: []byte("late")})
	require.NoError(t, err)
	e.fill("A", 1500)
	db := &beforeCommit{DB: e.raw, run: func() {
		_, err := late.Commit().Wait(e.ctx)
		require.NoError(t, err)
	}}
	q, err := layer.Open(e.ctx, db, testPrefix, testQueue, e.options(3))
	require.NoError(t, err)
	db.skip.Store(2)
	db.left.Store(1)
	report, err := q.Admin().Purge(e.ctx, layer.PurgeOptions{All: true})
	require.NoError(t, err)
	require.EqualValues(t, 1502, report.Items)
	s, err := e.q.Stats(e.ctx, layer.StatsOptions{})
	require.NoError(t, err)
	require.Zero(t, s.Depth)
}

// TestPurgeUnderLoad (G3): while producers, workers and a purge are at it together, each message is acked or purged,
// never both, and none is stranded.
func TestPurgeUnderLoad(t *testing.T) {
	onEngines(t, func(e *env) {
		const producers, each = 3, 60
		var wg sync.WaitGroup
		for p := range producers {
			q := e.handle(uint64(10 + p))
			wg.Go(func() {
				for i := range each {
					if _, err := q.Enqueue(e.ctx, layer.Message{Group: fmt.Sprint(i % 4)}, layer.Message{Group: fmt.Sprint(p)}); err != nil {
						e.t.Error(err)
						return
					}
				}
			})
		}
		var acked atomic.Int64
		stop := make(chan struct{})
		var workers sync.WaitGroup
		for w := range 2 {
			q := e.handle(uint64(20 + w))
			workers.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
					}
					claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Max: 3})
					if err != nil {
						e.t.Error(err)
						return
					}
					for _, c := range claims {
						switch err := q.Ack(e.ctx, c); {
						case err == nil:
							acked.Add(int64(len(c.Items)))
						case !errors.Is(err, layer.ErrClaimLost):
							e.t.Error(err)
						}
					}
				}
			})
		}
		purged := int64(0)
		purge := func(i int) {
			report, err := e.q.Admin().Purge(e.ctx, layer.PurgeOptions{Force: i%2 == 0, All: true})
			require.NoError(e.t, err)
			purged += report.Items
		}
		for i := range 10 {
			purge(i)
		}
		wg.Wait()
		close(stop)
		workers.Wait()
		e.check()
		purge(0)
		require.Empty(e.t, e.rows(kv.PrefixRange(key("item"))))
		require.EqualValues(e.t, 2*producers*each, acked.Load()+purged)
	})
}

// TestPurgeCorruptLock: a group whose lock cannot be read is left alone, unless by force.
func TestPurgeCorruptLock(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.enqueue("A", "a1")
	e.enqueue("B", "b1")
	e.write(func(tx kv.Tx) { tx.Set(key("lock", "A"), []byte("?")) })
	report, err := e.q.Admin().Purge(e.ctx, layer.PurgeOptions{All: true})
	require.NoError(t, err)
	require.Equal(t, layer.PurgeReport{Items: 1, Kept: 1}, report)
	report, err = e.q.Admin().Purge(e.ctx, layer.PurgeOptions{All: true, Force: true})
	require.NoError(t, err)
	require.Equal(t, layer.PurgeReport{Items: 1}, report)
}

// TestPurgeErrors: a group that is none is refused, and a closed handle.
func TestPurgeErrors(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	long, bad := string(make([]byte, layer.MaxGroupSize+1)), "\xff"
	var limit *layer.LimitError
	_, err := e.q.Admin().Purge(e.ctx, layer.PurgeOptions{Group: &long})
	require.ErrorAs(t, err, &limit)
	_, err = e.q.Admin().Purge(e.ctx, layer.PurgeOptions{Group: &bad})
	require.ErrorIs(t, err, layer.ErrInvalidUTF8)
	require.NoError(t, e.q.Close(e.ctx))
	_, err = e.q.Admin().Purge(e.ctx, layer.PurgeOptions{All: true})
	require.ErrorIs(t, err, layer.ErrClosed)
}

// endingDB cancels a context when it has begun so many transactions.
type endingDB struct {
	kv.DB
	left   int
	cancel func()
}

func (db *endingDB) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	if db.left--; db.left < 0 {
		db.cancel()
	}
	return db.DB.Begin(o)
}

// TestPurgeThatEndsEarly (I1): a purge by force of a group with a state, whose lock cannot be read, ends before its
// work is done. If it has removed the lock, something leads to the messages that are left.
func TestPurgeThatEndsEarly(t *testing.T) {
	gone := 0
	for n := range 10 {
		e := newEnv(t, inMemory, false)
		e.enqueue("A", "a1", "a2")
		require.NoError(t, e.q.Admin().SetGroupState(e.ctx, "A", []byte("state"), layer.SetGroupStateOptions{}))
		hints := kv.KeyRange{Begin: key("ready"), End: append(key("ready"), 0xff)}
		e.write(func(tx kv.Tx) { // as if a claim had cleared the hint
			tx.ClearRange(hints)
			tx.Set(key("lock", "A"), []byte("no lock"))
		})
		ctx, cancel := context.WithCancel(e.ctx)
		db := &endingDB{DB: e.raw, left: 1000, cancel: cancel}
		q, err := layer.Open(e.ctx, db, testPrefix, testQueue, e.options(7))
		require.NoError(t, err)
		db.left = n
		_, err = q.Admin().Purge(ctx, layer.PurgeOptions{Group: ptr("A"), Force: true})
		db.cancel = func() {}
		cancel()
		report, errs := e.q.Admin().Check(e.ctx, layer.CheckOptions{})
		require.NoError(t, errs)
		var lock []byte
		e.write(func(tx kv.Tx) {
			var err error
			lock, err = tx.Get(key("lock", "A")).Wait(e.ctx)
			require.NoError(t, err)
		})
		if lock == nil {
			gone++
			require.Empty(t, report.Violations, "after %d transactions: %v", n, err)
		}
		_, err = e.q.Admin().Purge(e.ctx, layer.PurgeOptions{Group: ptr("A"), Force: true})
		require.NoError(t, err)
		_, err = e.q.Admin().Sweep(e.ctx, layer.SweepOptions{})
		require.NoError(t, err)
	}
	require.Greater(t, gone, 1)
}

// TestPurgeOfAllKeepsWhatComesLater: a step of a purge of the whole queue ends inside a group. An item that is enqueued
// to this group before the next step stays.
func TestPurgeOfAllKeepsWhatComesLater(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	_, err := e.q.Admin().PauseGroup(e.ctx, "Z", layer.PauseOptions{}) // else one transaction removes all
	require.NoError(t, err)
	e.fill("A", 10)
	e.fill("B", 100)
	var late []layer.ID
	report, err := e.q.Admin().Purge(e.ctx, layer.PurgeOptions{All: true, Progress: func(layer.PurgeReport) {
		if late == nil {
			late = e.enqueue("B", "late")
		}
	}})
	require.NoError(t, err)
	require.EqualValues(t, 110, report.Items)
	claim := e.receive(e.q, 10)
	require.Len(t, claim.Items, 1)
	require.Equal(t, late[0], claim.Items[0].ID)
	require.NoError(t, e.q.Ack(e.ctx, claim))
}
