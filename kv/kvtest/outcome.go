package kvtest

import (
	"context"
	"errors"
	"fmt"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
)

// outcomes: Run's answer about the outcome is true for all attempts, not only for the last one.
func outcomes(u *suite) {
	plain, cause := errors.New("the body's own"), errors.New("the caller has gone")
	// ending is how the attempt after the one of unknown outcome ends. err is in the error of Run; nil = Run succeeds.
	for _, ending := range []struct {
		name    string
		options kv.TxOptions
		commit  int   // the code of the commit; 0 = it succeeds
		body    error // of the body, before the commit
		leave   bool  // the context ends while the body reads
		err     error
	}{
		{name: "a success"},
		{name: "a commit that fails for good", commit: kv.CodeIOError, err: &kv.Error{Code: kv.CodeIOError}},
		{name: "a commit that is too large", commit: kv.CodeTransactionTooLarge,
			err: &kv.Error{Code: kv.CodeTransactionTooLarge}},
		{name: "a conflict at the limit of retries", options: kv.TxOptions{Retries: 1}, commit: kv.CodeNotCommitted,
			err: &kv.Error{Code: kv.CodeNotCommitted}},
		{name: "an error of the body", body: plain, err: plain},
		{name: "a read that fails for good", body: &kv.Error{Code: kv.CodeIOError},
			err: &kv.Error{Code: kv.CodeIOError}},
		{name: "the end of the context", leave: true, err: cause},
	} {
		for _, applied := range []bool{false, true} {
			for _, first := range []int{kv.CodeCommitUnknownResult, kv.CodeClusterVersionChanged} {
				name := fmt.Sprintf("Run tells that a commit may have landed: %d, applied %v, then %s",
					first, applied, ending.name)
				u.promise(name, func(s *space) {
					ctx, cancel := context.WithCancelCause(s.ctx)
					defer cancel(nil)
					db := firstCommit(s, first, applied, ending.commit)
					_, err := kv.Run(ctx, db, ending.options, func(tx kv.Tx, a kv.Attempt) error {
						if a.N > 0 && ending.leave {
							cancel(cause)
							_, err := (never{}).Wait(ctx)
							return err
						}
						if a.N > 0 && ending.body != nil {
							return fmt.Errorf("body: %w", ending.body)
						}
						tx.Set(s.key("a"), []byte(fmt.Sprint(a.N)))
						return nil
					})
					if ending.err == nil {
						require.NoError(s.T, err)
						require.Equal(s.T, "1", s.get("a"))
						return
					}
					require.Equal(s.T, applied, s.get("a") == "0")
					require.ErrorIs(s.T, err, ending.err)
					require.True(s.T, kv.MaybeCommitted(err), "%v", err)
					require.Contains(s.T, err.Error(), "it may have landed")
					var e *kv.Error
					require.ErrorAs(s.T, err, &e)
					require.Equal(s.T, first == kv.CodeClusterVersionChanged, e.InFlight, "%v", err)
					last := kv.LastAttempt(err)
					require.ErrorIs(s.T, last, ending.err)
					require.False(s.T, kv.MaybeCommitted(last), "%v", last)
				})
			}
		}
	}
	// The last attempt's own commit has an unknown outcome. The body's proof about earlier attempts proves nothing
	// about this one.
	u.promise("LastAttempt leaves open what became of the last attempt's own commit", func(s *space) {
		ctx, cancel := context.WithCancelCause(s.ctx)
		commits := 0
		db := &faultyDB{
			DB:     s.DB,
			commit: func(kv.ManagedTx) kv.Future[struct{}] { commits++; return failed(kv.CodeCommitUnknownResult) },
			onError: func(tx kv.ManagedTx, err error) kv.Future[struct{}] {
				if commits == 2 {
					defer cancel(cause)
				}
				return tx.OnError(err)
			},
		}
		for _, o := range []kv.TxOptions{{Retries: 1}, {}} {
			commits = 0
			_, err := kv.Run(ctx, db, o, func(tx kv.Tx, _ kv.Attempt) error {
				tx.Set(s.key("a"), nil)
				return nil
			})
			require.Equal(s.T, kv.CodeCommitUnknownResult, kv.Code(err))
			require.True(s.T, kv.MaybeCommitted(kv.LastAttempt(err)), "%v", err)
			ctx, cancel = context.WithCancelCause(s.ctx)
		}
		cancel(nil)
	})
	u.promise("an attempt that ends with 1021 does not hide an earlier commit in flight", func(s *space) {
		db := firstCommit(s, kv.CodeClusterVersionChanged, false, kv.CodeCommitUnknownResult)
		_, err := kv.Run(s.ctx, db, kv.TxOptions{Retries: 1}, func(tx kv.Tx, _ kv.Attempt) error {
			tx.Set(s.key("a"), nil)
			return nil
		})
		var e *kv.Error
		require.ErrorAs(s.T, err, &e)
		require.True(s.T, e.InFlight)
	})
	for _, code := range []int{1022, 4000, 4100, 9999} {
		name := fmt.Sprintf("a commit that ends with a code of unknown meaning may have landed: %d", code)
		u.promise(name, func(s *space) {
			db := &faultyDB{DB: s.DB, commit: func(tx kv.ManagedTx) kv.Future[struct{}] {
				wait(s, tx.Commit())
				return failed(code)
			}}
			_, err := kv.Run(s.ctx, db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
				tx.Set(s.key("a"), []byte("1"))
				return nil
			})
			require.Equal(s.T, code, kv.Code(err))
			require.True(s.T, kv.MaybeCommitted(err), "%v", err)
			require.Equal(s.T, "1", s.get("a"))
		})
		name = fmt.Sprintf("a retry after a code of unknown meaning knows MaybeCommitted: %d", code)
		u.promise(name, func(s *space) {
			var attempts []kv.Attempt
			db := firstCommit(s, code, true, 0)
			_, err := kv.Run(s.ctx, db, kv.TxOptions{}, func(tx kv.Tx, a kv.Attempt) error {
				attempts = append(attempts, a)
				tx.Set(s.key("a"), []byte(fmt.Sprint(a.N)))
				return nil
			})
			require.NoError(s.T, err)
			require.Equal(s.T, []kv.Attempt{{}, {N: 1, MaybeCommitted: true, InFlight: true}}, attempts)
		})
	}
	for _, code := range []int{1235, 1242, 1251} {
		u.promise(fmt.Sprintf("a commit that the cluster has turned away was not applied: %d", code), func(s *space) {
			var attempts []kv.Attempt
			body := func(tx kv.Tx, a kv.Attempt) error {
				attempts = append(attempts, a)
				tx.Set(s.key("a"), nil)
				return nil
			}
			_, err := kv.Run(s.ctx, firstCommit(s, code, false, 0), kv.TxOptions{}, body)
			require.NoError(s.T, err)
			require.Equal(s.T, []kv.Attempt{{}, {N: 1}}, attempts)
			refuses := &faultyDB{DB: s.DB, commit: func(kv.ManagedTx) kv.Future[struct{}] { return failed(code) }}
			_, err = kv.Run(s.ctx, refuses, kv.TxOptions{Retries: 1}, body)
			require.Equal(s.T, code, kv.Code(err))
			require.False(s.T, kv.MaybeCommitted(err), "%v", err)
			require.NotContains(s.T, err.Error(), "error (")
		})
	}
	u.promise("the error that ended the backoff is told, not the one before", func(s *space) {
		db := &faultyDB{
			DB:      s.DB,
			commit:  func(kv.ManagedTx) kv.Future[struct{}] { return failed(kv.CodeNotCommitted) },
			onError: func(kv.ManagedTx, error) kv.Future[struct{}] { return failed(kv.CodeTransactionTimedOut) },
		}
		_, err := kv.Run(s.ctx, db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			tx.Set(s.key("a"), nil)
			return nil
		})
		require.Equal(s.T, kv.CodeTransactionTimedOut, kv.Code(err))
		require.False(s.T, kv.MaybeCommitted(err))
	})
}

