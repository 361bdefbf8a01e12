package kvtest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
)

func versions(u *suite) {
	u.promise("a transaction older than the 5 s window is too old to read and to write", window)
	u.promise("SetReadVersion gives the view of another transaction", func(s *space) {
		s.set("a", "1")
		_, v := s.at()
		tx := s.begin()
		tx.SetReadVersion(v)
		require.Equal(s.T, v, wait(s, tx.ReadVersion()))
		require.Equal(s.T, "1", s.getIn(tx, "a"))
		tx.Set(s.key("b"), nil)
		s.commit(tx)
	})
	u.promise("SetReadVersion at a commit version shows that commit", func(s *space) {
		v := s.set("a", "1")
		tx := s.begin()
		tx.SetReadVersion(v)
		require.Equal(s.T, "1", s.getIn(tx, "a"))
	})
	u.promise("a read at an older version shows the state of then, or is too old", func(s *space) {
		v := s.set("a", "1")
		s.set("a", "2")
		tx := s.begin()
		tx.SetReadVersion(v)
		got, err := tx.Get(s.key("a")).Wait(s.ctx)
		if err != nil {
			require.Equal(s.T, kv.CodeTransactionTooOld, errCode(s, err))
			return
		}
		require.Equal(s.T, "1", string(got))
	})
	u.promise("conflicts count from the version that was set, strictly", func(s *space) {
		for _, c := range []struct {
			name  string
			later bool
			want  int
		}{
			{"a write at the version itself", false, 0},
			{"a write after it", true, kv.CodeNotCommitted},
		} {
			v := s.set("a", "1")
			if c.later {
				s.set("a", "2")
			}
			tx := s.begin()
			tx.SetReadVersion(v)
			require.NoError(s.T, s.run(tx, "readconflict a; set b"))
			require.Equal(s.T, c.want, code(s, tx.Commit()), c.name)
		}
	})
	u.promise("a second read version is a deferred 2010", func(s *space) {
		for _, first := range []string{"get a", "snapshot range a z", "key fge a"} {
			tx := s.begin()
			require.NoError(s.T, s.run(tx, first))
			tx.SetReadVersion(wait(s, tx.ReadVersion()))
			require.Equal(s.T, kv.CodeReadVersionAlreadySet, code(s, tx.Get(s.key("a"))), first)
			require.Equal(s.T, kv.CodeReadVersionAlreadySet, code(s, tx.Commit()), first)
		}
		_, v := s.at()
		tx := s.begin()
		tx.SetReadVersion(v)
		tx.SetReadVersion(v)
		require.Equal(s.T, kv.CodeReadVersionAlreadySet, code(s, tx.Get(s.key("a"))))
	})
	u.promise("a read version that is not positive is a deferred 2011", func(s *space) {
		for _, v := range []int64{0, -1} {
			tx := s.begin()
			tx.SetReadVersion(v)
			tx.Set(s.key("a"), nil)
			require.Equal(s.T, kv.CodeVersionInvalid, code(s, tx.Get(s.key("a"))))
			require.Equal(s.T, kv.CodeVersionInvalid, code(s, tx.Commit()))
		}
	})
	u.promise("writes do not fix the read version", func(s *space) {
		tx := s.begin()
		tx.Set(s.key("own"), nil)
		v := s.set("a", "1")
		require.GreaterOrEqual(s.T, wait(s, tx.ReadVersion()), v)
		require.Equal(s.T, "1", s.getIn(tx, "a"))
	})
	u.promise("a read at a version far in the future is 1009", func(s *space) {
		_, v := s.at()
		tx := s.begin()
		tx.SetReadVersion(v + 1_000_000_000_000)
		require.Equal(s.T, kv.CodeFutureVersion, code(s, tx.Get(s.key("a"))))
	})
	u.promise("versions advance while nothing commits", func(s *space) {
		if s.Advance == nil && testing.Short() {
			s.test.Skip("waits for seconds without a clock to advance")
		}
		_, v := s.at()
		s.pass(3 * time.Second)
		s.set("a", "1")
		_, later := s.at()
		require.Greater(s.T, later, v+1_000_000)
	})
}

// window lets six transactions grow too old at once.
func window(s *space) {
	if s.Advance == nil && testing.Short() {
		s.test.Skip("waits for 7 s without a clock to advance")
	}
	s.set("a", "1", "b", "2")
	reader, _ := s.at()
	writer, _ := s.at()
	snapshotWriter, _ := s.at()
	readOnly, _ := s.at()
	blind := s.begin()
	ack := s.begin()
	_, v := s.at()
	require.NoError(s.T, s.run(writer, "get a; set c"))
	require.NoError(s.T, s.run(snapshotWriter, "snapshot get a; set d"))
	require.NoError(s.T, s.run(readOnly, "get a"))
	require.NoError(s.T, s.run(blind, "set e 1; readconflict a"))
	s.pass(7 * time.Second)
	s.set("a", "2")

	require.Equal(s.T, kv.CodeTransactionTooOld, code(s, reader.Get(s.key("b"))))
	require.Equal(s.T, kv.CodeTransactionTooOld, code(s, writer.Commit()))
	require.Equal(s.T, kv.CodeTransactionTooOld, code(s, snapshotWriter.Commit()))
	require.EqualValues(s.T, -1, s.commit(readOnly))
	s.commit(blind)
	ack.SetReadVersion(v)
	require.NoError(s.T, s.run(ack, "readconflict b; set f"))
	require.Equal(s.T, kv.CodeTransactionTooOld, code(s, ack.Commit()))
	require.Equal(s.T, []string{"a=2", "b=2", "e=1"}, s.rows(s.begin(), s.all(), kv.RangeOptions{}))

	wait(s, reader.OnError(&kv.Error{Code: kv.CodeTransactionTooOld}))
	require.Equal(s.T, "2", s.getIn(reader, "b"))
}
