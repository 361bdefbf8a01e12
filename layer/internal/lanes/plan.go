// Package lanes names the parts of a queue that are delivered in order.
//
// A lane is a group, the part of a group that a template matches, the free items of a group, or a single item. Each
// lock, hint, grant and mark is about one lane, and each timer except that of a heartbeat. A lock has the claim of a
// lane, and a hint leads receives to a lane that is ready; the table in layer/subspace.go has all keys. In a queue
// without further settings a lane is a whole group.
//
// A lane has a name, which is a string. The name of a whole group is the group itself. Any other name begins with the
// byte 0xff, which begins no group because groups are UTF-8, and continues with the tuple (group, view, values …).
// Example: the items of group A with state NEW, in the first view, are the lane 0xff ("A", 1, "NEW"). The tuple without
// the group, (view, values …), is a packed template. The packed template of whole groups is "".
//
// A Plan follows from three settings: facets with their views, unordered, and lease_per. These settings never change
// after Create. There are four kinds of queue:
//
//   - Plain: each group is one lane, with one claim at a time.
//   - With facets: some headers are facets, and a view is a set of facets. The lanes are the parts of the groups, one
//     part for each template (values of a view's facets). With the view "*" whole groups are lanes too.
//   - Unordered: receives claim whole groups, or single free items in any order. The claim of a single item is a hold.
//     The free lane of a group has the items that no hold has taken out.
//   - In turn (lease_per=item): each item in flight has a hold. A group is delivered up to its first item in flight.
//
// A Plan answers questions about lanes. Example: Plan.LanesOf returns the lanes that an item is in.
//
// No other package may ask which of the settings is set. The fields of Plan are therefore private. A new kind of queue
// must be a new answer in this package, not a new question elsewhere. A method or function with a bool as its only
// result is such a question, and internal/lint/floors counts its calls.
//
// The package reads no key and begins no transaction.
package lanes

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"fdbfifo/kv/tuple"
	"fdbfifo/layer/internal/rec"
)

// WholeView is the view of whole groups.
const WholeView = "*"

// Settings are the settings of a queue from which its Plan follows.
type Settings struct {
	Facets    []string // names of headers
	Views     []View
	Unordered bool // consumers may claim any free item
	PerItem   bool // each item in flight has a claim of its own, and items are claimed in turn
}

// View is a set of facets. A template gives a value for each facet of a view.
type View struct {
	Text   string   // as the queue's setting has the view; WholeView for whole groups
	Facets []string // in the order of Settings.Facets
}

// Plan says which lanes the groups of a queue have. The zero Plan is that of a queue without facets, which is not
// unordered and has a lease for each claim: then each group is one lane. Plans cannot be compared.
type Plan struct {
	_  [0]func()
	of *plan // nil = each group is one lane
}

// plan is the facets and views of a queue, and which single items can be claimed. The package comment explains the
// kinds of queue.
type plan struct {
	facets []string
	texts  []string // of the views, the whole view too
	views  [][]int  // the facets of each view except the whole view, as places in facets; the first view has number 1
	whole  bool     // whole groups can be received, too
	holds  bool     // items can be claimed by themselves
	inTurn bool     // items are claimed by themselves, and in order
}

// New returns the plan of a queue with the given settings. The caller must have checked them: Settings with more than
// one kind of queue are refused elsewhere.
func New(s Settings) Plan {
	switch {
	case s.Unordered:
		return Plan{of: &plan{whole: true, holds: true}}
	case s.PerItem:
		return Plan{of: &plan{whole: true, holds: true, inTurn: true}}
	case len(s.Facets) == 0:
		return Plan{}
	}
	p := &plan{facets: slices.Clone(s.Facets)}
	for _, v := range s.Views {
		p.texts = append(p.texts, v.Text)
		if v.Text == WholeView {
			p.whole = true
			continue
		}
		var view []int
		for _, name := range v.Facets {
			view = append(view, slices.Index(s.Facets, name))
		}
		p.views = append(p.views, view)
	}
	return Plan{of: p}
}

// CheckJoin returns an error, which wraps refused, if the queue allows no message to join its group when it is due
// (Message.JoinWhenDue). Such a message waits in another group, and is found there as the head of the whole group.
func (p Plan) CheckJoin(refused error) error {
	if p.of == nil || p.of.inTurn {
		return nil
	}
	return fmt.Errorf("%w: JoinWhenDue, in a queue with facets or with unordered consumers", refused)
}

