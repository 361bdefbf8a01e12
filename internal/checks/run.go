package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// result is the verdict of a target.
type result struct {
	target string
	err    error // nil = the target passed
	took   time.Duration
	log    string   // the path of the log, if the target failed
	lines  []string // the first lines that tell of the failure
}

type runner struct {
	out     string
	limit   time.Duration
	command func(target string) *exec.Cmd
	print   io.Writer
	mu      sync.Mutex // print: one target at a time
}

// run runs the targets, together of them at a time, and returns their results in the order of the targets. When ctx has
// ended, no further target begins.
func (r *runner) run(ctx context.Context, targets []string, together int) []result {
	results := make([]result, len(targets))
	free := make(chan struct{}, max(together, 1))
	var all sync.WaitGroup
	for i, target := range targets {
		free <- struct{}{}
		all.Go(func() {
			results[i] = r.one(ctx, target)
			<-free
		})
	}
	all.Wait()
	return results
}

// one runs a target, prints its output, and keeps its log if it failed.
func (r *runner) one(ctx context.Context, target string) result {
	if err := ctx.Err(); err != nil {
		return result{target: target, err: err}
	}
	ctx, cancel := context.WithTimeoutCause(ctx, r.limit, errLimit)
	defer cancel()
	begun := time.Now()
	var log bytes.Buffer
	err := execute(ctx, r.command(target), &log)
	if err != nil && ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	done := result{target: target, err: err, took: time.Since(begun)}
	r.mu.Lock()
	defer r.mu.Unlock()
	verdict := "ok"
	if err != nil {
		verdict = "FAILED"
		done.lines = failedLines(log.String())
		path, keepErr := r.keep(target, log.Bytes())
		if done.log = path; keepErr != nil {
			done.log = fmt.Sprintf("not kept: %v", keepErr)
		}
	}
	fmt.Fprintf(r.print, "\n=== make %s: %s, %.0f s\n", target, verdict, done.took.Seconds())
	r.print.Write(log.Bytes())
	return done
}

func makeTarget(target string) *exec.Cmd { return exec.Command("make", "--no-print-directory", target) }

// execute runs a command in a process group of its own. When ctx ends the whole group is killed.
func execute(ctx context.Context, c *exec.Cmd, output io.Writer) error {
	c.Stdout, c.Stderr = output, output
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.WaitDelay = 10 * time.Second
	if err := c.Start(); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { syscall.Kill(-c.Process.Pid, syscall.SIGKILL) })
	defer stop()
	return c.Wait()
}

// failed matches the lines that only a failure prints, also the command that replays a random test. located matches the
// lines with a place in the code: a compiler prints such a line for an error, and a test for each text that it logs.
var (
	failed = regexp.MustCompile(`^\s*--- FAIL|^FAIL\s|^panic: |^fatal error: |WARNING: DATA RACE|VIOLATION|` +
		`^\s*(Error:|Messages:)|^not formatted|^make.*\*\*\*|replay: `)
	located = regexp.MustCompile(`^\s*\S+\.go:\d+(:\d+)?: `)
)

const maxFailedLines = 20

// failedLines returns the first lines of a log that tell of the failure, in the order of the log. If there are few that
// only a failure prints, the first of the others join them.
func failedLines(log string) []string {
	all := slices.Collect(strings.Lines(log))
	var chosen []int
	for _, tells := range []*regexp.Regexp{failed, located} {
		for i, line := range all {
			if len(chosen) < maxFailedLines && tells.MatchString(line) && !slices.Contains(chosen, i) {
				chosen = append(chosen, i)
			}
		}
	}
	slices.Sort(chosen)
	lines := make([]string, len(chosen))
	for n, i := range chosen {
		if lines[n] = strings.TrimRight(all[i], "\r\n"); len(lines[n]) > 300 {
			lines[n] = lines[n][:300] + " …"
		}
	}
	return lines
}
