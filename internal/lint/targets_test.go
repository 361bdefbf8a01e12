package lint

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"go/ast"
	"go/build/constraint"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// recorderMark names, in the environment, the file in which this program writes how it was called as go.
const recorderMark = "FDBFIFO_LINT_RECORD"

// goCall is one call of go in a recipe of the Makefile.
type goCall struct {
	Dir  string
	Args []string
}

// TestMain stands in for go: make calls this program, which notes the call. "go list" is the real one.
func TestMain(m *testing.M) {
	path := os.Getenv(recorderMark)
	if path == "" {
		os.Exit(m.Run())
	}
	if err := noteCall(path, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func noteCall(path string, args []string) error {
	dir, err := os.Getwd()
	if err != nil {
		return err
	}
	if len(args) > 1 && args[0] == "-C" {
		if dir = args[1]; !filepath.IsAbs(dir) {
			at, err := os.Getwd()
			if err != nil {
				return err
			}
			dir = filepath.Join(at, dir)
		}
		args = args[2:]
	}
	if len(args) > 0 && args[0] == "list" {
		list := exec.Command("go", args...)
		list.Dir, list.Stdout, list.Stderr = dir, os.Stdout, os.Stderr
		return list.Run()
	}
	fmt.Println("recorded") // for the recipes that filter what go prints
	line, err := json.Marshal(goCall{dir, args})
	if err != nil {
		return err
	}
	f, err := os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	_, err = f.Write(append(line, '\n'))
	return err
}

// testRun is a call of go test: which tests of which folders it runs.
type testRun struct {
	folders   map[string]bool
	run, skip *regexp.Regexp
	tags      []string
}

// recordedRuns are the calls of go test in the recipes of targets.
func recordedRuns(t *testing.T, root string, targets []string) (runs []testRun) {
	self, err := os.Executable()
	require.NoError(t, err)
	record := filepath.Join(t.TempDir(), "calls")
	// The recipes do not install npm packages here.
	args := append([]string{"--no-print-directory", "-k", "GO=" + self, "SQS_NPM=true", "E2E_NPM=true"}, targets...)
	c := exec.Command("make", args...)
	c.Dir, c.Env = root, append(os.Environ(), recorderMark+"="+record, "MAKEFLAGS=")
	out, _ := c.CombinedOutput() // recipes that read what go prints fail; those that matter are asked for below
	calls, err := os.Open(record)
	require.NoError(t, err, "%s", out)
	defer calls.Close()
	folders := map[string]map[string]bool{} // by where and what go lists: many calls are of the same packages
	for lines := bufio.NewScanner(calls); lines.Scan(); {
		var call goCall
		require.NoError(t, json.Unmarshal(lines.Bytes(), &call))
		if len(call.Args) == 0 || call.Args[0] != "test" || slices.Contains(call.Args, "-c") {
			continue
		}
		runs = append(runs, newTestRun(t, call, folders))
	}
	return runs
}

func newTestRun(t *testing.T, call goCall, folders map[string]map[string]bool) testRun {
	flags := flag.NewFlagSet("go test", flag.ContinueOnError)
	run, skip, tags := flags.String("run", "", ""), flags.String("skip", "", ""), flags.String("tags", "", "")
	for _, name := range []string{"bench", "vet", "p", "parallel", "count", "timeout", "benchtime"} {
		flags.String(name, "", "")
	}
	for _, name := range []string{"race", "short", "v", "json", "rewrite"} {
		flags.Bool(name, false, "")
	}
	rest, packages := call.Args[1:], []string(nil)
	if i := slices.Index(rest, "-args"); i >= 0 { // flags of the tests
		rest = rest[:i]
	}
	for len(rest) > 0 { // packages may stand before flags
		require.NoError(t, flags.Parse(rest), "%q", call.Args)
		if rest = flags.Args(); len(rest) > 0 {
			packages, rest = append(packages, rest[0]), rest[1:]
		}
	}
	r := testRun{tags: strings.Split(*tags, ",")}
	first := func(pattern string) *regexp.Regexp {
		if pattern == "" {
			return nil
		}
		pattern, _, _ = strings.Cut(pattern, "/")
		return regexp.MustCompile(pattern)
	}
	r.run, r.skip = first(*run), first(*skip)
	asked := fmt.Sprintf("%q %q", call.Dir, packages)
	if folders[asked] == nil {
		folders[asked] = map[string]bool{}
		list := exec.Command("go", append([]string{"list", "-e", "-f", "{{.Dir}}"}, packages...)...)
		list.Dir = call.Dir
		out, err := list.Output()
		require.NoError(t, err, "%q", call)
		for folder := range strings.FieldsSeq(string(out)) {
			folders[asked][folder] = true
		}
	}
	r.folders = folders[asked]
	return r
}

// runs tells whether the call runs the test of that folder, of a file that needs tag, if any.
func (r testRun) runs(folder, test, tag string) bool {
	return r.folders[folder] && (tag == "" || slices.Contains(r.tags, tag)) &&
		(r.run == nil || r.run.MatchString(test)) && (r.skip == nil || !r.skip.MatchString(test))
}

// byHand are tests that no target of gate or full runs, each with the reason.
var byHand = map[string]string{
	"TestHandles":       "make handles: a measurement of minutes",
	"TestHunt":          "a child of TestBroken",
	"TestCallerProcess": "a child of TestLinearizableProcesses",
	"TestPictures":      "make pictures: it writes the pictures of the documentation",
}

// TestEveryTestRuns: every test of every module runs in make gate or in make full.
func TestEveryTestRuns(t *testing.T) {
	root, err := filepath.Abs("../..")
	require.NoError(t, err)
	makefile := read(t, "Makefile")
	list := func(name string) []string {
		m := regexp.MustCompile(`(?m)^` + name + ` = (.*)$`).FindStringSubmatch(makefile)
		require.NotNil(t, m, name)
		return strings.Fields(m[1])
	}
	gate := append([]string{"lint", "unchanged"}, list("GATE")...)
	require.Contains(t, makefile, `-first "lint unchanged" $(GATE)`)
	require.Contains(t, makefile, `-last "test-fdb" $(GATE) $(FULL)`)
	// The target test-fdb runs its tests in a second make.
	runs := recordedRuns(t, root, append(append(gate, list("FULL")...), "fdb-suites"))
	require.Greater(t, len(runs), 10)
	tests := 0
	eachTestFile(t, root, func(path string) {
		names, tag := testsOf(t, path)
		for _, name := range names {
			tests++
			if byHand[name] != "" {
				continue
			}
			if !slices.ContainsFunc(runs, func(r testRun) bool { return r.runs(filepath.Dir(path), name, tag) }) {
				t.Errorf("%s: %s runs neither in make gate nor in make full", path, name)
			}
		}
	})
	require.Greater(t, tests, 500)
}

// eachTestFile calls visit with the path of each file of tests below root.
func eachTestFile(t *testing.T, root string, visit func(path string)) {
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && slices.Contains([]string{"testdata", "node_modules", ".git", "bin"}, d.Name()) {
			return filepath.SkipDir
		}
		if strings.HasSuffix(path, "_test.go") {
			visit(path)
		}
		return nil
	}))
}

