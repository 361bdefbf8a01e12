package sim

import (
	"context"
	"time"

	"fdbfifo/layer"
)

// steward does the upkeep of a queue, which the operators do not do.
func (a *actor) steward() {
	var can []func()
	if a.w.knobs.rated {
		can = append(can, a.changeRate, a.changeRate, func() { a.sweep() })
	}
	if a.w.knobs.leases {
		can = append(can, a.changeLease)
	}
	if a.w.knobs.turns {
		can = append(can, a.sweepInTurn, a.sweepInTurn, a.pauseQueue)
	}
	if a.w.knobs.replays {
		can = append(can, a.replay)
	}
	if a.w.knobs.clocks {
		can = append(can, func() { a.sweep() })
	}
	if a.w.knobs.rushes {
		can = []func(){a.rush}
	}
	for len(can) > 0 && a.more() {
		can[a.rng.IntN(len(can))]()
		a.sleep(a.below(a.w.knobs.think))
	}
}

// changeRate changes the rate of the groups.
func (a *actor) changeRate() {
	rate := layer.Rate{}
	if a.rng.IntN(3) > 0 {
		rate = rates[a.rng.IntN(len(rates))]
	}
	a.setRate(rate)
}

// changeLease changes the lease of the queue, often from the shortest to the longest or back. It stays long enough for
// each handler's transaction.
func (a *actor) changeLease() {
	const least, most = 5 * time.Second, maxLease - time.Second
	lease := []time.Duration{least, least + a.below(most-least), most}[a.rng.IntN(3)]
	a.reconfigure(func(c *layer.Config) { c.Lease = lease })
	a.w.mark("lease changed")
	a.sleep(a.below(least))
}

// rush sends a message under a slow rate and receives what there is, and ends the rate.
func (a *actor) rush() {
	a.left -= 3 // it is four calls
	a.setRate(slowRate)
	a.send()
	for _, c := range a.receive() {
		a.handle(c, false)
		a.letGo(c)
	}
	a.setRate(layer.Rate{})
}

func (a *actor) setRate(rate layer.Rate) { a.reconfigure(func(c *layer.Config) { c.MaxRate = rate }) }

// reconfigure changes the configuration, and with it perhaps the rate.
func (a *actor) reconfigure(change func(c *layer.Config)) {
	o := &op{kind: "configure", rates: true}
	a.call(o, func(ctx context.Context) (err error) {
		_, o.token, err = a.q.Admin().Configure(ctx, change)
		return err
	})
}

// sweep reports whether the sweep was done.
func (a *actor) sweep() bool {
	err := a.call(&op{kind: "sweep"}, func(ctx context.Context) error {
		_, err := a.q.Admin().Sweep(ctx, layer.SweepOptions{})
		return err
	})
	if a.w.knobs.refusesClock(err) {
		a.w.mark("sweep refused by clocks")
	}
	return err == nil
}
