package tuple_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv/tuple"
)

// Any bytes are refused or are the one encoding of what they decode to.
func FuzzUnpack(f *testing.F) {
	for _, g := range goldens(f) {
		f.Add(g.packed)
	}
	f.Add([]byte{0x05, 0x05, 0x00, 0xff})
	f.Add([]byte{0x02, 0x00, 0xff, 0x00, 0x1c, 0x00})
	f.Fuzz(func(t *testing.T, b []byte) {
		out, err := tuple.Unpack(b)
		if err != nil {
			require.ErrorIs(t, err, tuple.ErrMalformed)
			return
		}
		require.Equal(t, string(b), string(out.Pack()))
		parsed, err := tuple.Parse(out.String())
		require.NoError(t, err)
		require.Equal(t, string(b), string(parsed.Pack()))
	})
}

// Any text is refused or has one plain form, which reads back as the same tuple.
func FuzzParse(f *testing.F) {
	for _, g := range goldens(f) {
		f.Add(g.text)
	}
	f.Add("( 1 ,\t+2, (\n) )")
	f.Add("(0x1p-2, Infinity, float(1e-50))")
	f.Fuzz(func(t *testing.T, s string) {
		parsed, err := tuple.Parse(s)
		if err != nil {
			require.ErrorIs(t, err, tuple.ErrMalformed)
			return
		}
		again, err := tuple.Parse(parsed.String())
		require.NoError(t, err)
		require.Equal(t, parsed.Pack(), again.Pack())
	})
}
