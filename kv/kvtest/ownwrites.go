package kvtest

import (
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
)

// ownWrites: reads see the transaction's own writes, snapshot reads too, as they stood when the read was issued.
func ownWrites(u *suite) {
	// Before each: a=1, c=3, e=5 are stored. The rows are those of the whole range after the writes.
	for _, c := range []struct {
		name, writes string
		want         []string
	}{
		{"a set is seen", "set b x", []string{"a=1", "b=x", "c=3", "e=5"}},
		{"a set replaces", "set c x", []string{"a=1", "c=x", "e=5"}},
		{"a clear is seen", "clear c", []string{"a=1", "e=5"}},
		{"a clear of an absent key changes nothing", "clear b", []string{"a=1", "c=3", "e=5"}},
		{"a range clear is seen, its end excluded", "clearrange a e", []string{"e=5"}},
		{"an empty range clear changes nothing", "clearrange c c", []string{"a=1", "c=3", "e=5"}},
		{"a set after a clear is seen", "clear c; set c x", []string{"a=1", "c=x", "e=5"}},
		{"a set inside a cleared range is seen", "clearrange a z; set d x", []string{"d=x"}},
		{"a clear after a set is seen", "set b x; clear b", []string{"a=1", "c=3", "e=5"}},
		{"a range clear after sets is seen", "set b x; set f y; clearrange b f", []string{"a=1", "f=y"}},
		{"a pending atomic is folded over the stored value", "add a", []string{"a=2", "c=3", "e=5"}},
		{"pending atomics are folded in order", "add a; add a", []string{"a=3", "c=3", "e=5"}},
		{"an atomic on an own set is folded", "set b 7; add b", []string{"a=1", "b=8", "c=3", "e=5"}},
		{"an atomic on a cleared key sees an absent one", "clear a; add a", []string{"a=\x01", "c=3", "e=5"}},
		{"an atomic in a cleared range sees an absent key", "clearrange a z; add c", []string{"c=\x01"}},
		{"a set after an atomic replaces", "add a; set a x", []string{"a=x", "c=3", "e=5"}},
		{"a clear after an atomic clears", "add a; clear a", []string{"c=3", "e=5"}},
	} {
		u.promise(c.name, func(s *space) {
			s.set("a", "1", "c", "3", "e", "5")
			tx := s.begin()
			require.NoError(s.T, s.run(tx, c.writes))
			for _, view := range []kv.ReadTx{tx, tx.Snapshot()} {
				require.Equal(s.T, c.want, s.rows(view, s.all(), kv.RangeOptions{}))
				s.requireEachGet(view, c.want)
			}
			// The transaction commits the values that it saw.
			s.commit(tx)
			require.Equal(s.T, c.want, s.rows(s.begin(), s.all(), kv.RangeOptions{}))
		})
	}
	u.promise("a read sees the writes issued before the call and none after it", frozenReads)
	u.promise("a read that is frozen adds the conflict range of its own moment", func(s *space) {
		s.set("a", "1")
		tx, _ := s.at()
		f := tx.Get(s.key("a"))
		tx.Set(s.key("a"), []byte("own"))
		require.Equal(s.T, "1", shown(wait(s, f)))
		s.set("a", "2")
		require.Equal(s.T, kv.CodeNotCommitted, code(s, tx.Commit()))
	})
	u.promise("a range whose rows and bounds own writes decide takes no read version", func(s *space) {
		s.set("x", "1")
		tx := s.begin()
		tx.ClearRange(s.keys("a", "k"))
		tx.Set(s.key("c"), []byte("own"))
		// Behind c. Where the next key lies, in the database, need not be known.
		end := kv.KeySelector{Key: s.key("b"), Offset: 2}
		rows := wait(s, tx.GetRange(kv.Range{Begin: kv.FirstGreaterOrEqual(s.key("a")), End: end},
			kv.RangeOptions{Limit: 1, Reverse: true}))
		require.Equal(s.T, []string{"c=own"}, s.shownRows(rows))
		later := s.set("x", "2")
		require.GreaterOrEqual(s.T, wait(s, tx.ReadVersion()), later)
	})
	u.promise("an empty value is present and an absent key is nil", func(s *space) {
		s.set("empty", "")
		for _, view := range []kv.ReadTx{s.begin(), s.begin().Snapshot()} {
			v := wait(s, view.Get(s.key("empty")))
			require.NotNil(s.T, v)
			require.Empty(s.T, v)
			require.Nil(s.T, wait(s, view.Get(s.key("none"))))
		}
		tx := s.begin()
		tx.Set(s.key("own"), nil)
		require.NotNil(s.T, wait(s, tx.Get(s.key("own"))))
		require.Equal(s.T, []string{"empty=", "own="}, s.rows(tx, s.all(), kv.RangeOptions{}))
		tx.Clear(s.key("own"))
		require.Nil(s.T, wait(s, tx.Get(s.key("own"))))
	})
	u.promise("keys and values given are copied, those returned belong to the caller", copies)
	u.promise("keys are ordered as unsigned bytes", func(s *space) {
		s.set("\x80", "3", "\x00", "1", "\x00\x00", "2", "\xff", "4", "\xff\x00", "5", "", "0")
		require.Equal(s.T, []string{"=0", "\x00=1", "\x00\x00=2", "\x80=3", "\xff=4", "\xff\x00=5"},
			s.rows(s.begin(), kv.KeyRange{Begin: s.key(""), End: s.all().End}, kv.RangeOptions{}))
	})
}

