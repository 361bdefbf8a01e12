package layer

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"fdbfifo/internal/callback"
	"fdbfifo/kv"
	"fdbfifo/layer/internal/guard"
	"fdbfifo/layer/internal/line"
	"fdbfifo/layer/internal/rec"
)

// A subscription is a named place in the changes of a queue. A transaction that changes items writes a row under a key
// change, with its changes, or several rows if it has many. The rows are in the order of the commits. A place is the
// key of a row, and how many changes of that row are done.
//
// One process at a time holds a subscription, under a lease. It reads the changes behind the place, calls the handler,
// and then moves the place. Two keys belong to a subscription: the cursor, with the place and the token of the holder,
// and the reader, with the token again and the end of the lease. A heartbeat writes only the reader, a handler's
// transaction reads only the cursor. So a heartbeat does not make the transaction of a slow handler conflict, and a
// process which has lost the subscription cannot move the place.

const (
	// subscribePoll is the pause between two looks of a subscription which no change wakes, in case a watch was lost.
	subscribePoll = 10 * time.Second
	// closedLook is how often a waiting subscription looks whether its handle was closed.
	closedLook = 500 * time.Millisecond
	// handlerTxLife bounds a handler's call in a transaction: a transaction cannot commit 5 s after its first read.
	handlerTxLife = 4 * time.Second
	// storeLife bounds the store of a place while the subscription's context lasts.
	storeLife = 5 * time.Second
	// lastWordLife bounds the store of a place from the end of the subscription's context on.
	lastWordLife = 900 * time.Millisecond
	// leastPause and longestPause bound the pause after a handler's error, which doubles with each error in a row.
	leastPause   = 100 * time.Millisecond
	longestPause = 30 * time.Second
)

// subscription is a running call of Subscribe or SubscribeTx. Only the goroutine of the call uses it, except for the
// heartbeat, and for calls of a plain handler at the same time.
type subscription struct {
	q     *Queue
	name  string
	o     SubscribeOptions
	plain func(ctx context.Context, changes []Change) error           // the handler of Subscribe; else nil
	inTx  func(ctx context.Context, tx kv.Tx, changes []Change) error // the handler of SubscribeTx; else nil
	token uuid.UUID                                                   // of this call as a holder
	wants [changeKinds]bool                                           // by kind: the handler is told of such changes

	at     rec.Position // the place: the next change to read
	stored rec.Position // the place in the database, as far as this call knows
	width  int          // changes of the next call: less than o.Max after an error
	fails  int          // errors of the handler in a row
	silent bool         // the last store of a place since the take got no answer in time, and may still be committed
	taken  time.Time    // when the call began to take the subscription, by the monotonic clock
	endMS  int64        // the end of the lease with which the call took the subscription
	errs   int          // errors in a row which are not the handler's
	vain   int          // watches in a row that have ended at once, although there was no change
	told   bool         // the error of a failed watch was reported

	news callback.News // the reported errors that are not the handler's

	slip atomic.Pointer[error] // a mistake of a handler that has succeeded; nil = there is none

	met   []byte    // the reader of another process, with a lease end that no process may store; for outlived
	since time.Time // when this call met that reader first
}

// newSubscription checks the name and the options of a call of Subscribe, and returns its state. The caller sets the
// handler. The errors are ErrOptions, ErrInvalidUTF8, *LimitError, *ValueError and *TemplateError. It reads no keys.
func (q *Queue) newSubscription(name string, noHandler bool, o SubscribeOptions) (*subscription, error) {
	s := &subscription{q: q, name: name, o: o, token: q.random.uuid()}
	if noHandler {
		return nil, fmt.Errorf("%w: no handler", ErrOptions)
	}
	if err := checkSubscription(name); err != nil {
		return nil, err
	}
	if err := q.keys.checkWhere(o.Where); err != nil {
		return nil, err
	}
	s.o.Where = maps.Clone(o.Where)
	for _, k := range o.Kinds {
		if k < 0 || k >= changeKinds {
			return nil, &ValueError{What: "kind of change", Got: k.String(), Allowed: fmt.Sprint(changeKindNames)}
		}
		if k == ChangeLeft && o.Where == nil {
			return nil, fmt.Errorf("%w: changes of kind %s without a template", ErrOptions, k)
		}
		s.wants[k] = true
	}
	if o.Kinds == nil {
		for k := range s.wants {
			s.wants[k] = true
		}
	}
	s.o.Max, s.o.Parallel = cmp.Or(o.Max, defaultChanges), cmp.Or(o.Parallel, 1)
	s.o.Lease = cmp.Or(o.Lease, defaultLease)
	switch {
	case o.Kinds != nil && len(o.Kinds) == 0:
		return nil, fmt.Errorf("%w: an empty list of kinds: name some, or leave Kinds nil for all", ErrOptions)
	case s.o.Max < 1 || s.o.Max > MaxBatch:
		return nil, &LimitError{What: "max", Got: int64(s.o.Max), Min: 1, Max: MaxBatch}
	case s.o.Parallel < 1 || s.o.Parallel > maxParallel:
		return nil, &LimitError{What: "parallel", Got: int64(s.o.Parallel), Min: 1, Max: maxParallel}
	}
	if err := checkLease(s.o.Lease); err != nil {
		return nil, err
	}
	s.token = rec.ReaderToken(s.token, s.o.Lease)
	s.width = s.o.Max
	return s, nil
}

