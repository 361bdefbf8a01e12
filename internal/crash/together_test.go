//go:build linux || darwin

package crash_test

import (
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/internal/crash"
)

// TestKillsTogether: the same where several processes have the folder open. The one that serves is killed under the
// others, or stopped for a while, and they go on; so is the one that is a client.
func TestKillsTogether(t *testing.T) {
	kills := *killsFlag
	if testing.Short() {
		kills /= 4
	}
	o := options(t, kills)
	o.Together, o.Stop, o.Continue = true, syscall.SIGSTOP, syscall.SIGCONT
	report, err := crash.Run(t.Context(), o)
	t.Logf("seed %d: %s", o.Seed, report)
	require.NoError(t, err, "replay: make crash SEED=%d KILLS=%d (the timing is not the seed's)", o.Seed, o.Kills)
}