// CheckOneHolder returns an error, which wraps refused, if a group may have several holders at a time. need names an
// option that goes with one holder only. Example: the token of "the" claim of a group.
func (p Plan) CheckOneHolder(need string, refused error) error {
	if p.of == nil {
		return nil
	}
	return fmt.Errorf("%w: %s, where a group may have several holders (facets, unordered, lease_per=item)",
		refused, need)
}

// Facets returns the names of the facets, in the order of their declaration.
func (p Plan) Facets() []string {
	if p.of == nil {
		return nil
	}
	return p.of.facets
}

// Views returns the text of the views, as the queue's setting has them; "" = the queue has no facets.
func (p Plan) Views() string {
	if p.of == nil {
		return ""
	}
	return strings.Join(p.of.texts, "; ")
}

// Pack returns the packed facets of a message with the given headers: their values as a tuple, in the order of the
// declaration of the facets, as a lock keeps them for the items of its claim. Pack returns "" if the queue has no
// facets.
func (p Plan) Pack(headers map[string]string) string {
	var b []byte
	for _, name := range p.Facets() {
		b = tuple.AppendString(b, headers[name])
	}
	return string(b)
}

// FacetsIn returns the packed facets of an item with the given stored value; "" if the value cannot be read.
func (p Plan) FacetsIn(value []byte) string {
	if len(p.Facets()) == 0 {
		return ""
	}
	e, _, err := rec.OpenEnvelope(value)
	if err != nil {
		return ""
	}
	return p.Pack(e.Headers)
}

// Unpack returns the values of packed facets by the names of the facets; nil = there are none.
func (p Plan) Unpack(packed string) map[string]string {
	facets := p.Facets()
	if packed == "" || len(facets) == 0 {
		return nil
	}
	named := make(map[string]string, len(facets))
	for i, value := range rec.UnpackStrings(packed) {
		if i < len(facets) {
			named[facets[i]] = value
		}
	}
	return named
}

// ErrNoView is the error of Plan.Where for a template that gives values for the facets of no view.
var ErrNoView = errors.New("the template is of no view")

// Where packs a template: (view, values …), or "" for nil, if whole groups can be received. check is called for each
// value, and its error is returned. If no view has exactly the facets of the template, or the template is nil and whole
// groups cannot be received, the error is ErrNoView.
func (p Plan) Where(template map[string]string, check func(facet, value string) error) (string, error) {
	if template == nil && (p.of == nil || p.of.whole) {
		return "", nil
	}
	if p.of == nil {
		return "", ErrNoView
	}
	for i, view := range p.of.views {
		if len(view) != len(template) {
			continue
		}
		b := tuple.AppendInt(nil, int64(i+1))
		fits := true
		for _, facet := range view {
			name := p.of.facets[facet]
			value, ok := template[name]
			if !ok {
				fits = false
				break
			}
			if err := check(name, value); err != nil {
				return "", err
			}
			b = tuple.AppendString(b, value)
		}
		if fits {
			return string(b), nil
		}
	}
	return "", ErrNoView
}

var errNoLane = errors.New("no item of the queue can be in the lane")

// CheckLane returns an error if no item of the queue can be in the lane, because the queue has no such view, or no
// holds. Views never change, so no process has written a row with such a lane. The zero Plan refuses nothing. If items
// are claimed in turn, the free lane is not refused either.
func (p Plan) CheckLane(lane string) error {
	if p.of == nil || !IsPart(lane) {
		return nil
	}
	_, where := Split(lane)
	known := p.TemplateOf(lane) != nil
	if where == Free || IsHold(lane) {
		known = p.of.holds
	}
	if !known {
		return errNoLane
	}
	return nil
}

// TemplateOf returns the template of a lane; nil for a whole group, and for a lane of no view.
func (p Plan) TemplateOf(lane string) map[string]string {
	_, where := Split(lane)
	view, values := SplitWhere(where)
	if p.of == nil || view < 1 || view > len(p.of.views) || len(values) != len(p.of.views[view-1]) {
		return nil
	}
	t := make(map[string]string, len(values))
	for i, facet := range p.of.views[view-1] {
		t[p.of.facets[facet]] = values[i]
	}
	return t
}

// LanesOf returns the lanes that an item is in: the whole group if whole groups can be received, and then the lanes of
// PartsOf. facets is the item's packed facets.
func (p Plan) LanesOf(group, facets string) []string {
	parts := p.PartsOf(group, facets)
	if p.of != nil && !p.of.whole {
		return parts
	}
	return append([]string{group}, parts...)
}

