package layer

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"fdbfifo/kv"
)

const (
	// statsTimers bounds the timers read by Stats, the first due first.
	statsTimers = 10_000
	// Of the first statsDelayed delayed groups Stats counts the messages, up to statsDeep of each: in about 20 rounds
	// of key reads at most, and in 3 if the groups have a message or two.
	statsDelayed = 100
	statsDeep    = 1000
	// statsHolds bounds the locks which Stats reads to find the longest hold.
	statsHolds = 20
)

// groupCounts counts the groups of a queue by state, from hints and timers alone, so that the cost is bounded and does
// not grow with the depth.
type groupCounts struct {
	q     *Queue
	o     StatsOptions
	ctx   context.Context
	tx    kv.ReadTx
	where string // the packed template; "" = whole groups
	nowMS int64
	retro retro

	marked map[string]bool // the groups which are paused or halted, or will be; nil = there are none

	ready, busy, held, delayed int64
	due, later                 int64           // the timers which were read
	allTimers                  bool            // all were
	passedDue, passedLater     int64           // timers of marked groups, and a group's further holds
	oldestReady, oldest        head            // of the ready groups, and of all ready or busy groups
	waiting                    []string        // the first delayed groups, each once
	further                    int64           // the delayed groups which are not in waiting
	failing                    int64           // the delayed groups which wait for a retry
	claims                     []head          // the held groups
	inTurn                     map[string]bool // the groups of which a hold was met, if items are claimed in turn
	lapsed                     int64           // the holds whose lease has ended, then
}

// head is a group and the index of its head, as of when the hint or timer was written.
type head struct {
	group string
	index int64
	found bool
}

// older replaces o by h if h is older, or if nothing was found yet.
func (o *head) older(h head) {
	if h.found && (!o.found || h.index < o.index) {
		*o = h
	}
}

func (c *groupCounts) count() error {
	keys := c.q.keys
	passed := int64(0) // hints of marked groups
	for shard := range keys.shards.all() {
		n, err := c.hints(shard)
		if err != nil {
			return err
		}
		passed += n
	}
	if err := c.timers(); err != nil {
		return err
	}
	c.oldest.older(c.oldestReady)
	hints, err := c.q.countHints(c.ctx, c.tx, c.where, int64(c.o.MaxGroups))
	if err != nil {
		return err
	}
	due, later, err := c.countTimers()
	c.ready = min(hints-passed+due-c.passedDue, int64(c.o.MaxGroups))
	c.busy = later - c.passedLater
	return err
}

// countTimers counts the timers that are due and those that are not, each up to MaxGroups. With several shards a count
// is many reads, and not made if all timers have been read anyway.
func (c *groupCounts) countTimers() (due, later int64, err error) {
	limit := int64(c.o.MaxGroups)
	var dues, laters []kv.KeyRange
	if c.allTimers && c.q.keys.shards.all() > 1 {
		return min(c.due, limit), min(c.later, limit), nil
	}
	for shard := range c.q.keys.shards.all() {
		dues = append(dues, c.q.keys.dueBy(c.where, shard, c.nowMS, c.retro)...)
		laters = append(laters, c.q.keys.laterThan(c.where, shard, c.nowMS, c.retro)...)
	}
	if due, err = countTogether(c.ctx, c.tx, dues, limit); err != nil {
		return 0, 0, err
	}
	later, err = countTogether(c.ctx, c.tx, laters, limit)
	return due, later, err
}

// lane returns the lane of a group that is looked at.
func (c *groupCounts) lane(group string) string { return laneName(group, c.where) }

// countHints counts the hints of a template up to limit.
func (q *Queue) countHints(ctx context.Context, tx kv.ReadTx, where string, limit int64) (n int64, err error) {
	if where == "" {
		return countKeys(ctx, tx, q.keys.section(nameReady), limit)
	}
	var shards []kv.KeyRange
	for shard := range q.keys.shards.all() {
		shards = append(shards, q.keys.hintsFrom(where, shard, 0))
	}
	return countTogether(ctx, tx, shards, limit)
}

// countTogether counts the keys of all ranges up to limit.
func countTogether(ctx context.Context, tx kv.ReadTx, ranges []kv.KeyRange, limit int64) (n int64, err error) {
	counts, err := countKeysOfEach(ctx, tx, ranges, limit)
	for _, in := range counts {
		n += in
	}
	return min(n, limit), err
}

// timerRow is a timer taken apart. The index of key is when the timer is due (ms).
type timerRow struct {
	key  parsedKey
	kind kind
	head int64 // index of the head
}

