package layer_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// heard keeps what hooks are told, with a word of Begin's context.
type heard struct {
	mu  sync.Mutex
	all []layer.Operation
}

type heardKey struct{}

func (h *heard) hook() layer.Hook {
	return layer.Hook{
		Begin: func(ctx context.Context, o *layer.Operation) context.Context {
			for i := range o.Messages {
				o.SetHeader(i, "trace", fmt.Sprint(i))
			}
			return context.WithValue(ctx, heardKey{}, o.Verb)
		},
		End: func(ctx context.Context, o *layer.Operation) {
			h.mu.Lock()
			defer h.mu.Unlock()
			if ctx.Value(heardKey{}) != o.Verb {
				panic("the context of End is not that of Begin")
			}
			h.all = append(h.all, *o)
		},
	}
}

// next is the only operation told since the last call.
func (h *heard) next(t *testing.T) layer.Operation {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	require.Len(t, h.all, 1, "%v", h.all)
	o := h.all[0]
	h.all = nil
	return o
}

// hooked opens a handle with hooks.
func (e *env) hooked(n uint64) (*layer.Queue, *heard) {
	e.t.Helper()
	h, o := &heard{}, e.options(n)
	o.Hooks = []layer.Hook{h.hook(), {}} // the second has neither function
	q, err := layer.Open(e.ctx, e.db, testPrefix, testQueue, o)
	require.NoError(e.t, err)
	return q, h
}

// TestHooksOfPrograms: each operation of a program is told once, with its outcome, under faults too.
func TestHooksOfPrograms(t *testing.T) {
	onEngines(t, func(e *env) {
		q, h := e.hooked(7)
		given := []layer.Message{{Group: "A", Body: []byte("a1")}, {Group: "A", Body: []byte("a2")}}
		sent, err := q.Enqueue(e.ctx, given...)
		require.NoError(t, err)
		require.Nil(t, given[0].Headers, "the caller's messages stay as they are")
		o := h.next(t)
		require.Equal(t, layer.VerbEnqueue, o.Verb)
		require.Equal(t, sent, o.Sent)
		require.Equal(t, 2, o.Items)
		require.Equal(t, testQueue, o.Queue)

		claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Max: 2})
		require.NoError(t, err)
		c := claims[0]
		require.Equal(t, "1", c.Items[1].Headers["trace"], "a hook has set a header")
		o = h.next(t)
		require.Equal(t, layer.VerbReceive, o.Verb)
		require.Equal(t, claims, o.Claims)
		require.Equal(t, 2, o.Items)
		require.LessOrEqual(t, o.Waited, o.Took)

		_, err = q.Extend(e.ctx, c, time.Minute)
		require.NoError(t, err)
		require.Equal(t, layer.VerbExtend, h.next(t).Verb)
		require.NoError(t, q.Settle(e.ctx, settingState(c, []byte("s"))))
		require.Equal(t, layer.VerbSetState, h.next(t).Verb)
		require.NoError(t, q.Nack(e.ctx, c, layer.NackOptions{Release: true}))
		require.Equal(t, layer.VerbRelease, h.next(t).Verb)
		require.ErrorIs(t, q.Ack(e.ctx, c), layer.ErrClaimLost)
		o = h.next(t)
		require.Equal(t, layer.VerbAck, o.Verb)
		require.ErrorIs(t, o.Err, layer.ErrClaimLost)
		require.Equal(t, "claim_lost", layer.ErrorKind(o.Err))
		require.Equal(t, c.Token, o.Settled.Token)
		require.Zero(t, o.Items)

		c = e.receive(q, 1)
		h.next(t)
		require.NoError(t, q.Nack(e.ctx, c, layer.NackOptions{Reject: "no use"}))
		o = h.next(t)
		require.Equal(t, layer.VerbNack, o.Verb)
		require.Equal(t, layer.FollowsDeadLetter, o.Follows)
		c = e.receive(q, 1)
		h.next(t)
		claims, err = q.SettleReceive(e.ctx, layer.Settlement{Claim: c, FinishAll: true}, layer.ReceiveOptions{})
		require.NoError(t, err)
		require.Empty(t, claims)
		o = h.next(t)
		require.Equal(t, layer.VerbReceive, o.Verb)
		require.Equal(t, "A", o.Settled.Group)

		_, err = q.Receive(e.ctx, layer.ReceiveOptions{Max: -1})
		require.ErrorIs(t, err, layer.ErrLimit)
		require.Empty(t, h.all, "a receive that asks for nothing possible is none")
		_, err = q.Enqueue(e.ctx, layer.Message{Group: "\xff"})
		require.Error(t, err)
		require.Equal(t, "other", layer.ErrorKind(h.next(t).Err))
	})
}

