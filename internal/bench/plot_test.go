package bench_test

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/internal/bench"
	"fdbfifo/kv/embedded"
)

// A sweep has a point for each number of claimers; its plot is well-formed and its table has all rows.
func TestSweep(t *testing.T) {
	s := bench.Tiny()
	all, err := bench.Sweep(t.Context(), env(t, embedded.Options{}), s)
	require.NoError(t, err)
	require.Len(t, all, len(s.Handles))
	var svg, table strings.Builder
	require.NoError(t, bench.WriteSVG(&svg, all, "a < b & c"))
	d := xml.NewDecoder(strings.NewReader(svg.String()))
	lines := 0
	for {
		token, err := d.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		require.NoError(t, err)
		if e, ok := token.(xml.StartElement); ok && e.Name.Local == "polyline" {
			lines++
		}
	}
	require.Equal(t, 2, lines, "a line in either chart")
	require.NoError(t, bench.WriteMarkdown(&table, all))
	require.Equal(t, 2+len(s.Handles), strings.Count(table.String(), "\n"))
}
