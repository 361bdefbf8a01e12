package layer

import (
	"context"
	"fmt"
	"maps"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv/embedded"
)

// TestAdvanceBesideTheLanesEnd: in one transaction one claim's item is advanced into a lane which another claim's ack
// leaves empty, in either order; the item is found there. An item that is advanced to the place before another one is
// received first.
func TestAdvanceBesideTheLanesEnd(t *testing.T) {
	for _, ackFirst := range []bool{false, true} {
		for _, waits := range []bool{false, true} {
			t.Run(fmt.Sprint(ackFirst, waits), func(t *testing.T) { advanceBesideEnd(t, ackFirst, waits) })
		}
	}
}

func advanceBesideEnd(t *testing.T, ackFirst, waits bool) {
	ctx := t.Context()
	db := embedded.OpenMemory(embedded.Options{})
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	q, err := Create(ctx, db, nil, "q", Options{Config: Config{Facets: []string{"state"}, Views: "*; state"}})
	require.NoError(t, err)
	isNew, isPaid := Template{"state": "NEW"}, Template{"state": "PAID"}
	send := func(facets Template, body string) {
		_, err := q.Enqueue(ctx, Message{Group: "A", Headers: facets, Body: []byte(body)})
		require.NoError(t, err)
	}
	claim := func(facets Template, max int) *Claim {
		claims, err := q.Receive(ctx, ReceiveOptions{Where: facets, Max: max})
		require.NoError(t, err)
		require.Len(t, claims, 1)
		return claims[0]
	}
	send(isPaid, "paid")
	send(isNew, "moves")
	if waits {
		send(isPaid, "waits")
	}
	ack := &operation{settle: &settlement{claim: claim(isPaid, 1), all: true}}
	advance := &operation{settle: &settlement{claim: claim(isNew, 1), all: true, advance: &advancing{
		lent: newLent(), of: func(ID) bool { return true },
		fn: func(_ ID, m *Message) error {
			maps.Copy(m.Headers, isPaid)
			return nil
		},
	}}}
	receive := &operation{receive: &reception{o: ReceiveOptions{Where: isPaid, Max: 10}}}
	receive.receive, err = q.reception(receive.receive.o)
	require.NoError(t, err)
	receive.receive.o, err = receive.receive.o.withDefaults()
	require.NoError(t, err)
	both := []*operation{advance, ack, receive}
	if ackFirst {
		both = []*operation{ack, advance, receive}
	}
	for _, o := range both {
		require.NoError(t, q.prepare(o))
	}
	q.run(ctx, both, 0)
	for _, o := range both {
		require.NoError(t, o.Err())
	}
	var bodies []string
	for _, c := range receive.receive.claims {
		for _, i := range c.Items {
			bodies = append(bodies, string(i.Body))
		}
	}
	want := []string{"moves"}
	if waits {
		want = append(want, "waits")
	}
	require.Equal(t, want, bodies)
	require.NoError(t, q.Ack(ctx, receive.receive.claims[0]))
	report, err := q.Admin().Check(ctx, CheckOptions{})
	require.NoError(t, err)
	require.Empty(t, report.Violations)
	require.Zero(t, report.Items)
	require.NoError(t, q.Close(context.Background()))
}
