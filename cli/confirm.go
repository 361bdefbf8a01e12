package cli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"
)

// confirmed is the flag --yes of a command that removes or changes many messages at once.
type confirmed bool

func (y *confirmed) add(c *cobra.Command) {
	c.Flags().BoolVar((*bool)(y), "yes", false, "do it without a question; a script must give it")
}

// confirm asks on a terminal whether c may do its work. If stdin or stderr is no terminal, --yes is required. does
// describes the work, for example "removes all messages of group ATL".
func (s *session) confirm(c *cobra.Command, yes confirmed, does string) error {
	if yes {
		return nil
	}
	if _, _, seen := s.app.size(s.stderr); !seen || !s.app.terminal(s.stdin) {
		return usagef("the command %s: give --yes to do it", does)
	}
	s.stderr.Write(plain(fmt.Appendf(nil, "%s: the command %s. Continue? [y/N] ", c.CommandPath(), does)))
	answer, err := bufio.NewReader(untilInterrupted(c.Context(), s.stdin)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return nil
	}
	return &Error{Text: "not confirmed: nothing was done"}
}

// commandName returns the name of c without the program's name.
func commandName(c *cobra.Command) string {
	return strings.TrimPrefix(c.CommandPath(), c.Root().Name()+" ")
}
