package layer_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// TestStateLimits: a state of the largest size is kept, one byte more is refused by every way in, before anything is done.
func TestStateLimits(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	c := holding(2, 1)(e).(*layer.Claim)
	largest := bytes.Repeat([]byte{7}, layer.MaxStateSize)
	require.NoError(t, e.q.AckState(e.ctx, c, largest))
	got, err := e.q.GroupState(e.ctx, "A")
	require.NoError(t, err)
	require.Equal(t, largest, got)

	claims, err := e.q.Receive(e.ctx, layer.ReceiveOptions{State: true})
	require.NoError(t, err)
	require.Equal(t, largest, claims[0].State)
	more := append(largest, 7)
	for _, err := range []error{
		e.q.SetState(e.ctx, claims[0], more), e.q.AckState(e.ctx, claims[0], more),
		e.q.SetGroupState(e.ctx, "A", more, layer.SetGroupStateOptions{Force: true}),
	} {
		var limit *layer.LimitError
		require.ErrorAs(t, err, &limit)
		require.EqualValues(t, layer.MaxStateSize+1, limit.Got)
		require.EqualValues(t, layer.MaxStateSize, limit.Max)
	}
	_, err = e.q.GroupState(e.ctx, strings.Repeat("g", layer.MaxGroupSize+1))
	var limit *layer.LimitError
	require.ErrorAs(t, err, &limit)
	require.ErrorIs(t, e.q.SetGroupState(e.ctx, "\xff", nil, layer.SetGroupStateOptions{}), layer.ErrInvalidUTF8)
	require.NoError(t, e.q.Ack(e.ctx, claims[0]), "nothing was changed")
}

// TestStateWithOwnData: the state, the ack and the caller's own data are there together or not at all (G6).
func TestStateWithOwnData(t *testing.T) {
	onEngines(t, func(e *env) {
		c := holding(2, 2)(e).(*layer.Claim)
		own := []byte("own")
		both := func(claim *layer.Claim) error {
			return e.q.Once(e.ctx, func(tx kv.Tx) error {
				tx.Set(own, []byte("x"))
				return e.q.AckStateTx(e.ctx, tx, claim, []byte("s"), claim.Items[0].ID)
			})
		}
		stranger := *c
		stranger.Token--
		require.ErrorIs(e.t, both(&stranger), layer.ErrClaimLost)
		require.Empty(e.t, e.rows(kv.SingleKey(own)))
		state, err := e.q.GroupState(e.ctx, "A")
		require.NoError(e.t, err)
		require.Nil(e.t, state)
		require.NoError(e.t, both(c))
		require.Len(e.t, e.rows(kv.SingleKey(own)), 1)
		state, err = e.q.GroupState(e.ctx, "A")
		require.NoError(e.t, err)
		require.Equal(e.t, "s", string(state))
		require.NoError(e.t, e.q.AckState(e.ctx, c, nil, []layer.ID{}...), "ids that are none finish nothing")
		require.Equal(e.t, []string{"a"}, e.all("A"))
	})
}
