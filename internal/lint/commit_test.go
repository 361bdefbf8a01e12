package lint

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestCommitHook: the hook that make setup switches on accepts "package: verb …" in 72 characters, and refuses other
// subjects.
func TestCommitHook(t *testing.T) {
	require.Contains(t, read(t, "Makefile"), "\n\tgit config core.hooksPath .githooks\n")
	hook, err := filepath.Abs("../../.githooks/commit-msg")
	require.NoError(t, err)
	long := "layer: " + strings.Repeat("end ", 16) // 71 characters
	for _, tt := range []struct{ message, refused string }{
		{"layer: end a wait when its handle closes", ""},
		{"internal/lint: count hard sentences\n\nA body may say who, what and whose.", ""},
		{"sim, layer: use one seed", ""},
		{"ci: run", ""},
		{"# a comment of git\n\nlayer: end a wait", ""},
		{long + "é", ""},
		{"layer: name a new whole-group claim", ""},
		{"Merge branch 'l1' into next", ""},
		{"Revert \"layer: end what waits\"", ""},
		{"fixup! layer: end a wait", ""},
		{long + "és", "73 characters"},
		{"end a wait", "package and a colon"},
		{"Layer: end a wait", "package and a colon"},
		{"layer end: a wait", "package and a colon"},
		{"layer:end a wait", "package and a colon"},
		{"layer: the end of a wait", "no verb"},
		{"layer: all that has led to a dead handle counts", "no verb"},
		{"sim: two laws excuse no more than their cause", "no verb"},
		{"layer: TakeOptions.Again tells", "no verb"},
		{"layer: WIP", "no verb"},
		{"layer: tell who holds a group", "who"},
		{"layer: keep what waits", "who"},
		{"layer: read whose claim lasts", "who"},
		{"layer: wake Whoever waits", "who"},
	} {
		path := filepath.Join(t.TempDir(), "COMMIT_EDITMSG")
		require.NoError(t, os.WriteFile(path, []byte(tt.message+"\n"), 0o644))
		out, err := exec.Command(hook, path).CombinedOutput()
		if tt.refused == "" {
			require.NoError(t, err, "%s: %s", tt.message, out)
			continue
		}
		require.Error(t, err, "%s", tt.message)
		require.Contains(t, string(out), tt.refused, "%s", tt.message)
	}
}
