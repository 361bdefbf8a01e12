package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"time"
)

// flaky repeats the targets, and runs twice as many at once as there are processors: each is a load for the others. For
// each test that failed it prints runs, failures and the first log.
func flaky(ctx context.Context, b *book, targets string, runs int, out io.Writer) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	type run struct {
		entry
		log []byte
	}
	todo, done := make(chan string), make(chan run)
	var workers sync.WaitGroup
	for range 2 * runtime.NumCPU() {
		workers.Go(func() {
			for target := range todo {
				e, log := attempt(ctx, target)
				done <- run{e, log}
			}
		})
	}
	go func() {
		for range runs {
			for target := range strings.FieldsSeq(targets) {
				todo <- target
			}
		}
		close(todo)
		workers.Wait()
		close(done)
	}()
	var bad error
	for r := range done {
		if ctx.Err() != nil {
			continue // a run that was stopped says nothing
		}
		fmt.Fprintf(out, "%-12s %5.0f s  %s\n", r.Suite, r.Seconds, strings.Join(r.Failed, " "))
		if bad = b.add(r.entry, r.log); bad != nil {
			stop()
		}
	}
	if bad != nil {
		return bad
	}
	flakyTable(out, b)
	if b.failed() {
		return errFailed
	}
	return nil
}

// event is a line of go test -json.
type event struct{ Action, Package, Test, Output string }

// attempt runs a target once, and names the tests that failed. The log has their output only.
func attempt(ctx context.Context, target string) (entry, []byte) {
	e := entry{Suite: target, At: time.Now()}
	c := exec.CommandContext(ctx, "make", "--no-print-directory", "-s", target, "TEST_FLAGS=-json")
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = 10 * time.Second
	text, err := c.CombinedOutput()
	e.Seconds = time.Since(e.At).Seconds()
	failed, log := failures(text)
	if err != nil && len(failed) == 0 {
		failed, log = []string{target}, text
	}
	e.Failed = failed
	return e, log
}

// failures lists the failed tests in the output of go test -json, with their output. A package that failed without a
// failed test is listed itself: it did not compile, or it panicked.
func failures(text []byte) (failed []string, log []byte) {
	tests, packages, printed := map[string]bool{}, map[string]bool{}, map[string]*bytes.Buffer{}
	lines := bufio.NewScanner(bytes.NewReader(text))
	lines.Buffer(nil, 1<<24)
	for lines.Scan() {
		var v event
		if json.Unmarshal(lines.Bytes(), &v) != nil {
			continue
		}
		test, _, _ := strings.Cut(v.Test, "/")
		name := strings.TrimSuffix(v.Package+"."+test, ".")
		switch {
		case v.Action == "output":
			if printed[name] == nil {
				printed[name] = &bytes.Buffer{}
			}
			printed[name].WriteString(v.Output)
		case v.Action == "fail" && test != "":
			tests[name] = true
		case v.Action == "fail":
			packages[v.Package] = true
		}
	}
	failed = slices.Collect(maps.Keys(tests))
	for name := range packages {
		if !slices.ContainsFunc(failed, func(test string) bool { return strings.HasPrefix(test, name+".") }) {
			failed = append(failed, name)
		}
	}
	slices.Sort(failed)
	var all bytes.Buffer
	for _, name := range failed {
		fmt.Fprintf(&all, "=== %s\n", name)
		if printed[name] != nil {
			all.Write(printed[name].Bytes())
		}
	}
	return failed, all.Bytes()
}

// flakyTable prints what all calls have seen of this code.
func flakyTable(out io.Writer, b *book) {
	runs, failed, first := map[string]int{}, map[string]int{}, map[string]entry{}
	for _, e := range append(b.old[:len(b.old):len(b.old)], b.new...) {
		runs[e.Suite]++
		for _, name := range e.Failed {
			if failed[name]++; failed[name] == 1 {
				first[name] = e
			}
		}
	}
	fmt.Fprintf(out, "\ncode %s; books in %s\n", b.code, b.folder)
	for _, target := range slices.Sorted(maps.Keys(runs)) {
		fmt.Fprintf(out, "%s: %d runs\n", target, runs[target])
	}
	for _, name := range slices.Sorted(maps.Keys(failed)) {
		e := first[name]
		fmt.Fprintf(out, "%s: %d runs, %d failures, first log: %s\n", name, runs[e.Suite], failed[name], e.Log)
	}
	fmt.Fprintf(out, "%d tests failed\n", len(failed))
}
