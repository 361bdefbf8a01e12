package layer

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/uuid"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/guard"
	"fdbfifo/layer/internal/rec"
)

// Enqueue appends the messages to their groups, all or none, and returns a result for each, in the order of msgs. The
// order of msgs is the order within each group. All of them come behind the messages that were enqueued before the
// call. Enqueue retries until the outcome is known, and never doubles a message. Without messages it does nothing. A
// duplicate is no error: see Message.DedupID. EnqueueTx lists the keys that are read and written.
//
// An enqueue may have at most MaxBatch messages and MaxBatchSize bytes. With long names it may have fewer messages,
// because the keys count, too, against 9,000,000 bytes. Example: 1,000 messages fit if they go to 1,000 groups whose
// names have 1,024 letters. Only about 500 fit if the names consist of NULs, which take two bytes each in a key.
//
// Errors: *LimitError, ErrOptions, ErrNoGroup and ErrInvalidUTF8 before anything is done, within a *MessageError if one
// of the messages causes the error; *FullError, ErrNoQueue, ErrClosed, ErrCorrupt if the configuration or a dedup entry
// cannot be read, and the engine's. If kv.MaybeCommitted is true of the error, the messages may be there, all or none.
// Sending them again may double them, unless they have a DedupID. After any other error no message is there.
func (q *Queue) Enqueue(ctx context.Context, msgs ...Message) ([]Sent, error) {
	if len(msgs) == 0 || len(q.opts.Hooks) == 0 {
		return q.enqueueNow(ctx, msgs)
	}
	ctx, w := q.observe(ctx, Operation{Verb: VerbEnqueue, Messages: msgs})
	sent, err := q.enqueueNow(ctx, w.Messages)
	if &w.Messages[0] != &msgs[0] && refusesText(err) { // a hook has set headers
		w.Messages = msgs
		sent, err = q.enqueueNow(ctx, msgs)
	}
	w.Sent = sent
	for _, s := range sent {
		if !s.Duplicate {
			w.Items++
		}
	}
	return sent, w.end(ctx, err)
}

// refusesText reports whether an enqueue was refused because messages, alone or together, are too large or no UTF-8.
// Then none of them was enqueued.
func refusesText(err error) bool { return errors.Is(err, ErrLimit) || errors.Is(err, ErrInvalidUTF8) }

// enqueueNow is Enqueue without the hooks. The transaction may be shared with other calls of the handle.
func (q *Queue) enqueueNow(ctx context.Context, msgs []Message) ([]Sent, error) {
	e, err := q.enqueuing(msgs)
	if err != nil || len(msgs) == 0 {
		return nil, wrap("enqueue", err)
	}
	e.own()
	o := &operation{enqueue: e}
	o.Contends = slices.ContainsFunc(e.msgs, func(m Message) bool { return m.BehindAll })
	if err := q.submit(ctx, o); err != nil {
		return nil, wrap("enqueue", err)
	}
	return e.sent, nil
}

