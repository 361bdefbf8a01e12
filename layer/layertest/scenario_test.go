package layer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"regexp"
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

// tokens are of versions, and so of the engine.
var tokens = regexp.MustCompile(`token \d+`)

// TestScenarios replays the transcripts in testdata/scenarios. Each runs on every engine, with and without
// faults, and must print the same text on all. Four rules of templates are tested here alone (lanes, traps 6, 7, 8, 9).
//
// The verbs. GROUP is a name, or "" for the default group; BODY is a word, or word*N for a body of N bytes that
// begins with it. Every verb takes worker=NAME, the handle that does it; w1 if there is none.
//
//	create [NAME=VALUE...]                    first of all: makes the queue with this configuration; a line NAME=VALUE
//	                                          each for what has blanks. Without it the queue has retry=at_once alone.
//	worker NAME [skew=30s]                    opens a handle whose clock is off by skew
//	enqueue GROUP BODY... [headers=(k:v,...)] [dedup=ID] [delay=10s] [at=10s] [at-once] [join]
//	        or without arguments, one line "GROUP BODY..." for each group: one transaction. BODY~ID in such a line has
//	        that dedup id, BODY+10s that delay, and {K:V} behind it is a header. Tells of each duplicate.
//	receive [max=N] [bytes=N] [groups=N] [group=GROUP] [strategy=layers] [lease=30s] [state] [id=TEXT] [wait=1s]
//	        [where=TEMPLATE] [unordered] [heartbeat] [only-if-any]
//	        TEMPLATE is as in the command, state=NEW,region=EU. A claim by template is printed as "GROUP where
//	        TEMPLATE:", one of a single message as "GROUP item:". What settles such a claim names it: where=TEMPLATE,
//	        item=BODY.
//	ack GROUP [items=(BODY,...)] [state=TEXT]
//	advance GROUP [items=(BODY,...)] [headers=(k:v,...)] [body=BODY]    Advance: sets these headers, and the body
//	ack-receive GROUP, and as receive         SettleReceive
//	keep GROUP [state=TEXT]                   Settle with a State alone; no text clears it, as with state= of ack
//	state GROUP [set=TEXT] [clear] [force]    GroupState, SetGroupState
//	nack GROUP [acked=(BODY,...)] [delay=10s] [at-once] [error=TEXT] [reject=TEXT] [state=TEXT]
//	release GROUP [acked=(BODY,...)] [delay=10s] [from=BODY] [behind] [state=TEXT]
//	extend GROUP lease=30s
//	config NAME=VALUE...                      changes the configuration; it begins with retry=at_once
//	take max=N [group=GROUP] [where=TEMPLATE] [unordered]    TakeTx, in a transaction of its own
//	cancel BODY | skip GROUP [reason=TEXT] [by=WHO] | edit BODY NEWBODY [headers=(k:v,...)]
//	replace BODY NEWBODY [headers=(k:v,...)]  Replace: no header stays
//	reschedule BODY after=10s                 Reschedule; after=0s: at once
//	force GROUP [count] [reason=TEXT] [of=WORKER] [where=TEMPLATE] [item=BODY]
//	                                          ForceRelease; of: only the claim that this worker was given last
//	retry GROUP [where=TEMPLATE]              RetryNow
//	pause [GROUP] [reason=TEXT] [by=WHO] [force] | resume [GROUP]     of the whole queue without GROUP
//	clock +10s                                moves the clock of all workers
//	redrive [ids=(BODY,...)] [group=GROUP] [text=TEXT] [older=10s] [newer=10s] [tail] [dry] [limit=N] [body=BODY]
//	        [headers=(k:v,...)]
//	discard, as redrive without tail, body and headers
//	fault KIND                                the next call at that fault's place meets it
//	groups [where=TEMPLATE] | peek GROUP [where=TEMPLATE] | stats
//	check [lasting]                           lasting: without stale hints and timers, which faults may leave
//	dead [group=GROUP] [text=TEXT] [older=10s] [newer=10s] [limit=N]
//	blocked [cause=CAUSE] [held-for=5m] [ready-for=1m] [limit=N] [where=TEMPLATE] | holders | find ID [group=GROUP]
//	subscribe NAME [where=TEMPLATE] [kinds=(KIND,...)] [from-oldest] [max=N] [fail=BODY]
//	        Subscribe, until all changes are told; in virtual time with beside=, until give-up. fail: the handler
//	        fails once at a change of this message
//	subscriptions | unsubscribe NAME
//	cut-off NAME | rejoin NAME                between these the handle does not reach the database, as if it had died
//	why BODY [where=TEMPLATE] | purge [GROUP] [force] | sweep
//	archive [group=GROUP] [older=10s] [newer=10s] [limit=N] | replay, as archive, with [dry]
//	once [panic]                              a transaction of the caller's by Once, which may panic
//	close | drop                              the end of a handle, and of the queue
//	rows [KIND...]                            how many keys of these kinds the queue has (item, ready, lock, receipt,
//	                                          request, …), or of all
//	spoil BODY | mend BODY                    makes the stored item unreadable, and readable again
//
// Schedules. Each line has ended before the next one begins, unless it says otherwise:
//
//	VERB... hold=NAME                         stops before the worker's next commit: everything is read, nothing is
//	                                          written. It prints "before its commit", or the result if there is no
//	                                          commit.
//	commit NAME [KIND] [hold]                 lets it commit, or meet that fault there and no other, and go on to its
//	                                          result; with hold to the worker's next commit, as that of its retry;
//	                                          before that is a pause, in virtual time one that needs a clock
//	VERB... beside=NAME                       runs beside what follows: prints the result if it has one when all else
//	                                          stands still, otherwise "not yet". In virtual time only.
//	answer NAME                               the result, or "not yet"
//	give-up NAME                              ends its context. In virtual time only.
//	hold NAME                                 stops it before the worker's next commit from now on; answer tells when
//	                                          it has come there
//	land                                      sends what met timed-out-late or version-changed-late; until then that
//	                                          is under way
//
// These take hold= and beside=: enqueue, receive, ack, ack-receive, nack, release, extend, keep, advance, take, cancel,
// skip, edit, replace, reschedule, force, retry, pause, resume, redrive, discard, replay, sweep, purge, unsubscribe,
// once, close, drop. A scenario with a line virtual-time runs in TestScenariosInVirtualTime: clock then lets time pass
// for timers too, and nothing else does.
//
// How to read one that fails: the transcript says what the queue has to answer; the test shows the first answer that
// differs, and with seeded faults what they were and the seed that replays them. A file named bug_… says first what
// went wrong once; its schedule is what it takes.
//
// To write the output again: go test ./layer/layertest -run 'TestScenarios/memory$' -rewrite
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
	t       *testing.T
	queue   string
	plan    *fault.Plan
	db      kv.DB
	workers map[string]*scenarioWorker
	bodies  map[layer.ID]string // as the transcript names them
	facets  bool                // the queue has some
	told    atomic.Bool         // see onCommit
	opened  uint64              // handles
	virtual bool                // it runs in virtual time
	asides  map[string]*aside
	spoilt  []byte // what stood where something is spoilt
	dropped bool
}

