//go:build unix

package cli

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/internal/doors"
)

// dialed is a listener whose connections a test makes, for a bubble.
type dialed chan net.Conn

func (d dialed) Accept() (net.Conn, error) {
	if c, ok := <-d; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (d dialed) Close() error   { close(d); return nil }
func (d dialed) Addr() net.Addr { return new(net.TCPAddr) }

// TestDoorIsBounded: the metrics and the console have a number of connections at most. A new connection gets the place
// of the oldest one after a second at most, although each of them has had an answer and stays open.
func TestDoorIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most = 4
		l := make(dialed)
		ctx, stop := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- serve(ctx, l, http.NotFoundHandler(), most, doors.Metrics) }()
		var clients []net.Conn
		for i := range 3 * most {
			client, server := net.Pipe()
			clients = append(clients, client)
			begun := time.Now()
			l <- server
			_, err := io.WriteString(client, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n")
			require.NoError(t, err)
			answer, err := http.ReadResponse(bufio.NewReader(client), nil)
			require.NoError(t, err)
			require.Equal(t, http.StatusNotFound, answer.StatusCode)
			require.LessOrEqual(t, time.Since(begun), doors.Patience+100*time.Millisecond, i)
		}
		open := 0
		for _, client := range clients {
			_ = client.SetReadDeadline(time.Now().Add(time.Millisecond)) // fails if the server has closed it
			if _, err := client.Read(make([]byte, 1000)); os.IsTimeout(err) {
				open++
			}
		}
		require.Equal(t, most, open)
		stop()
		require.NoError(t, <-ended)
		for _, client := range clients {
			require.NoError(t, client.Close())
		}
	})
}

// fewFiles, in the environment, makes TestServeFewFiles the process of another test.
const fewFiles = "FDBFIFO_FEW_FILES"

// TestServeFewFiles is a process that serves SQS and metrics, and may open 128 files. Another test starts it. Its input
// ends it.
func TestServeFewFiles(t *testing.T) {
	if os.Getenv(fewFiles) == "" {
		t.Skip("of another test, which starts it")
	}
	var r syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &r))
	r.Cur = 128
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &r))
	ctx, stop := context.WithCancel(t.Context())
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); stop() }()
	args := []string{"serve", "--sqs", "127.0.0.1:0", "--metrics", "127.0.0.1:0"}
	err := newHarness(t).app().Run(ctx, args, strings.NewReader(""), io.Discard, os.Stderr)
	require.NoError(t, err)
}

// TestConnectionsLeaveFiles: connections that stay open at the metrics or at the SQS port do not use up the files that
// the process may open, so a request at the SQS port is answered. The server says once that it serves fewer
// connections.
func TestConnectionsLeaveFiles(t *testing.T) {
	c := exec.Command(os.Args[0], "-test.run", "^TestServeFewFiles$")
	c.Env = append(os.Environ(), fewFiles+"=1")
	in, err := c.StdinPipe()
	require.NoError(t, err)
	out, err := c.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	defer func() {
		require.NoError(t, in.Close())
		require.NoError(t, c.Wait())
	}()
	var told strings.Builder
	lines := bufio.NewScanner(out)
	for found := false; !found && lines.Scan(); found = strings.Contains(lines.Text(), "serving SQS") {
		told.WriteString(lines.Text() + "\n")
	}
	told.WriteString(lines.Text() + "\n")
	of := func(what string) string {
		found := regexp.MustCompile(what + `.*http://([0-9.:]+)`).FindStringSubmatch(told.String())
		require.NotNil(t, found, told.String())
		return found[1]
	}
	metrics, queues := of("metrics"), of("serving SQS")
	for lines.Scan() && !strings.Contains(lines.Text(), "fewer connections than asked for") {
	}
	require.Contains(t, lines.Text(), "connections=80 asked=4096 files=128")
	go func() { _, _ = io.Copy(io.Discard, out) }()

	hold := func(address, request string) {
		for range 200 {
			conn, err := net.Dial("tcp", address)
			require.NoError(t, err)
			t.Cleanup(func() { _ = conn.Close() })
			_, _ = io.WriteString(conn, request)
		}
	}
	ask := func() {
		client := &http.Client{Timeout: 30 * time.Second, Transport: new(http.Transport)}
		r, err := http.NewRequest("POST", "http://"+queues, strings.NewReader("{}"))
		require.NoError(t, err)
		r.Header.Set("Content-Type", "application/x-amz-json-1.0")
		r.Header.Set("X-Amz-Target", "AmazonSQS.ListQueues")
		answer, err := client.Do(r)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		require.Equal(t, http.StatusOK, answer.StatusCode)
	}
	hold(metrics, fmt.Sprintf("GET /metrics HTTP/1.1\r\nHost: %s\r\n\r\n", metrics))
	ask()
	hold(queues, "")
	ask()
}