// firstCommit returns a database whose first commit ends with code, applied or not, and is tried again; the second ends
// with then, if not 0.
func firstCommit(s *space, code int, applied bool, then int) *faultyDB {
	commits := 0
	return &faultyDB{
		DB: s.DB,
		commit: func(tx kv.ManagedTx) kv.Future[struct{}] {
			switch commits++; {
			case commits == 1:
				if applied {
					wait(s, tx.Commit())
				}
				return failed(code)
			case commits == 2 && then != 0:
				return failed(then)
			}
			return tx.Commit()
		},
		onError: func(tx kv.ManagedTx, err error) kv.Future[struct{}] {
			if kv.Code(err) != code || code == kv.CodeCommitUnknownResult {
				return tx.OnError(err)
			}
			// Like a client that retries this code. The attempt counts as a retry.
			return tx.OnError(&kv.Error{Code: kv.CodeCommitUnknownResult})
		},
	}
}

// otherCalls: an error of Run tells of the outcome of its own transaction. The error of another call may be the cause
// of the context, as in a group of goroutines of which the first error ends all, or an error of the body.
func otherCalls(u *suite) {
	for _, code := range []int{
		kv.CodeNotCommitted, kv.CodeTransactionTooOld, kv.CodeIOError, kv.CodeTransactionTooLarge,
		kv.CodeCommitUnknownResult,
	} {
		other := &kv.Error{Code: code}
		endsWithCode(u, fmt.Sprintf("a cause that is %d", code), other)
		endsWithCode(u, fmt.Sprintf("a cause that wraps %d", code), fmt.Errorf("another call: %w", other))
	}
	for _, other := range []*kv.Error{
		{Code: kv.CodeCommitUnknownResult}, {Code: kv.CodeClusterVersionChanged},
		{Code: kv.CodeOperationCancelled, InFlight: true},
	} {
		for _, ends := range []string{"its context", "its limit of retries"} {
			name := fmt.Sprintf("a body that fails with %d until %s ends Run has committed nothing", other.Code, ends)
			u.promise(name, func(s *space) {
				ctx, cancel := context.WithCancel(s.ctx)
				defer cancel()
				o := kv.TxOptions{Retries: 2}
				if ends == "its context" {
					o.Retries = 0
				}
				_, err := kv.Run(ctx, s.DB, o, func(tx kv.Tx, a kv.Attempt) error {
					tx.Set(s.key("a"), nil)
					if a.N == 2 && o.Retries == 0 {
						cancel()
					}
					return fmt.Errorf("read: %w", other)
				})
				require.ErrorIs(s.T, err, other)
				require.False(s.T, kv.MaybeCommitted(err), "%v", err)
				require.Equal(s.T, absent, s.get("a"))
			})
		}
	}
}

