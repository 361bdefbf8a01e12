package embedded_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

// TestTooLargeNamesTheRow: the error of a key, a value or a transaction that is too large says which, and of what size.
func TestTooLargeNamesTheRow(t *testing.T) {
	db := openMemory(t, embedded.Options{})
	for _, c := range []struct {
		code  int
		write func(tx kv.Tx)
		says  string
	}{
		{
			kv.CodeKeyTooLarge,
			func(tx kv.Tx) { tx.Set(bytes.Repeat([]byte("k"), 10_001), nil) },
			`a key of more than 10,000 bytes; shorten what it is made of (2102): key "` + strings.Repeat("k", 200) +
				`" … has 10001 bytes`,
		},
		{
			kv.CodeValueTooLarge,
			func(tx kv.Tx) { tx.Set(bytes.Repeat([]byte("k"), 300), make([]byte, 100_001)) },
			`the value of key "` + strings.Repeat("k", 200) + `" … has 100001 bytes`,
		},
		{
			kv.CodeValueTooLarge,
			func(tx kv.Tx) { tx.Set([]byte("key"), make([]byte, 100_001)) },
			`store less under one key (2103): the value of key "key" has 100001 bytes`,
		},
		{
			kv.CodeTransactionTooLarge,
			func(tx kv.Tx) {
				for n := range 101 {
					tx.Set([]byte{byte(n)}, make([]byte, 100_000))
				}
			},
			`do less in one transaction (2101): the transaction has 101`,
		},
	} {
		_, err := kv.Run(t.Context(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			c.write(tx)
			return nil
		})
		require.Equal(t, c.code, kv.Code(err))
		require.ErrorContains(t, err, c.says)
	}
}
