package layer

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/internal/seeds"
	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	recording "fdbfifo/kv/record"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer/internal/rec"
)

var blockedSeed = flag.Uint64("layer.blockedseed", 0, "seed of TestBlockedKnowsAllGroups; 0 = of SEED")

// inABubble runs a test on a queue in virtual time, whose versions are times too, and then holds the queue to its
// invariants.
func inABubble(t *testing.T, config Config, test func(t *testing.T, q *Queue, r *recording.Recorder)) {
	synctest.Test(t, func(t *testing.T) {
		r := recording.Wrap(embedded.OpenMemory(embedded.Options{}))
		q, err := Create(t.Context(), r, nil, "q", Options{Owner: "w", Config: config})
		require.NoError(t, err)
		test(t, q, r)
		report, err := q.Admin().Check(t.Context(), CheckOptions{})
		require.NoError(t, err)
		require.Empty(t, report.Violations)
		require.NoError(t, q.Close(t.Context()))
		require.NoError(t, r.Close())
	})
}

func send(t *testing.T, q *Queue, groups ...string) {
	t.Helper()
	for _, g := range groups {
		_, err := q.Enqueue(t.Context(), Message{Group: g, Body: []byte("x")})
		require.NoError(t, err)
	}
}

func claimOf(t *testing.T, q *Queue, group string, lease time.Duration) *Claim {
	t.Helper()
	claims, err := q.Receive(t.Context(), ReceiveOptions{Group: &group, Lease: lease})
	require.NoError(t, err)
	require.Len(t, claims, 1)
	return claims[0]
}

// blockedScenarios have, for each cause, how a group comes to be blocked, and what unblocks the group.
var blockedScenarios = map[Cause]struct {
	begin  func(t *testing.T, q *Queue)
	remedy func(t *testing.T, q *Queue)
}{
	CauseGroupPaused: {func(t *testing.T, q *Queue) {
		_, err := q.Admin().PauseGroup(t.Context(), "A", PauseOptions{Reason: "looking"})
		require.NoError(t, err)
	}, resumeA},
	CauseGroupHalted: {func(t *testing.T, q *Queue) {
		_, _, err := q.Admin().Configure(t.Context(), func(c *Config) { c.OnFailure = HaltGroup })
		require.NoError(t, err)
		send(t, q, "A")
		require.NoError(t, q.Nack(t.Context(), claimOf(t, q, "A", time.Minute), NackOptions{Reject: "no use"}))
	}, resumeA},
	CauseDelayed: {func(t *testing.T, q *Queue) {
		send(t, q, "A")
		c := claimOf(t, q, "A", time.Minute)
		require.NoError(t, q.Nack(t.Context(), c, NackOptions{Delay: time.Hour, Err: errors.New("the bank")}))
	}, func(t *testing.T, q *Queue) {
		require.NoError(t, q.Admin().RetryNow(t.Context(), "A", RetryOptions{}))
		require.NoError(t, q.Ack(t.Context(), claimOf(t, q, "A", time.Minute)))
	}},
	CauseHeadFailed: {func(t *testing.T, q *Queue) {
		_, _, err := q.Admin().Configure(t.Context(), func(c *Config) { c.Retry = RetryPolicy{Kind: RetryAtOnce} })
		require.NoError(t, err)
		send(t, q, "A")
		c := claimOf(t, q, "A", time.Minute)
		require.NoError(t, q.Nack(t.Context(), c, NackOptions{Err: errors.New("the bank")}))
	}, func(t *testing.T, q *Queue) { require.NoError(t, q.Ack(t.Context(), claimOf(t, q, "A", time.Minute))) }},
	CauseGroupHeld: {func(t *testing.T, q *Queue) {
		send(t, q, "A")
		claimOf(t, q, "A", 2*time.Hour)
		time.Sleep(time.Hour)
	}, func(t *testing.T, q *Queue) {
		_, err := q.Admin().ForceRelease(t.Context(), "A", ForceReleaseOptions{})
		require.NoError(t, err)
		require.NoError(t, q.Ack(t.Context(), claimOf(t, q, "A", time.Minute)))
	}},
	CauseLeaseExpired: {func(t *testing.T, q *Queue) {
		send(t, q, "A")
		claimOf(t, q, "A", time.Minute)
		time.Sleep(time.Hour)
	}, func(t *testing.T, q *Queue) { require.NoError(t, q.Ack(t.Context(), claimOf(t, q, "A", time.Minute))) }},
	CauseNobodyWaits: {func(t *testing.T, q *Queue) {
		send(t, q, "A")
		time.Sleep(time.Hour)
	}, func(t *testing.T, q *Queue) { require.NoError(t, q.Ack(t.Context(), claimOf(t, q, "A", time.Minute))) }},
	CauseTurn: {func(t *testing.T, q *Queue) {
		value := tuple.Tuple{"w", int64(1), time.Now().Add(time.Hour + requestLife).UnixMilli()}.Pack()
		put(t, q, q.keys.request(1, uuid.UUID{1}), value) // of a handle whose process has just died
		send(t, q, "A")
		time.Sleep(time.Hour)
	}, func(t *testing.T, q *Queue) {
		put(t, q, q.keys.request(1, uuid.UUID{1}), nil)
		require.NoError(t, q.Ack(t.Context(), claimOf(t, q, "A", time.Minute)))
	}},
	CauseCorrupt: {func(t *testing.T, q *Queue) {
		_, err := q.Admin().PauseGroup(t.Context(), "A", PauseOptions{})
		require.NoError(t, err)
		_, err = kv.Run(t.Context(), q.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			tx.Set(q.keys.lock("A"), []byte("?"))
			return nil
		})
		require.NoError(t, err)
	}, func(t *testing.T, q *Queue) {
		_, err := q.Admin().Purge(t.Context(), PurgeOptions{Group: OnlyGroup("A"), Force: true})
		require.NoError(t, err)
		_, err = kv.Run(t.Context(), q.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			tx.Clear(q.keys.lock("A"))
			tx.Clear(q.keys.mark("A"))
			return nil
		})
		require.NoError(t, err)
	}},
}

