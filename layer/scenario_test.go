package layer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/fault"
	"fdbfifo/layer"
)

// TestScenarios replays the transcripts in testdata/scenarios. Each runs on every engine, with and without
// faults, and must print the same text on all.
//
// The verbs. GROUP is a name, or "" for the default group; BODY is a word, or word*N for a body of N bytes that
// begins with it. Every verb takes worker=NAME, the handle that does it; w1 if there is none.
//
//	worker NAME [skew=30s]                    opens a handle whose clock is off by skew
//	enqueue GROUP BODY... [headers=(k:v,...)] [dedup=ID] [delay=10s] [at=10s] [at-once] or without arguments, one such line a message: one transaction;
//	        BODY~ID in such a line has that dedup id, BODY+10s that delay. Tells of each message that is a duplicate.
//	receive [max=N] [bytes=N] [groups=N] [lease=30s] [state] [id=TEXT] [wait=1s]
//	ack GROUP [items=(BODY,...)] [state=TEXT]
//	keep GROUP [state=TEXT]                   SetState; without a text it is cleared, as with state= of ack
//	state GROUP [set=TEXT] [clear] [force]    GroupState, SetGroupState
//	nack GROUP [acked=(BODY,...)] [delay=10s] [at-once] [error=TEXT] [reject=TEXT] [state=TEXT]
//	release GROUP [acked=(BODY,...)] [delay=10s] [from=BODY] [state=TEXT]
//	extend GROUP lease=30s
//	config NAME=VALUE...                      changes the configuration; it begins with retry=at_once
//	take max=N                                TakeTx, in a transaction of its own
//	cancel BODY | skip GROUP [reason=TEXT] [by=WHO] | edit BODY NEWBODY [headers=(k:v,...)]
//	force GROUP [count] [reason=TEXT] [of=WORKER]   ForceRelease; of: only the claim that this worker was given last
//	retry GROUP                               RetryNow
//	pause [GROUP] [reason=TEXT] [by=WHO] [force] | resume [GROUP]     of the whole queue without GROUP
//	advance 10s                               moves the clock of all workers
//	redrive [ids=(BODY,...)] [group=GROUP] [text=TEXT] [older=10s] [newer=10s] [tail] [dry] [limit=N] [body=BODY] [headers=(k:v,...)]
//	discard, likewise without tail, body and headers
//	fault KIND                                the next call at that fault's place meets it
//	groups | peek GROUP | stats | check | dead [group=GROUP] [text=TEXT] [older=10s] [newer=10s] [limit=N]
//	why BODY | purge [GROUP] [force] | sweep
//	archive [group=GROUP] [older=10s] [newer=10s] [limit=N] | replay, likewise, with [dry]
//
// To write the output anew: go test ./layer -run 'TestScenarios/memory$' -rewrite
func TestScenarios(t *testing.T) {
	onEngines(t, func(e *env) {
		datadriven.Walk(e.t, "testdata/scenarios", func(t *testing.T, path string) {
			s := newScenario(t, e)
			datadriven.RunTest(t, path, s.run)
			s.finish()
		})
	})
}

// scenario is one transcript being replayed, on a queue of its own.
type scenario struct {
	e       *env
	queue   string
	plan    *fault.Plan
	db      kv.DB
	workers map[string]*scenarioWorker
	bodies  map[layer.ID]string // as the transcript names them
}

type scenarioWorker struct {
	q      *layer.Queue
	claims map[string]*layer.Claim // the last of each group
}

func newScenario(t *testing.T, e *env) *scenario {
	s := &scenario{
		e: e, queue: t.Name(), plan: &fault.Plan{Seed: e.seed, Chances: maps.Clone(e.plan.Chances)},
		workers: make(map[string]*scenarioWorker), bodies: make(map[layer.ID]string),
	}
	// After a conflict a receive spreads over the groups, and the order between them is a matter of chance.
	// Transcripts force conflicts where that order does not show.
	delete(s.plan.Chances, fault.Conflict)
	s.db = fault.Wrap(e.raw, s.plan)
	_, err := layer.Create(e.ctx, e.raw, testPrefix, s.queue, layer.Options{Config: layer.Config{Retry: atOnce}})
	require.NoError(t, err)
	s.open(t, "w1", 0)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s", s.plan)
			t.Logf("replay: go test ./layer -run '^%s$' -layer.seed %d", t.Name(), e.seed)
		}
	})
	return s
}

