package sqs

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"

	"fdbfifo/internal/callback"
	"fdbfifo/internal/hosts"
	"fdbfifo/kv"
	"fdbfifo/layer"
)

const (
	// freshFor is how long a server uses a queue's record before it reads the record again.
	freshFor = time.Second
	// idleFor is how long a queue stays open without a request that uses it.
	idleFor = 5 * time.Minute
	// tidyEvery is how often the server looks for leftovers of other servers: deleted queues, and tasks.
	tidyEvery = 10 * time.Second
	// nameFreeAfter is how long the name of a deleted queue cannot be used again.
	nameFreeAfter = time.Minute
)

// Options configure a server. The zero value serves every client on this machine without authentication, under AWS's
// placeholder account.
type Options struct {
	// Prefix is where the queues are, as for layer.Create. The server keeps a copy.
	Prefix []byte
	// Keys are the secret keys of the clients, by their access keys. nil = requests are not authenticated; see Open.
	// An empty map refuses every request. The server keeps a copy.
	//
	// A server without keys refuses the requests of web pages. A Host header that is neither localhost, nor an address
	// of the loopback, nor the host of URL gets status 421. A GET that changes anything, without a signature in its
	// Authorization header, gets 405.
	Keys map[string]Key
	// Open lets a server without Keys serve other machines, for example behind TLS with certificates of the clients.
	// Without Open and Keys, Serve refuses a listener that is neither on the loopback nor a Unix socket, and a request
	// that came by such a listener of another HTTP server gets status 403. Serve refuses Open together with Keys.
	Open bool
	// Region and Account are named in ARNs and URLs. "" = us-east-1 and 000000000000.
	Region, Account string
	// URL is the beginning of the queues' URLs, such as https://sqs.example.com. "" = scheme and host as each client
	// has used them.
	URL string
	// ReuseNames lets a queue be made at once under the name of a queue that was deleted, instead of after a minute.
	ReuseNames bool
	// VisibilityPerClaim gives new FIFO queues one visibility timeout for all messages of a group that a receive has
	// taken. Otherwise each message has its own, as in AWS. The attribute fdbfifo.Visibility overrides it. Existing
	// queues stay as they are.
	VisibilityPerClaim bool
	// Now is the clock. nil = time.Now.
	Now func() time.Time
	// Logger gets each request at the level debug, and each failure. It never gets bodies. nil = no log.
	Logger *slog.Logger
}

// Server answers the requests of SQS's clients. It is safe for concurrent use.
type Server struct {
	db      kv.DB
	options Options
	id      string // of this server among those of the database
	host    string // the name in Options.URL
	root    string // the path in Options.URL, without a slash at its end
	memory  memory // of the bodies of requests
	answers memory // of the answers
	stopped context.Context
	stop    context.CancelFunc
	work    sync.WaitGroup             // goroutines of the server's own
	closed  context.Context            // ends the calls
	close   context.CancelFunc         // of closed
	calls   sync.WaitGroup             // those under way
	signs   atomic.Pointer[receiptKey] // nil = not read yet
	// troubles says to the log that the database keeps the server waiting.
	troubles kv.Troubles

	changes atomic.Int64 // of records by this server: the calls of outdate

	mu     sync.Mutex
	queues map[string]*opened // guarded by mu
	told   map[string]string  // by isNews; guarded by mu
	// closing has the forgotten queues whose handles are being closed. Their channels are closed after the handles;
	// guarded by mu.
	closing map[*opened]chan struct{}
	// working has the ids of the move tasks and purges that this server runs; guarded by mu.
	working map[string]bool
}

