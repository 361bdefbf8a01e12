package crash

import (
	"bytes"
	"context"
	"fmt"
	"sort"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// outcomes counts operations that were begun and not acknowledged.
type outcomes struct{ Found, NotFound, Open int }

// compare checks the content of the file against the model. Then it makes the model certain again, because the file now
// says where each message is.
func (m *model) compare(d *dump, c layer.Config, unknown map[string]*outcomes) {
	m.problems = append(m.problems, d.faults...)
	m.now++
	for n, found := range d.items {
		it := m.items[n]
		if it == nil {
			m.wrong(n, "message %d is %s, and was never enqueued", n, found[0].at)
			continue
		}
		if len(found) > 1 {
			m.wrong(n, "G3: message %d is there %d times: %s as %s, %s as %s", n, len(found), found[0].at, found[0].id,
				found[1].at, found[1].id)
		}
		if it.id != (layer.ID{}) && it.id != found[0].id {
			m.wrong(n, "message %d is known as %s, and is there as %s", n, it.id, found[0].id)
		}
		it.id = found[0].id
		if found[0].id.Group != it.Group || !bytes.HasSuffix(found[0].value, bodyOf(n, it.Size)) {
			m.wrong(n, "message %d, %s, is not what was enqueued", n, found[0].id)
		}
	}
	m.compareEffects(d)
	m.compareOpen(d, unknown)
	for _, it := range m.sorted() {
		m.settle(it, m.placeIn(d, it.N))
	}
	for group, may := range m.states {
		if state := d.states[group]; !may[state] {
			m.wrongGroup(group, "group %q has the state %q; it may have %v", group, state, may)
		}
		m.states[group] = map[string]bool{d.states[group]: true}
	}
	lease := c.Lease.Milliseconds()
	if !m.leases[lease] {
		m.problem("the lease is %d ms; it may be %v", lease, m.leases)
	}
	m.leases = map[int64]bool{lease: true}
	for group, token := range d.locks {
		if token > m.tokens[group] {
			m.tokens[group] = token
		}
		// The next claim counts an attempt for the item that was tried, which may be its last.
		for _, it := range m.byGroup[group] {
			if it.at == waiting {
				it.at |= dead
			}
		}
	}
	m.open = make(map[int]*operation)
}

func (m *model) sorted() []*item {
	all := make([]*item, 0, len(m.items))
	for _, it := range m.items {
		all = append(all, it)
	}
	sort.Slice(all, func(i, j int) bool { return all[i].N < all[j].N })
	return all
}

// placeIn is where the message is, or where it may be if it is not there.
func (m *model) placeIn(d *dump, n int) place {
	if f := d.items[n]; len(f) > 0 {
		return f[0].at
	}
	if m.archive {
		return absent | removed
	}
	return absent | finished | removed
}

func (m *model) settle(it *item, at place) {
	if it.at&at == 0 {
		m.wrong(it.N, "G3: message %d of group %q, %s, was told to be %s, and is %s", it.N, it.Group, it.id, it.at, at)
	} else {
		at &= it.at
	}
	it.at, it.touched = at, m.now
}

// compareEffects: there is an effect if and only if the ack that wrote it was committed.
func (m *model) compareEffects(d *dump) {
	for n := range d.effects {
		if it := m.items[n]; it == nil || it.effect == noEffect {
			m.wrong(n, "message %d has an effect, and nobody has written one", n)
		}
	}
	for _, it := range m.sorted() {
		there := d.effects[it.N]
		at := m.placeIn(d, it.N)
		switch {
		case it.effect == noEffect:
			continue
		case it.effect == theEffect && !there:
			m.wrong(it.N, "message %d was acked with an effect, which is not there", it.N)
		case there && at&finished == 0:
			m.wrong(it.N, "message %d has an effect, and is %s", it.N, at)
		case !there && it.effect == anEffect && at&it.at == finished:
			m.wrong(it.N, "message %d is finished, and its effect is not there", it.N)
		}
		if there {
			it.effect = theEffect
		} else if it.effect == anEffect {
			it.effect = noEffect
			it.at &^= finished // the ack that could finish it did not
		} else if it.effect == mayEffect {
			it.effect = noEffect
		}
	}
}

// compareOpen: an operation that was not acknowledged is there whole or not at all.
func (m *model) compareOpen(d *dump, unknown map[string]*outcomes) {
	for _, o := range m.open {
		u := unknown[o.Kind]
		if u == nil {
			u = &outcomes{}
			unknown[o.Kind] = u
		}
		there, not := m.traces(o, d)
		switch {
		case there > 0 && not > 0:
			for _, msg := range o.Msgs {
				m.history.items[msg.N] = true
			}
			for _, n := range o.Items {
				m.history.items[n] = true
			}
			m.problem("half of an operation: %d of %d traces of an %s of %v %v", there, there+not, o.Kind, o.Msgs, o.Items)
		case there > 0:
			u.Found++
		case not > 0:
			u.NotFound++
		default:
			u.Open++
		}
	}
	// A receive has taken effect if there is a lock whose token no child was told.
	if u := unknown[kindReceive]; u != nil {
		for _, token := range d.locks {
			if !m.told[token] && u.Open > 0 {
				u.Open--
				u.Found++
				m.told[token] = true
			}
		}
	}
}

// traces counts the effects that only this operation can have caused: those that are there, and those that are not.
func (m *model) traces(o *operation, d *dump) (there, not int) {
	count := func(yes bool) {
		if yes {
			there++
		} else {
			not++
		}
	}
	switch o.Kind {
	case kindEnqueue, kindResend:
		for _, msg := range o.Msgs {
			it, at := m.items[msg.N], m.placeIn(d, msg.N)&m.items[msg.N].at
			if o.fresh[it.N] && (at&absent == 0 || at == absent) {
				count(at != absent)
			}
		}
	case kindAck, kindAckReceive:
		for _, n := range o.Items {
			it := m.items[n]
			if at := m.placeIn(d, n) & it.at; o.adds[n] && o.undisturbed(it) && (at&finished == 0 || at == finished) {
				count(at == finished)
			}
		}
		if o.State != "" && m.stateAt[o.Group] == o.begun {
			count(d.states[o.Group] == o.State)
		}
	case kindNack:
		if len(o.Items) > 0 && o.Reject {
			if it := m.items[o.Items[0]]; o.undisturbed(it) {
				count(m.placeIn(d, it.N) == dead)
			}
		}
	case kindConfigure:
		// Which of them is there is told by the stored value, see compare.
	}
	return there, not
}

// soundness checks the queue's own rules, and compares its counters with the content of the file.
func (m *model) soundness(ctx context.Context, q *layer.Queue, d *dump) error {
	report, err := q.Admin().Check(ctx, layer.CheckOptions{})
	if err != nil {
		return fmt.Errorf("crash: check: %w", err)
	}
	for _, v := range report.Violations {
		m.problem("check: %s", v)
	}
	stats, err := q.Stats(ctx, layer.StatsOptions{})
	if err != nil {
		return fmt.Errorf("crash: stats: %w", err)
	}
	var in = map[place]int64{}
	for _, f := range d.items {
		for _, f := range f {
			in[f.at]++
		}
	}
	if report.Items != in[waiting] || report.Dead != in[dead] || report.Archived != in[finished] {
		m.problem("check has counted %d items, %d dead, %d archived; there are %v", report.Items, report.Dead, report.Archived, in)
	}
	if stats.Depth != in[waiting] || stats.Dead != in[dead] {
		m.problem("half of an operation: the counters say %d waiting, %d dead; there are %d and %d", stats.Depth, stats.Dead,
			in[waiting], in[dead])
	}
	if stats.InFlight != d.held {
		m.problem("half of an operation: the counters say %d in flight; there are claims on %d", stats.InFlight, d.held)
	}
	return nil
}

// drain handles all that is left: it comes in order, and nothing else comes.
func (m *model) drain(ctx context.Context, q *layer.Queue) error {
	j := &drainJournal{m: m}
	j.run(event{Kind: kindRedrive}, func(*event) error {
		_, err := q.Admin().Redrive(ctx, layer.DeadFilter{All: true}, layer.RedriveOptions{})
		return err
	})
	for j.err == nil {
		var claims []*layer.Claim
		j.run(event{Kind: kindReceive}, func(e *event) (err error) {
			if claims, err = q.Receive(ctx, layer.ReceiveOptions{Max: 100, State: true}); err == nil {
				e.Claims, err = told(claims)
			}
			return err
		})
		if len(claims) == 0 {
			// The loop puts back the dead letters that a takeover has made since.
			report := layer.DeadReport{}
			j.run(event{Kind: kindRedrive}, func(*event) (err error) {
				report, err = q.Admin().Redrive(ctx, layer.DeadFilter{All: true}, layer.RedriveOptions{})
				return err
			})
			if report.Done == 0 {
				return j.err
			}
		}
		for _, c := range claims {
			ack := event{Kind: kindAck, Group: c.Group, Token: c.Token, Items: numbers(c.Items)}
			j.run(ack, func(*event) error { return q.Ack(ctx, c) })
		}
	}
	return j.err
}

// drainJournal tells the model what the parent does itself.
type drainJournal struct {
	m   *model
	op  int
	err error
}

func (j *drainJournal) run(e event, do func(e *event) error) {
	if j.err != nil {
		return
	}
	j.op++
	e.Op = j.op
	e.stamp()
	j.m.see(e)
	if j.err = do(&e); j.err == nil {
		e.Done = true
		e.stamp()
		j.m.see(e)
	}
}

// check opens nothing and closes nothing: it reads the queue in db and compares.
func (m *model) check(ctx context.Context, db kv.DB, q *layer.Queue, unknown map[string]*outcomes) error {
	d, err := readAll(ctx, db)
	if err != nil {
		return err
	}
	if err := m.soundness(ctx, q, d); err != nil {
		return err
	}
	c, _, err := q.Admin().ReadConfig(ctx)
	if err != nil {
		return fmt.Errorf("crash: configuration: %w", err)
	}
	m.compare(d, c, unknown)
	return nil
}
