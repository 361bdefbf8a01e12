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
	"sync/atomic"
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
//	worker NAME [skew=30s] [apart] [path=direct] opens a handle whose clock is off by skew; apart: each operation has a transaction
//	        of its own; path: direct or staged, see layer.Path
//	enqueue GROUP BODY... [headers=(k:v,...)] [dedup=ID] [delay=10s] [at=10s] [at-once] or without arguments, one such line a message: one transaction;
//	        BODY~ID in such a line has that dedup id, BODY+10s that delay. Tells of each message that is a duplicate.
//	receive [max=N] [bytes=N] [groups=N] [group=GROUP] [strategy=layers] [lease=30s] [state] [id=TEXT] [wait=1s]
//	ack GROUP [items=(BODY,...)] [state=TEXT]
//	ack-receive GROUP, and as receive         AckReceive
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
//	once [panic]                              a transaction of the caller's by Once, which may panic
//	close | drop                              the end of a handle, and of the queue
//	rows [KIND...]                            how many keys of these kinds the queue has (item, ready, lock, receipt, request, …), or of all
//	spoil BODY | mend BODY                    makes the stored item unreadable, and readable again
//
// Schedules. Each line has ended before the next one begins, unless it says otherwise:
//
//	VERB... hold=NAME                         stops before the worker's next commit: everything is read, nothing is written.
//	                                          It prints "before its commit", or the result if there is no commit.
//	commit NAME [KIND] [hold]                 lets it commit, or meet that fault there and no other, and go on to its result; with hold
//	                                          to the worker's next commit, as that of its retry;
//	                                          before that is a pause, in virtual time one that needs an advance
//	VERB... beside=NAME                       runs beside what follows: prints the result if it has one when all else
//	                                          stands still, otherwise "not yet". In virtual time only.
//	answer NAME                               the result, or "not yet"
//	give-up NAME                              ends its context. In virtual time only.
//	hold NAME                                 stops it before the worker's next commit from now on; answer tells when it has come there
//	land                                      sends what met timed-out-late or version-changed-late; until then that is under way
//
// These take hold= and beside=: enqueue, receive, ack, ack-receive, nack, release, extend, keep, take, cancel, skip, edit,
// force, retry, pause, resume, redrive, discard, sweep, purge, once, close, drop. A scenario with a line virtual-time runs
// in TestScenariosInVirtualTime: advance then lets time pass for timers too, and nothing else does.
//
// How to read one that fails: the transcript says what the queue has to answer; the test shows the first answer that
// differs, and with seeded faults what they were and the seed that replays them. A file named bug_… begins with what went
// wrong once; its schedule is what it takes.
//
// To write the output anew: go test ./layer -run 'TestScenarios/memory$' -rewrite
func TestScenarios(t *testing.T) {
	t.Parallel()
	for _, engine := range engines() {
		t.Run(engine.name, func(t *testing.T) {
			t.Parallel()
			open := engine.open
			if engine.faults {
				open = anyEngine // a commit that a transcript lets go may not come to nothing by the engine's own doing
			}
			e := newEnv(t, open, engine.faults)
			datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
				if inVirtualTime(t, path) {
					return
				}
				s := newScenario(t, e, false)
				datadriven.RunTest(t, path, s.run)
				s.finish()
			})
		})
	}
}

// scenario is one transcript being replayed, on a queue of its own.
type scenario struct {
	e       *env
	queue   string
	plan    *fault.Plan
	db      kv.DB
	workers map[string]*scenarioWorker
	bodies  map[layer.ID]string // as the transcript names them
	told    atomic.Bool         // see onCommit
	opened  uint64              // handles
	virtual bool                // it runs in virtual time
	asides  map[string]*aside
	spoilt  []byte // what stood where something is spoilt
	dropped bool
}

type scenarioWorker struct {
	q      *layer.Queue
	plan   *fault.Plan // of what is chosen for its commits
	stops  *stops
	claims map[string]*layer.Claim // the last of each group
}

