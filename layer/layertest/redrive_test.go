package layer_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/fault"
	"fdbfifo/layer"
)

// bury makes dead letters of bodies enqueued to a group, with no transaction for each.
func (e *env) bury(group string, bodies ...string) []layer.ID {
	e.t.Helper()
	calm := e.calm()
	var ids []layer.ID
	for part := range slices.Chunk(bodies, 20) {
		var msgs []layer.Message
		for _, body := range part {
			msgs = append(msgs, layer.Message{Group: group, Body: []byte(body)})
		}
		got, err := calm.Enqueue(e.ctx, msgs...)
		require.NoError(e.t, err)
		ids = append(ids, idsOf(got)...)
		require.NoError(e.t, calm.Once(e.ctx, func(tx kv.Tx) error {
			for range part {
				claims, err := calm.ReceiveTx(e.ctx, tx, layer.ReceiveOptions{Max: 1, Group: &group})
				if err != nil {
					return err
				}
				if err := calm.NackTx(e.ctx, tx, claims[0], layer.NackOptions{Reject: "no use", Err: errors.New("boom")}); err != nil {
					return err
				}
			}
			return nil
		}))
	}
	return ids
}

func (e *env) dead() []layer.DeadLetter {
	e.t.Helper()
	page, err := e.calm().Admin().DeadLetters(e.ctx, layer.DeadOptions{Limit: layer.MaxBatch, Bodies: true})
	require.NoError(e.t, err)
	require.Nil(e.t, page.Next)
	return page.Letters
}

func numbered(prefix string, n int) []string {
	all := make([]string, n)
	for i := range all {
		all[i] = fmt.Sprintf("%s%03d", prefix, i)
	}
	return all
}

// TestRedriveInSteps: a redrive of many letters works in bounded transactions and tells how far it has come; stopped,
// it has done what it reports, and run again it goes on. The groups are as they were.
func TestRedriveInSteps(t *testing.T) {
	for _, tail := range []bool{false, true} {
		t.Run(fmt.Sprintf("tail %t", tail), func(t *testing.T) {
			onEngines(t, func(e *env) {
				a, b := numbered("a", 130), numbered("b", 90)
				e.bury("A", a...)
				e.bury("B", b...)
				ctx, stop := context.WithCancel(e.ctx)
				var last layer.DeadReport
				o := layer.RedriveOptions{ToTail: tail, Progress: func(r layer.DeadReport) {
					require.LessOrEqual(e.t, r.Done-last.Done, int64(100), "a bounded step")
					last = r
					stop()
				}}
				report, err := e.q.Admin().Redrive(ctx, layer.DeadFilter{All: true}, o)
				require.ErrorIs(e.t, err, context.Canceled)
				require.Equal(e.t, last, report)
				require.Len(e.t, e.dead(), 220-int(report.Done))
				require.NotZero(e.t, report.Done)

				steps := 0
				o.Progress = func(layer.DeadReport) { steps++ }
				again, err := e.q.Admin().Redrive(e.ctx, layer.DeadFilter{All: true}, o)
				require.NoError(e.t, err)
				require.EqualValues(e.t, 220, report.Done+again.Done)
				require.Equal(e.t, again.Done, again.Scanned)
				require.GreaterOrEqual(e.t, steps, 2)
				require.Equal(e.t, a, e.all("A"))
				require.Equal(e.t, b, e.all("B"))
				require.Empty(e.t, e.dead())
				stats, err := e.calm().Stats(e.ctx, layer.StatsOptions{})
				require.NoError(e.t, err)
				require.EqualValues(e.t, 220, stats.Depth)
				require.EqualValues(e.t, 220, stats.Enqueued)
			})
		})
	}
}

