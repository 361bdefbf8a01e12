package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/layer"
)

// closes is a stdout that takes so many writes, and then is a pipe that nothing reads.
type closes struct{ after int }

func (c *closes) Write(p []byte) (int, error) {
	if c.after--; c.after < 0 {
		return 0, syscall.EPIPE
	}
	return len(p), nil
}

// jsonLines are n records, all of one group.
func jsonLines(n int) string {
	var text strings.Builder
	for i := range n {
		fmt.Fprintf(&text, "{\"n\":%d}\n", i)
	}
	return text.String()
}

// TestEnqueueIsDoneWithoutOutput: exit code 8 of an enqueue is true. All messages of the input are in the queue, though
// the ids of most could not be printed. A stream, which may have no end, stops: the exit code is not 8, and the error
// says how many messages are in the queue, and with which line to continue.
func TestEnqueueIsDoneWithoutOutput(t *testing.T) {
	t.Parallel()
	args := []string{"enqueue", "--file", "-", "--format", "jsonl", "--ids"}
	for _, stdout := range []io.Writer{full{}, &closes{after: 1}, &closes{after: 600}} {
		app, q := onMemory(t, 0)
		var stderr bytes.Buffer
		err := app.Run(context.Background(), args, strings.NewReader(jsonLines(1200)), stdout, &stderr)
		require.Equal(t, ExitOutput, ExitCode(err), stderr.String())
		require.Contains(t, stderr.String(), "all of it is done: 1,200 messages were enqueued")
		st, err := q.Stats(context.Background(), layer.StatsOptions{})
		require.NoError(t, err)
		require.EqualValues(t, 1200, st.Depth)

		app, q = onMemory(t, 0)
		stderr.Reset()
		in := strings.NewReader(jsonLines(1200))
		err = app.Run(context.Background(), append(args, "--partial"), in, full{}, &stderr)
		require.Equal(t, ExitFailed, ExitCode(err), stderr.String())
		st, err = q.Stats(context.Background(), layer.StatsOptions{})
		require.NoError(t, err)
		require.Less(t, st.Depth, int64(1200))
		require.Contains(t, stderr.String(), were(st.Depth)+" enqueued before that")
		require.Contains(t, stderr.String(), fmt.Sprintf("leave out the records up to line %d\n", st.Depth))
		require.NotContains(t, stderr.String(), "is done")
	}
}

// TestSettleIsDoneWithoutOutput: ack, nack and extend settle all claims, whether or not they can print what they have
// done.
func TestSettleIsDoneWithoutOutput(t *testing.T) {
	t.Parallel()
	for verb, done := range map[string]string{"ack": "acked", "nack": "nacked", "extend": "extended"} {
		app, q := onMemory(t, 0)
		ctx := context.Background()
		for i := range 5 {
			_, err := q.Enqueue(ctx, layer.Message{Group: fmt.Sprint(i)})
			require.NoError(t, err)
		}
		var claims, stderr bytes.Buffer
		require.NoError(t, app.Run(ctx, []string{"receive", "--max", "5"}, nil, &claims, &stderr))
		err := app.Run(ctx, []string{verb}, bytes.NewReader(claims.Bytes()), &closes{after: 1}, &stderr)
		require.Equal(t, ExitOutput, ExitCode(err), stderr.String())
		require.Contains(t, stderr.String(), "5 of 5 claims are "+done)
		if verb == "extend" {
			continue
		}
		require.Equal(t, 5, strings.Count(claims.String(), "\n"))
		// A claim that is lost is an error of its own: not all is done.
		stderr.Reset()
		err = app.Run(ctx, []string{verb}, bytes.NewReader(claims.Bytes()), full{}, &stderr)
		require.Equal(t, ExitFailed, ExitCode(err), stderr.String())
		require.NotContains(t, stderr.String(), "is done")
		st, err := q.Stats(ctx, layer.StatsOptions{})
		require.NoError(t, err)
		require.Zero(t, st.InFlight)
	}
}

