package tuple

import (
	"encoding/hex"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/google/uuid"
)

// Format returns t as people write it, and as Parse reads it:
//
//	("item", "ATL", 123, 6ba7b810-9dad-11d1-80b4-00c04fd430c8, ("nested", nil))
//
// Strings are quoted as in Go; bytes are b"…" with the escapes of Printable and \"; a double has a point, an
// exponent or is inf; a float is float(1.5); a NaN is its bits, double(0x7ff8000000000001) or float(0x7fc00000);
// a versionstamp is versionstamp(stamp in hex:user).
func Format(t Tuple) string {
	var s strings.Builder
	format(&s, t)
	return s.String()
}

// String returns Format(t).
func (t Tuple) String() string { return Format(t) }

func format(s *strings.Builder, t Tuple) {
	s.WriteByte('(')
	for i, e := range t {
		if i > 0 {
			s.WriteString(", ")
		}
		formatElement(s, e)
	}
	s.WriteByte(')')
}

func formatElement(s *strings.Builder, e any) {
	switch e := e.(type) {
	case nil:
		s.WriteString("nil")
	case []byte:
		s.WriteString(`b"`)
		s.WriteString(strings.ReplaceAll(Printable(e), `"`, `\"`))
		s.WriteByte('"')
	case string:
		s.WriteString(strconv.Quote(e))
	case int, int64, uint64, bool:
		fmt.Fprint(s, e)
	case float32:
		if e != e {
			fmt.Fprintf(s, "float(0x%08x)", math.Float32bits(e))
		} else {
			fmt.Fprintf(s, "float(%s)", decimal(float64(e), 32))
		}
	case float64:
		if e != e {
			fmt.Fprintf(s, "double(0x%016x)", math.Float64bits(e))
		} else {
			s.WriteString(decimal(e, 64))
		}
	case uuid.UUID:
		s.WriteString(e.String())
	case Versionstamp:
		s.WriteString(e.String())
	case Tuple:
		format(s, e)
	default:
		fmt.Fprintf(s, "<no element: %T>", e)
	}
}

// decimal returns the shortest text of f that cannot be taken for an integer.
func decimal(f float64, bits int) string {
	switch {
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	}
	s := strconv.FormatFloat(f, 'g', -1, bits)
	if !strings.ContainsAny(s, ".e") {
		s += ".0"
	}
	return s
}

// String returns the form that Format gives v.
func (v Versionstamp) String() string {
	return fmt.Sprintf("versionstamp(%s:%d)", hex.EncodeToString(v.Stamp[:]), v.User)
}
