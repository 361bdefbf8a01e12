package main

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A flaky trial starts its own command for each test program.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "keep" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestFlakyNamesTheTest: a flaky trial of programs whose tests fail now and then names the tests, keeps the first log,
// and goes on where it stopped. A change of one package does not take the runs of another.
func TestFlakyNamesTheTest(t *testing.T) {
	books := t.TempDir()
	t.Chdir(t.TempDir())
	t.Setenv("SEED", "7")
	for name, text := range map[string]string{
		"go.mod":   "module m\n\ngo 1.25\n",
		"Makefile": "tests:\n\t@go test $(TEST_FLAGS) -count 1 ./... -args of-program\n",
		"meeting/meeting_test.go": `package meeting

import ("os"; "testing"; "time")

// Each run waits until two are there.
func TestMeeting(t *testing.T) {
	os.MkdirTemp(".", "run")
	for runs := 0; runs < 2; time.Sleep(time.Millisecond) {
		entries, _ := os.ReadDir(".")
		runs = len(entries) - 1
	}
	if os.Getenv("SEED") != "7" || os.Args[len(os.Args)-1] != "of-program" {
		t.Fatal("other arguments than those of the target")
	}
}
`,
		"rare/rare_test.go": `package rare

import ("os"; "strconv"; "testing")

// One run of five fails.
func TestRare(t *testing.T) {
	for n := 1; ; n++ {
		if os.Mkdir(strconv.Itoa(n), 0o755) == nil {
			if n % 5 == 2 {
				t.Fatal("the second")
			}
			return
		}
	}
}

func TestCommon(t *testing.T) {}
`,
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		require.NoError(t, os.WriteFile(name, []byte(text), 0o644))
	}
	trial := func(runs int) (string, error) {
		b, err := openBook(books, "flaky")
		require.NoError(t, err)
		defer b.close()
		var out bytes.Buffer
		err = flaky(t.Context(), b, "tests", runs, &out)
		return out.String(), err
	}
	runs := func(text, suite string) string {
		line := regexp.MustCompile(`(?m)^` + suite + ` tests +(\d+) +[0-9.]+ +0 +(\d+)$`).FindStringSubmatch(text)
		require.Len(t, line, 3, "%s", text)
		return line[1] + " runs, " + line[2] + " failed"
	}
	first, err := trial(5)
	require.ErrorIs(t, err, errFailed, "%s", first)
	require.Equal(t, "5 runs, 0 failed", runs(first, "meeting"))
	require.Equal(t, "5 runs, 1 failed", runs(first, "rare"))
	require.Contains(t, first, "FAILED: rare tests TestRare: 5 runs, 1 failures, first SEED=7, log: ")
	_, log, _ := strings.Cut(first, "log: ")
	log, _, _ = strings.Cut(log, "\n")
	text, err := os.ReadFile(log)
	require.NoError(t, err)
	require.Contains(t, string(text), "rare_test.go:10: the second")
	require.NotContains(t, first, "TestCommon")

	again, err := trial(6)
	require.NoError(t, err, "%s", again)
	require.Equal(t, "6 runs, 0 failed", runs(again, "meeting"))
	require.Equal(t, "6 runs, 1 failed", runs(again, "rare"))

	more, err := os.OpenFile("rare/rare_test.go", os.O_APPEND|os.O_WRONLY, 0)
	require.NoError(t, err)
	_, err = more.WriteString("\nfunc TestMore(t *testing.T) {}\n")
	require.NoError(t, err)
	require.NoError(t, more.Close())
	changed, err := trial(2)
	require.ErrorIs(t, err, errFailed, "%s", changed) // its runs 7 and 8
	require.Equal(t, "6 runs, 0 failed", runs(changed, "meeting"))
	require.Equal(t, "2 runs, 1 failed", runs(changed, "rare"))
}

// TestBooksAddUp: a later call continues the book, and counts the runs of the same program only.
func TestBooksAddUp(t *testing.T) {
	folder := t.TempDir()
	for n, code := range []string{"one", "other", "one"} {
		b, err := openBook(folder, "flaky")
		require.NoError(t, err)
		require.Len(t, b.old, n)
		e := entry{Code: code, Suite: "kv test", Failed: []string{"TestA"}, At: time.Unix(int64(n), 0)}
		require.NoError(t, b.add(e, []byte("log")))
		require.True(t, b.failed())
		b.close()
	}
	b, err := openBook(folder, "flaky")
	require.NoError(t, err)
	defer b.close()
	require.False(t, b.failed())
	var out bytes.Buffer
	b.table(&out, []*suite{{name: "kv test", code: "one"}})
	require.Contains(t, out.String(), "FAILED: kv test TestA: 2 runs, 2 failures, first SEED=0, log: ")
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
		b, err := openBook(folder, "hunt")
		require.NoError(t, err)
		require.Len(t, b.old, want)
		require.NoError(t, b.add(entry{Suite: "s"}, nil))
		b.close()
	}
}

// TestCodeIsWhatIsTried: the code under trial is the program and the test data of its package, wherever they lie.
func TestCodeIsWhatIsTried(t *testing.T) {
	code := func(files ...string) string {
		folder := t.TempDir()
		for i := 0; i < len(files); i += 2 {
			file := filepath.Join(folder, files[i])
			require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o755))
			require.NoError(t, os.WriteFile(file, []byte(files[i+1]), 0o644))
		}
		name, err := codeOf(filepath.Join(folder, "program"), folder)
		require.NoError(t, err)
		return name
	}
	alone := code("program", "1")
	with := code("program", "1", "testdata/a/b", "2")
	require.Equal(t, alone, code("program", "1", "a.go", "3"))
	require.Equal(t, with, code("program", "1", "testdata/a/b", "2", "a.go", "3"))
	require.NotEqual(t, alone, code("program", "2"))
	require.NotEqual(t, alone, with)
	require.NotEqual(t, with, code("program", "1", "testdata/a/b", "3"))
	require.NotEqual(t, with, code("program", "1", "testdata/a/c", "2"))
}
