package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// allKeys is the kind that stands for all keys of a queue.
const allKeys = "queue"

func newKeyCmd(s *session) *cobra.Command {
	var unnamed bool
	c := &cobra.Command{
		Use:   "key KIND [GROUP]... [--default-group]",
		Short: "Print the range of a queue's keys, for fdbcli's getrange",
		Long: fmt.Sprintf(`Print begin and end of the range in which a queue has its keys of one kind, as fdbcli reads them; with groups,
one such line for each. No database is asked, except for --directory. Kinds: queue (all its keys), %s; a plural is
right, too. Only %s are stored by group.`, strings.Join(layer.KeyNames(), ", "), strings.Join(keysByGroup(), ", ")),
		Example: `  fdbcli --exec "getrange $(fdbfifo key items ATL) 1"
  fdbcli --exec "getrange $(fdbfifo key lock) 100" | fdbfifo decode`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			if unnamed {
				args = append(args, "")
			}
			return s.withPrefix(c.Context(), func() error {
				ranges, err := s.keyRanges(s.prefix(), args)
				if err != nil {
					return err
				}
				for _, r := range ranges {
					if err := s.printRange(r); err != nil {
						return err
					}
				}
				return nil
			})
		},
	}
	c.Flags().BoolVar(&unnamed, defaultGroup, false, "the group without a name, in place of GROUP")
	return c
}

// keysByGroup are the kinds of keys that the groups come first in.
func keysByGroup() []string {
	return slices.DeleteFunc(layer.KeyNames(), func(name string) bool {
		_, ok := layer.GroupSection(nil, "", name, "")
		return !ok
	})
}

func (s *session) keyRanges(prefix []byte, args []string) ([]kv.KeyRange, error) {
	kinds := append([]string{allKeys}, layer.KeyNames()...)
	if len(args) == 0 {
		return nil, usagef("no kind of key is named: give one of %s", strings.Join(kinds, ", "))
	}
	kind := args[0]
	if !slices.Contains(kinds, kind) {
		kind = strings.TrimSuffix(kind, "s")
	}
	section, ok := layer.Section(prefix, s.queue, kind)
	if kind == allKeys {
		section, ok = layer.WholeSection(prefix, s.queue), true
	}
	if !ok {
		return nil, usagef("there are no keys of kind %q; there are %s", args[0], strings.Join(kinds, ", "))
	}
	if len(args) == 1 {
		return []kv.KeyRange{section}, nil
	}
	var ranges []kv.KeyRange
	for _, group := range args[1:] {
		r, ok := layer.GroupSection(prefix, s.queue, kind, group)
		if !ok {
			return nil, usagef("keys of kind %s are not stored by group: leave %q out", kind, group)
		}
		ranges = append(ranges, r)
	}
	return ranges, nil
}

func (s *session) printRange(r kv.KeyRange) error {
	begin, end := fdbcliToken(r.Begin), fdbcliToken(r.End)
	if s.json {
		return printJSON(s.stdout, struct {
			Begin string `json:"begin"`
			End   string `json:"end"`
		}{begin, end})
	}
	_, err := fmt.Fprintln(s.stdout, begin, end)
	return err
}

// fdbcliToken writes a key as one word of fdbcli's command line. The word may also stand between double quotes of a
// shell. The blank, the semicolon, the quotation marks and the characters that a shell expands are written as
// hexadecimal bytes.
func fdbcliToken(key []byte) string {
	var s strings.Builder
	for _, c := range key {
		switch c {
		case ' ', ';', '"', '\'', '`', '$', '!', '\\':
			fmt.Fprintf(&s, `\x%02x`, c)
		default:
			s.WriteString(tuple.Printable([]byte{c}))
		}
	}
	return s.String()
}
