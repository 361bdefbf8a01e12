package layer_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

var (
	isNew  = layer.Template{"state": "NEW"}
	isPaid = layer.Template{"state": "PAID"}
)

// lanePair is a pair on a queue with facets, and the views of that queue.
type lanePair struct {
	name     string
	views    string
	setup    func(l *laned) *layer.Claim // given to both
	first    func(l *laned, tx kv.Tx, c *layer.Claim) error
	second   func(l *laned, tx kv.Tx, c *layer.Claim) error
	conflict bool
}

// laned is a queue with the facets state and region.
type laned struct {
	*env
	q *layer.Queue
}

// send enqueues messages into group A, a message for each state.
func (l *laned) send(states ...string) {
	for _, state := range states {
		_, err := l.q.Enqueue(l.ctx, layer.Message{Group: "A", Headers: facetsOf(state, "EU")})
		require.NoError(l.t, err)
	}
}

// claim receives by template from the group A.
func (l *laned) claim(where layer.Template, max int) *layer.Claim {
	l.t.Helper()
	claims, err := l.q.Receive(l.ctx, layer.ReceiveOptions{Where: where, Max: max})
	require.NoError(l.t, err)
	if len(claims) == 0 {
		return nil
	}
	return claims[0]
}

// move advances all items of a claim to a state.
func (l *laned) move(tx kv.Tx, c *layer.Claim, state string) error {
	return l.q.SettleTx(l.ctx, tx, advanceBy(c, func(m *layer.Message) error {
		m.Headers["state"] = state
		return nil
	}))
}

func sending(states ...string) func(l *laned) *layer.Claim {
	return func(l *laned) *layer.Claim {
		l.send(states...)
		return nil
	}
}

// handing sends, and claims one item by template.
func handing(where layer.Template, states ...string) func(l *laned) *layer.Claim {
	return func(l *laned) *layer.Claim {
		l.send(states...)
		return l.claim(where, 1)
	}
}

func claimWhere(where layer.Template) func(l *laned, tx kv.Tx, _ *layer.Claim) error {
	return func(l *laned, tx kv.Tx, _ *layer.Claim) error {
		_, err := l.q.ReceiveTx(l.ctx, tx, layer.ReceiveOptions{Where: where, Max: 1})
		return err
	}
}

func takeWhere(where layer.Template) func(l *laned, tx kv.Tx, _ *layer.Claim) error {
	return func(l *laned, tx kv.Tx, _ *layer.Claim) error {
		_, _, err := l.q.TakeTx(l.ctx, tx, 1, layer.TakeOptions{Where: where})
		return err
	}
}

func enqueueState(state string) func(l *laned, tx kv.Tx, _ *layer.Claim) error {
	return func(l *laned, tx kv.Tx, _ *layer.Claim) error {
		_, err := l.q.EnqueueTx(l.ctx, tx, layer.Message{Group: "A", Headers: facetsOf(state, "EU")})
		return err
	}
}

func ackLane(l *laned, tx kv.Tx, c *layer.Claim) error { return l.q.AckTx(l.ctx, tx, c) }

func extendLane(l *laned, tx kv.Tx, c *layer.Claim) error {
	_, err := l.q.ExtendTx(l.ctx, tx, c, 0)
	return err
}

func advanceTo(state string) func(l *laned, tx kv.Tx, c *layer.Claim) error {
	return func(l *laned, tx kv.Tx, c *layer.Claim) error { return l.move(tx, c, state) }
}

