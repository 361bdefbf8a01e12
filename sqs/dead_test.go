package sqs

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"path"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/fault"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// The law of a move: source and target together never have fewer messages after a move than before.

// everywhere is bubble in memory and on disk, for queues of which each receive, and then of which each message, has a
// visibility timeout.
func everywhere(t *testing.T, test func(e *env)) {
	for name, open := range map[string]func(t *testing.T) kv.DB{"memory": inMemory, "disk": onDisk} {
		for _, per := range choices[visibilityOf] {
			o := Options{VisibilityPerClaim: per == visibleByClaim}
			t.Run(name+"/"+per, func(t *testing.T) { bubbleOn(t, open, o, test) })
		}
	}
}

// withDead makes a FIFO queue whose messages go to a dead letter queue after so many receives of five seconds.
func (e *env) withDead(name, dead string, receives int) (url, deadURL string) {
	e.Helper()
	deadURL = e.create(dead, visibilityTimeout, "5")
	arn := e.attributes(deadURL)["QueueArn"]
	policy := fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":%d}`, arn, receives)
	return e.create(name, visibilityTimeout, "5", redrivePolicy, policy), deadURL
}

// sendAs sends a message with a deduplication id, and returns its MessageId.
func (e *env) sendAs(url, group, body, dedup string) string {
	e.Helper()
	m := object{"QueueUrl": url, "MessageGroupId": group, "MessageBody": body, "MessageDeduplicationId": dedup}
	return e.call("SendMessage", m)["MessageId"].(string)
}

// die receives what there is, and lets its visibility timeout end. A queue whose messages die by one receive then sets
// them aside at the next.
func (e *env) die(url string) {
	e.Helper()
	e.receive(url)
	time.Sleep(6 * time.Second)
	require.Empty(e, e.receive(url))
}

// redrive starts a move task of a dead letter queue, back to where the messages came from or, if it is not "", to a
// queue, and waits until the task has ended.
func (e *env) redrive(dead, to string) {
	e.Helper()
	start := object{"SourceArn": e.attributes(dead)["QueueArn"]}
	if to != "" {
		start["DestinationArn"] = e.attributes(to)["QueueArn"]
	}
	e.call("StartMessageMoveTask", start)
	for {
		time.Sleep(time.Second)
		all := e.call("ListMessageMoveTasks", object{"SourceArn": start["SourceArn"]})["Results"].([]any)
		if status := all[0].(object)["Status"]; status != running {
			require.Equal(e, completed, status)
			return
		}
	}
}

// letters are the bodies of the dead letters that a queue has not moved.
func (e *env) letters(name string) (bodies []string) {
	e.Helper()
	q, err := layer.Open(e.Context(), e.db, nil, name, layer.Options{})
	require.NoError(e, err)
	defer q.Close(e.Context())
	for l, err := range q.Admin().AllDeadLetters(e.Context(), layer.DeadOptions{Bodies: true}) {
		require.NoError(e, err)
		bodies = append(bodies, string(l.Body))
	}
	return bodies
}

// setAside makes all messages of a queue dead letters, as a Go program may: no request moves them.
func (e *env) setAside(name string) {
	e.Helper()
	q, err := layer.Open(e.Context(), e.db, nil, name, layer.Options{})
	require.NoError(e, err)
	defer q.Close(e.Context())
	for {
		claims, err := q.Receive(e.Context(), layer.ReceiveOptions{Max: layer.MaxBatch})
		require.NoError(e, err)
		if len(claims) == 0 {
			return
		}
		for _, c := range claims {
			require.NoError(e, q.Nack(e.Context(), c, layer.NackOptions{Reject: "test"}))
		}
	}
}

// configure changes the settings of a queue as an operator does.
func (e *env) configure(name string, change func(c *layer.Config)) {
	e.Helper()
	q, err := layer.Open(e.Context(), e.db, nil, name, layer.Options{})
	require.NoError(e, err)
	defer q.Close(e.Context())
	_, _, err = q.Admin().Configure(e.Context(), change)
	require.NoError(e, err)
}

