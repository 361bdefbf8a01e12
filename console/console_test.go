package console

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/fault"
	"fdbfifo/kv/record"
	"fdbfifo/layer"
)

// hostile are names of groups and queues that a page might stumble over.
var hostile = []string{
	"", ".", "..", "a/b", "a?b&c=d#e", `<script>alert(1)</script>`, `"><img src=x onerror=alert(1)>`,
	"a\x00b\n\x1b[31m",
	"\u202Eevil\u202C", "javascript:alert(1)", "%2e%2e", "+ ", strings.Repeat("x", 1024),
}

// site is a console on an engine of its own.
type site struct {
	t   *testing.T
	c   *Console
	q   *layer.Queue
	rec *record.Recorder
	log *logText
}

// logText is the text of a log. Goroutines of the console may write it while a test reads it.
type logText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *logText) Reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text.Reset()
}

// TestEmptyTokenOpensNothing: a console whose token is empty is refused, unless its options say that it is open.
func TestEmptyTokenOpensNothing(t *testing.T) {
	db := embedded.OpenMemory(embedded.Options{})
	defer func() { require.NoError(t, db.Close()) }()
	role := func(*http.Request) (Role, string) { return Viewer, "ann" }
	for name, row := range map[string]struct {
		o  Options
		ok bool
	}{
		"nothing":       {Options{DB: db}, false},
		"an idle time":  {Options{DB: db, Token: "", Idle: time.Hour}, false},
		"read only":     {Options{DB: db, ReadOnly: true}, false},
		"open":          {Options{DB: db, Open: true}, true},
		"a token":       {Options{DB: db, Token: "secret"}, true},
		"a role":        {Options{DB: db, Role: role}, true},
		"open, a token": {Options{DB: db, Open: true, Token: "secret"}, false},
		"open, a role":  {Options{DB: db, Open: true, Role: role}, false},
	} {
		c, err := New(row.o)
		require.Equal(t, row.ok, err == nil, "%s: %v", name, err)
		if c != nil {
			require.NoError(t, c.Close(t.Context()))
		}
	}
}

// TestPagesRest: a page that refreshes itself waits between two looks, whatever Options.Every is. A time whose unit was
// forgotten would let each open page read the database without a pause.
func TestPagesRest(t *testing.T) {
	for _, every := range []time.Duration{1, 20, -time.Second, time.Second} {
		s := newSite(t, func(o *Options) { o.Every = every })
		require.GreaterOrEqual(t, s.c.untilNext(time.Unix(0, 0), &view{live: 1}), 100*time.Millisecond, every)
	}
}

func newSite(t *testing.T, change func(o *Options)) *site {
	t.Helper()
	s := &site{t: t, rec: record.Wrap(embedded.OpenMemory(embedded.Options{})), log: new(logText)}
	var err error
	config := layer.Config{Retry: layer.RetryPolicy{Kind: layer.RetryAtOnce}}
	s.q, err = layer.Create(t.Context(), s.rec, nil, "orders", layer.Options{Owner: "w", Config: config})
	require.NoError(t, err)
	o := Options{DB: s.rec, Logger: slog.New(slog.NewTextHandler(s.log, nil)), Every: time.Nanosecond}
	if change != nil {
		change(&o)
	}
	o.Open = o.Token == "" && o.Role == nil
	s.c, err = New(o)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.c.Close(context.Background()))
		report, err := s.q.Admin().Check(context.Background(), layer.CheckOptions{})
		require.NoError(t, err)
		require.Empty(t, report.Violations)
		require.NoError(t, s.q.Close(context.Background()))
		require.NoError(t, s.rec.Close())
	})
	return s
}

func (s *site) enqueue(group string, bodies ...string) (ids []layer.ID) {
	s.t.Helper()
	for _, b := range bodies {
		sent, err := s.q.Enqueue(s.t.Context(), layer.Message{Group: group, Body: []byte(b)})
		require.NoError(s.t, err)
		ids = append(ids, sent[0].ID)
	}
	return ids
}

func (s *site) claim(group string) *layer.Claim {
	s.t.Helper()
	claims, err := s.q.Receive(s.t.Context(), layer.ReceiveOptions{Group: &group})
	require.NoError(s.t, err)
	require.Len(s.t, claims, 1)
	return claims[0]
}

