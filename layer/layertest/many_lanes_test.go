package layer_test

import (
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/record"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// A group may have thousands of lanes in flight. Here each lane has one message, except where a test says otherwise.

// crowdOfLanes holds so many lanes of group A, by claims of the template that where returns for the number of a lane.
func (l *env) crowdOfLanes(n int, where func(i int) layer.Template) []*layer.Claim {
	l.t.Helper()
	claims := make([]*layer.Claim, n)
	l.sendEach(0, n, where)
	for i := range claims {
		claims[i] = l.claimBy(where(i), 1)
		require.NotNil(l.t, claims[i], "lane %d", i)
	}
	return claims
}

// sendEach enqueues the messages with the numbers from first to end. The dedup id of a message is its number.
func (l *env) sendEach(first, end int, headers func(i int) layer.Template) {
	l.t.Helper()
	for first < end {
		msgs := make([]layer.Message, min(500, end-first))
		for i := range msgs {
			msgs[i] = layer.Message{
				Group: "A", DedupID: fmt.Sprint(first + i), Headers: facetsOf("none", "none"),
			}
			for name, value := range headers(first + i) {
				msgs[i].Headers[name] = value
			}
		}
		_, err := l.q.Enqueue(l.ctx, msgs...)
		require.NoError(l.t, err)
		first += len(msgs)
	}
}

func stateNumber(i int) layer.Template { return layer.Template{"state": fmt.Sprint("s", i)} }

// TestReadsOfManyLanes (lanes, trap 12): what a call reads does not grow with the number of lanes of its group that are
// in flight. No call reads more than the locks of 100 of them.
func TestReadsOfManyLanes(t *testing.T) {
	const lanes = 1200
	l := newLaned(t, "*; state; region", func(c *layer.Config) { c.Retention = time.Hour })
	l.crowdOfLanes(lanes, stateNumber)
	l.sendEach(lanes, lanes+5, func(i int) layer.Template {
		return layer.Template{"state": fmt.Sprint("s", i), "region": "EU"}
	})
	counting := record.WrapCounting(l.raw)
	q, err := layer.Open(l.ctx, counting, testPrefix, "lanes", l.options(20))
	require.NoError(t, err)
	a := q.Admin()
	free := func(i int) layer.ID {
		found, err := q.Find(l.ctx, "A", fmt.Sprint(lanes+i))
		require.NoError(t, err)
		return found.ID
	}
	measure := func(what string, rows int64, do func() error) {
		t.Helper()
		before := counting.Counters()
		require.NoError(t, do(), what)
		read := counting.Counters().Sub(before)
		require.LessOrEqual(t, read.Rows, rows, "rows of %s", what)
		require.LessOrEqual(t, read.BytesRead, 300*(rows+20), "bytes of %s", what)
	}
	receive := func(o layer.ReceiveOptions, want int) (claims []*layer.Claim, err error) {
		o.Max = 1
		if claims, err = q.Receive(l.ctx, o); err == nil && len(claims) != want {
			err = fmt.Errorf("%d claims", len(claims))
		}
		return claims, err
	}
	var claims []*layer.Claim
	measure("receive of a lane", 30, func() error {
		claims, err = receive(layer.ReceiveOptions{Where: stateNumber(lanes)}, 1)
		return err
	})
	measure("extend", 10, func() error { _, err := q.Extend(l.ctx, claims[0], time.Minute); return err })
	measure("ack", 30, func() error { return q.Ack(l.ctx, claims[0]) })
	measure("take of a lane", 30, func() error {
		return q.Once(l.ctx, func(tx kv.Tx) error {
			items, _, err := q.TakeTx(l.ctx, tx, 1, layer.TakeOptions{Where: stateNumber(lanes + 1)})
			if err == nil && len(items) != 1 {
				err = errors.New("nothing taken")
			}
			return err
		})
	})
	measure("receive of a lane of another view", 40, func() error {
		_, err := receive(layer.ReceiveOptions{Where: layer.Template{"region": "EU"}}, 0)
		return err
	})
	measure("receive of the group", 40, func() error { _, err := receive(layer.ReceiveOptions{}, 0); return err })
	measure("receive that names the group", 40, func() error {
		_, err := receive(layer.ReceiveOptions{Group: layer.OnlyGroup("A")}, 0)
		return err
	})
	measure("find", 10, func() error { free(2); return nil })
	id := free(2)
	measure("why", 120, func() error { _, err := a.Why(l.ctx, id, nil); return err })
	measure("why of the group", 120, func() error { _, err := a.WhyGroup(l.ctx, "A", nil); return err })
	measure("group", 120, func() error { _, err := a.Group(l.ctx, "A", nil); return err })
	measure("groups", 120, func() error { _, err := a.Groups(l.ctx, layer.GroupsOptions{}); return err })
	measure("stats", 60, func() error { _, err := q.Stats(l.ctx, layer.StatsOptions{}); return err })
	measure("stats of a lane", 60, func() error {
		_, err := q.Stats(l.ctx, layer.StatsOptions{Where: stateNumber(lanes + 3)})
		return err
	})
	measure("edit", 10, func() error {
		return a.Edit(l.ctx, id, func(m *layer.Message) error { m.Body = []byte("x"); return nil })
	})
	measure("reschedule", 10, func() error { return q.Reschedule(l.ctx, id, l.clock.now().Add(time.Minute)) })
	measure("retry now", 10, func() error {
		return a.RetryNow(l.ctx, "A", layer.RetryOptions{Where: stateNumber(lanes + 2)})
	})
	measure("cancel", 10, func() error { return a.Cancel(l.ctx, id) })
	measure("pause", 10, func() error { _, err := a.PauseGroup(l.ctx, "A", layer.PauseOptions{}); return err })
	measure("resume", 10, func() error { _, err := a.ResumeGroup(l.ctx, "A", layer.ResumeOptions{}); return err })
	l.clock.advance(2 * time.Hour)
	begun := counting.Counters()
	require.Eventually(t, func() bool {
		claims, err := q.Receive(l.ctx, layer.ReceiveOptions{})
		require.NoError(t, err)
		return len(claims) == 0
	}, time.Minute, time.Millisecond)
	read := counting.Counters().Sub(begun)
	require.Less(t, read.Rows, int64(50*lanes), "to end the claims of all lanes")
	require.NoError(t, q.Close(l.ctx))
}

// rowsOfEach counts the rows that each attempt of a transaction reads. It is safe for concurrent use.
type rowsOfEach struct {
	kv.DB
	mu  sync.Mutex
	all []*rowsOfTx
}

// rowsOfTx is a transaction of rowsOfEach, whose lock guards before and most.
type rowsOfTx struct {
	kv.ManagedTx
	of     *rowsOfEach
	read   *record.Recorder // of all attempts
	before int64            // the rows of the attempts that are over
	most   int64            // the most rows of one of these
}

func (d *rowsOfEach) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	r := record.WrapCounting(d.DB)
	tx, err := r.Begin(o)
	counted := &rowsOfTx{ManagedTx: tx, of: d, read: r}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.all = append(d.all, counted)
	return counted, err
}

