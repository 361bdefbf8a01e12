package tuple_test

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"fdbfifo/internal/seeds"
	"fdbfifo/kv/tuple"
)

func init() {
	if err := flag.Set("rapid.seed", fmt.Sprint(seeds.Of("kv/tuple"))); err != nil {
		panic(err)
	}
}

// element draws any element; strings and bytes are rich in the bytes that the encoding treats specially.
func element(depth int) *rapid.Generator[any] {
	tricky := rapid.SliceOfN(rapid.SampledFrom([]byte{0x00, 0x01, 'a', '"', '\\', 0x7f, 0xfe, 0xff}), 0, 6)
	kinds := []*rapid.Generator[any]{
		rapid.Just[any](nil),
		rapid.OneOf(tricky, rapid.SliceOf(rapid.Byte())).AsAny(),
		rapid.OneOf(rapid.Map(tricky, func(b []byte) string { return string(b) }), rapid.String()).AsAny(),
		rapid.Int64().AsAny(),
		rapid.Uint64Min(math.MaxInt64 + 1).AsAny(),
		rapid.Map(rapid.Uint32(), math.Float32frombits).AsAny(),
		rapid.Map(rapid.Uint64(), math.Float64frombits).AsAny(),
		rapid.Bool().AsAny(),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 16, 16), func(b []byte) uuid.UUID { return uuid.UUID(b) }).AsAny(),
		rapid.Custom(func(t *rapid.T) tuple.Versionstamp {
			var v tuple.Versionstamp
			copy(v.Stamp[:], rapid.SliceOfN(rapid.Byte(), 10, 10).Draw(t, "stamp"))
			v.User = rapid.Uint16().Draw(t, "user")
			return v
		}).AsAny(),
	}
	if depth > 0 {
		kinds = append(kinds, tuples(depth-1).AsAny())
	}
	return rapid.OneOf(kinds...)
}

func tuples(depth int) *rapid.Generator[tuple.Tuple] {
	return rapid.Map(rapid.SliceOfN(element(depth), 0, 4), func(e []any) tuple.Tuple { return e })
}

// A tuple that is packed and unpacked, or formatted and parsed, is the same tuple. The test compares bytes, in which a
// NaN equals itself.
func TestRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := tuples(3).Draw(t, "tuple")
		packed := in.Pack()
		out, err := tuple.Unpack(packed)
		require.NoError(t, err)
		require.Equal(t, in.String(), out.String())
		require.Equal(t, packed, out.Pack())

		parsed, err := tuple.Parse(in.String())
		require.NoError(t, err)
		require.Equal(t, packed, parsed.Pack())
	})
}

// Keys sort as their elements do, a tuple before those that it begins.
func TestOrder(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		a := tuples(2).Draw(t, "a")
		b := tuples(2).Draw(t, "b")
		if rapid.Bool().Draw(t, "shared beginning") {
			b = append(append(tuple.Tuple{}, a...), b...)
		}
		require.Equal(t, compareTuples(a, b), bytes.Compare(a.Pack(), b.Pack()))
	})
}

// compareTuples is the order of the specification, on values.
func compareTuples(a, b tuple.Tuple) int {
	for i := range min(len(a), len(b)) {
		if c := compareElements(a[i], b[i]); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(a), len(b))
}

func compareElements(a, b any) int {
	if c := cmp.Compare(rank(a), rank(b)); c != 0 {
		return c
	}
	switch a := a.(type) {
	case nil:
		return 0
	case []byte:
		return bytes.Compare(a, b.([]byte))
	case string:
		return strings.Compare(a, b.(string))
	case int64:
		if _, above := b.(uint64); above {
			return -1
		}
		return cmp.Compare(a, b.(int64))
	case uint64:
		if _, below := b.(int64); below {
			return 1
		}
		return cmp.Compare(a, b.(uint64))
	case float32:
		x, y := math.Float32bits(a), math.Float32bits(b.(float32))
		return compareTotal(uint64(x)<<32, uint64(y)<<32)
	case float64:
		return compareTotal(math.Float64bits(a), math.Float64bits(b.(float64)))
	case bool:
		if a == b.(bool) {
			return 0
		} else if a {
			return 1
		}
		return -1
	case uuid.UUID:
		y := b.(uuid.UUID)
		return bytes.Compare(a[:], y[:])
	case tuple.Versionstamp:
		y := b.(tuple.Versionstamp)
		return cmp.Or(bytes.Compare(a.Stamp[:], y.Stamp[:]), cmp.Compare(a.User, y.User))
	case tuple.Tuple:
		return compareTuples(a, b.(tuple.Tuple))
	}
	panic(fmt.Sprintf("no order for %T", a))
}

