package layer_test

import (
	"errors"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

const must, mustNot = true, false

// conflicts is the footprint of each operation, in each kind of queue, as pairs that must conflict and pairs that must
// not.
var conflicts = []pair{
	{plain, "enqueue, enqueue to the same empty group", having(), enqueueTo("A"), enqueueTo("A"), mustNot},
	{plain, "enqueue, enqueue to the same group", having("a1"), enqueueTo("A"), enqueueTo("A"), mustNot},
	{plain, "enqueue behind all, enqueue to the same group", having("a1"), enqueueBehindAll, enqueueTo("A"), must},
	{plain, "enqueue behind all, enqueue to the empty group", having(), enqueueBehindAll, enqueueTo("A"), must},
	{plain, "enqueue behind all, enqueue to another", having("a1"), enqueueBehindAll, enqueueTo("B"), mustNot},
	{plain, "enqueue behind all, claim of the group", having("a1"), enqueueBehindAll, claimOne, mustNot},
	{plain, "enqueue, enqueue behind all", having("a1"), enqueueTo("A"), enqueueBehindAll, mustNot},
	{plain, "enqueue, enqueue to another group", having("a1"), enqueueTo("A"), enqueueTo("B"), mustNot},
	{plain, "enqueue, claim of the group", having("a1"), enqueueTo("A"), claimOne, mustNot},
	{plain, "enqueue, ack that leaves the tail", holding(3, 2), enqueueTo("A"), ackAll, mustNot},
	{plain, "enqueue, ack of the tail (trap 3)", holding(2, 2), enqueueTo("A"), ackAll, must},
	{plain, "enqueue, ack of the tail alone", holding(1, 1), enqueueTo("A"), ackAll, must},
	{plain, "enqueue, take of the tail", having("a1"), enqueueTo("A"), take, must},
	{plain, "enqueue, extend", holding(1, 1), enqueueTo("A"), extend, mustNot},
	{plain, "enqueue, nack", holding(1, 1), enqueueTo("A"), nack, mustNot},
	{plain, "enqueue twice in one transaction, ack of the tail (trap 9)", holding(1, 1),
		func(e *env, tx kv.Tx, given any) error {
			if err := enqueueTo("A")(e, tx, given); err != nil {
				return err
			}
			return enqueueTo("A")(e, tx, given)
		}, ackAll, must},

	{plain, "claim, claim of the same group", having("a1"), claimOne, claimOne, must},
	{plain, "claim, claim of another group", func(e *env) any {
		e.enqueue("A", "a1")
		e.enqueue("B", "b1")
		e.write(func(tx kv.Tx) { tx.ClearRange(kv.PrefixRange(key("ready", int64(0)))) })
		for i, g := range []string{"A", "B"} {
			e.write(func(tx kv.Tx) { tx.Set(key("ready", int64(0), int64(i+1), g), nil) })
		}
		return nil
	}, claimOne, func(e *env, tx kv.Tx, given any) error {
		tx.Clear(key("ready", int64(0), int64(1), "A")) // makes this claim find B
		err := claimOne(e, tx, given)
		tx.Set(key("ready", int64(0), int64(1), "A"), nil)
		return err
	}, mustNot},
	{plain, "claim, enqueue to the group", having("a1"), claimOne, enqueueTo("A"), mustNot},
	{plain, "claim, enqueue to another group", having("a1"), claimOne, enqueueTo("B"), mustNot},
	{plain, "claim, take from the group", having("a1", "a2"), claimOne, take, must},
	{plain, "claim that clears a hint of an empty group, enqueue to it (trap 2)",
		staleEmpty, claimAll, enqueueTo("A"), must},
	{plain, "claim that clears a hint of a held group, release of it (trap 2)", staleHeld, claimAll, nack, must},
	{plain, "claim that clears a hint of a held group, ack of it", staleHeld, claimAll, ackAll, must},
	{plain, "claim that clears a timer of a held group, extend of it", staleTimer, claimAll, extend, must},
	{plain, "claim of nothing, enqueue", having(), claimAll, enqueueTo("A"), mustNot},
	{plain, "takeover, ack by the old holder", expired(1, 1), claimAll, ackAll, must},
	{plain, "takeover, extend by the old holder", expired(1, 1), claimAll, extend, must},
	{plain, "takeover, takeover", expired(1, 1), claimAll, claimAll, must},
	{plain, "takeover, enqueue to the group", expired(1, 1), claimAll, enqueueTo("A"), mustNot},

	{plain, "take, take of the same group", having("a1", "a2"), take, take, must},
	{plain, "take, claim of the same group", having("a1"), take, claimOne, must},
	{plain, "take that empties the group, enqueue to it", having("a1"), take, enqueueTo("A"), must},
	{plain, "take that leaves items, enqueue to the group",
		having("1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11", "12"),
		take, enqueueTo("A"), mustNot},
	{plain, "take that clears a hint of an empty group, enqueue to it", staleEmpty, take, enqueueTo("A"), must},
	{plain, "take that clears a hint of a held group, release of it", staleHeld, take, nack, must},

	{plain, "ack that leaves items in the claim, enqueue", holding(2, 2), ackFirst, enqueueTo("A"), mustNot},
	{plain, "ack of the last that leaves items in the group, enqueue", holding(3, 2), ackAll, enqueueTo("A"), mustNot},
	{plain, "ack of several, late enqueue between them (trap 1)", holding(3, 2), ackAll, enqueueBetween, must},
	{plain, "ack of one of several, late enqueue behind it", holding(3, 2), ackFirst, enqueueBetween, mustNot},
	{plain, "ack that empties the group, enqueue to it (trap 3)", holding(2, 2), ackAll, enqueueTo("A"), must},
	{plain, "ack that empties the group, enqueue to the next group", holding(2, 2), ackAll, enqueueTo("B"), mustNot},
	{plain, "ack, ack of the same claim", holding(2, 2), ackFirst, ackAll, must},
	{plain, "ack, extend of the same claim", holding(2, 2), ackAll, extend, must},
	{plain, "ack, takeover", expired(2, 2), ackAll, claimAll, must},
	{plain, "ack, claim of another group", func(e *env) any {
		c := holding(1, 1)(e)
		e.enqueue("B", "b1")
		return c
	}, ackAll, claimOne, mustNot},
	{plain, "extend, extend of the same claim", holding(1, 1), extend, extend, must},
	{plain, "extend, takeover", expired(1, 1), extend, claimAll, must},
	{plain, "nack, takeover", expired(1, 1), nack, claimAll, must},
	{plain, "nack, ack of the same claim", holding(1, 1), nack, ackAll, must},
	{plain, "nack with a delay, extend", holding(1, 1), nackDelayed, extend, must},
	{plain, "nack, enqueue to the group", holding(1, 1), nack, enqueueTo("A"), mustNot},

	{plain, "release of the end, enqueue to the group", holding(2, 2), releaseSecond, enqueueTo("A"), mustNot},
	{plain, "release of the end, ack of the claim", holding(2, 2), releaseSecond, ackAll, must},
	{plain, "ack of the first, release of the end", holding(2, 2), ackFirst, releaseSecond, must},
	{plain, "release of the end, takeover", expired(2, 2), releaseSecond, claimAll, must},
	{plain, "nack that dead-letters the item, enqueue to the group", holding(2, 2), reject, enqueueTo("A"), mustNot},
	{plain, "nack that dead-letters the last item, enqueue to the group (trap 3)",
		holding(1, 1), reject, enqueueTo("A"), must},
	{plain, "enqueue, nack that dead-letters the tail (trap 3)", holding(1, 1), enqueueTo("A"), reject, must},
	{plain, "nack that dead-letters the last item, enqueue to another group",
		holding(1, 1), reject, enqueueTo("B"), mustNot},
	{plain, "nack that dead-letters the item, ack of the same claim", holding(2, 2), reject, ackAll, must},
	{plain, "nack that dead-letters the item, takeover", expired(2, 2), reject, claimAll, must},
	{plain, "nack that halts the group, enqueue to it", haltingGroups(holding(1, 1)), reject, enqueueTo("A"), mustNot},
	{plain, "takeover that dead-letters the item, ack by the old holder", lastAttempt(2, 2), claimAll, ackAll, must},
	{plain, "takeover that dead-letters the item, extend by the old holder", lastAttempt(2, 2), claimAll, extend, must},
	{plain, "takeover that dead-letters the item, enqueue to the group",
		lastAttempt(2, 2), claimAll, enqueueTo("A"), mustNot},
	{plain, "takeover that dead-letters the last item, enqueue to the group (trap 3)",
		lastAttempt(1, 1), claimAll, enqueueTo("A"), must},
	{plain, "enqueue, takeover that dead-letters the tail (trap 3)", lastAttempt(1, 1), enqueueTo("A"), claimAll, must},
	{plain, "takeover that halts the group, ack by the old holder",
		haltingGroups(lastAttempt(2, 2)), claimAll, ackAll, must},
	{plain, "takeover that halts the group, takeover", haltingGroups(lastAttempt(2, 2)), claimAll, claimAll, must},
	{plain, "takeover that halts the group, enqueue to it",
		haltingGroups(lastAttempt(2, 2)), claimAll, enqueueTo("A"), mustNot},
	{plain, "redrive, redrive of the same letter", behindDead(having()), redriveFirst(back), redriveFirst(back), must},
	{plain, "redrive, redrive of it to the tail", behindDead(having()), redriveFirst(back), redriveFirst(toTail), must},
	{plain, "redrive to the tail, redrive of it to the tail",
		behindDead(having()), redriveFirst(toTail), redriveFirst(toTail), must},
	{plain, "redrive, discard of the same letter", behindDead(having()), redriveFirst(back), discardFirst, must},
	{plain, "discard, redrive of the same letter", behindDead(having()), discardFirst, redriveFirst(toTail), must},
	{plain, "discard, discard of the same letter", behindDead(having()), discardFirst, discardFirst, must},
	{plain, "redrive, claim of the group", behindDead(having("a1")), redriveFirst(back), claimOne, must},
	{plain, "claim, redrive into the group", behindDead(having("a1")), claimOne, redriveFirst(back), must},
	{plain, "redrive, take from the group", behindDead(having("a1")), redriveFirst(back), take, must},
	{plain, "take, redrive into the group", behindDead(having("a1")), take, redriveFirst(back), must},
	{plain, "redrive into a held group, ack that ends the claim",
		behindDead(holding(2, 2)), redriveFirst(back), ackAll, must},
	{plain, "ack that ends the claim, redrive into the group",
		behindDead(holding(2, 2)), ackAll, redriveFirst(back), must},
	{plain, "redrive into a held group, nack", behindDead(holding(2, 2)), redriveFirst(back), nack, must},
	{plain, "redrive into an expired group, takeover", behindDead(expired(2, 2)), redriveFirst(back), claimAll, must},
	{plain, "redrive into a paused group, resume of it",
		behindDead(paused(having())), redriveFirst(back), resumeGroup, must},
	{plain, "resume of a paused group, redrive into it",
		behindDead(paused(having())), resumeGroup, redriveFirst(back), must},
	{plain, "claim that clears a hint of an empty group, redrive into it (trap 2)",
		behindDead(staleEmpty), claimAll, redriveFirst(back), must},
	{plain, "redrive, enqueue to the group", behindDead(having("a1")), redriveFirst(back), enqueueTo("A"), mustNot},
	{plain, "redrive into an empty group, enqueue to it",
		behindDead(having()), redriveFirst(back), enqueueTo("A"), mustNot},
	{plain, "enqueue to an empty group, redrive into it",
		behindDead(having()), enqueueTo("A"), redriveFirst(back), mustNot},
	{plain, "redrive, claim of another group", behindDead(and(holding(1, 1))), redriveFirst(back), claimOne, mustNot},
	{plain, "redrive to the tail, claim of the group",
		behindDead(having("a1")), redriveFirst(toTail), claimOne, mustNot},
	{plain, "redrive to the tail, enqueue to the group",
		behindDead(having("a1")), redriveFirst(toTail), enqueueTo("A"), mustNot},
	{plain, "redrive to the tail, take of the tail (trap 3)",
		behindDead(having("a1")), redriveFirst(toTail), take, must},
	{plain, "discard, claim of the group", behindDead(having("a1")), discardFirst, claimOne, mustNot},
	{plain, "discard, enqueue to the group", behindDead(having()), discardFirst, enqueueTo("A"), mustNot},
	{plain, "resume of a halted group, resume of it", haltedGroup, resumeGroup, resumeGroup, must},
	{plain, "resume of a halted group, enqueue to it", haltedGroup, resumeGroup, enqueueTo("A"), mustNot},
	{plain, "take of an expired group, ack by the holder", expired(1, 1), take, ackAll, must},
	{plain, "take of an expired group, extend by the holder", expired(1, 1), take, extend, must},
	{plain, "take of an expired group, takeover", expired(1, 1), take, claimAll, must},
	{plain, "take that clears a timer of a held group, extend of it", staleTimer, take, extend, must},

	{plain, "cancel, claim of the group", having("a1", "a2"), cancelNth(2), claimOne, must},
	{plain, "claim, cancel in the group", having("a1", "a2"), claimOne, cancelNth(2), must},
	{plain, "take, cancel in the group", having("a1", "a2"), take, cancelNth(2), must},
	{plain, "cancel, take from the group", having("a1", "a2"), cancelNth(2), take, must},
	{plain, "cancel behind a claim, ack that ends it", holding(2, 1), cancelNth(2), ackAll, must},
	{plain, "ack that ends a claim, cancel behind it", holding(2, 1), ackAll, cancelNth(2), must},
	{plain, "cancel, cancel of the same item", having("a1", "a2"), cancelNth(1), cancelNth(1), must},
	{plain, "cancel, edit of the same item", having("a1", "a2"), cancelNth(2), editNth(2), must},
	{plain, "cancel of the only item, enqueue to the group", having("a1"), cancelNth(1), enqueueTo("A"), must},
	{plain, "enqueue, cancel of the only item (trap 3)", having("a1"), enqueueTo("A"), cancelNth(1), must},
	{plain, "cancel of the head, enqueue to the group", having("a1", "a2"), cancelNth(1), enqueueTo("A"), mustNot},
	{plain, "enqueue, cancel of the head", having("a1", "a2"), enqueueTo("A"), cancelNth(1), mustNot},
	{plain, "cancel of the tail, enqueue to the group", having("a1", "a2"), cancelNth(2), enqueueTo("A"), mustNot},
	{plain, "cancel, claim of another group", and(holding(2, 1)), cancelNth(2), claimOne, mustNot},
	{plain, "cancel of the head of an expired claim, ack by the holder", expired(2, 1), cancelNth(1), ackAll, must},
	{plain, "cancel of a missing item, redrive of it", behindDead(having("a1")),
		cancelDeadAndEnqueue, redriveFirst(back), must},
	{plain, "redrive, cancel of the missing item",
		behindDead(having("a1")), redriveFirst(back), cancelDeadAndEnqueue, mustNot},
	{plain, "edit, claim of the group", having("a1", "a2"), editNth(2), claimOne, must},
	{plain, "claim, edit in the group", having("a1", "a2"), claimOne, editNth(2), must},
	{plain, "edit, edit of the same item", having("a1"), editNth(1), editNth(1), must},
	{plain, "edit, enqueue to the group", having("a1"), editNth(1), enqueueTo("A"), mustNot},
	{plain, "reschedule, claim of the group", having("a1", "a2"), postpone(2), claimOne, must},
	{plain, "claim, reschedule in the group", having("a1", "a2"), claimOne, postpone(2), must},
	{plain, "reschedule, reschedule of the same item",
		having("a1"), postpone(1), rescheduleNth(1, time.Minute), must},
	{plain, "reschedule of the head, reschedule behind it", having("a1", "a2"), postpone(1), postpone(2), must},
	{plain, "reschedule of the head, enqueue to the group", having("a1"), postpone(1), enqueueTo("A"), mustNot},
	{plain, "reschedule of the head, late enqueue before it", having("a1"), postpone(1), enqueueBefore, must},
	{plain, "reschedule of a delayed head, late enqueue before it",
		delayedUntil, rescheduleNth(1, 0), enqueueBefore, must},
	{plain, "reschedule of what is delayed, claim by another clock", delayedUntil, postpone(1), claimAhead, must},
	{plain, "claim by another clock, reschedule of what is delayed", delayedUntil, claimAhead, postpone(1), must},
	{plain, "reschedule of a delayed head, claim that awaits it", keptBackHint, rescheduleNth(1, 0), claimAll, must},
	{plain, "claim that awaits a head, reschedule of it", keptBackHint, claimAll, rescheduleNth(1, 0), must},
	{plain, "reschedule, claim of another group", and(holding(2, 1)), postpone(2), claimOne, mustNot},
	{plain, "reschedule behind a claim, ack that ends it", holding(2, 1), postpone(2), ackAll, must},
	{plain, "ack that ends a claim, reschedule behind it", holding(2, 1), ackAll, postpone(2), must},
	{plain, "edit, claim of another group", and(holding(2, 1)), editNth(2), claimOne, mustNot},
	{plain, "forced release, ack by the holder", holding(1, 1), forceRelease, ackAll, must},
	{plain, "ack, forced release", holding(1, 1), ackAll, forceRelease, must},
	{plain, "extend, forced release", holding(1, 1), extend, forceRelease, must},
	{plain, "forced release, enqueue to the group", holding(1, 1), forceRelease, enqueueTo("A"), mustNot},
	{plain, "forced release, claim of another group", and(holding(1, 1)), forceRelease, claimOne, mustNot},
	{plain, "retry now, retry now", delayed(1), retryNow, retryNow, must},
	{plain, "retry now, cancel in the group", delayed(2), retryNow, cancelNth(2), must},
	{plain, "retry now, enqueue to the group", delayed(1), retryNow, enqueueTo("A"), mustNot},
	{plain, "retry now, claim of another group", and(delayed(1)), retryNow, claimOne, mustNot},

	{plain, "pause of a group, claim of it", having("a1"), pauseGroup, claimOne, must},
	{plain, "claim, pause of the group", having("a1"), claimOne, pauseGroup, must},
	{plain, "take, pause of the group", having("a1"), take, pauseGroup, must},
	{plain, "ack that ends a claim, pause of the group", holding(1, 1), ackAll, pauseGroup, must},
	{plain, "pause of a group, enqueue to it", having("a1"), pauseGroup, enqueueTo("A"), mustNot},
	{plain, "enqueue to the empty group, pause of it", having(), enqueueTo("A"), pauseGroup, mustNot},
	{plain, "pause of a group, claim of another", and(holding(1, 1)), pauseGroup, claimOne, mustNot},
	{plain, "resume of a group, resume of it", paused(having("a1")), resumeGroup, resumeGroup, must},
	{plain, "resume of an empty group, enqueue to it", paused(having()), resumeGroup, enqueueTo("A"), must},
	{plain, "resume of a group, enqueue to it", paused(having("a1")), resumeGroup, enqueueTo("A"), mustNot},
	{plain, "claim that clears a hint of a paused group, resume of it",
		paused(having("a1")), claimAll, resumeGroup, must},
	{plain, "resume of a group, claim of another", and(paused(having("a1"))), resumeGroup, claimOne, mustNot},
	{plain, "pause of the queue, pause of it", having(), pauseQueue, pauseQueue, must},
	{plain, "resume of the queue, resume of it", pausedQueue(having()), resumeQueue, resumeQueue, must},
	{plain, "pause of the queue, claim", having("a1"), pauseQueue, claimOne, mustNot},
	{plain, "claim, pause of the queue", having("a1"), claimOne, pauseQueue, mustNot},
	{plain, "enqueue, pause of the queue", having(), enqueueTo("A"), pauseQueue, mustNot},
	{plain, "claim, purge of the group", having("a1"), claimOne, purgeGroup("A", false), must},
	{plain, "claim, purge of the queue", having("a1"), claimOne, purgeAll, must},
	{plain, "take, purge of the queue", having("a1"), take, purgeAll, must},
	{plain, "enqueue, purge of the queue (trap 3)", having("a1"), enqueueTo("A"), purgeAll, must},
	{plain, "enqueue to another group, purge of the queue", having("a1"), enqueueTo("B"), purgeAll, mustNot},
	{plain, "take, purge of the group", having("a1"), take, purgeGroup("A", false), must},
	{plain, "ack, forced purge of the group", holding(2, 2), ackFirst, purgeGroup("A", true), must},
	{plain, "extend, forced purge of the group", holding(2, 2), extend, purgeGroup("A", true), must},
	{plain, "extend, purge of what is in flight only", holding(2, 2), extend, purgeGroup("A", false), mustNot},
	{plain, "enqueue, purge of the group (trap 3)", having("a1"), enqueueTo("A"), purgeGroup("A", false), must},
	{plain, "enqueue to another group, purge", having("a1"), enqueueTo("B"), purgeGroup("A", false), mustNot},
	{plain, "claim of another group, purge", and(holding(2, 1)), claimOne, purgeGroup("A", false), mustNot},
	{plain, "enqueue of a delayed message, enqueue to the same empty group",
		having(), enqueueDelayed, enqueueTo("A"), mustNot},
	{plain, "claim that awaits a head, enqueue to the group", keptBackHint, claimAll, enqueueTo("A"), mustNot},
	{plain, "claim that awaits a head, claim that awaits it", keptBackHint, claimAll, claimAll, mustNot},
	{plain, "claim that awaits a head, retry now", keptBackHint, claimAll, retryNow, must},
	{plain, "claim that awaits a head, cancel of it", keptBackHint, claimAll, cancelNth(1), must},
	{plain, "claim that awaits a head, redrive before it",
		behindDead(keptBackHint), claimAll, redriveFirst(back), must},
	{plain, "claim that awaits a head, late enqueue before it", keptBackHint, claimAll, enqueueBefore, must},
	{plain, "claim that awaits a head, enqueue to another group", keptBackHint, claimAll, enqueueTo("B"), mustNot},
	{plain, "take that awaits a head, retry now", keptBackHint, take, retryNow, must},
	{plain, "take that awaits a head, late enqueue before it", keptBackHint, take, enqueueBefore, must},
	{plain, "claim by the timer of a head, claim by it", dueHead, claimAll, claimAll, must},
	{plain, "retry now of what is delayed, claim by another clock", delayedUntil, retryNow, claimAhead, must},
	{plain, "claim by another clock, retry now of what is delayed", delayedUntil, claimAhead, retryNow, must},
	{plain, "retry now of what is delayed, enqueue to the group", delayedUntil, retryNow, enqueueTo("A"), mustNot},
	{plain, "enqueue, enqueue to the same bounded group",
		bounded(5, having("a1")), enqueueTo("A"), enqueueTo("A"), mustNot},
	{plain, "enqueue to a bounded group, claim of it", bounded(5, having("a1")), enqueueTo("A"), claimOne, mustNot},
	{plain, "claim, claim of the same group with a rate", rated("2/s", having("a1", "a2")), claimOne, claimOne, must},
	{plain, "claim of a group with a rate, take from it", rated("2/s", having("a1", "a2")), claimOne, take, must},
	{plain, "claim of a group with a rate, enqueue to it",
		rated("2/s", having("a1")), claimOne, enqueueTo("A"), mustNot},
	{plain, "claim of a group with a rate, claim of another",
		rated("2/s", and(having("a1"))), claimFrom("A"), claimFrom("B"), mustNot},
	{plain, "claim in a queue with a rate, claim of another group", totalled("4/s", and(having("a1"))),
		claimFrom("A"), claimFrom("B"), mustNot},
	{plain, "claim that awaits the rate, enqueue to the group", usedUp, claimAll, enqueueTo("A"), mustNot},
	{plain, "claim that awaits the rate, enqueue to another group", usedUp, claimAll, enqueueTo("B"), mustNot},
	{plain, "claim that awaits the rate, claim that awaits it", usedUp, claimAll, claimAll, mustNot},
	{plain, "claim that awaits the rate, claim by another clock", usedUp, claimAll, claimAhead, must},
	{plain, "claim that awaits the rate, cancel of the head", usedUp, claimAll, cancelNth(1), must},
	{plain, "claim that awaits the rate, purge of the group", usedUp, claimAll, purgeGroup("A", false), must},
	{plain, "claim that awaits the rate, change of it", usedUp, claimAll, changeRate, must},
	{plain, "claim of another group, change of the rate", and(usedUp), claimFrom("B"), changeRate, mustNot},
	{plain, "take that awaits the rate, change of it", usedUp, take, changeRate, must},
	{plain, "ack of the last item that receives and awaits the rate, change of it",
		rated("1/m", holding(2, 1)), ackAndReceive, changeRate, must},
	{plain, "takeover that awaits the rate, change of it", rated("1/24h", expired(1, 1)), claimAll, changeRate, must},
	{plain, "enqueue to a group that waits, change of the rate", paced, enqueueTo("A"), changeRate, mustNot},
	{plain, "claim of a group with a rate, sweep that clears what was used", func(e *env) any {
		usedUp(e)
		e.clock.advance(time.Hour)
		return nil
	}, claimOne, sweepAll, must},
	{plain, "claim of a group with a rate, sweep that leaves what was used",
		rated("1/h", and(having("a1"))), claimOne, sweepAll, mustNot},
	{plain, "enqueue, enqueue with the same dedup id", having(), enqueueAs("A", "x"), enqueueAs("B", "x"), must},
	{plain, "enqueue, enqueue with another dedup id", having(), enqueueAs("A", "x"), enqueueAs("A", "y"), mustNot},
	{plain, "enqueue of a duplicate and another, enqueue of that duplicate",
		remembering("x", having()), enqueueBoth, enqueueAs("B", "x"), mustNot},
	{plain, "enqueue of a duplicate and another, claim of the first",
		remembering("x", having()), enqueueBoth, claimOne, mustNot},
	{plain, "enqueue of a duplicate and another, purge of the group",
		remembering("x", having()), enqueueBoth, purgeGroup("A", false), must},
	{plain, "enqueue of a duplicate and another, cancel of the first",
		whilePending(remembering("x", having("a2"))), enqueueBoth, cancelNth(1), must},
	{plain, "enqueue of a duplicate and another, enqueue to the group",
		whilePending(remembering("x", having())), enqueueBoth, enqueueTo("A"), mustNot},
	{plain, "enqueue, sweep of the entry", func(e *env) any {
		e.sendAs(e.q, "A", "x")
		e.clock.advance(time.Hour)
		return nil
	}, enqueueAs("B", "x"), sweep, must},
	{plain, "enqueue, sweep of another entry", func(e *env) any {
		e.sendAs(e.q, "A", "x")
		e.clock.advance(time.Hour)
		return nil
	}, enqueueAs("B", "y"), sweep, mustNot},
	{plain, "takeover that reads the state, holder's change of it",
		withState(expired(1, 1)), claimState, setState, must},
	{plain, "holder's change of the state, takeover", expired(1, 1), setState, claimAll, must},
	{plain, "holder's change of the state, ack that ends the claim", holding(1, 1), setState, ackAll, must},
	{plain, "holder's change of the state, enqueue to the group", holding(1, 1), setState, enqueueTo("A"), mustNot},
	{plain, "holder's change of the state, claim of another group", and(holding(1, 1)), setState, claimOne, mustNot},
	{plain, "claim that reads the state, change of it", withState(having("a1")), claimState, setGroupState, must},
	{plain, "change of the state, claim of the group", having("a1"), setGroupState, claimAll, must},
	{plain, "change of the state, enqueue to the group", having("a1"), setGroupState, enqueueTo("A"), mustNot},
	{plain, "change of the state of a group, claim of another", and(holding(1, 1)), setGroupState, claimOne, mustNot},
	{plain, "claim that reads the state, purge of the group",
		withState(having("a1")), claimState, purgeGroup("A", false), must},
	{plain, "claim with a receive id, the same of another group", func(e *env) any {
		e.enqueue("A", "a1")
		e.enqueue("B", "b1")
		return nil
	}, claimNamed("once"), func(e *env, tx kv.Tx, _ any) error {
		group := "B"
		_, err := e.q.ReceiveTx(e.ctx, tx, layer.ReceiveOptions{Group: &group, ReceiveID: "once"})
		return err
	}, must},
	{plain, "claim with a receive id, claim with another of another group",
		and(having("a1")), claimNamed("once"), func(e *env, tx kv.Tx, _ any) error {
			group := "B"
			_, err := e.q.ReceiveTx(e.ctx, tx, layer.ReceiveOptions{Group: &group, ReceiveID: "other"})
			return err
		}, mustNot},
	{plain, "claim that meets overdue items, enqueue to the group",
		overdue(false), claimOne, enqueueTo("A"), mustNot},
	{plain, "claim that leaves a group empty of overdue items, enqueue to it (trap 3)",
		overdueOnly, claimOne, enqueueTo("A"), must},
	{plain, "claim that drops all of a group, pause of it", overdueOnly, claimOne, pauseGroup, must},
	{plain, "enqueue, claim that drops the tail (trap 3)", overdueOnly, enqueueTo("A"), claimOne, must},
	{plain, "enqueue, sweep that drops the tail (trap 3)", overdueOnly, enqueueTo("A"), sweepAll, must},
	{plain, "enqueue, sweep of what is overdue before the tail",
		overdue(false), enqueueTo("A"), sweepAll, mustNot},
	{plain, "claim that meets overdue items, sweep of them", overdue(false), claimOne, sweepAll, must},
	{plain, "take that meets overdue items, sweep of them", overdue(false), take, sweepAll, must},
	{plain, "claim of another group, sweep of overdue items",
		and(overdue(false)), claimFrom("B"), sweepAll, mustNot},
	{plain, "cancel in the group, sweep of overdue items", overdue(false), cancelNth(3), sweepAll, must},
	{plain, "ack into the archive, ack of the same claim", archiving(holding(2, 2)), ackFirst, ackAll, must},
	{plain, "ack into the archive, enqueue to the group", archiving(holding(3, 2)), ackAll, enqueueTo("A"), mustNot},
	{plain, "ack into the archive, ack of another group into it", archiving(func(e *env) any {
		e.enqueue("B", "b")
		other := e.receive(e.q, 1)
		return []*layer.Claim{holding(1, 1)(e).(*layer.Claim), other}
	}), func(e *env, tx kv.Tx, given any) error { return ackAll(e, tx, given.([]*layer.Claim)[0]) },
		func(e *env, tx kv.Tx, given any) error { return ackAll(e, tx, given.([]*layer.Claim)[1]) }, mustNot},
	{plain, "ack into the archive, takeover", archiving(expired(2, 2)), ackAll, claimAll, must},
	{plain, "enqueue, replay into the group", and(archivedItems(2)), enqueueTo("A"), replayA, mustNot},
	{plain, "replay, enqueue to the group", and(archivedItems(2)), replayIn, enqueueTo("A"), mustNot},
	{plain, "replay, ack of the tail (trap 3)",
		func(e *env) any { archivedItems(2)(e); return holding(1, 1)(e) }, replayIn, ackAll, must},
	{plain, "replay, claim of another group", and(archivedItems(2)), replayIn, claimFrom("B"), mustNot},
	{plain, "claim of another group, replay", and(archivedItems(2)), claimOne, replayA, mustNot},
	{plain, "enqueue and claim, sweep", having("a1"), func(e *env, tx kv.Tx, given any) error {
		return errors.Join(enqueueTo("B")(e, tx, given), claimOne(e, tx, given))
	}, func(e *env, _ kv.Tx, _ any) error {
		e.leaveReceipts(3)
		e.clock.advance(2 * time.Hour)
		_, err := e.q.Admin().Sweep(e.ctx, layer.SweepOptions{})
		return err
	}, mustNot},

	// A message joins its group because it is due: the receive of any group finds it.
	{plain, "join, join of the same message", joinsDue(holding(1, 1)), claimAll, claimAll, must},
	{plain, "join, cancel of the message", joinsDue(holding(1, 1)), claimAll, cancelWaiting, must},
	{plain, "cancel of a message, join of it", joinsDue(holding(1, 1)), cancelWaiting, claimAll, must},
	{plain, "join, ack of the tail of the group (trap 3)", joinsDue(holding(1, 1)), claimAll, ackAll, must},
	{plain, "join, ack that leaves the tail of the group", joinsDue(holding(2, 1)), claimAll, ackAll, mustNot},
	{plain, "ack that leaves the group empty, join (trap 3)", joinsDue(holding(1, 1)), ackAll, claimAll, must},
	{plain, "join, extend of the claim of the group", joinsDue(holding(1, 1)), claimAll, extend, mustNot},
	{plain, "join, enqueue to the group", joinsDue(holding(1, 1)), claimAll, enqueueTo("A"), mustNot},
	{plain, "enqueue, join of the group", joinsDue(holding(1, 1)), enqueueTo("A"), claimAll, mustNot},
	{plain, "enqueue that joins later, join", joinsDue(holding(1, 1)), enqueueJoining, claimAll, mustNot},
	{plain, "join, enqueue that joins later", joinsDue(holding(1, 1)), claimAll, enqueueJoining, mustNot},

	// A group is paused, and resumed.
	{plain, "pause of a group, take from it", having("1", "2"), pauseGroup, take, must},
	{plain, "pause of a group, pause of it", having("1", "2"), pauseGroup, pauseGroup, must},
	{plain, "pause of a group, ack that ends a claim", holding(2, 2), pauseGroup, ackAll, must},
	{plain, "pause of a group, nack", holding(2, 2), pauseGroup, nack, must},
	{plain, "nack, pause of the group", holding(2, 2), nack, pauseGroup, must},
	{plain, "pause of a group, extend", holding(2, 2), pauseGroup, extend, must},
	{plain, "extend, pause of the group", holding(2, 2), extend, pauseGroup, must},
	{plain, "pause of a group, takeover", expired(2, 2), pauseGroup, claimAll, must},
	{plain, "takeover, pause of the group", expired(2, 2), claimAll, pauseGroup, must},
	{plain, "enqueue to the group, pause of it", having("1", "2"), enqueueTo("A"), pauseGroup, mustNot},
	{plain, "pause of an empty group, enqueue to it", having(), pauseGroup, enqueueTo("A"), mustNot},
	{plain, "pause of another group, claim", having("1", "2"), pauseOf("B"), claimAll, mustNot},
	{plain, "claim, pause of another group", having("1", "2"), claimAll, pauseOf("B"), mustNot},
	{plain, "resume of a group, claim that clears its hint", paused(having("1", "2")), resumeGroup, claimAll, mustNot},
	{plain, "enqueue to an empty paused group, resume of it", paused(having()), enqueueTo("A"), resumeGroup, mustNot},
	{plain, "resume of a group, ack of the claim before its pause", paused(holding(2, 2)), resumeGroup, ackAll, must},
	{plain, "ack of the claim before its pause, resume of the group", paused(holding(2, 2)), ackAll, resumeGroup, must},
	{plain, "resume of a group, end of the expired claim before its pause",
		paused(expired(2, 2)), resumeGroup, claimAll, must},
	{plain, "end of the expired claim before its pause, resume of the group",
		paused(expired(2, 2)), claimAll, resumeGroup, must},

	// Each of these fails without the guard that it names.
	{plain, "early-lock: claim that leaves a group to its head, claim by another clock", func(e *env) any {
		delayedUntil(e)
		granted(e)
		return nil
	}, claimAll, claimAhead, must},
	{plain, "empty-lock: claim that clears what is left of an empty group, pause of it", func(e *env) any {
		granted(e)
		return nil
	}, claimAll, pauseGroup, must},
	{plain, "force-lock: forced release, takeover", expired(1, 1), forceRelease, claimAll, must},
	{plain, "dedup-rename: redrive to the tail, enqueue with its forgotten dedup id", func(e *env) any {
		e.sendAs(e.q, "A", "x")
		require.NoError(e.t, e.q.Nack(e.ctx, e.receive(e.q, 1), layer.NackOptions{Reject: "no use"}))
		e.clock.advance(time.Hour)
		return nil
	}, redriveFirst(toTail), enqueueAs("B", "x"), must},

	// The configuration.
	{plain, "configure, configure", having(), configureLease, configureLease, must},
	{plain, "claim and enqueue, configure", having("a1"), claimAndEnqueue, configureLease, mustNot},
	{plain, "configure, claim and enqueue", having("a1"), configureLease, claimAndEnqueue, mustNot},

	// A queue with facets.
	{facets("*; state"), "claim by template, claim of the whole group", sending("NEW"),
		claimWhere(isNew), claimWhere(nil), must},
	{facets("*; state"), "claim of the whole group, claim by template", sending("NEW"),
		claimWhere(nil), claimWhere(isNew), must},
	{facets("state"), "claim by template, purge of the queue", sending("NEW"), claimWhere(isNew), purgeAll, must},
	{facets("state"), "enqueue, purge of the queue", sending("NEW"), enqueueState("NEW"), purgeAll, must},
	{facets("state"), "claim by template, claim by the same",
		sending("NEW"), claimWhere(isNew), claimWhere(isNew), must},
	{facets("state"), "claim by template, claim by another of the same view", sending("NEW", "PAID"),
		claimWhere(isNew), claimWhere(isPaid), mustNot},
	{facets("state; region"), "claim by template, claim by an intersecting one of another view", sending("NEW"),
		claimWhere(isNew), claimWhere(layer.Template{"region": "EU"}), must},
	{facets("state; state,region"), "claim by template, take by an intersecting one", sending("NEW"),
		claimWhere(isNew), takeWhere(layer.Template{"state": "NEW", "region": "EU"}), must},
	{facets("*; state"), "take by template, take of the whole group", sending("NEW"),
		takeWhere(isNew), takeWhere(nil), must},
	{facets("state"), "take by template, take by another of the same view", sending("NEW", "PAID"),
		takeWhere(isNew), takeWhere(isPaid), mustNot},
	{facets("state"), "enqueue, ack of the lane's tail",
		handing(isNew, "NEW", "PAID"), enqueueState("NEW"), ackAll, must},
	{facets("state"), "ack of the lane's tail, enqueue",
		handing(isNew, "NEW", "PAID"), ackAll, enqueueState("NEW"), must},
	{facets("state"), "enqueue, ack of another lane's tail", handing(isNew, "NEW", "PAID"),
		enqueueState("PAID"), ackAll, mustNot},
	{facets("state"), "ack, claim by another template of the same view", handing(isNew, "NEW", "PAID"),
		ackAll, claimWhere(isPaid), mustNot},
	{facets("state"), "advance, claim of the lane that the item joins", handing(isNew, "NEW", "PAID"),
		advanceTo("PAID"), claimWhere(isPaid), mustNot},
	{facets("state"), "advance, enqueue to the lane that the item joins", handing(isNew, "NEW", "NEW", "PAID"),
		advanceTo("PAID"), enqueueState("PAID"), mustNot},
	{facets("state"), "advance behind the first of a lane, which leaves, and the rest is left to its delay",
		func(e *env) any {
			e.sendStates("PAID", "NEW")
			later := layer.Message{Group: "A", Headers: facetsOf("PAID", "EU"), Delay: time.Hour}
			_, err := e.q.Enqueue(e.ctx, later)
			require.NoError(e.t, err)
			return e.claimBy(isNew, 1)
		}, advanceTo("PAID"), func(e *env, _ kv.Tx, _ any) error {
			require.NoError(e.t, e.q.Ack(e.ctx, e.claimBy(isPaid, 1)))
			require.Nil(e.t, e.claimBy(isPaid, 1))
			return nil
		}, must},
	{facets("state"), "advance, extend of the same claim", handing(isNew, "NEW"), advanceTo("PAID"), extend, must},
	{facets("*; state"), "claim that puts a hint aside, release of the lock", handing(isNew, "NEW", "PAID"),
		claimWhere(nil), ackAll, must},
	{facets("*; state"), "release of a lock, claim that puts a hint aside", handing(isNew, "NEW", "PAID"),
		ackAll, claimWhere(nil), must},
	{facets("*; state"), "claim that ends an expired claim of a lane, extend by its holder", func(e *env) any {
		c := handing(isNew, "NEW", "PAID")(e)
		e.clock.advance(time.Minute)
		return c
	}, claimWhere(nil), extend, must},
	{facets("state; region"), "retry of a delayed head, claim of another lane", func(e *env) any {
		late := layer.Message{Group: "A", Headers: facetsOf("NEW", "EU"), Delay: time.Minute}
		_, err := e.q.Enqueue(e.ctx, late)
		require.NoError(e.t, err)
		return nil
	}, func(e *env, tx kv.Tx, _ any) error {
		return e.within(tx).RetryNow(e.ctx, "A", layer.RetryOptions{Where: isNew})
	}, func(e *env, tx kv.Tx, c any) error {
		e.clock.advance(time.Minute)
		return claimWhere(layer.Template{"region": "EU"})(e, tx, c)
	}, must},
	{facets("*; state"), "claim that clears a hint of an empty lane, advance back into it (trap 1)", staleLane,
		claimWhere(isNew), advanceTo("NEW"), must},
	{facets("*; state"), "claim that clears a hint of an empty lane, redrive (trap 1)",
		buryingFirst("NEW"), claimWhere(isNew), redriveFirst(back), must},
	{facets("*; state"), "claim that follows the hint of a lane, cancel of the head of the lane",
		sending("PAID", "NEW", "NEW"), claimWhere(isNew), cancelNth(2), must},
	{facets("*; state"), "cancel of the head of a lane, claim that follows the hint of the lane",
		sending("PAID", "NEW", "NEW"), cancelNth(2), claimWhere(isNew), must},
	{facets("*; state"), "claim that follows the hint of the group, cancel of the head of a lane",
		sending("PAID", "NEW", "NEW"), claimWhere(nil), cancelNth(2), must},
	{facets("*; state"), "cancel of the head of a lane, claim that follows the hint of another lane",
		sending("PAID", "NEW", "NEW"), cancelNth(2), claimWhere(isPaid), must},
	{facets("*; state"), "cancel of the only item of a lane, enqueue to the lane",
		sending("PAID", "NEW"), cancelNth(2), enqueueState("NEW"), must},
	{facets("*; state"), "cancel of the head of a lane, enqueue to another lane",
		sending("PAID", "NEW", "NEW"), cancelNth(2), enqueueState("PAID"), mustNot},
	{facets("*; state"), "skip of the head of the group, claim that follows the hint of a lane",
		sending("NEW", "NEW"), skipHead, claimWhere(isNew), must},
	{facets("*; state"), "claim that follows the hint of a lane, skip of the head of the group",
		sending("NEW", "NEW"), claimWhere(isNew), skipHead, must},
	{facets("*; state"), "cancel of a missing item, redrive of it", buryingFirst("NEW", "NEW"),
		cancelDeadAndEnqueue, redriveFirst(back), must},
	{facets("*; state"), "redrive, cancel of the missing item", buryingFirst("NEW", "NEW"),
		redriveFirst(back), cancelDeadAndEnqueue, mustNot},

	// An unordered queue.
	{unordered, "unordered claim, unordered claim of the same item", having("1", "2"), claimAnyOne, claimAnyOne, must},
	{unordered, "claim of the group, unordered claim in the group", having("1", "2"), claimUpTo(3), claimAnyOne, must},
	{unordered, "unordered claim, claim of the group", having("1", "2"), claimAnyOne, claimUpTo(3), must},
	{unordered, "take of the group, unordered claim in the group", having("1", "2"), take, claimAnyOne, must},
	{unordered, "unordered claim, purge of the queue", having("1", "2"), claimAnyOne, purgeAll, must},
	{unordered, "unordered take, unordered claim of the same item", having("1", "2"), takeAny, claimAnyOne, must},
	{unordered, "unordered claim, unordered take of the same item", having("1", "2"), claimAnyOne, takeAny, must},
	{unordered, "unordered take, unordered take of the same item", having("1", "2"), takeAny, takeAny, must},
	{unordered, "unordered take, claim of the group", having("1", "2"), takeAny, claimUpTo(3), must},
	{unordered, "claim of the group, unordered take in the group", having("1", "2"), claimUpTo(3), takeAny, must},
	{unordered, "unordered take of the last free item, enqueue", having("1"), takeAny, enqueueTo("A"), must},
	{unordered, "unordered take that ends an expired hold, extend by its holder",
		expiredBy(2, anyOne), takeAny, extend, must},
	{unordered, "unordered claim of the last free item, enqueue", having("1"), claimAnyOne, enqueueTo("A"), must},
	{unordered, "enqueue, unordered claim of the last free item", having("1"), enqueueTo("A"), claimAnyOne, must},
	{unordered, "ack of the only item's hold with retroactive delay, enqueue",
		holdingOneRetimed, ackAll, enqueueTo("A"), must},
	{unordered, "unordered claim of an earlier item, enqueue", having("1", "2"), claimAnyOne, enqueueTo("A"), mustNot},
	{unordered, "unordered claim, ack of another hold of the group", holdingOne(3), claimAnyOne, ackAll, mustNot},
	{unordered, "ack of a hold, unordered claim in the group", holdingOne(3), ackAll, claimAnyOne, mustNot},
	{unordered, "unordered take, ack of a hold in front", holdingOne(3), takeAny, ackAll, mustNot},
	{unordered, "unordered take, release of a hold in front", holdingOne(3), takeAny, release, must},
	{unordered, "ack of a hold, unordered take behind", holdingOne(3), ackAll, takeAny, mustNot},
	{unordered, "unordered take, ack of a hold behind", func(e *env) any {
		e.sendN(4)
		claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Unordered: true, Max: 4})
		require.NoError(e.t, err)
		require.Len(e.t, claims, 4)
		for _, c := range claims[:3] {
			require.NoError(e.t, e.q.Nack(e.ctx, c, layer.NackOptions{Release: true}))
		}
		return claims[3]
	}, takeAny, ackAll, mustNot},
	{unordered, "reschedule of the next to earlier, ack of a hold in front",
		thenDelayed(holdingOne(1)), hurryLast, ackAll, must},
	{unordered, "ack of a hold, reschedule of the next to earlier",
		thenDelayed(holdingOne(1)), ackAll, hurryLast, mustNot},
	{unordered, "reschedule of the next to earlier, unordered claim in front",
		thenDelayed(having("1")), hurryLast, claimAnyOne, must},
	{unordered, "unordered claim in front, reschedule of the next to earlier",
		thenDelayed(having("1")), claimAnyOne, hurryLast, must},
	{unordered, "reschedule of the last to earlier, unordered claim far in front", func(e *env) any {
		e.sendN(3)
		enqueueLate(time.Hour)(e, nil)
		return nil
	}, hurryLast, claimAnyOne, mustNot},
	{unordered, "claim that meets a hold, release of the hold", holdingOne(2), claimUpTo(3), release, must},
	{unordered, "release of a hold, claim that meets the hold", holdingOne(2), release, claimUpTo(3), must},
	{unordered, "unordered claim that ends an expired hold, extend by its holder",
		expiredBy(2, anyOne), claimAnyOne, extend, must},
	{unordered, "claim of the group that ends an expired hold, extend by its holder",
		expiredBy(2, anyOne), claimUpTo(3), extend, must},
	{unordered, "cancel of an item, unordered claim of the item", having("1"), cancelNth(1), claimAnyOne, must},
	{unordered, "cancel of an item, unordered take of the item", having("1", "2"), cancelNth(1), takeAny, must},
	{unordered, "retry now by an earlier clock, unordered claim of the head", func(e *env) any {
		_, err := e.q.Enqueue(e.ctx, layer.Message{Group: "A", Delay: 30 * time.Second})
		require.NoError(e.t, err)
		e.clock.advance(40 * time.Second)
		return nil
	}, func(e *env, tx kv.Tx, _ any) error {
		return e.join(tx, testQueue, e.behind(), false).RetryNow(e.ctx, "A", layer.RetryOptions{})
	}, receiveBy(layer.ReceiveOptions{Unordered: true}), must},
	{unordered, "drop of an old item, unordered claim by an earlier clock", func(e *env) any {
		e.configure(func(c *layer.Config) { c.Retention = time.Minute + 10*time.Second })
		e.sendN(1)
		e.clock.advance(90 * time.Second)
		return nil
	}, claimUpTo(3), func(e *env, tx kv.Tx, _ any) error {
		late, err := layer.Open(e.ctx, e.raw, testPrefix, testQueue, e.behind())
		require.NoError(e.t, err)
		claims, err := late.ReceiveTx(e.ctx, tx, layer.ReceiveOptions{Unordered: true})
		require.Len(e.t, claims, 1)
		return err
	}, must},

	// A lease for each item.
	{itemLeases, "receive, receive", having("1", "2"), claimUpTo(1), claimUpTo(2), must},
	{itemLeases, "receive, take", having("1", "2"), claimUpTo(1), takeOne, must},
	{itemLeases, "take, receive", having("1", "2"), takeOne, claimUpTo(1), must},
	{itemLeases, "receive, pause of the group", having("1", "2"), claimUpTo(1), pauseGroup, must},
	{itemLeases, "ack that leaves the head in flight, release of the head",
		handed(2, 2), ackOf(0), nackOf(1, noDelay), must},
	{itemLeases, "release behind the head, ack of the head", handed(2, 2), nackOf(1, noDelay), ackOf(0), must},
	{itemLeases, "ack behind the head, ack of the head", handed(3, 2), ackOf(1), ackOf(0), must},
	{itemLeases, "ack of the head, extend of the next", handed(3, 2), ackOf(0), extendOf(1), mustNot},
	{itemLeases, "extend, ack of another", handed(3, 2), extendOf(0), ackOf(1), mustNot},
	{itemLeases, "ack of all there is, enqueue", handed(1, 1), ackOf(0), enqueueTo("A"), must},
	{itemLeases, "enqueue, ack of all there is", handed(1, 1), enqueueTo("A"), ackOf(0), must},
	{itemLeases, "enqueue behind others, ack of the head", handed(3, 2), enqueueTo("A"), ackOf(0), mustNot},
	{itemLeases, "reschedule of the next to earlier, ack of the head",
		thenDelayed(handed(1, 1)), hurryLast, ackOf(0), must},
	{itemLeases, "ack of the head, reschedule of the next to earlier",
		thenDelayed(handed(1, 1)), ackOf(0), hurryLast, mustNot},
	{itemLeases, "receive that takes over, extend by the holder", lapsedIn(2), claimUpTo(1), extendOf(0), must},
	{itemLeases, "cancel of the head, receive", having("1", "2"), cancelNth(1), claimUpTo(1), must},
	{itemLeases, "receive, late enqueue before the head", func(e *env) any {
		late, err := e.raw.Begin(kv.TxOptions{})
		require.NoError(e.t, err)
		require.NoError(e.t, enqueueTo("A")(e, late, nil))
		_, err = e.q.Enqueue(e.ctx, layer.Message{Group: "B"}) // a later version: the index of the next is greater
		require.NoError(e.t, err)
		claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{})
		require.NoError(e.t, err)
		require.NoError(e.t, e.q.Ack(e.ctx, claims[0]))
		e.sendN(1)
		return late
	}, claimUpTo(1), func(e *env, _ kv.Tx, late any) error {
		_, err := late.(kv.ManagedTx).Commit().Wait(e.ctx)
		return err
	}, must},

	// Claims by heartbeat. TestHeartbeatConflicts has the pairs with the beats themselves.
	{heartbeat, "ack of a claim, ack of another of the handle", beating(3), ackOf(0), ackOf(1), mustNot},
	{heartbeat, "ack of a claim, extend of another of the handle", beating(3), ackOf(0), extendOf(1), mustNot},
	{heartbeat, "extend of a claim, ack of another of the handle", beating(3), extendOf(0), ackOf(1), mustNot},
	{heartbeat, "ack of a claim, enqueue to another group", beating(3), ackOf(0), enqueueTo("B"), mustNot},
	{heartbeat, "ack of a claim, receive after the end of its handle", beating(2), ackOf(0), claimLater, must},
	{heartbeat, "extend of a claim, receive after the end of its handle", beating(2), extendOf(0), claimLater, must},
	{heartbeat, "nack of a claim, receive after the end of its handle",
		beating(2), nackOf(0, noDelay), claimLater, must},
}
