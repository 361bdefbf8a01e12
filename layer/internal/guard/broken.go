//go:build broken

package guard

import (
	"fmt"
	"os"
	"slices"
)

// WithoutVariable is the environment variable which names the guard to leave out; empty = no guard is left out.
const WithoutVariable = "FDBFIFO_WITHOUT"

// overlaid: the build has the overlay of package internal/mutants. The overlay changes the value.
const overlaid = false

// leftOut is the guard that WithoutVariable names; "" = none.
var leftOut = func() Guard {
	g := Guard(os.Getenv(WithoutVariable))
	switch {
	case g == "":
	case !slices.Contains(all, g):
		panic(fmt.Sprintf("%s=%q is no guard; there are %q", WithoutVariable, g, all))
	case !overlaid:
		panic("this build leaves out no check: build it with -overlay=$(go run ./internal/mutants/overlay bin/broken)")
	}
	return g
}()

// LeftOut returns the guard that this process leaves out; "" = none.
func LeftOut() Guard { return leftOut }

// missing reports whether this process leaves the guard out.
func (g Guard) missing() bool { return g == leftOut }

// All returns all guards, in the order of guard.go.
func All() []Guard { return slices.Clone(all) }

// all has the guards in the order of guard.go.
var all = []Guard{
	Tail, LaneTail, Index, BehindAll, Random, Dedup, DedupItem, DedupPurge, DedupRename, DedupSweep, DedupSlack,
	PurgeNote, PurgeSweep, Lease, ClaimLock, OverLock, OtherLock, KeptLock, Kept, Hold, Holds, HoldEnd, HoldEmpty,
	TurnNote, TurnLock, TurnGap, OverdueHold, StaleLock, StaleEmpty, EmptyLock, MarkLock, VerdictLock, OverdueLock,
	EarlyLock, EarlyGap, RetroTimer, TokenGrows, Token, SettleLock, ExactClear, RangeClear, Ahead, ReleaseEmpty,
	TakeLock, TakeItems, TakeExclude, ItemLock, TakeOutExclude, EditExclude, NextEarlier, FreeEmpty, MarkGroup,
	ForceLock, RetryLock, RetryExclude, PurgeLock, PurgeExclude, PurgeItems, PurgeGap, PurgeWholeLock,
	PurgeWholeExclude, PurgeWholeItems, StateLock, StateExclude, KeepExclude, AgeLock, AgeExclude, RedriveLock,
	RedriveExclude, Letter, RequestClear, GrantRequest, GrantLock, TotalDraw, PaceSweep, PaceEmpty, PaceExclude,
	PaceFresh, GrantLease, RequestDeadline, WithdrawRequest, WithdrawLock, SweepRequest, RenewRequest, WakeTemplate,
	WakeUnlocked, PassOn, LookSoon, GoneWake, OwedWake, KeepBounds, Receipt, ReceiptConflict, ReceiptLate, ReceiptFence,
	ReceiptLife, ReceiptTrust, ClaimReceipt, ReloadToken, ReloadExact, Assign, Apart, Configure, QueuePause, NotInClaim,
	Spent, BatchSize, ReplayEnd, ReplayCut, Drop, DropLook, ClockAsk, SweepRefused, ItemAge, LetterAge, ArchiveAge,
	ChangeAge, DedupAge, RepeatAge, ReceiveAge, ReceiptAge, PurgeAge, IDLife, ClockLease, BeatClock, ClockBound,
	SubscribeHold, SubscribeMove, SubscribeAgain, SubscribeStop, Incarnation, Grow, Twin, SweepTurn, Repeat, RepeatTwin,
	RepeatBack, RepeatSweep, BeatJoin, BeatLast, BeatMove, BeatEnd, BeatLock, Suspect, SuspectTurn, Proof, Orphan,
	OwnClaim, ExtendApart, TxBound,
}
