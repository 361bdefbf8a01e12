package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"fdbfifo/layer"
)

// deadSweepFlags are those of the commands that do something to all dead letters that are chosen.
type deadSweepFlags struct {
	deadFlags
	all    bool
	yes    confirmed
	dryRun bool
	limit  int
}

func (f *deadSweepFlags) add(s *session, c *cobra.Command) {
	s.addActing(c)
	f.deadFlags.add(c)
	c.Flags().BoolVar(&f.all, "all", false, "all dead letters")
	f.yes.add(c)
	c.Flags().BoolVar(&f.dryRun, "dry-run", false, "change nothing, and say how many it would be")
	c.Flags().IntVarP(&f.limit, "number", "n", 0, "at most `N`; left out, all chosen ones")
}

// chosen wants the letters to be named, or --all.
func (f *deadSweepFlags) chosen(s *session, c *cobra.Command, ids []string) (layer.DeadFilter, error) {
	filter, err := f.filter(s, c, ids)
	if err != nil {
		return filter, err
	}
	named := len(ids) > 0 || filter.Group != nil || f.text != "" || f.older > 0 || f.newer > 0
	switch {
	case named && f.all:
		return filter, usagef("--all does not go with ids or a filter: give one of them")
	case !named && !f.all:
		return filter, usagef("nothing is chosen: give ids, --group, --default-group, --text, --older, --newer " +
			"or --all")
	}
	filter.All = f.all
	return filter, checkSome(c, f.limit)
}

// confirm asks before a command changes dead letters that no id names.
func (f *deadSweepFlags) confirm(s *session, c *cobra.Command, filter layer.DeadFilter, does string) error {
	if f.dryRun || len(filter.IDs) > 0 {
		return nil
	}
	which := "all dead letters"
	if !filter.All {
		which = "all dead letters that these flags choose"
	}
	return s.confirm(c, f.yes, fmt.Sprintf(does, which+" of queue "+display(s.queue)))
}

const stepsHelp = `

dead list prints ids. Several flags choose the letters to which all of them apply. It asks on a terminal, unless ids
name the letters; a script must give --yes. It works in small steps and disturbs no worker. After an interrupt it says
how many are done; run it again, and it continues.`

func newDeadRedriveCmd(s *session) *cobra.Command {
	var f deadSweepFlags
	var e editFlags
	var toTail bool
	c := &cobra.Command{
		Use: "redrive (ID... | --group GROUP | --text TEXT | --older TIME | --newer TIME | --all) [--yes] " +
			"[--to-tail] [--dry-run] [-n N] [--by NAME] [--log FILE]",
		Short: "Give dead letters back to their groups",
		Long: `Give dead letters back to their groups. Each gets its old place, before the messages that followed it,
and no failed attempt is counted. A group that is held stays with its worker. --body, --file, --header and
--remove-header change the letters on the way. If a group has more than 100, pause it first to keep their order: the
first ones may be delivered before the last ones are back.` + stepsHelp,
		Example: `  fdbfifo dead redrive --text 'connection refused' --yes
  fdbfifo dead redrive --group ATL --to-tail --dry-run`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			filter, err := f.chosen(s, c, args)
			if err != nil {
				return err
			}
			change, err := e.change(s, c)
			if err != nil {
				return err
			}
			does := "gives %s back to their groups"
			if c.Flags().Changed("body") || c.Flags().Changed("file") {
				does += " with a new body"
			}
			if err := f.confirm(s, c, filter, does); err != nil {
				return err
			}
			o := layer.RedriveOptions{ToTail: toTail, DryRun: f.dryRun, Limit: f.limit}
			if change != nil {
				o.Edit = func(_ layer.DeadLetter, m *layer.Message) error { return change(m) }
			}
			return s.sweepDead(c, "redriven", f.dryRun, func(q *layer.Queue, progress func(layer.DeadReport)) (layer.DeadReport, error) {
				o.Progress = progress
				return s.admin(q).Redrive(c.Context(), filter, o)
			})
		},
	}
	f.add(s, c)
	e.add(c)
	c.Flags().BoolVar(&toTail, "to-tail", false, "at the end of their groups, as if enqueued now")
	return c
}

func newDeadDiscardCmd(s *session) *cobra.Command {
	var f deadSweepFlags
	c := &cobra.Command{
		Use: "discard (ID... | --group GROUP | --text TEXT | --older TIME | --newer TIME | --all) [--yes] " +
			"[--dry-run] [-n N] [--by NAME] [--log FILE]",
		Aliases: []string{"delete"},
		Short:   "Remove dead letters for good",
		Long:    "Remove dead letters for good." + stepsHelp,
		Example: "  fdbfifo dead discard --older 720h --yes",
		Args:    cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			filter, err := f.chosen(s, c, args)
			if err != nil {
				return err
			}
			if err := f.confirm(s, c, filter, "removes %s for good"); err != nil {
				return err
			}
			o := layer.DiscardOptions{DryRun: f.dryRun, Limit: f.limit}
			return s.sweepDead(c, "discarded", f.dryRun, func(q *layer.Queue, progress func(layer.DeadReport)) (layer.DeadReport, error) {
				o.Progress = progress
				return s.admin(q).Discard(c.Context(), filter, o)
			})
		},
	}
	f.add(s, c)
	return c
}

// sweepDead runs a redrive or a discard and prints what it has done, also if it was interrupted.
func (s *session) sweepDead(c *cobra.Command, verb string, dryRun bool,
	sweep func(q *layer.Queue, progress func(layer.DeadReport)) (layer.DeadReport, error),
) error {
	return s.withQueue(c.Context(), false, func(q *layer.Queue) error {
		p := s.newProgress("looking at", "dead letter", -1)
		defer p.close()
		report, err := sweep(q, func(r layer.DeadReport) { p.set(r.Scanned) })
		p.close()
		if report.Scanned == 0 || asUsageIfOptions(err) == err { // else a letter is the cause, and not the command line
			err = s.refused(err)
		}
		var usage *usageError
		if errors.As(err, &usage) {
			return err
		}
		return errors.Join(s.printDeadReport(verb, dryRun, report), err)
	})
}

type jsonDeadReport struct {
	Done       string   `json:"done"`
	Number     int64    `json:"number"`
	DryRun     bool     `json:"dry_run"`
	Scanned    int64    `json:"scanned"`
	Unreadable int64    `json:"unreadable"`
	Missing    []string `json:"missing"`
}

func (s *session) printDeadReport(verb string, dryRun bool, r layer.DeadReport) error {
	if s.json {
		missing := make([]string, len(r.Missing))
		for i, id := range r.Missing {
			missing[i] = id.String()
		}
		return printJSON(s.stdout, jsonDeadReport{
			Done: verb, Number: r.Done, DryRun: dryRun, Scanned: r.Scanned, Unreadable: r.Unreadable, Missing: missing,
		})
	}
	would := ""
	if dryRun {
		would = "would have "
	}
	text := fmt.Sprintf("%s%s %s, of %s looked at", would, verb, plural(r.Done, "dead letter"), commas(r.Scanned))
	if r.Unreadable > 0 {
		text += fmt.Sprintf("; %s cannot be read and stayed", commas(r.Unreadable))
	}
	_, err := fmt.Fprintln(s.stdout, text)
	return err
}
