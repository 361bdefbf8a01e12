//go:build linux || darwin

package embedded

import (
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// requireCut requires that the other end closes a connection.
func requireCut(t *testing.T, c net.Conn, within time.Duration) {
	t.Helper()
	require.NoError(t, c.SetReadDeadline(time.Now().Add(within)))
	_, err := io.Copy(io.Discard, c)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
}

// TestSilentCrowd: connections that say no hello keep no client out, however many they are. The server closes the
// oldest of them first.
func TestSilentCrowd(t *testing.T) {
	path := t.TempDir()
	server := openHere(t, path, Options{})
	first := rawPeer(t, path, false)
	for range maxClients + 200 {
		rawPeer(t, path, false)
	}
	client := openHere(t, path, Options{})
	change(t, client, "a", "1")
	require.Equal(t, "1", look(t, server, "a"))
	s := server.local.Load().server
	s.mu.Lock()
	require.LessOrEqual(t, len(s.clients), maxStrange+1)
	s.mu.Unlock()
	requireCut(t, first, helloLimit/4) // before it has been silent for too long
}

// TestQuietCrowd: when there are as many clients as there may be, one that has asked nothing for long makes room for
// another: the oldest, and never one that has asked something. If all have, the other one is sent away.
func TestQuietCrowd(t *testing.T) {
	path := t.TempDir()
	server := openHere(t, path, Options{})
	s := server.local.Load().server
	client := openHere(t, path, Options{})
	change(t, client, "a", "1")
	oldest := rawPeer(t, path, true)
	for range maxClients - 2 {
		rawPeer(t, path, true)
	}
	refused := func() {
		t.Helper()
		f := &folder{path: path, is: client.link.folder.is, options: Options{}.withDefaults()}
		_, _, err := f.join(t.Context(), newLink(client, f)) // once: OpenDisk tries for a while
		require.ErrorIs(t, err, ErrLocked)
	}
	begun := func(by time.Duration) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, n := range s.sessions {
			n.begun = n.begun.Add(by)
		}
	}
	begun(time.Hour) // none is quiet for long yet, however long it took to connect all
	refused()
	begun(-time.Hour - 2*quietClient)
	other := openHere(t, path, Options{})
	requireCut(t, oldest, slowClient)
	change(t, other, "a", "2")
	require.Equal(t, "2", look(t, client, "a"), "it was not cut off")
	s.mu.Lock()
	for _, n := range s.sessions {
		n.asked.Store(true)
	}
	s.mu.Unlock()
	refused()
}
