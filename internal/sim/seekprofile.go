package sim

import (
	"math/rand/v2"
	"time"

	"fdbfifo/kv/fault"
	"fdbfifo/layer"
)

// The numbers of operations that operators do in profiles alone that name them.
const (
	purge    = 19 // of a group
	purgeAll = 20 // of the queue
	revive   = 21 // redrive a dead letter whose old hint is still there
	vacate   = 22 // cancel the last item of a granted group; pause one without items
)

// The profiles whose commits seek conflicts (seek.go). Each makes the two parties of some races frequent.

// seeking is what they have in common.
func (k *knobs) seeking(rng *rand.Rand) {
	k.scarce(rng)
	k.seek, k.hold = 0.2+0.6*rng.Float64(), 0
	k.handles, k.producers, k.workers = 2+rng.IntN(3), 2, 2+rng.IntN(3)
	k.takers, k.operators = rng.IntN(2), 2+rng.IntN(2)
	k.faults[fault.Conflict], k.blowEvery = 0, 0
	k.config.MaxWaiting, k.config.Retention = 0, 0
	k.wait = time.Second // operators work at the same time as the others, not before them
}

// apart gives the handles clocks that differ as much as they may.
func (k *knobs) apart(rng *rand.Rand) {
	for i := range k.skew {
		k.skew[i] = time.Duration(2*(i%2)-1) * (maxSkew - time.Duration(rng.Int64N(int64(maxSkew/4))))
	}
}

// kept: delayed heads, delays that are ended early, and clocks that do not agree on the due time.
func (k *knobs) kept(rng *rand.Rand) {
	k.seeking(rng)
	k.takers, k.operators, k.operations = 0, 3, []int{10, 10, 10, 7, 8, 9}
	k.delayed, k.nack, k.think = 0.6, 0.6, time.Second
	k.config.Lease, k.config.MaxAttempts, k.freeze = layer.MinLease, layer.Unlimited, 0.1
	if rng.IntN(2) == 0 {
		k.apart(rng)
	}
}

// emptied: one group that is emptied by everybody while it is filled.
func (k *knobs) emptied(rng *rand.Rand) {
	k.seeking(rng)
	k.groups, k.batch, k.receive, k.producers = 1, 1, 1+rng.IntN(4), 4
	k.handles, k.operations, k.think = mostHandles, []int{purge, purge, 7, 10}, 20*time.Millisecond
	k.die, k.freeze, k.nack, k.config.Delay = 0, 0, 0, 0
	k.delayed = 0.5 * float64(rng.IntN(2))
	k.hold = 0.4 * rng.Float64()
}

// purged: several groups that are purged with the whole queue, while they are filled.
func (k *knobs) purged(rng *rand.Rand) {
	k.seeking(rng)
	k.groups, k.producers, k.batch, k.operations = 3+rng.IntN(3), 4, 1+rng.IntN(3), []int{purgeAll}
}

// skewed: items that are due by some clocks and not by others, under locks whose holders have died.
func (k *knobs) skewed(rng *rand.Rand) {
	k.seeking(rng)
	k.apart(rng)
	if rng.IntN(2) == 0 {
		for i := range k.skew {
			k.skew[i] /= 20
		}
	}
	k.takers, k.operators, k.operations = 0, 3, []int{10, 10, 7, 7, 7}
	k.batch, k.receive, k.delayed, k.die, k.nack, k.freeze = 2+rng.IntN(4), 1, 0.9, 0.3*rng.Float64(), 0.2, 0
	k.config.Lease, k.config.MaxAttempts, k.think = layer.MinLease, layer.Unlimited, time.Second
}

// marked: groups that are paused and parked while their claims expire, or nothing is left of them.
func (k *knobs) marked(rng *rand.Rand) {
	k.seeking(rng)
	k.groups, k.batch = 1+rng.IntN(2), 1+rng.IntN(2)
	k.operations = []int{0, 0, 0, 1, 1, 7, 7, 8, purge}
	k.think, k.config.Lease, k.freeze, k.nack = time.Second, layer.MinLease, 0.3, 0.4
	k.die = 0.3 * rng.Float64()
	k.config.MaxAttempts, k.config.OnFailure = []int{layer.Unlimited, 1, 2}[rng.IntN(3)], layer.HaltGroup
}

