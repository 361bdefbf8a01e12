package cli

import (
	"bufio"
	"context"
	"io"
	"net/http"
	"net/http/cookiejar"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestConsoleServes: the printed link opens the console, and Ctrl-C ends it in good order.
func TestConsoleServes(t *testing.T) {
	h := newHarness(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	out, w := io.Pipe()
	ended := make(chan error, 1)
	args := []string{"console", "--listen", "127.0.0.1:0"}
	go func() { ended <- h.app().Run(ctx, args, strings.NewReader(""), w, io.Discard) }()
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	url, ok := strings.CutPrefix(strings.TrimSpace(line), "console: ")
	require.True(t, ok, line)
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	client := http.Client{Jar: jar}
	base, _, _ := strings.Cut(url, "login")
	for _, step := range []struct {
		url  string
		want int
	}{{base, 401}, {url, 200}, {base, 200}, {base + "queue?q=none", 404}} {
		r, err := client.Get(step.url)
		require.NoError(t, err)
		require.NoError(t, r.Body.Close())
		require.Equal(t, step.want, r.StatusCode, step.url)
	}
	client.CloseIdleConnections()
	cancel()
	require.NoError(t, <-ended)
}

// TestConsoleRefuses: flags that do not fit, and an address for other machines without TLS.
func TestConsoleRefuses(t *testing.T) {
	for _, args := range [][]string{
		{"--listen", "0.0.0.0:0"}, {"--tls-cert", "x"}, {"--operators", "ann"}, {"--listen", "nowhere"},
		{"--tls-cert", "none", "--tls-key", "none", "--listen", "127.0.0.1:0"},
	} {
		h := newHarness(t)
		args = append([]string{"console"}, args...)
		err := h.app().Run(t.Context(), args, strings.NewReader(""), io.Discard, io.Discard)
		require.Equal(t, ExitUsage, ExitCode(err), "%v: %v", args, err)
	}
}
