package tuple_test

import (
	"bytes"
	"math"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv/tuple"
)

// awkward returns tuples at the edges of each type. They are neighbours in the order.
func awkward() []tuple.Tuple {
	quiet, negative := math.NaN(), math.Float64frombits(1<<63|math.Float64bits(math.NaN()))
	all := []tuple.Tuple{
		{}, {nil}, {nil, nil}, {false}, {true}, {uuid.UUID{}}, {uuid.Max},
		{[]byte{}}, {[]byte{0}}, {[]byte{0, 0}}, {[]byte{0, 0xff}}, {[]byte{0xff}},
		{""}, {"\x00"}, {"\x00\xff"}, {"a\x00"}, {"a", nil}, {"a\x00b"}, {"\xff"},
		{tuple.Tuple{}}, {tuple.Tuple{}, nil}, {tuple.Tuple{nil}}, {tuple.Tuple{nil, nil}}, {tuple.Tuple{[]byte{0}}},
		{tuple.Tuple{""}, ""}, {tuple.Tuple{tuple.Tuple{nil}, "\x00"}}, {tuple.Tuple{tuple.Tuple{}, int64(1)}},
		{tuple.Versionstamp{}}, {tuple.Versionstamp{User: 1}}, {tuple.Versionstamp{Stamp: [10]byte{1}}},
		{tuple.IncompleteVersionstamp(0)}, {tuple.IncompleteVersionstamp(math.MaxUint16)},
		{uint64(math.MaxInt64 + 1)}, {uint64(math.MaxUint64)},
	}
	for bits := range 8 {
		edge := int64(1) << (8 * bits)
		all = append(all, tuple.Tuple{edge - 1}, tuple.Tuple{edge}, tuple.Tuple{-edge}, tuple.Tuple{1 - edge})
	}
	all = append(all, tuple.Tuple{int64(math.MaxInt64)}, tuple.Tuple{int64(math.MinInt64)})
	for _, f := range []float64{
		0, math.Copysign(0, -1), 1, -1, math.Inf(1), math.Inf(-1), quiet, negative, math.SmallestNonzeroFloat64,
		-math.SmallestNonzeroFloat64, math.MaxFloat64, -math.MaxFloat64,
	} {
		all = append(all, tuple.Tuple{f}, tuple.Tuple{float32(f)})
	}
	return all
}

// requireInOrder requires that two packed tuples sort as their elements do by the specification, and that a packed
// tuple, and each that it begins with, is read back as it was.
func requireInOrder(t *testing.T, a, b tuple.Tuple) {
	t.Helper()
	p, q := a.Pack(), b.Pack()
	require.Equal(t, compareTuples(a, b), bytes.Compare(p, q), "%s and %s", a, b)
	require.Equal(t, compareTuples(b, a), bytes.Compare(q, p), "%s and %s", b, a)
	for n := range len(a) + 1 {
		back, err := tuple.Unpack(a[:n].Pack())
		require.NoError(t, err, "%s", a[:n])
		require.Zero(t, compareTuples(a[:n], back), "%s read back as %s", a[:n], back)
	}
}

// TestAwkwardOrder: the edges of all types sort as the specification says. Each is compared with each other one, alone,
// nested, and with another element after it.
func TestAwkwardOrder(t *testing.T) {
	for _, a := range awkward() {
		for _, b := range awkward() {
			requireInOrder(t, a, b)
			requireInOrder(t, tuple.Tuple{a, "z"}, tuple.Tuple{b, nil})
			requireInOrder(t, append(a[:len(a):len(a)], int64(-1)), append(b[:len(b):len(b)], "z"))
		}
	}
}

// FuzzOrder: any two tuples sort as their elements do by the specification, and are read back as they were.
func FuzzOrder(f *testing.F) {
	all := awkward()
	for i, a := range all {
		f.Add(a.Pack(), all[(i+1)%len(all)].Pack())
		f.Add(tuple.Tuple{a, a}.Pack(), tuple.Tuple{a}.Pack())
	}
	for _, g := range goldens(f) {
		f.Add(g.packed, g.packed)
	}
	f.Fuzz(func(t *testing.T, p, q []byte) {
		a, err := tuple.Unpack(p)
		if err != nil {
			return
		}
		b, err := tuple.Unpack(q)
		if err != nil {
			return
		}
		requireInOrder(t, a, b)
		require.Equal(t, p, a.Pack())
		// Beside each other, and one within the other, they meet in ways in which bytes alone seldom do.
		requireInOrder(t, append(a[:len(a):len(a)], b...), a)
		if nested := []byte{0x05}; bytes.Count(p, nested) < tuple.MaxDepth && bytes.Count(q, nested) < tuple.MaxDepth {
			requireInOrder(t, tuple.Tuple{a, nil}, tuple.Tuple{b})
		}
	})
}
