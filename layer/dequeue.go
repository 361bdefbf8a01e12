package layer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

// ReceiveOptions say what a receive may take. The zero value is the normal use.
type ReceiveOptions struct {
	// Max is the number of items over all groups; 0 = DefaultMax, at most MaxBatch.
	Max int
	// MaxBytes bounds the bodies together; 0 = DefaultMaxBytes. A first item that is larger comes alone.
	MaxBytes int
	// MaxGroups is the number of groups to claim; 0 = as many as it takes to fill Max.
	MaxGroups int
	// Lease is how long the claims last unless extended; 0 = DefaultLease, else MinLease to MaxLease.
	Lease time.Duration
}

func (o ReceiveOptions) withDefaults() (ReceiveOptions, error) {
	if o.Max == 0 {
		o.Max = DefaultMax
	}
	if o.MaxBytes == 0 {
		o.MaxBytes = DefaultMaxBytes
	}
	if o.Lease == 0 {
		o.Lease = DefaultLease
	}
	if o.Max < 0 || o.Max > MaxBatch {
		return o, &LimitError{What: "receive", Unit: "items", Got: int64(o.Max), Min: 1, Max: MaxBatch}
	}
	if o.MaxBytes < 0 {
		return o, &LimitError{What: "receive", Unit: "bytes", Got: int64(o.MaxBytes), Min: 1, Max: MaxBatch * MaxBodySize}
	}
	if o.MaxGroups < 0 {
		return o, &LimitError{What: "receive", Unit: "groups", Got: int64(o.MaxGroups), Min: 1, Max: MaxBatch}
	}
	if o.MaxGroups == 0 {
		o.MaxGroups = o.Max
	}
	return o, checkLease(o.Lease)
}

// Claim is one holder's exclusive right to a group, and the items delivered under it, in order. It is plain
// data: Group, Token and the items' ids are all that Ack, Nack and Extend need, in any process.
type Claim struct {
	Group string
	// Token grows from claim to claim of a group. Pass it to systems outside the database, so that they can
	// refuse a holder that has been overtaken.
	Token int64
	Items []Item
	Until time.Time // the end of the lease, by this worker's clock
}

// Receive claims ready groups, the oldest head first, and returns their items: all it can from the first group,
// then from the next, up to o.Max items. It returns no claim if no group is ready; it does not wait.
//
// Every claim must be acked, nacked or extended before its lease ends; else its group is delivered to another
// worker, and the first item counts a failed attempt. Under contention the order between groups is given up
// for parallelism; the order within a group never is.
//
// A group whose next item cannot be read is passed over; if there is no other, the error wraps ErrCorrupt.
func (q *Queue) Receive(ctx context.Context, o ReceiveOptions) ([]*Claim, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	for {
		claims, cleaned, err := q.receive(ctx, o)
		if err != nil {
			return nil, fmt.Errorf("layer: receive: %w", err)
		}
		if len(claims) > 0 || !cleaned {
			return claims, nil
		}
	}
}

// ReceiveTx claims in the caller's transaction: the claims hold if and only if it commits. Its leases begin
// now, not at the commit. It returns no claim if it found no ready group near the oldest hints.
// The caller answers for an unknown commit: use Once.
//
// Conflicts: with any other claim, ack, nack or extend of the groups it takes.
func (q *Queue) ReceiveTx(ctx context.Context, tx kv.Tx, o ReceiveOptions) ([]*Claim, error) {
	if q.closed.Load() {
		return nil, ErrClosed
	}
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	c := q.newClaimer(ctx, tx, o)
	if err := c.run(); err != nil {
		return nil, fmt.Errorf("layer: receive: %w", err)
	}
	return c.claims, nil
}

