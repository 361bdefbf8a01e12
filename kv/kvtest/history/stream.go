package history

import (
	"fmt"
	"math/rand/v2"

	"fdbfifo/kv"
)

// A stream's keys: an area where everything happens, between fences that keep selectors inside the prefix, and behind
// them an area for versionstamped keys.
const (
	area   = "k"
	stamps = "v"
	fence  = 12 // keys on each side, more than all offsets together can walk
)

func shortKeys() []string {
	return []string{
		"", "\x00", "a", "a\x00", "a\x00\x00", "aa", "ab", "b", "ba", "bb", "c", "c\x00", "ca", "d", "e", "f", "g",
		"\xfe", "\xff", "\xff\x00",
	}
}

// stream is the work that a seed draws. It does not depend on the answers of an engine.
type stream struct {
	initial []row
	parties int
	steps   []step
}

type row struct {
	key   string
	value []byte
}

// step is one operation of one transaction. text describes it. do runs it, and returns the result as text.
type step struct {
	who  int
	text string
	do   func(p *player, tx *party) string
}

// steps is the number of steps in a stream, without the last ones, which end all transactions.
const steps = 110

func newStream(seed uint64) *stream {
	g := &generator{rng: rand.New(rand.NewPCG(seed, seed))}
	for _, k := range shortKeys() {
		if g.rng.IntN(2) == 0 {
			g.initial = append(g.initial, row{area + k, g.value()})
		}
	}
	g.parties = 3 + g.rng.IntN(3)
	g.outlines = make([]outline, g.parties)
	g.swarm()
	for len(g.steps) < steps {
		g.step(g.rng.IntN(g.parties))
	}
	for who := range g.parties {
		if !g.outlines[who].over {
			g.commit(who)
		}
	}
	return &g.stream
}

// generator writes a stream.
type generator struct {
	stream
	rng      *rand.Rand
	menu     []choice
	total    int // of the menu's weights
	outlines []outline
	reads    int // started without waiting, over the whole stream
	watches  int
}

// outline is what the generator knows of a transaction's attempt.
type outline struct {
	started bool  // it may have a read version
	plain   bool  // its ranges keep to plain selectors from now on
	over    bool  // all operations fail until a new start
	pending []int // reads whose results are not yet read
}

type choice struct {
	weight int
	write  func(who int)
}

// swarm draws the menu: each stream leaves some operations out, so that others meet more often.
func (g *generator) swarm() {
	sometimes := func(weight int) int { return weight * min(1, g.rng.IntN(4)) }
	g.menu = []choice{
		{8, g.get},
		{6, g.set},
		{6, g.commit},
		{sometimes(6), g.getKey},
		{sometimes(9), g.getRange},
		{sometimes(3), g.clear},
		{sometimes(3), g.clearRange},
		{sometimes(7), g.atomic},
		{sometimes(2), g.stampValue},
		{sometimes(3), g.stampKey},
		{sometimes(3), g.readStamps},
		{sometimes(4), g.conflictRange},
		{sometimes(2), g.noConflict},
		{sometimes(2), g.watch},
		{sometimes(1), g.readVersion},
		{sometimes(1), g.borrowVersion},
		{sometimes(1), g.size},
		{sometimes(1), g.committedVersion},
		{sometimes(1), g.badRead},
		{sometimes(1), g.badWrite},
		{sometimes(1), g.cancel},
		{sometimes(1), g.onError},
		{1, g.restart},
	}
	for _, c := range g.menu {
		g.total += c.weight
	}
}

func (g *generator) step(who int) {
	if g.outlines[who].over {
		if g.rng.IntN(4) == 0 {
			g.misuse(who)
		}
		g.restart(who)
		return
	}
	n := g.rng.IntN(g.total)
	for _, c := range g.menu {
		if n -= c.weight; n < 0 {
			c.write(who)
			return
		}
	}
}

func (g *generator) add(who int, do func(p *player, tx *party) string, format string, args ...any) {
	g.steps = append(g.steps, step{who, fmt.Sprintf(format, args...), do})
}

func (g *generator) key() string {
	keys := shortKeys()
	return area + keys[g.rng.IntN(len(keys))]
}

// keyPair returns two keys in order; they may be equal.
func (g *generator) keyPair() (string, string) {
	a, b := g.key(), g.key()
	return min(a, b), max(a, b)
}

func (g *generator) value() []byte {
	v := make([]byte, g.rng.IntN(6))
	for i := range v {
		v[i] = byte(g.rng.IntN(4) * 85)
	}
	return v
}

// selector is a kv.KeySelector whose key lacks the prefix.
type selector struct {
	key     string
	orEqual bool
	offset  int
}

func (s selector) String() string {
	name := "<"
	if s.orEqual {
		name = "<="
	}
	return fmt.Sprintf("(%s %s)%+d", name, show(s.key), s.offset)
}

func (s selector) full(p *player) kv.KeySelector {
	return kv.KeySelector{Key: p.key(s.key), OrEqual: s.orEqual, Offset: s.offset}
}

func (g *generator) selector(offset int) selector {
	return selector{g.key(), g.rng.IntN(2) == 0, offset}
}

// show quotes what the stream itself names.
func show(s string) string { return new(mask).show([]byte(s)) }
