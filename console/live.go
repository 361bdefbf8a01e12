package console

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"time"
)

// The stream of events of a page sends the live part of the page again when it has changed. The templates of the page
// make it from answers that all pages share.

// streamLife is how long a stream lasts. Then the browser asks again, which shows that the page is still open.
const streamLife = 10 * time.Minute

// sendTimeout is how long a slow client may take for an event.
const sendTimeout = 10 * time.Second

const eventsPath = "/events"

func (c *Console) events(w http.ResponseWriter, r *http.Request) {
	in := input{plainNames(r.URL.Query()), asking(r)}
	path := in.Get("page")
	if path == "/" {
		path = "/{$}"
	}
	v := views[path]
	if v == nil || v.live == 0 {
		c.fail(w, r, http.StatusNotFound, "no such page is live")
		return
	}
	if r.Method == http.MethodHead { // a page asks why it has no stream
		if c.streams.Load() >= int64(c.o.MaxStreams) {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
		return
	}
	if c.streams.Add(1) > int64(c.o.MaxStreams) {
		c.streams.Add(-1)
		c.refuse(w, r, http.StatusServiceUnavailable, "too many pages are open: reload by hand")
		return
	}
	defer c.streams.Add(-1)
	back := "./" + strings.TrimPrefix(in.Get("page"), "/")
	in.Del("page")
	if query := in.Encode(); query != "" {
		back += "?" + query
	}
	ctx, cancel := context.WithTimeout(r.Context(), streamLife)
	defer cancel()
	defer context.AfterFunc(c.ctx, cancel)()
	w.Header().Set("Content-Type", "text/event-stream")
	s := stream{c: c, w: w, control: http.NewResponseController(w), view: v, in: in, back: back}
	for s.send(ctx) == nil {
		select {
		case <-time.After(c.untilNext(time.Now(), v)):
			if role, _ := c.who(r); role < v.role {
				return // the user may not see the page any more
			}
		case <-ctx.Done():
			return
		}
	}
}

// leastRefresh bounds the time between two looks of a page.
const leastRefresh = 100 * time.Millisecond

// untilNext is how long a page waits before it looks again. All pages look at the same moments, so that one asks the
// database and the others get the same answer. The list of queues looks half as often as the pages of one queue,
// because it costs a transaction for each queue. No page looks without a pause, whatever Options.Every is.
func (c *Console) untilNext(now time.Time, v *view) time.Duration {
	every := max(time.Duration(v.live)*c.o.Every, leastRefresh)
	return now.Truncate(every).Add(every).Sub(now)
}

// stream is the events of one page.
type stream struct {
	c       *Console
	w       http.ResponseWriter
	control *http.ResponseController
	view    *view
	in      input
	back    string
	last    [32]byte
}

// event is an event for the script of the page.
type event struct {
	HTML string `json:"html,omitempty"`
	At   string `json:"at"`
	Err  string `json:"err,omitempty"`
}

// send sends the live part if it has changed. Otherwise it sends only that the page is fresh.
func (s *stream) send(ctx context.Context) error {
	now := s.c.o.Now()
	e := event{At: now.UTC().Format(time.TimeOnly) + " UTC"}
	data, err := s.view.data(s.c, ctx, s.in)
	if err == nil {
		var b bytes.Buffer
		of := content{Queue: s.in.queue(), Role: s.in.who.role, Back: s.back, At: now, D: data}
		if err = s.c.pages.ExecuteTemplate(&b, s.view.name+".live", of); err == nil {
			if sum := sha256.Sum256(b.Bytes()); sum != s.last {
				s.last, e.HTML = sum, b.String()
			}
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		e.Err = text(err)
	}
	line, err := json.Marshal(e)
	if err != nil {
		return err
	}
	_ = s.control.SetWriteDeadline(time.Now().Add(sendTimeout)) // fails without a connection, as in a test
	if _, err := fmt.Fprintf(s.w, "data: %s\n\n", line); err != nil {
		return err
	}
	return s.control.Flush()
}
