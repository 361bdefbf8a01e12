package history

import (
	"encoding/binary"
	"fmt"
	"strconv"
	"strings"

	"fdbfifo/kv"
)

// mask shows keys and values without the parts that differ from run to run.
type mask struct {
	prefix string
	stamps []shownStamp
}

type shownStamp struct{ bytes, shown string }

// show quotes b without the prefix, its stamps replaced. A long one is cut.
func (m *mask) show(b []byte) string {
	const most = 40
	if b == nil {
		return "absent"
	}
	s := strings.TrimPrefix(string(b), m.prefix)
	if len(s) > most {
		return fmt.Sprintf("%s and %d bytes more", m.quote(s[:8]), len(s)-8)
	}
	return m.quote(s)
}

func (m *mask) quote(s string) string { return `"` + m.inner(s) + `"` }

func (m *mask) inner(s string) string {
	for _, st := range m.stamps {
		if before, after, ok := strings.Cut(s, st.bytes); ok {
			return m.inner(before) + st.shown + m.inner(after)
		}
	}
	q := strconv.QuoteToASCII(s)
	return q[1 : len(q)-1]
}

func (m *mask) rows(rows []kv.KV) string {
	if len(rows) == 0 {
		return "none"
	}
	var b strings.Builder
	for i, r := range rows {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(m.show(r.Key) + "=" + m.show(r.Value))
	}
	return b.String()
}

// ranges shows the parts of the ranges that lie under the prefix.
func (m *mask) ranges(ranges []kv.KeyRange) string {
	end := string(kv.Strinc([]byte(m.prefix)))
	var b strings.Builder
	for _, r := range ranges {
		from, to := max(string(r.Begin), m.prefix), min(string(r.End), end)
		if from >= to {
			continue
		}
		shownEnd := "end"
		if to != end {
			shownEnd = m.show([]byte(to))
		}
		fmt.Fprintf(&b, " [%s,%s)", m.show([]byte(from)), shownEnd)
	}
	if b.Len() == 0 {
		return " none"
	}
	return b.String()
}

// pendingStamp is the lowest stamp that a commit above version may get, as FoundationDB 7.3 counts.
func pendingStamp(version int64) shownStamp {
	b := binary.BigEndian.AppendUint64(nil, uint64(version))
	return shownStamp{string(append(b, 0, 0)), "{read version}"}
}
