// Package bench measures the queue on any engine. It prints nothing: a benchmark returns its figures.
//
// Machines differ and are noisy, so what counts are ratios: both sides of one are measured in the same run, in
// short slices that alternate, and the figure is the median of several rounds. A benchmark also proves that the
// queue it measured was right: every item is accounted for and the check is clean, or it returns an error.
package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"fdbfifo/kv"
	"fdbfifo/kv/record"
)

// Space is where a benchmark works: the keys below Prefix, of which there are none yet. Closing DB gives up
// what was written.
type Space struct {
	DB     kv.DB
	Prefix []byte
}

// Env is what a benchmark needs of its surroundings.
type Env struct {
	// Open opens a space that no other call has returned.
	Open func(ctx context.Context) (Space, error)
	// Folder makes a folder that no other call has returned. It need not be set if Sizes.SharedRounds is 0.
	Folder func(ctx context.Context) (Folder, error)
	// Memory: the engine keeps nothing, so some targets are others.
	Memory bool
	// Progress, if not nil, is told how far a step of the benchmark has come.
	Progress func(step string, done, total int64)
}

// target is elsewhere, or inMemory in memory.
func (e Env) target(elsewhere, inMemory Target) Target {
	if e.Memory {
		return inMemory
	}
	return elsewhere
}

// openCounted opens a space whose transactions and mutations are counted.
func (e Env) openCounted(ctx context.Context) (space Space, counting *record.Recorder, err error) {
	if space, err = e.Open(ctx); err != nil {
		return space, nil, err
	}
	counting = record.WrapCounting(space.DB)
	space.DB = counting
	return space, counting, nil
}

func (e Env) progress(step string, done, total int) {
	if e.Progress != nil {
		e.Progress(step, int64(done), int64(total))
	}
}

// Result is one figure.
type Result struct {
	Name   string
	Value  float64
	Unit   string // "ratio" or what is counted
	Means  string // one line
	Detail string // how the figure came about: the spread over the rounds, the sizes
	Target Target
}

// Target is what a figure must reach. The zero value is none.
type Target struct {
	relation string // "≥" or "≤"
	limit    float64
}

func atLeast(limit float64) Target { return Target{"≥", limit} }
func atMost(limit float64) Target  { return Target{"≤", limit} }

// Exists reports whether there is a target.
func (t Target) Exists() bool { return t.relation != "" }

// Met reports whether v reaches the target; it does if there is none.
func (t Target) Met(v float64) bool {
	switch t.relation {
	case "≥":
		return v >= t.limit
	case "≤":
		return v <= t.limit
	}
	return true
}

func (t Target) String() string {
	if !t.Exists() {
		return ""
	}
	return fmt.Sprintf("%s %v", t.relation, t.limit)
}

// Benchmark is one piece of work that is measured.
type Benchmark struct {
	Name  string // of the figure that it is about, which comes first
	Means string
	run   func(ctx context.Context, env Env) ([]Result, error)
}

// Run runs the benchmark and returns its figures. When ctx ends it gives up, with its cause.
func (b Benchmark) Run(ctx context.Context, env Env) ([]Result, error) {
	results, err := b.run(ctx, env)
	if err != nil {
		return nil, fmt.Errorf("bench: %s: %w", b.Name, err)
	}
	return results, nil
}

// Sizes are how much work the benchmarks do.
type Sizes struct {
	Shallow, Deep         int // items in the two queues of depth_ratio, in as many groups
	FewGroups, ManyGroups int // of groups_ratio
	Held                  int // groups held in front of the ready ones, of held_ratio
	Claimers              int // goroutines of engine_ratio
	Enqueuers             int // goroutines of enqueue_conflicts
	EnqueuesEach          int // of one item each
	Batches               int // enqueued, claimed and acked for mutations_per_message

	Handles     []int // separate claimers of claimers_floor and of the plot, ascending
	ReadyGroups int   // of claimers_floor, the plot and the recipe's comparison
	ScarceItems int   // of the one group of transactions_per_item_one_group
	Idle        int   // receivers of idle_transactions_per_s
	Wakes       int   // enqueues of wake_p50_roundtrips
	LateWakes   int   // of late_wake_share and shared_late_wake_share, at each time
	Senders     int   // goroutines of coalescing_gain

	SharedRounds         int // of shared_ratio and shared_cost; 0 = none of the figures of several processes
	Takeovers            int // of takeover_ms
	SlowGroups, SlowEach int // groups of worker_livelock, and items of each; each takes 0.9 s
	WorkerGroups         int // of worker_ratio, a batch in each, in each slice
	HeatGroups           int // of heat, each enqueued to once; the more, the more evenly they fall into shards

	FewOthers, ManyOthers int           // groups that do not match, of template_ratio
	StageBatches          int           // enqueued by the producer of stage_conflicts
	StageItems            int           // of a slice of stages_gain, a multiple of 10
	StageWork             time.Duration // for an item in a stage, of stages_gain

	Acks     int           // of ack_beside_conflicts
	OpenLoop time.Duration // how long contended_handles sends; pickup_p99 sends for a sixth of it
	Pickups  int           // messages of pickup_p99 that are sent at once, to see the top rate

	LongRounds int           // of the figures whose slices are long
	LongSlice  time.Duration // of those with many claimers, which need time to get under way
	Watch      time.Duration // how long idle receivers are watched
	Patience   time.Duration // after which an item that has not come is lost

	Rounds int // of a ratio, whose median it is
	Slices int // of either side, in a round
	// Slice is how long a slice of engine_ratio lasts; one of a ratio of times is SliceBatches long.
	Slice        time.Duration
	SliceBatches int
}

