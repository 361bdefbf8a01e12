package record_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv/embedded"
	"fdbfifo/kv/kvtest"
	"fdbfifo/kv/record"
)

// jumpClock is the wall clock, and can be moved forward: the suite need not wait for the five second window.
type jumpClock struct{ ahead atomic.Int64 }

func (c *jumpClock) Now() time.Time { return time.Now().Add(time.Duration(c.ahead.Load())) }

func (c *jumpClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

func (c *jumpClock) Advance(d time.Duration) { c.ahead.Add(int64(d)) }

// Recording changes nothing: the wrapped engine keeps every promise of the bare one.
func TestConformance(t *testing.T) {
	kvtest.Run(t, func(t *testing.T) kvtest.Engine {
		clock := &jumpClock{}
		engine := embedded.OpenMemory(embedded.Options{Clock: clock, MaxWatches: 100})
		db := record.Wrap(engine)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		return kvtest.Engine{DB: db, ExactConflicts: true, Advance: clock.Advance, MaxWatches: 100}
	})
}
