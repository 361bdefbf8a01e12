package layer

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/lanes"
	"fdbfifo/layer/internal/rec"
)

// A list of blocked groups is found by marks, timers and hints alone, never by a walk over items: the cost is bounded,
// and does not grow with the depth of the queue. BlockedPage.Sampled says whether the bounds have left groups out.
//
// The age of a hint comes from versions, which advance by about a million a second. A recovery of the cluster makes the
// versions jump, so older hints look older than they are. The versions of an embedded database stand still while no
// process has it open, and jump when one opens it. So the times in a group's own record and head decide.

// Keys have their names in the table of subspace.go. A hint is a key ready or open, and leads to a ready group. A timer
// is a key timer or due, and leads to a group that is held or delayed. A claim by heartbeat has a key held instead of a
// timer. Blocked may be asked about a template. Then the groups are the lanes of the template: of each group the part
// that the template matches. A packed template has the values of the template as they are in keys; "" = whole groups.
// In blockedLook.held, and in the heads that readLocks gets, the field group is the name of a lane, see package lanes.
// In all other heads it is the name of a group. An inspection is a look for people at one version of the database: all
// reads are at snapshot, and it writes nothing. skipsRow(err) reports whether a row cannot be read: such a row is left
// out.
//
// The kind of a timer names the thing that ends then: a claim, a grant, or a delay before a retry. A timer of kind head
// leads to a group whose head, the first item, is delayed, whose rate is used up, or which waits for an intersecting
// claim.

// BlockedOptions say which groups to list. The zero value lists the first DefaultBlocked of all.
type BlockedOptions struct {
	// Causes chooses the groups whose Cause is one of these; nil = all of BlockedCauses. An empty list that is not nil
	// chooses none.
	Causes []Cause
	// HeldFor is how long a claim must have lasted for its group to be listed; 0 = ten times the queue's lease. A claim
	// that ends later than any lease allows is listed at once.
	HeldFor time.Duration
	// ReadyFor is how old the head of a ready group must be for the group to be listed, also if the group has become
	// ready just now. It is also for how long a lease or a delay must have been over; 0 = one minute. A ready group
	// whose head has failed is listed at once.
	ReadyFor time.Duration
	// Limit is the number of groups of a page, 1 to MaxBlocked; 0 = DefaultBlocked.
	Limit int
	// After is the place behind which the page begins: BlockedPage.Next of the page before.
	After *BlockedPlace
	// Where, if not nil, limits the list to the lanes of this template. A lane that waits for a claim by an
	// intersecting template is not listed: a list by that template has the claim if it lasts for long.
	Where Template
	// Stats, if not nil, asks for the queue's figures too, of the same moment and in the same transaction.
	Stats *StatsOptions
}

// Defaults and bounds of a list of blocked groups.
const (
	DefaultBlocked  = 20
	MaxBlocked      = 100
	defaultReadyFor = time.Minute
	// BlockedDepth is up to where the messages of a blocked group are counted.
	BlockedDepth = 1000
	// heldForLeases is how many leases a claim lasts before its group counts as blocked, if HeldFor does not say.
	heldForLeases = 10
)

// Bounds of the reads of a list of blocked groups.
const (
	blockedTimers = 10_000 // timers, the first due first
	blockedHints  = 1000   // of all shards together, the oldest of each shard
	blockedHolds  = 100    // locks of held groups, those of the oldest heads
	blockedLooks  = 1000   // groups described for one page, also if few of them fit Causes
)

// BlockedCauses returns the causes for which groups are listed as blocked, the worst first. The slice belongs to the
// caller.
func BlockedCauses() []Cause { return slices.Clone(blockedCauses[:]) }

var blockedCauses = [...]Cause{
	CauseCorrupt, CauseGroupHalted, CauseGroupPaused, CauseDelayed, CauseHeadFailed, CauseGroupHeld, CauseLeaseExpired,
	CauseNobodyWaits, CauseTurn,
}

// BlockedGroup is a group that does not go on, and why.
type BlockedGroup struct {
	GroupInfo
	// More: Depth is BlockedDepth, and the group may have more messages.
	More bool
	// Cause is the cause of the first of Reasons. BlockedOptions.Causes is compared with it.
	Cause Cause
	// Reasons are why the first message of the group is not delivered, as those of Why. But only a reason about a claim
	// has Where.
	Reasons []Reason
	// Since is when that began: the mark, the first failure, the claim, the end of the lease, or the enqueue of
	// the first message. Zero = not known.
	Since time.Time
}

