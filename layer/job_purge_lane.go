package layer

import (
	"slices"

	"fdbfifo/kv"
)

// purgeLanes is purge for a queue with facets: the items may be in the claims of several lanes, and any lane may have
// lost its head.
//
// Footprint: read conflicts on all locks of the group, and a write conflict on the lock of the whole group, which every
// claim reads.
func (s *purgeStep) purgeLanes(r *purgeRun) error {
	all, err := s.groupLocks(guardPurgeLock, r.group)
	if isCorrupt(err) {
		s.done.Kept += int64(len(r.items))
		return nil
	}
	if err != nil {
		return err
	}
	first, last := r.items[0].id(r.group), r.items[len(r.items)-1].id(r.group)
	holds, err := s.readHolds(guardPurgeLock, kv.KeyRange{
		Begin: s.q.keys.hold(first), End: kv.KeyAfter(s.q.keys.hold(last)),
	})
	if isCorrupt(err) {
		s.done.Kept += int64(len(r.items))
		return nil
	}
	if err != nil {
		return err
	}
	all = append(all, holds...)
	gone := slices.DeleteFunc(slices.Clone(r.items), func(d delivered) bool {
		return slices.ContainsFunc(all, func(held heldLane) bool {
			return s.inHand(held.record) && held.record.claim().holds(d.id(r.group))
		})
	})
	s.done.Kept += int64(len(r.items) - len(gone))
	if len(gone) == 0 {
		return nil
	}
	if err := s.excludeHolders(guardPurgeExclude, r.group); err != nil {
		return err
	}
	stays := make(map[string]bool)
	var free []string
	for _, held := range all {
		if s.end(held.lane, held.record, r.whole) {
			free = append(free, held.lane)
		} else {
			stays[held.lane] = true
		}
	}
	s.txn.remove(r.group, r.items, gone, false)
	s.removed(r.group, len(gone))
	for _, d := range gone {
		for _, lane := range s.q.keys.plan.lanesOf(r.group, d.facets) {
			if !stays[lane] && !slices.Contains(free, lane) {
				free = append(free, lane)
			}
		}
	}
	for _, lane := range free {
		if err := s.free(lane); err != nil {
			return err
		}
	}
	return nil
}