// TestRedrivenDiesAgain: a message that was redriven, and fails again at once, is in the dead letter queue again. As on
// AWS, it keeps its MessageId on its way to the dead letter queue, where the MessageId is its deduplication id. The
// redrive gives it a new one.
func TestRedrivenDiesAgain(t *testing.T) {
	everywhere(t, func(e *env) {
		url, dead := e.withDead("orders.fifo", "dead.fifo", 1)
		e.send(url, "a", "poison")
		ids := map[string]bool{}
		for range 4 { // within a minute
			got := e.receive(url)
			require.Equal(e, "poison", bodies(got))
			require.Equal(e, "1", counts(got))
			id := got[0].MessageId
			time.Sleep(6 * time.Second)
			require.Empty(e, e.receive(url))

			got = e.receive(dead)
			require.Equal(e, "poison", bodies(got), "in neither queue")
			require.NotContains(e, ids, id)
			ids[id] = true
			require.Equal(e, id, got[0].MessageId)
			require.Equal(e, id, got[0].Attributes["MessageDeduplicationId"])
			e.visible(dead, got[0], 0)
			e.redrive(dead, "")
			require.Empty(e, e.receive(dead))
		}
		require.Equal(e, "poison", bodies(e.receive(url)))
	})
}

// TestMovedIsNoDuplicate: no message is taken for a duplicate on its way to a dead letter queue or back, whatever was
// sent there and however the queues look for duplicates. No message that is sent later is a duplicate of a moved one.
func TestMovedIsNoDuplicate(t *testing.T) {
	everywhere(t, func(e *env) {
		url, dead := e.withDead("orders.fifo", "dead.fifo", 1)
		first := e.sendAs(url, "a", "same", "1")
		e.sendAs(url, "b", "same", "2")
		e.sendAs(dead, "a", "forwarded before", first)
		for _, name := range []string{"orders.fifo", "dead.fifo"} {
			e.configure(name, func(c *layer.Config) { c.DedupByContent = true })
		}
		e.die(url)
		got := e.receive(dead)
		require.ElementsMatch(e, []string{"forwarded before", "same", "same"}, bodiesOf(got))
		second := got[slices.IndexFunc(got, func(m message) bool { return m.Attributes["MessageGroupId"] == "b" })]
		e.sendAs(dead, "b", "forwarded later", second.MessageId)
		time.Sleep(6 * time.Second)
		e.redrive(dead, url)
		require.ElementsMatch(e,
			[]string{"forwarded before", "same", "same", "forwarded later"}, bodiesOf(e.receive(url)))
	})
}

// TestMovedOfStandardQueues: as TestMovedIsNoDuplicate, of standard queues. The time of sending stays on the way to the
// dead letter queue, and is a new one after the redrive.
func TestMovedOfStandardQueues(t *testing.T) {
	for _, inGroup := range []bool{false, true} {
		bubble(t, Options{}, func(e *env) {
			url, dead := e.withDead("jobs", "dead", 1)
			e.send(url, "", "same", "same")
			for _, name := range []string{"jobs", "dead"} {
				e.configure(name, func(c *layer.Config) { c.DedupByContent, c.DedupInGroup = true, inGroup })
			}
			const sent = "SentTimestamp"
			first := e.receive(url)[0]
			time.Sleep(6 * time.Second)
			require.Empty(e, e.receive(url))
			got := e.receive(dead)
			require.Equal(e, "same same", bodies(got))
			require.Equal(e, first.Attributes[sent], got[0].Attributes[sent])
			time.Sleep(6 * time.Second)
			e.redrive(dead, "")
			again := e.receive(url)
			require.Equal(e, "same same", bodies(again))
			for _, m := range again {
				require.NotContains(e, []string{got[0].MessageId, got[1].MessageId}, m.MessageId)
				require.Greater(e, m.Attributes[sent], first.Attributes[sent])
			}
		})
	}
}

func bodiesOf(messages []message) []string {
	all := make([]string, len(messages))
	for i, m := range messages {
		all[i] = m.Body
	}
	return all
}

// TestDeadLetterQueueIsFull: a dead letter queue whose groups may have no more messages takes what there is room for,
// and the others wait among the dead letters of their queue. It can be received from, and a redrive to a full queue
// goes on as room is made.
func TestDeadLetterQueueIsFull(t *testing.T) {
	inBothKinds(t, func(e *env) {
		url, dead := e.withDead("orders.fifo", "dead.fifo", 1)
		e.configure("dead.fifo", func(c *layer.Config) { c.MaxWaiting = 2 })
		e.send(url, "a", "a1", "a2", "a3", "a4", "a5")
		e.send(url, "b", "b1")
		for range 6 {
			e.receive(url)
			time.Sleep(6 * time.Second)
		}
		var seen []string
		for range 3 {
			got := e.receive(dead)
			require.NotEmpty(e, got)
			seen = append(seen, bodiesOf(got)...)
			e.delete(dead, got...)
			time.Sleep(2 * time.Second)
		}
		require.ElementsMatch(e, []string{"a1", "a2", "a3", "a4", "a5", "b1"}, seen)
		require.Empty(e, e.letters("orders.fifo"))

		e.configure("dead.fifo", func(c *layer.Config) { c.MaxWaiting = 0 })
		to := e.create("to.fifo", visibilityTimeout, "5")
		e.configure("to.fifo", func(c *layer.Config) { c.MaxWaiting = 2 })
		e.send(dead, "c", "c1", "c2", "c3", "c4", "c5")
		e.call("StartMessageMoveTask",
			object{"SourceArn": e.attributes(dead)["QueueArn"], "DestinationArn": e.attributes(to)["QueueArn"]})
		seen = nil
		for range 20 {
			time.Sleep(3 * time.Second)
			got := e.receive(to)
			seen = append(seen, bodiesOf(got)...)
			e.delete(to, got...)
		}
		require.Equal(e, []string{"c1", "c2", "c3", "c4", "c5"}, seen)
	})
}

