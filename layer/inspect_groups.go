package layer

import (
	"context"
	"errors"
	"fmt"
	"time"

	"fdbfifo/kv"
)

// GroupInfo describes a group that has items.
type GroupInfo struct {
	Group       string
	Status      Status
	Depth       int64 // items, the held ones included; counted up to GroupsOptions.MaxDepth
	Head        ID
	HeadAge     time.Duration // since the head was enqueued
	Attempts    int           // failed deliveries of the head
	LastError   string        // of the head's last failed delivery
	Owner       string        // of a held or expired group
	Token       int64         // likewise
	Outstanding int           // likewise: items delivered and not acked
	// Left is the rest of the lease or of the delay, or the time until the rate lets the group go on, by this process's
	// clock; negative if expired.
	Left time.Duration
	// Mark says who has paused or halted the group, and why; nil = nobody. A held or expired group has a Mark if it was
	// marked under its claim: the pause or halt begins when the claim ends.
	Mark *Mark
}

// GroupsOptions bound a listing. The zero value lists the first DefaultGroups groups.
type GroupsOptions struct {
	// After is the group behind which the page begins: GroupsPage.Next of the page before; nil = the page begins with
	// the first group. The group need not be there.
	After *string
	// Limit is the number of groups of a page; 0 = DefaultGroups.
	Limit int
	// MaxDepth bounds the count of a group's items; 0 = DefaultMaxDepth.
	MaxDepth int64
}

// GroupsPage is a part of a list of groups.
type GroupsPage struct {
	Groups []GroupInfo
	Next   *string // pass as After to go on; nil = there are no more groups. The last page may be empty.
}

// Defaults of a listing.
const (
	DefaultGroups   = 1000
	DefaultMaxDepth = 100_000
)

// groupsPerView bounds the groups listed in one transaction, because a transaction may last 5 s at most.
const groupsPerView = 100

// Groups lists the groups that have items, by name. Groups conflicts with nothing and changes nothing. A long listing
// is made of several transactions: each entry is true of one moment, the list as a whole is not.
//
// Errors: *LimitError, ErrInvalidUTF8, ErrClosed, and the engine's. An unreadable group is listed as Corrupt.
func (a Admin) Groups(ctx context.Context, o GroupsOptions) (GroupsPage, error) {
	q := a.q
	if o.Limit == 0 {
		o.Limit = DefaultGroups
	}
	if o.MaxDepth == 0 {
		o.MaxDepth = DefaultMaxDepth
	}
	if o.Limit < 0 {
		return GroupsPage{}, wrap("groups", &LimitError{
			What: "listing", Unit: "groups", Got: int64(o.Limit), Max: noLimit,
		})
	}
	if o.MaxDepth < 0 {
		return GroupsPage{}, wrap("groups", &LimitError{
			What: "depth of a listing", Unit: "items", Got: o.MaxDepth, Max: noLimit,
		})
	}
	section := q.keys.section(nameItem)
	from := section.Begin
	if o.After != nil {
		if err := checkGroup(*o.After); err != nil {
			return GroupsPage{}, wrap("groups", err)
		}
		from = q.keys.items(*o.After).End
	}
	var all GroupsPage
	for len(all.Groups) < o.Limit {
		var page []GroupInfo
		next := from
		err := q.view(ctx, func(tx kv.ReadTx) error {
			page, next = nil, from
			for len(page) < min(groupsPerView, o.Limit-len(all.Groups)) {
				k, err := tx.GetKey(kv.FirstGreaterOrEqual(next)).Wait(ctx)
				if err != nil {
					return fmt.Errorf("read next group: %w", err)
				}
				if !section.Contains(k) {
					next = nil
					return nil
				}
				info, err := q.describe(ctx, tx, k, o.MaxDepth)
				if errors.Is(err, ErrCorrupt) && info.Status != "" {
					info.Status, info.LastError = Corrupt, err.Error()
				} else if err != nil {
					return err
				}
				page = append(page, info)
				next = q.keys.items(info.Group).End
			}
			return nil
		})
		if err != nil {
			return GroupsPage{}, wrap("groups", err)
		}
		all.Groups = append(all.Groups, page...)
		if next == nil {
			return all, nil
		}
		from = next
	}
	last := all.Groups[len(all.Groups)-1].Group
	all.Next = &last
	return all, nil
}

// describe reads the state of the group whose first item has key head. Together with an error, describe returns the
// fields read so far.
func (q *Queue) describe(ctx context.Context, tx kv.ReadTx, head []byte, maxDepth int64) (GroupInfo, error) {
	p, err := q.keys.parse(head)
	if err != nil {
		return GroupInfo{}, err
	}
	info := GroupInfo{Group: p.group, Status: Ready, Head: p.itemID()}
	value, record := tx.Get(head), tx.Get(q.keys.attempt(info.Head))
	pace := q.readPace(tx, p.group)
	l, err := q.readLock(ctx, tx, p.group)
	if err != nil {
		return info, err
	}
	now := q.nowMS()
	info.Mark = l.bears().public()
	if h := l.holding(); h != nil {
		info.Left = time.Duration(h.endMS-now) * time.Millisecond
	}
	switch l.at(now) {
	case unheld:
	case marked:
		info.Status = info.Mark.Status
	case delayed:
		info.Status = Delayed
	case granted:
		info.Status = Granted
	case over:
		info.Left = 0
	case claimed:
		info.Status = Held
	case lapsed:
		info.Status = Expired
	}
	if c := l.claim(); c != nil {
		info.Owner, info.Token, info.Outstanding = c.owner, c.token, len(c.items)
	}
	v, err := value.Wait(ctx)
	if err != nil {
		return info, fmt.Errorf("read head: %w", err)
	}
	e, _, err := openEnvelope(v)
	if err != nil {
		return info, corrupt(head, err)
	}
	if e.dueMS > now && info.Status == Ready {
		info.Status, info.Left = Delayed, time.Duration(e.dueMS-now)*time.Millisecond
	}
	if info.Status == Ready && pace != nil {
		a, err := q.allowance(ctx, q.Config().MaxRate, p.group, pace, now)
		if err != nil {
			return info, err
		}
		if a.untilMS > now {
			info.Status, info.Left = RateLimited, time.Duration(a.untilMS-now)*time.Millisecond
		}
	}
	info.HeadAge = max(0, time.Duration(now-e.enqueuedMS)*time.Millisecond)
	if v, err = record.Wait(ctx); err != nil {
		return info, fmt.Errorf("read attempts: %w", err)
	}
	if v != nil {
		a, err := unpackAttempt(q.keys.attempt(info.Head), v)
		if err != nil {
			return info, err
		}
		info.Attempts, info.LastError = a.count, a.lastErr
	}
	info.Depth, err = countKeys(ctx, tx, q.keys.items(p.group), maxDepth)
	return info, err
}
