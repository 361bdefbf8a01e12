package tuple

import (
	"fmt"
	"strconv"
	"strings"
)

// Printable returns b as fdbcli prints keys and values: a backslash doubled, a byte outside 0x20 … 0x7e as \x and
// two hex digits, all else as it is.
func Printable(b []byte) string {
	const digits = "0123456789abcdef"
	var s strings.Builder
	s.Grow(len(b))
	for _, c := range b {
		switch {
		case c == '\\':
			s.WriteString(`\\`)
		case c < 0x20 || c > 0x7e:
			s.WriteString(`\x`)
			s.WriteByte(digits[c>>4])
			s.WriteByte(digits[c&0xf])
		default:
			s.WriteByte(c)
		}
	}
	return s.String()
}

// ParsePrintable reads one token with the escapes of fdbcli: \xNN, \uNNNN up to \u00ff for one byte, and a
// backslash before a backslash, quotation mark, blank or semicolon. Where fdbcli splits its line at a bare blank,
// semicolon or quotation mark, here each stands for itself, so that the text of Printable is read back. An error
// wraps ErrMalformed.
func ParsePrintable(s string) ([]byte, error) {
	b := make([]byte, 0, len(s))
	for i := 0; i < len(s); {
		if s[i] != '\\' {
			b = append(b, s[i])
			i++
			continue
		}
		c, n, ok := parseEscape(s[i+1:])
		if !ok {
			return nil, fmt.Errorf("%w: no escape of fdbcli at byte %d of %q", ErrMalformed, i, s)
		}
		b = append(b, c)
		i += 1 + n
	}
	return b, nil
}

// parseEscape reads an escape without its backslash and returns its byte and its length.
func parseEscape(s string) (c byte, n int, ok bool) {
	if s == "" {
		return 0, 0, false
	}
	switch s[0] {
	case '\\', '"', ' ', ';':
		return s[0], 1, true
	case 'x':
		n = 3
	case 'u':
		n = 5
	}
	if n == 0 || len(s) < n {
		return 0, 0, false
	}
	u, err := strconv.ParseUint(s[1:n], 16, 8)
	return byte(u), n, err == nil
}
