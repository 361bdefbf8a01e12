package layer

import (
	"cmp"
	"context"
	"errors"
	"fmt"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/guard"
	"fdbfifo/layer/internal/rec"
)

// A pause keeps a group, or the whole queue, from being received and taken from, until the pause ends. Enqueues go on,
// and so do acks, nacks and extensions of earlier claims.
//
// A paused group has a mark in its lock, see group_mark.go, so the pause holds from its commit on. The pause of the
// queue is a field of meta. Handles follow the field as they follow the configuration: within a second.

// Keys have their names in the table of subspace.go. A lock has a holding (a claim, a grant or a retry delay), or a
// mark (a pause or a halt), or a claim with a mark. A lane is a whole group, the part of a group that a template
// matches, or a single item. Each has a lock of its own: that of a single item is its hold. A lane has a name, see
// package lanes, and that of a whole group is the group. The head is the first item of a lane. A lane without a lock is
// set free by txn.free: a hint then leads to its head (a key ready or open), or, if the lane is empty, the transaction
// has a read conflict on the range of its items. txn.leave has the exceptions.
//
// If an operation changes what counters count, it adds to them (key count). If it leaves a lane ready, it reads the
// requests, and wakes a handle whose receives wait (key wake). It has a read conflict on the field dropped of meta, and
// in a transaction of its own it also writes a receipt.
//
// Reads by w.read are at snapshot. A guard names a conflict, see package guard: w.guarded(guard.X) reads with a read
// conflict. operate runs an operation in a transaction. act tells the hooks of a call. onceFor and onceTx run a
// transaction so that its effect happens once.
//
// The plan of a queue (lanes.Plan) says which lanes its groups have. IsPlain means that each group is one lane.

// PauseOptions say who pauses, and why.
type PauseOptions struct {
	// By is who pauses, for people; "" = as Admin.As says. At most 256 bytes.
	By string
	// Reason is why, for people; at most 1,000 bytes.
	Reason string
	// Force takes the group from its holder, as ForceRelease does, without counting an attempt. Without Force a held
	// group is paused when its claim ends. Force does not apply to the whole queue.
	Force bool
	// Token, if not 0, is the token of the claim that the caller has seen. If the group is held under another, nothing
	// is paused, and the error wraps ErrChanged. A group that is not held is paused. With Force only, and not in a
	// queue with facets, Unordered or LeasePerItem.
	Token int64
}

// ResumeOptions say what is resumed. The zero value resumes whatever is paused or halted.
type ResumeOptions struct {
	// Mark, if not nil, is the mark that the caller has seen: if another stops the group, or the queue, now, nothing is
	// resumed, and the error wraps ErrChanged. So a resume of a pause does not end a halt which came since.
	//
	// In a queue with templates each lane of a group may have a mark of its own. Then only the marks that equal Mark
	// end. The others still stop their lanes, and Admin.Group returns one of them. The error wraps ErrChanged if no
	// mark of the group equals Mark.
	Mark *Mark
}

// seenMark returns ErrChanged if m, the present mark, is another than seen, the mark that the caller has seen. If seen
// is nil, any mark is right. Otherwise m must not be nil.
func seenMark(seen *Mark, m *rec.Mark) error {
	if seen == nil {
		return nil
	}
	now := *publicMark(m)
	if now.Status == seen.Status && now.By == seen.By && now.Reason == seen.Reason &&
		millis(now.Since) == millis(seen.Since) {
		return nil
	}
	return fmt.Errorf("%w: %s", ErrChanged, now)
}

// pauseMark returns the mark of a pause that begins now. An error means that the name of the author or the reason is
// too long or not UTF-8.
func (w *txn) pauseMark(by, reason string) (rec.Mark, error) {
	m := rec.Mark{Kind: rec.MarkPause, By: by, Reason: reason, SinceMS: w.nowMS}
	return m, checkByReason(by, reason)
}

