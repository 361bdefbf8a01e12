package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"fdbfifo/layer"
)

const rescheduleHelp = `Move the earliest delivery of a waiting message, later or earlier; a time in the past means at
once. With --group it is the first message of the group.

The message keeps its place. The messages behind it in its group wait with it, and its time counts once it is the
first. A message in flight is refused. A wait for a retry continues: fdbfifo retry ends it.`

func newRescheduleCmd(s *session) *cobra.Command {
	var group groupFlag
	var at string
	var after time.Duration
	c := &cobra.Command{
		Use:   "reschedule (ID | --group GROUP) (--at TIME | --after DURATION)",
		Short: "Move the time of delivery of a waiting message",
		Long:  rescheduleHelp,
		Example: `  fdbfifo reschedule --group customer-7 --after 1h
  fdbfifo reschedule $(fdbfifo find order-1001 --json | jq -r .id) --at 2027-01-01T08:00:00+01:00`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			changed, only := c.Flags().Changed, group.given()
			switch {
			case len(args) > 1 || (len(args) == 1) == (only != nil):
				return usagef("give either one message id, as find and peek --json print it, or --group GROUP")
			case changed("at") == changed("after"):
				return usagef("give either --at TIME or --after DURATION")
			case after < 0:
				return usagef("--after is %s: 0s or more is wanted", after)
			}
			var id layer.ID
			var err error
			if len(args) == 1 {
				if id, err = layer.ParseID(args[0]); err != nil {
					return usagef("%w", err)
				}
			}
			due := s.app.Now().Add(after)
			if changed("at") {
				if due, err = time.Parse(time.RFC3339, at); err != nil {
					return usagef("--at is %q: a time like %s is wanted", at, s.app.Now().UTC().Format(time.RFC3339))
				}
			}
			return s.withQueue(c.Context(), false, func(q *layer.Queue) error {
				if only != nil {
					first, err := q.Peek(c.Context(), *only, 1, nil)
					if err != nil {
						return err
					}
					if len(first) == 0 {
						return fmt.Errorf("group %s has no messages", display(*only))
					}
					id = first[0].ID
				}
				if err := q.Reschedule(c.Context(), id, due); err != nil {
					return s.refused(asUsageIfOptions(err))
				}
				return s.printRescheduled(id, due)
			})
		},
	}
	group.add(c, "the `GROUP` whose first message it is")
	c.Flags().StringVar(&at, "at", "", "the earliest `TIME` of delivery, as 2027-01-01T08:00:00Z")
	c.Flags().DurationVar(&after, "after", 0, "deliver after a `DURATION` from now; 0s is at once")
	return c
}

type jsonRescheduled struct {
	jsonDone
	DeliverAt *time.Time `json:"deliver_at,omitempty"` // left out: at once
}

func (s *session) printRescheduled(id layer.ID, due time.Time) error {
	atOnce := !due.After(s.app.Now())
	if s.json {
		j := jsonRescheduled{jsonDone: jsonDone{Done: "rescheduled", ID: id.String(), Group: id.Group}}
		if !atOnce {
			j.DeliverAt = jsonTime(due)
		}
		return printJSON(s.stdout, j)
	}
	when := "at once"
	if !atOnce {
		when = utc(due)
	}
	_, err := fmt.Fprintf(s.stdout, "rescheduled %s: %s\n", display(id.String()), when)
	return err
}

const replaceHelp = `Give a waiting message another body and other headers; without --header it has none afterwards. It
keeps its place, its id, its dedup id, its times and its failed attempts. A message in flight is refused. To change
some headers, or the body alone, use edit.`

func newReplaceCmd(s *session) *cobra.Command {
	var body, file string
	var given []string
	c := &cobra.Command{
		Use:   "replace ID (--body TEXT | --file FILE) [--header NAME=VALUE]...",
		Short: "Give a waiting message another body and other headers",
		Long:  replaceHelp,
		Args:  oneID,
		RunE: func(c *cobra.Command, args []string) error {
			id, err := layer.ParseID(args[0])
			if err != nil {
				return usagef("%w", err)
			}
			if c.Flags().Changed("body") == c.Flags().Changed("file") {
				return usagef("give either --body TEXT or --file FILE (- is stdin)")
			}
			headers, err := parseHeaders(given)
			if err != nil {
				return err
			}
			text := []byte(body)
			if c.Flags().Changed("file") {
				if text, err = s.readNewBody(c.Context(), file); err != nil {
					return err
				}
			}
			return s.withQueue(c.Context(), false, func(q *layer.Queue) error {
				if err := q.Replace(c.Context(), id, text, headers); err != nil {
					return s.refused(asUsageIfOptions(err))
				}
				return s.done("replaced", &id, id.Group)
			})
		},
	}
	c.Flags().StringVar(&body, "body", "", "the new body, `TEXT`")
	c.Flags().StringVar(&file, "file", "", "a `FILE` with the new body; - is stdin, /dev/null an empty body")
	c.Flags().StringArrayVar(&given, "header", nil, "a header `NAME=VALUE` (repeatable)")
	return c
}