type scenarioWorker struct {
	q      *layer.Queue
	plan   *fault.Plan // of the faults chosen for its commits
	line   *line       // to the database
	stops  *stops
	claims map[string]*layer.Claim // the last of each name, see nameOf
}

// line is a handle's way to the database, which can be cut.
type line struct {
	kv.DB
	cut atomic.Bool
}

func (l *line) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	if l.cut.Load() {
		return nil, errors.New("cut off")
	}
	return l.DB.Begin(o)
}

func newScenario(t *testing.T, e *env, virtual bool) *scenario {
	s := &scenario{
		e: e, t: t, queue: t.Name(), plan: &fault.Plan{Seed: e.seed, Chances: maps.Clone(e.plan.Chances)},
		workers: make(map[string]*scenarioWorker), bodies: make(map[layer.ID]string),
		asides: make(map[string]*aside), virtual: virtual,
	}
	// After a conflict a receive spreads over the groups, and the order between them is a matter of chance.
	// Transcripts force conflicts where that order does not show.
	delete(s.plan.Chances, fault.Conflict)
	s.plan.OnCommit = s.onCommit
	s.db = fault.Wrap(e.raw, s.plan)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s", s.plan)
			t.Logf("replay: %s", replay(t, e.seed))
		}
	})
	return s
}

