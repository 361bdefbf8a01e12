package cli

import (
	"fmt"

	"github.com/spf13/cobra"

	"fdbfifo/layer"
)

// editFlags are the flags that say how to change messages.
type editFlags struct {
	body, file string
	set        []string
	remove     []string
}

func (f *editFlags) add(c *cobra.Command) {
	c.Flags().StringVar(&f.body, "body", "", "the new body, `TEXT`")
	c.Flags().StringVar(&f.file, "file", "", "a `FILE` with the new body; - is stdin, /dev/null an empty body")
	c.Flags().StringArrayVar(&f.set, "header", nil, "a header to set, `NAME=VALUE`")
	c.Flags().StringArrayVar(&f.remove, "remove-header", nil, "the `NAME` of a header to remove")
}

// change returns a function that changes a message as the flags say, or nil if they change nothing.
func (f *editFlags) change(s *session, c *cobra.Command) (func(m *layer.Message) error, error) {
	headers, err := parseHeaders(f.set)
	if err != nil {
		return nil, err
	}
	for _, name := range f.remove {
		if _, both := headers[name]; both {
			return nil, usagef("--header and --remove-header both name %q", name)
		}
	}
	changed := c.Flags().Changed
	if changed("body") && changed("file") {
		return nil, usagef("give either --body TEXT or --file FILE (- is stdin)")
	}
	newBody := changed("body") || changed("file")
	if !newBody && len(headers) == 0 && len(f.remove) == 0 {
		return nil, nil
	}
	text := []byte(f.body)
	if changed("file") {
		if text, err = s.readNewBody(c.Context(), f.file); err != nil {
			return nil, err
		}
	}
	return func(m *layer.Message) error {
		if newBody {
			m.Body = text
		}
		for name, value := range headers {
			m.Headers[name] = value
		}
		for _, name := range f.remove {
			if _, ok := m.Headers[name]; !ok {
				return fmt.Errorf("the message has no header %q", name)
			}
			delete(m.Headers, name)
		}
		return nil
	}, nil
}
