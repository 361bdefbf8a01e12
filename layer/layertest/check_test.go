package layer_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// TestCheckFindsEachViolation: the check that every test ends with can fail, for each of its rules; and it
// changes nothing. A broken queue is repaired by hand before the test's own check.
func TestCheckFindsEachViolation(t *testing.T) {
	random := uuid.MustParse("6ba7b810-9dad-41d1-80b4-00c04fd430c8")
	only := func(e *env, section string) kv.KV {
		rows := e.rows(kv.PrefixRange(key(section)))
		require.Len(e.t, rows, 1)
		return rows[0]
	}
	set := func(k, v []byte) func(*env) func(kv.Tx) {
		return func(*env) func(kv.Tx) { return func(tx kv.Tx) { tx.Set(k, v) } }
	}
	for _, c := range []struct {
		name   string
		rule   layer.Rule
		damage func(e *env) func(tx kv.Tx)
	}{
		{"a group without its hint", "group-reachable", func(e *env) func(kv.Tx) {
			return func(tx kv.Tx) { tx.ClearRange(kv.PrefixRange(key("ready"))) }
		}},
		{"a group that is delayed without its timer", "group-reachable", func(e *env) func(kv.Tx) {
			_, err := e.q.Enqueue(e.ctx, layer.Message{Group: "late", Delay: time.Hour})
			require.NoError(e.t, err)
			return func(tx kv.Tx) { tx.ClearRange(kv.PrefixRange(key("timer"))) }
		}},
		{"a group that is delayed whose timer is too late", "group-reachable", func(e *env) func(kv.Tx) {
			_, err := e.q.Enqueue(e.ctx, layer.Message{Group: "late", Delay: time.Hour})
			require.NoError(e.t, err)
			row := e.rows(kv.PrefixRange(key("timer")))[0]
			return func(tx kv.Tx) {
				tx.Clear(row.Key)
				tx.Set(key("timer", e.clock.now().Add(2*time.Hour).UnixMilli(), "late"), row.Value)
			}
		}},
		{"a lock without its timer", "lock-has-timer", func(e *env) func(kv.Tx) {
			e.receive(e.q, 1)
			return func(tx kv.Tx) { tx.ClearRange(kv.PrefixRange(key("timer"))) }
		}},
		{"a lock whose item is gone", "lock-items-in-group", func(e *env) func(kv.Tx) {
			e.receive(e.q, 1)
			return func(tx kv.Tx) { tx.Clear(only(e, "item").Key) }
		}},
		{"a claim of nothing", "claim-has-items", func(e *env) func(kv.Tx) {
			e.receive(e.q, 1)
			return func(tx kv.Tx) {
				l, err := tuple.Unpack(only(e, "lock").Value)
				require.NoError(e.t, err)
				l[2] = l[2].(tuple.Tuple)[:4]
				tx.Set(key("lock", "A"), l.Pack())
			}
		}},
		{"an envelope that cannot be read", "item-readable", func(e *env) func(kv.Tx) {
			return func(tx kv.Tx) { tx.Set(only(e, "item").Key, []byte{9, 9}) }
		}},
		{"an item without one of its parts", "item-readable", func(e *env) func(kv.Tx) {
			_, err := e.q.Enqueue(e.ctx, layer.Message{Group: "A", Body: make([]byte, 200_000)})
			require.NoError(e.t, err)
			return func(tx kv.Tx) { tx.Clear(e.rows(kv.PrefixRange(key("part")))[1].Key) }
		}},
		{"a part without its item", "part-has-owner", set(key("part", "A", int64(7), random, int64(0)), []byte("x"))},
		{"an attempt without its item", "attempt-has-item",
			set(key("attempt", "A", int64(7), random), tuple.Tuple{int64(1), int64(2), int64(3), "e"}.Pack())},
		{"a dead letter that cannot be read", "dead-letter-readable", set(key("dead", "A", int64(7), random), []byte{9})},
		{"a dead letter without its parts", "dead-letter-readable", func(e *env) func(kv.Tx) {
			_, err := e.q.Enqueue(e.ctx, layer.Message{Group: "B", Body: make([]byte, 200_000)})
			require.NoError(e.t, err)
			group := "B"
			claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Group: &group})
			require.NoError(e.t, err)
			require.NoError(e.t, e.q.Nack(e.ctx, claims[0], layer.NackOptions{Reject: "no use"}))
			return func(tx kv.Tx) { tx.Clear(e.rows(kv.PrefixRange(key("part")))[1].Key) }
		}},
		{"a dead letter whose item is in its group", "dead-letter-readable", func(e *env) func(kv.Tx) {
			item := e.rows(kv.PrefixRange(key("item")))[0]
			t, err := tuple.Unpack(item.Key)
			require.NoError(e.t, err)
			packed := tuple.Tuple{"why", "", int64(1), int64(1), int64(1), int64(1)}.Pack()
			value := append([]byte{1, byte(len(packed))}, packed...)
			return func(tx kv.Tx) { tx.Set(key("dead", t[3], t[4], t[5]), append(value, item.Value...)) }
		}},
		{"a mark with an end", "value-form", set(key("lock", "Z"),
			tuple.Tuple{int64(1), "w", int64(9), tuple.Tuple{}, "pause", tuple.Tuple{"pause", "w", "why", int64(1)}}.Pack())},
		{"a lock that cannot be read", "value-form", set(key("lock", "Z"), []byte("?"))},
		{"a hint that cannot be read", "value-form", set(key("ready", int64(0), int64(1), "A"), []byte("?"))},
		{"a timer that cannot be read", "value-form", set(key("timer", int64(1), "A"), []byte("?"))},
		{"a state of no bytes", "value-form", set(key("state", "A"), []byte{})},
		{"a rate that cannot be read", "value-form", set(key("pace", "A"), []byte("?"))},
		{"a rate that is used up far ahead", "rate-not-ahead", func(e *env) func(kv.Tx) {
			return func(tx kv.Tx) {
				tx.Set(key("pace", "A"), key0(e.clock.now().Add(24*time.Hour+time.Millisecond).UnixMicro(), int64(0), int64(1)))
			}
		}},
		{"a group that waits by its rate without its timer", "group-reachable", func(e *env) func(kv.Tx) {
			paced(e)
			return func(tx kv.Tx) { tx.ClearRange(kv.PrefixRange(key("timer"))) }
		}},
		{"a receive id without claims", "value-form", set(key("repeat", "id"), tuple.Tuple{int64(1)}.Pack())},
		{"an archived item that cannot be read", "archived-item-readable",
			set(key("archive", "A", int64(7), random), []byte{9})},
		{"an archived item without its entry", "archived-item-readable", func(e *env) func(kv.Tx) {
			archivedItems(1)(e)
			return func(tx kv.Tx) { tx.ClearRange(kv.PrefixRange(key("archived"))) }
		}},
		{"an archived item without its parts", "archived-item-readable", func(e *env) func(kv.Tx) {
			e.configure(func(c *layer.Config) { c.Archive = time.Hour })
			_, err := e.q.Enqueue(e.ctx, layer.Message{Group: "B", Body: make([]byte, 200_000)})
			require.NoError(e.t, err)
			claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Group: ptr("B")})
			require.NoError(e.t, err)
			require.NoError(e.t, e.q.Ack(e.ctx, claims[0]))
			return func(tx kv.Tx) { tx.Clear(e.rows(kv.PrefixRange(key("part")))[1].Key) }
		}},
		{"an entry without its items", "archive-entry-has-items", func(e *env) func(kv.Tx) {
			archivedItems(1)(e)
			return func(tx kv.Tx) { tx.ClearRange(kv.PrefixRange(key("archive"))) }
		}},
		{"an entry of nothing", "value-form", set(key("archived", int64(1), int64(1), random), tuple.Tuple{int64(1), "A"}.Pack())},
		{"a receipt that cannot be read", "value-form", set(key("receipt", random), []byte("?"))},
		{"a counter that cannot be read", "value-form", set(key("count", "acked", int64(1)), []byte("?"))},
		{"a mark's key without a mark", "mark-has-lock", set(key("mark", "A"), nil)},
		{"a mark without its key", "mark-has-lock", func(e *env) func(kv.Tx) {
			_, err := e.q.Admin().PauseGroup(e.ctx, "B", layer.PauseOptions{})
			require.NoError(e.t, err)
			return func(tx kv.Tx) { tx.Clear(key("mark", "B")) }
		}},
		{"a hint in another shard", "hint-in-its-shard", set(key("ready", int64(1), int64(1), "B"), nil)},
		{"a key of no form", "key-form", set(key("item", "A"), nil)},
		{"a key of no name", "key-form", set(key("tail", "A"), nil)},
	} {
		t.Run(c.name, func(t *testing.T) {
			e := newEnv(t, anyEngine, false)
			e.enqueue("A", "a1")
			e.write(c.damage(e))
			before := e.rows(kv.PrefixRange(testPrefix))
			report, err := e.calm().Admin().Check(e.ctx, layer.CheckOptions{})
			require.NoError(t, err)
			require.Len(t, report.Violations, 1, "%v", report.Violations)
			require.Equal(t, c.rule, report.Violations[0].Rule, "%v", report.Violations)
			printed, err := tuple.ParsePrintable(report.Violations[0].Key)
			require.NoError(t, err)
			require.True(t, kv.PrefixRange(key()).Contains(printed), "the key can be pasted into fdbcli")
			require.Equal(t, before, e.rows(kv.PrefixRange(testPrefix)), "the check changes nothing")

			e.write(func(tx kv.Tx) { // repaired
				for _, row := range e.rows(kv.PrefixRange(testPrefix)) {
					if !kv.PrefixRange(key("meta")).Contains(row.Key) {
						tx.Clear(row.Key)
					}
				}
			})
		})
	}
}