// ask sends a request, and returns the answer with its body.
func (s *site) ask(method, target string, form url.Values, change func(r *http.Request)) (*http.Response, string) {
	s.t.Helper()
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	r := httptest.NewRequest(method, target, body)
	r.Host = "localhost:7411"
	if form != nil {
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		r.Header.Set("Sec-Fetch-Site", "same-origin")
	}
	if change != nil {
		change(r)
	}
	w := httptest.NewRecorder()
	s.c.ServeHTTP(w, r)
	return w.Result(), w.Body.String()
}

func (s *site) get(target string) string {
	s.t.Helper()
	r, body := s.ask("GET", target, nil, nil)
	require.Equal(s.t, http.StatusOK, r.StatusCode, "%s: %s", target, body)
	return body
}

func (s *site) post(form url.Values) (*http.Response, string) {
	s.t.Helper()
	return s.ask("POST", "/do", form, nil)
}

// TestPagesOfHostileNames: every page of every name is made, says the name as text, and has a strict content policy.
func TestPagesOfHostileNames(t *testing.T) {
	s := newSite(t, nil)
	for _, g := range hostile {
		id := s.enqueue(g, "<b>body</b>")[0]
		_, err := s.q.Admin().PauseGroup(t.Context(), g, layer.PauseOptions{By: "<i>me</i>", Reason: "</td><script>"})
		require.NoError(t, err)
		for _, page := range []string{
			link("group", "q", "orders", "g", g), link("message", "q", "orders", "id", id.String(), "body", "1"),
			link("dead", "q", "orders", "g", g), link("confirm", "q", "orders", "g", g, "verb", "purge"),
			link("edit", "q", "orders", "id", id.String()), link("groups", "q", "orders", "after", g),
		} {
			body := s.get("/" + page)
			require.NotContains(t, body, "<script>alert")
			require.NotContains(t, body, "<img src=x")
			require.NotContains(t, body, "</td><script>")
			require.NotContains(t, body, "<b>body")
			if i := strings.Index(body, "\x1b"); i >= 0 {
				require.Fail(t, "a control character", "%q", body[max(0, i-200):i+50])
			}
		}
	}
	for _, page := range []string{"/", "/queue?q=orders", "/blocked?q=orders", "/groups?q=orders&marked=1",
		"/dead?q=orders", "/config?q=orders", "/check?q=orders", "/archive?q=orders", "/audit"} {
		r, body := s.ask("GET", page, nil, nil)
		require.Equal(t, http.StatusOK, r.StatusCode, "%s: %s", page, body)
		require.Contains(t, r.Header.Get("Content-Security-Policy"), "default-src 'none'")
		require.NotRegexp(t, regexp.MustCompile(`(?i)<[^>]* (style|on[a-z]+)=|<style|<script>`), body, "nothing inline")
		require.Less(t, len(body), 60<<10, page)
	}
	for _, name := range hostile {
		r, _ := s.ask("GET", "/"+link("queue", "q", name), nil, nil)
		require.Contains(t, []int{404, 503, 400}, r.StatusCode)
	}
}

// TestRolesAndActions: each role sees and does what it may, and no more.
func TestRolesAndActions(t *testing.T) {
	role := Nobody
	s := newSite(t, func(o *Options) { o.Role = func(*http.Request) (Role, string) { return role, "ann" } })
	id := s.enqueue("A", "secret")[0]
	message := "/" + link("message", "q", "orders", "id", id.String(), "body", "1")
	form := url.Values{"verb": {"pause"}, "q": {"orders"}, "g": {"A"}}
	for _, want := range []struct {
		role      Role
		page, act int
		body      bool
	}{{Nobody, 401, 401, false}, {Viewer, 200, 403, false}, {Operator, 200, 303, true}} {
		role = want.role
		r, body := s.ask("GET", message, nil, nil)
		require.Equal(t, want.page, r.StatusCode)
		require.Equal(t, want.body, strings.Contains(body, "secret"))
		r, _ = s.post(form)
		require.Equal(t, want.act, r.StatusCode)
		r, _ = s.ask("GET", "/"+link("edit", "q", "orders", "id", id.String()), nil, nil)
		require.Equal(t, want.act == 303, r.StatusCode == 200)
	}
	s.c.o.ReadOnly = true
	r, _ := s.post(form)
	require.Equal(t, http.StatusForbidden, r.StatusCode)
	require.NotContains(t, s.log.String(), "secret")
	require.Contains(t, s.log.String(), "verb=pause")
	require.Equal(t, "ann", s.c.audit.latest()[0].By)
}

