package herd

import (
	"context"
	"errors"
	"flag"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

var (
	handles = flag.Int("herd.handles", 8, "handles that are simulated")
	workers = flag.Int("herd.workers", 4, "workers of each")
	groups  = flag.Int("herd.groups", 0, "groups; 0 = 50 for each handle")
	shards  = flag.Int("herd.shards", 1, "shards of the queue")
	items   = flag.Int("herd.items", 4, "items of each group")
	work    = flag.Duration("herd.work", 500*time.Millisecond, "work for a claim, on the average")
	length  = flag.Duration("herd.time", time.Second, "virtual time that is counted")
	hold    = flag.Bool("herd.hold", false, "fail if there are more than 0.2 conflicts a claim, or a handle is starved")
)

// TestHandles simulates handles at plenty of groups and prints what they did. Each gets its share.
func TestHandles(t *testing.T) {
	o := Options{
		Handles: *handles, Workers: *workers, Groups: *groups, Items: *items, Shards: *shards,
		Work: *work, Time: *length,
	}
	if o.Groups == 0 {
		o.Groups = 50 * o.Handles
	}
	begun := time.Now()
	synctest.Test(t, func(t *testing.T) {
		db := embedded.OpenMemory(embedded.Options{})
		r, err := Run(context.Background(), db, o)
		require.NoError(t, errors.Join(err, db.Close()))
		t.Logf("%d handles, %d workers each, %d groups, %d shards, %s of work a claim, %s of virtual time, %d claims",
			o.Handles, o.Workers, o.Groups, o.Shards, o.Work, o.Time, r.Claims)
		t.Logf("conflicts_per_claim %.3f", r.PerClaim(r.Conflicts))
		t.Logf("least_share %.2f, most_share %.2f of the mean; handles below a third: %d", r.Least, r.Most, r.Starved)
		t.Logf("transactions_per_claim %.2f, reads_per_claim %.2f, looks_per_claim %.3f",
			r.PerClaim(r.Transactions), r.PerClaim(r.Reads), r.PerClaim(r.Looks))
		require.NotZero(t, r.Claims)
		if *hold {
			require.LessOrEqual(t, r.PerClaim(r.Conflicts), 0.2)
			require.Zero(t, r.Starved)
		}
	})
	t.Logf("took %s", time.Since(begun).Round(time.Second))
}

// TestShares: a handle's share is what it claimed, over what each would have claimed.
func TestShares(t *testing.T) {
	r := shares([]int64{10, 0, 5, 0}, []int64{20, 10, 6, 19})
	require.Equal(t, Result{Claims: 40, Least: 0.1, Most: 1.9, Starved: 1}, r)
}

// TestSlowDBTakesItsTime: a transaction takes as long as its parts, and reads that begin together as long as one.
func TestSlowDBTakesItsTime(t *testing.T) {
	fixed := func(d time.Duration) [2]time.Duration { return [2]time.Duration{d, d} }
	synctest.Test(t, func(t *testing.T) {
		db := &slowDB{embedded.OpenMemory(embedded.Options{}), latency{
			start: fixed(time.Second), read: fixed(100 * time.Millisecond), commit: fixed(10 * time.Millisecond),
		}}
		begun := time.Now()
		_, err := kv.Run(t.Context(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			for _, read := range []kv.Future[[]byte]{
				tx.Get([]byte("a")), tx.Snapshot().Get([]byte("b")), tx.GetKey(kv.FirstGreaterThan([]byte("c"))),
			} {
				if _, err := read.Wait(t.Context()); err != nil {
					return err
				}
			}
			_, err := tx.Get([]byte("d")).Wait(t.Context())
			tx.Set([]byte("a"), nil)
			return err
		})
		require.NoError(t, err)
		require.Equal(t, 1210*time.Millisecond, time.Since(begun))
		require.NoError(t, db.Close())
	})
}
