// Command trials repeats the random suites and the gate's tests for hours, and keeps books on their failures.
//
//	go run ./internal/trials hunt -minutes 60 -out DIR
//	go run ./internal/trials flaky -runs 20 -out DIR
//
// A hunt runs every random suite with fresh seeds, in fair shares of the time. A flaky trial repeats the gate's test
// programs, several at once: they are each other's load. It ends when the book has as many runs of each as it was told.
//
// The books are in the folder of -out, which must lie outside the tree. A later call continues them: its table adds up
// all runs of the same program. So a commit that changes neither the tests of a package nor any code that they use has
// the runs of the commits before it.
//
// The exit code is 1 if a run of this call failed.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"syscall"
	"time"
)

// errFailed says that a trial failed; the table has told which.
var errFailed = errors.New("a trial failed")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	err := run(ctx, os.Args[1:], os.Stdout)
	if err != nil {
		fmt.Fprintln(os.Stderr, "trials:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	if len(args) == 0 {
		return errors.New("usage: trials hunt|flaky [flags]")
	}
	if args[0] == "keep" && len(args) > 2 { // go test starts it, see collect
		return keep(args[1], args[2], args[3:])
	}
	flags := flag.NewFlagSet(args[0], flag.ContinueOnError)
	books := filepath.Join(os.TempDir(), "fdbfifo-trials")
	folder := flags.String("out", books, "folder for the books and the logs of failed runs")
	minutes := flags.Float64("minutes", 60, "hunt: how long; the last runs may end later")
	only := flags.String("only", "", "hunt: the one suite to run; none = all")
	runs := flags.Int("runs", 20, "flaky: how many runs of each program the book shall have")
	targets := flags.String("targets", "test race-gate", "flaky: the targets of make that are repeated")
	if err := flags.Parse(args[1:]); err != nil {
		return err
	}
	b, err := openBook(*folder, args[0])
	if err != nil {
		return err
	}
	defer b.close()
	switch args[0] {
	case "hunt":
		targets, err := fuzzTargets(".")
		if err != nil {
			return err
		}
		all := append(append(suites(), targets...), clusterSuites(out)...)
		return hunt(ctx, b, all, *only, time.Duration(*minutes*float64(time.Minute)), out)
	case "flaky":
		return flaky(ctx, b, *targets, *runs, out)
	}
	return fmt.Errorf("no such trial: %q", args[0])
}