func (s *scenario) open(t *testing.T, name string, skew time.Duration) {
	s.workers[name] = &scenarioWorker{q: s.handle(t, s.db, name, skew), claims: make(map[string]*layer.Claim)}
}

func (s *scenario) handle(t *testing.T, db kv.DB, name string, skew time.Duration) *layer.Queue {
	q, err := layer.Open(s.e.ctx, db, testPrefix, s.queue, layer.Options{
		Owner: name, Seed: s.e.seed + uint64(len(s.workers)),
		Now: func() time.Time { return s.e.clock.now().Add(skew) },
		Tx:  kv.TxOptions{MaxRetryDelay: time.Millisecond},
	})
	require.NoError(t, err)
	return q
}

// finish holds the queue to its invariants, as every test does.
func (s *scenario) finish() {
	q, err := layer.Open(context.Background(), s.e.raw, testPrefix, s.queue, layer.Options{})
	require.NoError(s.e.t, err)
	report, err := q.Check(context.Background(), layer.CheckOptions{})
	require.NoError(s.e.t, err)
	require.Empty(s.e.t, report.Violations)
}

func (s *scenario) run(t *testing.T, d *datadriven.TestData) string {
	a := arguments{t: t, d: d}
	var out string
	var err error
	switch d.Cmd {
	case "worker":
		s.open(t, a.word(0), a.duration("skew"))
	case "advance":
		s.e.clock.advance(a.parseDuration(a.word(0)))
	case "fault":
		s.plan.ForceNext(a.fault(a.word(0)))
	case "enqueue":
		out, err = s.enqueue(&a)
	case "receive":
		out, err = s.receive(&a)
	case "ack", "nack", "release", "extend", "keep":
		out, err = s.settle(&a)
	case "config":
		out, err = s.configure(&a)
	case "take":
		out, err = s.take(&a)
	case "dead":
		out, err = s.dead(&a)
	case "redrive", "discard":
		out, err = s.redrive(&a)
	case "cancel", "skip", "edit", "force", "retry":
		out, err = s.operate(&a)
	case "pause", "resume":
		out, err = s.pause(&a)
	case "state":
		out, err = s.state(&a)
	case "archive", "replay":
		out, err = s.archive(&a)
	case "sweep":
		_, err = s.worker(&a).q.Sweep(s.e.ctx, layer.SweepOptions{})
	case "purge":
		out, err = s.purge(&a)
	case "groups", "peek", "stats", "check", "why":
		out, err = s.look(&a)
	default:
		d.Fatalf(t, "unknown verb %q", d.Cmd)
	}
	switch {
	case errors.Is(err, layer.ErrClaimLost):
		return "claim lost"
	case errors.Is(err, layer.ErrNotInClaim):
		return "not in claim"
	case errors.Is(err, layer.ErrNotDead):
		return "not dead: " + out
	case errors.Is(err, layer.ErrNoItem):
		return "no such item"
	case errors.Is(err, layer.ErrInHand):
		return "in hand"
	case errors.Is(err, layer.ErrHeld):
		return "held"
	case errors.Is(err, layer.ErrNotHeld):
		return "not held"
	case errors.Is(err, layer.ErrNotDelayed):
		return "not delayed"
	case errors.Is(err, layer.ErrNotPaused):
		return "not paused"
	case err != nil:
		return "error: " + err.Error()
	case out == "":
		return "ok"
	}
	return out
}

func (s *scenario) worker(a *arguments) *scenarioWorker {
	name := a.text("worker", "w1")
	w := s.workers[name]
	if w == nil {
		a.d.Fatalf(a.t, "no worker %q", name)
	}
	return w
}

