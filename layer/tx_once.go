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

// Once runs fn in a transaction whose effect happens exactly once, even if the outcome of a commit is unknown: the
// transaction also writes a receipt, and an attempt after an unknown commit looks for the receipt first. So a message
// can be enqueued or acked together with the caller's own data, with no further care:
//
//	q.Once(ctx, func(tx kv.Tx) error {
//		tx.Set(seatKey, passenger)
//		return q.AckTx(ctx, tx, claim, item.ID)
//	})
//
// A message enqueued in fn has its place by the first read of fn, see EnqueueTx: one which another enqueues after that
// read, and before the EnqueueTx, may come first. Message.BehindAll excludes that.
//
// fn may run several times, so fn assigns results and never appends. An error of fn ends the transaction without effect
// and comes back unchanged, unless the error wraps a *kv.Error: after a retryable error fn runs again. Return every
// error of the …Tx calls. Once is a transaction of the queue even if fn does nothing there: after a drop of the queue
// the error wraps ErrNoQueue.
//
// If ctx ends during the commit, the error wraps a *kv.Error which says whether the commit may have landed. So does the
// error if the outcome is unknown after half an hour, for example because the cluster was away for so long.
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

// onceTx is Once for the layer's own calls, whose errors carry the call's own name.
func (q *Queue) onceTx(ctx context.Context, fn func(tx kv.Tx) error) error {
	return q.once(ctx, func(tx kv.Tx, _ kv.Attempt) ([]byte, error) {
		// Before fn, which may change the configuration: the handle must not go by a change which is not committed.
		follow := q.follow(tx)
		if err := fn(tx); err != nil {
			return nil, err
		}
		return []byte{}, q.guardReceiptDrop(ctx, tx, follow)
	}, nil)
}

// guardReceiptDrop makes a transaction fail if the queue is dropped. The transaction may have written nothing but its
// receipt, and otherwise the receipt would stay behind.
func (q *Queue) guardReceiptDrop(ctx context.Context, tx kv.Tx, follow *following) error {
	// Fix the read version now: a version fetched at commit is too late, because a drop before makes no conflict.
	if _, err := tx.ReadVersion().Wait(ctx); err != nil {
		return fmt.Errorf("read version: %w", err)
	}
	if _, err := follow.wait(ctx); err != nil {
		return err
	}
	return follow.guardDrop(ctx, tx)
}

// once is the frame of every operation which writes. body does the work and returns the result for its receipt, a
// packed tuple, or nil if body wrote nothing. If an earlier attempt turns out to have been applied, applied is called
// with the result in the receipt, unless applied is nil; applied may read in the same transaction.
func (q *Queue) once(
	ctx context.Context,
	body func(tx kv.Tx, a kv.Attempt) (result []byte, err error),
	applied func(tx kv.Tx, result tuple.Tuple) error,
) error {
	return q.onceWith(ctx, q.opts.Tx, body, func(tx kv.Tx, _ []byte, result tuple.Tuple) error {
		if applied == nil {
			return nil
		}
		return applied(tx, result)
	})
}

// onceWith is once for a transaction with options of its own. applied also gets the receipt's key.
func (q *Queue) onceWith(
	ctx context.Context,
	o kv.TxOptions,
	body func(tx kv.Tx, a kv.Attempt) (result []byte, err error),
	applied func(tx kv.Tx, key []byte, result tuple.Tuple) error,
) error {
	if q.isClosed() {
		return ErrClosed
	}
	own, old := q.random.uuid(), q.receipts.take()
	key := q.keys.receipt(own)
	written, cleared := false, false // own is in the database; old is gone
	begunMS := q.nowMS()
	succeeded := false
	defer func() {
		// Also after a panic of fn, because the caller may recover. An id which was never written is not kept:
		// otherwise the list would grow with each failed operation.
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
			// With a conflict: if this commit may still land at the next attempt, the fence makes the commit fail.
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
			// Before the set: a commit which may still land at the next attempt (1039) then fails by the fence.
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

// fenceReceipt makes an earlier commit which may still land (1039) land now or never: every such commit has a read
// conflict on its receipt, and the fence a write conflict. So this attempt finds either the receipt or a database in
// which nothing has happened and nothing will. A result or a refusal of this attempt is then final. After 1021 the
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

// clearLate clears the receipts of an operation which ended after Close, because Close may have missed the receipts. A
// receipt which cannot be cleared is left to the next sweep.
func (q *Queue) clearLate(ctx context.Context) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	_ = q.clearReceipts(ctx)
}

// receipts are the handle's receipts which may be in the database and are no longer needed. Each transaction clears a
// receipt, so there are never more receipts than there were transactions at a time.
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

// clearReceipts clears all receipts of the handle which no operation is using.
func (q *Queue) clearReceipts(ctx context.Context) error {
	idle := q.receipts.takeAll()
	if len(idle) == 0 {
		return nil
	}
	// Clearing twice does no harm, so a clear of unknown outcome may simply run again.
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

// receiptLife is how old a receipt is when a sweep removes the receipt. A live handle clears its own within
// milliseconds; an older receipt was left by a killed process.
const receiptLife = time.Hour

// receiptTrust is for how long, by the clock of the handle which wrote the receipt, a missing receipt proves that its
// transaction was not applied. The rest of receiptLife is for clocks which differ.
const receiptTrust = receiptLife / 2
