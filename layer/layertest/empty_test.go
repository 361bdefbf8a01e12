package layer_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/record"
	"fdbfifo/layer"
)

// An empty argument never means everything. The tests of this file give each call nil, an empty list, one and all.

// inTx runs a call in a transaction of the caller's own.
func (e *env) inTx(call func(tx kv.Tx) error) error { return e.q.Once(e.ctx, call) }

// TestAckFinishesWhatItNames (G3): an ack of some items finishes these and no other, and a list without an item
// finishes none, nil or not.
func TestAckFinishesWhatItNames(t *testing.T) {
	type ack = func(e *env, c *layer.Claim, ids []layer.ID) error
	acks := map[string]ack{
		"AckItems": func(e *env, c *layer.Claim, ids []layer.ID) error { return e.q.AckItems(e.ctx, c, ids) },
		"AckItemsTx": func(e *env, c *layer.Claim, ids []layer.ID) error {
			return e.inTx(func(tx kv.Tx) error { return e.q.AckItemsTx(e.ctx, tx, c, ids) })
		},
	}
	for name, ids := range map[string]func(all []layer.ID) []layer.ID{
		"nil":   func([]layer.ID) []layer.ID { return nil },
		"empty": func([]layer.ID) []layer.ID { return []layer.ID{} },
		"none of a loop": func(all []layer.ID) (done []layer.ID) {
			return append(done, all[:0]...)
		},
		"one": func(all []layer.ID) []layer.ID { return all[1:2] },
		"all": func(all []layer.ID) []layer.ID { return all },
	} {
		for verb, do := range acks {
			t.Run(fmt.Sprint(verb, " ", name), func(t *testing.T) {
				e := newEnv(t, anyEngine, false)
				all := e.enqueue("A", "a1", "a2", "a3")
				c, named := e.receive(e.q, 3), ids(all)
				require.NoError(t, do(e, c, named))
				require.Len(t, e.all("A"), 3-len(named))
				if len(named) < 3 {
					require.NoError(t, e.q.Ack(e.ctx, c), "the claim goes on")
				}
				require.Empty(t, e.all("A"))
			})
		}
	}
	t.Run("all", func(t *testing.T) {
		e := newEnv(t, anyEngine, false)
		c := holding(3, 3)(e).(*layer.Claim)
		require.NoError(t, e.inTx(func(tx kv.Tx) error { return e.q.AckTx(e.ctx, tx, c) }))
		require.Empty(t, e.all("A"))
	})
}

// TestAckOfNoneIsNoTransaction: an ack without an item asks the database for nothing, whatever the claim.
func TestAckOfNoneIsNoTransaction(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	r := record.WrapCounting(e.raw)
	q, err := layer.Open(e.ctx, r, testPrefix, testQueue, e.options(2))
	require.NoError(t, err)
	before := r.Counters()
	for _, c := range []*layer.Claim{nil, {Group: "A", Token: 1}} {
		require.NoError(t, q.AckItems(e.ctx, c, nil))
		require.NoError(t, q.AckItems(e.ctx, c, []layer.ID{}))
		require.NoError(t, q.AckItemsTx(e.ctx, nil, c, nil))
	}
	require.NoError(t, q.Settle(e.ctx))
	require.NoError(
		t, q.Settle(e.ctx, layer.Settlement{Claim: &layer.Claim{Group: "A", Token: 1}, Finish: []layer.ID{}}),
	)
	require.Equal(t, before, r.Counters())
}

