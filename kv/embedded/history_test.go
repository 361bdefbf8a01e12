package embedded

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// The history answers as a list of all writes would, within the window. Replay: the seed is fixed in the test.
func TestHistoryAgainstList(t *testing.T) {
	// Few commits in a window are all recent ones; of many, most are not.
	t.Run("few", func(t *testing.T) { historyAgainstList(t, window/200, 5_000) })
	t.Run("many", func(t *testing.T) { historyAgainstList(t, window/10_000, 15_000) })
}

func historyAgainstList(t *testing.T, step int64, commits int) {
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
	for range commits {
		if random.IntN(4) > 0 { // else in the same group
			version += random.Int64N(step)
		}
		w := span()
		h.add([]keyRange{w}, version)
		all = append(all, write{w, version})
		h.forget(version)
		at := version - random.Int64N(random.Int64N(window)+1)
		if random.IntN(2) == 0 {
			at = version - random.Int64N(20*step)
		}
		reads := []keyRange{span(), span()}[:1+random.IntN(2)]
		want := false
		for i := len(all) - 1; i >= 0 && all[i].version > at; i-- {
			for _, r := range reads {
				want = want || all[i].r.begin < r.end && r.begin < all[i].r.end
			}
		}
		require.Equal(t, want, h.conflicts(reads, at), "seed %d: %q since %d, now %d", seed, reads, at, version)
	}
	require.LessOrEqual(t, len(h.generations), window/generationSpan+2, "what is older than the window is dropped")
}

// A range written at a version conflicts with each transaction that began before the version, and with none that began
// at it. This holds for recent versions and for older ones, which are stored differently. Some commits share a version,
// as the commits of a group do.
func TestHistoryAtEachVersion(t *testing.T) {
	var h history
	key := func(i int) string { return fmt.Sprintf("%06d", i) }
	version := func(i int) int64 { return int64(2*window + i/3) }
	const commits = 4 * maxRecent
	for i := range commits {
		h.add([]keyRange{{key(i), key(i) + "\x00"}, {key(i) + "b", key(i) + "d"}}, version(i))
		if i%(maxRecent/3) != 0 {
			continue
		}
		for j := range i + 1 {
			for _, r := range []keyRange{{key(j), key(j) + "\x00"}, {key(j), key(j) + "a"}, {key(j) + "c", key(j) + "e"}} {
				require.True(t, h.conflicts([]keyRange{r}, version(j)-1), "commit %d of %d, %q", j, i, r)
				require.False(t, h.conflicts([]keyRange{r}, version(j)), "commit %d of %d, %q", j, i, r)
			}
		}
	}
	require.LessOrEqual(t, h.recentCount, 2*maxRecent)
	require.Positive(t, h.recentFrom)
}

// TestHistoryWithoutRanges: commits that write no conflict range leave nothing in the history, however many they are.
func TestHistoryWithoutRanges(t *testing.T) {
	var h history
	for i := range int64(100_000) {
		h.add(nil, 2*window+i)
	}
	require.LessOrEqual(t, len(h.recent), 2*maxRecent)
	require.LessOrEqual(t, len(h.generations), 1)
}
