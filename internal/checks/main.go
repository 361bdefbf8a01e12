// Command checks runs make targets, continues after a failure, and ends with a table: target, verdict, seconds, and the
// first failed lines of each failed target.
//
//	go run ./internal/checks [flags] TARGET ...
//
// The targets of -first run alone, in their order, before the others: they write files that the others read. Those of
// -last run alone after the others: they need the whole machine. Of the others, -together run at a time. The output
// of a target is printed when the target has ended; the log of a failed target is kept in the folder of -out. The
// exit code is 1 if a target failed.
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
	"slices"
	"strings"
	"syscall"
	"time"
)

func main() {
	first := flag.String("first", "", "targets that run alone, before the others, separated by blanks")
	last := flag.String("last", "", "targets that run alone, after the others, separated by blanks")
	together := flag.Int("together", 2, "number of targets that run at a time")
	out := flag.String("out", "bin/failed", "folder for the logs of failed targets")
	limit := flag.Duration("limit", 40*time.Minute, "time after which a target is ended, and has failed")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	r := &runner{out: *out, limit: *limit, command: makeTarget, print: os.Stdout}
	results := slices.Concat(r.run(ctx, strings.Fields(*first), 1), r.run(ctx, flag.Args(), *together),
		r.run(ctx, strings.Fields(*last), 1))
	if err := ctx.Err(); err != nil {
		fmt.Fprintln(os.Stderr, "checks: stopped")
		os.Exit(1)
	}
	if failed := table(os.Stdout, results, os.Getenv("SEED")); failed > 0 {
		os.Exit(1)
	}
}

// keep stores the log of a failed target, and returns its path.
func (r *runner) keep(target string, log []byte) (string, error) {
	if err := os.MkdirAll(r.out, 0o755); err != nil {
		return "", err
	}
	path := filepath.Join(r.out, target+".log")
	return path, os.WriteFile(path, log, 0o644)
}

// table prints a row for each result, the first failed lines of the failed targets, and how many passed and failed.
func table(w io.Writer, results []result, seed string) (failed int) {
	fmt.Fprintf(w, "\n%-16s %-8s %8s\n", "target", "verdict", "seconds")
	for _, r := range results {
		verdict := "ok"
		if r.err != nil {
			verdict = "FAILED"
			failed++
		}
		fmt.Fprintf(w, "%-16s %-8s %8.0f\n", r.target, verdict, r.took.Seconds())
	}
	for _, r := range results {
		if r.err == nil {
			continue
		}
		fmt.Fprintf(w, "\n%s: %v; log: %s; again: make %s", r.target, r.err, r.log, r.target)
		if seed != "" {
			fmt.Fprintf(w, " SEED=%s", seed)
		}
		fmt.Fprintln(w)
		for _, line := range r.lines {
			fmt.Fprintln(w, "  "+line)
		}
	}
	fmt.Fprintf(w, "\n%d passed, %d failed\n", len(results)-failed, failed)
	return failed
}

// errLimit is the cause of a target that ran too long.
var errLimit = errors.New("ran too long")
