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

// TestLaneTraps: each of the traps of docs/lanes.md names tests of the layer, and the comment before each of these says
// so: "(lanes, trap 5)".
func TestLaneTraps(t *testing.T) {
	text, err := os.ReadFile("../../docs/lanes.md")
	require.NoError(t, err)
	_, list, found := strings.Cut(string(text), "\n## The traps\n")
	require.True(t, found)
	list, _, _ = strings.Cut(list, "\n## ")
	named := map[string]map[string]bool{} // tests by trap
	trap := ""
	for line := range strings.Lines(list) {
		if m := regexp.MustCompile(`^(\d+)\. `).FindStringSubmatch(line); m != nil {
			trap = m[1]
			named[trap] = map[string]bool{}
		}
		for _, m := range regexp.MustCompile("`(Test\\w+)`").FindAllStringSubmatch(line, -1) {
			named[trap][m[1]] = true
		}
	}
	require.Len(t, named, 18)
	marked := map[string]map[string]bool{}
	files, err := filepath.Glob("../../layer/*_test.go")
	require.NoError(t, err)
	outside, err := filepath.Glob("../../layer/layertest/*_test.go")
	require.NoError(t, err)
	files = append(files, outside...)
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ParseComments|parser.SkipObjectResolution)
		require.NoError(t, err)
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Doc == nil {
				continue
			}
			m := regexp.MustCompile(`\(lanes, traps? ([\d, ]+)\)`).FindStringSubmatch(f.Doc.Text())
			if m == nil {
				continue
			}
			for _, n := range strings.Split(m[1], ", ") {
				if marked[n] == nil {
					marked[n] = map[string]bool{}
				}
				marked[n][f.Name.Name] = true
			}
		}
	}
	require.Equal(t, named, marked)
}
