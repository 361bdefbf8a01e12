package layer_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"math"
	"reflect"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// silent are the methods that return no error.
var silent = map[string]bool{
	"Admin.As": true, "Queue.Admin": true, "Queue.Config": true, "Queue.Name": true, "Queue.Now": true,
	"Queue.Paths": true,
}

// prefixed is the front of the text of every call's error.
var prefixed = regexp.MustCompile(`^layer: [a-z ]+( "[^"]*")?: .`)

// badCall is a call that must fail, and what its error matches.
type badCall struct {
	call func() error
	is   error
}

// last drops the other result of a call.
func last[T any](_ T, err error) error { return err }

// lastOf is the error that ends a list.
func lastOf[T any](list iter.Seq2[T, error]) (last error) {
	for _, err := range list {
		last = err
	}
	return last
}

// badCalls has a row for every method of Queue and Admin that returns an error, and for the functions of the package.
func badCalls(e *env) map[string]badCall {
	q, a, ctx := e.q, e.q.Admin(), e.ctx
	closed := e.handle(7)
	require.NoError(e.t, closed.Close(ctx))
	canceled, cancel := context.WithCancel(ctx)
	cancel()
	anyMark, anyHead, notPaused := layer.ResumeOptions{}, layer.RetryOptions{}, layer.ErrNotPaused
	long, bad := strings.Repeat("x", layer.MaxGroupSize+1), "\xff"
	lost := &layer.Claim{Group: "A", Token: 1}
	big := make([]byte, layer.MaxStateSize+1)
	in := func(call func(tx kv.Tx) error) func() error {
		return func() error { return q.Once(ctx, call) }
	}
	limit, utf8, options, id := layer.ErrLimit, layer.ErrInvalidUTF8, layer.ErrOptions, layer.ErrInvalidID
	return map[string]badCall{
		"Queue.Enqueue":   {func() error { return last(q.Enqueue(ctx, layer.Message{Group: long})) }, limit},
		"Queue.EnqueueTx": {in(func(tx kv.Tx) error { return last(q.EnqueueTx(ctx, tx, layer.Message{Delay: -1})) }), limit},
		"Queue.Receive":   {func() error { return last(q.Receive(ctx, layer.ReceiveOptions{ReceiveID: bad})) }, utf8},
		"Queue.ReceiveTx": {in(func(tx kv.Tx) error {
			return last(q.ReceiveTx(ctx, tx, layer.ReceiveOptions{Wait: time.Second}))
		}), options},
		"Queue.TakeTx": {in(func(tx kv.Tx) error {
			_, _, err := q.TakeTx(ctx, tx, 0, layer.TakeOptions{})
			return err
		}), limit},
		"Queue.Ack":      {func() error { return q.Ack(ctx, lost) }, layer.ErrClaimLost},
		"Queue.AckTx":    {in(func(tx kv.Tx) error { return q.AckTx(ctx, tx, lost) }), layer.ErrClaimLost},
		"Queue.AckItems": {func() error { return q.AckItems(ctx, lost, make([]layer.ID, 1)) }, layer.ErrClaimLost},
		"Queue.AckItemsTx": {in(func(tx kv.Tx) error {
			return q.AckItemsTx(ctx, tx, lost, make([]layer.ID, 1))
		}), layer.ErrClaimLost},
		"Queue.Settle": {func() error { return q.Settle(ctx, ackingState(lost, big)) }, limit},
		"Queue.SettleTx": {in(func(tx kv.Tx) error {
			return q.SettleTx(ctx, tx, ackingState(lost, nil))
		}), layer.ErrClaimLost},
		"Queue.SettleReceive": {func() error {
			return last(
				q.SettleReceive(ctx, layer.Settlement{Claim: lost, FinishAll: true}, layer.ReceiveOptions{Strategy: 9}),
			)
		}, options},
		"Settle, state alone": {func() error { return q.Settle(ctx, settingState(lost, big)) }, limit},
		"SettleTx, state alone": {in(func(tx kv.Tx) error {
			return q.SettleTx(ctx, tx, settingState(lost, nil))
		}), layer.ErrClaimLost},
		"Settle, extend and nack": {func() error {
			return q.Settle(ctx, layer.Settlement{Claim: lost, Extend: time.Minute, Nack: &layer.NackOptions{}})
		}, options},
		"Settle, extend": {func() error {
			return q.Settle(ctx, layer.Settlement{Claim: lost, Extend: -1})
		}, limit},
		"Queue.Nack": {func() error { return q.Nack(ctx, lost, layer.NackOptions{Delay: -1}) }, limit},
		"Queue.NackTx": {in(func(tx kv.Tx) error {
			return q.NackTx(ctx, tx, lost, layer.NackOptions{AtOnce: true, Delay: 1})
		}), options},
		"Queue.Extend":     {func() error { return last(q.Extend(ctx, lost, -1)) }, limit},
		"Queue.ExtendTx":   {in(func(tx kv.Tx) error { return last(q.ExtendTx(ctx, tx, lost, 0)) }), layer.ErrClaimLost},
		"Queue.GroupState": {func() error { return last(q.GroupState(ctx, bad)) }, utf8},
		"Queue.Peek":       {func() error { return last(q.Peek(ctx, "A", 0, nil)) }, limit},
		"Queue.Find":       {func() error { return last(q.Find(ctx, "A", "")) }, options},
		"Queue.Replace":    {func() error { return q.Replace(ctx, layer.ID{}, nil, nil) }, id},
		"Queue.ReplaceTx": {in(func(tx kv.Tx) error {
			return q.ReplaceTx(ctx, tx, layer.ID{Group: bad}, nil, nil)
		}), utf8},
		"Queue.Reschedule": {func() error {
			return q.Reschedule(ctx, e.enqueue("late", "x")[0], e.clock.now().Add(layer.MaxDelay+1))
		}, limit},
		"Queue.RescheduleTx": {in(func(tx kv.Tx) error {
			return q.RescheduleTx(ctx, tx, layer.ID{}, time.Time{})
		}), id},
		"Queue.Once":  {func() error { return closed.Once(ctx, func(kv.Tx) error { return nil }) }, layer.ErrClosed},
		"Queue.Stats": {func() error { return last(closed.Stats(ctx, layer.StatsOptions{})) }, layer.ErrClosed},
		"Queue.Close": {func() error {
			other := e.handle(8)
			require.NoError(e.t, last(other.Enqueue(ctx, layer.Message{Group: "Z"}))) // leaves a receipt
			return other.Close(canceled)
		}, context.Canceled},

		"Admin.Cancel":         {func() error { return a.Cancel(ctx, layer.ID{}) }, id},
		"Admin.CancelTx":       {in(func(tx kv.Tx) error { return a.CancelTx(ctx, tx, layer.ID{Group: bad}) }), utf8},
		"Admin.Edit":           {func() error { return a.Edit(ctx, layer.ID{Group: long}, nil) }, limit},
		"Admin.Skip":           {func() error { return last(a.Skip(ctx, "none", layer.SkipOptions{})) }, layer.ErrNoItem},
		"Admin.ForceRelease":   {func() error { return last(a.ForceRelease(ctx, "none", layer.ForceReleaseOptions{})) }, layer.ErrNotHeld},
		"Admin.ForceReleaseTx": {in(func(tx kv.Tx) error { return last(a.ForceReleaseTx(ctx, tx, bad, layer.ForceReleaseOptions{})) }), utf8},
		"Admin.RetryNow":       {func() error { return a.RetryNow(ctx, "none", anyHead) }, layer.ErrNotDelayed},
		"Admin.Pause":          {func() error { return last(a.Pause(ctx, layer.PauseOptions{Force: true})) }, options},
		"Admin.PauseGroup":     {func() error { return last(a.PauseGroup(ctx, long, layer.PauseOptions{})) }, limit},
		"Admin.PauseGroupTx":   {in(func(tx kv.Tx) error { return last(a.PauseGroupTx(ctx, tx, bad, layer.PauseOptions{})) }), utf8},
		"Admin.Resume":         {func() error { return last(a.Resume(ctx, anyMark)) }, layer.ErrNotPaused},
		"Admin.ResumeGroup":    {func() error { return last(a.ResumeGroup(ctx, "none", anyMark)) }, notPaused},
		"Admin.ResumeGroupTx": {in(func(tx kv.Tx) error {
			return last(a.ResumeGroupTx(ctx, tx, long, anyMark))
		}), limit},
		"Admin.Paused":          {func() error { _, _, err := closed.Admin().Paused(ctx); return err }, layer.ErrClosed},
		"Admin.SetGroupState":   {func() error { return a.SetGroupState(ctx, "A", big, layer.SetGroupStateOptions{}) }, limit},
		"Admin.SetGroupStateTx": {in(func(tx kv.Tx) error { return a.SetGroupStateTx(ctx, tx, bad, nil, layer.SetGroupStateOptions{}) }), utf8},
		"Admin.Configure": {func() error {
			_, _, err := a.Configure(ctx, func(c *layer.Config) { c.Delay = -1 })
			return err
		}, limit},
		"Admin.ReadConfig": {func() error { _, _, err := closed.Admin().ReadConfig(ctx); return err }, layer.ErrClosed},
		"Admin.Purge":      {func() error { return last(a.Purge(ctx, layer.PurgeOptions{Group: layer.OnlyGroup(bad)})) }, utf8},
		"Admin.Sweep":      {func() error { return last(a.Sweep(ctx, layer.SweepOptions{Every: -1})) }, limit},
		"Admin.Check":      {func() error { return last(closed.Admin().Check(ctx, layer.CheckOptions{})) }, layer.ErrClosed},
		"Admin.Blocked": {func() error {
			return last(a.Blocked(ctx, layer.BlockedOptions{Limit: layer.MaxBlocked + 1}))
		}, limit},
		"Admin.Holders":        {func() error { return last(closed.Admin().Holders(ctx)) }, layer.ErrClosed},
		"Admin.WhyGroup":       {func() error { return last(a.WhyGroup(ctx, bad, nil)) }, utf8},
		"Admin.Why":            {func() error { return last(a.Why(ctx, layer.ID{}, nil)) }, id},
		"Admin.Group":          {func() error { return last(a.Group(ctx, bad, nil)) }, utf8},
		"Admin.Groups":         {func() error { return last(a.Groups(ctx, layer.GroupsOptions{After: &bad})) }, utf8},
		"Admin.AllGroups":      {func() error { return lastOf(a.AllGroups(ctx, layer.GroupsOptions{Limit: -1})) }, limit},
		"Admin.AllItems":       {func() error { return lastOf(a.AllItems(ctx, bad, nil)) }, utf8},
		"Admin.DeadLetters":    {func() error { return last(a.DeadLetters(ctx, layer.DeadOptions{Limit: -1})) }, limit},
		"Admin.AllDeadLetters": {func() error { return lastOf(a.AllDeadLetters(ctx, layer.DeadOptions{Limit: -1})) }, limit},
		"Admin.Archive":        {func() error { return last(a.Archive(ctx, layer.ArchiveOptions{After: &layer.ID{}})) }, id},
		"Admin.AllArchived":    {func() error { return lastOf(a.AllArchived(ctx, layer.ArchiveOptions{Limit: -1})) }, limit},
		"Admin.Redrive": {func() error {
			return last(a.Redrive(ctx, layer.DeadFilter{IDs: []layer.ID{{}}}, layer.RedriveOptions{}))
		}, id},
		"Admin.RedriveTx": {in(func(tx kv.Tx) error { return a.RedriveTx(ctx, tx, layer.RedriveOptions{DryRun: true}) }), options},
		"Admin.Discard": {func() error {
			return last(a.Discard(ctx, layer.DeadFilter{All: true}, layer.DiscardOptions{Limit: -1}))
		}, limit},
		"Admin.DiscardTx": {in(func(tx kv.Tx) error {
			return a.DiscardTx(ctx, tx, layer.ID{Group: "A", Index: 1, Random: [16]byte{1}})
		}), layer.ErrNotDead},
		"Admin.Replay": {func() error {
			return last(a.Replay(ctx, layer.ArchiveFilter{All: true}, layer.ReplayOptions{Limit: -1}))
		}, limit},

		"Settle, advance": {func() error {
			return q.Settle(ctx, advanceBy(lost, func(*layer.Message) error { return nil }))
		}, layer.ErrClaimLost},
		"SettleTx, advance": {in(func(tx kv.Tx) error {
			return q.SettleTx(ctx, tx, advanceBy(lost, func(*layer.Message) error { return nil }))
		}), layer.ErrClaimLost},
		"Receive by template": {func() error {
			return last(q.Receive(ctx, layer.ReceiveOptions{Where: layer.Template{"state": "NEW"}}))
		}, options},
		"ParseTemplate": {func() error { return last(layer.ParseTemplate("x")) }, options},

		"Queue.Subscribe": {func() error { return q.Subscribe(ctx, "s", nil, layer.SubscribeOptions{}) }, options},
		"Once of nothing": {func() error { return q.Once(ctx, nil) }, options},
		"Edit of nothing": {func() error { return a.Edit(ctx, e.enqueue("late", "x")[0], nil) }, options},
		"Configure of nothing": {func() error {
			_, _, err := a.Configure(ctx, nil)
			return err
		}, options},
		"Queue.SubscribeTx": {func() error {
			handler := func(context.Context, kv.Tx, []layer.Change) error { return nil }
			return q.SubscribeTx(ctx, "", handler, layer.SubscribeOptions{})
		}, limit},
		"Admin.Subscriptions": {func() error { return last(a.Subscriptions(canceled)) }, context.Canceled},
		"Admin.Unsubscribe":   {func() error { return a.Unsubscribe(ctx, "none") }, layer.ErrNoSubscription},

		"Create":      {func() error { return last(layer.Create(ctx, e.db, testPrefix, testQueue, e.options(9))) }, layer.ErrQueueExists},
		"Open":        {func() error { return last(layer.Open(ctx, e.db, testPrefix, "none", e.options(9))) }, layer.ErrNoQueue},
		"Open a name": {func() error { return last(layer.Open(ctx, e.db, testPrefix, "", e.options(9))) }, layer.ErrNoQueueName},
		"Settle all":  {func() error { return finishAll(ctx, q, lost) }, layer.ErrClaimLost},
		"Ensure": {func() error {
			_, _, err := layer.Ensure(ctx, e.db, testPrefix, "", e.options(9))
			return err
		}, layer.ErrNoQueueName},
		"Open poll": {func() error {
			return last(layer.Open(ctx, e.db, testPrefix, "q", layer.Options{Poll: -1}))
		}, limit},
		"Open poll without a unit": {func() error {
			return last(layer.Open(ctx, e.db, testPrefix, testQueue, layer.Options{Poll: 20}))
		}, limit},
		"Drop":      {func() error { return layer.Drop(ctx, e.db, testPrefix, bad, layer.DropOptions{}) }, utf8},
		"Drop none": {func() error { return layer.Drop(ctx, e.db, testPrefix, "none", layer.DropOptions{}) }, layer.ErrNoQueue},
		"Queues":    {func() error { return last(layer.Queues(canceled, e.db, testPrefix)) }, context.Canceled},
		"ParseID":   {func() error { return last(layer.ParseID("x")) }, id},
		"ParseRate": {func() error { return last(layer.ParseRate("x")) }, options},
		"Describe": {func() error {
			_, _, err := layer.Describe(testPrefix, key("lock", "A"), []byte("?"))
			return err
		}, layer.ErrCorrupt},
		"Config.Set":    {func() error { return new(layer.Config).Set("lease", "soon") }, options},
		"UnmarshalJSON": {func() error { return new(layer.Config).UnmarshalJSON([]byte("?")) }, options},
	}
}

