package layer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/layer"
)

// The verbs of scenarios for subscriptions; see TestScenarios.

// changes collects the changes that a subscription gets.
type changes struct {
	mu    sync.Mutex
	lines []changeLine
}

// changeLine is a change, or, with text, what happened between two.
type changeLine struct {
	change layer.Change
	text   string
}

// failed is told the errors after which the subscription goes on. The transcript has those of the handler, and changes
// that were missed; how often the engine fails is a matter of chance.
func (c *changes) failed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if _, ok := errors.AsType[*layer.ChangeError](err); ok {
		c.lines = append(c.lines, changeLine{text: "the handler fails"})
	}
	if _, ok := errors.AsType[*layer.MissedError](err); ok {
		c.lines = append(c.lines, changeLine{text: "some were missed"})
	}
}

// handler fails once, if it is told of a message.
func (c *changes) handler(failsAt layer.ID) func(context.Context, []layer.Change) error {
	failed := failsAt == layer.ID{}
	return func(_ context.Context, all []layer.Change) error {
		c.mu.Lock()
		defer c.mu.Unlock()
		for _, change := range all {
			if !failed && change.ID == failsAt {
				failed = true
				return errors.New("fails once")
			}
			c.lines = append(c.lines, changeLine{change: change})
		}
		return nil
	}
}

// subscribe runs a subscription. In real time it ends when all changes were delivered. In virtual time it runs in
// parallel with the transcript.
func (s *scenario) subscribe(a *arguments) (string, error) {
	q, name, c := s.worker(a).q, a.word(0), &changes{}
	o := layer.SubscribeOptions{
		Where: a.where(), FromOldest: a.flag("from-oldest"), Max: a.number("max"), OnError: c.failed,
	}
	if arg, ok := a.d.Arg("kinds"); ok {
		for _, kind := range arg.Vals {
			o.Kinds = append(o.Kinds, a.changeKind(kind))
		}
	}
	var failsAt layer.ID
	if body := a.text("fail", ""); body != "" {
		failsAt = s.id(a, body)
	}
	return s.call(a, func(ctx context.Context) error {
		if s.virtual {
			return q.Subscribe(ctx, name, c.handler(failsAt), o)
		}
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		ended := make(chan error, 1)
		go func() { ended <- q.Subscribe(ctx, name, c.handler(failsAt), o) }()
		for {
			select {
			case err := <-ended:
				return err
			case <-time.After(time.Millisecond):
			}
			if s.caughtUp(name) {
				stop()
				return <-ended
			}
		}
	}, func(err error) (string, error) { return s.toldChanges(c), err })
}

// caughtUp reports whether a subscription that is running has been told of all changes.
func (s *scenario) caughtUp(name string) bool {
	all, err := s.workers["w1"].q.Admin().Subscriptions(s.e.ctx)
	return err == nil && slices.ContainsFunc(all, func(i layer.SubscriptionInfo) bool {
		return i.Name == name && i.Owner != "" && i.Behind == 0
	})
}

// onePurge adds up the reports of a purge. A purge removes in as many transactions as it needs, and takes smaller steps
// where the engine fails. Each step is a change.
func (c *changes) onePurge() {
	var lines []changeLine
	for _, l := range c.lines {
		last := len(lines) - 1
		if l.change.Kind == layer.ChangePurged && last >= 0 && lines[last].change.Kind == layer.ChangePurged &&
			lines[last].change.ID.Group == l.change.ID.Group {
			lines[last].change.Items += l.change.Items
			continue
		}
		lines = append(lines, l)
	}
	c.lines = lines
}

// toldChanges prints what a subscription was told.
func (s *scenario) toldChanges(c *changes) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.onePurge()
	if len(c.lines) == 0 {
		return "nothing"
	}
	var out strings.Builder
	for _, l := range c.lines {
		if l.text != "" {
			fmt.Fprintln(&out, l.text)
			continue
		}
		change := l.change
		if change.Kind == layer.ChangePurged {
			fmt.Fprintf(&out, "%s: %d %s\n", groupName(change.ID.Group), change.Items, change.Kind)
			continue
		}
		fmt.Fprintf(&out, "%s: %s %s", groupName(change.ID.Group), s.bodies[change.ID], change.Kind)
		if change.Facets != nil {
			fmt.Fprintf(&out, " %s", layer.Template(change.Facets))
		}
		if change.Was != nil {
			fmt.Fprintf(&out, ", was %s", layer.Template(change.Was))
		}
		out.WriteByte('\n')
	}
	return out.String()
}

func (s *scenario) subscriptions(a *arguments) (string, error) {
	all, err := s.worker(a).q.Admin().Subscriptions(s.e.ctx)
	if err != nil || len(all) == 0 {
		return "none", err
	}
	var out strings.Builder
	for _, i := range all {
		require.NoError(a.t, i.Err)
		fmt.Fprintf(&out, "%s behind=%d", i.Name, i.Behind)
		if i.Owner != "" {
			fmt.Fprintf(&out, " owner=%s left=%s", i.Owner, i.Until.Sub(s.e.clock.now()))
		}
		if !i.Next.IsZero() {
			fmt.Fprintf(&out, " next %s ago", s.e.clock.now().Sub(i.Next))
		}
		out.WriteByte('\n')
	}
	return out.String(), nil
}

func (s *scenario) unsubscribe(a *arguments) (string, error) {
	q, name := s.worker(a).q, a.word(0)
	return s.call(a, func(ctx context.Context) error { return q.Admin().Unsubscribe(ctx, name) }, noResult)
}

func (a *arguments) changeKind(name string) layer.ChangeKind {
	for k := layer.ChangeEnqueued; k <= layer.ChangeLeft; k++ {
		if k.String() == name {
			return k
		}
	}
	a.d.Fatalf(a.t, "unknown kind of change %q", name)
	return 0
}
