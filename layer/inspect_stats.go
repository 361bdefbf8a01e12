package layer

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/lanes"
	"fdbfifo/layer/internal/rec"
)

const (
	// statsTimers bounds the timers read by Stats, the first due first.
	statsTimers = 10_000
	timersPage  = 1000 // how many timers, or claims by heartbeat, are read at a time
	// Of the first statsDelayed delayed groups Stats counts the messages, up to statsDeep of each: in about 20 rounds
	// of key reads at most, and in 3 if the groups have a message or two.
	statsDelayed = 100
	statsDeep    = 1000
	// statsHints is how many hints Stats follows to their groups. It counts the hints behind them without a look.
	statsHints = 100
	// statsHolds bounds the locks which Stats reads to find the longest hold.
	statsHolds = 20
	// statsHeads is of how many heads Stats compares the ages: those with the smallest indexes.
	statsHeads = 20
)

// How Stats counts groups: a ready group has a hint (a key ready or open), and a held or delayed group has a timer (a
// key timer or due). So Stats counts these keys, and not groups or items. Some lead to nothing any more, or are
// doubled: a transaction that finds such a key clears it. So Stats follows the first hints to their groups, and
// subtracts the keys that it has seen to stand for no group of their own: they are passed.
//
// Keys have their names in the table of subspace.go. Stats may be asked about a template. Then the groups are the lanes
// of the template: of each group the part that the template matches. A lane has a name, see package lanes, and that of
// a whole group is the group. A packed template has the values of the template as they are in keys; "" = whole groups.
// A hold is the lock of a single item, in a queue with unordered receives or a lease for each item. An inspection is a
// look for people at one version of the database: all reads are at snapshot, and it writes nothing. skipsRow(err)
// reports whether a row cannot be read: such a row is left out.
//
// The kind of a timer names the thing that ends then: a claim, a grant, or a delay before a retry. A timer of kind head
// leads to a group whose head, the first item, is delayed, whose rate is used up, or which waits for an intersecting
// claim. A timer of kind beat is that of the heartbeat of a handle, which keeps claims alive (keys beat and held).

// groupCounts counts the groups of a queue by status, from hints and timers, so that the cost is bounded and does not
// grow with the number of messages. It sets ReadyGroups, BusyGroups, HeldGroups, DelayedGroups, FailingGroups, Delayed
// and Lapsed of the Stats.
type groupCounts struct {
	inspection
	*Stats
	o     StatsOptions
	where string // the packed template; "" = whole groups. In an unordered queue it is that of the free items.
	retro retro  // how the queue delays messages that have no delay of their own
	// follows is how many of the first hints verify follows to their groups.
	follows int

	marked map[string]bool // the groups which are paused or halted, or will be; nil = there are none

	due, later             int64               // the timers that were read: due by now, and due later
	allTimers              bool                // all timers were read, so due and later are complete
	passedDue, passedLater int64               // of due and later, those that stand for no group of their own
	oldestReady, oldest    []head              // of the ready groups, and of all ready or busy groups: see oldHeads
	waiting                []string            // the first delayed groups, statsDelayed at most, each once
	further                int64               // the delayed groups which are not in waiting
	claims                 []head              // the held groups; group is the name of the lane
	taken                  map[string]bool     // the held groups, and those with a grant
	inTurn                 map[string]bool     // the groups of which a hold was met
	hinted                 map[string]hintSays // what the first hints lead to, by lane
}

// head is a group and the index of its head, as of when the hint or timer was written. With RoundRobin the index may be
// the group's place instead. Where a comment says so, group is the name of another lane.
type head struct {
	group string
	index int64
}

// oldHeads adds a head to the statsHeads oldest. The head with the smallest index need not have waited the longest,
// because a delay does not count as a wait.
func oldHeads(all []head, h head) []head {
	at, _ := slices.BinarySearchFunc(all, h, func(x, y head) int { return cmp.Compare(x.index, y.index) })
	if at == statsHeads {
		return all
	}
	return slices.Insert(all, at, h)[:min(len(all)+1, statsHeads)]
}

