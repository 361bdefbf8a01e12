package layer

import (
	"fmt"
	"maps"
	"slices"
	"sync/atomic"

	"github.com/google/uuid"

	"fdbfifo/kv"
)

// requestsProbe is how many requests a waker reads at once in a queue with facets. If there are no more, the waker
// needs no other read.
const requestsProbe = 16

// waking wakes the handles which wait for what a transaction has left ready, in a queue with facets.
type waking struct {
	*txn
	groups    int                 // requests for any group still to be woken
	templates map[string]int      // lanes left ready by packed template, for which nobody was woken yet
	opened    map[string][]string // lanes left ready by group
	unlocks   map[string][]string // lanes unlocked by group
	named     map[string]int      // requests woken by lane
	besides   uuid.UUID           // the handle not to be woken
	woken     map[uuid.UUID]bool
}

func (w *txn) waking() *waking {
	return &waking{
		txn: w, templates: make(map[string]int), opened: make(map[string][]string), unlocks: make(map[string][]string),
		named: make(map[string]int), woken: make(map[uuid.UUID]bool),
	}
}

// wakeLanes wakes who waits for what this transaction has left ready: for any whole group the oldest request, by each
// template as many as there are lanes, and for a named lane those of the lane, and of each lane which may share an item
// with one that was unlocked, because the hint of such a lane may stand all the time while another lock excludes it.
//
// The reads are at snapshot: neither two enqueues conflict, nor an enqueue and a receive that waits.
func (w *txn) wakeLanes() error {
	if len(w.ready)+len(w.unlocked) == 0 {
		return nil
	}
	k := w.waking()
	for lane := range w.ready {
		group, where := splitLane(lane)
		k.opened[group] = append(k.opened[group], lane)
		if where == "" {
			k.groups = 1 // the handle that is woken serves the others
		} else {
			k.templates[where]++
		}
	}
	for lane := range w.unlocked {
		if group := groupOf(lane); !lacks(guardWakeUnlocked) {
			k.unlocks[group] = append(k.unlocks[group], lane)
		}
	}
	w.readRequests()
	rows, err := w.requests.Wait(w.ctx)
	if err != nil {
		return fmt.Errorf("read requests: %w", err)
	}
	if len(rows) < requestsProbe {
		return k.seeAll(rows)
	}
	return k.readMore()
}

// readMore reads the requests that matter, because there are many.
func (k *waking) readMore() error {
	groups := make(map[string]bool)
	for _, lanes := range []map[string][]string{k.opened, k.unlocks} {
		for group := range lanes {
			groups[group] = true
		}
	}
	if len(k.templates)+len(groups) > wakeGroups {
		for row, err := range walk(k.ctx, k.tx.Snapshot(), k.q.keys.requests(), wakePage) {
			if err != nil {
				return fmt.Errorf("read requests: %w", err)
			}
			if err := k.see(row); err != nil {
				return err
			}
		}
		return nil
	}
	var found []kv.Future[[]kv.KV]
	read := func(r kv.KeyRange, limit int) {
		found = append(found, k.tx.Snapshot().GetRange(r.Selectors(), kv.RangeOptions{Limit: limit}))
	}
	if k.groups > 0 {
		read(k.q.keys.section(nameRequest), wakeProbe)
	}
	for _, where := range slices.Sorted(maps.Keys(k.templates)) {
		read(k.q.keys.byLaneFor(where), wakeProbe)
	}
	for _, group := range slices.Sorted(maps.Keys(groups)) {
		read(k.q.keys.namedFor(group), wakePage)
	}
	for _, f := range found {
		rows, err := f.Wait(k.ctx)
		if err != nil {
			return fmt.Errorf("read requests: %w", err)
		}
		if err := k.seeAll(rows); err != nil {
			return err
		}
	}
	return nil
}

func (k *waking) seeAll(rows []kv.KV) error {
	for _, row := range rows {
		if err := k.see(row); err != nil {
			return err
		}
	}
	return nil
}

// see wakes the handle of a request, if the handle is alive and waits for what there is.
func (k *waking) see(row kv.KV) error {
	p, err := k.q.keys.parse(row.Key)
	if err != nil {
		return err
	}
	r, err := unpackRequest(row.Key, row.Value)
	if err != nil || r.wants <= 0 || r.deadlineMS <= k.nowMS || p.id == k.besides {
		return err
	}
	switch p.name {
	case nameRequest:
		if k.groups == 0 {
			return nil
		}
		k.groups--
	case nameByLane:
		if k.templates[p.where] <= 0 || lacks(guardWakeTemplate) {
			return nil
		}
		k.templates[p.where] -= int(r.wants)
	default:
		meets := func(lane string) bool { return k.q.keys.plan.intersect(lane, p.lane) }
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

// empties remembers how often, lately, an enqueue of the handle has found a group empty: then somebody may wait for the
// group, and the requests are read.
type empties struct{ score atomic.Int64 }

// emptiesLikely is how many more enqueues must have found an empty group than not, in a count that ends at twice as
// many, before the handle reads the requests ahead.
const emptiesLikely = 4

func (e *empties) note(empty bool) {
	score := e.score.Load() - 1
	if empty {
		score += 2
	}
	e.score.Store(min(max(score, 0), 2*emptiesLikely))
}

func (e *empties) likely() bool { return e.score.Load() >= emptiesLikely }