// endsWithCode: Run whose context ends with a cause that wraps an *Error of another call, at each place of the loop.
func endsWithCode(u *suite, name string, cause error) {
	for _, place := range []string{
		"before the first attempt", "in the body", "in a pause of the body", "in a pause after a conflict",
		"during the commit",
	} {
		u.promise(fmt.Sprintf("%s, %s, tells nothing of the commit of Run", name, place), func(s *space) {
			ctx, cancel := context.WithCancelCause(s.ctx)
			db := &faultyDB{DB: s.DB}
			leave := func(kv.ManagedTx, error) kv.Future[struct{}] {
				cancel(cause)
				return never{}
			}
			body := func() error { return nil }
			switch place {
			case "before the first attempt":
				cancel(cause)
			case "in the body":
				body = func() error {
					cancel(cause)
					_, err := (never{}).Wait(ctx)
					return fmt.Errorf("read: %w", err)
				}
			case "in a pause of the body":
				db.onError = leave
				body = func() error { return &kv.Error{Code: kv.CodeProcessBehind} }
			case "in a pause after a conflict":
				db.onError = leave
				db.commit = func(kv.ManagedTx) kv.Future[struct{}] { return failed(kv.CodeNotCommitted) }
			default:
				db.commit = func(tx kv.ManagedTx) kv.Future[struct{}] {
					wait(s, tx.Commit())
					cancel(cause)
					return never{}
				}
			}
			_, err := kv.Run(ctx, db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
				tx.Set(s.key("a"), []byte("1"))
				return body()
			})
			require.ErrorIs(s.T, err, cause)
			sent := place == "during the commit"
			require.Equal(s.T, sent, kv.MaybeCommitted(err), "%v", err)
			require.Equal(s.T, sent, s.get("a") == "1")
			var e *kv.Error
			require.ErrorAs(s.T, err, &e)
			require.Equal(s.T, sent, e.InFlight)
			require.Equal(s.T, kv.MaybeCommitted(err), kv.MaybeCommitted(kv.LastAttempt(err)))
		})
	}
}
