package main

import (
	"archive/zip"
	"crypto/sha256"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// root is the tree.
const root = "../.."

// digests are those of a tree's files and links.
func digests(t *testing.T, root string) map[string]string {
	all, err := files(root)
	require.NoError(t, err)
	sums := make(map[string]string)
	for _, name := range all {
		path := filepath.Join(root, name)
		info, err := os.Lstat(path)
		require.NoError(t, err)
		if !info.Mode().IsRegular() {
			sums[name], err = os.Readlink(path)
			require.NoError(t, err)
			continue
		}
		data, err := os.ReadFile(path)
		require.NoError(t, err)
		sums[name] = fmt.Sprintf("%s %x", info.Mode(), sha256.Sum256(data))
	}
	return sums
}

// buildFlag makes the test build the renamed tree, which compiles all packages again. make release-check sets it.
var buildFlag = flag.Bool("build", false, "build and run the renamed tree too")

// TestRename: the renamed tree finds all its packages under the new path, and does not contain the old path. With
// -build it builds and runs. Renamed back, it is the same tree.
func TestRename(t *testing.T) {
	if testing.Short() {
		t.Skip("it lists the packages of a copy of the tree")
	}
	tree := t.TempDir()
	require.NoError(t, copyTree(root, tree))
	before := digests(t, tree)
	old, err := modulePath(tree)
	require.NoError(t, err)
	const module = "example.com/Some-Team/queues"

	changed, err := rename(t.Context(), tree, module)
	require.NoError(t, err)
	require.Greater(t, changed, 200)
	for dir, want := range map[string]string{".": module, "fdbkv": module + "/fdbkv", "tools": module + "/tools"} {
		got, err := modulePath(filepath.Join(tree, dir))
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, name := range []string{"README.md", "internal/lint/load.go", "fdbkv/go.mod", "docs/guide.md"} {
		data, err := os.ReadFile(filepath.Join(tree, name))
		require.NoError(t, err)
		require.Contains(t, string(data), module, name)
	}
	all, err := files(tree)
	require.NoError(t, err)
	require.Empty(t, newNames(old, all).left(tree, all))

	env := []string{"CGO_ENABLED=0", "GOFLAGS=-trimpath -buildvcs=false", "GOWORK=off"}
	commands := [][]string{{"list", "-deps", "-test", "./..."}}
	if *buildFlag {
		commands = append(commands,
			[]string{"vet", "./kv/tuple", "./examples/bookings"}, []string{"run", "./examples/bookings"})
	}
	for _, args := range commands {
		said, err := goCommand(t.Context(), tree, env, args...)
		require.NoError(t, err)
		require.False(t, slices.ContainsFunc(strings.Fields(said), func(word string) bool {
			return word == old || strings.HasPrefix(word, old+"/")
		}), "go %s", args)
	}
	_, err = goCommand(t.Context(), filepath.Join(tree, "fdbkv"), env, "list", "-deps", "./...")
	require.NoError(t, err)

	again, err := rename(t.Context(), tree, module)
	require.NoError(t, err)
	require.Zero(t, again)
	back, err := renameTo(t.Context(), tree, old)
	require.NoError(t, err)
	require.Equal(t, changed, back)
	require.Equal(t, before, digests(t, tree))
}

// TestFiles: what others have installed or built in the tree is no part of it.
func TestFiles(t *testing.T) {
	tree := t.TempDir()
	for _, name := range []string{"a.go", "e2e/b.go", "e2e/node_modules/c.go", "bin/d", ".git/e"} {
		path := filepath.Join(tree, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(path), 0o755))
		require.NoError(t, os.WriteFile(path, nil, 0o600))
	}
	all, err := files(tree)
	require.NoError(t, err)
	require.Equal(t, []string{"a.go", "e2e/b.go"}, all)
}

// TestNames: a module path that is an ordinary word, too, is found where a package is named, and nowhere else.
func TestNames(t *testing.T) {
	n := newNames("queue", []string{"go.mod", "layer/open.go", "cmd/queue/main.go", ".ci/run"})
	for before, after := range map[string]string{
		`import "queue/layer"`:                      `import "example.com/q/layer"`,
		`"queue/layer" "queue/cmd"`:                 `"example.com/q/layer" "example.com/q/cmd"`,
		"queue/layer,queue/cmd queue/layer":         "example.com/q/layer,example.com/q/cmd example.com/q/layer",
		`const module = "queue/"`:                   `const module = "example.com/q/"`,
		"`go doc queue/layer.Queue`":                "`go doc example.com/q/layer.Queue`",
		"goimports -local queue -w":                 "goimports -local example.com/q -w",
		"-require=queue@v0 -replace=queue=../queue": "-require=example.com/q@v0 -replace=example.com/q=../queue",
		"go run ./cmd/queue layer":                  "go run ./cmd/queue layer",
		"/var/lib/queue/layer":                      "/var/lib/queue/layer",
		"~/queue/layer, my-queue/layer, queue/x":    "~/queue/layer, my-queue/layer, queue/x",
		`"queue", "queue-demo", queue/layers`:       `"queue", "queue-demo", queue/layers`,
	} {
		require.Equal(t, after, n.replace(before, "example.com/q"))
	}
}

func TestModulePaths(t *testing.T) {
	for _, good := range []string{"example.com/queue", "example.com/Some-Team/fifo.go", "x.example.com/a/b_c~d"} {
		require.NoError(t, checkModulePath(good), good)
	}
	for _, bad := range []string{
		"", "queue", "queue/layer", "example.com/", "/example.com", "example.com//x", "example.com/x y",
		"example.com/x\"", "example.com/.x", "https://example.com/x",
		"Example.com/x", "-x.com/y", "example.com/x/v2", "example.com/x.",
	} {
		require.Error(t, checkModulePath(bad), bad)
	}
	tree := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(tree, "go.mod"), []byte("module example.com/q\n"), 0o644))
	require.NoError(t, os.MkdirAll(filepath.Join(tree, "layer"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(tree, "layer", "x.go"), []byte("package layer\n"), 0o644))
	_, err := rename(t.Context(), tree, "example.com/q/layer")
	require.ErrorContains(t, err, "choose another name")
}

