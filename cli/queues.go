package cli

import (
	"cmp"
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

func newQueuesCmd(s *session) *cobra.Command {
	var all bool
	c := &cobra.Command{
		Use:   "queues [--all]",
		Short: "List the queues",
		Long: `List the queues under fdbfifo's own prefix, or under --prefix or --directory; with --all, those under any
prefix, and the flag that leads to each. To find those, keys are looked at where they branch, up to a bound: how
many there are makes no difference. It changes nothing.`,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := s.lasting(); err != nil {
				return err
			}
			return s.withEngine(c.Context(), false, func(db kv.DB) error {
				if all {
					return s.printEverywhere(c.Context(), db)
				}
				names, err := layer.Queues(c.Context(), db, s.prefix())
				if err != nil {
					return err
				}
				for _, name := range names {
					if s.json {
						err = printJSON(s.stdout, jsonQueue{name})
					} else {
						_, err = fmt.Fprintln(s.stdout, display(name))
					}
					if err != nil {
						return err
					}
				}
				if len(names) > 0 {
					return nil
				}
				return s.tellOthers(c.Context(), db)
			})
		},
	}
	c.Flags().BoolVar(&all, "all", false, "those under any prefix")
	return c
}

type jsonQueue struct {
	Queue string `json:"queue"`
}

// jsonFound is a queue and where it is.
type jsonFound struct {
	jsonQueue
	Prefix    string `json:"prefix"` // as fdbcli prints keys, which --prefix reads
	Directory string `json:"directory,omitempty"`
}

// tellOthers tells whoever finds no queues under one prefix of those under others.
func (s *session) tellOthers(ctx context.Context, db kv.DB) error {
	found, err := lookElsewhere(ctx, db)
	if err != nil {
		return err
	}
	if others := found.hint(s); others != "" {
		s.notice("there are no queues under this prefix%s", others)
	} else if err := found.incomplete(); err != nil {
		s.notice("there are no queues under this prefix; %v", err)
	}
	return nil
}

func (s *session) printEverywhere(ctx context.Context, db kv.DB) error {
	found, err := lookElsewhere(ctx, db)
	if err != nil {
		return err
	}
	t := newTable("prefix", "queue")
	for _, p := range found.places {
		for _, name := range p.queues {
			if !s.json {
				t.AppendRow(tableRow{placeFlag(p.prefix, found.paths), display(name)})
				continue
			}
			j := jsonFound{jsonQueue{name}, tuple.Printable(p.prefix), found.paths[string(p.prefix)]}
			if err := printJSON(s.stdout, j); err != nil {
				return err
			}
		}
	}
	switch {
	case s.json:
	case len(found.places) > 0:
		err = s.printTable(t)
	case !found.cut:
		_, err = fmt.Fprintln(s.stdout, "no queues")
	}
	return cmp.Or(err, found.incomplete())
}
