package layer_test

import (
	"bytes"
	"errors"
	"regexp"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// TestDescribePutsEveryPairIntoWords: every pair that a queue writes can be put into words, and no kind of key is left
// out.
func TestDescribePutsEveryPairIntoWords(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	message := func(group string, body []byte, headers map[string]string) {
		_, err := e.q.Enqueue(e.ctx, layer.Message{Group: group, Body: body, Headers: headers})
		require.NoError(t, err)
	}
	fail := func(delay time.Duration) {
		claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Max: 1})
		require.NoError(t, err)
		require.Len(t, claims, 1)
		require.NoError(t, e.q.Nack(e.ctx, claims[0], layer.NackOptions{Err: errors.New("no luck"), Delay: delay}))
	}
	message("held", []byte("first"), map[string]string{"line": "1", "a": "b"})
	message("held", bytes.Repeat([]byte("x"), 100_000), nil)
	claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{})
	require.NoError(t, err)
	require.Len(t, claims, 1)
	message("delayed", nil, nil)
	fail(time.Minute)
	message("failed", []byte("y"), nil)
	fail(0)
	message("dead", []byte("d"), nil)
	claims, err = e.q.Receive(e.ctx, layer.ReceiveOptions{MaxGroups: 1, Group: ptr("dead")})
	require.NoError(t, err)
	require.NoError(t, e.q.Nack(e.ctx, claims[0], layer.NackOptions{Err: errors.New("no luck"), Reject: "no use"}))
	e.configure(func(c *layer.Config) { c.OnFailure = layer.HaltGroup })
	message("halted", []byte("p"), nil)
	claims, err = e.q.Receive(e.ctx, layer.ReceiveOptions{MaxGroups: 1, Group: ptr("halted")})
	require.NoError(t, err)
	require.NoError(t, e.q.Nack(e.ctx, claims[0], layer.NackOptions{Reject: "no use"}))
	message("named", []byte("n"), nil)
	_, err = e.q.Receive(e.ctx, layer.ReceiveOptions{Group: ptr("named"), ReceiveID: "once"})
	require.NoError(t, err)
	e.configure(func(c *layer.Config) { c.Archive = time.Hour })
	message("done", []byte("d"), nil)
	claims, err = e.q.Receive(e.ctx, layer.ReceiveOptions{Group: ptr("done")})
	require.NoError(t, err)
	require.NoError(t, e.q.Ack(e.ctx, claims[0]))
	message("ready", []byte("z"), nil)
	e.sendAs(e.q, "named", "x")
	e.configure(func(c *layer.Config) { c.DedupInGroup, c.DedupForPending = true, true })
	e.clock.advance(time.Second)
	e.sendAs(e.q, "named", "x")
	e.clock.advance(-time.Second)
	require.NoError(t, purgeGroup("purged", false)(e, nil, nil))
	require.NoError(t, e.q.Admin().SetGroupState(e.ctx, "ready", []byte("kept"), layer.SetGroupStateOptions{}))
	e.configure(func(c *layer.Config) { c.MaxRate = layer.Rate{Count: 7, Per: time.Minute} })
	message("paced", []byte("z"), nil)
	_, err = e.q.Receive(e.ctx, layer.ReceiveOptions{Group: ptr("paced")})
	require.NoError(t, err)
	random := uuid.MustParse("6ba7b810-9dad-41d1-80b4-00c04fd430c8")
	e.put(random, 2, time.Minute)
	e.configure(func(c *layer.Config) { c.Changes = time.Hour })
	message("told", nil, nil)
	e.write(func(tx kv.Tx) {
		tx.Set(key("cursor", "audit"), tuple.Tuple{random, []byte{2, 'c', 0}, int64(1)}.Pack())
		tx.Set(key("reader", "audit"), tuple.Tuple{random, "host", int64(1_700_000_000_000)}.Pack())
		tx.Set(key("grant", random, "ready"), key0(int64(1234567)))
		tx.Set(key("reqgroup", "empty", random), tuple.Tuple{"host", int64(1), int64(1_700_000_000_000)}.Pack())
		tx.Set(key("wake", random), []byte{3, 0, 0, 0, 0, 0, 0, 0})
	})

	lanes := e.on(e.laned("lanes", "*; state", nil, 1)[0])
	lanes.sendStates("NEW", "PAID", "DONE")
	lanes.claimBy(isNew, 1)
	lanes.claimBy(nil, 1) // puts the hint of the whole group aside
	lanes.claimBy(isPaid, 1)
	_, err = lanes.q.Enqueue(e.ctx, layer.Message{Group: "B", Headers: facetsOf("NEW", "EU"), Delay: time.Hour})
	require.NoError(t, err)

	single := e.unordered("holds", nil, 1)[0]
	_, err = single.Enqueue(e.ctx, layer.Message{Group: "C"}, layer.Message{Group: "C"})
	require.NoError(t, err)
	_, err = single.Receive(e.ctx, layer.ReceiveOptions{Unordered: true, Max: 1})
	require.NoError(t, err)
	e.write(func(tx kv.Tx) {
		value := tuple.Tuple{"host", int64(2), int64(1_700_000_000_000)}.Pack()
		for _, key := range []tuple.Tuple{
			{"lanes", "reqlane", int64(1), "NEW", int64(1_700_000_000_000), random},
			{"lanes", "reqgroup", "A", int64(1), "NEW", random},
		} {
			tx.Set(append(append([]byte(nil), testPrefix...), key.Pack()...), value)
		}
	})

	beats, err := layer.Create(e.ctx, e.db, testPrefix, "beats", e.options(7))
	require.NoError(t, err)
	_, err = beats.Enqueue(e.ctx, layer.Message{Group: "D"})
	require.NoError(t, err)
	_, err = beats.Receive(e.ctx, layer.ReceiveOptions{Heartbeat: true})
	require.NoError(t, err)
	require.NoError(t, beats.Close(e.ctx))

	number := regexp.MustCompile(`\d{6,}`) // indexes and tokens
	id := regexp.MustCompile(`[0-9a-f]{8}-[0-9a-f-]{27}(@\d+)?`)
	plain := func(s string) string { return number.ReplaceAllString(id.ReplaceAllString(s, "ID"), "N") }
	words := make(map[string]string)
	names := make(map[string]bool)
	for _, row := range e.rows(kv.KeyRange{End: []byte{0xff}}) {
		d, ok, err := layer.Describe(testPrefix, row.Key, row.Value)
		require.True(t, ok)
		require.NoError(t, err)
		require.Contains(t, []string{testQueue, "lanes", "holds", "beats"}, d.Queue)
		require.NotEmpty(t, d.Value)
		words[plain(d.Key)] = plain(d.Value)
		names[d.Name] = true

		alone, ok, err := layer.Describe(testPrefix, row.Key, nil)
		require.True(t, ok)
		require.NoError(t, err)
		require.Equal(t, layer.Description{Queue: d.Queue, Name: d.Name, Key: d.Key}, alone)

		section, ok := layer.Section(testPrefix, d.Queue, d.Name)
		require.True(t, ok)
		require.True(t, section.Contains(row.Key))
	}
	for _, name := range layer.KeyNames() {
		require.Contains(t, names, name)
	}
	for key, value := range map[string]string{
		`request of a handle whose receives wait for group "empty", random ID`: `of "host", ` +
			`counts as dead after 2023-11-14 22:13:20.000 UTC`,
		`setting "format"`:                                            `2`,
		`item N of group "ready", id ID.ready`:                        `enqueued 2023-11-14 22:13:20.000 UTC, body of 1 byte: "z"`,
		`item N of group "delayed", id ID.delayed`:                    `enqueued 2023-11-14 22:13:20.000 UTC, body of 0 bytes`,
		`lock of group "held"`:                                        `claim: held by "worker-1" under token N until 2023-11-14 22:13:50.000 UTC, 2 items delivered and not acked: N, N`,
		`pace of group "paced"`:                                       `its rate is used up to 2023-11-14 22:13:20.000 UTC`,
		`state of group "ready"`:                                      `4 bytes: "kept"`,
		`what the receive with id "once" was given`:                   `at 2023-11-14 22:13:20.000 UTC: group "named" under token N`,
		`archived item N of group "done", id ID.done`:                 `completed 2023-11-14 22:13:20.000 UTC; enqueued 2023-11-14 22:13:20.000 UTC, body of 1 byte: "d"`,
		`what one ack at N has finished, from N of random ID on`:      `completed 2023-11-14 22:13:20.000 UTC, 1 item of group "done", the first is ID.done`,
		`lock of group "delayed"`:                                     `held by nobody, a retry waits until 2023-11-14 22:14:20.000 UTC`,
		`timer of group "held", due 2023-11-14 22:13:50.000 UTC`:      `a lease ends then; the group's head had index N`,
		`timer of group "delayed", due 2023-11-14 22:14:20.000 UTC`:   `the delay of a retry ends then; the group's head had index N`,
		`ready hint of group "ready", its head has index N`:           `failed deliveries of the head: none`,
		`ready hint of group "failed", its head has index N`:          `failed deliveries of the head: 1, or not known`,
		`failed deliveries of item N of group "failed", id ID.failed`: `1, the first at 2023-11-14 22:13:20.000 UTC, the last at 2023-11-14 22:13:20.000 UTC: "no luck"`,
		`request of a handle whose receives wait, since 1, random ID`: `of "dead", wants 2 groups, counts as dead after 2023-11-14 22:14:20.000 UTC`,
		`grant of group "ready" to the request of ID`:                 `token N`,
		`dead letter N of group "dead", id ID.dead`: `dead-lettered at 2023-11-14 22:13:20.000 UTC: "no use", 1 failed deliveries, ` +
			`the first at 2023-11-14 22:13:20.000 UTC, the last at 2023-11-14 22:13:20.000 UTC: "no luck"; ` +
			`enqueued 2023-11-14 22:13:20.000 UTC, body of 1 byte: "d"`,
		`lock of group "halted"`:                              `halted by "worker-1" since 2023-11-14 22:13:20.000 UTC: "no use"`,
		`place of subscription "audit"`:                       `from \x02c\x00 on, 1 changes of it done, token ID`,
		`holder of subscription "audit"`:                      `"host" until 2023-11-14 22:13:20.000 UTC, token ID`,
		`wake key of the request of ID`:                       `3`,
		`what is remembered of dedup id "x"`:                  `message ID.named, until 2023-11-14 22:18:20.000 UTC`,
		`what is remembered of dedup id "x" in group "named"`: `message ID.named, while it is in the queue`,
		`the last purge of group "purged"`:                    `at 2023-11-14 22:13:20.000 UTC, clock N`,
	} {
		require.Equal(t, value, words[key], "%s, of %v", key, words)
	}
	none := `failed deliveries of the head: none`
	for key, value := range map[string]string{
		`item N of group "A", id ID.A, as one of a lane: group "A" with DONE in view 1`: `nothing more`,

		`ready hint of group "A" with DONE in view 1, its head has index N`:               none,
		`ready hint of group "A", put aside while group "A" with NEW in view 1 is locked`: none,

		`request of a handle whose receives wait for lanes with NEW, since 2023-11-14 22:13:20.000 UTC, ` +
			`random ID`: `of "host", wants 2 lanes, counts as dead after 2023-11-14 22:13:20.000 UTC`,
		`request of a handle whose receives wait for group "A" with NEW in view 1, random ID`: `of "host", ` +
			`counts as dead after 2023-11-14 22:13:20.000 UTC`,

		`timer of group "A" with NEW in view 1, due 2023-11-14 22:13:50.000 UTC`: `a lease ends then; ` +
			`the group's head had index N`,
	} {
		require.Equal(t, value, words[key], "%s, of %v", key, words)
	}
}