// receive is one transaction of a receive. cleaned says that it removed stale hints, so that a search that
// found nothing should be repeated.
func (q *Queue) receive(ctx context.Context, o ReceiveOptions) (claims []*Claim, cleaned bool, err error) {
	conflicts := 0
	err = q.once(ctx,
		func(tx kv.Tx, a kv.Attempt) (tuple.Tuple, error) {
			for ; conflicts < a.Conflicts; conflicts++ {
				q.spread.widen()
			}
			c := q.newClaimer(ctx, tx, o)
			if err := c.run(); err != nil {
				return nil, err
			}
			claims, cleaned = c.claims, c.cleaned
			if len(claims) == 0 && !cleaned {
				return nil, nil
			}
			result := make(tuple.Tuple, 0, 2*len(claims))
			for _, c := range claims {
				result = append(result, c.Group, c.Token)
			}
			return result, nil
		},
		func(tx kv.Tx, result tuple.Tuple) error {
			var err error
			cleaned = true
			claims, err = q.reload(ctx, tx, result)
			return err
		})
	if err != nil {
		return nil, false, err
	}
	if conflicts == 0 {
		q.spread.narrow()
	}
	return claims, cleaned, nil
}

// reload rebuilds the claims of a receive whose commit was unknown and turned out to have been applied. A
// claim that has been lost since is left out.
func (q *Queue) reload(ctx context.Context, tx kv.Tx, result tuple.Tuple) ([]*Claim, error) {
	var claims []*Claim
	for i := 0; i+1 < len(result); i += 2 {
		group, ok := result[i].(string)
		token, ok2 := result[i+1].(int64)
		if !ok || !ok2 {
			return nil, fmt.Errorf("%w: receipt of a claim %v", ErrCorrupt, result)
		}
		l, err := q.readLock(ctx, tx.Snapshot(), group)
		if err != nil {
			return nil, err
		}
		if l == nil || l.kind != kindClaim || l.token != token {
			continue
		}
		c := &Claim{Group: group, Token: token, Until: fromMillis(l.endMS)}
		if c.Items, err = q.reloadItems(ctx, tx.Snapshot(), group, l.outstanding); err != nil {
			return nil, err
		}
		claims = append(claims, c)
	}
	return claims, nil
}

// reloadItems reads the items of a claim that is held. A late item may stand between them.
func (q *Queue) reloadItems(ctx context.Context, tx kv.ReadTx, group string, out []delivered) ([]Item, error) {
	first, last := out[0].id(group), out[len(out)-1].id(group)
	found := tx.GetRange(kv.Range{
		Begin: kv.FirstGreaterOrEqual(q.keys.item(first)), End: kv.FirstGreaterThan(q.keys.item(last)),
	}, kv.RangeOptions{})
	attempts, err := q.readAttempts(ctx, tx, first, last)
	if err != nil {
		return nil, err
	}
	rows, err := found.Wait(ctx)
	if err != nil {
		return nil, fmt.Errorf("read items: %w", err)
	}
	items := make([]Item, 0, len(out))
	for _, row := range rows {
		id := out[len(items)].id(group)
		if !bytes.Equal(row.Key, q.keys.item(id)) {
			continue
		}
		item, err := q.readItem(ctx, tx, row)
		if err != nil {
			return nil, err
		}
		item.Attempts = attempts[id].count
		items = append(items, item)
	}
	if len(items) < len(out) {
		return nil, corrupt(q.keys.item(out[len(items)].id(group)), errors.New("held, and not there"))
	}
	return items, nil
}

// claimer is one search for ready groups within one transaction.
//
// Footprint, per group taken: reads the lock and the items at snapshot and adds a read conflict on the lock
// alone; writes lock and timer, clears the hint it came by. A hint or timer that turns out stale is cleared
// only with a read conflict on what makes it stale (the lock, or the emptiness of the group), because a release
// may write that very key again. A takeover reads and writes the attempt record of the item that was tried.
type claimer struct {
	ctx     context.Context
	q       *Queue
	tx      kv.Tx
	o       ReceiveOptions
	nowMS   int64
	token   int64
	met     map[string]bool // groups looked at in this transaction; true = settled, under a conflict
	broken  error           // the first group that could not be read
	items   int             // taken so far
	bytes   int
	stopped bool // the next item would go over o.MaxBytes
	expired int
	claims  []*Claim
	cleaned bool
}

func (q *Queue) newClaimer(ctx context.Context, tx kv.Tx, o ReceiveOptions) *claimer {
	return &claimer{ctx: ctx, q: q, tx: tx, o: o, nowMS: q.nowMS(), met: make(map[string]bool)}
}

