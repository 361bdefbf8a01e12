package kvtest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"fdbfifo/internal/seeds"
	"fdbfifo/kv"
)

// modelRuns drives random interleaved transactions on the engine and on the naive model side by side.
func modelRuns(t *testing.T, e Engine) {
	const steps = 2000
	first := []uint64{1, 2, 3, 4, 5, 6, 7, 8, seeds.Of(t.Name())}
	if s, err := strconv.ParseUint(os.Getenv(seedVariable), 10, 64); err == nil {
		first = []uint64{s}
	}
	if testing.Short() {
		first = first[max(0, len(first)-3):]
	}
	for _, seed := range first {
		name := fmt.Sprintf("seed %d", seed)
		if seed > 8 {
			name = "the seed of SEED"
		}
		t.Run(name, func(t *testing.T) {
			err := compareWithModel(context.Background(), e, seed, steps)
			if errors.Is(err, errInconclusive) {
				t.Skip(err)
			}
			if err != nil {
				t.Fatalf("%v\nreplay: %s=%d go test -run '^%s$'", err, seedVariable, seed,
					strings.Split(t.Name(), "/")[0])
			}
		})
	}
}

// seedVariable names the environment variable that replays one run of the model.
const seedVariable = "KVTEST_SEED"

// errInconclusive ends a run in which the cluster could not say whether a commit happened.
var errInconclusive = errors.New("kvtest: a commit of the run ended with 1021")

// compareWithModel runs steps random operations and returns the first difference, with the operations before it.
func compareWithModel(ctx context.Context, e Engine, seed uint64, steps int) error {
	ctx, cancel := context.WithTimeout(ctx, 5*patience)
	defer cancel()
	d := &driver{ctx: ctx, engine: e, prefix: randomPrefix(), rng: rand.New(rand.NewPCG(seed, seed))}
	defer d.close()
	if err := d.start(); err != nil {
		return fmt.Errorf("starting the run: %w", err)
	}
	for n := range steps {
		if err := d.step(); err != nil {
			return fmt.Errorf("seed %d, step %d: %w\nthe operations before:\n%s", seed, n, err,
				strings.Join(d.trace, "\n"))
		}
	}
	return d.compareState()
}

// driver holds one run: the engine's transactions and their twins of the model.
type driver struct {
	ctx    context.Context
	engine Engine
	prefix []byte
	rng    *rand.Rand
	model  *model
	pairs  []*pair
	menu   []action
	trace  []string // the last operations, oldest first
}

// pair is one transaction on both sides.
type pair struct {
	name     string
	real     kv.ManagedTx
	twin     *modelTx
	pending  []func() error // comparisons of reads whose results are not yet read
	began    time.Time
	borrowed bool // its read version was set: an engine may then find it too old
	tooOld   bool // a read ended with 1007, legally
}

// The keys of a run: an area where everything happens, fences that keep selectors inside the prefix, and an area
// for versionstamped keys.
const (
	area   = "k"
	stamps = "v"
)

func shortKeys() []string {
	return []string{
		"", "\x00", "a", "a\x00", "a\x00\x00", "aa", "ab", "b", "ba", "bb", "c", "c\x00", "ca", "d", "e", "f", "g",
		"\xfe", "\xff", "\xff\x00",
	}
}

func (d *driver) start() error {
	state := map[string][]byte{}
	for i := range fence {
		state[fmt.Sprintf("b%d", i)] = []byte("fence")
		state[fmt.Sprintf("t%d", i)] = []byte("fence")
	}
	for _, k := range shortKeys() {
		if d.rng.IntN(2) == 0 {
			state[area+k] = d.value()
		}
	}
	version, err := kv.Run(d.ctx, d.engine.DB, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		for k, v := range state {
			tx.Set(d.full(k), v)
		}
		return nil
	})
	if err != nil {
		return err
	}
	d.model = &model{versions: []modelVersion{{version: version, state: state}}}
	d.menu = d.swarm()
	for i := range 3 + d.rng.IntN(3) {
		real, err := d.engine.DB.Begin(kv.TxOptions{MaxRetryDelay: time.Millisecond})
		if err != nil {
			return err
		}
		p := &pair{name: fmt.Sprintf("T%d", i), real: real}
		d.fresh(p)
		d.pairs = append(d.pairs, p)
	}
	return nil
}

