package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
)

// screen is a stream that signals when a text has been written to it.
type screen struct {
	mu   sync.Mutex
	held bytes.Buffer // guarded by mu
	want string
	seen chan struct{} // closed when want has come
}

func newScreen(want string) *screen { return &screen{want: want, seen: make(chan struct{})} }

func (s *screen) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before := strings.Contains(s.held.String(), s.want)
	s.held.Write(p)
	if !before && strings.Contains(s.held.String(), s.want) {
		close(s.seen)
	}
	return len(p), nil
}

func (s *screen) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.held.String()
}

// mute is a stdin that never gives anything. It tells when it is read.
type mute struct {
	read func()
	end  <-chan struct{}
}

func (m *mute) Read([]byte) (int, error) {
	m.read()
	<-m.end
	return 0, io.EOF
}

// onMemory returns the command line over one database, and a handle of its own on the queue "default" with n
// messages in one group.
func onMemory(t *testing.T, n int) (*App, *layer.Queue) {
	db := embedded.OpenMemory(embedded.Options{})
	open := func(context.Context, EngineOptions) (kv.DB, error) { return shared{db}, nil }
	q, err := layer.Create(context.Background(), db, prefix(), "default", layer.Options{})
	require.NoError(t, err)
	for i := range n {
		_, err := q.Enqueue(context.Background(), layer.Message{Group: "g", Body: fmt.Append(nil, i)})
		require.NoError(t, err)
	}
	t.Cleanup(func() {
		require.NoError(t, q.Close(context.Background()))
		require.NoError(t, db.Close())
	})
	return &App{Engines: map[string]OpenFunc{"disk": open}}, q
}

// requireGivenBack: nothing is held, left messages are there, and none has counted a failed attempt.
func requireGivenBack(t *testing.T, q *layer.Queue, left int) {
	report, err := q.Admin().Check(context.Background(), layer.CheckOptions{})
	require.NoError(t, err)
	require.Empty(t, report.Violations)
	require.Zero(t, report.Held)
	require.Zero(t, report.Attempts)
	require.EqualValues(t, left, report.Items)
}

// The first Ctrl-C lets the command that runs finish, finishes its message, and gives the others back.
func TestWorkInterrupted(t *testing.T) {
	for _, test := range []struct {
		flag string
		code int
	}{
		{"--batch=5", ExitOK}, // without --until-empty there is no other end
		{"--until-empty", ExitInterrupted},
	} {
		t.Run(test.flag, func(t *testing.T) {
			app, q := onMemory(t, 5)
			ctx, interrupt := context.WithCancel(context.Background())
			defer interrupt()
			stdout, stderr := newScreen("started"), newScreen("stopping")
			release := filepath.Join(t.TempDir(), "go")
			go func() {
				<-stdout.seen
				interrupt()
				<-stderr.seen
				if err := os.WriteFile(release, nil, 0o600); err != nil {
					panic(err)
				}
			}()
			args := []string{"work", "--workers", "2", test.flag, "--exec",
				"echo started; while [ ! -e '" + release + "' ]; do sleep 0.01; done"}
			err := app.Run(ctx, args, nil, stdout, stderr)
			require.Equal(t, test.code, ExitCode(err), stderr.String())
			require.Contains(t, stderr.String(), "handled 1 message, 0 failed, 0 given back")
			requireGivenBack(t, q, 4)
		})
	}
}

// uncounted is an engine that no longer answers reads of the counters once stopped is set.
type uncounted struct {
	kv.DB
	stopped *atomic.Bool
}

func (u uncounted) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := u.DB.Begin(o)
	return uncountedTx{tx, u.stopped}, err
}

type uncountedTx struct {
	kv.ManagedTx
	stopped *atomic.Bool
}

func (t uncountedTx) Snapshot() kv.ReadTx {
	return uncountedSnapshot{t.ManagedTx.Snapshot(), t.stopped}
}