// TestLettersThatCannotMove: a dead letter that cannot be read, or that has no room for the headers of a move, stays
// where it is, whole. The others are moved, and the dead letter queue can be received from.
func TestLettersThatCannotMove(t *testing.T) {
	inBothKinds(t, func(e *env) {
		url, dead := e.withDead("orders.fifo", "dead.fifo", 1)
		q, err := layer.Open(e.Context(), e.db, nil, "orders.fifo", layer.Options{})
		require.NoError(e, err)
		defer q.Close(e.Context())
		_, err = q.Enqueue(e.Context(), layer.Message{
			Group: "a", Body: []byte("large"),
			Headers: map[string]string{"h": strings.Repeat("x", layer.MaxHeadersSize-1)},
		})
		require.NoError(e, err)
		e.send(url, "b", strings.Repeat("y", 200_000))
		e.send(url, "c", "c1")
		e.receive(url)
		parts := kv.PrefixRange(tuple.Tuple{"orders.fifo"}.Pack())
		_, err = kv.Run(e.Context(), e.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			rows, err := tx.GetRange(parts.Selectors(), kv.RangeOptions{}).Wait(e.Context())
			for _, row := range rows {
				if d, known, _ := layer.Describe(nil, row.Key, nil); known && d.Name == "part" {
					tx.Clear(row.Key)
					break
				}
			}
			return err
		})
		require.NoError(e, err)
		time.Sleep(6 * time.Second)
		require.Empty(e, e.receive(url))
		require.Equal(e, "c1", bodies(e.receive(dead)))
		require.Len(e, e.letters("orders.fifo"), 2)
		report, err := q.Admin().Discard(e.Context(), layer.DeadFilter{All: true}, layer.DiscardOptions{})
		require.NoError(e, err)
		require.EqualValues(e, 2, report.Done, "still there")
	})
}

// TestStayIsLogged: the log says once a minute that a dead letter cannot be moved, and why.
func TestStayIsLogged(t *testing.T) {
	var log logText
	bubble(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(e *env) {
		url, _ := e.withDead("orders.fifo", "dead.fifo", 1)
		e.configure("dead.fifo", func(c *layer.Config) { c.MaxWaiting = 1 })
		e.send(url, "a", "a1", "a2")
		for range 2 {
			e.receive(url)
			time.Sleep(6 * time.Second)
		}
		for range 20 {
			e.receive(url)
			time.Sleep(9 * time.Second)
		}
		require.NoError(e, e.s.Close(e.Context()))
	})
	require.Regexp(t, `cannot be moved.*queue=orders.fifo.*group \\"a\\" is full`, log.String())
	require.InDelta(t, 3, strings.Count(log.String(), "cannot be moved"), 1)
}

// TestMoveToADeletedQueue: no message goes to a queue that another server has just deleted. A dead letter stays until
// the queue is made again; a move task ends as failed.
func TestMoveToADeletedQueue(t *testing.T) {
	inBothKinds(t, func(e *env) {
		other := &env{T: e.T, db: e.db, s: NewServer(e.db, e.s.options)}
		defer func() { require.NoError(e, other.s.Close(e.Context())) }()
		url, dead := e.withDead("orders.fifo", "dead.fifo", 1)
		to := e.create("to.fifo")
		arn := e.attributes(to)["QueueArn"]
		e.send(dead, "d", "d1")
		e.send(url, "a", "a1")
		e.receive(url)
		time.Sleep(6 * time.Second)

		e.attributes(to) // the server remembers the queue for a second
		other.call("DeleteQueue", object{"QueueUrl": to})
		source := e.attributes(dead)["QueueArn"]
		e.call("StartMessageMoveTask", object{"SourceArn": source, "DestinationArn": arn})
		time.Sleep(5 * time.Second)
		task := e.call("ListMessageMoveTasks", object{"SourceArn": source})["Results"].([]any)[0].(object)
		require.Equal(e, broken, task["Status"])
		require.Equal(e, "d1", bodies(e.receive(dead)))

		e.attributes(dead)
		other.call("DeleteQueue", object{"QueueUrl": dead})
		require.Empty(e, e.receive(url))
		require.NoError(e, e.s.moveAllDead(e.Context()))
		time.Sleep(10 * time.Second)
		require.Equal(e, []string{"a1"}, e.letters("orders.fifo"))
		time.Sleep(time.Minute)
		dead = e.create("dead.fifo")
		e.receive(url)
		require.Equal(e, "a1", bodies(e.receive(dead)))
	})
}

