package sqs

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
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
