package console

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
)

// populated is a queue with a group in each state, whose texts try to be HTML; ids are those of two messages of it.
func populated(t *testing.T, db kv.DB, now func() time.Time) (q *layer.Queue, ids []layer.ID) {
	t.Helper()
	ctx := t.Context()
	const text = `"><script>alert(1)</script><!--`
	q, err := layer.Create(ctx, db, nil, "orders", layer.Options{
		Now: now, Owner: text,
		Config: layer.Config{Archive: time.Hour, Retry: layer.RetryPolicy{Kind: layer.RetryAtOnce}},
	})
	require.NoError(t, err)
	for _, group := range []string{"ready", "held", "failed", "dead", "done", "paused", text} {
		sent, err := q.Enqueue(ctx, layer.Message{
			Group: group, Body: []byte(text), Headers: map[string]string{text: text},
		})
		require.NoError(t, err)
		ids = append(ids, sent[0].ID)
	}
	claim := func(group string) *layer.Claim {
		claims, err := q.Receive(ctx, layer.ReceiveOptions{Group: &group})
		require.NoError(t, err)
		return claims[0]
	}
	claim("held")
	require.NoError(t, q.Nack(ctx, claim("failed"), layer.NackOptions{Err: errors.New(text), Delay: time.Hour}))
	require.NoError(t, q.Nack(ctx, claim("dead"), layer.NackOptions{Reject: text}))
	require.NoError(t, q.Ack(ctx, claim("done")))
	_, err = q.Admin().PauseGroup(ctx, "paused", layer.PauseOptions{By: text, Reason: text})
	require.NoError(t, err)
	return q, ids
}

// rows is all that a database has.
func rows(t *testing.T, db kv.DB) (all []kv.KV) {
	t.Helper()
	_, err := kv.Run(t.Context(), db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) (err error) {
		whole := kv.KeyRange{End: []byte{0xff}}.Selectors()
		all, err = tx.Snapshot().GetRange(whole, kv.RangeOptions{}).Wait(t.Context())
		return err
	})
	require.NoError(t, err)
	return all
}

// Ways in which a request names its user, or does not. Those from byToken on are let in.
const (
	byNobody = iota
	byCookieElsewhere
	byWrongCookie
	byWrongToken
	byOtherSite
	byOtherHost
	byToken
	byCookie
	ways
)