// TestHooksOfOperators: hooks get each verb of an operator once, with the operator's name. Rows that store the operator
// store the same name.
func TestHooksOfOperators(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.configure(func(c *layer.Config) { c.Archive = time.Hour; c.Changes = time.Hour })
	q, h := e.hooked(7)
	ids := e.enqueue("A", "a1", "a2", "a3", "a4", "a5")
	ann := q.Admin().As("ann")
	group := "A"
	verbs := map[layer.Verb]bool{}
	told := func(v layer.Verb, items int, err error) layer.Operation {
		t.Helper()
		require.NoError(t, err)
		o := h.next(t)
		require.Equal(t, v, o.Verb)
		require.True(t, o.Verb.Operator())
		require.Equal(t, "ann", o.By)
		require.Equal(t, items, o.Items)
		verbs[v] = true
		return o
	}

	mark, err := ann.PauseGroup(e.ctx, "A", layer.PauseOptions{Reason: "r"})
	told(layer.VerbPause, 0, err)
	require.Equal(t, "ann", mark.By)
	_, err = ann.ResumeGroup(e.ctx, "A", layer.ResumeOptions{})
	told(layer.VerbResume, 0, err)
	told(layer.VerbCancel, 1, ann.Cancel(e.ctx, ids[0]))
	id, err := ann.Skip(e.ctx, "A", layer.SkipOptions{})
	told(layer.VerbSkip, 1, err)
	letters := e.dead()
	require.Equal(t, "skipped by ann", letters[0].Reason)
	change := func(m *layer.Message) error { m.Body = []byte("x"); return nil }
	told(layer.VerbEdit, 1, ann.Edit(e.ctx, ids[2], change))
	_, err = ann.Redrive(e.ctx, layer.DeadFilter{IDs: []layer.ID{id}}, layer.RedriveOptions{DryRun: true})
	require.NoError(t, err)
	require.Empty(t, h.all, "a dry run is no action")
	_, err = ann.Redrive(e.ctx, layer.DeadFilter{IDs: []layer.ID{id}}, layer.RedriveOptions{})
	require.Equal(t, id, told(layer.VerbRedrive, 1, err).ID)
	_, err = ann.Skip(e.ctx, "A", layer.SkipOptions{By: "bob"})
	require.NoError(t, err)
	require.Equal(t, "bob", h.next(t).By)
	_, err = ann.Discard(e.ctx, layer.DeadFilter{Group: &group}, layer.DiscardOptions{})
	told(layer.VerbDiscard, 1, err)
	told(layer.VerbSetGroupState, 0, ann.SetGroupState(e.ctx, "A", []byte("s"), layer.SetGroupStateOptions{}))
	c := e.receive(e.q, 1)
	_, err = ann.ForceRelease(e.ctx, "A", layer.ForceReleaseOptions{
		Token: c.Token, CountAttempt: true, Reason: "hangs",
	})
	told(layer.VerbForceRelease, 1, err)
	info, err := q.Admin().Group(e.ctx, "A", nil)
	require.NoError(t, err)
	require.Equal(t, "released by ann, held by worker-1: hangs", info.LastError)
	c = e.receive(e.q, 1)
	require.NoError(t, e.q.Nack(e.ctx, c, layer.NackOptions{Delay: time.Hour, Err: errors.New("boom")}))
	told(layer.VerbRetryNow, 0, ann.RetryNow(e.ctx, "A", layer.RetryOptions{}))
	require.NoError(t, e.q.Ack(e.ctx, e.receive(e.q, 1)))
	_, err = ann.Replay(e.ctx, layer.ArchiveFilter{All: true}, layer.ReplayOptions{})
	told(layer.VerbReplay, 1, err)
	report, err := ann.Purge(e.ctx, layer.PurgeOptions{All: true})
	told(layer.VerbPurge, int(report.Items), err)
	require.NotZero(t, report.Items)
	_, _, err = ann.Configure(e.ctx, func(c *layer.Config) { c.MaxAttempts = 7 })
	told(layer.VerbConfigure, 0, err)
	ctx, cancel := context.WithCancel(e.ctx)
	cancel()
	none := func(context.Context, []layer.Change) error { return nil }
	_ = q.Subscribe(ctx, "s", none, layer.SubscribeOptions{})
	if err := ann.Unsubscribe(e.ctx, "s"); err != nil {
		require.ErrorIs(t, err, layer.ErrNoSubscription)
	}
	require.Equal(t, layer.VerbUnsubscribe, h.next(t).Verb)
	verbs[layer.VerbUnsubscribe] = true

	for _, v := range layer.Verbs() {
		require.Equal(t, v.Operator(), verbs[v], v)
	}
	_, err = q.Admin().As("\xff").Pause(e.ctx, layer.PauseOptions{})
	require.ErrorIs(t, err, layer.ErrInvalidUTF8)
	long := string(make([]byte, 256+1))
	require.ErrorIs(t, q.Admin().As(long).Cancel(e.ctx, ids[0]), layer.ErrLimit)
	require.ErrorIs(t, q.Once(e.ctx, func(tx kv.Tx) error {
		_, err := q.Admin().As(long).ForceReleaseTx(e.ctx, tx, "A", layer.ForceReleaseOptions{CountAttempt: true})
		return err
	}), layer.ErrLimit)
	// The owner is the operator's name where no other is given.
	_, err = layer.Open(e.ctx, e.db, testPrefix, testQueue, layer.Options{Owner: "\xff"})
	require.ErrorIs(t, err, layer.ErrInvalidUTF8)
}

