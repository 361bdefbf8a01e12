package layer_test

import (
	"encoding/json"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/fault"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// TestConfigIsKnownForHalfASecond: a handle reads the configuration again when its knowledge is half a second old, and
// not before. The test needs virtual time: knowledge ages by the process's clock too if that is ahead of Options.Now.
func TestConfigIsKnownForHalfASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newEnv(t, inMemory, false)
		other := e.handle(2)
		e.enqueue("A", "a1")
		lease := func(q *layer.Queue) time.Duration {
			c := e.receive(q, 1)
			require.NotNil(t, c)
			require.NoError(t, q.Nack(e.ctx, c, layer.NackOptions{Release: true}))
			return c.Until.Sub(e.clock.now())
		}
		require.Equal(t, 30*time.Second, lease(other))
		_, _, err := e.q.Admin().Configure(e.ctx, func(c *layer.Config) { c.Lease = time.Minute })
		require.NoError(t, err)
		e.clock.advance(499 * time.Millisecond)
		require.Equal(t, 30*time.Second, lease(other))
		e.clock.advance(time.Millisecond)
		require.Equal(t, time.Minute, lease(other))
	})
}

// TestConfigFollows: a change of the configuration holds for its own handle at once, and for another handle from the
// first transaction that begins half a second later.
func TestConfigFollows(t *testing.T) {
	onEngines(t, func(e *env) {
		other := e.handle(2)
		e.enqueue("A", "a1")
		lease := func(q *layer.Queue) time.Duration {
			c := e.receive(q, 1)
			require.NotNil(e.t, c)
			left := c.Until.Sub(e.clock.now())
			require.NoError(e.t, q.Nack(e.ctx, c, layer.NackOptions{Release: true}))
			return left
		}
		require.Equal(e.t, 30*time.Second, lease(other))
		config, version, err := e.q.Admin().Configure(e.ctx, func(c *layer.Config) { c.Lease = time.Minute })
		require.NoError(e.t, err)
		require.EqualValues(e.t, 2, version, "the creation is the first")
		require.Equal(e.t, time.Minute, config.Lease)
		require.Equal(e.t, config, e.q.Config())
		require.Equal(e.t, time.Minute, lease(e.q))

		e.clock.advance(500 * time.Millisecond)
		require.Equal(e.t, time.Minute, lease(other))
		require.Equal(e.t, config, other.Config())
		stored, version, err := e.calm().Admin().ReadConfig(e.ctx)
		require.NoError(e.t, err)
		require.Equal(e.t, config, stored)
		require.EqualValues(e.t, 2, version)
	})
}

// TestConfigureTogether: changes made at the same time all count, each on top of the others, also when the outcome of
// a commit is unknown.
func TestConfigureTogether(t *testing.T) {
	onEngines(t, func(e *env) {
		const handles = 4
		var wg sync.WaitGroup
		for i := range handles {
			q := e.handle(uint64(10 + i))
			wg.Go(func() {
				for range 5 {
					_, _, err := q.Admin().Configure(e.ctx, func(c *layer.Config) { c.Delay += time.Second })
					assert.NoError(e.t, err)
				}
			})
		}
		wg.Wait()
		config, version, err := e.calm().Admin().ReadConfig(e.ctx)
		require.NoError(e.t, err)
		require.Equal(e.t, handles*5*time.Second, config.Delay)
		require.EqualValues(e.t, 1+handles*5, version)
		_, _, err = e.q.Admin().Configure(e.ctx, func(c *layer.Config) { c.Delay = 0 })
		require.NoError(e.t, err)
	})
	for _, kind := range []fault.Kind{fault.UnknownApplied, fault.UnknownLost} {
		e := newEnv(t, anyEngine, false)
		e.plan.ForceNext(kind)
		config, version, err := e.q.Admin().Configure(e.ctx, func(c *layer.Config) { c.Lease += time.Second })
		require.NoError(t, err)
		require.EqualValues(t, 2, version, "%s", kind)
		require.Equal(t, 30*time.Second+time.Second, config.Lease, "%s", kind)
	}
}

// TestConfigLimits: a value that is not allowed is refused with an error that says what is, by Create and by
// Configure, and nothing changes.
func TestConfigLimits(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	ns := time.Duration.Nanoseconds
	for _, c := range []struct {
		name   string
		change func(c *layer.Config)
		want   error
	}{
		{"lease too short", func(c *layer.Config) { c.Lease = time.Millisecond },
			&layer.LimitError{What: "lease", Unit: "ns", Got: 1e6, Min: ns(layer.MinLease), Max: ns(layer.MaxLease)}},
		{"lease too long", func(c *layer.Config) { c.Lease = layer.MaxLease + time.Second },
			&layer.LimitError{
				What: "lease", Unit: "ns", Got: ns(layer.MaxLease + time.Second),
				Min: ns(layer.MinLease), Max: ns(layer.MaxLease),
			}},
		{"negative delay", func(c *layer.Config) { c.Delay = -time.Second },
			&layer.LimitError{What: "delay", Unit: "ns", Got: -1e9, Max: ns(layer.MaxDelay)}},
		{"unknown policy", func(c *layer.Config) { c.OnFailure = 7 },
			&layer.ValueError{What: "on_failure", Got: "7", Allowed: "dead_letter, halt_group, block"}},
		{"shards", func(c *layer.Config) { c.Shards = 64 + 1 },
			&layer.LimitError{What: "shards", Got: 64 + 1, Min: 1, Max: 64}},
	} {
		t.Run(c.name, func(t *testing.T) {
			before := e.rows(kv.PrefixRange(testPrefix))
			_, _, err := e.q.Admin().Configure(e.ctx, c.change)
			requireSame(t, c.want, err)
			options := e.options(4)
			c.change(&options.Config)
			_, err = layer.Create(e.ctx, e.db, testPrefix, "bad", options)
			requireSame(t, c.want, err)
			require.Equal(t, before, e.rows(kv.PrefixRange(testPrefix)))
		})
	}
	// The shards cannot be lowered: existing hints lie where the greater number puts them.
	q := e.configured(layer.Config{Shards: 3})
	_, _, err := q.Admin().Configure(e.ctx, func(c *layer.Config) { c.Shards = 2 })
	requireSame(t, &layer.LimitError{What: "shards", Got: 2, Min: 3, Max: 64}, err)
}

