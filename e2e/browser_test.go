// Package e2e looks at the console with a real browser, as an operator does: Debian's chromium, driven by its protocol.
// make e2e installs what it needs, or says how.
package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"fdbfifo/console"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
)

// patience bounds what a busy machine may take.
const patience = time.Minute

// needs skips a test on a machine that lacks a tool, and says how to get the tool; with E2E_MUST set the test fails.
func needs(t *testing.T, there bool, what, how string) {
	t.Helper()
	if there {
		return
	}
	if os.Getenv("E2E_MUST") != "" {
		t.Fatalf("there is no %s: %s", what, how)
	}
	t.Skipf("SKIP: there is no %s: %s", what, how)
}

// world is a queue in every trouble, a console, and a browser.
type world struct {
	t      *testing.T
	ctx    context.Context // the browser's tab
	url    string
	q      *layer.Queue
	axe    string
	mu     sync.Mutex
	noises []string // what the browser's console has said; guarded by mu
}

func newWorld(t *testing.T) *world {
	t.Helper()
	chromium, err := exec.LookPath("chromium")
	needs(t, err == nil, "chromium", "apt-get install -y --no-install-recommends chromium")
	axe, err := os.ReadFile("node_modules/axe-core/axe.min.js")
	needs(t, err == nil, "axe-core", "npm --prefix e2e install")
	db := embedded.OpenMemory(embedded.Options{})
	q, err := layer.Create(t.Context(), db, nil, "orders", layer.Options{Owner: "host-1:4711"})
	require.NoError(t, err)
	c, err := console.New(console.Options{
		DB: db, Every: 200 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	})
	require.NoError(t, err)
	server := httptest.NewServer(c)
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(chromium), chromedp.NoSandbox,
		chromedp.DisableGPU, chromedp.UserDataDir(t.TempDir()), chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-component-update", true))
	alloc, stop := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, cancel := chromedp.NewContext(alloc)
	w := &world{t: t, ctx: ctx, url: server.URL, q: q, axe: string(axe)}
	t.Cleanup(func() {
		cancel()
		stop()
		server.CloseClientConnections()
		server.Close()
		require.NoError(t, c.Close(context.Background()))
		report, err := q.Admin().Check(context.Background(), layer.CheckOptions{})
		require.NoError(t, err)
		require.Empty(t, report.Violations)
		require.NoError(t, q.Close(context.Background()))
		require.NoError(t, db.Close())
	})
	w.do(chromedp.EmulateViewport(1280, 900))
	said := chromedp.Console(ctx)
	go func() {
		for m, err := range said {
			if err != nil {
				return
			}
			w.mu.Lock()
			w.noises = append(w.noises, fmt.Sprintf("%+v", m))
			w.mu.Unlock()
		}
	}()
	return w
}

// do runs steps in the tab, in bounded time.
func (w *world) do(steps ...chromedp.Action[chromedp.Void]) {
	w.t.Helper()
	done := make(chan error, 1)
	go func() { done <- chromedp.Do(w.ctx, steps...) }()
	select {
	case err := <-done:
		require.NoError(w.t, err)
	case <-time.After(patience):
		require.Fail(w.t, "the browser hangs")
	}
}

func run[T any](w *world, a chromedp.Action[T]) T {
	w.t.Helper()
	v, err := chromedp.Run(w.ctx, a)
	require.NoError(w.t, err)
	return v
}

func (w *world) open(page string) { w.t.Helper(); w.do(chromedp.Navigate(w.url + "/" + page)) }

func (w *world) enqueue(group string, bodies ...string) {
	w.t.Helper()
	for _, b := range bodies {
		_, err := w.q.Enqueue(w.t.Context(), layer.Message{Group: group, Body: []byte(b)})
		require.NoError(w.t, err)
	}
}

func (w *world) claim(group string) *layer.Claim {
	w.t.Helper()
	claims, err := w.q.Receive(w.t.Context(), layer.ReceiveOptions{Group: &group, Lease: time.Hour})
	require.NoError(w.t, err)
	require.Len(w.t, claims, 1)
	return claims[0]
}

func (w *world) group(name string) layer.GroupInfo {
	w.t.Helper()
	g, err := w.q.Admin().Group(w.t.Context(), name)
	require.NoError(w.t, err)
	return g
}

