package kvtest

import (
	"math"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
)

func limits(u *suite) {
	deferredErrors(u)
	immediateErrors(u)
	u.promise("reads of keys over 10,000 bytes find nothing", func(s *space) {
		require.Nil(s.T, wait(s, s.begin().Get(s.longKey(10_001))))
	})
	u.promise("clears of keys over 10,000 bytes do nothing", func(s *space) {
		tx := s.begin()
		tx.Clear(s.longKey(10_001))
		s.commit(tx)
	})
	u.promise("more than 10,000,000 bytes fail at commit with 2101 and leave nothing", func(s *space) {
		tx := s.begin()
		for i := range 101 {
			tx.Set(s.key(strings.Repeat("k", i+1)), make([]byte, kv.MaxValueSize))
		}
		require.Equal(s.T, kv.CodeTransactionTooLarge, code(s, tx.Commit()))
		require.Empty(s.T, s.rows(s.begin(), s.all(), kv.RangeOptions{Limit: 1}))
	})
	u.promise("a transaction of 9,500,000 bytes commits", func(s *space) {
		tx := s.begin()
		for i := range 95 {
			tx.Set(s.key(strings.Repeat("k", i+1)), make([]byte, kv.MaxValueSize))
		}
		s.commit(tx)
	})
	u.promise("the size limit of the options holds, also after OnError", func(s *space) {
		tx := s.beginWith(kv.TxOptions{SizeLimit: 500})
		tx.Set(s.key("a"), make([]byte, 501))
		require.Equal(s.T, kv.CodeTransactionTooLarge, code(s, tx.Commit()))
		tx = s.beginWith(kv.TxOptions{SizeLimit: 500})
		wait(s, tx.OnError(&kv.Error{Code: kv.CodeNotCommitted}))
		tx.Set(s.key("a"), make([]byte, 501))
		require.Equal(s.T, kv.CodeTransactionTooLarge, code(s, tx.Commit()))
		tx = s.beginWith(kv.TxOptions{SizeLimit: 500})
		tx.Set(s.key("a"), []byte("small"))
		s.commit(tx)
	})
	u.promise("an option outside FoundationDB's limits is the nearest limit, also after OnError", func(s *space) {
		for _, o := range []kv.TxOptions{
			{SizeLimit: kv.MaxTransactionSize + 1}, {SizeLimit: math.MaxInt}, {Timeout: math.MaxInt64},
			{Timeout: (math.MaxInt32 + 1) * time.Millisecond}, {MaxRetryDelay: math.MaxInt64}, {Retries: math.MaxInt},
		} {
			first, second := s.beginWith(o), s.beginWith(o)
			first.Set(s.key("a"), nil)
			s.commit(first)
			wait(s, second.OnError(&kv.Error{Code: kv.CodeNotCommitted}))
			second.Set(s.key("a"), nil)
			s.commit(second)
		}
		tx := s.beginWith(kv.TxOptions{SizeLimit: 1})
		tx.Set(s.key("a"), nil)
		require.Equal(s.T, kv.CodeTransactionTooLarge, code(s, tx.Commit()))
	})
	u.promise("the approximate size grows with writes and conflict ranges, not with what is read", func(s *space) {
		s.set("a", string(make([]byte, 50_000)))
		tx := s.begin()
		empty := wait(s, tx.ApproximateSize())
		tx.Set(s.key("b"), make([]byte, 1000))
		written := wait(s, tx.ApproximateSize())
		require.GreaterOrEqual(s.T, written, empty+1000)
		wait(s, tx.Get(s.key("a")))
		read := wait(s, tx.ApproximateSize())
		require.Greater(s.T, read, written)
		require.Less(s.T, read, written+10_000)
		require.NoError(s.T, tx.AddWriteConflictRange(s.keys("c", "d")))
		require.Greater(s.T, wait(s, tx.ApproximateSize()), read)
	})
	sizes(u)
}

