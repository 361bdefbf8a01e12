// Package e2e looks at the console with a real browser, as an operator does: Debian's chromium, driven by its protocol.
// make e2e installs what it needs, or says how.
package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"fdbfifo/console"
	"fdbfifo/kv"
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

// world is a queue, a console, and a browser.
type world struct {
	t       *testing.T
	ctx     context.Context // the browser's tab
	url     string
	q       *layer.Queue
	axe     string
	options console.Options
	behind  atomic.Int64 // by how much the clock of q is behind, in ns
	streams atomic.Int64 // open ones
	deeds   atomic.Int64 // actions that were asked for
	mu      sync.Mutex
	server  *httptest.Server // guarded by mu
	c       *console.Console // guarded by mu
	lose    bool             // the answer to the next action; guarded by mu
	noises  []string         // what the browser's console has said; guarded by mu
	polls   []string         // what pages were sent while they were open; guarded by mu
}

// cluster is an engine with a status, as that of FoundationDB.
type cluster struct{ kv.DB }

func (cluster) Status(context.Context) ([]byte, error) {
	return os.ReadFile("../console/testdata/status-7.3.79.json")
}

func newWorld(t *testing.T, change ...func(o *console.Options)) *world {
	t.Helper()
	t.Parallel()
	chromium, err := exec.LookPath("chromium")
	needs(t, err == nil, "chromium", "apt-get install -y --no-install-recommends chromium")
	axe, err := os.ReadFile("node_modules/axe-core/axe.min.js")
	needs(t, err == nil, "axe-core", "npm --prefix e2e install")
	db := embedded.OpenMemory(embedded.Options{})
	w := &world{t: t, axe: string(axe), options: console.Options{
		DB: cluster{db}, Every: 200 * time.Millisecond, Logger: slog.New(slog.DiscardHandler),
	}}
	q, err := layer.Create(t.Context(), db, nil, "orders", layer.Options{
		Owner: "web-1:4711:a0f3", Now: func() time.Time { return time.Now().Add(-time.Duration(w.behind.Load())) },
	})
	require.NoError(t, err)
	w.q = q
	for _, f := range change {
		f(&w.options)
	}
	w.start("127.0.0.1:0")
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(chromium), chromedp.NoSandbox,
		chromedp.DisableGPU, chromedp.UserDataDir(t.TempDir()), chromedp.Flag("disable-quic", true),
		chromedp.Flag("disable-component-update", true))
	alloc, stop := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, cancel := chromedp.NewContext(alloc)
	w.ctx = ctx
	t.Cleanup(func() {
		cancel()
		stop()
		w.stop()
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

// start serves a new console at an address.
func (w *world) start(address string) {
	w.t.Helper()
	o := w.options
	o.Open = o.Token == ""
	c, err := console.New(o)
	require.NoError(w.t, err)
	l, err := net.Listen("tcp", address)
	require.NoError(w.t, err)
	server := &httptest.Server{Listener: l, Config: &http.Server{
		Handler: w, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError),
	}}
	server.Start()
	w.mu.Lock()
	defer w.mu.Unlock()
	w.c, w.server, w.url = c, server, server.URL
}

// stop ends the console, as the end of its process does, and returns where it was.
func (w *world) stop() (address string) {
	w.t.Helper()
	w.mu.Lock()
	c, server := w.c, w.server
	w.mu.Unlock()
	require.NoError(w.t, c.Close(context.Background()))
	server.CloseClientConnections()
	server.Close()
	return server.Listener.Addr().String()
}

func (w *world) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	if strings.HasSuffix(r.URL.Path, "/events") {
		w.streams.Add(1)
		defer w.streams.Add(-1)
		rw = told{rw, w}
	}
	w.mu.Lock()
	c, lose := w.c, r.Method == http.MethodPost && w.lose
	if lose {
		w.lose = false
	}
	w.mu.Unlock()
	if r.Method == http.MethodPost {
		w.deeds.Add(1)
	}
	if lose {
		c.ServeHTTP(httptest.NewRecorder(), r)
		panic(http.ErrAbortHandler)
	}
	c.ServeHTTP(rw, r)
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
	// It waits, because the handle may not know yet that the console's has just resumed the queue.
	o := layer.ReceiveOptions{Group: &group, Lease: time.Hour, Wait: 10 * time.Second}
	claims, err := w.q.Receive(w.t.Context(), o)
	require.NoError(w.t, err)
	require.Len(w.t, claims, 1)
	return claims[0]
}

