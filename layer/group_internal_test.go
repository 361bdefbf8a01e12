package layer

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/rec"
)

// groupSetup brings group A, which has the items a1, a2 and a3, into a condition. It returns the claim, if there is one.
type groupSetup struct {
	name string
	run  func(s *markSteps) *Claim
}

var groupSetups = []groupSetup{
	{"empty", func(s *markSteps) *Claim { return nil }},
	{"unheld", func(s *markSteps) *Claim { s.enqueue("A", "a1", "a2", "a3"); return nil }},
	{"claimed", claimedGroup},
	{"claimed, to be paused", func(s *markSteps) *Claim { return pausedBy(s, claimedGroup(s)) }},
	{"lapsed", lapsedGroup},
	{"lapsed, to be paused", func(s *markSteps) *Claim { return pausedBy(s, lapsedGroup(s)) }},
	{"granted", func(s *markSteps) *Claim { grantedGroup(s); return nil }},
	{"over: a grant", func(s *markSteps) *Claim { grantedGroup(s); s.now = s.now.Add(time.Minute); return nil }},
	{"delayed", func(s *markSteps) *Claim { return delayedGroup(s) }},
	{"over: a delay", func(s *markSteps) *Claim { c := delayedGroup(s); s.now = s.now.Add(time.Hour); return c }},
	{"paused", func(s *markSteps) *Claim { s.enqueue("A", "a1", "a2", "a3"); return pausedBy(s, nil) }},
	{"halted", func(s *markSteps) *Claim {
		c := claimedGroup(s)
		s.failFor(c, HaltGroup)
		return c
	}},
}

func claimedGroup(s *markSteps) *Claim {
	s.enqueue("A", "a1", "a2", "a3")
	return s.receive(3)[0]
}

func lapsedGroup(s *markSteps) *Claim {
	c := claimedGroup(s)
	s.now = s.now.Add(11 * time.Second)
	return c
}

func grantedGroup(s *markSteps) {
	s.enqueue("A", "a1", "a2", "a3")
	s.grantTo(uuid.UUID{1})
}

func delayedGroup(s *markSteps) *Claim {
	c := claimedGroup(s)
	require.NoError(s.t, s.q.Nack(s.ctx, c, NackOptions{Delay: time.Minute}))
	return c
}

func pausedBy(s *markSteps, c *Claim) *Claim {
	_, err := s.q.Admin().PauseGroup(s.ctx, "A", PauseOptions{By: "op"})
	require.NoError(s.t, err)
	return c
}

// failFor rejects what c has, under that policy.
func (s *markSteps) failFor(c *Claim, policy OnFailure) error {
	_, _, err := s.q.Admin().Configure(s.ctx, func(c *Config) { c.OnFailure = policy })
	require.NoError(s.t, err)
	return s.q.Nack(s.ctx, c, NackOptions{Reject: "bad"})
}

// groupEvent is what happens to group A. action is the definition of docs/model that says so too; "" = the model leaves
// it out.
type groupEvent struct {
	name   string
	action string
	run    func(s *markSteps, c *Claim, head ID) error
}

