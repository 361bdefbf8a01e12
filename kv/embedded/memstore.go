package embedded

import "github.com/tidwall/btree"

// memStore keeps pairs in a copy-on-write B-tree of pointers to immutable pairs: a snapshot costs nothing, and
// the nodes it shares are copied once when the tree changes.
type memStore struct{ tree *btree.BTreeG[*pair] }

type pair struct{ key, value string }

// treeDegree balances what a lookup compares with what a write below a fresh snapshot copies.
const treeDegree = 8

func newMemStore() *memStore {
	less := func(a, b *pair) bool { return a.key < b.key }
	return &memStore{btree.NewBTreeGOptions(less, btree.Options{NoLocks: true, Degree: treeDegree})}
}

func (s *memStore) snapshot() (view, error) { return memView{s.tree.IsoCopy()}, nil }

func (s *memStore) apply(_ int64, batch []mutation) error { return execute(s, batch) }

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
	var doomed []*pair
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

type memView struct{ tree *btree.BTreeG[*pair] }

func (v memView) get(key string) (value, error) {
	probe := pair{key: key}
	if p, ok := v.tree.Get(&probe); ok {
		return value{p.value, true}, nil
	}
	return value{}, nil
}

func (v memView) ascend(r keyRange, _ bool, fn func(key, value string) bool) error {
	v.tree.Ascend(&pair{key: r.begin}, func(p *pair) bool {
		return (r.end == "" || p.key < r.end) && fn(p.key, p.value)
	})
	return nil
}

func (v memView) descend(r keyRange, _ bool, fn func(key, value string) bool) error {
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

func (memView) close() {}
