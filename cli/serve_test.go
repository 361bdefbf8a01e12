package cli

import (
	"context"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestServeIsRefused: without keys the server listens on this machine alone, and what is wrong is said before it
// listens.
func TestServeIsRefused(t *testing.T) {
	keys := filepath.Join(t.TempDir(), "keys")
	require.NoError(t, os.WriteFile(keys, []byte("AKID\n"), 0o600))
	for want, args := range map[string][]string{
		"--sqs HOST:PORT is wanted":                     {},
		`not "9324"`:                                    {"--sqs", "9324"},
		"without --keys the server listens on this":     {"--sqs", "0.0.0.0:0"},
		"no such file":                                  {"--sqs", "0.0.0.0:0", "--keys", keys + "x"},
		"line 1: want ACCESS-KEY SECRET-KEY":            {"--sqs", "0.0.0.0:0", "--keys", keys},
		"--tls-cert and --tls-key go together":          {"--sqs", "127.0.0.1:0", "--tls-cert", "x"},
		`--url is "example.com": want`:                  {"--sqs", "127.0.0.1:0", "--url", "example.com"},
		"--connections is 0":                            {"--sqs", "127.0.0.1:0", "--connections", "0"},
		"--tls-cert: open x: no such file or directory": {"--sqs", "127.0.0.1:0", "--tls-cert", "x", "--tls-key", "x"},
	} {
		args = append([]string{"serve", "--engine", "disk:" + t.TempDir()}, args...)
		var stderr strings.Builder
		err := Run(t.Context(), args, nil, io.Discard, &stderr)
		require.Equal(t, ExitUsage, ExitCode(err), stderr.String())
		require.Contains(t, stderr.String(), want)
	}
}

// TestServe: it listens, says where, tells whether it is well, and ends with the context.
func TestServe(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	stderr, notices := io.Pipe()
	done := make(chan error, 1)
	go func() {
		done <- Run(ctx, []string{"serve", "--engine", "memory", "--sqs", "localhost:0"}, nil, io.Discard, notices)
		notices.Close()
	}()
	text, err := readUntil(stderr, "\nfdbfifo: serving SQS at ", "\n")
	require.NoError(t, err)
	for _, path := range []string{"/health", "/ready", "/?Action=ListQueues"} {
		answer, err := http.Get(text + path)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		require.Equal(t, http.StatusOK, answer.StatusCode, path)
	}
	stop()
	go func() { _, _ = io.Copy(io.Discard, stderr) }()
	require.NoError(t, <-done)
}

// readUntil reads up to end, and returns what stands between begin and that.
func readUntil(r io.Reader, begin, end string) (string, error) {
	var all strings.Builder
	for one := make([]byte, 1); ; {
		if _, err := io.ReadFull(r, one); err != nil {
			return all.String(), err
		}
		all.Write(one)
		if _, rest, ok := strings.Cut(all.String(), begin); ok && strings.HasSuffix(rest, end) {
			return strings.TrimSuffix(rest, end), nil
		}
	}
}
