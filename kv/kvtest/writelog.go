package kvtest

import (
	"slices"

	"fdbfifo/kv"
)

// write is one mutation as it was issued: a clear of the span, or op on key. The zero op is a plain set.
type write struct {
	clear   bool
	cleared span
	key     string
	op      kv.MutationType
	value   []byte
}

// writeLog is all mutations of a transaction in order. Every question about own writes is answered by going through
// it again from the start: slow, and hard to get wrong.
type writeLog []write

// ownState is the state of one key by the log alone, without the stored value.
type ownState struct {
	known      bool    // the value does not depend on the stored one
	value      []byte  // if known; nil = absent
	pending    []write // if not known: atomic operations over the stored value
	unreadable bool    // a versionstamped value is pending
}

func (l writeLog) at(key string) ownState {
	var st ownState
	for _, w := range l {
		switch {
		case w.clear:
			if w.cleared.contains(key) {
				st = ownState{known: true}
			}
		case w.key != key || w.op == kv.SetVersionstampedKey:
		case w.op == kv.SetVersionstampedValue:
			st = ownState{known: true, unreadable: true}
		case w.op == 0:
			st = ownState{known: true, value: present(w.value), unreadable: st.unreadable}
		case st.known:
			st.value = foldAtomic(w.op, st.value, w.value)
		default:
			st.pending = append(slices.Clone(st.pending), w)
		}
	}
	return st
}

// over returns the value seen when base is stored.
func (st ownState) over(base []byte) []byte {
	if st.known {
		return st.value
	}
	for _, w := range st.pending {
		base = foldAtomic(w.op, base, w.value)
	}
	return base
}

// undecided cuts out of s the keys whose value the log decides alone: what remains becomes read conflicts.
func (l writeLog) undecided(s span) []span {
	bounds := []string{s.begin, s.end}
	for _, w := range l {
		at := w.cleared
		if !w.clear {
			at = single(w.key)
		}
		for _, b := range []string{at.begin, at.end} {
			if s.contains(b) {
				bounds = append(bounds, b)
			}
		}
	}
	slices.Sort(bounds)
	var out []span
	for i := 1; i < len(bounds); i++ {
		// Between two bounds all keys fare alike; a bound that a point write follows stands for that key.
		if !l.at(bounds[i-1]).known {
			out = append(out, span{bounds[i-1], bounds[i]})
		}
	}
	return out
}

// apply changes state as the commit does. Versionstamped keys come last: their final keys lie above all others of
// their template.
func (l writeLog) apply(state map[string][]byte, stamp [10]byte) {
	for _, w := range l {
		switch {
		case w.clear:
			for k := range state {
				if w.cleared.contains(k) {
					delete(state, k)
				}
			}
		case w.op == kv.SetVersionstampedKey:
		case w.op == kv.SetVersionstampedValue:
			state[w.key] = stamped(w.value, stamp)
		case w.op == 0:
			state[w.key] = present(w.value)
		default:
			if v := foldAtomic(w.op, state[w.key], w.value); v == nil {
				delete(state, w.key)
			} else {
				state[w.key] = v
			}
		}
	}
	for _, k := range l.stampedKeys(stamp) {
		state[k.key] = k.value
	}
}

// stampedKeys returns the sets that the versionstamped keys become.
func (l writeLog) stampedKeys(stamp [10]byte) []write {
	var out []write
	for _, w := range l {
		if w.op == kv.SetVersionstampedKey && !w.clear {
			out = append(out, write{key: string(stamped([]byte(w.key), stamp)), value: present(w.value)})
		}
	}
	return out
}

// stamped fills a template made by stampTemplate. Templates of the model are short: one offset byte is enough.
func stamped(template []byte, stamp [10]byte) []byte {
	n := len(template) - 4
	out := present(template[:n])
	copy(out[template[n]:], stamp[:])
	return out
}

// has reports whether the log holds an operation of that kind.
func (l writeLog) has(op kv.MutationType) bool {
	return slices.ContainsFunc(l, func(w write) bool { return !w.clear && w.op == op })
}
