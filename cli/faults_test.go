package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// full is a stdout that takes nothing, as /dev/full does.
type full struct{}

func (full) Write([]byte) (int, error) {
	return 0, &os.PathError{Op: "write", Path: "/dev/stdout", Err: syscall.ENOSPC}
}

// A result that cannot be printed is not the database's disk being full: the exit code is one of its own, and the text
// says that the message is in the queue.
func TestResultCannotBePrinted(t *testing.T) {
	app, q := onMemory(t, 0)
	for _, args := range [][]string{
		{"enqueue", "--body", "x"},
		{"enqueue", "--body", "x", "--json"},
		{"groups"},
		{"stats", "--json"},
		{"--help"},
	} {
		var stderr bytes.Buffer
		err := app.Run(context.Background(), args, nil, full{}, &stderr)
		if args[0] == "--help" {
			continue // which the library prints, and does not look
		}
		require.Equal(t, ExitOutput, ExitCode(err), "%s: %s", args, stderr.String())
		require.Contains(t, stderr.String(), "The work of the command is done")
		require.NotContains(t, stderr.String(), "make room")
		if args[0] == "enqueue" {
			require.Regexp(t, `enqueued [-0-9a-f]{36}@\d+\., but: print the result`, stderr.String())
		}
	}
	st, err := q.Stats(context.Background(), layer.StatsOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 2, st.Depth)
}

// A claim that could not be printed is returned, with no attempt counted.
func TestReceiveCannotBePrinted(t *testing.T) {
	app, q := onMemory(t, 3)
	var stderr bytes.Buffer
	err := app.Run(context.Background(), []string{"receive", "--max", "2"}, nil, full{}, &stderr)
	require.Equal(t, ExitFailed, ExitCode(err), stderr.String())
	require.Contains(t, stderr.String(), "gave back group g")
	require.Contains(t, stderr.String(), "Receive again")
	require.NotContains(t, stderr.String(), "is done")
	requireGivenBack(t, q, 3)
}

// losing is an output that is full, and the claim that it is given is lost.
type losing struct {
	full
	t *testing.T
	q *layer.Queue
}

func (l losing) Write(p []byte) (int, error) {
	var claim struct{ Group string }
	require.NoError(l.t, json.NewDecoder(bytes.NewReader(p)).Decode(&claim), string(p))
	_, err := l.q.Admin().ForceRelease(context.Background(), claim.Group, layer.ForceReleaseOptions{})
	require.NoError(l.t, err)
	return l.full.Write(p)
}

// Each claim that could not be printed is given back, also if another one is lost.
func TestReceiveGivesBackEachClaim(t *testing.T) {
	app, q := onMemory(t, 0)
	for _, group := range []string{"a", "b", "c"} {
		_, err := q.Enqueue(context.Background(), layer.Message{Group: group})
		require.NoError(t, err)
	}
	var stderr bytes.Buffer
	err := app.Run(context.Background(), []string{"receive", "--max", "3"}, nil, losing{t: t, q: q}, &stderr)
	require.Equal(t, ExitFailed, ExitCode(err), stderr.String())
	require.ErrorIs(t, err, layer.ErrClaimLost)
	require.Equal(t, 2, strings.Count(stderr.String(), "gave back group"), stderr.String())
	require.Contains(t, stderr.String(), "group a was not given back")
	require.NotContains(t, stderr.String(), "claims that could not be printed were given back")
	requireGivenBack(t, q, 3)
}

// ack reads the claim that receive has printed, in a process of its own, and can ack a part of it. If its stdin sends
// nothing, an interrupt ends ack.
func TestReceiveAck(t *testing.T) {
	app, q := onMemory(t, 3)
	var claim, stderr bytes.Buffer
	err := app.Run(context.Background(), []string{"receive", "--max", "3"}, nil, &claim, &stderr)
	require.NoError(t, err, stderr.String())
	items, err := q.Peek(context.Background(), "g", 3, nil)
	require.NoError(t, err)
	for _, args := range [][]string{{"ack", "--id", items[0].ID.String()}, {"extend", "--lease", "1m"}, {"ack", "-"}} {
		err = app.Run(context.Background(), args, bytes.NewReader(claim.Bytes()), io.Discard, &stderr)
		require.NoError(t, err, stderr.String())
	}
	requireGivenBack(t, q, 0)

	ctx, interrupt := context.WithCancel(context.Background())
	in, out := io.Pipe()
	defer out.Close()
	go func() {
		fmt.Fprint(out, " ")
		interrupt()
	}()
	err = app.Run(ctx, []string{"ack"}, in, io.Discard, &stderr)
	require.Equal(t, ExitInterrupted, ExitCode(err), stderr.String())
}

