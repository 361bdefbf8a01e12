package sim

import (
	"fmt"
	"hash/fnv"
	"strings"
	"time"
)

// trace is what happened, in order. It keeps a digest of all and the lines asked for.
type trace struct {
	keep  int // how many of the newest lines; < 0 = all
	lines []string
	sum   uint64
}

func (t *trace) step(n int, p place) {
	t.add("%d %d %s %d.%d", n, time.Now().UnixMicro(), p.what, p.who, p.n)
}

func (t *trace) note(what string, args ...any) {
	t.add("  "+what+strings.Repeat(" %v", len(args)), args...)
}

func (t *trace) add(format string, args ...any) {
	line := fmt.Sprintf(format, args...)
	h := fnv.New64a()
	fmt.Fprintf(h, "%016x%s", t.sum, line)
	t.sum = h.Sum64()
	if t.keep == 0 {
		return
	}
	t.lines = append(t.lines, line)
	if t.keep > 0 && len(t.lines) >= 2*t.keep {
		t.lines = append(t.lines[:0], t.lines[len(t.lines)-t.keep:]...)
	}
}

// String is the lines kept.
func (t *trace) String() string { return strings.Join(t.lines, "\n") }
