package layer

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
)

// Sent is what became of one message of an enqueue.
type Sent struct {
	// ID is the message's, or that of the earlier message that it is a duplicate of; that may have been acked meanwhile.
	ID ID
	// Duplicate: it was not enqueued, because a message with its dedup id was before, or stands before it in the batch.
	Duplicate bool
}

// Enqueue appends the messages to their groups, all or none, and returns what became of each, in the order of msgs. The
// order of msgs is the order within each group. It retries until the outcome is known, and never doubles a
// message. At most MaxBatch messages and MaxBatchSize bytes; no messages are no work. A duplicate is no error: see
// Message.DedupID.
//
// Errors: *LimitError, ErrOptions and ErrInvalidUTF8 before anything is done, *FullError, ErrClosed, and the engine's. If ctx ends
// while the commit is under way, the error wraps a *kv.Error that says whether it may have landed.
func (q *Queue) Enqueue(ctx context.Context, msgs ...Message) ([]Sent, error) {
	if q.isClosed() {
		return nil, wrap("enqueue", ErrClosed)
	}
	if err := q.keys.checkBatch(msgs, q.Config(), q.opts.Now()); err != nil {
		return nil, wrap("enqueue", err)
	}
	if len(msgs) == 0 {
		return nil, nil
	}
	e := &enqueuing{msgs: msgs, randoms: q.randoms(len(msgs))}
	if err := q.submit(ctx, &operation{enqueue: e}); err != nil {
		return nil, wrap("enqueue", err)
	}
	return e.sent, nil
}

// EnqueueTx appends the messages in the caller's transaction: they are there if and only if it commits. The
// same limits hold. It sees the transaction's own enqueues and acks.
//
// The caller answers for an unknown commit: use Once, which does. The transaction must not use an old read
// version (SetReadVersion, a GRV cache): a message could then land before one that was enqueued earlier.
//
// Reads: per group, the key of the tail, at snapshot. Conflicts: with the removal of that tail only; none if
// the group is empty. Enqueues never conflict with enqueues, but for those of the same dedup id: each reads that one's
// entry, with a conflict, and what decides about it if there is one.
func (q *Queue) EnqueueTx(ctx context.Context, tx kv.Tx, msgs ...Message) ([]Sent, error) {
	if q.isClosed() {
		return nil, wrap("enqueue", ErrClosed)
	}
	if err := q.keys.checkBatch(msgs, q.Config(), q.opts.Now()); err != nil {
		return nil, wrap("enqueue", err)
	}
	e := &enqueuing{msgs: msgs, randoms: q.randoms(len(msgs))}
	w := q.txn(ctx, tx)
	if err := w.enqueue(e); err != nil {
		return nil, wrap("enqueue", err)
	}
	if e.full != nil {
		return nil, wrap("enqueue", e.full)
	}
	if err := w.finish(); err != nil {
		return nil, wrap("enqueue", err)
	}
	return e.sent, nil
}

// tail is where the items of a group go on, within one transaction.
type tail struct {
	items kv.KeyRange
	key   kv.Future[[]byte] // the last item's, or one outside of items
	begun bool
	// full is the item that is too many if all messages of the transaction come to it, nil if that does not matter; none
	// if there is room for them.
	full kv.Future[[]byte]
	next int64 // the index of the next item, once begun
}

// enqueuing is the messages of one enqueue.
type enqueuing struct {
	msgs     []Message
	randoms  []uuid.UUID // chosen before the first attempt
	contents []string    // their dedup ids by content, once they are asked for
	sent     []Sent      // the result; set anew by each attempt
	full     *FullError  // likewise: why it was refused, with nothing written; nil = it was not
	// redriven: they are no new messages, but dead letters on their way back. What may be done to a new message, other
	// than to write it, is not for them.
	redriven bool
}

// randoms are those of n new messages.
func (q *Queue) randoms(n int) []uuid.UUID {
	if lacks(guardRandom) {
		return slices.Repeat([]uuid.UUID{{6: 0x40, 8: 0x80}}, n)
	}
	return q.random.uuids(n)
}

// bytes is about what the messages add to a transaction.
func (e *enqueuing) bytes() int {
	n := 0
	for i := range e.msgs {
		m := &e.msgs[i]
		n += len(m.Body) + 4*len(m.Group) + 200
		if m.DedupID != "" {
			n += 4*(len(m.Group)+len(m.DedupID)) + 200
		}
	}
	return n
}

// enqueue writes the messages of several enqueues, in their order. Its conflict footprint is the one EnqueueTx
// states. All tails, and all that is remembered, are read at once.
func (w *txn) enqueue(all ...*enqueuing) error {
	a := &appending{txn: w, tails: w.readTails(all)}
	if len(a.tails) == 0 {
		return nil
	}
	var err error
	if a.config, err = w.config(); err != nil {
		return err
	}
	a.readRoom(all)
	if a.met, err = w.meet(all, &a.config); err != nil {
		return err
	}
	if a.now, err = w.clock(); err != nil {
		return err
	}
	for _, e := range all {
		e.sent = make([]Sent, len(e.msgs))
		if e.full, err = a.room(e); err != nil {
			return err
		}
		if e.full != nil {
			continue
		}
		for i := range e.msgs {
			if e.sent[i], err = a.accept(e, i); err != nil {
				return err
			}
		}
		a.place += len(e.msgs)
	}
	w.count(countEnqueued, a.accepted)
	return nil
}

