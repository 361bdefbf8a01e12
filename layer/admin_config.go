package layer

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/guard"
	"fdbfifo/layer/internal/lanes"
	"fdbfifo/layer/internal/rec"
)

// Configure changes the queue's configuration: change gets the stored configuration and modifies the copy. Configure
// returns the new configuration and the new version. The version counts the changes, from 1 (the creation). Of two
// changes at the same time neither is lost: change runs again on the result of the other, so change must not depend on
// the number of runs. Every handle follows within a second, and receives that wait look again at once.
//
// After a change of a MaxRate that was set before, Configure goes through the groups delivered from lately, as a sweep
// does, in short steps at batch priority, so that groups which wait by the old rate wait by the new rate. If this
// fails, or ctx ends, Configure returns the error with the new configuration, which holds, and the next sweep does the
// rest.
//
// If Shards are raised, Configure takes two seconds: handles must read the new shards before any handle writes there.
// An interrupted raise does no harm; the next Configure finishes the raise, whatever the change, or the next sweep.
// Shards cannot be lowered (*LimitError).
//
// Reads and writes, with conflicts: the field config of meta. Reads, at snapshot: the requests of handles that wait.
// Writes: their wake keys, and a receipt with a read conflict on it. After such a change of MaxRate: pace keys are
// cleared, and hints or timers of their groups are set.
//
// Errors: ErrOptions, *LimitError, *ValueError: nothing was changed; *UnknownSettingError if a newer version of this
// library has written the configuration; ErrCorrupt if it cannot be read; ErrNoQueue, ErrClosed, and the engine's.
func (a Admin) Configure(ctx context.Context, change func(c *Config)) (Config, int64, error) {
	var now Config
	version := int64(0)
	err := a.act(ctx, VerbConfigure, nil, ID{}, func(ctx context.Context) (n int, err error) {
		now, version, err = a.q.reconfigure(ctx, change)
		return 0, err
	})
	return now, version, err
}

// reconfigure is Configure without the hooks: it stores the configuration, then moves groups that wait by an old rate,
// then finishes a raise of the shards. The version is 0 if nothing was stored, or if that is not known.
func (q *Queue) reconfigure(ctx context.Context, change func(c *Config)) (Config, int64, error) {
	if change == nil {
		return Config{}, 0, fmt.Errorf("%w: no function that changes the configuration", ErrOptions)
	}
	var rate Rate // before
	now, err := onceOf(ctx, q, txFor(q, "configure"), func(tx kv.Tx) (storedConfig, error) {
		return q.configure(ctx, tx, func(c *Config) { rate = c.MaxRate; change(c) })
	})
	if err != nil {
		return Config{}, 0, err
	}
	q.followed.learnConfig(now.config, now.version, q.aging.now(q.opts.Now))
	if now.config.MaxRate != rate && !rate.isNone() {
		s := sweeper{q: q, ctx: ctx} // which reads the configuration, because it may have changed since
		err = s.paces()
	}
	if err == nil && now.shards.isRising() {
		err = q.finishRaise(ctx)
	}
	return now.config.copied(), now.version, err
}

// configure stores the configuration as change leaves it, in the field config of meta, and returns it. It also reads
// the requests of handles that wait, at snapshot, and touches their wake keys. It conflicts with another change of the
// configuration and with a drop only.
func (q *Queue) configure(ctx context.Context, tx kv.Tx, change func(c *Config)) (storedConfig, error) {
	v := q.viewOf(ctx, guard.Configure.Reads(tx))
	old, err := v.readStored()
	if err != nil {
		return storedConfig{}, err
	}
	config := old.config.copied()
	change(&config)
	if config, err = config.withDefaults(); err != nil {
		return storedConfig{}, err
	}
	if err := config.changedFrom(old.config); err != nil {
		return storedConfig{}, err
	}
	changed := storedConfig{
		config: config, version: old.version + 1, incarnation: old.incarnation,
		shards: old.shards.raised(int64(config.Shards)),
	}
	packed, err := changed.pack()
	if err != nil {
		return storedConfig{}, err
	}
	tx.Set(q.keys.meta(metaConfig), packed)
	w := q.txn(ctx, tx)
	if config.retro().isShorter(old.config.retro()) {
		clock, err := w.clock()
		if err != nil {
			return storedConfig{}, err
		}
		tx.Set(q.keys.meta(metaEased), rec.Instant{Clock: clock, AtMS: w.nowMS}.Pack())
	}
	// A woken handle reads the configuration again, so that its receives wait by the new one. Without a wake they would
	// wait for as long as the old rate, or the old delay, says.
	return changed, w.wakeAll()
}

