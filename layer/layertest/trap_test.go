package layer_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/fault"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// key0 packs a tuple without the queue's prefix: values.
func key0(elements ...any) []byte { return tuple.Tuple(elements).Pack() }

// TestAckKeepsLateItem (trap 1): an item whose enqueue committed late lies between two items of a claim; acking
// these must not take it with them, and it must be found afterwards.
func TestAckKeepsLateItem(t *testing.T) {
	onEngines(t, func(e *env) {
		e.enqueue("A", "a1")
		late, err := e.raw.Begin(kv.TxOptions{})
		require.NoError(e.t, err)
		_, err = e.q.EnqueueTx(e.ctx, late, layer.Message{Group: "A", Body: []byte("late")})
		require.NoError(e.t, err)
		e.write(func(tx kv.Tx) { tx.Set([]byte("own"), nil) }) // a2's read version is then a later one
		e.enqueue("A", "a2")
		c := e.receive(e.q, 10)
		require.Equal(e.t, []string{"a1", "a2"}, bodies(c.Items))
		_, err = late.Commit().Wait(e.ctx)
		require.NoError(e.t, err)
		require.Equal(e.t, []string{"a1", "late", "a2"}, e.all("A"))

		require.NoError(e.t, e.q.Ack(e.ctx, c))
		head, err := e.q.Peek(e.ctx, "A", 1, nil)
		require.NoError(e.t, err)
		hints := e.rows(kv.PrefixRange(key("ready")))
		require.Len(e.t, hints, 1)
		require.Equal(e.t, key("ready", int64(0), head[0].ID.Index, "A"), hints[0].Key, "the group has its place by the late item's age")
		c = e.receive(e.q, 10)
		require.NotNil(e.t, c, "the late item is reachable")
		require.Equal(e.t, []string{"late"}, bodies(c.Items))
		require.NoError(e.t, e.q.Ack(e.ctx, c))
	})
}

// TestAckMeetsLateItem (trap 1): an item is enqueued late, with a place between the items of a claim, while an ack of
// these is under way. The ack, which clears a range, fails with a conflict, and the next attempt leaves the item alone.
func TestAckMeetsLateItem(t *testing.T) {
	onEngines(t, func(e *env) {
		e.enqueue("A", "a1")
		late, err := e.raw.Begin(kv.TxOptions{})
		require.NoError(e.t, err)
		_, err = e.q.EnqueueTx(e.ctx, late, layer.Message{Group: "A", Body: []byte("late")})
		require.NoError(e.t, err)
		e.write(func(tx kv.Tx) { tx.Set([]byte("own"), nil) }) // a2's read version is then a later one
		e.enqueue("A", "a2")
		c := e.receive(e.q, 10)
		require.Equal(e.t, []string{"a1", "a2"}, bodies(c.Items))

		ack, err := e.raw.Begin(kv.TxOptions{})
		require.NoError(e.t, err)
		require.NoError(e.t, e.q.AckTx(e.ctx, ack, c))
		_, err = late.Commit().Wait(e.ctx)
		require.NoError(e.t, err)
		_, err = ack.Commit().Wait(e.ctx)
		require.Equal(e.t, kv.CodeNotCommitted, kv.Code(err))
		require.Equal(e.t, []string{"a1", "late", "a2"}, e.all("A"))

		require.NoError(e.t, e.q.Ack(e.ctx, c))
		require.Equal(e.t, []string{"late"}, e.all("A"))
		c = e.receive(e.q, 10)
		require.NotNil(e.t, c, "the late item is reachable")
		require.Equal(e.t, []string{"late"}, bodies(c.Items))
		require.NoError(e.t, e.q.Ack(e.ctx, c))
	})
}

