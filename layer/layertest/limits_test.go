package layer_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/fault"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// TestBadInput: every limit has its own error, is checked before anything is done, and nothing is lost or added.
func TestBadInput(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.enqueue("A", "a1")
	a := e.receive(e.q, 1)
	long := func(n int) string { return strings.Repeat("x", n) }
	enqueue := func(m ...layer.Message) func() error {
		return func() error {
			_, err := e.q.Enqueue(e.ctx, m...)
			return err
		}
	}
	receive := func(o layer.ReceiveOptions) func() error {
		return func() error {
			_, err := e.q.Receive(e.ctx, o)
			return err
		}
	}
	manyLongGroups := make([]layer.Message, layer.MaxBatch)
	for i := range manyLongGroups {
		manyLongGroups[i] = layer.Message{Group: strings.Repeat("\x00", layer.MaxGroupSize-4) + long(4), Body: make([]byte, 4000)}
	}
	for _, c := range []struct {
		name string
		call func() error
		what string // of a LimitError, or
		is   error
	}{
		{"group of 1025 bytes", enqueue(layer.Message{Group: long(1025)}), "group", nil},
		{"group not UTF-8", enqueue(layer.Message{Group: "\xff"}), "", layer.ErrInvalidUTF8},
		{"body over 4 MiB", enqueue(layer.Message{Body: make([]byte, 4<<20+1)}), "body", nil},
		{"headers over 16 KiB", enqueue(layer.Message{Headers: map[string]string{"k": long(16 << 10)}}), "headers", nil},
		{"header not UTF-8", enqueue(layer.Message{Headers: map[string]string{"k": "\xff"}}), "", layer.ErrInvalidUTF8},
		{"1001 messages", enqueue(make([]layer.Message, 1001)...), "batch", nil},
		{"batch over 4 MiB", enqueue(layer.Message{Body: make([]byte, 3<<20)}, layer.Message{Body: make([]byte, 2<<20)}), "batch", nil},
		{"batch whose keys are too large", enqueue(manyLongGroups...), "batch with its keys", nil},
		{"negative lease", receive(layer.ReceiveOptions{Lease: -time.Second}), "lease", nil},
		{"lease under a second", receive(layer.ReceiveOptions{Lease: time.Millisecond}), "lease", nil},
		{"lease over 12 h", receive(layer.ReceiveOptions{Lease: 13 * time.Hour}), "lease", nil},
		{"receive of 1001", receive(layer.ReceiveOptions{Max: 1001}), "receive", nil},
		{"receive of -1", receive(layer.ReceiveOptions{Max: -1}), "receive", nil},
		{"receive of -1 bytes", receive(layer.ReceiveOptions{MaxBytes: -1}), "receive", nil},
		{"receive of -1 groups", receive(layer.ReceiveOptions{MaxGroups: -1}), "receive", nil},
		{"extend by a negative lease", func() error {
			_, err := e.q.Extend(e.ctx, a, -time.Second)
			return err
		}, "lease", nil},
		{"negative delay", func() error { return e.q.Nack(e.ctx, a, layer.NackOptions{Delay: -time.Second}) }, "delay", nil},
		{"delay over 30 days", func() error { return e.q.Nack(e.ctx, a, layer.NackOptions{Delay: 31 * 24 * time.Hour}) }, "delay", nil},
		{"peek of 0", func() error {
			_, err := e.q.Peek(e.ctx, "A", 0, nil)
			return err
		}, "peek", nil},
		{"listing of -1", func() error {
			_, err := e.q.Admin().Groups(e.ctx, layer.GroupsOptions{Limit: -1})
			return err
		}, "listing", nil},
		{"worker of -1", func() error {
			_, err := worker.New(e.q, worker.Handler{}, worker.Options{Concurrency: -1})
			return err
		}, "concurrency", nil},
		{"queue without a name", func() error {
			_, err := layer.Create(e.ctx, e.db, nil, "", layer.Options{})
			return err
		}, "", layer.ErrNoQueueName},
		{"queue name too long", func() error {
			_, err := layer.Open(e.ctx, e.db, nil, long(257), layer.Options{})
			return err
		}, "queue name", nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			err := c.call()
			require.Error(t, err)
			if c.is != nil {
				require.ErrorIs(t, err, c.is)
				return
			}
			var limit *layer.LimitError
			require.ErrorAs(t, err, &limit)
			require.Equal(t, c.what, limit.What)
			require.True(t, limit.Got < limit.Min || limit.Got > limit.Max, "%v", limit)
		})
	}
	require.Equal(t, []string{"a1"}, e.all("A"))
	require.NoError(t, e.q.Ack(e.ctx, a), "the claim is untouched")
}

