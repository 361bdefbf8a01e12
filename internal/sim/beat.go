package sim

import (
	"context"
	"maps"
	"math"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// Claims by heartbeat. A share of the seeds has handles whose receives and workers claim by heartbeat, so that their
// claims last as long as the handle lives. Each handle's beat is an actor of its own, which is held up, dies and stands
// still with its handle.
//
// The model follows the beats and their lists of claims, and checks each commit against these laws:
//
// - No handle takes over a group with a claim by heartbeat.
//
// - A claim by heartbeat is in the list of its beat. The beat and the timer that leads to it are there.
//
// - A claim loses its heartbeat by an extend of its holder, or when the beat is due by the clock of the handle that
// ends it. Then its end is the time at which the beat was due. So a handle that moves its beat in time keeps its
// claims.
//
// - No claim joins a beat that is being ended. A beat that is gone leaves no rows, and never comes back.
//
// - Only its handle moves a beat, and never back.
//
// - In runs without faults no claim ends in this way.
//
// A receiver by heartbeat must settle each claim (ReceiveOptions.Heartbeat), or extend it once and leave it. The actors
// do so. But each second handle, if it lives to the end of the faults, is closed with its claims in flight. The groups
// of these handles, and of all dead handles, are taken over and drained within the same bound as all others.

// beatKnobs says how a run uses heartbeats.
type beatKnobs struct {
	beats    float64 // chance that a receive or a worker has its claims by heartbeat; 0 = none
	deserted bool    // each second handle is closed with claims in flight
}

// beatProfiles are the profiles of heartbeats, which no seed draws by itself.
var beatProfiles = []string{"beating", "leasing", "paged", "steady"}

// drawBeats draws whether the run has claims by heartbeat, by a generator of its own. A run of a profile that the
// caller names has none, unless it is one of theirs.
func (k *knobs) drawBeats(o Options) {
	rng := rand.New(rand.NewPCG(o.Seed, 26))
	if rng.IntN(3) > 0 || o.Profile != "" || k.plan != nil || k.unordered || k.inTurn {
		return
	}
	k.setBeats(rng)
}

func (k *knobs) setBeats(rng *rand.Rand) {
	k.beats, k.deserted = 0.2+0.8*rng.Float64(), rng.IntN(2) == 0
}

// beating: handles with short leases that die, stand still and are late, while their groups are settled and shards are
// raised.
func (k *knobs) beating(rng *rand.Rand) {
	k.seeking(rng)
	k.setBeats(rng)
	k.groups, k.handles, k.workers, k.consumers = 1+rng.IntN(5), 2+rng.IntN(3), 3+rng.IntN(3), rng.IntN(2)
	k.operators, k.operations, k.takers = 1, []int{13, 13, 9, 7}, rng.IntN(2)
	k.config.Lease, k.config.MaxAttempts, k.nack = layer.MinLease, layer.Unlimited, 0.1
	k.config.Shards = 1 + rng.IntN(3)
	k.think, k.wait, k.freeze, k.die = 500*time.Millisecond, 2*time.Second, 0.1*rng.Float64(), 0.1
	if rng.IntN(2) == 0 {
		k.apart(rng)
	} else {
		for i := range k.skew {
			k.skew[i] /= 20
		}
	}
	k.blowEvery, k.kill, k.stop, k.crash = 200+rng.IntN(600), 2, 2, rng.IntN(2)
	k.hold, k.own = 0.3*rng.Float64(), 0.5*rng.Float64()
}

// paged: handles that die with more groups in flight than one transaction ends.
func (k *knobs) paged(rng *rand.Rand) {
	k.beating(rng)
	k.beats, k.operators, k.takers, k.consumers = 1, 0, 0, 0
	k.groups, k.batch, k.receive = 130+rng.IntN(60), 60, 300
	k.producers, k.workers, k.handles = 2, 3, 3
	k.large, k.config.MaxWaiting, k.delayed, k.config.Delay, k.repeat, k.fuse = 0, 0, 0, 0, 0, 0
}

// steady: workers by heartbeat, half of the runs without faults (law.go).
func (k *knobs) steady(rng *rand.Rand) {
	k.worker(rng)
	k.beats = 1
	if k.strict {
		k.hold, k.seek = 0, 0
	}
}

// leasing: the same, with slow commits, while the lease of the queue is changed.
func (k *knobs) leasing(rng *rand.Rand) {
	k.steady(rng)
	k.leases, k.stewards, k.config.Lease = true, 1+rng.IntN(2), maxLease/2
	k.hold, k.holdMost = 0.3+0.6*rng.Float64(), 150*time.Millisecond
}

// beatOptions has a receive claim by heartbeat, as often as the knobs say.
func (a *actor) beatOptions(o *layer.ReceiveOptions) {
	if k := a.w.knobs; k.beats > 0 && a.chance(k.beats) {
		o.Heartbeat, o.Lease = true, 0
	}
}

// beatWorker makes a worker claim by heartbeat, with the same chance.
func (a *actor) beatWorker(o *worker.Options) {
	if k := a.w.knobs; k.beats > 0 && a.chance(k.beats) {
		o.Heartbeat, o.Lease = true, 0
	}
}

// edge is a time about which something about a heartbeat changes: its period, or its end.
func (a *actor) edge() time.Duration {
	lease := a.q.Config().Lease
	edges := []time.Duration{lease / 3, lease, 2 * lease, lease + lease/3}
	return max(0, edges[a.rng.IntN(len(edges))]+time.Duration(a.rng.IntN(41)-20)*time.Millisecond/2)
}

// byBeat notes the claims of a receive that asked for the heartbeat.
func (w *world) byBeat(o *op) {
	for _, c := range o.claims {
		w.beaten[claimKey{claimLane(c), c.Token}] = true
	}
}

// letGo gives a claim by heartbeat a lease of its own if its holder has ended without settling it. It does not do so if
// the handle will be closed with its claims in flight.
func (a *actor) letGo(c *layer.Claim) {
	lane := claimLane(c)
	if !a.w.beaten[claimKey{lane, c.Token}] {
		return
	}
	for _, o := range slices.Backward(a.w.ops) {
		if o.actor != a.id {
			continue
		}
		if o.settle && o.group == lane && o.token == c.Token && o.outcome == done &&
			!o.is("ack-part") && !o.is("set-state") && o.nack.From == nil { // which keep the claim, or its first items
			return
		}
		break
	}
	if a.w.handleOf(a.who).deserted() {
		a.w.mark("claim by heartbeat left in flight")
		return
	}
	o := &op{kind: "extend", group: lane, token: c.Token}
	a.call(o, func(ctx context.Context) (err error) {
		same := *c
		o.until, err = a.q.Extend(ctx, &same, 0)
		return err
	})
	a.w.mark("claim by heartbeat let go")
}

// deserted reports whether the handle is closed at the end of the faults, whatever it has in flight.
func (h *handle) deserted() bool {
	return h.engine.w.knobs.deserted && h.who%2 == 0 && len(h.engine.w.knobs.topics) == 0
}

// desert closes the handles that are to be closed with claims in flight.
func (w *world) desert() {
	alive := w.alive()
	if !slices.ContainsFunc(alive, (*handle).deserted) {
		return
	}
	for slices.IndexFunc(w.alive(), func(h *handle) bool { return !h.deserted() }) < 0 {
		if _, err := w.openHandle(w.openAgain, 0); err != nil {
			w.violation("open: %v", err)
			return
		}
	}
	for _, h := range alive {
		if !h.deserted() {
			continue
		}
		h.dead = true
		w.mark("handle closed with what it has in flight")
		if err := h.q.Close(context.Background()); err != nil {
			w.violation("close handle %d: %v", h.who, err)
		}
	}
}

// beatState is a beat of the model.
type beatState struct {
	who   int // the handle whose transaction began it
	dueMS int64
	// movedMS and overMS are when its handle moved it last, and when another process began to end it, by the world's
	// clock.
	movedMS, overMS int64
	ended           bool            // a handle has begun to end it
	gone            bool            // it was ended, or its handle closed
	used            bool            // a claim has joined it
	held            map[string]bool // the groups in its list
	timer           map[int64]bool  // the times at which a timer leads to it
}

// beats are those that there have been, by their numbers.
type beats map[string]*beatState

func (m *model) beat(number string) *beatState {
	b := m.beats[number]
	if b == nil {
		b = &beatState{held: make(map[string]bool), timer: make(map[int64]bool), who: m.r.who}
		m.beats[number] = b
	}
	return b
}

// beatOf returns the number of the beat in the value of a lock, behind the elements of all claims. "" = the claim has a
// lease of its own.
func beatOf(t tuple.Tuple) string {
	if len(t) < 5 {
		return ""
	}
	number, _ := t[4].(uuid.UUID)
	return number.String()
}

// isBeatTimer tells a beat's timer from that of a group.
func isBeatTimer(rest tuple.Tuple) bool {
	if len(rest) != 2 {
		return false
	}
	_, number := rest[1].(uuid.UUID)
	return number
}

// endBeats follows what a record makes of the beats and their lists, and holds all of those that it has touched to the
// laws. The locks are as the record leaves them.
func (m *model) endBeats(after map[string][]byte) {
	touched := make(map[string]bool)
	for _, k := range slices.Sorted(maps.Keys(after)) {
		v := after[k]
		name, rest := m.keyOf([]byte(k))
		switch {
		case name == "beat":
			number := rest[0].(uuid.UUID).String()
			touched[number] = true
			m.moves(number, v)
		case name == "held":
			number, group := rest[0].(uuid.UUID).String(), rest[1].(string)
			touched[number] = true
			set(m.beat(number).held, group, v != nil, true)
		case name == "timer" && isBeatTimer(rest):
			number := rest[1].(uuid.UUID).String()
			touched[number] = true
			due, _ := rest[0].(int64)
			set(m.beat(number).timer, due, v != nil, true)
		case name == "lock":
			if l := m.group(m.ofKey(name, rest)).lock; l != nil && l.beat != "" {
				touched[l.beat] = true
			}
		}
	}
	for _, number := range slices.Sorted(maps.Keys(touched)) {
		b := m.beat(number)
		switch {
		case len(b.held) == 0:
		case b.gone:
			m.violation("I1: beat %s is gone, and has %d groups in its list", number, len(b.held))
		case !b.timer[b.dueMS]:
			m.violation("I1: beat %s has %d groups, and no timer at %d: %v", number, len(b.held), b.dueMS, b.timer)
		}
		for group := range b.held {
			if l := m.group(group).lock; !l.is("claim") || l.beat != number {
				m.violation("I1: %q is in the list of beat %s, which does not hold it", group, number)
			}
		}
	}
}

// moves follows one write of a beat.
func (m *model) moves(number string, value []byte) {
	_, before := m.beats[number]
	b := m.beat(number)
	if value == nil {
		if before && !b.gone && m.r.who != b.who {
			m.endsBeat(number, b)
			m.w.mark("handle ended by its heartbeat")
			if b.dueMS > m.r.nowMS {
				m.violation("beat %s is ended by another %d ms before it is due", number, b.dueMS-m.r.nowMS)
			}
		}
		b.gone = true
		return
	}
	t, err := tuple.Unpack(value)
	if err != nil || len(t) < 2 {
		m.violation("beat %s: %v, %v", number, t, err)
		return
	}
	was := *b
	b.dueMS, _ = t[0].(int64)
	b.ended = len(t) > 2
	if b.gone && !b.used && m.r.who == b.who {
		// The outcome of its begin was unknown, and others ended it before the handle had begun it again.
		b.gone = false
		m.w.mark("heartbeat begun twice")
	}
	switch {
	case m.r.who == b.who:
		b.movedMS = m.r.atMS
	case before:
		m.endsBeat(number, b)
	}
	switch {
	case b.gone:
		m.violation("beat %s comes back", number)
	case was.ended && !b.ended:
		m.violation("beat %s is moved, though a handle has begun to end it", number)
	case b.ended && was.dueMS > m.r.nowMS:
		m.violation("somebody begins to end beat %s %d ms before it is due", number, was.dueMS-m.r.nowMS)
	case b.ended && b.dueMS != was.dueMS:
		m.violation("beat %s was due at %d, and is being ended at %d", number, was.dueMS, b.dueMS)
	case b.ended:
		m.w.mark("handle with more claims than one transaction ends")
	case m.r.who != b.who && m.w.knobs.clocks && b.dueMS <= m.r.nowMS:
		m.w.mark("beat with a wrong time ended") // see endsBeat
	case m.r.who != b.who:
		m.violation("beat %s of handle %d is moved", number, b.who)
	case before && !was.gone && b.dueMS < was.dueMS:
		m.mistimed("beat %s was due at %d, and is moved back to %d", number, was.dueMS, b.dueMS)
	case before && b.dueMS > m.r.nowMS+m.longestBeat():
		m.violation("beat %s is moved to %d ms from now", number, b.dueMS-m.r.nowMS)
	case before:
		m.w.mark("beat moved")
	}
}

// longestBeat is the most that a beat may be ahead of the clock of its handle.
func (m *model) longestBeat() int64 { return maxLease.Milliseconds() }

// rejoined holds what becomes of a claim that stays to the laws of heartbeats.
func (m *model) rejoined(group string, old, next *lockState) {
	switch {
	case old.beat == next.beat:
		return
	case next.beat != "":
		m.violation("claim %d of %q was by beat %q, and now is by beat %s", next.token, group, old.beat, next.beat)
		return
	}
	b := m.beat(old.beat)
	mine := slices.ContainsFunc(m.w.ops, func(o *op) bool {
		return o.is("extend") && o.group == group && o.token == old.token && o.maybeAt(m.r)
	})
	mine = (mine || m.w.handleOf(m.r.who).consumed) && m.r.who == b.who
	if mine && next.endMS >= m.r.begunMS+layer.MinLease.Milliseconds() {
		m.w.mark("claim by heartbeat extended")
		return
	}
	switch {
	case next.endMS != b.dueMS:
		m.violation("claim %d of %q by a heartbeat due at %d ends at %d", next.token, group, b.dueMS, next.endMS)
	case b.dueMS > m.r.nowMS:
		m.violation("claim %d of %q is ended %d ms before its heartbeat is due", next.token, group, b.dueMS-m.r.nowMS)
	case m.w.strict() && !m.w.hangs:
		m.violation("claim %d of %q ends with its heartbeat in a run without faults", next.token, group)
	}
	m.w.mark("claim ended with its heartbeat")
	key := claimKey{group, next.token}
	c := m.claims[key]
	c.alone = m.r.step
	m.claims[key] = c
}

// joins checks that a new claim by heartbeat joins a live beat. It uses the state of the beat before the record,
// because no claim writes the beat.
func (m *model) joins(group string, l *lockState) {
	if l.beat == "" {
		return
	}
	m.w.mark("claim by heartbeat")
	b, known := m.beats[l.beat]
	if known {
		b.used = true
	}
	switch {
	case !known || b.gone:
		m.violation("I1: claim %d of %q joins beat %s, which is not there", l.token, group, l.beat)
	case b.ended:
		m.violation("I1: claim %d of %q joins beat %s, which is being ended", l.token, group, l.beat)
	case b.who != m.r.who:
		m.violation("claim %d of %q joins the beat of handle %d", l.token, group, b.who)
	}
}

// lasting returns a lock as a transaction leaves it that meets its beat when the beat is due.
func (m *model) lasting(l *lockState) *lockState {
	if l == nil || l.beat == "" {
		return l
	}
	if b := m.beats[l.beat]; b != nil && (b.ended || b.dueMS <= m.r.nowMS) {
		due := *l
		due.endMS, due.trulyMS = b.dueMS, b.dueMS-l.wrongMS
		return &due
	}
	return l
}

// heldByBeat holds a lock by heartbeat to its place in the list.
func (m *model) heldByBeat(group string, l *lockState) {
	if b := m.beats[l.beat]; b == nil || !b.held[group] {
		m.violation("I1: %q is held by beat %s, and is not in its list", group, l.beat)
	}
}

// endless is the end of a claim by heartbeat: while its beat is there no handle takes the group over.
const endless = math.MaxInt64
