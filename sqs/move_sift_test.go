package sqs

import (
	"bytes"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// spoil makes the first message of a queue with a body in parts unreadable.
func (e *env) spoil(name string) {
	e.Helper()
	all := kv.PrefixRange(tuple.Tuple{name}.Pack())
	_, err := kv.Run(e.Context(), e.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		rows, err := tx.GetRange(all.Selectors(), kv.RangeOptions{}).Wait(e.Context())
		for _, row := range rows {
			if d, known, _ := layer.Describe(nil, row.Key, nil); known && d.Name == "part" {
				tx.Clear(row.Key)
				return nil
			}
		}
		return err
	})
	require.NoError(e, err)
}

// put enqueues a message as the move from the queue source does, with a group of its own if group is "".
func (e *env) put(name, source, group string, body []byte) {
	e.Helper()
	q, err := layer.Open(e.Context(), e.db, nil, name, layer.Options{})
	require.NoError(e, err)
	defer q.Close(e.Context())
	m := layer.Message{Group: group, Alone: group == "", Body: body}
	if source != "" {
		m.Headers = map[string]string{headerSource: source}
	}
	_, err = q.Enqueue(e.Context(), m)
	require.NoError(e, err)
}

// purgeHeads removes the first message of each group, also one that cannot be read.
func (e *env) purgeHeads(name string) {
	e.Helper()
	q, err := layer.Open(e.Context(), e.db, nil, name, layer.Options{})
	require.NoError(e, err)
	defer q.Close(e.Context())
	for g, err := range q.Admin().AllGroups(e.Context(), layer.GroupsOptions{}) {
		require.NoError(e, err)
		require.NoError(e, q.Admin().Cancel(e.Context(), g.Head))
	}
}

// lastTask returns the newest move task of a queue.
func (e *env) lastTask(url string) object {
	e.Helper()
	list := object{"SourceArn": e.attributes(url)["QueueArn"]}
	return e.call("ListMessageMoveTasks", list)["Results"].([]any)[0].(object)
}

// TestMoveTaskPassesBadMessages: a message that cannot be moved stays where it is, and stops no other. The task ends as
// failed, with the reason, and with the number of messages that it has moved. Another task moves what came since.
func TestMoveTaskPassesBadMessages(t *testing.T) {
	t.Parallel()
	large := bytes.Repeat([]byte("y"), 200_000)
	for _, test := range []struct {
		reason string
		bad    func(e *env, dead, group string)
	}{
		{"CouldNotDetermineMessageSource", func(e *env, dead, group string) { e.put(dead, "", group, large) }},
		{"AWS.SimpleQueueService.NonExistentQueue", func(e *env, dead, group string) {
			e.put(dead, "gone", group, large)
		}},
		{"InvalidParameterValue", func(e *env, dead, group string) { e.put(dead, dead, group, large) }},
		{"MessageUnreadable", func(e *env, dead, group string) {
			e.put(dead, "orders"+suffixOf(dead), group, large)
			e.spoil(dead)
		}},
	} {
		for _, suffix := range []string{"", fifoSuffix} {
			t.Run(test.reason+suffix, func(t *testing.T) {
				bubble(t, Options{}, func(e *env) {
					group := func(name string) string {
						if suffix == "" {
							return ""
						}
						return name
					}
					orders, dead := e.withDead("orders"+suffix, "dead"+suffix, 1)
					test.bad(e, "dead"+suffix, group("bad"))
					for i := range 70 { // more than a step
						e.put("dead"+suffix, "orders"+suffix, group(fmt.Sprint(i%7)), []byte(fmt.Sprint(i)))
					}
					start := object{"SourceArn": e.attributes(dead)["QueueArn"]}
					for _, moved := range []int{70, 1} {
						e.call("StartMessageMoveTask", start)
						time.Sleep(10 * time.Second)
						task := e.lastTask(dead)
						require.Equal(e, broken, task["Status"])
						require.Equal(e, test.reason, task["FailureReason"])
						require.EqualValues(e, moved, task["ApproximateNumberOfMessagesMoved"])
						require.Equal(e, "1", e.attributes(dead)[counted[0]], "the bad message stays")
						e.put("dead"+suffix, "orders"+suffix, group("later"), []byte("later"))
					}
					require.Equal(e, "71", e.attributes(orders)[counted[0]])
					e.purgeHeads("dead" + suffix) // an unreadable message is a violation of the layer's rules
				})
			})
		}
	}
}

