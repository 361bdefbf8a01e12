package sim

import (
	"math/rand/v2"
	"time"

	"fdbfifo/layer"
)

// Two goroutines of a process settle the same claim at the same time. Examples: one still works when another gives the
// claim back, or both ack. The laws are those of all runs. A claim has one end: a message is finished once, a failure
// counts once, and a settlement that says it is done is done, whatever the other one does (compareFinished,
// compareEffects).

// rivalProfiles are the profiles of claims with two settlements, which no seed draws by itself.
var rivalProfiles = []string{"rivals"}

// rivalry has few groups.
func (k *knobs) rivalry(rng *rand.Rand) {
	k.scarce(rng)
	k.rivals = 0.3 + 0.6*rng.Float64()
	k.groups, k.receive, k.think = 1+rng.IntN(6), 1+rng.IntN(4), time.Duration(rng.Int64N(int64(20*time.Millisecond)))
	k.partial, k.nack, k.fuse, k.inTx = 0.3, 0.4, 0.3, 0.3*rng.Float64()
	k.state = 0.3 * rng.Float64()
	k.hold = 0.4 * rng.Float64()
}

// rival has another actor of the process settle the claim, too.
func (a *actor) rival(c *layer.Claim) {
	if a.w.knobs.rivals == 0 || !a.chance(a.w.knobs.rivals) || a.w.sched.ended(firstActor+a.id) {
		return
	}
	b := a.w.actor(a.w.nextActor, a.w.handleOf(a.who))
	a.w.nextActor++
	b.left, b.role = 0, func(b *actor) { b.handle(c, false) }
	a.w.mark("claim with two settlements")
	a.w.startActor(b)
}
