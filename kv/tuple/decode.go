package tuple

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"

	"github.com/google/uuid"
)

// The Decode functions decode the first element of b, which must be of their type. rest is the bytes after it. The
// other results share no memory with b. The functions accept only the encoding that Append writes: an integer with
// leading zero bytes is malformed. So a key that is decoded and built again is the same key.

// DecodeString decodes a Unicode string. Its bytes are not checked to be UTF-8.
func DecodeString(b []byte) (s string, rest []byte, err error) {
	body, escapes, rest, err := delimited(b, codeString)
	if err != nil {
		return "", nil, err
	}
	if escapes == 0 {
		return string(body), rest, nil
	}
	return string(unescape(body, escapes)), rest, nil
}

// DecodeBytes decodes a byte string; it is never nil.
func DecodeBytes(b []byte) (v, rest []byte, err error) {
	body, escapes, rest, err := delimited(b, codeBytes)
	if err != nil {
		return nil, nil, err
	}
	return unescape(body, escapes), rest, nil
}

// delimited finds the body of a byte or Unicode string, without code and end, and how many zero bytes in it are
// escaped.
func delimited(b []byte, code byte) (body []byte, escapes int, rest []byte, err error) {
	if err := expect(b, code); err != nil {
		return nil, 0, nil, err
	}
	b = b[1:]
	for end := 0; ; {
		if end == len(b) || b[end] != 0x00 {
			i := bytes.IndexByte(b[end:], 0x00)
			if i < 0 {
				return nil, 0, nil, truncated(code)
			}
			end += i
		}
		if end+1 == len(b) || b[end+1] != escape {
			return b[:end], escapes, b[end+1:], nil
		}
		escapes++
		end += 2
	}
}

// unescape returns a copy of body without the escape bytes behind its zero bytes.
func unescape(body []byte, escapes int) []byte {
	v := make([]byte, 0, len(body)-escapes)
	for {
		for len(body) > 0 && body[0] == 0x00 {
			v, body = append(v, 0x00), body[2:]
		}
		i := bytes.IndexByte(body, 0x00)
		if i < 0 {
			return append(v, body...)
		}
		v, body = append(v, body[:i]...), body[i:]
	}
}

// DecodeInt decodes an integer of int64's range.
func DecodeInt(b []byte) (v int64, rest []byte, err error) {
	magnitude, negative, rest, err := integer(b)
	switch {
	case err != nil:
		return 0, nil, err
	case negative:
		return -int64(magnitude), rest, nil
	case magnitude > math.MaxInt64:
		return 0, nil, fmt.Errorf("%w: %d is above the range of int64", ErrMalformed, magnitude)
	}
	return int64(magnitude), rest, nil
}

// DecodeUint decodes an integer of uint64's range.
func DecodeUint(b []byte) (v uint64, rest []byte, err error) {
	magnitude, negative, rest, err := integer(b)
	switch {
	case err != nil:
		return 0, nil, err
	case negative:
		return 0, nil, fmt.Errorf("%w: -%d is below zero", ErrMalformed, magnitude)
	}
	return magnitude, rest, nil
}

// integer decodes any integer of 8 bytes. The magnitude of a negative one is at most 1<<63.
func integer(b []byte) (magnitude uint64, negative bool, rest []byte, err error) {
	if len(b) == 0 || !isInteger(b[0]) {
		return 0, false, nil, unexpected(b, "an integer")
	}
	n := int(b[0]) - codeIntZero
	if n < 0 {
		n, negative = -n, true
	}
	if len(b) < 1+n {
		return 0, false, nil, truncated(b[0])
	}
	for _, c := range b[1 : 1+n] {
		if negative {
			c = ^c
		}
		magnitude = magnitude<<8 | uint64(c)
	}
	if byteLen(magnitude) != n {
		return 0, false, nil, fmt.Errorf("%w: integer with a leading zero byte", ErrMalformed)
	}
	if negative && magnitude > 1<<63 {
		return 0, false, nil, fmt.Errorf("%w: -%d is below the range of int64", ErrMalformed, magnitude)
	}
	return magnitude, negative, b[1+n:], nil
}

func isInteger(code byte) bool {
	return codeIntZero-maxIntLen <= code && code <= codeIntZero+maxIntLen
}

// DecodeFloat decodes a 32-bit float.
func DecodeFloat(b []byte) (f float32, rest []byte, err error) {
	body, rest, err := fixed(b, codeFloat, 4)
	if err != nil {
		return 0, nil, err
	}
	u := binary.BigEndian.Uint32(body)
	if u>>31 == 0 {
		u = ^u
	} else {
		u &^= 1 << 31
	}
	return math.Float32frombits(u), rest, nil
}

// DecodeDouble decodes a 64-bit float.
func DecodeDouble(b []byte) (f float64, rest []byte, err error) {
	body, rest, err := fixed(b, codeDouble, 8)
	if err != nil {
		return 0, nil, err
	}
	u := binary.BigEndian.Uint64(body)
	if u>>63 == 0 {
		u = ^u
	} else {
		u &^= 1 << 63
	}
	return math.Float64frombits(u), rest, nil
}

// DecodeBool decodes false or true.
func DecodeBool(b []byte) (v bool, rest []byte, err error) {
	if len(b) == 0 || b[0] != codeFalse && b[0] != codeTrue {
		return false, nil, unexpected(b, "false or true")
	}
	return b[0] == codeTrue, b[1:], nil
}

// DecodeUUID decodes a UUID.
func DecodeUUID(b []byte) (u uuid.UUID, rest []byte, err error) {
	body, rest, err := fixed(b, codeUUID, len(u))
	if err != nil {
		return uuid.UUID{}, nil, err
	}
	return uuid.UUID(body), rest, nil
}

// DecodeVersionstamp decodes a versionstamp.
func DecodeVersionstamp(b []byte) (v Versionstamp, rest []byte, err error) {
	body, rest, err := fixed(b, codeVersionstamp, versionstampLen)
	if err != nil {
		return Versionstamp{}, nil, err
	}
	copy(v.Stamp[:], body)
	v.User = binary.BigEndian.Uint16(body[len(v.Stamp):])
	return v, rest, nil
}

// fixed takes the n bytes behind code.
func fixed(b []byte, code byte, n int) (body, rest []byte, err error) {
	if err := expect(b, code); err != nil {
		return nil, nil, err
	}
	if len(b) < 1+n {
		return nil, nil, truncated(code)
	}
	return b[1 : 1+n], b[1+n:], nil
}

func expect(b []byte, code byte) error {
	if len(b) == 0 || b[0] != code {
		return unexpected(b, fmt.Sprintf("type code %02x", code))
	}
	return nil
}

func unexpected(b []byte, want string) error {
	if len(b) == 0 {
		return fmt.Errorf("%w: nothing left, want %s", ErrMalformed, want)
	}
	return fmt.Errorf("%w: type code %02x, want %s", ErrMalformed, b[0], want)
}

func truncated(code byte) error {
	return fmt.Errorf("%w: element of type code %02x is cut off", ErrMalformed, code)
}
