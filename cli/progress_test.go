package cli

import (
	"bytes"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// On a terminal no line of the block is wider than the window nor the block higher, whatever the size; it is
// gone when the work is done. A line that wrapped would break the redrawing.
func TestProgressFits(t *testing.T) {
	for _, size := range [][2]int{{80, 24}, {40, 6}, {20, 3}} {
		var screen bytes.Buffer
		s := &session{stderr: &screen, app: &App{
			Now: time.Now, size: func(io.Writer) (int, int, bool) { return size[0], size[1], true },
		}}
		p := s.newProgress("working", "message", 1000)
		details := []string{strings.Repeat("wide ", 40), "second", "third", "fourth", "fifth", "sixth"}
		p.set(10, details...)
		drawn := screen.String()
		require.LessOrEqual(t, strings.Count(drawn, "\n"), size[1]-1)
		for line := range strings.Lines(drawn) {
			line = strings.TrimPrefix(strings.TrimSuffix(line, "\n"), "\r\x1b[K")
			require.Less(t, len([]rune(line)), size[0]+1, "%q", line)
		}
		screen.Reset()
		p.print(func() { io.WriteString(&screen, "a line\n") })
		require.True(t, strings.HasPrefix(screen.String(), "\r\x1b[Ja line\n"), "%q", screen.String())
		screen.Reset()
		p.close()
		require.Equal(t, "\r\x1b[J", screen.String())
		p.close()
		p.set(20)
		require.Equal(t, "\r\x1b[J", screen.String(), "nothing is drawn after the end")
	}
}

// Elsewhere progress is plain lines, and none for short work.
func TestProgressPlain(t *testing.T) {
	var log bytes.Buffer
	now := time.Unix(1_700_000_000, 0) // it stands still
	s := &session{stderr: &log, app: &App{Now: func() time.Time { return now }, size: terminalSize}}
	p := s.newProgress("working", "message", 5000)
	p.set(10)
	require.Empty(t, log.String())
	p.mu.Lock()
	p.shown = time.Time{}
	p.mu.Unlock()
	p.set(1234, "8 groups in flight")
	p.close()
	require.Equal(t, "fdbfifo: working: 1,234 of 5,000 messages; 8 groups in flight\n", log.String())
}

// Text from messages cannot steer the terminal, and is cut by columns.
func TestOneLine(t *testing.T) {
	for in, want := range map[string]string{
		"plain":         "plain",
		"\x1b[2Jx":      `\x1b[2Jx`,
		"tab\tnew\n":    `tab\tnew\n`,
		"\xff":          `\xff`,
		"ünï":           "ünï",
		"twelve chars":  "twelve chars",
		"thirteen char": "thirteen ch…",
		"漢字漢字漢字漢字":      "漢字漢字漢…",
	} {
		require.Equal(t, want, oneLine([]byte(in), 12), "%q", in)
	}
}
