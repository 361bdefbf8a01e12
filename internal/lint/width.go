package lint

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

const (
	maxWidth = 120 // columns of a line
	tabWidth = 4   // columns of a tab, wherever in the line
)

// width is the columns of a line: a rune is one, a tab is four.
func width(line string) int {
	n := 0
	for _, r := range line {
		if n++; r == '\t' {
			n += tabWidth - 1
		}
	}
	return n
}

// WideLines finds the Go files below root with lines that are too wide. Generated files (*.g.go), testdata and links
// are left out: a link's target has a place of its own.
func WideLines(root string) ([]Finding, error) {
	var found []Finding
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (d.Name() == "testdata" || strings.HasPrefix(d.Name(), ".")):
			return filepath.SkipDir
		case !d.Type().IsRegular() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, ".g.go"):
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, path)
		if err != nil {
			return err
		}
		rel = filepath.ToSlash(rel)
		if wide := wideLines(string(text)); len(wide) > 0 {
			found = append(found, Finding{
				Text:  fmt.Sprintf("%s %d", rel, len(wide)),
				Where: fmt.Sprintf("wider than %d columns: %s", maxWidth, strings.Join(wide, ", ")),
			})
		}
		return nil
	})
	return found, err
}

// wideLines says which lines of a file are too wide, and how wide.
func wideLines(text string) []string {
	var wide []string
	n := 0
	for line := range strings.Lines(text) {
		n++
		if w := width(strings.TrimRight(line, "\r\n")); w > maxWidth {
			wide = append(wide, fmt.Sprintf("line %d (%d)", n, w))
		}
	}
	return wide
}
