package e2e

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/browser"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/require"

	"fdbfifo/console"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// scripts says whether pages may run scripts.
func (w *world) scripts(on bool) {
	w.t.Helper()
	w.do(chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		_, err := chromedp.Call(ctx, emulation.SetScriptExecutionDisabled,
			emulation.SetScriptExecutionDisabledParams{Value: !on})
		return err
	}))
}

// TestLivePage: a group that a worker halts appears by itself, within two polls; a focus survives that.
func TestLivePage(t *testing.T) {
	w := newWorld(t)
	_, _, err := w.q.Admin().Configure(t.Context(), func(c *layer.Config) { c.OnFailure = layer.HaltGroup })
	require.NoError(t, err)
	_, err = w.q.Admin().PauseGroup(t.Context(), "first", layer.PauseOptions{})
	require.NoError(t, err)
	w.open("blocked?q=orders")
	w.says("first")
	w.streaming(1)
	run(w, chromedp.Evaluate[bool](`document.querySelector("#p-filter a").focus(), true`))
	worker, err := worker.New(w.q, worker.Handle(func(context.Context, *worker.Delivery) error {
		return &worker.RejectError{Reason: "appears by itself"}
	}), worker.Options{})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- worker.Run(ctx) }()
	defer func() {
		cancel()
		require.NoError(t, <-ended)
	}()
	w.enqueue("A", "1")
	require.Eventually(t, func() bool { return w.group("A").Status == layer.Halted }, patience, time.Millisecond)
	before := len(w.sent())
	w.says("appears by itself")
	at := slices.IndexFunc(w.sent(), func(p string) bool { return strings.Contains(p, "appears by itself") })
	require.GreaterOrEqual(t, at, 0)
	require.LessOrEqual(t, at, before+1, "it came with poll %d, and %d were sent when it was halted", at, before)
	require.True(t, run(w, chromedp.Evaluate[bool](`document.activeElement.closest("#p-filter") !== null`)))
	w.quiet()
}

// told keeps what pages are sent while they are open. The browser may be behind with it.
type told struct {
	http.ResponseWriter
	w *world
}

func (t told) Unwrap() http.ResponseWriter { return t.ResponseWriter }

func (t told) Write(b []byte) (int, error) {
	t.w.mu.Lock()
	t.w.polls = append(t.w.polls, string(b))
	t.w.mu.Unlock()
	return t.ResponseWriter.Write(b)
}

// sent is what was sent to pages while they were open, in one write each.
func (w *world) sent() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.polls)
}

// TestHiddenTab: a tab that is not shown has no stream; when it is shown again it catches up.
func TestHiddenTab(t *testing.T) {
	w := newWorld(t)
	w.open("blocked?q=orders")
	w.streaming(1)
	w.window(browser.WindowStateMinimized)
	w.until("document.hidden")
	w.streaming(0)
	_, err := w.q.Admin().PauseGroup(t.Context(), "paused meanwhile", layer.PauseOptions{})
	require.NoError(t, err)
	w.window(browser.WindowStateNormal)
	w.says("paused meanwhile")
	w.streaming(1)
	w.quiet()
}

// streaming waits until so many streams are open.
func (w *world) streaming(n int64) {
	w.t.Helper()
	require.Eventually(w.t, func() bool { return w.streams.Load() == n }, patience, 5*time.Millisecond, "%d streams", n)
}

// TestRestart: the console ends, and is restarted, while a page is open. The page says so and comes back by itself. A
// click before the restart has no effect. A click after it takes effect once, also if its answer is lost.
func TestRestart(t *testing.T) {
	w := newWorld(t)
	w.enqueue("A", "1", "2", "3")
	w.groupPage("A")
	w.streaming(1)
	address := w.stop()
	w.says("not fresh: the console does not answer")
	require.True(t, run(w, chromedp.Evaluate[bool](`document.querySelector("#fresh").classList.contains("stale")`)))
	_, err := w.q.Admin().PauseGroup(t.Context(), "A", layer.PauseOptions{Reason: "meanwhile"})
	require.NoError(t, err)
	w.start(address)
	w.says("meanwhile")
	w.until(`document.querySelector("#fresh").innerText.startsWith("as of")`)

	address = w.stop()
	w.says("not fresh: the console does not answer")
	w.button("#p-remedies", "Resume")
	w.until(`location.protocol == "chrome-error:"`)
	require.Equal(t, layer.Paused, w.group("A").Status)
	w.start(address)
	w.remedy("A", "Resume", "", "resume: the group is resumed")
	require.Equal(t, layer.Ready, w.group("A").Status)

	head, err := w.q.Peek(t.Context(), "A", 1, nil)
	require.NoError(t, err)
	confirm := fmt.Sprintf("confirm?q=orders&verb=skip&g=A&head=%s", head[0].ID)
	w.open(confirm)
	w.mu.Lock()
	w.lose = true
	w.mu.Unlock()
	w.button("main", "Set the head aside")
	// The browser may send the form again by itself.
	w.until(`location.protocol == "chrome-error:" || document.body.innerText.includes("changed meanwhile")`)
	require.Eventually(t, func() bool { return w.group("A").Depth == 2 }, time.Minute, 10*time.Millisecond)
	w.open(confirm)
	w.says("another message is the first of the group now")
	require.EqualValues(t, 2, w.group("A").Depth, "done once")
}

