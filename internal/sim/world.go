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

	"github.com/google/uuid"

	"fdbfifo/internal/callback"
	"fdbfifo/internal/linear"
	"fdbfifo/kv"
	"fdbfifo/kv/fault"
	"fdbfifo/layer"
	"fdbfifo/worker"
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
	// Folder is an empty one for the store of the seeds that run on disk; "" = they run in memory.
	Folder string
	// Retire has handles closed in good order while their actors work (retire.go).
	Retire bool
	// Linear keeps the histories of the calls for Report.Linearize.
	Linear bool
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
	// there without an enqueue; delivered again after a holder or an answer was lost.
	Lost, Doubled, Unexpected, Recovered int
	Ambiguous                            int // steps that the seed did not decide alone: 0 or the run cannot be repeated
	Marks                                map[string]int
	Violations                           []string
	Digest                               uint64 // of the trace
	Trace                                string
	Knobs                                string

	Linear  linear.Result
	Skipped int                           // groups without a receive, and without one to come
	calls   map[string][]linear.Operation // of each group
}

// The names of goroutines in places: the engine below 1, handles from 1 on, actors from firstActor on.
const firstActor = 1000

const (
	queuePrefix = "Q"
	queueName   = "q"
)

// world is one run.
type world struct {
	workers uint64 // made so far
	o       Options
	knobs   *knobs
	sched   *scheduler
	store   *store
	plan    *fault.Plan
	rng     *rand.Rand // of the engine's hooks
	jump    int64      // versions to skip before the next commit group
	faulty  bool
	seeks   bool // commits may seek conflicts
	calm    int  // the step at which the faults stopped

	handles   []*handle
	nextActor int // of those that take up the work of the dead
	ops       []*op
	known     []layer.ID        // messages that operators have heard of
	handed    []layer.ID        // messages that were received
	ownedBy   []owned           // messages that were sent
	hearings  []*hearing        // calls of handlers of changes
	missed    map[string]int    // by topics: how often a subscriber was told so
	mischief  map[string]int    // by topics: calls of handlers that failed on purpose
	attempts  map[string]int    // receive ids of receives under way: the actor
	beaten    map[claimKey]bool // claims of receives that asked for the heartbeat
	orphans   []string          // receive ids of receives whose actor died
	outcomes  map[attemptID]int
	replays   int               // begun
	recalled  int               // messages that were received under repeated ids
	large     map[string][]byte // values of records, by their digests
	marks     map[string]int
	laws      map[layer.ID]*lawful // of progress, see law.go
	owing     *owingWorld          // nil = the run is not of the profile
	waking    *wakingWorld         // nil = the run is not of the profile
	moving    *movingWorld         // nil = there are no movers
	made      map[claimKey]bool    // claims that were sent, see contended.go
	slow      bool                 // hooks of a worker were slow
	wrongs    wrongs               // see hooks.go
	besides   *layer.Queue         // see slow.go; nil = no worker has a second queue
	besidesDB kv.DB                // its database
	hangs     bool                 // a handler has ignored the end of its context

	doom       *doom                // nil = not yet
	owned      map[uuid.UUID]int    // what handles name their own keys by, and the handle
	written    map[string]attemptID // by which such a key was set last
	claims     sentClaims           // nil = no handle is closed
	leftBy     []leftClaim          // by handles that were closed
	violations []string
	report     *Report
}

// handle is a process: a handle on the queue, and the actors that use it.
type handle struct {
	q         *layer.Queue
	engine    *engine
	who       int
	skew      time.Duration
	clock     *clock // nil = it is off by skew
	actors    []*actor
	consumer  *worker.Worker // that works now
	consumed  bool           // there was one
	replaying bool           // an actor replays the archive, or one has failed to
	dead      bool
	opened    time.Time
	died      int // the step; 0 = it lives
	diedAt    time.Time
	retired   bool // Close was called while its actors worked
	closedAt  int  // the step of that call
	silent    bool // and has returned nil
	stood     int  // how often the process has stood still
}

// mostSteps is how many steps of the driver each operation may take, on the mean. A few dozen are usual.
const mostSteps = 2_000

