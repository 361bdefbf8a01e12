package layer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer/internal/lanes"
	"fdbfifo/layer/internal/rec"
)

// How Check works: pages reads every key of the queue, page by page, each page in a transaction of its own. So the
// pages are of different versions of the database, and rows of two pages may not fit together although no rule is
// broken. Example: a page has a lock, and an ack clears the lock and its timer before Check reads the timers. Therefore
// a place that may break a rule is at first a suspect. At the end each suspect is confirmed or dropped, by reads at one
// version.
//
// Keys have their names in the table of subspace.go. A hint is a key ready or open. A kept hint is a hint that was put
// aside under a lock (key kept). A lane is a whole group, the part of a group that a template matches, the free items
// of a group (those without a hold), or a single item. The name of a lane is a string, and that of a whole group is the
// group: see package lanes. The lock of a single item is a key hold. Most functions for a lane call its name group,
// because in a queue without facets and holds each lane is a whole group.
//
// The plan of a queue (lanes.Plan) says which lanes its groups have. IsPlain means that each group is one lane. InTurn
// means that single items are claimed, and delivered in order (lease_per=item). NeedsHint reports whether a receive can
// claim a lane, so that a hint must lead to it. Two lanes of a group intersect, or meet, if an item can be in both. A
// record is the value of a lock. Its holding is a claim, a grant or a retry delay, and its mark a pause or a halt.

// Rule is the name of a rule of Check. Example: "group-reachable". Names are stable; Text has the rule in words.
type Rule string

// The rules. I1 of the design is ruleReachable.
const (
	ruleReachable   Rule = "group-reachable"
	ruleLockTimer   Rule = "lock-has-timer"
	ruleLockItems   Rule = "lock-items-in-group"
	ruleMark        Rule = "mark-has-lock"
	ruleItem        Rule = "item-readable"
	rulePart        Rule = "part-has-owner"
	ruleDead        Rule = "dead-letter-readable"
	ruleArchive     Rule = "archived-item-readable"
	ruleArchived    Rule = "archive-entry-has-items"
	ruleAttempt     Rule = "attempt-has-item"
	ruleValue       Rule = "value-form"
	ruleKey         Rule = "key-form"
	ruleShard       Rule = "hint-in-its-shard"
	ruleOutstanding Rule = "claim-has-items"
	ruleGrant       Rule = "grant-has-request"
	rulePace        Rule = "rate-not-ahead"
	ruleLane        Rule = "item-in-its-lanes"
	ruleKept        Rule = "kept-hint-has-lock"
	ruleDisjoint    Rule = "claims-disjoint"
	ruleBeat        Rule = "claim-has-beat"
)

var ruleTexts = map[Rule]string{
	// Never missing, because otherwise no receive would find the group. May be stale or doubled.
	ruleReachable:   "a group, or lane, with items has a ready hint, a lock, a mark, a kept hint, or its head's timer",
	ruleLockTimer:   "a lock has its timer",
	ruleLockItems:   "a lock's outstanding items are in its group",
	ruleMark:        "a group has the key of a mark if and only if its lock has a mark",
	ruleItem:        "an item is readable, with all its parts",
	rulePart:        "a part belongs to an item, a dead letter or an archived item",
	ruleDead:        "a dead letter is readable, with all its parts, and not in its group too",
	ruleArchive:     "an archived item is readable, with all its parts, out of its group, and in an entry",
	ruleArchived:    "the items of an entry of the archive are there",
	ruleAttempt:     "an attempt record belongs to an item",
	ruleValue:       "a value has the form of its key",
	ruleKey:         "a key has a form of the table",
	ruleShard:       "a ready hint, or a timer, is in a shard of its group",
	ruleOutstanding: "a claim has outstanding items",
	ruleGrant:       "a grant belongs to a request",
	rulePace:        "a group's rate is used up to now, not further",
	ruleLane:        "an item is in the lanes of its facets, and in no other lane",
	ruleKept:        "a hint put aside has the lock under which it was put aside",
	ruleDisjoint:    "no two claims of a group may have an item in common",
	ruleBeat:        "a claim by heartbeat is in its handle's list, and the handle has a beat with a timer",
}

// Text returns the rule as a sentence, for people; the name if there is no such rule. The words may change.
func (r Rule) Text() string {
	if text, ok := ruleTexts[r]; ok {
		return text
	}
	return string(r)
}

// Violation is a rule broken at a key.
type Violation struct {
	Rule   Rule
	Key    string // as fdbcli prints it
	Detail string
}

// String returns the rule's text, the key and the detail.
func (v Violation) String() string { return v.Rule.Text() + ": " + v.Key + ": " + v.Detail }

// CheckReport is what a check saw.
type CheckReport struct {
	Items, Bytes int64 // bodies' bytes
	// Groups is the number of groups with items. Held is the number of those under a claim. Delayed is the number of
	// those that wait: for a retry, for their head, or for their rate. In a queue with facets a group counts in Held
	// and in Delayed once for each lane that is held or delayed. In a queue with claims of single items each item that
	// waits for a retry counts in Delayed. If such items are delivered in order, a group counts in Held if its first
	// item is claimed. If they are delivered in any order, the free items of a group are a lane too, and may count in
	// Delayed.
	Groups, Held, Delayed int64
	// Groups paused or halted, the empty groups included. A group with a claim is not among them, also if it is marked:
	// it counts in Held. In a queue with facets each paused or halted lane counts.
	Paused, Halted int64
	// Hints and timers that lead to nothing any more: allowed, and cleared when a transaction meets them.
	StaleHints, StaleTimers int64
	// Attempts is the number of items with failed deliveries. Receipts is the number of rows that answer unknown
	// commits.
	Attempts, Receipts int64
	// Archived items, not counted as items.
	Archived int64
	// Receives whose receive ids are kept.
	Repeats int64
	// Changes are rows of changes that no sweep has cleared yet: one or more for each transaction that has changed
	// items.
	Changes       int64
	Subscriptions int64
	// Groups with a state, the empty groups included.
	States int64
	// Groups whose rate is in use, as far as stored; the empty groups included.
	Paces int64
	// Dead letters, not counted as items.
	Dead int64
	// Beats are handles whose claims last by heartbeat.
	Beats int64
	// Dedup is the number of entries for de-duplication.
	Dedup int64
	// Requests of handles whose receives wait, and grants to such handles, not accepted yet.
	Requests, Grants int64
	Violations       []Violation // none = the queue is sound
	// Unconfirmed are places that may break a rule. To know, Check would have to search more hints, timers or requests
	// than it reads at one version of the database (10,000,000 bytes). Check again when the queue is less busy.
	Unconfirmed []Violation
}

