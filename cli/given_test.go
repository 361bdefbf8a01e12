package cli

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"fdbfifo/layer"
)

// forEachCommand calls fn with each command below c, hidden ones too.
func forEachCommand(c *cobra.Command, fn func(c *cobra.Command)) {
	for _, sub := range c.Commands() {
		fn(sub)
		forEachCommand(sub, fn)
	}
}

// commandNamed returns a command of a new tree.
func commandNamed(t *testing.T, path string) *cobra.Command {
	root, _ := (&session{app: New()}).root()
	c, _, err := root.Find(strings.Fields(path)[1:])
	require.NoError(t, err)
	return c
}

// TestGivenButEmptyIsRefused: no flag of a command means anything when it is given with an empty or a blank value, such
// as that of a shell's variable that is not set. The allow-lists name the exceptions, and no flag that is not there.
func TestGivenButEmptyIsRefused(t *testing.T) {
	t.Parallel()
	root, _ := (&session{app: New()}).root()
	flags, empty, blank := 0, map[string]bool{}, map[string]bool{}
	forEachCommand(root, func(c *cobra.Command) {
		c.InheritedFlags() // joins the flags of all commands to its own
		c.Flags().VisitAll(func(f *pflag.Flag) {
			for _, value := range []string{"", " \t"} {
				c := commandNamed(t, c.CommandPath())
				err := c.ParseFlags([]string{"--" + f.Name + "=" + value})
				if err == nil {
					err = c.Args(c, nil)
				}
				name := commandName(c) + " --" + f.Name
				switch {
				case value == "" && mayBeEmpty[name]:
					empty[name] = true
				case value != "" && mayBeBlank[f.Name]:
					blank[f.Name] = true
				default:
					require.Error(t, err, "%s=%q", name, value)
					require.Contains(t, err.Error(), "--"+f.Name, "%s=%q", name, value)
				}
			}
			flags++
		})
	})
	require.Greater(t, flags, 200)
	require.Equal(t, mayBeEmpty, empty)
	require.Equal(t, mayBeBlank, blank)
	for name := range insteadOfEmpty {
		require.Contains(t, []string{"group", "body", "prefix"}, name)
	}
}

// TestSwallowedFlagIsRefused: no flag is the value of the flag before it, as after a shell's variable that is not set
// and not quoted. A value behind the sign = is always meant, and so is a value that is no flag of the command.
func TestSwallowedFlagIsRefused(t *testing.T) {
	t.Parallel()
	root, _ := (&session{app: New()}).root()
	flags := 0
	forEachCommand(root, func(c *cobra.Command) {
		c.InheritedFlags() // joins the flags of all commands to its own
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.NoOptDefVal != "" {
				return
			}
			flags++
			for _, next := range []string{"--json", "--engine=memory", "--"} {
				err := checkSwallowed(c.Flags(), []string{c.Name(), "--" + f.Name, next})
				require.ErrorContains(t, err, "--"+f.Name+" has no value", "%s %s", c.CommandPath(), next)
				require.Equal(t, ExitUsage, ExitCode(err))
			}
			for _, words := range [][]string{
				{"--" + f.Name + "=--json"}, {"--" + f.Name, "json", "--json"}, {"--" + f.Name, "-1s"},
				{"--" + f.Name, "---"}, {"--" + f.Name, "--no-such"}, {"--" + f.Name},
				{"--", "--" + f.Name, "--json"},
			} {
				err := checkSwallowed(c.Flags(), append([]string{c.Name()}, words...))
				require.NoError(t, err, "%s %q", c.CommandPath(), words)
			}
		})
	})
	require.Greater(t, flags, 200)
	app, q := onMemory(t, 3)
	ctx := t.Context()
	_, err := q.Admin().Skip(ctx, "g", layer.SkipOptions{})
	require.NoError(t, err)
	for _, line := range []string{
		"dead discard --all --yes --by --dry-run", "dead discard --all --yes --text -n 1",
		"dead discard --all --yes --by -n1",
		"purge --all --yes --by --queue=test", "purge --all --yes --by --queue test",
		"purge --all --yes --log --queue=test", "--queue --json purge --all --yes", "pause --reason --group=g",
		"enqueue --body --group=g", "create --queue --json", "skip --group --by=ann", "drop --yes --queue --json",
	} {
		var stderr bytes.Buffer
		err := app.Run(ctx, strings.Fields(line), nil, io.Discard, &stderr)
		require.Equal(t, ExitUsage, ExitCode(err), "%s: %s", line, &stderr)
		require.Contains(t, stderr.String(), "has no value", line)
	}
	st, err := q.Stats(ctx, layer.StatsOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 2, st.Depth)
	require.EqualValues(t, 1, st.Dead)
	require.NoError(t, app.Run(ctx, []string{"enqueue", "--body=--group=g"}, nil, io.Discard, io.Discard))
	require.NoError(t, app.Run(ctx, []string{"enqueue", "--body", "-- a list"}, nil, io.Discard, io.Discard))
}

