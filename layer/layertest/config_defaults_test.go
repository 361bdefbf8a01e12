package layer_test

import (
	"encoding/json"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// TestMaxAttempts: a queue tries an item 25 times by default. A queue that should try without end must be configured
// so, and a stored 0 still means that.
func TestMaxAttempts(t *testing.T) {
	onEngines(t, func(e *env) {
		require.Equal(e.t, 25, e.q.Config().MaxAttempts)
		e.configure(func(c *layer.Config) { c.MaxAttempts, c.Retry.Kind = 0, layer.RetryAtOnce })
		ids := e.enqueue("A", "bad", "good")
		for range 25 {
			c := e.receive(e.q, 1)
			require.Equal(e.t, ids[0], c.Items[0].ID)
			require.NoError(e.t, e.q.Nack(e.ctx, c, layer.NackOptions{}))
		}
		require.Equal(e.t, []string{"good"}, e.all("A"))

		e.configure(func(c *layer.Config) { c.MaxAttempts = layer.Unlimited })
		c, _, err := e.q.Admin().ReadConfig(e.ctx)
		require.NoError(e.t, err)
		require.Equal(e.t, layer.Unlimited, c.MaxAttempts)
		text, err := c.Setting("max_attempts")
		require.NoError(e.t, err)
		require.Equal(e.t, "0", text)
	})
	var c layer.Config
	require.NoError(t, json.Unmarshal([]byte(`{"max_attempts":0}`), &c))
	require.Equal(t, layer.Unlimited, c.MaxAttempts)
	require.NoError(t, c.Set("max_attempts", "7"))
	require.Equal(t, 7, c.MaxAttempts)
	require.ErrorIs(t, c.Set("max_attempts", "-1"), layer.ErrOptions)
}

// TestGroupRequired: a queue that requires groups refuses a message without one, before anything is done, in a
// transaction of the caller's too; a message alone has a group.
func TestGroupRequired(t *testing.T) {
	onEngines(t, func(e *env) {
		_, err := e.q.Enqueue(e.ctx, layer.Message{Body: []byte("of the group without a name")})
		require.NoError(e.t, err)
		e.configure(func(c *layer.Config) { c.GroupRequired = true })
		_, err = e.q.Enqueue(e.ctx, layer.Message{Group: "A"}, layer.Message{Body: []byte("x")})
		require.ErrorIs(e.t, err, layer.ErrNoGroup)
		var which *layer.MessageError
		require.ErrorAs(e.t, err, &which)
		require.Equal(e.t, 1, which.Index)
		require.NoError(e.t, e.q.Once(e.ctx, func(tx kv.Tx) error {
			_, err := e.q.EnqueueTx(e.ctx, tx, layer.Message{})
			require.ErrorIs(e.t, err, layer.ErrNoGroup)
			_, err = e.q.EnqueueTx(e.ctx, tx, layer.Message{Alone: true})
			return err
		}))
		require.Empty(e.t, e.all("A"))
	})
}
