package cli

import (
	"context"
	"fmt"
	"iter"
	"slices"
	"strconv"
	"time"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"fdbfifo/layer"
)

func newPeekCmd(s *session) *cobra.Command {
	var group groupFlag
	var n int
	var f headerFilter
	var where whereFlag
	c := &cobra.Command{
		Use:   "peek [--group GROUP] [--where TEMPLATE] [--header NAME=VALUE]... [-n N]",
		Short: "Look at the first messages without taking them",
		Long: `Print the first messages of a group. Without --group print the first message of each group, the oldest
first, or the first messages of the only group. With --header print the first messages that have the header, group by
group: for that it may have to read all messages. In a queue with facets --where prints only the messages that agree
with a template of its views, without such a search. It changes nothing.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := checkPage(n); err != nil {
				return err
			}
			if err := f.check(); err != nil {
				return err
			}
			return s.withQueue(c.Context(), false, func(q *layer.Queue) error {
				if f.active() {
					all := itemsOf(c.Context(), q, group.given(), where.template)
					items, _, err := chosen(all, n, func(item layer.Item) bool { return f.matches(item.Headers) })
					if err != nil {
						return asUsageIfOptions(err)
					}
					return s.printItems(items)
				}
				items, err := s.peek(c.Context(), q, group.given(), where.template, n)
				if err != nil {
					return asUsageIfOptions(err)
				}
				return s.printItems(items)
			})
		},
	}
	group.add(c, "the `GROUP`")
	c.Flags().Var(&where, "where", "only messages with these facets: a `TEMPLATE` of the queue's views, as state=NEW")
	c.Flags().IntVarP(&n, "number", "n", 10, "how many messages, `N`")
	f.add(c)
	return c
}

// itemsOf lists the messages of a group, or of all groups in the order of their names.
func itemsOf(
	ctx context.Context, q *layer.Queue, only *string, where layer.Template,
) iter.Seq2[layer.Item, error] {
	if only != nil {
		return q.Admin().AllItems(ctx, *only, where)
	}
	return func(yield func(layer.Item, error) bool) {
		for g, err := range q.Admin().AllGroups(ctx, layer.GroupsOptions{MaxDepth: 1, Where: where}) {
			if err != nil {
				yield(layer.Item{}, err)
				return
			}
			for item, err := range q.Admin().AllItems(ctx, g.Group, where) {
				if !yield(item, err) {
					return
				}
			}
		}
	}
}

func (s *session) peek(
	ctx context.Context, q *layer.Queue, group *string, where layer.Template, n int,
) ([]layer.Item, error) {
	if group != nil {
		return q.Peek(ctx, *group, n, where)
	}
	groups, err := allGroups(ctx, q, layer.GroupsOptions{MaxDepth: 1, Where: where})
	if err != nil {
		return nil, err
	}
	if len(groups) == 1 {
		return q.Peek(ctx, groups[0].Group, n, where)
	}
	slices.SortStableFunc(groups, sortByAge)
	var items []layer.Item
	for _, g := range groups[:min(n, len(groups))] {
		heads, err := q.Peek(ctx, g.Group, 1, where)
		if err != nil {
			return nil, err
		}
		items = append(items, heads...)
	}
	return items, nil
}

type jsonItem struct {
	ID       string    `json:"id"`
	Group    string    `json:"group"`
	Enqueued time.Time `json:"enqueued"`
	Attempts int       `json:"attempts"`
	// LastFailed is when the last failed delivery ended.
	LastFailed *time.Time `json:"last_failed,omitempty"`
	// DeliverAt is before when it is not delivered.
	DeliverAt *time.Time        `json:"deliver_at,omitempty"`
	DedupID   string            `json:"dedup_id,omitempty"`
	Headers   map[string]string `json:"headers,omitempty"`
	jsonBody
}

func newJSONItem(item layer.Item) jsonItem {
	j := jsonItem{
		ID: item.ID.String(), Group: item.ID.Group, Enqueued: item.Enqueued.UTC(), Attempts: item.Attempts,
		DedupID: item.DedupID, Headers: item.Headers, jsonBody: newJSONBody(item.Body),
	}
	j.DeliverAt, j.LastFailed = utcOrNil(item.DeliverAt), utcOrNil(item.LastFailed)
	return j
}

// utcOrNil is a time in UTC; nil if it is zero.
func utcOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	utc := t.UTC()
	return &utc
}

func (s *session) printItems(items []layer.Item) error {
	if s.json {
		for _, item := range items {
			if err := printJSON(s.stdout, newJSONItem(item)); err != nil {
				return err
			}
		}
		return nil
	}
	if len(items) == 0 {
		_, err := fmt.Fprintln(s.stdout, "no messages")
		return err
	}
	now := s.app.Now()
	t := newTable("group", "index", "age", "failed", "bytes", "body")
	alignRight(t, 2, 3, 4, 5)
	names, used := make([]string, len(items)), 0
	for i, item := range items {
		names[i] = oneLine([]byte(display(item.ID.Group)), maxNameWidth)
		used = max(used, text.StringWidthWithoutEscSequences(names[i])+len(strconv.FormatInt(item.ID.Index, 10)))
	}
	const others = 33 // the width of age, failed and bytes, and of the gaps between columns
	for i, item := range items {
		t.AppendRow(tableRow{
			names[i], item.ID.Index, short(max(0, now.Sub(item.Enqueued))), item.Attempts,
			commas(int64(len(item.Body))), oneLine(item.Body, max(minTextWidth, s.width()-used-others)),
		})
	}
	return s.printTable(t)
}