// TestErrorsOfEveryCall: the error of every call says what call it was, with the prefix once, and matches a sentinel. A
// new method of Queue or Admin fails this test until it has a row.
func TestErrorsOfEveryCall(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	rows := badCalls(e)
	for _, typ := range []reflect.Type{reflect.TypeFor[*layer.Queue](), reflect.TypeFor[layer.Admin]()} {
		for m := range typ.Methods() {
			name := strings.TrimPrefix(strings.TrimPrefix(typ.String(), "*"), "layer.") + "." + m.Name
			require.True(t, silent[name] != (rows[name].call != nil), "%s: a row, or silent", name)
		}
	}
	for name, row := range rows {
		t.Run(name, func(t *testing.T) {
			err := row.call()
			require.ErrorIs(t, err, row.is)
			require.Regexp(t, prefixed, err.Error())
			require.Equal(t, 1, strings.Count(err.Error(), "layer:"), "%v", err)
			if errors.Is(err, layer.ErrLimit) {
				var limit *layer.LimitError
				require.ErrorAs(t, err, &limit)
			}
		})
	}
	require.LessOrEqual(t, reflect.TypeFor[*layer.Queue]().NumMethod(), 33, "what an operator does is Admin's")
}

// TestErrorOfOnce: Once returns the error of its function unchanged, and the error of a call in the function keeps the
// name of the call.
func TestErrorOfOnce(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	own := errors.New("no seat")
	require.True(t, e.q.Once(e.ctx, func(kv.Tx) error { return own }) == own)
	err := e.q.Once(e.ctx, func(tx kv.Tx) error { return e.q.AckTx(e.ctx, tx, &layer.Claim{Group: "A", Token: 1}) })
	require.EqualError(t, err, `layer: ack: claim lost: group "A", token 1: nobody holds the group: the claim has ended`)
	err = e.q.Admin().Edit(e.ctx, e.enqueue("A", "a1")[0], func(*layer.Message) error {
		return fmt.Errorf("look first: %w", last(e.q.Peek(e.ctx, "A", 0, nil)))
	})
	require.EqualError(t, err, "layer: edit: look first: peek is 0 items, allowed are 1 to 1000", "a call in a call has one prefix")
}

