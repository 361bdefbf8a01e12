package sim

import (
	"math/rand/v2"
	"time"

	"fdbfifo/layer"
)

// tending says which actions the stewards do, and which mistakes a worker makes.
type tending struct {
	stewards int
	rated    bool       // the rate of the groups is changed all the time
	rushes   bool       // a message is sent and received while it is slow, and then there is none
	calmRate layer.Rate // what it is when the faults stop
	replays  bool       // the archive is replayed
	leases   bool       // the lease of the queue is changed all the time
	turns    bool       // several sweep, and pause the queue, at the same time
	wrong    float64    // chance that a worker acks what it does not hold, too
	dropped  bool       // the run ends with a drop of the queue
	// recreated: if dropped: a new queue of the name is created while handles of the old one are open
	recreated bool
	panics    float64   // chance that a handler panics
	worked    bool      // workers alone handle messages, see law.go
	strict    bool      // if worked: without faults
	lethal    lethality // handlers kill their process
	poison    string    // the label of the message that always kills
}

// widen draws what stewards do. A run of a profile has what that says, and nothing of it by itself.
func (k *knobs) widen(rng *rand.Rand) {
	if k.profile != "" {
		return
	}
	if rng.IntN(5) == 0 {
		k.rate(rng)
	}
	if rng.IntN(4) == 0 {
		k.turns, k.stewards = true, max(k.stewards, 1+rng.IntN(2))
	}
	if k.config.Archive > 0 && rng.IntN(2) == 0 {
		k.replays, k.stewards = true, max(k.stewards, 1)
	}
	if rng.IntN(3) == 0 {
		k.wrong = 0.2 * rng.Float64()
	}
	if rng.IntN(2) == 0 {
		k.panics = 0.2 * rng.Float64()
	}
}

// tended: stewards on several handles that get in each other's way, and workers that make mistakes.
func (k *knobs) tended(rng *rand.Rand) {
	k.scarce(rng)
	k.handles, k.stewards, k.turns, k.operators = 2+rng.IntN(4), 2+rng.IntN(4), true, 0
	k.wrong = 0.3
	k.hold = 0.4 * rng.Float64()
}

// slowRate is slower than any run is long.
var slowRate = layer.Rate{Count: 1, Per: 10 * time.Minute}

var rates = []layer.Rate{
	{Count: 5, Per: time.Second}, {Count: 2, Per: time.Second}, {Count: 1, Per: time.Second},
	{Count: 3, Per: 2 * time.Second}, {Count: 1, Per: 5 * time.Second}, slowRate,
}

// rate bounds how fast a group is delivered.
func (k *knobs) rate(rng *rand.Rand) {
	k.rated = true
	k.config.MaxRate = rates[rng.IntN(len(rates))]
	k.calmRate = []layer.Rate{{}, {Count: 10, Per: time.Second}, {Count: 5, Per: 2 * time.Second}}[rng.IntN(3)]
	k.stewards = max(k.stewards, rng.IntN(3))
}

// paced: groups with a rate that is changed all the time, and sweeps of the leftovers of old rates.
func (k *knobs) paced(rng *rand.Rand) {
	k.scarce(rng)
	k.groups, k.operators, k.config.Retention = 1+rng.IntN(4), 0, 0
	k.rate(rng)
	k.stewards = 2 + rng.IntN(3)
	k.hold = 0.4 * rng.Float64()
}

// repaced: groups which are empty most of the time, a rate which is slow for one message, and sweeps which last until
// the next change of the rate.
func (k *knobs) repaced(rng *rand.Rand) {
	k.paced(rng)
	k.rushes, k.config.MaxRate, k.calmRate = true, layer.Rate{}, layer.Rate{}
	k.groups, k.batch, k.handles = 1+rng.IntN(2), 1, mostHandles
	k.producers, k.workers, k.takers, k.stewards = 1, 1, 0, 4
	k.think, k.wait = 500*time.Millisecond, 0
	k.nack, k.die, k.freeze, k.delayed, k.config.Delay = 0, 0, 0, 0, 0
	k.hold, k.holdLeast = 0.25, time.Second
}

// replayed: an archive with large bodies, of which a transaction can replay a few, while more are finished.
func (k *knobs) replayed(rng *rand.Rand) {
	k.scarce(rng)
	k.groups, k.producers, k.workers, k.batch, k.receive, k.operators = 1+rng.IntN(3), 2, 3, 3, 4, rng.IntN(2)
	k.handles, k.stewards, k.replays = 2+rng.IntN(3), 2, true
	k.large, k.think, k.giveUp, k.config.MaxRate = 0.3, 200*time.Millisecond, 0, layer.Rate{}
	k.config.Archive = time.Hour
	k.config.MaxWaiting, k.config.Retention = 0, 0
	k.hold = 0.1 * rng.Float64()
}