// TestSettlementDoesWhatItSays (G3): no field of a settlement means all by being empty. A settlement that says nothing
// is an error, because a field was forgotten, and leaves the claim as it is; a list without an item is none.
func TestSettlementDoesWhatItSays(t *testing.T) {
	change := func(_ layer.ID, m *layer.Message) error {
		m.Headers["state"] = "PAID"
		return nil
	}
	none, state, release := []layer.ID{}, []byte("s"), &layer.NackOptions{Release: true}
	type settlement = func(ids []layer.ID) layer.Settlement
	as := func(s layer.Settlement) settlement { return func([]layer.ID) layer.Settlement { return s } }
	for name, row := range map[string]struct {
		s              settlement
		refused        bool
		left, advanced int // items of the group, and those of them that were advanced
		ends           bool
	}{
		"nothing":              {s: as(layer.Settlement{}), refused: true, left: 3},
		"a result alone":       {s: as(layer.Settlement{Result: new(layer.Settled)}), refused: true, left: 3},
		"a change alone":       {s: as(layer.Settlement{Change: change}), refused: true, left: 3},
		"finish none":          {s: as(layer.Settlement{Finish: none}), left: 3},
		"finish none, no one":  {s: as(layer.Settlement{Finish: none, Advance: none}), left: 3},
		"advance none":         {s: as(layer.Settlement{Advance: none, Change: change}), left: 3},
		"advance none, by nil": {s: as(layer.Settlement{Advance: none}), left: 3},
		"state alone":          {s: as(layer.Settlement{State: &state}), left: 3},
		"state, finish none":   {s: as(layer.Settlement{State: &state, Finish: none}), left: 3},
		"state, finish all":    {s: as(layer.Settlement{State: &state, FinishAll: true}), ends: true},
		"nack":                 {s: as(layer.Settlement{Nack: release}), left: 3, ends: true},
		"nack, finish none":    {s: as(layer.Settlement{Nack: release, Finish: none}), left: 3, ends: true},
		"nack, finish one": {s: func(ids []layer.ID) layer.Settlement {
			return layer.Settlement{Nack: release, Finish: ids[:1]}
		}, left: 2, ends: true},
		"nack, advance one": {s: func(ids []layer.ID) layer.Settlement {
			return layer.Settlement{Nack: release, Advance: ids[:1], Change: change}
		}, left: 3, advanced: 1, ends: true},
		"extend":              {s: as(layer.Settlement{Extend: time.Minute}), left: 3},
		"extend, finish none": {s: as(layer.Settlement{Extend: time.Minute, Finish: none}), left: 3},
		"extend, finish all":  {s: as(layer.Settlement{Extend: time.Minute, FinishAll: true}), refused: true, left: 3},
		"finish one": {s: func(ids []layer.ID) layer.Settlement {
			return layer.Settlement{Finish: ids[1:2]}
		}, left: 2},
		"finish each": {s: func(ids []layer.ID) layer.Settlement {
			return layer.Settlement{Finish: ids}
		}, ends: true},
		"finish all": {s: as(layer.Settlement{FinishAll: true}), ends: true},
		"finish all, advance none": {s: as(layer.Settlement{
			FinishAll: true, Finish: none, Advance: none, Change: change,
		}), ends: true},
		"advance all": {
			s: as(layer.Settlement{AdvanceAll: true, Change: change}), left: 3, advanced: 3, ends: true,
		},
		"advance all by nil": {s: as(layer.Settlement{AdvanceAll: true}), refused: true, left: 3},
		"advance one by nil": {s: func(ids []layer.ID) layer.Settlement {
			return layer.Settlement{Advance: ids[:1]}
		}, refused: true, left: 3},
		"finish one, by change": {s: func(ids []layer.ID) layer.Settlement {
			return layer.Settlement{Finish: ids[:1], Change: change}
		}, refused: true, left: 3},
		"advance one": {s: func(ids []layer.ID) layer.Settlement {
			return layer.Settlement{Advance: ids[1:2], Change: change}
		}, left: 3, advanced: 1},
		"finish one, advance one": {s: func(ids []layer.ID) layer.Settlement {
			return layer.Settlement{Finish: ids[:1], Advance: ids[1:2], Change: change}
		}, left: 2, advanced: 1},
		"finish all, advance one": {s: func(ids []layer.ID) layer.Settlement {
			return layer.Settlement{FinishAll: true, Advance: ids[1:2], Change: change}
		}, left: 1, advanced: 1, ends: true},
		"advance all, finish one": {s: func(ids []layer.ID) layer.Settlement {
			return layer.Settlement{AdvanceAll: true, Finish: ids[1:2], Change: change}
		}, left: 2, advanced: 2, ends: true},
		"finish and advance one": {s: func(ids []layer.ID) layer.Settlement {
			return layer.Settlement{Finish: ids[:2], Advance: ids[1:], Change: change}
		}, refused: true, left: 3},
		"finish all and one": {s: func(ids []layer.ID) layer.Settlement {
			return layer.Settlement{FinishAll: true, Finish: ids[:1]}
		}, refused: true, left: 3},
		"advance all and one": {s: func(ids []layer.ID) layer.Settlement {
			return layer.Settlement{AdvanceAll: true, Advance: ids[:1], Change: change}
		}, refused: true, left: 3},
		"finish and advance": {
			s: as(layer.Settlement{FinishAll: true, AdvanceAll: true, Change: change}), refused: true, left: 3,
		},
		"finish all and nack": {s: as(layer.Settlement{FinishAll: true, Nack: release}), refused: true, left: 3},
		"finish all, not there": {s: as(layer.Settlement{
			FinishAll: true, Advance: make([]layer.ID, 1), Change: change,
		}), refused: true, left: 3},
	} {
		for how, settle := range map[string]func(e *env, q *layer.Queue, s layer.Settlement) error{
			"alone": func(e *env, q *layer.Queue, s layer.Settlement) error { return q.Settle(e.ctx, s) },
			"tx": func(e *env, q *layer.Queue, s layer.Settlement) error {
				return q.Once(e.ctx, func(tx kv.Tx) error { return q.SettleTx(e.ctx, tx, s) })
			},
			"receive": func(e *env, q *layer.Queue, s layer.Settlement) error {
				_, err := q.SettleReceive(e.ctx, s, layer.ReceiveOptions{Group: ptr("none")})
				return err
			},
		} {
			t.Run(fmt.Sprint(name, " ", how), func(t *testing.T) {
				e := newEnv(t, anyEngine, false)
				q := e.laned("pipeline", "*; state", nil, 1)[0]
				var ids []layer.ID
				for range 3 {
					sent, err := q.Enqueue(e.ctx, layer.Message{Group: "A", Headers: facetsOf("NEW", "EU")})
					require.NoError(t, err)
					ids = append(ids, sent[0].ID)
				}
				claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Group: ptr("A"), Max: 3})
				require.NoError(t, err)
				require.Len(t, claims, 1)
				s := row.s(ids)
				s.Claim = claims[0].Stored()
				err = settle(e, q, s)
				if row.refused {
					require.True(t, errors.Is(err, layer.ErrOptions) || errors.Is(err, layer.ErrNotInClaim), "%v", err)
				} else {
					require.NoError(t, err)
				}
				items, err := q.Peek(e.ctx, "A", 10, nil)
				require.NoError(t, err)
				require.Len(t, items, row.left)
				advanced := slices.DeleteFunc(items, func(i layer.Item) bool { return i.Headers["state"] != "PAID" })
				require.Len(t, advanced, row.advanced)
				if err = q.Ack(e.ctx, claims[0]); row.ends {
					require.ErrorIs(t, err, layer.ErrClaimLost)
				} else {
					require.NoError(t, err, "the claim goes on for the others")
				}
			})
		}
	}
}

