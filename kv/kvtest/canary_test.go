package kvtest

import (
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

func openMemory(t testing.TB) Engine {
	clock := &jumpClock{}
	db := embedded.OpenMemory(embedded.Options{Clock: clock})
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return Engine{DB: db, ExactConflicts: true, Advance: clock.advance}
}

// jumpClock is the wall clock, set forward by the sum of all calls of advance.
type jumpClock struct{ ahead atomic.Int64 }

func (c *jumpClock) advance(d time.Duration) { c.ahead.Add(int64(d)) }

func (c *jumpClock) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

func (c *jumpClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// TestRunAsOnACluster runs the suite on an engine that declares little: no exact conflicts, and no report of
// conflict ranges. The engine's own tests declare all it can.
func TestRunAsOnACluster(t *testing.T) {
	Run(t, func(t *testing.T) Engine {
		e := openMemory(t)
		e.DB = &brokenDB{DB: e.DB, breakTx: func(tx *brokenTx) kv.ManagedTx { return tx }}
		e.ExactConflicts = false
		return e
	})
}

// breakages are engines with one small fault each, made by wrapping a right one.
func breakages() map[string]func(tx *brokenTx) kv.ManagedTx {
	return map[string]func(tx *brokenTx) kv.ManagedTx{
		"gets drop read conflicts":           func(tx *brokenTx) kv.ManagedTx { return droppedConflicts{tx} },
		"gets conflict with the next key":    func(tx *brokenTx) kv.ManagedTx { return wideConflicts{tx} },
		"limits do not bound conflicts":      func(tx *brokenTx) kv.ManagedTx { return unboundedRanges{tx} },
		"snapshots ignore own writes":        func(tx *brokenTx) kv.ManagedTx { return blindSnapshots{tx} },
		"cleared keys come back":             func(tx *brokenTx) kv.ManagedTx { return &resurrection{brokenTx: tx} },
		"sets have no write conflict":        func(tx *brokenTx) kv.ManagedTx { return silentSets{tx} },
		"sets conflict with sets":            func(tx *brokenTx) kv.ManagedTx { return jealousSets{tx} },
		"reads see writes issued after them": func(tx *brokenTx) kv.ManagedTx { return lazyGets{tx} },
		"atomics are reads and sets":         func(tx *brokenTx) kv.ManagedTx { return readingAtomics{tx} },
		"orEqual is forgotten":               func(tx *brokenTx) kv.ManagedTx { return forgetfulSelectors{tx} },
		"an empty value reads as absent":     func(tx *brokenTx) kv.ManagedTx { return emptyIsAbsent{tx} },
	}
}

// TestCanaryModel proves that the model run can fail: it passes on the right engine and catches every fault, with
// conflict ranges compared and also by outcomes alone.
func TestCanaryModel(t *testing.T) {
	const seeds, steps = 30, 1500
	firstCaught := func(e Engine) error {
		for seed := range uint64(seeds) {
			if err := compareWithModel(t.Context(), e, seed, steps); err != nil {
				return err
			}
		}
		return nil
	}
	for _, reporting := range []bool{true, false} {
		engine := func(t *testing.T, breakTx func(tx *brokenTx) kv.ManagedTx) Engine {
			e := openMemory(t)
			e.DB = &brokenDB{DB: e.DB, breakTx: breakTx, reporting: reporting}
			return e
		}
		t.Run(fmt.Sprintf("right, reporting %v", reporting), func(t *testing.T) {
			e := engine(t, func(tx *brokenTx) kv.ManagedTx { return tx })
			for seed := range uint64(3) {
				require.NoError(t, compareWithModel(t.Context(), e, seed, steps))
			}
		})
		for name, breakTx := range breakages() {
			t.Run(fmt.Sprintf("%s, reporting %v", name, reporting), func(t *testing.T) {
				require.Error(t, firstCaught(engine(t, breakTx)))
			})
		}
	}
}

// TestCanaryPromises proves that the promises can fail: every fault breaks at least one.
func TestCanaryPromises(t *testing.T) {
	for name, breakTx := range breakages() {
		t.Run(name, func(t *testing.T) {
			e := openMemory(t)
			e.DB = &brokenDB{DB: e.DB, breakTx: breakTx, always: true}
			var broken []string
			for _, c := range chapters() {
				switch c.name {
				case "Isolation", "Conflicts", "OwnWrites", "Selectors", "Atomic":
				default:
					continue
				}
				for _, p := range c.promises() {
					if len(attempt(t, e, p.body)) > 0 {
						broken = append(broken, p.name)
					}
				}
			}
			require.NotEmpty(t, broken)
		})
	}
}

// brokenDB wraps every transaction of a right engine with a fault.
type brokenDB struct {
	kv.DB
	breakTx   func(tx *brokenTx) kv.ManagedTx
	reporting bool // keep kv.ConflictReporter visible
	always    bool // the fault strikes at every call, else at every fifth
	calls     atomic.Int64
}

func (db *brokenDB) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	real, err := db.DB.Begin(o)
	if err != nil {
		return nil, err
	}
	tx := db.breakTx(&brokenTx{ManagedTx: real, db: db})
	if !db.reporting {
		return tx, nil
	}
	return reportingTx{tx, real.(kv.ConflictReporter)}, nil
}

type reportingTx struct {
	kv.ManagedTx
	kv.ConflictReporter
}

// brokenTx is what the faults share. On its own it is right.
type brokenTx struct {
	kv.ManagedTx
	db *brokenDB
}

// strikes reports whether the fault applies to this call.
func (tx *brokenTx) strikes() bool { return tx.db.always || tx.db.calls.Add(1)%5 == 0 }

type droppedConflicts struct{ *brokenTx }

func (tx droppedConflicts) Get(key []byte) kv.Future[[]byte] {
	if tx.strikes() {
		return tx.Snapshot().Get(key)
	}
	return tx.ManagedTx.Get(key)
}

type wideConflicts struct{ *brokenTx }

func (tx wideConflicts) Get(key []byte) kv.Future[[]byte] {
	if tx.strikes() {
		_ = tx.AddReadConflictRange(kv.KeyRange{Begin: key, End: append(kv.KeyAfter(key), 'z')})
	}
	return tx.ManagedTx.Get(key)
}

type unboundedRanges struct{ *brokenTx }

func (tx unboundedRanges) GetRange(r kv.Range, o kv.RangeOptions) kv.Future[[]kv.KV] {
	if tx.strikes() && o.Limit > 0 {
		_ = tx.AddReadConflictRange(kv.KeyRange{Begin: r.Begin.Key, End: r.End.Key})
	}
	return tx.ManagedTx.GetRange(r, o)
}

type blindSnapshots struct{ *brokenTx }

func (tx blindSnapshots) Snapshot() kv.ReadTx {
	v, err := tx.ReadVersion().Wait(context.Background())
	if err != nil || !tx.strikes() {
		return tx.ManagedTx.Snapshot()
	}
	other, err := tx.db.DB.Begin(kv.TxOptions{})
	if err != nil {
		return tx.ManagedTx.Snapshot()
	}
	other.SetReadVersion(v)
	return other
}

type resurrection struct {
	*brokenTx
	key, value []byte
}

func (tx *resurrection) Clear(key []byte) {
	if v, err := tx.Snapshot().Get(key).Wait(context.Background()); err == nil && v != nil && tx.strikes() {
		tx.key, tx.value = append([]byte(nil), key...), v
	}
	tx.ManagedTx.Clear(key)
}

func (tx *resurrection) Commit() kv.Future[struct{}] {
	if tx.key != nil {
		tx.Set(tx.key, tx.value)
	}
	return tx.ManagedTx.Commit()
}

type silentSets struct{ *brokenTx }

func (tx silentSets) Set(key, value []byte) {
	if tx.strikes() {
		tx.NextWriteNoConflict()
	}
	tx.ManagedTx.Set(key, value)
}

type jealousSets struct{ *brokenTx }

func (tx jealousSets) Set(key, value []byte) {
	if tx.strikes() {
		_ = tx.AddReadConflictRange(kv.SingleKey(key))
	}
	tx.ManagedTx.Set(key, value)
}

type lazyGets struct{ *brokenTx }

func (tx lazyGets) Get(key []byte) kv.Future[[]byte] {
	if !tx.strikes() {
		return tx.ManagedTx.Get(key)
	}
	return &lazyGet{tx.ManagedTx, append([]byte(nil), key...)}
}

type lazyGet struct {
	tx  kv.ManagedTx
	key []byte
}

func (f *lazyGet) Wait(ctx context.Context) ([]byte, error) { return f.tx.Get(f.key).Wait(ctx) }
func (f *lazyGet) Ready() bool                              { return false }
func (f *lazyGet) Cancel()                                  {}

type readingAtomics struct{ *brokenTx }

func (tx readingAtomics) Atomic(op kv.MutationType, key, operand []byte) {
	if op != kv.Add || !tx.strikes() {
		tx.ManagedTx.Atomic(op, key, operand)
		return
	}
	v, err := tx.Get(key).Wait(context.Background())
	if err == nil {
		tx.Set(key, foldAtomic(op, v, operand))
	}
}

type forgetfulSelectors struct{ *brokenTx }

func (tx forgetfulSelectors) GetKey(s kv.KeySelector) kv.Future[[]byte] {
	if tx.strikes() {
		s.OrEqual = false
	}
	return tx.ManagedTx.GetKey(s)
}

type emptyIsAbsent struct{ *brokenTx }

func (tx emptyIsAbsent) Get(key []byte) kv.Future[[]byte] {
	v, err := tx.ManagedTx.Get(key).Wait(context.Background())
	if len(v) == 0 && tx.strikes() {
		v = nil
	}
	return kv.Done(v, err)
}

func BenchmarkEmbedded(b *testing.B) {
	Bench(b, func(b *testing.B) Engine { return openMemory(b) })
}