// TestAckItemsOfALine: ack finishes the messages that a line has. A script may drop some from the line, which are then
// delivered again. A line that has no message is refused, and finishes nothing, because only a line without the member
// items is of the whole claim.
func TestAckItemsOfALine(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	app, q := onMemory(t, 3)
	var printed, stderr bytes.Buffer
	require.NoError(t, app.Run(ctx, []string{"receive", "--max", "3"}, nil, &printed, &stderr), &stderr)
	var line map[string]any
	require.NoError(t, json.Unmarshal(printed.Bytes(), &line))
	all := line["items"].([]any)
	require.Len(t, all, 3)
	ack := func(items any) error {
		line["items"] = items
		text, err := json.Marshal(line)
		require.NoError(t, err)
		return app.Run(ctx, []string{"ack"}, bytes.NewReader(text), io.Discard, &stderr)
	}
	depth := func() int64 {
		st, err := q.Stats(ctx, layer.StatsOptions{})
		require.NoError(t, err)
		return st.Depth
	}
	for _, none := range []any{[]any{}, nil} {
		require.Equal(t, ExitUsage, ExitCode(ack(none)), "%v", none)
		require.EqualValues(t, 3, depth())
	}
	require.NoError(t, ack(all[:1]), &stderr)
	require.EqualValues(t, 2, depth())
	require.Equal(t, ExitFailed, ExitCode(ack(all[:1])))
	require.Contains(t, stderr.String(), "The message was acked before")
	require.NoError(t, ack(all[:2]), &stderr)
	require.EqualValues(t, 1, depth(), "the first was acked before")
	require.NoError(t, ack(all), &stderr)
	requireGivenBack(t, q, 0)
}

// TestOlderByAWrongClock: a discard by age is refused on a host whose clock is ahead of the workers'. The text says
// which clocks differ, and that nothing was done.
func TestOlderByAWrongClock(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	app, q := onMemory(t, 1)
	_, err := q.Admin().Skip(ctx, "g", layer.SkipOptions{})
	require.NoError(t, err)
	app.Now = func() time.Time { return time.Now().Add(60 * 24 * time.Hour) }
	for _, verb := range []string{"discard", "redrive"} {
		var stderr bytes.Buffer
		err := app.Run(ctx, []string{"dead", verb, "--older", "720h", "--yes"}, nil, io.Discard, &stderr)
		require.ErrorIs(t, err, layer.ErrClock, verb)
		require.Contains(t, stderr.String(), "clocks disagree")
		require.Contains(t, stderr.String(), "Correct the clocks")
	}
	st, err := q.Stats(ctx, layer.StatsOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 1, st.Dead)
}

// work cannot print the output of the command that it runs. The message is then not acked, and work ends.
func TestWorkOutputCannotBePrinted(t *testing.T) {
	app, q := onMemory(t, 3)
	var stderr bytes.Buffer
	err := app.Run(context.Background(), []string{"work", "--exec", "cat"}, nil, full{}, &stderr)
	require.Equal(t, ExitFailed, ExitCode(err), stderr.String())
	require.Contains(t, stderr.String(), "come again")
	require.NotContains(t, stderr.String(), "is done")
	requireGivenBack(t, q, 3)
}

// A queue that work has emptied into the dead letters was not worked off.
func TestUntilEmptyWithDeadLetters(t *testing.T) {
	app, q := onMemory(t, 3)
	_, _, err := q.Admin().Configure(context.Background(), func(c *layer.Config) {
		c.MaxAttempts, c.OnFailure = 1, layer.DeadLetterItem
	})
	require.NoError(t, err)
	for _, test := range []struct {
		exec string
		code int
		says string
	}{
		{"exit 3", ExitFailed, "3 messages failed for good"},
		{"true", ExitOK, "handled 0 messages"}, // those of before are not its own
	} {
		var stderr bytes.Buffer
		args := []string{"work", "--until-empty", "--exec", test.exec}
		err = app.Run(context.Background(), args, nil, io.Discard, &stderr)
		require.Equal(t, test.code, ExitCode(err), stderr.String())
		require.Contains(t, stderr.String(), test.says)
	}
}

// Work with --max tries exactly so many, and leaves the others as they are.
func TestWorkMax(t *testing.T) {
	for _, test := range []struct {
		args    []string
		summary string
		left    int
	}{
		{[]string{"--max", "3", "--exec", "cat; echo"}, "handled 3 messages, 0 failed, 0 given back", 2},
		{[]string{"--max", "2", "--batch", "5", "--exec", "cat"}, "handled 2 messages, 0 failed, 0 given back", 3},
		{[]string{"--max", "9", "--until-empty", "--exec", "cat"}, "handled 5 messages, 0 failed, 0 given back", 0},
	} {
		app, q := onMemory(t, 5)
		stdout, stderr := newScreen("x"), newScreen("x")
		err := app.Run(context.Background(), append([]string{"work"}, test.args...), nil, stdout, stderr)
		require.NoError(t, err, stderr.String())
		require.Contains(t, stderr.String(), test.summary)
		require.NotContains(t, stderr.String(), "given back: ")
		requireGivenBack(t, q, test.left)
	}
}

// TestWorkMaxLeavesOtherGroups: while work runs the last messages that --max allows, it claims no other group. Another
// worker gets those.
func TestWorkMaxLeavesOtherGroups(t *testing.T) {
	t.Parallel()
	for limit, bodies := range map[string][]string{"1": {"slow", "slow"}, "2": {"quick", "slow", "slow"}} {
		app, q := onMemory(t, 0)
		for i, body := range bodies {
			_, err := q.Enqueue(t.Context(), layer.Message{Group: fmt.Sprint(i), Body: []byte(body)})
			require.NoError(t, err)
		}
		lasts := filepath.Join(t.TempDir(), "lasts")
		require.NoError(t, os.WriteFile(lasts, nil, 0o600))
		stdout, stderr, ended := newScreen("slow"), newScreen(""), make(chan error, 1)
		runs := "body=$(cat); echo $body; while [ $body = slow ] && [ -e '" + lasts + "' ]; do sleep 0.01; done"
		args := []string{"work", "--max", limit, "--exec", runs}
		go func() { ended <- app.Run(t.Context(), args, nil, stdout, stderr) }()
		<-stdout.seen
		claims, err := q.Receive(t.Context(), layer.ReceiveOptions{Wait: time.Minute})
		require.NoError(t, err)
		require.Len(t, claims, 1, "--max %s keeps groups", limit)
		require.NoError(t, q.Ack(t.Context(), claims[0]))
		require.NoError(t, os.Remove(lasts))
		require.NoError(t, <-ended, stderr.String())
		require.Contains(t, stderr.String(), ", 0 failed, 0 given back")
		requireGivenBack(t, q, 0)
	}
}

