package layer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/fault"
	"fdbfifo/kv/record"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// span is when a call began and ended, on a counter that all goroutines share.
type span struct{ begin, end int64 }

// requireRealTime holds an order to G1: if one enqueue had returned before another began, its message comes first.
func requireRealTime(t *testing.T, order []string, spans map[string]span) {
	t.Helper()
	earliest, whose := int64(1<<62), ""
	for i := len(order) - 1; i >= 0; i-- {
		s, ok := spans[order[i]]
		require.True(t, ok, "%q was never enqueued", order[i])
		require.Less(t, s.begin, earliest, "%q was enqueued before %q, and comes after it", whose, order[i])
		if s.end < earliest {
			earliest, whose = s.end, order[i]
		}
	}
}

// TestManyEnqueuersOfOneGroup: enqueues of one group do not conflict (G4), and their order is kept (G1).
func TestManyEnqueuersOfOneGroup(t *testing.T) {
	const producers, each, ahead = 64, 12, 200
	onEngines(t, func(e *env) {
		counter := record.WrapCounting(e.raw)
		q, err := layer.Open(e.ctx, fault.Wrap(counter, e.plan), testPrefix, testQueue, e.options(2))
		require.NoError(e.t, err)

		var now atomic.Int64
		var mu sync.Mutex
		spans := make(map[string]span)
		// A batch gets ahead of the database's versions. The next messages must still come after it.
		batch := make([]layer.Message, ahead)
		for i := range batch {
			batch[i] = layer.Message{Group: "A", Body: fmt.Appendf(nil, "batch.%d", i)}
			spans[string(batch[i].Body)] = span{now.Add(1), now.Add(1)}
		}
		var wg sync.WaitGroup
		begin := make(chan struct{})
		before := counter.Counters()
		for p := range producers {
			wg.Go(func() {
				<-begin
				for n := range each {
					body := fmt.Sprintf("%02d.%02d", p, n)
					s := span{begin: now.Add(1)}
					_, err := q.Enqueue(e.ctx, layer.Message{Group: "A", Body: []byte(body)})
					if err != nil {
						e.t.Errorf("enqueue %s: %v", body, err)
						return
					}
					s.end = now.Add(1)
					mu.Lock()
					spans[body] = s
					mu.Unlock()
				}
			})
		}
		_, err = q.Enqueue(e.ctx, batch...)
		close(begin)
		wg.Wait()
		require.NoError(e.t, err)
		// A retry fences off a commit of its own that may still land: one of the two conflicts.
		late := int64(e.plan.Counts()[fault.VersionChangedLate])
		conflicts := counter.Counters().Sub(before).Conflicts
		require.LessOrEqual(e.t, conflicts, late, "enqueues of one group conflict with each other")
		order := e.all("A")
		require.Len(e.t, order, ahead+producers*each, "none lost, none doubled")
		requireRealTime(e.t, order, spans)
	})
}

// TestStress: producers, workers and a taker at work together, with clocks up to 30 s apart, leases that run out,
// workers that forget their claims, and faults. Each effect is written to a ledger in the transaction that acks.
// At the end each message stands in the ledger once (G3), in order (G1), and no holder wrote after a later one
// (G2).
func TestStress(t *testing.T) {
	onEngines(t, func(e *env) {
		s := &stress{
			e: e, spans: make(map[string]span), done: make(chan struct{}), backlog: make(chan struct{}, stressBacklog),
		}
		// Between the reads of a transaction and its commit, others get a chance to commit theirs.
		s.db = fault.Wrap(e.raw, &fault.Plan{Seed: e.seed, Chances: e.plan.Chances, OnCommit: func(n int, _ kv.Tx) fault.Kind {
			for range n % 400 {
				runtime.Gosched()
			}
			return fault.Chance
		}})
		ctx, cancel := untilStill(e.ctx, s.acked.Load)
		defer cancel()
		s.ctx = ctx
		var wg sync.WaitGroup
		for p := range stressProducers {
			wg.Go(func() { s.produce(p) })
		}
		for w, skew := range []time.Duration{0, 30 * time.Second, -30 * time.Second, 0, 15 * time.Second, -15 * time.Second} {
			q := s.handle(uint64(10+w), skew)
			wg.Go(func() { s.consume(q, rand.New(rand.NewPCG(e.seed, uint64(w)))) })
		}
		taker := s.handle(20, 0)
		wg.Go(func() { s.taker(taker) })
		wg.Wait()
		require.NoError(e.t, ctx.Err(), "nothing is acked any more after %d messages", s.acked.Load())
		s.verify()
	})
}