// compareTotal is the total order of IEEE 754 on the bits of two doubles.
func compareTotal(x, y uint64) int {
	negative := func(u uint64) bool { return u>>63 == 1 }
	switch {
	case negative(x) != negative(y):
		return cmp.Compare(y>>63, x>>63)
	case negative(x):
		return cmp.Compare(y, x)
	}
	return cmp.Compare(x, y)
}

// rank is the place of an element's type in the order of type codes.
func rank(e any) int {
	switch e.(type) {
	case nil:
		return 0
	case []byte:
		return 1
	case string:
		return 2
	case tuple.Tuple:
		return 3
	case int64, uint64:
		return 4
	case float32:
		return 5
	case float64:
		return 6
	case bool:
		return 7
	case uuid.UUID:
		return 8
	}
	return 9
}

// The typed functions build and take apart the same keys as Tuple does.
func TestTypedFunctions(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := tuples(2).Draw(t, "tuple")
		var b []byte
		for _, e := range in {
			b = appendTyped(b, e)
		}
		require.Equal(t, in.Pack(), append([]byte{}, b...))
		for _, e := range in {
			if e == nil {
				b = b[1:]
				continue
			}
			if nested, ok := e.(tuple.Tuple); ok {
				b = b[len(tuple.Append(nil, nested)):]
				continue
			}
			var got any
			var err error
			got, b, err = decodeTyped(b, e)
			require.NoError(t, err)
			require.Equal(t, tuple.Tuple{e}.Pack(), tuple.Tuple{got}.Pack())
		}
		require.Empty(t, b)
	})
}

func appendTyped(b []byte, e any) []byte {
	switch e := e.(type) {
	case []byte:
		return tuple.AppendBytes(b, e)
	case string:
		return tuple.AppendString(b, e)
	case int64:
		return tuple.AppendInt(b, e)
	case uint64:
		return tuple.AppendUint(b, e)
	case float32:
		return tuple.AppendFloat(b, e)
	case float64:
		return tuple.AppendDouble(b, e)
	case bool:
		return tuple.AppendBool(b, e)
	case uuid.UUID:
		return tuple.AppendUUID(b, e)
	case tuple.Versionstamp:
		return tuple.AppendVersionstamp(b, e)
	case tuple.Tuple:
		if slices.Contains(e, nil) {
			return tuple.Append(b, e)
		}
		return tuple.AppendNested(b, func(b []byte) []byte {
			for _, e := range e {
				b = appendTyped(b, e)
			}
			return b
		})
	}
	return tuple.AppendNil(b)
}

func decodeTyped(b []byte, like any) (any, []byte, error) {
	switch like.(type) {
	case []byte:
		return boxed(tuple.DecodeBytes(b))
	case string:
		return boxed(tuple.DecodeString(b))
	case int64:
		return boxed(tuple.DecodeInt(b))
	case uint64:
		return boxed(tuple.DecodeUint(b))
	case float32:
		return boxed(tuple.DecodeFloat(b))
	case float64:
		return boxed(tuple.DecodeDouble(b))
	case bool:
		return boxed(tuple.DecodeBool(b))
	case uuid.UUID:
		return boxed(tuple.DecodeUUID(b))
	}
	return boxed(tuple.DecodeVersionstamp(b))
}

func boxed[T any](v T, rest []byte, err error) (any, []byte, error) { return v, rest, err }

// A typed decoder refuses an element of another type and one out of its range.
func TestTypedRefusals(t *testing.T) {
	for _, b := range [][]byte{nil, {0x00}, {0xff}, {0x02, 'a'}, {0x16, 1}, {0x30, 1}} {
		for _, like := range []any{
			[]byte{}, "", int64(0), uint64(0), float32(0), 0.0, false, uuid.UUID{}, tuple.Versionstamp{},
		} {
			_, _, err := decodeTyped(b, like)
			require.ErrorIs(t, err, tuple.ErrMalformed, "%x as %T", b, like)
		}
	}
	_, _, err := tuple.DecodeInt(tuple.AppendUint(nil, math.MaxInt64+1))
	require.ErrorIs(t, err, tuple.ErrMalformed)
	_, _, err = tuple.DecodeUint(tuple.AppendInt(nil, -1))
	require.ErrorIs(t, err, tuple.ErrMalformed)
}

// A decoded value belongs to the caller. It does not change with the buffer it came from.
func TestDecodedIsOwned(t *testing.T) {
	b := tuple.Tuple{[]byte("abc"), "def"}.Pack()
	out, err := tuple.Unpack(b)
	require.NoError(t, err)
	clear(b)
	require.Equal(t, tuple.Tuple{[]byte("abc"), "def"}, out)
}
