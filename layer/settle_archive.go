package layer

import (
	"fmt"

	"fdbfifo/kv"
	"fdbfifo/layer/internal/lanes"
	"fdbfifo/layer/internal/rec"
)

// archives reports whether finished items are archived, as the queue's configuration says (Config.Archive).
func (w *txn) archives() (bool, error) {
	config, err := w.config()
	return config.Archive > 0, err
}

// archive stores finished items in the archive: a row archive for each item, and one row archived for all. The keys
// archived begin with place, the present version of the queue (clock), so they lie in the order of completion. values
// has a value for each item; nil = the item is missing, and gets no row archive. Without items archive writes nothing.
//
// The caller removes the items in the same transaction, but not the parts of their bodies, because the archived items
// need the parts.
func (w *txn) archive(place int64, group string, items []rec.Item, values [][]byte) {
	if len(items) == 0 {
		return
	}
	at := rec.Completion{Place: place, Index: items[0].Index, Random: items[0].Random}
	for i, d := range items {
		a := rec.Archived{CompletedMS: w.nowMS, At: at, Item: values[i]}
		if values[i] != nil {
			w.tx.Set(w.keys.archive(idOf(d, group)), a.Pack())
		}
	}
	e := rec.ArchiveEntry{CompletedMS: w.nowMS, Group: group, Items: items}
	w.tx.Set(w.keys.archived(at), e.Pack())
}

// archiving is the part of a settlement that archives the finished items, if the queue has an archive. All its fields
// belong to the present attempt.
type archiving struct {
	gets map[ID]kv.Future[[]byte] // reads of items one by one
	run  kv.Future[[]kv.KV]       // the read of the range from the claim's first item to its last, if all are finished

	kept   bool     // the queue has an archive
	values [][]byte // of the finished items; nil = the item is missing
	place  int64    // in the archive, see txn.archive
}

// begin starts reading the items that s will finish or advance, at snapshot, if the queue has an archive. If s settles
// all items of a claim of a whole group, begin reads them as one range. Otherwise it reads each by its key: the items
// of a lane may be far apart in the group. Items that only the lock names, and items that the range has missed because
// others lie between, are read by check.
func (a *archiving) begin(w *txn, s *settlement) {
	*a = archiving{}
	if s.keeps() || w.q.knownConfig().Archive == 0 {
		return
	}
	n := len(s.items)
	if s.all && n > 0 && !lanes.IsPart(s.lane) {
		a.run = w.read.GetRange(kv.Range{
			Begin: kv.FirstGreaterOrEqual(w.keys.item(s.items[0])),
			End:   kv.FirstGreaterThan(w.keys.item(s.items[n-1])),
		}, kv.RangeOptions{Limit: n})
		return
	}
	a.gets = make(map[ID]kv.Future[[]byte], n)
	for _, id := range s.items {
		a.gets[id] = w.read.Get(w.keys.item(id))
	}
}

// check waits for the values of the acked items, if the queue has an archive, and sets kept, values and place. It reads
// the items which begin has not read, at snapshot.
func (a *archiving) check(w *txn, s *settlement) (err error) {
	acked, group := s.run.acked, s.claim.Group
	if a.kept, err = w.archives(); err != nil || !a.kept || len(acked) == 0 {
		return err
	}
	found := make(map[string][]byte)
	if a.run != nil {
		rows, err := a.run.Wait(w.ctx)
		if err != nil {
			return fmt.Errorf("read items: %w", err)
		}
		for _, row := range rows {
			found[string(row.Key)] = row.Value
		}
	}
	gets := make([]kv.Future[[]byte], len(acked))
	for i, d := range acked {
		id := idOf(d, group)
		key := w.keys.item(id)
		if v := found[string(key)]; v != nil {
			gets[i] = kv.Done(v, nil)
		} else if gets[i] = a.gets[id]; gets[i] == nil {
			gets[i] = w.read.Get(key)
		}
	}
	a.values = make([][]byte, len(acked))
	for i := range gets {
		if a.values[i], err = gets[i].Wait(w.ctx); err != nil {
			return fmt.Errorf("read item: %w", err)
		}
	}
	a.place, err = w.clock()
	return err
}

// write archives the acked items, if the queue has an archive: a row archive for each item that check has found, and
// one row archived for all. The items are removed already, but the parts of their bodies are not.
func (a *archiving) write(w *txn, s *settlement) {
	if a.kept {
		w.archive(a.place, s.claim.Group, s.run.acked, a.values)
	}
}
