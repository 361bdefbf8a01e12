package kvtest

import (
	"context"
	"errors"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
)

// versionChanges: the body learns that an earlier commit may still land, and so does whoever called Run.
func versionChanges(u *suite) {
	// changed returns a database whose first commit ends with 1039, which is retried, and the second with then, if not 0.
	changed := func(s *space, then int) *faultyDB {
		commits := 0
		return &faultyDB{
			DB: s.DB,
			commit: func(tx kv.ManagedTx) kv.Future[struct{}] {
				switch commits++; {
				case commits == 1:
					return failed(kv.CodeClusterVersionChanged)
				case commits == 2 && then != 0:
					return failed(then)
				}
				return tx.Commit()
			},
			onError: func(tx kv.ManagedTx, err error) kv.Future[struct{}] {
				if kv.Code(err) != kv.CodeClusterVersionChanged {
					return tx.OnError(err)
				}
				tx.Reset()
				return kv.Done(struct{}{}, nil)
			},
		}
	}
	u.promise("after 1039 every later attempt knows InFlight", func(s *space) {
		var attempts []kv.Attempt
		_, err := kv.Run(s.ctx, changed(s, kv.CodeCommitUnknownResult), kv.TxOptions{}, func(tx kv.Tx, a kv.Attempt) error {
			attempts = append(attempts, a)
			tx.Set(s.key("a"), nil)
			return nil
		})
		require.NoError(s.T, err)
		require.Equal(s.T, []kv.Attempt{{}, {N: 1, MaybeCommitted: true, InFlight: true},
			{N: 2, MaybeCommitted: true, InFlight: true}}, attempts)
	})
	// stillInFlight requires that an error says that a commit may still be in flight.
	stillInFlight := func(s *space, err error) {
		var e *kv.Error
		require.ErrorAs(s.T, err, &e)
		require.Equal(s.T, kv.CodeClusterVersionChanged, e.Code)
		require.True(s.T, e.InFlight)
	}
	u.promise("an attempt that fails for good does not hide an earlier commit in flight", func(s *space) {
		_, err := kv.Run(s.ctx, changed(s, 0), kv.TxOptions{}, func(tx kv.Tx, a kv.Attempt) error {
			if a.InFlight {
				return &kv.Error{Code: kv.CodeTransactionTimedOut}
			}
			tx.Set(s.key("a"), nil)
			return nil
		})
		stillInFlight(s, err)
	})
	u.promise("a context that ends while the body reads does not hide an earlier commit in flight", func(s *space) {
		cause := errors.New("the caller has gone")
		ctx, cancel := context.WithCancelCause(s.ctx)
		defer cancel(nil)
		_, err := kv.Run(ctx, changed(s, 0), kv.TxOptions{}, func(tx kv.Tx, a kv.Attempt) error {
			if a.InFlight {
				cancel(cause)
				return context.Cause(ctx)
			}
			tx.Set(s.key("a"), nil)
			return nil
		})
		require.ErrorIs(s.T, err, cause)
		stillInFlight(s, err)
	})
}