// untilStill returns a context that ends when progress has returned the same number for some minutes: the test hangs.
// Others at work in this process, and in others, slow a test down. So a limit on the whole test would be of chance.
func untilStill(ctx context.Context, progress func() int64) (context.Context, context.CancelFunc) {
	const patience = 4 * time.Minute
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		defer cancel()
		for last, still := progress(), false; !still; {
			select {
			case <-ctx.Done():
				return
			case <-time.After(patience):
			}
			now := progress()
			last, still = now, now == last
		}
	}()
	return ctx, cancel
}

const (
	stressProducers = 4
	stressGroups    = 7
	stressMessages  = 1000 // in all, as many of each producer
	stressBatch     = 4
	stressBacklog   = stressProducers * stressBatch
)

type stress struct {
	e     *env
	db    kv.DB
	ctx   context.Context
	clock atomic.Int64 // of the spans
	mu    sync.Mutex
	spans map[string]span // guarded by mu
	acked atomic.Int64
	done  chan struct{} // closed when all is acked
	// backlog has a token for each message of the second half that is not finished: the groups run empty, and
	// are filled again, over and over.
	backlog chan struct{}
}

func (s *stress) handle(n uint64, skew time.Duration) *layer.Queue {
	q, err := layer.Open(s.e.ctx, s.db, testPrefix, testQueue, layer.Options{
		Owner: fmt.Sprint("worker-", n), Test: &layer.TestOptions{Seed: s.e.seed + n},
		Now: func() time.Time { return s.e.clock.now().Add(skew) },
		Tx:  kv.TxOptions{MaxRetryDelay: 5 * time.Millisecond},
	})
	require.NoError(s.e.t, err)
	return q
}

func (s *stress) fail(what string, err error) {
	if err != nil && s.ctx.Err() == nil {
		s.e.t.Errorf("%s: %v", what, err)
	}
}

// produce enqueues batches that each go to one group or to two.
func (s *stress) produce(p int) {
	q := s.handle(uint64(1+p), 0)
	r := rand.New(rand.NewPCG(s.e.seed, uint64(100+p)))
	for n := 0; n < stressMessages/stressProducers; {
		var msgs []layer.Message
		for range min(1+r.IntN(stressBatch), stressMessages/stressProducers-n) {
			msgs = append(msgs, layer.Message{Group: fmt.Sprint("g", r.IntN(stressGroups)), Body: fmt.Appendf(nil, "%d.%d", p, n)})
			n++
			if n > stressMessages/stressProducers/2 {
				select {
				case s.backlog <- struct{}{}:
				case <-s.ctx.Done():
					return
				}
			}
		}
		// Known before it can be delivered; its end is filled in when it is known.
		at := span{begin: s.clock.Add(1), end: 1 << 61}
		s.note(msgs, at)
		_, err := q.Enqueue(s.ctx, msgs...)
		s.fail("enqueue", err)
		at.end = s.clock.Add(1)
		s.note(msgs, at)
	}
}

func (s *stress) note(msgs []layer.Message, at span) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, m := range msgs {
		s.spans[string(m.Body)] = at
	}
}

// finished counts effects that are known to have happened.
func (s *stress) finished(n int) {
	for range n {
		select {
		case <-s.backlog:
		default: // one of the first half
		}
	}
	if n > 0 && s.acked.Add(int64(n)) == stressMessages {
		close(s.done)
	}
}

// over reports whether there is nothing left to do.
func (s *stress) over() bool {
	select {
	case <-s.done:
		return true
	case <-s.ctx.Done():
		return true
	default:
		return false
	}
}

// idle lets time pass: leases of forgotten claims and delays end.
func (s *stress) idle() {
	s.e.clock.advance(time.Second)
	runtime.Gosched()
}

// consume receives, and does to each claim one of the things that happen to claims.
func (s *stress) consume(q *layer.Queue, r *rand.Rand) {
	for !s.over() {
		claims, err := q.Receive(s.ctx, layer.ReceiveOptions{Max: 1 + r.IntN(8), Lease: time.Duration(1+r.IntN(20)) * time.Second})
		s.fail("receive", err)
		if len(claims) == 0 {
			s.idle()
		}
		for _, c := range claims {
			s.lost(s.use(q, r, c))
		}
	}
}

// lost accepts the one error that a holder must expect.
func (s *stress) lost(err error) {
	if !errors.Is(err, layer.ErrClaimLost) {
		s.fail("claim", err)
	}
}

