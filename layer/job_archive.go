package layer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/rec"
)

// The archive of a queue keeps finished items, acked or taken, for as long as the configuration says. The transaction
// that finishes an item archives it under its own id, so that the items of a group lie together and in order. The parts
// of the item stay where they are. Each ack or take also leaves an entry that names its items. The entries lie in the
// order of completion (rec.Completion). Listings by time and the sweep use the entries.
//
// An ack reads items only if the queue has an archive. It reads the finished items at the same time as the lock. Then
// it writes each item again, and the entry.

// ArchiveFilter chooses the archived items which meet all conditions set. The zero value is refused by Replay
// (ErrOptions); Archive lists all for it, because a list only reads.
type ArchiveFilter struct {
	// All chooses all archived items. Not with anything else.
	All bool
	// Group, if not nil, limits the filter to this group; see OnlyGroup.
	Group *string
	// From and Before choose items finished at From or later, and earlier than Before, by the clocks of the finishing
	// workers. Zero = no bound.
	From, Before time.Time
}

// some reports whether the filter has a condition.
func (f *ArchiveFilter) some() bool { return f.Group != nil || !f.From.IsZero() || !f.Before.IsZero() }

// checkChosen is check for a replay, which must say what it chooses. ReplayOptions.After and Limit do not say that:
// they bound a replay.
func (f *ArchiveFilter) checkChosen() error {
	if !f.All && !f.some() {
		return fmt.Errorf("%w: an empty filter: set Group, From or Before, or All for all archived items", ErrOptions)
	}
	return f.check()
}

// check returns an error if conditions of the filter do not go together, or one of them is illegal.
func (f *ArchiveFilter) check() error {
	if f.All && f.some() {
		return fmt.Errorf("%w: all archived items, and something else to choose by", ErrOptions)
	}
	if f.Group != nil {
		if err := checkGroup(*f.Group); err != nil {
			return err
		}
	}
	return checkSpan("finished", f.From, f.Before)
}

// matches reports whether an item finished at completedMS (milliseconds) agrees with the times of the filter. The walk
// chooses by group.
func (f *ArchiveFilter) matches(completedMS int64) bool {
	return inSpan(completedMS, f.From, f.Before)
}

// ArchiveOptions say which archived items to list. The zero value lists the first 100.
type ArchiveOptions struct {
	ArchiveFilter
	// After is the item behind which the page begins: ArchivePage.Next of the previous page. With Group, After need not
	// be there any more. Without Group, if After has been swept since, everything finished earlier has been swept, too,
	// and the page begins with the oldest item left.
	After *ID
	// Limit is the number of items of a page, up to MaxBatch; 0 = 100.
	Limit int
	// Bodies asks for the bodies, too. A page then ends when the bodies exceed 1 MiB.
	Bodies bool
}

// ArchivedItem is an item which was finished.
type ArchivedItem struct {
	ID        ID
	Headers   map[string]string // nil if there are none
	Body      []byte            // nil if not asked for
	Size      int64             // of the body, bytes
	Enqueued  time.Time
	DedupID   string    // the dedup id in use; "sha256:…" if made from the body; "" = none
	Completed time.Time // by the clock of the finishing worker
	// Err says why the item cannot be read; nil if readable.
	Err error
}

// ArchivePage is a part of a list of archived items.
type ArchivePage struct {
	Items []ArchivedItem
	Next  *ID // the After of the next page; nil = there are no more
}

