package cli

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/fault"
	"fdbfifo/layer"
)

// brokenFolder makes a folder with a queue: a message in flight in group a, and one that waits in b. The claim is as
// receive prints it.
func brokenFolder(t *testing.T, path string) (claim []byte) {
	db, err := embedded.OpenDisk(path, embedded.Options{})
	require.NoError(t, err)
	app := &App{Engines: map[string]OpenFunc{"disk": func(context.Context, EngineOptions) (kv.DB, error) {
		return shared{db}, nil
	}}}
	var out, errs bytes.Buffer
	for _, args := range [][]string{{"enqueue", "--group", "a", "--body", "x"}, {"receive"},
		{"enqueue", "--group", "b", "--body", "y"}} {
		out.Reset()
		require.NoError(t, app.Run(context.Background(), args, nil, &out, &errs), errs.String())
		if args[0] == "receive" {
			claim = bytes.Clone(out.Bytes())
		}
	}
	require.NoError(t, db.Close())
	return claim
}

// outcomeCommands change the queue of brokenFolder. Each reads the claim from stdin, if it wants one.
var outcomeCommands = [][]string{
	{"enqueue", "--group", "b", "--body", "z"}, {"receive"}, {"ack"}, {"nack"}, {"nack", "--reject", "bad"}, {"extend"},
	{"skip", "--group", "b"}, {"release", "--group", "a"}, {"pause", "--group", "b"},
	{"purge", "--group", "b", "--yes"},
	{"config", "--set", "lease=1h"}, {"state", "--group", "b", "--set", "s"}, {"create", "--queue", "new"},
}

// A command whose commit may have landed says so: its exit code is one of its own, and the text says how to find out.
// It does not say "failed", after which a script would do it again.
func TestUnknownOutcomeIsTold(t *testing.T) {
	broken := errors.New("sync: input/output error")
	ways := map[string]struct {
		open OpenFunc
		says string
	}{
		"folder": {func(_ context.Context, o EngineOptions) (kv.DB, error) {
			return embedded.OpenDisk(o.Arg, embedded.Options{Hooks: embedded.Hooks{
				Synced: func(err error) error { return errors.Join(err, broken) },
			}})
		}, broken.Error()},
		"code that says nothing": {func(_ context.Context, o EngineOptions) (kv.DB, error) {
			db, err := embedded.OpenDisk(o.Arg, embedded.Options{})
			if err != nil {
				return nil, err
			}
			return fault.Wrap(db, &fault.Plan{Chances: map[fault.Kind]float64{fault.UnnamedApplied: 1}}), nil
		}, "4100"},
	}
	whole := t.TempDir()
	claim := brokenFolder(t, whole)
	before := content(t, whole)
	for way, c := range ways {
		for _, args := range outcomeCommands {
			t.Run(way+" "+args[0], func(t *testing.T) {
				path := t.TempDir()
				require.NoError(t, os.CopyFS(path, os.DirFS(whole)))
				app := &App{Engines: map[string]OpenFunc{"disk": c.open}}
				var stdout, stderr bytes.Buffer
				args := append(append([]string(nil), args...), "--engine", "disk:"+path)
				err := app.Run(context.Background(), args, bytes.NewReader(claim), &stdout, &stderr)
				require.Equal(t, ExitUnknown, ExitCode(err), stderr.String())
				if args[0] == "purge" {
					require.Equal(t, "purged 0 messages\n", stdout.String())
					require.Contains(t, stderr.String(), "A count above leaves it out")
				} else {
					require.Empty(t, stdout.String(), "nothing is printed as done")
				}
				require.Contains(t, stderr.String(), "It may have landed. Look before you do it again")
				require.Contains(t, stderr.String(), c.says)
				require.NotEqual(t, before, content(t, path), "it had landed")
			})
		}
	}
}

// content is all rows of a folder.
func content(t *testing.T, path string) (rows []kv.KV) {
	db, err := embedded.OpenDisk(path, embedded.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	for row, err := range kv.Rows(t.Context(), db, kv.KeyRange{End: []byte{0xff}}) {
		require.NoError(t, err)
		rows = append(rows, row)
	}
	return rows
}

// An outcome that is unknown is told first, whatever else has come with it: a refusal that a retry has met, an
// interrupt, another claim's error.
func TestUnknownBeforeAllElse(t *testing.T) {
	unknown, s := &kv.Error{Code: kv.CodeCommitUnknownResult}, &session{}
	for _, err := range []error{
		unknown,
		&kv.Error{Code: kv.CodeCommitUnknownResult, Cause: layer.ErrClaimLost},
		&kv.Error{Code: kv.CodeOperationCancelled, InFlight: true, Cause: context.Canceled},
		s.lost(errors.Join(layer.ErrClaimLost, unknown)),
		s.refused(errors.Join(layer.ErrNoItem, unknown)),
		errors.Join(&kv.Error{Code: kv.CodeNotCommitted}, unknown),
	} {
		require.Equal(t, ExitUnknown, ExitCode(err), "%v", err)
		require.Contains(t, s.explain(err), "It may have landed. Look before you do it again", "%v", err)
	}
	require.Equal(t, ExitFailed, ExitCode(&kv.Error{Code: kv.CodeNotCommitted}))
}

// The exit code of a command is true, whatever write of it fails: 0 = it is done, 9 = it may have landed. A write that
// fails behind the work itself, at the end of the command, does not make the command a failed one.
func TestExitCodeIsTrue(t *testing.T) {
	whole := t.TempDir()
	claim := brokenFolder(t, whole)
	for _, args := range outcomeCommands {
		t.Run(args[0], func(t *testing.T) {
			for failing := 1; ; failing++ {
				path, writes := t.TempDir(), 0
				require.NoError(t, os.CopyFS(path, os.DirFS(whole)))
				open := func(_ context.Context, o EngineOptions) (kv.DB, error) {
					return embedded.OpenDisk(o.Arg, embedded.Options{Hooks: embedded.Hooks{Apply: func() error {
						if writes++; writes == failing {
							return errors.New("write: input/output error")
						}
						return nil
					}}})
				}
				app := &App{Engines: map[string]OpenFunc{"disk": open}}
				var stdout, stderr bytes.Buffer
				args := append(append([]string(nil), args...), "--engine", "disk:"+path)
				err := app.Run(context.Background(), args, bytes.NewReader(claim), &stdout, &stderr)
				if failing == 1 {
					require.Equal(t, ExitUnknown, ExitCode(err), stderr.String())
				} else {
					require.Equal(t, ExitOK, ExitCode(err), "write %d: %s", failing, stderr.String())
					require.NotEmpty(t, stdout.String())
				}
				if writes < failing {
					return
				}
			}
		})
	}
}

// archivedFolder makes a folder with a queue that has n archived messages in the group g.
func archivedFolder(t *testing.T, path string, n int) {
	db, err := embedded.OpenDisk(path, embedded.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, db.Close()) }()
	q, err := layer.Create(t.Context(), db, prefix(), "default", layer.Options{
		Config: layer.Config{Archive: time.Hour},
	})
	require.NoError(t, err)
	for range n {
		_, err := q.Enqueue(t.Context(), layer.Message{Group: "g", Body: []byte("x")})
		require.NoError(t, err)
	}
	for left := n; left > 0; {
		claims, err := q.Receive(t.Context(), layer.ReceiveOptions{Max: left})
		require.NoError(t, err)
		left -= len(claims[0].Items)
		require.NoError(t, q.Ack(t.Context(), claims[0]))
	}
	require.NoError(t, q.Close(t.Context()))
}

