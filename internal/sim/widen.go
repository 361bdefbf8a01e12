package sim

import (
	"math/rand/v2"
	"time"

	"fdbfifo/layer"
)

// tending is what stewards do, and what a worker may do wrong.
type tending struct {
	stewards int
	rated    bool       // the rate of the groups is changed all the time
	calmRate layer.Rate // what it is when the faults stop
}

// widen draws what stewards do. A run of a profile has what that says, and nothing of it by itself.
func (k *knobs) widen(rng *rand.Rand) {
	if k.profile != "" {
		return
	}
	if rng.IntN(5) == 0 {
		k.rate(rng)
	}
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

// paced: groups with a rate that is changed all the time, and sweeps of what it was.
func (k *knobs) paced(rng *rand.Rand) {
	k.scarce(rng)
	k.groups, k.operators, k.config.Retention = 1+rng.IntN(4), 0, 0
	k.rate(rng)
	k.stewards = 2 + rng.IntN(3)
	k.hold = 0.4 * rng.Float64()
}