// NewServer makes a server of the queues in db, and starts its background work. The caller must Close it before it
// closes db.
func NewServer(db kv.DB, o Options) *Server {
	if o.Region == "" {
		o.Region = "us-east-1"
	}
	if o.Account == "" {
		o.Account = "000000000000"
	}
	if o.Now == nil {
		o.Now = time.Now
	} else {
		o.Now = callback.Clock(o.Now)
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	o.Logger = callback.Logger(o.Logger, callback.Shield(callback.LogPatience), func(err error) {
		callback.Report("sqs: the log has panicked", err)
	})
	o.Prefix, o.Keys = bytes.Clone(o.Prefix), maps.Clone(o.Keys)
	s := &Server{
		db: db, options: o, id: uuid.NewString(),
		memory:  memory{most: bodyMemory, taken: make(map[string]int64)},
		answers: memory{most: answerMemory, taken: make(map[string]int64)},
		queues:  make(map[string]*opened), working: make(map[string]bool),
		told: make(map[string]string), closing: make(map[*opened]chan struct{}),
	}
	if u, err := url.Parse(o.URL); err == nil {
		s.host, s.root = hosts.Name(u.Host), strings.TrimRight(u.Path, "/")
	}
	s.troubles.Say = s.sayTrouble
	s.stopped, s.stop = context.WithCancel(kv.WithTrouble(context.Background(), s.troubles.Note))
	s.closed, s.close = context.WithCancel(context.Background())
	s.every(tidyEvery, s.tidy)
	s.every(deadEvery, s.moveAllDead)
	s.every(sweepEvery, s.sweep)
	return s
}

// every calls do at once, and again after each pause, until the server is stopped. The log has an error that comes
// again once in tellEvery.
func (s *Server) every(pause time.Duration, do func(ctx context.Context) error) {
	s.begin(func() {
		var last lastTold
		for s.stopped.Err() == nil {
			if err := do(s.stopped); err != nil && s.stopped.Err() == nil && last.isNews(err) {
				s.options.Logger.Warn("sqs: background work has failed, the server tries again", "err", err)
			}
			select {
			case <-time.After(pause):
			case <-s.stopped.Done():
			}
		}
	})
}

// lastTold is the last error of background work in the log.
type lastTold struct {
	text string
	at   time.Time
}

// isNews reports whether the log must have an error: it is another one than the last, or tellEvery has passed.
func (t *lastTold) isNews(err error) bool {
	if err.Error() == t.text && time.Since(t.at) < tellEvery {
		return false
	}
	t.text, t.at = err.Error(), time.Now()
	return true
}

// sayTrouble says to the log that the database keeps the server waiting, or that it answers again.
func (s *Server) sayTrouble(t kv.Trouble) {
	if t.Over {
		s.options.Logger.Info("sqs: the database answers again", "call", t.Call, "since", t.Since)
		return
	}
	s.options.Logger.Warn("sqs: the database keeps a transaction waiting", "call", t.Call, "since", t.Since,
		"attempts", t.Attempts, "err", t.Err, "remedy", "look at the database: its processes, its disk and the network")
}

// queueOptions returns the options of the server's handles.
func (s *Server) queueOptions() layer.Options {
	return layer.Options{Now: s.options.Now, Poll: lostWakeAfter, Tx: kv.TxOptions{OnTrouble: s.troubles.Note}}
}

// begin runs fn in a goroutine that Close waits for; not after Stop.
func (s *Server) begin(fn func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.stopped.Err() == nil {
		s.work.Go(fn)
	}
}

// alone runs fn in a goroutine of the server's own, unless the fn of the id runs already.
func (s *Server) alone(id string, fn func()) {
	s.mu.Lock()
	if s.working[id] {
		s.mu.Unlock()
		return
	}
	s.working[id] = true
	s.mu.Unlock()
	s.begin(func() {
		defer func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.working, id)
		}()
		fn()
	})
}

// Stop makes waiting receives return without messages, and ends the background work. Requests are answered as before.
// The caller must still Close the server.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.stop()
}

// Close stops the server and closes the queues that it has open. The caller must wait until all requests have been
// answered before it calls Close, which ends those that have not. If the database does not answer, Close returns after
// a few seconds, with an error.
func (s *Server) Close(ctx context.Context) error {
	s.Stop()
	s.mu.Lock()
	s.close()
	s.mu.Unlock()
	s.work.Wait()
	ended := make(chan struct{})
	go func() {
		s.calls.Wait()
		close(ended)
	}()
	select {
	case <-ended:
	case <-ctx.Done(): // a call hangs in the engine, which no context ends
	}
	s.mu.Lock()
	open, forgotten := slices.Collect(maps.Values(s.queues)), slices.Collect(maps.Values(s.closing))
	clear(s.queues)
	s.mu.Unlock()
	failed := make([]error, len(open))
	var closing sync.WaitGroup
	for i, q := range open { // at the same time: each may wait for the database until its own limit
		closing.Go(func() { failed[i] = q.handle.Close(ctx) })
	}
	closing.Wait()
	for _, closed := range forgotten {
		select {
		case <-closed:
		case <-ctx.Done():
			return errors.Join(append(failed, fmt.Errorf("sqs: close: %w", context.Cause(ctx)))...)
		}
	}
	return errors.Join(failed...)
}

// Ready reports whether the database answers.
func (s *Server) Ready(ctx context.Context) error {
	_, err := kv.Run(ctx, s.db, kv.TxOptions{Call: "ready"}, func(tx kv.Tx, _ kv.Attempt) error {
		_, err := tx.Snapshot().Get(s.key("ready")).Wait(ctx)
		return err
	})
	return err
}

// enter begins a call, which Close waits for. It reports false if the server is closed.
func (s *Server) enter() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed.Err() != nil {
		return false
	}
	s.calls.Add(1)
	return true
}

// afterClient is how long a call goes on whose client has gone, or has ended its side of the connection.
const afterClient = 10 * time.Second

// call executes the operation of a request. The HTTP server cannot tell a client that has gone from one that has ended
// its side of the connection and waits for the answer. Only the wait of a receive ends at once then, because it may
// last long. After Close there are no calls.
func (s *Server) call(client context.Context, c *call, request []byte) (any, error) {
	if !s.enter() {
		return nil, layer.ErrClosed
	}
	defer s.calls.Done()
	c.client = client
	ctx, cancel := context.WithCancel(context.WithoutCancel(client))
	defer cancel()
	defer context.AfterFunc(client, func() { time.AfterFunc(afterClient, cancel) })()
	defer context.AfterFunc(s.closed, cancel)()
	answer, err := operations[c.action].call(ctx, s, c, request)
	s.forgetLost(err, c.queue)
	return answer, err
}

// log writes a request to the log. Only the log gets the text of an unexpected error.
func (s *Server) log(c *call, status int, err error, took time.Duration) {
	level, code := slog.LevelDebug, ""
	if err != nil {
		code = told(err).code
	}
	if status >= http.StatusInternalServerError {
		level = slog.LevelError
	} else {
		err = nil // its text may repeat a part of the request
	}
	s.options.Logger.Log(context.Background(), level, "sqs: request",
		"id", c.request, "action", c.action, "queue", readable(c.queue), "status", status, "code", code, "took", took,
		"err", err)
}