// TestWorkTellsLostClaims: a message whose claim was lost while its command ran comes again, and the summary says so.
func TestWorkTellsLostClaims(t *testing.T) {
	app, q := onMemory(t, 1)
	started := filepath.Join(t.TempDir(), "started")
	stderr, done := newScreen("x"), make(chan error, 1)
	go func() {
		runs := fmt.Sprintf("touch %[1]s; while [ -e %[1]s ]; do sleep 0.01; done", started)
		args := []string{"work", "--max", "1", "--exec", runs}
		done <- app.Run(context.Background(), args, nil, newScreen("x"), stderr)
	}()
	require.Eventually(t, func() bool {
		_, err := os.Stat(started)
		return err == nil
	}, 20*time.Second, time.Millisecond)
	_, err := q.Admin().ForceRelease(t.Context(), "g", layer.ForceReleaseOptions{})
	require.NoError(t, err)
	require.NoError(t, os.Remove(started))
	require.NoError(t, <-done)
	require.Contains(t, stderr.String(), ", 1 claim lost, in")
	report, err := q.Admin().Check(t.Context(), layer.CheckOptions{})
	require.NoError(t, err)
	require.Empty(t, report.Violations)
	require.EqualValues(t, 1, report.Items)
}

// TestWorkCannotRunTheCommand: a command that the shell cannot run, such as one that is misspelt, ends work. No message
// counts an attempt for it, and none becomes a dead letter.
func TestWorkCannotRunTheCommand(t *testing.T) {
	t.Parallel()
	plain := filepath.Join(t.TempDir(), "plain")
	require.NoError(t, os.WriteFile(plain, []byte("#!/bin/sh\n"), 0o600))
	for exec, code := range map[string]string{
		"no-such-command-of-fdbfifo": "127", "'" + plain + "'": "126", "cat > /dev/null; exit 127": "127",
		"true; no-such-command-of-fdbfifo": "127",
	} {
		for _, flags := range [][]string{
			{"--batch", "3"}, {"--until-empty"}, {"--workers", "1", "--max", "2"}, {"--max", "1", "--until-empty"},
		} {
			app, q := onMemory(t, 3)
			_, _, err := q.Admin().Configure(t.Context(), func(c *layer.Config) { c.MaxAttempts = 1 })
			require.NoError(t, err)
			for _, group := range []string{"h", "i"} {
				_, err := q.Enqueue(t.Context(), layer.Message{Group: group})
				require.NoError(t, err)
			}
			var stderr bytes.Buffer
			err = app.Run(t.Context(), append([]string{"work", "--exec", exec}, flags...), nil, io.Discard, &stderr)
			require.Equal(t, ExitFailed, ExitCode(err), stderr.String())
			require.Contains(t, stderr.String(), "exit code "+code)
			require.Contains(t, stderr.String(), "No failed attempt was counted")
			require.Contains(t, stderr.String(), "handled 0 messages, 0 failed")
			requireGivenBack(t, q, 5)
		}
	}
	// A message that was handled before stays handled.
	app, q := onMemory(t, 3)
	var stderr bytes.Buffer
	exec := `[ "$(cat)" = 0 ] || exit 127`
	err := app.Run(t.Context(), []string{"work", "--exec", exec}, nil, io.Discard, &stderr)
	require.Equal(t, ExitFailed, ExitCode(err), stderr.String())
	require.Contains(t, stderr.String(), "handled 1 message, 0 failed, 1 given back")
	requireGivenBack(t, q, 2)
}

// TestLargeBodyFailsAlone: a body has no room in an argument of the command. That is a failed attempt of its message.
// Work continues with the other messages.
func TestLargeBodyFailsAlone(t *testing.T) {
	t.Parallel()
	app, q := onMemory(t, 1)
	_, _, err := q.Admin().Configure(t.Context(), func(c *layer.Config) { c.MaxAttempts = 1 })
	require.NoError(t, err)
	large := bytes.Repeat([]byte("x"), layer.MaxBodySize)
	_, err = q.Enqueue(t.Context(), layer.Message{Group: "large", Body: large})
	require.NoError(t, err)
	var stderr bytes.Buffer
	args := []string{"work", "--until-empty", "--exec", `env true "$(cat)"`}
	err = app.Run(t.Context(), args, nil, io.Discard, &stderr)
	require.Equal(t, ExitFailed, ExitCode(err), stderr.String())
	require.Contains(t, stderr.String(), "handled 1 message, 1 failed")
	require.Contains(t, stderr.String(), "1 message failed for good")
	requireGivenBack(t, q, 0)
}

