package embedded

import (
	"maps"
	"math/rand/v2"
	"slices"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"
)

// A view shows what the store held when the view was taken, whichever other views are closed before the next write, and
// however many writes follow. A map, copied for each view, says what that is.
func TestViewsStayAsTaken(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 0))
		s, held := newMemStore(), map[string]string{}
		type taken struct {
			view
			held map[string]string
		}
		var open []taken
		key := func() string { return strconv.Itoa(1000 + r.IntN(1000)) }
		for step := range 300 {
			for range r.IntN(3) {
				v, err := s.snapshot()
				require.NoError(t, err)
				open = append(open, taken{v, maps.Clone(held)})
			}
			for len(open) > 0 && r.IntN(2) == 0 {
				i := r.IntN(len(open))
				open[i].close()
				open = slices.Delete(open, i, i+1)
			}
			var batch []mutation
			for range r.IntN(20) {
				if begin := key(); r.IntN(6) > 0 {
					batch = append(batch, mutation{opSet, begin, strconv.Itoa(step)})
					held[begin] = strconv.Itoa(step)
				} else {
					end := strconv.Itoa(1000 + r.IntN(1000))
					batch = append(batch, mutation{opClear, begin, max(begin, end)})
					maps.DeleteFunc(held, func(k, _ string) bool { return begin <= k && k < end })
				}
			}
			require.NoError(t, s.apply(0, batch))
			for _, v := range open {
				found := map[string]string{}
				require.NoError(t, v.ascend(keyRange{}, false, func(key, value string) bool {
					found[key] = value
					return true
				}))
				require.Equal(t, v.held, found, "seed %d, step %d", seed, step)
			}
		}
		require.Equal(t, len(held), s.tree.Len())
	}
}
