package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"fdbfifo/layer"
)

func newPurgeCmd(s *session) *cobra.Command {
	var group groupFlag
	var yes confirmed
	var o layer.PurgeOptions
	c := &cobra.Command{
		Use:   "purge (--group GROUP | --default-group | --all) [--yes] [--force] [--by NAME] [--log FILE]",
		Short: "Remove all messages of a group, or of the queue",
		Long: `Remove all messages of a group for good, or with --all those of all groups. It asks on a terminal; a
script must give --yes. A message in flight stays; --force takes it from its worker and removes it, too. The states of
groups go, too. Dead letters stay, and so do pauses. Messages that are enqueued during the purge may stay. A queue of
which nothing is in flight, delayed by a failure or paused is emptied at once. Otherwise purge takes small steps, which
disturb no other group. After an interrupt, run it again: it continues.`,
		Example: `  fdbfifo purge --group ATL --yes
  fdbfifo purge --queue orders --all`,
		RunE: func(c *cobra.Command, _ []string) error {
			if o.Group = group.given(); (o.Group != nil) == o.All {
				return usagef("give one of --group GROUP, --%s and, for the whole queue, --all", defaultGroup)
			}
			of := "queue " + display(s.queue)
			if o.Group != nil {
				of = "group " + display(*o.Group) + " of " + of
			}
			if err := s.confirm(c, yes, "removes all messages of "+of+" for good"); err != nil {
				return err
			}
			return s.withQueue(c.Context(), false, func(q *layer.Queue) error {
				p := s.newProgress("purging", "message", -1)
				defer p.close()
				o.Progress = func(r layer.PurgeReport) { p.set(r.Items) }
				report, err := s.admin(q).Purge(c.Context(), o)
				p.close()
				if usage := asUsageIfOptions(err); usage != err {
					return usage
				}
				// Also of a purge that was interrupted: it has done what it reports.
				return errors.Join(s.printPurge(report), err)
			})
		},
	}
	group.add(c, "the `GROUP`")
	c.Flags().BoolVar(&o.All, "all", false, "all groups of the queue")
	yes.add(c)
	c.Flags().BoolVar(&o.Force, "force", false, "also messages in flight, and rows that cannot be read")
	s.addActing(c)
	return c
}

type jsonPurge struct {
	Queue  string `json:"queue"`
	Purged int64  `json:"purged"`
	Kept   int64  `json:"kept"`
	Forced int64  `json:"forced"`
	States int64  `json:"states"`
	// Rows that could not be read.
	Unreadable int64 `json:"unreadable"`
}

func (s *session) printPurge(r layer.PurgeReport) error {
	if s.json {
		return printJSON(s.stdout, jsonPurge{
			Queue: s.queue, Purged: r.Items, Kept: r.Kept, Forced: r.Forced, States: r.States, Unreadable: r.Unreadable,
		})
	}
	line := "purged " + plural(r.Items, "message")
	if r.States > 0 {
		line += " and " + plural(r.States, "state")
	}
	if r.Forced > 0 {
		line += ", took " + plural(r.Forced, "group") + " from workers"
	}
	if r.Unreadable > 0 {
		line += ", cleared " + plural(r.Unreadable, "unreadable row")
	}
	if r.Kept > 0 {
		line += "; kept " + commas(r.Kept) + " in workers' hands"
	}
	_, err := fmt.Fprintln(s.stdout, line)
	return err
}
