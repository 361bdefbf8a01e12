package layer_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/layer"
)

// laned makes a queue with facets in addition to the test's own, and returns handles on it.
func (e *env) laned(name, views string, change func(*layer.Config), handles int) []*layer.Queue {
	e.t.Helper()
	o := e.options(10)
	o.Config.Facets, o.Config.Views = []string{"state", "region"}, views
	o.Config.MaxAttempts = layer.Unlimited
	if change != nil {
		change(&o.Config)
	}
	q, err := layer.Create(e.ctx, e.db, testPrefix, name, o)
	require.NoError(e.t, err)
	all := []*layer.Queue{q}
	for n := 1; n < handles; n++ {
		q, err := layer.Open(e.ctx, e.db, testPrefix, name, e.options(uint64(10+n)))
		require.NoError(e.t, err)
		all = append(all, q)
	}
	e.t.Cleanup(func() { e.sound(name) })
	return all
}

// sound holds a queue to the invariants.
func (e *env) sound(name string) {
	e.t.Helper()
	q, err := layer.Open(context.Background(), e.raw, testPrefix, name, e.options(98))
	require.NoError(e.t, err)
	report, err := q.Admin().Check(context.Background(), layer.CheckOptions{})
	require.NoError(e.t, err)
	require.Empty(e.t, report.Violations)
}

var (
	isNew  = layer.Template{"state": "NEW"}
	isPaid = layer.Template{"state": "PAID"}
)

func facetsOf(state, region string) map[string]string {
	return map[string]string{"state": state, "region": region}
}

// TestTemplatesAreChecked (lanes, traps 9, 16): a template that fits no view, or with an impossible value, is an error
// before the transaction, which names the allowed ones. So are facets and views that do not fit together, and messages
// without facets.
func TestTemplatesAreChecked(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	q := e.laned("checked", "state; state,region", nil, 1)[0]
	_, err := q.Receive(e.ctx, layer.ReceiveOptions{Where: layer.Template{"region": "EU"}})
	var wrong *layer.TemplateError
	require.ErrorAs(t, err, &wrong)
	require.ErrorIs(t, err, layer.ErrOptions)
	require.ErrorContains(t, err, "state; state,region")
	_, err = q.Receive(e.ctx, layer.ReceiveOptions{})
	require.ErrorAs(t, err, &wrong, "whole groups are no view of this queue")
	_, err = q.Receive(e.ctx, layer.ReceiveOptions{Where: layer.Template{"state": ""}})
	require.ErrorIs(t, err, layer.ErrLimit)
	_, err = e.q.Receive(e.ctx, layer.ReceiveOptions{Where: layer.Template{"state": "NEW"}})
	require.ErrorAs(t, err, &wrong)
	require.ErrorContains(t, err, "no facets")
	_, err = q.Enqueue(e.ctx, layer.Message{Group: "A", Headers: map[string]string{"state": "NEW"}})
	require.ErrorIs(t, err, layer.ErrLimit)
	require.ErrorContains(t, err, `facet "region"`)
	for _, bad := range []layer.Config{
		{Facets: []string{"a"}}, {Views: "a"}, {Facets: []string{"a", "a"}, Views: "a"},
		{Facets: []string{"a"}, Views: "b"}, {Facets: []string{"a"}, Views: "a; a"},
		{Facets: []string{"a b"}, Views: "*"},
		{Facets: []string{"a", "b", "c", "d", "e"}, Views: "a"},
		{Facets: []string{"a", "b", "c"}, Views: "a; b; c; a,b"},
		{Facets: []string{"a"}, Views: "a", MaxRate: layer.Rate{Count: 1, Per: time.Second}},
	} {
		_, err := layer.Create(e.ctx, e.db, testPrefix, "bad", layer.Options{Config: bad})
		require.Error(t, err, "%v %q", bad.Facets, bad.Views)
		_, err = layer.Open(e.ctx, e.db, testPrefix, "bad", layer.Options{})
		require.True(t, errors.Is(err, layer.ErrNoQueue))
	}
	_, _, err = q.Admin().Configure(e.ctx, func(c *layer.Config) { c.Views = "*" })
	require.ErrorContains(t, err, "fixed at creation")
}