// count sets the results (ready, busy, held, delayed) and all other figures that hints and timers give. ready is the
// number of hints and of timers that are due, less those that were passed. busy is the number of timers that are due
// later, less those that were passed. Each of the first hints that leads to a waiting group adds one to busy and to
// delayed. A claim by heartbeat has no timer, so its key held counts as one. ready ends at MaxGroups. held and delayed
// count the timers that were read.
//
// All reads are at snapshot: hints (ready or open), timers (timer or due), beat and held. Of the first hints count also
// reads lock, the first hold, the first item (item or lane) and pace. Of the first delayed groups it counts the keys of
// the items (item or lane). It reads no key mark, because the caller has set marked. A row that cannot be read is left
// out.
func (c *groupCounts) count() error {
	passed, err := c.verify() // hints of marked groups, and hints that lead to nothing
	if err != nil {
		return err
	}
	for _, shard := range c.keys.hintsOf(c.where) {
		n, err := c.hints(shard)
		if err != nil {
			return err
		}
		passed += n
	}
	if err := c.timers(); err != nil {
		return err
	}
	// A group with such a hint waits, and has no timer before a receive has met the hint. So it is one more busy group.
	for lane, says := range c.hinted {
		if says == hintWaits {
			c.passedLater--
			c.delay(lanes.GroupOf(lane))
		}
	}
	if err := c.weigh(); err != nil {
		return err
	}
	hints, err := c.countHints(c.where, int64(c.o.MaxGroups))
	if err != nil {
		return err
	}
	due, later, err := c.countTimers()
	// due and later end at MaxGroups, and those that are passed do not.
	c.ReadyGroups = min(max(hints-passed, 0)+max(due-c.passedDue, 0), int64(c.o.MaxGroups))
	c.BusyGroups = min(max(later-c.passedLater, 0), int64(c.o.MaxGroups))
	return err
}

// countTimers counts the timers that are due and those that are due later, each up to MaxGroups. If all timers have
// been read anyway, it reads none again. Of claims by heartbeat it counts the keys held instead of the timer of the
// beat.
func (c *groupCounts) countTimers() (due, later int64, err error) {
	limit := int64(c.o.MaxGroups)
	if c.allTimers {
		return min(c.due, limit), min(c.later, limit), nil
	}
	if due, err = c.countTogether(c.keys.timersWithin(c.where, c.retro.dueBy(c.nowMS)), limit); err != nil {
		return 0, 0, err
	}
	if later, err = c.countTogether(c.keys.timersWithin(c.where, c.retro.dueAfter(c.nowMS)), limit); err != nil {
		return 0, 0, err
	}
	byBeat, err := c.countKeysOfEach([]kv.KeyRange{c.keys.section(nameHeld), c.keys.section(nameBeat)}, limit)
	if err != nil {
		return 0, 0, err
	}
	// The timer of a beat, which is among later, stands for all groups that the beat keeps.
	return due, min(later+max(0, byBeat[0]-byBeat[1]), limit), nil
}

// lane returns the name of the lane that is looked at in a group: the group's own, or that of the template.
func (c *groupCounts) lane(group string) string { return lanes.Name(group, c.where) }

// countHints counts the hints of a packed template up to limit. It reads no values.
func (v inspection) countHints(where string, limit int64) (n int64, err error) {
	if where == "" {
		return v.countKeys(v.keys.section(nameReady), limit)
	}
	return v.countTogether(v.keys.hintsOf(where), limit)
}

// countTogether counts the keys of all ranges together, up to limit.
func (v inspection) countTogether(ranges []kv.KeyRange, limit int64) (n int64, err error) {
	counts, err := v.countKeysOfEach(ranges, limit)
	for _, in := range counts {
		n += in
	}
	return min(n, limit), err
}

// timerRow is a timer taken apart: its key, and its value. The field index of key is when the timer is due (ms).
type timerRow struct {
	key  parsedKey
	kind rec.Kind // of the holding that ends then; or a head or a beat that is due
	head int64    // index of the group's first item when the timer was written
}

// firstTimers reads the timers of a packed template in the order of their keys, page by page, and passes up to limit of
// them to the function each. That is the order in which they are due. But with retroactive delay the timers with the
// time of an enqueue come behind all others. firstTimers ends early if the function has enough. It does not pass the
// timer of a beat. Instead it passes the handle's claims by heartbeat (keys held), as timers that are due when the beat
// is. more says that there are, or may be, further timers. With several shards the timers are passed in the order in
// which they are due, and if there are more than limit, an equal part of limit is read of each shard.
func (v inspection) firstTimers(where string, limit int, each func(timerRow) (enough bool)) (more bool, err error) {
	shards := v.keys.shards.all()
	if shards == 1 {
		return v.passTimers(v.keys.timersIn(where, 0), limit, each)
	}
	var due []timerRow
	collect := func(t timerRow) (enough bool) {
		due = append(due, t)
		return false
	}
	if more, err = v.passTimers(v.keys.timersOf(where), limit, collect); err != nil {
		return false, err
	}
	if more {
		due = nil
		for _, in := range v.keys.timersByShard(where) {
			if _, err := v.passTimers(in, max(1, limit/int(shards)), collect); err != nil {
				return false, err
			}
		}
	}
	slices.SortStableFunc(due, func(a, b timerRow) int { return cmp.Compare(a.key.index, b.key.index) })
	for _, t := range due {
		if each(t) {
			return true, nil
		}
	}
	return more, nil
}

