package history_test

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/kvtest/history"
)

// stillClock stands still but for waits, which it ends at once: no transaction grows too old.
type stillClock struct {
	mu  sync.Mutex
	now time.Time
}

func (c *stillClock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.now
}

func (c *stillClock) After(d time.Duration) <-chan time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.now = c.now.Add(max(d, 0))
	ch := make(chan time.Time, 1)
	ch <- c.now
	return ch
}

func options() embedded.Options {
	return embedded.Options{Clock: &stillClock{now: time.Unix(1, 0)}, Seed: 1}
}

// replay compares what db answers with what the cluster answered, for every step-th seed.
func replay(t *testing.T, db kv.DB, step uint64) {
	for seed := uint64(1); seed <= history.Seeds; seed += step {
		t.Run(fmt.Sprintf("seed %d", seed), func(t *testing.T) {
			want, err := history.Read("testdata", seed)
			require.NoError(t, err)
			got, err := history.Play(t.Context(), db, seed)
			require.NoError(t, err)
			require.NoError(t, history.Compare(got, want))
		})
	}
}

// In memory, the same operations give the same histories as on the recorded cluster.
func TestReplayMemory(t *testing.T) {
	db := embedded.OpenMemory(options())
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	replay(t, db, 1)
}

// On disk too.
func TestReplayDisk(t *testing.T) {
	db, err := embedded.OpenDisk(t.TempDir(), embedded.Options{Seed: 1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	step := uint64(1)
	if testing.Short() {
		step = 6
	}
	replay(t, db, step)
}
