package embedded

import (
	"context"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// TestCloseBesideANewConnection: the folder changes hands while Close begins. There is no connection then, and there is
// one a moment later. Close ends, and the connection with it.
func TestCloseBesideANewConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		there, here := net.Pipe()
		l := newLink(&DB{}, nil)
		closed := make(chan struct{})
		go func() {
			defer close(closed)
			l.close()
		}()
		synctest.Wait()
		c := newConn(here, l)
		l.join(c, nil)
		go l.run(c)
		<-closed // or the test fails, because all its goroutines are blocked
		if _, err := there.Read(make([]byte, 1)); err == nil {
			t.Fatal("the connection is open still")
		}
	})
}

// lateDeadline is a connection on which a deadline in the future is set a second late.
type lateDeadline struct{ net.Conn }

func (c lateDeadline) SetDeadline(t time.Time) error {
	if t.After(time.Now()) {
		time.Sleep(time.Second)
	}
	return c.Conn.SetDeadline(t)
}

// TestHandshakeEndsWithItsContext: Close ends the context of a handshake while that sets its deadline. The handshake
// ends, and does not wait for the deadline.
func TestHandshakeEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, here := net.Pipe()
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		begun := time.Now()
		_, err := handshake(ctx, lateDeadline{here}, newLink(&DB{}, nil))
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Less(t, time.Since(begun), handshakeLimit)
	})
}

// TestCloseBesideASilentStranger: a server accepts a connection, and is closed before the connection's time for its
// hello begins. The server does not wait for the hello.
func TestCloseBesideASilentStranger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, here := net.Pipe()
		s := newServer(nil, nil, func(net.Conn) error { return nil })
		s.mu.Lock()
		s.enterLocked(lateDeadline{here})
		s.mu.Unlock()
		begun := time.Now()
		s.close()
		require.Less(t, time.Since(begun), helloLimit)
	})
}