// TestLimitErrorText: durations are printed as durations, and a limit that is none is not printed.
func TestLimitErrorText(t *testing.T) {
	for want, err := range map[string]*layer.LimitError{
		"delay is -1ns, allowed are 0s to 720h0m0s":     {What: "delay", Unit: "ns", Got: -1, Max: int64(layer.MaxDelay)},
		"poll is -1s, allowed are 0s or more":           {What: "poll", Unit: "ns", Got: -1e9, Max: math.MaxInt64},
		"body is 5 bytes, allowed are 0 to 4":           {What: "body", Unit: "bytes", Got: 5, Max: 4},
		"max_waiting is 100001, allowed are 0 to 99999": {What: "max_waiting", Got: 100_001, Max: 99_999},
	} {
		require.EqualError(t, err, want)
	}
}

// TestRejectErrorText: a rejection has a text whatever is left out of it.
func TestRejectErrorText(t *testing.T) {
	expired := errors.New("card expired")
	for want, err := range map[string]error{
		"rejected":                       &worker.RejectError{},
		"rejected: no card":              &worker.RejectError{Reason: "no card"},
		"rejected: card expired":         &worker.RejectError{Err: expired},
		"rejected: schema: card expired": &worker.RejectError{Reason: "schema", Err: expired},
	} {
		require.EqualError(t, err, want)
	}
}