// TestHooksOfHolders: what changes a waiting item, or advances one, is told too; a …Tx form is not.
func TestHooksOfHolders(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	q, h := e.hooked(7)
	ids := e.enqueue("A", "a1")
	require.NoError(t, q.Reschedule(e.ctx, ids[0], e.clock.now().Add(time.Hour)))
	require.Equal(t, ids[0], h.next(t).ID)
	require.NoError(t, q.Replace(e.ctx, ids[0], []byte("b"), nil))
	require.Equal(t, layer.VerbReplace, h.next(t).Verb)
	require.NoError(t, q.Once(e.ctx, func(tx kv.Tx) error {
		_, err := q.EnqueueTx(e.ctx, tx, layer.Message{Group: "B"})
		return err
	}))
	require.Empty(t, h.all)
	same := func(*layer.Message) error { return nil }
	require.Error(t, q.Settle(e.ctx, advanceBy(e.receive(e.q, 1), same, layer.ID{})))
	require.Equal(t, layer.VerbAdvance, h.next(t).Verb)
}

// TestHooksOfAReceiveThatWaits: how long a receive has waited is told apart from how long the transaction took that got
// the claim; a receive that its caller leaves is told with the caller's reason.
func TestHooksOfAReceiveThatWaits(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	q, h := e.hooked(7)
	before := q.Paths().Looks + 1
	got := make(chan error)
	go func() {
		claims, err := q.Receive(e.ctx, layer.ReceiveOptions{Wait: layer.MaxWait})
		if err == nil {
			err = q.Ack(e.ctx, claims[0])
		}
		got <- err
	}()
	require.Eventually(t, func() bool { return q.Paths().Looks >= before }, time.Minute, time.Millisecond)
	e.enqueue("A", "a1")
	require.NoError(t, <-got)
	require.Len(t, h.all, 2)
	require.Positive(t, h.all[0].Waited)
	require.Equal(t, layer.VerbAck, h.all[1].Verb)
	h.all = nil
	before = q.Paths().Looks + 1
	ctx, cancel := context.WithCancelCause(e.ctx)
	gone := errors.New("gone")
	go func() {
		_, err := q.Receive(ctx, layer.ReceiveOptions{Wait: layer.MaxWait})
		got <- err
	}()
	require.Eventually(t, func() bool { return q.Paths().Looks >= before }, time.Minute, time.Millisecond)
	cancel(gone)
	require.ErrorIs(t, <-got, gone)
	require.ErrorIs(t, h.next(t).Err, gone)
}

// logged returns a handle with a LogHook, and its log from a level on.
func (e *env) logged(from slog.Level) (*layer.Queue, *bytes.Buffer) {
	e.t.Helper()
	var text bytes.Buffer
	o := e.options(7)
	o.Hooks = []layer.Hook{layer.LogHook(slog.New(slog.NewTextHandler(&text, &slog.HandlerOptions{Level: from})))}
	q, err := layer.Open(e.ctx, e.db, testPrefix, testQueue, o)
	require.NoError(e.t, err)
	return q, &text
}