type uncountedSnapshot struct {
	kv.ReadTx
	stopped *atomic.Bool
}

func (s uncountedSnapshot) GetRange(r kv.Range, o kv.RangeOptions) kv.Future[[]kv.KV] {
	if s.stopped.Load() && bytes.Contains(r.Begin.Key, []byte("count")) {
		return late[[]kv.KV]{}
	}
	return s.ReadTx.GetRange(r, o)
}

// TestWorkInterruptedWithoutFigures: the exit code of an interrupted work is 130 also if the database does not answer
// how many messages have become dead letters.
func TestWorkInterruptedWithoutFigures(t *testing.T) {
	t.Parallel()
	app, q := onMemory(t, 1)
	open, stopped := app.Engines["disk"], new(atomic.Bool)
	app.Engines["disk"] = func(ctx context.Context, o EngineOptions) (kv.DB, error) {
		db, err := open(ctx, o)
		return uncounted{db, stopped}, err
	}
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	stdout, stderr := newScreen("started"), newScreen("stopping")
	command := pastInterrupt(t, stdout, stderr, func() {
		stopped.Store(true)
		interrupt()
	})
	err := app.Run(ctx, []string{"work", "--until-empty", "--exec", command}, nil, stdout, stderr)
	require.Equal(t, ExitInterrupted, ExitCode(err), stderr.String())
	require.Contains(t, stderr.String(), "handled 1 message, 0 failed")
	requireGivenBack(t, q, 0)
}

// pastInterrupt returns a command of a shell that calls interrupt, by its output, and lasts until work says that it
// stops. stdout is a screen for "started", and stderr for "stopping".
func pastInterrupt(t *testing.T, stdout, stderr *screen, interrupt func()) string {
	lasts := filepath.Join(t.TempDir(), "lasts")
	require.NoError(t, os.WriteFile(lasts, nil, 0o600))
	go func() {
		<-stdout.seen
		interrupt()
		<-stderr.seen
		if err := os.Remove(lasts); err != nil {
			panic(err)
		}
	}()
	return "echo started; while [ -e '" + lasts + "' ]; do sleep 0.01; done; "
}

// fillsUp is a screen that takes nothing more once it has shown its text.
type fillsUp struct{ *screen }

func (f fillsUp) Write(p []byte) (int, error) {
	select {
	case <-f.seen:
		return full{}.Write(p)
	default:
		return f.screen.Write(p)
	}
}

// TestWorkFailsBehindAnInterrupt: the command that still runs after the first Ctrl-C cannot print, or a part of it
// cannot be run. Work fails with the reason, and the message comes again.
func TestWorkFailsBehindAnInterrupt(t *testing.T) {
	t.Parallel()
	for _, test := range []struct{ then, says string }{
		{"echo more", "no space left on device"}, {"exit 127", "a command was not found"},
	} {
		for _, flags := range [][]string{nil, {"--until-empty"}, {"--max", "1"}} {
			app, q := onMemory(t, 1)
			ctx, interrupt := context.WithCancel(t.Context())
			defer interrupt()
			stdout, stderr := newScreen("started"), newScreen("stopping")
			command := pastInterrupt(t, stdout, stderr, interrupt) + test.then
			args := append([]string{"work", "--exec", command}, flags...)
			err := app.Run(ctx, args, nil, fillsUp{stdout}, stderr)
			require.Equal(t, ExitFailed, ExitCode(err), "%s %s: %s", test.then, flags, stderr.String())
			require.Contains(t, stderr.String(), test.says)
			requireGivenBack(t, q, 1)
		}
	}
}

