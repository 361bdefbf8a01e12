package main

import (
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// rule is a guarantee, the invariant, the contract or a trap. Its tag is what guards, tests and scenarios name it by.
type rule struct {
	tag, title, sentence string
}

// guard is a guard of the layer. Without it the test fails. The run of the simulation finds that it is missing. If
// there is no run, uncaught is the reason.
type guard struct {
	name, without, test, run, uncaught string
	tags                               []string
}

// test is a test function that names rules in the comment before it.
type test struct {
	name, path, sentence string
	tags                 []string
}

// scenario is a file of layer/layertest/testdata/scenarios.
type scenario struct {
	name, sentence string
	tags           []string
}

// source is what the page is made of.
type source struct {
	rules     []rule
	guards    []guard
	tests     []test
	files     map[string]string // of every test function, by its name
	scenarios []scenario
}

const (
	guarantees   = "docs/guarantees.md"
	guardFile    = "layer/internal/guard/guard.go"
	brokenFile   = "layer/broken_internal_test.go"
	caughtFile   = "internal/sim/caught_test.go"
	scenarioDir  = "layer/layertest/testdata/scenarios"
	contractRule = "contract"
	boundRule    = "trap 7"
)

// testDirs are where tests of rules stand.
var testDirs = []string{"layer", "layer/layertest", "internal/lint"}

// readSource reads the whole source. Its error names all faults that it finds, not only the first.
func readSource(root fs.FS) (*source, error) {
	s := &source{files: make(map[string]string)}
	var wrong []error
	for _, read := range []func(fs.FS) error{s.readRules, s.readTests, s.readGuards, s.readScenarios} {
		wrong = append(wrong, read(root))
	}
	return s, errors.Join(wrong...)
}

var (
	titleLine = regexp.MustCompile(`^\*\*(([A-Z]\d|Contract)[^*]*)\.\*\* (.*)$`)
	trapLine  = regexp.MustCompile(`^(\d+)\. (.*)$`)
)

// readRules reads the paragraphs that begin with a rule's name, and the numbered list of the traps.
func (s *source) readRules(root fs.FS) error {
	text, err := fs.ReadFile(root, guarantees)
	if err != nil {
		return err
	}
	inTraps := false
	var last *rule // that the next line goes on with
	for line := range strings.Lines(string(text)) {
		line = strings.TrimRight(line, "\n")
		if strings.HasPrefix(line, "## ") {
			inTraps = line == "## The traps"
		}
		if m := titleLine.FindStringSubmatch(line); m != nil {
			tag := m[2]
			if tag == "Contract" {
				tag = contractRule
			}
			s.rules = append(s.rules, rule{tag, m[1], m[3]})
		} else if m := trapLine.FindStringSubmatch(line); m != nil && inTraps {
			s.rules = append(s.rules, rule{"trap " + m[1], "Trap " + m[1], m[2]})
		} else if line == "" || last == nil {
			last = nil
			continue
		} else {
			last.sentence += " " + strings.TrimSpace(line)
			continue
		}
		last = &s.rules[len(s.rules)-1]
	}
	for _, want := range []string{"G1", "G2", "G3", "G4", "G5", "G6", "I1", contractRule, "trap 1"} {
		if s.rule(want) == nil {
			return fmt.Errorf("%s: no paragraph for %s", guarantees, want)
		}
	}
	return nil
}

func (s *source) rule(tag string) *rule {
	if i := slices.IndexFunc(s.rules, func(r rule) bool { return r.tag == tag }); i >= 0 {
		return &s.rules[i]
	}
	return nil
}

// split splits a list of tags. Each has to be a rule's.
func (s *source) split(list string) ([]string, error) {
	tags := strings.Split(list, ", ")
	for _, tag := range tags {
		if s.rule(tag) == nil {
			return nil, fmt.Errorf("%q is no rule of %s", tag, guarantees)
		}
	}
	return tags, nil
}

func parse(root fs.FS, name string) (*ast.File, error) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return nil, err
	}
	return parser.ParseFile(token.NewFileSet(), name, text, parser.ParseComments|parser.SkipObjectResolution)
}

