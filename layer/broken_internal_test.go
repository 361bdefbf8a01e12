//go:build broken

package layer

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/layer/internal/guard"
)

// missing are the guards, each with a test, of this package or of layertest, that fails without it. The footprints'
// golden file, which every conflict range stands in, does not count: it says that something has changed, not what goes
// wrong.
var missing = map[guard.Guard]string{
	guard.Tail:         "TestConflicts/enqueue,_ack_of_the_tail_(trap_3)",
	guard.Index:        "TestOrderWhenVersionsAreSlow",
	guard.BehindAll:    "TestBehindAll",
	guard.Random:       "TestPurgeCountsLateItem",
	guard.Dedup:        "TestConflicts/enqueue,_enqueue_with_the_same_dedup_id",
	guard.DedupItem:    "TestConflicts/enqueue_of_a_duplicate_and_another,_cancel_of_the_first",
	guard.DedupPurge:   "TestConflicts/enqueue_of_a_duplicate_and_another,_purge_of_the_group",
	guard.DedupRename:  "TestConflicts/dedup-rename:_redrive_to_the_tail,_enqueue_with_its_forgotten_dedup_id",
	guard.DedupSweep:   "TestSweepKeepsWhatIsWrittenAnew/dedup",
	guard.DedupSlack:   "TestSweepByAClockAhead",
	guard.PurgeNote:    "TestPurgeAmidPurge",
	guard.PurgeSweep:   "TestSweepKeepsWhatIsWrittenAnew/purge",
	guard.Lease:        "TestDuplicateHintOfAGroupPassedOver/memory",
	guard.ClaimLock:    "TestConflicts/claim,_pause_of_the_group",
	guard.StaleLock:    "TestConflicts/claim_that_clears_a_hint_of_a_held_group,_ack_of_it",
	guard.StaleEmpty:   "TestConflicts/claim_that_clears_a_hint_of_an_empty_group,_enqueue_to_it_(trap_2)",
	guard.EmptyLock:    "TestConflicts/empty-lock:_claim_that_clears_what_is_left_of_an_empty_group,_pause_of_it",
	guard.MarkLock:     "TestConflicts/takeover_that_halts_the_group,_takeover",
	guard.VerdictLock:  "TestConflicts/takeover_that_dead-letters_the_item,_extend_by_the_old_holder",
	guard.OverdueLock:  "TestConflicts/claim_that_drops_all_of_a_group,_pause_of_it",
	guard.EarlyLock:    "TestConflicts/early-lock:_claim_that_leaves_a_group_to_its_head,_claim_by_another_clock",
	guard.RetroTimer:   "TestRetroactiveDelayLonger",
	guard.EarlyGap:     "TestConflicts/claim_that_awaits_a_head,_late_enqueue_before_it",
	guard.TokenGrows:   "TestTokenOfAnOldHandle",
	guard.Token:        "TestOvertakenHolderChangesNothing/memory",
	guard.SettleLock:   "TestConflicts/ack,_ack_of_the_same_claim",
	guard.ExactClear:   "TestAckKeepsLateItem/memory",
	guard.RangeClear:   "TestConflicts/ack_of_several,_late_enqueue_between_them_(trap_1)",
	guard.Ahead:        "TestAckKeepsLateItem/memory",
	guard.ReleaseEmpty: "TestConflicts/ack_that_empties_the_group,_enqueue_to_it_(trap_3)",

	guard.TakeLock:          "TestConflicts/take,_claim_of_the_same_group",
	guard.TakeItems:         "TestConflicts/take_that_empties_the_group,_enqueue_to_it",
	guard.TakeExclude:       "TestConflicts/claim,_take_from_the_group",
	guard.ItemLock:          "TestConflicts/cancel,_claim_of_the_group",
	guard.TakeOutExclude:    "TestConflicts/claim,_cancel_in_the_group",
	guard.EditExclude:       "TestConflicts/claim,_edit_in_the_group",
	guard.NextEarlier:       "TestConflicts/unordered:_reschedule_of_the_next_to_earlier,_ack_of_a_hold_in_front",
	guard.FreeEmpty:         "TestConflicts/cancel_of_the_only_item,_enqueue_to_the_group",
	guard.MarkGroup:         "TestConflicts/pause_of_a_group,_claim_of_it",
	guard.ForceLock:         "TestConflicts/force-lock:_forced_release,_takeover",
	guard.LaneTail:          "TestConflicts/facets:_enqueue,_ack_of_the_lane's_tail",
	guard.OverLock:          "TestConflicts/facets:_claim_by_template,_claim_of_the_whole_group",
	guard.OtherLock:         "TestConflicts/facets:_claim_that_ends_an_expired_claim_of_a_lane,_extend_by_its_holder",
	guard.Hold:              "TestConflicts/unordered:_unordered_claim,_unordered_claim_of_the_same_item",
	guard.Holds:             "TestConflicts/unordered:_claim_of_the_group,_unordered_claim_in_the_group",
	guard.HoldEnd:           "TestConflicts/unordered:_unordered_claim_that_ends_an_expired_hold,_extend_by_its_holder",
	guard.HoldEmpty:         "TestConflicts/unordered:_unordered_claim_of_the_last_free_item,_enqueue",
	guard.TurnNote:          "TestConflicts/item_leases:_receive,_receive",
	guard.TurnLock:          "TestConflicts/item_leases:_ack_that_leaves_the_head_in_flight,_release_of_the_head",
	guard.TurnGap:           "TestConflicts/item_leases:_receive,_late_enqueue_before_the_head",
	guard.OverdueHold:       "TestConflicts/unordered:_drop_of_an_old_item,_unordered_claim_by_an_earlier_clock",
	guard.KeptLock:          "TestConflicts/facets:_claim_that_puts_a_hint_aside,_release_of_the_lock",
	guard.Kept:              "TestConflicts/facets:_release_of_a_lock,_claim_that_puts_a_hint_aside",
	guard.RetryLock:         "TestConflicts/retry_now,_retry_now",
	guard.RetryExclude:      "TestConflicts/claim_by_another_clock,_retry_now_of_what_is_delayed",
	guard.PurgeLock:         "TestPurgeMeetsClaim",
	guard.PurgeExclude:      "TestConflicts/claim,_purge_of_the_group",
	guard.PurgeItems:        "TestPurgeCountsLateItem",
	guard.PurgeGap:          "TestPurgeAmidEnqueuesToAnyGroup",
	guard.PurgeWholeLock:    "TestPurgeOfAllMeetsClaim",
	guard.PurgeWholeExclude: "TestConflicts/claim,_purge_of_the_queue",
	guard.PurgeWholeItems:   "TestPurgeOfAllCountsLateItem",
	guard.BeatJoin:          "TestHeartbeatConflicts/beat-join:_claim_by_heartbeat,_end_of_the_handle",
	guard.BeatLast:          "TestHeartbeatConflicts/beat-last:_end_of_the_handle,_claim_by_heartbeat",
	guard.BeatMove:          "TestHeartbeatConflicts/beat-move:_move_of_the_beat,_end_of_the_handle",
	guard.BeatEnd:           "TestHeartbeatConflicts/beat-end:_end_of_the_handle,_move_of_the_beat",
	guard.BeatLock:          "TestHeartbeatConflicts/beat-lock:_end_of_the_handle,_ack_of_a_claim",
	guard.OwnClaim:          "TestAStepUnderAWorker",
	guard.StateLock:         "TestConflicts/change_of_the_state,_claim_of_the_group",
	guard.StateExclude:      "TestConflicts/claim_that_reads_the_state,_change_of_it",
	guard.KeepExclude:       "TestConflicts/takeover_that_reads_the_state,_holder's_change_of_it",
	guard.AgeLock:           "TestSweepOfOverdueMeetsClaim",
	guard.AgeExclude:        "TestConflicts/claim_that_meets_overdue_items,_sweep_of_them",
	guard.RedriveLock:       "TestConflicts/redrive,_claim_of_the_group",
	guard.RedriveExclude:    "TestConflicts/claim,_redrive_into_the_group",
	guard.Letter:            "TestConflicts/discard,_discard_of_the_same_letter",

	guard.RequestClear:    "TestStagingMustConflict/clearing_of_the_request,_grant",
	guard.GrantRequest:    "TestStagingMustConflict/grant,_clearing_of_the_request",
	guard.GrantLock:       "TestStagingMustConflict/grant,_claim_of_the_group",
	guard.GrantLease:      "TestDeadRequesterStrandsNoGroup/after_a_grant/faults=false",
	guard.RequestDeadline: "TestDeadAreGrantedNothing",
	guard.WithdrawRequest: "TestStagingMustConflict/withdrawal_of_the_request,_grant",
	guard.WithdrawLock:    "TestWithdrawalMeetsTakeover",
	guard.SweepRequest:    "TestSweepSparesRenewedRequest",
	guard.RenewRequest:    "TestRenewalOfSweptRequest",

	guard.WakeTemplate: "TestWaitByTemplate/enqueue/template",
	guard.WakeUnlocked: "TestWaitByTemplate/end_of_an_intersecting_claim/group_and_template",
	guard.PassOn:       "TestWaitIsPassedOn",
	guard.OwedWake:     "TestOwedWakeIsPaid/by_time",
	guard.LookSoon:     "TestWaitThatBeginsBesideACommit/any/enqueue",
	guard.GoneWake:     "TestWakeOfOneWhoIsGone/served",
	guard.KeepBounds:   "TestHandleKeepsNoGroupForEver/many",

	guard.Receipt:         "TestOperatorsUnknownCommitHasItsEffectOnce/unknown-applied",
	guard.ReceiptConflict: "TestLateRetryExcludesTheNext",
	guard.ReceiptLate:     "TestLateCommitExcludesItsRetry",
	guard.ReceiptFence:    "TestLateCommitAndResultsOfItsRetry",
	guard.ReceiptLife:     "TestSweepClearsReceipts/memory",
	guard.ReceiptTrust:    "TestSweptReceiptIsNotTrusted",
	guard.ClaimReceipt:    "TestUnknownClaimOfManyItems/memory",
	guard.ReloadToken:     "TestUnknownClaimLostMeanwhile",
	guard.ReloadExact:     "TestReloadPassesLateItem",
	guard.Assign:          "TestBodyThatRanTwiceReturnsOneResult",
	guard.Apart:           "TestTogetherOfUnknownOutcome",
	guard.Configure:       "TestConflicts/configure,_configure",
	guard.QueuePause:      "TestConflicts/pause_of_the_queue,_pause_of_it",
	guard.NotInClaim:      "TestOvertakenHolderChangesNothing/memory",
	guard.Spent:           "TestOverdueInSteps/claim",
	guard.BatchSize:       "TestTogetherInBounds",
	guard.ReplayEnd:       "TestReplayInStepsRepeatsEachOnce",
	guard.ReplayCut:       "TestReplayInStepsRepeatsEachOnce",
	guard.Drop:            "TestDropStraggler",
	guard.DropLook:        "TestDropAgainstASlowReadVersion",
	guard.SubscribeHold:   "TestHolderOfASubscription/extended_meanwhile",
	guard.SubscribeMove:   "TestHolderOfASubscription/taken_over_meanwhile",
	guard.SubscribeAgain:  "TestChangesOfUnknownCommit/unknown-applied",
	guard.SubscribeStop:   "TestSubscriptionStopsWithASlowHandler",
	guard.Incarnation:     "TestHandleOfADroppedQueue",
	guard.Grow:            "TestRaiseReachesWhoSleeps",
	guard.Twin:            "TestTimerOfAnEarlierNumber",
	guard.SweepTurn:       "TestOneOfManySweeps",
	guard.TotalDraw:       "TestTotalDrawsOfTwoHandles",
	guard.PaceSweep:       "TestSweepKeepsWhatIsWrittenAnew/pace",
	guard.PaceEmpty:       "TestScenarios/memory/bug_rate_changed_amid_sweep",
	guard.PaceExclude:     "TestConflicts/take_that_awaits_the_rate,_change_of_it",
	guard.PaceFresh:       "TestRateOfHandlesThatDoNotKnow",
	guard.Repeat:          "TestConflicts/claim_with_a_receive_id,_the_same_of_another_group",
	guard.RepeatTwin:      "TestTwinsOfOneAttempt",
	guard.RepeatBack:      "TestRepeatableIsNotGivenBack",
	guard.RepeatSweep:     "TestSweepKeepsWhatIsWrittenAnew/repeat",
	guard.Suspect:         "TestPoisonDiesAlone/group/3/25_attempts",
	guard.SuspectTurn:     "TestPoisonUnderWorkers",
	guard.Proof:           "TestLeaseOfAClaimThatNobodyKnows",
	guard.Orphan:          "TestReceiveThatNobodyHearsOf",
	guard.ExtendApart:     "TestSlowHandlers",
	guard.TxBound:         "TestTransactionTooLong",
	guard.ClockAsk:        "TestAWrongClockDestroysNothing/2_days_ahead",
	guard.SweepRefused:    "TestAWrongClockDestroysNothing/2_days_ahead",
	guard.ItemAge:         "TestASweepByAClockAheadAlone/message",
	guard.LetterAge:       "TestASweepByAClockAheadAlone/dead_letter",
	guard.ArchiveAge:      "TestASweepByAClockAheadAlone/archived_message",
	guard.ChangeAge:       "TestASweepByAClockAheadAlone/change",
	guard.DedupAge:        "TestASweepByAClockAheadAlone/deduplication_id",
	guard.RepeatAge:       "TestASweepByAClockAheadAlone/receive_id",
	guard.ReceiveAge:      "TestNoIDEndsEarly/the_reader_is_ahead",
	guard.ReceiptAge:      "TestASweepByAClockAheadAlone/receipt",
	guard.PurgeAge:        "TestASweepByAClockAheadAlone/note_of_a_purge",
	guard.IDLife:          "TestNoIDLastsTooLong/the_clock_stands",
	guard.ClockLease:      "TestNoAttemptByAWrongClock/a_lease_for_each_claim_ahead",
	guard.BeatClock:       "TestAHeartbeatBesideAClockAhead/a_year_ahead",
	guard.ClockBound:      "TestAClockAYearAhead/the_lease_of_a_claim",
}

