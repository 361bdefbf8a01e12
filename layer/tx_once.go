package layer

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

// Once runs fn in a transaction whose effect happens exactly once, also when the outcome of a commit is
// unknown: a receipt is written in the same transaction, and an attempt that follows an unknown commit looks
// for it first. So a message can be enqueued or acked together with the caller's own data, with no further care:
//
//	q.Once(ctx, func(tx kv.Tx) error {
//		tx.Set(seatKey, passenger)
//		return q.AckTx(ctx, tx, claim, item.ID)
//	})
//
// fn may run several times; it assigns results and never appends. Its error, returned, ends the transaction
// without effect and comes back as it is, unless it wraps a *kv.Error: a retryable one runs fn again. Return every error of the …Tx calls.
//
// It is a transaction of the queue, also if fn does nothing on it: once that is dropped the error wraps ErrNoQueue.
//
// If ctx ends while the commit is under way, the error wraps a *kv.Error that says whether it may have landed. So it does
// if the outcome was still unknown after half an hour, as when the cluster was away for so long.
func (q *Queue) Once(ctx context.Context, fn func(tx kv.Tx) error) error {
	var own error // fn's, of the last attempt
	err := q.onceTx(ctx, func(tx kv.Tx) error {
		own = fn(tx)
		return own
	})
	if own != nil && kv.Code(err) == 0 {
		return err
	}
	return wrap("once", err)
}

// onceTx is Once for the layer's own calls, which name themselves in what they return.
func (q *Queue) onceTx(ctx context.Context, fn func(tx kv.Tx) error) error {
	return q.once(ctx, func(tx kv.Tx, _ kv.Attempt) (tuple.Tuple, error) {
		// Before fn, which may change the configuration: the handle must not go by what is not committed.
		follow := q.follow(tx)
		if err := fn(tx); err != nil {
			return nil, err
		}
		return tuple.Tuple{}, q.guardReceiptDrop(ctx, tx, follow)
	}, nil)
}

// guardReceiptDrop is for a transaction that may have done nothing on the queue but to write its receipt: it fails if the
// queue is dropped, which would leave that behind.
func (q *Queue) guardReceiptDrop(ctx context.Context, tx kv.Tx, follow *following) error {
	// If nothing has been read it would be of the time of the commit, whenever that is.
	if _, err := tx.ReadVersion().Wait(ctx); err != nil {
		return fmt.Errorf("read version: %w", err)
	}
	if _, err := follow.wait(ctx); err != nil {
		return err
	}
	return follow.guardDrop(ctx, tx)
}

// once is the frame of every operation that writes. body does the work and returns what its receipt is to
// keep, or nil if it wrote nothing. applied, if not nil, is given the kept result when an earlier attempt
// turns out to have been applied; it may read in the same transaction.
func (q *Queue) once(
	ctx context.Context,
	body func(tx kv.Tx, a kv.Attempt) (tuple.Tuple, error),
	applied func(tx kv.Tx, result tuple.Tuple) error,
) error {
	return q.onceWith(ctx, q.opts.Tx, body, func(tx kv.Tx, _ []byte, result tuple.Tuple) error {
		if applied == nil {
			return nil
		}
		return applied(tx, result)
	})
}