// Archive lists archived items: of a group in the order of the group, of all groups in the order of completion. Archive
// conflicts with nothing and changes nothing. Archive runs as many short transactions at batch priority as filling the
// page takes.
//
// Reads, at snapshot: with Group the keys archive of the group, otherwise the entries (archived) and the keys archive
// that they name; with Bodies also the parts.
//
// Errors: ErrOptions, ErrInvalidID, ErrInvalidUTF8, *LimitError, ErrNoQueue, ErrClosed, and the engine's; without Group
// ErrCorrupt if After names an item that cannot be read.
func (a Admin) Archive(ctx context.Context, o ArchiveOptions) (ArchivePage, error) {
	q := a.q
	list, err := newListPage[ArchivedItem](o.Limit, "items")
	if err != nil {
		return ArchivePage{}, wrap("archive", err)
	}
	walk, err := q.walkArchive(ctx, o.ArchiveFilter, o.After)
	if err != nil {
		return ArchivePage{}, wrap("archive", err)
	}
	var next *ID
	steps := job[archiveStep]{
		q: q, ctx: ctx, width: archiveRows, reads: true,
		attempt: func(tx kv.Tx, _ kv.Attempt, width int) (archiveStep, bool, error) {
			v := q.viewOf(ctx, tx.Snapshot())
			step, err := walk.read(&v, width)
			for i := 0; i < len(step.items) && err == nil && o.Bodies; i++ {
				err = step.items[i].readBody(&v)
			}
			return step, false, err
		},
		pass: func(step archiveStep) bool {
			for _, item := range step.items {
				if !list.add(item.ArchivedItem, item.Body) {
					next = lastReadable(list.rows)
					return false
				}
			}
			walk.pass(step)
			return !walk.ended
		},
	}
	if err := steps.run(!walk.ended); err != nil {
		return ArchivePage{}, wrap("archive", err)
	}
	return ArchivePage{Items: list.rows, Next: next}, nil
}

// lastReadable returns the id of the item behind which the next page begins: the last readable item of the page. The
// page must not be empty. Without a group, the next page finds its place by the time at which that item was finished.
// An unreadable item has no such time, so unreadable items at the end of a page are listed again. If no item can be
// read, lastReadable returns the last one.
func lastReadable(items []ArchivedItem) *ID {
	for i := range slices.Backward(items) {
		if items[i].Err == nil {
			return &items[i].ID
		}
	}
	return &items[len(items)-1].ID
}

// archivedRow is an archived item as read.
type archivedRow struct {
	ArchivedItem
	value []byte // the value that the item had in the queue; nil if unreadable
}

// readBody reads the body of the item, with its parts, at the version of v. If it cannot be read, readBody sets
// row.Err.
func (row *archivedRow) readBody(v *view) error {
	if row.value == nil {
		return nil
	}
	item, err := v.readItem(kv.KV{Key: v.keys.item(row.ID), Value: row.value})
	if errors.Is(err, ErrCorrupt) {
		row.Err = err
		return nil
	}
	row.Body = item.Body
	return err
}

const (
	// archiveRows bounds the archived items which a transaction reads: 5 MB with the largest values.
	archiveRows = 50
	// archiveSkew is how far the clocks of finishing workers may differ before a listing by time misses items.
	archiveSkew = time.Minute
)

// archiveWalk goes through the archived items chosen by a filter, a few per transaction. With a group in the filter,
// the walk reads the group's archived items (archive). Otherwise the walk reads the entries (archived), which lie in
// the order of completion, and then the items that they name.
type archiveWalk struct {
	filter ArchiveFilter
	archivePlace
	end   []byte // behind the last key when the walk began
	until int64  // items finished after this place are left out; a group's keys are not in order of completion
}

// archivePlace is how far a walk has come.
type archivePlace struct {
	begin kv.KeySelector // of the keys not read yet
	skip  int            // items of the first entry already passed
	ended bool           // there are no more items
}

// archiveStep is the result of one transaction of a walk, with the place where the walk goes on.
type archiveStep struct {
	archivePlace
	items   []archivedRow // the chosen items
	last    *ID           // the last item looked at behind which another walk can begin; nil = none
	scanned int           // how many items were looked at
}

// pass moves the walk behind a step whose transaction is done.
func (w *archiveWalk) pass(s archiveStep) { w.archivePlace = s.archivePlace }

// walkArchive returns a walk through the archived items chosen by f, behind the item after; nil = from the first on. It
// finds the begin and the end of the walk in a transaction of its own, which only reads.
func (q *Queue) walkArchive(ctx context.Context, f ArchiveFilter, after *ID) (*archiveWalk, error) {
	if err := f.check(); err != nil {
		return nil, err
	}
	if err := checkAfter(f.Group, after); err != nil {
		return nil, err
	}
	w := &archiveWalk{filter: f}
	err := q.readOnly(ctx, q.batchOptions(), func(tx kv.Tx, _ kv.Attempt) error {
		v := q.viewOf(ctx, tx.Snapshot())
		return w.place(&v, after)
	})
	return w, err
}

