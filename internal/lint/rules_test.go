package lint

import (
	"flag"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/wide.txt and testdata/switches.txt anew")

func requireOnly(t *testing.T, list string, found []Finding) {
	t.Helper()
	complaints, err := Shrink(list, found, *rewrite)
	require.NoError(t, err)
	require.Empty(t, complaints, "%s", strings.Join(complaints, "\n"))
}

// TestLineWidth: no line of a Go file has more than 120 columns; a tab counts four. The exceptions are the files of
// testdata/wide.txt, with their number of such lines. The list only shrinks. To write it again: go test ./internal/lint
// -run TestLineWidth -rewrite
func TestLineWidth(t *testing.T) {
	found, err := WideLines("../..")
	require.NoError(t, err)
	requireOnly(t, "testdata/wide.txt", found)
}

// TestSwitches: a switch over a closed set names each member. The exceptions are those of testdata/switches.txt, which
// only shrinks. To write it again: go test ./internal/lint -run TestSwitches -rewrite
func TestSwitches(t *testing.T) {
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	packages, err := Load(root, "./...")
	require.NoError(t, err)
	require.Greater(t, len(packages), 8)
	var found []Finding
	for _, p := range packages {
		found = append(found, p.Switches(root)...)
	}
	requireOnly(t, "testdata/switches.txt", found)
}

func TestWidth(t *testing.T) {
	for line, want := range map[string]int{"": 0, "abc": 3, "\ta": 5, "a\tb": 6, "µs — é": 6} {
		require.Equal(t, want, width(line), "%q", line)
	}
	full := strings.Repeat("µ", 120)
	require.Empty(t, wideLines(full+"\r\n\n"+full))
	require.Equal(t, []string{"line 2 (121)", "line 3 (124)"}, wideLines("\n"+full+"x\n\t"+full))
}

func TestWideLines(t *testing.T) {
	dir, wide := t.TempDir(), []byte("// "+strings.Repeat("x", 120)+"\n")
	for _, name := range []string{"a.go", "sub/b.go", "a.g.go", "a.txt", "testdata/c.go", ".git/d.go"} {
		path := filepath.Join(dir, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, wide, 0o644))
	}
	require.NoError(t, os.Symlink("a.go", filepath.Join(dir, "link.go")))
	found, err := WideLines(dir)
	require.NoError(t, err)
	require.Equal(t, []Finding{
		{"a.go 1", "wider than 120 columns: line 1 (123)"}, {"sub/b.go 1", "wider than 120 columns: line 1 (123)"},
	}, found)
}

func TestShrink(t *testing.T) {
	path := filepath.Join(t.TempDir(), "list.txt")
	shrink := func(rewrite bool, texts ...string) []string {
		var found []Finding
		for _, text := range texts {
			found = append(found, Finding{Text: text, Where: "there"})
		}
		complaints, err := Shrink(path, found, rewrite)
		require.NoError(t, err)
		return complaints
	}
	_, err := Shrink(path, nil, false)
	require.ErrorIs(t, err, os.ErrNotExist)
	require.NoError(t, os.WriteFile(path, []byte("# what this is\n"), 0o644))
	require.Empty(t, shrink(false))
	require.Empty(t, shrink(true, "c", "a", "a"))
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "# what this is\na\na\nc\n", string(text))
	require.Empty(t, shrink(false, "a", "c", "a"))
	require.Equal(t, []string{"new, and not in " + path + ": b\n\tthere"}, shrink(false, "a", "a", "b", "c"))
	require.Equal(t, []string{"new, and not in " + path + ": a\n\tthere"}, shrink(false, "a", "a", "a", "c"))
	require.Equal(t, []string{"mended: take the line out of " + path + ": a"}, shrink(false, "a", "c"))
	require.NoError(t, os.WriteFile(path, []byte("b\na\n"), 0o644))
	require.Equal(t, []string{path + ": not sorted"}, shrink(false, "a", "b"))
}

const sets = `package x

import "reflect"

type color int

const (
	red color = iota
	green
	blue
	crimson = red
	_       = color(7)
)

type word string

const yes, no word = "yes", "no"

type lone int

const only lone = 0

func f(c color, w word, l lone, k reflect.Kind, n int) {
	switch `

func TestMissing(t *testing.T) {
	for body, want := range map[string]string{
		"c { case red, green: case blue: }":                  "",
		"c { case crimson, green, 2: }":                      "",
		"c { case red: }":                                    "f: switch over color without green, blue",
		"c { case green: default: }":                         "f: switch over color without crimson, blue",
		"x := c; x { default: }":                             "f: switch over color without crimson, green, blue",
		"w { case yes, no: }":                                "",
		"w { case yes, \"other\": }":                         "f: switch over word without no",
		"l { case 3: }":                                      "",
		"k { case reflect.Int: }":                            "",
		"n { case 1: }":                                      "",
		"{ case c == red: }":                                 "",
		"{ default: func() { switch w { case no: } }() }":    "f: switch over word without yes",
		"any(c).(type) { case color: switch w { case no: }}": "f: switch over word without yes",
	} {
		found := switchesOf(t, sets+body+"\n}\n")
		if want == "" {
			require.Empty(t, found, "%s", body)
			continue
		}
		require.Len(t, found, 1, "%s", body)
		require.Equal(t, "x.go "+want, found[0].Text, "%s", body)
		require.Contains(t, found[0].Where, "x.go:24: add a case for ")
	}
}

// openExport opens the export data of a package.
func openExport(path string) (io.ReadCloser, error) {
	name, err := exec.Command("go", "list", "-export", "-f", "{{.Export}}", path).Output()
	if err != nil {
		return nil, err
	}
	return os.Open(strings.TrimSpace(string(name)))
}

func switchesOf(t *testing.T, source string) []Finding {
	t.Helper()
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, "x.go", source, 0)
	require.NoError(t, err, "%s", source)
	p, err := check(fset, importer.ForCompiler(fset, "gc", openExport), Module+"x", []*ast.File{f})
	require.NoError(t, err, "%s", source)
	return p.Switches(".")
}

// TestForeignSet: a set of another package of the module is its exported constants.
func TestForeignSet(t *testing.T) {
	packages, err := Load("testdata/sets", "./...")
	require.NoError(t, err)
	require.Len(t, packages, 2)
	var texts []string
	for _, p := range packages {
		for _, f := range p.Switches(p.Dir) {
			texts = append(texts, f.Text)
		}
	}
	require.Equal(t, []string{"user.go missing: switch over Kind without B"}, texts)
}

func TestName(t *testing.T) {
	f, err := parser.ParseFile(token.NewFileSet(), "x.go", `package x
func a() {}
func (t T) b() {}
func (*T) c() {}
func (t *G[A]) d() {}
func (t G[A, B]) e() {}
var v = 1`, 0)
	require.NoError(t, err)
	var names []string
	for _, d := range f.Decls {
		names = append(names, Name(d))
	}
	require.Equal(t, []string{"a", "T.b", "T.c", "G.d", "G.e", "var"}, names)
}
