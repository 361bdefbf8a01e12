package sqs

import (
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
)

// TestIdleQueuesAreClosed: a server closes a queue that no client uses any more, and then reads nothing of it, also if
// the queue has a dead letter queue.
func TestIdleQueuesAreClosed(t *testing.T) {
	var commits atomic.Int64
	open := func(t *testing.T) kv.DB {
		return failingDB{DB: inMemory(t), fails: func(string) error { commits.Add(1); return nil }}
	}
	bubbleOn(t, open, Options{}, func(e *env) {
		e.withDead("orders.fifo", "dead.fifo", 2)
		time.Sleep(5 * time.Second)
		begun := commits.Load()
		time.Sleep(idleFor)
		require.Less(e, commits.Load()-begun, int64(100), "the server's own work in five minutes")
		time.Sleep(tidyEvery)
		e.s.mu.Lock()
		defer e.s.mu.Unlock()
		require.Empty(e, e.s.queues)
	})
}

// TestDeadLetterAfterAFailure: the server moves a dead letter also if it could not do so for longer than a client uses
// the queue.
func TestDeadLetterAfterAFailure(t *testing.T) {
	var fails atomic.Bool
	open := func(t *testing.T) kv.DB {
		return failingDB{DB: inMemory(t), fails: func(string) error {
			if fails.Load() {
				return &kv.Error{Code: kv.CodeIOError}
			}
			return nil
		}}
	}
	bubbleOn(t, open, Options{}, func(e *env) {
		url, _ := e.withDead("orders.fifo", "dead.fifo", 1)
		e.send(url, "a", "a1")
		time.Sleep(deadEvery / 2) // the server does not look at the moment of the death
		e.die(url)
		require.Equal(e, []string{"a1"}, e.letters("orders.fifo"))
		fails.Store(true)
		time.Sleep(10 * time.Second)
		fails.Store(false)
		time.Sleep(2 * deadEvery)
		require.Empty(e, e.letters("orders.fifo"))
	})
}

// TestPollsOfDeadLetterQueue: long polls of a dead letter queue do not each look through all of its source queues.
func TestPollsOfDeadLetterQueue(t *testing.T) {
	var commits atomic.Int64
	open := func(t *testing.T) kv.DB {
		return failingDB{DB: inMemory(t), fails: func(string) error { commits.Add(1); return nil }}
	}
	bubbleOn(t, open, Options{}, func(e *env) {
		dead := e.create("dead.fifo")
		policy := fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":1}`, e.s.arn("dead.fifo"))
		for i := range 20 {
			e.create(fmt.Sprint("q", i, ".fifo"), redrivePolicy, policy)
		}
		time.Sleep(5 * time.Second)
		begun := commits.Load()
		var polls sync.WaitGroup
		for range 100 {
			polls.Go(func() { e.receive(dead, "WaitTimeSeconds", 20) })
			time.Sleep(10 * time.Millisecond)
		}
		polls.Wait()
		require.Less(e, commits.Load()-begun, int64(500))
	})
}