// TestSignals: a process ends at the third signal, and 10 s after the second if there is no third.
func TestSignals(t *testing.T) {
	for sent, want := range map[int]string{1: "stop", 2: "stop kill exit", 3: "stop kill exit"} {
		synctest.Test(t, func(t *testing.T) {
			var did []string
			does := func(what string) func() { return func() { did = append(did, what) } }
			signals := make(chan os.Signal, 3)
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				obey(signals, does("stop"), does("kill"), does("exit"))
			}()
			for range sent {
				signals <- os.Interrupt
			}
			time.Sleep(time.Hour)
			synctest.Wait()
			require.Equal(t, want, strings.Join(did, " "))
			if sent == 1 {
				signals <- os.Interrupt
				signals <- os.Interrupt
			}
			<-ended
		})
	}
}

// The second Ctrl-C kills the command and the processes that it has started. Its message is returned, and no attempt is
// counted.
func TestWorkKilled(t *testing.T) {
	app, q := onMemory(t, 3)
	ctx, interrupt := context.WithCancel(context.Background())
	defer interrupt()
	kill := make(chan struct{})
	app.Kill = kill
	stdout, stderr := newScreen("started"), newScreen("stopping")
	go func() {
		<-stdout.seen
		interrupt()
		<-stderr.seen
		close(kill)
	}()
	err := app.Run(ctx, []string{"work", "--batch", "3", "--exec", "echo started; sleep 1000"}, nil, stdout, stderr)
	require.Equal(t, ExitInterrupted, ExitCode(err), stderr.String())
	require.Contains(t, stderr.String(), "handled 0 messages, 0 failed, 1 given back")
	requireGivenBack(t, q, 3)
}

// A command that fails gives its message back with the end of its stderr; it comes again, and its group's order
// holds.
func TestWorkRetries(t *testing.T) {
	app, q := onMemory(t, 3)
	stdout, stderr := newScreen(""), newScreen("")
	flaky := `if [ "$(cat)" = 1 ] && [ "$FDBFIFO_ATTEMPTS" = 0 ]; then echo no luck >&2; exit 3; fi; echo "$FDBFIFO_ID" | tail -c 2`
	err := app.Run(context.Background(), []string{"work", "--until-empty", "--exec", flaky}, nil, stdout, stderr)
	require.NoError(t, err)
	require.Equal(t, "g\ng\ng\n", stdout.String())
	require.Contains(t, stderr.String(), "exit status 3: no luck")
	require.Contains(t, stderr.String(), "handled 3 messages, 1 failed, 1 given back")
	st, err := q.Stats(context.Background(), layer.StatsOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 1, st.Nacked)
	require.Zero(t, st.Depth)
}

// Ctrl-C while stdin gives nothing more: the read cannot be interrupted, the command is. By default nothing has
// been enqueued then; with --partial what was read has.
func TestEnqueueInterrupted(t *testing.T) {
	for _, test := range []struct {
		flag string
		says string
		left int
	}{
		{"--partial", "1 message was enqueued", 1},
		{"--partial=false", "nothing was enqueued", 0},
	} {
		t.Run(test.flag, func(t *testing.T) {
			app, q := onMemory(t, 0)
			ctx, interrupt := context.WithCancel(context.Background())
			defer interrupt()
			in, out := io.Pipe()
			defer out.Close()
			go func() {
				fmt.Fprintln(out, `{"g":"a"}`)
				// The first has been enqueued, or spooled, when it can be seen; here the reader only has to be
				// back for more.
				fmt.Fprint(out, " ")
				for {
					page, err := q.Admin().Groups(context.Background(), layer.GroupsOptions{})
					if err != nil || len(page.Groups) == test.left {
						break
					}
				}
				interrupt()
			}()
			stderr := newScreen("")
			err := app.Run(ctx, []string{"enqueue", "--file", "-", "--format", "jsonl", test.flag}, in, io.Discard, stderr)
			require.Equal(t, ExitInterrupted, ExitCode(err), stderr.String())
			require.Contains(t, stderr.String(), test.says)
			requireGivenBack(t, q, test.left)
		})
	}
}

