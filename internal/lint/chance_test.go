package lint

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// chancePackages are packages of tests whose files are no test files.
var chancePackages = []string{
	"internal/crash/", "internal/herd/", "internal/linear/", "internal/sim/", "internal/soak/", "kv/fault/",
	"kv/kvtest/",
}

// seeded are the functions of math/rand/v2 that draw nothing. They make a generator from a seed.
var seeded = []string{"New", "NewPCG", "NewChaCha8", "NewZipf"}

// TestNoOtherChance: a test takes its seed from internal/seeds alone, so that one number replays all tests. A test
// draws nothing from the global generators, and makes no seed from the clock.
func TestNoOtherChance(t *testing.T) {
	const root = "../.."
	files := 0
	require.NoError(t, filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") {
			return err
		}
		name, _ := filepath.Rel(root, path)
		name = filepath.ToSlash(name)
		ofTests := slices.ContainsFunc(chancePackages, func(p string) bool { return strings.HasPrefix(name, p) })
		if !ofTests && !strings.HasSuffix(name, "_test.go") {
			return nil
		}
		files++
		for _, text := range otherChance(t, path, nil) {
			t.Errorf("%s: %s: take the seed from internal/seeds", name, text)
		}
		return nil
	}))
	require.Greater(t, files, 100)
}

// otherChance lists the places where a file draws from a source that no seed decides. source is nil = the file's.
func otherChance(t *testing.T, path string, source any) (places []string) {
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, path, source, parser.SkipObjectResolution)
	require.NoError(t, err)
	random := ""
	for _, i := range file.Imports {
		switch name, _ := strconv.Unquote(i.Path.Value); name {
		case "math/rand/v2", "math/rand":
			if random = "rand"; i.Name != nil {
				random = i.Name.Name
			}
		}
	}
	if random == "" {
		return nil
	}
	ast.Inspect(file, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		function := call.Fun
		if index, ok := function.(*ast.IndexExpr); ok {
			function = index.X
		}
		f, ok := function.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		if x, isName := f.X.(*ast.Ident); !isName || x.Name != random {
			return true
		}
		line := set.Position(call.Pos()).Line
		if !slices.Contains(seeded, f.Sel.Name) {
			places = append(places, fmt.Sprintf("line %d: rand.%s draws from the global generator", line, f.Sel.Name))
		}
		for _, a := range call.Args {
			ast.Inspect(a, func(n ast.Node) bool {
				if s, ok := n.(*ast.SelectorExpr); ok && s.Sel.Name == "Now" {
					places = append(places, fmt.Sprintf("line %d: a seed from the clock", line))
				}
				return true
			})
		}
		return true
	})
	return places
}

// TestOtherChanceIsFound: the check sees each kind of source.
func TestOtherChanceIsFound(t *testing.T) {
	head := "package p\nimport \"math/rand/v2\"\n"
	require.Empty(t, otherChance(t, "p.go", head+"var r = rand.New(rand.NewPCG(1, 2)).Uint64()\n"))
	require.Len(t, otherChance(t, "p.go", head+"var n = rand.Uint64N(7) + 1\n"), 1)
	require.Len(t, otherChance(t, "p.go", head+"var n = rand.N[int](7) + 1\n"), 1)
	clock := head + "var r = rand.New(rand.NewPCG(uint64(time.Now().UnixNano()), 2))\n"
	require.NotEmpty(t, otherChance(t, "p.go", clock))
}

// TestSeedIsTheMakefiles: the seed without SEED is the one of the Makefile.
func TestSeedIsTheMakefiles(t *testing.T) {
	number := ""
	for line := range strings.Lines(read(t, "Makefile")) {
		if rest, ok := strings.CutPrefix(line, "export SEED ?= "); ok {
			number = strings.TrimSpace(rest)
		}
	}
	require.Contains(t, read(t, "internal/seeds/seeds.go"), "const Fixed = "+number+"\n")
}
