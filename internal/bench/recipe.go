package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// recipe is the plain queue of FoundationDB's documentation: keys (queue, index, random), an item is dequeued by
// reading the first pair and clearing it. All consumers read the same pair, so that one of them gets it and the
// others conflict.
type recipe struct {
	db   kv.DB
	keys []byte
}

// push appends n items; their indexes follow the last one, which is read at snapshot.
func (r *recipe) push(ctx context.Context, n int) error {
	_, err := kv.Run(ctx, r.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		of := kv.PrefixRange(r.keys)
		last, err := tx.Snapshot().GetKey(kv.LastLessThan(of.End)).Wait(ctx)
		if err != nil {
			return err
		}
		index := int64(0)
		if of.Contains(last) {
			if index, _, err = tuple.DecodeInt(last[len(r.keys):]); err != nil {
				return err
			}
		}
		for i := range int64(n) {
			id := uuid.New()
			key := tuple.AppendInt(bytes.Clone(r.keys), index+1+i)
			tx.Set(append(key, id[:]...), make([]byte, bodySize))
		}
		return nil
	})
	return err
}

// pop dequeues one item. It returns false if there is none.
func (r *recipe) pop(ctx context.Context) (ok bool, err error) {
	_, err = kv.Run(ctx, r.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		rows, err := tx.GetRange(kv.PrefixRange(r.keys).Selectors(), kv.RangeOptions{Limit: 1}).Wait(ctx)
		if err != nil {
			return err
		}
		if ok = len(rows) > 0; ok {
			tx.Clear(rows[0].Key)
		}
		return nil
	})
	return ok, err
}

// slice lets consumers pop for a slice and pushes again what they popped.
func (r *recipe) slice(ctx context.Context, consumers int, s Sizes) (float64, error) {
	var popped atomic.Int64
	perSecond, err := rate(ctx, consumers, s.LongSlice, func(ctx context.Context, _ int) (int, error) {
		ok, err := r.pop(ctx)
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
func (r *recipe) pushAll(ctx context.Context, n int) error {
	for ; n > 0; n -= perLoad {
		if err := r.push(ctx, min(n, perLoad)); err != nil {
			return err
		}
	}
	return nil
}

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
		r := &recipe{space.DB, tuple.AppendString(bytes.Clone(space.Prefix), "plain")}
		if err := r.pushAll(ctx, s.ReadyGroups*batch); err != nil {
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
