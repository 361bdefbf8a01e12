// Command hookpoints measures the CPU time that hooks add to the life of a message. It has two figures: the cost of the
// places where a handle without hooks checks whether it has any, and the cost of all hooks.
//
// It builds itself twice, the second time with a layer whose operations are never observed. The compiler then leaves
// out all code for hooks. The programs run in turn, each many times, with hooks and without. A figure is the median of
// the ratios of neighbouring runs, because other work on the machine slows both in the same way.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"fdbfifo/internal/bench"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
)

func main() {
	if err := run(context.Background(), os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "hookpoints:", err)
		os.Exit(1)
	}
}

// source is the file of the layer that has the hook points.
const source = "layer/tx_hook.go"

func run(ctx context.Context, args []string, out io.Writer) error {
	flags := flag.NewFlagSet("hookpoints", flag.ContinueOnError)
	pairs := flags.Int("pairs", 31, "how often each program runs")
	batches := flags.Int("batches", 3000, "messages of a run, in tens")
	live := flags.Bool("live", false, "be one of the programs that are measured")
	hooked := flags.Bool("hooked", false, "with -live: set all hooks")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if *live {
		var hooks []layer.Hook
		if *hooked {
			hooks = bench.AllHooks()
		}
		db := embedded.OpenMemory(embedded.Options{Seed: 1})
		defer db.Close()
		return bench.Live(ctx, db, hooks, *batches)
	}
	dir, err := os.MkdirTemp("", "hookpoints-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	whole, without, err := build(ctx, dir)
	if err != nil {
		return err
	}
	return measure(ctx, whole, without, *pairs, fmt.Sprint(*batches), out)
}

// build makes the two programs, from the folder of the module.
func build(ctx context.Context, dir string) (whole, without string, err error) {
	list, err := overlay(dir)
	if err != nil {
		return "", "", err
	}
	whole, without = filepath.Join(dir, "whole"), filepath.Join(dir, "without")
	for _, args := range [][]string{{"-o", whole}, {"-overlay", list, "-o", without}} {
		args = append(append([]string{"build"}, args...), "./internal/bench/hookpoints")
		if said, err := exec.CommandContext(ctx, "go", args...).CombinedOutput(); err != nil {
			return "", "", fmt.Errorf("go build: %w: %s", err, said)
		}
	}
	return whole, without, nil
}

// overlay writes what go build is to take in the place of the file of the hook points, and returns the list of that.
func overlay(dir string) (list string, err error) {
	text, err := os.ReadFile(source)
	if err != nil {
		return "", fmt.Errorf("run it in the folder of the module: %w", err)
	}
	bare, err := unobserved(string(text))
	if err != nil {
		return "", err
	}
	file, err := filepath.Abs(source)
	if err != nil {
		return "", err
	}
	replaced := filepath.Join(dir, "tx_hook.go")
	if err := os.WriteFile(replaced, []byte(bare), 0o600); err != nil {
		return "", err
	}
	content, err := json.Marshal(map[string]map[string]string{"Replace": {file: replaced}})
	if err != nil {
		return "", err
	}
	list = filepath.Join(dir, "overlay.json")
	return list, os.WriteFile(list, content, 0o600)
}

// unobserved is the file of the hook points where no operation is observed.
func unobserved(text string) (string, error) {
	for _, change := range [][2]string{
		{"\tif len(q.opts.Hooks) == 0 {\n", "\tif true {\n"}, {"\tif w == nil {\n", "\tif true {\n"},
	} {
		if strings.Count(text, change[0]) != 1 {
			return "", fmt.Errorf("%s has not what is to be replaced: %q", source, change[0])
		}
		text = strings.Replace(text, change[0], change[1], 1)
	}
	return text, nil
}

// measure runs the programs in turn, and writes the figures as JSON.
func measure(ctx context.Context, whole, without string, pairs int, batches string, out io.Writer) error {
	programs := []struct {
		path string
		args []string
	}{{without, nil}, {whole, nil}, {whole, []string{"-hooked"}}}
	var points, all []float64
	for n := range pairs {
		var took [3]time.Duration
		for i := range programs {
			if n%2 == 1 {
				i = len(programs) - 1 - i // neither is always the first
			}
			p := programs[i]
			cmd := exec.CommandContext(ctx, p.path, append([]string{"-live", "-batches", batches}, p.args...)...)
			if said, err := cmd.CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w: %s", p.path, err, said)
			}
			took[i] = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
		}
		points = append(points, float64(took[0])/float64(took[1]))
		all = append(all, float64(took[1])/float64(took[2]))
	}
	encoder := json.NewEncoder(out)
	for _, f := range []struct {
		name   string
		ratios []float64
		target float64
	}{{"hook_points", points, 0.99}, {"all_hooks", all, 0.95}} {
		slices.Sort(f.ratios)
		err := encoder.Encode(map[string]any{
			"name": f.name, "value": f.ratios[len(f.ratios)/2], "unit": "ratio", "target": fmt.Sprint("≥ ", f.target),
			"pairs": pairs, "least": f.ratios[0], "most": f.ratios[len(f.ratios)-1],
		})
		if err != nil {
			return err
		}
	}
	return nil
}
