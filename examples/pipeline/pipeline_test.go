package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
)

// TestMain makes this binary the command for the processes that a trial starts.
func TestMain(m *testing.M) {
	if os.Getenv(childMark) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestTrial: two of four stages are killed, and each request has gone through each stage once, in its flight's order.
func TestTrial(t *testing.T) {
	trial := trial{flights: 6, each: 15, kills: 2, lease: time.Second, work: 2 * time.Millisecond, log: io.Discard}
	r, err := trial.run(t.Context())
	require.NoError(t, err)
	require.NoError(t, r.err())
	require.Equal(t, []string{"PRICED", "TICKETED"}, r.Killed)
	require.Equal(t, 90, r.Requests)
	require.Positive(t, r.Together)
	require.Len(t, r.Accounts, 6*len(states))
	for _, a := range r.Accounts {
		require.Equal(t, account{Flight: a.Flight, State: a.State, Handled: 15}, a)
	}
	var fields map[string]any
	text, err := json.Marshal(r)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &fields))
	for _, name := range []string{"out_of_order", "skipped", "doubled", "two_stages_at_once", "accounts", "killed"} {
		require.Contains(t, fields, name)
	}
	require.Contains(t, r.String(), "LH400      0, 0, 0     0, 0, 0")
}

// open opens the queue in memory.
func open(t *testing.T) *layer.Queue {
	db := embedded.OpenMemory(embedded.Options{})
	q, err := openQueue(t.Context(), db)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, q.Close(context.Background()))
		require.NoError(t, db.Close())
	})
	return q
}

// TestManyFlights: requests of more flights are sent than an enqueue takes messages.
func TestManyFlights(t *testing.T) {
	q := open(t)
	trial := trial{flights: layer.MaxBatch + 1, each: 1}
	require.NoError(t, trial.send(t.Context(), q))
	stats, err := q.Stats(t.Context(), layer.StatsOptions{})
	require.NoError(t, err)
	require.Equal(t, int64(layer.MaxBatch+1), stats.Depth)
}

// TestFailedSend, in virtual time: a trial whose requests cannot be sent fails with that error, and does not wait for
// them.
func TestFailedSend(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := open(t)
		_, _, err := q.Admin().Configure(t.Context(), func(c *layer.Config) { c.MaxWaiting = 1 })
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		trial := trial{flights: 1, each: 2}
		require.ErrorIs(t, trial.drive(ctx, q), layer.ErrFull)
		require.NoError(t, ctx.Err(), "the trial has waited")
	})
}

// A canary: the proof fails on each kind of broken promise.
func TestJudge(t *testing.T) {
	lines := func(numbers ...int) (all []entry) {
		for i, n := range numbers {
			all = append(all, entry{Number: n, Begun: int64(10 * i), Ended: int64(10*i + 5)})
		}
		return all
	}
	for name, c := range map[string]struct {
		lines []entry
		want  account
	}{
		"sound":        {lines(1, 2, 3), account{Handled: 3}},
		"skipped":      {lines(1, 3), account{Handled: 2, Skipped: 1}},
		"doubled":      {lines(1, 2, 2, 3), account{Handled: 4, Doubled: 1}},
		"out of order": {lines(2, 1, 3), account{Handled: 3, OutOfOrder: 1}},
	} {
		require.Equal(t, c.want, judge(c.lines, 3), name)
	}
	require.Error(t, proof{Together: 1, Skipped: 1}.err())
	require.Error(t, proof{}.err())
	require.NoError(t, proof{Together: 1}.err())

	apart := lines(1, 2)
	require.False(t, together(map[string][]entry{"NEW": apart}), "one stage alone")
	require.False(t, together(map[string][]entry{"NEW": apart, "PAID": {{Number: 1, Begun: 6, Ended: 9}}}))
	require.True(t, together(map[string][]entry{"NEW": apart, "PAID": {{Number: 1, Begun: 12, Ended: 20}}}))
}

// TestCommands: what a user mistypes is said.
func TestCommands(t *testing.T) {
	for _, args := range [][]string{
		{"sell"}, {"stage"}, {"stage", "-folder", t.TempDir(), "-state", "SOLD"}, {"run", "-requests", "3"}, {"-kils"},
	} {
		var errs bytes.Buffer
		require.Error(t, command(t.Context(), args, strings.NewReader(""), io.Discard, &errs), args)
	}
}
