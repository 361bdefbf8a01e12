package layer_test

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/internal/earlier"
	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// storedFolder has databases that an earlier version has written, and that every later version must read: see package
// earlier.
const storedFolder = "testdata/stored"

// storedNames lists the databases.
func storedNames(t *testing.T) []string {
	t.Helper()
	names, err := earlier.Names(storedFolder)
	require.NoError(t, err)
	require.NotEmpty(t, names)
	return names
}

func readStored(t *testing.T, name string) *earlier.Database {
	t.Helper()
	d, err := earlier.Read(storedFolder, name)
	require.NoError(t, err)
	return d
}

// storedReader reads a database, works it empty, and writes down what it finds.
type storedReader struct {
	t     *testing.T
	ctx   context.Context
	db    kv.DB
	d     *earlier.Database
	lines []string
	known map[layer.ID]string // the bodies of all messages that were found, by id
	seed  uint64
}

func (r *storedReader) say(format string, args ...any) {
	r.lines = append(r.lines, fmt.Sprintf(format, args...))
}

// since is a time as it is written down: how long after the moment of the dump it is.
func (r *storedReader) since(at time.Time) string {
	if at.IsZero() {
		return "-"
	}
	return at.Sub(r.d.At).Round(time.Millisecond).String()
}

// bodyText is a body as it is written down.
func bodyText(body []byte) string {
	if len(body) > 60 {
		return fmt.Sprintf("%d bytes %x", len(body), sha256.Sum256(body))[:40]
	}
	return strconv.Quote(string(body))
}

func headerText(headers map[string]string) string {
	var pairs []string
	for _, name := range slices.Sorted(maps.Keys(headers)) {
		pairs = append(pairs, fmt.Sprintf("%q=%q", name, headers[name]))
	}
	return "[" + strings.Join(pairs, " ") + "]"
}

func markText(m *layer.Mark, since func(time.Time) string) string {
	if m == nil {
		return "none"
	}
	return fmt.Sprintf("%s by %q since %s: %q", m.Status, m.By, since(m.Since), m.Reason)
}

// idText names a message: one that was sent after the moment of the dump by its body alone, because its id is new.
func (r *storedReader) idText(id layer.ID) string {
	if _, ok := r.known[id]; !ok {
		return fmt.Sprintf("new of %q", id.Group)
	}
	return id.String()
}

func (r *storedReader) open(queue string) *layer.Queue {
	r.t.Helper()
	r.seed++
	q, err := layer.Open(r.ctx, r.db, testPrefix, queue, layer.Options{
		Owner: "reader", Test: &layer.TestOptions{Seed: 1_000_000 + r.seed},
	})
	require.NoError(r.t, err)
	return q
}

// run reads all queues, finishes what was in the middle, and works all queues empty.
func (r *storedReader) run() {
	queues, err := layer.Queues(r.ctx, r.db, testPrefix)
	require.NoError(r.t, err)
	for _, name := range queues {
		if _, err := layer.Open(r.ctx, r.db, testPrefix, name, layer.Options{}); errors.Is(err, layer.ErrDropping) {
			r.say("queue %q is being dropped", name)
			continue
		}
		r.say("queue %q", name)
		q := r.open(name)
		r.settings(q)
		r.look(q)
		r.check(q)
		require.NoError(r.t, q.Close(r.ctx))
	}
	for _, note := range r.d.Notes {
		require.Equal(r.t, "finish", note.Kind)
		r.finish(note.Words)
	}
	if queues, err = layer.Queues(r.ctx, r.db, testPrefix); len(queues) == 0 {
		r.say("no queue is left")
	}
	require.NoError(r.t, err)
	for _, name := range queues {
		r.say("queue %q at work", name)
		q := r.open(name)
		r.repeats(q)
		r.duplicates(q)
		r.changes(q)
		r.work(q)
		r.check(q)
		require.NoError(r.t, q.Close(r.ctx))
	}
}

// storedSettings are the settings that the oldest version whose databases are here knows.
var storedSettings = []string{
	"shards", "schedule", "lease", "delay", "retroactive_delay", "max_waiting", "group_required", "max_rate",
	"max_rate_total", "dedup_by", "dedup_scope", "dedup_for", "dedup_window", "retry", "retry_base", "retry_max",
	"max_attempts", "on_failure", "retention", "on_expiry", "archive", "changes", "dead_retention", "facets", "views",
	"unordered", "lease_per", "fair",
}