// EnqueueTx appends the messages in the caller's transaction: the messages are enqueued if and only if the transaction
// commits. The limits and the results are those of Enqueue. EnqueueTx sees the transaction's own enqueues and acks.
//
// Errors: those of Enqueue. After a *FullError or a *MessageError nothing of this call is in the transaction, and the
// caller may commit the rest. After another error a part may be in it: the caller must not commit.
//
// The place of a message is that of the transaction's read version, which the first read fixes, not that of this call.
// Example: tx reads an account; another process enqueues A1; tx enqueues A2 and commits: the order is A2, A1. If that
// must not be, set Message.BehindAll, or enqueue before anything is read.
//
// The caller must handle an unknown commit, for example with Once, because otherwise a retry enqueues twice. The
// transaction must not use an old read version (SetReadVersion, a GRV cache): a message could then land before an
// earlier message.
//
// Reads, at snapshot: the last item of each group and lane; the configuration and the pause, if the handle's copy is
// old; with MaxWaiting, the item that would be one too many; and the oldest requests of receives that wait. Reads, with
// a conflict: the entry of each dedup id and, if there is one, the keys which decide whether the entry still holds.
//
// Conflicts: with a change of the last item of a group or lane (its removal, an edit, another time), with a drop of the
// queue, and with BehindAll with every enqueue into the group. Otherwise enqueues never conflict with enqueues, except
// for the same dedup id.
//
// Writes: per message the item and, of a large body, its parts; its lane keys, in a queue with facets or unordered
// consumers; its dedup entry. Into an empty group or lane: a hint, or the timer of a delayed message. Also counters,
// wake keys of receives that wait, and a row of changes if the queue keeps changes.
func (q *Queue) EnqueueTx(ctx context.Context, tx kv.Tx, msgs ...Message) ([]Sent, error) {
	e, err := q.enqueuing(msgs)
	if err != nil {
		return nil, wrap("enqueue", err)
	}
	err = q.operate(ctx, tx, func(w *txn) error {
		if err := w.enqueue(e); err != nil {
			return err
		}
		return e.refused
	})
	if err != nil {
		return nil, wrap("enqueue", err)
	}
	return e.sent, nil
}

// tail is the end of a group or another lane, where the transaction appends. The last item of a group is its tail. The
// fields behind begun are of a group only.
type tail struct {
	items kv.KeyRange
	key   kv.Future[[]byte] // the last item's; outside of items if the lane is empty
	begun bool
	// full is the first item too many if all messages of the transaction go to the group: a key outside of items if
	// there is room for all. nil: no limit applies.
	full      kv.Future[[]byte]
	next      int64 // the index of the next item, once begun
	behindAll bool  // a message of the group asks for BehindAll
}

// enqueuing is the state of one enqueue: the messages of one call.
type enqueuing struct {
	msgs     []Message
	randoms  []uuid.UUID // of the items' ids; chosen before the first attempt
	size     int         // how many bytes the enqueue may add to a transaction
	contents []string    // dedup ids by content, computed when first needed
	sent     []Sent      // the result; each attempt sets it again
	refused  error       // set by each attempt: why nothing of the enqueue was written (*FullError); nil = accepted
	// redriven: the messages are not new. A redrive brings dead letters back to the tail, a replay archived items, and
	// a join moves messages that have waited to join their group. So no delay, no limit of items and no de-duplication
	// applies.
	redriven bool
	joins    []joins    // of the messages that join their groups when they are due; nil = there are none
	told     ChangeKind // what subscriptions are told of each message
}

// enqueuing checks the messages of an enqueue, and chooses all that is random before the first attempt: so each attempt
// writes items with the same randoms. Their indexes may differ from attempt to attempt. It also chooses the groups of
// messages with Alone or JoinWhenDue. It reads no keys.
func (q *Queue) enqueuing(msgs []Message) (*enqueuing, error) {
	if q.isClosed() {
		return nil, ErrClosed
	}
	config := q.knownConfig()
	size, err := q.keys.checkBatch(msgs, &config, q.opts.Now())
	if err != nil {
		return nil, err
	}
	e := &enqueuing{msgs: msgs, randoms: q.random.uuids(len(msgs)), size: size}
	e.part(q.keys, q.nowMS())
	return e, nil
}

// own copies the slices and maps of the messages: the call may return before the transaction has ended, and then the
// caller may change them.
func (e *enqueuing) own() {
	size := 0
	for i := range e.msgs {
		size += len(e.msgs[i].Body)
	}
	msgs, bodies := slices.Clone(e.msgs), make([]byte, 0, size)
	for i := range msgs {
		m, at := &msgs[i], len(bodies)
		bodies = append(bodies, m.Body...)
		m.Body, m.Headers = bodies[at:len(bodies):len(bodies)], maps.Clone(m.Headers)
	}
	e.msgs = msgs
}

