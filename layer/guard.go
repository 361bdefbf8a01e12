package layer

import (
	"fmt"

	"fdbfifo/kv"
)

// guard names a conflict range, a check or a receipt which only safety under concurrency or faults asks for. Each guard
// has to be needed: the build with the tag broken leaves one guard out (see guard_broken.go), and then a test of this
// package has to fail, and so has the simulation where it can reach the guard (make broken). In every other build lacks
// is false and is compiled away.
//
// List a new guard in guard_broken.go, and in broken_internal_test.go with the test which fails without the guard; then
// run make rules.
type guard string

// The guards. In brackets: the rules which the guard serves (docs/guarantees.md; docs/rules.md is the index). Behind
// the colon: what goes wrong without the guard.
const (
	// guardTail (G3, I1, trap 3): the tail seen by an enqueue is acked before the enqueue commits. The group is left
	// without a hint, so no receive finds the item.
	guardTail guard = "tail"
	// guardLaneTail (G3, I1, trap 3): as guardTail, for the last item of a lane that is no whole group.
	guardLaneTail guard = "lane-tail"
	// guardIndex (G1): the indexes of a batch run ahead of the versions, so the next enqueue lands before the batch's
	// last item. Example: 1,000 items at version 5,000 reach index 5,999; an enqueue at version 5,100 gets index 5,100.
	guardIndex guard = "index"
	// guardBehindAll (G1): a message which is to come behind all lands before a message which came to the
	// group after the transaction's first read, and before its commit.
	guardBehindAll guard = "behind-all"
	// guardRandom (G3, trap 5): two enqueues at the same read version write the same key, and an item is lost.
	guardRandom guard = "random"
	// guardDedup (G3): two enqueues with the same dedup id, at the same time, are both accepted.
	guardDedup guard = "dedup"
	// guardDedupItem (G3): a message is refused as a duplicate of an item which has just been removed for good.
	guardDedupItem guard = "dedup-item"
	// guardDedupPurge (G3): a message is refused as a duplicate of an item which has just been purged.
	guardDedupPurge guard = "dedup-purge"
	// guardDedupRename (G3): a dead letter redriven to the tail overwrites the dedup entry of a later message.
	guardDedupRename guard = "dedup-rename"
	// guardDedupSweep (G3): a sweep clears the dedup entry of a message that was enqueued since.
	guardDedupSweep guard = "dedup-sweep"
	// guardDedupSlack (G3): a sweep whose clock is ahead ends the dedup window of an id early.
	guardDedupSlack guard = "dedup-slack"
	// guardPurgeNote (G3): of two purges at the same time, the earlier overwrites the later note. Then dedup ids of
	// items which the later purge removed are remembered again.
	guardPurgeNote guard = "purge-note"
	// guardPurgeSweep (G3): a sweep clears the note of a purge which has just begun.
	guardPurgeSweep guard = "purge-sweep"

	// guardLease (G2): a group is taken from a holder whose lease has not ended.
	guardLease guard = "lease"
	// guardClaimLock (G2): two claimers claim the same group.
	guardClaimLock guard = "claim-lock"
	// guardOverLock (G2): two claimers claim intersecting lanes of a group.
	guardOverLock guard = "over-lock"
	// guardOtherLock (G2): an expired claim of an intersecting lane is ended while its holder acks or extends.
	guardOtherLock guard = "other-lock"
	// guardKeptLock (G5, I1): a hint is put aside under a lock which has just been released.
	guardKeptLock guard = "kept-lock"
	// guardKept (G5, I1): a lock is released while a hint is put aside under the lock.
	guardKept guard = "kept"
	// guardHold (G2): two unordered receives claim the same item.
	guardHold guard = "hold"
	// guardHolds (G1, G2): a group is claimed, in order, with an item that an unordered receive has just claimed.
	guardHolds guard = "holds"
	// guardHoldEnd (G2): an unordered claim whose lease has ended is ended while its holder acks or extends.
	guardHoldEnd guard = "hold-end"
	// guardHoldEmpty (G3, I1, trap 3): an unordered receive takes the last free item of a group, and an item which
	// comes at the same time is left without a hint.
	guardHoldEmpty guard = "hold-empty"
	// guardTurnNote (G2, G5, I1): with a lease for each item, a claim of a message begins or ends, and a transaction
	// that has read the messages in flight at the same time does not notice.
	guardTurnNote guard = "turn-note"
	// guardTurnLock (G5, I1): a group is left without a hint because its head is in flight, and the head has just been
	// given back.
	guardTurnLock guard = "turn-lock"
	// guardTurnGap (G5, I1): a group is left without a hint because its head is in flight, and an item lands before the
	// head with the very hint that is cleared.
	guardTurnGap guard = "turn-gap"
	// guardOverdueHold (G2): an item past retention is removed which an unordered receive has just claimed.
	guardOverdueHold guard = "overdue-hold"
	// guardStaleLock (G3, I1, trap 2): a hint is cleared as stale although a release has just set the very same key.
	guardStaleLock guard = "stale-lock"
	// guardStaleEmpty (G3, I1, trap 2): a hint is cleared as stale although an enqueue into the empty group has just
	// set the very same key.
	guardStaleEmpty guard = "stale-empty"
	// guardEmptyLock (contract): the leftover lock of an empty group is cleared while an operator pauses the group.
	guardEmptyLock guard = "empty-lock"
	// guardMarkLock (G2): an expired claim is replaced by its mark while the holder acks or extends.
	guardMarkLock guard = "mark-lock"
	// guardParkLock (G2, G3): the item tried under an expired claim is dead-lettered while the holder acks or extends.
	guardParkLock guard = "park-lock"
	// guardOverdueLock (G2): items past retention are removed from a group which another worker has just claimed.
	guardOverdueLock guard = "overdue-lock"
	// guardEarlyLock (G2): a group is left to the timer of its head while another worker changes the lock.
	guardEarlyLock guard = "early-lock"
	// guardEarlyGap (G5, I1): a group is left to the timer of its delayed head, and an item enqueued before the head,
	// or advanced to there, waits as long.
	guardEarlyGap guard = "early-gap"
	// guardRetroTimer (G5, I1): a handle which knows a shorter delay than the queue's finds the timer of a head which
	// is not due, and clears the timer which it has just set for that head.
	guardRetroTimer guard = "retro-timer"
	// guardTokenGrows (G2): of two handles with different offsets, the later claim has the smaller token.
	guardTokenGrows guard = "token-grows"

	// guardToken (G2, G3): a holder whose claim was taken over acks items which are in flight elsewhere.
	guardToken guard = "token"
	// guardSettleLock (G2): an ack ends the claim of a worker who takes the group over at the same time.
	guardSettleLock guard = "settle-lock"
	// guardExactClear (G3, trap 1): an item whose enqueue commits late, between the acked items, is cleared, too.
	guardExactClear guard = "exact-clear"
	// guardRangeClear (G3, trap 1): an item whose enqueue commits while an ack clears its items by a range, with an
	// index in between, is cleared, too.
	guardRangeClear guard = "range-clear"
	// guardAhead (G5, trap 1): the last ack takes an acked item for the next head, because an item landed late between
	// the acked items.
	guardAhead guard = "ahead"
	// guardReleaseEmpty (G3, I1, trap 3): an enqueue commits first which saw the items removed by an ack. The group is
	// left without a hint.
	guardReleaseEmpty guard = "release-empty"

	// guardTakeLock (G2): an item is taken out of a group which another worker has just claimed.
	guardTakeLock guard = "take-lock"
	// guardTakeItems (G3, I1, trap 3): as guardReleaseEmpty, for a take.
	guardTakeItems guard = "take-items"
	// guardTakeExclude (G2): two takers take the same item, or a claimer claims a taken item.
	guardTakeExclude guard = "take-exclude"

	// guardItemLock (G2): an operator removes or changes an item which a worker has just claimed.
	guardItemLock guard = "item-lock"
	// guardTakeOutExclude (G3): a claimer claims an item which an operator has just removed.
	guardTakeOutExclude guard = "take-out-exclude"
	// guardEditExclude (contract): a claimer gets the old body of an item which was edited before the claim.
	guardEditExclude guard = "edit-exclude"
	// guardNextEarlier (G5, I1): an item is rescheduled to earlier while the items before it leave. The transaction
	// that left the lane to the timer of the item, as its new head, has seen the later time.
	guardNextEarlier guard = "next-earlier"
	// guardFreeEmpty (G3, I1, trap 3): as guardReleaseEmpty, for groups which operators and sweeps set free, and, with
	// retroactive delay, for lanes whose items leave with a claim of another lane.
	guardFreeEmpty guard = "free-empty"
	// guardMarkGroup (G2): a pause, halt or resume overwrites a lock that has changed since.
	guardMarkGroup guard = "mark-group"
	// guardForceLock (G2): a forced release whose claim has already ended also ends the next claim.
	guardForceLock guard = "force-lock"
	// guardRetryLock (G2): RetryNow ends a delay which has already ended, and with the delay the claim which followed.
	guardRetryLock guard = "retry-lock"
	// guardRetryExclude (G5, I1): a head is made due while a claimer leaves the group to the timer of the head.
	guardRetryExclude guard = "retry-exclude"

	// guardPurgeLock (G2): a purge removes items which a worker has just claimed.
	guardPurgeLock guard = "purge-lock"
	// guardPurgeExclude (G3): a claimer claims items which a purge has just removed.
	guardPurgeExclude guard = "purge-exclude"
	// guardPurgeItems (contract, trap 1): an item whose enqueue commits late, among a thousand purged at once, is
	// removed without being counted.
	guardPurgeItems guard = "purge-items"
	// guardPurgeGap (G3, I1, trap 3): as guardReleaseEmpty, for a purge of a whole group.
	guardPurgeGap guard = "purge-gap"
	// guardPurgeWholeLock (G2): a purge of all items at once removes the items of a claim which has just begun.
	guardPurgeWholeLock guard = "purge-whole-lock"
	// guardPurgeWholeExclude (G3): a claimer claims items which a purge of all items at once has just removed.
	guardPurgeWholeExclude guard = "purge-whole-exclude"
	// guardPurgeWholeItems (contract, trap 1): an item which comes during a purge of all items at once is removed
	// without being counted.
	guardPurgeWholeItems guard = "purge-whole-items"

	// guardStateLock (G2): a state is set under a claim which has just begun.
	guardStateLock guard = "state-lock"
	// guardStateExclude (contract): a claimer gets the state from before the change.
	guardStateExclude guard = "state-exclude"
	// guardKeepExclude (contract): a worker who takes the group over gets the state from before the change.
	guardKeepExclude guard = "keep-exclude"

	// guardAgeLock (G2): a sweep removes items past retention which a worker has just claimed.
	guardAgeLock guard = "age-lock"
	// guardAgeExclude (G3): a claimer claims items past retention which have just been removed.
	guardAgeExclude guard = "age-exclude"

	// guardRedriveLock (G3, I1): a redrive decides by an outdated lock whether the group needs a hint.
	guardRedriveLock guard = "redrive-lock"
	// guardRedriveExclude (G1): a claim passes over an item which a redrive has just put before the claim's first item.
	guardRedriveExclude guard = "redrive-exclude"
	// guardLetter (G3): a dead letter is redriven twice, or redriven and discarded.
	guardLetter guard = "letter"

	// guardRequestClear (G5): a request is cleared while groups are granted to the request.
	guardRequestClear guard = "request-clear"
	// guardGrantRequest (G5): groups are granted to a request which has just been cleared or served.
	guardGrantRequest guard = "grant-request"
	// guardGrantLock (G2): a group is granted which a worker has just claimed.
	guardGrantLock guard = "grant-lock"
	// guardTotalDraw (contract): two handles draw the same portion of the queue's rate at the same time.
	guardTotalDraw guard = "total-draw"
	// guardPaceSweep (contract): a sweep clears the rate record of a group which a claim has just updated.
	guardPaceSweep guard = "pace-sweep"
	// guardPaceEmpty (G5, I1): a sweep clears the rate record of an empty group while a new message is left to the
	// group's rate.
	guardPaceEmpty guard = "pace-empty"
	// guardPaceExclude (G5, I1): a group is left to a rate which has just been raised.
	guardPaceExclude guard = "pace-exclude"
	// guardPaceFresh (G5, I1): as guardPaceExclude, by a handle which has not yet read the new configuration.
	guardPaceFresh guard = "pace-fresh"

	// guardGrantLease (G5): a dead requester keeps the groups granted to its request.
	guardGrantLease guard = "grant-lease"
	// guardRequestDeadline (G5): dead requesters are granted groups again and again.
	guardRequestDeadline guard = "request-deadline"
	// guardWithdrawRequest (G5): a request is withdrawn while a group is granted to the request.
	guardWithdrawRequest guard = "withdraw-request"
	// guardWithdrawLock (G2): a grant is given back which has already ended, and the claim which followed ends too.
	guardWithdrawLock guard = "withdraw-lock"
	// guardSweepRequest (G5): the request of a live handle is swept although the handle has just renewed the deadline.
	guardSweepRequest guard = "sweep-request"
	// guardRenewRequest (G5): a request which was swept comes back.
	guardRenewRequest guard = "renew-request"

	// guardWakeTemplate (G5): a transaction that makes a lane ready wakes no handle that waits by its template.
	guardWakeTemplate guard = "wake-template"
	// guardWakeUnlocked (G5): the release of a lane's lock does not wake a handle that waits for an intersecting lane
	// of a named group.
	guardWakeUnlocked guard = "wake-unlocked"
	// guardPassOn (G5): of several lanes of a template which became ready at once, those beyond what the woken handle
	// can take wait for the polls of the other handles.
	guardPassOn guard = "pass-on"
	// guardLookSoon (G5): a receive begins to wait while an enqueue is in flight which has read the requests before,
	// and waits for its poll.
	guardLookSoon guard = "look-soon"
	// guardGoneWake (G5): an enqueue wakes a handle which has just been served otherwise, and the other handles wait
	// until their next poll.
	guardGoneWake guard = "gone-wake"
	// guardOwedWake (G5): the wake that an ack owes is never paid if the handle receives no more, and a waiting handle
	// finds the group only by a poll.
	guardOwedWake guard = "owed-wake"
	// guardKeepBounds (G5): a handle that acks and at once receives again keeps the group from those that wait as long
	// as there are messages.
	guardKeepBounds guard = "keep-bounds"

	// guardReceipt (G3, trap 4): work is done twice: a retry repeats a commit of unknown outcome which has landed.
	guardReceipt guard = "receipt"
	// guardReceiptConflict (G3, trap 4): the commit of a retry, of unknown outcome, lands after the search for the
	// receipt, and the work is done twice.
	guardReceiptConflict guard = "receipt-conflict"
	// guardReceiptLate (G3, trap 4): a commit of unknown outcome lands after the retry has committed, and the work is
	// done twice.
	guardReceiptLate guard = "receipt-late"
	// guardReceiptFence (G2, G3, trap 4): a retry answers with results or a refusal of its own, and then the first
	// commit lands after all, so the answer is wrong.
	guardReceiptFence guard = "receipt-fence"
	// guardReceiptLife (G3, trap 4): a sweep clears a receipt which a retry still looks for.
	guardReceiptLife guard = "receipt-life"
	// guardReceiptTrust (G3, trap 4): a retry looks so late for its receipt that a sweep may have cleared the receipt,
	// so "not found" means nothing.
	guardReceiptTrust guard = "receipt-trust"
	// guardClaimReceipt (G3, trap 4): a claim of unknown outcome locks a group that no worker handles.
	guardClaimReceipt guard = "claim-receipt"
	// guardReloadToken (G2, trap 4): a claim of unknown outcome is answered with the claim of the worker who took over.
	guardReloadToken guard = "reload-token"
	// guardReloadExact (G2, trap 1): a claim of unknown outcome is answered with an item which landed late between the
	// claimed items.
	guardReloadExact guard = "reload-exact"
	// guardAssign (G2, trap 8): a receive returns claims of a failed attempt of the transaction.
	guardAssign guard = "assign"
	// guardApart (G3, trap 4): operations whose common transaction had an unknown outcome are done again, each alone.
	guardApart guard = "apart"

	// guardConfigure (contract): of two configuration changes at the same time, the first is lost.
	guardConfigure guard = "configure"
	// guardQueuePause (contract): of two pauses of the queue at the same time, both report being the first.
	guardQueuePause guard = "queue-pause"
	// guardNotInClaim (G3): an ack of an item which is not in the claim is taken for done.
	guardNotInClaim guard = "not-in-claim"
	// guardSpent (trap 7): a claim removes all items past retention in a single transaction, however many.
	guardSpent guard = "spent"
	// guardBatchSize (trap 7): more operations share a transaction than a transaction can hold.
	guardBatchSize guard = "batch-size"
	// guardReplayEnd (G3): a replay repeats items which were finished after the replay began.
	guardReplayEnd guard = "replay-end"
	// guardReplayCut (G3): a replay leaves out the items for which a step had no room.
	guardReplayCut guard = "replay-cut"
	// guardDrop (G3): a transaction begun before its queue was dropped leaves keys behind.
	guardDrop guard = "drop"
	// guardDropLook (G3): a transaction uses a configuration read long before its queue was dropped.
	guardDropLook guard = "drop-look"
	// guardClockAsk (G3): a process whose clock is ahead removes messages, dead letters and receipts as too old.
	guardClockAsk guard = "clock-ask"
	// guardClockLease (G7): a process whose clock is ahead takes the messages of workers that live, and counts
	// attempts, until they become dead letters.
	guardClockLease guard = "clock-lease"
	// guardClockBound (contract): what a process has stored whose clock was a year ahead stays in force for a year.
	guardClockBound guard = "clock-bound"
	// guardSubscribeHold (contract): a subscription is taken from a process that has just extended its lease.
	guardSubscribeHold guard = "subscribe-hold"
	// guardSubscribeMove (contract): a process which has lost its subscription commits the effect of changes which
	// another process has handled.
	guardSubscribeMove guard = "subscribe-move"
	// guardSubscribeAgain (G3, trap 4): after a commit of unknown outcome which has landed, the handler's transaction
	// is done again.
	guardSubscribeAgain guard = "subscribe-again"
	// guardSubscribeStop (contract): a subscription that is stopped while its handler runs is taken over, and another
	// process calls its handler with the same changes.
	guardSubscribeStop guard = "subscribe-stop"
	// guardIncarnation (G3): a handle from before a drop continues with the next queue of the name, with the number of
	// shards of the last one, and no receive finds its hints.
	guardIncarnation guard = "incarnation"
	// guardGrow (G5): a search ends without the shards that the handle has learned of during it. So the first call of
	// an idle handle does not find the groups that are ready there.
	guardGrow guard = "grow"
	// guardTwin (G5): a timer of a claim that is gone, in the shard of an earlier number, makes a transaction clear the
	// right key of the group as a second one.
	guardTwin guard = "twin"
	// guardSweepTurn (contract): of several sweeps that begin at the same time, all continue.
	guardSweepTurn guard = "sweep-turn"
	// guardRepeat (G3): two receives with the same receive id, at the same time, both claim.
	guardRepeat guard = "repeat"
	// guardRepeatTwin (G3): of two receives with the same receive id in the same transaction, both claim.
	guardRepeatTwin guard = "repeat-twin"
	// guardRepeatBack (G3): the claims of a receive with a receive id are given back before the receive is repeated.
	guardRepeatBack guard = "repeat-back"
	// guardRepeatSweep (G3): a sweep clears the entry of a receive id which has just been used again.
	guardRepeatSweep guard = "repeat-sweep"
	// guardBeatJoin (G5, I1): a claim joins the beat of a handle that is being ended, and the claim never ends.
	guardBeatJoin guard = "beat-join"
	// guardBeatLast (G5, I1): the end of a handle misses a claim that has just joined the beat, and the claim never
	// ends.
	guardBeatLast guard = "beat-last"
	// guardBeatMove (contract): a handle continues with a beat that another has begun to end, and its workers do not
	// learn that others may get their groups.
	guardBeatMove guard = "beat-move"
	// guardBeatEnd (G5): a handle is ended which has just moved its beat.
	guardBeatEnd guard = "beat-end"
	// guardBeatLock (G2): the end of a handle overwrites the lock of a group which the handle has just released, and
	// another claimed.
	guardBeatLock guard = "beat-lock"
	// guardSuspect (G7): a message which kills its process is delivered together with others again and again, and the
	// others count its attempts.
	guardSuspect guard = "suspect"
	// guardSuspectTurn (G7): a handle gives two suspect messages at a time, and the one that kills the process counts
	// attempts of the other.
	guardSuspectTurn guard = "suspect-turn"
	// guardProof (G7): a claim of which no caller has ever heard counts an attempt when its lease expires, and a
	// message that no handler has seen becomes a dead letter.
	guardProof guard = "proof"
	// guardOrphan (G7): the claims of a receive whose outcome stays unknown hold their groups until their leases
	// expire.
	guardOrphan guard = "orphan"
	// guardOwnClaim (G2): a handle whose clock steps ahead takes the groups that it holds itself.
	guardOwnClaim guard = "own-claim"
	// The two guards of package worker: see worker/guard.go.

	// guardExtendApart (contract): a worker extends a claim while a handler's transaction on the claim is open, and
	// fails the transaction again and again.
	guardExtendApart guard = "extend-apart"
	// guardTxBound (contract): a handler that takes longer than a transaction may last is called again and again.
	guardTxBound guard = "tx-bound"
)

// read adds a read conflict on r.
func (g guard) read(tx kv.Tx, r kv.KeyRange) error {
	if lacks(g) {
		return nil
	}
	if err := tx.AddReadConflictRange(r); err != nil {
		return fmt.Errorf("guard %s: %w", g, err)
	}
	return nil
}

// write adds a write conflict on key.
func (g guard) write(tx kv.Tx, key []byte) error {
	return g.writeRange(tx, kv.SingleKey(key))
}

// writeRange adds a write conflict on a range.
func (g guard) writeRange(tx kv.Tx, r kv.KeyRange) error {
	if lacks(g) {
		return nil
	}
	if err := tx.AddWriteConflictRange(r); err != nil {
		return fmt.Errorf("guard %s: %w", g, err)
	}
	return nil
}

// get starts a read of key with a read conflict.
func (g guard) get(tx kv.Tx, key []byte) kv.Future[[]byte] {
	if lacks(g) {
		return tx.Snapshot().Get(key)
	}
	return tx.Get(key)
}

// reads returns a reader whose reads add read conflicts.
func (g guard) reads(tx kv.Tx) kv.ReadTx {
	if lacks(g) {
		return tx.Snapshot()
	}
	return tx
}