func (r *storedReader) settings(q *layer.Queue) {
	config, version, err := q.Admin().ReadConfig(r.ctx)
	require.NoError(r.t, err)
	var texts []string
	for _, name := range storedSettings {
		text, err := config.Setting(name)
		require.NoError(r.t, err)
		texts = append(texts, name+"="+text)
	}
	r.say("  config %d: %s", version, strings.Join(texts, " "))
}

// look writes down all that a queue has.
func (r *storedReader) look(q *layer.Queue) {
	t, a := r.t, q.Admin()
	s, err := q.Stats(r.ctx, layer.StatsOptions{})
	require.NoError(t, err)
	r.say("  counted enqueued=%d duplicates=%d received=%d acked=%d nacked=%d expired=%d taken=%d dead_lettered=%d "+
		"redriven=%d discarded=%d cancelled=%d purged=%d past_retention=%d forced=%d depth=%d dead=%d in_flight=%d "+
		"paused=%d halted=%d", s.Enqueued, s.Duplicates, s.Received, s.Acked, s.Nacked, s.Expired, s.Taken,
		s.DeadLettered, s.Redriven, s.Discarded, s.Cancelled, s.Purged, s.PastRetention, s.Forced, s.Depth, s.Dead,
		s.InFlight, s.PausedGroups, s.HaltedGroups)
	r.say("  queue's pause: %s", markText(s.Paused, r.since))
	for _, where := range r.templates(q) {
		for g, err := range a.AllGroups(r.ctx, layer.GroupsOptions{Where: where}) {
			require.NoError(t, err)
			hold := "-"
			if g.Hold != (layer.ID{}) {
				hold = g.Hold.String()
			}
			r.say("  group %q %s %s: depth %d, head %d, %d failed %q, owner %q, token %d, outstanding %d, hold %s, "+
				"left %s, mark %s", g.Group, where, g.Status, g.Depth, g.Head.Index, g.Attempts, g.LastError, g.Owner,
				g.Token, g.Outstanding, hold, g.Left.Round(time.Millisecond), markText(g.Mark, r.since))
		}
	}
	for g, err := range a.AllGroups(r.ctx, layer.GroupsOptions{}) {
		require.NoError(t, err)
		for item, err := range a.AllItems(r.ctx, g.Group, nil) {
			require.NoError(t, err)
			r.known[item.ID] = string(item.Body)
			r.say("  item %s of %q: enqueued %s, due %s, dedup id %q, %d failed, first delivered %s, "+
				"headers %s, body %s", item.ID, g.Group, r.since(item.Enqueued), r.since(item.DeliverAt),
				item.DedupID, item.Attempts,
				r.since(item.FirstDelivered), headerText(item.Headers), bodyText(item.Body))
		}
	}
	for _, group := range r.groupsWith(q.Name(), "state") {
		state, err := q.GroupState(r.ctx, group)
		require.NoError(t, err)
		r.say("  state of %q: %q", group, state)
	}
	for d, err := range a.AllDeadLetters(r.ctx, layer.DeadOptions{Bodies: true}) {
		require.NoError(t, err)
		r.known[d.ID] = string(d.Body)
		r.say("  dead letter %s: enqueued %s, dedup id %q, %q, last error %q, %d failed, first delivered %s, "+
			"failed %s to %s, dead %s, headers %s, body %s", d.ID, r.since(d.Enqueued), d.DedupID, d.Reason,
			d.LastError, d.Attempts, r.since(d.FirstDelivered), r.since(d.First), r.since(d.Last),
			r.since(d.DeadLettered), headerText(d.Headers), bodyText(d.Body))
	}
	for i, err := range a.AllArchived(r.ctx, layer.ArchiveOptions{Bodies: true}) {
		require.NoError(t, err)
		require.NoError(t, i.Err)
		r.known[i.ID] = string(i.Body)
		r.say("  archived %s: enqueued %s, dedup id %q, completed %s, headers %s, body %s", i.ID, r.since(i.Enqueued),
			i.DedupID, r.since(i.Completed), headerText(i.Headers), bodyText(i.Body))
	}
	subscriptions, err := a.Subscriptions(r.ctx)
	require.NoError(t, err)
	for _, s := range subscriptions {
		r.say("  subscription %q of %q until %s: %d behind, next %s", s.Name, s.Owner, r.since(s.Until), s.Behind,
			r.since(s.Next))
	}
}