// passTimers is firstTimers for the timers in one range, in the order of their keys.
func (v inspection) passTimers(in kv.KeyRange, limit int, each func(timerRow) (enough bool)) (more bool, err error) {
	delay, timers := v.known().retro(), newCursor(in)
	for read := 0; read < limit && !timers.exhausted; {
		n := min(timersPage, limit-read)
		rows, err := timers.read(v.read, n).Wait(v.ctx)
		if err != nil {
			return false, fmt.Errorf("read timers: %w", err)
		}
		timers.passed(rows, n)
		read += len(rows)
		opened := v.openTimers(rows)
		var held []*heldClaims // of the next beats
		for i, t := range opened {
			// A beat stands for the claims that it keeps. The first claims of several beats are read at the same time.
			if t.kind == rec.KindBeat {
				if read == limit {
					more = true
					continue
				}
				if len(held) == 0 {
					held = v.beginHeld(opened[i:], limit-read)
				}
				passed, left, enough, err := v.passHeld(held[0], limit-read, each)
				if err != nil || enough {
					return enough, err
				}
				read, more, held = read+passed, more || left, held[1:]
				continue
			}
			t.key.index = delay.dueOf(t.key.index)
			if each(t) {
				return true, nil
			}
		}
	}
	return more || !timers.exhausted, nil
}

// openTimers parses the rows of timers, or of keys held, and leaves out those that cannot be read. Of a key held
// key.index is 0, and the caller sets it.
func (v inspection) openTimers(rows []kv.KV) []timerRow {
	all := make([]timerRow, 0, len(rows))
	for _, row := range rows {
		p, err := v.keys.parse(row.Key)
		kind, head, corrupt := rec.UnpackTimer(row.Key, row.Value)
		if !v.skipsRow(err) && !v.skipsRow(corrupt) {
			all = append(all, timerRow{p, kind, head})
		}
	}
	return all
}

// Thousands of handles may claim by heartbeat. Read one after the other, the claims of each would take as many round
// trips. So the first heldFirst claims of up to heldTogether handles are read at the same time.
const (
	heldTogether = 100
	heldFirst    = 10
)

// heldClaims is the reading of the claims by one handle's heartbeat (keys held). A page of them is being read.
type heldClaims struct {
	dueMS int64              // when the beat is due
	rest  cursor             // behind the page
	size  int                // of the page being read, in claims
	next  kv.Future[[]kv.KV] // the page
}

// beginHeld starts reading the claims (keys held) of the first heldTogether beats among the timers. Of each handle it
// reads up to heldFirst claims, but no more than limit. all has an entry for each of these beats, in order. The caller
// passes one entry after the other to passHeld, and calls beginHeld again for the next beats.
func (v inspection) beginHeld(timers []timerRow, limit int) (all []*heldClaims) {
	for _, t := range timers {
		if t.kind != rec.KindBeat {
			continue
		}
		h := &heldClaims{
			dueMS: t.key.index, rest: newCursor(v.keys.heldBy(t.key.id)), size: min(heldFirst, limit),
		}
		h.next = h.rest.read(v.read, h.size)
		if all = append(all, h); len(all) == heldTogether {
			break
		}
	}
	return all
}

// passHeld is passTimers for the claims by one heartbeat (keys held), which have no timers. It passes each claim to the
// function each, as a timer that is due when the beat is due. h comes from beginHeld. passed is how many claims it has
// read, up to limit. more says that there are, or may be, further claims. enough says that the function has enough:
// then passHeld has ended early.
func (v inspection) passHeld(
	h *heldClaims, limit int, each func(timerRow) (enough bool),
) (passed int, more, enough bool, err error) {
	for {
		rows, err := h.next.Wait(v.ctx)
		if err != nil {
			return 0, false, false, fmt.Errorf("read claims by heartbeat: %w", err)
		}
		h.rest.passed(rows, h.size)
		over := max(0, passed+len(rows)-limit) // the handles before have used up the limit since the read began
		rows = rows[:len(rows)-over]
		passed += len(rows)
		for _, t := range v.openTimers(rows) {
			if t.key.index = h.dueMS; each(t) {
				return passed, false, true, nil
			}
		}
		if h.size = min(timersPage, limit-passed); h.size <= 0 || h.rest.exhausted {
			return passed, over > 0 || !h.rest.exhausted, false, nil
		}
		h.next = h.rest.read(v.read, h.size)
	}
}

