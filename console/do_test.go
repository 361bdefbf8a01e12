package console

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
)

// TestActionsSayTheirGroup: a form or a call of the API that names no group, no body or no value does nothing: what is
// left out never means the default group, an empty body or the default of a setting.
func TestActionsSayTheirGroup(t *testing.T) {
	s := newSite(t, nil)
	id := s.enqueue("", "x", "y")[0]
	fields := url.Values{"q": {"orders"}, "head": {id.String()}, "id": {id.String()}, "token": {"1"}, "seen": {"?"}}
	for verb := range ofGroup {
		fields.Set("verb", verb)
		r, body := s.post(fields)
		require.Equal(t, http.StatusBadRequest, r.StatusCode, "%s: %s", verb, body)
		require.Contains(t, body, verb+" wants a group")
	}
	for verb, wants := range map[string]string{
		"edit": "wants a body", "configure": "wants a value",
		"redrive": "say which", "discard": "say which", "replay": "say which",
	} {
		form := url.Values{"q": {"orders"}, "verb": {verb}, "setting": {"lease"}}
		if verb == "edit" {
			form.Set("id", id.String())
		}
		r, body := s.post(form)
		require.Equal(t, http.StatusBadRequest, r.StatusCode, "%s: %s", verb, body)
		require.Contains(t, body, wants, verb)
	}
	send := func(deed string) int {
		r := httptest.NewRequest("POST", "/api/v1/do", strings.NewReader(deed))
		r.Host = "localhost"
		w := httptest.NewRecorder()
		s.c.ServeHTTP(w, r)
		return w.Code
	}
	for _, verb := range []string{"pause", "skip", "purge", "redrive", "discard"} {
		deed := fmt.Sprintf(`{"queue":"orders","verb":%q,"expect":{"head":%q}}`, verb, id)
		require.Equal(t, http.StatusBadRequest, send(deed), deed)
	}
	info, err := s.q.Admin().Group(t.Context(), "", nil)
	require.NoError(t, err)
	require.EqualValues(t, 2, info.Depth)
	require.Equal(t, layer.Ready, info.Status)
	require.Equal(t, http.StatusOK, send(`{"queue":"orders","verb":"pause","default_group":true}`))
}

// TestDeedsWithTwoMeanings: a call that has a member twice, or a member whose name differs from the known one in case,
// does nothing. Nor does a call with half of a character, which a decoder would replace: it would be of another group.
// The template of a call that has a facet twice is refused, too.
func TestDeedsWithTwoMeanings(t *testing.T) {
	s := newSite(t, nil)
	s.enqueue("a", "1")
	s.enqueue("caf\ufffd", "1")
	for _, deed := range []string{
		`{"queue":"orders","verb":"pause","group":"caf\ud800"}`,
		"{\"queue\":\"orders\",\"verb\":\"pause\",\"group\":\"caf\xe9\"}",
		`{"queue":"orders","verb":"resume","verb":"pause","group":"a"}`,
		`{"queue":"orders","verb":"pause","Group":"a"}`,
		`{"queue":"orders","verb":"pause","group":"b","GROUP":"a"}`, `{"queue":"orders","verb":"pause","group":"a"} {}`,
		`{"queue":"orders","verb":"pause","group":"a","expect":{"token":1,"token":0}}`,
	} {
		r := httptest.NewRequest("POST", "/api/v1/do", strings.NewReader(deed))
		r.Host = "localhost"
		w := httptest.NewRecorder()
		s.c.ServeHTTP(w, r)
		require.Equal(t, http.StatusBadRequest, w.Code, deed)
	}
	for _, group := range []string{"a", "caf\ufffd"} {
		info, err := s.q.Admin().Group(t.Context(), group, nil)
		require.NoError(t, err)
		require.Equal(t, layer.Ready, info.Status)
	}
	_, err := (&deed{in: url.Values{"where": {`{"flight":"a","flight":"b"}`}}}).where()
	require.ErrorIs(t, err, errAsk)
}

