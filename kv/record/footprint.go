package record

import (
	"bytes"
	"cmp"
	"fmt"
	"slices"
	"strings"

	"fdbfifo/kv"
)

// Footprint renders what a transaction did, for golden tests; values are left out:
//
//	read           get      (lock, "A")                  conflict
//	read           getkey   last<(item, "A", end)        snapshot
//	read           range    [(ready), (ready, end))      snapshot limit 8
//	conflict-read  key      (item, "A", 7, u1)
//	set            (item, "A", 8, u2)
//	add            (count, "enqueued", 3)
//	= read         key      (lock, "A")
//	= write        key      (item, "A", 8, u2)
//
// Lines are sorted by kind of call, then by key, so that the text does not depend on the order of independent
// calls. The lines with = are the conflict ranges that came of it, if the engine reported them. printKey renders
// a key, or the bound of a range.
func Footprint(t Transaction, printKey func([]byte) string) string {
	p := printer{key: printKey}
	type row struct {
		op   Op
		line string
	}
	rows := make([]row, len(t.Ops))
	for i, o := range t.Ops {
		rows[i] = row{o, p.op(o)}
	}
	slices.SortFunc(rows, func(a, b row) int {
		return cmp.Or(cmp.Compare(a.op.Kind, b.op.Kind), bytes.Compare(a.op.firstKey(), b.op.firstKey()),
			strings.Compare(a.line, b.line))
	})
	var text strings.Builder
	for _, r := range rows {
		text.WriteString(r.line)
	}
	for _, r := range t.Reads {
		text.WriteString(line("= read", p.keys(r)))
	}
	for _, r := range t.Writes {
		text.WriteString(line("= write", p.keys(r)))
	}
	return text.String()
}

// firstKey is the key that a call sorts by.
func (o Op) firstKey() []byte {
	switch o.Kind {
	case GetKey:
		return o.Selector.Key
	case GetRange:
		return o.Range.Begin.Key
	case ReadConflict, WriteConflict, ClearRange:
		return o.Keys.Begin
	case Get, Watch, Set, Clear, Atomic:
	}
	return o.Key
}

// printer renders calls with one way to show a key.
type printer struct{ key func([]byte) string }

// line puts columns into a line, without blanks at its end.
func line(verb, what string, notes ...string) string {
	s := fmt.Sprintf("%-14s %s", verb, what)
	if n := strings.Join(slices.DeleteFunc(notes, func(n string) bool { return n == "" }), " "); n != "" {
		s = fmt.Sprintf("%-59s %s", s, n)
	}
	return s + "\n"
}

func (p printer) op(o Op) string {
	mode := "conflict"
	if o.Snapshot {
		mode = "snapshot"
	}
	unguarded := ""
	if o.NoConflict {
		unguarded = "no-conflict"
	}
	switch o.Kind {
	case Get:
		return line("read", column("get", p.key(o.Key)), mode)
	case GetKey:
		return line("read", column("getkey", p.selector(o.Selector)), mode)
	case GetRange:
		limit, reverse := "", ""
		if o.Options.Limit != 0 {
			limit = fmt.Sprintf("limit %d", o.Options.Limit)
		}
		if o.Options.Reverse {
			reverse = "reverse"
		}
		bounds := fmt.Sprintf("[%s, %s)", p.bound(o.Range.Begin), p.bound(o.Range.End))
		return line("read", column("range", bounds), mode, limit, reverse)
	case Watch:
		return line("watch", p.key(o.Key))
	case ReadConflict:
		return line("conflict-read", p.keys(o.Keys))
	case WriteConflict:
		return line("conflict-write", p.keys(o.Keys))
	case Set:
		return line("set", p.key(o.Key), unguarded)
	case Clear:
		return line("clear", p.key(o.Key), unguarded)
	case ClearRange:
		return line("clear-range", fmt.Sprintf("[%s, %s)", p.key(o.Keys.Begin), p.key(o.Keys.End)), unguarded)
	case Atomic:
	}
	key := o.Key
	if o.Mutation == kv.SetVersionstampedKey && len(key) >= 4 {
		key = key[:len(key)-4] // without the place of the stamp
	}
	return line(mutationName(o.Mutation), p.key(key), unguarded)
}

func column(kind, what string) string { return fmt.Sprintf("%-8s %s", kind, what) }

// keys renders a range of keys, one that holds a single key as such.
func (p printer) keys(r kv.KeyRange) string {
	if bytes.Equal(r.End, kv.KeyAfter(r.Begin)) {
		return column("key", p.key(r.Begin))
	}
	return column("range", fmt.Sprintf("[%s, %s)", p.key(r.Begin), p.key(r.End)))
}

// bound renders an end of a range read: the usual selector as its key alone.
func (p printer) bound(s kv.KeySelector) string {
	if !s.OrEqual && s.Offset == 1 {
		return p.key(s.Key)
	}
	return p.selector(s)
}

func (p printer) selector(s kv.KeySelector) string {
	name, steps := "last<", s.Offset
	switch {
	case s.Offset > 0 && s.OrEqual:
		name, steps = "first>", s.Offset-1
	case s.Offset > 0:
		name, steps = "first>=", s.Offset-1
	case s.OrEqual:
		name = "last<="
	}
	if steps == 0 {
		return name + p.key(s.Key)
	}
	return fmt.Sprintf("%s%s%+d", name, p.key(s.Key), steps)
}

func mutationName(m kv.MutationType) string {
	switch m {
	case kv.Add:
		return "add"
	case kv.BitAnd:
		return "and"
	case kv.BitOr:
		return "or"
	case kv.BitXor:
		return "xor"
	case kv.AppendIfFits:
		return "append-if-fits"
	case kv.Max:
		return "max"
	case kv.Min:
		return "min"
	case kv.SetVersionstampedKey:
		return "set-stamped"
	case kv.SetVersionstampedValue:
		return "set-stamp"
	case kv.ByteMin:
		return "byte-min"
	case kv.ByteMax:
		return "byte-max"
	case kv.CompareAndClear:
		return "clear-if-equal"
	}
	return fmt.Sprintf("atomic-%d", int(m))
}
