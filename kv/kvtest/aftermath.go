package kvtest

import (
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
)

// aftermath: what a transaction still answers after a commit, after a write that failed, and after a failed read.
func aftermath(u *suite) {
	for _, script := range []string{"", "get a", "set a", "get a; set a"} {
		u.promise("after a commit the read version is still answered, until another use is 2017: "+script,
			func(s *space) {
				tx := s.begin()
				require.NoError(s.T, s.run(tx, script))
				s.commit(tx)
				v := wait(s, tx.ReadVersion())
				require.Positive(s.T, v)
				require.Equal(s.T, v, wait(s, tx.ReadVersion()))
				require.Equal(s.T, kv.CodeUsedDuringCommit, code(s, tx.Get(s.key("a"))))
				require.Equal(s.T, kv.CodeUsedDuringCommit, code(s, tx.ReadVersion()))
			})
	}
	u.promise("the committed version outlives resets, cancels and commits that fail", committedVersionStays)
	usesAfterCommit(u)
	u.promise("the conflict ranges are listed after a commit", func(s *space) {
		tx := s.begin()
		require.NoError(s.T, s.run(tx, "get a; set b"))
		read, write := conflictRanges(s, tx)
		s.commit(tx)
		readAfter, writeAfter := conflictRanges(s, tx)
		require.Equal(s.T, []kv.KeyRange{kv.SingleKey(s.key("a"))}, read)
		require.Equal(s.T, []kv.KeyRange{kv.SingleKey(s.key("b"))}, write)
		require.Equal(s.T, read, readAfter)
		require.Equal(s.T, write, writeAfter)
	})
	u.promise("after the commit the conflict range of a versionstamped key is that key", func(s *space) {
		tx := s.begin()
		stamp := tx.Versionstamp()
		require.NoError(s.T, s.run(tx, "stampkey q"))
		_, write := conflictRanges(s, tx)
		require.Len(s.T, write, 1)
		require.NotEqual(s.T, kv.SingleKey(write[0].Begin), write[0], "before it, where the key may come to lie")
		s.commit(tx)
		_, write = conflictRanges(s, tx)
		got := wait(s, stamp)
		require.Equal(s.T, []kv.KeyRange{kv.SingleKey(append(s.key("q"), got[:]...))}, write)
	})
	u.promise("the commit has the conflict ranges of earlier writes to where its versionstamped key may lie, listed or not",
		func(s *space) {
			reader, _ := s.at()
			require.NoError(s.T, s.run(reader, "get qq; set a"))
			s.update(func(tx kv.Tx) { require.NoError(s.T, s.run(tx, "clearrange q r; stampkey q")) })
			require.Equal(s.T, kv.CodeNotCommitted, code(s, reader.Commit()))
		})
	for _, c := range []struct {
		name string
		do   func(s *space, tx kv.ManagedTx)
		want int
	}{
		{"a failed write", func(s *space, tx kv.ManagedTx) { tx.ClearRange(s.keys("b", "a")) }, 2005},
		{"a failed read", func(s *space, tx kv.ManagedTx) {
			require.NoError(s.T, s.run(tx, "stampvalue a"))
			require.Equal(s.T, kv.CodeAccessedUnreadable, code(s, tx.Get(s.key("a"))))
		}, 1036},
		{"Cancel", func(_ *space, tx kv.ManagedTx) { tx.Cancel() }, 1025},
		{"a use after the commit", func(s *space, tx kv.ManagedTx) {
			s.commit(tx)
			require.Equal(s.T, kv.CodeUsedDuringCommit, code(s, tx.Get(s.key("a"))))
		}, 2017},
	} {
		u.promise("listing the conflict ranges after "+c.name+" is its error", func(s *space) {
			tx := s.begin()
			c.do(s, tx)
			_, _, err := reporter(s, tx).ConflictRanges(s.ctx)
			require.Equal(s.T, c.want, errCode(s, err))
		})
	}
	unsentCommits(u)
}

// reporter skips the test of an engine that cannot list conflict ranges.
func reporter(s *space, tx kv.Tx) kv.ConflictReporter {
	r, ok := tx.(kv.ConflictReporter)
	if !ok {
		s.test.Skip("the engine does not list conflict ranges")
	}
	return r
}

func conflictRanges(s *space, tx kv.Tx) (read, write []kv.KeyRange) {
	read, write, err := reporter(s, tx).ConflictRanges(s.ctx)
	require.NoError(s.T, err)
	return read, write
}