// TestGivenTwiceIsRefused: no flag drops a value that it was given before. A flag takes one value, or is a list.
func TestGivenTwiceIsRefused(t *testing.T) {
	t.Parallel()
	root, _ := (&session{app: New()}).root()
	once := 0
	forEachCommand(root, func(c *cobra.Command) {
		c.InheritedFlags() // joins the flags of all commands to its own
		c.Flags().VisitAll(func(f *pflag.Flag) {
			if f.Value.Type() == "bool" {
				return
			}
			values := map[string]string{
				"duration": "1s", "int": "1", "int64": "1", "uint64": "1", "float64": "1",
				"where": "a=b", "advance": "a=b",
			}
			given := "--" + f.Name + "=" + cmp.Or(values[f.Value.Type()], values[f.Name], "x")
			c := commandNamed(t, c.CommandPath())
			if c.ParseFlags([]string{given}) != nil {
				return // a value of this flag has a form of its own
			}
			err := c.ParseFlags([]string{given})
			if list, ok := c.Flags().Lookup(f.Name).Value.(pflag.SliceValue); ok {
				require.NoError(t, err)
				require.Len(t, list.GetSlice(), 2)
				return
			}
			require.ErrorContains(t, err, "given twice", "%s %s", c.CommandPath(), given)
			once++
		})
	})
	require.Greater(t, once, 100)
	app, q := onMemory(t, 1)
	_, err := q.Admin().Skip(t.Context(), "g", layer.SkipOptions{})
	require.NoError(t, err)
	var errs bytes.Buffer
	args := []string{"dead", "discard", "--text", "none", "--text", "skip", "--yes"}
	require.Equal(t, ExitUsage, ExitCode(app.Run(t.Context(), args, nil, io.Discard, &errs)))
	require.Contains(t, errs.String(), "--text")
	st, err := q.Stats(t.Context(), layer.StatsOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 1, st.Dead)
}

// TestEmptyArgumentsAreRefused: no empty word after a command means anything.
func TestEmptyArgumentsAreRefused(t *testing.T) {
	t.Parallel()
	root, _ := (&session{app: New()}).root()
	forEachCommand(root, func(c *cobra.Command) {
		err := c.Args(c, []string{""})
		require.Error(t, err, c.CommandPath())
		require.Contains(t, err.Error(), "argument 1 is empty")
	})
}

