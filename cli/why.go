package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"fdbfifo/console"
	"fdbfifo/layer"
)

func newWhyCmd(s *session) *cobra.Command {
	var group groupFlag
	var where whereFlag
	c := &cobra.Command{
		Use:   "why ID | --group GROUP [--where TEMPLATE]",
		Short: "Say why a message, or the first of a group, is not delivered",
		Long: `Say why a message is not delivered, or not yet. Each line is a reason, and all of them must end first.
With --group it is the first message of the group; a group that is empty is explained, too. peek --json prints ids. In
a queue with facets --where asks about receives by a template. It changes nothing.`,
		Args: func(c *cobra.Command, args []string) error {
			if group.given() == nil {
				return oneID(c, args)
			}
			return noArgs(c, args)
		},
		RunE: func(c *cobra.Command, args []string) error {
			ask := func(q *layer.Queue) (layer.Explanation, error) {
				return q.Admin().WhyGroup(c.Context(), group.name, where.template)
			}
			if group.given() == nil {
				id, err := layer.ParseID(args[0])
				if err != nil {
					return usagef("%w", err)
				}
				ask = func(q *layer.Queue) (layer.Explanation, error) {
					return q.Admin().Why(c.Context(), id, where.template)
				}
			}
			return s.withQueue(c.Context(), false, func(q *layer.Queue) error {
				e, err := ask(q)
				if err != nil {
					return asUsageIfOptions(err)
				}
				return s.printWhy(e)
			})
		},
	}
	group.add(c, "the first message of this `GROUP`")
	c.Flags().Var(&where, "where", "why receives by this `TEMPLATE` do not get it, as state=NEW")
	return c
}

type jsonWhy struct {
	ID      string               `json:"id,omitempty"` // none of an empty group
	Group   string               `json:"group"`
	Where   layer.Template       `json:"where,omitempty"` // by whose receives it would be delivered
	Reasons []console.JSONReason `json:"reasons"`
}

func (s *session) printWhy(e layer.Explanation) error {
	if s.json {
		why := jsonWhy{Group: e.ID.Group, Where: e.Where, Reasons: console.JSONOfReasons(e.Reasons)}
		if e.ID != (layer.ID{Group: e.ID.Group}) {
			why.ID = e.ID.String()
		}
		return printJSON(s.stdout, why)
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