// Run runs the world of a seed, in a bubble.
func Run(o Options) *Report {
	rng := rand.New(rand.NewPCG(o.Seed, 1))
	knobs := drawKnobs(rng)
	knobs.drawVersions(rand.New(rand.NewPCG(o.Seed, 6)))
	knobs.shape(rand.New(rand.NewPCG(o.Seed, 5)), o)
	knobs.widen(rand.New(rand.NewPCG(o.Seed, 11)))
	knobs.ends(rand.New(rand.NewPCG(o.Seed, 12)))
	knobs.lane(o)
	knobs.drawLater(o)
	knobs.drawPlain(o)
	knobs.drawRetroactive(o)
	knobs.drawFair(o)
	knobs.drawBeats(o)
	knobs.drawHooks(o)
	w := &world{
		o: o, knobs: knobs, rng: rand.New(rand.NewPCG(o.Seed, 2)),
		owned: make(map[uuid.UUID]int), written: make(map[string]attemptID),
		outcomes: make(map[attemptID]int), marks: make(map[string]int), attempts: make(map[string]int),
		made:   make(map[claimKey]bool),
		beaten: make(map[claimKey]bool), missed: make(map[string]int), mischief: make(map[string]int),
		large: make(map[string][]byte), nextActor: 300, wrongs: wrongs{left: mostWrong},
		plan: &fault.Plan{Seed: o.Seed}, report: &Report{Seed: o.Seed}, seeks: knobs.seek > 0,
	}
	w.sched = &scheduler{
		settle: o.Settle, rng: rand.New(rand.NewPCG(o.Seed, 3)), knobs: w.knobs, trace: &trace{keep: o.Trace},
		arrived: make(chan struct{}, 1), most: mostSteps * max(o.Operations, 300),
	}
	w.store = &store{w: w, plan: w.plan}
	if w.knobs.disk {
		w.store.folder = o.Folder
	}
	begun := time.Now()
	if err := w.store.open(); err != nil {
		w.violation("%v", err)
		w.report.Violations = w.violations
		return w.report
	}
	if err := w.live(); err != nil {
		w.violation("liveness: %v", err)
		w.verify(false)
		w.faulty, w.plan.Chances = false, nil
		report := *w.sched.trace
		w.abandon()
		w.sched.trace = &report
	} else {
		w.verify(true)
		if w.knobs.dropped && len(w.violations) == 0 {
			if err := w.drop(); err != nil {
				w.violation("drop: %v", err)
				w.faulty, w.plan.Chances = false, nil
				report := *w.sched.trace
				w.abandon()
				w.sched.trace = &report
			}
		}
	}
	virtual := time.Since(begun)
	ended := *w.sched.trace
	w.sched.giveUp(0)
	time.Sleep(time.Hour) // what the dead have left behind, and handlers that hang, wake up and end
	w.sched.trace = &ended
	if err := w.store.close(); err != nil {
		w.violation("close: %v", err)
	}
	if w.besides != nil {
		if err := errors.Join(w.besides.Close(context.Background()), w.besidesDB.Close()); err != nil {
			w.violation("close the second queue: %v", err)
		}
	}
	r := w.report
	r.Operations, r.Steps, r.Virtual, r.Ambiguous = len(w.ops), w.sched.steps, virtual, w.sched.ambiguous
	r.Marks, r.Violations, r.Knobs = w.marks, w.violations, w.knobs.String()
	r.Digest, r.Trace = w.sched.trace.sum, w.sched.trace.String()
	for k, n := range w.plan.Counts() {
		r.Marks["fault "+k.String()] += n
	}
	return r
}

// mark counts that something was seen. It does not count after the end of the run.
func (w *world) mark(name string) {
	if !w.sched.givenUp() {
		w.marks[name]++
	}
}

func (w *world) violation(format string, args ...any) {
	s := fmt.Sprintf(format, args...)
	w.violations = append(w.violations, s)
	w.sched.trace.add("VIOLATION %s", s)
}

func (w *world) group(rng *rand.Rand) string { return w.groupName(rng.IntN(w.knobs.groups)) }