// TestEmptyChoosesNothing: commands that would have done more with an empty value do nothing, and say so.
func TestEmptyChoosesNothing(t *testing.T) {
	t.Parallel()
	app, q := onMemory(t, 3)
	ctx := context.Background()
	_, err := q.Enqueue(ctx, layer.Message{Body: []byte("of the default group")})
	require.NoError(t, err)
	_, err = q.Admin().Skip(ctx, "g", layer.SkipOptions{})
	require.NoError(t, err)
	for _, args := range [][]string{
		{"dead", "discard", "--text", "", "--yes"}, {"dead", "discard", "--group", "", "--yes"},
		{"dead", "discard", "--all", "--text", "", "--yes"}, {"dead", "discard", "", "--yes"},
		{"dead", "redrive", "--text", " ", "--yes"}, {"dead", "redrive", "--all", "--body", "", "--yes"},
		{"purge", "--group", "", "--yes"}, {"purge", "--yes"}, {"purge", "--all", "--group", "", "--yes"},
		{"archive", "replay", "--group", "", "--yes"}, {"drop", "", "--yes"}, {"drop", "--queue", "", "--yes"},
		{"pause", "--group", ""}, {"pause", "--reason", ""}, {"skip", "--group", ""}, {"receive", "--group", ""},
		{"receive", "--receive-id", ""}, {"receive", "--where", ""}, {"nack", "--reject", ""}, {"nack", "--error", ""},
		{"work", "--exec", " "}, {"work", "--exec", "true", "--group", ""}, {"work", "--exec", "true", "--where", ""},
		{"serve", "--sqs", "127.0.0.1:0", "--keys", ""},
		{"serve", "--sqs", "127.0.0.1:0", "--tls-cert", "", "--tls-key", ""},
		{"console", "--listen", "127.0.0.1:0", "--user-header", ""}, {"console", "--operators", ","},
		{"enqueue", "--body", "x", "--dedup-id", ""}, {"enqueue", "--body", "x", "--tenant", ""},
		{"enqueue", "--body", "x", "--group", ""}, {"enqueue", "--body", "x", "--queue", ""},
		{"enqueue", "--body", "x", "--prefix", ""}, {"enqueue", "--body", "x", "--directory", ""},
		{"config", "--set", "on_failure="}, {"config", "--set", "facets="}, {"create", "new", "--set", "views="},
		{"dead", "discard", "--all", "-n", "0", "--yes"}, {"dead", "redrive", "--group", "g", "-n", "0", "--yes"},
		{"archive", "replay", "--all", "--number", "0", "--yes"}, {"pause", "--default-group=false"},
		{"resume", "--default-group=false"}, {"work", "--exec", "true", "--default-group=false", "--until-empty"},
		{"work", "--exec", "true", "--where", "state=NEW", "--advance", "*", "--max", "1"},
		{"peek", "--by", ""}, {"cancel", layer.ID{Group: "g"}.String(), "--by", ""}, {"key", "item", ""},
	} {
		var stderr bytes.Buffer
		err := app.Run(ctx, args, strings.NewReader(""), io.Discard, &stderr)
		require.Equal(t, ExitUsage, ExitCode(err), "%q: %s", args, &stderr)
	}
	st, err := q.Stats(ctx, layer.StatsOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 3, st.Depth)
	require.EqualValues(t, 1, st.Dead)
	require.Zero(t, st.InFlight)
}

