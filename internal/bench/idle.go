package bench

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"fdbfifo/layer"
)

// idleTransactions counts what many receives cost that wait on one handle of a queue in which nothing happens.
// In the end one enqueue must reach one of them.
func idleTransactions(s Sizes) Benchmark {
	const name = "idle_transactions_per_s"
	means := fmt.Sprintf("transactions of %d receives that wait on one handle of an idle queue", s.Idle)
	return Benchmark{name, means, func(ctx context.Context, env Env) (results []Result, err error) {
		space, counting, err := env.openCounted(ctx)
		if err != nil {
			return nil, err
		}
		defer space.closing(&err)
		q, err := newQueue(ctx, env, space, "idle")
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, q.Close(context.WithoutCancel(ctx))) }()
		waiting, stop := context.WithCancelCause(ctx)
		defer stop(nil)
		got := make(chan []*layer.Claim, s.Idle)
		errs := make([]error, s.Idle)
		var wg sync.WaitGroup
		for i := range s.Idle {
			wg.Go(func() {
				var claims []*layer.Claim
				if claims, errs[i] = q.Receive(waiting, layer.ReceiveOptions{Wait: layer.MaxWait}); errs[i] == nil {
					got <- claims
				}
				if errors.Is(errs[i], errAllDone) {
					errs[i] = nil
				}
			})
		}
		count := func() (float64, error) {
			before, begun := counting.Counters(), time.Now()
			if err := sleep(ctx, s.Watch); err != nil {
				return 0, err
			}
			return float64(attempts(counting.Counters().Sub(before))) / time.Since(begun).Seconds(), nil
		}
		env.progress("watching", 0, -1)
		// First until all of them wait.
		if err := sleep(ctx, s.Watch/10); err != nil {
			return nil, err
		}
		perSecond, err := count()
		if err != nil {
			return nil, err
		}
		if err := q.enqueue(ctx, messages(groupName(0), 1)...); err != nil {
			return nil, err
		}
		select {
		case claims := <-got:
			if _, err := q.ack(ctx, claims); err != nil {
				return nil, err
			}
		case <-time.After(s.Patience):
			stop(errAllDone)
			return nil, fmt.Errorf("%w: no receive got the item within %v", errWrong, s.Patience)
		}
		stop(errAllDone)
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			return nil, err
		}
		if len(got) > 0 {
			return nil, fmt.Errorf("%w: %d receives got the one item", errWrong, len(got)+1)
		}
		if err := q.verify(ctx); err != nil {
			return nil, err
		}
		return []Result{{name, perSecond, "transactions/s", means, fmt.Sprintf("watched for %v", s.Watch), atMost(2)}}, nil
	}}
}

// sleep returns after d, or with the cause of ctx's end.
func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