// TestCheckCounts: the report says what there is; hints and timers that stand for nothing are no violation.
func TestCheckCounts(t *testing.T) {
	onEngines(t, func(e *env) {
		e.enqueue("A", "a1", "a2")
		a := e.receive(e.q, 1)
		e.enqueue("B", "b1")
		require.NoError(e.t, e.q.Nack(e.ctx, e.receive(e.q, 1), layer.NackOptions{Delay: layer.MaxDelay}))
		e.enqueue("C", "c1")
		e.write(func(tx kv.Tx) {
			tx.Set(key("ready", int64(0), int64(1), "A"), nil)
			tx.Set(key("ready", int64(0), int64(2), "C"), nil)
			tx.Set(key("timer", int64(1), "C"), append(key0("claim"), 0x14))
		})
		var progress int64
		report, err := e.calm().Admin().Check(e.ctx, layer.CheckOptions{Progress: func(keys int64) { progress = keys }})
		require.NoError(e.t, err)
		require.EqualValues(e.t, len(e.rows(kv.PrefixRange(key()))), progress)
		report.Receipts = 0
		require.Equal(e.t, layer.CheckReport{
			Items: 4, Bytes: 8, Groups: 3, Held: 1, Delayed: 1, StaleHints: 2, StaleTimers: 1, Attempts: 1,
		}, report)
		require.NoError(e.t, e.q.Ack(e.ctx, a))
	})
}

