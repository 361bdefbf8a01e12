package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"fdbfifo/console"
	"fdbfifo/layer"
)

func newPauseCmd(s *session) *cobra.Command {
	var group groupFlag
	var o layer.PauseOptions
	c := &cobra.Command{
		Use:   "pause [--group GROUP] [--reason TEXT] [--force] [--by NAME] [--log FILE]",
		Short: "Keep a group, or the whole queue, from being worked on until it is resumed",
		Long: `Keep a group, or without --group the whole queue, from being worked on until it is resumed. Messages can
still be enqueued. A worker that holds the group finishes the messages that it has; --force takes the group from it.
All workers follow the pause of the whole queue within a second.`,
		RunE: func(c *cobra.Command, _ []string) error {
			only := group.given()
			if o.Force && only == nil {
				return usagef("--force needs --group: give it, or take groups from their workers with release")
			}
			return s.withQueue(c.Context(), false, func(q *layer.Queue) error {
				if only != nil {
					m, err := s.admin(q).PauseGroup(c.Context(), *only, o)
					if err != nil {
						return asUsageIfOptions(err)
					}
					return s.printMark(false, only, m)
				}
				m, err := s.admin(q).Pause(c.Context(), o)
				if err != nil {
					return asUsageIfOptions(err)
				}
				return s.printMark(false, nil, m)
			})
		},
	}
	group.add(c, "the `GROUP`; left out, the whole queue")
	addReasonFlag(c, &o.Reason)
	s.addActing(c)
	c.Flags().BoolVar(&o.Force, "force", false, "take the group from the worker that holds it")
	return c
}

func newResumeCmd(s *session) *cobra.Command {
	var group groupFlag
	c := &cobra.Command{
		Use:   "resume [--group GROUP] [--by NAME] [--log FILE]",
		Short: "Let a paused group, or the whole queue, be worked on again",
		Long: `Let a group be worked on again that is paused, or that was halted because its first message failed for
good. Without --group it is the whole queue. Groups that are paused themselves stay so when the queue is resumed.`,
		RunE: func(c *cobra.Command, _ []string) error {
			only := group.given()
			return s.withQueue(c.Context(), false, func(q *layer.Queue) error {
				if only != nil {
					m, err := s.admin(q).ResumeGroup(c.Context(), *only, layer.ResumeOptions{})
					if err != nil {
						return s.refused(err)
					}
					return s.printMark(true, only, m)
				}
				m, err := s.admin(q).Resume(c.Context(), layer.ResumeOptions{})
				if err != nil {
					return s.refused(err)
				}
				return s.printMark(true, nil, m)
			})
		},
	}
	group.add(c, "the `GROUP`; left out, the whole queue")
	s.addActing(c)
	return c
}

type jsonMarked struct {
	Queue   string  `json:"queue"`
	Group   *string `json:"group,omitempty"`
	Resumed bool    `json:"resumed"`
	console.JSONMark
}

// printMark prints the mark of a group, or of the queue if group is nil.
func (s *session) printMark(resumed bool, group *string, m layer.Mark) error {
	if s.json {
		return printJSON(s.stdout, jsonMarked{
			Queue: s.queue, Group: group, Resumed: resumed, JSONMark: *console.JSONOfMark(&m),
		})
	}
	what := "queue " + display(s.queue)
	if group != nil {
		what = "group " + display(*group)
	}
	line := what + " is " + markWords(m)
	if resumed {
		line = "resumed " + what + ", which was " + markWords(m)
	}
	_, err := fmt.Fprintln(s.stdout, line)
	return err
}

// markWords returns a text with the operator, the time and the reason of a pause.
func markWords(m layer.Mark) string {
	words := fmt.Sprintf("%s by %s since %s", m.Status, display(m.By), m.Since.UTC().Format("2006-01-02 15:04:05 UTC"))
	if m.Reason != "" {
		words += ": " + oneLine([]byte(m.Reason), maxReasonWidth)
	}
	return words
}

// maxReasonWidth is how much of a reason is shown, in columns.
const maxReasonWidth = 200
