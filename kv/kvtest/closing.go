package kvtest

import (
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
)

// closing has one promise: after it the engine is closed.
func closing(u *suite) {
	u.promise("after Close nothing begins, nothing is committed, and the errors say so", func(s *space) {
		blind, reader := s.begin(), s.begin()
		blind.Set(s.key("a"), nil)
		require.Equal(s.T, absent, s.getIn(reader, "a"))
		reader.Set(s.key("a"), nil)
		_, err := kv.Run(s.ctx, s.DB, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			tx.Set(s.key("a"), nil)
			return s.DB.Close()
		})
		require.ErrorIs(s.T, err, kv.ErrClosed)
		require.False(s.T, kv.MaybeCommitted(err), "%v", err)
		for _, tx := range []kv.ManagedTx{blind, reader} {
			_, err := tx.Commit().Wait(s.ctx)
			require.ErrorIs(s.T, err, kv.ErrClosed)
			var e *kv.Error
			require.ErrorAs(s.T, err, &e)
			require.False(s.T, e.InFlight)
		}
		_, err = s.DB.Begin(kv.TxOptions{})
		require.ErrorIs(s.T, err, kv.ErrClosed)
		require.NoError(s.T, s.DB.Close(), "a second time")
	})
}