// TestLaneConflicts (lanes, traps 1, 2, 3, 4): what must not happen at the same time in a queue with facets conflicts,
// and what works on disjoint lanes of one group does not. After the first operation is repeated, the queue is sound.
func TestLaneConflicts(t *testing.T) {
	const must, mustNot = true, false
	stale := func(l *laned) *layer.Claim { // the lane NEW is empty, and its hint is there
		l.send("NEW")
		c := l.claim(nil, 1)
		require.NoError(l.t, l.q.Once(l.ctx, func(tx kv.Tx) error { return l.move(tx, c, "PAID") }))
		return l.claim(isPaid, 1)
	}
	for _, p := range []lanePair{
		{"claim by template, claim of the whole group", "*; state", sending("NEW"),
			claimWhere(isNew), claimWhere(nil), must},
		{"claim of the whole group, claim by template", "*; state", sending("NEW"),
			claimWhere(nil), claimWhere(isNew), must},
		{"claim by template, claim by the same", "state", sending("NEW"), claimWhere(isNew), claimWhere(isNew), must},
		{"claim by template, claim by another of the same view", "state", sending("NEW", "PAID"),
			claimWhere(isNew), claimWhere(isPaid), mustNot},
		{"claim by template, claim by an intersecting one of another view", "state; region", sending("NEW"),
			claimWhere(isNew), claimWhere(layer.Template{"region": "EU"}), must},
		{"claim by template, take by an intersecting one", "state; state,region", sending("NEW"),
			claimWhere(isNew), takeWhere(layer.Template{"state": "NEW", "region": "EU"}), must},
		{"take by template, take of the whole group", "*; state", sending("NEW"),
			takeWhere(isNew), takeWhere(nil), must},
		{"take by template, take by another of the same view", "state", sending("NEW", "PAID"),
			takeWhere(isNew), takeWhere(isPaid), mustNot},
		{"enqueue, ack of the lane's tail", "state", handing(isNew, "NEW", "PAID"), enqueueState("NEW"), ackLane, must},
		{"ack of the lane's tail, enqueue", "state", handing(isNew, "NEW", "PAID"), ackLane, enqueueState("NEW"), must},
		{"enqueue, ack of another lane's tail", "state", handing(isNew, "NEW", "PAID"),
			enqueueState("PAID"), ackLane, mustNot},
		{"ack, claim by another template of the same view", "state", handing(isNew, "NEW", "PAID"),
			ackLane, claimWhere(isPaid), mustNot},
		{"advance, claim of the lane that the item joins", "state", handing(isNew, "NEW", "PAID"),
			advanceTo("PAID"), claimWhere(isPaid), mustNot},
		{"advance, enqueue to the lane that the item joins", "state", handing(isNew, "NEW", "NEW", "PAID"),
			advanceTo("PAID"), enqueueState("PAID"), mustNot},
		{"advance behind the first of a lane, which leaves, and the rest is left to its delay", "state",
			func(l *laned) *layer.Claim {
				l.send("PAID", "NEW")
				later := layer.Message{Group: "A", Headers: facetsOf("PAID", "EU"), Delay: time.Hour}
				_, err := l.q.Enqueue(l.ctx, later)
				require.NoError(l.t, err)
				return l.claim(isNew, 1)
			}, advanceTo("PAID"), func(l *laned, _ kv.Tx, _ *layer.Claim) error {
				require.NoError(l.t, l.q.Ack(l.ctx, l.claim(isPaid, 1)))
				require.Nil(l.t, l.claim(isPaid, 1))
				return nil
			}, must},
		{"advance, extend of the same claim", "state", handing(isNew, "NEW"), advanceTo("PAID"), extendLane, must},
		{"claim that puts a hint aside, release of the lock", "*; state", handing(isNew, "NEW", "PAID"),
			claimWhere(nil), ackLane, must},
		{"release of a lock, claim that puts a hint aside", "*; state", handing(isNew, "NEW", "PAID"),
			ackLane, claimWhere(nil), must},
		{"claim that ends an expired claim of a lane, extend by its holder", "*; state", func(l *laned) *layer.Claim {
			c := handing(isNew, "NEW", "PAID")(l)
			l.clock.advance(time.Minute)
			return c
		}, claimWhere(nil), extendLane, must},
		{"retry of a delayed head, claim of another lane", "state; region", func(l *laned) *layer.Claim {
			late := layer.Message{Group: "A", Headers: facetsOf("NEW", "EU"), Delay: time.Minute}
			_, err := l.q.Enqueue(l.ctx, late)
			require.NoError(l.t, err)
			return nil
		}, func(l *laned, tx kv.Tx, _ *layer.Claim) error {
			return l.join(tx, "lanes", l.options(98), false).RetryNow(l.ctx, "A", layer.RetryOptions{Where: isNew})
		}, func(l *laned, tx kv.Tx, c *layer.Claim) error {
			l.clock.advance(time.Minute)
			return claimWhere(layer.Template{"region": "EU"})(l, tx, c)
		}, must},
		{"claim that clears a hint of an empty lane, advance back into it (trap 1)", "*; state", stale,
			claimWhere(isNew), advanceTo("NEW"), must},
		{"claim that clears a hint of an empty lane, redrive (trap 1)", "*; state", func(l *laned) *layer.Claim {
			l.send("NEW")
			require.NoError(l.t, l.q.Nack(l.ctx, l.claim(nil, 1), layer.NackOptions{Reject: "no"}))
			return nil
		}, claimWhere(isNew), func(l *laned, tx kv.Tx, _ *layer.Claim) error {
			page, err := l.q.Admin().DeadLetters(context.Background(), layer.DeadOptions{})
			require.NoError(l.t, err)
			require.Len(l.t, page.Letters, 1)
			return l.q.Admin().RedriveTx(l.ctx, tx, layer.RedriveOptions{}, page.Letters[0].ID)
		}, must},
	} {
		t.Run(p.name, func(t *testing.T) {
			e := newEnv(t, anyEngine, false)
			l := &laned{env: e, q: e.laned("lanes", p.views, nil, 1)[0]}
			of := pair[*laned, *layer.Claim]{p.name, p.setup, p.first, p.second, p.conflict}
			of.run(e, l)()
		})
	}
}
