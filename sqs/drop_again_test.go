package sqs

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// TestRecreatedQueueIsNotDropped: a server that clears deleted queues, one after the other, spares a queue that a
// client has created again by then.
func TestRecreatedQueueIsNotDropped(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		const queues = 60
		name := func(i int) string { return fmt.Sprintf("q%02d", i) }
		for i := range queues {
			e.create(name(i))
		}
		other := NewServer(e.db, Options{})
		time.Sleep(time.Second)
		e.s, other = other, e.s
		for i := range queues {
			e.call("DeleteQueue", object{"QueueUrl": name(i)})
		}
		require.NoError(e, e.s.Close(e.Context())) // before it has dropped them
		e.s = other
		time.Sleep(nameFreeAfter + time.Second)
		last := e.create(name(queues - 1))
		e.send(last, "", "a", "b", "c")
		require.Equal(e, "3", e.attributes(last)["ApproximateNumberOfMessages"])
		time.Sleep(5 * time.Minute)
		require.Equal(e, "3", e.attributes(last)["ApproximateNumberOfMessages"])
		require.Len(e, e.receive(last), 3)
	})
}

// TestQueueIsMadeBesideItsDrop: a server that is slow makes the layer's queue of a queue that another server has
// deleted and dropped since. The layer's queue is dropped again. The name is free after a minute.
func TestQueueIsMadeBesideItsDrop(t *testing.T) {
	for _, late := range []time.Duration{5 * time.Second, 3 * time.Minute} { // the name is free again by then
		var held atomic.Int64 // which transaction of those that open a queue
		hold := func(call string) {
			if call == "open" && held.Add(-1) == 0 {
				time.Sleep(late)
			}
		}
		bubble(t, Options{}, func(e *env) {
			db := waitingDB{e.db, hold}
			slow := &env{T: e.T, db: db, s: NewServer(db, e.s.options)}
			defer func() { require.NoError(e, slow.s.Close(e.Context())) }()
			url := e.create("jobs")
			time.Sleep(time.Second) // the first sweeps of the servers have ended
			held.Store(2)           // after that of the record
			var asking sync.WaitGroup
			asking.Go(func() {
				code, _ := slow.refused("GetQueueAttributes", object{"QueueUrl": url})
				require.Equal(e, "QueueDoesNotExist", code)
			})
			synctest.Wait()
			require.Zero(e, held.Load(), "it has read the record")
			e.call("DeleteQueue", object{"QueueUrl": url})
			asking.Wait()
			time.Sleep(nameFreeAfter + 3*tidyEvery)
			names, err := layer.Queues(e.Context(), e.db, nil)
			require.NoError(e, err)
			require.Empty(e, names)
			e.create("jobs")
		})
	}
}

// waitingDB calls a function before each transaction.
type waitingDB struct {
	kv.DB
	before func(call string)
}

func (d waitingDB) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	d.before(o.Call)
	return d.DB.Begin(o)
}

// TestDeclareAfterADeletion: a declaration is not refused because a queue of that name was deleted less than a minute
// ago. Declare waits until the name is free, or until its context ends.
func TestDeclareAfterADeletion(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		url := e.create("jobs")
		e.call("DeleteQueue", object{"QueueUrl": url})
		begun, declared := time.Now(), []Declared{{Name: "jobs", Attributes: map[string]string{delaySeconds: "7"}}}
		short, cancel := context.WithTimeout(e.Context(), 10*time.Second)
		defer cancel()
		err := e.s.Declare(short, declared)
		require.ErrorIs(e, err, context.DeadlineExceeded)
		require.ErrorContains(e, err, `queue "jobs"`)
		var refused *RefusedError
		require.False(e, errors.As(err, &refused))
		require.NoError(e, e.s.Declare(e.Context(), declared))
		require.Equal(e, "7", e.attributes(url)[delaySeconds])
		require.InDelta(e, nameFreeAfter.Seconds(), time.Since(begun).Seconds(), 5)
	})
}

