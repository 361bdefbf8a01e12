package layer_test

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/fault"
	"fdbfifo/layer"
)

// wanting are the options of a handle that asks for a configuration.
func (e *env) wanting(n uint64, c layer.Config) layer.Options {
	o := e.options(n)
	o.Config = c
	return o
}

// TestEnsure: a missing queue is created with the configuration. An existing queue is opened unchanged, and the
// different settings are listed by name. Only Mend changes them, for all handles, except the shards.
func TestEnsure(t *testing.T) {
	onEngines(t, func(e *env) {
		ensure := func(o layer.Options) (*layer.Queue, []layer.Difference) {
			q, different, err := layer.Ensure(e.ctx, e.db, testPrefix, "own", o)
			require.NoError(e.t, err)
			require.Equal(e.t, "own", q.Name())
			return q, different
		}
		first, different := ensure(e.wanting(2, layer.Config{Lease: time.Minute, Shards: 2}))
		require.Empty(e.t, different)
		require.Equal(e.t, time.Minute, first.Config().Lease)
		_, different = ensure(e.wanting(3, layer.Config{Lease: time.Minute, Shards: 2}))
		require.Empty(e.t, different, "as wanted")

		want := layer.Config{MaxAttempts: 5}
		q, different := ensure(e.wanting(4, want))
		require.Equal(e.t, []layer.Difference{
			{Setting: "shards", Stored: "2", Wanted: "1"},
			{Setting: "lease", Stored: "1m", Wanted: "30s"},
			{Setting: "max_attempts", Stored: "25", Wanted: "5"},
		}, different)
		require.Equal(e.t, "lease is 1m, wanted is 30s", different[1].String())
		require.Equal(e.t, time.Minute, q.Config().Lease, "what is stored holds")
		_, version, err := q.Admin().ReadConfig(e.ctx)
		require.NoError(e.t, err)
		require.EqualValues(e.t, 1, version, "nothing was written")

		mend := e.wanting(5, want)
		mend.Mend = true
		q, different = ensure(mend)
		require.Equal(e.t, []bool{false, true, true},
			[]bool{different[0].Mended, different[1].Mended, different[2].Mended})
		require.Equal(e.t, "max_attempts is 25, wanted is 5: mended", different[2].String())
		require.Equal(e.t, 5, q.Config().MaxAttempts)
		require.Equal(e.t, 2, q.Config().Shards)
		e.clock.advance(time.Second)
		_, err = first.Enqueue(e.ctx, layer.Message{Group: "A"})
		require.NoError(e.t, err)
		require.Equal(e.t, 30*time.Second, first.Config().Lease, "other handles follow")

		again := e.wanting(6, want)
		again.Mend = true
		_, different = ensure(again)
		require.Equal(e.t, []layer.Difference{{Setting: "shards", Stored: "2", Wanted: "1"}}, different)
		_, version, err = q.Admin().ReadConfig(e.ctx)
		require.NoError(e.t, err)
		require.EqualValues(e.t, 2, version, "what cannot be mended changes nothing")
	})
}

// TestEnsureTogether: of several processes that start at the same time one creates the queue, and all have it.
func TestEnsureTogether(t *testing.T) {
	onEngines(t, func(e *env) {
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() {
				q, different, err := layer.Ensure(e.ctx, e.db, testPrefix, "own", e.options(uint64(10+i)))
				if assert.NoError(e.t, err) {
					assert.Empty(e.t, different)
					_, err = q.Enqueue(e.ctx, layer.Message{Group: "A"})
					assert.NoError(e.t, err)
				}
			})
		}
		wg.Wait()
		q, err := layer.Open(e.ctx, e.raw, testPrefix, "own", e.options(30))
		require.NoError(e.t, err)
		s, err := q.Stats(e.ctx, layer.StatsOptions{})
		require.NoError(e.t, err)
		require.EqualValues(e.t, 6, s.Enqueued)
	})
}

// TestEnsureMendsAroundWhatIsFixed: a setting that cannot be changed is told as a difference, and the others are
// mended. An operator who has set retroactive_delay keeps no program from its start.
func TestEnsureMendsAroundWhatIsFixed(t *testing.T) {
	for name, stored := range map[string]layer.Config{
		"unordered": {Unordered: true}, "lease_per": {LeasePerItem: true},
		"retroactive_delay": {RetroactiveDelay: true},
		"facets":            {Facets: []string{"state"}, Views: "state"},
	} {
		for _, want := range []layer.Config{{Lease: time.Minute}, {}} {
			e := newEnvOf(t, anyEngine, false, func(c *layer.Config) {
				retry := c.Retry
				*c = stored
				c.Retry = retry
			})
			want.Retry = atOnce
			o := e.wanting(2, want)
			o.Mend = true
			q, different, err := layer.Ensure(e.ctx, e.db, testPrefix, testQueue, o)
			require.NoError(t, err, name)
			mended := 0
			for _, d := range different {
				if require.Equal(t, d.Setting == "lease", d.Mended, d.Setting); d.Mended {
					mended++
				}
			}
			require.Greater(t, len(different), mended, name)
			_, version, err := q.Admin().ReadConfig(e.ctx)
			require.NoError(t, err)
			require.EqualValues(t, 1+mended, version)
			require.NoError(t, q.Close(e.ctx))
		}
	}
}

// TestEnsureUnknownCommit: an unknown commit of the change is answered as if it had been known (trap 4).
func TestEnsureUnknownCommit(t *testing.T) {
	for _, kind := range []fault.Kind{fault.UnknownApplied, fault.UnknownLost} {
		e := newEnv(t, anyEngine, false)
		e.plan.ForceNext(kind)
		o := e.wanting(2, layer.Config{Lease: time.Minute, Retry: atOnce})
		o.Mend = true
		q, different, err := layer.Ensure(e.ctx, e.db, testPrefix, testQueue, o)
		require.NoError(t, err)
		require.Equal(t, []layer.Difference{{Setting: "lease", Stored: "30s", Wanted: "1m", Mended: true}}, different)
		_, version, err := q.Admin().ReadConfig(e.ctx)
		require.NoError(t, err)
		require.EqualValues(t, 2, version, "%s", kind)
		require.NoError(t, q.Close(e.ctx))
	}
}

// TestEnsureRefuses: what Open and Create refuse, Ensure refuses, under its own name, and changes nothing.
func TestEnsureRefuses(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	before := e.rows(kv.KeyRange{Begin: nil, End: []byte{0xff}})
	_, _, err := layer.Ensure(e.ctx, e.db, testPrefix, testQueue, e.wanting(2, layer.Config{Lease: 1}))
	require.ErrorIs(t, err, layer.ErrLimit)
	require.ErrorContains(t, err, `layer: ensure queue "q": lease is 1ns`)
	_, _, err = layer.Ensure(e.ctx, e.db, nil, "test", e.options(3))
	require.ErrorIs(t, err, layer.ErrForeignKeys)
	require.Regexp(t, `^layer: ensure queue "test": keys of something else`, err.Error())
	_, _, err = layer.Ensure(e.ctx, e.db, nil, "", e.options(4))
	require.ErrorIs(t, err, layer.ErrNoQueueName)
	for _, cause := range []error{nil, layer.ErrNoQueue, layer.ErrQueueExists} { // the error of another call
		canceled, cancel := context.WithCancelCause(e.ctx)
		cancel(cause)
		_, _, err = layer.Ensure(canceled, e.db, nil, "other", e.options(5))
		require.ErrorIs(t, err, context.Cause(canceled))
	}
	require.Equal(t, before, e.rows(kv.KeyRange{Begin: nil, End: []byte{0xff}}))
}
