package console

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/layer"
)

// TestOldAnswersGo: an answer that is too old to be used goes, also if no other call asks its question. One that may
// be older stays.
func TestOldAnswersGo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c cache
		c.init(time.Now)
		get := func(text string, every time.Duration) {
			_, _, err := c.get(t.Context(), question{text: text}, every, func() (any, error) { return text, nil })
			require.NoError(t, err)
		}
		get("status", time.Hour)
		for i := range 100 {
			get(fmt.Sprint(i), time.Second)
		}
		time.Sleep(2 * time.Second)
		get("last", time.Second)
		require.Len(t, c.answers, 2)
		require.Contains(t, c.answers, question{text: "status"})
	})
}

// TestQuestionThatPanics: calls do not wait for an answer that a panic has prevented.
func TestQuestionThatPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c cache
		c.init(time.Now)
		ask := func(answer func() (any, error)) (any, error) {
			value, _, err := c.get(t.Context(), question{}, time.Hour, answer)
			return value, err
		}
		first := make(chan error)
		go func() {
			defer func() { require.NotNil(t, recover()) }()
			_, _ = ask(func() (any, error) { time.Sleep(time.Second); panic("of the program") })
		}()
		go func() {
			time.Sleep(time.Millisecond)
			_, err := ask(nil)
			first <- err
		}()
		require.ErrorIs(t, <-first, errPanicked)
		value, err := ask(func() (any, error) { return 1, nil })
		require.NoError(t, err)
		require.Equal(t, 1, value)
	})
}

// TestActionsAreShort: the list of actions, which viewers see, has the beginning of a long text.
func TestActionsAreShort(t *testing.T) {
	s := newSite(t, nil)
	long := strings.Repeat("é", 100_000)
	r, _ := s.post(url.Values{"verb": {"pause"}, "q": {"orders"}, "g": {"A"}, "reason": {"because " + long}})
	require.Equal(t, http.StatusBadRequest, r.StatusCode)
	_, err := s.c.act(t.Context(), identity{Operator, long}, url.Values{"verb": {"sweep"}, "q": {long}})
	require.ErrorIs(t, err, layer.ErrLimit)
	for _, a := range s.c.audit.latest() {
		for _, text := range []string{a.By, a.Queue, a.Target, a.Reason, a.Result} {
			require.LessOrEqual(t, len(text), maxWords+len(" …"))
		}
	}
	require.Contains(t, s.c.audit.latest()[1].Reason, "because é")
	require.Less(t, len(s.log.String()), 100<<10)
}
