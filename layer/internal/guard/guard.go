// Package guard names the read and write conflicts that the queue relies on, and the checks that have the same purpose.
//
// The comment of a guard says what breaks without the guard. Example: Token, "a holder whose claim was taken over acks
// items which are in flight elsewhere". A function of layer takes a conflict through its guard:
// guard.SettleLock.Get(tx, key). A guard that no conflict can carry is a check in the code. The check does not name the
// guard. A file of internal/mutants/testdata/guards has the code without the check. Example: token.txt.
//
// A build with the tag broken and the overlay of internal/mutants leaves one guard out. The environment variable
// FDBFIFO_WITHOUT names the guard. Then a test must fail, and so must the simulation if it can reach the guard. make
// broken checks this for each guard. Every other build takes each conflict and has each check.
//
// A new guard needs a comment here, a place in the list of broken.go, and in layer/broken_internal_test.go a test that
// fails without the guard. A guard that is a check also needs its mutant. make rules writes the comment and the test
// into docs/rules.md.
package guard

import (
	"fmt"

	"fdbfifo/kv"
)

// Guard is the name of a guard. Its methods leave the conflict out if the build leaves the guard out.
type Guard string

// The guards. In brackets: the rules which the guard serves (docs/guarantees.md; docs/rules.md is the index). Behind
// the colon: what goes wrong without the guard.
const (
	// Tail (G3, I1, trap 3): the tail seen by an enqueue is acked before the enqueue commits. The group is left without
	// a hint, so no receive finds the item.
	Tail Guard = "tail"
	// LaneTail (G3, I1, trap 3): as [Tail], for the last item of a lane that is no whole group.
	LaneTail Guard = "lane-tail"
	// Index (G1): the indexes of a batch run ahead of the versions, so the next enqueue lands before the batch's last
	// item. Example: 1,000 items at version 5,000 reach index 5,999; an enqueue at version 5,100 gets index 5,100.
	Index Guard = "index"
	// BehindAll (G1): a message which is to come behind all lands before a message which came to the group after the
	// transaction's first read, and before its commit.
	BehindAll Guard = "behind-all"
	// Random (G3, trap 5): two enqueues at the same read version write the same key, and an item is lost.
	Random Guard = "random"
	// Dedup (G3): two enqueues with the same dedup id, at the same time, are both accepted.
	Dedup Guard = "dedup"
	// DedupItem (G3): a message is refused as a duplicate of an item which has just been removed for good.
	DedupItem Guard = "dedup-item"
	// DedupPurge (G3): a message is refused as a duplicate of an item which has just been purged.
	DedupPurge Guard = "dedup-purge"
	// DedupRename (G3): a dead letter redriven to the tail overwrites the dedup entry of a later message.
	DedupRename Guard = "dedup-rename"
	// DedupSweep (G3): a sweep clears the dedup entry of a message that was enqueued since.
	DedupSweep Guard = "dedup-sweep"
	// DedupSlack (G3): a sweep whose clock is ahead ends the dedup window of an id early.
	DedupSlack Guard = "dedup-slack"
	// PurgeNote (G3): of two purges at the same time, the earlier overwrites the later note. Then dedup ids of items
	// which the later purge removed are remembered again.
	PurgeNote Guard = "purge-note"
	// PurgeSweep (G3): a sweep clears the note of a purge which has just begun.
	PurgeSweep Guard = "purge-sweep"

	// Lease (G2): a group is taken from a holder whose lease has not ended.
	Lease Guard = "lease"
	// ClaimLock (G2): two claimers claim the same group.
	ClaimLock Guard = "claim-lock"
	// OverLock (G2): two claimers claim intersecting lanes of a group.
	OverLock Guard = "over-lock"
	// OtherLock (G2): an expired claim of an intersecting lane is ended while its holder acks or extends.
	OtherLock Guard = "other-lock"
	// KeptLock (G5, I1): a hint is put aside under a lock which has just been released.
	KeptLock Guard = "kept-lock"
	// Kept (G5, I1): a lock is released while a hint is put aside under the lock.
	Kept Guard = "kept"
	// Hold (G2): two unordered receives claim the same item.
	Hold Guard = "hold"
	// Holds (G1, G2): a group is claimed, in order, with an item that an unordered receive has just claimed.
	Holds Guard = "holds"
	// HoldEnd (G2): an unordered claim whose lease has ended is ended while its holder acks or extends.
	HoldEnd Guard = "hold-end"
	// HoldEmpty (G3, I1, trap 3): an unordered receive takes the last free item of a group, and an item which comes at
	// the same time is left without a hint.
	HoldEmpty Guard = "hold-empty"
	// TurnNote (G2, G5, I1): with a lease for each item, a claim of a message begins or ends, and a transaction that
	// has read the messages in flight at the same time does not notice.
	TurnNote Guard = "turn-note"
	// TurnLock (G5, I1): a group is left without a hint because its head is in flight, and the head has just been given
	// back.
	TurnLock Guard = "turn-lock"
	// TurnGap (G5, I1): a group is left without a hint because its head is in flight, and an item lands before the head
	// with the very hint that is cleared.
	TurnGap Guard = "turn-gap"
	// OverdueHold (G2): an item past retention is removed which an unordered receive has just claimed.
	OverdueHold Guard = "overdue-hold"
	// StaleLock (G3, I1, trap 2): a hint is cleared as stale although a release has just set the very same key.
	StaleLock Guard = "stale-lock"
	// StaleEmpty (G3, I1, trap 2): a hint is cleared as stale although an enqueue into the empty group has just set the
	// very same key.
	StaleEmpty Guard = "stale-empty"
	// EmptyLock (contract): the leftover lock of an empty group is cleared while an operator pauses the group.
	EmptyLock Guard = "empty-lock"
	// MarkLock (G2): an expired claim is replaced by its mark while the holder acks or extends.
	MarkLock Guard = "mark-lock"
	// VerdictLock (G2, G3): the item tried under an expired claim is dead-lettered while the holder acks or extends.
	VerdictLock Guard = "verdict-lock"
	// OverdueLock (G2): items past retention are removed from a group which another worker has just claimed.
	OverdueLock Guard = "overdue-lock"
	// EarlyLock (G2): a group is left to the timer of its head while another worker changes the lock.
	EarlyLock Guard = "early-lock"
	// EarlyGap (G5, I1): a group is left to the timer of its delayed head, and an item enqueued before the head, or
	// advanced to there, waits as long.
	EarlyGap Guard = "early-gap"
	// RetroTimer (G5, I1): a handle which knows a shorter delay than the queue's finds the timer of a head which is not
	// due, and clears the timer which it has just set for that head.
	RetroTimer Guard = "retro-timer"
	// TokenGrows (G2): of two handles with different offsets, the later claim has the smaller token.
	TokenGrows Guard = "token-grows"

	// Token (G2, G3): a holder whose claim was taken over acks items which are in flight elsewhere.
	Token Guard = "token"
	// SettleLock (G2): an ack ends the claim of a worker who takes the group over at the same time.
	SettleLock Guard = "settle-lock"
	// ExactClear (G3, trap 1): an item whose enqueue commits late, between the acked items, is cleared, too.
	ExactClear Guard = "exact-clear"
	// RangeClear (G3, trap 1): an item whose enqueue commits while an ack clears its items by a range, with an index in
	// between, is cleared, too.
	RangeClear Guard = "range-clear"
	// Ahead (G5, trap 1): the last ack takes an acked item for the next head, because an item landed late between the
	// acked items.
	Ahead Guard = "ahead"
	// ReleaseEmpty (G3, I1, trap 3): an enqueue commits first which saw the items removed by an ack. The group is left
	// without a hint.
	ReleaseEmpty Guard = "release-empty"

	// TakeLock (G2): an item is taken out of a group which another worker has just claimed.
	TakeLock Guard = "take-lock"
	// TakeItems (G3, I1, trap 3): as [ReleaseEmpty], for a take.
	TakeItems Guard = "take-items"
	// TakeExclude (G2): two takers take the same item, or a claimer claims a taken item.
	TakeExclude Guard = "take-exclude"

	// ItemLock (G2): an operator removes or changes an item which a worker has just claimed.
	ItemLock Guard = "item-lock"
	// TakeOutExclude (G3): a claimer claims an item which an operator has just removed.
	TakeOutExclude Guard = "take-out-exclude"
	// EditExclude (contract): a claimer gets the old body of an item which was edited before the claim.
	EditExclude Guard = "edit-exclude"
	// NextEarlier (G5, I1): an item is rescheduled to earlier while the items before it leave. The transaction that
	// left the lane to the timer of the item, as its new head, has seen the later time.
	NextEarlier Guard = "next-earlier"
	// FreeEmpty (G3, I1, trap 3): as [ReleaseEmpty], for groups which operators and sweeps set free, and, with
	// retroactive delay, for lanes whose items leave with a claim of another lane.
	FreeEmpty Guard = "free-empty"
	// MarkGroup (G2): a pause, halt or resume overwrites a lock that has changed since.
	MarkGroup Guard = "mark-group"
	// ForceLock (G2): a forced release whose claim has already ended also ends the next claim.
	ForceLock Guard = "force-lock"
	// RetryLock (G2): RetryNow ends a delay which has already ended, and with the delay the claim which followed.
	RetryLock Guard = "retry-lock"
	// RetryExclude (G5, I1): a head is made due while a claimer leaves the group to the timer of the head.
	RetryExclude Guard = "retry-exclude"

	// PurgeLock (G2): a purge removes items which a worker has just claimed.
	PurgeLock Guard = "purge-lock"
	// PurgeExclude (G3): a claimer claims items which a purge has just removed.
	PurgeExclude Guard = "purge-exclude"
	// PurgeItems (contract, trap 1): an item whose enqueue commits late, among a thousand purged at once, is removed
	// without being counted.
	PurgeItems Guard = "purge-items"
	// PurgeGap (G3, I1, trap 3): as [ReleaseEmpty], for a purge of a whole group.
	PurgeGap Guard = "purge-gap"
	// PurgeWholeLock (G2): a purge of all items at once removes the items of a claim which has just begun.
	PurgeWholeLock Guard = "purge-whole-lock"
	// PurgeWholeExclude (G3): a claimer claims items which a purge of all items at once has just removed.
	PurgeWholeExclude Guard = "purge-whole-exclude"
	// PurgeWholeItems (contract, trap 1): an item which comes during a purge of all items at once is removed without
	// being counted.
	PurgeWholeItems Guard = "purge-whole-items"

	// StateLock (G2): a state is set under a claim which has just begun.
	StateLock Guard = "state-lock"
	// StateExclude (contract): a claimer gets the state from before the change.
	StateExclude Guard = "state-exclude"
	// KeepExclude (contract): a worker who takes the group over gets the state from before the change.
	KeepExclude Guard = "keep-exclude"

	// AgeLock (G2): a sweep removes items past retention which a worker has just claimed.
	AgeLock Guard = "age-lock"
	// AgeExclude (G3): a claimer claims items past retention which have just been removed.
	AgeExclude Guard = "age-exclude"

	// RedriveLock (G3, I1): a redrive decides by an outdated lock whether the group needs a hint.
	RedriveLock Guard = "redrive-lock"
	// RedriveExclude (G1): a claim passes over an item which a redrive has just put before the claim's first item.
	RedriveExclude Guard = "redrive-exclude"
	// Letter (G3): a dead letter is redriven twice, or redriven and discarded.
	Letter Guard = "letter"

	// RequestClear (G5): a request is cleared while groups are granted to the request.
	RequestClear Guard = "request-clear"
	// GrantRequest (G5): groups are granted to a request which has just been cleared or served.
	GrantRequest Guard = "grant-request"
	// GrantLock (G2): a group is granted which a worker has just claimed.
	GrantLock Guard = "grant-lock"
	// TotalDraw (contract): two handles draw the same portion of the queue's rate at the same time.
	TotalDraw Guard = "total-draw"
	// PaceSweep (contract): a sweep clears the rate record of a group which a claim has just updated.
	PaceSweep Guard = "pace-sweep"
	// PaceEmpty (G5, I1): a sweep clears the rate record of an empty group while a new message is left to the group's
	// rate.
	PaceEmpty Guard = "pace-empty"
	// PaceExclude (G5, I1): a group is left to a rate which has just been raised.
	PaceExclude Guard = "pace-exclude"
	// PaceFresh (G5, I1): as [PaceExclude], by a handle which has not yet read the new configuration.
	PaceFresh Guard = "pace-fresh"

	// GrantLease (G5): a dead requester keeps the groups granted to its request.
	GrantLease Guard = "grant-lease"
	// RequestDeadline (G5): dead requesters are granted groups again and again.
	RequestDeadline Guard = "request-deadline"
	// WithdrawRequest (G5): a request is withdrawn while a group is granted to the request.
	WithdrawRequest Guard = "withdraw-request"
	// WithdrawLock (G2): a grant is given back which has already ended, and the claim which followed ends too.
	WithdrawLock Guard = "withdraw-lock"
	// SweepRequest (G5): the request of a live handle is swept although the handle has just renewed the deadline.
	SweepRequest Guard = "sweep-request"
	// RenewRequest (G5): a request which was swept comes back.
	RenewRequest Guard = "renew-request"

	// WakeTemplate (G5): a transaction that makes a lane ready wakes no handle that waits by its template.
	WakeTemplate Guard = "wake-template"
	// WakeUnlocked (G5): the release of a lane's lock does not wake a handle that waits for an intersecting lane of a
	// named group.
	WakeUnlocked Guard = "wake-unlocked"
	// PassOn (G5): of several lanes of a template which became ready at once, those beyond what the woken handle can
	// take wait for the polls of the other handles.
	PassOn Guard = "pass-on"
	// LookSoon (G5): a receive begins to wait while an enqueue is in flight which has read the requests before, and
	// waits for its poll.
	LookSoon Guard = "look-soon"
	// GoneWake (G5): an enqueue wakes a handle which has just been served otherwise, and the other handles wait until
	// their next poll.
	GoneWake Guard = "gone-wake"
	// OwedWake (G5): the wake that an ack owes is never paid if the handle receives no more, and a waiting handle finds
	// the group only by a poll.
	OwedWake Guard = "owed-wake"
	// KeepBounds (G5): a handle that acks and at once receives again keeps the group from those that wait as long as
	// there are messages.
	KeepBounds Guard = "keep-bounds"

	// Receipt (G3, trap 4): work is done twice: a retry repeats a commit of unknown outcome which has landed.
	Receipt Guard = "receipt"
	// ReceiptConflict (G3, trap 4): the commit of a retry, of unknown outcome, lands after the search for the receipt,
	// and the work is done twice.
	ReceiptConflict Guard = "receipt-conflict"
	// ReceiptLate (G3, trap 4): a commit of unknown outcome lands after the retry has committed, and the work is done
	// twice.
	ReceiptLate Guard = "receipt-late"
	// ReceiptFence (G2, G3, trap 4): a retry answers with results or a refusal of its own, and then the first commit
	// lands after all, so the answer is wrong.
	ReceiptFence Guard = "receipt-fence"
	// ReceiptLife (G3, trap 4): a sweep clears a receipt which a retry still looks for.
	ReceiptLife Guard = "receipt-life"
	// ReceiptTrust (G3, trap 4): a retry looks so late for its receipt that a sweep may have cleared the receipt, so
	// "not found" means nothing.
	ReceiptTrust Guard = "receipt-trust"
	// ClaimReceipt (G3, trap 4): a claim of unknown outcome locks a group that no worker handles.
	ClaimReceipt Guard = "claim-receipt"
	// ReloadToken (G2, trap 4): a claim of unknown outcome is answered with the claim of the worker who took over.
	ReloadToken Guard = "reload-token"
	// ReloadExact (G2, trap 1): a claim of unknown outcome is taken for corrupt if a late item is between its items.
	ReloadExact Guard = "reload-exact"
	// Assign (G2, trap 8): a receive returns claims of a failed attempt of the transaction.
	Assign Guard = "assign"
	// Apart (G3, trap 4): operations whose common transaction had an unknown outcome are done again, each alone.
	Apart Guard = "apart"

	// Configure (contract): of two configuration changes at the same time, the first is lost.
	Configure Guard = "configure"
	// QueuePause (contract): of two pauses of the queue at the same time, both report being the first.
	QueuePause Guard = "queue-pause"
	// NotInClaim (G3): an ack of an item which is not in the claim is taken for done.
	NotInClaim Guard = "not-in-claim"
	// Spent (trap 7): a claim removes all items past retention in a single transaction, however many.
	Spent Guard = "spent"
	// BatchSize (trap 7): more operations share a transaction than a transaction can hold.
	BatchSize Guard = "batch-size"
	// ReplayEnd (G3): a replay repeats items which were finished after the replay began.
	ReplayEnd Guard = "replay-end"
	// ReplayCut (G3): a replay leaves out the items for which a step had no room.
	ReplayCut Guard = "replay-cut"
	// Drop (G3): a transaction begun before its queue was dropped leaves keys behind.
	Drop Guard = "drop"
	// DropLook (G3): a transaction uses a configuration read long before its queue was dropped.
	DropLook Guard = "drop-look"
	// ClockAsk (G3): a process whose clock is ahead removes messages, dead letters and receipts as too old.
	ClockAsk Guard = "clock-ask"
	// SweepRefused (G3): a sweep whose clock is ahead clears young rows that have no version, for example receipts of
	// an earlier release.
	SweepRefused Guard = "sweep-refused"
	// ItemAge (G3): a process whose clock is ahead takes a young message for one past retention.
	ItemAge Guard = "item-age"
	// LetterAge (G3): a sweep whose clock is ahead discards a young dead letter.
	LetterAge Guard = "letter-age"
	// ArchiveAge (G3): a sweep whose clock is ahead clears a message that has just come to the archive.
	ArchiveAge Guard = "archive-age"
	// ChangeAge (G3): a sweep whose clock is ahead clears young changes that a subscription has not seen.
	ChangeAge Guard = "change-age"
	// DedupAge (G3): by a clock that is ahead, the window of a dedup id ends early.
	DedupAge Guard = "dedup-age"
	// RepeatAge (G3): a sweep whose clock is ahead clears a young receive id.
	RepeatAge Guard = "repeat-age"
	// ReceiveAge (G3): by a clock that is ahead, a receive id ends early, and the repeated receive claims more.
	ReceiveAge Guard = "receive-age"
	// ReceiptAge (G3, trap 4): a sweep whose clock is ahead clears a young receipt.
	ReceiptAge Guard = "receipt-age"
	// PurgeAge (G3): a sweep whose clock is ahead clears the note of a purge which a dedup id still needs.
	PurgeAge Guard = "purge-age"
	// IDLife (contract): by a clock that stands, a dedup id or a receive id never ends, and each further message with
	// the dedup id is refused as a duplicate.
	IDLife Guard = "id-life"
	// ClockLease (G7): a process whose clock is ahead takes the messages of workers that live, and counts attempts,
	// until they become dead letters.
	ClockLease Guard = "clock-lease"
	// BeatClock (G2): a process whose clock is ahead ends the heartbeat of a process that lives.
	BeatClock Guard = "beat-clock"
	// ClockBound (contract): what a process has stored whose clock was a year ahead stays in force for a year.
	ClockBound Guard = "clock-bound"
	// SubscribeHold (contract): a subscription is taken from a process that has just extended its lease.
	SubscribeHold Guard = "subscribe-hold"
	// SubscribeMove (contract): a process which has lost its subscription commits the effect of changes which another
	// process has handled.
	SubscribeMove Guard = "subscribe-move"
	// SubscribeAgain (G3, trap 4): after a commit of unknown outcome which has landed, the handler's transaction is
	// done again.
	SubscribeAgain Guard = "subscribe-again"
	// SubscribeStop (contract): a subscription that is stopped while its handler runs is taken over, and another
	// process calls its handler with the same changes.
	SubscribeStop Guard = "subscribe-stop"
	// Incarnation (G3): a handle from before a drop continues with the next queue of the name, with the number of
	// shards of the last one, and no receive finds its hints.
	Incarnation Guard = "incarnation"
	// Grow (G5): a search ends without the shards that the handle has learned of during it. So the first call of an
	// idle handle does not find the groups that are ready there.
	Grow Guard = "grow"
	// Twin (G5): a timer of a claim that is gone, in the shard of an earlier number, makes a transaction clear the
	// right key of the group as a second one.
	Twin Guard = "twin"
	// SweepTurn (contract): of several sweeps that begin at the same time, all continue.
	SweepTurn Guard = "sweep-turn"
	// Repeat (G3): two receives with the same receive id, at the same time, both claim.
	Repeat Guard = "repeat"
	// RepeatTwin (G3): of two receives with the same receive id in the same transaction, both claim.
	RepeatTwin Guard = "repeat-twin"
	// RepeatBack (G3): the claims of a receive with a receive id are given back before the receive is repeated.
	RepeatBack Guard = "repeat-back"
	// RepeatSweep (G3): a sweep clears the entry of a receive id which has just been used again.
	RepeatSweep Guard = "repeat-sweep"
	// BeatJoin (G5, I1): a claim joins the beat of a handle that is being ended, and the claim never ends.
	BeatJoin Guard = "beat-join"
	// BeatLast (G5, I1): the end of a handle misses a claim that has just joined the beat, and the claim never ends.
	BeatLast Guard = "beat-last"
	// BeatMove (contract): a handle continues with a beat that another has begun to end, and its workers do not learn
	// that others may get their groups.
	BeatMove Guard = "beat-move"
	// BeatEnd (G5): a handle is ended which has just moved its beat.
	BeatEnd Guard = "beat-end"
	// BeatLock (G2): the end of a handle overwrites the lock of a group which the handle has just released, and another
	// claimed.
	BeatLock Guard = "beat-lock"
	// Suspect (G7): a message which kills its process is delivered together with others again and again, and the others
	// count its attempts.
	Suspect Guard = "suspect"
	// SuspectTurn (G7): a handle gives two suspect messages at a time, and the one that kills the process counts
	// attempts of the other.
	SuspectTurn Guard = "suspect-turn"
	// Proof (G7): a claim of which no caller has ever heard counts an attempt when its lease expires, and a message
	// that no handler has seen becomes a dead letter.
	Proof Guard = "proof"
	// Orphan (G7): the claims of a receive whose outcome stays unknown hold their groups until their leases expire.
	Orphan Guard = "orphan"
	// OwnClaim (G2): a handle whose clock steps ahead takes the groups that it holds itself.
	OwnClaim Guard = "own-claim"
	// The two guards of package worker.

	// ExtendApart (contract): a worker extends a claim while a handler's transaction on the claim is open, and fails
	// the transaction again and again.
	ExtendApart Guard = "extend-apart"
	// TxBound (contract): a handler that takes longer than a transaction may last is called again and again.
	TxBound Guard = "tx-bound"
)

