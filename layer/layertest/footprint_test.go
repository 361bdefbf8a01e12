package layer_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/record"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// keyPrinter prints the queue's keys as tuples. Indexes and random ids differ from run to run: they are named
// i1, i2 …, u1, u2 … in the order of their appearance.
type keyPrinter struct {
	prefix  []byte
	indexes map[int64]string
	randoms map[uuid.UUID]string
}

func newKeyPrinter() *keyPrinter {
	return &keyPrinter{prefix: append(append([]byte(nil), testPrefix...), tuple.Tuple{testQueue}.Pack()...),
		indexes: map[int64]string{}, randoms: map[uuid.UUID]string{}}
}

func (p *keyPrinter) print(key []byte) string {
	rest, ok := strings.CutPrefix(string(key), string(p.prefix))
	if !ok {
		return tuple.Printable(key)
	}
	suffix := ""
	t, err := tuple.Unpack([]byte(rest))
	for err != nil || len(t) == 0 {
		// The bound of a range: a tuple and a byte more.
		suffix = tuple.Printable([]byte(rest[len(rest)-1:])) + suffix
		rest = rest[:len(rest)-1]
		t, err = tuple.Unpack([]byte(rest))
	}
	if n := len(t); n > 1 && t[n-1] == nil {
		// A zero byte at the end decodes as nil.
		t, suffix = t[:n-1], `\x00`+suffix
	}
	parts := make([]string, len(t))
	for i, v := range t {
		switch v := v.(type) {
		case string:
			parts[i] = v
			if i > 0 {
				parts[i] = fmt.Sprintf("%q", v)
			}
		case uuid.UUID:
			if p.randoms[v] == "" {
				p.randoms[v] = fmt.Sprintf("u%d", len(p.randoms)+1)
			}
			parts[i] = p.randoms[v]
		case int64:
			parts[i] = fmt.Sprint(v)
			if v == 0 && t[0] == "ready" {
				continue // a bound, or a shard
			}
			if t[0] == "archived" || t[0] == "archive" || t[0] == "hold" || t[0] == "item" || t[0] == "attempt" || t[0] == "dead" || t[0] == "part" && i == 2 || t[0] == "ready" && i == 2 {
				if p.indexes[v] == "" {
					p.indexes[v] = fmt.Sprintf("i%d", len(p.indexes)+1)
				}
				parts[i] = p.indexes[v]
			}
			if t[0] == "timer" && i > 1 { // of a hold
				if p.indexes[v] == "" {
					p.indexes[v] = fmt.Sprintf("i%d", len(p.indexes)+1)
				}
				parts[i] = p.indexes[v]
			} else if t[0] == "timer" {
				parts[i] = time.UnixMilli(v).UTC().Format(time.TimeOnly)
			}
			if t[0] == "count" {
				parts[i] = "slot"
			}
			if t[0] == "change" && i == 3 {
				parts[i] = "row" // counted by the process
			}
		case tuple.Versionstamp:
			// A conflict range begins at the read version, which differs from run to run.
			if parts[i] = "stamp"; !v.Complete() {
				parts[i] = "stamp of the commit"
			}
		default:
			parts[i] = fmt.Sprint(v)
		}
	}
	return "(" + strings.Join(parts, ", ") + ")" + suffix
}

// recorded is an env whose queue runs on a recorder.
func recorded(t *testing.T) (*env, *record.Recorder) {
	e := newEnv(t, anyEngine, false)
	r := record.Wrap(e.raw)
	q, err := layer.Open(e.ctx, r, testPrefix, testQueue, e.options(7))
	require.NoError(t, err)
	e.q = q
	return e, r
}

// unhurried calls measure until a call has taken so little time that its handle has read its configuration no second
// time. A handle does that after half a second, and a loaded machine may take longer.
func unhurried[T any](measure func() T) T {
	for {
		begun := time.Now()
		if result := measure(); time.Since(begun) < 400*time.Millisecond {
			return result
		}
	}
}

