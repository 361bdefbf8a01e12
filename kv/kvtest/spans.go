package kvtest

import (
	"slices"
	"strings"

	"fdbfifo/kv"
)

// span is the half-open range of keys begin <= key < end, keys relative to the run's prefix.
type span struct{ begin, end string }

func single(key string) span { return span{key, key + "\x00"} }

func (s span) contains(key string) bool { return s.begin <= key && key < s.end }

func (s span) intersects(o span) bool { return s.begin < o.end && o.begin < s.end }

// merged returns the canonical form of the union: sorted, no two spans touch, none is empty.
func merged(spans []span) []span {
	sorted := slices.DeleteFunc(slices.Clone(spans), func(s span) bool { return s.begin >= s.end })
	slices.SortFunc(sorted, func(a, b span) int { return strings.Compare(a.begin, b.begin) })
	out := []span{}
	for _, s := range sorted {
		if n := len(out); n > 0 && s.begin <= out[n-1].end {
			out[n-1].end = max(out[n-1].end, s.end)
			continue
		}
		out = append(out, s)
	}
	return out
}

// without cuts hole out of spans.
func without(spans []span, hole span) []span {
	var out []span
	for _, s := range spans {
		out = append(out, span{s.begin, min(s.end, hole.begin)}, span{max(s.begin, hole.end), s.end})
	}
	return merged(out)
}

// afterAll stands for the end of the prefix in relative keys.
const afterAll = "\xff\xff\xff\xff"

// clip takes an engine's ranges into relative keys; what lies outside the prefix is dropped.
func clip(ranges []kv.KeyRange, prefix []byte) []span {
	p := string(prefix)
	end := string(kv.Strinc(prefix))
	var out []span
	for _, r := range ranges {
		b, e := max(string(r.Begin), p), min(string(r.End), end)
		if b >= e {
			continue
		}
		s := span{strings.TrimPrefix(b, p), afterAll}
		if e != end {
			s.end = strings.TrimPrefix(e, p)
		}
		out = append(out, s)
	}
	return out
}