// trouble fills the queue with groups in every trouble.
func (w *world) trouble() {
	w.t.Helper()
	ctx := w.t.Context()
	w.enqueue("customer-7", `{"order": 1, "pay": true}`, "2", "3")
	fail := layer.NackOptions{Delay: time.Hour, Err: errors.New("timeout calling the bank <script>alert(1)</script>")}
	require.NoError(w.t, w.q.Nack(ctx, w.claim("customer-7"), fail))
	w.enqueue("customer-9", "1")
	_, err := w.q.Admin().PauseGroup(ctx, "customer-9", layer.PauseOptions{By: "ann", Reason: "asked by the customer"})
	require.NoError(w.t, err)
	w.enqueue("held-for-long", "1", "2")
	w.claim("held-for-long")
	w.enqueue(`<script>alert("x")</script>`, "1")
	w.enqueue("\u202Eevil\x00\n", "1")
	for i := range 3 {
		g := fmt.Sprintf("dead-%d", i)
		w.enqueue(g, "1", "2")
		_, err := w.q.Admin().Skip(ctx, g, layer.SkipOptions{By: "ann", Reason: "no such account"})
		require.NoError(w.t, err)
	}
	_, _, err = w.q.Admin().Configure(ctx, func(c *layer.Config) { c.OnFailure = layer.HaltGroup })
	require.NoError(w.t, err)
	w.enqueue("customer-11", "1", "2")
	require.NoError(w.t, w.q.Nack(ctx, w.claim("customer-11"), layer.NackOptions{Reject: "account 11 is closed"}))
}

// pages are all pages, each once.
func pages(t *testing.T, w *world) map[string]string {
	t.Helper()
	items, err := w.q.Peek(t.Context(), "customer-7", 1)
	require.NoError(t, err)
	id := items[0].ID.String()
	return map[string]string{
		"queues": "", "queue": "queue?q=orders", "blocked": "blocked?q=orders", "groups": "groups?q=orders",
		"group": "group?q=orders&g=customer-7", "message": "message?q=orders&body=1&id=" + id, "dead": "dead?q=orders",
		"holders": "holders?q=orders", "db": "db", "config": "config?q=orders", "check": "check?q=orders",
		"archive": "archive?q=orders", "audit": "audit",
		"confirm": "confirm?q=orders&verb=skip&g=customer-7&head=" + id, "edit": "edit?q=orders&id=" + id,
	}
}

// TestPages: every page, light and dark, wide and narrow, has no fault that axe finds, does not scroll sideways, and
// the browser has nothing to say. Pictures are kept in e2e/shots.
func TestPages(t *testing.T) {
	w := newWorld(t)
	w.trouble()
	require.NoError(t, os.MkdirAll("shots", 0o755))
	for name, page := range pages(t, w) {
		for _, scheme := range []string{"light", "dark"} {
			for _, width := range []int64{1280, 360} {
				w.do(chromedp.EmulateViewport(width, 900), colours(scheme))
				w.open(page)
				looks := fmt.Sprintf("%s %s %d", name, scheme, width)
				wide := run(w, chromedp.Evaluate[float64](`document.documentElement.scrollWidth - innerWidth`))
				require.LessOrEqual(t, wide, 0.0, "%s scrolls sideways", looks)
				w.accessible(looks)
				picture := run(w, chromedp.FullScreenshot(100))
				file := filepath.Join("shots", strings.ReplaceAll(looks, " ", "-")+".png")
				require.NoError(t, os.WriteFile(file, picture, 0o644))
			}
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	require.Empty(t, w.noises)
}

// colours is the scheme that the browser prefers.
func colours(scheme string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Call(ctx, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		return err
	})
}

func (w *world) accessible(looks string) {
	w.t.Helper()
	require.Empty(w.t, w.violations(), looks)
}

// violations asks axe, through the protocol, so that the content policy stays as it is.
func (w *world) violations() (violations []any) {
	w.t.Helper()
	w.do(chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Run(ctx, chromedp.Evaluate[bool](w.axe+"; true"))
		return err
	}))
	text := run(w, chromedp.Evaluate[string](`axe.run().then(r => JSON.stringify(r.violations.map(v =>
		({id: v.id, help: v.help, nodes: v.nodes.map(n => n.html.slice(0, 200))}))))`, chromedp.EvalAwaitPromise))
	require.NoError(w.t, json.Unmarshal([]byte(text), &violations))
	return violations
}

// TestAxeCanFail: axe finds the fault of a page that has one.
func TestAxeCanFail(t *testing.T) {
	w := newWorld(t)
	w.open("")
	fault := `document.querySelector("main").insertAdjacentHTML("beforeend", "<img src='data:,'>"); true`
	run(w, chromedp.Evaluate[bool](fault))
	require.NotEmpty(t, w.violations())
}

