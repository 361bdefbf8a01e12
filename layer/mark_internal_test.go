package layer

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer/internal/rec"
)

// Marks are set and removed by several operations; the steps that these share are tested here, inside the package.
type markSteps struct {
	t   *testing.T
	ctx context.Context
	db  kv.DB
	q   *Queue
	now time.Time
}

func newMarkSteps(t *testing.T) *markSteps {
	s := &markSteps{t: t, ctx: t.Context(), now: time.UnixMilli(1_700_000_000_000)}
	s.db = embedded.OpenMemory(embedded.Options{Clock: stillClock{&s.now}})
	var err error
	s.q, err = Create(s.ctx, s.db, nil, "q", Options{
		Test: &TestOptions{Seed: 1}, Owner: "w", Now: func() time.Time { return s.now },
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		s.sound()
		require.NoError(t, s.db.Close())
	})
	return s
}

func (s *markSteps) sound() CheckReport {
	s.t.Helper()
	report, err := s.q.Admin().Check(context.Background(), CheckOptions{})
	require.NoError(s.t, err)
	require.Empty(s.t, report.Violations)
	return report
}

func (s *markSteps) enqueue(group string, bodies ...string) {
	s.t.Helper()
	for _, body := range bodies {
		_, err := s.q.Enqueue(s.ctx, Message{Group: group, Body: []byte(body)})
		require.NoError(s.t, err)
	}
}

func (s *markSteps) receive(max int) []*Claim {
	s.t.Helper()
	claims, err := s.q.Receive(s.ctx, ReceiveOptions{Max: max, Lease: 10 * time.Second})
	require.NoError(s.t, err)
	return claims
}

func (s *markSteps) state(group string) (Status, *Mark) {
	s.t.Helper()
	page, err := s.q.Admin().Groups(s.ctx, GroupsOptions{})
	require.NoError(s.t, err)
	for _, g := range page.Groups {
		if g.Group == group {
			return g.Status, g.Mark
		}
	}
	return "", nil
}

func (s *markSteps) within(fn func(w *txn) error) func(tx kv.Tx) error {
	return func(tx kv.Tx) error {
		w := s.q.txn(s.ctx, tx)
		if err := fn(w); err != nil {
			return err
		}
		return w.finish()
	}
}

func (s *markSteps) marking(group string, kind rec.MarkKind) func(tx kv.Tx) error {
	return s.within(func(w *txn) error {
		_, err := w.mark(group, rec.Mark{Kind: kind, By: "op", Reason: "why", SinceMS: w.nowMS})
		return err
	})
}

func (s *markSteps) unmarking(group string) func(tx kv.Tx) error {
	all := func(*rec.Mark) error { return nil }
	return s.within(func(w *txn) error { _, err := w.unmark(group, all); return err })
}

func (s *markSteps) run(fn func(tx kv.Tx) error) {
	s.t.Helper()
	_, err := kv.Run(s.ctx, s.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error { return fn(tx) })
	require.NoError(s.t, err)
}

func (s *markSteps) take() []Item {
	s.t.Helper()
	var items []Item
	require.NoError(s.t, s.q.Once(s.ctx, func(tx kv.Tx) (err error) {
		items, _, err = s.q.TakeTx(s.ctx, tx, 10, TakeOptions{})
		return err
	}))
	return items
}

// grantTo has the queue grant the oldest ready group to a request.
func (s *markSteps) grantTo(random uuid.UUID) {
	s.t.Helper()
	r := rec.Request{Owner: "x", Wants: 1, DeadlineMS: s.now.Add(time.Minute).UnixMilli()}
	s.run(func(tx kv.Tx) error { tx.Set(s.q.keys.request(1, random), r.Pack()); return nil })
	s.run(s.within(func(w *txn) error {
		requests, err := w.beginTurn("").requests.Wait(s.ctx)
		if err != nil {
			return err
		}
		return w.newClaimer("", nil).grantOthers(requests)
	}))
}