// TestStderrEndIsKept: a message that has failed keeps the end of the command's stderr, of which the last line is the
// reason.
func TestStderrEndIsKept(t *testing.T) {
	t.Parallel()
	app, q := onMemory(t, 1)
	_, _, err := q.Admin().Configure(t.Context(), func(c *layer.Config) { c.MaxAttempts = 1 })
	require.NoError(t, err)
	fails := "head -c 2000 /dev/zero | tr '\\0' x >&2; echo REASON >&2; exit 3"
	args := []string{"work", "--until-empty", "--exec", fails}
	require.Error(t, app.Run(t.Context(), args, nil, io.Discard, io.Discard))
	page, err := q.Admin().DeadLetters(t.Context(), layer.DeadOptions{DeadFilter: layer.DeadFilter{All: true}})
	require.NoError(t, err)
	require.Len(t, page.Letters, 1)
	require.Regexp(t, "^exit status 3: x+REASON$", page.Letters[0].LastError)
}

// TestWorkInFewFiles is a process whose commands need more open files than it may have. Another test starts it.
func TestWorkInFewFiles(t *testing.T) {
	if os.Getenv(fewFiles) == "" {
		t.Skip("of another test, which starts it")
	}
	const groups = 20
	var r syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r))
	r.Cur = 40
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &r))
	for _, test := range []struct {
		ends    []string
		handled int
	}{
		{[]string{"--until-empty"}, groups}, {[]string{"--max", fmt.Sprint(groups)}, groups},
		{[]string{"--max", "10"}, 10},
	} {
		app, q := onMemory(t, 0)
		_, _, err := q.Admin().Configure(t.Context(), func(c *layer.Config) { c.MaxAttempts = 1 })
		require.NoError(t, err)
		for i := range groups {
			_, err := q.Enqueue(t.Context(), layer.Message{Group: fmt.Sprint(i)})
			require.NoError(t, err)
		}
		var stderr bytes.Buffer
		args := append([]string{"work", "--exec", "sleep 0.3", "--workers", fmt.Sprint(groups)}, test.ends...)
		err = app.Run(t.Context(), args, nil, io.Discard, &stderr)
		require.NoError(t, err, stderr.String())
		require.Contains(t, stderr.String(), fmt.Sprintf("handled %d messages, 0 failed", test.handled))
		require.Contains(t, stderr.String(), "too many open files")
		require.Contains(t, stderr.String(), "use fewer --workers")
		requireGivenBack(t, q, groups-test.handled)
	}

	had := r.Cur
	r.Cur = 3 // no command can start
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &r))
	app, q := onMemory(t, 0)
	for i := range groups {
		_, err := q.Enqueue(t.Context(), layer.Message{Group: fmt.Sprint(i)})
		require.NoError(t, err)
	}
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	stderr := newScreen("use fewer --workers")
	go func() {
		<-stderr.seen
		interrupt()
	}()
	args := []string{"work", "--exec", "true", "--workers", fmt.Sprint(groups), "--max", "5"}
	err := app.Run(ctx, args, nil, io.Discard, stderr)
	r.Cur = had
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &r))
	require.Equal(t, ExitInterrupted, ExitCode(err), stderr.String())
	require.Contains(t, stderr.String(), "handled 0 messages, 0 failed, 0 given back")
	st, err := q.Stats(t.Context(), layer.StatsOptions{})
	require.NoError(t, err)
	require.EqualValues(t, groups, st.Depth)
	require.Zero(t, st.HeldGroups)
}

// TestWorkWaitsForRoom: work continues when the system has no room for another process. The messages count no attempt,
// and are handled when other commands have ended. Work with --max still ends when so many were handled. An interrupt
// ends it while there is no room.
func TestWorkWaitsForRoom(t *testing.T) {
	t.Parallel()
	c := exec.Command(os.Args[0], "-test.run", "^TestWorkInFewFiles$")
	c.Env = append(os.Environ(), fewFiles+"=1")
	said, err := c.CombinedOutput()
	require.NoError(t, err, string(said))
}

// TestWorkWithoutStderr: the exit code of work says how the work went, also if the summary cannot be written.
func TestWorkWithoutStderr(t *testing.T) {
	t.Parallel()
	app, q := onMemory(t, 3)
	err := app.Run(t.Context(), []string{"work", "--exec", "true", "--until-empty"}, nil, io.Discard, full{})
	require.NoError(t, err)
	requireGivenBack(t, q, 0)
}

// TestUntilEmptyOfATemplate: work that advances the messages of a template ends when none agrees with the template,
// although all of them are still in the queue.
func TestUntilEmptyOfATemplate(t *testing.T) {
	t.Parallel()
	for _, group := range [][]string{nil, {"--group", "g0"}} {
		db := embedded.OpenMemory(embedded.Options{})
		config := layer.Config{Facets: []string{"state"}, Views: "*; state"}
		q, err := layer.Create(t.Context(), db, prefix(), "default", layer.Options{Config: config})
		require.NoError(t, err)
		for i := range 3 {
			m := layer.Message{Group: fmt.Sprint("g", i), Headers: map[string]string{"state": "NEW"}}
			_, err := q.Enqueue(t.Context(), m)
			require.NoError(t, err)
		}
		open := func(context.Context, EngineOptions) (kv.DB, error) { return shared{db}, nil }
		app := &App{Engines: map[string]OpenFunc{"disk": open}}
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		var stderr bytes.Buffer
		args := []string{"work", "--exec", "true", "--until-empty", "--where", "state=NEW", "--advance", "state=PAID"}
		err = app.Run(ctx, append(args, group...), nil, io.Discard, &stderr)
		stop()
		require.NoError(t, err, stderr.String())
		left, err := q.Admin().Groups(t.Context(), layer.GroupsOptions{Where: layer.Template{"state": "PAID"}})
		require.NoError(t, err)
		require.Len(t, left.Groups, 3-len(group)) // one if a group is named
		requireGivenBack(t, q, 3)
		require.NoError(t, q.Close(t.Context()))
		require.NoError(t, db.Close())
	}
}

