package tuple

import (
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// Parse reads the text that Format writes; blanks between elements do not matter. An error wraps ErrMalformed.
func Parse(s string) (Tuple, error) {
	p := parser{text: s}
	t, err := p.tuple(0)
	if err == nil {
		if p.blanks(); p.at < len(s) {
			err = p.fail("nothing after the tuple")
		}
	}
	if err != nil {
		return nil, err
	}
	return t, nil
}

// parser reads text from at on.
type parser struct {
	text string
	at   int
}

func (p *parser) fail(want string) error {
	return fmt.Errorf("%w: at byte %d of %.200q: want %s", ErrMalformed, p.at, p.text, want)
}

func (p *parser) blanks() {
	for p.at < len(p.text) && strings.IndexByte(" \t\r\n", p.text[p.at]) >= 0 {
		p.at++
	}
}

// take skips blanks and then c, if c comes next.
func (p *parser) take(c byte) bool {
	p.blanks()
	if p.at < len(p.text) && p.text[p.at] == c {
		p.at++
		return true
	}
	return false
}

func (p *parser) tuple(depth int) (Tuple, error) {
	if depth > MaxDepth {
		return nil, p.fail("less nesting")
	}
	if !p.take('(') {
		return nil, p.fail("(")
	}
	t := Tuple{}
	if p.take(')') {
		return t, nil
	}
	for {
		e, err := p.element(depth)
		if err != nil {
			return nil, err
		}
		t = append(t, e)
		if p.take(')') {
			return t, nil
		}
		if !p.take(',') {
			return nil, p.fail(", or )")
		}
	}
}

func (p *parser) element(depth int) (any, error) {
	p.blanks()
	rest := p.text[p.at:]
	switch {
	case strings.HasPrefix(rest, "("):
		return p.tuple(depth + 1)
	case strings.HasPrefix(rest, `"`):
		return p.str()
	case strings.HasPrefix(rest, `b"`):
		return p.bytes()
	}
	return p.word()
}

func (p *parser) str() (string, error) {
	quoted, err := strconv.QuotedPrefix(p.text[p.at:])
	if err != nil {
		return "", p.fail("a string as Go quotes it")
	}
	s, err := strconv.Unquote(quoted)
	if err != nil {
		return "", p.fail("a string as Go quotes it")
	}
	p.at += len(quoted)
	return s, nil
}

func (p *parser) bytes() ([]byte, error) {
	body := p.text[p.at+len(`b"`):]
	for i := 0; i < len(body); i++ {
		switch body[i] {
		case '\\':
			i++
		case '"':
			b, err := ParsePrintable(body[:i])
			if err != nil {
				return nil, fmt.Errorf("at byte %d: %w", p.at, err)
			}
			p.at += len(`b"`) + i + len(`"`)
			return b, nil
		}
	}
	return nil, p.fail(`b"…"`)
}

// word reads an element without quotes, of the form name or name(argument).
func (p *parser) word() (any, error) {
	rest := p.text[p.at:]
	end := strings.IndexAny(rest, "(), \t\r\n")
	if end < 0 {
		end = len(rest)
	}
	name := rest[:end]
	if end == len(rest) || rest[end] != '(' {
		e, ok := parsePlain(name)
		if !ok {
			return nil, p.fail("an element")
		}
		p.at += end
		return e, nil
	}
	argument, _, closed := strings.Cut(rest[end+1:], ")")
	e, ok := parseCall(name, argument)
	if !ok || !closed {
		return nil, p.fail("an element")
	}
	p.at += end + len(argument) + len("()")
	return e, nil
}

func parsePlain(s string) (any, bool) {
	switch s {
	case "nil":
		return nil, true
	case "false":
		return false, true
	case "true":
		return true, true
	}
	if len(s) == len("xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx") {
		if u, err := uuid.Parse(s); err == nil {
			return u, true
		}
	}
	if i, err := strconv.ParseInt(s, 10, 64); err == nil {
		return i, true
	}
	if u, err := strconv.ParseUint(s, 10, 64); err == nil {
		return u, true
	}
	f, ok := parseDecimal(s, 64)
	return f, ok
}

// parseDecimal reads what decimal writes. Digits alone are an integer, perhaps one too large.
func parseDecimal(s string, bits int) (float64, bool) {
	if !strings.ContainsAny(s, ".einf") {
		return 0, false
	}
	f, err := strconv.ParseFloat(s, bits)
	return f, err == nil && !math.IsNaN(f)
}

func parseCall(name, argument string) (any, bool) {
	switch name {
	case "float":
		if digits, ok := strings.CutPrefix(argument, "0x"); ok {
			u, err := strconv.ParseUint(digits, 16, 32)
			return math.Float32frombits(uint32(u)), err == nil
		}
		f, ok := parseDecimal(argument, 32)
		return float32(f), ok
	case "double":
		digits, ok := strings.CutPrefix(argument, "0x")
		u, err := strconv.ParseUint(digits, 16, 64)
		return math.Float64frombits(u), ok && err == nil
	case "versionstamp":
		return parseVersionstamp(argument)
	}
	return nil, false
}

func parseVersionstamp(s string) (v Versionstamp, ok bool) {
	stamp, user, _ := strings.Cut(s, ":")
	b, err := hex.DecodeString(stamp)
	if err != nil || len(b) != len(v.Stamp) {
		return v, false
	}
	copy(v.Stamp[:], b)
	u, err := strconv.ParseUint(user, 10, 16)
	v.User = uint16(u)
	return v, err == nil
}
