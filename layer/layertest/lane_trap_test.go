package layer_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/record"
	"fdbfifo/layer"
)

// The traps of lanes, and the tests that stand for them. The tests of holds (traps 3 and 12) are elsewhere.
//
//	 1 a hint comes back under the same key: TestConflicts (trap 1), TestSweepSparesTheHintThatComesBack
//	 2 a hint is put aside under a lock that is released: TestConflicts (claim that puts a hint aside; release)
//	 3 a claim conflicts with all locks that may intersect: TestConflicts (claim, take by template)
//	 4 an end of a lane, not of the group, decides: TestConflicts (enqueue, ack), TestAdvanceBesideTheLanesEnd
//	 5 tokens of two lanes may be equal: TestEqualTokensOfLanes
//	 6 a whole group waits for all its lanes: TestScenarios (where_whole)
//	 7 the state of a group has one writer: TestScenarios (where_whole)
//	 8 a halt stops its lane, a pause all: TestScenarios (where_halt)
//	 9 a rate is of groups, a delay of what intersects: TestTemplatesAreChecked, TestScenarios (where_delay)
//	10 an item leaves the lanes of its present facets: TestRemovalOfChangedItems
//	11 lanes lie scattered in their group: TestScatteredLaneIsReadByKey, TestReadsOfFarItems
//	12 a look reads few locks: TestReadsOfManyLanes, TestLanePastManyLocks, TestPauseReadsPastManyLocks,
//	   TestUnreadableItemOfManyLanes,
//	   TestLanesAgainstAModel
//	13 the release of a lock puts back a bounded number of hints: TestKeptHintsInBounds
//	14 no receive uses a view: TestSweepClearsStaleHints
//	15 a value that begins another value is another: TestValuesThatBeginOthers
//	16 a meaningless template is refused: TestTemplatesAreChecked, TestAdvanceRefused, TestFormCheck
//	17 an enqueue wakes one handle by each template: TestWakesOfThreeViews
//	18 any handle that meets a lapsed claim ends it: TestLapsedLaneIsEndedByOthers, TestConflicts (expired claim)

// newLaned returns a queue with the facets state and region.
func newLaned(t *testing.T, views string, change func(*layer.Config)) *env {
	e := newEnv(t, anyEngine, false)
	return e.on(e.laned("lanes", views, change, 1)[0])
}

// TestEqualTokensOfLanes (lanes, trap 5): tokens grow per lane, and those of two lanes of one group may be equal. The
// token of one is no right to the other.
func TestEqualTokensOfLanes(t *testing.T) {
	l := newLaned(t, "state", nil)
	l.sendStates("NEW", "PAID")
	var fresh, paid []*layer.Claim
	require.NoError(t, l.q.Once(l.ctx, func(tx kv.Tx) (err error) {
		if fresh, err = l.q.ReceiveTx(l.ctx, tx, layer.ReceiveOptions{Where: isNew}); err != nil {
			return err
		}
		paid, err = l.q.ReceiveTx(l.ctx, tx, layer.ReceiveOptions{Where: isPaid})
		return err
	}))
	a, b := fresh[0], paid[0]
	require.Equal(t, a.Token, b.Token, "of one read version")
	require.ErrorIs(t, l.q.AckItems(l.ctx, a, []layer.ID{b.Items[0].ID}), layer.ErrNotInClaim)
	require.NoError(t, l.q.Ack(l.ctx, a))
	forged := *a
	require.ErrorIs(t, l.q.Ack(l.ctx, &forged), layer.ErrClaimLost, "the lane has ended, whatever the other's token")
	require.NoError(t, l.q.Ack(l.ctx, b))
}