// everything is all of an archive.
var everything = layer.ArchiveFilter{All: true}

// destructive are the calls that remove, give back, enqueue again or purge what they choose: with nothing chosen, with
// an empty list if there is a list, and with all.
func destructive(e *env) map[string]struct{ zero, empty, all func() error } {
	a, ctx := e.q.Admin(), e.ctx
	dead, archive := layer.DeadFilter{}, layer.ArchiveFilter{}
	noIDs, allDead := layer.DeadFilter{IDs: []layer.ID{}}, layer.DeadFilter{All: true}
	redrive := func(f layer.DeadFilter, o layer.RedriveOptions) func() error {
		return func() error { return last(a.Redrive(ctx, f, o)) }
	}
	discard := func(f layer.DeadFilter, o layer.DiscardOptions) func() error {
		return func() error { return last(a.Discard(ctx, f, o)) }
	}
	replay := func(f layer.ArchiveFilter, o layer.ReplayOptions) func() error {
		return func() error { return last(a.Replay(ctx, f, o)) }
	}
	purge := func(o layer.PurgeOptions) func() error { return func() error { return last(a.Purge(ctx, o)) } }
	dryRedrive, dryDiscard := layer.RedriveOptions{DryRun: true}, layer.DiscardOptions{DryRun: true}
	away := layer.ArchiveFilter{From: time.Time{}.Local(), Before: time.Time{}.In(time.FixedZone("x", 60))}
	return map[string]struct{ zero, empty, all func() error }{
		"redrive": {
			redrive(dead, layer.RedriveOptions{}), redrive(noIDs, layer.RedriveOptions{}),
			redrive(allDead, layer.RedriveOptions{}),
		},
		"redrive to tail": {
			redrive(dead, layer.RedriveOptions{ToTail: true}), redrive(noIDs, layer.RedriveOptions{ToTail: true}),
			redrive(allDead, layer.RedriveOptions{ToTail: true}),
		},
		"redrive some": {redrive(dead, layer.RedriveOptions{Limit: 1}), nil, nil},
		"redrive dry":  {redrive(dead, dryRedrive), redrive(noIDs, dryRedrive), nil},
		"discard": {
			discard(dead, layer.DiscardOptions{}), discard(noIDs, layer.DiscardOptions{}),
			discard(allDead, layer.DiscardOptions{}),
		},
		"discard some":  {discard(dead, layer.DiscardOptions{Limit: 1}), nil, nil},
		"discard dry":   {discard(dead, dryDiscard), discard(noIDs, dryDiscard), nil},
		"discard blank": {discard(layer.DeadFilter{Text: " \t"}, layer.DiscardOptions{}), nil, nil},
		"redrive blank": {redrive(layer.DeadFilter{Text: " "}, layer.RedriveOptions{}), nil, nil},
		"discard zoned": {
			discard(layer.DeadFilter{From: away.From, Before: away.Before}, layer.DiscardOptions{}), nil, nil,
		},
		"replay":       {replay(archive, layer.ReplayOptions{}), nil, replay(everything, layer.ReplayOptions{})},
		"replay some":  {replay(archive, layer.ReplayOptions{Limit: 1}), nil, nil},
		"replay dry":   {replay(archive, layer.ReplayOptions{DryRun: true}), nil, nil},
		"replay zoned": {replay(away, layer.ReplayOptions{}), nil, nil},
		"purge":        {purge(layer.PurgeOptions{}), nil, purge(layer.PurgeOptions{All: true})},
		"purge by force": {
			purge(layer.PurgeOptions{Force: true}), nil, purge(layer.PurgeOptions{All: true, Force: true}),
		},
		"purge, both":      {purge(layer.PurgeOptions{All: true, Group: ptr("A")}), nil, nil},
		"discard, both":    {discard(layer.DeadFilter{All: true, Text: "x"}, layer.DiscardOptions{}), nil, nil},
		"discard, all ids": {discard(layer.DeadFilter{All: true, IDs: []layer.ID{}}, layer.DiscardOptions{}), nil, nil},
		"discard, no ids of a group": {
			discard(layer.DeadFilter{IDs: []layer.ID{}, Group: ptr("A")}, layer.DiscardOptions{}), nil, nil,
		},
		"replay, both": {replay(layer.ArchiveFilter{All: true, Group: ptr("A")}, layer.ReplayOptions{}), nil, nil},
		"redrive in tx": {nil, func() error {
			return e.inTx(func(tx kv.Tx) error { return a.RedriveTx(ctx, tx, layer.RedriveOptions{}) })
		}, nil},
		"discard in tx": {nil, func() error {
			return e.inTx(func(tx kv.Tx) error { return a.DiscardTx(ctx, tx) })
		}, nil},
	}
}

