package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../../"

const (
	holdsText = `Model checking completed. No error has been found.
  Estimates of the probability that TLC did not check all reachable states
119422 states generated, 23240 distinct states found, 0 states left on queue.
The depth of the complete state graph search is 20.
`
	invariantText = `Error: Invariant Reachable is violated.
Error: The behavior up to this point is:
370 states generated, 94 distinct states found, 22 states left on queue.
The depth of the complete state graph search is 9.
`
	propertyText = `Error: Temporal property Drains was violated.
76239 states generated, 25937 distinct states found, 0 states left on queue.
The depth of the complete state graph search is 27.
`
)

// TestVerdict: a good configuration is right only if TLC has looked at everything, a broken one only if what it names is
// violated; everything else is wrong.
func TestVerdict(t *testing.T) {
	good, broken := configuration{}, configuration{violates: "Reachable"}
	liveness := configuration{violates: "Drains"}
	for _, c := range []struct {
		name string
		of   configuration
		text string
		ok   bool
	}{
		{"holds", good, holdsText, true},
		{"good, and violated", good, invariantText, false},
		{"good, and not to the end", good, strings.Replace(holdsText, "found, 0 states left", "found, 7 states left", 1), false},
		{"good, and no end", good, "Starting...\n", false},
		{"violated", broken, invariantText, true},
		{"broken, and holds", broken, holdsText, false},
		{"another violated", liveness, invariantText, false},
		{"broken, and no end", broken, "Starting...\n", false},
		{"property", liveness, propertyText, true},
		{"property, older TLC", liveness, strings.Replace(propertyText, "property Drains was", "properties were", 1), true},
		{"a parse error", good, "Error: Parsing or semantic analysis failed.\n", false},
	} {
		t.Run(c.name, func(t *testing.T) {
			require.Equal(t, c.ok, parseOutput(c.text).verdict(c.of).ok)
		})
	}
	o := parseOutput(holdsText)
	require.EqualValues(t, 23240, o.states)
	require.EqualValues(t, 20, o.depth)
	require.False(t, outcome{err: errors.New("killed"), complete: true}.verdict(good).ok)
}

// TestCheckAllInOrder: outcomes come in the order of the configurations, and an end of ctx ends it.
func TestCheckAllInOrder(t *testing.T) {
	all := make([]configuration, 20)
	check := func(context.Context, configuration) outcome { return outcome{} }
	var seen []int
	for i := range checkAll(t.Context(), all, check) {
		seen = append(seen, i)
	}
	require.Len(t, seen, 20)
	require.True(t, slices.IsSorted(seen))
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for range checkAll(ctx, all, func(ctx context.Context, _ configuration) outcome { <-ctx.Done(); return outcome{} }) {
		continue
	}
}

func read(t *testing.T, path string) string {
	text, err := os.ReadFile(root + path)
	require.NoError(t, err)
	return string(text)
}

// TestConfigurations: each can be read, and has its line in the README's tables.
func TestConfigurations(t *testing.T) {
	all, err := configurations(root+dir, nil)
	require.NoError(t, err)
	readme := read(t, dir+"/README.md")
	for _, c := range all {
		require.FileExists(t, filepath.Join(root+dir, c.module+".tla"))
		require.Contains(t, readme, "| `"+c.name+"` |")
		if c.violates != "" {
			require.Regexp(t, "(?m)^\\| `"+c.name+"` \\| "+c.violates+" \\|", readme)
		}
	}
}

// TestGuardsAreTheCodes: what a configuration leaves out is a guard of the layer by that name, or one of those that the
// README lists as having no name there.
func TestGuardsAreTheCodes(t *testing.T) {
	code, readme := read(t, "layer/internal/guard/guard.go"), read(t, dir+"/README.md")
	files, err := filepath.Glob(root + dir + "/*/*.cfg")
	require.NoError(t, err)
	seen := 0
	for _, f := range files {
		text, err := os.ReadFile(f)
		require.NoError(t, err)
		line := regexp.MustCompile(`(?m)^ +Removed = \{(.*)\}$`).FindSubmatch(text)
		require.NotNil(t, line, f)
		for _, m := range regexp.MustCompile(`"([^"]+)"`).FindAllSubmatch(line[1], -1) {
			name := string(m[1])
			module, _, _ := strings.Cut(filepath.Base(f), "-")
			require.Contains(t, read(t, dir+"/"+module+".tla"), `"`+name+`"`, "%s leaves out what the module does not have", f)
			if !strings.Contains(code, `= "`+name+`"`) {
				require.True(t, strings.Contains(readme, "- `"+name+"`: "), "%s leaves out %s, which is no guard of the layer", f, name)
			}
			seen++
		}
	}
	require.Greater(t, seen, 25)
}

// TestFunctionsAreTheCodes: the functions that the model names are in the files that it names.
func TestFunctionsAreTheCodes(t *testing.T) {
	named := regexp.MustCompile(`(layer/[\w/]+\.go)((?:: \w+(?:, \w+)*)?)`)
	seen := 0
	for _, module := range []string{"Group", "Staging", "Lanes", "Holds", "Waits", "Singles", "Beat", "Items"} {
		for _, m := range named.FindAllStringSubmatch(read(t, dir+"/"+module+".tla"), -1) {
			code := read(t, m[1])
			for _, name := range strings.FieldsFunc(m[2], func(r rune) bool { return strings.ContainsRune(": ,", r) }) {
				require.Regexp(t, `(?m)^func (\(.*?\) )?`+name+`[\[(]`, code, "%s: %s", module, m[0])
				seen++
			}
		}
	}
	require.Greater(t, seen, 25)
}