// TestAdvanceByNothing: an advance or an edit without a function is refused, and finishes nothing.
func TestAdvanceByNothing(t *testing.T) {
	l := newLaned(t, "*; state", nil)
	l.sendStates("NEW")
	c := l.claimBy(isNew, 1)
	require.ErrorIs(t, l.q.Settle(l.ctx, layer.Settlement{
		Claim: c, Advance: []layer.ID{c.Items[0].ID},
	}), layer.ErrOptions)
	require.ErrorIs(t, l.q.Admin().Edit(l.ctx, c.Items[0].ID, nil), layer.ErrOptions)
	items, err := l.q.Peek(l.ctx, c.Group, 10, nil)
	require.NoError(t, err)
	require.Len(t, items, 1)
	require.NoError(t, l.q.Ack(l.ctx, c))
}

// TestReleaseOfALane: a forced release ends exactly the claim that it names. Its error names a lane that is not held.
func TestReleaseOfALane(t *testing.T) {
	l := newLaned(t, "*; state", nil)
	l.sendStates("NEW", "PAID")
	c := l.claimBy(isNew, 1)
	a := l.q.Admin()
	_, err := a.ForceRelease(l.ctx, c.Group, layer.ForceReleaseOptions{Where: isPaid})
	require.ErrorIs(t, err, layer.ErrNotHeld)
	require.ErrorContains(t, err, "where state=PAID")
	_, err = a.ForceRelease(l.ctx, c.Group, layer.ForceReleaseOptions{Where: isNew, Hold: c.Items[0].ID})
	require.ErrorIs(t, err, layer.ErrOptions)
	held, err := a.ForceRelease(l.ctx, c.Group, layer.ForceReleaseOptions{Where: isNew})
	require.NoError(t, err)
	require.Equal(t, c.Token, held.Token)
	err = l.q.Ack(l.ctx, c)
	require.ErrorIs(t, err, layer.ErrClaimLost)
	require.ErrorContains(t, err, "where state=NEW")
	_, err = l.q.Receive(l.ctx, layer.ReceiveOptions{Where: layer.Template{}})
	require.ErrorContains(t, err, "template {} is of no view of the queue: allowed are *; state")
}

// TestWholeGroupOfBusyStages (lanes, trap 6): a call pauses a group, and then resumes it and claims the whole group in
// one transaction. It gets the whole group, however fast the stages claim and ack its lanes, because no stage can come
// between the resume and the claim. While a lane is held the transaction is given up, and the group stays paused.
func TestWholeGroupOfBusyStages(t *testing.T) {
	onMemory(t, func(e *env) {
		q := e.laned("busy", "*; state", nil, 3)
		l := e.on(q[0])
		states := []layer.Template{isNew, isPaid}
		l.sendStates("NEW", "PAID")
		ctx, stop := context.WithCancel(e.ctx)
		defer stop()
		var stages sync.WaitGroup
		for i, where := range states {
			stages.Go(func() { // sends its message round: from NEW to PAID and back
				for ctx.Err() == nil {
					claims, err := q[1+i].Receive(ctx, layer.ReceiveOptions{Where: where, Max: 1, Wait: time.Second})
					for _, c := range claims {
						_ = q[1+i].Settle(ctx, advanceBy(c, func(m *layer.Message) error {
							m.Headers["state"] = states[1-i]["state"]
							return nil
						}))
					}
					if err != nil {
						runtime.Gosched()
					}
				}
			})
		}
		errHeld := errors.New("a lane is held")
		for range 20 {
			_, err := q[0].Admin().PauseGroup(e.ctx, "A", layer.PauseOptions{})
			require.NoError(e.t, err)
			var claims []*layer.Claim
			whole := func(tx kv.Tx) (err error) {
				if _, err = q[0].Admin().ResumeGroupTx(e.ctx, tx, "A", layer.ResumeOptions{}); err != nil {
					return err
				}
				claims, err = q[0].ReceiveTx(e.ctx, tx, layer.ReceiveOptions{Group: layer.OnlyGroup("A"), Max: 10})
				if err == nil && len(claims) == 0 {
					err = errHeld
				}
				return err
			}
			require.Eventually(e.t, func() bool {
				err := q[0].Once(e.ctx, whole)
				if err != nil {
					require.ErrorIs(e.t, err, errHeld)
					info, err := q[0].Admin().Group(e.ctx, "A", nil)
					require.NoError(e.t, err)
					require.NotNil(e.t, info.Mark, "still paused")
				}
				return err == nil
			}, time.Minute, time.Millisecond)
			require.Len(e.t, claims, 1)
			require.Len(e.t, claims[0].Items, 2)
			require.NoError(e.t, q[0].Nack(e.ctx, claims[0], layer.NackOptions{Release: true}))
		}
		stop()
		stages.Wait()
		e.sound("busy")
	})
}

