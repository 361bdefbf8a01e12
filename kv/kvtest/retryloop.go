package kvtest

import (
	"context"
	"errors"
	"fmt"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
)

// retryLoop checks kv.Run over the engine.
func retryLoop(u *suite) {
	u.promise("Run commits and returns the commit version", func(s *space) {
		v, err := kv.Run(s.ctx, s.DB, kv.TxOptions{}, func(tx kv.Tx, a kv.Attempt) error {
			require.Equal(s.T, kv.Attempt{}, a)
			tx.Set(s.key("a"), []byte("1"))
			return nil
		})
		require.NoError(s.T, err)
		tx, rv := s.at()
		require.GreaterOrEqual(s.T, rv, v)
		require.Equal(s.T, "1", s.getIn(tx, "a"))
	})
	u.promise("Run returns version -1 when nothing was written", func(s *space) {
		require.EqualValues(s.T, -1, s.update(func(tx kv.Tx) { s.getIn(tx, "a") }))
	})
	u.promise("Run retries a conflict on fresh data and counts it", func(s *space) {
		var attempts []kv.Attempt
		_, err := kv.Run(s.ctx, s.DB, kv.TxOptions{}, func(tx kv.Tx, a kv.Attempt) error {
			attempts = append(attempts, a)
			v := s.getIn(tx, "a")
			if a.N < 2 {
				s.set("a", fmt.Sprint(a.N))
			}
			tx.Set(s.key("b"), []byte(v))
			return nil
		})
		require.NoError(s.T, err)
		require.Equal(s.T, []kv.Attempt{{}, {N: 1, Conflicts: 1}, {N: 2, Conflicts: 2}}, attempts)
		require.Equal(s.T, "1", s.get("b"))
	})
	u.promise("Run retries when the body wraps a retryable error", func(s *space) {
		n := 0
		_, err := kv.Run(s.ctx, s.DB, kv.TxOptions{}, func(tx kv.Tx, a kv.Attempt) error {
			n++
			tx.Set(s.key("a"), []byte(fmt.Sprint(a.N)))
			if a.N == 0 {
				return fmt.Errorf("layer: %w", &kv.Error{Code: kv.CodeProcessBehind})
			}
			return nil
		})
		require.NoError(s.T, err)
		require.Equal(s.T, 2, n)
		require.Equal(s.T, "1", s.get("a"))
	})
	u.promise("Run ends on a plain error and commits nothing", func(s *space) {
		plain := errors.New("the body's own")
		n := 0
		_, err := kv.Run(s.ctx, s.DB, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			n++
			tx.Set(s.key("a"), nil)
			return fmt.Errorf("layer: %w", plain)
		})
		require.ErrorIs(s.T, err, plain)
		require.Equal(s.T, 1, n)
		require.Equal(s.T, absent, s.get("a"))
	})
	u.promise("Run ends on an error that is not retryable and keeps its wrapping", func(s *space) {
		mine := errors.New("mine")
		_, err := kv.Run(s.ctx, s.DB, kv.TxOptions{}, func(kv.Tx, kv.Attempt) error {
			return fmt.Errorf("%w: %w", mine, &kv.Error{Code: kv.CodeAccessedUnreadable})
		})
		require.ErrorIs(s.T, err, mine)
		require.Equal(s.T, kv.CodeAccessedUnreadable, kv.Code(err))
	})
	u.promise("Run returns the last error when the retries are used up", func(s *space) {
		n := 0
		_, err := kv.Run(s.ctx, s.DB, kv.TxOptions{Retries: 2}, func(tx kv.Tx, _ kv.Attempt) error {
			n++
			s.getIn(tx, "a")
			s.set("a", fmt.Sprint(n))
			tx.Set(s.key("b"), nil)
			return nil
		})
		require.Equal(s.T, kv.CodeNotCommitted, kv.Code(err))
		require.Equal(s.T, 3, n)
	})
	u.promise("Run leaves watches of a committed transaction alive", func(s *space) {
		var w kv.Future[struct{}]
		s.update(func(tx kv.Tx) { w = tx.Watch(s.key("a")) })
		defer w.Cancel()
		s.set("a", "1")
		wait(s, w)
	})
	u.promise("Run gives up the transaction when the body panics", func(s *space) {
		var kept kv.Tx
		require.Panics(s.T, func() {
			_, _ = kv.Run(s.ctx, s.DB, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
				kept = tx
				panic("body")
			})
		})
		require.Equal(s.T, kv.CodeTransactionCancelled, code(s, kept.Get(s.key("a"))))
	})
	unknownResults(u)
	versionChanges(u)
	outcomes(u)
	endOfContext(u)
	otherCalls(u)
}

// faultyDB hands out transactions whose commits and OnErrors go through the test.
type faultyDB struct {
	kv.DB
	commit  func(tx kv.ManagedTx) kv.Future[struct{}]
	onError func(tx kv.ManagedTx, err error) kv.Future[struct{}]
}

