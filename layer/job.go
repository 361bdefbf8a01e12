package layer

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/guard"
	"fdbfifo/layer/internal/rec"
)

// job is a large piece of work, done in short transactions (steps), one after the other. The steps have batch priority:
// the database serves other transactions first. A step takes up to width rows, and half as many after each failed
// attempt. When the step is done, pass reports it, and the job rests. T is the result of a step.
//
// Example: a sweep. T is a page of rows and how many rows were cleared. attempt reads the page and clears rows, and
// pass moves a cursor behind the page.
type job[T any] struct {
	q     *Queue
	ctx   context.Context
	width int // rows of the first attempt of a step
	// once makes each step happen once: the step writes a receipt, and an attempt after a commit of unknown outcome
	// looks for it. Without once, a step whose commit has landed may be done again. Example: a sweep, because clearing
	// twice does no harm.
	once bool
	// reads: the steps change nothing, so no rest follows a step. Without once, a step then runs in Queue.readOnly.
	reads bool
	// call names the operator's call that waits for the steps. They then happen once, have the priority of any call,
	// and do not rest. "" = batch priority.
	call string
	// attempt is one attempt of a step, with up to width rows. wrote means: the step must not be done twice. An attempt
	// must not change state that the next attempt depends on, because the attempt may fail: pass changes such state.
	attempt func(tx kv.Tx, a kv.Attempt, width int) (done T, wrote bool, err error)
	// pass reports a finished step and moves on. more means: there is another step to do.
	pass func(done T) (more bool)
}

// run does step after step while there is more to do; more says whether there is a first step. The first error of a
// step ends the job, and run returns it.
func (j *job[T]) run(more bool) error {
	for more {
		begun := time.Now()
		done, err := j.step()
		if err != nil {
			return err
		}
		took := time.Since(begun)
		if more = j.pass(done); more && !j.reads && j.call == "" {
			j.q.restAfter(j.ctx, took)
		}
	}
	return nil
}

// step does one step. If its transaction or a value in it was too large, so that nothing was committed, step tries
// again with half as many rows, down to one row.
func (j *job[T]) step() (done T, err error) {
	for width := j.width; ; width = halved(width, 1) {
		// The errors 2101 and 2103 say that nothing was committed: a narrower step may fit.
		if done, err = j.stepOf(width); !tooLarge(err) || width == 1 {
			return done, err
		}
	}
}

// stepOf runs one step, whose first attempt takes up to width rows and each later attempt half as many. So a step whose
// transaction is too long for a slow cluster, too large, or in conflict with others, succeeds in the end. The fields
// call, once and reads choose the kind of transaction. Without any of them the transaction may be done again after a
// commit of unknown outcome.
func (j *job[T]) stepOf(width int) (done T, err error) {
	attempt := func(tx kv.Tx, a kv.Attempt) (T, bool, error) { return j.attempt(tx, a, halved(width, a.N)) }
	body := func(tx kv.Tx, a kv.Attempt) (err error) {
		done, _, err = attempt(tx, a)
		return err
	}
	switch {
	case j.call != "":
		return onceFor(j.ctx, j.q, txFor(j.q, j.call), attempt)
	case j.once:
		return onceFor(j.ctx, j.q, j.q.batchOptions(), attempt)
	case j.reads:
		err = j.q.readOnly(j.ctx, j.q.batchOptions(), body)
	default:
		_, err = kv.Run(j.ctx, j.q.db, j.q.batchOptions(), body)
	}
	return done, err
}

// page is the result of a step that reads a range of keys.
type page struct {
	rows    []kv.KV // the rows that the step is done with, cleared or not
	width   int     // how many rows the step asked for
	cleared int64   // how many rows the step has cleared; of the archive, how many items
}