// PauseGroup keeps a group, also an empty group, from being received and taken from, from the commit on. PauseGroup
// returns the group's mark: a group which was paused or halted before keeps the earlier mark. A delay of the whole
// group ends, so that the group is ready once resumed. A delay of a template's lane or of a single message stays.
//
// With Force, in a queue with templates, unordered receives or lease_per=item, the claims of a group may be more than a
// transaction can end. Then the first transaction pauses the group, and further transactions end the rest of the
// claims. After an error the caller must call PauseGroup again, because claims may be left. If another operator resumes
// the group before the last of them, PauseGroup returns ErrChanged. Then it ends no further claim, and the group stays
// resumed.
//
// PauseGroupTx lists the keys that PauseGroup reads and writes.
//
// Errors: ErrChanged, ErrOptions, *LimitError, ErrInvalidUTF8, ErrCorrupt, ErrNoQueue, ErrClosed, and the engine's.
func (a Admin) PauseGroup(ctx context.Context, group string, o PauseOptions) (Mark, error) {
	a.by = cmp.Or(o.By, a.by)
	return stepMark(ctx, a, VerbPause, group, func(tx kv.Tx, most int, s *markedStep) (markedStep, error) {
		return pauseGroup(ctx, a, tx, group, o, s, most)
	})
}

// PauseGroupTx pauses in the caller's transaction, and with Force ends all claims there. If the group has more than
// 1,000 locks of lanes and messages, Force is too much for one transaction: the error is then a *LimitError, and
// PauseGroup does it in steps. The caller must handle an unknown commit, for example with Once.
//
// Reads: the lock, with a conflict. With Force, in a queue with facets, Unordered or LeasePerItem also the locks of all
// lanes and all holds of the group, with a conflict, and the heads of the lanes whose claims end, with their attempts.
//
// Writes: the lock and the key mark of the group. A delay or grant of the group ends: clears its timer and the key
// grant. With Force, each claim ends: clears its lock, or leaves a mark in it, clears its timer (or held key), and
// without a mark sets the hint of its lane. In a queue with facets, Unordered or LeasePerItem the end of a claim
// touches more keys: see the end of SettleTx.
func (a Admin) PauseGroupTx(ctx context.Context, tx kv.Tx, group string, o PauseOptions) (Mark, error) {
	done, err := pauseGroup(ctx, a, tx, group, o, nil, allLanes)
	if err != nil {
		return Mark{}, wrap("pause", err)
	}
	return *done.mark, nil
}

// pauseGroup is one step of a pause, in the transaction tx. The first step, for which before is nil, marks the group
// (key lock and key mark). With Force it also ends the claim of the group. With Force each step ends the claims of up
// to most lanes, from the lock whose key is before.next on. done.next is where the next step begins; nil = there is
// none. before is the result of the step before. A further step fails with ErrChanged if the group no longer has the
// mark that the first step gave it. While the group has the mark no claim begins, so the lanes before done.next stay
// free.
func pauseGroup(
	ctx context.Context, a Admin, tx kv.Tx, group string, o PauseOptions, before *markedStep, most int,
) (done markedStep, err error) {
	if err := checkGroup(group); err != nil {
		return done, err
	}
	if o.Token != 0 && !o.Force {
		return done, fmt.Errorf("%w: a token without Force", ErrOptions)
	}
	if o.Token != 0 {
		if err := a.q.keys.plan.CheckOneHolder("Token", ErrOptions); err != nil {
			return done, err
		}
	}
	err = a.q.operate(ctx, tx, func(w *txn) error {
		m, err := w.pauseMark(cmp.Or(o.By, a.who()), o.Reason)
		if err != nil {
			return err
		}
		if err := w.sawToken(group, o.Token); err != nil {
			return err
		}
		var r *rec.Record
		var from []byte
		if before == nil {
			r, err = w.mark(group, m)
		} else if r, err = w.guarded(guard.MarkGroup).readLock(group); err == nil {
			from, err = before.next, stillMarked(r.Mark(), before.mark)
		}
		if err != nil {
			return err
		}
		if done.mark = publicMark(r.Mark()); !o.Force {
			return nil
		}
		if r.Claim() != nil {
			w.count(countForced, 1)
			w.end(group, r, r.Mark())
		}
		done.next, err = w.endParts(group, from, most)
		return err
	})
	return done, err
}