var groupEvents = []groupEvent{
	{"enqueue", "Group: EnqueueTx", func(s *markSteps, _ *Claim, _ ID) error { s.enqueue("A", "new"); return nil }},
	{"claim", "Group: ClaimTx", func(s *markSteps, _ *Claim, _ ID) error { s.receive(1); return nil }},
	{"claim by name", "Group: ClaimTx", func(s *markSteps, _ *Claim, _ ID) error {
		group := "A"
		_, err := s.q.Receive(s.ctx, ReceiveOptions{Max: 1, Group: &group})
		return err
	}},
	{"grant", "Staging: GrantTo", func(s *markSteps, _ *Claim, _ ID) error { s.grantTo(uuid.UUID{2}); return nil }},
	{"take", "", func(s *markSteps, _ *Claim, _ ID) error { s.take(); return nil }},
	{"ack of one", "Group: SettleTx", func(s *markSteps, c *Claim, head ID) error {
		return s.q.AckItems(s.ctx, c, []ID{head})
	}},
	{"ack of all", "Group: SettleTx", func(s *markSteps, c *Claim, _ ID) error { return s.q.Ack(s.ctx, c) }},
	{"extend", "Group: SettleTx", func(s *markSteps, c *Claim, _ ID) error {
		_, err := s.q.Extend(s.ctx, c, time.Minute)
		return err
	}},
	{"nack", "Group: SettleTx", func(s *markSteps, c *Claim, _ ID) error {
		return s.q.Nack(s.ctx, c, NackOptions{AtOnce: true})
	}},
	{"nack with a delay", "Group: SettleTx", func(s *markSteps, c *Claim, _ ID) error {
		return s.q.Nack(s.ctx, c, NackOptions{Delay: time.Minute})
	}},
	{"reject, dead-letter item", "", func(s *markSteps, c *Claim, _ ID) error { return s.failFor(c, DeadLetterItem) }},
	{"reject, halt group", "", func(s *markSteps, c *Claim, _ ID) error { return s.failFor(c, HaltGroup) }},
	{"set state", "", func(s *markSteps, c *Claim, _ ID) error {
		state := []byte("x")
		return s.q.Settle(s.ctx, Settlement{Claim: c, Finish: []ID{}, State: &state})
	}},
	{"pause", "Group: PauseTx", func(s *markSteps, _ *Claim, _ ID) error {
		_, err := s.q.Admin().PauseGroup(s.ctx, "A", PauseOptions{})
		return err
	}},
	{"pause by force", "", func(s *markSteps, _ *Claim, _ ID) error {
		_, err := s.q.Admin().PauseGroup(s.ctx, "A", PauseOptions{Force: true})
		return err
	}},
	{"resume", "Group: ResumeTx", func(s *markSteps, _ *Claim, _ ID) error {
		_, err := s.q.Admin().ResumeGroup(s.ctx, "A", ResumeOptions{})
		return err
	}},
	{"force release", "", func(s *markSteps, _ *Claim, _ ID) error {
		_, err := s.q.Admin().ForceRelease(s.ctx, "A", ForceReleaseOptions{})
		return err
	}},
	{"retry now", "", func(s *markSteps, _ *Claim, _ ID) error {
		return s.q.Admin().RetryNow(s.ctx, "A", RetryOptions{})
	}},
	{"cancel of the head", "", func(s *markSteps, _ *Claim, head ID) error { return s.q.Admin().Cancel(s.ctx, head) }},
	{"edit of the head", "", func(s *markSteps, _ *Claim, head ID) error {
		return s.q.Admin().Edit(s.ctx, head, func(m *Message) error { m.Body = []byte("b"); return nil })
	}},
	{"reschedule of the head", "", func(s *markSteps, _ *Claim, head ID) error {
		return s.q.Reschedule(s.ctx, head, s.now.Add(time.Hour))
	}},
	{"skip", "", func(s *markSteps, _ *Claim, _ ID) error {
		_, err := s.q.Admin().Skip(s.ctx, "A", SkipOptions{})
		return err
	}},
	{"purge", "", func(s *markSteps, _ *Claim, _ ID) error {
		_, err := s.q.Admin().Purge(s.ctx, PurgeOptions{All: true})
		return err
	}},
	{"purge by force", "", func(s *markSteps, _ *Claim, _ ID) error {
		_, err := s.q.Admin().Purge(s.ctx, PurgeOptions{All: true, Force: true})
		return err
	}},
	{"set group state", "", func(s *markSteps, _ *Claim, _ ID) error {
		return s.q.Admin().SetGroupState(s.ctx, "A", []byte("x"), SetGroupStateOptions{})
	}},
	{"sweep past retention", "", func(s *markSteps, _ *Claim, _ ID) error {
		_, _, err := s.q.Admin().Configure(s.ctx, func(c *Config) { c.Retention = time.Second })
		require.NoError(s.t, err)
		s.now = s.now.Add(1500 * time.Millisecond)
		_, err = s.q.Admin().Sweep(s.ctx, SweepOptions{})
		return err
	}},
}

// groupText says how group A is: its condition, the mark that it bears, and how many items it has.
func (s *markSteps) groupText() string {
	tx, err := s.db.Begin(kv.TxOptions{})
	require.NoError(s.t, err)
	defer tx.Cancel()
	v := s.q.viewOf(s.ctx, tx)
	r, err := v.readLock("A")
	require.NoError(s.t, err)
	n, err := v.countKeys(s.q.keys.items("A"), 100)
	require.NoError(s.t, err)
	names := map[rec.Condition]string{
		rec.Unheld: "unheld", rec.Claimed: "claimed", rec.Granted: "granted", rec.Delayed: "delayed",
		rec.Lapsed: "lapsed", rec.Over: "over", rec.Marked: "",
	}
	text := names[r.At(s.now.UnixMilli())]
	if m := r.Mark(); m != nil {
		if text != "" {
			text += ", to be "
		}
		text += string(publicMark(m).Status)
	}
	return fmt.Sprintf("%s, %s", text, countWords(int(n), "item"))
}

// refusals are the errors that an event may have.
var refusals = map[string]error{
	"claim lost": ErrClaimLost, "not held": ErrNotHeld, "not paused": ErrNotPaused, "not delayed": ErrNotDelayed,
	"no item": ErrNoItem, "in flight": ErrInFlight, "held": ErrHeld,
}

