package layer_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/fault"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// doomed is a queue of its own to be dropped, with a bit of everything in it, on the engine of e.
func (e *env) doomed(name string, n uint64) *layer.Queue {
	e.t.Helper()
	q, err := layer.Create(e.ctx, e.db, testPrefix, name, e.options(n))
	require.NoError(e.t, err)
	for range 3 {
		_, err = q.Enqueue(e.ctx, layer.Message{Group: "A", Body: make([]byte, 200_000)}, layer.Message{Group: "B"})
		require.NoError(e.t, err)
	}
	_, err = q.Admin().Skip(e.ctx, "A", layer.SkipOptions{})
	require.NoError(e.t, err)
	_, err = q.Admin().PauseGroup(e.ctx, "Z", layer.PauseOptions{})
	require.NoError(e.t, err)
	claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Max: 1})
	require.NoError(e.t, err)
	require.NoError(e.t, q.Nack(e.ctx, claims[0], layer.NackOptions{Err: errors.New("boom")}))
	return q
}

// calls are calls of every kind on a handle, whose queue is gone. c is a claim of that queue.
func (e *env) calls(q *layer.Queue, c *layer.Claim) map[string]func() error {
	id := c.Items[0].ID
	calls := map[string]func() error{
		"enqueue": func() error { _, err := q.Enqueue(e.ctx, layer.Message{}); return err },
		"receive": func() error { _, err := q.Receive(e.ctx, layer.ReceiveOptions{}); return err },
		"wait": func() error {
			_, err := q.Receive(e.ctx, layer.ReceiveOptions{Wait: time.Minute})
			return err
		},
		"ack":    func() error { return q.Ack(e.ctx, c) },
		"nack":   func() error { return q.Nack(e.ctx, c, layer.NackOptions{}) },
		"extend": func() error { _, err := q.Extend(e.ctx, c, 0); return err },
		"state":  func() error { return q.Settle(e.ctx, settingState(c, []byte("x"))) },
		"once":   func() error { return q.Once(e.ctx, func(kv.Tx) error { return nil }) },
		"peek":   func() error { _, err := q.Peek(e.ctx, "A", 1, nil); return err },
		"stats":  func() error { _, err := q.Stats(e.ctx, layer.StatsOptions{}); return err },
		"why":    func() error { _, err := q.Admin().Why(e.ctx, id, nil); return err },
		"groups": func() error { _, err := q.Admin().Groups(e.ctx, layer.GroupsOptions{}); return err },
		"pause":  func() error { _, err := q.Admin().Pause(e.ctx, layer.PauseOptions{}); return err },
		"cancel": func() error { return q.Admin().Cancel(e.ctx, id) },
		"redrive": func() error {
			_, err := q.Admin().Redrive(e.ctx, layer.DeadFilter{All: true}, layer.RedriveOptions{})
			return err
		},
		"discard": func() error {
			_, err := q.Admin().Discard(e.ctx, layer.DeadFilter{All: true}, layer.DiscardOptions{DryRun: true})
			return err
		},
		"dead letters": func() error { _, err := q.Admin().DeadLetters(e.ctx, layer.DeadOptions{}); return err },
		"archive":      func() error { _, err := q.Admin().Archive(e.ctx, layer.ArchiveOptions{}); return err },
		"replay": func() error {
			_, err := q.Admin().Replay(e.ctx, layer.ArchiveFilter{All: true}, layer.ReplayOptions{})
			return err
		},
		"sweep":     func() error { _, err := q.Admin().Sweep(e.ctx, layer.SweepOptions{}); return err },
		"purge":     func() error { _, err := q.Admin().Purge(e.ctx, layer.PurgeOptions{All: true}); return err },
		"configure": func() error { _, _, err := q.Admin().Configure(e.ctx, func(*layer.Config) {}); return err },
		"config":    func() error { _, _, err := q.Admin().ReadConfig(e.ctx); return err },
		"check":     func() error { _, err := q.Admin().Check(e.ctx, layer.CheckOptions{}); return err },
	}
	for name, op := range map[string]func(tx kv.Tx) error{
		"enqueue": func(tx kv.Tx) error { _, err := q.EnqueueTx(e.ctx, tx, layer.Message{}); return err },
		"receive": func(tx kv.Tx) error { _, err := q.ReceiveTx(e.ctx, tx, layer.ReceiveOptions{}); return err },
		"take":    func(tx kv.Tx) error { _, _, err := q.TakeTx(e.ctx, tx, 1, layer.TakeOptions{}); return err },
		"ack":     func(tx kv.Tx) error { return q.AckTx(e.ctx, tx, c) },
		"pause": func(tx kv.Tx) error {
			_, err := q.Admin().PauseGroupTx(e.ctx, tx, "new", layer.PauseOptions{})
			return err
		},
	} {
		calls[name+" in a transaction"] = func() error {
			_, err := kv.Run(e.ctx, e.raw, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error { return op(tx) })
			return err
		}
	}
	return calls
}