// TestBulkCallsWantAChoice (G3): a call that removes, gives back or enqueues again in bulk is refused if its filter
// says nothing, and the error names the field that says all. A list without an id chooses none.
func TestBulkCallsWantAChoice(t *testing.T) {
	for name := range destructive(newEnv(t, anyEngine, false)) {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, anyEngine, false)
			e.configure(func(c *layer.Config) { c.Archive = time.Hour })
			e.enqueue("B", "b1", "b2")
			for range 2 {
				require.NoError(t, e.q.Ack(e.ctx, e.receive(e.q, 1)))
			}
			e.bury("A", "a1", "a2")
			e.enqueue("C", "c1", "c2")
			rows := func() []kv.KV { return e.rows(kv.PrefixRange(key())) }
			before, calls := rows(), destructive(e)[name]
			if calls.zero != nil {
				err := calls.zero()
				require.ErrorIs(t, err, layer.ErrOptions)
				require.Regexp(t, "All for all|something else|all groups, and|the text is blank", err.Error())
				require.Equal(t, before, rows())
			}
			if calls.empty != nil {
				require.NoError(t, calls.empty())
				require.Len(t, e.dead(), 2)
				stats, err := e.q.Stats(e.ctx, layer.StatsOptions{})
				require.NoError(t, err)
				require.EqualValues(t, 2, stats.Depth)
			}
			if calls.all != nil {
				require.NoError(t, calls.all())
				require.NotEqual(t, before, rows())
			}
		})
	}
}