// CheckOptions configure a check. The zero value is the normal use.
type CheckOptions struct {
	// Progress, if not nil, is called after each page with the number of keys read so far.
	Progress func(keys int64)
}

// Check reads the whole queue and checks the rules. It changes nothing, conflicts with nothing, and may run at the
// same time as all other operations. It uses many short transactions at batch priority. Check confirms each violation
// in one transaction, which sees a single version, so a reported violation is real. See also CheckReport.Unconfirmed.
// The memory grows with the number of groups and lanes, of grants, of items with a claim of their own, of items with
// failed deliveries, and of messages whose body has several parts. It does not grow with the number of other
// messages.
//
// Reads, at snapshot: every key of the queue once. Then it reads the keys around each suspicious place again.
//
// Errors: ErrNoQueue if the queue is gone, ErrClosed, and the engine's; there is no report then.
func (a Admin) Check(ctx context.Context, o CheckOptions) (CheckReport, error) {
	c := &checker{
		q: a.q, keys: a.q.keys, ctx: ctx, o: o, report: &CheckReport{},
		retro:  retro{on: true}, // only such a queue has the timers that are looked for then
		groups: make(map[string]*groupCheck), parts: make(map[ID]bool), granted: make(map[uuid.UUID]int64),
	}
	r := c.report
	c.counts = map[string]*int64{
		nameItem: &r.Items, nameDead: &r.Dead, nameArchive: &r.Archived, nameAttempt: &r.Attempts, nameState: &r.States,
		namePace: &r.Paces, nameRequest: &r.Requests, nameNamed: &r.Requests, nameGrant: &r.Grants,
		nameByLane:  &r.Requests,
		nameBeat:    &r.Beats,
		nameRepeat:  &r.Repeats,
		nameReceipt: &r.Receipts, nameDedup: &r.Dedup, nameChange: &r.Changes, nameCursor: &r.Subscriptions,
	}
	if err := c.run(); err != nil {
		return CheckReport{}, wrap("check", err)
	}
	return *c.report, nil
}

const (
	// checkPage bounds the rows read in one transaction: at most 18 MB, with the largest values.
	checkPage = 200
	// A page ends once it has asked for checkAsks other rows: an entry of the archive names up to MaxBatch items.
	checkAsks = 2000
)

// checker is the state of one check.
type checker struct {
	q        *Queue
	keys     subspace
	retro    retro // only timing is used: see Check
	ctx      context.Context
	o        CheckOptions
	report   *CheckReport
	counts   map[string]*int64      // figures of the report, by the name in the key
	done     int64                  // keys read
	groups   map[string]*groupCheck // what the pages said, by the name of the lane
	parts    map[ID]bool            // the items, dead letters and archived items with parts
	granted  map[uuid.UUID]int64    // by the random of a key grant: the index of its key request; 0 = not seen
	suspects []suspect              // to be confirmed
	kept     []keptRow              // the kept hints
	odd      map[string]oddity      // by the keys of the page that do not fit to others: see look and lookLanes
	laneDue  map[string]int64       // by the keys of lanes in the page, when their items are due: see lookLanes
}

// groupCheck is the notes about one lane, from all pages. Of a single item only lock, timers and marked are used, and
// items is 1.
type groupCheck struct {
	items  int64       // how many; of a lane that is no whole group, its keys lane
	hints  int64       // keys ready or open
	lock   *rec.Record // the value of the key lock or hold; nil = there is none
	timers []int64     // of all timers, when they are due (ms)
	heads  []int64     // of the timers of kind head, which lead to a delayed first item
	dueMS  int64       // when the first item is due, as in the key of a timer
	first  ID          // the first item
	paced  bool        // the group has a key pace: its rate is in use
	marked bool        // there is a key mark
	kept   bool        // a hint of this lane is put aside under the lock of another
}

// oddity is the rule that a pair breaks together with another key, as one transaction has read both.
type oddity struct {
	rule   Rule
	detail string
}

// suspect is a place, named by a key, where the pages do not fit together. confirm judges it again at one version, or
// only sees that the key is still there (still). It returns the broken rule, and a detail in words; rule "" = no rule
// is broken.
type suspect struct {
	key     []byte
	confirm func(v inspection) (rule Rule, detail string, err error) // rule "" = all is well
}

// suspect adds a suspect.
func (c *checker) suspect(key []byte, confirm func(v inspection) (Rule, string, error)) {
	c.suspects = append(c.suspects, suspect{key: key, confirm: confirm})
}

// suspectPair adds a suspect that breaks no rule if its key is gone when it is confirmed. confirm gets the value that
// the key has then.
func (c *checker) suspectPair(key []byte, confirm func(v inspection, value []byte) (Rule, string, error)) {
	c.suspect(key, func(v inspection) (Rule, string, error) {
		value, err := v.read.Get(key).Wait(v.ctx)
		if err != nil || value == nil {
			return "", "", err
		}
		return confirm(v, value)
	})
}

// run reads all pages, compares the notes about each lane, and confirms the suspects. The result is in c.report.
func (c *checker) run() error {
	if err := c.pages(); err != nil {
		return err
	}
	c.compare()
	for _, s := range c.suspects {
		if err := c.confirm(s); err != nil {
			return err
		}
	}
	return nil
}

