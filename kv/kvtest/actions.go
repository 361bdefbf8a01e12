package kvtest

import (
	"bytes"
	"fmt"
	"slices"

	"fdbfifo/kv"
)

// action is one entry of a run's menu.
type action struct {
	weight int
	do     func(p *pair) error
}

// swarm draws the weights of a run: each run leaves some operations out altogether, so that others meet more often.
// Reads, sets and commits are always there.
func (d *driver) swarm() []action {
	sometimes := func(weight int) int { return weight * min(1, d.rng.IntN(4)) }
	return []action{
		{8, d.get},
		{4, d.set},
		{5, d.commit},
		{sometimes(5), d.getKey},
		{sometimes(6), d.getRange},
		{sometimes(3), d.clear},
		{sometimes(2), d.clearRange},
		{sometimes(5), d.atomic},
		{sometimes(1), d.stampValue},
		{sometimes(2), d.stampKey},
		{sometimes(2), d.readStamps},
		{sometimes(2), d.conflictRange},
		{sometimes(1), d.noConflict},
		{sometimes(1), d.borrowVersion},
		{1, d.reset},
	}
}

func (d *driver) key() string {
	keys := shortKeys()
	return area + keys[d.rng.IntN(len(keys))]
}

func (d *driver) value() []byte {
	v := make([]byte, d.rng.IntN(6))
	for i := range v {
		v[i] = byte(d.rng.IntN(4) * 85)
	}
	return v
}

func (d *driver) span() span {
	a, b := d.key(), d.key()
	return span{min(a, b), max(a, b)}
}

func (d *driver) keyRange(s span) kv.KeyRange {
	return kv.KeyRange{Begin: d.full(s.begin), End: d.full(s.end)}
}

// reader picks a serialisable or a snapshot read.
func (d *driver) reader(p *pair) (read kv.ReadTx, snapshot bool) {
	if d.rng.IntN(3) == 0 {
		return p.real.Snapshot(), true
	}
	return p.real, false
}

func (d *driver) get(p *pair) error {
	if err := d.fixReadVersion(p); err != nil {
		return err
	}
	k := d.key()
	read, snapshot := d.reader(p)
	d.log(p, "get %q snapshot=%v", k, snapshot)
	future := read.Get(d.full(k))
	want, code := p.twin.get(k, snapshot)
	return d.later(p, fmt.Sprintf("get %q", k), func() error {
		got, err := future.Wait(d.ctx)
		if ok, diff := p.compareError(err, code); !ok {
			return diff
		}
		if !bytes.Equal(got, want) || (got == nil) != (want == nil) {
			return fmt.Errorf("got %s, want %s", hex(got), hex(want))
		}
		return nil
	})
}

// plainOnly reports whether p must keep to the four usual selectors. FoundationDB promises neither of two things. When
// it walks an offset, it counts a key that the transaction's own compare-and-clear has removed. A walk over unreadable
// keys touches keys that depend on its cache.
func (p *pair) plainOnly() bool {
	return p.twin.log.has(kv.CompareAndClear) || p.twin.log.has(kv.SetVersionstampedValue)
}

func (d *driver) selector(offset int) selector {
	return selector{key: d.key(), orEqual: d.rng.IntN(2) == 0, offset: offset}
}

func (d *driver) real(s selector) kv.KeySelector {
	return kv.KeySelector{Key: d.full(s.key), OrEqual: s.orEqual, Offset: s.offset}
}

func (d *driver) getKey(p *pair) error {
	if err := d.fixReadVersion(p); err != nil {
		return err
	}
	sel := d.selector(d.rng.IntN(13) - 6)
	if p.plainOnly() {
		sel.offset = d.rng.IntN(2)
	}
	read, snapshot := d.reader(p)
	d.log(p, "get key %+v snapshot=%v", sel, snapshot)
	future := read.GetKey(d.real(sel))
	want, code := p.twin.getKey(sel, snapshot)
	return d.later(p, fmt.Sprintf("get key %+v", sel), func() error {
		got, err := future.Wait(d.ctx)
		if ok, diff := p.compareError(err, code); !ok {
			return diff
		}
		if d.short(got) != want {
			return fmt.Errorf("got %q, want %q", d.short(got), want)
		}
		return nil
	})
}

func (d *driver) getRange(p *pair) error {
	begin, end := d.selector(1), d.selector(1)
	if !p.plainOnly() && d.rng.IntN(2) == 0 {
		begin.offset, end.offset = d.rng.IntN(7)-3, d.rng.IntN(7)-3
	}
	return d.readRange(p, begin, end)
}

// readStamps reads the versionstamped keys of others.
func (d *driver) readStamps(p *pair) error {
	if p.twin.log.has(kv.SetVersionstampedKey) {
		return nil // its own would be unreadable; what they hide is not the model's business
	}
	return d.readRange(p, selector{key: stamps, offset: 1}, selector{key: stamps + afterAll, offset: 1})
}