// TestCheckCountsLanesAndHolds (Contract): Check counts a lane whose first item is delayed as delayed, and its timer is
// not stale. If items are claimed by themselves and in order, a group counts as held if its first item is claimed, and
// each item that waits for a retry counts as delayed.
func TestCheckCountsLanesAndHolds(t *testing.T) {
	late := layer.Message{Group: "A", Delay: time.Hour, Headers: map[string]string{"state": "NEW"}}
	type queue = layer.Config
	for name, c := range map[string]struct {
		config queue
		begin  func(e *env, q *layer.Queue)
		want   layer.CheckReport
	}{
		"a delayed lane": {queue{Facets: []string{"state"}, Views: "state"}, func(e *env, q *layer.Queue) {
			_, err := q.Enqueue(e.ctx, late, layer.Message{Group: "A", Headers: map[string]string{"state": "NEW"}})
			require.NoError(t, err)
		}, layer.CheckReport{Items: 2, Groups: 1, Delayed: 1}},
		"a delayed group and lane": {queue{Facets: []string{"state"}, Views: "*; state"}, func(e *env, q *layer.Queue) {
			_, err := q.Enqueue(e.ctx, late)
			require.NoError(t, err)
		}, layer.CheckReport{Items: 1, Groups: 1, Delayed: 2}},
		"the first item in flight": {queue{LeasePerItem: true}, func(e *env, q *layer.Queue) {
			e.holdItems(q)
		}, layer.CheckReport{Items: 3, Groups: 1, Held: 1}},
		"the first item delayed": {queue{LeasePerItem: true}, func(e *env, q *layer.Queue) {
			require.NoError(t, q.Nack(e.ctx, e.holdItems(q)[0], layer.NackOptions{Delay: time.Hour}))
		}, layer.CheckReport{Items: 3, Groups: 1, Delayed: 1, Attempts: 1}},
		"the second item delayed": {queue{LeasePerItem: true}, func(e *env, q *layer.Queue) {
			require.NoError(t, q.Nack(e.ctx, e.holdItems(q)[1], layer.NackOptions{Delay: time.Hour}))
		}, layer.CheckReport{Items: 3, Groups: 1, Held: 1, Delayed: 1, Attempts: 1}},
		"an item delayed, in no order": {queue{Unordered: true}, func(e *env, q *layer.Queue) {
			_, err := q.Enqueue(e.ctx, layer.Message{Group: "A"}, layer.Message{Group: "A"})
			require.NoError(t, err)
			claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Max: 2, Unordered: true})
			require.NoError(t, err)
			require.Len(t, claims, 2)
			require.NoError(t, q.Nack(e.ctx, claims[0], layer.NackOptions{Delay: time.Hour}))
		}, layer.CheckReport{Items: 2, Groups: 1, Delayed: 1, Attempts: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, anyEngine, false)
			q := e.configured(c.config)
			c.begin(e, q)
			report, err := q.Admin().Check(e.ctx, layer.CheckOptions{})
			require.NoError(t, err)
			report.Receipts = 0
			require.Equal(t, c.want, report)
		})
	}
}

