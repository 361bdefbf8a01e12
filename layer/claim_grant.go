package layer

import (
	"fmt"

	"github.com/google/uuid"

	"fdbfifo/kv"
)

// accept looks at the groups granted to the handle before any other group.
func (c *claimer) accept() error {
	if c.granted == nil {
		return nil
	}
	rows, err := c.granted.Wait(c.ctx)
	if err != nil {
		return fmt.Errorf("read grants: %w", err)
	}
	limit := 1
	for _, r := range c.owed {
		limit = max(limit, r.o.Max)
	}
	for _, row := range rows {
		p, err := c.q.keys.parse(row.Key)
		if err != nil {
			return err
		}
		token, err := unpackInt(row.Key, row.Value)
		if err != nil {
			return err
		}
		c.met[p.lane] = false
		c.looks = append(c.looks, c.read(candidate{key: row.Key, lane: p.lane, grant: token}, limit))
		if c.grants == nil {
			c.grants = make(map[string]bool)
		}
		c.grants[string(row.Key)] = true
	}
	return nil
}

// holdsGrants reports whether grants are left which nobody took.
func (c *claimer) holdsGrants() bool {
	return c == nil || len(c.grants) > 0 // nil: the grants were not read
}

// grantOthers fulfils the requests of other handles with ready groups beyond the handle's own needs, the oldest request
// with the oldest group.
//
// Footprint, per request served: a read conflict, and the request is rewritten; per group: as a claim, with a grant.
func (c *claimer) grantOthers(requests []kv.KV) error {
	q := c.q
	for _, row := range requests {
		p, err := q.keys.parse(row.Key)
		if err != nil {
			return err
		}
		r, err := unpackRequest(row.Key, row.Value)
		if err != nil {
			return err
		}
		if p.id == q.staging.random || r.deadlineMS <= c.nowMS && !lacks(guardRequestDeadline) {
			continue
		}
		given := int64(0)
		for given < r.wants {
			ok, err := c.grant(p.id)
			if err != nil {
				return err
			}
			if !ok {
				break
			}
			given++
		}
		if given > 0 {
			if err := guardGrantRequest.read(c.tx, kv.SingleKey(row.Key)); err != nil {
				return err
			}
			r.wants -= given
			c.tx.Set(row.Key, r.pack())
			c.touch(p.id)
			c.wrote = true
			c.others += int(given)
		}
		if given == 0 && r.wants > 0 {
			return nil // nothing more is ready
		}
	}
	return nil
}

// lookAgain starts the reads of the looks under way anew, because claimers of other templates have claimed lanes since,
// in the same transaction. No conflict tells of a transaction's own claims.
func (c *claimer) lookAgain() {
	for i, l := range c.looks {
		c.looks[i] = c.read(l.candidate, l.limit)
	}
}

// grant gives the next free group to the request with the random. It returns false if there is no free group.
func (c *claimer) grant(random uuid.UUID) (bool, error) {
	for {
		l, ok, err := c.next()
		if err != nil || !ok {
			return false, err
		}
		if l.grant != 0 {
			continue // our own grant stays
		}
		given, err := c.grantFrom(l, random)
		if err != nil || given {
			return given, err
		}
	}
}

// grantFrom grants a group, if the group is free and was not held before. A stale hint is cleared. A lapsed claim, or a
// delay or grant past its end, is left to the next receive, which counts the attempt.
func (c *claimer) grantFrom(l *look, random uuid.UUID) (given bool, err error) {
	if isHold(l.lane) {
		return false, c.settle(&reception{}, l, 0)
	}
	f, err := c.reads(l)
	if err == nil && f.record != nil && !f.record.at(c.nowMS).keeps() && f.record.mark == nil {
		return false, nil
	}
	f, err = c.see(l)
	if err != nil || f.verdict != verdictDeliver {
		return false, c.settle(&reception{o: ReceiveOptions{Max: 1}}, l, 0)
	}
	if err := c.fenceOver(guardGrantLock, f.lane); err != nil {
		return false, err
	}
	token, err := c.token(nil)
	if err != nil {
		return false, err
	}
	lease := grantLease
	if lacks(guardGrantLease) {
		lease = MaxLease
	}
	end := c.nowMS + lease.Milliseconds()
	c.hold(f, holding{kind: kindGrant, token: token, owner: random.String(), endMS: end}, f.rows.at(0).index)
	c.met[f.lane] = true
	return true, nil
}
