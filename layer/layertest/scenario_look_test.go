package layer_test

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"fdbfifo/layer"
)

// The verbs of scenarios that only look and change nothing; see TestScenarios.

func (s *scenario) groups(a *arguments) (string, error) {
	q := s.worker(a).q
	var out strings.Builder
	page, err := q.Admin().Groups(s.e.ctx, layer.GroupsOptions{Where: a.where()})
	if err != nil {
		return "", err
	}
	for _, g := range page.Groups {
		fmt.Fprintf(&out, "%s %s depth=%d head=%s", groupName(g.Group), g.Status, g.Depth, s.bodies[g.Head])
		if g.Attempts > 0 {
			fmt.Fprintf(&out, " attempts=%d (%s)", g.Attempts, g.LastError)
		}
		if g.Owner != "" {
			fmt.Fprintf(&out, " owner=%s outstanding=%d", g.Owner, g.Outstanding)
		}
		if g.Where != nil && g.Owner != "" {
			fmt.Fprintf(&out, " where %s", g.Where)
		}
		if g.Status != layer.Ready && g.Status != layer.Halted {
			fmt.Fprintf(&out, " left=%s", g.Left)
		}
		if g.Mark != nil {
			fmt.Fprintf(&out, " %s by %s (%s)", g.Mark.Status, g.Mark.By, g.Mark.Reason)
		}
		out.WriteByte('\n')
	}
	if out.Len() == 0 {
		return "no groups", nil
	}
	return out.String(), nil
}

func (s *scenario) why(a *arguments) (string, error) {
	q := s.worker(a).q
	var out strings.Builder
	e, err := q.Admin().Why(s.e.ctx, s.id(a, a.word(0)), a.where())
	for _, r := range e.Reasons {
		fmt.Fprint(&out, r.Cause)
		if r.Count > 0 {
			fmt.Fprintf(&out, " %d", r.Count)
		}
		if r.Owner != "" {
			fmt.Fprintf(&out, " owner=%s", r.Owner)
		}
		if r.Where != nil {
			fmt.Fprintf(&out, " where %s", r.Where)
		}
		if r.Left != 0 {
			fmt.Fprintf(&out, " left=%s", r.Left)
		}
		if r.Err != "" {
			fmt.Fprintf(&out, " (%s)", r.Err)
		}
		if r.Mark != nil {
			fmt.Fprintf(&out, " by %s (%s)", r.Mark.By, r.Mark.Reason)
		}
		out.WriteByte('\n')
	}
	return out.String(), err
}

func (s *scenario) peek(a *arguments) (string, error) {
	q := s.worker(a).q
	items, err := q.Peek(s.e.ctx, a.word(0), layer.MaxBatch, a.where())
	if err != nil || len(items) == 0 {
		return "nothing", err
	}
	return strings.TrimSpace(s.items(a, items)), nil
}

func (s *scenario) stats(a *arguments) (string, error) {
	q := s.worker(a).q
	var out strings.Builder
	st, err := q.Stats(s.e.ctx, layer.StatsOptions{})
	if err != nil {
		return "", err
	}
	fmt.Fprintf(&out, "enqueued=%d received=%d acked=%d nacked=%d expired=%d taken=%d depth=%d\n",
		st.Enqueued, st.Received, st.Acked, st.Nacked, st.Expired, st.Taken, st.Depth)
	if st.Cancelled+st.Purged+st.Forced > 0 {
		fmt.Fprintf(&out, "cancelled=%d purged=%d forced=%d\n", st.Cancelled, st.Purged, st.Forced)
	}
	if st.PastRetention > 0 {
		fmt.Fprintf(&out, "past retention=%d\n", st.PastRetention)
	}
	if st.PausedGroups+st.HaltedGroups > 0 {
		fmt.Fprintf(&out, "paused groups=%d halted groups=%d\n", st.PausedGroups, st.HaltedGroups)
	}
	if st.Paused != nil {
		fmt.Fprintf(&out, "paused by %s (%s)\n", st.Paused.By, st.Paused.Reason)
	}
	fmt.Fprintf(&out, "ready=%d busy=%d oldest ready=%s", st.ReadyGroups, st.BusyGroups, st.OldestReady)
	if st.BusyGroups > 0 {
		fmt.Fprintf(&out, "\nheld=%d delayed=%d oldest=%s", st.HeldGroups, st.DelayedGroups, st.OldestHead)
	}
	if st.Lapsed > 0 {
		fmt.Fprintf(&out, "\nin flight=%d lapsed=%d", st.InFlight, st.Lapsed)
	}
	for _, v := range st.Views {
		fmt.Fprintf(&out, "\nview %s: ready=%d", v.View, v.ReadyLanes)
	}
	if st.DeadLettered > 0 {
		fmt.Fprintf(&out, "\ndead_lettered=%d dead=%d", st.DeadLettered, st.Dead)
	}
	if st.Redriven+st.Discarded > 0 {
		fmt.Fprintf(&out, " redriven=%d discarded=%d", st.Redriven, st.Discarded)
	}
	return out.String(), nil
}

