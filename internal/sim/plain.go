package sim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// Plain consumers. Half of the seeds that have no facets, name no profile and have no rate of the groups run on an
// unordered queue. There some receives and workers take any free items, and others take whole groups. All their draws
// come from generators of their own.
//
// The model names the claim of one item, a hold, as a lane: the group, '#' and the item. The free items of a group are
// a lane, too: the group and '#'. So tokens, leases and timers of holds must keep the laws of groups. There are three
// more laws. No item has two holders. A claim of a group gets no held item, and none behind one. An unordered receive
// gets the first free items.

// plainKnobs says how a run uses unordered consumers.
type plainKnobs struct {
	unordered bool    // the queue is, or its claims keep their message alone
	inTurn    bool    // its claims keep their message alone: see turns
	plainly   float64 // chance that a receive is unordered
	drains    int     // the receives after the faults have stopped: 0 = of groups, 1 = of items, 2 = both
}

// drawPlain draws whether the run has unordered consumers. A run of a profile that the caller names has none, unless it
// is one of theirs.
func (k *knobs) drawPlain(o Options) {
	rng := rand.New(rand.NewPCG(o.Seed, 14))
	if rng.IntN(2) == 0 || o.Profile != "" || k.plan != nil || k.rated || k.config.MaxRate.Count > 0 {
		return
	}
	if k.setPlain(rng); rand.New(rand.NewPCG(o.Seed, 15)).IntN(3) == 0 {
		k.setTurns()
	}
}

// setTurns makes the claims of the run's queue keep their message alone. The model is that of an unordered queue,
// without keys of free items, and with one law more: nothing is claimed while an item before it is in another's hands.
func (k *knobs) setTurns() {
	k.inTurn, k.config.Unordered, k.config.LeasePerItem = true, false, true
	k.plainly, k.drains, k.state = 0, 0, 0
}

// turned: few groups, whose messages are taken, extended and given back one by one.
func (k *knobs) turned(rng *rand.Rand) {
	k.mixed(rng)
	k.setTurns()
	k.receive, k.nack = 2+rng.IntN(4), 0.2
}

// overturned: the same, with leases that end while others look for free items.
func (k *knobs) overturned(rng *rand.Rand) {
	k.outlived(rng)
	k.setTurns()
	k.receive = 2 + rng.IntN(4)
}

// setPlain makes the run's queue unordered, and takes away what such a queue refuses.
func (k *knobs) setPlain(rng *rand.Rand) {
	k.unordered, k.config.Unordered = true, true
	k.plainly, k.drains = 0.2+0.6*rng.Float64(), rng.IntN(3)
	k.config.MaxRate, k.calmRate, k.rated, k.rushes = layer.Rate{}, layer.Rate{}, false, false
	if k.config.OnFailure == layer.HaltGroup {
		k.config.OnFailure = layer.DeadLetterItem
	}
}

// mixed: few groups, which unordered consumers and ordered ones take from and fill all the time.
func (k *knobs) mixed(rng *rand.Rand) {
	k.seeking(rng)
	k.setPlain(rng)
	k.producers, k.workers, k.takers, k.operators = 2, 4+rng.IntN(3), rng.IntN(2), rng.IntN(2)
	k.groups, k.batch, k.receive, k.think = 1+rng.IntN(2), 1+rng.IntN(2), 1+rng.IntN(3), 50*time.Millisecond
	k.nack, k.die, k.freeze, k.delayed, k.config.Delay = 0.1, 0, 0, 0, 0
	k.own = 0.3 * rng.Float64()
}

// outlived: the same, with leases that end while others look for free items.
func (k *knobs) outlived(rng *rand.Rand) {
	k.mixed(rng)
	k.config.Lease, k.freeze, k.die, k.nack, k.think = layer.MinLease, 0.5, 0.1, 0, time.Second
	k.operators, k.takers = 0, 0
	k.plainly = 0.8
}

// overripe: the same, with items that wait too long, and clocks that differ.
func (k *knobs) overripe(rng *rand.Rand) {
	k.mixed(rng)
	k.apart(rng)
	k.config.Retention = time.Second + time.Duration(rng.Int64N(int64(3*time.Second)))
	k.config.DeadLetterExpired = false
	k.think = time.Second
}

// plainProfiles are the profiles of unordered consumers, which no seed draws by itself.
var plainProfiles = []string{"mixed", "outlived", "overripe", "turned", "overturned"}

// freeLaneOf returns the lane of the free items of a group.
func freeLaneOf(group string) string { return group + "#" }

// holdLaneOf is the lane of one item under a claim of its own.
func holdLaneOf(id layer.ID) string { return fmt.Sprintf("%s#%d.%s", id.Group, id.Index, id.Random) }

