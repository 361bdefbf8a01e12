package sim

import "math/rand/v2"

// later is what came to the knobs after all others, drawn by generators of its own, so that the other choices of a seed
// stay as they were.
type later struct {
	owners      int
	subscribers int
	topics      []*topic
	calmly      bool // no faults and clocks that agree: subscriptions are held to the strict laws
}

// laterProfiles are those which the seeds of no profile have a part of.
var laterProfiles = []string{"owned", "subscribed", "totalled"}

// drawLater draws one of these profiles for a seed, if the options name none.
func (k *knobs) drawLater(o Options) {
	rng := rand.New(rand.NewPCG(o.Seed, 21))
	if o.Profile != "" || k.profile != "" {
		return
	}
	if n := rng.IntN(4 * len(laterProfiles)); n < len(laterProfiles) && k.plan == nil {
		k.profile = laterProfiles[n]
		profiles[k.profile](k, rng)
		k.consumers = min(k.consumers, k.handles)
	} else if n := rng.IntN(9); n < 3 && k.plan == nil {
		k.owners = 1 + n
	}
	if k.profile == "" && rng.IntN(4) == 0 {
		k.subscribes(rng)
	}
	if k.profile == "" && rng.IntN(5) == 0 {
		k.config.MaxRateTotal = totalRates[rng.IntN(len(totalRates))]
	}
	k.share(o)
}
