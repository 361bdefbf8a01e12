package kvtest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
)

// lastCode is past every error code that FoundationDB has.
const lastCode = 2300

// retried are the codes for which OnError prepares another attempt. It is more than the documented predicate: 1079
// is in no predicate and still retried; and 1039 is retried by the multi-version client alone.
func (e Engine) retried() []int {
	codes := []int{1007, 1009, 1020, 1021, 1037, 1038, 1042, 1051, 1078, 1079, 1213, 1223}
	if e.RetriesClusterVersionChanged {
		codes = append(codes, 1039)
	}
	return codes
}

func retries(u *suite) {
	u.promise("OnError retries exactly FoundationDB's codes and returns all others", func(s *space) {
		tx := s.beginWith(kv.TxOptions{MaxRetryDelay: time.Millisecond})
		retried := s.retried()
		for c := 1; c <= lastCode; c++ {
			tx.Reset()
			want := c
			switch {
			case c == 1100:
				want = kv.CodeTransactionCancelled // broken_promise shows as a cancelled transaction
			case slices.Contains(retried, c):
				want = 0
			}
			if got := code(s, tx.OnError(&kv.Error{Code: c})); got != want {
				require.Equal(s.T, want, got, "OnError(%d)", c)
			}
		}
	})
	u.promise("OnError without an error is 2000: there is nothing to retry", func(s *space) {
		require.Equal(s.T, kv.CodeClientInvalidOperation, code(s, s.begin().OnError(nil)))
	})
	u.promise("OnError prepares a fresh attempt", func(s *space) {
		for _, c := range s.retried() {
			tx, rv := s.at()
			require.NoError(s.T, s.run(tx, "get a; set b; writeconflict c"))
			s.set("a", fmt.Sprint(c))
			wait(s, tx.OnError(&kv.Error{Code: c}))
			require.Greater(s.T, wait(s, tx.ReadVersion()), rv, "after %d", c)
			require.Equal(s.T, []string{"a=" + fmt.Sprint(c)}, s.rows(tx, s.all(), kv.RangeOptions{}))
			require.EqualValues(s.T, -1, s.commit(tx))
		}
	})
	u.promise("OnError of a final error leaves the transaction cancelled", func(s *space) {
		tx := s.begin()
		require.Equal(s.T, kv.CodeTransactionTooLarge,
			code(s, tx.OnError(&kv.Error{Code: kv.CodeTransactionTooLarge})))
		require.Equal(s.T, kv.CodeTransactionCancelled, code(s, tx.Get(s.key("a"))))
		require.Equal(s.T, kv.CodeTransactionCancelled, code(s, tx.Commit()))
	})
	u.promise("OnError finds the code in a wrapped error", func(s *space) {
		wrapped := fmt.Errorf("layer: enqueue: %w", &kv.Error{Code: kv.CodeNotCommitted})
		wait(s, s.begin().OnError(wrapped))
		wrapped = fmt.Errorf("layer: enqueue: %w", &kv.Error{Code: kv.CodeAccessedUnreadable})
		require.Equal(s.T, kv.CodeAccessedUnreadable, code(s, s.begin().OnError(wrapped)))
	})
	u.promise("OnError returns an error that has no code", func(s *space) {
		plain := errors.New("not an engine's error")
		_, err := s.begin().OnError(plain).Wait(s.ctx)
		require.ErrorIs(s.T, err, plain)
	})
	u.promise("OnError clears a deferred error and a failed commit", func(s *space) {
		tx, _ := s.at()
		require.NoError(s.T, s.run(tx, "get a; set b"))
		s.set("a", "1")
		err := s.commitError(tx)
		require.Equal(s.T, kv.CodeNotCommitted, kv.Code(err))
		wait(s, tx.OnError(err))
		require.NoError(s.T, s.run(tx, "get a; set b"))
		s.commit(tx)
	})
	u.promise("the retry limit counts retries after the first attempt", func(s *space) {
		tx := s.beginWith(kv.TxOptions{Retries: 2})
		for range 2 {
			wait(s, tx.OnError(&kv.Error{Code: kv.CodeNotCommitted}))
			require.Equal(s.T, absent, s.getIn(tx, "a"))
		}
		require.Equal(s.T, kv.CodeNotCommitted, code(s, tx.OnError(&kv.Error{Code: kv.CodeNotCommitted})))
		require.Equal(s.T, kv.CodeTransactionCancelled, code(s, tx.Get(s.key("a"))))
	})
	u.promise("the backoff is capped by the largest retry delay", func(s *space) {
		// Uncapped, half of these would wait for half a second each: more than a test's patience.
		tx := s.beginWith(kv.TxOptions{MaxRetryDelay: time.Millisecond})
		for range 300 {
			wait(s, tx.OnError(&kv.Error{Code: kv.CodeNotCommitted}))
		}
	})
	timeouts(u)
}

func (s *space) commitError(tx kv.ManagedTx) error {
	_, err := tx.Commit().Wait(s.ctx)
	return err
}

// timeouts: the timeout counts from the beginning of the transaction and bounds the whole retry loop.
func timeouts(u *suite) {
	const timeout = 300 * time.Millisecond
	u.promise("a timeout ends reads, commits and OnError with 1031", func(s *space) {
		o := kv.TxOptions{Timeout: timeout}
		reader, writer, loop := s.beginWith(o), s.beginWith(o), s.beginWith(o)
		writer.Set(s.key("a"), nil)
		s.pass(timeout + 50*time.Millisecond)
		require.Equal(s.T, kv.CodeTransactionTimedOut, code(s, reader.Get(s.key("a"))))
		require.Equal(s.T, kv.CodeTransactionTimedOut, code(s, reader.ReadVersion()))
		require.Equal(s.T, kv.CodeTransactionTimedOut, code(s, writer.Commit()))
		require.Equal(s.T, kv.CodeTransactionTimedOut,
			code(s, loop.OnError(&kv.Error{Code: kv.CodeNotCommitted})))
		require.Equal(s.T, absent, s.get("a"))
	})
	u.promise("OnError does not restart the timeout", func(s *space) {
		tx := s.beginWith(kv.TxOptions{Timeout: timeout, MaxRetryDelay: 20 * time.Millisecond})
		for {
			c := code(s, tx.OnError(&kv.Error{Code: kv.CodeNotCommitted}))
			if c == kv.CodeTransactionTimedOut {
				return
			}
			require.Zero(s.T, c)
		}
	})
}

// pass waits until d has passed on the engine's clock.
func (s *space) pass(d time.Duration) {
	if s.Advance != nil {
		s.Advance(d)
		return
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.ctx.Done():
	}
}