// eachPage runs the job j, whose steps go through a range of keys, page by page. It sets j.attempt and j.pass. visit
// gets the rows of a page, read at snapshot, and whether there may be more behind them. It returns how many rows it has
// cleared. A page may be empty. If its transaction is repeated, visit gets the page again, perhaps without its last
// rows. With j.once, a page of which visit has cleared no row gets no receipt, and may be done again after a commit of
// unknown outcome. passed gets the numbers of the rows of a page and of those cleared, and ends the job by returning
// true. name is the name of the rows in errors.
func eachPage(
	j job[page], of kv.KeyRange, name string,
	visit func(tx kv.Tx, rows []kv.KV, more bool) (cleared int64, err error),
	passed func(rows int, cleared int64) (enough bool),
) error {
	rest := newCursor(of)
	j.attempt = func(tx kv.Tx, _ kv.Attempt, width int) (page, bool, error) {
		rows, err := rest.read(tx.Snapshot(), width).Wait(j.ctx)
		if err != nil {
			return page{}, false, fmt.Errorf("read %s: %w", name, err)
		}
		cleared, err := visit(tx, rows, len(rows) == width)
		return page{rows: rows, width: width, cleared: cleared}, cleared > 0, err
	}
	j.pass = func(p page) bool {
		rest.passed(p.rows, p.width)
		enough := passed(len(p.rows), p.cleared)
		return !rest.exhausted && !enough
	}
	return j.run(true)
}

// restFactor is how many times its own length a step rests afterwards, up to longestRest. So a job of short steps takes
// at most a quarter of the time, and the remaining time is for claims of other groups. Batch priority alone is not
// enough: a cluster grants batch transactions until it comes near its own limits.
const restFactor = 3

// longestRest bounds a rest, so that a step which was slow for another reason does not delay the job for long.
const longestRest = time.Second

// restAfter rests after a step of length took. If ctx ends, restAfter returns early and without an error, because the
// next step reports the end.
func (q *Queue) restAfter(ctx context.Context, took time.Duration) {
	if d := min(restFactor*took, longestRest); d > 0 {
		wait(ctx, q, d, "rested")
	}
}

// checkSpan checks the bounds of a time: from is the first time allowed, and before is the first time that is too late.
// A zero bound does not count. If no time lies between the bounds, the error wraps ErrOptions. It names the time by
// what, for example "finished".
func checkSpan(what string, from, before time.Time) error {
	if !from.IsZero() && !before.IsZero() && !from.Before(before) {
		return fmt.Errorf("%w: %s from %s on, and before %s", ErrOptions, what, from, before)
	}
	return nil
}

// checkAfter checks the id of the item behind which a list begins; nil = the list begins with the first item. group, if
// not nil, is the only group of the list. If the item is of another group, the error wraps ErrOptions.
func checkAfter(group *string, after *ID) error {
	if after == nil {
		return nil
	}
	if err := checkID(*after); err != nil {
		return err
	}
	if group != nil && *group != after.Group {
		return fmt.Errorf("%w: group %q, behind an item of group %q", ErrOptions, *group, after.Group)
	}
	return nil
}

// inSpan reports whether a time in milliseconds lies within the bounds from and before, which checkSpan explains.
func inSpan(ms int64, from, before time.Time) bool {
	return (from.IsZero() || ms >= millis(from)) && (before.IsZero() || ms < millis(before))
}

// limitOf returns limit, the most rows that a call may change, or noLimit for 0. If limit is negative, the error is a
// *LimitError. unit names the rows.
func limitOf(limit int64, unit string) (int64, error) {
	if limit < 0 {
		return 0, &LimitError{What: "limit", Unit: unit, Got: limit, Max: noLimit}
	}
	return cmp.Or(limit, noLimit), nil
}

// defaultPage is the number of rows on a page of a list.
const defaultPage = 100

// listPage is a page of a list while it is filled. It has up to limit rows. The bodies together stay below
// 1 MiB, except that the first row is always taken.
type listPage[T any] struct {
	rows  []T
	limit int
	size  int // bytes of bodies
}

// newListPage returns an empty page. limit is the caller's; 0 = 100. unit names the rows in the *LimitError for a limit
// that is negative or above MaxBatch.
func newListPage[T any](limit int, unit string) (*listPage[T], error) {
	if limit < 0 || limit > MaxBatch {
		return nil, &LimitError{What: "page", Unit: unit, Got: int64(limit), Min: 1, Max: MaxBatch}
	}
	if limit == 0 {
		limit = defaultPage
	}
	return &listPage[T]{limit: limit}, nil
}

