package layer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/fault"
	"fdbfifo/layer"
)

// outcomeCalls are calls that change the queue. Each begins in the state of beforeOutcome.
var outcomeCalls = map[string]func(e *env, q *layer.Queue, c *layer.Claim) error{
	"enqueue": func(e *env, q *layer.Queue, _ *layer.Claim) error {
		_, err := q.Enqueue(e.ctx, layer.Message{Group: "B"})
		return err
	},
	"receive": func(e *env, q *layer.Queue, _ *layer.Claim) error {
		_, err := q.Receive(e.ctx, layer.ReceiveOptions{Max: 1})
		return err
	},
	"ack": func(e *env, q *layer.Queue, c *layer.Claim) error {
		return q.AckItems(e.ctx, c, []layer.ID{c.Items[0].ID})
	},
	"nack": func(e *env, q *layer.Queue, c *layer.Claim) error {
		return q.Nack(e.ctx, c, layer.NackOptions{Err: errors.New("failed")})
	},
	"extend": func(e *env, q *layer.Queue, c *layer.Claim) error {
		_, err := q.Extend(e.ctx, c, time.Hour)
		return err
	},
	"settle and receive": func(e *env, q *layer.Queue, c *layer.Claim) error {
		_, err := q.SettleReceive(e.ctx, layer.Settlement{Claim: c, FinishAll: true}, layer.ReceiveOptions{Max: 1})
		return err
	},
	"once": func(e *env, q *layer.Queue, _ *layer.Claim) error {
		return q.Once(e.ctx, func(tx kv.Tx) error {
			_, err := q.EnqueueTx(e.ctx, tx, layer.Message{Group: "B"})
			return err
		})
	},
	"cancel": func(e *env, q *layer.Queue, _ *layer.Claim) error {
		return q.Admin().Cancel(e.ctx, e.waiting("B"))
	},
	"skip": func(e *env, q *layer.Queue, _ *layer.Claim) error {
		_, err := q.Admin().Skip(e.ctx, "B", layer.SkipOptions{})
		return err
	},
	"release": func(e *env, q *layer.Queue, _ *layer.Claim) error {
		_, err := q.Admin().ForceRelease(e.ctx, "A", layer.ForceReleaseOptions{})
		return err
	},
	"pause": func(e *env, q *layer.Queue, _ *layer.Claim) error {
		_, err := q.Admin().PauseGroup(e.ctx, "B", layer.PauseOptions{})
		return err
	},
	"purge": func(e *env, q *layer.Queue, _ *layer.Claim) error {
		group := "B"
		_, err := q.Admin().Purge(e.ctx, layer.PurgeOptions{Group: &group})
		return err
	},
	"pause queue": func(e *env, q *layer.Queue, _ *layer.Claim) error {
		_, err := q.Admin().Pause(e.ctx, layer.PauseOptions{})
		return err
	},
	"take": func(e *env, q *layer.Queue, _ *layer.Claim) error {
		_, err := e.take(q, 1, layer.TakeOptions{})
		return err
	},
	"edit": func(e *env, q *layer.Queue, _ *layer.Claim) error {
		return q.Admin().Edit(e.ctx, e.waiting("B"), func(m *layer.Message) error {
			m.Body = []byte("edited")
			return nil
		})
	},
	"replace": func(e *env, q *layer.Queue, _ *layer.Claim) error {
		return q.Replace(e.ctx, e.waiting("B"), []byte("replaced"), nil)
	},
	"reschedule": func(e *env, q *layer.Queue, _ *layer.Claim) error {
		return q.Reschedule(e.ctx, e.waiting("B"), q.Now().Add(time.Hour))
	},
	"set state": func(e *env, q *layer.Queue, _ *layer.Claim) error {
		return q.Admin().SetGroupState(e.ctx, "B", []byte("state"), layer.SetGroupStateOptions{})
	},
	"redrive": func(e *env, q *layer.Queue, _ *layer.Claim) error {
		_, err := q.Admin().Redrive(e.ctx, layer.DeadFilter{All: true}, layer.RedriveOptions{})
		return err
	},
	"discard": func(e *env, q *layer.Queue, _ *layer.Claim) error {
		_, err := q.Admin().Discard(e.ctx, layer.DeadFilter{All: true}, layer.DiscardOptions{})
		return err
	},
	"replay": func(e *env, q *layer.Queue, _ *layer.Claim) error {
		_, err := q.Admin().Replay(e.ctx, layer.ArchiveFilter{All: true}, layer.ReplayOptions{})
		return err
	},
	"unsubscribe": func(e *env, q *layer.Queue, _ *layer.Claim) error {
		return q.Admin().Unsubscribe(e.ctx, "s")
	},
	"configure": func(e *env, q *layer.Queue, _ *layer.Claim) error {
		_, _, err := q.Admin().Configure(e.ctx, func(c *layer.Config) { c.Lease = time.Hour })
		return err
	},
}

