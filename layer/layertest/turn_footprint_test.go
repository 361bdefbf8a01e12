package layer_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/record"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// turnFootprints are the operations that testdata/turn_footprints.txt holds the footprints of, in a queue with a lease
// for each item.
var turnFootprints = map[string]struct {
	setup func(h *turnHeld) []*layer.Claim
	run   func(h *turnHeld, tx kv.Tx, had []*layer.Claim) error
}{
	"receive-two":            {handed(3, 0), receiveOf(2)},
	"receive-head-in-hand":   {handed(2, 1), receiveOf(1)},
	"receive-lapsed":         {lapsedIn(2), receiveOf(1)},
	"take-one":               {handed(2, 0), takeTurn},
	"ack-head-next-in-hand":  {handed(2, 2), ackOf(0)},
	"ack-head-next-free":     {handed(2, 1), ackOf(0)},
	"ack-behind-the-head":    {handed(2, 2), ackOf(1)},
	"ack-last":               {handed(1, 1), ackOf(0)},
	"nack-head":              {handed(2, 2), nackOf(0)},
	"nack-behind-the-head":   {handed(2, 2), nackOf(1)},
	"nack-delay":             {handed(2, 1), nackTurn(layer.NackOptions{Delay: time.Minute})},
	"nack-rejected":          {handed(2, 1), nackTurn(layer.NackOptions{Reject: "no use"})},
	"extend":                 {handed(2, 2), extendOf(1)},
	"cancel-head":            {handed(2, 0), cancelHead},
	"pause-with-one-in-hand": {handed(2, 1), pauseTurn(false)},
	"pause-by-force":         {handed(2, 1), pauseTurn(true)},
}

func lapsedIn(n int) func(h *turnHeld) []*layer.Claim {
	return func(h *turnHeld) []*layer.Claim {
		had := handed(n, 1)(h)
		h.clock.advance(time.Minute)
		return had
	}
}

func nackTurn(o layer.NackOptions) func(h *turnHeld, tx kv.Tx, had []*layer.Claim) error {
	return func(h *turnHeld, tx kv.Tx, had []*layer.Claim) error { return h.q.NackTx(h.ctx, tx, had[0], o) }
}

func takeTurn(h *turnHeld, tx kv.Tx, _ []*layer.Claim) error {
	_, _, err := h.q.TakeTx(h.ctx, tx, 1, layer.TakeOptions{})
	return err
}

func cancelHead(h *turnHeld, tx kv.Tx, _ []*layer.Claim) error {
	items, err := h.q.Peek(h.ctx, "A", 1, nil)
	require.NoError(h.t, err)
	return h.q.Admin().CancelTx(h.ctx, tx, items[0].ID)
}

func pauseTurn(force bool) func(h *turnHeld, tx kv.Tx, _ []*layer.Claim) error {
	return func(h *turnHeld, tx kv.Tx, _ []*layer.Claim) error {
		_, err := h.q.Admin().PauseGroupTx(h.ctx, tx, "A", layer.PauseOptions{Force: force})
		return err
	}
}

// TestTurnFootprints: what each operation reads, with and without conflict, and writes, in a queue with a lease for
// each item. The lines with = are the conflict ranges that the engine made of it.
func TestTurnFootprints(t *testing.T) {
	datadriven.RunTest(t, "testdata/turn_footprints.txt", func(t *testing.T, d *datadriven.TestData) string {
		op, ok := turnFootprints[d.Cmd]
		require.True(t, ok, "%s: no such operation", d.Cmd)
		e, r := recorded(t)
		e.db = r
		h := &turnHeld{env: e, q: e.inTurn("turns", nil, 1)[0]}
		had := op.setup(h)
		r.Take()
		before := r.Counters()
		_, err := kv.Run(e.ctx, r, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error { return op.run(h, tx, had) })
		require.NoError(t, err)
		count := r.Counters().Sub(before)
		printer := newKeyPrinter()
		printer.prefix = append(append([]byte(nil), testPrefix...), tuple.Tuple{"turns"}.Pack()...)
		var out strings.Builder
		for _, tx := range r.Take() {
			out.WriteString(sortRanges(record.Footprint(tx, printer.print)))
		}
		fmt.Fprintf(
			&out, "%d key reads, %d range reads, %d mutations\n", count.KeyReads, count.RangeReads, count.Mutations)
		return out.String()
	})
}
