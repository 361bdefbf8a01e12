package layer_test

import (
	"context"
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// Errors of functions that a caller lends to a transaction: Settlement.Change, Admin.Edit and RedriveOptions.Edit.

// givenErrors are errors of another database, which a transaction of the queue must not take for its own.
var givenErrors = map[string]error{
	"conflict": &kv.Error{Code: kv.CodeNotCommitted}, "too old": &kv.Error{Code: kv.CodeTransactionTooOld},
	"unknown":   fmt.Errorf("wrapped: %w", &kv.Error{Code: kv.CodeCommitUnknownResult}),
	"in flight": &kv.Error{Code: kv.CodeTransactionTimedOut, InFlight: true},
	"too large": &kv.Error{Code: kv.CodeTransactionTooLarge},
}

// TestErrorOfChange (G3): an error of Settlement.Change ends its own settlement at once, also an error that wraps a
// *kv.Error. The operations that share the transaction are done, and the claim stays, with its heartbeat. If a method
// of the error panics, the panic is an error of the settlement.
func TestErrorOfChange(t *testing.T) {
	errs := map[string]error{"broken": (*brokenError)(nil), "nil": (*kv.Error)(nil)}
	for name, err := range givenErrors {
		errs[name] = err
	}
	for name, given := range errs {
		t.Run(name, func(t *testing.T) {
			inBubble(t, layer.Config{}, func(b *bubble) {
				ctx, cancel := context.WithTimeout(b.t.Context(), 10*time.Minute)
				defer cancel()
				_, err := b.q.Enqueue(ctx, append(bodiesIn("A", "1"), bodiesIn("B", "1")...)...)
				require.NoError(t, err)
				claims, err := b.q.Receive(ctx, layer.ReceiveOptions{Strategy: layer.Heads, Heartbeat: true})
				require.NoError(t, err)
				require.Len(t, claims, 2)
				begun, calls := time.Now(), 0
				changes := advanceAll(claims[0], func(*layer.Message) error {
					calls++
					return given
				})
				err = b.q.Settle(ctx, changes, layer.Settlement{Claim: claims[1], FinishAll: true})
				require.Error(t, err)
				require.Less(t, time.Since(begun), time.Second)
				require.Equal(t, 1, calls)
				if name == "broken" {
					require.ErrorContains(t, err, "brokenError")
				} else {
					require.ErrorIs(t, err, given)
				}
				var failed *layer.ClaimError
				require.ErrorAs(t, err, &failed)
				require.Same(t, claims[0], failed.Claim)
				require.EqualValues(t, 1, b.stats().Depth, "the other claim is acked")
				_, ended := claims[0].Lasts()
				select {
				case <-ended:
					require.Fail(t, "the heartbeat has ended")
				default:
				}
				_, err = b.q.SettleReceive(ctx, changes, layer.ReceiveOptions{})
				require.Error(t, err)
				_, err = b.q.SettleReceive(ctx, changes, layer.ReceiveOptions{Wait: time.Second})
				require.Error(t, err)
				require.Less(t, time.Since(begun), time.Second)
				require.NoError(t, b.q.Ack(ctx, claims[0]))
				b.sound()
			})
		})
	}
}

// TestErrorOfEdit (G3): an error of the function of Edit or Redrive ends the call at once and without effect, also an
// error that wraps a *kv.Error.
func TestErrorOfEdit(t *testing.T) {
	for name, given := range givenErrors {
		t.Run(name, func(t *testing.T) {
			inBubble(t, layer.Config{}, func(b *bubble) {
				ctx, cancel := context.WithTimeout(b.t.Context(), time.Second)
				defer cancel()
				_, err := b.q.Enqueue(ctx, layer.Message{Group: "A"})
				require.NoError(t, err)
				sent, err := b.q.Enqueue(ctx, layer.Message{Group: "A"})
				require.NoError(t, err)
				admin, calls := b.q.Admin(), 0
				dead, err := admin.Skip(ctx, "A", layer.SkipOptions{})
				require.NoError(t, err)
				edit := func(*layer.Message) error {
					calls++
					return given
				}
				require.ErrorIs(t, admin.Edit(ctx, sent[0].ID, edit), given)
				for _, tail := range []bool{false, true} {
					o := layer.RedriveOptions{
						ToTail: tail, Edit: func(_ layer.DeadLetter, m *layer.Message) error { return edit(m) },
					}
					_, err = admin.Redrive(ctx, layer.DeadFilter{IDs: []layer.ID{dead}}, o)
					require.ErrorIs(t, err, given)
					require.ErrorContains(t, err, dead.String())
				}
				require.Equal(t, 3, calls)
				require.EqualValues(t, 1, b.stats().Dead)
				b.sound()
			})
		})
	}
}

// TestErrorInTheCallersTransaction (G6): an error of Change or Edit comes back from SettleTx and RedriveTx, so that the
// caller's transaction ends with it.
func TestErrorInTheCallersTransaction(t *testing.T) {
	inBubble(t, layer.Config{Facets: []string{"state"}, Views: "*; state"}, func(b *bubble) {
		ctx := b.t.Context()
		_, err := b.q.Enqueue(ctx, append(bodiesIn("A", "1"), bodiesIn("B", "1")...)...)
		require.NoError(t, err)
		dead, err := b.q.Admin().Skip(ctx, "B", layer.SkipOptions{})
		require.NoError(t, err)
		claims, err := b.q.Receive(ctx, layer.ReceiveOptions{})
		require.NoError(t, err)
		fails := func(m *layer.Message) error {
			m.Headers["state"] = "PAID"
			return io.ErrUnexpectedEOF
		}
		o := layer.RedriveOptions{Edit: func(_ layer.DeadLetter, m *layer.Message) error { return fails(m) }}
		require.ErrorIs(t, b.q.Once(ctx, func(tx kv.Tx) error {
			return b.q.SettleTx(ctx, tx, advanceAll(claims[0], fails))
		}), io.ErrUnexpectedEOF)
		require.ErrorIs(t, b.q.Once(ctx, func(tx kv.Tx) error {
			return b.q.Admin().RedriveTx(ctx, tx, o, dead)
		}), io.ErrUnexpectedEOF)
		require.NoError(t, b.q.Ack(ctx, claims[0]))
		b.sound()
	})
}