// TestLostClaimText: the error of a lost claim says whether the group is held now.
func TestLostClaimText(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.enqueue("A", "a1", "a2")
	c := e.receive(e.q, 1)
	require.NoError(t, e.q.Ack(e.ctx, c))
	err := e.q.Ack(e.ctx, c)
	require.ErrorIs(t, err, layer.ErrClaimLost)
	require.ErrorContains(t, err, "nobody holds the group: the claim has ended")
	next := e.receive(e.q, 1)
	err = e.q.Ack(e.ctx, c)
	require.ErrorIs(t, err, layer.ErrClaimLost)
	require.ErrorContains(t, err, fmt.Sprintf("the group is held under token %d, by %q", next.Token, "worker-1"))
	require.NoError(t, e.q.Ack(e.ctx, next))
}

// TestFullError: it matches ErrFull, and says which group.
func TestFullError(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.configure(func(c *layer.Config) { c.MaxWaiting = 1 })
	_, err := e.q.Enqueue(e.ctx, layer.Message{Group: "A"}, layer.Message{Group: "A"})
	require.ErrorIs(t, err, layer.ErrFull)
	var full *layer.FullError
	require.ErrorAs(t, err, &full)
	require.Equal(t, layer.FullError{Group: "A", Adding: 2, Max: 1}, *full)
}