// TestMoveTaskBeforeAnUnreadableMessage: a task moves the messages of a group before one that cannot be read. Those
// behind it stay.
func TestMoveTaskBeforeAnUnreadableMessage(t *testing.T) {
	t.Parallel()
	inBothKinds(t, func(e *env) {
		orders, dead := e.withDead("orders.fifo", "dead.fifo", 1)
		for _, body := range []string{"m1", "m2", strings.Repeat("y", 200_000), "m4"} {
			e.put("dead.fifo", "orders.fifo", "g", []byte(body))
		}
		e.spoil("dead.fifo")
		e.call("StartMessageMoveTask", object{"SourceArn": e.attributes(dead)["QueueArn"]})
		time.Sleep(10 * time.Second)
		task := e.lastTask(dead)
		require.Equal(e, broken, task["Status"])
		require.Equal(e, "MessageUnreadable", task["FailureReason"])
		require.EqualValues(e, 2, task["ApproximateNumberOfMessagesMoved"])
		require.Equal(e, "m1 m2", bodies(e.receive(orders)))
		require.Equal(e, "2", e.attributes(dead)[counted[0]])
		e.purgeHeads("dead.fifo")
	})
}

func suffixOf(name string) string {
	if bytes.HasSuffix([]byte(name), []byte(fifoSuffix)) {
		return fifoSuffix
	}
	return ""
}

// TestMoveTaskToAFullQueue: a group without room in the target stops no other group, and keeps its order. The task
// waits a minute for room. Then it ends as failed, and the log says why. Nothing is lost.
func TestMoveTaskToAFullQueue(t *testing.T) {
	t.Parallel()
	var log logText
	bubble(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(e *env) {
		orders, dead := e.withDead("orders.fifo", "dead.fifo", 1)
		e.configure("orders.fifo", func(c *layer.Config) { c.MaxWaiting = 2 })
		for _, group := range []string{"a", "b", "c"} {
			for i := range 4 {
				e.put("dead.fifo", "orders.fifo", group, []byte(fmt.Sprint(group, i)))
			}
		}
		time.Sleep(10 * time.Second) // until the server knows the setting
		e.call("StartMessageMoveTask", object{"SourceArn": e.attributes(dead)["QueueArn"]})
		time.Sleep(50 * time.Second)
		require.Equal(e, running, e.lastTask(dead)["Status"])
		got := e.receive(orders)
		require.ElementsMatch(e, []string{"a0", "a1", "b0", "b1", "c0", "c1"}, bodiesOf(got))
		e.delete(orders, got[:2]...) // of one group
		time.Sleep(50 * time.Second)
		require.Equal(e, running, e.lastTask(dead)["Status"], "there was room")
		time.Sleep(50 * time.Second)
		task := e.lastTask(dead)
		require.Equal(e, broken, task["Status"])
		require.Equal(e, "DestinationQueueFull", task["FailureReason"])
		require.EqualValues(e, 8, task["ApproximateNumberOfMessagesMoved"])
		require.Equal(e, "4", e.attributes(dead)[counted[0]])
		require.Len(e, e.receive(dead), 4)
		require.NoError(e, e.s.Close(e.Context()))
	})
	require.Contains(t, log.String(), "left messages where they were")
	require.Contains(t, log.String(), "left=4")
}

// TestMoveTaskPassesAfterARestart: a server that ends in the middle of a task with a bad message leaves the task to the
// next server, which ends it truthfully.
func TestMoveTaskPassesAfterARestart(t *testing.T) {
	t.Parallel()
	inBothKinds(t, func(e *env) {
		orders, dead := e.withDead("orders.fifo", "dead.fifo", 1)
		e.put("dead.fifo", "", "a", []byte("by hand"))
		for i := range 20 {
			e.put("dead.fifo", "orders.fifo", fmt.Sprint(i%4), []byte(fmt.Sprint(i)))
		}
		e.call("StartMessageMoveTask",
			object{"SourceArn": e.attributes(dead)["QueueArn"], "MaxNumberOfMessagesPerSecond": 1})
		time.Sleep(8 * time.Second)
		require.Greater(e, e.lastTask(dead)["ApproximateNumberOfMessagesMoved"], 3.0)
		require.NoError(e, e.s.Close(e.Context()))
		e.s = NewServer(e.db, e.s.options)
		time.Sleep(time.Minute)
		task := e.lastTask(dead)
		require.Equal(e, broken, task["Status"])
		require.Equal(e, "CouldNotDetermineMessageSource", task["FailureReason"])
		require.EqualValues(e, 20, task["ApproximateNumberOfMessagesMoved"])
		require.Equal(e, "by hand", bodies(e.receive(dead)))
		require.Equal(e, "20", e.attributes(orders)[counted[0]])
	})
}