// BlockedPlace is a place in a list of blocked groups. Places are in the order of Rank, then of Index, then of Group.
type BlockedPlace struct {
	// Rank is the position of the cause in BlockedCauses; pauses and halts share one. The cause is the one that a key
	// said, before Blocked looked at the group. A cause that Causes does not name has a greater rank than all that it
	// names.
	Rank  int
	Index int64 // of the head when the key was written, or with RoundRobin of the hint; 0 for a marked group
	Group string
}

// compare orders the places of a list.
func (p BlockedPlace) compare(o BlockedPlace) int {
	return cmp.Or(cmp.Compare(p.Rank, o.Rank), cmp.Compare(p.Index, o.Index), cmp.Compare(p.Group, o.Group))
}

// BlockedPage is a part of a list of blocked groups, and a summary of them all.
type BlockedPage struct {
	// Groups may be fewer than the limit, or none, though Next is set.
	Groups []BlockedGroup
	// Summary is about how many groups are blocked for each cause, whatever Causes says. Marks are from the counters,
	// which are of the whole queue, also if Where is set. Long claims and unreadable locks are from the locks that were
	// read. All else is from the timers and hints that were read. A few of them may be stale, and a group counts for
	// each.
	Summary map[Cause]int64
	// Sampled: there are more timers, hints, marks, claims or requests than the list reads. Then Summary and Waiting
	// may be too small, and groups may be missing from the list.
	Sampled bool
	// Paused is the pause of the whole queue: no group is received from; nil = not paused.
	Paused *Mark
	// Waiting is how many handles have receives that wait, as Stats.WaitingHandles counts them.
	Waiting int64
	Next    *BlockedPlace // pass as After to go on; nil = there are no more
	Stats   *Stats        // nil unless asked for
}

// Blocked lists the groups that do not move, the worst cause first, as far as a key says the cause: see BlockedPlace.
// Within a cause the group with the oldest head comes first. It lists halted and paused groups, also empty ones, by
// name. It lists groups that wait for a retry, groups held for long, and ready groups whose head has failed. It lists
// groups with an expired lease, and ready groups with an old head, if no receive takes them. Groups that wait by
// design, because their head is delayed or their rate is used up, are not listed. But a head that is due later than any
// process may set is: the clock that set the time was wrong. A group that cannot be read is listed once a key says that
// it does not move, or if Blocked reads its lock to see how long it is held.
//
// Blocked conflicts with nothing, changes nothing, and reads a bounded number of keys, whatever the depth of the queue.
// All results are of one moment.
//
// Reads, at snapshot: the pause of the queue, requests, counters, marks, timers, claims by heartbeat with their beats,
// hints, and the locks of held groups. Of each group that it looks at, up to 1,000, also: its locks and holds, its head
// with the attempts, and its rate. Of each group of the page: how many items it has. With BlockedOptions.Stats also the
// keys that Stats reads. Also the configuration (meta), unless the handle's copy is fresh.
//
// Errors: *LimitError, ErrOptions for a cause which is none of BlockedCauses, *TemplateError, ErrInvalidUTF8,
// ErrNoQueue, ErrCorrupt for the configuration, ErrClosed, and the engine's.
func (a Admin) Blocked(ctx context.Context, o BlockedOptions) (BlockedPage, error) {
	q := a.q
	if err := o.check(q.knownConfig().Lease); err != nil {
		return BlockedPage{}, wrap("blocked", err)
	}
	where, err := q.keys.whereGiven(o.Where)
	if err != nil {
		return BlockedPage{}, wrap("blocked", err)
	}
	var asked statsAsked
	if o.Stats != nil {
		if asked, err = q.statsAsked(*o.Stats); err != nil {
			return BlockedPage{}, wrap("blocked", err)
		}
	}
	page, err := viewFor(ctx, q, func(v *view) (BlockedPage, error) {
		b := &blockedLook{
			inspection: inspection{v}, o: &o, where: where, page: BlockedPage{Summary: map[Cause]int64{}},
			awaited: map[string]bool{}, since: map[heldClaim]time.Time{},
		}
		err := b.look()
		if err == nil && o.Stats != nil {
			b.page.Stats = new(Stats)
			*b.page.Stats, err = b.readStats(&asked)
		}
		return b.page, err
	})
	return page, wrap("blocked", err)
}

