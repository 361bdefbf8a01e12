package cli

import (
	"context"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/spf13/pflag"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv/embedded"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// The transcripts in docs/fdbcli.md are those in testdata/fdbcli.txt, which decode is tested with, and each range in
// them is one that key knows.
func TestFdbcliDocs(t *testing.T) {
	docs, err := os.ReadFile("../docs/fdbcli.md")
	require.NoError(t, err)
	captured, err := os.ReadFile("testdata/fdbcli.txt")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```console\n(.*?)```").FindAllStringSubmatch(string(docs), -1)
	require.Greater(t, len(blocks), 7)
	keys := 0
	for _, block := range blocks {
		command, output, ok := strings.Cut(block[1], "\n")
		require.True(t, ok)
		require.True(t, strings.HasPrefix(command, "$ fdbcli "), command)
		if m := regexp.MustCompile(`\$\(fdbfifo (key [^)|]*)`).FindStringSubmatch(command); m != nil {
			require.NoError(t, Run(context.Background(), strings.Fields(m[1]), nil, io.Discard, io.Discard), command)
			keys++
		}
		if strings.Contains(command, "grep -c") {
			continue // a number, not what fdbcli prints
		}
		require.Contains(t, string(captured), "\n"+output, command)
	}
	require.Greater(t, keys, 7)
}

// Every kind of key is in the table in layer/subspace.go, and no other; in the table of docs/fdbcli.md, with what key
// says of groups; and decode is tested with one of it.
func TestEveryKindOfKeyIsDocumented(t *testing.T) {
	read := func(path string) string {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		return string(text)
	}
	docs, source := read("../docs/fdbcli.md"), read("../layer/subspace.go")
	golden := read("testdata/decode.txt") + read("testdata/fdbcli.txt")
	var rows []string
	for _, row := range regexp.MustCompile(`(?m)^// *\t([a-z]+) +\("([a-z]+)",`).FindAllStringSubmatch(source, -1) {
		require.Equal(t, row[1], row[2])
		rows = append(rows, row[1])
	}
	slices.Sort(rows)
	require.Equal(t, layer.KeyNames(), slices.Compact(rows), "the table in layer/subspace.go")
	for _, name := range layer.KeyNames() {
		byGroup := ""
		if slices.Contains(keysByGroup(), name) {
			byGroup = " yes"
		}
		require.True(t, strings.Contains(docs, "\n| `"+name+"` |"+byGroup+" |"),
			"%s in the table of docs/fdbcli.md", name)
		require.True(t, strings.Contains(golden, `, "`+name+`", `), "%s in testdata/decode.txt", name)
	}
	kinds := regexp.MustCompile("(?m)^\\| `([a-z]+)` \\|( yes)? \\|").FindAllStringSubmatch(docs, -1)
	require.Len(t, kinds, len(layer.KeyNames()), "no kind that there is not")
}

// TestLogLinesAreDocumented: docs/telemetry.md has every line that is written to a log, with its levels, and every
// verb.
func TestLogLinesAreDocumented(t *testing.T) {
	docs, err := os.ReadFile("../docs/telemetry.md")
	require.NoError(t, err)
	documented := map[string][]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\| ((?:debug|info|warn|error)[a-z, ]*) \\|").
		FindAllStringSubmatch(string(docs), -1) {
		documented[row[1]] = append(documented[row[1]], strings.Split(row[2], ", ")...)
	}
	written := map[string][]string{
		"queue: VERB": {"debug", "error", "info", "warn"}, "sqs: request": {"debug", "error"},
	}
	report := regexp.MustCompile(`\bReport\("([^"]+)"`)
	line := regexp.MustCompile(`(?:emit\([^"]*slog\.Level([A-Z][a-z]+)|(?:log|[lL]ogger)\.(Debug|Info|Warn|Error)\(|` +
		`\.Log\(context\.Background\(\), level),? ?"([^"]+)"`)
	for _, dir := range []string{
		"../kv", "../layer", "../worker", "../console", "../sqs", "../metrics", "../otelfifo", "../internal/callback",
		".",
	} {
		files, err := filepath.Glob(dir + "/*.go")
		require.NoError(t, err)
		for _, file := range files {
			text, err := os.ReadFile(file)
			require.NoError(t, err)
			if strings.HasSuffix(file, "_test.go") {
				continue
			}
			for _, m := range report.FindAllStringSubmatch(string(text), -1) {
				written[m[1]] = append(written[m[1]], "error")
			}
			for _, m := range line.FindAllStringSubmatch(string(text), -1) {
				if level := strings.ToLower(m[1] + m[2]); level != "" {
					written[m[3]] = append(written[m[3]], level)
				} else {
					require.Contains(t, written, m[3])
				}
			}
		}
	}
	require.Greater(t, len(written), 15)
	for _, levels := range []map[string][]string{documented, written} {
		for text := range levels {
			slices.Sort(levels[text])
			levels[text] = slices.Compact(levels[text])
		}
	}
	require.Equal(t, written, documented)
	for _, v := range layer.Verbs() {
		require.Contains(t, string(docs), "`"+string(v)+"`")
	}
}

// goText is the text of the files that docs quote from: examples, and the tests among which they are.
func goText(t *testing.T) string {
	var all strings.Builder
	for _, dir := range []string{
		"../layer", "../worker", "../kv", "../fdbkv", "../examples", "../internal/release/testdata",
	} {
		require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			isExample := strings.HasPrefix(filepath.Base(path), "example") || strings.HasPrefix(dir, "../examples") ||
				strings.HasPrefix(dir, "../internal")
			if err != nil || d.IsDir() || filepath.Ext(path) != ".go" || !isExample {
				return err
			}
			text, err := os.ReadFile(path)
			all.Write(text)
			return err
		}))
	}
	return all.String()
}

