package console

import (
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
	"time"

	"fdbfifo/internal/strict"
	"fdbfifo/layer"
)

// deed is one action on a queue, as a form or a call of the API asks for it.
type deed struct {
	q       *layer.Queue
	in      url.Values
	by      string
	now     time.Time
	numbers *numbers // of the console

	next, once string // of the Action
}

// verbs are the actions of an operator. Each returns a text about the action. The request has the state that the page
// has shown. If the state has changed since, the action does nothing. So a second click does nothing.
var verbs = map[string]func(d *deed, ctx context.Context) (string, error){
	"pause-queue":   (*deed).pauseQueue,
	"resume-queue":  (*deed).resumeQueue,
	"pause":         (*deed).pause,
	"resume":        (*deed).resume,
	"retry":         (*deed).retry,
	"retry-alike":   (*deed).retryAlike,
	"skip":          (*deed).skip,
	"cancel":        (*deed).cancel,
	"edit":          (*deed).edit,
	"purge":         (*deed).purge,
	"release":       (*deed).release,
	"release-count": (*deed).release,
	"redrive":       (*deed).redrive,
	"discard":       (*deed).discard,
	"replay":        (*deed).replay,
	"sweep":         (*deed).sweep,
	"configure":     (*deed).configure,
	"check":         (*deed).check,
}

// ofGroup are the verbs that act on the group of the field g. The field may be empty, which is the default group, and
// it must be there.
var ofGroup = map[string]bool{
	"pause": true, "resume": true, "retry": true, "skip": true, "purge": true, "release": true, "release-count": true,
}

// admin is the operator's side of the queue, under the name of the user.
func (d *deed) admin() layer.Admin { return d.q.Admin().As(d.by) }

// partError is the error of an action that has done a part of its work: what it has done, and how the user goes on.
type partError struct {
	done, goOn string
	err        error
}

func (e *partError) Error() string {
	why := text(e.err)
	if ranOut(e.err) {
		why = "an action may take " + Short(actTimeout)
	}
	return e.done + ", then: " + why + "; " + e.goOn
}

func (e *partError) Unwrap() error { return e.err }

// partly adds to err how much an action has done, if that is more than nothing.
func partly(done string, n int64, goOn string, err error) error {
	if err == nil || n == 0 {
		return err
	}
	return &partError{done, goOn, err}
}

const repeat = "repeat the action to go on"

// continues says how the user continues an action on letters. An action that was confirmed is not done again, because
// the letters have changed.
func (d *deed) continues() string {
	if d.in.Has("seen") {
		return "to go on, confirm the rest"
	}
	return repeat
}

// group is the group that the action is about.
func (d *deed) group() string { return d.in.Get("g") }

// deed returns the action of a request. q may be nil if the queue cannot be opened.
func (c *Console) deed(q *layer.Queue, in url.Values, who identity) *deed {
	return &deed{q: q, in: in, by: who.name, now: c.o.Now(), numbers: &c.numbers}
}

// act does the action of a request, and remembers it for the audit.
func (c *Console) act(ctx context.Context, who identity, in url.Values) (Action, error) {
	a := Action{
		At: c.o.Now(), By: who.name, Verb: in.Get("verb"), Queue: in.Get("q"), Target: targetOf(in),
		Reason: in.Get("reason"),
	}
	if id := in.Get("id"); id != "" {
		a.Target = id
	}
	ctx, cancel := context.WithTimeout(ctx, actTimeout)
	defer cancel()
	do, ok := verbs[a.Verb]
	q, err := c.queue(ctx, a.Queue)
	if err == nil && !ok {
		err = fmt.Errorf("%w: there is no verb %q", errAsk, a.Verb)
	}
	if err == nil && ofGroup[a.Verb] && !in.Has("g") {
		err = fmt.Errorf("%w: %s wants a group", errAsk, a.Verb)
	}
	d := c.deed(q, in, who)
	if err == nil {
		a.Result, err = do(d, ctx)
		a.Next = d.next
	}
	if err != nil {
		a.Result, a.Failed = text(err), true
		if isGone(err) {
			c.forget(a.Queue)
		}
	}
	a.N = c.audit.add(a)
	a.Once = d.once // for the client alone
	c.cache.forget(a.Queue)
	return a, err
}

