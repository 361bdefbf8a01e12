package history_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv/embedded"
)

// Over a socket too: the server and its client are two DBs of this process.
func TestReplaySocket(t *testing.T) {
	path := t.TempDir()
	server, err := embedded.OpenDisk(path, options())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, server.Close()) })
	client, err := embedded.OpenDisk(path, options())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, client.Close()) })
	step := uint64(1)
	if testing.Short() {
		step = 6
	}
	replay(t, client, step)
}