// TestEmptyInputIsNoBody: an input without a byte, such as the output of a command that has failed, replaces no body.
// Only the null device does. A redrive that replaces bodies says so in its question.
func TestEmptyInputIsNoBody(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	dead := fillBulk(t, h)
	empty := filepath.Join(t.TempDir(), "empty")
	require.NoError(t, os.WriteFile(empty, nil, 0o600))
	run := func(answer string, args ...string) (string, int) {
		app := h.app()
		onTerminal(app, answer != "", true)
		var stdout, stderr bytes.Buffer
		err := app.Run(t.Context(), args, strings.NewReader(answer), &stdout, &stderr)
		return stdout.String() + stderr.String(), ExitCode(err)
	}
	waiting, _ := run("", "peek", "--json", "-n", "1")
	id := regexp.MustCompile(`"id":"([^"]*)"`).FindStringSubmatch(waiting)[1]
	before := dump(t, h.db)
	for _, args := range [][]string{
		{"edit", id}, {"replace", id}, {"dead", "redrive", "--all", "--yes"}, {"dead", "redrive", dead.String()},
	} {
		for _, file := range []string{"-", empty} {
			said, code := run("", append(slices.Clone(args), "--file", file)...)
			require.Equal(t, ExitUsage, code, "%q: %s", args, said)
			require.Contains(t, said, "is empty: give a body, or --file /dev/null")
		}
	}
	require.Equal(t, before, dump(t, h.db))
	said, code := run("n\n", "dead", "redrive", "--all", "--body", "x")
	require.Equal(t, ExitFailed, code, said)
	require.Contains(t, said, "back to their groups with a new body. Continue?")
	for _, args := range [][]string{{"edit", id}, {"dead", "redrive", "--all", "--yes"}} {
		said, code := run("", append(args, "--file", os.DevNull)...)
		require.Equal(t, ExitOK, code, said)
	}
}

// TestGivenZero: a time of zero that is given is not one that is left out: it is refused, or it means no time at all.
func TestGivenZero(t *testing.T) {
	t.Parallel()
	app, q := onMemory(t, 1)
	ctx := context.Background()
	run := func(in []byte, args ...string) (string, error) {
		var stdout, stderr bytes.Buffer
		err := app.Run(ctx, args, bytes.NewReader(in), &stdout, &stderr)
		return stdout.String() + stderr.String(), err
	}
	for _, args := range [][]string{
		{"receive", "--lease", "0s"}, {"extend", "--lease", "0"}, {"work", "--exec", "true", "--lease", "0s"},
		{"dead", "list", "--older", "0s"}, {"top", "--every", "0s"}, {"blocked", "--held-for", "-1s"},
	} {
		out, err := run(nil, args...)
		require.Equal(t, ExitUsage, ExitCode(err), "%q: %s", args, out)
	}
	out, err := run(nil, "blocked", "--ready-for", "0s")
	require.NoError(t, err)
	require.Contains(t, out, "\ng ", "the group is ready for less than a minute")
	claim, err := run(nil, "receive")
	require.NoError(t, err)
	_, err = run([]byte(claim), "nack", "--delay", "0s")
	require.NoError(t, err)
	info, err := q.Admin().Group(ctx, "g", nil)
	require.NoError(t, err)
	require.Equal(t, layer.Ready, info.Status)
}

// TestDefaultGroup: --default-group is the group without a name, wherever there is a flag --group.
func TestDefaultGroup(t *testing.T) {
	t.Parallel()
	root, _ := (&session{app: New()}).root()
	forEachCommand(root, func(c *cobra.Command) {
		if c.Flags().Lookup("group") != nil {
			require.NotNil(t, c.Flags().Lookup(defaultGroup), c.CommandPath())
		}
	})
	app, q := onMemory(t, 1)
	ctx := context.Background()
	_, err := q.Enqueue(ctx, layer.Message{Body: []byte("x")})
	require.NoError(t, err)
	for _, args := range [][]string{
		{"peek"}, {"why"}, {"pause"}, {"resume"}, {"state"}, {"reschedule", "--after", "0s"}, {"purge", "--yes"},
	} {
		var stderr bytes.Buffer
		err := app.Run(ctx, append(args, "--default-group"), nil, io.Discard, &stderr)
		require.NoError(t, err, "%q: %s", args, &stderr)
		err = app.Run(ctx, append(args, "--default-group", "--group", "g"), nil, io.Discard, io.Discard)
		require.Equal(t, ExitUsage, ExitCode(err), "%q", args)
	}
	st, err := q.Stats(ctx, layer.StatsOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 1, st.Depth, "the group g is left")
}