func (s *stress) use(q *layer.Queue, r *rand.Rand, c *layer.Claim) error {
	if r.IntN(10) == 0 {
		return nil // crashed: the claim is not returned
	}
	if r.IntN(4) == 0 {
		s.e.clock.advance(time.Duration(r.IntN(3000)) * time.Millisecond) // slow
	}
	if r.IntN(4) == 0 {
		if _, err := q.Extend(s.ctx, c, time.Duration(1+r.IntN(20))*time.Second); err != nil {
			return err
		}
	}
	switch r.IntN(6) {
	case 0: // failed at the first
		return q.Nack(s.ctx, c, layer.NackOptions{Err: errors.New("boom"), Delay: time.Duration(r.IntN(2)) * time.Second})
	case 1: // not tried
		return q.Nack(s.ctx, c, layer.NackOptions{Release: true})
	case 2: // all in one transaction
		return s.effect(q, c, c.Items)
	default: // one by one, and perhaps not all
		for i, item := range c.Items {
			if r.IntN(10) == 0 {
				return q.Nack(s.ctx, c, layer.NackOptions{Err: errors.New("boom")})
			}
			if err := s.effect(q, c, c.Items[i:i+1]); err != nil {
				return fmt.Errorf("item %s: %w", item.ID, err)
			}
		}
		return nil
	}
}

// effect acks items and writes them to the ledger, in one transaction.
func (s *stress) effect(q *layer.Queue, c *layer.Claim, items []layer.Item) error {
	ids := make([]layer.ID, len(items))
	for i, item := range items {
		ids[i] = item.ID
	}
	err := q.Once(s.ctx, func(tx kv.Tx) error {
		if err := q.AckItemsTx(s.ctx, tx, c, ids); err != nil {
			return err
		}
		return appendLedger(s.ctx, tx, c.Group, c.Token, items)
	})
	if err == nil {
		s.finished(len(items))
	}
	return err
}

func (s *stress) taker(q *layer.Queue) {
	for !s.over() {
		var items []layer.Item
		err := q.Once(s.ctx, func(tx kv.Tx) (err error) {
			if items, _, err = q.TakeTx(s.ctx, tx, 2, layer.TakeOptions{}); err != nil || len(items) == 0 {
				return err
			}
			return appendLedger(s.ctx, tx, items[0].ID.Group, 0, items)
		})
		s.fail("take", err)
		if err == nil {
			s.finished(len(items))
		}
		s.idle()
	}
}

func ledgerKey(elements ...any) []byte {
	return append(tuple.Tuple{"ledger"}.Pack(), tuple.Tuple(elements).Pack()...)
}

// appendLedger writes behind the group's last entry. It reads that at snapshot: nothing but the queue keeps two
// holders of a group apart.
func appendLedger(ctx context.Context, tx kv.Tx, group string, token int64, items []layer.Item) error {
	all := kv.PrefixRange(ledgerKey(group))
	last, err := tx.Snapshot().GetRange(all.Selectors(), kv.RangeOptions{Limit: 1, Reverse: true}).Wait(ctx)
	if err != nil {
		return err
	}
	n := int64(0)
	if len(last) > 0 {
		t, err := tuple.Unpack(last[0].Key)
		if err != nil {
			return err
		}
		n = t[2].(int64) + 1
	}
	for _, item := range items {
		tx.Set(ledgerKey(group, n), tuple.Tuple{token, string(item.Body)}.Pack())
		n++
	}
	return nil
}

// verify reads the ledger and compares it with the enqueued messages.
func (s *stress) verify() {
	t := s.e.t
	total := 0
	for g := range stressGroups {
		group := fmt.Sprint("g", g)
		require.Empty(t, s.e.all(group))
		var rows []kv.KV
		_, err := kv.Run(s.e.ctx, s.e.raw, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) (err error) {
			rows, err = tx.GetRange(kv.PrefixRange(ledgerKey(group)).Selectors(), kv.RangeOptions{}).Wait(s.e.ctx)
			return err
		})
		require.NoError(t, err)
		var order []string
		newest := int64(0)
		seen := make(map[string]bool)
		for _, row := range rows {
			v, err := tuple.Unpack(row.Value)
			require.NoError(t, err)
			token, body := v[0].(int64), v[1].(string)
			if token != 0 {
				require.GreaterOrEqual(t, token, newest, "%s: a holder that was overtaken wrote %s", group, body)
				newest = token
			}
			require.False(t, seen[body], "%s: %s has happened twice", group, body)
			seen[body] = true
			order = append(order, body)
		}
		requireRealTime(t, order, s.spans)
		total += len(order)
	}
	require.Equal(t, stressMessages, total, "each message has happened once")

	stats, err := s.e.calm().Stats(s.e.ctx, layer.StatsOptions{})
	require.NoError(t, err)
	require.EqualValues(t, total, stats.Enqueued)
	require.EqualValues(t, total, stats.Acked+stats.Taken)
}
