package layer

import (
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer/internal/rec"
)

// TestHandleFollowsNoOlderConfig: a transaction that read the configuration before another one did, and ends after it,
// does not take the handle back to the older version.
func TestHandleFollowsNoOlderConfig(t *testing.T) {
	var f followed
	now := time.Now()
	f.learn(Config{Lease: 3 * time.Second}, 3, now, now)
	require.Equal(t, 3*time.Second, f.learn(Config{Lease: 2 * time.Second}, 2, now, now).Lease)
	config, _, _, fresh := f.fresh(now)
	require.True(t, fresh)
	require.Equal(t, 3*time.Second, config.Lease)
	_, _, _, fresh = f.fresh(now.Add(-time.Second))
	require.False(t, fresh, "a clock that was set back does not keep the handle from reading")
}

// TestHandleFollowsNoFailedChange: a handle does not use a change of the configuration that it tried and that failed.
func TestHandleFollowsNoFailedChange(t *testing.T) {
	t.Parallel()
	now := time.Now()
	q, err := Create(t.Context(), embedded.OpenMemory(embedded.Options{}), []byte("p"), "q", Options{Now: func() time.Time { return now }})
	require.NoError(t, err)
	lease := q.Config().Lease
	failed := errors.New("failed")
	for _, late := range []time.Duration{0, 2 * time.Second} { // then the transaction looks at the configuration again
		for _, more := range []bool{false, true} {
			now = now.Add(time.Minute)
			o := txFor(q, "once")
			_, err = onceFor(t.Context(), q, o, func(tx kv.Tx, _ kv.Attempt) (none struct{}, wrote bool, err error) {
				follow := q.follow(tx)
				_, err = q.configure(t.Context(), tx, func(c *Config) { c.Lease = lease + time.Second })
				require.NoError(t, err)
				now = now.Add(late)
				if more {
					_, err := q.EnqueueTx(t.Context(), tx, Message{})
					require.NoError(t, err)
				}
				require.NoError(t, q.guardReceiptDrop(t.Context(), tx, follow))
				return none, false, failed
			})
			require.ErrorIs(t, err, failed)
			if more { // which is a look of its own
				now = now.Add(time.Second)
				require.NoError(t, q.Once(t.Context(), func(kv.Tx) error { return nil }))
			}
			require.Equal(t, lease, q.Config().Lease)
		}
	}
	require.NoError(t, q.Close(t.Context()))
}

// TestConfigOfASlowTransactionIsReadAgain: what a transaction finds at its end is of its read version. The handle does
// not take it for new: its next transaction looks again.
func TestConfigOfASlowTransactionIsReadAgain(t *testing.T) {
	t.Parallel()
	for name, look := range map[string]func(q *Queue, w *txn) error{
		"end": func(_ *Queue, w *txn) error { return w.finish() },
		"rate": func(q *Queue, w *txn) error {
			w.tx.Set(q.keys.pace("A"), rec.Pace{US: (w.nowMS + time.Hour.Milliseconds()) * 1000, Of: 1}.Pack())
			_, err := w.allow("A", nil)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx := t.Context()
			db, q, other, now := newFollowers(t, Config{MaxRate: Rate{Count: 1, Per: time.Hour}})
			slow, err := db.Begin(kv.TxOptions{})
			require.NoError(t, err)
			defer slow.Cancel()
			w := q.txn(ctx, slow)
			_, err = w.clock() // it has its read version
			require.NoError(t, err)
			want, _, err := other.Admin().Configure(ctx, func(c *Config) { c.Lease = time.Minute })
			require.NoError(t, err)
			*now = now.Add(2 * followLimit)
			require.NoError(t, look(q, w))
			require.NotEqual(t, want.Lease, q.Config().Lease, "it is of before the change")
			require.Equal(t, want, nextConfig(t, db, q))
		})
	}
}

// TestConfigOfASlowOnceIsReadAgain: a handle does not use a configuration of a slow transaction that it reads only
// after the caller's part.
func TestConfigOfASlowOnceIsReadAgain(t *testing.T) {
	t.Parallel()
	ctx := t.Context()
	db, q, other, now := newFollowers(t, Config{})
	later := now.Add(2 * followLimit)
	var want Config
	require.NoError(t, q.Once(ctx, func(tx kv.Tx) error {
		if _, err := tx.ReadVersion().Wait(ctx); err != nil {
			return err
		}
		var err error
		want, _, err = other.Admin().Configure(ctx, func(c *Config) { c.Lease = time.Minute })
		*now = later
		return err
	}))
	require.Equal(t, want, nextConfig(t, db, q))
}