func (s *scenario) check(a *arguments) (string, error) {
	q := s.worker(a).q
	var out strings.Builder
	r, err := q.Admin().Check(s.e.ctx, layer.CheckOptions{})
	if err != nil {
		return "", err
	}
	fmt.Fprintf(&out, "items=%d groups=%d held=%d delayed=%d attempts=%d",
		r.Items, r.Groups, r.Held, r.Delayed, r.Attempts)
	if !a.flag("lasting") {
		fmt.Fprintf(&out, " stale hints=%d timers=%d", r.StaleHints, r.StaleTimers)
	}
	out.WriteByte('\n')
	if r.Dead > 0 || r.Halted > 0 {
		fmt.Fprintf(&out, "dead=%d halted groups=%d\n", r.Dead, r.Halted)
	}
	for _, v := range r.Violations {
		fmt.Fprintln(&out, v)
	}
	return out.String(), nil
}

// find prints where the message with a dedup id is.
func (s *scenario) find(a *arguments) (string, error) {
	f, err := s.worker(a).q.Find(s.e.ctx, a.text("group", ""), a.word(0))
	if err != nil {
		return "", err
	}
	out, now := string(f.Where), s.e.clock.now()
	if f.Where != layer.WhereUnknown {
		out += ": " + s.bodies[f.ID]
	}
	if f.Ahead > 0 {
		out += fmt.Sprintf(" ahead=%d", f.Ahead)
	}
	if !f.DeliverAt.IsZero() {
		out += fmt.Sprintf(" due in %s", f.DeliverAt.Sub(now))
	}
	if f.Owner != "" {
		out += fmt.Sprintf(" owner=%s left=%s", f.Owner, f.Until.Sub(now))
	}
	if f.Reason != "" {
		out += fmt.Sprintf(" (%s)", f.Reason)
	}
	if !f.Completed.IsZero() {
		out += fmt.Sprintf(" finished %s ago", now.Sub(f.Completed))
	}
	if !f.Remembered.IsZero() {
		out += fmt.Sprintf(", remembered for %s", f.Remembered.Sub(now))
	}
	return out, nil
}

// blocked lists the groups that do not go on, a page of limit after the other, and the summary of all.
func (s *scenario) blocked(a *arguments) (string, error) {
	o := layer.BlockedOptions{
		HeldFor: a.duration("held-for"), ReadyFor: a.duration("ready-for"), Limit: a.number("limit"), Where: a.where(),
	}
	if cause := a.text("cause", ""); cause != "" {
		o.Causes = []layer.Cause{layer.Cause(strings.ReplaceAll(cause, "-", " "))}
	}
	var out strings.Builder
	for {
		page, err := s.worker(a).q.Admin().Blocked(s.e.ctx, o)
		if err != nil {
			return "", err
		}
		for _, g := range page.Groups {
			fmt.Fprintf(&out, "%s: %s depth=%d head=%s", groupName(g.Group), g.Cause, g.Depth, s.bodies[g.Head])
			if g.Attempts > 0 {
				fmt.Fprintf(&out, " attempts=%d (%s)", g.Attempts, g.LastError)
			}
			if g.Owner != "" {
				fmt.Fprintf(&out, " owner=%s", g.Owner)
			}
			if g.Mark != nil {
				fmt.Fprintf(&out, " by %s (%s)", g.Mark.By, g.Mark.Reason)
			}
			out.WriteByte('\n')
		}
		if page.Next == nil {
			for _, cause := range slices.Sorted(maps.Keys(page.Summary)) {
				if page.Summary[cause] > 0 {
					fmt.Fprintf(&out, "%s in all: %d\n", cause, page.Summary[cause])
				}
			}
			break
		}
		out.WriteString("next page\n")
		o.After = page.Next
	}
	if out.Len() == 0 {
		return "none", nil
	}
	return out.String(), nil
}

// holders lists who holds groups, without the times that are the engine's.
func (s *scenario) holders(a *arguments) (string, error) {
	page, err := s.worker(a).q.Admin().Holders(s.e.ctx)
	if err != nil || len(page.Holders) == 0 {
		return "nobody", err
	}
	var out strings.Builder
	for _, h := range page.Holders {
		fmt.Fprintf(&out, "%s: groups=%d outstanding=%d longest=%s left=%s\n",
			h.Owner, h.Groups, h.Outstanding, groupName(h.Longest), h.LeastLeft)
	}
	return out.String(), nil
}
