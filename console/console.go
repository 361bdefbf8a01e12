// Package console is a web page for operators. It shows which groups of a queue are blocked and why, and offers the
// remedies that fit. It is an http.Handler. You can serve it alone (fdbfifo console) or mount it in any program:
//
//	c, err := console.New(console.Options{DB: db, Role: role})
//	mux.Handle("/queues/", http.StripPrefix("/queues", c))
//
// The pages are made on the server and work without JavaScript; a script of this package keeps them fresh. All open
// pages of a queue share its figures. Without an open page nothing is read. The program must Close the Console.
package console

import (
	"bytes"
	"context"
	"embed"
	"errors"
	"fmt"
	"html/template"
	"io/fs"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"unicode/utf8"

	"fdbfifo/internal/callback"
	"fdbfifo/kv"
	"fdbfifo/layer"
)

// Role says what a user may do in the console.
type Role int

// The roles.
const (
	Nobody   Role = iota // may see nothing
	Viewer               // may look, but not at bodies and headers
	Operator             // may do everything
)

// Options say which queues a console shows, and to which users.
type Options struct {
	// DB and Prefix are where the queues are.
	DB     kv.DB
	Prefix []byte
	// Queues opens a queue when a page of it is asked for; nil = layer.Open, with an owner that names the console.
	Queues func(ctx context.Context, name string) (*layer.Queue, error)
	// Open makes every client an Operator. Set it only if the program controls the access to the console itself. Open
	// cannot be combined with Token or Role. New refuses options without Open, Token and Role, because an empty token
	// must not open the console.
	Open bool
	// Token, if not "", is the secret of the console. A browser sends it once, by the link of LoginPath. That begins a
	// session, which ends by a logout, after Idle, or with the Console. A script sends it as "Authorization: Bearer
	// TOKEN". A user with the token is an Operator, so the program must keep the token secret.
	Token string
	// Idle is how long a session of Token lasts without a click. A page that refreshes itself does not count. 0 =
	// DefaultIdle; negative = a session does not end by itself.
	Idle time.Duration
	// Role, if not nil, returns the role and the name of a request's user, for example from a header that a proxy sets.
	// Then Role must also check that the request comes from the proxy, because any other client of the console can send
	// that header, too. name is for the audit.
	Role func(r *http.Request) (role Role, name string)
	// ReadOnly refuses all actions of all users.
	ReadOnly bool
	// Hosts are the names, with their ports, that a request's Host header may have. nil = the names of this machine
	// (localhost, 127.0.0.0/8, [::1]) with any port. The console refuses any other name, so that a page of another site
	// cannot reach it by DNS rebinding.
	Hosts []string
	// Every is how old the figures of a page may be; 0 = DefaultEvery. After an action the console reads the queue's
	// figures again.
	Every time.Duration
	// MaxStreams bounds the pages that are kept fresh at the same time; 0 = DefaultMaxStreams. The user must reload
	// further pages by hand.
	MaxStreams int
	// Now is the clock; nil = time.Now.
	Now func() time.Time
	// Logger gets actions, refusals and errors, never bodies and headers; nil = slog.Default.
	Logger *slog.Logger
}

// Defaults of a console.
const (
	DefaultEvery      = 5 * time.Second
	DefaultMaxStreams = 200
	DefaultIdle       = 8 * time.Hour
)

// The limits of one request.
const (
	readTimeout = 3 * time.Second  // for the reads of a page
	listTimeout = 30 * time.Second // for the names of all queues, which are read one behind the other
	actTimeout  = 30 * time.Second // for an action
	maxForm     = 4 << 20          // bytes; an edited body included
)

//go:embed assets templates
var files embed.FS

// Console is the handler. The program must Close it before it closes the engine.
type Console struct {
	o       Options
	mux     *http.ServeMux
	own     http.Handler // mux under the path of the token
	guard   *http.CrossOriginProtection
	pages   *template.Template
	cache   cache
	audit   audit
	numbers numbers
	streams atomic.Int64

	sessions sessions

	ctx    context.Context // ends with Close
	end    context.CancelFunc
	mu     sync.Mutex
	open   map[string]*layer.Queue // guarded by mu
	rates  map[string]*history     // guarded by mu
	closed bool                    // guarded by mu
}

