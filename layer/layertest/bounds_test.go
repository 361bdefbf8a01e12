package layer_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/record"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

func refusedForSize(err error) bool {
	switch kv.Code(err) {
	case kv.CodeTransactionTooLarge, kv.CodeKeyTooLarge, kv.CodeValueTooLarge:
		return true
	}
	return false
}

// largest is a queue in which every size that a user may choose is at its maximum; NULs, because each is two bytes in
// a key.
type largest struct {
	*env
	db     *refusals
	q      *layer.Queue
	prefix []byte
	name   string
	config layer.Config
	ids    int // of receives
	sizes  *sizes
}

// The longest names that the layer allows, in bytes.
const (
	longestPrefix    = 1024
	longestName      = 256 // of a queue, an operator or a subscription
	longestReceiveID = 128
)

// nuls is a text of n bytes, nearly all of them NULs, which differs from those with another number.
func nuls(n, number int) string {
	return strings.Repeat("\x00", n-6) + fmt.Sprintf("%06d", number)
}

func (l *largest) options() layer.Options {
	o := l.env.options(7)
	o.Owner, o.Config = nuls(longestName, 1), l.config
	return o
}

func (e *env) largest(config layer.Config) *largest {
	return e.largestIn([]byte(nuls(longestPrefix, 1)), nuls(longestName, 2), config)
}

func (e *env) largestIn(prefix []byte, name string, config layer.Config) *largest {
	config.Retry = atOnce
	l := &largest{env: e, prefix: prefix, name: name, config: config, sizes: newSizes()}
	queue := tuple.AppendString(prefix[:len(prefix):len(prefix)], name)
	l.db = &refusals{DB: e.db, queue: queue, sizes: l.sizes}
	q, err := layer.Create(e.ctx, l.db, l.prefix, l.name, l.options())
	require.NoError(e.t, err)
	require.NoError(e.t, q.Close(e.ctx))
	offset := tuple.AppendString(tuple.AppendString(l.db.queue, "meta"), "offset")
	e.write(func(tx kv.Tx) { tx.Set(offset, tuple.Tuple{longIndex}.Pack()) })
	o := l.options()
	o.Config = layer.Config{}
	l.q, err = layer.Open(e.ctx, l.db, l.prefix, l.name, o)
	require.NoError(e.t, err)
	return l
}

// longIndex makes the numbers in keys as long as they can be.
const longIndex = int64(1) << 60

// message returns the i-th message of a group. All parts except the body have their largest sizes.
func (l *largest) message(group string, i, body int) layer.Message {
	m := layer.Message{
		Group: group, Body: make([]byte, body), DedupID: nuls(layer.MaxDedupIDSize, i),
		Headers: make(map[string]string),
	}
	size := 0
	for _, name := range l.q.Config().Facets {
		m.Headers[name] = nuls(layer.MaxFacetSize, 0)
		size += len(name) + layer.MaxFacetSize
	}
	m.Headers["\x00"] = strings.Repeat("\x00", layer.MaxHeadersSize-size-1)
	return m
}

// bounded requires that there is no error, or one that names the limit.
func (l *largest) bounded(err error, what ...any) (ok bool) {
	l.t.Helper()
	if err != nil {
		require.ErrorIs(l.t, err, layer.ErrLimit, what...)
		require.Zero(l.t, kv.Code(err), what...)
	}
	return err == nil
}

// enqueue enqueues all, in batches as large as the queue allows.
func (l *largest) enqueue(msgs ...layer.Message) []layer.ID {
	l.t.Helper()
	var ids []layer.ID
	for n := len(msgs); len(msgs) > 0; {
		n = min(n, len(msgs))
		sent, err := l.q.Enqueue(l.ctx, msgs[:n]...)
		if !l.bounded(err, "enqueue of %d", n) {
			require.Greater(l.t, n, 1, "a single message is enqueued: %v", err)
			n /= 2
			continue
		}
		ids, msgs = append(ids, idsOf(sent)...), msgs[n:]
	}
	return ids
}

// fill enqueues so many messages into each of so many groups.
func (l *largest) fill(groups, each int) []string {
	l.t.Helper()
	names := make([]string, groups)
	var msgs []layer.Message
	for g := range groups {
		names[g] = nuls(layer.MaxGroupSize, g)
		for i := range each {
			msgs = append(msgs, l.message(names[g], g*each+i, 0))
		}
	}
	l.enqueue(msgs...)
	return names
}

// most is the receive that asks for all there can be.
func most() layer.ReceiveOptions {
	return layer.ReceiveOptions{Max: layer.MaxBatch, MaxBytes: 1 << 30}
}