// waiting is the first message of a group.
func (e *env) waiting(group string) layer.ID {
	e.t.Helper()
	items, err := e.calm().Peek(e.ctx, group, 1, nil)
	require.NoError(e.t, err)
	return items[0].ID
}

// beforeOutcome makes the state in which outcomeCalls begin: the messages a1 and a2 of A are in flight under the claim,
// b1 of B waits, d1 is a dead letter, e1 is archived, and s is a subscription.
func (e *env) beforeOutcome() *layer.Claim {
	e.t.Helper()
	e.configure(func(c *layer.Config) { c.Archive, c.Changes = time.Hour, time.Hour })
	e.enqueue("E", "e1")
	require.NoError(e.t, e.q.Ack(e.ctx, e.receive(e.q, 1)))
	e.enqueue("D", "d1")
	_, err := e.q.Admin().Skip(e.ctx, "D", layer.SkipOptions{})
	require.NoError(e.t, err)
	ctx, end := context.WithCancel(e.ctx)
	defer end()
	require.NoError(e.t, e.q.Subscribe(ctx, "s", func(context.Context, []layer.Change) error {
		end()
		return nil
	}, layer.SubscribeOptions{FromOldest: true}))
	e.enqueue("A", "a1", "a2")
	claim := e.receive(e.q, 2)
	e.enqueue("B", "b1")
	return claim
}

// content is the queue's rows without receipts, which are no effect.
func (e *env) content() [][]byte {
	var rows [][]byte
	receipts := kv.PrefixRange(key("receipt"))
	for _, row := range e.rows(kv.PrefixRange(testPrefix)) {
		if !receipts.Contains(row.Key) {
			rows = append(rows, row.Key, row.Value)
		}
	}
	return rows
}

// TestOutcomeIsTrue (G3): what a call says of its outcome is true, whatever the attempts of its transaction have met.
// A call that returns no error has had its effect. An error that leaves the outcome open says so (kv.MaybeCommitted).
// After any other error nothing has happened.
func TestOutcomeIsTrue(t *testing.T) {
	const done, notDone, unknown = "done", "not done", "unknown"
	for _, c := range []struct {
		first fault.Kind // of the first commit
		then  fault.Kind // what the attempt after it meets
		tx    kv.TxOptions
		says  string
		code  int
	}{
		{first: fault.UnknownApplied, says: done},
		{first: fault.UnknownLost, says: done},
		{first: fault.UnknownApplied, then: fault.ReadFailed, says: unknown, code: kv.CodeIOError},
		{first: fault.UnknownLost, then: fault.ReadFailed, says: unknown, code: kv.CodeIOError},
		// The receipt has told of the first attempt: the exact answer stands.
		{first: fault.UnknownApplied, then: fault.CommitFailed, says: done},
		{first: fault.UnknownLost, then: fault.CommitFailed, says: notDone, code: kv.CodeIOError},
		{first: fault.VersionChangedLost, then: fault.ReadFailed, says: unknown, code: kv.CodeIOError},
		{first: fault.UnknownApplied, then: fault.Conflict, tx: kv.TxOptions{Retries: 1}, says: done},
		{first: fault.UnknownLost, then: fault.Conflict, tx: kv.TxOptions{Retries: 1}, says: notDone,
			code: kv.CodeNotCommitted},
		{first: fault.UnknownLost, then: fault.UnknownApplied, tx: kv.TxOptions{Retries: 1}, says: unknown,
			code: kv.CodeCommitUnknownResult},
		{first: fault.UnnamedApplied, says: unknown, code: 4100},
		{first: fault.CommitFailed, says: notDone, code: kv.CodeIOError},
	} {
		for name, call := range outcomeCalls {
			t.Run(fmt.Sprintf("%s, %s, %s", c.first, c.then, name), func(t *testing.T) {
				e := newEnv(t, anyEngine, false)
				claim := e.beforeOutcome()
				o := e.options(2)
				o.Tx = c.tx
				q, err := layer.Open(e.ctx, e.db, testPrefix, testQueue, o)
				require.NoError(t, err)
				defer q.Close(e.ctx) // so that it gives nothing back amid the check
				before := e.content()
				struck := false
				e.plan.OnCommit = func(int, kv.Tx) fault.Kind {
					if struck {
						return fault.Chance
					}
					struck = true
					if c.then != fault.Chance {
						e.plan.ForceNext(c.then)
					}
					return c.first
				}
				err = call(e, q, claim)
				require.True(t, struck)
				happened := !slices.EqualFunc(before, e.content(), bytes.Equal)
				says := done
				switch {
				case kv.MaybeCommitted(err):
					says = unknown
				case err != nil:
					says = notDone
				}
				require.Equal(t, c.says, says, "%v", err)
				if says != unknown {
					require.Equal(t, says == done, happened, "%v", err)
				}
				if c.code != 0 {
					require.ErrorIs(t, err, &kv.Error{Code: c.code})
				}
				if says == unknown {
					require.ErrorContains(t, err, "it may have landed")
				}
			})
		}
	}
}

