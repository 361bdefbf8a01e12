package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"go/parser"
	"go/token"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/internal/lint"
)

var rewrite = flag.Bool("rewrite", false, "write testdata/upward.txt anew")

var layer = sync.OnceValues(func() (*survey, error) { return look("../../../layer", floors) })

// TestUpward: no file of the layer uses a file of a higher floor, but for those of testdata/upward.txt, which only
// shrinks. To write the list anew: go test ./internal/lint/floors -run TestUpward -rewrite
func TestUpward(t *testing.T) {
	s, err := layer()
	require.NoError(t, err)
	var found []lint.Finding
	for _, u := range s.upward {
		found = append(found, lint.Finding{Text: u.String(), Where: fmt.Sprintf(
			"%s (%s) uses %s (%s), a higher floor: move the definition down, or the use up\n\t\t%s",
			u.from, floors[s.heights[u.from]].name, u.to, floors[s.heights[u.to]].name,
			strings.Join(u.details(s.p), "\n\t\t"))})
	}
	complaints, err := lint.Shrink("testdata/upward.txt", found, *rewrite)
	require.NoError(t, err)
	require.Empty(t, complaints, "%s", strings.Join(complaints, "\n"))
}

// limits are the bars of the figures, which only go down; list is what says where a figure comes from.
var limits = []struct {
	figure string
	limit  float64
	list   string
}{
	{"upward", 40, "upward"},
	{"lock_writers", 2, "lock"},
	{"timer_writers", 3, "timer"},
	{"queue_methods", 34, ""},
	{"longest_function", 90, "long"},
	{"comment_pronouns_per_1000", 35, "pronouns"},
}

// TestLimits holds the figures to the bars.
func TestLimits(t *testing.T) {
	s, err := layer()
	require.NoError(t, err)
	text, err := json.Marshal(s.figures)
	require.NoError(t, err)
	byName := map[string]float64{}
	require.NoError(t, json.Unmarshal(text, &byName))
	for _, l := range limits {
		require.Contains(t, byName, l.figure)
		require.LessOrEqual(t, byName[l.figure], l.limit, "%s: see go run ./internal/lint/floors --list %s", l.figure, l.list)
	}
}

var small = []floor{
	{"low", "", []string{"keys.go", "low.go"}},
	{"middle", "", []string{"queue.go", "other.go"}},
	{"high", "", []string{"top.go"}},
}

// TestFigures, of a package whose figures are known.
func TestFigures(t *testing.T) {
	s, err := look("testdata/small", small)
	require.NoError(t, err)
	require.Equal(t, []string{"low.go -> top.go", "queue.go -> keys.go", "top.go -> queue.go"}, usesAsText(s.uses))
	require.Equal(t, []string{"low.go -> top.go"}, usesAsText(s.upward))
	require.Equal(t, []string{
		"low.go:4: top (top.go:5)", "low.go:5: generic (top.go:7)", "low.go:5: generic.value (top.go:7)", "and 1 more",
	}, s.upward[0].details(s.p))
	var written []string
	for _, at := range s.locks {
		written = append(written, s.p.Place(at)+" "+s.functionAt(at))
	}
	require.Equal(t, []string{
		"queue.go:16 Queue.put", "queue.go:30 Queue.writes", "queue.go:31 Queue.writes", "queue.go:32 Queue.writes",
		"queue.go:34 Queue.writes", "queue.go:35 Queue.writes", "queue.go:36 Queue.writes",
	}, written)
	require.Equal(t, figures{
		Files: 5, Lines: 78, Uses: 3, Upward: 1, LockWriters: 7, TimerWriters: 1, QueueMethods: 2, LongestFunction: 13,
		Pronouns: 100,
	}, s.figures)
}

func usesAsText(uses []use) (out []string) {
	for _, u := range uses {
		out = append(out, u.String())
	}
	return out
}

func TestFloorsOf(t *testing.T) {
	files := []string{"a.go", "b.go"}
	heights, err := floorsOf([]floor{{"low", "", []string{"b.go"}}, {"high", "", []string{"a.go"}}}, files)
	require.NoError(t, err)
	require.Equal(t, map[string]int{"a.go": 1, "b.go": 0}, heights)
	for want, table := range map[string][]floor{
		"b.go stands on no floor":   {{"low", "", []string{"a.go"}}},
		"a.go stands on two floors": {{"low", "", []string{"a.go", "b.go"}}, {"high", "", []string{"a.go"}}},
		"c.go, of floor low, is no": {{"low", "", []string{"a.go", "b.go", "c.go"}}},
	} {
		_, err := floorsOf(table, files)
		require.ErrorContains(t, err, want)
	}
}

func TestNoKeyTable(t *testing.T) {
	s, err := layer()
	require.NoError(t, err)
	_, err = keyWriters(s.p, "padlock")
	require.ErrorContains(t, err, "no key table")
}

func TestProse(t *testing.T) {
	for source, want := range map[string]prose{
		"package x // It is one item's.":                            {words: 4, pronouns: 2},
		"package x\n\n//go:generate it\n\n// Itself, or\n// THOSE.": {words: 3, pronouns: 1},
		"//go:build it\n\npackage x":                                {},
		"package x /* they, them: its\n these */ // that re-reads":  {words: 6, pronouns: 5},
		"package x; const it = `// it`":                             {},
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "x.go", source, parser.ParseComments)
		require.NoError(t, err)
		require.Equal(t, want, proseOf(f), "%s", source)
	}
	require.Equal(t, 250.0, prose{words: 4, pronouns: 1}.rate())
	require.Zero(t, prose{}.rate())
}

// TestRun: each list has lines, and both forms of the figures say the same.
func TestRun(t *testing.T) {
	run := func(args ...string) string {
		var out bytes.Buffer
		require.NoError(t, run(append(args, "--dir", "../../../layer"), &out))
		return out.String()
	}
	var f figures
	require.NoError(t, json.Unmarshal([]byte(run("--json")), &f))
	require.Equal(t, f.String(), run())
	require.Contains(t, run("--list", "upward"), " -> ")
	require.Error(t, (&survey{}).list("nothing", nil))
}
