package sqs

import (
	"encoding/json"
	"fmt"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// TestMoveTaskGoesOn: a task whose server has gone is gone on with by another, and can be cancelled.
func TestMoveTaskGoesOn(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		dead, to := e.create("dead"), e.create("to")
		arn := e.attributes(dead)["QueueArn"].(string)
		e.create("orders", redrivePolicy, fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":2}`, arn))
		for i := range 100 {
			e.send(dead, "", fmt.Sprint(i))
		}
		start := object{
			"SourceArn": arn, "DestinationArn": e.attributes(to)["QueueArn"], "MaxNumberOfMessagesPerSecond": 1,
		}
		handle := e.call("StartMessageMoveTask", start)["TaskHandle"]
		_, text := e.refused("StartMessageMoveTask", start)
		require.Contains(e, text, "There is already a task running.")
		time.Sleep(10 * time.Second)
		require.NoError(e, e.s.Close(e.Context()))
		e.s = NewServer(e.db, Options{})
		time.Sleep(40 * time.Second)
		task := e.call("ListMessageMoveTasks", object{"SourceArn": arn})["Results"].([]any)[0].(object)
		require.Equal(e, "RUNNING", task["Status"])
		require.Greater(e, task["ApproximateNumberOfMessagesMoved"], 20.0)
		e.call("CancelMessageMoveTask", object{"TaskHandle": handle})
		time.Sleep(2 * time.Second)
		task = e.call("ListMessageMoveTasks", object{"SourceArn": arn})["Results"].([]any)[0].(object)
		require.Equal(e, "CANCELLED", task["Status"])
		require.Equal(e, fmt.Sprint(task["ApproximateNumberOfMessagesMoved"]),
			e.attributes(to)["ApproximateNumberOfMessages"], "each once")
	})
}

// TestMoveTaskToItsSource: a task cannot move the messages of a queue to the same queue, by its destination or by the
// header of each message. It would never end, and would change the order of every group. No message is lost.
func TestMoveTaskToItsSource(t *testing.T) {
	inBothKinds(t, func(e *env) {
		_, dead := e.withDead("orders.fifo", "dead.fifo", 1)
		arn := e.attributes(dead)["QueueArn"]
		q, err := layer.Open(e.Context(), e.db, nil, "dead.fifo", layer.Options{})
		require.NoError(e, err)
		defer q.Close(e.Context())
		for i := range 3 { // as earlier versions moved dead letters of a queue that was its own dead letter queue
			_, err := q.Enqueue(e.Context(), layer.Message{
				Group: fmt.Sprint(i), Body: []byte("x"), Headers: map[string]string{headerSource: "dead.fifo"},
			})
			require.NoError(e, err)
		}
		code, _ := e.refused("StartMessageMoveTask", object{"SourceArn": arn, "DestinationArn": arn})
		require.Equal(e, "InvalidParameterValueException", code)
		e.call("StartMessageMoveTask", object{"SourceArn": arn})
		time.Sleep(time.Minute)
		task := e.call("ListMessageMoveTasks", object{"SourceArn": arn})["Results"].([]any)[0].(object)
		require.Equal(e, "FAILED", task["Status"])
		require.Equal(e, "3", e.attributes(dead)["ApproximateNumberOfMessages"])
	})
}

