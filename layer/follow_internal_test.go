package layer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestFollowedDoesNotGoBack: a transaction that read the configuration before another one did, and ends after it,
// does not take the handle back to the older version.
func TestFollowedDoesNotGoBack(t *testing.T) {
	var f followed
	now := time.Now()
	f.learn(Config{Lease: 3 * time.Second}, 3, now)
	require.Equal(t, 3*time.Second, f.learn(Config{Lease: 2 * time.Second}, 2, now).Lease)
	config, _, _, fresh := f.fresh(now)
	require.True(t, fresh)
	require.Equal(t, 3*time.Second, config.Lease)
	_, _, _, fresh = f.fresh(now.Add(-time.Second))
	require.False(t, fresh, "a clock that was set back does not keep the handle from reading")
}