func (s *scenario) enqueue(a *arguments) (string, error) {
	var msgs []layer.Message
	var names []string
	message := func(group, body, dedup string, headers map[string]string) {
		body, delay, _ := strings.Cut(body, "+")
		m := layer.Message{Group: group, Body: fullBody(a, body), Headers: headers, DedupID: dedup, Delay: a.duration("delay")}
		if delay != "" {
			m.Delay = a.parseDuration(delay)
		}
		if a.d.HasArg("at") {
			m.DeliverAt = s.e.clock.now().Add(a.duration("at"))
		}
		m.AtOnce = slices.Contains(a.words(), "at-once")
		msgs = append(msgs, m)
		names = append(names, body)
	}
	for _, line := range strings.Split(strings.TrimSpace(a.d.Input), "\n") {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		for _, body := range fields[1:] {
			body, dedup, _ := strings.Cut(body, "~")
			message(strings.Trim(fields[0], `"`), body, dedup, nil)
		}
	}
	if words := slices.DeleteFunc(a.words(), func(w string) bool { return w == "at-once" }); len(words) > 0 {
		for _, body := range words[1:] {
			message(words[0], body, a.text("dedup", ""), a.headers())
		}
	}
	sent, err := s.worker(a).q.Enqueue(s.e.ctx, msgs...)
	var out strings.Builder
	for i := range sent {
		if sent[i].Duplicate {
			fmt.Fprintf(&out, "%s duplicate of %s\n", names[i], s.bodies[sent[i].ID])
			continue
		}
		s.bodies[sent[i].ID] = names[i]
	}
	return out.String(), err
}

func (s *scenario) receive(a *arguments) (string, error) {
	w := s.worker(a)
	claims, err := w.q.Receive(s.e.ctx, layer.ReceiveOptions{
		Max: a.number("max"), MaxBytes: a.number("bytes"), MaxGroups: a.number("groups"), Lease: a.duration("lease"),
		State: slices.Contains(a.words(), "state"), AttemptID: a.text("id", ""), Wait: a.duration("wait"),
	})
	if err != nil || len(claims) == 0 {
		return "nothing", err
	}
	var out strings.Builder
	for _, c := range claims {
		if old := w.claims[c.Group]; old != nil && (!a.d.HasArg("id") || c.Token != old.Token) {
			require.Greater(a.t, c.Token, old.Token, "tokens of a group grow")
		}
		w.claims[c.Group] = c
		fmt.Fprintf(&out, "%s:%s", groupName(c.Group), s.items(a, c.Items))
		if c.State != nil {
			fmt.Fprintf(&out, " state=%s", c.State)
		}
		out.WriteByte('\n')
	}
	return out.String(), nil
}

func (s *scenario) settle(a *arguments) (string, error) {
	w, group := s.worker(a), a.word(0)
	c := w.claims[group]
	if c == nil {
		a.d.Fatalf(a.t, "no claim on %q", group)
	}
	o := layer.NackOptions{Acked: s.ids(a, c, "acked"), Delay: a.duration("delay"), AtOnce: slices.Contains(a.words(), "at-once"), Reject: a.text("reject", "")}
	if text := a.text("error", ""); text != "" {
		o.Err = errors.New(text)
	}
	if ids := s.ids(a, c, "from"); len(ids) > 0 {
		o.From = &ids[0]
	}
	if a.d.Cmd != "ack" && a.d.HasArg("state") {
		o.SetState, o.State = true, []byte(a.text("state", ""))
	}
	switch a.d.Cmd {
	case "ack":
		if a.d.HasArg("state") {
			return "", w.q.AckState(s.e.ctx, c, []byte(a.text("state", "")), s.ids(a, c, "items")...)
		}
		return "", w.q.Ack(s.e.ctx, c, s.ids(a, c, "items")...)
	case "keep":
		return "", w.q.SetState(s.e.ctx, c, []byte(a.text("state", "")))
	case "extend":
		until, err := w.q.Extend(s.e.ctx, c, a.duration("lease"))
		return fmt.Sprintf("until %s from now", until.Sub(s.e.clock.now())), err
	case "release":
		o.Release = true
	}
	return "", w.q.Nack(s.e.ctx, c, o)
}

