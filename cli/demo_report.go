package cli

import (
	"fmt"
	"math"
	"strings"
	"time"

	"fdbfifo/layer"
)

// demoReport is what the demo has seen.
type demoReport struct {
	Messages         int
	Groups           int
	Processes        int
	Workers          int           // of all processes
	Lease            time.Duration // of several processes
	Killed           []string      // processes
	InHand           int           // groups that they had in flight
	TakenOver        int           // those of them that others finished under a later token
	Takeovers        int           // how often a process went on serving the database in another's place
	Loading          time.Duration
	Draining         time.Duration
	MostGroupsInHand int
	Conflicts        int64
	// TwoHands counts deliveries of a group that another worker had in flight. With several processes it counts the
	// effects of a holder whose claim another had taken over.
	TwoHands int64
	Disorder int64 // deliveries out of their group's order
	Lost     int64
	Doubled  int64 // deliveries of messages that had come before, or had never been sent
	Check    layer.CheckReport
}

func (r *demoReport) seconds() float64 { return (r.Loading + r.Draining).Seconds() }

// perSecond is 0 if the clock did not move.
func (r *demoReport) perSecond() float64 {
	if s := r.seconds(); s > 0 {
		return float64(r.Messages) / s
	}
	return 0
}

type jsonDemo struct {
	Messages         int     `json:"messages"`
	Groups           int     `json:"groups"`
	Seconds          float64 `json:"seconds"`
	MessagesPerS     float64 `json:"messages_per_s"`
	MostGroupsInHand int     `json:"most_groups_in_hand"`
	Conflicts        int64   `json:"conflicts"`
	OrderViolations  int64   `json:"order_violations"` // a group in two hands is one
	Lost             int64   `json:"lost"`
	Doubled          int64   `json:"doubled"`
	Processes        int     `json:"processes"`
	Killed           int     `json:"killed"`
	TakenOver        int     `json:"taken_over"` // groups that the killed ones had in flight
	Takeovers        int     `json:"takeovers"`  // of the serving of the folder
}

func (s *session) printDemo(r demoReport) error {
	if s.json {
		return printJSON(s.stdout, jsonDemo{
			Messages: r.Messages, Groups: r.Groups, Seconds: round(r.seconds(), 3), MessagesPerS: round(r.perSecond(), 1),
			MostGroupsInHand: r.MostGroupsInHand, Conflicts: r.Conflicts, OrderViolations: r.TwoHands + r.Disorder,
			Lost: r.Lost, Doubled: r.Doubled, Processes: r.Processes, Killed: len(r.Killed), TakenOver: r.TakenOver,
			Takeovers: r.Takeovers,
		})
	}
	t := newTable()
	alignRight(t, 2)
	t.AppendRows([]tableRow{
		{"messages", commas(int64(r.Messages)), "departures of US airports"},
		{"groups", commas(int64(r.Groups)), "one an airport"},
	})
	if r.Processes > 1 {
		t.AppendRow(tableRow{"processes", r.Processes, "that share nothing but the database"})
	}
	t.AppendRows([]tableRow{
		{"seconds", fmt.Sprintf("%.2f", r.seconds()),
			fmt.Sprintf("loading %.2f, draining %.2f", r.Loading.Seconds(), r.Draining.Seconds())},
		{"messages/s", commas(int64(math.Round(r.perSecond()))), fmt.Sprintf("each takes %s to handle", demoWork)},
		{"most groups in flight at once", r.MostGroupsInHand, "of " + plural(int64(r.Workers), "worker")},
		{"conflicts", commas(r.Conflicts), "transactions that were tried again"},
	})
	if n := len(r.Killed); n > 0 {
		t.AppendRows([]tableRow{
			{"killed", n, strings.Join(r.Killed, "; ") + "; with SIGKILL"},
			{"groups taken over", r.TakenOver,
				fmt.Sprintf("of %d that the dead had in flight, after their lease of %s", r.InHand, r.Lease)},
		})
	}
	if r.Takeovers > 0 {
		t.AppendRow(tableRow{"takeovers", r.Takeovers, "another process went on serving the folder"})
	}
	twoHands, lost, doubled := "groups in two hands", "lost", "doubled"
	if r.Processes > 1 {
		twoHands, lost, doubled = "effects of overtaken holders", "lost effects", "doubled effects"
	}
	t.AppendSeparator()
	t.AppendRows([]tableRow{
		{twoHands, commas(r.TwoHands), "must be 0"},
		{"order violations", commas(r.Disorder), "must be 0"},
		{lost, commas(r.Lost), "must be 0"},
		{doubled, commas(r.Doubled), "must be 0"},
		{"broken rules in the store", commas(int64(len(r.Check.Violations))), "must be 0"},
	})
	if err := s.printTable(t); err != nil {
		return err
	}
	if r.verdict() != nil {
		return nil
	}
	proven := "delivered once each, in order, no group in two hands"
	if r.Processes > 1 {
		proven = "took effect once each, in order, by what the database holds"
	}
	_, err := fmt.Fprintf(s.stdout, "\nProven: %s %s.\n", plural(int64(r.Messages), "message"), proven)
	return err
}

// verdict is an error that names what was broken.
func (r *demoReport) verdict() error {
	var broken []string
	for _, b := range []struct {
		n    int64
		what string
	}{
		{r.TwoHands, "in two hands"},
		{r.Disorder, "out of order"},
		{r.Lost, "lost"},
		{r.Doubled, "doubled"},
		{int64(len(r.Check.Violations)), "broken rules in the store"},
		{r.Check.Items, "messages left behind"},
	} {
		if b.n > 0 {
			broken = append(broken, commas(b.n)+" "+b.what)
		}
	}
	if len(broken) > 0 {
		return fmt.Errorf("the queue broke its promises: %s", strings.Join(broken, ", "))
	}
	return nil
}

func round(v float64, digits int) float64 {
	p := math.Pow10(digits)
	return math.Round(v*p) / p
}