const groupTable = "testdata/group.txt"

var rewrite = flag.Bool("rewrite", false, "TestGroupMachine writes its table")

// TestGroupMachine: testdata/group.txt says how each event changes a group in each condition (I1, G2). After each the
// invariants hold, and each action that the table names is one of the model's.
func TestGroupMachine(t *testing.T) {
	var out strings.Builder
	out.WriteString("# What each event makes of a group: condition | event | what follows | action of docs/model.\n" +
		"# Three items before it; \"= refused\" leaves the group as it was. Written by: " +
		"go test ./layer -run TestGroupMachine -rewrite\n")
	for _, setup := range groupSetups {
		out.WriteString("\n")
		for _, event := range groupEvents {
			t.Run(setup.name+", "+event.name, func(t *testing.T) {
				s := newMarkSteps(t)
				c := setup.run(s)
				if c == nil {
					c = &Claim{Group: "A", Token: 1}
				}
				head := ID{Group: "A", Index: 1, Random: uuid.UUID{1}}
				if items, err := s.q.Peek(s.ctx, "A", 1, nil); err == nil && len(items) > 0 {
					head = items[0].ID
				}
				before := s.groupText()
				err := event.run(s, c, head)
				follows := s.groupText()
				for name, refusal := range refusals {
					if errors.Is(err, refusal) {
						require.Equal(t, before, follows, "refused, and changed all the same")
						follows, err = "= refused: "+name, nil
					}
				}
				require.NoError(t, err)
				action := event.action
				if strings.HasPrefix(follows, "= ") || action == "" {
					action = "-"
				}
				fmt.Fprintf(&out, "%-22s | %-20s | %-38s | %s\n", setup.name, event.name, follows, action)
			})
		}
	}
	if *rewrite {
		require.NoError(t, os.WriteFile(groupTable, []byte(out.String()), 0o644))
	}
	want, err := os.ReadFile(groupTable)
	require.NoError(t, err)
	require.Equal(t, string(want), out.String(), "see the head of the file")
	for _, event := range groupEvents {
		if module, action, ok := strings.Cut(event.action, ": "); ok {
			model, err := os.ReadFile("../docs/model/" + module + ".tla")
			require.NoError(t, err)
			require.Regexp(t, `(?m)^`+regexp.QuoteMeta(action)+`(\(| ==)`, string(model))
		}
	}
}

// TestIllegalStep: an illegal change of a record ends the transaction with an error, and nothing is written (I1).
func TestIllegalStep(t *testing.T) {
	s := newMarkSteps(t)
	s.enqueue("A", "a1")
	c := s.receive(1)[0]
	_, err := kv.Run(s.ctx, s.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		return s.within(func(w *txn) error {
			v := s.q.viewOf(s.ctx, tx)
			r, err := v.readLock("A")
			if err != nil {
				return err
			}
			grant := rec.Holding{
				Kind: rec.KindGrant, Token: r.Token + 1, Owner: uuid.UUID{1}.String(), EndMS: w.nowMS + 1000,
			}
			w.put("A", r, rec.HeldBy(grant, nil), 1)
			return nil
		})(tx)
	})
	require.ErrorIs(t, err, rec.ErrStep)
	require.ErrorContains(t, err, `group "A": illegal change of a group: no step leads from claim to grant`)
	require.NoError(t, s.q.Ack(s.ctx, c))
}

// TestRetryDelay: an exponential wait doubles up to its maximum, and up to a random half of each is left out; a
// constant one stays the same; whatever the number of failures.
func TestRetryDelay(t *testing.T) {
	p := RetryPolicy{Base: 100 * time.Millisecond, Max: time.Minute}
	for failures, whole := range map[int]time.Duration{
		0: 100 * time.Millisecond, 1: 100 * time.Millisecond, 2: 200 * time.Millisecond, 5: 1600 * time.Millisecond,
		10: 51200 * time.Millisecond, 11: time.Minute, 1 << 30: time.Minute,
	} {
		require.Equal(t, whole/2, p.delay(failures, 0), "failures: %d", failures)
		require.Equal(t, whole*3/4, p.delay(failures, 0.5), "failures: %d", failures)
		require.Less(t, p.delay(failures, 0.999), whole, "failures: %d", failures)
		p := RetryPolicy{Kind: RetryConstant, Base: time.Second}
		require.Equal(t, time.Second, p.delay(failures, 0.5))
		p.Kind = RetryAtOnce
		require.Zero(t, p.delay(failures, 0.5))
	}
	p.Max = MaxDelay
	require.Equal(t, MaxDelay/2, p.delay(1<<30, 0), "no overflow")
}
