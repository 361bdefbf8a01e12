package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
)

// fuzzTime is how long a hunt runs one fuzz target at a time. The fuzz targets share the time of one suite.
const fuzzTime = "30s"

var fuzzTarget = regexp.MustCompile(`(?m)^func (Fuzz[A-Za-z0-9_]*)\(`)

// fuzzTargets returns the fuzz targets of the tree below top, one suite each, all of the name fuzz.
func fuzzTargets(top string) (all []*suite, err error) {
	err = filepath.WalkDir(top, func(path string, entry fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case entry.IsDir() && path != top:
			// Another module has its own dependencies, and testdata has no tests.
			if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil || entry.Name() == "testdata" {
				return fs.SkipDir
			}
		case strings.HasSuffix(path, "_test.go"):
			text, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			for _, m := range fuzzTarget.FindAllSubmatch(text, -1) {
				all = append(all, &suite{name: "fuzz", folder: filepath.Dir(path), fuzz: string(m[1]), args: none})
			}
		}
		return nil
	})
	return all, err
}

// fuzzArgs are the arguments of a run of a fuzz target. Inputs that reach new code are kept for later runs. An input
// that fails is written into the target's folder testdata/fuzz: committed, it is a case of the gate.
func fuzzArgs(s *suite) []string {
	learned := filepath.Join(os.TempDir(), "fdbfifo-fuzz", s.folder)
	return []string{
		"-test.run", "^$", "-test.fuzz", "^" + s.fuzz + "$", "-test.fuzztime", fuzzTime,
		"-test.fuzzminimizetime", "100x", "-test.fuzzcachedir", learned,
	}
}

var deadlineAlone = regexp.MustCompile(`(?m)^--- FAIL: \w+ \([0-9.]+s\)\n +context deadline exceeded\nFAIL\n`)

// timeIsOver reports whether a fuzz target failed only because its time was over, and no input failed. Go before 1.27
// says so now and then: https://go.dev/issue/75804.
func timeIsOver(text []byte) bool {
	return deadlineAlone.Match(text) && !bytes.Contains(text, []byte("Failing input written to"))
}

// clusterSuites compares a FoundationDB cluster with the recorded histories, if there is a cluster. Package
// fdbkv/testcluster finds or starts it.
func clusterSuites(out io.Writer) []*suite {
	if os.Getenv("FDB_CLUSTER_FILE") == "" {
		fmt.Fprintln(out, "SKIP cluster: FDB_CLUSTER_FILE names no cluster")
		return nil
	}
	return []*suite{
		{name: "cluster", folder: "fdbkv", run: "^Test(Histories|Conformance)$", args: none},
		{name: "cluster", folder: "fdbkv/layertest", run: "^Test(Stress|Model|Linearizable)", args: none},
	}
}

// compile compiles the tests of each suite into a folder, and names their code.
func compile(ctx context.Context, all []*suite, programs string) error {
	compiled := map[string]string{}
	for _, s := range all {
		// A program for fuzzing is instrumented, so that tests run slower in it.
		key := s.folder + map[bool]string{true: "-fuzz"}[s.fuzz != ""]
		if compiled[key] == "" {
			program := filepath.Join(programs, strings.ReplaceAll(key, "/", "-")+".test")
			args := []string{"test", "-c", "-o", program}
			if s.fuzz != "" {
				args = append(args, "-fuzz", "Fuzz")
			}
			build := exec.CommandContext(ctx, "go", append(args, ".")...)
			build.Dir = s.folder
			if text, err := build.CombinedOutput(); err != nil {
				return fmt.Errorf("%s: %w\n%s", build, err, text)
			}
			compiled[key] = program
		}
		s.program = compiled[key]
		var err error
		if s.code, err = codeOf(s.program, s.folder); err != nil {
			return err
		}
	}
	return nil
}