// folded is a text with single blanks.
func folded(text string) string { return strings.Join(strings.Fields(text), " ") }

// TestGuide: docs/guide.md has fifteen steps. Each step names an example or a test that exists, or links to a Go file
// that exists. The code that a step quotes is in the tree. A target of make that a step names is in the Makefile.
func TestGuide(t *testing.T) {
	text, err := os.ReadFile("../docs/guide.md")
	require.NoError(t, err)
	makefile, err := os.ReadFile("../Makefile")
	require.NoError(t, err)
	source := goText(t)
	code := folded(source)
	steps := regexp.MustCompile(`(?m)^## `).Split(string(text), -1)[1:]
	require.Len(t, steps, 15)
	for i, step := range steps {
		title, _, _ := strings.Cut(step, "\n")
		require.True(t, strings.HasPrefix(title, strconv.Itoa(i+1)+" "), title)
		runs := 0
		for _, m := range regexp.MustCompile("`((?:Example|Test)[A-Za-z_]*)`").FindAllStringSubmatch(step, -1) {
			require.Contains(t, source, "\nfunc "+m[1]+"(", "step %s", title)
			runs++
		}
		for _, m := range regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(step, -1) {
			page, _, _ := strings.Cut(m[1], "#")
			require.FileExists(t, filepath.Join("../docs", page), "step %s", title)
			if strings.HasSuffix(m[1], ".go") {
				runs++
			}
		}
		require.Positive(t, runs, "step %s runs nowhere", title)
		for _, m := range regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(step, -1) {
			require.Contains(t, code, folded(m[1]), "step %s", title)
		}
		for _, m := range regexp.MustCompile("make ([a-z-]+)`|\\$ make ([a-z-]+)").FindAllStringSubmatch(step, -1) {
			require.Contains(t, string(makefile), "\n"+m[1]+m[2]+":", "step %s", title)
		}
	}
}

// docs returns the pages for users, without those that a program writes.
func docs(t *testing.T) (all []string) {
	for _, pattern := range []string{"../*.md", "../docs/*.md", "../docs/design/*.md"} {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		all = append(all, found...)
	}
	generated := []string{"CHANGELOG.md", "rules.md", "footprints.md", "combinations.md"}
	return slices.DeleteFunc(all, func(page string) bool { return slices.Contains(generated, filepath.Base(page)) })
}