// add adds a row with the given body to the page. fits is false if the page has no room for the row, which is then the
// first of the next page. The caller must then add no further row.
func (p *listPage[T]) add(row T, body []byte) (fits bool) {
	n := len(p.rows)
	if p.size += len(body); n == p.limit || n > 0 && p.size > defaultMaxBytes {
		return false
	}
	p.rows = append(p.rows, row)
	return true
}

// A row that cannot be read stops only the group to which it leads, and stays until a purge by force or a sweep clears
// it.
//
// A purge by force is the last resort: after the items it goes through all rows of the queue, and clears each whose key
// or value has not the form of the key table. A purge of one group does so only with rows whose keys begin with the
// group: not with hints, timers and dedup entries. A sweep clears such hints, timers, requests and the like, because
// they can be written again from other rows. After a row is cleared, its group is found by the rows that can be read: a
// lane with items gets a hint, a lock its timer.

// clearUnreadable clears the rows in a range of keys that cannot be read, and those whose item is gone: see clearFrom.
// It works in a job. It calls passed with the number of rows that each step has cleared.
func (q *Queue) clearUnreadable(ctx context.Context, section kv.KeyRange, passed func(cleared int64)) error {
	return eachPage(job[page]{q: q, ctx: ctx, width: sweepPage}, section, "rows",
		func(tx kv.Tx, rows []kv.KV, _ bool) (int64, error) {
			w := q.txn(ctx, tx)
			cleared, err := clearFrom(w, rows)
			if err != nil {
				return 0, err
			}
			return cleared, w.finish()
		},
		func(_ int, cleared int64) bool {
			passed(cleared)
			return false
		})
}

