package cli

import (
	"bytes"
	"context"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// twoEngines is the command line over two databases, and their contents. disk is the default engine, and other is named
// by --engine. Both have the queue "default" with three messages of the group g.
func twoEngines(t *testing.T) (*App, map[string]kv.DB) {
	dbs, engines := map[string]kv.DB{}, map[string]OpenFunc{}
	for _, name := range []string{"disk", "other"} {
		db := embedded.OpenMemory(embedded.Options{})
		t.Cleanup(func() { require.NoError(t, db.Close()) })
		dbs[name] = db
		engines[name] = func(context.Context, EngineOptions) (kv.DB, error) { return shared{db}, nil }
		fillQueue(t, db, prefix(), "default", 3)
	}
	return &App{Engines: engines}, dbs
}

// fillQueue makes a queue with n messages of the group g.
func fillQueue(t *testing.T, db kv.DB, prefix []byte, name string, n int) {
	q, err := layer.Create(t.Context(), db, prefix, name, layer.Options{})
	require.NoError(t, err)
	for range n {
		_, err := q.Enqueue(t.Context(), layer.Message{Group: "g", Body: []byte("x")})
		require.NoError(t, err)
	}
	require.NoError(t, q.Close(t.Context()))
}

// statsOf returns the counts of a queue.
func statsOf(t *testing.T, db kv.DB, prefix []byte, name string) layer.Stats {
	q, err := layer.Open(t.Context(), db, prefix, name, layer.Options{})
	require.NoError(t, err)
	defer func() { require.NoError(t, q.Close(t.Context())) }()
	st, err := q.Stats(t.Context(), layer.StatsOptions{})
	require.NoError(t, err)
	return st
}

// TestRemedyActsOnTheSameQueue: the command that advice prints, run as it is, acts on the queue that the advice is
// about. It changes no other queue, in this database or in that of the default engine.
func TestRemedyActsOnTheSameQueue(t *testing.T) {
	t.Parallel()
	shop := []byte("shop/")
	for name, c := range map[string]struct {
		prepare func(t *testing.T, db kv.DB)
		args    []string
		code    int
		verb    string // of the command that is printed
		mended  func(t *testing.T, db kv.DB)
	}{
		"demo": {
			func(t *testing.T, db kv.DB) { fillQueue(t, db, prefix(), "demo", 1) },
			[]string{"demo", "--engine", "other"}, ExitFailed, "work",
			func(t *testing.T, db kv.DB) { require.Zero(t, statsOf(t, db, prefix(), "demo").Depth) },
		},
		"drop": {
			func(t *testing.T, db kv.DB) {
				fillQueue(t, db, shop, "default", 1)
				_, err := kv.Run(t.Context(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
					key := append(slices.Clone(shop), tuple.Tuple{"default", "meta", "dropped"}.Pack()...)
					tx.Set(key, tuple.Tuple{1}.Pack())
					return nil
				})
				require.NoError(t, err)
			},
			[]string{"stats", "--engine", "other", "--prefix", "shop/"}, ExitNoQueue, "drop",
			func(t *testing.T, db kv.DB) {
				names, err := layer.Queues(t.Context(), db, shop)
				require.NoError(t, err)
				require.Empty(t, names)
			},
		},
		"work": {
			func(t *testing.T, db kv.DB) {
				o := layer.Options{Config: layer.Config{MaxAttempts: 1}}
				q, err := layer.Create(t.Context(), db, shop, "two words", o)
				require.NoError(t, err)
				_, err = q.Enqueue(t.Context(), layer.Message{Group: "g", Body: []byte("x")})
				require.NoError(t, err)
				require.NoError(t, q.Close(t.Context()))
			},
			[]string{
				"work", "--engine", "other", "--prefix", "shop/", "--queue", "two words",
				"--until-empty", "--exec", "exit 3",
			}, ExitFailed, "dead redrive",
			func(t *testing.T, db kv.DB) { require.EqualValues(t, 1, statsOf(t, db, shop, "two words").Depth) },
		},
		"work of a group": {
			func(t *testing.T, db kv.DB) {
				o := layer.Options{Config: layer.Config{MaxAttempts: 1}}
				q, err := layer.Create(t.Context(), db, shop, "default", o)
				require.NoError(t, err)
				_, err = q.Enqueue(t.Context(), layer.Message{Group: "other", Body: []byte("x")})
				require.NoError(t, err)
				claims, err := q.Receive(t.Context(), layer.ReceiveOptions{})
				require.NoError(t, err)
				require.NoError(t, q.Nack(t.Context(), claims[0], layer.NackOptions{}), "an older dead letter")
				_, err = q.Enqueue(t.Context(), layer.Message{Group: "two words", Body: []byte("x")})
				require.NoError(t, err)
				require.NoError(t, q.Close(t.Context()))
			},
			[]string{
				"work", "--engine", "other", "--prefix", "shop/", "--group", "two words", "--until-empty",
				"--exec", "exit 3",
			}, ExitFailed, "dead redrive",
			func(t *testing.T, db kv.DB) {
				stats := statsOf(t, db, shop, "default")
				require.EqualValues(t, []int64{1, 1}, []int64{stats.Depth, stats.Dead}, "of the other group none")
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			app, dbs := twoEngines(t)
			c.prepare(t, dbs["other"])
			var stderr bytes.Buffer
			err := app.Run(t.Context(), c.args, nil, io.Discard, &stderr)
			require.Equal(t, c.code, ExitCode(err), &stderr)
			line := regexp.MustCompile(`fdbfifo ((--\S+ ('[^']*'|\S+) )*` + c.verb + ` [^\n;]*?)( ends| gives|\n)`).
				FindStringSubmatch(stderr.String())
			require.NotEmpty(t, line, &stderr)
			stderr.Reset()
			err = app.Run(t.Context(), shellWords(line[1]), nil, io.Discard, &stderr)
			require.NoError(t, err, "%s: %s", line[1], &stderr)
			c.mended(t, dbs["other"])
			for name, db := range dbs {
				require.EqualValues(t, 3, statsOf(t, db, prefix(), "default").Depth, name)
			}
		})
	}
}

// TestPlaceToContinueIsAWord: the id with which a list or a replay continues can be copied into a command line. The
// shell reads it as it is, whatever a producer has put into the name of the group.
func TestPlaceToContinueIsAWord(t *testing.T) {
	t.Parallel()
	app, q := onMemory(t, 0)
	_, _, err := q.Admin().Configure(t.Context(), func(c *layer.Config) { c.Archive = time.Hour })
	require.NoError(t, err)
	var ids []string
	for i := range 4 {
		sent, err := q.Enqueue(t.Context(), layer.Message{Group: "a$b;c"})
		require.NoError(t, err)
		ids = append(ids, sent[0].ID.String())
		claims, err := q.Receive(t.Context(), layer.ReceiveOptions{})
		require.NoError(t, err)
		require.Len(t, claims, 1)
		if i < 2 {
			require.NoError(t, q.Ack(t.Context(), claims[0]))
		} else {
			require.NoError(t, q.Nack(t.Context(), claims[0], layer.NackOptions{Reject: "bad"}))
		}
	}
	for _, test := range []struct{ command, id string }{
		{"archive list", ids[0]}, {"archive replay --all --yes", ids[0]}, {"dead list", ids[2]},
	} {
		var out bytes.Buffer
		args := append(strings.Fields(test.command), "-n", "1")
		require.NoError(t, app.Run(t.Context(), args, nil, &out, &out), &out)
		require.Contains(t, out.String(), "--after '"+test.id+"'\n", test.command)
	}
}

// TestPrintedCommandsHaveAPlace: every command that this package prints is made by session.command, or by one of the
// functions under it. A text with the program's name and a command would act on another queue. Help and
// headings are excepted.
func TestPrintedCommandsHaveAPlace(t *testing.T) {
	t.Parallel()
	root, _ := (&session{app: New()}).root()
	var names []string
	for _, c := range root.Commands() {
		names = append(names, c.Name())
	}
	printed := regexp.MustCompile(`fdbfifo (-[^ ]* )*(` + strings.Join(names, "|") + `)\b`)
	excepted := []string{
		"fdbfifo top   ", "fdbfifo top   %s   %s", "also serve the console at this `ADDRESS`, see fdbfifo console",
		`- machine: %s\n- date: %s\n- command: ` + "`fdbfifo bench --engine %s --plot %s`" + `\n\n`,
	}
	paths, err := filepath.Glob("*.go")
	require.NoError(t, err)
	texts := 0
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") {
			continue
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, path, nil, 0)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.KeyValueExpr:
				name, ok := n.Key.(*ast.Ident)
				return !ok || name.Name != "Example"
			case *ast.ValueSpec:
				return !strings.HasSuffix(n.Names[0].Name, "Help")
			case *ast.BasicLit:
				texts++
				at := files.Position(n.Pos())
				known := slices.Contains(excepted, strings.Trim(n.Value, "\""))
				require.False(t, printed.MatchString(n.Value) && !known, "%s: no place for %s", at, n.Value)
			}
			return true
		})
	}
	require.Greater(t, texts, 1000)
}

// TestShellWord: a shell reads the word that was quoted, whatever is in it, and a terminal gets no control character.
func TestShellWord(t *testing.T) {
	t.Parallel()
	for _, word := range []string{
		"plain", "", "two words", "it's", "$HOME `x` \"", "-dash", "a\x1bb", "line\nfeed", "'\t\\", "é\x7f\xff",
		"a\u202eb", "a\xff",
	} {
		quoted := shellWord(word)
		require.False(t, strings.ContainsFunc(quoted, func(r rune) bool { return !unicode.IsPrint(r) }), quoted)
		require.NotContains(t, quoted, "\xff")
		shell, err := exec.LookPath("bash")
		if err != nil {
			continue // another shell may not know $'…'
		}
		read, err := exec.Command(shell, "-c", "printf %s "+quoted).Output()
		require.NoError(t, err)
		require.Equal(t, word, string(read), quoted)
	}
	s := &session{queue: "-x"}
	require.Contains(t, s.command("stats"), " --queue=-x stats")
}