// TestFindWantsAGroup: where duplicates are looked for within groups, find without a group does not say that a message
// is unknown which is in the queue.
func TestFindWantsAGroup(t *testing.T) {
	t.Parallel()
	app, q := onMemory(t, 0)
	_, _, err := q.Admin().Configure(t.Context(), func(c *layer.Config) { c.DedupInGroup = true })
	require.NoError(t, err)
	_, err = q.Enqueue(t.Context(), layer.Message{Group: "a", DedupID: "order-1"})
	require.NoError(t, err)
	for _, test := range []struct {
		flags []string
		code  int
		says  string
	}{
		{nil, ExitUsage, "--group or --default-group"}, {[]string{"--group", "a"}, ExitOK, "waiting"},
		{[]string{"--default-group"}, ExitOK, "unknown"},
	} {
		var said bytes.Buffer
		err := app.Run(t.Context(), append([]string{"find", "order-1"}, test.flags...), nil, &said, &said)
		require.Equal(t, test.code, ExitCode(err), said.String())
		require.Contains(t, said.String(), test.says)
	}
}

// counting counts the bytes that were read, and gives as many as it is asked for.
type counting struct {
	left, read int
	begin      string
}

func (c *counting) Read(p []byte) (int, error) {
	if c.left == 0 {
		return 0, io.EOF
	}
	n := copy(p, c.begin)
	c.begin = c.begin[n:]
	for ; n < min(len(p), c.left); n++ {
		p[n] = 'a'
	}
	c.left -= n
	c.read += n
	return n, nil
}

// TestInputsAreBounded: a file that is no file of claims is not read into memory, and an error does not repeat all of a
// wrong input. An input that was cut does not have the length of its error.
func TestInputsAreBounded(t *testing.T) {
	t.Parallel()
	app, _ := onMemory(t, 0)
	huge := strings.Repeat("x", 500_000)
	claim := `{"queue":"default","group":"g","token":1,"items":[{"id":"` + huge + `"}]}`
	large := filepath.Join(t.TempDir(), "large")
	require.NoError(t, os.WriteFile(large, make([]byte, 2*layer.MaxBodySize), 0o600))
	for _, test := range []struct {
		args     []string
		in, says string
	}{
		{[]string{"ack"}, claim, "is not UUID@INDEX.GROUP"},
		{[]string{"decode"}, "\"" + huge, "line 1"},
		{[]string{"decode"}, huge + huge + huge, "the line has more than 1,048,576 bytes"},
		{
			[]string{"enqueue", "--file", "-", "--format", "csv", "--group-field", "g"}, "a" + huge + ",v\na,1\n",
			"no column",
		},
		{[]string{"enqueue", "--body-file", large}, "", "more than 4,194,304 bytes"},
	} {
		var stderr bytes.Buffer
		err := app.Run(t.Context(), test.args, strings.NewReader(test.in), io.Discard, &stderr)
		require.NotEqual(t, ExitOK, ExitCode(err), test.args)
		require.Less(t, stderr.Len(), 4<<10, "%s: %.300s", test.args, stderr.String())
		require.Contains(t, stderr.String(), test.says)
	}
	in := &counting{left: 300 << 20, begin: `"`}
	err := app.Run(t.Context(), []string{"ack"}, in, io.Discard, io.Discard)
	require.NotEqual(t, ExitOK, ExitCode(err))
	require.Less(t, in.read, 100<<20)
}

// largeRecords yields messages of the largest size, and counts them.
type largeRecords struct {
	body []byte
	n    atomic.Int64
}

func (s *largeRecords) next() (layer.Message, int, error) {
	return layer.Message{Body: s.body}, int(s.n.Add(1)), nil
}

// TestReadAheadIsBounded: an input that is read faster than it is enqueued takes a bounded part of the memory, whatever
// the size of its records.
func TestReadAheadIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &largeRecords{body: make([]byte, layer.MaxBodySize)}
		ctx, stop := context.WithCancel(t.Context())
		records := readAhead(ctx, src)
		synctest.Wait()
		require.LessOrEqual(t, src.n.Load()*layer.MaxBodySize, int64(16<<20))
		for range 5 {
			batch, _, _, err := nextBatch(ctx, records, nil, true)
			require.NoError(t, err)
			require.Len(t, batch, 1)
		}
		stop()
		synctest.Wait()
	})
}

// TestNoRoomToCheckTheInput: if the folder for temporary files is full, nothing is enqueued, so nothing is confirmed,
// and the advice is not about the database.
func TestNoRoomToCheckTheInput(t *testing.T) {
	err := unspooled(&os.PathError{Op: "write", Path: "/tmp/fdbfifo-1.spool", Err: syscall.ENOSPC})
	text := (&session{}).explain(err)
	require.Contains(t, text, "no space left on device; nothing was enqueued")
	require.Contains(t, text, "TMPDIR")
	require.NotContains(t, text, "do not enqueue")
}

