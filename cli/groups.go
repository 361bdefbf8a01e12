package cli

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"fdbfifo/console"
	"fdbfifo/layer"
)

func newGroupsCmd(s *session) *cobra.Command {
	var by string
	var n int
	var marked bool
	var where whereFlag
	orders := map[string]func(a, b layer.GroupInfo) int{"depth": sortByDepth, "age": sortByAge, "name": sortByName}
	c := &cobra.Command{
		Use:   "groups [--sort depth|age|name] [-n N] [--marked | --where TEMPLATE]",
		Short: "List the groups that have messages: depth, age, status, holder",
		Long: `List the groups that have messages. Status: ready (free to be claimed), held (by a worker), expired (its
worker's lease has run out, the next one takes over), delayed (waits for a retry), rate_limited (has used up
its rate for now), paused (by an operator), halted (its head
has failed for good), corrupt (see check). A group that is held, and paused or halted when that ends, says so.
In a queue with facets --where lists the groups that have messages which agree with a template, and says of these what it
says; excluded is a group that a claim of an intersecting template has. It changes nothing.`,
		RunE: func(c *cobra.Command, _ []string) error {
			order, ok := orders[by]
			if !ok {
				return usagef("--sort is %q: depth, age or name is wanted", by)
			}
			if err := checkMost(n); err != nil {
				return err
			}
			return s.withQueue(c.Context(), false, func(q *layer.Queue) error {
				groups, err := allGroups(c.Context(), q, layer.GroupsOptions{Marked: marked, Where: where.template})
				if err != nil {
					return asUsageIfOptions(err)
				}
				if marked && len(groups) == 0 && !s.json {
					_, err := fmt.Fprintln(s.stdout, "no groups are paused or halted")
					return err
				}
				slices.SortStableFunc(groups, order)
				shown := groups
				if n > 0 {
					shown = groups[:min(n, len(groups))]
				}
				return s.printGroups(shown, len(groups))
			})
		},
	}
	c.Flags().StringVar(&by, "sort", "depth", "the `ORDER`: depth (deepest first), age (oldest head first), name")
	c.Flags().IntVarP(&n, "number", "n", 20, "how many groups, `N`; 0 = all")
	c.Flags().Var(&where, "where", "only what this `TEMPLATE` sees of each group, as state=NEW")
	c.Flags().BoolVar(&marked, "marked", false, "only groups paused or halted, or about to be; empty ones too")
	return c
}

func sortByDepth(a, b layer.GroupInfo) int { return cmp.Compare(b.Depth, a.Depth) }
func sortByAge(a, b layer.GroupInfo) int   { return cmp.Compare(a.Head.Index, b.Head.Index) }
func sortByName(a, b layer.GroupInfo) int  { return cmp.Compare(a.Group, b.Group) }

// allGroups lists all groups, by name.
func allGroups(ctx context.Context, q *layer.Queue, o layer.GroupsOptions) ([]layer.GroupInfo, error) {
	var all []layer.GroupInfo
	for g, err := range q.Admin().AllGroups(ctx, o) {
		if err != nil {
			return nil, err
		}
		all = append(all, g)
	}
	return all, nil
}

func (s *session) printGroups(groups []layer.GroupInfo, total int) error {
	if s.json {
		for _, g := range groups {
			err := printJSON(s.stdout, console.JSONOfGroup(g))
			if err != nil {
				return err
			}
		}
		return nil
	}
	if len(groups) == 0 {
		_, err := fmt.Fprintln(s.stdout, "no groups have messages")
		return err
	}
	t := newTable("group", "messages", "head", "status", "left", "holder", "failed", "last error")
	alignRight(t, 2, 3, 5, 7)
	names, used := make([]string, len(groups)), 0
	for i, g := range groups {
		names[i] = oneLine([]byte(display(g.Group)), maxNameWidth)
		used = max(used, text.StringWidthWithoutEscSequences(names[i])+min(len(g.Owner), maxNameWidth))
	}
	const others = 48 // the width of the other columns, and of the gaps between columns
	for i, g := range groups {
		left, failed := "", ""
		state, holder, why := string(g.Status), g.Owner, g.LastError
		if g.Left != 0 {
			left = short(g.Left)
		}
		switch {
		case g.Mark == nil:
		case g.Mark.Status == g.Status:
			holder, why = g.Mark.By, g.Mark.Reason
		default:
			state += ", then " + string(g.Mark.Status)
		}
		if g.Where != nil {
			state += " by " + g.Where.String()
		}
		if g.Attempts > 0 {
			failed = strconv.Itoa(g.Attempts)
		}
		t.AppendRow(tableRow{
			names[i], commas(g.Depth), short(g.HeadAge), state, left, oneLine([]byte(holder), maxNameWidth),
			failed, oneLine([]byte(why), max(minTextWidth, s.width()-used-others)),
		})
	}
	if err := s.printTable(t); err != nil {
		return err
	}
	if len(groups) < total {
		_, err := fmt.Fprintf(s.stdout, "%s of %s, -n 0 lists all\n", commas(int64(len(groups))), plural(int64(total), "group"))
		return err
	}
	return nil
}