// New makes a console. It reads nothing before the first request. The caller must Close it. Errors: neither DB nor
// Queues is set; none of Token, Role and Open is set, or Open with one of the others; the Token is blank.
func New(o Options) (*Console, error) {
	guarded := o.Token != "" || o.Role != nil
	switch {
	case o.DB == nil && o.Queues == nil:
		return nil, errors.New("console: no database")
	case !guarded && !o.Open:
		return nil, errors.New("console: anybody could do everything: set Token or Role, or Open if that is meant")
	case o.Token != "" && strings.TrimSpace(o.Token) == "":
		return nil, errors.New("console: the Token is blank")
	case guarded && o.Open:
		return nil, errors.New("console: Open, with a Token or a Role")
	}
	if o.Every == 0 {
		o.Every = DefaultEvery
	}
	if o.MaxStreams == 0 {
		o.MaxStreams = DefaultMaxStreams
	}
	if o.Idle == 0 {
		o.Idle = DefaultIdle
	}
	if o.Now == nil {
		o.Now = time.Now
	} else {
		o.Now = callback.Clock(o.Now)
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	o.Logger = callback.Logger(o.Logger, callback.Shield(callback.LogPatience), func(err error) {
		callback.Report("console: the log has panicked", err)
	})
	o.Prefix, o.Hosts = bytes.Clone(o.Prefix), slices.Clone(o.Hosts) // the caller's may change
	for i, name := range o.Hosts {
		o.Hosts[i] = strings.ToLower(name)
	}
	c := &Console{
		o: o, guard: http.NewCrossOriginProtection(), open: map[string]*layer.Queue{}, rates: map[string]*history{},
	}
	c.ctx, c.end = context.WithCancel(context.Background())
	c.cache.init(o.Now)
	c.audit.log = o.Logger
	var err error
	if c.pages, err = template.New("").Funcs(c.functions()).ParseFS(files, "templates/*.html"); err != nil {
		return nil, fmt.Errorf("console: %w", err)
	}
	return c, c.route()
}

func (c *Console) route() error {
	assets, err := fs.Sub(files, "assets")
	if err != nil {
		return fmt.Errorf("console: %w", err)
	}
	c.mux = http.NewServeMux()
	asset := cached(func(w http.ResponseWriter, r *http.Request) {
		file := r.PathValue("file")
		if !fs.ValidPath(file) { // else the answer is that of a broken server
			http.NotFound(w, r)
			return
		}
		http.ServeFileFS(w, r, assets, file)
	})
	c.mux.HandleFunc("GET /assets/{file}", asset)
	c.mux.HandleFunc("GET /{left}/assets/{file}", asset) // of a page that was left open when the console ended
	c.mux.HandleFunc("GET /assets/{$}", c.nowhere)
	c.mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "ok") })
	c.mux.HandleFunc("GET /login", c.login)
	c.mux.HandleFunc("POST /logout", c.allow(Viewer, c.logout))
	c.mux.HandleFunc("GET "+eventsPath, c.allow(Viewer, c.events))
	for path, p := range views {
		c.mux.HandleFunc("GET "+path, c.allow(p.role, func(w http.ResponseWriter, r *http.Request) { c.show(w, r, p) }))
	}
	c.mux.HandleFunc("GET /", c.allow(Viewer, c.nowhere))
	c.mux.HandleFunc("POST /", c.allow(Viewer, c.nowhere)) // of a page that was left open, too: it says what to do
	c.mux.HandleFunc("POST /do", c.allow(Operator, c.do))
	c.mux.HandleFunc("GET /api/v1/{what}", c.allow(Viewer, c.apiGet))
	c.mux.HandleFunc("POST /api/v1/do", c.allow(Operator, c.apiDo))
	c.own = http.StripPrefix("/"+place(c.o.Token), c.mux)
	return nil
}

// nowhere answers a request for a page that does not exist.
func (c *Console) nowhere(w http.ResponseWriter, r *http.Request) {
	c.fail(w, r, http.StatusNotFound, "there is no such page")
}

// cached lets a browser keep a file of the program for 300 s.
func cached(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "private, max-age=300")
		h(w, r)
	}
}

// contentPolicy allows only content that the console itself serves. It allows no inline script or style.
const contentPolicy = "default-src 'none'; style-src 'self'; script-src 'self'; img-src 'self' data:; " +
	"connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"

