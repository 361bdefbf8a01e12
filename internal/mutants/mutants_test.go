package mutants

import (
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// root is the top folder of the tree.
const root = "../.."

// TestApply: each mutant fits the code of today, and the test that must fail with it is there.
func TestApply(t *testing.T) {
	all, err := load("testdata")
	require.NoError(t, err)
	for _, m := range all {
		t.Run(m.name, func(t *testing.T) {
			require.NotEmpty(t, m.files)
			requireParses(t, m)
			header := regexp.MustCompile(`(?m)^func ` + regexp.QuoteMeta(m.testFunction()) + `\(t \*testing\.T\) \{`)
			tests, err := filepath.Glob(filepath.Join(root, m.pkg, "*_test.go"))
			require.NoError(t, err)
			found := false
			for _, path := range tests {
				text, err := os.ReadFile(path)
				require.NoError(t, err)
				found = found || header.Match(text)
			}
			require.True(t, found, "%s has the test %s", m.pkg, m.testFunction())
		})
	}
}

// requireParses requires that the mutant fits, and that the files which it changes are still Go.
func requireParses(t *testing.T, m mutant) {
	t.Helper()
	texts := make(map[string]string)
	require.NoError(t, m.apply(root, texts))
	for file, text := range texts {
		_, err := parser.ParseFile(token.NewFileSet(), file, text, parser.SkipObjectResolution)
		require.NoError(t, err)
	}
}

// overlaid is the mutant that says that a build has the overlay.
const overlaid = "overlaid"

// TestGuards: the mutants of the guards fit the code of today, one by one and all together. Each has the name of a
// guard, and asks for that guard and no other.
func TestGuards(t *testing.T) {
	source, err := os.ReadFile(filepath.Join(root, "layer/internal/guard/guard.go"))
	require.NoError(t, err)
	all, err := load("testdata/guards")
	require.NoError(t, err)
	asks := regexp.MustCompile(`\bLacks\(([^)]*)\)`)
	for _, m := range all {
		requireParses(t, m)
		if m.name == overlaid {
			continue
		}
		require.Regexp(t, `(?m)^\t\w+ Guard = "`+m.name+`"$`, string(source))
		asked := make(map[string]bool)
		for _, file := range m.files {
			for _, c := range m.changes[file] {
				for _, question := range asks.FindAllStringSubmatch(c.new, -1) {
					asked[question[1]] = true
				}
			}
		}
		require.Equal(t, []string{`"` + m.name + `"`}, slices.Collect(maps.Keys(asked)))
	}
	_, err = Overlay(root, t.TempDir())
	require.NoError(t, err)
}
