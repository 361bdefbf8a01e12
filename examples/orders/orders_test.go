package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// TestMain makes this binary the command for the processes that a trial starts.
func TestMain(m *testing.M) {
	if os.Getenv(childMark) != "" {
		main()
		return
	}
	os.Exit(m.Run())
}

// TestTrial: processes are killed while orders are placed and booked, and the ledger is whole.
func TestTrial(t *testing.T) {
	trial := trial{orders: 400, customers: 40, kills: 4, lease: time.Second, log: io.Discard}
	r, err := trial.run(t.Context())
	require.NoError(t, err)
	require.NoError(t, r.err())
	require.Equal(t, verdict{Orders: 400}, r.verdict)
	require.Equal(t, 4, r.Killed)
	var fields map[string]any
	text, err := json.Marshal(r)
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &fields))
	for _, name := range []string{"orders", "missing", "doubled", "out_of_order", "killed"} {
		require.Contains(t, fields, name)
	}
}

// TestDeploy: processes are stopped in good order and restarted while orders are placed and booked. No order fails, and
// none waits for a lease to expire.
func TestDeploy(t *testing.T) {
	trial := trial{orders: 400, customers: 40, restarts: 6, lease: time.Hour, log: io.Discard}
	r, err := trial.run(t.Context())
	require.NoError(t, err)
	require.Equal(t, verdict{Orders: 400}, r.verdict)
}

// open opens a shop in memory.
func open(t *testing.T) *process {
	p := &process{db: embedded.OpenMemory(embedded.Options{}), lease: leaseTime, stdout: io.Discard}
	var err error
	p.shop, err = openShop(t.Context(), p.db)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, p.shop.queue.Close(context.Background()))
		require.NoError(t, p.db.Close())
	})
	return p
}

// ask sends a request and returns the answer's status and text.
func ask(t *testing.T, h http.Handler, method, path, body string) (int, string) {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body)))
	return w.Code, strings.TrimSpace(w.Body.String())
}

// bookAll books what is in the queue, and stops at what fails.
func bookAll(t *testing.T, p *process) {
	for {
		claims, err := p.shop.queue.Receive(t.Context(), layer.ReceiveOptions{Max: 1})
		require.NoError(t, err)
		if len(claims) == 0 {
			return
		}
		c := claims[0]
		var rejected *worker.RejectError
		err = p.shop.queue.Once(t.Context(), func(tx kv.Tx) error {
			if err := p.shop.queue.AckTx(t.Context(), tx, c); err != nil {
				return err
			}
			return p.shop.book(t.Context(), tx, &worker.Delivery{Item: c.Items[0]})
		})
		if errors.As(err, &rejected) {
			err = p.shop.queue.Nack(t.Context(), c, layer.NackOptions{Reject: rejected.Reason})
		}
		require.NoError(t, err)
	}
}