// TestEmptyFieldsChooseNothing: an id, a text, a time or an "all" that is there and empty or blank never chooses the
// other letters, and a call that names a group with it does not fall back on the whole group. An empty group of a call
// of the API does not mean the default group.
func TestEmptyFieldsChooseNothing(t *testing.T) {
	s := newSite(t, nil)
	s.enqueue("A", "a1", "a2")
	for range 2 {
		_, err := s.q.Admin().Skip(t.Context(), "A", layer.SkipOptions{})
		require.NoError(t, err)
	}
	for _, verb := range []string{"discard", "redrive", "replay"} {
		for _, choice := range []string{`"group":"A","id":""`, `"group":""`, `"group":"A","default_group":true`} {
			deed := fmt.Sprintf(`{"queue":"orders","verb":%q,%s}`, verb, choice)
			r := httptest.NewRequest("POST", "/api/v1/do", strings.NewReader(deed))
			r.Host = "localhost"
			w := httptest.NewRecorder()
			s.c.ServeHTTP(w, r)
			require.Equal(t, http.StatusBadRequest, w.Code, "%s: %s", deed, w.Body)
		}
	}
	for _, form := range []url.Values{
		{"g": {"A"}, "id": {""}}, {"g": {"A"}, "id": {" "}}, {"all": {""}}, {"all": {" "}}, {"all": {"0"}},
		{"all": {"false"}}, {"text": {""}}, {"text": {" "}}, {"text": {"\t"}, "anygroup": {"1"}},
		{"g": {"A"}, "text": {""}}, {"g": {"A"}, "before": {""}}, {"g": {"A"}, "from": {""}},
	} {
		for _, verb := range []string{"discard", "redrive"} {
			form.Set("q", "orders")
			form.Set("verb", verb)
			r, body := s.post(form)
			require.Equal(t, http.StatusBadRequest, r.StatusCode, "%v: %s", form, body)
		}
	}
	stats, err := s.q.Stats(t.Context(), layer.StatsOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 2, stats.Dead)
}

// TestNullIsNoValue: a null in a call of the API, such as that of a variable which is not set, is refused. It does not
// mean that the member is left out, which could choose more. An empty mark does not mean any mark either.
func TestNullIsNoValue(t *testing.T) {
	s := newSite(t, nil)
	s.enqueue("A", "a1", "a2", "a3")
	for range 2 {
		_, err := s.q.Admin().Skip(t.Context(), "A", layer.SkipOptions{})
		require.NoError(t, err)
	}
	_, err := s.q.Admin().PauseGroup(t.Context(), "A", layer.PauseOptions{})
	require.NoError(t, err)
	for _, deed := range []string{
		`{"queue":"orders","verb":"discard","group":"A","id":null}`,
		`{"queue":"orders","verb":"redrive","group":"A","id":null}`,
		`{"queue":"orders","verb":"replay","group":"A","id":null}`,
		`{"queue":"orders","verb":"discard","group":"A","dry_run":null}`,
		`{"queue":"orders","verb":"discard","group":null}`,
		`{"queue":"orders","verb":"resume","group":"A","expect":null}`,
		`{"queue":"orders","verb":"resume","group":"A","expect":{"mark":null}}`,
		`{"queue":"orders","verb":"resume","group":"A","expect":{"mark":{}}}`,
		`{"queue":"orders","verb":"resume","group":"A","expect":{"mark":{"status":""}}}`,
		`{"queue":"orders","verb":"pause","group":"A","reason":null}`,
	} {
		r := httptest.NewRequest("POST", "/api/v1/do", strings.NewReader(deed))
		r.Host = "localhost"
		w := httptest.NewRecorder()
		s.c.ServeHTTP(w, r)
		require.Equal(t, http.StatusBadRequest, w.Code, "%s: %s", deed, w.Body)
	}
	for _, verb := range []string{"resume", "resume-queue"} {
		r, body := s.post(url.Values{"q": {"orders"}, "g": {"A"}, "verb": {verb}, "mark": {""}})
		require.Equal(t, http.StatusBadRequest, r.StatusCode, body)
	}
	stats, err := s.q.Stats(t.Context(), layer.StatsOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 2, stats.Dead)
	info, err := s.q.Admin().Group(t.Context(), "A", nil)
	require.NoError(t, err)
	require.Equal(t, layer.Paused, info.Status)
}