// TestLateAnswerOfConfigure: a Configure that hears of its commit only after a later change neither takes its handle
// back to the older configuration, nor applies the older rate to groups.
func TestLateAnswerOfConfigure(t *testing.T) {
	t.Parallel()
	second, minute, hour := Rate{1, time.Second}, Rate{1, time.Minute}, Rate{1, time.Hour}
	for _, c := range []struct {
		first, late, later Rate
		given              int
	}{{hour, minute, second, 1}, {minute, second, hour, 0}} {
		t.Run(c.late.String(), func(t *testing.T) {
			t.Parallel()
			ctx, now := t.Context(), time.UnixMilli(1_700_000_000_000)
			db := &interleaved{err: &kv.Error{Code: kv.CodeCommitUnknownResult}}
			db.DB = embedded.OpenMemory(embedded.Options{})
			t.Cleanup(func() { require.NoError(t, db.DB.Close()) })
			o := Options{Now: func() time.Time { return now }, Config: Config{MaxRate: c.first}}
			q, err := Create(ctx, db, nil, "q", o)
			require.NoError(t, err)
			other, err := Open(ctx, db.DB, nil, "q", o)
			require.NoError(t, err)
			for range 2 {
				_, err = q.Enqueue(ctx, Message{Group: "A"})
				require.NoError(t, err)
			}
			claims, err := q.Receive(ctx, ReceiveOptions{Max: 1})
			require.NoError(t, err)
			require.NoError(t, q.Ack(ctx, claims[0]))

			db.after = func() {
				_, _, err := other.Admin().Configure(ctx, func(config *Config) { config.MaxRate = c.later })
				require.NoError(t, err)
				for range 2 { // the handle learns of the later change, and reads the configuration once more
					now = now.Add(time.Second)
					require.NoError(t, q.Once(ctx, func(kv.Tx) error { return nil }))
					require.Equal(t, c.later, q.Config().MaxRate)
				}
			}
			db.armed.Store(true)
			config, version, err := q.Admin().Configure(ctx, func(config *Config) { config.MaxRate = c.late })
			require.NoError(t, err)
			require.EqualValues(t, 2, version)
			require.Equal(t, c.late, config.MaxRate)
			require.Equal(t, c.later, q.Config().MaxRate)
			claims, err = other.Receive(ctx, ReceiveOptions{Max: 1})
			require.NoError(t, err)
			require.Len(t, claims, c.given)
			report, err := q.Admin().Check(ctx, CheckOptions{})
			require.NoError(t, err)
			require.Empty(t, report.Violations)
		})
	}
}

// newFollowers opens two handles of one queue, which share a clock.
func newFollowers(t *testing.T, c Config) (db kv.DB, q, other *Queue, now *time.Time) {
	clock := time.UnixMilli(1_700_000_000_000)
	db = embedded.OpenMemory(embedded.Options{})
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	o := Options{Now: func() time.Time { return clock }, Config: c}
	q, err := Create(t.Context(), db, nil, "q", o)
	require.NoError(t, err)
	other, err = Open(t.Context(), db, nil, "q", o)
	require.NoError(t, err)
	return db, q, other, &clock
}

// nextConfig returns the configuration that the handle's next transaction uses.
func nextConfig(t *testing.T, db kv.DB, q *Queue) Config {
	next, err := db.Begin(kv.TxOptions{})
	require.NoError(t, err)
	defer next.Cancel()
	config, err := q.txn(t.Context(), next).config()
	require.NoError(t, err)
	return config
}

// TestDropAgainstASlowReadVersion: a transaction that found the configuration fresh when it was begun, but got its read
// version only after the queue was dropped, looks again at its end.
func TestDropAgainstASlowReadVersion(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, now := t.Context(), time.UnixMilli(1_700_000_000_000)
		db := embedded.OpenMemory(embedded.Options{})
		defer func() { require.NoError(t, db.Close()) }()
		q, err := Create(ctx, db, nil, "q", Options{Now: func() time.Time { return now }})
		require.NoError(t, err)
		begin := func() kv.ManagedTx {
			tx, err := db.Begin(kv.TxOptions{})
			require.NoError(t, err)
			t.Cleanup(tx.Cancel)
			return tx
		}
		w := q.txn(ctx, begin())
		require.Nil(t, w.follow.stored, "the configuration is fresh")
		require.NoError(t, Drop(ctx, db, nil, "q", DropOptions{}))
		now = now.Add(dropGrace)
		w.tx = begin() // as if its read version had taken so long
		require.ErrorIs(t, w.finish(), ErrNoQueue)

		// Within the limit there is no need to look: then the read version is older than the last step of the drop.
		require.Less(t, followLimit, dropGrace)
		require.Less(t, followAge, followLimit)
	})
}

// TestDefaultOfASetting (contract): a setting knows its default, as zero and as the value that zero means. So a sparse
// setting is not stored, and processes that do not know it go on to open the queue.
func TestDefaultOfASetting(t *testing.T) {
	usual, err := Config{}.withDefaults()
	require.NoError(t, err)
	for _, s := range settings {
		require.True(t, s.isDefault(&Config{}), s.name)
		require.True(t, s.isDefault(&usual), s.name)
	}
	for name, text := range map[string]string{
		"dedup_window": "1h", "max_attempts": "7", settingFacets: "a", settingLeasePer: leasePerItem,
		"retroactive_delay": "true", settingShards: "2",
	} {
		var c Config
		require.NoError(t, c.Set(name, text))
		i := slices.IndexFunc(settings, func(s setting) bool { return s.name == name })
		require.False(t, settings[i].isDefault(&c), name)
	}
}

// TestNoRateHasNoBound (contract): a look that has read how far a group's rate is used up learns that the rate is gone.
func TestNoRateHasNoBound(t *testing.T) {
	a := Rate{}.allowance(rec.Pace{US: 5, Of: 3}, 1)
	require.Zero(t, a.untilMS)
	require.Positive(t, a.items)
}

// TestExtendedClaimStaysUnknown (G7): a claim that was rebuilt from its text does not know whether items behind it are
// suspect. An extension changes nothing of that.
func TestExtendedClaimStaysUnknown(t *testing.T) {
	c := &Claim{Group: "A"}
	require.True(t, leadsSuspects(&settlement{claim: c}))
	c.extended(&settlementResult{Settled{Until: time.Now()}, time.Now()})
	require.True(t, leadsSuspects(&settlement{claim: c}))
}
