package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"fdbfifo/layer"
)

func newSweepCmd(s *session) *cobra.Command {
	return &cobra.Command{
		Use:   "sweep",
		Short: "Clear the rows that killed processes have left behind",
		Long: `Clear rows that are of no more use: those that killed processes left behind more than an hour ago, dedup
ids whose time is over, messages that are older than the queue keeps them, waiting or archived (see config: retention,
archive), and changes that every subscription has seen. Workers sweep now and then, too. A sweep disturbs no worker.
After an interrupt, run it again: it continues.`,
		RunE: func(c *cobra.Command, _ []string) error {
			return s.withQueue(c.Context(), false, func(q *layer.Queue) error {
				p := s.newProgress("sweeping", "key", -1)
				defer p.close()
				report, err := q.Admin().Sweep(c.Context(), layer.SweepOptions{
					Progress: func(r layer.SweepReport) { p.set(r.Keys) },
				})
				p.close()
				// Also of a sweep that was interrupted: it has done what it reports.
				return errors.Join(s.printSweep(report), err)
			})
		},
	}
}

type jsonSweep struct {
	Queue    string `json:"queue"`
	Keys     int64  `json:"keys"`
	Receipts int64  `json:"receipts"`
	Wakes    int64  `json:"wake_keys"`
	Dedup    int64  `json:"dedup"`
	Purges   int64  `json:"purges"`
	Paces    int64  `json:"paces"`
	Repeats  int64  `json:"receive_ids"`
	AgedOut  int64  `json:"past_retention"`
	Archived int64  `json:"archived"`
	Changes  int64  `json:"changes"`
	Hints    int64  `json:"hints"`
	Dead     int64  `json:"dead"`
	// Rows that could not be read.
	Unreadable int64 `json:"unreadable"`
}

func (s *session) printSweep(r layer.SweepReport) error {
	if s.json {
		return printJSON(s.stdout, jsonSweep{
			Queue: s.queue, Keys: r.Keys, Receipts: r.Receipts, Wakes: r.Wakes, Repeats: r.Repeats, Dedup: r.Dedup,
			Purges: r.Purges, Paces: r.Paces, AgedOut: r.PastRetention, Archived: r.Archived, Changes: r.Changes,
			Hints: r.Hints, Dead: r.Dead, Unreadable: r.Unreadable,
		})
	}
	text := "cleared " + plural(r.Receipts, "receipt")
	for _, others := range []struct {
		n    int64
		noun string
	}{{r.Wakes, "wake key"}, {r.Repeats, "receive id"}, {r.Dedup, "dedup id"}, {r.Purges, "purge"}, {r.Paces, "pace"},
		{r.Changes, "change row"}, {r.Hints, "hint"}, {r.Unreadable, "unreadable row"}} {
		if others.n > 0 {
			text += " and " + plural(others.n, others.noun)
		}
	}
	if r.PastRetention > 0 {
		text += " and " + plural(r.PastRetention, "message") + " past the retention"
	}
	if r.Archived > 0 {
		text += " and " + plural(r.Archived, "message") + " from the archive"
	}
	if r.Dead > 0 {
		text += " and " + plural(r.Dead, "dead letter")
	}
	_, err := fmt.Fprintf(s.stdout, "%s, of %s looked at\n", text, plural(r.Keys, "key"))
	return err
}