func (s *scenario) configure(a *arguments) (string, error) {
	_, version, err := s.worker(a).q.Configure(s.e.ctx, func(c *layer.Config) {
		for _, arg := range a.d.CmdArgs {
			if arg.Key != "worker" {
				require.NoError(a.t, c.Set(arg.Key, strings.Join(arg.Vals, " ")))
			}
		}
	})
	return fmt.Sprintf("version %d", version), err
}

func (s *scenario) take(a *arguments) (string, error) {
	w := s.worker(a)
	var items []layer.Item
	err := w.q.Once(s.e.ctx, func(tx kv.Tx) (err error) {
		items, err = w.q.TakeTx(s.e.ctx, tx, a.number("max"))
		return err
	})
	if err != nil || len(items) == 0 {
		return "nothing", err
	}
	return groupName(items[0].ID.Group) + ":" + s.items(a, items), nil
}

// operate runs the verbs of an operator.
func (s *scenario) operate(a *arguments) (string, error) {
	q := s.worker(a).q
	switch a.d.Cmd {
	case "cancel":
		return "", q.Cancel(s.e.ctx, s.id(a, a.word(0)))
	case "skip":
		id, err := q.Skip(s.e.ctx, a.word(0), layer.SkipOptions{By: a.text("by", ""), Reason: a.text("reason", "")})
		return s.bodies[id], err
	case "edit":
		id := s.id(a, a.word(0))
		err := q.Edit(s.e.ctx, id, func(m *layer.Message) error {
			require.Equal(a.t, fullBody(a, a.word(0)), m.Body, "an edit is given the whole message")
			m.Body = fullBody(a, a.word(1))
			maps.Copy(m.Headers, a.headers())
			return nil
		})
		if err == nil {
			s.bodies[id] = a.word(1)
		}
		return "", err
	case "force":
		o := layer.ForceReleaseOptions{CountAttempt: slices.Contains(a.words(), "count"), Reason: a.text("reason", "")}
		if of := a.text("of", ""); of != "" {
			o.Token = s.workers[of].claims[a.word(0)].Token
		}
		h, err := q.ForceRelease(s.e.ctx, a.word(0), o)
		return fmt.Sprintf("was held by %s, outstanding=%d", h.Owner, h.Outstanding), err
	}
	return "", q.RetryNow(s.e.ctx, a.word(0))
}

func (s *scenario) pause(a *arguments) (string, error) {
	q := s.worker(a).q
	words := slices.DeleteFunc(a.words(), func(w string) bool { return w == "force" })
	o := layer.PauseOptions{
		By: a.text("by", ""), Reason: a.text("reason", ""), Force: len(words) < len(a.words()),
	}
	var m layer.Mark
	var err error
	switch {
	case a.d.Cmd == "pause" && len(words) > 0:
		m, err = q.PauseGroup(s.e.ctx, words[0], o)
	case a.d.Cmd == "pause":
		m, err = q.Pause(s.e.ctx, o)
	case len(words) > 0:
		m, err = q.ResumeGroup(s.e.ctx, words[0])
	default:
		m, err = q.Resume(s.e.ctx)
	}
	return fmt.Sprintf("%s by %s (%s) for %s", m.State, m.By, m.Reason, s.e.clock.now().Sub(m.Since)), err
}

func (s *scenario) purge(a *arguments) (string, error) {
	words := slices.DeleteFunc(a.words(), func(w string) bool { return w == "force" })
	o := layer.PurgeOptions{Force: len(words) < len(a.words())}
	if len(words) > 0 {
		o.Group = &words[0]
	}
	r, err := s.worker(a).q.Purge(s.e.ctx, o)
	out := fmt.Sprintf("purged=%d kept=%d forced=%d", r.Items, r.Kept, r.Forced)
	if r.States > 0 {
		out += fmt.Sprintf(" states=%d", r.States)
	}
	return out, err
}

