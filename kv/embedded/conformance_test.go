package embedded_test

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv/embedded"
	"fdbfifo/kv/kvtest"
)

// jumpClock is the wall clock, and can be moved forward.
type jumpClock struct {
	still bool // it moves only when it is moved: of an engine that serves, so that a busy machine makes nothing too old

	mu    sync.Mutex
	ahead time.Duration
}

func (c *jumpClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.still {
		return time.Unix(1_000_000, 0).Add(c.ahead)
	}
	return time.Now().Add(c.ahead)
}

func (c *jumpClock) After(d time.Duration) <-chan time.Time { return time.After(d) }

func (c *jumpClock) Advance(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.ahead += d
}

// Every promise of kv holds in memory.
func TestConformanceMemory(t *testing.T) {
	t.Parallel()
	kvtest.Run(t, func(t *testing.T) kvtest.Engine {
		clock := &jumpClock{}
		db := embedded.OpenMemory(embedded.Options{Clock: clock, MaxWatches: 100})
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		return kvtest.Engine{DB: db, ExactConflicts: true, Advance: clock.Advance, MaxWatches: 100}
	})
}

// Every promise of kv holds on disk.
func TestConformanceDisk(t *testing.T) {
	t.Parallel()
	kvtest.Run(t, func(t *testing.T) kvtest.Engine {
		clock := &jumpClock{}
		db, err := embedded.OpenDisk(t.TempDir(), embedded.Options{Clock: clock, MaxWatches: 100})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		return kvtest.Engine{DB: db, ExactConflicts: true, Advance: clock.Advance, MaxWatches: 100}
	})
}

// Every promise of kv holds over a socket: the server and its client are two DBs of this process.
func TestConformanceSocket(t *testing.T) {
	t.Parallel()
	kvtest.Run(t, func(t *testing.T) kvtest.Engine {
		served, clock, path := &jumpClock{still: true}, &jumpClock{}, t.TempDir()
		openDisk(t, path, embedded.Options{Clock: served})
		db := openDisk(t, path, embedded.Options{Clock: clock, MaxWatches: 100})
		advance := func(d time.Duration) {
			served.Advance(d)
			clock.Advance(d)
		}
		return kvtest.Engine{DB: db, ExactConflicts: true, Advance: advance, MaxWatches: 100}
	})
}
