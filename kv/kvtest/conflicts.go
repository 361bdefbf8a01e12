package kvtest

import (
	"strings"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
)

// duel is two transactions: first reads and writes at a fixed read version, then other commits, then first commits.
type duel struct {
	first string // script of the transaction under test
	other string // script of the one that commits in between
	want  int    // code that first ends with
	blind bool   // first gets no write of its own beyond the script
}

// fight plays d on the keys a, c, e and g, each with its name as value, and returns the code first ended with:
// that of its first failing read, else that of its commit.
func (s *space) fight(d duel) int {
	s.update(func(tx kv.Tx) {
		tx.ClearRange(s.all())
		for _, k := range []string{"a", "c", "e", "g"} {
			tx.Set(s.key(k), []byte(k))
		}
	})
	first, _ := s.at()
	if err := s.run(first, d.first); err != nil {
		return errCode(s, err)
	}
	s.update(func(tx kv.Tx) { require.NoError(s.T, s.run(tx, d.other)) })
	if !d.blind {
		first.Set(s.key("~unrelated"), nil)
	}
	return code(s, first.Commit())
}

// conflicts holds the table of conflict ranges. For each operation it has other operations that must conflict with it,
// and others that must not.
func conflicts(u *suite) {
	const conflict = kv.CodeNotCommitted
	for _, d := range []duel{
		// Get: the key alone, present or absent.
		{first: "get c", other: "set c", want: conflict},
		{first: "get c", other: "clear c", want: conflict},
		{first: "get c", other: "add c", want: conflict},
		{first: "get c", other: "stampvalue c", want: conflict},
		{first: "get b", other: "set b", want: conflict},
		{first: "get b", other: "clear b", want: conflict},
		{first: "get c", other: "set d"},
		{first: "get c", other: "set b"},
		{first: "get c", other: "set c\x00"},
		{first: "get c", other: "clearrange d z"},
		{first: "get c", other: "clearrange a c"},
		{first: "snapshot get c", other: "set c"},

		// GetKey, offset >= 1: from the base key through the resolved key.
		{first: "key fge b", other: "set b", want: conflict},
		{first: "key fge b", other: "set bb", want: conflict},
		{first: "key fge b", other: "set c", want: conflict},
		{first: "key fge b", other: "clear c", want: conflict},
		{first: "key fge b", other: "set c\x00"},
		{first: "key fge b", other: "set a"},
		{first: "key fgt a", other: "set a"},
		{first: "key fgt a", other: "set a\x00", want: conflict},
		{first: "key fgt a", other: "clear a"},
		{first: "key fge+2 a", other: "clear c", want: conflict},
		{first: "key fge+2 a", other: "set d", want: conflict},
		{first: "key fge+2 a", other: "set e", want: conflict},
		{first: "key fge+2 a", other: "set f"},
		{first: "snapshot key fge b", other: "set b"},

		// GetKey, offset <= 0: from the resolved key to the base key.
		{first: "key llt d", other: "set c", want: conflict},
		{first: "key llt d", other: "set cc", want: conflict},
		{first: "key llt d", other: "set d"},
		{first: "key llt d", other: "set b"},
		{first: "key lle d", other: "set d", want: conflict},
		{first: "key lle d", other: "set d\x00"},
		{first: "key lle c", other: "set c", want: conflict},
		{first: "key llt-1 g", other: "set c", want: conflict},
		{first: "key llt-1 g", other: "clear e", want: conflict},
		{first: "key llt-1 g", other: "set b"},
		{first: "key llt-1 g", other: "set g"},

		// GetRange ascending: all of the range, or up to the last row when the limit stops it.
		{first: "range b f", other: "set b", want: conflict},
		{first: "range b f", other: "set eee", want: conflict},
		{first: "range b f", other: "clearrange bb bc", want: conflict},
		{first: "range b f", other: "set f"},
		{first: "range b f", other: "set a"},
		{first: "range b f limit 1", other: "set bb", want: conflict},
		{first: "range b f limit 1", other: "clear c", want: conflict},
		{first: "range b f limit 1", other: "set c\x00"},
		{first: "range b f limit 2", other: "set e", want: conflict},
		{first: "range b f limit 2", other: "set ee"},
		{first: "range b f limit 3", other: "set ee", want: conflict},
		{first: "snapshot range b f", other: "set c"},

		// GetRange descending: down from the end of the range.
		{first: "range b f reverse", other: "set b", want: conflict},
		{first: "range b f reverse limit 1", other: "set ee", want: conflict},
		{first: "range b f reverse limit 1", other: "set e", want: conflict},
		{first: "range b f reverse limit 1", other: "set d"},
		{first: "range b f reverse limit 1", other: "set f"},
		{first: "range b f reverse limit 2", other: "set bb"},
		{first: "range b f reverse limit 2", other: "set d", want: conflict},
		{first: "range b f reverse limit 3", other: "set bb", want: conflict},
		{first: "snapshot range b f reverse limit 1", other: "set ee"},

		// Writes conflict with reads and never with each other.
		{first: "set c", other: "set c"},
		{first: "clear c", other: "set c"},
		{first: "clearrange a z", other: "set c"},
		{first: "add c", other: "set c"},
		{first: "stampvalue c", other: "set c"},
		{first: "stampkey q", other: "stampkey q"},
		{first: "get c", other: "clearrange a z", want: conflict},
		{first: "range q r", other: "clearrange q0 q1", want: conflict},
		{first: "range q r", other: "clearrange p s", want: conflict},
		{first: "range q r", other: "stampkey q", want: conflict},
		{first: "range q r", other: "stampkey p"},
		{first: "range q r", other: "stampkey r"},

		// Explicit ranges.
		{first: "readconflict c", other: "set c", want: conflict},
		{first: "readconflict c", other: "set c\x00"},
		{first: "readconflict b d", other: "set c", want: conflict},
		{first: "readconflict b d", other: "set d"},
		{first: "readconflict b d", other: "writeconflict c", want: conflict},
		{first: "readconflict b d", other: "writeconflict a z", want: conflict},
		{first: "readconflict b d", other: "writeconflict d z"},
		{first: "writeconflict c", other: "set c"},

		// NextWriteNoConflict leaves out one write's range and no other.
		{first: "get c", other: "noconflict; set c"},
		{first: "get c", other: "noconflict; clear c"},
		{first: "get c", other: "noconflict; clearrange a z"},
		{first: "get c", other: "noconflict; add c"},
		{first: "get c", other: "noconflict; set b; set c", want: conflict},
		{first: "get c", other: "set c; noconflict; set c", want: conflict},

		// Keys that the transaction alone decides add no read conflict, segment by segment.
		{first: "set c; get c", other: "set c"},
		{first: "clear c; get c", other: "set c"},
		{first: "clearrange b d; get c", other: "set c"},
		{first: "clearrange b d; add c; get c", other: "set c"},
		{first: "set c; add c; get c", other: "set c"},
		{first: "add c; set c; get c", other: "set c"},
		{first: "add c; get c", other: "set c", want: conflict},
		{first: "add c; readconflict c", other: "set c", want: conflict},
		{first: "stampvalue c; readconflict c", other: "set c"},
		{first: "set c; readconflict a z", other: "set c"},
		{first: "set c; readconflict a z", other: "set c\x00", want: conflict},
		{first: "clearrange b d; range a z", other: "set c"},
		{first: "clearrange b d; range a z", other: "set d", want: conflict},
		{first: "clearrange b d; range a z", other: "set azz", want: conflict},
		{first: "get c; set c", other: "set c", want: conflict},
		{first: "snapshot get c; set c; get c", other: "set c"},
		{first: "clear a; clear c; key fge a", other: "set a"},
		{first: "clear a; clear c; key fge a", other: "set b", want: conflict},

		// A transaction that writes nothing is never checked.
		{first: "get c", other: "set c", blind: true},
		{first: "range a z", other: "set c", blind: true},
		{first: "get c; readconflict a z", other: "clearrange a z", blind: true},
		{first: "get c; writeconflict q", other: "set c", blind: true, want: conflict},
	} {
		name := strings.ReplaceAll(d.first+" | "+d.other, "\x00", "\\x00")
		if d.blind {
			name += " | no write"
		}
		verdict := "commits: "
		if d.want == conflict {
			verdict = "conflicts: "
		}
		u.promise(verdict+name, func(s *space) { require.Equal(s.T, d.want, s.fight(d)) })
	}
}
