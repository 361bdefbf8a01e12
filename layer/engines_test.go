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
	return []engine{{"memory", anyEngine, false}, {"memory with faults", anyEngine, true}, {"disk", disk, false}}
}

// anyEngine opens the engine for tests that one is enough for.
func anyEngine(*testing.T) kv.DB { return embedded.OpenMemory(embedded.Options{}) }

func disk(t *testing.T) kv.DB {
	db, err := embedded.OpenDisk(t.TempDir(), embedded.Options{})
	require.NoError(t, err)
	return db
}
