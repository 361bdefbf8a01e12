package layer

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"fdbfifo/kv"
)

// HolderInfo is an owner of claims, and what of the queue is in the owner's hands.
type HolderInfo struct {
	Owner string
	// Groups are under a claim of the owner whose lease lasts, or whose lease has ended and nobody has taken over. In a
	// queue with facets, a group counts once for each template that holds some of it; items claimed one by one count as
	// their group, once.
	Groups      int
	Outstanding int // items delivered and not acked
	// LongestHold is about how long the oldest of these claims has lasted, and Longest its group. A version of the
	// database counts as a microsecond.
	LongestHold time.Duration
	Longest     string
	// LeastLeft is the least that is left of a lease; negative = the lease has ended.
	LeastLeft time.Duration
}

// HoldersPage is who holds the groups of a queue.
type HoldersPage struct {
	Holders []HolderInfo // who has held a group for the longest first
	Groups  int          // held, among those looked at
	// Sampled: more groups are held than Holders looks at, so that owners may be missing, and numbers too small.
	Sampled bool
	Waiting int64 // handles which have receives that wait
}

// holdersLocks bounds the locks which Holders reads: those whose leases end first.
const holdersLocks = 1000

// Holders lists who holds groups, from the claims of the 1,000 held groups whose leases end first: the leases which
// have ended, and those which nobody extends, are among these. Holders conflicts with nothing, and changes nothing. All
// is of one moment.
//
// Errors: ErrCorrupt, ErrClosed, and the engine's.
func (a Admin) Holders(ctx context.Context) (HoldersPage, error) {
	q := a.q
	var page HoldersPage
	err := q.view(ctx, func(tx kv.ReadTx) (err error) {
		page, err = q.holders(ctx, tx)
		return err
	})
	return page, wrap("holders", err)
}

func (q *Queue) holders(ctx context.Context, tx kv.ReadTx) (page HoldersPage, err error) {
	version := tx.ReadVersion()
	held, more, err := q.heldFirst(ctx, tx)
	if err != nil {
		return page, err
	}
	page.Sampled = more
	records, err := q.readLocks(ctx, tx, held)
	if err != nil {
		return page, err
	}
	rv, err := version.Wait(ctx)
	if err != nil {
		return page, fmt.Errorf("read version: %w", err)
	}
	if page.Waiting, _, err = q.waitingHandles(ctx, tx, q.nowMS()); err != nil {
		return page, err
	}
	nowMS := q.nowMS()
	type owner struct {
		HolderInfo
		groups map[string]bool
	}
	owners, groups := map[string]*owner{}, map[string]bool{}
	for i, r := range records {
		h := r.claim()
		if h == nil {
			continue
		}
		left := time.Duration(h.endMS-nowMS) * time.Millisecond
		o := owners[h.owner]
		if o == nil {
			o = &owner{HolderInfo: HolderInfo{Owner: h.owner, LeastLeft: left}, groups: map[string]bool{}}
			owners[h.owner] = o
		}
		lane := held[i].group
		group := groupOf(lane)
		if isHold(lane) {
			lane = group
		}
		groups[lane], o.groups[lane] = true, true
		o.Outstanding += len(h.items)
		o.LeastLeft = min(o.LeastLeft, left)
		if d := max(0, time.Duration(rv+q.offset-h.token)*time.Microsecond); d >= o.LongestHold {
			o.LongestHold, o.Longest = d, group
		}
	}
	page.Groups = len(groups)
	for _, o := range owners {
		o.Groups = len(o.groups)
		page.Holders = append(page.Holders, o.HolderInfo)
	}
	slices.SortFunc(page.Holders, func(x, y HolderInfo) int {
		return cmp.Or(-cmp.Compare(x.LongestHold, y.LongestHold), cmp.Compare(x.Owner, y.Owner))
	})
	return page, nil
}

// heldFirst returns the held groups, and in a queue with facets what templates hold of groups, whose leases end first:
// first whole groups, then template by template. The group of a result is a lane.
func (q *Queue) heldFirst(ctx context.Context, tx kv.ReadTx) (held []head, more bool, err error) {
	seen := map[string]bool{}
	claims := func(t timerRow) (enough bool) {
		lane := t.key.lane
		if t.kind != kindClaim || seen[lane] {
			return false
		}
		if len(held) == holdersLocks {
			return true
		}
		seen[lane] = true
		held = append(held, head{group: lane, index: t.head, found: true})
		return false
	}
	more, err = q.firstTimers(ctx, tx, "", statsTimers, 1000, claims)
	if err != nil || q.keys.plan == nil {
		return held, more, err
	}
	byTemplate, err := q.passTimers(ctx, tx, q.keys.section(nameDue), statsTimers, 1000, claims)
	return held, more || byTemplate, err
}
