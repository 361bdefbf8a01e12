package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"fdbfifo/layer"
)

func newPurgeCmd(s *session) *cobra.Command {
	var group string
	var yes bool
	var o layer.PurgeOptions
	c := &cobra.Command{
		Use:   "purge (--group GROUP | --yes) [--force] [--by WHO] [--log FILE]",
		Short: "Remove all messages of a group, or of the queue",
		Long: `Remove all messages of a group for good, or with --yes and without --group, those of all groups. What is in a worker's
hands stays; --force takes it away and removes it too. The states of groups go too. Dead letters stay, and so do pauses. Messages that are enqueued
meanwhile may stay. A queue of which nothing is in flight, delayed by a failure or paused is emptied at once; otherwise it
takes small steps, which disturb no other group, and may be interrupted and run again to go on.`,
		RunE: func(c *cobra.Command, _ []string) error {
			oneGroup := c.Flags().Changed("group")
			if oneGroup == yes {
				return usagef("give either --group GROUP, or --yes for all messages of queue %s (see %s --help)",
					display(s.queue), c.CommandPath())
			}
			if o.All = yes; oneGroup {
				o.Group = &group
			}
			return s.withQueue(c.Context(), false, func(q *layer.Queue) error {
				p := s.newProgress("purging", "message", -1)
				defer p.close()
				o.Progress = func(r layer.PurgeReport) { p.set(r.Items) }
				report, err := s.admin(q).Purge(c.Context(), o)
				p.close()
				// Also of a purge that was interrupted: it has done what it reports.
				return errors.Join(s.printPurge(report), asUsageIfOptions(err))
			})
		},
	}
	c.Flags().StringVar(&group, "group", "", "the `GROUP`")
	c.Flags().BoolVar(&yes, "yes", false, "all groups of the queue")
	c.Flags().BoolVar(&o.Force, "force", false, "also what is in workers' hands, and what cannot be read")
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
