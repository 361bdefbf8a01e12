package linear

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/anishathalye/porcupine"
	"github.com/google/uuid"

	"fdbfifo/layer"
)

// group is the history of one group, made ready for porcupine.
type group struct {
	law        Law
	operations []porcupine.Operation
	names      []string // of the messages, by rank
	known      set
	open       int
	phantoms   []*Operation // receives of unknown outcome
}

func compareIDs(a, b layer.ID) int {
	return cmp.Or(cmp.Compare(a.Index, b.Index), bytes.Compare(a.Random[:], b.Random[:]))
}

// prepare makes ready what was done to one group.
func prepare(l Law, history []Operation) *group {
	g := &group{law: l}
	ops := make([]*Operation, 0, len(history))
	for _, o := range history {
		if o.Outcome == Unknown {
			o.End = Never
		}
		switch {
		case o.Outcome == Refused, o.Outcome == Nothing && !l.Empty, o.Kind == Busy:
		case o.Kind == Receive && o.Outcome == Unknown:
			g.phantoms = append(g.phantoms, &o)
		default:
			o.Messages = slices.Clone(o.Messages)
			ops = append(ops, &o)
		}
	}
	g.open = len(g.phantoms)
	untold := len(untold(history))
	ids, seen := witness(ops)
	ops = slices.DeleteFunc(ops, func(o *Operation) bool { return o.Kind == Enqueue && o.Outcome == Unknown && !identify(l, o, ids) })

	undone := never(ops)
	ops = slices.DeleteFunc(ops, func(o *Operation) bool { return undone[o] })

	l.lanes = lanesOf(ops)
	g.law = l

	// Ranks.
	bodies := make(map[layer.ID]string)
	brought := make(map[layer.ID]bool)
	shown := make(map[layer.ID]bool)
	for _, o := range ops {
		for _, m := range o.Messages {
			bodies[m.ID] = cmp.Or(m.Body, bodies[m.ID])
			brought[m.ID] = brought[m.ID] || o.Kind == Enqueue
			shown[m.ID] = shown[m.ID] || o.shows()
		}
		if o.From != nil {
			bodies[*o.From] = cmp.Or(bodies[*o.From], "")
		}
		if o.Hold != (layer.ID{}) {
			bodies[o.Hold] = cmp.Or(bodies[o.Hold], "")
		}
	}
	var sorted []layer.ID
	for id := range bodies {
		sorted = append(sorted, id)
	}
	slices.SortFunc(sorted, compareIDs)
	ranks := make(map[layer.ID]int)
	for i, id := range sorted {
		ranks[id] = i
		g.names = append(g.names, cmp.Or(bodies[id], id.String()))
		if l.Loose && shown[id] && !brought[id] {
			g.known = g.known.with(setOf(i))
		}
	}

	last := int64(0)
	for _, o := range ops {
		last = max(last, o.Call)
		if o.Outcome != Unknown {
			last = max(last, o.Return)
		}
	}
	moves := movers(ops)
	for _, o := range ops {
		p := &step{Operation: o, ordered: true, from: -1}
		var all []int
		for i := range o.Messages {
			m := &o.Messages[i]
			m.Body = cmp.Or(m.Body, bodies[m.ID])
			r := ranks[m.ID]
			p.ordered = p.ordered && (len(all) == 0 || all[len(all)-1] < r)
			all = append(all, r)
		}
		p.messages = setOf(all...)
		l.lanes.place(p, all)
		if o.Hold != (layer.ID{}) {
			p.lane = l.lanes.alone(ranks[o.Hold])
		}
		if o.Unordered {
			p.busy = busy(history, o, ranks)
			p.suspect = suspect(ops, o, ranks)
		}
		if o.From != nil {
			p.from = ranks[*o.From]
		}
		returned := o.Return
		var before []int
		for id, at := range seen {
			if at < o.Call && (l.lanes == nil || o.InTurn || settledIn(moves, o, id)) {
				before = append(before, ranks[id])
			}
		}
		p.before = setOf(before...)
		if o.InTurn && o.Doubted {
			p.ended = endedMeanwhile(history, o, ranks)
			p.before = p.before.without(p.ended)
		}
		if o.Kind == Enqueue {
			if o.Outcome == Unknown {
				returned = last
			}
			for _, m := range o.Messages {
				if at, ok := seen[m.ID]; ok {
					returned = min(returned, at)
				}
			}
		} else if o.Outcome == Unknown {
			g.open++
			returned = last + 3
		}
		p.phantoms = untold
		for _, o := range g.phantoms {
			if o.Call <= returned {
				p.phantoms++
			}
		}
		g.operations = append(g.operations, porcupine.Operation{Input: p, Call: o.Call, Return: returned, Metadata: o.Span})
	}
	if g.open > len(g.phantoms) {
		p := &step{Operation: &Operation{Kind: end, Outcome: Done}, ordered: true, from: -1}
		g.operations = append(g.operations, porcupine.Operation{Input: p, Call: last + 1, Return: last + 2})
	}
	g.rows()
	return g
}

