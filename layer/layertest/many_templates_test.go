package layer_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/record"
	"fdbfifo/layer"
)

// crowd is a handle on which a receive waits by each of many templates, half of them by the state, half by the region.
type crowd struct {
	*env
	waiting  *layer.Queue
	counting *record.Recorder
	got      chan given
	cancel   context.CancelFunc
	wg       sync.WaitGroup
}

// given is what a receive of a crowd has got.
type given struct {
	where layer.Template
	claim *layer.Claim
	at    time.Time
}

const crowdSize = 100

// templateOf returns the n-th template of a crowd, and the facets of a message which no other template of it sees.
func templateOf(n int) (where layer.Template, facets map[string]string) {
	value := fmt.Sprintf("v%02d", n)
	if n%2 == 0 {
		return layer.Template{"state": value}, facetsOf(value, "nowhere")
	}
	return layer.Template{"region": value}, facetsOf("none", value)
}

// newCrowd starts the receives. It is called in a bubble.
func newCrowd(t *testing.T, shards int) *crowd {
	e := newEnv(t, inMemory, false)
	e.clock.real.Store(true)
	many := func(c *layer.Config) { c.Shards = shards }
	c := &crowd{env: e.on(e.laned("lanes", "*; state; region", many, 1)[0])}
	c.counting, c.got = record.WrapCounting(e.db), make(chan given, crowdSize)
	var err error
	c.waiting, err = layer.Open(e.ctx, c.counting, testPrefix, "lanes", e.options(2))
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(e.ctx)
	c.cancel = cancel
	for n := range crowdSize {
		where, _ := templateOf(n)
		c.wg.Go(func() {
			claims, err := c.waiting.Receive(ctx, layer.ReceiveOptions{Where: where, Wait: layer.MaxWait})
			if ctx.Err() == nil {
				require.NoError(t, err)
				require.Len(t, claims, 1)
				c.got <- given{where: where, claim: claims[0], at: time.Now()}
			}
		})
	}
	t.Cleanup(c.stop)
	time.Sleep(10 * time.Second) // until all wait, and have looked again
	return c
}

// stop ends the receives that still wait.
func (c *crowd) stop() {
	c.cancel()
	c.wg.Wait()
	require.NoError(c.t, c.waiting.Close(context.Background()))
	c.ctx = context.Background()
	byTemplate, named := c.laneRequests()
	require.Zero(c.t, byTemplate+named)
}

// enqueue sends a message which the n-th template alone sees.
func (c *crowd) enqueue(n int, delay time.Duration) {
	c.t.Helper()
	_, facets := templateOf(n)
	_, err := c.q.Enqueue(c.ctx, layer.Message{Group: fmt.Sprint("g", n), Headers: facets, Delay: delay})
	require.NoError(c.t, err)
}

// served expects that within the time the receive by the n-th template, and no other, gets its message.
func (c *crowd) served(n int, within time.Duration) (at time.Time) {
	c.t.Helper()
	where, _ := templateOf(n)
	select {
	case g := <-c.got:
		require.Equal(c.t, where, g.where)
		require.Equal(c.t, fmt.Sprint("g", n), g.claim.Group)
		require.NoError(c.t, c.waiting.Ack(c.ctx, g.claim))
	case <-time.After(within):
		require.Fail(c.t, "the receive was not served", "template %v within %v", where, within)
	}
	return time.Now()
}

// idle returns the handle's transactions and reads for each second, counted over a minute.
func (c *crowd) idle() (transactions, reads float64) {
	const watched = 60
	before := c.counting.Counters()
	time.Sleep(watched * time.Second)
	d := c.counting.Counters().Sub(before)
	return float64(d.Commits+d.Conflicts+d.Failures) / watched, float64(d.Reads) / watched
}

