package embedded

import (
	"slices"
	"sync/atomic"

	"github.com/tidwall/btree"
)

// memStore keeps pairs in a copy-on-write B-tree of pointers to immutable pairs: a snapshot costs nothing, and
// the nodes it shares are copied once when the tree changes while the snapshot is open.
type memStore struct {
	tree   *btree.BTreeG[*pair]
	unread btree.BTreeG[*pair] // tree as it was before the first view since the last write
	views  []*memView          // since the last write
}

type pair struct{ key, value string }

// treeDegree is a compromise: a lookup compares fewer keys, or a write after a fresh snapshot copies fewer.
const treeDegree = 8

func newMemStore() *memStore {
	less := func(a, b *pair) bool { return a.key < b.key }
	return &memStore{tree: btree.NewBTreeGOptions(less, btree.Options{NoLocks: true, Degree: treeDegree})}
}

func (s *memStore) snapshot() (view, error) {
	if len(s.views) == 0 {
		s.unread = *s.tree
	}
	v := &memView{tree: s.tree.IsoCopy()} // from here on the tree copies what it changes
	s.views = append(s.views, v)
	return v, nil
}

func (s *memStore) apply(_ int64, batch []mutation) error {
	s.forgetClosed()
	return execute(s, batch)
}

// forgetClosed spares the next write its copies if all views since the last write are closed. The tree copies a node
// before it changes it only because a view may read the node. forgetClosed restores the tree from before those views.
// Older views are safe, because the tree has copied their nodes already.
func (s *memStore) forgetClosed() {
	if len(s.views) == 0 {
		return
	}
	if !slices.ContainsFunc(s.views, func(v *memView) bool { return !v.closed.Load() }) {
		*s.tree = s.unread
	}
	s.unread = btree.BTreeG[*pair]{}
	clear(s.views)
	s.views = s.views[:0]
}

func (s *memStore) close() error { return nil }

func (s *memStore) get(key string) value {
	probe := pair{key: key}
	if p, ok := s.tree.Get(&probe); ok {
		return value{p.value, true}
	}
	return value{}
}

func (s *memStore) set(key, value string) error {
	s.tree.Set(&pair{key, value})
	return nil
}

func (s *memStore) clearRange(r keyRange) error {
	if r.isSingle() {
		s.tree.Delete(&pair{key: r.begin})
		return nil
	}
	doomed := make([]*pair, 0, 16)
	s.tree.Ascend(&pair{key: r.begin}, func(p *pair) bool {
		if p.key >= r.end {
			return false
		}
		doomed = append(doomed, p)
		return true
	})
	for _, p := range doomed {
		s.tree.Delete(p)
	}
	return nil
}

type memView struct {
	tree   *btree.BTreeG[*pair]
	closed atomic.Bool
}

func (v *memView) get(key string) (value, error) {
	probe := pair{key: key}
	if p, ok := v.tree.Get(&probe); ok {
		return value{p.value, true}, nil
	}
	return value{}, nil
}

func (v *memView) ascend(r keyRange, _ bool, fn func(key, value string) bool) error {
	v.tree.Ascend(&pair{key: r.begin}, func(p *pair) bool {
		return (r.end == "" || p.key < r.end) && fn(p.key, p.value)
	})
	return nil
}

func (v *memView) descend(r keyRange, _ bool, fn func(key, value string) bool) error {
	visit := func(p *pair) bool {
		if r.end != "" && p.key == r.end {
			return true // Descend begins with its pivot, and the end is exclusive.
		}
		return p.key >= r.begin && fn(p.key, p.value)
	}
	if r.end == "" {
		v.tree.Reverse(visit)
	} else {
		v.tree.Descend(&pair{key: r.end}, visit)
	}
	return nil
}

func (v *memView) close() { v.closed.Store(true) }
