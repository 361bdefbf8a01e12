package layer_test

import (
	"bytes"
	"context"
	"sync"
	"sync/atomic"
	"testing"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

// sizes has the largest rows and transactions that were written, in bytes.
type sizes struct {
	mu           sync.Mutex
	keys, values map[string]int // by the name of the key
	calls        map[string]int // transactions, by the purpose
}

func newSizes() *sizes {
	return &sizes{keys: make(map[string]int), values: make(map[string]int), calls: make(map[string]int)}
}

func (s *sizes) note(in map[string]int, name string, size int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	in[name] = max(in[name], size)
}

// join adds the sizes of another run.
func (s *sizes) join(o *sizes) {
	for _, both := range [][2]map[string]int{{s.keys, o.keys}, {s.values, o.values}, {s.calls, o.calls}} {
		for name, size := range both[1] {
			s.note(both[0], name, size)
		}
	}
}

// refusals counts the attempts that the engine has refused for their size, also those that the layer has put right. It
// measures the rows of the queue, and the transactions that are committed.
type refusals struct {
	kv.DB
	queue []byte // begins the keys of the queue
	n     atomic.Int64
	sizes *sizes
}

func (r *refusals) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := r.DB.Begin(o)
	return &refusedTx{ManagedTx: tx, all: r, call: o.Call}, err
}

type refusedTx struct {
	kv.ManagedTx
	all  *refusals
	call string
}

func (t *refusedTx) OnError(err error) kv.Future[struct{}] {
	if refusedForSize(err) {
		t.all.n.Add(1)
	}
	return t.ManagedTx.OnError(err)
}

func (t *refusedTx) Set(key, value []byte) {
	t.wrote(key, len(value))
	t.ManagedTx.Set(key, value)
}

func (t *refusedTx) Atomic(op kv.MutationType, key, operand []byte) {
	if op == kv.SetVersionstampedKey {
		t.wrote(key[:len(key)-4], len(operand)) // without the place of the stamp
	} else {
		t.wrote(key, len(operand))
	}
	t.ManagedTx.Atomic(op, key, operand)
}

func (t *refusedTx) wrote(key []byte, value int) {
	rest, ok := bytes.CutPrefix(key, t.all.queue)
	name, _, err := tuple.DecodeString(rest)
	if !ok || err != nil || t.all.sizes == nil {
		return
	}
	t.all.sizes.note(t.all.sizes.keys, name, len(key))
	t.all.sizes.note(t.all.sizes.values, name, value)
}

func (t *refusedTx) Commit() kv.Future[struct{}] {
	if size, err := t.ApproximateSize().Wait(context.Background()); err == nil && t.all.sizes != nil {
		t.all.sizes.note(t.all.sizes.calls, t.call, int(size))
	}
	return t.ManagedTx.Commit()
}

func (s *sizes) compare(t *testing.T) {
	for name := range s.keys {
		t.Logf("%-10s %6d %6d", name, s.keys[name], s.values[name])
	}
	for call, size := range s.calls {
		t.Logf("%-30s %9d", call, size)
	}
}
