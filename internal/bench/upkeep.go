package bench

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"fdbfifo/kv/record"
	"fdbfifo/layer"
)

// upkeepSlowdown asks what large pieces of work on other groups leave of the claims' rate: a sweep that parks what is
// past the retention, a redrive of what it parked, and a purge. Each is interrupted at the end of a slice and goes on in
// the next.
func upkeepSlowdown(s Sizes) Benchmark {
	const name = "sweep_left"
	means := fmt.Sprintf("claims of other groups while %d items are swept to the dead letters, to those without", s.Deep)
	return Benchmark{name, means, func(ctx context.Context, env Env) (results []Result, err error) {
		space, err := env.Open(ctx)
		if err != nil {
			return nil, err
		}
		counting := record.WrapCounting(space.DB)
		space.DB = counting
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
		purge := func(ctx context.Context) (done int64, err error) {
			for g := 0; g < upkeepGroups && err == nil; g++ {
				var r layer.PurgeReport
				group := overdueName(g)
				r, err = q.Purge(ctx, layer.PurgeOptions{Group: &group})
				done += r.Items
			}
			return done, err
		}
		sweep := func(ctx context.Context) (int64, error) {
			r, err := q.Sweep(ctx, layer.SweepOptions{})
			return r.AgedOut, err
		}
		for _, work := range []struct {
			name, means string
			do          upkeep
		}{
			{name, means, sweep},
			{"redrive_left", "the same while dead letters are redriven", func(ctx context.Context) (int64, error) {
				r, err := q.Redrive(ctx, layer.DeadFilter{}, layer.RedriveOptions{})
				return r.Done, err
			}},
			{"purge_left", "the same while the queue's other groups are purged", purge},
		} {
			r, err := beside(ctx, env, c, s, counting, work.name, work.means, work.do)
			if err != nil {
				return nil, errors.Join(fmt.Errorf("%s: %w", work.name, err), c.close(ctx))
			}
			results = append(results, r)
			if work.name == name { // enough dead letters for all slices of a redrive
				if err := sweepMore(ctx, env, q, s); err != nil {
					return nil, errors.Join(err, c.close(ctx))
				}
			}
		}
		if err := c.close(ctx); err != nil {
			return nil, err
		}
		if _, err := purge(ctx); err != nil { // to the end
			return nil, err
		}
		return results, q.verify(ctx)
	}}
}

// upkeep is a large piece of work that can be cancelled and begun again to go on. It returns how many items it has done.
type upkeep func(ctx context.Context) (done int64, err error)

// sweepMore sweeps, beside nobody, until a tenth of the overdue items more are dead letters.
func sweepMore(ctx context.Context, env Env, q *queue, s Sizes) error {
	sweeping, stop := context.WithCancel(ctx)
	defer stop()
	_, err := q.Sweep(sweeping, layer.SweepOptions{Progress: func(r layer.SweepReport) {
		env.progress("sweeping on", int(r.AgedOut), s.Deep/10)
		if r.AgedOut >= int64(s.Deep)/10 {
			stop()
		}
	}})
	if ctx.Err() == nil && errors.Is(err, context.Canceled) {
		return nil
	}
	return err
}

const (
	upkeepHandles = 4
	upkeepGroups  = 100 // with what is overdue
)

func overdueName(g int) string { return fmt.Sprintf("overdue-%03d", g) }

// overdueQueue is a queue with s.Deep items past their retention, in groups that are paused so that nobody but the
// upkeep meets them.
func overdueQueue(ctx context.Context, env Env, space Space, s Sizes) (*queue, error) {
	q, err := newQueue(ctx, env, space, "upkeep")
	if err != nil {
		return nil, err
	}
	if _, _, err := q.Configure(ctx, func(c *layer.Config) { c.Retention, c.OnExpiry = time.Hour, layer.ParkExpired }); err != nil {
		return nil, err
	}
	past := func() time.Time { return time.Now().Add(-2 * time.Hour) }
	old, err := layer.Open(ctx, space.DB, space.Prefix, q.Name(), layer.Options{Now: past})
	if err != nil {
		return nil, err
	}
	for g := range upkeepGroups {
		if _, err := q.PauseGroup(ctx, overdueName(g), layer.PauseOptions{}); err != nil {
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

// beside measures the crew's rate alone and beside do, in turns. do is cancelled at the end of a slice and begun again
// in the next; when it has ended by itself there is nothing more to measure.
func beside(
	ctx context.Context, env Env, c *crew, s Sizes, counting *record.Recorder, name, means string, do upkeep,
) (Result, error) {
	var ratios []float64
	done := int64(0)
	for round, over := 0, false; round <= s.LongRounds && !over; round++ {
		env.progress("measuring "+name, round, s.LongRounds+1)
		alone, err := c.slice(ctx, s, counting)
		if err != nil {
			return Result{}, err
		}
		working, stop := context.WithCancel(ctx)
		ended := make(chan error, 1)
		go func() {
			n, err := do(working)
			done += n
			ended <- err
		}()
		with, err := c.slice(ctx, s, counting)
		select {
		case e := <-ended:
			over = true
			err = errors.Join(err, e)
		default:
			stop()
			if e := <-ended; e != nil && !errors.Is(e, context.Canceled) {
				err = errors.Join(err, e)
			}
		}
		stop()
		if err != nil {
			return Result{}, err
		}
		// The first warms up, and one during which the work ended measured something else, unless there is no other.
		if round > 0 && !over || len(ratios) == 0 && over {
			ratios = append(ratios, with.perSecond/alone.perSecond)
		}
	}
	slices.Sort(ratios)
	detail := fmt.Sprintf("median of %d rounds, %.3g–%.3g, %d handles; %d items done meanwhile",
		len(ratios), ratios[0], ratios[len(ratios)-1], upkeepHandles, done)
	return Result{name, median(ratios), "ratio", means, detail, atLeast(0.8)}, nil
}
