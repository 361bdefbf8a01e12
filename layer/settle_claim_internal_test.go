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

func second[T any](_ T, err error) error { return err }
