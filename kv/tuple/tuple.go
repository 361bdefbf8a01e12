// Package tuple is FoundationDB's tuple encoding. It packs elements into bytes that sort as the elements do. The bytes
// are the same as those of the official bindings (design/tuple.md of FoundationDB 7.3).
//
// Use Tuple with Pack and Unpack for any shape. Use the Append and Decode functions for keys of a known shape: they
// allocate only their results. Use Format and Parse for text that people read.
//
//	element       type code    Go type
//	nil           00           nil
//	bytes         01           []byte
//	string        02           string
//	nested tuple  05           Tuple
//	integer       0c … 1c      int64, or uint64 above its range; int is taken too
//	float         20           float32
//	double        21           float64
//	false, true   26, 27       bool
//	UUID          30           uuid.UUID
//	versionstamp  33           Versionstamp
//
// Elements sort by type code first, so a float never sorts among the integers.
package tuple

import (
	"errors"
	"fmt"

	"github.com/google/uuid"
)

// The type codes of the encoding. An integer's code is intZero plus its length in bytes, or minus if negative.
const (
	codeNil          = 0x00
	codeBytes        = 0x01
	codeString       = 0x02
	codeNested       = 0x05
	codeIntZero      = 0x14
	codeFloat        = 0x20
	codeDouble       = 0x21
	codeFalse        = 0x26
	codeTrue         = 0x27
	codeUUID         = 0x30
	codeVersionstamp = 0x33

	maxIntLen = 8    // bytes of the longest integer, without its code
	escape    = 0xff // stands behind a zero byte that does not end its element
	nestedEnd = 0x00
)

// MaxDepth is how deep tuples may be nested, so that garbage cannot exhaust the stack.
const MaxDepth = 100

// ErrMalformed is wrapped by every error about bytes or text that are not a tuple of this package's types.
var ErrMalformed = errors.New("tuple: malformed")

// Tuple is a list of elements of the types in the package comment.
type Tuple []any

// Pack returns the encoding of t, newly allocated. An element of another type, or nesting beyond MaxDepth, is a
// programming error and panics. An incomplete Versionstamp is written as it stands; see PackWithVersionstamp.
func (t Tuple) Pack() []byte { return Append(make([]byte, 0, 64), t...) }

// Append appends the encoding of elems to dst. It panics where Pack does.
func Append(dst []byte, elems ...any) []byte {
	p := packer{buf: dst}
	p.elements(elems)
	return p.buf
}

// packer encodes a tuple and remembers its incomplete versionstamps.
type packer struct {
	buf        []byte
	depth      int
	incomplete int // how many
	stampAt    int // where in buf the stamp of the last of them begins
}

func (p *packer) elements(elems []any) {
	for _, e := range elems {
		p.element(e)
	}
}

func (p *packer) element(e any) {
	switch e := e.(type) {
	case nil:
		p.buf = AppendNil(p.buf)
		if p.depth > 0 {
			p.buf = append(p.buf, escape) // a bare zero byte ends a nested tuple
		}
	case []byte:
		p.buf = AppendBytes(p.buf, e)
	case string:
		p.buf = AppendString(p.buf, e)
	case int:
		p.buf = AppendInt(p.buf, int64(e))
	case int64:
		p.buf = AppendInt(p.buf, e)
	case uint64:
		p.buf = AppendUint(p.buf, e)
	case float32:
		p.buf = AppendFloat(p.buf, e)
	case float64:
		p.buf = AppendDouble(p.buf, e)
	case bool:
		p.buf = AppendBool(p.buf, e)
	case uuid.UUID:
		p.buf = AppendUUID(p.buf, e)
	case Versionstamp:
		if !e.Complete() {
			p.incomplete++
			p.stampAt = len(p.buf) + 1
		}
		p.buf = AppendVersionstamp(p.buf, e)
	case Tuple:
		p.nested(e)
	default:
		panic(fmt.Sprintf("tuple: cannot encode %v of type %T", e, e))
	}
}

func (p *packer) nested(t Tuple) {
	p.depth++
	if p.depth > MaxDepth {
		panic(fmt.Sprintf("tuple: nested deeper than %d", MaxDepth))
	}
	p.buf = append(p.buf, codeNested)
	p.elements(t)
	p.buf = append(p.buf, nestedEnd)
	p.depth--
}
