package crash

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// The kinds of kills that exist only if several processes have the folder open.
const (
	killServer = "server" // by the parent, of a process that served
	killClient = "client" // by the parent, of another
)

// companion is a process that has the folder open at the same time as the child. It works on a queue of its own, and
// its answers are not checked.
type companion struct {
	*child
	kill  kill
	ended chan struct{}

	mu     sync.Mutex // guards the fields below
	ready  bool
	serves bool
	broken error
}

func (c *companion) is(ready bool) (ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if ready {
		return c.ready
	}
	return c.serves
}

// follow reads the lines that the companion prints, until its end.
func (c *companion) follow() {
	defer close(c.ended)
	for {
		e, more, err := c.next()
		c.mu.Lock()
		switch {
		case err != nil:
			c.broken = err
		case !more:
		case e.Kind == kindReady:
			c.ready = true
		case e.Kind == kindServes:
			c.serves = true
		case e.Kind == kindBroken:
			c.broken = errors.New(e.Text)
		}
		c.mu.Unlock()
		if !more || err != nil {
			break
		}
	}
	if err := c.end(); err != nil {
		c.mu.Lock()
		c.broken = errors.Join(c.broken, err)
		c.mu.Unlock()
	}
}

// troupe is a child among companions.
type troupe struct {
	*run
	orders *orders
	rng    *rand.Rand
	others []*companion
	serves bool // the child does
}

// drawOtherKill is when a companion is to die, if that serves: by itself half of the time.
func drawOtherKill(rng *rand.Rand) kill {
	k := kill{Count: 1 + rng.IntN(200), After: time.Duration(rng.Int64N(int64(2 * time.Millisecond)))}
	if own := []string{killBefore, killApply, killDuring, killWritten}; rng.IntN(2) == 0 {
		k.Kind = own[rng.IntN(len(own))]
	}
	return k
}

// join starts a companion.
func (t *troupe) join() (*companion, error) {
	o := *t.orders
	o.Retry, o.Other, o.Seed, o.Kill = nil, true, t.rng.Uint64(), drawOtherKill(t.rng)
	c, err := t.start(&o)
	if err != nil {
		return nil, err
	}
	n := &companion{child: c, kill: o.Kill, ended: make(chan struct{})}
	t.others = append(t.others, n)
	go n.follow()
	return n, nil
}

// bury takes note of the companions that have died. Each is a kill.
func (t *troupe) bury() (err error) {
	t.others = slices.DeleteFunc(t.others, func(c *companion) bool {
		select {
		case <-c.ended:
		default:
			return false
		}
		err = errors.Join(err, c.broken)
		kind := killClient
		switch {
		case c.serves && c.kill.Kind != "":
			kind = c.kill.Kind
		case c.serves:
			kind = killServer
		}
		t.report.Kills[kind]++
		if c.serves {
			t.report.Takeovers++ // whoever works on has taken over, or else the parent
		}
		return true
	})
	return err
}

// disband ends all companions that are left. These count for nothing: the child is dead.
func (t *troupe) disband() error {
	err := t.bury()
	for _, c := range t.others {
		c.slay()
		<-c.ended
		err = errors.Join(err, c.broken)
	}
	return err
}

// disturb does something to the process that serves: it is killed, or stopped for a while. A new companion takes the
// place of each that has died. It returns false if the child serves.
func (t *troupe) disturb() (bool, error) {
	if t.serves {
		return false, nil
	}
	i := slices.IndexFunc(t.others, func(c *companion) bool { return c.is(false) })
	switch {
	case i < 0: // just now no companion serves
	case t.rng.IntN(5) == 0:
		c := t.others[i]
		t.report.Stops++
		if c.Process.Signal(t.o.Stop) == nil { // else it has just died
			time.Sleep(time.Duration(t.rng.IntN(50)) * time.Millisecond)
			_ = c.Process.Signal(t.o.Continue)
		}
	default:
		t.others[i].slay()
		<-t.others[i].ended
	}
	if err := t.bury(); err != nil {
		return true, err
	}
	if len(t.others) < 2 {
		if _, err := t.join(); err != nil {
			return true, err
		}
	}
	return true, nil
}

// lifeTogether runs a child that is a client of others, until both it and they are dead. The others are killed, one
// after the other; the child takes over, or others do, and goes on. All that holds of a child's life holds of this.
func (r *run) lifeTogether(o *orders, rng *rand.Rand) (err error) {
	t := &troupe{run: r, orders: o, rng: rng}
	defer func() { err = errors.Join(err, t.disband()) }()
	first, err := t.join()
	if err != nil {
		return err
	}
	for !first.is(true) {
		select {
		case <-first.ended: // before it was ready
			return first.broken
		case <-time.After(time.Millisecond):
		}
	}
	if _, err := t.join(); err != nil {
		return err
	}
	c, err := r.start(o)
	if err != nil {
		return err
	}
	defer c.slay()
	done, next, left := 0, 1+rng.IntN(200), rng.IntN(4)
	for {
		e, more, err := c.next()
		if err != nil {
			return err
		}
		if !more {
			break
		}
		r.m.see(e)
		t.serves = t.serves || e.Kind == kindServes
		if !e.Done {
			continue
		}
		if done++; done != next {
			continue
		}
		next += 1 + rng.IntN(200)
		goOn := left > 0
		if left--; goOn {
			if goOn, err = t.disturb(); err != nil {
				return err
			}
		}
		if !goOn {
			c.slay()
		}
	}
	if err := c.end(); err != nil {
		return err
	}
	kind := killClient
	if t.serves {
		kind = killServer
		r.report.Takeovers++
	}
	r.report.Kills[kind]++
	r.acknowledge()
	return nil
}

// checkOther holds the companions' queue to its own rules.
func (r *run) checkOther(ctx context.Context, db kv.DB, o orders) error {
	q, err := layer.Open(ctx, db, otherPrefix, queueName, o.options(8))
	if errors.Is(err, layer.ErrNoQueue) {
		return nil
	}
	if err != nil {
		return err
	}
	report, err := q.Admin().Check(ctx, layer.CheckOptions{})
	if err != nil {
		return err
	}
	if v := report.Violations; len(v) > 0 {
		return fmt.Errorf("%w: the others' queue: %s, and %d more", ErrBroken, v[0], len(v)-1)
	}
	return q.Close(ctx)
}
