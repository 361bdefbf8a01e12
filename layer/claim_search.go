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

// search walks the hints of ready groups and the due timers, both at snapshot, a few at a time, the oldest first.
//
// A handle which met others at the oldest hints goes for a walk (see advice.Spread): its searches begin where the last
// search ended, far from the oldest, and read neither timers nor the hints passed over. If nothing lies there, the
// search starts over from the oldest.
type search struct {
	w       *txn
	where   string         // the packed template; "" = whole groups
	spread  *advice.Spread // of the template
	shards  []cursor       // of hints
	timers  []cursor       // by shard
	since   []cursor       // by shard, of the timers with the time of an enqueue, see retro; nil = none are read
	turn    int64          // the shard whose timers are read first
	fresh   bool           // nothing was read yet
	pending []candidate
	later   []candidate // timers whose places lie behind the hints read so far
	away    bool        // on a walk
	shard   int64       // of the walk
	nearby  bool        // begins a few hints behind the oldest of shard 0
	order   order
	retro   retro
	begun   bool
	newest  kv.Future[[]byte] // the last hint's key; nil = not asked for
	reads   *searchReads      // under way; nil = none
}

func newSearch(w *txn, where string) *search {
	config := w.q.knownConfig()
	s := &search{w: w, where: where, spread: w.q.spreadOf(where), order: byAge{}, retro: config.retro()}
	if config.Fair {
		s.order = inTurns{}
	}
	return s
}

// order is the order in which a search looks at the groups that it finds.
type order interface {
	// keep returns up to n groups which acks of this transaction have left ready, and which the handle claims again.
	keep(s *search, n int) (kept []candidate, err error)
	// begins reports whether the first fill from the oldest reads the timers of a shard.
	begins(s *search, shard int64) bool
	// plenty reports whether a fill, which reads up to limit hints of each shard, has found enough.
	plenty(s *search, limit int) bool
	// arrange moves candidates to pending, and sorts pending. Every hint up to the index whole has been read.
	arrange(s *search, whole int64)
}

// byAge is the order in which the oldest comes first.
type byAge struct{}

// inTurns is the order of a fair queue: the shards take turns. A timer takes its turn among the hints of its shard,
// whatever its age.
type inTurns struct{ byAge }

// keep returns groups only on a walk, because a walk takes groups out of order anyway. A handle that meets no other
// handle takes the oldest group.
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

func (inTurns) keep(*search, int) ([]candidate, error) { return nil, nil }

func (byAge) begins(s *search, shard int64) bool { return shard == s.turn }

func (inTurns) begins(*search, int64) bool { return true }

func (byAge) plenty(s *search, limit int) bool { return len(s.pending) == limit*len(s.shards) }

func (inTurns) plenty(s *search, limit int) bool { return len(s.pending) >= limit }

func (byAge) arrange(s *search, whole int64) {
	s.later = s.reached(s.later, whole)
	// The reads may have begun before this transaction set its own hints, and so may not see them.
	s.w.noted.hinted = s.reached(s.w.noted.hinted, whole)
	slices.SortStableFunc(s.pending, func(a, b candidate) int { return cmp.Compare(a.index, b.index) })
}

// arrange puts the oldest of each shard before the second of each. The shard behind that of the last candidate which
// the handle has given comes first: so a receive of one item does not look at the oldest shard again and again.
// Example: shards A with 5, B with 2 and C with 1, the last was A's: B1 C1 A1 B2 A2 A3 A4 A5.
func (o inTurns) arrange(s *search, _ int64) {
	o.byAge.arrange(s, math.MaxInt64)
	shards := s.w.keys.shards.all()
	turn := s.spread.FairTurn() % shards
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

func (s *search) shardOf(c candidate) int64 { return s.w.keys.shard(lanes.GroupOf(c.lane)) }

// begin chooses where to start.
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

// landing returns where the place is.
func (s *search) landing(place advice.Place) kv.KeySelector {
	if place.After != nil {
		return kv.FirstGreaterThan(place.After)
	}
	begin := kv.FirstGreaterOrEqual(s.w.q.keys.hintsFrom(s.where, place.Shard, place.From).Begin)
	begin.Offset += 1 + place.Offset
	return begin
}

// fromTheOldest starts at the oldest hints and timers.
//
// The first fill reads the hints of all shards, and the timers of one shard: each search takes the next shard. So a
// search that finds something has made one read of timers, whatever the number of shards. Only a search which finds too
// little reads the timers of all shards. So other groups go at most (shards - 1) searches ahead of one that is due. In
// a fair queue each search reads the timers of all shards, because what is due takes its turn among the hints.
func (s *search) fromTheOldest() {
	q := s.w.q
	s.begun, s.away = true, false
	s.shards, s.later = s.shards[:0], nil
	s.timers, s.since = s.timers[:0], nil
	s.reach(q.keys.shards.all())
	s.turn, s.fresh = s.spread.NextTurn()%int64(len(s.timers)), true
}

// reach adds the shards up to all.
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

// follow is for a retroactive delay that the handle has learned since the search began. It adds the timers that are due
// only by this delay, and reports whether there may be any. A longer delay needs nothing, because addTimers leaves out
// the timers that are not due by it.
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

// grow adds the shards of which the handle has learned since the search began, and reports whether there are such. A
// search which has found nothing else must not end before it has searched these shards: see store_lane.go.
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

// next returns up to n candidates, the oldest first, or none if there are no more.
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
		// The last may be a hint of this transaction's own, which is in any shard.
		if key := wave[n-1].key; s.w.keys.hintsFrom(s.where, s.shard, 0).Contains(key) {
			s.spread.Walked(s.shard, key)
		}
	}
	return wave, nil
}