// TestFilterOfOneAndOfAll: a filter chooses the named letters and no other, and All chooses the others too.
func TestFilterOfOneAndOfAll(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	ids := e.bury("A", "a1", "a2", "a3")
	report, err := e.q.Admin().Discard(e.ctx, layer.DeadFilter{IDs: []layer.ID{}}, layer.DiscardOptions{})
	require.NoError(t, err)
	require.Equal(t, layer.DeadReport{}, report)
	report, err = e.q.Admin().Discard(e.ctx, layer.DeadFilter{IDs: ids[1:2]}, layer.DiscardOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 1, report.Done)
	require.Len(t, e.dead(), 2)
	report, err = e.q.Admin().Redrive(e.ctx, layer.DeadFilter{All: true}, layer.RedriveOptions{DryRun: true})
	require.NoError(t, err)
	require.EqualValues(t, 2, report.Done)
	report, err = e.q.Admin().Redrive(e.ctx, layer.DeadFilter{All: true}, layer.RedriveOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 2, report.Done)
	require.Equal(t, []string{"a1", "a3"}, e.all("A"))
}

// TestEmptyListListsNothing: a list that only reads lists all for a filter that says nothing, and nothing for an empty
// list.
func TestEmptyListListsNothing(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	ids := e.bury("A", "a1", "a2")
	_, err := e.q.Admin().PauseGroup(e.ctx, "P", layer.PauseOptions{})
	require.NoError(t, err)
	for name, row := range map[string]struct {
		f    layer.DeadFilter
		want int
	}{
		"zero": {layer.DeadFilter{}, 2}, "all": {layer.DeadFilter{All: true}, 2},
		"none": {layer.DeadFilter{IDs: []layer.ID{}}, 0}, "one": {layer.DeadFilter{IDs: ids[:1]}, 1},
	} {
		page, err := e.q.Admin().DeadLetters(e.ctx, layer.DeadOptions{DeadFilter: row.f})
		require.NoError(t, err, name)
		require.Len(t, page.Letters, row.want, name)
		n := 0
		for _, err := range e.q.Admin().AllDeadLetters(e.ctx, layer.DeadOptions{DeadFilter: row.f, Limit: 1}) {
			require.NoError(t, err, name)
			n++
		}
		require.Equal(t, row.want, n, name)
	}
	for name, row := range map[string]struct {
		causes []layer.Cause
		want   int
	}{"nil": {nil, 1}, "none": {[]layer.Cause{}, 0}, "other": {[]layer.Cause{layer.CauseDelayed}, 0}} {
		page, err := e.q.Admin().Blocked(e.ctx, layer.BlockedOptions{Causes: row.causes})
		require.NoError(t, err, name)
		require.Len(t, page.Groups, row.want, name)
	}
}

