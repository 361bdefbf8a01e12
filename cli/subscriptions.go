package cli

import (
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"fdbfifo/layer"
)

func newSubscriptionsCmd(s *session) *cobra.Command {
	return &cobra.Command{
		Use:   "subscriptions",
		Short: "List the subscriptions to the queue's changes, and how far each has come",
		Long: `List the subscriptions to the queue's changes (see config: changes): the handle that holds each, and how
many transactions with changes it has not seen yet. The next sweep clears the changes that every subscription has
seen.`,
		Args: noArgs,
		RunE: func(c *cobra.Command, _ []string) error {
			return s.withQueue(c.Context(), false, func(q *layer.Queue) error {
				all, err := q.Admin().Subscriptions(c.Context())
				if err != nil {
					return err
				}
				return s.printSubscriptions(all)
			})
		},
	}
}

type jsonSubscription struct {
	Queue  string     `json:"queue"`
	Name   string     `json:"subscription"`
	Owner  string     `json:"owner,omitempty"`
	Until  *time.Time `json:"until,omitempty"`
	Behind int64      `json:"behind"`
	Next   *time.Time `json:"next,omitempty"`
	// Error is why a row of the subscription cannot be read. With an error, a Behind of 0 may mean: not known.
	Error string `json:"error,omitempty"`
}

func (s *session) printSubscriptions(all []layer.SubscriptionInfo) error {
	if s.json {
		for _, sub := range all {
			j := jsonSubscription{
				Queue: s.queue, Name: sub.Name, Owner: sub.Owner, Until: jsonTime(sub.Until), Behind: sub.Behind,
				Next: jsonTime(sub.Next),
			}
			if sub.Err != nil {
				j.Error = sub.Err.Error()
			}
			if err := printJSON(s.stdout, j); err != nil {
				return err
			}
		}
		return nil
	}
	if len(all) == 0 {
		_, err := fmt.Fprintln(s.stdout, "no subscriptions")
		return err
	}
	t := newTable("subscription", "behind", "oldest", "held by")
	alignRight(t, 2)
	for _, sub := range all {
		behind, oldest, owner := commas(sub.Behind), "", ""
		if sub.Behind == layer.MaxBehind {
			behind += "+"
		}
		if sub.Err != nil && sub.Behind == 0 {
			behind = "unknown"
		}
		if !sub.Next.IsZero() {
			oldest = max(0, s.app.Now().Sub(sub.Next)).Round(time.Second).String()
		}
		if sub.Owner != "" {
			owner = display(sub.Owner)
		}
		t.AppendRow(tableRow{display(sub.Name), behind, oldest, owner})
	}
	return s.printTable(t)
}

func newUnsubscribeCmd(s *session) *cobra.Command {
	c := &cobra.Command{
		Use:   "unsubscribe NAME [--by NAME] [--log FILE]",
		Short: "Forget a subscription and its place",
		Long: `Forget a subscription and its place, so that the changes it has not seen can be cleared. A program that
still runs under this name starts again, with the changes to come.`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if len(args) != 1 {
				return usagef("one name of a subscription is wanted, as subscriptions prints it")
			}
			return s.withQueue(c.Context(), false, func(q *layer.Queue) error {
				if err := s.admin(q).Unsubscribe(c.Context(), args[0]); err != nil {
					return asUsageIfOptions(err)
				}
				if s.json {
					return printJSON(s.stdout, struct {
						Queue string `json:"queue"`
						Name  string `json:"unsubscribed"`
					}{s.queue, args[0]})
				}
				_, err := fmt.Fprintf(s.stdout, "forgot subscription %s\n", display(args[0]))
				return err
			})
		},
	}
	s.addActing(c)
	return c
}
