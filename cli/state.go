package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"fdbfifo/layer"
)

const stateHelp = `Print the state that the workers of a group keep with it from one claim to the next, or change it.
--set gives it a new state, --file the content of a file, --clear none. A change is refused while a worker holds the
group: that worker has read the old state, and may write over the new one. --force changes the state nevertheless.`

func newStateCmd(s *session) *cobra.Command {
	var group, set, file string
	var remove bool
	var o layer.SetGroupStateOptions
	c := &cobra.Command{
		Use:   "state --group GROUP [(--set TEXT | --file FILE | --clear) [--force]] [--by NAME] [--log FILE]",
		Short: "Print or change the state of a group",
		Long:  stateHelp,
		Example: `  fdbfifo state --group ATL
  fdbfifo state --group ATL --clear`,
		RunE: func(c *cobra.Command, _ []string) error {
			changes := 0
			for _, flag := range []string{"set", "file", "clear"} {
				if c.Flags().Changed(flag) {
					changes++
				}
			}
			switch {
			case changes > 1:
				return usagef("give one of --set TEXT, --file FILE (- is stdin) and --clear")
			case changes == 0 && o.Force:
				return usagef("--force needs --set, --file or --clear")
			case c.Flags().Changed("clear") && !remove:
				return usagef("--clear is false: give --clear without a value, or leave it out")
			}
			state := []byte(set)
			if c.Flags().Changed("file") {
				var err error
				if state, err = s.readBody(c.Context(), file); err != nil {
					return err
				}
			}
			if changes > 0 && !remove && len(state) == 0 {
				return usagef("the state is empty: give 1 byte or more, or --clear for none")
			}
			if len(state) > layer.MaxStateSize {
				return usagef("the state has %s bytes: up to %s are allowed", commas(int64(len(state))), commas(layer.MaxStateSize))
			}
			return s.withQueue(c.Context(), false, func(q *layer.Queue) error {
				if changes == 0 {
					found, err := q.GroupState(c.Context(), group)
					if err != nil {
						return err
					}
					return s.printState(group, found)
				}
				if err := s.admin(q).SetGroupState(c.Context(), group, state, o); err != nil {
					return s.refused(err)
				}
				if remove {
					return s.done("cleared the state of", nil, group)
				}
				return s.done("set the state of", nil, group)
			})
		},
	}
	addGroupFlag(c, &group)
	c.Flags().StringVar(&set, "set", "", "the new state, `TEXT`")
	c.Flags().StringVar(&file, "file", "", "a `FILE` with the new state; - is stdin")
	c.Flags().BoolVar(&remove, "clear", false, "keep nothing with the group any more")
	c.Flags().BoolVar(&o.Force, "force", false, "also while a worker holds the group")
	s.addActing(c)
	return c
}

type jsonState struct {
	Group string    `json:"group"`
	Set   bool      `json:"set"` // false = there is none
	State *jsonBody `json:"state,omitempty"`
}

// printState prints a state as it is: it may be meant for a pipe. A terminal gets it without what would steer it, and
// with a line end.
func (s *session) printState(group string, state []byte) error {
	if s.json {
		j := jsonState{Group: group, Set: len(state) > 0}
		if j.Set {
			body := newJSONBody(state)
			j.State = &body
		}
		return printJSON(s.stdout, j)
	}
	if len(state) == 0 {
		s.notice("group %s has no state", display(group))
		return nil
	}
	_, err := s.exact(s.raw).Write(state)
	if _, _, ok := s.app.size(s.raw); ok && err == nil && state[len(state)-1] != '\n' {
		_, err = fmt.Fprintln(s.stdout)
	}
	return err
}