// stillMarked returns ErrChanged if a group has no mark, or another than given, which a call has given it. now is the
// mark that the group has; nil = none.
func stillMarked(now *rec.Mark, given *Mark) error {
	if now == nil {
		return fmt.Errorf("%w: the group was resumed", ErrChanged)
	}
	return seenMark(given, now)
}

// sawToken reads the lock of a group, with a conflict, and returns ErrChanged if the group is held under another token
// than the caller has seen. 0 = any token will do, and nothing is read. A group that is not held is right, too.
func (w *txn) sawToken(group string, seen int64) error {
	if seen == 0 {
		return nil
	}
	r, err := w.guarded(guard.MarkGroup).readLock(group)
	if c := r.Claim(); err == nil && c != nil && c.Token != seen {
		err = fmt.Errorf("%w: group %q is held under token %d, not %d", ErrChanged, group, c.Token, seen)
	}
	return err
}

// ResumeGroup lets a paused or halted group be received from again. The head of a halted group, which had failed for
// good, is then tried again. ResumeGroup returns the mark which the group had.
//
// In a queue with templates more lanes of the group may be halted than a transaction can resume. Then further
// transactions resume the rest. If another operator pauses the group before the last of them, the group stays paused.
// After an error the caller must call ResumeGroup again, because lanes may still be halted.
//
// ResumeGroupTx lists the keys that ResumeGroup reads and writes.
//
// Errors: ErrNotPaused, ErrChanged, *LimitError, ErrInvalidUTF8, ErrCorrupt, ErrNoQueue, ErrClosed, and the engine's.
func (a Admin) ResumeGroup(ctx context.Context, group string, o ResumeOptions) (Mark, error) {
	return stepMark(ctx, a, VerbResume, group, func(tx kv.Tx, most int, s *markedStep) (markedStep, error) {
		return resumeGroup(ctx, a, tx, group, o, s, most)
	})
}

// ResumeGroupTx resumes in the caller's transaction. With more than 1,000 halted lanes its error is a *LimitError, and
// ResumeGroup resumes them in steps. The caller must handle an unknown commit, for example with Once. With ErrChanged
// or ErrNotPaused nothing was changed.
//
// Reads: the lock, with a conflict; if the group is not held, the key of the head at snapshot, with a conflict on the
// whole group if the group is empty, and the head's attempts. In a queue with templates, unordered receives or
// lease_per=item also: the marks of the group, with a conflict on all locks of the group.
//
// Writes: clears the lock, or leaves a claim in it, and clears the key mark. If the group is not held, sets the hint of
// the head, and after a halt clears the head's attempts. In a queue with templates, unordered receives or
// lease_per=item it writes the same keys of each marked lane. A lock that is cleared there touches more keys, as at the
// end of a claim: see the end of SettleTx.
func (a Admin) ResumeGroupTx(ctx context.Context, tx kv.Tx, group string, o ResumeOptions) (Mark, error) {
	done, err := resumeGroup(ctx, a, tx, group, o, nil, allLanes)
	if err != nil {
		return Mark{}, wrap("resume", err)
	}
	return *done.mark, nil
}

