package layer

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"fdbfifo/kv"
)

// DeadLetter is a dead-lettered item: failed for good, skipped, or past retention. The place in the group is kept.
type DeadLetter struct {
	ID       ID
	Headers  map[string]string // nil if there are none
	Body     []byte            // nil if not asked for
	Size     int64             // of the body, bytes
	Enqueued time.Time
	DedupID  string // the dedup id in use; "sha256:…" if made from the body; "" = none
	// Reason is the number of failed attempts, the text of the reject, who skipped the item, or the exceeded retention.
	Reason    string
	LastError string // of the last failed delivery with an error
	Attempts  int    // failed deliveries
	// FirstDelivered is when the delivery began that failed first, see Item.FirstDelivered; zero if none has failed.
	FirstDelivered time.Time
	First          time.Time
	Last           time.Time // failed delivery; zero if none has failed, see Skip
	DeadLettered   time.Time
}

// DeadFilter chooses the dead letters for which every set field holds. The zero value chooses all.
type DeadFilter struct {
	// IDs chooses the named letters alone, listed in key order whatever the order of IDs. Not with anything else.
	IDs []ID
	// Group, if not nil, is the only group; see OnlyGroup.
	Group *string
	// Text is a part of the reason or of the last error.
	Text string
	// From and Before bound the time of dead-lettering: from From on, and before Before. Zero = no bound.
	From, Before time.Time
}

func (f *DeadFilter) check() error {
	if len(f.IDs) > 0 && (f.Group != nil || f.Text != "" || !f.From.IsZero() || !f.Before.IsZero()) {
		return fmt.Errorf("%w: ids of dead letters, and something else to choose by", ErrOptions)
	}
	for _, id := range f.IDs {
		if err := checkID(id); err != nil {
			return err
		}
	}
	if f.Group != nil {
		if err := checkGroup(*f.Group); err != nil {
			return err
		}
	}
	return checkSpan("dead-lettered", f.From, f.Before)
}

// matches reports whether a letter is chosen by its contents.
func (f *DeadFilter) matches(d *dead) bool {
	return (f.Text == "" || strings.Contains(d.reason, f.Text) || strings.Contains(d.lastErr, f.Text)) &&
		inSpan(d.deadMS, f.From, f.Before)
}

// DeadOptions say which dead letters to list. The zero value lists the first DefaultPage.
type DeadOptions struct {
	DeadFilter
	// After is the letter behind which the page begins: DeadPage.Next of the page before.
	After *ID
	// Limit is the number of letters of a page, up to MaxBatch; 0 = DefaultPage.
	Limit int
	// Bodies asks for the bodies too. A page then ends when the bodies exceed DefaultMaxBytes.
	Bodies bool
}

// DeadPage is a part of a list of dead letters.
type DeadPage struct {
	Letters []DeadLetter
	Next    *ID // pass Next as After to go on; nil = there are no more
}

// deadRows bounds how many dead letters one transaction reads: at most 5 MB, with the largest values.
const deadRows = 50