// archive lists what is archived, a page of limit after the other, with bodies, or replays it.
func (s *scenario) archive(a *arguments) (string, error) {
	dead := s.filter(a)
	f := layer.ArchiveFilter{Group: dead.Group, From: dead.ParkedFrom, Before: dead.ParkedBefore}
	q := s.worker(a).q
	if a.d.Cmd == "replay" {
		o := layer.ReplayOptions{DryRun: slices.Contains(a.words(), "dry"), Limit: int64(a.number("limit"))}
		report, err := q.Replay(s.e.ctx, f, o)
		s.nameReplayed(a)
		return fmt.Sprintf("%d of %d", report.Done, report.Scanned), err
	}
	o := layer.ArchiveOptions{ArchiveFilter: f, Limit: a.number("limit"), Bodies: true}
	var out strings.Builder
	for {
		page, err := q.Archive(s.e.ctx, o)
		if err != nil {
			return "", err
		}
		for _, item := range page.Items {
			require.NoError(a.t, item.Err)
			require.True(a.t, bytes.Equal(fullBody(a, s.bodies[item.ID]), item.Body), "body of %s", s.bodies[item.ID])
			fmt.Fprintf(&out, "%s: %s %s ago\n", groupName(item.ID.Group), s.bodies[item.ID], s.e.clock.now().Sub(item.Completed))
		}
		if page.Next == nil {
			break
		}
		out.WriteString("next page\n")
		o.After = page.Next
	}
	if out.Len() == 0 {
		return "none", nil
	}
	return out.String(), nil
}

// nameReplayed names the messages that repeat others as those. Their headers say which these are, as the transcript
// shows them.
func (s *scenario) nameReplayed(a *arguments) {
	groups, err := s.worker(a).q.Groups(s.e.ctx, layer.GroupsOptions{})
	require.NoError(a.t, err)
	for _, g := range groups {
		items, err := s.worker(a).q.Peek(s.e.ctx, g.Group, layer.MaxBatch)
		require.NoError(a.t, err)
		for _, item := range items {
			if old, ok := item.Headers[layer.ReplayHeader]; ok {
				id, err := layer.ParseID(old)
				require.NoError(a.t, err)
				require.NotEqual(a.t, id.Random, item.ID.Random)
				s.bodies[item.ID] = s.bodies[id]
			}
		}
	}
}

func (s *scenario) state(a *arguments) (string, error) {
	q, group := s.worker(a).q, a.word(0)
	if a.d.HasArg("set") || slices.Contains(a.words(), "clear") {
		o := layer.SetGroupStateOptions{Force: slices.Contains(a.words(), "force")}
		return "", q.SetGroupState(s.e.ctx, group, []byte(a.text("set", "")), o)
	}
	state, err := q.GroupState(s.e.ctx, group)
	if err != nil || state == nil {
		return "none", err
	}
	return string(state), nil
}

// id is that of the message that a transcript calls by its body.
func (s *scenario) id(a *arguments, body string) layer.ID {
	for id, name := range s.bodies {
		if name == body {
			return id
		}
	}
	a.d.Fatalf(a.t, "%q was never enqueued", body)
	return layer.ID{}
}