// versionGap makes versions jump as a recovery of a cluster does.
func (w *world) versionGap() int64 {
	if gap := w.jump; gap > 0 {
		w.jump = 0
		return gap
	}
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
	ever := 30*24*time.Hour + 100*w.knobs.leapLeast
	w.sched.start(1, w.open)
	if err := w.sched.drive(time.Hour); err != nil {
		return err
	}
	if len(w.violations) > 0 {
		return errors.New("not opened")
	}
	w.faulty, w.plan.Chances, w.sched.leap = true, w.knobs.faults, w.knobs.leap
	w.startActors()
	f := &fate{w: w, rng: rand.New(rand.NewPCG(w.o.Seed, 5)), who: firstActor + 98, rest: 90 * time.Second}
	go f.strike()
	if err := w.sched.drive(ever); err != nil {
		return fmt.Errorf("under faults: %w", err)
	}
	w.sched.kill(f.who)
	w.sched.thaw()
	w.faulty, w.plan.Chances = false, nil
	w.knobs.longPause, w.knobs.shortPause, w.knobs.hold, w.knobs.seek, w.sched.leap = 0, 0, 0, 0, 0
	if err := w.plan.Land(context.Background()); err != nil {
		return err
	}
	w.sched.trace.note("calm")
	w.calm = w.sched.steps
	w.sched.start(1, func() {
		w.desert()
		w.purgeAgain()
		w.sweepAlone()
		w.recallIDs()
		w.stopClocks()
		w.heal()
	})
	if err := w.sched.drive(time.Hour + recallFor); err != nil {
		return fmt.Errorf("heal: %w", err)
	}
	calm := time.Now()
	for i, h := range w.alive() {
		a := w.actor(100+i, h)
		switch a.role = (*actor).drain; {
		case w.knobs.worked:
			a.role = (*actor).finish
		case w.knobs.plan != nil:
			a.role = (*actor).drainLanes
		}
		w.startActor(a)
	}
	w.finishTopics()
	w.finishMoves()
	bound := maxLease + maxDelay + 2*maxSkew + 30*time.Second + w.pacedFor()
	if w.knobs.worked {
		bound += endOf*time.Duration(len(w.rows(section("item"), 0))) + mostWrong*2*callback.Patience
	}
	if bound += w.totalFor(); w.knobs.clocks {
		bound = w.knobs.drainsWithin()
	}
	if len(w.knobs.topics) > 0 {
		bound += waitAtMost + 2*maxSkew + 10*time.Second
	}
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
	for _, h := range w.alive() {
		if h.consumer != nil {
			h.consumer.Stop(context.Background())
		}
		if err := h.q.Close(context.Background()); err != nil {
			w.violation("close: %v", err)
		}
	}
}

// alive is the handles whose processes live.
func (w *world) alive() (all []*handle) {
	for _, h := range w.handles {
		if !h.dead {
			all = append(all, h)
		}
	}
	return all
}

func (w *world) handleOf(who int) *handle { return w.handles[who-1] }

func (w *world) skewOf(who int) time.Duration { return w.handleOf(who).skew }

// opening is layer.Create or layer.Open.
type opening func(ctx context.Context, db kv.DB, prefix []byte, name string, o layer.Options) (*layer.Queue, error)

// openHandle opens another handle.
func (w *world) openHandle(open opening, skew time.Duration) (*handle, error) {
	h := &handle{who: len(w.handles) + 1, skew: skew, opened: time.Now()}
	w.handles = append(w.handles, h)
	if w.knobs.clocks {
		h.clock = w.clockOf(h.who)
	}
	h.engine = &engine{w: w, who: h.who, now: h.now}
	q, err := open(context.Background(), h.engine, []byte(queuePrefix), queueName, layer.Options{
		Owner: fmt.Sprintf("handle %d", h.who), Now: h.now, Config: w.knobs.config, Poll: w.knobs.poll,
		Test: w.testOptions(h.who, w.o.Seed<<8+uint64(h.who)), Hooks: w.hooks(h.who),
		Tx: kv.TxOptions{OnTrouble: func(kv.Trouble) {}}, // keeps outages out of the log
	})
	h.q, h.dead = q, h.dead || err != nil
	return h, err
}

// testOptions are the knobs of a handle, and of the workers on it.
func (w *world) testOptions(who int, seed uint64) *layer.TestOptions {
	return &layer.TestOptions{
		Seed: seed,
		Yield: func(ctx context.Context, what string) {
			actor, _ := ctx.Value(actorKey{}).(int)
			w.sched.park(place{what, who, -actor})
		},
	}
}

// workerSeed numbers the workers, from 1 on.
func (w *world) workerSeed() uint64 {
	w.workers++
	return w.workers
}

func (w *world) open() {
	for i := range w.knobs.handles {
		open := opening(w.openAgain)
		if i == 0 {
			open = layer.Create
		}
		if _, err := w.openHandle(open, w.knobs.skew[i]); err != nil {
			w.violation("open: %v", err)
			return
		}
	}
}

func (w *world) actor(id int, h *handle) *actor {
	a := &actor{w: w, id: id, who: h.who, q: h.q, rng: rand.New(rand.NewPCG(w.o.Seed, 100+uint64(id))), left: w.knobs.perActor}
	a.lanes = rand.New(rand.NewPCG(w.o.Seed, 10_000+uint64(id)))
	a.ctx, a.end = context.WithCancel(context.WithValue(context.Background(), actorKey{}, id))
	h.actors = append(h.actors, a)
	return a
}

// startActor starts an actor in its role.
func (w *world) startActor(a *actor) {
	w.sched.start(firstActor+a.id, func() {
		a.role(a)
		a.over = true
	})
}

