package sqs

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNilRefusal: the methods of a *RefusedError can be called on a nil pointer.
func TestNilRefusal(t *testing.T) {
	var err *RefusedError
	require.Equal(t, "<nil>", err.Error())
	require.NoError(t, err.Unwrap())
}

// TestServerKeepsNoOptions: a server uses the keys and the prefix that it was made with. The caller may change the
// map and the slice afterwards.
func TestServerKeepsNoOptions(t *testing.T) {
	keys, prefix := map[string]Key{"AKIDEXAMPLE": {Secret: "secret"}}, []byte("here")
	bubble(t, Options{Keys: keys, Prefix: prefix}, func(e *env) {
		before := e.s.key("q")
		delete(keys, "AKIDEXAMPLE")
		prefix[0] = 'H'
		require.Equal(t, before, e.s.key("q"))
		_, ok := e.s.options.Keys["AKIDEXAMPLE"]
		require.True(t, ok, "the server uses a map of its caller's")
		prefix[0] = 'h'
	})
}
