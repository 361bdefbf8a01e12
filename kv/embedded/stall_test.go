package embedded

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
)

// stalledStore writes nothing while stalled is open, as a disk that hangs.
type stalledStore struct {
	store
	stalled chan struct{}
}

func (s *stalledStore) apply(version int64, batch []mutation) error {
	<-s.stalled
	return s.store.apply(version, batch)
}

// openStalled opens a database whose store keeps its commits for later processes, and hangs. heal ends the hang.
func openStalled() (db *DB, heal func()) {
	o := Options{Seed: 1}.withDefaults()
	s := &stalledStore{newMemStore(), make(chan struct{})}
	db = newDB(o)
	db.local.Store(newEngine(s, o, firstVersion, true))
	return db, func() { close(s.stalled) }
}

// TestCallsEndWhileTheDiskStalls: each call ends with its context, at most a second late, while a write of the store
// does not end. The write is a commit of another transaction, or the one that a call after an idle time begins itself.
func TestCallsEndWhileTheDiskStalls(t *testing.T) {
	key := []byte("a")
	calls := map[string]func(ctx context.Context, tx kv.ManagedTx) error{
		"get": func(ctx context.Context, tx kv.ManagedTx) error {
			_, err := tx.Get(key).Wait(ctx)
			return err
		},
		"read version": func(ctx context.Context, tx kv.ManagedTx) error {
			_, err := tx.ReadVersion().Wait(ctx)
			return err
		},
		"commit": func(ctx context.Context, tx kv.ManagedTx) error {
			tx.Set(key, nil)
			_, err := tx.Commit().Wait(ctx)
			return err
		},
	}
	for name, call := range calls {
		for _, busy := range []bool{true, false} {
			text := name + " of an idle database"
			if busy {
				text = name + " beside a commit"
			}
			t.Run(text, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { endsWhileStalled(t, busy, call) })
			})
		}
	}
}

// TestCloseWhileTheDiskStalls: Close ends with an error while a write of the store does not end. The commit is not lost
// for that.
func TestCloseWhileTheDiskStalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, heal := openStalled()
		tx, err := db.Begin(kv.TxOptions{})
		require.NoError(t, err)
		tx.Set([]byte("a"), nil)
		committed := tx.Commit()
		closed := make(chan error, 1)
		go func() { closed <- db.Close() }()
		time.Sleep(stuckLimit + time.Second)
		synctest.Wait()
		select {
		case err := <-closed:
			assert.ErrorIs(t, err, errStalled)
		default:
			assert.Fail(t, "Close has not ended")
		}
		heal()
		_, err = committed.Wait(t.Context())
		require.NoError(t, err)
	})
}

func endsWhileStalled(t *testing.T, busy bool, call func(ctx context.Context, tx kv.ManagedTx) error) {
	t.Helper()
	db, heal := openStalled()
	begin := func() kv.ManagedTx {
		tx, err := db.Begin(kv.TxOptions{})
		require.NoError(t, err)
		return tx
	}
	committed := make(chan error, 1)
	if busy {
		tx := begin()
		tx.Set([]byte("b"), []byte("1"))
		go func() {
			_, err := tx.Commit().Wait(t.Context())
			committed <- err
		}()
	} else {
		committed <- nil
	}
	time.Sleep(7 * time.Second)
	ended, tx := make(chan error, 1), begin()
	go func() {
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		defer cancel()
		ended <- call(ctx, tx)
	}()
	time.Sleep(1100 * time.Millisecond)
	synctest.Wait()
	select {
	case err := <-ended:
		if code := kv.Code(err); code != 0 {
			assert.Contains(t, []int{kv.CodeProcessBehind, kv.CodeTransactionTooOld}, code, "%v", err)
		}
	default:
		assert.Fail(t, "the call has not ended")
	}
	heal()
	require.NoError(t, <-committed)
	var value []byte
	_, err := kv.Run(t.Context(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) (err error) {
		value, err = tx.Get([]byte("b")).Wait(t.Context())
		return err
	})
	require.NoError(t, err)
	require.Equal(t, busy, string(value) == "1")
	require.NoError(t, db.Close())
}
