package layer_test

import (
	"context"
	"flag"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/internal/seeds"
	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/fault"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

var seedFlag = flag.Uint64("layer.seed", 0, "seed of the fault plans and random choices; 0 = of SEED")

// env is one queue on one engine, with the means to disturb it.
type env struct {
	t     *testing.T
	ctx   context.Context
	raw   kv.DB // the engine without faults
	db    kv.DB // what the queue runs on
	plan  *fault.Plan
	clock *clock
	q     *layer.Queue
	seed  uint64
	joins uint64 // handles that join has opened
}

var testPrefix = tuple.Tuple{"test"}.Pack()

const testQueue = "q"

// atOnce is the retry policy of the tests' queues, unless they are about retries: what is given back is there again.
var atOnce = layer.RetryPolicy{Kind: layer.RetryAtOnce}

// clock is the workers' clock; it stands still unless told.
type clock struct {
	ms       *atomic.Int64
	versions atomic.Int64 // by how many the database is ahead of its engine
	real     atomic.Bool  // it is the machine's
}

func newClock() *clock {
	c := &clock{ms: new(atomic.Int64)}
	c.ms.Store(1_700_000_000_000)
	return c
}

func (c *clock) now() time.Time {
	if c.real.Load() {
		return time.Now()
	}
	return time.UnixMilli(c.ms.Load())
}

// advance lets time pass, for the database's versions, too. A negative d sets the workers' clock back.
func (c *clock) advance(d time.Duration) {
	c.ms.Add(d.Milliseconds())
	c.versions.Add(max(0, d.Microseconds()))
}

// timedDB is an engine whose versions follow the clock of the test.
type timedDB struct {
	kv.DB
	clock *clock
}

func (d timedDB) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := d.DB.Begin(o)
	if err != nil {
		return nil, err
	}
	t := timedTx{tx, d.clock}
	if reporter, ok := tx.(kv.ConflictReporter); ok {
		return timedReporter{t, reporter}, nil
	}
	return t, nil
}

type timedReporter struct {
	timedTx
	kv.ConflictReporter
}

type timedTx struct {
	kv.ManagedTx
	clock *clock
}

func (t timedTx) ReadVersion() kv.Future[int64] {
	return timedVersion{t.ManagedTx.ReadVersion(), t.clock}
}

func (t timedTx) SetReadVersion(v int64) { t.ManagedTx.SetReadVersion(v - t.clock.versions.Load()) }

func (t timedTx) Snapshot() kv.ReadTx { return timedReads{t.ManagedTx.Snapshot(), t} }

func (t timedTx) CommittedVersion() (int64, error) {
	v, err := t.ManagedTx.CommittedVersion()
	if v >= 0 {
		v += t.clock.versions.Load()
	}
	return v, err
}

type timedReads struct {
	kv.ReadTx
	tx timedTx
}

func (r timedReads) ReadVersion() kv.Future[int64] { return r.tx.ReadVersion() }

type timedVersion struct {
	kv.Future[int64]
	clock *clock
}

func (v timedVersion) Wait(ctx context.Context) (int64, error) {
	version, err := v.Future.Wait(ctx)
	return version + v.clock.versions.Load(), err
}

// onEngines runs a test on each engine: without faults, and with the default ones, which are seeded conflicts, unknown
// commits (applied and lost), failing reads. Each run ends with a full check. The test runs in parallel with others
// from here on, because it mostly waits for a disk, or until a conflict is tried again.
func onEngines(t *testing.T, test func(e *env)) {
	t.Helper()
	t.Parallel()
	for _, engine := range engines() {
		t.Run(engine.name, func(t *testing.T) {
			t.Parallel()
			test(newEnv(t, engine.open, engine.faults))
		})
	}
}

func newEnv(t *testing.T, open func(t *testing.T) kv.DB, faults bool) *env {
	t.Helper()
	return newEnvOf(t, open, faults, func(*layer.Config) {})
}

// newEnvOf is newEnv with a queue of other settings.
func newEnvOf(t *testing.T, open func(t *testing.T) kv.DB, faults bool, change func(c *layer.Config)) *env {
	t.Helper()
	e := &env{t: t, ctx: t.Context(), clock: newClock(), seed: *seedFlag, plan: &fault.Plan{}}
	if e.seed == 0 {
		e.seed = seeds.Of(t.Name())
	}
	if faults {
		e.plan = fault.Default(e.seed)
	}
	e.raw = timedDB{open(t), e.clock}
	e.db = fault.Wrap(e.raw, e.plan)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("%s", e.plan)
			t.Logf("replay: %s", replay(t, e.seed))
		}
		require.NoError(t, e.raw.Close())
	})
	o := e.options(1)
	change(&o.Config)
	var err error
	e.q, err = layer.Create(e.ctx, e.db, testPrefix, testQueue, o)
	require.NoError(t, err)
	// Registered last, so it runs first: every test ends with the full check.
	t.Cleanup(e.check)
	return e
}