// resumeGroup is one step of a resume, in the transaction tx. It removes the marks of up to most lanes that o allows,
// from the mark whose key is before.next on: see unmarkAll. With allLanes for most it looks at all marks or fails. The
// first step, for which before is nil, also removes the mark of the group itself. A later step leaves such a mark,
// because another operator has paused the group since. done.next is where the next step begins, so a lane that is
// halted again behind a step is not resumed a second time.
//
// The error is ErrNotPaused if no mark was found. It is ErrChanged if o refuses all marks.
func resumeGroup(
	ctx context.Context, a Admin, tx kv.Tx, group string, o ResumeOptions, before *markedStep, most int,
) (done markedStep, err error) {
	if err := checkGroup(group); err != nil {
		return done, err
	}
	err = a.q.operate(ctx, tx, func(w *txn) error {
		if before != nil {
			done = *before
		}
		old, next, err := w.unmarkAll(group, func(m *rec.Mark) error {
			err := seenMark(o.Mark, m)
			if err != nil {
				done.changed = err
			}
			return err
		}, before == nil, done.next, most)
		if err != nil {
			return err
		}
		if done.next = next; done.mark == nil {
			done.mark = publicMark(old)
		}
		switch {
		case done.mark != nil || next != nil:
			return nil
		case done.changed != nil:
			return done.changed
		}
		return fmt.Errorf("%w: group %q", ErrNotPaused, group)
	})
	return done, err
}

// markedStep is the result of a step of stepMark, together with the steps before it.
type markedStep struct {
	mark    *Mark  // given or removed first; nil = no mark was removed yet
	changed error  // of a resume: the group has a mark that the caller has not seen
	next    []byte // where the next step continues; nil = there is none
}

// stepMark runs an operation on a group and its lanes for the hooks, in as many transactions as are needed, and returns
// the mark in the result of the last. That result must have a mark. Each transaction happens once, and runs step, which
// changes up to most lanes. before is the result of the step before; nil = it is the first step. If a transaction
// becomes too large, the step runs again with fewer lanes.
func stepMark(
	ctx context.Context, a Admin, v Verb, group string,
	step func(tx kv.Tx, most int, before *markedStep) (markedStep, error),
) (m Mark, err error) {
	err = a.act(ctx, v, &group, ID{}, func(ctx context.Context) (int, error) {
		var before *markedStep
		steps := job[markedStep]{
			q: a.q, ctx: ctx, width: lanesOfStep, call: string(v),
			attempt: func(tx kv.Tx, _ kv.Attempt, width int) (done markedStep, wrote bool, err error) {
				done, err = step(tx, width, before)
				if limit, ok := errors.AsType[*LimitError](err); ok && limit.What == whatTransaction {
					err = fmt.Errorf("%w: %w", errTooLarge, err)
				}
				return done, true, err
			},
			pass: func(done markedStep) bool {
				before = &done
				return done.next != nil
			},
		}
		if err := steps.run(true); err != nil {
			return 0, err
		}
		m = *before.mark
		return 0, nil
	})
	return m, err
}

// Pause keeps the whole queue from being received and taken from: every handle follows within a second, and its
// receives wait or return nothing. Pause returns the pause in force: an earlier pause stays as it is.
//
// Reads and writes the field paused of meta. Pause conflicts with Pause, Resume and a drop of the queue only.
//
// Errors: ErrOptions for Force and Token, *LimitError, ErrInvalidUTF8, ErrNoQueue, ErrClosed, and the engine's.
func (a Admin) Pause(ctx context.Context, o PauseOptions) (Mark, error) {
	defer a.q.followed.forget()
	a.by = cmp.Or(o.By, a.by)
	return a.actMark(ctx, VerbPause, func(tx kv.Tx) (Mark, error) { return a.pause(ctx, tx, o) })
}