// TestLimitsThemselves: the largest allowed of everything goes in and comes out whole.
func TestLimitsThemselves(t *testing.T) {
	onEngines(t, func(e *env) {
		body := make([]byte, layer.MaxBodySize-layer.MaxHeadersSize)
		for i := range body {
			body[i] = byte(i * i >> 3)
		}
		want := string(body)
		group := strings.Repeat("é", layer.MaxGroupSize/2)
		headers := map[string]string{"k": strings.Repeat("v", layer.MaxHeadersSize-1)}
		sent, err := e.q.Enqueue(e.ctx, layer.Message{Group: group, Body: body, Headers: headers})
		require.NoError(e.t, err)
		c := e.receive(e.q, 10)
		require.Equal(e.t, group, c.Group)
		require.Equal(e.t, sent[0].ID, c.Items[0].ID)
		require.True(e.t, want == string(c.Items[0].Body), "the body is the one enqueued")
		require.Equal(e.t, headers, c.Items[0].Headers)
		require.NoError(e.t, e.q.Ack(e.ctx, c))

		for _, size := range []int{0, 1, 89_000, 89_990, 90_000, 90_001, 180_000, 270_000} {
			_, err := e.q.Enqueue(e.ctx, layer.Message{Body: body[:size]})
			require.NoError(e.t, err)
			c := e.receive(e.q, 10)
			require.Equal(e.t, "", c.Group, "the default group")
			require.True(e.t, string(body[:size]) == string(c.Items[0].Body), "a body of %d bytes", size)
			require.NoError(e.t, e.q.Ack(e.ctx, c))
		}
		msgs := make([]layer.Message, layer.MaxBatch)
		_, err = e.q.Enqueue(e.ctx, msgs...)
		require.NoError(e.t, err)
		c = e.receive(e.q, layer.MaxBatch)
		require.Len(e.t, c.Items, layer.MaxBatch)
		require.NoError(e.t, e.q.Ack(e.ctx, c))
		parts := kv.PrefixRange(key("part"))
		require.Empty(e.t, e.rows(parts), "acks clear the parts")
	})
}

// rows reads a range past the queue.
func (e *env) rows(r kv.KeyRange) []kv.KV {
	e.t.Helper()
	var rows []kv.KV
	_, err := kv.Run(context.Background(), e.raw, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) (err error) {
		rows, err = tx.GetRange(r.Selectors(), kv.RangeOptions{}).Wait(context.Background())
		return err
	})
	require.NoError(e.t, err)
	return rows
}

// write changes the database past the queue.
func (e *env) write(fn func(tx kv.Tx)) {
	e.t.Helper()
	_, err := kv.Run(context.Background(), e.raw, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		fn(tx)
		return nil
	})
	require.NoError(e.t, err)
}

// spoil makes a row unreadable. mend gives it back the value that it had; it may have had none.
func (e *env) spoil(key []byte) (mend func()) {
	e.t.Helper()
	var was []byte
	e.write(func(tx kv.Tx) {
		var err error
		was, err = tx.Get(key).Wait(context.Background())
		require.NoError(e.t, err)
		tx.Set(key, []byte("unreadable"))
	})
	return func() {
		e.write(func(tx kv.Tx) {
			if tx.Clear(key); was != nil {
				tx.Set(key, was)
			}
		})
	}
}