// TestRemovalOfChangedItems (lanes, trap 10): an item whose facets have changed since it was enqueued leaves the lanes
// of its present facets, by whichever verb it goes.
func TestRemovalOfChangedItems(t *testing.T) {
	for name, remove := range map[string]func(l *env, id layer.ID) error{
		"ack":    func(l *env, _ layer.ID) error { return l.q.Ack(l.ctx, l.claimBy(isPaid, 1)) },
		"cancel": func(l *env, id layer.ID) error { return l.q.Admin().Cancel(l.ctx, id) },
		"skip": func(l *env, _ layer.ID) error {
			_, err := l.q.Admin().Skip(l.ctx, "A", layer.SkipOptions{})
			return err
		},
		"purge": func(l *env, _ layer.ID) error {
			_, err := l.q.Admin().Purge(l.ctx, layer.PurgeOptions{All: true})
			return err
		},
		"take": func(l *env, _ layer.ID) error {
			return l.q.Once(l.ctx, func(tx kv.Tx) error {
				_, _, err := l.q.TakeTx(l.ctx, tx, 1, layer.TakeOptions{Where: isPaid})
				return err
			})
		},
		"dead letter": func(l *env, _ layer.ID) error {
			return l.q.Nack(l.ctx, l.claimBy(isPaid, 1), layer.NackOptions{Reject: "no"})
		},
	} {
		for how, change := range map[string]func(l *env, id layer.ID) error{
			"advanced": func(l *env, _ layer.ID) error {
				c := l.claimBy(isNew, 1)
				return l.q.Once(l.ctx, func(tx kv.Tx) error { return l.move(tx, c, "PAID") })
			},
			"edited": func(l *env, id layer.ID) error {
				return l.q.Admin().Edit(l.ctx, id, func(m *layer.Message) error {
					m.Headers["state"] = "PAID"
					return nil
				})
			},
		} {
			t.Run(how+", "+name, func(t *testing.T) {
				l := newLaned(t, "*; state; state,region", nil)
				sent, err := l.q.Enqueue(l.ctx, layer.Message{Group: "A", Headers: facetsOf("NEW", "EU")})
				require.NoError(t, err)
				require.NoError(t, change(l, sent[0].ID))
				require.NoError(t, remove(l, sent[0].ID))
				report, err := l.q.Admin().Check(l.ctx, layer.CheckOptions{})
				require.NoError(t, err)
				require.Empty(t, report.Violations)
				require.Zero(t, report.Items)
			})
		}
	}
}

// TestScatteredLaneIsReadByKey (lanes, trap 11): a claim of a lane whose items lie far apart reads those, and not what
// lies between them.
func TestScatteredLaneIsReadByKey(t *testing.T) {
	l := newLaned(t, "state", nil)
	var all []layer.Message
	for n := range 400 {
		state := "PAID"
		if n%200 == 0 {
			state = "NEW"
		}
		all = append(all, layer.Message{Group: "A", Headers: facetsOf(state, "EU"), Body: make([]byte, 1000)})
	}
	_, err := l.q.Enqueue(l.ctx, all...)
	require.NoError(t, err)
	counting := record.WrapCounting(l.raw)
	q, err := layer.Open(l.ctx, counting, testPrefix, "lanes", l.options(20))
	require.NoError(t, err)
	before := counting.Counters()
	claims, err := q.Receive(l.ctx, layer.ReceiveOptions{Where: isNew, Max: 10})
	require.NoError(t, err)
	require.Len(t, claims[0].Items, 2)
	read := counting.Counters().Sub(before)
	require.Less(t, read.BytesRead, int64(10_000))
	require.Less(t, read.Rows, int64(20))
	require.NoError(t, q.Ack(l.ctx, claims[0]))
	require.NoError(t, q.Close(l.ctx))
}