// TestMoveTaskIsCancelledAmongBadMessages: a task that passes over bad messages can be cancelled.
func TestMoveTaskIsCancelledAmongBadMessages(t *testing.T) {
	t.Parallel()
	bubble(t, Options{}, func(e *env) {
		_, dead := e.withDead("orders.fifo", "dead.fifo", 1)
		for i := range 50 {
			e.put("dead.fifo", []string{"", "orders.fifo"}[i%2], fmt.Sprint(i), []byte("x"))
		}
		start := object{"SourceArn": e.attributes(dead)["QueueArn"], "MaxNumberOfMessagesPerSecond": 1}
		handle := e.call("StartMessageMoveTask", start)["TaskHandle"]
		time.Sleep(5 * time.Second)
		e.call("CancelMessageMoveTask", object{"TaskHandle": handle})
		time.Sleep(3 * time.Second)
		task := e.lastTask(dead)
		require.Equal(e, cancelled, task["Status"])
		require.Less(e, task["ApproximateNumberOfMessagesMoved"], 10.0)
	})
}

// edit calls a function with the layer's queue of the name and with the id of the message that has the body.
func (e *env) edit(name, group, body string, change func(q *layer.Queue, id layer.ID) error) {
	e.Helper()
	q, err := layer.Open(e.Context(), e.db, nil, name, layer.Options{})
	require.NoError(e, err)
	defer q.Close(e.Context())
	for item, err := range q.Admin().AllItems(e.Context(), group, nil) {
		require.NoError(e, err)
		if string(item.Body) == body {
			require.NoError(e, change(q, item.ID))
			return
		}
	}
	e.Fatal("no such message: " + body)
}

// TestMoveTaskKeepsTheOrder: a task that passes over a bad message moves no message of a group before one that is
// delayed or in flight. A later task moves all of them, in their order.
func TestMoveTaskKeepsTheOrder(t *testing.T) {
	t.Parallel()
	for name, hold := range map[string]func(e *env, dead string) (release func()){
		"in flight": func(e *env, dead string) func() {
			got := e.receive(dead, "MaxNumberOfMessages", 1, "VisibilityTimeout", 60)
			require.Equal(e, "m1", bodies(got))
			return func() { e.visible(dead, got[0], 0) }
		},
		"delayed": func(e *env, _ string) func() {
			e.edit("dead.fifo", "g", "m1", func(q *layer.Queue, id layer.ID) error {
				return q.Reschedule(e.Context(), id, time.Now().Add(time.Minute))
			})
			return func() { time.Sleep(time.Minute) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBothKinds(t, func(e *env) {
				orders, dead := e.withDead("orders.fifo", "dead.fifo", 1)
				for _, body := range []string{"m1", "m2", "m3"} {
					e.put("dead.fifo", "orders.fifo", "g", []byte(body))
				}
				release := hold(e, dead)
				e.put("dead.fifo", "", "h", []byte("by hand"))
				start := object{"SourceArn": e.attributes(dead)["QueueArn"]}
				e.call("StartMessageMoveTask", start)
				time.Sleep(10 * time.Second)
				require.Equal(e, broken, e.lastTask(dead)["Status"])
				require.Empty(e, e.receive(orders))
				release()
				e.call("StartMessageMoveTask", start)
				time.Sleep(10 * time.Second)
				require.Equal(e, "m1 m2 m3", bodies(e.receive(orders)))
			})
		})
	}
}

// TestMoveTaskKeepsEdits: a task that passes over a bad message does not undo a change that an operator makes after the
// task has read the message.
func TestMoveTaskKeepsEdits(t *testing.T) {
	t.Parallel()
	for want, change := range map[string]func(e *env) func(q *layer.Queue, id layer.ID) error{
		"m1 m2 repaired": func(e *env) func(q *layer.Queue, id layer.ID) error {
			return func(q *layer.Queue, id layer.ID) error {
				return q.Replace(e.Context(), id, []byte("repaired"), map[string]string{headerSource: "orders.fifo"})
			}
		},
		"m1 m2": func(e *env) func(q *layer.Queue, id layer.ID) error {
			return func(q *layer.Queue, id layer.ID) error {
				return q.Reschedule(e.Context(), id, time.Now().Add(time.Hour))
			}
		},
	} {
		t.Run(want, func(t *testing.T) {
			inBothKinds(t, func(e *env) {
				orders, dead := e.withDead("orders.fifo", "dead.fifo", 1)
				e.put("dead.fifo", "", "a", []byte("by hand"))
				for _, body := range []string{"m1", "m2", "m3"} {
					e.put("dead.fifo", "orders.fifo", "g", []byte(body))
				}
				e.call("StartMessageMoveTask",
					object{"SourceArn": e.attributes(dead)["QueueArn"], "MaxNumberOfMessagesPerSecond": 1})
				time.Sleep(1500 * time.Millisecond)
				e.edit("dead.fifo", "g", "m3", change(e))
				time.Sleep(10 * time.Second)
				require.Equal(e, broken, e.lastTask(dead)["Status"])
				require.Equal(e, want, bodies(e.receive(orders)))
			})
		})
	}
}