// TestReadyIsFoundBehindStaleHints: stale hints and timers are cleared when a receive meets them, and a ready group is
// found behind any number of them (G5).
func TestReadyIsFoundBehindStaleHints(t *testing.T) {
	onEngines(t, func(e *env) {
		held := holding(1, 1)(e).(*layer.Claim)
		e.write(func(tx kv.Tx) {
			for i := range int64(40) {
				tx.Set(key("ready", int64(0), i, "empty"), nil)
				tx.Set(key("ready", int64(0), i, "A"), nil)
				tx.Set(key("timer", i, "A"), append(key0("claim"), 0x14))
				tx.Set(key("timer", i, "empty"), append(key0("claim"), 0x14))
			}
		})
		require.Nil(e.t, e.receive(e.q, 1), "nothing is ready")
		require.Empty(e.t, e.rows(kv.PrefixRange(key("ready"))))
		require.Len(e.t, e.rows(kv.PrefixRange(key("timer"))), 1, "the holder's own")

		e.write(func(tx kv.Tx) {
			for i := range int64(40) {
				tx.Set(key("ready", int64(0), i, "empty"), nil)
			}
		})
		e.enqueue("B", "b1")
		b := e.receive(e.q, 1)
		require.Equal(e.t, "B", b.Group)
		require.NoError(e.t, e.q.Ack(e.ctx, b))
		require.NoError(e.t, e.q.Ack(e.ctx, held))
	})
}

