package history

import (
	"bytes"

	"fdbfifo/kv"
)

func (g *generator) set(who int) {
	k, v := g.key(), g.value()
	g.add(who, func(p *player, tx *party) string {
		tx.tx.Set(p.key(k), v)
		return ""
	}, "set %s %s", show(k), show(string(v)))
}

func (g *generator) clear(who int) {
	k := g.key()
	g.add(who, func(p *player, tx *party) string {
		tx.tx.Clear(p.key(k))
		return ""
	}, "clear %s", show(k))
}

func (g *generator) clearRange(who int) {
	begin, end := g.keyPair()
	if g.rng.IntN(5) == 0 {
		begin, end = stamps, "w"
	}
	g.clearRangeOf(who, begin, end)
}

func (g *generator) clearRangeOf(who int, begin, end string) {
	g.add(who, func(p *player, tx *party) string {
		tx.tx.ClearRange(p.keys(begin, end))
		return ""
	}, "clear range %s %s", show(begin), show(end))
}

func (g *generator) atomic(who int) {
	ops := []struct {
		name string
		op   kv.MutationType
	}{
		{"add", kv.Add}, {"and", kv.BitAnd}, {"or", kv.BitOr}, {"xor", kv.BitXor}, {"append if fits", kv.AppendIfFits},
		{"max", kv.Max}, {"min", kv.Min}, {"byte min", kv.ByteMin}, {"byte max", kv.ByteMax},
		{"compare and clear", kv.CompareAndClear},
	}
	op := ops[g.rng.IntN(len(ops))]
	k, v := g.key(), g.value()
	g.add(who, func(p *player, tx *party) string {
		tx.tx.Atomic(op.op, p.key(k), v)
		return ""
	}, "%s %s %s", op.name, show(k), show(string(v)))
}

func (g *generator) stampValue(who int) {
	k := g.key()
	g.outlines[who].plain = true
	g.add(who, func(p *player, tx *party) string {
		tx.stamped = true
		tx.tx.Atomic(kv.SetVersionstampedValue, p.key(k), template("<", ">"))
		return ""
	}, `versionstamped value %s "<{stamp}>"`, show(k))
}

// stampKey writes a versionstamped key, at times to where the transaction has written already.
func (g *generator) stampKey(who int) {
	if g.rng.IntN(8) == 0 {
		g.clearRangeOf(who, stamps, "w")
	}
	before, after := stamps+string("xy"[g.rng.IntN(2)]), string("123"[g.rng.IntN(3)])
	v := g.value()
	g.add(who, func(p *player, tx *party) string {
		tx.stamped = true
		tx.tx.Atomic(kv.SetVersionstampedKey, template(string(p.key(before)), after), v)
		return ""
	}, `versionstamped key "%s{stamp}%s" %s`, before, after, show(string(v)))
}

// template returns before, ten bytes for the stamp, after, and the offset of the stamp.
func template(before, after string) []byte {
	n := len(before)
	t := append([]byte(before), make([]byte, 10)...)
	t = append(t, after...)
	return append(t, byte(n), byte(n>>8), 0, 0)
}

func (g *generator) conflictRange(who int) {
	begin, end := g.key(), g.key() // perhaps inverted
	switch g.rng.IntN(3) {
	case 0:
		end = begin + "\x00"
	case 1:
		begin, end = min(begin, end), max(begin, end)
	}
	kind, add := "read", kv.Tx.AddReadConflictRange
	if g.rng.IntN(3) == 0 {
		kind, add = "write", kv.Tx.AddWriteConflictRange
	}
	g.add(who, func(p *player, tx *party) string {
		if err := add(tx.tx, p.keys(begin, end)); err != nil {
			return p.code(err)
		}
		return ""
	}, "add %s conflict range %s %s", kind, show(begin), show(end))
}

func (g *generator) noConflict(who int) {
	g.add(who, func(_ *player, tx *party) string {
		tx.tx.NextWriteNoConflict()
		return ""
	}, "next write without conflict range")
}

func (p *player) longKey(n int) []byte {
	return append(p.key(area), bytes.Repeat([]byte("x"), n-len(area)-len(p.prefix))...)
}

// badWrite is one whose error is deferred, and one at the limit.
func (g *generator) badWrite(who int) {
	bads := []struct {
		text string
		do   func(p *player, tx kv.Tx)
	}{
		{"set a key of 10,000 bytes", func(p *player, tx kv.Tx) { tx.Set(p.longKey(kv.MaxKeySize), nil) }},
		{"set a key of 10,001 bytes", func(p *player, tx kv.Tx) { tx.Set(p.longKey(kv.MaxKeySize+1), nil) }},
		{"clear a key of 10,001 bytes", func(p *player, tx kv.Tx) { tx.Clear(p.longKey(kv.MaxKeySize + 1)) }},
		{"set a value of 100,001 bytes", func(p *player, tx kv.Tx) {
			tx.Set(p.key("ka"), make([]byte, kv.MaxValueSize+1))
		}},
		{"add an operand of 100,001 bytes", func(p *player, tx kv.Tx) {
			tx.Atomic(kv.Add, p.key("ka"), make([]byte, kv.MaxValueSize+1))
		}},
		{`set "\xff"`, func(_ *player, tx kv.Tx) { tx.Set([]byte("\xff"), nil) }},
		{`clear "\xff"`, func(_ *player, tx kv.Tx) { tx.Clear([]byte("\xff")) }},
		{`clear range "kb" "ka"`, func(p *player, tx kv.Tx) { tx.ClearRange(p.keys("kb", "ka")) }},
		{`clear range "ka" to behind "\xff"`, func(p *player, tx kv.Tx) {
			tx.ClearRange(kv.KeyRange{Begin: p.key("ka"), End: []byte("\xff\x01")})
		}},
		{"versionstamped value without room for the stamp", func(p *player, tx kv.Tx) {
			tx.Atomic(kv.SetVersionstampedValue, p.key("ka"), []byte{1, 2, 3, 4, 5, 0, 0, 0, 0})
		}},
		{"versionstamped key without an offset", func(_ *player, tx kv.Tx) {
			tx.Atomic(kv.SetVersionstampedKey, []byte("ab"), nil)
		}},
	}
	bad := bads[g.rng.IntN(len(bads))]
	g.add(who, func(p *player, tx *party) string {
		bad.do(p, tx.tx)
		return ""
	}, "%s", bad.text)
}