// check sets the defaults, and returns an error if an option is out of bounds. lease is the queue's.
func (o *BlockedOptions) check(lease time.Duration) error {
	o.Limit = cmp.Or(o.Limit, DefaultBlocked)
	o.HeldFor = cmp.Or(o.HeldFor, heldForLeases*lease)
	o.ReadyFor = cmp.Or(o.ReadyFor, defaultReadyFor)
	if o.Limit < 1 || o.Limit > MaxBlocked {
		return &LimitError{What: "page", Unit: "groups", Got: int64(o.Limit), Min: 1, Max: MaxBlocked}
	}
	if o.HeldFor < 0 {
		return durationLimit("held for", o.HeldFor, 0, maxBlockedAge)
	}
	if o.ReadyFor < 0 {
		return durationLimit("ready for", o.ReadyFor, 0, maxBlockedAge)
	}
	if o.Causes == nil {
		o.Causes = blockedCauses[:]
	}
	for _, c := range o.Causes {
		if !slices.Contains(blockedCauses[:], c) {
			return fmt.Errorf("%w: no group is listed as blocked by %q", ErrOptions, c)
		}
	}
	return nil
}

const maxBlockedAge = time.Duration(noLimit)

// blockedLook is one look at the blocked groups of a queue. Keys lead to groups that may be blocked (found). Then the
// groups of the page are read, and those that are not blocked after all are left out.
type blockedLook struct {
	inspection
	o     *BlockedOptions
	where string      // the packed template; "" = whole groups
	now   moment      // to be compared with indexes and tokens
	page  BlockedPage // the result

	awaited    map[string]bool // groups that waiting receives name, and so may take
	anyAwaited bool            // waiting receives may take any group

	marked map[string]bool         // paused or halted, or will be when their claim ends; nil = there are none
	held   []head                  // under a claim whose lease lasts; group is the name of the lane
	since  map[heldClaim]time.Time // of the claims that have lasted for long
	found  []stalled               // in the order of the list, once look has sorted them
}

// stalled is a group that a key says is blocked. The group's own lock and head decide whether it is, and why. So its
// cause may be another than those of the keys. Example: the timer says that a lease has expired, and the lock cannot be
// read.
type stalled struct {
	place  BlockedPlace
	causes []Cause // as the keys say, each once
}

// look fills in the page. It reads the read version, the pause of the queue, the requests and the counters. It finds
// groups by marks, by timers, by the locks of held groups, and by hints. Then describePage reads the groups.
func (b *blockedLook) look() error {
	var err error
	if b.now, err = b.moment(); err != nil {
		return fmt.Errorf("read version: %w", err)
	}
	paused, err := b.readPause()
	if err != nil {
		return err
	}
	b.page.Paused = publicMark(paused)
	if err := b.waiting(); err != nil {
		return err
	}
	for _, find := range []func() error{b.marks, b.timers, b.holds, b.hints} {
		if err := find(); err != nil {
			return err
		}
	}
	slices.SortFunc(b.found, func(x, y stalled) int { return x.place.compare(y.place) })
	b.found = onceEach(b.found)
	return b.describePage()
}

// onceEach returns each group once, at the first of its places, with the causes of all its places. Several keys may
// lead to a group, each with a place and a cause of its own.
func onceEach(all []stalled) (groups []stalled) {
	at := make(map[string]int, len(all))
	for _, x := range all {
		i, twice := at[x.place.Group]
		if !twice {
			at[x.place.Group] = len(groups)
			groups = append(groups, x)
		} else if g := &groups[i]; !slices.Contains(g.causes, x.causes[0]) {
			g.causes = append(g.causes, x.causes[0])
		}
	}
	return groups
}

// chosen reports whether the options ask for a cause.
func (b *blockedLook) chosen(c Cause) bool { return slices.Contains(b.o.Causes, c) }

