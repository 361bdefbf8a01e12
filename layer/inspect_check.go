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
)

// Rule is the name of a rule of Check. Names are stable; Text has the rule in words.
type Rule string

// The rules. I1 of the design is RuleReachable.
const (
	RuleReachable   Rule = "group-reachable"
	RuleLockTimer   Rule = "lock-has-timer"
	RuleLockItems   Rule = "lock-items-in-group"
	RuleMark        Rule = "mark-has-lock"
	RuleItem        Rule = "item-readable"
	RulePart        Rule = "part-has-owner"
	RuleDead        Rule = "dead-letter-readable"
	RuleArchive     Rule = "archived-item-readable"
	RuleArchived    Rule = "archive-entry-has-items"
	RuleAttempt     Rule = "attempt-has-item"
	RuleValue       Rule = "value-form"
	RuleKey         Rule = "key-form"
	RuleShard       Rule = "hint-in-its-shard"
	RuleOutstanding Rule = "claim-has-items"
	RuleGrant       Rule = "grant-has-request"
	RulePace        Rule = "rate-not-ahead"
	RuleLane        Rule = "item-in-its-lanes"
	RuleKept        Rule = "kept-hint-has-lock"
	RuleDisjoint    Rule = "claims-disjoint"
	RuleBeat        Rule = "claim-has-beat"
)

var ruleTexts = map[Rule]string{
	// Never missing, because otherwise nobody would find the group; may be stale or doubled.
	RuleReachable:   "a group, or lane, with items has a ready hint, a lock, a mark, a kept hint, or its head's timer",
	RuleLockTimer:   "a lock has its timer",
	RuleLockItems:   "a lock's outstanding items are in its group",
	RuleMark:        "a group has the key of a mark if and only if its lock has a mark",
	RuleItem:        "an item is readable, with all its parts",
	RulePart:        "a part belongs to an item, a dead letter or an archived item",
	RuleDead:        "a dead letter is readable, with all its parts, and not in its group too",
	RuleArchive:     "an archived item is readable, with all its parts, out of its group, and in an entry",
	RuleArchived:    "the items of an entry of the archive are there",
	RuleAttempt:     "an attempt record belongs to an item",
	RuleValue:       "a value has the form of its key",
	RuleKey:         "a key has a form of the table",
	RuleShard:       "a ready hint, or a timer, is in a shard of its group",
	RuleOutstanding: "a claim has outstanding items",
	RuleGrant:       "a grant belongs to a request",
	RulePace:        "a group's rate is used up to now, not further",
	RuleLane:        "an item is in the lanes of its facets, and in no other lane",
	RuleKept:        "a hint put aside has the lock under which it was put aside",
	RuleDisjoint:    "no two claims of a group may have an item in common",
	RuleBeat:        "a claim by heartbeat is in its handle's list, and the handle has a beat with a timer",
}

// Rules returns all rules, in the order of their names. The slice belongs to the caller.
func Rules() []Rule { return slices.Sorted(maps.Keys(ruleTexts)) }

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
	// Groups with items, groups held under a claim, and groups delayed: by a retry, by their head, or by their rate.
	Groups, Held, Delayed int64
	// Groups paused or halted, the empty groups included.
	Paused, Halted int64
	// Hints and timers which stand for nothing any more: allowed, and cleared when met.
	StaleHints, StaleTimers int64
	Attempts, Receipts      int64
	// Archived items, not counted as items.
	Archived int64
	// Receives whose receive ids are kept.
	Repeats int64
	// Changes are rows of changes: one or more for each transaction since the last subscription has read or a sweep.
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
}

// CheckOptions configure a check. The zero value is the normal use.
type CheckOptions struct {
	// Progress, if not nil, is called after each page with the number of keys read so far.
	Progress func(keys int64)
}

