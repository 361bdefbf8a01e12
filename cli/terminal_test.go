package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// spell is text that a terminal obeys or that shows other than it is: ESC, a C1 control, one that turns the direction
// of what follows, a bell, a carriage return.
const spell = "a\x1b[31m\u009b2J\u202eevil\u2066\x07\r\u200b"

// hostileQueue is a queue in which each text that others can write steers terminals.
func hostileQueue(t *testing.T, h *harness) (name string) {
	t.Helper()
	ctx := t.Context()
	q, err := layer.Create(ctx, h.db, tuple.Tuple{"fdbfifo"}.Pack(), spell, layer.Options{
		Now: h.clock.Now, Owner: spell,
		Config: layer.Config{Facets: []string{"f"}, Views: "*; f", Archive: time.Hour, Changes: time.Hour},
	})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, q.Close(context.Background())) })
	var ids []layer.ID
	for _, group := range []string{"held", "failed", "marked", "dead", "done", "rest"} {
		group += spell
		sent, err := q.Enqueue(ctx, layer.Message{
			Group: group, Body: []byte(spell), DedupID: group,
			Headers: map[string]string{"f": spell, "h" + spell: spell},
		})
		require.NoError(t, err)
		ids = append(ids, sent[0].ID)
	}
	claim := func(group string) *layer.Claim {
		claims, err := q.Receive(ctx, layer.ReceiveOptions{Group: &group})
		require.NoError(t, err)
		require.Len(t, claims, 1)
		return claims[0]
	}
	failed := claim("failed" + spell)
	require.NoError(t, q.Nack(ctx, failed, layer.NackOptions{Err: errors.New(spell), Delay: time.Hour}))
	require.NoError(t, q.Nack(ctx, claim("dead"+spell), layer.NackOptions{Reject: spell}))
	require.NoError(t, q.Ack(ctx, claim("done"+spell)))
	admin := q.Admin().As(spell)
	_, err = admin.PauseGroup(ctx, "marked"+spell, layer.PauseOptions{Reason: spell})
	require.NoError(t, err)
	require.NoError(t, admin.SetGroupState(ctx, "rest"+spell, []byte(spell), layer.SetGroupStateOptions{}))
	_, err = q.Receive(ctx, layer.ReceiveOptions{Where: layer.Template{"f": spell}})
	require.NoError(t, err)
	for _, group := range []string{"first" + spell, "second" + spell} { // for work
		_, err := q.Enqueue(ctx, layer.Message{Group: group, Body: []byte(spell), Headers: map[string]string{"f": "x"}})
		require.NoError(t, err)
	}
	told, cancel := context.WithCancel(ctx)
	defer cancel()
	require.NoError(t, q.Subscribe(told, spell, func(context.Context, []layer.Change) error {
		cancel()
		return nil
	}, layer.SubscribeOptions{FromOldest: true}))
	return ids[1].String()
}

// steering is the first rune of a text that is not printable, and no end of a line; "" = there is none.
func steering(text string) string {
	for i, r := range text {
		_, n := utf8.DecodeRuneInString(text[i:])
		if r != '\n' && !unicode.IsPrint(r) || r == utf8.RuneError && n == 1 {
			return text[max(0, i-30) : i+n]
		}
	}
	return ""
}

// progressBar is what the bar of the progress tells the terminal.
var progressBar = regexp.MustCompile(`\r|\x1b\[[0-9]*[AJK]`)