// unchecked is folded code without the checks of errors, which a page may leave out.
func unchecked(code string) string {
	checks := regexp.MustCompile(`if err != nil \{ log\.Fatal\(err\) \} ?|must\(err\) ?`)
	return checks.ReplaceAllString(folded(code), "")
}

// TestGoBlocks: each block of Go in a page stands in code that the tests compile, and that they run where it needs no
// cluster.
func TestGoBlocks(t *testing.T) {
	code, blocks := unchecked(goText(t)), 0
	for _, page := range docs(t) {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(string(text), -1) {
			block := strings.TrimSpace(unchecked(m[1]))
			require.True(t, strings.Contains(code, block), "%s: no example has\n%s", page, m[1])
			blocks++
		}
	}
	require.GreaterOrEqual(t, blocks, 25)
}

// TestOtherBlocks: each block of Python and of JavaScript in docs/sqs.md stands in a program that make sqs-demo runs.
func TestOtherBlocks(t *testing.T) {
	page, err := os.ReadFile("../docs/sqs.md")
	require.NoError(t, err)
	for language, file := range map[string]string{"python": "pack.py", "js": "shop.mjs"} {
		program, err := os.ReadFile("../examples/sqs/" + file)
		require.NoError(t, err)
		blocks := regexp.MustCompile("(?s)```"+language+"\n(.*?)```").FindAllStringSubmatch(string(page), -1)
		require.NotEmpty(t, blocks, language)
		for _, m := range blocks {
			require.True(t, strings.Contains(folded(string(program)), folded(m[1])), "%s does not have\n%s", file, m[1])
		}
	}
}

// TestCommandLines: each line of a page that calls fdbfifo calls a command that there is, with flags that it has, and
// each line that calls make names a target.
func TestCommandLines(t *testing.T) {
	makefile, err := os.ReadFile("../Makefile")
	require.NoError(t, err)
	commands := 0
	for _, page := range docs(t) {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		joined := regexp.MustCompile(`\\\n\s*`).ReplaceAllString(string(text), "")
		for _, m := range regexp.MustCompile(`(?m)^(?: {4,}|\$ )(fdbfifo|make) (.*?)(?: {2,}#.*| \| .*)?$`).
			FindAllStringSubmatch(joined, -1) {
			commands++
			if m[1] == "make" {
				target, _, _ := strings.Cut(m[2], " ")
				require.Contains(t, string(makefile), "\n"+target+":", "%s: make %s", page, m[2])
				continue
			}
			root, _ := (&session{app: New()}).root() // a new one, because most flags may be given once
			c, rest, err := root.Find(shellWords(m[2]))
			require.NoError(t, err, "%s: %s", page, m[0])
			require.NotEqual(t, root, c, "%s: %s", page, m[0])
			require.NoError(t, c.ParseFlags(rest), "%s: %s", page, m[0])
		}
	}
	require.Greater(t, commands, 25)
}

// TestGuideCommands: the commands of docs/guide.md do what they say, on a folder that a program has open.
func TestGuideCommands(t *testing.T) {
	text, err := os.ReadFile("../docs/guide.md")
	require.NoError(t, err)
	folder := t.TempDir()
	db, err := embedded.OpenDisk(folder, embedded.Options{})
	require.NoError(t, err)
	defer db.Close()
	q, err := layer.Create(t.Context(), db, tuple.Tuple{"shop", "queue"}.Pack(), "orders", layer.Options{})
	require.NoError(t, err)
	defer q.Close(t.Context())
	commands := regexp.MustCompile(`(?m)^\$ fdbfifo (.*)$`).FindAllStringSubmatch(string(text), -1)
	require.NotEmpty(t, commands)
	for _, m := range commands {
		args := shellWords(strings.ReplaceAll(m[1], "/tmp/shop.data", folder))
		var stderr strings.Builder
		require.NoError(t, Run(t.Context(), args, nil, io.Discard, &stderr), "%s: %s", m[1], &stderr)
	}
}