func newScenario(t *testing.T, e *env, virtual bool) *scenario {
	s := &scenario{
		e: e, queue: t.Name(), plan: &fault.Plan{Seed: e.seed, Chances: maps.Clone(e.plan.Chances)},
		workers: make(map[string]*scenarioWorker), bodies: make(map[layer.ID]string),
		asides: make(map[string]*aside), virtual: virtual,
	}
	// After a conflict a receive spreads over the groups, and the order between them is a matter of chance.
	// Transcripts force conflicts where that order does not show.
	delete(s.plan.Chances, fault.Conflict)
	s.plan.OnCommit = s.onCommit
	s.db = fault.Wrap(e.raw, s.plan)
	_, err := layer.Create(e.ctx, e.raw, testPrefix, s.queue, layer.Options{Config: layer.Config{Retry: atOnce}})
	require.NoError(t, err)
	s.open(t, "w1", layer.Options{}, 0)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s", s.plan)
			t.Logf("replay: %s", replay(t, e.seed))
		}
	})
	return s
}

// open opens a handle whose faults are those of the scenario and, before these, those that commands choose.
func (s *scenario) open(t *testing.T, name string, o layer.Options, skew time.Duration) {
	w := &scenarioWorker{stops: &stops{ctx: s.e.ctx, told: &s.told}, claims: make(map[string]*layer.Claim)}
	w.plan = &fault.Plan{OnCommit: w.stops.onCommit, KeepLate: true}
	if o.Test == nil {
		o.Test = &layer.TestOptions{}
	}
	o.Owner, o.Test.Seed, o.Tx = name, s.e.seed+s.opened, kv.TxOptions{MaxRetryDelay: time.Millisecond}
	o.Now = func() time.Time { return s.e.clock.now().Add(skew) }
	s.opened++
	var err error
	w.q, err = layer.Open(s.e.ctx, fault.Wrap(s.db, w.plan), testPrefix, s.queue, o)
	require.NoError(t, err)
	if s.virtual { // where nothing may outlive the test
		t.Cleanup(func() { require.NoError(t, w.q.Close(context.Background())) })
	}
	s.workers[name] = w
}

func (s *scenario) openWorker(a *arguments) {
	o := layer.Options{Test: &layer.TestOptions{NoCoalescing: slices.Contains(a.words(), "apart")}}
	switch path := a.text("path", ""); path {
	case "direct":
		o.Test.Path = layer.Direct
	case "staged":
		o.Test.Path = layer.Staged
	case "":
	default:
		a.d.Fatalf(a.t, "unknown path %q", path)
	}
	s.open(a.t, a.word(0), o, a.duration("skew"))
}

// finish holds the queue to its invariants, as every test does.
func (s *scenario) finish() {
	require.Empty(s.e.t, s.asides, "the transcript leaves commands under way")
	if s.dropped {
		return
	}
	q, err := layer.Open(context.Background(), s.e.raw, testPrefix, s.queue, layer.Options{})
	require.NoError(s.e.t, err)
	report, err := q.Admin().Check(context.Background(), layer.CheckOptions{})
	require.NoError(s.e.t, err)
	require.Empty(s.e.t, report.Violations)
}

