package history

import (
	"fmt"

	"fdbfifo/kv"
)

// commit writes the conflict ranges and the commit. Half of the time reads are left in flight: the commit waits.
func (g *generator) commit(who int) {
	waitFirst := g.rng.IntN(2) == 0
	if waitFirst {
		g.finish(who)
	}
	g.add(who, func(p *player, tx *party) string { return p.conflicts(tx) }, "conflicts")
	g.add(who, func(p *player, tx *party) string { return p.commit(tx) }, "commit")
	g.finish(who)
	g.outlines[who].over = true
}

// restart begins another attempt in one of the ways there are.
func (g *generator) restart(who int) {
	g.finish(who)
	switch g.rng.IntN(4) {
	case 0:
		g.begin(who)
	case 1:
		g.retry(who)
	default:
		g.reset(who)
	}
	g.outlines[who] = outline{}
}

func (g *generator) reset(who int) {
	g.add(who, func(p *player, tx *party) string {
		tx.tx.Reset()
		ends := p.endedWatches(tx)
		tx.restarted()
		return "done" + ends
	}, "reset")
}

// begin takes a new transaction; the old one's watches are not heard of again.
func (g *generator) begin(who int) {
	limited := g.rng.IntN(4) == 0
	var o kv.TxOptions
	text := "new transaction"
	if limited {
		o.SizeLimit = 50_000
		text += ", size limit 50,000 bytes"
	}
	g.add(who, func(p *player, tx *party) string {
		tx.tx.Cancel()
		for _, w := range tx.watches {
			w.future.Cancel()
		}
		p.begin(tx, o)
		return ""
	}, "%s", text)
	if limited && g.rng.IntN(2) == 0 {
		g.add(who, func(p *player, tx *party) string {
			tx.tx.Set(p.key("ka"), make([]byte, 60_000))
			return ""
		}, `set "ka" to 60,000 bytes`)
	}
}

// retry asks OnError about the last commit's error, as a retry loop does. It resets a transaction without such an
// error.
func (g *generator) retry(who int) {
	g.add(who, func(p *player, tx *party) string {
		if tx.failure == nil {
			tx.tx.Reset()
			ends := p.endedWatches(tx)
			tx.restarted()
			return "reset" + ends
		}
		result := ended(p, tx.tx.OnError(tx.failure), done)
		if result != "done" {
			tx.tx.Reset()
			for _, w := range tx.watches {
				w.future.Cancel()
			}
		}
		tx.restarted()
		return result
	}, "retry")
}

// onError asks about an error that did not happen. If it is retried, that is a new start.
func (g *generator) onError(who int) {
	g.finish(who)
	codes := []int{
		1007, 1009, 1020, 1021, 1025, 1031, 1034, 1036, 1037, 1038, 1042, 1051, 1078, 1213, 1223, 2000, 2017, 2101, 2102,
	}
	code := codes[g.rng.IntN(len(codes))]
	g.add(who, func(p *player, tx *party) string {
		result := ended(p, tx.tx.OnError(&kv.Error{Code: code}), done)
		for _, w := range tx.watches {
			w.future.Cancel()
		}
		tx.restarted()
		return result
	}, "on error %d", code)
	g.outlines[who] = outline{over: !(&kv.Error{Code: code}).Retryable()}
}

func (g *generator) cancel(who int) {
	g.finish(who)
	g.add(who, func(_ *player, tx *party) string {
		tx.tx.Cancel()
		for _, w := range tx.watches {
			w.future.Cancel()
		}
		tx.restarted()
		return ""
	}, "cancel")
	g.outlines[who] = outline{over: true}
}

// misuse does what only a new start would allow.
func (g *generator) misuse(who int) {
	k := g.key()
	uses := []struct {
		text string
		do   func(p *player, tx *party) string
	}{
		{"get " + show(k), func(p *player, tx *party) string { return ended(p, tx.tx.Get(p.key(k)), p.show) }},
		{"get key (< " + show(k) + ")+1", func(p *player, tx *party) string {
			return ended(p, tx.tx.GetKey(kv.FirstGreaterOrEqual(p.key(k))), p.show)
		}},
		{`snapshot range "k" "l"`, func(p *player, tx *party) string {
			return ended(p, tx.tx.Snapshot().GetRange(p.keys("k", "l").Selectors(), kv.RangeOptions{}), p.rows)
		}},
		{"watch " + show(k), func(p *player, tx *party) string { return ended(p, tx.tx.Watch(p.key(k)), done) }},
		{"commit", func(p *player, tx *party) string { return ended(p, tx.tx.Commit(), done) }},
		{"versionstamp", func(p *player, tx *party) string { return ended(p, tx.tx.Versionstamp(), p.shownStamp) }},
		{"read version", func(p *player, tx *party) string {
			return ended(p, tx.tx.ReadVersion(), func(int64) string { return "a version" })
		}},
		{"conflicts", func(p *player, tx *party) string { return p.conflicts(tx) }},
		{"committed version", func(p *player, tx *party) string { return p.committedVersion(tx) }},
		{"approximate size", func(p *player, tx *party) string { return p.size(tx) }},
		{"set read version 0, get " + show(k), func(p *player, tx *party) string {
			tx.tx.SetReadVersion(0)
			return ended(p, tx.tx.Get(p.key(k)), p.show)
		}},
		{"set " + show(k), func(p *player, tx *party) string {
			tx.tx.Set(p.key(k), nil)
			return ended(p, tx.tx.ReadVersion(), func(int64) string { return "a version" })
		}},
		{"clear range, inverted", func(p *player, tx *party) string {
			tx.tx.ClearRange(p.keys("b", "a"))
			return ended(p, tx.tx.Get(p.key(k)), p.show)
		}},
	}
	use := uses[g.rng.IntN(len(uses))]
	g.add(who, use.do, "%s", use.text)
}

func (g *generator) committedVersion(who int) {
	g.add(who, func(p *player, tx *party) string { return p.committedVersion(tx) }, "committed version")
}

func (p *player) committedVersion(tx *party) string {
	v, err := tx.tx.CommittedVersion()
	if err != nil {
		return p.code(err)
	}
	return p.shownVersion(v)
}

func (g *generator) size(who int) {
	g.finish(who)
	g.add(who, func(p *player, tx *party) string { return p.size(tx) }, "approximate size")
}

func (p *player) size(tx *party) string {
	return ended(p, tx.tx.ApproximateSize(), func(n int64) string { return fmt.Sprintf("%d bytes", n) })
}
