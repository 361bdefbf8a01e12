package cli

import (
	"iter"
	"slices"
	"strings"

	"github.com/spf13/cobra"
)

// headerFilter chooses messages by their headers. A message must have each named header, with the value if one is
// given.
type headerFilter struct{ given []string }

func (f *headerFilter) add(c *cobra.Command) {
	c.Flags().StringArrayVar(&f.given, "header", nil,
		"only those with this header: `NAME=VALUE`, or NAME for any value (repeatable)")
}

// active reports whether the filter has any condition.
func (f *headerFilter) active() bool { return len(f.given) > 0 }

func (f *headerFilter) check() error {
	if slices.ContainsFunc(f.given, func(text string) bool { return text == "" || text[0] == '=' }) {
		return usagef("--header has no name: NAME=VALUE or NAME is wanted")
	}
	return nil
}

func (f *headerFilter) matches(headers map[string]string) bool {
	for _, text := range f.given {
		name, want, valued := strings.Cut(text, "=")
		if got, ok := headers[name]; !ok || valued && got != want {
			return false
		}
	}
	return true
}

// chosen returns the first n entries for which keep is true. If the list continues after them, last is the last of
// them.
func chosen[T any](list iter.Seq2[T, error], n int, keep func(T) bool) (first []T, last *T, err error) {
	for entry, err := range list {
		if err != nil {
			return nil, nil, err
		}
		if len(first) == n {
			return first, &first[n-1], nil
		}
		if keep(entry) {
			first = append(first, entry)
		}
	}
	return first, nil, nil
}