// PartsOf returns the lanes, other than the whole group, that an item is in: one for each view; in an unordered queue
// the free lane; otherwise none. facets is the item's packed facets.
func (p Plan) PartsOf(group, facets string) []string {
	switch {
	case p.of == nil || p.of.inTurn:
		return nil
	case p.of.holds:
		return []string{Name(group, Free)}
	}
	parts, values := make([]string, len(p.of.views)), rec.UnpackStrings(facets)
	for i, view := range p.of.views {
		b := tuple.AppendInt(tuple.AppendString([]byte{partByte}, group), int64(i+1))
		for _, facet := range view {
			if facet < len(values) {
				b = tuple.AppendString(b, values[facet])
			}
		}
		parts[i] = string(b)
	}
	return parts
}

// KnownParts returns the lanes of PartsOf for packed facets. facets = "" means, in a queue with facets, that the item
// could not be read: then KnownParts returns none.
func (p Plan) KnownParts(group, facets string) []string {
	if facets == "" && len(p.Facets()) > 0 {
		return nil
	}
	return p.PartsOf(group, facets)
}

// CountParts returns how many lanes PartsOf returns for each item.
func (p Plan) CountParts() int { return len(p.PartsOf("", "")) }

// fixed returns the values that a packed template fixes, by the places of the facets in p.facets. Example: in a queue
// with the facets state and region, a template of the view region fixes the value of place 1 alone.
func (p *plan) fixed(where string) map[int]string {
	view, values := SplitWhere(where)
	fixed := make(map[int]string, len(values))
	if view >= 1 && view <= len(p.views) {
		for i, facet := range p.views[view-1] {
			if i < len(values) {
				fixed[facet] = values[i]
			}
		}
	}
	return fixed
}

// Intersect reports whether two lanes of a group can have an item in common. They can, unless the templates of both
// give a value to the same facet, and the values differ. Example: the lanes of state NEW and of region EU intersect.
// The free lane and a hold count as the whole group here.
func (p Plan) Intersect(a, b string) bool {
	if p.of == nil {
		return true
	}
	_, whereA := Split(a)
	_, whereB := Split(b)
	other := p.of.fixed(whereB)
	for facet, value := range p.of.fixed(whereA) {
		if v, ok := other[facet]; ok && v != value {
			return false
		}
	}
	return true
}

// Meeting returns two of the lanes of a group that can have an item in common; ok is false if no two have. all is names
// of lanes. a comes before b in all. Meeting leaves out holds.
//
// The time is about linear in the number of lanes. Two lanes meet if they have the same values of the facets that both
// of their templates fix. So Meeting looks for equal values in each pair of views.
func (p Plan) Meeting(all []string) (a, b string, ok bool) {
	if p.of == nil {
		if len(all) < 2 {
			return "", "", false
		}
		return all[0], all[1], true
	}
	type placed struct {
		at     int            // in all
		values map[int]string // as fixed returns them
	}
	views := make(map[string][]placed) // by the facets that a lane fixes
	for i, lane := range all {
		if IsHold(lane) {
			continue
		}
		_, where := Split(lane)
		values := p.of.fixed(where)
		var facets []byte
		for _, facet := range slices.Sorted(maps.Keys(values)) {
			facets = tuple.AppendInt(facets, int64(facet))
		}
		views[string(facets)] = append(views[string(facets)], placed{i, values})
	}
	names := slices.Sorted(maps.Keys(views))
	for i, first := range names {
		for _, second := range names[i:] {
			var common []int // the facets that the lanes of both views fix
			for facet := range views[first][0].values {
				if _, both := views[second][0].values[facet]; both {
					common = append(common, facet)
				}
			}
			of := func(l placed) string { // the values of these facets
				var values []byte
				for _, facet := range common {
					values = tuple.AppendString(values, l.values[facet])
				}
				return string(values)
			}
			seen := make(map[string]int, len(views[first])) // the place of a lane with these values
			for _, l := range views[first] {
				values := of(l)
				if other, meets := seen[values]; meets && first == second {
					return all[other], all[l.at], true
				}
				seen[values] = l.at
			}
			if first == second {
				continue
			}
			for _, l := range views[second] {
				if other, meets := seen[of(l)]; meets {
					return all[min(other, l.at)], all[max(other, l.at)], true
				}
			}
		}
	}
	return "", "", false
}

// Locks names one lock of a group or several: methods of Plan return which locks a transaction must read. If Below, All
// and Holds are false, it is the lock of the lane with the packed template Where; "" = the lock of the whole group.
type Locks struct {
	Where string // the packed template of a lane, or the beginning of one
	Below bool   // the locks of all lanes of which the packed template begins with Where, except that of Where itself
	All   bool   // the locks of the whole group and of all its other lanes, apart from holds
	Holds bool   // the locks of all holds of the group
}