// TestWorkCannotReadTheCommand: work refuses a command that the shell cannot read, such as one without its second
// quote. No message is taken, and none counts an attempt.
func TestWorkCannotReadTheCommand(t *testing.T) {
	t.Parallel()
	for _, line := range []string{"if", "curl -d '@-"} {
		app, q := onMemory(t, 3)
		_, _, err := q.Admin().Configure(t.Context(), func(c *layer.Config) { c.MaxAttempts = 1 })
		require.NoError(t, err)
		var stderr bytes.Buffer
		err = app.Run(t.Context(), []string{"work", "--exec", line, "--until-empty"}, nil, io.Discard, &stderr)
		require.Equal(t, ExitUsage, ExitCode(err), stderr.String())
		require.Contains(t, stderr.String(), "the shell cannot read the command")
		requireGivenBack(t, q, 3)
	}
}

// TestWorkWithoutAShell: the same if there is no shell.
func TestWorkWithoutAShell(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	app, q := onMemory(t, 3)
	var stderr bytes.Buffer
	err := app.Run(t.Context(), []string{"work", "--exec", "true", "--until-empty"}, nil, io.Discard, &stderr)
	require.Equal(t, ExitFailed, ExitCode(err), stderr.String())
	require.Contains(t, stderr.String(), "the shell cannot be started")
	requireGivenBack(t, q, 3)
}

// Headers whose names come to one variable, and values that a variable cannot hold, are not made up: the variable is
// not set, a notice says so once, and FDBFIFO_ITEM has them all.
func TestWorkEnvironment(t *testing.T) {
	app, q := onMemory(t, 0)
	for range 2 {
		_, err := q.Enqueue(context.Background(), layer.Message{
			Group: "g\x00h", Headers: map[string]string{"a-b": "1", "a_b": "2", "zero": "x\x00y", "plain": "p"},
		})
		require.NoError(t, err)
	}
	t.Setenv("FDBFIFO_GROUP", "another command's")
	var stdout, stderr bytes.Buffer
	show := `echo "${FDBFIFO_HEADER_A_B-unset} ${FDBFIFO_HEADER_ZERO-unset} ${FDBFIFO_GROUP-unset}"
echo "$FDBFIFO_HEADER_PLAIN $FDBFIFO_ITEM"`
	err := app.Run(context.Background(), []string{"work", "--until-empty", "--exec", show}, nil, &stdout, &stderr)
	require.NoError(t, err, stderr.String())
	require.Contains(t, stdout.String(), "unset unset unset\np {")
	require.Contains(t, stdout.String(), `"headers":{"a-b":"1","a_b":"2","plain":"p","zero":"x\u0000y"}`)
	require.Contains(t, stdout.String(), `"group":"g\u0000h"`)
	printed := stderr.String()
	require.Equal(t, 1, strings.Count(printed, "FDBFIFO_HEADER_A_B not set"), printed)
	// Two messages, two ids that each have a zero byte: one notice.
	require.Equal(t, 1, strings.Count(printed, "FDBFIFO_GROUP, FDBFIFO_HEADER_ZERO, FDBFIFO_ID not set"), printed)
}

// An interrupt says that it was one, wherever it is met.
func TestInterruptIsSaid(t *testing.T) {
	app, _ := onMemory(t, 1)
	ctx, interrupt := context.WithCancel(context.Background())
	interrupt()
	for _, args := range [][]string{
		{"enqueue", "--body", "x"}, {"groups"}, {"stats"}, {"check"}, {"peek"}, {"purge", "--all", "--yes"}, {"queues"},
		{"config"},
	} {
		var stderr bytes.Buffer
		err := app.Run(ctx, args, nil, io.Discard, &stderr)
		require.Equal(t, ExitInterrupted, ExitCode(err), "%s", args)
		require.Contains(t, stderr.String(), "interrupted", "%s", args)
		require.NotContains(t, stderr.String(), "context canceled", "%s", args)
	}
}

// The version says which source a program was built from.
func TestVersion(t *testing.T) {
	info := &debug.BuildInfo{GoVersion: "go1.0", Main: debug.Module{Version: "v1.2.3"}}
	require.Regexp(t, `^v1\.2\.3, go1\.0 \w+/\w+$`, describeBuild(info))
	info.Main.Version = ""
	info.Settings = []debug.BuildSetting{
		{Key: "vcs.revision", Value: "0123456789abcdef"}, {Key: "vcs.modified", Value: "true"},
	}
	require.Contains(t, describeBuild(info), "(devel) (revision 0123456789ab with changes), go1.0 ")
	var stdout bytes.Buffer
	require.NoError(t, Run(context.Background(), []string{"--version"}, nil, &stdout, io.Discard))
	require.True(t, strings.HasPrefix(stdout.String(), "fdbfifo "), stdout.String())
}

// The engine memory cannot keep a message for the next command, so no command says that it did.
func TestMemoryKeepsNothing(t *testing.T) {
	for _, args := range [][]string{
		{"enqueue", "--body", "x"}, {"stats"}, {"queues"}, {"drop", "default", "--yes"}, {"create", "q"}, {"console"},
		{"receive"}, {"work", "--exec", "true"},
	} {
		for engine, says := range map[string]string{
			"memory": "keeps nothing", "memory:": "has nothing behind the colon", "memory:x": "keeps nothing",
			"memory: ": "has nothing behind the colon",
		} {
			var stdout, stderr bytes.Buffer
			err := Run(context.Background(), append(args, "--engine", engine), nil, &stdout, &stderr)
			require.Equal(t, ExitUsage, ExitCode(err), "%s", args)
			require.Empty(t, stdout.String())
			require.Contains(t, stderr.String(), says)
		}
	}
}