// place finds where the walk begins and ends, at the version of v. Items finished in transactions that begin later are
// not part of the walk. It reads the last key of the group's archived items (archive), or the last entry's (archived):
// the end. For the begin see placeBehind and seek.
func (w *archiveWalk) place(v *view, after *ID) error {
	keys := v.keys
	section := keys.section(nameArchived)
	if w.filter.Group != nil {
		section = keys.below(keys.startGroup(nameArchive, *w.filter.Group, 1))
	}
	version := v.read.ReadVersion()
	last, err := v.read.GetKey(kv.LastLessThan(section.End)).Wait(v.ctx)
	if err != nil {
		return fmt.Errorf("read archive: %w", err)
	}
	rv, err := version.Wait(v.ctx)
	if err != nil {
		return fmt.Errorf("read version: %w", err)
	}
	w.until = rv + v.q.offset
	w.end = kv.KeyAfter(last)
	w.archivePlace = archivePlace{begin: kv.FirstGreaterOrEqual(section.Begin), ended: !section.Contains(last)}
	switch {
	case w.ended:
	case w.filter.Group != nil:
		if after != nil {
			w.begin = kv.FirstGreaterThan(keys.archive(*after))
		}
	case after != nil:
		return w.placeBehind(v, *after)
	case !w.filter.From.IsZero():
		return w.seek(v, section, last)
	}
	return nil
}

// placeBehind begins the walk behind an item, in the order of completion. It reads the archived item (archive), whose
// value names its entry, and the entry (archived). If one of them was swept, the walk begins with the oldest entry. If
// the entry cannot be read, the walk begins behind it. If the item cannot be read, the error wraps ErrCorrupt.
func (w *archiveWalk) placeBehind(v *view, after ID) error {
	key := v.keys.archive(after)
	value, err := v.read.Get(key).Wait(v.ctx)
	if err != nil || value == nil {
		return err // swept, and so is everything finished before
	}
	a, err := rec.UnpackArchived(key, value)
	if err != nil {
		return err
	}
	entryKey := v.keys.archived(a.At)
	if value, err = v.read.Get(entryKey).Wait(v.ctx); err != nil || value == nil {
		return err
	}
	e, err := rec.UnpackArchiveEntry(entryKey, value)
	if v.skipsRow(err) {
		w.begin = kv.FirstGreaterThan(entryKey)
		return nil
	}
	w.begin, w.skip = kv.FirstGreaterOrEqual(entryKey), place(e.Items, after, after.Group)+1
	return nil
}

// seek begins the walk shortly before the first entry (archived) at or after the filter's From. Entries are sorted by
// place, a version of the database. Their times grow with their places except for clock skew, so a binary search finds
// the entry. section is the range of the entries, and last the key of the last one.
func (w *archiveWalk) seek(v *view, section kv.KeyRange, last []byte) error {
	keys, fromMS := v.keys, millis(w.filter.From.Add(-archiveSkew))
	at := func(place int64) kv.KeySelector {
		return kv.FirstGreaterOrEqual(keys.archived(rec.Completion{Place: place}))
	}
	p, err := keys.parse(last)
	if v.skipsRow(err) {
		return nil // from the oldest on
	}
	// All entries below low are too old. An entry at or behind high is not, or there is none.
	for low, high := int64(0), p.index+1; low < high; {
		middle := low + (high-low)/2
		rows, err := v.read.GetRange(kv.Range{Begin: at(middle), End: kv.FirstGreaterOrEqual(section.End)},
			kv.RangeOptions{Limit: 1}).Wait(v.ctx)
		if err != nil {
			return fmt.Errorf("read archive: %w", err)
		}
		if len(rows) == 0 {
			high = middle
			continue
		}
		if p, err = keys.parse(rows[0].Key); v.skipsRow(err) {
			high = middle
			continue
		}
		e, err := rec.UnpackArchiveEntry(rows[0].Key, rows[0].Value)
		if err == nil && e.CompletedMS < fromMS {
			low = max(middle, p.index) + 1
			w.begin = at(low)
		} else {
			high = middle
		}
	}
	return nil
}