// part gives each message with Alone a group of its own, and each message with JoinWhenDue that is not due yet its
// waiting group. A waiting group is the group in which a message waits until it joins its own. part notes in e.joins
// which group that is, and when. The messages in e are then copies, and the caller's stay as they are.
func (e *enqueuing) part(keys subspace, nowMS int64) {
	if !slices.ContainsFunc(e.msgs, func(m Message) bool { return m.Alone || m.JoinWhenDue }) {
		return
	}
	e.msgs, e.joins = slices.Clone(e.msgs), make([]joins, len(e.msgs))
	for i := range e.msgs {
		m := &e.msgs[i]
		if m.Alone {
			m.Group = keys.aloneGroup(e.randoms[i], m.Tenant)
		}
		if e.joins[i] = joinsWhenDue(m, nowMS); e.joins[i].dueMS > 0 {
			m.Group = waitingGroup(m.Group, e.joins[i].dueMS)
		}
	}
}

// joinOf returns which group the i-th message joins, and when; the zero value = it is in its group from the start.
func joinOf(e *enqueuing, i int) joins {
	if e.joins == nil {
		return joins{}
	}
	return e.joins[i]
}

// aloneDigits bounds the number of characters that aloneGroup appends to the random, with ample room.
const aloneDigits = 8

// aloneGroup returns the name of the group of a message that is alone: the random. If the message has a tenant and the
// queue several shards, "-" and a number follow: the first number with which the group's hint lies in the tenant's
// shard. About as many numbers are tried as there are shards.
func (s subspace) aloneGroup(random uuid.UUID, tenant string) string {
	name := random.String()
	if tenant == "" || s.shards.known.Load().write == 1 {
		return name
	}
	shard := s.shard(tenant)
	for n := 0; ; n++ {
		if group := name + "-" + strconv.Itoa(n); s.shard(group) == shard {
			return group
		}
	}
}

