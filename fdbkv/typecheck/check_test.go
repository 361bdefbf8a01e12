package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestAdapterTypeChecks on this machine, whatever it has of FoundationDB.
func TestAdapterTypeChecks(t *testing.T) {
	errs, err := check("..", nil)
	require.NoError(t, err)
	require.Empty(t, errs)
}

// TestTypeErrorsAreFound in the adapter's use of the binding, in its promise to implement kv, and in its tests.
func TestTypeErrorsAreFound(t *testing.T) {
	for _, c := range []struct{ name, file, old, broken, want string }{
		{"wrong argument to the binding", "../managed.go",
			"t.tr.SetReadVersion(v)", `t.tr.SetReadVersion("v")`, "managed.go"},
		{"a method the binding does not have", "../tx.go",
			"t.tr.ByteMin(k, operand)", "t.tr.ByteLeast(k, operand)", "ByteLeast"},
		{"a method of kv left out", "../managed.go",
			"func (t *managedTx) CommittedVersion()", "func (t *managedTx) VersionCommitted()", "CommittedVersion"},
		{"a test", "../open_test.go", "db.Close()", "db.Shut()", "Shut"},
	} {
		t.Run(c.name, func(t *testing.T) {
			path, err := filepath.Abs(c.file)
			require.NoError(t, err)
			text, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Contains(t, string(text), c.old)
			errs, err := check("..", map[string]string{path: strings.Replace(string(text), c.old, c.broken, 1)})
			require.NoError(t, err)
			require.NotEmpty(t, errs)
			require.ErrorContains(t, errs[0], c.want)
		})
	}
}
