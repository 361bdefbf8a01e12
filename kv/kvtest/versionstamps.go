package kvtest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"strings"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
)

func versionstamps(u *suite) {
	u.promise("a stamp is the commit version and an index", func(s *space) {
		tx := s.begin()
		stamp := tx.Versionstamp()
		tx.Set(s.key("a"), nil)
		v := s.commit(tx)
		got := wait(s, stamp)
		require.EqualValues(s.T, v, binary.BigEndian.Uint64(got[:8]))
		require.Equal(s.T, got, wait(s, stamp), "waiting again gives the same stamp")
	})
	u.promise("stamps are unique and ordered as the commits", func(s *space) {
		var last []byte
		for range 20 {
			tx := s.begin()
			stamp := tx.Versionstamp()
			tx.Set(s.key("a"), nil)
			s.commit(tx)
			got := wait(s, stamp)
			require.Positive(s.T, bytes.Compare(got[:], last))
			last = got[:]
		}
	})
	u.promise("a versionstamped key holds the transaction's stamp at the offset", func(s *space) {
		tx := s.begin()
		stamp := tx.Versionstamp()
		tx.Atomic(kv.SetVersionstampedKey, stampTemplate(string(s.key("q/")), "/tail"), []byte("v"))
		s.commit(tx)
		got := wait(s, stamp)
		require.Equal(s.T, []string{"q/" + string(got[:]) + "/tail=v"}, s.rows(s.begin(), s.all(), kv.RangeOptions{}))
	})
	u.promise("a versionstamped value holds the transaction's stamp at the offset", func(s *space) {
		tx := s.begin()
		stamp := tx.Versionstamp()
		tx.Atomic(kv.SetVersionstampedValue, s.key("k"), stampTemplate("head", "tail"))
		tx.Atomic(kv.SetVersionstampedValue, s.key("bare"), stampTemplate("", ""))
		s.commit(tx)
		got := wait(s, stamp)
		require.Equal(s.T, "head"+string(got[:])+"tail", s.get("k"))
		require.Equal(s.T, string(got[:]), s.get("bare"))
	})
	u.promise("versionstamped keys of later transactions sort later", func(s *space) {
		want := []string{}
		for _, v := range []string{"1", "2", "3", "4", "5"} {
			s.update(func(tx kv.Tx) {
				tx.Atomic(kv.SetVersionstampedKey, stampTemplate(string(s.key("q/")), ""), []byte(v))
			})
			want = append(want, v)
		}
		got := []string{}
		for _, row := range wait(s, s.begin().GetRange(s.all().Selectors(), kv.RangeOptions{})) {
			got = append(got, string(row.Value))
		}
		require.Equal(s.T, want, got)
	})
	u.promise("equal templates of one transaction overwrite each other, a suffix separates them", func(s *space) {
		s.update(func(tx kv.Tx) {
			for _, suffix := range []string{"", "", "\x01", "\x02"} {
				tx.Atomic(kv.SetVersionstampedKey, stampTemplate(string(s.key("q/")), suffix), []byte("v"))
			}
		})
		require.Len(s.T, s.rows(s.begin(), s.all(), kv.RangeOptions{}), 3)
	})
	u.promise("a stamp may stand at the very end, or fill the key behind an offset", func(s *space) {
		s.update(func(tx kv.Tx) {
			tx.Atomic(kv.SetVersionstampedValue, s.key("k"), append(make([]byte, 12), 2, 0, 0, 0))
		})
		require.Len(s.T, s.get("k"), 12)
	})
	stampErrors(u)
	stampFutures(u)
	unreadableValues(u)
	unreadableKeys(u)
}

