package lint

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("../..", path))
	require.NoError(t, err)
	return string(text)
}

// TestComposeFileIsValid, by the client's own check. It needs no docker engine.
func TestComposeFileIsValid(t *testing.T) {
	if err := exec.Command("docker", "compose", "version").Run(); err != nil {
		t.Skipf("no docker compose here: %v", err)
	}
	out, err := exec.Command("docker", "compose", "-f", "../../docker/compose.yaml", "--profile", "*", "config", "-q").CombinedOutput()
	require.NoError(t, err, "%s", out)
}

// TestDockerVersions: the cluster and the command's client library come from the same image, and Go is that of the
// modules.
func TestDockerVersions(t *testing.T) {
	compose, dockerfile := read(t, "docker/compose.yaml"), read(t, "docker/Dockerfile")
	pinned := regexp.MustCompile(`\$\{FDB_VERSION:-(.*?)\}`).FindAllStringSubmatch(compose, -1)
	require.NotEmpty(t, pinned)
	for _, p := range pinned {
		require.Regexp(t, `^7\.3\.\d+$`, p[1])
		require.Contains(t, dockerfile, "ARG FDB_VERSION="+p[1]+"\n")
	}
	for _, module := range []string{"go.mod", "fdbkv/go.mod"} {
		version := regexp.MustCompile(`(?m)^go (\d+\.\d+)`).FindStringSubmatch(read(t, module))
		require.NotNil(t, version, module)
		require.Contains(t, dockerfile, "ARG GO_VERSION="+version[1]+"\n", module)
	}
}

// TestDockerFilesExist: the files that the image is built of exist, and so do those that the services mount.
func TestDockerFilesExist(t *testing.T) {
	seen := 0
	for line := range strings.Lines(read(t, "docker/Dockerfile")) {
		if args := strings.Fields(line); len(args) > 2 && args[0] == "COPY" && !strings.HasPrefix(args[1], "--from=") {
			for _, source := range args[1 : len(args)-1] {
				_, err := os.Stat(filepath.Join("../..", source))
				require.NoError(t, err, "%s", line)
				seen++
			}
		}
	}
	for _, mount := range regexp.MustCompile(`"(\./.*?):`).FindAllStringSubmatch(read(t, "docker/compose.yaml"), -1) {
		require.FileExists(t, filepath.Join("../../docker", mount[1]))
		seen++
	}
	require.Greater(t, seen, 4)
}
