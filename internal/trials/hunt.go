package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// suite is a test program of a package, and what of it is run. In a hunt each run gets a seed that no run had before,
// in the variable SEED.
type suite struct {
	name    string
	folder  string // of the package
	run     string // the tests, in a hunt
	args    func(seed uint64) []string
	fuzz    string   // the fuzz target that is run, and no test
	env     []string // all variables but SEED; nil: those of this process
	program string   // the compiled tests
	code    string   // see codeOf
}

func seedAndSize(seedFlag, sizeFlag string, size int) func(uint64) []string {
	return func(seed uint64) []string {
		return []string{seedFlag, strconv.FormatUint(seed, 10), sizeFlag, strconv.Itoa(size)}
	}
}

func none(uint64) []string { return nil }

func suites() []*suite {
	return []*suite{
		{
			name: "sim", folder: "internal/sim", run: "^Test", args: seedAndSize("-seed", "-seeds", 60),
		},
		{name: "faults", folder: "layer/layertest", run: "^Test", args: none},
		{
			name: "inside", folder: "layer", run: "^Test(HeartbeatsAtRandom|BlockedKnowsAllGroups|SpoiltRows)$",
			args: none,
		},
		{
			name: "linear", folder: "layer/layertest", run: "^TestLinearizable(Processes)?$",
			args: seedAndSize("-layer.seed", "-layer.histories", 4),
		},
		{name: "kills", folder: "internal/crash", run: "^TestKills$", args: seedAndSize("-seed", "-kills", 100)},
		{
			name: "together", folder: "internal/crash", run: "^TestKillsTogether$",
			args: seedAndSize("-seed", "-kills", 100),
		},
		{name: "processes", folder: "kv/embedded", run: "^TestProcesses$", args: none},
		{name: "engines", folder: "kv/embedded", run: "^TestConformance", args: none},
		{name: "tuple", folder: "kv/tuple", run: "^Test", args: func(seed uint64) []string {
			return []string{"-rapid.seed", strconv.FormatUint(seed, 10), "-rapid.checks", "2000"}
		}},
	}
}

// hunt runs suites for a time. The next run is always of the suite that has had the least time.
func hunt(ctx context.Context, b *book, all []*suite, only string, limit time.Duration, out io.Writer) error {
	programs, err := os.MkdirTemp("", "hunt")
	if err != nil {
		return err
	}
	defer os.RemoveAll(programs)
	var chosen []*suite
	for _, s := range all {
		if only == "" || only == s.name {
			chosen = append(chosen, s)
		}
	}
	if len(chosen) == 0 {
		return fmt.Errorf("no such suite: %q", only)
	}
	if err := compile(ctx, chosen, programs); err != nil {
		return err
	}
	begun, spent, runs := time.Now(), map[string]time.Duration{}, map[*suite]int{}
	seed := uint64(begun.UnixMilli())
	for ctx.Err() == nil && time.Since(begun) < limit {
		next := chosen[0]
		for _, s := range chosen {
			// Suites of one name share its time, and take turns.
			if spent[s.name] < spent[next.name] || s.name == next.name && runs[s] < runs[next] {
				next = s
			}
		}
		runs[next]++
		e, log, err := next.once(ctx, seed)
		if err != nil {
			return err
		}
		if ctx.Err() != nil {
			break
		}
		spent[next.name] += time.Duration(e.Seconds * float64(time.Second))
		seed += 1000
		verdict := "ok"
		if len(e.Failed) > 0 {
			verdict = "FAILED"
		}
		fmt.Fprintf(out, "%-10s SEED=%d %6.0f s %9d operations  %s\n",
			e.Suite, e.Seed, e.Seconds, e.Operations, verdict)
		if err := b.add(e, log); err != nil {
			return err
		}
	}
	b.table(out, chosen)
	if b.failed() {
		return errFailed
	}
	return nil
}

var (
	operations = regexp.MustCompile(`(\d+) operations`)
	executions = regexp.MustCompile(`execs: (\d+)`)
)

// failedTest is the line of go test that names a test that failed.
var failedTest = regexp.MustCompile(`(?m)^--- FAIL: (\S+)`)

// arguments are those of a run with a seed.
func (s *suite) arguments(seed uint64) []string {
	switch {
	case s.fuzz != "":
		return fuzzArgs(s)
	case s.run != "":
		fixed := []string{"-test.run", s.run, "-test.v", "-test.count", "1", "-test.timeout", "20m"}
		return append(fixed, s.args(seed)...)
	}
	return s.args(seed)
}

// once runs a suite with a seed. The error is of the run itself, not of a test.
func (s *suite) once(ctx context.Context, seed uint64) (e entry, log []byte, err error) {
	c := exec.CommandContext(ctx, s.program, s.arguments(seed)...)
	var text bytes.Buffer
	c.Dir, c.Env = s.folder, s.env
	if c.Env == nil {
		c.Env = os.Environ()
	}
	c.Env = append(c.Env[:len(c.Env):len(c.Env)], "SEED="+strconv.FormatUint(seed, 10))
	c.Stdout, c.Stderr = &text, &text
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	c.WaitDelay = 10 * time.Second
	e = entry{Code: s.code, Suite: s.name, Seed: seed, At: time.Now()}
	if err := c.Start(); err != nil {
		return e, nil, err
	}
	failed := c.Wait()
	e.Seconds = time.Since(e.At).Seconds()
	for _, m := range operations.FindAllStringSubmatch(text.String(), -1) {
		n, _ := strconv.Atoi(m[1])
		e.Operations += n
	}
	// A fuzz target says again and again how often it has run.
	for _, m := range executions.FindAllStringSubmatch(text.String(), -1) {
		e.Operations, _ = strconv.Atoi(m[1])
	}
	if failed != nil && !(s.fuzz != "" && timeIsOver(text.Bytes())) {
		for _, m := range failedTest.FindAllStringSubmatch(text.String(), -1) {
			e.Failed = append(e.Failed, m[1])
		}
		if e.Failed == nil {
			e.Failed = []string{cmp.Or(s.fuzz, s.name)} // it panicked, or its time was over
		}
		fmt.Fprintf(&text, "\n%v\n%s", failed, s.again(seed))
	}
	return e, text.Bytes(), nil
}

// again is the command that replays a run; none for a run without a seed of its own.
func (s *suite) again(seed uint64) string {
	switch {
	case s.fuzz != "":
		return fmt.Sprintf("again: go test ./%s -run '^%s$' (the input is in testdata/fuzz there)\n", s.folder, s.fuzz)
	case s.run != "":
		return fmt.Sprintf("again: SEED=%d go test ./%s -run '%s' -count 1 -v -args %s\n",
			seed, s.folder, s.run, strings.Join(s.args(seed), " "))
	}
	return ""
}