// FuzzConsoleForms: a form, a call of the API or a link asks anything of a queue with known messages. The console does
// not panic, and no status is 5xx. A GET changes nothing. A client without access changes nothing, and sees nothing of
// the queue. The size of an answer is bounded. An answer is JSON, or HTML in which every text is escaped.
func FuzzConsoleForms(f *testing.F) {
	for way := range byte(ways) {
		f.Add(way, "/queue", "q=orders", "")
		f.Add(way, "/do", "", "q=orders&verb=pause&g=ready")
		f.Add(way, "/api/v1/do", "", `{"queue":"orders","verb":"pause","group":"ready"}`)
	}
	for verb := range verbs {
		f.Add(byte(byToken), "/do", "", url.Values{
			"q": {"orders"}, "verb": {verb}, "g": {"failed"}, "head": {"ID2"}, "id": {"ID0"}, "all": {"1"},
			"token": {"TOKEN"}, "once": {"ONCE"}, "reason": {"<b>"}, "body": {"x"}, "setting": {"lease"},
			"old": {"30s"}, "value": {"1m"},
		}.Encode())
		f.Add(byte(byCookie), "/confirm", "q=orders&g=failed&head=ID2&verb="+verb, "")
		f.Add(byte(byToken), "/api/v1/do", "",
			`{"queue":"orders","group":"failed","expect":{"head":"ID2"},"verb":"`+verb+`"}`)
	}
	for path := range views {
		f.Add(byte(byToken), strings.TrimSuffix(path, "{$}"),
			`q=orders&g=%22><script>&id=ID0&said=1&text=<i>&from=2026-01-01T00:00`, "")
		f.Add(byte(byToken), "/events", "q=orders&g=ready&page="+path, "")
	}
	for what := range questions {
		f.Add(byte(byToken), "/api/v1/"+what, "q=orders&g=ready&id=ID0", "")
	}
	f.Add(byte(byToken), "/do", "", "q~=orders&verb=skip&g~=%2522%253E&head=ID6&back=//evil.example")
	f.Add(byte(byToken), "/queue", "q=", "")
	f.Add(byte(byToken), "/do", "", "q=orders&verb=configure&old=30s&value=1m") // of no setting
	f.Add(byte(byToken), "/blocked", "q=orders&cause=group+paused&after=A&rank=1&index=1&held=1s", "")
	f.Add(byte(byToken), "/dead",
		"q=orders&g=dead&text=script&from=2026-01-01T00:00&before=2027-01-01T00:00&after=ID3", "")
	f.Add(byte(byToken), "/archive", "q=orders&g=done&from=2026-01-01T00:00&after=ID4", "")
	f.Add(byte(byToken), "/do", "", "q=orders&verb=replay&g=done&once=ONCE&after=ID4&before=2027-01-01T00:00:00.001Z")
	f.Add(byte(byToken), "/do", "", "q=orders&verb=resume&g=paused&mark=paused&mark_by=x&mark_since=1")
	f.Add(byte(byToken), "/do", "", "q=orders&verb=release-count&g=held&token=1&hold=ID1&where=%7B%22a%22%3A%22b%22%7D")
	f.Add(byte(byToken), "/do", "", "q=orders&verb=edit&id=ID0&seen=0123456789abcdef&body=new")
	f.Add(byte(byNobody), "/login", "token=x", "")
	f.Add(byte(byCookie), "/login", "token=x", "")
	f.Add(byte(byNobody), "/logout", "", "x")
	f.Add(byte(byCookie), "/logout", "", "x")
	f.Add(byte(byNobody), "/assets/../console.go", "", "")
	f.Add(byte(byNobody), "/assets/\xfdo", "", "")
	f.Add(byte(byNobody), "/assets/../console.go", "\x8bt-[\xde", "")
	f.Fuzz(func(t *testing.T, way byte, path, query, body string) {
		if len(path)+len(query)+len(body) > 4<<10 || strings.ContainsRune(path, '?') {
			return
		}
		answered(t, int(way)%ways, path, query, body)
	})
}

