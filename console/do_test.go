package console

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

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
	require.Equal(t, http.StatusOK, send(`{"queue":"orders","verb":"pause","group":""}`))
}