// enqueue writes the messages of several enqueues, in order, and sets the results sent and refused of each. If refused
// is set, that enqueue was refused, and nothing of it was written. EnqueueTx lists the keys and conflicts. All tails
// are read at once, and so are all dedup entries.
func (w *txn) enqueue(all ...*enqueuing) error {
	a := &appending{txn: w, tails: w.readTails(all)}
	if len(a.tails) == 0 {
		return nil
	}
	if w.q.noticed.empties.Likely() {
		w.readRequests() // at the same time as the tails, instead of after them
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
		if e.refused, err = a.room(e); err != nil {
			return err
		}
		if e.refused != nil {
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
	w.count(countDuplicates, a.duplicates)
	return nil
}

// readTails starts reading the last key of each group of the messages, and then of each of their other lanes, at
// snapshot. Only a queue with facets or unordered consumers has other lanes. The result is by the names of the lanes.
func (w *txn) readTails(all []*enqueuing) map[string]*tail {
	tails := make(map[string]*tail)
	read := func(lane string) *tail {
		if tails[lane] == nil {
			items := w.keys.items(lane)
			tails[lane] = &tail{items: items, key: w.read.GetKey(kv.LastLessThan(items.End))}
		}
		return tails[lane]
	}
	for _, e := range all {
		for i := range e.msgs {
			t := read(e.msgs[i].Group)
			t.behindAll = t.behindAll || e.msgs[i].BehindAll
		}
	}
	plan := w.keys.plan
	for _, e := range all {
		for i := range e.msgs {
			for _, lane := range plan.PartsOf(e.msgs[i].Group, plan.Pack(e.msgs[i].Headers)) {
				read(lane)
			}
		}
	}
	return tails
}

// appending is the state of all enqueues of one transaction together.
type appending struct {
	*txn
	config   Config
	now      int64               // the clock: read version + offset, the least index of a new item
	tails    map[string]*tail    // of the messages' groups and other lanes, by name
	met      map[string]*meeting // of the messages' dedup ids, by the key of the entry
	place    int                 // of the current enqueue's first message, among all messages of the transaction
	accepted int                 // how many new messages were written
	// key and value are memory for one item after the other, as the transaction copies what it is given.
	key, value []byte
	// duplicates is how many messages were refused as duplicates. The count alone needs no receipt: if the outcome of
	// the commit is unknown, the messages are duplicates again, and may count twice.
	duplicates int
}

// accept enqueues the i-th message of e, unless the message is a duplicate, and returns the result for its sender. It
// sets the keys item and part, the lane keys (joinLanes) and the dedup entry (remember). If the group was empty, and
// receives can claim whole groups, accept sets a hint, or the timer of the new head if the message is delayed. It notes
// a change for subscriptions, unless the message joins its group later. begin and joinLanes have the conflicts.
func (a *appending) accept(e *enqueuing, i int) (Sent, error) {
	m, keys := &e.msgs[i], a.keys
	dedupID := e.dedupID(i, &a.config)
	var met *meeting
	var key []byte
	if dedupID != "" {
		key = dedupKeyOf(a.txn, e, i, dedupID, &a.config)
		if met = a.met[string(key)]; met.known {
			a.duplicates++
			return Sent{ID: rememberedID(met.entry), Duplicate: true}, nil
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
		dedupID = m.DedupID // the item keeps its dedup id, but writes no entry
	}
	env, delay := rec.Envelope{EnqueuedMS: a.nowMS, DedupID: dedupID, DueMS: a.due(e, m)}, a.config.retro()
	if later := joinOf(e, i); later.dueMS > 0 {
		env.DueMS, env.Joins = later.dueMS, true
	}
	due := delay.due(&env)
	value, parts := split(a.value[:0], m, env)
	if err := a.joinLanes(m, id, &env); err != nil {
		return Sent{}, err
	}
	a.key, a.value = appendItem(a.key[:0], t.items, id), value
	a.tx.Set(a.key, a.value)
	for n, part := range parts {
		a.tx.Set(keys.part(id, n), part)
	}
	switch {
	case !a.keys.plan.NeedsHint(m.Group): // no receive claims whole groups of this queue
	case empty && due > a.nowMS:
		a.timeHead(m.Group, id.Index, delay.timing(&env))
	case empty:
		a.hint(id.Index, m.Group, 0)
	}
	a.did.wrote = true
	if !e.redriven {
		a.accepted++
	}
	if !env.Joins { // else it is told when it joins
		a.change(e.told, id, keys.plan.Pack(m.Headers))
	}
	return Sent{ID: id}, nil
}

// dedupKeyOf returns the key of the dedup entry for the i-th message of e, whose dedup id is id. With DedupInGroup the
// key has a group: of a message that waits to join its group, the group that it joins.
func dedupKeyOf(w *txn, e *enqueuing, i int, id string, c *Config) []byte {
	group := e.msgs[i].Group
	if later := joinOf(e, i); later.dueMS > 0 {
		group = later.group
	}
	return w.keys.dedupKey(c.DedupInGroup, group, id)
}

// due returns the time (ms) before which the message must not be delivered, as it is stored in the item. Without
// RetroactiveDelay 0 means no delay. With RetroactiveDelay 0 means the queue's delay, whatever it is then, and the
// present means no delay: see retro.
func (a *appending) due(e *enqueuing, m *Message) int64 {
	atOnce := a.config.retro().own(a.nowMS)
	switch {
	case e.redriven, m.AtOnce:
		return atOnce
	case !m.DeliverAt.IsZero():
		if at := millis(m.DeliverAt.Add(time.Millisecond - 1)); at > a.nowMS {
			return at
		}
		return atOnce
	case m.Delay > 0:
		return a.nowMS + m.Delay.Milliseconds()
	}
	return a.config.retro().fixed(a.nowMS)
}

// begin must be called before the transaction appends a message to a group. For the first message it waits for the
// tail's key, which readTails reads at snapshot, and sets t.next, the index for that message. i is the place of the
// message in its enqueue. empty means that the group had no item, so the message needs a hint or a timer if receives
// can claim whole groups. For further messages of the group begin does nothing, and empty is false.
//
// Footprint: a read conflict on the tail, if the group has one and receives can claim whole groups. With BehindAll also
// a read conflict on the range behind the tail, or on the whole range of an empty group. If the tail's key cannot be
// read, see readableTail.
func (a *appending) begin(t *tail, i int) (empty bool, err error) {
	if t.begun {
		return false, nil
	}
	key, err := t.key.Wait(a.ctx)
	if err != nil {
		return false, fmt.Errorf("read tail: %w", err)
	}
	// Later groups of the transaction get higher indexes: so their heads are in the order of the messages, and the
	// hints do not pile up at the same index.
	t.begun, t.next = true, a.now+int64(a.place+i)
	if t.behindAll {
		// Before the sets, as below: no message may come behind the tail from the read version to the commit.
		behind := t.items
		if t.items.Contains(key) {
			behind.Begin = kv.KeyAfter(key)
		}
		if err := guard.BehindAll.Read(a.tx, behind); err != nil {
			return false, err
		}
	}
	a.q.noticed.empties.Note(!t.items.Contains(key))
	if !t.items.Contains(key) {
		return true, nil
	}
	p, err := a.keys.parse(key)
	if a.skipsRow(err) {
		if p, err = a.readableTail(t); err != nil || p.name == "" {
			return err == nil, err
		}
	}
	t.next = max(t.next, p.index+1)
	if !a.keys.plan.NeedsHint(p.group) {
		return false, nil
	}
	// A transaction that removes this tail may leave the group empty and without a hint, while this transaction, which
	// saw items, sets no hint. The conflict comes before the sets: a conflict on a key already written would not be
	// added.
	return false, guard.Tail.Read(a.tx, a.keys.single(key))
}

// readableTail returns the last readable item key of a group whose last key cannot be read. It goes from there towards
// the head. The zero value (no name) means that no key of the group can be read: then the group counts as empty.
//
// Footprint: it reads with a conflict, from the end of the group up to the key that it returns. Only a group with such
// a tail costs that.
func (a *appending) readableTail(t *tail) (p parsedKey, err error) {
	for rest := t.items; ; {
		rows, err := a.tx.GetRange(rest.Selectors(), kv.RangeOptions{Limit: tailRows, Reverse: true}).Wait(a.ctx)
		if err != nil {
			return p, fmt.Errorf("read tail: %w", err)
		}
		for _, row := range rows {
			if p, err = a.keys.parse(row.Key); err == nil {
				return p, nil
			}
		}
		if len(rows) < tailRows {
			return parsedKey{}, nil
		}
		rest.End = rows[len(rows)-1].Key
	}
}

// tailRows is how many rows readableTail reads at a time.
const tailRows = 10

// checkBatch checks the messages of an enqueue in a queue with the configuration c. size is how many bytes they may add
// to the transaction. The error is a *LimitError of the whole batch, or a *MessageError that names the first bad
// message.
func (s subspace) checkBatch(msgs []Message, c *Config, now time.Time) (size int, err error) {
	if len(msgs) > MaxBatch {
		return 0, &LimitError{What: "batch", Unit: "items", Got: int64(len(msgs)), Max: MaxBatch}
	}
	bodies := 0
	groups := make(map[string]itemSizes)
	for i := range msgs {
		m := &msgs[i]
		n, err := m.checkFor(c, now)
		if err == nil && m.JoinWhenDue {
			err = s.plan.CheckJoin(ErrOptions)
		}
		if err != nil {
			return 0, &MessageError{Index: i, Err: err}
		}
		bodies += n
		group := m.Group
		if m.Alone {
			group = strings.Repeat("0", len(uuid.Nil.String())+aloneDigits)
		} else if m.JoinWhenDue {
			group += joinTime
		}
		z, known := groups[group]
		if !known {
			z = s.sizesIn(group, c.Changes)
			groups[group] = z
		}
		size += z.enqueue(m, s.plan.Pack(m.Headers), !known || m.Alone) + s.dedupSize(m, group, c)
	}
	if bodies > MaxBatchSize {
		return 0, &LimitError{What: "batch", Unit: "bytes", Got: int64(bodies), Max: MaxBatchSize}
	}
	if size > maxEnqueueSize {
		return 0, &LimitError{What: "batch with its keys", Unit: "bytes", Got: int64(size), Max: maxEnqueueSize}
	}
	return size, nil
}

// enqueue returns how many bytes a new message adds to the transaction, at most: its item, parts and lane keys, its row
// of changes, and the hint or timer. facets are packed. The flag says that the message is the first of its group in the
// transaction.
func (z itemSizes) enqueue(m *Message, facets string, anew bool) int {
	head := 64 + 2*len(m.DedupID)
	for name, value := range m.Headers {
		head += 2*(len(name)+len(value)) + 4
	}
	n := setSize(z.key, head+len(m.Body)) + z.change(len(facets))
	for left := len(m.Body) + head - rec.MaxInline; left > 0; left -= rec.MaxInline {
		n += setSize(z.key+9, 0)
	}
	if anew { // a hint, or a timer, or a conflict with the tail and the range behind it
		n += setSize(z.key+9, 16) + conflictSize(z.key)
	}
	return n + z.lanes*(2*setSize(z.key+len(facets)+9, 16)+conflictSize(z.key+len(facets)))
}

// dedupSize returns how many bytes the dedup entry of a message adds to the transaction; 0 = the message has no dedup
// id.
func (s subspace) dedupSize(m *Message, group string, c *Config) int {
	id := m.DedupID
	if id == "" && !c.DedupByContent {
		return 0
	}
	if id == "" {
		id = strings.Repeat("0", contentIDSize)
	}
	key := len(s.dedupKey(c.DedupInGroup, group, id))
	return setSize(key, 2*len(group)+64) + conflictSize(key)
}

// checkFor checks a message that is enqueued now, in a queue with the configuration c, and returns the size of its body
// and headers, as check does. check finds the errors that do not depend on the queue.
func (m *Message) checkFor(c *Config, now time.Time) (int, error) {
	if m.Group == "" && !m.Alone && c.GroupRequired {
		return 0, ErrNoGroup
	}
	if m.Alone && m.DedupID != "" && c.DedupInGroup {
		return 0, fmt.Errorf("%w: dedup id %q of a message alone, where duplicates are looked for within groups",
			ErrOptions, m.DedupID)
	}
	if err := c.checkFacetsOf(m.Headers); err != nil {
		return 0, err
	}
	if err := m.checkDeliverAt(now); err != nil {
		return 0, err
	}
	return m.check()
}

// A queue may bound the messages of a group (MaxWaiting). An enqueue does not count messages, but reads the key of the
// item which would be one too many: one key read a group, at snapshot, so that enqueues still do not conflict with each
// other. Therefore enqueues under way at the same time do not see each other's messages.

// readRoom starts reading, for each group, whether there is room for all messages of the transaction: see tail.full. It
// does nothing if the queue has no MaxWaiting.
func (a *appending) readRoom(all []*enqueuing) {
	if a.config.MaxWaiting == 0 {
		return
	}
	adding := make(map[string]int)
	var groups []string // in the order of the messages, so that a simulation can be repeated
	for _, e := range all {
		for i := range e.msgs {
			group := e.msgs[i].Group
			if e.redriven || joinOf(e, i).dueMS > 0 {
				continue
			}
			if adding[group]++; adding[group] == 1 {
				groups = append(groups, group)
			}
		}
	}
	for _, group := range groups {
		t, n := a.tails[group], adding[group]
		if n > a.config.MaxWaiting {
			t.full = kv.Done(t.items.Begin, nil) // too many, whatever the group has
			continue
		}
		t.full = a.readOverflow(t, n)
	}
}

// readOverflow starts reading the key of the first item too many if n messages are added, at snapshot. If there is such
// an item, they have no room. Example: MaxWaiting 100, n 3: the 98th item.
func (a *appending) readOverflow(t *tail, n int) kv.Future[[]byte] {
	at := kv.FirstGreaterOrEqual(t.items.Begin)
	at.Offset += a.config.MaxWaiting - n
	return a.read.GetKey(at)
}

// room checks that the groups have room for the messages of e (MaxWaiting). It does not count duplicates, messages that
// join their groups later, and messages that are not new (redriven). refused is the *FullError of a group that has no
// room; nil = there is room for all. room sees the writes of the transaction's earlier enqueues.
func (a *appending) room(e *enqueuing) (refused, err error) {
	if a.config.MaxWaiting == 0 || e.redriven {
		return nil, nil
	}
	adding := make(map[string]int)
	first := make(map[*meeting]bool)
	var groups []string
	for i := range e.msgs {
		group := e.msgs[i].Group
		if joinOf(e, i).dueMS > 0 {
			continue
		}
		if id := e.dedupID(i, &a.config); id != "" {
			met := a.met[string(dedupKeyOf(a.txn, e, i, id, &a.config))]
			if met.known || first[met] {
				continue
			}
			first[met] = true
		}
		if adding[group]++; adding[group] == 1 {
			groups = append(groups, group)
		}
	}
	for _, group := range groups {
		t, n := a.tails[group], adding[group]
		k, err := t.full.Wait(a.ctx)
		if err != nil {
			return nil, fmt.Errorf("read room: %w", err)
		}
		if !t.overflows(k) {
			continue
		}
		full := &FullError{Group: group, Adding: int64(n), Max: int64(a.config.MaxWaiting)}
		if n > a.config.MaxWaiting {
			return full, nil
		}
		// There is no room for the whole transaction; is there room for e alone?
		if k, err = a.readOverflow(t, n).Wait(a.ctx); err != nil {
			return nil, fmt.Errorf("read room: %w", err)
		}
		if t.overflows(k) {
			return full, nil
		}
	}
	return nil, nil
}

// overflows reports whether the key read by readOverflow is an item, so that MaxWaiting would be exceeded. readRoom
// passes the range's first key to say "yes" without a read.
func (t *tail) overflows(k []byte) bool { return t.items.Contains(k) }

// joinLanes adds a new item to its lanes other than the whole group (PartsOf): it sets a lane key in each. A lane that
// was empty gets a hint (open), or the timer of its head (due). Of a lane that was not empty, the last key gets a read
// conflict, because a transaction that removes that item may leave the lane empty and without a hint. Of the free lane
// of an unordered queue joinLanes notes (noted.behind) that the item may be received at once, also behind others.
func (a *appending) joinLanes(m *Message, id ID, env *rec.Envelope) error {
	plan, delay := a.keys.plan, a.config.retro()
	for _, lane := range plan.PartsOf(id.Group, plan.Pack(m.Headers)) {
		t := a.tails[lane]
		empty := false
		if !t.begun {
			t.begun = true
			key, err := t.key.Wait(a.ctx)
			if err != nil {
				return fmt.Errorf("read tail: %w", err)
			}
			if empty = !t.items.Contains(key); !empty {
				if err := guard.LaneTail.Read(a.tx, kv.SingleKey(key)); err != nil {
					return err
				}
			}
		}
		a.tx.Set(a.keys.laneItem(lane, id), nil)
		switch {
		case empty && delay.due(env) > a.nowMS:
			a.timeHead(lane, id.Index, delay.timing(env))
		case empty:
			a.hint(id.Index, lane, 0)
		case a.keys.plan.DeliversAny(lane) && delay.due(env) <= a.nowMS:
			// The free lane of an unordered queue: the item can be received at once, so finish wakes a receive for it.
			setIn(&a.noted.behind, lane, true)
		}
	}
	return nil
}
