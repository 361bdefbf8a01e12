package callback

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// TestOwnErrors: a nil pointer counts as success only if its type is of the packages kv, layer or worker of this
// module. A program may have packages of the same names.
func TestOwnErrors(t *testing.T) {
	t.Parallel()
	for path, own := range map[string]bool{
		"fdbfifo/kv": true, "fdbfifo/layer": true, "fdbfifo/worker": true,
		"fdbfifo/sqs": false, "fdbfifo/internal/worker": false, "fdbfifo": false,
		"kv": false, "layer": false, "worker": false, "example.org/worker": false, "example.org/fdbfifo/worker": false,
	} {
		require.Equal(t, own, hasOwnErrors(path), path)
	}
}
