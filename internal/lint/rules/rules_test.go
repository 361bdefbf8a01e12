package main

import (
	"io/fs"
	"maps"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/stretchr/testify/require"
)

const root = "../../.."

// TestPagesAreFresh: the pages are what the command writes.
func TestPagesAreFresh(t *testing.T) {
	for _, p := range pages {
		text, err := p.write(os.DirFS(root))
		require.NoError(t, err)
		stands, err := os.ReadFile(path.Join(root, p.path))
		require.NoError(t, err)
		require.True(t, text == string(stands),
			"%s is stale: make rules (go run ./internal/lint/rules) writes it anew", p.path)
	}
}

// TestLinksOfPages: every file that the pages link to is there, and every heading.
func TestLinksOfPages(t *testing.T) {
	for _, p := range pages {
		text, err := p.write(os.DirFS(root))
		require.NoError(t, err)
		links := regexp.MustCompile(`\]\(([^)#]*)(?:#([^)]*))?\)`).FindAllStringSubmatch(text, -1)
		require.NotEmpty(t, links)
		for _, link := range links {
			target := text
			if link[1] != "" {
				there, err := os.ReadFile(path.Join(root, path.Dir(p.path), link[1]))
				require.NoError(t, err, p.path)
				target = string(there)
			}
			if link[2] != "" {
				require.Contains(t, headings(target), link[2], p.path)
			}
		}
	}
}

func headings(text string) (anchors []string) {
	for line := range strings.Lines(text) {
		if title, ok := strings.CutPrefix(strings.Replace(line, "### ", "## ", 1), "## "); ok {
			anchors = append(anchors, anchor(strings.TrimSpace(title)))
		}
	}
	return anchors
}

// small is a tree with one guard, one test and one scenario.
var small = map[string]string{
	guarantees: "**G1, order.** In\norder.\n\n**G2, b.** B.\n\n**G3, c.** C.\n\n**G4, d.** D.\n\n" +
		"**G5, e.** E.\n\n**G6, f.** F.\n\n**I1, g.** G.\n\n**Contract.** H.\n\n## The traps\n\n1. One\n   trap.\n",
	guardFile: "package guard\n\nconst (\n\t// Tail (G1, trap 1): it is\n\t// lost, without [Tail].\n" +
		"\tTail Guard = \"tail\"\n)\n",
	brokenFile: "package layer\n\nvar missing = map[guard.Guard]string{guard.Tail: \"TestTail/memory\"}\n\n" +
		"// TestRest: the rest (G2, G3, G4, G5, G6, I1, trap 1). More.\nfunc TestRest() {}\n",
	"layer/tail_test.go": "package layer\n\n// TestTail (G1): it is found. Guard tail.\nfunc TestTail() {}\n\n" +
		"// TestContract is plain.\nfunc TestContract() {}\n",
	caughtFile: "package sim_test\n\nvar caught = map[string]known{\"tail\": {\"staged\", 25}}\n" +
		"var uncaught = map[string]string{\"tail\": \"too rare\"}\n",
	scenarioDir + "/a.txt":  "# G1, Contract. Of a scenario\n# this. Not that.\nenqueue A\n----\nok\n",
	"internal/lint/lint.go": "package lint\n",
}

