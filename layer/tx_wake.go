package layer

import (
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"time"

	"github.com/google/uuid"

	"fdbfifo/internal/callback"
	"fdbfifo/kv"
	"fdbfifo/layer/internal/guard"
	"fdbfifo/layer/internal/lanes"
	"fdbfifo/layer/internal/rec"
)

// wakes is what a transaction knows of requests, the rows of handles whose receives wait for groups (staging.go).
type wakes struct {
	// mayStage: of the handle's transactions in flight, only this may register or clear the handle's request.
	mayStage bool
	requests kv.Future[[]kv.KV] // the first requests by their keys, being read from the first hint on; nil = not yet
	leftOver *leftOver          // nil = every request is taken for one that a handle waits behind
	touched  map[uuid.UUID]bool // the handles whose wake keys are touched
	others   int                // groups granted to other handles
	grants   map[string]bool    // the keys of the grants to this handle which are not taken yet
}

// requestsProbe is how many requests a waker reads at once in a queue with facets, an unordered queue or one with a
// lease for each item. If there are fewer, the waker needs no other read.
const requestsProbe = 16

// waking finds the handles to wake for the lanes that a transaction has left ready. It is for a queue with facets, an
// unordered queue or one with a lease for each item; txn.wakeOldest is for other queues. To wake a handle means to
// touch its wake key, which the handle watches. The fields say which requests still need a wake.
type waking struct {
	*txn
	groups    int                 // requests for any group still to be woken
	templates map[string]int      // lanes left ready by packed template, for which no handle was woken yet
	opened    map[string][]string // lanes left ready by group
	unlocks   map[string][]string // lanes unlocked by group
	named     map[string]int      // requests woken by lane
	besides   uuid.UUID           // the handle not to be woken
	woken     map[uuid.UUID]bool
}

// waking returns a waking with nothing to wake for. See opens.
func (w *txn) waking() *waking {
	return &waking{
		txn: w, templates: make(map[string]int), opened: make(map[string][]string), unlocks: make(map[string][]string),
		named: make(map[string]int), woken: make(map[uuid.UUID]bool),
	}
}

// wakeLanes wakes the handles that wait for lanes which this transaction has left ready. For any whole group it wakes
// the oldest request. By each template it wakes the requests that together want as many lanes as are ready. For a named
// lane it wakes up to wakeProbe requests of the lane, and of each lane which may share an item with an unlocked one,
// because the hint of such a lane may be there all the time while another lock excludes the lane. To wake a request
// means to touch the wake key of its handle. wakeLanes clears requests that are left over (isLeftOver).
//
// In an unordered queue it also wakes for messages behind others. Example: a handle has passed over the first message
// of a group, which is suspect, and waits. It may receive the next one at once.
//
// It reads requests of all kinds (reqgroup, reqlane, request) at snapshot: neither two enqueues conflict, nor an
// enqueue and a receive that waits. If there are requestsProbe or more, see readMore.
func (w *txn) wakeLanes() error {
	if len(w.noted.ready)+len(w.noted.unlocked)+len(w.noted.behind) == 0 {
		return nil
	}
	k := w.waking()
	for _, lane := range slices.Sorted(maps.Keys(w.noted.ready)) {
		k.opens(lane)
	}
	for _, lane := range slices.Sorted(maps.Keys(w.noted.behind)) {
		if _, opened := w.noted.ready[lane]; !opened {
			k.opens(lane)
		}
	}
	for _, lane := range slices.Sorted(maps.Keys(w.noted.unlocked)) {
		group := lanes.GroupOf(lane)
		k.unlocks[group] = append(k.unlocks[group], lane)
	}
	w.readRequests()
	rows, err := w.wakes.requests.Wait(w.ctx)
	if err != nil {
		return fmt.Errorf("read requests: %w", err)
	}
	if len(rows) < requestsProbe {
		return k.seeAll(rows)
	}
	return k.readMore()
}

// opens notes a lane that is left ready, so that handles are woken that wait for it: by name, by its template, or for
// any group.
func (k *waking) opens(lane string) {
	group, where := lanes.Split(lane)
	k.opened[group] = append(k.opened[group], lane)
	if where == "" {
		k.groups = 1 // the handle that is woken serves the others
	} else {
		k.templates[where]++
	}
}