// TestCheckSeesALaneBesideAHold (contract): an item is gone, and its key in the lane of free items and its hold are
// still there. Check reports both keys.
func TestCheckSeesALaneBesideAHold(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	q := e.configured(layer.Config{Unordered: true})
	_, err := q.Enqueue(e.ctx, layer.Message{Group: "A"})
	require.NoError(t, err)
	section := func(name string) []kv.KV {
		r, ok := layer.Section(testPrefix, "configured", name)
		require.True(t, ok)
		return e.rows(r)
	}
	free := section("lane")
	require.Len(t, free, 1)
	claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Unordered: true})
	require.NoError(t, err)
	require.Len(t, claims, 1)
	item := section("item")[0]
	e.write(func(tx kv.Tx) {
		tx.Set(free[0].Key, free[0].Value)
		tx.Clear(item.Key)
	})
	report, err := q.Admin().Check(e.ctx, layer.CheckOptions{})
	require.NoError(t, err)
	var rules []string
	for _, v := range report.Violations {
		rules = append(rules, string(v.Rule))
	}
	slices.Sort(rules)
	require.Equal(t, []string{"item-in-its-lanes", "lock-items-in-group"}, slices.Compact(rules))
	e.write(func(tx kv.Tx) {
		tx.Clear(free[0].Key)
		tx.Set(item.Key, item.Value)
	})
}

// holdItems claims the first two of three items of a group by themselves.
func (e *env) holdItems(q *layer.Queue) []*layer.Claim {
	e.t.Helper()
	_, err := q.Enqueue(e.ctx, layer.Message{Group: "A"}, layer.Message{Group: "A"}, layer.Message{Group: "A"})
	require.NoError(e.t, err)
	claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Max: 2})
	require.NoError(e.t, err)
	require.Len(e.t, claims, 2)
	return claims
}

// TestCorruptGroupStallsNobodyElse: a group whose head cannot be read is passed over and can be seen; a receive
// that finds nothing else says why.
func TestCorruptGroupStallsNobodyElse(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.enqueue("A", "a1")
	item := e.rows(kv.PrefixRange(key("item")))[0]
	e.write(func(tx kv.Tx) { tx.Set(item.Key, []byte{9, 9}) })
	_, err := e.q.Receive(e.ctx, layer.ReceiveOptions{})
	require.ErrorIs(t, err, layer.ErrCorrupt)
	for range 3 {
		e.enqueue("B", "b1")
		b := e.receive(e.q, 10)
		require.Equal(t, "B", b.Group)
		require.NoError(t, e.q.Ack(e.ctx, b))
	}
	page, err := e.q.Admin().Groups(e.ctx, layer.GroupsOptions{})
	require.NoError(t, err)
	require.Len(t, page.Groups, 1)
	require.Equal(t, layer.Corrupt, page.Groups[0].Status)
	require.NotEmpty(t, page.Groups[0].LastError)
	e.write(func(tx kv.Tx) { tx.Set(item.Key, item.Value) })
	require.NoError(t, e.q.Ack(e.ctx, e.receive(e.q, 1)))
}

