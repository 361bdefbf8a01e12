package layer

import (
	"context"
	"fmt"
	"time"

	"fdbfifo/kv"
)

// SubscriptionInfo is what the database knows of a subscription, see Queue.Subscribe.
type SubscriptionInfo struct {
	Name string
	// Owner is the Options.Owner of the handle which holds the subscription, and Until when its lease ends; zero =
	// nobody does.
	Owner string
	Until time.Time
	// Behind is how many transactions with changes the subscription has not seen yet, up to MaxBehind. Next is the time
	// of the oldest; zero = there is none.
	Behind int64
	Next   time.Time
}

// MaxBehind bounds SubscriptionInfo.Behind, because the count is read row by row.
const MaxBehind = 10_000

// Subscriptions lists the queue's subscriptions in the order of their names.
//
// Errors: ErrNoQueue, ErrClosed, and the engine's.
func (a Admin) Subscriptions(ctx context.Context) ([]SubscriptionInfo, error) {
	var all []SubscriptionInfo
	err := a.q.view(ctx, func(tx kv.ReadTx) error {
		all = nil
		for row, err := range walk(ctx, tx, a.q.keys.section(nameCursor), sweepPage) {
			if err != nil {
				return fmt.Errorf("read cursors: %w", err)
			}
			s, err := a.q.subscriptionInfo(ctx, tx, row)
			if err != nil {
				return err
			}
			all = append(all, s)
		}
		return nil
	})
	return all, wrap("subscriptions", err)
}

func (q *Queue) subscriptionInfo(ctx context.Context, tx kv.ReadTx, row kv.KV) (s SubscriptionInfo, err error) {
	key, err := q.keys.parse(row.Key)
	if err != nil {
		return s, err
	}
	s.Name = key.field
	p, err := unpackProgress(row.Key, row.Value)
	if err != nil {
		return s, err
	}
	behind := kv.KeyRange{Begin: q.keys.absolute(p.from), End: q.keys.section(nameChange).End}
	first := tx.GetRange(behind.Selectors(), kv.RangeOptions{Limit: 1})
	readerKey := q.keys.reader(s.Name)
	held, err := tx.Get(readerKey).Wait(ctx)
	if err != nil {
		return s, fmt.Errorf("read reader: %w", err)
	}
	if held != nil {
		r, err := unpackReader(readerKey, held)
		if err != nil {
			return s, err
		}
		if r.endMS > q.nowMS() {
			s.Owner, s.Until = r.owner, fromMillis(r.endMS)
		}
	}
	rows, err := first.Wait(ctx)
	if err != nil {
		return s, fmt.Errorf("read changes: %w", err)
	}
	if len(rows) == 0 {
		return s, nil
	}
	ms, _, err := unpackChanges(rows[0].Key, rows[0].Value)
	if err != nil {
		return s, err
	}
	s.Next = fromMillis(ms)
	s.Behind, err = countKeys(ctx, tx, behind, MaxBehind)
	return s, err
}

// Unsubscribe removes a subscription: its place is forgotten, and a call of Subscribe that still runs begins anew, as a
// new subscription.
//
// Errors: ErrNoSubscription, *LimitError, ErrInvalidUTF8, ErrNoQueue, ErrClosed, and the engine's.
func (a Admin) Unsubscribe(ctx context.Context, name string) error {
	return a.act(ctx, VerbUnsubscribe, nil, ID{}, func(ctx context.Context) (int, error) {
		return 0, a.q.unsubscribe(ctx, name)
	})
}

func (q *Queue) unsubscribe(ctx context.Context, name string) error {
	if err := checkSubscription(name); err != nil {
		return err
	}
	keys := q.keys
	return q.onceTx(ctx, func(tx kv.Tx) error {
		v, err := tx.Get(keys.cursor(name)).Wait(ctx)
		if err != nil {
			return fmt.Errorf("read cursor: %w", err)
		}
		if v == nil {
			return fmt.Errorf("%w: %q", ErrNoSubscription, name)
		}
		tx.Clear(keys.cursor(name))
		tx.Clear(keys.reader(name))
		return nil
	})
}
