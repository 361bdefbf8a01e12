package sqs

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/tuple"
)

// set stores a value under a key, as no server does.
func (e *env) set(key, value []byte) {
	e.Helper()
	_, err := kv.Run(e.Context(), e.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
		tx.Set(key, value)
		return nil
	})
	require.NoError(e, err)
}

// spoilRecord stores a record that cannot be read, and waits until no server uses the one before.
func (e *env) spoilRecord(name, value string) {
	e.Helper()
	e.set(e.s.recordKey(name), []byte(value))
	time.Sleep(2 * freshFor)
}

// listed are the names that ListQueues has.
func (e *env) listed() (names []string) {
	e.Helper()
	urls, _ := e.call("ListQueues", object{})["QueueUrls"].([]any)
	for _, url := range urls {
		names = append(names, queueOf(url.(string)))
	}
	return names
}

// TestUnreadableRecord: a record that cannot be read, for example of a source queue, stops no other queue. It is not
// listed, and its dead letter queue is received from. The tasks of servers that are gone continue. The log says so
// once. DeleteQueue removes the record and the queue, and the name is free after a minute.
func TestUnreadableRecord(t *testing.T) {
	for _, value := range []string{"{", "", "[]", "{}"} {
		t.Run(value, func(t *testing.T) {
			var log logText
			bubble(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(e *env) {
				url, dead := e.withDead("orders.fifo", "dead.fifo", 1)
				to := e.create("to.fifo")
				e.send(dead, "a", "a1", "a2")
				e.send(url, "b", "b1")
				e.spoilRecord("orders.fifo", value)
				require.Equal(e, []string{"dead.fifo", "to.fifo"}, e.listed())
				require.Equal(e, "2", e.attributes(dead)["ApproximateNumberOfMessages"])
				got := e.receive(dead, "MaxNumberOfMessages", 1)
				require.Equal(e, "a1", bodies(got))
				e.delete(dead, got...)

				left := task{ID: "t", Source: "dead.fifo", To: "to.fifo", Total: 1, Status: running, Runner: "gone",
					Started: time.Now().UnixMilli()}
				e.set(e.s.taskKey(left), marshal(left))
				time.Sleep(2 * tidyEvery)
				require.Equal(e, "a2", bodies(e.receive(to)))
				time.Sleep(time.Minute)
				require.Equal(e, 1, strings.Count(log.String(), "the record of a queue cannot be read"), log.String())

				e.call("DeleteQueue", object{"QueueUrl": url})
				code, _ := e.refused("CreateQueue", object{"QueueName": "orders.fifo",
					"Attributes": object{fifoQueue: "true"}})
				require.Equal(e, "QueueDeletedRecently", code)
				require.Empty(e, e.call("ListDeadLetterSourceQueues", object{"QueueUrl": dead})["queueUrls"])
				time.Sleep(nameFreeAfter + 2*tidyEvery)
				require.Empty(e, e.receive(e.create("orders.fifo")))
				require.Equal(e, []string{"dead.fifo", "orders.fifo", "to.fifo"}, e.listed())
			})
		})
	}
}

// TestUnreadableTarget: dead letters, and messages of a move task, stay where they are if the record of their target
// cannot be read. Other messages of the task are moved.
func TestUnreadableTarget(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		url, dead := e.withDead("orders.fifo", "dead.fifo", 1)
		other, _ := e.withDead("other.fifo", "dead.fifo", 1)
		e.send(url, "a", "a1")
		e.die(url)
		e.send(other, "b", "b1")
		e.die(other)
		require.Equal(e, "2", e.attributes(dead)["ApproximateNumberOfMessages"])
		e.spoilRecord("orders.fifo", "{")
		arn := e.attributes(dead)["QueueArn"]
		e.call("StartMessageMoveTask", object{"SourceArn": arn})
		time.Sleep(10 * time.Second)
		ended := e.call("ListMessageMoveTasks", object{"SourceArn": arn})["Results"].([]any)[0].(object)
		require.Equal(e, broken, ended["Status"])
		require.Equal(e, "AWS.SimpleQueueService.NonExistentQueue", ended["FailureReason"])
		require.Equal(e, "1", e.attributes(dead)["ApproximateNumberOfMessages"])
		require.Equal(e, "b1", bodies(e.receive(other)))

		e.spoilRecord("dead.fifo", "{")
		time.Sleep(6 * time.Second)
		require.Empty(e, e.receive(other))
		require.Equal(e, []string{"b1"}, e.letters("other.fifo"))
	})
}

