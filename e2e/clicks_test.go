package e2e

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// button clicks a button by its words, in a part of the page. The page may be as old as the console's Every: then the
// page is loaded again.
func (w *world) button(in, words string) {
	w.t.Helper()
	click := fmt.Sprintf(`(b => { if (b) b.click(); return Boolean(b) })(
		[...document.querySelectorAll(%q + " :is(button, a.button)")].find(b => b.textContent == %q))`, in, words)
	for begun := time.Now(); !run(w, chromedp.Evaluate[bool](click)); {
		require.Less(w.t, time.Since(begun), patience, "there is no button %q in %s", words, in)
		time.Sleep(100 * time.Millisecond)
		w.do(chromedp.Navigate(run(w, chromedp.Evaluate[string]("location.href"))))
	}
}

// says waits until the page says a text.
func (w *world) says(words string) {
	w.t.Helper()
	w.until(fmt.Sprintf(`document.body && document.body.innerText.includes(%q)`, words))
}

func (w *world) until(expression string) {
	w.t.Helper()
	require.Eventually(w.t, func() bool {
		ok, err := chromedp.Run(w.ctx, chromedp.Evaluate[bool](expression))
		return err == nil && ok // an error: between two pages
	}, patience, 20*time.Millisecond, expression)
}

// groupPage opens the page of a group.
func (w *world) groupPage(g string) {
	w.t.Helper()
	w.open("group?" + url.Values{"q": {"orders"}, "g": {g}}.Encode())
}

// remedy clicks a remedy of a group, and waits until the console says the text said. If confirm is not "", the click
// leads to a page of confirmation with that text, which remedy confirms.
func (w *world) remedy(g, label, confirm, said string) {
	w.t.Helper()
	w.groupPage(g)
	w.button("#p-remedies", label)
	if confirm != "" {
		w.says(confirm)
		w.button("main", label)
	}
	w.says(said)
}

func (w *world) fail(g, words string, delay time.Duration) {
	w.t.Helper()
	err := w.q.Nack(w.t.Context(), w.claim(g), layer.NackOptions{Delay: delay, Err: errors.New(words)})
	require.NoError(w.t, err)
}

// halt makes a group of two messages, whose head has failed for good.
func (w *world) halt(g string) {
	w.t.Helper()
	w.enqueue(g, "1", "2")
	require.NoError(w.t, w.q.Nack(w.t.Context(), w.claim(g), layer.NackOptions{Reject: "account is closed"}))
	require.Equal(w.t, layer.Halted, w.group(g).Status)
}

// first is the body of the first message of a group.
func (w *world) first(g string) string {
	w.t.Helper()
	items, err := w.q.Peek(w.t.Context(), g, 1, nil)
	require.NoError(w.t, err)
	require.NotEmpty(w.t, items)
	return string(items[0].Body)
}

// corrupt changes the stored message with this body so that it cannot be read.
func (w *world) corrupt(body string) {
	w.t.Helper()
	var keys [][]byte
	for pair, err := range kv.Rows(w.t.Context(), w.options.DB, kv.KeyRange{Begin: []byte{0}, End: []byte{0xff}}) {
		require.NoError(w.t, err)
		if bytes.Contains(pair.Value, []byte(body)) {
			keys = append(keys, pair.Key)
		}
	}
	require.Len(w.t, keys, 1)
	w.write(func(tx kv.Tx) { tx.Set(keys[0], []byte("?")) })
}

// edit clicks the edit of a message that a page leads to, and stores a body.
func (w *world) edit(in, label, body string) {
	w.t.Helper()
	w.button(in, label)
	w.says("The message keeps its place")
	w.do(chromedp.SetValue("#body", body))
	w.button("main", "Store")
	w.says(fmt.Sprintf("the message has a new body of %d bytes", len(body)))
}

