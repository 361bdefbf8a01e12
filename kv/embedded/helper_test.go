package embedded_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

// patience bounds every wait of a test; nothing that works comes near it.
const patience = time.Minute

func wait[T any](t *testing.T, f kv.Future[T]) T {
	t.Helper()
	v, err := waitErr(t, f)
	require.NoError(t, err)
	return v
}

func waitErr[T any](t *testing.T, f kv.Future[T]) (T, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	return f.Wait(ctx)
}

func requireCode[T any](t *testing.T, code int, f kv.Future[T]) {
	t.Helper()
	_, err := waitErr(t, f)
	require.Equal(t, code, kv.Code(err), "%v", err)
}

func begin(t *testing.T, db kv.DB) kv.ManagedTx {
	t.Helper()
	tx, err := db.Begin(kv.TxOptions{})
	require.NoError(t, err)
	return tx
}

// put commits one pair and returns its version.
func put(t *testing.T, db kv.DB, key, value string) int64 {
	t.Helper()
	tx := begin(t, db)
	tx.Set([]byte(key), []byte(value))
	wait(t, tx.Commit())
	v, err := tx.CommittedVersion()
	require.NoError(t, err)
	return v
}

// read returns the value of key, "" for absent. It retries a transaction that is too old, because the process that
// serves may have been stopped for some seconds.
func read(t *testing.T, db kv.DB, key string) (value string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	_, err := kv.Run(ctx, db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		v, err := tx.Get([]byte(key)).Wait(ctx)
		value = string(v)
		return err
	})
	require.NoError(t, err)
	return value
}

// slowClock is a clock whose seconds take a hundred: no transaction of a test is too old because the machine is busy.
type slowClock struct{ from time.Time }

func (c slowClock) Now() time.Time                         { return c.from.Add(time.Since(c.from) / 100) }
func (c slowClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

// unhurried are o, with a slow clock if they have none.
func unhurried(o embedded.Options) embedded.Options {
	if o.Clock == nil {
		o.Clock = slowClock{time.Now()}
	}
	return o
}

func openMemory(t *testing.T, o embedded.Options) *embedded.DB {
	t.Helper()
	o = unhurried(o)
	db := embedded.OpenMemory(o)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}

func openDisk(t *testing.T, path string, o embedded.Options) *embedded.DB {
	t.Helper()
	db, err := embedded.OpenDisk(path, unhurried(o))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return db
}
