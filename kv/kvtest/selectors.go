package kvtest

import (
	"fmt"
	"sort"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
)

// The exhaustive tests put fences around the keys under test: more keys on each side than any offset reaches, so
// that every selector resolves inside the prefix also on a shared database.
const fence = 9

func fences() []string {
	var keys []string
	for i := range fence {
		keys = append(keys, fmt.Sprintf("0-%d", i), fmt.Sprintf("z-%d", i))
	}
	return keys
}

// fenced commits the fences and keys; each key's value is the key.
func (s *space) fenced(keys ...string) {
	s.update(func(tx kv.Tx) {
		for _, k := range append(fences(), keys...) {
			tx.Set(s.key(k), []byte(k))
		}
	})
}

// view is what a transaction should see: short keys, sorted. It resolves selectors by counting.
type view []string

func newView(keys ...string) view {
	v := append(view(fences()), keys...)
	sort.Strings(v)
	return v
}

// index returns the place in v of the key that the selector names.
func (v view) index(key string, orEqual bool, offset int) int {
	n := sort.SearchStrings(v, key)
	if orEqual && n < len(v) && v[n] == key {
		n++
	}
	return n - 1 + offset
}

func (v view) at(key string, orEqual bool, offset int) string {
	return v[v.index(key, orEqual, offset)]
}

func selectors(u *suite) {
	// Bases are keys present in one state and absent in another, neighbours of both, and a prefix of others.
	bases := []string{"", "a", "a\x00", "b", "ba", "c", "d", "e", "e\x00", "f", "g"}
	bases[0] = "1" // above the lower fence, below every key
	for _, c := range []struct {
		name, writes string
		want         view
	}{
		{"stored keys", "", newView("a", "c", "d", "f")},
		{"own sets between stored keys", "set b; set e; set g", newView("a", "b", "c", "d", "e", "f", "g")},
		{"own clears of stored keys", "clear a; clear d", newView("c", "f")},
		{"an own range clear", "clearrange b e", newView("a", "f")},
		{"own sets inside an own range clear", "clearrange a g; set ba; set e", newView("ba", "e")},
		{"pending atomics on stored and absent keys", "add a; add b; clear c; add c",
			newView("a", "b", "c", "d", "f")},
	} {
		for _, snapshot := range []bool{false, true} {
			name := c.name
			if snapshot {
				name += ", snapshot"
			}
			u.promise("every selector resolves over "+name, func(s *space) {
				s.fenced("a", "c", "d", "f")
				tx := s.begin()
				require.NoError(s.T, s.run(tx, c.writes))
				read := kv.ReadTx(tx)
				if snapshot {
					read = tx.Snapshot()
				}
				s.everySelector(read, bases, c.want.at)
			})
		}
	}
	vanishedKeys(u, bases)
	u.promise("a selector before the first key resolves to the empty key", func(s *space) {
		for _, sel := range []kv.KeySelector{kv.LastLessThan(nil), {Key: []byte{}, Offset: -5}} {
			require.Empty(s.T, wait(s, s.begin().GetKey(sel)))
		}
	})
	u.promise("a selector after the last key resolves to \\xff", func(s *space) {
		for _, sel := range []kv.KeySelector{kv.FirstGreaterOrEqual([]byte("\xff")), {Key: []byte("\xff"), Offset: 7}} {
			require.Equal(s.T, []byte("\xff"), wait(s, s.begin().GetKey(sel)))
		}
	})
}

// vanishedKeys: a selector counts a key that the transaction's own compare-and-clear removed, or found absent, but does
// not stop there. FoundationDB's client walks in this way.
func vanishedKeys(u *suite, bases []string) {
	write := func(s *space, tx kv.Tx) {
		tx.Atomic(kv.CompareAndClear, s.key("c"), []byte("c"))
		tx.Atomic(kv.CompareAndClear, s.key("ca"), []byte("never"))
	}
	for _, snapshot := range []bool{false, true} {
		name := "a selector counts keys that an own compare-and-clear removed, and stops at none"
		if snapshot {
			name += ", snapshot"
		}
		u.promise(name, func(s *space) {
			s.fenced("a", "c", "d", "f")
			tx := s.begin()
			write(s, tx)
			read := kv.ReadTx(tx)
			if snapshot {
				read = tx.Snapshot()
			}
			walked := newView("a", "c", "ca", "d", "f")
			s.everySelector(read, bases, func(key string, orEqual bool, offset int) string {
				i, step := walked.index(key, orEqual, offset), 1
				if offset <= 0 {
					step = -1
				}
				for walked[i] == "c" || walked[i] == "ca" {
					i += step
				}
				return walked[i]
			})
		})
	}
	u.promise("a range may begin at a key that an own compare-and-clear removed", func(s *space) {
		s.set("a", "a", "c", "c", "d", "d")
		tx := s.begin()
		write(s, tx)
		r := kv.Range{Begin: kv.LastLessThan(s.key("ca")), End: kv.FirstGreaterOrEqual(s.key("z"))}
		require.Equal(s.T, []string{"d=d"}, s.shownRows(wait(s, tx.GetRange(r, kv.RangeOptions{}))))
	})
}

// everySelector starts all reads together and compares each with want.
func (s *space) everySelector(read kv.ReadTx, bases []string, want func(key string, orEqual bool, offset int) string) {
	type probe struct {
		sel    kv.KeySelector
		expect string
		got    kv.Future[[]byte]
	}
	var probes []probe
	for _, base := range bases {
		for _, orEqual := range []bool{false, true} {
			for offset := -6; offset <= 6; offset++ {
				sel := kv.KeySelector{Key: s.key(base), OrEqual: orEqual, Offset: offset}
				probes = append(probes, probe{sel, want(base, orEqual, offset), read.GetKey(sel)})
			}
		}
	}
	for _, p := range probes {
		require.Equal(s.T, p.expect, s.short(wait(s, p.got)),
			"base %q orEqual %v offset %d", s.short(p.sel.Key), p.sel.OrEqual, p.sel.Offset)
	}
}