// look runs the verbs that change nothing.
func (s *scenario) look(a *arguments) (string, error) {
	q := s.worker(a).q
	var out strings.Builder
	switch a.d.Cmd {
	case "groups":
		groups, err := q.Groups(s.e.ctx, layer.GroupsOptions{})
		if err != nil {
			return "", err
		}
		for _, g := range groups {
			fmt.Fprintf(&out, "%s %s depth=%d head=%s", groupName(g.Group), g.State, g.Depth, s.bodies[g.Head])
			if g.Attempts > 0 {
				fmt.Fprintf(&out, " attempts=%d (%s)", g.Attempts, g.LastError)
			}
			if g.Owner != "" {
				fmt.Fprintf(&out, " owner=%s outstanding=%d", g.Owner, g.Outstanding)
			}
			if g.State != layer.Ready && g.State != layer.Parked {
				fmt.Fprintf(&out, " left=%s", g.Left)
			}
			if g.Mark != nil {
				fmt.Fprintf(&out, " %s by %s (%s)", g.Mark.State, g.Mark.By, g.Mark.Reason)
			}
			out.WriteByte('\n')
		}
		if out.Len() == 0 {
			return "no groups", nil
		}
	case "why":
		e, err := q.Why(s.e.ctx, s.id(a, a.word(0)))
		for _, r := range e.Reasons {
			fmt.Fprint(&out, r.Cause)
			if r.Count > 0 {
				fmt.Fprintf(&out, " %d", r.Count)
			}
			if r.Owner != "" {
				fmt.Fprintf(&out, " owner=%s", r.Owner)
			}
			if r.Left != 0 {
				fmt.Fprintf(&out, " left=%s", r.Left)
			}
			if r.Err != "" {
				fmt.Fprintf(&out, " (%s)", r.Err)
			}
			if r.Mark != nil {
				fmt.Fprintf(&out, " by %s (%s)", r.Mark.By, r.Mark.Reason)
			}
			out.WriteByte('\n')
		}
		return out.String(), err
	case "peek":
		items, err := q.Peek(s.e.ctx, a.word(0), layer.MaxBatch)
		if err != nil || len(items) == 0 {
			return "nothing", err
		}
		out.WriteString(strings.TrimSpace(s.items(a, items)))
	case "stats":
		st, err := q.Stats(s.e.ctx)
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&out, "enqueued=%d received=%d acked=%d nacked=%d expired=%d taken=%d depth=%d\n",
			st.Enqueued, st.Received, st.Acked, st.Nacked, st.Expired, st.Taken, st.Depth)
		if st.Cancelled+st.Purged+st.Forced > 0 {
			fmt.Fprintf(&out, "cancelled=%d purged=%d forced=%d\n", st.Cancelled, st.Purged, st.Forced)
		}
		if st.AgedOut > 0 {
			fmt.Fprintf(&out, "aged out=%d\n", st.AgedOut)
		}
		if st.PausedGroups+st.ParkedGroups > 0 {
			fmt.Fprintf(&out, "paused groups=%d parked groups=%d\n", st.PausedGroups, st.ParkedGroups)
		}
		if st.Paused != nil {
			fmt.Fprintf(&out, "paused by %s (%s)\n", st.Paused.By, st.Paused.Reason)
		}
		fmt.Fprintf(&out, "ready=%d busy=%d oldest ready=%s", st.ReadyGroups, st.BusyGroups, st.OldestReady)
		if st.BusyGroups > 0 {
			fmt.Fprintf(&out, "\nheld=%d delayed=%d oldest=%s", st.HeldGroups, st.DelayedGroups, st.OldestHead)
		}
		if st.Parked > 0 {
			fmt.Fprintf(&out, "\nparked=%d dead=%d", st.Parked, st.Dead)
		}
		if st.Redriven+st.Discarded > 0 {
			fmt.Fprintf(&out, " redriven=%d discarded=%d", st.Redriven, st.Discarded)
		}
	case "check":
		r, err := q.Check(s.e.ctx, layer.CheckOptions{})
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&out, "items=%d groups=%d held=%d delayed=%d attempts=%d stale hints=%d timers=%d\n",
			r.Items, r.Groups, r.Held, r.Delayed, r.Attempts, r.StaleHints, r.StaleTimers)
		if r.Dead > 0 || r.Parked > 0 {
			fmt.Fprintf(&out, "dead=%d parked groups=%d\n", r.Dead, r.Parked)
		}
		for _, v := range r.Violations {
			fmt.Fprintln(&out, v)
		}
	}
	return out.String(), nil
}

