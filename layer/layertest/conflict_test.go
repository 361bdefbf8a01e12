package layer_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// A kind of queue is its name before the names of its pairs, and its settings.
type kind struct {
	name      string
	configure func(c *layer.Config)
}

var (
	plain     = kind{"", func(*layer.Config) {}}
	unordered = kind{"unordered: ", func(c *layer.Config) {
		c.Unordered, c.MaxAttempts = true, layer.Unlimited
	}}
	itemLeases = kind{"item leases: ", func(c *layer.Config) {
		c.LeasePerItem, c.MaxAttempts = true, layer.Unlimited
	}}
)

// heartbeat is a queue whose handle receives by heartbeat.
var heartbeat = kind{"heartbeat: ", func(*layer.Config) {}}

// facets is a queue with the facets state and region, and with those views.
func facets(views string) kind {
	return kind{"facets: ", func(c *layer.Config) {
		c.Facets, c.Views, c.MaxAttempts = []string{"state", "region"}, views, layer.Unlimited
	}}
}

// pair is two operations on one queue, of which the second commits while the first is under way. Both are
// given the result of setup.
type pair struct {
	kind     kind
	name     string
	setup    func(e *env) any
	first    func(e *env, tx kv.Tx, given any) error
	second   func(e *env, tx kv.Tx, given any) error
	conflict bool
}

// TestConflicts: the footprint of each operation, as pairs that must conflict and pairs that must not (G1, G2, G4, G5,
// and traps 2, 3 and 9 of the design) (lanes, traps 1, 2, 3, 4). If the first operation conflicts, it is repeated. The
// queue is sound afterwards.
func TestConflicts(t *testing.T) {
	seen := make(map[string]bool)
	for _, p := range conflicts {
		name := p.kind.name + p.name
		require.False(t, seen[name], "two pairs are named %q", name)
		seen[name] = true
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			e := newEnvOf(t, anyEngine, false, p.kind.configure)
			given := p.setup(e)
			first := func(tx kv.Tx) error { return p.first(e, tx, given) }
			err := e.overlap(first, func(tx kv.Tx) error { return p.second(e, tx, given) })
			if !p.conflict {
				require.NoError(t, err, "must not conflict")
				return
			}
			require.Equal(t, kv.CodeNotCommitted, kv.Code(err), "must conflict, got %v", err)
			// The repetition may be refused, because of the second operation.
			_, _ = kv.Run(e.ctx, e.raw, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error { return first(tx) })
		})
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

func receiveBy(o layer.ReceiveOptions) func(e *env, tx kv.Tx, _ any) error {
	return func(e *env, tx kv.Tx, _ any) error {
		_, err := e.q.ReceiveTx(e.ctx, tx, o)
		return err
	}
}

func claimUpTo(n int) func(e *env, tx kv.Tx, _ any) error {
	return receiveBy(layer.ReceiveOptions{Max: n})
}

func claimOne(e *env, tx kv.Tx, given any) error { return claimUpTo(1)(e, tx, given) }

// claimAll looks at every hint there is.
func claimAll(e *env, tx kv.Tx, given any) error { return claimUpTo(100)(e, tx, given) }

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

var back, toTail = layer.RedriveOptions{}, layer.RedriveOptions{ToTail: true}

// redriveFirst and discardFirst are of the first of the ids given, or of the first dead letter there is.
func redriveFirst(o layer.RedriveOptions) func(e *env, tx kv.Tx, given any) error {
	return func(e *env, tx kv.Tx, given any) error { return e.q.Admin().RedriveTx(e.ctx, tx, o, firstDead(e)) }
}

func discardFirst(e *env, tx kv.Tx, _ any) error {
	return e.q.Admin().DiscardTx(e.ctx, tx, firstDead(e))
}