// TestLogOfADeletedTarget: the log says that dead letters stay because their dead letter queue was deleted. It does not
// say so of a queue without dead letters.
func TestLogOfADeletedTarget(t *testing.T) {
	var log logText
	bubble(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(e *env) {
		url, dead := e.withDead("orders.fifo", "dead.fifo", 1)
		e.call("DeleteQueue", object{"QueueUrl": dead})
		for range 5 {
			require.Empty(e, e.receive(url))
			time.Sleep(deadEvery)
		}
		synctest.Wait()
		require.NotContains(e, log.String(), "cannot be moved")
		e.send(url, "a", "a1")
		e.die(url)
		time.Sleep(2 * deadEvery)
		require.Equal(e, []string{"a1"}, e.letters("orders.fifo"))
		require.NoError(e, e.s.Close(e.Context()))
	})
	require.Regexp(t, `cannot be moved.*queue=orders.fifo dead_letter_queue=dead.fifo.*does not exist`, log.String())
}

// TestLettersBeforeThePolicyGoes: the dead letters of a queue go to its dead letter queue before a client removes the
// RedrivePolicy. One that cannot be moved stays, and the log says so.
func TestLettersBeforeThePolicyGoes(t *testing.T) {
	var log logText
	bubble(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(e *env) {
		url, dead := e.withDead("orders.fifo", "dead.fifo", 1)
		e.configure("dead.fifo", func(c *layer.Config) { c.MaxWaiting = 1 })
		e.send(url, "a", "a1", "a2")
		time.Sleep(5 * time.Second) // the queue is in use no more
		e.setAside("orders.fifo")
		e.call("SetQueueAttributes", object{"QueueUrl": url, "Attributes": object{redrivePolicy: ""}})
		require.NotContains(e, e.attributes(url), redrivePolicy)
		require.Equal(e, []string{"a2"}, e.letters("orders.fifo"))
		require.Equal(e, "a1", bodies(e.receive(dead)))
		require.NoError(e, e.s.Close(e.Context()))
	})
	require.Regexp(t, `cannot be moved.*queue=orders.fifo.*has no RedrivePolicy`, log.String())
}

// TestDeleteOfADeadLetter: a message that was deleted is not delivered by the dead letter queue. A client gives the
// message back, or is too slow, and then deletes it, before it has moved. A standard queue deletes it. A FIFO queue
// says that the receipt handle has expired, and the message moves.
func TestDeleteOfADeadLetter(t *testing.T) {
	fails := map[string]func(e *env, url string, m message){
		"given back": func(e *env, url string, m message) { e.visible(url, m, 0) },
		"slow": func(e *env, url string, m message) {
			time.Sleep(6 * time.Second)
			e.setAside(path.Base(url)) // as a receive does that finds it
		},
	}
	for name, fail := range fails {
		t.Run(name, func(t *testing.T) {
			inBothKinds(t, func(e *env) {
				url, dead := e.withDead("orders", "dead", 1)
				time.Sleep(deadEvery / 2) // between two moves of dead letters
				e.send(url, "", "one")
				m := e.receive(url)[0]
				fail(e, url, m)
				e.delete(url, m)
				time.Sleep(2 * time.Second)
				require.Empty(e, e.receive(dead))
				require.Empty(e, e.letters("orders"))
			})
			inBothKinds(t, func(e *env) {
				url, dead := e.withDead("orders.fifo", "dead.fifo", 1)
				time.Sleep(deadEvery / 2)
				e.send(url, "a", "one")
				m := e.receive(url)[0]
				fail(e, url, m)
				_, text := e.refused("DeleteMessage", object{"QueueUrl": url, "ReceiptHandle": m.ReceiptHandle})
				require.Contains(e, text, "The receipt handle has expired.")
				time.Sleep(2 * time.Second)
				require.Equal(e, "one", bodies(e.receive(dead)))
			})
		})
	}
}