// read reads the next items of the walk, up to limit, and returns those that the filter chooses. With a group in the
// filter it reads the group's items (archive). Otherwise it reads entries (archived), and the items that they name. The
// version and the conflicts are those of v. read does not move the walk: when the transaction is done, the caller must
// call pass.
func (w *archiveWalk) read(v *view, limit int) (archiveStep, error) {
	r := kv.Range{Begin: w.begin, End: kv.FirstGreaterOrEqual(w.end)}
	rows, err := v.read.GetRange(r, kv.RangeOptions{Limit: limit}).Wait(v.ctx)
	if err != nil {
		return archiveStep{}, fmt.Errorf("read archive: %w", err)
	}
	if w.filter.Group == nil {
		return w.readEntries(v, rows, limit)
	}
	s := archiveStep{archivePlace: archivePlace{begin: w.begin, ended: len(rows) < limit}, scanned: len(rows)}
	for _, row := range rows {
		s.begin = kv.FirstGreaterThan(row.Key)
		if err := w.add(v, &s, row); err != nil {
			return s, err
		}
	}
	return s, nil
}

// readEntries reads the items (archive) that entries (archived) name, up to limit items. rows are the next entries, up
// to limit. If an entry has more items than the step has room for, the next step begins with this entry and skips the
// items already read. The walk ends at an entry that is archiveSkew or more after the filter's Before. An entry that
// cannot be read, and an item that is gone, are left out.
func (w *archiveWalk) readEntries(v *view, rows []kv.KV, limit int) (archiveStep, error) {
	s := archiveStep{archivePlace: archivePlace{begin: w.begin, skip: w.skip, ended: len(rows) < limit}}
	if len(rows) > 0 && !bytes.Equal(rows[0].Key, w.begin.Key) {
		s.skip = 0 // the entry begun earlier has been swept
	}
	var keys [][]byte
	var values []kv.Future[[]byte]
	for _, row := range rows {
		e, err := rec.UnpackArchiveEntry(row.Key, row.Value)
		skip := s.skip
		if err == nil && len(values) == limit {
			s.ended = false
			break
		}
		s.begin, s.skip = kv.FirstGreaterThan(row.Key), 0
		if err != nil {
			continue // Check reports the corrupt entry
		}
		if !w.filter.Before.IsZero() && e.CompletedMS >= millis(w.filter.Before.Add(archiveSkew)) {
			s.ended = true
			break
		}
		items := e.Items[min(skip, len(e.Items)):]
		if !w.filter.matches(e.CompletedMS) {
			s.scanned += len(items)
			s.looked(e, items)
			continue
		}
		if n := limit - len(values); len(items) > n {
			s.begin, s.skip, s.ended = kv.FirstGreaterOrEqual(row.Key), skip+n, false
			items = items[:n]
		}
		s.scanned += len(items)
		for _, d := range items {
			key := v.keys.archive(idOf(d, e.Group))
			keys, values = append(keys, key), append(values, v.read.Get(key))
		}
		if s.skip > 0 {
			break
		}
	}
	for i := range values {
		value, err := values[i].Wait(v.ctx)
		if err != nil {
			return s, fmt.Errorf("read archived item: %w", err)
		}
		if value == nil {
			continue // Check reports the missing item
		}
		if err := w.add(v, &s, kv.KV{Key: keys[i], Value: value}); err != nil {
			return s, err
		}
	}
	return s, nil
}

// looked notes the last of items, which belong to the entry e and are not read, as the last item that the step has
// looked at.
func (s *archiveStep) looked(e *rec.ArchiveEntry, items []rec.Item) {
	if n := len(items); n > 0 {
		s.last = new(idOf(items[n-1], e.Group))
	}
}

