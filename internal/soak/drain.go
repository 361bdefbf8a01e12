package soak

import (
	"context"
	"errors"
	"fmt"
	"time"

	"fdbfifo/layer"
)

// drain works queues off while the load stands still.
type drain struct {
	handles  []*layer.Queue
	sweepers []*layer.Queue // their clock is ahead of the handles', so that what these finish is old enough
}

func (l *load) newDrain(ctx context.Context, queues []string) (*drain, error) {
	d := &drain{}
	for _, name := range queues {
		for _, of := range []struct {
			list  *[]*layer.Queue
			ahead time.Duration
		}{{&d.handles, drainAhead}, {&d.sweepers, 2 * drainAhead}} {
			q, err := layer.Open(ctx, l.db, l.prefix, name, layer.Options{
				Owner: "drain", Now: func() time.Time { return time.Now().Add(of.ahead) },
			})
			if err != nil {
				return nil, errors.Join(err, d.close(ctx))
			}
			*of.list = append(*of.list, q)
		}
	}
	return d, nil
}

func (d *drain) close(ctx context.Context) (err error) {
	for _, q := range append(d.handles, d.sweepers...) {
		err = errors.Join(err, q.Close(ctx))
	}
	return err
}

// drainAhead is how far the drain's clock is ahead. So the drain need not wait for leases and delays to end, nor for
// rows that queues keep for some seconds. It is less than the time for which receipts and receive ids are kept, because
// a leak of those must show, and twice of it is less than clocks may differ: otherwise sweeps remove nothing.
const drainAhead = 2 * time.Minute

// drainTime bounds a drain. Except on a slow engine a drain takes well under a second.
const drainTime = 2 * time.Minute

func (d *drain) run(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, drainTime, errors.New("the queue cannot be worked off"))
	defer cancel()
	for i, q := range d.handles {
		if err := workOff(ctx, q); err != nil {
			return fmt.Errorf("soak: drain %s: %w", q.Name(), err)
		}
		// This removes the messages of groups that were marked since, and other leftovers of the operator.
		if _, err := q.Admin().Purge(ctx, layer.PurgeOptions{All: true}); err != nil {
			return fmt.Errorf("soak: purge %s: %w", q.Name(), err)
		}
		if _, err := d.sweepers[i].Admin().Sweep(ctx, layer.SweepOptions{}); err != nil {
			return fmt.Errorf("soak: sweep %s: %w", q.Name(), err)
		}
		report, err := q.Admin().Check(ctx, layer.CheckOptions{})
		if err != nil {
			return fmt.Errorf("soak: check %s: %w", q.Name(), err)
		}
		if len(report.Violations) > 0 {
			return fmt.Errorf("soak: %s is broken: %v", q.Name(), report.Violations)
		}
	}
	return nil
}

// workOff acks what is there until no group has any items, and removes the dead letters.
func workOff(ctx context.Context, q *layer.Queue) error {
	for {
		claims, err := q.Receive(ctx, layer.ReceiveOptions{Max: 200})
		if err != nil {
			return err
		}
		for _, c := range claims {
			if err := q.Ack(ctx, c); err != nil {
				return err
			}
		}
		if len(claims) > 0 {
			continue
		}
		page, err := q.Admin().Groups(ctx, layer.GroupsOptions{Limit: 1, MaxDepth: 1})
		if err != nil {
			return err
		}
		if len(page.Groups) == 0 {
			break
		}
		select {
		case <-time.After(10 * time.Millisecond): // held, or delayed
		case <-ctx.Done():
			return fmt.Errorf("%w: %+v", context.Cause(ctx), page.Groups)
		}
	}
	_, err := q.Admin().Discard(ctx, layer.DeadFilter{All: true}, layer.DiscardOptions{})
	return err
}