func (t *rowsOfTx) OnError(err error) kv.Future[struct{}] {
	t.of.mu.Lock()
	t.next()
	t.of.mu.Unlock()
	return t.ManagedTx.OnError(err)
}

// next ends an attempt.
func (t *rowsOfTx) next() {
	rows := t.read.Counters().Rows
	t.most, t.before = max(t.most, rows-t.before), rows
}

// most returns the most rows that an attempt has read since the last call.
func (d *rowsOfEach) most() (rows int64) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for _, t := range d.all {
		t.next()
		rows = max(rows, t.most)
	}
	d.all = nil
	return rows
}

// TestReadsOfFarItems (lanes, trap 11): the items of a lane may be far apart in their group, and many items of other
// lanes between them may have failed before. A call reads only the rows of the lane's own items.
func TestReadsOfFarItems(t *testing.T) {
	const between = 1200
	far := layer.Template{"state": "far"}
	for name, call := range map[string]func(t *testing.T, l *env, receive func(items int) *layer.Claim){
		"ack": func(t *testing.T, l *env, receive func(items int) *layer.Claim) {
			require.NoError(t, l.q.Nack(l.ctx, receive(3), layer.NackOptions{}))
			claim := receive(3)
			require.Equal(t, 1, claim.Items[0].Attempts)
			require.NoError(t, l.q.Ack(l.ctx, claim))
		},
		"take": func(t *testing.T, l *env, _ func(items int) *layer.Claim) {
			items, err := l.take(l.q, 3, layer.TakeOptions{Where: far})
			require.NoError(t, err)
			require.Len(t, items, 3)
		},
		"end of a lease": func(t *testing.T, l *env, receive func(items int) *layer.Claim) {
			receive(3)
			l.clock.advance(2 * time.Minute)
			require.Equal(t, 1, receive(1).Items[0].Attempts)
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLaned(t, "*; state; region", func(c *layer.Config) { c.Archive = time.Hour })
			l.sendEach(0, 1, func(int) layer.Template { return far })
			l.sendEach(1, between+1, stateNumber)
			l.sendEach(between+1, between+3, func(int) layer.Template { return far })
			for i := range between {
				claim := l.claimBy(stateNumber(i+1), 1)
				require.NotNil(t, claim)
				require.NoError(t, l.q.Nack(l.ctx, claim, layer.NackOptions{Delay: time.Hour}))
			}
			db := &rowsOfEach{DB: l.raw}
			q, err := layer.Open(l.ctx, db, testPrefix, "lanes", l.options(20))
			require.NoError(t, err)
			call(t, l.on(q), func(items int) *layer.Claim {
				claims, err := q.Receive(l.ctx, layer.ReceiveOptions{Where: far, Max: items, Lease: time.Minute})
				require.NoError(t, err)
				require.Len(t, claims, 1)
				require.Len(t, claims[0].Items, items)
				return claims[0]
			})
			require.LessOrEqual(t, db.most(), int64(60))
			require.NoError(t, q.Close(l.ctx))
			l.sound("lanes")
		})
	}
}

