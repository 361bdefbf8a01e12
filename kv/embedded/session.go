package embedded

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"fdbfifo/kv"
)

// session is a client on the side of the server. One goroutine reads its frames and executes them.
type session struct {
	net.Conn
	engine  *engine
	number  uint64 // of the connection, in the order in which they were made
	out     *outbox
	settled chan struct{} // closed when no message of the client can take effect any more
	begun   time.Time
	asked   atomic.Bool // the client has sent a frame

	told      int64                 // the last version of tell; the reading goroutine's
	snapshots map[uint64]farVersion // the reading goroutine's
	slots     watchSlots

	mu         sync.Mutex // guards what follows
	done       sync.Cond  // a commit is done
	committing int        // bytes of commits under way, at most maxCommitting
	watches    map[uint64]*watch
	watched    int // bytes of keys and baselines
	over       bool
}

// farVersion is a snapshot that a client has opened.
type farVersion struct {
	*snapshot
	version int64
}

// Bounds of a client. Its memory is their sum, a frame or two, and some hundred bytes for each watch: less than 200 MB.
const (
	maxUnread       = 1 << 20  // bytes of answers that it has not read; with more the server reads none of its frames
	maxCommitting   = 16 << 20 // bytes of commits in flight; before it has more, the server reads none of its frames
	maxSnapshots    = 1 << 16
	maxFarWatches   = 100_000
	maxWatchedBytes = 64 << 20
	maxBatch        = 256 << 10 // bytes of rows in a frame, and one row
)

func newSession(e *engine, c net.Conn) *session {
	s := &session{
		Conn: c, engine: e, out: newOutbox(c, slowClient), settled: make(chan struct{}), begun: time.Now(),
		snapshots: map[uint64]farVersion{}, watches: map[uint64]*watch{},
	}
	s.slots.limit = maxFarWatches
	s.done.L = &s.mu
	return s
}

// run serves the client until the connection ends, and gives back all that the client had.
func (s *session) run() {
	ended := make(chan struct{})
	var writer sync.WaitGroup
	writer.Go(func() { s.out.run(ended) })
	s.read()
	for _, v := range s.snapshots {
		s.engine.release(v.snapshot)
	}
	s.mu.Lock()
	s.over = true
	watches := s.watches
	s.watches = nil
	for s.committing > 0 {
		s.done.Wait()
	}
	s.mu.Unlock()
	close(s.settled)
	s.tell(s.engine.newestStored())
	for _, w := range watches {
		w.Cancel()
	}
	// The answers of the last commits are written, if the client is there to read.
	s.out.limit.Store(int64(closeLimit))
	_ = s.SetWriteDeadline(time.Now().Add(closeLimit)) // the connection may be gone
	close(ended)
	writer.Wait()
	s.out.flush()
	s.out.close(net.ErrClosed)
}

// read executes the client's frames until the client stops or breaks the protocol.
func (s *session) read() {
	in := bufio.NewReaderSize(s.Conn, grownFrame)
	r := frameReader{r: in, limit: maxFrame}
	for {
		if in.Buffered() == 0 || s.out.size() > maxUnread {
			s.out.flush() // before this goroutine waits
		}
		s.out.makeRoom(maxUnread)
		kind, f, err := r.next()
		if err != nil {
			return
		}
		s.asked.Store(true)
		if err := s.handle(kind, f); err != nil {
			return
		}
	}
}

func (s *session) handle(kind frameKind, f fields) error {
	id := f.number()
	switch kind {
	case frameOpen:
		return s.open(id, f)
	case frameRelease:
		if v, ok := s.snapshots[id]; ok {
			delete(s.snapshots, id)
			s.engine.release(v.snapshot)
		}
		return f.end()
	case frameGet:
		return s.get(id, f)
	case frameScan:
		return s.scan(id, f)
	case frameCommit:
		return s.commit(id, f)
	case frameWatch:
		return s.watch(id, f)
	case frameUnwatch:
		s.mu.Lock()
		w := s.watches[id]
		s.mu.Unlock()
		if w != nil {
			w.Cancel()
		}
		return f.end()
	case frameHello, frameWelcome, frameOpened, frameValue, frameRows, frameCommitted, frameFired, frameFailed:
	}
	return fmt.Errorf("%w: kind %d", errFrame, kind)
}

// fail answers with an error.
func (s *session) fail(id uint64, err error) {
	code, text := kv.CodeIOError, err.Error()
	var e *kv.Error
	if errors.As(err, &e) && e != nil {
		code, text = e.Code, ""
		if e.Cause != nil {
			text = e.Cause.Error()
		}
	}
	s.out.put(frameFailed, func(b []byte) []byte {
		return appendText(appendNumbers(b, id, uint64(code)), text)
	})
}

