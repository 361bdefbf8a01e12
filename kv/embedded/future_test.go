package embedded_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

// TestCancelledFuture: a future that is cancelled before its result is there ends with 1101, also if its time or that
// of its transaction comes, or the transaction is cancelled, before the call of Wait. A Cancel that comes later than
// the end of the transaction changes nothing.
func TestCancelledFuture(t *testing.T) {
	clock := newManualClock()
	db := openMemory(t, embedded.Options{Clock: clock, Seed: 1})
	const timeout = time.Minute
	pause := func(tx kv.ManagedTx) (cancel func(), ended func() error) {
		f := tx.OnError(&kv.Error{Code: kv.CodeNotCommitted})
		return f.Cancel, func() error { _, err := waitErr(t, f); return err }
	}
	stamp := func(tx kv.ManagedTx) (cancel func(), ended func() error) {
		f := tx.Versionstamp()
		return f.Cancel, func() error { _, err := waitErr(t, f); return err }
	}
	for range 20 { // a Wait that looked at both reasons could take either
		for name, begin := range map[string]func(tx kv.ManagedTx) (cancel func(), ended func() error){
			"OnError": pause, "Versionstamp": stamp,
		} {
			for then, change := range map[string]func(tx kv.ManagedTx){
				"nothing":  func(kv.ManagedTx) {},
				"a second": func(kv.ManagedTx) { clock.Advance(time.Second) },
				"time-out": func(kv.ManagedTx) { clock.Advance(timeout) },
				"Cancel":   func(tx kv.ManagedTx) { tx.Cancel() },
			} {
				tx, err := db.Begin(kv.TxOptions{Timeout: timeout})
				require.NoError(t, err)
				cancel, ended := begin(tx)
				cancel()
				change(tx)
				require.Equal(t, kv.CodeOperationCancelled, kv.Code(ended()), "%s, then %s", name, then)
			}
			tx, err := db.Begin(kv.TxOptions{})
			require.NoError(t, err)
			cancel, ended := begin(tx)
			tx.Cancel()
			cancel()
			require.Equal(t, kv.CodeTransactionCancelled, kv.Code(ended()), "%s of a cancelled transaction", name)
		}
	}
}