// TestOpenRefusesWhatItCannotServe: an unknown queue, an existing queue, a queue of another format and a damaged queue
// have errors of their own. Queues under one prefix do not see each other.
func TestOpenRefusesWhatItCannotServe(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	_, err := layer.Open(e.ctx, e.db, testPrefix, "other", e.options(2))
	require.ErrorIs(t, err, layer.ErrNoQueue)
	_, err = layer.Create(e.ctx, e.db, testPrefix, testQueue, e.options(2))
	require.ErrorIs(t, err, layer.ErrQueueExists)

	other, err := layer.Create(e.ctx, e.db, testPrefix, "other", e.options(2))
	require.NoError(t, err)
	e.enqueue("A", "a1")
	require.Nil(t, e.receive(other, 1), "queues do not mix")
	names, err := layer.Queues(e.ctx, e.db, testPrefix)
	require.NoError(t, err)
	require.Equal(t, []string{"other", testQueue}, names)

	for _, c := range []struct {
		field string
		value []byte
		check func(err error)
	}{
		{"format", tuple.Tuple{int64(1)}.Pack(), func(err error) {
			var format *layer.FormatError
			require.ErrorAs(t, err, &format)
			require.Equal(t, layer.FormatError{Queue: testQueue, Found: 1, Known: 2}, *format)
			require.EqualError(t, err, `layer: open queue "q": queue "q" has format 1, this version knows format 2 alone: `+
				"use the version that wrote it")
		}},
		{"format", tuple.Tuple{int64(3)}.Pack(), func(err error) {
			var format *layer.FormatError
			require.ErrorAs(t, err, &format)
			require.Equal(t, layer.FormatError{Queue: testQueue, Found: 3, Known: 2}, *format)
			require.ErrorContains(t, err, "use a newer version")
		}},
		{"format", []byte("?"), func(err error) { require.ErrorIs(t, err, layer.ErrCorrupt) }},
		{"offset", nil, func(err error) { require.ErrorIs(t, err, layer.ErrCorrupt) }},
	} {
		before := e.rows(kv.SingleKey(key("meta", c.field)))
		e.write(func(tx kv.Tx) { tx.Set(key("meta", c.field), c.value) })
		_, err := layer.Open(e.ctx, e.db, testPrefix, testQueue, e.options(3))
		c.check(err)
		e.write(func(tx kv.Tx) { tx.Set(before[0].Key, before[0].Value) })
	}
}

// TestCreateAfterUnknownCommit: a create whose commit was unknown and applied is not told that the queue exists.
func TestCreateAfterUnknownCommit(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.plan.ForceNext(fault.UnknownApplied)
	_, err := layer.Create(e.ctx, e.db, testPrefix, "other", e.options(2))
	require.NoError(t, err)
}

// TestVersionsThatWentBack: after a move into a database with lower versions an open raises the offset, so that
// new items sort behind the old ones across groups, and tokens keep growing.
func TestVersionsThatWentBack(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.enqueue("A", "a1")
	// A restore leaves such items: their index is far ahead of this database's versions.
	const ahead = int64(1) << 50
	item, hint := e.rows(kv.PrefixRange(key("item")))[0], e.rows(kv.PrefixRange(key("ready")))[0]
	old := layer.ID{Group: "A", Index: ahead, Random: uuid.New()}
	e.write(func(tx kv.Tx) {
		tx.Clear(item.Key)
		tx.Clear(hint.Key)
		tx.Set(key("item", old.Group, old.Index, old.Random), item.Value)
		tx.Set(key("ready", int64(0), old.Index, old.Group), nil)
	})
	q := e.handle(2)
	sent, err := q.Enqueue(e.ctx, layer.Message{Group: "B", Body: []byte("b1")})
	require.NoError(t, err)
	require.Greater(t, sent[0].ID.Index, ahead)
	first := e.receive(q, 1)
	require.Equal(t, "A", first.Group, "the old item is still the oldest")
	require.Greater(t, first.Token, ahead)
	require.NoError(t, q.Ack(e.ctx, first))

	again := e.handle(3)
	second := e.receive(again, 1)
	require.Equal(t, "B", second.Group)
	require.Greater(t, second.Token, first.Token, "a handle opened later reads the raised offset")
	require.NoError(t, again.Ack(e.ctx, second))
}