// TestLanePastManyLocks (lanes, trap 12): a receive reads past the locks of up to 1,000 lanes that do not intersect its
// own. With more of them in flight its lane waits for the release of one.
func TestLanePastManyLocks(t *testing.T) {
	const past = 1000
	l := newLaned(t, "region; state,region", nil)
	inUS := func(i int) layer.Template { return layer.Template{"state": fmt.Sprint("s", i), "region": "US"} }
	claims := l.crowdOfLanes(past, inUS)
	eu := layer.Template{"region": "EU"}
	l.sendEach(past, past+2, func(int) layer.Template { return layer.Template{"state": "zz", "region": "EU"} })
	require.Nil(t, l.claimBy(layer.Template{"region": "US"}, 1), "each lane in flight intersects")
	c := l.claimBy(eu, 1)
	require.NotNil(t, c, "no lane in flight intersects")
	require.NoError(t, l.q.Ack(l.ctx, c))

	l.sendEach(2*past, 2*past+20, inUS)
	for i := range 20 {
		claims = append(claims, l.claimBy(inUS(2*past+i), 1))
	}
	require.Nil(t, l.claimBy(eu, 1), "too many lanes are in flight")
	found, err := l.q.Find(l.ctx, "A", fmt.Sprint(past+1))
	require.NoError(t, err)
	why, err := l.q.Admin().Why(l.ctx, found.ID, eu)
	require.NoError(t, err)
	require.Equal(t, layer.CauseExcluded, why.Reasons[0].Cause)
	require.Equal(t, "US", why.Reasons[0].Where["region"])
	l.sound("lanes")
	for _, c := range claims {
		require.NoError(t, l.q.Ack(l.ctx, c))
	}
	require.NotNil(t, l.claimBy(eu, 1), "the lane was found again")
	require.Nil(t, l.claimBy(layer.Template{"region": "US"}, 1), "the lane is empty")
}

// TestCheckFindsClaimsThatMeet (lanes): of many claims of a group, Check finds the two that may have a message in
// common, and no two if there are none.
func TestCheckFindsClaimsThatMeet(t *testing.T) {
	const lanes = 60
	l := newLaned(t, "*; state; state,region", nil)
	l.crowdOfLanes(lanes, stateNumber)
	l.sendEach(lanes, lanes+2, func(int) layer.Template { return layer.Template{"state": "both", "region": "EU"} })
	violations := func() []layer.Violation {
		report, err := l.q.Admin().Check(l.ctx, layer.CheckOptions{})
		require.NoError(t, err)
		require.GreaterOrEqual(t, report.Held, int64(lanes))
		return report.Violations
	}
	lane := kv.PrefixRange(append(slices.Clone(testPrefix), tuple.Tuple{"lanes", "lock", "A"}.Pack()...))
	others := make(map[string]bool)
	for _, row := range l.rows(lane) {
		others[string(row.Key)] = true
	}
	first := l.claimBy(layer.Template{"state": "both"}, 1)
	require.NotNil(t, first)
	locks := slices.DeleteFunc(l.rows(lane), func(row kv.KV) bool { return others[string(row.Key)] })
	require.Len(t, locks, 1)
	require.NoError(t, l.q.Nack(l.ctx, first, layer.NackOptions{Release: true}))
	require.NotNil(t, l.claimBy(layer.Template{"state": "both", "region": "EU"}, 1))
	require.Empty(t, violations())

	l.write(func(tx kv.Tx) { tx.Set(locks[0].Key, locks[0].Value) })
	var found []layer.Violation
	for _, v := range violations() {
		if v.Rule == "claims-disjoint" {
			found = append(found, v)
		}
	}
	require.Len(t, found, 1)
	require.Contains(t, found[0].Detail, "both")
	require.Contains(t, found[0].Detail, "EU")
	l.write(func(tx kv.Tx) { tx.Clear(locks[0].Key) })
}

