package kvtest

import (
	"bytes"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
)

// observed repeats what a real cluster (7.3.79, API version 730) answered: the same transactions must end with the
// same codes.
func observed(u *suite) {
	for _, o := range []struct {
		name string
		duel
	}{
		{"get(a); other sets a", duel{first: "get a", other: "set a", want: 1020}},
		{"snapshot get(a); other sets a", duel{first: "snapshot get a", other: "set a"}},
		{"set(a) then addReadConflictKey(a); other sets a", duel{first: "set a; readconflict a", other: "set a"}},
		{"addReadConflictKey(a) then set(a); other sets a",
			duel{first: "readconflict a; set a", other: "set a", want: 1020}},
		{"set(a) then get(a); other sets a", duel{first: "set a; get a", other: "set a"}},
		{"add(a) then get(a); other sets a", duel{first: "add a; get a", other: "set a", want: 1020}},
		{"add(a) only; other adds a", duel{first: "add a", other: "add a"}},
		{"range[a,h) limit 2 (a,c); other sets d", duel{first: "range a h limit 2", other: "set d"}},
		{"range[a,h) limit 2 (a,c); other sets b",
			duel{first: "range a h limit 2", other: "set b", want: 1020}},
		{"range[a,h) limit 2 (a,c); other sets c",
			duel{first: "range a h limit 2", other: "set c", want: 1020}},
		{"range[a,h) limit 4 of 4; other sets gg", duel{first: "range a h limit 4", other: "set gg"}},
		{"range[a,h) limit 5 of 4; other sets gg",
			duel{first: "range a h limit 5", other: "set gg", want: 1020}},
		{"range[a,h) reverse limit 1; other sets gg",
			duel{first: "range a h reverse limit 1", other: "set gg", want: 1020}},
		{"range[a,h) reverse limit 1; other sets f", duel{first: "range a h reverse limit 1", other: "set f"}},
		{"empty range[x,y); other sets x1", duel{first: "range x y", other: "set x1", want: 1020}},
		{"getKey(lastLessThan h)=g; other sets gg", duel{first: "key llt h", other: "set gg", want: 1020}},
		{"getKey(lastLessThan h)=g; other sets g", duel{first: "key llt h", other: "set g", want: 1020}},
		{"getKey(lastLessThan h)=g; other sets f", duel{first: "key llt h", other: "set f"}},
		{"snapshot getKey(lastLessThan h); other sets gg", duel{first: "snapshot key llt h", other: "set gg"}},
		{"getKey(firstGreaterThan c)=e; other sets d", duel{first: "key fgt c", other: "set d", want: 1020}},
		{"getKey(firstGreaterThan c)=e; other clears e",
			duel{first: "key fgt c", other: "clear e", want: 1020}},
		{"getKey(firstGreaterThan c)=e; other sets f", duel{first: "key fgt c", other: "set f"}},
		{"clear(c), getKey(firstGreaterThan a)=e; other sets d",
			duel{first: "clear c; key fgt a", other: "set d", want: 1020}},
		{"clear(c), getKey(firstGreaterThan a)=e; other sets c",
			duel{first: "clear c; key fgt a", other: "set c"}},
		{"watch(a) in a writing tx; other sets a", duel{first: "watch a", other: "set a", want: 1020}},
		{"watch(a) in a tx with no write; other sets a", duel{first: "watch a", other: "set a", blind: true}},
		{"get(a), no write; other sets a", duel{first: "get a", other: "set a", blind: true}},
		{"get(a) + addWriteConflictKey(q); other sets a",
			duel{first: "get a; writeconflict q", other: "set a", blind: true, want: 1020}},
		{"get(a); other addWriteConflictKey(a) only", duel{first: "get a", other: "writeconflict a", want: 1020}},
		{"get(c); other clears range [b,d)", duel{first: "get c", other: "clearrange b d", want: 1020}},
		{"get(b) absent; other clears range [b,bz)", duel{first: "get b", other: "clearrange b bz", want: 1020}},
		{"get(a); other sets a to the same value", duel{first: "get a", other: "set a a", want: 1020}},
	} {
		u.promise(o.name, func(s *space) { require.Equal(s.T, o.want, s.fight(o.duel)) })
	}
	observedAcks(u)
	observedErrors(u)
}