// clearUnreadable is the end of a purge by force. It clears the unreadable rows in all sections of the purge, and
// counts them in the report.
func (p *purger) clearUnreadable() error {
	for _, section := range p.unreadableSections() {
		err := p.q.clearUnreadable(p.ctx, section, func(cleared int64) {
			if p.report.Unreadable += cleared; cleared > 0 && p.o.Progress != nil {
				p.o.Progress(p.report)
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// unreadableSections returns the ranges of keys in which a purge by force looks for unreadable rows. A purge of the
// queue looks at all keys of the queue. A purge of one group looks at all keys that begin with the group. Hints (ready,
// open), timers (timer, due), held keys, grants and dedup entries of the group do not.
func (p *purger) unreadableSections() []kv.KeyRange {
	if p.o.Group == nil {
		return []kv.KeyRange{p.q.keys.all()}
	}
	keys, group := p.q.keys, *p.o.Group
	var sections []kv.KeyRange
	// Parts come behind their owners, see ownerless.
	names := []string{
		nameItem, nameAttempt, nameDead, nameArchive, namePart, nameNamed, nameHold, nameLane, nameKept,
	}
	for _, name := range keys.present(names...) {
		sections = append(sections, keys.below(keys.startGroup(name, group, 1)))
	}
	for _, name := range []string{nameLock, nameMark} {
		sections = append(sections, keys.withLanes(name, group))
	}
	for _, name := range []string{nameState, namePace, namePurged} {
		sections = append(sections, kv.SingleKey(keys.startGroup(name, group, 0)))
	}
	return sections
}

// unreadable clears hints (ready, open, kept), timers (timer, due, held), requests for any group (request) and grants
// which cannot be read. named clears the other requests. unreadable reads all of these rows, so a sweep with Every does
// so only if the handle has met an unreadable row. See clearFrom for the conflicts, and leadAgain for the keys that are
// set instead.
func (s *sweeper) unreadable() error {
	if s.o.Every > 0 && s.q.unreadable.Load() == 0 {
		return nil
	}
	names := []string{nameReady, nameTimer, nameHeld, nameGrant, nameRequest, nameOpen, nameDue, nameKept}
	for _, section := range s.q.keys.sections(names...) {
		err := s.q.clearUnreadable(s.ctx, section, func(cleared int64) {
			s.report.Unreadable += cleared
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// clearFrom clears, of the rows of a page, those whose key or value cannot be read, and returns their number. It also
// clears a part, a lane key, a hold or an attempt record whose item is gone (ownerless). After each cleared row it
// makes the lane or heartbeat to which the row led findable again: see leadAgain. A cleared dead letter counts as
// discarded, and its parts go, too. With an item goes its attempt record. The fields of meta in keptMeta stay, even if
// their values cannot be read.
//
// Footprint, per part, lane key, hold and attempt record, cleared or not: a read conflict on its item. If a part has no
// item, also on the dead letter and the archived item of the same id. Per row cleared: a read conflict on the row. If
// the row leads to a lane: a read conflict on the lane's lock, a write conflict on the group's lock, and what leave
// reads if the lane has no lock. If it leads to a heartbeat: a read conflict on the beat.
func clearFrom(w *txn, rows []kv.KV) (cleared int64, err error) {
	for _, row := range rows {
		p, err := w.keys.parse(row.Key)
		if err == nil && p.name == nameMeta && keptMeta[p.field] {
			continue
		}
		bad := err != nil || isUnreadable(p, row)
		if !bad {
			if bad, err = ownerless(w, p); err != nil {
				return 0, err
			}
		}
		if !bad {
			continue
		}
		if err := guard.PurgeLock.Read(w.tx, kv.SingleKey(row.Key)); err != nil {
			return 0, err
		}
		switch {
		case err != nil: // the key says nothing
			w.tx.Clear(row.Key)
		case p.name == nameDead:
			if err := w.discard([]deadRow{{key: row.Key, letter: DeadLetter{ID: p.itemID()}}}); err != nil {
				return 0, err
			}
		case p.name == nameItem:
			w.tx.Clear(w.keys.attempt(p.itemID()))
			w.tx.Clear(row.Key)
		default:
			w.tx.Clear(row.Key)
		}
		cleared++
		if err := leadAgain(w, p); err != nil {
			return 0, err
		}
	}
	return cleared, nil
}

// keptMeta are the fields of meta that a purge keeps: those that say what the queue is, and the pause, which Resume
// ends.
var keptMeta = map[string]bool{
	metaFormat: true, metaOffset: true, metaConfig: true, metaDropped: true, metaPaused: true,
}

// isUnreadable reports whether the value of a row has not the form of its key, so that Describe has no words for it. p
// is the key taken apart. Of meta only the fields in metaWords have a known form: a later version may have others.
func isUnreadable(p parsedKey, row kv.KV) bool {
	words, known := descriptions[p.name]
	say := words.value
	if p.name == nameMeta {
		say, known = metaWords[p.field]
	}
	if !known {
		return false
	}
	_, err := say(row.Key, row.Value)
	return isCorrupt(err)
}

// ownerless reports whether a row belongs to an item that is gone. The value of an item names its parts, lanes and
// hold. So when an item is cleared whose value cannot be read, these and its attempts may stay. For such a row
// ownerless reads, with a conflict, the item; for a part also the dead letter and the archived item, which have parts
// too. All other rows have an owner, or need none.
func ownerless(w *txn, p parsedKey) (bool, error) {
	keys := w.keys
	owners := [][]byte{keys.item(p.itemID())}
	switch p.name {
	case nameLane, nameHold, nameAttempt:
	case namePart:
		owners = append(owners, keys.dead(p.itemID()), keys.archive(p.itemID()))
	default:
		return false, nil
	}
	for _, key := range owners {
		v, err := guard.PurgeLock.Get(w.tx, key).Wait(w.ctx)
		if err != nil || v != nil {
			return false, err
		}
	}
	return true, nil
}

// leadAgain makes the lane of a cleared row findable. It reads the lane's lock with a conflict, and adds a write
// conflict on the group's lock. Without a lock the lane has no mark, and its head gets a hint. With a lock, leadAgain
// writes the mark if the lock has one, and the timer (or held key) of its holding. If the lock cannot be read,
// leadAgain does nothing. If the row is a beat, or the timer of a beat, see beatAgain. A row of any other name leads to
// no lane, and leadAgain does nothing.
func leadAgain(w *txn, p parsedKey) error {
	switch p.name {
	case nameTimer:
		if p.id != uuid.Nil {
			return beatAgain(w, p.id)
		}
	case nameBeat:
		return beatAgain(w, p.id)
	case nameLock, nameHold, nameMark, nameReady, nameOpen, nameDue, nameHeld, nameGrant, nameKept, nameLane:
	default:
		return nil
	}
	r, err := w.guarded(guard.PurgeLock).readLock(p.lane)
	if isCorrupt(err) {
		return nil // a purge by force clears the lock, too, and then comes here for it; after a sweep Check reports it
	}
	if err != nil {
		return err
	}
	if err := w.excludeHolders(guard.PurgeExclude, p.group); err != nil {
		return err
	}
	if r == nil {
		w.tx.Clear(w.keys.mark(p.lane)) // of the lock that has just been cleared
		return w.free(p.lane)
	}
	if r.Mark() != nil {
		w.tx.Set(w.keys.mark(p.lane), nil)
	}
	if h := r.Holding(); h != nil {
		timeHolding(w, p.lane, h, h.FirstIndex())
	}
	return nil
}

// beatAgain makes a heartbeat (beat) findable again. clearFrom calls it after it has cleared a beat, or the timer of
// a beat, that could not be read. It reads the beat with a conflict, and sets the beat's timer (timer) at the beat's
// due time. If the beat is gone or cannot be read, beatAgain first writes a beat that is due now and marked as ended.
// Then receives end the claims by this heartbeat, as if the handle were dead. An unreadable beat is no error.
func beatAgain(w *txn, handle uuid.UUID) error {
	b, found, err := w.guarded(guard.BeatMove).readBeat(handle)
	if err != nil && !isCorrupt(err) {
		return err
	}
	if !found {
		b = rec.Beat{DueMS: w.nowMS, Ended: true}
		w.tx.Set(w.keys.beat(handle), b.Pack())
	}
	w.tx.Set(w.keys.beatTimer(b.DueMS, handle), rec.PackTimer(rec.KindBeat, 0))
	return nil
}

// raiseGrace is the time between the two steps of a raise of the shards, the parts over which hints and timers are
// spread: store_lane.go explains them. The reason is the same as for dropGrace: a search that begins after the second
// step uses a configuration that was read after the first.
const raiseGrace = dropGrace

// finishRaise takes the second step of a raise of the shards, if one is under way: writers use the new shards from then
// on. It reads the configuration (meta) and writes it in raiseFrom. finishRaise waits for raiseGrace before the step,
// and again if the number was raised further in that time. If it is interrupted nothing is lost: writers continue with
// the old shards, which every handle reads, and the next change of the configuration, or the next sweep, finishes the
// raise.
func (q *Queue) finishRaise(ctx context.Context) error {
	for {
		stored, err := q.stored(ctx)
		if err != nil || !stored.shards.isRising() {
			return err
		}
		// Several handles may finish the raise. With a random time the first of them spares the others a conflict.
		grace := time.NewTimer(raiseGrace + time.Duration(q.random.Float()*float64(raiseGrace/16)))
		select {
		case <-grace.C:
		case <-ctx.Done():
			grace.Stop()
			return kv.CauseOf(ctx)
		}
		if err := q.raiseFrom(ctx, stored.shards); err != nil {
			return err
		}
	}
}

// raiseFrom is the second step of a raise: it stores that writers use as many shards as readers read. If another raise
// has changed the number since the caller has read seen, or the step is done already, it writes nothing. So an attempt
// after a commit of unknown outcome finds the step done.
//
// Footprint: reads and writes the configuration, with conflicts.
func (q *Queue) raiseFrom(ctx context.Context, seen shardCounts) error {
	var now storedConfig
	_, err := kv.Run(ctx, q.db, txFor(q, "configure"), func(tx kv.Tx, _ kv.Attempt) (err error) {
		v := q.viewOf(ctx, guard.Configure.Reads(tx))
		if now, err = v.readStored(); err != nil {
			return err
		}
		if now.shards.read != seen.read || !now.shards.isRising() {
			return nil
		}
		now.shards.write = now.shards.read
		packed, err := now.pack()
		if err != nil {
			return err
		}
		tx.Set(q.keys.meta(metaConfig), packed)
		return nil
	})
	if err == nil {
		q.keys.shards.learn(now.shards)
	}
	return err
}