// TestMovingCommands: the commands of a page that enqueue each message of work --exec elsewhere keep the body and the
// group, also the group without a name and the longest group. A command that is repeated hours later enqueues nothing
// twice. The help of work gives the same dedup id.
func TestMovingCommands(t *testing.T) {
	exec := regexp.MustCompile(`--exec '(fdbfifo [^']*enqueue[^']*)'`)
	moving := regexp.MustCompile(`(?m)^ {4}(fdbfifo [^\n]*create [^\n]*)\n {4}fdbfifo [^']*` + exec.String())
	id := regexp.MustCompile(`--dedup-id "[^"]*"`)
	moved := 0
	for _, page := range docs(t) {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		recipes := moving.FindAllStringSubmatch(string(text), -1)
		require.Len(t, recipes, len(exec.FindAllString(string(text), -1)), "%s: the target is made first", page)
		for _, m := range recipes {
			require.Contains(t, workHelp, id.FindString(m[2]))
			for _, group := range []string{"", "customer-7", "two words", strings.Repeat("x", 1024)} {
				moved++
				moveTwice(t, m[1], m[2], group)
			}
		}
	}
	require.GreaterOrEqual(t, moved, 8)
}

// moveTwice runs a command that makes a queue, and then twice, hours apart, one that moves a message of group to it.
func moveTwice(t *testing.T, create, move, group string) {
	h := newHarness(t)
	id := layer.ID{Index: 10000012, Random: uuid.New(), Group: group}
	run := func(command string) []string {
		sh := exec.Command("sh", "-c", `fdbfifo() { printf '%s\n' "$@"; }; `+command)
		sh.Env = append(os.Environ(), "FDBFIFO_GROUP="+group, "FDBFIFO_ID="+id.String())
		printed, err := sh.Output()
		require.NoError(t, err, command)
		args := strings.Split(strings.TrimSuffix(string(printed), "\n"), "\n")
		if i := slices.Index(args, "--engine"); i >= 0 {
			args = slices.Delete(args, i, i+2)
		}
		var stderr strings.Builder
		body := strings.NewReader("a\x00b\n")
		err = h.app().Run(t.Context(), args, body, io.Discard, &stderr)
		require.NoError(t, err, "%s: %s", command, &stderr)
		return args
	}
	run(create)
	args := run(move)
	h.clock.now = h.clock.now.Add(6 * time.Hour)
	run(move)
	peek := []string{"peek", "--json", "--default-group"}
	if group != "" {
		peek = []string{"peek", "--json", "--group", group}
	}
	if i := slices.Index(args, "--queue"); i >= 0 {
		peek = append(peek, args[i:i+2]...)
	}
	var stdout, stderr strings.Builder
	require.NoError(t, h.app().Run(t.Context(), peek, nil, &stdout, &stderr), &stderr)
	require.Equal(t, 1, strings.Count(stdout.String(), `"body":"a\u0000b\n"`), "%s, group %q", move, group)
}

// TestReadmeCommands: the commands of README's first screen do what README says, in the folder of its first program.
func TestReadmeCommands(t *testing.T) {
	text, err := os.ReadFile("../README.md")
	require.NoError(t, err)
	t.Chdir(t.TempDir())
	db, err := embedded.OpenDisk("shop.data", embedded.Options{})
	require.NoError(t, err)
	defer db.Close()
	q, _, err := layer.Ensure(t.Context(), db, []byte("shop/"), "orders", layer.Options{})
	require.NoError(t, err)
	defer q.Close(t.Context())
	commands := regexp.MustCompile(`(?m)^ {4}\.\./fdbfifo/bin/fdbfifo (.*)$`).FindAllStringSubmatch(string(text), -1)
	require.Len(t, commands, 2)
	for _, m := range commands {
		var stderr strings.Builder
		require.NoError(t, Run(t.Context(), shellWords(m[1]), nil, io.Discard, &stderr), "%s: %s", m[1], &stderr)
		require.Empty(t, stderr.String())
	}
	items, err := q.Peek(t.Context(), "customer-9", 2, nil)
	require.NoError(t, err)
	require.Len(t, items, 1)
	require.Equal(t, "3 pears", string(items[0].Body))
}

