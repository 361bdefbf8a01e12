package embedded

import (
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// outbox has the bytes on their way to a peer. A caller that may wait for the peer writes them; otherwise a goroutine
// does.
type outbox struct {
	conn  net.Conn
	limit atomic.Int64  // nanoseconds of one write; 0 = none
	wake  chan struct{} // for the goroutine; of one place

	mu      sync.Mutex // guards what follows
	room    sync.Cond  // something was written
	waiting []byte
	spare   []byte
	writing bool
	err     error // of the first write that failed, or why it is closed
}

func newOutbox(conn net.Conn, limit time.Duration) *outbox {
	o := &outbox{conn: conn, wake: make(chan struct{}, 1)}
	o.limit.Store(int64(limit))
	o.room.L = &o.mu
	return o
}

// put adds a frame. It does not wait.
func (o *outbox) put(kind frameKind, fields func(b []byte) []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.waiting = appendFrame(o.waiting, kind, fields)
	}
}

// kick tells the goroutine to write.
func (o *outbox) kick() {
	select {
	case o.wake <- struct{}{}:
	default:
	}
}

// flush writes the waiting frames. If another goroutine is writing, that one writes them too, and flush returns.
func (o *outbox) flush() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.writing {
		return
	}
	o.writing = true
	for len(o.waiting) > 0 && o.err == nil {
		b := o.waiting
		o.waiting = o.spare[:0]
		o.spare = nil
		o.mu.Unlock()
		err := o.write(b)
		o.mu.Lock()
		if cap(b) <= 4*grownFrame {
			o.spare = b
		}
		if err != nil && o.err == nil {
			o.err = err
		}
		o.room.Broadcast()
	}
	o.writing = false
}

// write writes b within the limit. If the limit changes while write sets the deadline, write sets it again: otherwise
// the deadline of the earlier limit could replace the shorter one that server.close has set.
func (o *outbox) write(b []byte) error {
	for limit, set := o.limit.Load(), false; !set; {
		if limit > 0 {
			if err := o.conn.SetWriteDeadline(time.Now().Add(time.Duration(limit))); err != nil {
				return err
			}
		}
		now := o.limit.Load()
		limit, set = now, now == limit
	}
	_, err := o.conn.Write(b)
	if err != nil && o.limit.Load() > 0 {
		// A frame may be cut in two, so nothing may follow on this connection. A client's write has no limit, and fails
		// only if the server has closed the connection. It stays open here: the client must still read the last frames
		// of the server.
		_ = o.conn.Close()
	}
	return err
}

// run is the goroutine. It ends with ended.
func (o *outbox) run(ended <-chan struct{}) {
	for {
		select {
		case <-o.wake:
			o.flush()
		case <-ended:
			return
		}
	}
}

// size is how much waits.
func (o *outbox) size() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.waiting)
}

// makeRoom blocks until at most most bytes wait, or the outbox is closed or broken.
func (o *outbox) makeRoom(most int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for len(o.waiting) > most && o.err == nil {
		o.room.Wait()
	}
}

// close refuses further frames with err.
func (o *outbox) close(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.err == nil {
		o.err = err
	}
	o.waiting, o.spare = nil, nil
	o.room.Broadcast()
}