// check holds the queue to its rules, and writes down what the check has counted.
func (r *storedReader) check(q *layer.Queue) {
	c, err := q.Admin().Check(r.ctx, layer.CheckOptions{})
	require.NoError(r.t, err)
	for _, v := range c.Violations {
		r.say("  VIOLATION %s", v)
	}
	r.say("  checked items=%d bytes=%d groups=%d held=%d delayed=%d paused=%d halted=%d attempts=%d archived=%d "+
		"repeats=%d changes=%d subscriptions=%d states=%d paces=%d dead=%d beats=%d dedup=%d", c.Items, c.Bytes,
		c.Groups, c.Held, c.Delayed, c.Paused, c.Halted, c.Attempts, c.Archived, c.Repeats, c.Changes, c.Subscriptions,
		c.States, c.Paces, c.Dead, c.Beats, c.Dedup)
}

// tuples returns the keys of a name, as tuples behind the name.
func (r *storedReader) tuples(queue, name string) (all []tuple.Tuple) {
	section, ok := layer.Section(testPrefix, queue, name)
	require.True(r.t, ok, name)
	for _, row := range r.d.Rows {
		if section.Contains(row.Key) {
			key, err := tuple.Unpack(row.Key[len(testPrefix):])
			require.NoError(r.t, err)
			all = append(all, key[2:])
		}
	}
	return all
}

// groupsWith returns the groups that have a key of a name, whose first element is the group.
func (r *storedReader) groupsWith(queue, name string) (groups []string) {
	for _, key := range r.tuples(queue, name) {
		groups = append(groups, key[0].(string))
	}
	return groups
}

// templates returns all by which the queue can be received from: of each view the values that items have, and nil for
// whole groups.
func (r *storedReader) templates(q *layer.Queue) []layer.Template {
	c := q.Config()
	if len(c.Facets) == 0 {
		return []layer.Template{nil}
	}
	seen := make(map[string]layer.Template)
	for g, err := range q.Admin().AllGroups(r.ctx, layer.GroupsOptions{}) {
		require.NoError(r.t, err)
		for item, err := range q.Admin().AllItems(r.ctx, g.Group, nil) {
			require.NoError(r.t, err)
			for view := range strings.SplitSeq(c.Views, "; ") {
				where := layer.Template{}
				for name := range strings.SplitSeq(view, ",") {
					where[name] = item.Headers[name]
				}
				if view != "*" {
					seen[where.String()] = where
				}
			}
		}
	}
	var all []layer.Template
	for _, text := range slices.Sorted(maps.Keys(seen)) {
		all = append(all, seen[text])
	}
	if strings.Contains(c.Views, "*") {
		all = append(all, nil)
	}
	return all
}

// finish goes on with a job that was in the middle.
func (r *storedReader) finish(job string) {
	verb, queue, _ := strings.Cut(job, " ")
	if verb == "drop" {
		require.NoError(r.t, layer.Drop(r.ctx, r.db, testPrefix, queue, layer.DropOptions{}))
		return
	}
	q := r.open(queue)
	a, err := q.Admin(), error(nil)
	switch verb {
	case "purge":
		var p layer.PurgeReport
		p, err = a.Purge(r.ctx, layer.PurgeOptions{All: true})
		r.say("purge of %q: %d items, %d kept, %d states", queue, p.Items, p.Kept, p.States)
	case "redrive":
		var d layer.DeadReport
		d, err = a.Redrive(r.ctx, layer.DeadFilter{All: true}, layer.RedriveOptions{})
		r.say("redrive of %q: %d done", queue, d.Done)
	case "replay":
		var d layer.ReplayReport
		d, err = a.Replay(r.ctx, layer.ArchiveFilter{All: true}, layer.ReplayOptions{})
		r.say("replay of %q: %d done", queue, d.Done)
	case "discard":
		var d layer.DeadReport
		d, err = a.Discard(r.ctx, layer.DeadFilter{All: true}, layer.DiscardOptions{})
		r.say("discard of %q: %d done", queue, d.Done)
	case "sweep":
		var s layer.SweepReport
		s, err = a.Sweep(r.ctx, layer.SweepOptions{Every: time.Second})
		r.say("sweep of %q: skipped %v, past retention %d, archived %d, dead %d, repeats %d, receipts %d, dedup %d, "+
			"purges %d, changes %d, paces %d", queue, s.Skipped, s.PastRetention, s.Archived, s.Dead, s.Repeats,
			s.Receipts, s.Dedup, s.Purges, s.Changes, s.Paces)
	default:
		require.Fail(r.t, "unknown job", job)
	}
	require.NoError(r.t, err)
	require.NoError(r.t, q.Close(r.ctx))
}