// Check reads the whole queue and holds the queue to the rules. Check changes nothing and may run beside all other
// operations, at batch priority, in many short transactions. What looks broken is confirmed in one transaction, which
// sees a single version, so a reported violation is real. The memory grows with the number of groups, not of items.
//
// Errors: ErrClosed, and the engine's; there is no report then.
func (a Admin) Check(ctx context.Context, o CheckOptions) (CheckReport, error) {
	c := &checker{
		q: a.q, ctx: ctx, o: o, report: &CheckReport{},
		retro:  retro{on: true}, // only such a queue has the timers that are looked for then
		groups: make(map[string]*groupCheck), parts: make(map[ID]bool),
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

// checkPage bounds the rows read in one transaction: at most 18 MB, with the largest values.
const checkPage = 200

type checker struct {
	q        *Queue
	retro    retro
	ctx      context.Context
	o        CheckOptions
	report   *CheckReport
	counts   map[string]*int64 // figures of the report, by the name in the key
	keys     int64
	groups   map[string]*groupCheck
	parts    map[ID]bool // the items which have parts
	suspects []suspect
	kept     []keptRow
	odd      map[string]bool // the keys of the page which do not fit to others: see look
}

// groupCheck is what the pages said about one group.
type groupCheck struct {
	items  int64
	hints  int64
	lock   *record
	timers []int64 // due times, ms
	heads  []int64 // of timers, the due times of heads
	dueMS  int64   // of the first item, as in the key of a timer
	first  ID      // the first item
	paced  bool    // the use of the group's rate is stored
	marked bool    // there is the key of a mark
	kept   []string
}

// suspect is a place where the pages do not fit together. The pages are of different versions, so a suspect is looked
// at again before counting as a violation.
type suspect struct {
	key     []byte
	confirm func(tx kv.ReadTx) (rule Rule, detail string, err error) // rule "" = all is well
}

func (c *checker) suspect(key []byte, confirm func(tx kv.ReadTx) (Rule, string, error)) {
	c.suspects = append(c.suspects, suspect{key: key, confirm: confirm})
}

// suspectPair is suspect for a pair which breaks no rule once the pair is gone. confirm is given the pair's value.
func (c *checker) suspectPair(key []byte, confirm func(tx kv.ReadTx, value []byte) (Rule, string, error)) {
	c.suspect(key, func(tx kv.ReadTx) (Rule, string, error) {
		v, err := tx.Get(key).Wait(c.ctx)
		if err != nil || v == nil {
			return "", "", err
		}
		return confirm(tx, v)
	})
}

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

// pages reads every key of the queue.
func (c *checker) pages() error {
	all := c.q.keys.all()
	begin := kv.FirstGreaterOrEqual(all.Begin)
	for {
		var rows []kv.KV
		err := c.view(func(tx kv.ReadTx) error {
			var err error
			rows, err = tx.GetRange(kv.Range{Begin: begin, End: kv.FirstGreaterOrEqual(all.End)},
				kv.RangeOptions{Limit: checkPage}).Wait(c.ctx)
			if err == nil {
				err = c.look(tx, rows)
			}
			if err == nil {
				err = c.lookLanes(tx, rows)
			}
			return err
		})
		if err != nil {
			return fmt.Errorf("read page: %w", err)
		}
		for _, row := range rows {
			c.row(row)
		}
		c.keys += int64(len(rows))
		if c.o.Progress != nil {
			c.o.Progress(c.keys)
		}
		if len(rows) < checkPage {
			return nil
		}
		begin = kv.FirstGreaterThan(rows[len(rows)-1].Key)
	}
}

func (c *checker) view(fn func(tx kv.ReadTx) error) error {
	if c.q.isClosed() {
		return ErrClosed
	}
	_, err := kv.Run(c.ctx, c.q.db, c.q.batchOptions(), func(tx kv.Tx, _ kv.Attempt) error {
		follow := c.q.follow(tx)
		if err := fn(tx.Snapshot()); err != nil {
			return err
		}
		if _, err := follow.wait(c.ctx); errors.Is(err, ErrNoQueue) || kv.Code(err) != 0 {
			return err
		}
		return nil // what else is wrong with the configuration is for the report
	})
	return err
}

func (c *checker) group(name string) *groupCheck {
	g := c.groups[name]
	if g == nil {
		g = &groupCheck{}
		c.groups[name] = g
	}
	return g
}

// row takes one pair into account. A pair broken by itself becomes a suspect at once.
func (c *checker) row(row kv.KV) {
	p, err := c.q.keys.parse(row.Key)
	if err != nil {
		c.still(row.Key, RuleKey, err.Error())
		return
	}
	if n := c.counts[p.name]; n != nil {
		*n++
	}
	switch p.name {
	case nameItem:
		c.item(p, row)
		return
	case nameDead:
		c.dead(p, row)
		return
	case nameArchive:
		c.archive(p, row)
		return
	}
	if _, err := descriptions[p.name].value(row.Key, row.Value); err != nil {
		c.still(row.Key, RuleValue, err.Error())
	}
	switch p.name {
	case nameArchived:
		c.archived(row)
	case namePart:
		if !c.parts[p.itemID()] {
			c.owned(row.Key, RulePart, p.itemID(),
				c.q.keys.item(p.itemID()), c.q.keys.dead(p.itemID()), c.q.keys.archive(p.itemID()))
		}
	case nameAttempt:
		c.owned(row.Key, RuleAttempt, p.itemID(), c.q.keys.item(p.itemID()))
	case nameLock:
		if r, err := unpackRecord(row.Key, row.Value); err == nil {
			c.group(p.lane).lock = r
		}
	case nameHold:
		if r, err := unpackRecord(row.Key, row.Value); err == nil {
			c.group(p.lane).lock = r
		}
		c.owned(row.Key, RuleLockItems, p.itemID(), c.q.keys.item(p.itemID()))
	case nameMark:
		c.group(p.lane).marked = true
	case namePace:
		c.pace(p, row)
	case nameReady:
		if c.astray(p, row, c.q.keys.shardsOf(p.group)) {
			return
		}
		c.group(p.group).hints++
	case nameHeld:
		c.suspectPair(row.Key, func(tx kv.ReadTx, _ []byte) (Rule, string, error) {
			r, err := c.q.readLock(c.ctx, tx, p.group)
			if err != nil && !isCorrupt(err) || r.claim() != nil && r.claim().beat == p.id {
				return "", "", err
			}
			return RuleBeat, fmt.Sprintf("group %q is not held by this heartbeat", p.group), nil
		})
	case nameTimer, nameDue:
		if p.id != uuid.Nil && p.name == nameTimer {
			return // of a beat; may be stale, and is cleared when met
		}
		if c.astray(p, row, c.q.keys.timerShardsOf(p.group)) {
			return
		}
		g := c.group(p.lane)
		g.timers = append(g.timers, p.index)
		if kind, _, _ := unpackTimer(row.Key, row.Value); kind == kindHead {
			g.heads = append(g.heads, p.index)
		}
	case nameLane, nameOpen, nameKept:
		c.laneRow(p, row)
	case nameGrant:
		c.suspectPair(row.Key, func(tx kv.ReadTx, _ []byte) (Rule, string, error) { return c.grantSound(tx, p.id) })
	}
}

func (c *checker) item(p parsedKey, row kv.KV) {
	g := c.group(p.group)
	g.items++
	c.itemInLanes(p, row)
	e, body, ok := c.stored(p, row, RuleItem, func(value []byte) ([]byte, error) { return value, nil })
	if !ok {
		return
	}
	if g.items == 1 {
		g.dueMS = c.retro.timing(&e)
		g.first = p.itemID()
	}
	c.report.Bytes += max(int64(len(body)), e.size)
}

// stored opens the item which a pair keeps; item finds the item in the pair's value. An item with parts becomes a
// suspect, because its parts have to be read, too. ok is false if the item cannot be read.
func (c *checker) stored(
	p parsedKey, row kv.KV, rule Rule, item func(value []byte) ([]byte, error),
) (e envelope, body []byte, ok bool) {
	v, err := item(row.Value)
	if err == nil {
		e, body, err = openEnvelope(v)
	}
	if err != nil {
		c.still(row.Key, rule, err.Error())
		return e, nil, false
	}
	if e.parts == 0 {
		return e, body, true
	}
	c.parts[p.itemID()] = true
	c.suspectPair(row.Key, func(tx kv.ReadTx, value []byte) (Rule, string, error) {
		v, err := item(value)
		if err == nil {
			_, err = c.q.readItem(c.ctx, tx, kv.KV{Key: c.q.keys.item(p.itemID()), Value: v})
		}
		if errors.Is(err, ErrCorrupt) {
			return rule, err.Error(), nil
		}
		return "", "", err
	})
	return e, body, true
}

// still makes a suspect of a pair which breaks rule by itself, if the pair is still there.
func (c *checker) still(key []byte, rule Rule, detail string) {
	c.suspectPair(key, func(kv.ReadTx, []byte) (Rule, string, error) { return rule, detail, nil })
}

// dead takes a dead letter into account.
func (c *checker) dead(p parsedKey, row kv.KV) {
	if c.odd[string(row.Key)] {
		c.still(row.Key, RuleDead, "its item is in the group too")
	}
	c.stored(p, row, RuleDead, func(value []byte) ([]byte, error) {
		d, err := unpackDead(row.Key, value)
		if err != nil {
			return nil, err
		}
		return d.item, nil
	})
}

// look notes which dead letters and rows of the archive do not fit to their counterparts, read at the page's version.
func (c *checker) look(tx kv.ReadTx, rows []kv.KV) error {
	c.odd = make(map[string]bool)
	type pair struct {
		key   []byte
		other kv.Future[[]byte]
		there bool // true = the other must be there; false = must not be
	}
	var pairs []pair
	for _, row := range rows {
		p, err := c.q.keys.parse(row.Key)
		if err != nil {
			continue
		}
		switch p.name {
		case nameDead:
			pairs = append(pairs, pair{row.Key, tx.Get(c.q.keys.item(p.itemID())), false})
		case nameArchive:
			if a, err := unpackArchived(row.Key, row.Value); err == nil {
				pairs = append(pairs, pair{row.Key, tx.Get(c.q.keys.item(p.itemID())), false},
					pair{row.Key, tx.Get(c.q.keys.archived(a.at)), true})
			}
		case nameArchived:
			e, err := unpackArchiveEntry(row.Key, row.Value)
			if err != nil {
				continue
			}
			for _, d := range e.items {
				pairs = append(pairs, pair{row.Key, tx.Get(c.q.keys.archive(d.id(e.group))), true})
			}
		}
	}
	for _, p := range pairs {
		v, err := p.other.Wait(c.ctx)
		if err != nil {
			return err
		}
		if (v != nil) != p.there {
			c.odd[string(p.key)] = true
		}
	}
	return nil
}

// archive takes an archived item into account.
func (c *checker) archive(p parsedKey, row kv.KV) {
	var at completion
	_, _, ok := c.stored(p, row, RuleArchive, func(value []byte) ([]byte, error) {
		a, err := unpackArchived(row.Key, value)
		if err != nil {
			return nil, err
		}
		at = a.at
		return a.item, nil
	})
	if !ok || !c.odd[string(row.Key)] {
		return
	}
	c.suspectPair(row.Key, func(tx kv.ReadTx, _ []byte) (Rule, string, error) {
		item, entry := tx.Get(c.q.keys.item(p.itemID())), tx.Get(c.q.keys.archived(at))
		if v, err := item.Wait(c.ctx); err != nil || v != nil {
			return RuleArchive, "it is in its group, too", err
		}
		if v, err := entry.Wait(c.ctx); err != nil || v == nil {
			return RuleArchive, "no entry names it", err
		}
		return "", "", nil
	})
}

// archived takes an entry of the archive into account.
func (c *checker) archived(row kv.KV) {
	e, err := unpackArchiveEntry(row.Key, row.Value)
	if err != nil || !c.odd[string(row.Key)] {
		return
	}
	c.suspectPair(row.Key, func(tx kv.ReadTx, _ []byte) (Rule, string, error) {
		for _, d := range e.items {
			id := d.id(e.group)
			if v, err := tx.Get(c.q.keys.archive(id)).Wait(c.ctx); err != nil || v == nil {
				return RuleArchived, "no archived item " + id.String(), err
			}
		}
		return "", "", nil
	})
}

// owned makes a suspect of a pair which breaks rule if none of its owners is there.
func (c *checker) owned(key []byte, rule Rule, id ID, owners ...[]byte) {
	c.suspectPair(key, func(tx kv.ReadTx, _ []byte) (Rule, string, error) {
		for _, owner := range owners {
			if v, err := tx.Get(owner).Wait(c.ctx); err != nil || v != nil {
				return "", "", err
			}
		}
		return rule, "no item " + id.String(), nil
	})
}

// compare looks at each group as a whole.
func (c *checker) compare() {
	c.compareLanes()
	for _, name := range slices.Sorted(maps.Keys(c.groups)) {
		g := c.groups[name]
		if g.items > 0 && !isPart(name) {
			c.report.Groups++
		}
		stale, awaited := g.hints, int64(0)
		if g.lock == nil && g.items > 0 && c.headInHand(g) {
			c.report.Held++
		} else if g.lock == nil && g.items > 0 && len(g.kept) == 0 && c.wanted(name) {
			if due, ok := g.waits(); ok {
				awaited = due
				c.report.Delayed++
			} else if g.hints == 0 {
				c.suspect(c.q.keys.items(name).Begin, func(tx kv.ReadTx) (Rule, string, error) {
					return c.reachable(tx, name)
				})
			} else {
				stale--
			}
		}
		c.report.StaleHints += stale
		timed := false
		for _, due := range g.timers {
			if h := g.lock.holding(); h != nil && h.endMS == due {
				timed = true
			} else if due != awaited {
				c.report.StaleTimers++
			}
		}
		if g.marked != (g.lock.bears() != nil) {
			c.suspect(c.q.keys.mark(name), func(tx kv.ReadTx) (Rule, string, error) { return c.markSound(tx, name) })
		}
		if g.lock == nil {
			continue
		}
		h := g.lock.holding()
		switch {
		case h == nil && g.lock.mark.kind == markPause:
			c.report.Paused++
		case h == nil:
			c.report.Halted++
		case h.kind == kindDelay:
			c.report.Delayed++
		case h.kind == kindClaim && !isHold(name):
			c.report.Held++
		}
		if h == nil {
			continue // a mark alone has no timer, and no item needs to be there
		}
		if !timed || h.kind == kindClaim || g.items == 0 && !isHold(name) {
			c.suspect(c.q.keys.lock(name), func(tx kv.ReadTx) (Rule, string, error) {
				return c.lockSound(tx, name)
			})
		}
	}
}

// astray reports a hint or timer which is in none of the shards of its group.
func (c *checker) astray(p parsedKey, row kv.KV, shards []int64) bool {
	if slices.Contains(shards, p.n) {
		return false
	}
	c.still(row.Key, RuleShard, fmt.Sprintf("that is shard %d", shards[0]))
	return true
}

// firstOf returns the value of the first of the keys which is there, or nil.
func (c *checker) firstOf(tx kv.ReadTx, keys [][]byte) (value []byte, err error) {
	for _, k := range keys {
		if value, err = tx.Get(k).Wait(c.ctx); err != nil || value != nil {
			break
		}
	}
	return value, err
}

// some reports whether any pair of a section matches.
func (c *checker) some(tx kv.ReadTx, name string, match func(p parsedKey, row kv.KV) bool) (bool, error) {
	for row, err := range walk(c.ctx, tx, c.q.keys.section(name), 10_000) {
		if err != nil {
			return false, err
		}
		if p, err := c.q.keys.parse(row.Key); err == nil && match(p, row) {
			return true, nil
		}
	}
	return false, nil
}

// grantSound looks for the request to which a grant was made, both at one version.
func (c *checker) grantSound(tx kv.ReadTx, random uuid.UUID) (Rule, string, error) {
	found, err := c.some(tx, nameRequest, func(p parsedKey, _ kv.KV) bool { return p.id == random })
	if err != nil || found {
		return "", "", err
	}
	return RuleGrant, "no request of " + random.String(), nil
}

// waits returns when a timer leads to the group; ok is false if no timer of a head does, or a hint does.
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

// pace takes the stored use of a group's rate into account.
func (c *checker) pace(p parsedKey, row kv.KV) {
	c.group(p.group).paced = true
	used, err := unpackPace(row.Key, row.Value)
	// The clocks of the writers may differ.
	if err != nil || used.us/1000-c.q.nowMS() <= sweepSlack.Milliseconds() {
		return
	}
	c.suspectPair(row.Key, func(_ kv.ReadTx, value []byte) (Rule, string, error) {
		if !bytes.Equal(value, row.Value) {
			return "", "", nil
		}
		return RulePace,
			fmt.Sprintf("group %q has nothing left of its rate until %s", p.group, timeWords(used.us/1000)), nil
	})
}

// pacedTimer looks for a timer which leads to a group waiting by its rate, whatever the rate was then.
func (c *checker) pacedTimer(tx kv.ReadTx, group string) (bool, error) {
	v, err := tx.Get(c.q.keys.pace(group)).Wait(c.ctx)
	if err != nil || v == nil {
		return false, err
	}
	return c.some(tx, nameTimer, func(p parsedKey, row kv.KV) bool {
		kind, _, err := unpackTimer(row.Key, row.Value)
		return err == nil && kind == kindHead && p.group == group
	})
}

// reachable looks for a hint or a timer which leads to the group, at one version with the lock and the items.
func (c *checker) reachable(tx kv.ReadTx, group string) (Rule, string, error) {
	l, err := c.q.readLock(c.ctx, tx, group)
	if err != nil || l != nil {
		return "", "", err
	}
	rows, err := c.q.readItems(tx, tx, group, 1).Wait(c.ctx)
	if isCorrupt(err) {
		return "", "", nil // that is said by itself
	}
	if err != nil || len(rows) == 0 {
		return "", "", err
	}
	if c.q.keys.inTurn() {
		if held, err := c.q.heldHead(c.ctx, tx, group); err != nil || len(held) > 0 {
			return "", "", err
		}
	}
	if e, _, err := openEnvelope(rows[0].Value); err == nil && c.retro.timing(&e) > 0 {
		v, err := c.firstOf(tx, c.q.keys.timersAt(c.retro.timing(&e), group))
		if err != nil {
			return "", "", err
		}
		if kind, _, err := unpackTimer(nil, v); err == nil && kind == kindHead {
			return "", "", nil
		}
	}
	if found, err := c.pacedTimer(tx, group); err != nil || found {
		return "", "", err
	}
	hinted := func(p parsedKey, _ kv.KV) bool { return p.lane == group }
	section := nameReady
	if isPart(group) {
		section = nameOpen
	}
	if found, err := c.some(tx, section, hinted); err != nil || found {
		return "", "", err
	}
	if found, err := c.timedOrKept(tx, group, rows[0].Value); err != nil || found {
		return "", "", err
	}
	return RuleReachable, parsedKey{lane: group}.laneWords() + " is neither ready nor held nor awaited", nil
}

// markSound checks the key of a mark against the lock, at one version.
func (c *checker) markSound(tx kv.ReadTx, group string) (Rule, string, error) {
	key := tx.Get(c.q.keys.mark(group))
	r, err := c.q.readLock(c.ctx, tx, group)
	if isCorrupt(err) {
		return "", "", nil // that is said by itself
	}
	if err != nil {
		return "", "", err
	}
	v, err := key.Wait(c.ctx)
	if err != nil || (v != nil) == (r.bears() != nil) {
		return "", "", err
	}
	return RuleMark, fmt.Sprintf("group %q: key %v, mark in the lock %v", group, v != nil, r.bears() != nil), nil
}

// lockSound checks a lock against its timer and items, at one version.
func (c *checker) lockSound(tx kv.ReadTx, group string) (Rule, string, error) {
	r, err := c.q.readLock(c.ctx, tx, group)
	if isCorrupt(err) {
		return RuleValue, err.Error(), nil
	}
	h := r.holding()
	if err != nil || h == nil {
		return "", "", err
	}
	items := make([]kv.Future[[]byte], len(h.items))
	for i, d := range h.items {
		items[i] = tx.Get(c.q.keys.item(d.id(groupOf(group))))
	}
	if h.byBeat() {
		if detail, err := c.beatSound(tx, group, h); err != nil || detail != "" {
			return RuleBeat, detail, err
		}
	} else {
		v, err := c.firstOf(tx, c.q.keys.timersAt(h.endMS, group))
		if err != nil {
			return "", "", err
		}
		if v == nil {
			return RuleLockTimer, fmt.Sprintf("no timer at %d for group %q", h.endMS, group), nil
		}
	}
	for i, f := range items {
		v, err := f.Wait(c.ctx)
		if err != nil {
			return "", "", err
		}
		if v == nil {
			return RuleLockItems, "no item " + h.items[i].id(groupOf(group)).String(), nil
		}
	}
	if h.kind == kindClaim && len(h.items) == 0 {
		return RuleOutstanding, fmt.Sprintf("group %q", group), nil
	}
	return "", "", nil
}

// beatSound says what is wrong with what leads to a claim by heartbeat; "" = nothing.
func (c *checker) beatSound(tx kv.ReadTx, group string, h *holding) (detail string, err error) {
	held := tx.Get(c.q.keys.held(h.beat, group))
	b, found, err := c.q.readBeat(c.ctx, tx, h.beat)
	if err != nil {
		return "", err
	}
	if !found {
		return fmt.Sprintf("no beat %s for group %q", h.beat, group), nil
	}
	timer := tx.Get(c.q.keys.beatTimer(b.dueMS, h.beat))
	listed, err := held.Wait(c.ctx)
	if err != nil {
		return "", fmt.Errorf("read claim by heartbeat: %w", err)
	}
	timed, err := timer.Wait(c.ctx)
	switch {
	case err != nil:
		return "", fmt.Errorf("read the beat's timer: %w", err)
	case listed == nil:
		return fmt.Sprintf("group %q is not in the list of the claims by heartbeat %s", group, h.beat), nil
	case timed == nil:
		return fmt.Sprintf("no timer of heartbeat %s at %d", h.beat, b.dueMS), nil
	}
	return "", nil
}

// confirm judges a suspect at a single version.
func (c *checker) confirm(s suspect) error {
	var rule Rule
	var detail string
	err := c.view(func(tx kv.ReadTx) error {
		var err error
		rule, detail, err = s.confirm(tx)
		return err
	})
	if err != nil {
		return fmt.Errorf("confirm %s: %w", tuple.Printable(s.key), err)
	}
	if rule != "" {
		c.report.Violations = append(c.report.Violations, Violation{
			Rule: rule, Key: tuple.Printable(s.key), Detail: detail,
		})
	}
	return nil
}
