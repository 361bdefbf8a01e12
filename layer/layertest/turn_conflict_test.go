package layer_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// turnHeld is a queue with a lease for each item.
type turnHeld struct {
	*env
	q    *layer.Queue
	late kv.ManagedTx // an enqueue that began while the group was empty; nil = none
}

func (h *turnHeld) send(n int) {
	for range n {
		_, err := h.q.Enqueue(h.ctx, layer.Message{Group: "A"})
		require.NoError(h.t, err)
	}
}

// handed sends, and receives the first messages.
func handed(sent, received int) func(h *turnHeld) []*layer.Claim {
	return func(h *turnHeld) []*layer.Claim {
		h.send(sent)
		if received == 0 {
			return nil
		}
		had, err := h.q.Receive(h.ctx, layer.ReceiveOptions{Max: received})
		require.NoError(h.t, err)
		require.Len(h.t, had, received)
		return had
	}
}

func receiveOf(n int) func(h *turnHeld, tx kv.Tx, _ []*layer.Claim) error {
	return func(h *turnHeld, tx kv.Tx, _ []*layer.Claim) error {
		_, err := h.q.ReceiveTx(h.ctx, tx, layer.ReceiveOptions{Max: n})
		return err
	}
}

func ackOf(i int) func(h *turnHeld, tx kv.Tx, _ []*layer.Claim) error {
	return func(h *turnHeld, tx kv.Tx, had []*layer.Claim) error { return h.q.AckTx(h.ctx, tx, had[i]) }
}

func nackOf(i int) func(h *turnHeld, tx kv.Tx, _ []*layer.Claim) error {
	return func(h *turnHeld, tx kv.Tx, had []*layer.Claim) error {
		return h.q.NackTx(h.ctx, tx, had[i], layer.NackOptions{AtOnce: true})
	}
}

func extendOf(i int) func(h *turnHeld, tx kv.Tx, _ []*layer.Claim) error {
	return func(h *turnHeld, tx kv.Tx, had []*layer.Claim) error {
		_, err := h.q.ExtendTx(h.ctx, tx, had[i], 0)
		return err
	}
}

// handedThenDelayed hands out the first message, and has a second which is delayed.
func handedThenDelayed(h *turnHeld) []*layer.Claim {
	had := handed(1, 1)(h)
	_, err := h.q.Enqueue(h.ctx, layer.Message{Group: "A", Delay: time.Hour})
	require.NoError(h.t, err)
	return had
}

// hurryNext makes the last message due in a minute.
func hurryNext(h *turnHeld, tx kv.Tx, _ []*layer.Claim) error {
	items, err := h.q.Peek(h.ctx, "A", 2, nil)
	require.NoError(h.t, err)
	return h.q.RescheduleTx(h.ctx, tx, items[len(items)-1].ID, h.clock.now().Add(time.Minute))
}

func enqueueMore(h *turnHeld, tx kv.Tx, _ []*layer.Claim) error {
	_, err := h.q.EnqueueTx(h.ctx, tx, layer.Message{Group: "A"})
	return err
}

// TestTurnConflicts (G1, G2, G5): operations of a queue with a lease for each item conflict if they must not happen at
// the same time, and do not conflict otherwise. After the first operation is repeated, the queue is sound.
func TestTurnConflicts(t *testing.T) {
	const must, mustNot = true, false
	sent := handed(2, 0)
	takeOne := func(h *turnHeld, tx kv.Tx, _ []*layer.Claim) error {
		_, _, err := h.q.TakeTx(h.ctx, tx, 1, layer.TakeOptions{})
		return err
	}
	lapsed := func(h *turnHeld) []*layer.Claim {
		had := handed(2, 1)(h)
		h.clock.advance(time.Minute)
		return had
	}
	for _, p := range []pair[*turnHeld, []*layer.Claim]{
		{"receive, receive", sent, receiveOf(1), receiveOf(2), must},
		{"receive, take", sent, receiveOf(1), takeOne, must},
		{"take, receive", sent, takeOne, receiveOf(1), must},
		{"receive, pause of the group", sent, receiveOf(1), func(h *turnHeld, tx kv.Tx, _ []*layer.Claim) error {
			_, err := h.q.Admin().PauseGroupTx(h.ctx, tx, "A", layer.PauseOptions{})
			return err
		}, must},
		{"ack that leaves the head in flight, release of the head", handed(2, 2), ackOf(0), nackOf(1), must},
		{"release behind the head, ack of the head", handed(2, 2), nackOf(1), ackOf(0), must},
		{"ack behind the head, ack of the head", handed(3, 2), ackOf(1), ackOf(0), must},
		{"ack of the head, extend of the next", handed(3, 2), ackOf(0), extendOf(1), mustNot},
		{"extend, ack of another", handed(3, 2), extendOf(0), ackOf(1), mustNot},
		{"ack of all there is, enqueue", handed(1, 1), ackOf(0), enqueueMore, must},
		{"enqueue, ack of all there is", handed(1, 1), enqueueMore, ackOf(0), must},
		{"enqueue behind others, ack of the head", handed(3, 2), enqueueMore, ackOf(0), mustNot},
		{"reschedule of the next to earlier, ack of the head", handedThenDelayed, hurryNext, ackOf(0), must},
		{"ack of the head, reschedule of the next to earlier", handedThenDelayed, ackOf(0), hurryNext, mustNot},
		{"receive that takes over, extend by the holder", lapsed, receiveOf(1), extendOf(0), must},
		{"cancel of the head, receive", sent, func(h *turnHeld, tx kv.Tx, _ []*layer.Claim) error {
			items, err := h.q.Peek(h.ctx, "A", 1, nil)
			require.NoError(h.t, err)
			return h.q.Admin().CancelTx(h.ctx, tx, items[0].ID)
		}, receiveOf(1), must},
		{"receive, late enqueue before the head", func(h *turnHeld) []*layer.Claim {
			var err error
			h.late, err = h.raw.Begin(kv.TxOptions{})
			require.NoError(h.t, err)
			require.NoError(h.t, enqueueMore(h, h.late, nil))
			_, err = h.q.Enqueue(h.ctx, layer.Message{Group: "B"}) // a later version: the index of the next is greater
			require.NoError(h.t, err)
			claims, err := h.q.Receive(h.ctx, layer.ReceiveOptions{})
			require.NoError(h.t, err)
			require.NoError(h.t, h.q.Ack(h.ctx, claims[0]))
			h.send(1)
			return nil
		}, receiveOf(1), func(h *turnHeld, _ kv.Tx, _ []*layer.Claim) error {
			_, err := h.late.Commit().Wait(h.ctx)
			return err
		}, must},
	} {
		t.Run(p.name, func(t *testing.T) {
			e := newEnv(t, anyEngine, false)
			h := &turnHeld{env: e, q: e.inTurn("turns", nil, 1)[0]}
			p.run(e, h)()
		})
	}
}