// requireEachGet reads every key of the small alphabet by Get and compares with the rows of the range read.
func (s *space) requireEachGet(view kv.ReadTx, rows []string) {
	want := map[string]string{}
	for _, r := range rows {
		want[r[:1]] = r[2:]
	}
	for _, k := range []string{"a", "b", "c", "d", "e", "f"} {
		v, ok := want[k]
		if !ok {
			v = absent
		}
		require.Equal(s.T, v, s.getIn(view, k), "key %s", k)
	}
}

func frozenReads(s *space) {
	s.set("a", "1", "c", "3")
	tx := s.begin()
	tx.Set(s.key("b"), []byte("2"))
	get, snapshot := tx.Get(s.key("a")), tx.Snapshot().Get(s.key("a"))
	own := tx.Get(s.key("b"))
	rows := tx.GetRange(s.all().Selectors(), kv.RangeOptions{})
	key := tx.GetKey(kv.FirstGreaterOrEqual(s.key("bb")))
	tx.Set(s.key("a"), []byte("later"))
	tx.Clear(s.key("b"))
	tx.ClearRange(s.keys("b", "z"))
	tx.Set(s.key("bbb"), []byte("later"))
	require.Equal(s.T, "1", shown(wait(s, get)))
	require.Equal(s.T, "1", shown(wait(s, snapshot)))
	require.Equal(s.T, "2", shown(wait(s, own)))
	require.Equal(s.T, []string{"a=1", "b=2", "c=3"}, s.shownRows(wait(s, rows)))
	require.Equal(s.T, "c", s.short(wait(s, key)))
	require.Equal(s.T, []string{"a=later", "bbb=later"}, s.rows(tx, s.all(), kv.RangeOptions{}))
}

func copies(s *space) {
	spoil := func(b []byte) {
		for i := range b {
			b[i] = 'X'
		}
	}
	tx := s.begin()
	k, v := s.key("k"), []byte("value")
	tx.Set(k, v)
	spoil(k)
	spoil(v)
	ck := s.key("c")
	tx.Atomic(kv.ByteMax, ck, v)
	spoil(ck)
	r := s.keys("p", "q")
	require.NoError(s.T, tx.AddWriteConflictRange(r))
	spoil(r.Begin)
	spoil(r.End)
	spoil(wait(s, tx.Get(s.key("k"))))
	require.Equal(s.T, "value", s.getIn(tx, "k"))
	for _, row := range wait(s, tx.GetRange(s.all().Selectors(), kv.RangeOptions{})) {
		spoil(row.Key)
		spoil(row.Value)
	}
	require.Equal(s.T, []string{"c=XXXXX", "k=value"}, s.rows(tx, s.all(), kv.RangeOptions{}))
	spoil(wait(s, tx.GetKey(kv.FirstGreaterOrEqual(s.key("d")))))
	s.commit(tx)

	reader := s.begin()
	spoil(wait(s, reader.Get(s.key("k"))))
	for _, row := range wait(s, reader.GetRange(s.all().Selectors(), kv.RangeOptions{})) {
		spoil(row.Key)
		spoil(row.Value)
	}
	spoil(wait(s, reader.GetKey(kv.FirstGreaterOrEqual(s.key("k")))))
	require.Equal(s.T, "value", s.getIn(reader, "k"))
	require.Equal(s.T, []string{"c=XXXXX", "k=value"}, s.rows(s.begin(), s.all(), kv.RangeOptions{}))
}
