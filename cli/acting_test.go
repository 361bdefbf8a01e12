package cli

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/layer"
)

// TestOperatorsAreNamed: each verb of an operator that the command has takes --by and --log, and leaves a line that
// says who has done what to what; what is refused leaves one too.
func TestOperatorsAreNamed(t *testing.T) {
	h := newHarness(t)
	ctx := t.Context()
	q, err := layer.Create(ctx, h.db, prefix(), "default", layer.Options{
		Now: h.clock.Now, Owner: "elsewhere", Config: layer.Config{Archive: 1e12, Changes: 1e12},
	})
	require.NoError(t, err)
	send := func(group string) layer.ID {
		sent, err := q.Enqueue(ctx, layer.Message{Group: group, Body: []byte("x")})
		require.NoError(t, err)
		return sent[0].ID
	}
	claim := func(group string) *layer.Claim {
		send(group)
		claims, err := q.Receive(ctx, layer.ReceiveOptions{Group: &group})
		require.NoError(t, err)
		return claims[0]
	}
	log := filepath.Join(t.TempDir(), "log")
	told := map[layer.Verb]bool{}
	act := func(v layer.Verb, args ...string) {
		t.Helper()
		var stderr bytes.Buffer
		args = append(args, "--by", "ann lee", "--log", log)
		require.NoError(t, h.app().Run(ctx, args, strings.NewReader(""), io.Discard, &stderr), stderr.String())
		text, err := os.ReadFile(log)
		require.NoError(t, err)
		lines := strings.Split(strings.TrimSpace(string(text)), "\n")
		require.Len(t, lines, len(told)+1)
		require.Contains(t, lines[len(told)], ` level=INFO msg="queue: `+string(v)+`" queue=default by="ann lee" `)
		told[v] = true
	}
	act(layer.VerbCancel, "cancel", send("a").String())
	act(layer.VerbEdit, "edit", send("b").String(), "--body", "y")
	act(layer.VerbSkip, "skip", "--group", "b")
	act(layer.VerbRedrive, "dead", "redrive", "--all", "--yes")
	send("c")
	_, err = q.Admin().Skip(ctx, "c", layer.SkipOptions{})
	require.NoError(t, err)
	act(layer.VerbDiscard, "dead", "discard", "--all", "--yes")
	act(layer.VerbPause, "pause", "--group", "d")
	act(layer.VerbResume, "resume", "--group", "d")
	claim("e")
	act(layer.VerbForceRelease, "release", "--group", "e", "--count-attempt")
	why, err := q.Admin().WhyGroup(ctx, "e", nil)
	require.NoError(t, err)
	require.Contains(t, why.String(), "released by ann lee, held by elsewhere")
	require.NoError(t, q.Nack(ctx, claim("f"), layer.NackOptions{Err: errors.New("no"), Delay: 1e12}))
	act(layer.VerbRetryNow, "retry", "--group", "f")
	act(layer.VerbSetGroupState, "state", "--group", "f", "--set", "x")
	act(layer.VerbPurge, "purge", "--all", "--yes")
	require.NoError(t, q.Ack(ctx, claim("g")))
	act(layer.VerbReplay, "archive", "replay", "--all", "--yes")
	act(layer.VerbConfigure, "config", "--set", "lease=1m")
	seen, cancel := context.WithCancel(ctx)
	require.NoError(t, q.Subscribe(seen, "s", func(context.Context, []layer.Change) error {
		cancel()
		return nil
	}, layer.SubscribeOptions{FromOldest: true, Kinds: []layer.ChangeKind{layer.ChangeEnqueued}}))
	act(layer.VerbUnsubscribe, "unsubscribe", "s")
	for _, v := range layer.Verbs() {
		require.Equal(t, v.Operator(), told[v], "%s", v)
	}

	args := []string{"cancel", layer.ID{Group: "a"}.String(), "--log", "-"}
	var stderr bytes.Buffer
	require.Error(t, h.app().Run(ctx, args, nil, io.Discard, &stderr))
	require.Contains(t, stderr.String(), ` level=WARN msg="queue: cancel" queue=default by=tester `)

	// One who cannot be named, or a log that cannot be written, is wrong usage, and nothing is done.
	kept := send("h").String()
	for _, flags := range [][]string{
		{"--by", strings.Repeat("x", 256+1)}, {"--log", filepath.Join(log, "x")},
	} {
		err = h.app().Run(ctx, append([]string{"cancel", kept}, flags...), nil, io.Discard, io.Discard)
		require.Equal(t, ExitUsage, ExitCode(err), "%v", err)
	}
	items, err := q.Peek(ctx, "h", 1, nil)
	require.NoError(t, err)
	require.Len(t, items, 1)
	require.NoError(t, q.Close(ctx))
}

// TestLogCannotBeWritten: an action whose line finds no room is done, and the command says both.
func TestLogCannotBeWritten(t *testing.T) {
	if _, err := os.Stat("/dev/full"); err != nil {
		t.Skip("SKIP: there is no /dev/full")
	}
	app, q := onMemory(t, 1)
	var stderr bytes.Buffer
	err := app.Run(t.Context(), []string{"purge", "--all", "--yes", "--log", "/dev/full"}, nil, io.Discard, &stderr)
	require.Equal(t, ExitOutput, ExitCode(err))
	require.Contains(t, stderr.String(), "The work of the command is done")
	requireGivenBack(t, q, 0)
}

// closing is a file whose Close fails, as on a full network file system.
type closing struct{ err error }

func (c closing) Close() error { return c.err }

// TestLogCannotBeClosed: the exit code of a command whose log cannot be closed says that its work is done.
func TestLogCannotBeClosed(t *testing.T) {
	t.Parallel()
	full := &os.PathError{Op: "close", Path: "log", Err: syscall.ENOSPC}
	for _, told := range []error{nil, &outputError{"write --log", full}} {
		w := &logWriter{err: told}
		err := errors.Join(nil, w.close(closing{full}))
		require.ErrorContains(t, err, "close --log")
		require.Equal(t, ExitOutput, ExitCode(err))
		require.Contains(t, (&session{}).explain(err), "Only the output is lost")
		require.Equal(t, told == nil, w.close(closing{}) == nil)
	}
}
