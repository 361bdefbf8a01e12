package layer_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// TestStateLimits: a state of the largest size is kept, one byte more is refused by every way in, before anything is done.
func TestStateLimits(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	c := holding(2, 1)(e).(*layer.Claim)
	largest := bytes.Repeat([]byte{7}, layer.MaxStateSize)
	require.NoError(t, e.q.Settle(e.ctx, ackingState(c, largest)))
	got, err := e.q.GroupState(e.ctx, "A")
	require.NoError(t, err)
	require.Equal(t, largest, got)

	claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{State: true})
	require.NoError(t, err)
	require.Equal(t, largest, claims[0].State)
	more := append(largest, 7)
	for _, err := range []error{
		e.q.Settle(e.ctx, settingState(claims[0], more)), e.q.Settle(e.ctx, ackingState(claims[0], more)),
		e.q.Admin().SetGroupState(e.ctx, "A", more, layer.SetGroupStateOptions{Force: true}),
	} {
		var limit *layer.LimitError
		require.ErrorAs(t, err, &limit)
		require.EqualValues(t, layer.MaxStateSize+1, limit.Got)
		require.EqualValues(t, layer.MaxStateSize, limit.Max)
	}
	_, err = e.q.GroupState(e.ctx, strings.Repeat("g", layer.MaxGroupSize+1))
	var limit *layer.LimitError
	require.ErrorAs(t, err, &limit)
	require.ErrorIs(t, e.q.Admin().SetGroupState(e.ctx, "\xff", nil, layer.SetGroupStateOptions{}), layer.ErrInvalidUTF8)
	require.NoError(t, e.q.Ack(e.ctx, claims[0]), "nothing was changed")
}

// TestStateWithOwnData: the state, the ack and the caller's own data are there together or not at all (G6).
func TestStateWithOwnData(t *testing.T) {
	onEngines(t, func(e *env) {
		c := holding(2, 2)(e).(*layer.Claim)
		own := []byte("own")
		both := func(claim *layer.Claim) error {
			return e.q.Once(e.ctx, func(tx kv.Tx) error {
				tx.Set(own, []byte("x"))
				return e.q.SettleTx(e.ctx, tx, ackingState(claim, []byte("s"), claim.Items[0].ID))
			})
		}
		stranger := *c
		stranger.Token--
		require.ErrorIs(e.t, both(&stranger), layer.ErrClaimLost)
		require.Empty(e.t, e.rows(kv.SingleKey(own)))
		state, err := e.q.GroupState(e.ctx, "A")
		require.NoError(e.t, err)
		require.Nil(e.t, state)
		require.NoError(e.t, both(c))
		require.Len(e.t, e.rows(kv.SingleKey(own)), 1)
		state, err = e.q.GroupState(e.ctx, "A")
		require.NoError(e.t, err)
		require.Equal(e.t, "s", string(state))
		require.NoError(e.t, e.q.Settle(
			e.ctx, layer.Settlement{Claim: c, Finish: []layer.ID{}, State: new([]byte)},
		), "ids that are none finish nothing")
		require.Equal(e.t, []string{"a"}, e.all("A"))
	})
}

// TestNackState: the state goes with the nack, in the caller's transaction too, or not at all; one that is too large is
// refused before anything is done.
func TestNackState(t *testing.T) {
	onEngines(t, func(e *env) {
		c := holding(2, 2)(e).(*layer.Claim)
		var limit *layer.LimitError
		nacking := func(state []byte, ids ...layer.ID) layer.Settlement {
			return layer.Settlement{Claim: c, Finish: ids, Nack: &layer.NackOptions{}, State: &state}
		}
		require.ErrorAs(e.t, e.q.Settle(e.ctx, nacking(make([]byte, layer.MaxStateSize+1))), &limit)
		own, abort := []byte("own"), errors.New("changed my mind")
		nack := func(then error) error {
			return e.q.Once(e.ctx, func(tx kv.Tx) error {
				tx.Set(own, []byte("x"))
				err := e.q.SettleTx(e.ctx, tx, nacking([]byte("s"), c.Items[0].ID))
				return cmp.Or(err, then)
			})
		}
		state := func() string {
			got, err := e.calm().GroupState(e.ctx, "A")
			require.NoError(e.t, err)
			return string(got)
		}
		require.ErrorIs(e.t, nack(abort), abort)
		require.Empty(e.t, state())
		require.NoError(e.t, nack(nil))
		require.Equal(e.t, "s", state())
		require.Len(e.t, e.rows(kv.SingleKey(own)), 1)
		require.ErrorIs(e.t, nack(nil), layer.ErrClaimLost)
	})
}

