// Command orders is a small service on a queue: processes that share a folder and nothing else.
//
//	orders api -folder F [-listen ADDRESS]       takes orders by HTTP, and serves the operator's side
//	orders worker -folder F [-listen ADDRESS]    books them, a customer's in the order in which they came
//	orders verify -folder F                      holds the ledger to the promises
//	orders [run] [-json]                         the proof: one API, two workers, 5,000 orders, four kills
//
// One transaction writes an order's own row and its message. Another writes the ledger's line, the order's new status
// and the ack. So each order is booked once and in turn, whenever a process dies.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"fdbfifo/kv/embedded"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "orders:", err)
		os.Exit(1)
	}
}

// command runs one of the commands.
func command(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	name := "run"
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		name, args = args[0], args[1:]
	}
	flags := flag.NewFlagSet("orders "+name, flag.ContinueOnError)
	flags.SetOutput(stderr)
	slog.SetDefault(slog.New(slog.NewTextHandler(stderr, nil)))
	if name == "run" {
		return runCommand(ctx, flags, args, stdout, stderr)
	}
	p := process{stdout: stdout}
	flags.StringVar(&p.folder, "folder", "", "where the database lies; any number of processes may have it open")
	flags.StringVar(&p.listen, "listen", "127.0.0.1:0", "address of the HTTP server")
	flags.DurationVar(&p.lease, "lease", leaseTime, "what a dead worker had in flight waits for so long")
	child := flags.Bool("child", false, "end when stdin ends, too")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if p.folder == "" {
		return fmt.Errorf("%s wants -folder", name)
	}
	if *child {
		ctx = untilEnd(ctx, stdin)
	}
	switch name {
	case "api":
		return p.run(ctx, p.api)
	case "worker":
		return p.run(ctx, p.worker)
	case "verify":
		return p.verify(ctx)
	}
	return fmt.Errorf("unknown command %q: there are api, worker, verify, run", name)
}

// untilEnd returns a context that ends when r does: a child does not outlive the process that has started the child.
func untilEnd(ctx context.Context, r io.Reader) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		_, _ = io.Copy(io.Discard, r) // nothing is sent
		cancel()
	}()
	return ctx
}

// Times of a process.
const (
	leaseTime = 30 * time.Second
	// patience is how long a process that has been told to stop waits for the requests and handlers under way.
	patience = 20 * time.Second
)

// process is one process of the service.
type process struct {
	folder string
	listen string
	lease  time.Duration
	stdout io.Writer
	db     *embedded.DB
	shop   *shop
}

// run opens the folder, and does the work until ctx ends. It then stops in good order: it takes no more work, finishes
// the work in progress, and closes the handle and then the database.
func (p *process) run(ctx context.Context, work func(ctx context.Context) error) (err error) {
	if p.db, err = embedded.OpenDisk(p.folder, embedded.Options{}); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.db.Close()) }()
	if p.shop, err = openShop(ctx, p.db); err != nil {
		return err
	}
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
		defer cancel()
		err = errors.Join(err, p.shop.queue.Close(ctx))
	}()
	return work(ctx)
}

// verify prints what the ledger holds, and fails if that breaks a promise.
func (p *process) verify(ctx context.Context) error {
	return p.run(ctx, func(ctx context.Context) error {
		l, err := p.shop.audit(ctx)
		if err != nil {
			return err
		}
		v := l.prove(nil)
		fmt.Fprintf(p.stdout, "%d orders, %d waiting, %d dead, %d missing, %d doubled, %d out of order\n",
			v.Orders, l.waiting, l.dead, v.Missing, v.Doubled, v.OutOfOrder)
		return v.err()
	})
}