// pages reads every key of the queue, with its value, and passes each pair to row. A transaction reads up to checkPage
// pairs. At the same version look and lookLanes read the other keys that must fit to these pairs.
func (c *checker) pages() error {
	all := c.keys.all()
	begin := kv.FirstGreaterOrEqual(all.Begin)
	for last := false; !last; {
		var rows []checked
		err := c.view(func(v inspection) error {
			found, err := v.read.GetRange(kv.Range{Begin: begin, End: kv.FirstGreaterOrEqual(all.End)},
				kv.RangeOptions{Limit: checkPage}).Wait(v.ctx)
			if err != nil {
				return err
			}
			rows = make([]checked, len(found))
			for i, row := range found {
				rows[i].KV = row
				rows[i].p, rows[i].err = v.keys.parse(row.Key)
			}
			looked, err := c.look(v, rows)
			if err != nil {
				return err
			}
			last = len(found) < checkPage && looked == len(found)
			rows = rows[:looked]
			return c.lookLanes(v, rows)
		})
		if err != nil {
			return fmt.Errorf("read page: %w", err)
		}
		for _, row := range rows {
			c.row(row)
		}
		c.done += int64(len(rows))
		if c.o.Progress != nil {
			c.o.Progress(c.done)
		}
		if !last {
			begin = kv.FirstGreaterThan(rows[len(rows)-1].Key)
		}
	}
	return nil
}

// view runs fn in a transaction that only reads, at batch priority. All reads of fn are at snapshot, and of one
// version. fn may run more than once. The transaction also reads the configuration and the pause (meta), unless the
// handle's copy is fresh. If the queue is gone, the error is ErrNoQueue, and if the handle is closed, ErrClosed.
func (c *checker) view(fn func(v inspection) error) error {
	if c.q.isClosed() {
		return ErrClosed
	}
	_, err := kv.Run(c.ctx, c.q.db, c.q.batchOptions(), func(tx kv.Tx, _ kv.Attempt) error {
		follow, v := c.q.follow(tx), c.q.viewOf(c.ctx, tx.Snapshot())
		if err := fn(inspection{&v}); err != nil {
			return err
		}
		if _, err := follow.wait(c.ctx); errors.Is(err, ErrNoQueue) || kv.Code(err) != 0 {
			return err
		}
		return nil // what else is wrong with the configuration is for the report
	})
	return err
}

// group returns the notes about the lane with the name, and begins them if there are none.
func (c *checker) group(name string) *groupCheck {
	g := c.groups[name]
	if g == nil {
		g = &groupCheck{}
		c.groups[name] = g
	}
	return g
}

// checked is a pair of a page with its parsed key.
type checked struct {
	kv.KV
	p   parsedKey
	err error // the key has no form of the table; nil = it has
}

// row notes what one pair of a page says, and reads nothing more. It counts the pair in the report, and adds to the
// notes about its lane. A pair that is wrong by itself, or odd, becomes a suspect at once. Example: the value has not
// the form of its key. So does a pair that needs another which no page has shown yet. Example: each attempt, because
// the items come in later pages.
func (c *checker) row(of checked) {
	p, row := of.p, of.KV
	if of.err != nil {
		c.still(row.Key, ruleKey, of.err.Error())
		return
	}
	if n := c.counts[p.name]; n != nil {
		*n++
	}
	if o, ok := c.odd[string(row.Key)]; ok {
		c.still(row.Key, o.rule, o.detail)
	}
	switch p.name {
	case nameItem:
		c.item(p, row)
		return
	case nameDead:
		c.stored(p, row, ruleDead)
		return
	case nameArchive:
		c.stored(p, row, ruleArchive)
		return
	}
	if _, err := descriptions[p.name].value(row.Key, row.Value); err != nil {
		c.still(row.Key, ruleValue, err.Error())
	}
	switch p.name {
	case namePart:
		if !c.parts[p.itemID()] {
			c.owned(row.Key, rulePart, p.itemID(),
				c.keys.item(p.itemID()), c.keys.dead(p.itemID()), c.keys.archive(p.itemID()))
		}
	case nameAttempt:
		c.owned(row.Key, ruleAttempt, p.itemID(), c.keys.item(p.itemID()))
	case nameLock:
		if c.record(p, row).Claim() != nil {
			c.report.Held++
		}
	case nameHold:
		if c.record(p, row) != nil {
			c.group(p.lane).items = 1
		}
		c.owned(row.Key, ruleLockItems, p.itemID(), c.keys.item(p.itemID()))
	case nameMark:
		c.group(p.lane).marked = true
	case namePace:
		c.pace(p, row)
	case nameReady, nameOpen:
		if !c.astray(p, row, c.keys.shardsOf(p.group)) {
			c.group(p.lane).hints++
		}
	case nameHeld:
		c.suspectPair(row.Key, func(v inspection, _ []byte) (Rule, string, error) { return c.heldSound(v, p) })
	case nameTimer, nameDue:
		c.timer(p, row)
	case nameLane:
		g := c.group(p.lane)
		if g.items++; g.items == 1 {
			g.dueMS = c.laneDue[string(row.Key)]
		}
	case nameKept:
		c.group(p.lane).kept = true
		c.kept = append(c.kept, keptRow{key: row.Key, holder: p.holder})
	case nameGrant:
		c.granted[p.id] = 0
		c.suspectPair(row.Key, func(v inspection, _ []byte) (Rule, string, error) { return c.grantSound(v, p.id) })
	case nameRequest:
		if _, granted := c.granted[p.id]; granted {
			c.granted[p.id] = p.index
		}
	}
}

// timer adds a timer to the notes about its lane. A timer in a wrong shard becomes a suspect. timer leaves out the
// timer of a beat, which may be stale: a receive that meets such a timer clears it.
func (c *checker) timer(p parsedKey, row kv.KV) {
	if p.id != uuid.Nil || c.astray(p, row, c.keys.timerShardsOf(p.group)) {
		return
	}
	g := c.group(p.lane)
	g.timers = append(g.timers, p.index)
	if kind, _, _ := rec.UnpackTimer(row.Key, row.Value); kind == rec.KindHead {
		g.heads = append(g.heads, p.index)
	}
}

