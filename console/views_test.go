package console

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// TestHoldersPage: the page lists the holders of groups, with process and host if the handle has named itself.
func TestHoldersPage(t *testing.T) {
	s := newSite(t, nil)
	require.Contains(t, s.get("/holders?q=orders"), "Nobody holds a group")
	s.enqueue("A", "1", "2")
	c := s.claim("A")
	page := s.get("/holders?q=orders")
	require.Regexp(t, `(?s)<bdi>w</bdi>.*data-w="groups">1<.*data-w="in flight">2<.*group\?g=A`, page)
	require.NoError(t, s.q.Ack(t.Context(), c))
	require.Contains(t, s.get("/holders?q=orders"), "Nobody holds a group")
	require.Equal(t, "process 12 of host web-1", hostOf("web-1:12:a0f3"))
	require.Empty(t, hostOf("somebody"))
	require.Empty(t, hostOf("a:b:c"))
}

// asked is an engine with a status of its own, as FoundationDB has one.
type asked struct {
	kv.DB
	document string
	times    int
}

func (a *asked) Status(context.Context) ([]byte, error) {
	a.times++
	return []byte(a.document), nil
}

// TestDatabasePage: the page says how soon the database answers. The console reads the status of a cluster only on a
// click, at most once in half a minute, and marks the bad values. The document is from a cluster of one process of
// FoundationDB 7.3.79. The test has changed its addresses and paths, and made some values bad.
// TestDatabasePageOnACluster of fdbkv asks a running cluster.
func TestDatabasePage(t *testing.T) {
	s := newSite(t, nil)
	require.Contains(t, s.get("/db"), "has no status of its own")
	now, db := time.Now(), &asked{DB: s.c.o.DB}
	read, err := os.ReadFile("testdata/status-7.3.79.json")
	require.NoError(t, err)
	db.document = strings.NewReplacer(
		`"locked": false`, `"locked": true`, `"commit_seconds": 0.02`, `"commit_seconds": 1.52`,
	).Replace(string(read))
	s.c.o.DB, s.c.o.Now, s.c.cache.now = db, func() time.Time { return now }, func() time.Time { return now }
	require.NotContains(t, s.get("/db"), "database_lock_state")
	require.Zero(t, db.times)
	page := s.get("/db?status=1")
	require.Regexp(t, `database_lock_state.locked</th><td class="bad">true `, page)
	require.Regexp(t, `qos.performance_limited_by.name</th><td>workload<`, page)
	require.Regexp(t, `latency_probe.commit_seconds</th><td class="bad">1.53 `, page)
	require.Equal(t, 17, strings.Count(page, `<th scope="row" class="mono">`), "all that the page can show")
	s.get("/db?status=1")
	require.Equal(t, 1, db.times)
	now = now.Add(statusEvery + time.Second)
	db.document = "<html>"
	r, _ := s.ask("GET", "/db?status=1", nil, nil)
	require.Equal(t, http.StatusServiceUnavailable, r.StatusCode)
	require.Equal(t, 2, db.times)
}

// TestReplayFromTheArchive: what the page lists is what is replayed, after a confirmation that counts it; without a
// choice nothing is.
func TestReplayFromTheArchive(t *testing.T) {
	s := newSite(t, nil)
	_, _, err := s.q.Admin().Configure(t.Context(), func(c *layer.Config) { c.Archive = time.Hour })
	require.NoError(t, err)
	for _, g := range []string{"A", "B"} {
		s.enqueue(g, "1", "2")
		require.NoError(t, s.q.Ack(t.Context(), s.claim(g)))
	}
	require.Contains(t, s.get("/archive?q=orders&g=A"), ">Replay these…<")
	confirm := s.get("/confirm?verb=replay&q=orders&g=A")
	require.Contains(t, confirm, "2 messages would be enqueued again")
	r, _ := s.post(s.button("/confirm?verb=replay&q=orders&g=A", "Replay"))
	require.Equal(t, http.StatusSeeOther, r.StatusCode)
	items, err := s.q.Peek(t.Context(), "A", 10, nil)
	require.NoError(t, err)
	require.Len(t, items, 2)
	require.NotEmpty(t, items[0].Headers[layer.ReplayHeader])
	items, err = s.q.Peek(t.Context(), "B", 10, nil)
	require.NoError(t, err)
	require.Empty(t, items)
	r, body := s.post(url.Values{"verb": {"replay"}, "q": {"orders"}})
	require.Equal(t, http.StatusBadRequest, r.StatusCode, body)
}

