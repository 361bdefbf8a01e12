package embedded

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"fdbfifo/kv"
)

// link connects a DB that did not get the folder to the process that has the database open. When that process ends,
// link connects to the next one, or this process becomes the next one.
type link struct {
	db     *DB
	folder *folder
	id     clientID
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	ended  chan struct{} // run has ended
	rest   rest          // used by one goroutine at a time: that of OpenDisk, then run
	seen   seen          // used like rest

	mu        sync.Mutex // guards what follows
	conn      *conn      // nil while there is none
	changed   chan struct{}
	waiting   []*commit // sent nowhere yet
	unsettled []*commit // sent on a connection that has ended
	watches   []*watch  // of a connection that has ended
	failed    error     // why the database cannot be opened
}

func newLink(db *DB, f *folder) *link {
	l := &link{db: db, folder: f, changed: make(chan struct{}), ended: make(chan struct{})}
	for i := range l.id {
		l.id[i] = byte(rand.Uint32())
	}
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// snapshot returns the snapshot that a transaction reads from. It does not wait.
func (l *link) snapshot(version int64) *farSnapshot {
	s := &farSnapshot{link: l, want: version}
	l.mu.Lock()
	c := l.conn
	l.mu.Unlock()
	if c != nil {
		s.attach(c)
	}
	return s
}

// now returns the connection. If there is none, changed is closed when there may be one.
func (l *link) now() (c *conn, changed <-chan struct{}, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.ctx.Err() != nil:
		err = &kv.Error{Code: kv.CodeOperationCancelled, Cause: errClosed}
	case l.db.local.Load() != nil:
		err = errLost // read again, here
	case l.conn == nil && l.failed != nil:
		err = &kv.Error{Code: kv.CodeIOError, Cause: l.failed}
	}
	return l.conn, l.changed, err
}

// submit sends a commit to the DB that has the database open. It does not wait. It does not send a commit that was
// given up while it waited: a commit without a read version would land however late it is sent.
func (l *link) submit(m *commit) {
	if m.givenUp.Load() {
		m.err = codeError(kv.CodeTransactionCancelled)
		m.finish(l)
		return
	}
	l.mu.Lock()
	e, c := l.db.local.Load(), l.conn
	var err error
	switch {
	case e != nil || c != nil:
	case l.ctx.Err() != nil:
		err = &kv.Error{Code: kv.CodeOperationCancelled, Cause: errClosed}
	case l.failed != nil:
		err = &kv.Error{Code: kv.CodeIOError, Cause: l.failed}
	default:
		l.waiting = append(l.waiting, m)
		l.mu.Unlock()
		return
	}
	l.mu.Unlock()
	switch {
	case e != nil:
		e.submit(m)
	case err != nil:
		m.err = err
		m.finish(l)
	case !c.submit(m):
		l.submit(m) // the connection has just ended: try the next one
	}
}

// register implements watcher.
func (l *link) register(watches []*watch) {
	if len(watches) == 0 {
		return
	}
	l.mu.Lock()
	e, c := l.db.local.Load(), l.conn
	if e == nil && c == nil && l.ctx.Err() == nil {
		l.watches = append(l.watches, watches...)
	}
	l.mu.Unlock()
	switch {
	case e != nil:
		e.register(watches)
	case c != nil:
		l.register(c.register(watches))
	case l.ctx.Err() != nil:
		for _, w := range watches {
			w.end(&kv.Error{Code: kv.CodeOperationCancelled, Cause: errClosed})
		}
	}
}

// run keeps the link up, from connection to connection, until this process has the database or Close ends it.
func (l *link) run(c *conn) {
	defer close(l.ended)
	defer l.seen.close()
	for c != nil {
		err := c.read()
		l.lose(c, err)
		c = l.again()
	}
}

// lose takes back what was under way on a connection that has ended.
func (l *link) lose(c *conn, err error) {
	// From here on no call begins an operation on c.
	l.mu.Lock()
	l.conn = nil
	l.mu.Unlock()
	commits, watches := c.end(fmt.Errorf("embedded: connection lost: %w", err))
	l.mu.Lock()
	defer l.mu.Unlock()
	l.unsettled = append(l.unsettled, commits...)
	l.watches = append(l.watches, watches...)
}

// unservedLimit is how long a folder that this process cannot open may be without a process that has it, until calls
// end with the reason. A shorter wait is no proof: another client may be about to take over.
const unservedLimit = 2 * time.Second

// The waits between two attempts to find the database.
const (
	firstRetry = 2 * time.Millisecond
	lastRetry  = 100 * time.Millisecond
)

// again finds the database. It returns a connection to the process that has it open. It returns nil if this process has
// opened the database itself, or if the link was closed.
func (l *link) again() *conn {
	var unserved time.Duration // the time in which this process could not open the folder, and no other had it
	last := time.Now()
	for wait := firstRetry; l.ctx.Err() == nil; wait = min(2*wait, lastRetry) {
		c, e, err := l.folder.join(l.ctx, l)
		if err == nil {
			l.rest = rest{}
			l.join(c, e)
			return c
		}
		if l.ctx.Err() != nil {
			return nil // the error may be that of the context, and says nothing about the folder
		}
		var own *unservable
		now := time.Now()
		if errors.Is(err, ErrLocked) && !errors.As(err, &own) {
			// Another process has the folder, and may be about to serve it: this time does not count. The time counted
			// before stays, because the other process may be a client that cannot open the folder either.
			l.fail(err, 0)
		} else {
			unserved += now.Sub(last)
			l.fail(err, unserved)
		}
		last = now
		select {
		case <-time.After(wait/2 + rand.N(wait)):
		case <-l.ctx.Done():
		}
	}
	return nil
}

