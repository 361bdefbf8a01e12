package advice

import (
	"math/rand/v2"
	"strconv"
	"testing"
	"time"

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

// TestTemplatesWithoutEnd: a handle whose receives have ever new templates keeps a bounded number of them in mind, and
// the shards of a fair queue still take turns.
func TestTemplatesWithoutEnd(t *testing.T) {
	var spreads Spreads
	var far Far
	now := time.Unix(0, 0)
	for i := range 3*spreadsMost + 1 {
		where := strconv.Itoa(i)
		require.EqualValues(t, i/spreadsMost, spreads.Of(where).FairTurn.Load())
		far.Begin(where, now.Add(time.Duration(i)*time.Minute), time.Minute, true)
		far.Next([]byte(where), []byte{1})
		require.LessOrEqual(t, len(spreads.all), spreadsMost)
		require.LessOrEqual(t, max(len(far.looked), len(far.after)), farPlaces)
	}
	far.Next([]byte(strconv.Itoa(3*spreadsMost)), nil)
	require.Empty(t, far.after)
}

// TestFarKeepsWhatItMeets: a handle that meets more wrong timers than it can keep an eye on ends those that it has seen
// for long enough, and then the others.
func TestFarKeepsWhatItMeets(t *testing.T) {
	const lease = 30 * time.Second
	var far Far
	over := make(map[int]bool)
	now := time.Unix(0, 0)
	for looks := 0; len(over) < 3*farSeen; looks++ {
		require.Less(t, looks, 60)
		far.Begin("", now, lease, true)
		for i := range 3 * farSeen {
			if !over[i] && far.IsOver([]byte(strconv.Itoa(i)), 1, now, lease) {
				over[i] = true
			}
		}
		require.LessOrEqual(t, len(far.seen), farSeen)
		now = now.Add(lease / farLooks)
	}
}