// timers reads the first timers and passes them to timer.
func (c *groupCounts) timers() error {
	more, err := c.firstTimers(c.where, c.o.MaxTimers, c.timer)
	c.allTimers = !more
	return err
}

// timer counts one timer. A timer of kind claim or grant says that the group is held. A timer of kind delay or head
// says that it is delayed, and any timer that is due says that it is ready. timer reads nothing, and enough is always
// false.
func (c *groupCounts) timer(t timerRow) (enough bool) {
	p, kind := t.key, t.kind
	read, passed := &c.later, &c.passedLater
	if p.index <= c.nowMS {
		read, passed = &c.due, &c.passedDue
	}
	*read++
	if c.pass(t) {
		*passed++
		return false
	}
	h := head{group: p.group, index: t.head}
	c.oldest = oldHeads(c.oldest, h)
	switch {
	case p.index <= c.nowMS:
		c.oldestReady = oldHeads(c.oldestReady, h)
	case kind == rec.KindClaim || kind == rec.KindGrant:
		c.HeldGroups++
		c.taken[p.group] = true
		if kind == rec.KindClaim {
			c.claims = append(c.claims, head{group: p.lane, index: t.head})
		}
	default:
		if kind == rec.KindDelay {
			c.FailingGroups++
		}
		c.delay(p.group)
	}
	return false
}

// pass reports whether a timer stands for no group of its own: a mark stops the group, or the group was counted by its
// hint or by an earlier hold. Otherwise pass notes the group, so that the next hold of the group, or its hint, does not
// count it again. The caller must then count the group. In a queue with lease_per=item pass also counts the items of
// Lapsed: one for each expired claim.
func (c *groupCounts) pass(t timerRow) bool {
	p, isDue := t.key, t.key.index <= c.nowMS
	// Each hold has a timer, and the group counts once.
	if lanes.IsHold(p.lane) {
		if c.where == "" && t.kind == rec.KindClaim && isDue { // the items are claimed in turn
			c.Lapsed++
		}
		if c.inTurn[p.group] || c.hinted[c.lane(p.group)] == hintReady && isDue {
			return true // counted by its hint, or by the hold that ends first
		}
		c.inTurn[p.group] = true
	}
	switch says := c.hinted[p.lane]; {
	case c.marked[p.group] && (isDue || t.kind == rec.KindHead):
		// The mark stops the group now. A holding that lasts is another matter: its group is held or delayed.
		return true
	case says == hintReady, says == hintWaits && isDue: // counted by its hint
		return true
	case says == hintWaits: // counted by this timer
		c.hinted[p.lane] = hintStale
	}
	return false
}

// delay counts a group that waits for a retry, its first item, or its rate, and notes the first such groups in waiting.
// If the group is there already, delay only adds one to passedLater, because a second timer of a group is stale.
func (c *groupCounts) delay(group string) {
	switch {
	case slices.Contains(c.waiting, group):
		c.passedLater++
		return
	case len(c.waiting) == statsDelayed:
		c.further++
	default:
		c.waiting = append(c.waiting, group)
	}
	c.DelayedGroups++
}

// hintSays says to which kind of group a hint leads.
type hintSays int

const (
	hintStale hintSays = iota // to no group; if anything leads to the group, it is a timer
	hintReady                 // to a group that a receive would get
	hintWaits                 // to a group that waits: for its first item, its rate, or an intersecting claim
)

