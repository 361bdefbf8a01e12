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

// addresses reads the addresses that a command says it serves, by the kind of service.
func addresses(t *testing.T, stderr io.Reader, want ...string) map[string]string {
	t.Helper()
	found, lines := map[string]string{}, bufio.NewScanner(stderr)
	for len(found) < len(want) && lines.Scan() {
		for _, what := range want {
			if url, ok := strings.CutPrefix(lines.Text(), "fdbfifo: "+what+": "); ok {
				found[what] = url
			}
		}
	}
	require.Len(t, found, len(want))
	go io.Copy(io.Discard, stderr)
	return found
}

// TestServedBeside: work serves the console and its own metrics while it works. console serves the metrics of all
// queues.
func TestServedBeside(t *testing.T) {
	h := newHarness(t)
	for _, q := range []string{"default", "other"} {
		args := []string{"enqueue", "--queue", q, "--group", "g", "--body", "x"}
		require.NoError(t, h.app().Run(t.Context(), args, strings.NewReader(""), io.Discard, io.Discard))
	}
	for _, c := range []struct {
		args []string
		want []string
		says []string
	}{
		{
			[]string{"work", "--exec", "cat", "--metrics", "127.0.0.1:0", "--console", "127.0.0.1:0"},
			[]string{"metrics", "console"},
			[]string{`fdbfifo_queue_messages{queue="default"}`, "messaging_client_consumed_messages_total"},
		},
		{
			[]string{"console", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0"}, []string{"metrics"},
			[]string{`fdbfifo_queue_messages{queue="default"}`, `fdbfifo_queue_messages{queue="other"} 1`},
		},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		stderr, w := io.Pipe()
		ended := make(chan error, 1)
		go func() { ended <- h.app().Run(ctx, c.args, strings.NewReader(""), io.Discard, w) }()
		for what, url := range addresses(t, stderr, c.want...) {
			r, err := http.Get(url)
			require.NoError(t, err)
			body, err := io.ReadAll(r.Body)
			require.NoError(t, err)
			require.Equal(t, http.StatusOK, r.StatusCode, "%s: %s", url, body)
			for _, part := range c.says {
				if what == "metrics" {
					require.Contains(t, string(body), part)
				}
			}
		}
		cancel()
		require.NoError(t, <-ended)
	}
	for _, flag := range []string{"--metrics", "--console"} {
		args := []string{"work", "--exec", "true", flag, "0.0.0.0:0"}
		err := h.app().Run(t.Context(), args, strings.NewReader(""), io.Discard, io.Discard)
		require.Equal(t, ExitUsage, ExitCode(err))
	}
}