// TestUnknownCommitHasItsEffectOnce (trap 4): an operation whose commit was unknown, applied or lost, has its effect
// once and returns what it would have returned. Applied is the harder half: without the receipt the enqueue doubles,
// the ack and the nack report a lost claim, and the receive locks a group that no worker handles.
func TestUnknownCommitHasItsEffectOnce(t *testing.T) {
	for _, kind := range []fault.Kind{fault.UnknownApplied, fault.UnknownLost} {
		t.Run(kind.String(), func(t *testing.T) {
			once := func(name string, test func(t *testing.T, e *env, strike func())) {
				t.Run(name, func(t *testing.T) {
					e := newEnv(t, anyEngine, false)
					test(t, e, func() { e.plan.ForceNext(kind) })
				})
			}
			once("enqueue", func(t *testing.T, e *env, strike func()) {
				strike()
				ids := e.enqueue("A", "a1", "a2")
				require.Equal(t, []string{"a1", "a2"}, e.all("A"))
				c := e.receive(e.q, 10)
				require.Equal(t, ids, []layer.ID{c.Items[0].ID, c.Items[1].ID}, "the ids are those of the items")
			})
			once("receive", func(t *testing.T, e *env, strike func()) {
				ids := e.enqueue("A", "a1", "a2")
				strike()
				c := e.receive(e.q, 2)
				require.NotNil(t, c, "the claim is ours, not nobody's")
				require.Equal(t, []string{"a1", "a2"}, bodies(c.Items))
				require.Equal(t, ids[0], c.Items[0].ID)
				require.NoError(t, e.q.Ack(e.ctx, c))
				require.Empty(t, e.all("A"))
			})
			once("receive of several groups", func(t *testing.T, e *env, strike func()) {
				e.enqueue("A", "a1")
				e.enqueue("B", "b1")
				strike()
				claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{})
				require.NoError(t, err)
				require.Len(t, claims, 2)
				for _, c := range claims {
					require.NoError(t, e.q.Ack(e.ctx, c))
				}
			})
			once("ack of the last", func(t *testing.T, e *env, strike func()) {
				c := holding(2, 2)(e).(*layer.Claim)
				strike()
				require.NoError(t, e.q.Ack(e.ctx, c))
				require.Empty(t, e.all("A"))
				require.ErrorIs(t, e.q.Ack(e.ctx, c), layer.ErrClaimLost)
			})
			once("ack of one", func(t *testing.T, e *env, strike func()) {
				c := holding(2, 2)(e).(*layer.Claim)
				strike()
				require.NoError(t, e.q.AckItems(e.ctx, c, []layer.ID{c.Items[0].ID}))
				require.Len(t, e.all("A"), 1)
			})
			once("nack", func(t *testing.T, e *env, strike func()) {
				c := holding(2, 2)(e).(*layer.Claim)
				strike()
				require.NoError(t, e.q.Nack(e.ctx, c, layer.NackOptions{}))
				again := e.receive(e.q, 2)
				require.Equal(t, 1, again.Items[0].Attempts, "the attempt counts once")
			})
			once("nack that dead-letters the item", func(t *testing.T, e *env, strike func()) {
				c := holding(2, 2)(e).(*layer.Claim)
				strike()
				require.NoError(t, e.q.Nack(e.ctx, c, layer.NackOptions{Reject: "no use"}))
				page, err := e.q.Admin().DeadLetters(e.ctx, layer.DeadOptions{})
				require.NoError(t, err)
				require.Len(t, page.Letters, 1)
				require.Equal(t, 1, page.Letters[0].Attempts, "the attempt counts once")
				require.Len(t, e.all("A"), 1)
				stats, err := e.q.Stats(e.ctx, layer.StatsOptions{})
				require.NoError(t, err)
				require.EqualValues(t, 1, stats.DeadLettered)
			})
			once("takeover that dead-letters the item", func(t *testing.T, e *env, strike func()) {
				lastAttempt(2, 2)(e)
				strike()
				c := e.receive(e.q, 2)
				require.NotNil(t, c)
				require.Len(t, c.Items, 1)
				require.Zero(t, c.Items[0].Attempts)
				stats, err := e.q.Stats(e.ctx, layer.StatsOptions{})
				require.NoError(t, err)
				require.EqualValues(t, 1, stats.DeadLettered)
				require.EqualValues(t, 1, stats.Expired)
			})
			once("takeover that dead-letters the last item", func(t *testing.T, e *env, strike func()) {
				lastAttempt(1, 1)(e)
				strike()
				require.Nil(t, e.receive(e.q, 2))
				stats, err := e.q.Stats(e.ctx, layer.StatsOptions{})
				require.NoError(t, err)
				require.EqualValues(t, 1, stats.DeadLettered)
				require.EqualValues(t, 1, stats.Expired)
			})
			once("resume of a halted group", func(t *testing.T, e *env, strike func()) {
				haltedGroup(e)
				strike()
				was, err := e.q.Admin().ResumeGroup(e.ctx, "A", layer.ResumeOptions{})
				require.NoError(t, err)
				require.Equal(t, "no use", was.Reason)
				stats, err := e.q.Stats(e.ctx, layer.StatsOptions{})
				require.NoError(t, err)
				require.Zero(t, stats.HaltedGroups)
				require.Len(t, e.receive(e.q, 2).Items, 2)
			})
			once("extend", func(t *testing.T, e *env, strike func()) {
				c := holding(1, 1)(e).(*layer.Claim)
				strike()
				until, err := e.q.Extend(e.ctx, c, time.Minute)
				require.NoError(t, err)
				require.Equal(t, e.clock.now().Add(time.Minute), until)
			})
			once("takeover", func(t *testing.T, e *env, strike func()) {
				expired(1, 1)(e)
				strike()
				c := e.receive(e.q, 1)
				require.NotNil(t, c)
				require.Equal(t, 1, c.Items[0].Attempts, "the attempt counts once")
			})
			once("once", func(t *testing.T, e *env, strike func()) {
				own := kv.SingleKey([]byte("own"))
				strike()
				require.NoError(t, e.q.Once(e.ctx, func(tx kv.Tx) error {
					tx.Atomic(kv.Add, own.Begin, []byte{1, 0, 0, 0, 0, 0, 0, 0})
					_, err := e.q.EnqueueTx(e.ctx, tx, layer.Message{Group: "A", Body: []byte("a1")})
					return err
				}))
				require.Equal(t, []byte{1, 0, 0, 0, 0, 0, 0, 0}, e.rows(own)[0].Value)
				require.Equal(t, []string{"a1"}, e.all("A"))
				e.write(func(tx kv.Tx) { tx.Clear(own.Begin) })
			})
		})
	}
}

// TestUnknownClaimLostMeanwhile: when the answer to a receive comes so late that another has taken the group
// over, the receive does not return a dead claim.
func TestUnknownClaimLostMeanwhile(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.enqueue("A", "a1")
	other := e.handle(2)
	var taken *layer.Claim
	e.plan.ForceNext(fault.UnknownApplied)
	// The receipt is read in the second attempt: the takeover happens at the engine's backoff between them.
	q, err := layer.Open(e.ctx, between{e.db, func() {
		e.clock.advance(time.Hour)
		taken = e.receive(other, 1)
	}}, testPrefix, testQueue, e.options(3))
	require.NoError(t, err)
	claims, err := q.Receive(e.ctx, layer.ReceiveOptions{})
	require.NoError(t, err)
	require.NotNil(t, taken)
	require.Empty(t, claims, "the group is in another's hand")
	require.NoError(t, other.Ack(e.ctx, taken))
}