// SetGroupStateOptions say how SetGroupState, which is not for the holder, sets the state of a group.
type SetGroupStateOptions struct {
	// Force also sets the state of a held group. Its holder has read the old state and may overwrite the new.
	Force bool
}

// SetGroupState sets the state of a group without a live claim: bytes that holders keep with a group. An empty state
// clears it. A claim with an expired lease does not count. SetGroupStateTx lists the keys.
//
// Errors: ErrHeld, *LimitError, ErrInvalidUTF8, ErrCorrupt if the lock cannot be read, ErrNoQueue, ErrClosed, and the
// engine's; nothing was changed.
func (a Admin) SetGroupState(ctx context.Context, group string, state []byte, o SetGroupStateOptions) error {
	return a.act(ctx, VerbSetGroupState, &group, ID{}, func(ctx context.Context) (int, error) {
		return 0, a.q.onceTx(ctx, func(tx kv.Tx) error { return a.SetGroupStateTx(ctx, tx, group, state, o) })
	})
}

// SetGroupStateTx sets the state in the caller's transaction. The caller must handle an unknown commit, for example
// with Once.
//
// Reads: the lock, with a conflict. Conflicts: with claims, acks and other changes of the group's lock. Writes: the
// state, and a write conflict on the lock. If a dead handle holds the group by its heartbeat, this claim and up to 100
// other claims of the handle end: their locks and timers are written, their held keys cleared, and the beat cleared or
// marked as ended. Handles that wait are woken. Before that, claims of this handle that have expired by its wall clock
// alone are extended: their locks are read with a conflict, and their locks and timers are written. More than 8 such
// claims are extended in transactions of their own, and that stays if the caller's transaction is not committed.
func (a Admin) SetGroupStateTx(
	ctx context.Context, tx kv.Tx, group string, state []byte, o SetGroupStateOptions,
) error {
	q := a.q
	if err := checkGroup(group); err != nil {
		return wrap("set group state", err)
	}
	if err := checkState(state); err != nil {
		return wrap("set group state", err)
	}
	return wrap("set group state", interfere(ctx, q, tx, func(w *txn) error {
		r, err := w.guarded(guard.StateLock).readLock(group)
		if err == nil {
			r, err = withoutDead(w, guard.StateLock, group, r)
		}
		if err != nil {
			return err
		}
		lasts, err := claimLasts(w, r)
		if err != nil {
			return err
		}
		if lasts && !o.Force {
			return fmt.Errorf("%w: group %q, by %q", ErrHeld, group, r.Claim().Owner)
		}
		if err := w.excludeHolders(guard.StateExclude, group); err != nil {
			return err
		}
		w.setState(group, state)
		return nil
	}))
}

// SubscriptionInfo is what the database knows of a subscription, see Queue.Subscribe.
type SubscriptionInfo struct {
	Name string
	// Owner is the Options.Owner of the handle that holds the subscription, and Until when its lease ends; zero = no
	// handle holds it.
	Owner string
	Until time.Time
	// Behind is how many rows of changes the subscription has not seen yet, up to MaxBehind. A transaction writes one
	// row, or several if it has many changes. 0 with an Err means that the number is not known, because the place
	// cannot be read, or that there are none. Next is the time of the oldest; zero = there is none.
	Behind int64
	Next   time.Time
	// Err, if not nil, says that the subscription's place, its holder or its next change cannot be read (ErrCorrupt):
	// the fields that depend on that are zero. Behind depends on the place alone. Without a place Subscribe fails,
	// until Unsubscribe removes the subscription.
	Err error
}

// MaxBehind bounds SubscriptionInfo.Behind, because the count is read row by row.
const MaxBehind = 10_000

// subscriptionsPage bounds how many subscriptions are read in a transaction. Their reads travel at the same time.
const subscriptionsPage = 50

// Subscriptions lists the queue's subscriptions in the order of their names. It reads pages, each in a transaction of
// its own, at snapshot: the keys cursor and reader, and rows of changes.
//
// Errors: ErrNoQueue, ErrClosed, and the engine's.
func (a Admin) Subscriptions(ctx context.Context) ([]SubscriptionInfo, error) {
	var all []SubscriptionInfo
	for rest := newCursor(a.q.keys.section(nameCursor)); !rest.exhausted; {
		var page []SubscriptionInfo
		var after cursor
		err := a.q.view(ctx, func(v *view) error {
			after = rest
			rows, err := after.read(v.read, subscriptionsPage).Wait(ctx)
			if err != nil {
				return fmt.Errorf("read cursors: %w", err)
			}
			after.passed(rows, subscriptionsPage)
			page, err = inspection{v}.subscriptions(rows)
			return err
		})
		if err != nil {
			return nil, wrap("subscriptions", err)
		}
		all, rest = append(all, page...), after
	}
	return all, nil
}