// TestNothingSteersTheTerminal: no command prints a text of the database so that a terminal obeys it, to stdout or to
// stderr, as text or as JSON; JSON still says the text.
func TestNothingSteersTheTerminal(t *testing.T) {
	h := newHarness(t)
	id := hostileQueue(t, h)
	group := func(name string) string { return name + spell }
	for _, args := range [][]string{
		{"peek"}, {"peek", "--group", group("failed")}, {"groups"}, {"groups", "--marked"},
		{"groups", "--where", "f=" + spell},
		{"blocked"}, {"blocked", "--held-for", "1ns", "--ready-for", "1ns"}, {"top", "--once"},
		{"why", id}, {"find", group("failed")}, {"stats"}, {"check"},
		{"work", "--exec", "cat; cat >&2 <<END\n$FDBFIFO_GROUP\nEND\nexit 1", "--max", "1"},
		{"dead", "list"}, {"archive", "list"}, {"subscriptions"},
		{"state", "--group", group("rest")}, {"queues"}, {"queues", "--all"}, {"config"},
		{"pause", "--reason", spell}, {"resume"},
		{"pause", "--group", group("rest"), "--by", spell}, {"resume", "--group", group("rest")},
		{"resume", "--group", group("rest")}, {"skip", "--group", group("held")}, {"retry", "--group", group("failed")},
		{"release", "--group", group("none")}, {"cancel", id + "x"}, {"reschedule", id, "--in", "1h"},
		{"receive", "--group", group("rest")}, {"release", "--group", group("rest"), "--token", "1"},
		{"enqueue", "--group", group("new"), "--body", spell, "--header", "f=x"},
		{"ack", "--group", group("rest"), "--token", "1"}, {"purge", "--group", group("marked"), "--yes"},
		{"drop", "--queue", "no" + spell},
		{"dead", "redrive", "--all", "--yes"}, {"purge"},
	} {
		for _, extra := range [][]string{nil, {"--json"}} {
			app := h.app()
			app.size = func(io.Writer) (int, int, bool) { return 200, 50, true }
			var stdout, stderr bytes.Buffer
			full := append(append([]string{"--queue", spell}, args...), extra...)
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			err := app.Run(ctx, full, strings.NewReader(""), &stdout, &stderr)
			require.NoError(t, ctx.Err(), "%q does not end", full)
			cancel()
			if bad := steering(stdout.String()); bad != "" {
				t.Errorf("%q: stdout: %q", full, bad)
			}
			if bad := steering(progressBar.ReplaceAllString(stderr.String(), "")); bad != "" {
				t.Errorf("%q: stderr: %q", full, bad)
			}
			require.NotEmpty(t, stdout.String()+stderr.String(), "%q: %v", full, err)
			if extra == nil || args[0] == "work" || args[0] == "top" {
				continue
			}
			for _, line := range strings.Split(strings.TrimSpace(stdout.String()), "\n") {
				require.True(t, line == "" || json.Valid([]byte(line)), "%q: %s", full, line)
			}
			if args[0] == "peek" {
				require.Contains(t, peeked(t, stdout.Bytes()), spell, "JSON says what the text is")
			}
		}
	}
}

// peeked are the bodies of what peek --json has printed.
func peeked(t *testing.T, text []byte) (bodies []string) {
	for in := json.NewDecoder(bytes.NewReader(text)); in.More(); {
		var item jsonItem
		require.NoError(t, in.Decode(&item))
		bodies = append(bodies, *item.Body)
	}
	return bodies
}

// TestPipesGetWhatThereIs: what a command of work prints, and a group's state, go to a pipe as they are.
func TestPipesGetWhatThereIs(t *testing.T) {
	h := newHarness(t)
	hostileQueue(t, h)
	args := []string{"enqueue", "--group", "A", "--body", spell}
	require.NoError(t, h.app().Run(t.Context(), args, strings.NewReader(""), io.Discard, io.Discard))
	for _, args := range [][]string{
		{"state", "--queue", spell, "--group", "rest" + spell}, {"work", "--exec", "cat", "--max", "1"},
	} {
		var stdout bytes.Buffer
		err := h.app().Run(t.Context(), args, strings.NewReader(""), &stdout, io.Discard)
		require.NoError(t, err)
		want := spell
		if args[0] == "work" {
			want += "\n" // the end of a last line, which work adds
		}
		require.Equal(t, want, stdout.String(), "%q", args)
	}
}
