package sqs

import (
	"os"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestProtocolLines: what is written by hand for the two protocols and the signatures is at most 800 lines, blank ones
// and comments left out. The structs of the 23 operations, in shapes.go, are declarations, and counted apart.
func TestProtocolLines(t *testing.T) {
	blank := regexp.MustCompile(`(?m)^\s*(//.*)?\n`)
	count := func(files ...string) (n int) {
		for _, name := range files {
			text, err := os.ReadFile(name)
			require.NoError(t, err)
			for _, b := range blank.ReplaceAll(text, nil) {
				if b == '\n' {
					n++
				}
			}
		}
		return n
	}
	code, declared := count("protocol.go", "schema.go", "operations.go", "errors.go", "auth.go"), count("shapes.go")
	t.Logf("%d lines of code, and %d of declarations", code, declared)
	require.LessOrEqual(t, code, 800)
	require.LessOrEqual(t, declared, 200)
}
