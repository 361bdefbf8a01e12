package kvtest

import (
	"bytes"
	"fmt"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
)

// plainAtomics are the operations whose result follows from the stored value and the operand alone.
func plainAtomics() []namedOp {
	return []namedOp{
		{"add", kv.Add}, {"and", kv.BitAnd}, {"or", kv.BitOr}, {"xor", kv.BitXor},
		{"append if fits", kv.AppendIfFits}, {"max", kv.Max}, {"min", kv.Min},
		{"byte min", kv.ByteMin}, {"byte max", kv.ByteMax}, {"compare and clear", kv.CompareAndClear},
	}
}

type namedOp struct {
	name string
	op   kv.MutationType
}

// operands meet in every pair: empty, shorter, longer, equal, carries, high bytes, zeros.
func operands() [][]byte {
	return [][]byte{
		{}, {0}, {1}, {0xff}, {1, 2}, {2, 1}, {0xff, 0xff}, {0xff, 0, 0}, {0, 0, 0, 1}, {0x0f, 0xf0, 0x55, 0xaa, 7},
		{1, 0, 0, 0, 0, 0, 0, 0}, {0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff},
	}
}

func atomics(u *suite) {
	for _, op := range plainAtomics() {
		u.promise(op.name+" agrees with the reference on stored and absent values", func(s *space) {
			s.everyPair(op.op)
		})
		u.promise(op.name+" agrees with the reference on pending values", func(s *space) {
			s.pendingPairs(op.op)
		})
	}
	u.promise("chains of operations are applied in order", chains)
	u.promise("append if fits keeps the value when the result would exceed 100,000 bytes", func(s *space) {
		half := bytes.Repeat([]byte("h"), kv.MaxValueSize-3)
		s.set("k", string(half))
		s.update(func(tx kv.Tx) { tx.Atomic(kv.AppendIfFits, s.key("k"), []byte("fits")) })
		require.Len(s.T, s.get("k"), len(half))
		s.update(func(tx kv.Tx) { tx.Atomic(kv.AppendIfFits, s.key("k"), []byte("fit")) })
		require.Len(s.T, s.get("k"), kv.MaxValueSize)
	})
	u.promise("operations of two transactions both count", func(s *space) {
		one, _ := s.at()
		two, _ := s.at()
		one.Atomic(kv.Add, s.key("n"), []byte{1, 0})
		two.Atomic(kv.Add, s.key("n"), []byte{2, 0})
		s.commit(one)
		s.commit(two)
		require.Equal(s.T, "\x03\x00", s.get("n"))
	})
	u.promise("an operation is applied to the value at commit, not at the read version", func(s *space) {
		s.set("n", "\x01")
		tx, _ := s.at()
		require.Equal(s.T, "\x01", s.getIn(tx.Snapshot(), "n"))
		tx.Atomic(kv.Add, s.key("n"), []byte{1})
		s.set("n", "\x10")
		s.commit(tx)
		require.Equal(s.T, "\x11", s.get("n"))
	})
}

// everyPair applies op to every existing value, and to an absent one, both as committed and as seen before commit.
func (s *space) everyPair(op kv.MutationType) {
	existing := append([][]byte{nil}, operands()...)
	name := func(i, j int) []byte { return s.key(fmt.Sprintf("%d/%d", i, j)) }
	s.update(func(tx kv.Tx) {
		for i, e := range existing {
			for j := range operands() {
				if e != nil {
					tx.Set(name(i, j), e)
				}
			}
		}
	})
	tx := s.begin()
	for i := range existing {
		for j, p := range operands() {
			tx.Atomic(op, name(i, j), p)
		}
	}
	require.NoError(s.T, s.comparePairs(tx, op, existing, name), "seen before the commit")
	s.commit(tx)
	require.NoError(s.T, s.comparePairs(s.begin(), op, existing, name), "seen after the commit")
}

func (s *space) comparePairs(tx kv.ReadTx, op kv.MutationType, existing [][]byte, name func(i, j int) []byte) error {
	for i, e := range existing {
		for j, p := range operands() {
			got, err := tx.Get(name(i, j)).Wait(s.ctx)
			if err != nil {
				return err
			}
			want := foldAtomic(op, e, p)
			if !bytes.Equal(want, got) || (want == nil) != (got == nil) {
				return fmt.Errorf("existing %s operand %x: got %s, want %s", hex(e), p, hex(got), hex(want))
			}
		}
	}
	return nil
}

func hex(v []byte) string {
	if v == nil {
		return absent
	}
	return fmt.Sprintf("%x", v)
}

// pendingPairs applies op over a value that is itself pending: an own set, and an own clear of a stored value.
func (s *space) pendingPairs(op kv.MutationType) {
	tx := s.begin()
	for i, e := range operands() {
		for j, p := range operands() {
			set, cleared := s.key(fmt.Sprintf("set/%d/%d", i, j)), s.key(fmt.Sprintf("cleared/%d/%d", i, j))
			tx.Set(set, e)
			tx.Atomic(op, set, p)
			tx.Set(cleared, e)
			tx.Clear(cleared)
			tx.Atomic(op, cleared, p)
		}
	}
	check := func(tx kv.ReadTx, when string) {
		for i, e := range operands() {
			for j, p := range operands() {
				require.Equal(s.T, shown(foldAtomic(op, e, p)), s.getIn(tx, fmt.Sprintf("set/%d/%d", i, j)),
					"%s: own set %x operand %x", when, e, p)
				require.Equal(s.T, shown(foldAtomic(op, nil, p)), s.getIn(tx, fmt.Sprintf("cleared/%d/%d", i, j)),
					"%s: own clear operand %x", when, p)
			}
		}
	}
	check(tx, "before the commit")
	s.commit(tx)
	check(s.begin(), "after the commit")
}

// chains applies every pair of operations, one after the other, to a stored value.
func chains(s *space) {
	p, q, stored := []byte{3, 9}, []byte{5}, []byte{0xfe, 1, 1}
	ops := plainAtomics()
	s.update(func(tx kv.Tx) {
		for i := range ops {
			for j := range ops {
				tx.Set(s.key(fmt.Sprintf("%d/%d", i, j)), stored)
			}
		}
	})
	tx := s.begin()
	for i, first := range ops {
		for j, second := range ops {
			k := s.key(fmt.Sprintf("%d/%d", i, j))
			tx.Atomic(first.op, k, p)
			tx.Atomic(second.op, k, q)
		}
	}
	check := func(tx kv.ReadTx, when string) {
		for i, first := range ops {
			for j, second := range ops {
				want := foldAtomic(second.op, foldAtomic(first.op, stored, p), q)
				require.Equal(s.T, shown(want), s.getIn(tx, fmt.Sprintf("%d/%d", i, j)),
					"%s: %s, then %s", when, first.name, second.name)
			}
		}
	}
	check(tx, "before the commit")
	s.commit(tx)
	check(s.begin(), "after the commit")
}
