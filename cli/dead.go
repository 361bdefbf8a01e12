package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"fdbfifo/layer"
)

const deadHelp = `A message that has failed for good (see config: max_attempts, on_failure) is a dead letter. It is
kept aside, with the reason, and its group continues.`

func newDeadCmd(s *session) *cobra.Command {
	c := &cobra.Command{
		Use:   "dead COMMAND",
		Short: "List, redrive or discard the messages that have failed for good",
		Long:  deadHelp,
		Args:  knownSubcommand,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newDeadListCmd(s), newDeadRedriveCmd(s), newDeadDiscardCmd(s))
	for _, sub := range c.Commands() {
		if sub.Args == nil {
			sub.Args = noArgs
		}
		sub.DisableFlagsInUseLine = true
	}
	return c
}

// knownSubcommand returns the error for a word that is no command below c.
func knownSubcommand(c *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	var names []string
	for _, sub := range c.Commands() {
		names = append(names, sub.Name())
	}
	return usagef("unknown command %q: there are %s", args[0], strings.Join(names, ", "))
}

// spanFlags choose messages by the time since an event.
type spanFlags struct {
	older, newer time.Duration
}

// add adds the flags of an event. happened follows "only those" in their texts.
func (f *spanFlags) add(c *cobra.Command, happened string) {
	c.Flags().DurationVar(&f.older, "older", 0, "only those "+happened+" longer than `TIME` ago")
	c.Flags().DurationVar(&f.newer, "newer", 0, "only those "+happened+" within the last `TIME`")
}

// bounds sets the bounds for which flags are given.
func (f *spanFlags) bounds(s *session, c *cobra.Command, from, before *time.Time) error {
	now := s.app.Now()
	for _, age := range []struct {
		name  string
		d     time.Duration
		bound *time.Time
	}{{"older", f.older, before}, {"newer", f.newer, from}} {
		if !c.Flags().Changed(age.name) {
			continue
		}
		if age.d <= 0 {
			return usagef("--%s is %s: more than 0s is wanted", age.name, age.d)
		}
		*age.bound = now.Add(-age.d)
	}
	return nil
}

// deadFlags choose dead letters.
type deadFlags struct {
	group groupFlag
	text  string
	spanFlags
}

func (f *deadFlags) add(c *cobra.Command) {
	f.group.add(c, "only those of this `GROUP`")
	c.Flags().StringVar(&f.text, "text", "", "only those with this `TEXT` in their reason or last error")
	f.spanFlags.add(c, "that became dead letters")
}

// filter turns the flags, and ids, into a filter of the layer.
func (f *deadFlags) filter(s *session, c *cobra.Command, ids []string) (layer.DeadFilter, error) {
	o := layer.DeadFilter{Group: f.group.given(), Text: f.text}
	if err := f.bounds(s, c, &o.From, &o.Before); err != nil {
		return o, err
	}
	for _, text := range ids {
		id, err := layer.ParseID(text)
		if err != nil {
			return o, asUsage(err)
		}
		o.IDs = append(o.IDs, id)
	}
	return o, nil
}

// asUsageIfOptions makes layer.ErrOptions an error of the command line.
func asUsageIfOptions(err error) error {
	var limit *layer.LimitError
	if errors.Is(err, layer.ErrOptions) || errors.As(err, &limit) {
		return asUsage(err)
	}
	return err
}

