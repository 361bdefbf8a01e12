package layer_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/layer"
)

// claimKinds are the queues whose claims differ, and how to receive there.
var claimKinds = map[string]struct {
	config  layer.Config
	receive layer.ReceiveOptions
	lacks   string // the field without which the claim cannot be settled
}{
	"group": {},
	"template": {
		layer.Config{Facets: []string{"state"}, Views: "*; state"}, layer.ReceiveOptions{Where: isNew}, "Where",
	},
	"any item": {layer.Config{Unordered: true}, layer.ReceiveOptions{Unordered: true}, "Hold"},
	"in turn":  {layer.Config{LeasePerItem: true}, layer.ReceiveOptions{}, "Hold"},
}

// storedEnv is an env on an engine in memory, whose handle is of a queue with this configuration.
func storedEnv(t *testing.T, config layer.Config) *env {
	e := newEnv(t, inMemory, false)
	e.q = e.configured(config)
	return e
}

// TestStoredClaimSettles (G2): the result of Claim.Stored, read back from JSON, settles the claim on another handle. If
// the field that names the claim's object is missing, the error names the field.
func TestStoredClaimSettles(t *testing.T) {
	for name, kind := range claimKinds {
		t.Run(name, func(t *testing.T) {
			e := storedEnv(t, kind.config)
			_, err := e.q.Enqueue(e.ctx, layer.Message{Group: "A", Body: []byte("x"), Headers: isNew})
			require.NoError(t, err)
			claims, err := e.q.Receive(e.ctx, kind.receive)
			require.NoError(t, err)
			text, err := json.Marshal(claims[0].Stored())
			require.NoError(t, err)
			require.NotContains(t, string(text), "eA==", "the body")
			var stored layer.Claim
			require.NoError(t, json.Unmarshal(text, &stored))
			require.Equal(t, claims[0].TokenKey(), stored.TokenKey())

			other, err := layer.Open(e.ctx, e.db, testPrefix, "configured", e.options(2))
			require.NoError(t, err)
			without := stored
			without.Where, without.Hold = nil, layer.ID{}
			if kind.lacks != "" {
				err := other.Ack(e.ctx, &without)
				require.ErrorIs(t, err, layer.ErrClaimLost)
				require.ErrorContains(t, err, "needs its "+kind.lacks)
			}
			require.NoError(t, other.Ack(e.ctx, &stored))
			require.ErrorIs(t, e.q.Ack(e.ctx, claims[0]), layer.ErrClaimLost)
		})
	}
}

// TestTokenKeysOfStages (G2): two stages of a group that are in flight at the same time have different token keys, and
// so does not the next claim of a stage.
func TestTokenKeysOfStages(t *testing.T) {
	e := storedEnv(t, layer.Config{Facets: []string{"state"}, Views: "*; state"})
	for _, state := range []string{"NEW", "PAID", "NEW"} {
		_, err := e.q.Enqueue(e.ctx, layer.Message{Group: "A", Headers: map[string]string{"state": state}})
		require.NoError(t, err)
	}
	take := func(state string) *layer.Claim {
		claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{Max: 1, Where: layer.Template{"state": state}})
		require.NoError(t, err)
		require.Len(t, claims, 1)
		return claims[0]
	}
	first, beside := take("NEW"), take("PAID")
	require.NotEqual(t, first.TokenKey(), beside.TokenKey())
	require.NoError(t, e.q.Ack(e.ctx, first))
	next := take("NEW")
	require.Equal(t, first.TokenKey(), next.TokenKey())
	require.Greater(t, next.Token, first.Token)
}

// TestItemClaimElsewhereIsLost: the claim of an item, settled at a queue without such claims, is lost and no misuse.
func TestItemClaimElsewhereIsLost(t *testing.T) {
	e := storedEnv(t, layer.Config{})
	sent, err := e.q.Enqueue(e.ctx, layer.Message{Group: "A"})
	require.NoError(t, err)
	for _, queue := range []string{"", "another"} {
		c := &layer.Claim{Queue: queue, Group: "A", Hold: sent[0].ID, Token: 1}
		require.ErrorIs(t, e.q.Ack(e.ctx, c), layer.ErrClaimLost)
		_, err = e.q.Extend(e.ctx, c, 0)
		require.ErrorIs(t, err, layer.ErrClaimLost)
	}
}

// TestReservedFacet: a queue cannot be created with a facet whose name the library uses for headers of its own.
func TestReservedFacet(t *testing.T) {
	e := storedEnv(t, layer.Config{})
	_, err := layer.Create(e.ctx, e.db, []byte("other"), "q", layer.Options{
		Config: layer.Config{Facets: []string{layer.ReplayHeader}, Views: layer.ReplayHeader},
	})
	var value *layer.ValueError
	require.ErrorAs(t, err, &value)
	require.True(t, strings.HasPrefix(value.Got, "fdbfifo-"))
}

// TestDropWhileClockStands (G3): a handle whose Options.Now stands still puts nothing into the queue of the same name
// that was created after a drop.
func TestDropWhileClockStands(t *testing.T) {
	e := storedEnv(t, layer.Config{})
	now := time.Now()
	old, err := layer.Create(e.ctx, e.db, []byte("still"), "q", layer.Options{Now: func() time.Time { return now }})
	require.NoError(t, err)
	_, err = old.Enqueue(e.ctx, layer.Message{Group: "A"})
	require.NoError(t, err)
	require.NoError(t, layer.Drop(e.ctx, e.db, []byte("still"), "q", layer.DropOptions{}))
	again, err := layer.Create(e.ctx, e.db, []byte("still"), "q", layer.Options{})
	require.NoError(t, err)
	_, err = old.Enqueue(e.ctx, layer.Message{Group: "A"})
	require.ErrorIs(t, err, layer.ErrNoQueue)
	claims, err := old.Receive(e.ctx, layer.ReceiveOptions{})
	require.ErrorIs(t, err, layer.ErrNoQueue)
	require.Empty(t, claims)
	require.NoError(t, again.Close(e.ctx))
}