func committedVersionStays(s *space) {
	tx := s.begin()
	tx.Set(s.key("a"), []byte("1"))
	first := s.commit(tx)
	require.Positive(s.T, first)
	stays := func(when string) {
		v, err := tx.CommittedVersion()
		require.NoError(s.T, err)
		require.Equal(s.T, first, v, when)
	}
	tx.Reset()
	stays("after a reset")
	require.NoError(s.T, s.run(tx, "get a; set b"))
	s.set("a", "2")
	require.Equal(s.T, kv.CodeNotCommitted, code(s, tx.Commit()))
	stays("after a commit that failed")
	wait(s, tx.OnError(&kv.Error{Code: kv.CodeNotCommitted}))
	stays("after OnError")
	tx.Cancel()
	stays("after Cancel")
	tx.Reset()
	require.EqualValues(s.T, -1, s.commit(tx), "a commit that wrote nothing")
}

func usesAfterCommit(u *suite) {
	retried := &kv.Error{Code: kv.CodeNotCommitted}
	committed := func(s *space) kv.ManagedTx {
		tx := s.begin()
		tx.Set(s.key("a"), []byte("1"))
		s.commit(tx)
		return tx
	}
	u.promise("a write after a commit is a deferred 2017, and OnError is that too", func(s *space) {
		tx := committed(s)
		tx.Set(s.key("a"), []byte("2"))
		require.Equal(s.T, kv.CodeUsedDuringCommit, code(s, tx.ReadVersion()))
		require.Equal(s.T, kv.CodeUsedDuringCommit, code(s, tx.ApproximateSize()))
		require.Equal(s.T, kv.CodeUsedDuringCommit, code(s, tx.OnError(retried)))
	})
	u.promise("an inverted range clear after a commit is a deferred 2005, and OnError retries", func(s *space) {
		tx := committed(s)
		tx.ClearRange(s.keys("b", "a"))
		require.Equal(s.T, kv.CodeInvertedRange, code(s, tx.Get(s.key("a"))))
		require.Equal(s.T, kv.CodeInvertedRange, code(s, tx.ReadVersion()))
		wait(s, tx.OnError(retried))
		require.Equal(s.T, "1", s.getIn(tx, "a"))
	})
	u.promise("once a write has failed, later ones do nothing, not even after a commit", func(s *space) {
		tx := committed(s)
		tx.SetReadVersion(0)
		tx.Set(s.key("a"), []byte("2"))
		tx.Clear(s.key("a"))
		tx.ClearRange(s.keys("a", "b"))
		tx.Atomic(kv.Add, s.key("a"), []byte("1"))
		require.NoError(s.T, tx.AddReadConflictRange(s.keys("a", "b")))
		require.NoError(s.T, tx.AddWriteConflictRange(s.keys("a", "b")))
		require.Equal(s.T, kv.CodeReadVersionAlreadySet, code(s, tx.Commit()))
		wait(s, tx.OnError(retried))
		require.Equal(s.T, "1", s.getIn(tx, "a"))
		require.EqualValues(s.T, -1, s.commit(tx))
	})
}

// unsentCommits: a commit that a failed read refuses is never sent. FoundationDB 7.3 returns the error of the read only
// from Commit.
func unsentCommits(u *suite) {
	refused := func(s *space) kv.ManagedTx {
		tx := s.begin()
		require.NoError(s.T, s.run(tx, "stampvalue a"))
		require.Equal(s.T, kv.CodeAccessedUnreadable, code(s, tx.Get(s.key("a"))))
		return tx
	}
	u.promise("the stamp of a commit that a failed read refuses is not ready before the reset", func(s *space) {
		tx := refused(s)
		stamp := tx.Versionstamp()
		require.Equal(s.T, kv.CodeAccessedUnreadable, code(s, tx.Commit()))
		require.False(s.T, stamp.Ready())
		tx.Reset()
		const brokenPromise = 1100 // a client without operations in flight may return it
		require.Contains(s.T, []int{kv.CodeTransactionCancelled, brokenPromise}, code(s, stamp))
	})
	u.promise("the watches of a commit that a failed read refuses end with the reset at the latest", func(s *space) {
		tx := refused(s)
		w := tx.Watch(s.key("k"))
		require.Equal(s.T, absent, s.getIn(tx, "k"))
		require.Equal(s.T, kv.CodeAccessedUnreadable, code(s, tx.Commit()))
		tx.Reset()
		require.Contains(s.T, []int{kv.CodeTransactionCancelled, kv.CodeAccessedUnreadable}, code(s, w))
	})
	u.promise("a watch of an own pending versionstamped value is 1036 and fails nothing else", func(s *space) {
		tx := s.begin()
		require.NoError(s.T, s.run(tx, "stampvalue a"))
		require.Equal(s.T, kv.CodeAccessedUnreadable, code(s, tx.Watch(s.key("a"))))
		require.Positive(s.T, s.commit(tx))
		require.Len(s.T, s.get("a"), 10)
	})
}
