package lint

import (
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// designForm are the sections of each page in docs/design.
var designForm = []string{
	"What it is for", "Example", "Keys", "Conflicts", "Unknown commit", "Clocks", "Cost", "Not with",
}

// TestArchitecture: ARCHITECTURE.md is short, names each package of the module and each page of docs/design, and each
// file that it names is there.
func TestArchitecture(t *testing.T) {
	text := read(t, "ARCHITECTURE.md")
	require.LessOrEqual(t, len(strings.Fields(text)), 2500)
	for p := range allowed {
		switch p {
		case "internal/lint/floors", "internal/lint/rules", "internal/soak/cmd":
			continue // commands of the packages above them
		}
		if strings.HasPrefix(p, "examples/") {
			p = "`examples`"
		}
		require.True(t, strings.Contains(text, p), "it does not name the package %s", p)
	}
	there := map[string]bool{}
	require.NoError(t, filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		there[filepath.Base(path)] = true
		return err
	}))
	for _, m := range regexp.MustCompile("`([a-z_]+\\.go)`").FindAllStringSubmatch(text, -1) {
		require.True(t, there[m[1]], "there is no %s", m[1])
	}
	pages, err := filepath.Glob("../../docs/design/*.md")
	require.NoError(t, err)
	require.NotEmpty(t, pages)
	for _, page := range pages {
		name := filepath.Base(page)
		row := "| [" + strings.TrimSuffix(name, ".md") + "](docs/design/" + name + ") |"
		require.True(t, strings.Contains(text, row), "no row %s", row)
		var sections []string
		for _, m := range regexp.MustCompile(`(?m)^## (.*)$`).FindAllStringSubmatch(read(t, "docs/design/"+name), -1) {
			sections = append(sections, m[1])
		}
		require.Equal(t, designForm, sections, page)
	}
}

// TestLifeOfAMessage: the table of ARCHITECTURE.md has, for each step, the kinds of keys that the recorded footprint of
// the step reads, conflicts with, sets and clears.
func TestLifeOfAMessage(t *testing.T) {
	recorded := map[string]string{}
	for _, block := range strings.Split(read(t, "layer/layertest/testdata/footprints.txt"), "\n\n") {
		name, ops, _ := strings.Cut(block, "\n----\n")
		recorded[name] = ops
	}
	rows := regexp.MustCompile("(?m)^\\| [a-z, ]+: `([a-z-]+)` \\| (.*) \\| (.*) \\| (.*) \\| (.*) \\|$").
		FindAllStringSubmatch(read(t, "ARCHITECTURE.md"), -1)
	require.GreaterOrEqual(t, len(rows), 8)
	for _, row := range rows {
		require.Contains(t, recorded, row[1])
		require.Equal(t, footprintKinds(recorded[row[1]]), row[2:], row[1])
	}
}

// footprintKinds are the kinds of keys that a recorded footprint reads at snapshot, conflicts with, sets and clears.
// Every transaction has the counters, the receipts and the mark of a drop, so they are left out.
func footprintKinds(ops string) []string {
	var kinds [4]map[string]bool
	for i := range kinds {
		kinds[i] = map[string]bool{}
	}
	for line := range strings.Lines(ops) {
		keys := regexp.MustCompile(`\(([a-z]+)`).FindAllStringSubmatch(line, -1)
		if len(keys) == 0 || strings.HasPrefix(line, "=") || strings.Contains(line, `(meta, "dropped")`) {
			continue
		}
		kind, into := keys[len(keys)-1][1], -1
		switch op, _, _ := strings.Cut(line, " "); {
		case kind == "count" || kind == "receipt":
		case op == "read" && strings.Contains(line, " snapshot"):
			into = 0
		case op == "read" || op == "conflict-read":
			into = 1
		case op == "set":
			into = 2
		case op == "clear" || op == "clear-range":
			into = 3
		}
		if into >= 0 {
			kinds[into][kind] = true
		}
	}
	var cells []string
	for _, of := range kinds {
		cells = append(cells, kindList(of))
	}
	return cells
}

func kindList(of map[string]bool) string {
	if len(of) == 0 {
		return "–"
	}
	var names []string
	for name := range of {
		names = append(names, name)
	}
	slices.Sort(names)
	return strings.Join(names, ", ")
}
