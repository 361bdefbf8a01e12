package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"fdbfifo/layer"
)

// oneID checks the arguments of commands that take one message's id.
func oneID(c *cobra.Command, args []string) error {
	if len(args) != 1 {
		return usagef("one message id is wanted, as peek --json prints it")
	}
	return nil
}

// addGroupFlag adds --group to a command that needs a group.
func addGroupFlag(c *cobra.Command, group *string) {
	var f groupFlag
	f.add(c, "the `GROUP`")
	c.PreRunE = func(c *cobra.Command, _ []string) error {
		if f.given() == nil {
			return usagef("no group is named: give --group GROUP or --%s", defaultGroup)
		}
		*group = f.name
		return nil
	}
}

type jsonDone struct {
	Done  string `json:"done"`
	ID    string `json:"id,omitempty"`
	Group string `json:"group"`
}

// done prints the action on a message, or on a group if id is nil.
func (s *session) done(verb string, id *layer.ID, group string) error {
	if s.json {
		d := jsonDone{Done: verb, Group: group}
		if id != nil {
			d.ID = id.String()
		}
		return printJSON(s.stdout, d)
	}
	what := "group " + display(group)
	if id != nil {
		what = display(id.String())
	}
	_, err := fmt.Fprintf(s.stdout, "%s %s\n", verb, what)
	return err
}

func newCancelCmd(s *session) *cobra.Command {
	c := &cobra.Command{
		Use:   "cancel ID [--by NAME] [--log FILE]",
		Short: "Remove one waiting message",
		Long: `Remove one waiting message for good. A message in flight is refused: wait, or take it away with release.
If its group waits for a retry of this message, the wait ends. peek --json prints ids.`,
		Args: oneID,
		RunE: func(c *cobra.Command, args []string) error {
			id, err := layer.ParseID(args[0])
			if err != nil {
				return usagef("%w", err)
			}
			return s.withQueue(c.Context(), false, func(q *layer.Queue) error {
				if err := s.admin(q).Cancel(c.Context(), id); err != nil {
					return s.refused(err)
				}
				return s.done("cancelled", &id, id.Group)
			})
		},
	}
	s.addActing(c)
	return c
}

func newSkipCmd(s *session) *cobra.Command {
	var group string
	var o layer.SkipOptions
	c := &cobra.Command{
		Use:   "skip --group GROUP [--reason TEXT] [--by NAME] [--log FILE]",
		Short: "Move the first message of a group to the dead letters, so that the next one's turn comes",
		Long: `Move the first message of a group, whichever it is, to the dead letters, so that the next one's turn comes. A
message in flight is refused. To be sure which message goes, or to remove it for good, use cancel.`,
		RunE: func(c *cobra.Command, _ []string) error {
			return s.withQueue(c.Context(), false, func(q *layer.Queue) error {
				id, err := s.admin(q).Skip(c.Context(), group, o)
				if err != nil {
					return s.refused(err)
				}
				return s.done("skipped", &id, group)
			})
		},
	}
	addGroupFlag(c, &group)
	addReasonFlag(c, &o.Reason)
	s.addActing(c)
	return c
}

func addReasonFlag(c *cobra.Command, reason *string) {
	c.Flags().StringVar(reason, "reason", "", "why, `TEXT` that others are shown")
}

func newEditCmd(s *session) *cobra.Command {
	var f editFlags
	c := &cobra.Command{
		Use: "edit ID [--body TEXT | --file FILE] [--header NAME=VALUE]... [--remove-header NAME]... " +
			"[--by NAME] [--log FILE]",
		Short: "Change the body or the headers of one waiting message",
		Long: `Change the body or the headers of one waiting message. It keeps its place, its id, its age and its failed attempts.
What is not named stays as it is. A message in flight is refused.`,
		Args: oneID,
		RunE: func(c *cobra.Command, args []string) error {
			id, err := layer.ParseID(args[0])
			if err != nil {
				return usagef("%w", err)
			}
			change, err := f.change(s, c)
			if err != nil {
				return err
			}
			if change == nil {
				return usagef("nothing would change: give --body, --file, --header or --remove-header")
			}
			return s.withQueue(c.Context(), false, func(q *layer.Queue) error {
				if err := s.admin(q).Edit(c.Context(), id, change); err != nil {
					return s.refused(err)
				}
				return s.done("edited", &id, id.Group)
			})
		},
	}
	f.add(c)
	s.addActing(c)
	return c
}

