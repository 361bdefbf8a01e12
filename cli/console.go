package cli

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/spf13/cobra"

	"fdbfifo/console"
	"fdbfifo/internal/doors"
	"fdbfifo/kv"
)

// consoleFlags are the flags of console.
type consoleFlags struct {
	door
	readOnly bool
	hosts    []string
	idle     time.Duration
}

const consoleHelp = `Serve a web page that shows which groups of the queues are blocked, why, and the remedies that
fit.

It prints a link with a random token, and listens on this machine alone (127.0.0.1) unless --tls-cert and --tls-key are
given. Without an open page it reads nothing from the database. It reads and acts like the commands of the same names.
It prints each action to stderr, with the operator's name, and never a body or a header. A session ends with Log out,
and after --idle without a click.

A proxy can name the user in a header that it sets itself: --user-header X-User --operators ann,bob. Users who are no
operators may look, but see no bodies. The console must know that a request comes from the proxy, by one of: a secret
that the proxy sends in the header Fdbfifo-Proxy-Secret (--proxy-secret), a Unix socket that only the proxy can open
(--listen unix:PATH), a certificate of the proxy (--tls-client-ca). A request that has one of the headers twice is
refused.`

func newConsoleCmd(s *session) *cobra.Command {
	var f consoleFlags
	c := &cobra.Command{
		Use:   "console [--listen ADDR] [flags]",
		Short: "Serve a web page: what is blocked, why, and the remedies",
		Long:  consoleHelp,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := f.check(); err != nil {
				return err
			}
			if f.idle < 0 {
				return usagef("--idle is %s: 0s or more is wanted", f.idle)
			}
			if err := s.lasting(); err != nil {
				return err
			}
			return s.withEngine(c.Context(), false, func(db kv.DB) error { return s.console(c.Context(), db, f) })
		},
	}
	s.beside.addMetrics(c)
	c.Flags().StringVar(&f.listen, "listen", "127.0.0.1:7411",
		"the `ADDRESS` to listen on, or unix:PATH; port 0 = any that is free")
	c.Flags().BoolVar(&f.readOnly, "read-only", false, "show, and do nothing")
	c.Flags().StringSliceVar(&f.hosts, "host", nil, "also answer requests to this `NAME`, with its port (repeatable)")
	c.Flags().StringVar(&f.userHeader, "user-header", "", "the `HEADER` in which a proxy names the user")
	c.Flags().StringSliceVar(&f.operators, "operators", nil, "the `NAMES` of the users who may act, with --user-header")
	c.Flags().StringVar(&f.secretFile, "proxy-secret", "", "the `FILE` with the secret that the proxy sends")
	c.Flags().StringVar(&f.socketMode, "socket-mode", "",
		"the `MODE` of unix:PATH: 0600 (left out), or 0660 for its group, too")
	c.Flags().DurationVar(&f.idle, "idle", console.DefaultIdle,
		"`TIME` without a click after which a session ends; 0 = never")
	c.Flags().StringVar(&f.cert, "tls-cert", "",
		"the `FILE` of the certificate, to listen for other machines; read again when renewed")
	c.Flags().StringVar(&f.key, "tls-key", "", "the `FILE` of its key")
	c.Flags().StringVar(&f.clientCA, "tls-client-ca", "",
		"refuse clients without a certificate of an authority in this `FILE`")
	return c
}

// console serves the console until the context ends.
func (s *session) console(ctx context.Context, db kv.DB, f consoleFlags) (err error) {
	o := console.Options{
		DB: db, Prefix: s.prefix(), ReadOnly: f.readOnly, Now: s.app.Now, Idle: f.idle,
		Logger: slog.New(slog.NewTextHandler(s.stderr, nil)),
	}
	if f.idle == 0 {
		o.Idle = -1
	}
	path := "/"
	if f.userHeader == "" {
		o.Token = console.NewToken()
		path = console.LoginPath(o.Token)
	} else if o.Role, err = f.role(ctx); err != nil {
		return err
	}
	l, err := f.open(ctx, o.Logger)
	if err != nil {
		return err
	}
	o.Hosts = f.door.hosts(l.Addr(), f.hosts)
	h, err := console.New(o)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		err = errors.Join(err, h.Close(ctx))
	}()
	if _, err := fmt.Fprintf(s.stdout, "console: %s%s\n", f.url(l.Addr()), path); err != nil {
		err = &Error{Text: err.Error(), Hint: "The console could not print its link, and served nothing.", Err: err}
		return errors.Join(err, l.Close())
	}
	stop, err := s.beside.start(ctx, s, db, nil)
	if err != nil {
		return errors.Join(err, l.Close())
	}
	defer stop()
	return serve(ctx, l, h, consoleConnections, doors.Console)
}

// The connections of a console and of metrics, where the process may open enough files.
const consoleConnections, metricsConnections = 256, 64

// serve serves a handler until the context ends, at most most connections at the same time. Time limits bound a slow
// client, so it does not harm other clients. A handler may set its own limit for the answer.
func serve(ctx context.Context, l net.Listener, h http.Handler, most int, share doors.Share) error {
	server := &http.Server{
		Handler: h, ReadHeaderTimeout: 5 * time.Second, ReadTimeout: 30 * time.Second, IdleTimeout: 10 * time.Second,
		WriteTimeout:   time.Minute,
		MaxHeaderBytes: 64 << 10, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
		BaseContext: func(net.Listener) context.Context { return ctx }, // ends the streams
	}
	ended := make(chan error, 1)
	most, _ = doors.Fit(most, share)
	go func() { ended <- doors.Serve(server, l, most) }()
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
