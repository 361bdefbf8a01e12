package crash

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"
)

// A failed run prints the history of at most mostHistories messages and groups, of each the last mostLines operations.
const (
	mostHistories = 5
	mostLines     = 60
)

// history is what the children have told, and the messages and groups with a problem.
type history struct {
	told   []*deed
	open   map[int]*deed // by the child's number
	items  map[int]bool
	groups map[string]bool
}

// deed is an operation as a history prints it.
type deed struct {
	begin, end   event
	begun, ended int    // numbers of the model's events; ended is 0 without an answer
	how          string // a line of the parent's own; there is no operation
}

func newHistory() history {
	return history{open: make(map[int]*deed), items: make(map[int]bool), groups: make(map[string]bool)}
}

// see takes in event number now.
func (h *history) see(now int, e event) {
	switch {
	case !e.Done:
		d := &deed{begin: e, begun: now}
		h.told, h.open[e.Op] = append(h.told, d), d
	case h.open[e.Op] != nil:
		h.open[e.Op].end, h.open[e.Op].ended = e, now
		delete(h.open, e.Op)
	}
}

// note adds a line of the parent's own, such as a kill or a check.
func (h *history) note(now int, format string, args ...any) {
	h.told = append(h.told, &deed{begun: now, how: fmt.Sprintf(format, args...)})
	clear(h.open)
}

// concerns reports whether the operation has to do with message n: it names the message, or works on all of its group.
func (d *deed) concerns(n int, group string) bool {
	if d.how != "" || slices.Contains(d.begin.Items, n) {
		return true
	}
	for _, m := range d.begin.Msgs {
		if m.N == n {
			return true
		}
	}
	for _, c := range d.end.Claims {
		for _, i := range c.Items {
			if i.N == n {
				return true
			}
		}
	}
	switch d.begin.Kind {
	case kindPurge:
		return d.begin.Group == group
	case kindRedrive:
		return d.begin.Group == "" || d.begin.Group == group
	}
	return false
}

// touches reports whether the operation has to do with the group.
func (d *deed) touches(group string) bool {
	if d.how != "" {
		return true
	}
	named := d.begin.Group == group && d.begin.Kind != kindEnqueue && d.begin.Kind != kindReceive
	return named || slices.ContainsFunc(d.begin.Msgs, func(m message) bool { return m.Group == group }) ||
		slices.ContainsFunc(d.end.Claims, func(c claim) bool { return c.Group == group })
}

func (d *deed) String() string {
	if d.how != "" {
		return fmt.Sprintf("%6d        %s", d.begun, d.how)
	}
	var b strings.Builder
	if d.ended == 0 {
		fmt.Fprintf(&b, "%6d–?      ", d.begun)
	} else {
		fmt.Fprintf(&b, "%6d–%-6d", d.begun, d.ended)
	}
	fmt.Fprintf(&b, " process %d", d.begin.Process)
	if d.begin.Serves {
		b.WriteString(" (serves)")
	}
	fmt.Fprintf(&b, " %s", time.UnixMicro(d.begin.Micros).UTC().Format("15:04:05.000000"))
	if d.ended > 0 {
		fmt.Fprintf(&b, " +%s", time.Duration(d.end.Micros-d.begin.Micros)*time.Microsecond)
	}
	fmt.Fprintf(&b, ", versions %d to ", d.begin.Version)
	if d.ended > 0 {
		fmt.Fprint(&b, d.end.Version)
	} else {
		b.WriteString("?")
	}
	fmt.Fprintf(&b, ": %s%s", d.begin.Kind, d.begin.arguments())
	switch {
	case d.ended == 0:
		b.WriteString(" → no answer: its process was killed")
	case d.end.Lost:
		b.WriteString(" → claim lost")
	default:
		fmt.Fprintf(&b, " → done%s", d.end.answer())
	}
	return b.String()
}

// arguments is what the operation was called with.
func (e event) arguments() string {
	var b strings.Builder
	for _, m := range e.Msgs {
		fmt.Fprintf(&b, " %d in %q", m.N, m.Group)
		if m.Dedup != "" {
			fmt.Fprintf(&b, " dedup %s", m.Dedup)
		}
	}
	if len(e.Items) > 0 || e.Kind == kindPurge {
		fmt.Fprintf(&b, " group %q", e.Group)
	}
	if len(e.Items) > 0 {
		fmt.Fprintf(&b, " token %d messages %v", e.Token, e.Items)
	}
	for _, flag := range []struct {
		set  bool
		name string
	}{{e.Effect, "effect"}, {e.Reject, "reject"}, {e.Free, "no attempt"}, {e.Force, "force"}} {
		if flag.set {
			b.WriteString(" " + flag.name)
		}
	}
	if e.State != "" {
		fmt.Fprintf(&b, " state %q", e.State)
	}
	return b.String()
}

// answer is what the operation was told.
func (e event) answer() string {
	var b strings.Builder
	for _, s := range e.Sent {
		fmt.Fprintf(&b, " %s", s.ID)
		if s.Duplicate {
			b.WriteString(" (duplicate)")
		}
	}
	for _, c := range e.Claims {
		fmt.Fprintf(&b, " claim of %q token %d state %q:", c.Group, c.Token, c.State)
		for _, i := range c.Items {
			fmt.Fprintf(&b, " %d", i.N)
		}
	}
	return b.String()
}

// explain prints the history of each message and group with a problem.
func (m *model) explain() string {
	var b strings.Builder
	left := mostHistories
	write := func(what string, concerned func(d *deed) bool) {
		if left--; left < 0 {
			return
		}
		lines := make([]string, 0, mostLines)
		for _, d := range m.history.told {
			if concerned(d) {
				lines = append(lines, d.String())
			}
		}
		if n := len(lines) - mostLines; n > 0 {
			lines = append([]string{fmt.Sprintf("%d earlier operations are left out", n)}, lines[n:]...)
		}
		fmt.Fprintf(&b, "\nhistory of %s (events, process, begin, duration, newest commit of its process):\n%s\n", what,
			strings.Join(lines, "\n"))
	}
	for _, n := range slices.Sorted(maps.Keys(m.history.items)) {
		group := ""
		if it := m.items[n]; it != nil {
			group = it.Group
		}
		write(fmt.Sprintf("message %d of group %q", n, group), func(d *deed) bool { return d.concerns(n, group) })
	}
	for _, g := range slices.Sorted(maps.Keys(m.history.groups)) {
		write(fmt.Sprintf("group %q", g), func(d *deed) bool { return d.touches(g) })
	}
	return b.String()
}
