package history

import (
	"fmt"

	"fdbfifo/kv"
)

// read writes a read: now, or started now and waited for later. start returns what waits for it.
func (g *generator) read(who int, what string, start func(p *player, read kv.ReadTx) func() string) {
	o := &g.outlines[who]
	snapshot := g.rng.IntN(4) == 0
	if snapshot {
		what = "snapshot " + what
	}
	from := func(tx *party) kv.ReadTx {
		if snapshot {
			return tx.tx.Snapshot()
		}
		return tx.tx
	}
	if g.rng.IntN(3) > 0 {
		g.add(who, func(p *player, tx *party) string { return start(p, from(tx))() }, "%s", what)
		o.started = true
		return
	}
	// With a read in flight, whether the read version is known must not depend on time.
	g.readVersion(who)
	g.reads++
	n := g.reads
	o.pending = append(o.pending, n)
	g.add(who, func(p *player, tx *party) string {
		tx.pending[n] = start(p, from(tx))
		return ""
	}, "read %d: %s", n, what)
}

// finish waits for the reads in flight.
func (g *generator) finish(who int) {
	for _, n := range g.outlines[who].pending {
		g.add(who, func(_ *player, tx *party) string {
			defer delete(tx.pending, n)
			return tx.pending[n]()
		}, "wait for read %d", n)
	}
	g.outlines[who].pending = nil
}

func (g *generator) get(who int) { g.getOf(who, g.key()) }

func (g *generator) getOf(who int, k string) {
	g.read(who, "get "+show(k), func(p *player, read kv.ReadTx) func() string {
		f := read.Get(p.key(k))
		return func() string { return ended(p, f, p.show) }
	})
}

func (g *generator) getKey(who int) {
	s := g.selector(g.rng.IntN(9) - 4)
	g.read(who, "get key "+s.String(), func(p *player, read kv.ReadTx) func() string {
		f := read.GetKey(s.full(p))
		return func() string { return ended(p, f, p.show) }
	})
}

func (g *generator) getRange(who int) {
	begin, end := g.selector(1), g.selector(1)
	if begin.key > end.key && g.rng.IntN(4) > 0 {
		begin, end = end, begin
	}
	if !g.outlines[who].plain && g.rng.IntN(2) == 0 {
		begin.offset, end.offset = g.rng.IntN(7)-3, g.rng.IntN(7)-3
	}
	g.rangeOf(who, begin, end)
}

// readStamps reads versionstamped keys, its own pending ones too: they are unreadable.
func (g *generator) readStamps(who int) {
	g.rangeOf(who, selector{key: stamps, offset: 1}, selector{key: "w", offset: 1})
}

func (g *generator) rangeOf(who int, begin, end selector) {
	o := kv.RangeOptions{Limit: g.rng.IntN(5), Reverse: g.rng.IntN(2) == 0}
	what := fmt.Sprintf("range %s to %s", begin, end)
	if o.Limit > 0 {
		what += fmt.Sprintf(" limit %d", o.Limit)
	}
	if o.Reverse {
		what += " reverse"
	}
	g.read(who, what, func(p *player, read kv.ReadTx) func() string {
		f := read.GetRange(kv.Range{Begin: begin.full(p), End: end.full(p)}, o)
		return func() string { return ended(p, f, p.rows) }
	})
}

func (g *generator) readVersion(who int) {
	g.outlines[who].started = true
	g.add(who, func(p *player, tx *party) string {
		return ended(p, tx.tx.ReadVersion(), func(v int64) string { return fmt.Sprintf("after #%d", p.rank(v)) })
	}, "read version")
}

// borrowVersion reads at the version of the last commit, or fails to: too late, or a version that cannot be.
func (g *generator) borrowVersion(who int) {
	switch bad := g.rng.IntN(5) == 0; {
	case bad:
		g.add(who, func(_ *player, tx *party) string {
			tx.tx.SetReadVersion(0)
			return ""
		}, "set read version 0")
	case !g.outlines[who].started || g.rng.IntN(5) == 0:
		g.add(who, func(p *player, tx *party) string {
			tx.tx.SetReadVersion(p.versions[len(p.versions)-1])
			return fmt.Sprintf("#%d", len(p.versions))
		}, "set read version")
		// The read follows at once, before another commit can supersede the version. It reads a fence, a key that is
		// never written.
		g.add(who, func(p *player, tx *party) string {
			return ended(p, tx.tx.Snapshot().Get(p.key("b00")), p.show)
		}, `snapshot get "b00"`)
	}
	g.outlines[who].started = true
}

// badRead is one that is refused at once, and fails nothing else.
func (g *generator) badRead(who int) {
	bads := []struct {
		text string
		do   func(p *player, tx *party) string
	}{
		{`get "\xff"`, func(p *player, tx *party) string { return ended(p, tx.tx.Get([]byte("\xff")), p.show) }},
		{`get key (< "\xff\x00")+1`, func(p *player, tx *party) string {
			return ended(p, tx.tx.GetKey(kv.FirstGreaterOrEqual([]byte("\xff\x00"))), p.show)
		}},
		{"range limit -1", func(p *player, tx *party) string {
			return ended(p, tx.tx.GetRange(p.keys("k", "l").Selectors(), kv.RangeOptions{Limit: -1}), p.rows)
		}},
		{"get of a key of 10,001 bytes", func(p *player, tx *party) string {
			return ended(p, tx.tx.Get(p.longKey(kv.MaxKeySize+1)), p.show)
		}},
		{`watch "\xff"`, func(p *player, tx *party) string { return ended(p, tx.tx.Watch([]byte("\xff")), done) }},
	}
	bad := bads[g.rng.IntN(len(bads))]
	g.outlines[who].started = true
	g.add(who, bad.do, "%s", bad.text)
}

// watch watches a key. The list of conflict ranges waits for its read.
func (g *generator) watch(who int) {
	k := g.key()
	g.watches++
	name := fmt.Sprintf("watch %d", g.watches)
	g.readVersion(who)
	g.add(who, func(p *player, tx *party) string {
		w := watched{name, k, tx.tx.Watch(p.key(k))}
		tx.watches = append(tx.watches, w)
		return p.conflicts(tx)
	}, "%s of %s, conflicts", name, show(k))
}
