package layer

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/advice"
	"fdbfifo/layer/internal/lanes"
	"fdbfifo/layer/internal/rec"
)

// This file has the search by which a receive or a take finds lanes that may be ready. Words:
//
//   - A lane is a whole group, the items of a group that match a template, the free items of a group, or a single item.
//     Its name is a string: see package lanes.
//   - A packed template ("where") is a string that stands for a template; "" = whole groups.
//   - A hint is a key that leads to a ready lane: "ready" for whole groups, "open" for a template. The hint has the
//     index of the lane's head, and its value is how often the head has failed.
//   - A timer is a key that leads to a lane when a time has come: "timer" for whole groups, "due" for a template.
//   - Hints and timers are spread over shards, by a hash of the group.
//   - A candidate is a hint or a due timer that the search has found. Only the caller reads whether the lane is ready.
//   - A fill is one round of reads: up to so many hints and due timers from each shard.

// search finds candidates for a receive or a take: it reads hints and due timers at snapshot, a few at a time, the
// oldest first. It writes nothing.
//
// A handle that has lost a conflict at the oldest hints goes for a walk (see advice.Spread). On a walk a search reads
// the hints of one shard alone, from where the last search ended, far from the oldest. It reads neither timers nor the
// hints passed over. If nothing lies there, the search starts over at the oldest hints, or a few hints behind them: see
// find.
type search struct {
	w       *txn
	where   string         // the packed template; "" = whole groups
	spread  *advice.Spread // the handle's advice for this template: where to begin
	shards  []cursor       // the hints not read yet, by shard; on a walk those of one shard
	timers  []cursor       // the due timers not read yet, by shard
	since   []cursor       // the same of the timers that have the time of an enqueue, see retro; nil = none are read
	turn    int64          // the shard whose timers the first fill reads
	fresh   bool           // the next fill is the first from the oldest
	pending []candidate    // in order; next returns them
	later   []candidate    // timers with a place behind the hints read so far
	away    bool           // on a walk
	shard   int64          // of the walk
	nearby  bool           // begins a few hints behind the oldest of shard 0, without timers: see find
	order   order
	retro   retro             // the delay by which since was chosen
	begun   bool              // the cursors are set
	newest  kv.Future[[]byte] // the key of the last hint; nil = not asked for
	reads   *searchReads      // of the next fill, under way; nil = not started
}

// newSearch returns a search for receives by a packed template, in the order that the queue's configuration asks for.
// It reads nothing: see begin.
func newSearch(w *txn, where string) *search {
	config := w.q.knownConfig()
	s := &search{w: w, where: where, spread: w.q.spreadOf(where), order: byAge{}, retro: config.retro()}
	if config.Fair {
		s.order = inTurns{}
	}
	return s
}

// order is the order in which a search returns its candidates. Its methods read no hint or timer, and write no key.
type order interface {
	// keep returns up to n groups which acks of this transaction have left ready, and which the handle claims again
	// without a search. It takes them from the notes of the transaction (noted.hinted).
	keep(s *search, n int) (kept []candidate, err error)
	// begins reports whether the first fill from the oldest reads the timers of a shard. Later fills read all timers.
	begins(s *search, shard int64) bool
	// plenty reports whether a fill, which reads up to limit hints of each shard, has found groups enough for several
	// transactions of the handle to receive at the same time.
	plenty(s *search, limit int) bool
	// arrange moves candidates from later, and hints that this transaction has set, to pending, and sorts pending.
	// whole is an index: every hint up to it has been read. A candidate behind it stays, because an older hint may
	// follow.
	arrange(s *search, whole int64)
}

// byAge is the order of a queue that is not fair: the oldest comes first.
type byAge struct{}

// inTurns is the order of a fair queue: the shards take turns. A due timer has its place among the hints of its shard
// by its index. It does not wait until all older hints are read.
type inTurns struct{ byAge }

