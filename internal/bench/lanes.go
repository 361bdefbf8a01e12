package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"fdbfifo/kv/record"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// The queues here have one facet, and one view of it: a pipeline in place.
const facet = "state"

// stages are the states that the messages of a pipeline go through. In the last one they are finished.
var stages = []string{"new", "priced", "paid"}

// elsewhere is the state of messages that no template here asks for.
const elsewhere = "elsewhere"

func inState(state string) layer.Template { return layer.Template{facet: state} }

func newPipeline(ctx context.Context, env Env, s Space, name, views string) (*queue, error) {
	o := layer.Options{Config: layer.Config{Facets: []string{facet}, Views: views}}
	q, err := layer.Create(ctx, s.DB, s.Prefix, name, o)
	if err != nil {
		return nil, err
	}
	return &queue{Queue: q, env: env}, nil
}

// enqueueIn enqueues n messages of each group in a state, perLoad together at most.
func (q *queue) enqueueIn(ctx context.Context, state string, first, groups, n int) error {
	var pending []layer.Message
	for g := range groups {
		for _, m := range messages(groupName(first+g), n) {
			m.Headers = map[string]string{facet: state}
			pending = append(pending, m)
		}
		if len(pending)+n > perLoad || g == groups-1 {
			if err := q.enqueue(ctx, pending...); err != nil {
				return fmt.Errorf("load: %w", err)
			}
			pending = pending[:0]
			q.env.progress("loading", g, groups)
		}
	}
	return nil
}

// receiveIn claims a batch of one group in a state.
func (q *queue) receiveIn(ctx context.Context, state string) (*layer.Claim, error) {
	claims, err := q.Receive(ctx, layer.ReceiveOptions{Where: inState(state), Max: batch, MaxGroups: 1})
	if err != nil || len(claims) == 0 {
		return nil, err
	}
	return claims[0], nil
}

// advance moves all items of a claim on to a state.
func (q *queue) advance(ctx context.Context, c *layer.Claim, state string) error {
	return q.Settle(ctx, layer.Settlement{Claim: c, AdvanceAll: true, Change: func(_ layer.ID, m *layer.Message) error {
		m.Headers[facet] = state
		return nil
	}})
}

// pass does what stage n of the pipeline does with a claim when the work is done.
func (q *queue) pass(ctx context.Context, c *layer.Claim, n int) error {
	if n < len(stages)-1 {
		return q.advance(ctx, c, stages[n+1])
	}
	_, err := q.ack(ctx, []*layer.Claim{c})
	return err
}

// templateRatio measures whether the cost of a claim by template depends on the number of groups that do not match. It
// does so by the clock, by CPU time (which varies less on a busy machine), and by counted operations.
func templateRatio(s Sizes) Benchmark {
	const name = "template_ratio"
	means := fmt.Sprintf("claim + ack of a batch by template with %d older groups that do not match, to %d",
		s.ManyOthers, s.FewOthers)
	return Benchmark{name, means, func(ctx context.Context, env Env) (results []Result, err error) {
		var sides [2]*matching
		for i, others := range []int{s.FewOthers, s.ManyOthers} {
			space, err := env.Open(ctx)
			if err != nil {
				return nil, err
			}
			defer space.closing(&err)
			q, err := newPipeline(ctx, env, space, "template", facet)
			if err != nil {
				return nil, err
			}
			if err := q.enqueueIn(ctx, elsewhere, 0, others, 1); err != nil {
				return nil, err
			}
			if err := q.enqueueIn(ctx, stages[0], others, s.FewGroups, batch); err != nil {
				return nil, err
			}
			sides[i] = &matching{queue: q, space: space, first: others, groups: s.FewGroups, batches: s.SliceBatches}
		}
		c, err := compare(ctx, env, s.Rounds, s.Slices, sides[0].slice, sides[1].slice)
		if err != nil {
			return nil, err
		}
		var counted [2]record.Counters
		for i, m := range sides {
			if counted[i], err = m.count(ctx); err != nil {
				return nil, err
			}
			if err := m.verify(ctx); err != nil {
				return nil, err
			}
		}
		few, many := median(sides[0].clocks), median(sides[1].clocks)
		fewCPU, manyCPU := median(sides[0].cpus), median(sides[1].cpus)
		sizes := fmt.Sprintf("%d groups of %d items match", s.FewGroups, batch)
		results = []Result{
			{name, c.ratio(), "ratio", means, c.spread(), atMost(1.1)},
			{"few_others_batch_us", few, "us", "claim + ack of a batch of 10 by template", sizes, Target{}},
			{"many_others_batch_us", many, "us", "claim + ack of a batch of 10 by template", sizes, Target{}},
		}
		if fewCPU > 0 {
			results = append(results, Result{"template_ratio_cpu", manyCPU / fewCPU, "ratio",
				"the same by CPU", "medians of all slices", Target{}})
		}
		for _, what := range []struct {
			name string
			of   func(c record.Counters) int64
		}{
			{"reads", func(c record.Counters) int64 { return c.Reads }},
			{"rows", func(c record.Counters) int64 { return c.Rows }},
			{"mutations", func(c record.Counters) int64 { return c.Mutations }},
			{"bytes", func(c record.Counters) int64 { return c.BytesRead + c.BytesWritten }},
		} {
			per := func(c record.Counters) float64 { return float64(what.of(c)) / float64(s.SliceBatches) }
			few := fmt.Sprintf("with few others %g", per(counted[0]))
			results = append(results, Result{"template_" + what.name, per(counted[1]), what.name,
				"of claim + ack of a batch of 10 with many others", few, Target{}})
		}
		return results, nil
	}}
}

