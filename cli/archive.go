package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

const archiveHelp = `A queue with an archive (see config: archive) keeps the messages that are finished, acked or
taken, for that time. You can list them, and enqueue them again.`

func newArchiveCmd(s *session) *cobra.Command {
	c := &cobra.Command{
		Use:   "archive COMMAND",
		Short: "List or replay the messages that were finished",
		Long:  archiveHelp,
		Args:  knownSubcommand,
		RunE:  func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	c.AddCommand(newArchiveListCmd(s), newArchiveReplayCmd(s))
	for _, sub := range c.Commands() {
		sub.Args = noArgs
		sub.DisableFlagsInUseLine = true
	}
	return c
}

// archiveFlags choose archived items.
type archiveFlags struct {
	group groupFlag
	spanFlags
	after string
}

func (f *archiveFlags) add(c *cobra.Command) {
	f.group.add(c, "only those of this `GROUP`")
	f.spanFlags.add(c, "finished")
	c.Flags().StringVar(&f.after, "after", "", "begin behind the message with this `ID`")
}

// filter turns the flags into a filter of the layer, and the item to begin after.
func (f *archiveFlags) filter(s *session, c *cobra.Command) (layer.ArchiveFilter, *layer.ID, error) {
	o := layer.ArchiveFilter{Group: f.group.given()}
	if err := f.bounds(s, c, &o.From, &o.Before); err != nil {
		return o, nil, err
	}
	if !c.Flags().Changed("after") {
		return o, nil, nil
	}
	id, err := layer.ParseID(f.after)
	if err != nil {
		return o, nil, asUsage(err)
	}
	return o, &id, nil
}

func newArchiveListCmd(s *session) *cobra.Command {
	var f archiveFlags
	var n int
	var by headerFilter
	c := &cobra.Command{
		Use:   "list [--group GROUP] [--older TIME] [--newer TIME] [--header NAME=VALUE]... [-n N] [--after ID]",
		Short: "List finished messages, in the order in which they were finished",
		Long: archiveHelp + `

The messages of one group are listed in the order of the group. Several flags choose the messages to which all of them
apply. It changes nothing.`,
		RunE: func(c *cobra.Command, _ []string) error {
			filter, after, err := f.filter(s, c)
			if err != nil {
				return err
			}
			if err := cmp.Or(checkPage(n), by.check()); err != nil {
				return err
			}
			o := layer.ArchiveOptions{ArchiveFilter: filter, After: after, Limit: n, Bodies: true}
			return s.withQueue(c.Context(), false, func(q *layer.Queue) error {
				page, err := q.Admin().Archive(c.Context(), o)
				if by.active() && err == nil {
					page, err = archiveByHeader(c.Context(), q, o, &by)
				}
				if err != nil {
					return asUsageIfOptions(err)
				}
				return s.printArchive(page)
			})
		},
	}
	f.add(c)
	c.Flags().IntVarP(&n, "number", "n", 20, "how many, `N`")
	by.add(c)
	return c
}

// archiveByHeader lists the first archived messages that match by.
func archiveByHeader(
	ctx context.Context, q *layer.Queue, o layer.ArchiveOptions, by *headerFilter,
) (layer.ArchivePage, error) {
	items, last, err := chosen(q.Admin().AllArchived(ctx, o), o.Limit, func(item layer.ArchivedItem) bool {
		return by.matches(item.Headers)
	})
	page := layer.ArchivePage{Items: items}
	if last != nil {
		page.Next = &last.ID
	}
	return page, err
}

type jsonArchived struct {
	ID        string            `json:"id"`
	Group     string            `json:"group"`
	Completed time.Time         `json:"completed,omitzero"`
	Enqueued  time.Time         `json:"enqueued,omitzero"`
	DedupID   string            `json:"dedup_id,omitempty"`
	Headers   map[string]string `json:"headers,omitempty"`
	Error     string            `json:"error,omitempty"`
	jsonBody
}

func (s *session) printArchive(page layer.ArchivePage) error {
	if s.json {
		for _, item := range page.Items {
			j := jsonArchived{
				ID: item.ID.String(), Group: item.ID.Group, DedupID: item.DedupID, Headers: item.Headers,
				jsonBody: newJSONBody(item.Body),
			}
			if item.Err != nil {
				j.Error = item.Err.Error()
			} else {
				j.Completed, j.Enqueued = item.Completed.UTC(), item.Enqueued.UTC()
			}
			if err := printJSON(s.stdout, j); err != nil {
				return err
			}
		}
		return nil
	}
	if len(page.Items) == 0 {
		_, err := fmt.Fprintln(s.stdout, "no archived messages")
		return err
	}
	now := s.app.Now()
	t := newTable("id", "finished", "waited", "body")
	alignRight(t, 2, 3)
	used := 0
	for _, item := range page.Items {
		used = max(used, len(display(item.ID.String())))
	}
	width := max(minTextWidth, s.width()-used-30)
	for _, item := range page.Items {
		text := oneLine(item.Body, width)
		if item.Err != nil {
			text = oneLine([]byte(item.Err.Error()), width)
		}
		t.AppendRow(tableRow{
			display(item.ID.String()), since(now, item.Completed), since(item.Completed, item.Enqueued), text,
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

func newArchiveReplayCmd(s *session) *cobra.Command {
	var f archiveFlags
	var all, dryRun bool
	var yes confirmed
	var limit int
	c := &cobra.Command{
		Use: "replay (--group GROUP | --older TIME | --newer TIME | --all) [--yes] [--after ID] [--dry-run] [-n N] " +
			"[--by NAME] [--log FILE]",
		Short: "Enqueue finished messages again",
		Long: `Enqueue finished messages again, as new messages at the ends of their groups. The header
` + layer.ReplayHeader + ` of each has the id of the message that it repeats. The archive stays as it is.

It asks on a terminal; a script must give --yes. It works in small steps and disturbs no worker. After an interrupt it
says how many are done, and prints the id with which --after continues. To continue, give --older with the time since
the replay began, in place of --all: otherwise it also replays what workers have finished since. If the outcome of the
last step is unknown (exit code 9), it prints no such id, but how to look for the messages of that step.`,
		Example: `  fdbfifo archive replay --group ATL --newer 1h --dry-run`,
		RunE: func(c *cobra.Command, _ []string) error {
			filter, after, err := f.filter(s, c)
			if err != nil {
				return err
			}
			named := filter.Group != nil || !filter.From.IsZero() || !filter.Before.IsZero()
			switch {
			case named && all:
				return usagef("--all does not go with ids or a filter: give one of them")
			case !named && !all:
				return usagef("nothing is chosen: give --group, --default-group, --older, --newer or --all")
			}
			if err := checkSome(c, limit); err != nil {
				return err
			}
			filter.All = all
			if !dryRun {
				which := "the finished messages that these flags choose"
				if all {
					which = "all finished messages"
				}
				does := "enqueues " + which + " of queue " + display(s.queue) + " again"
				if err := s.confirm(c, yes, does); err != nil {
					return err
				}
			}
			return s.withQueue(c.Context(), false, func(q *layer.Queue) error {
				p := s.newProgress("replaying", "message", -1)
				defer p.close()
				report, err := s.admin(q).Replay(c.Context(), filter, layer.ReplayOptions{
					After: after, DryRun: dryRun, Limit: limit, Progress: func(r layer.ReplayReport) { p.set(r.Done) },
				})
				p.close()
				if usage := asUsageIfOptions(err); usage != err {
					return usage
				}
				if kv.MaybeCommitted(err) {
					// Messages behind Last may be enqueued already. Last must not be printed as the place to continue.
					err, report.Last = s.replayUnknown(err, report.Last), nil
				}
				// An interrupted replay has a report too, of the messages that it has replayed.
				stopped := err != nil || report.Done == int64(limit) && limit > 0
				return errors.Join(s.printReplay(report, dryRun, stopped), err)
			})
		},
	}
	f.add(c)
	s.addActing(c)
	c.Flags().BoolVar(&all, "all", false, "all finished messages")
	yes.add(c)
	c.Flags().BoolVar(&dryRun, "dry-run", false, "change nothing, and say how many it would be")
	c.Flags().IntVarP(&limit, "number", "n", 0, "at most `N`; left out, all chosen ones")
	return c
}

// replayUnknown adds to the error of a replay, whose last step may be done, how to find out. last is the last message
// of the steps before; nil = there was none.
func (s *session) replayUnknown(err error, last *layer.ID) error {
	list := s.command("archive list")
	if last != nil {
		list += " --after " + shellWord(last.String())
	}
	return &Error{
		Text: err.Error(), Err: err,
		Hint: "To continue, find the first message that is not enqueued again. " + list + " lists the next ones.\n" +
			"  Messages that are enqueued again have the header " + layer.ReplayHeader + ": " +
			s.command("peek --header "+layer.ReplayHeader),
	}
}

type jsonReplay struct {
	Done       string `json:"done"`
	Number     int64  `json:"number"`
	DryRun     bool   `json:"dry_run"`
	Scanned    int64  `json:"scanned"`
	Unreadable int64  `json:"unreadable"`
	Last       string `json:"last,omitempty"`
}

func (s *session) printReplay(r layer.ReplayReport, dryRun, stopped bool) error {
	last := ""
	if r.Last != nil {
		last = r.Last.String()
	}
	if s.json {
		return printJSON(s.stdout, jsonReplay{
			Done: "replayed", Number: r.Done, DryRun: dryRun, Scanned: r.Scanned, Unreadable: r.Unreadable, Last: last,
		})
	}
	text := "replayed "
	if dryRun {
		text = "would have replayed "
	}
	text += fmt.Sprintf("%s, of %s looked at", plural(r.Done, "message"), commas(r.Scanned))
	if r.Unreadable > 0 {
		text += fmt.Sprintf("; %s cannot be read", commas(r.Unreadable))
	}
	if stopped && last != "" {
		text += "; to go on: --after " + shellWord(last)
	}
	_, err := fmt.Fprintln(s.stdout, text)
	return err
}