// TestIdleWaitOfManyTemplates: a handle whose receives wait by many templates looks no more often than one with a
// single receive. Its reads do not grow with the number of templates without messages. The requests are still renewed.
// Messages of other templates, which no handle takes, cost reads and no transactions.
func TestIdleWaitOfManyTemplates(t *testing.T) {
	for name, c := range map[string]struct {
		shards int
		others bool // there are messages of templates between those of the crowd
		late   int  // so many templates of the crowd have a message that is due much later
		reads  float64
	}{
		"one shard": {1, false, 0, 120}, "four shards": {4, false, 0, 350},
		"beside messages of other templates": {1, true, 0, 400},
		"with messages that are due later":   {1, false, 20, 400},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				e := newCrowd(t, c.shards)
				if c.others {
					for n := range crowdSize {
						other := fmt.Sprintf("v%02d other", n)
						m := layer.Message{Group: fmt.Sprint("other ", n), Headers: facetsOf(other, other)}
						if n%2 == 1 {
							m.Delay = time.Hour
						}
						_, err := e.q.Enqueue(e.ctx, m)
						require.NoError(t, err)
					}
				}
				for n := range c.late {
					e.enqueue(n+1, time.Hour)
				}
				transactions, reads := e.idle()
				t.Logf("%.2f transactions and %.0f reads a second", transactions, reads)
				require.LessOrEqual(t, transactions, 1.6)
				require.LessOrEqual(t, reads, c.reads)
				byTemplate, _ := e.laneRequests()
				require.Equal(t, crowdSize, byTemplate)
				for _, n := range []int{0, 41, 99} {
					e.enqueue(n, 0)
					e.served(n, 50*time.Millisecond)
				}
			})
		})
	}
}

// TestPollOfManyTemplates: what becomes ready at any of many templates is delivered at that time, or, if the wake is
// lost, at the next poll.
func TestPollOfManyTemplates(t *testing.T) {
	const poll = time.Second*5/4 + 50*time.Millisecond
	t.Run("delay", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := newCrowd(t, 4)
			begun := time.Now()
			for n := range crowdSize {
				e.enqueue(n, time.Minute+time.Duration(n)*time.Second) // all have timers
			}
			for n := range crowdSize {
				at := e.served(n, 2*time.Minute).Sub(begun)
				assert.InDelta(t, time.Minute+time.Duration(n)*time.Second, at, float64(50*time.Millisecond))
			}
		})
	})
	t.Run("all at once", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := newCrowd(t, 1)
			for n := range crowdSize {
				e.enqueue(n, time.Minute)
			}
			time.Sleep(time.Minute + 100*time.Millisecond)
			require.Len(t, e.got, crowdSize)
		})
	})
	t.Run("lease", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := newCrowd(t, 1)
			_, err := e.q.Enqueue(e.ctx, layer.Message{Group: "g57", Headers: facetsOf("none", "v57")})
			require.NoError(t, err)
			first := <-e.got
			e.wg.Go(func() { // the template's next receive
				claims, err := e.waiting.Receive(e.ctx, layer.ReceiveOptions{Where: first.where, Wait: time.Minute})
				require.NoError(t, err)
				require.Len(t, claims, 1)
				e.got <- given{where: first.where, claim: claims[0], at: time.Now()}
			})
			second := <-e.got
			require.InDelta(t, 30*time.Second, second.at.Sub(first.at), float64(50*time.Millisecond))
			require.NoError(t, e.waiting.Ack(e.ctx, second.claim))
		})
	})
	t.Run("lost wake", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := newCrowd(t, 1)
			for _, n := range []int{3, 50, 98} {
				e.write(func(tx kv.Tx) { tx.ClearRange(inLanes("reqlane")) }) // no transaction knows a handle to wake
				e.enqueue(n, 0)
				e.served(n, poll)
			}
		})
	})
	t.Run("after a pause", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			e := newCrowd(t, 1)
			_, err := e.q.Admin().Pause(e.ctx, layer.PauseOptions{})
			require.NoError(t, err)
			for n := range crowdSize {
				e.enqueue(n, 0)
			}
			transactions, _ := e.idle()
			require.LessOrEqual(t, transactions, 1.6)
			require.Empty(t, e.got)
			_, err = e.q.Admin().Resume(e.ctx, layer.ResumeOptions{})
			require.NoError(t, err)
			time.Sleep(poll)
			require.Len(t, e.got, crowdSize)
		})
	})
}