// isHoldLane reports whether a lane is one item.
func isHoldLane(lane string) bool {
	_, item, is := strings.Cut(lane, "#")
	return is && item != ""
}

// meetPlain is meet in an unordered queue: the whole group meets all, others meet themselves alone. known is false if
// neither lane is of such a queue.
func meetPlain(a, b string) (meet, known bool) {
	partA, partB := strings.Contains(a, "#"), strings.Contains(b, "#")
	return a == b || partA != partB, partA || partB
}

// clash reports whether a claim and a later one cannot both be live: a group can be claimed up to an item that is held.
func clash(c, later *layer.Claim) bool {
	if c.Hold != (layer.ID{}) && later.Hold == (layer.ID{}) {
		return slices.ContainsFunc(later.Items, func(i layer.Item) bool { return i.ID == c.Hold })
	}
	return meet(claimLane(c), claimLane(later))
}

// plainOptions makes some receives unordered.
func (a *actor) plainOptions(o *layer.ReceiveOptions) {
	k := a.w.knobs
	if k.inTurn {
		o.State = false
		return
	}
	if !k.unordered || a.lanes.Float64() >= k.plainly {
		return
	}
	o.Unordered, o.Strategy, o.State = true, layer.FillGroup, false
}

// plainTake makes some takes unordered.
func (a *actor) plainTake() layer.TakeOptions {
	o := layer.TakeOptions{Unordered: a.lanes.Float64() < a.w.knobs.plainly && !a.w.knobs.inTurn}
	if a.lanes.IntN(4) == 0 {
		g := a.w.group(a.lanes)
		o.Group = &g
	}
	return o
}

// plainWorker makes some workers unordered.
func (a *actor) plainWorker(o *worker.Options) {
	if !a.w.knobs.unordered || a.w.knobs.inTurn {
		return
	}
	if !a.works { // one kind for all its workers: handlers of one that was stopped by force may still come
		a.works, a.worksPlain = true, a.lanes.IntN(2) == 0
	}
	o.Unordered = a.worksPlain
}

// release is what an operator ends by force: a claim of a group, of a lane, or of an item.
func (a *actor) release(o *op) layer.ForceReleaseOptions {
	release := layer.ForceReleaseOptions{CountAttempt: a.rng.IntN(2) == 0, Where: a.opLane(o)}
	if n := len(a.w.handed); a.w.knobs.unordered && n > 0 && a.lanes.IntN(2) == 0 {
		release.Hold = a.w.handed[n-1-a.lanes.IntN(min(n, 6))]
		o.group = holdLaneOf(release.Hold)
	}
	return release
}

// drainsPlain reports whether a handle drains by items.
func (w *world) drainsPlain(who int) bool {
	k := w.knobs
	return k.unordered && !k.inTurn && (k.drains == 1 || k.drains == 2 && who%2 == 0)
}

// plainView reads the lane of a key of an unordered queue, behind its group: 0, and the item of a hold.
func (m *model) plainView(group string, t tuple.Tuple) (lane string, n int) {
	if view, ok := t[0].(int64); !ok || view != 0 {
		m.violation("no lane of %q: %v", group, t)
		return group, 0
	}
	if len(t) > 2 {
		if _, is := t[2].(uuid.UUID); is {
			return m.holdNamed(idOf(tuple.Tuple{group, t[1], t[2]})), 3
		}
	}
	m.named(group, freeLaneOf(group))
	return freeLaneOf(group), 1
}

// holdSpan is how long an item was held by itself, under one claim or several, or kept back by itself.
type holdSpan struct {
	id       layer.ID
	from, to *record // to = nil: until the end
	tokens   []int64 // of the claims
}

// holdIDOf is the item of a hold; the zero ID if a lane is none.
func holdIDOf(lane string) layer.ID {
	group, item, _ := strings.Cut(lane, "#")
	index, random, is := strings.Cut(item, ".")
	if !is {
		return layer.ID{}
	}
	n, err := strconv.ParseInt(index, 10, 64)
	if err != nil {
		panic(err) // of a text that is a hold's
	}
	return layer.ID{Group: group, Index: n, Random: uuid.MustParse(random)}
}

func (m *model) holdNamed(id layer.ID) string {
	lane := holdLaneOf(id)
	m.named(id.Group, lane)
	m.lanes.item[lane] = id
	return lane
}

// settlesPlain follows an item that comes, changes, or goes; nil = it was, or is, not there.
func (m *model) settlesPlain(id layer.ID, was, is *stored) {
	free, held := m.group(freeLaneOf(id.Group)).items, m.group(holdLaneOf(id)).items
	if is == nil {
		delete(free, id)
		delete(held, id)
		return
	}
	for _, items := range []map[layer.ID]stored{free, held} {
		if there, in := items[id]; in {
			s := *is
			s.version, s.back = there.version, there.back
			items[id] = s
		}
	}
	if was == nil {
		free[id] = *is
		m.named(id.Group, freeLaneOf(id.Group))
	}
}

