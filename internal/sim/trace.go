package sim

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// trace is what happened, in order. It keeps a digest of all and the lines asked for.
type trace struct {
	keep  int // how many of the newest lines; < 0 = all
	lines []string
	sum   uint64
	line  []byte // the newest one, in memory that the next one takes over
}

// step is the line of almost all, and so is built without a format.
func (t *trace) step(n int, p place) {
	b := strconv.AppendInt(t.line[:0], int64(n), 10)
	b = strconv.AppendInt(append(b, ' '), time.Now().UnixMicro(), 10)
	b = append(append(append(b, ' '), p.what...), ' ')
	b = strconv.AppendInt(b, int64(p.who), 10)
	t.line = strconv.AppendInt(append(b, '.'), int64(p.n), 10)
	t.keepLine()
}

func (t *trace) note(what string, args ...any) {
	t.add("  "+what+strings.Repeat(" %v", len(args)), args...)
}

func (t *trace) add(format string, args ...any) {
	t.line = fmt.Appendf(t.line[:0], format, args...)
	t.keepLine()
}

// The digest is FNV-1a, of 64 bits.
const (
	digestBasis uint64 = 0xcbf29ce484222325
	digestPrime uint64 = 0x100000001b3
)

// keepLine takes the newest line into the digest, and among those that are kept.
func (t *trace) keepLine() {
	sum := digestBasis
	for shift := 60; shift >= 0; shift -= 4 {
		sum = (sum ^ uint64("0123456789abcdef"[t.sum>>shift&0xf])) * digestPrime
	}
	for _, c := range t.line {
		sum = (sum ^ uint64(c)) * digestPrime
	}
	t.sum = sum
	if t.keep == 0 {
		return
	}
	t.lines = append(t.lines, string(t.line))
	if t.keep > 0 && len(t.lines) >= 2*t.keep {
		t.lines = append(t.lines[:0], t.lines[len(t.lines)-t.keep:]...)
	}
}

// String is the lines kept.
func (t *trace) String() string { return strings.Join(t.lines, "\n") }