// drain receives with o until nothing is left, at least one claim each time, and acks.
func (l *largest) drain(o layer.ReceiveOptions, want int) {
	l.t.Helper()
	items := 0
	for {
		if o.ReceiveID != "" {
			l.ids++
			o.ReceiveID = nuls(longestReceiveID, l.ids)
		}
		claims, err := l.q.Receive(l.ctx, o)
		require.NoError(l.t, err)
		if o.ReceiveID != "" && len(claims) > 0 {
			again, err := l.q.Receive(l.ctx, o)
			require.NoError(l.t, err)
			require.Len(l.t, again, len(claims), "the repetition gets what the first got")
		}
		if len(claims) == 0 {
			break
		}
		for _, c := range claims {
			items += len(c.Items)
		}
		require.NoError(l.t, finishAll(l.ctx, l.q, claims...))
	}
	require.Equal(l.t, want, items)
}

// check holds the queue to its invariants.
func (l *largest) check() {
	l.t.Helper()
	o := l.options()
	o.Config = layer.Config{}
	calm, err := layer.Open(l.ctx, l.raw, l.prefix, l.name, o)
	require.NoError(l.t, err)
	report, err := calm.Admin().Check(l.ctx, layer.CheckOptions{})
	require.NoError(l.t, err)
	require.Empty(l.t, report.Violations)
	require.NoError(l.t, calm.Close(l.ctx))
}

// kinds are the queues of TestBoundsAtTheLimit.
func kinds() map[string]layer.Config {
	facets := make([]string, 4)
	for i := range facets {
		facets[i] = nuls(layer.MaxFacetSize, i)
	}
	keep := layer.Config{
		Changes: time.Hour, Archive: time.Hour, DedupForPending: true, DedupInGroup: true,
		RetroactiveDelay: true, MaxAttempts: 2,
	}
	plain, lanes, unordered, perItem := keep, keep, keep, keep
	plain.MaxRate = layer.Rate{Count: 1_000_000, Per: time.Second}
	lanes.Facets = facets
	lanes.Views = "*"
	for n := 4; n > 1; n-- {
		lanes.Views += "; " + strings.Join(facets[:n], ",")
	}
	unordered.Unordered = true
	perItem.LeasePerItem = true
	return map[string]layer.Config{"plain": plain, "facets": lanes, "unordered": unordered, "lease per item": perItem}
}

// TestBoundsAtTheLimit (contract): with every size that users may choose at its maximum, every operation is done, or
// refused with an error that says the limit. A receive is never refused: it gives fewer. And the layer knows the limits
// beforehand: no transaction of its own is refused by the database for its size.
//
// The largest rows and transactions of all verbs are those of the tables in docs/guarantees.md.
func TestBoundsAtTheLimit(t *testing.T) {
	all := newSizes()
	t.Run("queue", func(t *testing.T) {
		for name, config := range kinds() {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				for verb, run := range map[string]func(l *largest){
					"receive": boundsOfReceive, "ack": boundsOfAck, "transaction": boundsOfTx,
					"operator": boundsOfOperator, "jobs": boundsOfJobs, "advance": boundsOfAdvance,
					"wait": boundsOfWait,
				} {
					t.Run(verb, func(t *testing.T) {
						t.Parallel()
						l := newEnv(t, anyEngine, false).largest(config)
						run(l)
						l.finished(all)
					})
				}
			})
		}
		for name, facets := range map[string][]string{
			"short names": nil, "short names and facets": kinds()["facets"].Facets,
		} {
			t.Run(name, func(t *testing.T) {
				t.Parallel()
				config := layer.Config{Archive: time.Hour, Facets: facets}
				if facets != nil {
					config.Views = "*"
				}
				l := newEnv(t, anyEngine, false).largestIn(nil, "Q", config)
				boundsOfClaim(l)
				l.finished(all)
			})
		}
	})
	t.Run("look", func(t *testing.T) {
		lanes := kinds()["facets"]
		l := newEnv(t, anyEngine, false).largestIn(nil, "Q", layer.Config{Facets: lanes.Facets, Views: lanes.Views})
		all.note(all.calls, "look at a lane", boundsOfLook(l))
		l.finished(all)
	})
	// A grant is written only when handles compete for a group.
	value := nuls(layer.MaxFacetSize, 0)
	grant := tuple.Tuple{"grant", uuid.Max, nuls(layer.MaxGroupSize, 0), 1, value, value, value, value}.Pack()
	all.note(all.keys, "grant", longestPrefix+2*longestName+2+len(grant))
	if part := strings.Contains(flag.Lookup("test.run").Value.String(), "/"); !part { // a part does not write all rows
		all.compare(t)
	}
}

// finished ends a run, and adds its sizes.
func (l *largest) finished(all *sizes) {
	l.t.Helper()
	require.Zero(l.t, l.db.n.Load(), "the database has refused a transaction for its size")
	l.check()
	require.NoError(l.t, l.q.Close(l.ctx))
	all.join(l.sizes)
}