// record adds the value of a lock or hold to the notes about its lane, and returns it; nil = it cannot be read.
func (c *checker) record(p parsedKey, row kv.KV) *rec.Record {
	r, err := rec.UnpackRecord(row.Key, row.Value)
	if err != nil {
		return nil
	}
	c.group(p.lane).lock = r
	return r
}

// item counts an item, its bytes and, at the first item, its group. Of the first item it notes the id, and when the
// item is due; nothing if the item cannot be read. The item becomes a suspect if it cannot be read, or has parts, which
// have to be read, too.
func (c *checker) item(p parsedKey, row kv.KV) {
	g := c.group(p.group)
	if g.items++; g.items == 1 {
		c.report.Groups++
	}
	e, body, ok := c.stored(p, row, ruleItem)
	if !ok {
		return
	}
	if g.items == 1 {
		g.dueMS = c.retro.timing(&e)
		g.first = p.itemID()
	}
	c.report.Bytes += max(int64(len(body)), e.Size)
}

// stored opens the item in the value of a row: an item, a dead letter, or an archived item. It reads nothing itself. If
// the body has parts, body lacks them, and the row becomes a suspect, because the parts have to be read, too. ok is
// false if the item cannot be read. Then the row is a suspect by the given rule.
func (c *checker) stored(p parsedKey, row kv.KV, rule Rule) (e rec.Envelope, body []byte, ok bool) {
	value, err := itemIn(p.name, row)
	if err == nil {
		e, body, err = rec.OpenEnvelope(value)
	}
	if err != nil {
		c.still(row.Key, rule, err.Error())
		return e, nil, false
	}
	if e.Parts == 0 {
		return e, body, true
	}
	c.parts[p.itemID()] = true
	c.suspectPair(row.Key, func(v inspection, value []byte) (Rule, string, error) {
		stored, err := itemIn(p.name, kv.KV{Key: row.Key, Value: value})
		if err == nil {
			_, err = v.readItem(kv.KV{Key: v.keys.item(p.itemID()), Value: stored})
		}
		if errors.Is(err, ErrCorrupt) {
			return rule, err.Error(), nil
		}
		return "", "", err
	})
	return e, body, true
}

// itemIn returns the stored item (envelope and body) in the value of row. name is the name in the row's key: item, dead
// or archive.
func itemIn(name string, row kv.KV) ([]byte, error) {
	switch name {
	case nameDead:
		d, err := rec.UnpackDeadLetter(row.Key, row.Value)
		if err != nil {
			return nil, err
		}
		return d.Item, nil
	case nameArchive:
		a, err := rec.UnpackArchived(row.Key, row.Value)
		if err != nil {
			return nil, err
		}
		return a.Item, nil
	}
	return row.Value, nil
}

// still makes a suspect of a pair that the page has shown to break rule. To confirm it is enough that the key is there.
func (c *checker) still(key []byte, rule Rule, detail string) {
	c.suspectPair(key, func(inspection, []byte) (Rule, string, error) { return rule, detail, nil })
}

// presence is a read that tells whether a key is there, without its value. An archived item may have 100,000 bytes.
type presence struct {
	key   []byte
	found kv.Future[[]byte]
}

// askFor starts reading whether key is there.
func askFor(v inspection, key []byte) presence {
	return presence{key: key, found: v.read.GetKey(kv.FirstGreaterOrEqual(key))}
}

// wait returns whether the key is there.
func (p presence) wait(ctx context.Context) (bool, error) {
	k, err := p.found.Wait(ctx)
	return err == nil && bytes.Equal(k, p.key), err
}

// look reads, at the page's version, keys that must or must not be there together with a pair of the page. A dead
// letter must have no item. An archived item must have no item, but must have its entry, a key archived. An entry must
// have a key archive for each item that it names. look notes the pairs that break this in c.odd. It returns how many of
// the rows it has looked at: fewer than all if it has asked for checkAsks keys.
func (c *checker) look(v inspection, rows []checked) (looked int, err error) {
	c.odd = make(map[string]oddity)
	type pair struct {
		key   []byte
		other presence
		there bool   // true = the other must be there; false = must not be
		odd   oddity // if that is not so
	}
	var pairs []pair
	ask := func(row checked, other []byte, there bool, rule Rule, detail string) {
		pairs = append(pairs, pair{row.Key, askFor(v, other), there, oddity{rule, detail}})
	}
	for _, row := range rows {
		if p := row.p; row.err == nil {
			switch p.name {
			case nameDead:
				ask(row, v.keys.item(p.itemID()), false, ruleDead, "its item is in the group too")
			case nameArchive:
				if a, err := rec.UnpackArchived(row.Key, row.Value); err == nil {
					ask(row, v.keys.item(p.itemID()), false, ruleArchive, "it is in its group, too")
					ask(row, v.keys.archived(a.At), true, ruleArchive, "no entry names it")
				}
			case nameArchived:
				if e, err := rec.UnpackArchiveEntry(row.Key, row.Value); err == nil {
					for _, id := range idsOf(e.Items, e.Group) {
						ask(row, v.keys.archive(id), true, ruleArchived, "no archived item "+id.String())
					}
				}
			}
		}
		if looked++; len(pairs) >= checkAsks {
			break
		}
	}
	for _, p := range pairs {
		there, err := p.other.wait(v.ctx)
		if err != nil {
			return 0, err
		}
		if there != p.there {
			c.noteOdd(p.key, p.odd)
		}
	}
	return looked, nil
}

// noteOdd notes an oddity of a key. The first one of each key counts.
func (c *checker) noteOdd(key []byte, o oddity) {
	if _, noted := c.odd[string(key)]; !noted {
		c.odd[string(key)] = o
	}
}

