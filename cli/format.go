package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode"
	"unicode/utf8"

	"fdbfifo/console"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
)

// display returns a group's or queue's name as it is if that is plain, and quoted if it is empty or would
// disturb a terminal or a table.
func display(name string) string {
	plain := func(r rune) bool { return r != ' ' && r != '"' && unicode.IsPrint(r) && r != utf8.RuneError }
	if name == "" || strings.ContainsFunc(name, func(r rune) bool { return !plain(r) }) {
		return strconv.Quote(name)
	}
	return name
}

// oneLine returns the start of b for a table: what is not printable is escaped, so that it cannot steer the
// terminal, and what is longer than width columns is cut.
func oneLine(b []byte, width int) string {
	var s strings.Builder
	cols := 0
	for len(b) > 0 {
		r, n := utf8.DecodeRune(b)
		shown := string(r)
		if r == utf8.RuneError && n <= 1 || !unicode.IsPrint(r) {
			shown = strings.Trim(strconv.QuoteToASCII(string(b[:n])), `"`)
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

// Columns of a table's cells: a longer name is cut, and a text is left this much, however narrow the terminal is.
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

// printJSON prints v as one line.
func printJSON(w io.Writer, v any) error {
	enc := json.NewEncoder(w)
	enc.SetEscapeHTML(false)
	return enc.Encode(v)
}

// jsonBody is a body in JSON: as a string if it is UTF-8, which JSON needs, else as base64.
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

// width is how many columns a result may use: the terminal's, or plenty if stdout is none.
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