// TestRedriveStepsByBytes: large letters make small steps, also of chosen ids, and each unknown id is told once.
func TestRedriveStepsByBytes(t *testing.T) {
	onEngines(t, func(e *env) {
		var bodies []string
		for i := range 16 {
			bodies = append(bodies, fmt.Sprintf("%02d", i)+strings.Repeat("x", 200_000))
		}
		ids := e.bury("A", bodies...)
		unknown := slices.Clone(ids)
		for i := range unknown {
			unknown[i].Random = uuid.New()
		}
		for _, o := range []layer.RedriveOptions{
			{ToTail: true}, {Edit: func(layer.DeadLetter, *layer.Message) error { return nil }},
		} {
			steps := 0
			o.Progress = func(layer.DeadReport) { steps++ }
			filter := layer.DeadFilter{IDs: append(slices.Concat(unknown, ids), ids[:3]...)} // some are named twice
			report, err := e.q.Admin().Redrive(e.ctx, filter, o)
			require.ErrorIs(e.t, err, layer.ErrNotDead)
			require.EqualValues(e.t, 16, report.Done)
			require.ElementsMatch(e.t, unknown, report.Missing)
			require.GreaterOrEqual(e.t, steps, 3)

			// All back to the dead letters.
			ids = nil
			for _, body := range bodies {
				c := e.receive(e.q, 1)
				require.True(e.t, body == string(c.Items[0].Body), "%.2s, not %.2s", body, c.Items[0].Body)
				ids = append(ids, c.Items[0].ID)
				require.NoError(e.t, e.q.Nack(e.ctx, c, layer.NackOptions{Reject: "again"}))
			}
			unknown = slices.Clone(ids)
			for i := range unknown {
				unknown[i].Random = uuid.New()
			}
		}
		report, err := e.q.Admin().Discard(e.ctx, layer.DeadFilter{All: true}, layer.DiscardOptions{})
		require.NoError(e.t, err)
		require.EqualValues(e.t, 16, report.Done)
		require.Empty(e.t, e.rows(kv.PrefixRange(key("part"))), "what is discarded leaves nothing behind")
		require.Empty(e.t, e.rows(kv.PrefixRange(key("dead"))))
	})
}

// TestDryRunSaysWhatTheRunDoes: a dry run counts the letters that the same run redrives, and has the same error. A
// letter that cannot be edited as asked is such an error.
func TestDryRunSaysWhatTheRunDoes(t *testing.T) {
	for _, tail := range []bool{false, true} {
		e := newEnv(t, anyEngine, false)
		e.bury("A", "a", "b", "c")
		wrong := errors.New("no c")
		o := layer.RedriveOptions{ToTail: tail, Edit: func(_ layer.DeadLetter, m *layer.Message) error {
			if string(m.Body) == "c" {
				return wrong
			}
			return nil
		}}
		for _, o.DryRun = range []bool{true, false} {
			report, err := e.q.Admin().Redrive(e.ctx, layer.DeadFilter{All: true}, o)
			require.ErrorIs(t, err, wrong, "dry %t", o.DryRun)
			require.Zero(t, report.Done)
		}
		o.Edit = func(_ layer.DeadLetter, m *layer.Message) error { m.Body = append(m.Body, '!'); return nil }
		for _, o.DryRun = range []bool{true, false} {
			report, err := e.q.Admin().Redrive(e.ctx, layer.DeadFilter{All: true}, o)
			require.NoError(t, err)
			require.EqualValues(t, 3, report.Done, "dry %t", o.DryRun)
		}
		require.Equal(t, []string{"a!", "b!", "c!"}, e.all("A"))
		e.check()
	}
}