// programs say where a test is. The tests of layertest are built again, without guards.
type programs struct {
	here    map[string]bool // the tests of this package
	outside string          // the program of layertest's tests
}

func buildTests(t *testing.T) programs {
	p := programs{here: make(map[string]bool), outside: filepath.Join(t.TempDir(), "layertest.test")}
	files, err := filepath.Glob("*_test.go")
	require.NoError(t, err)
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil {
				p.here[f.Name.Name] = true
			}
		}
	}
	build := exec.Command("go", "test", "-vet=off", "-tags", "broken", "-c", "-o", p.outside, "./layertest")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return p
}

// runOnly runs one test in a process of its own, with a guard left out.
func (p programs) runOnly(name string, without guard.Guard) (string, error) {
	parts := strings.Split(name, "/")
	for i, part := range parts {
		parts[i] = "^" + regexp.QuoteMeta(part) + "$"
	}
	program, dir := p.outside, "layertest"
	if test, _, _ := strings.Cut(name, "/"); p.here[test] {
		program, dir = os.Args[0], ""
	}
	c := exec.Command(program, "-test.run", strings.Join(parts, "/"), "-test.timeout", "2m", "-test.v")
	c.Dir = dir
	c.Env = append(os.Environ(), guard.WithoutVariable+"="+string(without))
	out, err := c.CombinedOutput()
	return string(out), err
}

// TestBrokenByTests: every guard has a test that fails without it, and passes with it.
func TestBrokenByTests(t *testing.T) {
	tests := buildTests(t)
	whole := make(map[string]bool)
	for _, g := range guard.All() {
		name := missing[g]
		if !whole[name] {
			whole[name] = true
			t.Run("with/"+name, func(t *testing.T) {
				t.Parallel()
				out, err := tests.runOnly(name, "")
				require.NoError(t, err, "%s", out)
				require.Contains(t, out, "--- PASS: "+strings.SplitN(name, "/", 2)[0], "there is such a test")
			})
		}
		t.Run("without/"+string(g), func(t *testing.T) {
			t.Parallel()
			require.NotEmpty(t, name, "no test is known to fail without it")
			out, err := tests.runOnly(name, g)
			require.Error(t, err, "%s passes without %q", name, g)
			if !strings.Contains(out, "--- FAIL") {
				require.Contains(t, out, "panic", "%s", out)
			}
		})
	}
}

// TestGuardsAreListed: each guard has a test that must fail without it.
func TestGuardsAreListed(t *testing.T) {
	require.ElementsMatch(t, guard.All(), slices.Collect(maps.Keys(missing)))
}