// TestMarkedGroupIsNobodys: receives and takes pass over a marked group, whether it was ready, empty, waiting for a
// retry or granted. Enqueues continue. Without the mark all its items are there, in order.
func TestMarkedGroupIsNobodys(t *testing.T) {
	random := uuid.MustParse("6ba7b810-9dad-41d1-80b4-00c04fd430c8")
	for name, setup := range map[string]func(s *markSteps){
		"ready": func(s *markSteps) { s.enqueue("A", "1") },
		"empty": func(*markSteps) {},
		"waits for a retry": func(s *markSteps) {
			s.enqueue("A", "1")
			require.NoError(s.t, s.q.Nack(s.ctx, s.receive(1)[0], NackOptions{Release: true, Delay: time.Minute}))
		},
		"granted": func(s *markSteps) {
			s.enqueue("A", "1")
			s.grantTo(random)
			state, _ := s.state("A")
			require.Equal(s.t, Granted, state)
		},
	} {
		for _, kind := range []rec.MarkKind{rec.MarkPause, rec.MarkHalt} {
			t.Run(name+", "+string(kind), func(t *testing.T) {
				s := newMarkSteps(t)
				setup(s)
				s.run(s.marking("A", kind))
				s.enqueue("A", "2", "3")
				s.enqueue("B", "b")
				claims := s.receive(10)
				require.Len(t, claims, 1, "the others run on")
				require.Equal(t, "B", claims[0].Group)
				require.NoError(t, s.q.Ack(s.ctx, claims[0]))
				s.now = s.now.Add(time.Hour)
				require.Empty(t, s.receive(10), "a mark has no end")
				require.Empty(t, s.take())
				group := "A"
				claims, err := s.q.Receive(s.ctx, ReceiveOptions{Group: &group})
				require.NoError(t, err)
				require.Empty(t, claims, "nor is it for who asks for it by name")

				want := Paused
				if kind == rec.MarkHalt {
					want = Halted
				}
				state, m := s.state("A")
				require.Equal(t, want, state)
				require.Equal(t, &Mark{Status: want, By: "op", Reason: "why", Since: time.UnixMilli(1_700_000_000_000)}, m)
				report := s.sound()
				require.EqualValues(t, 1, report.Paused+report.Halted)
				require.Zero(t, report.StaleTimers+report.Grants+report.Delayed, "what gave way has left nothing behind")
				stats, err := s.q.Stats(s.ctx, StatsOptions{})
				require.NoError(t, err)
				require.EqualValues(t, 1, stats.PausedGroups+stats.HaltedGroups)

				require.Empty(t, s.receive(10))
				s.run(s.unmarking("A"))
				s.run(s.unmarking("A")) // nothing is left to remove
				claims = s.receive(10)
				require.Len(t, claims, 1)
				var got []string
				for _, item := range claims[0].Items {
					got = append(got, string(item.Body))
				}
				if name == "empty" {
					require.Equal(t, []string{"2", "3"}, got)
				} else {
					require.Equal(t, []string{"1", "2", "3"}, got)
				}
				require.NoError(t, s.q.Ack(s.ctx, claims[0]))
				stats, err = s.q.Stats(s.ctx, StatsOptions{})
				require.NoError(t, err)
				require.Zero(t, stats.PausedGroups+stats.HaltedGroups)
			})
		}
	}
}