// TestReplayInPortions: a form of a replay acts once, however often it is sent. If the archive has more than a portion,
// the answer has a link to the next one, and so each message is replayed once. Messages that were finished after the
// first portion are left out.
func TestReplayInPortions(t *testing.T) {
	s := newSite(t, nil)
	_, _, err := s.q.Admin().Configure(t.Context(), func(c *layer.Config) { c.Archive = time.Hour })
	require.NoError(t, err)
	for range (maxReplay + 500) / 500 {
		msgs := make([]layer.Message, 500)
		for i := range msgs {
			msgs[i].Group = "A"
		}
		_, err := s.q.Enqueue(t.Context(), msgs...)
		require.NoError(t, err)
		claims, err := s.q.Receive(t.Context(), layer.ReceiveOptions{Max: layer.MaxBatch})
		require.NoError(t, err)
		require.NoError(t, s.q.Ack(t.Context(), claims[0]))
	}
	form := s.button("/confirm?verb=replay&q=orders&g=A&back=.%2Farchive%3Fq%3Dorders", "Replay")
	r, body := s.post(form)
	require.Equal(t, http.StatusSeeOther, r.StatusCode, body)
	said := s.get(strings.TrimPrefix(r.Header.Get("Location"), "."))
	r, body = s.post(form)
	require.Equal(t, http.StatusConflict, r.StatusCode, "a second click: %s", body)
	rest := regexp.MustCompile(`href="(confirm\?[^"]*)"`).FindStringSubmatch(said)
	require.NotNil(t, rest, said)
	time.Sleep(5 * time.Millisecond) // the times in the archive have milliseconds
	finished := s.claim("A")         // of the first portion: it is in the archive, too
	require.NoError(t, s.q.Ack(t.Context(), finished))

	next := "/" + htmlText(rest[1])
	require.Contains(t, s.get(next), "500 messages would be enqueued again")
	r, body = s.post(s.button(next, "Replay"))
	require.Equal(t, http.StatusSeeOther, r.StatusCode, body)
	require.Empty(t, s.c.audit.latest()[0].Next)
	replayed := map[string]bool{}
	for _, item := range finished.Items {
		replayed[item.Headers[layer.ReplayHeader]] = true
	}
	for item, err := range s.q.Admin().AllItems(t.Context(), "A", nil) {
		require.NoError(t, err)
		if of := item.Headers[layer.ReplayHeader]; of != "" {
			require.False(t, replayed[of], "twice: %s", of)
			replayed[of] = true
		}
	}
	require.Len(t, replayed, maxReplay+500)
}

// TestReplayFromAPage: the button of the second page of an archive replays from that page on.
func TestReplayFromAPage(t *testing.T) {
	s := newSite(t, nil)
	_, _, err := s.q.Admin().Configure(t.Context(), func(c *layer.Config) { c.Archive = time.Hour })
	require.NoError(t, err)
	_, err = s.q.Enqueue(t.Context(), make([]layer.Message, pageRows+20)...)
	require.NoError(t, err)
	claims, err := s.q.Receive(t.Context(), layer.ReceiveOptions{Max: layer.MaxBatch})
	require.NoError(t, err)
	require.NoError(t, s.q.Ack(t.Context(), claims[0]))
	linked := func(page, text string) string {
		m := regexp.MustCompile(`href="([^"]*)">` + text).FindStringSubmatch(s.get(page))
		require.NotNil(t, m)
		return "/" + htmlText(m[1])
	}
	second := linked("/archive?q=orders", "Next page")
	require.Contains(t, s.get(linked(second, "Replay these…")), "20 messages would be enqueued again")
}