// TestDropLeavesNoKey: a dropped queue leaves no key. Another queue under the prefix keeps all of its keys, and a new
// queue of the name starts empty. Open handles get ErrNoQueue from every call, and can be closed.
func TestDropLeavesNoKey(t *testing.T) {
	onEngines(t, func(e *env) {
		e.enqueue("A", "mine")
		beside := len(e.rows(kv.PrefixRange(testPrefix)))
		q := e.doomed("doomed", 5)
		claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Max: 1})
		require.NoError(e.t, err)
		require.NoError(e.t, layer.Drop(e.ctx, e.db, testPrefix, "doomed", layer.DropOptions{}))
		require.LessOrEqual(e.t, len(e.rows(kv.PrefixRange(testPrefix))), beside)
		require.Equal(e.t, []string{"mine"}, e.all("A"))
		names, err := layer.Queues(e.ctx, e.raw, testPrefix)
		require.NoError(e.t, err)
		require.Equal(e.t, []string{testQueue}, names)
		_, err = layer.Open(e.ctx, e.raw, testPrefix, "doomed", e.options(6))
		require.ErrorIs(e.t, err, layer.ErrNoQueue)
		require.ErrorIs(e.t, layer.Drop(e.ctx, e.db, testPrefix, "doomed", layer.DropOptions{}), layer.ErrNoQueue)

		e.clock.advance(time.Second)
		for name, call := range e.calls(q, claims[0]) {
			require.ErrorIs(e.t, call(), layer.ErrNoQueue, name)
		}
		require.NoError(e.t, q.Close(e.ctx))
		require.LessOrEqual(e.t, len(e.rows(kv.PrefixRange(testPrefix))), beside, "nothing was left behind")

		again, err := layer.Create(e.ctx, e.db, testPrefix, "doomed", e.options(7))
		require.NoError(e.t, err)
		s, err := again.Stats(e.ctx, layer.StatsOptions{})
		require.NoError(e.t, err)
		require.Equal(e.t, layer.Stats{}, s)
		require.NoError(e.t, again.Close(e.ctx))
	})
}

