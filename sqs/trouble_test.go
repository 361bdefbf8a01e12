package sqs

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// failingDB fails a commit if fails returns an error for the call. The commit is not applied. If lost returns an error,
// the commit is applied, and its answer is the error.
type failingDB struct {
	kv.DB
	fails, lost func(call string) error
}

func (d failingDB) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := d.DB.Begin(o)
	return failingTx{tx, d, o.Call}, err
}

type failingTx struct {
	kv.ManagedTx
	db   failingDB
	call string
}

func (t failingTx) Commit() kv.Future[struct{}] {
	if t.db.fails != nil {
		if err := t.db.fails(t.call); err != nil {
			return kv.Done(struct{}{}, err)
		}
	}
	landed := t.ManagedTx.Commit()
	if t.db.lost != nil {
		if _, err := landed.Wait(context.Background()); err == nil {
			return kv.Done(struct{}{}, t.db.lost(t.call))
		}
	}
	return landed
}

// hangingLog is a log that takes a minute for a record.
type hangingLog struct{ slog.Handler }

func (hangingLog) Handle(context.Context, slog.Record) error {
	time.Sleep(time.Minute)
	return nil
}

// TestAnswersDoNotWaitForTheLog: the log takes no record, as a terminal that is stopped. Requests are answered, so that
// no message is counted as received which no client has seen.
func TestAnswersDoNotWaitForTheLog(t *testing.T) {
	debug := slog.NewTextHandler(io.Discard, &slog.HandlerOptions{Level: slog.LevelDebug})
	bubble(t, Options{Logger: slog.New(hangingLog{debug})}, func(e *env) {
		begun := time.Now()
		url := e.create("orders")
		for range 10 {
			e.send(url, "", "a")
		}
		require.NotEmpty(t, e.receive(url))
		require.Less(t, time.Since(begun), 5*time.Second)
		time.Sleep(2 * time.Minute) // until the log has its record
	})
}