// raised: a queue of one shard that is given more and more, while claims are given back with a delay.
func (k *knobs) raised(rng *rand.Rand) {
	k.seeking(rng)
	k.groups, k.config.Shards, k.takers, k.operators, k.operations = 3+rng.IntN(4), 1, 0, 2, []int{13, 13, 9}
	k.nack, k.think, k.freeze, k.die, k.config.Lease = 0.7, time.Second, 0.1, 0.1, layer.MinLease
	k.config.MaxAttempts = layer.Unlimited
}

// recalled: few dedup ids, messages that go, are purged and come back.
func (k *knobs) recalled(rng *rand.Rand) {
	k.seeking(rng)
	k.named, k.same, k.ids, k.producers, k.batch = 1, 0, 2+rng.IntN(3), 3, 1+rng.IntN(3)
	k.config.DedupByContent = false
	k.config.DedupForPending, k.config.DedupWindow = rng.IntN(2) == 1, time.Second
	k.operations = []int{7, 7, 8, 11, 11, purge, 14}
	k.reject, k.nack, k.config.OnFailure, k.config.MaxAttempts = 0.5, 0.6, layer.DeadLetterItem, 1
}

// stated: operators set the states of groups while these have claims.
func (k *knobs) stated(rng *rand.Rand) {
	k.seeking(rng)
	k.state, k.operators, k.operations = 0.9, 3, []int{18, 18, 18, 9}
}

// succeeded: the same, by holders with expired leases, while others take over.
func (k *knobs) succeeded(rng *rand.Rand) {
	k.stated(rng)
	k.config.Lease, k.freeze, k.nack, k.operators, k.think = layer.MinLease, 0.5, 0, 1, time.Second
	k.own = 0.5 * rng.Float64()
}

// rationed: groups whose holders have died, which have to wait for their rate by some clocks and not by others.
func (k *knobs) rationed(rng *rand.Rand) {
	k.seeking(rng)
	k.rate(rng)
	k.apart(rng)
	k.config.MaxRate, k.calmRate, k.stewards = layer.Rate{Count: 1, Per: 5 * time.Second}, layer.Rate{}, 0
	k.takers, k.operators, k.workers, k.operations = 0, 1, 4, []int{9}
	k.config.Lease, k.die, k.nack, k.think, k.receive = layer.MinLease, 0.6, 0, 2*time.Second, 1
	k.own = 0.5
}

// buried: dead letters are redriven while their groups have claims.
func (k *knobs) buried(rng *rand.Rand) {
	k.seeking(rng)
	k.operations, k.think, k.workers = []int{11}, time.Second, 3
	k.reject, k.nack, k.config.OnFailure, k.config.MaxAttempts = 0.9, 0.8, layer.DeadLetterItem, 1
}

// revived: items which several enqueues put at the begin of one empty group, each with a hint. Some hints are left over
// when a sweep moves all items to the dead letters. Then the items are redriven while the old hints are cleared.
func (k *knobs) revived(rng *rand.Rand) {
	k.seeking(rng)
	k.groups, k.batch, k.receive, k.producers, k.workers, k.takers = 1+rng.IntN(4), 1+rng.IntN(3), 20, 3, 3, 0
	k.handles, k.operators, k.operations, k.think = mostHandles, 3, []int{14, revive, revive}, 2*time.Second
	k.config.Retention, k.config.DeadLetterExpired, k.config.Lease = time.Second, true, layer.MinLease
	k.seek, k.own = 0.5, 0.7
	k.die, k.freeze, k.nack, k.delayed, k.config.Delay, k.named, k.same, k.wait = 0, 0, 0, 0, 0, 0, 0, 0
}

// noted: one group which is filled and purged alone, by purges which overlap, some of which find nothing; and one dedup
// id which comes again and again.
func (k *knobs) noted(rng *rand.Rand) {
	k.recalled(rng)
	k.config.DedupForPending, k.config.DedupWindow = false, time.Minute
	k.groups, k.ids, k.batch, k.producers, k.workers, k.takers, k.consumers = 1, 1, 1, 3, 0, 0, 0
	k.operators, k.operations, k.think, k.own = 2, []int{purge}, 200*time.Millisecond, 0.8
}

// monthly: the same, with sweeps of the purges' notes when more than a month has passed.
func (k *knobs) monthly(rng *rand.Rand) {
	k.noted(rng)
	k.operators, k.operations = 3, []int{purge, 14}
	k.leap, k.leapLeast = 0.003*rng.Float64(), 30*24*time.Hour+25*time.Hour
}