func (s *scenario) run(t *testing.T, d *datadriven.TestData) string {
	a := arguments{t: t, d: d}
	var out string
	var err error
	switch d.Cmd {
	case "worker":
		s.openWorker(&a)
	case virtualTime:
	case "advance":
		s.advance(a.parseDuration(a.word(0)))
	case "commit", "answer", "give-up", "hold":
		out, err = s.aside(&a)
	case "land":
		err = s.land()
	case "once":
		out, err = s.once(&a)
	case "close":
		out, err = s.close(&a)
	case "drop":
		out, err = s.drop(&a)
	case "rows":
		out = s.rows(&a)
	case "spoil", "mend":
		s.spoil(&a)
	case "fault":
		s.plan.ForceNext(a.fault(a.word(0)))
	case "enqueue":
		out, err = s.enqueue(&a)
	case "receive":
		out, err = s.receive(&a)
	case "ack", "nack", "release", "extend", "keep":
		out, err = s.settle(&a)
	case "ack-receive":
		out, err = s.ackReceive(&a)
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
		out, err = s.sweep(&a)
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
	case errors.Is(err, layer.ErrInFlight):
		return "in flight"
	case errors.Is(err, layer.ErrHeld):
		return "held"
	case errors.Is(err, layer.ErrNotHeld):
		return "not held"
	case errors.Is(err, layer.ErrNotDelayed):
		return "not delayed"
	case errors.Is(err, layer.ErrNotPaused):
		return "not paused"
	case errors.Is(err, layer.ErrClosed):
		return "closed"
	case errors.Is(err, layer.ErrNoQueue):
		return "no such queue"
	case errors.Is(err, layer.ErrCorrupt):
		return "corrupt"
	case errors.Is(err, context.Canceled):
		return "given up"
	case kv.Code(err) == kv.CodeTransactionTimedOut:
		return "timed out"
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
	var sent []layer.Sent
	w := s.worker(a)
	return s.call(a, func(ctx context.Context) (err error) {
		sent, err = w.q.Enqueue(ctx, msgs...)
		return err
	}, func(err error) (string, error) {
		var out strings.Builder
		for i := range sent {
			if sent[i].Duplicate {
				fmt.Fprintf(&out, "%s duplicate of %s\n", names[i], s.bodies[sent[i].ID])
				continue
			}
			s.bodies[sent[i].ID] = names[i]
		}
		return out.String(), err
	})
}

func (s *scenario) receive(a *arguments) (string, error) {
	w, o := s.worker(a), s.receiveOptions(a)
	var claims []*layer.Claim
	return s.call(a, func(ctx context.Context) (err error) {
		claims, err = w.q.Receive(ctx, o)
		return err
	}, func(err error) (string, error) { return s.received(a, w, claims, err) })
}

func (s *scenario) receiveOptions(a *arguments) layer.ReceiveOptions {
	o := layer.ReceiveOptions{
		Max: a.number("max"), MaxBytes: a.number("bytes"), MaxGroups: a.number("groups"), Lease: a.duration("lease"),
		State: slices.Contains(a.words(), "state"), ReceiveID: a.text("id", ""), Wait: a.duration("wait"),
	}
	switch strategy := a.text("strategy", ""); strategy {
	case "", "fill-group":
	case "layers":
		o.Strategy = layer.Layers
	case "heads":
		o.Strategy = layer.Heads
	default:
		a.d.Fatalf(a.t, "unknown strategy %q", strategy)
	}
	if a.d.HasArg("group") {
		group := strings.Trim(a.text("group", ""), `"`)
		o.Group = &group
	}
	return o
}

// received prints what a receive has got, and keeps it for what settles it.
func (s *scenario) received(a *arguments, w *scenarioWorker, claims []*layer.Claim, err error) (string, error) {
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

// claim is the last that the worker of a directive was given of its group.
func (s *scenario) claim(a *arguments) *layer.Claim {
	c := s.worker(a).claims[a.word(0)]
	if c == nil {
		a.d.Fatalf(a.t, "no claim on %q", a.word(0))
	}
	return c
}

func (s *scenario) ackReceive(a *arguments) (string, error) {
	w, c, o := s.worker(a), s.claim(a), s.receiveOptions(a)
	var claims []*layer.Claim
	return s.call(a, func(ctx context.Context) (err error) {
		claims, err = w.q.AckReceive(ctx, c, o)
		return err
	}, func(err error) (string, error) { return s.received(a, w, claims, err) })
}

func (s *scenario) settle(a *arguments) (string, error) {
	same := *s.claim(a) // as it was given: later steps may name what was acked
	q, c := s.worker(a).q, &same
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
	var until time.Time
	state, items := []byte(a.text("state", "")), s.ids(a, c, "items")
	return s.call(a, func(ctx context.Context) (err error) {
		switch a.d.Cmd {
		case "ack":
			if a.d.HasArg("state") {
				return q.AckState(ctx, c, state, items...)
			}
			return q.Ack(ctx, c, items...)
		case "keep":
			return q.SetState(ctx, c, state)
		case "extend":
			until, err = q.Extend(ctx, c, a.duration("lease"))
			return err
		}
		o.Release = a.d.Cmd == "release"
		return q.Nack(ctx, c, o)
	}, func(err error) (string, error) {
		if a.d.Cmd == "extend" {
			return fmt.Sprintf("until %s from now", until.Sub(s.e.clock.now())), err
		}
		return "", err
	})
}

func (s *scenario) configure(a *arguments) (string, error) {
	w := s.worker(a)
	var version int64
	return s.call(a, func(ctx context.Context) (err error) {
		_, version, err = w.q.Admin().Configure(ctx, func(c *layer.Config) {
			for _, arg := range a.d.CmdArgs {
				if arg.Key != "worker" && arg.Key != "hold" && arg.Key != "beside" {
					require.NoError(a.t, c.Set(arg.Key, strings.Join(arg.Vals, " ")))
				}
			}
		})
		return err
	}, func(err error) (string, error) { return fmt.Sprintf("version %d", version), err })
}

func (s *scenario) take(a *arguments) (string, error) {
	w := s.worker(a)
	var items []layer.Item
	limit := a.number("max")
	return s.call(a, func(ctx context.Context) error {
		return w.q.Once(ctx, func(tx kv.Tx) (err error) {
			items, err = w.q.TakeTx(ctx, tx, limit)
			return err
		})
	}, func(err error) (string, error) {
		if err != nil || len(items) == 0 {
			return "nothing", err
		}
		return groupName(items[0].ID.Group) + ":" + s.items(a, items), nil
	})
}

// operate runs the verbs of an operator.
func (s *scenario) operate(a *arguments) (string, error) {
	q, what := s.worker(a).q, a.word(0)
	switch a.d.Cmd {
	case "cancel":
		id := s.id(a, what)
		return s.call(a, func(ctx context.Context) error { return q.Admin().Cancel(ctx, id) }, noResult)
	case "skip":
		var id layer.ID
		o := layer.SkipOptions{By: a.text("by", ""), Reason: a.text("reason", "")}
		return s.call(a, func(ctx context.Context) (err error) {
			id, err = q.Admin().Skip(ctx, what, o)
			return err
		}, func(err error) (string, error) { return s.bodies[id], err })
	case "edit":
		id, old, body, headers := s.id(a, what), fullBody(a, what), fullBody(a, a.word(1)), a.headers()
		return s.call(a, func(ctx context.Context) error {
			return q.Admin().Edit(ctx, id, func(m *layer.Message) error {
				require.Equal(a.t, old, m.Body, "an edit is given the whole message")
				m.Body = body
				maps.Copy(m.Headers, headers)
				return nil
			})
		}, func(err error) (string, error) {
			if err == nil {
				s.bodies[id] = a.word(1)
			}
			return "", err
		})
	case "force":
		o := layer.ForceReleaseOptions{CountAttempt: slices.Contains(a.words(), "count"), Reason: a.text("reason", "")}
		if of := a.text("of", ""); of != "" {
			o.Token = s.workers[of].claims[what].Token
		}
		var h layer.Holder
		return s.call(a, func(ctx context.Context) (err error) {
			h, err = q.Admin().ForceRelease(ctx, what, o)
			return err
		}, func(err error) (string, error) {
			return fmt.Sprintf("was held by %s, outstanding=%d", h.Owner, h.Outstanding), err
		})
	}
	return s.call(a, func(ctx context.Context) error {
		return q.Admin().RetryNow(ctx, what, layer.RetryOptions{})
	}, noResult)
}

func (s *scenario) pause(a *arguments) (string, error) {
	q := s.worker(a).q
	words := slices.DeleteFunc(a.words(), func(w string) bool { return w == "force" })
	o := layer.PauseOptions{
		By: a.text("by", ""), Reason: a.text("reason", ""), Force: len(words) < len(a.words()),
	}
	var m layer.Mark
	return s.call(a, func(ctx context.Context) (err error) {
		switch {
		case a.d.Cmd == "pause" && len(words) > 0:
			m, err = q.Admin().PauseGroup(ctx, words[0], o)
		case a.d.Cmd == "pause":
			m, err = q.Admin().Pause(ctx, o)
		case len(words) > 0:
			m, err = q.Admin().ResumeGroup(ctx, words[0], layer.ResumeOptions{})
		default:
			m, err = q.Admin().Resume(ctx, layer.ResumeOptions{})
		}
		return err
	}, func(err error) (string, error) {
		return fmt.Sprintf("%s by %s (%s) for %s", m.Status, m.By, m.Reason, s.e.clock.now().Sub(m.Since)), err
	})
}

func (s *scenario) sweep(a *arguments) (string, error) {
	q := s.worker(a).q
	return s.call(a, func(ctx context.Context) error {
		_, err := q.Admin().Sweep(ctx, layer.SweepOptions{})
		return err
	}, noResult)
}

func (s *scenario) purge(a *arguments) (string, error) {
	words := slices.DeleteFunc(a.words(), func(w string) bool { return w == "force" })
	o := layer.PurgeOptions{Force: len(words) < len(a.words())}
	if len(words) > 0 {
		o.Group = &words[0]
	}
	q := s.worker(a).q
	var r layer.PurgeReport
	return s.call(a, func(ctx context.Context) (err error) {
		r, err = q.Admin().Purge(ctx, o)
		return err
	}, func(err error) (string, error) {
		out := fmt.Sprintf("purged=%d kept=%d forced=%d", r.Items, r.Kept, r.Forced)
		if r.States > 0 {
			out += fmt.Sprintf(" states=%d", r.States)
		}
		return out, err
	})
}

// archive lists what is archived, a page of limit after the other, with bodies, or replays it.
func (s *scenario) archive(a *arguments) (string, error) {
	dead := s.filter(a)
	f := layer.ArchiveFilter{Group: dead.Group, From: dead.From, Before: dead.Before}
	q := s.worker(a).q
	if a.d.Cmd == "replay" {
		o := layer.ReplayOptions{DryRun: slices.Contains(a.words(), "dry"), Limit: a.number("limit")}
		report, err := q.Admin().Replay(s.e.ctx, f, o)
		s.nameReplayed(a)
		return fmt.Sprintf("%d of %d", report.Done, report.Scanned), err
	}
	o := layer.ArchiveOptions{ArchiveFilter: f, Limit: a.number("limit"), Bodies: true}
	var out strings.Builder
	for {
		page, err := q.Admin().Archive(s.e.ctx, o)
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
	page, err := s.worker(a).q.Admin().Groups(s.e.ctx, layer.GroupsOptions{})
	require.NoError(a.t, err)
	for _, g := range page.Groups {
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
		return "", q.Admin().SetGroupState(s.e.ctx, group, []byte(a.text("set", "")), o)
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
		page, err := q.Admin().Groups(s.e.ctx, layer.GroupsOptions{})
		if err != nil {
			return "", err
		}
		for _, g := range page.Groups {
			fmt.Fprintf(&out, "%s %s depth=%d head=%s", groupName(g.Group), g.Status, g.Depth, s.bodies[g.Head])
			if g.Attempts > 0 {
				fmt.Fprintf(&out, " attempts=%d (%s)", g.Attempts, g.LastError)
			}
			if g.Owner != "" {
				fmt.Fprintf(&out, " owner=%s outstanding=%d", g.Owner, g.Outstanding)
			}
			if g.Status != layer.Ready && g.Status != layer.Halted {
				fmt.Fprintf(&out, " left=%s", g.Left)
			}
			if g.Mark != nil {
				fmt.Fprintf(&out, " %s by %s (%s)", g.Mark.Status, g.Mark.By, g.Mark.Reason)
			}
			out.WriteByte('\n')
		}
		if out.Len() == 0 {
			return "no groups", nil
		}
	case "why":
		e, err := q.Admin().Why(s.e.ctx, s.id(a, a.word(0)))
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
		if st.PastRetention > 0 {
			fmt.Fprintf(&out, "past retention=%d\n", st.PastRetention)
		}
		if st.PausedGroups+st.HaltedGroups > 0 {
			fmt.Fprintf(&out, "paused groups=%d halted groups=%d\n", st.PausedGroups, st.HaltedGroups)
		}
		if st.Paused != nil {
			fmt.Fprintf(&out, "paused by %s (%s)\n", st.Paused.By, st.Paused.Reason)
		}
		fmt.Fprintf(&out, "ready=%d busy=%d oldest ready=%s", st.ReadyGroups, st.BusyGroups, st.OldestReady)
		if st.BusyGroups > 0 {
			fmt.Fprintf(&out, "\nheld=%d delayed=%d oldest=%s", st.HeldGroups, st.DelayedGroups, st.OldestHead)
		}
		if st.DeadLettered > 0 {
			fmt.Fprintf(&out, "\nparked=%d dead=%d", st.DeadLettered, st.Dead)
		}
		if st.Redriven+st.Discarded > 0 {
			fmt.Fprintf(&out, " redriven=%d discarded=%d", st.Redriven, st.Discarded)
		}
	case "check":
		r, err := q.Admin().Check(s.e.ctx, layer.CheckOptions{})
		if err != nil {
			return "", err
		}
		fmt.Fprintf(&out, "items=%d groups=%d held=%d delayed=%d attempts=%d stale hints=%d timers=%d\n",
			r.Items, r.Groups, r.Held, r.Delayed, r.Attempts, r.StaleHints, r.StaleTimers)
		if r.Dead > 0 || r.Halted > 0 {
			fmt.Fprintf(&out, "dead=%d halted groups=%d\n", r.Dead, r.Halted)
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
		page, err := s.worker(a).q.Admin().DeadLetters(s.e.ctx, o)
		if err != nil {
			return "", err
		}
		for _, d := range page.Letters {
			require.True(a.t, bytes.Equal(fullBody(a, s.bodies[d.ID]), d.Body), "body of %s", s.bodies[d.ID])
			require.EqualValues(a.t, len(d.Body), d.Size)
			now := s.e.clock.now()
			fmt.Fprintf(&out, "%s: %s parked %s ago: %s: %s, attempts=%d", groupName(d.ID.Group),
				s.bodies[d.ID], now.Sub(d.DeadLettered), d.Reason, d.LastError, d.Attempts)
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
	q, f, dry, limit := s.worker(a).q, s.filter(a), slices.Contains(a.words(), "dry"), a.number("limit")
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
	var report layer.DeadReport
	return s.call(a, func(ctx context.Context) (err error) {
		if a.d.Cmd == "discard" {
			report, err = q.Admin().Discard(ctx, f, layer.DiscardOptions{DryRun: dry, Limit: limit})
		} else {
			report, err = q.Admin().Redrive(ctx, f, o)
		}
		return err
	}, func(err error) (string, error) {
		maps.Copy(s.bodies, edited)
		if a.d.Cmd == "redrive" {
			s.renameAll(a)
		}
		return fmt.Sprintf("%d of %d, missing %d", report.Done, report.Scanned, len(report.Missing)), err
	})
}

// renameAll finds the names of what has come back at the tail: there it has another id, of the same random.
func (s *scenario) renameAll(a *arguments) {
	page, err := s.worker(a).q.Admin().Groups(s.e.ctx, layer.GroupsOptions{})
	require.NoError(a.t, err)
	for _, g := range page.Groups {
		s.rename(a, g.Group)
	}
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
		f.Before = s.e.clock.now().Add(-a.duration("older"))
	}
	if a.d.HasArg("newer") {
		f.From = s.e.clock.now().Add(-a.duration("newer"))
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
