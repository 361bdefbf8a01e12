package seeds_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/internal/seeds"
)

// TestOneNumber: the number and the name decide the seed, and nothing else.
func TestOneNumber(t *testing.T) {
	t.Setenv(seeds.Variable, "")
	require.EqualValues(t, seeds.Fixed, seeds.Number())
	fixed := seeds.Of("TestA")
	require.Equal(t, fixed, seeds.Of("TestA"))
	require.NotEqual(t, fixed, seeds.Of("TestB"))

	t.Setenv(seeds.Variable, "7")
	require.EqualValues(t, 7, seeds.Number())
	require.NotEqual(t, fixed, seeds.Of("TestA"))
	require.Equal(t, "SEED=7", seeds.Replay())

	t.Setenv(seeds.Variable, "seven")
	require.Panics(t, func() { seeds.Number() })
}