// handleOne acks the first message of a group.
func (w *world) handleOne(group string) {
	w.t.Helper()
	claims, err := w.q.Receive(w.t.Context(), layer.ReceiveOptions{Group: &group, Max: 1})
	require.NoError(w.t, err)
	require.Len(w.t, claims, 1)
	require.NoError(w.t, w.q.Ack(w.t.Context(), claims[0]))
}

func (w *world) group(name string) layer.GroupInfo {
	w.t.Helper()
	g, err := w.q.Admin().Group(w.t.Context(), name, nil)
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
	for _, g := range []string{"customer-20", "customer-21"} {
		w.enqueue(g, "1")
		again := layer.NackOptions{Delay: time.Hour, Err: errors.New("no connection to the warehouse")}
		require.NoError(w.t, w.q.Nack(ctx, w.claim(g), again))
	}
	w.enqueue(`<script>alert("x")</script>`, "1")
	w.enqueue("\u202Eevil\x00\n", "1")
	for i := range 3 {
		g := fmt.Sprintf("dead-%d", i)
		w.enqueue(g, "1", "2")
		_, err := w.q.Admin().Skip(ctx, g, layer.SkipOptions{By: "ann", Reason: "no such account"})
		require.NoError(w.t, err)
	}
	_, _, err = w.q.Admin().Configure(ctx, func(c *layer.Config) {
		c.OnFailure, c.Archive = layer.HaltGroup, time.Hour
	})
	require.NoError(w.t, err)
	w.enqueue("finished", "1", "2")
	require.NoError(w.t, w.q.Ack(ctx, w.claim("finished")))
	w.enqueue("customer-11", "1", "2")
	require.NoError(w.t, w.q.Nack(ctx, w.claim("customer-11"), layer.NackOptions{Reject: "account 11 is closed"}))
}

// pages are all pages, each once.
func pages(t *testing.T, w *world) map[string]string {
	t.Helper()
	items, err := w.q.Peek(t.Context(), "customer-7", 1, nil)
	require.NoError(t, err)
	id := items[0].ID.String()
	return map[string]string{
		"queues": "", "queue": "queue?q=orders", "blocked": "blocked?q=orders", "groups": "groups?q=orders",
		"marked": "groups?q=orders&marked=1", "group": "group?q=orders&g=customer-7",
		"group-held": "group?q=orders&g=held-for-long", "group-empty": "group?q=orders&g=nobody",
		"message": "message?q=orders&body=1&id=" + id, "dead": "dead?q=orders", "dead-none": "dead?q=orders&g=nobody",
		"holders": "holders?q=orders", "db": "db", "status": "db?status=1", "config": "config?q=orders",
		"check": "check?q=orders", "archive": "archive?q=orders", "audit": "audit",
		"confirm": "confirm?q=orders&verb=skip&g=customer-7&head=" + id, "edit": "edit?q=orders&id=" + id,
		"nowhere": "nowhere", "no-queue": "queue?q=none",
	}
}

// TestPages: every page, light and dark, wide and narrow, has no fault that axe finds, does not scroll sideways, and
// the browser has nothing to say. Pictures are kept in e2e/shots.
func TestPages(t *testing.T) {
	w := newWorld(t)
	w.trouble()
	require.NoError(t, os.MkdirAll("shots", 0o755))
	for name, page := range pages(t, w) {
		w.do(chromedp.EmulateViewport(1280, 900), colours("light"))
		w.open(page)
		for _, scheme := range []string{"light", "dark"} {
			for _, width := range []int64{1280, 360} {
				w.do(chromedp.EmulateViewport(width, 900), colours(scheme))
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
	w.quiet("404 (Not Found)") // of the pages that are not there
}

// quiet requires that the browser's console has no message besides the expected ones.
func (w *world) quiet(expected ...string) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, noise := range w.noises {
		known := slices.ContainsFunc(expected, func(e string) bool { return strings.Contains(noise, e) })
		require.True(w.t, known, noise)
	}
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
		if there, err := chromedp.Run(ctx, chromedp.Evaluate[bool](`"axe" in window`)); there || err != nil {
			return err
		}
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

// TestWithoutJavaScript: list, act and confirm work without.
func TestWithoutJavaScript(t *testing.T) {
	w := newWorld(t)
	w.trouble()
	w.scripts(false)
	w.open("blocked?q=orders")
	w.do(chromedp.Click(`#p-blocked tbody tr:first-child th a`))
	for _, button := range []string{`#p-remedies button[title^="moves the first"]`, `button.danger`} {
		w.do(chromedp.WaitVisible(button), chromedp.Click(button))
	}
	w.do(chromedp.WaitVisible(`.said`))
	stats, err := w.q.Stats(t.Context(), layer.StatsOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 4, stats.Dead)
}
