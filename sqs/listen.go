package sqs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"time"

	"fdbfifo/internal/hosts"
)

const (
	// DefaultConnections is how many connections Serve serves at the same time if most is 0.
	DefaultConnections = 4096

	headerTimeout = 10 * time.Second
	bodyTimeout   = 60 * time.Second
	// answerTimeout bounds a request from its header on: a wait of 20 s, the work, and a client that reads slowly.
	answerTimeout = 2 * time.Minute
	// keepFor is longer than clients keep connections that they do not use.
	keepFor = 3 * time.Minute
	// maxHeader bounds the URL and the header, with 4 KiB that the HTTP server adds. A connection uses a few times as
	// much memory before the server knows its client.
	maxHeader  = 12 << 10 // bytes
	healthyIn  = 3 * time.Second
	graceful   = 10 * time.Second
	healthPath = "/health"
	readyPath  = "/ready"
)

// Serve serves clients at l until ctx ends. Then waiting receives return without messages, requests under way are
// finished, for up to ten seconds, and the server is closed. most bounds the connections that are served at the same
// time; 0 = DefaultConnections. If there are more, a new one takes the place of one that has had no verified request at
// work for a second, or waits.
//
// Errors: the options have no Keys, and l is not on this machine alone (Options.Open); or they have Open and Keys.
// Serve then closes l and the server.
func (s *Server) Serve(ctx context.Context, l net.Listener, most int) error {
	if err := s.checkListener(l); err != nil {
		return errors.Join(err, l.Close(), s.Close(ctx))
	}
	if most <= 0 {
		most = DefaultConnections
	}
	places := newConnections(l, most)
	server := &http.Server{
		ConnState: places.changed, ConnContext: places.mark,
		Handler: s.routes(), ReadHeaderTimeout: headerTimeout, ReadTimeout: bodyTimeout, WriteTimeout: answerTimeout,
		IdleTimeout: keepFor, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(s.options.Logger.Handler(), slog.LevelDebug),
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(places) }()
	var err error
	select {
	case err = <-failed:
	case <-ctx.Done():
	}
	s.Stop()
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), graceful)
	defer cancel()
	if e := server.Shutdown(end); e != nil {
		err = errors.Join(err, server.Close())
		// The clients have used up the time that the queues need to be closed.
		end, cancel = context.WithTimeout(context.WithoutCancel(ctx), graceful)
		defer cancel()
	}
	return errors.Join(err, s.Close(end))
}

// routes returns the handler of the API and of the health and readiness paths.
func (s *Server) routes() http.Handler {
	health, mux := http.NewServeMux(), http.NewServeMux()
	health.HandleFunc("GET "+healthPath, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	health.HandleFunc("GET "+readyPath, func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), healthyIn)
		defer cancel()
		if err := s.Ready(ctx); err != nil || s.stopped.Err() != nil {
			http.Error(w, "not ready", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	mux.Handle("/", s)
	for _, path := range []string{healthPath, readyPath} {
		if s.options.Keys == nil {
			mux.Handle("GET "+path, hosts.Guard(health, s.host))
		} else {
			mux.Handle("GET "+path, health)
		}
	}
	return mux
}

// connections are a listener that has a number of connections at most. If there are more, a new one takes the place of
// one that has had no verified request at work for longer than patience.
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
		again := time.NewTimer(patience / 20)
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
		if first == nil || now.Sub(l.all[first].since) < patience {
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

// mark lets atWork find the connection of a request.
func (l *connections) mark(ctx context.Context, conn net.Conn) context.Context {
	return context.WithValue(ctx, atWorkKey{}, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if c := l.all[conn]; c != nil {
			c.atWork, c.known = true, true
		}
	})
}

// atWork says that a request is verified: its connection keeps its place until the answer is sent.
func atWork(r *http.Request) {
	if mark, ok := r.Context().Value(atWorkKey{}).(func()); ok {
		mark()
	}
}