// rank returns the place of a cause in the list of causes. Pauses and halts have one rank, because a key mark does not
// tell a pause from a halt.
func rank(c Cause) int {
	if c == CauseGroupPaused {
		c = CauseGroupHalted
	}
	return slices.Index(blockedCauses[:], c)
}

// find counts a group in the summary, under the cause that a key said, and notes the group. h has the group, and the
// index of its head as the key had it.
func (b *blockedLook) find(c Cause, h head) {
	b.page.Summary[c]++
	b.note(c, h)
}

// foundByLook are the causes that a look at a group finds, whatever the cause for which a key led to the group. Each
// other cause needs a key that says it.
var foundByLook = [...]Cause{CauseCorrupt, CauseLeaseExpired, CauseNobodyWaits, CauseTurn}

// note adds a group to found, without counting it in the summary. If the options do not ask for the cause, the group
// comes behind all others, and only if they ask for one of foundByLook: the look at the group may find such a cause.
func (b *blockedLook) note(c Cause, h head) {
	at := rank(c)
	if !b.chosen(c) {
		if !slices.ContainsFunc(foundByLook[:], b.chosen) {
			return
		}
		at += len(blockedCauses)
	}
	b.found = append(b.found, stalled{BlockedPlace{at, h.index, h.group}, []Cause{c}})
}

// marks finds the paused and halted groups. It counts them by the counters (keys count). If there are any, it reads the
// keys mark, so that timers and hints of these groups are passed over. It notes the groups if the options ask for one
// of the two causes, or for CauseCorrupt.
func (b *blockedLook) marks() error {
	counts, err := b.readCounts()
	if err != nil {
		return err
	}
	for c, name := range map[Cause]string{CauseGroupPaused: countPausedGroups, CauseGroupHalted: countHaltedGroups} {
		if n := counts[name]; n > 0 {
			b.page.Summary[c] = n
		}
	}
	if len(b.page.Summary) == 0 {
		return nil
	}
	marked, more, err := b.readMarked(b.where)
	if err != nil {
		return err
	}
	b.marked, b.page.Sampled = marked, b.page.Sampled || more
	c := CauseGroupHalted
	switch { // the key of a mark does not tell a pause from a halt
	case b.chosen(CauseGroupHalted):
	case b.chosen(CauseGroupPaused):
		c = CauseGroupPaused
	case !b.chosen(CauseCorrupt):
		return nil
	}
	for group := range b.marked {
		b.note(c, head{group: group})
	}
	return nil
}

// timers passes timers to the function timer: the first blockedTimers. If there are more, then also a few of each shard
// (farPage) that are due later than any process may set a timer, because the clock of their writer was wrong. A claim
// by heartbeat (key held) counts as a timer.
func (b *blockedLook) timers() error {
	more, err := b.firstTimers(b.where, blockedTimers, b.timer)
	b.page.Sampled = b.page.Sampled || more
	wrong := b.known().retro().dueAfter(b.nowMS + (MaxDelay + clockSlack).Milliseconds())
	for _, far := range b.keys.timersWithin(b.where, wrong) {
		if err != nil || !more { // without more, all timers were read
			break
		}
		_, err = b.passTimers(far, farPage, b.timer)
	}
	return err
}

// wrongTimes has the cause under which a group is found if the time in its timer is wrong, by the kind of the timer.
var wrongTimes = map[rec.Kind]Cause{
	rec.KindClaim: CauseGroupHeld, rec.KindGrant: CauseDelayed, rec.KindDelay: CauseDelayed, rec.KindHead: CauseDelayed,
	rec.KindBeat: CauseGroupHeld,
}

// timer judges a group by one of its timers, and reads nothing. A timer with a wrong time, a retry delay that lasts,
// and a timer that has been due for ReadyFor say that the group is blocked. A claim that lasts is added to held, for
// holds to look at. A marked group is passed over, because marks has found it. timer never has enough.
func (b *blockedLook) timer(t timerRow) (enough bool) {
	p, kind := t.key, t.kind
	h := head{group: p.group, index: t.head}
	overMS := b.nowMS - p.index // for how long the timer has been due; negative = it is not due
	late := overMS >= b.o.ReadyFor.Milliseconds()
	switch {
	case b.marked[p.group]:
	case tooLate(p.index, b.nowMS, longest[kind]):
		b.find(wrongTimes[kind], h)
	case overMS < 0 && kind == rec.KindClaim:
		b.held = append(b.held, head{group: p.lane, index: t.head})
	case overMS < 0 && kind == rec.KindDelay:
		b.find(CauseDelayed, h)
	case late && kind == rec.KindClaim:
		b.find(CauseLeaseExpired, h)
	case late:
		b.find(b.untaken(p.group), h)
	}
	return false
}