// TestLogHook: the log has an operator's actions with the operator's name. A refused action is a warning, and a dead
// letter is an error. All other events have the level debug. No body is in the log.
func TestLogHook(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	q, text := e.logged(slog.LevelInfo)
	sent, err := q.Enqueue(e.ctx, layer.Message{Group: "A", Body: []byte("secret")}, layer.Message{Group: "A"})
	require.NoError(t, err)
	require.Empty(t, text.String())
	require.NoError(t, q.Nack(e.ctx, e.receive(q, 1), layer.NackOptions{Reject: "no use"}))
	require.NoError(t, q.Admin().As("ann").Cancel(e.ctx, sent[1].ID))
	require.Error(t, q.Admin().As("ann").Cancel(e.ctx, sent[1].ID))
	lines := strings.Split(strings.TrimSpace(text.String()), "\n")
	require.Len(t, lines, 3)
	for i, want := range []string{
		`level=ERROR msg="queue: nack" queue=` + testQueue + ` group=A`,
		`level=INFO msg="queue: cancel" queue=` + testQueue + ` by=ann`,
		`level=WARN msg="queue: cancel"`,
	} {
		require.Contains(t, lines[i], want)
	}
	require.NotContains(t, text.String(), "secret")
}

// TestLogOfAReceiveThatSettles: the line of a receive has the token of the claim that it has settled only if that claim
// was lost. Otherwise a reader takes it for the token of the claim that the receive has got.
func TestLogOfAReceiveThatSettles(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	q, text := e.logged(slog.LevelDebug)
	e.enqueue("A", "a1")
	e.enqueue("B", "b1")
	first := e.receive(q, 1)
	token := fmt.Sprint("token=", first.Token)
	next := func() ([]*layer.Claim, error) {
		text.Reset()
		return q.SettleReceive(e.ctx, layer.Settlement{Claim: first, FinishAll: true}, layer.ReceiveOptions{})
	}
	claims, err := next()
	require.NoError(t, err)
	require.Contains(t, text.String(), "queue: receive")
	require.NotContains(t, text.String(), token)
	_, err = next()
	require.ErrorIs(t, err, layer.ErrClaimLost)
	require.Contains(t, text.String(), token)
	require.NoError(t, q.Ack(e.ctx, claims[0]))
}

// hastyHooks are hooks whose contexts end before the operation, by name.
var hastyHooks = map[string]func(ctx context.Context) context.Context{
	"cancelled": func(ctx context.Context) context.Context {
		ctx, cancel := context.WithCancelCause(ctx)
		defer cancel(errors.New("of the hook"))
		return ctx
	},
	"deadline": func(ctx context.Context) context.Context {
		ctx, cancel := context.WithDeadline(ctx, time.Unix(0, 0))
		defer cancel()
		return ctx
	},
	"nil pointer": func(context.Context) context.Context { return (*noContext)(nil) },
}

// noContext is a context whose methods panic if it is nil.
type noContext struct{ context.Context }

// TestHooksWithHastyContexts (contract): a hook returns a context that has ended, or a nil pointer. No operation fails
// by that, the operations still end with their caller's context, and End gets the values of the hook's context.
func TestHooksWithHastyContexts(t *testing.T) {
	for name, hasty := range hastyHooks {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, inMemory, false)
			o, ended := e.options(7), make(map[layer.Verb]bool)
			o.Hooks = []layer.Hook{{
				Begin: func(ctx context.Context, o *layer.Operation) context.Context {
					return hasty(context.WithValue(ctx, heardKey{}, o.Verb))
				},
				End: func(ctx context.Context, o *layer.Operation) {
					ended[o.Verb] = o.Err == nil && (name == "nil pointer" || ctx.Value(heardKey{}) == o.Verb)
				},
			}}
			q, err := layer.Open(e.ctx, e.db, testPrefix, testQueue, o)
			require.NoError(t, err)
			_, err = q.Enqueue(e.ctx, layer.Message{Group: "A", Body: []byte("1")}, layer.Message{Group: "A"})
			require.NoError(t, err)
			c := e.receive(q, 2)
			_, err = q.Extend(e.ctx, c, time.Minute)
			require.NoError(t, err)
			require.NoError(t, q.AckItems(e.ctx, c, []layer.ID{c.Items[0].ID}))
			require.NoError(t, q.Nack(e.ctx, c, layer.NackOptions{AtOnce: true}))
			c = e.receive(q, 1)
			claims, err := q.SettleReceive(e.ctx, layer.Settlement{Claim: c, FinishAll: true}, layer.ReceiveOptions{})
			require.NoError(t, err)
			require.Empty(t, claims)
			_, err = q.Admin().Pause(e.ctx, layer.PauseOptions{})
			require.NoError(t, err)
			_, err = q.Admin().Resume(e.ctx, layer.ResumeOptions{})
			require.NoError(t, err)
			for _, verb := range []layer.Verb{
				layer.VerbEnqueue, layer.VerbReceive, layer.VerbExtend, layer.VerbAck, layer.VerbNack, layer.VerbPause,
				layer.VerbResume,
			} {
				require.True(t, ended[verb], "%s: %v", verb, ended)
			}
			own := errors.New("of the caller")
			ctx, cancel := context.WithCancelCause(e.ctx)
			cancel(own)
			_, err = q.Receive(ctx, layer.ReceiveOptions{Wait: time.Minute})
			require.ErrorIs(t, err, own)
			require.NoError(t, q.Close(e.ctx))
		})
	}
}