// TestRedrivePassesOverALostBody: a letter whose body has lost a part cannot go to the tail, and cannot be edited. It
// stays, is counted as unreadable, and keeps no other letter from going back.
func TestRedrivePassesOverALostBody(t *testing.T) {
	for name, o := range map[string]layer.RedriveOptions{
		"to the tail": {ToTail: true},
		"edited":      {Edit: func(layer.DeadLetter, *layer.Message) error { return nil }},
	} {
		t.Run(name, func(t *testing.T) {
			e := newEnv(t, anyEngine, false)
			ids := e.bury("A", "a", strings.Repeat("b", 200_000), "c")
			part := e.rows(kv.PrefixRange(key("part")))[1]
			e.write(func(tx kv.Tx) { tx.Clear(part.Key) })
			for _, o.DryRun = range []bool{true, false} {
				report, err := e.q.Admin().Redrive(e.ctx, layer.DeadFilter{All: true}, o)
				require.NoError(t, err)
				require.Equal(t, layer.DeadReport{Scanned: 3, Done: 2, Unreadable: 1}, report)
			}
			require.Equal(t, []string{"a", "c"}, e.all("A"))
			e.write(func(tx kv.Tx) { tx.Set(part.Key, part.Value) })
			left := e.dead()
			require.Len(t, left, 1)
			require.Equal(t, ids[1], left[0].ID)
			e.check()
		})
	}
}

// TestDryRunDoesNothing: a dry run says what would be done, and does nothing.
func TestDryRunDoesNothing(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.bury("A", numbered("a", 150)...)
	before := e.rows(kv.PrefixRange(testPrefix))
	report, err := e.q.Admin().Redrive(e.ctx, layer.DeadFilter{All: true}, layer.RedriveOptions{DryRun: true})
	require.NoError(t, err)
	require.Equal(t, layer.DeadReport{Scanned: 150, Done: 150}, report)
	report, err = e.q.Admin().Discard(e.ctx, layer.DeadFilter{Text: "boom"}, layer.DiscardOptions{DryRun: true, Limit: 120})
	require.NoError(t, err)
	require.EqualValues(t, 120, report.Done)
	require.Equal(t, before, e.rows(kv.PrefixRange(testPrefix)))
}

// TestRedriveTx: the letters are back, or discarded, if and only if the caller's transaction commits. An unknown
// letter, or one that is gone, is an error.
func TestRedriveTx(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	ids := e.bury("A", "a1", "a2", "a3")
	none := ids[0]
	none.Random = uuid.New()
	once := func(fn func(tx kv.Tx) error) error { return e.q.Once(e.ctx, fn) }
	redrive := func(o layer.RedriveOptions, ids ...layer.ID) func(tx kv.Tx) error {
		return func(tx kv.Tx) error { return e.q.Admin().RedriveTx(e.ctx, tx, o, ids...) }
	}
	require.ErrorIs(t, once(redrive(layer.RedriveOptions{}, ids[0], none)), layer.ErrNotDead)
	require.ErrorIs(t, once(redrive(layer.RedriveOptions{}, layer.ID{Index: -1})), layer.ErrInvalidID)
	require.ErrorIs(t, once(redrive(layer.RedriveOptions{DryRun: true}, ids[0])), layer.ErrOptions)
	require.ErrorIs(t, once(redrive(layer.RedriveOptions{Limit: 1}, ids[0])), layer.ErrOptions)
	var limit *layer.LimitError
	require.ErrorAs(t, once(redrive(layer.RedriveOptions{}, make([]layer.ID, layer.MaxBatch+1)...)), &limit)
	abort := errors.New("changed my mind")
	require.ErrorIs(t, once(func(tx kv.Tx) error {
		require.NoError(t, redrive(layer.RedriveOptions{}, ids[0])(tx))
		require.NoError(t, e.q.Admin().DiscardTx(e.ctx, tx, ids[1]))
		return abort
	}), abort)
	require.Len(t, e.dead(), 3)
	require.NoError(t, once(redrive(layer.RedriveOptions{})), "no ids are no work")
	require.NoError(t, once(redrive(layer.RedriveOptions{}, ids[1], ids[0], ids[1])), "in their group's order, each once")
	require.Equal(t, []string{"a1", "a2"}, e.all("A"))
	require.NoError(t, once(func(tx kv.Tx) error { return e.q.Admin().DiscardTx(e.ctx, tx, ids[2]) }))
	require.ErrorIs(t, once(func(tx kv.Tx) error { return e.q.Admin().DiscardTx(e.ctx, tx, ids[2]) }), layer.ErrNotDead)
	require.Empty(t, e.dead())
}