// readBody reads a body from a file, or from stdin if file is "-". A longer file than a body may be is refused.
func (s *session) readBody(ctx context.Context, file string) (body []byte, err error) {
	if file == "-" {
		return bodyOf(s.input(ctx), file)
	}
	f, err := openFile(ctx, file)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	return bodyOf(untilInterrupted(ctx, f), file)
}

// bodyOf reads a body. The rest of a longer input is not read, so the error cannot say how long the input is.
func bodyOf(in io.Reader, file string) ([]byte, error) {
	body, err := io.ReadAll(io.LimitReader(in, layer.MaxBodySize+1))
	if err == nil && len(body) > layer.MaxBodySize {
		most := commas(layer.MaxBodySize)
		return nil, fmt.Errorf("%s has more than %s bytes, the most that are allowed", inputName(file), most)
	}
	return body, err
}

// readNewBody reads a body that replaces another. An input without a byte is refused, because it is usually the output
// of a command that has failed. Only the null device means an empty body.
func (s *session) readNewBody(ctx context.Context, file string) ([]byte, error) {
	body, err := s.readBody(ctx, file)
	if err == nil && len(body) == 0 && file != os.DevNull {
		return nil, usagef("%s is empty: give a body, or %s", inputName(file), insteadOfEmpty["body"])
	}
	return body, err
}

type jsonRelease struct {
	jsonDone
	Owner       string         `json:"owner"`
	Where       layer.Template `json:"where,omitempty"`
	Hold        string         `json:"hold,omitempty"`
	Token       int64          `json:"token"`
	Outstanding int            `json:"outstanding"`
}

func newReleaseCmd(s *session) *cobra.Command {
	var group string
	var where whereFlag
	var hold holdFlag
	var o layer.ForceReleaseOptions
	c := &cobra.Command{
		Use: "release --group GROUP [--where TEMPLATE | --hold ID] [--token N] [--count-attempt [--reason TEXT]] " +
			"[--by NAME] [--log FILE]",
		Short: "Take a group from the worker that holds it",
		Long: `Take a group from the worker that holds it: the group is ready at once, and that worker's claim is lost. Its handler
may still be running; what it acks later is refused. No failed attempt is counted, unless --count-attempt is given.
groups --json prints the token; with --token only that very claim is ended, not a later one.

In a queue with facets --where says whose claim is meant: that by this template, as groups shows it. --hold is a message
that is claimed by itself, as by receive --unordered, and in a queue with lease_per=item, such as the FIFO queues of
serve; groups --json prints it.`,
		RunE: func(c *cobra.Command, _ []string) error {
			o.Where, o.Hold = where.template, hold.id
			if o.Reason != "" && !o.CountAttempt {
				return usagef("--reason needs --count-attempt: it is kept with that attempt")
			}
			if o.Where != nil && o.Hold != (layer.ID{}) {
				return usagef("--where and --hold do not go together: give one of them")
			}
			if c.Flags().Changed("token") && o.Token <= 0 {
				return usagef("--token is %d: more than 0 is wanted", o.Token)
			}
			return s.withQueue(c.Context(), false, func(q *layer.Queue) error {
				h, err := s.admin(q).ForceRelease(c.Context(), group, o)
				if err != nil {
					return s.headByItself(c.Context(), q, group, o, err)
				}
				if s.json {
					return printJSON(s.stdout, jsonRelease{
						jsonDone: jsonDone{Done: "released", Group: group},
						Owner:    h.Owner, Where: o.Where, Hold: hold.String(), Token: h.Token,
						Outstanding: h.Outstanding,
					})
				}
				what := "group " + display(group)
				switch {
				case o.Where != nil:
					what += " where " + display(o.Where.String())
				case o.Hold != layer.ID{}:
					what = "message " + display(hold.String())
				}
				_, err = fmt.Fprintf(s.stdout, "released %s, held by %s with %s\n",
					what, display(h.Owner), plural(int64(h.Outstanding), "message"))
				return err
			})
		},
	}
	addGroupFlag(c, &group)
	c.Flags().Var(&where, "where", "the claim by this `TEMPLATE`, as state=NEW")
	c.Flags().Var(&hold, "hold", "the claim of the message with this `ID` alone")
	c.Flags().Int64Var(&o.Token, "token", 0, "end only the claim with this token, `N`")
	c.Flags().BoolVar(&o.CountAttempt, "count-attempt", false, "count a failed attempt for the message that was tried")
	c.Flags().StringVar(&o.Reason, "reason", "", "kept with that attempt, `TEXT`")
	s.addActing(c)
	return c
}

