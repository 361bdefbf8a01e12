package embedded

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// The history answers as a list of all writes would, within the window. Replay: the seed is fixed in the test.
func TestHistoryAgainstList(t *testing.T) {
	const seed = 11
	random := rand.New(rand.NewPCG(seed, seed))
	span := func() keyRange {
		letters := func() string {
			return string(rune('a'+random.IntN(8))) + string(rune('a'+random.IntN(8)))
		}
		a, b := letters(), letters()
		if random.IntN(2) == 0 || a == b {
			return keyRange{a, a + "\x00"}
		}
		return keyRange{min(a, b), max(a, b)}
	}
	type write struct {
		r       keyRange
		version int64
	}
	var h history
	var all []write
	version := int64(2 * window)
	for range 20_000 {
		version += random.Int64N(window / 200)
		w := span()
		h.add([]keyRange{w}, version)
		all = append(all, write{w, version})
		h.forget(version)
		at, r := version-random.Int64N(random.Int64N(window)+1), span()
		want := false
		for i := len(all) - 1; i >= 0 && all[i].version > at; i-- {
			want = want || all[i].r.begin < r.end && r.begin < all[i].r.end
		}
		require.Equal(t, want, h.conflicts([]keyRange{r}, at), "seed %d: %q since %d, now %d", seed, r, at, version)
	}
	require.LessOrEqual(t, len(h.generations), window/generationSpan+2, "what is older than the window is dropped")
}
