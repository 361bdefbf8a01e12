package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"fdbfifo/kv/fault"
	"fdbfifo/layer"
)

// knobs is what a seed chooses for its whole run. Each fault is left out of about half of the runs (swarm testing): a
// fault that always strikes hides what only its absence lets happen.
type knobs struct {
	handles, groups                       int
	producers, workers, takers, operators int
	perActor                              int // operations
	batch                                 int // most messages of an enqueue
	receive                               int // most items of a receive
	skew                                  []time.Duration
	config                                layer.Config
	manyHandles                           bool    // few actors share a handle
	profile                               string  // see profiles
	hold                                  float64 // chance that a commit is held before it is sent
	// seek is the chance that a commit is held until others have written where it has read; own, that these others must
	// have written what the commit writes itself.
	seek, own                                float64
	shortPause, longPause                    float64 // chance of each a step
	faults                                   map[fault.Kind]float64
	versionJump, holdWatches                 float64 // chance of each a commit
	giveUp                                   float64 // chance that a call's context ends early
	die, freeze, partial, nack, reject, fuse float64 // chances of a worker's actions on a claim
	think                                    time.Duration
	wait                                     time.Duration // longest of a receive

	disk                        bool    // the store is a file
	crash, kill, stop           int     // of the store, of a process, a process that stands still: weights of blows
	blowEvery                   int     // steps between two blows, on the mean; 0 = none
	consumers                   int     // layer.Workers, at most one a handle
	inTx                        float64 // chance that an actor does in its own transaction what needs none
	joins                       float64 // chance that a delayed message joins its group when it is due
	large, delayed, named, same float64 // chances that a message has parts, a delay, a dedup id, a body of others
	repeat                      float64 // chance that a receive has a receive id
	loses                       float64 // chance that a commit which claims loses a conflict, see contended.go
	leaves                      bool    // the run is of callers that leave and repeat their receives
	leap                        float64 // chance of each a step that leapLeast passes, and up to an hour more
	leapLeast                   time.Duration
	holdLeast                   time.Duration // the shortest that a commit is held
	holdMost                    time.Duration // the longest; 0 = a transaction's life
	poll                        time.Duration // of the handles; 0 = the default
	clocks                      bool          // processes have wrong clocks, see clocks.go
	recalls                     bool          // they share ids, see recall.go
	rivals                      float64       // chance that two actors settle a claim, see rival.go
	stepped                     bool          // operators work in steps, see stepped.go
	first                       string        // the kind of the first process's clock
	attempts                    int           // how many receive ids there are; 0 = each is used for one receive
	twin                        float64       // chance that this is one of a receive under way
	ids                         int           // how many dedup ids there are
	operations                  []int         // of operators, by their numbers in operate; none = all
	state                       float64       // chance that an ack sets the group's state
	tending
	later
	plainKnobs
	sizeKnobs
	beatKnobs
	movingKnobs
	hooked bool      // handles have hooks that go wrong, see hooks.go
	owes   bool      // the run is held to the laws of owed wakes, see owing.go
	wakes  bool      // the run is held to the law of wakes, see waking.go
	dead   int       // if wakes: how many requests of dead handles there are for each group and lane
	plan   *lanePlan // of a queue with facets; nil = it has none
}

const (
	maxSkew = 30 * time.Second
	// mostShards is to how many the shards are raised.
	mostShards = 12
	maxLease   = 20 * time.Second
	maxDelay   = 10 * time.Second

	mostHandles = 5
)

// swarm is the faults, each with its greatest chance.
var swarm = []struct {
	kind fault.Kind
	most float64
}{
	{fault.ReadVersionFailed, 0.02}, {fault.ReadTooOld, 0.02}, {fault.FutureVersion, 0.02}, {fault.ProcessBehind, 0.02},
	{fault.Conflict, 0.15}, {fault.UnknownApplied, 0.1}, {fault.UnknownLost, 0.1}, {fault.CommitTooOld, 0.03},
	{fault.MemoryLimit, 0.03}, {fault.TimedOutLate, 0.03}, {fault.TimedOutLost, 0.03},
	{fault.WatchSpurious, 0.2}, {fault.WatchError, 0.2},
}

