package layer_test

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/stretchr/testify/require"

	"fdbfifo/layer"
)

// The verbs of scenarios for operators; see TestScenarios.

func (s *scenario) configure(a *arguments) (string, error) {
	w := s.worker(a)
	var version int64
	return s.call(a, func(ctx context.Context) (err error) {
		_, version, err = w.q.Admin().Configure(ctx, func(c *layer.Config) {
			for _, arg := range a.d.CmdArgs {
				if arg.Key != "worker" && arg.Key != "hold" && arg.Key != "beside" {
					require.NoError(a.t, c.Set(arg.Key, strings.Join(arg.Vals, " ")))
				}
			}
		})
		return err
	}, func(err error) (string, error) { return fmt.Sprintf("version %d", version), err })
}

func (s *scenario) cancel(a *arguments) (string, error) {
	q, id := s.worker(a).q, s.id(a, a.word(0))
	return s.call(a, func(ctx context.Context) error { return q.Admin().Cancel(ctx, id) }, noResult)
}

func (s *scenario) skip(a *arguments) (string, error) {
	q, group := s.worker(a).q, a.word(0)
	o := layer.SkipOptions{By: a.text("by", ""), Reason: a.text("reason", "")}
	var id layer.ID
	return s.call(a, func(ctx context.Context) (err error) {
		id, err = q.Admin().Skip(ctx, group, o)
		return err
	}, func(err error) (string, error) { return s.bodies[id], err })
}

func (s *scenario) edit(a *arguments) (string, error) {
	q, was, name := s.worker(a).q, a.word(0), a.word(1)
	id, old, body, headers := s.id(a, was), fullBody(a, was), fullBody(a, name), a.headers()
	return s.call(a, func(ctx context.Context) error {
		return q.Admin().Edit(ctx, id, func(m *layer.Message) error {
			require.Equal(a.t, old, m.Body, "an edit is given the whole message")
			m.Body = body
			maps.Copy(m.Headers, headers)
			return nil
		})
	}, func(err error) (string, error) {
		if err == nil {
			s.bodies[id] = name
		}
		return "", err
	})
}

func (s *scenario) force(a *arguments) (string, error) {
	q, group := s.worker(a).q, a.word(0)
	o := layer.ForceReleaseOptions{CountAttempt: a.flag("count"), Reason: a.text("reason", ""), Where: a.where()}
	if item := a.text("item", ""); item != "" {
		o.Hold = s.id(a, item)
	}
	if of := a.text("of", ""); of != "" {
		o.Token = s.claimOf(a, s.workers[of]).Token
	}
	var h layer.Holder
	return s.call(a, func(ctx context.Context) (err error) {
		h, err = q.Admin().ForceRelease(ctx, group, o)
		return err
	}, func(err error) (string, error) {
		return fmt.Sprintf("was held by %s, outstanding=%d", h.Owner, h.Outstanding), err
	})
}

func (s *scenario) retry(a *arguments) (string, error) {
	q, group, o := s.worker(a).q, a.word(0), layer.RetryOptions{Where: a.where()}
	return s.call(a, func(ctx context.Context) error { return q.Admin().RetryNow(ctx, group, o) }, noResult)
}

func (s *scenario) pause(a *arguments) (string, error) {
	q := s.worker(a).q
	words := a.names("force")
	o := layer.PauseOptions{
		By: a.text("by", ""), Reason: a.text("reason", ""), Force: a.flag("force"),
	}
	var m layer.Mark
	return s.call(a, func(ctx context.Context) (err error) {
		switch {
		case a.d.Cmd == "pause" && len(words) > 0:
			m, err = q.Admin().PauseGroup(ctx, words[0], o)
		case a.d.Cmd == "pause":
			m, err = q.Admin().Pause(ctx, o)
		case len(words) > 0:
			m, err = q.Admin().ResumeGroup(ctx, words[0], layer.ResumeOptions{})
		default:
			m, err = q.Admin().Resume(ctx, layer.ResumeOptions{})
		}
		return err
	}, func(err error) (string, error) {
		return fmt.Sprintf("%s by %s (%s) for %s", m.Status, m.By, m.Reason, s.e.clock.now().Sub(m.Since)), err
	})
}

