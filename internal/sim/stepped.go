package sim

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"fdbfifo/kv/fault"
	"fdbfifo/layer"
)

// Two operators pause and resume one group with many lanes, by a handle each. Most lanes are held or halted, and the
// transactions of the operators lose conflicts. So a forced pause and a resume take several steps, and the other
// operator's calls come between. The laws:
//
//   - A resume removes no pause that was set after its first step.
//   - A pause sets its mark once: if the other operator removes the mark, no later step sets it again.
//   - A pause that succeeds has a moment at which the group is paused, a resume one at which the group is not. Marks
//     change by calls only (see unmarked). So the last call decides.

// steppedProfiles are the profiles of operators between the steps of others, which no seed draws by itself.
var steppedProfiles = []string{"stepped"}

// steppedFrom is the first handle that only an operator uses.
const steppedFrom = 4

// steppedBy makes a transaction of an operator lose up to so many conflicts. A step then changes few lanes.
const steppedBy = 7

// operatorsInSteps: a group with up to 60 lanes, whose workers die and halt lanes.
func (k *knobs) operatorsInSteps(rng *rand.Rand) {
	k.scarce(rng)
	k.faultless()
	views := []string{"state", "*; state", "state,region; region", "state; region"}[rng.IntN(4)]
	k.setLanes(rng)
	k.plan = newLanePlan(views, rng)
	k.config.Facets, k.config.Views = k.plan.facets, views
	k.plan.values["state"] = nil
	for i := range 30 {
		k.plan.values["state"] = append(k.plan.values["state"], fmt.Sprintf("S%d", i))
	}
	k.stepped, k.groups, k.batch, k.receive = true, 1, 10, 10
	k.handles, k.producers, k.workers, k.operators, k.takers, k.consumers, k.stewards = 5, 1, 2, 2, 0, 0, 0
	k.operations, k.think, k.wait = []int{0, 1}, 200*time.Millisecond, time.Second
	k.nack, k.reject, k.die, k.freeze, k.partial, k.inTx, k.state = 0.5, 0.7, 0.5, 0, 0, 0, 0
	k.named, k.large, k.delayed = 0, 0, 0
	k.config.MaxAttempts, k.config.OnFailure, k.config.Lease = 1, layer.HaltGroup, maxLease
	k.config.MaxWaiting, k.config.Retention, k.config.Delay = 0, 0, 0
}

// endsBetween reports whether an error says that another operator has resumed the group between two steps of a pause.
func (k *knobs) endsBetween(err error) bool { return k.stepped && errors.Is(err, layer.ErrChanged) }

// losesSteps makes the commit of an operator lose a conflict.
func (t *transaction) losesSteps() {
	if w := t.e.w; w.faulty && t.e.who >= steppedFrom && t.attempt < t.n%(steppedBy+1) {
		w.plan.ForceNext(fault.Conflict)
	}
}

// markedAt is a change of the mark of a group or of one of its lanes.
type markedAt struct {
	r      *record
	whole  bool // of the group
	marked bool
}

// marks follows the marks of a group and of its lanes, by their changes.
func (m *model) marks(lane string, old, next *lockState) {
	was, is := "", ""
	if old != nil {
		was = old.marked
	}
	if next != nil {
		is = next.marked
	}
	if !m.w.knobs.stepped || (was == "") == (is == "") {
		return
	}
	group := groupOfLane(lane)
	now := markedAt{m.r, lane == group, is != ""}
	log := m.marked[group]
	switch {
	case now.whole && is == "pause":
		m.inOneStep("pause-group", group, func(c markedAt) bool { return c.whole && c.marked })
	case now.whole && is == "":
		set := 0 // when the mark that is removed was set
		for _, c := range log {
			if c.whole && c.marked {
				set = c.r.order
			}
		}
		m.inOneStep("resume-group", group, func(c markedAt) bool { return !c.marked && c.r.order < set })
	}
	if i := len(log) - 1; i >= 0 && log[i].r != m.r && log[i].r.who == m.r.who && !now.marked && !log[i].marked {
		m.w.mark("resume in steps")
	}
	m.marked[group] = append(log, now)
}

// inOneStep holds a change of a group's mark to a call of that kind, in which no other change for which other returns
// true came before. Each handle has one operator, so a change is one of its call.
func (m *model) inOneStep(kind, group string, other func(c markedAt) bool) {
	called := false
	for _, o := range m.w.ops {
		if o.kind == "heal" && o.maybeAt(m.r) {
			return
		}
		if o.kind != kind || o.group != group || o.who != m.r.who || !o.maybeAt(m.r) {
			continue
		}
		called = true
		if !slices.ContainsFunc(m.marked[group], func(c markedAt) bool {
			return c.r.who == o.who && c.r.step >= o.begin && c.r != m.r && other(c)
		}) {
			return
		}
		m.w.mark("mark changed between two steps")
	}
	m.violation("the mark of %q is changed by a later step of a %s (called: %t)", group, kind, called)
}

// compareMarks: a call that pauses or resumes has a moment at which the group is so.
func (m *model) compareMarks() {
	for _, o := range m.w.ops {
		pause := o.kind == "pause-group"
		if !m.w.knobs.stepped || o.outcome != done || !pause && o.kind != "resume-group" {
			continue
		}
		before, ok := false, false // whether the group was marked when the call began
		for _, c := range m.marked[o.group] {
			switch {
			case !c.whole:
				ok = ok || !pause && !c.marked && o.maybeAt(c.r) // it has resumed a lane
			case c.r.step < o.begin:
				before = c.marked
			case c.r.step <= o.end:
				ok = ok || c.marked == pause
			}
		}
		if !ok && before != pause {
			m.w.violation("%s has no moment at which its group is so", o)
		}
	}
}