// TestZip: a module's zip holds its files alone, no module inside and no link, and the root's licence.
func TestZip(t *testing.T) {
	tree := t.TempDir()
	for name, content := range map[string]string{
		"go.mod": "module example.com/Q\n", "q.go": "package q\n", "data/a.csv": "a", "LICENSE": "mine",
		".git/config":  "x",
		"inner/go.mod": "module example.com/Q/inner\n", "inner/deep/i.go": "package deep\n",
	} {
		require.NoError(t, os.MkdirAll(filepath.Dir(filepath.Join(tree, name)), 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(tree, name), []byte(content), 0o644))
	}
	require.NoError(t, os.Symlink("q.go", filepath.Join(tree, "link.go")))
	proxy := t.TempDir()
	license := filepath.Join(tree, "LICENSE")
	require.NoError(t, release{"example.com/Q", "v1.2.3", tree, license}.publish(proxy))
	require.NoError(t, release{"example.com/Q/inner", "v1.2.3", filepath.Join(tree, "inner"), license}.publish(proxy))
	for module, want := range map[string][]string{
		"example.com/!q":       {"LICENSE", "data/a.csv", "go.mod", "q.go"},
		"example.com/!q/inner": {"LICENSE", "deep/i.go", "go.mod"},
	} {
		r, err := zip.OpenReader(filepath.Join(proxy, filepath.FromSlash(module), "@v", "v1.2.3.zip"))
		require.NoError(t, err)
		defer r.Close()
		var names []string
		for _, f := range r.File {
			name, ok := strings.CutPrefix(f.Name, strings.ReplaceAll(module, "!q", "Q")+"@v1.2.3/")
			require.True(t, ok, f.Name)
			names = append(names, name)
		}
		slices.Sort(names)
		require.Equal(t, want, names)
	}
}