// readMore wakes the handles when there are requestsProbe requests or more. It reads, at snapshot, only the requests
// that may be for the lanes of this transaction, and touches the wake keys of their handles. If it would need more than
// wakeGroups reads, it first tries a single read of all requests, which is enough if there are less than wakePage. The
// requests for lanes of a group with an unlocked lane may be too many for one read. Then readMore touches the shared
// wake key, which each handle watches whose receives wait for a group, a lane or a template (touchShared).
func (k *waking) readMore() error {
	if len(k.templates)+len(k.opened)+len(k.unlocks) > wakeGroups {
		rows, err := k.read.GetRange(k.keys.requests().Selectors(), kv.RangeOptions{Limit: wakePage}).Wait(k.ctx)
		if err != nil {
			return fmt.Errorf("read requests: %w", err)
		}
		if len(rows) < wakePage {
			return k.seeAll(rows)
		}
	}
	var unlocked []kv.Future[[]kv.KV]
	for _, group := range slices.Sorted(maps.Keys(k.unlocks)) {
		named := k.keys.namedFor(group).Selectors()
		unlocked = append(unlocked, k.read.GetRange(named, kv.RangeOptions{Limit: wakePage}))
	}
	var probes []probe
	if k.groups > 0 {
		probes = append(probes, k.probe(k.keys.section(nameRequest)))
	}
	for _, where := range slices.Sorted(maps.Keys(k.templates)) {
		probes = append(probes, k.probe(k.keys.byLaneFor(where)))
	}
	for _, group := range slices.Sorted(maps.Keys(k.opened)) {
		for _, lane := range k.opened[group] {
			probes = append(probes, k.probe(k.keys.namedForLane(lane)))
		}
	}
	for _, f := range unlocked {
		rows, err := f.Wait(k.ctx)
		if err != nil {
			return fmt.Errorf("read requests: %w", err)
		}
		if len(rows) == wakePage {
			k.touchShared() // any of the others may be for a lane that shares an item with an unlocked one
		}
		if err := k.seeAll(rows); err != nil {
			return err
		}
	}
	for _, p := range probes {
		rows, err := p.wait(k.txn)
		if err != nil {
			return err
		}
		if err := k.seeAll(rows); err != nil {
			return err
		}
	}
	return nil
}

// seeAll calls see for each request, and leaves out those that cannot be read.
func (k *waking) seeAll(rows []kv.KV) error {
	for _, row := range rows {
		if err := k.see(row); err != nil && !k.skipsRow(err) {
			return err
		}
	}
	return nil
}

// see wakes the handle of a request, if the handle is alive and waits for one of the lanes, and not enough handles were
// woken for that already: one for any group, one or more by each template, up to wakeProbe for each named lane. It
// clears a left-over request for a lane or by a template instead (isLeftOver). The error says that the request cannot
// be read.
func (k *waking) see(row kv.KV) error {
	p, wants, err := k.wanting(row)
	if err != nil || wants == 0 || p.id == k.besides || k.isLeftOver(row.Key, p) {
		return err
	}
	switch p.name {
	case nameRequest:
		if k.groups == 0 {
			return nil
		}
		k.groups--
	case nameByLane:
		if k.templates[p.where] <= 0 {
			return nil
		}
		k.templates[p.where] -= int(wants)
	default:
		meets := func(lane string) bool { return k.keys.plan.Intersect(lane, p.lane) }
		if k.named[p.lane] == wakeProbe ||
			!slices.Contains(k.opened[p.group], p.lane) && !slices.ContainsFunc(k.unlocks[p.group], meets) {
			return nil
		}
		k.named[p.lane]++
	}
	if !k.woken[p.id] {
		k.woken[p.id] = true
		k.touch(p.id)
	}
	return nil
}

// leftReady notes a lane that this transaction, or an earlier one, has left ready, so that finish wakes a handle that
// waits for the lane. It starts reading the requests, and writes nothing.
func (w *txn) leftReady(lane string) {
	setIn(&w.noted.ready, lane, true)
	w.readRequests()
}

// unlock notes that the lock of a lane is cleared: finish then wakes handles that wait for lanes which the lock has
// excluded, and puts back the kept hints. unlock starts reading the requests, at snapshot, and the kept hints, with a
// conflict (readKept). In a queue without kept hints unlock does nothing.
func (w *txn) unlock(lane string) {
	if !w.keys.plan.KeepsHints() {
		return
	}
	setIn(&w.noted.unlocked, lane, true)
	w.readRequests()
	w.readKept(lane)
}

// readKept starts reading the kept hints of a lock, with a conflict. The lock is being released, or its holding gets an
// earlier end. A kept hint is the hint of an intersecting lane that was put aside under the lock, because the lock
// makes it useless (group_lane.go).
func (w *txn) readKept(lane string) {
	if w.keys.plan.KeepsHints() {
		w.noted.unkept = append(w.noted.unkept,
			guard.Kept.Reads(w.tx).GetRange(w.keys.keptUnder(lane).Selectors(), kv.RangeOptions{}))
	}
}

// putBackKept puts back the kept hints that readKept has read: it clears the keys ("kept"), and writes the hints again.
func (w *txn) putBackKept() error {
	for _, f := range w.noted.unkept {
		rows, err := f.Wait(w.ctx)
		if err != nil {
			return fmt.Errorf("read kept hints: %w", err)
		}
		for _, row := range rows {
			w.tx.Clear(row.Key)
			p, err := w.keys.parse(row.Key)
			if w.skipsRow(err) {
				continue
			}
			attempts, err := unpackHint(row)
			w.skipsRow(err) // who claims the lane reads how often its head has failed
			w.hint(p.index, p.lane, attempts)
		}
	}
	w.noted.unkept = nil
	return nil
}