func (db *faultyDB) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := db.DB.Begin(o)
	if err != nil {
		return nil, err
	}
	return &faultyTx{tx, db}, nil
}

type faultyTx struct {
	kv.ManagedTx
	db *faultyDB
}

func (tx *faultyTx) Commit() kv.Future[struct{}] {
	if tx.db.commit == nil {
		return tx.ManagedTx.Commit()
	}
	return tx.db.commit(tx.ManagedTx)
}

func (tx *faultyTx) OnError(err error) kv.Future[struct{}] {
	if tx.db.onError == nil {
		return tx.ManagedTx.OnError(err)
	}
	return tx.db.onError(tx.ManagedTx, err)
}

// never is a future that only its waiter's context ends.
type never struct{}

func (never) Wait(ctx context.Context) (struct{}, error) {
	<-ctx.Done()
	return struct{}{}, context.Cause(ctx)
}
func (never) Ready() bool { return false }
func (never) Cancel()     {}

func failed(code int) kv.Future[struct{}] { return kv.Done(struct{}{}, error(&kv.Error{Code: code})) }

// unknownResults: the body learns that an earlier attempt may have committed, and keeps knowing it.
func unknownResults(u *suite) {
	for _, applied := range []bool{false, true} {
		u.promise(fmt.Sprintf("after 1021 every later attempt knows MaybeCommitted, applied %v", applied),
			func(s *space) {
				commits := 0
				db := &faultyDB{DB: s.DB, commit: func(tx kv.ManagedTx) kv.Future[struct{}] {
					commits++
					switch commits {
					case 1:
						if applied {
							wait(s, tx.Commit())
						}
						return failed(kv.CodeCommitUnknownResult)
					case 2:
						return failed(kv.CodeNotCommitted)
					}
					return tx.Commit()
				}}
				var attempts []kv.Attempt
				var found []string
				_, err := kv.Run(s.ctx, db, kv.TxOptions{}, func(tx kv.Tx, a kv.Attempt) error {
					attempts = append(attempts, a)
					found = append(found, s.getIn(tx, "marker"))
					tx.Set(s.key("marker"), []byte("done"))
					return nil
				})
				require.NoError(s.T, err)
				require.Equal(s.T, []kv.Attempt{{},
					{N: 1, MaybeCommitted: true}, {N: 2, Conflicts: 1, MaybeCommitted: true}}, attempts)
				after := absent
				if applied {
					after = "done"
				}
				require.Equal(s.T, []string{absent, after, after}, found)
			})
	}
	u.promise("1021 from the body's own read is no unknown commit", func(s *space) {
		_, err := kv.Run(s.ctx, s.DB, kv.TxOptions{}, func(_ kv.Tx, a kv.Attempt) error {
			require.False(s.T, a.MaybeCommitted)
			if a.N == 0 {
				return &kv.Error{Code: kv.CodeCommitUnknownResult}
			}
			return nil
		})
		require.NoError(s.T, err)
	})
	for _, c := range []struct {
		code     int
		inFlight bool
	}{
		{kv.CodeTransactionTimedOut, true},
		{kv.CodeTransactionCancelled, true},
		{kv.CodeOperationCancelled, true},
		{kv.CodeTransactionTooLarge, false},
	} {
		u.promise(fmt.Sprintf("a commit that ends with %d is in flight: %v", c.code, c.inFlight), func(s *space) {
			db := &faultyDB{DB: s.DB, commit: func(kv.ManagedTx) kv.Future[struct{}] { return failed(c.code) }}
			_, err := kv.Run(s.ctx, db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
				tx.Set(s.key("a"), nil)
				return nil
			})
			var e *kv.Error
			require.ErrorAs(s.T, err, &e)
			require.Equal(s.T, c.code, e.Code)
			require.Equal(s.T, c.inFlight, e.InFlight)
		})
	}
}

