package main

import (
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
)

const rulesHead = `# From a rule to its test

Written by ` + "`make rules`" + `; do not edit. A rule is a guarantee, the invariant, the contract or a trap of
[guarantees.md](guarantees.md). A *guard* is a piece of the layer that nothing but a rule asks for
([guard.go](../layer/internal/guard/guard.go)). The test in its row fails in a build that leaves the guard out. In such
a build the simulation finds a violation in the run of the profile and seed given; a *no* has the reason. *Tests* name
the rule in the comment before them. A *scenario* names it in its first line; one called bug_… then says what went
wrong once.

- The overlay of such builds: ` + "`go run ./internal/mutants/overlay bin/broken`" + ` writes it and prints its path.
- The build without a guard: ` + "`FDBFIFO_WITHOUT=tail go test -tags broken -overlay=PATH ./layer/... -run TEST`" + `;
  all of them: ` + "`make broken`" + `.
- A scenario: ` + "`go test ./layer/layertest -run 'TestScenarios/memory/NAME'`" + `,
  or ` + "`TestScenariosInVirtualTime/NAME`" + `.

`

// rulesPage is docs/rules.md.
func rulesPage(root fs.FS) (string, error) {
	s, err := readSource(root)
	if err != nil {
		return "", err
	}
	var out, rest strings.Builder
	var wrong []error
	out.WriteString(rulesHead + "| rule | guards | tests | scenarios |\n|---|--:|--:|--:|\n")
	for _, r := range s.rules {
		e := s.of(r)
		if len(e.guards)+len(e.tests) == 0 {
			wrong = append(wrong, fmt.Errorf("%s has neither guard nor test", r.title))
		}
		fmt.Fprintf(&out, "| [%s](#%s) | %d | %d | %d |\n",
			r.title, anchor(r.title), len(e.guards), len(e.tests), len(e.scenarios))
		e.write(&rest, s.files)
	}
	return out.String() + rest.String(), errors.Join(wrong...)
}

// anchor is what a heading is linked by.
func anchor(title string) string {
	return strings.ReplaceAll(strings.ReplaceAll(strings.ToLower(title), ",", ""), " ", "-")
}

// entry is what stands for one rule.
type entry struct {
	rule      rule
	traps     []string // that its guards keep out
	guards    []guard
	tests     []test
	scenarios []scenario
}

// of gathers it.
func (s *source) of(r rule) entry {
	e := entry{rule: r}
	for _, g := range s.guards {
		if !slices.Contains(g.tags, r.tag) {
			continue
		}
		e.guards = append(e.guards, g)
		for _, tag := range g.tags {
			if strings.HasPrefix(tag, "trap ") && tag != r.tag && !slices.Contains(e.traps, tag) {
				e.traps = append(e.traps, tag)
			}
		}
	}
	for _, t := range s.tests {
		if slices.Contains(t.tags, r.tag) {
			e.tests = append(e.tests, t)
		}
	}
	for _, c := range s.scenarios {
		if slices.Contains(c.tags, r.tag) {
			e.scenarios = append(e.scenarios, c)
		}
	}
	slices.Sort(e.traps)
	return e
}

func (e entry) write(out *strings.Builder, files map[string]string) {
	fmt.Fprintf(out, "\n## %s\n\n%s\n", e.rule.title, e.rule.sentence)
	if len(e.traps) > 0 {
		var links []string
		for _, t := range e.traps {
			links = append(links, fmt.Sprintf("[%s](#%s)", t, anchor(t)))
		}
		fmt.Fprintf(out, "\nIts traps: %s.\n", strings.Join(links, ", "))
	}
	if len(e.guards) > 0 {
		out.WriteString("\n| guard | what goes wrong without it | test | simulation |\n|---|---|---|---|\n")
	}
	for _, g := range e.guards {
		function, _, _ := strings.Cut(g.test, "/")
		found := "no: " + g.uncaught
		if g.run != "" {
			found = "yes: " + g.run
		}
		fmt.Fprintf(out, "| `%s` | %s | [`%s`](../%s) | %s |\n", g.name, g.without, g.test, files[function], found)
	}
	if len(e.tests) > 0 {
		out.WriteString("\nTests:\n\n")
	}
	for _, t := range e.tests {
		fmt.Fprintf(out, "- [`%s`](../%s): %s\n", t.name, t.path, t.sentence)
	}
	if len(e.scenarios) > 0 {
		out.WriteString("\nScenarios:\n\n")
	}
	for _, c := range e.scenarios {
		fmt.Fprintf(out, "- [`%s`](../%s/%s.txt): %s\n", c.name, scenarioDir, c.name, c.sentence)
	}
}