// pause does the work of Pause in the transaction tx, and returns the pause that is in force then: its own, or one that
// is there already and stays. After an error the result means nothing. pause reads and sets the field paused of meta.
// It conflicts with Pause and Resume of the queue, and with a drop.
func (a Admin) pause(ctx context.Context, tx kv.Tx, o PauseOptions) (Mark, error) {
	q := a.q
	if o.Force || o.Token != 0 {
		return Mark{}, fmt.Errorf("%w: Force and Token are for one group", ErrOptions)
	}
	var now rec.Mark
	err := q.operate(ctx, tx, func(w *txn) error {
		var err error
		if now, err = w.pauseMark(cmp.Or(o.By, a.who()), o.Reason); err != nil {
			return err
		}
		old, err := w.guarded(guard.QueuePause).readPause()
		if err != nil {
			return err
		}
		if old != nil {
			now = *old
			return nil
		}
		tx.Set(q.keys.meta(metaPaused), now.PackPause())
		return nil
	})
	return *publicMark(&now), err
}

// Resume ends the pause of the queue, returns the ended pause, and wakes waiting receives.
//
// Reads and clears the field paused of meta. Reads the requests of waiting receives, at snapshot, and touches their
// wake keys. Resume conflicts with Pause, Resume and a drop of the queue only.
//
// Errors: ErrNotPaused, ErrChanged, ErrNoQueue, ErrClosed, and the engine's.
func (a Admin) Resume(ctx context.Context, o ResumeOptions) (Mark, error) {
	defer a.q.followed.forget()
	return a.actMark(ctx, VerbResume, func(tx kv.Tx) (Mark, error) { return a.resume(ctx, tx, o) })
}

// resume is Resume in a transaction. It reads and clears the field paused of meta, and wakes the handles whose receives
// wait. It conflicts with Pause, Resume and a drop of the queue only.
func (a Admin) resume(ctx context.Context, tx kv.Tx, o ResumeOptions) (Mark, error) {
	q := a.q
	var was rec.Mark
	err := q.operate(ctx, tx, func(w *txn) error {
		old, err := w.guarded(guard.QueuePause).readPause()
		if err != nil {
			return err
		}
		if old == nil {
			return fmt.Errorf("%w: the queue", ErrNotPaused)
		}
		if err := seenMark(o.Mark, old); err != nil {
			return err
		}
		was = *old
		tx.Clear(q.keys.meta(metaPaused))
		return w.wakeAll()
	})
	return *publicMark(&was), err
}

// Paused returns the pause of the queue; paused is false if there is none.
//
// Reads, at snapshot: the field paused of meta, and the configuration if the handle's copy is old.
//
// Errors: ErrNoQueue, ErrClosed, and the engine's.
func (a Admin) Paused(ctx context.Context) (pause Mark, paused bool, err error) {
	m, err := viewFor(ctx, a.q, (*view).readPause)
	if err != nil || m == nil {
		return Mark{}, false, wrap("paused", err)
	}
	return *publicMark(m), true, nil
}

// actMark runs do, which returns the mark of the whole queue, in a transaction that happens once, and tells the hooks.
func (a Admin) actMark(ctx context.Context, v Verb, do func(tx kv.Tx) (Mark, error)) (m Mark, err error) {
	err = a.act(ctx, v, nil, ID{}, func(ctx context.Context) (int, error) {
		m, err = onceOf(ctx, a.q, txFor(a.q, string(v)), do)
		return 0, err
	})
	return m, err
}

// ForceReleaseOptions say how to take a group from the holder.
type ForceReleaseOptions struct {
	// Token, if not 0, is the token of the claim to end. A claim with another token stays, with ErrClaimLost.
	Token int64
	// CountAttempt counts a failed attempt for the first item of the claim, as Nack does. So the item may become a dead
	// letter, or the group may be halted. The items behind it count as not tried.
	CountAttempt bool
	// Reason is stored with the attempt; only with CountAttempt.
	Reason string
	// Where is the template of the claim, in a queue with facets; nil = a claim of the whole group.
	Where Template
	// Hold is the item of the claim of an item (Claim.Hold), an item of the group; zero = a claim of the whole group,
	// or of Where.
	Hold ID
}