// repeats repeats each receive that has an id: it must return the claims that the id was given.
func (r *storedReader) repeats(q *layer.Queue) {
	for _, key := range r.tuples(q.Name(), "repeat") {
		claims, err := q.Receive(r.ctx, layer.ReceiveOptions{ReceiveID: key[0].(string)})
		require.NoError(r.t, err)
		for _, c := range claims {
			var bodies []string
			for _, item := range c.Items {
				bodies = append(bodies, bodyText(item.Body))
			}
			r.say("  receive %q again: group %q, token %d, until %s: %s", key[0], c.Group, c.Token, r.since(c.Until),
				strings.Join(bodies, " "))
		}
	}
}

// duplicates sends a message for each dedup id that the queue remembers. One with an id from a body has that body.
func (r *storedReader) duplicates(q *layer.Queue) {
	for _, key := range r.tuples(q.Name(), "dedup") {
		group, id := "again", key[1].(string)
		if len(key) == 3 {
			group, id = key[1].(string), key[2].(string)
		}
		m := layer.Message{Group: group, DedupID: id, Body: []byte("again"), Headers: map[string]string{}}
		for _, facet := range q.Config().Facets {
			m.Headers[facet] = "again"
		}
		if of, ok := strings.CutPrefix(id, "sha256:"); ok {
			m.DedupID = ""
			for _, body := range r.known {
				if fmt.Sprintf("%x", sha256.Sum256([]byte(body))) == of {
					m.Body = []byte(body)
				}
			}
		}
		found, err := q.Find(r.ctx, group, id)
		require.NoError(r.t, err)
		sent, err := q.Enqueue(r.ctx, m)
		require.NoError(r.t, err)
		r.say("  dedup id %q in %q: %s, remembered %s; again: duplicate %v of %s", id, group, found.Where,
			r.since(found.Remembered), sent[0].Duplicate, r.idText(sent[0].ID))
	}
}

// changes reads on where each subscription has come to.
func (r *storedReader) changes(q *layer.Queue) {
	subscriptions, err := q.Admin().Subscriptions(r.ctx)
	require.NoError(r.t, err)
	for _, s := range subscriptions {
		ctx, stop := context.WithTimeout(r.ctx, 10*time.Minute)
		err := q.Subscribe(ctx, s.Name, func(_ context.Context, changes []layer.Change) error {
			for _, c := range changes {
				r.say("  change to %q: %s %s, %d items, facets %s", s.Name, c.Kind, r.idText(c.ID), c.Items,
					headerText(c.Facets))
			}
			return nil
		}, layer.SubscribeOptions{OnError: func(err error) { r.say("  to %q: %v", s.Name, err) }})
		require.NoError(r.t, err)
		stop()
	}
}

// work ends all marks, receives and acks until the queue is empty, and writes down in which order the messages of each
// group came.
func (r *storedReader) work(q *layer.Queue) {
	t, a := r.t, q.Admin()
	if _, paused, err := a.Paused(r.ctx); paused {
		_, err = a.Resume(r.ctx, layer.ResumeOptions{})
		require.NoError(t, err)
	} else {
		require.NoError(t, err)
	}
	var marked []string
	for g, err := range a.AllGroups(r.ctx, layer.GroupsOptions{Marked: true}) {
		require.NoError(t, err)
		marked = append(marked, g.Group)
	}
	for _, group := range marked {
		_, err := a.ResumeGroup(r.ctx, group, layer.ResumeOptions{})
		require.NoError(t, err)
	}
	templates, came := r.templates(q), make(map[string][]string)
	for round := 0; ; round++ {
		require.Less(t, round, 1000, "the queue does not become empty")
		claims := r.receiveAll(q, templates, came)
		if claims > 0 {
			continue
		}
		s, err := q.Stats(r.ctx, layer.StatsOptions{})
		require.NoError(t, err)
		if s.Depth == 0 {
			break
		}
		time.Sleep(5 * time.Minute)
	}
	for _, group := range slices.Sorted(maps.Keys(came)) {
		r.say("  worked %s: %s", group, strings.Join(came[group], " "))
	}
}