func resumeA(t *testing.T, q *Queue) {
	_, err := q.Admin().ResumeGroup(t.Context(), "A", ResumeOptions{})
	require.NoError(t, err)
}

// TestBlockedNamesTheCause: for each cause a group that is blocked for that cause is listed with the cause, is found by
// the cause alone, and is gone after the remedy; groups that go on are not listed (Contract).
func TestBlockedNamesTheCause(t *testing.T) {
	for _, cause := range BlockedCauses() {
		t.Run(string(cause), func(t *testing.T) {
			inABubble(t, Config{}, func(t *testing.T, q *Queue, _ *recording.Recorder) {
				s, ok := blockedScenarios[cause]
				require.True(t, ok, "a scenario for each cause")
				s.begin(t, q)
				for _, o := range []BlockedOptions{{}, {Causes: []Cause{cause}}} {
					page, err := q.Admin().Blocked(t.Context(), o)
					require.NoError(t, err)
					require.Len(t, page.Groups, 1)
					g := page.Groups[0]
					require.Equal(t, "A", g.Group)
					require.Equal(t, cause, g.Cause)
					require.Equal(t, cause, g.Reasons[0].Cause)
					require.NotEmpty(t, g.Reasons[0].String())
					require.False(t, page.Sampled)
					require.Nil(t, page.Next)
					if cause != CauseCorrupt {
						require.EqualValues(t, 1, page.Summary[cause])
						require.False(t, g.Since.After(time.Now()))
					}
				}
				for _, other := range BlockedCauses() {
					if other == cause {
						continue
					}
					page, err := q.Admin().Blocked(t.Context(), BlockedOptions{Causes: []Cause{other}})
					require.NoError(t, err)
					require.Empty(t, page.Groups, "%s", other)
				}
				s.remedy(t, q)
				page, err := q.Admin().Blocked(t.Context(), BlockedOptions{})
				require.NoError(t, err)
				for _, g := range page.Groups {
					require.NotEqual(t, cause, g.Cause)
				}
			})
		})
	}
}

