package lint

import (
	"go/ast"
	"go/doc"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCommentsNameWhatUsersSee: the comment of an exported identifier, field or method names no unexported constant or
// variable. A reader of the documentation cannot find those.
func TestCommentsNameWhatUsersSee(t *testing.T) {
	for _, dir := range []string{"layer", "worker", "kv", "kv/embedded", "kv/tuple", "sqs", "console", "metrics"} {
		for _, found := range hiddenNames(t, filepath.Join("..", "..", dir)) {
			t.Errorf("%s: %s", dir, found)
		}
	}
}

// TestHiddenNamesAreFound, in a package that has some.
func TestHiddenNamesAreFound(t *testing.T) {
	require.Equal(t, []string{"Bound: secretBound", "Options: secretBound"}, hiddenNames(t, "testdata/comments"))
}

// hiddenNames lists the exported names of a package whose comments name an unexported constant or variable of it that
// has a capital inside: one without may be a word.
func hiddenNames(t *testing.T, dir string) (found []string) {
	files, fset := []*ast.File{}, token.NewFileSet()
	paths, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	for _, path := range paths {
		if strings.HasSuffix(path, "_test.go") || strings.HasSuffix(path, "_broken.go") {
			continue
		}
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments)
		require.NoError(t, err)
		files = append(files, f)
	}
	hidden := map[string]bool{}
	for _, f := range files {
		for _, decl := range f.Decls {
			if g, ok := decl.(*ast.GenDecl); ok && (g.Tok == token.CONST || g.Tok == token.VAR) {
				for _, spec := range g.Specs {
					for _, name := range spec.(*ast.ValueSpec).Names {
						hidden[name.Name] = !name.IsExported() && strings.ToLower(name.Name) != name.Name
					}
				}
			}
		}
	}
	word := regexp.MustCompile(`\b[a-z][A-Za-z0-9]*[A-Z][A-Za-z0-9]*\b`)
	look := func(name, text string) {
		for _, w := range word.FindAllString(text, -1) {
			if hidden[w] {
				found = append(found, name+": "+w)
			}
		}
	}
	p, err := doc.NewFromFiles(fset, files, "x")
	require.NoError(t, err)
	look("package", p.Doc)
	values := func(all []*doc.Value) {
		for _, v := range all {
			look(v.Names[0], shownComments(v.Doc, v.Decl))
		}
	}
	funcs := func(all []*doc.Func) {
		for _, f := range all {
			look(f.Name, f.Doc)
		}
	}
	values(p.Consts)
	values(p.Vars)
	funcs(p.Funcs)
	for _, typ := range p.Types {
		look(typ.Name, shownComments(typ.Doc, typ.Decl))
		values(typ.Consts)
		values(typ.Vars)
		funcs(typ.Funcs)
		funcs(typ.Methods)
	}
	return found
}

// shownComments is the text of a declaration's comment, and of those of its exported fields, methods and constants.
func shownComments(text string, decl *ast.GenDecl) string {
	ast.Inspect(decl, func(n ast.Node) bool {
		shown := func(names []*ast.Ident, groups ...*ast.CommentGroup) {
			for _, name := range names {
				if name.IsExported() {
					for _, g := range groups {
						text += " " + g.Text()
					}
				}
			}
		}
		switch n := n.(type) {
		case *ast.Field:
			shown(n.Names, n.Doc, n.Comment)
		case *ast.ValueSpec:
			shown(n.Names, n.Doc, n.Comment)
		}
		return true
	})
	return text
}

// TestFirstNames: the documentation of package layer begins with the fifteen names of a first service, and each name
// that it links is exported.
func TestFirstNames(t *testing.T) {
	files, err := filepath.Glob("../../layer/*.go")
	require.NoError(t, err)
	declared := map[string]bool{}
	for _, path := range files {
		if !strings.HasSuffix(path, "_test.go") {
			for name := range declarations(t, path) {
				declared[name] = true
			}
		}
	}
	text := read(t, "layer/doc.go")
	_, first, found := strings.Cut(text, "// # The first fifteen names\n")
	require.True(t, found)
	first, _, _ = strings.Cut(first, "// # ")
	require.Len(t, regexp.MustCompile(`(?m)^//  \d+\. \[[A-Z][A-Za-z.]*\] `).FindAllString(first, -1), 15)
	links := regexp.MustCompile(`\[([A-Z][A-Za-z.]*)\]`).FindAllStringSubmatch(text, -1)
	require.Greater(t, len(links), 15)
	for _, link := range links {
		require.True(t, declared[link[1]], "layer/doc.go names %s", link[1])
	}
}
