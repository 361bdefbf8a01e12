package console

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// view is a page of the console.
type view struct {
	name  string // of its template
	title string
	role  Role // who may see the page
	live  int  // kept fresh by events, once in this many Options.Every; 0 = not
	data  func(c *Console, ctx context.Context, in input) (any, error)
}

// input is the content of a request, with its user.
type input struct {
	url.Values
	who identity
}

// queue is the queue that the page is about.
func (in input) queue() string { return in.Get("q") }

// after returns the message after which a list continues; nil = from the beginning.
func (in input) after() (*layer.ID, error) {
	if in.Get("after") == "" {
		return nil, nil
	}
	id, err := layer.ParseID(in.Get("after"))
	return &id, err
}

// escaped is the suffix of the name of a field whose value is escaped as in a query. A form would change the value: a
// browser turns a line feed into two characters, and a zero byte into another character.
const escaped = "~"

// plainNames returns the values, with the escaped ones unescaped.
func plainNames(values url.Values) url.Values {
	plain := make(url.Values, len(values))
	for name, all := range values {
		cut, is := strings.CutSuffix(name, escaped)
		for _, v := range all {
			if is {
				if u, err := url.QueryUnescape(v); err == nil {
					v = u
				}
			}
			plain.Add(cut, v)
		}
	}
	return plain
}

// views has the pages by path. Names of queues and groups are in the query, because a browser folds "." and ".." of
// paths.
var views = map[string]*view{}

func init() {
	for path, v := range map[string]*view{
		"/{$}":     {"queues", "Queues", Viewer, 2, (*Console).queuesPage},
		"/queue":   {"queue", "Overview", Viewer, 1, (*Console).queuePage},
		"/blocked": {"blocked", "Blocked groups", Viewer, 1, (*Console).blockedPage},
		"/groups":  {"groups", "Groups", Viewer, 0, (*Console).groupsPage},
		"/group":   {"group", "Group", Viewer, 1, (*Console).groupPage},
		"/message": {"message", "Message", Viewer, 0, (*Console).messagePage},
		"/holders": {"holders", "Holders", Viewer, 1, (*Console).holdersPage},
		"/db":      {"db", "Database", Viewer, 0, (*Console).databasePage},
		"/dead":    {"dead", "Dead letters", Viewer, 0, (*Console).deadPage},
		"/config":  {"config", "Configuration", Viewer, 0, (*Console).configPage},
		"/check":   {"check", "Check", Viewer, 0, (*Console).checkPage},
		"/archive": {"archive", "Archive", Viewer, 0, (*Console).archivePage},
		"/audit":   {"audit", "Actions", Viewer, 0, (*Console).auditPage},
		"/confirm": {"confirm", "Confirmation", Operator, 0, (*Console).confirmPage},
		"/edit":    {"edit", "Edit a message", Operator, 0, (*Console).editPage},
	} {
		views[path] = v
	}
}

// page is the data of the template "page".
type page struct {
	Title string
	Name  string // of the template with the contents
	Queue string
	InQ   bool // the page is about a queue
	Role  Role
	Who   string
	Live  string // the events of the page, a URL; "" = none
	Said  *Action
	Data  any
	At    time.Time
}

// content is the data of a template of contents.
type content struct {
	Queue string
	Role  Role
	Back  string // the page after an action
	At    time.Time
	D     any
}

// show answers with a page.
func (c *Console) show(w http.ResponseWriter, r *http.Request, v *view) {
	in := input{plainNames(r.URL.Query()), asking(r)}
	ctx, cancel := context.WithTimeout(afterClient(r), actTimeout)
	defer cancel()
	data, err := v.data(c, ctx, in)
	if err != nil {
		c.fail(w, r, status(err), text(err))
		return
	}
	p := &page{
		Title: v.title, Name: v.name, Queue: in.queue(), InQ: in.Has("q"), Role: in.who.role, Who: in.who.name,
		At: c.o.Now(),
	}
	name := strings.TrimPrefix(r.URL.Path, "/")
	query := url.Values{}
	for k, vs := range in.Values {
		if k != "said" {
			query[k] = vs
		}
	}
	back := "./" + name
	if len(query) > 0 {
		back += "?" + query.Encode()
	}
	if v.live > 0 {
		live := url.Values{"page": {"/" + name}}
		for k, vs := range query {
			live[k] = vs
		}
		p.Live = "events?" + live.Encode()
	}
	if n, err := strconv.ParseInt(in.Get("said"), 10, 64); err == nil {
		p.Said = c.audit.find(n)
	}
	p.Data = content{Queue: p.Queue, Role: p.Role, Back: back, At: p.At, D: data}
	c.render(w, http.StatusOK, p)
}