// TestSecurityCommands: the commands of docs/security.md are commands, with flags that they have; so are the flags that
// the text names, and the links between its sections lead somewhere.
func TestSecurityCommands(t *testing.T) {
	text, err := os.ReadFile("../docs/security.md")
	require.NoError(t, err)
	root, _ := (&session{app: New()}).root()
	flags := map[string]bool{}
	for _, c := range append(root.Commands(), root) {
		c.Flags().VisitAll(func(f *pflag.Flag) { flags["--"+f.Name] = true })
		c.PersistentFlags().VisitAll(func(f *pflag.Flag) { flags["--"+f.Name] = true })
	}
	flags["--version"] = true // made when the command runs
	for _, m := range regexp.MustCompile("`(--[a-z-]+)").FindAllStringSubmatch(string(text), -1) {
		require.True(t, flags[m[1]], "there is no %s", m[1])
	}
	commands := regexp.MustCompile(`(?m)^\$ (?:sudo -u [a-z]+ )?fdbfifo (.*)$`).FindAllStringSubmatch(string(text), -1)
	require.Greater(t, len(commands), 4)
	for _, m := range commands {
		root, _ := (&session{app: New()}).root() // a new one, because most flags may be given once
		c, rest, err := root.Find(shellWords(m[1]))
		require.NoError(t, err, m[1])
		require.NotEqual(t, root, c, m[1])
		require.NoError(t, c.ParseFlags(rest), m[1])
		require.Empty(t, c.Flags().Args(), m[1])
	}
	require.Contains(t, string(text), "`"+secretHeader+"`")
	for _, m := range regexp.MustCompile(`\]\(#([a-z-]+)\)`).FindAllStringSubmatch(string(text), -1) {
		require.Contains(t, strings.ReplaceAll(strings.ToLower(string(text)), " ", "-"), "\n##-"+m[1]+"\n")
	}
}

// TestCommandsAreListed: the table in docs/operations.md has each command, and no other.
func TestCommandsAreListed(t *testing.T) {
	text, err := os.ReadFile("../docs/operations.md")
	require.NoError(t, err)
	_, table, ok := strings.Cut(string(text), "\n| to | commands |\n")
	require.True(t, ok)
	table, _, _ = strings.Cut(table, "\n\n")
	named := make(map[string]bool)
	for _, m := range regexp.MustCompile("`([a-z]+)").FindAllStringSubmatch(table, -1) {
		named[m[1]] = true
	}
	root, _ := (&session{app: New()}).root()
	for _, c := range root.Commands() {
		switch name := c.Name(); {
		case c.Hidden, name == "help", name == "key", name == "decode": // docs/fdbcli.md has the last two
		default:
			require.True(t, named[name], "docs/operations.md names %s", name)
		}
		delete(named, c.Name())
	}
	require.Empty(t, named)
}

// Each name that another queue has for a command leads to an existing command. It is not the name of a command itself.
func TestElsewhereNames(t *testing.T) {
	root, _ := (&session{app: New()}).root()
	for name, command := range elsewhereNames {
		found, _, err := root.Find([]string{command})
		require.NoError(t, err)
		require.Equal(t, command, found.Name(), name)
		own, _, _ := root.Find([]string{name})
		require.Equal(t, root, own, name)
	}
}

// shellWords splits a command at its blanks; single quotes keep blanks together.
func shellWords(command string) (words []string) {
	for i, part := range strings.Split(command, "'") {
		if i%2 == 1 {
			words = append(words, part)
			continue
		}
		words = append(words, strings.Fields(part)...)
	}
	return words
}
