package console

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
)

// pipes is a listener whose connections have no buffer: what a client does not read the server cannot write.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func newPipes() *pipes { return &pipes{conns: make(chan net.Conn), closed: make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}

func (p *pipes) Close() error   { close(p.closed); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1} }

func (p *pipes) dial() net.Conn {
	client, server := net.Pipe()
	p.conns <- server
	return client
}

func request(t *testing.T, c net.Conn, target string) {
	t.Helper()
	_, err := fmt.Fprintf(c, "GET %s HTTP/1.1\r\nHost: localhost\r\n\r\n", target)
	require.NoError(t, err)
}

// TestSlowClients: the console gives up a client that asks for a page, or for its events, and does not read the answer.
// The time is bounded, and other clients get their pages and act in that time. The test runs in virtual time.
func TestSlowClients(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := embedded.OpenMemory(embedded.Options{})
		defer func() { require.NoError(t, db.Close()) }()
		q, err := layer.Create(t.Context(), db, nil, "orders", layer.Options{})
		require.NoError(t, err)
		defer func() { require.NoError(t, q.Close(context.Background())) }()
		sent, err := q.Enqueue(t.Context(), layer.Message{Group: "A", Body: []byte(strings.Repeat("x", 50<<10))})
		require.NoError(t, err)
		c, err := New(Options{DB: db, Open: true, Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		l := newPipes()
		server := &http.Server{Handler: c, ErrorLog: slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)}
		ended := make(chan error, 1)
		go func() { ended <- server.Serve(l) }()
		defer func() {
			require.NoError(t, server.Close())
			<-ended
			require.NoError(t, c.Close(context.Background()))
		}()
		var slow []net.Conn
		for range 20 {
			stream := l.dial()
			request(t, stream, "/events?page=/queue&q=orders")
			page := l.dial()
			request(t, page, "/"+link("message", "q", "orders", "id", sent[0].ID.String(), "body", "1"))
			slow = append(slow, stream, page)
		}
		synctest.Wait()
		require.EqualValues(t, 20, c.streams.Load())

		fast := l.dial()
		begun := time.Now()
		request(t, fast, "/queue?q=orders")
		answer, err := http.ReadResponse(bufio.NewReader(fast), nil)
		require.NoError(t, err)
		body, err := io.ReadAll(answer.Body)
		require.NoError(t, err)
		require.NoError(t, answer.Body.Close())
		require.Contains(t, string(body), "ready groups")
		require.Zero(t, time.Since(begun), "nobody waits for who is slow")
		require.NoError(t, fast.Close())

		time.Sleep(sendTimeout + time.Second)
		synctest.Wait()
		require.Zero(t, c.streams.Load(), "the streams have ended")
		time.Sleep(actTimeout)
		synctest.Wait()
		for _, s := range slow {
			_, err := io.Copy(io.Discard, s) // what was on its way, and then the end
			require.NoError(t, err)
			require.NoError(t, s.Close())
		}
	})
}

// TestOldLogin: the console was restarted since. It refuses the cookie and the links of before with words that help,
// and does nothing. A page whose stream has ended gets the reason.
func TestOldLogin(t *testing.T) {
	s := newSite(t, func(o *Options) { o.Token = NewToken() })
	s.enqueue("A", "a1")
	left := "/" + place(NewToken())
	old := func(r *http.Request) { r.AddCookie(&http.Cookie{Name: cookieName(r), Value: NewToken()}) }
	r, body := s.ask("GET", left+"/queue?q=orders", nil, old)
	require.Equal(t, http.StatusUnauthorized, r.StatusCode)
	require.Contains(t, body, "the console was started again")
	r, _ = s.ask("GET", left+"/assets/style.css", nil, old)
	require.Equal(t, http.StatusOK, r.StatusCode, "the words are a page")
	r, body = s.ask("POST", left+"/do", url.Values{"verb": {"pause"}, "q": {"orders"}, "g": {"A"}}, old)
	require.Equal(t, http.StatusUnauthorized, r.StatusCode)
	require.Contains(t, body, "nothing was done")
	r, body = s.ask("GET", LoginPath(NewToken()), nil, nil)
	require.Equal(t, http.StatusUnauthorized, r.StatusCode)
	require.Contains(t, body, "this link is not valid any more")
	r, _ = s.ask("HEAD", left+"/events?page=/queue&q=orders", nil, old)
	require.Equal(t, http.StatusUnauthorized, r.StatusCode)
	g, err := s.q.Admin().Group(t.Context(), "A", nil)
	require.NoError(t, err)
	require.Equal(t, layer.Ready, g.Status)
	require.Empty(t, s.c.audit.latest())
}