// TestRedriveTxLeavesNoHalf: an Edit that fails, or is refused, at the second of three letters has put nothing into the
// caller's transaction, also if the caller commits it. The error names the letter.
func TestRedriveTxLeavesNoHalf(t *testing.T) {
	onEngines(t, func(e *env) {
		ids := e.bury("A", "a1", "a2", "a3")
		before := e.rows(kv.PrefixRange(testPrefix))
		own := errors.New("cannot be mended")
		for _, edit := range []func(m *layer.Message) error{
			func(*layer.Message) error { return own },
			func(m *layer.Message) error { m.Group = "B"; return nil },
		} {
			change := func(d layer.DeadLetter, m *layer.Message) error {
				m.Body = append(m.Body, " mended"...)
				if d.ID == ids[1] {
					return edit(m)
				}
				return nil
			}
			for _, tail := range []bool{false, true} {
				e.write(func(tx kv.Tx) {
					o := layer.RedriveOptions{ToTail: tail, Edit: change}
					require.ErrorContains(e.t, e.q.Admin().RedriveTx(e.ctx, tx, o, ids...), ids[1].String())
				})
				require.Equal(e.t, before, e.rows(kv.PrefixRange(testPrefix)))
				require.Len(e.t, e.dead(), 3)
			}
		}
	})
}

// TestRedriveEditRefused: an edit that is refused ends the redrive with nothing changed by that step.
func TestRedriveEditRefused(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.bury("A", "a1", "a2")
	before := e.rows(kv.PrefixRange(key("dead")))
	own := errors.New("cannot be mended")
	for _, tail := range []bool{false, true} {
		for name, edit := range map[string]func(m *layer.Message) error{
			"error": func(*layer.Message) error { return own },
			"group": func(m *layer.Message) error { m.Group = "B"; return nil },
			"large": func(m *layer.Message) error { m.Body = make([]byte, layer.MaxBodySize+1); return nil },
		} {
			report, err := e.q.Admin().Redrive(e.ctx, layer.DeadFilter{All: true}, layer.RedriveOptions{
				ToTail: tail, Edit: func(_ layer.DeadLetter, m *layer.Message) error { return edit(m) },
			})
			require.Error(t, err, name)
			require.True(t, errors.Is(err, own) || errors.Is(err, layer.ErrOptions) || errors.As(err, new(*layer.LimitError)), "%v", err)
			require.Zero(t, report.Done)
			require.Equal(t, before, e.rows(kv.PrefixRange(key("dead"))))
		}
	}
	_, err := e.q.Admin().Redrive(e.ctx, layer.DeadFilter{All: true}, layer.RedriveOptions{Limit: -1})
	require.ErrorAs(t, err, new(*layer.LimitError))
}

// TestUnreadableDeadLetter: it is listed with the reason, left where it is, and keeps none of the others.
func TestUnreadableDeadLetter(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	ids := e.bury("A", "a1", "a2", "a3")
	rows := e.rows(kv.PrefixRange(key("dead")))
	e.write(func(tx kv.Tx) { tx.Set(rows[1].Key, []byte{9}) })
	letters := e.dead()
	require.Len(t, letters, 3)
	require.Equal(t, ids[1], letters[1].ID)
	require.Contains(t, letters[1].Reason, "version")
	require.ErrorIs(t, letters[1].Err, layer.ErrCorrupt)
	require.NoError(t, letters[0].Err)
	report, err := e.q.Admin().Redrive(e.ctx, layer.DeadFilter{All: true}, layer.RedriveOptions{})
	require.NoError(t, err)
	require.Equal(t, layer.DeadReport{Scanned: 3, Done: 2, Unreadable: 1}, report)
	require.Equal(t, []string{"a1", "a3"}, e.all("A"))
	require.ErrorIs(t, e.q.Once(e.ctx, func(tx kv.Tx) error {
		return e.q.Admin().RedriveTx(e.ctx, tx, layer.RedriveOptions{}, ids[1])
	}), layer.ErrCorrupt)
	e.write(func(tx kv.Tx) { tx.Set(rows[1].Key, rows[1].Value) })
}