// TestLettersBeforeTheQueueGoes: the dead letters of a queue go to its dead letter queue before the queue is deleted,
// also if another server moves some of them at the same time. One that cannot be moved is deleted with its queue, and
// the log says so.
func TestLettersBeforeTheQueueGoes(t *testing.T) {
	for most, want := range map[int][]string{0: {"a1", "a2"}, 1: {"a1"}} {
		var log logText
		bubble(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(e *env) {
			url, dead := e.withDead("orders.fifo", "dead.fifo", 1)
			e.configure("dead.fifo", func(c *layer.Config) { c.MaxWaiting = most })
			e.send(url, "a", "a1", "a2")
			time.Sleep(5 * time.Second) // the queue is in use no more
			e.setAside("orders.fifo")
			e.call("DeleteQueue", object{"QueueUrl": url})
			require.Equal(e, want, bodiesOf(e.receive(dead)))
			time.Sleep(5 * time.Second) // until the queue is dropped
			require.NoError(e, e.s.Close(e.Context()))
		})
		const warning = "queue was deleted with dead letters.*queue=orders.fifo left=1"
		require.Equal(t, len(want) == 1, regexp.MustCompile(warning).MatchString(log.String()), log.String())
	}
}

// TestAllLettersBeforeTheQueueGoes: all dead letters of a queue are moved before the queue is deleted, though others,
// here an operator, take some of them away at the same time.
func TestAllLettersBeforeTheQueueGoes(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		const n = 200
		url, dead := e.withDead("orders.fifo", "dead.fifo", 1)
		taken := e.besideAnOperator(url, n, func(slow *env) {
			slow.call("DeleteQueue", object{"QueueUrl": url})
		})
		require.Equal(e, fmt.Sprint(n-taken, " visible, 0 in flight"), e.numbers(dead))
		time.Sleep(5 * time.Second) // until the queue is dropped
	})
}

// TestTaskCountsAllLetters: a move task counts all dead letters of its source queues, because they are moved before it
// begins, though others, here an operator, take some of them away at the same time.
func TestTaskCountsAllLetters(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		const n = 200
		url, dead := e.withDead("orders.fifo", "dead.fifo", 1)
		taken := e.besideAnOperator(url, n, func(slow *env) {
			slow.call("StartMessageMoveTask", object{"SourceArn": e.s.arn("dead.fifo")})
		})
		require.EqualValues(e, n-taken, e.lastTask(dead)["ApproximateNumberOfMessagesToMove"])
	})
}

// besideAnOperator sets n messages of orders.fifo aside, and has a slow server do something while an operator discards
// dead letters of the queue, one at a time. It returns how many letters the operator has taken.
func (e *env) besideAnOperator(url string, n int, do func(slow *env)) (taken int) {
	e.Helper()
	for i := range n {
		e.send(url, fmt.Sprint(i), fmt.Sprint(i))
	}
	time.Sleep(5 * time.Second) // the queue is in use no more
	e.setAside("orders.fifo")
	q, err := layer.Open(e.Context(), e.db, nil, "orders.fifo", layer.Options{})
	require.NoError(e, err)
	slow := &env{T: e.T, db: e.db, s: NewServer(slowDB{e.db, 50 * time.Millisecond}, e.s.options)}
	var done atomic.Bool
	var operator sync.WaitGroup
	operator.Go(func() {
		for {
			time.Sleep(137 * time.Millisecond) // the server reads a page, and moves it 50 ms later
			page, err := q.Admin().DeadLetters(e.Context(), layer.DeadOptions{Limit: 1})
			if done.Load() || !assert.NoError(e, err) || len(page.Letters) == 0 {
				return
			}
			report, err := q.Admin().Discard(e.Context(), layer.DeadFilter{IDs: []layer.ID{page.Letters[0].ID}},
				layer.DiscardOptions{})
			assert.NoError(e, err)
			taken += int(report.Done)
		}
	})
	do(slow)
	done.Store(true)
	operator.Wait()
	require.NoError(e, errors.Join(q.Close(e.Context()), slow.s.Close(e.Context())))
	require.Positive(e, taken)
	require.Less(e, taken, n)
	return taken
}

