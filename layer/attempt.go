package layer

import (
	"context"
	"fmt"
	"strings"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

// attempt is the record of an item's failed deliveries. It changes only under a read conflict on the group's
// lock, so it needs none of its own.
type attempt struct {
	count   int
	firstMS int64
	lastMS  int64
	lastErr string
}

// failed returns a with one failure more. A failure without a text leaves the last one that had one.
func (a attempt) failed(nowMS int64, text string) attempt {
	if a.count == 0 {
		a.firstMS = nowMS
	}
	a.count, a.lastMS = a.count+1, nowMS
	if text != "" {
		a.lastErr = cut(text)
	}
	return a
}

// cut bounds a text that is kept, and makes it UTF-8.
func cut(text string) string {
	if len(text) > maxErrorText {
		text = text[:maxErrorText]
	}
	return strings.ToValidUTF8(text, "\uFFFD")
}

func (a attempt) pack() []byte {
	return tuple.Tuple{int64(a.count), a.firstMS, a.lastMS, a.lastErr}.Pack()
}

func unpackAttempt(key, value []byte) (attempt, error) {
	d := keyDecoder{rest: value}
	a := attempt{count: int(d.int()), firstMS: d.int(), lastMS: d.int(), lastErr: d.str()}
	if err := d.end(); err != nil {
		return attempt{}, corrupt(key, err)
	}
	return a, nil
}

// readAttempt returns the zero record if the item has never failed.
func (q *Queue) readAttempt(ctx context.Context, tx kv.ReadTx, id ID) (attempt, error) {
	key := q.keys.attempt(id)
	v, err := tx.Get(key).Wait(ctx)
	if err != nil {
		return attempt{}, fmt.Errorf("read attempts: %w", err)
	}
	if v == nil {
		return attempt{}, nil
	}
	return unpackAttempt(key, v)
}

// readAttempts returns the records of the items from first to last of a group, those that have one: few do.
func (q *Queue) readAttempts(ctx context.Context, tx kv.ReadTx, first, last ID) (map[ID]attempt, error) {
	rows, err := tx.GetRange(kv.Range{
		Begin: kv.FirstGreaterOrEqual(q.keys.attempt(first)), End: kv.FirstGreaterThan(q.keys.attempt(last)),
	}, kv.RangeOptions{}).Wait(ctx)
	if err != nil {
		return nil, fmt.Errorf("read attempts: %w", err)
	}
	records := make(map[ID]attempt, len(rows))
	for _, row := range rows {
		p, err := q.keys.parse(row.Key)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrCorrupt, err)
		}
		if records[p.itemID()], err = unpackAttempt(row.Key, row.Value); err != nil {
			return nil, err
		}
	}
	return records, nil
}