// oneLine is a comment's text as one line.
func oneLine(c *ast.CommentGroup) string { return strings.Join(strings.Fields(c.Text()), " ") }

var (
	cited    = regexp.MustCompile(`\(((?:G\d|I1|traps? \d)[^)]*)\)`)
	citedTag = regexp.MustCompile(`G\d|I1|traps? [\d, and]*\d`)
	digits   = regexp.MustCompile(`\d+`)
	nameHead = regexp.MustCompile(`^\w+( \([^)]*\))?[:,]? `)
	citedEnd = regexp.MustCompile(`\s*\((G\d|I1)(, (G\d|I1))*\)`)
)

// citedTags are the rules that a comment names in brackets.
func citedTags(comment string) []string {
	var tags []string
	for _, m := range cited.FindAllStringSubmatch(comment, -1) {
		for _, tag := range citedTag.FindAllString(m[1], -1) {
			if !strings.HasPrefix(tag, "trap") {
				tags = append(tags, tag)
				continue
			}
			for _, n := range digits.FindAllString(tag, -1) {
				tags = append(tags, "trap "+n)
			}
		}
	}
	return tags
}

// readTests reads where every test function stands, and which rules the comment before it names.
func (s *source) readTests(root fs.FS) error {
	var wrong []error
	for _, dir := range testDirs {
		names, err := fs.Glob(root, path.Join(dir, "*_test.go"))
		if err != nil {
			return err
		}
		for _, name := range names {
			file, err := parse(root, name)
			if err != nil {
				return err
			}
			for _, d := range file.Decls {
				if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Test") {
					wrong = append(wrong, s.readTest(name, f))
				}
			}
		}
	}
	return errors.Join(wrong...)
}

func (s *source) readTest(file string, f *ast.FuncDecl) error {
	name, comment := f.Name.Name, oneLine(f.Doc)
	s.files[name] = file
	tags := citedTags(comment)
	if len(tags) == 0 {
		return nil
	}
	for _, tag := range tags {
		if s.rule(tag) == nil {
			return fmt.Errorf("%s: %s names %s, which is no rule of %s", file, name, tag, guarantees)
		}
	}
	sentence := first(citedEnd.ReplaceAllString(nameHead.ReplaceAllString(comment, ""), ""))
	s.tests = append(s.tests, test{name, file, sentence, tags})
	return nil
}

var sentenceEnd = regexp.MustCompile(`[.] [\p{Lu}…]`)

// first is a text's first sentence.
func first(text string) string {
	if at := sentenceEnd.FindStringIndex(text); at != nil {
		return text[:at[0]+1]
	}
	return text
}

var (
	guardDoc = regexp.MustCompile(`^(\w+) \(([^)]+)\): (.+)$`)
	guardRef = regexp.MustCompile(`\[([A-Z]\w*)\]`)
)

// readGuards reads the guards, the test that each has, and the run of the simulation that most have.
func (s *source) readGuards(root fs.FS) error {
	file, err := parse(root, guardFile)
	if err != nil {
		return err
	}
	missing, err := composite(root, brokenFile, "missing")
	if err != nil {
		return err
	}
	caught, err := composite(root, caughtFile, "caught")
	if err != nil {
		return err
	}
	uncaught, err := composite(root, caughtFile, "uncaught")
	if err != nil {
		return err
	}
	names := make(map[string]string) // by the constant
	var wrong []error
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || len(spec.Values) != 1 {
			return true
		}
		name, value := spec.Names[0].Name, literal(spec.Values[0])
		names[name] = value
		m := guardDoc.FindStringSubmatch(oneLine(spec.Doc))
		if m == nil || m[1] != name {
			wrong = append(wrong, fmt.Errorf("%s: a comment has to begin with %s (its rules): ", guardFile, name))
			return false
		}
		tags, err := s.split(m[2])
		if err == nil && !slices.ContainsFunc(tags, isServed) {
			err = fmt.Errorf("%q: none of these is a guarantee, the contract, or the bound of %s", m[2], boundRule)
		}
		if err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %s: %w", guardFile, name, err))
		}
		s.guards = append(s.guards, guard{value, m[3], missing[name], caught[value], uncaught[value], tags})
		return false
	})
	for i := range s.guards {
		g := &s.guards[i]
		g.without = guardRef.ReplaceAllStringFunc(g.without, func(link string) string {
			return "`" + names[strings.Trim(link, "[]")] + "`"
		})
		if function, _, _ := strings.Cut(g.test, "/"); s.files[function] == "" {
			wrong = append(wrong, fmt.Errorf("%s: guard %s: there is no test %q", brokenFile, g.name, g.test))
		}
	}
	return errors.Join(wrong...)
}