// TestMoveTaskPastRetention: a task whose queue has many messages past retention moves those behind them too. One take
// removes some of the old ones, and gives nothing.
func TestMoveTaskPastRetention(t *testing.T) {
	inBothKinds(t, func(e *env) {
		dead, to := e.create("dead.fifo", retentionPeriod, "60"), e.create("to.fifo")
		arn := e.attributes(dead)["QueueArn"].(string)
		policy := fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":2}`, arn)
		e.create("orders.fifo", redrivePolicy, policy)
		for i := range 450 {
			e.send(dead, "A", fmt.Sprint(i))
		}
		require.NoError(e, e.s.Close(e.Context()))
		time.Sleep(2 * time.Minute) // while no server sweeps
		e.s = NewServer(e.db, Options{})
		e.send(dead, "A", "young")
		e.call("StartMessageMoveTask", object{"SourceArn": arn, "DestinationArn": e.attributes(to)["QueueArn"]})
		time.Sleep(3 * time.Second)
		task := e.call("ListMessageMoveTasks", object{"SourceArn": arn})["Results"].([]any)[0].(object)
		require.Equal(e, "COMPLETED", task["Status"])
		require.Equal(e, "young", bodies(e.receive(to)))
	})
}

// TestMoveTaskWaitsForItsQueue: a task of a queue that is paused, or whose rate is used up, goes on later. It is not
// completed while messages wait that it has not moved.
func TestMoveTaskWaitsForItsQueue(t *testing.T) {
	for name, keep := range map[string]func(e *env, q *layer.Queue) (free func()){
		"paused": func(e *env, q *layer.Queue) (free func()) {
			_, err := q.Admin().Pause(e.Context(), layer.PauseOptions{By: "ann"})
			require.NoError(e, err)
			return func() {
				_, err := q.Admin().Resume(e.Context(), layer.ResumeOptions{})
				require.NoError(e, err)
			}
		},
		"slow": func(e *env, q *layer.Queue) (free func()) {
			_, _, err := q.Admin().Configure(e.Context(), func(c *layer.Config) {
				c.MaxRateTotal = layer.Rate{Count: 3, Per: time.Hour}
			})
			require.NoError(e, err)
			return func() { time.Sleep(5 * time.Hour) }
		},
	} {
		t.Run(name, func(t *testing.T) {
			bubble(t, Options{}, func(e *env) {
				dead, to := e.create("dead.fifo"), e.create("to.fifo")
				arn := e.attributes(dead)["QueueArn"].(string)
				policy := fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":2}`, arn)
				e.create("orders.fifo", redrivePolicy, policy)
				for i := range 10 {
					e.send(dead, fmt.Sprint(i%3), fmt.Sprint(i))
				}
				q, err := layer.Open(e.Context(), e.db, nil, "dead.fifo", layer.Options{})
				require.NoError(e, err)
				defer q.Close(e.Context())
				free := keep(e, q)
				time.Sleep(time.Second) // until the server's handle looks again
				e.call("StartMessageMoveTask", object{"SourceArn": arn, "DestinationArn": e.attributes(to)["QueueArn"]})
				status := func() any {
					all := e.call("ListMessageMoveTasks", object{"SourceArn": arn})["Results"].([]any)
					return all[0].(object)["Status"]
				}
				time.Sleep(time.Minute - 300*time.Millisecond)
				require.Equal(e, "RUNNING", status())
				e.attributes(dead) // the next step may use this copy of the pause
				free()
				time.Sleep(time.Minute)
				require.Equal(e, "COMPLETED", status())
				require.Equal(e, "10", e.attributes(to)["ApproximateNumberOfMessages"])
			})
		})
	}
}

// TestMoveTaskOnASlowCluster: a step of a task moves what it can within its time, because a transaction that took
// longer than 5 s would fail, and fail again.
func TestMoveTaskOnASlowCluster(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		const n = 100
		dead, to := e.create("dead.fifo"), e.create("to.fifo")
		arn := e.attributes(dead)["QueueArn"].(string)
		e.create("orders.fifo", redrivePolicy, fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":2}`, arn))
		for i := range n {
			e.send(dead, fmt.Sprint(i), fmt.Sprint(i))
		}
		require.NoError(e, e.s.Close(e.Context()))
		e.s = NewServer(laggingDB{e.db, 40 * time.Millisecond}, Options{})
		e.call("StartMessageMoveTask", object{"SourceArn": arn, "DestinationArn": e.attributes(to)["QueueArn"]})
		time.Sleep(time.Minute)
		task := e.call("ListMessageMoveTasks", object{"SourceArn": arn})["Results"].([]any)[0].(object)
		require.Equal(e, "COMPLETED", task["Status"])
		require.EqualValues(e, n, task["ApproximateNumberOfMessagesMoved"])
	})
}

