package embedded

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
)

// naive says of every key by itself what an overlay says by segments.
type naive struct {
	keys   []string
	states map[string]*keyState
}

type keyState struct {
	written, known, unreadable, conflict bool
	value                                value // if known
	adds                                 int   // pending on an unknown value
}

// An overlay of thousands of writes, so of many chunks, says of each key what a list of single keys says: its
// value, whether it can be read, whether reading it looks at the database, whether it is a write conflict.
func TestOverlayAgainstSingleKeys(t *testing.T) {
	t.Parallel()
	for seed := range uint64(12) {
		t.Run(fmt.Sprintf("seed=%d", seed), func(t *testing.T) { overlayRun(t, seed) })
	}
}

func overlayRun(t *testing.T, seed uint64) {
	random := rand.New(rand.NewPCG(seed, 1))
	n := naive{states: map[string]*keyState{}}
	for i := range 1500 {
		key := fmt.Sprintf("%04d", i)
		n.keys = append(n.keys, key)
		n.states[key] = &keyState{}
	}
	var o overlay
	stretch := func() keyRange {
		i := random.IntN(len(n.keys) - 1)
		j := min(len(n.keys)-1, i+1+random.IntN(1+random.IntN(40)))
		return keyRange{n.keys[i], n.keys[j]}
	}
	for step := range 4000 {
		key := n.keys[random.IntN(len(n.keys))]
		s := n.states[key]
		conflict := random.IntN(4) > 0
		switch random.IntN(10) {
		case 0, 1, 2:
			v := value{fmt.Sprint(step), true}
			o.mutate(key+"\x00", op{opSet, v}, conflict)
			s.written, s.known, s.value, s.adds = true, true, v, 0
			s.conflict = s.conflict || conflict
		case 3, 4:
			o.mutate(key+"\x00", op{kv.AppendIfFits, value{"+", true}}, conflict)
			s.written, s.conflict = true, s.conflict || conflict
			if s.known {
				s.value = value{s.value.data + "+", true}
			} else {
				s.adds++
			}
		case 5:
			o.clear(key+"\x00", key+"\x00\x00", conflict)
			*s = keyState{known: true, conflict: s.conflict || conflict}
		case 6:
			r := stretch()
			if random.IntN(4) == 0 {
				o.clear(r.begin+"\x00", r.end+"\x00", conflict)
				n.each(r, func(s *keyState) { *s = keyState{known: true, conflict: s.conflict || conflict} })
			}
		case 7:
			r := stretch()
			o.addConflict(r.begin+"\x00", r.end+"\x00")
			n.each(r, func(s *keyState) { s.conflict = true })
		case 8:
			if r := stretch(); random.IntN(8) == 0 {
				o.forget(r)
				n.each(r, func(s *keyState) { *s = keyState{unreadable: true} })
			}
		case 9:
			o.mutate(key+"\x00", op{kv.SetVersionstampedValue, value{"0123456789\x00\x00\x00\x00", true}}, conflict)
			s.written, s.unreadable, s.conflict = true, true, s.conflict || conflict
		}
		if step%500 == 499 {
			n.compare(t, &o)
		}
	}
	require.Greater(t, len(o.chunks), 3)
}

func (n *naive) each(r keyRange, fn func(s *keyState)) {
	for _, key := range n.keys {
		if r.begin <= key && key < r.end {
			fn(n.states[key])
		}
	}
}

func (n *naive) compare(t *testing.T, o *overlay) {
	t.Helper()
	checkSegments(t, o)
	conflicts := merge(o.writeConflicts(nil))
	for _, key := range n.keys {
		want, s := n.states[key], o.segmentOf(key)
		require.Equal(t, want.unreadable, s.unreadable(), key)
		require.Equal(t, want.conflict, s.conflict(), key)
		inRange := false
		for _, r := range conflicts {
			inRange = inRange || r.begin <= key && key < r.end
		}
		require.Equal(t, want.conflict, inRange, key)
		if want.unreadable {
			continue
		}
		require.Equal(t, !want.known, s.readsThrough(), key)
		base := value{"base", true}
		got := base
		switch {
		case s.cleared():
			got = value{}
		case s.key:
			got = s.entry.ops.over(base)
		}
		expect := want.value
		if !want.known {
			expect = base
			for range want.adds {
				expect.data += "+"
			}
		}
		require.Equal(t, expect, got, key)
	}
}

// checkSegments walks the segments both ways: they are the same, and leave no gap.
func checkSegments(t *testing.T, o *overlay) {
	t.Helper()
	var forward []segment
	at := ""
	for s, ok := o.segmentOf(""), true; ok; s, ok = o.after(s) {
		require.Equal(t, at, s.begin)
		require.True(t, s.end == "" || s.begin < s.end, "%q to %q", s.begin, s.end)
		at = s.end
		forward = append(forward, s)
	}
	require.Equal(t, "", at, "the last segment has no end")
	last := forward[len(forward)-1]
	for s, ok := o.segmentOf("\xff"), true; ok; s, ok = o.ahead(s) {
		require.Equal(t, last, s)
		forward = forward[:len(forward)-1]
		if len(forward) > 0 {
			last = forward[len(forward)-1]
		}
	}
	require.Empty(t, forward)
}
