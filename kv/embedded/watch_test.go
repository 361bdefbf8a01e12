package embedded_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

// Every way in which a watch ends gives its slot back: cancelled, fired, its transaction cancelled, reset or
// failed.
func TestWatchSlots(t *testing.T) {
	db := openMemory(t, embedded.Options{MaxWatches: 2})
	put(t, db, "a", "1")
	keep := begin(t, db)
	kept := keep.Watch([]byte("other"))
	wait(t, keep.Commit())
	armed := func() kv.Future[struct{}] {
		tx := begin(t, db)
		w := tx.Watch([]byte("a"))
		wait(t, tx.Commit())
		return w
	}
	for name, end := range map[string]func(){
		"cancel": func() { armed().Cancel() },
		"fire": func() {
			w := armed()
			put(t, db, "a", read(t, db, "a")+"+")
			wait(t, w)
		},
		"transaction cancelled": func() {
			tx := begin(t, db)
			w := tx.Watch([]byte("a"))
			tx.Cancel()
			requireCode(t, kv.CodeTransactionCancelled, w)
		},
		"reset": func() {
			tx := begin(t, db)
			w := tx.Watch([]byte("a"))
			tx.Reset()
			requireCode(t, kv.CodeTransactionCancelled, w)
		},
		"commit failed": func() {
			tx := begin(t, db)
			w := tx.Watch([]byte("a"))
			tx.Set([]byte("b"), nil)
			put(t, db, "a", read(t, db, "a")+"+")
			requireCode(t, kv.CodeNotCommitted, tx.Commit())
			requireCode(t, kv.CodeNotCommitted, w)
		},
		"own write": func() {
			tx := begin(t, db)
			w := tx.Watch([]byte("a"))
			tx.Set([]byte("a"), []byte("changed"))
			wait(t, w)
			tx.Cancel()
		},
	} {
		t.Run(name, func(t *testing.T) {
			end()
			w := armed() // 1032 if the slot was lost
			require.False(t, w.Ready())
			tx := begin(t, db)
			requireCode(t, kv.CodeTooManyWatches, tx.Watch([]byte("a")))
			tx.Cancel()
			w.Cancel()
		})
	}
	require.False(t, kept.Ready())
}

// Held watches fire with a later commit, whatever that writes.
func TestLateWatch(t *testing.T) {
	hold := true
	db := openMemory(t, embedded.Options{Hooks: embedded.Hooks{HoldWatches: func() bool { return hold }}})
	tx := begin(t, db)
	w := tx.Watch([]byte("a"))
	wait(t, tx.Commit())
	put(t, db, "a", "1")
	require.False(t, w.Ready())
	hold = false
	put(t, db, "unrelated", "")
	wait(t, w)
}