// footprints are the operations that testdata/footprints.txt holds the footprints of. Each begins with a setup
// that is not recorded.
var footprints = map[string]struct {
	setup func(e *env) any
	run   func(e *env, given any) error
}{
	"enqueue-empty":    {having(), func(e *env, _ any) error { return enqueueN(e, "A") }},
	"enqueue-nonempty": {having("a1"), func(e *env, _ any) error { return enqueueN(e, "A") }},
	"enqueue-batch":    {having("a1"), func(e *env, _ any) error { return enqueueN(e, "A", "A", "B", "B") }},
	"enqueue-behind-all": {having("a1"), func(e *env, _ any) error {
		a, b := layer.Message{Group: "A", BehindAll: true}, layer.Message{Group: "B", BehindAll: true}
		_, err := e.q.Enqueue(e.ctx, a, b)
		return err
	}},
	"enqueue-large": {having(), func(e *env, _ any) error {
		_, err := e.q.Enqueue(e.ctx, layer.Message{Group: "A", Body: make([]byte, 200_000)})
		return err
	}},
	"enqueue-dedup":             {having("a1"), enqueueOnce("A", "x")},
	"enqueue-duplicate":         {remembering("x", having()), enqueueOnce("B", "x")},
	"enqueue-duplicate-pending": {whilePending(remembering("x", having())), enqueueOnce("B", "x")},
	"sweep-dedup": {func(e *env) any {
		e.sendAs(e.q, "A", "x")
		e.clock.advance(time.Hour)
		return whilePending(remembering("y", having()))(e)
	}, func(e *env, _ any) error { return sweep(e, nil, nil) }},
	"enqueue-bounded":    {bounded(5, having("a1")), func(e *env, _ any) error { return enqueueN(e, "A", "A") }},
	"enqueue-delayed":    {having(), enqueueLate(time.Minute)},
	"receive-early":      {keptBackHint, receiveN(2)},
	"receive-rate":       {rated("5/s", having("a1", "a2")), receiveN(2)},
	"receive-used-up":    {usedUp, receiveN(2)},
	"receive-rate-timer": {func(e *env) any { paced(e); e.clock.advance(time.Minute); return nil }, receiveN(2)},
	"take-rate":          {rated("5/s", having("a1", "a2")), once(take)},
	"take-used-up":       {usedUp, once(take)},
	"ack-and-receive-rate": {rated("1/s", holding(2, 1)), func(e *env, c any) error {
		_, err := e.q.SettleReceive(
			e.ctx, layer.Settlement{Claim: c.(*layer.Claim), FinishAll: true}, layer.ReceiveOptions{Max: 2},
		)
		return err
	}},
	"configure-rate": {paced, func(e *env, _ any) error { return changeRate(e, nil, nil) }},
	"sweep-rate": {func(e *env) any { paced(e); e.clock.advance(time.Minute); return nil }, func(e *env, _ any) error {
		return sweepAll(e, nil, nil)
	}},
	"receive-head-timer": {func(e *env) any { delayedUntil(e); e.clock.advance(time.Hour); return nil }, receiveN(2)},
	"take-early":         {keptBackHint, once(take)},
	"retry-kept-back":    {delayedUntil, alone(retryNow)},
	"receive":            {having("a1", "a2"), receiveN(2)},
	"receive-two-groups": {func(e *env) any {
		e.enqueue("A", "a1")
		e.enqueue("B", "b1", "b2")
		return nil
	}, receiveN(2)},
	"receive-group": {having("a1", "a2"), func(e *env, _ any) error {
		group := "A"
		_, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Max: 2, Group: &group})
		return err
	}},
	"receive-nothing":     {having(), receiveN(10)},
	"receive-stale-empty": {staleEmpty, receiveN(10)},
	"receive-stale-held":  {staleHeld, receiveN(10)},
	"takeover":            {expired(2, 2), receiveN(2)},
	"ack-and-receive": {func(e *env) any {
		c := holding(2, 2)(e)
		e.enqueue("B", "b1")
		return c
	}, func(e *env, c any) error {
		_, err := e.q.SettleReceive(
			e.ctx, layer.Settlement{Claim: c.(*layer.Claim), FinishAll: true}, layer.ReceiveOptions{Max: 2},
		)
		return err
	}},
	"ack-some": {holding(3, 2), func(e *env, c any) error {
		return e.q.AckItems(e.ctx, c.(*layer.Claim), []layer.ID{c.(*layer.Claim).Items[0].ID})
	}},
	"ack-leaves-items": {holding(3, 2), func(e *env, c any) error { return e.q.Ack(e.ctx, c.(*layer.Claim)) }},
	"ack-empties":      {holding(2, 2), func(e *env, c any) error { return e.q.Ack(e.ctx, c.(*layer.Claim)) }},
	"extend": {holding(1, 1), func(e *env, c any) error {
		_, err := e.q.Extend(e.ctx, c.(*layer.Claim), time.Minute)
		return err
	}},
	"nack":           {holding(2, 2), nackWith(layer.NackOptions{})},
	"nack-delay":     {holding(2, 2), nackWith(layer.NackOptions{Delay: time.Minute})},
	"release":        {holding(2, 2), nackWith(layer.NackOptions{Release: true})},
	"release-behind": {holding(2, 2), nackWith(layer.NackOptions{Release: true, Behind: true})},
	"release-from": {holding(3, 3), func(e *env, c any) error {
		claim := c.(*layer.Claim)
		return e.q.Settle(e.ctx, layer.Settlement{
			Claim: claim, Finish: []layer.ID{claim.Items[0].ID},
			Nack: &layer.NackOptions{Release: true, From: &claim.Items[2].ID},
		})
	}},
	"take-leaves-items": {having("a1", "a2"), func(e *env, _ any) error {
		return e.q.Once(e.ctx, func(tx kv.Tx) error {
			_, _, err := e.q.TakeTx(e.ctx, tx, 1, layer.TakeOptions{})
			return err
		})
	}},
	"take-empties": {having("a1", "a2"), func(e *env, _ any) error {
		return e.q.Once(e.ctx, func(tx kv.Tx) error {
			_, _, err := e.q.TakeTx(e.ctx, tx, 2, layer.TakeOptions{})
			return err
		})
	}},
	"nack-dead-letters-item":      {holding(3, 2), nackWith(layer.NackOptions{Reject: "no use"})},
	"nack-dead-letters-last-item": {holding(1, 1), nackWith(layer.NackOptions{Reject: "no use"})},
	"nack-halts-group":            {haltingGroups(holding(2, 2)), nackWith(layer.NackOptions{Reject: "no use"})},
	"takeover-dead-letters-item":  {lastAttempt(2, 2), receiveN(2)},
	"takeover-dead-letters-last":  {lastAttempt(1, 1), receiveN(2)},
	"takeover-halts-group":        {haltingGroups(lastAttempt(2, 2)), receiveN(2)},
	"resume-halted":               {haltedGroup, once(resumeGroup)},
	"redrive":                     {behindDead(having("a1")), once(redriveFirst(layer.RedriveOptions{}))},
	"redrive-held":                {behindDead(holding(1, 1)), once(redriveFirst(layer.RedriveOptions{}))},
	"redrive-to-tail":             {behindDead(having("a1")), once(redriveFirst(layer.RedriveOptions{ToTail: true}))},
	"redrive-all": {deadLetters(2), func(e *env, _ any) error {
		_, err := e.q.Admin().Redrive(e.ctx, layer.DeadFilter{All: true}, layer.RedriveOptions{})
		return err
	}},
	"redrive-dry": {deadLetters(2), func(e *env, _ any) error {
		_, err := e.q.Admin().Redrive(e.ctx, layer.DeadFilter{All: true}, layer.RedriveOptions{DryRun: true})
		return err
	}},
	"discard": {behindDead(having("a1")), once(discardFirst)},
	"dead-letters": {deadLetters(2), func(e *env, _ any) error {
		_, err := e.q.Admin().DeadLetters(e.ctx, layer.DeadOptions{Limit: 1})
		return err
	}},
	"take-of-expired": {expired(2, 1), func(e *env, _ any) error {
		return e.q.Once(e.ctx, func(tx kv.Tx) error {
			_, _, err := e.q.TakeTx(e.ctx, tx, 1, layer.TakeOptions{})
			return err
		})
	}},
	"cancel-head":       {having("a1", "a2"), once(cancelNth(1))},
	"cancel-behind":     {having("a1", "a2"), once(cancelNth(2))},
	"cancel-last":       {having("a1"), once(cancelNth(1))},
	"cancel-in-expired": {expired(2, 2), once(cancelNth(2))},
	"cancel-delayed":    {delayed(2), once(cancelNth(1))},
	"skip":              {having("a1", "a2"), func(e *env, _ any) error { _, err := e.q.Admin().Skip(e.ctx, "A", layer.SkipOptions{}); return err }},
	"edit":              {having("a1"), alone(editNth(1))},
	"replace": {having("a1"), once(func(e *env, tx kv.Tx, _ any) error {
		return e.q.ReplaceTx(e.ctx, tx, nth(e, 1), []byte("new"), nil)
	})},
	"reschedule-head":    {having("a1", "a2"), once(rescheduleNth(1, time.Hour))},
	"reschedule-behind":  {having("a1", "a2"), once(rescheduleNth(2, time.Hour))},
	"reschedule-moved":   {delayedUntil, once(rescheduleNth(1, time.Hour))},
	"reschedule-now":     {delayedUntil, once(rescheduleNth(1, 0))},
	"reschedule-nothing": {having("a1"), once(rescheduleNth(1, 0))},
	"find": {remembering("x", having("a2")), func(e *env, _ any) error {
		_, err := e.q.Find(e.ctx, "", "x")
		return err
	}},
	"force-release": {holding(2, 2), once(forceRelease)},
	"force-release-counted": {holding(2, 2), func(e *env, _ any) error {
		_, err := e.q.Admin().ForceRelease(e.ctx, "A", layer.ForceReleaseOptions{CountAttempt: true})
		return err
	}},
	"retry-now":    {delayed(2), alone(retryNow)},
	"pause-group":  {having("a1"), once(pauseGroup)},
	"pause-held":   {holding(1, 1), once(pauseGroup)},
	"resume-group": {paused(having("a1")), once(resumeGroup)},
	"pause-queue":  {having(), alone(pauseQueue)},
	"resume-queue": {pausedQueue(having("a1")), alone(resumeQueue)},
	"purge-group":  {having("a1", "a2"), func(e *env, _ any) error { return purgeGroup("A", false)(e, nil, nil) }},
	"purge-held":   {holding(3, 2), func(e *env, _ any) error { return purgeGroup("A", false)(e, nil, nil) }},
	"purge-force":  {holding(3, 2), func(e *env, _ any) error { return purgeGroup("A", true)(e, nil, nil) }},
	"receive-state": {having("a1"), func(e *env, _ any) error {
		_, err := e.q.Receive(e.ctx, layer.ReceiveOptions{State: true})
		return err
	}},
	"set-state": {holding(1, 1), func(e *env, c any) error {
		return e.q.Settle(e.ctx, settingState(c.(*layer.Claim), []byte("s")))
	}},
	"ack-state": {holding(1, 1), func(e *env, c any) error {
		return e.q.Settle(e.ctx, ackingState(c.(*layer.Claim), []byte("s")))
	}},
	"set-group-state":    {having("a1"), once(setGroupState)},
	"purge-state":        {withState(having("a1")), func(e *env, _ any) error { return purgeGroup("A", false)(e, nil, nil) }},
	"receive-attempt-id": {having("a1"), receiveNamed},
	"receive-repeated": {func(e *env) any {
		having("a1", "a2")(e)
		require.NoError(e.t, receiveNamed(e, nil))
		return nil
	}, receiveNamed},
	"receive-overdue":              {overdue(false), receiveN(1)},
	"receive-overdue-dead-letters": {overdue(true), receiveN(1)},
	"take-overdue":                 {overdue(false), once(take)},
	"sweep-overdue": {overdue(false), func(e *env, _ any) error {
		_, err := e.q.Admin().Sweep(e.ctx, layer.SweepOptions{})
		return err
	}},
	"enqueue-changes": {telling(func(*env) any { return nil }), func(e *env, _ any) error { return enqueueN(e, "A", "A", "B") }},
	"ack-changes": {telling(holding(2, 2)), func(e *env, c any) error {
		return e.q.Ack(e.ctx, c.(*layer.Claim))
	}},
	"ack-archive": {archiving(holding(2, 2)), func(e *env, c any) error { return e.q.Ack(e.ctx, c.(*layer.Claim)) }},
	"ack-some-archive": {archiving(holding(3, 2)), func(e *env, c any) error {
		return e.q.AckItems(e.ctx, c.(*layer.Claim), []layer.ID{c.(*layer.Claim).Items[0].ID})
	}},
	"take-archive": {archiving(having("a1", "a2")), once(take)},
	"archive": {archivedItems(2), func(e *env, _ any) error {
		_, err := e.q.Admin().Archive(e.ctx, layer.ArchiveOptions{})
		return err
	}},
	"replay": {archivedItems(2), func(e *env, _ any) error {
		_, err := e.q.Admin().Replay(e.ctx, groupA, layer.ReplayOptions{})
		return err
	}},
	"replay-dry": {archivedItems(2), func(e *env, _ any) error {
		_, err := e.q.Admin().Replay(e.ctx, groupA, layer.ReplayOptions{DryRun: true})
		return err
	}},
	"sweep-archive": {func(e *env) any {
		archivedItems(2)(e)
		e.clock.advance(time.Hour)
		return nil
	}, func(e *env, _ any) error { _, err := e.q.Admin().Sweep(e.ctx, layer.SweepOptions{}); return err }},
	"purge-all": {having("a1", "a2"), func(e *env, _ any) error { return purgeAll(e, nil, nil) }},
	"purge-deep": {func(e *env) any {
		e.fill("A", 1001)
		_, err := e.q.Admin().PauseGroup(e.ctx, "B", layer.PauseOptions{}) // so it works in steps
		require.NoError(e.t, err)
		return nil
	}, func(e *env, _ any) error {
		ctx, cancel := context.WithCancel(e.ctx)
		_, err := e.q.Admin().Purge(ctx, layer.PurgeOptions{All: true, Progress: func(layer.PurgeReport) {
			cancel()
		}}) // one step
		require.ErrorIs(e.t, err, context.Canceled)
		return nil
	}},
	"why": {func(e *env) any {
		e.enqueue("B", "b1")
		return e.enqueue("A", "a1", "a2", "a3")[2]
	}, func(e *env, id any) error { _, err := e.q.Admin().Why(e.ctx, id.(layer.ID), nil); return err }},
	"why-held": {func(e *env) any { holding(2, 2)(e); return nth(e, 2) }, func(e *env, id any) error {
		_, err := e.q.Admin().Why(e.ctx, id.(layer.ID), nil)
		return err
	}},
	"why-group": {having("a1"), func(e *env, _ any) error {
		_, err := e.q.Admin().WhyGroup(e.ctx, "A", nil)
		return err
	}},
	"blocked": {func(e *env) any {
		e.enqueue("B", "b1")
		delayed(2)(e)
		_, err := e.q.Admin().PauseGroup(e.ctx, "C", layer.PauseOptions{})
		require.NoError(e.t, err)
		return nil
	}, func(e *env, _ any) error { _, err := e.q.Admin().Blocked(e.ctx, layer.BlockedOptions{}); return err }},
	"sweep": {func(e *env) any {
		e.leaveReceipts(1)
		e.clock.advance(2 * time.Hour)
		return nil
	}, func(e *env, _ any) error { _, err := e.q.Admin().Sweep(e.ctx, layer.SweepOptions{}); return err }},
	"sweep-skipped": {func(e *env) any {
		_, err := e.q.Admin().Sweep(e.ctx, layer.SweepOptions{})
		require.NoError(e.t, err)
		return nil
	}, func(e *env, _ any) error {
		_, err := e.q.Admin().Sweep(e.ctx, layer.SweepOptions{Every: time.Hour})
		return err
	}},
	"receive-paused": {pausedQueue(having("a1")), receiveN(1)},
	"configure": {having(), func(e *env, _ any) error {
		_, _, err := e.q.Admin().Configure(e.ctx, func(c *layer.Config) { c.Lease = time.Minute })
		return err
	}},
	"receive-follows": {having("a1"), func(e *env, _ any) error {
		e.clock.advance(time.Second)
		return receiveN(1)(e, nil)
	}},
	"peek": {having("a1"), func(e *env, _ any) error { _, err := e.q.Peek(e.ctx, "A", 5, nil); return err }},
	"groups": {having("a1"), func(e *env, _ any) error {
		_, err := e.q.Admin().Groups(e.ctx, layer.GroupsOptions{})
		return err
	}},
	"stats": {having("a1"), func(e *env, _ any) error { _, err := e.q.Stats(e.ctx, layer.StatsOptions{}); return err }},
}