// Ctrl-C in the demo ends it with 130, removes its folder and judges nothing.
func TestDemoInterrupted(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	ctx, interrupt := context.WithCancel(context.Background())
	defer interrupt()
	stdout, stderr := newScreen("x"), newScreen("loaded")
	go func() {
		<-stderr.seen
		interrupt()
	}()
	err := Run(ctx, []string{"demo", "--in-process"}, nil, stdout, stderr)
	require.Equal(t, ExitInterrupted, ExitCode(err), stderr.String())
	require.True(t, errors.Is(err, errInterrupted))
	require.Empty(t, stdout.String())
	left, err := os.ReadDir(os.Getenv("TMPDIR"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// unread is a stream whose first write hangs until it is freed.
type unread struct {
	once        sync.Once
	begun, free chan struct{}
}

func (u *unread) Write(p []byte) (int, error) {
	u.once.Do(func() { close(u.begun) })
	<-u.free
	return len(p), nil
}

// TestWorkKilledWithoutStderr: nothing reads stderr, to which work writes how far it is. The second Ctrl-C still kills
// the command, and its message is given back.
func TestWorkKilledWithoutStderr(t *testing.T) {
	t.Parallel()
	app, q := onMemory(t, 1)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	kill := make(chan struct{})
	app.Kill = kill
	stdout, stderr := newScreen("started"), &unread{begun: make(chan struct{}), free: make(chan struct{})}
	free := sync.OnceFunc(func() { close(stderr.free) })
	defer free()
	ended := make(chan error, 1)
	go func() {
		ended <- app.Run(ctx, []string{"work", "--exec", "echo started; sleep 1000"}, nil, stdout, stderr)
	}()
	<-stdout.seen
	<-stderr.begun
	interrupt()
	close(kill)
	require.Eventually(t, func() bool {
		report, err := q.Admin().Check(t.Context(), layer.CheckOptions{})
		return err == nil && report.Held == 0
	}, time.Minute, 10*time.Millisecond, "the command was not killed")
	free()
	require.Equal(t, ExitInterrupted, ExitCode(<-ended))
	requireGivenBack(t, q, 1)
}

// TestWorkKilledWithoutReader: the output of work is a pipe without a reader. The first Ctrl-C still stops work, and
// the second one still kills the commands, also the one whose output hangs. No attempt is counted.
func TestWorkKilledWithoutReader(t *testing.T) {
	app, q := onMemory(t, 1)
	_, err := q.Enqueue(context.Background(), layer.Message{Group: "other", Body: []byte("other")})
	require.NoError(t, err)
	ctx, interrupt := context.WithCancel(context.Background())
	defer interrupt()
	kill := make(chan struct{})
	app.Kill = kill
	r, stdout := io.Pipe()
	defer r.Close()
	folder := t.TempDir()
	ended := make(chan error)
	stderr := newScreen("")
	command := "cd '" + folder + "'; touch $FDBFIFO_GROUP; if [ $FDBFIFO_GROUP = g ]; then echo x; fi; sleep 1000"
	go func() {
		ended <- app.Run(ctx, []string{"work", "--workers", "2", "--exec", command}, nil, stdout, stderr)
	}()
	for _, group := range []string{"g", "other"} {
		require.Eventually(t, func() bool {
			_, err := os.Stat(filepath.Join(folder, group))
			return err == nil
		}, time.Minute, time.Millisecond)
	}
	time.Sleep(10 * watchEvery) // for the line, and for a look of watch behind it
	interrupt()
	time.Sleep(10 * watchEvery)
	close(kill)
	select {
	case err := <-ended:
		require.Equal(t, ExitInterrupted, ExitCode(err), stderr.String())
	case <-time.After(time.Minute):
		t.Fatal("work goes on")
	}
	require.Contains(t, stderr.String(), "stopping")
	require.Contains(t, stderr.String(), "handled 0 messages, 0 failed, 2 given back")
	requireGivenBack(t, q, 2)
}