// untold returns the releases that may have ended a claim that no caller was told of, because it ended before its
// receive returned.
func untold(history []Operation) (all []Operation) {
	type claim struct {
		where string
		hold  layer.ID
		token int64
	}
	told := make(map[claim]bool)
	for _, o := range history {
		if o.Kind == Receive && o.Outcome == Done {
			told[claim{o.Where.String(), o.Hold, o.Token}] = true
			for _, m := range o.Messages {
				if o.InTurn {
					told[claim{o.Where.String(), m.ID, o.Token}] = true
				}
			}
		}
	}
	for _, o := range history {
		known := told[claim{o.Where.String(), o.Hold, o.Token}]
		if o.Kind == Release && (o.Outcome == Unknown || o.Outcome == Done && !known) {
			all = append(all, o)
		}
	}
	return all
}

// silence removes empty receives from the histories that may have got a claim of any group, which ended before they
// returned. Such a receive says nothing about the other groups.
func silence(groups map[string][]Operation) map[string][]Operation {
	var ends []Operation
	for _, history := range groups {
		ends = append(ends, untold(history)...)
	}
	left := make(map[string][]Operation, len(groups))
	for name, history := range groups {
		for _, o := range history {
			if o.Kind != Receive || o.Outcome != Nothing || !slices.ContainsFunc(ends, func(e Operation) bool {
				return e.Call <= o.Return && (e.Outcome == Unknown || o.Call <= e.Return)
			}) {
				left[name] = append(left[name], o)
			}
		}
	}
	return left
}

// shows reports whether the answer of o says that its messages were there.
func (o *Operation) shows() bool {
	return o.Outcome == Done && (o.Kind == Receive || o.Kind == Take || o.Kind == Peek || o.Kind == Cancel)
}

// witness returns the ids of the messages shown, by their bodies, the lowest first. A take or cancel of unknown outcome
// shows its messages too. Without it a message that nothing but a cancel names would have another id than the cancel
// says, or none. seen is the time at which each message was first known to be there.
func witness(ops []*Operation) (ids map[string][]layer.ID, seen map[layer.ID]int64) {
	ids, seen = make(map[string][]layer.ID), make(map[layer.ID]int64)
	for _, o := range ops {
		for _, m := range o.Messages {
			brings := o.Kind == Enqueue || o.Kind == Drop || o.Kind == Put || o.Kind == Move
			known := o.shows() || o.Outcome == Done && brings
			if at, ok := seen[m.ID]; known && (!ok || o.Return < at) {
				seen[m.ID] = o.Return
			}
			shown := o.shows() || o.Kind == Take || o.Kind == Drop || o.Kind == Put || o.Kind == Move ||
				o.Kind == Cancel && o.Outcome != NoItem
			if shown && !slices.Contains(ids[m.Body], m.ID) {
				ids[m.Body] = append(ids[m.Body], m.ID)
			}
		}
	}
	for _, all := range ids {
		slices.SortFunc(all, compareIDs)
	}
	return ids, seen
}

// identify gives an enqueue of unknown outcome the ids of its messages, and reports whether any was ever shown. If one
// was, the others are there too. Their keys are next to it, because a transaction counts its keys up.
func identify(l Law, o *Operation, ids map[string][]layer.ID) bool {
	first := slices.IndexFunc(o.Messages, func(m Message) bool { return len(ids[m.Body]) > 0 })
	if first < 0 {
		return false
	}
	base := ids[o.Messages[first].Body][0]
	var found []Message
	for i, m := range o.Messages {
		switch all := ids[m.Body]; {
		case len(all) > 0:
			m.ID = all[0]
		case l.Loose:
			continue
		default:
			m.ID = layer.ID{Group: base.Group, Index: base.Index + int64(i-first), Random: uuid.Max}
		}
		found = append(found, m)
	}
	o.Messages = found
	return true
}

// rows gives each operation a row of the picture. The operations of a client share a row unless they overlap: those
// after one of unknown outcome overlap it.
func (g *group) rows() {
	order := make([]*porcupine.Operation, len(g.operations))
	for i := range g.operations {
		order[i] = &g.operations[i]
	}
	slices.SortStableFunc(order, func(a, b *porcupine.Operation) int {
		return cmp.Or(cmp.Compare(a.Call, b.Call), cmp.Compare(a.Return, b.Return))
	})
	type row struct {
		client int
		busy   int64
	}
	var rows []row
	for _, o := range order {
		client := o.Input.(*step).Client
		i := slices.IndexFunc(rows, func(r row) bool { return r.client == client && r.busy < o.Call })
		if i < 0 {
			i = len(rows)
			rows = append(rows, row{client: client})
		}
		rows[i].busy = o.Return
		o.ClientId = i
	}
}