// run takes the subscription and serves it, again and again, until ctx ends, the handle is closed, or an error is final
// (for example ErrNoQueue). Subscribe lists the keys. At its end it releases the subscription, unless the queue is
// gone, or a store of the place may still be committed (silent). The result is nil if ctx has ended, ErrClosed if the
// handle was closed, or the final error. Every other error is reported: each error of the handler, and the same one of
// the database at most once in callback.NewsAgain.
func (s *subscription) run(ctx context.Context) error {
	defer s.q.readers.Delete(s.token)
	closed := error(nil)
	for ctx.Err() == nil {
		wait, err := s.acquire(ctx)
		if err == nil && wait == 0 {
			s.silent = false
			err = s.serve(ctx)
		}
		if errors.Is(err, ErrClosed) {
			closed = err
			break
		}
		if ctx.Err() == nil && final(err) { // after the end of ctx, err may be the cause of that end
			if !errors.Is(err, ErrNoQueue) {
				s.release(context.WithoutCancel(ctx))
			}
			return err
		}
		wait = s.waitAfter(wait, err)
		if ctx.Err() != nil {
			break // also if the subscription was taken, perhaps, at the very end
		}
		if err != nil && s.news.Has(kv.Code(err), err) {
			s.report(err)
		}
		if closed = s.pause(ctx, "subscription", wait); closed != nil {
			break
		}
	}
	s.release(context.WithoutCancel(ctx))
	if ctx.Err() != nil {
		return nil
	}
	return closed
}

// waitAfter returns how long the subscription waits until it tries to take its place again. Without an error, or after
// errNotHolder, another process holds the subscription: then the result is the argument wait, at least leastPause.
// After any other error waitAfter counts the error (errs), and the result grows with the errors in a row.
func (s *subscription) waitAfter(wait time.Duration, err error) time.Duration {
	if err == nil || errors.Is(err, errNotHolder) {
		return max(wait, leastPause)
	}
	s.errs++
	return max(min(leastPause<<min(s.errs, 10), line.ErrorPause), s.q.subscribers.Wait())
}

// final reports whether an error ends the call of Subscribe, instead of being reported to OnError.
func final(err error) bool {
	return errors.Is(err, ErrNoQueue) || errors.Is(err, ErrClosed) || errors.Is(err, ErrOptions) || isCorrupt(err)
}

// report tells OnError, or the log if there is no OnError, an error which does not end the subscription. It tells
// nothing of nil and of errNotHolder.
func (s *subscription) report(err error) {
	switch {
	case err == nil || errors.Is(err, errNotHolder):
	case s.o.OnError != nil:
		shield := callback.Shield(callback.Patience)
		failed := shield.Try("SubscribeOptions.OnError", func() { s.o.OnError(err) })
		callback.Report("subscription: OnError has failed", failed, "queue", s.q.name, "subscription", s.name)
	default:
		callback.Default(func(log *slog.Logger) {
			log.Warn("subscription: error", "queue", s.q.name, "subscription", s.name, "error", err)
		})
	}
}

// pause waits for d, or for the end of ctx. It returns ErrClosed as soon as the handle is closed; otherwise nil.
func (s *subscription) pause(ctx context.Context, who string, d time.Duration) error {
	_, err := s.pauseUntil(ctx, who, d, nil, nil)
	return err
}

// pauseUntil waits for d, for the end of ctx, or for woken, a watch in the database; nil = no watch. The wait also ends
// if over, which pauseUntil calls each closedLook, returns true; nil = it never does. failed is the error of the watch,
// if that has ended the wait. closed is ErrClosed if the handle was closed. who tells apart, for tests, the goroutines
// that pause at the same time.
func (s *subscription) pauseUntil(
	ctx context.Context, who string, d time.Duration, woken kv.Future[struct{}], over func() bool,
) (failed, closed error) {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var watch chan error
	if woken != nil {
		watch = make(chan error, 1)
		go func() {
			_, err := woken.Wait(ctx)
			watch <- err
		}()
	}
	look := time.NewTicker(closedLook)
	defer look.Stop()
	for {
		select {
		case failed = <-watch:
		case <-ctx.Done():
		case <-look.C:
			if s.closed() == nil && (over == nil || !over()) {
				continue
			}
		}
		what := "woken"
		if woken == nil || ctx.Err() != nil { // the end of ctx ends the wait for the watch, too
			what, failed = "paused", nil
		}
		s.q.yield(ctx, who+" "+what)
		return failed, s.closed()
	}
}

// closed returns ErrClosed if the handle was closed.
func (s *subscription) closed() error {
	if s.q.isClosed() {
		return ErrClosed
	}
	return nil
}

// errNotHolder: this call does not hold the subscription. Another process has taken it over, or the subscription was
// removed.
var errNotHolder = errors.New("the subscription is held by another process")

// errLeaseEnded: the lease of this call has expired because the database has failed or has not answered.
var errLeaseEnded = errors.New("the lease of the subscription has expired, it could not be extended")

// update runs fn in a transaction of the subscription's own. config is the queue's configuration, which the transaction
// reads if the handle has to look again. ErrNoQueue means that the queue was dropped. fn may run several times.
func (s *subscription) update(ctx context.Context, fn func(tx kv.Tx, config *following) error) error {
	if err := s.closed(); err != nil {
		return err
	}
	return updateWith(ctx, s, txFor(s.q, "subscription"), fn)
}