// keep returns groups only on a walk, because a walk takes groups out of order anyway. A handle that meets no other
// handle takes the oldest group. With RoundRobin the group belongs behind all others, and keep returns nothing.
// Example: on a walk, a transaction acks the claim of customer-7, sets the hint of the group, and claims customer-7
// again.
func (byAge) keep(s *search, n int) (kept []candidate, err error) {
	if !s.away || len(s.w.noted.settled) == 0 || len(s.w.noted.hinted) == 0 {
		return nil, nil
	}
	if config, err := s.w.config(); err != nil || config.RoundRobin {
		return nil, err
	}
	var rest []candidate
	for _, c := range s.w.noted.hinted {
		if len(kept) < n && s.w.keys.plan.SoughtBy(c.lane) == s.where && s.w.noted.settled[c.lane] && s.spread.Keeps() {
			kept = append(kept, c)
		} else {
			rest = append(rest, c)
		}
	}
	s.w.noted.hinted = rest
	return kept, nil
}

// keep returns nothing, because the next shard has its turn.
func (inTurns) keep(*search, int) ([]candidate, error) { return nil, nil }

// begins is true of one shard only: see fromTheOldest.
func (byAge) begins(s *search, shard int64) bool { return shard == s.turn }

// begins is true of each shard, because a due timer takes its turn among the hints.
func (inTurns) begins(*search, int64) bool { return true }

// plenty asks for limit hints from every shard.
func (byAge) plenty(s *search, limit int) bool { return len(s.pending) == limit*len(s.shards) }

// plenty asks for limit hints from all shards together.
func (inTurns) plenty(s *search, limit int) bool { return len(s.pending) >= limit }

// arrange puts the smallest index first.
func (byAge) arrange(s *search, whole int64) {
	s.later = s.reached(s.later, whole)
	// The reads may have begun before this transaction set its own hints, and so may not see them.
	s.w.noted.hinted = s.reached(s.w.noted.hinted, whole)
	slices.SortStableFunc(s.pending, byIndex)
}

// byIndex compares the indexes of two candidates.
func byIndex(a, b candidate) int { return cmp.Compare(a.index, b.index) }

// arrange puts the oldest of each shard before the second of each. The first shard is the one behind that of the last
// candidate which the handle has taken or granted: so a receive of one item does not look at the oldest shard again and
// again. Example: shards A with 5, B with 2 and C with 1, the last was A's: B1 C1 A1 B2 A2 A3 A4 A5.
func (o inTurns) arrange(s *search, _ int64) {
	o.byAge.arrange(s, math.MaxInt64)
	shards := s.w.keys.shards.all()
	turn := s.spread.FairTurn.Load() % shards
	type place struct{ round, shard int64 }
	rounds, places := make(map[int64]int64), make(map[string]place, len(s.pending))
	for _, c := range s.pending {
		shard := s.shardOf(c)
		places[string(c.key)] = place{rounds[shard], (shard - turn + shards) % shards}
		rounds[shard]++
	}
	slices.SortStableFunc(s.pending, func(a, b candidate) int {
		p, q := places[string(a.key)], places[string(b.key)]
		return cmp.Or(cmp.Compare(p.round, q.round), cmp.Compare(p.shard, q.shard))
	})
}

// shardOf returns the shard of the candidate's group.
func (s *search) shardOf(c candidate) int64 { return s.w.keys.shard(lanes.GroupOf(c.lane)) }

// begin sets the cursors: at the oldest hints and timers, or, if the handle is on a walk, at the place of the walk
// among the hints of one shard. At a new landing it also starts reading the key of the shard's last hint, at snapshot:
// see learnNewest.
func (s *search) begin() {
	q := s.w.q
	place, away := s.spread.Place(q.random, q.keys.shards.all(), s.w.nowMS)
	if !away {
		s.fromTheOldest()
		return
	}
	s.begun, s.away, s.shard = true, true, place.Shard
	s.shards = []cursor{{begin: s.landing(place), end: q.keys.hintsFrom(s.where, place.Shard, 0).End}}
	s.timers, s.since, s.fresh = nil, nil, false
	if place.After == nil { // a new landing: the next landing needs to know how far the hints go
		s.newest = s.w.read.GetKey(kv.LastLessThan(s.shards[0].end))
	}
}