// TestDescribeTimersOfARetroactiveDelay: the timer of a delayed message is put into words as the time since when the
// queue's delay counts, if the delay may change. This holds for a group and for a lane.
func TestDescribeTimersOfARetroactiveDelay(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	config := layer.Config{Facets: []string{"state"}, Views: "*; state", RetroactiveDelay: true, Delay: time.Hour}
	q := e.configured(config)
	_, err := q.Enqueue(e.ctx, layer.Message{Group: "A", Headers: map[string]string{"state": "NEW"}})
	require.NoError(t, err)
	var words []string
	for _, name := range []string{"timer", "due"} {
		section, ok := layer.Section(testPrefix, "configured", name)
		require.True(t, ok)
		for _, row := range e.rows(section) {
			d, ok, err := layer.Describe(testPrefix, row.Key, row.Value)
			require.True(t, ok)
			require.NoError(t, err)
			words = append(words, d.Key)
		}
	}
	require.Equal(t, []string{
		`timer of group "A", due when the queue's delay is over since 2023-11-14 22:13:20.000 UTC`,
		`timer of group "A" with NEW in view 1, due when the queue's delay is over since 2023-11-14 22:13:20.000 UTC`,
	}, words)
}

func ptr[T any](v T) *T { return &v }

// TestDescribeOthers: a key of no queue is none, and damage is named.
func TestDescribeOthers(t *testing.T) {
	for _, other := range [][]byte{nil, testPrefix, []byte("else"), key(), append(testPrefix[:len(testPrefix):len(testPrefix)], 0x15, 1)} {
		_, ok, err := layer.Describe(testPrefix, other, nil)
		require.NoError(t, err)
		require.False(t, ok, "%q", other)
	}
	for _, damaged := range []kv.KV{
		{Key: key("nonsense", "A")},
		{Key: key("lock")},
		{Key: key("lock", "A", "B")},
		{Key: key("lock", "A"), Value: []byte{}},
		{Key: key("lock", "A"), Value: key0(int64(1), tuple.Tuple{"delay", "w", "x", int64(1)})},
		{Key: key("lock", "A"), Value: key0(int64(1), nil)},
		{Key: key("lock", "A"), Value: key0(int64(1), tuple.Tuple{"halt", "w", "x", int64(1)}, tuple.Tuple{"delay", int64(1), "", int64(2)})},
		{Key: key("dead", "A", int64(1), uuid.UUID{}), Value: []byte{1, 9}},
		{Key: key("meta", "config"), Value: key0(int64(1))},
		{Key: key("meta", "config"), Value: key0(int64(1), "{", uuid.UUID{})},
		{Key: key("meta", "config"), Value: key0(int64(1), "{}")},
		{Key: key("item", "A", int64(1)), Value: []byte{}},
		{Key: key("ready", int64(0), int64(7), "A"), Value: []byte("x")},
		{Key: key("timer", int64(7), "A"), Value: []byte("x")},
		{Key: key("count", "acked", int64(0)), Value: []byte("x")},
		{Key: key("meta", "format"), Value: []byte("x")},
	} {
		d, ok, err := layer.Describe(testPrefix, damaged.Key, damaged.Value)
		require.True(t, ok)
		require.ErrorIs(t, err, layer.ErrCorrupt, "%v", d)
	}
}