// TestExitOutputIsTrue: no other error hides behind one of the output. Work that has stopped for want of output is no
// work that is done.
func TestExitOutputIsTrue(t *testing.T) {
	t.Parallel()
	output := &outputError{"print the result", syscall.ENOSPC}
	for err, want := range map[error]int{
		output:                                         ExitOutput,
		fmt.Errorf("enqueued, but: %w", output):        ExitOutput,
		errors.Join(output, output):                    ExitOutput,
		errors.Join(output, errViolations):             ExitFailed,
		errors.Join(errInterrupted, output):            ExitInterrupted,
		&Error{Text: "stopped", Err: output}:           ExitFailed,
		errors.Join(output, &Error{Exit: ExitNoQueue}): ExitNoQueue,
	} {
		require.Equal(t, want, ExitCode(err), "%v", err)
		require.Equal(t, want == ExitOutput, strings.Contains((&session{}).explain(err), "is done"), "%v", err)
	}
	app, q := onMemory(t, 3)
	_, _, err := q.Admin().Configure(context.Background(), func(c *layer.Config) { c.MaxAttempts = 1 })
	require.NoError(t, err)
	for _, args := range [][]string{
		{"console", "--listen", "127.0.0.1:0"}, {"work", "--until-empty", "--exec", "exit 1", "--json"},
	} {
		var stderr bytes.Buffer
		err := app.Run(context.Background(), args, nil, full{}, &stderr)
		require.Equal(t, ExitFailed, ExitCode(err), "%q: %s", args, &stderr)
		require.NotContains(t, stderr.String(), "is done", "%q", args)
	}
}

// TestClosedPipeIsQuiet: a command that changes nothing says nothing of a pipe that nothing reads any more, as that of
// groups | head. A command that has changed something does.
func TestClosedPipeIsQuiet(t *testing.T) {
	t.Parallel()
	app, _ := onMemory(t, 1)
	root, _ := (&session{app: New()}).root()
	for name := range looking {
		c, _, err := root.Find(strings.Fields(name))
		require.NoError(t, err)
		require.Equal(t, name, commandName(c))
	}
	for _, args := range [][]string{{"groups"}, {"stats"}, {"--json", "peek"}, {"enqueue", "--body", "x"}} {
		var stderr bytes.Buffer
		err := app.Run(context.Background(), args, nil, &closes{}, &stderr)
		require.Equal(t, ExitOutput, ExitCode(err), "%q: %s", args, &stderr)
		require.Equal(t, args[0] == "enqueue", stderr.Len() > 0, "%q: %s", args, &stderr)
	}
}

// TestRedriveTellsWhatIsDone: a redrive that a letter ends, because a header is one too many for it, prints how many
// are back, and names the letter.
func TestRedriveTellsWhatIsDone(t *testing.T) {
	t.Parallel()
	app, q := onMemory(t, 150)
	ctx := context.Background()
	large := map[string]string{"large": strings.Repeat("x", layer.MaxHeadersSize-100)}
	sent, err := q.Enqueue(ctx, layer.Message{Group: "g", Headers: large})
	require.NoError(t, err)
	_, _, err = q.Admin().Configure(ctx, func(c *layer.Config) {
		c.MaxAttempts, c.OnFailure = 1, layer.DeadLetterItem
	})
	require.NoError(t, err)
	var stdout, stderr bytes.Buffer
	err = app.Run(ctx, []string{"work", "--until-empty", "--exec", "exit 1"}, nil, &stdout, &stderr)
	require.Equal(t, ExitFailed, ExitCode(err), stderr.String())
	stderr.Reset()
	args := []string{"dead", "redrive", "--all", "--yes", "--header", "more=" + strings.Repeat("x", 200)}
	err = app.Run(ctx, args, nil, &stdout, &stderr)
	require.Equal(t, ExitFailed, ExitCode(err), stderr.String())
	require.Contains(t, stdout.String(), "redriven 100 dead letters, of 100 looked at")
	require.Contains(t, stderr.String(), "dead letter "+sent[0].ID.String())
	require.Contains(t, stderr.String(), "headers")
}

// TestPrintUnconfirmed: a check prints the places of which it does not know whether they break a rule, and ends with
// exit code 0 if there are no others.
func TestPrintUnconfirmed(t *testing.T) {
	report := layer.CheckReport{Unconfirmed: []layer.Violation{
		{Rule: "group-reachable", Key: "k", Detail: "group \"A\" is neither ready nor held nor awaited"},
	}}
	require.NoError(t, violations(report))
	s, out, _ := benchSession("memory", false)
	require.NoError(t, s.printCheck(report))
	require.Contains(t, out.String(), "violations       0")
	require.Contains(t, out.String(), "NOT CONFIRMED a group, or lane, with items has")
	require.Contains(t, out.String(), "  detail group \"A\" is neither")
	s, out, _ = benchSession("memory", true)
	require.NoError(t, s.printCheck(report))
	require.Contains(t, out.String(), `"violations":[],"unconfirmed":[{"rule":"group-reachable"`)
}