func receiveNamed(e *env, _ any) error {
	_, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Max: 1, ReceiveID: "once"})
	return err
}

// configure changes the configuration.
func (e *env) configure(change func(c *layer.Config)) {
	e.t.Helper()
	_, _, err := e.q.Admin().Configure(e.ctx, change)
	require.NoError(e.t, err)
}

var groupA = layer.ArchiveFilter{Group: ptr("A")}

// archiving is setup in a queue with an archive.
func archiving(setup func(e *env) any) func(e *env) any {
	return func(e *env) any {
		e.configure(func(c *layer.Config) { c.Archive = time.Hour })
		return setup(e)
	}
}

func telling(setup func(e *env) any) func(e *env) any {
	return func(e *env) any {
		e.configure(func(c *layer.Config) { c.Changes = time.Hour })
		return setup(e)
	}
}

// archivedItems archives n items of group A.
func archivedItems(n int) func(e *env) any {
	return archiving(func(e *env) any {
		require.NoError(e.t, e.q.Ack(e.ctx, holding(n, n)(e).(*layer.Claim)))
		return nil
	})
}

// overdue has two items in group A that have waited too long, and behind them one that has not.
func overdue(then bool) func(e *env) any {
	return func(e *env) any {
		e.configure(func(c *layer.Config) { c.Retention, c.DeadLetterExpired = time.Minute, then })
		e.enqueue("A", "a1", "a2")
		e.clock.advance(2 * time.Minute)
		e.enqueue("A", "a3")
		return nil
	}
}