// blockedByOther have groups whose keys say another cause than the groups themselves, and the groups' causes.
var blockedByOther = map[string]struct {
	config Config
	begin  func(t *testing.T, q *Queue)
	cause  Cause
}{
	"unreadable lock behind an expired lease": {Config{}, func(t *testing.T, q *Queue) {
		send(t, q, "A")
		claimOf(t, q, "A", time.Minute)
		put(t, q, q.keys.lock("A"), []byte("?"))
	}, CauseCorrupt},
	"unreadable lock of a claim that lasts": {Config{}, func(t *testing.T, q *Queue) {
		send(t, q, "A")
		claimOf(t, q, "A", 3*time.Hour)
		put(t, q, q.keys.lock("A"), []byte("?"))
	}, CauseCorrupt},
	"expired lease of a single item": {Config{LeasePerItem: true}, func(t *testing.T, q *Queue) {
		send(t, q, "A")
		receive(t, q, ReceiveOptions{Lease: time.Minute})
	}, CauseNobodyWaits},
	"hint whose number is not known": {Config{}, func(t *testing.T, q *Queue) {
		id := sendOne(t, q, "A")
		put(t, q, q.keys.readyAt(q.keys.shardsOf("A")[0], id.Index, "A"), rec.PackInt(unread))
	}, CauseNobodyWaits},
	"stale hint of a group that is held": {Config{}, func(t *testing.T, q *Queue) {
		id := sendOne(t, q, "A")
		claimOf(t, q, "A", 3*time.Hour)
		put(t, q, q.keys.readyAt(q.keys.shardsOf("A")[0], id.Index, "A"), rec.PackInt(unread))
	}, CauseGroupHeld},
}

func sendOne(t *testing.T, q *Queue, group string) ID {
	t.Helper()
	sent, err := q.Enqueue(t.Context(), Message{Group: group})
	require.NoError(t, err)
	return sent[0].ID
}

// TestBlockedByCauseIsAPartOfTheList (Contract): a list of one cause has the groups which the list of all causes shows
// with it, also if the key that leads to such a group says another cause.
func TestBlockedByCauseIsAPartOfTheList(t *testing.T) {
	for name, scenario := range blockedByOther {
		t.Run(name, func(t *testing.T) {
			inABubble(t, scenario.config, func(t *testing.T, q *Queue, _ *recording.Recorder) {
				scenario.begin(t, q)
				time.Sleep(time.Hour)
				page, err := q.Admin().Blocked(t.Context(), BlockedOptions{})
				require.NoError(t, err)
				require.Len(t, page.Groups, 1)
				require.Equal(t, scenario.cause, page.Groups[0].Cause)
				requireBlockedByCause(t, q)
				_, err = q.Admin().Purge(t.Context(), PurgeOptions{Group: OnlyGroup("A"), Force: true})
				require.NoError(t, err)
				put(t, q, q.keys.lock("A"), nil)
			})
		})
	}
}

// requireBlockedByCause holds the list of each cause to the list of all.
func requireBlockedByCause(t *testing.T, q *Queue) {
	t.Helper()
	all, err := q.Admin().Blocked(t.Context(), BlockedOptions{Limit: MaxBlocked})
	require.NoError(t, err)
	for _, cause := range BlockedCauses() {
		var want, got []string
		for _, g := range all.Groups {
			if g.Cause == cause {
				want = append(want, g.Group)
			}
		}
		page, err := q.Admin().Blocked(t.Context(), BlockedOptions{Causes: []Cause{cause}, Limit: MaxBlocked})
		require.NoError(t, err)
		for _, g := range page.Groups {
			require.Equal(t, cause, g.Cause)
			got = append(got, g.Group)
		}
		require.ElementsMatch(t, want, got, "%s", cause)
		require.Equal(t, all.Summary, page.Summary)
	}
}

