package mutants

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// mutant is one file of testdata. A line "#" says what goes wrong; then come
//
//	test: ./PACKAGE TESTNAME[/SUBTEST] [FLAGS]
//	file: PATH
//
// and one or more changes of the file: the old lines between --- and +++, and the new lines up to the next ---, file:
// or the end. The mutant of a guard has no test: the list of layer/broken_internal_test.go names the guard's test.
type mutant struct {
	name, pkg, test string
	flags           []string
	files           []string // in the order of the text
	changes         map[string][]change
}

type change struct{ old, new string }

// testFunction returns the name of the function of the mutant's test.
func (m *mutant) testFunction() string {
	name, _, _ := strings.Cut(m.test, "/")
	return name
}

// load reads the mutants of a folder, in the order of their names.
func load(dir string) (all []mutant, err error) {
	paths, err := filepath.Glob(filepath.Join(dir, "*.txt"))
	if err == nil && len(paths) == 0 {
		err = fmt.Errorf("%s has no mutants", dir)
	}
	if err != nil {
		return nil, err
	}
	for _, path := range paths {
		m, err := read(path)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		all = append(all, m)
	}
	return all, nil
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

// apply puts the mutant's changes into texts, which has the text of each file that was changed before. apply reads any
// other file from the tree under root.
func (m *mutant) apply(root string, texts map[string]string) error {
	for _, file := range m.files {
		text, ok := texts[file]
		if !ok {
			b, err := os.ReadFile(filepath.Join(root, file))
			if err != nil {
				return fmt.Errorf("mutant %s: %w", m.name, err)
			}
			text = string(b)
		}
		for _, c := range m.changes[file] {
			if n := strings.Count(text, c.old); n != 1 || c.old == "" {
				return fmt.Errorf("mutant %s: %s has these lines %d times, and not once:\n%s", m.name, file, n, c.old)
			}
			if c.old == c.new {
				return fmt.Errorf("mutant %s: %s: a change is none", m.name, file)
			}
			text = strings.Replace(text, c.old, c.new, 1)
		}
		texts[file] = text
	}
	return nil
}

// guardTexts returns the files that the mutants of the guards change, with the changes of all of them.
func guardTexts(root string) (map[string]string, error) {
	all, err := load(filepath.Join(root, "internal/mutants/testdata/guards"))
	if err != nil {
		return nil, err
	}
	texts := make(map[string]string)
	for _, m := range all {
		if err := m.apply(root, texts); err != nil {
			return nil, err
		}
	}
	return texts, nil
}

// Overlay writes the overlay of all guards to a folder, for the flag -overlay of the go command, and returns the path.
// In a build with the overlay and the tag broken, FDBFIFO_WITHOUT leaves out any guard of layer/internal/guard.
func Overlay(root, dir string) (string, error) {
	texts, err := guardTexts(root)
	if err != nil {
		return "", err
	}
	return writeOverlay(root, dir, texts)
}

func writeOverlay(root, dir string, texts map[string]string) (string, error) {
	replace := make(map[string]string, len(texts))
	for file, text := range texts {
		at, err := filepath.Abs(filepath.Join(root, file))
		if err != nil {
			return "", err
		}
		replace[at] = filepath.Join(dir, strings.ReplaceAll(file, "/", "+")+".txt") // the folder is no package
		if err := os.WriteFile(replace[at], []byte(text), 0o600); err != nil {
			return "", err
		}
	}
	listed, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "overlay.json")
	return path, os.WriteFile(path, listed, 0o600)
}
