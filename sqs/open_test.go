package sqs

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// addressed is a listener on the loopback that says it listens at another address.
type addressed struct {
	net.Listener
	at net.Addr
}

func (a addressed) Addr() net.Addr { return a.at }

func tcp(ip string) net.Addr { return &net.TCPAddr{IP: net.ParseIP(ip), Port: 9324} }

// TestNoKeysIsNotOpen: a server without keys serves only this machine, unless the program says Open. So an empty map of
// keys, for example of a file that was not read, never lets every client of a network in.
func TestNoKeysIsNotOpen(t *testing.T) {
	t.Parallel()
	keys := map[string]Key{"AKIDEXAMPLE": {Secret: "secret"}}
	for _, test := range []struct {
		o      Options
		at     net.Addr
		refuse string
	}{
		{Options{}, tcp("127.0.0.1"), ""},
		{Options{}, tcp("127.9.9.9"), ""},
		{Options{}, tcp("::1"), ""},
		{Options{}, &net.UnixAddr{Net: "unix", Name: "/run/sqs"}, ""},
		{Options{}, tcp("0.0.0.0"), "Open"},
		{Options{}, tcp("::"), "Open"},
		{Options{}, tcp("192.168.0.1"), "Open"},
		{Options{}, &net.TCPAddr{Port: 9324}, "Open"},
		{Options{URL: "https://sqs.example.com"}, tcp("0.0.0.0"), "Open"},
		{Options{Keys: map[string]Key{}}, tcp("0.0.0.0"), ""}, // refuses every request
		{Options{Keys: keys}, tcp("0.0.0.0"), ""},
		{Options{Open: true}, tcp("0.0.0.0"), ""},
		{Options{Open: true, Keys: keys}, tcp("127.0.0.1"), "Keys"},
	} {
		bubble(t, test.o, func(e *env) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(e, err)
			ctx, cancel := context.WithCancel(e.Context())
			cancel() // a server that serves ends at once
			err = e.s.Serve(ctx, addressed{l, test.at}, 0)
			if test.refuse == "" {
				require.NoError(e, err, "%+v at %s", test.o, test.at)
			} else {
				require.ErrorContains(e, err, test.refuse, "%+v at %s", test.o, test.at)
			}
			_, err = l.Accept()
			require.ErrorIs(e, err, net.ErrClosed)
		})
	}
}

// slowListener takes a second to close.
type slowListener struct {
	addressed
	closed *atomic.Bool
}

func (l slowListener) Close() error {
	time.Sleep(time.Second)
	defer l.closed.Store(true)
	return l.addressed.Close()
}

// TestServeClosesItsListener: when Serve returns, l is closed, also if the context has ended before the server began.
func TestServeClosesItsListener(t *testing.T) {
	t.Parallel()
	for range 20 { // the server begins in a goroutine of its own
		bubble(t, Options{}, func(e *env) {
			l, err := net.Listen("tcp", "127.0.0.1:0")
			require.NoError(e, err)
			ctx, cancel := context.WithCancel(e.Context())
			cancel()
			var closed atomic.Bool
			require.NoError(e, e.s.Serve(ctx, slowListener{addressed{l, tcp("127.0.0.1")}, &closed}, 0))
			require.True(e, closed.Load())
		})
	}
}

// TestServeEndsItsCalls: when Serve returns, no call is under way, also none that has outlasted the ten seconds of the
// end because the database keeps it waiting.
func TestServeEndsItsCalls(t *testing.T) {
	t.Parallel()
	var hangs atomic.Bool
	var tried atomic.Int64
	fails := func(call string) error {
		if !hangs.Load() || call != string(layer.VerbEnqueue) {
			return nil
		}
		tried.Add(1)
		return &kv.Error{Code: kv.CodeProcessBehind}
	}
	open := func(t *testing.T) kv.DB { return failingDB{DB: inMemory(t), fails: fails} }
	bubbleOn(t, open, Options{Keys: frontKeys}, func(e *env) {
		status, _, body := e.do(signAll(post("CreateQueue", object{"QueueName": "jobs"})))
		require.Equal(e, http.StatusOK, status, body)
		f := &front{env: e, net: &pipes{conns: make(chan net.Conn)}}
		f.net.closed, f.net.close = context.WithCancel(context.Background())
		ctx, stop := context.WithCancel(e.Context())
		done := make(chan error, 1)
		go func() { done <- e.s.Serve(ctx, f.net, 0) }()
		c, ok := f.dial("192.0.2.1:1", time.Minute)
		require.True(e, ok)
		defer c.Close()
		hangs.Store(true)
		go func() { _ = signAll(post("SendMessage", object{"QueueUrl": "jobs", "MessageBody": "b"})).Write(c) }()
		time.Sleep(time.Second)
		require.Positive(e, tried.Load())
		stop()
		err := <-done
		before := tried.Load()
		time.Sleep(time.Minute)
		require.Equal(e, before, tried.Load(), "attempts of the call")
		require.NoError(e, err)
	})
}

// TestNoKeysInAnotherServer: the rule also holds for a handler in an HTTP server of the program.
func TestNoKeysInAnotherServer(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		open bool
		at   net.Addr
		want int
	}{
		{false, tcp("127.0.0.1"), http.StatusOK}, {false, tcp("192.168.0.1"), http.StatusForbidden},
		{false, tcp("2001:db8::1"), http.StatusForbidden}, {true, tcp("192.168.0.1"), http.StatusOK},
		{false, &net.UnixAddr{Net: "unix", Name: "@"}, http.StatusOK}, {false, nil, http.StatusOK},
	} {
		bubble(t, Options{Open: test.open}, func(e *env) {
			r := httptest.NewRequest(http.MethodPost, "http://localhost/", strings.NewReader("Action=ListQueues"))
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			ctx := e.Context()
			if test.at != nil {
				ctx = context.WithValue(ctx, http.LocalAddrContextKey, test.at)
			}
			w := httptest.NewRecorder()
			e.s.ServeHTTP(w, r.WithContext(ctx))
			require.Equal(e, test.want, w.Code, "%v: %s", test.at, w.Body)
		})
	}
}
