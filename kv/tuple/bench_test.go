package tuple_test

import (
	"testing"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv/tuple"
)

var benchID = uuid.MustParse("6ba7b810-9dad-11d1-80b4-00c04fd430c8")

func appendItemKey(dst []byte, group string, index int64, id uuid.UUID) []byte {
	dst = tuple.AppendString(dst, "item")
	dst = tuple.AppendString(dst, group)
	dst = tuple.AppendInt(dst, index)
	return tuple.AppendUUID(dst, id)
}

// Building a key into a buffer that is large enough allocates nothing; decoding one allocates its strings only.
func TestAllocations(t *testing.T) {
	buf := make([]byte, 0, 128)
	require.Zero(t, testing.AllocsPerRun(100, func() { buf = appendItemKey(buf[:0], "ATL", 1<<40, benchID) }))
	rest := buf[len(tuple.AppendString(nil, "item")):]
	require.LessOrEqual(t, testing.AllocsPerRun(100, func() {
		_, rest, _ := tuple.DecodeString(rest)
		_, rest, _ = tuple.DecodeInt(rest)
		_, _, _ = tuple.DecodeUUID(rest)
	}), 1.0)
}

func BenchmarkAppendItemKey(b *testing.B) {
	b.ReportAllocs()
	buf := make([]byte, 0, 128)
	for b.Loop() {
		buf = appendItemKey(buf[:0], "ATL", 1<<40, benchID)
	}
}

func BenchmarkPackItemKey(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		tuple.Tuple{"item", "ATL", int64(1 << 40), benchID}.Pack()
	}
}

func BenchmarkDecodeItemKey(b *testing.B) {
	b.ReportAllocs()
	key := appendItemKey(nil, "ATL", 1<<40, benchID)
	for b.Loop() {
		_, rest, _ := tuple.DecodeString(key)
		_, rest, _ = tuple.DecodeString(rest)
		_, rest, _ = tuple.DecodeInt(rest)
		if _, _, err := tuple.DecodeUUID(rest); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkUnpackItemKey(b *testing.B) {
	b.ReportAllocs()
	key := appendItemKey(nil, "ATL", 1<<40, benchID)
	for b.Loop() {
		if _, err := tuple.Unpack(key); err != nil {
			b.Fatal(err)
		}
	}
}
