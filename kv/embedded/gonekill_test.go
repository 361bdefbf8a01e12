//go:build linux || darwin

package embedded_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv/embedded"
)

// TestKilledBesideAnOlderCopy: an older copy takes the place of the file, and the serving process is killed before it
// notices. A client does not take over the copy: its own commit is not in it, or the commit of another client that it
// has read.
func TestKilledBesideAnOlderCopy(t *testing.T) {
	for _, name := range []string{"older copy", "older copy in place"} {
		for _, reads := range []bool{false, true} {
			path := t.TempDir()
			server := startProcess(t, path, servesOnly)
			server.hear(toldServing)
			client, other := openDisk(t, path, embedded.Options{}), openDisk(t, path, embedded.Options{})
			put(t, client, "a", "1")
			older, err := os.ReadFile(fileOf(path))
			require.NoError(t, err)
			if reads {
				put(t, other, "a", "2")
				require.Equal(t, "2", read(t, client, "a"))
			} else {
				put(t, client, "a", "2")
			}
			require.NoError(t, other.Close())
			require.NoError(t, takings[name].away(t, path, older))
			server.kill()
			requireGone(t, client)
			now, err := os.ReadFile(fileOf(path))
			require.NoError(t, err)
			require.Equal(t, older, now, "nothing was written")
		}
	}
}