// candidate is a hint or a due timer: a group that may be ready.
type candidate struct {
	key      []byte // of the hint or timer
	group    string
	index    int64 // of the head, when the hint or timer was written
	attempts int   // of the head, when the hint was written
	timer    bool
}

// maxWave bounds the groups looked at together, and with that the memory of a receive.
const maxWave = 64

func (c *claimer) run() error {
	version := c.tx.ReadVersion()
	s := newSearch(c)
	for !c.full() {
		n := min(c.q.spread.groupsFor(c.o.Max-c.items), c.o.MaxGroups-len(c.claims), maxWave)
		wave, err := s.next(n)
		if err != nil {
			return err
		}
		if len(wave) == 0 {
			break
		}
		if c.token == 0 {
			rv, err := version.Wait(c.ctx)
			if err != nil {
				return fmt.Errorf("read version: %w", err)
			}
			c.token = rv + c.q.offset
		}
		if err := c.take(wave); err != nil {
			return err
		}
	}
	if len(c.claims) > 0 {
		c.q.spread.learn(c.items, len(c.claims))
		c.q.add(c.tx, countReceived, c.items)
		c.q.add(c.tx, countExpired, c.expired)
		return nil
	}
	if !c.cleaned {
		return c.broken
	}
	return nil
}

// full reports whether nothing more may be taken.
func (c *claimer) full() bool {
	return c.stopped || c.items >= c.o.Max || len(c.claims) >= c.o.MaxGroups
}

// look is the reads of one candidate under way.
type look struct {
	candidate
	lock  kv.Future[[]byte]
	items kv.Future[[]kv.KV]
}

// take claims the groups of wave, in order, until the receive is full. All reads are started together.
func (c *claimer) take(wave []candidate) error {
	snapshot := c.tx.Snapshot()
	looks := make([]look, 0, len(wave))
	for _, w := range wave {
		if settled, met := c.met[w.group]; met {
			// A second hint of a group met before: what was found then makes this one stale too. As long as
			// nothing has been settled, and so no conflict been added, it stays.
			if settled {
				c.clear(w.key)
			}
			continue
		}
		c.met[w.group] = false
		looks = append(looks, look{
			candidate: w,
			lock:      snapshot.Get(c.q.keys.lock(w.group)),
			items:     snapshot.GetRange(c.q.keys.items(w.group).Selectors(), kv.RangeOptions{Limit: c.o.Max - c.items}),
		})
	}
	for _, l := range looks {
		if c.full() {
			// Not needed any more, and nothing of it was read with a conflict. Its other hints may be
			// looked at again.
			delete(c.met, l.group)
			continue
		}
		if err := c.settle(l); err != nil {
			if !errors.Is(err, ErrCorrupt) {
				return err
			}
			if c.broken == nil {
				c.broken = err
			}
			continue
		}
		c.met[l.group] = true
	}
	return nil
}

func (c *claimer) clear(key []byte) {
	c.tx.Clear(key)
	c.cleaned = true
}

// settle decides what to do about one candidate: claim it, take it over, or clear it as stale.
func (c *claimer) settle(l look) error {
	lockKey := c.q.keys.lock(l.group)
	value, err := l.lock.Wait(c.ctx)
	if err != nil {
		return fmt.Errorf("read lock: %w", err)
	}
	rows, err := l.items.Wait(c.ctx)
	if err != nil {
		return fmt.Errorf("read items: %w", err)
	}
	var held *lock
	if value != nil {
		if held, err = unpackLock(lockKey, value); err != nil {
			return err
		}
	}
	expired := held != nil && held.endMS <= c.nowMS
	if held != nil && !expired || held == nil && l.timer {
		// Held by another, or a timer of a lock that is gone.
		if err := c.tx.AddReadConflictRange(kv.SingleKey(lockKey)); err != nil {
			return fmt.Errorf("guard lock: %w", err)
		}
		c.clear(l.key)
		return nil
	}
	if len(rows) == 0 {
		return c.settleEmpty(l, lockKey, held)
	}
	// The read was bounded by what was wanted before the groups of the same wave that came first.
	rows = rows[:min(len(rows), c.o.Max-c.items)]
	claim, taken, err := c.read(l, held, rows)
	if err != nil || len(taken) == 0 {
		return err
	}
	if err := c.tx.AddReadConflictRange(kv.SingleKey(lockKey)); err != nil {
		return fmt.Errorf("guard lock: %w", err)
	}
	if err := c.succeed(held, claim); err != nil {
		return err
	}
	end := c.nowMS + c.o.Lease.Milliseconds()
	claim.Until = fromMillis(end)
	next := lock{token: claim.Token, owner: c.q.opts.Owner, endMS: end, outstanding: taken, kind: kindClaim}
	c.tx.Clear(l.key)
	if held != nil {
		if timer := c.q.keys.timer(held.endMS, l.group); !bytes.Equal(timer, l.key) {
			c.tx.Clear(timer)
		}
	}
	c.tx.Set(lockKey, next.pack())
	c.tx.Set(c.q.keys.timer(end, l.group), packTimer(kindClaim, taken[0].index))
	c.claims = append(c.claims, claim)
	c.items += len(claim.Items)
	return nil
}

