package sim

import (
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/internal/linear"
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

// TestHistoryOfVariedEnqueue: the attempts of an enqueue may differ in their messages, as those of a mover do. If one
// of its messages was received, the others need not be there.
func TestHistoryOfVariedEnqueue(t *testing.T) {
	for name, tt := range map[string]struct {
		varied bool
		want   int
	}{
		"one attempt had fewer": {true, 0},
		"all attempts had both": {false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			c := &historian{w: lawWorld(), m: &model{}, groups: make(map[string][]linear.Operation)}
			c.enqueue(&op{
				who: 1, kind: "enqueue-tx", told: linear.Unknown, varied: tt.varied,
				bodies: []string{"a", "b"}, groups: []string{"g", "g"}, messages: make([]layer.Message, 2),
			})
			a := []linear.Message{{ID: layer.ID{Group: "g", Index: 1}, Body: "a"}}
			c.add("g", linear.Operation{
				Kind: linear.Take, Outcome: linear.Done, Messages: a, Span: linear.Span{Call: 10, Return: 11},
			})
			c.add("g", linear.Operation{
				Kind: linear.Peek, Outcome: linear.Done, All: true, Span: linear.Span{Call: 12, Return: 13},
			})
			r, err := linear.Check(linear.Law{}, c.groups, linear.CheckOptions{Dir: t.TempDir()})
			require.NoError(t, err)
			require.Len(t, r.Violations, tt.want)
		})
	}
}
