package embedded

import (
	"fmt"
	"sync"

	"fdbfifo/kv"
)

// farSnapshot is the snapshot that a transaction reads from in another process.
type farSnapshot struct {
	link *link
	want int64 // the version; 0 = the newest

	mu       sync.Mutex // guards what follows
	conn     *conn      // nil until there is one
	id       uint64
	opened   *call
	released bool
}

// attach opens the snapshot on the connection, if there is one.
func (s *farSnapshot) attach(c *conn) {
	s.conn = c
	s.id, s.opened = c.ask(frameOpen, func(b []byte) []byte { return appendNumbers(b, uint64(s.want)) })
}

// attached returns the connection, and waits for one if there is none.
func (s *farSnapshot) attached(stop <-chan struct{}) (*conn, error) {
	for {
		s.mu.Lock()
		if s.conn == nil {
			c, changed, err := s.link.now()
			switch {
			case err != nil:
				s.mu.Unlock()
				return nil, err
			case s.released:
				s.mu.Unlock()
				return nil, codeError(kv.CodeTransactionCancelled)
			case c == nil:
				s.mu.Unlock()
				select {
				case <-changed:
				case <-stop:
					return nil, codeError(kv.CodeTransactionCancelled)
				}
				continue
			}
			s.attach(c)
		}
		c := s.conn
		s.mu.Unlock()
		return c, nil
	}
}

// versionNow is the snapshot's version; 0 if that is not known.
func (s *farSnapshot) versionNow() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.opened == nil || !isClosed(s.opened.done) {
		return 0
	}
	v, err := s.version()
	if err != nil {
		return 0
	}
	return v
}

// version is what the server has answered.
func (s *farSnapshot) version() (int64, error) {
	if s.opened.err != nil {
		return 0, s.opened.err
	}
	f := s.opened.fields
	v := f.version()
	if s.opened.kind != frameOpened || f.end() != nil || v <= 0 {
		return 0, s.conn.broken("read version")
	}
	return v, nil
}

// broken cuts off a server that sends nonsense.
func (c *conn) broken(what string) error {
	_ = c.Close()
	return &kv.Error{Code: kv.CodeTransactionTooOld, Cause: fmt.Errorf("%w: %s", errFrame, what)}
}

// release gives the snapshot back.
func (s *farSnapshot) release() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.released = true
	if s.conn != nil && s.id != 0 {
		s.conn.out.put(frameRelease, func(b []byte) []byte { return appendNumbers(b, s.id) })
		s.conn.out.kick()
	}
}

// farReads is a snapshot in another process, as one read sees it.
type farReads struct {
	snapshot *farSnapshot
	stop     <-chan struct{} // closed when no caller waits for the read
	expected int             // rows that the next walk will take; 0 = all
}

var _ view = (*farReads)(nil)

// open waits for the snapshot's version.
func (r *farReads) open() error {
	c, err := r.snapshot.attached(r.stop)
	if err != nil {
		return err
	}
	c.out.flush()
	return r.opened()
}

func (r *farReads) opened() error {
	if _, _, err := r.snapshot.opened.wait(r.stop); err != nil {
		return err
	}
	_, err := r.snapshot.version()
	return err
}

// ask sends a request about the snapshot, and waits for the answer.
func (r *farReads) ask(kind, answer frameKind, more func(b []byte) []byte) (fields, error) {
	c, err := r.snapshot.attached(r.stop)
	if err != nil {
		return fields{}, err
	}
	_, k := c.ask(kind, func(b []byte) []byte { return more(appendNumbers(b, r.snapshot.id)) })
	c.out.flush()
	got, f, err := k.wait(r.stop)
	// The snapshot was asked for before, and so is answered before.
	if failed := r.opened(); failed != nil {
		return fields{}, failed
	}
	if err == nil && got != answer {
		err = c.broken("answer")
	}
	return f, err
}

func (r *farReads) get(key string) (value, error) {
	f, err := r.ask(frameGet, frameValue, func(b []byte) []byte { return appendText(b, key) })
	if err != nil {
		return value{}, err
	}
	v := f.value()
	if f.end() != nil {
		return value{}, r.snapshot.conn.broken("value")
	}
	return v, nil
}

func (r *farReads) ascend(at keyRange, keysOnly bool, fn func(key, value string) bool) error {
	return r.scan(at, keysOnly, false, fn)
}

func (r *farReads) descend(at keyRange, keysOnly bool, fn func(key, value string) bool) error {
	return r.scan(at, keysOnly, true, fn)
}

// scan fetches a batch after the other, until fn has enough.
func (r *farReads) scan(at keyRange, keysOnly, reverse bool, fn func(key, value string) bool) error {
	at = keyRange{shortBound(at.begin), shortBound(at.end)}
	flags := byte(0)
	if reverse {
		flags |= scanReverse
	}
	if keysOnly {
		flags |= scanKeysOnly
	}
	for {
		f, err := r.ask(frameScan, frameRows, func(b []byte) []byte {
			return appendNumbers(append(appendText(appendText(b, at.begin), at.end), flags), uint64(r.expected))
		})
		if err != nil {
			return err
		}
		more, n := f.byte(), f.count(2)
		for range n {
			key, value := f.text(), f.text()
			if f.bad || key < at.begin || at.end != "" && key >= at.end {
				return r.snapshot.conn.broken("row")
			}
			if !fn(key, value) {
				return nil
			}
			if reverse {
				at.end = key
			} else {
				at.begin = key + "\x00"
			}
		}
		switch {
		case f.end() != nil || more > 1 || more == 1 && n == 0:
			return r.snapshot.conn.broken("rows")
		case more == 0 || reverse && at.end == "" || at.end != "" && at.begin >= at.end:
			return nil
		}
	}
}

func (r *farReads) close() {}