// sizes are in bytes, as FoundationDB 7.3 counts.
func sizes(u *suite) {
	const mutation, conflict = 44, 24
	for _, c := range []struct {
		script    string
		keys      int // of one byte behind the prefix
		other     int
		committed int // by how much a commit counts more; -1 = it commits nothing
	}{
		{"set a 12345", 3, 5 + mutation + conflict + 1, 0},
		{"noconflict; set a 12345", 1, 5 + mutation, 0},
		{"add a", 3, 1 + mutation + conflict + 1, 0},
		{"stampvalue a", 3, 14 + mutation + conflict + 1, 0},
		{"stampkey q", 1, 14 + len("stamped") + mutation, 0},
		{"clear a", 4, 1 + conflict + 1 + conflict, mutation - conflict},
		{"clearrange a z", 4, mutation + conflict, 0},
		{"clearrange a a", 4, mutation + conflict, -1},
		{"writeconflict a z", 2, conflict, 0},
		{"writeconflict a a", 0, 0, -1},
		{"readconflict a z", 2, conflict, -1},
		{"get a", 2, 1 + conflict, -1},
		{"snapshot get a", 0, 0, -1},
		{"noconflict; set b 1; range a z", 1 + 2*2, 1 + mutation + 2*conflict, -1}, // both parts count as the whole

		// A range within another one parts nothing.
		{"writeconflict b y; writeconflict d f; range a z", 2 + 2 + 3*2, 5 * conflict, -1},
		{"writeconflict b f; writeconflict d y; range a z", 2 + 2 + 4*2, 6 * conflict, -1},
		{"writeconflict d f; writeconflict b y; range a z", 2 + 2 + 5*2, 7 * conflict, -1},
	} {
		u.promise("the size in bytes of "+c.script, func(s *space) {
			tx := s.begin()
			require.NoError(s.T, s.run(tx, c.script))
			size := c.keys*len(s.key("k")) + c.other
			require.EqualValues(s.T, size, wait(s, tx.ApproximateSize()))
			if c.committed < 0 {
				return
			}
			for limit, want := range map[int]int{size + c.committed: 0, size + c.committed - 1: kv.CodeTransactionTooLarge} {
				tx := s.beginWith(kv.TxOptions{SizeLimit: limit})
				require.NoError(s.T, s.run(tx, c.script))
				require.Equal(s.T, want, code(s, tx.Commit()), "limit %d", limit)
			}
		})
	}
}

// deferredErrors: calls that return nothing keep their first error for every later read, watch and commit.
func deferredErrors(u *suite) {
	for _, c := range []struct {
		name string
		do   func(s *space, tx kv.Tx)
		want int
	}{
		{"a set of a key over 10,000 bytes", func(s *space, tx kv.Tx) { tx.Set(s.longKey(10_001), nil) }, 2102},
		{"an atomic on a key over 10,000 bytes", func(s *space, tx kv.Tx) {
			tx.Atomic(kv.Add, s.longKey(10_001), []byte{1})
		}, 2102},
		{"a value over 100,000 bytes", func(s *space, tx kv.Tx) { tx.Set(s.key("a"), make([]byte, 100_001)) }, 2103},
		{"an operand over 100,000 bytes", func(s *space, tx kv.Tx) {
			tx.Atomic(kv.BitOr, s.key("a"), make([]byte, 100_001))
		}, 2103},
		{"a set of \\xff", func(_ *space, tx kv.Tx) { tx.Set([]byte("\xff"), nil) }, 2004},
		{"a set beyond \\xff", func(_ *space, tx kv.Tx) { tx.Set([]byte("\xff\x01kvtest"), nil) }, 2004},
		{"a clear beyond \\xff", func(_ *space, tx kv.Tx) { tx.Clear([]byte("\xff\x01kvtest")) }, 2004},
		{"an atomic beyond \\xff", func(_ *space, tx kv.Tx) {
			tx.Atomic(kv.Add, []byte("\xff\x01kvtest"), []byte{1})
		}, 2004},
		{"a range clear that ends beyond \\xff", func(s *space, tx kv.Tx) {
			tx.ClearRange(kv.KeyRange{Begin: s.key("a"), End: []byte("\xff\x01kvtest")})
		}, 2004},
		{"an inverted range clear", func(s *space, tx kv.Tx) { tx.ClearRange(s.keys("b", "a")) }, 2005},
		{"the first of two errors", func(s *space, tx kv.Tx) {
			tx.ClearRange(s.keys("b", "a"))
			tx.Set(s.longKey(10_001), nil)
		}, 2005},
	} {
		u.promise(c.name+" is deferred to reads and the commit, until a reset", func(s *space) {
			tx := s.begin()
			tx.Set(s.key("a"), []byte("before"))
			c.do(s, tx)
			tx.Set(s.key("b"), []byte("after"))
			require.Equal(s.T, c.want, code(s, tx.Get(s.key("a"))))
			require.Equal(s.T, c.want, code(s, tx.Snapshot().Get(s.key("a"))))
			require.Equal(s.T, c.want, code(s, tx.GetKey(kv.FirstGreaterOrEqual(s.key("a")))))
			require.Equal(s.T, c.want, code(s, tx.GetRange(s.all().Selectors(), kv.RangeOptions{})))
			require.Equal(s.T, c.want, code(s, tx.Watch(s.key("a"))))
			require.Equal(s.T, c.want, code(s, tx.Commit()))
			require.Empty(s.T, s.rows(s.begin(), s.all(), kv.RangeOptions{}))
			tx.Reset()
			tx.Set(s.key("a"), nil)
			s.commit(tx)
		})
	}
}