// answered asks one thing of a new console, and holds the answer to the laws.
func answered(t *testing.T, way int, path, query, body string) {
	at := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	now := func() time.Time { return at }
	db := embedded.OpenMemory(embedded.Options{Seed: 1})
	defer db.Close()
	q, ids := populated(t, db, now)
	token := NewToken()
	c, err := New(Options{DB: db, Token: token, Now: now, Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	for i, id := range ids {
		name := "ID" + string(rune('0'+i))
		query = strings.ReplaceAll(query, name, url.QueryEscape(id.String()))
		body = strings.ReplaceAll(body, name, id.String())
	}
	body = strings.ReplaceAll(body, "ONCE", c.numbers.issue())
	before := rows(t, db)

	r := requestOf(c, way, token, path, query, body)
	if r == nil {
		return // no such request can be sent
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	w := &ending{ResponseRecorder: httptest.NewRecorder(), cancel: cancel}
	c.ServeHTTP(w, r.WithContext(ctx))
	require.Less(t, w.Code, 500, "%s", w.Body)
	require.Less(t, w.Body.Len(), 128<<10+64*(len(query)+len(body)), "the answer is bounded")
	if r.Method == http.MethodGet || way < byToken {
		require.Equal(t, before, rows(t, db), "changed")
	}
	if way < byToken && !strings.Contains(path, "assets") && path != "/healthz" {
		require.GreaterOrEqual(t, w.Code, 300)
		require.NotContains(t, w.Body.String(), "alert(1)", "seen by nobody")
	}
	isWellFormed(t, w)
	require.NoError(t, c.Close(t.Context()))
	report, err := q.Admin().Check(t.Context(), layer.CheckOptions{})
	require.NoError(t, err)
	require.Empty(t, report.Violations)
	require.NoError(t, q.Close(t.Context()))
}

// ending ends a request with the first event of its stream.
type ending struct {
	*httptest.ResponseRecorder
	cancel context.CancelFunc
}

func (e *ending) FlushError() error {
	e.cancel()
	return nil
}

// requestOf makes a request; nil if net/http would not let one through.
func requestOf(c *Console, way int, token, path, query, body string) *http.Request {
	if way == byCookie || way == byWrongCookie || way == byOtherSite {
		path = "/" + place(token) + path
	}
	target := &url.URL{Path: path, RawQuery: query}
	method, content := http.MethodGet, io.Reader(nil)
	if body != "" {
		method, content = http.MethodPost, strings.NewReader(body)
	}
	r, err := http.NewRequest(method, "http://localhost:7411"+target.String(), content)
	if err != nil {
		return nil
	}
	r.RemoteAddr = "127.0.0.1:1"
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	switch way {
	case byCookieElsewhere, byCookie, byOtherSite:
		r.AddCookie(&http.Cookie{Name: cookieName(r), Value: c.sessions.begin(c.o.Now())})
	case byWrongCookie:
		r.AddCookie(&http.Cookie{Name: cookieName(r), Value: NewToken()})
	case byWrongToken:
		r.Header.Set("Authorization", "Bearer "+NewToken())
	case byToken, byOtherHost:
		r.Header.Set("Authorization", "Bearer "+token)
	}
	switch way {
	case byOtherSite: // a link of another site may be followed, so only its forms are refused
		if method == http.MethodGet {
			return nil
		}
		r.Header.Set("Sec-Fetch-Site", "cross-site")
	case byOtherHost:
		r.Host = "evil.example"
	}
	return r
}

var (
	tag       = regexp.MustCompile(`<!doctype html>|</?([a-z][a-z0-9]*)((?: [a-zA-Z-]+(?:="[^"<>]*")?)*)\s*/?>`)
	elsewhere = regexp.MustCompile(`^(//|[^/?#]*:)`)
	attribute = regexp.MustCompile(` ([a-zA-Z-]+)(?:="([^"]*)")?`)
)

// isWellFormed holds an answer to what its type promises.
func isWellFormed(t *testing.T, w *ending) {
	t.Helper()
	text := w.Body.String()
	require.True(t, utf8.ValidString(text), "%q", text)
	if to := w.Header().Get("Location"); to != "" && w.Code == http.StatusSeeOther {
		require.Regexp(t, `^\./[^/\\]`, to)
	}
	switch kind, _, _ := strings.Cut(w.Header().Get("Content-Type"), ";"); kind {
	case "application/json":
		require.True(t, json.Valid(w.Body.Bytes()), "%s", text)
	case "text/event-stream":
		for _, line := range strings.Split(strings.TrimSpace(text), "\n\n") {
			var e event
			require.NoError(t, json.Unmarshal(bytes.TrimPrefix([]byte(line), []byte("data: ")), &e), "%q", line)
			isHTML(t, e.HTML)
		}
	case "text/html":
		isHTML(t, text)
	}
}

// isHTML: there is no < or > but of tags whose attributes run nothing and lead nowhere else, and no control character.
func isHTML(t *testing.T, text string) {
	t.Helper()
	for _, m := range tag.FindAllStringSubmatch(text, -1) {
		for _, a := range attribute.FindAllStringSubmatch(m[2], -1) {
			name, value := a[1], a[2]
			require.False(t, strings.HasPrefix(name, "on") || name == "style" || name == "srcdoc", "%s", m[0])
			if name == "href" || name == "src" || name == "action" {
				require.False(t, elsewhere.MatchString(value) && value != "data:,", "%s", m[0])
			}
		}
		require.False(t, m[1] == "script" && m[2] != "" && m[2] != ` src="assets/live.js" defer`, "%s", m[0])
	}
	rest := tag.ReplaceAllString(text, "")
	require.False(t, strings.ContainsAny(rest, "<>"), "%s", text)
	control := func(r rune) bool { return r < ' ' && r != '\n' && r != '\t' }
	require.False(t, strings.ContainsFunc(rest, control), "%q", text)
}
