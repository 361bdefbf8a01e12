package sim

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/fault"
	"fdbfifo/layer"
)

// Options of a run.
type Options struct {
	Seed uint64
	// Operations is about how many calls the actors make.
	Operations int
	// Profile is a kind of run, see Profiles; "" = as the seed draws.
	Profile string
	// Trace is how many of the newest lines of the trace to keep; < 0 = all.
	Trace int
	// Settle returns when every other goroutine of the bubble is durably blocked: synctest.Wait.
	Settle func()
}

// Report is what became of a run.
type Report struct {
	Seed       uint64
	Operations int // calls made
	Steps      int // of the driver
	Commits    int // transactions that wrote something and were applied
	Virtual    time.Duration
	// Lost, Doubled, Unexpected and Recovered count messages: enqueued and neither finished nor there; finished twice;
	// there without an enqueue; delivered anew after a holder or an answer was lost.
	Lost, Doubled, Unexpected, Recovered int
	Ambiguous                            int // steps that the seed did not decide alone: 0 or the run cannot be repeated
	Marks                                map[string]int
	Violations                           []string
	Digest                               uint64 // of the trace
	Trace                                string
	Knobs                                string
}

// The names of goroutines in places: the engine below 1, handles from 1 on, actors from firstActor on.
const firstActor = 1000

const (
	queuePrefix = "Q"
	queueName   = "q"
)

// world is one run.
type world struct {
	o      Options
	knobs  *knobs
	sched  *scheduler
	raw    *embedded.DB
	plan   *fault.Plan
	db     kv.DB
	rng    *rand.Rand // of the engine's hooks
	faulty bool

	handles  []*layer.Queue
	ops      []*op
	known    []layer.ID // messages that operators have heard of
	outcomes map[attemptID]int
	marks    map[string]int

	violations []string
	report     *Report
}

// Run runs the world of a seed, in a bubble.
func Run(o Options) *Report {
	rng := rand.New(rand.NewPCG(o.Seed, 1))
	knobs := drawKnobs(rng)
	knobs.shape(rand.New(rand.NewPCG(o.Seed, 4)), o)
	w := &world{
		o: o, knobs: knobs, rng: rand.New(rand.NewPCG(o.Seed, 2)),
		outcomes: make(map[attemptID]int), marks: make(map[string]int),
		plan: &fault.Plan{Seed: o.Seed}, report: &Report{Seed: o.Seed},
	}
	w.sched = &scheduler{
		settle: o.Settle, rng: rand.New(rand.NewPCG(o.Seed, 3)), knobs: w.knobs, trace: &trace{keep: o.Trace},
		arrived: make(chan struct{}, 1),
	}
	w.raw = embedded.OpenMemory(embedded.Options{Seed: o.Seed + 1, Hooks: embedded.Hooks{
		VersionGap:  w.versionGap,
		HoldWatches: w.holdWatches,
	}})
	w.db = fault.Wrap(w.raw, w.plan)
	begun := time.Now()
	if err := w.live(); err != nil {
		w.violation("liveness: %v", err)
		w.verify()
		w.faulty, w.plan.Chances = false, nil
		report := *w.sched.trace
		w.abandon()
		w.sched.trace = &report
	} else {
		w.verify()
	}
	if err := w.raw.Close(); err != nil {
		w.violation("close: %v", err)
	}
	r := w.report
	r.Operations, r.Steps, r.Virtual, r.Ambiguous = len(w.ops), w.sched.steps, time.Since(begun), w.sched.ambiguous
	r.Marks, r.Violations, r.Knobs = w.marks, w.violations, w.knobs.String()
	r.Digest, r.Trace = w.sched.trace.sum, w.sched.trace.String()
	for k, n := range w.plan.Counts() {
		r.Marks["fault "+k.String()] += n
	}
	return r
}

func (w *world) mark(name string) { w.marks[name]++ }

func (w *world) violation(format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	w.violations = append(w.violations, s)
	w.sched.trace.add("VIOLATION %s", s)
}

func (w *world) group(rng *rand.Rand) string { return fmt.Sprintf("g%d", rng.IntN(w.knobs.groups)) }

// versionGap makes versions jump as a recovery of a cluster does.
func (w *world) versionGap() int64 {
	if !w.faulty || w.rng.Float64() >= w.knobs.versionJump {
		return 0
	}
	w.mark("version jump")
	return 5_000_000 + w.rng.Int64N(100_000_000)
}