// updateWith is update with options of the transaction, also on a closed handle. It adds a read conflict on the mark of
// a drop, so that no key is written behind a drop of the queue.
func updateWith(
	ctx context.Context, s *subscription, o kv.TxOptions, fn func(tx kv.Tx, config *following) error,
) error {
	_, err := kv.Run(ctx, s.q.db, o, func(tx kv.Tx, _ kv.Attempt) error {
		follow := s.q.follow(tx)
		if err := fn(tx, follow); err != nil {
			return err
		}
		return s.q.guardReceiptDrop(ctx, tx, follow)
	})
	return err
}

// acquire tries to take the subscription, in a transaction of its own that runs take. wait 0 means that this call holds
// the subscription. Otherwise another process holds it, and the next try is due after wait. ErrOptions means that the
// queue keeps no changes.
func (s *subscription) acquire(ctx context.Context) (wait time.Duration, err error) {
	s.taken = time.Now()
	err = s.update(ctx, func(tx kv.Tx, follow *following) error {
		config, err := follow.wait(ctx)
		if err != nil {
			return err
		}
		if config.Changes == 0 {
			return fmt.Errorf("%w: queue %q keeps no changes: set changes", ErrOptions, s.q.name)
		}
		wait, err = s.take(ctx, tx)
		return err
	})
	return wait, err
}

// take is acquire in a transaction. If it takes the subscription, it sets at and stored to the stored place, or to the
// place of a new subscription. A repeated take, for example after a commit of unknown outcome, finds its own token.
//
// Footprint: reads cursor and reader with a conflict, and writes both, unless another process holds the subscription.
// For a new subscription it also reads as begin does.
func (s *subscription) take(ctx context.Context, tx kv.Tx) (wait time.Duration, err error) {
	cursorKey, readerKey := s.q.keys.cursor(s.name), s.q.keys.reader(s.name)
	cursorRead, readerRead := tx.Get(cursorKey), guard.SubscribeHold.Get(tx, readerKey)
	held, err := readerRead.Wait(ctx)
	if err != nil {
		return 0, fmt.Errorf("read reader: %w", err)
	}
	if held != nil {
		r, err := rec.UnpackReader(readerKey, held)
		if err != nil {
			return 0, err
		}
		if left := s.left(r); r.Token != s.token && left > 0 && !s.outlived(held, r) {
			return min(left, s.o.Lease, longestReader(&r), subscribePoll), nil // the holder may end before its lease
		}
	}
	p, found, err := waitRow(ctx, cursorRead, "cursor", cursorKey, rec.UnpackCursor)
	if err == nil && !found {
		p.Position, err = s.begin(ctx, tx)
	}
	if err != nil {
		return 0, err
	}
	s.at, s.stored = p.Position, p.Position
	tx.Set(cursorKey, (&rec.Cursor{Token: s.token, Position: s.at}).Pack())
	s.endMS = s.setReader(tx, 0)
	return 0, nil
}

// left returns what is left of a holder's lease, by the wall clock. If the holder is a call of this very handle, the
// monotonic clock counts if that leaves more. So a step of the wall clock takes the subscription from no call of the
// handle.
func (s *subscription) left(r rec.Reader) time.Duration {
	left := time.Duration(r.EndMS-s.q.nowMS()) * time.Millisecond
	if ends, own := s.q.readers.Load(r.Token); own {
		left = max(left, time.Until(ends.(time.Time)))
	}
	return left
}

// outlived reports whether the subscription may be taken from another process although its lease has not expired. held
// is the value of the reader, and r its content. It is so if the end of the lease is later than any process may store,
// and the reader has not changed for as long as that lease. A process that lives extends, whichever of the clocks is
// wrong.
func (s *subscription) outlived(held []byte, r rec.Reader) bool {
	if !tooLate(r.EndMS, s.q.nowMS(), longestReader(&r)) {
		return false
	}
	now := time.Now() // by the monotonic clock
	if !bytes.Equal(s.met, held) {
		s.met, s.since = bytes.Clone(held), now
	}
	return now.Sub(s.since) >= cmp.Or(leaseOf(&r), s.o.Lease)
}

// begin returns the place of a new subscription: behind the last row of changes or, with FromOldest, before the oldest.
// It reads the last key change and the field missed of meta, at snapshot.
func (s *subscription) begin(ctx context.Context, tx kv.Tx) (rec.Position, error) {
	keys := s.q.keys
	section := keys.section(nameChange)
	from := section.Begin
	missed, err := readMissed(ctx, keys, tx.Snapshot().Get(keys.meta(metaMissed)))
	if err != nil {
		return rec.Position{}, err
	}
	if missed != nil {
		from = kv.KeyAfter(keys.absolute(missed))
	}
	if !s.o.FromOldest {
		// A transaction that commits after this read version gets a greater stamp than all that is there.
		last, err := tx.Snapshot().GetKey(kv.LastLessThan(section.End)).Wait(ctx)
		if err != nil {
			return rec.Position{}, fmt.Errorf("read changes: %w", err)
		}
		if section.Contains(last) {
			from = kv.KeyAfter(last)
		}
	}
	return rec.Position{From: keys.relative(from)}, nil
}

