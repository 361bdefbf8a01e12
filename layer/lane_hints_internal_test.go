package layer

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	recording "fdbfifo/kv/record"
	"fdbfifo/layer/internal/lanes"
	"fdbfifo/layer/internal/line"
	"fdbfifo/layer/internal/rec"
)

// laneConfig is of a queue with the facets a and b, a view of each, and whole groups.
var laneConfig = Config{Facets: []string{"a", "b"}, Views: "*; a; b"}

func sendTo(t *testing.T, q *Queue, group, a, b string) {
	t.Helper()
	_, err := q.Enqueue(t.Context(), Message{Group: group, Headers: map[string]string{"a": a, "b": b}})
	require.NoError(t, err)
}

// claimBy claims one group by template; nil = nothing is ready.
func claimBy(t *testing.T, q *Queue, where Template, max int) *Claim {
	t.Helper()
	claims, err := q.Receive(t.Context(), ReceiveOptions{Where: where, Max: max, MaxGroups: 1})
	require.NoError(t, err)
	if len(claims) == 0 {
		return nil
	}
	return claims[0]
}

// countIn returns how many keys a range has.
func countIn(t *testing.T, q *Queue, r kv.KeyRange) int {
	t.Helper()
	n := 0
	for _, err := range kv.Rows(t.Context(), q.db, r) {
		require.NoError(t, err)
		n++
	}
	return n
}

func soundLanes(t *testing.T, q *Queue) CheckReport {
	t.Helper()
	report, err := q.Admin().Check(t.Context(), CheckOptions{})
	require.NoError(t, err)
	require.Empty(t, report.Violations)
	return report
}

// TestKeptHintsInBounds (lanes, trap 13): under one lock so many hints are put aside and no more. Those that are more
// stay where they are, and all lanes are found when the lock is released.
func TestKeptHintsInBounds(t *testing.T) {
	_, q := newInterleaved(t, laneConfig)
	const lanes = maxKept + 20
	sendTo(t, q, "A", "held", "held")
	for n := range lanes {
		sendTo(t, q, "A", "held", fmt.Sprint(n))
	}
	held := claimBy(t, q, Template{"a": "held"}, 1)
	require.NotNil(t, held)
	for n := range lanes {
		require.Nil(t, claimBy(t, q, Template{"b": fmt.Sprint(n)}, 1))
	}
	lane, err := held.lane(q)
	require.NoError(t, err)
	require.Equal(t, maxKept, countIn(t, q, q.keys.keptUnder(lane)))
	soundLanes(t, q)
	require.Nil(t, claimBy(t, q, Template{"b": fmt.Sprint(lanes - 1)}, 1), "it is looked at again, in vain")
	require.NoError(t, q.Ack(t.Context(), held))
	require.Zero(t, countIn(t, q, q.keys.section(nameKept)))
	for n := range lanes {
		c := claimBy(t, q, Template{"b": fmt.Sprint(n)}, 1)
		require.NotNil(t, c, "lane %d", n)
		require.NoError(t, q.Ack(t.Context(), c))
	}
	require.Zero(t, soundLanes(t, q).Items)
}

// TestLeftHintProvesNothing (I1): a hint that finds no place under the lock stays where it is, and
// nothing is fenced. So it does not prove that another hint of the lane is superfluous: another handle may take the
// first one's message, and then the lane would be lost.
func TestLeftHintProvesNothing(t *testing.T) {
	_, q := newInterleaved(t, laneConfig)
	const many = maxKept + 1
	sendTo(t, q, "A", "held", "held")
	for n := range many {
		sendTo(t, q, "A", "held", fmt.Sprint(n))
	}
	held := claimBy(t, q, Template{"a": "held"}, 1)
	require.NotNil(t, held)
	for n := range many {
		require.Nil(t, claimBy(t, q, Template{"b": fmt.Sprint(n)}, 1))
	}
	where, err := q.keys.where(Template{"b": fmt.Sprint(many - 1)})
	require.NoError(t, err)
	_, err = kv.Run(t.Context(), q.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		v, err := tx.ReadVersion().Wait(t.Context())
		tx.Set(q.keys.ready(v+q.offset+1000, lanes.Name("A", where)), nil)
		return err
	})
	require.NoError(t, err)
	hints := func() int {
		n := 0
		for _, r := range q.keys.hintsOf(where) {
			n += countIn(t, q, r)
		}
		return n
	}
	require.Equal(t, 2, hints())
	require.Nil(t, claimBy(t, q, Template{"b": fmt.Sprint(many - 1)}, 1))
	require.Equal(t, 2, hints())
	require.NoError(t, q.Ack(t.Context(), held))
	for n := range many {
		c := claimBy(t, q, Template{"b": fmt.Sprint(n)}, 1)
		require.NotNil(t, c, "lane %d", n)
		require.NoError(t, q.Ack(t.Context(), c))
	}
	require.Zero(t, soundLanes(t, q).Items)
}

