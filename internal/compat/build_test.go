package main

import (
	"context"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestFind: only a repository that does not have the usual older commit lets compat compare nothing and succeed. A
// commit that was named wrongly, a missing git and an interrupt are errors.
func TestFind(t *testing.T) {
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("without git")
	}
	folder := t.TempDir()
	t.Chdir(folder)
	t.Setenv("GIT_DIR", filepath.Join(folder, ".git")) // not that of a repository around it
	outside := find(t.Context(), usualOld)
	require.Error(t, outside, "no repository")
	require.NotErrorIs(t, outside, errNoCommit)

	out, err := exec.CommandContext(t.Context(), "git", "init", "--quiet").CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.ErrorIs(t, find(t.Context(), usualOld), errNoCommit)

	wrong := map[string]error{"none": find(t.Context(), ""), "mistyped": find(t.Context(), "20272d8")}
	ended, end := context.WithCancel(t.Context())
	end()
	wrong["interrupted"] = find(ended, usualOld)
	t.Setenv("PATH", "")
	wrong["no git"] = find(t.Context(), usualOld)
	for what, err := range wrong {
		require.Error(t, err, what)
		require.NotErrorIs(t, err, errNoCommit, what)
	}
}
