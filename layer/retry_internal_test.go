package layer

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestRetryDelay: an exponential wait doubles up to its maximum, and of each a random half is left out; a constant one
// stays the same; whatever the number of failures.
func TestRetryDelay(t *testing.T) {
	p := RetryPolicy{Base: 100 * time.Millisecond, Max: time.Minute}
	for failures, whole := range map[int]time.Duration{
		0: 100 * time.Millisecond, 1: 100 * time.Millisecond, 2: 200 * time.Millisecond, 5: 1600 * time.Millisecond,
		10: 51200 * time.Millisecond, 11: time.Minute, 1 << 30: time.Minute,
	} {
		require.Equal(t, whole/2, p.delay(failures, 0), "failures: %d", failures)
		require.Equal(t, whole*3/4, p.delay(failures, 0.5), "failures: %d", failures)
		require.Less(t, p.delay(failures, 0.999), whole, "failures: %d", failures)
		p := RetryPolicy{Kind: RetryConstant, Base: time.Second}
		require.Equal(t, time.Second, p.delay(failures, 0.5))
		p.Kind = RetryAtOnce
		require.Zero(t, p.delay(failures, 0.5))
	}
	p.Max = MaxDelay
	require.Equal(t, MaxDelay/2, p.delay(1<<30, 0), "no overflow")
}
