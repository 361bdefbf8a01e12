package main

import (
	"fmt"
	"path"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// configuration is one .cfg file. Its first two lines are comments. They say what it is about, and the result that TLC
// must find.
type configuration struct {
	name     string // below the model's directory, without the ending
	module   string // the part of the name before the dash
	about    string
	violates string // the invariant or property that must not hold; "" = all hold
}

func parseConfiguration(name, text string) (configuration, error) {
	c := configuration{name: name}
	lines := strings.SplitN(text, "\n", 3)
	var dashed bool
	c.module, _, dashed = strings.Cut(path.Base(name), "-")
	if len(lines) < 3 || !dashed {
		return c, fmt.Errorf("%s: no configuration of a module", name)
	}
	var ok, named bool
	c.about, ok = strings.CutPrefix(lines[0], `\* `)
	c.violates, named = strings.CutPrefix(lines[1], `\* violates `)
	switch {
	case named && path.Dir(name) == "broken":
	case !named && lines[1] == `\* holds` && path.Dir(name) == "good":
		c.violates = ""
	default:
		ok = false
	}
	if !ok {
		return c, fmt.Errorf("%s: the first lines must name the subject, and the violated rule or that all hold", name)
	}
	if c.violates != "" && !regexp.MustCompile(`(?m)^(INVARIANTS|PROPERTY) .*\b`+c.violates+`\b`).MatchString(lines[2]) {
		return c, fmt.Errorf("%s: %s is not a checked invariant or property", name, c.violates)
	}
	return c, nil
}

// endsEarly says that the search ends at the first violation, as a rule before java's second compiler would pay.
func (c configuration) endsEarly() bool { return c.violates != "" && c.violates != "Drains" }

// outcome is what TLC said.
type outcome struct {
	states   int64 // distinct
	depth    int64
	complete bool   // every reachable state was looked at, and no error was found
	violated string // the invariant or property, if one is
	text     string
	cpu      time.Duration // the processors' time that it took
	err      error         // TLC did not run to an end
}

var (
	statesLine   = regexp.MustCompile(`(?m)^\d+ states generated, (\d+) distinct states found, (\d+) states left on queue\.`)
	depthLine    = regexp.MustCompile(`(?m)^The depth of the complete state graph search is (\d+)\.`)
	completeLine = regexp.MustCompile(`(?m)^Model checking completed\. No error has been found\.`)
	invariant    = regexp.MustCompile(`(?m)^Error: Invariant (\w+) is violated`)
	property     = regexp.MustCompile(`(?m)^Error: Temporal property (\w+) was violated|^Error: Temporal properties were violated`)
)

func parseOutput(text string) outcome {
	o := outcome{text: text}
	if m := statesLine.FindStringSubmatch(text); m != nil {
		o.states, _ = strconv.ParseInt(m[1], 10, 64) // digits
		o.complete = m[2] == "0" && completeLine.MatchString(text)
	}
	if m := depthLine.FindStringSubmatch(text); m != nil {
		o.depth, _ = strconv.ParseInt(m[1], 10, 64)
	}
	if m := invariant.FindStringSubmatch(text); m != nil {
		o.violated = m[1]
	}
	if m := property.FindStringSubmatch(text); m != nil {
		if o.violated = m[1]; m[1] == "" {
			o.violated = "Drains" // an older TLC does not name it; there is no other
		}
	}
	return o
}

// verdict is what an outcome means for a configuration.
type verdict struct {
	ok   bool
	text string
}

func (o outcome) verdict(c configuration) verdict {
	switch {
	case o.err != nil:
		return verdict{false, "FAIL: " + o.err.Error()}
	case c.violates == "" && o.complete && o.violated == "":
		return verdict{true, "holds"}
	case c.violates != "" && o.violated == c.violates:
		return verdict{true, "violates " + c.violates + ", as it must"}
	case o.violated != "":
		return verdict{false, "FAIL: violates " + o.violated}
	case o.complete:
		return verdict{false, "FAIL: holds, and must violate " + c.violates}
	}
	return verdict{false, "FAIL: TLC gave no answer"}
}