// Excluding returns the locks under which an item of a lane can be, apart from holds: the lane's own lock, and those of
// lanes that intersect the lane. A transaction that claims the lane must read them.
//
// The locks of another view are as few as the leading facets of that view allow. Example: the views are "state; region;
// state,region". For the lane of state NEW, Excluding returns the locks with templates that begin with (3, "NEW"). For
// the lane of region EU it returns all locks of view 3, because region is not the first facet there.
func (p Plan) Excluding(lane string) []Locks {
	_, where := Split(lane)
	switch {
	case p.of == nil:
		return []Locks{{Where: where}}
	case where == "":
		return []Locks{{All: true}}
	}
	fixed := p.of.fixed(where)
	own, _ := SplitWhere(where)
	all := []Locks{{}, {Where: where}}
	for i, view := range p.of.views {
		if i+1 == own {
			continue
		}
		b, whole := tuple.AppendInt(nil, int64(i+1)), true
		for _, facet := range view {
			value, ok := fixed[facet]
			if !ok {
				whole = false
				break
			}
			b = tuple.AppendString(b, value)
		}
		all = append(all, Locks{Where: string(b), Below: !whole})
	}
	return all
}

// NeedsHint reports whether a receive can claim a lane. Then the lane must have a hint while its first item is ready.
// Example: in a queue with the view "state" alone, whole groups need no hint.
func (p Plan) NeedsHint(lane string) bool { return p.of == nil || p.of.whole || IsPart(lane) }

// KeepsHints reports whether a hint is put aside (as a kept hint) under a lock that excludes the hint's lane, so that
// the release of the lock must put the hint back. If items are claimed in turn, such a hint is cleared instead.
func (p Plan) KeepsHints() bool { return p.of != nil && !p.of.inTurn }

// Leaving returns, for an item that leaves the queue, the lanes of which the item may be the first (of), and the lanes
// whose keys of the item must be cleared (parts). by is the lane whose claim has the item, or the group. facets is the
// item's packed facets. A claim of a single item has taken the item out of its parts already.
//
// Nothing is returned if other reads make sure that the lanes are found again: in a queue in which each group is one
// lane, or items are claimed in turn. Nothing is returned either for an item whose facets are not known.
func (p Plan) Leaving(by, facets string) (of, parts []string) {
	if p.of == nil || p.of.inTurn || facets == "" && len(p.of.facets) > 0 {
		return nil, nil
	}
	group := GroupOf(by)
	of = p.LanesOf(group, facets)
	if _, out := p.TakenOutOf(by); out {
		return of, nil
	}
	if p.of.whole {
		return of, of[1:]
	}
	return of, of
}

// LocksOf returns the locks of a group and of the given parts of the group, which are lanes. If items are claimed by
// themselves (holds), these are all locks of the group, apart from those of the holds.
func (p Plan) LocksOf(group string, parts []string) []Locks {
	if p.HasHolds() {
		return []Locks{{All: true}}
	}
	all := []Locks{{}}
	for _, lane := range parts {
		_, where := Split(lane)
		all = append(all, Locks{Where: where})
	}
	return all
}

// Others returns the locks of the lanes that a claim of a whole group excludes, with holds. The lock of the group
// itself may be among them. In a queue in which each group is one lane there are none.
func (p Plan) Others() []Locks {
	switch {
	case p.of == nil:
		return nil
	case p.of.holds:
		return []Locks{{Holds: true}, {All: true}}
	}
	return []Locks{{All: true}}
}

// Looked returns the locks that a look at a lane must read, to find out whether the lane is free: those of Excluding,
// or more if they are few. many: a range may have many locks.
func (p Plan) Looked(lane string) (all []Locks, many bool) {
	if p.HasHolds() {
		return []Locks{{All: true}}, false // those of the group and of the free lane
	}
	return p.Excluding(lane), true
}

// LanesOver returns the lanes of which a claim may have an item: its group comes first, then the parts that the item is
// in, or its hold. facets is the item's packed facets. If they are not known, others is true: a claim of any part of
// the group may have the item.
func (p Plan) LanesOver(item Item, facets string) (all []string, others bool) {
	all = []string{item.Group}
	if p.HasHolds() {
		return append(all, Hold(item)), false // the free lane is never locked
	}
	return append(all, p.KnownParts(item.Group, facets)...), facets == "" && len(p.Facets()) > 0
}