// requireSame: the chain of err has want, with all its fields.
func requireSame(t *testing.T, want, err error) {
	t.Helper()
	var limit *layer.LimitError
	var value *layer.ValueError
	switch want.(type) {
	case *layer.LimitError:
		require.ErrorAs(t, err, &limit)
		require.Equal(t, want, limit)
	case *layer.ValueError:
		require.ErrorAs(t, err, &value)
		require.Equal(t, want, value)
		require.ErrorIs(t, err, layer.ErrOptions)
	default:
		require.Failf(t, "no such kind", "%T", want)
	}
}

// TestConfigDocument: the stored document is plain JSON, and reads back as it was written. A setting that this version
// does not know is an error that names it. It is not skipped, and a change does not lose it.
func TestConfigDocument(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	want := layer.Config{
		Shards: 3, RoundRobin: true, Lease: 90 * time.Second, Delay: time.Millisecond, MaxAttempts: 7,
	}
	text, err := json.Marshal(want)
	require.NoError(t, err)
	require.Contains(t, string(text), `{"shards":3,"schedule":"round_robin","lease":"1m30s","delay":"1ms"`)
	var got layer.Config
	require.NoError(t, json.Unmarshal(text, &got))
	require.Equal(t, want, got)

	was, err := tuple.Unpack(e.rows(kv.SingleKey(key("meta", "config")))[0].Value)
	require.NoError(t, err)
	stored := func(document string) error {
		e.write(func(tx kv.Tx) { tx.Set(key("meta", "config"), key0(int64(5), document, was[2])) })
		_, err := layer.Open(e.ctx, e.raw, testPrefix, testQueue, e.options(3))
		return err
	}
	var unknown *layer.UnknownSettingError
	require.ErrorAs(t, stored(`{"shards":1,"tempo":"allegro","colour":3}`), &unknown)
	require.Equal(t, []string{"colour", "tempo"}, unknown.Names)
	_, _, err = e.q.Admin().Configure(e.ctx, func(c *layer.Config) { c.Lease = time.Minute })
	require.ErrorAs(t, err, &unknown)
	e.clock.advance(time.Second)
	_, err = e.q.Enqueue(e.ctx, layer.Message{})
	require.ErrorAs(t, err, &unknown, "a handle that does not know how to go on does not go on")
	for _, bad := range []string{`{"lease":"1ms"}`, `{"lease":true}`, `{`, `{"schedule":"waltz"}`} {
		require.ErrorIs(t, stored(bad), layer.ErrCorrupt, bad)
	}
	require.NoError(t, stored(`{}`), "what is left out has its default")
	require.Equal(t, 30*time.Second, e.calm().Config().Lease)
}

// TestSettings: each setting can be read and set by its name, as text; the rest is an error.
func TestSettings(t *testing.T) {
	var c layer.Config
	for _, s := range layer.Settings() {
		text, err := c.Setting(s.Name)
		require.NoError(t, err, s.Name)
		require.NoError(t, c.Set(s.Name, text), s.Name)
		require.NotEmpty(t, s.Allowed)
		require.NotEmpty(t, s.Help)
		var value *layer.ValueError
		require.ErrorAs(t, c.Set(s.Name, "?"), &value, s.Name)
	}
	require.Equal(t, layer.Config{MaxAttempts: 25}, c)
	require.NoError(t, c.Set("lease", "45s"))
	require.Equal(t, 45*time.Second, c.Lease)
	var unknown *layer.UnknownSettingError
	require.ErrorAs(t, c.Set("tempo", "1"), &unknown)
	_, err := c.Setting("tempo")
	require.ErrorAs(t, err, &unknown)
}

// TestLeaseOfTheQueue: receive, extend and a worker that name no lease have the queue's.
func TestLeaseOfTheQueue(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	q := e.configured(layer.Config{Lease: 5 * time.Second})
	_, err := q.Enqueue(e.ctx, layer.Message{Group: "A"})
	require.NoError(t, err)
	c := e.receive(q, 1)
	require.Equal(t, e.clock.now().Add(5*time.Second), c.Until)
	e.clock.advance(time.Second) // else the new end might be the old one, and a millisecond is added
	until, err := q.Extend(e.ctx, c, 0)
	require.NoError(t, err)
	require.Equal(t, e.clock.now().Add(5*time.Second), until)
	until, err = q.Extend(e.ctx, c, time.Minute)
	require.NoError(t, err)
	require.Equal(t, e.clock.now().Add(time.Minute), until)
	require.NoError(t, q.Ack(e.ctx, c))
}