func (w *world) holdWatches() bool {
	if !w.faulty || w.rng.Float64() >= w.knobs.holdWatches {
		return false
	}
	w.mark("watches held back")
	return true
}

// live runs the phases: open; work under faults; and without them until the queue is empty; close.
func (w *world) live() error {
	const ever = 30 * 24 * time.Hour
	w.sched.start(1, w.open)
	if err := w.sched.drive(time.Hour); err != nil {
		return err
	}
	if len(w.violations) > 0 {
		return errors.New("not opened")
	}
	w.faulty, w.plan.Chances = true, w.knobs.faults
	w.startActors()
	if err := w.sched.drive(ever); err != nil {
		return fmt.Errorf("under faults: %w", err)
	}
	w.faulty, w.plan.Chances = false, nil
	w.knobs.longPause, w.knobs.shortPause, w.knobs.hold = 0, 0, 0
	if err := w.plan.Land(context.Background()); err != nil {
		return err
	}
	w.sched.trace.note("calm")
	w.sched.start(1, func() { w.heal() })
	if err := w.sched.drive(time.Hour); err != nil {
		return fmt.Errorf("heal: %w", err)
	}
	calm := time.Now()
	for i := range w.handles {
		a := w.actor(100+i, i)
		w.sched.start(firstActor+a.id, a.drain)
	}
	const bound = maxLease + maxDelay + 2*maxSkew + 30*time.Second
	if err := w.sched.drive(bound); err != nil {
		return fmt.Errorf("not drained in calm: %w", err)
	}
	w.sched.trace.note("drained", time.Since(calm))
	w.sched.start(1, w.close)
	if err := w.sched.drive(time.Hour); err != nil {
		return fmt.Errorf("close: %w", err)
	}
	return nil
}

// actorKey is that of the number of the actor in the contexts of its calls.
type actorKey struct{}

// abandon ends a run that does not end by itself. Its trace and records are worth nothing from here on.
func (w *world) abandon() {
	w.sched.giveUp(24 * time.Hour)
	for _, q := range w.handles {
		if err := q.Close(context.Background()); err != nil {
			w.violation("close: %v", err)
		}
	}
}

// handleOptions are those of the i-th handle.
func (w *world) handleOptions(i int) (layer.Options, kv.DB) {
	now := func() time.Time { return time.Now().Add(w.knobs.skew[i]) }
	who := i + 1
	e := &engine{DB: w.db, w: w, who: who, now: now}
	return layer.Options{
		Owner: fmt.Sprintf("handle %d", who), Now: now, Seed: w.o.Seed<<8 + uint64(who), Path: w.knobs.path,
		NoCoalescing: w.knobs.noCoalescing, Config: w.knobs.config,
		Yield: func(ctx context.Context, what string) {
			actor, _ := ctx.Value(actorKey{}).(int)
			w.sched.park(place{what, who, -actor})
		},
	}, e
}

func (w *world) open() {
	ctx := context.Background()
	for i := range w.knobs.handles {
		o, db := w.handleOptions(i)
		open := layer.Open
		if i == 0 {
			open = layer.Create
		}
		q, err := open(ctx, db, []byte(queuePrefix), queueName, o)
		if err != nil {
			w.violation("open: %v", err)
			return
		}
		w.handles = append(w.handles, q)
	}
}

func (w *world) actor(id, handle int) *actor {
	return &actor{w: w, id: id, who: handle + 1, q: w.handles[handle], rng: rand.New(rand.NewPCG(w.o.Seed, 100+uint64(id)))}
}

func (w *world) startActors() {
	id := 0
	for _, role := range []struct {
		n  int
		do func(*actor)
	}{{w.knobs.producers, (*actor).produce}, {w.knobs.workers, (*actor).work}, {w.knobs.takers, (*actor).take}, {w.knobs.operators, (*actor).operate}} {
		for range role.n {
			a := w.actor(id, id%w.knobs.handles)
			w.sched.start(firstActor+id, func() { role.do(a) })
			id++
		}
	}
}