// TestDeleteThatCannotMove: a queue is not deleted while the database does not let its dead letters be moved. A queue
// whose configuration cannot be read is deleted.
func TestDeleteThatCannotMove(t *testing.T) {
	var fails atomic.Bool
	open := func(t *testing.T) kv.DB {
		return failingDB{DB: inMemory(t), fails: func(of string) error {
			if of == "once" && fails.Load() {
				return &kv.Error{Code: kv.CodeIOError}
			}
			return nil
		}}
	}
	bubbleOn(t, open, Options{}, func(e *env) {
		url, dead := e.withDead("orders.fifo", "dead.fifo", 1)
		e.send(url, "a", "a1")
		time.Sleep(5 * time.Second) // the queue is in use no more
		e.setAside("orders.fifo")
		fails.Store(true)
		status, _, body := e.do(post("DeleteQueue", object{"QueueUrl": url}))
		require.Equal(e, http.StatusInternalServerError, status, body)
		fails.Store(false)
		require.Equal(e, "a1", bodies(e.receive(dead)))
		e.spoilConfig("orders.fifo")
		e.call("DeleteQueue", object{"QueueUrl": url})
		require.Equal(e, []string{"dead.fifo"}, e.listed())
		time.Sleep(5 * time.Second) // until the queue is dropped
	})
}

// TestPurgeOfLettersThatWait: a purge of a dead letter queue removes the dead letters that are on their way to it, too,
// because a client cannot tell them from the others.
func TestPurgeOfLettersThatWait(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		url, dead := e.withDead("orders.fifo", "dead.fifo", 1)
		e.send(url, "a", "a1")
		time.Sleep(5 * time.Second) // the queue is in use no more
		e.setAside("orders.fifo")
		e.call("PurgeQueue", object{"QueueUrl": dead})
		require.Empty(e, e.receive(dead))
	})
}

// TestMovedKeepsItsTenant: a message keeps its tenant on its way to the dead letter queue of a standard queue, and
// back. A message from a FIFO queue has its group as its tenant. Another tenant with one message does not wait for
// their backlog.
func TestMovedKeepsItsTenant(t *testing.T) {
	const backlog = "100 visible, 0 in flight"
	soon := func(e *env, url string) (quiet message) {
		e.call("SendMessage", object{"QueueUrl": url, "MessageBody": "quiet", "MessageGroupId": "quiet"})
		for range 18 {
			if quiet = e.receive(url, "MaxNumberOfMessages", 1)[0]; quiet.Body == "quiet" {
				return quiet
			}
		}
		e.Fatal("the message waits behind the backlog")
		return quiet
	}
	bubble(t, Options{}, func(e *env) {
		jobs, dead := e.withDead("jobs", "dead", 1)
		for i := range 100 {
			m := object{"QueueUrl": jobs, "MessageBody": fmt.Sprint(i), "MessageGroupId": "loud"}
			e.call("SendMessage", m)
		}
		time.Sleep(5 * time.Second)
		e.setAside("jobs")
		require.Equal(e, backlog, e.numbers(dead))
		e.delete(dead, soon(e, dead))
		time.Sleep(6 * time.Second)
		require.Equal(e, "loud", e.receive(dead, "VisibilityTimeout", 0)[0].Attributes["MessageGroupId"])
		e.redrive(dead, "")
		require.Equal(e, backlog, e.numbers(jobs))
		soon(e, jobs)

		_, dead = e.withDead("orders.fifo", "dead.fifo", 1)
		for i := range 100 {
			e.send(dead, "loud", fmt.Sprint(i))
		}
		other := e.create("other", visibilityTimeout, "5")
		e.redrive(dead, other)
		require.Equal(e, backlog, e.numbers(other))
		soon(e, other)
	})
}

// TestReceiveBeforeTheMoveEnds: a receive from a dead letter queue does not wait until all dead letters of its source
// queues are moved. The server moves the rest in the background.
func TestReceiveBeforeTheMoveEnds(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		const many, few = 1500, 10
		_, dead := e.withDead("first", "dead", 1)
		e.withDead("second", "dead", 1)
		require.NoError(e, e.s.Close(e.Context())) // or it could move dead letters before the test begins
		e.bury("first", many)
		e.bury("second", few)
		for _, wait := range []int{0, 1} {
			e.s = NewServer(slowDB{e.db, 50 * time.Millisecond}, Options{})
			begun := time.Now()
			require.NotEmpty(e, e.receive(dead, "WaitTimeSeconds", wait))
			require.Less(e, time.Since(begun), time.Second)
			require.NotEmpty(e, e.letters("first"))
			require.Len(e, e.letters("second"), few)
			require.NoError(e, e.s.Close(e.Context()))
		}
		e.s = NewServer(slowDB{e.db, 50 * time.Millisecond}, Options{})
		e.receive(dead)
		time.Sleep(time.Minute)
		require.Equal(e, fmt.Sprint(many+few, " visible, 0 in flight"), e.numbers(dead))
	})
}