// TestAPI: what each request is answered, from an order to the operator's hand.
func TestAPI(t *testing.T) {
	p := open(t)
	h := p.routes()
	const pears = `{"id":"1","customer":"a","article":"pears","cents":5}`
	long := strings.Repeat("x", 300)
	for _, c := range []struct {
		name, method, path, body string
		status                   int
		want                     string // a part of the answer
	}{
		{"accepted", "POST", "/orders", pears, 201, `"status":"accepted"`},
		{"sent again", "POST", "/orders", pears, 200, `"place":1`},
		{"another's id", "POST", "/orders", strings.Replace(pears, "a", "b", 1), 409, "another order"},
		{"no JSON", "POST", "/orders", `{`, 400, "no order"},
		{"too large", "POST", "/orders", `{"id":"` + strings.Repeat("x", maxOrder) + `"}`, 400, "too large"},
		{"no customer", "POST", "/orders", strings.Replace(pears, `"a"`, `""`, 1), 400, "customer"},
		{"for nothing", "POST", "/orders", strings.Replace(pears, "5", "0", 1), 400, "cents"},
		{"status given", "POST", "/orders", pears[:len(pears)-1] + `,"status":"booked"}`, 400, ""},
		{"long id", "POST", "/orders", strings.Replace(pears, "1", long, 1), 400, "dedup id"},
		{"read", "GET", "/orders/1", "", 200, `"accepted"`},
		{"unknown", "GET", "/orders/2", "", 404, "no such order"},
		{"no ledger yet", "GET", "/customers/a/ledger", "", 200, "[]"},
		{"not sold", "POST", "/orders", `{"id":"3","customer":"a","article":"moon","cents":9}`, 201, ""},
		{"behind it", "POST", "/orders", `{"id":"4","customer":"a","article":"plums","cents":2}`, 201, `"place":3`},
	} {
		status, answer := ask(t, h, c.method, c.path, c.body)
		require.Equal(t, c.status, status, "%s: %s", c.name, answer)
		require.Contains(t, answer, c.want, c.name)
	}
	bookAll(t, p)
	_, answer := ask(t, h, "GET", "/customers/a/ledger", "")
	require.JSONEq(t, `[
		{"order":"1","place":1,"cents":5,"balance":5},
		{"order":"4","place":3,"cents":2,"balance":7}
	]`, answer)
	_, answer = ask(t, h, "GET", "/orders/4", "")
	require.Contains(t, answer, `"booked"`)
	_, answer = ask(t, h, "GET", "/admin/dead", "")
	require.Contains(t, answer, `"reason":"\"moon\" is not sold"`)
	status, answer := ask(t, h, "GET", "/metrics", "")
	require.Equal(t, 200, status)
	require.Contains(t, answer, "# TYPE orders_dead gauge\norders_dead 1\n")

	// The moon is sold after all: an operator sends the dead letter back.
	catalog["moon"] = true
	defer delete(catalog, "moon")
	_, answer = ask(t, h, "POST", "/admin/redrive", `{"text":"not sold"}`)
	require.Contains(t, answer, `"Done":1`)
	bookAll(t, p)
	_, answer = ask(t, h, "GET", "/orders/3", "")
	require.Contains(t, answer, `"booked"`)
	l, err := p.shop.audit(t.Context())
	require.NoError(t, err)
	require.Equal(t, verdict{Orders: 3, OutOfOrder: 1}, l.prove(nil), "a redriven order is booked behind later ones")

	status, _ = ask(t, h, "POST", "/admin/pause", `{"by":"me","reason":"stock-taking"}`)
	require.Equal(t, 200, status)
	_, answer = ask(t, h, "GET", "/admin/stats", "")
	require.Contains(t, answer, "stock-taking")
	status, _ = ask(t, h, "POST", "/admin/resume", "")
	require.Equal(t, 200, status)
	status, _ = ask(t, h, "POST", "/admin/resume", "")
	require.Equal(t, 404, status)
	status, answer = ask(t, h, "GET", "/healthz", "")
	require.Equal(t, 200, status)
	require.Contains(t, answer, `"serving":true`)

	report, err := p.shop.queue.Admin().Check(t.Context(), layer.CheckOptions{})
	require.NoError(t, err)
	require.Empty(t, report.Violations)
}

// TestDeadWorker, in virtual time: a worker dies with an order in flight. Another books that order when the lease has
// ended, and the customer's next order behind that one. Half a minute passes in no time.
func TestDeadWorker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := open(t)
		for _, id := range []string{"1", "2"} {
			_, _, err := p.shop.place(t.Context(), order{ID: id, Customer: "a", Article: "apples", Cents: 1})
			require.NoError(t, err)
		}
		begun := time.Now()
		// A claim of which nothing more is heard.
		claims, err := p.shop.queue.Receive(t.Context(), layer.ReceiveOptions{Max: 1})
		require.NoError(t, err)
		require.Len(t, claims, 1)

		w, err := p.newWorker()
		require.NoError(t, err)
		w.Start()
		time.Sleep(leaseTime - time.Second)
		l, err := p.shop.audit(t.Context())
		require.NoError(t, err)
		require.Empty(t, l.entries)
		time.Sleep(5 * time.Second)
		l, err = p.shop.audit(t.Context())
		require.NoError(t, err)
		require.Equal(t, verdict{Orders: 2}, l.prove([]string{"1", "2"}))
		require.Len(t, l.entries["a"], 2)
		require.Equal(t, leaseTime+4*time.Second, time.Since(begun))
		require.NoError(t, w.Stop(t.Context()))
	})
}