// Holder is who held a group.
type Holder struct {
	Owner       string
	Token       int64 // of the ended claim
	Outstanding int   // items delivered and not acked
}

// ForceRelease takes a group from its holder. The group is then ready, or paused if it was paused during the claim, or
// halted if that follows from the counted attempt. The claim is lost from then on, whatever is left of the lease, and
// the next claim has a greater token. The holder learns of the loss at the next ack, nack or extend (ErrClaimLost);
// until then the handler may still be running. No attempt is counted unless o says so.
//
// ForceReleaseTx lists the keys that ForceRelease reads and writes.
//
// Errors: ErrNotHeld; ErrClaimLost if the claim has another token than o.Token, or if o.Hold is set and the queue has
// no claims of single items; ErrOptions, ErrInvalidID, *TemplateError, *LimitError, ErrInvalidUTF8, ErrCorrupt,
// ErrNoQueue, ErrClosed, and the engine's; after an error nothing was changed.
func (a Admin) ForceRelease(ctx context.Context, group string, o ForceReleaseOptions) (Holder, error) {
	var h Holder
	err := a.act(ctx, VerbForceRelease, &group, ID{}, func(ctx context.Context) (n int, err error) {
		h, err = onceOf(ctx, a.q, txFor(a.q, "force release"), func(tx kv.Tx) (Holder, error) {
			return a.ForceReleaseTx(ctx, tx, group, o)
		})
		return h.Outstanding, err
	})
	return h, err
}

// ForceReleaseTx is ForceRelease in the caller's transaction. The caller must handle an unknown commit, for example
// with Once.
//
// Reads: the lock (of a single item the hold), with a conflict; the key of the head at snapshot, with a conflict on the
// whole group if the group is empty; attempts. If the item becomes a dead letter, also the item and receipts.
//
// Writes: clears the lock, or leaves a mark in it, and clears its timer (or held key). Without a mark, sets the hint of
// the head, and after an unordered claim of a single item the item's key lane. With CountAttempt, also the attempts of
// the claim's first item, or its dead letter, or the halt of the group.
//
// The end of a claim touches more keys in a queue with facets, Unordered or LeasePerItem: see the end of SettleTx. With
// Unordered the end of a claim of a single item reads the item, and not the head. With LeasePerItem it adds a write
// conflict on the group's lock, and the hint is the group's.
func (a Admin) ForceReleaseTx(ctx context.Context, tx kv.Tx, group string, o ForceReleaseOptions) (Holder, error) {
	q := a.q
	if err := checkGroup(group); err != nil {
		return Holder{}, wrap("force release", err)
	}
	if err := checkByReason(a.by, ""); err != nil {
		return Holder{}, wrap("force release", err)
	}
	if o.Reason != "" && !o.CountAttempt {
		return Holder{}, wrap("force release",
			fmt.Errorf("%w: a reason without an attempt to keep it with", ErrOptions))
	}
	if o.Hold != (ID{}) && (o.Where != nil || o.Hold.Group != group) {
		return Holder{}, wrap("force release",
			fmt.Errorf("%w: the claim of message %q is of no template, and of its own group", ErrOptions, o.Hold))
	}
	claim := &Claim{Group: group, Where: o.Where, Hold: o.Hold}
	lane, err := claim.lane(q)
	if err != nil {
		return Holder{}, wrap("force release", err)
	}
	what, _ := claim.words()
	var h Holder
	err = q.operate(ctx, tx, func(w *txn) error {
		r, err := w.guarded(guard.ForceLock).readLock(lane)
		if err != nil {
			return err
		}
		c := r.Claim()
		if c == nil {
			return fmt.Errorf("%w: %s", ErrNotHeld, what)
		}
		if o.Token != 0 && o.Token != c.Token {
			return fmt.Errorf("%w: %s is held under token %d, not %d", ErrClaimLost, what, c.Token, o.Token)
		}
		h = Holder{Owner: c.Owner, Token: c.Token, Outstanding: len(c.Items)}
		w.count(countForced, 1)
		m := r.Mark()
		if o.CountAttempt && len(c.Items) > 0 { // a damaged claim may have none
			text := "released by " + cmp.Or(a.by, "force") + ", held by " + c.Owner
			if o.Reason != "" {
				text += ": " + o.Reason
			}
			f, err := w.judgeTried(lane, c, text)
			if err != nil {
				return err
			}
			if m, err = f.carryOut(w, m, ID{}); err != nil {
				return err
			}
		}
		if !w.end(lane, r, m) {
			return nil
		}
		return w.free(lane)
	})
	return h, wrap("force release", err)
}

