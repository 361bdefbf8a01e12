package cli

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

func newDecodeCmd(s *session) *cobra.Command {
	return &cobra.Command{
		Use:   "decode [KEY | PARTS]...",
		Short: "Put keys and values that fdbcli prints into words, or parts into a key",
		Long: `Take each argument, or each line of stdin if there is none. A key as fdbcli prints it becomes the tuple it is
made of, and what a queue keeps there; of a line of fdbcli's get and getrange, ` + "`KEY' is `VALUE'" + `, the value is
put into words too. A tuple, which begins with a bracket, becomes the key.`,
		Example: `  fdbcli --exec "getrange $(fdbfifo key lock)" | fdbfifo decode
  fdbfifo decode '\x02fdbfifo\x00\x02default\x00\x02lock\x00\x02ATL\x00'
  fdbfifo decode '("fdbfifo", "default", "lock", "ATL")'`,
		Args: cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			return s.withPrefix(c.Context(), func() error { return s.decodeAll(c.Context(), args) })
		},
	}
}

// decodeAll decodes the arguments, or the lines of stdin if there are none.
func (s *session) decodeAll(ctx context.Context, args []string) error {
	for _, arg := range args {
		if err := s.decode(s.prefix(), arg); err != nil {
			return err
		}
	}
	if len(args) > 0 {
		return nil
	}
	in, err := utf8Text(s.input(ctx))
	if err != nil {
		return err
	}
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxDecodeLine)
	decoded, n := 0, 1
	for ; lines.Scan(); n++ {
		if notAPair(lines.Text()) {
			continue
		}
		decoded++
		if err := s.decode(s.prefix(), lines.Text()); err != nil {
			return &inputError{n, err}
		}
	}
	if errors.Is(lines.Err(), bufio.ErrTooLong) {
		return &inputError{n, fmt.Errorf("the line has more than %s bytes", commas(maxDecodeLine))}
	}
	if decoded == 0 && lines.Err() == nil {
		s.notice("stdin has no keys")
	}
	return lines.Err()
}

// maxDecodeLine bounds a line of fdbcli: a key and a value of FoundationDB's greatest sizes, escaped.
const maxDecodeLine = 1 << 20 // bytes

// notAPair reports whether line is one that fdbcli's getrange prints around the pairs.
func notAPair(line string) bool {
	line = strings.TrimSpace(line)
	return line == "" || strings.HasPrefix(line, "Range limited to ")
}

// decode prints the other form of text. No key that is a tuple begins with a bracket, so the two cannot be
// taken for each other.
func (s *session) decode(prefix []byte, text string) error {
	if strings.HasPrefix(strings.TrimSpace(text), "(") {
		parts, err := tuple.Parse(text)
		if err != nil {
			return err
		}
		if s.json {
			return printJSON(s.stdout, jsonDecoded{Key: tuple.Printable(parts.Pack()), Parts: parts.String()})
		}
		_, err = fmt.Fprintln(s.stdout, tuple.Printable(parts.Pack()))
		return err
	}
	line, err := readLine(text)
	if err != nil {
		return err
	}
	return s.printDecoded(prefix, line)
}

// line is the content of a line of fdbcli.
type line struct {
	key     []byte
	value   []byte // nil if it is not known
	missing bool   // fdbcli's get has found no such key
}

// readLine reads a line of fdbcli's get and getrange, or a bare key. A value may contain the text that separates key
// and value. A key that contains it is not understood.
func readLine(text string) (line, error) {
	key, value, missing, isPair := text, "", false, false
	if rest, ok := strings.CutPrefix(strings.TrimSpace(text), "`"); ok {
		if pair, ok := strings.CutSuffix(rest, "'"); ok {
			key, value, isPair = strings.Cut(pair, "' is `")
		} else if key, missing = strings.CutSuffix(rest, "': not found"); !missing {
			key = text
		}
	}
	l := line{missing: missing}
	var err error
	if l.key, err = tuple.ParsePrintable(key); err != nil || !isPair {
		return l, err
	}
	l.value, err = tuple.ParsePrintable(value)
	return l, err
}

type jsonDecoded struct {
	Key        string `json:"key"`
	Parts      string `json:"parts"`
	Queue      string `json:"queue,omitempty"`
	Kind       string `json:"kind,omitempty"`
	KeyMeans   string `json:"key_means,omitempty"`
	Value      string `json:"value,omitempty"`
	ValueMeans string `json:"value_means,omitempty"`
}

func (s *session) printDecoded(prefix []byte, l line) error {
	parts, err := tuple.Unpack(l.key)
	shown := parts.String()
	if rest, ok := bytes.CutPrefix(l.key, prefix); ok && err != nil {
		// The prefix itself is no tuple.
		if parts, below := tuple.Unpack(rest); below == nil {
			shown, err = tuple.Printable(prefix)+" "+parts.String(), nil
		}
	}
	if err != nil {
		return fmt.Errorf("%.200s is not a tuple: %w", tuple.Printable(l.key), err)
	}
	d, known, err := layer.Describe(prefix, l.key, l.value)
	if err != nil {
		// The error is printed with its pair. The other lines are still read.
		d.Value = err.Error()
	}
	if !known {
		d, known = describeEffect(l.key, l.value)
	}
	if l.missing {
		d.Value = "is not there"
	}
	if s.json {
		return printJSON(s.stdout, jsonDecoded{
			Key: tuple.Printable(l.key), Parts: shown, Queue: d.Queue, Kind: d.Name, KeyMeans: d.Key,
			Value: tuple.Printable(l.value), ValueMeans: d.Value,
		})
	}
	text := shown + "\n"
	if known && d.Key != "" {
		text += fmt.Sprintf("  queue %s: %s\n", display(d.Queue), d.Key)
	}
	if d.Value != "" {
		text += "  " + d.Value + "\n"
	}
	_, err = io.WriteString(s.stdout, text)
	return err
}
