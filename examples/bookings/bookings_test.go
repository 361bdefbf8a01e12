package main

import (
	"bytes"
	"context"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// Under injected conflicts and commits of unknown outcome no seat is sold twice and no request is lost; run
// proves it from the database, or fails.
func TestBookings(t *testing.T) {
	for seed := uint64(1); seed <= 3; seed++ {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) {
			var out bytes.Buffer
			require.NoError(t, run(context.Background(), &out, seed, true), "replay: go run ./examples/bookings -seed %d", seed)
			require.Contains(t, out.String(), "Proven: 200 requests")
		})
	}
}

// A canary: the proof must fail on each kind of broken promise.
func TestProve(t *testing.T) {
	sound := func() ledger {
		return ledger{
			requests: map[int64]request{
				0: {flight: "F", answer: "1A"}, 1: {flight: "F", answer: "1B"}, 2: {flight: "F", answer: refused},
			},
			sold: map[string][]int64{"F": {0, 1}},
		}
	}
	v, err := sound().prove(3)
	require.NoError(t, err)
	require.Equal(t, verdict{requests: 3, seated: 2, refused: 1}, v)

	for name, breakIt := range map[string]func(l ledger){
		"request lost":        func(l ledger) { delete(l.requests, 2) },
		"no answer":           func(l ledger) { l.requests[2] = request{flight: "F"} },
		"seat sold twice":     func(l ledger) { l.requests[2] = request{flight: "F", answer: "1A"} },
		"seat without owner":  func(l ledger) { l.sold["F"][0] = 7 },
		"refused with a seat": func(l ledger) { l.sold["F"][1] = free; l.requests[1] = request{flight: "F", answer: refused} },
		"seat forgotten":      func(l ledger) { delete(l.requests, 2); l.requests[2] = request{flight: "F", answer: "1C"} },
		"out of turn": func(l ledger) {
			l.requests[0] = request{flight: "F", answer: refused}
			l.requests[2] = request{flight: "F", answer: "1A"}
			l.sold["F"][0] = 2
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := sound()
			breakIt(l)
			_, err := l.prove(3)
			require.Error(t, err)
		})
	}
}