// landing returns the key selector at which the range read of a walk begins. It lies among the hints of one shard
// (ready, or open for a template). landing reads nothing. The next step of a walk continues behind the last hint that
// the walk has returned (place.After). A new landing (place.After is nil) begins place.Offset + 1 hints behind the
// first hint with an index of at least place.From. If the shard has fewer hints, the search finds nothing there.
func (s *search) landing(place advice.Place) kv.KeySelector {
	if place.After != nil {
		return kv.FirstGreaterThan(place.After)
	}
	begin := kv.FirstGreaterOrEqual(s.w.q.keys.hintsFrom(s.where, place.Shard, place.From).Begin)
	begin.Offset += 1 + place.Offset
	return begin
}

// fromTheOldest sets the cursors at the oldest hints and timers.
//
// The first fill reads the hints of all shards, and the timers of one shard: each search takes the next shard. So a
// search that finds something has read the timers of one shard, whatever the number of shards. Only a search which
// finds too little reads the timers of all shards. So other groups go at most (shards - 1) searches ahead of one that
// is due. In a fair queue each search reads the timers of all shards, because a due timer takes its turn among the
// hints.
func (s *search) fromTheOldest() {
	q := s.w.q
	s.begun, s.away = true, false
	s.shards, s.later = s.shards[:0], nil
	s.timers, s.since = s.timers[:0], nil
	s.reach(q.keys.shards.all())
	s.turn, s.fresh = s.spread.Turn.Add(1)%int64(len(s.timers)), true
}

// reach adds cursors for the hints and due timers of the shards that have none yet: up to all, the number of shards.
func (s *search) reach(all int64) {
	keys, since := s.w.keys, s.retro.dueBy(s.w.nowMS)[1:]
	for shard := int64(len(s.timers)); shard < all; shard++ {
		s.shards = append(s.shards, newCursor(keys.hintsFrom(s.where, shard, 0)))
		s.timers = append(s.timers, newCursor(keys.dueFrom(s.where, shard, 0, s.w.nowMS)))
		for _, of := range since {
			s.since = append(s.since, newCursor(keys.dueWithin(s.where, shard, of)))
		}
	}
}

// follow adapts the search to another retroactive delay, now: that of the transaction's configuration. If now is
// shorter than the delay that the search knew, or the delay has become retroactive, timers may be due that were not due
// before. Then follow replaces the cursors in since by cursors for these timers, and returns true. All rows of the
// cursors in since must have been read. A longer delay needs nothing, because addTimers leaves out the timers that are
// not due by it.
func (s *search) follow(now retro) bool {
	more := now.dueSooner(s.retro, s.w.nowMS)
	if len(more) == 0 {
		return false
	}
	s.retro, s.since = now, nil
	for shard := range int64(len(s.timers)) {
		for _, of := range more {
			s.since = append(s.since, newCursor(s.w.keys.dueWithin(s.where, shard, of)))
		}
	}
	return true
}

// grow adds cursors for shards that the search does not know yet, and for timers that are due by a shorter retroactive
// delay (follow). The transaction's configuration says which. grow reports whether it has added any, and waits for
// nothing but the configuration (txn.config). On a walk, and if the search is nearby, it does nothing, because find
// then starts over at the oldest. A search which has found nothing else must not end before it has read what was added:
// see store_lane.go. Example: the search knew 4 shards, and the configuration has 8.
func (s *search) grow() (bool, error) {
	if s.away || s.nearby {
		return false, nil
	}
	config, err := s.w.config()
	if err != nil {
		return false, err
	}
	more, before := s.follow(config.retro()), len(s.timers)
	s.reach(s.w.keys.shards.all())
	return more || len(s.timers) > before, nil
}

// next returns up to n candidates, in order, or none if there are no more. On a walk it first returns groups that acks
// of this transaction have left ready: order.keep says when. Otherwise it reads more hints and due timers if no
// candidate is pending. On a walk next also notes the last hint returned: the next search of the handle continues
// there.
func (s *search) next(n int) ([]candidate, error) {
	if !s.begun {
		s.begin()
	}
	if kept, err := s.order.keep(s, n); err != nil || len(kept) > 0 {
		return kept, err
	}
	if err := s.find(n); err != nil {
		return nil, err
	}
	n = min(n, len(s.pending))
	wave := s.pending[:n:n]
	s.pending = s.pending[n:]
	if s.away && n > 0 {
		// If this transaction has written the last hint, the hint may be in another shard, and tells no place.
		if key := wave[n-1].key; s.w.keys.hintsFrom(s.where, s.shard, 0).Contains(key) {
			s.spread.Walked(s.shard, key)
		}
	}
	return wave, nil
}