// verify follows the first hints, as many as follows says, to their groups, and notes in hinted to which kind of group
// each leads. A hint may be stale. It may also lead to a first item that is not due yet, because an ack leaves the next
// item a hint without reading that item. passed is how many of these hints lead to no ready group, or to one that an
// earlier hint has led to. Those of marked groups are not among them: see hints. verify reads the hints, and of each
// group the lock, those of intersecting lanes, the first hold, the first item, and the rate (key pace).
func (c *groupCounts) verify() (passed int64, err error) {
	rows, _, err := c.rowsOf(c.keys.hintsOf(c.where), max(1, c.follows/int(c.keys.shards.all())))
	if err != nil {
		return 0, fmt.Errorf("read hints: %w", err)
	}
	// look is the reads of one group: the lock with those of intersecting lanes, the first item, and the rate.
	type look struct {
		candidate
		lock  laneLock
		items kv.Future[[]kv.KV]
		pace  kv.Future[[]byte] // nil = the queue has no rate of a group
	}
	var looks []look
	c.hinted = make(map[string]hintSays)
	for _, row := range rows {
		p, err := c.keys.parse(row.Key)
		if c.skipsRow(err) {
			passed++
			continue
		}
		if _, twice := c.hinted[p.lane]; c.marked[p.group] {
			continue // see hints
		} else if twice {
			passed++
			continue
		}
		c.hinted[p.lane] = hintStale
		looks = append(looks, look{
			candidate{lane: p.lane, index: p.index}, c.readLaneLock(c.read, p.lane, locksAtOnce),
			c.readItems(c.read, p.lane, 1), c.readPace(p.group),
		})
	}
	for _, l := range looks {
		f, pairs, err := meet(c.view, l.candidate, l.lock, l.items)
		if err == nil {
			f.rows = c.keys.rows(l.lane, pairs, c.retro)
			err = f.meetHold(c.view, l.lock.hold)
		}
		var pacedUntil int64
		if err == nil {
			pacedUntil, err = c.pacedUntil(l.lane, l.pace)
		}
		if err != nil && !c.skipsRow(err) {
			return 0, err
		}
		says := hintStale
		if err == nil {
			if says = c.says(f); says == hintReady && pacedUntil > c.nowMS {
				says = hintWaits
			}
		}
		if c.hinted[l.lane] = says; says != hintReady {
			passed++
		}
		if says == hintWaits {
			c.oldest = oldHeads(c.oldest, head{group: lanes.GroupOf(l.lane), index: l.index})
		}
	}
	return passed, nil
}

// says returns to which kind of group a hint leads. It reads no key: f has the group's lock, the locks of intersecting
// lanes with the hold of the first item (others), and the first item. The caller must ask whether the rate is used up.
//
//   - hintStale: the group is empty, or has a lock. A group with a lock is counted by a timer, by a key held, or by its
//     mark.
//   - hintWaits: the lock of an intersecting lane keeps the lane, or the first item is due later. But if items are
//     claimed in turn (LeasePerItem), the timer of the lock or hold counts the group: then the hint is stale.
//   - hintReady: otherwise, and if the first item cannot be read.
func (c *groupCounts) says(f *found) hintSays {
	switch {
	case f.rows.len() == 0 || f.record != nil:
		return hintStale
	case slices.ContainsFunc(f.others, func(o heldLane) bool { return o.record.At(c.nowMS).Keeps() }):
		if c.keys.plan.KeepsHints() {
			return hintWaits
		}
		return hintStale
	}
	if head := f.rows.at(0); head.err == nil && head.dueMS > c.nowMS {
		return hintWaits
	}
	return hintReady
}

// weigh sets Delayed. It counts the keys of the items of the delayed groups in waiting, up to statsDeep of each. Each
// further delayed group counts as one message. A group without items, or with a claim or grant, has a stale timer, and
// is not delayed after all. No item of a delayed group is in flight, unless items are claimed by themselves.
func (c *groupCounts) weigh() error {
	ranges := make([]kv.KeyRange, len(c.waiting))
	for i, group := range c.waiting {
		ranges[i] = c.keys.items(c.lane(group))
	}
	depths, err := c.countKeysOfEach(ranges, statsDeep)
	c.Delayed = c.further
	for i, depth := range depths {
		if depth == 0 || c.taken[c.waiting[i]] {
			c.DelayedGroups--
			c.passedLater++
			continue
		}
		c.Delayed += depth
	}
	return err
}

// longestWait reads the first item of each of the groups, and returns the longest time that one of these items has
// waited; 0 = there is none. The time of a delay does not count.
func (c *groupCounts) longestWait(of []head) (longest time.Duration, err error) {
	reads := make([]kv.Future[[]kv.KV], len(of))
	for i, h := range of {
		reads[i] = c.readItems(c.read, c.lane(h.group), 1)
	}
	for _, read := range reads {
		rows, err := read.Wait(c.ctx)
		if c.skipsRow(err) || err == nil && len(rows) == 0 {
			continue
		}
		if err != nil {
			return 0, err
		}
		if e, _, err := rec.OpenEnvelope(rows[0].Value); !c.skipsRow(err) {
			longest = max(longest, time.Duration(c.nowMS-c.retro.waitsSince(&e))*time.Millisecond)
		}
	}
	return longest, nil
}

