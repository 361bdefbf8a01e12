package lint

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestReadmeCodeIsTheExample: the code in the README stands in the layer's Example, or is examples/first; the tests run
// both.
func TestReadmeCodeIsTheExample(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	example, err := os.ReadFile("../../layer/example_test.go")
	require.NoError(t, err)
	first, err := os.ReadFile("../../examples/first/main.go")
	require.NoError(t, err)
	code := words(string(example)) + words(string(first))
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllSubmatch(readme, -1)
	require.NotEmpty(t, blocks)
	for _, b := range blocks {
		require.Contains(t, code, words(string(b[1])))
	}
}

// TestReadmeIsShort: README is a front door, of at most 900 words. All else has a page of its own.
func TestReadmeIsShort(t *testing.T) {
	require.LessOrEqual(t, len(strings.Fields(read(t, "README.md"))), 900)
}

// TestChangelogIsShort: CHANGELOG.md has a line for each change. A merge by union brings back the lines that a branch
// has removed.
func TestChangelogIsShort(t *testing.T) {
	require.LessOrEqual(t, len(strings.Fields(read(t, "CHANGELOG.md"))), 1500)
}

func words(s string) string { return strings.Join(strings.Fields(s), " ") }

// TestReadmeTargets: every make target that the README names is there.
func TestReadmeTargets(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	require.NoError(t, err)
	makefile, err := os.ReadFile("../../Makefile")
	require.NoError(t, err)
	named := regexp.MustCompile(`make ([a-z-]+)`).FindAllStringSubmatch(string(readme), -1)
	require.NotEmpty(t, named)
	for _, m := range named {
		require.Contains(t, string(makefile), "\n"+m[1]+":", "README names make %s", m[1])
	}
}

// TestPictures: every picture that a page names is there, and every picture is named.
func TestPictures(t *testing.T) {
	const root = "../.."
	named := map[string]bool{}
	picture := regexp.MustCompile(`(?:src|srcset)="([^"]*)"|!\[[^]]*\]\(([^)]*)\)`)
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	require.NoError(t, err)
	for _, page := range append(pages, filepath.Join(root, "README.md")) {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, m := range picture.FindAllStringSubmatch(string(text), -1) {
			file := filepath.Join(filepath.Dir(page), m[1]+m[2])
			require.FileExists(t, file, "%s names a picture", page)
			named[file] = true
		}
	}
	there, err := filepath.Glob(filepath.Join(root, "docs", "pictures", "*"))
	require.NoError(t, err)
	require.NotEmpty(t, there)
	for _, file := range there {
		require.True(t, named[file], "no page names %s", file)
	}
}