// TestSweepClearsStaleHints (lanes, trap 14): a view from which no handle receives keeps its hints when others empty
// its lanes. A sweep clears these hints. A lane with items is found as before.
func TestSweepClearsStaleHints(t *testing.T) {
	_, q := newInterleaved(t, laneConfig)
	for round := range 5 {
		sendTo(t, q, "A", "x", fmt.Sprint(round))
		require.NoError(t, q.Ack(t.Context(), claimBy(t, q, Template{"a": "x"}, 1)))
	}
	for range 3 { // the head of the whole group, and of b, is not the item which made the hint
		sendTo(t, q, "B", "x", "y")
	}
	require.NoError(t, q.Ack(t.Context(), claimBy(t, q, Template{"a": "x"}, 1)))
	before := countIn(t, q, q.keys.section(nameOpen)) + countIn(t, q, q.keys.section(nameReady))
	require.Equal(t, 5+5+3, before, "of A: b, and whole; of B: a, b, and whole")
	report, err := q.Admin().Sweep(t.Context(), SweepOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 12, report.Hints, "two of them move to the head of B")
	require.Equal(t, 3, countIn(t, q, q.keys.section(nameOpen))+countIn(t, q, q.keys.section(nameReady)))
	soundLanes(t, q)
	report, err = q.Admin().Sweep(t.Context(), SweepOptions{})
	require.NoError(t, err)
	require.Zero(t, report.Hints)
	for _, where := range []Template{{"b": "y"}, nil} {
		c := claimBy(t, q, where, 1)
		require.NotNil(t, c)
		require.NoError(t, q.Ack(t.Context(), c))
	}
	require.Zero(t, soundLanes(t, q).Items)
}

// TestSweepSparesTheHintThatComesBack (lanes, trap 1): while a sweep clears the hint of an empty lane, the item is
// advanced back into the lane, with a hint under the same key. Guard stale-empty.
func TestSweepSparesTheHintThatComesBack(t *testing.T) {
	db, q := newInterleaved(t, Config{Facets: []string{"a"}, Views: "a"})
	_, err := q.Enqueue(t.Context(), Message{Group: "A", Headers: map[string]string{"a": "x", "b": "y"}})
	require.NoError(t, err)
	move := func(c *Claim, to string) {
		change := func(_ ID, m *Message) error {
			m.Headers["a"] = to
			return nil
		}
		require.NoError(t, q.Settle(t.Context(), Settlement{Claim: c, AdvanceAll: true, Change: change}))
	}
	hints := q.keys.section(nameOpen)
	var first []byte
	for row, err := range kv.Rows(t.Context(), q.db, hints) {
		require.NoError(t, err)
		first = row.Key
	}
	move(claimBy(t, q, Template{"a": "x"}, 1), "y")
	there := claimBy(t, q, Template{"a": "y"}, 1)
	db.put(t, first, nil) // as a claim of another view leaves it
	db.before = func() { move(there, "x") }
	db.armed.Store(true)
	s := &sweeper{q: q, ctx: t.Context()}
	require.NoError(t, s.hints())
	c := claimBy(t, q, Template{"a": "x"}, 1)
	require.NotNil(t, c, "the lane is found")
	require.NoError(t, q.Ack(t.Context(), c))
	soundLanes(t, q)
}