// matching is one side of templateRatio.
type matching struct {
	*queue
	space         Space
	clocks        []float64 // of each slice, microseconds a batch
	cpus          []float64 // of each slice, microseconds a batch; 0 where the system does not say
	first, groups int       // those that match
	batches       int       // of a slice
	turn          int
}

// slice returns the microseconds that claim + ack of a batch by template took.
func (m *matching) slice(ctx context.Context) (float64, error) {
	before, _ := cpuTime()
	begun := time.Now()
	if err := m.drain(ctx); err != nil {
		return 0, err
	}
	clock := micros(time.Since(begun)) / float64(m.batches)
	after, _ := cpuTime()
	m.clocks = append(m.clocks, clock)
	m.cpus = append(m.cpus, micros(after-before)/float64(m.batches))
	return clock, m.refill(ctx)
}

// drain claims and acks the batches of a slice.
func (m *matching) drain(ctx context.Context) error {
	for range m.batches {
		c, err := m.receiveIn(ctx, stages[0])
		if err == nil && c == nil {
			err = fmt.Errorf("%w: nothing that matches is found", errWrong)
		}
		if err != nil {
			return err
		}
		n, err := m.ack(ctx, []*layer.Claim{c})
		if err == nil && n != batch {
			err = fmt.Errorf("%w: a claim has %d items, should be %d", errWrong, n, batch)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// refill puts back what drain took.
func (m *matching) refill(ctx context.Context) error {
	for range m.batches {
		if err := m.enqueueIn(ctx, stages[0], m.first+m.turn%m.groups, 1, batch); err != nil {
			return err
		}
		m.turn++
	}
	return nil
}

// count counts what drain does, by a handle of its own.
func (m *matching) count(ctx context.Context) (c record.Counters, err error) {
	counting := record.WrapCounting(m.space.DB)
	uncounted := m.queue.Queue
	if m.queue.Queue, err = layer.Open(ctx, counting, m.space.Prefix, uncounted.Name(), layer.Options{}); err != nil {
		return c, err
	}
	defer func() {
		err = errors.Join(err, m.queue.Queue.Close(context.WithoutCancel(ctx)))
		m.queue.Queue = uncounted
	}()
	before := counting.Counters()
	if err := m.drain(ctx); err != nil {
		return c, err
	}
	c = counting.Counters().Sub(before)
	return c, m.refill(ctx)
}

// stageMutations counts the mutations of a stage of a pipeline in place. The figure depends neither on the machine nor
// on the engine.
func stageMutations(s Sizes) Benchmark {
	const (
		name  = "stage_mutations"
		means = "sets, clears and atomic operations for a message to pass a worker's stage, in batches of 10, one view"
	)
	return Benchmark{name, means, func(ctx context.Context, env Env) (results []Result, err error) {
		space, counting, err := env.openCounted(ctx)
		if err != nil {
			return nil, err
		}
		defer space.closing(&err)
		q, err := newPipeline(ctx, env, space, "stages", facet)
		if err != nil {
			return nil, err
		}
		if err := q.enqueueIn(ctx, stages[0], 0, s.Batches, batch); err != nil {
			return nil, err
		}
		steps := []func() error{
			func() error { return q.stageWorker(ctx, 0, s) },
			func() error { return q.stageByHand(ctx, 1, s) },
			func() error { return q.stageByHand(ctx, 2, s) },
		}
		counted := make([]record.Counters, len(steps))
		for n, step := range steps {
			before := counting.Counters()
			if err := step(); err != nil {
				return nil, err
			}
			counted[n] = counting.Counters().Sub(before)
		}
		if err := q.verify(ctx); err != nil {
			return nil, err
		}
		per := func(n int64) float64 { return float64(n) / float64(s.Batches*batch) }
		return []Result{
			{name, per(counted[0].Mutations), "mutations", means, "each advance with the next claim", atMost(4.2)},
			{"stage_reads", per(counted[0].Reads), "reads", "keys and ranges read for the same", "", Target{}},
			{"stage_by_hand_mutations", per(counted[1].Mutations), "mutations",
				"by Receive and Settle, a transaction each", "", Target{}},
			{"last_stage_mutations", per(counted[2].Mutations), "mutations", "by Receive and Ack", "", Target{}},
		}, nil
	}}
}

// stageByHand takes all messages through stage n by receives.
func (q *queue) stageByHand(ctx context.Context, n int, s Sizes) error {
	for range s.Batches {
		c, err := q.receiveIn(ctx, stages[n])
		if err == nil && (c == nil || len(c.Items) != batch) {
			err = fmt.Errorf("%w: no claim of %d items in state %s", errWrong, batch, stages[n])
		}
		if err != nil {
			return err
		}
		if err := q.pass(ctx, c, n); err != nil {
			return err
		}
	}
	return nil
}

// stageWorker takes all messages through stage n by a worker.
func (q *queue) stageWorker(ctx context.Context, n int, s Sizes) error {
	var passed atomic.Int64
	all := make(chan struct{})
	w, err := worker.New(q.Queue, worker.HandleBatch(func(_ context.Context, ds []*worker.Delivery) error {
		for _, d := range ds {
			if err := d.AdvanceTo(inState(stages[n+1])); err != nil {
				return err
			}
		}
		if passed.Add(int64(len(ds))) == int64(s.Batches*batch) {
			close(all)
		}
		return nil
	}), worker.Options{
		Where: inState(stages[n]), Batch: batch, Concurrency: 1, Logger: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		return err
	}
	w.Start()
	select {
	case <-all:
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-time.After(s.Patience):
		err = fmt.Errorf("%w: %d of %d messages have passed", errWrong, passed.Load(), s.Batches*batch)
	}
	return errors.Join(err, w.Stop(context.WithoutCancel(ctx)))
}

// line is a pipeline at work in one group: a goroutine a stage, each with a handle of its own as processes have.
type line struct {
	q       *queue
	crew    *crew
	work    time.Duration // for an item in a stage
	commits atomic.Int64  // of claims and of what ended them
}

// errStalled: no message came out of the pipeline for so long.
const errStalled = "nothing has moved for %v"

// run takes messages through the stages until so many are finished. With whole set each goroutine claims the whole
// group, and does the work of all stages.
func (l *line) run(ctx context.Context, messages int, whole bool, patience time.Duration) error {
	ctx, stop := context.WithTimeoutCause(ctx, patience, fmt.Errorf("%w: "+errStalled, errWrong, patience))
	defer stop()
	var finished atomic.Int64
	var wg sync.WaitGroup
	errs := make([]error, len(stages))
	for n := range stages {
		q := &queue{Queue: l.crew.handles[n], env: l.q.env}
		wg.Go(func() {
			for finished.Load() < int64(messages) && errs[n] == nil {
				if ctx.Err() != nil {
					errs[n] = context.Cause(ctx)
					return
				}
				var done int
				if whole {
					done, errs[n] = l.whole(ctx, q)
				} else {
					done, errs[n] = l.stage(ctx, q, n)
				}
				finished.Add(int64(done))
			}
		})
	}
	wg.Wait()
	l.q.left.Add(-finished.Load())
	return errors.Join(errs...)
}

// idlePause is for how long a stage rests that has found nothing.
const idlePause = 100 * time.Microsecond

// stage claims a batch in the state of stage n, works on each item, and passes them on. It returns how many items have
// left the pipeline.
func (l *line) stage(ctx context.Context, q *queue, n int) (done int, err error) {
	c, err := q.receiveIn(ctx, stages[n])
	if err != nil {
		return 0, err
	}
	if c == nil {
		return 0, sleep(ctx, idlePause)
	}
	items := len(c.Items)
	time.Sleep(time.Duration(items) * l.work)
	if err := q.pass(ctx, c, n); err != nil {
		return 0, err
	}
	l.commits.Add(2)
	if n < len(stages)-1 {
		items = 0
	}
	return items, nil
}

// whole claims a batch of the whole group, does the work of all stages, and finishes the items.
func (l *line) whole(ctx context.Context, q *queue) (done int, err error) {
	claims, err := q.receive(ctx)
	if err != nil {
		return 0, err
	}
	if len(claims) == 0 {
		return 0, sleep(ctx, idlePause)
	}
	items := len(claims[0].Items)
	time.Sleep(time.Duration(items*len(stages)) * l.work)
	_, err = q.ack(ctx, claims)
	return items, err
}

func newLine(ctx context.Context, env Env, s Space, name, views string) (*line, error) {
	q, err := newPipeline(ctx, env, s, name, views)
	if err != nil {
		return nil, err
	}
	c, err := newCrew(ctx, q, s, len(stages), layer.Options{}, layer.ReceiveOptions{})
	return &line{q: q, crew: c}, err
}

// stageConflicts counts the conflicts in one group between a producer and the stages of a pipeline.
func stageConflicts(s Sizes) Benchmark {
	const (
		name  = "stage_conflicts"
		means = "failed commits per claim, advance, ack and enqueue: one group, a producer and three stages at once"
	)
	return Benchmark{name, means, func(ctx context.Context, env Env) (results []Result, err error) {
		space, err := env.Open(ctx)
		if err != nil {
			return nil, err
		}
		counting := record.WrapCounting(&yieldingDB{DB: space.DB})
		space.DB = counting
		defer space.closing(&err)
		l, err := newLine(ctx, env, space, "stages", facet)
		if err != nil {
			return nil, err
		}
		before := counting.Counters()
		sent := make(chan error, 1)
		begun := time.Now()
		go func() {
			var err error
			for n := 0; n < s.StageBatches && err == nil; n++ {
				env.progress("enqueueing", n, s.StageBatches)
				err = l.q.enqueueIn(ctx, stages[0], 0, 1, batch)
			}
			sent <- err
		}()
		err = l.run(ctx, s.StageBatches*batch, false, 3*s.Patience)
		took := time.Since(begun)
		if err = errors.Join(err, <-sent, l.crew.close(ctx)); err != nil {
			return nil, err
		}
		conflicts := counting.Counters().Sub(before).Conflicts
		commits := l.commits.Load() + int64(s.StageBatches)
		if err := l.q.verify(ctx); err != nil {
			return nil, err
		}
		total := s.StageBatches * batch
		return []Result{
			{name, float64(conflicts) / float64(commits), "conflicts", means,
				fmt.Sprintf("%d conflicts, %d commits, %d messages", conflicts, commits, total), atMost(0.01)},
			{"stages_items_per_s", float64(total) / took.Seconds(), "items/s",
				"through all three stages of one group, no work", "", Target{}},
		}, nil
	}}
}

// stagesGain compares a pipeline in one group with whole-group claims.
func stagesGain(s Sizes) Benchmark {
	const name = "stages_gain"
	means := fmt.Sprintf("one group, three stages of %v of waiting an item: messages/s with a template for each stage "+
		"to those with claims of the whole group", s.StageWork)
	return Benchmark{name, means, func(ctx context.Context, env Env) (results []Result, err error) {
		space, err := env.Open(ctx)
		if err != nil {
			return nil, err
		}
		defer space.closing(&err)
		l, err := newLine(ctx, env, space, "gain", "*; "+facet)
		if err != nil {
			return nil, err
		}
		slice := func(whole bool, work time.Duration) side {
			return func(ctx context.Context) (float64, error) {
				n := s.StageItems
				if err := l.q.enqueueIn(ctx, stages[0], 0, 1, n); err != nil {
					return 0, err
				}
				l.work = work
				begun := time.Now()
				err := l.run(ctx, n, whole, s.Patience)
				return float64(n) / time.Since(begun).Seconds(), err
			}
		}
		c, err := compare(ctx, env, s.LongRounds, 1, slice(true, s.StageWork), slice(false, s.StageWork))
		if err != nil {
			return nil, err
		}
		bare, err := compare(ctx, env, s.LongRounds, 1, slice(true, 0), slice(false, 0))
		if err = errors.Join(err, l.crew.close(ctx)); err != nil {
			return nil, err
		}
		sizes := fmt.Sprintf("%d messages in one group, batches of %d", s.StageItems, batch)
		return []Result{
			{name, c.ratio(), "ratio", means, c.spread(), atLeast(2)},
			{"stages_messages_per_s", c.b, "items/s", "a template for each stage", sizes, Target{}},
			{"whole_messages_per_s", c.a, "items/s", "claims of the whole group", sizes, Target{}},
			{"stages_gain_no_work", bare.ratio(), "ratio", "the same without work: transactions alone", bare.spread(),
				Target{}},
		}, l.q.verify(ctx)
	}}
}

// subscribeRoundTrips measures how long after an enqueue has returned a waiting subscription is told, in units of a
// small transaction's time on the same engine, measured in turns with it.
func subscribeRoundTrips(s Sizes) Benchmark {
	const (
		name  = "subscribe_p50_roundtrips"
		means = "from the return of an enqueue to the call of a waiting subscription's handler, " +
			"in round trips of one read-write transaction"
	)
	return Benchmark{name, means, func(ctx context.Context, env Env) (results []Result, err error) {
		space, err := env.Open(ctx)
		if err != nil {
			return nil, err
		}
		defer space.closing(&err)
		o := layer.Options{Config: layer.Config{Changes: time.Hour}}
		q, err := layer.Create(ctx, space.DB, space.Prefix, "changes", o)
		if err != nil {
			return nil, err
		}
		told, trips, err := tellings(ctx, env, space, &queue{Queue: q, env: env}, s)
		if err != nil {
			return nil, err
		}
		slices.Sort(told)
		trip := median(trips)
		detail := fmt.Sprintf("%d enqueues", len(told))
		return []Result{
			{name, median(told) / trip, "round trips", means, detail, atMost(3)},
			{"subscribe_p99_roundtrips", told[len(told)*99/100] / trip, "round trips", "the same, 99 of 100", detail,
				Target{}},
			{"subscribe_p50_us", median(told), "us", "", "", Target{}},
		}, nil
	}}
}

// tellings returns the microseconds from each enqueue to the call of the handler, and those of each round trip. The
// handler may be called before the enqueue has returned: then it took no time.
func tellings(ctx context.Context, env Env, space Space, q *queue, s Sizes) (told, trips []float64, err error) {
	listening, stop := context.WithCancel(ctx)
	heard := make(chan time.Time, s.Wakes+1)
	ended := make(chan error, 1)
	defer func() {
		stop()
		err = errors.Join(err, <-ended)
		if err == nil {
			err = q.verify(ctx)
		}
	}()
	var failed atomic.Pointer[error]
	go func() {
		ended <- q.Subscribe(listening, "bench", func(context.Context, []layer.Change) error {
			heard <- time.Now()
			return nil
		}, layer.SubscribeOptions{FromOldest: true, Max: 1, Kinds: []layer.ChangeKind{layer.ChangeEnqueued},
			OnError: func(err error) { failed.CompareAndSwap(nil, &err) }})
	}()
	for n := range s.Wakes + 1 {
		env.progress("measuring", n, s.Wakes+1)
		// The subscription must wait again, and whatever is measured begins from rest.
		if err := sleep(ctx, restTime); err != nil {
			return nil, nil, err
		}
		trip, err := roundTrip(ctx, space)
		if err != nil {
			return nil, nil, err
		}
		if err := sleep(ctx, restTime); err != nil {
			return nil, nil, err
		}
		if err := q.enqueue(ctx, messages(groupName(n%10), 1)...); err != nil {
			return nil, nil, err
		}
		sent := time.Now()
		select {
		case at := <-heard:
			if n > 0 { // the first may have begun the subscription
				told, trips = append(told, max(0, micros(at.Sub(sent)))), append(trips, trip)
			}
		case <-ctx.Done():
			return nil, nil, context.Cause(ctx)
		case <-time.After(s.Patience):
			if e := failed.Load(); e != nil {
				return nil, nil, *e
			}
			return nil, nil, fmt.Errorf("%w: a subscription was not told within %v", errWrong, s.Patience)
		}
	}
	return told, trips, nil
}
