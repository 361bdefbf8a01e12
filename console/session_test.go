package console

import (
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/layer"
)

// browser is a client with cookies, at a console that is served on a port of this machine.
type browser struct {
	t    *testing.T
	http *http.Client
	jar  http.CookieJar
	url  *url.URL // of the console
	home string   // where the link has led
}

// enter opens the link of a token at a console that is mounted at a path.
func enter(t *testing.T, c http.Handler, mount, token string) *browser {
	t.Helper()
	mux := http.NewServeMux()
	mux.Handle(mount+"/", http.StripPrefix(mount, c))
	server := httptest.NewServer(mux)
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	b := &browser{t: t, jar: jar, http: &http.Client{Jar: jar}}
	t.Cleanup(func() {
		b.http.CloseIdleConnections()
		server.Close()
	})
	b.url, err = url.Parse(server.URL)
	require.NoError(t, err)
	b.open(mount+LoginPath(token), http.StatusOK)
	b.home = mount + strings.TrimSuffix(strings.Split(LoginPath(token), "?")[0], "login")
	return b
}

// open asks for a page, and wants its status.
func (b *browser) open(path string, want int) string {
	b.t.Helper()
	return b.ask("GET", path, nil, want)
}

func (b *browser) ask(method, path string, form url.Values, want int) string {
	b.t.Helper()
	r, err := http.NewRequest(method, b.url.String()+path, strings.NewReader(form.Encode()))
	require.NoError(b.t, err)
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	b.http.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	answer, err := b.http.Do(r)
	require.NoError(b.t, err)
	defer answer.Body.Close()
	body, err := io.ReadAll(answer.Body)
	require.NoError(b.t, err)
	require.Equal(b.t, want, answer.StatusCode, "%s %s: %s", method, path, body)
	return string(body)
}

// TestCookieStaysAtTheConsole: a browser that is logged in sends its cookie to no other port of the host, at whatever
// path that port asks it to, and the cookie alone, without the path of the session, opens nothing.
func TestCookieStaysAtTheConsole(t *testing.T) {
	token := NewToken()
	s := newSite(t, func(o *Options) { o.Token = token })
	for _, mount := range []string{"", "/queues"} {
		b := enter(t, s.c, mount, token)
		b.open(b.home, http.StatusOK)
		own := *b.url
		own.Path = b.home
		cookies := b.jar.Cookies(&own)
		require.Len(t, cookies, 1)
		for _, path := range []string{"/", "/login", "/queue", "/assets/live.js", "/queues/", "/do", "/events"} {
			other := url.URL{Scheme: "http", Host: "127.0.0.1:1", Path: path}
			require.Empty(t, b.jar.Cookies(&other), "sent to %s", &other)
		}
		for _, path := range []string{"/", "/queue?q=orders", "/api/v1/queues", "/events?page=/queue&q=orders"} {
			r, _ := s.ask("GET", path, nil, func(r *http.Request) { r.AddCookie(cookies[0]) })
			require.Equal(t, http.StatusUnauthorized, r.StatusCode, path)
		}
		s.enqueue("A", "1")
		form := url.Values{"verb": {"pause"}, "q": {"orders"}, "g": {"A"}}
		r, _ := s.ask("POST", "/do", form, func(r *http.Request) { r.AddCookie(cookies[0]) })
		require.Equal(t, http.StatusUnauthorized, r.StatusCode)
		stats, err := s.q.Stats(t.Context(), layer.StatsOptions{})
		require.NoError(t, err)
		require.Zero(t, stats.PausedGroups)
	}
}

