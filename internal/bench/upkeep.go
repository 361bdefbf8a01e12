package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"fdbfifo/kv/record"
	"fdbfifo/layer"
)

// upkeepSlowdown measures the rate of claims while a large piece of work runs on other groups. The work is a sweep that
// makes overdue items dead letters, a redrive of those, and a purge. It pauses at the end of a slice and continues in
// the next.
func upkeepSlowdown(s Sizes) Benchmark {
	const name = "sweep_left"
	means := fmt.Sprintf("claims of other groups while %d items are swept to the dead letters, to those without", s.Deep)
	return Benchmark{name, means, func(ctx context.Context, env Env) (results []Result, err error) {
		space, counting, err := env.openCounted(ctx)
		if err != nil {
			return nil, err
		}
		defer space.closing(&err)
		q, err := overdueQueue(ctx, env, space, s)
		if err != nil {
			return nil, err
		}
		if err := q.load(ctx, 0, s.ReadyGroups/10, batch); err != nil {
			return nil, err
		}
		c, err := newCrew(ctx, q, space, upkeepHandles, layer.Options{}, layer.ReceiveOptions{Max: batch, MaxGroups: 1})
		if err != nil {
			return nil, err
		}
		purge := func(ctx context.Context, progress func(done int64)) error {
			done := int64(0)
			for g := range upkeepGroups {
				group := overdueName(g)
				r, err := q.Admin().Purge(ctx, layer.PurgeOptions{
					Group: &group, Progress: func(r layer.PurgeReport) { progress(done + r.Items) },
				})
				if err != nil {
					return err
				}
				done += r.Items
			}
			return nil
		}
		sweep := func(ctx context.Context, progress func(done int64)) error {
			_, err := q.Admin().Sweep(ctx, layer.SweepOptions{Progress: func(r layer.SweepReport) { progress(r.PastRetention) }})
			return err
		}
		redrive := func(ctx context.Context, progress func(done int64)) error {
			o := layer.RedriveOptions{Progress: func(r layer.DeadReport) { progress(r.Done) }}
			_, err := q.Admin().Redrive(ctx, layer.DeadFilter{All: true}, o)
			return err
		}
		for _, work := range []struct {
			name, means string
			do          upkeep
		}{
			{name, means, sweep},
			{"redrive_left", "the same while dead letters are redriven", redrive},
			{"purge_left", "the same while the queue's other groups are purged", purge},
		} {
			r, err := beside(ctx, env, c, s, counting, work.name, work.means, work.do)
			if err == nil && work.name == name { // enough dead letters for all slices of a redrive
				err = upTo(ctx, int64(s.Deep)/10, sweep)
			}
			if err != nil {
				return nil, errors.Join(fmt.Errorf("%s: %w", work.name, err), c.close(ctx))
			}
			results = append(results, r...)
		}
		if err := c.close(ctx); err != nil {
			return nil, err
		}
		if err := purge(ctx, func(int64) {}); err != nil { // to the end
			return nil, err
		}
		return results, q.verify(ctx)
	}}
}

// upkeep is a large piece of work. It calls progress after each of its steps with how many items it has done.
type upkeep func(ctx context.Context, progress func(done int64)) error

// upTo does about n items of the work.
func upTo(ctx context.Context, n int64, do upkeep) error {
	working, stop := context.WithCancel(ctx)
	defer stop()
	err := do(working, func(done int64) {
		if done >= n {
			stop()
		}
	})
	if ctx.Err() == nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

const (
	upkeepHandles = 4
	upkeepGroups  = 100 // with overdue items
)

func overdueName(g int) string { return fmt.Sprintf("overdue-%03d", g) }

// overdueQueue returns a queue with s.Deep items past their retention. Their groups are paused, so only the upkeep
// meets them.
func overdueQueue(ctx context.Context, env Env, space Space, s Sizes) (*queue, error) {
	q, err := newQueue(ctx, env, space, "upkeep")
	if err != nil {
		return nil, err
	}
	if _, _, err := q.Admin().Configure(ctx, func(c *layer.Config) { c.Retention, c.DeadLetterExpired = time.Hour, true }); err != nil {
		return nil, err
	}
	past := func() time.Time { return time.Now().Add(-2 * time.Hour) }
	old, err := layer.Open(ctx, space.DB, space.Prefix, q.Name(), layer.Options{Now: past})
	if err != nil {
		return nil, err
	}
	for g := range upkeepGroups {
		if _, err := q.Admin().PauseGroup(ctx, overdueName(g), layer.PauseOptions{}); err != nil {
			return nil, errors.Join(err, old.Close(ctx))
		}
		for left := s.Deep / upkeepGroups; left > 0; left -= perLoad {
			if _, err := old.Enqueue(ctx, messages(overdueName(g), min(left, perLoad))...); err != nil {
				return nil, errors.Join(err, old.Close(ctx))
			}
			env.progress("loading", g, upkeepGroups)
		}
	}
	return q, old.Close(ctx)
}

// beside measures the crew's rate alone and while do runs, in turns. While the crew is alone, do pauses between two of
// its steps. The measurement ends when do has ended by itself.
func beside(
	ctx context.Context, env Env, c *crew, s Sizes, counting *record.Recorder, name, means string, do upkeep,
) ([]Result, error) {
	working, stop := context.WithCancel(ctx)
	defer stop()
	turn, ended := make(chan bool), make(chan error, 1) // turn: true to go on, false to stand still
	var sofar atomic.Int64
	go func() {
		select {
		case <-turn:
		case <-working.Done():
		}
		ended <- do(working, func(done int64) {
			sofar.Store(done)
			select {
			case <-turn:
				select {
				case <-turn:
				case <-working.Done():
				}
			default:
			}
		})
	}()
	var ratios []float64
	done, took := int64(0), time.Duration(0)
	var err error
	over := false
	for round := 0; round <= s.LongRounds && !over && err == nil; round++ {
		env.progress("measuring "+name, round, s.LongRounds+1)
		alone, e := c.slice(ctx, s, counting)
		if e != nil {
			err = e
			break
		}
		before, begun := sofar.Load(), time.Now()
		select {
		case turn <- true:
		case e := <-ended:
			over, err = true, e
			continue
		}
		with, e := c.slice(ctx, s, counting)
		if e != nil {
			err = e
			break
		}
		select {
		case turn <- false:
		case e := <-ended:
			over, err = true, e
		}
		done, took = done+sofar.Load()-before, took+time.Since(begun)
		// The first warms up, and one during which the work ended measured something else, unless there is no other.
		if round > 0 && !over || len(ratios) == 0 && over {
			ratios = append(ratios, with.perSecond/alone.perSecond)
		}
	}
	if stop(); !over {
		if e := <-ended; !errors.Is(e, context.Canceled) {
			err = errors.Join(err, e)
		}
	}
	if err != nil {
		return nil, err
	}
	slices.Sort(ratios)
	detail := fmt.Sprintf("median of %d rounds, %.3g–%.3g, %d handles", len(ratios), ratios[0], ratios[len(ratios)-1], upkeepHandles)
	return []Result{
		{name, median(ratios), "ratio", means, detail, atLeast(0.8)},
		{name + "_items_per_s", float64(done) / took.Seconds(), "items/s", "what the work itself got done meanwhile", "", Target{}},
	}, nil
}