// overdueOnly is overdue without the one behind.
func overdueOnly(e *env) any {
	e.configure(func(c *layer.Config) { c.Retention = time.Minute })
	e.enqueue("A", "a1", "a2")
	e.clock.advance(2 * time.Minute)
	return nil
}

// haltingGroups is setup in a queue that halts groups.
func haltingGroups(setup func(e *env) any) func(e *env) any {
	return func(e *env) any {
		e.configure(func(c *layer.Config) { c.OnFailure = layer.HaltGroup })
		return setup(e)
	}
}

// lastAttempt is expired, in a queue where that was the last attempt.
func lastAttempt(n, max int) func(e *env) any {
	return func(e *env) any {
		e.configure(func(c *layer.Config) { c.MaxAttempts = 1 })
		return expiredBy(n, layer.ReceiveOptions{Max: max, MaxGroups: 1, CountExpired: true})(e)
	}
}

// haltedGroup has the group A of two items halted.
func haltedGroup(e *env) any {
	c := haltingGroups(holding(2, 2))(e).(*layer.Claim)
	require.NoError(e.t, e.q.Nack(e.ctx, c, layer.NackOptions{Reject: "no use"}))
	return nil
}

// deadLetters makes n dead letters in group A, which is empty then, and gives their ids.
func deadLetters(n int) func(e *env) any {
	return func(e *env) any {
		bodies := make([]string, n)
		for i := range bodies {
			bodies[i] = fmt.Sprint("dead", i)
		}
		ids := e.enqueue("A", bodies...)
		for range n {
			require.NoError(e.t, e.q.Nack(e.ctx, e.receive(e.q, 1), layer.NackOptions{Reject: "no use"}))
		}
		return ids
	}
}