// boundsOfClaim makes the largest claim: the names of the queue and the group are short, so that it has most messages.
func boundsOfClaim(l *largest) {
	msgs := make([]layer.Message, layer.MaxBatch)
	for i := range msgs {
		msgs[i] = layer.Message{Group: "G", Headers: make(map[string]string)}
		for _, facet := range l.q.Config().Facets {
			msgs[i].Headers[facet] = nuls(layer.MaxFacetSize, i)
		}
	}
	l.enqueue(msgs...)
	for left := len(msgs); left > 0; {
		claims, err := l.q.Receive(l.ctx, most())
		require.NoError(l.t, err)
		require.Len(l.t, claims, 1)
		left -= len(claims[0].Items)
		a := l.q.Admin().As(nuls(longestName, 3))
		_, err = a.PauseGroup(l.ctx, "G", layer.PauseOptions{Reason: nuls(1000, 1)}) // while it has the claim
		require.NoError(l.t, err)
		require.NoError(l.t, l.q.Ack(l.ctx, claims[0]))
		_, err = a.ResumeGroup(l.ctx, "G", layer.ResumeOptions{})
		require.NoError(l.t, err)
	}
}

// boundsOfLook holds 30 lanes of a group in flight, with as many messages each as a claim can have, and returns how
// many bytes a receive of another lane reads. The lanes are by the two larger views, and exclude the lane of the
// smallest.
func boundsOfLook(l *largest) int {
	facets := l.q.Config().Facets
	value := func(i int) string { return nuls(layer.MaxFacetSize, i) }
	for lane := range 30 {
		where := make(layer.Template)
		for _, facet := range facets[:3+lane%2] {
			where[facet] = value(0)
		}
		where[facets[2]] = value(lane)
		for filled := 0; filled < 2; filled++ {
			msgs := make([]layer.Message, 200)
			for i := range msgs {
				msgs[i] = layer.Message{Group: "G", Headers: map[string]string{facets[3]: value(0)}}
				for facet, v := range where {
					msgs[i].Headers[facet] = v
				}
			}
			l.enqueue(msgs...)
		}
		o := most()
		o.Where = where
		claims, err := l.q.Receive(l.ctx, o)
		require.NoError(l.t, err)
		require.Len(l.t, claims, 1)
		require.Less(l.t, len(claims[0].Items), 400, "a claim is full")
	}
	counting := record.WrapCounting(l.raw)
	o := l.options()
	o.Config = layer.Config{}
	q, err := layer.Open(l.ctx, counting, l.prefix, l.name, o)
	require.NoError(l.t, err)
	before := counting.Counters()
	claims, err := q.Receive(l.ctx, layer.ReceiveOptions{
		Group: layer.OnlyGroup("G"), Where: layer.Template{facets[0]: value(0), facets[1]: value(0)}, Max: 1,
	})
	require.NoError(l.t, err)
	require.Empty(l.t, claims)
	require.NoError(l.t, q.Close(l.ctx))
	return int(counting.Counters().Sub(before).BytesRead)
}

// wheres returns the ways to receive from the queue: whole groups, and all others.
func (l *largest) wheres() []func(o *layer.ReceiveOptions) {
	all := []func(o *layer.ReceiveOptions){func(*layer.ReceiveOptions) {}}
	c := l.q.Config()
	for _, n := range []int{4, 3, 2} {
		if len(c.Facets) > 0 {
			where := make(layer.Template)
			for _, facet := range c.Facets[:n] {
				where[facet] = nuls(layer.MaxFacetSize, 0)
			}
			all = append(all, func(o *layer.ReceiveOptions) { o.Where = where })
		}
	}
	if c.Unordered {
		all = append(all, func(o *layer.ReceiveOptions) { o.Unordered = true })
	}
	return all
}

func boundsOfReceive(l *largest) {
	groups := 200 // more than one transaction can claim
	for _, where := range l.wheres() {
		o := most()
		where(&o)
		l.fill(groups, 1)
		claims, err := l.q.Receive(l.ctx, o)
		require.NoError(l.t, err)
		require.GreaterOrEqual(l.t, len(claims), 40, "a receive uses what a transaction can hold")
		require.NoError(l.t, finishAll(l.ctx, l.q, claims...))
		l.drain(o, groups-len(claims))

		l.fill(1, 100)
		l.drain(o, 100)

		o.ReceiveID, groups = "id", 60
		l.fill(60, 1)
		l.drain(o, 60)
		if o.ReceiveID = ""; o.Unordered || len(o.Where) > 2 {
			continue
		}
		for _, strategy := range []layer.Strategy{layer.Heads, layer.Layers} {
			o.Strategy = strategy
			l.fill(30, 2)
			l.drain(o, 60)
		}
	}
	c := l.q.Config()
	if len(c.Facets) == 0 && !c.Unordered && !c.LeasePerItem {
		o := most()
		o.Heartbeat = true
		l.fill(100, 1)
		l.drain(o, 100)
	}
	// Bodies: whatever MaxBytes allows, a receive reads no more than fits into its time.
	for i := range 5 {
		l.enqueue(l.message(nuls(layer.MaxGroupSize, i), i, layer.MaxBodySize-layer.MaxHeadersSize))
	}
	l.drain(most(), 5)
}