// takeUp starts an actor of h for each of those, with what that one has left to do.
func (w *world) takeUp(work []*actor, h *handle) {
	for _, a := range work {
		b := w.actor(w.nextActor, h)
		w.nextActor++
		b.left, b.role = a.left, a.role
		w.startActor(b)
	}
}

func (w *world) startActors() {
	id := 0
	for i, role := range []struct {
		n  int
		do func(*actor)
	}{
		{w.knobs.consumers, (*actor).consume}, {w.knobs.producers, (*actor).produce}, {w.knobs.workers, (*actor).work},
		{w.knobs.takers, (*actor).take}, {w.knobs.operators, (*actor).operate},
		{w.knobs.stewards, (*actor).steward}, {w.knobs.owners, (*actor).ownMessages},
		{w.knobs.subscribers, (*actor).subscribe},
	} {
		for range role.n {
			a := w.actor(id, w.handles[id%w.knobs.handles])
			a.role, a.produces = role.do, i == 1
			w.startActor(a)
			id++
		}
	}
	w.startOwing()
	w.startWaking()
	w.startMovers()
	w.retire()
}

// heal takes back what operators have done, so that everything can be delivered.
func (w *world) heal() {
	if w.knobs.lethal != harmless {
		return
	}
	a := w.actor(99, w.alive()[0])
	a.call(&op{kind: "heal"}, func(ctx context.Context) error {
		if _, _, err := a.q.Admin().Configure(ctx, func(c *layer.Config) { c.MaxAttempts, c.MaxRate = layer.Unlimited, a.w.knobs.calmRate }); err != nil {
			return err
		}
		if a.w.unswept() {
			if _, err := a.q.Admin().Sweep(ctx, layer.SweepOptions{}); err != nil {
				return err
			}
		}
		a.sleep(2 * time.Second) // every handle knows it
		if _, err := a.q.Admin().Resume(ctx, layer.ResumeOptions{}); err != nil && !errors.Is(err, layer.ErrNotPaused) {
			return err
		}
		for i := range w.knobs.groups {
			_, err := a.q.Admin().ResumeGroup(ctx, w.groupName(i), layer.ResumeOptions{})
			if err != nil && !errors.Is(err, layer.ErrNotPaused) {
				return err
			}
		}
		_, err := a.q.Admin().Redrive(ctx, layer.DeadFilter{All: true}, layer.RedriveOptions{})
		return err
	})
}

// drain receives and acks until the queue is empty.
func (a *actor) drain() {
	for !a.w.empty() {
		o := &op{kind: "receive"}
		options := layer.ReceiveOptions{Max: 50, Wait: 2 * time.Second, Unordered: a.w.drainsPlain(a.who)}
		a.call(o, func(ctx context.Context) (err error) {
			o.claims, err = a.q.Receive(ctx, options)
			return err
		})
		for _, c := range o.claims {
			s := &op{kind: "ack", settle: true, all: true, group: claimLane(c), token: c.Token}
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
	tx, err := w.store.life.raw.Begin(kv.TxOptions{})
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
	for _, h := range w.handles {
		if h.q == nil {
			continue
		}
		p := h.q.Paths()
		for name, n := range map[string]int64{
			"path direct": p.Direct, "path widened": p.Widened, "path staged": p.Staged, "path granted": p.Granted,
			"path looks": p.Looks, "path coalesced": p.Together - p.Shared,
		} {
			w.marks[name] += int(n)
		}
	}
	alive := w.alive()
	for _, h := range alive[1:] {
		if err := h.q.Close(ctx); err != nil {
			w.violation("close handle %d: %v", h.who, err)
		}
	}
	r, err := alive[0].q.Admin().Check(ctx, layer.CheckOptions{})
	if err != nil {
		w.violation("check: %v", err)
	} else {
		for _, v := range r.Violations {
			w.violation("check: %s", v)
		}
	}
	if err := alive[0].q.Close(ctx); err != nil {
		w.violation("close handle %d: %v", alive[0].who, err)
	}
	w.left()
}

// Add adds the figures of another run.
func (r *Report) Add(o *Report) {
	r.Operations, r.Steps, r.Commits, r.Virtual = r.Operations+o.Operations, r.Steps+o.Steps, r.Commits+o.Commits, r.Virtual+o.Virtual
	r.Lost, r.Doubled, r.Unexpected, r.Recovered = r.Lost+o.Lost, r.Doubled+o.Doubled, r.Unexpected+o.Unexpected, r.Recovered+o.Recovered
	r.Ambiguous += o.Ambiguous
	r.Violations = append(r.Violations, o.Violations...)
	r.Linear.Add(o.Linear)
	r.Skipped += o.Skipped
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