// firstAbsent reads whether the key of each id is there, and returns the first id without its key; nil = all are there.
func firstAbsent(v inspection, of []ID, key func(ID) []byte) (*ID, error) {
	asked := make([]presence, len(of))
	for i, id := range of {
		asked[i] = askFor(v, key(id))
	}
	for i, a := range asked {
		if there, err := a.wait(v.ctx); err != nil || !there {
			return &of[i], err
		}
	}
	return nil, nil
}

// owned makes a suspect of a pair that breaks rule if none of its owners, which are keys, is there. id is for the
// detail.
func (c *checker) owned(key []byte, rule Rule, id ID, owners ...[]byte) {
	c.suspectPair(key, func(v inspection, _ []byte) (Rule, string, error) {
		for _, owner := range owners {
			if there, err := askFor(v, owner).wait(v.ctx); err != nil || there {
				return "", "", err
			}
		}
		return rule, "no item " + id.String(), nil
	})
}

// compare looks at the notes about each lane, and reads nothing. It counts the lanes that are delayed, paused and
// halted, and the stale hints and timers. row has counted the groups under a claim. With lease_per=item compare adds
// the groups whose first item is claimed. It makes suspects of these:
//
//   - a lane that a receive can claim, with items, but without a lock, a hint, a kept hint, a timer of its head or a
//     hold of its head (confirmed by reachable)
//   - a lane with a key mark and no mark in its lock, or the reverse (markSound)
//   - a lock whose timer no page has shown, or whose lane has no items, and each claim, because the pages do not keep
//     which items there are (lockSound)
//   - the suspects of compareLanes
func (c *checker) compare() {
	c.compareLanes()
	for _, name := range slices.Sorted(maps.Keys(c.groups)) {
		g := c.groups[name]
		// awaited is when the timer is due that leads to the lane; 0 = none does.
		stale, awaited := g.hints, int64(0)
		if h := c.headInHand(g); g.lock == nil && g.items > 0 && h != nil {
			if h.Kind == rec.KindClaim { // a delay counts at the lock of the item
				c.report.Held++
			}
		} else if g.lock == nil && g.items > 0 && !g.kept && c.keys.plan.NeedsHint(name) {
			if due, ok := g.waits(); ok {
				awaited = due
				c.report.Delayed++
			} else if g.hints == 0 {
				c.suspect(c.keys.items(name).Begin, func(v inspection) (Rule, string, error) {
					return c.reachable(v, name)
				})
			} else {
				// One of the hints leads to the lane.
				stale--
			}
		}
		c.report.StaleHints += stale
		// timed: a page has shown the timer of the lock's holding.
		timed := false
		for _, due := range g.timers {
			if h := g.lock.Holding(); h != nil && h.EndMS == due {
				timed = true
			} else if due != awaited {
				c.report.StaleTimers++
			}
		}
		if g.marked != (g.lock.Mark() != nil) {
			c.suspect(c.keys.mark(name), func(v inspection) (Rule, string, error) { return c.markSound(v, name) })
		}
		if g.lock == nil {
			continue
		}
		h := g.lock.Holding()
		switch {
		case h == nil && g.lock.Mark().Kind == rec.MarkPause:
			c.report.Paused++
		case h == nil:
			c.report.Halted++
		case h.Kind == rec.KindDelay:
			c.report.Delayed++
		}
		if h == nil {
			continue // a mark alone has no timer, and no item needs to be there
		}
		if !timed || h.Kind == rec.KindClaim || g.items == 0 {
			c.suspect(c.keys.lock(name), func(v inspection) (Rule, string, error) {
				return c.lockSound(v, name)
			})
		}
	}
}

// astray reports whether a hint or timer is in none of the given shards, those of its group, and makes it a suspect
// then.
func (c *checker) astray(p parsedKey, row kv.KV, shards []int64) bool {
	if slices.Contains(shards, p.n) {
		return false
	}
	c.still(row.Key, ruleShard, fmt.Sprintf("that is shard %d", shards[0]))
	return true
}

// firstOf reads the keys one after the other, and returns the value of the first that is there; nil = none is.
func (v inspection) firstOf(keys [][]byte) (value []byte, err error) {
	for _, k := range keys {
		if value, err = v.read.Get(k).Wait(v.ctx); err != nil || value != nil {
			break
		}
	}
	return value, err
}

// sought is ranges of keys, and a test for the pair that is sought in them.
type sought struct {
	of    []kv.KeyRange
	match func(p parsedKey, row kv.KV) bool
}

const (
	// searchBytes bounds the keys and values that are read to confirm a suspect, because a transaction must end within
	// five seconds.
	searchBytes = 10_000_000
	searchPage  = 1000
)

// errUnsure: a search has reached searchBytes, and may have missed a pair.
var errUnsure = errors.New("too much to search at one version")

// some searches the ranges at one version, and reports whether a pair matches. It passes over keys that cannot be read.
// If it has read searchBytes without a match, the error is errUnsure.
func (c *checker) some(v inspection, all ...sought) (bool, error) {
	size := 0
	for _, s := range all {
		for _, of := range s.of {
			for row, err := range walk(v.ctx, v.read, of, searchPage) {
				if err != nil {
					return false, err
				}
				if p, err := v.keys.parse(row.Key); err == nil && s.match(p, row) {
					return true, nil
				}
				if size += len(row.Key) + len(row.Value); size > searchBytes {
					return false, errUnsure
				}
			}
		}
	}
	return false, nil
}

