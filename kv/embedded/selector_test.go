package embedded_test

import (
	"bytes"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

// A range whose bound is a selector with an offset conflicts from the selector's own key on, and a selector that
func TestSelectorBounds(t *testing.T) {
	db := openMemory(t, embedded.Options{})
	for _, key := range []string{"a", "b", "c", "x", "y"} {
		put(t, db, key, "")
	}
	from := func(key string, offset int) kv.KeySelector { return kv.KeySelector{Key: []byte(key), Offset: offset} }
	for _, c := range []struct {
		begin, end kv.KeySelector
		limit      int
		reverse    bool
		keys       string
		conflict   string
	}{
		{begin: from("a", 2), end: from("d", 1), keys: "bc", conflict: "a-d"},
		{begin: from("a", 2), end: from("d", 1), limit: 1, keys: "b", conflict: `a-b\x00`},
		{begin: from("a", 50), end: from("d", 1), conflict: "a-d"},
		{begin: from("a", 4), end: from("d", 1), conflict: "a-d"},
		{begin: from("a", 1), end: from("d", -50), conflict: "a-d"},
		{begin: from("a", 1), end: from("b", 2), keys: "ab", conflict: `a-b\x00`},
		{begin: from("c", 0), end: from("d", 1), keys: "bc", conflict: "b-d"},
		{begin: from("c", -50), end: from("d", 1), keys: "abc", conflict: "-d"},
		{begin: from("x", 1), end: from("x", 50), keys: "xy", conflict: `x-\xff`},
		{begin: from("x", 1), end: from("x", 50), limit: 2, keys: "xy", conflict: `x-y\x00`},
		{begin: from("a", -50), end: from("b", -50), conflict: "-b"},
		{begin: from("a", -50), end: from("b", -51), conflict: "a-b"},
		{begin: from("a", 1), end: from("d", 1), limit: 1, reverse: true, keys: "c", conflict: "c-d"},
		{begin: from("a", 2), end: from("d", 1), limit: 1, reverse: true, keys: "c", conflict: "a-d"},
	} {
		t.Run(fmt.Sprintf("%s%+d to %s%+d limit %d", c.begin.Key, c.begin.Offset, c.end.Key, c.end.Offset, c.limit),
			func(t *testing.T) {
				tx := begin(t, db)
				defer tx.Cancel()
				wait(t, tx.ReadVersion())
				tx.Atomic(kv.SetVersionstampedKey, []byte("m0123456789\x01\x00\x00\x00"), nil)
				rows := wait(t, tx.GetRange(kv.Range{Begin: c.begin, End: c.end},
					kv.RangeOptions{Limit: c.limit, Reverse: c.reverse}))
				keys := ""
				for _, r := range rows {
					keys += string(r.Key)
				}
				require.Equal(t, c.keys, keys)
				reads, _, err := tx.(kv.ConflictReporter).ConflictRanges(t.Context())
				require.NoError(t, err)
				require.Len(t, reads, 1)
				conflict := fmt.Sprintf("%q", string(reads[0].Begin)+"-"+string(reads[0].End))
				require.Equal(t, `"`+c.conflict+`"`, conflict)
			})
	}
}

// TestLongBounds: a bound of a read may be longer than any key, and longer than a frame of the socket. The transaction
// commits, and conflicts with a write into what it has read.
func TestLongBounds(t *testing.T) {
	if !embedded.Sharable {
		t.Skip("no socket here")
	}
	server, client := pair(t, t.TempDir())
	put(t, server, "a", "1")
	for _, size := range []int{10_008, 10_009, 10_010, 20_000, 11_000_000} {
		long := bytes.Repeat([]byte("k"), size)
		reads := map[string]func(tx kv.Tx) error{
			"key behind":    func(tx kv.Tx) error { return getKey(t, tx, kv.FirstGreaterThan(long)) },
			"key before":    func(tx kv.Tx) error { return getKey(t, tx, kv.LastLessOrEqual(long)) },
			"range up to":   func(tx kv.Tx) error { return getRange(t, tx, []byte("a"), long) },
			"range from":    func(tx kv.Tx) error { return getRange(t, tx, long, []byte("z")) },
			"range between": func(tx kv.Tx) error { return getRange(t, tx, long, append(long, 0)) },
		}
		for name, read := range reads {
			for _, db := range []*embedded.DB{server, client} {
				tx := begin(t, db)
				require.NoError(t, read(tx))
				tx.Set([]byte("b"), nil)
				wait(t, tx.Commit())

				tx = begin(t, db)
				require.NoError(t, read(tx))
				put(t, server, "k", "")
				put(t, server, "l", "")
				tx.Set([]byte("b"), nil)
				_, err := waitErr(t, tx.Commit())
				want := kv.CodeNotCommitted
				if name == "range between" {
					want = 0
				}
				require.Equal(t, want, kv.Code(err), "%s %d: %v", name, size, err)
			}
		}
	}
}

func getKey(t *testing.T, tx kv.Tx, at kv.KeySelector) error {
	_, err := waitErr(t, tx.GetKey(at))
	return err
}

func getRange(t *testing.T, tx kv.Tx, begin, end []byte) error {
	r := kv.KeyRange{Begin: begin, End: end}
	_, err := waitErr(t, tx.GetRange(r.Selectors(), kv.RangeOptions{}))
	return err
}
