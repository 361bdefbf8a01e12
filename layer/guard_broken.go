//go:build broken

package layer

import (
	"fmt"
	"os"
	"slices"
)

// WithoutVariable is the environment variable which names the guard to leave out; empty = no guard is left out.
const WithoutVariable = "FDBFIFO_WITHOUT"

var leftOut = func() guard {
	g := guard(os.Getenv(WithoutVariable))
	if g != "" && !slices.Contains(guards, g) {
		panic(fmt.Sprintf("%s=%q is no guard; there are %q", WithoutVariable, g, guards))
	}
	return g
}()

// lacks reports whether this process leaves a guard out.
func lacks(g guard) bool { return g == leftOut }

// Lacks reports whether this process leaves out the guard with a name, for guards that stand in package worker.
func Lacks(name string) bool { return lacks(guard(name)) }

// Guards returns the names of all guards.
func Guards() []string {
	names := make([]string, len(guards))
	for i, g := range guards {
		names[i] = string(g)
	}
	return names
}

// guards lists all guards, in the order of guard.go.
var guards = []guard{
	guardTail, guardLaneTail, guardIndex, guardBehindAll, guardRandom, guardDedup, guardDedupItem, guardDedupPurge,
	guardDedupRename, guardDedupSweep, guardDedupSlack, guardPurgeNote, guardPurgeSweep, guardLease, guardClaimLock,
	guardOverLock, guardOtherLock, guardKeptLock, guardKept, guardHold, guardHolds,
	guardHoldEnd, guardHoldEmpty, guardTurnNote, guardTurnLock, guardTurnGap, guardOverdueHold, guardStaleLock,
	guardStaleEmpty, guardEmptyLock, guardMarkLock, guardParkLock, guardOverdueLock, guardEarlyLock, guardEarlyGap,
	guardRetroTimer,
	guardTokenGrows, guardToken, guardSettleLock, guardExactClear, guardRangeClear, guardAhead, guardReleaseEmpty,
	guardTakeLock,
	guardTakeItems, guardTakeExclude, guardItemLock, guardTakeOutExclude, guardEditExclude, guardNextEarlier,
	guardFreeEmpty,
	guardMarkGroup, guardForceLock, guardRetryLock, guardRetryExclude, guardPurgeLock, guardPurgeExclude,
	guardPurgeItems, guardPurgeGap, guardPurgeWholeLock, guardPurgeWholeExclude, guardPurgeWholeItems,
	guardStateLock, guardStateExclude, guardKeepExclude, guardAgeLock,
	guardAgeExclude, guardRedriveLock, guardRedriveExclude, guardLetter, guardRequestClear, guardGrantRequest,
	guardGrantLock, guardTotalDraw, guardPaceSweep, guardPaceEmpty, guardPaceExclude, guardPaceFresh, guardGrantLease,
	guardRequestDeadline, guardWithdrawRequest, guardWithdrawLock, guardSweepRequest, guardRenewRequest,
	guardWakeTemplate, guardWakeUnlocked, guardPassOn, guardLookSoon, guardGoneWake, guardOwedWake, guardKeepBounds,
	guardReceipt, guardReceiptConflict, guardReceiptLate, guardReceiptFence, guardReceiptLife, guardReceiptTrust,
	guardClaimReceipt, guardReloadToken, guardReloadExact, guardAssign, guardApart, guardConfigure, guardQueuePause,
	guardNotInClaim, guardSpent, guardBatchSize, guardReplayEnd, guardReplayCut, guardDrop, guardDropLook,
	guardClockAsk, guardClockLease, guardClockBound,
	guardSubscribeHold, guardSubscribeMove, guardSubscribeAgain, guardSubscribeStop, guardIncarnation, guardGrow,
	guardTwin, guardSweepTurn, guardRepeat, guardRepeatTwin, guardRepeatBack, guardRepeatSweep,
	guardBeatJoin, guardBeatLast, guardBeatMove, guardBeatEnd, guardBeatLock,
	guardSuspect, guardSuspectTurn, guardProof, guardOrphan, guardOwnClaim, guardExtendApart, guardTxBound,
}
