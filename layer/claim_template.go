package layer

import (
	"fmt"

	"fdbfifo/kv"
)

// whereOf returns the template of a lane; nil for a whole group.
func (q *Queue) whereOf(lane string) Template {
	_, where := splitLane(lane)
	return q.keys.plan.template(where)
}

// laneAt returns the lane of a group that a template sees; nil = the whole group, whatever the views.
func (q *Queue) laneAt(group string, t Template) (string, error) {
	if t == nil {
		return group, nil
	}
	where, err := q.keys.plan.where(t)
	return laneName(group, where), err
}

// whereGiven packs the template that a call was given as the optional last argument; none, or nil, is "": whole groups,
// whatever the views.
func (q *Queue) whereGiven(where []Template) (string, error) {
	if len(where) > 1 {
		return "", fmt.Errorf("%w: %d templates", ErrOptions, len(where))
	}
	if len(where) == 0 || where[0] == nil {
		return "", nil
	}
	return q.keys.plan.where(where[0])
}

// reception makes a receive of options that were checked, and checks the template.
func (q *Queue) reception(o ReceiveOptions) (*reception, error) {
	where, err := q.keys.plan.where(o.Where)
	if err != nil {
		return nil, err
	}
	if o.Heartbeat && q.keys.plan != nil {
		return nil, fmt.Errorf("%w: Heartbeat in a queue with facets, unordered, or with a lease for each item",
			ErrOptions)
	}
	if o.Unordered {
		if err := o.checkUnordered(q); err != nil {
			return nil, err
		}
		where = freeWhere
	}
	if (where != "" || q.keys.inTurn()) && o.State {
		return nil, errLaneState
	}
	return &reception{o: o, where: where}, nil
}

// lane returns the lane of one of the receive's claims.
func (r *reception) lane(c *Claim) string {
	if c.Hold != (ID{}) {
		return holdLane(c.Hold)
	}
	if r.repeated {
		return laneName(c.Group, r.was)
	}
	return laneName(c.Group, r.where)
}

// lane returns the lane of a claim.
func (c *Claim) lane(q *Queue) (string, error) {
	if c.Hold != (ID{}) {
		if !q.keys.hasHolds() {
			return "", errHold
		}
		return holdLane(c.Hold), checkID(c.Hold)
	}
	return q.laneAt(c.Group, c.Where)
}

// words say in an error what a claim is of, and what somebody holds who has it.
func (c *Claim) words() (what, held string) {
	switch {
	case c.Hold != (ID{}):
		return fmt.Sprintf("message %q", c.Hold), "the message"
	case c.Where != nil:
		return fmt.Sprintf("group %q where %s", c.Group, c.Where), "the lane"
	}
	return fmt.Sprintf("group %q", c.Group), "the group"
}

// reloadRows starts reading the items of a held claim: a lane's items by key, because they may lie far apart.
func (q *Queue) reloadRows(tx kv.ReadTx, lane string, out []delivered) kv.Future[[]kv.KV] {
	group := groupOf(lane)
	if isPart(lane) {
		r := &laneRead{keys: q.keys, lane: lane, first: kv.Done[[]kv.KV](nil, nil), values: tx, begun: true}
		for _, d := range out {
			key := q.keys.item(d.id(group))
			r.pairs, r.got = append(r.pairs, kv.KV{Key: key}), append(r.got, tx.Get(key))
		}
		return r
	}
	return tx.GetRange(kv.Range{
		Begin: kv.FirstGreaterOrEqual(q.keys.item(out[0].id(group))),
		End:   kv.FirstGreaterThan(q.keys.item(out[len(out)-1].id(group))),
	}, kv.RangeOptions{})
}

// byTemplate parts receives by their templates, in the order of arrival.
func byTemplate(rs []*reception) (parts [][]*reception) {
	at := make(map[string]int)
	for _, r := range rs {
		i, ok := at[r.where]
		if !ok {
			i = len(parts)
			at[r.where], parts = i, append(parts, nil)
		}
		parts[i] = append(parts[i], r)
	}
	return parts
}
