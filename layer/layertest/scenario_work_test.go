package layer_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// The verbs of scenarios that enqueue, receive and settle; see TestScenarios.

func (s *scenario) enqueue(a *arguments) (string, error) {
	var msgs []layer.Message
	var names []string
	message := func(group, body, dedup string, headers map[string]string) {
		body, delay, _ := strings.Cut(body, "+")
		m := layer.Message{
			Group: group, Body: fullBody(a, body), Headers: headers, DedupID: dedup, Delay: a.duration("delay"),
		}
		if delay != "" {
			m.Delay = a.parseDuration(delay)
		}
		if a.d.HasArg("at") {
			m.DeliverAt = s.e.clock.now().Add(a.duration("at"))
		}
		m.AtOnce, m.JoinWhenDue = a.flag("at-once"), a.flag("join")
		msgs = append(msgs, m)
		names = append(names, body)
	}
	for _, line := range strings.Split(strings.TrimSpace(a.d.Input), "\n") {
		fields := strings.Fields(line)
		if len(fields) == 0 {
			continue
		}
		for _, body := range fields[1:] {
			if strings.HasPrefix(body, "{") {
				last, header := &msgs[len(msgs)-1], strings.SplitN(strings.Trim(body, "{}"), ":", 2)
				if last.Headers == nil {
					last.Headers = make(map[string]string)
				}
				last.Headers[header[0]] = header[1]
				continue
			}
			body, dedup, _ := strings.Cut(body, "~")
			message(strings.Trim(fields[0], `"`), body, dedup, nil)
		}
	}
	if words := a.names("at-once", "join"); len(words) > 0 {
		for _, body := range words[1:] {
			message(words[0], body, a.text("dedup", ""), a.headers())
		}
	}
	var sent []layer.Sent
	w := s.worker(a)
	return s.call(a, func(ctx context.Context) (err error) {
		sent, err = w.q.Enqueue(ctx, msgs...)
		return err
	}, func(err error) (string, error) {
		var out strings.Builder
		for i := range sent {
			if sent[i].Duplicate {
				fmt.Fprintf(&out, "%s duplicate of %s\n", names[i], s.bodies[sent[i].ID])
				continue
			}
			s.bodies[sent[i].ID] = names[i]
		}
		return out.String(), err
	})
}

func (s *scenario) receive(a *arguments) (string, error) {
	w, o := s.worker(a), s.receiveOptions(a)
	var claims []*layer.Claim
	return s.call(a, func(ctx context.Context) (err error) {
		claims, err = w.q.Receive(ctx, o)
		return err
	}, func(err error) (string, error) { return s.received(a, w, claims, err) })
}

func (s *scenario) receiveOptions(a *arguments) layer.ReceiveOptions {
	o := layer.ReceiveOptions{
		Max: a.number("max"), MaxBytes: a.number("bytes"), MaxGroups: a.number("groups"), Lease: a.duration("lease"),
		State: a.flag("state"), ReceiveID: a.text("id", ""), Wait: a.duration("wait"), OnlyIfAny: a.flag("only-if-any"),
		Group: a.group(), Where: a.where(), Unordered: a.flag("unordered"), Heartbeat: a.flag("heartbeat"),
		CountExpired: a.flag("count-expired"),
	}
	switch strategy := a.text("strategy", ""); strategy {
	case "", "fill-group":
	case "layers":
		o.Strategy = layer.Layers
	case "heads":
		o.Strategy = layer.Heads
	default:
		a.d.Fatalf(a.t, "unknown strategy %q", strategy)
	}
	return o
}

// received prints what a receive has got, and keeps it for what settles it.
func (s *scenario) received(a *arguments, w *scenarioWorker, claims []*layer.Claim, err error) (string, error) {
	if err != nil || len(claims) == 0 {
		return "nothing", err
	}
	var out strings.Builder
	for _, c := range claims {
		name := s.nameOf(c)
		if old := w.claims[name]; old != nil && (!a.d.HasArg("id") || c.Token != old.Token) {
			require.Greater(a.t, c.Token, old.Token, "tokens of a group grow")
		}
		w.claims[name] = c
		fmt.Fprintf(&out, "%s:%s", claimName(c), s.items(a, c.Items))
		if c.State != nil {
			fmt.Fprintf(&out, " state=%s", c.State)
		}
		out.WriteByte('\n')
	}
	return out.String(), nil
}

// nameOf tells a claim of a worker from its others: by what claim and its options say.
func (s *scenario) nameOf(c *layer.Claim) string {
	return fmt.Sprintf("%s where=%s item=%s", c.Group, c.Where, s.bodies[c.Hold])
}

// claimName returns the name of a claim's object in a transcript.
func claimName(c *layer.Claim) string {
	switch {
	case c.Where != nil:
		return fmt.Sprintf("%s where %s", groupName(c.Group), c.Where)
	case c.Hold != layer.ID{}:
		return groupName(c.Group) + " item"
	}
	return groupName(c.Group)
}

// claim is the last that the worker of a directive was given of its group, template or message.
func (s *scenario) claim(a *arguments) *layer.Claim { return s.claimOf(a, s.worker(a)) }

func (s *scenario) claimOf(a *arguments, w *scenarioWorker) *layer.Claim {
	name := fmt.Sprintf("%s where=%s item=%s", a.word(0), a.where(), a.text("item", ""))
	c := w.claims[name]
	if c == nil {
		a.d.Fatalf(a.t, "no claim on %s", name)
	}
	return c
}

