package lint

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNoStaleReadVersion (trap 10): nothing in the layer, nor in the command, chooses a read version, and EnqueueTx
// says that the caller's transaction must not.
func TestNoStaleReadVersion(t *testing.T) {
	seen := 0
	for _, pattern := range []string{"layer/*.go", "cli/*.go", "cmd/fdbfifo/*.go"} {
		names, err := filepath.Glob(filepath.Join("../..", pattern))
		require.NoError(t, err)
		for _, name := range names {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			seen++
			require.NotContains(t, read(t, strings.TrimPrefix(name, "../../")), ".SetReadVersion(", name)
		}
	}
	require.Greater(t, seen, 30)
	require.Contains(t, read(t, "layer/enqueue.go"), "(SetReadVersion, a GRV cache)")
}
