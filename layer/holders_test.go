package layer_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/layer"
)

// TestHolders: each owner is listed once, with the groups and the items in its hands, who holds for longest first, and
// also a claim whose lease has ended; groups that wait for a retry are nobody's.
func TestHolders(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	page, err := e.q.Admin().Holders(e.ctx)
	require.NoError(t, err)
	require.Zero(t, page)
	for _, g := range []string{"A", "B", "C", "D"} {
		e.enqueue(g, "1", "2")
	}
	other := e.handle(2)
	first := e.receive(e.q, 2)
	for range 2 {
		_, err := other.Receive(e.ctx, layer.ReceiveOptions{Max: 1, MaxGroups: 1, Lease: time.Hour})
		require.NoError(t, err)
	}
	require.NoError(t, e.q.Nack(e.ctx, e.receive(e.q, 1), layer.NackOptions{Delay: time.Hour}))
	e.clock.advance(e.q.Config().Lease + time.Second)
	page, err = e.q.Admin().Holders(e.ctx)
	require.NoError(t, err)
	require.Equal(t, 3, page.Groups)
	require.False(t, page.Sampled)
	require.Len(t, page.Holders, 2)
	byOwner := map[string]layer.HolderInfo{}
	for i, h := range page.Holders {
		byOwner[h.Owner] = h
		require.True(t, i == 0 || page.Holders[0].LongestHold >= h.LongestHold)
	}
	mine, theirs := byOwner["worker-1"], byOwner["worker-2"]
	require.Equal(t, 1, mine.Groups)
	require.Equal(t, 2, mine.Outstanding)
	require.Equal(t, first.Group, mine.Longest)
	require.Equal(t, -time.Second, mine.LeastLeft, "the lease has ended, and nobody has taken over")
	require.Equal(t, 2, theirs.Groups)
	require.Equal(t, 2, theirs.Outstanding)
	require.Positive(t, theirs.LeastLeft)
}

// TestHoldersOfTemplates: in a queue with facets, what templates hold of a group counts for their holders.
func TestHoldersOfTemplates(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	q := e.laned("laned", "state", nil, 1)[0]
	for _, state := range []string{"new", "old"} {
		_, err := q.Enqueue(e.ctx, layer.Message{
			Group: "A", Headers: map[string]string{"state": state, "region": "eu"},
		})
		require.NoError(t, err)
		claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Where: layer.Template{"state": state}})
		require.NoError(t, err)
		require.Len(t, claims, 1)
	}
	page, err := q.Admin().Holders(e.ctx)
	require.NoError(t, err)
	require.Len(t, page.Holders, 1)
	require.Equal(t, 2, page.Holders[0].Groups)
	require.Equal(t, "A", page.Holders[0].Longest)
}

// TestHoldersOfItems: a group of which several items are claimed one by one is one group in its holder's hands.
func TestHoldersOfItems(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	for name, q := range map[string]*layer.Queue{
		"in turn": e.inTurn("turns", nil, 1)[0], "unordered": e.unordered("items", nil, 1)[0],
	} {
		for _, body := range []string{"1", "2", "3"} {
			_, err := q.Enqueue(e.ctx, layer.Message{Group: "A", Body: []byte(body)})
			require.NoError(t, err)
		}
		claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Max: 3, Unordered: name == "unordered"})
		require.NoError(t, err)
		require.Len(t, claims, 3, name)
		page, err := q.Admin().Holders(e.ctx)
		require.NoError(t, err)
		require.Len(t, page.Holders, 1, name)
		require.Equal(t, 1, page.Groups, name)
		require.Equal(t, []int{1, 3}, []int{page.Holders[0].Groups, page.Holders[0].Outstanding}, name)
	}
}