func boundsOfAck(l *largest) {
	groups := l.fill(3, 60)
	for _, group := range groups {
		state := make([]byte, layer.MaxStateSize)
		require.NoError(l.t, l.q.Admin().SetGroupState(l.ctx, group, state, layer.SetGroupStateOptions{}))
	}
	o := most()
	o.State = !l.q.Config().LeasePerItem
	long := errors.New(nuls(4096, 1))
	for round := 0; ; round++ {
		claims, err := l.q.Receive(l.ctx, o)
		require.NoError(l.t, err)
		if len(claims) == 0 {
			require.Positive(l.t, round)
			break
		}
		for i, c := range claims {
			_, err := l.q.Extend(l.ctx, c, layer.MaxLease)
			require.NoError(l.t, err)
			if c.Hold == (layer.ID{}) {
				require.NoError(l.t, l.q.Settle(l.ctx, settingState(c, make([]byte, layer.MaxStateSize))))
			}
			switch i % 4 {
			case 0: // every other one
				var ids []layer.ID
				for j := 0; j < len(c.Items); j += 2 {
					ids = append(ids, c.Items[j].ID)
				}
				require.NoError(l.t, l.q.AckItems(l.ctx, c, ids))
				if len(c.Items) > 0 {
					require.NoError(l.t, l.q.Nack(l.ctx, c, layer.NackOptions{Err: long}))
				}
			case 1:
				_, err := l.q.SettleReceive(
					l.ctx, layer.Settlement{Claim: c, FinishAll: true}, layer.ReceiveOptions{Max: 1},
				)
				require.NoError(l.t, err)
			case 2:
				require.NoError(l.t, l.q.Nack(l.ctx, c, layer.NackOptions{Err: long, Reject: nuls(4096, 2)}))
			default:
				require.NoError(l.t, l.q.Ack(l.ctx, c))
			}
		}
		l.clock.advance(2 * layer.MaxLease) // what SettleReceive has claimed comes back
	}
}

// boundsOfTx does as much in a transaction of the caller's as goes in, until the layer says that no more does; and
// then commits as much as that.
func boundsOfTx(l *largest) {
	most := func(what string, do func(tx kv.Tx, n int) (int, error)) (done int) {
		l.t.Helper()
		for fits := -1; ; {
			err := l.q.Once(l.ctx, func(tx kv.Tx) error {
				for done = 0; done != fits; {
					n, err := do(tx, done)
					if err != nil {
						return err
					}
					if done += n; n == 0 {
						break
					}
				}
				return nil
			})
			if l.bounded(err, what) {
				require.Positive(l.t, done, what)
				return done
			}
			fits = done
		}
	}
	l.fill(250, 1)
	require.Less(l.t, most("receive", func(tx kv.Tx, _ int) (int, error) {
		claims, err := l.q.ReceiveTx(l.ctx, tx, layer.ReceiveOptions{Max: 10})
		return len(claims), err
	}), 250)
	l.clock.advance(time.Hour)
	require.Less(l.t, most("take", func(tx kv.Tx, _ int) (int, error) {
		items, _, err := l.q.TakeTx(l.ctx, tx, layer.MaxBatch, layer.TakeOptions{})
		return len(items), err
	}), 250)
	var claims []*layer.Claim
	for {
		more, err := l.q.Receive(l.ctx, layer.ReceiveOptions{Max: layer.MaxBatch})
		require.NoError(l.t, err)
		if len(more) == 0 {
			break
		}
		claims = append(claims, more...)
	}
	most("ack", func(tx kv.Tx, n int) (int, error) {
		if n == len(claims) {
			return 0, nil
		}
		return 1, l.q.AckTx(l.ctx, tx, claims[n])
	})
	most("enqueue", func(tx kv.Tx, n int) (int, error) {
		_, err := l.q.EnqueueTx(l.ctx, tx, l.message(nuls(layer.MaxGroupSize, n), 1000+n, 200_000))
		return 1, err
	})
}

