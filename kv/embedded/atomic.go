package embedded

import (
	"encoding/binary"

	"fdbfifo/kv"
)

// The mutations that are not public atomic operations, with FoundationDB's codes.
const (
	opSet   kv.MutationType = 0
	opClear kv.MutationType = 1 // of a range: key is its begin, value its end
)

// mutation is one write as the store gets it. Versionstamps are filled in before.
type mutation struct {
	kind       kv.MutationType
	key, value string
}

// value is a value or the absence of one.
type value struct {
	data    string
	present bool
}

func isAtomic(kind kv.MutationType) bool {
	switch kind {
	case kv.Add, kv.BitAnd, kv.BitOr, kv.BitXor, kv.AppendIfFits, kv.Max, kv.Min, kv.SetVersionstampedKey,
		kv.SetVersionstampedValue, kv.ByteMin, kv.ByteMax, kv.CompareAndClear:
		return true
	}
	return false
}

// fold applies an atomic operation to a value (FoundationDB's Atomic.h, with And and Min in their second version).
func fold(kind kv.MutationType, old value, operand string) value {
	switch kind {
	case kv.BitAnd, kv.Min, kv.ByteMin, kv.ByteMax:
		if !old.present {
			return value{operand, true}
		}
	case kv.CompareAndClear:
		if !old.present || old.data == operand {
			return value{}
		}
		return old
	}
	return value{foldBytes(kind, old.data, operand), true}
}

func foldBytes(kind kv.MutationType, old, operand string) string {
	switch kind {
	case kv.AppendIfFits:
		if len(old)+len(operand) > kv.MaxValueSize {
			return old
		}
		return old + operand
	case kv.ByteMin:
		return min(old, operand)
	case kv.ByteMax:
		return max(old, operand)
	case kv.Max:
		if compareLittleEndian(resized(old, len(operand)), operand) > 0 {
			return resized(old, len(operand))
		}
		return operand
	case kv.Min:
		if compareLittleEndian(resized(old, len(operand)), operand) < 0 {
			return resized(old, len(operand))
		}
		return operand
	}
	out := []byte(operand)
	carry := 0
	for i := range out {
		var b byte
		if i < len(old) {
			b = old[i]
		}
		switch kind {
		case kv.Add:
			carry += int(b) + int(out[i])
			out[i] = byte(carry)
			carry >>= 8
		case kv.BitAnd:
			out[i] &= b
		case kv.BitOr:
			out[i] |= b
		case kv.BitXor:
			out[i] ^= b
		}
	}
	return string(out)
}

// resized cuts s to n bytes or extends it with zeros.
func resized(s string, n int) string {
	if len(s) >= n {
		return s[:n]
	}
	return s + string(make([]byte, n-len(s)))
}

// compareLittleEndian compares two unsigned numbers of equal length.
func compareLittleEndian(a, b string) int {
	for i := len(a) - 1; i >= 0; i-- {
		if a[i] != b[i] {
			return int(a[i]) - int(b[i])
		}
	}
	return 0
}

const (
	stampSize  = 10
	offsetSize = 4 // the little-endian offset behind a versionstamp template
)

// stampOffset returns where in template the versionstamp goes; ok is false if it would not fit.
func stampOffset(template string) (offset int, ok bool) {
	n := len(template) - offsetSize
	if n < 0 {
		return 0, false
	}
	o := int32(binary.LittleEndian.Uint32([]byte(template[n:])))
	return int(o), o >= 0 && int64(o)+stampSize <= int64(n)
}

func makeStamp(version int64, index uint16) (s [stampSize]byte) {
	binary.BigEndian.PutUint64(s[:8], uint64(version))
	binary.BigEndian.PutUint16(s[8:], index)
	return s
}

// stamped returns template without its offset and with the stamp in place.
func stamped(template string, stamp [stampSize]byte) string {
	offset, ok := stampOffset(template)
	b := []byte(template[:len(template)-offsetSize])
	if ok {
		copy(b[offset:], stamp[:])
	}
	return string(b)
}
