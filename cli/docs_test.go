package cli

import (
	"context"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/layer"
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

// Every kind of key is in the table in layer/subspace.go, and no other; in the table of docs/fdbcli.md, with what key says
// of groups; and decode is tested with one of it.
func TestEveryKindOfKeyIsDocumented(t *testing.T) {
	read := func(path string) string {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		return string(text)
	}
	docs, source, golden := read("../docs/fdbcli.md"), read("../layer/subspace.go"), read("testdata/decode.txt")+read("testdata/fdbcli.txt")
	var rows []string
	for _, row := range regexp.MustCompile(`(?m)^// *\t([a-z]+) +\("([a-z]+)",`).FindAllStringSubmatch(source, -1) {
		require.Equal(t, row[1], row[2])
		rows = append(rows, row[1])
	}
	slices.Sort(rows)
	require.Equal(t, layer.KeyNames(), slices.Compact(rows), "the table in layer/subspace.go")
	for _, name := range layer.KeyNames() {
		byGroup := ""
		if slices.Contains(keysByGroup(), name) {
			byGroup = " yes"
		}
		require.True(t, strings.Contains(docs, "\n| `"+name+"` |"+byGroup+" |"), "%s in the table of docs/fdbcli.md", name)
		require.True(t, strings.Contains(golden, `, "`+name+`", `), "%s in testdata/decode.txt", name)
	}
	kinds := regexp.MustCompile("(?m)^\\| `([a-z]+)` \\|( yes)? \\|").FindAllStringSubmatch(docs, -1)
	require.Len(t, kinds, len(layer.KeyNames()), "no kind that there is not")
}
