//go:build linux || darwin

package embedded

import (
	"net"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLastFramesOfAServer: a server sends a last frame and closes the connection. A client that cannot send its own
// frame any more still reads the frame of the server.
func TestLastFramesOfAServer(t *testing.T) {
	err := short(t.TempDir(), func(path string) error {
		name := filepath.Join(path, "s")
		l, err := net.Listen("unix", name)
		require.NoError(t, err)
		defer l.Close()
		client, err := net.Dial("unix", name)
		require.NoError(t, err)
		defer client.Close()
		server, err := l.Accept()
		require.NoError(t, err)
		last := func(b []byte) []byte { return appendNumbers(b, 7, 9, 0) }
		_, err = server.Write(appendFrame(nil, frameCommitted, last))
		require.NoError(t, err)
		require.NoError(t, server.Close())
		o := newOutbox(client, 0)
		o.put(frameRelease, func(b []byte) []byte { return appendNumbers(b, 1) })
		o.flush()
		require.Error(t, o.err)
		kind, f, err := (&frameReader{r: client, limit: maxFrame}).next()
		require.NoError(t, err)
		require.Equal(t, frameCommitted, kind)
		require.EqualValues(t, 7, f.number())
		return nil
	})
	require.NoError(t, err)
}
