package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

func newQueuesCmd(s *session) *cobra.Command {
	return &cobra.Command{
		Use:   "queues",
		Short: "List the queues",
		RunE: func(c *cobra.Command, _ []string) error {
			if err := s.lasting(); err != nil {
				return err
			}
			return s.withEngine(c.Context(), false, func(db kv.DB) error {
				names, err := layer.Queues(c.Context(), db, prefix())
				if err != nil {
					return err
				}
				for _, name := range names {
					if s.json {
						err = printJSON(s.stdout, struct {
							Queue string `json:"queue"`
						}{name})
					} else {
						_, err = fmt.Fprintln(s.stdout, display(name))
					}
					if err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
}
