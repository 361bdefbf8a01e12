package embedded

import (
	"slices"
	"strings"

	"fdbfifo/kv"
)

// Inside the engine keys and values are strings: immutable by type, so they are shared freely between the
// overlay, the store, its snapshots and the conflict history, and copied only where a caller hands them in or
// takes them out.

// maxKey is the end of the keys a transaction may touch; legal as the end of a range.
const maxKey = "\xff"

// keyRange is the half-open range [begin, end).
type keyRange struct{ begin, end string }

func (r keyRange) empty() bool { return r.begin >= r.end }

// shortBound cuts a bound that is longer than any key: no key lies between the whole and the cut one.
func shortBound(bound string) string { return bound[:min(len(bound), maxReadKey+1)] }

// padded copies key with a zero byte behind it: the whole is the key's successor, all but the last byte the key.
func padded(key []byte) string {
	var b strings.Builder
	b.Grow(len(key) + 1)
	b.Write(key)
	b.WriteByte(0)
	return b.String()
}

// paddedPair copies two keys, each with a zero byte behind it, in one piece.
func paddedPair(a, b []byte) (paddedA, paddedB string) {
	var s strings.Builder
	s.Grow(len(a) + len(b) + 2)
	s.Write(a)
	s.WriteByte(0)
	s.Write(b)
	s.WriteByte(0)
	return s.String()[:len(a)+1], s.String()[len(a)+1:]
}

// singleKey is the range of one key, given padded.
func singleKey(padded string) keyRange { return keyRange{padded[:len(padded)-1], padded} }

// unpadded is the range between two keys that are given padded.
func unpadded(begin, end string) keyRange { return keyRange{begin[:len(begin)-1], end[:len(end)-1]} }

// isSingle reports whether r holds one key only.
func (r keyRange) isSingle() bool {
	n := len(r.begin)
	return len(r.end) == n+1 && r.end[n] == 0 && r.end[:n] == r.begin
}

// merge sorts ranges and joins those that overlap or touch, in place.
func merge(ranges []keyRange) []keyRange {
	if len(ranges) < 2 {
		return ranges
	}
	byBegin := func(a, b keyRange) int { return strings.Compare(a.begin, b.begin) }
	if !slices.IsSortedFunc(ranges, byBegin) {
		slices.SortFunc(ranges, byBegin)
	}
	out := ranges[:1]
	for _, r := range ranges[1:] {
		last := &out[len(out)-1]
		if r.begin > last.end {
			out = append(out, r)
			continue
		}
		if r.end > last.end {
			last.end = r.end
		}
	}
	return out
}

func exported(ranges []keyRange) []kv.KeyRange {
	out := make([]kv.KeyRange, len(ranges))
	for i, r := range ranges {
		out[i] = kv.KeyRange{Begin: []byte(r.begin), End: []byte(r.end)}
	}
	return out
}
