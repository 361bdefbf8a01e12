package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"fdbfifo/layer"
)

const findHelp = `Say where the message with a dedup id is: for those who know their messages by ids of their own.
It prints the message's id, which why, cancel, reschedule, replace and edit take. It changes nothing.

A message is found as long as its dedup id is remembered: see config, dedup_for and dedup_window. One that is not found
is "unknown", and no error. Where duplicates are looked for within groups (dedup_scope), --group must say in which.`

func newFindCmd(s *session) *cobra.Command {
	var group groupFlag
	c := &cobra.Command{
		Use:   "find DEDUP-ID [--group GROUP]",
		Short: "Say where the message with a dedup id is",
		Long:  findHelp,
		Example: `  fdbfifo enqueue --group customer-7 --dedup-id order-1001 --body '2 apples' --delay 1h
  fdbfifo find order-1001
  fdbfifo cancel $(fdbfifo find order-1001 --json | jq -r .id)`,
		Args: func(c *cobra.Command, args []string) error {
			if len(args) != 1 || args[0] == "" {
				return usagef("one dedup id is wanted, as in enqueue --dedup-id")
			}
			return nil
		},
		RunE: func(c *cobra.Command, args []string) error {
			return s.withQueue(c.Context(), false, func(q *layer.Queue) error {
				if group.given() == nil && q.Config().DedupInGroup {
					return usagef("queue %q looks for duplicates within groups: give --group or --%s", s.queue,
						defaultGroup)
				}
				f, err := q.Find(c.Context(), group.name, args[0])
				if err != nil {
					return asUsageIfOptions(err)
				}
				return s.printFound(args[0], f)
			})
		},
	}
	group.add(c, "the message's `GROUP`, where duplicates are looked for within groups")
	return c
}

type jsonWhere struct {
	DedupID    string      `json:"dedup_id"`
	Where      layer.Where `json:"where"`
	ID         string      `json:"id,omitempty"`
	Group      string      `json:"group"`
	Remembered *time.Time  `json:"remembered_until,omitempty"`
	Ahead      int64       `json:"ahead,omitempty"`
	AheadMore  bool        `json:"ahead_more,omitempty"`
	DeliverAt  *time.Time  `json:"deliver_at,omitempty"`
	Owner      string      `json:"owner,omitempty"`
	Token      int64       `json:"token,omitempty"`
	Until      *time.Time  `json:"until,omitempty"`
	Reason     string      `json:"reason,omitempty"`
	Completed  *time.Time  `json:"completed,omitempty"`
}

// jsonTime is t for JSON; nil if it is zero.
func jsonTime(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	t = t.UTC()
	return &t
}

func (s *session) printFound(dedupID string, f layer.Found) error {
	if s.json {
		j := jsonWhere{
			DedupID: dedupID, Where: f.Where, Group: f.ID.Group, Remembered: jsonTime(f.Remembered), Ahead: f.Ahead,
			AheadMore: f.AheadMore, DeliverAt: jsonTime(f.DeliverAt), Owner: f.Owner, Token: f.Token,
			Until: jsonTime(f.Until), Reason: f.Reason, Completed: jsonTime(f.Completed),
		}
		if f.Where != layer.WhereUnknown {
			j.ID = f.ID.String()
		}
		return printJSON(s.stdout, j)
	}
	if f.Where == layer.WhereUnknown {
		_, err := fmt.Fprintln(s.stdout, "unknown: no message is remembered under this dedup id")
		return err
	}
	// Other programs have written the reasons and owners, so these must not steer the terminal.
	_, err := fmt.Fprintf(s.stdout, "%s\n%s\n", display(f.ID.String()), oneLine([]byte(s.whereabouts(f)), maxWhyWidth))
	return err
}

// whereabouts describes the place of a found message.
func (s *session) whereabouts(f layer.Found) string {
	switch f.Where {
	case layer.WhereUnknown:
	case layer.WhereWaiting:
		text := "waiting, first of its group"
		if f.Ahead > 0 {
			atLeast := ""
			if f.AheadMore {
				atLeast = "at least "
			}
			text = "waiting, with " + atLeast + plural(f.Ahead, "message") + " of its group before it"
		}
		if f.DeliverAt.After(s.app.Now()) {
			text += ", delayed until " + utc(f.DeliverAt)
		}
		return text
	case layer.WhereInFlight:
		return fmt.Sprintf("in flight, held by %s under token %d until %s", f.Owner, f.Token, utc(f.Until))
	case layer.WhereDead:
		return "a dead letter: " + f.Reason
	case layer.WhereArchived:
		return "finished " + utc(f.Completed) + ", and in the archive"
	case layer.WhereGone:
		return "gone: acked, taken or removed"
	}
	return string(f.Where)
}

// utc is a time as a user reads it.
func utc(t time.Time) string { return t.UTC().Format("2006-01-02 15:04:05.000 UTC") }