// ServeHTTP answers a request.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", contentPolicy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	if !c.knownHost(r.Host) {
		c.refuse(w, r, http.StatusMisdirectedRequest, "this console does not answer to the name "+r.Host)
		return
	}
	if err := c.guard.Check(r); err != nil {
		c.refuse(w, r, http.StatusForbidden,
			"the request comes from another site: repeat the action on the console's own page")
		return
	}
	if !utf8.ValidString(r.URL.RawQuery) { // else a redirect repeats these bytes
		c.refuse(w, r, http.StatusBadRequest, "the query of the address is not UTF-8: escape its bytes, such as %FF")
		return
	}
	r.Body = http.MaxBytesReader(w, r.Body, maxForm)
	// A client that does not read its answer holds up no other client, and ServeHTTP does not wait for it. A stream
	// sets a deadline per event. Without a connection, as in a test, there is none to set.
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(actTimeout + sendTimeout))
	if c.inOwn(r) {
		c.own.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), ownKey{}, true)))
		return
	}
	c.mux.ServeHTTP(w, r)
}

// refuse answers with an error page, and logs the refusal.
func (c *Console) refuse(w http.ResponseWriter, r *http.Request, code int, text string) {
	c.o.Logger.Warn("console: refused", "status", code, "method", r.Method, "path", r.URL.Path, "why", text)
	c.fail(w, r, code, text)
}

// fail answers with an error: as a page, or as JSON.
func (c *Console) fail(w http.ResponseWriter, r *http.Request, code int, text string) {
	if strings.HasPrefix(r.URL.Path, "/api/") {
		writeJSON(w, code, map[string]any{"error": text, "status": code})
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	v := &page{Title: http.StatusText(code), Name: "error", Data: text, Role: Nobody}
	if err := c.pages.ExecuteTemplate(w, "page", v); err != nil {
		c.o.Logger.Error("console: page", "error", err)
	}
}

// Close ends the streams of open pages, and closes the queues that the console has opened.
func (c *Console) Close(ctx context.Context) error {
	c.end()
	c.mu.Lock()
	c.closed = true
	open := slices.Collect(maps.Values(c.open))
	clear(c.open)
	c.mu.Unlock()
	all := make([]error, len(open))
	var closing sync.WaitGroup // at the same time, because each may take seconds
	for i, q := range open {
		closing.Go(func() { all[i] = q.Close(ctx) })
	}
	closing.Wait()
	return errors.Join(all...)
}

// queue returns the console's handle of a queue.
func (c *Console) queue(ctx context.Context, name string) (*layer.Queue, error) {
	c.mu.Lock()
	q, closed := c.open[name], c.closed
	c.mu.Unlock()
	if q != nil || closed {
		return q, closedError(closed)
	}
	var err error
	if c.o.Queues != nil {
		q, err = c.opened(ctx, name)
	} else {
		q, err = layer.Open(ctx, c.o.DB, c.o.Prefix, name, layer.Options{
			Now: c.o.Now, Owner: "console",
			Hooks: []layer.Hook{{Trouble: layer.LogHook(c.o.Logger).Trouble}},
		})
	}
	if err != nil {
		return nil, err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if other := c.open[name]; other != nil {
		return other, nil // of another request; q has written nothing
	}
	c.open[name] = q
	return q, closedError(c.closed)
}

// opened opens a queue by Options.Queues, behind a shield. It gives up a second after the deadline of ctx, at which the
// function should have returned.
func (c *Console) opened(ctx context.Context, name string) (*layer.Queue, error) {
	bound := actTimeout
	if end, ok := ctx.Deadline(); ok {
		bound = max(0, time.Until(end)) + time.Second
	}
	var q *layer.Queue
	var err error
	failed := callback.Shield(bound).Try("Options.Queues", func() { q, err = c.o.Queues(ctx, name) })
	if failed != nil {
		c.o.Logger.Error("console: Options.Queues", "queue", name, "error", failed) // with the stack
		return nil, errors.New("Options.Queues has panicked or is stuck: see the log of the console")
	}
	if q == nil && err == nil {
		err = fmt.Errorf("Options.Queues has returned no queue for %q", name)
	}
	return q, err
}

func closedError(closed bool) error {
	if closed {
		return layer.ErrClosed
	}
	return nil
}

// forget drops the handle of a queue that is gone.
func (c *Console) forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open, name)
	delete(c.rates, name)
}