// aged: items that are past retention by some clocks and not by others, which are claimed while they are swept.
func (k *knobs) aged(rng *rand.Rand) {
	k.seeking(rng)
	k.apart(rng)
	k.config.Retention, k.config.Delay, k.delayed = maxSkew, 0, 0
	k.operators, k.operations, k.producers, k.think = 2, []int{14}, 2, time.Second
}

// granted: receives that wait in line for long, by clocks that differ, in handles that stand still and die.
func (k *knobs) granted(rng *rand.Rand) {
	k.seeking(rng)
	k.takers, k.operators, k.consumers = 0, rng.IntN(2), 0
	k.handles, k.workers, k.producers = 3+rng.IntN(3), 6+rng.IntN(6), 1
	k.groups, k.batch, k.receive = 4+rng.IntN(6), 1+rng.IntN(10), 1
	k.think, k.wait, k.giveUp = 2*time.Second, time.Second+time.Duration(rng.Int64N(int64(60*time.Second))), 0.2
	k.delayed, k.config.Delay = 0, 0
	k.operations = []int{14, 14, 7, 9}
	if rng.IntN(2) == 0 {
		k.apart(rng)
	}
	if rng.IntN(3) > 0 {
		k.blowEvery, k.stop, k.kill, k.crash = 200+rng.IntN(800), 3, 1, 0
	}
}

// vacated: groups that are granted, and emptied before that is accepted, and paused.
func (k *knobs) vacated(rng *rand.Rand) {
	k.granted(rng)
	k.operators, k.operations = 3, []int{vacate, vacate, vacate, 1}
	k.batch, k.own = 1+rng.IntN(4), 0.5
}

// hourly: receive ids that are used again, and receipts that are looked for, when an hour has passed and a sweep has
// cleared them.
func (k *knobs) hourly(rng *rand.Rand) {
	k.seeking(rng)
	k.groups, k.producers, k.workers, k.takers, k.operators, k.operations = 3, 2, 4, 0, 2, []int{14}
	k.repeat, k.twin, k.attempts, k.fuse, k.inTx = 0.5, 0.5, 1+rng.IntN(3), 0, 0
	k.leap, k.blowEvery = 0.002*rng.Float64(), 0
	k.faults[fault.UnknownApplied] = 0.2
	k.config.Archive = 0
}

// renewed: requests that wait for long, and whose deadlines pass by one clock when they are renewed by another.
func (k *knobs) renewed(rng *rand.Rand) {
	k.seeking(rng)
	k.takers, k.operators, k.operations = 0, 1, []int{14}
	k.handles, k.workers, k.producers = 2+rng.IntN(3), 4+rng.IntN(4), 1
	k.groups, k.batch, k.receive = 1+rng.IntN(3), 1, 1
	k.think, k.wait, k.giveUp = 10*time.Second, 60*time.Second, 0
	k.longPause, k.shortPause = 0, 0.02
	for i := range k.skew {
		k.skew[i] = time.Duration(2*(i%2)-1)*15*time.Second - 2*time.Second
		k.skew[i] += time.Duration(rng.Int64N(int64(4 * time.Second)))
	}
}

// twinned: receives with one receive id at the same time, and callers that leave before they are answered.
func (k *knobs) twinned(rng *rand.Rand) {
	k.seeking(rng)
	k.groups, k.batch, k.producers, k.workers, k.operators = 3, 3, 2, 4, 0
	k.handles, k.repeat, k.twin, k.fuse, k.inTx, k.giveUp = 1+rng.IntN(2), 1, 0.7, 0, 0, 0.2
	k.takers = 0
}

// uncertain: claims of several items with an unknown outcome, while enqueues commit late.
func (k *knobs) uncertain(rng *rand.Rand) {
	k.seeking(rng)
	k.groups, k.receive, k.producers, k.batch = 1, 4, 4, 1
	k.faults[fault.UnknownApplied], k.takers, k.operators = 0.3, 0, 0
}

// reloaded: claims of several items with an unknown outcome, while enqueues are held and so land between the items.
func (k *knobs) reloaded(rng *rand.Rand) {
	k.uncertain(rng)
	k.handles, k.producers, k.workers, k.think = mostHandles, 5, 3, 20*time.Millisecond
	k.faults[fault.UnknownApplied], k.hold, k.seek = 0.5, 0.2+0.3*rng.Float64(), 0.2
	k.die, k.freeze, k.nack, k.delayed, k.config.Delay = 0, 0, 0, 0, 0
}