// TestBlockedNamesWhatNoReceiveAwaits: a ready group counts as awaited if the receives of a handle wait for any group,
// for this group, or by a template that an item of the list may agree with. Receives for other groups do not count.
func TestBlockedNamesWhatNoReceiveAwaits(t *testing.T) {
	fresh, paid, eu := Template{"state": "NEW"}, Template{"state": "PAID"}, Template{"region": "EU"}
	waits, none := CauseTurn, CauseNobodyWaits
	for name, c := range map[string]struct {
		where Template // of the list
		want  func(q *Queue) []byte
		a, b  Cause // of the two ready groups
	}{
		"any group":           {nil, func(q *Queue) []byte { return q.keys.request(1, uuid.UUID{1}) }, waits, waits},
		"any group, by lane":  {fresh, func(q *Queue) []byte { return q.keys.request(1, uuid.UUID{1}) }, waits, waits},
		"group":               {nil, namedRequest("A", nil), waits, none},
		"group, by lane":      {fresh, namedRequest("A", nil), waits, none},
		"lane":                {nil, namedRequest("A", fresh), waits, none},
		"this lane":           {fresh, namedRequest("A", fresh), waits, none},
		"lane that meets":     {fresh, namedRequest("A", eu), waits, none},
		"other lane":          {fresh, namedRequest("A", paid), none, none},
		"template":            {nil, templateRequest(fresh), waits, waits},
		"this template":       {fresh, templateRequest(fresh), waits, waits},
		"template that meets": {fresh, templateRequest(eu), waits, waits},
		"other template":      {fresh, templateRequest(paid), none, none},
		"none":                {nil, nil, none, none},
	} {
		t.Run(name, func(t *testing.T) {
			config := Config{Facets: []string{"state", "region"}, Views: "*; state; region"}
			inABubble(t, config, func(t *testing.T, q *Queue, _ *recording.Recorder) {
				for _, group := range []string{"A", "B"} {
					m := Message{Group: group, Headers: map[string]string{"state": "NEW", "region": "EU"}}
					_, err := q.Enqueue(t.Context(), m)
					require.NoError(t, err)
				}
				if c.want != nil {
					key, deadline := c.want(q), time.Now().Add(time.Hour+requestLife).UnixMilli()
					put(t, q, key, tuple.Tuple{"w", int64(1), deadline}.Pack())
					defer put(t, q, key, nil)
				}
				time.Sleep(time.Hour)
				page, err := q.Admin().Blocked(t.Context(), BlockedOptions{Where: c.where})
				require.NoError(t, err)
				found := map[string]Cause{}
				for _, g := range page.Groups {
					found[g.Group] = g.Cause
					require.Len(t, g.Reasons, 1)
					require.Equal(t, g.Cause, g.Reasons[0].Cause)
				}
				require.Equal(t, map[string]Cause{"A": c.a, "B": c.b}, found)
				require.EqualValues(t, 2, page.Summary[waits]+page.Summary[none])
			})
		})
	}
}

// namedRequest returns the key of a request for the lane of a group.
func namedRequest(group string, where Template) func(q *Queue) []byte {
	return func(q *Queue) []byte {
		lane, _ := q.keys.laneAt(group, where)
		return q.keys.named(lane, uuid.UUID{1})
	}
}

// templateRequest returns the key of a request by a template.
func templateRequest(where Template) func(q *Queue) []byte {
	return func(q *Queue) []byte {
		packed, _ := q.keys.where(where)
		return q.keys.byLane(packed, 1, uuid.UUID{1})
	}
}

// put sets a key to a value, or clears the key if the value is nil.
func put(t *testing.T, q *Queue, key, value []byte) {
	t.Helper()
	_, err := kv.Run(t.Context(), q.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		if value == nil {
			tx.Clear(key)
		} else {
			tx.Set(key, value)
		}
		return nil
	})
	require.NoError(t, err)
}