// begin makes the queue, before the first verb or by the verb create, and opens w1.
func (s *scenario) begin(c layer.Config) {
	s.facets = len(c.Facets) > 0
	_, err := layer.Create(s.e.ctx, s.e.raw, testPrefix, s.queue, layer.Options{Config: c})
	require.NoError(s.t, err)
	s.open(s.t, "w1", 0)
}

// create is the verb: the configuration of the queue, including the settings fixed at its creation.
func (s *scenario) create(a *arguments) (string, error) {
	c := layer.Config{Retry: atOnce}
	for _, arg := range a.d.CmdArgs {
		require.NoError(a.t, c.Set(arg.Key, strings.Join(arg.Vals, ",")), a.d.Pos)
	}
	for _, l := range strings.Split(strings.TrimSpace(a.d.Input), "\n") {
		if name, text, ok := strings.Cut(l, "="); ok {
			require.NoError(a.t, c.Set(name, text), a.d.Pos)
		}
	}
	s.begin(c)
	return "", nil
}

// open opens a handle whose faults are those of the scenario and, before these, those that commands choose.
func (s *scenario) open(t *testing.T, name string, skew time.Duration) {
	w := &scenarioWorker{
		line: &line{DB: s.db}, stops: &stops{ctx: s.e.ctx, told: &s.told}, claims: make(map[string]*layer.Claim),
	}
	w.plan = &fault.Plan{OnCommit: w.stops.onCommit, KeepLate: true}
	o := layer.Options{
		Owner: name, Test: &layer.TestOptions{Seed: s.e.seed + s.opened},
		Tx:  kv.TxOptions{MaxRetryDelay: time.Millisecond},
		Now: func() time.Time { return s.e.clock.now().Add(skew) },
	}
	s.opened++
	var err error
	w.q, err = layer.Open(s.e.ctx, fault.Wrap(w.line, w.plan), testPrefix, s.queue, o)
	require.NoError(t, err)
	if s.virtual { // where nothing may outlive the test
		t.Cleanup(func() {
			w.line.cut.Store(false)
			require.NoError(t, w.q.Close(context.Background()))
		})
	}
	s.workers[name] = w
}

func (s *scenario) openWorker(a *arguments) (string, error) {
	s.open(a.t, a.word(0), a.duration("skew"))
	return "", nil
}

