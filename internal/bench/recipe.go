package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"

	"fdbfifo/internal/recipe"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// plainQueue is the plain queue of FoundationDB's documentation, under load.
type plainQueue struct{ recipe.Queue }

// slice lets consumers pop for a slice and pushes again what they popped.
func (r *plainQueue) slice(ctx context.Context, consumers int, s Sizes) (float64, error) {
	var popped atomic.Int64
	perSecond, err := rate(ctx, consumers, s.LongSlice, func(ctx context.Context, _ int) (int, error) {
		_, ok, err := r.Pop(ctx)
		if err == nil && !ok {
			err = errors.New("the plain queue has run dry")
		}
		if err != nil {
			return 0, err
		}
		popped.Add(1)
		return 1, nil
	})
	if err != nil {
		return 0, err
	}
	return perSecond, r.pushAll(ctx, int(popped.Load()))
}

// pushAll appends n items, in transactions of perLoad.
func (r *plainQueue) pushAll(ctx context.Context, n int) error {
	for ; n > 0; n -= perLoad {
		if err := r.Push(ctx, slices.Repeat([][]byte{make([]byte, bodySize)}, min(n, perLoad))...); err != nil {
			return err
		}
	}
	return nil
}

// fewestPlain is enough for a slice that ends much later than it should, on a machine with other work.
const fewestPlain = 5000

func recipeRatio(s Sizes) Benchmark {
	return againstRecipe(s, "recipe_ratio_16", 16, batch, atLeast(40))
}

func recipeRatioSingle(s Sizes) Benchmark {
	return againstRecipe(s, "recipe_ratio_64_single", 64, 1, atLeast(8))
}

// againstRecipe compares the dequeues of the queue, by the goroutines of one process, with those of the recipe's
// queue by as many.
func againstRecipe(s Sizes, name string, consumers, items int, target Target) Benchmark {
	means := fmt.Sprintf("items/s of %d consumers that receive and ack %d at a time, to those of the plain queue of FoundationDB's recipes", consumers, items)
	return Benchmark{name, means, func(ctx context.Context, env Env) (results []Result, err error) {
		space, err := env.Open(ctx)
		if err != nil {
			return nil, err
		}
		space.DB = &yieldingDB{DB: space.DB}
		defer space.closing(&err)
		q, err := newQueue(ctx, env, space, "recipe")
		if err != nil {
			return nil, err
		}
		if err := q.load(ctx, 0, s.ReadyGroups/10, 10*batch); err != nil {
			return nil, err
		}
		r := &plainQueue{recipe.Queue{DB: space.DB, Prefix: tuple.AppendString(bytes.Clone(space.Prefix), "plain")}}
		if err := r.pushAll(ctx, max(s.ReadyGroups*batch, fewestPlain)); err != nil {
			return nil, err
		}
		c := sharing(q, consumers, layer.ReceiveOptions{Max: items, MaxGroups: 1})
		compared, err := compare(ctx, env, s.LongRounds, 2,
			func(ctx context.Context) (float64, error) { return r.slice(ctx, consumers, s) },
			func(ctx context.Context) (float64, error) {
				perSecond, err := rate(ctx, consumers, s.LongSlice, c.turn)
				return perSecond, errors.Join(err, c.finish(ctx))
			})
		if err != nil {
			return nil, err
		}
		if err := q.verify(ctx); err != nil {
			return nil, err
		}
		return []Result{
			{name, compared.ratio(), "ratio", means, compared.spread(), target},
			{name + "_queue", compared.b, "items/s", "the queue", "", Target{}},
			{name + "_plain", compared.a, "items/s", "the plain queue", "", Target{}},
		}, nil
	}}
}