// TestBlockedReadsRequestsUpToABound: Blocked counts the handles of 1,000 requests of each kind. With more, a group
// whose request was not read does not count as one for which no receive waits, and the page says that it is a sample.
func TestBlockedReadsRequestsUpToABound(t *testing.T) {
	inABubble(t, Config{}, func(t *testing.T, q *Queue, _ *recording.Recorder) {
		send(t, q, "g0", "zz")
		value := tuple.Tuple{"w", int64(1), time.Now().Add(time.Hour + requestLife).UnixMilli()}.Pack()
		for i := range whyRows - 1 {
			put(t, q, q.keys.named(fmt.Sprint("g", i), uuid.UUID{1}), value)
		}
		time.Sleep(time.Hour)
		expect := func(sampled bool, waiting int64, causes map[string]Cause) {
			t.Helper()
			page, err := q.Admin().Blocked(t.Context(), BlockedOptions{})
			require.NoError(t, err)
			require.Equal(t, sampled, page.Sampled)
			require.Equal(t, waiting, page.Waiting)
			found := map[string]Cause{}
			for _, g := range page.Groups {
				found[g.Group] = g.Cause
			}
			require.Equal(t, causes, found)
		}
		expect(false, 1, map[string]Cause{"g0": CauseTurn, "zz": CauseNobodyWaits})
		put(t, q, q.keys.request(1, uuid.UUID{2}), value)
		put(t, q, q.keys.request(1, uuid.UUID{3}), value)
		expect(false, 3, map[string]Cause{"g0": CauseTurn, "zz": CauseTurn})
		put(t, q, q.keys.request(1, uuid.UUID{2}), nil)
		put(t, q, q.keys.request(1, uuid.UUID{3}), nil)
		put(t, q, q.keys.named("x", uuid.UUID{1}), value)
		put(t, q, q.keys.named("zz", uuid.UUID{1}), value)
		expect(true, 1, map[string]Cause{"g0": CauseTurn, "zz": CauseTurn})
		_, err := kv.Run(t.Context(), q.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			tx.ClearRange(q.keys.requests())
			return nil
		})
		require.NoError(t, err)
	})
}

// TestBlockedReadsMarksUpToABound: with more marks than Blocked reads, the page says that it is a sample, also if the
// marks are of fewer groups.
func TestBlockedReadsMarksUpToABound(t *testing.T) {
	config := Config{Facets: []string{"state"}, Views: "*; state"}
	inABubble(t, config, func(t *testing.T, q *Queue, _ *recording.Recorder) {
		_, err := q.Admin().PauseGroup(t.Context(), "A", PauseOptions{})
		require.NoError(t, err)
		sampled := func() bool {
			page, err := q.Admin().Blocked(t.Context(), BlockedOptions{})
			require.NoError(t, err)
			return page.Sampled
		}
		require.False(t, sampled())
		var marks [][]byte
		for i := range statsMarks {
			lane, err := q.keys.laneAt(fmt.Sprint("g", i/2), Template{"state": fmt.Sprint(i % 2)})
			require.NoError(t, err)
			marks = append(marks, q.keys.mark(lane))
		}
		change := func(do func(tx kv.Tx, mark []byte)) {
			_, err := kv.Run(t.Context(), q.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
				for _, mark := range marks {
					do(tx, mark)
				}
				return nil
			})
			require.NoError(t, err)
		}
		change(func(tx kv.Tx, mark []byte) { tx.Set(mark, nil) })
		require.True(t, sampled())
		change(func(tx kv.Tx, mark []byte) { tx.Clear(mark) })
	})
}

// TestBlockedSaysSinceWhen: a claim, a lease that has run out, a failure and a head are as old as they are.
func TestBlockedSaysSinceWhen(t *testing.T) {
	inABubble(t, Config{}, func(t *testing.T, q *Queue, _ *recording.Recorder) {
		send(t, q, "failed", "held", "expired", "ready")
		begun := time.Now()
		require.NoError(t, q.Nack(t.Context(), claimOf(t, q, "failed", time.Minute), NackOptions{Delay: 3 * time.Hour}))
		claimOf(t, q, "held", 3*time.Hour)
		claimOf(t, q, "expired", time.Minute)
		time.Sleep(2 * time.Hour)
		page, err := q.Admin().Blocked(t.Context(), BlockedOptions{})
		require.NoError(t, err)
		require.Len(t, page.Groups, 4)
		for i, since := range []time.Duration{0, 0, time.Minute, 0} {
			require.WithinDuration(t, begun.Add(since), page.Groups[i].Since, time.Second, page.Groups[i].Group)
		}
		stats, err := q.Stats(t.Context(), StatsOptions{})
		require.NoError(t, err)
		require.InDelta(t, 2*time.Hour, stats.LongestHold, float64(time.Second))
		require.EqualValues(t, 1, stats.FailingGroups)
		require.Zero(t, stats.WaitingHandles)
	})
}