// longestHold returns about how long the oldest claim has been held; 0 = there is none. It reads the locks (lock or
// hold, and beat) of the statsHolds held groups with the oldest first items. A claim is younger than the item that it
// was made for. So the oldest claim is most often among them.
func (c *groupCounts) longestHold() (time.Duration, error) {
	if len(c.claims) == 0 {
		return 0, nil
	}
	now, err := c.moment()
	if err != nil {
		return 0, fmt.Errorf("read version: %w", err)
	}
	slices.SortFunc(c.claims, func(x, y head) int { return cmp.Compare(x.index, y.index) })
	records, _, err := c.readLocks(c.claims[:min(statsHolds, len(c.claims))])
	longest := time.Duration(0)
	for _, r := range records {
		if h := r.Claim(); h != nil {
			longest = max(longest, now.span(h.Token))
		}
	}
	return longest, err
}

// Stats are figures about a queue. The counters run from its creation on and count items, each redelivery again. All
// are of one moment. The counters, Depth, Dead and InFlight are exact, except Duplicates. The comments say which other
// figures are bounded.
type Stats struct {
	Enqueued int64
	// Duplicates were not enqueued, because a message with the same dedup id was remembered. After a commit of unknown
	// outcome a duplicate may count twice.
	Duplicates   int64
	Received     int64 // delivered under a claim
	Acked        int64
	Nacked       int64 // failed deliveries reported by a holder
	Expired      int64 // failed deliveries whose lease ran out
	Taken        int64 // removed by TakeTx
	DeadLettered int64 // moved to the dead letters
	// Dead letters which came back to their groups, and dead letters which were removed.
	Redriven  int64
	Discarded int64
	// Removed by Cancel, and by Purge. A skipped item counts in DeadLettered.
	Cancelled     int64
	Purged        int64
	PastRetention int64 // past retention and dropped; items dead-lettered instead count in DeadLettered
	Forced        int64 // claims ended by force: by ForceRelease, PauseGroup, Purge
	// Items in the queue: Enqueued - Acked - Taken - DeadLettered + Redriven - Cancelled - Purged - PastRetention.
	Depth int64
	Dead  int64 // dead letters: DeadLettered - Redriven - Discarded
	// InFlight is how many items of Depth are under a claim, delivered and not acked; those whose lease has ended, too,
	// until another receive takes over. Depth - InFlight wait.
	InFlight int64
	// Lapsed is how many items of InFlight are under a claim whose lease has ended, in a queue with LeasePerItem; in
	// another it is 0. Of the first 10,000 timers: beyond, the number is too small.
	Lapsed int64
	// Delayed is how many items wait in DelayedGroups: the delayed first item of each and those behind. Stats counts
	// the items of the 100 groups which are due first, up to 1,000 items of a group, and 1 for each further group:
	// beyond, the number is too small. A delayed item behind others counts once it is the first. If items are claimed
	// by themselves, items of these groups that are in flight count, too.
	Delayed int64

	// ReadyGroups is the number to scale workers by: the groups that a receive would get, including those whose lease
	// or delay has ended. BusyGroups is the number of groups whose lease or delay still lasts. Both are counted up to
	// StatsCap, by hints and timers. Stats looks at the groups of the first 100 hints, and of the 100 delayed groups
	// that are due first. Up to there both numbers are exact. Beyond, a few hints may be stale, or lead to a group
	// whose next message is delayed. A timer that is due may be stale, too: until a receive has looked, its group
	// counts as ready. Groups that are paused or halted count in neither, as far as their marks are among the first
	// 10,000, and their hints among the first 10,000 of a shard. In a queue with LeasePerItem a group counts once, by
	// its hint or by the first of its items' timers. In an unordered queue the groups are those of unordered receives:
	// a group may be ready and held, and a claim of the whole group makes it a delayed group. Beyond the first 10,000
	// timers each item in flight counts.
	ReadyGroups int64
	BusyGroups  int64
	// HeldGroups and DelayedGroups are the two kinds of busy groups: under a claim or a grant; and waiting for a retry,
	// for a delayed head, or by the rate. Only the first 10,000 timers are read: beyond, both numbers are too small.
	HeldGroups    int64
	DelayedGroups int64
	// FailingGroups are those of DelayedGroups which wait for a retry of their head.
	FailingGroups int64
	// LongestHold is about how long the oldest claim whose lease lasts has been held: by the tokens of the 20 held
	// groups with the oldest heads, of those counted in HeldGroups. A version of the database counts as a microsecond.
	LongestHold time.Duration
	// WaitingHandles is how many handles have receives that wait: for any group, for a group, or by a template. It is
	// too small if there are more than 1,000 requests of a kind, because no more are read. Example: a handle whose
	// receives wait for 2,000 groups by name has 2,000 requests.
	WaitingHandles int64
	// ClocksApart is how far the clocks of the handles differ that have written in the last 90 s, and of this one;
	// 0 = by five minutes at most. Of the first 1,000 receipts.
	ClocksApart time.Duration
	// Groups which are paused or halted, or will be when their claim ends; empty groups included.
	PausedGroups int64
	HaltedGroups int64
	// Paused is the pause of the whole queue; nil = not paused.
	Paused *Mark
	// OldestReady is for how long the head of a ready group has waited at most, OldestHead the head of a ready, held or
	// delayed group; 0 if there is none. A delay of the message does not count. Both are of the 20 groups of each kind
	// whose heads were enqueued first.
	OldestReady time.Duration
	OldestHead  time.Duration
	// Views are the views of a queue with facets, in the order of Config.Views; nil in another queue.
	Views []ViewStats
}

