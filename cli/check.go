package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"fdbfifo/layer"
)

func newCheckCmd(s *session) *cobra.Command {
	return &cobra.Command{
		Use:   "check",
		Short: "Read the whole queue and hold it to its rules",
		Long: `Read every key of the queue and check that nothing is lost, unreadable or out of reach. It changes nothing
and may run beside workers. The exit code is 1 if a rule is broken. A line NOT CONFIRMED names a place at which too
many keys would have to be searched to know: check again when the queue is less busy.`,
		RunE: func(c *cobra.Command, _ []string) error {
			return s.withQueue(c.Context(), false, func(q *layer.Queue) error {
				p := s.newProgress("checking", "key", -1)
				defer p.close()
				report, err := q.Admin().Check(c.Context(), layer.CheckOptions{Progress: func(keys int64) { p.set(keys) }})
				if err != nil {
					return err
				}
				p.close()
				return errors.Join(s.printCheck(report), violations(report))
			})
		},
	}
}

// errViolations says that a queue breaks its rules.
var errViolations = errors.New("the queue breaks its rules")

func violations(report layer.CheckReport) error {
	if n := len(report.Violations); n > 0 {
		return fmt.Errorf("%w: %s", errViolations, plural(int64(n), "violation"))
	}
	return nil
}

type jsonCheck struct {
	Queue       string          `json:"queue"`
	Items       int64           `json:"items"`
	Bytes       int64           `json:"bytes"`
	Groups      int64           `json:"groups"`
	Held        int64           `json:"held"`
	Delayed     int64           `json:"delayed"`
	Paused      int64           `json:"paused"`
	Halted      int64           `json:"halted"`
	StaleHints  int64           `json:"stale_hints"`
	StaleTimers int64           `json:"stale_timers"`
	Attempts    int64           `json:"attempts"`
	Dead        int64           `json:"dead"`
	Receipts    int64           `json:"receipts"`
	Dedup       int64           `json:"dedup"`
	Repeats     int64           `json:"receive_ids"`
	Archived    int64           `json:"archived"`
	States      int64           `json:"states"`
	Paces       int64           `json:"paces"`
	Requests    int64           `json:"requests"`
	Grants      int64           `json:"grants"`
	Violations  []jsonViolation `json:"violations"`
	Unconfirmed []jsonViolation `json:"unconfirmed,omitempty"`
}

type jsonViolation struct {
	Rule   string `json:"rule"` // its name
	Text   string `json:"text"`
	Key    string `json:"key"`
	Detail string `json:"detail"`
}

func jsonViolations(all []layer.Violation) []jsonViolation {
	out := make([]jsonViolation, len(all))
	for i, v := range all {
		out[i] = jsonViolation{Rule: string(v.Rule), Text: v.Rule.Text(), Key: v.Key, Detail: v.Detail}
	}
	return out
}

func (s *session) printCheck(r layer.CheckReport) error {
	if s.json {
		return printJSON(s.stdout, jsonCheck{
			Queue: s.queue, Items: r.Items, Bytes: r.Bytes, Groups: r.Groups, Held: r.Held, Delayed: r.Delayed,
			Paused: r.Paused, Halted: r.Halted,
			StaleHints: r.StaleHints, StaleTimers: r.StaleTimers, Attempts: r.Attempts, Dead: r.Dead, Receipts: r.Receipts, Dedup: r.Dedup,
			Repeats: r.Repeats, Archived: r.Archived, States: r.States, Paces: r.Paces, Requests: r.Requests, Grants: r.Grants,
			Violations: jsonViolations(r.Violations), Unconfirmed: jsonViolations(r.Unconfirmed),
		})
	}
	t := newTable()
	alignRight(t, 2)
	t.AppendRows([]tableRow{
		{"messages", commas(r.Items), plural(r.Bytes, "byte")},
		{"groups", commas(r.Groups), ""},
		{"held", commas(r.Held), ""},
		{"delayed", commas(r.Delayed), ""},
		{"paused", commas(r.Paused), ""},
		{"halted", commas(r.Halted), ""},
		{"stale hints", commas(r.StaleHints), "allowed, cleared when met"},
		{"stale timers", commas(r.StaleTimers), "allowed, cleared when met"},
		{"attempt records", commas(r.Attempts), ""},
		{"dead letters", commas(r.Dead), ""},
		{"receipts", commas(r.Receipts), ""},
		{"dedup ids", commas(r.Dedup), "remembered"},
		{"receive ids", commas(r.Repeats), "of receives, remembered"},
		{"archived", commas(r.Archived), "messages"},
		{"states", commas(r.States), "of groups"},
		{"paces", commas(r.Paces), "of groups whose rate is used"},
		{"requests", commas(r.Requests), "of receives that wait"},
		{"grants", commas(r.Grants), "not accepted yet"},
		{"violations", commas(int64(len(r.Violations))), ""},
	})
	if err := s.printTable(t); err != nil {
		return err
	}
	if err := s.printViolations("BROKEN", r.Violations); err != nil {
		return err
	}
	return s.printViolations("NOT CONFIRMED", r.Unconfirmed)
}

func (s *session) printViolations(how string, all []layer.Violation) error {
	for _, v := range all {
		detail := oneLine([]byte(v.Detail), 1000)
		_, err := fmt.Fprintf(s.stdout, "%s %s\n  key    %s\n  detail %s\n", how, v.Rule.Text(), v.Key, detail)
		if err != nil {
			return err
		}
	}
	return nil
}