// waiting reads the requests of the handles whose receives wait (keys request, reqgroup and reqlane). It counts the
// handles, and notes which groups these receives may take: in awaited those that they name, and in anyAwaited that they
// may take any. A receive by a template counts as one for any group, unless no item agrees with both its template and
// the template of the look.
func (b *blockedLook) waiting() error {
	requests, more, err := b.requests()
	for _, p := range requests {
		switch plan := b.keys.plan; p.name {
		case nameNamed:
			if plan.Intersect(p.lane, lanes.Name(p.group, b.where)) {
				b.awaited[p.group] = true
			}
		case nameByLane:
			b.anyAwaited = b.anyAwaited || plan.Intersect(lanes.Name("", p.where), lanes.Name("", b.where))
		default:
			b.anyAwaited = true
		}
	}
	b.page.Waiting, b.page.Sampled = handlesOf(requests), more
	b.anyAwaited = b.anyAwaited || more // any group may be among those of the other requests
	return err
}

// untaken returns the cause of a ready group that no receive takes. CauseTurn means: a receive waits that may take the
// group. CauseNobodyWaits means: none does.
func (b *blockedLook) untaken(group string) Cause {
	if b.anyAwaited || b.awaited[group] {
		return CauseTurn
	}
	return CauseNobodyWaits
}

// before returns about the index that an item would have if it had been enqueued d ago.
func (b *blockedLook) before(d time.Duration) int64 { return b.now.clock - d.Microseconds() }

// heldClaim is a claim of a group.
type heldClaim struct {
	group string // the group, no other lane
	token int64
}

// heldSince returns when a claim began (ms), as noted in the lock. If that was not noted, or lies more than clockSlack
// in the future, it is an estimate by the token, which is the version at which the claim was made.
func (b *blockedLook) heldSince(c *rec.Holding) int64 {
	if c.SinceMS > 0 && !ahead(c.SinceMS, b.nowMS) {
		return c.SinceMS
	}
	return b.now.at(c.Token)
}

// holds finds the groups that are held for long. A claim is younger than its head, so only groups with old heads can be
// held for long: holds reads the locks (lock or hold, and beat) of the blockedHolds lanes with the oldest heads among
// held. The map since gets the begin of each long claim. A group whose lock cannot be read is found, too
// (CauseCorrupt).
func (b *blockedLook) holds() error {
	slices.SortFunc(b.held, func(x, y head) int { return cmp.Compare(x.index, y.index) })
	n := min(len(b.held), blockedHolds)
	if n < len(b.held) && b.held[n].index <= b.before(b.o.HeldFor) {
		b.page.Sampled = true
	}
	records, unreadable, err := b.readLocks(b.held[:n])
	for i, r := range records {
		h := head{group: lanes.GroupOf(b.held[i].group), index: b.held[i].index}
		if unreadable[i] {
			b.find(CauseCorrupt, h)
		}
		c := r.Claim()
		if c == nil {
			continue
		}
		if since := b.heldSince(c); b.nowMS-since >= b.o.HeldFor.Milliseconds() {
			b.find(CauseGroupHeld, h)
			b.since[heldClaim{h.group, c.Token}] = fromMillis(since)
		}
	}
	return err
}

// readLocks reads the locks of lanes, all together. In each head the field group is the name of the lane. records has
// one record for each head, in order: the value of its lock, nil if there is no lock or it cannot be read. unreadable
// has the positions of those that cannot be read. A claim by heartbeat gets the present end of its lease, from the key
// beat.
func (v inspection) readLocks(of []head) (records []*rec.Record, unreadable map[int]bool, err error) {
	values := make([]kv.Future[[]byte], len(of))
	for i, h := range of {
		values[i] = v.read.Get(v.keys.lock(h.group))
	}
	records, unreadable = make([]*rec.Record, len(of)), make(map[int]bool)
	for i, h := range of {
		if records[i], err = v.waitLock(h.group, values[i]); isCorrupt(err) {
			unreadable[i] = true
		} else if err != nil {
			return nil, nil, err
		}
	}
	seen := beatsSeen{}
	if err := v.seeBeats(records, seen); err != nil {
		return nil, nil, err
	}
	for i, r := range records {
		if records[i], err = v.withPresentEnd(r, seen); err != nil {
			return nil, nil, err
		}
	}
	return records, unreadable, nil
}