// grantSound confirms that a grant has its request, the key request of the handle with the number random. It reads
// the key at the index that the pages have seen (c.granted), and, if nothing is there, the keys request one after the
// other. All reads are at snapshot, and at the version at which suspectPair has read the grant. The rule is "" if the
// request is there, and ruleGrant if it is not. The error is errUnsure if there are too many requests to search, or
// the engine's.
func (c *checker) grantSound(v inspection, random uuid.UUID) (Rule, string, error) {
	value, err := v.read.Get(v.keys.request(c.granted[random], random)).Wait(v.ctx)
	if err != nil || value != nil {
		return "", "", err
	}
	found, err := c.some(v, sought{
		[]kv.KeyRange{v.keys.section(nameRequest)}, func(p parsedKey, _ kv.KV) bool { return p.id == random },
	})
	if found {
		return "", "", nil
	}
	return ruleGrant, "no request of " + random.String(), err
}

// waits returns when the timer is due that leads to the lane: a timer of kind head at the time of the first item. If
// the group's rate is in use, any timer of kind head will do, because the group may wait for its rate. ok is false if
// there is no such timer, or if a hint leads to the lane.
func (g *groupCheck) waits() (dueMS int64, ok bool) {
	switch {
	case g.hints > 0:
	case slices.Contains(g.heads, g.dueMS):
		return g.dueMS, true
	case g.paced && len(g.heads) > 0:
		return slices.Min(g.heads), true
	}
	return 0, false
}

// pace notes that a group's rate is in use (row pace). The row becomes a suspect if the rate is used up for longer than
// sweepSlack from now, and breaks the rule if it is unchanged when it is confirmed. A row that cannot be read is
// reported by row.
func (c *checker) pace(p parsedKey, row kv.KV) {
	c.group(p.group).paced = true
	used, err := rec.UnpackPace(row.Key, row.Value)
	// The clocks of the writers may differ.
	if err != nil || used.US/1000-c.q.nowMS() <= sweepSlack.Milliseconds() {
		return
	}
	c.suspectPair(row.Key, func(_ inspection, value []byte) (Rule, string, error) {
		if !bytes.Equal(value, row.Value) {
			return "", "", nil
		}
		return rulePace,
			fmt.Sprintf("group %q has nothing left of its rate until %s", p.group, timeWords(used.US/1000)), nil
	})
}

// reachable confirms that a lane with items can be found, all at one version. It reads the lock, the first item, the
// hold of that item if items are claimed in turn, and the timer of that item. Then it searches by leadsTo. group is the
// name of the lane. All is well if there is the lock, the hold or the timer, if leadsTo finds a key, or if the lane has
// no items.
func (c *checker) reachable(v inspection, group string) (Rule, string, error) {
	l, err := v.readLock(group)
	if err != nil || l != nil {
		return "", "", err
	}
	rows, err := v.readItems(v.read, group, 1).Wait(v.ctx)
	if isCorrupt(err) {
		return "", "", nil // that is said by itself
	}
	if err != nil || len(rows) == 0 {
		return "", "", err
	}
	if v.keys.plan.InTurn() {
		if held, err := v.heldHead(group); err != nil || len(held) > 0 {
			return "", "", err
		}
	}
	if e, _, err := rec.OpenEnvelope(rows[0].Value); err == nil && c.retro.timing(&e) > 0 {
		value, err := v.firstOf(v.keys.timersAt(c.retro.timing(&e), group))
		if err != nil {
			return "", "", err
		}
		if kind, _, err := rec.UnpackTimer(nil, value); err == nil && kind == rec.KindHead {
			return "", "", nil
		}
	}
	found, err := c.leadsTo(v, group, rows[0])
	if found {
		return "", "", nil
	}
	return ruleReachable, laneWords(group) + " is neither ready nor held nor awaited", err
}

// leadsTo reports whether a hint, a kept hint or a timer leads to a lane with the given first item. It reads the hint
// at the index of that item, where the hint usually is. Then it searches all hints of the lane's template. In a queue
// with other lanes than whole groups it searches the kept hints of the group, too. There, and if the group's rate is in
// use (key pace), it also searches the timers (keys timer or due).
func (c *checker) leadsTo(v inspection, lane string, head kv.KV) (bool, error) {
	p, err := v.keys.parse(head.Key)
	if err != nil {
		return false, err
	}
	group, where := lanes.Split(lane)
	var hints [][]byte
	for _, shard := range v.keys.shardsOf(group) {
		hints = append(hints, v.keys.readyAt(shard, p.index, lane))
	}
	hint, err := v.firstOf(hints)
	if err != nil || hint != nil {
		return hint != nil, err
	}
	paced, err := v.read.Get(v.keys.pace(lane)).Wait(v.ctx)
	if err != nil {
		return false, fmt.Errorf("read pace: %w", err)
	}
	ofLane := func(p parsedKey, _ kv.KV) bool { return p.lane == lane }
	all, plain := []sought{{v.keys.hintsOf(where), ofLane}}, v.keys.plan.IsPlain()
	if !plain {
		all = append(all, sought{[]kv.KeyRange{v.keys.keptOf(group)}, ofLane})
	}
	if !plain || paced != nil {
		all = append(all, sought{[]kv.KeyRange{v.keys.timersOf(where)}, c.timerTo(v, lane, head.Value, paced != nil)})
	}
	return c.some(v, all...)
}

// timerTo returns the test for a timer that leads to a lane. head is the value of the lane's first item. The timer must
// be of kind head. Its time must not be later than the later of these two: the time at which that item is due, and the
// present. If the group's rate is in use (paced), any time will do, because the rate may have been changed since. The
// timer may be that of an earlier first item, which has left the lane with a claim of another lane, and so was due.
func (c *checker) timerTo(v inspection, lane string, head []byte, paced bool) func(p parsedKey, row kv.KV) bool {
	delay, due := v.known().retro(), v.nowMS
	if e, _, err := rec.OpenEnvelope(head); err == nil {
		due = max(due, delay.due(&e))
	}
	return func(p parsedKey, row kv.KV) bool {
		kind, _, err := rec.UnpackTimer(row.Key, row.Value)
		return err == nil && kind == rec.KindHead && p.lane == lane && (paced || delay.dueOf(p.index) <= due)
	}
}