// treeOf is small with one file changed.
func treeOf(t *testing.T, file, from, to string) fs.FS {
	files := maps.Clone(small)
	require.Contains(t, files[file], from)
	files[file] = strings.ReplaceAll(files[file], from, to)
	tree := fstest.MapFS{}
	for name, text := range files {
		tree[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return tree
}

// TestSourceOfASmallTree: what is read of each source.
func TestSourceOfASmallTree(t *testing.T) {
	s, err := readSource(treeOf(t, guardFile, "", ""))
	require.NoError(t, err)
	require.Equal(t, rule{"G1", "G1, order", "In order."}, s.rules[0])
	require.Equal(t, rule{"trap 1", "Trap 1", "One trap."}, s.rules[8])
	require.Equal(t, []guard{
		{"tail", "it is lost, without `tail`.", "TestTail/memory", "staged 25", "too rare", []string{"G1", "trap 1"}},
	}, s.guards)
	require.Equal(t, []scenario{{"a", "Of a scenario this.", []string{"G1", contractRule}}}, s.scenarios)
	require.Len(t, s.tests, 2)
	require.Equal(t, test{"TestTail", "layer/tail_test.go", "it is found.", []string{"G1"}}, s.tests[1])
}

// TestPageRefuses: what does not fit together is named.
func TestPageRefuses(t *testing.T) {
	for _, c := range []struct{ file, from, to, want string }{
		{guardFile, "(G1, trap 1)", "(G1, trap 9)", `"trap 9" is no rule`},
		{guardFile, "(G1, trap 1)", "(trap 1)", "none of these is a guarantee"},
		{guardFile, " (G1, trap 1)", "", "has to begin with Tail (its rules)"},
		{guardFile, "// Tail", "// Head", "has to begin with Tail (its rules)"},
		{brokenFile, "TestTail/memory", "TestTale", `there is no test "TestTale"`},
		{brokenFile, "guard.Tail", "guard.Head", `there is no test ""`},
		{brokenFile, "missing", "present", "no map missing"},
		{"layer/tail_test.go", "TestTail", "TestTale", `there is no test "TestTail/memory"`},
		{"layer/tail_test.go", "(G1)", "(G9)", "TestTail names G9, which is no rule"},
		{scenarioDir + "/a.txt", "G1, Contract. ", "", "has to begin with its rules"},
		{scenarioDir + "/a.txt", "G1, ", "G7, ", `"G7" is no rule`},
		{guarantees, "**G6, f.** F.", "", "no paragraph for G6"},
		{brokenFile, "G2, ", "", "G2, b has neither guard nor test"},
	} {
		text, err := rulesPage(treeOf(t, c.file, c.from, c.to))
		require.ErrorContains(t, err, c.want, "%v\n%s", c, text)
	}
}

// TestRulesPageOfASmallTree: a rule leads to its guard, test and scenario.
func TestRulesPageOfASmallTree(t *testing.T) {
	text, err := rulesPage(treeOf(t, guardFile, "(G1, trap 1)", "(G1, contract, trap 1)"))
	require.NoError(t, err)
	require.Contains(t, text, "| [G1, order](#g1-order) | 1 | 1 | 1 |\n")
	require.Contains(t, text,
		"| `tail` | it is lost, without `tail`. | [`TestTail/memory`](../layer/tail_test.go) | yes: staged 25 |\n")
	require.Contains(t, text, "- [`a`](../layer/layertest/testdata/scenarios/a.txt): Of a scenario this.\n")
	require.Contains(t, text, "Its traps: [trap 1](#trap-1).\n")
}

// TestFootprintsOfASmallFile: cases are gathered by operation, and one whose lines are not what it counts is refused.
func TestFootprintsOfASmallFile(t *testing.T) {
	const text = "# head\n\nset-state\n----\n" +
		"read           get      (a)   conflict\nset            (a)\n= read         key      (a)\n" +
		"= write        key      (a)\n1 key reads, 0 range reads, 1 mutations\n\nset-state-anew\n----\n" +
		"read           range    [(a), (b))  snapshot limit 2\n0 key reads, 1 range reads, 0 mutations\n"
	page := func(text string) (string, error) {
		return footprintsPage(fstest.MapFS{footprintFile: {Data: []byte(text)}})
	}
	out, err := page(text)
	require.NoError(t, err)
	require.Contains(t, out, "| set-state | 0–1 | 0 | 0 | 0–1 | 0–1 | 0–1 | 0–1 | plain, anew |\n")
	_, err = page(strings.Replace(text, "set            (a)\n", "", 1))
	require.ErrorContains(t, err, "set-state: counted 1 key reads, 0 range reads, 0 mutations")
	_, err = page("# head\n")
	require.ErrorContains(t, err, "there is nothing in it")
}
