package tuple_test

import (
	"bufio"
	"bytes"
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv/tuple"
)

type golden struct {
	text   string
	packed []byte
}

// goldens reads testdata/golden.txt: lines of the form text = hex.
func goldens(t testing.TB) []golden {
	f, err := os.Open("testdata/golden.txt")
	require.NoError(t, err)
	defer f.Close()
	var all []golden
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := lines.Text()
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		text, digits, found := strings.Cut(line, " = ")
		require.True(t, found, line)
		packed, err := hex.DecodeString(digits)
		require.NoError(t, err, line)
		all = append(all, golden{text, packed})
	}
	require.NoError(t, lines.Err())
	require.NotEmpty(t, all)
	return all
}

// The encoding is FoundationDB's, byte for byte, in both directions.
func TestGolden(t *testing.T) {
	for _, g := range goldens(t) {
		parsed, err := tuple.Parse(g.text)
		require.NoError(t, err, g.text)
		require.Equal(t, g.packed, append([]byte{}, parsed.Pack()...), g.text)

		unpacked, err := tuple.Unpack(g.packed)
		require.NoError(t, err, g.text)
		require.Equal(t, g.text, unpacked.String())
	}
}

// A tuple that was cut off is an error or a shorter tuple, never a panic and never another element.
func TestUnpackTruncated(t *testing.T) {
	for _, g := range goldens(t) {
		whole, err := tuple.Unpack(g.packed)
		require.NoError(t, err)
		for n := range g.packed {
			cut, err := tuple.Unpack(g.packed[:n])
			if err != nil {
				require.ErrorIs(t, err, tuple.ErrMalformed, "%s, %d bytes", g.text, n)
				continue
			}
			// An escaped zero byte whose escape was cut off reads as the end of its element.
			if cut.String() != whole[:len(cut)].String() {
				require.Equal(t, byte(0xff), g.packed[n], "%s, %d bytes: %s", g.text, n, cut)
			}
			require.Equal(t, g.packed[:n], append([]byte{}, cut.Pack()...), "%s, %d bytes", g.text, n)
		}
	}
}

// Unpack refuses bytes that are not a tuple of this package's types.
func TestUnpackMalformed(t *testing.T) {
	deep := bytes.Repeat([]byte{0x05}, tuple.MaxDepth+1)
	for name, b := range map[string][]byte{
		"escape code":               {0xff},
		"deprecated nested":         {0x03, 0x04},
		"deprecated true":           {0x25},
		"big integer":               {0x1d, 9, 1, 0, 0, 0, 0, 0, 0, 0, 0},
		"negative big integer":      {0x0b, 0xf6, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		"integer below int64":       {0x0c, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xfe},
		"zero in one byte":          {0x15, 0x00},
		"minus zero":                {0x13, 0xff},
		"leading zero byte":         {0x16, 0x00, 0x01},
		"negative leading one byte": {0x12, 0xff, 0x01},
		"long double":               {0x22, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0},
		"user type code":            {0x40, 0x00},
		"no end of string":          {0x02, 'a', 0x00, 0xff},
		"no end of nested":          {0x05, 0x00, 0xff},
		"nested too deep":           append(deep, make([]byte, len(deep))...),
	} {
		_, err := tuple.Unpack(b)
		require.ErrorIs(t, err, tuple.ErrMalformed, name)
	}
}

// Text that is not a tuple is refused.
func TestParseMalformed(t *testing.T) {
	for _, s := range []string{
		"", "(", ")", "(1", "(1,)", "(,1)", "(1 2)", "(1) x", "1", `("a)`, `(b"a)`, `(b"\x4")`, `(b"\q")`, `(b"\u0100")`,
		"(18446744073709551616)", "(-9223372036854775809)", "(nul)", "(nan)", "(1e999)", "(float(1))", "(float(1.5)",
		"(double(1.5))", "(double(0x10000000000000000))", "(versionstamp(00:1))", "(versionstamp(000000aa00bb00cc00dd))",
		"(versionstamp(000000aa00bb00cc00dd:65536))", "(what(1))", "(6ba7b810-9dad-11d1-80b4-00c04fd430cg)",
		strings.Repeat("(", tuple.MaxDepth+2) + strings.Repeat(")", tuple.MaxDepth+2),
	} {
		_, err := tuple.Parse(s)
		require.ErrorIs(t, err, tuple.ErrMalformed, s)
	}
}

// An element that cannot be encoded is a programming error.
func TestPackPanics(t *testing.T) {
	require.Panics(t, func() { tuple.Tuple{struct{}{}}.Pack() })
	require.Panics(t, func() { tuple.Tuple{int32(1)}.Pack() })
	deep := tuple.Tuple{}
	for range tuple.MaxDepth {
		deep = tuple.Tuple{deep}
	}
	require.NotPanics(t, func() { deep.Pack() })
	require.Panics(t, func() { tuple.Tuple{deep}.Pack() })
}

// The offset behind a versionstamped key points at the ten bytes to fill in, prefix, nesting and escapes included.
// The expected bytes are the Python binding's.
func TestPackWithVersionstamp(t *testing.T) {
	b, err := tuple.PackWithVersionstamp([]byte("pre"),
		tuple.Tuple{1, tuple.Tuple{"a", nil, tuple.IncompleteVersionstamp(5)}})
	require.NoError(t, err)
	require.Equal(t, "70726515010502610000ff33ffffffffffffffffffff0005000c000000", hex.EncodeToString(b))

	complete := tuple.Versionstamp{User: 1}
	require.True(t, complete.Complete())
	for _, bad := range []tuple.Tuple{
		{}, {complete}, {tuple.IncompleteVersionstamp(0), tuple.Tuple{tuple.IncompleteVersionstamp(1)}},
	} {
		_, err := tuple.PackWithVersionstamp(nil, bad)
		require.ErrorIs(t, err, tuple.ErrIncomplete)
	}
}