// observedAcks: a transaction that reads nothing, at the version at which its lock was committed, commits exactly
// if the lock is unchanged since.
func observedAcks(u *suite) {
	ack := func(s *space, v int64) int {
		tx := s.begin()
		tx.SetReadVersion(v)
		require.NoError(s.T, tx.AddReadConflictRange(kv.SingleKey(s.key("lock"))))
		tx.Clear(s.key("lock"))
		tx.Clear(s.key("item"))
		return code(s, tx.Commit())
	}
	u.promise("ack at the claim's commit version, lock untouched", func(s *space) {
		claim := s.set("lock", "mine", "item", "payload")
		s.set("elsewhere", "1")
		require.Equal(s.T, 0, ack(s, claim))
		require.Equal(s.T, absent, s.get("item"))
	})
	u.promise("ack at the claim's commit version, lock changed since", func(s *space) {
		claim := s.set("lock", "mine", "item", "payload")
		s.set("lock", "another's")
		require.Equal(s.T, kv.CodeNotCommitted, ack(s, claim))
		require.Equal(s.T, "payload", s.get("item"))
	})
}

func observedErrors(u *suite) {
	u.promise("setReadVersion after reads is a deferred 2010", func(s *space) {
		tx, v := s.at()
		require.Equal(s.T, absent, s.getIn(tx, "a"))
		tx.SetReadVersion(v)
		tx.Set(s.key("b"), nil)
		require.Equal(s.T, kv.CodeReadVersionAlreadySet, code(s, tx.Commit()))
	})
	u.promise("range read over a pending versionstamped key is 1036, and the commit after it", func(s *space) {
		tx, _ := s.at()
		require.NoError(s.T, s.run(tx, "stampkey q"))
		require.Equal(s.T, kv.CodeAccessedUnreadable,
			code(s, tx.GetRange(s.keys("q", "r").Selectors(), kv.RangeOptions{})))
		require.Equal(s.T, kv.CodeAccessedUnreadable, code(s, tx.Commit()))
	})
	for _, o := range []struct {
		name string
		do   func(s *space, tx kv.Tx)
		want int
	}{
		{"value of 100,000 bytes", func(s *space, tx kv.Tx) { tx.Set(s.key("a"), make([]byte, 100_000)) }, 0},
		{"value of 100,001 bytes", func(s *space, tx kv.Tx) { tx.Set(s.key("a"), make([]byte, 100_001)) }, 2103},
		{"key of 10,000 bytes", func(s *space, tx kv.Tx) { tx.Set(s.longKey(10_000), nil) }, 0},
		{"key of 10,001 bytes", func(s *space, tx kv.Tx) { tx.Set(s.longKey(10_001), nil) }, 2102},
		{"clearRange inverted", func(s *space, tx kv.Tx) { tx.ClearRange(s.keys("b", "a")) }, 2005},
		{"set \\xff key", func(_ *space, tx kv.Tx) { tx.Set([]byte("\xffkvtest"), nil) }, 2004},
		{"10 MB transaction", func(s *space, tx kv.Tx) {
			for i := range 101 {
				tx.Set(s.key(string(rune('a'+i))), make([]byte, 100_000))
			}
		}, 2101},
	} {
		u.promise(o.name, func(s *space) {
			tx := s.begin()
			o.do(s, tx)
			require.Equal(s.T, o.want, code(s, tx.Commit()))
		})
	}
}

// longKey returns a key of n bytes under the prefix.
func (s *space) longKey(n int) []byte {
	return append(s.key(""), bytes.Repeat([]byte("k"), n-len(s.prefix))...)
}