// heal takes back what operators have done, so that everything can be delivered.
func (w *world) heal() {
	a := w.actor(99, 0)
	a.call(&op{kind: "heal"}, func(ctx context.Context) error {
		if _, _, err := a.q.Configure(ctx, func(c *layer.Config) { c.MaxAttempts = 0 }); err != nil {
			return err
		}
		a.sleep(2 * time.Second) // every handle knows it
		if _, err := a.q.Resume(ctx); err != nil && !errors.Is(err, layer.ErrNotPaused) {
			return err
		}
		for i := range w.knobs.groups {
			if _, err := a.q.ResumeGroup(ctx, fmt.Sprintf("g%d", i)); err != nil && !errors.Is(err, layer.ErrNotPaused) {
				return err
			}
		}
		_, err := a.q.Redrive(ctx, layer.DeadFilter{}, layer.RedriveOptions{})
		return err
	})
}

// drain receives and acks until the queue is empty.
func (a *actor) drain() {
	for !a.w.empty() {
		o := &op{kind: "receive"}
		a.call(o, func(ctx context.Context) (err error) {
			o.claims, err = a.q.Receive(ctx, layer.ReceiveOptions{Max: 50, Wait: 2 * time.Second})
			return err
		})
		for _, c := range o.claims {
			s := &op{kind: "ack", settle: true, all: true, group: c.Group, token: c.Token}
			for _, item := range c.Items {
				s.ids = append(s.ids, item.ID)
			}
			a.call(s, func(ctx context.Context) error { return a.q.Ack(ctx, c) })
		}
		if len(o.claims) == 0 {
			a.sleep(100 * time.Millisecond)
		}
	}
}

// rows reads a range of the engine itself, past all faults and parks.
func (w *world) rows(r kv.KeyRange, limit int) []kv.KV {
	tx, err := w.raw.Begin(kv.TxOptions{})
	if err != nil {
		w.violation("read: %v", err)
		return nil
	}
	defer tx.Cancel()
	rows, err := tx.Snapshot().GetRange(r.Selectors(), kv.RangeOptions{Limit: limit}).Wait(context.Background())
	if err != nil {
		w.violation("read: %v", err)
	}
	return rows
}

func (w *world) empty() bool { return len(w.rows(section("item"), 1)) == 0 }

// close closes the handles and holds the queue to its own rules.
func (w *world) close() {
	ctx := context.Background()
	for i, q := range w.handles {
		p := q.Paths()
		for name, n := range map[string]int64{
			"path direct": p.Direct, "path widened": p.Widened, "path staged": p.Staged, "path granted": p.Granted,
			"path looks": p.Looks, "path coalesced": p.Together - p.Shared,
		} {
			w.marks[name] += int(n)
		}
		if i == 0 {
			continue
		}
		if err := q.Close(ctx); err != nil {
			w.violation("close handle %d: %v", i+1, err)
		}
	}
	r, err := w.handles[0].Check(ctx, layer.CheckOptions{})
	if err != nil {
		w.violation("check: %v", err)
	} else {
		for _, v := range r.Violations {
			w.violation("check: %s", v)
		}
	}
	if err := w.handles[0].Close(ctx); err != nil {
		w.violation("close handle 1: %v", err)
	}
}

// Add adds the figures of another run.
func (r *Report) Add(o *Report) {
	r.Operations, r.Steps, r.Commits, r.Virtual = r.Operations+o.Operations, r.Steps+o.Steps, r.Commits+o.Commits, r.Virtual+o.Virtual
	r.Lost, r.Doubled, r.Unexpected, r.Recovered = r.Lost+o.Lost, r.Doubled+o.Doubled, r.Unexpected+o.Unexpected, r.Recovered+o.Recovered
	r.Ambiguous += o.Ambiguous
	r.Violations = append(r.Violations, o.Violations...)
	for name, n := range o.Marks {
		r.Marks[name] += n
	}
}

// String is a report for people.
func (r *Report) String() string {
	var s strings.Builder
	fmt.Fprintf(&s, "%d operations, %d steps, %d commits, %s of virtual time; lost %d, doubled %d, unexpected %d, recovered %d\n",
		r.Operations, r.Steps, r.Commits, r.Virtual, r.Lost, r.Doubled, r.Unexpected, r.Recovered)
	for _, name := range slices.Sorted(maps.Keys(r.Marks)) {
		fmt.Fprintf(&s, "  %-40s %d\n", name, r.Marks[name])
	}
	for _, v := range r.Violations {
		fmt.Fprintf(&s, "VIOLATION %s\n", v)
	}
	return s.String()
}