// TestOutcomeOfFailedFolder (G3): a write of the folder fails and may have reached the disk. The call says that the
// outcome is unknown, and nothing is read until the folder is opened again. A retry that read the old state would say
// that nothing was done.
func TestOutcomeOfFailedFolder(t *testing.T) {
	for name, call := range outcomeCalls {
		t.Run(name, func(t *testing.T) {
			path, broken := t.TempDir(), errors.New("sync: input/output error")
			failing := false
			e := newEnv(t, func(t *testing.T) kv.DB {
				synced := func(err error) error {
					if failing {
						err = errors.Join(err, broken)
					}
					return err
				}
				db, err := embedded.OpenDisk(path, embedded.Options{Hooks: embedded.Hooks{Synced: synced}})
				require.NoError(t, err)
				return db
			}, false)
			claim := e.beforeOutcome()
			before := e.content()
			failing = true
			err := call(e, e.q, claim)
			require.True(t, kv.MaybeCommitted(err), "%v", err)
			require.ErrorContains(t, err, broken.Error())
			_, err = e.q.Stats(e.ctx, layer.StatsOptions{})
			require.ErrorIs(t, err, &kv.Error{Code: kv.CodeIOError})
			require.ErrorContains(t, err, broken.Error())

			require.NoError(t, e.raw.Close())
			again, err := embedded.OpenDisk(path, embedded.Options{})
			require.NoError(t, err)
			e.raw = timedDB{again, e.clock}
			e.db = fault.Wrap(e.raw, e.plan)
			require.False(t, slices.EqualFunc(before, e.content(), bytes.Equal), "the write had reached the disk")
		})
	}
}

// TestOutcomeOfCreateAndDrop (G3): Create and Drop have no receipt. An attempt after one of unknown outcome knows its
// own queue, and its own drop, and does not say that nothing was done.
func TestOutcomeOfCreateAndDrop(t *testing.T) {
	for _, first := range []fault.Kind{fault.UnknownApplied, fault.UnknownLost} {
		t.Run(first.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { createAndDrop(newEnv(t, inMemory, false), first) })
		})
	}
}

func createAndDrop(e *env, first fault.Kind) {
	strike := func(then fault.Kind) {
		struck := false
		e.plan.OnCommit = func(int, kv.Tx) fault.Kind {
			if struck {
				return fault.Chance
			}
			struck = true
			if then != fault.Chance {
				e.plan.ForceNext(then)
			}
			return first
		}
	}
	create := func(name string) error {
		_, err := layer.Create(e.ctx, e.db, testPrefix, name, e.options(3))
		return err
	}
	strike(fault.Chance)
	require.NoError(e.t, create("other"))
	strike(fault.ReadFailed)
	err := create("another")
	require.True(e.t, kv.MaybeCommitted(err), "%v", err)
	e.plan.OnCommit = nil
	err = create("another")
	require.Equal(e.t, first == fault.UnknownApplied, errors.Is(err, layer.ErrQueueExists), "%v", err)

	// Another drops the queue between the attempts of the first step.
	db := between{e.db, func() {
		require.NoError(e.t, layer.Drop(e.ctx, e.raw, testPrefix, "other", layer.DropOptions{}))
	}}
	strike(fault.Chance)
	require.NoError(e.t, layer.Drop(e.ctx, db, testPrefix, "other", layer.DropOptions{}))
}

