package kvtest

import (
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
)

func lifecycle(u *suite) {
	u.promise("a commit that wrote nothing has version -1", func(s *space) {
		for _, script := range []string{"", "get a", "range a z", "readconflict a z", "clearrange a a"} {
			tx := s.begin()
			require.NoError(s.T, s.run(tx, script))
			require.EqualValues(s.T, -1, s.commit(tx), script)
		}
	})
	u.promise("the committed version is -1 before the commit", func(s *space) {
		tx := s.begin()
		tx.Set(s.key("a"), nil)
		v, err := tx.CommittedVersion()
		require.NoError(s.T, err)
		require.EqualValues(s.T, -1, v)
		require.Positive(s.T, s.commit(tx))
	})
	u.promise("a write conflict range alone makes a commit with a version and a stamp", func(s *space) {
		tx, rv := s.at()
		stamp := tx.Versionstamp()
		require.NoError(s.T, tx.AddWriteConflictRange(kv.SingleKey(s.key("a"))))
		require.Greater(s.T, s.commit(tx), rv)
		wait(s, stamp)
	})
	u.promise("a write without a conflict range is still a write", func(s *space) {
		tx := s.begin()
		require.NoError(s.T, s.run(tx, "noconflict; set a 1"))
		require.Positive(s.T, s.commit(tx))
		require.Equal(s.T, "1", s.get("a"))
	})
	for _, c := range []struct {
		name string
		do   func(s *space, tx kv.ManagedTx) int
	}{
		{"get", func(s *space, tx kv.ManagedTx) int { return code(s, tx.Get(s.key("a"))) }},
		{"snapshot range", func(s *space, tx kv.ManagedTx) int {
			return code(s, tx.Snapshot().GetRange(s.all().Selectors(), kv.RangeOptions{}))
		}},
		{"get key", func(s *space, tx kv.ManagedTx) int { return code(s, tx.GetKey(kv.LastLessThan(s.key("a")))) }},
		{"watch", func(s *space, tx kv.ManagedTx) int { return code(s, tx.Watch(s.key("a"))) }},
		{"second commit", func(s *space, tx kv.ManagedTx) int { return code(s, tx.Commit()) }},
	} {
		u.promise("after a commit a "+c.name+" is 2017, until a reset", func(s *space) {
			tx := s.begin()
			tx.Set(s.key("a"), []byte("1"))
			v := s.commit(tx)
			require.Equal(s.T, kv.CodeUsedDuringCommit, c.do(s, tx))
			again, err := tx.CommittedVersion()
			require.NoError(s.T, err)
			require.Equal(s.T, v, again)
			tx.Reset()
			require.Equal(s.T, "1", s.getIn(tx, "a"))
			tx.Set(s.key("a"), []byte("2"))
			require.Greater(s.T, s.commit(tx), v)
			require.Equal(s.T, "2", s.get("a"))
		})
	}
	u.promise("after a failed commit too, operations are 2017 until OnError or a reset", func(s *space) {
		tx, _ := s.at()
		require.NoError(s.T, s.run(tx, "get a; set b"))
		s.set("a", "1")
		require.Equal(s.T, kv.CodeNotCommitted, code(s, tx.Commit()))
		require.Equal(s.T, kv.CodeUsedDuringCommit, code(s, tx.Get(s.key("a"))))
	})
	u.promise("after Cancel everything is 1025, until a reset", func(s *space) {
		tx := s.begin()
		tx.Set(s.key("a"), nil)
		tx.Cancel()
		tx.Cancel()
		require.Equal(s.T, kv.CodeTransactionCancelled, code(s, tx.Get(s.key("a"))))
		require.Equal(s.T, kv.CodeTransactionCancelled, code(s, tx.GetKey(kv.LastLessThan(s.key("a")))))
		require.Equal(s.T, kv.CodeTransactionCancelled,
			code(s, tx.GetRange(s.all().Selectors(), kv.RangeOptions{})))
		require.Equal(s.T, kv.CodeTransactionCancelled, code(s, tx.ReadVersion()))
		require.Equal(s.T, kv.CodeTransactionCancelled, code(s, tx.Watch(s.key("a"))))
		require.Equal(s.T, kv.CodeTransactionCancelled, code(s, tx.Commit()))
		require.Equal(s.T, kv.CodeTransactionCancelled,
			code(s, tx.OnError(&kv.Error{Code: kv.CodeNotCommitted})))
		tx.Reset()
		require.Equal(s.T, absent, s.getIn(tx, "a"))
		s.commit(tx)
	})
	u.promise("Reset forgets writes, conflict ranges and the read version", func(s *space) {
		tx, rv := s.at()
		require.NoError(s.T, s.run(tx, "get a; readconflict a z; writeconflict a z; set a own; clear b; add c"))
		s.set("a", "1")
		tx.Reset()
		require.Greater(s.T, wait(s, tx.ReadVersion()), rv)
		require.Equal(s.T, []string{"a=1"}, s.rows(tx, s.all(), kv.RangeOptions{}))
		tx.Reset()
		require.EqualValues(s.T, -1, s.commit(tx))
	})
	u.promise("results that were there before a reset stay", func(s *space) {
		s.set("a", "1")
		tx := s.begin()
		f := tx.Get(s.key("a"))
		require.Equal(s.T, "1", shown(wait(s, f)))
		tx.Reset()
		require.Equal(s.T, "1", shown(wait(s, f)))
		f.Cancel()
		require.Equal(s.T, "1", shown(wait(s, f)))
	})
	u.promise("the commit waits for reads in flight and takes their conflict ranges", func(s *space) {
		s.set("a", "1")
		tx, _ := s.at()
		f := tx.Get(s.key("a"))
		tx.Set(s.key("b"), nil)
		s.set("a", "2")
		require.Equal(s.T, kv.CodeNotCommitted, code(s, tx.Commit()))
		require.Equal(s.T, "1", shown(wait(s, f)))
	})
	u.promise("a failed read fails the commit with its error", func(s *space) {
		tx, _ := s.at()
		require.NoError(s.T, s.run(tx, "stampvalue a"))
		tx.Get(s.key("a"))
		require.Equal(s.T, kv.CodeAccessedUnreadable, code(s, tx.Commit()))
	})
	u.promise("clears apply before sets as they were issued", func(s *space) {
		s.set("a", "1", "b", "2")
		s.update(func(tx kv.Tx) {
			require.NoError(s.T, s.run(tx, "set a new; clearrange a z; set b new; set c new; clear c"))
		})
		require.Equal(s.T, []string{"b=new"}, s.rows(s.begin(), s.all(), kv.RangeOptions{}))
	})
}