// once makes an operation of its own of one in a transaction.
func once(op func(e *env, tx kv.Tx, given any) error) func(e *env, given any) error {
	return func(e *env, given any) error {
		return e.q.Once(e.ctx, func(tx kv.Tx) error { return op(e, tx, given) })
	}
}

// alone makes an operation of its own of an operator's call, which begins its transactions itself: see within.
func alone(op func(e *env, tx kv.Tx, given any) error) func(e *env, given any) error {
	return func(e *env, given any) error { return op(e, nil, given) }
}

func enqueueN(e *env, groups ...string) error {
	var msgs []layer.Message
	for _, g := range groups {
		msgs = append(msgs, layer.Message{Group: g, Body: []byte("x")})
	}
	_, err := e.q.Enqueue(e.ctx, msgs...)
	return err
}

// enqueueLate enqueues a message to A that is delayed.
func enqueueLate(d time.Duration) func(e *env, _ any) error {
	return func(e *env, _ any) error {
		_, err := e.q.Enqueue(e.ctx, layer.Message{Group: "A", Body: []byte("late"), Delay: d})
		return err
	}
}

// delayedUntil has a group A whose only message is delayed.
func delayedUntil(e *env) any {
	require.NoError(e.t, enqueueLate(time.Minute)(e, nil))
	return nil
}

