package layer

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

// TestNoClaim: a verb that settles a claim says so if it is given none, in a transaction of its own and in the
// caller's, and the handle goes on working.
func TestNoClaim(t *testing.T) {
	ctx := t.Context()
	db := embedded.OpenMemory(embedded.Options{})
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	q, err := Create(ctx, db, nil, "q", Options{})
	require.NoError(t, err)
	in := func(fn func(tx kv.Tx) error) error {
		_, err := kv.Run(ctx, db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error { return fn(tx) })
		return err
	}
	for name, verb := range map[string]func() error{
		"Ack":      func() error { return q.Ack(ctx, nil) },
		"Settle":   func() error { return q.Settle(ctx, Settlement{}) },
		"SettleTx": func() error { return in(func(tx kv.Tx) error { return q.SettleTx(ctx, tx, Settlement{}) }) },
		"AckTx":    func() error { return in(func(tx kv.Tx) error { return q.AckTx(ctx, tx, nil) }) },
		"Nack":     func() error { return q.Nack(ctx, nil, NackOptions{}) },
		"NackTx":   func() error { return in(func(tx kv.Tx) error { return q.NackTx(ctx, tx, nil, NackOptions{}) }) },
		"Extend":   func() error { return second(q.Extend(ctx, nil, 0)) },
		"ExtendTx": func() error {
			return in(func(tx kv.Tx) error { return second(q.ExtendTx(ctx, tx, nil, time.Minute)) })
		},
		"Settle, state": func() error { return q.Settle(ctx, Settlement{Finish: []ID{}, State: new([]byte)}) },
		"Settle, nack and state": func() error {
			return q.Settle(ctx, Settlement{Nack: &NackOptions{}, State: new([]byte)})
		},
		"Settle, extend":  func() error { return q.Settle(ctx, Settlement{Extend: time.Minute}) },
		"Settle, several": func() error { return q.Settle(ctx, Settlement{}, Settlement{}) },
		"SettleReceive":   func() error { return second(q.SettleReceive(ctx, Settlement{}, ReceiveOptions{})) },
		"SettleReceive, waiting": func() error {
			return second(q.SettleReceive(ctx, Settlement{}, ReceiveOptions{Wait: time.Minute}))
		},
	} {
		err := verb()
		require.ErrorIs(t, err, ErrOptions, name)
		require.ErrorContains(t, err, "no claim", name)
	}
	_, err = q.Enqueue(ctx, Message{Group: "A"})
	require.NoError(t, err)
	claims, err := q.Receive(ctx, ReceiveOptions{})
	require.NoError(t, err)
	require.Len(t, claims, 1)
	require.NoError(t, q.Close(context.Background()))
}

// TestForceReleaseOfAClaimWithoutItems: a forced release that counts an attempt ends a damaged claim that has no items.
func TestForceReleaseOfAClaimWithoutItems(t *testing.T) {
	ctx := t.Context()
	db := embedded.OpenMemory(embedded.Options{})
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	q, err := Create(ctx, db, nil, "q", Options{})
	require.NoError(t, err)
	_, err = q.Enqueue(ctx, Message{Group: "A"})
	require.NoError(t, err)
	claims, err := q.Receive(ctx, ReceiveOptions{})
	require.NoError(t, err)
	require.Len(t, claims, 1)
	_, err = kv.Run(ctx, db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		v := q.viewOf(ctx, tx)
		r, err := v.readLock("A")
		tx.Set(q.keys.lock("A"), r.WithItems(nil, r.Holding().EndMS).Pack())
		return err
	})
	require.NoError(t, err)
	_, err = q.Admin().ForceRelease(ctx, "A", ForceReleaseOptions{CountAttempt: true})
	require.NoError(t, err)
	claims, err = q.Receive(ctx, ReceiveOptions{})
	require.NoError(t, err)
	require.Len(t, claims, 1)
	require.NoError(t, q.Ack(ctx, claims[0]))
	require.NoError(t, q.Close(context.Background()))
}

// TestProofKeepsTheLease (G2): a receive is repeated under its receive id, by a process whose clock is behind, or with
// a shorter lease, and then notes that its caller knows the claim. The claim lasts as long as its first holder was
// told, and at least for the lease of the repetition.
func TestProofKeepsTheLease(t *testing.T) {
	for name, twin := range map[string]struct{ behind, lease, lasts time.Duration }{
		"clock behind":  {behind: time.Minute, lease: 20 * time.Second, lasts: 20 * time.Second},
		"shorter lease": {lease: MinLease, lasts: 20 * time.Second},
		"longer lease":  {lease: 30 * time.Second, lasts: 30 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, at := t.Context(), time.UnixMilli(1_700_000_000_000)
			db := embedded.OpenMemory(embedded.Options{})
			t.Cleanup(func() { require.NoError(t, db.Close()) })
			now := func() time.Time { return at }
			q, err := Create(ctx, db, nil, "q", Options{Now: now, Config: Config{Lease: 20 * time.Second}})
			require.NoError(t, err)
			other, err := Open(ctx, db, nil, "q", Options{Now: func() time.Time { return at.Add(-twin.behind) }})
			require.NoError(t, err)
			third, err := Open(ctx, db, nil, "q", Options{Now: now})
			require.NoError(t, err)
			_, err = q.Enqueue(ctx, Message{Group: "A"})
			require.NoError(t, err)
			first, err := q.Receive(ctx, ReceiveOptions{ReceiveID: "once"})
			require.NoError(t, err)
			require.Len(t, first, 1)
			again, err := other.Receive(ctx, ReceiveOptions{ReceiveID: "once", Lease: twin.lease})
			require.NoError(t, err)
			require.Len(t, again, 1)
			again[0].suspect = true // as if the receive had read the lock before the first holder's proof
			again, err = prove(ctx, other, &reception{o: ReceiveOptions{ReceiveID: "once", Lease: twin.lease}}, again)
			require.NoError(t, err)
			require.Len(t, again, 1)
			at = at.Add(twin.lasts - time.Second)
			taken, err := third.Receive(ctx, ReceiveOptions{})
			require.NoError(t, err)
			require.Empty(t, taken)
			require.NoError(t, q.Ack(ctx, first[0]))
		})
	}
}

func second[T any](_ T, err error) error { return err }
