package sim

import (
	"maps"
	"math/rand/v2"
	"slices"
	"time"

	"fdbfifo/kv/fault"
	"fdbfifo/layer"
)

// profiles are kinds of runs that widen one window each. The swarm draws everything by itself, and meets what takes
// several unlikely things together too seldom.
var profiles = map[string]func(k *knobs, rng *rand.Rand){
	// Few groups that are emptied and filled all the time, by many handles; what conflicts conflicts for real.
	"scarce": func(k *knobs, rng *rand.Rand) {
		k.scarce(rng)
		k.faults[fault.Conflict] = 0
		k.hold = 0.3 * rng.Float64()
	},
	// The same, where nearly all receives wait in line.
	"staged": func(k *knobs, rng *rand.Rand) {
		k.scarce(rng)
		k.wait, k.takers = 5*time.Second, 0
		k.handles, k.workers = 2+rng.IntN(4), 4+rng.IntN(5)
		k.hold = 0.2 * rng.Float64()
	},
	// Operators, few workers, and slow commits.
	"operated": func(k *knobs, rng *rand.Rand) {
		k.scarce(rng)
		k.producers, k.workers, k.takers, k.operators = 1, 1+rng.IntN(3), rng.IntN(2), 3+rng.IntN(3)
		k.faults[fault.Conflict] = 0
		k.hold = 0.4 * rng.Float64()
	},
	// Leases and delays that end all the time.
	"expiring": func(k *knobs, rng *rand.Rand) {
		k.scarce(rng)
		k.config.Lease, k.die, k.freeze, k.nack = layer.MinLease, 0.1, 0.2*rng.Float64(), 0.3
		k.think = time.Second
		k.hold = 0.4 * rng.Float64()
	},
	// One group that is empty again and again, while several fill it at the same time.
	"filling": func(k *knobs, rng *rand.Rand) {
		k.scarce(rng)
		k.groups, k.batch, k.receive = 1, 1, 1+rng.IntN(4)
		k.handles, k.producers, k.workers, k.takers, k.operators = mostHandles, 5, 3, 1, 0
		k.think, k.die, k.freeze, k.nack = 20*time.Millisecond, 0, 0, 0
		k.faults[fault.Conflict], k.config.MaxWaiting, k.config.Delay = 0, 0, 0
		k.hold = 0.1 + 0.4*rng.Float64()
	},
	// Messages that are de-duplicated, forgotten and purged.
	"remembered": func(k *knobs, rng *rand.Rand) {
		k.scarce(rng)
		k.producers, k.workers, k.operators = 3, 2, 3
		k.named, k.same = 0.9, 0.2
		k.config.DedupForPending, k.config.DedupWindow = rng.IntN(2) == 1, time.Second
		k.reject, k.nack, k.config.OnFailure = 0.5, 0.5, layer.DeadLetterItem
		k.hold = 0.4 * rng.Float64()
	},
	// Messages that are kept back, and messages that wait too long.
	"aging": func(k *knobs, rng *rand.Rand) {
		k.scarce(rng)
		k.operators, k.delayed, k.think = 2, 0.4, time.Second
		k.config.Retention = time.Second + time.Duration(rng.Int64N(int64(3*time.Second)))
		k.config.Lease = layer.MinLease
		if rng.IntN(2) == 0 {
			k.config.Retention = 0
		}
		k.hold = 0.4 * rng.Float64()
	},
	// Receives that are repeated, and states of groups.
	"repeated": func(k *knobs, rng *rand.Rand) {
		k.scarce(rng)
		k.groups, k.repeat, k.state, k.config.Lease = 3, 0.6, 0.7, layer.MinLease
		k.freeze, k.operators = 0.2, rng.IntN(3)
		k.hold = 0.4 * rng.Float64()
	},
	// Commits whose outcome is unknown.
	"unknown": func(k *knobs, rng *rand.Rand) {
		k.scarce(rng)
		k.faults[fault.UnknownApplied], k.faults[fault.UnknownLost] = 0.2, 0.1
		k.faults[fault.TimedOutLate], k.faults[fault.Conflict] = 0.05*rng.Float64(), 0
		k.faults[fault.VersionChangedLate] *= 4
		k.hold = 0.2 * rng.Float64()
	},
	// See seekprofile.go.
	"aged":      (*knobs).aged,
	"buried":    (*knobs).buried,
	"emptied":   (*knobs).emptied,
	"granted":   (*knobs).granted,
	"hourly":    (*knobs).hourly,
	"kept":      (*knobs).kept,
	"marked":    (*knobs).marked,
	"raised":    (*knobs).raised,
	"monthly":   (*knobs).monthly,
	"noted":     (*knobs).noted,
	"purged":    (*knobs).purged,
	"rationed":  (*knobs).rationed,
	"recalled":  (*knobs).recalled,
	"reloaded":  (*knobs).reloaded,
	"renewed":   (*knobs).renewed,
	"revived":   (*knobs).revived,
	"skewed":    (*knobs).skewed,
	"stated":    (*knobs).stated,
	"succeeded": (*knobs).succeeded,
	"twinned":   (*knobs).twinned,
	"uncertain": (*knobs).uncertain,
	"vacated":   (*knobs).vacated,
	// See widen.go.
	"paced":    (*knobs).paced,
	"repaced":  (*knobs).repaced,
	"replayed": (*knobs).replayed,
	"tended":   (*knobs).tended,
	// See drop.go.
	"doomed": (*knobs).doomed,
	// See lane.go.
	"laned":   (*knobs).laned,
	"lapsing": (*knobs).lapsing,
	"crossed": (*knobs).crossed,
	// See plain.go.
	"mixed":  (*knobs).mixed,
	"turned": (*knobs).turned, "overturned": (*knobs).overturned,
	"outlived": (*knobs).outlived,
	"overripe": (*knobs).overripe,
	// See worker.go.
	"worked": (*knobs).worker,
	// See later.go.
	"owned":      (*knobs).owned,
	"subscribed": (*knobs).subscribed,
	"totalled":   (*knobs).totalled,
	// See retroactive.go.
	"redelayed": (*knobs).redelayed,
	"joining":   (*knobs).joining, // see join.go
	// See owing.go.
	"owing": (*knobs).owing,
	// See waking.go.
	"waking": (*knobs).waking, "waking-lanes": (*knobs).wakingLanes, "waking-dead": (*knobs).wakingDead,
	// See beat.go.
	"failing": (*knobs).failing, // see failing.go
	"beating": (*knobs).beating, "leasing": (*knobs).leasing, "paged": (*knobs).paged, "steady": (*knobs).steady,
	"contended": (*knobs).contended,        // see contended.go
	"lethal":    (*knobs).lethals,          // see lethal.go
	"moved":     (*knobs).moving,           // see mover.go
	"clocks":    (*knobs).clocked,          // see clocks.go
	"stepped":   (*knobs).operatorsInSteps, // see stepped.go
	"clock-ids": (*knobs).clockIDs,         // see recall.go
	"rivals":    (*knobs).rivalry,          // see rival.go
}

// scarce leaves few groups, that are often empty, to several handles.
func (k *knobs) scarce(rng *rand.Rand) {
	k.groups, k.batch, k.receive = 1+rng.IntN(2), 1+rng.IntN(2), 1+rng.IntN(3)
	k.think = time.Duration(rng.Int64N(int64(100 * time.Millisecond)))
	k.longPause, k.consumers = 0, 0
}

// Profiles are their names.
func Profiles() []string { return slices.Sorted(maps.Keys(profiles)) }

// profileOf is the one that a seed has; half of the seeds have none.
func profileOf(rng *rand.Rand) string {
	names := Profiles()
	names = slices.DeleteFunc(names, func(s string) bool { // TestWorkers has the first; the others are not drawn here
		others := slices.Concat(laneProfiles, laterProfiles, plainProfiles, retroProfiles, beatProfiles,
			owingProfiles, wakingProfiles, failingProfiles, contendedProfiles, lethalProfiles,
			movingProfiles, clockProfiles, steppedProfiles, joinProfiles, rivalProfiles)
		return s == "worked" || slices.Contains(others, s)
	})
	if i := rng.IntN(2 * len(names)); i < len(names) {
		return names[i]
	}
	return ""
}