// TestMoveTaskEndsAmongBadMessages: a task that passes over a bad message ends, though a client fails each message that
// the task gives back. The messages that have died again wait for the next task.
func TestMoveTaskEndsAmongBadMessages(t *testing.T) {
	t.Parallel()
	inBothKinds(t, func(e *env) {
		const n = 30
		orders, dead := e.withDead("orders.fifo", "dead.fifo", 1)
		e.put("dead.fifo", "", "a", []byte("by hand"))
		for range n {
			e.put("dead.fifo", "orders.fifo", "g", []byte("poison"))
		}
		e.call("StartMessageMoveTask",
			object{"SourceArn": e.attributes(dead)["QueueArn"], "MaxNumberOfMessagesPerSecond": 10})
		for range 300 {
			e.receive(orders, "VisibilityTimeout", 0)
			time.Sleep(200 * time.Millisecond)
		}
		task := e.lastTask(dead)
		require.Equal(e, broken, task["Status"])
		require.Equal(e, "CouldNotDetermineMessageSource", task["FailureReason"])
		require.LessOrEqual(e, task["ApproximateNumberOfMessagesMoved"], float64(n+1))
	})
}

// TestMoveTaskEndsInACycle: two queues are the dead letter queues of each other, and two tasks move their messages to
// and fro. Each task moves as many messages as there were when it began, and ends.
func TestMoveTaskEndsInACycle(t *testing.T) {
	t.Parallel()
	inBothKinds(t, func(e *env) {
		one, two := e.withDead("one.fifo", "two.fifo", 1)
		policy := fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":1}`, e.attributes(one)["QueueArn"])
		e.call("SetQueueAttributes", object{"QueueUrl": two, "Attributes": object{redrivePolicy: policy}})
		for i := range 10 {
			e.put("one.fifo", "two.fifo", fmt.Sprint(i), []byte("x"))
			e.put("two.fifo", "one.fifo", fmt.Sprint(i), []byte("x"))
		}
		for from, to := range map[string]string{one: two, two: one} {
			e.call("StartMessageMoveTask", object{
				"SourceArn": e.attributes(from)["QueueArn"], "DestinationArn": e.attributes(to)["QueueArn"],
				"MaxNumberOfMessagesPerSecond": 4,
			})
		}
		time.Sleep(30 * time.Second)
		left := 0
		for _, url := range []string{one, two} {
			task := e.lastTask(url)
			require.Equal(e, completed, task["Status"])
			moved := task["ApproximateNumberOfMessagesMoved"].(float64)
			require.GreaterOrEqual(e, moved, 10.0)
			require.LessOrEqual(e, moved, 14.0, "the other task may have begun before, and moves 4 in a second")
			n, err := strconv.Atoi(e.attributes(url)[counted[0]].(string))
			require.NoError(e, err)
			left += n
		}
		require.Equal(e, 20, left)
	})
}

// TestMoveTaskEndsThoughMessagesDieAgain: a message that fails again while the task runs waits for the next task.
func TestMoveTaskEndsThoughMessagesDieAgain(t *testing.T) {
	t.Parallel()
	inBothKinds(t, func(e *env) {
		orders, dead := e.withDead("orders.fifo", "dead.fifo", 1)
		e.configure("orders.fifo", func(c *layer.Config) { c.Lease = layer.MinLease })
		for i := range 5 {
			e.put("dead.fifo", "orders.fifo", fmt.Sprint(i), []byte("poison"))
		}
		e.call("StartMessageMoveTask",
			object{"SourceArn": e.attributes(dead)["QueueArn"], "MaxNumberOfMessagesPerSecond": 1})
		for range 40 {
			e.receive(orders, "VisibilityTimeout", 1)
			time.Sleep(1500 * time.Millisecond)
		}
		task := e.lastTask(dead)
		require.Equal(e, completed, task["Status"])
		require.EqualValues(e, 5, task["ApproximateNumberOfMessagesMoved"])
		e.receive(dead)
		require.Equal(e, "0 visible, 5 in flight", e.numbers(dead))
	})
}