// TestUnknownCommitIsFound: a call succeeds whose commit was applied while the answer was lost. The server may have
// continued from there: it has dropped the queue, or has ended the move task.
func TestUnknownCommitIsFound(t *testing.T) {
	var of atomic.Pointer[string] // the transaction
	loses := func(call string) error {
		if lost := of.Load(); lost == nil || *lost != call || !of.CompareAndSwap(lost, nil) {
			return nil
		}
		time.Sleep(5 * time.Second) // a queue is dropped, a move task is ended
		return &kv.Error{Code: kv.CodeCommitUnknownResult}
	}
	open := func(t *testing.T) kv.DB { return failingDB{DB: inMemory(t), lost: loses} }
	bubbleOn(t, open, Options{}, func(e *env) {
		dead, to, old := e.create("dead"), e.create("to"), e.create("old")
		arn := e.attributes(dead)["QueueArn"].(string)
		source := e.create("orders", redrivePolicy, fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":2}`, arn))
		for i := range 100 {
			e.send(dead, "", fmt.Sprint(i))
		}
		call := func(tx, operation string, in object) object {
			of.Store(&tx)
			out := e.call(operation, in)
			require.Nil(e, of.Load(), operation)
			return out
		}
		call("create", "CreateQueue", object{"QueueName": "new"})
		const change = "change attributes"
		call(change, "SetQueueAttributes", object{"QueueUrl": source, "Attributes": object{"DelaySeconds": "1"}})
		call(change, "TagQueue", object{"QueueUrl": source, "Tags": object{"a": "b"}})
		call(change, "UntagQueue", object{"QueueUrl": source, "TagKeys": []string{"a"}})
		call(change, "AddPermission", object{
			"QueueUrl": source, "Label": "l", "AWSAccountIds": []string{"111122223333"}, "Actions": []string{"*"},
		})
		call(change, "RemovePermission", object{"QueueUrl": source, "Label": "l"})
		handle := call("start a move", "StartMessageMoveTask", object{
			"SourceArn": arn, "DestinationArn": e.attributes(to)["QueueArn"], "MaxNumberOfMessagesPerSecond": 1,
		})["TaskHandle"]
		call("cancel a move", "CancelMessageMoveTask", object{"TaskHandle": handle})
		call(change, "DeleteQueue", object{"QueueUrl": old})
		e.refused("GetQueueUrl", object{"QueueName": "old"})
		time.Sleep(5 * time.Second) // until the queue is dropped
	})
}

// TestServerSaysTrouble: the log of a server says that the database keeps the server waiting, and which call waits: at
// most once in ten seconds for all queues, requests and the server's own work. At the end the log says that the
// database answers again.
func TestServerSaysTrouble(t *testing.T) {
	var log logText
	var behind atomic.Bool
	fails := func(string) error {
		if behind.Load() {
			return &kv.Error{Code: kv.CodeProcessBehind}
		}
		return nil
	}
	open := func(t *testing.T) kv.DB { return failingDB{DB: inMemory(t), fails: fails} }
	bubbleOn(t, open, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(e *env) {
		a, b := e.create("a"), e.create("b")
		behind.Store(true)
		for _, url := range []string{a, b} {
			go e.do(post("SendMessage", object{"QueueUrl": url, "MessageBody": "x"}))
			go e.do(post("CreateQueue", object{"QueueName": "c"}))
		}
		time.Sleep(65 * time.Second)
		behind.Store(false)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		said := strings.Count(log.String(), "sqs: the database keeps a transaction waiting")
		require.Contains(t, []int{6, 7}, said, log.String())
		require.NotContains(t, log.String(), `call=""`)
		require.Contains(t, log.String(), "(1037)")
		require.Equal(t, 1, strings.Count(log.String(), "sqs: the database answers again"))
	})
}

// TestTaskThatFailsSaysSo: the log has the error of a move task whose steps fail, at most once a minute. The task
// continues when the database does not fail any more.
func TestTaskThatFailsSaysSo(t *testing.T) {
	var log logText
	var broken atomic.Bool
	fails := func(call string) error {
		if call == "once" && broken.Load() {
			return &kv.Error{Code: kv.CodeIOError}
		}
		return nil
	}
	open := func(t *testing.T) kv.DB { return failingDB{DB: inMemory(t), fails: fails} }
	bubbleOn(t, open, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(e *env) {
		orders, dead := e.withDead("orders.fifo", "dead.fifo", 1)
		e.put("dead.fifo", "orders.fifo", "a", []byte("a1"))
		broken.Store(true)
		e.call("StartMessageMoveTask", object{"SourceArn": e.attributes(dead)["QueueArn"]})
		time.Sleep(10 * time.Minute)
		synctest.Wait() // nothing writes to the log
		said := strings.Count(log.String(), "a step of a move task has failed")
		require.Contains(e, []int{10, 11}, said, log.String())
		broken.Store(false)
		time.Sleep(2 * time.Second)
		require.Equal(e, "a1", bodies(e.receive(orders)))
	})
}

// TestCloseHasABound: while the database does not answer, Close waits for all queues together as long as for one.
func TestCloseHasABound(t *testing.T) {
	var behind atomic.Bool
	fails := func(string) error {
		if behind.Load() {
			return &kv.Error{Code: kv.CodeProcessBehind}
		}
		return nil
	}
	open := func(t *testing.T) kv.DB { return failingDB{DB: inMemory(t), fails: fails} }
	bubbleOn(t, open, Options{}, func(e *env) {
		for i := range 5 {
			e.send(e.create(fmt.Sprint(i)), "", "x")
		}
		behind.Store(true)
		begun := time.Now()
		err := e.s.Close(e.Context())
		took := time.Since(begun)
		behind.Store(false)
		e.s = NewServer(e.db, e.s.options)
		require.ErrorIs(e, err, context.DeadlineExceeded)
		require.Less(e, took, 6*time.Second)
	})
}

// TestNoVisibilityAtAll: a receive with a visibility timeout of 0 makes the messages of all its groups visible again,
// also if that fails for one group.
func TestNoVisibilityAtAll(t *testing.T) {
	var refused atomic.Bool
	fails := func(call string) error {
		if call == string(layer.VerbNack) && refused.CompareAndSwap(false, true) {
			return &kv.Error{Code: kv.CodeClientInvalidOperation}
		}
		return nil
	}
	open := func(t *testing.T) kv.DB { return failingDB{DB: inMemory(t), fails: fails} }
	bubbleOn(t, open, Options{}, func(e *env) {
		url := e.create("orders.fifo")
		for _, group := range []string{"a", "b", "c"} {
			e.send(url, group, group)
		}
		status, _, body := e.do(post("ReceiveMessage", object{
			"QueueUrl": url, "MaxNumberOfMessages": 10, "VisibilityTimeout": 0,
		}))
		require.True(e, refused.Load())
		require.GreaterOrEqual(e, status, 500, body)
		require.Equal(e, "2 visible, 1 in flight", e.numbers(url))
	})
}

// TestTaskThatEndsUnknown: a server leaves a move task that has failed, and logs the reason, also if the answer to the
// commit that ends the task was lost.
func TestTaskThatEndsUnknown(t *testing.T) {
	var log logText
	var lost atomic.Bool
	loses := func(call string) error {
		if call == "end a move" && lost.CompareAndSwap(false, true) {
			return &kv.Error{Code: kv.CodeCommitUnknownResult}
		}
		return nil
	}
	open := func(t *testing.T) kv.DB { return failingDB{DB: inMemory(t), lost: loses} }
	bubbleOn(t, open, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(e *env) {
		_, dead := e.withDead("orders.fifo", "dead.fifo", 1)
		for i := range 10 {
			e.put("dead.fifo", "orders.fifo", fmt.Sprint(i), []byte("x"))
		}
		e.call("StartMessageMoveTask",
			object{"SourceArn": e.s.arn("dead.fifo"), "MaxNumberOfMessagesPerSecond": 1})
		time.Sleep(2 * time.Second)
		e.call("DeleteQueue", object{"QueueUrl": dead})
		time.Sleep(30 * time.Second)
		synctest.Wait()
		require.True(e, lost.Load())
		require.Contains(e, log.String(), "a move task has failed")
		e.s.mu.Lock()
		defer e.s.mu.Unlock()
		require.Empty(e, e.s.working)
	})
}

// TestDatabaseThatPanics: a request whose transaction panics, as in the database of a program, keeps neither memory nor
// the line of the long polls: the next long poll gets its message.
func TestDatabaseThatPanics(t *testing.T) {
	var of atomic.Pointer[string] // the transaction
	panics := func(call string) error {
		if at := of.Load(); at != nil && *at == call {
			of.Store(nil)
			panic("test")
		}
		return nil
	}
	open := func(t *testing.T) kv.DB { return failingDB{DB: inMemory(t), fails: panics} }
	bubbleOn(t, open, Options{}, func(e *env) {
		url := e.create("jobs")
		poll := post("ReceiveMessage", object{"QueueUrl": url, "WaitTimeSeconds": 20})
		large := post("SendMessage", object{"QueueUrl": url, "MessageBody": strings.Repeat("b", 1<<20)})
		for call, r := range map[string]*http.Request{"receive": poll, "enqueue": large} {
			of.Store(&call)
			require.PanicsWithValue(e, "test", func() { e.do(r) }, call)
			for _, m := range []*memory{&e.s.memory, &e.s.answers} {
				m.mu.Lock()
				total := m.total
				m.mu.Unlock()
				require.Zero(e, total, call)
			}
		}
		e.send(url, "", "a")
		require.Equal(e, "a", bodies(e.receive(url, "WaitTimeSeconds", 20)))
	})
}

// TestCloseWaitsForForgottenQueues: Close waits until the handle of a deleted queue is closed, too, because a program
// then closes the database.
func TestCloseWaitsForForgottenQueues(t *testing.T) {
	var slow, closed atomic.Bool
	var late atomic.Int64 // commits after Close
	slows := func(string) error {
		if slow.Load() {
			time.Sleep(time.Second)
		}
		if closed.Load() {
			late.Add(1)
		}
		return nil
	}
	open := func(t *testing.T) kv.DB { return failingDB{DB: inMemory(t), fails: slows} }
	bubbleOn(t, open, Options{}, func(e *env) {
		url := e.create("jobs")
		e.send(url, "", "a")
		e.delete(url, e.receive(url)...)
		require.Empty(e, e.receive(url, "WaitTimeSeconds", 1)) // the handle has keys that it clears
		slow.Store(true)
		e.call("DeleteQueue", object{"QueueUrl": url})
		require.NoError(e, e.s.Close(e.Context()))
		closed.Store(true)
		time.Sleep(time.Minute)
		require.Zero(e, late.Load())
		slow.Store(false)
		e.s = NewServer(e.db, e.s.options)
		time.Sleep(2 * tidyEvery) // until the queue is dropped
	})
}