// TestStateWorker: a handler gets the state that the item before has left, across claims and processes. The state that
// it sets is stored with the acks. Each item counts once in the state, whatever fails, and a failed attempt does not
// count.
func TestStateWorker(t *testing.T) {
	type handler = func(d *worker.Delivery, state []byte) ([]byte, error)
	keep := func(ctx context.Context, d *worker.Delivery, h handler) error {
		state, err := d.State(ctx)
		if err != nil {
			return err
		}
		next, err := h(d, state)
		return errors.Join(err, d.SetState(next))
	}
	for name, kind := range map[string]func(h handler) worker.Handler{
		"acked one by one": func(h handler) worker.Handler {
			return worker.Handle(func(ctx context.Context, d *worker.Delivery) error { return keep(ctx, d, h) })
		},
		"in a transaction": func(h handler) worker.Handler {
			return worker.HandleTx(func(ctx context.Context, _ kv.Tx, d *worker.Delivery) error {
				return keep(ctx, d, h)
			})
		},
		"in a batch": func(h handler) worker.Handler {
			return worker.HandleBatch(func(ctx context.Context, ds []*worker.Delivery) error {
				state, err := ds[0].State(ctx)
				for i, d := range ds {
					if err == nil {
						state, err = h(d, state)
					}
					if err != nil {
						return &worker.BatchError{Done: i, Err: err}
					}
					err = d.SetState(state)
				}
				return err
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			onEngines(t, func(e *env) {
				const groups, items = 3, 12
				for i := range items {
					for g := range groups {
						e.enqueue(fmt.Sprint("g", g), string(rune('a'+i)))
					}
				}
				var mu sync.Mutex
				tries := make(map[layer.ID]int)
				handle := func(item *worker.Delivery, state []byte) ([]byte, error) {
					mu.Lock()
					defer mu.Unlock()
					if tries[item.ID]++; tries[item.ID] == 1 && item.ID.Index%3 == 0 {
						return []byte("of a failure"), errors.New("not yet")
					}
					return append(slices.Clone(state), item.Body...), nil
				}
				var workers []*worker.Worker
				for n := range uint64(2) {
					o := quiet(worker.Options{Concurrency: 2, Batch: 5, Poll: 100 * time.Millisecond})
					w, err := worker.New(e.handle(5+n), kind(handle), o)
					require.NoError(e.t, err)
					w.Start()
					workers = append(workers, w)
				}
				e.awaitDepth(0)
				for _, w := range workers {
					require.NoError(e.t, w.Stop(e.ctx))
				}
				for g := range groups {
					state, err := e.calm().GroupState(e.ctx, fmt.Sprint("g", g))
					require.NoError(e.t, err)
					require.Equal(e.t, "abcdefghijkl", string(state))
				}
			})
		})
	}
}

// TestStateWorkerTooLarge: a state that is too large is the handler's failure.
func TestStateWorkerTooLarge(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.configure(func(c *layer.Config) { c.MaxAttempts = 1 })
	e.enqueue("A", "large", "small")
	w, err := worker.New(e.q, worker.Handle(func(_ context.Context, d *worker.Delivery) error {
		if string(d.Body) == "large" {
			return d.SetState(make([]byte, layer.MaxStateSize+1))
		}
		return d.SetState([]byte("small"))
	}), quiet(worker.Options{Concurrency: 1}))
	require.NoError(t, err)
	w.Start()
	e.awaitDepth(0)
	require.NoError(t, w.Stop(e.ctx))
	page, err := e.q.Admin().DeadLetters(e.ctx, layer.DeadOptions{})
	require.NoError(t, err)
	require.Len(t, page.Letters, 1)
	require.Contains(t, page.Letters[0].LastError, "state is 90001 bytes")
	state, err := e.q.GroupState(e.ctx, "A")
	require.NoError(t, err)
	require.Equal(t, "small", string(state))
}
