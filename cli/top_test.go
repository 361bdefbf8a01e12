package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
)

// TestTopView: the screen fits the terminal, says rates and how old it is, and no name or error steers the terminal.
func TestTopView(t *testing.T) {
	at := time.Date(2001, 3, 31, 12, 0, 0, 0, time.UTC)
	m := top{queue: "orders"}.looked(topLook{at: at, stats: layer.Stats{Depth: 1234, Enqueued: 100}})
	require.Contains(t, m.view(200, 0), "in/s –")
	page := layer.BlockedPage{Summary: map[layer.Cause]int64{layer.CauseDelayed: 2}, Sampled: true}
	for _, g := range []string{"A", "\x1b[31mB", strings.Repeat("long", 20)} {
		page.Groups = append(page.Groups, layer.BlockedGroup{
			GroupInfo: layer.GroupInfo{Group: g, Depth: 1000}, More: true, Cause: layer.CauseDelayed, Since: at,
			Reasons: []layer.Reason{{Cause: layer.CauseHeadFailed, Count: 2, Err: "no \x1b luck"}},
		})
	}
	m = m.looked(topLook{at: at.Add(2 * time.Second), stats: layer.Stats{Depth: 1234, Enqueued: 150}, blocked: page})
	text := m.view(200, 0)
	for _, part := range []string{"messages 1,234", "in/s 25.0", "delayed: 2; a sample", "1,000+", "2.0s", "no "} {
		require.Contains(t, text, part)
	}
	require.NotContains(t, text, "\x1b")
	for _, size := range [][2]int{{80, 24}, {60, 10}, {20, 3}, {1, 1}} {
		lines := strings.Split(m.view(size[0], size[1]), "\n")
		require.LessOrEqual(t, len(lines), size[1])
		for _, line := range lines {
			require.LessOrEqual(t, len([]rune(line)), size[0], line)
		}
	}
	require.NotContains(t, m.view(200, 11), "q ends", "a low screen has no room for the keys")
	require.Contains(t, m.view(200, 12), "\nq ends", "nothing to scroll")
	failed := m.looked(topLook{err: errors.New("no database")})
	require.Contains(t, failed.view(80, 24), "NOT FRESH: no database")
	require.Contains(t, failed.view(80, 24), "messages 1,234", "what was seen last stays")
}

// TestTopAt80Columns: a reason that has no room in the line of its figures has a line of its own. Names of wide letters
// do not shift the columns. The last line says how far there is to scroll, and no key scrolls the last group away.
func TestTopAt80Columns(t *testing.T) {
	m := top{queue: "orders", now: time.Date(2001, 3, 31, 12, 0, 0, 0, time.UTC)}
	for i := range 30 {
		name := fmt.Sprint("g", i)
		if i == 1 {
			name = "日本語のグループ"
		}
		m.blocked.Groups = append(m.blocked.Groups, layer.BlockedGroup{
			GroupInfo: layer.GroupInfo{Group: name, Depth: 7}, Cause: layer.CauseDelayed,
			Reasons: []layer.Reason{{Cause: layer.CauseHeadFailed, Count: 2, Err: "timeout calling the bank"}},
		})
	}
	lines := strings.Split(m.view(80, 24), "\n")
	require.Len(t, lines, 24)
	const why = "    the first message of its group has failed 2 times, the last time with: time…"
	require.Equal(t, []string{
		"group            messages    since  cause",
		"g0                      7           delayed", why,
		"日本語のグループ        7           delayed", why,
	}, lines[6:11])
	require.Equal(t, "1–8 of 30   up and down scroll   q ends   space refreshes", lines[23])
	wide := strings.Split(m.view(120, 24), "\n")
	require.Contains(t, wide[7], "delayed        the first message of its group has failed 2 times")
	require.True(t, strings.HasPrefix(wide[23], "1–16 of 30"))
	for range 40 {
		m, _, _ = m.pressed('j')
		m = m.within(80, 24)
	}
	require.Equal(t, 22, m.scroll)
	require.Contains(t, m.view(80, 24), "23–30 of 30")
	require.Contains(t, m.view(80, 24), "g29")
	require.Zero(t, m.within(80, 0).scroll)
	require.Zero(t, m.within(200, 60).scroll, "all fit")
}

// TestTopKeys: keys scroll within the list, ask for new figures, and end the command.
func TestTopKeys(t *testing.T) {
	m := top{blocked: layer.BlockedPage{Groups: make([]layer.BlockedGroup, 3)}}
	for _, c := range []struct {
		key        byte
		scroll     int
		quit, anew bool
	}{{'k', 0, false, false}, {'j', 1, false, false}, {'B', 2, false, false}, {'j', 2, false, false},
		{'A', 1, false, false}, {' ', 1, false, true}, {'x', 1, false, false}, {'q', 1, true, false},
		{3, 1, true, false}} {
		next, quit, anew := m.pressed(c.key)
		require.Equal(t, c.scroll, next.scroll, "%q", c.key)
		require.Equal(t, []bool{c.quit, c.anew}, []bool{quit, anew}, "%q", c.key)
		m = next
	}
	m = m.looked(topLook{at: time.Now()})
	require.Zero(t, m.scroll, "the list has become shorter")
}

