package layer

import (
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

// A receive with an attempt id keeps, in the transaction that claims, what it was given. One with the same id reads
// that first, with a conflict: of two at the same time one claims, and the other is answered with its claims.

// AttemptLife is how long a receive can be repeated under its attempt id, by the clocks of the two workers.
const AttemptLife = 5 * time.Minute

func checkAttemptID(id string) error {
	if len(id) > MaxAttemptID {
		return &LimitError{What: "attempt id", Unit: "bytes", Got: int64(len(id)), Max: MaxAttemptID}
	}
	if !utf8.ValidString(id) {
		return fmt.Errorf("%w: attempt id %q", ErrInvalidUTF8, id)
	}
	return nil
}

// readRepeats starts reading what is kept of the attempt ids.
func (c *claimer) readRepeats() {
	for _, r := range c.owed {
		if id := r.o.AttemptID; id != "" && c.repeats[id] == nil {
			if c.repeats == nil {
				c.repeats = make(map[string]kv.Future[[]byte])
			}
			c.repeats[id] = guardRepeat.get(c.tx, c.q.keys.repeat(id))
		}
	}
}

// repeat answers the receives that are repetitions, which are no longer owed then. It returns the others that have an
// id: of several with the same one, the first is owed, and answers for all.
func (c *claimer) repeat() (named []*reception, err error) {
	owed := make([]*reception, 0, len(c.owed))
	for _, r := range c.owed {
		if r.o.AttemptID == "" {
			owed = append(owed, r)
			continue
		}
		if err := c.answer(r); err != nil {
			return nil, err
		}
		if r.repeated {
			continue
		}
		if lacks(guardRepeatTwin) || !slices.ContainsFunc(named, func(other *reception) bool { return other.o.AttemptID == r.o.AttemptID }) {
			owed = append(owed, r)
		}
		named = append(named, r)
	}
	c.owed = owed
	return named, nil
}

// answer gives r the claims that are kept under its id, those that are still held.
func (c *claimer) answer(r *reception) error {
	key := c.q.keys.repeat(r.o.AttemptID)
	v, err := c.repeats[r.o.AttemptID].Wait(c.ctx)
	if err != nil {
		return fmt.Errorf("read attempt id: %w", err)
	}
	if v == nil {
		return nil
	}
	ms, claims, err := unpackRepeat(key, v)
	if err != nil {
		return err
	}
	if c.nowMS-ms >= AttemptLife.Milliseconds() {
		return nil
	}
	r.claims, err = c.q.reload(c.ctx, c.tx, claims, &r.o)
	r.repeated = true
	return err
}

// keepRepeats writes what the receives with these ids were given.
func (c *claimer) keepRepeats(named []*reception) {
	first := make(map[string]*reception, len(named))
	for _, r := range named {
		if twin := first[r.o.AttemptID]; twin != nil {
			for _, claim := range twin.claims {
				same := *claim
				r.claims = append(r.claims, &same)
			}
			continue
		}
		first[r.o.AttemptID] = r
		if len(r.claims) > 0 {
			c.tx.Set(c.q.keys.repeat(r.o.AttemptID), append(tuple.Tuple{c.nowMS}, r.result()...).Pack())
		}
	}
}

// unpackRepeat returns when an attempt id was used, and the claims, each as group and token.
func unpackRepeat(key, value []byte) (ms int64, claims tuple.Tuple, err error) {
	t, err := tuple.Unpack(value)
	if err != nil {
		return 0, nil, corrupt(key, err)
	}
	ok := len(t) >= 3 && len(t)%2 == 1
	if ok {
		ms, ok = t[0].(int64)
	}
	for i := 1; ok && i < len(t); i += 2 {
		_, isGroup := t[i].(string)
		_, isToken := t[i+1].(int64)
		ok = isGroup && isToken
	}
	if !ok {
		return 0, nil, corrupt(key, fmt.Errorf("claims %v", t))
	}
	return ms, t[1:], nil
}

// repeats clears the attempt ids that are out of date, with time left for clocks that differ.
func (s *sweeper) repeats() error {
	return s.pages(s.q.keys.section(nameRepeat), func(tx kv.Tx, row kv.KV) (bool, error) {
		writtenMS, ok := receiptTime(row.Value)
		if !ok || writtenMS > s.q.nowMS()-receiptLife.Milliseconds() {
			return false, nil
		}
		// It may be in use again by now.
		if err := guardRepeatSweep.read(tx, kv.SingleKey(row.Key)); err != nil {
			return false, err
		}
		tx.Clear(row.Key)
		return true, nil
	}, &s.report.Repeats)
}