// TestWhyNoStream: HEAD says whether a page may have a stream, and opens none.
func TestWhyNoStream(t *testing.T) {
	s := newSite(t, func(o *Options) { o.MaxStreams = 1 })
	r, _ := s.ask("HEAD", "/events?page=/queue&q=orders", nil, nil)
	require.Equal(t, http.StatusOK, r.StatusCode)
	s.c.streams.Add(1)
	defer s.c.streams.Add(-1)
	r, _ = s.ask("HEAD", "/events?page=/queue&q=orders", nil, nil)
	require.Equal(t, http.StatusServiceUnavailable, r.StatusCode)
}

// TestRolesAndVerbs: a user who may not act is refused every verb, over both ways, before anything is read. A read-only
// console refuses every user.
func TestRolesAndVerbs(t *testing.T) {
	role := Nobody
	s := newSite(t, func(o *Options) { o.Role = func(*http.Request) (Role, string) { return role, "ann" } })
	s.enqueue("A", "a1")
	s.rec.Take()
	for _, c := range []struct {
		role     Role
		readOnly bool
		want     int
	}{{Nobody, false, 401}, {Viewer, false, 403}, {Operator, true, 403}} {
		role, s.c.o.ReadOnly = c.role, c.readOnly
		for _, verb := range slices.Sorted(maps.Keys(verbs)) {
			r, body := s.post(url.Values{"verb": {verb}, "q": {"orders"}, "g": {"A"}, "all": {"1"}})
			require.Equal(t, c.want, r.StatusCode, "%s: %s", verb, body)
			r, body = s.ask("POST", "/api/v1/do", nil, func(r *http.Request) {
				r.Body = io.NopCloser(strings.NewReader(fmt.Sprintf(`{"queue":"orders","verb":%q,"group":"A"}`, verb)))
			})
			require.Equal(t, c.want, r.StatusCode, "%s: %s", verb, body)
		}
	}
	require.Empty(t, s.rec.Take())
	require.Empty(t, s.c.audit.latest())
}

// TestRetryAlike: groups that have failed with the same error are retried together, and no others; a second click says
// that there are none any more.
func TestRetryAlike(t *testing.T) {
	s := newSite(t, nil)
	for i, e := range []string{"the bank", "the bank", "the bank", "another"} {
		g := fmt.Sprintf("G%d", i)
		s.enqueue(g, "1")
		err := s.q.Nack(t.Context(), s.claim(g), layer.NackOptions{Delay: time.Hour, Err: errors.New(e)})
		require.NoError(t, err)
	}
	page := s.get("/blocked?q=orders")
	require.Contains(t, page, "3 of the groups below have failed with: the bank")
	require.NotContains(t, page, "have failed with: another")
	form := s.button("/blocked?q=orders", "Retry all of these")
	require.Contains(t, s.get("/confirm?"+form.Encode()), "3 groups would be retried now, all after: the bank")
	s.press("/blocked?q=orders", "Retry all of these", http.StatusSeeOther)
	for i := range 4 {
		g, err := s.q.Admin().Group(t.Context(), fmt.Sprintf("G%d", i), nil)
		require.NoError(t, err)
		require.Equal(t, i < 3, g.Status == layer.Ready, "%+v", g)
	}
	r, _ := s.post(form)
	require.Equal(t, http.StatusConflict, r.StatusCode)
	r, _ = s.post(url.Values{"verb": {"retry-alike"}, "q": {"orders"}})
	require.Equal(t, http.StatusBadRequest, r.StatusCode)
}

// TestAdvice: what no button does is said, with a command or a page.
func TestAdvice(t *testing.T) {
	now := time.Now()
	s := newSite(t, func(o *Options) { o.Now = func() time.Time { return now } })
	s.enqueue("A", "1")
	page := s.get("/group?q=orders&g=A")
	require.Contains(t, page, "No worker waits for a group")
	require.Contains(t, page, "<code>fdbfifo work --queue orders --exec COMMAND</code>")
	_, err := s.q.Enqueue(t.Context(), layer.Message{Group: "B", Delay: time.Hour})
	require.NoError(t, err)
	page = s.get("/group?q=orders&g=B")
	require.Contains(t, page, "It waits by design: the message was enqueued with a delay.")
	require.Contains(t, page, ">Deliver now</button>")
	group := layer.GroupInfo{Owner: "web-1:12:a0f3"}
	for cause, want := range map[layer.Cause]string{
		layer.CauseGroupHeld: "Look at process 12 of host web-1 first", layer.CauseGranted: "nothing to do",
		layer.CauseUnreachable: "fault of fdbfifo", layer.CauseCorrupt: "checked", layer.CauseTurn: "round_robin",
		layer.CauseLeaseExpired: "start one", layer.CauseRateLimited: "rate of the group",
		layer.CauseQueueRateLimited: "rate of the queue",
	} {
		all := advices("the queue", group, []layer.Reason{{Cause: cause}, {Cause: cause}})
		require.Len(t, all, 1, cause)
		require.Contains(t, all[0].Text, want)
		require.NotContains(t, all[0].Command, "the queue")
	}
}

