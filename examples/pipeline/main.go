// Command pipeline is a pipeline in place: seat requests of flights go through four stages of one queue, each stage a
// process of its own, and two of the processes are killed.
//
//	pipeline [run] [-json]                           the proof: four stages, 1,200 requests, two kills
//	pipeline stage -folder F -state NEW              works on the requests in a state
//
// A request is one message from its beginning to its end. The state is a facet of the message, so a stage receives by
// template, and moves the message on by rewriting the state: the message keeps its place among those of its flight. Two
// stages have the same flight in hand at the same time; each handles the flight's requests in order.
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
	"fdbfifo/layer"
	"fdbfifo/worker"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := command(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "pipeline:", err)
		os.Exit(1)
	}
}

// command runs one of the commands.
func command(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	name := "run"
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		name, args = args[0], args[1:]
	}
	flags := flag.NewFlagSet("pipeline "+name, flag.ContinueOnError)
	flags.SetOutput(stderr)
	slog.SetDefault(slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn})))
	switch name {
	case "run":
		return runCommand(ctx, flags, args, stdout, stderr)
	case "stage":
		return stageCommand(ctx, flags, args, stdin, stdout)
	}
	return fmt.Errorf("unknown command %q: there are run, stage", name)
}

// patience is how long a process that has been told to stop waits for the handlers under way.
const patience = 20 * time.Second

// stageCommand is the process of one stage. It says when it works, and ends in good order when ctx or stdin ends.
func stageCommand(
	ctx context.Context, flags *flag.FlagSet, args []string, stdin io.Reader, stdout io.Writer,
) (err error) {
	folder := flags.String("folder", "", "where the database lies; any number of processes may have it open")
	from := flags.String("state", "", "the state of the requests to work on")
	lease := flags.Duration("lease", 30*time.Second, "what a dead process had in hand waits for so long")
	work := flags.Duration("work", 2*time.Millisecond, "how long a request takes")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *folder == "" {
		return errors.New("stage wants -folder")
	}
	s, err := stageOf(*from)
	if err != nil {
		return err
	}
	s.work = *work
	db, err := embedded.OpenDisk(*folder, embedded.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	queue, err := openQueue(ctx, db)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeQueue(ctx, queue)) }()
	worker, err := worker.New(queue, s.handler(), worker.Options{
		Where: s.template(), Batch: 5, Lease: *lease,
	})
	if err != nil {
		return err
	}
	worker.Start()
	fmt.Fprintln(stdout, "working")
	select {
	case <-ctx.Done():
	case <-ended(stdin):
	}
	stopping, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	return worker.Stop(stopping)
}

// ended is closed when r ends: a child does not outlive the process that has started the child.
func ended(r io.Reader) <-chan struct{} {
	done := make(chan struct{})
	go func() {
		defer close(done)
		_, _ = io.Copy(io.Discard, r) // nothing is sent
	}()
	return done
}

func closeQueue(ctx context.Context, q *layer.Queue) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), patience)
	defer cancel()
	return q.Close(ctx)
}
