package console

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/fault"
	"fdbfifo/layer"
)

// TestNamedGroupIsMeant: a user names a group and leaves "any group" checked, as the page came. The list, the page of
// confirmation, the action and the audit are about that group.
func TestNamedGroupIsMeant(t *testing.T) {
	for verb, label := range map[string]string{"discard": "Discard", "redrive": "Redrive", "replay": "Replay"} {
		t.Run(verb, func(t *testing.T) {
			s := newSite(t, nil)
			_, _, err := s.q.Admin().Configure(t.Context(), func(c *layer.Config) { c.Archive = time.Hour })
			require.NoError(t, err)
			untouched := func() bool { // of group B
				if verb == "replay" {
					items, err := s.q.Peek(t.Context(), "B", 1, nil)
					require.NoError(t, err)
					return len(items) == 0
				}
				stats, err := s.q.Stats(t.Context(), layer.StatsOptions{})
				require.NoError(t, err)
				return stats.Dead == 1
			}
			for _, g := range []string{"A", "B"} {
				s.enqueue(g, "1")
				if verb == "replay" {
					require.NoError(t, s.q.Ack(t.Context(), s.claim(g)))
				} else {
					_, err := s.q.Admin().Skip(t.Context(), g, layer.SkipOptions{})
					require.NoError(t, err)
				}
			}
			page := map[string]string{"replay": "archive"}[verb]
			if page == "" {
				page = "dead"
			}
			filter := url.Values{"q": {"orders"}, "g": {"A"}, "anygroup": {"1"}, "text": {""}, "before": {""}}
			require.NotContains(t, s.get("/"+page+"?"+filter.Encode()), `name="anygroup" value="1" checked`)
			confirm := "/" + confirmDead(verb, "orders", "./", filter)
			require.Contains(t, s.get(confirm), label+": <bdi>A</bdi>")
			r, body := s.post(s.button(confirm, label))
			require.Equal(t, http.StatusSeeOther, r.StatusCode, body)
			require.True(t, untouched())
			require.Equal(t, "A", s.c.audit.latest()[0].Target)

			filter.Set("g", "")
			require.Contains(t, s.get("/"+page+"?"+filter.Encode()), `name="anygroup" value="1" checked`)
			require.Contains(t, s.get("/"+confirmDead(verb, "orders", "./", filter)), "<h2>"+label+"</h2>")
		})
	}
}

// TestToldAsDone: a part of an action has landed, and the rest fails. The answer and the audit say what was done, and
// how the user goes on.
func TestToldAsDone(t *testing.T) {
	type failing struct {
		verb string
		in   url.Values
		from int // the first commit that fails
		kind fault.Kind
		done string
		want string // in the words of the answer
	}
	for _, c := range []failing{
		{"configure", url.Values{"setting": {"max_rate"}, "old": {"1/h"}, "value": {"2/h"}}, 2, fault.CommitFailed,
			"max_rate is 2/h", "the next sweep does the rest"},
		{"retry-alike", url.Values{"alike": {digest([]byte("the bank"))}}, 3, fault.CommitFailed,
			"2 groups are ready", repeat},
		{"replay", url.Values{"all": {"1"}}, 2, fault.UnnamedApplied, "messages enqueued again",
			"the last step may have landed: look for messages with the header fdbfifo-replay-of"},
	} {
		t.Run(c.verb, func(t *testing.T) {
			plan := &fault.Plan{}
			s := newSite(t, func(o *Options) { o.DB = fault.Wrap(o.DB, plan) })
			change := func(of *layer.Config) { of.Archive = time.Hour }
			if c.verb == "configure" {
				change = func(of *layer.Config) { require.NoError(t, of.Set("max_rate", "1/h")) }
			}
			_, _, err := s.q.Admin().Configure(t.Context(), change)
			require.NoError(t, err)
			const groups = 200
			for i := range groups {
				g := fmt.Sprint("G", i)
				s.enqueue(g, "1")
				claim := s.claim(g)
				if c.verb == "replay" {
					require.NoError(t, s.q.Ack(t.Context(), claim))
					continue
				}
				no := layer.NackOptions{Delay: time.Hour, Err: errors.New("the bank")}
				require.NoError(t, s.q.Nack(t.Context(), claim, no))
			}
			commits := 0
			plan.OnCommit = func(int, kv.Tx) fault.Kind {
				if commits++; commits >= c.from {
					return c.kind
				}
				return fault.None
			}
			c.in.Set("q", "orders")
			c.in.Set("verb", c.verb)
			if c.verb == "replay" {
				c.in.Set("once", s.c.numbers.issue())
			}
			_, body := s.post(c.in)
			plan.OnCommit = nil
			a := s.c.audit.latest()[0]
			require.True(t, a.Failed)
			for _, text := range []string{body, a.Result} {
				require.Contains(t, text, c.done)
				require.Contains(t, text, c.want)
			}
			require.Empty(t, a.Next)
		})
	}
}

// TestQueuesThatGoWrong: the function of the program that opens queues panics, returns no queue, or does not return.
// The pages say so, the process lives, and other queues are shown.
func TestQueuesThatGoWrong(t *testing.T) {
	for how, open := range map[string]func() (*layer.Queue, error){
		"panics":    func() (*layer.Queue, error) { panic("no") },
		"no queue":  func() (*layer.Queue, error) { return nil, nil },
		"is silent": func() (*layer.Queue, error) { time.Sleep(10 * time.Second); return nil, errors.New("late") },
	} {
		t.Run(how, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var s *site
				s = newSite(t, func(o *Options) {
					o.Queues = func(ctx context.Context, name string) (*layer.Queue, error) {
						if name == "bad" {
							return open()
						}
						return layer.Open(ctx, s.rec, nil, name, layer.Options{})
					}
				})
				bad, err := layer.Create(t.Context(), s.rec, nil, "bad", layer.Options{})
				require.NoError(t, err)
				require.NoError(t, bad.Close(t.Context()))
				begun := time.Now()
				page := s.get("/")
				require.Less(t, time.Since(begun), 9*time.Second)
				require.Contains(t, page, "Options.Queues")
				require.Contains(t, page, "orders")
				require.Equal(t, 1, strings.Count(page, "Options.Queues"))
				time.Sleep(10 * time.Second) // until the silent function has returned
			})
		})
	}
}

// TestHalfClosedClients: a client ends its sending side, so that the server ends the request's context. Its action is
// done, and it gets the answer.
func TestHalfClosedClients(t *testing.T) {
	s := newSite(t, nil)
	s.enqueue("A", "1")
	gone, leave := context.WithCancel(t.Context())
	leave()
	half := func(r *http.Request) { *r = *r.WithContext(gone) }
	r, body := s.ask("POST", "/do", url.Values{"q": {"orders"}, "verb": {"pause"}, "g": {"A"}}, half)
	require.Equal(t, http.StatusSeeOther, r.StatusCode, body)
	for range 20 {
		r, body = s.ask("GET", "/queue?q=orders", nil, half)
		require.Equal(t, http.StatusOK, r.StatusCode, body)
		r, body = s.ask("GET", "/api/v1/blocked?q=orders", nil, half)
		require.Equal(t, http.StatusOK, r.StatusCode, body)
	}
	g, err := s.q.Admin().Group(t.Context(), "A", nil)
	require.NoError(t, err)
	require.Equal(t, layer.Paused, g.Status)
}