// TestReplayByTheAPI: a call of the API that replays must have the number that a dry run has answered. The number is
// good for one call. The answer says where the next call continues.
func TestReplayByTheAPI(t *testing.T) {
	s := newSite(t, nil)
	_, _, err := s.q.Admin().Configure(t.Context(), func(c *layer.Config) { c.Archive = time.Hour })
	require.NoError(t, err)
	s.enqueue("A", "1", "2")
	first := s.claim("A")
	require.NoError(t, s.q.Ack(t.Context(), first))
	call := func(members string, want int) (a Action) {
		deed := `{"queue":"orders","verb":"replay","group":"A",` + members + `}`
		r := httptest.NewRequest("POST", "/api/v1/do", strings.NewReader(deed))
		r.Host = "localhost"
		w := httptest.NewRecorder()
		s.c.ServeHTTP(w, r)
		require.Equal(t, want, w.Code, "%s: %s", deed, w.Body)
		require.NoError(t, json.Unmarshal(w.Body.Bytes(), &a))
		return a
	}
	call(`"reason":"x"`, http.StatusBadRequest)
	call(`"expect":{"once":""}`, http.StatusBadRequest)
	call(`"expect":{"once":"1"}`, http.StatusConflict)
	dry := call(`"dry_run":true`, http.StatusOK)
	require.Contains(t, dry.Result, "2 messages would be")
	once := fmt.Sprintf(`"expect":{"once":%q}`, dry.Once)
	call(once+`,"after":""`, http.StatusBadRequest)
	call(once+`,"before":""`, http.StatusBadRequest)
	after := fmt.Sprintf(`,"after":%q,"before":%q`, first.Items[0].ID, time.Now().Add(time.Hour).Format(time.RFC3339))
	require.Contains(t, call(once+after, http.StatusOK).Result, "1 message enqueued again")
	call(once+after, http.StatusConflict)
	items, err := s.q.Peek(t.Context(), "A", 10, nil)
	require.NoError(t, err)
	require.Len(t, items, 1)
	require.Equal(t, first.Items[1].ID.String(), items[0].Headers[layer.ReplayHeader])
	require.NotContains(t, s.get("/api/v1/audit"), dry.Once)
}

// TestCorruptHead: a group whose first message cannot be read has a page that says so. The message can be cancelled.
func TestCorruptHead(t *testing.T) {
	s := newSite(t, nil)
	s.enqueue("A", "a body that cannot be read", "2")
	var keys [][]byte
	for pair, err := range kv.Rows(t.Context(), s.rec, kv.KeyRange{Begin: []byte{0}, End: []byte{0xff}}) {
		require.NoError(t, err)
		if strings.Contains(string(pair.Value), "a body that cannot be read") {
			keys = append(keys, pair.Key)
		}
	}
	require.Len(t, keys, 1)
	_, err := kv.Run(t.Context(), s.rec, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		tx.Set(keys[0], []byte("?"))
		return nil
	})
	require.NoError(t, err)
	page := s.get("/group?q=orders&g=A")
	require.Contains(t, page, "Have the queue checked before anything is removed", page)
	s.press("/group?q=orders&g=A", "Cancel the head", http.StatusSeeOther)
	items, err := s.q.Peek(t.Context(), "A", 1, nil)
	require.NoError(t, err)
	require.Equal(t, "2", string(items[0].Body))
}

// TestFailedHead: the head of a ready group has failed before. Its page has the same remedies as the list of blocked
// groups. The page of a group without a claim names no holder.
func TestFailedHead(t *testing.T) {
	s := newSite(t, nil)
	s.enqueue("A", "1")
	require.NoError(t, s.q.Nack(t.Context(), s.claim("A"), layer.NackOptions{Err: errors.New("the bank")}))
	page := s.get("/group?q=orders&g=A")
	for _, label := range []string{"Edit the head", "Set the head aside", "Pause"} {
		require.Contains(t, page, ">"+label+"</button>")
	}
	require.NotContains(t, s.get("/groups?q=orders"), "&#34;&#34;")
}