func stampErrors(u *suite) {
	for _, c := range []struct {
		name   string
		suffix []byte
	}{
		{"a negative offset", []byte{0xff, 0xff, 0xff, 0xff}},
		{"an offset that leaves less than ten bytes", []byte{1, 0, 0, 0}},
		{"an offset behind the end", []byte{0, 1, 0, 0}},
	} {
		u.promise(c.name+" is a deferred 2000", func(s *space) {
			value := s.begin()
			value.Atomic(kv.SetVersionstampedValue, s.key("k"), append(make([]byte, 10), c.suffix...))
			require.Equal(s.T, kv.CodeClientInvalidOperation, code(s, value.Commit()))
			// In a key the offset counts from the key's first byte.
			k := s.key("")
			n := len(k)
			k = append(append(k, make([]byte, 10)...), c.suffix...)
			binary.LittleEndian.PutUint32(k[n+10:], binary.LittleEndian.Uint32(c.suffix)+uint32(n))
			if c.suffix[3] == 0xff {
				copy(k[n+10:], c.suffix)
			}
			key := s.begin()
			key.Atomic(kv.SetVersionstampedKey, k, nil)
			require.Equal(s.T, kv.CodeClientInvalidOperation, code(s, key.Commit()))
		})
	}
	u.promise("no room for an offset is a deferred 2000", func(s *space) {
		tx := s.begin()
		tx.Atomic(kv.SetVersionstampedValue, s.key("k"), []byte{0, 0, 0})
		require.Equal(s.T, kv.CodeClientInvalidOperation, code(s, tx.Get(s.key("a"))))
		require.Equal(s.T, kv.CodeClientInvalidOperation, code(s, tx.Commit()))
	})
	u.promise("the size limits include the offset suffix", func(s *space) {
		tx := s.begin()
		tx.Atomic(kv.SetVersionstampedValue, s.key("k"), make([]byte, kv.MaxValueSize))
		s.commit(tx)
		require.Len(s.T, s.get("k"), kv.MaxValueSize-4)
		tx = s.begin()
		tx.Atomic(kv.SetVersionstampedValue, s.key("k"), make([]byte, kv.MaxValueSize+1))
		require.Equal(s.T, kv.CodeValueTooLarge, code(s, tx.Commit()))
		tx = s.begin()
		tx.Atomic(kv.SetVersionstampedKey, stampTemplate(string(s.longKey(kv.MaxKeySize-13)), ""), nil)
		require.Equal(s.T, kv.CodeKeyTooLarge, code(s, tx.Commit()))
	})
}

func stampFutures(u *suite) {
	u.promise("the stamp of a transaction that wrote nothing is 2021", func(s *space) {
		tx := s.begin()
		stamp := tx.Versionstamp()
		require.Equal(s.T, absent, s.getIn(tx, "a"))
		require.EqualValues(s.T, -1, s.commit(tx))
		require.Equal(s.T, kv.CodeNoCommitVersion, code(s, stamp))
	})
	u.promise("the stamp of a failed commit is 2020", func(s *space) {
		tx, _ := s.at()
		stamp := tx.Versionstamp()
		require.NoError(s.T, s.run(tx, "get a; set b"))
		s.set("a", "1")
		require.Equal(s.T, kv.CodeNotCommitted, code(s, tx.Commit()))
		require.Equal(s.T, kv.CodeTransactionInvalidVer, code(s, stamp))
	})
	u.promise("the stamp must be asked for before the commit, else 2017", func(s *space) {
		tx := s.begin()
		tx.Set(s.key("a"), nil)
		s.commit(tx)
		require.Equal(s.T, kv.CodeUsedDuringCommit, code(s, tx.Versionstamp()))
	})
	u.promise("the stamp is not ready before the commit", func(s *space) {
		tx := s.begin()
		stamp := tx.Versionstamp()
		tx.Set(s.key("a"), nil)
		require.False(s.T, stamp.Ready())
		s.commit(tx)
		wait(s, stamp)
		require.True(s.T, stamp.Ready())
	})
	u.promise("the stamp of a transaction reset or cancelled before its commit fails", func(s *space) {
		for _, end := range []func(tx kv.ManagedTx){kv.ManagedTx.Reset, kv.ManagedTx.Cancel} {
			tx := s.begin()
			stamp := tx.Versionstamp()
			end(tx)
			require.NotZero(s.T, code(s, stamp))
		}
	})
}