// TestBlockedPagesAndOptions: pages list every group once. Blocked refuses an unknown cause, and options out of bounds.
func TestBlockedPagesAndOptions(t *testing.T) {
	inABubble(t, Config{}, func(t *testing.T, q *Queue, _ *recording.Recorder) {
		for i := range 25 {
			_, err := q.Admin().PauseGroup(t.Context(), fmt.Sprint("p", i), PauseOptions{})
			require.NoError(t, err)
			send(t, q, fmt.Sprint("r", i))
		}
		time.Sleep(time.Hour)
		seen := map[string]int{}
		o := BlockedOptions{Limit: 7}
		for pages := 0; ; pages++ {
			require.Less(t, pages, 10)
			page, err := q.Admin().Blocked(t.Context(), o)
			require.NoError(t, err)
			for _, g := range page.Groups {
				seen[g.Group]++
			}
			require.EqualValues(t, 25, page.Summary[CauseGroupPaused])
			require.EqualValues(t, 25, page.Summary[CauseNobodyWaits])
			if o.After = page.Next; o.After == nil {
				break
			}
		}
		require.Len(t, seen, 50)
		for g, n := range seen {
			require.Equal(t, 1, n, g)
		}
		for _, bad := range []BlockedOptions{
			{Limit: -1}, {Limit: MaxBlocked + 1}, {HeldFor: -1}, {ReadyFor: -1}, {Causes: []Cause{CauseGone}},
		} {
			_, err := q.Admin().Blocked(t.Context(), bad)
			require.True(t, errors.Is(err, ErrLimit) || errors.Is(err, ErrOptions), "%v", err)
		}
	})
}

// TestBlockedKnowsAllGroups: after random work, Blocked lists what a walk over all groups says is blocked (Contract).
func TestBlockedKnowsAllGroups(t *testing.T) {
	seed := *blockedSeed
	if seed == 0 {
		seed = seeds.Of(t.Name())
	}
	t.Logf("replay: go test ./layer -run '^%s$' -layer.blockedseed %d", t.Name(), seed)
	random := rand.New(rand.NewPCG(seed, 0))
	config := Config{OnFailure: HaltGroup, MaxAttempts: 3, Shards: 1 + random.IntN(5), Lease: time.Minute}
	inABubble(t, config, func(t *testing.T, q *Queue, _ *recording.Recorder) {
		m := blockedModel{t: t, q: q, began: map[string]time.Time{}}
		for range 300 {
			m.step(random)
			time.Sleep(time.Duration(random.IntN(20_000)) * time.Millisecond)
		}
		m.compare()
	})
}

// blockedModel does random work on 12 groups, and remembers when each claim began.
type blockedModel struct {
	t      *testing.T
	q      *Queue
	claims []*Claim
	began  map[string]time.Time
}

func (m *blockedModel) step(random *rand.Rand) {
	ctx, group := m.t.Context(), fmt.Sprint("g", random.IntN(12))
	switch random.IntN(10) {
	case 0, 1, 2:
		send(m.t, m.q, group)
	case 3, 4, 5:
		lease := time.Duration(1+random.IntN(60)) * time.Minute
		claims, err := m.q.Receive(ctx, ReceiveOptions{MaxGroups: 1, Lease: lease})
		require.NoError(m.t, err)
		for _, c := range claims {
			m.began[c.Group] = time.Now()
		}
		m.claims = append(m.claims, claims...)
	case 6, 7, 8:
		if len(m.claims) == 0 {
			return
		}
		c := m.claims[0]
		m.claims = m.claims[1:]
		var err error
		if random.IntN(2) == 0 {
			err = m.q.Ack(ctx, c)
		} else {
			delay := time.Duration(random.IntN(600)) * time.Second
			err = m.q.Nack(ctx, c, NackOptions{Delay: delay, Err: errors.New("failed")})
		}
		require.True(m.t, err == nil || errors.Is(err, ErrClaimLost), "%v", err)
	default:
		if random.IntN(2) == 0 {
			_, err := m.q.Admin().PauseGroup(ctx, group, PauseOptions{})
			require.NoError(m.t, err)
			return
		}
		_, err := m.q.Admin().ResumeGroup(ctx, group, ResumeOptions{})
		require.True(m.t, err == nil || errors.Is(err, ErrNotPaused), "%v", err)
	}
}