// DeadLetters lists dead letters by group, and within a group in key order, without a conflict or a change. The list is
// read in as many short transactions as needed to fill the page, each at batch priority.
//
// Errors: ErrOptions, ErrInvalidID, *LimitError, ErrClosed, and the engine's. A letter which cannot be read is listed
// with the reason why.
func (a Admin) DeadLetters(ctx context.Context, o DeadOptions) (DeadPage, error) {
	q := a.q
	list, err := newListPage[DeadLetter](o.Limit, "dead letters")
	if err != nil {
		return DeadPage{}, wrap("dead letters", err)
	}
	if err := o.check(); err != nil {
		return DeadPage{}, wrap("dead letters", err)
	}
	walk := q.walkDead(&o.DeadFilter, o.After)
	var next *ID
	steps := job[deadStep]{
		q: q, ctx: ctx, width: deadRows, reads: true,
		attempt: func(tx kv.Tx, _ kv.Attempt, width int) (deadStep, bool, error) {
			step, err := walk.read(ctx, tx.Snapshot(), width)
			if err == nil && o.Bodies {
				err = q.readBodies(ctx, tx.Snapshot(), step.rows)
			}
			return step, false, err
		},
		pass: func(step deadStep) (bool, error) {
			for _, row := range step.rows {
				if !list.add(row.letter, row.letter.Body) {
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
		return DeadPage{}, wrap("dead letters", err)
	}
	return DeadPage{Letters: list.rows, Next: next}, nil
}

func (q *Queue) readBodies(ctx context.Context, tx kv.ReadTx, found []deadRow) error {
	for i := range found {
		row := &found[i]
		if row.dead == nil {
			continue
		}
		item, err := q.readItem(ctx, tx, kv.KV{Key: q.keys.item(row.letter.ID), Value: row.dead.item})
		if errors.Is(err, ErrCorrupt) {
			row.letter.Reason = err.Error()
			continue
		}
		if err != nil {
			return err
		}
		row.letter.Body = item.Body
	}
	return nil
}

// deadRow is a dead letter as read.
type deadRow struct {
	letter DeadLetter
	key    []byte
	value  []byte
	dead   *dead // nil if unreadable
	nth    int   // among the letters which the step has looked at, from 0
}

// deadWalk goes through the dead letters chosen by a filter, a few a transaction.
type deadWalk struct {
	q      *Queue
	filter *DeadFilter
	end    []byte
	after  []byte // the key behind which the walk goes on; nil = begin
	begin  []byte
	ids    []ID // of the filter, in order, each once
	idsAt  int  // how many ids the walk has looked at
	ended  bool
}

// deadStep is what one transaction of a walk has read. The walk passes a step when the transaction is done.
type deadStep struct {
	rows    []deadRow // chosen by the filter
	scanned int       // letters looked at, chosen or not
	missing []ID      // ids of no dead letter
	last    []byte    // the last key looked at; nil = none
	ids     int
	ended   bool
}

func (q *Queue) walkDead(f *DeadFilter, after *ID) *deadWalk {
	rows := q.keys.section(nameDead)
	if f.Group != nil {
		rows = q.keys.below(q.keys.startGroup(nameDead, *f.Group, 1))
	}
	w := &deadWalk{q: q, filter: f, begin: rows.Begin, end: rows.End, ids: slices.Clone(f.IDs)}
	slices.SortFunc(w.ids, func(a, b ID) int {
		return cmp.Or(
			cmp.Compare(a.Group, b.Group), cmp.Compare(a.Index, b.Index), bytes.Compare(a.Random[:], b.Random[:]),
		)
	})
	w.ids = slices.Compact(w.ids)
	if after == nil {
		return w
	}
	w.after = q.keys.dead(*after)
	w.idsAt = slices.Index(w.ids, *after) + 1
	w.ended = len(w.ids) > 0 && w.idsAt == len(w.ids)
	return w
}

// read reads up to limit letters. Whether the read conflicts depends on tx.
func (w *deadWalk) read(ctx context.Context, tx kv.ReadTx, limit int) (deadStep, error) {
	var step deadStep
	var err error
	var rows []kv.KV
	if len(w.ids) > 0 {
		rows, err = w.readIDs(ctx, tx, limit, &step)
	} else {
		rows, err = w.readRange(ctx, tx, limit, &step)
	}
	if err != nil {
		return step, err
	}
	step.scanned = len(rows)
	for i, row := range rows {
		p, err := w.q.keys.parse(row.Key)
		if err != nil {
			return step, err
		}
		r := deadRow{nth: i, key: row.Key, value: row.Value, letter: DeadLetter{ID: p.itemID()}}
		if err := r.open(); err != nil {
			r.dead, r.letter.Reason = nil, err.Error()
		} else if !w.filter.matches(r.dead) {
			continue
		}
		step.rows = append(step.rows, r)
	}
	return step, nil
}

func (w *deadWalk) readRange(ctx context.Context, tx kv.ReadTx, limit int, step *deadStep) ([]kv.KV, error) {
	begin := kv.FirstGreaterOrEqual(w.begin)
	if w.after != nil {
		begin = kv.FirstGreaterThan(w.after)
	}
	rows, err := tx.GetRange(
		kv.Range{Begin: begin, End: kv.FirstGreaterOrEqual(w.end)}, kv.RangeOptions{Limit: limit},
	).Wait(ctx)
	if err != nil {
		return nil, fmt.Errorf("read dead letters: %w", err)
	}
	if step.ended = len(rows) < limit; len(rows) > 0 {
		step.last = rows[len(rows)-1].Key
	}
	return rows, nil
}

func (w *deadWalk) readIDs(ctx context.Context, tx kv.ReadTx, limit int, step *deadStep) ([]kv.KV, error) {
	ids := w.ids[w.idsAt:]
	ids = ids[:min(limit, len(ids))]
	step.ids, step.ended = len(ids), w.idsAt+len(ids) == len(w.ids)
	values := make([]kv.Future[[]byte], len(ids))
	for i, id := range ids {
		values[i] = tx.Get(w.q.keys.dead(id))
	}
	var rows []kv.KV
	for i, id := range ids {
		v, err := values[i].Wait(ctx)
		if err != nil {
			return nil, fmt.Errorf("read dead letter: %w", err)
		}
		if v == nil {
			step.missing = append(step.missing, id)
			continue
		}
		rows = append(rows, kv.KV{Key: w.q.keys.dead(id), Value: v})
	}
	return rows, nil
}

// pass moves the walk behind a step.
func (w *deadWalk) pass(step deadStep) {
	w.idsAt += step.ids
	w.ended = step.ended
	if step.last != nil {
		w.after = step.last
	}
}

// open decodes the value.
func (r *deadRow) open() error {
	d, err := unpackDead(r.key, r.value)
	if err != nil {
		return err
	}
	e, body, err := openEnvelope(d.item)
	if err != nil {
		return corrupt(r.key, err)
	}
	r.dead = d
	r.letter = DeadLetter{
		ID: r.letter.ID, Headers: e.headers, Size: max(int64(len(body)), e.size), Enqueued: fromMillis(e.enqueuedMS),
		DedupID: e.dedupID, Reason: d.reason, LastError: d.lastErr, Attempts: d.attempts,
		DeadLettered: fromMillis(d.deadMS),
	}
	if d.attempts > 0 {
		r.letter.First, r.letter.Last = fromMillis(d.firstMS), fromMillis(d.lastMS)
		if d.deliveredMS > 0 {
			r.letter.FirstDelivered = fromMillis(d.deliveredMS)
		}
	}
	return nil
}