// TestValuesThatBeginOthers (lanes, trap 15): a facet's value that is the beginning of another value, or has zero
// bytes, is a value of its own. Lanes of both are held at the same time, and a lane of two facets intersects only lanes
// of the same first value.
func TestValuesThatBeginOthers(t *testing.T) {
	values := []string{"a", "ab", "a\x00", "a\x00b", "\x00", "a\uffff"}
	l := newLaned(t, "state; state,region", nil)
	for _, v := range values {
		_, err := l.q.Enqueue(l.ctx, layer.Message{Group: "A", Headers: facetsOf(v, v), Body: []byte(v)})
		require.NoError(t, err)
	}
	for i, v := range values {
		narrow := layer.Template{"state": v, "region": v}
		if i%2 == 0 {
			require.NotNil(t, l.claimBy(layer.Template{"state": v}, 10), "%q", v)
			require.Nil(t, l.claimBy(narrow, 10), "%q intersects", v)
		} else {
			c := l.claimBy(narrow, 10)
			require.NotNil(t, c, "%q", v)
			require.Len(t, c.Items, 1)
			require.Equal(t, v, string(c.Items[0].Body))
			require.Nil(t, l.claimBy(layer.Template{"state": v}, 10), "%q intersects", v)
		}
	}
}

// TestLapsedLaneIsEndedByOthers (lanes, trap 18): a receive that meets a lapsed claim of another lane ends it. It
// counts a failed attempt, leaves the lane findable, and does not take it over.
func TestLapsedLaneIsEndedByOthers(t *testing.T) {
	l := newLaned(t, "*; state; region", nil)
	l.sendStates("NEW", "PAID")
	for n := range 3 {
		lapsed := l.claimBy(isNew, 1)
		require.NotNil(t, lapsed)
		require.Equal(t, n, lapsed.Items[0].Attempts)
		l.clock.advance(time.Hour)
		by := layer.Template{"region": "EU"}
		if n == 1 {
			by = nil
		}
		other := l.claimBy(by, 1)
		require.NotNil(t, other, "by %s", by)
		require.ErrorIs(t, l.q.Ack(l.ctx, lapsed), layer.ErrClaimLost)
		require.NoError(t, l.q.Nack(l.ctx, other, layer.NackOptions{Release: true}), fmt.Sprint(n))
	}
	require.NoError(t, l.q.Ack(l.ctx, l.claimBy(nil, 10)))
}

// TestItemOfLapsedClaimOfDefaultGroup: the name of the default group is "". An operator's change of an item ends the
// expired claim of that group, too.
func TestItemOfLapsedClaimOfDefaultGroup(t *testing.T) {
	for name, change := range map[string]func(l *env, id layer.ID) error{
		"cancel": func(l *env, id layer.ID) error { return l.q.Admin().Cancel(l.ctx, id) },
		"reschedule": func(l *env, id layer.ID) error {
			return l.q.Reschedule(l.ctx, id, l.clock.now().Add(time.Hour))
		},
		"edit": func(l *env, id layer.ID) error {
			return l.q.Admin().Edit(l.ctx, id, func(m *layer.Message) error {
				m.Headers["state"] = "PAID"
				return nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLaned(t, "*; state", nil)
			sent, err := l.q.Enqueue(l.ctx, layer.Message{Headers: facetsOf("NEW", "EU")})
			require.NoError(t, err)
			lapsed := l.claimBy(nil, 1)
			require.NotNil(t, lapsed)
			l.clock.advance(time.Hour)
			require.NoError(t, change(l, sent[0].ID))
			require.ErrorIs(t, l.q.Ack(l.ctx, lapsed), layer.ErrClaimLost)
			report, err := l.q.Admin().Check(l.ctx, layer.CheckOptions{})
			require.NoError(t, err)
			require.Empty(t, report.Violations)
		})
	}
}