func (r *storedReader) receiveAll(q *layer.Queue, templates []layer.Template, came map[string][]string) (n int) {
	for _, where := range templates {
		claims, err := q.Receive(r.ctx, layer.ReceiveOptions{Max: 3, Where: where, CountExpired: true})
		require.NoError(r.t, err)
		for _, c := range claims {
			for _, item := range c.Items {
				lane := strconv.Quote(item.ID.Group)
				for _, facet := range q.Config().Facets {
					lane += " " + item.Headers[facet]
				}
				came[lane] = append(came[lane], fmt.Sprintf("%s/%d", bodyText(item.Body), item.Attempts))
			}
			require.NoError(r.t, q.Ack(r.ctx, c))
		}
		n += len(claims)
	}
	return n
}

// readAll reads the database of that name, and returns what was found, a line for each fact.
func readAll(t *testing.T, name string) (found []string) {
	synctest.Test(t, func(t *testing.T) {
		d := readStored(t, name)
		time.Sleep(time.Until(d.At)) // takes no real time
		db := embedded.OpenMemory(embedded.Options{})
		defer func() { require.NoError(t, db.Close()) }()
		require.NoError(t, d.Load(t.Context(), db))
		r := &storedReader{t: t, ctx: t.Context(), db: db, d: d, known: make(map[layer.ID]string)}
		r.run()
		found = r.lines
	})
	return found
}

// TestStored: this version reads the database of an earlier version as that version read it. The test compares
// settings, counters, groups, messages, states, dead letters, the archive and subscriptions. No rule is broken, jobs
// that were in the middle are finished, receives and dedup ids are remembered, and all messages come, in the order of
// their groups.
func TestStored(t *testing.T) {
	for _, name := range storedNames(t) {
		t.Run(name, func(t *testing.T) {
			want, err := os.ReadFile(filepath.Join(storedFolder, name+".want"))
			require.NoError(t, err)
			require.Equal(t, strings.Split(strings.TrimSpace(string(want)), "\n"), readAll(t, name))
		})
	}
}

// TestStoredIsDescribed: each row of these databases can be put into words, key and value.
func TestStoredIsDescribed(t *testing.T) {
	for _, name := range storedNames(t) {
		for _, row := range readStored(t, name).Rows {
			d, ok, err := layer.Describe(testPrefix, row.Key, row.Value)
			require.NoError(t, err, "%s: %s", name, tuple.Printable(row.Key))
			require.True(t, ok, "%s: %s", name, tuple.Printable(row.Key))
			require.NotEmpty(t, d.Key)
			require.NotEmpty(t, d.Value)
		}
	}
}

// keyForm is the form of a key: its name, and the kind of each further element. The kinds are text (s), number (i),
// UUID (u), versionstamp (v) and nested tuple. The texts behind a number, the values of a lane, count as one. The key
// of a setting or of a counter has the name, that of a dedup id the scope.
func keyForm(key tuple.Tuple) string {
	var forms []string
	for i, element := range key {
		switch v := element.(type) {
		case string:
			named := i == 1 && slices.Contains([]any{"meta", "dedup", "count"}, key[0])
			switch _, number := key[max(i-2, 0)].(int64); {
			case i == 0 || named:
				forms = append(forms, v)
			case i < 2 || !number || forms[len(forms)-1] != "s":
				forms = append(forms, "s")
			}
		case int64:
			forms = append(forms, "i")
		case uuid.UUID:
			forms = append(forms, "u")
		case tuple.Versionstamp:
			forms = append(forms, "v")
		case tuple.Tuple:
			forms = append(forms, "("+strings.TrimSpace(keyForm(append(tuple.Tuple{""}, v...)))+")")
		}
	}
	return strings.Join(forms, " ")
}

