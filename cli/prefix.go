package cli

import (
	"bytes"
	"context"
	"encoding/hex"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/spf13/cobra"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

// prefix is where the queues of the command line live unless it says otherwise: below the tuple ("fdbfifo"), so that
// they can share a database with others.
func prefix() []byte { return tuple.Tuple{"fdbfifo"}.Pack() }

// place is where the queues of a command are: the flags --prefix and --directory.
type place struct {
	prefix    string
	directory string
	key       []byte // what the flags come to; nil = fdbfifo's own prefix, or a directory that is to be looked up
	claimed   []byte // the prefix of the claims that the command has read; nil = it has read none
}

// holds returns a usage error if a claim below the prefix key is not below what the flag names.
func (p *place) holds(key []byte, flag string) error {
	if bytes.Equal(p.key, key) {
		return nil
	}
	return usagef("the claim is below the prefix %s, and %s names %s: leave the flag out",
		prefixText(key), flag, prefixText(p.key))
}

// prefix is where the queues of the command are.
func (s *session) prefix() []byte {
	if s.place.key == nil {
		return prefix()
	}
	return s.place.key
}

func (p *place) add(c *cobra.Command) {
	flags := c.PersistentFlags()
	flags.StringVar(&p.prefix, "prefix", "",
		"the `KEY` below which a program keeps its queues: text, 0x…, or a tuple like '(\"app\", 1)'")
	flags.StringVar(&p.directory, "directory", "",
		"the same, as a `PATH` of FoundationDB's directory layer: app/queues, or a tuple of names")
}

// without are the commands that have no queue of a program's.
var without = map[string]bool{"demo": true, demoWorkerName: true, "bench": true}

// parse reads the flags, as far as that goes without a database.
func (p *place) parse(c *cobra.Command) error {
	prefixed, directed := c.Flags().Changed("prefix"), c.Flags().Changed("directory")
	switch {
	case !prefixed && !directed:
		return nil
	case prefixed && directed:
		return usagef("--prefix and --directory do not go together: give one of them")
	case without[c.Name()]:
		return usagef("the command has a queue of its own: leave --prefix and --directory out")
	case directed:
		_, err := directoryPath(p.directory)
		return err
	}
	key, err := parsePrefix(p.prefix)
	if err != nil {
		return usagef("--prefix: %w", err)
	}
	p.key = append([]byte{}, key...)
	return nil
}

// parsePrefix reads a tuple, which begins with a bracket, bytes in hexadecimal after 0x, or text as fdbcli prints keys.
// A text that begins like one of the others has that as \x28 or \x30.
func parsePrefix(text string) ([]byte, error) {
	switch {
	case strings.HasPrefix(text, "("):
		parts, err := tuple.Parse(text)
		if err != nil {
			return nil, err
		}
		if len(parts) == 0 {
			return nil, fmt.Errorf("%s has no element: give one, or 0x for the root of the database", text)
		}
		return parts.Pack(), nil
	case strings.HasPrefix(text, "0x"):
		return hex.DecodeString(text[2:])
	}
	return tuple.ParsePrintable(text)
}

// prefixText is the shortest readable form that parsePrefix reads.
func prefixText(key []byte) string {
	if len(key) == 0 {
		return "0x" // an empty text is no value of --prefix
	}
	if parts, err := tuple.Unpack(key); err == nil && len(parts) > 0 {
		return parts.String()
	}
	text := tuple.Printable(key)
	for _, taken := range []string{"(", "0x"} {
		if strings.HasPrefix(text, taken) {
			return fmt.Sprintf(`\x%02x`, text[0]) + text[1:]
		}
	}
	return text
}

// placeFlag is the flag that leads to the queues below key.
func placeFlag(key []byte, directories map[string]string) string {
	if path, ok := directories[string(key)]; ok {
		return "--directory " + shellWord(path)
	}
	return "--prefix " + shellWord(prefixText(key))
}

// shellWord quotes a word for a shell if that is needed. Characters that could steer a terminal are escaped as bash,
// zsh and ksh have it.
func shellWord(word string) string {
	plain := func(r rune) bool {
		return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
			strings.ContainsRune("/._-:@+,=", r)
	}
	if word != "" && strings.IndexFunc(word, func(r rune) bool { return !plain(r) }) < 0 {
		return word
	}
	if strings.IndexFunc(word, func(r rune) bool { return !unicode.IsPrint(r) || r == utf8.RuneError }) < 0 {
		return "'" + strings.ReplaceAll(word, "'", `'\''`) + "'"
	}
	var b strings.Builder
	for i := range len(word) {
		switch c := word[i]; {
		case c == '\\' || c == '\'':
			b.WriteByte('\\')
			b.WriteByte(c)
		case c < ' ' || c >= 0x7f:
			fmt.Fprintf(&b, `\x%02x`, c)
		default:
			b.WriteByte(c)
		}
	}
	return "$'" + b.String() + "'"
}

// The values of --engine and --queue that need not be given.
const (
	defaultEngine = "disk"
	defaultQueue  = "default"
)

// program is the beginning of a command line that uses the same engine as this command.
func (s *session) program() string {
	if s.engine == defaultEngine {
		return "fdbfifo"
	}
	return "fdbfifo --engine " + shellWord(s.engine)
}

// placed is program for a command that names its queue itself. It has the same prefix as this command.
func (s *session) placed() string {
	switch {
	case s.place.directory != "":
		return s.program() + " --directory " + shellWord(s.place.directory)
	case s.place.key != nil:
		return s.program() + " " + placeFlag(s.place.key, nil)
	}
	return s.program()
}

// command returns a command line for the same queue as that of this command. Advice must use it: without the flags the
// words that a user copies would act on another queue. words are for a shell already.
func (s *session) command(words string) string {
	if s.queue == defaultQueue {
		return s.placed() + " " + words
	}
	if strings.HasPrefix(s.queue, "-") { // else it would be taken for a flag
		return s.placed() + " --queue=" + shellWord(s.queue) + " " + words
	}
	return s.placed() + " --queue " + shellWord(s.queue) + " " + words
}

// locate looks the directory up, if one is named.
func (s *session) locate(ctx context.Context, db kv.DB) error {
	if s.place.directory == "" || s.place.key != nil {
		return nil
	}
	path, err := directoryPath(s.place.directory)
	if err != nil {
		return err
	}
	if s.place.key, err = s.findDirectory(ctx, db, path); err != nil || s.place.claimed == nil {
		return err
	}
	return s.place.holds(s.place.claimed, "--directory")
}

// withPrefix calls fn once the prefix is known. For that a database is asked only if a directory is named.
func (s *session) withPrefix(ctx context.Context, fn func() error) error {
	if s.place.directory == "" {
		return fn()
	}
	return s.withEngine(ctx, false, func(kv.DB) error { return fn() })
}