// TestEmptyFieldIsNoValue: a field of a form that is there and empty is refused where it would make the action do more:
// a dry run would act, and a claim of one message would be that of the group.
func TestEmptyFieldIsNoValue(t *testing.T) {
	s := newSite(t, nil)
	s.enqueue("A", "a1", "a2", "a3")
	for range 2 {
		_, err := s.q.Admin().Skip(t.Context(), "A", layer.SkipOptions{})
		require.NoError(t, err)
	}
	claims, err := s.q.Receive(t.Context(), layer.ReceiveOptions{})
	require.NoError(t, err)
	token := fmt.Sprint(claims[0].Token)
	for _, form := range []url.Values{
		{"verb": {"discard"}, "dry_run": {""}}, {"verb": {"discard"}, "dry_run": {"0"}},
		{"verb": {"discard"}, "dry_run": {"", "1"}}, {"verb": {"redrive"}, "dry_run": {""}},
		{"verb": {"redrive"}, "tail": {""}}, {"verb": {"replay"}, "dry_run": {""}},
		{"verb": {"retry-alike"}, "alike": {digest([]byte("bad"))}, "dry_run": {""}},
		{"verb": {"release"}, "token": {token}, "hold": {""}},
		{"verb": {"release"}, "token": {token}, "where": {""}},
		{"verb": {"release"}, "token": {token}, "where": {"null"}},
	} {
		form.Set("q", "orders")
		form.Set("g", "A")
		r, body := s.post(form)
		require.Equal(t, http.StatusBadRequest, r.StatusCode, "%v: %s", form, body)
	}
	stats, err := s.q.Stats(t.Context(), layer.StatsOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 2, stats.Dead)
	require.EqualValues(t, 1, stats.InFlight)
	r, body := s.post(url.Values{"q": {"orders"}, "g": {"A"}, "verb": {"discard"}, "dry_run": {"1"}})
	require.Equal(t, http.StatusSeeOther, r.StatusCode, body)
	require.NoError(t, s.q.Ack(t.Context(), claims[0]))
}

// TestOnlyConfirmedLetters: a discard or a redrive of all letters acts on the letters that its page of confirmation has
// counted. Letters that die after the page was shown stay. If a counted letter is gone, the action does nothing.
func TestOnlyConfirmedLetters(t *testing.T) {
	for verb, label := range map[string]string{"discard": "Discard", "redrive": "Redrive"} {
		t.Run(verb, func(t *testing.T) {
			s := newSite(t, nil)
			skip := func(n int) (ids []layer.ID) {
				for i := range n {
					g := fmt.Sprint("G", i)
					s.enqueue(g, "x")
					id, err := s.q.Admin().Skip(t.Context(), g, layer.SkipOptions{})
					require.NoError(t, err)
					ids = append(ids, id)
				}
				return ids
			}
			dead := func() int64 {
				stats, err := s.q.Stats(t.Context(), layer.StatsOptions{})
				require.NoError(t, err)
				return stats.Dead
			}
			skip(3)
			confirm := "/" + confirmDead(verb, "orders", "./", url.Values{})
			require.Contains(t, s.get(confirm), "3 dead letters would be")
			form := s.button(confirm, label)
			time.Sleep(5 * time.Millisecond) // the times of letters have milliseconds
			skip(5)
			r, body := s.post(form)
			require.Equal(t, http.StatusSeeOther, r.StatusCode, body)
			require.EqualValues(t, 5, dead(), "those that were not counted")
			require.Contains(t, s.c.audit.latest()[0].Result, "3 dead letters")
			r, body = s.post(form)
			require.Equal(t, http.StatusConflict, r.StatusCode, "a second click: %s", body)

			form = s.button(confirm, label)
			gone, err := s.q.Admin().DeadLetters(t.Context(), layer.DeadOptions{Limit: 1})
			require.NoError(t, err)
			of := layer.DeadFilter{IDs: []layer.ID{gone.Letters[0].ID}}
			_, err = s.q.Admin().Discard(t.Context(), of, layer.DiscardOptions{})
			require.NoError(t, err)
			r, body = s.post(form)
			require.Equal(t, http.StatusConflict, r.StatusCode, body)
			require.EqualValues(t, 4, dead())
		})
	}
}

// TestBackStaysAtTheConsole: the link back of a page leads to a page of the console, whatever the address of the page
// names.
func TestBackStaysAtTheConsole(t *testing.T) {
	s := newSite(t, nil)
	id := s.enqueue("A", "x")[0].String()
	href := regexp.MustCompile(`href="([^"]*)">Back<`)
	for _, page := range []string{
		link("confirm", "q", "orders", "verb", "cancel", "g", "A", "id", id), link("edit", "q", "orders", "id", id),
	} {
		own := "./" + link("group", "q", "orders", "g", "A")
		for back, want := range map[string]string{
			own: own, "https://evil.example": "./", "//evil.example": "./", `./\evil.example`: "./", "": "./",
			".//evil.example": "./", "/elsewhere": "./",
		} {
			m := href.FindStringSubmatch(s.get("/" + page + "&back=" + url.QueryEscape(back)))
			require.NotNil(t, m, page)
			require.Equal(t, want, htmlText(m[1]), "%s: %s", page, back)
		}
	}
}

// TestBlankToken: a token of blanks is no secret, so a console is not made with it.
func TestBlankToken(t *testing.T) {
	db := embedded.OpenMemory(embedded.Options{})
	defer db.Close()
	for _, token := range []string{" ", "\t", " \n "} {
		_, err := New(Options{DB: db, Token: token})
		require.ErrorContains(t, err, "blank", "%q", token)
	}
}