func (s *scenario) sweep(a *arguments) (string, error) {
	q := s.worker(a).q
	return s.call(a, func(ctx context.Context) error {
		_, err := q.Admin().Sweep(ctx, layer.SweepOptions{})
		return err
	}, noResult)
}

func (s *scenario) purge(a *arguments) (string, error) {
	words := a.names("force")
	o := layer.PurgeOptions{Force: a.flag("force"), All: len(words) == 0}
	if len(words) > 0 {
		o.Group = &words[0]
	}
	q := s.worker(a).q
	var r layer.PurgeReport
	return s.call(a, func(ctx context.Context) (err error) {
		r, err = q.Admin().Purge(ctx, o)
		return err
	}, func(err error) (string, error) {
		out := fmt.Sprintf("purged=%d kept=%d forced=%d", r.Items, r.Kept, r.Forced)
		if r.States > 0 {
			out += fmt.Sprintf(" states=%d", r.States)
		}
		return out, err
	})
}

// dead lists dead letters, a page of limit after the other, with their bodies.
func (s *scenario) dead(a *arguments) (string, error) {
	o := layer.DeadOptions{DeadFilter: s.filter(a), Limit: a.number("limit"), Bodies: true}
	var out strings.Builder
	for {
		page, err := s.worker(a).q.Admin().DeadLetters(s.e.ctx, o)
		if err != nil {
			return "", err
		}
		for _, d := range page.Letters {
			require.True(a.t, bytes.Equal(fullBody(a, s.bodies[d.ID]), d.Body), "body of %s", s.bodies[d.ID])
			require.EqualValues(a.t, len(d.Body), d.Size)
			now := s.e.clock.now()
			fmt.Fprintf(&out, "%s: %s dead-lettered %s ago: %s: %s, attempts=%d", groupName(d.ID.Group),
				s.bodies[d.ID], now.Sub(d.DeadLettered), d.Reason, d.LastError, d.Attempts)
			if d.Attempts > 0 {
				fmt.Fprintf(&out, ", first %s ago, last %s ago", now.Sub(d.First), now.Sub(d.Last))
			}
			out.WriteByte('\n')
		}
		if page.Next == nil {
			break
		}
		out.WriteString("next page\n")
		o.After = page.Next
	}
	if out.Len() == 0 {
		return "none", nil
	}
	return out.String(), nil
}

func (s *scenario) redrive(a *arguments) (string, error) {
	q, f, dry, limit := s.worker(a).q, s.filter(a), a.flag("dry"), a.number("limit")
	o := layer.RedriveOptions{ToTail: a.flag("tail"), DryRun: dry, Limit: limit}
	edited := make(map[layer.ID]string)
	if body := a.text("body", ""); body != "" || a.d.HasArg("headers") {
		o.Edit = func(d layer.DeadLetter, m *layer.Message) error {
			require.True(a.t, bytes.Equal(fullBody(a, s.bodies[d.ID]), m.Body), "an edit is given the whole message")
			if body != "" {
				m.Body = fullBody(a, body)
				edited[d.ID] = body
			}
			maps.Copy(m.Headers, a.headers())
			return nil
		}
	}
	var report layer.DeadReport
	return s.call(a, func(ctx context.Context) (err error) {
		if a.d.Cmd == "discard" {
			report, err = q.Admin().Discard(ctx, f, layer.DiscardOptions{DryRun: dry, Limit: limit})
		} else {
			report, err = q.Admin().Redrive(ctx, f, o)
		}
		return err
	}, func(err error) (string, error) {
		maps.Copy(s.bodies, edited)
		if a.d.Cmd == "redrive" {
			s.renameAll(a)
		}
		return fmt.Sprintf("%d of %d, missing %d", report.Done, report.Scanned, len(report.Missing)), err
	})
}

// renameAll finds the names of items that have come back at the tail. There they have another id with the same random.
func (s *scenario) renameAll(a *arguments) {
	page, err := s.worker(a).q.Admin().Groups(s.e.ctx, layer.GroupsOptions{})
	require.NoError(a.t, err)
	for _, g := range page.Groups {
		s.rename(a, g.Group)
	}
}

