package layer

import (
	"context"
	"fmt"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/lanes"
	"fdbfifo/layer/internal/rec"
)

// Keys have their names in the table of subspace.go. A lane is a whole group, the part of a group that a template
// matches, or a single item, and each has a lock of its own. A lane has a name, see package lanes, and that of a whole
// group is the group. An inspection is a look for people at one version of the database: all reads are at snapshot, and
// it writes nothing.

// Where says where a message is.
type Where string

// The places of a message.
const (
	WhereUnknown  Where = "unknown"   // no message is remembered under the dedup id
	WhereWaiting  Where = "waiting"   // in its group: not in flight, perhaps delayed
	WhereInFlight Where = "in_flight" // delivered under a claim, and not acked yet
	WhereDead     Where = "dead"      // among the dead letters
	WhereArchived Where = "archived"  // finished, and in the archive
	WhereGone     Where = "gone"      // acked, taken, cancelled, purged, discarded, or past retention
)

// Found is a message found by its dedup id. Where says which fields are set besides ID and Remembered.
type Found struct {
	Where Where
	ID    ID // zero if unknown
	// Remembered is until when messages with the dedup id are refused as duplicates, unless a purge comes before; zero
	// = as long as the message is in the queue or among the dead letters. In the past: the window is over, and no sweep
	// has come by yet.
	Remembered time.Time

	// Ahead is how many items of the group come before a waiting message; AheadMore: at least so many, the counting
	// stopped there.
	Ahead     int64
	AheadMore bool
	// DeliverAt is the earliest delivery of a waiting message; zero if never delayed. Admin.Why says what else the
	// message waits for.
	DeliverAt time.Time
	// Owner holds a message in flight, under Token, until Until. Until in the past: the next receive takes over.
	Owner string
	Token int64
	Until time.Time
	// Reason is why a dead letter has failed for good.
	Reason string
	// Completed is when an archived message was finished.
	Completed time.Time
}

// Find says where the message with a dedup id is, at this moment: for a program which knows its messages by ids of its
// own. The returned ID is what Reschedule, Replace and Admin.Cancel take. group is the message's group where duplicates
// are looked for within groups (DedupInGroup), and does not matter otherwise. Find conflicts with nothing, changes
// nothing, and reads a bounded number of keys.
//
// A message is found as long as its dedup id is remembered: with DedupForPending as long as the message is in the queue
// or among the dead letters, without it for the window. So a program that looks for messages with long delays must have
// a long window, or use DedupForPending. Of several messages sent under the id, one after the other, Find finds the
// last which was accepted.
//
// Reads, at snapshot: the entries of the dedup id, for the queue and for the group; the item, the dead letter and the
// archived item; the locks that may have the item, and the beat of a claim by heartbeat; and how many items come before
// it. Also the configuration and the pause (meta), unless the handle's copy is fresh.
//
// Errors: ErrOptions without a dedup id, *LimitError, ErrInvalidUTF8, ErrCorrupt, ErrNoQueue, ErrClosed, and the
// engine's. A message which is not found is no error: WhereUnknown.
func (q *Queue) Find(ctx context.Context, group, dedupID string) (Found, error) {
	if err := checkGroup(group); err != nil {
		return Found{}, wrap("find", err)
	}
	if err := checkDedupID(dedupID); err != nil {
		return Found{}, wrap("find", err)
	}
	if dedupID == "" {
		return Found{}, wrap("find", fmt.Errorf("%w: no dedup id", ErrOptions))
	}
	f, err := viewFor(ctx, q, func(v *view) (Found, error) {
		r, found, err := inspection{v}.lastRemembered(group, dedupID)
		if err != nil || !found {
			return Found{Where: WhereUnknown}, err
		}
		f := Found{ID: rememberedID(r)}
		if r.UntilMS > 0 {
			f.Remembered = fromMillis(r.UntilMS)
		}
		err = f.locate(inspection{v})
		return f, err
	})
	return f, wrap("find", err)
}

// lastRemembered reads the entry of a dedup id (key dedup), both that for the queue and that for the group, because the
// scope may have been changed. Of two entries the newer counts. found is false if there is none.
func (v inspection) lastRemembered(group, dedupID string) (last rec.DedupEntry, found bool, err error) {
	var entries []keyRead
	for _, inGroup := range []bool{false, true} {
		key := v.keys.dedupKey(inGroup, group, dedupID)
		entries = append(entries, keyRead{key, v.read.Get(key)})
	}
	for _, entry := range entries {
		r, is, err := waitRow(v.ctx, entry.read, "dedup entry", entry.key, rec.UnpackDedupEntry)
		if err != nil {
			return last, false, err
		}
		if is && (!found || r.Clock > last.Clock) {
			last, found = r, true
		}
	}
	return last, found, nil
}

