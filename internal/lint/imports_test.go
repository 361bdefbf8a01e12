package lint

import (
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const module = "fdbfifo/"

// allowed says which packages of the module each of its packages may import, directly or through others. A
// package not named here fails the test: say first where it stands.
var allowed = map[string][]string{
	"kv":                    {},
	"kv/tuple":              {},
	"kv/embedded":           {"kv"},
	"kv/fault":              {"kv"},
	"kv/record":             {"kv"},
	"kv/kvtest":             {"kv", "internal/seeds"},
	"kv/kvtest/history":     {"kv", "kv/kvtest", "internal/seeds"},
	"layer":                 {"kv", "kv/tuple", "internal/callback"},
	"layer/internal/line":   {"kv", "internal/callback", "layer/internal/advice"}, // no keys: see its comment
	"worker":                {"kv", "kv/tuple", "layer", "internal/callback"},
	"layer/layertest":       {},
	"layer/internal/advice": {}, // no transactions: see its comment
	"layer/internal/guard":  {"kv"},
	"layer/internal/lanes":  {"kv/tuple", "layer/internal/rec"}, // no transactions: see its comment
	"layer/internal/rec":    {"kv/tuple"},                       // no transactions: see its comment
	"console": {
		"kv", "kv/tuple", "layer", "internal/callback", "internal/doors", "internal/hosts", "internal/strict",
	},
	"metrics":                  {"kv", "kv/tuple", "layer", "internal/callback", "worker"},
	"data":                     {},
	"internal/earlier":         {"kv"},
	"internal/checks":          {},
	"internal/compat":          {"internal/seeds"},
	"internal/mutants":         {},
	"internal/mutants/overlay": {"internal/mutants"},
	"internal/trials":          {},
	"internal/seeds":           {},
	"internal/bench": {
		"kv", "kv/tuple", "kv/record", "layer", "internal/callback", "worker",
		"console", "metrics", "sqs", "internal/recipe", "internal/doors", "internal/hosts", "internal/strict",
	},
	"internal/crash":       {"kv", "kv/tuple", "kv/embedded", "layer", "internal/callback"},
	"internal/herd":        {"kv", "kv/tuple", "kv/record", "layer", "internal/callback", "internal/seeds"},
	"internal/callback":    {},
	"internal/doors":       {},
	"internal/hosts":       {},
	"internal/strict":      {},
	"internal/linear":      {"kv", "layer", "internal/callback", "kv/tuple", "internal/spec"},
	"internal/spec":        {"kv", "layer", "internal/callback", "kv/tuple"},
	"internal/lint":        {},
	"internal/lint/floors": {"internal/lint"},
	"internal/lint/rules":  {},
	"internal/soak": {
		"kv", "kv/tuple", "kv/embedded", "layer", "internal/callback", "worker", "internal/seeds",
	},
	"internal/bench/hookpoints": {
		"kv", "kv/tuple", "kv/record", "kv/embedded", "layer", "internal/callback", "worker", "console", "metrics",
		"sqs",
		"internal/recipe",
		"internal/doors", "internal/hosts", "internal/strict", "internal/bench",
	},
	"internal/soak/cmd": {
		"kv", "kv/tuple", "kv/embedded", "layer", "internal/callback", "worker", "internal/soak", "internal/seeds",
	},
	"internal/model":   {},
	"internal/recipe":  {"kv", "kv/tuple"},
	"internal/release": {},
	"internal/sim": {
		"kv", "kv/tuple", "kv/fault", "kv/embedded", "layer", "internal/callback", "worker", "internal/linear",
		"internal/spec",
	},
	"sqs": {
		"kv", "kv/tuple", "layer", "internal/callback", "internal/doors", "internal/hosts", "internal/strict",
	},
	"cli": {
		"kv", "kv/tuple", "kv/record", "kv/embedded", "layer", "internal/callback",
		"worker", "data", "internal/bench", "console", "metrics", "sqs",
		"internal/recipe", "internal/doors", "internal/hosts", "internal/strict",
	},
	"cmd/fdbfifo": {
		"cli", "kv", "kv/tuple", "kv/record", "kv/embedded",
		"layer", "internal/callback", "worker", "data", "internal/bench", "console", "metrics",
		"sqs", "internal/recipe", "internal/doors", "internal/hosts", "internal/strict",
	},
	"examples/first":    {"kv", "kv/tuple", "kv/embedded", "layer", "internal/callback", "worker"},
	"examples/orders":   {"kv", "kv/tuple", "kv/embedded", "layer", "internal/callback", "worker"},
	"examples/pipeline": {"kv", "kv/tuple", "kv/embedded", "layer", "internal/callback", "worker"},
	"examples/bookings": {"kv", "kv/tuple", "kv/fault", "kv/embedded", "layer", "internal/callback", "worker"},
}

// vendors may not be imported by the core: what a queue operation sees of an engine is kv.
var vendors = []string{"github.com/apple/foundationdb", "go.etcd.io/bbolt", "github.com/tidwall/btree"}

// testOnly may be imported by tests and by kv/kvtest, which is a test.
var testOnly = []string{"testing", "github.com/stretchr/testify", "pgregory.net/rapid", "github.com/cockroachdb/datadriven"}

// checker may be imported only by internal/linear, and by packages that import internal/linear.
const checker = "github.com/anishathalye/porcupine"

// goList runs go list at the root of the module.
func goList(t *testing.T, args ...string) string {
	cmd := exec.Command("go", append([]string{"list"}, args...)...)
	cmd.Dir = "../.."
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, "%s", &stderr)
	return string(out)
}

// TestImportsRunOneWay: engines import kv, layer imports kv, and cli imports layer. The layer imports no engine, the
// core imports no vendor's package, and no product package imports a test library.
func TestImportsRunOneWay(t *testing.T) {
	seen := 0
	for _, line := range strings.Split(strings.TrimSpace(goList(t, "-f", "{{.ImportPath}} {{join .Deps \" \"}}", "./...")), "\n") {
		path, deps, _ := strings.Cut(line, " ")
		name := strings.TrimPrefix(path, module)
		may, known := allowed[name]
		require.True(t, known, "package %s has no place in the import graph: see allowed", name)
		seen++
		for _, dep := range strings.Fields(deps) {
			if own, ok := strings.CutPrefix(dep, module); ok {
				parent, _, inside := strings.Cut(own, "/internal/")
				if !inside || name != parent && !slices.Contains(may, parent) { // what is inside comes with its parent
					require.Contains(t, may, own, "%s may not import %s", name, own)
				}
			}
			if name != "kv/embedded" && !slices.Contains(may, "kv/embedded") {
				for _, v := range vendors {
					require.False(t, strings.HasPrefix(dep, v), "%s imports %s", name, dep)
				}
			}
			if name != "internal/linear" && !slices.Contains(may, "internal/linear") {
				require.NotEqual(t, checker, dep, "%s imports it", name)
			}
			if name != "kv/kvtest" {
				for _, v := range testOnly {
					require.False(t, dep == v || strings.HasPrefix(dep, v+"/"), "%s imports %s", name, dep)
				}
			}
		}
	}
	require.Greater(t, seen, 8)
}

// TestNoCgo: the root module builds without a C compiler.
func TestNoCgo(t *testing.T) {
	out := goList(t, "-f", "{{if .CgoFiles}}{{.ImportPath}}{{end}}", "./...")
	require.Empty(t, strings.TrimSpace(out))
}