// rename finds the names of items that have come back to a group under another id.
func (s *scenario) rename(a *arguments, group string) {
	items, err := s.worker(a).q.Peek(s.e.ctx, group, layer.MaxBatch, nil)
	require.NoError(a.t, err)
	for _, item := range items {
		if _, known := s.bodies[item.ID]; known {
			continue
		}
		for id, name := range s.bodies {
			if id.Random == item.ID.Random {
				delete(s.bodies, id)
				s.bodies[item.ID] = name
			}
		}
	}
}

// filter reads which dead letters are meant.
func (s *scenario) filter(a *arguments) layer.DeadFilter {
	f := layer.DeadFilter{Text: a.text("text", ""), Group: a.group()}
	if a.d.HasArg("older") {
		f.Before = s.e.clock.now().Add(-a.duration("older"))
	}
	if a.d.HasArg("newer") {
		f.From = s.e.clock.now().Add(-a.duration("newer"))
	}
	if arg, ok := a.d.Arg("ids"); ok {
		f.IDs = []layer.ID{}
		for id, name := range s.bodies {
			if slices.Contains(arg.Vals, name) {
				f.IDs = append(f.IDs, id)
			}
		}
	}
	f.All = f.IDs == nil && f.Group == nil && f.Text == "" && f.From.IsZero() && f.Before.IsZero()
	return f
}

// archive lists what is archived, a page of limit after the other, with bodies.
func (s *scenario) archive(a *arguments) (string, error) {
	q, o := s.worker(a).q, layer.ArchiveOptions{ArchiveFilter: s.archived(a), Limit: a.number("limit"), Bodies: true}
	var out strings.Builder
	for {
		page, err := q.Admin().Archive(s.e.ctx, o)
		if err != nil {
			return "", err
		}
		for _, item := range page.Items {
			require.NoError(a.t, item.Err)
			require.True(a.t, bytes.Equal(fullBody(a, s.bodies[item.ID]), item.Body), "body of %s", s.bodies[item.ID])
			ago := s.e.clock.now().Sub(item.Completed)
			fmt.Fprintf(&out, "%s: %s %s ago\n", groupName(item.ID.Group), s.bodies[item.ID], ago)
		}
		if page.Next == nil {
			break
		}
		out.WriteString("next page\n")
		o.After = page.Next
	}
	if out.Len() == 0 {
		return "none", nil
	}
	return out.String(), nil
}

func (s *scenario) replay(a *arguments) (string, error) {
	q, f := s.worker(a).q, s.archived(a)
	o := layer.ReplayOptions{DryRun: a.flag("dry"), Limit: a.number("limit")}
	var report layer.ReplayReport
	return s.call(a, func(ctx context.Context) (err error) {
		report, err = q.Admin().Replay(ctx, f, o)
		return err
	}, func(err error) (string, error) {
		s.nameReplayed(a)
		return fmt.Sprintf("%d of %d", report.Done, report.Scanned), err
	})
}

// archived reads which archived items are meant.
func (s *scenario) archived(a *arguments) layer.ArchiveFilter {
	f := s.filter(a)
	return layer.ArchiveFilter{All: f.All, Group: f.Group, From: f.From, Before: f.Before}
}

// nameReplayed names the messages that repeat others as those. Their headers say which these are, as the transcript
// shows them.
func (s *scenario) nameReplayed(a *arguments) {
	page, err := s.worker(a).q.Admin().Groups(s.e.ctx, layer.GroupsOptions{})
	require.NoError(a.t, err)
	for _, g := range page.Groups {
		items, err := s.worker(a).q.Peek(s.e.ctx, g.Group, layer.MaxBatch, nil)
		require.NoError(a.t, err)
		for _, item := range items {
			if old, ok := item.Headers[layer.ReplayHeader]; ok {
				id, err := layer.ParseID(old)
				require.NoError(a.t, err)
				require.NotEqual(a.t, id.Random, item.ID.Random)
				s.bodies[item.ID] = s.bodies[id]
			}
		}
	}
}