// settled is the claim as it was given: later steps may name what was acked.
func (s *scenario) settled(a *arguments) (*layer.Queue, *layer.Claim) {
	same := *s.claim(a)
	return s.worker(a).q, &same
}

func (s *scenario) ackReceive(a *arguments) (string, error) {
	w, c, o := s.worker(a), s.claim(a), s.receiveOptions(a)
	var claims []*layer.Claim
	return s.call(a, func(ctx context.Context) (err error) {
		claims, err = w.q.SettleReceive(ctx, layer.Settlement{Claim: c, FinishAll: true}, o)
		return err
	}, func(err error) (string, error) { return s.received(a, w, claims, err) })
}

func (s *scenario) ack(a *arguments) (string, error) {
	q, c := s.settled(a)
	state, items := []byte(a.text("state", "")), s.ids(a, c, "items")
	return s.call(a, func(ctx context.Context) error {
		if a.d.HasArg("state") {
			return q.Settle(ctx, ackingState(c, state, items...))
		}
		if len(items) == 0 {
			return q.Ack(ctx, c)
		}
		return q.AckItems(ctx, c, items)
	}, noResult)
}

func (s *scenario) keep(a *arguments) (string, error) {
	q, c := s.settled(a)
	state := []byte(a.text("state", ""))
	return s.call(a, func(ctx context.Context) error { return q.Settle(ctx, settingState(c, state)) }, noResult)
}

func (s *scenario) extend(a *arguments) (string, error) {
	q, c := s.settled(a)
	var until time.Time
	return s.call(a, func(ctx context.Context) (err error) {
		until, err = q.Extend(ctx, c, a.duration("lease"))
		return err
	}, func(err error) (string, error) {
		return fmt.Sprintf("until %s from now", until.Sub(s.e.clock.now())), err
	})
}

// nack is also release.
func (s *scenario) nack(a *arguments) (string, error) {
	q, c := s.settled(a)
	o := layer.NackOptions{
		Delay: a.duration("delay"), AtOnce: a.flag("at-once"), Reject: a.text("reject", ""),
		Release: a.d.Cmd == "release", Behind: a.flag("behind"),
	}
	if text := a.text("error", ""); text != "" {
		o.Err = errors.New(text)
	}
	if ids := s.ids(a, c, "from"); len(ids) > 0 {
		o.From = &ids[0]
	}
	acked, state := s.ids(a, c, "acked"), []byte(a.text("state", ""))
	return s.call(a, func(ctx context.Context) error {
		if len(acked) == 0 && !a.d.HasArg("state") {
			return q.Nack(ctx, c, o)
		}
		back := layer.Settlement{Claim: c, Finish: acked, Nack: &o}
		if a.d.HasArg("state") {
			back.State = &state
		}
		return q.Settle(ctx, back)
	}, noResult)
}

// advance rewrites items of a claim, all those that it has left or some.
func (s *scenario) advance(a *arguments) (string, error) {
	q, c := s.settled(a)
	ids, body, headers := s.ids(a, c, "items"), a.text("body", ""), a.headers()
	return s.call(a, func(ctx context.Context) error {
		return q.Settle(ctx, advanceBy(c, func(m *layer.Message) error {
			if body != "" {
				m.Body = fullBody(a, body)
			}
			maps.Copy(m.Headers, headers)
			return nil
		}, ids...))
	}, func(err error) (string, error) {
		if err == nil && body != "" {
			for _, id := range ids {
				s.bodies[id] = body
			}
		}
		return "", err
	})
}

func (s *scenario) reschedule(a *arguments) (string, error) {
	q, id, at := s.worker(a).q, s.id(a, a.word(0)), time.Time{}
	if after := a.duration("after"); after > 0 {
		at = s.e.clock.now().Add(after)
	}
	return s.call(a, func(ctx context.Context) error { return q.Reschedule(ctx, id, at) }, noResult)
}

func (s *scenario) replace(a *arguments) (string, error) {
	q, id, name, headers := s.worker(a).q, s.id(a, a.word(0)), a.word(1), a.headers()
	body := fullBody(a, name)
	return s.call(a, func(ctx context.Context) error { return q.Replace(ctx, id, body, headers) },
		func(err error) (string, error) {
			if err == nil {
				s.bodies[id] = name
			}
			return "", err
		})
}

func (s *scenario) take(a *arguments) (string, error) {
	w := s.worker(a)
	var items []layer.Item
	limit, o := a.number("max"), layer.TakeOptions{Group: a.group(), Where: a.where(), Unordered: a.flag("unordered")}
	return s.call(a, func(ctx context.Context) error {
		return w.q.Once(ctx, func(tx kv.Tx) (err error) {
			items, _, err = w.q.TakeTx(ctx, tx, limit, o)
			return err
		})
	}, func(err error) (string, error) {
		if err != nil || len(items) == 0 {
			return "nothing", err
		}
		return groupName(items[0].ID.Group) + ":" + s.items(a, items), nil
	})
}

func (s *scenario) state(a *arguments) (string, error) {
	q, group := s.worker(a).q, a.word(0)
	if a.d.HasArg("set") || a.flag("clear") {
		o := layer.SetGroupStateOptions{Force: a.flag("force")}
		return "", q.Admin().SetGroupState(s.e.ctx, group, []byte(a.text("set", "")), o)
	}
	state, err := q.GroupState(s.e.ctx, group)
	if err != nil || state == nil {
		return "none", err
	}
	return string(state), nil
}