// TestLogin: the link gives a cookie, the cookie opens the console, and nothing else does.
func TestLogin(t *testing.T) {
	token := NewToken()
	s := newSite(t, func(o *Options) { o.Token = token })
	r, _ := s.ask("GET", "/", nil, nil)
	require.Equal(t, http.StatusUnauthorized, r.StatusCode)
	r, _ = s.ask("GET", LoginPath("x"), nil, nil)
	require.Equal(t, http.StatusUnauthorized, r.StatusCode)
	r, _ = s.ask("GET", LoginPath(token), nil, nil)
	require.Equal(t, http.StatusOK, r.StatusCode)
	require.Len(t, r.Cookies(), 1)
	k := r.Cookies()[0]
	require.True(t, k.HttpOnly)
	require.Equal(t, http.SameSiteStrictMode, k.SameSite)
	require.NotContains(t, k.Value, token)
	require.Empty(t, k.Path, "bound to the path of the link")
	r, _ = s.ask("GET", "/"+place(token)+"/", nil, func(r *http.Request) { r.AddCookie(k) })
	require.Equal(t, http.StatusOK, r.StatusCode)
	r, _ = s.ask("GET", "/api/v1/queues", nil, func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) })
	require.Equal(t, http.StatusOK, r.StatusCode)
	r, _ = s.ask("GET", "/healthz", nil, nil)
	require.Equal(t, http.StatusOK, r.StatusCode)
	require.NotContains(t, s.log.String(), token)
	require.NotContains(t, s.log.String(), k.Value)
}

// TestForeignRequestsAreRefused: a foreign name of the host, and a form of another site.
func TestForeignRequestsAreRefused(t *testing.T) {
	s := newSite(t, nil)
	for host, want := range map[string]int{
		"localhost": 200, "localhost:80": 200, "127.0.0.1:1": 200, "[::1]:7": 200, "evil.example": 421,
		"localhost.evil.example": 421, "10.0.0.1:7411": 421,
	} {
		r, _ := s.ask("GET", "/", nil, func(r *http.Request) { r.Host = host })
		require.Equal(t, want, r.StatusCode, host)
	}
	form := url.Values{"verb": {"pause"}, "q": {"orders"}, "g": {"A"}}
	for _, c := range []struct {
		site, origin string
		want         int
	}{
		{"same-origin", "", 303}, {"none", "", 303}, {"cross-site", "", 403}, {"same-site", "", 403},
		{"", "http://localhost:7411", 303}, {"", "http://evil.example", 403}, {"", "", 303},
	} {
		r, _ := s.ask("POST", "/do", form, func(r *http.Request) {
			r.Header.Del("Sec-Fetch-Site")
			if c.site != "" {
				r.Header.Set("Sec-Fetch-Site", c.site)
			}
			if c.origin != "" {
				r.Header.Set("Origin", c.origin)
			}
		})
		require.Equal(t, c.want, r.StatusCode, "%+v", c)
	}
}

// TestHostsInAnyCase: a name of Options.Hosts is known in upper and lower case. The console keeps no slice of the
// caller's.
func TestHostsInAnyCase(t *testing.T) {
	names := []string{"Queues.Example.com:7411"}
	s := newSite(t, func(o *Options) { o.Hosts = names })
	require.Equal(t, []string{"Queues.Example.com:7411"}, names)
	for host, want := range map[string]int{
		"Queues.Example.com:7411": 200, "queues.example.com:7411": 200, "QUEUES.EXAMPLE.COM:7411": 200,
		"queues.example.com": 421, "localhost": 421,
	} {
		r, _ := s.ask("GET", "/", nil, func(r *http.Request) { r.Host = host })
		require.Equal(t, want, r.StatusCode, host)
	}
}

var hidden = regexp.MustCompile(`name="([a-z_]+~?)" value="([^"]*)"`)

