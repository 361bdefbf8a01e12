package layer

import "fmt"

// failure is a failed delivery of the item that was tried, and what follows from it.
type failure struct {
	id     ID
	record attempt // with this failure
	fate   OnFailure
	reason string // why it is parked; "" = it is not, and is delivered again
}

// judge decides what follows from the failure that record counts already. rejected is the reason given, or "".
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

// endsItem and haltsGroup say what is parked, if anything is.
func (f *failure) endsItem() bool   { return f != nil && f.reason != "" && f.fate == DeadLetterItem }
func (f *failure) haltsGroup() bool { return f != nil && f.reason != "" && f.fate == HaltGroup }

// Follows is what a failed attempt has come to.
type Follows string

// What follows.
const (
	FollowsRetry      Follows = "retry"        // the item is delivered again
	FollowsDeadLetter Follows = "dead letter"  // the item has failed for good and was taken aside
	FollowsHalt       Follows = "group halted" // the item has failed for good, and its group is stopped
	FollowsRelease    Follows = "given back"   // uncounted: the item is delivered again
	FollowsUnknown    Follows = "unknown"      // it could not be given back: the lease runs out
)

func (f *failure) follows() Follows {
	switch {
	case f.endsItem():
		return FollowsDeadLetter
	case f.haltsGroup():
		return FollowsHalt
	}
	return FollowsRetry
}

// judgeTried is judge for the item that was tried under a claim, with one failure more. It writes nothing.
func (w *txn) judgeTried(group string, claim *holding, text string) (*failure, error) {
	id := claim.items[0].id(group)
	record, err := w.q.readAttempt(w.ctx, w.tx.Snapshot(), id)
	if err != nil {
		return nil, err
	}
	f, err := w.judge(id, record.failed(w.nowMS, text), "")
	return &f, err
}

// carryOut writes what follows, for a claim whose end the caller writes. It returns the mark that the group bears from
// then on: the mark that it bore, m, or the park that follows from the failure. The item that is spared is not parked,
// because the caller is about to change or remove it.
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

// write keeps the attempt with an item that stays in its group.
func (f *failure) write(w *txn) {
	w.tx.Set(w.q.keys.attempt(f.id), f.record.pack())
}

// mark is the mark of the group that is halted, in the place of the one that it bears, which may be nil.
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

// park moves the item to the dead letters; its parts stay where they are. It returns false if the item is not there.
//
// Footprint: reads the item at snapshot, under the conflict on the lock that the caller has; clears it and its
// attempts, writes the dead letter.
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

// putDeadLetter moves an item with that value to the dead letters, as f says.
func (w *txn) putDeadLetter(f *failure, value []byte) {
	keys := w.q.keys
	d := dead{
		reason: f.reason, lastErr: f.record.lastErr, attempts: f.record.count,
		firstMS: f.record.firstMS, lastMS: f.record.lastMS, deadMS: w.nowMS, item: value,
	}
	w.tx.Set(keys.dead(f.id), d.pack())
	w.tx.Clear(keys.item(f.id))
	w.tx.Clear(keys.attempt(f.id))
	w.count(countDeadLettered, 1)
}