func newRetryCmd(s *session) *cobra.Command {
	var group string
	var where whereFlag
	c := &cobra.Command{
		Use:   "retry --group GROUP [--where TEMPLATE] [--by NAME] [--log FILE]",
		Short: "End the wait of a group whose first message failed",
		Long: `End the wait of a group whose first message failed and is to be retried later: it is ready at once. In
a queue with facets --where says which template's messages wait: groups shows it.`,
		RunE: func(c *cobra.Command, _ []string) error {
			return s.withQueue(c.Context(), false, func(q *layer.Queue) error {
				o := layer.RetryOptions{Where: where.template}
				if err := s.admin(q).RetryNow(c.Context(), group, o); err != nil {
					return s.refused(err)
				}
				return s.done("ready:", nil, group)
			})
		},
	}
	addGroupFlag(c, &group)
	c.Flags().Var(&where, "where", "what this `TEMPLATE` sees of the group, as state=NEW")
	s.addActing(c)
	return c
}

// headByItself returns the error of a release whose group has no claim as a whole. If a hold keeps the first message,
// the error says how to release that. Otherwise it is refused.
func (s *session) headByItself(
	ctx context.Context, q *layer.Queue, group string, o layer.ForceReleaseOptions, err error,
) error {
	if !errors.Is(err, layer.ErrNotHeld) || o.Where != nil || o.Hold != (layer.ID{}) {
		return s.refused(err)
	}
	info, looked := q.Admin().Group(ctx, group, nil)
	if looked != nil || info.Hold == (layer.ID{}) {
		return s.refused(err)
	}
	return &Error{
		Text: strings.ReplaceAll(err.Error(), "layer: ", ""), Err: err,
		Hint: fmt.Sprintf("%s holds the first message by itself: %s", display(info.Owner),
			s.command("release --group GROUP --hold "+shellWord(info.Hold.String()))),
	}
}

// refused adds advice to the error of a refused operator's command. It returns any other error unchanged.
func (s *session) refused(err error) error {
	hint := ""
	switch {
	case errors.Is(err, layer.ErrInFlight):
		hint = "Wait until its worker is done, or take its group from the worker: " +
			s.command("release --group GROUP") + ",\n  with --hold ID if the message is claimed by itself."
	case errors.Is(err, layer.ErrNoItem):
		hint = "A worker may have handled it. " + s.command("peek --json") +
			" prints the ids of the messages that wait."
	case errors.Is(err, layer.ErrNotDead):
		hint = "It may have been redriven or discarded before. The others are done. " + s.command("dead list") +
			" prints the ids."
	case errors.Is(err, layer.ErrHeld):
		hint = "Wait until its worker is done, or use --force."
	case errors.Is(err, layer.ErrNotHeld), errors.Is(err, layer.ErrNotDelayed), errors.Is(err, layer.ErrNotPaused):
		hint = s.command("groups") + " says the state of each group."
	case errors.Is(err, layer.ErrClaimLost):
		hint = "Another worker holds the group, or none does: " + s.command("groups --json") + " prints the tokens."
	default:
		return asUsageIfOptions(err)
	}
	return &Error{Text: strings.ReplaceAll(err.Error(), "layer: ", ""), Hint: hint, Err: err}
}