// bulk are the commands that remove or change many messages at once, with the messages, dead letters and queues left.
var bulk = []struct {
	args              []string
	depth, dead, gone int
}{
	{args: []string{"purge", "--group", "g"}, depth: 0, dead: 1},
	{args: []string{"purge", "--all"}, depth: 0, dead: 1},
	{args: []string{"dead", "discard", "--all"}, depth: 2, dead: 0},
	{args: []string{"dead", "discard", "--text", "skipped"}, depth: 2, dead: 0},
	{args: []string{"dead", "redrive", "--group", "g"}, depth: 3, dead: 0},
	{args: []string{"archive", "replay", "--newer", "1h"}, depth: 3, dead: 1},
	{args: []string{"drop", "default"}, gone: 1},
}

// TestBulkAsks: a command that removes or changes many messages asks on a terminal, and wants --yes elsewhere. Without
// an answer it does nothing. A dry run and named dead letters ask for nothing.
func TestBulkAsks(t *testing.T) {
	t.Parallel()
	for _, b := range bulk {
		for _, test := range []struct {
			terminal bool
			says     string
			extra    []string
			code     int
			stderr   string
		}{
			{false, "y\n", nil, ExitUsage, "--yes"},
			{false, "", []string{"--yes"}, ExitOK, ""},
			{true, "", []string{"--yes"}, ExitOK, ""},
			{true, "y\n", nil, ExitOK, "Continue? [y/N] "},
			{true, "YES\n", nil, ExitOK, "Continue? [y/N] "},
			{true, "n\n", nil, ExitFailed, "nothing was done"},
			{true, "\n", nil, ExitFailed, "nothing was done"},
			{true, "", nil, ExitFailed, "nothing was done"},
		} {
			t.Run(fmt.Sprintf("%s %v %q", strings.Join(b.args, " "), test.terminal, test.says), func(t *testing.T) {
				h := newHarness(t)
				fillBulk(t, h)
				app := h.app()
				onTerminal(app, test.terminal, true)
				var stderr bytes.Buffer
				args := append(append([]string(nil), b.args...), test.extra...)
				err := app.Run(t.Context(), args, strings.NewReader(test.says), io.Discard, &stderr)
				require.Equal(t, test.code, ExitCode(err), stderr.String())
				require.Contains(t, stderr.String(), test.stderr)
				q, err := layer.Open(t.Context(), h.db, prefix(), "default", layer.Options{Now: h.clock.Now})
				if test.code == ExitOK && b.gone > 0 {
					require.ErrorIs(t, err, layer.ErrNoQueue)
					return
				}
				require.NoError(t, err)
				defer q.Close(t.Context())
				depth, dead := 2, 1
				if test.code == ExitOK {
					depth, dead = b.depth, b.dead
				}
				st, err := q.Stats(t.Context(), layer.StatsOptions{})
				require.NoError(t, err)
				require.EqualValues(t, depth, st.Depth)
				require.EqualValues(t, dead, st.Dead)
			})
		}
	}
}

// fillBulk makes a queue with two messages, a dead letter and an archived message, all of the group g.
func fillBulk(t *testing.T, h *harness) (dead layer.ID) {
	ctx := t.Context()
	q, err := layer.Create(ctx, h.db, prefix(), "default", layer.Options{
		Now: h.clock.Now, Config: layer.Config{Archive: time.Hour},
	})
	require.NoError(t, err)
	for range 4 {
		_, err := q.Enqueue(ctx, layer.Message{Group: "g", Body: []byte("x")})
		require.NoError(t, err)
	}
	claims, err := q.Receive(ctx, layer.ReceiveOptions{Max: 1})
	require.NoError(t, err)
	require.NoError(t, q.Ack(ctx, claims[0]))
	dead, err = q.Admin().Skip(ctx, "g", layer.SkipOptions{Reason: "skipped by a test"})
	require.NoError(t, err)
	require.NoError(t, q.Close(ctx))
	return dead
}