// bury makes n dead letters of a standard queue, as a Go program may.
func (e *env) bury(name string, n int) {
	e.Helper()
	q, err := layer.Open(e.Context(), e.db, nil, name, layer.Options{})
	require.NoError(e, err)
	for batch := range slices.Chunk(make([]layer.Message, n), layer.MaxBatch) {
		for i := range batch {
			batch[i] = layer.Message{Alone: true, Body: []byte(fmt.Sprint(i))}
		}
		_, err := q.Enqueue(e.Context(), batch...)
		require.NoError(e, err)
	}
	require.NoError(e, q.Close(e.Context()))
	e.setAside(name)
}

// TestManyLettersDelayNoOthers: many dead letters of one queue do not delay those of another queue in use until all of
// them are moved. The server moves some of each queue in turn.
func TestManyLettersDelayNoOthers(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		const many = 2000
		e.withDead("first", "dead", 1)
		e.withDead("second", "dead", 1)
		require.NoError(e, e.s.Close(e.Context())) // or it could move dead letters before the test begins
		e.bury("first", many)
		e.bury("second", many)
		e.s = NewServer(slowDB{e.db, 100 * time.Millisecond}, Options{})
		e.receive("first")
		e.receive("second")
		time.Sleep(6 * time.Second) // all of one take 8
		for _, name := range []string{"first", "second"} {
			left := len(e.letters(name))
			require.Less(e, left, many, name)
			require.Positive(e, left, name)
		}
	})
}

// TestReceiveWithoutBatchPriority: a receive from a dead letter queue, and a request for its counts, are answered while
// the database serves no transaction of batch priority. The dead letters of the source queue come after that.
func TestReceiveWithoutBatchPriority(t *testing.T) {
	var throttled atomic.Bool
	open := func(t *testing.T) kv.DB {
		return failingDB{DB: inMemory(t), fails: func(of string) error {
			if of == "job" && throttled.Load() {
				return &kv.Error{Code: kv.CodeBatchThrottled}
			}
			return nil
		}}
	}
	bubbleOn(t, open, Options{}, func(e *env) {
		url, dead := e.withDead("orders.fifo", "dead.fifo", 1)
		e.send(url, "a", "a1")
		e.send(dead, "b", "b1")
		time.Sleep(5 * time.Second) // the queue is in use no more
		e.setAside("orders.fifo")
		throttled.Store(true)
		time.AfterFunc(time.Minute, func() { throttled.Store(false) })
		begun := time.Now()
		require.Equal(e, "b1", bodies(e.receive(dead)))
		require.Equal(e, "0 visible, 1 in flight", e.numbers(dead))
		require.Less(e, time.Since(begun), 2*time.Second)
		time.Sleep(2 * time.Minute)
		require.ElementsMatch(e, []string{"a1", "b1"}, bodiesOf(e.receive(dead)))
	})
}

// slowDB begins each transaction after a while.
type slowDB struct {
	kv.DB
	lag time.Duration
}

func (d slowDB) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	time.Sleep(d.lag)
	return d.DB.Begin(o)
}

// TestMovesLoseNothing: two servers have two FIFO queues and their dead letter queue. Messages fail, die and are
// redriven, to where they came from or to the other queue. Senders use deduplication ids again within the window, and
// MessageIds as such. Commits have unknown outcomes. Each message that was sent and not deleted is in exactly one
// queue.
func TestMovesLoseNothing(t *testing.T) {
	died, unknown := 0, 0
	for seed := range uint64(8) {
		inBothKinds(t, func(e *env) {
			m := newMoves(e, seed)
			defer func() { require.NoError(e, m.servers[1].s.Close(e.Context())) }()
			for range 300 {
				m.step()
			}
			m.compare()
			died, unknown = died+m.died, unknown+m.plan.Counts()[fault.UnknownApplied]
		})
	}
	require.Greater(t, died, 20, "messages that came to the dead letter queue a second time")
	require.Greater(t, unknown, 20, "commits that were applied, and not known to be")
}

const moveGroups = 3

// moves is a random run over queues whose messages are moved.
type moves struct {
	*env
	rng     *rand.Rand
	plan    *fault.Plan // of the second server
	servers []*env
	urls    []string // of orders.fifo, mail.fifo and their dead letter queue
	left    []string // bodies of the messages that were sent and not deleted
	ids     []string // MessageIds seen
	dead    map[string]map[string]bool
	died    int // messages seen in the dead letter queue under a second MessageId
}

