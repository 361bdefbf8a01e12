package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"fdbfifo/layer"
)

// The demo on the first 400 departures, on disk: its JSON has the promised fields, nothing is broken, and its
// folder is gone afterwards.
func TestDemo(t *testing.T) {
	t.Setenv("TMPDIR", t.TempDir())
	cut := someDepartures(t, 400)

	var stdout, stderr bytes.Buffer
	args := []string{"demo", "--data", cut, "--workers", "4", "--in-process", "--json"}
	err := Run(context.Background(), args, nil, &stdout, &stderr)
	require.NoError(t, err, stderr.String())
	var got map[string]float64
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &got))
	for _, name := range []string{"messages", "groups", "seconds", "messages_per_s", "most_groups_in_hand", "conflicts",
		"order_violations", "lost", "doubled", "processes", "killed", "taken_over", "takeovers"} {
		require.Contains(t, got, name)
	}
	require.Len(t, got, 13)
	require.EqualValues(t, 400, got["messages"])
	require.Greater(t, got["groups"], 20.0)
	require.LessOrEqual(t, got["most_groups_in_hand"], 4.0)
	require.Positive(t, got["most_groups_in_hand"])
	require.Zero(t, got["order_violations"]+got["lost"]+got["doubled"])
	left, err := os.ReadDir(os.Getenv("TMPDIR"))
	require.NoError(t, err)
	require.Empty(t, left)
}

// On a queue that has messages the demo touches nothing.
func TestDemoOnUsedQueue(t *testing.T) {
	app, q := onMemory(t, 2)
	var stdout, stderr bytes.Buffer
	args := []string{"demo", "--in-process", "--engine", "disk", "--queue", "default"}
	err := app.Run(context.Background(), args, nil, &stdout, &stderr)
	require.Equal(t, ExitFailed, ExitCode(err))
	requireGivenBack(t, q, 2)
}

// The built-in data is what the demo's promises speak of.
func TestBuiltInDepartures(t *testing.T) {
	flights, err := readDeparturesFile("")
	require.NoError(t, err)
	require.Len(t, flights, 20_000)
	groups := make(map[string]bool)
	for _, f := range flights {
		groups[f.group] = true
	}
	require.Len(t, groups, 220)
}

// A canary: the witness must see each kind of broken promise, or the demo proves nothing.
func TestWitness(t *testing.T) {
	flights, err := readDepartures(strings.NewReader("id,origin\n1,A\n2,B\n3,A\n4,A\n"))
	require.NoError(t, err)
	item := func(line int, group, body string) layer.Item {
		return layer.Item{
			ID: layer.ID{Group: group}, Body: []byte(body), Headers: map[string]string{lineHeader: strconv.Itoa(line)},
		}
	}
	one, two, three, four := item(2, "A", "1,A"), item(3, "B", "2,B"), item(4, "A", "3,A"), item(5, "A", "4,A")
	hand := func(w *witness, items ...layer.Item) demoReport {
		for _, i := range items {
			w.begin(i)
			w.end(i)
		}
		r := w.report()
		r.Check = layer.CheckReport{}
		return r
	}
	sound := demoReport{Messages: 4, Groups: 2, MostGroupsInHand: 1, Check: layer.CheckReport{}}
	with := func(change func(r *demoReport)) demoReport {
		r := sound
		change(&r)
		return r
	}

	good := hand(newWitness(flights), one, two, three, four)
	require.Equal(t, sound, good)
	require.NoError(t, good.verdict())

	for name, test := range map[string]struct{ got, want demoReport }{
		"order":        {hand(newWitness(flights), one, two, four, three), with(func(r *demoReport) { r.Disorder = 2 })},
		"lost":         {hand(newWitness(flights), one, two, three), with(func(r *demoReport) { r.Lost = 1 })},
		"gap":          {hand(newWitness(flights), one, two, four), with(func(r *demoReport) { r.Lost, r.Disorder = 1, 1 })},
		"doubled":      {hand(newWitness(flights), one, one, two, three, four), with(func(r *demoReport) { r.Doubled = 1 })},
		"other body":   {hand(newWitness(flights), item(2, "A", "?"), two, three, four), with(func(r *demoReport) { r.Lost, r.Doubled, r.Disorder = 1, 1, 1 })},
		"other group":  {hand(newWitness(flights), one, item(3, "A", "2,B"), two, three, four), with(func(r *demoReport) { r.Doubled = 1 })},
		"unknown":      {hand(newWitness(flights), one, two, three, four, item(9, "Z", "")), with(func(r *demoReport) { r.Doubled = 1 })},
		"rules broken": {with(func(r *demoReport) { r.Check = layer.CheckReport{Violations: make([]layer.Violation, 1)} }), with(func(r *demoReport) { r.Check = layer.CheckReport{Violations: make([]layer.Violation, 1)} })},
	} {
		t.Run(name, func(t *testing.T) {
			require.Equal(t, test.want, test.got)
			require.Error(t, test.got.verdict())
		})
	}

	w := newWitness(flights)
	w.begin(one)
	w.begin(two)
	w.begin(three)
	w.end(one)
	w.end(three)
	w.end(two)
	overlapping := hand(w, four)
	require.Equal(t, with(func(r *demoReport) { r.TwoHands, r.MostGroupsInHand = 1, 2 }), overlapping)
	require.Error(t, overlapping.verdict())
}