// markSound confirms that a lane has a key mark if and only if its lock has a mark, both at one version. group is the
// name of the lane.
func (c *checker) markSound(v inspection, group string) (Rule, string, error) {
	key := v.read.Get(v.keys.mark(group))
	r, err := v.readLock(group)
	if isCorrupt(err) {
		return "", "", nil // that is said by itself
	}
	if err != nil {
		return "", "", err
	}
	value, err := key.Wait(v.ctx)
	if err != nil || (value != nil) == (r.Mark() != nil) {
		return "", "", err
	}
	return ruleMark, fmt.Sprintf("group %q: key %v, mark in the lock %v", group, value != nil, r.Mark() != nil), nil
}

// lockSound confirms that a lock has what belongs to it, all at one version. group is the name of the lane. A holding
// (a claim, a delay or a grant) must have its timer. A claim by heartbeat must have the keys of beatSound instead. A
// claim must have items, and all of them must be there. A lock with a mark alone is sound.
func (c *checker) lockSound(v inspection, group string) (Rule, string, error) {
	r, err := v.readLock(group)
	if isCorrupt(err) {
		return ruleValue, err.Error(), nil
	}
	h := r.Holding()
	if err != nil || h == nil {
		return "", "", err
	}
	if h.ByBeat() {
		if detail, err := c.beatSound(v, group, h); err != nil || detail != "" {
			return ruleBeat, detail, err
		}
	} else {
		value, err := v.firstOf(v.keys.timersAt(h.EndMS, group))
		if err != nil {
			return "", "", err
		}
		if value == nil {
			return ruleLockTimer, fmt.Sprintf("no timer at %d for group %q", h.EndMS, group), nil
		}
	}
	gone, err := firstAbsent(v, idsOf(h.Items, lanes.GroupOf(group)), v.keys.item)
	if err != nil {
		return "", "", err
	}
	if gone != nil {
		return ruleLockItems, "no item " + gone.String(), nil
	}
	if h.Kind == rec.KindClaim && len(h.Items) == 0 {
		return ruleOutstanding, fmt.Sprintf("group %q", group), nil
	}
	return "", "", nil
}

// heldSound confirms that a key held has its claim: the lock of the group must have a claim by the same heartbeat. p is
// the key, taken apart. heldSound reads the lock. A lock that cannot be read counts as one without such a claim.
func (c *checker) heldSound(v inspection, p parsedKey) (Rule, string, error) {
	r, err := v.readLock(p.group)
	if err != nil && !isCorrupt(err) || r.Claim() != nil && r.Claim().Beat == p.id {
		return "", "", err
	}
	return ruleBeat, fmt.Sprintf("group %q is not held by this heartbeat", p.group), nil
}

// beatSound reads the keys that lead to h, a claim by heartbeat. These are the beat of the handle, the timer of that
// beat, and the key held that lists the claim. The result detail names the key that is missing; "" = all are there.
func (c *checker) beatSound(v inspection, group string, h *rec.Holding) (detail string, err error) {
	held := v.read.Get(v.keys.held(h.Beat, group))
	b, found, err := v.readBeat(h.Beat)
	if err != nil {
		return "", err
	}
	if !found {
		return fmt.Sprintf("no beat %s for group %q", h.Beat, group), nil
	}
	timer := v.read.Get(v.keys.beatTimer(b.DueMS, h.Beat))
	listed, err := held.Wait(v.ctx)
	if err != nil {
		return "", fmt.Errorf("read claim by heartbeat: %w", err)
	}
	timed, err := timer.Wait(v.ctx)
	switch {
	case err != nil:
		return "", fmt.Errorf("read the beat's timer: %w", err)
	case listed == nil:
		return fmt.Sprintf("group %q is not in the list of the claims by heartbeat %s", group, h.Beat), nil
	case timed == nil:
		return fmt.Sprintf("no timer of heartbeat %s at %d", h.Beat, b.DueMS), nil
	}
	return "", nil
}

// confirm judges a suspect at a single version. A broken rule becomes a violation in the report. If the search was too
// large (errUnsure), the suspect becomes an entry of Unconfirmed. If a row cannot be read, confirm does nothing: that
// row is a suspect of its own.
func (c *checker) confirm(s suspect) error {
	var rule Rule
	var detail string
	err := c.view(func(v inspection) error {
		var err error
		rule, detail, err = s.confirm(v)
		return err
	})
	broken := Violation{Rule: rule, Key: tuple.Printable(s.key), Detail: detail}
	switch {
	case isCorrupt(err): // the row that cannot be read is a suspect of its own
	case errors.Is(err, errUnsure):
		c.report.Unconfirmed = append(c.report.Unconfirmed, broken)
	case err != nil:
		return fmt.Errorf("confirm %s: %w", broken.Key, err)
	case rule != "":
		c.report.Violations = append(c.report.Violations, broken)
	}
	return nil
}

// The part of Check for queues with facets or with holds: see store_lane.go and store_hold.go.