// failingAt opens folders whose n-th commit lands, and then returns a code that says nothing.
func failingAt(n int) *App {
	commits := 0
	return &App{Engines: map[string]OpenFunc{"disk": func(_ context.Context, o EngineOptions) (kv.DB, error) {
		db, err := embedded.OpenDisk(o.Arg, embedded.Options{})
		if err != nil {
			return nil, err
		}
		return fault.Wrap(db, &fault.Plan{OnCommit: func(int, kv.Tx) fault.Kind {
			if commits++; commits == n {
				return fault.UnnamedApplied
			}
			return fault.None
		}}), nil
	}}}
}

// TestUnknownStepIsNoPlaceToContinue: a replay, and an enqueue of a file, whose last step has an unknown outcome names
// no place to continue behind, because the messages of that step would be enqueued twice. It says how to look.
func TestUnknownStepIsNoPlaceToContinue(t *testing.T) {
	t.Parallel()
	whole := t.TempDir()
	archivedFolder(t, whole, 120)
	records := filepath.Join(t.TempDir(), "records.jsonl")
	require.NoError(t, os.WriteFile(records, bytes.Repeat([]byte("{\"n\":1}\n"), 1200), 0o600))
	for name, c := range map[string]struct {
		args, says []string
	}{
		"text": {
			[]string{"archive", "replay", "--all", "--yes"}, []string{"replayed 50 messages", "archive list --after "},
		},
		"JSON": {
			[]string{"archive", "replay", "--all", "--yes", "--json"}, []string{`"number":50`, "archive list --after "},
		},
		"file": {
			[]string{"enqueue", "--file", records},
			[]string{"500 messages were enqueued before", "behind line 500 may be"},
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := t.TempDir()
			require.NoError(t, os.CopyFS(path, os.DirFS(whole)))
			var stdout, stderr bytes.Buffer
			args := append(append([]string(nil), c.args...), "--engine", "disk:"+path)
			err := failingAt(2).Run(t.Context(), args, nil, &stdout, &stderr)
			require.Equal(t, ExitUnknown, ExitCode(err), "%s%s", &stdout, &stderr)
			require.NotContains(t, stdout.String(), "--after")
			require.NotContains(t, stdout.String(), `"last"`)
			require.NotContains(t, stderr.String(), "to continue, leave out")
			for _, text := range c.says {
				require.Contains(t, stdout.String()+stderr.String(), text)
			}
		})
	}
}

// TestStoredSettingsAreTold: a change of the settings that is stored is printed, also if one of the steps behind fails
// or is interrupted. The error says that the settings are stored.
func TestStoredSettingsAreTold(t *testing.T) {
	t.Parallel()
	whole := t.TempDir()
	brokenFolder(t, whole)
	args := []string{"config", "--set", "shards=4", "--json", "--engine"}
	requireStored := func(err error, code int, stdout, stderr string) {
		require.Equal(t, code, ExitCode(err), stderr)
		require.Contains(t, stdout, `"version":2`)
		require.Contains(t, stderr, "the settings are stored as above")
		require.Contains(t, stderr, " sweep does the rest.")
	}
	path := t.TempDir()
	require.NoError(t, os.CopyFS(path, os.DirFS(whole)))
	var stdout, stderr bytes.Buffer
	err := failingAt(2).Run(t.Context(), append(args, "disk:"+path), nil, &stdout, &stderr)
	requireStored(err, ExitUnknown, stdout.String(), stderr.String())

	synctest.Test(t, func(t *testing.T) {
		app, _ := onMemory(t, 0)
		// The change takes two seconds.
		ctx, interrupt := context.WithTimeoutCause(t.Context(), time.Second, context.Canceled)
		defer interrupt()
		var stdout, stderr bytes.Buffer
		err := app.Run(ctx, append(args, "disk"), nil, &stdout, &stderr)
		requireStored(err, ExitInterrupted, stdout.String(), stderr.String())
	})
}