// TestHandleOfADroppedQueue: a handle from before a drop finds no queue, whatever it does, though there is a new one of
// the name by then; otherwise it would put hints into shards that the new queue does not have. Guard incarnation.
func TestHandleOfADroppedQueue(t *testing.T) {
	onEngines(t, func(e *env) {
		create := func(shards int, n uint64) *layer.Queue {
			o := e.options(n)
			o.Config.Shards = shards
			q, err := layer.Create(e.ctx, e.db, testPrefix, "again", o)
			require.NoError(e.t, err)
			return q
		}
		old := create(64, 5)
		_, err := old.Enqueue(e.ctx, layer.Message{Group: "A", Body: []byte("old")})
		require.NoError(e.t, err)
		c := e.receive(old, 1)
		require.NoError(e.t, layer.Drop(e.ctx, e.db, testPrefix, "again", layer.DropOptions{}))
		e.clock.advance(2 * time.Second) // as long as that takes
		q := create(1, 6)
		_, err = q.Enqueue(e.ctx, layer.Message{Group: "B", Body: []byte("new")})
		require.NoError(e.t, err)
		calls := e.calls(old, c)
		for name, call := range calls {
			require.ErrorIs(e.t, call(), layer.ErrNoQueue, name)
		}
		require.ErrorIs(e.t, calls["enqueue"](), layer.ErrNoQueue, "nor does it learn")
		require.NoError(e.t, old.Close(e.ctx))

		claims, err := q.Receive(e.ctx, layer.ReceiveOptions{MaxGroups: 10})
		require.NoError(e.t, err)
		require.Len(e.t, claims, 1)
		require.Equal(e.t, []string{"new"}, bodies(claims[0].Items))
		report, err := q.Admin().Check(e.ctx, layer.CheckOptions{})
		require.NoError(e.t, err)
		require.Empty(e.t, report.Violations)
		require.EqualValues(e.t, 1, report.Items)
		require.NoError(e.t, q.Close(e.ctx))
	})
}

// TestHandleLearnsNothingOfACallersOldTransaction: the caller's transaction may be seconds old when the handle reads
// the configuration there. The handle must not use it afterwards, because the queue of that name may be another by
// then.
func TestHandleLearnsNothingOfACallersOldTransaction(t *testing.T) {
	synctest.Test(t, dropAmidOldTransaction)
}

func dropAmidOldTransaction(t *testing.T) {
	e := newEnv(t, inMemory, false)
	o := e.options(5)
	o.Config.Shards = 64
	old, err := layer.Create(e.ctx, e.db, testPrefix, "again", o)
	require.NoError(t, err)
	tx, err := e.raw.Begin(kv.TxOptions{})
	require.NoError(t, err)
	defer tx.Cancel()
	_, err = tx.ReadVersion().Wait(e.ctx)
	require.NoError(t, err)
	require.NoError(t, layer.Drop(e.ctx, e.db, testPrefix, "again", layer.DropOptions{}))
	e.clock.advance(2 * time.Second) // as long as that takes
	q, err := layer.Create(e.ctx, e.db, testPrefix, "again", e.options(6))
	require.NoError(t, err)
	_, err = old.EnqueueTx(e.ctx, tx, layer.Message{Group: "A"})
	require.NoError(t, err, "at its version the queue is there")
	_, err = old.Enqueue(e.ctx, layer.Message{Group: "A"})
	require.ErrorIs(t, err, layer.ErrNoQueue)
	_, err = tx.Commit().Wait(e.ctx)
	if kv.Code(err) != kv.CodeTransactionTooOld { // as on a cluster that takes seconds for the calls before
		require.Equal(t, kv.CodeNotCommitted, kv.Code(err))
	}
	require.NoError(t, old.Close(e.ctx))
	require.NoError(t, q.Close(e.ctx))
}

// TestCreateOfUnknownOutcome: after a commit of unknown outcome Create tells its own queue from another's.
func TestCreateOfUnknownOutcome(t *testing.T) {
	t.Parallel()
	e := newEnv(t, anyEngine, false)
	for kind, want := range map[fault.Kind]error{
		fault.UnknownApplied: nil, fault.UnknownLost: layer.ErrQueueExists,
	} {
		name := fmt.Sprint("again", kind)
		plan := &fault.Plan{OnCommit: func(n int, _ kv.Tx) fault.Kind {
			if n > 1 {
				return fault.None
			}
			if kind == fault.UnknownLost { // and another process is faster
				_, err := layer.Create(e.ctx, e.raw, testPrefix, name, e.options(6))
				require.NoError(t, err)
			}
			return kind
		}}
		_, err := layer.Create(e.ctx, fault.Wrap(e.raw, plan), testPrefix, name, e.options(5))
		require.ErrorIs(t, err, want, kind)
	}
}