// TestNoQuestion: a dry run and named dead letters ask for nothing.
func TestNoQuestion(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	dead := fillBulk(t, h)
	for _, args := range [][]string{
		{"dead", "discard", "--all", "--dry-run"}, {"dead", "redrive", "--group", "g", "--dry-run"},
		{"archive", "replay", "--all", "--dry-run"}, {"dead", "discard", dead.String()},
	} {
		var stderr bytes.Buffer
		require.NoError(t, h.app().Run(t.Context(), args, nil, io.Discard, &stderr), "%q: %s", args, &stderr)
	}
}

// TestQuestionIsInterrupted: Ctrl-C at the question ends the command, which has done nothing.
func TestQuestionIsInterrupted(t *testing.T) {
	t.Parallel()
	h := newHarness(t)
	fillBulk(t, h)
	before := dump(t, h.db)
	app := h.app()
	onTerminal(app, true, true)
	ctx, interrupt := context.WithCancel(t.Context())
	defer interrupt()
	err := app.Run(ctx, []string{"purge", "--all"}, &mute{interrupt, t.Context().Done()}, io.Discard, io.Discard)
	require.True(t, errors.Is(err, errInterrupted))
	require.Equal(t, ExitInterrupted, ExitCode(err))
	require.Equal(t, before, dump(t, h.db))
}

// onTerminal says whether the command reads from a terminal, and prints to one.
func onTerminal(app *App, reads, prints bool) {
	app.terminal = func(io.Reader) bool { return reads }
	app.size = func(io.Writer) (int, int, bool) { return 80, 24, prints }
}

// TestUnseenQuestion: a question that cannot be seen is not asked: --yes is wanted if stderr is no terminal.
func TestUnseenQuestion(t *testing.T) {
	t.Parallel()
	app, q := onMemory(t, 3)
	onTerminal(app, true, false)
	var stderr bytes.Buffer
	err := app.Run(t.Context(), []string{"purge", "--all"}, strings.NewReader("y\n"), io.Discard, &stderr)
	require.Equal(t, ExitUsage, ExitCode(err), stderr.String())
	require.Contains(t, stderr.String(), "give --yes")
	requireGivenBack(t, q, 3)
}

// TestTerminalIsAsked: a file is no terminal, and neither is what is no file.
func TestTerminalIsAsked(t *testing.T) {
	t.Parallel()
	file, err := os.CreateTemp(t.TempDir(), "")
	require.NoError(t, err)
	defer file.Close()
	require.False(t, terminalInput(file))
	require.False(t, terminalInput(strings.NewReader("y\n")))
}

// TestPauseOfTheQueueIsMeant: only a command without --group pauses or resumes the whole queue. A group that is given
// and empty, given without a value, or given twice never stands for the queue, and neither does --default-group.
func TestPauseOfTheQueueIsMeant(t *testing.T) {
	t.Parallel()
	app, q := onMemory(t, 1)
	ctx := t.Context()
	forms := [][]string{
		{"--group", ""}, {"--group="}, {"--group"}, {"--group", "g", "--group", ""},
		{"--group", "", "--group", "g"}, {"--group", "g", "--group", "h"}, {"--group", "", "--default-group"},
		{"--default-group=false"}, {"--group", "g", "--default-group=false"}, {""}, {"g"},
	}
	refusedAll := func(verb string) {
		for _, form := range forms {
			var stderr bytes.Buffer
			err := app.Run(ctx, append([]string{verb}, form...), nil, io.Discard, &stderr)
			require.Equal(t, ExitUsage, ExitCode(err), "%s %q: %s", verb, form, &stderr)
		}
	}
	refusedAll("pause")
	_, paused, err := q.Admin().Paused(ctx)
	require.NoError(t, err)
	require.False(t, paused)
	require.NoError(t, app.Run(ctx, []string{"pause"}, nil, io.Discard, io.Discard))
	refusedAll("resume")
	_, paused, err = q.Admin().Paused(ctx)
	require.NoError(t, err)
	require.True(t, paused)
}