// cutOff is what a handle meets that has died, or whose network has.
func (s *scenario) cutOff(a *arguments) (string, error) {
	s.workers[a.word(0)].line.cut.Store(a.d.Cmd == "cut-off")
	return "", nil
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

// verbs are what a transcript may say; see TestScenarios.
var verbs = map[string]func(s *scenario, a *arguments) (string, error){
	"create": (*scenario).create, "worker": (*scenario).openWorker, virtualTime: nothing,
	"cut-off": (*scenario).cutOff, "rejoin": (*scenario).cutOff,
	"clock": (*scenario).moveClock, "config": (*scenario).configure, "fault": (*scenario).forceFault,
	"commit": (*scenario).aside, "answer": (*scenario).aside, "give-up": (*scenario).aside, "hold": (*scenario).aside,
	"land": (*scenario).land, "once": (*scenario).once, "close": (*scenario).close, "drop": (*scenario).drop,
	"rows": (*scenario).rows, "spoil": (*scenario).spoil, "mend": (*scenario).spoil,

	"enqueue": (*scenario).enqueue, "receive": (*scenario).receive, "take": (*scenario).take,
	"ack": (*scenario).ack, "ack-receive": (*scenario).ackReceive, "keep": (*scenario).keep,
	"nack": (*scenario).nack, "release": (*scenario).nack, "extend": (*scenario).extend,
	"advance": (*scenario).advance, "state": (*scenario).state,
	"reschedule": (*scenario).reschedule, "replace": (*scenario).replace,

	"cancel": (*scenario).cancel, "skip": (*scenario).skip, "edit": (*scenario).edit, "force": (*scenario).force,
	"retry": (*scenario).retry, "pause": (*scenario).pause, "resume": (*scenario).pause,
	"dead": (*scenario).dead, "redrive": (*scenario).redrive, "discard": (*scenario).redrive,
	"archive": (*scenario).archive, "replay": (*scenario).replay,
	"sweep": (*scenario).sweep, "purge": (*scenario).purge,

	"groups": (*scenario).groups, "peek": (*scenario).peek, "why": (*scenario).why, "find": (*scenario).find,
	"blocked": (*scenario).blocked, "holders": (*scenario).holders,
	"stats": (*scenario).stats, "check": (*scenario).check,
	"subscribe": (*scenario).subscribe, "subscriptions": (*scenario).subscriptions,
	"unsubscribe": (*scenario).unsubscribe,
}

// answers are the errors that a transcript has words for.
var answers = []struct {
	err  error
	text string
}{
	{layer.ErrClaimLost, "claim lost"}, {layer.ErrNotInClaim, "not in claim"}, {layer.ErrNotDead, "not dead"},
	{layer.ErrNoItem, "no such item"}, {layer.ErrInFlight, "in flight"}, {layer.ErrHeld, "held"},
	{layer.ErrNotHeld, "not held"}, {layer.ErrNotDelayed, "not delayed"}, {layer.ErrNotPaused, "not paused"},
	{layer.ErrClosed, "closed"}, {layer.ErrNoQueue, "no such queue"}, {layer.ErrCorrupt, "corrupt"},
	{layer.ErrNoSubscription, "no such subscription"}, {context.Canceled, "given up"},
}

func (s *scenario) run(t *testing.T, d *datadriven.TestData) string {
	own := *d // a call may go on while later directives run, which are read into d
	a := &arguments{t: t, d: &own}
	do := verbs[d.Cmd]
	if do == nil {
		d.Fatalf(t, "unknown verb %q", d.Cmd)
	}
	if s.workers["w1"] == nil && d.Cmd != "create" {
		s.begin(layer.Config{Retry: atOnce})
	}
	out, err := do(s, a)
	for _, r := range answers {
		if !errors.Is(err, r.err) {
			continue
		}
		if r.err == layer.ErrNotDead {
			return r.text + ": " + out
		}
		return r.text
	}
	switch {
	case kv.Code(err) == kv.CodeTransactionTimedOut:
		return "timed out"
	case err != nil:
		return "error: " + tokens.ReplaceAllString(err.Error(), "token N")
	case out == "":
		return "ok"
	}
	return out
}

func nothing(*scenario, *arguments) (string, error) { return "", nil }

func (s *scenario) forceFault(a *arguments) (string, error) {
	s.plan.ForceNext(a.fault(a.word(0)))
	return "", nil
}

func (s *scenario) worker(a *arguments) *scenarioWorker {
	name := a.text("worker", "w1")
	w := s.workers[name]
	if w == nil {
		a.d.Fatalf(a.t, "no worker %q", name)
	}
	return w
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

// named is how the transcript calls an item. One that has joined its group is known by its random.
func (s *scenario) named(id layer.ID) (name string, ok bool) {
	if name, ok = s.bodies[id]; ok {
		return name, true
	}
	for old, name := range s.bodies {
		if old.Random == id.Random && strings.HasPrefix(old.Group, id.Group+" (until ") {
			delete(s.bodies, old)
			s.bodies[id] = name
			return name, true
		}
	}
	return "", false
}

// items prints items as the transcript names them, and checks that their bodies are the enqueued ones.
func (s *scenario) items(a *arguments, items []layer.Item) string {
	var out strings.Builder
	for _, item := range items {
		name, ok := s.named(item.ID)
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

// flag reports whether the directive has the word.
func (a *arguments) flag(word string) bool { return slices.Contains(a.words(), word) }

// names returns the words without those that are flags.
func (a *arguments) names(flags ...string) []string {
	return slices.DeleteFunc(a.words(), func(w string) bool { return slices.Contains(flags, w) })
}

// group is the one that group= names; nil = any.
func (a *arguments) group() *string {
	if !a.d.HasArg("group") {
		return nil
	}
	group := strings.Trim(a.text("group", ""), `"`)
	return &group
}

// where is the template that where= names; nil = whole groups.
func (a *arguments) where() layer.Template {
	t, err := layer.ParseTemplate(a.text("where", "*"))
	require.NoError(a.t, err, a.d.Pos)
	return t
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