// TestOutcomeAfterDrop (G3, trap 4): the queue is dropped, and perhaps created again, between a commit of unknown
// outcome and the next attempt. The receipt is gone with the queue, so its absence proves nothing. The commit was
// applied, and the other queue has the message. So the call must say that its outcome is unknown.
func TestOutcomeAfterDrop(t *testing.T) {
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprintf("created again %t", again), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { outcomeAfterDrop(newEnv(t, inMemory, false), again) })
		})
	}
}

func outcomeAfterDrop(e *env, again bool) {
	e.doomed("doomed", 5)
	target := e.q
	db := between{e.db, func() {
		require.NoError(e.t, layer.Drop(e.ctx, e.raw, testPrefix, "doomed", layer.DropOptions{}))
		if again {
			e.doomed("doomed", 7)
		}
	}}
	source, err := layer.Open(e.ctx, db, testPrefix, "doomed", e.options(6))
	require.NoError(e.t, err)
	e.plan.ForceNext(fault.UnknownApplied)
	moved := 0
	err = source.Once(e.ctx, func(tx kv.Tx) error {
		items, _, err := source.TakeTx(e.ctx, tx, 1, layer.TakeOptions{})
		if moved = len(items); err != nil || moved == 0 {
			return err
		}
		_, err = target.EnqueueTx(e.ctx, tx, layer.Message{Group: "moved", Body: items[0].Body})
		return err
	})
	claims, err2 := target.Receive(e.ctx, layer.ReceiveOptions{})
	require.NoError(e.t, err2)
	require.Len(e.t, claims, 1, "the first commit was applied")
	require.ErrorIs(e.t, err, layer.ErrNoQueue)
	require.True(e.t, kv.MaybeCommitted(err), "%v", err)
	require.NoError(e.t, target.Ack(e.ctx, claims[0]))
	require.NoError(e.t, source.Close(e.ctx))
}

// unknownCommits is an engine that applies the first commits of transactions with the name call, and says that they
// have timed out and may still land.
type unknownCommits struct {
	kv.DB
	call string
	left atomic.Int64
}

func (d *unknownCommits) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := d.DB.Begin(o)
	if err != nil || o.Call != d.call || d.left.Add(-1) < 0 {
		return tx, err
	}
	return unknownCommit{tx}, nil
}

type unknownCommit struct{ kv.ManagedTx }

func (t unknownCommit) Commit() kv.Future[struct{}] {
	return unknownOutcome{t.ManagedTx.Commit()}
}

type unknownOutcome struct{ kv.Future[struct{}] }

func (f unknownOutcome) Wait(ctx context.Context) (none struct{}, err error) {
	if _, err := f.Future.Wait(ctx); err != nil {
		return none, err
	}
	return none, &kv.Error{Code: kv.CodeTransactionTimedOut, InFlight: true}
}

// TestUnknownDrawLeavesNoDoubt (G3): a transaction draws from the rate of the queue in a transaction of its own, whose
// outcome stays unknown. The calls that share the first transaction are done in another attempt. If no draw succeeds,
// the receive finds the rate used up.
func TestUnknownDrawLeavesNoDoubt(t *testing.T) {
	rate := layer.Rate{Count: 1000, Per: time.Second}
	for name, draws := range map[string]int64{"one draw": 1, "every draw": 1 << 40} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, layer.Config{MaxRateTotal: rate}, func(b *bubble) {
				b.scatter(2)
				claims, err := b.q.Receive(b.t.Context(), layer.ReceiveOptions{Max: 1})
				require.NoError(b.t, err)
				require.Len(b.t, claims, 1)
				db := &unknownCommits{DB: b.db, call: "rate"}
				q, err := layer.Open(b.t.Context(), db, testPrefix, testQueue, layer.Options{})
				require.NoError(b.t, err)
				db.left.Store(draws)
				ctx, cancel := context.WithTimeout(b.t.Context(), time.Second)
				defer cancel()
				done := layer.Settlement{Claim: claims[0], FinishAll: true}
				next, err := q.SettleReceive(ctx, done, layer.ReceiveOptions{Max: 1})
				require.NoError(b.t, err)
				require.EqualValues(b.t, 1, b.stats().Depth)
				if draws == 1 {
					require.Len(b.t, next, 1)
					require.NoError(b.t, q.Ack(b.t.Context(), next[0]))
				} else {
					require.Empty(b.t, next)
				}
				require.NoError(b.t, q.Close(b.t.Context()))
				b.sound()
			})
		})
	}
}
