package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"fdbfifo/console"
	"fdbfifo/kv"
)

// consoleFlags are the flags of console.
type consoleFlags struct {
	listen     string
	readOnly   bool
	hosts      []string
	userHeader string
	operators  []string
	cert, key  string
}

const consoleHelp = `Serve a web page that shows which groups of the queues are blocked, why, and the remedies that fit.

It prints a link with a random token, and listens on this machine alone (127.0.0.1) unless --tls-cert and --tls-key are
given. While nobody looks it asks the database for nothing. It reads and acts like the commands of the same names, and
prints each action to stderr, with who did it; bodies and headers never.

Behind a proxy that says who somebody is, in a header that it sets itself: --user-header X-User --operators ann,bob.
Others may look, but see no bodies.`

func newConsoleCmd(s *session) *cobra.Command {
	var f consoleFlags
	c := &cobra.Command{
		Use:   "console [--listen ADDR] [flags]",
		Short: "Serve a web page: what is blocked, why, and the remedies",
		Long:  consoleHelp,
		RunE: func(c *cobra.Command, _ []string) error {
			if (f.cert == "") != (f.key == "") {
				return usagef("--tls-cert and --tls-key belong together")
			}
			if len(f.operators) > 0 && f.userHeader == "" {
				return usagef("--operators needs --user-header")
			}
			if err := s.lasting(); err != nil {
				return err
			}
			return s.withEngine(c.Context(), false, func(db kv.DB) error { return s.console(c.Context(), db, f) })
		},
	}
	s.beside.addMetrics(c)
	c.Flags().StringVar(&f.listen, "listen", "127.0.0.1:7411", "the `ADDRESS` to listen on; port 0 = any that is free")
	c.Flags().BoolVar(&f.readOnly, "read-only", false, "show, and do nothing")
	c.Flags().StringSliceVar(&f.hosts, "host", nil, "a `NAME` with its port under which it may be asked for too")
	c.Flags().StringVar(&f.userHeader, "user-header", "", "the `HEADER` in which a proxy says who somebody is")
	c.Flags().StringSliceVar(&f.operators, "operators", nil, "the `NAMES` of those who may act, with --user-header")
	c.Flags().StringVar(&f.cert, "tls-cert", "", "the `FILE` of the certificate, to listen for other machines")
	c.Flags().StringVar(&f.key, "tls-key", "", "the `FILE` of its key")
	return c
}

// console serves the console until the context ends.
func (s *session) console(ctx context.Context, db kv.DB, f consoleFlags) (err error) {
	l, err := listenConsole(ctx, f)
	if err != nil {
		return err
	}
	o := console.Options{
		DB: db, Prefix: s.prefix(), ReadOnly: f.readOnly, Hosts: consoleHosts(l.Addr(), f.hosts), Now: s.app.Now,
		Logger: slog.New(slog.NewTextHandler(s.stderr, nil)),
	}
	path := "/"
	if f.userHeader != "" {
		o.Role = headerRole(f)
	} else {
		o.Token = console.NewToken()
		path = console.LoginPath(o.Token)
	}
	h, err := console.New(o)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		err = errors.Join(err, h.Close(ctx))
	}()
	scheme := "http"
	if f.cert != "" {
		scheme = "https"
	}
	if _, err := fmt.Fprintf(s.stdout, "console: %s://%s%s\n", scheme, l.Addr(), path); err != nil {
		return errors.Join(err, l.Close())
	}
	stop, err := s.beside.start(ctx, s, db, nil)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	defer stop()
	return serve(ctx, l, h)
}

// headerRole goes by a header that a proxy has set.
func headerRole(f consoleFlags) func(r *http.Request) (console.Role, string) {
	return func(r *http.Request) (console.Role, string) {
		name := r.Header.Get(f.userHeader)
		switch {
		case name == "":
			return console.Nobody, ""
		case slices.Contains(f.operators, name):
			return console.Operator, name
		}
		return console.Viewer, name
	}
}

// listenConsole listens on this machine alone, or with TLS.
func listenConsole(ctx context.Context, f consoleFlags) (net.Listener, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", f.listen)
	if err != nil {
		return nil, usagef("--listen %s: %w", f.listen, err)
	}
	if f.cert == "" {
		if addr, ok := l.Addr().(*net.TCPAddr); !ok || !addr.IP.IsLoopback() {
			err := usagef("--listen %s is for other machines: give --tls-cert and --tls-key", f.listen)
			return nil, errors.Join(err, l.Close())
		}
		return l, nil
	}
	cert, err := tls.LoadX509KeyPair(f.cert, f.key)
	if err != nil {
		return nil, errors.Join(usagef("--tls-cert: %w", err), l.Close())
	}
	return tls.NewListener(l, &tls.Config{Certificates: []tls.Certificate{cert}, MinVersion: tls.VersionTLS12}), nil
}

// consoleHosts are the names under which the console answers: its address, this machine's, and those given.
func consoleHosts(at net.Addr, more []string) []string {
	hosts := []string{at.String()}
	if _, port, err := net.SplitHostPort(at.String()); err == nil {
		for _, name := range []string{"localhost", "127.0.0.1", "[::1]"} {
			hosts = append(hosts, name+":"+port)
		}
	}
	for _, h := range more {
		hosts = append(hosts, strings.ToLower(h))
	}
	return hosts
}

// serve serves a handler until the context ends. A slow client is bounded, and harms nobody else.
func serve(ctx context.Context, l net.Listener, h http.Handler) error {
	server := &http.Server{
		Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second, IdleTimeout: time.Minute,
		MaxHeaderBytes: 64 << 10, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		BaseContext: func(net.Listener) context.Context { return ctx }, // ends the streams
	}
	ended := make(chan error, 1)
	go func() { ended <- server.Serve(l) }()
	select {
	case err := <-ended:
		return err
	case <-ctx.Done():
	}
	stop, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
	defer cancel()
	if err := server.Shutdown(stop); err != nil {
		_ = server.Close()
	}
	<-ended
	return nil
}