// TestSweepOfHintsMeetsAnotherQueue: a sweep of hints which began before the queue was dropped writes none into the
// next queue of the name.
func TestSweepOfHintsMeetsAnotherQueue(t *testing.T) {
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	q, err := Create(t.Context(), db, nil, "q", Options{Config: Config{Unordered: true}})
	require.NoError(t, err)
	require.NoError(t, Drop(t.Context(), db, nil, "q", DropOptions{}))
	next, err := Create(t.Context(), db, nil, "q", Options{Config: Config{Shards: 16}})
	require.NoError(t, err)
	for n := range 20 {
		_, err = next.Enqueue(t.Context(), Message{Group: fmt.Sprint(n)})
		require.NoError(t, err)
	}
	require.ErrorIs(t, (&sweeper{q: q, ctx: t.Context()}).hints(), ErrNoQueue)
	report, err := next.Admin().Check(t.Context(), CheckOptions{})
	require.NoError(t, err)
	require.Empty(t, report.Violations)
	require.NoError(t, next.Close(t.Context()))
	require.NoError(t, q.Close(t.Context()))
}

// TestGrantDecidesNothing (I1, G5): a handle that grants groups to others ends a lapsed claim of another lane on the
// way, and leaves the group itself to the next receive. So no conflict proves that the group's second hint is
// superfluous, and that hint stays.
func TestGrantDecidesNothing(t *testing.T) {
	inABubble(t, laneConfig, func(t *testing.T, q *Queue, r *recording.Recorder) {
		var sent []kv.ManagedTx
		for range 2 { // neither sees the other's message, so both leave a hint
			tx, err := r.Begin(kv.TxOptions{})
			require.NoError(t, err)
			_, err = q.EnqueueTx(t.Context(), tx, Message{Group: "g", Headers: map[string]string{"a": "x", "b": "y"}})
			require.NoError(t, err)
			sent = append(sent, tx)
			time.Sleep(time.Second) // which moves the version, and so the index, on
		}
		for _, tx := range sent {
			_, err := tx.Commit().Wait(t.Context())
			require.NoError(t, err)
		}
		require.Equal(t, 2, rowsOf(t, q, nameReady))
		require.NotNil(t, claimBy(t, q, Template{"a": "x"}, 1))
		time.Sleep(2 * defaultLease)
		require.NoError(t, q.Once(t.Context(), func(tx kv.Tx) error {
			given, err := q.txn(t.Context(), tx).newClaimer("", nil).grant(uuid.New())
			require.False(t, given)
			return err
		}))
		require.Equal(t, 2, rowsOf(t, q, nameReady))
		require.NotNil(t, claimBy(t, q, nil, 2))
	})
}

// TestGrantAfterAnEndedHold (progress): a handle that grants groups to others ends an expired hold on the way. The same
// transaction grants the group that the hold has set free.
func TestGrantAfterAnEndedHold(t *testing.T) {
	inABubble(t, Config{LeasePerItem: true}, func(t *testing.T, q *Queue, _ *recording.Recorder) {
		_, err := q.Enqueue(t.Context(), Message{Group: "g"})
		require.NoError(t, err)
		held, err := q.Receive(t.Context(), ReceiveOptions{Max: 1})
		require.NoError(t, err)
		require.Len(t, held, 1)
		grant := func() (given bool) {
			require.NoError(t, q.Once(t.Context(), func(tx kv.Tx) (err error) {
				w := q.txn(t.Context(), tx)
				if given, err = w.newClaimer("", nil).grant(uuid.New()); err != nil {
					return err
				}
				return w.finish()
			}))
			return given
		}
		require.False(t, grant(), "the item is held")
		time.Sleep(2 * defaultLease)
		require.True(t, grant())
		require.Equal(t, 1, rowsOf(t, q, nameGrant))
		require.Zero(t, rowsOf(t, q, nameHold))
		time.Sleep(2 * grantLease)
		claims, err := q.Receive(t.Context(), ReceiveOptions{Max: 1})
		require.NoError(t, err)
		require.Len(t, claims, 1)
		require.NoError(t, q.Ack(t.Context(), claims[0]))
	})
}

