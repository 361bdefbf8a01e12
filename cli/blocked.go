package cli

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"fdbfifo/console"
	"fdbfifo/layer"
)

func newBlockedCmd(s *session) *cobra.Command {
	var causes []string
	var heldFor, readyFor time.Duration
	var n int
	var where whereFlag
	c := &cobra.Command{
		Use:   "blocked [--cause CAUSE]... [--where TEMPLATE] [-n N]",
		Short: "List the groups that are blocked, the worst first, and why",
		Long: `List the groups that are blocked, the worst first, and why: halted and paused groups, groups that wait
for a retry of their first message, groups that are held for long, and ready groups that no worker takes. A group that
waits by design, for a time or by its rate, is not listed. It reads a bounded number of keys, however deep the queue
is, and changes nothing. Causes: ` + strings.Join(causeNames(), ", ") + `.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if n < 1 || n > layer.MaxBlocked {
				return usagef("-n is %d: 1 to %d are allowed", n, layer.MaxBlocked)
			}
			for _, given := range []struct {
				name string
				d    *time.Duration
			}{{"held-for", &heldFor}, {"ready-for", &readyFor}} {
				if *given.d < 0 {
					return usagef("--%s is %s: 0s or more is wanted", given.name, *given.d)
				}
				if c.Flags().Changed(given.name) {
					*given.d = max(*given.d, 1) // 0 is one that is left out
				}
			}
			o := layer.BlockedOptions{HeldFor: heldFor, ReadyFor: readyFor, Limit: n, Where: where.template}
			for _, name := range causes {
				if !slices.Contains(causeNames(), name) {
					return usagef("--cause is %q: there are %s", name, strings.Join(causeNames(), ", "))
				}
				o.Causes = append(o.Causes, layer.Cause(strings.ReplaceAll(name, "-", " ")))
			}
			return s.withQueue(c.Context(), false, func(q *layer.Queue) error {
				page, err := q.Admin().Blocked(c.Context(), o)
				if err != nil {
					return asUsageIfOptions(err)
				}
				return s.printBlocked(page)
			})
		},
	}
	c.Flags().StringArrayVar(&causes, "cause", nil, "only groups blocked for this `CAUSE`; (repeatable)")
	c.Flags().DurationVar(&heldFor, "held-for", 0, "list groups held for `TIME` or longer; left out, ten leases")
	c.Flags().DurationVar(&readyFor, "ready-for", 0, "list ready groups that wait `TIME` or longer; left out, a minute")
	c.Flags().Var(&where, "where", "the groups as this `TEMPLATE` sees them, as state=NEW")
	c.Flags().IntVarP(&n, "number", "n", layer.DefaultBlocked, "how many groups, `N`")
	return c
}

// causeNames are the causes as a flag takes them.
func causeNames() []string {
	var names []string
	for _, c := range layer.BlockedCauses() {
		names = append(names, strings.ReplaceAll(string(c), " ", "-"))
	}
	return names
}

type jsonBlockedSummary struct {
	Summary map[layer.Cause]int64 `json:"summary"`
	Sampled bool                  `json:"sampled,omitempty"`
	Paused  *console.JSONMark     `json:"paused,omitempty"`
	Waiting int64                 `json:"waiting_handles"`
}

func (s *session) printBlocked(page layer.BlockedPage) error {
	if s.json {
		return s.printBlockedJSON(page)
	}
	t := newTable("group", "messages", "since", "failed", "why")
	alignRight(t, 2, 3, 4)
	now := s.app.Now()
	for _, g := range page.Groups {
		depth, since, failed := commas(g.Depth), "", ""
		if g.More {
			depth += "+"
		}
		if !g.Since.IsZero() {
			since = short(max(0, now.Sub(g.Since)))
		}
		if g.Attempts > 0 {
			failed = strconv.Itoa(g.Attempts)
		}
		texts := make([]string, len(g.Reasons))
		for i, r := range g.Reasons {
			texts[i] = r.String()
		}
		why := oneLine([]byte(strings.Join(texts, "; ")), maxWhyWidth)
		t.AppendRow(tableRow{oneLine([]byte(display(g.Group)), maxNameWidth), depth, since, failed, why})
	}
	if len(page.Groups) > 0 {
		if err := s.printTable(t); err != nil {
			return err
		}
	}
	_, err := fmt.Fprintln(s.stdout, blockedWords(page))
	return err
}

// blockedWords is the summary of a page, in a line or two.
func blockedWords(page layer.BlockedPage) string {
	var parts []string
	for _, c := range layer.BlockedCauses() {
		if n := page.Summary[c]; n > 0 {
			parts = append(parts, fmt.Sprintf("%s: %s", c, commas(n)))
		}
	}
	text := "no group is blocked"
	if len(parts) > 0 {
		text = strings.Join(parts, ", ")
	}
	if page.Sampled {
		text += "; a sample: there are more than were looked at"
	}
	if page.Paused != nil {
		text += "\nthe queue is " + markWords(*page.Paused)
	}
	return text
}

func (s *session) printBlockedJSON(page layer.BlockedPage) error {
	for _, g := range page.Groups {
		if err := printJSON(s.stdout, console.JSONOfBlocked(g)); err != nil {
			return err
		}
	}
	return printJSON(s.stdout, jsonBlockedSummary{
		Summary: page.Summary, Sampled: page.Sampled, Paused: console.JSONOfMark(page.Paused), Waiting: page.Waiting,
	})
}