// given must be called when items of the candidate's group were delivered, or the group was granted to another handle.
// In a fair queue the next turn is then that of the shard behind the group's. given does nothing for a group that the
// caller has named, or to which a grant to this handle has led. Example: next has returned A1 and B1, in the shards A
// and B, and a receive of one item takes A1. The next turn is B's, although next has returned B1, too.
func (s *search) given(c *candidate) {
	if c.key != nil && c.grant == 0 {
		s.spread.FairTurn.Store(s.shardOf(*c) + 1)
	}
}

// find makes sure that candidates are pending, unless there are no more. n is how many the caller wants: see start.
func (s *search) find(n int) error {
	for len(s.pending) == 0 {
		if err := s.fill(n); err != nil {
			return err
		}
		if len(s.pending) > 0 || !s.away && !s.nearby {
			break
		}
		// The walk is over, and the search begins at the oldest. Or the walk has landed behind the last hint: then the
		// search begins a few hints behind the oldest (nearby), and if nothing is there, at the oldest.
		skip := 0
		if s.away {
			skip = s.spread.GoHome(s.w.q.random)
		}
		s.fromTheOldest()
		if s.nearby = skip > 0; s.nearby {
			s.shards[0].begin.Offset += skip
			s.timers, s.since = nil, nil
		}
	}
	return nil
}

// start starts the reads of the next fill, unless they are under way: the next hints of each shard, and due timers, at
// snapshot. A walk has one shard. The first fill from the oldest reads the timers of one shard, or of all shards in a
// fair queue. Once the transaction has ended as many holdings as it may (tired), no fill reads timers. start does not
// wait, so the caller can begin the reads early. readMore takes the results.
func (s *search) start(n int) {
	if !s.begun {
		s.begin()
	}
	if s.reads != nil {
		return
	}
	if s.w.tired() { // the transaction has ended as many holdings as it may: only hints help
		passOver(s.timers)
		passOver(s.since)
	}
	// Read a row more than asked for, because a hint may be stale, and a row costs less than another round trip. Also
	// read as many rows more as the handle's other transactions are about to claim.
	r := &searchReads{
		limit: n + 1 + s.w.along.beside, oldest: s.fresh && !s.nearby,
		timers: make([]kv.Future[[]kv.KV], len(s.timers)), since: make([]kv.Future[[]kv.KV], len(s.since)),
	}
	snapshot := s.w.read
	for i := range s.shards {
		r.hints = append(r.hints, s.shards[i].read(snapshot, r.limit))
	}
	for i := range s.timers {
		if !s.fresh || s.order.begins(s, int64(i)) {
			r.timers[i] = s.timers[i].read(snapshot, r.limit)
			if s.since != nil {
				r.since[i] = s.since[i].read(snapshot, r.limit)
			}
		}
	}
	s.reads, s.fresh = r, false
}

// passOver ends the cursors: their remaining rows are not read.
func passOver(cursors []cursor) {
	for i := range cursors {
		cursors[i].exhausted = true
	}
}

// searchReads are the reads of a fill under way.
type searchReads struct {
	limit  int                  // how many rows each read may return
	hints  []kv.Future[[]kv.KV] // of each cursor in search.shards
	timers []kv.Future[[]kv.KV] // of each cursor in search.timers; nil = not read in this fill
	since  []kv.Future[[]kv.KV] // of each cursor in search.since; nil = not read in this fill
	oldest bool                 // the fill is the first from the oldest, so it shows the oldest hint
}

// fill reads fills until a candidate is pending, or until the cursors, and those that grow adds, are exhausted.
func (s *search) fill(n int) error {
	for {
		if err := s.readMore(n); err != nil || len(s.pending) > 0 {
			return err
		}
		if s.exhausted() {
			if more, err := s.grow(); err != nil || !more {
				return err
			}
		}
	}
}

// exhausted reports whether all rows of the cursors were read.
func (s *search) exhausted() bool {
	more := func(c cursor) bool { return !c.exhausted }
	return !slices.ContainsFunc(s.timers, more) && !slices.ContainsFunc(s.since, more) &&
		!slices.ContainsFunc(s.shards, more)
}