// TestEmptyTemplateIsNotAny: a template without facets is refused by each call that takes one; only nil stands for
// whole groups. An empty list of kinds is refused, too.
func TestEmptyTemplateIsNotAny(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	faceted, ids := e.pipelined(func(c *layer.Config) { c.Changes = time.Hour })
	plain := e.enqueue("A", "a")[0]
	none := layer.Template{}
	ctx, cancel := context.WithTimeout(e.ctx, 5*time.Second)
	defer cancel()
	handler := func(context.Context, []layer.Change) error { return nil }
	for queue, q := range map[string]*layer.Queue{"facets": faceted, "plain": e.q} {
		a, id := q.Admin(), ids[0]
		if q == e.q {
			id = plain
		}
		in := func(call func(tx kv.Tx) error) func() error { return func() error { return q.Once(ctx, call) } }
		for name, call := range map[string]func() error{
			"receive": func() error { return last(q.Receive(ctx, layer.ReceiveOptions{Where: none})) },
			"receive in tx": in(func(tx kv.Tx) error {
				return last(q.ReceiveTx(ctx, tx, layer.ReceiveOptions{Where: none}))
			}),
			"options": func() error { return layer.ReceiveOptions{Where: none}.Check(q.Config()) },
			"take": in(func(tx kv.Tx) error {
				_, _, err := q.TakeTx(ctx, tx, 1, layer.TakeOptions{Where: none})
				return err
			}),
			"peek":         func() error { return last(q.Peek(ctx, "A", 1, none)) },
			"why":          func() error { return last(a.Why(ctx, id, none)) },
			"why of group": func() error { return last(a.WhyGroup(ctx, "A", none)) },
			"group":        func() error { return last(a.Group(ctx, "A", none)) },
			"groups":       func() error { return last(a.Groups(ctx, layer.GroupsOptions{Where: none})) },
			"items":        func() error { return lastOf(a.AllItems(ctx, "A", none)) },
			"stats":        func() error { return last(q.Stats(ctx, layer.StatsOptions{Where: none})) },
			"blocked":      func() error { return last(a.Blocked(ctx, layer.BlockedOptions{Where: none})) },
			"force release": func() error {
				return last(a.ForceRelease(ctx, "A", layer.ForceReleaseOptions{Where: none}))
			},
			"retry now": func() error { return a.RetryNow(ctx, "A", layer.RetryOptions{Where: none}) },
			"subscribe": func() error {
				return q.Subscribe(ctx, "s", handler, layer.SubscribeOptions{Where: none})
			},
			"kinds": func() error {
				return q.Subscribe(ctx, "s", handler, layer.SubscribeOptions{Kinds: []layer.ChangeKind{}})
			},
			"ack": func() error { return q.Ack(ctx, &layer.Claim{Group: "A", Token: 1, Where: none}) },
		} {
			require.ErrorIs(t, call(), layer.ErrOptions, "%s, %s", queue, name)
		}
	}
	require.Error(t, last(layer.ParseTemplate("")))
	whole, err := layer.ParseTemplate("*")
	require.NoError(t, err)
	require.Nil(t, whole)
}

// TestVariadicsAreLists: a call that takes any number of arguments does nothing without one. So no method has options
// or a template as such arguments. A new one fails this test until it has a row.
func TestVariadicsAreLists(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.bury("A", "a1")
	a := e.q.Admin()
	rows := map[string]func() error{
		"Queue.Enqueue": func() error { return last(e.q.Enqueue(e.ctx)) },
		"Queue.EnqueueTx": func() error {
			return e.inTx(func(tx kv.Tx) error { return last(e.q.EnqueueTx(e.ctx, tx)) })
		},
		"Queue.Settle": func() error { return e.q.Settle(e.ctx) },
		"Admin.RedriveTx": func() error {
			return e.inTx(func(tx kv.Tx) error { return a.RedriveTx(e.ctx, tx, layer.RedriveOptions{}) })
		},
		"Admin.DiscardTx": func() error { return e.inTx(func(tx kv.Tx) error { return a.DiscardTx(e.ctx, tx) }) },
	}
	for _, typ := range []reflect.Type{reflect.TypeFor[*layer.Queue](), reflect.TypeFor[layer.Admin]()} {
		for m := range typ.Methods() {
			if !m.Type.IsVariadic() {
				continue
			}
			owner := typ.Name()
			if typ.Kind() == reflect.Pointer {
				owner = typ.Elem().Name()
			}
			require.Contains(t, rows, owner+"."+m.Name)
		}
	}
	for name, call := range rows {
		require.NoError(t, call(), name)
	}
	require.Len(t, e.dead(), 1)
	require.Empty(t, e.all("A"))
}