// firstTimers calls each with up to limit timers of a template, the first due first, until each has enough. more says
// that there are further timers. Of several shards an equal part of limit is read, unless all can be read.
func (q *Queue) firstTimers(
	ctx context.Context, tx kv.ReadTx, where string, limit, page int, each func(timerRow) (enough bool),
) (more bool, err error) {
	shards := q.keys.shards.all()
	if shards == 1 {
		return q.passTimers(ctx, tx, q.keys.timersIn(where, 0), limit, page, each)
	}
	var due []timerRow
	collect := func(t timerRow) (enough bool) {
		due = append(due, t)
		return false
	}
	if more, err = q.passTimers(ctx, tx, q.keys.timersOf(where), limit, page, collect); err != nil {
		return false, err
	}
	if more {
		due = nil
		for shard := range shards {
			in := q.keys.timersIn(where, shard)
			if _, err := q.passTimers(ctx, tx, in, max(1, limit/int(shards)), page, collect); err != nil {
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

// passTimers is firstTimers for the timers of a range, in the order of their keys.
func (q *Queue) passTimers(
	ctx context.Context, tx kv.ReadTx, in kv.KeyRange, limit, page int, each func(timerRow) (enough bool),
) (more bool, err error) {
	config, timers := q.Config(), newCursor(in)
	delay := config.retro()
	for read := 0; read < limit && !timers.exhausted; {
		n := min(page, limit-read)
		rows, err := timers.read(tx, n).Wait(ctx)
		if err != nil {
			return false, fmt.Errorf("read timers: %w", err)
		}
		timers.passed(rows, n)
		read += len(rows)
		for _, row := range rows {
			t := timerRow{}
			if t.key, err = q.keys.parse(row.Key); err != nil {
				return false, err
			}
			if t.kind, t.head, err = unpackTimer(row.Key, row.Value); err != nil {
				return false, err
			}
			if t.kind == kindBeat {
				left, enough, err := q.passHeld(ctx, tx, t.key, limit, page, each)
				if err != nil || enough {
					return enough, err
				}
				more = more || left
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

// passHeld is passTimers for the claims by a handle's heartbeat, which have no timers: each counts as a timer at the
// time when the handle's beat is due.
func (q *Queue) passHeld(
	ctx context.Context, tx kv.ReadTx, beat parsedKey, limit, page int, each func(timerRow) (enough bool),
) (more, enough bool, err error) {
	held := newCursor(q.keys.heldBy(beat.id))
	for read := 0; read < limit && !held.exhausted; {
		n := min(page, limit-read)
		rows, err := held.read(tx, n).Wait(ctx)
		if err != nil {
			return false, false, fmt.Errorf("read claims by heartbeat: %w", err)
		}
		held.passed(rows, n)
		read += len(rows)
		for _, row := range rows {
			t := timerRow{}
			if t.key, err = q.keys.parse(row.Key); err != nil {
				return false, false, err
			}
			if t.kind, t.head, err = unpackTimer(row.Key, row.Value); err != nil {
				return false, false, err
			}
			if t.key.index = beat.index; each(t) {
				return false, true, nil
			}
		}
	}
	return !held.exhausted, false, nil
}

// timers counts the held and the delayed groups, and finds the oldest heads, by the timers due first.
func (c *groupCounts) timers() error {
	more, err := c.q.firstTimers(c.ctx, c.tx, c.where, c.o.MaxTimers, 1000, c.timer)
	c.allTimers = !more
	return err
}

func (c *groupCounts) timer(t timerRow) (enough bool) {
	p, kind := t.key, t.kind
	if p.index <= c.nowMS {
		c.due++
	} else {
		c.later++
	}
	h := head{group: p.group, index: t.head, found: true}
	if c.q.keys.inTurn() && isHold(p.lane) {
		if kind == kindClaim && p.index <= c.nowMS {
			c.lapsed++
		}
		if c.inTurn[p.group] {
			c.passTimer(p.index) // a group counts once, by the hold that ends first
			return false
		}
		if c.inTurn == nil {
			c.inTurn = make(map[string]bool)
		}
		c.inTurn[p.group] = true
	}
	if c.passes(p.group, kind, p.index) {
		c.passTimer(p.index)
		return false
	}
	c.oldest.older(h)
	switch {
	case p.index <= c.nowMS:
		c.oldestReady.older(h)
	case kind == kindClaim || kind == kindGrant:
		c.held++
		if kind == kindClaim {
			c.claims = append(c.claims, head{group: p.lane, index: t.head, found: true})
		}
	default:
		c.delayed++
		if kind == kindDelay {
			c.failing++
		}
		switch {
		case len(c.waiting) == statsDelayed:
			c.further++
		case !slices.Contains(c.waiting, p.group):
			c.waiting = append(c.waiting, p.group)
		}
	}
	return false
}

// passTimer notes a timer that stands for no group of its own.
func (c *groupCounts) passTimer(dueMS int64) {
	if dueMS <= c.nowMS {
		c.passedDue++
	} else {
		c.passedLater++
	}
}

// messages counts the messages of the delayed groups, those in flight not included: nobody holds a delayed group.
func (c *groupCounts) messages() (int64, error) {
	ranges := make([]kv.KeyRange, len(c.waiting))
	for i, group := range c.waiting {
		ranges[i] = c.q.keys.items(c.lane(group))
	}
	depths, err := countKeysOfEach(c.ctx, c.tx, ranges, statsDeep)
	n := c.further
	for _, depth := range depths {
		n += depth
	}
	return n, err
}

// age returns how long ago the group's present head was enqueued; 0 if there is none.
func (c *groupCounts) age(h head) (time.Duration, error) {
	if !h.found {
		return 0, nil
	}
	rows, err := c.q.readItems(c.tx, c.tx, c.lane(h.group), 1).Wait(c.ctx)
	if err != nil || len(rows) == 0 {
		return 0, err
	}
	e, _, err := openEnvelope(rows[0].Value)
	if err != nil {
		return 0, corrupt(rows[0].Key, err)
	}
	return max(0, time.Duration(c.nowMS-c.retro.waitsSince(&e))*time.Millisecond), nil
}

// longestHold is about how long the oldest claim has been held. A claim is younger than the head that it was made for:
// so the oldest claim is most often among those of the oldest heads.
func (c *groupCounts) longestHold() (time.Duration, error) {
	if len(c.claims) == 0 {
		return 0, nil
	}
	rv, err := c.tx.ReadVersion().Wait(c.ctx)
	if err != nil {
		return 0, fmt.Errorf("read version: %w", err)
	}
	slices.SortFunc(c.claims, func(x, y head) int { return cmp.Compare(x.index, y.index) })
	records, err := c.q.readLocks(c.ctx, c.tx, c.claims[:min(statsHolds, len(c.claims))])
	longest := time.Duration(0)
	for _, r := range records {
		if h := r.claim(); h != nil {
			longest = max(longest, time.Duration(rv+c.q.offset-h.token)*time.Microsecond)
		}
	}
	return longest, err
}

// Stats are figures about a queue. The counters run from its creation on and count items, each redelivery again. All
// are of one moment. The counters, Depth, Dead and InFlight are exact, but for Duplicates; the comments say what is
// bounded.
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
	// Removed by Cancel and Skip, and by Purge.
	Cancelled     int64
	Purged        int64
	PastRetention int64 // past retention and dropped; items dead-lettered instead count in DeadLettered
	Forced        int64 // claims ended by ForceRelease or Purge
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
	// beyond, the number is too small. A delayed item behind others counts once it is the first.
	Delayed int64

	// ReadyGroups is the number to scale workers by: groups a receive would get, including groups whose lease or delay
	// has ended. The lease or delay of BusyGroups still lasts. Both are counted up to StatsCap, by hints and timers, of
	// which a few may be stale. Groups paused or halted are neither, as far as they are among the first 10,000 of
	// these, and among the first 10,000 hints of a shard. In a queue with LeasePerItem a group counts once, by the
	// first of its items' timers; beyond the first 10,000 timers each item in flight counts.
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
	// WaitingHandles is how many handles have receives which wait, up to 1,000.
	WaitingHandles int64
	// Groups which are paused or halted, or will be when their claim ends; empty groups included.
	PausedGroups int64
	HaltedGroups int64
	// Paused is the pause of the whole queue; nil = not paused.
	Paused *Mark
	// OldestReady is the age of the oldest ready group's head, OldestHead the age of the oldest ready, held or delayed
	// group's head; 0 if there is none.
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

// countViews counts the ready lanes of each view, up to limit.
func (q *Queue) countViews(ctx context.Context, tx kv.ReadTx, limit int64) ([]ViewStats, error) {
	plan := q.keys.plan
	if plan == nil || plan.inTurn {
		return nil, nil
	}
	views := make([]ViewStats, 0, 1+len(plan.views))
	var hints []kv.KeyRange
	for _, text := range splitTrimmed(plan.text, ";") {
		r := q.keys.section(nameReady)
		if text != wholeView {
			r = q.keys.openOf(plan.numbered(text))
		}
		views, hints = append(views, ViewStats{View: text}), append(hints, r)
	}
	counts, err := countKeysOfEach(ctx, tx, hints, limit)
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

// readCounters reads the counters, and sets the figures which follow from the counters alone.
func (s *Stats) readCounters(ctx context.Context, q *Queue, tx kv.ReadTx) error {
	counts, err := q.readCounts(ctx, tx)
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
	// delayed groups, and lead to the oldest head and to the longest hold.
	MaxTimers int
	// Where, if not nil, has ReadyGroups, BusyGroups, HeldGroups, DelayedGroups, FailingGroups, Delayed, LongestHold,
	// OldestReady and OldestHead speak of what the template sees of each group: ReadyGroups is then the number to scale
	// the workers of a stage by. A group that waits because an intersecting template has it counts among
	// DelayedGroups. All else is of the whole queue.
	Where Template
}

// statsAsked are StatsOptions with their defaults, held to their bounds.
type statsAsked struct {
	StatsOptions
	where string // the packed template; "" = whole groups
}

func (q *Queue) statsAsked(o StatsOptions) (a statsAsked, err error) {
	if o.MaxGroups == 0 {
		o.MaxGroups = StatsCap
	}
	if o.MaxTimers == 0 {
		o.MaxTimers = statsTimers
	}
	if o.MaxGroups < 1 || o.MaxGroups > StatsCap {
		return a, &LimitError{What: "count", Unit: "groups", Got: int64(o.MaxGroups), Min: 1, Max: StatsCap}
	}
	if o.MaxTimers < 1 || o.MaxTimers > statsTimers {
		return a, &LimitError{What: "timers", Unit: "timers", Got: int64(o.MaxTimers), Min: 1, Max: statsTimers}
	}
	a.StatsOptions = o
	a.where, err = q.whereGiven([]Template{o.Where})
	return a, err
}

// Stats reads the counters and counts the groups, without a conflict or a change. With options, one at most, it reads
// less, and the numbers that it bounds may be too small.
//
// Errors: *LimitError, *TemplateError, ErrOptions, ErrClosed, and the engine's.
func (q *Queue) Stats(ctx context.Context, o ...StatsOptions) (Stats, error) {
	if len(o) > 1 {
		return Stats{}, wrap("stats", fmt.Errorf("%w: %d options", ErrOptions, len(o)))
	}
	asked, err := q.statsAsked(slices.Concat(o, []StatsOptions{{}})[0])
	if err != nil {
		return Stats{}, wrap("stats", err)
	}
	var s Stats
	err = q.view(ctx, func(tx kv.ReadTx) (err error) {
		s, err = q.readStats(ctx, tx, asked)
		return err
	})
	if err != nil {
		return Stats{}, wrap("stats", err)
	}
	return s, nil
}

// readStats is Stats in a transaction that may read other things too.
func (q *Queue) readStats(ctx context.Context, tx kv.ReadTx, o statsAsked) (s Stats, err error) {
	if err := s.readCounters(ctx, q, tx); err != nil {
		return s, err
	}
	paused, err := q.readPause(ctx, tx)
	if err != nil {
		return s, err
	}
	s.Paused = paused.public()
	if s.Views, err = q.countViews(ctx, tx, int64(o.MaxGroups)); err != nil {
		return s, err
	}
	c := &groupCounts{q: q, o: o.StatsOptions, ctx: ctx, tx: tx, where: o.where}
	c.nowMS, c.retro = q.nowMS(), q.Config().retro()
	if s.PausedGroups+s.HaltedGroups > 0 {
		if err := c.readMarked(); err != nil {
			return s, err
		}
	}
	if err := c.count(); err != nil {
		return s, err
	}
	s.ReadyGroups, s.BusyGroups, s.HeldGroups, s.DelayedGroups = c.ready, c.busy, c.held, c.delayed
	s.FailingGroups, s.Lapsed = c.failing, c.lapsed
	if s.LongestHold, err = c.longestHold(); err != nil {
		return s, err
	}
	if s.WaitingHandles, _, err = q.waitingHandles(ctx, tx, c.nowMS); err != nil {
		return s, err
	}
	if s.Delayed, err = c.messages(); err != nil {
		return s, err
	}
	if s.OldestReady, err = c.age(c.oldestReady); err != nil {
		return s, err
	}
	s.OldestHead, err = c.age(c.oldest)
	return s, err
}
