package layer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"fdbfifo/kv"
)

// ArchiveFilter chooses the archived items which meet all conditions set. The zero value chooses all.
type ArchiveFilter struct {
	// Group, if not nil, limits the filter to this group; see OnlyGroup.
	Group *string
	// From and Before choose items finished at From or later, and earlier than Before, by the clocks of the finishing
	// workers. Zero = no bound.
	From, Before time.Time
}

func (f *ArchiveFilter) check() error {
	if f.Group != nil {
		if err := checkGroup(*f.Group); err != nil {
			return err
		}
	}
	return checkSpan("finished", f.From, f.Before)
}

// matches reports whether an item finished at completedMS is chosen.
func (f *ArchiveFilter) matches(completedMS int64) bool {
	return inSpan(completedMS, f.From, f.Before)
}

// ArchiveOptions say which archived items to list. The zero value lists the first DefaultPage.
type ArchiveOptions struct {
	ArchiveFilter
	// After is the item behind which the page begins: ArchivePage.Next of the previous page. If After has been swept
	// since, everything finished earlier has been swept, too, and the page begins with the oldest item left.
	After *ID
	// Limit is the number of items of a page, up to MaxBatch; 0 = DefaultPage.
	Limit int
	// Bodies asks for the bodies, too. A page then ends when the bodies exceed DefaultMaxBytes.
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
// Errors: ErrOptions, ErrInvalidID, ErrInvalidUTF8, *LimitError, ErrClosed, and the engine's.
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
			step, err := walk.read(ctx, tx.Snapshot(), width)
			for i := 0; i < len(step.items) && err == nil && o.Bodies; i++ {
				err = q.readArchivedBody(ctx, tx.Snapshot(), &step.items[i])
			}
			return step, false, err
		},
		pass: func(step archiveStep) (bool, error) {
			for _, item := range step.items {
				if !list.add(item.ArchivedItem, item.Body) {
					last := list.rows[len(list.rows)-1].ID
					next = &last
					return false, nil
				}
			}
			walk.pass(step)
			return !walk.ended, nil
		},
	}
	if err := steps.run(!walk.ended); err != nil {
		return ArchivePage{}, wrap("archive", err)
	}
	return ArchivePage{Items: list.rows, Next: next}, nil
}

// archivedRow is an archived item as read.
type archivedRow struct {
	ArchivedItem
	value []byte // the item's; nil if unreadable
}