// TestPauseEndsWithItsMark (lanes, G2): a pause with Force of many claims takes several transactions. If another
// operator resumes the group between two of them, the pause returns ErrChanged. It does not pause the group again, and
// ends no claim that a handle got after the resume.
func TestPauseEndsWithItsMark(t *testing.T) {
	const many = 350
	for _, again := range []bool{false, true} {
		t.Run(fmt.Sprintf("paused again %v", again), func(t *testing.T) {
			l := newLaned(t, "state; region", nil)
			claims := l.crowdOfLanes(many, stateNumber)
			a := l.q.Admin()
			var late *layer.Claim
			db := &beforeCommit{DB: l.raw, run: func() {
				_, err := a.ResumeGroup(l.ctx, "A", layer.ResumeOptions{})
				require.NoError(t, err)
				l.sendEach(many, many+1, func(int) layer.Template { return layer.Template{"state": "zz"} })
				late = l.claimBy(layer.Template{"state": "zz"}, 1)
				require.NotNil(t, late)
				if again {
					_, err = a.PauseGroup(l.ctx, "A", layer.PauseOptions{By: "another"})
					require.NoError(t, err)
				}
			}}
			q, err := layer.Open(l.ctx, db, testPrefix, "lanes", l.options(20))
			require.NoError(t, err)
			db.skip.Store(1)
			db.left.Store(1)
			_, err = q.Admin().PauseGroup(l.ctx, "A", layer.PauseOptions{Force: true, By: "ann"})
			require.ErrorIs(t, err, layer.ErrChanged)
			require.NoError(t, l.q.Ack(l.ctx, late))
			lost := 0
			for _, claim := range claims {
				if err := l.q.Ack(l.ctx, claim); err != nil {
					require.ErrorIs(t, err, layer.ErrClaimLost)
					lost++
				}
			}
			require.Equal(t, 100, lost, "the claims that the first transaction has ended")
			m, err := a.ResumeGroup(l.ctx, "A", layer.ResumeOptions{})
			if again {
				require.NoError(t, err)
				require.Equal(t, "another", m.By)
			} else {
				require.ErrorIs(t, err, layer.ErrNotPaused)
			}
			require.NoError(t, q.Close(l.ctx))
		})
	}
}

// TestResumeLeavesALaterPause (lanes, G5): a resume of many halted lanes takes several transactions. If another
// operator pauses the group between two of them, the lanes are resumed, and the group stays paused.
func TestResumeLeavesALaterPause(t *testing.T) {
	const many = 250
	l := newLaned(t, "state; region", func(c *layer.Config) { c.OnFailure = layer.HaltGroup })
	for _, claim := range l.crowdOfLanes(many, stateNumber) {
		require.NoError(t, l.q.Nack(l.ctx, claim, layer.NackOptions{Reject: "poison"}))
	}
	a := l.q.Admin()
	db := &beforeCommit{DB: l.raw, run: func() {
		_, err := a.PauseGroup(l.ctx, "A", layer.PauseOptions{By: "another"})
		require.NoError(t, err)
	}}
	q, err := layer.Open(l.ctx, db, testPrefix, "lanes", l.options(20))
	require.NoError(t, err)
	db.skip.Store(1)
	db.left.Store(1)
	_, err = q.Admin().ResumeGroup(l.ctx, "A", layer.ResumeOptions{})
	require.NoError(t, err)
	require.LessOrEqual(t, db.left.Load(), int64(0), "it was met")
	m, err := a.ResumeGroup(l.ctx, "A", layer.ResumeOptions{})
	require.NoError(t, err)
	require.Equal(t, "another", m.By)
	for i := range many {
		require.NotNil(t, l.claimBy(stateNumber(i), 1), "lane %d", i)
	}
	require.NoError(t, q.Close(l.ctx))
}