// TestPurgeByForceDiscardsAnUnreadableLetter: the letter counts as discarded, and nothing is left of its body.
func TestPurgeByForceDiscardsAnUnreadableLetter(t *testing.T) {
	for _, o := range []layer.PurgeOptions{{All: true, Force: true}, {Group: ptr("A"), Force: true}} {
		e := newEnv(t, anyEngine, false)
		e.bury("A", strings.Repeat("x", 300_000))
		rows := e.rows(kv.PrefixRange(key("dead")))
		require.Len(t, rows, 1)
		require.NotEmpty(t, e.rows(kv.PrefixRange(key("part"))))
		e.write(func(tx kv.Tx) { tx.Set(rows[0].Key, []byte{9}) })
		report, err := e.q.Admin().Purge(e.ctx, o)
		require.NoError(t, err)
		require.Positive(t, report.Unreadable)
		require.Empty(t, e.rows(kv.PrefixRange(key("part"))))
		stats, err := e.q.Stats(e.ctx, layer.StatsOptions{})
		require.NoError(t, err)
		require.Zero(t, stats.Dead)
		require.EqualValues(t, 1, stats.Discarded)
	}
}

// TestUnreadableBodyOfADeadLetter: a list of dead letters says which of them lacks a part of its body. So a program
// that moves letters does not take it for an empty one.
func TestUnreadableBodyOfADeadLetter(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	e.bury("A", strings.Repeat("x", 300_000), "a2")
	rows := e.rows(kv.PrefixRange(key("part")))
	require.NotEmpty(t, rows)
	e.write(func(tx kv.Tx) { tx.Clear(rows[0].Key) })
	letters := e.dead()
	require.Len(t, letters, 2)
	require.ErrorIs(t, letters[0].Err, layer.ErrCorrupt)
	require.Nil(t, letters[0].Body)
	require.NoError(t, letters[1].Err)
	require.Equal(t, "a2", string(letters[1].Body))
	e.write(func(tx kv.Tx) { tx.Set(rows[0].Key, rows[0].Value) })
}

// TestMovesAreNoDuplicates: neither a redrive, to the tail or to the old place, nor a replay takes a message for a
// duplicate, whatever was sent before, within the window or while the message was away.
func TestMovesAreNoDuplicates(t *testing.T) {
	onEngines(t, func(e *env) {
		admin := e.calm().Admin()
		for group, pending := range map[string]bool{"A": false, "B": true} {
			e.configure(func(c *layer.Config) {
				c.DedupByContent, c.DedupForPending, c.DedupInGroup = true, pending, true
				c.Archive = time.Hour
			})
			for i, tail := range []bool{true, false} {
				body := fmt.Sprint(group, i)
				e.bury(group, body)
				sent, err := e.calm().Enqueue(e.ctx, layer.Message{Group: group, Body: []byte(body)})
				require.NoError(e.t, err)
				require.True(e.t, sent[0].Duplicate)
				report, err := admin.Redrive(e.ctx, layer.DeadFilter{All: true}, layer.RedriveOptions{ToTail: tail})
				require.NoError(e.t, err)
				require.EqualValues(e.t, 1, report.Done)
				require.Equal(e.t, []string{body}, e.all(group))
				require.NoError(e.t, e.calm().Ack(e.ctx, e.receive(e.calm(), 1)))
			}
			for n := 1; n <= 2; n++ {
				_, err := admin.Replay(e.ctx, layer.ArchiveFilter{Group: &group}, layer.ReplayOptions{})
				require.NoError(e.t, err)
				require.Len(e.t, e.all(group), 2*n)
			}
			_, err := admin.Purge(e.ctx, layer.PurgeOptions{All: true})
			require.NoError(e.t, err)
		}
	})
}