// endOfContext: Run returns the context's cause, and says so if a commit may still land.
func endOfContext(u *suite) {
	cause := errors.New("the caller has gone")
	u.promise("a context that has ended keeps Run from starting", func(s *space) {
		ctx, cancel := context.WithCancelCause(s.ctx)
		cancel(cause)
		_, err := kv.Run(ctx, s.DB, kv.TxOptions{}, func(kv.Tx, kv.Attempt) error {
			require.Fail(s.T, "the body ran")
			return nil
		})
		require.ErrorIs(s.T, err, cause)
		require.Zero(s.T, kv.Code(err))
	})
	u.promise("a context that ends in a wait of the body ends Run, nothing committed", func(s *space) {
		ctx, cancel := context.WithCancelCause(s.ctx)
		_, err := kv.Run(ctx, s.DB, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			tx.Set(s.key("a"), nil)
			w := tx.Watch(s.key("b"))
			cancel(cause)
			_, err := w.Wait(ctx)
			return err
		})
		require.ErrorIs(s.T, err, cause)
		require.Equal(s.T, absent, s.get("a"))
	})
	u.promise("a context that ends while the commit is pending leaves it in flight", func(s *space) {
		ctx, cancel := context.WithCancelCause(s.ctx)
		db := &faultyDB{DB: s.DB, commit: func(kv.ManagedTx) kv.Future[struct{}] {
			cancel(cause)
			return never{}
		}}
		_, err := kv.Run(ctx, db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			tx.Set(s.key("a"), nil)
			return nil
		})
		require.ErrorIs(s.T, err, cause)
		var e *kv.Error
		require.ErrorAs(s.T, err, &e)
		require.True(s.T, e.InFlight)
	})
	u.promise("a context that ends before the commit leaves Run with a version or the cause", func(s *space) {
		ctx, cancel := context.WithCancelCause(s.ctx)
		v, err := kv.Run(ctx, s.DB, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			tx.Set(s.key("a"), []byte("1"))
			cancel(cause)
			return nil
		})
		if err == nil {
			require.Positive(s.T, v)
			require.Equal(s.T, "1", s.get("a"))
			return
		}
		require.ErrorIs(s.T, err, cause)
	})
	for _, c := range []struct {
		code     int
		inFlight bool
	}{{kv.CodeNotCommitted, false}, {kv.CodeCommitUnknownResult, false}, {kv.CodeClusterVersionChanged, true}} {
		name := fmt.Sprintf("a context that ends during the backoff after a commit ended with %d", c.code)
		u.promise(name, func(s *space) {
			ctx, cancel := context.WithCancelCause(s.ctx)
			db := &faultyDB{
				DB: s.DB,
				commit: func(kv.ManagedTx) kv.Future[struct{}] {
					return failed(c.code)
				},
				onError: func(kv.ManagedTx, error) kv.Future[struct{}] {
					cancel(cause)
					return never{}
				},
			}
			_, err := kv.Run(ctx, db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
				tx.Set(s.key("a"), nil)
				return nil
			})
			require.ErrorIs(s.T, err, cause)
			var e *kv.Error
			require.ErrorAs(s.T, err, &e)
			require.Equal(s.T, c.code, e.Code)
			require.Equal(s.T, c.inFlight, e.InFlight)
		})
	}
	u.promise("a context that ends during a later backoff does not hide an earlier unknown commit", func(s *space) {
		ctx, cancel := context.WithCancelCause(s.ctx)
		codes := []int{kv.CodeCommitUnknownResult, kv.CodeNotCommitted}
		commits := 0
		db := &faultyDB{
			DB: s.DB,
			commit: func(kv.ManagedTx) kv.Future[struct{}] {
				commits++
				return failed(codes[commits-1])
			},
			onError: func(tx kv.ManagedTx, err error) kv.Future[struct{}] {
				if commits < len(codes) {
					return tx.OnError(err)
				}
				cancel(cause)
				return never{}
			},
		}
		_, err := kv.Run(ctx, db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			tx.Set(s.key("a"), nil)
			return nil
		})
		require.ErrorIs(s.T, err, cause)
		require.Equal(s.T, kv.CodeCommitUnknownResult, kv.Code(err))
	})
	u.promise("an attempt that fails for good does not hide an earlier unknown commit", func(s *space) {
		db := &faultyDB{DB: s.DB, commit: func(kv.ManagedTx) kv.Future[struct{}] { return failed(kv.CodeCommitUnknownResult) }}
		_, err := kv.Run(s.ctx, db, kv.TxOptions{}, func(tx kv.Tx, a kv.Attempt) error {
			if a.MaybeCommitted {
				return &kv.Error{Code: kv.CodeTransactionTimedOut}
			}
			tx.Set(s.key("a"), nil)
			return nil
		})
		require.Equal(s.T, kv.CodeCommitUnknownResult, kv.Code(err))
	})
	u.promise("a context that ends while the body reads does not hide an earlier unknown commit", func(s *space) {
		db := &faultyDB{DB: s.DB, commit: func(kv.ManagedTx) kv.Future[struct{}] { return failed(kv.CodeCommitUnknownResult) }}
		ctx, cancel := context.WithCancelCause(s.ctx)
		defer cancel(nil)
		_, err := kv.Run(ctx, db, kv.TxOptions{}, func(tx kv.Tx, a kv.Attempt) error {
			if a.MaybeCommitted {
				cancel(cause)
				if _, err := (never{}).Wait(ctx); err != nil {
					return fmt.Errorf("read: %w", err)
				}
			}
			tx.Set(s.key("a"), nil)
			return nil
		})
		require.ErrorIs(s.T, err, cause)
		require.Equal(s.T, kv.CodeCommitUnknownResult, kv.Code(err))
	})
}
