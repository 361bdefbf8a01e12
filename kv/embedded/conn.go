package embedded

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"fdbfifo/kv"
)

// conn is a client's connection to the process that has the database open.
type conn struct {
	net.Conn
	link  *link
	out   *outbox
	ended chan struct{}

	mu      sync.Mutex // guards what follows
	next    uint64     // the last number given to a request, a snapshot or a watch
	calls   map[uint64]*call
	commits map[uint64]*commit
	watches map[uint64]*watch
	numbers map[*watch]uint64
	lost    bool // the connection has ended
}

// call is a request that is answered with one frame.
type call struct {
	done chan struct{}
	// Valid once done is closed.
	kind   frameKind
	fields fields
	err    error
}

// errLost is the error of a read whose connection has ended. The read version ended with the connection.
var errLost = &kv.Error{Code: kv.CodeTransactionTooOld, Cause: errors.New("embedded: the serving process has ended")}

// maxUnsent is the most bytes that may wait for a server that does not read. Further frames are refused.
const maxUnsent = 64 << 20

// The bounds of a handshake: how long a server waits for a client's hello, and a client for the answer. The answer may
// come only when the server has opened its file.
const (
	helloLimit     = 2 * time.Second
	handshakeLimit = 5 * time.Second
)

// errProtocol says that the other process speaks another protocol.
var errProtocol = errors.New("embedded: the process that serves the folder speaks another protocol")

// clientID identifies a client, so that a server recognizes a client that reconnects.
type clientID [16]byte

// handshake makes a connection of c. It ends with ctx, or with the limit.
func handshake(ctx context.Context, c net.Conn, l *link) (*conn, error) {
	if err := c.SetDeadline(time.Now().Add(handshakeLimit)); err != nil {
		return nil, err
	}
	// From here on, so that the limit does not replace the deadline of a context that has ended already.
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })
	defer stop()
	hello := appendFrame(nil, frameHello, func(b []byte) []byte {
		return append(appendNumbers(appendText(b, protocolMagic), protocolVersion), l.id[:]...)
	})
	if _, err := c.Write(hello); err != nil {
		return nil, err
	}
	// This reads exactly the answer, because the buffered reader must get all bytes after it.
	kind, f, err := (&frameReader{r: c, limit: maxHello}).next()
	if err != nil {
		return nil, err
	}
	version := f.number()
	if kind != frameWelcome || f.end() != nil {
		return nil, fmt.Errorf("%w: no welcome", errFrame)
	}
	if version != protocolVersion {
		return nil, fmt.Errorf("%w: %d, this one speaks %d", errProtocol, version, protocolVersion)
	}
	if !stop() {
		return nil, context.Cause(ctx)
	}
	if err := c.SetDeadline(time.Time{}); err != nil {
		return nil, err
	}
	return newConn(c, l), nil
}

func newConn(c net.Conn, l *link) *conn {
	n := &conn{
		Conn: c, link: l, out: newOutbox(c, 0), ended: make(chan struct{}), calls: map[uint64]*call{},
		commits: map[uint64]*commit{}, watches: map[uint64]*watch{}, numbers: map[*watch]uint64{},
	}
	go n.out.run(n.ended)
	return n
}

// ask queues a request that is answered with one frame. It neither waits nor writes to the connection.
func (c *conn) ask(kind frameKind, fields func(b []byte) []byte) (uint64, *call) {
	k := &call{done: make(chan struct{})}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost || c.out.size() > maxUnsent {
		k.err = errLost
		if !c.lost {
			k.err = codeError(kv.CodeGRVProxyMemoryLimit)
		}
		close(k.done)
		return 0, k
	}
	c.next++
	id := c.next
	c.calls[id] = k
	c.out.put(kind, func(b []byte) []byte { return fields(appendNumbers(b, id)) })
	return id, k
}

func (k *call) wait(stop <-chan struct{}) (frameKind, fields, error) {
	select {
	case <-k.done:
	case <-stop:
		return 0, fields{}, codeError(kv.CodeTransactionCancelled)
	}
	return k.kind, k.fields, k.err
}

// submit sends a commit. It does not wait. It returns false if the connection has ended.
func (c *conn) submit(m *commit) bool {
	c.mu.Lock()
	if c.lost {
		c.mu.Unlock()
		return false
	}
	if c.out.size() > maxUnsent {
		c.mu.Unlock()
		m.err = codeError(kv.CodeCommitProxyMemoryLimit)
		m.finish(c.link)
		return true
	}
	c.next++
	id := c.next
	c.commits[id] = m
	c.out.put(frameCommit, func(b []byte) []byte { return appendCommit(appendNumbers(b, id), m) })
	c.mu.Unlock()
	c.out.kick()
	return true
}