// TestRedriveUnknownCommit: a step with an unknown commit is reported with its real result. Ids that it has handled do
// not count as unknown, and nothing is doubled.
func TestRedriveUnknownCommit(t *testing.T) {
	for _, kind := range []fault.Kind{fault.UnknownApplied, fault.UnknownLost} {
		for _, tail := range []bool{false, true} {
			e := newEnv(t, anyEngine, false)
			ids := e.bury("A", numbered("a", 130)...)
			e.plan.ForceNext(kind)
			report, err := e.q.Admin().Redrive(e.ctx, layer.DeadFilter{IDs: ids}, layer.RedriveOptions{ToTail: tail})
			require.NoError(t, err)
			require.Equal(t, layer.DeadReport{Scanned: 130, Done: 130}, report, "%s", kind)
			require.Equal(t, numbered("a", 130), e.all("A"))

			ids = e.bury("B", numbered("b", 130)...)
			e.plan.ForceNext(kind)
			group := "B"
			report, err = e.q.Admin().Discard(e.ctx, layer.DeadFilter{Group: &group}, layer.DiscardOptions{})
			require.NoError(t, err)
			require.Equal(t, layer.DeadReport{Scanned: 130, Done: 130}, report, "%s", kind)
			require.Empty(t, e.dead())
			require.Len(t, ids, 130)
		}
	}
}

// TestRedriveBesideWorkers: redrives to the old places and to the tails run at the same time as claims, acks,
// rejections and enqueues of the same groups. Each message is acked once, and none is lost (G3).
func TestRedriveBesideWorkers(t *testing.T) {
	onEngines(t, func(e *env) {
		const groups, each = 3, 12
		random := rand.New(rand.NewPCG(e.seed, 1))
		done := make(chan struct{})
		var mu sync.Mutex
		acked := make(map[string]int)
		ctx, stop := untilStill(e.ctx, func() int64 { // the test would never end if a message is lost
			mu.Lock()
			defer mu.Unlock()
			return int64(len(acked))
		})
		defer stop()
		var working, redriving sync.WaitGroup
		for n := range 3 {
			q := e.handle(uint64(20 + n))
			dice := rand.New(rand.NewPCG(random.Uint64(), 2))
			working.Go(func() {
				for {
					claims, err := q.Receive(ctx, layer.ReceiveOptions{Max: 4, MaxGroups: 1})
					if !assert.NoError(e.t, err) {
						return
					}
					for _, c := range claims {
						if dice.IntN(3) == 0 {
							if !assert.NoError(e.t, q.Nack(e.ctx, c, layer.NackOptions{Reject: "no use"})) {
								return
							}
							continue
						}
						if !assert.NoError(e.t, q.Ack(e.ctx, c)) {
							return
						}
						mu.Lock()
						for _, item := range c.Items {
							acked[string(item.Body)]++
						}
						mu.Unlock()
					}
					mu.Lock()
					all := len(acked) == groups*each
					mu.Unlock()
					if all {
						return
					}
				}
			})
		}
		for _, tail := range []bool{false, true} {
			q := e.handle(30)
			if tail {
				q = e.handle(31)
			}
			redriving.Go(func() {
				for {
					select {
					case <-done:
						return
					default:
					}
					if _, err := q.Admin().Redrive(
						e.ctx, layer.DeadFilter{All: true}, layer.RedriveOptions{ToTail: tail, Limit: 5},
					); !assert.NoError(e.t, err) {
						return
					}
				}
			})
		}
		for i := range each {
			for g := range groups {
				e.enqueue(fmt.Sprint(g), fmt.Sprintf("%d.%d", g, i))
			}
		}
		working.Wait()
		close(done)
		redriving.Wait()
		require.Len(e.t, acked, groups*each)
		for body, n := range acked {
			require.Equal(e.t, 1, n, body)
		}
		require.Empty(e.t, e.dead())
		stats, err := e.calm().Stats(e.ctx, layer.StatsOptions{})
		require.NoError(e.t, err)
		require.Zero(e.t, stats.Depth)
	})
}