// subscribed is the state of one subscription while Subscriptions reads it.
type subscribed struct {
	info      SubscriptionInfo
	behind    kv.KeyRange // the changes that it has not seen
	readerKey []byte
	reader    kv.Future[[]byte]
	first     kv.Future[[]kv.KV] // of behind
}

// subscriptions reads the subscriptions whose cursors are in rows: their readers, and the rows of changes behind their
// places, which it counts. If something of a subscription cannot be read, that is its Err. A cursor whose key cannot be
// read is left out.
func (v inspection) subscriptions(rows []kv.KV) ([]SubscriptionInfo, error) {
	all := make([]*subscribed, 0, len(rows))
	for _, row := range rows {
		s := &subscribed{}
		err := v.beginSubscription(s, row)
		if v.skipsRow(err) {
			if s.info.Err = err; s.info.Name == "" {
				continue
			}
		} else if err != nil {
			return nil, err
		}
		all = append(all, s)
	}
	var counted []*subscribed
	var ranges []kv.KeyRange
	for _, s := range all {
		if s.info.Err != nil {
			continue
		}
		some, err := v.waitSubscription(s)
		if err != nil {
			return nil, err
		}
		if some {
			counted, ranges = append(counted, s), append(ranges, s.behind)
		}
	}
	counts, err := v.countKeysOfEach(ranges, MaxBehind)
	if err != nil {
		return nil, err
	}
	for i, s := range counted {
		s.info.Behind = counts[i]
	}
	infos := make([]SubscriptionInfo, len(all))
	for i, s := range all {
		infos[i] = s.info
	}
	return infos, nil
}

// beginSubscription takes the name and the place from a cursor, and starts reading the reader and the first change
// behind the place. The error is ErrCorrupt; the name is set if the key could be read.
func (v inspection) beginSubscription(s *subscribed, row kv.KV) error {
	key, err := v.keys.parse(row.Key)
	if err != nil {
		return err
	}
	s.info.Name = key.field
	p, err := rec.UnpackCursor(row.Key, row.Value)
	if err != nil {
		return err
	}
	s.behind = kv.KeyRange{Begin: v.keys.absolute(p.From), End: v.keys.section(nameChange).End}
	s.first = v.read.GetRange(s.behind.Selectors(), kv.RangeOptions{Limit: 1})
	s.readerKey = v.keys.reader(s.info.Name)
	s.reader = v.read.Get(s.readerKey)
	return nil
}

// waitSubscription waits for the reads of a subscription and sets Owner, Until and Next. some reports whether there are
// changes that it has not seen, so that they must be counted. A holder or a change that cannot be read becomes the Err
// of the subscription, and the other fields are set.
func (v inspection) waitSubscription(s *subscribed) (some bool, err error) {
	r, _, err := waitRow(v.ctx, s.reader, "reader", s.readerKey, rec.UnpackReader)
	switch {
	case v.skipsRow(err):
		s.info.Err = err
	case err != nil:
		return false, err
	case r.EndMS > v.nowMS:
		s.info.Owner, s.info.Until = r.Owner, fromMillis(r.EndMS)
	}
	rows, err := s.first.Wait(v.ctx)
	if err != nil {
		return false, fmt.Errorf("read changes: %w", err)
	}
	if len(rows) == 0 {
		return false, nil
	}
	ms, _, err := rec.UnpackChanges(rows[0].Key, rows[0].Value)
	if v.skipsRow(err) {
		s.info.Err = errors.Join(s.info.Err, err)
		return true, nil
	}
	s.info.Next = fromMillis(ms)
	return true, nil
}

// Unsubscribe removes a subscription with its place: it clears the keys cursor and reader. A call of Subscribe that
// still runs continues as a new subscription.
//
// Errors: ErrNoSubscription, *LimitError, ErrInvalidUTF8, ErrNoQueue, ErrClosed, and the engine's.
func (a Admin) Unsubscribe(ctx context.Context, name string) error {
	return a.act(ctx, VerbUnsubscribe, nil, ID{}, func(ctx context.Context) (int, error) {
		return 0, a.q.unsubscribe(ctx, name)
	})
}