// TestListedTestsAreThere: each test that a list of the Makefile names is there. A name of a test that has another name
// by then would leave out nothing.
func TestListedTestsAreThere(t *testing.T) {
	all := make(map[string]bool)
	eachTestFile(t, "../..", func(path string) {
		names, _ := testsOf(t, path)
		for _, name := range names {
			all[name] = true
		}
	})
	makefile := read(t, "Makefile")
	for _, list := range []string{"SLOW_TESTS", "ONE_BY_ONE", "LONG_RACES"} {
		m := regexp.MustCompile(`(?m)^` + list + ` = \^\(([\w|]+)\)\$\$$`).FindStringSubmatch(makefile)
		require.NotNil(t, m, "%s: full names of tests, with | between them", list)
		for _, name := range strings.Split(m[1], "|") {
			require.True(t, all[name], "%s of the Makefile names %s, which is not there", list, name)
		}
	}
}

// testsOf lists the tests and fuzz targets of a file. tag is "broken" if the file needs that build tag.
func testsOf(t *testing.T, path string) (names []string, tag string) {
	file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.ParseComments|parser.SkipObjectResolution)
	require.NoError(t, err)
	for _, group := range file.Comments {
		for _, c := range group.List {
			if constraint.IsGoBuild(c.Text) && group.Pos() < file.Package {
				expression, err := constraint.Parse(c.Text)
				require.NoError(t, err)
				if !expression.Eval(func(tag string) bool { return tag != "broken" }) {
					tag = "broken"
				}
			}
		}
	}
	for _, d := range file.Decls {
		f, ok := d.(*ast.FuncDecl)
		if !ok || f.Recv != nil || f.Name.Name == "TestMain" || len(f.Type.Params.List) != 1 {
			continue
		}
		if name := f.Name.Name; strings.HasPrefix(name, "Test") || strings.HasPrefix(name, "Fuzz") {
			names = append(names, name)
		}
	}
	return names, tag
}