// TestRestartWithAnotherToken: the console is restarted with a new token. The page says what to do. A click has no
// effect, and says so. After the new link everything works again.
func TestRestartWithAnotherToken(t *testing.T) {
	w := newWorld(t, func(o *console.Options) { o.Token = "first" })
	w.enqueue("A", "1")
	w.enter("first")
	w.says("Queues")
	w.groupPage("A")
	w.streaming(1)
	address := w.stop()
	w.options.Token = "second"
	w.start(address)
	w.says("open the link that the console prints when it starts")
	w.button("#p-remedies", "Pause")
	w.says("the console was started again")
	w.says("nothing was done")
	require.Equal(t, layer.Ready, w.group("A").Status)
	w.do(chromedp.Navigate(w.server.URL + console.LoginPath("first")))
	w.says("this link is not valid any more")
	w.enter("second")
	w.remedy("A", "Pause", "", "pause: the group is paused")
	require.Equal(t, layer.Paused, w.group("A").Status)
}

// enter opens the link of a token; all pages are under its path from then on.
func (w *world) enter(token string) {
	w.t.Helper()
	w.do(chromedp.Navigate(w.server.URL + console.LoginPath(token)))
	path, _, _ := strings.Cut(console.LoginPath(token), "/login")
	w.until(fmt.Sprintf(`location.pathname == %q`, path+"/"))
	w.mu.Lock()
	defer w.mu.Unlock()
	w.url = w.server.URL + path
}

// TestOtherPortGetsNoCookie: a page on another port of the host, which the browser asks with all the cookies that it
// has for it, is sent nothing of a session, and cannot look into the console or act there. After a logout the browser
// is out.
func TestOtherPortGetsNoCookie(t *testing.T) {
	w := newWorld(t, func(o *console.Options) { o.Token = "token" })
	w.enqueue("A", "1")
	w.enter("token")
	var got sync.Map
	other := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		got.Store(r.URL.Path, r.Header.Get("Cookie"))
		rw.Header().Set("Content-Type", "text/html")
		fmt.Fprintf(rw, `<form method="post" action="%s/do"><input name="verb" value="pause">`+
			`<input name="q" value="orders">`+
			`<input name="g" value="A"><button>go</button></form>`, w.url)
	}))
	defer other.Close()
	for _, path := range []string{"/", "/queue?q=orders", "/assets/live.js"} {
		w.do(chromedp.Navigate(other.URL + path))
		w.says("go")
	}
	got.Range(func(path, cookie any) bool {
		require.Empty(t, cookie, path)
		return true
	})
	w.do(chromedp.Navigate(other.URL))
	w.button("form", "go")
	w.says("the request comes from another site")
	require.Equal(t, layer.Ready, w.group("A").Status)

	w.open("")
	w.button("header", "Log out")
	w.says("You are logged out")
	w.open("queue?q=orders")
	w.says("use the link that the console printed")
	w.enter("token")
	w.says("Queues")
}

// window shows the window, or hides it.
func (w *world) window(state browser.WindowState) {
	w.t.Helper()
	w.do(chromedp.Func(func(ctx context.Context, _ *chromedp.Target) error {
		win, err := chromedp.Call(ctx, browser.GetWindowForTarget, browser.GetWindowForTargetParams{})
		if err != nil {
			return err
		}
		_, err = chromedp.Call(ctx, browser.SetWindowBounds, browser.SetWindowBoundsParams{
			WindowID: win.WindowID, Bounds: &browser.Bounds{WindowState: state},
		})
		return err
	}))
}
