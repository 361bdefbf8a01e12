//go:build broken

package layer

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// missing are the guards, each with a test, of this package or of layertest, that fails without it. The footprints'
// golden file, which every conflict range stands in, does not count: it says that something has changed, not what goes
// wrong.
var missing = map[guard]string{
	guardTail:         "TestConflicts/enqueue,_ack_of_the_tail_(trap_3)",
	guardIndex:        "TestOrderWhenVersionsAreSlow",
	guardBehindAll:    "TestBehindAll",
	guardRandom:       "TestPurgeCountsLateItem",
	guardDedup:        "TestConflicts/enqueue,_enqueue_with_the_same_dedup_id",
	guardDedupItem:    "TestConflicts/enqueue_of_a_duplicate_and_another,_cancel_of_the_first",
	guardDedupPurge:   "TestConflicts/enqueue_of_a_duplicate_and_another,_purge_of_the_group",
	guardDedupRename:  "TestGuardPairs/dedup-rename:_redrive_to_the_tail,_enqueue_with_its_dedup_id_when_that_is_forgotten",
	guardDedupSweep:   "TestSweepKeepsWhatIsWrittenAnew/dedup",
	guardDedupSlack:   "TestSweepByAClockAhead",
	guardPurgeNote:    "TestPurgeAmidPurge",
	guardPurgeSweep:   "TestSweepKeepsWhatIsWrittenAnew/purge",
	guardLease:        "TestDuplicateHintOfAGroupPassedOver/memory",
	guardClaimLock:    "TestMarkConflicts/claim,_mark",
	guardStaleLock:    "TestConflicts/claim_that_clears_a_hint_of_a_held_group,_ack_of_it",
	guardStaleEmpty:   "TestConflicts/claim_that_clears_a_hint_of_an_empty_group,_enqueue_to_it_(trap_2)",
	guardEmptyLock:    "TestGuardPairs/empty-lock:_claim_that_clears_what_is_left_of_an_empty_group,_pause_of_it",
	guardMarkLock:     "TestConflicts/takeover_that_parks_the_group,_takeover",
	guardParkLock:     "TestConflicts/takeover_that_parks_the_item,_extend_by_the_old_holder",
	guardOverdueLock:  "TestConflicts/claim_that_drops_all_of_a_group,_pause_of_it",
	guardEarlyLock:    "TestGuardPairs/early-lock:_claim_that_leaves_a_group_to_its_head,_claim_by_another_clock",
	guardRetroTimer:   "TestRetroactiveDelayLonger",
	guardEarlyGap:     "TestConflicts/claim_that_awaits_a_head,_late_enqueue_before_it",
	guardTokenGrows:   "TestTokenOfAnOldHandle",
	guardToken:        "TestOvertakenHolderChangesNothing/memory",
	guardSettleLock:   "TestConflicts/ack,_ack_of_the_same_claim",
	guardExactClear:   "TestAckKeepsLateItem/memory",
	guardRangeClear:   "TestConflicts/ack_of_several,_late_enqueue_between_them_(trap_1)",
	guardAhead:        "TestAckKeepsLateItem/memory",
	guardReleaseEmpty: "TestConflicts/ack_that_empties_the_group,_enqueue_to_it_(trap_3)",

	guardTakeLock:          "TestConflicts/take,_claim_of_the_same_group",
	guardTakeItems:         "TestConflicts/take_that_empties_the_group,_enqueue_to_it",
	guardTakeExclude:       "TestConflicts/claim,_take_from_the_group",
	guardItemLock:          "TestConflicts/cancel,_claim_of_the_group",
	guardTakeOutExclude:    "TestConflicts/claim,_cancel_in_the_group",
	guardEditExclude:       "TestConflicts/claim,_edit_in_the_group",
	guardNextEarlier:       "TestHoldConflicts/reschedule_of_the_next_to_earlier,_ack_of_a_hold_in_front",
	guardFreeEmpty:         "TestConflicts/cancel_of_the_only_item,_enqueue_to_the_group",
	guardMarkGroup:         "TestMarkConflicts/mark,_claim",
	guardForceLock:         "TestGuardPairs/force-lock:_forced_release,_takeover",
	guardLaneTail:          "TestLaneConflicts/enqueue,_ack_of_the_lane's_tail",
	guardOverLock:          "TestLaneConflicts/claim_by_template,_claim_of_the_whole_group",
	guardOtherLock:         "TestLaneConflicts/claim_that_ends_an_expired_claim_of_a_lane,_extend_by_its_holder",
	guardHold:              "TestHoldConflicts/unordered_claim,_unordered_claim_of_the_same_item",
	guardHolds:             "TestHoldConflicts/claim_of_the_group,_unordered_claim_in_the_group",
	guardHoldEnd:           "TestHoldConflicts/unordered_claim_that_ends_an_expired_hold,_extend_by_its_holder",
	guardHoldEmpty:         "TestHoldConflicts/unordered_claim_of_the_last_free_item,_enqueue",
	guardTurnNote:          "TestTurnConflicts/receive,_receive",
	guardTurnLock:          "TestTurnConflicts/ack_that_leaves_the_head_in_flight,_release_of_the_head",
	guardTurnGap:           "TestTurnConflicts/receive,_late_enqueue_before_the_head",
	guardOverdueHold:       "TestHoldConflicts/receive_that_drops_an_old_item,_unordered_claim_by_an_earlier_clock",
	guardKeptLock:          "TestLaneConflicts/claim_that_puts_a_hint_aside,_release_of_the_lock",
	guardKept:              "TestLaneConflicts/release_of_a_lock,_claim_that_puts_a_hint_aside",
	guardRetryLock:         "TestConflicts/retry_now,_retry_now",
	guardRetryExclude:      "TestConflicts/claim_by_another_clock,_retry_now_of_what_is_delayed",
	guardPurgeLock:         "TestPurgeMeetsClaim",
	guardPurgeExclude:      "TestConflicts/claim,_purge_of_the_group",
	guardPurgeItems:        "TestPurgeCountsLateItem",
	guardPurgeGap:          "TestPurgeAmidEnqueuesToAnyGroup",
	guardPurgeWholeLock:    "TestPurgeOfAllMeetsClaim",
	guardPurgeWholeExclude: "TestConflicts/claim,_purge_of_the_queue",
	guardPurgeWholeItems:   "TestPurgeOfAllCountsLateItem",
	guardBeatJoin:          "TestHeartbeatConflicts/beat-join:_claim_by_heartbeat,_end_of_the_handle",
	guardBeatLast:          "TestHeartbeatConflicts/beat-last:_end_of_the_handle,_claim_by_heartbeat",
	guardBeatMove:          "TestHeartbeatConflicts/beat-move:_move_of_the_beat,_end_of_the_handle",
	guardBeatEnd:           "TestHeartbeatConflicts/beat-end:_end_of_the_handle,_move_of_the_beat",
	guardBeatLock:          "TestHeartbeatConflicts/beat-lock:_end_of_the_handle,_ack_of_a_claim",
	guardOwnClaim:          "TestAStepUnderAWorker",
	guardStateLock:         "TestConflicts/change_of_the_state,_claim_of_the_group",
	guardStateExclude:      "TestConflicts/claim_that_reads_the_state,_change_of_it",
	guardKeepExclude:       "TestConflicts/takeover_that_reads_the_state,_holder's_change_of_it",
	guardAgeLock:           "TestSweepOfOverdueMeetsClaim",
	guardAgeExclude:        "TestConflicts/claim_that_meets_overdue_items,_sweep_of_them",
	guardRedriveLock:       "TestConflicts/redrive,_claim_of_the_group",
	guardRedriveExclude:    "TestConflicts/claim,_redrive_into_the_group",
	guardLetter:            "TestConflicts/discard,_discard_of_the_same_letter",

	guardRequestClear:    "TestStagingMustConflict/clearing_of_the_request,_grant",
	guardGrantRequest:    "TestStagingMustConflict/grant,_clearing_of_the_request",
	guardGrantLock:       "TestStagingMustConflict/grant,_claim_of_the_group",
	guardGrantLease:      "TestDeadRequesterStrandsNoGroup/after_a_grant/faults=false",
	guardRequestDeadline: "TestDeadAreGrantedNothing",
	guardWithdrawRequest: "TestStagingMustConflict/withdrawal_of_the_request,_grant",
	guardWithdrawLock:    "TestWithdrawalMeetsTakeover",
	guardSweepRequest:    "TestSweepSparesRenewedRequest",
	guardRenewRequest:    "TestRenewalOfSweptRequest",

	guardWakeTemplate: "TestWaitByTemplate/enqueue/template",
	guardWakeUnlocked: "TestWaitByTemplate/end_of_an_intersecting_claim/group_and_template",
	guardPassOn:       "TestWaitIsPassedOn",
	guardOwedWake:     "TestOwedWakeIsPaid/by_time",
	guardLookSoon:     "TestWaitThatBeginsBesideACommit/any/enqueue",
	guardGoneWake:     "TestWakeOfOneWhoIsGone/served",
	guardKeepBounds:   "TestHandleKeepsNoGroupForEver/many",

	guardReceipt:         "TestOperatorsUnknownCommitHasItsEffectOnce/unknown-applied",
	guardReceiptConflict: "TestLateRetryExcludesTheNext",
	guardReceiptLate:     "TestLateCommitExcludesItsRetry",
	guardReceiptFence:    "TestLateCommitAndResultsOfItsRetry",
	guardReceiptLife:     "TestSweepClearsReceipts/memory",
	guardReceiptTrust:    "TestSweptReceiptIsNotTrusted",
	guardClaimReceipt:    "TestUnknownClaimOfManyItems/memory",
	guardReloadToken:     "TestUnknownClaimLostMeanwhile",
	guardReloadExact:     "TestReloadPassesLateItem",
	guardAssign:          "TestBodyThatRanTwiceReturnsOneResult",
	guardApart:           "TestTogetherOfUnknownOutcome",
	guardConfigure:       "TestConfigConflicts",
	guardQueuePause:      "TestConflicts/pause_of_the_queue,_pause_of_it",
	guardNotInClaim:      "TestOvertakenHolderChangesNothing/memory",
	guardSpent:           "TestOverdueInSteps/claim",
	guardBatchSize:       "TestTogetherInBounds",
	guardReplayEnd:       "TestReplayInStepsRepeatsEachOnce",
	guardReplayCut:       "TestReplayInStepsRepeatsEachOnce",
	guardDrop:            "TestDropStraggler",
	guardDropLook:        "TestDropAgainstASlowReadVersion",
	guardSubscribeHold:   "TestHolderOfASubscription/extended_meanwhile",
	guardSubscribeMove:   "TestHolderOfASubscription/taken_over_meanwhile",
	guardSubscribeAgain:  "TestChangesOfUnknownCommit/unknown-applied",
	guardSubscribeStop:   "TestSubscriptionStopsWithASlowHandler",
	guardIncarnation:     "TestHandleOfADroppedQueue",
	guardGrow:            "TestRaiseReachesWhoSleeps",
	guardTwin:            "TestTimerOfAnEarlierNumber",
	guardSweepTurn:       "TestOneOfManySweeps",
	guardTotalDraw:       "TestTotalDrawsOfTwoHandles",
	guardPaceSweep:       "TestSweepKeepsWhatIsWrittenAnew/pace",
	guardPaceEmpty:       "TestScenarios/memory/bug_rate_changed_amid_sweep",
	guardPaceExclude:     "TestConflicts/take_that_awaits_the_rate,_change_of_it",
	guardPaceFresh:       "TestRateOfHandlesThatDoNotKnow",
	guardRepeat:          "TestConflicts/claim_with_a_receive_id,_the_same_of_another_group",
	guardRepeatTwin:      "TestTwinsOfOneAttempt",
	guardRepeatBack:      "TestRepeatableIsNotGivenBack",
	guardRepeatSweep:     "TestSweepKeepsWhatIsWrittenAnew/repeat",
	guardSuspect:         "TestPoisonDiesAlone/group/3/25_attempts",
	guardSuspectTurn:     "TestPoisonUnderWorkers",
	guardProof:           "TestLeaseOfAClaimThatNobodyKnows",
	guardOrphan:          "TestReceiveThatNobodyHearsOf",
	guardExtendApart:     "TestSlowHandlers",
	guardTxBound:         "TestTransactionTooLong",
	guardClockAsk:        "TestAWrongClockDestroysNothing/2_days_ahead",
	guardClockLease:      "TestNoAttemptByAWrongClock/a_lease_for_each_claim_ahead",
	guardClockBound:      "TestAClockAYearAhead/the_lease_of_a_claim",
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
func (p programs) runOnly(name string, without guard) (string, error) {
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
	c.Env = append(os.Environ(), WithoutVariable+"="+string(without))
	out, err := c.CombinedOutput()
	return string(out), err
}

// TestBrokenByTests: every guard has a test that fails without it, and passes with it.
func TestBrokenByTests(t *testing.T) {
	tests := buildTests(t)
	whole := make(map[string]bool)
	for _, g := range guards {
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

// TestGuardsAreListed: the list of the broken build has all guards of guard.go.
func TestGuardsAreListed(t *testing.T) {
	file, err := parser.ParseFile(token.NewFileSet(), "guard.go", nil, 0)
	require.NoError(t, err)
	var want []guard
	ast.Inspect(file, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			for _, v := range spec.Values {
				name, err := strconv.Unquote(v.(*ast.BasicLit).Value)
				require.NoError(t, err)
				want = append(want, guard(name))
			}
		}
		return true
	})
	require.Equal(t, want, guards)
	require.Len(t, missing, len(guards))
}