// button clicks a button by its words, in a part of the page. The page may be as old as the console's Every: then the
// page is loaded again.
func (w *world) button(in, words string) {
	w.t.Helper()
	click := fmt.Sprintf(`(b => { if (b) b.click(); return Boolean(b) })(
		[...document.querySelectorAll(%q + " button")].find(b => b.textContent == %q))`, in, words)
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

// TestRemediesByClicks: the remedies, clicked, and the database read after.
func TestRemediesByClicks(t *testing.T) {
	w := newWorld(t)
	w.trouble()
	w.open("group?q=orders&g=customer-7")
	w.button("#p-remedies", "Retry now")
	w.says("retry: the group is ready")
	require.Equal(t, layer.Ready, w.group("customer-7").Status)

	depth := w.group("customer-7").Depth
	again := layer.NackOptions{Delay: time.Hour, Err: errors.New("again")}
	require.NoError(t, w.q.Nack(t.Context(), w.claim("customer-7"), again))
	w.open("group?q=orders&g=customer-7")
	w.button("#p-remedies", "Set the head aside")
	w.says("moves the first message to the dead letters")
	w.button("main", "Set the head aside")
	w.says("is among the dead letters")
	require.Equal(t, depth-1, w.group("customer-7").Depth)

	w.open("blocked?q=orders")
	w.says("account 11 is closed")
	w.open("group?q=orders&g=customer-11")
	w.button("#p-remedies", "Resume")
	w.says("resume: the group goes on")
	require.Equal(t, layer.Ready, w.group("customer-11").Status)

	w.open("group?q=orders&g=held-for-long")
	w.button("#p-remedies", "Release by force")
	w.says("its handler goes on")
	w.button("main", "Release by force")
	w.says("taken from")
	require.Equal(t, layer.Ready, w.group("held-for-long").Status)

	evil := "\u202Eevil\x00\n"
	w.open("group?q=orders&g=%E2%80%AEevil%00%0A")
	w.button("#p-remedies", "Pause")
	w.says("pause: the group is paused")
	require.Equal(t, layer.Paused, w.group(evil).Status, "a name of any bytes comes through a form as it is")

	w.open("dead?q=orders&text=no+such+account")
	w.do(chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Run(ctx, chromedp.Evaluate[bool](
			`[...document.querySelectorAll("a.button")].find(a => a.textContent.startsWith("Redrive")).click(), true`))
		return err
	}))
	w.says("3 dead letters would be given back")
	w.button("main", "Redrive")
	w.says("3 dead letters given back")

	w.open("queue?q=orders")
	w.button("#p-acts", "Pause the queue")
	w.says("The queue is paused")
	w.button("#p-banner", "Resume the queue")
	w.says("resume-queue: the queue goes on")
	_, paused, err := w.q.Admin().Paused(t.Context())
	require.NoError(t, err)
	require.False(t, paused)
}

// TestLivePage: a group that a worker halts appears by itself; a focus survives that; a page that is left asks no more.
func TestLivePage(t *testing.T) {
	w := newWorld(t)
	w.enqueue("A", "1")
	_, err := w.q.Admin().PauseGroup(t.Context(), "first", layer.PauseOptions{})
	require.NoError(t, err)
	w.open("blocked?q=orders")
	w.says("first")
	w.do(chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Run(ctx, chromedp.Evaluate[bool](`document.querySelector("#p-filter a").focus(), true`))
		return err
	}))
	_, _, err = w.q.Admin().Configure(t.Context(), func(c *layer.Config) { c.OnFailure = layer.HaltGroup })
	require.NoError(t, err)
	require.NoError(t, w.q.Nack(t.Context(), w.claim("A"), layer.NackOptions{Reject: "appears by itself"}))
	w.says("appears by itself")
	require.True(t, run(w, chromedp.Evaluate[bool](`document.activeElement.closest("#p-filter") !== null`)))
}

// TestWithoutJavaScript: list, act and confirm work without.
func TestWithoutJavaScript(t *testing.T) {
	w := newWorld(t)
	w.trouble()
	w.do(chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		off := emulation.SetScriptExecutionDisabledParams{Value: true}
		_, err := chromedp.Call(ctx, emulation.SetScriptExecutionDisabled, off)
		return err
	}))
	w.open("blocked?q=orders")
	w.do(chromedp.Click(`#p-blocked tbody tr:first-child th a`))
	for _, button := range []string{`#p-remedies button[title^="moves the first"]`, `button.danger`} {
		w.do(chromedp.WaitVisible(button), chromedp.Click(button))
	}
	w.do(chromedp.WaitVisible(`.said`))
	stats, err := w.q.Stats(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 4, stats.Dead)
}
