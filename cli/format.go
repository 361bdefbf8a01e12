package cli

import (
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"fdbfifo/console"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// display returns the name of a group or queue. It quotes the name if it is empty, or if it would disturb a terminal or
// a table.
func display(name string) string {
	plain := func(r rune) bool { return r != ' ' && r != '"' && unicode.IsPrint(r) && r != utf8.RuneError }
	if name == "" || strings.ContainsFunc(name, func(r rune) bool { return !plain(r) }) {
		return strconv.Quote(name)
	}
	return name
}

// oneLine returns the start of b for a table. It escapes characters that are not printable, so that they cannot steer
// the terminal. It cuts the text after width columns.
func oneLine(b []byte, width int) string {
	var s strings.Builder
	cols := 0
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		shown := string(r)
		if steers(r, n) {
			shown = escaped(b[:n])
		}
		w := text.StringWidthWithoutEscSequences(shown)
		if cols+w > width || cols+w == width && len(b) > n {
			s.WriteString("…")
			return s.String()
		}
		s.WriteString(shown)
		cols += w
		b = b[n:]
	}
	return s.String()
}

// steers reports whether a rune of n bytes could steer a terminal, or looks like something else. That is a character
// that is not printable, for example a control character or one that changes the direction of the text, and a byte that
// is not UTF-8.
func steers(r rune, n int) bool { return r == utf8.RuneError && n <= 1 || !unicode.IsPrint(r) }

// escaped returns the bytes of a rune as Go escapes them.
func escaped(b []byte) string { return strings.Trim(strconv.QuoteToASCII(string(b)), `"`) }

// plain returns b and escapes all that could steer a terminal, except line ends and tabs.
func plain(b []byte) []byte {
	safe := make([]byte, 0, len(b))
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		if r != '\n' && r != '\t' && steers(r, n) {
			safe = append(safe, escaped(b[:n])...)
		} else {
			safe = append(safe, b[:n]...)
		}
		b = b[n:]
	}
	return safe
}

// plainWriter escapes its text with plain, so that text in the database cannot steer the terminal. Each Write must have
// whole runes.
type plainWriter struct{ w io.Writer }

func (p *plainWriter) Write(b []byte) (int, error) {
	if _, err := p.w.Write(plain(b)); err != nil {
		return 0, err
	}
	return len(b), nil
}

// exact returns a writer for bytes that must reach a pipe or a file unchanged. If w is a terminal, the writer escapes
// them with plain.
func (s *session) exact(w io.Writer) io.Writer {
	if _, _, ok := s.app.size(w); ok {
		return &plainWriter{w}
	}
	return w
}

// Widths of a table's cells, in columns. A longer name is cut. A text gets at least this much, even on a narrow
// terminal.
const (
	maxNameWidth = 24
	minTextWidth = 16
)

// The words of the command and of the console are the same.
var (
	commas = console.Commas
	plural = console.Plural
	short  = console.Short
)

// since returns for how long t had passed at the time now; "" if t is zero, as of a row that cannot be read.
func since(now, t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return short(max(0, now.Sub(t)))
}

// printJSON prints v as one line.
func printJSON(w io.Writer, v any) error { return console.WriteJSON(w, v) }

// jsonBody is a body in JSON. It is a string if the body is UTF-8, as JSON requires, otherwise base64.
type jsonBody struct {
	Body   *string `json:"body,omitempty"`
	Base64 []byte  `json:"body_base64,omitempty"`
}

func newJSONBody(body []byte) jsonBody {
	if !utf8.Valid(body) {
		return jsonBody{Base64: body}
	}
	s := string(body)
	return jsonBody{Body: &s}
}

// newTable returns a table in the house style: a line under the header, none around.
func newTable(header ...any) table.Writer {
	t := table.NewWriter()
	style := table.StyleLight
	style.Options = table.Options{SeparateHeader: true, SeparateFooter: true}
	style.Box.PaddingLeft, style.Box.PaddingRight = "", "  "
	style.Format.Header = text.FormatDefault
	style.Format.Footer = text.FormatDefault
	t.SetStyle(style)
	t.SuppressTrailingSpaces()
	if len(header) > 0 {
		t.AppendHeader(header)
	}
	return t
}

// alignRight right-aligns the columns of the given numbers, counted from 1.
func alignRight(t table.Writer, columns ...int) {
	configs := make([]table.ColumnConfig, len(columns))
	for i, n := range columns {
		configs[i] = table.ColumnConfig{Number: n, Align: text.AlignRight, AlignHeader: text.AlignRight}
	}
	t.SetColumnConfigs(configs)
}

// width returns how many columns a result may use: those of the terminal, or very many if stdout is no terminal.
func (s *session) width() int {
	if w, _, ok := s.app.size(s.stdout); ok {
		return w
	}
	return 120
}

type tableRow = table.Row

// printTable cuts lines that a terminal would wrap.
func (s *session) printTable(t table.Writer) error {
	if w, _, ok := s.app.size(s.stdout); ok {
		t.Style().Size.WidthMax = w
	}
	_, err := fmt.Fprintln(s.stdout, t.Render())
	return err
}