// TestLists: the iterators yield the rows of the pages, also over several pages. A loop may end early, and a new loop
// starts again. An iterator ends with the error of a page.
func TestLists(t *testing.T) {
	onEngines(t, func(e *env) {
		e.configure(func(c *layer.Config) { c.Archive = time.Hour })
		const n = 8
		names := make([]string, n)
		for i := range n {
			names[i] = strings.Repeat("\x00", i) // "" is a group, too
			e.enqueue(names[i], "x")
		}
		var archived []string
		for range n / 2 { // finished, and enqueued again
			c := e.receive(e.q, 1)
			require.NoError(e.t, e.q.Ack(e.ctx, c))
			archived = append(archived, c.Group)
			e.enqueue(c.Group, "x")
		}
		dead := e.bury("dead", numbered("d", 7)...)
		e.enqueue("dead", "x")
		a := e.q.Admin()
		for _, size := range []int{1, 2, 3, 7, 100} {
			list(e, a.AllGroups, layer.GroupsOptions{Limit: size}, func(g layer.GroupInfo) string { return g.Group },
				append(append([]string{}, names...), "dead"))
			letters := func(d layer.DeadLetter) layer.ID { return d.ID }
			list(e, a.AllDeadLetters, layer.DeadOptions{Limit: size}, letters, dead)
			list(e, a.AllDeadLetters, layer.DeadOptions{Limit: size, After: &dead[4]}, letters, dead[5:])
			list(e, a.AllArchived, layer.ArchiveOptions{Limit: size}, func(i layer.ArchivedItem) string { return i.ID.Group }, archived)
		}
		items := func(ctx context.Context, group string) iter.Seq2[layer.Item, error] {
			return a.AllItems(ctx, group, nil)
		}
		list(e, items, "many", func(i layer.Item) layer.ID { return i.ID }, e.enqueue("many", numbered("m", 53)...))
		list(e, items, "none", func(i layer.Item) layer.ID { return i.ID }, nil)
		page, err := a.Groups(e.ctx, layer.GroupsOptions{After: layer.OnlyGroup("none"), Limit: 1})
		require.NoError(e.t, err)
		require.Empty(e.t, page.Groups)
		require.Nil(e.t, page.Next)
	})
}

