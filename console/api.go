package console

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"fdbfifo/internal/strict"
	"fdbfifo/layer"
)

func writeJSON(w http.ResponseWriter, code int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = WriteJSON(w, v) // the client has gone
}

// apiQuestion is a handler of GET /api/v1/NAME, and the names of the parameters that it reads.
type apiQuestion struct {
	reads  []string
	answer func(c *Console, ctx context.Context, in input) (any, error)
}

// questions are the handlers of GET /api/v1/NAME.
var questions = map[string]apiQuestion{
	"queues":  {nil, func(c *Console, ctx context.Context, _ input) (any, error) { return c.names(ctx) }},
	"stats":   {[]string{"q"}, (*Console).apiStats},
	"blocked": {[]string{"q", "cause", "rank", "index", "after"}, (*Console).apiBlocked},
	"groups":  {[]string{"q", "marked", "after"}, (*Console).apiGroups},
	"group":   {[]string{"q", "g"}, (*Console).apiGroup},
	"why":     {[]string{"q", "id"}, (*Console).apiWhy},
	"dead":    {[]string{"q", "g", "anygroup", "id", "text", "from", "before", "after"}, (*Console).apiDead},
	"audit":   {nil, (*Console).auditPage},
}

func (c *Console) apiGet(w http.ResponseWriter, r *http.Request) {
	asked, ok := questions[r.PathValue("what")]
	if !ok {
		c.fail(w, r, http.StatusNotFound, "there is no such question")
		return
	}
	in := input{plainNames(r.URL.Query()), asking(r)}
	for name := range in.Values { // a filter under a wrong name would choose all
		if !slices.Contains(asked.reads, name) {
			text := fmt.Sprintf("there is no parameter %q here: there are %q", name, asked.reads)
			c.fail(w, r, http.StatusBadRequest, text)
			return
		}
	}
	ctx, cancel := context.WithTimeout(afterClient(r), actTimeout)
	defer cancel()
	v, err := asked.answer(c, ctx, in)
	if err != nil {
		c.fail(w, r, status(err), text(err))
		return
	}
	if l, ok := v.(listing); ok {
		if v = l.rows; l.next != "" {
			w.Header().Set("Link", "<"+l.next+`>; rel="next"`)
		}
	}
	writeJSON(w, http.StatusOK, v)
}

// listing is rows of a list. next is the URL of the rows after them, relative to the request's; "" = there are none.
// The header Link gives it.
type listing struct {
	rows any
	next string
}

// with adds the head. A client sends it back with an action, as the message that it has seen.
func (j JSONGroup) with(head layer.ID) JSONGroup {
	if head != (layer.ID{}) {
		j.Head = head.String()
	}
	return j
}

func (c *Console) apiStats(ctx context.Context, in input) (any, error) {
	s, err := c.stats(ctx, in.queue())
	return JSONOfStats(in.queue(), s), err
}

func (c *Console) apiBlocked(ctx context.Context, in input) (any, error) {
	o, err := blockedOptions(in)
	if err != nil {
		return nil, err
	}
	page, err := c.blocked(ctx, in.queue(), o)
	if err != nil {
		return nil, err
	}
	groups := []JSONGroup{}
	for _, g := range page.Groups {
		groups = append(groups, JSONOfBlocked(g).with(g.Head))
	}
	return map[string]any{
		"groups": groups, "summary": page.Summary, "sampled": page.Sampled, "paused": JSONOfMark(page.Paused),
		"waiting_handles": page.Waiting, "next": page.Next,
	}, nil
}

func (c *Console) apiGroups(ctx context.Context, in input) (any, error) {
	d, err := c.groupsPage(ctx, in)
	if err != nil {
		return nil, err
	}
	groups := []JSONGroup{}
	for _, g := range d.(groupsData).Groups {
		groups = append(groups, JSONOfGroup(g).with(g.Head))
	}
	return listing{groups, d.(groupsData).Next}, nil
}

func (c *Console) apiGroup(ctx context.Context, in input) (any, error) {
	d, err := c.groupPage(ctx, in)
	if err != nil {
		return nil, err
	}
	g := d.(*groupData)
	j := JSONOfGroup(g.Info).with(g.Info.Head)
	j.Reasons = JSONOfReasons(g.Why.Reasons)
	return j, nil
}

func (c *Console) apiWhy(ctx context.Context, in input) (any, error) {
	id, err := layer.ParseID(in.Get("id"))
	if err != nil {
		return nil, err
	}
	q, err := c.queue(ctx, in.queue())
	if err != nil {
		return nil, err
	}
	e, err := q.Admin().Why(ctx, id, nil)
	return map[string]any{"id": id.String(), "group": id.Group, "reasons": JSONOfReasons(e.Reasons)}, err
}

// JSONLetter is a dead letter, without its body.
type JSONLetter struct {
	ID           string    `json:"id"`
	Group        string    `json:"group"`
	Reason       string    `json:"reason"`
	LastError    string    `json:"last_error,omitempty"`
	Attempts     int       `json:"attempts"`
	Size         int64     `json:"size"`
	Enqueued     time.Time `json:"enqueued"`
	DeadLettered time.Time `json:"dead_lettered"`
}