// button is the form of the page whose button has a label.
func (s *site) button(page, label string) url.Values {
	s.t.Helper()
	for _, form := range strings.Split(s.get(page), "<form") {
		form, _, _ = strings.Cut(form, "</form>")
		if !strings.Contains(form, ">"+label+"</button>") {
			continue
		}
		values := url.Values{}
		for _, m := range hidden.FindAllStringSubmatch(form, -1) {
			values.Set(m[1], htmlText(m[2]))
		}
		return plainNames(values)
	}
	require.Fail(s.t, "no button", "%s on %s", label, page)
	return nil
}

func htmlText(s string) string {
	return html.UnescapeString(s)
}

// press presses a button, over its page of confirmation if it has one, and wants the status.
func (s *site) press(page, label string, want int) string {
	s.t.Helper()
	form := s.button(page, label)
	if remedyWords[form.Get("verb")].Confirm {
		confirm := "/confirm?" + form.Encode()
		form = s.button(confirm, remedyWords[form.Get("verb")].Label)
	}
	r, body := s.post(form)
	require.Equal(s.t, want, r.StatusCode, body)
	if want == http.StatusSeeOther {
		require.NotContains(s.t, r.Header.Get("Location"), "//")
		next := s.get(strings.TrimPrefix(r.Header.Get("Location"), "."))
		require.Contains(s.t, next, `role="status"><p class="card said`)
	}
	return body
}

// TestRemedies: each remedy of a page does in the database what its button says. Pressed again, it does nothing,
// because the group has changed since the page was shown.
func TestRemedies(t *testing.T) {
	group := "/" + link("group", "q", "orders", "g", "A")
	failA := func(s *site) {
		s.enqueue("A", "a1", "a2")
		err := s.q.Nack(t.Context(), s.claim("A"), layer.NackOptions{Delay: time.Hour, Err: errors.New("the bank")})
		require.NoError(t, err)
	}
	status := func(s *site) layer.GroupInfo {
		g, err := s.q.Admin().Group(t.Context(), "A", nil)
		require.NoError(t, err)
		return g
	}
	for name, c := range map[string]struct {
		begin func(s *site)
		label string
		check func(t *testing.T, g layer.GroupInfo)
	}{
		"pause": {func(s *site) { s.enqueue("A", "a1") }, "Pause", func(t *testing.T, g layer.GroupInfo) {
			require.Equal(t, layer.Paused, g.Status)
		}},
		"resume": {func(s *site) {
			s.enqueue("A", "a1")
			_, err := s.q.Admin().PauseGroup(t.Context(), "A", layer.PauseOptions{})
			require.NoError(t, err)
		}, "Resume", func(t *testing.T, g layer.GroupInfo) { require.Equal(t, layer.Ready, g.Status) }},
		"retry": {failA, "Retry now", func(t *testing.T, g layer.GroupInfo) {
			require.Equal(t, layer.Ready, g.Status)
		}},
		"skip": {failA, "Set the head aside", func(t *testing.T, g layer.GroupInfo) {
			require.EqualValues(t, 1, g.Depth)
			require.Equal(t, layer.Ready, g.Status)
		}},
		"release": {func(s *site) { s.enqueue("A", "a1"); s.claim("A") }, "Release by force",
			func(t *testing.T, g layer.GroupInfo) {
				require.Equal(t, layer.Ready, g.Status)
				require.Zero(t, g.Attempts)
			}},
		"release-count": {func(s *site) { s.enqueue("A", "a1"); s.claim("A") }, "Release, count the attempt",
			func(t *testing.T, g layer.GroupInfo) { require.Equal(t, 1, g.Attempts) }},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t, nil)
			c.begin(s)
			form := s.button(group, c.label)
			s.press(group, c.label, http.StatusSeeOther)
			c.check(t, status(s))
			before := status(s)
			if name != "pause" { // a pause twice is one pause
				r, _ := s.post(form)
				require.Equal(t, http.StatusConflict, r.StatusCode)
			}
			after := status(s)
			before.HeadAge, after.HeadAge, before.Left, after.Left = 0, 0, 0, 0
			require.Equal(t, before, after, "a double click acts once")
		})
	}
}