// TestMarkUnderAClaim: a group that is marked under its claim stays with the holder, and is marked when the claim ends,
// however it ends. An enqueue in that time is not lost.
func TestMarkUnderAClaim(t *testing.T) {
	for name, end := range map[string]func(s *markSteps, c *Claim) error{
		"ack":             func(s *markSteps, c *Claim) error { return s.q.Ack(s.ctx, c) },
		"nack":            func(s *markSteps, c *Claim) error { return s.q.Nack(s.ctx, c, NackOptions{Err: errors.New("x")}) },
		"nack with delay": func(s *markSteps, c *Claim) error { return s.q.Nack(s.ctx, c, NackOptions{Delay: time.Second}) },
		"release":         func(s *markSteps, c *Claim) error { return s.q.Nack(s.ctx, c, NackOptions{Release: true}) },
		"nack of the rest": func(s *markSteps, c *Claim) error {
			return s.q.Settle(s.ctx, Settlement{Claim: c, Finish: ids(c), Nack: &NackOptions{}})
		},
		"expiry": func(s *markSteps, _ *Claim) error {
			s.now = s.now.Add(time.Hour)
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newMarkSteps(t)
			s.enqueue("A", "1", "2", "3")
			c := s.receive(3)[0]
			s.run(s.marking("A", rec.MarkPause))
			_, err := s.q.Extend(s.ctx, c, time.Minute)
			require.NoError(t, err)
			require.NoError(t, s.q.AckItems(s.ctx, c, []ID{c.Items[0].ID}))
			state, m := s.state("A")
			require.Equal(t, Held, state)
			require.Equal(t, Paused, m.Status, "what follows the claim")
			s.sound()

			require.NoError(t, end(s, c))
			s.enqueue("A", "4")
			require.Empty(t, s.receive(10))
			require.Empty(t, s.take())
			state, _ = s.state("A")
			require.Equal(t, Paused, state)
			require.ErrorIs(t, s.q.Ack(s.ctx, c), ErrClaimLost)
			report := s.sound()
			require.EqualValues(t, 1, report.Paused)
			require.Zero(t, report.StaleTimers)

			s.run(s.unmarking("A"))
			left := s.receive(10)[0].Items
			switch name {
			case "ack", "nack of the rest":
				require.Len(t, left, 1)
			case "expiry": // suspect: alone
				require.Len(t, left, 1)
				require.Equal(t, "2", string(left[0].Body))
			default:
				require.Len(t, left, 3)
				require.Equal(t, "2", string(left[0].Body))
			}
			if name == "expiry" {
				record, err := s.q.Peek(s.ctx, "A", 1, nil)
				require.NoError(t, err)
				require.Equal(t, 1, record[0].Attempts, "the lease ran out under the item that was tried")
			}
		})
	}
	t.Run("removed before the claim ends", func(t *testing.T) {
		s := newMarkSteps(t)
		s.enqueue("A", "1", "2")
		c := s.receive(1)[0]
		s.run(s.marking("A", rec.MarkPause))
		s.run(s.unmarking("A"))
		require.Empty(t, s.receive(10), "still held")
		require.NoError(t, s.q.Ack(s.ctx, c))
		require.Len(t, s.receive(10), 1)
	})
}

func ids(c *Claim) []ID {
	var all []ID
	for _, item := range c.Items {
		all = append(all, item.ID)
	}
	return all
}

// TestFirstMarkCounts: the first mark counts, but a halt takes the place of a pause.
func TestFirstMarkCounts(t *testing.T) {
	s := newMarkSteps(t)
	s.enqueue("A", "1")
	state := func() Status { state, _ := s.state("A"); return state }
	s.run(s.marking("A", rec.MarkPause))
	s.now = s.now.Add(time.Minute)
	s.run(s.marking("A", rec.MarkPause))
	_, m := s.state("A")
	require.Equal(t, s.now.Add(-time.Minute), m.Since, "the first one")
	s.run(s.marking("A", rec.MarkHalt))
	require.Equal(t, Halted, state())
	s.run(s.marking("A", rec.MarkPause))
	require.Equal(t, Halted, state())
	stats, err := s.q.Stats(s.ctx, StatsOptions{})
	require.NoError(t, err)
	require.Zero(t, stats.PausedGroups)
	require.EqualValues(t, 1, stats.HaltedGroups)
	s.run(s.unmarking("A"))
	require.Equal(t, Ready, state())
}

// TestUnmarkWakes: a group that becomes ready because its mark is removed wakes the oldest request.
func TestUnmarkWakes(t *testing.T) {
	s := newMarkSteps(t)
	random := uuid.MustParse("6ba7b810-9dad-41d1-80b4-00c04fd430c8")
	s.enqueue("A", "1")
	s.run(s.marking("A", rec.MarkPause))
	r := rec.Request{Owner: "x", Wants: 1, DeadlineMS: s.now.Add(time.Minute).UnixMilli()}
	s.run(func(tx kv.Tx) error { tx.Set(s.q.keys.request(1, random), r.Pack()); return nil })
	s.run(s.unmarking("A"))
	s.run(func(tx kv.Tx) error {
		v, err := tx.Get(s.q.keys.wake(random)).Wait(s.ctx)
		require.NotNil(t, v)
		return err
	})
}