func (q *Queue) readArchivedBody(ctx context.Context, tx kv.ReadTx, row *archivedRow) error {
	if row.value == nil {
		return nil
	}
	item, err := q.readItem(ctx, tx, kv.KV{Key: q.keys.item(row.ID), Value: row.value})
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
// the walk reads the group's archived items; otherwise the walk reads the entries.
type archiveWalk struct {
	q      *Queue
	filter ArchiveFilter
	begin  kv.KeySelector
	end    []byte // behind the last key when the walk began
	until  int64  // items finished after this place are left out; a group's keys are not in order of completion
	skip   int    // items of the first entry already passed
	ended  bool
}

// archiveStep is the result of one transaction of a walk. The walk moves on (pass) when the transaction is done.
type archiveStep struct {
	items   []archivedRow // the chosen items
	last    *ID           // the last item looked at; nil = none
	scanned int
	begin   kv.KeySelector // where the walk goes on
	skip    int
	ended   bool
}

func (w *archiveWalk) pass(s archiveStep) { w.begin, w.skip, w.ended = s.begin, s.skip, s.ended }

func (q *Queue) walkArchive(ctx context.Context, f ArchiveFilter, after *ID) (*archiveWalk, error) {
	if err := checkArchiveWalk(&f, after); err != nil {
		return nil, err
	}
	w := &archiveWalk{q: q, filter: f}
	err := q.step(ctx, func(tx kv.Tx, _ kv.Attempt) error { return w.place(ctx, tx.Snapshot(), after) })
	return w, err
}

// checkArchiveWalk checks the filter and the start of a walk.
func checkArchiveWalk(f *ArchiveFilter, after *ID) error {
	if err := f.check(); err != nil || after == nil {
		return err
	}
	if err := checkID(*after); err != nil {
		return err
	}
	if f.Group != nil && *f.Group != after.Group {
		return fmt.Errorf("%w: group %q, behind an item of group %q", ErrOptions, *f.Group, after.Group)
	}
	return nil
}

// place finds where the walk begins and ends. Items finished later are not part of the walk.
func (w *archiveWalk) place(ctx context.Context, tx kv.ReadTx, after *ID) error {
	keys := w.q.keys
	section := keys.section(nameArchived)
	if w.filter.Group != nil {
		section = keys.below(keys.startGroup(nameArchive, *w.filter.Group, 1))
	}
	version := tx.ReadVersion()
	last, err := tx.GetKey(kv.LastLessThan(section.End)).Wait(ctx)
	if err != nil {
		return fmt.Errorf("read archive: %w", err)
	}
	rv, err := version.Wait(ctx)
	if err != nil {
		return fmt.Errorf("read version: %w", err)
	}
	w.until = rv + w.q.offset
	w.end, w.ended, w.skip = kv.KeyAfter(last), !section.Contains(last), 0
	w.begin = kv.FirstGreaterOrEqual(section.Begin)
	switch {
	case w.ended:
	case w.filter.Group != nil:
		if after != nil {
			w.begin = kv.FirstGreaterThan(keys.archive(*after))
		}
	case after != nil:
		return w.placeBehind(ctx, tx, *after)
	case !w.filter.From.IsZero():
		return w.seek(ctx, tx, section, last)
	}
	return nil
}

// placeBehind begins the walk behind an item, in the order of completion.
func (w *archiveWalk) placeBehind(ctx context.Context, tx kv.ReadTx, after ID) error {
	key := w.q.keys.archive(after)
	v, err := tx.Get(key).Wait(ctx)
	if err != nil || v == nil {
		return err // swept, and so is everything finished before
	}
	a, err := unpackArchived(key, v)
	if err != nil {
		return err
	}
	entryKey := w.q.keys.archived(a.at)
	if v, err = tx.Get(entryKey).Wait(ctx); err != nil || v == nil {
		return err
	}
	e, err := unpackArchiveEntry(entryKey, v)
	if err != nil {
		return err
	}
	w.begin, w.skip = kv.FirstGreaterOrEqual(entryKey), place(e.items, after, after.Group)+1
	return nil
}

// seek begins the walk shortly before the first entry at or after the filter's From. Entries are sorted by place, and
// their times grow with their places except for clock skew, so a binary search finds the entry.
func (w *archiveWalk) seek(ctx context.Context, tx kv.ReadTx, section kv.KeyRange, last []byte) error {
	keys, fromMS := w.q.keys, millis(w.filter.From.Add(-archiveSkew))
	at := func(place int64) kv.KeySelector {
		return kv.FirstGreaterOrEqual(keys.archived(completion{place: place}))
	}
	p, err := keys.parse(last)
	if err != nil {
		return err
	}
	// All entries below low are too old. An entry at or behind high is not, or there is none.
	for low, high := int64(0), p.index+1; low < high; {
		middle := low + (high-low)/2
		rows, err := tx.GetRange(kv.Range{Begin: at(middle), End: kv.FirstGreaterOrEqual(section.End)},
			kv.RangeOptions{Limit: 1}).Wait(ctx)
		if err != nil {
			return fmt.Errorf("read archive: %w", err)
		}
		if len(rows) == 0 {
			high = middle
			continue
		}
		if p, err = keys.parse(rows[0].Key); err != nil {
			return err
		}
		e, err := unpackArchiveEntry(rows[0].Key, rows[0].Value)
		if err == nil && e.completedMS < fromMS {
			low = max(middle, p.index) + 1
			w.begin = at(low)
		} else {
			high = middle
		}
	}
	return nil
}

// read reads the next items; at snapshot if tx is a snapshot.
func (w *archiveWalk) read(ctx context.Context, tx kv.ReadTx, limit int) (archiveStep, error) {
	r := kv.Range{Begin: w.begin, End: kv.FirstGreaterOrEqual(w.end)}
	rows, err := tx.GetRange(r, kv.RangeOptions{Limit: limit}).Wait(ctx)
	if err != nil {
		return archiveStep{}, fmt.Errorf("read archive: %w", err)
	}
	if w.filter.Group == nil {
		return w.readEntries(ctx, tx, rows, limit)
	}
	s := archiveStep{ended: len(rows) < limit, begin: w.begin, scanned: len(rows)}
	for _, row := range rows {
		s.begin = kv.FirstGreaterThan(row.Key)
		if err := w.add(&s, row); err != nil {
			return s, err
		}
	}
	return s, nil
}

// readEntries reads the items of entries, as many as one transaction may.
func (w *archiveWalk) readEntries(ctx context.Context, tx kv.ReadTx, rows []kv.KV, limit int) (archiveStep, error) {
	s := archiveStep{ended: len(rows) < limit, begin: w.begin, skip: w.skip}
	if len(rows) > 0 && !bytes.Equal(rows[0].Key, w.begin.Key) {
		s.skip = 0 // the entry begun earlier has been swept
	}
	var keys [][]byte
	var values []kv.Future[[]byte]
	for _, row := range rows {
		e, err := unpackArchiveEntry(row.Key, row.Value)
		skip := s.skip
		if err == nil && len(values) == limit {
			s.ended = false
			break
		}
		s.begin, s.skip = kv.FirstGreaterThan(row.Key), 0
		if err != nil {
			continue // Check reports the corrupt entry
		}
		if !w.filter.Before.IsZero() && e.completedMS >= millis(w.filter.Before.Add(archiveSkew)) {
			s.ended = true
			break
		}
		items := e.items[min(skip, len(e.items)):]
		if !w.filter.matches(e.completedMS) {
			s.scanned += len(items)
			s.looked(e, items)
			continue
		}
		if n := limit - len(values); len(items) > n {
			s.begin, s.skip, s.ended = kv.FirstGreaterOrEqual(row.Key), skip+n, false
			items = items[:n]
		}
		s.scanned += len(items)
		s.looked(e, items)
		for _, d := range items {
			key := w.q.keys.archive(d.id(e.group))
			keys, values = append(keys, key), append(values, tx.Get(key))
		}
		if s.skip > 0 {
			break
		}
	}
	for i := range values {
		v, err := values[i].Wait(ctx)
		if err != nil {
			return s, fmt.Errorf("read archived item: %w", err)
		}
		if v == nil {
			continue // Check reports the missing item
		}
		if err := w.add(&s, kv.KV{Key: keys[i], Value: v}); err != nil {
			return s, err
		}
	}
	return s, nil
}

// looked notes the last item a step has looked at.
func (s *archiveStep) looked(e *archiveEntry, items []delivered) {
	if n := len(items); n > 0 {
		last := items[n-1].id(e.group)
		s.last = &last
	}
}

// add adds an archived item to a step if the filter chooses the item.
func (w *archiveWalk) add(s *archiveStep, row kv.KV) error {
	p, err := w.q.keys.parse(row.Key)
	if err != nil {
		return err
	}
	item := archivedRow{ArchivedItem: ArchivedItem{ID: p.itemID()}}
	if w.filter.Group != nil {
		last := item.ID
		s.last = &last
	}
	a, err := unpackArchived(row.Key, row.Value)
	if err == nil {
		if !w.filter.matches(a.completedMS) || a.at.place > w.until {
			return nil
		}
		item.Completed = fromMillis(a.completedMS)
		var e envelope
		var body []byte
		if e, body, err = openEnvelope(a.item); err == nil {
			item.value, item.Headers, item.Enqueued = a.item, e.headers, fromMillis(e.enqueuedMS)
			item.Size, item.DedupID = max(int64(len(body)), e.size), e.dedupID
		} else {
			err = corrupt(row.Key, err)
		}
	}
	item.Err = err
	s.items = append(s.items, item)
	return nil
}