func (s *session) open(id uint64, f fields) error {
	want := f.version()
	if _, twice := s.snapshots[id]; f.end() != nil || twice {
		return fmt.Errorf("%w: open", errFrame)
	}
	if len(s.snapshots) >= maxSnapshots {
		s.fail(id, codeError(kv.CodeGRVProxyMemoryLimit))
		return nil
	}
	v := farVersion{version: want}
	var err error
	if want == 0 {
		v.version, v.snapshot, err = s.engine.acquire()
	} else {
		v.snapshot, err = s.engine.acquireAt(want)
	}
	if err != nil {
		s.fail(id, err)
		return nil
	}
	s.snapshots[id] = v
	s.tell(v.from)
	s.out.put(frameOpened, func(b []byte) []byte { return appendNumbers(b, id, uint64(v.version)) })
	return nil
}

// tell tells the client the version of a commit that is in the file, unless the client knows of a later one. If the
// client takes over, it refuses a file with a smaller version.
func (s *session) tell(stored int64) {
	if stored > s.told {
		s.told = stored
		s.out.put(frameCommitted, func(b []byte) []byte { return appendNumbers(b, toldStored, uint64(stored), 0) })
	}
}

// view calls fn with a snapshot's data; error 1007 if that is not open, or past the window.
func (s *session) view(id uint64, fn func(v view) error) error {
	v, ok := s.snapshots[id]
	if !ok || v.version < s.engine.now()-window {
		return codeError(kv.CodeTransactionTooOld)
	}
	return v.read(fn)
}

func (s *session) get(id uint64, f fields) error {
	from, key := f.number(), f.text()
	if err := f.end(); err != nil {
		return err
	}
	var v value
	err := s.view(from, func(b view) (err error) {
		v, err = b.get(key)
		return err
	})
	if err != nil {
		s.fail(id, err)
		return nil
	}
	s.out.put(frameValue, func(b []byte) []byte { return appendValue(appendNumbers(b, id), v) })
	return nil
}

func (s *session) scan(id uint64, f fields) error {
	from := f.number()
	r := keyRange{f.text(), f.text()}
	flags, wanted := f.byte(), f.number()
	if err := f.end(); err != nil || flags > scanReverse|scanKeysOnly {
		return fmt.Errorf("%w: scan", errFrame)
	}
	var rows []byte
	var n uint64
	more := byte(0)
	add := func(key, value string) bool {
		if n > 0 && n == wanted || len(rows) >= maxBatch {
			more = 1
			return false
		}
		n++
		rows = appendText(appendText(rows, key), value)
		return true
	}
	err := s.view(from, func(v view) error {
		if flags&scanReverse != 0 {
			return v.descend(r, flags&scanKeysOnly != 0, add)
		}
		return v.ascend(r, flags&scanKeysOnly != 0, add)
	})
	if err != nil {
		s.fail(id, err)
		return nil
	}
	s.out.put(frameRows, func(b []byte) []byte {
		return append(appendNumbers(append(appendNumbers(b, id), more), n), rows...)
	})
	return nil
}

func (s *session) commit(id uint64, f fields) error {
	if id == toldStored { // the client would take the answer for another one
		return fmt.Errorf("%w: commit %d", errFrame, id)
	}
	c, err := f.commit()
	if err != nil {
		return err
	}
	s.mu.Lock()
	for s.committing+c.bytes > maxCommitting { // one commit alone always has room
		s.done.Wait()
	}
	s.committing += c.bytes
	s.mu.Unlock()
	c.told = func(c *commit) {
		if c.err != nil {
			s.fail(id, c.err)
		} else {
			s.out.put(frameCommitted, func(b []byte) []byte {
				return appendNumbers(b, id, uint64(c.version), uint64(c.index))
			})
		}
		s.out.kick()
		s.mu.Lock()
		s.committing -= c.bytes
		s.done.Broadcast()
		s.mu.Unlock()
	}
	s.engine.submit(c)
	return nil
}

func (s *session) watch(id uint64, f fields) error {
	key, baseline := f.text(), f.value()
	if err := f.end(); err != nil || key >= maxKey || len(key) > kv.MaxKeySize {
		return fmt.Errorf("%w: watch", errFrame)
	}
	size := len(key) + len(baseline.data)
	s.mu.Lock()
	_, twice := s.watches[id]
	full := s.watched+size > maxWatchedBytes
	s.mu.Unlock()
	if twice {
		return fmt.Errorf("%w: watch", errFrame)
	}
	w, err := s.slots.create(key, baseline)
	if err == nil && full {
		w.Cancel()
		err = codeError(kv.CodeTooManyWatches)
	}
	if err != nil {
		s.fired(id, err)
		return nil
	}
	w.told = func(w *watch) {
		s.mu.Lock()
		delete(s.watches, id)
		s.watched -= size
		over := s.over
		s.mu.Unlock()
		if !over {
			s.fired(id, w.err)
		}
	}
	s.mu.Lock()
	s.watches[id] = w
	s.watched += size
	s.mu.Unlock()
	s.engine.register([]*watch{w})
	return nil
}

func (s *session) fired(id uint64, err error) {
	code := 0
	if err != nil {
		code = kv.CodeIOError
		if c := kv.Code(err); c != 0 {
			code = c
		}
	}
	s.out.put(frameFired, func(b []byte) []byte { return appendNumbers(b, id, uint64(code)) })
	s.out.kick()
}
