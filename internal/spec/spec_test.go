package spec_test

import (
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/internal/spec"
	"fdbfifo/layer"
)

// TestMayGet: of a group with five messages, of which the second is claimed alone and the fourth is not due, each
// request may get exactly the messages that its row says.
func TestMayGet(t *testing.T) {
	now := time.UnixMilli(1_700_000_000_000)
	ids := make([]layer.ID, 6) // ids[n] is the n-th message
	var g spec.Group
	for n := range 5 {
		ids[n+1] = layer.ID{Group: "A", Index: int64(n + 1), Random: uuid.Max}
		g = g.Enqueue(spec.Item{ID: ids[n+1], Facets: layer.Template{"state": []string{"NEW", "PAID"}[n%2]}})
	}
	g.Items[3].Due = now.Add(time.Second)
	g = g.Claim(spec.Request{Any: true}, 1, ids[2:3], now.Add(time.Minute))
	isNew := spec.Request{Where: layer.Template{"state": "NEW"}}
	held := g.Claim(isNew, 2, ids[1:2], now.Add(time.Minute))
	for name, c := range map[string]struct {
		of   spec.Group
		by   spec.Request
		get  []int
		want bool
	}{
		"the head":                         {g, spec.Request{}, []int{1}, true},
		"nothing, though the head is free": {g, spec.Request{}, nil, false},
		"in order, past a claim":           {g, spec.Request{}, []int{1, 3}, false},
		"in order, without the head":       {g, spec.Request{Turn: true}, []int{3}, false},
		"unordered, past a claim":          {g, spec.Request{Any: true}, []int{3, 1}, true},
		"unordered, the claimed one":       {g, spec.Request{Any: true}, []int{2}, false},
		"unordered, twice":                 {g, spec.Request{Any: true}, []int{1, 1}, false},
		"unordered, past one that waits":   {g, spec.Request{Any: true}, []int{1, 3, 5}, false},
		"by template":                      {g, isNew, []int{1, 3, 5}, true},
		"by template, out of order":        {g, isNew, []int{3, 1}, false},
		"beside a claim of the lane":       {held, isNew, nil, true},
		"of the group beside that":         {held, spec.Request{}, []int{1}, false},
		"while paused":                     {g.Pause(false), spec.Request{}, []int{1}, false},
		"nothing while paused":             {g.Pause(false), spec.Request{Any: true}, nil, true},
	} {
		var get []layer.ID
		for _, n := range c.get {
			get = append(get, ids[n])
		}
		require.Equal(t, c.want, c.of.MayGet(c.by, get, now), name)
	}
	require.True(t, held.MayGet(isNew, ids[1:2], now.Add(time.Minute)), "the claim has ended")
	require.Len(t, g.Items, 5, "a group is a value")
	require.Len(t, g.Claims, 1)
}