func newMoves(e *env, seed uint64) *moves {
	m := &moves{
		env: e, rng: rand.New(rand.NewPCG(seed, 1)), plan: fault.Default(seed), dead: make(map[string]map[string]bool),
	}
	orders, dead := e.withDead("orders.fifo", "dead.fifo", 1)
	mail, _ := e.withDead("mail.fifo", "dead.fifo", 2)
	m.urls = []string{orders, mail, dead}
	other := &env{T: e.T, db: e.db, s: NewServer(fault.Wrap(e.db, m.plan), e.s.options)}
	m.servers = []*env{e, other}
	return m
}

// step is one random call.
func (m *moves) step() {
	s, url := m.servers[m.rng.IntN(2)], m.urls[m.rng.IntN(3)]
	switch m.rng.IntN(8) {
	case 0, 1:
		id := fmt.Sprint(m.rng.IntN(20))
		if len(m.ids) > 0 && m.rng.IntN(3) == 0 {
			id = m.ids[m.rng.IntN(len(m.ids))]
		}
		body := fmt.Sprint("m", len(m.ids), "-", m.rng.Uint32())
		sent := s.sendAs(url, fmt.Sprint("g", m.rng.IntN(moveGroups)), body, id)
		if !slices.Contains(m.ids, sent) {
			m.ids, m.left = append(m.ids, sent), append(m.left, body)
		}
	case 2, 3, 4:
		for _, got := range s.receive(url) {
			m.see(url, got)
			if m.rng.IntN(6) == 0 {
				s.delete(url, got)
				m.left = slices.DeleteFunc(m.left, func(body string) bool { return body == got.Body })
			}
		}
	case 5:
		start := object{"SourceArn": s.attributes(m.urls[2])["QueueArn"]}
		if to := m.rng.IntN(4); to < 2 {
			start["DestinationArn"] = s.attributes(m.urls[to])["QueueArn"]
		}
		s.do(post("StartMessageMoveTask", start)) // refused while another task runs
	default:
		time.Sleep(time.Duration(m.rng.IntN(12_000)) * time.Millisecond)
	}
}

// see notes a message that was received.
func (m *moves) see(url string, got message) {
	if !slices.Contains(m.ids, got.MessageId) {
		m.ids = append(m.ids, got.MessageId)
	}
	if url != m.urls[2] {
		return
	}
	if m.dead[got.Body] == nil {
		m.dead[got.Body] = make(map[string]bool)
	}
	if m.dead[got.Body][got.MessageId] = true; len(m.dead[got.Body]) == 2 {
		m.died++
	}
}

// compare compares the messages in the queues with those that were sent and not deleted.
func (m *moves) compare() {
	m.Helper()
	time.Sleep(10 * time.Second)
	var all []string
	for _, name := range []string{"orders.fifo", "mail.fifo", "dead.fifo"} {
		q, err := layer.Open(m.Context(), m.db, nil, name, layer.Options{})
		require.NoError(m, err)
		for group := range moveGroups {
			for item, err := range q.Admin().AllItems(m.Context(), fmt.Sprint("g", group), nil) {
				require.NoError(m, err)
				all = append(all, string(item.Body))
			}
		}
		all = append(all, m.letters(name)...)
		require.NoError(m, q.Close(m.Context()))
	}
	slices.Sort(all)
	left := slices.Sorted(slices.Values(m.left))
	require.Equal(m, left, all)
}

// TestTaskOfLettersThatWait: a move task moves the messages that are on their way to its dead letter queue. A Go
// program has set them aside, so no request has moved them there.
func TestTaskOfLettersThatWait(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		url, _ := e.withDead("orders.fifo", "dead.fifo", 1)
		e.send(url, "a", "a1")
		time.Sleep(5 * time.Second) // the queue is in use no more
		q, err := layer.Open(e.Context(), e.db, nil, "orders.fifo", layer.Options{})
		require.NoError(e, err)
		claims, err := q.Receive(e.Context(), layer.ReceiveOptions{})
		require.NoError(e, err)
		require.NoError(e, q.Nack(e.Context(), claims[0], layer.NackOptions{}))
		require.NoError(e, q.Close(e.Context()))
		require.Equal(e, []string{"a1"}, e.letters("orders.fifo"))
		e.call("StartMessageMoveTask", object{"SourceArn": e.s.arn("dead.fifo")})
		time.Sleep(time.Second)
		require.Equal(e, "a1", bodies(e.receive(url)))
	})
}