// add adds an archived item to the step s if the filter chooses the item. row is its row in archive, which the caller
// has read: add reads no key. An item that was finished after the walk had begun (until) is left out, and so is a row
// with a key that cannot be read. An item with a value that cannot be read is added with Err. If its time of completion
// cannot be read either, it is added whatever the filter's times. add notes the item in s.last if a walk can begin
// behind it: without a group in the filter, only if its row can be read. The error is always nil.
func (w *archiveWalk) add(v *view, s *archiveStep, row kv.KV) error {
	p, err := v.keys.parse(row.Key)
	if v.skipsRow(err) {
		return nil
	}
	item := archivedRow{ArchivedItem: ArchivedItem{ID: p.itemID()}}
	a, err := rec.UnpackArchived(row.Key, row.Value)
	if err == nil || w.filter.Group != nil {
		s.last = new(item.ID)
	}
	if err == nil {
		if !w.filter.matches(a.CompletedMS) || a.At.Place > w.until {
			return nil
		}
		item.Completed = fromMillis(a.CompletedMS)
		var e rec.Envelope
		var body []byte
		if e, body, err = rec.OpenEnvelope(a.Item); err == nil {
			item.value, item.Headers, item.Enqueued = a.Item, e.Headers, fromMillis(e.EnqueuedMS)
			item.Size, item.DedupID = max(int64(len(body)), e.Size), e.DedupID
		} else {
			err = rec.Corrupt(row.Key, err)
		}
	}
	item.Err = err
	s.items = append(s.items, item)
	return nil
}

// ReplayOptions say how archived items are enqueued again. The zero value replays every chosen item.
type ReplayOptions struct {
	// After is the item behind which the replay begins: ReplayReport.Last of a stopped replay. See Replay for Before.
	After *ID
	// DryRun changes nothing and reports what would be done.
	DryRun bool
	// Limit is how many to replay at most; 0 = every chosen item.
	Limit int
	// Progress, if not nil, is called after each transaction with the report so far.
	Progress func(ReplayReport)
}

// ReplayReport is what a replay has done.
type ReplayReport struct {
	Scanned    int64 // archived items looked at
	Done       int64 // enqueued again; in a dry run: would be
	Unreadable int64 // chosen, and not readable: Archive with Bodies lists each with the reason
	// Last is the last item replayed or passed over whose row can be read; nil = none. Pass Last as After to continue.
	// If kv.MaybeCommitted of the error is true, items behind Last may be replayed, too: look for them first.
	Last *ID
	// More: there may be more behind Last, because the limit was reached.
	More bool
}

// replayBytes bounds what one transaction of a replay writes; a first item alone may have more.
const replayBytes = 1 << 20

// Replay enqueues the archived items that f chooses again. They are new messages at the tails of their groups, in the
// order of Archive. f must not be empty: ArchiveFilter.All chooses all items. ReplayHeader says which item each message
// repeats. The archive stays unchanged. Items finished in transactions begun after the replay are left out. Replayed
// messages are no duplicates of anything.
//
// Replay works in short transactions at batch priority, each all or none and done once. To continue a stopped replay,
// the caller must pass ReplayReport.Last as After, and the time of the first call as ArchiveFilter.Before. Otherwise
// items are enqueued twice: without Before also the replayed messages that were finished since. Conflicts: as an
// enqueue.
//
// After an error, the report says what was done before. If kv.MaybeCommitted of the error is true, the last step may be
// done, too. The caller must then look for messages whose ReplayHeader names an item behind Last, before it continues:
// otherwise items are enqueued twice.
//
// Reads the keys that Archive with Bodies reads, at snapshot; EnqueueTx lists the other keys.
//
// Errors: ErrOptions, ErrInvalidID, ErrInvalidUTF8, *LimitError, ErrNoQueue, ErrClosed, and the engine's; as of Archive
// ErrCorrupt for After.
func (a Admin) Replay(ctx context.Context, f ArchiveFilter, o ReplayOptions) (ReplayReport, error) {
	if o.DryRun {
		report, err := a.q.replay(ctx, f, o)
		return report, wrap("replay", err)
	}
	var report ReplayReport
	err := a.act(ctx, VerbReplay, f.Group, ID{}, func(ctx context.Context) (n int, err error) {
		report, err = a.q.replay(ctx, f, o)
		return int(report.Done), err
	})
	return report, err
}