func (d *driver) readRange(p *pair, begin, end selector) error {
	if err := d.fixReadVersion(p); err != nil {
		return err
	}
	o := kv.RangeOptions{Limit: d.rng.IntN(5), Reverse: d.rng.IntN(2) == 0}
	read, snapshot := d.reader(p)
	what := fmt.Sprintf("get range %+v %+v %+v snapshot=%v", begin, end, o, snapshot)
	d.log(p, "%s", what)
	future := read.GetRange(kv.Range{Begin: d.real(begin), End: d.real(end)}, o)
	want, code := p.twin.getRange(begin, end, o, snapshot)
	return d.later(p, what, func() error {
		got, err := future.Wait(d.ctx)
		if ok, diff := p.compareError(err, code); !ok {
			return diff
		}
		same := slices.EqualFunc(got, want, func(g kv.KV, w cell) bool {
			return d.short(g.Key) == w.key && bytes.Equal(g.Value, w.value)
		})
		if !same {
			return fmt.Errorf("\n got %s\nwant %s", d.shownRows(got), shownCells(want))
		}
		return nil
	})
}

func (d *driver) shownRows(rows []kv.KV) string {
	var cells []cell
	for _, r := range rows {
		cells = append(cells, cell{key: d.short(r.Key), value: r.Value})
	}
	return shownCells(cells)
}

func shownCells(cells []cell) string {
	var b bytes.Buffer
	for _, c := range cells {
		fmt.Fprintf(&b, "%q=%x ", c.key, c.value)
	}
	return b.String()
}

func (d *driver) set(p *pair) error {
	w := write{key: d.key(), value: d.value()}
	d.log(p, "set %q %x", w.key, w.value)
	p.real.Set(d.full(w.key), w.value)
	p.twin.write(w)
	return nil
}

func (d *driver) clear(p *pair) error {
	k := d.key()
	d.log(p, "clear %q", k)
	p.real.Clear(d.full(k))
	p.twin.write(write{clear: true, cleared: single(k)})
	return nil
}

func (d *driver) clearRange(p *pair) error {
	s := d.span()
	if d.rng.IntN(4) == 0 && !p.twin.log.has(kv.SetVersionstampedKey) {
		s = span{stamps, stamps + afterAll}
	}
	d.log(p, "clear range %q", s)
	p.real.ClearRange(d.keyRange(s))
	p.twin.write(write{clear: true, cleared: s})
	return nil
}

func (d *driver) atomic(p *pair) error {
	ops := plainAtomics()
	op := ops[d.rng.IntN(len(ops))]
	w := write{key: d.key(), op: op.op, value: d.value()}
	d.log(p, "%s %q %x", op.name, w.key, w.value)
	p.real.Atomic(w.op, d.full(w.key), w.value)
	p.twin.write(w)
	return nil
}

func (d *driver) stampValue(p *pair) error {
	w := write{key: d.key(), op: kv.SetVersionstampedValue, value: stampTemplate("<", ">")}
	d.log(p, "versionstamped value %q", w.key)
	p.real.Atomic(w.op, d.full(w.key), w.value)
	p.twin.write(w)
	return nil
}

func (d *driver) stampKey(p *pair) error {
	// With the read version known, only the template's own interval becomes unreadable.
	if err := d.fixReadVersion(p); err != nil {
		return err
	}
	before := stamps + string("xy"[d.rng.IntN(2)])
	after := string("123"[d.rng.IntN(3)])
	w := write{key: string(stampTemplate(before, after)), op: kv.SetVersionstampedKey, value: d.value()}
	d.log(p, "versionstamped key %q %q", before, after)
	p.real.Atomic(w.op, stampTemplate(string(d.full(before)), after), w.value)
	p.twin.write(w)
	return nil
}

func (d *driver) conflictRange(p *pair) error {
	s := d.span()
	if d.rng.IntN(2) == 0 {
		s = single(d.key())
	}
	if d.rng.IntN(3) == 0 {
		d.log(p, "add write conflict %q", s)
		p.twin.writes = append(p.twin.writes, s)
		return p.real.AddWriteConflictRange(d.keyRange(s))
	}
	d.log(p, "add read conflict %q", s)
	p.twin.addRead(s, false)
	return p.real.AddReadConflictRange(d.keyRange(s))
}

func (d *driver) noConflict(p *pair) error {
	d.log(p, "next write without conflict")
	p.real.NextWriteNoConflict()
	p.twin.nextNoConflict = true
	return nil
}

// borrowVersion reads at the commit version of another, mostly the newest.
func (d *driver) borrowVersion(p *pair) error {
	if p.twin.readVersion != 0 {
		return nil
	}
	back := min(d.rng.IntN(3)*d.rng.IntN(3), len(d.model.versions)-1)
	v := d.model.versions[len(d.model.versions)-1-back].version
	d.log(p, "set read version %d, %d commits ago", v, back)
	p.real.SetReadVersion(v)
	p.twin.readVersion = v
	p.borrowed = true
	return nil
}