// afterClient is a context for work whose length is bounded. It does not end with the request's context, because that
// of a client which ends its sending side ends at once, though the client waits for the answer.
func afterClient(r *http.Request) context.Context { return context.WithoutCancel(r.Context()) }

// backOf returns the page of the console that the field back names; "" = none. A link of another site may name a page
// of that site there.
func backOf(in url.Values) string {
	back := in.Get("back")
	if !strings.HasPrefix(back, "./") || strings.HasPrefix(back, ".//") || strings.ContainsAny(back, "\\\r\n") {
		return ""
	}
	return back
}

// do does the action of a form. It answers with a redirect (303) to a page that says what was done.
func (c *Console) do(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseForm(); err != nil {
		c.fail(w, r, http.StatusBadRequest, "the form cannot be read")
		return
	}
	form := plainNames(r.PostForm)
	a, err := c.act(afterClient(r), asking(r), form)
	if err != nil {
		c.fail(w, r, status(err), a.Result)
		return
	}
	back := cmp.Or(backOf(form), "./"+link("queue", "q", a.Queue))
	sep := "?"
	if strings.Contains(back, "?") {
		sep = "&"
	}
	// Relative, so that it is right wherever the console is mounted; http.Redirect would make it absolute.
	w.Header().Set("Location", back+sep+"said="+strconv.FormatInt(a.N, 10))
	w.WriteHeader(http.StatusSeeOther)
}

func (d *deed) pauseQueue(ctx context.Context) (string, error) {
	m, err := d.admin().Pause(ctx, layer.PauseOptions{Reason: d.in.Get("reason")})
	return "the queue is " + m.String(), err
}

func (d *deed) resumeQueue(ctx context.Context) (string, error) {
	mark, err := d.mark()
	if err != nil {
		return "", err
	}
	m, err := d.admin().Resume(ctx, layer.ResumeOptions{Mark: mark})
	return "the queue is resumed; it was " + m.String(), err
}

func (d *deed) pause(ctx context.Context) (string, error) {
	m, err := d.admin().PauseGroup(ctx, d.group(), layer.PauseOptions{Reason: d.in.Get("reason")})
	return "the group is " + m.String(), err
}

// mark returns the mark that the page has shown; nil = the form has none, so the verb ends whatever mark there is. A
// mark that is there and empty is refused.
func (d *deed) mark() (*layer.Mark, error) {
	if !d.in.Has("mark") {
		return nil, nil
	}
	if d.in.Get("mark") == "" {
		return nil, fmt.Errorf("%w: the mark is empty", errAsk)
	}
	ms, err := strconv.ParseInt(d.in.Get("mark_since"), 10, 64)
	if err != nil {
		return nil, fmt.Errorf("%w: mark_since: %w", errAsk, err)
	}
	return &layer.Mark{
		Status: layer.Status(d.in.Get("mark")), By: d.in.Get("mark_by"), Reason: d.in.Get("mark_reason"),
		Since: time.UnixMilli(ms),
	}, nil
}

func (d *deed) resume(ctx context.Context) (string, error) {
	mark, err := d.mark()
	if err != nil {
		return "", err
	}
	m, err := d.admin().ResumeGroup(ctx, d.group(), layer.ResumeOptions{Mark: mark})
	return "the group is resumed; it was " + m.String(), err
}

// id is the id in a field.
func (d *deed) id(name string) (layer.ID, error) {
	if d.in.Get(name) == "" {
		return layer.ID{}, fmt.Errorf("%w: %s is wanted", errAsk, name)
	}
	return layer.ParseID(d.in.Get(name))
}

// flag reports whether the field of a name is 1. It may be left out. Anything else is refused: an empty value may be
// that of a variable which is not set.
func (d *deed) flag(name string) (bool, error) {
	if !d.in.Has(name) || d.in.Get(name) == "1" {
		return d.in.Has(name), nil
	}
	return false, fmt.Errorf("%w: %s is %q: give 1, or leave it out", errAsk, name, d.in.Get(name))
}

