package layer_test

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/layer"
)

// combined are the settings that decide about how a queue hands out its messages, each with a value that is not the
// default. A pair of them makes a queue, or is refused.
var combined = []struct{ name, value string }{
	{"facets", "state,region"},
	{"unordered", "true"},
	{"lease_per", "item"},
	{"max_rate", "1000/1s"},
	{"max_rate_total", "1000/1s"},
	{"on_failure", "halt_group"},
	{"schedule", "round_robin"},
	{"fair", "true"},
	{"shards", "4"},
	{"delay", "20ms"},
	{"retroactive_delay", "true"},
	{"max_waiting", "10"},
	{"dedup_by", "content"},
	{"dedup_for", "pending"},
	{"retention", "1h"},
	{"archive", "1h"},
	{"changes", "1h"},
}

// refusedPairs are the pairs that are refused: "no" contradicts itself, "not yet" is not built. Both have a reason.
var refusedPairs = map[[2]string]struct{ kind, why string }{
	{"facets", "unordered"}: {"not yet", "a free message of a group would be in several lanes at a time"},
	{"facets", "lease_per"}: {"not yet", "a message in flight would be in the way of each lane that has it"},
	{"facets", "max_rate"}:  {"not yet", "a group's rate would be one for lanes that run in parallel"},
	{"unordered", "lease_per"}: {
		"no", "an unordered receive has a lease for each message already, and lease_per=item is for messages in order",
	},
	{"unordered", "max_rate"}:   {"not yet", "a claim of one message would not see what others of the group have used"},
	{"unordered", "on_failure"}: {"not yet", "messages of the group may be in flight when it halts"},
	{"lease_per", "max_rate"}:   {"not yet", "a claim of one message would not see what others of the group have used"},
	{"lease_per", "on_failure"}: {"not yet", "messages of the group may be in flight when it halts"},
}

// combine makes the configuration of a pair.
func combine(t *testing.T, names ...int) (c layer.Config) {
	for _, i := range names {
		require.NoError(t, c.Set(combined[i].name, combined[i].value))
		if combined[i].name == "facets" {
			require.NoError(t, c.Set("views", "*; state"))
		}
	}
	return c
}

// TestCombinations: each pair of settings makes a queue that hands out every message once and passes Check, or is
// refused with ErrOptions, as docs/combinations.md says. To write the page again: go test
// ./layer/layertest -run TestCombinations -rewrite.
func TestCombinations(t *testing.T) {
	const path = "../../docs/combinations.md"
	db := anyEngine(t)
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	met := 0
	var settings []string
	for a, s := range combined {
		settings = append(settings, fmt.Sprintf("`%s=%s`", s.name, s.value))
		for b := a + 1; b < len(combined); b++ {
			pair := [2]string{s.name, combined[b].name}
			name := strings.Join(pair[:], "-")
			config := combine(t, a, b)
			config.Retry = atOnce
			q, _, err := layer.Ensure(t.Context(), db, testPrefix, name, layer.Options{Config: config})
			if _, ok := refusedPairs[pair]; ok {
				met++
				require.ErrorIs(t, err, layer.ErrOptions, name)
				continue
			}
			require.NoError(t, err, name)
			work(t, q, name)
			require.NoError(t, q.Close(t.Context()))
		}
	}
	var page strings.Builder
	page.WriteString(combinationsHead + strings.Join(settings, ",\n") + ".\n")
	page.WriteString("\nEach pair works, except these. Create and Ensure refuse them with ErrOptions, " +
		"because the pair contradicts itself (*no*) or is not built (*not yet*):\n\n" +
		"| settings | | reason |\n|---|---|---|\n")
	for a := range combined {
		for b := range combined {
			pair := [2]string{combined[a].name, combined[b].name}
			if r, ok := refusedPairs[pair]; ok {
				fmt.Fprintf(&page, "| `%s`, `%s` | %s | %s |\n", pair[0], pair[1], r.kind, r.why)
			}
		}
	}
	require.Equal(t, len(refusedPairs), met, "a refusal that no pair has met")
	if flag.Lookup("rewrite").Value.String() == "true" {
		require.NoError(t, os.WriteFile(path, []byte(page.String()), 0o644))
	}
	golden, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, string(golden), page.String(), "go test ./layer/layertest -run TestCombinations -rewrite")
}

const combinationsHead = `# Which settings go together

Written by ` + "`make golden`" + `; do not edit. ` + "`TestCombinations`" + ` sends, fails, receives and acks messages
through a queue of each pair, and checks the database. Settings that are not listed go with every other.

The settings, with the views *\*; state*:

`

// work sends four messages of two groups, fails the first delivery, and handles all.
func work(t *testing.T, q *layer.Queue, name string) {
	ctx := t.Context()
	var want, got []string
	for n := range 4 {
		body := fmt.Sprintf("%s %d", name, n)
		want = append(want, body)
		_, err := q.Enqueue(ctx, layer.Message{
			Group: fmt.Sprint("g", n%2), Body: []byte(body), Headers: map[string]string{"state": "new", "region": "eu"},
			DedupID: body,
		})
		require.NoError(t, err, name)
	}
	o := layer.ReceiveOptions{Max: 1, Wait: time.Minute, Unordered: q.Config().Unordered}
	for failed := false; len(got) < len(want); {
		claims, err := q.Receive(ctx, o)
		require.NoError(t, err, name)
		require.NotEmpty(t, claims, "%s: %d of %d handled", name, len(got), len(want))
		for _, c := range claims {
			if !failed {
				failed = true
				require.NoError(t, q.Nack(ctx, c, layer.NackOptions{Err: errors.New("once")}), name)
				continue
			}
			for _, item := range c.Items {
				got = append(got, string(item.Body))
			}
			require.NoError(t, q.Ack(ctx, c), name)
		}
	}
	require.ElementsMatch(t, want, got, name)
	report, err := q.Admin().Check(ctx, layer.CheckOptions{})
	require.NoError(t, err, name)
	require.Empty(t, report.Violations, name)
}
