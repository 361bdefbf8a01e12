package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
)

// flaky runs the test programs of targets of make until the book has as many runs of each. Twice as many programs as
// there are processors run at once, and each runs several tests at once: they are a load for each other.
func flaky(ctx context.Context, b *book, targets string, runs int, out io.Writer) error {
	folder, err := os.MkdirTemp("", "flaky")
	if err != nil {
		return err
	}
	defer os.RemoveAll(folder)
	var all []*suite
	for target := range strings.FieldsSeq(targets) {
		programs, err := collect(ctx, target, filepath.Join(folder, target))
		if err != nil {
			return err
		}
		all = append(all, programs...)
	}
	if err := b.repeat(ctx, all, runs, out); err != nil {
		return err
	}
	b.table(out, all)
	if b.failed() {
		return errFailed
	}
	return nil
}

// repeat runs each suite until the book has as many runs of it. A run that ctx stopped says nothing, and is left out.
func (b *book) repeat(ctx context.Context, all []*suite, runs int, out io.Writer) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	seed, _ := strconv.ParseUint(os.Getenv("SEED"), 10, 64) // none: each program has its own
	type result struct {
		entry
		log []byte
		err error
	}
	todo, done := make(chan *suite), make(chan result)
	var workers sync.WaitGroup
	for range 2 * runtime.NumCPU() {
		workers.Go(func() {
			for s := range todo {
				e, log, err := s.once(ctx, seed)
				done <- result{e, log, err}
			}
		})
	}
	before := map[*suite]int{}
	for _, s := range all {
		before[s] = len(b.runs(all, s.name))
	}
	go func() {
		defer func() {
			close(todo)
			workers.Wait()
			close(done)
		}()
		for run := range runs {
			for _, s := range all {
				if before[s] > run {
					continue
				}
				select {
				case todo <- s:
				case <-ctx.Done():
					return
				}
			}
		}
	}()
	var bad error
	for r := range done {
		if ctx.Err() != nil {
			continue
		}
		fmt.Fprintf(out, "%-40s %5.0f s  %s\n", r.Suite, r.Seconds, strings.Join(r.Failed, " "))
		if bad = errors.Join(r.err, b.add(r.entry, r.log)); bad != nil {
			stop()
		}
	}
	return bad
}

// place is where go test ran a program, and how.
type place struct {
	Folder    string
	Arguments []string
	Env       []string
}

// collect lets a target of make compile its test programs, and gathers them in a folder with all that go test gives
// them. For that go test starts this command, and not the programs.
func collect(ctx context.Context, target, folder string) ([]*suite, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	top, err := os.Getwd()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return nil, err
	}
	flags := fmt.Sprintf("TEST_FLAGS=-exec '%s keep %s'", self, folder)
	c := exec.CommandContext(ctx, "make", "--no-print-directory", "-s", target, flags)
	if text, err := c.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("make %s: %w\n%s", target, err, text)
	}
	kept, err := filepath.Glob(filepath.Join(folder, "*", "place.json"))
	if err != nil || len(kept) == 0 {
		return nil, errors.Join(fmt.Errorf("make %s ran no test program with TEST_FLAGS", target), err)
	}
	var all []*suite
	for _, file := range kept {
		var at place
		text, err := os.ReadFile(file)
		if err == nil {
			err = json.Unmarshal(text, &at)
		}
		if err != nil {
			return nil, err
		}
		name, err := filepath.Rel(top, at.Folder)
		if err != nil {
			return nil, err
		}
		s := &suite{
			name: name + " " + target, folder: at.Folder, env: at.Env,
			args: func(uint64) []string { return at.Arguments }, program: filepath.Join(filepath.Dir(file), "program"),
		}
		if s.code, err = codeOf(s.program, s.folder); err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	return all, nil
}

// keep takes the place of a test program that go test starts in the current folder, and copies it into a folder.
func keep(folder, program string, arguments []string) error {
	at := place{Arguments: arguments, Env: os.Environ()}
	var err error
	if at.Folder, err = os.Getwd(); err != nil {
		return err
	}
	own, err := os.MkdirTemp(folder, filepath.Base(program)+"-")
	if err != nil {
		return err
	}
	text, err := json.Marshal(at)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(own, "place.json"), text, 0o644); err != nil {
		return err
	}
	code, err := os.ReadFile(program)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(own, "program"), code, 0o755)
}
