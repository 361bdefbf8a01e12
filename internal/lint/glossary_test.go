package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// glossary is the table of docs/glossary.md: each word, and the words that are not used for its thing.
func glossary(text string) (words map[string]bool, instead map[string]string) {
	words, instead = map[string]bool{}, map[string]string{}
	for _, row := range regexp.MustCompile(`(?m)^\| (.*?) \| (.*?) \| ?(.*?) ?\|$`).FindAllStringSubmatch(text, -1) {
		if row[1] == "word" {
			continue
		}
		for _, word := range strings.Split(row[1], ", ") {
			words[strings.ReplaceAll(word, " ", "")] = true
			for _, not := range strings.Split(row[3], ", ") {
				if not != "" {
					instead[strings.ReplaceAll(not, " ", "")] = word
				}
			}
		}
	}
	return words, instead
}

// exported are the exported names in the files of a folder, tests left out: types, functions, methods, fields, constants
// and variables.
func exported(t *testing.T, dir string) []string {
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	require.NoError(t, err)
	var names []string
	for _, name := range files {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		require.NoError(t, err)
		ast.Inspect(file, func(n ast.Node) bool {
			if f, ok := n.(*ast.FuncDecl); ok && f.Recv != nil && !receiver(f).IsExported() {
				return false // of an interface, for a type that no user sees
			}
			if id, ok := n.(*ast.Ident); ok && id.IsExported() {
				names = append(names, id.Name)
			}
			_, body := n.(*ast.BlockStmt)
			return !body
		})
	}
	return names
}

// receiver is the name of a method's type.
func receiver(f *ast.FuncDecl) *ast.Ident {
	of := f.Recv.List[0].Type
	if star, ok := of.(*ast.StarExpr); ok {
		of = star.X
	}
	switch of := of.(type) {
	case *ast.IndexExpr:
		return of.X.(*ast.Ident)
	case *ast.IndexListExpr:
		return of.X.(*ast.Ident)
	}
	return of.(*ast.Ident)
}

var camel = regexp.MustCompile(`[A-Z]+[a-z0-9]*`)

// misnamed are the names that have a word, or two words in a row, which the glossary gives to nothing.
func misnamed(names []string, instead map[string]string) (bad []string) {
	for _, name := range names {
		parts := camel.FindAllString(name, -1)
		for i, part := range parts {
			word := strings.ToLower(part)
			if right, ok := instead[word]; ok {
				bad = append(bad, name+": say "+right+" for "+word)
			}
			if i > 0 {
				two := strings.ToLower(parts[i-1]) + word
				if right, ok := instead[two]; ok {
					bad = append(bad, name+": say "+right)
				}
			}
		}
	}
	return bad
}

// TestGlossary: no exported name of the layer has a word that docs/glossary.md gives to nothing, no word has two
// meanings, and the words of the guarantees are there.
func TestGlossary(t *testing.T) {
	text, err := os.ReadFile("../../docs/glossary.md")
	require.NoError(t, err)
	words, instead := glossary(string(text))
	require.Greater(t, len(words), 35)
	for not, word := range instead {
		require.False(t, words[not], "%q is a word of its own, and not one for %q", not, word)
	}
	names := append(exported(t, "../../layer"), exported(t, "../../worker")...)
	require.Greater(t, len(names), 300)
	require.Empty(t, misnamed(names, instead))
}

// TestGlossaryCanFail: the check finds a word that is not to be used.
func TestGlossaryCanFail(t *testing.T) {
	_, instead := glossary("| word | meaning | not |\n|---|---|---|\n| in flight | x | in hand |\n| halted | y | parked |\n")
	require.Len(t, misnamed([]string{"ParkedGroups", "ErrInHand", "Halted"}, instead), 2)
}