func (d *driver) close() {
	for _, p := range d.pairs {
		p.real.Cancel()
	}
	// A fresh context: the run's own may have ended, and the prefix must still be cleared.
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_ = clearPrefix(ctx, d.engine.DB, d.prefix) // at worst rows stay, under a prefix that no other run uses
}

// fresh gives p a new twin, after the engine's transaction was reset.
func (d *driver) fresh(p *pair) {
	*p = pair{name: p.name, real: p.real, twin: &modelTx{m: d.model}, began: time.Now()}
}

func (d *driver) full(k string) []byte { return append(slices.Clone(d.prefix), k...) }

func (d *driver) short(k []byte) string { return strings.TrimPrefix(string(k), string(d.prefix)) }

func (d *driver) log(p *pair, format string, args ...any) {
	const kept = 60
	d.trace = append(d.trace, p.name+" "+fmt.Sprintf(format, args...))
	if len(d.trace) > kept {
		d.trace = d.trace[1:]
	}
}

func (d *driver) step() error {
	p := d.pairs[d.rng.IntN(len(d.pairs))]
	total := 0
	for _, a := range d.menu {
		total += a.weight
	}
	n := d.rng.IntN(total)
	for _, a := range d.menu {
		if n -= a.weight; n < 0 {
			if err := a.do(p); err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
			break
		}
	}
	if p.tooOld {
		return d.abandon(p)
	}
	return nil
}

// abandon resets both sides of a transaction that grew too old.
func (d *driver) abandon(p *pair) error {
	d.log(p, "too old, reset")
	p.real.Reset()
	d.fresh(p)
	return nil
}

// fixReadVersion asks the engine for the read version that the next read will use.
func (d *driver) fixReadVersion(p *pair) error {
	if p.twin.readVersion != 0 {
		return nil
	}
	v, err := p.real.ReadVersion().Wait(d.ctx)
	if err != nil {
		return fmt.Errorf("read version: %w", err)
	}
	if last := d.model.latest().version; v < last {
		return fmt.Errorf("read version %d lies before the commit %d, which was acknowledged", v, last)
	}
	p.twin.readVersion = v
	d.log(p, "read version %d", v)
	return nil
}

// mayBeTooOld reports whether 1007 is a legal answer: at borrowed versions, and near the end of the 5 s window.
func (p *pair) mayBeTooOld() bool { return p.borrowed || time.Since(p.began) > 4*time.Second }

// finish waits for all reads and compares them.
func (d *driver) finish(p *pair) error {
	pending := p.pending
	p.pending = nil
	for _, compare := range pending {
		if err := compare(); err != nil {
			return err
		}
	}
	return nil
}

// later keeps a comparison, or makes it at once: both orders of waiting and writing must give the same.
func (d *driver) later(p *pair, what string, compare func() error) error {
	p.pending = append(p.pending, func() error {
		if err := compare(); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		return nil
	})
	if d.rng.IntN(2) == 0 {
		return d.finish(p)
	}
	return nil
}

// compareError compares how a read ended; ok is true if there is a result to compare.
func (p *pair) compareError(err error, want int) (ok bool, diff error) {
	switch got := kv.Code(err); {
	case err != nil && got == 0:
		return false, err
	case got == kv.CodeTransactionTooOld && p.mayBeTooOld():
		p.tooOld = true
		return false, nil
	case got != want:
		return false, fmt.Errorf("ended with code %d, want %d", got, want)
	}
	return want == 0, nil
}

// compareState compares all that is stored with the model's newest version.
func (d *driver) compareState() error {
	var stored []kv.KV
	_, err := kv.Run(d.ctx, d.engine.DB, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		var err error
		stored, err = tx.GetRange(kv.PrefixRange(d.prefix).Selectors(), kv.RangeOptions{}).Wait(d.ctx)
		return err
	})
	if err != nil {
		return fmt.Errorf("reading the whole state: %w", err)
	}
	want := d.model.latest().state
	for _, row := range stored {
		if v, ok := want[d.short(row.Key)]; !ok || !bytes.Equal(v, row.Value) {
			return fmt.Errorf("stored %q=%q, want %q (present %v)", d.short(row.Key), row.Value, v, ok)
		}
	}
	if len(stored) != len(want) {
		return fmt.Errorf("%d keys are stored, want %d", len(stored), len(want))
	}
	return nil
}