// hints finds ready groups by their hints (keys ready or open): those whose head has failed, or may have failed, as the
// value of the hint says, and those whose index is ReadyFor old. The index is usually that of the head. So a group with
// an old head is found, also if it has become ready just now.
func (b *blockedLook) hints() error {
	limit := int(max(10, blockedHints/b.keys.shards.all()))
	rows, full, err := b.rowsOf(b.keys.hintsOf(b.where), limit)
	if err != nil {
		return fmt.Errorf("read hints: %w", err)
	}
	b.page.Sampled = b.page.Sampled || full
	for _, row := range rows {
		p, err := b.keys.parse(row.Key)
		if b.skipsRow(err) {
			continue
		}
		h := head{group: p.group, index: p.index}
		switch {
		case b.marked[p.group]:
		case len(row.Value) > 0:
			b.find(CauseHeadFailed, h)
		case p.index <= b.before(b.o.ReadyFor):
			b.find(b.untaken(p.group), h)
		}
	}
	return nil
}

// describePage reads the groups of the page, one after the other, and counts their items. It leaves out a group whose
// cause is not among those asked for, for example "", because the key that led there was stale. It sets Next if there
// are more. The page ends when it is full, or after blockedLooks groups. Groups that a key has shown under a cause not
// asked for come last (note), and few of them fit. Among them the page also ends once it has taken slowStats.
func (b *blockedLook) describePage() error {
	if b.o.After != nil {
		i, there := slices.BinarySearchFunc(b.found, *b.o.After, func(c stalled, at BlockedPlace) int {
			return c.place.compare(at)
		})
		if there {
			i++
		}
		b.found = b.found[i:]
	}
	begun := time.Now()
	for i, c := range b.found {
		slow := c.place.Rank >= len(blockedCauses) && time.Since(begun) > slowStats
		if len(b.page.Groups) == b.o.Limit || i == blockedLooks || slow && i > 0 {
			b.page.Next = new(b.found[i-1].place)
			break
		}
		g, err := b.group(c)
		if err != nil {
			return err
		}
		if b.chosen(g.Cause) {
			b.page.Groups = append(b.page.Groups, g)
		}
	}
	ranges := make([]kv.KeyRange, len(b.page.Groups))
	for i, g := range b.page.Groups {
		ranges[i] = b.keys.items(lanes.Name(g.Group, b.where))
	}
	depths, err := b.countKeysOfEach(ranges, BlockedDepth)
	for i, n := range depths {
		b.page.Groups[i].Depth, b.page.Groups[i].More = n, n == BlockedDepth
	}
	return err
}

// group reads one group, as Admin.Group does, and says why it is blocked. Cause is "" if it is not blocked, or if no
// cause fits. It reads the lock and those of intersecting lanes, the beat, the holds, the first item, its attempts and
// the rate.
func (b *blockedLook) group(c stalled) (BlockedGroup, error) {
	lane := lanes.Name(c.place.Group, b.where)
	first, err := b.firstItem(b.keys.items(lane))
	if err != nil {
		return BlockedGroup{}, err
	}
	info, err := b.describe(lane, first, 0)
	g := BlockedGroup{GroupInfo: info}
	if err != nil {
		return g, err
	}
	b.explain(&g, c.causes)
	// The head of a ready group must be ReadyFor old. Ages are in whole milliseconds.
	if g.Cause == b.untaken(g.Group) && g.Attempts == 0 && g.HeadAge < b.o.ReadyFor.Truncate(time.Millisecond) {
		g.Cause = "" // the hint is not as old as its version said
	}
	if g.Cause == "" || info.Status == Corrupt {
		return g, nil
	}
	return g, b.setSince(&g)
}

