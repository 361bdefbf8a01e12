package cli

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"fdbfifo/internal/hosts"
	"fdbfifo/kv"
	"fdbfifo/sqs"
)

// serveFlags are the flags of serve.
type serveFlags struct {
	address     string
	keys        string
	cert, key   string
	queues      string
	connections int
	visibility  string
	verbose     bool
	options     sqs.Options
}

const serveHelp = `Serve the queues to programs that speak Amazon SQS: any AWS SDK, the AWS CLI, and programs that
use them. Give the client the address as its endpoint; without --keys any access key will do.

Queues that such programs make are queues like any other, for all commands and for Go programs. Several servers may
serve one cluster, or one folder on this machine.

Without --keys the server listens on this machine alone (127.0.0.1, ::1 or localhost), and answers to these names and
the host of --url; any other is answered with 421. The file of --keys has an access key, its secret and, if wanted, an
account of 12 digits on each line; requests are then verified by their signatures. A key of another account than
--account may do with a queue what the queue's policy allows (AddPermission).

The file of --queues is a list of queues, as JSON, that are made at the start, or set as the file has them:

  [{"name": "dead.fifo"},
   {"name": "orders.fifo", "attributes": {"VisibilityTimeout": 60,
      "RedrivePolicy": {"deadLetterTargetArn": "dead.fifo", "maxReceiveCount": 5}}}]

GET /health says that the server runs, GET /ready that its database answers. Ctrl-C ends waiting receives and
finishes the calls that are under way.`

func newServeCmd(s *session) *cobra.Command {
	var f serveFlags
	c := &cobra.Command{
		Use:   "serve --sqs ADDRESS [flags]",
		Short: "Serve the queues to programs that speak Amazon SQS",
		Long:  serveHelp,
		Example: `  fdbfifo serve --sqs 127.0.0.1:9324
  aws --endpoint-url http://127.0.0.1:9324 sqs create-queue --queue-name orders.fifo --attributes FifoQueue=true`,
		RunE: func(c *cobra.Command, _ []string) error { return s.serve(c.Context(), &f) },
	}
	flags := c.Flags()
	flags.StringVar(&f.address, "sqs", "", "listen at `HOST:PORT`; 127.0.0.1:9324 is usual")
	flags.StringVar(&f.keys, "keys", "", "verify requests by the keys in `FILE`")
	flags.StringVar(&f.queues, "queues", "", "make the queues in `FILE`, or set them as it has them")
	flags.StringVar(&f.cert, "tls-cert", "", "speak TLS, with the certificates in `FILE`, read again when renewed")
	flags.StringVar(&f.key, "tls-key", "", "the `FILE` of the certificate's key")
	flags.StringVar(&f.options.URL, "url", "",
		"begin the URLs of queues with `URL`, for clients behind a proxy; left out, with the host of the request")
	flags.StringVar(&f.options.Region, "region", "us-east-1", "the `REGION` in ARNs")
	flags.StringVar(&f.options.Account, "account", "000000000000", "the `ACCOUNT` in ARNs and URLs")
	flags.BoolVar(&f.options.ReuseNames, "reuse-names", false,
		"let a queue be made at once under the name of a deleted one; AWS wants a minute between")
	flags.StringVar(&f.visibility, "visibility", "item",
		"give new FIFO queues one visibility timeout per message, as AWS does (item), or per receive (claim): `PER`; "+
			"the attribute fdbfifo.Visibility of CreateQueue overrides it; fixed when the queue is made")
	flags.IntVar(&f.connections, "connections", sqs.DefaultConnections, "serve at most `N` connections at a time")
	flags.BoolVar(&f.verbose, "verbose", false, "tell of each request, without bodies")
	s.beside.add(c)
	return c
}