// TestDropInterrupted: a queue whose drop was interrupted cannot be opened or created, and is listed; the next drop
// ends it.
func TestDropInterrupted(t *testing.T) { synctest.Test(t, interruptDrop) }

func interruptDrop(t *testing.T) {
	e := newEnv(t, inMemory, false)
	q := e.doomed("doomed", 5)
	ctx, cancel := context.WithTimeout(e.ctx, 100*time.Millisecond) // of the two seconds that it takes
	defer cancel()
	require.ErrorIs(t, layer.Drop(ctx, e.db, testPrefix, "doomed", layer.DropOptions{}), context.DeadlineExceeded)
	_, err := layer.Open(e.ctx, e.raw, testPrefix, "doomed", e.options(6))
	require.ErrorIs(t, err, layer.ErrDropping)
	require.ErrorIs(t, err, layer.ErrNoQueue)
	_, err = layer.Create(e.ctx, e.raw, testPrefix, "doomed", e.options(6))
	require.ErrorIs(t, err, layer.ErrDropping)
	names, err := layer.Queues(e.ctx, e.raw, testPrefix)
	require.NoError(t, err)
	require.Contains(t, names, "doomed")
	e.clock.advance(time.Second)
	_, err = q.Enqueue(e.ctx, layer.Message{})
	require.ErrorIs(t, err, layer.ErrNoQueue, "from the mark on")
	require.NoError(t, layer.Drop(e.ctx, e.db, testPrefix, "doomed", layer.DropOptions{}))
	names, err = layer.Queues(e.ctx, e.raw, testPrefix)
	require.NoError(t, err)
	require.NotContains(t, names, "doomed")
}

// TestDropAfterADropOfItsPredecessor: of two drops of one queue the later comes to its last step when the queue is
// gone, and a new one of the name is being dropped, too. It leaves that one its full grace: a handle that has not
// looked since could otherwise write into what comes next.
func TestDropAfterADropOfItsPredecessor(t *testing.T) { synctest.Test(t, dropSuccessor) }

func dropSuccessor(t *testing.T) {
	e := newEnv(t, inMemory, false)
	e.doomed("doomed", 5)
	dropped := make(chan error, 3)
	drop := func() { dropped <- layer.Drop(e.ctx, e.raw, testPrefix, "doomed", layer.DropOptions{}) }
	go drop()
	time.Sleep(1500 * time.Millisecond)
	go drop()
	require.NoError(t, <-dropped)
	q := e.doomed("doomed", 6)
	time.Sleep(500 * time.Millisecond)
	go drop()
	for range 14 { // less than two seconds after its mark
		time.Sleep(100 * time.Millisecond)
		_, err := layer.Open(e.ctx, e.raw, testPrefix, "doomed", e.options(7))
		require.ErrorIs(t, err, layer.ErrDropping)
	}
	require.NoError(t, <-dropped)
	require.NoError(t, <-dropped)
	_, err := layer.Open(e.ctx, e.raw, testPrefix, "doomed", e.options(7))
	require.ErrorIs(t, err, layer.ErrNoQueue)
	require.NotErrorIs(t, err, layer.ErrDropping)
	require.NoError(t, q.Close(e.ctx))
}

// TestDropStraggler: a transaction that was begun before the drop and commits after it leaves nothing behind.
func TestDropStraggler(t *testing.T) {
	t.Parallel()
	calmly(t, dropStraggler)
}

