package layer

import "fmt"

// failure is a failed delivery of the item that was tried, and the consequences.
type failure struct {
	id     ID
	record attempt // including this failure
	fate   OnFailure
	reason string // why the item is dead-lettered or the group halted; "" = neither, and the item is delivered again
}

// judge decides what follows from the failure, which record counts already. rejected is the handler's reason, or "".
func (w *txn) judge(id ID, record attempt, rejected string) (failure, error) {
	f := failure{id: id, record: record}
	config, err := w.config()
	if err != nil {
		return f, err
	}
	f.fate = config.OnFailure
	switch {
	case f.fate == Block:
	case rejected != "":
		f.reason = cut(rejected)
	case config.MaxAttempts > 0 && record.count >= config.MaxAttempts:
		f.reason = countWords(record.count, "attempt") + " failed"
	}
	return f, nil
}

// endsItem and haltsGroup report whether the item is dead-lettered, or the group halted.
func (f *failure) endsItem() bool   { return f != nil && f.reason != "" && f.fate == DeadLetterItem }
func (f *failure) haltsGroup() bool { return f != nil && f.reason != "" && f.fate == HaltGroup }

func (f *failure) follows() Follows {
	switch {
	case f.endsItem():
		return FollowsDeadLetter
	case f.haltsGroup():
		return FollowsHalt
	}
	return FollowsRetry
}

// judgeTried is judge for the item tried under a claim, with another failure counted. judgeTried writes nothing.
func (w *txn) judgeTried(lane string, claim *holding, text string) (*failure, error) {
	id := claim.items[0].id(groupOf(lane))
	record, err := w.q.readAttempt(w.ctx, w.tx.Snapshot(), id)
	if err != nil {
		return nil, err
	}
	f, err := w.judge(id, record.failed(claim.sinceMS, w.nowMS, text), "")
	return &f, err
}

// carryOut writes the consequences, for a claim whose end the caller writes, and returns the group's mark from then on:
// the earlier mark m, or the halt which follows from the failure. The failure of the spared item has neither
// consequence, because the caller is about to change or remove the item.
func (f *failure) carryOut(w *txn, m *mark, spared ID) (*mark, error) {
	if f.id == spared {
		f.reason = ""
	}
	if f.endsItem() {
		parked, err := f.deadLetter(w)
		if err != nil || parked {
			return m, err
		}
	}
	if f.haltsGroup() {
		m = f.mark(w, m)
	}
	f.write(w)
	return m, nil
}

// write stores the attempt of an item that stays in its group.
func (f *failure) write(w *txn) {
	w.tx.Set(w.q.keys.attempt(f.id), f.record.pack())
}

// mark returns the mark of the halted group, which replaces the old mark, if any. An earlier halt stays.
func (f *failure) mark(w *txn, old *mark) *mark {
	if old != nil && old.kind == markHalt {
		return old
	}
	reason := f.reason
	if f.record.lastErr != "" {
		reason += ": " + f.record.lastErr
	}
	m := &mark{kind: markHalt, who: w.q.opts.Owner, reason: cut(reason), sinceMS: w.nowMS}
	w.countMark(old, -1)
	w.countMark(m, 1)
	return m
}

// deadLetter moves the item to the dead letters; the parts stay where they are. False means: the item is not there.
//
// Footprint: reads the item at snapshot, under the caller's conflict on the lock; clears the item and its attempts,
// writes the dead letter.
func (f *failure) deadLetter(w *txn) (bool, error) {
	keys := w.q.keys
	key := keys.item(f.id)
	value, err := w.tx.Snapshot().Get(key).Wait(w.ctx)
	if err != nil {
		return false, fmt.Errorf("read item: %w", err)
	}
	if value == nil {
		return false, nil
	}
	w.putDeadLetter(f, value)
	return true, nil
}

// putDeadLetter moves an item with the given value to the dead letters, with the reason and the attempts of f.
func (w *txn) putDeadLetter(f *failure, value []byte) {
	keys := w.q.keys
	d := dead{
		reason: f.reason, lastErr: f.record.lastErr, attempts: f.record.count,
		firstMS: f.record.firstMS, lastMS: f.record.lastMS, deadMS: w.nowMS, item: value,
		deliveredMS: f.record.deliveredMS,
	}
	w.tx.Set(keys.dead(f.id), d.pack())
	facets := w.q.keys.facetsIn(value)
	w.clearItem(f.id, facets)
	w.tx.Clear(keys.attempt(f.id))
	w.count(countDeadLettered, 1)
	w.change(ChangeDeadLettered, f.id, facets)
}