// laggingDB answers a transaction's reads at snapshot after a while each, as most of a queue's are.
type laggingDB struct {
	kv.DB
	lag time.Duration
}

func (d laggingDB) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := d.DB.Begin(o)
	return laggingTx{tx, d.lag}, err
}

type laggingTx struct {
	kv.ManagedTx
	lag time.Duration
}

func (t laggingTx) Snapshot() kv.ReadTx { return laggingReads{t.ManagedTx.Snapshot(), t.lag} }

type laggingReads struct {
	kv.ReadTx
	lag time.Duration
}

func (r laggingReads) Get(key []byte) kv.Future[[]byte] {
	time.Sleep(r.lag)
	return r.ReadTx.Get(key)
}

func (r laggingReads) GetRange(of kv.Range, o kv.RangeOptions) kv.Future[[]kv.KV] {
	time.Sleep(r.lag)
	return r.ReadTx.GetRange(of, o)
}

// TestUnreadableTask: a move task that cannot be read does not stop others of its queue.
func TestUnreadableTask(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		url, dead := e.withDead("orders.fifo", "dead.fifo", 1)
		e.send(url, "a", "a1")
		e.die(url)
		e.set(e.s.taskKey(task{Source: "dead.fifo"}), []byte("{"))
		e.redrive(dead, "")
		require.Equal(e, "a1", bodies(e.receive(url)))
	})
}

// TestTaskBehindMany: a task of a server that is gone continues, however many tasks have ended.
func TestTaskBehindMany(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		dead, to := e.create("dead.fifo"), e.create("to.fifo")
		_, err := kv.Run(e.Context(), e.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			for i := range tasksPage + 1 {
				ended := task{ID: fmt.Sprint(i), Source: "dead.fifo", Status: completed, Started: int64(i)}
				tx.Set(e.s.taskKey(ended), marshal(ended))
			}
			return nil
		})
		require.NoError(e, err)
		e.send(dead, "a", "a1")
		left := task{ID: "t", Source: "dead.fifo", To: "to.fifo", Total: 1, Status: running, Runner: "gone",
			Started: time.Now().UnixMilli()}
		e.set(e.s.taskKey(left), marshal(left))
		time.Sleep(2 * tidyEvery)
		require.Equal(e, "a1", bodies(e.receive(to)))
	})
}

// TestTaskBeforeDrops: a task of a server that is gone continues before the server drops the queues that the other had
// deleted.
func TestTaskBeforeDrops(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		e.create("dead.fifo")
		to := e.create("to.fifo")
		e.send("dead.fifo", "a", "a1")
		require.NoError(e, e.s.Close(e.Context()))
		gone := record{Created: 1, Modified: 1, Deleted: 1}
		for i := range 100 {
			gone.ID = uuid.New()
			e.set(e.s.recordKey(fmt.Sprintf("gone-%d", i)), marshal(gone))
			q, err := layer.Create(e.Context(), e.db, nil, fmt.Sprintf("gone-%d", i), layer.Options{})
			require.NoError(e, err)
			require.NoError(e, q.Close(e.Context()))
		}
		left := task{ID: "t", Source: "dead.fifo", To: "to.fifo", Total: 1, Status: running, Runner: "gone",
			Started: time.Now().UnixMilli()}
		e.set(e.s.taskKey(left), marshal(left))
		e.s = NewServer(e.db, Options{})
		time.Sleep(tidyEvery)
		require.Equal(e, "a1", bodies(e.receive(to)))
		time.Sleep(5 * time.Minute)
		require.Equal(e, []string{"dead.fifo", "to.fifo"}, e.listed())
	})
}