// rest is the time in which a process that could not open the folder does not try again, because each try may read the
// whole file. In that time it still connects to a process that has the folder. The rest is over when the file has
// changed.
type rest struct {
	err   error // why the folder could not be opened
	file  sign  // at that time
	pause time.Duration
	until time.Time
}

// The pauses of a rest. Each pause is four times as long as the one before.
const (
	firstPause = 200 * time.Millisecond
	lastPause  = 30 * time.Second
)

func (r *rest) lasts(file sign) bool {
	return r.err != nil && time.Now().Before(r.until) && file.equal(r.file)
}

// after notes the end of an attempt to open the folder. A file that another process has does not need a rest, because
// it is not read.
func (r *rest) after(err error, file sign) {
	if err == nil || errors.Is(err, ErrLocked) {
		*r = rest{}
		return
	}
	pause := min(max(4*r.pause, firstPause), lastPause)
	*r = rest{err, file, pause, time.Now().Add(pause)}
}

// join continues with a new connection, or with the database in this process. Either proves that every earlier commit
// is settled. The earlier server has ended, or the server has confirmed that no commit of this client's earlier
// connection can still happen.
func (l *link) join(c *conn, e *engine) {
	l.mu.Lock()
	l.conn, l.failed = c, nil
	if e != nil {
		l.db.local.Store(e)
	}
	unsettled, waiting, watches := l.unsettled, l.waiting, l.watches
	l.unsettled, l.waiting, l.watches = nil, nil, nil
	l.signal()
	closing := l.ctx.Err() != nil
	l.mu.Unlock()
	if closing && c != nil {
		_ = c.Close() // Close has seen no connection, and waits for the end of run
	}
	l.register(watches)
	l.settle(unsettled, errSettled)
	for _, m := range waiting {
		l.submit(m)
	}
}

// signal wakes those who wait for a change.
func (l *link) signal() {
	close(l.changed)
	l.changed = make(chan struct{})
}

// fail notes why the database cannot be opened. It does so at once if the cause is permanent. Otherwise it does so if
// for unservedLimit, in all, this process could not open the folder, and no other process had it.
func (l *link) fail(err error, unserved time.Duration) {
	var own *unservable
	lasts := errors.Is(err, ErrCorrupt) || errors.Is(err, ErrNewerFormat) || errors.Is(err, errProtocol) ||
		errors.Is(err, ErrGone) && errors.As(err, &own) // else the process that serves may put it right
	if !lasts && unserved <= unservedLimit {
		return
	}
	l.mu.Lock()
	l.failed = err
	unsettled, waiting := l.unsettled, l.waiting
	l.unsettled, l.waiting = nil, nil
	l.signal()
	l.mu.Unlock()
	outcome := errSettled
	if !errors.As(err, &own) && !errors.Is(err, errProtocol) {
		// The process that has served before may live, and may still commit: this error comes before the folder's lock.
		outcome = &kv.Error{Code: kv.CodeOperationCancelled, InFlight: true, Cause: err}
	}
	l.settle(unsettled, outcome)
	l.settle(waiting, &kv.Error{Code: kv.CodeIOError, Cause: err})
}

// errSettled is the error of a commit that has landed or never will, because the process that it was sent to has ended
// or has dropped it.
var errSettled = &kv.Error{Code: kv.CodeCommitUnknownResult, Cause: errLost.Cause}

// settle ends commits with err.
func (l *link) settle(commits []*commit, err error) {
	for _, m := range commits {
		m.err = err
		m.finish(l)
	}
}

// closeLimit bounds how long Close waits for the answers to commits.
const closeLimit = time.Second

// close ends the link. It first waits for the answers to commits that were sent, for closeLimit at most.
func (l *link) close() {
	l.mu.Lock()
	c := l.conn
	l.mu.Unlock()
	for until := time.Now().Add(closeLimit); c != nil && c.pending() && time.Now().Before(until); {
		select {
		case <-c.ended:
		case <-time.After(firstRetry):
		}
	}
	l.cancel()
	l.mu.Lock()
	c = l.conn // perhaps a new one; join closes one that comes later
	l.mu.Unlock()
	if c != nil {
		_ = c.Close()
	}
	<-l.ended
	l.mu.Lock()
	unsettled, waiting, watches := l.unsettled, l.waiting, l.watches
	l.unsettled, l.waiting, l.watches = nil, nil, nil
	l.signal()
	l.mu.Unlock()
	closed := &kv.Error{Code: kv.CodeOperationCancelled, Cause: errClosed}
	l.settle(unsettled, &kv.Error{Code: kv.CodeOperationCancelled, InFlight: true, Cause: errClosed})
	l.settle(waiting, closed)
	for _, w := range watches {
		w.end(closed)
	}
}
