package linear

import "math/bits"

// set is a set of messages, by their rank: the place of their key among all of the history. It is a string so that it is
// never changed and can be compared; it has no trailing zero bytes.
type set string

func setOf(ranks ...int) set {
	most := -1
	for _, r := range ranks {
		most = max(most, r)
	}
	b := make([]byte, most/8+1)
	for _, r := range ranks {
		b[r/8] |= 1 << (r % 8)
	}
	return trim(b)
}

func trim(b []byte) set {
	n := len(b)
	for n > 0 && b[n-1] == 0 {
		n--
	}
	return set(b[:n])
}

func (s set) has(r int) bool { return r/8 < len(s) && s[r/8]&(1<<(r%8)) != 0 }

// holds reports whether all of t is in s.
func (s set) holds(t set) bool { return t.without(s) == "" }

func (s set) and(t set) set {
	b := []byte(s[:min(len(s), len(t))])
	for i := range b {
		b[i] &= t[i]
	}
	return trim(b)
}

func (s set) with(t set) set {
	b := make([]byte, max(len(s), len(t)))
	copy(b, s)
	for i := range len(t) {
		b[i] |= t[i]
	}
	return trim(b)
}

func (s set) without(t set) set {
	b := []byte(s)
	for i := range min(len(s), len(t)) {
		b[i] &^= t[i]
	}
	return trim(b)
}

// first is the lowest rank, or -1.
func (s set) first() int {
	for i := range len(s) {
		if s[i] != 0 {
			return 8*i + bits.TrailingZeros8(s[i])
		}
	}
	return -1
}

// last is the highest rank, or -1.
func (s set) last() int {
	if s == "" {
		return -1
	}
	return 8*len(s) - 1 - bits.LeadingZeros8(s[len(s)-1])
}

// below is what of s stands before r.
func (s set) below(r int) set {
	b := []byte(s[:min(len(s), r/8+1)])
	if r/8 < len(b) {
		b[r/8] &= 1<<(r%8) - 1
	}
	return trim(b)
}

// ranks are those of s, in order.
func (s set) ranks() []int {
	var all []int
	for r := range 8 * len(s) {
		if s.has(r) {
			all = append(all, r)
		}
	}
	return all
}