// TestRedriveOfLettersThatDieAgain (G3): letters that a redrive has put back are rejected before its next step. The
// redrive ends, and has put each letter back once.
func TestRedriveOfLettersThatDieAgain(t *testing.T) {
	onEngines(t, func(e *env) {
		const letters = 101 // two steps
		for _, tail := range []bool{false, true} {
			bodies := make([]string, letters)
			for i := range bodies {
				bodies[i] = fmt.Sprint(tail, i)
			}
			e.bury("a", bodies...)
			q, ctx, steps := e.calm(), e.ctx, 0
			report, err := q.Admin().Redrive(ctx, layer.DeadFilter{All: true}, layer.RedriveOptions{
				ToTail: tail, Progress: func(layer.DeadReport) {
					if steps++; steps > 20 {
						e.t.Fatal("the redrive does not end")
					}
					for {
						claims, err := q.Receive(ctx, layer.ReceiveOptions{Max: 1})
						require.NoError(e.t, err)
						if len(claims) == 0 {
							return
						}
						require.NoError(e.t, q.Nack(ctx, claims[0], layer.NackOptions{Reject: "no use"}))
					}
				},
			})
			require.NoError(e.t, err)
			require.EqualValues(e.t, letters, report.Done)
			require.Len(e.t, e.dead(), letters)
			_, err = q.Admin().Discard(ctx, layer.DeadFilter{All: true}, layer.DiscardOptions{})
			require.NoError(e.t, err)
		}
	})
}

// TestDeadFilterRefused: what cannot be meant is an error, not passed over.
func TestDeadFilterRefused(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	ids := e.bury("A", "a1")
	long := strings.Repeat("g", layer.MaxGroupSize+1)
	now := e.clock.now()
	for name, f := range map[string]layer.DeadFilter{
		"ids and text":  {IDs: ids, Text: "x"},
		"ids and group": {IDs: ids, Group: ptr("A")},
		"no id":         {IDs: []layer.ID{{Index: -1}}},
		"long group":    {Group: &long},
		"no time":       {From: now, Before: now},
	} {
		_, err := e.q.Admin().DeadLetters(e.ctx, layer.DeadOptions{DeadFilter: f})
		require.Error(t, err, name)
		_, err = e.q.Admin().Redrive(e.ctx, f, layer.RedriveOptions{})
		require.Error(t, err, name)
		_, err = e.q.Admin().Discard(e.ctx, f, layer.DiscardOptions{})
		require.Error(t, err, name)
	}
	for _, n := range []int{-1, layer.MaxBatch + 1} {
		_, err := e.q.Admin().DeadLetters(e.ctx, layer.DeadOptions{Limit: n})
		require.ErrorAs(t, err, new(*layer.LimitError))
	}
	require.Len(t, e.dead(), 1)
}

// TestDeadLettersAfter: a list begins behind the letter given, also if that is none of its own, and never leaves the
// filter's group.
func TestDeadLettersAfter(t *testing.T) {
	e := newEnv(t, anyEngine, false)
	a, b, c := e.bury("A", "1")[0], e.bury("B", "2")[0], e.bury("C", "3")[0]
	for _, f := range []layer.DeadFilter{{}, {IDs: []layer.ID{c, a}}} {
		page, err := e.q.Admin().DeadLetters(e.ctx, layer.DeadOptions{DeadFilter: f, After: &b})
		require.NoError(t, err)
		require.Len(t, page.Letters, 1)
		require.Equal(t, c, page.Letters[0].ID)
	}
	inC := layer.DeadFilter{Group: ptr("C")}
	_, err := e.q.Admin().DeadLetters(e.ctx, layer.DeadOptions{DeadFilter: inC, After: &a})
	require.ErrorIs(t, err, layer.ErrOptions)
	_, err = e.q.Admin().DeadLetters(e.ctx, layer.DeadOptions{After: &layer.ID{Group: "A"}})
	require.ErrorIs(t, err, layer.ErrInvalidID)
}