// TestEditPurgeAndLetters: an edit of a message, a purge, a redrive and a discard by their pages.
func TestEditPurgeAndLetters(t *testing.T) {
	s := newSite(t, nil)
	ids := s.enqueue("A", "a1", "a2", "a3")
	edit := s.button("/"+link("edit", "q", "orders", "id", ids[0].String()), "Store")
	edit.Set("body", "new")
	r, body := s.post(edit)
	require.Equal(t, http.StatusSeeOther, r.StatusCode, body)
	items, err := s.q.Peek(t.Context(), "A", 1, nil)
	require.NoError(t, err)
	require.Equal(t, "new", string(items[0].Body))
	r, _ = s.post(edit)
	require.Equal(t, http.StatusConflict, r.StatusCode, "the body has changed since it was seen")

	_, err = s.q.Admin().Skip(t.Context(), "A", layer.SkipOptions{Reason: "no use"})
	require.NoError(t, err)
	require.Contains(t, s.get("/dead?q=orders&text=no+use"), "no use")
	confirm := "/confirm?q=orders&verb=redrive&text=no+use&anygroup=1"
	require.Contains(t, s.get(confirm), "1 dead letter would be given back")
	r, _ = s.post(s.button(confirm, "Redrive"))
	require.Equal(t, http.StatusSeeOther, r.StatusCode)
	stats, err := s.q.Stats(t.Context(), layer.StatsOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 1, stats.Redriven)
	r, _ = s.post(url.Values{"q": {"orders"}, "verb": {"discard"}})
	require.Equal(t, http.StatusBadRequest, r.StatusCode, "never all without a word")

	_, err = s.q.Admin().PauseGroup(t.Context(), "A", layer.PauseOptions{})
	require.NoError(t, err)
	purge := url.Values{"q": {"orders"}, "verb": {"purge"}, "g": {"A"}, "head": {ids[2].String()}}
	r, _ = s.post(purge)
	require.Equal(t, http.StatusConflict, r.StatusCode)
	purge.Set("head", ids[0].String())
	r, _ = s.post(purge)
	require.Equal(t, http.StatusSeeOther, r.StatusCode)
	s.press("/queue?q=orders", "Pause the queue", http.StatusSeeOther)
	s.press("/queue?q=orders", "Resume the queue", http.StatusSeeOther)
	_, err = s.q.Admin().ResumeGroup(t.Context(), "A", layer.ResumeOptions{})
	require.NoError(t, err)
	config := url.Values{"q": {"orders"}, "verb": {"configure"}, "setting": {"lease"}, "old": {"1s"}, "value": {"2m"}}
	r, _ = s.post(config)
	require.Equal(t, http.StatusConflict, r.StatusCode)
	require.Contains(t, s.press("/check?q=orders", "Check now", http.StatusSeeOther), "")
	require.Contains(t, s.c.audit.latest()[0].Result, "all rules hold")
}

// TestSettingChangedMeanwhile: another client changes a setting while the action runs. The setting stays as that client
// has set it, and the page says so.
func TestSettingChangedMeanwhile(t *testing.T) {
	plan := &fault.Plan{}
	s := newSite(t, func(o *Options) { o.DB = fault.Wrap(o.DB, plan) })
	minute := func(c *layer.Config) { c.Lease = time.Minute }
	plan.OnCommit = func(n int, _ kv.Tx) fault.Kind {
		if n == 1 {
			_, _, err := s.q.Admin().Configure(t.Context(), minute)
			require.NoError(t, err)
		}
		return fault.None
	}
	r, body := s.post(url.Values{
		"q": {"orders"}, "verb": {"configure"}, "setting": {"lease"}, "old": {"30s"}, "value": {"2m"},
	})
	require.Equal(t, http.StatusConflict, r.StatusCode, body)
	require.Contains(t, body, "lease is 1m now")
	c, _, err := s.q.Admin().ReadConfig(t.Context())
	require.NoError(t, err)
	require.Equal(t, time.Minute, c.Lease)
}

