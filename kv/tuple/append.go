package tuple

import (
	"bytes"
	"encoding/binary"
	"math"
	"math/bits"
	"strings"

	"github.com/google/uuid"
)

// AppendNil appends a nil element.
func AppendNil(dst []byte) []byte { return append(dst, codeNil) }

// AppendBytes appends b as a byte string.
func AppendBytes(dst, b []byte) []byte {
	dst = append(dst, codeBytes)
	for {
		for len(b) > 0 && b[0] == 0x00 {
			dst, b = append(dst, 0x00, escape), b[1:]
		}
		i := bytes.IndexByte(b, 0x00)
		if i < 0 {
			return append(append(dst, b...), 0x00)
		}
		dst, b = append(dst, b[:i]...), b[i:]
	}
}

// AppendString appends s as a Unicode string. Its bytes are kept as they are, valid UTF-8 or not; other bindings
// may refuse to decode one that is not valid.
func AppendString(dst []byte, s string) []byte {
	dst = append(dst, codeString)
	for {
		for len(s) > 0 && s[0] == 0x00 {
			dst, s = append(dst, 0x00, escape), s[1:]
		}
		i := strings.IndexByte(s, 0x00)
		if i < 0 {
			return append(append(dst, s...), 0x00)
		}
		dst, s = append(dst, s[:i]...), s[i:]
	}
}

// AppendInt appends v in as few bytes as hold it.
func AppendInt(dst []byte, v int64) []byte {
	if v >= 0 {
		return AppendUint(dst, uint64(v))
	}
	magnitude := -uint64(v)
	n := byteLen(magnitude)
	return appendTail(append(dst, byte(codeIntZero-n)), ^magnitude, n)
}

// AppendUint appends v in as few bytes as hold it.
func AppendUint(dst []byte, v uint64) []byte {
	n := byteLen(v)
	return appendTail(append(dst, byte(codeIntZero+n)), v, n)
}

// byteLen is the number of bytes that hold v: 0 for 0.
func byteLen(v uint64) int { return (bits.Len64(v) + 7) / 8 }

// appendTail appends the n low bytes of v, the highest first.
func appendTail(dst []byte, v uint64, n int) []byte {
	var b [maxIntLen]byte
	binary.BigEndian.PutUint64(b[:], v)
	return append(dst, b[maxIntLen-n:]...)
}

// AppendFloat appends f as a 32-bit float, a NaN with its bits.
func AppendFloat(dst []byte, f float32) []byte {
	u := math.Float32bits(f)
	if u>>31 == 1 {
		u = ^u
	} else {
		u |= 1 << 31
	}
	return binary.BigEndian.AppendUint32(append(dst, codeFloat), u)
}

// AppendDouble appends f as a 64-bit float, a NaN with its bits.
func AppendDouble(dst []byte, f float64) []byte {
	u := math.Float64bits(f)
	if u>>63 == 1 {
		u = ^u
	} else {
		u |= 1 << 63
	}
	return binary.BigEndian.AppendUint64(append(dst, codeDouble), u)
}

// AppendBool appends v. False sorts before true.
func AppendBool(dst []byte, v bool) []byte {
	if v {
		return append(dst, codeTrue)
	}
	return append(dst, codeFalse)
}

// AppendUUID appends u, which sorts by its bytes.
func AppendUUID(dst []byte, u uuid.UUID) []byte {
	return append(append(dst, codeUUID), u[:]...)
}

// AppendVersionstamp appends v as it stands, complete or not.
func AppendVersionstamp(dst []byte, v Versionstamp) []byte {
	dst = append(append(dst, codeVersionstamp), v.Stamp[:]...)
	return binary.BigEndian.AppendUint16(dst, v.User)
}

// AppendNested appends a nested tuple of the elements that the function appends. Not for nil, which has another form
// within a nested tuple: use Append with a Tuple.
func AppendNested(dst []byte, elements func(dst []byte) []byte) []byte {
	return append(elements(append(dst, codeNested)), nestedEnd)
}
