package lint

import (
	"fmt"
	"os"
	"slices"
	"strings"
)

// Finding is a breach of a rule. The text is without line numbers, so that a list of allowed breaches outlives an edit.
type Finding struct {
	Text  string
	Where string // for the reader: the lines, and the fault of each
}

// Shrink compares the findings with the file at path. Each line of the file is the text of an allowed finding; lines
// that begin with # describe the file. Shrink returns a complaint for each finding that is not allowed, and for each
// line without a finding. With rewrite it writes the file again and returns no complaint.
func Shrink(path string, found []Finding, rewrite bool) (complaints []string, err error) {
	text, err := os.ReadFile(path)
	if err != nil && (!rewrite || !os.IsNotExist(err)) {
		return nil, err
	}
	var head, lines []string
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); strings.HasPrefix(line, "#") {
			head = append(head, line)
		} else if line != "" {
			lines = append(lines, line)
		}
	}
	found = slices.Clone(found)
	slices.SortStableFunc(found, func(a, b Finding) int { return strings.Compare(a.Text, b.Text) })
	if rewrite {
		for _, f := range found {
			head = append(head, f.Text)
		}
		return nil, os.WriteFile(path, []byte(strings.Join(head, "\n")+"\n"), 0o644)
	}
	if !slices.IsSorted(lines) {
		complaints = append(complaints, path+": not sorted")
	}
	allowed := map[string]int{}
	for _, line := range lines {
		allowed[line]++
	}
	for _, f := range found {
		if allowed[f.Text]--; allowed[f.Text] < 0 {
			complaints = append(complaints, fmt.Sprintf("new, and not in %s: %s\n\t%s", path, f.Text, f.Where))
		}
	}
	for _, line := range slices.Compact(lines) {
		if allowed[line] > 0 {
			complaints = append(complaints, fmt.Sprintf("mended: take the line out of %s: %s", path, line))
		}
	}
	return complaints, nil
}
