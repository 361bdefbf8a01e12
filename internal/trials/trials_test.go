package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestFlakyNamesTheTest: the output of go test gives the failed tests, and each package that failed without one.
func TestFlakyNamesTheTest(t *testing.T) {
	failed, log := failures([]byte(`{"Action":"output","Package":"p","Test":"TestA/x","Output":"bad\n"}
{"Action":"fail","Package":"p","Test":"TestA/x"}
{"Action":"pass","Package":"p","Test":"TestB"}
{"Action":"fail","Package":"p"}
no JSON
{"Action":"output","Package":"q","Output":"panic: oh\n"}
{"Action":"fail","Package":"q"}
`))
	require.Equal(t, []string{"p.TestA", "q"}, failed)
	require.Equal(t, "=== p.TestA\nbad\n=== q\npanic: oh\n", string(log))
}

// TestBooksAddUp: a later call continues the book, and counts the runs of the same code only.
func TestBooksAddUp(t *testing.T) {
	folder := t.TempDir()
	for _, code := range []string{"one", "other", "one"} {
		b, err := openBook(folder, "flaky", code)
		require.NoError(t, err)
		at := time.Unix(int64(len(b.old)), 0)
		require.NoError(t, b.add(entry{Suite: "test", Failed: []string{"p.TestA"}, At: at}, []byte("log")))
		require.True(t, b.failed())
		b.close()
	}
	b, err := openBook(folder, "flaky", "one")
	require.NoError(t, err)
	defer b.close()
	require.False(t, b.failed())
	var out bytes.Buffer
	flakyTable(&out, b)
	require.Contains(t, out.String(), "test: 2 runs\n")
	require.Contains(t, out.String(), "p.TestA: 2 runs, 2 failures, first log: ")
	log, err := os.ReadFile(b.old[0].Log)
	require.NoError(t, err)
	require.Equal(t, "log", string(log))
}

// TestFailedSeedIsKept: a run of a suite that fails leaves its log with the command that replays it.
func TestFailedSeedIsKept(t *testing.T) {
	script := t.TempDir() + "/suite"
	text := "#!/bin/sh\necho \"$SEED: 12 operations\"\ntest \"$SEED\" != 7\n"
	require.NoError(t, os.WriteFile(script, []byte(text), 0o755))
	s := &suite{name: "s", folder: ".", run: "^TestX$", program: script, args: seedAndSize("-seed", "-n", 3)}
	good, _, err := s.once(context.Background(), 6)
	require.NoError(t, err)
	require.Empty(t, good.Failed)
	require.Equal(t, 12, good.Operations)
	bad, log, err := s.once(context.Background(), 7)
	require.NoError(t, err)
	require.Equal(t, []string{"s"}, bad.Failed)
	require.Contains(t, string(log), "again: SEED=7 go test ./. -run '^TestX$' -count 1 -v -args -seed 7 -n 3\n")
}

// TestHuntFuzzes: a hunt knows each fuzz target of the tree, and gives all of them together the time of one suite.
func TestHuntFuzzes(t *testing.T) {
	targets, err := fuzzTargets("../..")
	require.NoError(t, err)
	known := map[string]bool{}
	for _, s := range targets {
		known[s.folder+" "+s.fuzz] = true
		require.Equal(t, "fuzz", s.name)
	}
	require.True(t, known["../../layer FuzzSpoiltRows"], "%v", known)
	require.True(t, known["../../sqs FuzzQuery"], "%v", known)

	script := t.TempDir() + "/suite"
	text := "#!/bin/sh\necho \"$@\"\necho 'execs: 5 (5/sec)'\necho 'execs: 12 (4/sec)'\nexit 1\n"
	require.NoError(t, os.WriteFile(script, []byte(text), 0o755))
	s := &suite{name: "fuzz", folder: ".", fuzz: "FuzzX", program: script, args: none}
	e, log, err := s.once(context.Background(), 1)
	require.NoError(t, err)
	require.Equal(t, []string{"FuzzX"}, e.Failed)
	require.Equal(t, 12, e.Operations)
	require.Contains(t, string(log), "-test.run ^$ -test.fuzz ^FuzzX$")
	require.Contains(t, string(log), "again: go test ./. -run '^FuzzX$'")
}