// remedies are the remedies for each cause, clicked in a browser, and the database read after.
var remedies = []struct {
	name string
	do   func(w *world)
}{
	{"queue paused: resume", func(w *world) {
		w.open("queue?q=orders")
		w.do(chromedp.SetValue("#why-pause", "the bank is down"))
		w.button("#p-acts", "Pause the queue")
		w.says("The queue is paused")
		m, paused, err := w.q.Admin().Paused(w.t.Context())
		require.NoError(w.t, err)
		require.True(w.t, paused)
		require.Equal(w.t, "the bank is down", m.Reason)
		w.button("#p-banner", "Resume the queue")
		w.says("resume-queue: the queue is resumed")
		_, paused, err = w.q.Admin().Paused(w.t.Context())
		require.NoError(w.t, err)
		require.False(w.t, paused)
	}},
	{"group paused: resume", func(w *world) {
		w.enqueue("paused", "1")
		w.remedy("paused", "Pause", "", "pause: the group is paused")
		require.Equal(w.t, layer.Paused, w.group("paused").Status)
		w.remedy("paused", "Resume", "", "resume: the group is resumed")
		require.Equal(w.t, layer.Ready, w.group("paused").Status)
	}},
	{"group halted: edit the head, then resume", func(w *world) {
		w.halt("halted-1")
		w.groupPage("halted-1")
		w.edit("#p-remedies", "Edit the head", "mended")
		require.Equal(w.t, "mended", w.first("halted-1"))
		require.Equal(w.t, layer.Halted, w.group("halted-1").Status)
		w.remedy("halted-1", "Resume", "", "resume: the group is resumed")
		g := w.group("halted-1")
		require.Equal(w.t, layer.Ready, g.Status)
		require.Zero(w.t, g.Attempts, "tried anew")
		require.EqualValues(w.t, 2, g.Depth)
	}},
	{"group halted: set the head aside, then resume", func(w *world) {
		w.halt("halted-2")
		w.remedy("halted-2", "Set the head aside", "moves the first message", "is among the dead letters")
		require.EqualValues(w.t, 1, w.group("halted-2").Depth)
		w.remedy("halted-2", "Resume", "", "resume: the group is resumed")
		require.Equal(w.t, layer.Ready, w.group("halted-2").Status)
		require.Equal(w.t, "2", w.first("halted-2"))
	}},
	{"group halted: purge", func(w *world) {
		w.halt("halted-3")
		w.remedy("halted-3", "Purge", "the group is halted and has 2 messages", "2 messages removed")
		require.Zero(w.t, w.group("halted-3").Depth)
	}},
	{"delayed: retry now", func(w *world) {
		w.enqueue("delayed-1", "1")
		w.fail("delayed-1", "timeout", time.Hour)
		w.remedy("delayed-1", "Retry now", "", "retry: the group is ready")
		require.Equal(w.t, layer.Ready, w.group("delayed-1").Status)
	}},
	{"delayed: edit", func(w *world) {
		w.enqueue("delayed-2", "1")
		w.fail("delayed-2", "timeout", time.Hour)
		w.groupPage("delayed-2")
		w.edit("#p-remedies", "Edit the head", "mended")
		require.Equal(w.t, "mended", w.first("delayed-2"))
		require.Equal(w.t, layer.Delayed, w.group("delayed-2").Status, "a delay goes on")
	}},
	{"delayed: set aside", func(w *world) {
		w.enqueue("delayed-3", "1", "2")
		w.fail("delayed-3", "timeout", time.Hour)
		w.remedy("delayed-3", "Set the head aside", "moves the first message", "is among the dead letters")
		require.Equal(w.t, "2", w.first("delayed-3"))
		require.Equal(w.t, layer.Ready, w.group("delayed-3").Status)
	}},
	{"delayed: pause", func(w *world) {
		w.enqueue("delayed-4", "1")
		w.fail("delayed-4", "timeout", time.Hour)
		w.remedy("delayed-4", "Pause", "", "pause: the group is paused")
		require.Equal(w.t, layer.Paused, w.group("delayed-4").Status)
	}},
	{"delayed: all with the same error", func(w *world) {
		for i := range 3 {
			g := fmt.Sprintf("alike-%d", i)
			w.enqueue(g, "1")
			w.fail(g, "no such host", time.Hour)
		}
		w.open("blocked?q=orders&cause=delayed")
		w.says("3 of the groups below have failed with: no such host")
		w.button("#p-blocked .alike", "Retry all of these")
		w.says("3 groups would be retried now, all after: no such host")
		w.button("main", "Retry all of these")
		w.says("retry-alike: 3 groups are ready")
		for i := range 3 {
			require.Equal(w.t, layer.Ready, w.group(fmt.Sprintf("alike-%d", i)).Status)
		}
		require.Equal(w.t, layer.Delayed, w.group("delayed-2").Status, "which failed otherwise")
	}},
	{"group held: pause at its end", func(w *world) {
		w.enqueue("held-1", "1", "2")
		c := w.claim("held-1")
		w.groupPage("held-1")
		w.says("Look at process 4711 of host web-1 first")
		w.remedy("held-1", "Pause", "", "pause: the group is paused")
		require.Equal(w.t, layer.Held, w.group("held-1").Status)
		require.NoError(w.t, w.q.Ack(w.t.Context(), c))
		require.Equal(w.t, layer.Paused, w.group("held-1").Status)
	}},
	{"group held: release by force", func(w *world) {
		w.enqueue("held-2", "1")
		c := w.claim("held-2")
		w.remedy("held-2", "Release by force", "its handler continues", "taken from")
		require.Equal(w.t, layer.Ready, w.group("held-2").Status)
		require.Zero(w.t, w.group("held-2").Attempts)
		require.ErrorIs(w.t, w.q.Ack(w.t.Context(), c), layer.ErrClaimLost)
	}},
	{"group held: release, count the attempt", func(w *world) {
		w.enqueue("held-3", "1")
		w.claim("held-3")
		w.remedy("held-3", "Release, count the attempt", "counts an attempt", "taken from")
		require.Equal(w.t, 1, w.group("held-3").Attempts)
	}},
	{"lease expired: release and count", func(w *world) {
		w.enqueue("expired", "1")
		group := "expired"
		claims, err := w.q.Receive(w.t.Context(), layer.ReceiveOptions{Group: &group, Lease: time.Second})
		require.NoError(w.t, err)
		require.Len(w.t, claims, 1)
		expired := func() bool { return w.group(group).Status == layer.Expired }
		require.Eventually(w.t, expired, patience, 50*time.Millisecond)
		w.groupPage(group)
		w.says("no worker takes over: start one")
		w.remedy(group, "Release, count the attempt", "counts an attempt", "taken from")
		require.Equal(w.t, 1, w.group(group).Attempts)
		require.NotEqual(w.t, layer.Expired, w.group(group).Status)
	}},
	{"nobody waits: the command, the schedule", func(w *world) {
		w.enqueue("ready", "1")
		w.groupPage("ready")
		w.says("fdbfifo work --queue orders --exec COMMAND")
		w.open("config?q=orders")
		w.set("schedule", "round_robin")
		require.True(w.t, w.config().RoundRobin)
	}},
	{"turn: the schedule, pause", func(w *world) {
		w.enqueue("turn-1", "1")
		w.enqueue("turn-2", "1")
		w.groupPage("turn-2")
		w.says("ready too")
		w.says("More workers shorten the wait")
		w.says("fdbfifo work --queue orders --exec COMMAND")
		w.follow("#p-group", "schedule")
		w.set("schedule", "oldest_head")
		require.False(w.t, w.config().RoundRobin)
		w.remedy("turn-2", "Pause", "", "pause: the group is paused")
		require.Equal(w.t, layer.Paused, w.group("turn-2").Status)
		require.Equal(w.t, layer.Ready, w.group("turn-1").Status)
	}},
	{"rate limited: change the rate", func(w *world) {
		w.open("config?q=orders")
		w.set("max_rate", "1/h")
		require.Equal(w.t, layer.Rate{Count: 1, Per: time.Hour}, w.config().MaxRate)
		w.enqueue("rate", "1", "2")
		w.handleOne("rate")
		require.Equal(w.t, layer.RateLimited, w.group("rate").Status)
		w.groupPage("rate")
		w.says("the rate of the group is used up")
		w.follow("#p-group", "change the rate")
		w.set("max_rate", "0")
		require.Zero(w.t, w.config().MaxRate)
		require.NoError(w.t, w.q.Ack(w.t.Context(), w.claim("rate")), "it goes on at once")
	}},
	{"queue rate limited: change the rate", func(w *world) {
		w.open("config?q=orders")
		w.set("max_rate_total", "1/h")
		require.Equal(w.t, layer.Rate{Count: 1, Per: time.Hour}, w.config().MaxRateTotal)
		w.enqueue("total", "1", "2")
		w.handleOne("total")
		w.groupPage("total")
		w.says("the rate of the queue is used up")
		w.follow("#p-group", "change the rate")
		w.set("max_rate_total", "0")
		require.Zero(w.t, w.config().MaxRateTotal)
		require.NoError(w.t, w.q.Ack(w.t.Context(), w.claim("total")), "it goes on at once")
	}},
	{"granted: it ends by itself", func(w *world) {
		w.enqueue("granted", "1")
		lock := tuple.Tuple{"orders", "lock", "granted"}.Pack()
		// By a clock that is ahead, or a busy machine comes too late to see it.
		end := time.Now().Add(10 * time.Minute).UnixMilli()
		w.write(func(tx kv.Tx) {
			grant := tuple.Tuple{"grant", int64(5), "00000000-0000-4000-8000-000000000000", end}
			tx.Set(lock, tuple.Tuple{int64(5), nil, grant}.Pack())
			tx.Set(tuple.Tuple{"orders", "timer", end, "granted"}.Pack(), append(tuple.Tuple{"grant"}.Pack(), 0x14))
		})
		w.groupPage("granted")
		w.says("There is nothing to do: it ends within two seconds")
		w.says("None is needed")
		w.behind.Store(-int64(11 * time.Minute))
		defer w.behind.Store(0)
		require.NoError(w.t, w.q.Ack(w.t.Context(), w.claim("granted")))
	}},
	{"unreachable: check, then pause and resume", func(w *world) {
		w.enqueue("unreachable", "1")
		head, err := w.q.Peek(w.t.Context(), "unreachable", 1, nil)
		require.NoError(w.t, err)
		hint := tuple.Tuple{"orders", "ready", int64(0), head[0].ID.Index, "unreachable"}.Pack()
		w.write(func(tx kv.Tx) { tx.Clear(hint) })
		claims, err := w.q.Receive(w.t.Context(), layer.ReceiveOptions{Max: 1, MaxGroups: 100})
		require.NoError(w.t, err)
		for _, c := range claims {
			require.NotEqual(w.t, "unreachable", c.Group)
			require.NoError(w.t, w.q.Nack(w.t.Context(), c, layer.NackOptions{Release: true}))
		}
		w.groupPage("unreachable")
		w.says("This is a fault of fdbfifo")
		w.follow("#p-group", "check")
		w.button("main", "Check now")
		w.says("1 violation; ")
		w.remedy("unreachable", "Pause", "", "pause: the group is paused")
		w.remedy("unreachable", "Resume", "", "resume: the group is resumed")
		w.open("check?q=orders")
		w.button("main", "Check now")
		w.says("all rules hold")
		require.NoError(w.t, w.q.Ack(w.t.Context(), w.claim("unreachable")))
	}},
	{"kept back: deliver now", func(w *world) {
		w.later("kept-1")
		w.groupPage("kept-1")
		w.says("It waits by design")
		w.remedy("kept-1", "Deliver now", "", "retry: the group is ready")
		require.Equal(w.t, layer.Ready, w.group("kept-1").Status)
	}},
	{"kept back: cancel", func(w *world) {
		w.later("kept-2")
		w.remedy("kept-2", "Cancel the head", "removes the first message for good", "the message was removed")
		require.Zero(w.t, w.group("kept-2").Depth)
	}},
	{"corrupt: check, then cancel the head", func(w *world) {
		w.enqueue("corrupt", "a body that cannot be read", "2")
		w.corrupt("a body that cannot be read")
		w.groupPage("corrupt")
		w.says("Have the queue checked")
		w.open("check?q=orders")
		w.button("main", "Check now")
		w.says("1 violation; ")
		w.remedy("corrupt", "Cancel the head", "removes the first message for good", "the message was removed")
		require.Equal(w.t, "2", w.first("corrupt"))
		w.open("check?q=orders")
		w.button("main", "Check now")
		w.says("all rules hold")
	}},
	{"a message: edit, cancel", func(w *world) {
		w.enqueue("message", "1", "2")
		items, err := w.q.Peek(w.t.Context(), "message", 2, nil)
		require.NoError(w.t, err)
		page := "message?q=orders&id=" + url.QueryEscape(items[1].ID.String())
		w.open(page)
		w.edit("main", "Edit", "two")
		w.open(page)
		w.button("main", "Show the body")
		w.says("two")
		w.button("main", "Cancel")
		w.says("removes the first message for good")
		w.button("main", "Cancel the head")
		w.says("the message was removed")
		require.EqualValues(w.t, 1, w.group("message").Depth)
		require.Equal(w.t, "1", w.first("message"))
	}},
	{"dead letters: redrive all of an error, redrive one, discard one", func(w *world) {
		for i := range 4 {
			g := fmt.Sprintf("dead-%d", i)
			w.enqueue(g, "1")
			reason := fmt.Sprintf("no such account %d", i/2)
			_, err := w.q.Admin().Skip(w.t.Context(), g, layer.SkipOptions{Reason: reason})
			require.NoError(w.t, err)
		}
		w.open("dead?q=orders&text=no+such+account+0")
		w.button("main", "Redrive all of these…")
		w.says("2 dead letters would be given back")
		w.button("main", "Redrive")
		w.says("2 dead letters given back")
		require.EqualValues(w.t, 1, w.group("dead-0").Depth)
		require.Zero(w.t, w.group("dead-2").Depth)
		for g, label := range map[string]string{"dead-2": "Redrive", "dead-3": "Discard"} {
			of := layer.DeadOptions{DeadFilter: layer.DeadFilter{Group: &g}}
			page, err := w.q.Admin().DeadLetters(w.t.Context(), of)
			require.NoError(w.t, err)
			require.Len(w.t, page.Letters, 1)
			w.open("message?q=orders&id=" + url.QueryEscape(page.Letters[0].ID.String()))
			w.button("main", label)
			w.says("1 dead letter would be")
			w.button("main", label)
			w.says("1 dead letter ")
			w.says(map[string]string{"Redrive": "given back", "Discard": "removed for good"}[label])
		}
		require.EqualValues(w.t, 1, w.group("dead-2").Depth)
		require.Zero(w.t, w.group("dead-3").Depth)
	}},
	{"archive: replay", func(w *world) {
		w.enqueue("finished", "1", "2")
		require.NoError(w.t, w.q.Ack(w.t.Context(), w.claim("finished")))
		w.open("archive?q=orders&g=finished")
		w.button("main", "Replay these…")
		w.says("2 messages would be enqueued again")
		w.button("main", "Replay")
		w.says("2 messages enqueued again")
		require.EqualValues(w.t, 2, w.group("finished").Depth)
	}},
	{"a name of any bytes", func(w *world) {
		evil := "\u202Eevil\x00\n<img src=x onerror='window.bad=1'>"
		w.enqueue(evil, "1")
		w.remedy(evil, "Pause", "", "pause: the group is paused")
		require.Equal(w.t, layer.Paused, w.group(evil).Status)
		require.False(w.t, run(w, chromedp.Evaluate[bool](`"bad" in window || document.images.length > 0`)))
	}},
}

