package fdbkv

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"runtime"
	"strings"
)

// ClusterFileVariable names the environment variable that the C client looks at first.
const ClusterFileVariable = "FDB_CLUSTER_FILE"

// findClusterFile returns path, or where the C client would look if it is empty.
func findClusterFile(path string) string {
	if path != "" {
		return path
	}
	if path, ok := os.LookupEnv(ClusterFileVariable); ok {
		return path
	}
	const here = "fdb.cluster"
	if _, err := os.Stat(here); err == nil {
		return here
	}
	if runtime.GOOS == "linux" {
		return "/etc/foundationdb/fdb.cluster"
	}
	return "/usr/local/etc/foundationdb/fdb.cluster"
}

// connectionString is description:id@coordinator,coordinator…
var connectionString = regexp.MustCompile(`^[A-Za-z0-9_]+:[A-Za-z0-9]+@[^\s,@]+:[^\s,@]+(,[^\s,@]+:[^\s,@]+)*$`)

// checkClusterFile finds what is wrong with a cluster file, which the C client would find out later and say less of.
func checkClusterFile(path string) error {
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%w: %w", ErrNoClusterFile, err)
	case err != nil:
		return fmt.Errorf("%w: %w", ErrClusterFile, err)
	}
	var found []string
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		if line = strings.TrimSpace(line); line != "" {
			found = append(found, line)
		}
	}
	if len(found) != 1 || !connectionString.MatchString(found[0]) {
		return fmt.Errorf("%w: %s: want one line description:id@host:port,host:port…", ErrClusterFile, path)
	}
	return nil
}