// TestMoveTasksAreForgotten: of each queue the ten newest move tasks are kept and listed. The others are cleared, also
// those that an earlier version has left. With a deleted queue all of them are cleared.
func TestMoveTasksAreForgotten(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		other, _ := e.withDead("others", "other-dead", 1)
		queue, dead := e.withDead("orders", "dead", 1)
		arn := e.attributes(dead)["QueueArn"]
		left := func(name string) (found []task) {
			rows, err := e.s.rows(e.Context(), "test", kv.PrefixRange(e.s.key("task", name)), 1000)
			require.NoError(e, err)
			for _, row := range rows {
				var one task
				require.NoError(e, json.Unmarshal(row.Value, &one))
				found = append(found, one)
			}
			return found
		}
		_, err := kv.Run(e.Context(), e.db, kv.TxOptions{Call: "test"}, func(tx kv.Tx, _ kv.Attempt) error {
			for i := range 80 { // as an earlier version left them
				old := task{ID: fmt.Sprint(i), Source: "dead", Started: int64(i), Status: completed}
				tx.Set(e.s.taskKey(old), marshal(old))
				old.Source = "other-dead"
				tx.Set(e.s.taskKey(old), marshal(old))
			}
			return nil
		})
		require.NoError(e, err)
		e.call("StartMessageMoveTask", object{"SourceArn": arn})
		time.Sleep(5 * time.Second)
		require.Len(e, left("dead"), 80+1-(oldTasks+1), "one is new, and of 60 that are read nine stay")
		for range 3 {
			e.call("StartMessageMoveTask", object{"SourceArn": arn})
			time.Sleep(5 * time.Second)
		}
		require.Len(e, left("dead"), maxTasks)
		list := object{"SourceArn": arn, "MaxResults": maxTasks}
		listed := e.call("ListMessageMoveTasks", list)["Results"].([]any)
		require.Len(e, listed, maxTasks)
		for i, one := range left("dead") {
			at := listed[maxTasks-1-i].(object)["StartedTimestamp"]
			require.Equal(e, float64(one.Started), at)
		}
		for _, url := range []string{queue, dead, other} {
			e.call("DeleteQueue", object{"QueueUrl": url})
		}
		time.Sleep(10 * time.Minute)
		require.Empty(e, left("dead"))
		require.Len(e, left("other-dead"), 80, "of another queue")
	})
}

// TestTasksGoWithTheQueue: a queue has no move tasks of a deleted queue of its name. The task of a server that was
// killed moves none of its messages.
func TestTasksGoWithTheQueue(t *testing.T) {
	bubble(t, Options{ReuseNames: true}, func(e *env) {
		e.withDead("orders.fifo", "dead.fifo", 1)
		to := e.create("to.fifo")
		arns := object{"SourceArn": e.s.arn("dead.fifo"), "DestinationArn": e.s.arn("to.fifo")}
		e.call("StartMessageMoveTask", arns)
		time.Sleep(time.Second) // it has ended
		killed := task{
			ID: "killed", Source: "dead.fifo", To: "to.fifo", Started: time.Now().UnixMilli(), Total: 10,
			Status: running, Until: time.Now().Add(taskLease).UnixMilli(), Runner: "killed",
		}
		_, err := kv.Run(e.Context(), e.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			tx.Set(e.s.taskKey(killed), marshal(killed))
			return nil
		})
		require.NoError(e, err)
		e.call("DeleteQueue", object{"QueueUrl": "dead.fifo"})
		e.create("dead.fifo")
		e.send("dead.fifo", "a", "new")
		require.Empty(e, e.call("ListMessageMoveTasks", arns)["Results"])
		time.Sleep(tidyEvery + taskLease)
		require.Empty(e, e.receive(to))
		require.Equal(e, "new", bodies(e.receive("dead.fifo")))
	})
}