// unsubscribe is Unsubscribe without the hooks. It reads the cursor with a conflict, and runs once even if the outcome
// of its commit is unknown.
func (q *Queue) unsubscribe(ctx context.Context, name string) error {
	if err := checkSubscription(name); err != nil {
		return err
	}
	keys := q.keys
	return q.onceTx(ctx, func(tx kv.Tx) error {
		v, err := tx.Get(keys.cursor(name)).Wait(ctx)
		if err != nil {
			return fmt.Errorf("read cursor: %w", err)
		}
		if v == nil {
			return fmt.Errorf("%w: %q", ErrNoSubscription, name)
		}
		tx.Clear(keys.cursor(name))
		tx.Clear(keys.reader(name))
		return nil
	})
}

// The lists as iterators. Each reads a page when the loop comes there, and begins again when ranged over again, with
// the options of the call. Each entry is true of a moment, the list is not.

// AllDeadLetters lists dead letters as DeadLetters does, page after page; o.Limit is the size of a page. It reads the
// keys dead and part. A loop may end at any letter. The loop must check the error of each pair: an error is the last
// pair, with no letter.
func (a Admin) AllDeadLetters(ctx context.Context, o DeadOptions) iter.Seq2[DeadLetter, error] {
	o.IDs, o.Group, o.After = slices.Clone(o.IDs), own(o.Group), own(o.After)
	return func(yield func(DeadLetter, error) bool) {
		for o := o; ; {
			page, err := a.DeadLetters(ctx, o)
			if !give(page.Letters, err, yield) || page.Next == nil {
				return
			}
			o.After = page.Next
		}
	}
}

// AllArchived lists archived items as Archive does, page after page; o.Limit is the size of a page. It reads the keys
// archived, archive and part. A loop may end at any item. The loop must check the error of each pair: an error is the
// last pair, with no item.
func (a Admin) AllArchived(ctx context.Context, o ArchiveOptions) iter.Seq2[ArchivedItem, error] {
	o.Group, o.After = own(o.Group), own(o.After)
	return func(yield func(ArchivedItem, error) bool) {
		for o := o; ; {
			page, err := a.Archive(ctx, o)
			if !give(page.Items, err, yield) || page.Next == nil {
				return
			}
			o.After = page.Next
		}
	}
}

// AllGroups lists groups as Groups does, page after page; o.Limit is the size of a page. It reads the keys that Groups
// reads. A loop may end at any group. The loop must check the error of each pair: an error is the last pair, with no
// group.
func (a Admin) AllGroups(ctx context.Context, o GroupsOptions) iter.Seq2[GroupInfo, error] {
	o.Where, o.After = maps.Clone(o.Where), own(o.After)
	return func(yield func(GroupInfo, error) bool) {
		for o := o; ; {
			page, err := a.Groups(ctx, o)
			if !give(page.Groups, err, yield) || page.Next == nil {
				return
			}
			o.After = page.Next
		}
	}
}

// itemsPage is how many items of a group AllItems reads at a time: 5 MB with the largest values.
const itemsPage = 50

// AllItems lists the items of a group from its head on, held or not, with their attempts, as Peek does. It reads the
// keys item, part and attempt. With a template it lists the items that agree with the template, and reads their keys
// lane, too; nil = all.
//
// A loop may end at any item. An item which is enqueued while the loop runs is listed if the loop has not passed its
// place. The loop must check the error of each pair: an error is the last pair, with no item. An item that cannot be
// read gives such an error (ErrCorrupt), behind the items before it. Errors: those of Peek.
func (a Admin) AllItems(ctx context.Context, group string, where Template) iter.Seq2[Item, error] {
	packed, err := a.q.keys.whereGiven(where)
	if e := checkGroup(group); e != nil {
		err = e
	}
	return func(yield func(Item, error) bool) {
		if err != nil {
			give[Item](nil, wrap("items", err), yield)
			return
		}
		lane, page := lanes.Name(group, packed), itemsPage
		for after := (*ID)(nil); ; {
			items, err := a.q.peek(ctx, lane, after, page)
			if isCorrupt(err) && page > 1 { // a smaller page may end before the item that cannot be read
				page = halved(page, 1)
				continue
			}
			if !give(items, wrap("items", err), yield) || len(items) == 0 {
				return
			}
			after = &items[len(items)-1].ID
		}
	}
}