// TestDeclareOfADroppedQueue: that an operator has dropped the layer's queue of a declared queue is no fault of the
// declaration. The queue can be used after the error.
func TestDeclareOfADroppedQueue(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		url, declared := e.create("jobs"), []Declared{{Name: "jobs", Attributes: map[string]string{delaySeconds: "7"}}}
		require.NoError(e, layer.Drop(e.Context(), e.db, nil, "jobs", layer.DropOptions{}))
		err := e.s.Declare(e.Context(), declared)
		require.ErrorIs(e, err, layer.ErrNoQueue)
		var refused *RefusedError
		require.False(e, errors.As(err, &refused))
		require.NoError(e, e.s.Declare(e.Context(), declared))
		e.send(url, "", "a")
		require.Equal(e, "1", e.attributes(url)["ApproximateNumberOfMessagesDelayed"])
	})
}

// TestDroppedQueueIsMadeAgain: an operator drops the layer's queue of a queue that clients use. The server makes it
// again, and does not say until it is closed that the queue does not exist, which ListQueues has.
func TestDroppedQueueIsMadeAgain(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		url, dead := e.withDead("orders.fifo", "dead.fifo", 1)
		drop := func(name string) {
			require.NoError(e, layer.Drop(e.Context(), e.db, nil, name, layer.DropOptions{}))
		}
		jobs := e.create("jobs")
		drop("jobs")
		e.refused("SendMessage", object{"QueueUrl": jobs, "MessageBody": "1"})
		e.send(jobs, "", "2")

		e.send(url, "a", "a1", "a2")

		drop("dead.fifo")
		e.die(url)
		time.Sleep(3 * deadEvery)
		require.Equal(e, "a1 a2", bodies(e.receive(dead)))

		time.Sleep(6 * time.Second)
		arn := object{"SourceArn": e.s.arn("dead.fifo")}
		e.call("StartMessageMoveTask", arn)
		drop("orders.fifo")
		time.Sleep(3 * time.Second)
		task := e.call("ListMessageMoveTasks", arn)["Results"].([]any)[0].(object)
		require.Equal(e, completed, task["Status"])
	})
}

// TestTidyWaitsForNoDrop: many deleted queues that a killed server has not dropped do not keep another server from the
// move tasks of that server.
func TestTidyWaitsForNoDrop(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		const queues = 100
		for i := range queues {
			e.create(fmt.Sprint("q", i))
		}
		e.withDead("orders.fifo", "dead.fifo", 1)
		for i := range queues {
			e.call("DeleteQueue", object{"QueueUrl": fmt.Sprint("q", i)})
		}
		require.NoError(e, e.s.Close(e.Context())) // before it has dropped them
		time.Sleep(tidyEvery)
		e.s = NewServer(e.db, Options{})
		time.Sleep(time.Second)
		killed := task{
			ID: "killed", Source: "dead.fifo", Started: time.Now().UnixMilli(), Status: running, Runner: "killed",
			Until: time.Now().UnixMilli(),
		}
		_, err := kv.Run(e.Context(), e.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
			tx.Set(e.s.taskKey(killed), marshal(killed))
			return nil
		})
		require.NoError(e, err)
		time.Sleep(2 * tidyEvery)
		all := e.call("ListMessageMoveTasks", object{"SourceArn": e.s.arn("dead.fifo")})["Results"].([]any)
		require.Equal(e, completed, all[0].(object)["Status"])
	})
}

// TestReplacedDatabase: an operator replaces the database below a server that runs. Queues that are made then can be
// used through all servers: they agree about the key of receipt handles.
func TestReplacedDatabase(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		other := &env{T: e.T, db: e.db, s: NewServer(e.db, Options{})}
		defer func() { require.NoError(e, other.s.Close(e.Context())) }()
		for _, by := range []*env{e, other} { // each has the key of the database before
			by.send(by.create("jobs"), "", "before")
			by.delete("jobs", by.receive("jobs")...)
		}
		for i, by := range []*env{e, other} {
			// Two sweeps have just begun. One of them may try again, and write its note into the empty database.
			time.Sleep(freshFor)
			_, err := kv.Run(e.Context(), e.db, kv.TxOptions{}, func(tx kv.Tx, _ kv.Attempt) error {
				tx.ClearRange(kv.KeyRange{Begin: []byte{0}, End: []byte{0xff}})
				return nil
			})
			require.NoError(e, err)
			time.Sleep(2 * freshFor)
			url := by.create("jobs")
			by.send(url, "", "1", "2")
			e.delete(url, other.receive(url, "MaxNumberOfMessages", 1)...)
			other.delete(url, e.receive(url, "MaxNumberOfMessages", 1)...)
			require.Equal(e, "0", e.attributes(url)["ApproximateNumberOfMessages"], i)
		}
	})
}
