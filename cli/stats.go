package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"fdbfifo/console"
	"fdbfifo/layer"
)

func newStatsCmd(s *session) *cobra.Command {
	var where whereFlag
	c := &cobra.Command{
		Use:   "stats [--where TEMPLATE]",
		Short: "Print the queue's counters",
		Long: `Print the queue's counters, which run since it was created. In a queue with facets --where counts only
the groups that the template sees, from "ready groups" to "longest hold". It changes nothing.`,
		RunE: func(c *cobra.Command, _ []string) error {
			return s.withQueue(c.Context(), false, func(q *layer.Queue) error {
				st, err := q.Stats(c.Context(), layer.StatsOptions{Where: where.template})
				if err != nil {
					return asUsageIfOptions(err)
				}
				return s.printStats(st)
			})
		},
	}
	c.Flags().Var(&where, "where", "the groups as this `TEMPLATE` sees them, as state=NEW")
	return c
}

func (s *session) printStats(st layer.Stats) error {
	if st.Paused != nil && !s.json {
		if _, err := fmt.Fprintf(s.stdout, "the queue is %s\n", markWords(*st.Paused)); err != nil {
			return err
		}
	}
	if s.json {
		return printJSON(s.stdout, console.JSONOfStats(s.queue, st))
	}
	if st.ClocksApart > 0 {
		_, err := fmt.Fprintf(s.stdout, "the clocks of the queue's processes differ by %s\n", short(st.ClocksApart))
		if err != nil {
			return err
		}
	}
	t := newTable()
	alignRight(t, 2)
	t.AppendRows([]tableRow{
		{"messages now", commas(st.Depth), ""},
		{"  in flight", commas(st.InFlight), "delivered and not acked"},
		{"  delayed", commas(st.Delayed), "wait for a time; at least so many"},
		{"dead letters", commas(st.Dead), ""},
		{"ready groups", commas(st.ReadyGroups), "wait for a worker; a few may be stale"},
		{"busy groups", commas(st.BusyGroups), ""},
		{"  held", commas(st.HeldGroups), ""},
		{"  delayed", commas(st.DelayedGroups), "wait for a retry, a time or their rate"},
		{"    failing", commas(st.FailingGroups), "of these, wait for a retry"},
		{"paused groups", commas(st.PausedGroups), ""},
		{"halted groups", commas(st.HaltedGroups), "their head has failed for good"},
		{"oldest ready", short(st.OldestReady), ""},
		{"oldest head", short(st.OldestHead), "of ready and busy groups"},
		{"longest hold", short(st.LongestHold), "of a claim whose lease lasts; about"},
		{"waiting", commas(st.WaitingHandles), "processes whose receives wait"},
	})
	for _, v := range st.Views {
		t.AppendRow(tableRow{"ready by " + v.View, commas(v.ReadyLanes), "lanes of this view; a few may be stale"})
	}
	t.AppendSeparator()
	t.AppendRows([]tableRow{
		{"enqueued", commas(st.Enqueued), ""},
		{"duplicates", commas(st.Duplicates), "refused: their dedup id was remembered"},
		{"received", commas(st.Received), "a redelivery counts anew"},
		{"acked", commas(st.Acked), ""},
		{"nacked", commas(st.Nacked), "deliveries that a worker gave back as failed"},
		{"expired", commas(st.Expired), "deliveries whose lease ran out"},
		{"taken", commas(st.Taken), "removed within a caller's transaction"},
		{"dead-lettered", commas(st.DeadLettered), "failed for good, moved to the dead letters"},
		{"redriven", commas(st.Redriven), "dead letters that were given back"},
		{"discarded", commas(st.Discarded), "dead letters that were removed"},
		{"cancelled", commas(st.Cancelled), "removed by an operator, one by one"},
		{"purged", commas(st.Purged), "removed by an operator, all of a group or queue"},
		{"past retention", commas(st.PastRetention), "dropped, having waited longer than the retention"},
		{"forced", commas(st.Forced), "claims that an operator ended"},
	})
	return s.printTable(t)
}