// vacate notes that an item leaves lanes. index is the item's, and of has the names of the lanes. The item may be the
// first of each lane, so finish looks for the next (leadToNext).
func (w *txn) vacate(index int64, of []string) {
	if w.noted.vacated == nil && len(of) > 0 {
		w.noted.vacated = make(map[string][]int64)
	}
	for _, lane := range of {
		w.noted.vacated[lane] = append(w.noted.vacated[lane], index)
	}
}

// leadToNext gives a hint to each lane that an item has left in this transaction (noted.vacated), in a queue with
// retroactive delay and facets or unordered receives. An item leaves its lanes when it is acked, removed or advanced.
// The item may have been the head, and then no other key need lead to the lane. Without retroactive delay the timer of
// the old head was due, and leads to the lane. With it the timer may be of a later time, because the delay was made
// longer, and the next item may be due at once.
//
// finish calls leadToNext. It looks neither at locks nor at due times: a receive puts aside or clears the hint of a
// lane that gives nothing. It passes over a lane that has a new hint of this transaction. It clears the hints that
// earlier transactions have set for the items that left. Otherwise more and more hints would stay in a lane from which
// no handle receives.
//
// Footprint: reads the keys of the lanes' heads (item or lane) at snapshot. Sets and clears hints (ready or open). For
// a new hint it reads the requests (request, reqgroup, reqlane) at snapshot, and finish touches wake keys. An empty
// lane gets a read conflict on the range of its items, as in leave, and keeps its old hints. A lane is left out if the
// key of its head cannot be read.
func (w *txn) leadToNext() error {
	config, err := w.config()
	if err != nil || !config.RetroactiveDelay || len(w.noted.vacated) == 0 {
		return err
	}
	vacated := slices.Sorted(maps.Keys(w.noted.vacated))
	vacated = slices.DeleteFunc(vacated, func(lane string) bool { return w.noted.ready[lane] })
	heads := make([]kv.Future[[]byte], len(vacated))
	for i, lane := range vacated {
		heads[i] = w.read.GetKey(kv.FirstGreaterOrEqual(w.keys.items(lane).Begin))
	}
	for i, lane := range vacated {
		key, err := heads[i].Wait(w.ctx)
		if err != nil {
			return fmt.Errorf("read head: %w", err)
		}
		items := w.keys.items(lane)
		if !items.Contains(key) {
			if err := guard.FreeEmpty.Read(w.tx, items); err != nil {
				return err
			}
			continue
		}
		p, err := w.keys.parseItem(key, lanes.GroupOf(lane), items)
		if w.skipsRow(err) {
			continue
		}
		for _, index := range w.noted.vacated[lane] {
			w.tx.Clear(w.keys.ready(index, lane))
		}
		w.hint(p.index, lane, 0)
	}
	w.noted.vacated = nil
	return nil
}

// packHint returns the value of a hint or kept hint, for a lane of which the head has failed so often.
func packHint(attempts int) []byte {
	if attempts <= 0 {
		return nil
	}
	return rec.PackInt(int64(attempts))
}

// unpackHint returns how often the head (first item) of a lane has failed, as its hint or kept hint says.
func unpackHint(row kv.KV) (attempts int, err error) {
	if len(row.Value) == 0 {
		return 0, nil
	}
	n, err := rec.UnpackInt(row.Key, row.Value)
	return int(n), err
}

// wakeReady wakes handles that wait for the lanes that this transaction has left ready, or unlocked in a queue that
// keeps hints. It reads requests at snapshot, touches wake keys, and may clear left-over requests (isLeftOver).
func (w *txn) wakeReady() error {
	switch {
	case !w.keys.plan.IsPlain():
		return w.wakeLanes()
	case len(w.noted.ready) > 0:
		return w.wakeOldest()
	}
	return nil
}

// subscriptionsPause is the time for each look in vain of the subscriptions of a handle. All loops of a handle begin at
// most 20 transactions a second while their looks find nothing: 16 of the waiting line, 4 of the subscriptions.
const subscriptionsPause = 333 * time.Millisecond

// watchFailed reports whether a watch that has failed may be set again at once: its read was too old, for example
// because another process serves the folder now. false = the handle looks again at its poll. Then watchFailed also
// writes the error to slog.Default, once for each handle, unless the database was closed.
func (q *Queue) watchFailed(err error) (again bool) {
	failed := kv.Error{Code: kv.Code(err)}
	if failed.Retryable() {
		return true
	}
	if failed.Code == kv.CodeOperationCancelled || q.watchTold.Swap(true) {
		return false // cancelled: the database was closed
	}
	callback.Default(func(log *slog.Logger) {
		log.Warn("queue: a watch has failed, the handle looks at each poll",
			"queue", q.name, "poll", q.opts.Poll, "error", err)
	})
	return false
}