// TestRemediesOfLanes: of a claim by template, and of the claim of one message, the remedies are for that very claim.
func TestRemediesOfLanes(t *testing.T) {
	const name = "lanes"
	isNew := layer.Template{"state": `NEW,"1"=2`}
	open := func(t *testing.T, s *site, c layer.Config) *layer.Queue {
		c.Retry = layer.RetryPolicy{Kind: layer.RetryAtOnce}
		q, err := layer.Create(t.Context(), s.rec, nil, name, layer.Options{Config: c})
		require.NoError(t, err)
		t.Cleanup(func() {
			report, err := q.Admin().Check(context.Background(), layer.CheckOptions{})
			require.NoError(t, err)
			require.Empty(t, report.Violations)
			require.NoError(t, q.Close(context.Background()))
		})
		return q
	}
	inHand := func(t *testing.T, q *layer.Queue, o layer.ReceiveOptions) *layer.Claim {
		_, err := q.Enqueue(t.Context(), layer.Message{Group: "A", Headers: isNew})
		require.NoError(t, err)
		claims, err := q.Receive(t.Context(), o)
		require.NoError(t, err)
		require.Len(t, claims, 1)
		return claims[0]
	}
	faceted := layer.Config{Facets: []string{"state"}, Views: "*; state"}
	group := "/" + link("group", "q", name, "g", "A")
	t.Run("release", func(t *testing.T) {
		s := newSite(t, nil)
		q := open(t, s, faceted)
		c := inHand(t, q, layer.ReceiveOptions{Where: isNew})
		s.press(group, "Release by force", http.StatusSeeOther)
		require.ErrorIs(t, q.Ack(t.Context(), c), layer.ErrClaimLost)
	})
	t.Run("retry", func(t *testing.T) {
		s := newSite(t, nil)
		q := open(t, s, faceted)
		c := inHand(t, q, layer.ReceiveOptions{Where: isNew})
		require.NoError(t, q.Nack(t.Context(), c, layer.NackOptions{Delay: time.Hour, Err: errors.New("the bank")}))
		s.press(group, "Retry now", http.StatusSeeOther)
		g, err := q.Admin().Group(t.Context(), "A", isNew)
		require.NoError(t, err)
		require.Equal(t, layer.Ready, g.Status)
	})
	t.Run("hold", func(t *testing.T) {
		s := newSite(t, nil)
		q := open(t, s, layer.Config{Unordered: true})
		c := inHand(t, q, layer.ReceiveOptions{Unordered: true})
		s.press(group, "Release by force", http.StatusSeeOther)
		require.ErrorIs(t, q.Ack(t.Context(), c), layer.ErrClaimLost)
	})
	t.Run("API", func(t *testing.T) {
		s := newSite(t, nil)
		q := open(t, s, faceted)
		c := inHand(t, q, layer.ReceiveOptions{Where: isNew})
		var seen JSONGroup
		require.NoError(t, json.Unmarshal([]byte(s.get("/api/v1/"+link("group", "q", name, "g", "A"))), &seen))
		require.Equal(t, isNew, seen.Where)
		deed, err := json.Marshal(map[string]any{
			"queue": name, "verb": "release", "group": "A",
			"expect": map[string]any{"token": seen.Token, "where": seen.Where},
		})
		require.NoError(t, err)
		r := httptest.NewRequest("POST", "/api/v1/do", bytes.NewReader(deed))
		r.Host = "localhost"
		w := httptest.NewRecorder()
		s.c.ServeHTTP(w, r)
		require.Equal(t, http.StatusOK, w.Code, w.Body)
		require.ErrorIs(t, q.Ack(t.Context(), c), layer.ErrClaimLost)
	})
}