// readMore is one fill. It waits for the reads that start has begun, makes a candidate of each hint and each due timer,
// and moves those that are in order by now to pending. It also notes in spread which hints there are.
func (s *search) readMore(n int) error {
	s.start(n)
	reads, limit := s.reads, s.reads.limit
	s.reads = nil
	// whole is the index up to which every hint has been read: the least of the last indexes of the shards, without
	// those that are exhausted.
	whole := int64(math.MaxInt64)
	for i, f := range reads.hints {
		rows, err := f.Wait(s.w.ctx)
		if err != nil {
			return fmt.Errorf("read ready hints: %w", err)
		}
		s.shards[i].passed(rows, limit)
		last := s.addHints(rows)
		if !s.shards[i].exhausted {
			whole = min(whole, last)
		}
	}
	if !s.away && !s.nearby {
		s.spread.Plenty.Store(s.order.plenty(s, limit))
	}
	if reads.oldest && len(s.pending) > 0 {
		s.spread.Oldest.Store(slices.MinFunc(s.pending, byIndex).index)
	}
	if err := s.learnNewest(); err != nil {
		return err
	}
	if err := s.passTimers(s.timers, reads.timers, limit); err != nil {
		return err
	}
	if err := s.passTimers(s.since, reads.since, limit); err != nil {
		return err
	}
	s.order.arrange(s, whole)
	return nil
}

// passTimers waits for the reads of timers by the cursors, and adds the due ones to later. A nil read was not started.
func (s *search) passTimers(cursors []cursor, reads []kv.Future[[]kv.KV], limit int) error {
	for i, f := range reads {
		if f == nil {
			continue
		}
		due, err := f.Wait(s.w.ctx)
		if err != nil {
			return fmt.Errorf("read timers: %w", err)
		}
		cursors[i].passed(due, limit)
		if err := s.addTimers(due); err != nil {
			return err
		}
	}
	return nil
}

// addTimers adds a candidate for each due timer in rows to later. The timer of a heartbeat leads to no lane: addTimers
// notes the beat in w.beats.due, for the caller to end.
//
// addTimers leaves out a timer that is not due, because the delay is longer than the search knew. Otherwise the receive
// would set the same timer again (awaitHead), and a second hint or timer of the group, met later in this transaction,
// would clear it.
func (s *search) addTimers(rows []kv.KV) error {
	config, err := s.w.config()
	if err != nil {
		return err
	}
	for _, row := range rows {
		p, err := s.w.keys.parse(row.Key)
		if s.w.skipsRow(err) {
			continue // leads nowhere
		}
		if p.name == nameTimer && p.id != uuid.Nil { // of a heartbeat
			s.w.beats.due = append(s.w.beats.due, dueBeat{handle: p.id, key: row.Key})
			continue
		}
		if _, settled := s.w.noted.settled[p.lane]; settled {
			continue // this transaction has ended the claim, and cleared the timer, after the read
		}
		due := config.retro().dueOf(p.index)
		if due > s.w.nowMS {
			continue
		}
		kind, index, err := rec.UnpackTimer(row.Key, row.Value)
		if s.w.skipsRow(err) { // the key says which lane is due
			if kind, index, err = s.w.unknownTimer(due); err != nil {
				return err
			}
		}
		if index, err = s.w.placeOf(index, due); err != nil {
			return err
		}
		s.later = append(s.later, candidate{
			key: row.Key, lane: p.lane, index: index, timer: kind != rec.KindHead, head: kind == rec.KindHead,
		})
	}
	return nil
}

// reached moves the candidates in list with an index up to whole to pending, and returns the rest. Candidates of
// another template stay in the rest.
func (s *search) reached(list []candidate, whole int64) (rest []candidate) {
	for _, c := range list {
		if s.w.keys.plan.SoughtBy(c.lane) == s.where && c.index <= whole {
			s.pending = append(s.pending, c)
		} else {
			rest = append(rest, c)
		}
	}
	return rest
}