// Read adds a read conflict on r: the transaction fails if another transaction writes in r between the read version and
// the commit. It reads nothing.
func (g Guard) Read(tx kv.Tx, r kv.KeyRange) error {
	if g.missing() {
		return nil
	}
	if err := tx.AddReadConflictRange(r); err != nil {
		return fmt.Errorf("guard %s: %w", g, err)
	}
	return nil
}

// Write adds a write conflict on key: transactions with a read conflict on key fail if this one commits first. It
// writes nothing.
func (g Guard) Write(tx kv.Tx, key []byte) error {
	return g.WriteRange(tx, kv.SingleKey(key))
}

// WriteRange is Write for all keys in r.
func (g Guard) WriteRange(tx kv.Tx, r kv.KeyRange) error {
	if g.missing() {
		return nil
	}
	if err := tx.AddWriteConflictRange(r); err != nil {
		return fmt.Errorf("guard %s: %w", g, err)
	}
	return nil
}

// Get starts a read of key with a read conflict. In a build that leaves the guard out, it reads at snapshot, without
// one.
func (g Guard) Get(tx kv.Tx, key []byte) kv.Future[[]byte] {
	if g.missing() {
		return tx.Snapshot().Get(key)
	}
	return tx.Get(key)
}

// Reads returns a reader whose reads in tx add read conflicts. In a build that leaves the guard out, it reads at
// snapshot, without conflicts.
func (g Guard) Reads(tx kv.Tx) kv.ReadTx {
	if g.missing() {
		return tx.Snapshot()
	}
	return tx
}