// TestHeadersThatDoNotFit: no header that a hook sets makes an enqueue fail. If it makes a message too large, or is no
// UTF-8, the message goes without it.
func TestHeadersThatDoNotFit(t *testing.T) {
	for name, value := range map[string]string{"large": strings.Repeat("x", layer.MaxHeadersSize), "no UTF-8": "\xff"} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, layer.Config{}, func(b *bubble) {
				hook := layer.Hook{Begin: func(ctx context.Context, o *layer.Operation) context.Context {
					o.SetHeader(0, "trace", value)
					return ctx
				}}
				o := layer.Options{Hooks: []layer.Hook{hook}}
				q, err := layer.Open(b.t.Context(), b.db, testPrefix, testQueue, o)
				require.NoError(b.t, err)
				defer q.Close(b.t.Context())
				own := map[string]string{"own": "yes"}
				_, err = q.Enqueue(b.t.Context(), layer.Message{Group: "g", Headers: own})
				require.NoError(b.t, err)
				items, err := q.Peek(b.t.Context(), "g", 1, nil)
				require.NoError(b.t, err)
				require.Equal(b.t, own, items[0].Headers)
				_, err = q.Enqueue(b.t.Context(), layer.Message{Group: "\xff"})
				require.ErrorIs(b.t, err, layer.ErrInvalidUTF8, "the message itself is refused")
			})
		})
	}
}

// TestHooksThatHang: an operation waits a quarter of a second for a hook that hangs, and is done without it. The hook
// is not told of operations that begin until it has returned. A header that it sets too late is in no message, and does
// not read the caller's messages.
func TestHooksThatHang(t *testing.T) {
	t.Parallel()
	for _, in := range []string{"Begin", "End"} {
		t.Run(in, func(t *testing.T) {
			t.Parallel()
			inBubble(t, layer.Config{}, func(b *bubble) {
				hang := func(o *layer.Operation, here string) {
					if in == here && string(o.Messages[0].Body) == "hangs" {
						time.Sleep(time.Minute)
					}
				}
				begun, ended, last := []string{}, []string{}, &heard{}
				var set map[string]string // the headers as Begin has set them, of the message that hangs
				late := layer.Hook{
					Begin: func(ctx context.Context, o *layer.Operation) context.Context {
						body := string(o.Messages[0].Body)
						hang(o, "Begin")
						begun = append(begun, body)
						if o.SetHeader(0, "late", "yes"); body == "hangs" {
							set = o.Messages[0].Headers
						}
						return ctx
					},
					End: func(_ context.Context, o *layer.Operation) {
						hang(o, "End")
						ended = append(ended, string(o.Messages[0].Body))
					},
				}
				o := layer.Options{Hooks: []layer.Hook{last.hook(), late, last.hook()}}
				q, err := layer.Open(b.t.Context(), b.db, testPrefix, testQueue, o)
				require.NoError(b.t, err)
				for i, body := range []string{"first", "hangs", "untold", "last"} {
					if body == "last" {
						time.Sleep(time.Minute)
					}
					at := time.Now()
					_, err := q.Enqueue(b.t.Context(), layer.Message{Group: body, Body: []byte(body)})
					require.NoError(b.t, err)
					require.LessOrEqual(b.t, time.Since(at), 300*time.Millisecond)
					items, err := q.Peek(b.t.Context(), body, 1, nil)
					require.NoError(b.t, err)
					want := map[string]string{"trace": "0", "late": "yes"}
					if body == "untold" || body == "hangs" && in == "Begin" {
						delete(want, "late")
					}
					require.Equal(b.t, want, items[0].Headers)
					require.Len(b.t, last.all, 2*(i+1))
				}
				time.Sleep(time.Minute)
				require.Equal(b.t, []string{"first", "hangs", "last"}, begun)
				if in == "Begin" {
					require.Equal(b.t, []string{"first", "last"}, ended)
					require.NotContains(b.t, set, "late", "the messages belong to the caller again")
				} else {
					require.Equal(b.t, []string{"first", "hangs", "last"}, ended)
				}
				require.NoError(b.t, q.Close(b.t.Context()))
			})
		})
	}
}