// paused is a database that calls pause before each transaction.
type paused struct {
	kv.DB
	pause func()
}

func (d paused) Begin(o kv.TxOptions) (tx kv.ManagedTx, err error) {
	d.pause()
	return d.DB.Begin(o)
}

// TestManyQueues: the first page reads the figures of its queues at the same time. The names of the queues may take
// longer than the reads of a page, because each is found behind the one before.
func TestManyQueues(t *testing.T) {
	for lag, read := range map[time.Duration]bool{100 * time.Millisecond: true, 5 * time.Second: false} {
		synctest.Test(t, func(t *testing.T) {
			db := embedded.OpenMemory(embedded.Options{})
			defer db.Close()
			for i := range shownQueues + 1 {
				q, err := layer.Create(t.Context(), db, nil, fmt.Sprintf("queue-%02d", i), layer.Options{})
				require.NoError(t, err)
				require.NoError(t, q.Close(t.Context()))
			}
			slow := paused{db, func() { time.Sleep(lag) }}
			c, err := New(Options{DB: slow, Open: true, Logger: slog.New(slog.DiscardHandler)})
			require.NoError(t, err)
			defer c.Close(t.Context())
			begun := time.Now()
			page, err := c.queuesPage(t.Context(), input{})
			require.NoError(t, err)
			require.Less(t, time.Since(begun), 5*lag)
			d := page.(queuesData)
			require.Equal(t, []string{"queue-50"}, d.More)
			require.Len(t, d.Queues, shownQueues)
			for i, row := range d.Queues {
				require.Equal(t, fmt.Sprintf("queue-%02d", i), row.Name)
				require.Equal(t, read, row.Err == "", row.Err)
			}
		})
	}
}

// TestPartOfAnAction: an action that has no time for all of its work says how much it has done, and how to go on. A
// replay must not be repeated from the beginning: that would enqueue the same messages once more.
func TestPartOfAnAction(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db := embedded.OpenMemory(embedded.Options{})
		defer db.Close()
		const n = 900
		q, err := layer.Create(t.Context(), db, nil, "orders", layer.Options{Config: layer.Config{Archive: time.Hour}})
		require.NoError(t, err)
		for range n {
			_, err = q.Enqueue(t.Context(), layer.Message{Group: "g"})
			require.NoError(t, err)
		}
		for range n {
			_, err = q.Admin().Skip(t.Context(), "g", layer.SkipOptions{})
			require.NoError(t, err)
		}
		for range n {
			_, err = q.Enqueue(t.Context(), layer.Message{Group: "h"})
			require.NoError(t, err)
		}
		for acked := 0; acked < n; {
			claims, err := q.Receive(t.Context(), layer.ReceiveOptions{MaxGroups: 1})
			require.NoError(t, err)
			acked += len(claims[0].Items)
			require.NoError(t, q.Ack(t.Context(), claims[0]))
		}
		pause := 7 * time.Second
		c, err := New(Options{
			DB: paused{db, func() { time.Sleep(pause) }}, Open: true, Logger: slog.New(slog.DiscardHandler),
		})
		require.NoError(t, err)
		for verb, goOn := range map[string]string{
			"discard": "repeat the action to go on", "replay": "the page Actions has a link to go on",
		} {
			in := url.Values{"verb": {verb}, "q": {"orders"}, "all": {"1"}, "once": {c.numbers.issue()}}
			a, err := c.act(t.Context(), identity{role: Operator}, in)
			require.Error(t, err, verb)
			require.Regexp(t, `^[1-9]\d* .*, then: an action may take 30s; `+goOn, a.Result, verb)
			require.Equal(t, a.Result, text(err))
		}
		synctest.Wait() // nothing of the console runs
		pause = 0
		report, err := q.Admin().Check(t.Context(), layer.CheckOptions{})
		require.NoError(t, err)
		require.Empty(t, report.Violations)
		require.NoError(t, c.Close(t.Context()))
		require.NoError(t, q.Close(t.Context()))
	})
}
