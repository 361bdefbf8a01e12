package layer

import (
	"fmt"
	"time"

	"fdbfifo/layer/internal/lanes"
	"fdbfifo/layer/internal/rec"
)

// givingBack is the part of a settlement that returns items of the claim: all items that are left, or those from one
// item on.
type givingBack struct {
	o   NackOptions // a copy without Err
	why string      // the text of the caller's NackOptions.Err
}

// newGivingBack copies the options, and the ID to which From points. Of Err it keeps only the text. A release keeps no
// text, because it counts no attempt. If the text begins like that of an expired lease, newGivingBack puts "failed: "
// before it, because the item would otherwise count as suspect (rec.Attempt.Suspect). Example: the error of a lock
// service, "lease expired, held by node-2".
func newGivingBack(o *NackOptions) *givingBack {
	b := &givingBack{o: *o}
	if b.o.From, b.o.Err = own(o.From), nil; o.Err != nil && !o.Release {
		b.why = errorText(o.Err)
	}
	if (rec.Attempt{LastError: b.why}).Suspect() {
		b.why = "failed: " + b.why
	}
	return b
}

// check returns ErrOptions for options that do not go together, or not with the claim, and a *LimitError for the delay.
func (o *NackOptions) check(c *Claim) error {
	switch {
	case o.AtOnce && o.Delay != 0:
		return fmt.Errorf("%w: a delay of %s, and at once", ErrOptions, o.Delay)
	case o.From != nil && (!o.Release || o.AtOnce || o.Delay != 0):
		return fmt.Errorf("%w: From goes with Release, and without a delay", ErrOptions)
	case o.Reject != "" && (o.Release || o.AtOnce || o.Delay != 0):
		return fmt.Errorf("%w: reject, and deliver again", ErrOptions)
	case o.Behind && (!o.Release || o.From != nil || o.Delay != 0 || o.AtOnce):
		return fmt.Errorf("%w: Behind goes with Release, and without From or a delay", ErrOptions)
	case o.Behind && c.Hold != (ID{}):
		return fmt.Errorf("%w: Behind, and an item under a claim of its own", ErrOptions)
	}
	return checkDelay(o.Delay)
}

// stay returns how many of the unfinished items stay in the claim: those before NackOptions.From, and none without
// From. left are the unfinished items, in order. ErrNotInClaim means that From is not one of them.
func (b *givingBack) stay(left []rec.Item, group string) (int, error) {
	if b.o.From == nil {
		return 0, nil
	}
	n := place(left, *b.o.From, group)
	if n < 0 {
		return 0, fmt.Errorf("%w: %s", ErrNotInClaim, b.o.From)
	}
	return n, nil
}

// carryOut counts the failed attempt of the first item given back, unless the nack is a release, and ends the claim. It
// does not run if items stay in the claim (NackOptions.From). It sets the result for the caller. It waits for the first
// attempt row of the group from that item on: take has begun the read. If the failure makes the item a dead letter,
// deadLetterItem does the rest. Otherwise carryOut sets the attempt, unless the nack is a release, and the claim ends
// in one of these ways:
//
//   - The group is halted by this failure, or was paused before: the lock keeps only the mark.
//   - The group waits: the lock has a holding of kind "delay", with a timer at its end, and there is no hint. A release
//     then also sets the attempt, with the time at which the delay begins.
//   - The claim is of a single item (a hold): the hold and its timer are cleared, and txn.letGo makes the item findable
//     again.
//   - Else: the lock and its timer are cleared, and a hint of the group is set.
//
// A lock changes together with the keys that belong to it: see txn.put.
func (b *givingBack) carryOut(w *txn, s *settlement) error {
	run := &s.run
	group := s.claim.Group
	first := idOf(run.left[0], group)
	key := w.keys.attempt(first)
	record, some, err := run.tried.wait(&w.view)
	if err != nil {
		return err
	}
	m := run.held.Mark()
	if !b.o.Release {
		if b.why == "" && record.Suspect() {
			record.LastError = rec.Cut("failed; before, " + record.LastError) // the failed call had no error text
		}
		record = record.Failed(run.held.Claim().SinceMS, w.nowMS, b.why)
		w.count(countNacked, 1)
		f, err := w.judge(first, record, b.o.Reject)
		if err != nil {
			return err
		}
		if run.result.Follows = f.follows(); f.endsItem() {
			return deadLetterItem(w, s, &f)
		}
		if m, err = f.carryOut(w, m, ID{}); err != nil {
			return err
		}
	}
	if m != nil {
		w.end(s.lane, run.held, m)
		return nil
	}
	wait, err := b.wait(w, record.Count)
	if err != nil {
		return err
	}
	run.result.Waits = wait
	if ms := wait.Milliseconds(); ms > 0 {
		if b.o.Release { // no failure has stored when the delay began, and delayIsWrong needs the time
			record.LastMS = w.nowMS
			w.tx.Set(key, record.Pack())
		}
		// A delay has no holder: until its end every hint of the group is stale.
		delay := rec.Holding{Kind: rec.KindDelay, Token: run.held.Token, EndMS: w.nowMS + ms}
		w.put(s.lane, run.held, rec.HeldBy(delay, nil), first.Index)
		return nil
	}
	w.end(s.lane, run.held, nil)
	if lanes.IsHold(s.lane) {
		_, _, err = w.letGo(s.lane)
		return err
	}
	return b.rehint(w, first.Index, s.lane, hintedIn(record, some))
}

// rehint writes the hint (ready or open) of a group that the settlement has set free. attempts is the number for its
// value: how often the head has failed. With NackOptions.Behind the hint goes behind all groups that are ready now, as
// in a queue with RoundRobin (lastPlace). rehint then also notes, in noted.settled, that a receive of this transaction
// must not claim the group before older ones (byAge.keep).
func (b *givingBack) rehint(w *txn, headIndex int64, lane string, attempts int) error {
	if !b.o.Behind {
		_, err := w.rehint(headIndex, lane, attempts)
		return err
	}
	index, err := w.lastPlace(headIndex)
	if err != nil {
		return err
	}
	w.noted.settled[lane] = false
	w.hint(index, lane, attempts)
	return nil
}

// deadLetterItem makes the item that was tried a dead letter, and ends the claim. It clears the keys item, attempt and
// lane of the item and sets its key dead. It reads the item and receipts, and the attempts of the next item if that may
// be suspect, at snapshot. Afterwards the rest of the group is ready, with a hint, or marked, with the mark in the
// lock. If no item is left in the claim, settlement.leave looks for the next.
func deadLetterItem(w *txn, s *settlement, f *failure) error {
	if _, err := f.deadLetter(w); err != nil {
		return err
	}
	if !w.end(s.lane, s.run.held, s.run.held.Mark()) {
		return nil
	}
	if len(s.run.left) == 1 {
		return s.leave(w, nil)
	}
	attempts, next := 0, idOf(s.run.left[1], s.claim.Group)
	if leadsSuspects(s) {
		var err error
		if attempts, err = hintedOf(w, readRecords(&w.view, next)); err != nil {
			return err
		}
	}
	_, err := w.rehint(next.Index, s.lane, attempts)
	return err
}

// wait returns how long the group waits after so many failures of its head: NackOptions.Delay if the caller has set how
// long, and otherwise a random wait by the retry policy of the queue. A release has no other wait than Delay.
func (b *givingBack) wait(w *txn, failures int) (time.Duration, error) {
	if b.o.Delay > 0 || b.o.AtOnce || b.o.Release {
		return b.o.Delay, nil
	}
	config, err := w.config()
	return config.Retry.delay(failures, w.q.random.Float()), err
}
