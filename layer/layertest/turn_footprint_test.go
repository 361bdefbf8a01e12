package layer_test

import (
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// turnFootprints are the operations that testdata/turn_footprints.txt holds the footprints of, in a queue with a lease
// for each item.
var turnFootprints = map[string]struct {
	setup func(e *env) any
	run   func(e *env, tx kv.Tx, had any) error
}{
	"receive-two":            {handed(3, 0), claimUpTo(2)},
	"receive-head-in-hand":   {handed(2, 1), claimUpTo(1)},
	"receive-lapsed":         {lapsedIn(2), claimUpTo(1)},
	"take-one":               {handed(2, 0), takeOne},
	"ack-head-next-in-hand":  {handed(2, 2), ackOf(0)},
	"ack-head-next-free":     {handed(2, 1), ackOf(0)},
	"ack-behind-the-head":    {handed(2, 2), ackOf(1)},
	"ack-last":               {handed(1, 1), ackOf(0)},
	"nack-head":              {handed(2, 2), nackOf(0, noDelay)},
	"nack-behind-the-head":   {handed(2, 2), nackOf(1, noDelay)},
	"nack-delay":             {handed(2, 1), nackOf(0, layer.NackOptions{Delay: time.Minute})},
	"nack-rejected":          {handed(2, 1), nackOf(0, layer.NackOptions{Reject: "no use"})},
	"extend":                 {handed(2, 2), extendOf(1)},
	"cancel-head":            {handed(2, 0), cancelHead},
	"pause-with-one-in-hand": {handed(2, 1), pauseGroup},
	"pause-by-force":         {handed(2, 1), pauseBy(layer.PauseOptions{Force: true})},
}

func cancelHead(e *env, tx kv.Tx, _ any) error {
	items, err := e.q.Peek(e.ctx, "A", 1, nil)
	require.NoError(e.t, err)
	return e.q.Admin().CancelTx(e.ctx, tx, items[0].ID)
}

func pauseBy(o layer.PauseOptions) func(e *env, tx kv.Tx, _ any) error {
	return func(e *env, tx kv.Tx, _ any) error {
		_, err := e.q.Admin().PauseGroupTx(e.ctx, tx, "A", o)
		return err
	}
}

// TestTurnFootprints: what each operation reads, with and without conflict, and writes, in a queue with a lease for
// each item. The lines with = are the conflict ranges that the engine made of it.
func TestTurnFootprints(t *testing.T) {
	datadriven.RunTest(t, "testdata/turn_footprints.txt", func(t *testing.T, d *datadriven.TestData) string {
		op, ok := turnFootprints[d.Cmd]
		require.True(t, ok, "%s: no such operation", d.Cmd)
		return unhurried(func() string {
			e, r := recorded(t)
			e.db = r
			h := e.on(e.inTurn("turns", nil, 1)[0])
			had := op.setup(h)
			printer := newKeyPrinter()
			printer.prefix = append(append([]byte(nil), testPrefix...), tuple.Tuple{"turns"}.Pack()...)
			return footprint(r, printer, func() {
				_, err := kv.Run(e.ctx, r, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
					return op.run(h, tx, had)
				})
				require.NoError(t, err)
			})
		})
	})
}
