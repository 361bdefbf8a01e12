package sim

import (
	"math/rand/v2"
	"time"

	"fdbfifo/kv/fault"
	"fdbfifo/layer"
)

// Claims lose conflicts, many in a row, as if other handles were always faster. The runs of this profile are of two
// kinds.
//
// In half of the runs only commits that make a claim lose, and there is no other fault. The law: a call that settles
// and does not receive waits for nothing but its own transaction. It ends within settleBound, whatever receives share
// its handle.
//
// In the others all commits that write a claim lose, leases expire, and callers leave and repeat their receives. The
// law: a claim was committed in the call that returns it, or in one of unknown outcome that was repeated. So no call
// that has made a claim says that nothing has happened.

// contendedProfiles are the profiles of claims that lose conflicts, which no seed draws by itself.
var contendedProfiles = []string{"contended"}

// conflictsInARow is how many attempts of a transaction lose.
const conflictsInARow = 10

// settleBound is far more than the pauses after the conflicts that a settlement meets itself, with enqueues at the end
// of its group.
const settleBound = 200 * time.Millisecond

// contended has few handles, each with receives that wait and calls that settle.
func (k *knobs) contended(rng *rand.Rand) {
	k.scarce(rng)
	k.faultless()
	k.handles, k.workers, k.producers, k.takers, k.operators = 1+rng.IntN(3), 6+rng.IntN(6), 2, 0, 0
	k.groups, k.receive = 2+rng.IntN(6), 1+rng.IntN(3)
	k.die, k.freeze, k.hold, k.delayed, k.config.Delay, k.config.Lease = 0, 0, 0, 0, 0, maxLease
	k.config.MaxWaiting, k.large, k.config.MaxRate = 0, 0, layer.Rate{}
	k.wait, k.loses = 5*time.Second, 0.5+0.4*rng.Float64()
	if rng.IntN(2) == 0 {
		k.leaves, k.handles, k.workers, k.think = true, mostHandles, 4+rng.IntN(4), time.Second
		k.die, k.giveUp, k.repeat, k.config.Lease = 0.3, 0.5, 0.7, layer.MinLease
	}
}

// losing makes the commit lose a conflict if it writes a claim, as often as the run has it.
func (t *transaction) losing() {
	w := t.e.w
	if w.knobs.stepped {
		t.losesSteps()
	}
	if w.knobs.loses == 0 || !w.faulty {
		return
	}
	var written, made []claimKey
	for _, x := range t.writes {
		name, rest := keyOf(x.key)
		if name != "lock" || x.kind != wrote {
			continue
		}
		group, _ := rest[0].(string)
		if l, err := lockOf(group, x.value); err == nil && l.is("claim") {
			key := claimKey{group, l.token}
			if written = append(written, key); !w.made[key] {
				made = append(made, key)
			}
		}
	}
	if w.knobs.leaves {
		made = written
	}
	if t.attempt == 0 {
		t.loses = w.rng.Float64() < w.knobs.loses
	}
	if len(made) > 0 && t.loses && t.attempt < conflictsInARow {
		w.mark("claim lost a conflict")
		w.plan.ForceNext(fault.Conflict)
		return
	}
	for _, key := range made {
		w.made[key] = true
	}
}

// timely holds a call to the law of settlements.
func (w *world) timely(o *op) {
	if w.knobs.loses == 0 || w.knobs.leaves || w.doom != nil || !o.settle || !w.faulty || o.is("ack-receive") {
		return
	}
	if took := o.endAt.Sub(o.beginAt); took > settleBound {
		w.violation("%s took %s beside receives that lose conflicts", o, took)
	}
	w.mark("settled beside receives")
}