func dropStraggler(t *testing.T, open func(t *testing.T) kv.DB) {
	e := newEnv(t, open, false)
	q := e.doomed("doomed", 5)
	late := make(map[string]kv.ManagedTx)
	for name, op := range map[string]func(tx kv.Tx) error{
		// On a group that is empty, so that nothing else of the queue is in its way.
		"enqueue": func(tx kv.Tx) error { _, err := q.EnqueueTx(e.ctx, tx, layer.Message{Group: "new"}); return err },
		"pause": func(tx kv.Tx) error {
			_, err := q.Admin().PauseGroupTx(e.ctx, tx, "new", layer.PauseOptions{})
			return err
		},
	} {
		tx, err := e.raw.Begin(kv.TxOptions{})
		require.NoError(t, err)
		defer tx.Cancel()
		require.NoError(t, op(tx), name)
		late[name] = tx
	}
	require.NoError(t, layer.Drop(e.ctx, e.raw, testPrefix, "doomed", layer.DropOptions{}))
	before := e.rows(kv.PrefixRange(testPrefix))
	for name, tx := range late {
		_, err := tx.Commit().Wait(e.ctx)
		if !tooSlow(err) {
			require.Equal(t, kv.CodeNotCommitted, kv.Code(err), name)
		}
	}
	require.Equal(t, before, e.rows(kv.PrefixRange(testPrefix)))
}

// TestDropAmidOnce: a transaction that does nothing on the queue but to write its receipt leaves none behind if the
// queue is dropped before it commits.
func TestDropAmidOnce(t *testing.T) {
	t.Parallel()
	e := newEnv(t, anyEngine, false)
	e.doomed("doomed", 5)
	db := &beforeCommit{DB: e.raw}
	q, err := layer.Open(e.ctx, db, testPrefix, "doomed", e.options(6))
	require.NoError(t, err)
	db.run = func() {
		require.NoError(t, layer.Drop(e.ctx, e.raw, testPrefix, "doomed", layer.DropOptions{}))
		e.clock.advance(2 * time.Second) // as long as that takes
	}
	db.left.Store(1)
	own := []byte("own")
	require.ErrorIs(t, q.Once(e.ctx, func(tx kv.Tx) error { tx.Set(own, nil); return nil }), layer.ErrNoQueue)
	require.Empty(t, e.rows(kv.SingleKey(own)))
	for _, row := range e.rows(kv.PrefixRange(testPrefix)) {
		require.True(t, kv.PrefixRange(key()).Contains(row.Key), "left behind: %q", row.Key)
	}
	require.NoError(t, q.Close(e.ctx))
}

// TestDropWakesWaiters: receives that wait learn of the drop at once, without their poll, and their handle can be
// closed.
func TestDropWakesWaiters(t *testing.T) {
	t.Parallel()
	e := newEnv(t, anyEngine, false)
	_, err := layer.Create(e.ctx, e.db, testPrefix, "doomed", e.options(5))
	require.NoError(t, err)
	o := e.options(6)
	o.Poll, o.Now = time.Hour, nil
	q, err := layer.Open(e.ctx, e.db, testPrefix, "doomed", o)
	require.NoError(t, err)
	ended := make(chan error, 3)
	for range cap(ended) {
		go func() {
			_, err := q.Receive(e.ctx, layer.ReceiveOptions{Wait: time.Minute})
			ended <- err
		}()
	}
	require.Eventually(t, func() bool { return q.Paths().Looks > 0 }, time.Minute, time.Millisecond)
	dropped := make(chan error, 1)
	go func() { dropped <- layer.Drop(e.ctx, e.db, testPrefix, "doomed", layer.DropOptions{}) }()
	for range cap(ended) {
		require.ErrorIs(t, <-ended, layer.ErrNoQueue)
	}
	require.NoError(t, q.Close(e.ctx))
	require.NoError(t, <-dropped)
}