// TestPauseReadsPastManyLocks (lanes, trap 12): a pause with Force looks for claims among the locks of a group. Most
// may be of lanes that are delayed. No transaction reads more than 1,000 of them: PauseGroup goes on in the next, and
// PauseGroupTx refuses.
func TestPauseReadsPastManyLocks(t *testing.T) {
	const delayed = 1400
	for _, unordered := range []bool{false, true} {
		t.Run(fmt.Sprintf("unordered %v", unordered), func(t *testing.T) {
			l := newLaned(t, "*; state; region", func(c *layer.Config) {
				if unordered {
					c.Facets, c.Views, c.Unordered = nil, "", true
				}
			})
			state := func(i int) layer.Template { return layer.Template{"state": fmt.Sprintf("s%04d", i)} }
			l.sendEach(0, delayed+1, state)
			var claims []*layer.Claim
			for len(claims) <= delayed {
				o := layer.ReceiveOptions{Unordered: unordered, Max: layer.MaxBatch}
				if !unordered {
					o.Where = state(len(claims))
				}
				more, err := l.q.Receive(l.ctx, o)
				require.NoError(t, err)
				require.NotEmpty(t, more)
				claims = append(claims, more...)
			}
			for _, claim := range claims[:delayed] {
				require.NoError(t, l.q.Nack(l.ctx, claim, layer.NackOptions{Delay: time.Hour}))
			}
			db := &rowsOfEach{DB: l.raw}
			q, err := layer.Open(l.ctx, db, testPrefix, "lanes", l.options(20))
			require.NoError(t, err)
			forced := layer.PauseOptions{Force: true}

			err = q.Once(l.ctx, func(tx kv.Tx) error {
				_, err := q.Admin().PauseGroupTx(l.ctx, tx, "A", forced)
				return err
			})
			var limit *layer.LimitError
			require.ErrorAs(t, err, &limit)
			require.NoError(t, q.Once(l.ctx, func(tx kv.Tx) error {
				_, err := q.Admin().PauseGroupTx(l.ctx, tx, "A", layer.PauseOptions{})
				return err
			}))

			db.most()
			_, err = q.Admin().PauseGroup(l.ctx, "A", forced)
			require.NoError(t, err)
			require.LessOrEqual(t, db.most(), int64(1300), "rows of a transaction")
			require.ErrorIs(t, l.q.Ack(l.ctx, claims[delayed]), layer.ErrClaimLost)
			require.NoError(t, q.Close(l.ctx))
		})
	}
}

// TestUnreadableItemOfManyLanes (lanes, trap 12): an item that cannot be read does not say its lanes, so a call that
// removes the item must find the claims that have it among all locks of the group. With more than 1,000 locks the call
// says so. A purge leaves such an item, and removes the others.
func TestUnreadableItemOfManyLanes(t *testing.T) {
	const lanes = 1200
	l := newLaned(t, "*; state", nil)
	claims := l.crowdOfLanes(lanes, stateNumber)
	l.sendEach(lanes, lanes+2, func(int) layer.Template { return layer.Template{"state": "free"} })
	find := func(i int) layer.ID {
		found, err := l.q.Find(l.ctx, "A", fmt.Sprint(i))
		require.NoError(t, err)
		return found.ID
	}
	held, free := find(0), find(lanes)
	l.spoilItem(held)
	l.spoilItem(free)
	db := &rowsOfEach{DB: l.raw}
	q, err := layer.Open(l.ctx, db, testPrefix, "lanes", l.options(20))
	require.NoError(t, err)
	a := q.Admin()
	require.ErrorIs(t, a.Cancel(l.ctx, held), layer.ErrInFlight, "its claim is the first")
	var limit *layer.LimitError
	require.ErrorAs(t, a.Cancel(l.ctx, free), &limit)
	require.Equal(t, layer.LimitError{What: "locks and marks of the group", Unit: "rows", Got: 1001, Max: 1000}, *limit)
	report, err := a.Purge(l.ctx, layer.PurgeOptions{Group: layer.OnlyGroup("A")})
	require.NoError(t, err)
	require.Equal(t, layer.PurgeReport{Items: 1, Kept: lanes + 1}, report)
	require.LessOrEqual(t, db.most(), int64(1300))

	for _, c := range claims[1:401] {
		require.NoError(t, l.q.Ack(l.ctx, c))
	}
	require.NoError(t, a.Cancel(l.ctx, free))
	require.ErrorIs(t, a.Cancel(l.ctx, held), layer.ErrInFlight)
	_, err = a.PauseGroup(l.ctx, "A", layer.PauseOptions{Force: true})
	require.NoError(t, err)
	require.NoError(t, a.Cancel(l.ctx, held))
	require.LessOrEqual(t, db.most(), int64(1900), "the locks, and the first key of each lane")
	report, err = a.Purge(l.ctx, layer.PurgeOptions{Group: layer.OnlyGroup("A"), Force: true})
	require.NoError(t, err)
	require.Equal(t, layer.PurgeReport{Items: lanes - 401}, report, "the keys in lanes went with the items")
	require.LessOrEqual(t, db.most(), int64(1300))
	require.NoError(t, q.Close(l.ctx))
	l.sound("lanes")
}