// dead lists dead letters, a page of limit after the other, with their bodies.
func (s *scenario) dead(a *arguments) (string, error) {
	o := layer.DeadOptions{DeadFilter: s.filter(a), Limit: a.number("limit"), Bodies: true}
	var out strings.Builder
	for {
		page, err := s.worker(a).q.DeadLetters(s.e.ctx, o)
		if err != nil {
			return "", err
		}
		for _, d := range page.Letters {
			require.True(a.t, bytes.Equal(fullBody(a, s.bodies[d.ID]), d.Body), "body of %s", s.bodies[d.ID])
			require.EqualValues(a.t, len(d.Body), d.Size)
			now := s.e.clock.now()
			fmt.Fprintf(&out, "%s: %s parked %s ago: %s: %s, attempts=%d", groupName(d.ID.Group),
				s.bodies[d.ID], now.Sub(d.Parked), d.Reason, d.LastError, d.Attempts)
			if d.Attempts > 0 {
				fmt.Fprintf(&out, ", first %s ago, last %s ago", now.Sub(d.First), now.Sub(d.Last))
			}
			out.WriteByte('\n')
		}
		if page.Next == nil {
			break
		}
		out.WriteString("next page\n")
		o.After = page.Next
	}
	if out.Len() == 0 {
		return "none", nil
	}
	return out.String(), nil
}

func (s *scenario) redrive(a *arguments) (string, error) {
	q, dry, limit := s.worker(a).q, slices.Contains(a.words(), "dry"), int64(a.number("limit"))
	var report layer.DeadReport
	var err error
	if a.d.Cmd == "discard" {
		report, err = q.Discard(s.e.ctx, s.filter(a), layer.DiscardOptions{DryRun: dry, Limit: limit})
	} else {
		o := layer.RedriveOptions{ToTail: slices.Contains(a.words(), "tail"), DryRun: dry, Limit: limit}
		edited := make(map[layer.ID]string)
		if body := a.text("body", ""); body != "" || a.d.HasArg("headers") {
			o.Edit = func(d layer.DeadLetter, m *layer.Message) error {
				require.True(a.t, bytes.Equal(fullBody(a, s.bodies[d.ID]), m.Body), "an edit is given the whole message")
				if body != "" {
					m.Body = fullBody(a, body)
					edited[d.ID] = body
				}
				maps.Copy(m.Headers, a.headers())
				return nil
			}
		}
		report, err = q.Redrive(s.e.ctx, s.filter(a), o)
		maps.Copy(s.bodies, edited)
		// At the tail it has another id, of the same random.
		items, err := q.Groups(s.e.ctx, layer.GroupsOptions{})
		require.NoError(a.t, err)
		for _, g := range items {
			s.rename(a, g.Group)
		}
	}
	return fmt.Sprintf("%d of %d, missing %d", report.Done, report.Scanned, len(report.Missing)), err
}

// rename finds the names of items that have come back to a group under another id.
func (s *scenario) rename(a *arguments, group string) {
	items, err := s.worker(a).q.Peek(s.e.ctx, group, layer.MaxBatch)
	require.NoError(a.t, err)
	for _, item := range items {
		if _, known := s.bodies[item.ID]; known {
			continue
		}
		for id, name := range s.bodies {
			if id.Random == item.ID.Random {
				delete(s.bodies, id)
				s.bodies[item.ID] = name
			}
		}
	}
}

// filter reads which dead letters are meant.
func (s *scenario) filter(a *arguments) layer.DeadFilter {
	f := layer.DeadFilter{Text: a.text("text", "")}
	if a.d.HasArg("group") {
		group := strings.Trim(a.text("group", ""), `"`)
		f.Group = &group
	}
	if a.d.HasArg("older") {
		f.ParkedBefore = s.e.clock.now().Add(-a.duration("older"))
	}
	if a.d.HasArg("newer") {
		f.ParkedFrom = s.e.clock.now().Add(-a.duration("newer"))
	}
	if arg, ok := a.d.Arg("ids"); ok {
		for id, name := range s.bodies {
			if slices.Contains(arg.Vals, name) {
				f.IDs = append(f.IDs, id)
			}
		}
	}
	return f
}

