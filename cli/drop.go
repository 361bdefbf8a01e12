package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

func newDropCmd(s *session) *cobra.Command {
	var yes confirmed
	c := &cobra.Command{
		Use:   "drop QUEUE [--yes]",
		Short: "Remove a queue with all that is in it",
		Long: `Remove a queue with all that is in it: messages, dead letters, configuration. It asks on a terminal; a
script must give --yes. It takes two seconds, whatever the depth. Workers and producers that use it get an error within
a second. If it is interrupted, run it again: until then the queue cannot be used.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) == 0 && !c.Flags().Changed("queue") {
				return usagef("no queue is named: give its name")
			}
			if err := s.queueArgument(c, args); err != nil {
				return err
			}
			if err := s.lasting(); err != nil {
				return err
			}
			does := "removes queue " + display(s.queue) + " with all that is in it for good"
			if err := s.confirm(c, yes, does); err != nil {
				return err
			}
			return s.withEngine(c.Context(), false, func(db kv.DB) error {
				err := layer.Drop(c.Context(), db, s.prefix(), s.queue, layer.DropOptions{})
				switch {
				case errors.Is(err, layer.ErrNoQueue):
					return s.unknownQueue(c.Context(), db, err)
				case err != nil:
					return err
				case s.json:
					return printJSON(s.stdout, struct {
						Dropped string `json:"dropped"`
					}{s.queue})
				}
				_, err = fmt.Fprintf(s.stdout, "dropped queue %s\n", display(s.queue))
				return err
			})
		},
	}
	yes.add(c)
	return c
}