// TestLogout: a logout ends the session in the console, not only in the browser. The streams of the session end too. No
// other session ends.
func TestLogout(t *testing.T) {
	token := NewToken()
	s := newSite(t, func(o *Options) { o.Token, o.Every = token, 10*time.Millisecond })
	a, b := enter(t, s.c, "", token), enter(t, s.c, "", token)
	require.Contains(t, a.open(a.home, http.StatusOK), ">Log out</button>")
	own := *a.url
	own.Path = a.home
	kept := a.jar.Cookies(&own)
	stream, err := a.http.Get(a.url.String() + a.home + "events?page=/queue&q=orders")
	require.NoError(t, err)
	defer stream.Body.Close()
	require.Equal(t, http.StatusOK, stream.StatusCode)

	a.ask("POST", a.home+"logout", url.Values{}, http.StatusOK)
	require.Empty(t, a.jar.Cookies(&own), "the browser has forgotten it")
	_, err = io.ReadAll(stream.Body)
	require.NoError(t, err, "the stream ends")
	a.jar.SetCookies(&own, kept)
	require.Contains(t, a.open(a.home, http.StatusUnauthorized), "your session has ended")
	b.open(b.home, http.StatusOK)
	require.Contains(t, s.log.String(), `msg="console: logout"`)
}

// TestSessionEndsIdle: a session ends after Options.Idle without a request by its user. A page that refreshes itself
// does not keep the session alive.
func TestSessionEndsIdle(t *testing.T) {
	token, now := NewToken(), time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	s := newSite(t, func(o *Options) { o.Token, o.Idle, o.Now = token, time.Hour, func() time.Time { return now } })
	b := enter(t, s.c, "", token)
	for range 5 {
		now = now.Add(59 * time.Minute)
		b.open(b.home, http.StatusOK)
	}
	now = now.Add(59 * time.Minute)
	b.ask("HEAD", b.home+"events?page=/queue&q=orders", nil, http.StatusOK)
	now = now.Add(time.Minute)
	b.ask("HEAD", b.home+"events?page=/queue&q=orders", nil, http.StatusUnauthorized)
	b.open(b.home, http.StatusUnauthorized)
	b.open(LoginPath(token), http.StatusOK)
	b.open(b.home, http.StatusOK)

	s.c.o.Idle = -1
	now = now.Add(10_000 * time.Hour)
	b.open(b.home, http.StatusOK)
}

// TestSessionsAreBounded: a user who has the link cannot fill the memory with sessions: one more ends the idlest.
func TestSessionsAreBounded(t *testing.T) {
	var all sessions
	now := time.Now()
	first := all.begin(now)
	var last string
	for i := range maxSessions {
		last = all.begin(now.Add(time.Duration(i+1) * time.Second))
	}
	require.Len(t, all.used, maxSessions)
	require.False(t, all.live(first, now, -1, false))
	require.True(t, all.live(last, now, -1, false))
}

// TestSessionEndsWhenTheClockGoesBack: a clock that is set back cannot tell for how long a session was not used.
func TestSessionEndsWhenTheClockGoesBack(t *testing.T) {
	var all sessions
	now := time.Now()
	for back, live := range map[time.Duration]bool{time.Minute: true, time.Hour: false} {
		cookie := all.begin(now)
		require.Equal(t, live, all.live(cookie, now.Add(-back), time.Hour, false), "%s back", back)
		require.Equal(t, live, all.live(cookie, now, time.Hour, false), "and forward again")
	}
}

// TestAssetsAreNotListed: a file of the page is served, its folder is not.
func TestAssetsAreNotListed(t *testing.T) {
	s := newSite(t, nil)
	r, _ := s.ask("GET", "/assets/live.js", nil, nil)
	require.Equal(t, http.StatusOK, r.StatusCode)
	for _, path := range []string{"/assets/", "/assets/.", "/assets//"} {
		r, body := s.ask("GET", path, nil, nil)
		require.NotEqual(t, http.StatusOK, r.StatusCode, path)
		require.NotContains(t, body, `<a href="live.js"`, path)
	}
	r, _ = s.ask("GET", "/assets/", nil, nil)
	require.Equal(t, http.StatusNotFound, r.StatusCode)
}
