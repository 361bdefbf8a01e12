package layer

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"fdbfifo/kv"
)

// The counters.
const (
	countEnqueued  = "enqueued"
	countReceived  = "received"
	countAcked     = "acked"
	countNacked    = "nacked"
	countExpired   = "expired"
	countTaken     = "taken"
	countParked    = "parked"
	countRedriven  = "redriven"
	countDiscarded = "discarded"
	countCancelled = "cancelled"
	countPurged    = "purged"
	countForced    = "forced"
	countAgedOut   = "aged_out"

	// Of groups, and they go down too: the marks there are.
	countPausedGroups = "paused_groups"
	countParkedGroups = "parked_groups"
)

// Stats are figures about a queue. The counters run since its creation and count items, a redelivery anew.
type Stats struct {
	Enqueued int64
	Received int64 // delivered under a claim
	Acked    int64
	Nacked   int64 // failed deliveries that a holder reported
	Expired  int64 // failed deliveries whose lease ran out
	Taken    int64 // removed by TakeTx
	Parked   int64 // taken aside, to the dead letters
	// Dead letters that came back to their groups, and that were removed.
	Redriven  int64
	Discarded int64
	// Removed by Cancel and Skip, and by Purge.
	Cancelled int64
	Purged    int64
	AgedOut   int64 // dropped, because they had waited longer than the queue's retention; those parked are in Parked
	Forced    int64 // claims that ForceRelease or Purge ended
	Depth     int64 // items in the queue: Enqueued - Acked - Taken - Parked + Redriven - Cancelled - Purged - AgedOut
	Dead      int64 // dead letters: Parked - Redriven - Discarded

	// ReadyGroups is the number to scale workers by: groups that a receive would get, those included whose lease or
	// delay has ended. BusyGroups are those whose lease or delay lasts. Both are counted up to StatsCap, by hints and
	// timers, of which a few may be stale.
	ReadyGroups int64
	BusyGroups  int64
	// HeldGroups and DelayedGroups are what the busy ones are: under a claim or a grant, and waiting: for a retry,
	// for a head that is kept back, or by their rate. If
	// there are more than 10,000 busy ones, of those that end first.
	HeldGroups    int64
	DelayedGroups int64
	// Groups that are paused or parked, the empty ones and those included that will be when their claim ends.
	PausedGroups int64
	ParkedGroups int64
	// Paused is the pause of the whole queue; nil = it is not paused.
	Paused *Mark
	// OldestReady is the age of the oldest ready group's head, OldestHead that of the oldest ready, held or delayed
	// group's; 0 if there is none.
	OldestReady time.Duration
	OldestHead  time.Duration
}

// StatsCap is where Stats stops counting groups.
const StatsCap = 1_000_000

// Stats reads the counters and counts the groups. It conflicts with nothing and changes nothing.
func (q *Queue) Stats(ctx context.Context) (Stats, error) {
	var s Stats
	err := q.view(ctx, func(tx kv.ReadTx) error {
		s = Stats{}
		rows, err := tx.GetRange(q.keys.section(nameCount).Selectors(), kv.RangeOptions{}).Wait(ctx)
		if err != nil {
			return fmt.Errorf("read counters: %w", err)
		}
		for _, row := range rows {
			p, err := q.keys.parse(row.Key)
			if err != nil {
				return fmt.Errorf("%w: %w", ErrCorrupt, err)
			}
			if len(row.Value) != 8 {
				return corrupt(row.Key, fmt.Errorf("counter of %d bytes", len(row.Value)))
			}
			n := int64(binary.LittleEndian.Uint64(row.Value))
			switch p.field {
			case countEnqueued:
				s.Enqueued += n
			case countReceived:
				s.Received += n
			case countAcked:
				s.Acked += n
			case countNacked:
				s.Nacked += n
			case countExpired:
				s.Expired += n
			case countTaken:
				s.Taken += n
			case countParked:
				s.Parked += n
			case countRedriven:
				s.Redriven += n
			case countDiscarded:
				s.Discarded += n
			case countCancelled:
				s.Cancelled += n
			case countPurged:
				s.Purged += n
			case countAgedOut:
				s.AgedOut += n
			case countForced:
				s.Forced += n
			case countPausedGroups:
				s.PausedGroups += n
			case countParkedGroups:
				s.ParkedGroups += n
			}
		}
		s.Dead = s.Parked - s.Redriven - s.Discarded
		s.Depth = s.Enqueued - s.Acked - s.Taken - s.Parked + s.Redriven - s.Cancelled - s.Purged - s.AgedOut
		paused, err := q.readPause(ctx, tx)
		if err != nil {
			return err
		}
		s.Paused = paused.public()
		c := &groupCounts{q: q, ctx: ctx, tx: tx, nowMS: q.nowMS()}
		if err := c.count(); err != nil {
			return err
		}
		s.ReadyGroups, s.BusyGroups, s.HeldGroups, s.DelayedGroups = c.ready, c.busy, c.held, c.delayed
		if s.OldestReady, err = c.age(c.oldestReady); err != nil {
			return err
		}
		s.OldestHead, err = c.age(c.oldest)
		return err
	})
	if err != nil {
		return Stats{}, fmt.Errorf("layer: stats: %w", err)
	}
	return s, nil
}

// view runs a body that only reads, at snapshot.
func (q *Queue) view(ctx context.Context, fn func(tx kv.ReadTx) error) error {
	if q.closed.Load() {
		return ErrClosed
	}
	_, err := kv.Run(ctx, q.db, q.opts.Tx, func(tx kv.Tx, _ kv.Attempt) error {
		follow := q.follow(tx)
		if err := fn(tx.Snapshot()); err != nil {
			return err
		}
		_, err := follow.wait(ctx) // what there is of a queue that is being dropped is no answer
		return err
	})
	return err
}

// maxStride bounds how many keys countKeys steps over at a time.
const maxStride = 1000

// countKeys counts the keys of r up to limit. It steps by selectors, so no value is transferred: in growing
// strides until one leads out of r, then in halves of it.
func countKeys(ctx context.Context, tx kv.ReadTx, r kv.KeyRange, limit int64) (int64, error) {
	at, n := r.Begin, int64(0)
	// The first step leads to the first key, all others from a key to one further on.
	offset, growing := 1, true
	for stride := 1; stride > 0 && n < limit; {
		k, err := tx.GetKey(kv.KeySelector{Key: at, Offset: offset}).Wait(ctx)
		if err != nil {
			return 0, fmt.Errorf("count keys: %w", err)
		}
		switch {
		case !r.Contains(k):
			if n == 0 {
				return 0, nil
			}
			growing = false
			stride /= 2
		default:
			n += int64(stride)
			at = k
			if growing && n > 1 {
				stride = min(2*stride, maxStride)
			}
		}
		offset = 1 + stride
	}
	return min(n, limit), nil
}
