package cli

import (
	"bufio"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"fdbfifo/kv/tuple"
)

func newDecodeCmd(s *session) *cobra.Command {
	return &cobra.Command{
		Use:   "decode [KEY | PARTS]...",
		Short: "Turn a key as fdbcli prints it into its parts, or parts into a key",
		Long: `Turn each argument, or each line of stdin if there is none, into its other form: a key as fdbcli prints it
into the tuple it is made of, and a tuple, which begins with a bracket, into the key. Lines of fdbcli's
getrange are taken as they are.`,
		Example: `  fdbfifo decode '\x02fdbfifo\x00\x02default\x00\x02lock\x00\x02ATL\x00'
  fdbfifo decode '("fdbfifo", "default", "lock", "ATL")'`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			for _, arg := range args {
				if err := s.decode(arg); err != nil {
					return err
				}
			}
			if len(args) > 0 {
				return nil
			}
			lines := bufio.NewScanner(s.stdin)
			for n := 1; lines.Scan(); n++ {
				if strings.TrimSpace(lines.Text()) == "" {
					continue
				}
				if err := s.decode(lines.Text()); err != nil {
					return &inputError{n, err}
				}
			}
			return lines.Err()
		},
	}
}

// decode prints the other form of text. No key that is a tuple begins with a bracket, so the two cannot be
// taken for each other.
func (s *session) decode(text string) error {
	var key []byte
	var parts tuple.Tuple
	var err error
	isParts := strings.HasPrefix(strings.TrimSpace(text), "(")
	if isParts {
		if parts, err = tuple.Parse(text); err != nil {
			return err
		}
		key = parts.Pack()
	} else {
		if key, err = tuple.ParsePrintable(bareKey(text)); err != nil {
			return err
		}
		if parts, err = tuple.Unpack(key); err != nil {
			return fmt.Errorf("%s is not a tuple: %w", tuple.Printable(key), err)
		}
	}
	switch {
	case s.json:
		return printJSON(s.stdout, struct {
			Key   string `json:"key"`
			Parts string `json:"parts"`
		}{tuple.Printable(key), parts.String()})
	case isParts:
		_, err = fmt.Fprintln(s.stdout, tuple.Printable(key))
	default:
		_, err = fmt.Fprintln(s.stdout, parts)
	}
	return err
}

// bareKey returns the key of a line of fdbcli's getrange, which is `KEY' is `VALUE', or line as it is.
func bareKey(line string) string {
	trimmed := strings.TrimSpace(line)
	if !strings.HasPrefix(trimmed, "`") || !strings.HasSuffix(trimmed, "'") {
		return line
	}
	key, _, _ := strings.Cut(trimmed[1:len(trimmed)-1], "' is `")
	return key
}