func boundsOfOperator(l *largest) {
	a := l.q.Admin().As(nuls(longestName, 3))
	groups := l.fill(3, 3)
	reason := nuls(1000, 1)
	for _, group := range groups {
		_, err := a.PauseGroup(l.ctx, group, layer.PauseOptions{Reason: reason})
		require.NoError(l.t, err)
		info, err := a.Group(l.ctx, group, nil)
		require.NoError(l.t, err)
		require.Equal(l.t, reason, info.Mark.Reason)
		why, err := a.WhyGroup(l.ctx, group, nil)
		require.NoError(l.t, err)
		require.NotEmpty(l.t, why.Reasons)
	}
	_, err := a.Pause(l.ctx, layer.PauseOptions{Reason: reason})
	require.NoError(l.t, err)
	_, err = a.Resume(l.ctx, layer.ResumeOptions{})
	require.NoError(l.t, err)
	blocked, err := a.Blocked(l.ctx, layer.BlockedOptions{})
	require.NoError(l.t, err)
	require.NotEmpty(l.t, blocked.Groups)
	items, err := l.q.Peek(l.ctx, groups[0], layer.MaxBatch, nil)
	require.NoError(l.t, err)
	require.Len(l.t, items, 3)
	body := make([]byte, layer.MaxBodySize)
	require.NoError(l.t, a.Edit(l.ctx, items[0].ID, func(m *layer.Message) error { m.Body = body; return nil }))
	require.NoError(l.t, l.q.Replace(l.ctx, items[1].ID, body, items[1].Headers))
	require.NoError(l.t, l.q.Reschedule(l.ctx, items[2].ID, l.clock.now().Add(time.Hour)))
	found, err := l.q.Find(l.ctx, groups[0], items[0].DedupID)
	require.NoError(l.t, err)
	require.Equal(l.t, items[0].ID, found.ID)
	_, err = a.Why(l.ctx, items[2].ID, nil)
	require.NoError(l.t, err)
	require.NoError(l.t, a.Cancel(l.ctx, items[2].ID))
	_, err = a.Skip(l.ctx, groups[0], layer.SkipOptions{Reason: reason})
	require.NoError(l.t, err)
	for _, group := range groups {
		_, err := a.ResumeGroup(l.ctx, group, layer.ResumeOptions{})
		require.NoError(l.t, err)
	}
	claims, err := l.q.Receive(l.ctx, most())
	require.NoError(l.t, err)
	_, err = a.PauseGroup(l.ctx, claims[0].Group, layer.PauseOptions{Reason: reason}) // while it has a claim
	require.NoError(l.t, err)
	_, err = a.ForceRelease(l.ctx, claims[0].Group, layer.ForceReleaseOptions{
		CountAttempt: true, Reason: reason, Hold: claims[0].Hold,
	})
	require.NoError(l.t, err)
	_, err = a.ResumeGroup(l.ctx, claims[0].Group, layer.ResumeOptions{})
	require.NoError(l.t, err)
	_, err = a.Holders(l.ctx)
	require.NoError(l.t, err)
	page, err := a.Groups(l.ctx, layer.GroupsOptions{Limit: layer.MaxBatch})
	require.NoError(l.t, err)
	require.Len(l.t, page.Groups, 3)
	_, _, err = a.Configure(l.ctx, func(c *layer.Config) { c.Shards = 64 })
	require.NoError(l.t, err)
	_, err = l.q.Stats(l.ctx, layer.StatsOptions{})
	require.NoError(l.t, err)
	l.changes()
}

// changes reads all changes by a subscription with the longest name.
func (l *largest) changes() {
	l.t.Helper()
	ctx, cancel := context.WithTimeout(l.ctx, time.Minute)
	defer cancel()
	n := 0
	err := l.q.Subscribe(ctx, nuls(longestName, 1), func(_ context.Context, all []layer.Change) error {
		n += len(all)
		cancel()
		return nil
	}, layer.SubscribeOptions{FromOldest: true})
	require.NoError(l.t, err)
	require.Positive(l.t, n)
}

