// Package doors bounds the connections of an HTTP server. Clients that are not let in keep no other client out.
package doors

import (
	"container/list"
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"
)

// Patience bounds how long connections without a verified request may keep another one waiting.
const Patience = time.Second

const (
	// backlog is how many connections may wait to be accepted: as many as Linux lets wait at a listener by default.
	backlog = 4096
	// leastPatience is the least time that a connection has for its first verified request.
	leastPatience = Patience / 100
)

// Share is how many of 16 descriptors of the process are for the connections of a door. The database, the files and all
// others have the rest.
type Share int

// The shares of the doors that a process may have at the same time.
const (
	Main    Share = 10 // the SQS port
	Console Share = 2
	Metrics Share = 1
)

// Fit returns how many connections a door may have that asks for most, and how many files the process may open. 0 =
// there is no such limit.
func Fit(most int, s Share) (fit, descriptors int) {
	descriptors = limit()
	if descriptors == 0 {
		return most, 0
	}
	return max(1, min(most, descriptors/16*int(s))), descriptors
}

// Serve serves clients at l as server.Serve does, at most most connections at the same time.
func Serve(server *http.Server, l net.Listener, most int) error {
	places := newConnections(l, most)
	server.ConnState, server.ConnContext = places.changed, places.mark
	return server.Serve(places)
}

// connections are a listener that has a number of connections at most. If there are more, a new one takes the place of
// another: see first.
type connections struct {
	net.Listener
	most    int
	left    chan struct{} // told of a connection that was closed
	closed  context.Context
	refuses context.CancelFunc

	mu  sync.Mutex // guards the fields below, and all connections
	all map[net.Conn]*connection
	// strangers have had no verified request. idle had one before, and has none at work now. Both begin with the
	// connection that has been in the list for longest.
	strangers, idle list.List
}

// connection is one connection of connections.
type connection struct {
	net.Conn
	known bool       // has had a verified request
	in    *list.List // strangers or idle; nil while a verified request is at work
	at    *list.Element
	since time.Time // when it came into the list, or to its end
}

func newConnections(l net.Listener, most int) *connections {
	c := &connections{Listener: l, most: most, left: make(chan struct{}, 1), all: make(map[net.Conn]*connection)}
	c.closed, c.refuses = context.WithCancel(context.Background())
	return c
}

// Close closes the listener. The connections stay.
func (l *connections) Close() error {
	l.refuses()
	return l.Listener.Close()
}

// Accept waits for a connection, and for a place for it.
func (l *connections) Accept() (net.Conn, error) {
	conn, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	for {
		wait := l.enter(conn)
		if wait <= 0 {
			return conn, nil
		}
		again := time.NewTimer(wait)
		select {
		case <-l.left:
		case <-again.C:
		case <-l.closed.Done():
			return nil, errors.Join(net.ErrClosed, conn.Close())
		}
		again.Stop()
	}
}

// enter finds a place for a connection: a free one, or that of another connection. If there is none yet, it returns how
// long to wait.
func (l *connections) enter(conn net.Conn) (wait time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.all) >= l.most {
		first, wait := l.first()
		if wait > 0 {
			return wait
		}
		l.remove(first)
		go first.Close() // takes time if the client does not read
	}
	c := &connection{Conn: conn}
	l.all[conn] = c
	c.to(&l.strangers)
	return 0
}

// first returns the connection that must give way next, and how long it may still stay. A stranger gives way before
// others. A stranger may stay for the shorter time the fewer strangers have a place, so that a full backlog of them is
// accepted within Patience: each stays for ten milliseconds if 80 strangers have a place, and for half a second if
// 4,096 have one.
func (l *connections) first() (c *connection, stays time.Duration) {
	in, patience := &l.strangers, max(leastPatience, Patience/2*time.Duration(l.strangers.Len())/backlog)
	if in.Len() == 0 {
		in, patience = &l.idle, Patience
	}
	if in.Len() == 0 {
		return nil, Patience / 20 // each has a verified request at work
	}
	c = in.Front().Value.(*connection)
	return c, patience - time.Since(c.since)
}

// to puts c at the end of a list. nil = a verified request is at work.
func (c *connection) to(in *list.List) {
	if c.in != nil {
		c.in.Remove(c.at)
	}
	if c.in = in; in != nil {
		c.at, c.since = in.PushBack(c), time.Now()
	}
}

// remove makes the place of c free.
func (l *connections) remove(c *connection) {
	delete(l.all, c.Conn)
	c.to(nil)
}

// changed is the HTTP server's callback for a new state of a connection.
func (l *connections) changed(conn net.Conn, to http.ConnState) {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.all[conn]
	if c == nil {
		return // another has its place
	}
	if c.known { // requests that are refused win no time
		c.to(&l.idle)
	}
	if to == http.StateClosed || to == http.StateHijacked {
		l.remove(c)
		select {
		case l.left <- struct{}{}:
		default:
		}
	}
}

type atWorkKey struct{}

// mark lets AtWork find the connection of a request.
func (l *connections) mark(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, atWorkKey{}, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if c := l.all[conn]; c != nil {
			c.known = true
			c.to(nil)
		}
	})
}

// AtWork says that a request is verified: its connection keeps its place until the answer is sent.
func AtWork(r *http.Request) {
	if mark, ok := r.Context().Value(atWorkKey{}).(func()); ok {
		mark()
	}
}