// compare holds Blocked to what each group says of itself.
func (m *blockedModel) compare() {
	ctx := m.t.Context()
	requireBlockedByCause(m.t, m.q)
	page, err := m.q.Admin().Blocked(ctx, BlockedOptions{Limit: MaxBlocked})
	require.NoError(m.t, err)
	listed := map[string]Cause{}
	for _, g := range page.Groups {
		listed[g.Group] = g.Cause
	}
	for i := range 12 {
		group := fmt.Sprint("g", i)
		info, err := m.q.Admin().Group(ctx, group, nil)
		require.NoError(m.t, err)
		got, is := listed[group]
		held := time.Since(m.began[group])
		switch {
		case info.Mark != nil:
			require.Equal(m.t, info.Mark.cause(), got, group)
		case info.Status == Held && held > 10*time.Minute+time.Second:
			require.Equal(m.t, CauseGroupHeld, got, group)
		case info.Status == Held && held < 10*time.Minute-time.Second, info.Status == Empty:
			require.False(m.t, is, group)
		case info.Status == Expired && -info.Left >= time.Minute:
			require.Equal(m.t, CauseLeaseExpired, got, group)
		case info.Status == Expired:
			require.False(m.t, is, group)
		case info.Status == Delayed:
			require.Equal(m.t, CauseDelayed, got, group)
		case info.Status == Ready && info.Attempts == 0 && info.HeadAge < time.Minute-time.Second:
			require.False(m.t, is, group)
		case info.Status == Ready && info.Attempts == 0 && info.HeadAge > time.Minute+time.Second:
			require.Equal(m.t, CauseNobodyWaits, got, group)
		}
	}
}

// TestBlockedReadsABoundedNumber: a page of blocked groups reads no more of a deep queue than of a flat one, in one
// transaction, and says when it has not seen all (Contract).
func TestBlockedReadsABoundedNumber(t *testing.T) {
	reads := func(groups, depth int) (n int, sampled bool) {
		inABubble(t, Config{}, func(t *testing.T, q *Queue, r *recording.Recorder) {
			for d := range depth {
				for at := 0; at < groups; at += MaxBatch {
					batch := make([]Message, min(MaxBatch, groups-at))
					for i := range batch {
						batch[i] = Message{Group: fmt.Sprint(at + i), Body: []byte(fmt.Sprint(d))}
					}
					_, err := q.Enqueue(t.Context(), batch...)
					require.NoError(t, err)
				}
			}
			time.Sleep(time.Hour)
			r.Take()
			page, err := q.Admin().Blocked(t.Context(), BlockedOptions{})
			require.NoError(t, err)
			require.Len(t, page.Groups, DefaultBlocked)
			txs := r.Take()
			require.Len(t, txs, 1)
			n, sampled = len(txs[0].Ops), page.Sampled
		})
		return n, sampled
	}
	flat, sampled := reads(30, 1)
	require.False(t, sampled)
	wide, sampled := reads(3000, 1)
	require.True(t, sampled)
	require.Equal(t, flat, wide, "not one read more for a hundred times the groups")
	deep, _ := reads(30, 60)
	require.LessOrEqual(t, deep, flat+14*DefaultBlocked, "the count of messages grows with the logarithm of the depth")
}

// TestBlockedCountsATimerOnce (contract): a queue with a retroactive delay has more timers than Blocked reads. The look
// at wrong times, which are far ahead, does not count timers again that are due.
func TestBlockedCountsATimerOnce(t *testing.T) {
	inABubble(t, Config{RetroactiveDelay: true, Delay: time.Hour}, func(t *testing.T, q *Queue, _ *recording.Recorder) {
		sent := millis(time.Now())
		time.Sleep(3 * time.Hour)
		const timers = blockedTimers + 1000
		for first := 0; first < timers; first += 1000 {
			_, err := kv.Run(t.Context(), q.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
				for i := range 1000 {
					tx.Set(q.keys.timerAt(0, sinceBase+sent, fmt.Sprint(first+i)), rec.PackTimer(rec.KindHead, 1))
				}
				return nil
			})
			require.NoError(t, err)
		}
		page, err := q.Admin().Blocked(t.Context(), BlockedOptions{})
		require.NoError(t, err)
		require.True(t, page.Sampled)
		sum := int64(0)
		for _, n := range page.Summary {
			sum += n
		}
		require.EqualValues(t, blockedTimers, sum)
		_, err = kv.Run(t.Context(), q.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			tx.ClearRange(q.keys.section(nameTimer))
			return nil
		})
		require.NoError(t, err)
	})
}