// firstDead is the id of the first dead letter, or of no item if there is none.
func firstDead(e *env) layer.ID {
	page, err := e.calm().Admin().DeadLetters(e.ctx, layer.DeadOptions{})
	require.NoError(e.t, err)
	if len(page.Letters) == 0 {
		return layer.ID{Group: "A"}
	}
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

// nth is the id of the n-th item of A, or of no item if A has fewer.
func nth(e *env, n int) layer.ID {
	items, err := e.calm().Peek(e.ctx, "A", n, nil)
	require.NoError(e.t, err)
	if len(items) < n {
		return layer.ID{Group: "A"}
	}
	return items[n-1].ID
}

// cancelNth cancels the n-th item of A.
func cancelNth(n int) func(e *env, tx kv.Tx, _ any) error {
	return func(e *env, tx kv.Tx, _ any) error { return e.q.Admin().CancelTx(e.ctx, tx, nth(e, n)) }
}

// cancelDeadAndEnqueue cancels the first dead letter, which is no item, and enqueues to another group. A transaction
// that writes nothing never conflicts.
func cancelDeadAndEnqueue(e *env, tx kv.Tx, _ any) error {
	if err := e.q.Admin().CancelTx(e.ctx, tx, firstDead(e)); !errors.Is(err, layer.ErrNoItem) {
		return fmt.Errorf("cancel of a dead letter: %w", err)
	}
	_, err := e.q.EnqueueTx(e.ctx, tx, layer.Message{Group: "C", Headers: facetsOf("NEW", "EU")})
	return err
}

// skipHead skips the head of A.
func skipHead(e *env, tx kv.Tx, _ any) error {
	_, err := e.within(tx).Skip(e.ctx, "A", layer.SkipOptions{})
	return err
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

func pauseGroup(e *env, tx kv.Tx, given any) error { return pauseOf("A")(e, tx, given) }

func pauseOf(group string) func(e *env, tx kv.Tx, _ any) error {
	return func(e *env, tx kv.Tx, _ any) error {
		_, err := e.q.Admin().PauseGroupTx(e.ctx, tx, group, layer.PauseOptions{})
		return err
	}
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
	return receiveBy(layer.ReceiveOptions{Max: 1, ReceiveID: id})
}

func sweepAll(e *env, _ kv.Tx, _ any) error {
	_, err := e.q.Admin().Sweep(e.ctx, layer.SweepOptions{})
	return err
}

func claimFrom(group string) func(e *env, tx kv.Tx, _ any) error {
	return receiveBy(layer.ReceiveOptions{Group: &group})
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
func claimState(e *env, tx kv.Tx, given any) error {
	return receiveBy(layer.ReceiveOptions{Max: 100, State: true})(e, tx, given)
}

// withState gives group A a state after setup.
func withState(setup func(e *env) any) func(e *env) any {
	return func(e *env) any {
		given := setup(e)
		o := layer.SetGroupStateOptions{Force: true}
		require.NoError(e.t, e.q.Admin().SetGroupState(e.ctx, "A", []byte("old"), o))
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

// Setups and operations of the other kinds of queue.

var anyOne = layer.ReceiveOptions{Unordered: true, Max: 1}

// granted leaves a grant of group A whose short lease has ended, as a requester does that has died.
func granted(e *env) {
	endMS, owner := e.clock.now().Add(-time.Second).UnixMilli(), uuid.MustParse("6ba7b810-9dad-41d1-80b4-00c04fd430c8")
	e.write(func(tx kv.Tx) {
		tx.ClearRange(kv.PrefixRange(key("ready", int64(0))))
		holding := tuple.Tuple{"grant", int64(1), owner.String(), endMS}
		tx.Set(key("lock", "A"), tuple.Tuple{int64(1), nil, holding}.Pack())
		tx.Set(key("timer", endMS, "A"), tuple.Tuple{"grant", int64(1)}.Pack())
	})
}

func configureLease(e *env, tx kv.Tx, _ any) error {
	_, _, err := e.within(tx).Configure(e.ctx, func(c *layer.Config) { c.Lease = time.Minute })
	return err
}

func claimAndEnqueue(e *env, tx kv.Tx, given any) error {
	e.clock.advance(time.Second) // so that the configuration is read
	return errors.Join(claimOne(e, tx, given), enqueueTo("B")(e, tx, given))
}

// noDelay gives a message back at once.
var noDelay = layer.NackOptions{AtOnce: true}

// claimOf returns the claim that a setup gives, nil if it gives none.
func claimOf(given any) *layer.Claim {
	c, _ := given.(*layer.Claim)
	return c
}

// sendN enqueues n messages without a body to group A.
func (e *env) sendN(n int) {
	e.t.Helper()
	for range n {
		_, err := e.q.Enqueue(e.ctx, layer.Message{Group: "A"})
		require.NoError(e.t, err)
	}
}

// sendStates enqueues messages into group A, a message for each state.
func (e *env) sendStates(states ...string) {
	e.t.Helper()
	for _, state := range states {
		_, err := e.q.Enqueue(e.ctx, layer.Message{Group: "A", Headers: facetsOf(state, "EU")})
		require.NoError(e.t, err)
	}
}

// claimBy receives by template, and returns nil if there is nothing.
func (e *env) claimBy(where layer.Template, max int) *layer.Claim {
	e.t.Helper()
	claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Where: where, Max: max})
	require.NoError(e.t, err)
	if len(claims) == 0 {
		return nil
	}
	return claims[0]
}

// claimOne receives one claim.
func (e *env) claimOne(o layer.ReceiveOptions) *layer.Claim {
	e.t.Helper()
	claims, err := e.q.Receive(e.ctx, o)
	require.NoError(e.t, err)
	require.Len(e.t, claims, 1)
	return claims[0]
}

// move advances all items of a claim to a state.
func (e *env) move(tx kv.Tx, c *layer.Claim, state string) error {
	return e.q.SettleTx(e.ctx, tx, advanceBy(c, func(m *layer.Message) error {
		m.Headers["state"] = state
		return nil
	}))
}

func advanceTo(state string) func(e *env, tx kv.Tx, given any) error {
	return func(e *env, tx kv.Tx, given any) error { return e.move(tx, given.(*layer.Claim), state) }
}

func sending(states ...string) func(e *env) any {
	return func(e *env) any {
		e.sendStates(states...)
		return nil
	}
}

// buryingFirst sends, and rejects the first of the messages.
func buryingFirst(states ...string) func(e *env) any {
	return func(e *env) any {
		e.sendStates(states...)
		require.NoError(e.t, e.q.Nack(e.ctx, e.claimBy(nil, 1), layer.NackOptions{Reject: "no"}))
		return nil
	}
}

// handing sends, and claims one item by template.
func handing(where layer.Template, states ...string) func(e *env) any {
	return func(e *env) any {
		e.sendStates(states...)
		return e.claimBy(where, 1)
	}
}

// staleLane leaves a hint of the lane NEW, which is empty, and holds the lane PAID.
func staleLane(e *env) any {
	c := handing(nil, "NEW")(e).(*layer.Claim)
	require.NoError(e.t, e.q.Once(e.ctx, func(tx kv.Tx) error { return e.move(tx, c, "PAID") }))
	return e.claimBy(isPaid, 1)
}

func claimWhere(where layer.Template) func(e *env, tx kv.Tx, _ any) error {
	return receiveBy(layer.ReceiveOptions{Where: where, Max: 1})
}

func takeBy(o layer.TakeOptions) func(e *env, tx kv.Tx, _ any) error {
	return func(e *env, tx kv.Tx, _ any) error {
		_, _, err := e.q.TakeTx(e.ctx, tx, 1, o)
		return err
	}
}

func takeWhere(where layer.Template) func(e *env, tx kv.Tx, _ any) error {
	return takeBy(layer.TakeOptions{Where: where})
}

func takeOne(e *env, tx kv.Tx, given any) error { return takeBy(layer.TakeOptions{})(e, tx, given) }

// takeAny takes a free item.
func takeAny(e *env, tx kv.Tx, given any) error {
	return takeBy(layer.TakeOptions{Unordered: true})(e, tx, given)
}

func claimAnyOne(e *env, tx kv.Tx, given any) error { return receiveBy(anyOne)(e, tx, given) }

func enqueueState(state string) func(e *env, tx kv.Tx, _ any) error {
	return func(e *env, tx kv.Tx, _ any) error {
		_, err := e.q.EnqueueTx(e.ctx, tx, layer.Message{Group: "A", Headers: facetsOf(state, "EU")})
		return err
	}
}

// holdingOne enqueues n items to A, and holds the first by itself.
func holdingOne(n int) func(e *env) any { return holdingBy(n, anyOne) }

// holdingOneRetimed sends one item into a queue with retroactive delay, and holds it by itself.
func holdingOneRetimed(e *env) any {
	e.configure(func(c *layer.Config) { c.RetroactiveDelay, c.Delay = true, time.Hour })
	e.sendN(1)
	e.configure(func(c *layer.Config) { c.RetroactiveDelay, c.Delay = true, 0 })
	return e.claimOne(anyOne)
}

func release(e *env, tx kv.Tx, given any) error {
	return e.q.NackTx(e.ctx, tx, given.(*layer.Claim), layer.NackOptions{Release: true})
}

// thenDelayed enqueues an item to A after setup that is due in an hour.
func thenDelayed(setup func(e *env) any) func(e *env) any {
	return func(e *env) any {
		given := setup(e)
		require.NoError(e.t, enqueueLate(time.Hour)(e, nil))
		return given
	}
}

// hurryLast makes the last item of A due in a minute.
func hurryLast(e *env, tx kv.Tx, _ any) error {
	items, err := e.q.Peek(e.ctx, "A", 10, nil)
	require.NoError(e.t, err)
	return e.q.RescheduleTx(e.ctx, tx, items[len(items)-1].ID, e.clock.now().Add(time.Minute))
}

// behind returns the options of a handle whose clock is a minute behind.
func (e *env) behind() layer.Options {
	o := e.options(11)
	o.Now = func() time.Time { return e.clock.now().Add(-time.Minute) }
	return o
}

// handed sends, and receives the first messages, each under a claim of its own.
func handed(sent, received int) func(e *env) any {
	return func(e *env) any {
		e.sendN(sent)
		if received == 0 {
			return nil
		}
		had, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Max: received})
		require.NoError(e.t, err)
		require.Len(e.t, had, received)
		return had
	}
}

// lapsedIn is handed one of n messages, with the lease run out.
func lapsedIn(n int) func(e *env) any {
	return func(e *env) any {
		had := handed(n, 1)(e)
		e.clock.advance(time.Minute)
		return had
	}
}

func ackOf(i int) func(e *env, tx kv.Tx, had any) error {
	return func(e *env, tx kv.Tx, had any) error { return e.q.AckTx(e.ctx, tx, had.([]*layer.Claim)[i]) }
}

func nackOf(i int, o layer.NackOptions) func(e *env, tx kv.Tx, had any) error {
	return func(e *env, tx kv.Tx, had any) error { return e.q.NackTx(e.ctx, tx, had.([]*layer.Claim)[i], o) }
}

func extendOf(i int) func(e *env, tx kv.Tx, had any) error {
	return func(e *env, tx kv.Tx, had any) error {
		_, err := e.q.ExtendTx(e.ctx, tx, had.([]*layer.Claim)[i], 0)
		return err
	}
}

// beating enqueues an item to each of n groups, and receives them by heartbeat.
func beating(n int) func(e *env) any {
	return func(e *env) any {
		for i := range n {
			e.enqueue(fmt.Sprint("g", i), "a")
		}
		claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Max: n, Heartbeat: true})
		require.NoError(e.t, err)
		require.Len(e.t, claims, n)
		e.t.Cleanup(func() { require.NoError(e.t, e.q.Close(context.Background())) })
		return claims
	}
}

// claimLater has another handle receive everything a day later.
func claimLater(e *env, _ kv.Tx, _ any) error {
	other := e.handle(2)
	e.clock.advance(24 * time.Hour)
	claims, err := other.Receive(e.ctx, layer.ReceiveOptions{Max: 100})
	require.NotEmpty(e.t, claims)
	return errors.Join(err, other.Close(e.ctx))
}