// between runs a function once, between the first failed commit and the attempt after it.
type between struct {
	kv.DB
	run func()
}

func (b between) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := b.DB.Begin(o)
	return &betweenTx{ManagedTx: tx, run: b.run}, err
}

type betweenTx struct {
	kv.ManagedTx
	run func()
}

func (b *betweenTx) OnError(err error) kv.Future[struct{}] {
	if b.run != nil {
		b.run()
		b.run = nil
	}
	return b.ManagedTx.OnError(err)
}

// TestBodyThatRanTwiceReturnsOneResult (trap 8): a body that ran twice returns the result of one run, not of both.
func TestBodyThatRanTwiceReturnsOneResult(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.plan.ForceNext(fault.Conflict)
	ids := e.enqueue("A", "a1", "a2")
	require.Len(t, ids, 2)
	e.plan.ForceNext(fault.Conflict)
	claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{})
	require.NoError(t, err)
	require.Len(t, claims, 1)
	require.Len(t, claims[0].Items, 2)
	e.plan.ForceNext(fault.Conflict)
	page, err := e.q.Admin().Groups(e.ctx, layer.GroupsOptions{})
	require.NoError(t, err)
	require.Len(t, page.Groups, 1)
}

// TestReceiptsAreCleared: a handle at rest has one receipt in the database, whatever it did before; one that
// is closed has none.
func TestReceiptsAreCleared(t *testing.T) {
	onEngines(t, func(e *env) {
		for range 50 {
			e.enqueue("A", "a")
			require.NoError(e.t, e.q.Ack(e.ctx, e.receive(e.q, 1)))
		}
		receipts := e.rows(kv.PrefixRange(key("receipt")))
		if e.plan.Chances == nil {
			require.Len(e.t, receipts, 1)
		} else {
			require.Less(e.t, len(receipts), 50, "faults may leave a few more, not one each")
		}
		require.NoError(e.t, e.q.Close(context.Background()))
		require.Empty(e.t, e.rows(kv.PrefixRange(key("receipt"))))
	})
}

// TestOvertakenHolderChangesNothing (G2): a holder that has been overtaken changes nothing, whatever it tries.
func TestOvertakenHolderChangesNothing(t *testing.T) {
	onEngines(t, func(e *env) {
		old := expired(2, 2)(e).(*layer.Claim)
		other := e.handle(2)
		now := e.receive(other, 2)
		require.Greater(e.t, now.Token, old.Token)
		before := e.rows(kv.PrefixRange(key("lock")))

		require.ErrorIs(e.t, e.q.Ack(e.ctx, old), layer.ErrClaimLost)
		require.ErrorIs(e.t, e.q.AckItems(e.ctx, old, []layer.ID{old.Items[0].ID}), layer.ErrClaimLost)
		require.ErrorIs(e.t, e.q.Nack(e.ctx, old, layer.NackOptions{}), layer.ErrClaimLost)
		_, err := e.q.Extend(e.ctx, old, time.Minute)
		require.ErrorIs(e.t, err, layer.ErrClaimLost)
		// In a transaction of the caller that goes on without the ack.
		_, err = kv.Run(e.ctx, e.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			if err := e.q.AckTx(e.ctx, tx, old); kv.Code(err) != 0 {
				return err
			}
			tx.Set([]byte("own"), nil)
			return nil
		})
		require.NoError(e.t, err)
		require.Equal(e.t, before, e.rows(kv.PrefixRange(key("lock"))))
		require.Len(e.t, e.all("A"), 2)
		e.write(func(tx kv.Tx) { tx.Clear([]byte("own")) })

		require.ErrorIs(e.t, other.AckItems(
			e.ctx, now, []layer.ID{{Group: "A", Index: 1, Random: uuid.New()}},
		), layer.ErrNotInClaim)
		require.NoError(e.t, other.Ack(e.ctx, now))
		require.ErrorIs(e.t, other.Ack(e.ctx, now), layer.ErrClaimLost)
	})
}