// set gives a setting of the queue a value, on the page where that can be done.
func (w *world) set(setting, value string) {
	w.t.Helper()
	input := fmt.Sprintf(`input[aria-label=%q]`, setting)
	w.do(chromedp.WaitVisible(input), chromedp.SetValue(input, value))
	w.click(fmt.Sprintf(`document.querySelector(%q).form.querySelector("button")`, input))
	w.says(fmt.Sprintf("configure: %s is %s, version", setting, value))
}

func (w *world) config() layer.Config {
	w.t.Helper()
	c, _, err := w.q.Admin().ReadConfig(w.t.Context())
	require.NoError(w.t, err)
	return c
}

// follow clicks a link by its words, in a part of the page.
func (w *world) follow(in, words string) {
	w.t.Helper()
	link := fmt.Sprintf(`[...document.querySelectorAll(%q)].find(a => a.textContent == %q)`, in+" a", words)
	w.until("Boolean(" + link + ")")
	w.click(link)
}

func (w *world) click(element string) {
	w.t.Helper()
	w.do(chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Run(ctx, chromedp.Evaluate[bool](element+".click(), true"))
		return err
	}))
}

// write changes the database behind the queue's back.
func (w *world) write(change func(tx kv.Tx)) {
	w.t.Helper()
	_, err := kv.Run(w.t.Context(), w.options.DB, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		change(tx)
		return nil
	})
	require.NoError(w.t, err)
}