func (d *deed) retry(ctx context.Context) (string, error) {
	where, err := d.where()
	if err != nil {
		return "", err
	}
	// The messages of a template need not include the group's head, so a retry by template has no condition on the
	// head.
	o := layer.RetryOptions{Where: where}
	if where == nil {
		if o.Head, err = d.id("head"); err != nil {
			return "", err
		}
	}
	return "the group is ready", d.admin().RetryNow(ctx, d.group(), o)
}

// where is the template in the field where; nil = there is none.
func (d *deed) where() (layer.Template, error) {
	if !d.in.Has("where") {
		return nil, nil
	}
	var t layer.Template
	if err := strict.Unmarshal([]byte(d.in.Get("where")), &t); err != nil {
		return nil, fmt.Errorf("%w: where: %w", errAsk, err)
	}
	if t == nil {
		return nil, fmt.Errorf("%w: where: null is no template", errAsk)
	}
	return t, nil
}

func (d *deed) skip(ctx context.Context) (string, error) {
	head, err := d.id("head")
	if err != nil {
		return "", err
	}
	id, err := d.admin().Skip(ctx, d.group(), layer.SkipOptions{Head: head, Reason: d.in.Get("reason")})
	return fmt.Sprintf("%s is among the dead letters", id), err
}

func (d *deed) cancel(ctx context.Context) (string, error) {
	id, err := d.id("id")
	if err != nil {
		return "", err
	}
	return "the message was removed", d.admin().Cancel(ctx, id)
}

func (d *deed) edit(ctx context.Context) (string, error) {
	id, err := d.id("id")
	if err != nil {
		return "", err
	}
	if !d.in.Has("body") {
		return "", fmt.Errorf("%w: edit wants a body", errAsk)
	}
	// A browser sends a line of a text area with a carriage return; a body that has any is not edited here.
	seen, body := d.in.Get("seen"), strings.ReplaceAll(d.in.Get("body"), "\r\n", "\n")
	err = d.admin().Edit(ctx, id, func(m *layer.Message) error {
		if digest(m.Body) != seen {
			return layer.ErrChanged
		}
		m.Body = []byte(body)
		return nil
	})
	return fmt.Sprintf("the message has a new body of %d bytes", len(body)), err
}

func (d *deed) purge(ctx context.Context) (string, error) {
	head, err := d.id("head")
	if err != nil {
		return "", err
	}
	report, err := d.admin().Purge(ctx, layer.PurgeOptions{Group: layer.OnlyGroup(d.group()), Head: head})
	words := fmt.Sprintf("%s removed, %d left in flight", plural(report.Items, "message"), report.Kept)
	return words, partly(words, report.Items, repeat, err)
}

func (d *deed) release(ctx context.Context) (string, error) {
	token, err := strconv.ParseInt(d.in.Get("token"), 10, 64)
	if err != nil || token == 0 {
		return "", fmt.Errorf("%w: token is %q: send the token that the page has shown", errAsk, d.in.Get("token"))
	}
	o := layer.ForceReleaseOptions{Token: token, CountAttempt: d.in.Get("verb") == "release-count"}
	if o.Where, err = d.where(); err != nil {
		return "", err
	}
	if d.in.Has("hold") {
		if o.Hold, err = d.id("hold"); err != nil {
			return "", err
		}
	}
	if o.CountAttempt {
		o.Reason = d.in.Get("reason")
	}
	h, err := d.admin().ForceRelease(ctx, d.group(), o)
	return fmt.Sprintf("taken from %q with %s in flight", h.Owner, plural(int64(h.Outstanding), "message")), err
}

