// Package doors bounds the connections of an HTTP server. Clients that are not let in keep no other client out.
package doors

import (
	"context"
	"errors"
	"net"
	"net/http"
	"sync"
	"time"
)

// Patience is how long a connection without a verified request may keep another one waiting.
const Patience = time.Second

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
// one that has had no verified request at work for longer than Patience.
type connections struct {
	net.Listener
	most    int
	left    chan struct{} // told of a connection that was closed
	closed  context.Context
	refuses context.CancelFunc

	mu  sync.Mutex
	all map[net.Conn]*connection // guarded by mu
}

// connection is one connection of connections. All fields are guarded by connections.mu.
type connection struct {
	// since is the last of these times: it was accepted, its last verified request ended, it began another request
	// after that.
	since  time.Time
	atWork bool // on a verified request
	known  bool // had such a request before
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
	for !l.enter(conn) {
		again := time.NewTimer(Patience / 20)
		select {
		case <-l.left:
		case <-again.C:
		case <-l.closed.Done():
			return nil, errors.Join(net.ErrClosed, conn.Close())
		}
		again.Stop()
	}
	return conn, nil
}

// enter finds a place for a connection: a free one, or that of the connection that has been without a verified request
// for longest, among those that never had one if there are any.
func (l *connections) enter(conn net.Conn) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	if len(l.all) >= l.most {
		var first net.Conn
		for other, c := range l.all {
			if !c.atWork && (first == nil || c.before(l.all[first])) {
				first = other
			}
		}
		if first == nil || now.Sub(l.all[first].since) < Patience {
			return false
		}
		delete(l.all, first)
		go first.Close() // takes time if the client does not read
	}
	l.all[conn] = &connection{since: now}
	return true
}

// before reports whether c must give way before other.
func (c *connection) before(other *connection) bool {
	if c.known != other.known {
		return other.known
	}
	return c.since.Before(other.since)
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
		c.since, c.atWork = time.Now(), false
	}
	if to == http.StateClosed || to == http.StateHijacked {
		delete(l.all, conn)
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
			c.atWork, c.known = true, true
		}
	})
}

// AtWork says that a request is verified: its connection keeps its place until the answer is sent.
func AtWork(r *http.Request) {
	if mark, ok := r.Context().Value(atWorkKey{}).(func()); ok {
		mark()
	}
}