func (w *world) later(g string) {
	w.t.Helper()
	_, err := w.q.Enqueue(w.t.Context(), layer.Message{Group: g, Delay: time.Hour, Body: []byte("1")})
	require.NoError(w.t, err)
}

// TestRemediesByClicks: every remedy, clicked, and the database read after.
func TestRemediesByClicks(t *testing.T) {
	w := newWorld(t)
	_, _, err := w.q.Admin().Configure(t.Context(), func(c *layer.Config) {
		c.OnFailure, c.Archive = layer.HaltGroup, time.Hour
	})
	require.NoError(t, err)
	for _, r := range remedies {
		ok := t.Run(r.name, func(t *testing.T) {
			of := w.t
			w.t = t
			defer func() { w.t = of }()
			r.do(w)
		})
		require.True(t, ok)
	}
	w.open("audit")
	w.says("retry-alike")
	w.quiet()
}

// TestDoubleClickActsOnce: of two clicks on a button of a page the second does nothing, with and without JavaScript.
func TestDoubleClickActsOnce(t *testing.T) {
	w := newWorld(t)
	w.enqueue("A", "1", "2", "3", "4", "5")
	for i, script := range []bool{true, false} {
		w.scripts(script)
		w.groupPage("A")
		w.do(chromedp.Click(`#p-remedies button[title^="keeps"]`), chromedp.WaitVisible(".said"))
		_, err := w.q.Admin().ResumeGroup(t.Context(), "A", layer.ResumeOptions{})
		require.NoError(t, err)
		head, err := w.q.Peek(t.Context(), "A", 1, nil)
		require.NoError(t, err)
		w.deeds.Store(0)
		w.open("confirm?q=orders&verb=skip&g=A&head=" + url.QueryEscape(head[0].ID.String()))
		w.do(chromedp.WaitVisible("button.danger"), chromedp.DoubleClick("button.danger"))
		require.Eventually(t, func() bool { return w.deeds.Load() > 0 }, patience, 10*time.Millisecond)
		w.do(chromedp.WaitVisible(".said, .banner"))
		if script {
			require.EqualValues(t, 1, w.deeds.Load())
		}
		stats, err := w.q.Stats(t.Context(), layer.StatsOptions{})
		require.NoError(t, err)
		require.EqualValues(t, i+1, stats.Dead)
	}
}