func boundsOfJobs(l *largest) {
	a := l.q.Admin()
	// Dead letters: all at once, past retention, and each with the longest reason.
	groups := l.fill(4, 60)
	_, _, err := a.Configure(l.ctx, func(c *layer.Config) {
		c.Retention, c.DeadLetterExpired = time.Second, true
	})
	require.NoError(l.t, err)
	l.clock.advance(time.Hour)
	l.drain(most(), 0)
	_, _, err = a.Configure(l.ctx, func(c *layer.Config) { c.Retention = 0 })
	require.NoError(l.t, err)
	dead := 0
	var some []layer.ID
	for d, err := range a.AllDeadLetters(l.ctx, layer.DeadOptions{}) {
		require.NoError(l.t, err)
		dead++
		some = append(some, d.ID)
	}
	require.Equal(l.t, 240, dead)
	report, err := a.Redrive(l.ctx, layer.DeadFilter{IDs: some[:100]}, layer.RedriveOptions{})
	require.NoError(l.t, err)
	require.EqualValues(l.t, 100, report.Done)
	report, err = a.Redrive(l.ctx, layer.DeadFilter{Group: &groups[2]}, layer.RedriveOptions{ToTail: true})
	require.NoError(l.t, err)
	require.EqualValues(l.t, 60, report.Done)
	require.NoError(l.t, l.q.Once(l.ctx, func(tx kv.Tx) error {
		err := a.RedriveTx(l.ctx, tx, layer.RedriveOptions{}, some[180:]...)
		if kv.Code(err) == kv.CodeTransactionTooOld {
			return err // a slow machine: Once runs it again
		}
		l.bounded(err)
		return nil
	}))
	_, err = a.Discard(l.ctx, layer.DeadFilter{All: true}, layer.DiscardOptions{})
	require.NoError(l.t, err)
	// The archive, and back.
	o := most()
	for {
		claims, err := l.q.Receive(l.ctx, o)
		require.NoError(l.t, err)
		if len(claims) == 0 {
			break
		}
		require.NoError(l.t, finishAll(l.ctx, l.q, claims...))
	}
	archived := 0
	for _, err := range a.AllArchived(l.ctx, layer.ArchiveOptions{}) {
		require.NoError(l.t, err)
		archived++
	}
	require.GreaterOrEqual(l.t, archived, 160)
	replayed, err := a.Replay(l.ctx, layer.ArchiveFilter{Group: &groups[0]}, layer.ReplayOptions{})
	require.NoError(l.t, err)
	require.EqualValues(l.t, 60, replayed.Done)
	_, err = a.Purge(l.ctx, layer.PurgeOptions{Group: &l.fill(1, 1)[0]})
	require.NoError(l.t, err)
	l.fill(100, 1)
	purged, err := a.Purge(l.ctx, layer.PurgeOptions{All: true})
	require.NoError(l.t, err)
	require.Positive(l.t, purged.Items)
	l.clock.advance(24 * time.Hour)
	_, err = a.Sweep(l.ctx, layer.SweepOptions{})
	require.NoError(l.t, err)
}

func boundsOfAdvance(l *largest) {
	if l.q.Config().LeasePerItem {
		return // an item under a claim of its own is not advanced
	}
	l.fill(1, 20)
	claims, err := l.q.Receive(l.ctx, most())
	require.NoError(l.t, err)
	require.Len(l.t, claims, 1)
	grow := func(m *layer.Message) error { m.Body = make([]byte, layer.MaxBodySize); return nil }
	c := claims[0]
	require.False(l.t, l.bounded(l.q.Settle(l.ctx, advanceBy(c, grow))), "%d bodies of 4 MiB", len(c.Items))
	ids := make([]layer.ID, 0, len(c.Items))
	for _, item := range c.Items {
		ids = append(ids, item.ID)
	}
	require.NoError(l.t, l.q.Settle(l.ctx, advanceBy(c, grow, ids[0])), "one alone")
	for two := range slices.Chunk(ids[1:], 2) { // as many as a transaction can hold
		require.NoError(l.t, l.q.Settle(l.ctx, advanceBy(c, grow, two...)), "two at a time")
	}
	l.drain(most(), 20)
}

// boundsOfWait: receives that wait, by every kind of request, are woken.
func boundsOfWait(l *largest) {
	group := nuls(layer.MaxGroupSize, 1)
	var all []layer.ReceiveOptions
	for _, where := range l.wheres() {
		o := layer.ReceiveOptions{Max: 1, Wait: time.Minute}
		where(&o)
		all = append(all, o)
		if o.Group = &group; !o.Unordered {
			all = append(all, o)
		}
	}
	o := l.options()
	o.Config, o.Test.Seed = layer.Config{}, o.Test.Seed+1
	waiting, err := layer.Open(l.ctx, l.db, l.prefix, l.name, o)
	require.NoError(l.t, err)
	defer func() { require.NoError(l.t, waiting.Close(l.ctx)) }()
	got := make(chan error, len(all))
	for _, o := range all {
		go func() {
			claims, err := waiting.Receive(l.ctx, o)
			if err == nil && len(claims) == 0 {
				err = errors.New("nothing")
			}
			if err == nil {
				err = waiting.Ack(l.ctx, claims[0])
			}
			got <- err
		}()
	}
	requests := []string{"reqgroup"}
	if requests = append(requests, "request"); len(l.q.Config().Facets) > 0 {
		requests[1] = "reqlane"
	}
	require.Eventually(l.t, func() bool {
		return !slices.ContainsFunc(requests, func(name string) bool {
			section, _ := layer.Section(l.prefix, l.name, name)
			return len(l.rows(section)) == 0
		})
	}, time.Minute, time.Millisecond)
	for i := range all {
		l.enqueue(l.message(group, i, 0))
	}
	for range all {
		require.NoError(l.t, <-got)
	}
}

