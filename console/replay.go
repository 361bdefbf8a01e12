package console

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sync"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// A replay changes nothing in the archive. So a second click finds the same messages, and would enqueue them again.
// Therefore the form has a number that is good for one replay. The page of confirmation bounds the time at which the
// messages were finished, and a large archive is replayed in portions, each behind the last message of the one before.
// So no later portion has a replayed message that a worker finishes in between.

// maxReplay is how many archived messages an action replays, so that the action ends. The command has no such bound.
const maxReplay = 1000

// maxNumbers is how many one-time numbers the console remembers.
const maxNumbers = 1000

// numbers are the one-time numbers that the console has issued, and that were not used.
type numbers struct {
	mu   sync.Mutex
	open []string // the oldest first; guarded by mu
}

// issue returns a new number.
func (n *numbers) issue() string {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.open) == maxNumbers {
		n.open = slices.Delete(n.open, 0, 1)
	}
	n.open = append(n.open, rand.Text())
	return n.open[len(n.open)-1]
}

// use ends a number. It returns an error if the number was used before. A number that is older than the console, or
// than the last maxNumbers ones, counts as used.
func (n *numbers) use(number string) error {
	if number == "" {
		return fmt.Errorf("%w: once is wanted: the number of a confirmation, or of a dry run", errAsk)
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	i := slices.Index(n.open, number)
	if i < 0 {
		return fmt.Errorf("%w: this was confirmed before, or the confirmation is old: the page Actions has the result",
			layer.ErrChanged)
	}
	n.open = slices.Delete(n.open, i, i+1)
	return nil
}

// archived returns the filter of a replay, and the message behind which it begins. Only an explicit field chooses all
// messages. The filter ends at the present, also if a later end was asked for.
func (d *deed) archived() (layer.ArchiveFilter, *layer.ID, error) {
	in := input{Values: d.in}
	f, err := archiveFilter(in)
	if err == nil {
		err = d.noneEmpty("from", "before")
	}
	if err == nil && f.Group == nil && f.From.IsZero() && f.Before.IsZero() && d.in.Get("all") != "1" {
		err = fmt.Errorf("%w: say which archived messages", errAsk)
	}
	if end := d.now.Add(time.Millisecond); f.Before.IsZero() || f.Before.After(end) {
		f.Before = end
	}
	after, wrong := in.after()
	return f, after, errors.Join(err, wrong)
}

// fixReplay ends the filter of a page of confirmation at the present, for all portions.
func (d *deed) fixReplay() error {
	f, _, err := d.archived()
	d.in.Set("before", f.Before.UTC().Format(exactTime))
	return err
}

// replay enqueues archived messages again, at most maxReplay. If there are more, it sets d.next to the page that
// confirms the next portion. A dry run sets d.once.
func (d *deed) replay(ctx context.Context) (string, error) {
	f, after, err := d.archived()
	if err != nil {
		return "", err
	}
	dry, err := d.flag("dry_run")
	if err == nil && !dry {
		err = d.numbers.use(d.in.Get("once"))
	}
	if err != nil {
		return "", err
	}
	o := layer.ReplayOptions{After: after, DryRun: dry, Limit: maxReplay}
	report, err := d.admin().Replay(ctx, f, o)
	words := plural(report.Done, "message")
	if report.More {
		words = "the first " + words
	}
	if dry {
		if err == nil {
			d.once = d.numbers.issue()
		}
		return words + " would be enqueued again", err
	}
	words += " enqueued again"
	goOn := "the page Actions has a link to go on"
	switch {
	case kv.MaybeCommitted(err): // a link would enqueue the messages of the last step twice, if it has landed
		goOn = "the last step may have landed: look for messages with the header " + layer.ReplayHeader
	case report.Last != nil && (report.More || err != nil):
		d.next = d.rest(f, *report.Last)
	}
	return words, partly(words, report.Done, goOn, err)
}

// rest is the link to the confirmation of the messages behind last.
func (d *deed) rest(f layer.ArchiveFilter, last layer.ID) string {
	query := url.Values{
		"verb": {"replay"}, "q": {d.in.Get("q")}, "after": {last.String()},
		"before": {f.Before.UTC().Format(exactTime)}, "back": {"./" + link("archive", "q", d.in.Get("q"))},
	}
	if f.Group != nil {
		query.Set("g", *f.Group)
	}
	if !f.From.IsZero() {
		query.Set("from", f.From.UTC().Format(exactTime))
	}
	return "confirm?" + query.Encode()
}