// unreadableValues: a pending versionstamped value hides its key from reads.
func unreadableValues(u *suite) {
	const unreadable = kv.CodeAccessedUnreadable
	for _, c := range []struct {
		name, script string
		want         int
	}{
		{"get", "stampvalue c; get c", unreadable},
		{"snapshot get", "stampvalue c; snapshot get c", unreadable},
		{"range over it", "stampvalue c; range a z", unreadable},
		{"snapshot range over it", "stampvalue c; snapshot range a z", unreadable},
		{"reverse range over it", "stampvalue c; range a z reverse", unreadable},
		{"range stopped by its limit before it", "stampvalue c; range a z limit 1", 0},
		{"range stopped by its limit at it", "stampvalue c; range a z limit 2", unreadable},
		{"reverse range stopped before it", "stampvalue c; range a z reverse limit 2", 0},
		{"range that ends before it", "stampvalue c; range a c", 0},
		{"range that begins after it", "stampvalue c; range c0 z", 0},
		{"selector that steps on it", "stampvalue c; key fge b", unreadable},
		{"selector that stops before it", "stampvalue c; key fge a", 0},
		{"selector that steps back on it", "stampvalue c; key lle c", unreadable},
		{"selector that begins behind it", "stampvalue c; key llt c", 0},
		{"get after a later set", "stampvalue c; set c; get c", unreadable},
		{"get after a later add", "stampvalue c; add c; get c", unreadable},
		{"get after a clear", "stampvalue c; clear c; get c", 0},
		{"get after a range clear", "stampvalue c; clearrange b d; get c", 0},
		{"get after a clear and a set", "stampvalue c; clear c; set c; get c", 0},
		{"get of another key", "stampvalue c; get a", 0},
	} {
		verdict := "is readable"
		if c.want != 0 {
			verdict = "is 1036, and so is the commit until a reset"
		}
		u.promise("pending versionstamped value: "+c.name+" "+verdict, func(s *space) {
			s.set("a", "1", "c", "3", "e", "5", "g", "7")
			tx, _ := s.at()
			require.Equal(s.T, c.want, errCode(s, s.run(tx, c.script)))
			require.Equal(s.T, c.want, code(s, tx.Commit()))
			tx.Reset()
			require.Equal(s.T, "1", s.getIn(tx, "a"))
			tx.Set(s.key("z"), nil)
			s.commit(tx)
		})
	}
	u.promise("a set over a pending versionstamped value wins at commit", func(s *space) {
		s.update(func(tx kv.Tx) { require.NoError(s.T, s.run(tx, "stampvalue c; set c later")) })
		require.Equal(s.T, "later", s.get("c"))
	})
	u.promise("a clear drops a pending versionstamped value", func(s *space) {
		s.update(func(tx kv.Tx) { require.NoError(s.T, s.run(tx, "stampvalue c; clear c")) })
		require.Equal(s.T, absent, s.get("c"))
	})
}