// TestStepsThatAreTooLarge (contract): a step of large work that the database refuses for its size is done with fewer
// rows. The letters are small, and their keys are not.
func TestStepsThatAreTooLarge(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	l := e.largest(kinds()["facets"])
	a := l.q.Admin()
	group, letters := nuls(layer.MaxGroupSize, 1), 120
	msgs := make([]layer.Message, letters)
	for i := range msgs {
		msgs[i] = l.message(group, i, 0)
		delete(msgs[i].Headers, "\x00")
	}
	l.enqueue(msgs...)
	_, _, err := a.Configure(l.ctx, func(c *layer.Config) {
		c.Retention, c.DeadLetterExpired = time.Second, true
	})
	require.NoError(t, err)
	e.clock.advance(time.Hour)
	l.drain(most(), 0)
	_, _, err = a.Configure(l.ctx, func(c *layer.Config) { c.Retention = 0 })
	require.NoError(t, err)
	report, err := a.Redrive(l.ctx, layer.DeadFilter{All: true}, layer.RedriveOptions{})
	require.NoError(t, err)
	require.EqualValues(t, letters, report.Done)
	require.Positive(t, l.db.n.Load(), "a step was too large")
	l.drain(most(), letters)
	l.check()
}

// TestSmallTransactionsMakeProgress (contract): a handle has a small limit of a transaction. A pause by force, a resume
// and a sweep of a group with many lanes or holds end: they are done, or the database refuses a transaction for its
// size.
func TestSmallTransactionsMakeProgress(t *testing.T) {
	const lanes, most = 4, 200 // transactions
	done := 0
	for n := range 80 {
		limit, force := 500+1_250*(n/2), n%2 == 0
		for _, kind := range []string{"facets", "unordered"} {
			config := kinds()[kind]
			config.OnFailure, config.Retention, config.Lease = layer.DeadLetterItem, time.Minute, time.Second
			l := newEnv(t, inMemory, false).largest(config)
			for i := range lanes {
				headers := make(map[string]string)
				for _, facet := range config.Facets {
					headers[facet] = fmt.Sprint("v", i)
				}
				l.enqueue(layer.Message{Group: "G", Headers: headers})
				o := layer.ReceiveOptions{Max: 1, Unordered: config.Unordered}
				if !o.Unordered {
					o.Where = headers
				}
				claims, err := l.q.Receive(l.ctx, o)
				require.NoError(t, err)
				require.Len(t, claims, 1)
			}
			ctx, cancel := context.WithCancel(l.ctx)
			db := &endingDB{DB: l.db, left: 1000, cancel: cancel}
			o := l.options()
			o.Config, o.Tx.SizeLimit = layer.Config{}, limit
			q, err := layer.Open(ctx, db, l.prefix, l.name, o)
			require.NoError(t, err)
			step := func(call func(a layer.Admin) error) {
				db.left = most
				err := call(q.Admin())
				if err == nil {
					done++
				} else if !errors.Is(err, layer.ErrLimit) && !errors.Is(err, layer.ErrNotPaused) {
					require.True(t, refusedForSize(err), "%s, %d bytes: %v", kind, limit, err)
				}
			}
			if force { // so the call begins with the claims
				_, err := l.q.Admin().PauseGroup(ctx, "G", layer.PauseOptions{})
				require.NoError(t, err)
			}
			step(func(a layer.Admin) error {
				_, err := a.PauseGroup(ctx, "G", layer.PauseOptions{Force: force})
				return err
			})
			step(func(a layer.Admin) error {
				_, err := a.ResumeGroup(ctx, "G", layer.ResumeOptions{})
				return err
			})
			l.clock.advance(time.Hour)
			step(func(a layer.Admin) error {
				_, err := a.Sweep(ctx, layer.SweepOptions{})
				return err
			})
			cancel()
			l.check()
		}
	}
	require.Greater(t, done, 6)
}

// TestReceiveAsksForLess (contract): a receive whose transaction the database refuses for its size asks for less, and
// gets at least one message. Here the handle's own limit of a transaction is below the lock of a claim of 1,000
// messages.
func TestReceiveAsksForLess(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.enqueue("A", make([]string, layer.MaxBatch)...)
	o := e.options(2)
	o.Tx.SizeLimit = 20_000
	db := &refusals{DB: e.db}
	q, err := layer.Open(e.ctx, db, testPrefix, testQueue, o)
	require.NoError(t, err)
	got := 0
	for got < layer.MaxBatch {
		c := e.receive(q, layer.MaxBatch)
		require.NotNil(t, c)
		got += len(c.Items)
		require.NoError(t, q.Ack(e.ctx, c))
	}
	require.Positive(t, db.n.Load(), "a receive was too large")
	_, err = q.Enqueue(e.ctx, layer.Message{Group: "A", Body: make([]byte, 30_000)})
	var limit *layer.LimitError
	require.ErrorAs(t, err, &limit)
	require.EqualValues(t, 20_000, limit.Max)
	require.Greater(t, limit.Got, limit.Max)
	require.NoError(t, q.Close(e.ctx))
}

