package mutants

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// root is the top folder of the tree.
const root = "../.."

// mutant is one file of testdata. A line "#" says what goes wrong; then come
//
//	test: ./PACKAGE TESTNAME[/SUBTEST] [FLAGS]
//	file: PATH
//
// and one or more changes of the file: the old lines between --- and +++, and the new lines up to the next ---, file:
// or the end.
type mutant struct {
	name, pkg, test string
	flags           []string
	files           []string // in the order of the text
	changes         map[string][]change
}

type change struct{ old, new string }

func load(t *testing.T) (all []mutant) {
	paths, err := filepath.Glob("testdata/*.txt")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	for _, path := range paths {
		m, err := read(path)
		require.NoError(t, err, path)
		all = append(all, m)
	}
	return all
}

func read(path string) (mutant, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return mutant{}, err
	}
	m := mutant{name: strings.TrimSuffix(filepath.Base(path), ".txt"), changes: make(map[string][]change)}
	var file string
	var into *string
	for n, line := range strings.SplitAfter(string(text), "\n") {
		words := strings.Fields(line)
		switch {
		case into == nil && (len(words) == 0 || words[0] == "#"):
		case len(words) > 2 && words[0] == "test:":
			m.pkg, m.test, m.flags = words[1], words[2], words[3:]
		case len(words) == 2 && words[0] == "file:":
			file, into = words[1], nil
			m.files = append(m.files, file)
		case line == "---\n" && file != "":
			m.changes[file] = append(m.changes[file], change{})
			into = &m.changes[file][len(m.changes[file])-1].old
		case line == "+++\n" && into != nil:
			into = &m.changes[file][len(m.changes[file])-1].new
		case into != nil:
			*into += line
		default:
			return m, fmt.Errorf("line %d: %q has no place here", n+1, line)
		}
	}
	return m, nil
}

// apply returns the text of a file with the mutant's changes.
func (m *mutant) apply(file string) (string, error) {
	text, err := os.ReadFile(filepath.Join(root, file))
	if err != nil {
		return "", err
	}
	mutated := string(text)
	for _, c := range m.changes[file] {
		if n := strings.Count(mutated, c.old); n != 1 || c.old == "" {
			return "", fmt.Errorf("%s has these lines %d times, and not once:\n%s", file, n, c.old)
		}
		mutated = strings.Replace(mutated, c.old, c.new, 1)
	}
	if mutated == string(text) {
		return "", fmt.Errorf("%s: the mutant changes nothing", file)
	}
	return mutated, nil
}

// TestApply: each mutant fits the code of today, and the test that must fail with it is there.
func TestApply(t *testing.T) {
	for _, m := range load(t) {
		t.Run(m.name, func(t *testing.T) {
			require.NotEmpty(t, m.files)
			for _, file := range m.files {
				_, err := m.apply(file)
				require.NoError(t, err)
			}
			name, _, _ := strings.Cut(m.test, "/")
			header := regexp.MustCompile(`(?m)^func ` + regexp.QuoteMeta(name) + `\(t \*testing\.T\) \{`)
			tests, err := filepath.Glob(filepath.Join(root, m.pkg, "*_test.go"))
			require.NoError(t, err)
			found := false
			for _, path := range tests {
				text, err := os.ReadFile(path)
				require.NoError(t, err)
				found = found || header.Match(text)
			}
			require.True(t, found, "%s has the test %s", m.pkg, name)
		})
	}
}