// RetryOptions say what is retried. The zero value retries whatever the head is.
type RetryOptions struct {
	// Head, if not zero, is the head that the caller has seen: if another item is the head now, its delay stays, and
	// the error wraps ErrChanged.
	Head ID
	// Where is the template whose delay is meant, in a queue with facets; nil = the whole group.
	Where Template
}

// RetryNow ends the delay of a group which waits for a retry, or whose head is delayed, so that the group is ready at
// once.
//
// Reads: the lock, with a conflict. With lease_per=item, if there is no lock, also the hold of the head, with a
// conflict. The head and its attempts, at snapshot, with a conflict on the whole group if the group is empty. If the
// head is delayed, in a queue with templates, unordered receives or lease_per=item also the locks of the head's lanes
// and its hold, with a conflict on all locks of the group.
//
// Writes: clears the lock (or the hold) and its timer. If the head is delayed, sets the head, due now, clears its
// timers, and sets the hints of its other lanes. Sets the hint of the head, and adds a write conflict on the lock. A
// lock or hold that is cleared touches more keys in a queue with facets, Unordered or LeasePerItem: see the end of
// SettleTx.
//
// Errors: ErrNotDelayed, ErrChanged, *TemplateError, *LimitError, ErrInvalidUTF8, ErrCorrupt, ErrNoQueue, ErrClosed,
// and the engine's.
func (a Admin) RetryNow(ctx context.Context, group string, o RetryOptions) error {
	return a.act(ctx, VerbRetryNow, &group, o.Head, func(ctx context.Context) (int, error) {
		return 0, a.q.onceTx(ctx, func(tx kv.Tx) error { return a.retryNow(ctx, tx, group, o) })
	})
}

// retryNow is RetryNow in a transaction. It reads the lock of the lane, with a conflict, and the head. If items are
// claimed in turn (lease_per=item) and the group has no lock, the hold of the head counts instead. A retry delay ends:
// its lock and timer are cleared. A delayed head becomes due: the item is written again, and its timers are cleared.
// Then the lane is set free, with a write conflict on its lock. Without either delay the error is ErrNotDelayed.
func (a Admin) retryNow(ctx context.Context, tx kv.Tx, group string, o RetryOptions) error {
	q := a.q
	if err := checkGroup(group); err != nil {
		return err
	}
	lane, err := q.keys.laneAt(group, o.Where)
	if err != nil {
		return err
	}
	return q.operate(ctx, tx, func(w *txn) error {
		held, r, err := w.delayOf(lane)
		if err != nil {
			return err
		}
		if r != nil && !r.Is(rec.KindDelay) {
			return fmt.Errorf("%w: group %q", ErrNotDelayed, group)
		}
		if err := w.sawHead(lane, o.Head); err != nil {
			return err
		}
		early, err := w.hasten(lane)
		if err != nil {
			return err
		}
		if r == nil && !early {
			return fmt.Errorf("%w: group %q", ErrNotDelayed, group)
		}
		if r != nil {
			w.end(held, r, nil)
		}
		if err := w.excludeHolders(guard.RetryExclude, lane); err != nil {
			return err
		}
		return w.free(lane)
	})
}
