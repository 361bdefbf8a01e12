package kvtest

import (
	"encoding/binary"
	"fmt"
	"sync"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
)

// isolation holds the basics of strict serialisability.
func isolation(u *suite) {
	u.promise("a read version covers every acknowledged commit", func(s *space) {
		for i := range 20 {
			committed := s.set("k", fmt.Sprint(i))
			tx, rv := s.at()
			require.GreaterOrEqual(s.T, rv, committed)
			require.Equal(s.T, fmt.Sprint(i), s.getIn(tx, "k"))
		}
	})
	u.promise("commit versions grow and lie above the read version", func(s *space) {
		last := int64(0)
		for range 20 {
			tx, rv := s.at()
			tx.Set(s.key("k"), nil)
			v := s.commit(tx)
			require.Greater(s.T, v, rv)
			require.Greater(s.T, v, last)
			last = v
		}
	})
	u.promise("all reads of a transaction see one version", func(s *space) {
		s.set("a", "old", "b", "old")
		tx := s.begin()
		require.Equal(s.T, "old", s.getIn(tx, "a"))
		s.set("a", "new", "b", "new", "c", "new")
		require.Equal(s.T, "old", s.getIn(tx, "b"))
		require.Equal(s.T, "old", s.getIn(tx.Snapshot(), "b"))
		require.Equal(s.T, absent, s.getIn(tx.Snapshot(), "c"))
		require.Equal(s.T, []string{"a=old", "b=old"}, s.rows(tx, s.all(), kv.RangeOptions{}))
		require.Equal(s.T, "b", s.short(wait(s, tx.GetKey(kv.LastLessThan(s.key("d"))))))
	})
	u.promise("the read version is fixed once", func(s *space) {
		tx, v := s.at()
		s.set("a", "1")
		require.Equal(s.T, v, wait(s, tx.ReadVersion()))
		require.Equal(s.T, v, wait(s, tx.Snapshot().ReadVersion()))
	})
	u.promise("writes are invisible before the commit and visible after it", func(s *space) {
		tx := s.begin()
		tx.Set(s.key("a"), []byte("1"))
		require.Equal(s.T, absent, s.get("a"))
		s.commit(tx)
		require.Equal(s.T, "1", s.get("a"))
	})
	u.promise("a failed commit leaves nothing behind", func(s *space) {
		s.set("a", "old", "z", "old")
		tx, _ := s.at()
		require.NoError(s.T, s.run(tx, "get a; set b; clear z; add c"))
		s.set("a", "new")
		require.Equal(s.T, kv.CodeNotCommitted, code(s, tx.Commit()))
		require.Equal(s.T, []string{"a=new", "z=old"}, s.rows(s.begin(), s.all(), kv.RangeOptions{}))
	})
	u.promise("a transaction that is dropped leaves nothing behind", func(s *space) {
		s.begin().Set(s.key("a"), nil)
		tx := s.begin()
		tx.Set(s.key("a"), nil)
		tx.Cancel()
		require.Equal(s.T, absent, s.get("a"))
	})
	u.promise("write skew is prevented", func(s *space) {
		one, _ := s.at()
		two, _ := s.at()
		require.NoError(s.T, s.run(one, "get a; set b"))
		require.NoError(s.T, s.run(two, "get b; set a"))
		require.Equal(s.T, 0, code(s, one.Commit()))
		require.Equal(s.T, kv.CodeNotCommitted, code(s, two.Commit()))
	})
	u.promise("phantoms are prevented", func(s *space) {
		one, _ := s.at()
		two, _ := s.at()
		require.NoError(s.T, s.run(one, "range a m; set b"))
		require.NoError(s.T, s.run(two, "range a m; set c"))
		require.Equal(s.T, 0, code(s, one.Commit()))
		require.Equal(s.T, kv.CodeNotCommitted, code(s, two.Commit()))
	})
	u.promise("snapshot reads allow write skew", func(s *space) {
		one, _ := s.at()
		two, _ := s.at()
		require.NoError(s.T, s.run(one, "snapshot get a; set b"))
		require.NoError(s.T, s.run(two, "snapshot get b; set a"))
		require.Equal(s.T, 0, code(s, one.Commit()))
		require.Equal(s.T, 0, code(s, two.Commit()))
	})
	u.promise("blind writes never conflict and the later commit wins", func(s *space) {
		one, _ := s.at()
		two, _ := s.at()
		one.Set(s.key("a"), []byte("1"))
		two.Set(s.key("a"), []byte("2"))
		s.commit(two)
		s.commit(one)
		require.Equal(s.T, "1", s.get("a"))
	})
	u.promise("no update is lost among concurrent increments", func(s *space) {
		const workers, each = 8, 10
		var all []<-chan error
		for range workers {
			all = append(all, s.start(func() error { return s.increment("n", each) }))
		}
		for _, done := range all {
			require.NoError(s.T, <-done)
		}
		n := wait(s, s.begin().Get(s.key("n")))
		require.Len(s.T, n, 8)
		require.EqualValues(s.T, workers*each, binary.LittleEndian.Uint64(n))
	})
	u.promise("concurrent readers always see the sum of transfers unchanged", transfers)
	u.promise("a transaction takes reads from several goroutines", func(s *space) {
		s.set("a", "1", "b", "2", "c", "3")
		tx := s.begin()
		var wg sync.WaitGroup
		got := make([]string, 30)
		for i := range got {
			wg.Go(func() {
				v, err := tx.Get(s.key(string("abc"[i%3]))).Wait(s.ctx)
				if err == nil {
					got[i] = string(v)
				}
			})
		}
		wg.Wait()
		for i, v := range got {
			require.Equal(s.T, string("123"[i%3]), v)
		}
	})
}

