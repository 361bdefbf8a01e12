package cli

import (
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

func newCreateCmd(s *session) *cobra.Command {
	var set []string
	c := &cobra.Command{
		Use:   "create [QUEUE] [--set NAME=VALUE]...",
		Short: "Make a queue, with settings",
		Long: `Make a queue, with the settings that config prints. You can change most of them later with config;
shards can only be raised. A queue that exists is left as it is, and the exit code is 1. Enqueue also makes a queue
that does not exist, with the default settings.`,
		Example: `  fdbfifo create orders --set lease=2m --set shards=4`,
		Args:    cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if err := s.queueArgument(c, args); err != nil {
				return err
			}
			changes, err := settingFlags(set)
			if err != nil {
				return err
			}
			if err := s.lasting(); err != nil {
				return err
			}
			o := s.queueOptions()
			for _, change := range changes {
				change(&o.Config)
			}
			return s.withEngine(c.Context(), true, func(db kv.DB) (err error) {
				q, err := layer.Create(c.Context(), db, s.prefix(), s.queue, o)
				switch {
				case errors.Is(err, layer.ErrQueueExists):
					return &Error{
						Text: fmt.Sprintf("there is a queue %q already", s.queue), Err: err,
						Hint: "It was left as it is. " + s.placed() + " config " + shellWord(s.queue) +
							" prints and changes its settings.",
					}
				case errors.Is(err, layer.ErrDropping):
					return s.dropping(err)
				case err != nil:
					return asUsageIfOptions(err)
				}
				defer func() { s.toldAtEnd(err, shut(c.Context(), q)) }()
				s.toldAtEnd(nil, s.tellNamesakes(c.Context(), db))
				if s.json {
					return printJSON(s.stdout, struct {
						Created string `json:"created"`
					}{s.queue})
				}
				_, err = fmt.Fprintf(s.stdout, "created queue %s\n", display(s.queue))
				return err
			})
		},
	}
	c.Flags().StringArrayVar(&set, "set", nil, "`NAME=VALUE` of a setting (repeatable)")
	return c
}