// valueForm tells apart the values of one form of key: the kinds of a lock or of a timer, and the optional parts.
func valueForm(name string, value []byte) string {
	t, err := tuple.Unpack(value)
	if err != nil {
		return ""
	}
	switch name {
	case "lock", "hold":
		mark, held := "", ""
		if m, ok := t[1].(tuple.Tuple); ok {
			mark = m[0].(string)
		}
		if len(t) > 2 {
			held = t[2].(tuple.Tuple)[0].(string)
		}
		return strings.Trim(fmt.Sprintf("%s+%s, %d behind", held, mark, max(len(t)-3, 0)), "+")
	case "timer", "due":
		return t[0].(string)
	case "ready", "beat":
		return fmt.Sprint(len(t))
	}
	return ""
}

// storedForms are the forms of rows that the key table of subspace.go has, each with the forms of its values, if these
// differ.
var storedForms = map[string]string{
	"archive s i u": "", "archived i i u": "", "attempt s i u": "", "beat u": "2; 3", "change i v i": "",
	"cursor s":   "",
	"dead s i u": "", "dedup group s s": "", "dedup queue s": "", "grant u s": "", "held u s": "",
	"hold s i u": "claim+, 1 behind; delay+, 0 behind", "item s i u": "", "part s i u i": "",
	"lane s i i u": "", "lane s i s i u": "",
	"lock s": "claim+, 1 behind; claim+, 2 behind; claim+pause, 1 behind; delay+, 0 behind; grant+, 0 behind; " +
		"halt, 0 behind; pause, 0 behind",
	"lock s i s": "claim+, 1 behind; delay+, 0 behind; halt, 0 behind",
	"mark s":     "", "mark s i s": "",
	"meta changed": "", "meta config": "", "meta dropped": "", "meta format": "", "meta missed": "", "meta offset": "",
	"meta pace": "", "meta paused": "", "meta purged": "", "meta swept": "", "meta swept_dead": "", "meta swept_to": "",
	"open i i i s": "", "open i i s i s": "", "pace s": "", "purged s": "", "reader s": "", "ready i i s": "0; 1",
	"receipt u": "", "repeat s": "", "reqgroup s i s u": "", "reqgroup s i u": "", "reqgroup s u": "",
	"reqlane i i u": "", "reqlane i s i u": "", "request i u": "", "state s": "", "wake u": "",
	"timer i s": "claim; delay; grant; head", "timer i u": "beat", "timer i s i u": "claim; delay",
	"timer (i) i s": "claim; delay; head", "timer (i) i s i u": "claim",
	"due i i s": "head", "due i (i) i s": "head", "due i i s i u": "claim; delay", "due i s i s": "claim; delay; head",
	"due i s (i) i s": "claim",
	"kept s () (i) i": "", "kept s (i s) () i": "", "kept s (i i u) () i": "",
	"count enqueued i": "", "count received i": "", "count acked i": "", "count nacked i": "", "count expired i": "",
	"count taken i": "", "count dead_lettered i": "", "count redriven i": "", "count discarded i": "",
	"count cancelled i": "", "count purged i": "", "count forced i": "", "count past_retention i": "",
	"count duplicates i": "", "count returned i": "", "count paused_groups i": "", "count halted_groups i": "",
}

// notStored are the forms and names of keys that the key table has, and that are in no database here, each with the
// reason.
var notStored = map[string]string{
	"grant u s i s": "a grant is of a whole group: only requests for any group are granted",
}

// TestStoredHasEachForm: the databases have each form of row that the key table has, of keys and of values, and each
// name that a key may have.
func TestStoredHasEachForm(t *testing.T) {
	found, names := make(map[string]map[string]bool), make(map[string]bool)
	for _, name := range storedNames(t) {
		for _, row := range readStored(t, name).Rows {
			key, err := tuple.Unpack(row.Key[len(testPrefix):])
			require.NoError(t, err)
			form := keyForm(key[1:])
			require.NotContains(t, notStored, form)
			if found[form] == nil {
				found[form] = make(map[string]bool)
			}
			found[form][valueForm(key[1].(string), row.Value)] = true
			names[key[1].(string)] = true
		}
	}
	have := make(map[string]string)
	for form, values := range found {
		have[form] = strings.Join(slices.Sorted(maps.Keys(values)), "; ")
	}
	require.Equal(t, storedForms, have)
	for _, name := range layer.KeyNames() {
		require.True(t, names[name] || notStored[name] != "", "no database has a row of the name %s", name)
	}
}
