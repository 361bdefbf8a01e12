package layer_test

import (
	"bytes"
	"context"
	"errors"
	"os"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
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

// compare holds the sizes to the tables of docs/guarantees.md: each is at most the documented one, which is at most a
// quarter above.
func (s *sizes) compare(t *testing.T) {
	text, err := os.ReadFile("../../docs/guarantees.md")
	require.NoError(t, err)
	near := func(what, documented string, largest int) {
		figure, err := strconv.Atoi(strings.ReplaceAll(documented, ",", ""))
		require.NoError(t, err, what)
		require.LessOrEqual(t, largest, figure, "%s: more than documented", what)
		if figure > 50 {
			require.GreaterOrEqual(t, largest, figure*4/5, "%s: much less than documented", what)
		}
	}
	var named []string
	rows := regexp.MustCompile(`(?m)^\| ([a-z, ]+) \| ([0-9,]+) \| ([0-9,]+) \|`)
	for _, row := range rows.FindAllSubmatch(text, -1) {
		key, value := 0, 0
		for _, name := range strings.Split(string(row[1]), ", ") {
			require.NotZero(t, s.keys[name], "no row %s was written", name)
			named = append(named, name)
			key, value = max(key, s.keys[name]), max(value, s.values[name])
		}
		near("keys of "+string(row[1]), string(row[2]), key)
		near("values of "+string(row[1]), string(row[3]), value)
	}
	require.ElementsMatch(t, layer.KeyNames(), named)
	calls := 0
	for _, row := range regexp.MustCompile(`(?m)^\| ([^|]+) \| [^|]* \| ([0-9,]+) \|`).FindAllSubmatch(text, -1) {
		call := string(row[1])
		if call == "your transaction, after any call `…Tx`" {
			call = "once"
		}
		if size, ok := s.calls[call]; ok {
			calls++
			near("transactions of "+call, string(row[2]), size)
		}
	}
	require.Equal(t, 6, calls)
}

// tooLargeDB refuses each commit with the error of a code; 0 = none.
type tooLargeDB struct {
	kv.DB
	code atomic.Int64
}

func (d *tooLargeDB) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := d.DB.Begin(o)
	return &tooLargeTx{ManagedTx: tx, d: d}, err
}

type tooLargeTx struct {
	kv.ManagedTx
	d *tooLargeDB
}

func (t *tooLargeTx) Commit() kv.Future[struct{}] {
	if code := int(t.d.code.Load()); code != 0 {
		return kv.Done(struct{}{}, error(&kv.Error{Code: code}))
	}
	return t.ManagedTx.Commit()
}

// TestTooLargeSaysWhatIs (contract): a transaction that is too large has a *LimitError with its size. A key or a value
// that is too large has another: the transaction may be small.
func TestTooLargeSaysWhatIs(t *testing.T) {
	for code, says := range map[int]string{
		kv.CodeTransactionTooLarge: "transaction is ",
		kv.CodeKeyTooLarge:         "a row of this call is too large",
		kv.CodeValueTooLarge:       "a row of this call is too large",
	} {
		e := newEnv(t, anyEngine, false)
		db := &tooLargeDB{DB: e.db}
		q, err := layer.Open(e.ctx, db, testPrefix, testQueue, e.options(2))
		require.NoError(t, err)
		db.code.Store(int64(code))
		_, err = q.Enqueue(e.ctx, layer.Message{Group: "A"})
		require.ErrorContains(t, err, says)
		var limit *layer.LimitError
		require.Equal(t, code == kv.CodeTransactionTooLarge, errors.As(err, &limit))
		if limit == nil {
			require.Equal(t, code, kv.Code(err))
			require.Contains(t, err.Error(), "use shorter names")
		}
		db.code.Store(0)
		require.NoError(t, q.Close(e.ctx))
	}
}
