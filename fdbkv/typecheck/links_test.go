package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestEveryTestIsLinked: a new file of the layer's tests is not forgotten in layertest. It is tested here, where no
// FoundationDB is needed.
func TestEveryTestIsLinked(t *testing.T) {
	files, err := filepath.Glob("../../layer/layertest/*_test.go")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	here := []string{"engines_test.go", "processes_test.go"} // of the embedded engine alone
	for _, file := range files {
		name := filepath.Base(file)
		if slices.Contains(here, name) {
			continue
		}
		target, err := os.Readlink(filepath.Join("../layertest", name))
		require.NoError(t, err, "link it: ln -s %s fdbkv/layertest/", file)
		require.Equal(t, filepath.FromSlash(file), target)
	}
}