// learnNewest notes in spread the index of the last hint, if begin has started the read of its key. If the shard of the
// walk has no hint, a search for whole groups takes the last hint of an earlier shard, and any other search notes
// nothing.
func (s *search) learnNewest() error {
	if s.newest == nil {
		return nil
	}
	q := s.w.q
	k, err := s.newest.Wait(s.w.ctx)
	s.newest = nil
	if err != nil {
		return fmt.Errorf("read newest hint: %w", err)
	}
	if !q.keys.hintsFrom(s.where, s.shard, 0).Contains(k) && (s.where != "" || !q.keys.section(nameReady).Contains(k)) {
		return nil // there is none
	}
	p, err := q.keys.parse(k)
	if q.skipsRow(err) {
		return nil
	}
	s.spread.Newest.Store(p.index)
	return nil
}

// addHints adds a candidate for each hint in rows to pending. last is the index of the last hint; 0 = there is none.
func (s *search) addHints(rows []kv.KV) (last int64) {
	for _, row := range rows {
		p, err := s.w.keys.parse(row.Key)
		if s.w.skipsRow(err) {
			continue // leads nowhere
		}
		last = p.index
		attempts, err := unpackHint(row)
		s.pending = append(s.pending, candidate{
			key: row.Key, lane: p.lane, index: p.index, attempts: attempts,
			head: s.w.skipsRow(err), // the value cannot be read: the head's attempt record says how often it has failed
		})
	}
	return last
}

// unknownTimer returns a kind and an index for a timer with a value that cannot be read, so that the timer still leads
// to its lane. The timer counts as that of a delayed head. The index is the version at dueMS, the time at which the
// timer is due by its key (retro.dueOf).
func (w *txn) unknownTimer(dueMS int64) (rec.Kind, int64, error) {
	now, err := w.clock()
	return rec.KindHead, max(0, now-(w.nowMS-dueMS)*versionsPerMS), err
}

// Strategy says how a receive spreads over the ready groups.
type Strategy int

// The strategies. With groups A of 5 items, B of 3 and C of 2, in that order of age, a receive of 10 delivers:
const (
	// FillGroup takes as much as possible from the oldest group, then from the next: A1–A5 B1–B3 C1 C2.
	FillGroup Strategy = iota
	// Layers takes the first item of each group, then the second of each: A1 B1 C1 A2 B2 C2 A3 B3 A4 A5.
	Layers
	// Heads takes the first item of each group: A1 B1 C1.
	Heads
)

// InOrder returns the items of a receive in the order in which the strategy delivers the items. Within a group the
// order is always the group's order.
func (s Strategy) InOrder(claims []*Claim) []Item {
	var items []Item
	if s != Layers {
		for _, c := range claims {
			items = append(items, c.Items...)
		}
		return items
	}
	for layer, more := 0, true; more; layer++ {
		more = false
		for _, c := range claims {
			if layer < len(c.Items) {
				items = append(items, c.Items[layer])
				more = true
			}
		}
	}
	return items
}

// layers returns how many items of each group a receive of max items takes layer by layer: the first item of each
// group, then the second of each. have is the number of items of each group. Example: have 5 3 2, max 4: 2 1 1.
//
// fits says whether the item with the number item, from 0, of a group fits into the receive. layers calls fits once for
// each item in the order of taking, so that fits may add up sizes. After the first item that does not fit layers takes
// nothing more.
func layers(have []int, max int, fits func(group, item int) bool) []int {
	take := make([]int, len(have))
	for left, more := max, true; more; {
		more = false
		for i := range have {
			if left == 0 || take[i] == have[i] {
				continue
			}
			if !fits(i, take[i]) {
				return take
			}
			take[i]++
			left--
			more = true
		}
	}
	return take
}

// reception returns a new reception (the state of one receive) for options that withDefaults has checked. It checks the
// rest of the options, as place does.
func (q *Queue) reception(o ReceiveOptions) (*reception, error) {
	where, err := o.place(q.keys)
	if err != nil {
		return nil, err
	}
	return &reception{o: o, where: where}, nil
}

