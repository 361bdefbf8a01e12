package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"fdbfifo/layer"
)

type jsonStats struct {
	Queue         string    `json:"queue"`
	Paused        *jsonMark `json:"paused,omitempty"`
	Depth         int64     `json:"depth"`
	InFlight      int64     `json:"in_flight"`
	Delayed       int64     `json:"delayed"`
	ReadyGroups   int64     `json:"ready_groups"`
	BusyGroups    int64     `json:"busy_groups"`
	HeldGroups    int64     `json:"held_groups"`
	DelayedGroups int64     `json:"delayed_groups"`
	FailingGroups int64     `json:"failing_groups"`
	LongestHoldMS int64     `json:"longest_hold_ms"`
	Waiting       int64     `json:"waiting_handles"`
	PausedGroups  int64     `json:"paused_groups"`
	ParkedGroups  int64     `json:"halted_groups"`
	OldestReadyMS int64     `json:"oldest_ready_ms"`
	OldestHeadMS  int64     `json:"oldest_head_ms"`
	Enqueued      int64     `json:"enqueued"`
	Duplicates    int64     `json:"duplicates"`
	Received      int64     `json:"received"`
	Acked         int64     `json:"acked"`
	Nacked        int64     `json:"nacked"`
	Expired       int64     `json:"expired"`
	Taken         int64     `json:"taken"`
	Parked        int64     `json:"dead_lettered"`
	Redriven      int64     `json:"redriven"`
	Discarded     int64     `json:"discarded"`
	Dead          int64     `json:"dead"`
	Cancelled     int64     `json:"cancelled"`
	Purged        int64     `json:"purged"`
	AgedOut       int64     `json:"past_retention"`
	Forced        int64     `json:"forced"`
}

func newStatsCmd(s *session) *cobra.Command {
	return &cobra.Command{
		Use:   "stats",
		Short: "Print the queue's counters",
		Long:  "Print the queue's counters, which run since it was created. It changes nothing.",
		RunE: func(c *cobra.Command, _ []string) error {
			return s.withQueue(c.Context(), false, func(q *layer.Queue) error {
				st, err := q.Stats(c.Context())
				if err != nil {
					return err
				}
				return s.printStats(st)
			})
		},
	}
}

func (s *session) printStats(st layer.Stats) error {
	if st.Paused != nil && !s.json {
		if _, err := fmt.Fprintf(s.stdout, "the queue is %s\n", markWords(*st.Paused)); err != nil {
			return err
		}
	}
	if s.json {
		return printJSON(s.stdout, jsonStats{
			Queue: s.queue, Paused: newJSONMark(st.Paused), Depth: st.Depth,
			InFlight: st.InFlight, Delayed: st.Delayed, Duplicates: st.Duplicates, ReadyGroups: st.ReadyGroups, BusyGroups: st.BusyGroups,
			HeldGroups: st.HeldGroups, DelayedGroups: st.DelayedGroups, FailingGroups: st.FailingGroups,
			LongestHoldMS: st.LongestHold.Milliseconds(), Waiting: st.WaitingHandles, PausedGroups: st.PausedGroups, ParkedGroups: st.HaltedGroups,
			OldestReadyMS: st.OldestReady.Milliseconds(), OldestHeadMS: st.OldestHead.Milliseconds(), Enqueued: st.Enqueued, Received: st.Received,
			Acked: st.Acked, Nacked: st.Nacked, Expired: st.Expired, Taken: st.Taken,
			Parked: st.DeadLettered, Redriven: st.Redriven, Discarded: st.Discarded, Dead: st.Dead,
			Cancelled: st.Cancelled, Purged: st.Purged, AgedOut: st.PastRetention, Forced: st.Forced,
		})
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
