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
)

const (
	// DefaultConnections is how many connections are served at the same time unless something else is said.
	DefaultConnections = 4096

	headerTimeout = 10 * time.Second
	bodyTimeout   = 60 * time.Second
	// answerTimeout bounds a request from its header on: a wait of 20 s, the work, and a client that reads slowly.
	answerTimeout = 2 * time.Minute
	// keepFor is longer than clients keep connections that they do not use.
	keepFor    = 3 * time.Minute
	maxHeader  = 64 << 10 // bytes
	healthyIn  = 3 * time.Second
	graceful   = 10 * time.Second
	healthPath = "/health"
	readyPath  = "/ready"
)

// Serve serves clients at l until ctx ends. Then waiting receives return, with no messages, what is under way is
// finished, for up to ten seconds, and the server is closed. connections bounds those that are served at the same
// time, others wait; 0 = DefaultConnections.
func (s *Server) Serve(ctx context.Context, l net.Listener, connections int) error {
	if connections <= 0 {
		connections = DefaultConnections
	}
	mux := http.NewServeMux()
	mux.Handle("/", s)
	mux.HandleFunc("GET "+healthPath, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	mux.HandleFunc("GET "+readyPath, func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), healthyIn)
		defer cancel()
		if err := s.Ready(ctx); err != nil || s.stopped.Err() != nil {
			http.Error(w, "not ready", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	server := &http.Server{
		Handler: mux, ReadHeaderTimeout: headerTimeout, ReadTimeout: bodyTimeout, WriteTimeout: answerTimeout,
		IdleTimeout: keepFor, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(s.options.Logger.Handler(), slog.LevelDebug),
	}
	failed := make(chan error, 1)
	go func() { failed <- server.Serve(&bounded{Listener: l, slots: make(chan struct{}, connections)}) }()
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
	}
	return errors.Join(err, s.Close(end))
}

// bounded is a listener that has a number of connections at most. Those beyond wait in the system's backlog.
type bounded struct {
	net.Listener
	slots chan struct{}
}

func (b *bounded) Accept() (net.Conn, error) {
	b.slots <- struct{}{}
	conn, err := b.Listener.Accept()
	if err != nil {
		<-b.slots
		return nil, err
	}
	return &slotted{Conn: conn, free: sync.OnceFunc(func() { <-b.slots })}, nil
}

// slotted is a connection that has a slot until it is closed.
type slotted struct {
	net.Conn
	free func()
}

func (c *slotted) Close() error {
	defer c.free()
	return c.Conn.Close()
}