// A canary: the proof must fail on each kind of broken promise.
func TestProve(t *testing.T) {
	sound := func() ledger {
		return ledger{
			orders: map[string]order{
				"1": {ID: "1", Customer: "a"}, "2": {ID: "2", Customer: "a"}, "3": {ID: "3", Customer: "b"},
				"4": {ID: "4", Customer: "b"}, "5": {ID: "5", Customer: "b"},
			},
			entries: map[string][]entry{
				"a": {{"1", 1, 5, 5}, {"2", 2, 6, 11}}, "b": {{"3", 1, 7, 7}},
			},
			waiting: 1, dead: 1,
		}
	}
	told := []string{"1", "2", "3", "4", "5"}
	require.Equal(t, verdict{Orders: 5}, sound().prove(told))
	require.NoError(t, sound().prove(told).err())
	for name, c := range map[string]struct {
		breakIt func(l *ledger)
		want    verdict
	}{
		"order lost": {
			func(l *ledger) { delete(l.orders, "4"); l.waiting = 0 },
			verdict{Orders: 4, Missing: 1},
		},
		"message lost": {
			func(l *ledger) { l.waiting = 0 },
			verdict{Orders: 5, Missing: 1},
		},
		"booked twice": {
			func(l *ledger) { l.entries["b"] = append(l.entries["b"], entry{"3", 1, 1, 8}) },
			verdict{Orders: 5, Doubled: 1},
		},
		"booked by another": {
			func(l *ledger) { l.entries["a"][1].Order = "3" },
			verdict{Orders: 5, Missing: 1, Doubled: 1},
		},
		"no such order": {
			func(l *ledger) { l.entries["c"] = []entry{{"9", 1, 1, 1}} },
			verdict{Orders: 5, Doubled: 1},
		},
		"out of order": {
			func(l *ledger) { l.entries["a"][0].Place = 3 },
			verdict{Orders: 5, OutOfOrder: 1},
		},
		"wrong balance": {
			func(l *ledger) { l.entries["a"][1].Balance = 10 },
			verdict{Orders: 5, OutOfOrder: 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			l := sound()
			c.breakIt(&l)
			v := l.prove(told)
			require.Equal(t, c.want, v)
			require.Error(t, v.err())
		})
	}
}

// TestOtherSites: a web page of another site, open in a browser on this machine, can neither pause the queue nor read
// what is in it. The page may have a name of its own for 127.0.0.1. Everything else on this machine can.
func TestOtherSites(t *testing.T) {
	p := open(t)
	loopback := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 8080}
	local := context.WithValue(t.Context(), http.LocalAddrContextKey, loopback)
	status := func(method, path, host string, header http.Header) int {
		r := httptest.NewRequestWithContext(local, method, path, strings.NewReader("{}"))
		r.Host, r.Header = host, header
		w := httptest.NewRecorder()
		p.routes().ServeHTTP(w, r)
		return w.Code
	}
	const own = "127.0.0.1:8080"
	require.Equal(t, 403, status("POST", "/admin/pause", own, http.Header{"Sec-Fetch-Site": {"cross-site"}}))
	require.Equal(t, 403, status("POST", "/admin/pause", own, http.Header{"Origin": {"https://evil.example"}}))
	rebound := http.Header{"Sec-Fetch-Site": {"same-origin"}}
	require.Equal(t, 403, status("GET", "/admin/dead", "evil.example:8080", rebound))
	_, paused, err := p.shop.queue.Admin().Paused(t.Context())
	require.NoError(t, err)
	require.False(t, paused)
	for _, host := range []string{own, "localhost:8080", "localhost", "[::1]:8080", "[::1]"} {
		require.Equal(t, 200, status("GET", "/admin/dead", host, http.Header{}), host)
	}
	require.Equal(t, 200, status("POST", "/admin/pause", own, http.Header{}))
}

// TestCommands: what a user mistypes is said; verify prints the ledger's figures.
func TestCommands(t *testing.T) {
	folder := t.TempDir()
	for _, args := range [][]string{
		{"sell"}, {"api"}, {"run", "-kils", "3"}, {"-kils"}, {"sell", "-folder", folder},
		{"run", "-customers", "0"},
	} {
		require.Error(t, command(t.Context(), args, nil, io.Discard, io.Discard), args)
	}
	var out bytes.Buffer
	require.NoError(t, command(t.Context(), []string{"verify", "-folder", t.TempDir()}, nil, &out, io.Discard))
	require.Equal(t, "0 orders, 0 waiting, 0 dead, 0 missing, 0 doubled, 0 out of order\n", out.String())
}