// inMemory opens the engine of a test in virtual time, whatever the others run on.
func inMemory(*testing.T) kv.DB { return embedded.OpenMemory(embedded.Options{}) }

// on returns the same database with another of its queues, or handles, as the one under test.
func (e *env) on(q *layer.Queue) *env {
	other := *e
	other.q = q
	return &other
}

// options of the n-th handle.
func (e *env) options(n uint64) layer.Options {
	o := layer.Options{
		Owner: fmt.Sprintf("worker-%d", n), Now: e.clock.now, Config: layer.Config{Retry: atOnce},
		Test: &layer.TestOptions{Seed: e.seed + n},
	}
	if *takeBackFlag {
		o.Hooks = []layer.Hook{{End: takeBack}}
	}
	return o
}

// handle opens another handle, as another process would.
func (e *env) handle(n uint64) *layer.Queue {
	e.t.Helper()
	q, err := layer.Open(e.ctx, e.db, testPrefix, testQueue, e.options(n))
	require.NoError(e.t, err)
	return q
}

// calm returns a handle without faults, to look at the queue with.
func (e *env) calm() *layer.Queue {
	e.t.Helper()
	q, err := layer.Open(context.Background(), e.raw, testPrefix, testQueue, e.options(99))
	require.NoError(e.t, err)
	return q
}

// check holds the whole queue to its invariants.
func (e *env) check() {
	report, err := e.calm().Admin().Check(context.Background(), layer.CheckOptions{})
	require.NoError(e.t, err)
	require.Empty(e.t, report.Violations)
	require.Empty(e.t, report.Unconfirmed)
	stats, err := e.calm().Stats(context.Background(), layer.StatsOptions{})
	require.NoError(e.t, err)
	inFlight := 0
	for g, err := range e.calm().Admin().AllGroups(context.Background(), layer.GroupsOptions{MaxDepth: 1}) {
		require.NoError(e.t, err)
		inFlight += g.Outstanding
	}
	require.EqualValues(e.t, inFlight, stats.InFlight, "what the counters say is in flight is what the locks say")
}

func (e *env) enqueue(group string, bodies ...string) []layer.ID {
	e.t.Helper()
	msgs := make([]layer.Message, len(bodies))
	for i, b := range bodies {
		msgs[i] = layer.Message{Group: group, Body: []byte(b)}
	}
	sent, err := e.q.Enqueue(e.ctx, msgs...)
	require.NoError(e.t, err)
	return idsOf(sent)
}

// idsOf returns the ids of sent messages.
func idsOf(sent []layer.Sent) []layer.ID {
	ids := make([]layer.ID, len(sent))
	for i := range sent {
		ids[i] = sent[i].ID
	}
	return ids
}

// receive claims one group.
func (e *env) receive(q *layer.Queue, max int) *layer.Claim {
	e.t.Helper()
	claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Max: max, MaxGroups: 1})
	require.NoError(e.t, err)
	if len(claims) == 0 {
		return nil
	}
	require.Len(e.t, claims, 1)
	return claims[0]
}

// take takes in a transaction of its own, and again as long as TakeTx says so.
func (e *env) take(q *layer.Queue, max int, o layer.TakeOptions) ([]layer.Item, error) {
	return takeFrom(e.ctx, q, max, o)
}

func takeFrom(ctx context.Context, q *layer.Queue, max int, o layer.TakeOptions) (items []layer.Item, err error) {
	for again := true; again && err == nil; {
		err = q.Once(ctx, func(tx kv.Tx) (err error) {
			items, again, err = q.TakeTx(ctx, tx, max, o)
			return err
		})
	}
	return items, err
}

func bodies(items []layer.Item) []string {
	out := make([]string, len(items))
	for i, item := range items {
		out[i] = string(item.Body)
	}
	return out
}

// all lists what a group has, in order.
func (e *env) all(group string) []string {
	e.t.Helper()
	items, err := e.calm().Peek(context.Background(), group, layer.MaxBatch, nil)
	require.NoError(e.t, err)
	return bodies(items)
}

// key builds a key of the test queue by hand, independent of the layer's own code.
func key(elements ...any) []byte {
	return append(append([]byte(nil), testPrefix...), append(tuple.Tuple{testQueue}, elements...).Pack()...)
}
