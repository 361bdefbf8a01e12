package layer

import (
	"fmt"

	"fdbfifo/kv"
)

// archives reports whether finished items are archived.
func (w *txn) archives() (bool, error) {
	config, err := w.config()
	return config.Archive > 0, err
}

// archive stores the items which are being finished. values are the items' values; nil = the item is missing. The
// caller then removes the items, but not their parts, because the archived items need the parts.
func (w *txn) archive(group string, items []delivered, values [][]byte) error {
	if len(items) == 0 {
		return nil
	}
	place, err := w.clock()
	if err != nil {
		return err
	}
	at := completion{place: place, index: items[0].index, random: items[0].random}
	for i, d := range items {
		a := archived{completedMS: w.nowMS, at: at, item: values[i]}
		if values[i] != nil {
			w.tx.Set(w.q.keys.archive(d.id(group)), a.pack())
		}
	}
	e := archiveEntry{completedMS: w.nowMS, group: group, items: items}
	w.tx.Set(w.q.keys.archived(at), e.pack())
	return nil
}

// finishing holds the reads of the values of the items which a settlement will finish, if the queue has an archive.
type finishing struct {
	gets map[ID]kv.Future[[]byte]
	run  kv.Future[[]kv.KV] // of all items of a claim
}

// readFinishing starts reading what s will finish, as far as known before the lock is read.
func (s *settlement) readFinishing(w *txn) {
	s.finishing = finishing{}
	if s.extends || s.keeps || w.q.Config().Archive == 0 {
		return
	}
	snapshot := w.tx.Snapshot()
	if n := len(s.claim.Items); len(s.ids) == 0 && s.back == nil && n > 0 {
		s.finishing.run = snapshot.GetRange(kv.Range{
			Begin: kv.FirstGreaterOrEqual(w.q.keys.item(s.claim.Items[0].ID)),
			End:   kv.FirstGreaterThan(w.q.keys.item(s.claim.Items[n-1].ID)),
		}, kv.RangeOptions{})
		return
	}
	s.finishing.gets = make(map[ID]kv.Future[[]byte], len(s.ids))
	for _, id := range s.ids {
		s.finishing.gets[id] = snapshot.Get(w.q.keys.item(id))
	}
}

// archive archives the acked items if the queue has an archive (kept). After an error nothing was written.
func (s *settlement) archive(w *txn, acked []delivered) (kept bool, err error) {
	if kept, err = w.archives(); err != nil || !kept || len(acked) == 0 {
		return kept, err
	}
	group := s.claim.Group
	found := make(map[string][]byte)
	if s.finishing.run != nil {
		rows, err := s.finishing.run.Wait(w.ctx)
		if err != nil {
			return false, fmt.Errorf("read items: %w", err)
		}
		for _, row := range rows {
			found[string(row.Key)] = row.Value
		}
	}
	gets := make([]kv.Future[[]byte], len(acked))
	for i, d := range acked {
		id := d.id(group)
		key := w.q.keys.item(id)
		if v := found[string(key)]; v != nil {
			gets[i] = kv.Done(v, nil)
		} else if gets[i] = s.finishing.gets[id]; gets[i] == nil {
			gets[i] = w.tx.Snapshot().Get(key)
		}
	}
	values := make([][]byte, len(acked))
	for i := range gets {
		if values[i], err = gets[i].Wait(w.ctx); err != nil {
			return false, fmt.Errorf("read item: %w", err)
		}
	}
	return true, w.archive(group, acked, values)
}