// immediateErrors belong to one call and leave the transaction usable.
func immediateErrors(u *suite) {
	beyond := []byte("\xff\x01kvtest")
	for _, c := range []struct {
		name string
		do   func(s *space, tx kv.Tx) int
		want int
	}{
		{"a get of \\xff", func(s *space, tx kv.Tx) int { return code(s, tx.Get([]byte("\xff"))) }, 2004},
		{"a get beyond \\xff", func(s *space, tx kv.Tx) int { return code(s, tx.Get(beyond)) }, 2004},
		{"a snapshot get beyond \\xff", func(s *space, tx kv.Tx) int { return code(s, tx.Snapshot().Get(beyond)) }, 2004},
		{"a selector beyond \\xff", func(s *space, tx kv.Tx) int {
			return code(s, tx.GetKey(kv.FirstGreaterOrEqual(beyond)))
		}, 2004},
		{"a range that begins beyond \\xff", func(s *space, tx kv.Tx) int {
			r := kv.KeyRange{Begin: beyond, End: append(beyond, 0)}
			return code(s, tx.GetRange(r.Selectors(), kv.RangeOptions{Limit: 1}))
		}, 2004},
		{"a range that ends at \\xff", func(s *space, tx kv.Tx) int {
			r := kv.KeyRange{Begin: s.key("a"), End: []byte("\xff")}
			return code(s, tx.Snapshot().GetRange(r.Selectors(), kv.RangeOptions{Limit: 1}))
		}, 0},
		{"a watch beyond \\xff", func(s *space, tx kv.Tx) int { return code(s, tx.Watch(beyond)) }, 2004},
		{"a watch of a key over 10,000 bytes", func(s *space, tx kv.Tx) int {
			return code(s, tx.Watch(s.longKey(10_001)))
		}, 2102},
		{"an inverted read conflict range", func(s *space, tx kv.Tx) int {
			return errCode(s, tx.AddReadConflictRange(s.keys("b", "a")))
		}, 2005},
		{"an inverted write conflict range", func(s *space, tx kv.Tx) int {
			return errCode(s, tx.AddWriteConflictRange(s.keys("b", "a")))
		}, 2005},
		{"an empty read conflict range", func(s *space, tx kv.Tx) int {
			return errCode(s, tx.AddReadConflictRange(s.keys("a", "a")))
		}, 0},
		{"a range clear that ends at \\xff is legal: an empty one", func(_ *space, tx kv.Tx) int {
			tx.ClearRange(kv.KeyRange{Begin: []byte("\xff"), End: []byte("\xff")})
			return 0
		}, 0},
	} {
		u.promise(c.name+" is answered at once and leaves the transaction usable", func(s *space) {
			tx := s.begin()
			require.Equal(s.T, c.want, c.do(s, tx))
			tx.Set(s.key("k"), []byte("1"))
			s.commit(tx)
			require.Equal(s.T, "1", s.get("k"))
		})
	}
	u.promise("a negative limit is 2012, whatever else is wrong, and harms nothing", func(s *space) {
		bad := func(tx kv.Tx) int {
			return code(s, tx.GetRange(s.all().Selectors(), kv.RangeOptions{Limit: -1}))
		}
		tx := s.begin()
		require.Equal(s.T, kv.CodeRangeLimitsInvalid, bad(tx))
		tx.Set(s.key("a"), nil)
		s.commit(tx)
		require.Equal(s.T, kv.CodeRangeLimitsInvalid, bad(tx))
		wait(s, tx.OnError(&kv.Error{Code: kv.CodeNotCommitted}))
		tx.ClearRange(s.keys("b", "a"))
		require.Equal(s.T, kv.CodeRangeLimitsInvalid, bad(tx))
	})
}