// succeed looks at the lock that the claim takes the place of: the item that was tried under an expired claim
// counts a failed attempt; the end of a delay counts none.
func (c *claimer) succeed(held *lock, claim *Claim) error {
	if held == nil {
		return nil
	}
	id := claim.Items[0].ID
	if held.kind == kindClaim && len(held.outstanding) > 0 {
		id = held.outstanding[0].id(claim.Group)
	}
	record, err := c.q.readAttempt(c.ctx, c.tx.Snapshot(), id)
	if err != nil {
		return err
	}
	if held.kind == kindClaim {
		record = record.failed(c.nowMS, "lease expired, held by "+held.owner)
		c.tx.Set(c.q.keys.attempt(id), record.pack())
		c.expired++
	}
	for i := range claim.Items {
		if claim.Items[i].ID == id {
			claim.Items[i].Attempts = record.count
		}
	}
	return nil
}

// settleEmpty clears what is left of a group without items.
func (c *claimer) settleEmpty(l look, lockKey []byte, held *lock) error {
	// An enqueue into the empty group writes a hint, which may have this very key.
	if err := c.tx.AddReadConflictRange(c.q.keys.items(l.group)); err != nil {
		return fmt.Errorf("guard emptiness: %w", err)
	}
	if held != nil {
		if err := c.tx.AddReadConflictRange(kv.SingleKey(lockKey)); err != nil {
			return fmt.Errorf("guard lock: %w", err)
		}
		c.tx.Clear(lockKey)
		c.tx.Clear(c.q.keys.timer(held.endMS, l.group))
	}
	c.clear(l.key)
	return nil
}

// read turns rows into the items of a claim, as many as still fit.
func (c *claimer) read(l look, held *lock, rows []kv.KV) (*Claim, []delivered, error) {
	claim := &Claim{Group: l.group, Token: c.token}
	if held != nil {
		// Always so while all handles use the same offset; a handle opened before the offset was raised
		// must not make the token go back.
		claim.Token = max(claim.Token, held.token+1)
	}
	claim.Items = make([]Item, 0, len(rows))
	taken := make([]delivered, 0, len(rows))
	of := c.q.keys.items(l.group)
	for _, row := range rows {
		p, err := c.q.keys.parseItem(row.Key, l.group, of)
		if err != nil {
			return nil, nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		e, body, err := openEnvelope(row.Value)
		if err != nil {
			if len(taken) > 0 {
				break // what stands before it can be delivered
			}
			return nil, nil, corrupt(row.Key, err)
		}
		size := max(len(body), int(e.size))
		if c.items+len(taken) > 0 && c.bytes+size > c.o.MaxBytes {
			c.stopped = true
			break
		}
		item, err := c.q.assemble(c.ctx, c.tx.Snapshot(), p, e, body)
		if err != nil {
			if errors.Is(err, ErrCorrupt) && len(taken) > 0 {
				break
			}
			return nil, nil, err
		}
		c.bytes += size
		claim.Items = append(claim.Items, item)
		taken = append(taken, delivered{index: p.index, random: p.id, parts: e.parts})
	}
	if len(taken) > 0 && !l.timer && claim.Items[0].ID.Index == l.index {
		claim.Items[0].Attempts = l.attempts
	}
	return claim, taken, nil
}