func newDeadListCmd(s *session) *cobra.Command {
	var f deadFlags
	var n int
	var after string
	var by headerFilter
	c := &cobra.Command{
		Use: "list [--group GROUP] [--text TEXT] [--older TIME] [--newer TIME] [--header NAME=VALUE]... [-n N] " +
			"[--after ID]",
		Short: "List dead letters, by group",
		Long:  deadHelp + "\n\nSeveral flags choose the letters to which all of them apply. It changes nothing.",
		RunE: func(c *cobra.Command, _ []string) error {
			filter, err := f.filter(s, c, nil)
			if err != nil {
				return err
			}
			if err := cmp.Or(checkPage(n), by.check()); err != nil {
				return err
			}
			o := layer.DeadOptions{DeadFilter: filter, Limit: n, Bodies: true}
			if c.Flags().Changed("after") {
				id, err := layer.ParseID(after)
				if err != nil {
					return asUsage(err)
				}
				o.After = &id
			}
			return s.withQueue(c.Context(), false, func(q *layer.Queue) error {
				page, err := q.Admin().DeadLetters(c.Context(), o)
				if by.active() && err == nil {
					page, err = deadByHeader(c.Context(), q, o, &by)
				}
				if err != nil {
					return asUsageIfOptions(err)
				}
				return s.printDead(page)
			})
		},
	}
	f.add(c)
	c.Flags().IntVarP(&n, "number", "n", 20, "how many, `N`")
	c.Flags().StringVar(&after, "after", "", "begin behind the letter with this `ID`")
	by.add(c)
	return c
}

// deadByHeader lists the first dead letters that match by.
func deadByHeader(ctx context.Context, q *layer.Queue, o layer.DeadOptions, by *headerFilter) (layer.DeadPage, error) {
	letters, last, err := chosen(q.Admin().AllDeadLetters(ctx, o), o.Limit, func(d layer.DeadLetter) bool {
		return by.matches(d.Headers)
	})
	page := layer.DeadPage{Letters: letters}
	if last != nil {
		page.Next = &last.ID
	}
	return page, err
}

type jsonDead struct {
	ID           string            `json:"id"`
	Group        string            `json:"group"`
	Reason       string            `json:"reason"`
	LastError    string            `json:"last_error,omitempty"`
	Attempts     int               `json:"attempts"`
	First        time.Time         `json:"first,omitzero"`
	Last         time.Time         `json:"last,omitzero"`
	DeadLettered time.Time         `json:"dead_lettered,omitzero"`
	Enqueued     time.Time         `json:"enqueued,omitzero"`
	DedupID      string            `json:"dedup_id,omitempty"`
	Headers      map[string]string `json:"headers,omitempty"`
	jsonBody
}

func (s *session) printDead(page layer.DeadPage) error {
	if s.json {
		for _, d := range page.Letters {
			err := printJSON(s.stdout, jsonDead{
				ID: d.ID.String(), Group: d.ID.Group, Reason: d.Reason, LastError: d.LastError, Attempts: d.Attempts,
				First: d.First.UTC(), Last: d.Last.UTC(), DeadLettered: d.DeadLettered.UTC(),
				Enqueued: d.Enqueued.UTC(),
				DedupID:  d.DedupID, Headers: d.Headers, jsonBody: newJSONBody(d.Body),
			})
			if err != nil {
				return err
			}
		}
		return nil
	}
	if len(page.Letters) == 0 {
		_, err := fmt.Fprintln(s.stdout, "no dead letters")
		return err
	}
	now := s.app.Now()
	t := newTable("id", "dead-lettered", "failed", "reason", "last error", "body")
	alignRight(t, 2, 3)
	used := 0
	for _, d := range page.Letters {
		used = max(used, len(display(d.ID.String()))+len(strconv.Itoa(d.Attempts)))
	}
	width := max(minTextWidth, (s.width()-used-20)/3)
	for _, d := range page.Letters {
		t.AppendRow(tableRow{
			display(d.ID.String()), since(now, d.DeadLettered), d.Attempts, oneLine([]byte(d.Reason), width),
			oneLine([]byte(d.LastError), width), oneLine(d.Body, width),
		})
	}
	if err := s.printTable(t); err != nil {
		return err
	}
	if page.Next != nil {
		_, err := fmt.Fprintf(s.stdout, "there are more: --after %s\n", shellWord(page.Next.String()))
		return err
	}
	return nil
}
