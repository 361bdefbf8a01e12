package layer

import (
	"bytes"
)

// A purge of the whole queue first tries to remove all items in a single transaction, whatever their number: by ranges,
// without reading an item. That is possible if no group has a record, so that nothing is in flight, nothing waits for a
// retry, and nothing is paused; if there are neither dead letters nor an archive, whose parts lie between those of the
// items; and if nobody else changes the queue meanwhile. Otherwise the purge goes group by group. Example: a purge of
// 200,000 items in 20,000 groups takes 4,000 steps, or this one.

// whole removes all items of the queue, or does nothing and returns false.
//
// Footprint: read conflicts on all items and on all records; write conflicts on both. So an item or a claim which comes
// meanwhile makes the attempt fail, and a claimer, taker or enqueue which has read what was removed fails too.
func (s *purgeStep) whole() (bool, error) {
	config, err := s.config()
	if err != nil || config.Changes != 0 || s.q.keys.plan != nil {
		return false, err // subscriptions are told how many items of each group are gone; lanes have keys of their own
	}
	keys, snapshot := s.q.keys, s.tx.Snapshot()
	items, records := keys.section(nameItem), keys.section(nameLock)
	record, err := s.q.firstItem(s.ctx, snapshot, records)
	if err != nil || record != nil {
		return false, err
	}
	clearParts, err := s.partsAreItems()
	if err != nil || !clearParts {
		return false, err
	}
	counts, err := s.q.readCounts(s.ctx, snapshot)
	if err != nil {
		return false, err
	}
	n := depth(counts)
	if n <= 0 {
		return false, nil // the counters of a damaged queue may be wrong: count the items
	}
	if err := guardPurgeWholeLock.read(s.tx, records); err != nil {
		return false, err
	}
	// The counters are of the read version: an item which lands, or goes, between the reads and the commit must not be
	// removed uncounted, nor be counted twice.
	if err := guardPurgeWholeItems.read(s.tx, items); err != nil {
		return false, err
	}
	if err := guardPurgeWholeExclude.writeRange(s.tx, records); err != nil {
		return false, err
	}
	for _, name := range []string{nameItem, namePart, nameAttempt, nameReady, nameTimer} {
		s.tx.ClearRange(keys.section(name))
	}
	s.done.Items += n
	s.count(countPurged, int(n))
	s.place = purgePlace{}
	return true, nil
}

// begun reports whether the purge has passed a group.
func (p *purger) begun() bool { return !bytes.Equal(p.next, p.q.keys.section(nameItem).Begin) }

// partsAreItems reports whether all parts belong to items, so that all can be cleared: dead letters and archived items
// have parts in the same section.
func (s *purgeStep) partsAreItems() (bool, error) {
	for _, name := range []string{nameDead, nameArchive} {
		k, err := s.q.firstItem(s.ctx, s.tx.Snapshot(), s.q.keys.section(name))
		if err != nil || k != nil {
			return false, err
		}
	}
	return true, nil
}