// chosen returns the filter of a redrive or a discard. Only an explicit field chooses all dead letters.
func (d *deed) chosen() (layer.DeadFilter, error) {
	f, err := deadFilter(input{Values: d.in})
	if err == nil {
		err = d.noneEmpty("text", "from", "before")
	}
	if err == nil && f.Text != "" && strings.TrimSpace(f.Text) == "" {
		err = fmt.Errorf("%w: the text is blank", errAsk) // nearly every reason has a blank
	}
	if err == nil && f.Group == nil && f.IDs == nil && f.Text == "" && f.From.IsZero() && f.Before.IsZero() {
		if f.All = d.in.Get("all") == "1"; !f.All {
			err = fmt.Errorf("%w: say which dead letters", errAsk)
		}
	}
	return f, err
}

// noneEmpty returns an error if one of the fields is there and empty, such as that of a variable which is not set. A
// filter without the field would choose more.
func (d *deed) noneEmpty(names ...string) error {
	for _, name := range names {
		if d.in.Has(name) && d.in.Get(name) == "" {
			return fmt.Errorf("%w: %s is empty: leave it out, or give it a value", errAsk, name)
		}
	}
	return nil
}

func (d *deed) redrive(ctx context.Context) (string, error) {
	f, err := d.chosen()
	if err != nil {
		return "", err
	}
	var o layer.RedriveOptions
	if o.ToTail, err = d.flag("tail"); err != nil {
		return "", err
	}
	if o.DryRun, err = d.flag("dry_run"); err != nil {
		return "", err
	}
	if f, err = d.confirmed(ctx, f); err != nil {
		return "", err
	}
	report, err := d.admin().Redrive(ctx, f, o)
	words := deadWords(report.Done, d.in.Get("verb"), o.DryRun)
	return words, partly(words, report.Done, d.continues(), err)
}

func (d *deed) discard(ctx context.Context) (string, error) {
	f, err := d.chosen()
	if err != nil {
		return "", err
	}
	var o layer.DiscardOptions
	if o.DryRun, err = d.flag("dry_run"); err != nil {
		return "", err
	}
	if f, err = d.confirmed(ctx, f); err != nil {
		return "", err
	}
	report, err := d.admin().Discard(ctx, f, o)
	words := deadWords(report.Done, d.in.Get("verb"), o.DryRun)
	return words, partly(words, report.Done, d.continues(), err)
}

func (d *deed) sweep(ctx context.Context) (string, error) {
	r, err := d.admin().Sweep(ctx, layer.SweepOptions{})
	words := fmt.Sprintf("%s looked at, %d past retention, %d archived, %d dead letters cleared", plural(r.Keys, "key"),
		r.PastRetention, r.Archived, r.Dead)
	return words, partly(words, r.Keys, repeat, err)
}

// deadWords says how many letters a redrive or a discard has changed, or would change.
func deadWords(n int64, verb string, dry bool) string {
	done := map[string]string{"redrive": "given back", "discard": "removed for good"}[verb]
	if dry {
		done = "would be " + done
	}
	return plural(n, "dead letter") + " " + done
}

func (d *deed) configure(ctx context.Context) (string, error) {
	if !d.in.Has("value") {
		return "", fmt.Errorf("%w: configure wants a value", errAsk)
	}
	name, old, value := d.in.Get("setting"), d.in.Get("old"), d.in.Get("value")
	changed := func(c *layer.Config) error {
		now, err := c.Setting(name)
		switch {
		case err != nil:
			return fmt.Errorf("%w: %w", errAsk, err)
		case now != old:
			return fmt.Errorf("%w: %s is %s now", layer.ErrChanged, name, now)
		}
		return c.Set(name, value)
	}
	config, _, err := d.admin().ReadConfig(ctx)
	if err == nil {
		err = changed(&config)
	}
	if err != nil {
		return "", err
	}
	var since error // another client has changed the setting since: the transaction reads the newest one
	_, version, err := d.admin().Configure(ctx, func(c *layer.Config) {
		next := *c
		if since = changed(&next); since == nil {
			*c = next
		}
	})
	if version > 0 {
		err = partly(fmt.Sprintf("%s is %s, version %d", name, value, version), 1, "the next sweep does the rest", err)
	}
	if err == nil {
		err = since
	}
	return fmt.Sprintf("%s is %s, version %d", name, value, version), err
}