// TestUnreadableItemLeavesItsLanes (I1): a message cannot be read, and an operator removes it. Its keys in lanes go
// with it, so that receives by template find the messages behind it.
func TestUnreadableItemLeavesItsLanes(t *testing.T) {
	for name, remove := range map[string]func(a layer.Admin, id layer.ID) error{
		"cancel": func(a layer.Admin, id layer.ID) error { return a.Cancel(t.Context(), id) },
		"skip": func(a layer.Admin, id layer.ID) error {
			_, err := a.Skip(t.Context(), id.Group, layer.SkipOptions{Head: id})
			return err
		},
	} {
		for _, views := range []string{"*; state; state, region", "state"} {
			t.Run(name+" "+views, func(t *testing.T) {
				l := newLaned(t, views, nil)
				l.sendStates("NEW", "PAID", "NEW")
				items, err := l.q.Peek(l.ctx, "A", 3, nil)
				require.NoError(t, err)
				id := items[0].ID
				l.spoilItem(id)
				require.NoError(t, remove(l.q.Admin(), id))
				claim := l.claimBy(isNew, 1)
				require.Equal(t, items[2].ID, claim.Items[0].ID)
				require.NoError(t, l.q.Ack(l.ctx, claim))
				dead, ok := layer.Section(testPrefix, "lanes", "dead")
				require.True(t, ok)
				l.write(func(tx kv.Tx) { tx.ClearRange(dead) }) // a dead letter that cannot be read
				l.check()
			})
		}
	}
}

// TestPurgeOfUnreadableItems (I1): a purge without force removes messages that cannot be read, and their keys in lanes.
// Receives by template go on to find the messages that come later.
func TestPurgeOfUnreadableItems(t *testing.T) {
	for _, views := range []string{"*; state; state, region", "state"} {
		l := newLaned(t, views, nil)
		l.sendStates("NEW", "PAID", "NEW", "NEW")
		items, err := l.q.Peek(l.ctx, "A", 4, nil)
		require.NoError(t, err)
		for _, item := range items[:3] {
			l.spoilItem(item.ID)
		}
		report, err := l.q.Admin().Purge(l.ctx, layer.PurgeOptions{Group: layer.OnlyGroup("A")})
		require.NoError(t, err)
		require.Equal(t, layer.PurgeReport{Items: 4}, report)
		l.check()
		l.sendStates("NEW")
		require.NoError(t, l.q.Ack(l.ctx, l.claimBy(isNew, 1)))
		l.check()
	}
}

// TestUnreadableItemAmongTheMostLanes (contract): an operator removes an unreadable message from a group of 1,000
// lanes. With one lane more the call is refused, and nothing is changed.
func TestUnreadableItemAmongTheMostLanes(t *testing.T) {
	l := newLaned(t, "state", nil)
	l.sendEach(0, 1001, stateNumber)
	items, err := l.q.Peek(l.ctx, "A", 2, nil)
	require.NoError(t, err)
	id := items[0].ID
	l.spoilItem(id)
	var limit *layer.LimitError
	require.ErrorAs(t, l.q.Admin().Cancel(l.ctx, id), &limit)
	require.Equal(t, layer.LimitError{What: "lanes of the group", Unit: "lanes", Got: 1001, Max: 1000}, *limit)
	require.NoError(t, l.q.Admin().Cancel(l.ctx, items[1].ID))
	require.NoError(t, l.q.Admin().Cancel(l.ctx, id))
	l.check()
}

// spoilItem makes an item of the queue lanes unreadable.
func (l *env) spoilItem(id layer.ID) {
	l.t.Helper()
	item := append(slices.Clone(testPrefix), tuple.Tuple{"lanes", "item", id.Group, id.Index, id.Random}.Pack()...)
	require.Len(l.t, l.rows(kv.SingleKey(item)), 1)
	l.write(func(tx kv.Tx) { tx.Set(item, []byte("unreadable")) })
}
