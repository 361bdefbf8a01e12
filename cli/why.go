package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"fdbfifo/layer"
)

func newWhyCmd(s *session) *cobra.Command {
	return &cobra.Command{
		Use:   "why ID",
		Short: "Say why a message is not being delivered",
		Long: `Say why a message is not being delivered, or not yet: one reason a line, each of which must come to an end first.
peek --json prints ids. It changes nothing.`,
		Args: oneID,
		RunE: func(c *cobra.Command, args []string) error {
			id, err := layer.ParseID(args[0])
			if err != nil {
				return usagef("%w", err)
			}
			return s.withQueue(c.Context(), false, func(q *layer.Queue) error {
				e, err := q.Admin().Why(c.Context(), id)
				if err != nil {
					return err
				}
				return s.printWhy(e)
			})
		},
	}
}

type jsonWhy struct {
	ID      string       `json:"id"`
	Group   string       `json:"group"`
	Reasons []jsonReason `json:"reasons"`
}

type jsonReason struct {
	Cause  string    `json:"cause"`
	Text   string    `json:"text"`
	Count  int64     `json:"count,omitempty"`
	More   bool      `json:"more,omitempty"`
	Owner  string    `json:"owner,omitempty"`
	Token  int64     `json:"token,omitempty"`
	LeftMS int64     `json:"left_ms,omitempty"`
	Error  string    `json:"error,omitempty"`
	Mark   *jsonMark `json:"mark,omitempty"`
}

func (s *session) printWhy(e layer.Explanation) error {
	if s.json {
		all := make([]jsonReason, len(e.Reasons))
		for i, r := range e.Reasons {
			all[i] = jsonReason{
				Cause: string(r.Cause), Text: r.String(), Count: r.Count, More: r.More, Owner: r.Owner, Token: r.Token,
				LeftMS: r.Left.Milliseconds(), Error: r.Err, Mark: newJSONMark(r.Mark),
			}
		}
		return printJSON(s.stdout, jsonWhy{ID: e.ID.String(), Group: e.ID.Group, Reasons: all})
	}
	for _, r := range e.Reasons {
		// Errors and reasons are what others have written: they must not steer the terminal.
		if _, err := fmt.Fprintln(s.stdout, oneLine([]byte(r.String()), maxWhyWidth)); err != nil {
			return err
		}
	}
	return nil
}

// maxWhyWidth is how much of a reason is shown, in columns: an error text may be long.
const maxWhyWidth = 500
