package console

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/layer"
)

// TestPathsWithDots: no path leads out of the files that the console serves.
func TestPathsWithDots(t *testing.T) {
	s := newSite(t, nil)
	for _, path := range []string{
		"/assets/../console.go", "/assets/..%2f..%2fetc/passwd", "/assets/%2e%2e/%2e%2e/go.mod", "/../../etc/passwd",
		"/assets/..\\console.go", "//etc/passwd",
	} {
		r, body := s.ask("GET", path, nil, nil)
		require.NotEqual(t, http.StatusOK, r.StatusCode, path)
		require.NotContains(t, body, "package console", path)
		require.NotContains(t, body, "root:", path)
	}
}

// TestBodyOverItsLimit: a form over its limit is refused, and neither stored nor logged.
func TestBodyOverItsLimit(t *testing.T) {
	s := newSite(t, nil)
	id := s.enqueue("A", "small")[0]
	r, _ := s.post(url.Values{
		"verb": {"edit"}, "q": {"orders"}, "id": {id.String()}, "body": {strings.Repeat("secret", 1<<20)},
	})
	require.Equal(t, http.StatusBadRequest, r.StatusCode)
	items, err := s.q.Peek(t.Context(), "A", 1, nil)
	require.NoError(t, err)
	require.Equal(t, "small", string(items[0].Body))
	require.NotContains(t, s.log.String(), "secret")
}

// TestDocumentedBounds: docs/guarantees.md has the bounds of forms, sessions and remembered actions.
func TestDocumentedBounds(t *testing.T) {
	text, err := os.ReadFile("../docs/guarantees.md")
	require.NoError(t, err)
	for _, bound := range []string{
		fmt.Sprintf("| a form | %d MiB |", maxForm>>20),
		fmt.Sprintf("| sessions | %d |", maxSessions),
		fmt.Sprintf("| remembered actions | %d,%03d |", maxActions/1000, maxActions%1000),
	} {
		require.Contains(t, string(text), bound)
	}
}

// TestSecondClick: the same form sent twice acts once; the second is told that things have changed.
func TestSecondClick(t *testing.T) {
	s := newSite(t, nil)
	s.enqueue("A", "1", "2")
	items, err := s.q.Peek(t.Context(), "A", 1, nil)
	require.NoError(t, err)
	form := url.Values{"verb": {"skip"}, "q": {"orders"}, "g": {"A"}, "head": {items[0].ID.String()}}
	r, _ := s.post(form)
	require.Equal(t, http.StatusSeeOther, r.StatusCode)
	r, _ = s.post(form)
	require.Equal(t, http.StatusConflict, r.StatusCode)
	stats, err := s.q.Stats(t.Context(), layer.StatsOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 1, stats.Dead)
	require.EqualValues(t, 1, stats.Depth)
}

// TestThousandStreams: of a thousand pages that want to be kept fresh, as many are as there may be; the others are
// refused, and pages and actions go on. When a page is left, another takes its place.
func TestThousandStreams(t *testing.T) {
	const most = 50
	s := newSite(t, func(o *Options) { o.MaxStreams, o.Every = most, time.Minute })
	s.enqueue("A", "1")
	server := httptest.NewServer(s.c)
	defer server.Close()
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: 0}}
	defer client.CloseIdleConnections()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	open := func(ctx context.Context) int {
		r, err := http.NewRequestWithContext(ctx, "GET", server.URL+"/events?page=/queue&q=orders", nil)
		require.NoError(t, err)
		answer, err := client.Do(r)
		require.NoError(t, err)
		if answer.StatusCode == http.StatusOK {
			context.AfterFunc(ctx, func() { _ = answer.Body.Close() })
		} else {
			require.NoError(t, answer.Body.Close())
		}
		return answer.StatusCode
	}
	counts := map[int]int{}
	for range 1000 {
		counts[open(ctx)]++
	}
	require.Equal(t, map[int]int{http.StatusOK: most, http.StatusServiceUnavailable: 1000 - most}, counts)
	require.Contains(t, s.get("/queue?q=orders"), "ready groups")
	r, _ := s.post(url.Values{"verb": {"pause"}, "q": {"orders"}, "g": {"A"}})
	require.Equal(t, http.StatusSeeOther, r.StatusCode)
	cancel()
	require.Eventually(t, func() bool { return s.c.streams.Load() == 0 }, time.Minute, time.Millisecond)
	again, stop := context.WithCancel(t.Context())
	defer stop()
	require.Equal(t, http.StatusOK, open(again))
}
