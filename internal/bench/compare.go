package bench

import (
	"context"
	"fmt"
	"slices"
)

// side is one of two things that are compared. Each call measures one slice of it, and returns its figure, for instance
// seconds a batch.
type side func(ctx context.Context) (float64, error)

// comparison is the outcome of compare.
type comparison struct {
	a, b   float64   // medians over all slices
	ratios []float64 // b to a in each round, sorted
}

// ratio is b to a: the median of the rounds.
func (c comparison) ratio() float64 { return median(c.ratios) }

func (c comparison) spread() string {
	return fmt.Sprintf("median of %d rounds, %.3g–%.3g", len(c.ratios), c.ratios[0], c.ratios[len(c.ratios)-1])
}

// compare measures a and b in slices that alternate, so that whatever else the machine does meets both. A round
// is so many slices of either; its ratio is that of the medians. The first round warms up and does not count.
func compare(ctx context.Context, env Env, rounds, perRound int, a, b side) (comparison, error) {
	var c comparison
	var allA, allB []float64
	for round := range rounds + 1 {
		env.progress("measuring", round, rounds+1)
		var as, bs []float64
		for i := range perRound {
			// a b b a a b …: neither is always the one that finds the other's garbage.
			order := []struct {
				side side
				out  *[]float64
			}{{a, &as}, {b, &bs}}
			if (round+i)%2 == 1 {
				slices.Reverse(order)
			}
			for _, o := range order {
				v, err := o.side(ctx)
				if err != nil {
					return c, err
				}
				*o.out = append(*o.out, v)
			}
		}
		if round == 0 {
			continue
		}
		c.ratios = append(c.ratios, median(bs)/median(as))
		allA, allB = append(allA, as...), append(allB, bs...)
	}
	slices.Sort(c.ratios)
	c.a, c.b = median(allA), median(allB)
	return c, nil
}

func median(values []float64) float64 {
	sorted := slices.Sorted(slices.Values(values))
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}