// TestAckOfNoIDs: an empty list of ids acks nothing, unlike none at all.
func TestAckOfNoIDs(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	c := holding(2, 2)(e).(*layer.Claim)
	require.NoError(t, e.q.AckItems(e.ctx, c, []layer.ID{}))
	require.Len(t, e.all("A"), 2)
	require.NoError(t, e.q.Ack(e.ctx, c))
	require.Empty(t, e.all("A"))
}

// TestDelayIsNotTheClaimBeforeIt (G2): the lock of a delay carries the token of the claim before it, and is not that
// claim.
func TestDelayIsNotTheClaimBeforeIt(t *testing.T) {
	onEngines(t, func(e *env) {
		c := holding(1, 1)(e).(*layer.Claim)
		require.NoError(e.t, e.q.Nack(e.ctx, c, layer.NackOptions{Delay: time.Minute}))
		require.ErrorIs(e.t, e.q.Ack(e.ctx, c), layer.ErrClaimLost)
		_, err := e.q.Extend(e.ctx, c, time.Hour)
		require.ErrorIs(e.t, err, layer.ErrClaimLost)
		require.Nil(e.t, e.receive(e.q, 1))
		e.clock.advance(time.Minute)
		again := e.receive(e.q, 1)
		require.Greater(e.t, again.Token, c.Token)
		require.Equal(e.t, 1, again.Items[0].Attempts)
		require.NoError(e.t, e.q.Ack(e.ctx, again))
	})
}