// TestHomeBehindAColon: no shell replaces the ~ of disk:~/x. The command refuses it, and makes no folder of that name.
func TestHomeBehindAColon(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, folder := range []string{"~", "~/queues"} {
		_, err := openDisk(t.Context(), EngineOptions{Arg: folder, Create: true})
		require.ErrorContains(t, err, `disk:"$HOME`+folder[1:]+`"`)
		require.NoDirExists(t, "~")
	}
}

// TestEngineWithoutFolder: an engine whose argument is announced and empty, such as disk:$UNSET, is not the default
// one.
func TestEngineWithoutFolder(t *testing.T) {
	home := t.TempDir()
	t.Setenv("XDG_DATA_HOME", home)
	for _, engine := range []string{"disk:", "disk: ", ":"} {
		for _, args := range [][]string{{"enqueue", "--body", "x"}, {"bench", "--list"}, {"demo", "--workers", "1"}} {
			var stderr bytes.Buffer
			err := Run(t.Context(), append(args, "--engine", engine), nil, io.Discard, &stderr)
			require.Equal(t, ExitUsage, ExitCode(err), "%q %q: %s", engine, args, &stderr)
			require.Contains(t, stderr.String(), "has nothing behind the colon")
		}
	}
	entries, err := os.ReadDir(home)
	require.NoError(t, err)
	require.Empty(t, entries)
}

// A command that takes longer than --timeout is killed, and that is a failure of its message; others go on. A loaded
// machine may need half a second to begin the other command.
func TestWorkTimeout(t *testing.T) {
	app, q := onMemory(t, 0)
	_, _, err := q.Admin().Configure(context.Background(), func(c *layer.Config) { c.MaxAttempts = 1 })
	require.NoError(t, err)
	for _, body := range []string{"60", "0"} {
		_, err := q.Enqueue(context.Background(), layer.Message{Group: body, Body: []byte(body)})
		require.NoError(t, err)
	}
	var stderr bytes.Buffer
	args := []string{"work", "--exec", "sleep $(cat)", "--timeout", "3s", "--until-empty"}
	err = app.Run(context.Background(), args, nil, new(bytes.Buffer), &stderr)
	require.Equal(t, ExitFailed, ExitCode(err), stderr.String())
	require.Contains(t, stderr.String(), "the command has not ended after 3s")
	require.Contains(t, stderr.String(), "handled 1 message, 1 failed, 1 given back")
	err = app.Run(context.Background(), []string{"work", "--exec", "true", "--timeout", "-1s"}, nil, nil, &stderr)
	require.Equal(t, ExitUsage, ExitCode(err))
}

// TestWorkTimeoutWaitsForItsReader: a command writes more than a pipe holds, and the output of work is not read for
// longer than --timeout. The command has not failed.
func TestWorkTimeoutWaitsForItsReader(t *testing.T) {
	t.Parallel()
	app, q := onMemory(t, 2)
	r, stdout := io.Pipe()
	defer r.Close()
	ended := make(chan error, 1)
	var stderr bytes.Buffer
	args := []string{"work", "--exec", "yes | head -c 300000", "--timeout", "5s", "--max", "2"}
	go func() { ended <- app.Run(t.Context(), args, nil, stdout, &stderr) }()
	_, err := io.ReadFull(r, make([]byte, 1)) // the command has begun
	require.NoError(t, err)
	time.Sleep(6 * time.Second)
	n := make(chan int64, 1)
	go func() {
		read, _ := io.Copy(io.Discard, r)
		n <- read
	}()
	require.NoError(t, <-ended, stderr.String())
	require.NoError(t, stdout.Close())
	require.EqualValues(t, 600000-1, <-n)
	require.Contains(t, stderr.String(), "handled 2 messages, 0 failed, 0 given back")
	requireGivenBack(t, q, 0)
}

// TestWorkExitZeroFinishes (G3): a command with exit code 0 has handled its message, also if the time of --timeout ends
// while work waits for a process that the command has left running with its output. Another delivery would do the work
// twice, and in the end the message would be a dead letter.
func TestWorkExitZeroFinishes(t *testing.T) {
	t.Parallel()
	app, q := onMemory(t, 1)
	var stderr bytes.Buffer
	args := []string{"work", "--exec", "sleep 8 & exit 0", "--timeout", "5s", "--max", "1"}
	err := app.Run(context.Background(), args, nil, new(bytes.Buffer), &stderr)
	require.NoError(t, err, stderr.String())
	require.Contains(t, stderr.String(), "handled 1 message, 0 failed, 0 given back")
	requireGivenBack(t, q, 0)
}

// TestWorkOnADroppedQueue: work ends with exit code 3 if its queue is dropped. It must not stay behind and handle
// nothing, also not the messages of a later queue of this name.
func TestWorkOnADroppedQueue(t *testing.T) {
	app, q := onMemory(t, 1)
	var stderr bytes.Buffer
	stdout, ended := newScreen("started"), make(chan error, 1)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	go func() { ended <- app.Run(ctx, []string{"work", "--exec", "echo started"}, nil, stdout, &stderr) }()
	<-stdout.seen
	err := app.Run(ctx, []string{"drop", q.Name(), "--yes"}, nil, io.Discard, io.Discard)
	require.NoError(t, err)
	select {
	case err := <-ended:
		require.Equal(t, ExitNoQueue, ExitCode(err), stderr.String())
		require.Contains(t, stderr.String(), `queue "default" was dropped`)
	case <-time.After(30 * time.Second):
		t.Fatal("work has not ended")
	}
}

