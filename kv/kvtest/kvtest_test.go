package kvtest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv/embedded"
)

// openMemory opens the engine that the suite itself is tested on.
func openMemory(t testing.TB) Engine {
	db := embedded.OpenMemory(embedded.Options{})
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	return Engine{DB: db, ExactConflicts: true}
}

// TestSuiteOnEmbedded runs all of the suite once, without a clock to advance.
func TestSuiteOnEmbedded(t *testing.T) {
	Run(t, func(t *testing.T) Engine { return openMemory(t) })
}