// TestWhyGroup: why the head of a group is not delivered, also of a group that is empty (Contract).
func TestWhyGroup(t *testing.T) {
	inABubble(t, Config{}, func(t *testing.T, q *Queue, _ *recording.Recorder) {
		causes := func(group string) (all []Cause) {
			x, err := q.Admin().WhyGroup(t.Context(), group, nil)
			require.NoError(t, err)
			require.Equal(t, group, x.ID.Group)
			for _, r := range x.Reasons {
				require.NotEmpty(t, r.String())
				all = append(all, r.Cause)
			}
			return all
		}
		require.Equal(t, []Cause{CauseEmpty}, causes("A"))
		_, err := q.Admin().PauseGroup(t.Context(), "A", PauseOptions{})
		require.NoError(t, err)
		require.Equal(t, []Cause{CauseGroupPaused, CauseEmpty}, causes("A"))
		send(t, q, "A", "B")
		require.Equal(t, []Cause{CauseGroupPaused}, causes("A"))
		claimOf(t, q, "B", time.Minute)
		require.Equal(t, []Cause{CauseInFlight}, causes("B"))
		_, err = q.Admin().WhyGroup(t.Context(), "\xff", nil)
		require.ErrorIs(t, err, ErrInvalidUTF8)
	})
}

// stillClock is the clock of an engine whose versions advance only when the test says so. The versions of a folder
// stand still while no process has it open, and jump when one opens it.
type stillClock struct{ now *time.Time }

func (c stillClock) Now() time.Time { return *c.now }

func (c stillClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// TestBlockedBesideVersions: the times in the claim and in the head decide how long a group has been held or ready.
// This holds also if versions and times are unrelated.
func TestBlockedBesideVersions(t *testing.T) {
	const hour = time.Hour
	for _, c := range []struct {
		name           string
		later, version time.Duration // after the claim and the enqueue
		forLong        time.Duration
		listed         map[string]Cause
	}{
		{"versions stand still", hour, 0, hour / 2, map[string]Cause{"held": CauseGroupHeld}},
		{"versions jump", time.Second, hour, hour / 2, map[string]Cause{}},
		{"both go on", hour, hour, hour / 2, map[string]Cause{"held": CauseGroupHeld, "ready": CauseNobodyWaits}},
		{
			"within a millisecond", 0, time.Millisecond, 1,
			map[string]Cause{"held": CauseGroupHeld, "ready": CauseNobodyWaits},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			now := time.UnixMilli(1_700_000_000_000)
			version := now
			db := embedded.OpenMemory(embedded.Options{Clock: stillClock{&version}})
			q, err := Create(t.Context(), db, nil, "q", Options{Now: func() time.Time { return now }})
			require.NoError(t, err)
			send(t, q, "held", "ready")
			claimOf(t, q, "held", 2*hour)
			claimed := now
			now, version = now.Add(c.later), version.Add(c.version)
			page, err := q.Admin().Blocked(t.Context(), BlockedOptions{HeldFor: c.forLong, ReadyFor: c.forLong})
			require.NoError(t, err)
			listed := make(map[string]Cause)
			for _, g := range page.Groups {
				listed[g.Group] = g.Cause
				require.Equal(t, claimed, g.Since, g.Group)
			}
			require.Equal(t, c.listed, listed)
			report, err := q.Admin().Check(t.Context(), CheckOptions{})
			require.NoError(t, err)
			require.Empty(t, report.Violations)
			require.NoError(t, q.Close(t.Context()))
			require.NoError(t, db.Close())
		})
	}
}