// TestTokenOfAnOldHandle: a handle opened before the offset was raised still gives tokens that grow (G2), and
// indexes that grow within a group (G1).
func TestTokenOfAnOldHandle(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	const ahead = int64(1) << 50
	e.write(func(tx kv.Tx) { tx.Set(key("meta", "offset"), tuple.Tuple{ahead}.Pack()) })
	raised := e.handle(2)
	sent, err := raised.Enqueue(e.ctx, layer.Message{Group: "A"})
	require.NoError(t, err)
	first := e.receive(raised, 1)
	require.Greater(t, first.Token, ahead)
	more, err := e.q.Enqueue(e.ctx, layer.Message{Group: "A"})
	require.NoError(t, err)
	require.Greater(t, more[0].ID.Index, sent[0].ID.Index)
	e.clock.advance(time.Hour)
	second := e.receive(e.q, 1)
	require.Greater(t, second.Token, first.Token)
	require.ErrorIs(t, raised.Ack(e.ctx, first), layer.ErrClaimLost)
}

// TestClosedHandleRefusesEverything: a closed handle refuses everything, and leaves no receipt behind.
func TestClosedHandleRefusesEverything(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.enqueue("A", "a1")
	c := e.receive(e.q, 1)
	require.NoError(t, e.q.Close(e.ctx))
	require.NoError(t, e.q.Close(e.ctx))
	require.Empty(t, e.rows(kv.PrefixRange(key("receipt"))))
	for name, call := range map[string]func() error{
		"enqueue": func() error { _, err := e.q.Enqueue(e.ctx, layer.Message{}); return err },
		"receive": func() error { _, err := e.q.Receive(e.ctx, layer.ReceiveOptions{}); return err },
		"ack":     func() error { return e.q.Ack(e.ctx, c) },
		"nack":    func() error { return e.q.Nack(e.ctx, c, layer.NackOptions{}) },
		"extend":  func() error { _, err := e.q.Extend(e.ctx, c, 0); return err },
		"once":    func() error { return e.q.Once(e.ctx, func(kv.Tx) error { return nil }) },
		"stats":   func() error { _, err := e.q.Stats(e.ctx, layer.StatsOptions{}); return err },
		"check":   func() error { _, err := e.q.Admin().Check(e.ctx, layer.CheckOptions{}); return err },
	} {
		require.ErrorIs(t, call(), layer.ErrClosed, name)
	}
}

// TestIDTextReadsBack: an id's text and back; anything else is refused.
func TestIDTextReadsBack(t *testing.T) {
	id := layer.ID{Group: "a.b@c", Index: 42, Random: uuid.MustParse("6ba7b810-9dad-41d1-80b4-00c04fd430c8")}
	back, err := layer.ParseID(id.String())
	require.NoError(t, err)
	require.Equal(t, id, back)
	random, place, _ := strings.Cut(id.String(), "@")
	back, err = layer.ParseID(strings.ToUpper(random) + "@" + place)
	require.NoError(t, err)
	require.Equal(t, id, back, "the digits may be capital letters")
	for _, s := range []string{
		"", "x", "@1.A", "6ba7b810-9dad-41d1-80b4-00c04fd430c8@1", "6ba7b810-9dad-41d1-80b4-00c04fd430c8@x.A",
		"6ba7b810-9dad-41d1-80b4-00c04fd430c8@-1.A", "6ba7b810-9dad-41d1-80b4-00c04fd430c8@01.A",
		"6ba7b810-9dad-41d1-80b4-00c04fd430cZ@1.A", "6ba7b810-9dad-41d1-80b4-00c04fd430c8@1.\xff",
	} {
		_, err := layer.ParseID(s)
		require.ErrorIs(t, err, layer.ErrInvalidID, "%q", s)
	}
}