// keptBackHint is delayedUntil, with a hint where the timer should be, as the end of a claim leaves it.
func keptBackHint(e *env) any {
	_, err := e.q.Enqueue(e.ctx, layer.Message{Group: "A", Body: []byte("first")},
		layer.Message{Group: "A", Body: []byte("late"), Delay: time.Minute})
	require.NoError(e.t, err)
	require.NoError(e.t, e.q.Ack(e.ctx, e.receive(e.q, 2)))
	return nil
}

// enqueueOnce enqueues a message with a dedup id, in a transaction of its own.
func enqueueOnce(group, id string) func(e *env, _ any) error {
	return func(e *env, _ any) error {
		_, err := e.q.Enqueue(e.ctx, layer.Message{Group: group, DedupID: id})
		return err
	}
}

func receiveN(max int) func(e *env, _ any) error {
	return func(e *env, _ any) error {
		_, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Max: max})
		return err
	}
}

func nackWith(o layer.NackOptions) func(e *env, c any) error {
	return func(e *env, c any) error { return e.q.Nack(e.ctx, c.(*layer.Claim), o) }
}

// sortRanges sorts the lines of the conflict ranges by their text: in the order of the raw keys, receipts would
// change places from run to run.
func sortRanges(footprint string) string {
	lines := strings.SplitAfter(footprint, "\n")
	first := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(l, "=") })
	if first >= 0 {
		slices.Sort(lines[first : len(lines)-1])
	}
	return strings.Join(lines, "")
}