// explain sets the reasons why a group is blocked, and its cause, which is that of the first reason. It reads nothing,
// but uses the fields of g that describe has set. found are the causes for which keys led here. Some causes need such a
// key. Example: a group that is held counts as blocked only if its claim has lasted for long (holds), if the end of its
// claim is wrong (timer), or if the group is marked, too.
func (b *blockedLook) explain(g *BlockedGroup, found []Cause) {
	add := func(r Reason) {
		g.Reasons = append(g.Reasons, r)
		if g.Cause == "" {
			g.Cause = r.Cause
		}
	}
	if g.Status == Corrupt {
		add(Reason{Cause: CauseCorrupt, Err: g.LastError})
		return
	}
	if g.Mark != nil {
		add(Reason{Cause: g.Mark.cause(), Mark: g.Mark})
	}
	holder := Reason{Owner: g.Owner, Token: g.Token, Left: g.Left, Where: g.Where}
	if g.Status == Held && (slices.Contains(found, CauseGroupHeld) || g.Mark != nil) {
		holder.Cause = CauseGroupHeld
		add(holder)
	}
	if g.Status == Expired {
		holder.Cause = CauseLeaseExpired
		add(holder)
	}
	if g.Status == Delayed && slices.Contains(found, CauseDelayed) {
		add(Reason{Cause: CauseDelayed, Left: g.Left})
	}
	failed := Reason{Cause: CauseHeadFailed, Count: int64(g.Attempts), Err: g.LastError}
	if g.Status == Ready {
		if g.Attempts > 0 && slices.Contains(found, CauseHeadFailed) {
			add(failed)
		}
		add(Reason{Cause: b.untaken(g.Group)})
	}
	if g.Cause != "" && g.Cause != CauseHeadFailed && g.Attempts > 0 {
		add(failed)
	}
}

// cause returns for which cause a group with the mark is blocked: a pause or a halt.
func (m *Mark) cause() Cause {
	if m.Status == Halted {
		return CauseGroupHalted
	}
	return CauseGroupPaused
}

// setSince sets when the cause of the group began: the mark, the claim, the end of the lease, the first failed attempt
// of the head, or the enqueue of the head. For the first failed attempt it reads the attempts (key attempt).
func (b *blockedLook) setSince(g *BlockedGroup) error {
	now := fromMillis(b.nowMS)
	switch c := g.Cause; {
	case g.Mark != nil:
		g.Since = g.Mark.Since
	case c == CauseGroupHeld:
		var noted bool
		if g.Since, noted = b.since[heldClaim{g.Group, g.Token}]; !noted { // not the claim that has lasted for long
			g.Since = fromMillis(b.heldSince(&rec.Holding{Token: g.Token}))
		}
	case c == CauseLeaseExpired:
		g.Since = now.Add(g.Left)
	case g.Attempts > 0:
		record, err := b.readAttempt(g.Head)
		g.Since = fromMillis(record.FirstMS)
		return err
	default:
		g.Since = now.Add(-g.HeadAge)
	}
	return nil
}

// handlesOf counts the handles that have written the requests. A handle with several requests counts once.
func handlesOf(requests []parsedKey) int64 {
	handles := make(map[uuid.UUID]bool)
	for _, p := range requests {
		handles[p.id] = true
	}
	return int64(len(handles))
}

// requests returns the key of each request of a live handle, of the first whyRows requests of each kind (keys reqgroup,
// reqlane and request). more says that there may be more requests.
func (v inspection) requests() (all []parsedKey, more bool, err error) {
	all, more, err = v.requestsIn(v.keys.requests())
	if err != nil || !more {
		return all, more, err
	}
	return v.requestsIn(v.keys.section(nameNamed), v.keys.section(nameByLane), v.keys.section(nameRequest))
}

// requestsIn is requests for the first whyRows requests of each range.
func (v inspection) requestsIn(ranges ...kv.KeyRange) (all []parsedKey, more bool, err error) {
	rows, more, err := v.rowsOf(ranges, whyRows)
	if err != nil {
		return nil, false, fmt.Errorf("read requests: %w", err)
	}
	for _, row := range rows {
		p, foreign := v.keys.parse(row.Key)
		r, corrupt := rec.UnpackRequest(row.Key, row.Value)
		if !v.skipsRow(foreign) && !v.skipsRow(corrupt) && lives(r, v.nowMS) {
			all = append(all, p)
		}
	}
	return all, more, nil
}