func drawKnobs(rng *rand.Rand) *knobs {
	half := func(most float64) float64 {
		if rng.IntN(2) == 0 {
			return 0
		}
		return most * rng.Float64()
	}
	k := &knobs{
		handles: 1 + rng.IntN(mostHandles), groups: 1 + rng.IntN(12),
		producers: 1 + rng.IntN(4), workers: 1 + rng.IntN(8), takers: max(0, rng.IntN(4)-1), operators: rng.IntN(3),
		batch: 1 + rng.IntN(6), receive: 1 + rng.IntN(8),
		manyHandles: rng.IntN(4) == 0,
		shortPause:  0.05 * rng.Float64(), longPause: half(0.002),
		versionJump: half(0.005), holdWatches: half(0.5), giveUp: half(0.1),
		die: half(0.1), freeze: half(0.1), partial: half(0.4), nack: half(0.3), reject: half(0.1), fuse: half(0.6),
		think: time.Duration(rng.Int64N(int64(time.Second))), wait: time.Duration(rng.Int64N(int64(10 * time.Second))),
		faults: make(map[fault.Kind]float64), leapLeast: time.Hour, holdLeast: 100 * time.Microsecond,
	}
	if rng.IntN(2) == 0 {
		k.groups = 1 + rng.IntN(3) // scarce: everybody meets in the same groups, which are often empty
		k.batch = 1 + rng.IntN(2)
	}
	rng.IntN(6) // was a choice: so a seed keeps those that follow
	if k.manyHandles {
		k.handles = mostHandles
	}
	skewed := rng.IntN(2) == 0
	for range mostHandles {
		var d time.Duration
		if skewed {
			d = time.Duration(rng.Int64N(int64(2*maxSkew))) - maxSkew
		}
		k.skew = append(k.skew, d)
	}
	k.config = layer.Config{
		Shards: []int{1, 1, 2, 7}[rng.IntN(4)], RoundRobin: rng.IntN(2) == 1,
		Lease: layer.MinLease + time.Duration(rng.Int64N(int64(maxLease-layer.MinLease))),
		Retry: layer.RetryPolicy{
			Kind: layer.RetryKind(rng.IntN(3)), Base: 50 * time.Millisecond, Max: 5 * time.Second,
		},
		MaxAttempts: []int{layer.Unlimited, 1, 2, 5}[rng.IntN(4)], OnFailure: layer.OnFailure(rng.IntN(3)),
	}
	for _, s := range swarm {
		if p := half(s.most); p > 0 {
			k.faults[s.kind] = p
		}
	}
	k.drawMore(rng, half)
	return k
}

// shape fits the knobs to the profile and the number of operations.
func (k *knobs) shape(rng *rand.Rand, o Options) {
	k.drawSizes(o.Seed)
	k.profile = profileOf(rng)
	if o.Profile == "" && k.profile == "" {
		k.drawSeek(o.Seed)
	}
	if o.Profile != "" {
		k.profile = o.Profile
	}
	if fit := profiles[k.profile]; fit != nil {
		fit(k, rng)
	}
	k.consumers = min(k.consumers, k.handles)
	k.disk = k.disk && o.Folder != ""
	if k.disk {
		// A commit that comes late would fall into the group of another, or not, as the disk has it.
		for _, kind := range landsLate {
			delete(k.faults, kind)
		}
	}
	k.share(o)
}

// share gives each actor its share of the operations.
func (k *knobs) share(o Options) {
	k.perActor = max(1, o.Operations/(k.producers+k.workers+k.takers+k.operators+k.consumers+k.owners))
}

// drawMore draws what came to the knobs later: so a seed keeps its first choices.
func (k *knobs) drawMore(rng *rand.Rand, half func(float64) float64) {
	k.ids = 30
	k.disk = rng.IntN(8) == 0
	k.crash, k.kill, k.stop = rng.IntN(3), rng.IntN(3), rng.IntN(3)
	if rng.IntN(3) > 0 && k.crash+k.kill+k.stop > 0 {
		k.blowEvery = 300 + rng.IntN(2000)
	}
	if rng.IntN(2) == 0 {
		k.consumers = 1 + rng.IntN(k.handles)
	}
	k.inTx, k.delayed, k.repeat, k.state = half(0.6), half(0.3), half(0.4), half(0.5)
	if rng.IntN(4) == 0 {
		k.large = 0.02
	}
	c := &k.config
	if rng.IntN(3) == 0 {
		k.named = rng.Float64()
		k.same = rng.Float64()
		c.DedupByContent, c.DedupInGroup = rng.IntN(2) == 1, rng.IntN(2) == 1
		c.DedupForPending = rng.IntN(2) == 1
		c.DedupWindow = time.Second + time.Duration(rng.Int64N(int64(time.Minute)))
	}
	if rng.IntN(4) == 0 {
		c.MaxWaiting = 1 + rng.IntN(12)
	}
	if rng.IntN(5) == 0 {
		c.Delay = time.Duration(rng.Int64N(int64(maxDelay / 2)))
	}
	if rng.IntN(4) == 0 {
		c.Archive = time.Second + time.Duration(rng.Int64N(int64(time.Minute)))
	}
	if rng.IntN(6) == 0 {
		c.Retention = time.Second + time.Duration(rng.Int64N(int64(time.Minute)))
		c.DeadLetterExpired = rng.IntN(2) == 1
	}
	if rng.IntN(4) == 0 {
		k.stage(rng)
	}
}

// stage makes a world in which there are more receivers than groups, which wait in several handles.
func (k *knobs) stage(rng *rand.Rand) {
	k.groups, k.batch, k.receive = 1+rng.IntN(3), 1, 1+rng.IntN(2)
	k.workers, k.producers = 6+rng.IntN(8), 1+rng.IntN(2)
	k.takers, k.consumers = 0, 0
	k.handles = max(k.handles, 3)
	if rng.IntN(3) > 0 {
		// Now and then more groups get ready than the handle that is woken can take: it grants the others.
		k.handles, k.workers, k.producers, k.operators = 5, 8+rng.IntN(6), 1, 0
		k.groups, k.batch, k.receive, k.think = 10, 10, 1, 2*time.Second
		k.blowEvery, k.stop, k.kill = 200+rng.IntN(800), 3, 1
		k.config.MaxWaiting, k.delayed = 0, 0
	}
	rng.IntN(2) // was a choice, too
	k.wait = time.Second + time.Duration(rng.Int64N(int64(40*time.Second)))
}

// String describes the knobs, for the report of a failed run.
func (k *knobs) String() string { return fmt.Sprintf("%+v", *k) }