// render writes a page, or an error if the page cannot be made.
func (c *Console) render(w http.ResponseWriter, code int, p *page) {
	var b bytes.Buffer
	if err := c.pages.ExecuteTemplate(&b, "page", p); err != nil {
		c.o.Logger.Error("console: page", "name", p.Name, "error", err)
		http.Error(w, "this page cannot be shown", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(code)
	w.Write(b.Bytes())
}

// status is the status of an answer to a request that has failed.
func status(err error) int {
	switch {
	case kv.MaybeCommitted(err):
		return http.StatusServiceUnavailable // whatever a later attempt has met
	case errors.Is(err, layer.ErrNoQueue), errors.Is(err, layer.ErrNoItem), errors.Is(err, layer.ErrNotDead):
		return http.StatusNotFound
	case errors.Is(err, layer.ErrChanged), errors.Is(err, layer.ErrClaimLost), errors.Is(err, layer.ErrInFlight),
		errors.Is(err, layer.ErrNotPaused), errors.Is(err, layer.ErrNotDelayed), errors.Is(err, layer.ErrNotHeld),
		errors.Is(err, layer.ErrHeld), errors.Is(err, layer.ErrFull), errors.Is(err, layer.ErrForeignKeys),
		errors.Is(err, layer.ErrClock):
		return http.StatusConflict
	case errors.Is(err, layer.ErrLimit), errors.Is(err, layer.ErrOptions), errors.Is(err, layer.ErrInvalidID),
		errors.Is(err, layer.ErrInvalidUTF8), errors.Is(err, layer.ErrNoQueueName), errors.Is(err, layer.ErrNoGroup),
		errors.Is(err, errAsk):
		return http.StatusBadRequest
	}
	return http.StatusServiceUnavailable
}

// errAsk is wrapped by the error of a request that names nothing that exists.
var errAsk = errors.New("bad request")

// ranOut reports whether the time of a request has ended, and nothing has landed that its caller does not know of.
func ranOut(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) && !kv.MaybeCommitted(err)
}

func text(err error) string {
	var part *partError
	if errors.As(err, &part) {
		return part.Error()
	}
	if ranOut(err) {
		return "the database did not answer in time: reload the page to ask again"
	}
	return strings.TrimPrefix(err.Error(), "layer: ")
}

func isGone(err error) bool {
	return errors.Is(err, layer.ErrNoQueue) || errors.Is(err, layer.ErrClosed)
}

// queueRow is a queue in the list.
type queueRow struct {
	Name    string
	Stats   layer.Stats
	In, Out string // messages a second
	Err     string
	Trouble []string
}

// shownQueues bounds the queues of the first page: each costs a transaction every few seconds.
const shownQueues = 50

type queuesData struct {
	Queues []queueRow
	More   []string // further queues, of which nothing was read
}

func (c *Console) names(ctx context.Context) ([]string, error) {
	if c.o.DB == nil {
		return nil, nil
	}
	value, _, err := c.cache.get(ctx, question{text: "queues"}, c.o.Every, func() (any, error) {
		ctx, cancel := context.WithTimeout(c.ctx, listTimeout)
		defer cancel()
		return layer.Queues(ctx, c.o.DB, c.o.Prefix)
	})
	if err != nil {
		return nil, err
	}
	return value.([]string), nil
}

func (c *Console) queuesPage(ctx context.Context, _ input) (any, error) {
	names, err := c.names(ctx)
	if err != nil {
		return nil, err
	}
	shown := min(len(names), shownQueues)
	d := queuesData{Queues: make([]queueRow, shown), More: names[shown:]}
	var reading sync.WaitGroup // at the same time, so that no queue makes the page wait for the others
	for i, name := range names[:shown] {
		reading.Go(func() { d.Queues[i] = c.queueRow(ctx, name) })
	}
	reading.Wait()
	slices.SortStableFunc(d.Queues, func(a, b queueRow) int {
		return cmp.Or(
			-cmp.Compare(len(a.Err), len(b.Err)), -cmp.Compare(len(a.Trouble), len(b.Trouble)),
			-cmp.Compare(a.Stats.OldestReady, b.Stats.OldestReady),
		)
	})
	return d, nil
}

// queueRow reads the figures of a queue.
func (c *Console) queueRow(ctx context.Context, name string) queueRow {
	row := queueRow{Name: name}
	s, err := c.stats(ctx, name)
	if err != nil {
		row.Err = text(err)
	}
	row.Stats, row.Trouble = s, troubles(s)
	row.In, row.Out = rates(c.history(name))
	return row
}

// troubles returns the faults of a queue, as texts.
func troubles(s layer.Stats) (all []string) {
	say := func(bad bool, format string, args ...any) {
		if bad {
			all = append(all, fmt.Sprintf(format, args...))
		}
	}
	say(s.Paused != nil, "the queue is paused")
	say(s.HaltedGroups > 0, "%s halted", plural(s.HaltedGroups, "group"))
	say(s.FailingGroups > 0, "%s failing", plural(s.FailingGroups, "group"))
	say(s.PausedGroups > 0, "%s paused", plural(s.PausedGroups, "group"))
	say(s.Dead > 0, "%s", plural(s.Dead, "dead letter"))
	say(s.ReadyGroups > 0 && s.WaitingHandles == 0 && s.HeldGroups == 0, "no worker works")
	say(s.OldestReady > time.Minute, "a ready group has waited %s", Short(s.OldestReady))
	return all
}

type queueData struct {
	Stats   layer.Stats
	Trouble []string
	In, Out string
	Chart   chart
	Blocked layer.BlockedPage
}

func (c *Console) queuePage(ctx context.Context, in input) (any, error) {
	d := queueData{}
	var err error
	if d.Blocked, err = c.overview(ctx, in.queue()); err != nil {
		return nil, err
	}
	d.Stats, d.Trouble = *d.Blocked.Stats, troubles(*d.Blocked.Stats)
	d.Blocked.Groups = d.Blocked.Groups[:min(topBlocked, len(d.Blocked.Groups))]
	h := c.history(in.queue())
	d.In, d.Out = rates(h)
	d.Chart = draw(h)
	return d, nil
}

// topBlocked is how many blocked groups the overview of a queue shows.
const topBlocked = 10

// overview asks for the figures of a queue and the first page of blocked groups, in one transaction.
func (c *Console) overview(ctx context.Context, queue string) (layer.BlockedPage, error) {
	return ask(c, ctx, queue, "overview", func(ctx context.Context, q *layer.Queue) (layer.BlockedPage, error) {
		page, err := q.Admin().Blocked(ctx, layer.BlockedOptions{Stats: &layer.StatsOptions{}})
		if err == nil {
			c.note(queue, *page.Stats)
		}
		return page, err
	})
}

// blocked asks for a page of blocked groups.
func (c *Console) blocked(ctx context.Context, queue string, o layer.BlockedOptions) (layer.BlockedPage, error) {
	limit := o.Limit
	o.Limit = layer.DefaultBlocked
	page, err := ask(c, ctx, queue, fmt.Sprintf("blocked %q %+v", o.Causes, o.After),
		func(ctx context.Context, q *layer.Queue) (layer.BlockedPage, error) { return q.Admin().Blocked(ctx, o) })
	if err == nil && limit > 0 && limit < len(page.Groups) {
		page.Groups = page.Groups[:limit]
	}
	return page, err
}

type blockedData struct {
	Page  layer.BlockedPage
	Cause string
	Next  string // URL
	First bool
}

func (c *Console) blockedPage(ctx context.Context, in input) (any, error) {
	o, err := blockedOptions(in)
	if err != nil {
		return nil, err
	}
	d := blockedData{Cause: in.Get("cause"), First: o.After == nil}
	if d.Page, err = c.blocked(ctx, in.queue(), o); err != nil {
		return nil, err
	}
	if n := d.Page.Next; n != nil {
		d.Next = link("blocked", "q", in.queue(), "cause", in.Get("cause"), "rank", strconv.Itoa(n.Rank),
			"index", strconv.FormatInt(n.Index, 10), "after", n.Group)
	}
	return d, nil
}

// blockedOptions reads the query of a page of blocked groups.
func blockedOptions(in input) (layer.BlockedOptions, error) {
	var o layer.BlockedOptions
	if cause := in.Get("cause"); cause != "" {
		o.Causes = []layer.Cause{layer.Cause(cause)}
	}
	if !in.Has("after") {
		return o, nil
	}
	rank, err := strconv.Atoi(in.Get("rank"))
	index, err2 := strconv.ParseInt(in.Get("index"), 10, 64)
	if err := errors.Join(err, err2); err != nil {
		return o, fmt.Errorf("%w: %w", errAsk, err)
	}
	o.After = &layer.BlockedPlace{Rank: rank, Index: index, Group: in.Get("after")}
	return o, nil
}

type groupsData struct {
	Groups []layer.GroupInfo
	Marked bool
	Next   string
}

// pageGroups is how many groups, letters or items a page lists.
const pageRows = 50

func (c *Console) groupsPage(ctx context.Context, in input) (any, error) {
	o := layer.GroupsOptions{Limit: pageRows, MaxDepth: layer.BlockedDepth, Marked: in.Get("marked") != ""}
	if in.Has("after") {
		after := in.Get("after")
		o.After = &after
	}
	page, err := ask(c, ctx, in.queue(), fmt.Sprintf("groups %v %q %v", o.Marked, in.Get("after"), in.Has("after")),
		func(ctx context.Context, q *layer.Queue) (layer.GroupsPage, error) { return q.Admin().Groups(ctx, o) })
	if err != nil {
		return nil, err
	}
	d := groupsData{Groups: page.Groups, Marked: o.Marked}
	if page.Next != nil {
		d.Next = link("groups", "q", in.queue(), "marked", in.Get("marked"), "after", *page.Next)
	}
	return d, nil
}

type groupData struct {
	Info   layer.GroupInfo
	Why    layer.Explanation
	Items  []layer.Item
	Dead   []layer.DeadLetter
	State  int // bytes
	Remedy []remedy
	Advice []advice
}

// laneItems is how many items of a group are shown.
const laneItems = 20

func (c *Console) groupPage(ctx context.Context, in input) (any, error) {
	group := in.Get("g")
	return ask(c, ctx, in.queue(), "group "+group, func(ctx context.Context, q *layer.Queue) (*groupData, error) {
		var d groupData
		var err error
		if d.Info, err = q.Admin().Group(ctx, group, nil); err != nil {
			return nil, err
		}
		d.Why, err = q.Admin().WhyGroup(ctx, group, nil)
		switch {
		case errors.Is(err, layer.ErrCorrupt):
			d.Why.Reasons = []layer.Reason{{Cause: layer.CauseCorrupt, Err: text(err)}}
		case err != nil:
			return nil, err
		}
		if d.Items, err = q.Peek(ctx, group, laneItems, nil); err != nil && !errors.Is(err, layer.ErrCorrupt) {
			return nil, err
		}
		dead, err := q.Admin().DeadLetters(ctx, layer.DeadOptions{
			DeadFilter: layer.DeadFilter{Group: &group}, Limit: laneItems,
		})
		if err != nil {
			return nil, err
		}
		state, err := q.GroupState(ctx, group)
		d.Dead, d.State = dead.Letters, len(state)
		d.Remedy = groupRemedies(d.Info, d.Why.Reasons)
		d.Advice = advices(in.queue(), d.Info, d.Why.Reasons)
		return &d, err
	})
}

type messageData struct {
	ID     layer.ID
	Why    layer.Explanation
	Item   *layer.Item
	Letter *layer.DeadLetter
	Body   *string // only if asked for, and the role allows
	Binary bool
}

func (c *Console) messagePage(ctx context.Context, in input) (any, error) {
	id, err := layer.ParseID(in.Get("id"))
	if err != nil {
		return nil, err
	}
	q, err := c.queue(ctx, in.queue())
	if err != nil {
		return nil, err
	}
	d := messageData{ID: id}
	if d.Why, err = q.Admin().Why(ctx, id, nil); err != nil {
		return nil, err
	}
	var body []byte
	if d.Why.Reasons[0].Cause == layer.CauseDead {
		page, err := q.Admin().DeadLetters(ctx, layer.DeadOptions{
			DeadFilter: layer.DeadFilter{IDs: []layer.ID{id}}, Bodies: true,
		})
		if err != nil {
			return nil, err
		}
		if len(page.Letters) > 0 {
			d.Letter, body = &page.Letters[0], page.Letters[0].Body
		}
	} else if d.Item, err = findItem(ctx, q, id); err != nil {
		return nil, err
	} else if d.Item != nil {
		body = d.Item.Body
	}
	if in.Get("body") != "" && in.who.role == Operator {
		shown := string(body)
		if d.Binary = !printable(shown); d.Binary {
			shown = fmt.Sprintf("%x", body[:min(len(body), 4096)])
		}
		d.Body = &shown
	}
	return d, nil
}

// findItem looks for an item among the first of its group; nil = it is not among those.
func findItem(ctx context.Context, q *layer.Queue, id layer.ID) (*layer.Item, error) {
	n := 0
	for item, err := range q.Admin().AllItems(ctx, id.Group, nil) {
		if err != nil {
			return nil, err
		}
		if item.ID == id {
			return &item, nil
		}
		if n++; n == layer.BlockedDepth {
			break
		}
	}
	return nil, nil
}

type deadData struct {
	Letters []layer.DeadLetter
	Filter  url.Values
	Next    string
}

// groupChosen returns the group of a filter; nil = any group. A group that is named is meant, also if the box "any
// group" is checked, as it is on a new page. The box tells any group from the default group, whose name is empty.
func groupChosen(in url.Values) *string {
	group := in.Get("g")
	if !in.Has("g") || group == "" && in.Get("anygroup") != "" {
		return nil
	}
	return &group
}

// targetOf is the group that a page of confirmation and the audit name.
func targetOf(in url.Values) string {
	if group := groupChosen(in); group != nil {
		return *group
	}
	return ""
}

// deadFilter reads the query of a page of dead letters.
func deadFilter(in input) (layer.DeadFilter, error) {
	f := layer.DeadFilter{Group: groupChosen(in.Values), Text: in.Get("text")}
	if in.Has("id") {
		id, err := layer.ParseID(in.Get("id"))
		return layer.DeadFilter{IDs: []layer.ID{id}}, err
	}
	for name, t := range map[string]*time.Time{"from": &f.From, "before": &f.Before} {
		if in.Get(name) == "" {
			continue
		}
		at, err := time.Parse("2006-01-02T15:04", in.Get(name)) // as a browser sends it
		if err != nil {
			if at, err = time.Parse(time.RFC3339, in.Get(name)); err != nil {
				return f, fmt.Errorf("%w: %s: %w", errAsk, name, err)
			}
		}
		*t = at
	}
	return f, nil
}

func (c *Console) deadPage(ctx context.Context, in input) (any, error) {
	f, err := deadFilter(in)
	if err != nil {
		return nil, err
	}
	o := layer.DeadOptions{DeadFilter: f, Limit: pageRows}
	if o.After, err = in.after(); err != nil {
		return nil, err
	}
	q, err := c.queue(ctx, in.queue())
	if err != nil {
		return nil, err
	}
	page, err := q.Admin().DeadLetters(ctx, o)
	if err != nil {
		return nil, err
	}
	d := deadData{Letters: page.Letters, Filter: in.Values}
	if page.Next != nil {
		next := url.Values{}
		for k, vs := range in.Values {
			next[k] = vs
		}
		next.Set("after", page.Next.String())
		d.Next = "dead?" + next.Encode()
	}
	return d, nil
}

type settingRow struct {
	layer.Setting
	Value string
}

type configData struct {
	Version  int64
	Settings []settingRow
}

func (c *Console) configPage(ctx context.Context, in input) (any, error) {
	q, err := c.queue(ctx, in.queue())
	if err != nil {
		return nil, err
	}
	config, version, err := q.Admin().ReadConfig(ctx)
	if err != nil {
		return nil, err
	}
	d := configData{Version: version}
	for _, s := range layer.Settings() {
		value, err := config.Setting(s.Name)
		if err != nil {
			return nil, err
		}
		d.Settings = append(d.Settings, settingRow{Setting: s, Value: value})
	}
	return d, nil
}

type archiveData struct {
	Items  []layer.ArchivedItem
	Filter url.Values
	Next   string
}

// archiveFilter reads the query of a page of the archive.
func archiveFilter(in input) (layer.ArchiveFilter, error) {
	f, err := deadFilter(in)
	return layer.ArchiveFilter{Group: f.Group, From: f.From, Before: f.Before}, err
}

func (c *Console) archivePage(ctx context.Context, in input) (any, error) {
	after, err := in.after()
	if err != nil {
		return nil, err
	}
	f, err := archiveFilter(in)
	if err != nil {
		return nil, err
	}
	o := layer.ArchiveOptions{ArchiveFilter: f, Limit: pageRows, After: after}
	q, err := c.queue(ctx, in.queue())
	if err != nil {
		return nil, err
	}
	page, err := q.Admin().Archive(ctx, o)
	if err != nil {
		return nil, err
	}
	d := archiveData{Items: page.Items, Filter: in.Values}
	if page.Next != nil {
		next := maps.Clone(in.Values)
		next.Set("after", page.Next.String())
		d.Next = "archive?" + next.Encode()
	}
	return d, nil
}

func (c *Console) checkPage(context.Context, input) (any, error) { return nil, nil }

func (c *Console) auditPage(context.Context, input) (any, error) { return c.audit.latest(), nil }
