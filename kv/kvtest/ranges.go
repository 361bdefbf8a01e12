package kvtest

import (
	"fmt"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
)

// rows returns what a range read of v must return.
func (v view) rows(begin, end int, o kv.RangeOptions) []string {
	if begin >= end {
		return []string{}
	}
	rows := slices.Clone(v[begin:end])
	if o.Reverse {
		slices.Reverse(rows)
	}
	if o.Limit > 0 && len(rows) > o.Limit {
		rows = rows[:o.Limit]
	}
	return rows
}

func ranges(u *suite) {
	u.promise("a range that own writes alone show to be empty needs no read version", func(s *space) {
		s.set("a", "1", "z", "1")
		tx := s.begin()
		require.NoError(s.T, s.run(tx, "clearrange b y; set m"))
		r := kv.Range{Begin: kv.LastLessThan(s.key("x")), End: kv.LastLessThan(s.key("w"))}
		require.Empty(s.T, wait(s, tx.GetRange(r, kv.RangeOptions{})))
		require.Empty(s.T, wait(s, tx.GetRange(r, kv.RangeOptions{Reverse: true})))
		r = kv.Range{Begin: kv.FirstGreaterThan(s.key("n")), End: kv.LastLessThan(s.key("x"))}
		require.Empty(s.T, wait(s, tx.GetRange(r, kv.RangeOptions{})))
		v := s.set("a", "2")
		require.GreaterOrEqual(s.T, wait(s, tx.ReadVersion()), v)
	})
	for _, c := range []struct {
		name, writes string
		want         view
	}{
		{"stored keys", "", newView("a", "c", "d", "f")},
		{"own sets and clears", "set b b; clear c; set e e; set f f", newView("a", "b", "d", "e", "f")},
		{"an own range clear", "clearrange b e; set ca ca", newView("a", "ca", "f")},
	} {
		for _, snapshot := range []bool{false, true} {
			name := c.name
			if snapshot {
				name += ", snapshot"
			}
			u.promise("every range between two selectors over "+name, func(s *space) {
				s.fenced("a", "c", "d", "f")
				s.everyRange(c.writes, snapshot, c.want)
			})
		}
	}
	u.promise("an inverted range is empty", func(s *space) {
		s.set("a", "1", "b", "2")
		require.Empty(s.T, s.rows(s.begin(), s.keys("b", "a"), kv.RangeOptions{}))
		require.Empty(s.T, s.rows(s.begin(), s.keys("a", "a"), kv.RangeOptions{Reverse: true}))
	})
	u.promise("a long range comes whole, in both directions", longRange)
	u.promise("a long range merges own writes in every batch", longRangeWithOwnWrites)
}

// wholeVariable, set in the environment, asks for all pairs of selectors. Without it each selector meets a quarter of
// the others, as begin and as end, with all limits and both directions; with -test.short a sixteenth.
const wholeVariable = "KVTEST_WHOLE"

// everyRange compares pairs of selectors on a few bases with all limits and both directions. Each begin
// selector gets its own transaction: on a cluster the whole would outlive the 5 s window.
func (s *space) everyRange(writes string, snapshot bool, want view) {
	type bound struct {
		sel   kv.KeySelector
		index int
	}
	var bounds []bound
	for _, base := range []string{"1", "a", "b", "c", "d\x00", "g"} {
		for _, orEqual := range []bool{false, true} {
			for offset := -1; offset <= 2; offset++ {
				bounds = append(bounds, bound{
					kv.KeySelector{Key: s.key(base), OrEqual: orEqual, Offset: offset},
					want.index(base, orEqual, offset),
				})
			}
		}
	}
	type probe struct {
		what   string
		expect []string
		got    kv.Future[[]kv.KV]
	}
	stride := 4
	switch {
	case os.Getenv(wholeVariable) != "":
		stride = 1
	case testing.Short():
		stride = 16
	}
	for i, begin := range bounds {
		tx := s.begin()
		require.NoError(s.T, s.run(tx, writes))
		read := kv.ReadTx(tx)
		if snapshot {
			read = tx.Snapshot()
		}
		var probes []probe
		for j, end := range bounds {
			if (i+j)%stride != 0 {
				continue
			}
			for _, o := range []kv.RangeOptions{
				{}, {Limit: 1}, {Limit: 2}, {Limit: 5},
				{Reverse: true}, {Limit: 1, Reverse: true}, {Limit: 2, Reverse: true}, {Limit: 5, Reverse: true},
			} {
				probes = append(probes, probe{
					what:   fmt.Sprintf("begin %+v end %+v options %+v", begin.sel, end.sel, o),
					expect: want.rows(begin.index, end.index, o),
					got:    read.GetRange(kv.Range{Begin: begin.sel, End: end.sel}, o),
				})
			}
		}
		for _, p := range probes {
			got := []string{}
			for _, row := range wait(s, p.got) {
				got = append(got, s.short(row.Key))
			}
			if !slices.Equal(p.expect, got) {
				require.Equal(s.T, p.expect, got, p.what)
			}
		}
		tx.Cancel()
	}
}

// longRange is longer than one reply of a storage server (about 80 kB).
const longRangeRows = 600

func (s *space) storeLongRange() []string {
	var want []string
	value := string(make([]byte, 500))
	s.update(func(tx kv.Tx) {
		want = want[:0]
		for i := range longRangeRows {
			k := fmt.Sprintf("%04d", i)
			tx.Set(s.key(k), []byte(value))
			want = append(want, k+"="+value)
		}
	})
	return want
}

func longRange(s *space) {
	want := s.storeLongRange()
	require.True(s.T, slices.Equal(want, s.rows(s.begin(), s.all(), kv.RangeOptions{})))
	require.True(s.T, slices.Equal(want[:590], s.rows(s.begin(), s.all(), kv.RangeOptions{Limit: 590})))
	slices.Reverse(want)
	require.True(s.T, slices.Equal(want, s.rows(s.begin(), s.all(), kv.RangeOptions{Reverse: true})))
	require.True(s.T, slices.Equal(want[:590], s.rows(s.begin(), s.all(), kv.RangeOptions{Limit: 590, Reverse: true})))
}

func longRangeWithOwnWrites(s *space) {
	stored := s.storeLongRange()
	tx := s.begin()
	var want []string
	for i, row := range stored {
		k := row[:4]
		switch i % 5 {
		case 0:
			tx.Clear(s.key(k))
		case 1:
			tx.Set(s.key(k), []byte("own"))
			want = append(want, k+"=own")
		default:
			want = append(want, row)
		}
		if i%7 == 0 {
			tx.Set(s.key(k+"+"), []byte("between"))
			want = append(want, k+"+=between")
		}
	}
	later := tx.GetRange(s.all().Selectors(), kv.RangeOptions{})
	tx.ClearRange(s.all())
	require.True(s.T, slices.Equal(want, s.shownRows(wait(s, later))))
	require.Empty(s.T, s.rows(tx, s.all(), kv.RangeOptions{}))
}