func (d *deed) check(ctx context.Context) (string, error) {
	report, err := d.admin().Check(ctx, layer.CheckOptions{})
	if err != nil {
		return "", err
	}
	words := fmt.Sprintf("%s in %s looked at: ", plural(report.Items, "message"), plural(report.Groups, "group"))
	if len(report.Violations) == 0 {
		return words + "all rules hold", nil
	}
	words += plural(int64(len(report.Violations)), "violation")
	for i, v := range report.Violations {
		if i == 10 {
			words += fmt.Sprintf("; and %d more", len(report.Violations)-i)
			break
		}
		words += "; " + v.String()
	}
	return words, nil
}

// confirmData is the content of a page of confirmation.
type confirmData struct {
	Verb, Label, Hint string
	Target            string
	Count             string // what would be done, found by a dry run
	Fields            []field
	Back              string
}

// carried are the fields that a page of confirmation passes on.
var carried = []string{
	"q", "g", "anygroup", "id", "head", "alike", "token", "where", "hold", "text", "from", "before", "after", "all",
	"tail", "mark", "mark_by", "mark_reason", "mark_since", "back",
}

func (c *Console) confirmPage(ctx context.Context, in input) (any, error) {
	verb := in.Get("verb")
	words, ok := remedyWords[verb]
	if !ok {
		return nil, fmt.Errorf("%w: there is no verb %q", errAsk, verb)
	}
	d := confirmData{
		Verb: verb, Label: words.Label, Hint: words.Hint, Target: targetOf(in.Values), Back: backOf(in.Values),
	}
	q, err := c.queue(ctx, in.queue())
	if err != nil {
		return nil, err
	}
	asked := c.deed(q, maps.Clone(in.Values), in.who)
	switch {
	case (verb == "redrive" || verb == "discard") && !in.Has("id"):
		var seen letters
		if seen, err = asked.fixLetters(ctx); err == nil {
			d.Count = deadWords(int64(len(seen.ids)), verb, true)
			d.Fields = append(d.Fields, field{"seen", seen.digest()})
		}
	case slices.Contains([]string{"redrive", "discard", "replay", "retry-alike"}, verb):
		if verb == "replay" {
			err = asked.fixReplay()
		}
		dry := *asked
		dry.in = maps.Clone(asked.in)
		dry.in.Set("dry_run", "1")
		if err == nil {
			d.Count, err = verbs[verb](&dry, ctx)
		}
		if dry.once != "" {
			d.Fields = append(d.Fields, field{"once", dry.once})
		}
	case in.Has("g"):
		var g layer.GroupInfo
		if g, err = q.Admin().Group(ctx, in.Get("g"), nil); err == nil {
			d.Count = fmt.Sprintf("the group is %s and has %s", g.Status, plural(g.Depth, "message"))
			if want := in.Get("head"); want != "" && want != g.Head.String() {
				err = fmt.Errorf("%w: another message is the first of the group now", layer.ErrChanged)
			}
		}
	}
	for _, name := range carried {
		if asked.in.Has(name) {
			d.Fields = append(d.Fields, field{name, asked.in.Get(name)})
		}
	}
	return d, err
}

type editData struct {
	ID   string
	Body string
	Seen string
	Back string
}

// maxEditable bounds the body that a page shows for an edit.
const maxEditable = 1 << 20

func (c *Console) editPage(ctx context.Context, in input) (any, error) {
	id, err := layer.ParseID(in.Get("id"))
	if err != nil {
		return nil, err
	}
	q, err := c.queue(ctx, in.queue())
	if err != nil {
		return nil, err
	}
	item, err := findItem(ctx, q, id)
	if err != nil {
		return nil, err
	}
	if item == nil {
		return nil, fmt.Errorf("%w: %s is not among the first of its group", layer.ErrNoItem, id)
	}
	if body := string(item.Body); len(body) > maxEditable || !printable(body) || strings.Contains(body, "\r") {
		return nil, errors.Join(errAsk, errors.New("the body is no text, or too long for a page: use fdbfifo edit"))
	}
	return editData{ID: id.String(), Body: string(item.Body), Seen: digest(item.Body), Back: backOf(in.Values)}, nil
}
