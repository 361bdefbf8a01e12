package sim

import (
	"context"
	"errors"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// Handles closed in good order (Options.Retire): a process that is told to stop closes its handle while its actors
// still call, wait and hold claims. The laws:
//
//   - Close returns within its bound.
//   - A call that begins when Close has been called fails with ErrClosed. A call that fails with ErrClosed did nothing.
//   - When Close has returned nil, no claim is left that no caller has, and the handle sends nothing by itself any
//     more.
//   - In the end no key of the handle's own is left.

// Close gives up after closeLeast. It must return within closeBound, because the world may hold back the step that it
// is at, unless the process stands still. Pauses of the whole world do not count.
const (
	closeLeast = 5 * time.Second
	closeBound = closeLeast + holdMost + time.Second
)

// mostRetired is how many handles of a run are closed at most.
const mostRetired = 3

// retire starts the actors that close handles, some of them when the worker of the handle was stopped before.
func (w *world) retire() {
	if !w.o.Retire || w.strict() {
		return
	}
	w.claims = make(sentClaims)
	rng := rand.New(rand.NewPCG(w.o.Seed, 27))
	for range 1 + rng.IntN(mostRetired) {
		after := time.Duration(rng.Int64N(int64(2 * time.Minute)))
		if rng.IntN(2) == 0 {
			after /= 100 // while much is under way
		}
		alive := w.alive()
		a := w.actor(w.nextActor, alive[rng.IntN(len(alive))])
		w.nextActor++
		stops := rng.IntN(2) == 0
		a.role = func(a *actor) { a.closeHandle(after, stops) }
		w.startActor(a)
	}
}

// closeHandle closes the actor's handle, and has another one take up what the handle's actors had left to do.
func (a *actor) closeHandle(after time.Duration, stops bool) {
	w, h := a.w, a.w.handleOf(a.who)
	a.sleep(after)
	if h.dead || h.retired {
		return
	}
	if stops && h.consumer != nil {
		err := h.consumer.Stop(a.ctx)
		a.park("stopped")
		stopped := new(worker.StopError)
		if err != nil && !errors.As(err, &stopped) && !errors.Is(err, worker.ErrNoAnswer) { // the world may have paused
			w.violation("worker: %v", err)
		}
	}
	if h.dead || h.retired {
		return
	}
	for range a.rng.IntN(6) { // the callers leave, and the handle must give back what these receives claim
		options := a.receiveOptions()
		o := &op{kind: "receive", leaves: true, beats: options.Heartbeat, wantsState: options.State}
		options = o.lendReceive(options)
		if err := a.call(o, func(ctx context.Context) (err error) {
			o.claims, err = a.q.Receive(ctx, options)
			return err
		}); err != nil {
			w.mark("caller of a receive left before the close")
		}
	}
	if h.dead || h.retired {
		return
	}
	w.sched.trace.note("handle closes", h.who)
	h.retired, h.closedAt = true, w.sched.step()
	var work []*actor
	for _, b := range h.actors {
		if b != a && !b.over {
			work = append(work, b)
		}
	}
	if len(work) > 0 {
		w.mark("handle closed with actors at work")
	}
	begun, stood, paused := time.Now(), h.stood, w.sched.pausedFor()
	err := h.q.Close(a.ctx)
	took := time.Since(begun)
	ran := took - (w.sched.pausedFor() - paused)
	a.park("closed")
	if ran > closeBound && h.stood == stood && w.knobs.leap == 0 {
		w.violation("close handle %d: took %s: %v", h.who, took, err)
	}
	switch e := new(kv.Error); {
	case errors.Is(err, context.DeadlineExceeded) && took >= closeLeast:
		w.mark("close gave up")
	case err == nil:
		h.silent = true
		w.mark("handle closed in good order")
		w.leftClaims(h)
	case !errors.As(err, &e):
		w.violation("close handle %d: %v", h.who, err)
	}
	h.dead = true
	skew := time.Duration(0)
	if w.knobs.skew[0] != 0 {
		skew = time.Duration(a.rng.Int64N(int64(2*maxSkew))) - maxSkew
	}
	for {
		next, err := w.openHandle(w.openAgain, skew)
		if err == nil && !next.dead {
			w.takeUp(work, next)
			return
		}
		a.sleep(time.Second)
	}
}

// ownKeys are the kinds of keys that a handle has for itself, each named by a number of the handle's. Receipts are not
// among them: what an operation that ends after Close cannot clear is left to the next sweep.
var ownKeys = []string{"request", "reqgroup", "reqlane", "beat"}

// numberOf is the number that a handle names a key of its own by.
func numberOf(key []byte) (n uuid.UUID, own bool) {
	name, rest := keyOf(key)
	if !slices.Contains(ownKeys, name) {
		return n, false
	}
	n, own = rest[len(rest)-1].(uuid.UUID)
	return n, own
}

// sends notes whose keys a transaction sets, and holds a handle that is closed to sending nothing by itself.
func (w *world) sends(t *transaction) {
	called := slices.ContainsFunc(w.ops, func(o *op) bool { return o.who == t.e.who && !o.over })
	if w.handleOf(t.e.who).silent && !called {
		var names []string
		for _, x := range t.writes {
			name, _ := keyOf(x.key)
			names = append(names, name)
		}
		w.violation("handle %d sends a commit after its Close has returned: %q", t.e.who, names)
	}
	for _, x := range t.writes {
		w.claims.send(t, x)
		if n, own := numberOf(x.key); own && x.kind == wrote {
			if w.owned[n] == 0 {
				w.owned[n] = t.e.who
			}
			w.written[string(x.key)] = attemptID{t.e.who, t.n, t.attempt}
		}
	}
}

// left checks that handles that were closed in good order have left no claims and no rows. Rows of a commit of unknown
// outcome are allowed: the handle does not know of them, and another handle clears them at their deadline.
func (w *world) left() {
	for _, l := range w.leftBy {
		if !w.anyoneHas(l.group, l.token, l.sent) {
			who := l.sent.attempt.who
			w.violation("handle %d was closed, and left claim %d of %q, which no caller has", who, l.token, l.group)
		}
	}
	for _, name := range ownKeys {
		for _, row := range w.rows(section(name), 0) {
			n, _ := numberOf(row.Key)
			if who := w.owned[n]; who > 0 && w.handleOf(who).silent && w.outcomes[w.written[string(row.Key)]] == 0 {
				w.violation("handle %d was closed, and left a %s: %x", who, name, row.Key)
			}
		}
	}
}

// lockedClaim is a claim in the database: a lock, its token, and its owner. Of two handles that claim at the same
// version with the same token one fails.
type lockedClaim struct {
	key   string
	token int64
	owner string
}

// sentClaim is the commit by which a handle has sent a claim.
type sentClaim struct {
	attempt attemptID
	at      time.Time
}

// sentClaims are the claims of a run in which handles are closed: the first commit that had the claim and has not
// failed. It is nil in other runs.
type sentClaims map[lockedClaim]sentClaim

// send notes a claim that a transaction writes.
func (s sentClaims) send(t *transaction, x write) {
	if name, rest := keyOf(x.key); s != nil && x.kind == wrote && (name == "lock" || name == "hold") {
		l, err := lockOf(rest[0].(string), x.value)
		if err != nil || !l.is("claim") {
			return
		}
		c := lockedClaim{string(x.key), l.token, l.owner}
		if before, known := s[c]; !known || !mayHaveLanded(t.e.w.outcomes[before.attempt]) {
			s[c] = sentClaim{attemptID{t.e.who, t.n, t.attempt}, time.Now()}
		}
	}
}

// leftClaims holds a handle that was closed in good order to the law that no claim of its receives is left of which no
// caller knows. A repeated receive must get the claims of the first, so these stay, as do those of the callers' own
// transactions. A claim by heartbeat has ended with the handle, and any other with its lease. A commit that is applied
// late may be applied after Close.
func (w *world) leftClaims(h *handle) {
	if h.consumer != nil {
		return // the claims of its receives are no operations of the world
	}
	for _, name := range []string{"lock", "hold"} {
		for _, row := range w.rows(section(name), 0) {
			_, rest := keyOf(row.Key)
			group := rest[0].(string)
			l, err := lockOf(group, row.Value)
			if err != nil || !l.is("claim") || l.beat != "" || l.endMS <= h.now().UnixMilli() {
				continue
			}
			sent := w.claims[lockedClaim{string(row.Key), l.token, l.owner}]
			if sent.attempt.who != h.who || mayLandLate(w.outcomes[sent.attempt]) {
				continue
			}
			if !w.anyoneHas(group, l.token, sent) {
				w.sched.trace.note("left", h.who, group, l.token)
				w.leftBy = append(w.leftBy, leftClaim{group, l.token, sent})
			}
		}
	}
}

// leftClaim is a claim that was there when its handle was closed, and that no caller had. A call that waits for a slow
// hook may return it yet, so the verdict is given in the end.
type leftClaim struct {
	group string
	token int64
	sent  sentClaim
}

// anyoneHas reports whether a caller has a claim, or may get it.
func (w *world) anyoneHas(group string, token int64, sent sentClaim) bool {
	return slices.ContainsFunc(w.ops, func(o *op) bool {
		if o.who != sent.attempt.who {
			return false
		}
		mayGet := o.attemptID != "" || o.kind != "receive" && o.kind != "ack-receive"
		if len(o.claims) == 0 && mayGet && !sent.at.Before(o.beginAt) && (!o.over || !sent.at.After(o.endAt)) {
			return true
		}
		return slices.ContainsFunc(o.claims, func(c *layer.Claim) bool { return c.Group == group && c.Token == token })
	})
}

// turnedAway reports whether a call failed because its handle is closed, and holds the call to the law; retired says
// that Close had been called before.
func (a *actor) turnedAway(o *op, retired bool, err error) bool {
	closed := a.w.handleOf(a.who).turnsAway(err)
	switch {
	case closed:
		a.w.mark("call refused: handle closed")
	case retired && err == nil:
		a.w.violation("a call begun after Close has succeeded: %s", o)
	}
	return closed
}

// turnsAway reports whether err is that of a call which the handle refused because it is closed.
func (h *handle) turnsAway(err error) bool { return h.retired && errors.Is(err, layer.ErrClosed) }

// closedBy reports whether Close of the handle was called before a step. From then on its subscriptions extend no lease
// and store no place.
func (h *handle) closedBy(step int) bool { return h.retired && h.closedAt <= step }

// leave ends the actor's goroutine if its handle is closed. Another actor takes up the work.
func (a *actor) leave(err error) {
	if a.w.handleOf(a.who).turnsAway(err) {
		runtime.Goexit()
	}
}