// HoldOn returns the hold of an item: the lane of a claim of this item alone. false = the queue has no such claims.
func (p Plan) HoldOn(item Item) (lane string, ok bool) {
	if !p.HasHolds() {
		return "", false
	}
	return Hold(item), true
}

// SoughtBy returns the packed template of the receives that find a lane: "" for a whole group, and HoldWhere for a
// hold.
func (p Plan) SoughtBy(lane string) string {
	if IsHold(lane) {
		return p.HoldWhere()
	}
	_, where := Split(lane)
	return where
}

// WhereUnordered returns the packed template of unordered receives; false = the queue has none.
func (p Plan) WhereUnordered() (where string, ok bool) {
	if p.TakesAny() {
		return Free, true
	}
	return "", false
}

// TakenOutOf returns the lane out of which a claim of the given lane takes its items: for a hold in an unordered queue,
// the free lane. The end of the claim must put the items back. out = false: the items stay in their lanes.
func (p Plan) TakenOutOf(lane string) (part string, out bool) {
	if p.TakesAny() && IsHold(lane) {
		return Name(GroupOf(lane), Free), true
	}
	return "", false
}

// TurnOf returns the group in which no item behind the given lane is delivered again while the lane is held: for a hold
// in a queue whose items are claimed in turn. false = no group waits for the lane.
func (p Plan) TurnOf(lane string) (group string, ok bool) {
	if p.InTurn() && IsHold(lane) {
		return GroupOf(lane), true
	}
	return "", false
}

// DeliversAny reports whether a receive can claim any item of a lane that is due, instead of the first item alone. That
// is so for the free lane of an unordered queue.
func (p Plan) DeliversAny(lane string) bool {
	_, where := Split(lane)
	return p.TakesAny() && where == Free
}

// MeetsHolds reports whether holds of the group can keep items of a lane from a claim of the lane.
func (p Plan) MeetsHolds(lane string) bool { return p.HasHolds() && !IsPart(lane) }

// JoinsAnywhere reports whether an item can join a lane before other items of the lane, because the facets of an item
// can change. Example: item 1 gets the state PAID while item 2 is in the lane of that state.
func (p Plan) JoinsAnywhere(lane string) bool { return IsPart(lane) && !p.HasHolds() }

// HoldWhere returns the packed template of the receives that end holds: "", that of whole groups, if items are claimed
// in turn, and Free in an unordered queue.
func (p Plan) HoldWhere() string {
	if p.InTurn() {
		return ""
	}
	return Free
}

// CountedWhere returns the packed template by which the groups of a template are counted. Those of whole groups ("") in
// an unordered queue are counted by their free items.
func (p Plan) CountedWhere(where string) string {
	if where == "" && p.TakesAny() {
		return Free
	}
	return where
}

// ClaimsItems reports whether receives by the packed template claim single items, and end such claims.
func (p Plan) ClaimsItems(where string) bool { return p.HasHolds() && where == p.HoldWhere() }

// NamedBy returns the words of an error: which claims need more than their group, and the field that they need. Both
// are "" if the group is enough.
func (p Plan) NamedBy() (claim, field string) {
	switch {
	case p.of == nil:
		return "", ""
	case p.of.holds:
		return "of a single message", "Hold"
	}
	return "by a template", "Where, too"
}

// CountedViews returns the views of which a queue counts the ready lanes, for its figures: none of a queue without
// facets.
func (p Plan) CountedViews() []CountedView {
	if p.of == nil || p.of.holds {
		return nil
	}
	all, n := make([]CountedView, len(p.of.texts)), 0
	for i, text := range p.of.texts {
		if all[i].Text = text; text != WholeView {
			n++
			all[i].Number = n
		}
	}
	return all
}

// CountedView is a view of which the ready lanes are counted.
type CountedView struct {
	Text   string // as View.Text
	Number int    // in packed templates; 0 = whole groups
}

// IsPlain reports whether each group is one lane and has one claim at most.
func (p Plan) IsPlain() bool { return p.of == nil }

// HasHolds reports whether items are claimed by themselves: in an unordered queue, or in turn.
func (p Plan) HasHolds() bool { return p.of != nil && p.of.holds }

// InTurn reports whether items are claimed by themselves and in order (lease_per=item).
func (p Plan) InTurn() bool { return p.of != nil && p.of.inTurn }

// TakesAny reports whether the queue has unordered consumers.
func (p Plan) TakesAny() bool { return p.HasHolds() && !p.of.inTurn }
