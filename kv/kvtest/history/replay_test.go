package history_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/kvtest/history"
)

func options() embedded.Options { return embedded.Options{Clock: &history.Clock{}, Seed: 1} }

// replay compares the answers of db with those of the cluster, for every step-th seed.
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
	db, err := embedded.OpenDisk(t.TempDir(), options())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	step := uint64(1)
	if testing.Short() {
		step = 6
	}
	replay(t, db, step)
}
