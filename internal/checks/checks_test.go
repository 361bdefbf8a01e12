package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// scripts makes a target of each shell script.
func scripts(t *testing.T, of map[string]string, limit time.Duration) (*runner, *bytes.Buffer) {
	printed := &bytes.Buffer{}
	return &runner{
		out: t.TempDir(), limit: limit, print: printed,
		command: func(target string) *exec.Cmd { return exec.Command("sh", "-c", of[target]) },
	}, printed
}

// TestFailureIsTold: after a failed target the others run, its log is kept, and the table has its first failed lines.
func TestFailureIsTold(t *testing.T) {
	r, printed := scripts(t, map[string]string{
		"good": "echo fine",
		"bad":  "echo noise; echo '--- FAIL: TestX (0.1s)'; echo '    x_test.go:3: no'; exit 3",
		"last": "echo also",
	}, time.Minute)
	results := r.run(t.Context(), []string{"good", "bad", "last"}, 1)
	require.Len(t, results, 3)
	require.NoError(t, results[0].err)
	require.Error(t, results[1].err)
	require.NoError(t, results[2].err)
	require.Equal(t, []string{"--- FAIL: TestX (0.1s)", "    x_test.go:3: no"}, results[1].lines)
	log, err := os.ReadFile(results[1].log)
	require.NoError(t, err)
	require.Contains(t, string(log), "noise\n")
	require.Contains(t, printed.String(), "fine\n")
	require.Contains(t, printed.String(), "also\n")
	var out bytes.Buffer
	require.Equal(t, 1, table(&out, results, "7"))
	require.Contains(t, out.String(), "again: make bad SEED=7\n")
	require.True(t, strings.HasSuffix(out.String(), "\n2 passed, 1 failed\n"))
}

// TestTargetIsEnded: a target that runs too long is killed with its children, and has failed.
func TestTargetIsEnded(t *testing.T) {
	r, _ := scripts(t, map[string]string{"long": "sleep 600 & wait"}, 50*time.Millisecond)
	begun := time.Now()
	results := r.run(t.Context(), []string{"long"}, 1)
	require.ErrorIs(t, results[0].err, errLimit)
	require.Less(t, time.Since(begun), time.Minute)
}

// TestStopped: after the end of the context no further target begins.
func TestStopped(t *testing.T) {
	r, printed := scripts(t, map[string]string{"a": "echo a"}, time.Minute)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	require.ErrorIs(t, r.run(ctx, []string{"a"}, 1)[0].err, context.Canceled)
	require.Empty(t, printed.String())
}

// TestFailureBehindLongLog: the lines that only a failure prints are told, even behind a long log of passed tests.
func TestFailureBehindLongLog(t *testing.T) {
	log := strings.Repeat("    y_test.go:7: 9 operations, 0 violations\n        replay in steps   1\n", 30) +
		"        VIOLATION lost\n--- FAIL: TestX (0.1s)\n    x_test.go:3: no\nFAIL\tx\t0.1s\n"
	lines := failedLines(log)
	require.Len(t, lines, maxFailedLines)
	require.Subset(t, lines, []string{"        VIOLATION lost", "--- FAIL: TestX (0.1s)", "FAIL\tx\t0.1s"})
	require.Equal(t, "FAIL\tx\t0.1s", lines[maxFailedLines-1], "in the order of the log")
}
