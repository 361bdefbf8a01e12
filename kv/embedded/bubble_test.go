package embedded_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

// In a bubble of testing/synctest the engine runs in virtual time: the window passes at once, and a goroutine that
// waits for a backoff or a watch is durably blocked.
func TestBubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := embedded.OpenMemory(embedded.Options{Seed: 1})
		defer func() { require.NoError(t, db.Close()) }()
		tx := begin(t, db)
		wait(t, tx.Get([]byte("a")))
		time.Sleep(6 * time.Second)
		requireCode(t, kv.CodeTransactionTooOld, tx.Get([]byte("a")))

		start := time.Now()
		wait(t, tx.OnError(&kv.Error{Code: kv.CodeTransactionTooOld}))
		require.Equal(t, 10*time.Millisecond, time.Since(start))

		w := tx.Watch([]byte("a"))
		wait(t, tx.Commit())
		fired := false
		go func() {
			if _, err := w.Wait(t.Context()); err == nil {
				fired = true
			}
		}()
		synctest.Wait()
		require.False(t, fired)
		put(t, db, "a", "1")
		synctest.Wait()
		require.True(t, fired)
	})
}