// TestTimeOfAFuzzTarget: the end of its time is no failure of a fuzz target, and an input that fails is one.
func TestTimeOfAFuzzTarget(t *testing.T) {
	over := "fuzz: elapsed: 30s, execs: 27957 (0/sec)\n" +
		"--- FAIL: FuzzJSON (30.09s)\n    context deadline exceeded\nFAIL\n"
	require.True(t, timeIsOver([]byte(over)))
	for _, failed := range []string{
		"--- FAIL: FuzzJSON (0.03s)\n    --- FAIL: FuzzJSON (0.00s)\n        context deadline exceeded\nFAIL\n",
		"--- FAIL: FuzzJSON (9.03s)\n    Failing input written to testdata/fuzz/FuzzJSON/0123\nFAIL\n",
		over + "    Failing input written to testdata/fuzz/FuzzJSON/0123\n",
		"panic: runtime error\n",
	} {
		require.False(t, timeIsOver([]byte(failed)), failed)
	}
}

// TestBookAfterAKill: a run that is added after a half line of a killed call is not lost.
func TestBookAfterAKill(t *testing.T) {
	folder := t.TempDir()
	half := `{"Code":"c","Suite":"s"}` + "\n" + `{"Code":"c","Su`
	require.NoError(t, os.WriteFile(folder+"/hunt.jsonl", []byte(half), 0o644))
	for want := 1; want <= 3; want++ {
		b, err := openBook(folder, "hunt", "c")
		require.NoError(t, err)
		require.Len(t, b.old, want)
		require.NoError(t, b.add(entry{Suite: "s"}, nil))
		b.close()
	}
}

// TestCodeIsWhatIsTried: documents and the trials themselves have no part in the name of the code; all else has.
func TestCodeIsWhatIsTried(t *testing.T) {
	t.Chdir(t.TempDir())
	git := func(args ...string) {
		args = append([]string{"-c", "user.name=n", "-c", "user.email=e"}, args...)
		text, err := exec.Command("git", args...).CombinedOutput()
		require.NoError(t, err, "%s", text)
	}
	code := func(path, text string, commit bool) string {
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, []byte(text), 0o644))
		if git("add", "."); commit {
			git("commit", "-q", "-m", "one more")
		}
		name, err := codeOf(t.Context())
		require.NoError(t, err)
		return name
	}
	git("init", "-q")
	first := code("layer/a.go", "1", true)
	require.Equal(t, first, code("docs/a.md", "1", true))
	require.Equal(t, first, code("internal/trials/a.go", "1", true))
	require.Equal(t, first, code("docs/a.md", "2", false))
	require.Equal(t, first, code("internal/trials/a.go", "2", false))
	require.NotEqual(t, first, code("layer/a.go", "2", false))
	require.NotEqual(t, first, code("layer/a.go", "2", true))
	require.Equal(t, first, code("layer/a.go", "1", true))
}

// TestFlakyRunsAtOnce: a flaky trial runs each target as often as it is told, and several at once.
func TestFlakyRunsAtOnce(t *testing.T) {
	t.Chdir(t.TempDir())
	// Each run waits until two are there.
	text := "one two:\n\t@mkdir $$$$.run; until [ $$(ls -d *.run | wc -l) -ge 2 ]; do sleep 0.01; done\n"
	require.NoError(t, os.WriteFile("Makefile", []byte(text), 0o644))
	b, err := openBook(t.TempDir(), "flaky", "code")
	require.NoError(t, err)
	defer b.close()
	var out bytes.Buffer
	require.NoError(t, flaky(t.Context(), b, "one two", 3, &out))
	require.Contains(t, out.String(), "one: 3 runs\ntwo: 3 runs\n0 tests failed\n")
}
