package embedded

import (
	"net"
	"testing"
	"testing/synctest"
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
