package layer_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

// What the tests run on is in this file alone: fdbkv/layertest has the same tests, and a FoundationDB cluster in this
// file's place.

type engine struct {
	name   string
	open   func(t *testing.T) kv.DB // an empty one; newEnv closes it
	faults bool
}

func engines() []engine {
	return []engine{{"memory", anyEngine, false}, {"memory with faults", recovering, true}, {"disk", disk, false}}
}

// anyEngine opens the engine for tests that one is enough for.
func anyEngine(*testing.T) kv.DB { return embedded.OpenMemory(embedded.Options{}) }

// recovering opens an engine that does what a cluster does whose servers die: now and then the versions jump, by 100
// seconds' worth, and a transaction under way is too old; and a watch may be late.
func recovering(*testing.T) kv.DB {
	groups, due := 0, 0
	return embedded.OpenMemory(embedded.Options{Hooks: embedded.Hooks{
		VersionGap: func() int64 {
			if groups++; groups%100 > 0 {
				return 0
			}
			return 100_000_000
		},
		HoldWatches: func() bool {
			due++
			return due%10 == 0
		},
	}})
}

func disk(t *testing.T) kv.DB {
	db, err := embedded.OpenDisk(t.TempDir(), embedded.Options{})
	require.NoError(t, err)
	return db
}
