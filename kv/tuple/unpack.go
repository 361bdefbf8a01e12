package tuple

import "fmt"

// Unpack decodes all of b. Integers become int64, or uint64 above its range; bytes and text never share memory
// with b. An error wraps ErrMalformed. What Unpack takes, Pack gives back byte for byte.
func Unpack(b []byte) (Tuple, error) {
	t := Tuple{}
	for len(b) > 0 {
		e, rest, err := decodeElement(b, 0)
		if err != nil {
			return nil, fmt.Errorf("element %d: %w", len(t), err)
		}
		t, b = append(t, e), rest
	}
	return t, nil
}

func decodeElement(b []byte, depth int) (e any, rest []byte, err error) {
	switch code := b[0]; code {
	case codeNil:
		return nil, b[1:], nil
	case codeBytes:
		return boxed(DecodeBytes(b))
	case codeString:
		return boxed(DecodeString(b))
	case codeNested:
		return boxed(decodeNested(b[1:], depth+1))
	case codeFloat:
		return boxed(DecodeFloat(b))
	case codeDouble:
		return boxed(DecodeDouble(b))
	case codeFalse, codeTrue:
		return boxed(DecodeBool(b))
	case codeUUID:
		return boxed(DecodeUUID(b))
	case codeVersionstamp:
		return boxed(DecodeVersionstamp(b))
	case codeIntZero + maxIntLen:
		// Eight bytes are the only length that can be beyond int64.
		u, rest, err := DecodeUint(b)
		if err == nil && int64(u) >= 0 {
			return int64(u), rest, nil
		}
		return u, rest, err
	default:
		if isInteger(code) {
			return boxed(DecodeInt(b))
		}
		return nil, nil, fmt.Errorf("%w: unknown type code %02x", ErrMalformed, code)
	}
}

func boxed[T any](v T, rest []byte, err error) (any, []byte, error) { return v, rest, err }

// decodeNested decodes the elements of a nested tuple, b being what follows its code.
func decodeNested(b []byte, depth int) (Tuple, []byte, error) {
	if depth > MaxDepth {
		return nil, nil, fmt.Errorf("%w: nested deeper than %d", ErrMalformed, MaxDepth)
	}
	t := Tuple{}
	for len(b) > 0 {
		if b[0] == codeNil {
			if len(b) == 1 || b[1] != escape {
				return t, b[1:], nil
			}
			t, b = append(t, nil), b[2:]
			continue
		}
		e, rest, err := decodeElement(b, depth)
		if err != nil {
			return nil, nil, err
		}
		t, b = append(t, e), rest
	}
	return nil, nil, truncated(codeNested)
}