// interrupts is an output after whose nth line Ctrl-C comes.
type interrupts struct {
	n         int
	interrupt func()
}

func (i *interrupts) Write(p []byte) (int, error) {
	if i.n--; i.n == 0 {
		i.interrupt()
	}
	return len(p), nil
}

// TestInterruptAfterTheLastClaim: an interrupt that comes when all claims are settled is no failure of the command.
func TestInterruptAfterTheLastClaim(t *testing.T) {
	app, q := onMemory(t, 0)
	for _, group := range []string{"a", "b"} {
		_, err := q.Enqueue(context.Background(), layer.Message{Group: group})
		require.NoError(t, err)
	}
	var claims, stderr bytes.Buffer
	require.NoError(t, app.Run(context.Background(), []string{"receive", "--max", "2"}, nil, &claims, &stderr))
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	err := app.Run(ctx, []string{"ack"}, &claims, &interrupts{2, cancel}, &stderr)
	require.NoError(t, err, stderr.String())
	requireGivenBack(t, q, 0)
}

// TestWorkKeepsOutputs: work prints the output of its commands byte by byte. A line as long as the largest message
// stays whole while other commands print. A longer one has no byte between its parts. Only an end of the last line is
// added.
func TestWorkKeepsOutputs(t *testing.T) {
	t.Parallel()
	run := func(n int, command string, args ...string) string {
		app, q := onMemory(t, 0)
		for i := range n {
			_, err := q.Enqueue(context.Background(), layer.Message{Group: fmt.Sprint(i), Body: fmt.Append(nil, i)})
			require.NoError(t, err)
		}
		var stdout, stderr bytes.Buffer
		args = append([]string{"work", "--until-empty", "--exec", command}, args...)
		require.NoError(t, app.Run(context.Background(), args, nil, &stdout, &stderr), stderr.String())
		return stdout.String()
	}
	for _, size := range []int{1 << 10, 64 << 10, 64<<10 + 1, 200_000, layer.MaxBodySize - 1, layer.MaxBodySize} {
		command := fmt.Sprintf("i=$(cat); head -c %d /dev/zero | tr '\\0' $i; echo; echo", size)
		counts := make(map[string]int)
		for _, line := range strings.Split(run(4, command, "--workers", "4"), "\n") {
			counts[line]++
		}
		for i := range 4 {
			require.Equal(t, 1, counts[strings.Repeat(fmt.Sprint(i), size)], size)
		}
		require.Equal(t, 5, counts[""], size)
		require.Len(t, counts, 5, size)
	}
	for _, size := range []int{100_000, layer.MaxBodySize + 1, 3*layer.MaxBodySize + 7} {
		zeroes, command := strings.Repeat("\x00", size), fmt.Sprintf("head -c %d /dev/zero", size)
		require.True(t, zeroes+"\n" == run(1, command), size)
		require.True(t, zeroes+"\xff\n\r\n" == run(1, command+"; printf '\\377\\n\\r'"), size)
	}
}

// TestSlowReaderLosesNoOutput: a command has ended long before its output can be printed, because the output of work is
// read slowly. Nothing of the output is lost.
func TestSlowReaderLosesNoOutput(t *testing.T) {
	t.Parallel()
	const lines = 600 // of 100 bytes: the pipe holds them, and one read does not
	var printed []byte
	line := fmt.Sprintf("yes %s | head -n %d", strings.Repeat("x", 99), lines)
	c := command{line: line, stdout: func(p []byte) error {
		if printed == nil {
			time.Sleep(killGrace + killGrace/4)
		}
		printed = append(printed, p...)
		return nil
	}}
	require.NoError(t, c.run(t.Context(), layer.Item{}))
	require.Equal(t, 100*lines, len(printed))
}

// TestLeftProcessesKeepNoCommand: work does not wait for a process that a command has left running, silent or not.
func TestLeftProcessesKeepNoCommand(t *testing.T) {
	t.Parallel()
	for _, left := range []string{"sleep 30", "yes"} {
		var printed bytes.Buffer
		c := command{line: left + " & echo done", stdout: func(p []byte) error {
			_, err := printed.Write(p)
			return err
		}}
		began := time.Now()
		require.NoError(t, c.run(t.Context(), layer.Item{}), left)
		require.Contains(t, printed.String(), "done\n", left)
		require.Less(t, time.Since(began), 25*time.Second, "it waits for %s", left)
	}
}
