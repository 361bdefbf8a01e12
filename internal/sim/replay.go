package sim

import (
	"cmp"
	"context"
	"slices"

	"github.com/google/uuid"

	"fdbfifo/internal/linear"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// Replays of the archive. A replay enqueues a new message that names the one it repeats.

// mostReplays is how many a run has: each may double what is there.
const mostReplays = 3

// mostPortions is in how many calls a replay by portions may be done, each of at most portion items.
const mostPortions, portion = 12, 5

// replay replays the archive of a group, or of all: in one call, or by portions. At most one of a handle is under way, so
// that what it enqueues is known to be its own.
func (a *actor) replay() {
	h := a.w.handleOf(a.who)
	if a.w.replays >= mostReplays || h.replaying || a.rng.IntN(8) > 0 { // when there is much to replay
		return
	}
	a.w.replays++
	h.replaying = true
	var f layer.ArchiveFilter
	o := &op{kind: "replay", whole: true}
	if a.rng.IntN(2) == 0 {
		group := a.w.group(a.rng)
		f.Group, o.group = &group, group
	}
	f.All = f.Group == nil
	var err error
	if a.chance(a.w.knobs.inTx) {
		o.portions = true
		err = a.call(o, func(ctx context.Context) error { return a.replayPortions(ctx, f, o) })
	} else {
		err = a.call(o, func(ctx context.Context) error {
			r, err := a.q.Admin().Replay(ctx, f, layer.ReplayOptions{})
			o.replayed = r.Done
			return err
		})
	}
	// One that failed may go on for a while.
	h.replaying = err != nil
}

func (a *actor) replayPortions(ctx context.Context, f layer.ArchiveFilter, o *op) error {
	options := layer.ReplayOptions{Limit: portion}
	for range mostPortions {
		r, err := a.q.Admin().Replay(ctx, f, options)
		if err != nil {
			return err
		}
		o.replayed += r.Done
		if !r.More {
			return nil
		}
		options.After = r.Last
	}
	o.whole = false
	return nil
}

// replayHeader names the item that a message repeats.
const replayHeader = "fdbfifo-replay-of"

// keptAt is where an item stands in the archive.
type keptAt struct {
	r      *record // that put it there
	place  int64   // of the ack, its first item's index and random: the order of completion
	index  int64
	random uuid.UUID
	gone   *record // that cleared it
	body   string
}

// replayedItem is an item that repeats another.
type replayedItem struct {
	id, of layer.ID
	r      *record
}

// replays is what the model knows of the archive.
type replays struct {
	kept  map[layer.ID]*keptAt
	items []replayedItem
}

// keeps follows an item into the archive and out of it.
func (m *model) keeps(id layer.ID, value []byte) {
	if value == nil {
		if k := m.replays.kept[id]; k != nil {
			k.gone = m.r
		}
		return
	}
	head, _, err := headed(value)
	if err != nil {
		m.violation("archive: %v", err)
		return
	}
	t, err := tuple.Unpack(head)
	if err != nil || len(t) != 4 {
		m.violation("archive: %v, %v", t, err)
		return
	}
	k := &keptAt{r: m.r, body: m.group(id.Group).items[id].body}
	k.place, _ = t[1].(int64)
	k.index, _ = t[2].(int64)
	k.random, _ = t[3].(uuid.UUID)
	m.replays.kept[id] = k
}

// repeats notes an item that repeats another, and holds it to that.
func (m *model) repeats(id layer.ID, s stored) {
	of, err := layer.ParseID(s.replayOf)
	k := m.replays.kept[of]
	switch {
	case err != nil:
		m.violation("%s repeats %q: %v", id, s.replayOf, err)
		return
	case k == nil || of.Group != id.Group:
		m.violation("%s repeats %s, which is not in the archive of its group", id, of)
		return
	case s.body != k.body:
		m.violation("%s repeats %s, which has another body: %.40q, %.40q", id, of, s.body, k.body)
	}
	m.replays.items = append(m.replays.items, replayedItem{id, of, m.r})
	m.asides = append(m.asides, aside{m.r, id, linear.Put, s.headers})
	m.w.mark("replayed")
}

// compareReplays: a replay repeats what was finished before it began, each once and in order, and nothing that was finished
// after it had begun.
func (m *model) compareReplays() {
	nobody := make(map[layer.ID]bool)
	for _, i := range m.replays.items {
		nobody[i.id] = true
	}
	for _, o := range m.w.ops {
		if !o.is("replay") {
			continue
		}
		var mine []replayedItem
		for _, i := range m.replays.items {
			if i.r.who == o.who && o.maybeAt(i.r) && (o.group == "" || o.group == i.id.Group) {
				mine = append(mine, i)
				delete(nobody, i.id)
			}
		}
		if o.outcome == done {
			m.compareReplay(o, mine)
		}
	}
	for id := range nobody {
		m.w.report.Unexpected++
		m.w.violation("G3: unexpected: %s repeats what nobody has replayed", id)
	}
}

func (m *model) compareReplay(o *op, mine []replayedItem) {
	slices.SortStableFunc(mine, func(a, b replayedItem) int {
		return cmp.Or(cmp.Compare(a.r.order, b.r.order), cmp.Compare(a.id.Index, b.id.Index))
	})
	if int64(len(mine)) != o.replayed {
		m.w.violation("%s was told of %d items, and enqueued %d", o, o.replayed, len(mine))
	}
	order := func(a, b layer.ID) int {
		x, y := m.replays.kept[a], m.replays.kept[b]
		if c := cmp.Or(cmp.Compare(x.place, y.place), cmp.Compare(x.index, y.index), slices.Compare(x.random[:], y.random[:])); c != 0 && o.group == "" {
			return c
		}
		if before(a, b) {
			return -1
		}
		return 1
	}
	repeated := make(map[layer.ID]bool)
	steps := 0
	for n, i := range mine {
		if repeated[i.of] {
			m.w.report.Doubled++
			m.w.violation("G3: doubled: %s repeats %s twice", o, i.of)
		}
		repeated[i.of] = true
		if n > 0 && mine[n-1].r != i.r {
			steps++
		}
		for _, p := range mine[:n] { // in one transaction each group has an order of its own
			if (p.r != i.r || p.id.Group == i.id.Group) && p.of != i.of && order(p.of, i.of) > 0 {
				m.w.violation("%s repeats %s before %s", o, p.of, i.of)
			}
		}
		if k := m.replays.kept[i.of]; !o.portions && k.r.rv > mine[0].r.rv {
			m.w.violation("%s repeats %s, which was finished after it had begun", o, i.of)
		}
	}
	if steps > 0 {
		m.w.mark("replay in steps")
	}
	m.w.mark("replay")
	if !o.whole {
		return
	}
	for id, k := range m.replays.kept {
		if k.r.to < o.begin && (k.gone == nil || k.gone.from > o.end) && (o.group == "" || o.group == id.Group) && !repeated[id] {
			m.w.report.Lost++
			m.w.violation("G3: lost: %s does not repeat %s, which was finished at step %d", o, id, k.r.step)
		}
	}
}