// TestBadRequests: the console refuses requests for things that do not exist, and requests that are too large.
func TestBadRequests(t *testing.T) {
	s := newSite(t, nil)
	s.enqueue("A", "a1")
	for target, want := range map[string]int{
		"/queue?q=none": 404, "/blocked?q=orders&cause=x": 400, "/message?q=orders&id=x": 400, "/nowhere": 404,
		"/blocked?q=orders&after=A&rank=x&index=1": 400, "/confirm?q=orders&verb=x": 400, "/..%2f..%2fetc": 404,
		"/events?page=/nowhere": 404, "/api/v1/nothing": 404, "/dead?q=orders&from=x": 400,
	} {
		r, body := s.ask("GET", target, nil, nil)
		require.Equal(t, want, r.StatusCode, "%s: %s", target, body)
	}
	for _, form := range []url.Values{
		{"q": {"orders"}, "verb": {"explode"}}, {"q": {"orders"}, "verb": {"skip"}, "g": {"A"}},
		{"q": {"orders"}, "verb": {"release"}, "g": {"A"}}, {"q": {"orders"}, "verb": {"purge"}, "g": {"A"}},
	} {
		r, _ := s.post(form)
		require.Equal(t, http.StatusBadRequest, r.StatusCode, "%v", form)
	}
	r, _ := s.post(url.Values{"body": {strings.Repeat("x", maxForm)}})
	require.Equal(t, http.StatusBadRequest, r.StatusCode)
	for _, back := range []string{"https://evil.example", "//evil.example", ".//evil", "./\\evil"} {
		r, _ := s.post(url.Values{"q": {"orders"}, "verb": {"pause"}, "g": {"A"}, "back": {back}})
		require.True(t, strings.HasPrefix(r.Header.Get("Location"), "./queue?"), r.Header.Get("Location"))
	}
}

// TestAPIListsGoOn: a list that is longer than an answer names the rest, in the header Link.
func TestAPIListsGoOn(t *testing.T) {
	s := newSite(t, nil)
	const many = 2*pageRows + 7
	for i := range many {
		s.enqueue(fmt.Sprint("g", i), "poison")
	}
	for _, what := range []string{"groups", "dead"} {
		rows, answers := 0, 0
		for next := what + "?q=orders"; next != ""; answers++ {
			r, body := s.ask("GET", "/api/v1/"+next, nil, nil)
			var page []any
			require.NoError(t, json.Unmarshal([]byte(body), &page))
			rows += len(page)
			next, _, _ = strings.Cut(strings.TrimPrefix(r.Header.Get("Link"), "<"), ">; rel=\"next\"")
		}
		require.Equal(t, many, rows, what)
		require.Equal(t, 3, answers, what)
		for range many {
			claims, err := s.q.Receive(t.Context(), layer.ReceiveOptions{Max: 1})
			require.NoError(t, err)
			if len(claims) > 0 {
				require.NoError(t, s.q.Nack(t.Context(), claims[0], layer.NackOptions{Reject: "poison"}))
			}
		}
	}
}

// TestAPI: the questions and the actions as JSON.
func TestAPI(t *testing.T) {
	s := newSite(t, nil)
	id := s.enqueue("A", "a1", "a2")[0]
	_, err := s.q.Admin().PauseGroup(t.Context(), "A", layer.PauseOptions{By: "ann", Reason: "looking"})
	require.NoError(t, err)
	var blocked struct {
		Groups  []JSONGroup
		Summary map[string]int64
	}
	require.NoError(t, json.Unmarshal([]byte(s.get("/api/v1/blocked?q=orders")), &blocked))
	require.Equal(t, "A", blocked.Groups[0].Group)
	require.Equal(t, "group paused", blocked.Groups[0].Cause)
	require.Equal(t, "looking", blocked.Groups[0].Mark.Reason)
	require.EqualValues(t, 1, blocked.Summary["group paused"])
	for _, what := range []string{"queues", "stats?q=orders", "groups?q=orders", "group?q=orders&g=A", "dead?q=orders",
		"audit", link("why", "q", "orders", "id", id.String())} {
		require.True(t, json.Valid([]byte(s.get("/api/v1/"+what))), what)
	}
	send := func(d string, want int) {
		t.Helper()
		r := httptest.NewRequest("POST", "/api/v1/do", strings.NewReader(d))
		r.Host = "localhost"
		w := httptest.NewRecorder()
		s.c.ServeHTTP(w, r)
		require.Equal(t, want, w.Code, "%s: %s", d, w.Body)
		require.True(t, json.Valid(w.Body.Bytes()))
	}
	send(`{"queue":"orders","verb":"resume","group":"A","expect":{"mark":{"status":"halted"}}}`, 409)
	send(`{"queue":"orders","verb":"resume","group":"A"}`, 200)
	send(`{"queue":"orders","verb":"resume","group":"A"}`, 409)
	send(fmt.Sprintf(`{"queue":"orders","verb":"skip","group":"A","expect":{"head":%q}}`, id), 200)
	send(fmt.Sprintf(`{"queue":"orders","verb":"skip","group":"A","expect":{"head":%q}}`, id), 409)
	send(`{"queue":"orders","verb":"redrive","group":"A","dry_run":true}`, 200)
	send(`{"queue":"orders","verb":"skip","group":"A","nonsense":1}`, 400)
	send(`{"queue":"none","verb":"pause","group":"A"}`, 404)
}

