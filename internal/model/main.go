// Command model checks the model of docs/model with TLC, in each of its configurations: those under good have to hold, and
// each of those under broken has to violate what its second line names.
//
// TLC is the jar that the environment variable TLA2TOOLS names, run by the java on the PATH, or else a command tlc on the
// PATH. Where there is neither, model prints one line that begins with SKIP, and exits with 0.
//
// It runs at the root of the module. Arguments, if any, are the configurations to check, as in broken/Group-tail.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"sync"
	"time"
)

const dir = "docs/model"

// jarVariable is the environment variable with the path of TLC's jar.
const jarVariable = "TLA2TOOLS"

var errNoTLC = errors.New("no TLC: it takes tla2tools.jar named by " + jarVariable + " and java on the PATH, or tlc on the PATH")

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	err := run(ctx, os.Args[1:])
	if errors.Is(err, errNoTLC) {
		fmt.Println("SKIP: the model is not checked:", err)
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "model:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, names []string) error {
	all, err := configurations(dir, names)
	if err != nil {
		return err
	}
	tlc, err := find()
	if err != nil {
		return err
	}
	scratch, err := os.MkdirTemp("", "model")
	if err != nil {
		return err
	}
	defer os.RemoveAll(scratch)
	fmt.Printf("%-28s %9s %6s %7s  %s\n", "configuration", "states", "depth", "CPU s", "result")
	failed := 0
	for i, o := range checkAll(ctx, all, func(ctx context.Context, c configuration) outcome { return tlc.check(ctx, c, scratch) }) {
		c := all[i]
		verdict := o.verdict(c)
		fmt.Printf("%-28s %9d %6d %7.1f  %s\n", c.name, o.states, o.depth, o.cpu.Seconds(), verdict.text)
		if !verdict.ok {
			failed++
			fmt.Print(o.text)
		}
	}
	if failed > 0 {
		return fmt.Errorf("%d of %d configurations went wrong", failed, len(all))
	}
	fmt.Printf("%d configurations, each as it has to be\n", len(all))
	return ctx.Err()
}

// configurations reads those named, or all of them.
func configurations(dir string, names []string) ([]configuration, error) {
	if len(names) == 0 {
		for _, sub := range []string{"good", "broken"} {
			files, err := filepath.Glob(filepath.Join(dir, sub, "*.cfg"))
			if err != nil {
				return nil, err
			}
			if len(files) == 0 {
				return nil, fmt.Errorf("no configurations in %s", filepath.Join(dir, sub))
			}
			for _, f := range files {
				f = filepath.Base(f)
				names = append(names, sub+"/"+f[:len(f)-len(".cfg")])
			}
		}
	}
	var all []configuration
	for _, name := range names {
		text, err := os.ReadFile(filepath.Join(dir, name+".cfg"))
		if err != nil {
			return nil, err
		}
		c, err := parseConfiguration(name, string(text))
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	return all, nil
}

// checkAll checks as many at a time as there are processors, and yields the outcomes in order, each as soon as it is there.
func checkAll(ctx context.Context, all []configuration, check func(context.Context, configuration) outcome) func(func(int, outcome) bool) {
	return func(yield func(int, outcome) bool) {
		ctx, cancel := context.WithCancel(ctx)
		var workers sync.WaitGroup
		defer workers.Wait()
		defer cancel()
		next := make(chan int)
		outcomes := make([]chan outcome, len(all))
		for i := range outcomes {
			outcomes[i] = make(chan outcome, 1)
		}
		for range runtime.NumCPU() {
			workers.Go(func() {
				for i := range next {
					outcomes[i] <- check(ctx, all[i])
				}
			})
		}
		workers.Go(func() {
			defer close(next)
			for i := range all {
				select {
				case next <- i:
				case <-ctx.Done():
					return
				}
			}
		})
		for i := range all {
			select {
			case o := <-outcomes[i]:
				if !yield(i, o) {
					return
				}
			case <-ctx.Done():
				return
			}
		}
	}
}

// checker is the command that runs TLC, with its first arguments.
type checker []string

func find() (checker, error) {
	if jar := os.Getenv(jarVariable); jar != "" {
		if _, err := os.Stat(jar); err != nil {
			return nil, fmt.Errorf("%s: %w", jarVariable, err)
		}
		java, err := exec.LookPath("java")
		if err != nil {
			return nil, fmt.Errorf("%w (%w)", errNoTLC, err)
		}
		jar, err = filepath.Abs(jar)
		return checker{java, "-XX:+UseSerialGC", "-Xmx1g", "-cp", jar, "tlc2.TLC"}, err
	}
	tlc, err := exec.LookPath("tlc")
	if err != nil {
		return nil, errNoTLC
	}
	return checker{tlc}, nil
}

// timeout bounds one configuration. The longest takes half a minute of a processor; a busy machine gives less than one.
const timeout = 10 * time.Minute

// check runs TLC with one worker: its search is then the same each time, and the behavior that it finds among the shortest.
func (t checker) check(ctx context.Context, c configuration, scratch string) outcome {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	meta, err := os.MkdirTemp(scratch, "states")
	if err != nil {
		return outcome{err: err}
	}
	flags := t[1:]
	if len(flags) > 0 && c.endsEarly() { // of java
		flags = slices.Concat([]string{"-XX:TieredStopAtLevel=1"}, flags)
	}
	args := slices.Concat(flags, []string{
		"-workers", "1", "-metadir", meta, "-noGenerateSpecTE", "-config", c.name + ".cfg", c.module + ".tla",
	})
	cmd := exec.CommandContext(ctx, t[0], args...)
	cmd.Dir = dir
	text, err := cmd.CombinedOutput()
	if ctx.Err() != nil {
		return outcome{err: fmt.Errorf("stopped: %w", context.Cause(ctx))}
	}
	o := parseOutput(string(text))
	if cmd.ProcessState != nil {
		o.cpu = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	var exit *exec.ExitError
	switch {
	case err == nil, errors.As(err, &exit):
	default:
		o.err = err
	}
	return o
}