func (s *session) serve(ctx context.Context, f *serveFlags) error {
	host, _, err := net.SplitHostPort(f.address)
	if f.address == "" || err != nil {
		return usagef("--sqs is %q: HOST:PORT is wanted, such as 127.0.0.1:9324", f.address)
	}
	if f.connections < 1 {
		return usagef("--connections is %d: 1 or more is wanted", f.connections)
	}
	u, err := url.Parse(f.options.URL)
	if err != nil || f.options.URL != "" && (u.Scheme != "http" && u.Scheme != "https" || u.Host == "") {
		return usagef("--url is %q: http://HOST or https://HOST is wanted, with a port if there is one", f.options.URL)
	}
	if len(f.options.Account) != 12 || strings.Trim(f.options.Account, "0123456789") != "" {
		return usagef("--account is %q: 12 digits are wanted", f.options.Account)
	}
	switch f.visibility {
	case "item":
	case "claim":
		f.options.VisibilityPerClaim = true
	default:
		return usagef("--visibility is %q: claim or item is wanted", f.visibility)
	}
	if (f.cert == "") != (f.key == "") {
		return usagef("--tls-cert and --tls-key need each other: give both")
	}
	if f.keys == "" && !hosts.Local(host) {
		return usagef("--sqs: %q is not of this machine alone: give --keys, or listen on 127.0.0.1 or ::1", host)
	}
	if f.keys != "" {
		read := func() (map[string]sqs.Key, error) { return readKeys(f.keys) }
		if f.options.Keys, err = waitFor(ctx, read); err != nil {
			return err
		}
	}
	s.warnOfOpen("--keys", f.keys)
	s.warnOfOpen("--tls-key", f.key)
	var declared []sqs.Declared
	if f.queues != "" {
		if declared, err = waitFor(ctx, func() ([]sqs.Declared, error) { return readQueues(f.queues) }); err != nil {
			return err
		}
	}
	return s.withEngine(ctx, true, func(db kv.DB) error { return s.listen(ctx, db, f, declared) })
}

// warnOfOpen warns of a file of secrets that all users of this machine can read. In a container that may be meant.
func (s *session) warnOfOpen(flag, path string) {
	if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() && isOpen(info) {
		s.notice("%s: %s can be read or written by all users of this machine: run chmod o= %s", flag, path, path)
	}
}

func readQueues(path string) ([]sqs.Declared, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, usagef("--queues: %w", err)
	}
	defer file.Close()
	in, err := utf8Text(file)
	if err != nil {
		return nil, usagef("--queues: %s: %w", path, err)
	}
	declared, err := sqs.ReadQueues(in)
	if err != nil {
		return nil, usagef("--queues: %s: %w", path, err)
	}
	return declared, nil
}

func readKeys(path string) (map[string]sqs.Key, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, usagef("--keys: %w", err)
	}
	defer file.Close()
	in, err := utf8Text(file)
	if err != nil {
		return nil, usagef("--keys: %s: %w", path, err)
	}
	keys, err := sqs.ReadKeys(in)
	if err == nil && len(keys) == 0 {
		err = fmt.Errorf("there are no keys in it")
	}
	if err != nil {
		return nil, usagef("--keys: %s: %w", path, err)
	}
	return keys, nil
}

// listen serves until ctx ends, which is no failure.
func (s *session) listen(ctx context.Context, db kv.DB, f *serveFlags, declared []sqs.Declared) (err error) {
	level := slog.LevelWarn
	if f.verbose {
		level = slog.LevelDebug
	}
	o := f.options
	o.Prefix, o.Now = s.prefix(), s.app.Now
	o.Logger = slog.New(slog.NewTextHandler(s.stderr, &slog.HandlerOptions{Level: level}))
	var secure *certificate
	if f.cert != "" {
		read := func() (*certificate, error) { return readCertificate(f.cert, f.key, o.Logger) }
		if secure, err = waitFor(ctx, read); err != nil {
			return usagef("--tls-cert: %w", err)
		}
	}
	l, err := net.Listen("tcp", f.address)
	if err != nil {
		return err
	}
	scheme := "http"
	if secure != nil {
		l, scheme = tls.NewListener(l, &tls.Config{GetCertificate: secure.get, MinVersion: tls.VersionTLS12}), "https"
	}
	if s.inMemory() {
		s.notice("the queues are kept in memory, and are gone when this ends")
	}
	server := sqs.NewServer(db, o)
	if err := server.Declare(ctx, declared); err != nil {
		var refused *sqs.RefusedError
		if errors.As(err, &refused) {
			err = usagef("--queues: %s: %w", f.queues, err)
		}
		return errors.Join(err, l.Close(), server.Close(ctx))
	}
	stop, err := s.beside.start(ctx, s, db, nil)
	if err != nil {
		return errors.Join(err, l.Close(), server.Close(ctx))
	}
	defer stop()
	s.notice("serving SQS at %s://%s", scheme, l.Addr())
	return server.Serve(ctx, l, f.connections)
}
