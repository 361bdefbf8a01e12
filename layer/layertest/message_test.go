package layer_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv/fault"
	"fdbfifo/layer"
)

// TestAlone: messages that are alone have groups of their own, so that as many workers as there are messages have one
// each, and a failure holds up no other; messages without a group are one group.
func TestAlone(t *testing.T) {
	onEngines(t, func(e *env) {
		msgs := []layer.Message{
			{Alone: true, Body: []byte("1")}, {Alone: true, Body: []byte("2"), DedupID: "two"}, {Body: []byte("3")},
			{Body: []byte("4")}, {Alone: true, Body: []byte("2, again"), DedupID: "two"},
		}
		sent, err := e.q.Enqueue(e.ctx, msgs...)
		require.NoError(e.t, err)
		require.True(e.t, msgs[0].Alone && msgs[0].Group == "", "the caller's messages stay as they are")
		groups := make(map[string]bool)
		for _, s := range sent[:2] {
			require.NoError(e.t, uuid.Validate(s.ID.Group))
			groups[s.ID.Group] = true
		}
		require.Len(e.t, groups, 2)
		require.Equal(e.t, []string{"", ""}, []string{sent[2].ID.Group, sent[3].ID.Group})
		require.Equal(e.t, layer.Sent{ID: sent[1].ID, Duplicate: true}, sent[4])

		var got []string
		for range 3 {
			c := e.receive(e.q, 10)
			require.NotNil(e.t, c)
			got = append(got, strings.Join(bodies(c.Items), " "))
		}
		require.ElementsMatch(e.t, []string{"1", "2", "3 4"}, got)
		require.Nil(e.t, e.receive(e.q, 1))
	})
}

// TestAloneUnknownCommit: an unknown commit does not give a message a second group (G3, trap 4).
func TestAloneUnknownCommit(t *testing.T) {
	for _, kind := range []fault.Kind{fault.UnknownApplied, fault.UnknownLost} {
		e := newEnv(t, anyEngine, false)
		e.plan.ForceNext(kind)
		sent, err := e.q.Enqueue(e.ctx, layer.Message{Alone: true, Body: []byte("x")})
		require.NoError(t, err)
		require.Equal(t, []string{"x"}, e.all(sent[0].ID.Group), "%s", kind)
		page, err := e.q.Admin().Groups(e.ctx, layer.GroupsOptions{})
		require.NoError(t, err)
		require.Len(t, page.Groups, 1, "%s", kind)
	}
}

// TestMessageCheck (Contract): Check returns the error with which an enqueue refuses the message, also for a delivery
// time that is too far away.
func TestMessageCheck(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	options := e.options(2)
	options.Now = nil // the clock that Check uses
	q, err := layer.Open(e.ctx, e.db, testPrefix, testQueue, options)
	require.NoError(t, err)
	far := time.Now().Add(layer.MaxDelay)
	for name, m := range map[string]layer.Message{
		"too late":             {Group: "A", DeliverAt: far.Add(time.Hour)},
		"too late, by years":   {Group: "A", DeliverAt: far.AddDate(300, 0, 0)},
		"too late, to join":    {Group: "A", DeliverAt: far.Add(time.Hour), JoinWhenDue: true},
		"late":                 {Group: "A", DeliverAt: far.Add(-time.Hour)},
		"past":                 {Group: "A", DeliverAt: time.Unix(1, 0)},
		"delay and time":       {Group: "A", Delay: time.Second, DeliverAt: far.Add(-time.Hour)},
		"long delay":           {Group: "A", Delay: layer.MaxDelay + 1},
		"letters":              {Group: "\xff"},
		"alone in a group":     {Group: "A", Alone: true},
		"tenant of a group":    {Group: "A", Tenant: "t"},
		"joins and is alone":   {Alone: true, JoinWhenDue: true, Delay: time.Second},
		"joins without a time": {Group: "A", JoinWhenDue: true},
		"joins, with a long name": {
			Group: strings.Repeat("x", layer.MaxGroupSize), JoinWhenDue: true, Delay: time.Second,
		},
	} {
		_, err := q.Enqueue(e.ctx, m)
		checked := m.Check()
		if err == nil {
			require.NoError(t, checked, name)
			continue
		}
		var refused *layer.MessageError
		require.ErrorAs(t, err, &refused, name)
		if limit := new(layer.LimitError); errors.As(checked, &limit) { // its number is of another moment
			require.ErrorIs(t, refused, layer.ErrLimit, name)
			continue
		}
		require.Error(t, checked, name)
		require.Equal(t, refused.Err.Error(), checked.Error(), name)
	}
	require.NoError(t, q.Close(e.ctx))
}

// TestBadMessageOfABatch: the error names the first bad message by its index, and says what is wrong with it; nothing
// is enqueued.
func TestBadMessageOfABatch(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.configure(func(c *layer.Config) { c.DedupInGroup = true })
	good := layer.Message{Group: "A"}
	for name, c := range map[string]struct {
		bad  layer.Message
		is   error
		text string
	}{
		"group": {layer.Message{Group: "\xff"}, layer.ErrInvalidUTF8, "message 2: invalid UTF-8"},
		"late": {layer.Message{DeliverAt: e.clock.now().Add(layer.MaxDelay + time.Second)},
			layer.ErrLimit, "message 2: delay is 720h0m1s"},
		"delay":           {layer.Message{Delay: -1}, layer.ErrLimit, "message 2: delay is -1ns"},
		"alone and not":   {layer.Message{Alone: true, Group: "A"}, layer.ErrOptions, `: alone, and in group "A"`},
		"alone, in group": {layer.Message{Alone: true, DedupID: "x"}, layer.ErrOptions, `dedup id "x" of a message`},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := e.q.Enqueue(e.ctx, good, good, c.bad, c.bad)
			var of *layer.MessageError
			require.ErrorAs(t, err, &of)
			require.Equal(t, 2, of.Index)
			require.ErrorIs(t, err, c.is)
			require.ErrorIs(t, of.Err, c.is)
			require.ErrorContains(t, err, c.text)
		})
	}
	require.Empty(t, e.all("A"))
	_, err := e.q.Enqueue(e.ctx, make([]layer.Message, layer.MaxBatch+1)...)
	var of *layer.MessageError
	require.False(t, errors.As(err, &of), "no message is to blame")
}

// TestDedupIDIsListed: the lists of dead letters and of the archive have the dedup ids.
func TestDedupIDIsListed(t *testing.T) {
	onEngines(t, func(e *env) {
		e.configure(func(c *layer.Config) { c.Archive = time.Hour })
		e.sendAs(e.q, "A", "dead")
		require.NoError(e.t, e.q.Nack(e.ctx, e.receive(e.q, 1), layer.NackOptions{Reject: "no use"}))
		e.sendAs(e.q, "A", "done")
		require.NoError(e.t, e.q.Ack(e.ctx, e.receive(e.q, 1)))
		e.enqueue("B", "without")
		require.NoError(e.t, e.q.Ack(e.ctx, e.receive(e.q, 1)))
		letters, err := e.q.Admin().DeadLetters(e.ctx, layer.DeadOptions{})
		require.NoError(e.t, err)
		require.Equal(e.t, "dead", letters.Letters[0].DedupID)
		for group, want := range map[string]string{"A": "done", "B": ""} {
			of := layer.ArchiveFilter{Group: &group}
			items, err := e.q.Admin().Archive(e.ctx, layer.ArchiveOptions{ArchiveFilter: of})
			require.NoError(e.t, err)
			require.Len(e.t, items.Items, 1)
			require.Equal(e.t, want, items.Items[0].DedupID)
		}
	})
}
