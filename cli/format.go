package cli

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

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

// commas writes n with its thousands apart.
func commas(n int64) string {
	digits := strconv.FormatInt(n, 10)
	sign := ""
	if n < 0 {
		sign, digits = "-", digits[1:]
	}
	for i := len(digits) - 3; i > 0; i -= 3 {
		digits = digits[:i] + "," + digits[i:]
	}
	return sign + digits
}

// plural returns "1 group" or "20 groups".
func plural(n int64, noun string) string {
	if n != 1 {
		noun += "s"
	}
	return commas(n) + " " + noun
}

// short writes a duration with as many digits as a table wants.
func short(d time.Duration) string {
	if d < 0 {
		return "-" + short(-d)
	}
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1fs", d.Seconds())
	case d < time.Minute:
		return fmt.Sprintf("%.0fs", d.Seconds())
	case d < time.Hour:
		return fmt.Sprintf("%dm%02ds", int(d.Minutes()), int(d.Seconds())%60)
	case d < 24*time.Hour:
		return fmt.Sprintf("%dh%02dm", int(d.Hours()), int(d.Minutes())%60)
	}
	return fmt.Sprintf("%dd%02dh", int(d.Hours())/24, int(d.Hours())%24)
}

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