// increment adds 1 to the number under k, n times, each by a read and a write.
func (s *space) increment(k string, n int) error {
	for range n {
		_, err := kv.Run(s.ctx, s.DB, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			v, err := tx.Get(s.key(k)).Wait(s.ctx)
			if err != nil {
				return err
			}
			var b [8]byte
			copy(b[:], v)
			binary.LittleEndian.PutUint64(b[:], binary.LittleEndian.Uint64(b[:])+1)
			tx.Set(s.key(k), b[:])
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// transfers moves units between four accounts while a reader adds them up.
func transfers(s *space) {
	const accounts, total, moves = 4, 40, 30
	s.set("0", string([]byte{total}), "1", string([]byte{0}), "2", string([]byte{0}), "3", string([]byte{0}))
	for from := range accounts {
		done := s.start(func() error { return s.move(from, (from+1)%accounts, moves) })
		next := s.start(func() error { return s.move((from+2)%accounts, from, moves) })
		for done != nil || next != nil {
			select {
			case err := <-done:
				require.NoError(s.T, err)
				done = nil
			case err := <-next:
				require.NoError(s.T, err)
				next = nil
			default:
				require.Equal(s.T, total, s.sum())
			}
		}
	}
}

// sum adds up all accounts at one version.
func (s *space) sum() int {
	tx := s.begin()
	defer tx.Cancel()
	sum := 0
	for _, row := range wait(s, tx.Snapshot().GetRange(s.all().Selectors(), kv.RangeOptions{})) {
		sum += int(row.Value[0])
	}
	return sum
}

func (s *space) move(from, to, n int) error {
	for range n {
		_, err := kv.Run(s.ctx, s.DB, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			f, t := tx.Get(s.key(fmt.Sprint(from))), tx.Get(s.key(fmt.Sprint(to)))
			fv, err := f.Wait(s.ctx)
			if err != nil {
				return err
			}
			tv, err := t.Wait(s.ctx)
			if err != nil {
				return err
			}
			if len(fv) != 1 || len(tv) != 1 {
				return fmt.Errorf("accounts %d and %d hold %x and %x", from, to, fv, tv)
			}
			if fv[0] == 0 {
				return nil
			}
			tx.Set(s.key(fmt.Sprint(from)), []byte{fv[0] - 1})
			tx.Set(s.key(fmt.Sprint(to)), []byte{tv[0] + 1})
			return nil
		})
		if err != nil {
			return err
		}
	}
	return nil
}