// TestReadErrorIsNotEmpty (trap 6): a failing read ends the call with the engine's error, never with "nothing".
func TestReadErrorIsNotEmpty(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.enqueue("A", "a1")
	options := e.options(2)
	options.Tx.Retries = 1
	q, err := layer.Open(e.ctx, e.db, testPrefix, testQueue, options)
	require.NoError(t, err)
	for name, call := range map[string]func() error{
		"receive": func() error { _, err := q.Receive(e.ctx, layer.ReceiveOptions{}); return err },
		"peek":    func() error { _, err := q.Peek(e.ctx, "A", 1, nil); return err },
		"groups":  func() error { _, err := q.Admin().Groups(e.ctx, layer.GroupsOptions{}); return err },
		"stats":   func() error { _, err := q.Stats(e.ctx, layer.StatsOptions{}); return err },
		"check":   func() error { _, err := q.Admin().Check(e.ctx, layer.CheckOptions{}); return err },
	} {
		// Each attempt's first read fails, and so does the one retry that the options allow.
		e.plan.Chances = map[fault.Kind]float64{fault.ProcessBehind: 1}
		err := call()
		e.plan.Chances = nil
		var engine *kv.Error
		require.True(t, errors.As(err, &engine), "%s: %v", name, err)
		require.Equal(t, kv.CodeProcessBehind, engine.Code, name)
	}
}

// TestClaimOfAnotherQueue: a claim is lost on a handle of another queue, also if a claim there has the same token (G2).
func TestClaimOfAnotherQueue(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.enqueue("A", "a1")
	other, err := layer.Create(e.ctx, e.db, testPrefix, "other", e.options(77))
	require.NoError(t, err)
	defer func() { require.NoError(t, other.Close(e.ctx)) }()
	_, err = other.Enqueue(e.ctx, layer.Message{Group: "A", Body: []byte("b1")})
	require.NoError(t, err)
	var mine, theirs []*layer.Claim
	_, err = kv.Run(e.ctx, e.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		if mine, err = e.q.ReceiveTx(e.ctx, tx, layer.ReceiveOptions{}); err != nil {
			return err
		}
		theirs, err = other.ReceiveTx(e.ctx, tx, layer.ReceiveOptions{})
		return err
	})
	require.NoError(t, err)
	require.Equal(t, mine[0].Token, theirs[0].Token, "one read version")
	require.ErrorIs(t, other.Ack(e.ctx, mine[0]), layer.ErrClaimLost)
	require.NoError(t, other.Ack(e.ctx, theirs[0]))
	require.NoError(t, e.q.Ack(e.ctx, mine[0]))
}

// TestCreateOverForeignKeys: a queue is not created where keys of something else lie, which Drop would remove (Contract).
func TestCreateOverForeignKeys(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	foreign := append(append([]byte(nil), testPrefix...), "\x02orders\x00\x02id\x00"...)
	e.write(func(tx kv.Tx) { tx.Set(foreign, []byte("mine")) })
	_, err := layer.Create(e.ctx, e.db, testPrefix, "orders", e.options(77))
	require.ErrorIs(t, err, layer.ErrForeignKeys)
	e.write(func(tx kv.Tx) { tx.Clear(foreign) })
	q, err := layer.Create(e.ctx, e.db, testPrefix, "orders", e.options(77))
	require.NoError(t, err)
	require.NoError(t, q.Close(e.ctx))
}
