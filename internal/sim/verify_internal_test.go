package sim

import (
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/layer"
)

// TestCompareHistoriesTokens: a token is held against those of receives that ended before, and so against none of an
// actor that died with its claim in flight, even if that began first (seed 2200006673).
func TestCompareHistoriesTokens(t *testing.T) {
	received := func(begin, end int, token int64) *op {
		o := &op{kind: "receive", begin: begin, claims: []*layer.Claim{{Group: "g0", Token: token}}, outcome: unknown}
		if end > 0 {
			o.end, o.over, o.outcome = end, true, done
		}
		return o
	}
	const died = 0
	for name, tt := range map[string]struct {
		ops  []*op
		want int
	}{
		"a death first":    {[]*op{received(30, died, 9), received(38, 127, 5)}, 0},
		"a death between":  {[]*op{received(10, 20, 5), received(30, died, 9), received(38, 127, 7)}, 0},
		"in order":         {[]*op{received(30, 35, 5), received(38, 127, 9)}, 0},
		"at a time":        {[]*op{received(30, 50, 9), received(38, 127, 5)}, 0},
		"back":             {[]*op{received(30, 35, 9), received(38, 127, 5)}, 1},
		"twice":            {[]*op{received(30, 35, 9), received(38, 127, 9)}, 1},
		"back, of a death": {[]*op{received(30, 35, 9), received(38, died, 5)}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := &world{sched: &scheduler{trace: new(trace)}, report: new(Report)}
			w.ops = tt.ops
			w.compareHistories(nil)
			require.Len(t, w.violations, tt.want)
		})
	}
}
