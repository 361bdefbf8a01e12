package layer_test

import (
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// pair is two operations on one queue, of which the second commits while the first is under way. Q is the queue with its
// handles, a kind of its own for each kind of queue, and G is what setup gives both.
type pair[Q, G any] struct {
	name     string
	setup    func(q Q) G
	first    func(q Q, tx kv.Tx, given G) error
	second   func(q Q, tx kv.Tx, given G) error
	conflict bool
}

// run checks whether the first operation conflicts, as the pair says. If it does, again repeats the operation, so that
// the queue is sound afterwards.
func (p *pair[Q, G]) run(e *env, q Q) (again func()) {
	e.t.Helper()
	given := p.setup(q)
	first := func(tx kv.Tx) error { return p.first(q, tx, given) }
	err := e.overlap(first, func(tx kv.Tx) error { return p.second(q, tx, given) })
	if !p.conflict {
		require.NoError(e.t, err, "must not conflict")
		return func() {}
	}
	require.Equal(e.t, kv.CodeNotCommitted, kv.Code(err), "must conflict, got %v", err)
	return func() {
		_, _ = kv.Run(e.ctx, e.raw, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error { return first(tx) })
	}
}

// overlap runs first in a transaction whose read version is fixed before second commits, then commits it.
func (e *env) overlap(first, second func(tx kv.Tx) error) error {
	e.t.Helper()
	a, err := e.raw.Begin(kv.TxOptions{})
	require.NoError(e.t, err)
	defer a.Cancel()
	_, err = a.ReadVersion().Wait(e.ctx)
	require.NoError(e.t, err)
	require.NoError(e.t, first(a))
	_, err = kv.Run(e.ctx, e.raw, kv.TxOptions{}, func(tx kv.Tx, attempt kv.Attempt) error {
		return second(tx)
	})
	require.NoError(e.t, err)
	_, err = a.Commit().Wait(e.ctx)
	return err
}

// The operations of the pairs.

func enqueueTo(group string) func(e *env, tx kv.Tx, _ any) error {
	return func(e *env, tx kv.Tx, _ any) error {
		_, err := e.q.EnqueueTx(e.ctx, tx, layer.Message{Group: group, Body: []byte("new")})
		return err
	}
}

func claimOne(e *env, tx kv.Tx, _ any) error {
	_, err := e.q.ReceiveTx(e.ctx, tx, layer.ReceiveOptions{Max: 1})
	return err
}

// claimAll looks at every hint there is.
func claimAll(e *env, tx kv.Tx, _ any) error {
	_, err := e.q.ReceiveTx(e.ctx, tx, layer.ReceiveOptions{Max: 100})
	return err
}

func take(e *env, tx kv.Tx, _ any) error {
	_, _, err := e.q.TakeTx(e.ctx, tx, 10, layer.TakeOptions{})
	return err
}

func ackAll(e *env, tx kv.Tx, given any) error {
	return e.q.AckTx(e.ctx, tx, given.(*layer.Claim))
}

func ackFirst(e *env, tx kv.Tx, given any) error {
	c := given.(*layer.Claim)
	return e.q.AckItemsTx(e.ctx, tx, c, []layer.ID{c.Items[0].ID})
}

func extend(e *env, tx kv.Tx, given any) error {
	_, err := e.q.ExtendTx(e.ctx, tx, given.(*layer.Claim), time.Minute)
	return err
}

func nack(e *env, tx kv.Tx, given any) error {
	return e.q.NackTx(e.ctx, tx, given.(*layer.Claim), layer.NackOptions{})
}

func nackDelayed(e *env, tx kv.Tx, given any) error {
	return e.q.NackTx(e.ctx, tx, given.(*layer.Claim), layer.NackOptions{Delay: time.Hour})
}

func releaseSecond(e *env, tx kv.Tx, given any) error {
	c := given.(*layer.Claim)
	return e.q.NackTx(e.ctx, tx, c, layer.NackOptions{Release: true, From: &c.Items[1].ID})
}

// redriveFirst and discardFirst are of the first of the ids given, or of the first dead letter there is.
func redriveFirst(o layer.RedriveOptions) func(e *env, tx kv.Tx, given any) error {
	return func(e *env, tx kv.Tx, given any) error { return e.q.Admin().RedriveTx(e.ctx, tx, o, firstDead(e)) }
}

func discardFirst(e *env, tx kv.Tx, _ any) error {
	return e.q.Admin().DiscardTx(e.ctx, tx, firstDead(e))
}

func firstDead(e *env) layer.ID {
	page, err := e.calm().Admin().DeadLetters(e.ctx, layer.DeadOptions{})
	require.NoError(e.t, err)
	require.NotEmpty(e.t, page.Letters)
	return page.Letters[0].ID
}

// behindDead is setup in a group A whose first item is a dead letter.
func behindDead(setup func(e *env) any) func(e *env) any {
	return func(e *env) any {
		e.bury("A", "dead")
		return setup(e)
	}
}

func reject(e *env, tx kv.Tx, given any) error {
	return e.q.NackTx(e.ctx, tx, given.(*layer.Claim), layer.NackOptions{Reject: "no use"})
}

// nth is the id of the n-th item of A, whatever was given.
func nth(e *env, n int) layer.ID {
	items, err := e.calm().Peek(e.ctx, "A", n, nil)
	require.NoError(e.t, err)
	require.Len(e.t, items, n)
	return items[n-1].ID
}

// cancelNth cancels the n-th item of A.
func cancelNth(n int) func(e *env, tx kv.Tx, _ any) error {
	return func(e *env, tx kv.Tx, _ any) error { return e.q.Admin().CancelTx(e.ctx, tx, nth(e, n)) }
}

func rescheduleNth(n int, in time.Duration) func(e *env, tx kv.Tx, _ any) error {
	return func(e *env, tx kv.Tx, _ any) error {
		return e.q.RescheduleTx(e.ctx, tx, nth(e, n), e.clock.now().Add(in))
	}
}

func postpone(n int) func(e *env, tx kv.Tx, _ any) error { return rescheduleNth(n, time.Hour) }

func editNth(n int) func(e *env, tx kv.Tx, _ any) error {
	return func(e *env, tx kv.Tx, _ any) error {
		return e.within(tx).Edit(e.ctx, nth(e, n), func(m *layer.Message) error {
			m.Body = []byte("edited")
			return nil
		})
	}
}

func forceRelease(e *env, tx kv.Tx, _ any) error {
	_, err := e.q.Admin().ForceReleaseTx(e.ctx, tx, "A", layer.ForceReleaseOptions{})
	return err
}

func retryNow(e *env, tx kv.Tx, _ any) error {
	return e.within(tx).RetryNow(e.ctx, "A", layer.RetryOptions{})
}

func pauseGroup(e *env, tx kv.Tx, _ any) error {
	_, err := e.q.Admin().PauseGroupTx(e.ctx, tx, "A", layer.PauseOptions{})
	return err
}

func resumeGroup(e *env, tx kv.Tx, _ any) error {
	_, err := e.q.Admin().ResumeGroupTx(e.ctx, tx, "A", layer.ResumeOptions{})
	return err
}

func pauseQueue(e *env, tx kv.Tx, _ any) error {
	_, err := e.within(tx).Pause(e.ctx, layer.PauseOptions{})
	return err
}

func resumeQueue(e *env, tx kv.Tx, _ any) error {
	_, err := e.within(tx).Resume(e.ctx, layer.ResumeOptions{})
	return err
}

// paused pauses A after setup.
func paused(setup func(e *env) any) func(e *env) any {
	return func(e *env) any {
		given := setup(e)
		_, err := e.q.Admin().PauseGroup(e.ctx, "A", layer.PauseOptions{})
		require.NoError(e.t, err)
		return given
	}
}

// pausedQueue pauses the queue after setup.
func pausedQueue(setup func(e *env) any) func(e *env) any {
	return func(e *env) any {
		given := setup(e)
		_, err := e.q.Admin().Pause(e.ctx, layer.PauseOptions{})
		require.NoError(e.t, err)
		return given
	}
}

// purgeGroup purges a group, in transactions of its own.
func purgeGroup(group string, force bool) func(e *env, tx kv.Tx, _ any) error {
	return func(e *env, _ kv.Tx, _ any) error {
		_, err := e.q.Admin().Purge(e.ctx, layer.PurgeOptions{Group: &group, Force: force})
		return err
	}
}

// purgeAll purges the queue, in transactions of its own.
func purgeAll(e *env, _ kv.Tx, _ any) error {
	_, err := e.q.Admin().Purge(e.ctx, layer.PurgeOptions{All: true})
	return err
}

// claimNamed claims one item as the attempt with that id.
func claimNamed(id string) func(e *env, tx kv.Tx, _ any) error {
	return func(e *env, tx kv.Tx, _ any) error {
		_, err := e.q.ReceiveTx(e.ctx, tx, layer.ReceiveOptions{Max: 1, ReceiveID: id})
		return err
	}
}

func sweepAll(e *env, _ kv.Tx, _ any) error {
	_, err := e.q.Admin().Sweep(e.ctx, layer.SweepOptions{})
	return err
}

func claimFrom(group string) func(e *env, tx kv.Tx, _ any) error {
	return func(e *env, tx kv.Tx, _ any) error {
		_, err := e.q.ReceiveTx(e.ctx, tx, layer.ReceiveOptions{Group: &group})
		return err
	}
}

func replayA(e *env, _ kv.Tx, _ any) error {
	_, err := e.q.Admin().Replay(e.ctx, groupA, layer.ReplayOptions{})
	return err
}

func replayIn(e *env, tx kv.Tx, _ any) error {
	_, err := e.within(tx).Replay(e.ctx, groupA, layer.ReplayOptions{})
	return err
}

func setState(e *env, tx kv.Tx, given any) error {
	return e.q.SettleTx(e.ctx, tx, settingState(given.(*layer.Claim), []byte("new")))
}

func setGroupState(e *env, tx kv.Tx, _ any) error {
	return e.q.Admin().SetGroupStateTx(e.ctx, tx, "A", []byte("new"), layer.SetGroupStateOptions{Force: true})
}

// claimState is claimAll with the state.
func claimState(e *env, tx kv.Tx, _ any) error {
	_, err := e.q.ReceiveTx(e.ctx, tx, layer.ReceiveOptions{Max: 100, State: true})
	return err
}

// withState gives group A a state after setup.
func withState(setup func(e *env) any) func(e *env) any {
	return func(e *env) any {
		given := setup(e)
		require.NoError(e.t, e.q.Admin().SetGroupState(e.ctx, "A", []byte("old"), layer.SetGroupStateOptions{Force: true}))
		return given
	}
}

// delayed enqueues n items to A and gives them back with a delay.
func delayed(n int) func(e *env) any {
	return func(e *env) any {
		c := holding(n, n)(e).(*layer.Claim)
		require.NoError(e.t, e.q.Nack(e.ctx, c, layer.NackOptions{Delay: time.Minute}))
		return nil
	}
}

// and adds a group B that is ready.
func and(setup func(e *env) any) func(e *env) any {
	return func(e *env) any {
		given := setup(e)
		e.enqueue("B", "b1")
		return given
	}
}

// having enqueues bodies to A.
func having(bodies ...string) func(e *env) any {
	return func(e *env) any {
		if len(bodies) > 0 {
			e.enqueue("A", bodies...)
		}
		return nil
	}
}

// holding enqueues n items to A, claims max of them, and gives the claim.
func holding(n, max int) func(e *env) any {
	return holdingBy(n, layer.ReceiveOptions{Max: max, MaxGroups: 1})
}

// holdingBy is holding by a receive with options.
func holdingBy(n int, o layer.ReceiveOptions) func(e *env) any {
	return func(e *env) any {
		for range n {
			e.enqueue("A", "a")
		}
		claims, err := e.q.Receive(e.ctx, o)
		require.NoError(e.t, err)
		require.Len(e.t, claims, 1)
		return claims[0]
	}
}

// expired is holding, with the lease run out.
func expired(n, max int) func(e *env) any {
	return expiredBy(n, layer.ReceiveOptions{Max: max, MaxGroups: 1})
}

// expiredBy is expired by a receive with options.
func expiredBy(n int, o layer.ReceiveOptions) func(e *env) any {
	return func(e *env) any {
		c := holdingBy(n, o)(e)
		e.clock.advance(time.Hour)
		return c
	}
}

func enqueueDelayed(e *env, tx kv.Tx, _ any) error {
	_, err := e.q.EnqueueTx(e.ctx, tx, layer.Message{Group: "A", Delay: time.Minute})
	return err
}

// enqueueBehindAll enqueues to A, behind all that is there before the commit.
func enqueueBehindAll(e *env, tx kv.Tx, _ any) error {
	_, err := e.q.EnqueueTx(e.ctx, tx, layer.Message{Group: "A", BehindAll: true})
	return err
}

// enqueueBefore writes an item before all of A, with its hint, as an enqueue does that saw the group empty and commits
// late.
func enqueueBefore(e *env, tx kv.Tx, _ any) error {
	id := nth(e, 1)
	tx.Set(key("item", "A", id.Index-1, id.Random), e.rows(kv.PrefixRange(key("item", "A")))[0].Value)
	tx.Set(key("ready", int64(0), id.Index-1, "A"), nil)
	return nil
}

// enqueueBetween writes an item between the first two of A, as an enqueue does whose read version is between theirs,
// and which commits late.
func enqueueBetween(e *env, tx kv.Tx, _ any) error {
	first := e.rows(kv.PrefixRange(key("item", "A")))[0]
	tx.Set(key("item", "A", nth(e, 1).Index, uuid.Max), first.Value)
	return nil
}

// dueHead is delayedUntil when its time has come.
func dueHead(e *env) any {
	delayedUntil(e)
	e.clock.advance(time.Hour)
	return nil
}

// claimAhead claims all by a clock that is an hour ahead.
func claimAhead(e *env, tx kv.Tx, _ any) error {
	e.clock.advance(time.Hour)
	defer e.clock.advance(-time.Hour)
	return claimAll(e, tx, nil)
}

// enqueueBoth enqueues a duplicate of "x", and a message that is none.
func enqueueBoth(e *env, tx kv.Tx, _ any) error {
	_, err := e.q.EnqueueTx(e.ctx, tx, layer.Message{Group: "B", DedupID: "x"}, layer.Message{Group: "B"})
	return err
}

func sweep(e *env, _ kv.Tx, _ any) error {
	_, err := e.q.Admin().Sweep(e.ctx, layer.SweepOptions{})
	return err
}

// staleEmpty leaves a hint of a group that is empty.
func staleEmpty(e *env) any {
	e.write(func(tx kv.Tx) { tx.Set(key("ready", int64(0), int64(1), "A"), nil) })
	return nil
}

// staleHeld leaves a hint of a group that is held.
func staleHeld(e *env) any {
	c := holding(2, 2)(e)
	e.write(func(tx kv.Tx) { tx.Set(key("ready", int64(0), int64(1), "A"), nil) })
	return c
}

// staleTimer leaves a due timer of a group that is held until later.
func staleTimer(e *env) any {
	c := holding(2, 2)(e)
	e.write(func(tx kv.Tx) { tx.Set(key("timer", int64(1), "A"), append(key0("claim"), 0x14)) })
	return c
}

// TestConflicts: the footprint of each operation, as pairs that must conflict and pairs that must not (G4, and
// traps 2, 3 and 9 of the design).
func TestConflicts(t *testing.T) {
	const must, mustNot = true, false
	back, toTail := layer.RedriveOptions{}, layer.RedriveOptions{ToTail: true}
	for _, p := range []pair[*env, any]{
		{"enqueue, enqueue to the same empty group", having(), enqueueTo("A"), enqueueTo("A"), mustNot},
		{"enqueue, enqueue to the same group", having("a1"), enqueueTo("A"), enqueueTo("A"), mustNot},
		{"enqueue behind all, enqueue to the same group", having("a1"), enqueueBehindAll, enqueueTo("A"), must},
		{"enqueue behind all, enqueue to the empty group", having(), enqueueBehindAll, enqueueTo("A"), must},
		{"enqueue behind all, enqueue to another", having("a1"), enqueueBehindAll, enqueueTo("B"), mustNot},
		{"enqueue behind all, claim of the group", having("a1"), enqueueBehindAll, claimOne, mustNot},
		{"enqueue, enqueue behind all", having("a1"), enqueueTo("A"), enqueueBehindAll, mustNot},
		{"enqueue, enqueue to another group", having("a1"), enqueueTo("A"), enqueueTo("B"), mustNot},
		{"enqueue, claim of the group", having("a1"), enqueueTo("A"), claimOne, mustNot},
		{"enqueue, ack that leaves the tail", holding(3, 2), enqueueTo("A"), ackAll, mustNot},
		{"enqueue, ack of the tail (trap 3)", holding(2, 2), enqueueTo("A"), ackAll, must},
		{"enqueue, ack of the tail alone", holding(1, 1), enqueueTo("A"), ackAll, must},
		{"enqueue, take of the tail", having("a1"), enqueueTo("A"), take, must},
		{"enqueue, extend", holding(1, 1), enqueueTo("A"), extend, mustNot},
		{"enqueue, nack", holding(1, 1), enqueueTo("A"), nack, mustNot},
		{"enqueue twice in one transaction, ack of the tail (trap 9)", holding(1, 1),
			func(e *env, tx kv.Tx, given any) error {
				if err := enqueueTo("A")(e, tx, given); err != nil {
					return err
				}
				return enqueueTo("A")(e, tx, given)
			}, ackAll, must},

		{"claim, claim of the same group", having("a1"), claimOne, claimOne, must},
		{"claim, claim of another group", func(e *env) any {
			e.enqueue("A", "a1")
			e.enqueue("B", "b1")
			e.write(func(tx kv.Tx) { tx.ClearRange(kv.PrefixRange(key("ready", int64(0)))) })
			for i, g := range []string{"A", "B"} {
				e.write(func(tx kv.Tx) { tx.Set(key("ready", int64(0), int64(i+1), g), nil) })
			}
			return nil
		}, claimOne, func(e *env, tx kv.Tx, given any) error {
			tx.Clear(key("ready", int64(0), int64(1), "A")) // makes this claim find B
			err := claimOne(e, tx, given)
			tx.Set(key("ready", int64(0), int64(1), "A"), nil)
			return err
		}, mustNot},
		{"claim, enqueue to the group", having("a1"), claimOne, enqueueTo("A"), mustNot},
		{"claim, enqueue to another group", having("a1"), claimOne, enqueueTo("B"), mustNot},
		{"claim, take from the group", having("a1", "a2"), claimOne, take, must},
		{"claim that clears a hint of an empty group, enqueue to it (trap 2)", staleEmpty, claimAll, enqueueTo("A"), must},
		{"claim that clears a hint of a held group, release of it (trap 2)", staleHeld, claimAll, nack, must},
		{"claim that clears a hint of a held group, ack of it", staleHeld, claimAll, ackAll, must},
		{"claim that clears a timer of a held group, extend of it", staleTimer, claimAll, extend, must},
		{"claim of nothing, enqueue", having(), claimAll, enqueueTo("A"), mustNot},
		{"takeover, ack by the old holder", expired(1, 1), claimAll, ackAll, must},
		{"takeover, extend by the old holder", expired(1, 1), claimAll, extend, must},
		{"takeover, takeover", expired(1, 1), claimAll, claimAll, must},
		{"takeover, enqueue to the group", expired(1, 1), claimAll, enqueueTo("A"), mustNot},

		{"take, take of the same group", having("a1", "a2"), take, take, must},
		{"take, claim of the same group", having("a1"), take, claimOne, must},
		{"take that empties the group, enqueue to it", having("a1"), take, enqueueTo("A"), must},
		{"take that leaves items, enqueue to the group", having("1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12"),
			take, enqueueTo("A"), mustNot},
		{"take that clears a hint of an empty group, enqueue to it", staleEmpty, take, enqueueTo("A"), must},
		{"take that clears a hint of a held group, release of it", staleHeld, take, nack, must},

		{"ack that leaves items in the claim, enqueue", holding(2, 2), ackFirst, enqueueTo("A"), mustNot},
		{"ack of the last that leaves items in the group, enqueue", holding(3, 2), ackAll, enqueueTo("A"), mustNot},
		{"ack of several, late enqueue between them (trap 1)", holding(3, 2), ackAll, enqueueBetween, must},
		{"ack of one of several, late enqueue behind it", holding(3, 2), ackFirst, enqueueBetween, mustNot},
		{"ack that empties the group, enqueue to it (trap 3)", holding(2, 2), ackAll, enqueueTo("A"), must},
		{"ack that empties the group, enqueue to the next group", holding(2, 2), ackAll, enqueueTo("B"), mustNot},
		{"ack, ack of the same claim", holding(2, 2), ackFirst, ackAll, must},
		{"ack, extend of the same claim", holding(2, 2), ackAll, extend, must},
		{"ack, takeover", expired(2, 2), ackAll, claimAll, must},
		{"ack, claim of another group", func(e *env) any {
			c := holding(1, 1)(e)
			e.enqueue("B", "b1")
			return c
		}, ackAll, claimOne, mustNot},
		{"extend, extend of the same claim", holding(1, 1), extend, extend, must},
		{"extend, takeover", expired(1, 1), extend, claimAll, must},
		{"nack, takeover", expired(1, 1), nack, claimAll, must},
		{"nack, ack of the same claim", holding(1, 1), nack, ackAll, must},
		{"nack with a delay, extend", holding(1, 1), nackDelayed, extend, must},
		{"nack, enqueue to the group", holding(1, 1), nack, enqueueTo("A"), mustNot},

		{"release of the end, enqueue to the group", holding(2, 2), releaseSecond, enqueueTo("A"), mustNot},
		{"release of the end, ack of the claim", holding(2, 2), releaseSecond, ackAll, must},
		{"ack of the first, release of the end", holding(2, 2), ackFirst, releaseSecond, must},
		{"release of the end, takeover", expired(2, 2), releaseSecond, claimAll, must},
		{"nack that parks the item, enqueue to the group", holding(2, 2), reject, enqueueTo("A"), mustNot},
		{"nack that parks the last item, enqueue to the group (trap 3)", holding(1, 1), reject, enqueueTo("A"), must},
		{"enqueue, nack that parks the tail (trap 3)", holding(1, 1), enqueueTo("A"), reject, must},
		{"nack that parks the last item, enqueue to another group", holding(1, 1), reject, enqueueTo("B"), mustNot},
		{"nack that parks the item, ack of the same claim", holding(2, 2), reject, ackAll, must},
		{"nack that parks the item, takeover", expired(2, 2), reject, claimAll, must},
		{"nack that parks the group, enqueue to it", parkingGroups(holding(1, 1)), reject, enqueueTo("A"), mustNot},
		{"takeover that parks the item, ack by the old holder", lastAttempt(2, 2), claimAll, ackAll, must},
		{"takeover that parks the item, extend by the old holder", lastAttempt(2, 2), claimAll, extend, must},
		{"takeover that parks the item, enqueue to the group", lastAttempt(2, 2), claimAll, enqueueTo("A"), mustNot},
		{"takeover that parks the last item, enqueue to the group (trap 3)", lastAttempt(1, 1), claimAll, enqueueTo("A"), must},
		{"enqueue, takeover that parks the tail (trap 3)", lastAttempt(1, 1), enqueueTo("A"), claimAll, must},
		{"takeover that parks the group, ack by the old holder", parkingGroups(lastAttempt(2, 2)), claimAll, ackAll, must},
		{"takeover that parks the group, takeover", parkingGroups(lastAttempt(2, 2)), claimAll, claimAll, must},
		{"takeover that parks the group, enqueue to it", parkingGroups(lastAttempt(2, 2)), claimAll, enqueueTo("A"), mustNot},
		{"redrive, redrive of the same letter", behindDead(having()), redriveFirst(back), redriveFirst(back), must},
		{"redrive, redrive of it to the tail", behindDead(having()), redriveFirst(back), redriveFirst(toTail), must},
		{"redrive to the tail, redrive of it to the tail", behindDead(having()), redriveFirst(toTail), redriveFirst(toTail), must},
		{"redrive, discard of the same letter", behindDead(having()), redriveFirst(back), discardFirst, must},
		{"discard, redrive of the same letter", behindDead(having()), discardFirst, redriveFirst(toTail), must},
		{"discard, discard of the same letter", behindDead(having()), discardFirst, discardFirst, must},
		{"redrive, claim of the group", behindDead(having("a1")), redriveFirst(back), claimOne, must},
		{"claim, redrive into the group", behindDead(having("a1")), claimOne, redriveFirst(back), must},
		{"redrive, take from the group", behindDead(having("a1")), redriveFirst(back), take, must},
		{"take, redrive into the group", behindDead(having("a1")), take, redriveFirst(back), must},
		{"redrive into a held group, ack that ends the claim", behindDead(holding(2, 2)), redriveFirst(back), ackAll, must},
		{"ack that ends the claim, redrive into the group", behindDead(holding(2, 2)), ackAll, redriveFirst(back), must},
		{"redrive into a held group, nack", behindDead(holding(2, 2)), redriveFirst(back), nack, must},
		{"redrive into an expired group, takeover", behindDead(expired(2, 2)), redriveFirst(back), claimAll, must},
		{"redrive into a paused group, resume of it", behindDead(paused(having())), redriveFirst(back), resumeGroup, must},
		{"resume of a paused group, redrive into it", behindDead(paused(having())), resumeGroup, redriveFirst(back), must},
		{"claim that clears a hint of an empty group, redrive into it (trap 2)", behindDead(staleEmpty), claimAll, redriveFirst(back), must},
		{"redrive, enqueue to the group", behindDead(having("a1")), redriveFirst(back), enqueueTo("A"), mustNot},
		{"redrive into an empty group, enqueue to it", behindDead(having()), redriveFirst(back), enqueueTo("A"), mustNot},
		{"enqueue to an empty group, redrive into it", behindDead(having()), enqueueTo("A"), redriveFirst(back), mustNot},
		{"redrive, claim of another group", behindDead(and(holding(1, 1))), redriveFirst(back), claimOne, mustNot},
		{"redrive to the tail, claim of the group", behindDead(having("a1")), redriveFirst(toTail), claimOne, mustNot},
		{"redrive to the tail, enqueue to the group", behindDead(having("a1")), redriveFirst(toTail), enqueueTo("A"), mustNot},
		{"redrive to the tail, take of the tail (trap 3)", behindDead(having("a1")), redriveFirst(toTail), take, must},
		{"discard, claim of the group", behindDead(having("a1")), discardFirst, claimOne, mustNot},
		{"discard, enqueue to the group", behindDead(having()), discardFirst, enqueueTo("A"), mustNot},
		{"resume of a halted group, resume of it", parkedGroup, resumeGroup, resumeGroup, must},
		{"resume of a halted group, enqueue to it", parkedGroup, resumeGroup, enqueueTo("A"), mustNot},
		{"take of an expired group, ack by the holder", expired(1, 1), take, ackAll, must},
		{"take of an expired group, extend by the holder", expired(1, 1), take, extend, must},
		{"take of an expired group, takeover", expired(1, 1), take, claimAll, must},
		{"take that clears a timer of a held group, extend of it", staleTimer, take, extend, must},

		{"cancel, claim of the group", having("a1", "a2"), cancelNth(2), claimOne, must},
		{"claim, cancel in the group", having("a1", "a2"), claimOne, cancelNth(2), must},
		{"take, cancel in the group", having("a1", "a2"), take, cancelNth(2), must},
		{"cancel, take from the group", having("a1", "a2"), cancelNth(2), take, must},
		{"cancel behind a claim, ack that ends it", holding(2, 1), cancelNth(2), ackAll, must},
		{"ack that ends a claim, cancel behind it", holding(2, 1), ackAll, cancelNth(2), must},
		{"cancel, cancel of the same item", having("a1", "a2"), cancelNth(1), cancelNth(1), must},
		{"cancel, edit of the same item", having("a1", "a2"), cancelNth(2), editNth(2), must},
		{"cancel of the only item, enqueue to the group", having("a1"), cancelNth(1), enqueueTo("A"), must},
		{"enqueue, cancel of the only item (trap 3)", having("a1"), enqueueTo("A"), cancelNth(1), must},
		{"cancel of the head, enqueue to the group", having("a1", "a2"), cancelNth(1), enqueueTo("A"), mustNot},
		{"enqueue, cancel of the head", having("a1", "a2"), enqueueTo("A"), cancelNth(1), mustNot},
		{"cancel of the tail, enqueue to the group", having("a1", "a2"), cancelNth(2), enqueueTo("A"), mustNot},
		{"cancel, claim of another group", and(holding(2, 1)), cancelNth(2), claimOne, mustNot},
		{"cancel of the head of an expired claim, ack by the holder", expired(2, 1), cancelNth(1), ackAll, must},
		{"edit, claim of the group", having("a1", "a2"), editNth(2), claimOne, must},
		{"claim, edit in the group", having("a1", "a2"), claimOne, editNth(2), must},
		{"edit, edit of the same item", having("a1"), editNth(1), editNth(1), must},
		{"edit, enqueue to the group", having("a1"), editNth(1), enqueueTo("A"), mustNot},
		{"reschedule, claim of the group", having("a1", "a2"), postpone(2), claimOne, must},
		{"claim, reschedule in the group", having("a1", "a2"), claimOne, postpone(2), must},
		{"reschedule, reschedule of the same item",
			having("a1"), postpone(1), rescheduleNth(1, time.Minute), must},
		{"reschedule of the head, reschedule behind it", having("a1", "a2"), postpone(1), postpone(2), must},
		{"reschedule of the head, enqueue to the group", having("a1"), postpone(1), enqueueTo("A"), mustNot},
		{"reschedule of the head, late enqueue before it", having("a1"), postpone(1), enqueueBefore, must},
		{"reschedule of a delayed head, late enqueue before it",
			delayedUntil, rescheduleNth(1, 0), enqueueBefore, must},
		{"reschedule of what is delayed, claim by another clock", delayedUntil, postpone(1), claimAhead, must},
		{"claim by another clock, reschedule of what is delayed", delayedUntil, claimAhead, postpone(1), must},
		{"reschedule of a delayed head, claim that awaits it", keptBackHint, rescheduleNth(1, 0), claimAll, must},
		{"claim that awaits a head, reschedule of it", keptBackHint, claimAll, rescheduleNth(1, 0), must},
		{"reschedule, claim of another group", and(holding(2, 1)), postpone(2), claimOne, mustNot},
		{"reschedule behind a claim, ack that ends it", holding(2, 1), postpone(2), ackAll, must},
		{"ack that ends a claim, reschedule behind it", holding(2, 1), ackAll, postpone(2), must},
		{"edit, claim of another group", and(holding(2, 1)), editNth(2), claimOne, mustNot},
		{"forced release, ack by the holder", holding(1, 1), forceRelease, ackAll, must},
		{"ack, forced release", holding(1, 1), ackAll, forceRelease, must},
		{"extend, forced release", holding(1, 1), extend, forceRelease, must},
		{"forced release, enqueue to the group", holding(1, 1), forceRelease, enqueueTo("A"), mustNot},
		{"forced release, claim of another group", and(holding(1, 1)), forceRelease, claimOne, mustNot},
		{"retry now, retry now", delayed(1), retryNow, retryNow, must},
		{"retry now, cancel in the group", delayed(2), retryNow, cancelNth(2), must},
		{"retry now, enqueue to the group", delayed(1), retryNow, enqueueTo("A"), mustNot},
		{"retry now, claim of another group", and(delayed(1)), retryNow, claimOne, mustNot},

		{"pause of a group, claim of it", having("a1"), pauseGroup, claimOne, must},
		{"claim, pause of the group", having("a1"), claimOne, pauseGroup, must},
		{"take, pause of the group", having("a1"), take, pauseGroup, must},
		{"ack that ends a claim, pause of the group", holding(1, 1), ackAll, pauseGroup, must},
		{"pause of a group, enqueue to it", having("a1"), pauseGroup, enqueueTo("A"), mustNot},
		{"enqueue to the empty group, pause of it", having(), enqueueTo("A"), pauseGroup, mustNot},
		{"pause of a group, claim of another", and(holding(1, 1)), pauseGroup, claimOne, mustNot},
		{"resume of a group, resume of it", paused(having("a1")), resumeGroup, resumeGroup, must},
		{"resume of an empty group, enqueue to it", paused(having()), resumeGroup, enqueueTo("A"), must},
		{"resume of a group, enqueue to it", paused(having("a1")), resumeGroup, enqueueTo("A"), mustNot},
		{"claim that clears a hint of a paused group, resume of it", paused(having("a1")), claimAll, resumeGroup, must},
		{"resume of a group, claim of another", and(paused(having("a1"))), resumeGroup, claimOne, mustNot},
		{"pause of the queue, pause of it", having(), pauseQueue, pauseQueue, must},
		{"resume of the queue, resume of it", pausedQueue(having()), resumeQueue, resumeQueue, must},
		{"pause of the queue, claim", having("a1"), pauseQueue, claimOne, mustNot},
		{"claim, pause of the queue", having("a1"), claimOne, pauseQueue, mustNot},
		{"enqueue, pause of the queue", having(), enqueueTo("A"), pauseQueue, mustNot},
		{"claim, purge of the group", having("a1"), claimOne, purgeGroup("A", false), must},
		{"claim, purge of the queue", having("a1"), claimOne, purgeAll, must},
		{"take, purge of the queue", having("a1"), take, purgeAll, must},
		{"enqueue, purge of the queue (trap 3)", having("a1"), enqueueTo("A"), purgeAll, must},
		{"enqueue to another group, purge of the queue", having("a1"), enqueueTo("B"), purgeAll, mustNot},
		{"take, purge of the group", having("a1"), take, purgeGroup("A", false), must},
		{"ack, forced purge of the group", holding(2, 2), ackFirst, purgeGroup("A", true), must},
		{"extend, forced purge of the group", holding(2, 2), extend, purgeGroup("A", true), must},
		{"extend, purge of what is in flight only", holding(2, 2), extend, purgeGroup("A", false), mustNot},
		{"enqueue, purge of the group (trap 3)", having("a1"), enqueueTo("A"), purgeGroup("A", false), must},
		{"enqueue to another group, purge", having("a1"), enqueueTo("B"), purgeGroup("A", false), mustNot},
		{"claim of another group, purge", and(holding(2, 1)), claimOne, purgeGroup("A", false), mustNot},
		{"enqueue of a delayed message, enqueue to the same empty group", having(), enqueueDelayed, enqueueTo("A"), mustNot},
		{"claim that awaits a head, enqueue to the group", keptBackHint, claimAll, enqueueTo("A"), mustNot},
		{"claim that awaits a head, claim that awaits it", keptBackHint, claimAll, claimAll, mustNot},
		{"claim that awaits a head, retry now", keptBackHint, claimAll, retryNow, must},
		{"claim that awaits a head, cancel of it", keptBackHint, claimAll, cancelNth(1), must},
		{"claim that awaits a head, redrive before it", behindDead(keptBackHint), claimAll, redriveFirst(back), must},
		{"claim that awaits a head, late enqueue before it", keptBackHint, claimAll, enqueueBefore, must},
		{"claim that awaits a head, enqueue to another group", keptBackHint, claimAll, enqueueTo("B"), mustNot},
		{"take that awaits a head, retry now", keptBackHint, take, retryNow, must},
		{"take that awaits a head, late enqueue before it", keptBackHint, take, enqueueBefore, must},
		{"claim by the timer of a head, claim by it", dueHead, claimAll, claimAll, must},
		{"retry now of what is delayed, claim by another clock", delayedUntil, retryNow, claimAhead, must},
		{"claim by another clock, retry now of what is delayed", delayedUntil, claimAhead, retryNow, must},
		{"retry now of what is delayed, enqueue to the group", delayedUntil, retryNow, enqueueTo("A"), mustNot},
		{"enqueue, enqueue to the same bounded group", bounded(5, having("a1")), enqueueTo("A"), enqueueTo("A"), mustNot},
		{"enqueue to a bounded group, claim of it", bounded(5, having("a1")), enqueueTo("A"), claimOne, mustNot},
		{"claim, claim of the same group with a rate", rated("2/s", having("a1", "a2")), claimOne, claimOne, must},
		{"claim of a group with a rate, take from it", rated("2/s", having("a1", "a2")), claimOne, take, must},
		{"claim of a group with a rate, enqueue to it", rated("2/s", having("a1")), claimOne, enqueueTo("A"), mustNot},
		{"claim of a group with a rate, claim of another", rated("2/s", and(having("a1"))), claimFrom("A"), claimFrom("B"), mustNot},
		{"claim in a queue with a rate, claim of another group", totalled("4/s", and(having("a1"))),
			claimFrom("A"), claimFrom("B"), mustNot},
		{"claim that awaits the rate, enqueue to the group", usedUp, claimAll, enqueueTo("A"), mustNot},
		{"claim that awaits the rate, enqueue to another group", usedUp, claimAll, enqueueTo("B"), mustNot},
		{"claim that awaits the rate, claim that awaits it", usedUp, claimAll, claimAll, mustNot},
		{"claim that awaits the rate, claim by another clock", usedUp, claimAll, claimAhead, must},
		{"claim that awaits the rate, cancel of the head", usedUp, claimAll, cancelNth(1), must},
		{"claim that awaits the rate, purge of the group", usedUp, claimAll, purgeGroup("A", false), must},
		{"claim that awaits the rate, change of it", usedUp, claimAll, changeRate, must},
		{"claim of another group, change of the rate", and(usedUp), claimFrom("B"), changeRate, mustNot},
		{"take that awaits the rate, change of it", usedUp, take, changeRate, must},
		{"ack of the last item that receives and awaits the rate, change of it", rated("1/m", holding(2, 1)), ackAndReceive, changeRate, must},
		{"takeover that awaits the rate, change of it", rated("1/24h", expired(1, 1)), claimAll, changeRate, must},
		{"enqueue to a group that waits, change of the rate", paced, enqueueTo("A"), changeRate, mustNot},
		{"claim of a group with a rate, sweep that clears what was used", func(e *env) any {
			usedUp(e)
			e.clock.advance(time.Hour)
			return nil
		}, claimOne, sweepAll, must},
		{"claim of a group with a rate, sweep that leaves what was used", rated("1/h", and(having("a1"))), claimOne, sweepAll, mustNot},
		{"enqueue, enqueue with the same dedup id", having(), enqueueAs("A", "x"), enqueueAs("B", "x"), must},
		{"enqueue, enqueue with another dedup id", having(), enqueueAs("A", "x"), enqueueAs("A", "y"), mustNot},
		{"enqueue of a duplicate and another, enqueue of that duplicate", remembering("x", having()), enqueueBoth, enqueueAs("B", "x"), mustNot},
		{"enqueue of a duplicate and another, claim of the first", remembering("x", having()), enqueueBoth, claimOne, mustNot},
		{"enqueue of a duplicate and another, purge of the group", remembering("x", having()), enqueueBoth, purgeGroup("A", false), must},
		{"enqueue of a duplicate and another, cancel of the first", whilePending(remembering("x", having("a2"))), enqueueBoth, cancelNth(1), must},
		{"enqueue of a duplicate and another, enqueue to the group", whilePending(remembering("x", having())), enqueueBoth, enqueueTo("A"), mustNot},
		{"enqueue, sweep of the entry", func(e *env) any {
			e.sendAs(e.q, "A", "x")
			e.clock.advance(time.Hour)
			return nil
		}, enqueueAs("B", "x"), sweep, must},
		{"enqueue, sweep of another entry", func(e *env) any {
			e.sendAs(e.q, "A", "x")
			e.clock.advance(time.Hour)
			return nil
		}, enqueueAs("B", "y"), sweep, mustNot},
		{"takeover that reads the state, holder's change of it", withState(expired(1, 1)), claimState, setState, must},
		{"holder's change of the state, takeover", expired(1, 1), setState, claimAll, must},
		{"holder's change of the state, ack that ends the claim", holding(1, 1), setState, ackAll, must},
		{"holder's change of the state, enqueue to the group", holding(1, 1), setState, enqueueTo("A"), mustNot},
		{"holder's change of the state, claim of another group", and(holding(1, 1)), setState, claimOne, mustNot},
		{"claim that reads the state, change of it", withState(having("a1")), claimState, setGroupState, must},
		{"change of the state, claim of the group", having("a1"), setGroupState, claimAll, must},
		{"change of the state, enqueue to the group", having("a1"), setGroupState, enqueueTo("A"), mustNot},
		{"change of the state of a group, claim of another", and(holding(1, 1)), setGroupState, claimOne, mustNot},
		{"claim that reads the state, purge of the group", withState(having("a1")), claimState, purgeGroup("A", false), must},
		{"claim with a receive id, the same of another group", func(e *env) any {
			e.enqueue("A", "a1")
			e.enqueue("B", "b1")
			return nil
		}, claimNamed("once"), func(e *env, tx kv.Tx, _ any) error {
			group := "B"
			_, err := e.q.ReceiveTx(e.ctx, tx, layer.ReceiveOptions{Group: &group, ReceiveID: "once"})
			return err
		}, must},
		{"claim with a receive id, claim with another of another group", and(having("a1")), claimNamed("once"), func(e *env, tx kv.Tx, _ any) error {
			group := "B"
			_, err := e.q.ReceiveTx(e.ctx, tx, layer.ReceiveOptions{Group: &group, ReceiveID: "other"})
			return err
		}, mustNot},
		{"claim that meets overdue items, enqueue to the group", overdue(layer.DropExpired), claimOne, enqueueTo("A"), mustNot},
		{"claim that leaves a group empty of overdue items, enqueue to it (trap 3)", overdueOnly, claimOne, enqueueTo("A"), must},
		{"claim that drops all of a group, pause of it", overdueOnly, claimOne, pauseGroup, must},
		{"enqueue, claim that drops the tail (trap 3)", overdueOnly, enqueueTo("A"), claimOne, must},
		{"enqueue, sweep that drops the tail (trap 3)", overdueOnly, enqueueTo("A"), sweepAll, must},
		{"enqueue, sweep of what is overdue before the tail", overdue(layer.DropExpired), enqueueTo("A"), sweepAll, mustNot},
		{"claim that meets overdue items, sweep of them", overdue(layer.DropExpired), claimOne, sweepAll, must},
		{"take that meets overdue items, sweep of them", overdue(layer.DropExpired), take, sweepAll, must},
		{"claim of another group, sweep of overdue items", and(overdue(layer.DropExpired)), claimFrom("B"), sweepAll, mustNot},
		{"cancel in the group, sweep of overdue items", overdue(layer.DropExpired), cancelNth(3), sweepAll, must},
		{"ack into the archive, ack of the same claim", archiving(holding(2, 2)), ackFirst, ackAll, must},
		{"ack into the archive, enqueue to the group", archiving(holding(3, 2)), ackAll, enqueueTo("A"), mustNot},
		{"ack into the archive, ack of another group into it", archiving(func(e *env) any {
			e.enqueue("B", "b")
			other := e.receive(e.q, 1)
			return []*layer.Claim{holding(1, 1)(e).(*layer.Claim), other}
		}), func(e *env, tx kv.Tx, given any) error { return ackAll(e, tx, given.([]*layer.Claim)[0]) },
			func(e *env, tx kv.Tx, given any) error { return ackAll(e, tx, given.([]*layer.Claim)[1]) }, mustNot},
		{"ack into the archive, takeover", archiving(expired(2, 2)), ackAll, claimAll, must},
		{"enqueue, replay into the group", and(archivedItems(2)), enqueueTo("A"), replayA, mustNot},
		{"replay, enqueue to the group", and(archivedItems(2)), replayIn, enqueueTo("A"), mustNot},
		{"replay, ack of the tail (trap 3)", func(e *env) any { archivedItems(2)(e); return holding(1, 1)(e) }, replayIn, ackAll, must},
		{"replay, claim of another group", and(archivedItems(2)), replayIn, claimFrom("B"), mustNot},
		{"claim of another group, replay", and(archivedItems(2)), claimOne, replayA, mustNot},
		{"enqueue and claim, sweep", having("a1"), func(e *env, tx kv.Tx, given any) error {
			return errors.Join(enqueueTo("B")(e, tx, given), claimOne(e, tx, given))
		}, func(e *env, _ kv.Tx, _ any) error {
			e.leaveReceipts(3)
			e.clock.advance(2 * time.Hour)
			_, err := e.q.Admin().Sweep(e.ctx, layer.SweepOptions{})
			return err
		}, mustNot},
	} {
		t.Run(p.name, func(t *testing.T) {
			t.Parallel()
			e := newEnv(t, anyEngine, false)
			p.run(e, e)
		})
	}
}
