package embedded

import "fdbfifo/kv"

// op is one pending operation on a key. A Set of an absent value stands for a clear.
type op struct {
	kind kv.MutationType
	arg  value
}

// opStack holds a key's operations in order. The first is kept in place: nearly always there is just one.
type opStack struct {
	n     int
	first op
	more  []op
}

func (s *opStack) empty() bool { return s.n == 0 }

func (s *opStack) at(i int) op {
	if i == 0 {
		return s.first
	}
	return s.more[i-1]
}

func (s *opStack) push(m op) {
	if s.n == 0 {
		s.first = m
	} else {
		s.more = append(s.more, m)
	}
	s.n++
}

func (s *opStack) replaceTop(m op) {
	if s.n == 1 {
		s.first = m
	} else {
		s.more[s.n-2] = m
	}
}

func (s *opStack) reset(m op) { *s = opStack{n: 1, first: m} }

// dependent reports whether the key's value depends on the stored value.
func (s *opStack) dependent() bool {
	kind := s.first.kind
	return s.n > 0 && kind != opSet && kind != kv.SetVersionstampedKey && kind != kv.SetVersionstampedValue
}

// coalesce adds m to a stack that is not empty, and joins it with the top where that gives the same result.
func (s *opStack) coalesce(m op) {
	top := s.at(s.n - 1)
	switch {
	case m.kind == opSet:
		s.replaceTop(m)
	case top.kind == opSet:
		s.replaceTop(op{opSet, fold(m.kind, top.arg, m.arg.data)})
	case top.kind == m.kind && m.kind != kv.CompareAndClear &&
		(associative(m.kind) || len(top.arg.data) == len(m.arg.data)):
		s.replaceTop(op{m.kind, fold(m.kind, top.arg, m.arg.data)})
	default:
		s.push(m)
	}
}

// over returns the key's value if the database holds base.
func (s *opStack) over(base value) value {
	for i := range s.n {
		m := s.at(i)
		if m.kind == opSet {
			base = m.arg
		} else {
			base = fold(m.kind, base, m.arg.data)
		}
	}
	return base
}

// associative reports whether two operands of different lengths may be joined. FoundationDB's mask.
func associative(kind kv.MutationType) bool {
	switch kind {
	case kv.Add, kv.BitOr, kv.BitXor, kv.Max, kv.Min, kv.SetVersionstampedKey, kv.SetVersionstampedValue:
		return false
	case kv.BitAnd, kv.AppendIfFits, kv.ByteMin, kv.ByteMax, kv.CompareAndClear:
	}
	return true
}
