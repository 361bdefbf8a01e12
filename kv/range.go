package kv

import "bytes"

// LastLessThan selects the last key < key.
func LastLessThan(key []byte) KeySelector { return KeySelector{Key: key} }

// LastLessOrEqual selects the last key <= key.
func LastLessOrEqual(key []byte) KeySelector { return KeySelector{Key: key, OrEqual: true} }

// FirstGreaterThan selects the first key > key.
func FirstGreaterThan(key []byte) KeySelector {
	return KeySelector{Key: key, OrEqual: true, Offset: 1}
}

// FirstGreaterOrEqual selects the first key >= key.
func FirstGreaterOrEqual(key []byte) KeySelector { return KeySelector{Key: key, Offset: 1} }

// Selectors returns r as a Range for GetRange.
func (r KeyRange) Selectors() Range {
	return Range{Begin: FirstGreaterOrEqual(r.Begin), End: FirstGreaterOrEqual(r.End)}
}

// Contains reports whether key lies in r.
func (r KeyRange) Contains(key []byte) bool {
	return bytes.Compare(r.Begin, key) <= 0 && bytes.Compare(key, r.End) < 0
}

// KeyAfter returns the key that follows key directly: key and a zero byte.
func KeyAfter(key []byte) []byte {
	k := make([]byte, len(key)+1)
	copy(k, key)
	return k
}

// SingleKey returns the range that holds key alone.
func SingleKey(key []byte) KeyRange { return KeyRange{Begin: key, End: KeyAfter(key)} }

// Strinc returns the first key that does not begin with prefix and lies behind all that do.
// A prefix of nothing but 0xff bytes has none: Strinc then returns nil.
func Strinc(prefix []byte) []byte {
	for i := len(prefix) - 1; i >= 0; i-- {
		if prefix[i] != 0xff {
			k := append([]byte(nil), prefix[:i+1]...)
			k[i]++
			return k
		}
	}
	return nil
}

// PrefixRange returns the range of all keys that begin with prefix, prefix itself included. An empty prefix stands for
// all keys: the caller must check a prefix that comes from outside before it clears the range.
func PrefixRange(prefix []byte) KeyRange {
	end := Strinc(prefix)
	if end == nil {
		end = []byte{0xff}
	}
	return KeyRange{Begin: append([]byte(nil), prefix...), End: end}
}