// replay does the work of Replay. Each step enqueues the items that it has read at snapshot, and happens once. A dry
// run only reads.
func (q *Queue) replay(ctx context.Context, f ArchiveFilter, o ReplayOptions) (ReplayReport, error) {
	var report ReplayReport
	limit, err := limitOf(int64(o.Limit), "items")
	if err == nil {
		err = f.checkChosen()
	}
	if err != nil {
		return report, err
	}
	walk, err := q.walkArchive(ctx, f, o.After)
	if err != nil {
		return report, err
	}
	steps := job[replayStep]{
		q: q, ctx: ctx, width: archiveRows, once: true, reads: o.DryRun,
		attempt: func(tx kv.Tx, _ kv.Attempt, width int) (replayStep, bool, error) {
			r := replayStep{q: q, walk: walk, left: limit - report.Done, dryRun: o.DryRun}
			err := r.perform(ctx, tx, width)
			return r, !o.DryRun && r.done > 0, err
		},
		pass: func(r replayStep) bool {
			report.Scanned += int64(r.step.scanned)
			report.Done += r.done
			report.Unreadable += r.unreadable
			if r.step.last != nil {
				report.Last = r.step.last
			}
			if o.Progress != nil {
				o.Progress(report)
			}
			walk.pass(r.step)
			return !walk.ended && report.Done < limit
		},
	}
	if err := steps.run(!walk.ended); err != nil {
		return report, err
	}
	report.More = !walk.ended
	return report, nil
}

// replayStep is an attempt of a step of a replay, and its findings. onceFor keeps the findings of each attempt. If an
// earlier attempt turns out to have landed, the step has the findings of that attempt.
type replayStep struct {
	q      *Queue
	walk   *archiveWalk
	left   int64 // how many items the replay may still enqueue
	dryRun bool

	step       archiveStep
	done       int64 // items enqueued; in a dry run: would be
	unreadable int64 // items chosen that cannot be read
}

// perform is an attempt, with at most width archived items. It reads the items at snapshot, until they fit into one
// transaction, and enqueues them in tx: see txn.enqueue for the keys. In a dry run, or if there is no item to enqueue,
// it writes nothing, and returns ErrNoQueue if the queue is gone.
func (r *replayStep) perform(ctx context.Context, tx kv.Tx, width int) error {
	var err error
	v := r.q.viewOf(ctx, tx.Snapshot())
	var e *enqueuing
	for e == nil {
		if r.step, err = r.walk.read(&v, width); err != nil {
			return err
		}
		if e, width, err = r.choose(&v); err != nil {
			return err
		}
	}
	if r.dryRun || len(e.msgs) == 0 {
		return r.q.exists(ctx, tx)
	}
	e.randoms = r.q.random.uuids(len(e.msgs))
	return r.q.operate(ctx, tx, func(w *txn) error {
		w.count(countEnqueued, len(e.msgs))
		return w.enqueue(e)
	})
}

// choose makes the messages of the items in r.step, and counts them in r.done and r.unreadable. It reads their parts.
// Each message gets the header ReplayHeader, unless the queue has a facet of that name. If the items are too many for a
// transaction or for the limit, e is nil: the caller must read again, at most fit items.
func (r *replayStep) choose(v *view) (e *enqueuing, fit int, err error) {
	r.done, r.unreadable = 0, 0
	e = &enqueuing{redriven: true}
	size := 0
	for i := range r.step.items {
		row := &r.step.items[i]
		if err := row.readBody(v); err != nil {
			return nil, 0, err
		}
		size += len(row.Body) + 500
		if r.done == r.left || r.done > 0 && size > replayBytes {
			return nil, i, nil
		}
		if row.Err != nil {
			r.unreadable++
			continue
		}
		headers := maps.Clone(row.Headers)
		if headers == nil {
			headers = make(map[string]string, 1)
		}
		if !slices.Contains(v.keys.plan.Facets(), ReplayHeader) {
			headers[ReplayHeader] = row.ID.String()
		}
		e.msgs = append(e.msgs, Message{Group: row.ID.Group, Body: row.Body, Headers: headers})
		r.done++
	}
	return e, 0, nil
}
