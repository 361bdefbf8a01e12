package layer

import (
	"fmt"

	"fdbfifo/kv"
)

// guard names one thing in this package that nothing but safety under concurrency or faults asks for: a conflict
// range, a check, a receipt. Each has to be needed: the build with the tag broken leaves one of them out (see
// guard_broken.go), and then a test of this package has to fail, and where it can reach it the simulation, too (make
// broken). In every other build lacks is false and is compiled away.
//
// A new one is listed in guard_broken.go, and in broken_internal_test.go with the test that fails without it; then
// make rules.
type guard string

// The guards. Each says in brackets which rules it serves (docs/guarantees.md; docs/rules.md is the index), and then
// what goes wrong without it.
const (
	// guardTail (G3, I1, trap 3): the tail that an enqueue saw is acked before it commits. The group is left without a
	// hint, and the item is never found.
	guardTail guard = "tail"
	// guardIndex (G1): a batch takes more indexes than versions pass until the next enqueue, which then lands before
	// its end.
	guardIndex guard = "index"
	// guardRandom (G3, trap 5): two enqueues at the same read version write the same key, and one item is lost.
	guardRandom guard = "random"
	// guardDedup (G3): two enqueues with the same dedup id, at the same time, are both accepted.
	guardDedup guard = "dedup"
	// guardDedupItem (G3): a message is refused as a duplicate of one that has just gone for good.
	guardDedupItem guard = "dedup-item"
	// guardDedupPurge (G3): a message is refused as a duplicate of one that has just been purged.
	guardDedupPurge guard = "dedup-purge"
	// guardDedupRename (G3): a letter that goes to the tail overwrites what a later message has left under its dedup
	// id.
	guardDedupRename guard = "dedup-rename"
	// guardDedupSweep (G3): a sweep clears the entry of a message that was enqueued meanwhile.
	guardDedupSweep guard = "dedup-sweep"
	// guardDedupSlack (G3): a sweep whose clock is ahead ends the time of a dedup id early.
	guardDedupSlack guard = "dedup-slack"
	// guardPurgeNote (G3): of two purges at the same time the one that began first puts the note of the other back, and
	// what that has purged is remembered again.
	guardPurgeNote guard = "purge-note"
	// guardPurgeSweep (G3): a sweep clears the note of a purge that has just begun.
	guardPurgeSweep guard = "purge-sweep"

	// guardLease (G2): a group is taken from a holder whose lease lasts.
	guardLease guard = "lease"
	// guardClaimLock (G2): two claimers take the same group.
	guardClaimLock guard = "claim-lock"
	// guardStaleLock (G3, I1, trap 2): a hint is cleared as stale whose group has just been released, under the very
	// same key.
	guardStaleLock guard = "stale-lock"
	// guardStaleEmpty (G3, I1, trap 2): a hint is cleared as stale that an enqueue into the empty group has just
	// written.
	guardStaleEmpty guard = "stale-empty"
	// guardEmptyLock (contract): what is left of the lock of an empty group is cleared, while the group is paused.
	guardEmptyLock guard = "empty-lock"
	// guardMarkLock (G2): an expired claim becomes its mark, while its holder acks or extends.
	guardMarkLock guard = "mark-lock"
	// guardParkLock (G2, G3): the item that was tried under an expired claim is parked, while its holder acks or
	// extends.
	guardParkLock guard = "park-lock"
	// guardOverdueLock (G2): items too old are removed from a group that another claims.
	guardOverdueLock guard = "overdue-lock"
	// guardEarlyLock (G2): a group is left to the timer of its head, while another changes its lock.
	guardEarlyLock guard = "early-lock"
	// guardEarlyGap (G5, I1): a group is left to the timer of its head, and an item that came before that waits as
	// long.
	guardEarlyGap guard = "early-gap"
	// guardTokenGrows (G2): of two handles with different offsets the later claim has the smaller token.
	guardTokenGrows guard = "token-grows"

	// guardToken (G2, G3): a holder that was overtaken acks what another has in flight.
	guardToken guard = "token"
	// guardSettleLock (G2): an ack ends the claim of one that takes over at the same time.
	guardSettleLock guard = "settle-lock"
	// guardExactClear (G3, trap 1): an item whose enqueue commits late, between those acked, goes with them.
	guardExactClear guard = "exact-clear"
	// guardAhead (G5, trap 1): the last ack takes one of the acked items for the next head, because one came between
	// them late.
	guardAhead guard = "ahead"
	// guardReleaseEmpty (G3, I1, trap 3): an enqueue that saw what the ack removes commits first, and the group is left
	// without a hint.
	guardReleaseEmpty guard = "release-empty"

	// guardTakeLock (G2): an item is taken that another claims.
	guardTakeLock guard = "take-lock"
	// guardTakeItems (G3, I1, trap 3): as guardReleaseEmpty, for a take.
	guardTakeItems guard = "take-items"
	// guardTakeExclude (G2): two takers take the same item, or a claimer claims it.
	guardTakeExclude guard = "take-exclude"

	// guardItemLock (G2): an operator removes or changes an item that another has just claimed.
	guardItemLock guard = "item-lock"
	// guardTakeOutExclude (G3): a claimer claims an item that an operator has just removed.
	guardTakeOutExclude guard = "take-out-exclude"
	// guardEditExclude (contract): a claimer is given the old body of an item that was edited before its claim.
	guardEditExclude guard = "edit-exclude"
	// guardFreeEmpty (G3, I1, trap 3): as guardReleaseEmpty, for what operators and sweeps set free.
	guardFreeEmpty guard = "free-empty"
	// guardMarkGroup (G2): a pause, park or unmark writes over a lock that has changed.
	guardMarkGroup guard = "mark-group"
	// guardForceLock (G2): a claim is ended by force that has ended, and with it the next one.
	guardForceLock guard = "force-lock"
	// guardRetryLock (G2): a delay is ended that has ended, and with it the claim that followed.
	guardRetryLock guard = "retry-lock"
	// guardRetryExclude (G5, I1): a head is made due while a claimer puts its group back.
	guardRetryExclude guard = "retry-exclude"

	// guardPurgeLock (G2): a purge removes what another has just claimed.
	guardPurgeLock guard = "purge-lock"
	// guardPurgeExclude (G3): a claimer claims what a purge has just removed.
	guardPurgeExclude guard = "purge-exclude"
	// guardPurgeItems (contract, trap 1): an item whose enqueue commits late, among a thousand purged at once, goes
	// uncounted.
	guardPurgeItems guard = "purge-items"
	// guardPurgeGap (G3, I1, trap 3): as guardReleaseEmpty, for a purge of a whole group.
	guardPurgeGap guard = "purge-gap"

	// guardStateLock (G2): a state is set under a claim that has just begun.
	guardStateLock guard = "state-lock"
	// guardStateExclude (contract): a claimer is given the state of before.
	guardStateExclude guard = "state-exclude"
	// guardKeepExclude (contract): one that takes over is given the state of before.
	guardKeepExclude guard = "keep-exclude"

	// guardAgeLock (G2): a sweep removes items too old that another has just claimed.
	guardAgeLock guard = "age-lock"
	// guardAgeExclude (G3): a claimer claims what was too old and has just been removed.
	guardAgeExclude guard = "age-exclude"

	// guardRedriveLock (G3, I1): a hint is set, or left out, by a lock that has changed.
	guardRedriveLock guard = "redrive-lock"
	// guardRedriveExclude (G1): a claim passes over an item that has come back before its first.
	guardRedriveExclude guard = "redrive-exclude"
	// guardLetter (G3): a dead letter is redriven twice, or redriven and discarded.
	guardLetter guard = "letter"

	// guardRequestClear (G5): a request is cleared while it is granted a group.
	guardRequestClear guard = "request-clear"
	// guardGrantRequest (G5): a request is granted groups that has just been cleared or served.
	guardGrantRequest guard = "grant-request"
	// guardGrantLock (G2): a group is granted that another has just claimed.
	guardGrantLock guard = "grant-lock"
	// guardPaceSweep (contract): a sweep clears what a claim has just used of its group's rate.
	guardPaceSweep guard = "pace-sweep"
	// guardPaceEmpty (G5, I1): a sweep clears what was used of an empty group's rate, while a message comes and is left
	// to that.
	guardPaceEmpty guard = "pace-empty"
	// guardPaceExclude (G5, I1): a group is left to a rate that has just been raised.
	guardPaceExclude guard = "pace-exclude"
	// guardPaceFresh (G5, I1): the same, by a handle that does not know of it yet.
	guardPaceFresh guard = "pace-fresh"

	// guardGrantLease (G5): a requester that died keeps what it was granted.
	guardGrantLease guard = "grant-lease"
	// guardRequestDeadline (G5): requesters that died are granted groups for ever.
	guardRequestDeadline guard = "request-deadline"
	// guardWithdrawRequest (G5): a request is withdrawn while it is granted a group.
	guardWithdrawRequest guard = "withdraw-request"
	// guardWithdrawLock (G2): a grant is given back that has ended, and with it the claim that followed.
	guardWithdrawLock guard = "withdraw-lock"
	// guardSweepRequest (G5): the request of a handle that lives is swept, though it has been renewed.
	guardSweepRequest guard = "sweep-request"
	// guardRenewRequest (G5): a request that was swept comes back.
	guardRenewRequest guard = "renew-request"

	// guardReceipt (G3, trap 4): what a commit of unknown outcome has done is done again.
	guardReceipt guard = "receipt"
	// guardReceiptConflict (G3, trap 4): a retry's commit of unknown outcome lands after the look for its receipt, and
	// is done again.
	guardReceiptConflict guard = "receipt-conflict"
	// guardReceiptLate (G3, trap 4): a commit of unknown outcome lands after its retry has, and what it does is done
	// twice.
	guardReceiptLate guard = "receipt-late"
	// guardReceiptFence (G2, G3, trap 4): a retry answers, with results of its own or a refusal, what a commit does
	// that lands after it has looked.
	guardReceiptFence guard = "receipt-fence"
	// guardReceiptLife (G3, trap 4): a sweep clears a receipt that is looked for.
	guardReceiptLife guard = "receipt-life"
	// guardReceiptTrust (G3, trap 4): a receipt is looked for so late that a sweep has cleared it, and not finding it
	// means nothing.
	guardReceiptTrust guard = "receipt-trust"
	// guardClaimReceipt (G3, trap 4): a claim of unknown outcome locks a group for nobody.
	guardClaimReceipt guard = "claim-receipt"
	// guardReloadToken (G2, trap 4): a claim of unknown outcome is answered with that of another who has taken over.
	guardReloadToken guard = "reload-token"
	// guardReloadExact (G2, trap 1): a claim of unknown outcome is answered with an item that came between its items
	// late.
	guardReloadExact guard = "reload-exact"
	// guardAssign (G2, trap 8): a receive returns what an attempt has claimed that failed.
	guardAssign guard = "assign"
	// guardApart (G3, trap 4): operations whose common transaction had an unknown outcome are done again, each alone.
	guardApart guard = "apart"

	// guardConfigure (contract): of two changes of the configuration at the same time one is lost.
	guardConfigure guard = "configure"
	// guardQueuePause (contract): of two pauses of the queue at the same time both are told that they were the first.
	guardQueuePause guard = "queue-pause"
	// guardNotInClaim (G3): an ack of an item that is not in the claim is taken for done.
	guardNotInClaim guard = "not-in-claim"
	// guardSpent (trap 7): a claim settles all that is overdue in one transaction, however much it is.
	guardSpent guard = "spent"
	// guardBatchSize (trap 7): more travels together than a transaction takes.
	guardBatchSize guard = "batch-size"
	// guardReplayEnd (G3): a replay repeats what was finished after it had begun.
	guardReplayEnd guard = "replay-end"
	// guardReplayCut (G3): a replay leaves out what one transaction could not do.
	guardReplayCut guard = "replay-cut"
	// guardDrop (G3): a transaction that was begun before its queue was dropped leaves keys behind.
	guardDrop guard = "drop"
	// guardDropLook (G3): a transaction goes by a configuration that was read long before its queue was dropped.
	guardDropLook guard = "drop-look"
	// guardSweepTurn (contract): of several sweeps that begin at the same time each goes on.
	guardSweepTurn guard = "sweep-turn"
	// guardRepeat (G3): two receives with one receive id, at the same time, both claim.
	guardRepeat guard = "repeat"
	// guardRepeatTwin (G3): of two receives with one receive id in the same transaction both claim.
	guardRepeatTwin guard = "repeat-twin"
	// guardRepeatBack (G3): what a receive with a receive id has claimed is given back before it is repeated.
	guardRepeatBack guard = "repeat-back"
	// guardRepeatSweep (G3): a sweep clears a receive id that has just been used again.
	guardRepeatSweep guard = "repeat-sweep"
	// guardExtendApart (contract): a worker extends a claim while a handler's transaction on the claim is open, and
	// fails the transaction again and again.
	guardExtendApart guard = "extend-apart"
	// guardTxBound (contract): a handler that takes longer than a transaction lasts is called for ever.
	guardTxBound guard = "tx-bound"
)

// read adds a read conflict.
func (g guard) read(tx kv.Tx, r kv.KeyRange) error {
	if lacks(g) {
		return nil
	}
	if err := tx.AddReadConflictRange(r); err != nil {
		return fmt.Errorf("guard %s: %w", g, err)
	}
	return nil
}

// write adds a write conflict.
func (g guard) write(tx kv.Tx, key []byte) error {
	if lacks(g) {
		return nil
	}
	if err := tx.AddWriteConflictRange(kv.SingleKey(key)); err != nil {
		return fmt.Errorf("guard %s: %w", g, err)
	}
	return nil
}

// get starts reading a key, with a conflict.
func (g guard) get(tx kv.Tx, key []byte) kv.Future[[]byte] {
	if lacks(g) {
		return tx.Snapshot().Get(key)
	}
	return tx.Get(key)
}

// reads is for reads with conflicts.
func (g guard) reads(tx kv.Tx) kv.ReadTx {
	if lacks(g) {
		return tx.Snapshot()
	}
	return tx
}