func (c *Console) apiDead(ctx context.Context, in input) (any, error) {
	d, err := c.deadPage(ctx, in)
	if err != nil {
		return nil, err
	}
	letters := []JSONLetter{}
	for _, l := range d.(deadData).Letters {
		letters = append(letters, JSONLetter{
			ID: l.ID.String(), Group: l.ID.Group, Reason: l.Reason, LastError: l.LastError, Attempts: l.Attempts,
			Size: l.Size, Enqueued: l.Enqueued.UTC(), DeadLettered: l.DeadLettered.UTC(),
		})
	}
	return listing{letters, d.(deadData).Next}, nil
}

// apiDeed is the body of POST /api/v1/do.
type apiDeed struct {
	Queue  string  `json:"queue"`
	Verb   string  `json:"verb"`
	Group  *string `json:"group"` // left out = none; "" is refused: see DefaultGroup
	ID     *string `json:"id"`    // "" is no id, and refused where an id chooses
	Reason string  `json:"reason"`
	DryRun bool    `json:"dry_run"`
	// DefaultGroup chooses the default group, whose name is empty. It cannot be given with Group. An empty Group is
	// most often that of a variable which is not set.
	DefaultGroup bool `json:"default_group"`
	// After and Before are of a replay: it begins behind the archived message After, and leaves out the messages that
	// were finished at Before or later. See Action.Next.
	After  *string `json:"after"`
	Before *string `json:"before"`
	Expect struct {
		Head  string    `json:"head"`
		Token int64     `json:"token"`
		Mark  *JSONMark `json:"mark"`
		// Where and Hold say which of the group's claims has the token; "" = that of the whole group.
		Where layer.Template `json:"where"`
		Hold  string         `json:"hold"`
		// Once is the number of the dry run of a replay.
		Once string `json:"once"`
	} `json:"expect"`
}

// hasNull reports whether a text of JSON has a null, such as that of a variable which is not set. Go reads null as a
// member that is left out, so an id of null would choose all letters of its group.
func hasNull(text io.Reader) bool {
	for dec := json.NewDecoder(text); ; {
		switch word, err := dec.Token(); {
		case err != nil:
			return false
		case word == nil:
			return true
		}
	}
}

func (c *Console) apiDo(w http.ResponseWriter, r *http.Request) {
	var d apiDeed
	text, err := io.ReadAll(r.Body)
	if err != nil || !strict.Whole(text) || strict.UnmarshalKnown(text, &d) != nil {
		c.refuse(w, r, http.StatusBadRequest, "the request is no JSON of an action")
		return
	}
	if hasNull(bytes.NewReader(text)) {
		c.refuse(w, r, http.StatusBadRequest, "null is no value: leave the member out, or give it a value")
		return
	}
	if d.Verb == "edit" || d.Verb == "configure" {
		c.refuse(w, r, http.StatusBadRequest, d.Verb+" is for people: use the page, or the command")
		return
	}
	in := url.Values{"q": {d.Queue}, "verb": {d.Verb}, "reason": {d.Reason}, "head": {d.Expect.Head}}
	for name, value := range map[string]*string{"after": d.After, "before": d.Before} {
		if value == nil {
			continue
		}
		if *value == "" || d.Verb != "replay" {
			c.refuse(w, r, http.StatusBadRequest, name+" is for a replay, and not empty")
			return
		}
		in.Set(name, *value)
	}
	in.Set("once", d.Expect.Once)
	switch {
	case d.Group != nil && (*d.Group == "" || d.DefaultGroup):
		c.refuse(w, r, http.StatusBadRequest, `give a group that is not empty, or "default_group": true`)
		return
	case d.Group != nil:
		in.Set("g", *d.Group)
	case d.DefaultGroup:
		in.Set("g", "")
	}
	if d.ID != nil {
		in.Set("id", *d.ID)
		if id, err := layer.ParseID(*d.ID); err == nil && in.Has("g") && id.Group != in.Get("g") {
			text := fmt.Sprintf("the message with the id is of another group: %q", id.Group)
			c.refuse(w, r, http.StatusBadRequest, text)
			return
		}
	}
	if d.DryRun {
		in.Set("dry_run", "1")
	}
	if d.Expect.Token != 0 {
		in.Set("token", strconv.FormatInt(d.Expect.Token, 10))
	}
	if d.Expect.Where != nil {
		in.Set("where", templateText(d.Expect.Where))
	}
	if d.Expect.Hold != "" {
		in.Set("hold", d.Expect.Hold)
	}
	if m := d.Expect.Mark; m != nil {
		for _, f := range markFields(&layer.Mark{
			Status: layer.Status(m.Status), By: m.By, Reason: m.Reason, Since: m.Since,
		}) {
			in.Set(f.Name, f.Value)
		}
	}
	if d.DryRun && d.Verb != "redrive" && d.Verb != "discard" && d.Verb != "replay" {
		c.refuse(w, r, http.StatusBadRequest, "only redrive, discard and replay can be tried without effect")
		return
	}
	a, err := c.act(afterClient(r), asking(r), in)
	if err != nil {
		c.fail(w, r, status(err), a.Result)
		return
	}
	writeJSON(w, http.StatusOK, a)
}