// receptionOf is a receive that has not begun.
func receptionOf(t *testing.T, q *Queue, o ReceiveOptions) *reception {
	t.Helper()
	o, err := o.withDefaults()
	require.NoError(t, err)
	r, err := q.reception(o)
	require.NoError(t, err)
	return r
}

// TestGrantSeesOwnClaims (G2): a transaction that claims lanes by a template, and then grants whole groups to others,
// does not use its reads of these groups from before the claims.
func TestGrantSeesOwnClaims(t *testing.T) {
	inABubble(t, laneConfig, func(t *testing.T, q *Queue, _ *recording.Recorder) {
		other := uuid.New() // waits for a whole group
		sendTo(t, q, "first", "w", "y")
		sendTo(t, q, "first", "w", "y")
		time.Sleep(time.Second)
		sendTo(t, q, "second", "x", "y")
		q.spreadOf("").Learn(1, 1) // so that a receive of two looks at two groups at once
		whole := receptionOf(t, q, ReceiveOptions{Max: 2, MaxGroups: 2})
		lane := receptionOf(t, q, ReceiveOptions{Where: Template{"a": "x"}, Max: 1, MaxGroups: 1})
		require.NoError(t, q.Once(t.Context(), func(tx kv.Tx) error {
			wanted := rec.Request{Owner: "other", Wants: 1, DeadlineMS: q.nowMS() + requestLife.Milliseconds()}
			tx.Set(q.keys.request(1, other), wanted.Pack())
			return nil
		}))
		require.NoError(t, q.Once(t.Context(), func(tx kv.Tx) error {
			w := q.txn(t.Context(), tx)
			whole.begin()
			lane.begin()
			turn := line.Op{Waits: true, Turn: &line.Turn{}}
			_, err := w.takeTurn([]*claimer{
				w.newClaimer("", []*reception{whole}), w.newClaimer(lane.where, []*reception{lane}),
			}, []*operation{{Op: turn, receive: whole}, {Op: turn, receive: lane}}, []*reception{whole, lane})
			return errors.Join(err, w.did.illegal)
		}))
		require.Len(t, whole.claims, 1)
		require.Len(t, lane.claims, 1)
		require.Zero(t, rowsOf(t, q, nameGrant))
		require.NoError(t, q.Ack(t.Context(), lane.claims[0]))
		require.NoError(t, q.Ack(t.Context(), whole.claims[0]))
		require.NoError(t, q.Once(t.Context(), func(tx kv.Tx) error { tx.ClearRange(q.keys.requests()); return nil }))
	})
}

// TestHoldsAfterANamedReceive (G2): of several unordered receives that share a transaction, the next sees the hold of
// one that names a group, though it had begun to read the group before.
func TestHoldsAfterANamedReceive(t *testing.T) {
	inABubble(t, Config{Unordered: true}, func(t *testing.T, q *Queue, _ *recording.Recorder) {
		for _, group := range []string{"first", "second", "second"} {
			_, err := q.Enqueue(t.Context(), Message{Group: group})
			require.NoError(t, err)
			time.Sleep(time.Second)
		}
		group := "second"
		var all []*reception
		for _, o := range []ReceiveOptions{{}, {Group: &group}, {}} {
			o.Unordered, o.Max, o.MaxGroups = true, 1, 1
			all = append(all, receptionOf(t, q, o))
		}
		require.NoError(t, q.Once(t.Context(), func(tx kv.Tx) error {
			w := q.txn(t.Context(), tx)
			for _, r := range all {
				r.begin()
			}
			c := w.newClaimer(all[0].where, all)
			c.begin()
			return errors.Join(c.claim(), w.finish(), w.did.illegal)
		}))
		held := map[ID]bool{}
		for _, r := range all {
			require.Len(t, r.claims, 1)
			held[r.claims[0].Hold] = true
		}
		require.Len(t, held, 3)
		for _, r := range all {
			require.NoError(t, q.Ack(t.Context(), r.claims[0]))
		}
	})
}