// register sends watches to the server, which compares their baselines with the newest values. It returns the watches
// that were not sent because the connection has ended.
func (c *conn) register(watches []*watch) (rest []*watch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.lost {
		return watches
	}
	for _, w := range watches {
		if !w.enter(c) {
			continue
		}
		c.next++
		id := c.next
		c.watches[id], c.numbers[w] = w, id
		c.out.put(frameWatch, func(b []byte) []byte {
			return appendValue(appendText(appendNumbers(b, id), w.key), w.baseline)
		})
	}
	c.out.kick()
	return nil
}

// remove implements registry.
func (c *conn) remove(w *watch) {
	c.mu.Lock()
	defer c.mu.Unlock()
	id, known := c.numbers[w]
	if !known {
		return
	}
	delete(c.numbers, w)
	delete(c.watches, id)
	c.out.put(frameUnwatch, func(b []byte) []byte { return appendNumbers(b, id) })
	c.out.kick()
}

// read handles the frames of the server until the connection ends.
func (c *conn) read() error {
	r := frameReader{r: bufio.NewReaderSize(c, grownFrame), limit: maxFrame}
	for {
		kind, f, err := r.next()
		if err != nil {
			return err
		}
		if err := c.take(kind, f); err != nil {
			return err
		}
	}
}

func (c *conn) take(kind frameKind, f fields) error {
	id := f.number()
	switch kind {
	case frameOpened, frameValue, frameRows:
		// The client sends the request for a read version first, and reads that need it right after. So a read waits
		// only for its own answer.
		if v := f; kind == frameOpened && (v.version() <= 0 || v.end() != nil) {
			return fmt.Errorf("%w: read version", errFrame)
		}
		c.mu.Lock()
		k := c.calls[id]
		delete(c.calls, id)
		c.mu.Unlock()
		if k != nil {
			k.kind, k.fields = kind, f
			close(k.done)
		}
		return nil
	case frameCommitted:
		version, index := f.version(), f.number()
		if err := f.end(); err != nil || version <= 0 || index > maxGroup {
			return fmt.Errorf("%w: commit's version", errFrame)
		}
		if id == toldStored {
			c.link.seen.note(version)
		} else {
			c.settle(id, version, uint16(index), nil)
		}
		return nil
	case frameFailed, frameFired:
		code, text := int(f.number()), ""
		if kind == frameFailed {
			text = f.text()
		}
		if err := f.end(); err != nil {
			return err
		}
		var err error
		if code != 0 {
			err = farError(code, text)
		} else if kind == frameFailed {
			return fmt.Errorf("%w: a failure without a code", errFrame) // it must not count as a success
		}
		c.fail(id, kind, err)
		return nil
	case frameHello, frameOpen, frameRelease, frameGet, frameScan, frameCommit, frameWatch, frameUnwatch, frameWelcome:
	}
	return fmt.Errorf("%w: kind %d", errFrame, kind)
}

func farError(code int, text string) error {
	e := &kv.Error{Code: code}
	if text != "" {
		e.Cause = errors.New(text)
	}
	// A caller must recognize these errors also if another process has met them.
	for _, known := range []error{ErrGone, ErrCorrupt} {
		if before, after, ok := strings.Cut(text, known.Error()); ok {
			e.Cause = fmt.Errorf("%s%w%s", before, known, after)
		}
	}
	return e
}

// fail ends the watch, call or commit with this number.
func (c *conn) fail(id uint64, kind frameKind, err error) {
	if kind == frameFired {
		c.mu.Lock()
		w := c.watches[id]
		delete(c.watches, id)
		delete(c.numbers, w)
		c.mu.Unlock()
		if w != nil {
			w.end(err)
		}
		return
	}
	c.mu.Lock()
	k := c.calls[id]
	delete(c.calls, id)
	c.mu.Unlock()
	if k != nil {
		k.err = err
		close(k.done)
		return
	}
	c.settle(id, noVersion, 0, err)
}

// settle ends a commit with the server's answer.
func (c *conn) settle(id uint64, version int64, index uint16, err error) {
	c.mu.Lock()
	m := c.commits[id]
	delete(c.commits, id)
	c.mu.Unlock()
	if m != nil {
		if err == nil && len(m.mutations) > 0 {
			c.link.seen.note(version)
		}
		m.version, m.index, m.err = version, index, err
		m.finish(c.link)
	}
}

// end gives up the connection. Reads in flight fail. It returns the commits in flight, whose outcome is unknown, and
// the watches.
func (c *conn) end(err error) (commits []*commit, watches []*watch) {
	_ = c.Close()
	c.mu.Lock()
	c.lost = true
	calls := c.calls
	for _, m := range c.commits {
		commits = append(commits, m)
	}
	for _, w := range c.watches {
		watches = append(watches, w)
	}
	c.calls, c.commits, c.watches, c.numbers = nil, nil, nil, nil
	c.mu.Unlock()
	for _, k := range calls {
		k.err = errLost
		close(k.done)
	}
	c.out.close(err)
	close(c.ended)
	return commits, watches
}

// pending reports whether a commit has no answer yet.
func (c *conn) pending() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.commits) > 0
}
