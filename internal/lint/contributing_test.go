package lint

import (
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// TestHelp: make help lists each target of the Makefile in one of three groups, in a line of at most 100 columns. A
// target that another one calls has a plain comment instead.
func TestHelp(t *testing.T) {
	cmd := exec.Command("make", "--no-print-directory", "-C", "../..", "help")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	var groups []string
	listed := map[string]bool{}
	for line := range strings.Lines(string(out)) {
		line = strings.TrimRight(line, "\n")
		require.LessOrEqual(t, utf8.RuneCountInString(line), 100, "%s", line)
		if !strings.HasPrefix(line, " ") {
			groups = append(groups, line)
			continue
		}
		listed[strings.Fields(line)[0]] = true
	}
	require.Equal(t, []string{"use it", "change it", "prove it"}, groups)
	makefile := read(t, "Makefile")
	targets := regexp.MustCompile(`(?m)^\.PHONY: (\S+)$`).FindAllStringSubmatch(makefile, -1)
	require.NotEmpty(t, targets)
	for _, m := range targets {
		inner := regexp.MustCompile(`(?m)^` + regexp.QuoteMeta(m[1]) + `: # of `).MatchString(makefile)
		require.Equal(t, !inner, listed[m[1]], "make help lists %s", m[1])
		delete(listed, m[1])
	}
	require.Empty(t, listed, "targets that are not .PHONY")
}

// TestContributing: each file that CONTRIBUTING.md names in a table of changes is there. The files of a row have the
// declarations that the row names. The table of checks names targets of the Makefile.
func TestContributing(t *testing.T) {
	text := read(t, "CONTRIBUTING.md")
	makefile := read(t, "Makefile")
	for _, target := range []string{"setup", "test", "gate", "full", "hunt", "flaky"} {
		require.Contains(t, text, "make "+target)
	}
	for _, m := range regexp.MustCompile("`make ([a-z0-9-]+)").FindAllStringSubmatch(text, -1) {
		require.Contains(t, makefile, "\n"+m[1]+":", "CONTRIBUTING.md names make %s", m[1])
	}
	_, changes, found := strings.Cut(text, "\n## How to add\n")
	require.True(t, found)
	row := regexp.MustCompile(`(?m)^\| (\[.*?\]\(.*?\)) \| (.*?) \| .* \|$`)
	link := regexp.MustCompile(`\]\((.*?)\)`)
	sections := strings.Split(changes, "\n### ")[1:]
	require.Greater(t, len(sections), 6)
	for _, section := range sections {
		title, _, _ := strings.Cut(section, "\n")
		rows := row.FindAllStringSubmatch(section, -1)
		require.Greater(t, len(rows), 4, title)
		require.Equal(t, strings.Count(section, "\n| ")-1, len(rows), "rows of %s without a file", title)
		for _, r := range rows {
			paths := link.FindAllStringSubmatch(r[1], -1)
			declared := map[string]bool{}
			for _, path := range paths {
				require.FileExists(t, filepath.Join("../..", path[1]), title)
				if strings.HasSuffix(path[1], ".go") {
					maps.Copy(declared, declarations(t, filepath.Join("../..", path[1])))
				}
			}
			for _, name := range regexp.MustCompile("`(.*?)`").FindAllStringSubmatch(r[2], -1) {
				require.True(t, declared[name[1]], "%s: none of %v declares %s", title, paths, name[1])
			}
		}
	}
}

// declarations are the names that a Go file declares: at the top level, methods as Type.Method, fields as Type.Field.
func declarations(t *testing.T, path string) map[string]bool {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
	require.NoError(t, err)
	names := map[string]bool{}
	for _, d := range file.Decls {
		g, ok := d.(*ast.GenDecl)
		if !ok {
			names[Name(d)] = true
			continue
		}
		for _, spec := range g.Specs {
			switch spec := spec.(type) {
			case *ast.ValueSpec:
				for _, name := range spec.Names {
					names[name.Name] = true
				}
			case *ast.TypeSpec:
				names[spec.Name.Name] = true
				if s, ok := spec.Type.(*ast.StructType); ok {
					for _, f := range s.Fields.List {
						for _, name := range f.Names {
							names[spec.Name.Name+"."+name.Name] = true
						}
					}
				}
			}
		}
	}
	return names
}