// commit commits both sides and starts over.
func (d *driver) commit(p *pair) error {
	if err := d.compareConflictRanges(p); err != nil {
		return err
	}
	want := p.twin.outcome()
	stampFuture := p.real.Versionstamp()
	d.log(p, "commit, expecting %d", want)
	_, err := p.real.Commit().Wait(d.ctx)
	got := kv.Code(err)
	switch {
	case err != nil && got == 0:
		return err
	case got == want && got == 0:
		if err := d.committed(p, stampFuture); err != nil {
			return err
		}
	case got == want:
	case got == kv.CodeTransactionTooOld && p.mayBeTooOld():
	case got == kv.CodeCommitUnknownResult && !d.engine.ExactConflicts:
		return errInconclusive
	case got == kv.CodeNotCommitted && want == 0 && !d.engine.ExactConflicts:
	default:
		return fmt.Errorf("commit ended with code %d, want %d", got, want)
	}
	if err := d.finish(p); err != nil {
		return fmt.Errorf("after the commit: %w", err)
	}
	return d.startOver(p, err)
}

// committed checks the version and the stamp of a successful commit and makes it the model's newest.
func (d *driver) committed(p *pair, stampFuture kv.Future[[10]byte]) error {
	version, err := p.real.CommittedVersion()
	if err != nil {
		return fmt.Errorf("committed version: %w", err)
	}
	stamp, stampErr := stampFuture.Wait(d.ctx)
	if p.twin.writesNothing() {
		if version != -1 || kv.Code(stampErr) != kv.CodeNoCommitVersion {
			return fmt.Errorf("read-only commit has version %d and stamp error %v", version, stampErr)
		}
		return nil
	}
	if stampErr != nil {
		return fmt.Errorf("versionstamp: %w", stampErr)
	}
	if last := d.model.latest().version; version <= last || version <= p.twin.readVersion {
		return fmt.Errorf("commit version %d is not above the last commit %d and the read version %d",
			version, last, p.twin.readVersion)
	}
	if binary.BigEndian.Uint64(stamp[:8]) != uint64(version) {
		return fmt.Errorf("stamp %x does not begin with the commit version %d", stamp, version)
	}
	d.log(p, "committed at %d", version)
	p.twin.commit(version, stamp)
	return nil
}

// startOver resets the engine's transaction in one of the ways there are.
func (d *driver) startOver(p *pair, commitErr error) error {
	if kv.Code(commitErr) == kv.CodeNotCommitted && d.rng.IntN(2) == 0 {
		if _, err := p.real.OnError(commitErr).Wait(d.ctx); err != nil {
			return fmt.Errorf("OnError: %w", err)
		}
		d.fresh(p)
		return nil
	}
	return d.reset(p)
}

func (d *driver) reset(p *pair) error {
	if d.rng.IntN(2) == 0 {
		d.log(p, "reset")
		p.real.Reset()
		d.fresh(p)
		return nil
	}
	d.log(p, "new transaction")
	p.real.Cancel()
	real, err := d.engine.DB.Begin(kv.TxOptions{MaxRetryDelay: time.Millisecond})
	if err != nil {
		return err
	}
	p.real = real
	d.fresh(p)
	return nil
}

// compareConflictRanges compares range by range if the engine can tell, else it does nothing. Half of the time it
// leaves the reads pending, as the commit then waits for them.
func (d *driver) compareConflictRanges(p *pair) error {
	reporter, ok := p.real.(kv.ConflictReporter)
	if !ok || p.twin.failedRead {
		if d.rng.IntN(2) == 0 {
			return d.finish(p)
		}
		return nil
	}
	if err := d.finish(p); err != nil {
		return err
	}
	if p.tooOld {
		return nil
	}
	reads, writes, err := reporter.ConflictRanges(d.ctx)
	if err != nil {
		return fmt.Errorf("conflict ranges: %w", err)
	}
	if err := sameRanges("read", clip(reads, d.prefix), p.twin.reads); err != nil {
		return err
	}
	got, want := clip(writes, d.prefix), p.twin.writes
	if p.twin.log.has(kv.SetVersionstampedKey) {
		// Until the commit the place of a versionstamped key is a guess.
		guesses := span{stamps, stamps + afterAll}
		got, want = without(got, guesses), without(want, guesses)
	}
	return sameRanges("write", got, want)
}

func sameRanges(kind string, got, want []span) error {
	if !slices.Equal(got, merged(got)) {
		return fmt.Errorf("%s conflict ranges are not sorted and merged: %q", kind, got)
	}
	if want = merged(want); !slices.Equal(got, want) {
		return fmt.Errorf("%s conflict ranges differ:\n got %q\nwant %q", kind, got, want)
	}
	return nil
}
