package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/internal/lint"
)

var rewrite = flag.Bool("rewrite", false,
	"write testdata/upward.txt anew, and lower the ceilings in testdata/figures.json")

var layer = sync.OnceValues(func() (*survey, error) { return look("../../../layer", floors) })

// TestUpward: no file of the layer uses a file of a higher floor. The exceptions are those of testdata/upward.txt,
// which only shrinks. To write the list again: go test ./internal/lint/floors -run TestUpward -rewrite
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

// ceiling is the bar of a figure, and from which list the figure comes.
type ceiling struct {
	Figure string  `json:"figure"`
	Most   float64 `json:"most"`
	List   string  `json:"list,omitempty"` // see go run ./internal/lint/floors --list
}

// complain says whether the figure is above the bar, or so far below that the bar must follow: more than a twentieth,
// and more than 1. wrong is the complaint; hint says that the bar may be lowered.
func (c ceiling) complain(now float64) (wrong, hint string) {
	lower := fmt.Sprintf("%s is %v, below its ceiling %v: lower the ceiling (-run TestCeilings -rewrite)",
		c.Figure, now, c.Most)
	switch {
	case now > c.Most && c.List != "":
		return fmt.Sprintf("%s is %v, above its ceiling %v: see go run ./internal/lint/floors --list %s",
			c.Figure, now, c.Most, c.List), ""
	case now > c.Most:
		return fmt.Sprintf("%s is %v, above its ceiling %v", c.Figure, now, c.Most), ""
	case c.Most-now > max(1, c.Most/20):
		return lower, ""
	case now < c.Most:
		return "", lower
	}
	return "", ""
}

// TestCeilings holds the figures to the ceilings in testdata/figures.json, which only go down. To lower them to the
// figures of now: go test ./internal/lint/floors -run TestCeilings -rewrite. A ceiling is raised by hand.
func TestCeilings(t *testing.T) {
	const path = "testdata/figures.json"
	s, err := layer()
	require.NoError(t, err)
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	var ceilings []ceiling
	require.NoError(t, json.Unmarshal(text, &ceilings))
	now := map[string]float64{}
	for _, f := range s.figures.lines() {
		now[f.name] = f.value
	}
	if *rewrite {
		for i := range ceilings {
			c := &ceilings[i]
			require.Contains(t, now, c.Figure)
			c.Most = min(c.Most, now[c.Figure])
		}
		text, err := json.MarshalIndent(ceilings, "", "  ")
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(path, append(text, '\n'), 0o644))
	}
	for _, c := range ceilings {
		require.Contains(t, now, c.Figure)
		wrong, hint := c.complain(now[c.Figure])
		if hint != "" {
			t.Log(hint)
		}
		if wrong != "" {
			t.Error(wrong)
		}
	}
}

func TestComplain(t *testing.T) {
	for _, tt := range []struct {
		now, most   float64
		wrong, hint string
	}{
		{41, 40, "above", ""},
		{40, 40, "", ""},
		{39, 40, "", "lower"},
		{38, 40, "", "lower"},
		{37, 40, "lower", ""},
		{2, 3, "", "lower"},
		{1, 3, "lower", ""},
		{30.1, 30, "above", ""},
		{29.9, 30, "", "lower"},
	} {
		wrong, hint := ceiling{"x", tt.most, "upward"}.complain(tt.now)
		require.Equal(t, tt.wrong == "", wrong == "", "%+v: %s", tt, wrong)
		require.Contains(t, wrong, tt.wrong)
		require.Equal(t, tt.hint == "", hint == "", "%+v: %s", tt, hint)
	}
	wrong, _ := ceiling{"x", 1, ""}.complain(2)
	require.Equal(t, "x is 2, above its ceiling 1", wrong)
}

var small = []floor{
	{"low", "", []string{"keys.go", "low.go"}},
	{"middle", "", []string{"queue.go", "other.go", "plan.go"}},
	{"high", "", []string{"top.go"}},
}

// TestFigures, of a package whose figures are known.
func TestFigures(t *testing.T) {
	s, err := look("testdata/small", small)
	require.NoError(t, err)
	require.Equal(t, []string{
		"low.go -> top.go", "plan.go -> keys.go", "queue.go -> keys.go", "top.go -> queue.go",
	}, usesAsText(s.uses))
	require.Equal(t, []string{"low.go -> top.go"}, usesAsText(s.upward))
	require.Equal(t, []string{
		"low.go:4: top (top.go:5)", "low.go:5: generic (top.go:7)", "low.go:5: generic.value (top.go:7)", "and 1 more",
	}, s.upward[0].details(s.p))
	require.Equal(t, []string{
		"queue.go:16 Queue.put", "queue.go:30 Queue.writes", "queue.go:31 Queue.writes", "queue.go:32 Queue.writes",
		"queue.go:34 Queue.writes", "queue.go:35 Queue.writes", "queue.go:36 Queue.writes",
	}, s.places(s.locks))
	require.Equal(t, []string{"plan.go:15 table.asks"}, s.places(s.above))
	require.Equal(t, []string{
		"plan.go:11 Config.unfair", "plan.go:16 table.asks", "plan.go:16 table.asks", "plan.go:17 table.asks",
		"plan.go:22 table.asks", "plan.go:23 table.asks", "plan.go:23 table.asks", "plan.go:23 table.asks",
	}, s.places(s.kinds))
	require.Equal(t, figures{
		Files: 6, Lines: 102, Uses: 4, FolderEntries: 7, UpwardPairs: 1, MethodsAbove: 1, KindQuestions: 8,
		LockWriters: 7, TimerWriters: 1, QueueMethods: 2, Exported: 4, LongestFunc: 13,
	}, s.figures)
}

// TestSettingsAskNothing: the files of the settings' floor are left out.
func TestSettingsAskNothing(t *testing.T) {
	s, err := look("testdata/small", slices.Concat(small[:1], []floor{
		{settingsFloor, "", []string{"plan.go"}}, {"middle", "", []string{"queue.go", "other.go"}},
	}, small[2:]))
	require.NoError(t, err)
	require.Empty(t, s.kinds)
}

// TestKindNames: the names by which layer asks for the kind of a queue are there.
func TestKindNames(t *testing.T) {
	s, err := layer()
	require.NoError(t, err)
	k := &kinds{p: s.p, owners: fieldOwners(s.p.Types)}
	defined := map[string]bool{}
	for ident, object := range s.p.Info.Defs {
		if object != nil {
			defined[k.name(ident)] = true
		}
	}
	for ident := range s.p.Info.Uses { // of packages inside layer
		defined[k.name(ident)] = true
	}
	for _, name := range slices.Concat(kindAnswers, kindFunctions, kindFlags, kindValues) {
		require.Contains(t, defined, name)
	}
}

func TestLargestCycle(t *testing.T) {
	uses := func(pairs ...string) (all []use) {
		for _, p := range pairs {
			all = append(all, use{from: p[:1], to: p[1:]})
		}
		return all
	}
	require.Empty(t, largestCycle(uses("ab", "bc", "ac")))
	require.Equal(t, []string{"a", "b"}, largestCycle(uses("ab", "ba", "bc", "cd", "dc")))
	require.Equal(t, []string{"b", "c", "d"}, largestCycle(uses("ab", "bc", "cd", "db", "de", "ef", "fe")))
	require.Equal(t, []string{"a", "b", "c", "d"}, largestCycle(uses("ab", "bc", "ca", "cd", "dc")))
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
	for _, list := range []string{"cycle", "methods", "kind"} {
		require.Contains(t, run("--list", list), ".go", list)
	}
	require.Error(t, (&survey{}).list("nothing", nil))
}