// TestCallsOfOneTransactionSeeEachOther (G6): enqueue, ack, claim and take in one transaction of the caller see each
// other, in any order, and leave the queue sound.
func TestCallsOfOneTransactionSeeEachOther(t *testing.T) {
	run := func(e *env, fn func(tx kv.Tx) error) {
		require.NoError(e.t, e.q.Once(e.ctx, fn))
	}
	for name, test := range map[string]func(e *env, c *layer.Claim){
		"ack the last, then enqueue": func(e *env, c *layer.Claim) {
			run(e, func(tx kv.Tx) error {
				if err := e.q.AckTx(e.ctx, tx, c); err != nil {
					return err
				}
				return enqueueTo("A")(e, tx, nil)
			})
		},
		"enqueue, then ack the last": func(e *env, c *layer.Claim) {
			run(e, func(tx kv.Tx) error {
				if err := enqueueTo("A")(e, tx, nil); err != nil {
					return err
				}
				return e.q.AckTx(e.ctx, tx, c)
			})
		},
		"ack one by one, with enqueues between": func(e *env, c *layer.Claim) {
			run(e, func(tx kv.Tx) error {
				for _, item := range c.Items {
					if err := e.q.AckItemsTx(e.ctx, tx, c, []layer.ID{item.ID}); err != nil {
						return err
					}
				}
				return enqueueTo("A")(e, tx, nil)
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			onEngines(t, func(e *env) {
				test(e, holding(2, 2)(e).(*layer.Claim))
				next := e.receive(e.q, 10)
				require.NotNil(e.t, next, "the new item is reachable")
				require.Equal(e.t, []string{"new"}, bodies(next.Items))
				require.NoError(e.t, e.q.Ack(e.ctx, next))
			})
		})
	}
	t.Run("enqueue, then take it", func(t *testing.T) {
		onEngines(t, func(e *env) {
			var items []layer.Item
			run(e, func(tx kv.Tx) (err error) {
				if err = enqueueTo("A")(e, tx, nil); err != nil {
					return err
				}
				items, _, err = e.q.TakeTx(e.ctx, tx, 5, layer.TakeOptions{})
				return err
			})
			require.Equal(e.t, []string{"new"}, bodies(items))
			require.Nil(e.t, e.receive(e.q, 1))
		})
	})
	t.Run("ack and claim fused", func(t *testing.T) {
		onEngines(t, func(e *env) {
			c := holding(4, 2)(e).(*layer.Claim)
			var next []*layer.Claim
			run(e, func(tx kv.Tx) (err error) {
				if err = e.q.AckTx(e.ctx, tx, c); err != nil {
					return err
				}
				next, err = e.q.ReceiveTx(e.ctx, tx, layer.ReceiveOptions{Max: 2})
				return err
			})
			require.Len(e.t, next, 1)
			require.Greater(e.t, next[0].Token, c.Token)
			require.ErrorIs(e.t, e.q.Ack(e.ctx, c), layer.ErrClaimLost)
			require.NoError(e.t, e.q.Ack(e.ctx, next[0]))
		})
	})
	t.Run("an enqueue that is not committed", func(t *testing.T) {
		e := newEnv(t, anyEngine, false)
		tx, err := e.raw.Begin(kv.TxOptions{})
		require.NoError(t, err)
		require.NoError(t, enqueueTo("A")(e, tx, nil))
		tx.Cancel()
		require.Empty(t, e.all("A"))
	})
}

// stillClock is an engine's clock that does not move: versions then grow by one a commit, as slowly as they can.
type stillClock struct{}

func (stillClock) Now() time.Time                         { return time.UnixMilli(0) }
func (stillClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// TestOrderWhenVersionsAreSlow (G1): batches get ahead of the versions, and still each enqueue comes behind the
// one before it.
func TestOrderWhenVersionsAreSlow(t *testing.T) {
	e := newEnv(t, func(*testing.T) kv.DB {
		return embedded.OpenMemory(embedded.Options{Clock: stillClock{}})
	}, false)
	var want []string
	for i := range 20 {
		batch := []string{fmt.Sprint(i, "a"), fmt.Sprint(i, "b"), fmt.Sprint(i, "c")}
		e.enqueue("A", batch...)
		want = append(want, batch...)
	}
	require.Equal(t, want, e.all("A"))
}

// TestBehindAll (G1, trap 10): a message enqueued in a transaction that has read before may land before one that was
// enqueued since; with BehindAll it never does, in a group with items and in an empty one. Guard behind-all.
func TestBehindAll(t *testing.T) {
	t.Parallel()
	for _, behindAll := range []bool{false, true} {
		for _, before := range []bool{false, true} {
			t.Run(fmt.Sprintf("behind all %v, items before %v", behindAll, before), func(t *testing.T) {
				e := newEnv(t, anyEngine, false)
				other := e.handle(2)
				for i := range 20 {
					group, want := fmt.Sprint("G", i), []string{"A2", "A1"}
					if behindAll {
						want = []string{"A1", "A2"}
					}
					if before {
						e.enqueue(group, "A0")
						want = append([]string{"A0"}, want...)
					}
					runs := 0
					require.NoError(t, e.q.Once(e.ctx, func(tx kv.Tx) error {
						if _, err := tx.Get([]byte("own")).Wait(e.ctx); err != nil {
							return err
						}
						if runs++; runs == 1 {
							for _, group := range []string{"another", group} { // the first makes the versions go on
								_, err := other.Enqueue(e.ctx, layer.Message{Group: group, Body: []byte("A1")})
								require.NoError(t, err)
							}
						}
						m := layer.Message{Group: group, Body: []byte("A2"), BehindAll: behindAll}
						_, err := e.q.EnqueueTx(e.ctx, tx, m)
						return err
					}))
					require.Equal(t, want, e.all(group))
				}
			})
		}
	}
}

// TestExtendMovesTheTimer: an extended lease has one timer, at its new end.
func TestExtendMovesTheTimer(t *testing.T) {
	onEngines(t, func(e *env) {
		c := holding(1, 1)(e).(*layer.Claim)
		for range 3 {
			e.clock.advance(10 * time.Second)
			_, err := e.q.Extend(e.ctx, c, time.Minute)
			require.NoError(e.t, err)
		}
		timers := e.rows(kv.PrefixRange(key("timer")))
		require.Len(e.t, timers, 1)
		require.Equal(e.t, key("timer", e.clock.now().Add(time.Minute).UnixMilli(), "A"), timers[0].Key)
		e.clock.advance(59 * time.Second)
		require.Nil(e.t, e.receive(e.q, 1))
	})
}