// ViewStats are figures about a view.
type ViewStats struct {
	View string // as in Config.Views
	// ReadyLanes is how many lanes receives by some template of the view would get; of "*", groups. Counted up to
	// StatsCap, by hints, of which a few may be stale; lanes whose lease or delay has ended are not among them.
	ReadyLanes int64
}

// countViews counts the ready lanes of each view, by the keys of their hints (ready for whole groups, open for other
// views): up to limit for each view. A queue without facets has no views. After an error the counts mean nothing.
func (v inspection) countViews(limit int64) ([]ViewStats, error) {
	var views []ViewStats
	var hints []kv.KeyRange
	for _, view := range v.keys.plan.CountedViews() {
		views, hints = append(views, ViewStats{View: view.Text}), append(hints, v.keys.hintsIn(view.Number))
	}
	counts, err := v.countKeysOfEach(hints, limit)
	for i, n := range counts {
		views[i].ReadyLanes = n
	}
	return views, err
}

// StatsCap is where Stats stops counting groups.
const StatsCap = 1_000_000

// counters has, for each counter which Stats shows as stored, the field.
var counters = map[string]func(s *Stats) *int64{
	countEnqueued:     func(s *Stats) *int64 { return &s.Enqueued },
	countDuplicates:   func(s *Stats) *int64 { return &s.Duplicates },
	countReceived:     func(s *Stats) *int64 { return &s.Received },
	countAcked:        func(s *Stats) *int64 { return &s.Acked },
	countNacked:       func(s *Stats) *int64 { return &s.Nacked },
	countExpired:      func(s *Stats) *int64 { return &s.Expired },
	countTaken:        func(s *Stats) *int64 { return &s.Taken },
	countDeadLettered: func(s *Stats) *int64 { return &s.DeadLettered },
	countRedriven:     func(s *Stats) *int64 { return &s.Redriven },
	countDiscarded:    func(s *Stats) *int64 { return &s.Discarded },
	countCancelled:    func(s *Stats) *int64 { return &s.Cancelled },
	countPurged:       func(s *Stats) *int64 { return &s.Purged },
	countAgedOut:      func(s *Stats) *int64 { return &s.PastRetention },
	countForced:       func(s *Stats) *int64 { return &s.Forced },
	countPausedGroups: func(s *Stats) *int64 { return &s.PausedGroups },
	countHaltedGroups: func(s *Stats) *int64 { return &s.HaltedGroups },
}

// readCounters reads the counters (keys count), and sets the figures that follow from the counters alone.
func (s *Stats) readCounters(v *view) error {
	counts, err := v.readCounts()
	if err != nil {
		return err
	}
	for name, field := range counters {
		*field(s) = counts[name]
	}
	s.InFlight = s.Received - s.Acked - counts[countReturned]
	s.Dead = s.DeadLettered - s.Redriven - s.Discarded
	s.Depth = depth(counts)
	return nil
}

// StatsOptions say what Stats counts, and bound what it reads. The zero value counts whole groups, and reads as much as
// the comments of Stats say.
type StatsOptions struct {
	// MaxGroups is where the ready and the busy groups stop being counted, 1 to StatsCap; 0 = StatsCap.
	MaxGroups int
	// MaxTimers is how many timers are read, the first due first, 1 to 10,000; 0 = 10,000. Timers tell held groups from
	// delayed groups, and lead to the oldest head and to the longest hold. A claim by heartbeat counts as a timer.
	MaxTimers int
	// Where, if not nil, is a template. ReadyGroups, BusyGroups, HeldGroups, DelayedGroups, FailingGroups, Delayed,
	// LongestHold, OldestReady and OldestHead are then figures of the template's lanes. Use ReadyGroups to scale the
	// workers of a stage. A group that waits for the claim of an intersecting template counts in DelayedGroups. All
	// other figures are of the whole queue.
	Where Template
}

