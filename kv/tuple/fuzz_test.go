package tuple_test

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv/tuple"
)

// Unpack refuses any bytes that are not the one encoding of the tuple that they decode to.
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

// Any text is refused or is one byte string, whose own text reads back.
func FuzzParsePrintable(f *testing.F) {
	f.Fuzz(func(t *testing.T, s string) {
		b, err := tuple.ParsePrintable(s)
		if err != nil {
			require.ErrorIs(t, err, tuple.ErrMalformed)
			return
		}
		again, err := tuple.ParsePrintable(tuple.Printable(b))
		require.NoError(t, err)
		require.Equal(t, b, again)
	})
}

// The decoders of one element take what Unpack takes, and say the same.
func FuzzDecode(f *testing.F) {
	for _, g := range goldens(f) {
		f.Add(g.packed)
	}
	decoders := []func(b []byte) (any, []byte, error){
		func(b []byte) (any, []byte, error) { return any3(tuple.DecodeBytes(b)) },
		func(b []byte) (any, []byte, error) { return any3(tuple.DecodeString(b)) },
		func(b []byte) (any, []byte, error) { return any3(tuple.DecodeInt(b)) },
		func(b []byte) (any, []byte, error) { return any3(tuple.DecodeFloat(b)) },
		func(b []byte) (any, []byte, error) { return any3(tuple.DecodeDouble(b)) },
		func(b []byte) (any, []byte, error) { return any3(tuple.DecodeBool(b)) },
		func(b []byte) (any, []byte, error) { return any3(tuple.DecodeUUID(b)) },
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, decode := range decoders {
			v, rest, err := decode(b)
			if err != nil {
				require.ErrorIs(t, err, tuple.ErrMalformed)
				continue
			}
			require.True(t, bytes.HasSuffix(b, rest))
			taken := b[:len(b)-len(rest)]
			require.Equal(t, string(taken), string(tuple.Tuple{v}.Pack()))
			all, err := tuple.Unpack(taken)
			require.NoError(t, err)
			require.Equal(t, tuple.Tuple{v}.String(), all.String())
		}
		if v, rest, err := tuple.DecodeUint(b); err == nil {
			require.Equal(t, string(b[:len(b)-len(rest)]), string(tuple.AppendUint(nil, v)))
		} else {
			require.ErrorIs(t, err, tuple.ErrMalformed)
		}
	})
}

func any3[T any](v T, rest []byte, err error) (any, []byte, error) { return v, rest, err }
