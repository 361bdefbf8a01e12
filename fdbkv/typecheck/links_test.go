package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEveryTestIsLinked: a new file of the layer's tests is not forgotten in layertest. It is tested here, where no
// FoundationDB is needed.
func TestEveryTestIsLinked(t *testing.T) {
	files, err := filepath.Glob("../../layer/*_test.go")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, file := range files {
		name := filepath.Base(file)
		if name == "engines_test.go" || name == "example_test.go" || strings.HasSuffix(name, "_internal_test.go") {
			continue // the examples are of the embedded engine; what is inside the package stays there
		}
		target, err := os.Readlink(filepath.Join("../layertest", name))
		require.NoError(t, err, "link it: ln -s %s fdbkv/layertest/", file)
		require.Equal(t, filepath.FromSlash(file), target)
	}
}
