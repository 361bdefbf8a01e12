package layer

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	recording "fdbfifo/kv/record"
)

// TestEachFirst: the first key of each range is found, whatever lies in the ranges, between them and around them. Where
// nothing lies one read is enough, and no more than two for each range are ever made.
func TestEachFirst(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	for round := range 200 {
		db := recording.WrapCounting(embedded.OpenMemory(embedded.Options{}))
		q, err := Create(t.Context(), db, nil, "q", Options{})
		require.NoError(t, err)
		_, err = kv.Run(t.Context(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			keys := random.IntN(120)
			if round%10 == 0 {
				keys = 0
			}
			for range keys {
				tx.Set(fmt.Appendf(nil, "a%03d", random.IntN(400)), nil)
			}
			for _, k := range []string{"0", "b"} {
				tx.Set([]byte(k), nil)
			}
			want, got := make(map[string]string), make(map[string]string)
			var ranges []placed
			for at := random.IntN(5); at < 400; {
				end := at + 1 + random.IntN(6)
				r := kv.KeyRange{Begin: fmt.Appendf(nil, "a%03d", at), End: fmt.Appendf(nil, "a%03d", end)}
				ranges = append(ranges, placed{r, fmt.Sprint(at)})
				rows, err := tx.GetRange(r.Selectors(), kv.RangeOptions{Limit: 1}).Wait(t.Context())
				require.NoError(t, err)
				if len(rows) > 0 {
					want[fmt.Sprint(at)] = string(rows[0].Key)
				}
				at = end + random.IntN(5)
			}
			random.Shuffle(len(ranges), func(i, j int) { ranges[i], ranges[j] = ranges[j], ranges[i] })
			before, n := db.Counters().Reads, int64(len(ranges))
			w := q.txn(t.Context(), tx)
			begun := db.Counters().Reads - before
			require.NoError(t, w.eachFirst(ranges, func(key []byte, where string) {
				require.Empty(t, got[where])
				got[where] = string(key)
			}))
			require.Equal(t, want, got)
			reads := db.Counters().Reads - before - begun
			require.LessOrEqual(t, reads, 2*n)
			if keys == 0 {
				require.Equal(t, int64(1), reads)
			}
			return nil
		})
		require.NoError(t, err)
		report, err := q.Admin().Check(t.Context(), CheckOptions{})
		require.NoError(t, err)
		require.Empty(t, report.Violations)
		require.NoError(t, q.Close(t.Context()))
		require.NoError(t, db.Close())
	}
}
