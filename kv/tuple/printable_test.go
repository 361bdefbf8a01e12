package tuple_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"fdbfifo/kv/tuple"
)

// Keys are shown as fdbcli shows them.
func TestPrintable(t *testing.T) {
	require.Equal(t, `a b\x00\x1f\x7f\x80\xff\\"`, tuple.Printable([]byte("a b\x00\x1f\x7f\x80\xff\\\"")))
}

// Every escape of fdbcli is taken, and nothing else behind a backslash.
func TestParsePrintable(t *testing.T) {
	b, err := tuple.ParsePrintable(`a\x00\xFF\u0041\"\\\ \;; "`)
	require.NoError(t, err)
	require.Equal(t, []byte("a\x00\xffA\"\\ ;; \""), b)

	for _, s := range []string{`\`, `\x`, `\x0`, `\xg0`, `\x+1`, `\u00f`, `\u0100`, `\n`} {
		_, err := tuple.ParsePrintable(s)
		require.ErrorIs(t, err, tuple.ErrMalformed, s)
	}
}

// Bytes that are printed and parsed are the same bytes.
func TestPrintableRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		in := rapid.SliceOf(rapid.Byte()).Draw(t, "bytes")
		out, err := tuple.ParsePrintable(tuple.Printable(in))
		require.NoError(t, err)
		require.Equal(t, in, out)
	})
}
