package advice

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFlights: what one transaction is about to claim another leaves alone, until the first gives it up: with its next
// attempt, or when it has landed.
func TestFlights(t *testing.T) {
	var all Flights
	a, b := all.Begin(), all.Begin()
	require.True(t, a.Take("g"))
	require.True(t, a.Take("g"), "its own")
	require.False(t, b.Take("g"))
	a.Attempt()
	require.True(t, b.Take("g"))
	require.False(t, a.Take("g"))
	require.False(t, a.Take("g"), "the handle may still have to do with what was claimed")
	b.Land()
	require.True(t, all.Empty())
	require.False(t, a.Take("g"), "it may read what was there before the commit of b")
	require.True(t, all.Begin().Take("h"))
	c := all.Begin()
	require.True(t, c.Take("g"), "it began later")
	c.Land()
	a.Attempt()
	require.True(t, a.Take("g"))
	a.Land()
	require.Len(t, all.landed, 1, "one flight is under way that began before a landed")
}

// TestBookings: what an attempt has booked of a portion is given back if the attempt, or the whole transaction, was not
// applied; not if the outcome is unknown.
func TestBookings(t *testing.T) {
	rate := Rate{Count: 10, PerMS: 1000, Burst: 10}
	for outcome, left := range map[Outcome]int{Applied: 1, Unknown: 1, Failed: 4} {
		var b Portions
		k := b.Begin()
		reserve := func(n int) int {
			got, _, err := b.Reserve(t.Context(), rate, n, k, func() int64 { return 1 }, func(int) {},
				func(want int64) (int64, int64, error) { return 4, 0, nil })
			require.NoError(t, err)
			return got
		}
		require.Equal(t, 2, reserve(2))
		k.Attempt()
		require.Equal(t, 4, reserve(9), "the booking of the attempt before is undone")
		b.GiveBackLast(k, 1)
		k.End(outcome)
		require.Equal(t, left, b.now.left)
	}
}

// TestStrideHalves: each transaction that fails amid chores halves the bounds once more, each that comes to its commit
// once less.
func TestStrideHalves(t *testing.T) {
	var s Stride
	for range 9 {
		s.Failed(s.Halvings())
	}
	require.Equal(t, maxHalvings, s.Halvings())
	for range 9 {
		s.Came(s.Halvings())
	}
	require.Zero(t, s.Halvings())
}
