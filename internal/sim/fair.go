package sim

import "math/rand/v2"

// drawFair draws whether the run's queue is fair, by a generator of its own: the receives of such a queue take turns
// among the shards. They are held to all that the others are; that a turn comes is held by TestFairHandles in layer.
// A run of a profile that the caller names is not.
func (k *knobs) drawFair(o Options) {
	rng := rand.New(rand.NewPCG(o.Seed, 25))
	if rng.IntN(5) > 0 || o.Profile != "" {
		return
	}
	k.config.Fair, k.config.Shards = true, max(k.config.Shards, 2+rng.IntN(6))
}