// spoil makes the values of the rows of a kind and a group unreadable, in the queue "default".
func spoil(t *testing.T, db kv.DB, kind, group string) {
	rows := kv.PrefixRange(append(prefix(), tuple.Tuple{"default", kind, group}.Pack()...))
	_, err := kv.Run(t.Context(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		found, err := tx.GetRange(rows.Selectors(), kv.RangeOptions{}).Wait(t.Context())
		require.True(t, err != nil || len(found) > 0)
		for _, row := range found {
			tx.Set(row.Key, []byte("spoilt"))
		}
		return err
	})
	require.NoError(t, err)
}

// TestUnreadableRowsHaveNoTime: a dead letter or an archived message that cannot be read is listed without times, and
// not with those of the year 1.
func TestUnreadableRowsHaveNoTime(t *testing.T) {
	t.Parallel()
	app, q := onMemory(t, 2)
	db, err := app.Engines["disk"](t.Context(), EngineOptions{})
	require.NoError(t, err)
	_, _, err = q.Admin().Configure(t.Context(), func(c *layer.Config) { c.Archive = time.Hour })
	require.NoError(t, err)
	for _, reject := range []string{"", "bad"} {
		claims, err := q.Receive(t.Context(), layer.ReceiveOptions{Max: 1})
		require.NoError(t, err)
		require.Len(t, claims, 1)
		if reject == "" {
			require.NoError(t, q.Ack(t.Context(), claims[0]))
		} else {
			require.NoError(t, q.Nack(t.Context(), claims[0], layer.NackOptions{Reject: reject}))
		}
	}
	spoil(t, db, "archive", "g")
	spoil(t, db, "dead", "g")
	for _, command := range []string{"archive list --group g", "dead list"} {
		for _, flag := range []string{"--json=false", "--json"} {
			var out bytes.Buffer
			require.NoError(t, app.Run(t.Context(), append(strings.Fields(command), flag), nil, &out, &out), &out)
			require.Contains(t, out.String(), "corrupt", command)
			require.NotRegexp(t, "0001-01-01| [0-9]{5,}d", out.String(), command) // an id may have digits and d
		}
	}
}

// TestRefusedPurgeHasNoResult: a purge that is refused for its flags prints no result of a purge.
func TestRefusedPurgeHasNoResult(t *testing.T) {
	t.Parallel()
	app, _ := onMemory(t, 1)
	var stdout, stderr bytes.Buffer
	args := []string{"purge", "--group", strings.Repeat("x", layer.MaxGroupSize+1), "--yes"}
	err := app.Run(t.Context(), args, nil, &stdout, &stderr)
	require.Equal(t, ExitUsage, ExitCode(err), stderr.String())
	require.Empty(t, stdout.String())
}

// TestSubscriptionAheadOfTheClock: the next change of a subscription is of a process whose clock is ahead. Its age is
// no negative time, and JSON has its time in UTC.
func TestSubscriptionAheadOfTheClock(t *testing.T) {
	next := time.Now().Add(time.Hour).In(time.FixedZone("east", 3600))
	all := []layer.SubscriptionInfo{{Name: "audit", Next: next, Until: next}}
	s, out, _ := benchSession("memory", false)
	require.NoError(t, s.printSubscriptions(all))
	require.NotContains(t, out.String(), "-1h")
	s, out, _ = benchSession("memory", true)
	require.NoError(t, s.printSubscriptions(all))
	require.NotContains(t, out.String(), "+01:00")
}

// TestWorkBesideAnUnreadableGroup: a message that cannot be read stops its own group. work says so, does not end, and
// handles the messages of other groups.
func TestWorkBesideAnUnreadableGroup(t *testing.T) {
	t.Parallel()
	app, q := onMemory(t, 1)
	db, err := app.Engines["disk"](t.Context(), EngineOptions{})
	require.NoError(t, err)
	spoil(t, db, "item", "g")
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	stdout, stderr, ended := newScreen("handled"), newScreen("corrupt"), make(chan error, 1)
	go func() { ended <- app.Run(ctx, []string{"work", "--exec", "echo handled"}, nil, stdout, stderr) }()
	<-stderr.seen
	_, err = q.Enqueue(t.Context(), layer.Message{Group: "other"})
	require.NoError(t, err)
	select {
	case <-stdout.seen:
	case err := <-ended:
		t.Fatalf("work has ended: %v", err)
	}
	interrupt()
	require.NoError(t, <-ended, stderr.String())
	require.Contains(t, stderr.String(), "handled 1 message, 0 failed")
}

// TestUntilEmptySaysThatItWaits: work --until-empty says once which commands tell why nothing is ready, if messages
// wait and none of them is handled for ten seconds.
func TestUntilEmptySaysThatItWaits(t *testing.T) {
	app, q := onMemory(t, 1)
	_, err := q.Admin().PauseGroup(context.Background(), "g", layer.PauseOptions{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	stderr := newScreen("fdbfifo blocked and fdbfifo groups say why")
	ended := make(chan error, 1)
	go func() {
		ended <- app.Run(ctx, []string{"work", "--exec", "true", "--until-empty"}, nil, new(bytes.Buffer), stderr)
	}()
	select {
	case <-stderr.seen:
	case <-time.After(30 * time.Second):
		t.Fatal("work waits, and does not say why")
	}
	cancel()
	require.Equal(t, ExitInterrupted, ExitCode(<-ended))
	require.Equal(t, 1, strings.Count(stderr.String(), "say why"))
}