// onceWith is once for a transaction with options of its own. applied is given the receipt's key, too.
func (q *Queue) onceWith(
	ctx context.Context,
	o kv.TxOptions,
	body func(tx kv.Tx, a kv.Attempt) (tuple.Tuple, error),
	applied func(tx kv.Tx, key []byte, result tuple.Tuple) error,
) error {
	if q.isClosed() {
		return ErrClosed
	}
	own, old := q.random.uuid(), q.receipts.take()
	key := q.keys.receipt(own)
	written, cleared := false, false // own in the database; old no longer there
	begunMS := q.nowMS()
	succeeded := false
	defer func() {
		// Also if fn has panicked: whoever called us may recover from that. What was never written is not kept: there would
		// be one more with each operation that fails.
		if written {
			q.receipts.free(own)
		}
		if old != uuid.Nil && (!succeeded || !cleared) {
			q.receipts.free(old)
		}
		if q.isClosed() {
			q.clearLate(ctx)
		}
	}()
	_, err := kv.Run(ctx, q.db, o, func(tx kv.Tx, a kv.Attempt) error {
		written, cleared = a.MaybeCommitted, false
		if a.MaybeCommitted {
			if err := q.fenceReceipt(ctx, o, key, a); err != nil {
				return err
			}
			// A serialisable read, also because of the next attempt: if this one may still land then, the fence excludes it.
			v, err := guardReceiptConflict.get(tx, key).Wait(ctx)
			if err != nil {
				return fmt.Errorf("read receipt: %w", err)
			}
			if v != nil && !lacks(guardReceipt) {
				_, result, err := unpackReceipt(key, v)
				if err != nil {
					return err
				}
				cleared = true
				return applied(tx, key, result)
			}
			if q.nowMS()-begunMS > receiptTrust.Milliseconds() && !lacks(guardReceiptTrust) {
				return errOutcomeLost
			}
		}
		result, err := body(tx, a)
		if err != nil {
			return err
		}
		if result == nil {
			return nil
		}
		written, cleared = true, true
		if !a.MaybeCommitted {
			// Before the set. If the outcome is unknown and the commit may still land (1039), the fence excludes it.
			if err := guardReceiptLate.read(tx, kv.SingleKey(key)); err != nil {
				return err
			}
		}
		tx.Set(key, packReceipt(q.nowMS(), result))
		if old != uuid.Nil {
			tx.Clear(q.keys.receipt(old))
		}
		return nil
	})
	succeeded = err == nil
	if errors.Is(err, errOutcomeLost) {
		err = &kv.Error{Code: kv.CodeCommitUnknownResult, Cause: err}
	}
	return err
}

// fenceReceipt makes sure that a commit before this attempt which may still land (1039) does not land later than
// now: all have a read conflict on their receipt. So this attempt finds either the receipt or a database in which nothing
// has happened and nothing will: what it returns then, a result of its own or a refusal, is what holds. After 1021 the
// client has done the same already.
func (q *Queue) fenceReceipt(ctx context.Context, o kv.TxOptions, key []byte, a kv.Attempt) error {
	if !a.InFlight || lacks(guardReceiptFence) {
		return nil
	}
	_, err := kv.Run(ctx, q.db, o, func(tx kv.Tx, _ kv.Attempt) error {
		return tx.AddWriteConflictRange(kv.SingleKey(key))
	})
	if err != nil {
		return fmt.Errorf("fence receipt: %w", err)
	}
	return nil
}

// clearLate clears what an operation has left that ended when the handle had been closed: Close may have missed it. What
// cannot be cleared is left to the next sweep.
func (q *Queue) clearLate(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	_ = q.clearReceipts(ctx)
}

// receipts are those of the handle that may be in the database and are no longer needed. Each transaction
// clears one, so there are never more than there were transactions at a time.
type receipts struct {
	mu   sync.Mutex
	idle []uuid.UUID // guarded by mu
}

// take returns a receipt to clear, or uuid.Nil.
func (r *receipts) take() uuid.UUID {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := len(r.idle)
	if n == 0 {
		return uuid.Nil
	}
	id := r.idle[n-1]
	r.idle = r.idle[:n-1]
	return id
}

func (r *receipts) free(id uuid.UUID) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.idle = append(r.idle, id)
}

func (r *receipts) takeAll() []uuid.UUID {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.idle
	r.idle = nil
	return all
}

// clearReceipts clears all receipts of the handle that no operation is using.
func (q *Queue) clearReceipts(ctx context.Context) error {
	idle := q.receipts.takeAll()
	if len(idle) == 0 {
		return nil
	}
	// Clearing twice does no harm: an unknown commit needs no answer here.
	_, err := kv.Run(ctx, q.db, q.opts.Tx, func(tx kv.Tx, _ kv.Attempt) error {
		for _, id := range idle {
			tx.Clear(q.keys.receipt(id))
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("clear receipts: %w", err)
	}
	return nil
}

// receiptLife is how old a receipt is when it is swept. A handle that goes on clears its own within milliseconds;
// what gets as old as this was left by a process that was killed.
const receiptLife = time.Hour

// receiptTrust is for how long, by the clock of the handle that wrote it, a receipt that is not there proves that
// its transaction was not applied. What is left to receiptLife is for clocks that differ.
const receiptTrust = receiptLife / 2
