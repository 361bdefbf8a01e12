package lint

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

// TestLinks: each link of a page to a file leads to a file, and each link to a section leads to a heading.
func TestLinks(t *testing.T) {
	links := 0
	for _, page := range pages(t) {
		text, err := os.ReadFile(page)
		require.NoError(t, err)
		for _, m := range regexp.MustCompile(`\]\(([^)\s]+)\)`).FindAllStringSubmatch(withoutCode(string(text)), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			links++
			file, section, _ := strings.Cut(m[1], "#")
			target := page
			if file != "" {
				target = filepath.Join(filepath.Dir(page), file)
				_, err := os.Stat(target)
				require.NoError(t, err, "%s links to %s", page, m[1])
			}
			if section != "" {
				text, err := os.ReadFile(target)
				require.NoError(t, err)
				require.True(t, headings(string(text))[section], "%s links to the heading %s", page, m[1])
			}
		}
	}
	require.Greater(t, links, 100)
}

// pages are the documents of the tree.
func pages(t *testing.T) (all []string) {
	require.NoError(t, filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		switch name := d.Name(); {
		case err != nil:
			return err
		case d.IsDir() && (name == ".git" || name == "node_modules" || name == "testdata"):
			return fs.SkipDir
		case filepath.Ext(name) == ".md" && d.Type().IsRegular():
			all = append(all, path)
		}
		return nil
	}))
	return all
}

// withoutCode is a page without its blocks of code and its words in backquotes.
func withoutCode(text string) string {
	text = regexp.MustCompile("(?ms)^ *```.*?^ *```").ReplaceAllString(text, "")
	return regexp.MustCompile("`[^`\n]*`").ReplaceAllString(text, "")
}

// headings are the names by which GitHub links to the headings of a page.
func headings(text string) map[string]bool {
	named := map[string]bool{}
	code := regexp.MustCompile("(?ms)^```.*?^```")
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(code.ReplaceAllString(text, ""), -1) {
		named[strings.Map(func(r rune) rune {
			switch {
			case r == ' ':
				return '-'
			case r == '-' || r == '_' || unicode.IsLetter(r) || unicode.IsDigit(r):
				return unicode.ToLower(r)
			}
			return -1
		}, m[1])] = true
	}
	return named
}

// TestQuestions: each page of docs/questions has ten questions, and behind them the ten answers, each with a link to
// the section of the page that it is from.
func TestQuestions(t *testing.T) {
	lists, err := filepath.Glob("../../docs/questions/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, lists)
	number := regexp.MustCompile(`(?m)^\d+\. `)
	for _, list := range lists {
		text, err := os.ReadFile(list)
		require.NoError(t, err)
		name := filepath.Base(list)
		if name == "model.md" {
			name = "model/README.md"
		}
		first, second, _ := strings.Cut(string(text), "\n## Answers\n")
		questions, answers := number.Split(first, -1), number.Split(second, -1)
		require.Len(t, questions, 11, "%s: a heading and ten questions", list)
		require.Len(t, answers, 11, "%s: ten answers", list)
		for i, question := range questions[1:] {
			require.Contains(t, question, "?", list)
			require.Regexp(t, `\]\(\S*/`+regexp.QuoteMeta(name)+`#\S+\)`, answers[i+1], list)
		}
	}
}
