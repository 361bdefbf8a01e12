package kvtest

import (
	"context"
	"errors"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
)

// watches: a watch may fire late or for nothing, so the promises of silence are vague.
func watches(u *suite) {
	changed := func(name, stored, change string) {
		u.promise("a watch fires when "+name, func(s *space) {
			if stored != "" {
				s.update(func(tx kv.Tx) { require.NoError(s.T, s.run(tx, stored)) })
			}
			w := s.watch("k")
			s.update(func(tx kv.Tx) { require.NoError(s.T, s.run(tx, change)) })
			wait(s, w)
			require.True(s.T, w.Ready())
			wait(s, w)
		})
	}
	changed("the value changes", "set k old", "set k new")
	changed("an absent key is set", "", "set k new")
	changed("the key is cleared", "set k old", "clear k")
	changed("the key is cleared with a range", "set k old", "clearrange a z")
	changed("an atomic operation changes the value", "set k 1", "add k")
	changed("a versionstamped value is set", "set k old", "stampvalue k")

	u.vaguePromise("a watch is silent when the key is set to its value, and when others change",
		func(s *space) {
			s.set("k", "same", "other", "1")
			w, signal := s.watch("k"), s.watch("other")
			s.set("k", "same", "k0", "1", "j", "1")
			s.set("other", "2")
			wait(s, signal)
			require.False(s.T, w.Ready())
			s.set("k", "new")
			wait(s, w)
		})
	u.promise("every watch of a key fires", func(s *space) {
		one, two := s.watch("k"), s.watch("k")
		s.set("k", "1")
		wait(s, one)
		wait(s, two)
	})
	u.promise("several goroutines may wait for one watch", func(s *space) {
		w := s.watch("k")
		var all []<-chan error
		for range 4 {
			all = append(all, s.start(func() error {
				_, err := w.Wait(s.ctx)
				return err
			}))
		}
		s.set("k", "1")
		for _, done := range all {
			require.NoError(s.T, <-done)
		}
		wait(s, w)
	})
	u.promise("a watch outlives its transaction", func(s *space) {
		tx := s.begin()
		w := tx.Watch(s.key("k"))
		s.commit(tx)
		tx.Reset()
		tx.Cancel()
		s.set("k", "1")
		wait(s, w)
	})
	u.promise("a read version taken after a watch fired covers the change", func(s *space) {
		for _, v := range []string{"1", "2", "3", "4", "5"} {
			w := s.watch("k")
			done := s.start(func() error {
				_, err := kv.Run(s.ctx, s.DB, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
					tx.Set(s.key("k"), []byte(v))
					return nil
				})
				return err
			})
			wait(s, w)
			require.Equal(s.T, v, s.get("k"))
			require.NoError(s.T, <-done)
		}
	})
	u.promise("a change between the read version and the commit fires the watch", func(s *space) {
		tx, _ := s.at()
		w := tx.Watch(s.key("k"))
		require.Equal(s.T, absent, s.getIn(tx, "k"))
		s.set("k", "1")
		s.commit(tx)
		wait(s, w)
	})
	u.vaguePromise("the value watched is the one the transaction sees, own writes included",
		func(s *space) {
			s.set("k", "old", "other", "1")
			tx := s.begin()
			tx.Set(s.key("k"), []byte("own"))
			w := tx.Watch(s.key("k"))
			signal := tx.Watch(s.key("other"))
			s.commit(tx)
			s.set("other", "2")
			wait(s, signal)
			require.False(s.T, w.Ready(), "the commit of the own write must not fire it")
			s.set("k", "old")
			wait(s, w)
		})
	u.promise("a later write of the same transaction that changes the value fires the watch", func(s *space) {
		s.set("k", "old")
		for _, script := range []string{"set k new", "clear k", "clearrange a z", "add k"} {
			tx := s.begin()
			w := tx.Watch(s.key("k"))
			require.Equal(s.T, "old", s.getIn(tx, "k"))
			require.NoError(s.T, s.run(tx, script))
			wait(s, w)
			tx.Cancel()
		}
	})
	u.vaguePromise("a watch counts from the commit: without one it does not fire", func(s *space) {
		tx := s.begin()
		w := tx.Watch(s.key("k"))
		defer w.Cancel() // the transaction's own Cancel does not give the watch's place back
		require.Equal(s.T, absent, s.getIn(tx, "k"))
		signal := s.watch("k")
		s.set("k", "1")
		wait(s, signal)
		require.False(s.T, w.Ready())
	})
	watchFailures(u)
	u.promise("cancelled watches give their place back", func(s *space) { watchLimit(s) })
}

// watch watches k in a read-only transaction that is committed.
func (s *space) watch(k string) kv.Future[struct{}] {
	tx := s.begin()
	w := tx.Watch(s.key(k))
	s.commit(tx)
	s.test.Cleanup(w.Cancel)
	return w
}

func watchFailures(u *suite) {
	u.promise("a failed commit fails its watches with the same error", func(s *space) {
		tx, _ := s.at()
		w := tx.Watch(s.key("k"))
		require.NoError(s.T, s.run(tx, "get a; set b"))
		s.set("a", "1")
		require.Equal(s.T, kv.CodeNotCommitted, code(s, tx.Commit()))
		require.Equal(s.T, kv.CodeNotCommitted, code(s, w))
	})
	u.promise("a reset before the commit fails the watch with 1025", func(s *space) {
		tx := s.begin()
		w := tx.Watch(s.key("k"))
		require.Equal(s.T, absent, s.getIn(tx, "k"))
		tx.Reset()
		require.Equal(s.T, kv.CodeTransactionCancelled, code(s, w))
	})
	u.promise("a cancelled watch ends with 1101", func(s *space) {
		w := s.watch("k")
		w.Cancel()
		require.Equal(s.T, kv.CodeOperationCancelled, code(s, w))
		s.set("k", "1")
		require.Equal(s.T, kv.CodeOperationCancelled, code(s, w))
	})
	u.promise("cancelling a watch that fired changes nothing", func(s *space) {
		w := s.watch("k")
		s.set("k", "1")
		wait(s, w)
		w.Cancel()
		wait(s, w)
	})
	u.promise("waiting for a watch ends with the context's cause and cancels the watch", func(s *space) {
		w := s.watch("k")
		cause := errors.New("enough")
		ctx, cancel := context.WithCancelCause(s.ctx)
		cancel(cause)
		_, err := w.Wait(ctx)
		require.ErrorIs(s.T, err, cause)
		require.Equal(s.T, kv.CodeOperationCancelled, code(s, w))
	})
}

// watchLimit opens as many watches as the engine allows.
func watchLimit(s *space) {
	if s.MaxWatches == 0 {
		s.test.Skip("the engine declares no number of watches")
	}
	tx := s.begin()
	open := make([]kv.Future[struct{}], 0, s.MaxWatches)
	defer func() {
		for _, w := range open {
			w.Cancel()
		}
	}()
	for range s.MaxWatches {
		open = append(open, tx.Watch(s.key("k")))
	}
	s.commit(tx)
	require.Equal(s.T, kv.CodeTooManyWatches, code(s, s.begin().Watch(s.key("k"))))
	open[0].Cancel()
	again := s.watch("k")
	s.set("k", "1")
	wait(s, again)
	wait(s, open[1])
}