// unreadableKeys: a pending versionstamped key hides the interval in which it may come to lie.
func unreadableKeys(u *suite) {
	const unreadable = kv.CodeAccessedUnreadable
	for _, c := range []struct {
		name, script string
		want         int
	}{
		{"range over the template", "stampkey q; range q r", unreadable},
		{"snapshot range over the template", "stampkey q; snapshot range q r", unreadable},
		{"range that stops at its limit before it", "stampkey q; range a z limit 2", 0},
		{"reverse range from behind it", "stampkey q; range a z reverse limit 1", 0},
		{"range before it", "stampkey q; range a q", 0},
		{"range after it", "stampkey q; range r z", 0},
		{"last key of the prefix", "stampkey q; key llt r", unreadable},
		{"get of a key before it", "stampkey q; get q", 0},
		{"range after a clear of it", "stampkey q; clearrange q r; range q r", 0},
	} {
		u.promise("pending versionstamped key: "+c.name, func(s *space) {
			s.set("a", "1", "c", "3", "s", "5")
			tx, _ := s.at()
			require.Equal(s.T, c.want, errCode(s, s.run(tx, c.script)))
			require.Equal(s.T, c.want, code(s, tx.Commit()))
		})
	}
	item := func(s *space) (string, int64) {
		v := s.update(func(tx kv.Tx) {
			tx.Atomic(kv.SetVersionstampedKey, stampTemplate(string(s.key("q/")), ""), []byte("item"))
		})
		return s.short(wait(s, s.begin().GetKey(kv.FirstGreaterThan(s.key("q/"))))), v
	}
	u.promise("with the read version known, items stamped before it stay readable", func(s *space) {
		old, _ := item(s)
		s.set("elsewhere", "1")
		tx, _ := s.at()
		require.NoError(s.T, s.run(tx, "stampkey q/"))
		require.Equal(s.T, "item", s.getIn(tx, old))
		s.commit(tx)
	})
	u.promise("with the read version unknown, all items of the template are unreadable", func(s *space) {
		old, _ := item(s)
		tx := s.begin()
		require.NoError(s.T, s.run(tx, "stampkey q/"))
		require.Equal(s.T, unreadable, code(s, tx.Get(s.key(old))))
	})
	u.promise("items stamped exactly at the read version", func(s *space) {
		old, v := item(s)
		tx := s.begin()
		tx.SetReadVersion(v)
		require.Equal(s.T, v, wait(s, tx.ReadVersion()))
		require.NoError(s.T, s.run(tx, "stampkey q/"))
		want := unreadable
		if s.ReadsStampsAtReadVersion {
			want = 0
		}
		require.Equal(s.T, want, code(s, tx.Get(s.key(old))))
	})
	u.promise("a later clear of the template's low end drops the pending key", func(s *space) {
		tx, _ := s.at()
		require.NoError(s.T, s.run(tx, "stampkey q/; clearrange q/ q0"))
		s.commit(tx)
		require.Empty(s.T, s.rows(s.begin(), s.all(), kv.RangeOptions{}))
	})
	u.promise("an earlier clear of the whole range leaves the pending key", func(s *space) {
		_, _ = item(s)
		tx, _ := s.at()
		require.NoError(s.T, s.run(tx, "clearrange q/ q0; stampkey q/"))
		s.commit(tx)
		require.Len(s.T, s.rows(s.begin(), s.all(), kv.RangeOptions{}), 1)
	})
	// inside lies in the interval of the template q/, above every stamp there will be for a long time.
	inside := "q/" + strings.Repeat("\xfe", 10)
	for _, c := range []struct {
		name, script string
		want         int
		stored       bool
	}{
		{"a set before it", "set %[1]s x; stampkey q/; get %[1]s", unreadable, true},
		{"a set after it", "stampkey q/; set %[1]s x; get %[1]s", unreadable, true},
		{"a clear after it", "set %[1]s x; stampkey q/; clear %[1]s; get %[1]s", 0, false},
		{"a clear and a set after it", "stampkey q/; clear %[1]s; set %[1]s x; get %[1]s", 0, true},
	} {
		u.promise("inside the interval of a pending versionstamped key: "+c.name, func(s *space) {
			tx, _ := s.at()
			script := fmt.Sprintf(c.script, inside)
			require.Equal(s.T, c.want, errCode(s, s.run(tx, script)))
			// The writes still have their effect. This runs them without the read, which may have failed the
			// transaction.
			tx.Reset()
			wait(s, tx.ReadVersion())
			require.NoError(s.T, s.run(tx, script[:strings.LastIndex(script, ";")]))
			s.commit(tx)
			rows := s.rows(s.begin(), s.all(), kv.RangeOptions{})
			if !c.stored {
				require.Len(s.T, rows, 1)
				return
			}
			require.Len(s.T, rows, 2)
			require.Equal(s.T, inside+"=x", rows[1])
		})
	}
	u.promise("a pending versionstamped key forgets which keys of its interval the transaction wrote", func(s *space) {
		script := fmt.Sprintf("set %[1]s x; stampkey q/; readconflict %[1]s", inside)
		require.Equal(s.T, kv.CodeNotCommitted, s.fight(duel{first: script, other: "set " + inside}))
	})
	u.promise("a set beside a pending versionstamped key stays readable", func(s *space) {
		tx, _ := s.at()
		require.NoError(s.T, s.run(tx, "stampkey q/; set p x"))
		require.Equal(s.T, "x", s.getIn(tx, "p"))
		require.Equal(s.T, unreadable, code(s, tx.GetRange(s.keys("p", "r").Selectors(), kv.RangeOptions{})))
	})
}