// Full are the sizes that the targets are about.
func Full() Sizes {
	return Sizes{
		Shallow: 1000, Deep: 1_000_000, FewGroups: 100, ManyGroups: 100_000, Held: 10_000,
		Claimers: 4, Enqueuers: 64, EnqueuesEach: 200, Batches: 1000,
		Handles: []int{1, 2, 4, 8, 16, 32, 64}, ReadyGroups: 10_000, ScarceItems: 1000, Idle: 1000, Wakes: 300, LateWakes: 2000, Senders: 256,
		SharedRounds: 15, Takeovers: 11,
		SlowGroups: 8, SlowEach: 10, WorkerGroups: 1000, HeatGroups: 2000,
		FewOthers: 10, ManyOthers: 100_000, StageBatches: 1000, StageItems: 300, StageWork: 2 * time.Millisecond,
		Acks: 1000, OpenLoop: time.Minute, Pickups: 10_000,
		LongRounds: 7, LongSlice: 300 * time.Millisecond, Watch: 10 * time.Second, Patience: 20 * time.Second,
		Rounds: 31, Slices: 4, Slice: 100 * time.Millisecond, SliceBatches: 50,
	}
}

// Tiny are sizes that show whether the benchmarks work. Their figures mean nothing.
func Tiny() Sizes {
	return Sizes{
		Shallow: 100, Deep: 1000, FewGroups: 5, ManyGroups: 50, Held: 20,
		Claimers: 4, Enqueuers: 8, EnqueuesEach: 5, Batches: 5,
		Handles: []int{1, 2, 4}, ReadyGroups: 200, ScarceItems: 10, Idle: 10, Wakes: 3, LateWakes: 1, Senders: 8,
		SharedRounds: 1, Takeovers: 1,
		SlowGroups: 2, SlowEach: 1, WorkerGroups: 10, HeatGroups: 20,
		FewOthers: 2, ManyOthers: 50, StageBatches: 5, StageItems: 30, StageWork: 50 * time.Microsecond,
		Acks: 5, OpenLoop: 60 * time.Millisecond, Pickups: 50,
		LongRounds: 1, LongSlice: time.Millisecond, Watch: 20 * time.Millisecond, Patience: 3 * time.Second,
		Rounds: 3, Slices: 2, Slice: time.Millisecond, SliceBatches: 2,
	}
}

// All returns the benchmarks, at the given sizes.
func All(s Sizes) []Benchmark {
	all := []Benchmark{
		engineRatio(s),
		depthRatio(s),
		groupsRatio(s),
		heldRatio(s),
		enqueueConflicts(s),
		mutationsPerMessage(s),
		extendMutations(s),
		sendRatio(s),
		fewGroupsConflicts(s),
		headsRatio(s),
		claimersFloor(s),
		transactionsPerItem(s),
		idleTransactions(s),
		consoleTransactions(s),
		blockedRatio(s),
		seriesPerQueue(s),
		hooksCost(s),
		wakeRoundTrips(s),
		lateWakeShare(s),
		ackBesideConflicts(s),
		coalescingGain(s),
		transactionsPerBatch(s),
		recipeRatio(s),
		recipeRatioSingle(s),
		upkeepSlowdown(s),
		workerLivelock(s),
		workerRatio(s),
		heat(s),
		templateRatio(s),
		stageMutations(s),
		stageConflicts(s),
		stagesGain(s),
		subscribeRoundTrips(s),
		sqsRatio(s),
		sqsMutations(s),
		sqsBlocked(s),
		sqsIdle(s),
		sqsQuiet(s),
		fairRatio(s),
	}
	if s.SharedRounds > 0 {
		all = append(all, sharedRatio(s), sharedCost(s), takeover(s), sharedLateWakeShare(s))
	}
	return all
}

// closing joins what closing the space says to the error of the work in it.
func (s Space) closing(err *error) {
	if e := s.DB.Close(); e != nil {
		*err = errors.Join(*err, fmt.Errorf("close: %w", e))
	}
}