// footprint is what the transactions of an operation read and write.
func footprint(r *record.Recorder, printer *keyPrinter, operation func()) string {
	r.Take()
	before := r.Counters()
	operation()
	count := r.Counters().Sub(before)
	var out strings.Builder
	for _, tx := range r.Take() {
		out.WriteString(sortRanges(record.Footprint(tx, printer.print)))
	}
	fmt.Fprintf(
		&out, "%d key reads, %d range reads, %d mutations\n", count.KeyReads, count.RangeReads, count.Mutations)
	return out.String()
}

// TestFootprints: what each operation reads, with and without conflict, and writes. The lines with = are the
// conflict ranges that the engine made of it.
func TestFootprints(t *testing.T) {
	datadriven.RunTest(t, "testdata/footprints.txt", func(t *testing.T, d *datadriven.TestData) string {
		op, ok := footprints[d.Cmd]
		require.True(t, ok, "%s: no such operation", d.Cmd)
		return unhurried(func() string {
			e, r := recorded(t)
			given := op.setup(e)
			return footprint(r, newKeyPrinter(), func() { require.NoError(t, op.run(e, given)) })
		})
	})
}

// TestBudgets: the design's budgets (section 9) for reads and mutations, counted.
func TestBudgets(t *testing.T) {
	for _, b := range []int{1, 10, 100} {
		for _, left := range []int{0, 1} {
			t.Run(fmt.Sprintf("batches of %d, %d left behind", b, left), func(t *testing.T) {
				type costs struct{ enqueue, claim, ack record.Counters }
				cost := unhurried(func() (cost costs) {
					e, r := recorded(t)
					if left > 0 {
						// A first round, so that receipts are there to be cleared.
						e.enqueue("other", "x")
					}
					step := func(call func()) record.Counters {
						before := r.Counters()
						call()
						return r.Counters().Sub(before)
					}
					bodies := make([]string, b+left)
					cost.enqueue = step(func() { e.enqueue("A", bodies...) })
					var c *layer.Claim
					if left > 0 {
						require.NotNil(t, e.receive(e.q, 1)) // "other"
					}
					cost.claim = step(func() { c = e.receive(e.q, b) })
					require.Len(t, c.Items, b)
					cost.ack = step(func() { require.NoError(t, e.q.Ack(e.ctx, c)) })
					return cost
				})
				require.EqualValues(t, 1, cost.enqueue.KeyReads, "an enqueue reads the tail's key, whatever the batch")
				require.EqualValues(t, 1, cost.enqueue.RangeReads, "the group was empty: the requests, to wake one")
				require.EqualValues(t, 1, cost.claim.KeyReads, "the lock")
				require.EqualValues(t, 3, cost.claim.RangeReads, "the items, the ready hints and the timers")
				require.EqualValues(t, 2, cost.ack.KeyReads, "the lock and the next key")
				require.EqualValues(t, left, cost.ack.RangeReads, "if items are left: the requests, to wake one")

				// Per message 2 + 8/b, plus 3 a transaction.
				mutations := cost.enqueue.Mutations + cost.claim.Mutations + cost.ack.Mutations - int64(left)
				require.LessOrEqual(t, mutations, int64(2*b+8+3*3))
			})
		}
	}
}

// TestEnqueueIntoHeldGroup: an enqueue into a group that is held or waiting writes no hint, and none is missing
// afterwards (I1).
func TestEnqueueIntoHeldGroup(t *testing.T) {
	onEngines(t, func(e *env) {
		c := holding(1, 1)(e).(*layer.Claim)
		e.enqueue("A", "a2")
		require.Empty(e.t, e.rows(kv.PrefixRange(key("ready"))))
		require.NoError(e.t, e.q.Ack(e.ctx, c))
		require.Len(e.t, e.rows(kv.PrefixRange(key("ready"))), 1)
	})
}
