package cli

import (
	"context"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The transcripts in docs/fdbcli.md are those in testdata/fdbcli.txt, which decode is tested with, and each range in
// them is one that key knows.
func TestFdbcliDocs(t *testing.T) {
	docs, err := os.ReadFile("../docs/fdbcli.md")
	require.NoError(t, err)
	captured, err := os.ReadFile("testdata/fdbcli.txt")
	require.NoError(t, err)
	blocks := regexp.MustCompile("(?s)```console\n(.*?)```").FindAllStringSubmatch(string(docs), -1)
	require.Greater(t, len(blocks), 10)
	keys := 0
	for _, block := range blocks {
		command, output, ok := strings.Cut(block[1], "\n")
		require.True(t, ok)
		require.True(t, strings.HasPrefix(command, "$ fdbcli "), command)
		if m := regexp.MustCompile(`\$\(fdbfifo (key [^)|]*)`).FindStringSubmatch(command); m != nil {
			require.NoError(t, Run(context.Background(), strings.Fields(m[1]), nil, io.Discard, io.Discard), command)
			keys++
		}
		if strings.Contains(command, "grep -c") {
			continue // a number, not what fdbcli prints
		}
		require.Contains(t, string(captured), "\n"+output, command)
	}
	require.Greater(t, keys, 8)
}