// runTop runs the command on a terminal until ctx ends. It returns what the terminal gets, and how the command ends.
func runTop(ctx context.Context, h *harness, args ...string) (screen io.Reader, ended chan error) {
	app := h.app()
	app.size = func(io.Writer) (int, int, bool) { return 80, 24, true }
	out, w := io.Pipe()
	ended = make(chan error, 1)
	go func() {
		ended <- app.Run(ctx, args, strings.NewReader(""), w, io.Discard)
		w.Close()
	}()
	return out, ended
}

// TestTopLeavesTheScreen: on a terminal top draws, and when the context ends it gives the screen back.
func TestTopLeavesTheScreen(t *testing.T) {
	h := newHarness(t)
	args := []string{"enqueue", "--group", "g", "--body", "x"}
	require.NoError(t, h.app().Run(t.Context(), args, strings.NewReader(""), io.Discard, io.Discard))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, ended := runTop(ctx, h, "top")
	var seen strings.Builder
	part := make([]byte, 4096)
	for !strings.Contains(seen.String(), "messages 1") {
		n, err := out.Read(part)
		require.NoError(t, err)
		seen.Write(part[:n])
	}
	cancel()
	rest, err := io.ReadAll(out)
	require.NoError(t, err)
	require.NoError(t, <-ended)
	require.True(t, strings.HasPrefix(seen.String(), screenOn))
	require.True(t, strings.HasSuffix(string(rest), screenOff))
}

// TestTopFollowsANewQueue: the queue is dropped, and a queue of its name is created. Top shows the new one.
func TestTopFollowsANewQueue(t *testing.T) {
	h := newHarness(t)
	run := func(args ...string) {
		t.Helper()
		require.NoError(t, h.app().Run(t.Context(), args, strings.NewReader(""), io.Discard, io.Discard))
	}
	run("enqueue", "--group", "g", "--body", "x")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, ended := runTop(ctx, h, "top", "--every", "100ms")
	until := func(what string) {
		t.Helper()
		var seen strings.Builder
		begun := time.Now()
		for part := make([]byte, 4096); !strings.Contains(seen.String(), what); {
			n, err := out.Read(part)
			require.NoError(t, err)
			require.Less(t, time.Since(begun), time.Minute, "no %q on the screen", what)
			seen.Write(part[:n])
		}
	}
	until("messages 1")
	run("drop", "default", "--yes")
	until(layer.ErrNoQueue.Error())
	run("enqueue", "--group", "g", "--body", "x")
	run("enqueue", "--group", "g", "--body", "y")
	until("messages 2")
	cancel()
	_, err := io.ReadAll(out)
	require.NoError(t, err)
	require.NoError(t, <-ended)
}

// TestTopEndsBehindALook: the answer of the database and a signal come while the terminal is slow. top ends.
func TestTopEndsBehindALook(t *testing.T) {
	for range 20 { // the two are met in any order
		synctest.Test(t, func(t *testing.T) {
			db := embedded.OpenMemory(embedded.Options{})
			q, err := layer.Create(t.Context(), db, prefix(), "default", layer.Options{})
			require.NoError(t, err)
			screen := &unread{begun: make(chan struct{}), free: make(chan struct{})}
			s := &session{app: &App{Now: time.Now}, raw: screen}
			s.app.size = func(io.Writer) (int, int, bool) { return 80, 24, true }
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() {
				ended <- s.topLoop(ctx, &watched{s: s, q: q}, top{queue: "default"}, time.Second, make(chan byte))
			}()
			<-screen.begun
			synctest.Wait() // for the look
			cancel()
			close(screen.free)
			select {
			case err := <-ended:
				require.NoError(t, err)
			case <-time.After(time.Minute):
				t.Fatal("top has not ended")
			}
			require.NoError(t, q.Close(t.Context()))
			require.NoError(t, db.Close())
		})
	}
}

// TestTopWithoutAnAnswer: while the database does not answer, q and Ctrl-C end top, which the terminal passes on as
// keys. The screen says for how long the answer is missing, and has no figures before the first one.
func TestTopWithoutAnAnswer(t *testing.T) {
	for _, key := range []byte{'q', 3} {
		synctest.Test(t, func(t *testing.T) {
			db := embedded.OpenMemory(embedded.Options{})
			var stopped atomic.Bool
			q, err := layer.Create(t.Context(), stops{db, &stopped}, prefix(), "default", layer.Options{})
			require.NoError(t, err)
			stopped.Store(true)
			screen := newScreen("no answer of the database for 3")
			s := &session{app: &App{Now: time.Now}, raw: screen}
			s.app.size = func(io.Writer) (int, int, bool) { return 80, 24, true }
			keys, ended := make(chan byte, 1), make(chan error, 1)
			go func() {
				ended <- s.topLoop(t.Context(), &watched{s: s, q: q}, top{queue: "default"}, time.Second, keys)
			}()
			time.Sleep(time.Minute)
			require.Contains(t, screen.String(), "no answer of the database for 3")
			require.NotContains(t, screen.String(), "no group is blocked")
			keys <- key
			begun := time.Now()
			select {
			case err := <-ended:
				require.NoError(t, err)
			case <-time.After(time.Minute):
				t.Fatal("the key has not ended top")
			}
			require.Less(t, time.Since(begun), 2*time.Second)
			stopped.Store(false)
			require.NoError(t, q.Close(t.Context()))
			require.NoError(t, db.Close())
		})
	}
}
