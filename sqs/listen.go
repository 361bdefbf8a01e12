package sqs

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"fdbfifo/internal/doors"
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
// finished, for up to ten seconds, and l and the server are closed, which ends the requests that are left. most bounds
// the connections that are served at the same time; 0 = DefaultConnections. They are fewer if the process may open few
// files. If there are more, a new one takes the place of one that has had no verified request at work for a second, or
// waits.
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
	fit, descriptors := doors.Fit(most, doors.Main)
	if fit < most {
		s.options.Logger.Warn("sqs: fewer connections than asked for, because the process may open few files",
			"connections", fit, "asked", most, "files", descriptors,
			"remedy", "raise the limit of open files: ulimit -n, or LimitNOFILE of systemd")
	}
	server := &http.Server{
		Handler: s.routes(), ReadHeaderTimeout: headerTimeout, ReadTimeout: bodyTimeout, WriteTimeout: answerTimeout,
		IdleTimeout: keepFor, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(s.options.Logger.Handler(), slog.LevelDebug),
	}
	failed := make(chan error, 1)
	go func() {
		failed <- doors.Serve(server, l, fit)
		close(failed)
	}()
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
	err = errors.Join(err, s.Close(end))
	<-failed // so l is closed, also if ctx ended before the server began
	return err
}

// routes returns the handler of the API and of the health and readiness paths.
func (s *Server) routes() http.Handler {
	health := http.NewServeMux()
	health.HandleFunc("GET "+healthPath, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	health.HandleFunc("GET "+readyPath, func(w http.ResponseWriter, r *http.Request) {
		// The request's context ends when the client ends its side of the connection, as some probes do at once.
		ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), healthyIn)
		defer cancel()
		if err := s.Ready(ctx); err != nil || s.stopped.Err() != nil {
			http.Error(w, "not ready", http.StatusServiceUnavailable)
			return
		}
		fmt.Fprintln(w, "ok")
	})
	var open http.Handler = health
	if s.options.Keys == nil {
		open = hosts.Guard(health, s.host)
	}
	// Without a mux, which would answer a path with two slashes by a redirect that SDKs do not follow.
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		isGet := r.Method == http.MethodGet || r.Method == http.MethodHead
		if isGet && (r.URL.Path == healthPath || r.URL.Path == readyPath) {
			open.ServeHTTP(w, r)
			return
		}
		s.ServeHTTP(w, r)
	})
}