// locate finds the message f.ID, and sets Where and the fields that belong to it. It reads the keys item, dead and
// archive of the id. If there is an item, it also reads the locks that may have it (claimOver), and may count the items
// before it (present). If the message is none of the three, it is gone.
func (f *Found) locate(v inspection) error {
	itemKey, deadKey, archiveKey := v.keys.item(f.ID), v.keys.dead(f.ID), v.keys.archive(f.ID)
	item, dead, finished := v.read.Get(itemKey), v.read.Get(deadKey), v.read.Get(archiveKey)
	value, err := item.Wait(v.ctx)
	if err != nil {
		return fmt.Errorf("read item: %w", err)
	}
	if value != nil {
		claim, err := v.claimOver(f.ID, value)
		if err != nil {
			return err
		}
		return f.present(v, claim, kv.KV{Key: itemKey, Value: value})
	}
	d, found, err := waitRow(v.ctx, dead, "dead letter", deadKey, rec.UnpackDeadLetter)
	if err != nil {
		return err
	}
	if found {
		f.Where, f.Reason = WhereDead, d.Reason
		return nil
	}
	a, found, err := waitRow(v.ctx, finished, "archived item", archiveKey, rec.UnpackArchived)
	if err != nil {
		return err
	}
	f.Where = WhereGone
	if found {
		f.Where, f.Completed = WhereArchived, fromMillis(a.CompletedMS)
	}
	return nil
}

// present sets the fields of f for a message that is in its group. row is the item. c is the claim that has the item:
// then the message is in flight. If c is nil, the message waits, and present counts the items of the group before it,
// up to whyCap.
func (f *Found) present(v inspection, c *rec.Holding, row kv.KV) error {
	if c != nil {
		f.Where, f.Owner, f.Token, f.Until = WhereInFlight, c.Owner, c.Token, fromMillis(c.EndMS)
		return nil
	}
	e, _, err := rec.OpenEnvelope(row.Value)
	if err != nil {
		return rec.Corrupt(row.Key, err)
	}
	f.Where = WhereWaiting
	f.DeliverAt = v.known().retro().deliverAt(&e)
	before := kv.KeyRange{Begin: v.keys.items(f.ID.Group).Begin, End: row.Key}
	f.Ahead, err = v.countKeys(before, whyCap)
	f.AheadMore = f.Ahead == whyCap
	return err
}

// claimOver returns the claim that has an item; nil = no claim has it. value is the item's. It reads the locks that may
// have the item: of the whole group, of the item's other lanes, and its hold, which is the lock of a single item. Of a
// claim by heartbeat it also reads the beat.
func (v inspection) claimOver(id ID, value []byte) (*rec.Holding, error) {
	all, err := v.recordsOver(id, v.keys.plan.FacetsIn(value))
	for _, o := range all {
		if c := o.record.Claim(); hasItem(c, id) {
			return c, nil
		}
	}
	return nil, err
}

// Peek returns up to max items of a group from its head on, held or not, with their attempts. Peek conflicts with
// nothing and changes nothing. max is 1 to MaxBatch. The bodies together have at most 1 MiB, except that the first body
// may be larger. A template chooses the items of the group that match it; nil = all items of the group.
//
// Reads, at snapshot: the items, their parts and their attempts. With a template also: the keys of its lane. Also the
// configuration and the pause (meta), unless the handle's copy is fresh.
//
// Errors: *LimitError, ErrInvalidUTF8, *TemplateError, ErrOptions, ErrCorrupt, ErrNoQueue, ErrClosed, and the engine's.
func (q *Queue) Peek(ctx context.Context, group string, max int, where Template) ([]Item, error) {
	if err := checkGroup(group); err != nil {
		return nil, wrap("peek", err)
	}
	if max < 1 || max > MaxBatch {
		return nil, wrap("peek", &LimitError{What: "peek", Unit: "items", Got: int64(max), Min: 1, Max: MaxBatch})
	}
	packed, err := q.keys.whereGiven(where)
	if err != nil {
		return nil, wrap("peek", err)
	}
	items, err := q.peek(ctx, lanes.Name(group, packed), nil, max)
	return items, wrap("peek", err)
}

// peek is Peek for the items of a lane behind after; nil = from the head on. It may return fewer items than max, see
// Peek. If it returns none, there are no more. It reads the items (of a lane that is no whole group the keys lane
// first), their parts and their attempts, at snapshot.
func (q *Queue) peek(ctx context.Context, lane string, after *ID, max int) ([]Item, error) {
	return viewFor(ctx, q, func(v *view) (items []Item, err error) {
		all := v.keys.items(lane)
		if after != nil {
			all.Begin = kv.KeyAfter(v.keys.laneItem(lane, *after))
		}
		rows, err := v.readItemsIn(v.read, lane, all, max).Wait(ctx)
		if err != nil {
			return nil, fmt.Errorf("read items: %w", err)
		}
		size := 0
		for _, row := range rows {
			item, err := v.readItem(row)
			if err != nil {
				return nil, err
			}
			if size += len(item.Body); len(items) > 0 && size > defaultMaxBytes {
				break
			}
			record, err := v.readAttempt(item.ID)
			if err != nil {
				return nil, err
			}
			item.failedBefore(record)
			items = append(items, item)
		}
		return items, nil
	})
}