// TestManyPartsOfAGroup (contract): an operator pauses by force, resumes and purges a group of which more lanes are in
// flight, or halted, than one transaction can change. Each call holds for all lanes. The large lanes have the largest
// names, in transactions of a tenth of the usual size.
func TestManyPartsOfAGroup(t *testing.T) {
	for _, c := range []struct {
		kind  string
		parts int
		large bool
	}{{"facets", 25, true}, {"unordered", 25, true}, {"facets", 150, false}, {"unordered", 150, false}} {
		t.Run(fmt.Sprintf("%s, large %v", c.kind, c.large), func(t *testing.T) {
			t.Parallel()
			config := kinds()[c.kind]
			if c.kind == "facets" {
				config.OnFailure = layer.HaltGroup
			}
			l := newEnv(t, anyEngine, false).largest(config)
			o, group := l.options(), "G"
			o.Config = layer.Config{}
			if c.large {
				o.Tx.SizeLimit, group = kv.MaxTransactionSize/10, nuls(layer.MaxGroupSize, 0)
			}
			require.NoError(t, l.q.Close(l.ctx))
			var err error
			l.q, err = layer.Open(l.ctx, l.db, l.prefix, l.name, o)
			require.NoError(t, err)
			a, msgs := l.q.Admin(), make([]layer.Message, c.parts)
			for i := range msgs {
				msgs[i] = layer.Message{Group: group, Headers: make(map[string]string)}
				for _, facet := range config.Facets {
					if msgs[i].Headers[facet] = fmt.Sprint("v", i); c.large {
						msgs[i].Headers[facet] = nuls(layer.MaxFacetSize, i)
					}
				}
			}
			l.enqueue(msgs...)
			claimed := func() (all []*layer.Claim) {
				for i := 0; len(all) < c.parts; i++ {
					o := layer.ReceiveOptions{Max: 1, Unordered: config.Unordered}
					if !o.Unordered {
						o.Where = msgs[i].Headers
					}
					claims, err := l.q.Receive(l.ctx, o)
					require.NoError(t, err)
					require.Len(t, claims, 1)
					all = append(all, claims...)
				}
				return all
			}
			lost := claimed()
			mark, err := a.PauseGroup(l.ctx, group, layer.PauseOptions{Force: true, By: "ann"})
			require.NoError(t, err)
			require.Equal(t, "ann", mark.By)
			for _, i := range []int{0, c.parts / 2, c.parts - 1} {
				require.ErrorIs(t, l.q.Ack(l.ctx, lost[i]), layer.ErrClaimLost)
			}
			holders, err := a.Holders(l.ctx)
			require.NoError(t, err)
			require.Empty(t, holders)
			mark, err = a.ResumeGroup(l.ctx, group, layer.ResumeOptions{})
			require.NoError(t, err)
			require.Equal(t, "ann", mark.By)
			if c.kind == "facets" {
				for _, claim := range claimed() {
					require.NoError(t, l.q.Nack(l.ctx, claim, layer.NackOptions{Reject: "poison"}))
				}
				mark, err := a.ResumeGroup(l.ctx, group, layer.ResumeOptions{})
				require.NoError(t, err)
				require.Equal(t, layer.Halted, mark.Status)
				_, err = a.ResumeGroup(l.ctx, group, layer.ResumeOptions{})
				require.ErrorIs(t, err, layer.ErrNotPaused)
			}
			claimed()
			l.check()
			report, err := a.Purge(l.ctx, layer.PurgeOptions{Group: &group, Force: true})
			require.NoError(t, err)
			require.EqualValues(t, c.parts, report.Items)
			require.EqualValues(t, c.parts, report.Forced)
			l.check()
			require.NoError(t, l.q.Close(l.ctx))
		})
	}
}

// TestOnceAtTheLimit (contract): a transaction of Once that a call of the layer has accepted is not refused for its
// size afterwards: there is room for the receipt of Once. The caller's own writes fill the transaction up to a few
// bytes.
func TestOnceAtTheLimit(t *testing.T) {
	l := newEnv(t, anyEngine, false).largest(layer.Config{})
	once := func(fill int) error {
		return l.q.Once(l.ctx, func(tx kv.Tx) error {
			for i := 0; fill > 0; i++ {
				n := min(fill, 90_000)
				tx.Set(tuple.Tuple{"of the caller", i}.Pack(), make([]byte, n))
				fill -= n
			}
			_, err := l.q.EnqueueTx(l.ctx, tx, layer.Message{Group: "G"})
			return err
		})
	}
	accepted, refused := kv.MaxTransactionSize/2, kv.MaxTransactionSize
	for accepted+1 < refused {
		fill := (accepted + refused) / 2
		if l.bounded(once(fill), "filled with %d bytes", fill) {
			accepted = fill
		} else {
			refused = fill
		}
	}
	require.Zero(t, l.db.n.Load())
	require.Greater(t, l.sizes.calls["once"], kv.MaxTransactionSize/1000*995)
	require.NoError(t, l.q.Close(l.ctx))
}