// isServed reports whether a rule is enough for a guard to be there for.
func isServed(tag string) bool {
	return strings.HasPrefix(tag, "G") || tag == contractRule || tag == boundRule
}

func literal(e ast.Expr) string {
	if l, ok := e.(*ast.BasicLit); ok && l.Kind == token.STRING {
		text, err := strconv.Unquote(l.Value)
		if err == nil {
			return text
		}
	} else if ok {
		return l.Value
	}
	return ""
}

// composite reads a map that a file's variable is set to: keys are constants of a package or strings, values strings or
// structs of literals, whose fields come with a space between them.
func composite(root fs.FS, file, variable string) (map[string]string, error) {
	parsed, err := parse(root, file)
	if err != nil {
		return nil, err
	}
	out := make(map[string]string)
	ast.Inspect(parsed, func(n ast.Node) bool {
		spec, ok := n.(*ast.ValueSpec)
		if !ok || spec.Names[0].Name != variable || len(spec.Values) != 1 {
			return true
		}
		if all, ok := spec.Values[0].(*ast.CompositeLit); ok {
			for _, e := range all.Elts {
				if pair, ok := e.(*ast.KeyValueExpr); ok {
					out[mapKey(pair.Key)] = mapValue(pair.Value)
				}
			}
		}
		return false
	})
	if len(out) == 0 {
		return nil, fmt.Errorf("%s: no map %s", file, variable)
	}
	return out, nil
}

func mapKey(e ast.Expr) string {
	if constant, ok := e.(*ast.SelectorExpr); ok {
		return constant.Sel.Name
	}
	return literal(e)
}

func mapValue(e ast.Expr) string {
	all, ok := e.(*ast.CompositeLit)
	if !ok {
		return literal(e)
	}
	var fields []string
	for _, f := range all.Elts {
		fields = append(fields, literal(f))
	}
	return strings.TrimSpace(strings.Join(fields, " "))
}

var scenarioHead = regexp.MustCompile(`^((?:G\d|I1|Contract|trap \d+)(?:, (?:G\d|I1|Contract|trap \d+))*)\. (.+)$`)

// readScenarios reads the first sentence of each scenario, and the rules named before it.
func (s *source) readScenarios(root fs.FS) error {
	names, err := fs.Glob(root, scenarioDir+"/*.txt")
	if err != nil {
		return err
	}
	var wrong []error
	for _, name := range names {
		text, err := fs.ReadFile(root, name)
		if err != nil {
			return err
		}
		var head []string
		for line := range strings.Lines(string(text)) {
			if !strings.HasPrefix(line, "# ") {
				break
			}
			head = append(head, strings.TrimSpace(line[2:]))
		}
		m := scenarioHead.FindStringSubmatch(strings.Join(head, " "))
		if m == nil {
			wrong = append(wrong, fmt.Errorf("%s: it has to begin with its rules, as in # G1, G3. A sentence", name))
			continue
		}
		tags, err := s.split(strings.ReplaceAll(m[1], "Contract", contractRule))
		if err != nil {
			wrong = append(wrong, fmt.Errorf("%s: %w", name, err))
		}
		s.scenarios = append(s.scenarios, scenario{strings.TrimSuffix(path.Base(name), ".txt"), first(m[2]), tags})
	}
	return errors.Join(wrong...)
}