// TestAPIRefuses: a refusal says why and is logged. A filter under a wrong name is refused, because without it all
// would be listed, and so is a message of another group than the one that is named.
func TestAPIRefuses(t *testing.T) {
	s := newSite(t, nil)
	id := s.enqueue("A", "a1")[0]
	r := httptest.NewRequest("GET", "/api/v1/dead?q=orders&group=A", nil)
	r.Host = "localhost"
	w := httptest.NewRecorder()
	s.c.ServeHTTP(w, r)
	require.Equal(t, http.StatusBadRequest, w.Code)
	require.Contains(t, w.Body.String(), `no parameter \"group\"`)
	for body, why := range map[string]string{
		`{"queue":"orders","verb":"nope"}`:                  "there is no verb",
		`{"queue":"orders"}`:                                "there is no verb",
		`{"queue":"orders","verb":"pause","group":""}`:      "give a group that is not empty",
		`{"queue":"orders","verb":"pause","group":null}`:    "null is no value",
		`{"queue":"orders","verb":"edit"}`:                  "is for people",
		`{"queue":"orders","verb":"resume","dry_run":true}`: "without effect",
		`{"queue":"orders","verb":"replay","after":""}`:     "not empty",
		`no JSON`: "no JSON of an action",
		fmt.Sprintf(`{"queue":"orders","verb":"skip","id":%q,"group":"B"}`, id): "of another group",
	} {
		s.log.Reset()
		r := httptest.NewRequest("POST", "/api/v1/do", strings.NewReader(body))
		r.Host = "localhost"
		w := httptest.NewRecorder()
		s.c.ServeHTTP(w, r)
		require.Equal(t, http.StatusBadRequest, w.Code, body)
		var answer struct{ Error string }
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &answer))
		require.Contains(t, answer.Error, why)
		require.Contains(t, s.log.String(), why, body)
	}
}

// TestNobodyLooksNothingIsRead: no transaction without a request; any number of pages costs what one costs; streams
// end, and are bounded.
func TestNobodyLooksNothingIsRead(t *testing.T) {
	s := newSite(t, func(o *Options) { o.Every, o.MaxStreams = time.Hour, 3 })
	s.enqueue("A", "a1")
	s.rec.Take()
	time.Sleep(20 * time.Millisecond)
	require.Empty(t, s.rec.Take())
	for range 20 {
		s.get("/queue?q=orders")
		s.get("/blocked?q=orders")
	}
	reads := 0
	for _, tx := range s.rec.Take() {
		if len(tx.Ops) > 0 {
			reads++
		}
	}
	require.LessOrEqual(t, reads, 3, "an opening, the figures, the blocked groups")

	server := httptest.NewServer(s.c)
	defer server.Close()
	var open []io.Closer
	for i := range 4 {
		r, err := server.Client().Get(server.URL + "/events?page=/blocked&q=orders")
		require.NoError(t, err)
		open = append(open, r.Body)
		if i == 3 {
			require.Equal(t, http.StatusServiceUnavailable, r.StatusCode)
			break
		}
		line, err := bufio.NewReader(r.Body).ReadString('\n')
		require.NoError(t, err)
		var e event
		require.NoError(t, json.Unmarshal([]byte(strings.TrimPrefix(line, "data: ")), &e))
		require.Contains(t, e.HTML, "p-blocked")
		require.Less(t, len(line), 20<<10)
	}
	for _, b := range open {
		require.NoError(t, b.Close())
	}
	require.Eventually(t, func() bool { return s.c.streams.Load() == 0 }, time.Minute, time.Millisecond)
}
