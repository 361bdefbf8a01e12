package layer

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer/internal/rec"
)

// TestHolderOfASubscription (contract): a subscription is one process's at a time. A holder that is late with its
// heartbeat and still extends keeps the subscription. A process that has lost it moves no place, and the effects of its
// handler are not committed.
func TestHolderOfASubscription(t *testing.T) {
	type side struct {
		q *Queue
		s *subscription
	}
	test := func(name string, do func(t *testing.T, db kv.DB, now *time.Time, a, b *subscription)) {
		t.Run(name, func(t *testing.T) {
			ctx := t.Context()
			db := embedded.OpenMemory(embedded.Options{})
			t.Cleanup(func() { require.NoError(t, db.Close()) })
			now := time.UnixMilli(1_700_000_000_000)
			o := Options{Now: func() time.Time { return now }, Config: Config{Changes: time.Hour}}
			_, err := Create(ctx, db, nil, "q", o)
			require.NoError(t, err)
			var sides [2]side
			for i := range sides {
				q, err := Open(ctx, db, nil, "q", o)
				require.NoError(t, err)
				s, err := q.newSubscription("audit", false, SubscribeOptions{FromOldest: true, Lease: 10 * time.Second})
				require.NoError(t, err)
				sides[i] = side{q, s}
			}
			_, err = sides[0].q.Enqueue(ctx, Message{Group: "A"})
			require.NoError(t, err)
			do(t, db, &now, sides[0].s, sides[1].s)
			report, err := sides[0].q.Admin().Check(ctx, CheckOptions{})
			require.NoError(t, err)
			require.Empty(t, report.Violations)
		})
	}
	acquire := func(t *testing.T, s *subscription) time.Duration {
		wait, err := s.acquire(t.Context())
		require.NoError(t, err)
		return wait
	}
	extend := func(t *testing.T, s *subscription) error {
		return s.update(t.Context(), func(tx kv.Tx, _ *following) error {
			return s.ifMine(t.Context(), tx, func(r rec.Reader) { s.setReader(tx, r.EndMS) })
		})
	}

	test("the other waits for the end of the lease", func(t *testing.T, _ kv.DB, now *time.Time, a, b *subscription) {
		require.Zero(t, acquire(t, a))
		*now = now.Add(4 * time.Second)
		require.Equal(t, 6*time.Second, acquire(t, b))
		require.NoError(t, extend(t, a))
		*now = now.Add(9 * time.Second)
		require.Equal(t, time.Second, acquire(t, b))
		a.release(t.Context())
		require.Zero(t, acquire(t, b))
		require.ErrorIs(t, extend(t, a), errNotHolder)
	})
	test("extended meanwhile", func(t *testing.T, db kv.DB, now *time.Time, a, b *subscription) {
		require.Zero(t, acquire(t, a))
		*now = now.Add(11 * time.Second)
		tx, err := db.Begin(kv.TxOptions{})
		require.NoError(t, err)
		wait, err := b.take(t.Context(), tx)
		require.NoError(t, err)
		require.Zero(t, wait, "the lease is over")
		require.NoError(t, extend(t, a))
		_, err = tx.Commit().Wait(t.Context())
		require.Equal(t, kv.CodeNotCommitted, kv.Code(err))
		require.Equal(t, 10*time.Second, acquire(t, b))
	})
	test("taken over meanwhile", func(t *testing.T, db kv.DB, now *time.Time, a, b *subscription) {
		require.Zero(t, acquire(t, a))
		page, err := a.read(t.Context())
		require.NoError(t, err)
		require.Len(t, page.changes, 1)
		calls := 0
		effect := func(s *subscription, before func()) error {
			s.inTx = func(_ context.Context, tx kv.Tx, _ []Change) error {
				before()
				calls++
				tx.Atomic(kv.Add, []byte("effect"), rec.PackCount(1))
				return nil
			}
			_, err := s.handleTx(t.Context(), page)
			return err
		}
		err = effect(a, func() {
			*now = now.Add(11 * time.Second)
			if acquire(t, b) == 0 {
				require.NoError(t, effect(b, func() {}))
			}
		})
		require.ErrorIs(t, err, errNotHolder)
		require.Equal(t, 2, calls)
		var n int64
		_, err = kv.Run(t.Context(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			v, err := tx.Get([]byte("effect")).Wait(t.Context())
			require.NoError(t, err)
			n, err = rec.UnpackCount(nil, v)
			return err
		})
		require.NoError(t, err)
		require.EqualValues(t, 1, n)
	})
}

// TestFinalErrorAfterSilence: a subscription ends with a final error while the last store of its place may still be
// committed. It leaves the reader, whose lease must expire, so that no other process begins at an older place.
func TestFinalErrorAfterSilence(t *testing.T) {
	for _, silent := range []bool{false, true} {
		ctx, db := t.Context(), embedded.OpenMemory(embedded.Options{})
		q, err := Create(ctx, db, nil, "q", Options{Config: Config{Changes: time.Hour}})
		require.NoError(t, err)
		s, err := q.newSubscription("audit", false, SubscribeOptions{})
		require.NoError(t, err)
		_, err = s.acquire(ctx)
		require.NoError(t, err)
		s.silent = silent
		_, _, err = q.Admin().Configure(ctx, func(c *Config) { c.Changes = 0 })
		require.NoError(t, err)
		require.ErrorIs(t, s.run(ctx), ErrOptions)
		var reader []byte
		_, err = kv.Run(ctx, db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) (err error) {
			reader, err = tx.Get(q.keys.reader("audit")).Wait(ctx)
			return err
		})
		require.NoError(t, err)
		require.Equal(t, silent, reader != nil)
		requireSound(t, q)
		require.NoError(t, db.Close())
	}
}
