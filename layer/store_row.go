package layer

import (
	"fdbfifo/kv"
)

// rows are items of one group as read, in key order. Each row is decoded once, on first use.
type rows struct {
	keys  subspace
	lane  string
	group string      // of the lane
	of    kv.KeyRange // the lane's items
	retro retro       // of the queue
	list  []row
}

// row is one stored item.
type row struct {
	kv.KV
	delivered
	envelope envelope
	dueMS    int64  // the earliest delivery time; 0 = the item is not delayed
	body     []byte // inline; the rest is in the parts
	opened   bool
	err      error // the item cannot be read; wraps ErrCorrupt
}

// rows takes the items of a lane, in key order: pairs of an item's key and value, whichever lane it is.
func (s subspace) rows(lane string, pairs []kv.KV, delay retro) rows {
	rs := rows{
		keys: s, lane: lane, group: groupOf(lane), of: s.items(lane), retro: delay, list: make([]row, len(pairs)),
	}
	for i, pair := range pairs {
		rs.list[i].KV = pair
	}
	return rs
}

func (rs rows) len() int { return len(rs.list) }

// first returns the first n rows.
func (rs rows) first(n int) rows {
	rs.list = rs.list[:n]
	return rs
}

// from returns the rows behind the first n.
func (rs rows) from(n int) rows {
	rs.list = rs.list[n:]
	return rs
}

// at decodes the i-th row. If the row cannot be read, the row's err says why.
func (rs rows) at(i int) *row {
	r := &rs.list[i]
	if r.opened {
		return r
	}
	r.opened = true
	p, err := rs.keys.parseItem(r.Key, rs.group, rs.of)
	if err != nil {
		r.err = err
		return r
	}
	r.index, r.random = p.index, p.id
	if r.envelope, r.body, err = openEnvelope(r.Value); err != nil {
		r.err = corrupt(r.Key, err)
	}
	r.dueMS = rs.retro.due(&r.envelope)
	r.parts, r.facets = r.envelope.parts, rs.keys.plan.pack(r.envelope.headers)
	return r
}

// id returns the item's id, even if the value cannot be read.
func (rs rows) id(i int) ID { return rs.at(i).delivered.id(rs.group) }

// delivered returns what a claim's record keeps of the rows, or the error of the first unreadable row.
func (rs rows) delivered() ([]delivered, error) {
	all := make([]delivered, rs.len())
	for i := range all {
		r := rs.at(i)
		if r.err != nil {
			return nil, r.err
		}
		all[i] = r.delivered
	}
	return all, nil
}

// due returns how many of the rows, from the head on, may be delivered at nowMS. An unreadable row counts as due, so
// that whoever takes the row reports what is wrong.
func (rs rows) due(nowMS int64) int {
	for i := range rs.list {
		if r := rs.at(i); r.err == nil && r.dueMS > nowMS {
			return i
		}
	}
	return len(rs.list)
}

// timing returns the time in the key of a timer that leads to the head, the first row, at untilMS.
func (rs rows) timing(untilMS int64) int64 {
	if head := rs.at(0); untilMS == head.dueMS {
		return rs.retro.timing(&head.envelope)
	}
	return untilMS
}