// statsAsked are StatsOptions with their defaults, held to their bounds.
type statsAsked struct {
	StatsOptions
	where string // the packed template; "" = whole groups. In an unordered queue it is that of the free items.
	// begun is the start of the last attempt of the transaction. slow counts the attempts that outlasted slowStats.
	// Each divides the number of hints that are followed by four, because so many reads may outlast a transaction on a
	// slow cluster.
	begun time.Time
	slow  int
}

// slowStats is the duration of a slow transaction of Stats.
const slowStats = transactionLife / 4

// statsAsked returns the options with their defaults, or an error if one is out of bounds or the template is of no
// view.
func (q *Queue) statsAsked(o StatsOptions) (a statsAsked, err error) {
	o.MaxGroups = cmp.Or(o.MaxGroups, StatsCap)
	o.MaxTimers = cmp.Or(o.MaxTimers, statsTimers)
	if o.MaxGroups < 1 || o.MaxGroups > StatsCap {
		return a, &LimitError{What: "count", Unit: "groups", Got: int64(o.MaxGroups), Min: 1, Max: StatsCap}
	}
	if o.MaxTimers < 1 || o.MaxTimers > statsTimers {
		return a, &LimitError{What: "timers", Unit: "timers", Got: int64(o.MaxTimers), Min: 1, Max: statsTimers}
	}
	a.StatsOptions = o
	where, err := q.keys.whereGiven(o.Where)
	a.where = q.keys.plan.CountedWhere(where)
	return a, err
}

// Stats reads the counters and counts the groups, without a conflict or a change. With options that bound it Stats
// reads less, and the bounded numbers may be too small.
//
// Reads, at snapshot: the counters, the pause of the queue, hints, timers, claims by heartbeat, beats, marks, requests
// and receipts. Of some groups also: the locks, the first item, its hold, the rate, and how many items there are. Also
// the configuration (meta), unless the handle's copy is fresh.
//
// Errors: *LimitError, *TemplateError, ErrOptions, ErrInvalidUTF8, ErrNoQueue, ErrCorrupt for the configuration,
// ErrClosed, and the engine's.
func (q *Queue) Stats(ctx context.Context, o StatsOptions) (Stats, error) {
	asked, err := q.statsAsked(o)
	if err != nil {
		return Stats{}, wrap("stats", err)
	}
	s, err := viewFor(ctx, q, func(v *view) (Stats, error) { return inspection{v}.readStats(&asked) })
	return s, wrap("stats", err)
}

// readStats is Stats in a transaction that may read other things too. It reads the counters, the pause of the queue,
// hints, timers, claims by heartbeat, beats, marks, requests and receipts. Of some groups it also reads the locks, the
// first items and holds, the rates, and the keys of the items.
func (v inspection) readStats(o *statsAsked) (s Stats, err error) {
	if !o.begun.IsZero() && time.Since(o.begun) > slowStats {
		o.slow++
	}
	o.begun = time.Now()
	if err := s.readCounters(v.view); err != nil {
		return s, err
	}
	paused, err := v.readPause()
	if err != nil {
		return s, err
	}
	s.Paused = publicMark(paused)
	if s.Views, err = v.countViews(int64(o.MaxGroups)); err != nil {
		return s, err
	}
	c := &groupCounts{
		inspection: v, Stats: &s, o: o.StatsOptions, where: o.where, retro: v.known().retro(),
		follows: halved(statsHints, 2*o.slow), taken: make(map[string]bool), inTurn: make(map[string]bool),
	}
	if s.PausedGroups+s.HaltedGroups > 0 {
		if c.marked, _, err = v.readMarked(o.where); err != nil {
			return s, err
		}
	}
	if err := c.count(); err != nil {
		return s, err
	}
	if s.LongestHold, err = c.longestHold(); err != nil {
		return s, err
	}
	requests, _, err := v.requests()
	if err != nil {
		return s, err
	}
	s.WaitingHandles = handlesOf(requests)
	if s.ClocksApart, err = v.clocksApart(); err != nil {
		return s, err
	}
	if s.OldestReady, err = c.longestWait(c.oldestReady); err != nil {
		return s, err
	}
	s.OldestHead, err = c.longestWait(c.oldest)
	s.OldestHead = max(s.OldestHead, s.OldestReady)
	return s, err
}