// items prints items as the transcript names them, and holds their bodies to what was enqueued.
func (s *scenario) items(a *arguments, items []layer.Item) string {
	var out strings.Builder
	for _, item := range items {
		name, ok := s.bodies[item.ID]
		require.True(a.t, ok, "item %s was never enqueued", item.ID)
		require.True(a.t, bytes.Equal(fullBody(a, name), item.Body), "body of %s", name)
		out.WriteString(" " + name)
		for _, k := range slices.Sorted(maps.Keys(item.Headers)) {
			if k == layer.ReplayHeader {
				out.WriteString(" (again)")
				continue
			}
			fmt.Fprintf(&out, " {%s:%s}", k, item.Headers[k])
		}
		if item.Attempts > 0 {
			fmt.Fprintf(&out, " (failed %d)", item.Attempts)
		}
	}
	return out.String()
}

// ids finds the items of a claim that an argument names.
func (s *scenario) ids(a *arguments, c *layer.Claim, key string) []layer.ID {
	arg, ok := a.d.Arg(key)
	if !ok {
		return nil
	}
	var ids []layer.ID
	for _, name := range arg.Vals {
		i := slices.IndexFunc(c.Items, func(item layer.Item) bool { return s.bodies[item.ID] == name })
		if i < 0 {
			a.d.Fatalf(a.t, "%q was not delivered under this claim", name)
		}
		ids = append(ids, c.Items[i].ID)
	}
	return ids
}

func groupName(g string) string {
	if g == "" {
		return `""`
	}
	return g
}

// fullBody makes the body that word, or word*N, stands for.
func fullBody(a *arguments, spec string) []byte {
	word, size, sized := strings.Cut(spec, "*")
	if !sized {
		return []byte(word)
	}
	n, err := strconv.Atoi(size)
	require.NoError(a.t, err)
	body := make([]byte, n)
	for i := range body {
		body[i] = byte(i>>8) ^ byte(i) // no two pieces alike, so that none can take the place of another
	}
	copy(body, word)
	return body
}

// arguments reads the arguments of one directive.
type arguments struct {
	t *testing.T
	d *datadriven.TestData
}

// words are the arguments without a value.
func (a *arguments) words() []string {
	var words []string
	for _, arg := range a.d.CmdArgs {
		if len(arg.Vals) == 0 {
			words = append(words, strings.Trim(arg.Key, `"`))
		}
	}
	return words
}

func (a *arguments) word(i int) string {
	words := a.words()
	if i >= len(words) {
		a.d.Fatalf(a.t, "argument %d is missing", i+1)
	}
	return words[i]
}

func (a *arguments) text(key, otherwise string) string {
	if arg, ok := a.d.Arg(key); ok && len(arg.Vals) > 0 {
		return strings.Join(arg.Vals, " ")
	}
	return otherwise
}

func (a *arguments) number(key string) int {
	text := a.text(key, "0")
	n, err := strconv.Atoi(text)
	require.NoError(a.t, err, a.d.Pos)
	return n
}

func (a *arguments) duration(key string) time.Duration { return a.parseDuration(a.text(key, "0s")) }

func (a *arguments) parseDuration(text string) time.Duration {
	d, err := time.ParseDuration(text)
	require.NoError(a.t, err, a.d.Pos)
	return d
}

func (a *arguments) headers() map[string]string {
	arg, ok := a.d.Arg("headers")
	if !ok {
		return nil
	}
	headers := make(map[string]string)
	for _, pair := range arg.Vals {
		k, v, _ := strings.Cut(pair, ":")
		headers[k] = v
	}
	return headers
}

func (a *arguments) fault(name string) fault.Kind {
	for k := fault.ReadVersionFailed; k.String() != "unknown"; k++ {
		if k.String() == name {
			return k
		}
	}
	a.d.Fatalf(a.t, "unknown fault %q", name)
	return fault.None
}