// TestDropErrors: names that are none are refused.
func TestDropErrors(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	require.ErrorIs(t, layer.Drop(e.ctx, e.db, testPrefix, "", layer.DropOptions{}), layer.ErrNoQueueName)
	require.ErrorIs(t, layer.Drop(e.ctx, e.db, testPrefix, "\xff", layer.DropOptions{}), layer.ErrInvalidUTF8)
	require.ErrorIs(t, layer.Drop(e.ctx, e.db, testPrefix, "nosuch", layer.DropOptions{}), layer.ErrNoQueue)
}

// TestDropIf: a drop whose condition fails does nothing. If another program changes a key after the condition has read
// it, the condition reads it again.
func TestDropIf(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	q := e.doomed("kept", 1)
	before, err := q.Stats(e.ctx, layer.StatsOptions{})
	require.NoError(t, err)
	key, refused := []byte("may drop"), errors.New("refused")
	tries := 0
	may := func(ctx context.Context, tx kv.Tx) error {
		v, err := tx.Get(key).Wait(ctx)
		if tries++; tries == 1 && err == nil { // another program changes its mind
			_, err = kv.Run(ctx, e.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
				tx.Set(key, []byte("no"))
				return nil
			})
		}
		if err == nil && v != nil {
			err = refused
		}
		return err
	}
	require.ErrorIs(t, layer.Drop(e.ctx, e.db, testPrefix, "kept", layer.DropOptions{If: may}), refused)
	require.Equal(t, 2, tries)
	after, err := q.Stats(e.ctx, layer.StatsOptions{})
	require.NoError(t, err)
	require.Equal(t, before.Depth, after.Depth)
}

// TestDropIfIsNotAskedTwice (contract): the mark of a drop has landed, and its outcome was unknown. The condition would
// refuse by now, and is not asked again: a drop that returns its error has done nothing.
func TestDropIfIsNotAskedTwice(t *testing.T) {
	e := newEnv(t, inMemory, false)
	e.doomed("gone", 1)
	plan, tries := &fault.Plan{}, 0
	once := func(context.Context, kv.Tx) error {
		if tries++; tries > 1 {
			return errors.New("refused")
		}
		plan.ForceNext(fault.UnknownApplied)
		return nil
	}
	db := fault.Wrap(e.raw, plan)
	require.NoError(t, layer.Drop(e.ctx, db, testPrefix, "gone", layer.DropOptions{If: once}))
	require.Equal(t, 1, tries)
	_, err := layer.Open(e.ctx, e.db, testPrefix, "gone", layer.Options{})
	require.ErrorIs(t, err, layer.ErrNoQueue)
}

// TestQueuesOfMany: the queues are listed however many there are, and however long a read takes. One transaction could
// not read them all in its five seconds. Rows that are no queue are left out.
func TestQueuesOfMany(t *testing.T) {
	for _, c := range []struct {
		n         int
		lag, most time.Duration
	}{
		// A read for each name, of which the next is found behind the one before, and few more.
		{3000, 5 * time.Millisecond, 16 * time.Second},
		{10, 2 * time.Second, 2 * time.Minute},
	} {
		onLagging(t, c.lag, func(t *testing.T, db, lagging kv.DB) {
			ctx, cancel := context.WithTimeout(t.Context(), c.most)
			defer cancel()
			want := make([]string, c.n)
			for i := range want {
				want[i] = fmt.Sprintf("queue-%04d", i)
			}
			_, err := kv.Run(ctx, db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
				key := func(path ...any) []byte {
					return append(append([]byte(nil), testPrefix...), tuple.Tuple(path).Pack()...)
				}
				for _, name := range want {
					tx.Set(key(name, "meta", "format"), []byte{0})
					tx.Set(key(name, "wake"), nil)
				}
				tx.Set(key("queue-0007x", "wake"), nil)
				tx.Set(key(int64(1), "meta", "format"), nil)
				return nil
			})
			require.NoError(t, err)
			names, err := layer.Queues(ctx, lagging, testPrefix)
			require.NoError(t, err)
			require.Equal(t, want, names)
		})
	}
}