// list reads a list whole, twice, in part, and with an error in its middle.
func list[O, T any, K comparable](
	e *env, all func(ctx context.Context, o O) iter.Seq2[T, error], o O, name func(T) K, want []K,
) {
	e.t.Helper()
	seq := all(e.ctx, o)
	for range 2 {
		var got []K
		for entry, err := range seq {
			require.NoError(e.t, err)
			got = append(got, name(entry))
		}
		require.Equal(e.t, want, got)
	}
	for stop := 1; stop < len(want); stop++ {
		at := 0
		for entry, err := range seq {
			require.NoError(e.t, err)
			require.Equal(e.t, want[at], name(entry))
			if at++; at == stop {
				break
			}
		}
		require.Equal(e.t, stop, at)
	}
	ctx, cancel := context.WithCancel(e.ctx)
	defer cancel()
	var got []K
	var ends []error
	for entry, err := range all(ctx, o) {
		if err != nil {
			ends = append(ends, err)
			require.Zero(e.t, name(entry))
			continue
		}
		require.Empty(e.t, ends, "an error is the last pair")
		got = append(got, name(entry))
		cancel() // the page is there; the next one is not read
	}
	require.Equal(e.t, want[:len(got)], got)
	if len(got) < len(want) {
		require.Len(e.t, ends, 1)
		require.ErrorIs(e.t, ends[0], context.Canceled)
	}
}