// setReader writes the reader: this call holds the subscription until a lease from now. wasMS is the end (ms) of the
// lease that is extended; 0 = it is a new one. A lease that is extended always changes its end: see otherEnd. The
// result is the new end.
func (s *subscription) setReader(tx kv.Tx, wasMS int64) (endMS int64) {
	r := rec.Reader{Token: s.token, Owner: s.q.opts.Owner, EndMS: s.q.nowMS() + s.o.Lease.Milliseconds()}
	r.EndMS = otherEnd(r.EndMS, wasMS)
	tx.Set(s.q.keys.reader(s.name), r.Pack())
	return r.EndMS
}

// release returns the subscription, so that another process need not wait for the end of the lease. It reads the reader
// with a conflict (ifMine) and clears it, and leaves the cursor. It tries for a second, also if the handle was closed.
// It reports an error unless the handle was closed: then the database may be closed, too. If this call does not hold
// the subscription, release adds a write conflict on the reader: a take of this call whose commit is still under way
// fails by that.
//
// While a store may still be committed (silent), release does nothing: the lease has to expire.
func (s *subscription) release(ctx context.Context) {
	if s.silent {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	err := updateWith(ctx, s, txFor(s.q, "subscription"), func(tx kv.Tx, _ *following) error {
		key := s.q.keys.reader(s.name)
		err := s.ifMine(ctx, tx, func(rec.Reader) { tx.Clear(key) })
		if errors.Is(err, errNotHolder) {
			return tx.AddWriteConflictRange(kv.SingleKey(key)) // a take committed later would hold it for a lease
		}
		return err
	})
	if s.closed() == nil {
		s.report(err)
	}
}

// ifMine calls write with the reader if this call still holds the subscription, and otherwise returns errNotHolder.
// Footprint: reads the reader with a conflict.
func (s *subscription) ifMine(ctx context.Context, tx kv.Tx, write func(r rec.Reader)) error {
	key := s.q.keys.reader(s.name)
	r, found, err := waitRow(ctx, guard.SubscribeHold.Get(tx, key), "reader", key, rec.UnpackReader)
	if err != nil {
		return err
	}
	if !found || r.Token != s.token {
		return errNotHolder
	}
	write(r)
	return nil
}

// serve reads changes and calls the handler until another process has taken over, ctx ends, or an error ends the
// service. It returns the reason, never nil. A heartbeat runs at the same time. After the end of ctx it continues until
// the handler has returned, because the handler still owns its changes.
func (s *subscription) serve(ctx context.Context) error {
	beating, stop := context.WithCancel(context.WithoutCancel(ctx))
	ctx, lose := context.WithCancelCause(ctx)
	heart := make(chan struct{}) // no WaitGroup: what waits for one has not yet been seen to stop by the race detector
	go func() {
		defer close(heart)
		s.q.yield(beating, "heartbeat begins")
		lose(s.beat(beating))
	}()
	defer func() { <-heart }()
	defer stop()
	defer lose(nil)
	for {
		if err := s.step(ctx); err != nil {
			if cause := context.Cause(ctx); cause != nil && !final(err) {
				return cause // not what a call met because another has taken over
			}
			return err
		}
	}
}

// beat extends the lease three times in its length: it reads the reader with a conflict (ifMine), and writes it. If the
// lease has ended by the wall clock, beat extends it at once. The machine may have been suspended, and the monotonic
// clock has stood. Then another process may hold the subscription. beat returns why there is nothing to extend any
// more: errNotHolder, errLeaseEnded, or an error that is final. If ctx has ended the result says nothing.
func (s *subscription) beat(ctx context.Context) error {
	end, endMS, nextMS := s.taken.Add(s.o.Lease), s.endMS, int64(0) // end is by the monotonic clock
	over := func() bool { return s.q.nowMS() > endMS }
	for {
		s.q.readers.Store(s.token, end)
		if _, err := s.pauseUntil(ctx, "heartbeat", s.o.Lease/3, nil, over); err != nil || ctx.Err() != nil {
			return err
		}
		begun := time.Now()
		within, cancel := context.WithDeadline(ctx, end) // when the lease has ended it is too late
		err := s.update(within, func(tx kv.Tx, _ *following) error {
			return s.ifMine(within, tx, func(r rec.Reader) { nextMS = s.setReader(tx, r.EndMS) })
		})
		cancel()
		switch {
		case err == nil:
			end, endMS = begun.Add(s.o.Lease), nextMS
		case errors.Is(err, errNotHolder), final(err), ctx.Err() != nil:
			return err
		case !time.Now().Before(end):
			return fmt.Errorf("%w: %w", errLeaseEnded, err) // reported: another process may hold it now, or none
		}
	}
}

// step reads the next rows of changes, and either handles them and moves the place (the cursor), or waits for more. It
// returns nil if the next step may follow. If changes were cleared unseen, step reports a *MissedError, and the next
// step continues behind them. An error of the handler is reported, and step returns nil after a pause: the next step
// reads the same changes again, fewer at a time.
func (s *subscription) step(ctx context.Context) error {
	page, err := s.read(ctx)
	if err != nil {
		return err
	}
	s.errs = 0
	if page.missed != nil {
		s.report(&MissedError{Subscription: s.name})
		s.at = rec.Position{From: page.missed}
		return nil
	}
	if len(page.changes) == 0 && !page.rowDone {
		return s.wait(ctx, page.woken)
	}
	s.vain = 0
	at, err := s.handle(ctx, page)
	if err == nil {
		for _, unreadable := range page.unreadable {
			s.report(unreadable)
		}
		if slip := s.slip.Swap(nil); slip != nil {
			s.report(*slip)
		}
		s.at, s.stored, s.fails, s.width = at, at, 0, min(2*s.width, s.o.Max)
		return nil
	}
	if _, failed := errors.AsType[*ChangeError](err); !failed {
		return err
	}
	if ctx.Err() != nil {
		return context.Cause(ctx) // the handler's error may wrap one that would end the subscription
	}
	s.report(err)
	s.width = max(1, min(s.width, len(page.changes))/2)
	pause := min(leastPause<<min(s.fails, 10), longestPause)
	s.fails++
	if err := s.pause(ctx, "subscription", pause); err != nil {
		return err
	}
	return context.Cause(ctx)
}

// wait waits until a change is written, or for the poll (10 s). woken is the watch on the next change. If watches end
// at once, by a failure or although there is no change, wait pauses for longer and longer: the subscription polls.
func (s *subscription) wait(ctx context.Context, woken kv.Future[struct{}]) error {
	defer woken.Cancel()
	begun := time.Now()
	failed, err := s.pauseUntil(ctx, "subscription", subscribePoll, woken, nil)
	if err != nil {
		return err
	}
	if failed != nil && !s.told {
		s.told = true
		s.report(fmt.Errorf("a watch has failed, the subscription looks now and then: %w", failed))
	}
	if time.Since(begun) >= s.q.opts.Poll {
		s.vain = 0
	} else if s.vain++; s.vain > 1 {
		pause := max(min(leastPause<<min(s.vain-2, 10), s.q.opts.Poll), s.q.subscribers.Wait())
		if err := s.pause(ctx, "subscription", pause); err != nil {
			return err
		}
	}
	return context.Cause(ctx)
}

// changePage is the result of one read of the changes behind the place.
type changePage struct {
	changes []Change     // for the handler: those that the subscription wants
	next    rec.Position // the place behind the changes that were read
	rowDone bool         // a row was read to its end, so the place moves on, also without a change that is wanted
	// unreadable are the errors of rows that cannot be read, and are passed over.
	unreadable []error
	missed     []byte              // changes up to this place were cleared unseen; nil = none
	woken      kv.Future[struct{}] // if there was nothing: a watch on the next change
}

// changePageRows bounds the rows of changes that one read reads.
const changePageRows = 100

// read reads the rows of changes behind the subscription's place, and the field missed of meta. If there is nothing to
// do, it sets a watch on the field changed of meta, which every change writes. The caller must cancel that watch
// (page.woken): wait does.
//
// Footprint: reads at snapshot; writes nothing.
func (s *subscription) read(ctx context.Context) (page changePage, err error) {
	q := s.q
	if q.isClosed() {
		return page, ErrClosed
	}
	var woken kv.Future[struct{}]
	cancel := func() {
		if woken != nil {
			woken.Cancel()
		}
	}
	_, err = kv.Run(ctx, q.db, txFor(q, "subscription"), func(tx kv.Tx, _ kv.Attempt) error {
		cancel() // the watch of a failed attempt
		woken = nil
		follow, snapshot := q.follow(tx), tx.Snapshot()
		all := kv.KeyRange{Begin: q.keys.absolute(s.at.From), End: q.keys.section(nameChange).End}
		rows := snapshot.GetRange(all.Selectors(), kv.RangeOptions{Limit: min(changePageRows, s.width+1)})
		lost := snapshot.Get(q.keys.meta(metaMissed))
		if page, err = s.choose(ctx, rows); err != nil {
			return err
		}
		missed, err := readMissed(ctx, q.keys, lost)
		if err != nil {
			return err
		}
		if missed != nil && bytes.Compare(missed, s.at.From) >= 0 {
			page.missed = q.keys.relative(kv.KeyAfter(q.keys.absolute(missed)))
		}
		if _, err := follow.wait(ctx); err != nil {
			return err
		}
		if len(page.changes) == 0 && !page.rowDone && page.missed == nil {
			// Unlike a receive, a subscription misses no commit: every change writes this key, and the watch counts
			// from the version at which this transaction has found nothing.
			woken = tx.Watch(q.keys.meta(metaChanged))
		}
		return nil
	})
	if err != nil {
		cancel()
	}
	page.woken = woken
	return page, err
}

// agrees reports whether the subscription is to be told of a change, by its template (Where) and its kinds. It sets the
// change's Facets and Was. A change without facets agrees with every template. If an item was rewritten, and agrees
// with the template no longer, agrees makes the change one of kind ChangeLeft.
func (s *subscription) agrees(c *Change) bool {
	plan := s.q.keys.plan
	c.Facets, c.Was = plan.Unpack(c.facets), plan.Unpack(c.was)
	if c.Facets != nil && !s.o.Where.matches(c.Facets) {
		if c.Was == nil || !s.o.Where.matches(c.Was) {
			return false
		}
		c.Kind = ChangeLeft
	}
	return s.wants[c.Kind]
}

// matches reports whether the facets of an item agree with the template.
func (t Template) matches(facets map[string]string) bool {
	for name, value := range t {
		if facets[name] != value {
			return false
		}
	}
	return true
}

// checkWhere returns the error for a template that a subscription cannot have: *TemplateError if it names no facet, or
// if each group of the queue is one lane; *ValueError for a name that is no facet; that of checkFacetValue for a value.
func (s subspace) checkWhere(t Template) error {
	if t != nil && (len(t) == 0 || s.plan.IsPlain()) { // an empty template would agree with every item
		return &TemplateError{Template: t, Views: s.plan.Views()}
	}
	facets := s.plan.Facets()
	for _, name := range slices.Sorted(maps.Keys(t)) {
		if !slices.Contains(facets, name) {
			return &ValueError{What: "facet", Got: name, Allowed: fmt.Sprint(facets)}
		}
		if err := checkFacetValue(name, t[name]); err != nil {
			return err
		}
	}
	return nil
}

// choose takes up to width wanted changes from the rows that were read, and sets page.next to the place behind the last
// change that it has looked at; s.at stays. A row that cannot be read is passed over.
func (s *subscription) choose(ctx context.Context, read kv.Future[[]kv.KV]) (page changePage, err error) {
	rows, err := read.Wait(ctx)
	if err != nil {
		return page, fmt.Errorf("read changes: %w", err)
	}
	page.next = s.at
	for _, row := range rows {
		all, err := unpackChanges(row.Key, row.Value)
		if s.q.skipsRow(err) { // all is empty, and so the place moves on
			page.unreadable, all = append(page.unreadable, err), nil
		}
		done := int64(0)
		if from := s.q.keys.relative(row.Key); bytes.Equal(from, s.at.From) {
			done = s.at.Done
		}
		for i := done; i < int64(len(all)); i++ {
			if len(page.changes) == s.width {
				page.next = rec.Position{From: s.q.keys.relative(row.Key), Done: i}
				return page, nil
			}
			if s.agrees(&all[i]) {
				page.changes = append(page.changes, all[i])
			}
		}
		page.next, page.rowDone = rec.Position{From: s.q.keys.relative(kv.KeyAfter(row.Key))}, true
	}
	return page, nil
}

// readMissed waits for the read of the field missed of meta: the relative key of the last row of changes that was
// cleared before every subscription had seen the row; nil = there is none.
func readMissed(ctx context.Context, keys subspace, read kv.Future[[]byte]) ([]byte, error) {
	missed, _, err := waitRow(ctx, read, "what was cleared", keys.meta(metaMissed), rec.UnpackKey)
	return missed, err
}

// handle calls the handler for the changes of a page, moves the stored place (the cursor) behind the page, and returns
// the place that is stored then. An error of the handler is a *ChangeError, and the place has not moved. A store that
// fails is repeated, because otherwise the handler would be called again.
func (s *subscription) handle(ctx context.Context, page changePage) (at rec.Position, err error) {
	if s.inTx != nil && len(page.changes) > 0 {
		return s.handleTx(ctx, page)
	}
	if err := s.callAll(ctx, page.changes); err != nil {
		return at, err
	}
	for pause := leastPause; ; pause = min(2*pause, time.Second) {
		// Once more after an error of the database, or else the handler would be called again.
		at, err = s.store(ctx, page.next)
		if kv.Code(err) == 0 && !errors.Is(err, errSilent) || ctx.Err() != nil {
			return at, err
		}
		if pause == leastPause {
			s.report(err)
		}
		if closed := s.pause(ctx, "store", pause); closed != nil {
			return at, closed
		}
	}
}

// store moves the stored place (the cursor) in a transaction of its own, and returns the place that is stored then: see
// move. It does so also if ctx has ended since, so that a subscription that is stopped in good order repeats no change.
// errSilent means that the database gave no answer in time.
func (s *subscription) store(ctx context.Context, place rec.Position) (at rec.Position, err error) {
	ctx, cancel := lastWord(ctx)
	defer cancel()
	err = s.update(ctx, func(tx kv.Tx, _ *following) (err error) {
		at, _, err = s.move(ctx, tx, place)
		return err
	})
	s.silent = errors.Is(err, errSilent)
	return at, err
}

// errSilent: the store of a place got no answer in time, see lastWord. But the place may be stored.
var errSilent = fmt.Errorf("the database does not answer: %w", context.DeadlineExceeded)

// lastWord returns the context of a store that must happen although ctx may have ended. That context ends with
// errSilent after storeLife, or lastWordLife after the end of ctx.
func lastWord(ctx context.Context) (context.Context, context.CancelFunc) {
	last, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	end := func() { cancel(errSilent) }
	timer := time.AfterFunc(storeLife, end)
	stop := context.AfterFunc(ctx, func() { timer.Reset(lastWordLife) })
	return last, func() {
		stop()
		timer.Stop()
		cancel(nil)
	}
}

// move moves the stored place to next in a transaction, and returns the place as the transaction leaves it.
// errNotHolder means that the cursor has another token, or is gone.
//
// moved is false if the stored place is another than the call knows: a commit of the call's whose outcome was unknown
// has landed after all, of this attempt or of an earlier one whose retry ended with the handler's error. Then the place
// stays, and the next change is the one behind that place.
//
// Footprint: reads and writes the cursor, with a conflict, so that only the holder moves the place.
func (s *subscription) move(ctx context.Context, tx kv.Tx, next rec.Position) (at rec.Position, moved bool, err error) {
	key := s.q.keys.cursor(s.name)
	p, found, err := waitRow(ctx, guard.SubscribeMove.Get(tx, key), "cursor", key, rec.UnpackCursor)
	if err != nil {
		return at, false, err
	}
	if !found {
		return at, false, errNotHolder // the subscription was removed
	}
	if p.Token != s.token {
		return at, false, errNotHolder
	}
	if !p.Position.Equal(s.stored) {
		return p.Position, false, nil
	}
	tx.Set(key, (&rec.Cursor{Token: s.token, Position: next}).Pack())
	return next, true, nil
}

// handleTx calls the handler of SubscribeTx in a transaction which also moves the place, and returns the place as move
// does. If the place was moved already, the handler is not called. A handler that fails, or that takes longer than
// handlerTxLife, gives a *ChangeError. But if it returns a retryable error of the engine in that time, the transaction
// and the handler run again.
func (s *subscription) handleTx(ctx context.Context, page changePage) (at rec.Position, err error) {
	if err := s.closed(); err != nil {
		return at, err
	}
	o := txFor(s.q, "subscription")
	o.Patient = true // of the handler
	err = updateWith(ctx, s, o, func(tx kv.Tx, _ *following) error {
		place, moved, err := s.move(ctx, tx, page.next)
		if at = place; err != nil || !moved {
			return err
		}
		late := &timeoutError{handlerTxLife, "its transaction"}
		bounded, cancel := context.WithTimeoutCause(ctx, handlerTxLife, late)
		defer cancel()
		begun := time.Now()
		mine := lentChanges(page.changes) // the handler may change them, and be called again
		err = s.call(page.changes, func() error { return s.inTx(bounded, tx, mine) })
		switch {
		case time.Since(begun) < handlerTxLife, err != nil && kv.Code(err) == 0:
			return err
		case err == nil:
			return s.failed(page.changes, late)
		}
		// Not the engine's error itself, because that would be retried, and the call would take as long each time.
		return s.failed(page.changes, fmt.Errorf("%w: %v", late, errors.Unwrap(err)))
	})
	return at, err
}

// lentChanges returns a copy of changes, which a handler may sort, filter or change.
func lentChanges(all []Change) []Change {
	all = slices.Clone(all)
	for i := range all {
		all[i].Facets, all[i].Was = maps.Clone(all[i].Facets), maps.Clone(all[i].Was)
	}
	return all
}

// callAll calls the handler of Subscribe for the changes, with Parallel in up to so many calls at the same time. All
// changes of a group are in one call. The error is the *ChangeError of one of the calls that have failed.
func (s *subscription) callAll(ctx context.Context, all []Change) error {
	if len(all) == 0 {
		return nil
	}
	shares := make([][]Change, s.o.Parallel)
	for _, c := range all {
		n := shardOf(c.ID.Group, int64(s.o.Parallel))
		shares[n] = append(shares[n], c)
	}
	errs := make([]error, len(shares))
	var calls sync.WaitGroup
	for i, mine := range shares {
		if len(mine) > 0 {
			calls.Go(func() {
				s.q.yield(ctx, fmt.Sprintf("share %d", i))
				lent := lentChanges(mine) // mine is also for the error
				errs[i] = s.call(mine, func() error { return s.plain(ctx, lent) })
			})
		}
	}
	calls.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// call calls a handler on a goroutine of its own, which the handler may end, and makes an error or a panic a
// *ChangeError. changes are those of the call, for the error. A handler that has not returned after two minutes is
// reported, and call waits on. A nil pointer returned as an error counts as nil, and is kept in slip.
func (s *subscription) call(changes []Change, handler func() error) error {
	var returned, slip error
	err := callback.Shield(callback.Patience).Try("the handler", func() {
		returned, slip = callback.Meant(handler())
		returned = callback.Sound(returned)
	})
	if stuck := new(callback.StuckError); errors.As(err, &stuck) {
		s.report(s.failed(changes, stuck))
		err = <-stuck.Returned
	}
	if err = cmp.Or(err, returned); err != nil {
		return s.failed(changes, err)
	}
	if slip != nil {
		slip = s.failed(changes, slip)
		s.slip.Store(&slip)
	}
	return nil
}

// failed returns the *ChangeError for a call of the handler with the changes.
func (s *subscription) failed(changes []Change, err error) error {
	return &ChangeError{Subscription: s.name, First: changes[0], Changes: len(changes), Err: err}
}

// SubscribeOptions configure a subscription. The zero value is the normal use.
type SubscribeOptions struct {
	// Kinds are the changes to be told of; nil = all. An empty list that is not nil is refused (ErrOptions).
	Kinds []ChangeKind
	// Where, if not nil, is a template of any of the queue's facets: no view is needed. The handler is then told only
	// of items that agree with the template. If an advance or an edit gives such an item other facets, and the item
	// agrees no longer, the handler is told of a change of kind ChangeLeft. A purge names no items, so every
	// subscription is told, unless Kinds leaves purges out. Every subscription is also told of changes made before the
	// queue's handles kept facets with changes.
	Where Template
	// FromOldest makes a new subscription begin with the oldest change which the queue keeps. Otherwise it begins with
	// the changes that are committed after its first call of Subscribe has taken it. That is soon after the begin of
	// the call, but changes that are committed in between are not delivered. An old subscription continues at its
	// place.
	FromOldest bool
	// Max is how many changes a call of the handler gets at most, 1 to MaxBatch; 0 = 100. With Parallel it
	// is how many all calls that run at the same time get together.
	Max int
	// Parallel is how many calls may run at the same time, each with the changes of other groups; the changes of a
	// group still come one call after the other. Only of Subscribe. 0 = 1, at most 64.
	Parallel int
	// Lease is for how long a process which has died keeps the others from the subscription: MinLease to MaxLease; 0 =
	// 30 s.
	Lease time.Duration
	// OnError is told the errors after which the subscription continues: *ChangeError, *MissedError, ErrCorrupt, and
	// the engine's, also if the lease has expired because of them. The same error of the engine is told once in ten
	// seconds. A *ChangeError tells of a handler that has failed, is stuck, or has returned a wrong result. ErrCorrupt
	// tells of changes that cannot be read and are passed over. A failed watch is told, too. The subscription waits
	// until OnError returns, at most two minutes. With Parallel, several goroutines may call it at once. nil = the
	// errors are logged with slog.Default.
	OnError func(err error)
}

// Limits of subscriptions.
const (
	// defaultChanges is how many changes a call of the handler gets at most.
	defaultChanges = 100
	// maxParallel bounds the calls of one subscription at the same time.
	maxParallel = 64
)

// ChangeError: a handler of changes has failed or panicked. The same changes follow again after a pause, fewer at a
// time; the place of the subscription has not moved. Or a handler has not returned after two minutes: Err then has the
// stack of its goroutine, and the call continues. Or a handler has returned a nil pointer as its error, which counts as
// nil: then the place has moved.
type ChangeError struct {
	Subscription string
	First        Change // of the call
	Changes      int    // of the call
	Err          error
}

func (e *ChangeError) Error() string {
	if e == nil {
		return "<nil>"
	}
	return wrap("subscription "+e.Subscription,
		fmt.Errorf("%d changes from %s of %s on: %w", e.Changes, e.First.Kind, e.First.ID, e.Err)).Error()
}

// Unwrap returns the handler's error.
func (e *ChangeError) Unwrap() error {
	if e == nil {
		return nil
	}
	return e.Err
}

// MissedError: changes were cleared, being older than the queue keeps changes, before the subscription had come to
// them. The subscription continues with the oldest change there is.
type MissedError struct{ Subscription string }

func (e *MissedError) Error() string {
	if e == nil {
		return "<nil>"
	}
	return wrap("subscription "+e.Subscription, errors.New("changes were cleared before they were read")).Error()
}

// Subscribe calls handler for the queue's changes, in the order of their commits, until ctx ends: then Subscribe
// returns nil. The queue must keep changes (Config.Changes; otherwise ErrOptions). name says which subscription: its
// place is kept in the database, so a later call continues behind the last changes whose handler has returned nil. Of
// all processes with the same name one at a time holds the subscription. The others wait, and take over when its lease
// expires, or within 10 s of the end of its call.
//
// Each change that the queue keeps until the subscription comes to it is delivered at least once: again if the process
// dies before the place is stored, or if the handler fails. OnError is told of changes that were cleared before
// (*MissedError), and of changes that cannot be read.
//
// After an error or a panic the same changes come again, because order is kept. A handler must return nil to pass over
// a change. A nil pointer to an error type of this module, such as a nil *kv.Error, counts as nil and is reported, as
// in package worker. The handler's context ends when another process has taken over, or ctx ends. The handler must
// return then: while it runs, this process extends the lease, and Subscribe does not return. A closed handle extends no
// lease, see Close. For effects that happen once use SubscribeTx.
//
// Reads, at snapshot: the rows of changes, the field missed of meta, and the configuration and the pause (meta), if the
// handle's copy is old. Reads and writes, with conflicts: the cursor, which has the place, and the reader, which has
// the lease. The writes have a read conflict with a drop of the queue. Subscribe sets a watch on the field changed of
// meta, which every change writes.
//
// Errors: ErrOptions, *LimitError, *ValueError, *TemplateError, ErrInvalidUTF8, ErrNoQueue, ErrCorrupt, and ErrClosed.
// All else is told to OnError.
func (q *Queue) Subscribe(
	ctx context.Context, name string, handler func(ctx context.Context, changes []Change) error, o SubscribeOptions,
) error {
	s, err := q.newSubscription(name, handler == nil, o)
	if err != nil {
		return wrap("subscribe", err)
	}
	s.plain = handler
	return wrap("subscribe", s.run(ctx))
}

// SubscribeTx is Subscribe with a handler whose transaction also moves the subscription's place. So the writes of the
// handler through tx happen exactly once for each change. The handler may be called several times for the same changes,
// must end within 4 s, and must return every error of tx. Parallel is refused.
//
// Footprint of the transaction, in addition to the handler's: reads and writes the subscription's cursor, with a
// conflict.
func (q *Queue) SubscribeTx(
	ctx context.Context, name string, handler func(ctx context.Context, tx kv.Tx, changes []Change) error,
	o SubscribeOptions,
) error {
	s, err := q.newSubscription(name, handler == nil, o)
	if err == nil && o.Parallel > 1 {
		err = fmt.Errorf("%w: parallel calls in one transaction", ErrOptions)
	}
	if err != nil {
		return wrap("subscribe", err)
	}
	s.inTx = handler
	return wrap("subscribe", s.run(ctx))
}
