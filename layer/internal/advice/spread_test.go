package advice

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

type seeded struct{ *rand.Rand }

func (s seeded) N(below int) int { return s.IntN(below) }
func (s seeded) Float() float64  { return s.Float64() }

// TestLandsWhereHintsAre: a handle that has landed where no hints are lands among those that there are from then on,
// and further out again when there are more.
func TestLandsWhereHintsAre(t *testing.T) {
	s, random := &Spread{}, seeded{rand.New(rand.NewPCG(13, 0))}
	land := func(hints int) {
		s.level, s.away, s.landed = 3, true, false
		place, away := s.Place(random, 1, 0)
		require.True(t, away)
		require.Nil(t, place.After)
		if place.Offset+1 < hints {
			s.Walked(place.Shard, []byte("hint"))
			place, away = s.Place(random, 1, 0)
			require.True(t, away)
			require.NotNil(t, place.After, "the next is a step")
			return
		}
		require.Less(t, s.GoHome(random), max(place.Offset, nearby), "nearer")
		_, away = s.Place(random, 1, 0)
		require.False(t, away)
	}
	for range 8 {
		land(20)
	}
	require.NotZero(t, s.reach)
	require.Less(t, s.reach, 64)
	for range 100 {
		land(400)
	}
	require.Greater(t, s.reach, 64)
}