// TestGroupSection: the range of a group's keys holds those of this group and no others.
func TestGroupSection(t *testing.T) {
	for _, name := range []string{"item", "part", "attempt", "dead", "lock", "mark", "pace"} {
		r, ok := layer.GroupSection(testPrefix, testQueue, name, "A")
		require.True(t, ok)
		inside, other, longer := key(name, "A", int64(1)), key(name, "B", int64(1)), key(name, "AA", int64(1))
		switch name {
		case "lock", "mark":
			require.True(t, r.Contains(key(name, "A", int64(1), "new")), "%s of a lane", name)
			inside, other, longer = key(name, "A"), key(name, "B"), key(name, "A\x00")
		case "pace":
			inside, other, longer = key(name, "A"), key(name, "B"), key(name, "A", int64(1))
		}
		require.True(t, r.Contains(inside), name)
		require.False(t, r.Contains(other), name)
		require.False(t, r.Contains(longer), name)
	}
	for _, name := range []string{"", "ready", "timer", "meta", "nonsense"} {
		_, ok := layer.GroupSection(testPrefix, testQueue, name, "A")
		require.False(t, ok, name)
	}
	_, ok := layer.Section(testPrefix, testQueue, "nonsense")
	require.False(t, ok)
	_, ok = layer.Section(testPrefix, testQueue, "")
	require.False(t, ok, "no name is not all names")
	all := layer.WholeSection(testPrefix, testQueue)
	require.True(t, all.Contains(key("meta", "format")))
}