// place checks the options that depend on the kind of queue, and returns the packed template of the receive; "" = whole
// groups. keys has the queue's plan, which says what can be received. Errors: *TemplateError, ErrOptions, or the error
// of a value.
func (o ReceiveOptions) place(keys subspace) (where string, err error) {
	if where, err = keys.where(o.Where); err != nil {
		return "", err
	}
	if o.Heartbeat {
		if err := keys.plan.CheckOneHolder("Heartbeat", ErrOptions); err != nil {
			return "", err
		}
	}
	if o.Unordered {
		if where, err = o.placeUnordered(keys); err != nil {
			return "", err
		}
	}
	if o.State && (where != "" || keys.plan.ClaimsItems(where)) {
		return "", errLaneState
	}
	return where, nil
}

// lane returns the lane of a claim that was given to the receive. A repeated receive returns claims of an earlier one:
// then the template is that of the earlier receive (was).
func (r *reception) lane(c *Claim) string {
	if c.Hold != (ID{}) {
		return holdLane(c.Hold)
	}
	if r.repeated {
		return lanes.Name(c.Group, r.was)
	}
	return lanes.Name(c.Group, r.where)
}

// lane returns the lane of a claim: of the held item, of the template, or of the whole group. The error is ErrClaimLost
// if the claim is of a single item, and the queue has no such claims. Other errors: ErrInvalidID, and those of a wrong
// template.
func (c *Claim) lane(q *Queue) (string, error) {
	if c.Hold != (ID{}) {
		lane, ok := q.keys.plan.HoldOn(lanes.Item(c.Hold))
		if !ok {
			return "", fmt.Errorf("%w: message %q, token %d: the queue has no claims of single messages, see %s and %s",
				ErrClaimLost, c.Hold, c.Token, settingUnordered, settingLeasePer)
		}
		return lane, checkID(c.Hold)
	}
	return q.keys.laneAt(c.Group, c.Where)
}

// Stored returns the part of a claim that must be stored, as JSON for example, so that another process can settle it:
// the queue, the group, the template, the held item, the token, Until and the items' ids. Bodies, headers and the state
// are left out. The stored claim settles as the claim itself does, until the claim is lost.
func (c *Claim) Stored() *Claim {
	now := c.snapshot()
	s := &Claim{
		Queue: now.Queue, Group: now.Group, Where: now.Where, Hold: now.Hold, Token: now.Token, Until: now.Until,
	}
	for _, item := range now.Items {
		s.Items = append(s.Items, Item{ID: item.ID})
	}
	return s
}

// TokenKey returns the key under which a system outside the database must compare tokens, so that it can refuse a
// holder whose group has a later claim. The system must keep the greatest token that it has seen for each key, and must
// refuse a smaller one. The key is the group. Of a claim by template it is the group and the template, because other
// stages of the group may be in flight at the same time, under the same token. Of a claim of a single item it is the
// item's id.
//
// Templates of different views may have an item in common, and have different keys. If you receive by several such
// views, use the id of the item as the key: for an item, tokens grow from claim to claim, whatever the kind of claim.
func (c *Claim) TokenKey() string {
	switch {
	case c.Hold != (ID{}):
		return c.Hold.String()
	case c.Where != nil:
		return fmt.Sprintf("%q %q", c.Group, map[string]string(c.Where))
	}
	return fmt.Sprintf("%q", c.Group)
}

// missing returns the end of an error that no such claim exists: it names the field that a stored claim may lack, Where
// or Hold. "" = the claim lacks none. Example: "; a claim of a single message needs its Hold".
func (c *Claim) missing(q *Queue) string {
	claim, field := q.keys.plan.NamedBy()
	if c.Hold != (ID{}) || c.Where != nil || field == "" {
		return ""
	}
	return fmt.Sprintf("; a claim %s needs its %s", claim, field)
}

// words returns two phrases for an error about the claim: what it is of, and the thing that its holder holds. Example:
// `group "customer-7"` and "the group".
func (c *Claim) words() (what, held string) {
	switch {
	case c.Hold != (ID{}):
		return fmt.Sprintf("message %q", c.Hold), "the message"
	case c.Where != nil:
		return fmt.Sprintf("group %q where %s", c.Group, c.Where), "the lane"
	}
	return fmt.Sprintf("group %q", c.Group), "the group"
}

// byTemplate divides receives by their packed templates. Each part has its receives in the order of arrival. The parts
// are in the order of their first receives.
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