// lookLanes reads, at the page's version, the keys lane of the page's items, and the items of the page's keys lane. It
// notes in c.odd an item that is missing in a lane of its facets, and a key lane that has no item with these facets. In
// an unordered queue it also reads the holds: an item with a hold must be in no lane, and any other in the lane of the
// free items. It notes in c.laneDue when the items of the keys lane are due.
func (c *checker) lookLanes(v inspection, rows []checked) error {
	c.laneDue = make(map[string]int64)
	type pair struct {
		checked
		lane  string            // of an item, one of its lanes
		other kv.Future[[]byte] // of an item, its key in that lane; of a key lane, the item
		hold  kv.Future[[]byte] // in an unordered queue, the item's hold; else a read of nothing
	}
	var pairs []pair
	for _, row := range rows {
		p := row.p
		if row.err != nil {
			continue
		}
		switch p.name {
		case nameItem:
			for _, lane := range c.lanesIn(p.group, row.Value) {
				pairs = append(pairs, pair{row, lane, v.read.Get(v.keys.laneItem(lane, p.itemID())), c.holdOf(v, p)})
			}
		case nameLane:
			pairs = append(pairs, pair{row, "", v.read.Get(v.keys.item(p.itemID())), c.holdOf(v, p)})
		}
	}
	for _, pair := range pairs {
		other, err := pair.other.Wait(v.ctx)
		if err != nil {
			return fmt.Errorf("read item or lane: %w", err)
		}
		hold, err := pair.hold.Wait(v.ctx)
		if err != nil {
			return fmt.Errorf("read hold: %w", err)
		}
		p, there, held, detail := pair.p, other != nil, hold != nil, ""
		if p.name == nameItem {
			switch {
			case there && held:
				detail = "free and held"
			case !there && !held:
				detail = "not in the lane of " + laneWords(pair.lane)
			}
		} else {
			if e, _, err := rec.OpenEnvelope(other); err == nil {
				c.laneDue[string(pair.Key)] = c.retro.timing(&e)
			}
			switch {
			case !there || !slices.Contains(c.lanesIn(p.group, other), p.lane):
				detail = "no item with these facets: " + p.itemID().String()
			case held:
				detail = "free and held: " + p.itemID().String()
			}
		}
		if detail != "" {
			c.noteOdd(pair.Key, oddity{ruleLane, detail})
		}
	}
	return nil
}

// holdOf starts reading the hold of an item: the lock of its claim by itself. If items have no holds in this queue, it
// reads nothing, and the returned read has the value nil.
func (c *checker) holdOf(v inspection, p parsedKey) kv.Future[[]byte] {
	hold, ok := v.keys.plan.HoldOn(lanes.Item(p.itemID()))
	if !ok {
		return kv.Done[[]byte](nil, nil)
	}
	return v.read.Get(v.keys.lock(hold))
}

// lanesIn returns the lanes of the item of a group with the given value, without the lane of the whole group. It reads
// nothing. In a queue with facets it returns none if the value cannot be read.
func (c *checker) lanesIn(group string, value []byte) []string {
	return c.keys.plan.KnownParts(group, c.keys.plan.FacetsIn(value))
}

// keptRow is a hint put aside under the lock of holder.
type keptRow struct {
	key    []byte
	holder string // the lane with that lock
}

// compareLanes makes suspects of the kept hints whose lock is gone, and of groups in which two claims may have an item
// in common. Such a group is reported at the key of its own lock. compareHolds adds what the pages say of holds.
// compareLanes reads nothing. Only the confirmations read the locks.
func (c *checker) compareLanes() {
	for _, kept := range c.kept {
		if g := c.groups[kept.holder]; g == nil || g.lock == nil {
			c.suspectPair(kept.key, func(v inspection, _ []byte) (Rule, string, error) {
				r, err := v.readLock(kept.holder)
				if err != nil || r != nil {
					return "", "", err
				}
				return ruleKept, "the lock is gone of " + laneWords(kept.holder), nil
			})
		}
	}
	c.compareHolds()
	held := make(map[string][]string)
	for _, lane := range slices.Sorted(maps.Keys(c.groups)) {
		if c.groups[lane].lock.Claim() != nil {
			held[lanes.GroupOf(lane)] = append(held[lanes.GroupOf(lane)], lane)
		}
	}
	for _, group := range slices.Sorted(maps.Keys(held)) {
		if a, b, ok := c.keys.plan.Meeting(held[group]); ok {
			c.suspect(c.keys.lock(group), func(v inspection) (Rule, string, error) {
				return c.disjoint(v, held[group], a, b)
			})
		}
	}
}

// disjoint confirms that no two claims of a group meet: they meet if an item can be in both lanes. It reads the locks
// at one version. all are the lanes that were held as the pages said, and a and b are two of them that meet. If one of
// the two is held no longer, disjoint looks for another two among the others.
func (c *checker) disjoint(v inspection, all []string, a, b string) (Rule, string, error) {
	all = slices.Clone(all)
	for meet := true; meet; a, b, meet = c.keys.plan.Meeting(all) {
		gone := make(map[string]bool)
		for _, lane := range []string{a, b} {
			r, err := v.readLock(lane)
			if err != nil && !isCorrupt(err) {
				return "", "", err
			}
			if err != nil || r.Claim() == nil {
				gone[lane] = true
			}
		}
		if len(gone) == 0 {
			return ruleDisjoint, laneWords(a) + ", and " + laneWords(b), nil
		}
		all = slices.DeleteFunc(all, func(lane string) bool { return gone[lane] })
	}
	return "", "", nil
}

// compareHolds notes a suspect for each claim of a single item (key hold) whose item is also in the claim of the whole
// group, as the pages said. It reads no key. The confirmation reads both locks at one version: see suspect.
func (c *checker) compareHolds() {
	for _, lane := range slices.Sorted(maps.Keys(c.groups)) {
		id, ok := holdOf(lane)
		whole := c.groups[id.Group]
		if !ok || c.groups[lane].lock.Claim() == nil || whole == nil || !hasItem(whole.lock.Claim(), id) {
			continue
		}
		c.suspect(c.keys.hold(id), func(v inspection) (Rule, string, error) {
			r, err := v.readLock(id.Group)
			if err != nil || !hasItem(r.Claim(), id) {
				return "", "", err
			}
			if r, err = v.readLock(lane); err != nil || r.Claim() == nil {
				return "", "", err
			}
			return ruleDisjoint, "the group, and " + id.String() + " by itself", nil
		})
	}
}

// headInHand returns the holding that keeps the first item of a group by itself: a claim or a retry delay, in the notes
// about the item's hold. The timer of that hold leads to the group. nil = there is none, or the queue does not claim
// items in turn (lease_per=item).
func (c *checker) headInHand(g *groupCheck) *rec.Holding {
	lane := holdLane(g.first)
	hold := c.groups[lane]
	if _, turns := c.keys.plan.TurnOf(lane); !turns || hold == nil {
		return nil
	}
	return hold.lock.Holding()
}