// holdBegins takes the item of a hold out of the free ones. The first free item goes first: no free item that the
// receive must have seen may be before it, except a suspect item.
func (m *model) holdBegins(lane string, next *lockState) {
	id := m.lanes.item[lane]
	free := m.group(freeLaneOf(id.Group)).items
	if s, there := m.group(id.Group).items[id]; there {
		m.group(lane).items[id] = s
	}
	delete(free, id)
	m.lanes.holds = append(m.lanes.holds, &holdSpan{id: id, from: m.r})
	if !next.is("claim") {
		return
	}
	m.w.mark("item claimed by itself")
	if len(next.out) != 1 || next.out[0] != id {
		m.violation("the claim %d of %s alone has %v", next.token, id, next.out)
	}
	for other, s := range free {
		if m.seen(s) && before(other, id) && !m.blame.suspects(other) {
			m.violation("%s was claimed by itself, and %s, which is before it, is free", id, other)
		}
	}
	if m.w.knobs.inTurn {
		m.inTurn(id, next)
	}
	if g := m.group(id.Group); len(g.items) > len(free)+1 {
		m.w.mark("items of a group held side by side")
	}
}

// inTurn holds the claim of an item to its turn: those before it, which the receive must have seen, are in the same
// hands, by the same receive.
func (m *model) inTurn(id layer.ID, claim *lockState) {
	for other, s := range m.group(id.Group).items {
		if !m.seen(s) || !before(other, id) {
			continue
		}
		if l := m.group(holdLaneOf(other)).lock; !l.is("claim") || l.token != claim.token {
			m.violation("G2: %s is claimed under token %d, and %s, which is before it, is not", id, claim.token, other)
		}
	}
}

// headInHand reports whether the first item of a group is held by itself: then the timer of its hold leads to the
// group.
func (m *model) headInHand(group string) bool {
	var head *layer.ID
	for id := range m.group(group).items {
		if head == nil || before(id, *head) {
			head = &id
		}
	}
	return head != nil && m.group(holdLaneOf(*head)).lock != nil
}

// holdEnds puts the item of a hold back among those that are free, if it is there.
func (m *model) holdEnds(lane string) {
	id := m.lanes.item[lane]
	for _, h := range m.lanes.holds {
		if h.id == id && h.to == nil {
			h.to = m.r
		}
	}
	clear(m.group(lane).items)
	delete(m.lanes.of[id.Group], lane)
	if s, there := m.group(id.Group).items[id]; there {
		s.version, s.back = m.r.version, false // it joins as a new item does
		m.group(freeLaneOf(id.Group)).items[id] = s
		m.w.mark("item free again")
	}
}

// spare keeps of the held lanes those that matter for a claim of these items in another lane. The hold of an item
// matters only if the claim has that item.
func (m *model) spare(held []string, ids []layer.ID) []string {
	return slices.DeleteFunc(held, func(lane string) bool {
		return isHoldLane(lane) && !slices.Contains(ids, m.lanes.item[lane])
	})
}

// endPlain holds the items that a record has touched to their keys among the free ones.
func (m *model) endPlain(after map[string][]byte) {
	if !m.w.knobs.unordered {
		return
	}
	touched, groups := make(map[layer.ID]bool), make(map[string]bool)
	for k := range after {
		switch name, rest := m.keyOf([]byte(k)); name {
		case "lane":
			touched[idOf(tuple.Tuple{rest[0], rest[2], rest[3]})] = true
		case "item":
			touched[idOf(rest)] = true
		case "hold":
			id := idOf(rest)
			touched[id], groups[id.Group] = true, true
			m.keptUnder(holdLaneOf(id))
		case "lock":
			group, _ := rest[0].(string)
			groups[group] = true
			m.keptUnder(group)
		case "kept":
			m.keptUnder(m.keeper(rest))
		}
	}
	for id := range touched {
		_, free := m.group(freeLaneOf(id.Group)).items[id]
		_, there := m.group(id.Group).items[id]
		if m.w.knobs.inTurn {
			free = false // there are no keys of free items
		}
		if key := m.db[keyFor("lane", id.Group, int64(0), id.Index, id.Random)] != nil; key != free {
			m.violation("%s has a key among the free items: %t, and is there: %t, and free: %t", id, key, there, free)
		}
		if l := m.group(holdLaneOf(id)).lock; l != nil && !there {
			m.violation("%s is held by itself, and not there", id)
		}
	}
	for group := range groups {
		if m.apart(group); m.w.knobs.inTurn {
			m.led(group)
		}
	}
}
