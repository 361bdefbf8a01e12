package sim

import (
	"context"
	"fmt"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// operate does what an operator may do.
func (a *actor) operate() {
	for a.more() {
		group := a.w.group(a.rng)
		id := layer.ID{Group: group, Index: 1, Random: uuid.UUID{6: 0x40, 8: 0x80}} // of no item
		if n := len(a.w.known); n > 0 {
			id = a.w.known[a.rng.IntN(n)]
			if a.rng.IntN(2) == 0 {
				id = a.w.known[n-1-a.rng.IntN(min(n, 5))] // which may still wait
			}
		}
		if n := len(a.w.handed); n > 0 && a.w.knobs.seek > 0 && a.rng.IntN(2) == 0 {
			id = a.w.handed[n-1-a.rng.IntN(min(n, 4))]
		}
		o := &op{group: group}
		var fn func(ctx context.Context) error
		var inTx func(ctx context.Context, tx kv.Tx) error
		switch n := a.operation(19); n {
		case 0:
			o.kind, o.forcing = "pause-group", a.rng.IntN(2) == 0
			fn = func(ctx context.Context) error {
				_, err := a.q.Admin().PauseGroup(ctx, group, layer.PauseOptions{Force: o.forcing})
				return err
			}
			inTx = func(ctx context.Context, tx kv.Tx) error {
				_, err := a.q.Admin().PauseGroupTx(ctx, tx, group, layer.PauseOptions{Force: o.forcing})
				return err
			}
		case 1, 2, 3:
			o.kind = "resume-group"
			fn = func(ctx context.Context) error {
				_, err := a.q.Admin().ResumeGroup(ctx, group, layer.ResumeOptions{})
				return err
			}
			inTx = func(ctx context.Context, tx kv.Tx) error {
				_, err := a.q.Admin().ResumeGroupTx(ctx, tx, group, layer.ResumeOptions{})
				return err
			}
		case 4:
			o.kind = "pause"
			fn = func(ctx context.Context) error { _, err := a.q.Admin().Pause(ctx, layer.PauseOptions{}); return err }
		case 5, 6:
			o.kind = "resume"
			fn = func(ctx context.Context) error {
				_, err := a.q.Admin().Resume(ctx, layer.ResumeOptions{})
				return err
			}
		case 7:
			o.kind, o.group, o.ids = "cancel", id.Group, []layer.ID{id}
			fn = func(ctx context.Context) error { return a.q.Admin().Cancel(ctx, id) }
			inTx = func(ctx context.Context, tx kv.Tx) error { return a.q.Admin().CancelTx(ctx, tx, id) }
		case 8:
			o.kind = "skip"
			fn = func(ctx context.Context) error {
				_, err := a.q.Admin().Skip(ctx, group, layer.SkipOptions{})
				return err
			}
		case 9:
			o.kind, o.forcing = "force-release", true
			release := a.release(o)
			group := groupOfLane(o.group)
			fn = func(ctx context.Context) error {
				h, err := a.q.Admin().ForceRelease(ctx, group, release)
				o.token = h.Token
				return err
			}
			inTx = func(ctx context.Context, tx kv.Tx) error {
				h, err := a.q.Admin().ForceReleaseTx(ctx, tx, group, release)
				o.token = h.Token
				return err
			}
		case 10:
			o.kind = "retry-now"
			retry := layer.RetryOptions{Where: a.opLane(o)}
			fn = func(ctx context.Context) error { return a.q.Admin().RetryNow(ctx, group, retry) }
		case 11:
			o.kind = "redrive"
			tail := a.rng.IntN(2) == 0
			fn = func(ctx context.Context) error {
				_, err := a.q.Admin().Redrive(ctx, layer.DeadFilter{All: true}, layer.RedriveOptions{ToTail: tail})
				return err
			}
			inTx = func(ctx context.Context, tx kv.Tx) error {
				return a.q.Admin().RedriveTx(ctx, tx, layer.RedriveOptions{ToTail: tail}, id)
			}
		case revive:
			o.kind = "redrive"
			var filter layer.DeadFilter
			if id, ok := a.w.leftHint(); ok {
				filter.IDs = []layer.ID{id}
			} else {
				filter.All = true
			}
			fn = func(ctx context.Context) error {
				_, err := a.q.Admin().Redrive(ctx, filter, layer.RedriveOptions{})
				return err
			}
		case vacate:
			granted, items, ok := a.awaitGrant()
			switch {
			case !ok:
				continue
			case len(items) > 0:
				o.kind, o.group, o.ids = "cancel", granted, items
				fn = func(ctx context.Context) error { return a.q.Admin().Cancel(ctx, items[0]) }
			default:
				o.kind, o.group = "pause-group", granted
				fn = func(ctx context.Context) error {
					_, err := a.q.Admin().PauseGroup(ctx, granted, layer.PauseOptions{})
					return err
				}
				a.w.mark("pause of a granted group that is empty")
			}
		case 12, purge:
			if n == 12 && a.rng.IntN(4) > 0 {
				o.kind = "stats"
				fn = func(ctx context.Context) error { _, err := a.q.Stats(ctx, layer.StatsOptions{}); return err }
				break
			}
			o.kind, o.sweeping, o.forcing = "purge", true, a.rng.IntN(3) == 0
			fn = func(ctx context.Context) error {
				_, err := a.q.Admin().Purge(ctx, layer.PurgeOptions{Group: &group, Force: o.forcing})
				return err
			}
		case purgeAll:
			o.kind, o.sweeping, o.group = "purge-all", true, ""
			fn = func(ctx context.Context) error {
				_, err := a.q.Admin().Purge(ctx, layer.PurgeOptions{All: true})
				return err
			}
		case 13:
			o.kind = "configure"
			lease := layer.MinLease + a.below(maxLease-layer.MinLease)
			attempts := []int{layer.Unlimited, 1, 2, 5}[a.rng.IntN(4)]
			more := a.rng.IntN(3) == 0
			redelay := a.redelay()
			change := func(c *layer.Config) {
				redelay(c)
				c.Lease, c.MaxAttempts = lease, attempts
				if more {
					c.Shards = min(c.Shards+1+c.Shards/2, mostShards)
				}
			}
			configured := func(config layer.Config, version int64, err error) error {
				if o.token = version; err == nil && config.Shards > a.w.knobs.config.Shards {
					a.w.mark("shards raised")
				}
				return err
			}
			fn = func(ctx context.Context) error { return configured(a.q.Admin().Configure(ctx, change)) }
		case 14:
			o.kind = "sweep"
			fn = func(ctx context.Context) error { _, err := a.q.Admin().Sweep(ctx, layer.SweepOptions{}); return err }
		case 15, 16:
			a.n++
			o.kind, o.group, o.edits, o.body = "edit", id.Group, id, fmt.Sprintf("edited a%d.%d", a.id, a.n)
			change := a.editLanes(o, func(m *layer.Message) error { m.Body = []byte(o.body); return nil })
			fn = func(ctx context.Context) error { return a.q.Admin().Edit(ctx, id, change) }
		case 17:
			o.kind, o.discarding = "discard", true
			fn = func(ctx context.Context) error {
				_, err := a.q.Admin().Discard(ctx, layer.DeadFilter{All: true}, layer.DiscardOptions{Limit: 2})
				return err
			}
			inTx = func(ctx context.Context, tx kv.Tx) error { return a.q.Admin().DiscardTx(ctx, tx, id) }
		case 18:
			a.n++
			o.kind, o.sets, o.state, o.anyHolder = "set-group-state", true, fmt.Appendf(nil, "o%d.%d", a.id, a.n), true
			force := layer.SetGroupStateOptions{Force: a.rng.IntN(2) == 0}
			o.override = force.Force
			state := o.lendBytes(o.state)
			fn = func(ctx context.Context) error { return a.q.Admin().SetGroupState(ctx, group, state, force) }
			inTx = func(ctx context.Context, tx kv.Tx) error {
				return a.q.Admin().SetGroupStateTx(ctx, tx, group, state, force)
			}
		}
		var err error
		if inTx == nil {
			err = a.call(o, fn)
		} else {
			err = a.once(o, fn, inTx)
		}
		if err == nil && o.kind == "edit" {
			a.w.mark("edited")
		}
		a.sleep(a.below(a.w.knobs.think))
	}
}

// operation is the number of the next one, of so many.
func (a *actor) operation(of int) int {
	if some := a.w.knobs.operations; len(some) > 0 {
		return some[a.rng.IntN(len(some))]
	}
	return a.rng.IntN(of)
}