// TestCheckReadsFewRows: to confirm that a group is reachable, or that a grant has its request, Check reads the key at
// which it expects the hint or the request. It searches no other keys if it is right.
func TestCheckReadsFewRows(t *testing.T) {
	const many = 1500
	e := newEnv(t, anyEngine, false)
	e.enqueue("A", "a1")
	hint := e.rows(kv.PrefixRange(key("ready")))[0]
	deadline := e.clock.now().Add(time.Minute).UnixMilli()
	e.write(func(tx kv.Tx) {
		tx.Clear(hint.Key)
		for i := range many {
			tx.Set(key("ready", int64(0), int64(i+1), fmt.Sprint("other", i)), nil)
			tx.Set(key("request", int64(i+1), uuid.New()), tuple.Tuple{"other", int64(1), deadline}.Pack())
		}
		waits := uuid.New()
		tx.Set(key("request", int64(many+1), waits), tuple.Tuple{"other", int64(1), deadline}.Pack())
		tx.Set(key("grant", waits, "B"), key0(int64(1)))
	})
	all := int64(len(e.rows(kv.PrefixRange(key()))))
	db := &rowsOfEach{DB: e.raw}
	q, err := layer.Open(e.ctx, db, testPrefix, testQueue, e.options(2))
	require.NoError(t, err)
	// The group becomes ready when Check has read its page of hints.
	report, err := q.Admin().Check(e.ctx, layer.CheckOptions{Progress: func(keys int64) {
		if keys == all {
			e.write(func(tx kv.Tx) { tx.Set(hint.Key, hint.Value) })
		}
	}})
	require.NoError(t, err)
	require.Empty(t, report.Violations)
	require.Empty(t, report.Unconfirmed)
	require.EqualValues(t, 1, report.Grants)
	require.LessOrEqual(t, db.most(), int64(210))
	require.NoError(t, q.Close(e.ctx))
}

// TestCheckReadsNoArchivedItemTwice (Contract): the memory and the reads of a page of Check are bounded, also if the
// page's entries of the archive name thousands of large messages. Check reads each body once.
func TestCheckReadsNoArchivedItemTwice(t *testing.T) {
	const acks, each, size = 40, 100, 1000
	e, recorder := recorded(t)
	e.configure(func(c *layer.Config) { c.Archive = time.Hour })
	for range acks {
		all := make([]layer.Message, each)
		for i := range all {
			all[i] = layer.Message{Group: "A", Body: make([]byte, size)}
		}
		_, err := e.q.Enqueue(e.ctx, all...)
		require.NoError(t, err)
		require.NoError(t, e.q.Ack(e.ctx, e.receive(e.q, each)))
	}
	recorder.Take()
	before := recorder.Counters()
	report, err := e.q.Admin().Check(e.ctx, layer.CheckOptions{})
	require.NoError(t, err)
	require.EqualValues(t, acks*each, report.Archived)
	read := recorder.Counters().Sub(before)
	require.Less(t, read.BytesRead, int64(2*acks*each*size), "each body once, and keys")
	for _, tx := range recorder.Take() {
		require.LessOrEqual(t, len(tx.Ops), 2200, "the page ends behind 2,000 rows that it asks for")
	}
}

// TestCheckUnconfirmed: Check searches at most 10,000,000 bytes of hints for a group. Then it cannot know that there is
// no other hint of the group, and says so.
func TestCheckUnconfirmed(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.enqueue("A", "a1")
	hint := e.rows(kv.PrefixRange(key("ready")))[0]
	e.write(func(tx kv.Tx) { tx.Clear(hint.Key) })
	check := func() layer.CheckReport {
		report, err := e.q.Admin().Check(e.ctx, layer.CheckOptions{})
		require.NoError(t, err)
		return report
	}
	fill := func(first, n int) { // 2,100 bytes each
		e.write(func(tx kv.Tx) {
			for i := range n {
				name := strings.Repeat("\x00", layer.MaxGroupSize-4) + fmt.Sprint(first+i)
				tx.Set(key("ready", int64(0), int64(i+1), name), nil)
			}
		})
	}
	fill(1000, 1500)
	fill(3000, 1500)
	fill(5000, 1500)
	report := check()
	require.Len(t, report.Violations, 1, "all hints were searched")
	require.EqualValues(t, "group-reachable", report.Violations[0].Rule)
	require.Empty(t, report.Unconfirmed)
	fill(7000, 600)
	again := check()
	require.Empty(t, again.Violations)
	require.Equal(t, report.Violations, again.Unconfirmed)
	e.write(func(tx kv.Tx) { tx.Set(hint.Key, hint.Value) })
	report = check()
	require.Empty(t, report.Violations)
	require.Empty(t, report.Unconfirmed)
}