// spoilConfig makes the configuration of a queue of the layer unreadable, until restore is called.
func (e *env) spoilConfig(name string) (restore func()) {
	e.Helper()
	e.s.forget(name)
	key := tuple.Tuple{name, "meta", "config"}.Pack()
	stored, err := e.s.rows(e.Context(), "test", kv.PrefixRange(key), 1)
	require.NoError(e, err)
	e.set(key, []byte("spoilt"))
	return func() { e.set(key, stored[0].Value) }
}

// TestUnreadableSource: a source queue whose configuration in the layer cannot be read does not stop its dead letter
// queue.
func TestUnreadableSource(t *testing.T) {
	var log logText
	bubble(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(e *env) {
		_, dead := e.withDead("orders.fifo", "dead.fifo", 1)
		e.send(dead, "a", "a1")
		restore := e.spoilConfig("orders.fifo")
		require.Equal(e, "1", e.attributes(dead)["ApproximateNumberOfMessages"])
		require.Equal(e, "a1", bodies(e.receive(dead)))
		said := strings.Count(log.String(), "dead letters of a source queue could not be moved")
		require.Equal(e, 1, said, log.String())
		restore()
	})
}

// TestUnreadableKey: a key of receipt handles that cannot be read stops no queue. A server that reads it makes another
// one, and the log names it. The handles of before are refused.
func TestUnreadableKey(t *testing.T) {
	for _, value := range []string{"x", "", "{}", `{"key":"AAAA"}`} {
		t.Run(value, func(t *testing.T) {
			var log logText
			bubble(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(e *env) {
				url := e.create("orders.fifo", visibilityTimeout, "5")
				e.send(url, "a", "a1")
				before := e.receive(url)
				require.NoError(e, e.s.Close(e.Context()))
				e.set(e.s.key("receipts"), []byte(value))
				e.s = NewServer(e.db, e.s.options)
				e.create("others.fifo")
				handle := object{"QueueUrl": url, "ReceiptHandle": before[0].ReceiptHandle}
				code, _ := e.refused("DeleteMessage", handle)
				require.Equal(e, "ReceiptHandleIsInvalid", code)
				time.Sleep(6 * time.Second)
				got := e.receive(url)
				require.Equal(e, "a1", bodies(got))
				e.delete(url, got...)
				require.Equal(e, 1, strings.Count(log.String(), "receipt handles could not be read"), log.String())
				require.Contains(e, log.String(), "receipts")
			})
		})
	}
}

// TestLogOfABadTarget: dead letters that cannot be moved, because the configuration of their queue cannot be read, do
// not fill the log while clients use the source queue.
func TestLogOfABadTarget(t *testing.T) {
	var log logText
	bubble(t, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(e *env) {
		url, dead := e.withDead("orders.fifo", "dead.fifo", 1)
		e.send(url, "a", "a1")
		restore := e.spoilConfig("dead.fifo")
		for range 30 {
			e.receive(url, "WaitTimeSeconds", 20)
		}
		require.Equal(e, []string{"a1"}, e.letters("orders.fifo"))
		said := strings.Count(log.String(), "background work has failed")
		require.Positive(e, said)
		require.LessOrEqual(e, said, 12, "in ten minutes")
		restore()
		time.Sleep(2 * deadEvery)
		require.Equal(e, "a1", bodies(e.receive(dead)))
	})
}