// given notes that a group to which the search led was delivered from, or granted: in a fair queue it is the turn of
// the next shard. A group that the search found and that was not given takes no turn, because a receive that is full
// before would come to the same shard first again and again.
func (s *search) given(c *candidate) {
	if c.key != nil && c.grant == 0 {
		s.spread.NoteFairTurn(s.shardOf(*c) + 1)
	}
}

// find reads until there are candidates in pending, or no more to read.
func (s *search) find(n int) error {
	if len(s.pending) > 0 {
		return nil
	}
	if err := s.fill(n); err != nil {
		return err
	}
	for len(s.pending) == 0 && (s.away || s.nearby) {
		// The walk is over, or has landed behind the last hint. Then begin a few hints behind the oldest, and if
		// nothing is there, with the oldest.
		skip := 0
		if s.away {
			skip = s.spread.GoHome(s.w.q.random)
		}
		s.fromTheOldest()
		if s.nearby = skip > 0; s.nearby {
			s.shards[0].begin.Offset += skip
			s.timers, s.since = nil, nil
		}
		if err := s.fill(n); err != nil {
			return err
		}
	}
	return nil
}

// start starts the reads of the next fill.
func (s *search) start(n int) {
	if !s.begun {
		s.begin()
	}
	if s.reads != nil {
		return
	}
	if s.w.tired() { // no more claims can be ended, so only ready groups help
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

// passOver ends the cursors: the rest of their rows stays unread.
func passOver(cursors []cursor) {
	for i := range cursors {
		cursors[i].exhausted = true
	}
}

// searchReads is the reads of a fill under way.
type searchReads struct {
	limit  int
	hints  []kv.Future[[]kv.KV]
	timers []kv.Future[[]kv.KV] // nil = not read this time
	since  []kv.Future[[]kv.KV] // nil = not read this time
	oldest bool                 // the reads begin at the oldest
}

// fill reads on until there is something to look at, or nothing more to read.
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

func (s *search) exhausted() bool {
	more := func(c cursor) bool { return !c.exhausted }
	return !slices.ContainsFunc(s.timers, more) && !slices.ContainsFunc(s.since, more) &&
		!slices.ContainsFunc(s.shards, more)
}

func (s *search) readMore(n int) error {
	s.start(n)
	reads := s.reads
	limit, hints, fromTheOldest := reads.limit, reads.hints, reads.oldest
	s.reads = nil
	// whole is the index up to which every hint has been read.
	whole := int64(math.MaxInt64)
	for i, f := range hints {
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
		s.spread.NotePlenty(s.order.plenty(s, limit))
	}
	if fromTheOldest && len(s.pending) > 0 {
		oldest := s.pending[0].index
		for _, c := range s.pending {
			oldest = min(oldest, c.index)
		}
		s.spread.NoteOldest(oldest)
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

// passTimers adds the timers which the reads of the cursors have found to later.
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

// addTimers adds the due timers in rows to later. It leaves out a timer that is not due, because the delay is longer
// than the search knew. Otherwise the receive would set the same timer again (awaitHead), and a second hint or timer of
// the group, met later in this transaction, would clear it.
func (s *search) addTimers(rows []kv.KV) error {
	config, err := s.w.config()
	if err != nil {
		return err
	}
	for _, row := range rows {
		p, err := s.w.keys.parse(row.Key)
		if s.w.passes(err) {
			continue // leads nowhere
		}
		if p.name == nameTimer && p.id != uuid.Nil { // of a heartbeat
			s.w.beats.due = append(s.w.beats.due, dueBeat{handle: p.id, key: row.Key})
			continue
		}
		if _, settled := s.w.noted.settled[p.lane]; settled {
			continue // read before the claim was ended
		}
		due := config.retro().dueOf(p.index)
		if due > s.w.nowMS {
			continue
		}
		kind, index, err := rec.UnpackTimer(row.Key, row.Value)
		if s.w.passes(err) { // the key says which lane is due
			if kind, index, err = s.w.unknownTimer(due); err != nil {
				return err
			}
		}
		if index, err = s.w.placeOfDue(index, due); err != nil {
			return err
		}
		s.later = append(s.later, candidate{
			key: row.Key, lane: p.lane, index: index, timer: kind != rec.KindHead, head: kind == rec.KindHead,
		})
	}
	return nil
}

// reached moves the candidates up to the index whole, which the reads have reached, from list to pending, and returns
// the rest.
func (s *search) reached(list []candidate, whole int64) (rest []candidate) {
	for _, c := range list {
		if s.w.keys.plan.SoughtBy(c.lane) != s.where {
			rest = append(rest, c) // for a receive by another template
		} else if c.index <= whole {
			s.pending = append(s.pending, c)
		} else {
			rest = append(rest, c)
		}
	}
	return rest
}

// learnNewest notes where the hints end, if begin has asked.
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
	if q.passes(err) {
		return nil
	}
	s.spread.NoteNewest(p.index)
	return nil
}

// addHints adds the hints in rows to the candidates and returns the index of the last hint.
func (s *search) addHints(rows []kv.KV) (last int64) {
	for _, row := range rows {
		p, err := s.w.keys.parse(row.Key)
		if s.w.passes(err) {
			continue // leads nowhere
		}
		last = p.index
		attempts, err := unpackHint(row)
		s.pending = append(s.pending, candidate{
			key: row.Key, lane: p.lane, index: p.index, attempts: attempts,
			head: s.w.passes(err), // an unreadable value: the record of the head has the attempts
		})
	}
	return last
}

// unknownTimer stands for the value of a timer that cannot be read: the timer counts as that of a head, with the index
// that belongs to the time dueMS.
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

// layers says how many items of each group a receive of max items takes layer by layer. have is the number of items of
// each group. Example: have 5 3 2, max 4: 2 1 1. fits says whether the item with the number item, from 0, of a group
// fits. layers calls fits once for each item in the order of taking, so that fits may add up sizes. After the first
// item that does not fit layers takes nothing more.
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

// reception makes a receive of options that were checked, and checks the template.
func (q *Queue) reception(o ReceiveOptions) (*reception, error) {
	where, err := o.place(q.keys)
	if err != nil {
		return nil, err
	}
	return &reception{o: o, where: where, stop: o.Stop}, nil
}

// place checks the options against a queue with those keys, and returns the packed template.
func (o ReceiveOptions) place(keys subspace) (where string, err error) {
	if where, err = keys.where(o.Where); err != nil {
		return "", err
	}
	if o.Heartbeat && !keys.plan.IsPlain() {
		return "", fmt.Errorf("%w: Heartbeat in a queue with facets, unordered, or with a lease for each item",
			ErrOptions)
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

// lane returns the lane of one of the receive's claims.
func (r *reception) lane(c *Claim) string {
	if c.Hold != (ID{}) {
		return holdLane(c.Hold)
	}
	if r.repeated {
		return lanes.Name(c.Group, r.was)
	}
	return lanes.Name(c.Group, r.where)
}

// lane returns the lane of a claim.
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
// the queue, the group, the template, the held item, the token and the items' ids. Bodies, headers and the state are
// left out. The stored claim settles as the claim itself does, until the claim is lost.
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

// missing names the field which a stored claim may lack. It is for the error when there is no claim of the group, lane
// or item that the stored claim names.
func (c *Claim) missing(q *Queue) string {
	claim, field := q.keys.plan.NamedBy()
	if c.Hold != (ID{}) || c.Where != nil || field == "" {
		return ""
	}
	return fmt.Sprintf("; a claim %s needs its %s", claim, field)
}

// words name, for an error, the object of a claim, and the thing that its holder holds.
func (c *Claim) words() (what, held string) {
	switch {
	case c.Hold != (ID{}):
		return fmt.Sprintf("message %q", c.Hold), "the message"
	case c.Where != nil:
		return fmt.Sprintf("group %q where %s", c.Group, c.Where), "the lane"
	}
	return fmt.Sprintf("group %q", c.Group), "the group"
}

// byTemplate divides receives by their templates, in the order of arrival.
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