// readTails starts reading where the groups of the messages go on.
func (w *txn) readTails(all []*enqueuing) map[string]*tail {
	tails := make(map[string]*tail)
	for _, e := range all {
		for i := range e.msgs {
			group := e.msgs[i].Group
			if tails[group] == nil {
				items := w.q.keys.items(group)
				tails[group] = &tail{items: items, key: w.tx.Snapshot().GetKey(kv.LastLessThan(items.End))}
			}
		}
	}
	return tails
}

// appending is the enqueues of one transaction.
type appending struct {
	*txn
	config   Config
	now      int64 // the clock
	tails    map[string]*tail
	met      map[string]*meeting
	place    int // of the first message of the enqueue under way, among all of the transaction
	accepted int
}

// accept enqueues the i-th message of e, unless it is a duplicate.
func (a *appending) accept(e *enqueuing, i int) (Sent, error) {
	m, keys := &e.msgs[i], a.q.keys
	dedupID := e.dedupID(i, &a.config)
	var met *meeting
	var key []byte
	if dedupID != "" {
		key = keys.dedupKey(a.config.DedupScope, m.Group, dedupID)
		if met = a.met[string(key)]; met.lasts {
			return Sent{ID: met.entry.id, Duplicate: true}, nil
		}
	}
	t := a.tails[m.Group]
	empty, err := a.begin(t, i)
	if err != nil {
		return Sent{}, err
	}
	id := ID{Group: m.Group, Index: t.next, Random: e.randoms[i]}
	t.next++
	if met != nil {
		a.remember(met, key, id)
	}
	if e.redriven {
		dedupID = m.DedupID
	}
	due := a.due(e, m)
	value, parts := split(m, envelope{enqueuedMS: a.nowMS, dedupID: dedupID, dueMS: due})
	a.tx.Set(keys.item(id), value)
	for n, part := range parts {
		a.tx.Set(keys.part(id, n), part)
	}
	switch {
	case empty && due > a.nowMS:
		a.timeHead(m.Group, id.Index, due)
	case empty:
		a.hint(id.Index, m.Group, 0)
	}
	a.wrote = true
	if !e.redriven {
		a.accepted++
	}
	return Sent{ID: id}, nil
}

// due is before when a message is not delivered; 0 = it is not delayed.
func (a *appending) due(e *enqueuing, m *Message) int64 {
	switch {
	case e.redriven, m.AtOnce:
		return 0
	case !m.DeliverAt.IsZero():
		if at := millis(m.DeliverAt.Add(time.Millisecond - 1)); at > a.nowMS {
			return at
		}
		return 0
	case m.Delay > 0:
		return a.nowMS + m.Delay.Milliseconds()
	case a.config.Delay > 0:
		return a.nowMS + a.config.Delay.Milliseconds()
	}
	return 0
}

// begin finds where a group goes on, if its first message in the transaction is the i-th of its enqueue. It reports
// whether the group is then empty.
func (a *appending) begin(t *tail, i int) (empty bool, err error) {
	if t.begun {
		return false, nil
	}
	key, err := t.key.Wait(a.ctx)
	if err != nil {
		return false, fmt.Errorf("read tail: %w", err)
	}
	// Later groups of the transaction come behind the earlier ones: their heads are in the order of the messages, and
	// the hints do not pile up at one index.
	t.begun, t.next = true, a.now+int64(a.place+i)
	if !t.items.Contains(key) {
		return true, nil
	}
	p, err := a.q.keys.parse(key)
	if err != nil {
		return false, err
	}
	if !lacks(guardIndex) {
		t.next = max(t.next, p.index+1)
	}
	// Whoever removes this tail may leave the group empty and without a hint, while this transaction leaves the hint out
	// because it saw the group non-empty. Before the sets: a conflict on a key already written would not be added.
	return false, guardTail.read(a.tx, kv.SingleKey(key))
}

// checkBatch validates the messages of one enqueue.
func (s subspace) checkBatch(msgs []Message, c Config, now time.Time) error {
	if len(msgs) > MaxBatch {
		return &LimitError{What: "batch", Unit: "items", Got: int64(len(msgs)), Max: MaxBatch}
	}
	size, keys, key := 0, 0, 0
	for i := range msgs {
		n, err := msgs[i].check()
		if err != nil {
			return fmt.Errorf("message %d: %w", i, err)
		}
		if left := msgs[i].DeliverAt.Sub(now); !msgs[i].DeliverAt.IsZero() && left > MaxDelay {
			return fmt.Errorf("message %d: %w", i, checkDelay(left))
		}
		size += n
		if i == 0 || msgs[i].Group != msgs[i-1].Group {
			key = len(s.item(ID{Group: msgs[i].Group, Index: kv.MaxTransactionSize}))
		}
		// FoundationDB counts a set as 3 times its key, its value, and 65 bytes more.
		keys += 3*key + 100
		if n := len(msgs[i].DedupID); n > 0 || c.DedupBy == DedupByContent {
			keys += 3*(len(s.prefix)+len(msgs[i].Group)+max(n, contentIDSize)+20) + len(msgs[i].Group) + 2*max(n, contentIDSize) + 150
		}
	}
	if size > MaxBatchSize {
		return &LimitError{What: "batch", Unit: "bytes", Got: int64(size), Max: MaxBatchSize}
	}
	if size+keys > maxTransactionSize {
		return &LimitError{What: "batch with its keys", Unit: "bytes", Got: int64(size + keys), Max: maxTransactionSize}
	}
	return nil
}
