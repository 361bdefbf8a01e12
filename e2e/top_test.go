package e2e

import (
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestTopInTmux: top in a real terminal: it fits, follows a resize, and q gives the screen back.
func TestTopInTmux(t *testing.T) {
	tmux, err := exec.LookPath("tmux")
	needs(t, err == nil, "tmux", "apt-get install -y --no-install-recommends tmux")
	dir := t.TempDir()
	bin := build(t, dir)
	engine := "disk:" + filepath.Join(dir, "data")
	out, err := exec.Command(bin, "--engine", engine, "enqueue", "--group", "g", "--body", "x").CombinedOutput()
	require.NoError(t, err, "%s", out)
	run := func(args ...string) string {
		t.Helper()
		args = append([]string{"-S", filepath.Join(dir, "tmux"), "-f", "/dev/null"}, args...)
		out, err := exec.Command(tmux, args...).CombinedOutput()
		require.NoError(t, err, "%s", out)
		return string(out)
	}
	run("new-session", "-d", "-x", "80", "-y", "24", "sh")
	defer run("kill-server")
	screen := func(want string) {
		t.Helper()
		require.Eventually(t, func() bool { return strings.Contains(run("capture-pane", "-p"), want) }, time.Minute,
			50*time.Millisecond, "%s", want)
	}
	run("send-keys", "echo before; "+bin+" --engine "+engine+" top", "Enter")
	screen("messages 1   in flight 0")
	run("resize-window", "-x", "30", "-y", "6")
	screen("…")
	run("send-keys", "q")
	run("resize-window", "-x", "80", "-y", "24")
	screen("before")
	run("send-keys", "echo after", "Enter")
	screen("after")
}
