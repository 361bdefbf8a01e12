package sqs

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestAServersClockAYearAhead: a server whose clock is a year ahead stores times, and dies. No time keeps a name, a
// purge or a move task from the other servers for longer than the time of a right clock, nor receipt handles unsigned.
func TestAServersClockAYearAhead(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		right := e.s
		ahead := NewServer(e.db, Options{Now: func() time.Time { return time.Now().Add(365 * 24 * time.Hour) }})
		dead, to := e.create("dead"), e.create("to")
		arn := e.attributes(dead)["QueueArn"].(string)
		e.create("orders", redrivePolicy, fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":2}`, arn))
		for i := range 100 {
			e.send(dead, "", fmt.Sprint(i))
		}
		gone := e.create("gone")
		e.s = ahead
		e.call("PurgeQueue", object{"QueueUrl": to})
		e.call("DeleteQueue", object{"QueueUrl": gone})
		e.call("StartMessageMoveTask", object{
			"SourceArn": arn, "DestinationArn": e.attributes(to)["QueueArn"], "MaxNumberOfMessagesPerSecond": 1,
		})
		time.Sleep(5 * time.Second)
		require.NoError(e, ahead.Close(e.Context()))
		e.s = right
		time.Sleep(2 * time.Minute)
		e.create("gone")
		e.call("PurgeQueue", object{"QueueUrl": to})
		task := e.call("ListMessageMoveTasks", object{"SourceArn": arn})["Results"].([]any)[0].(object)
		require.Equal(e, "COMPLETED", task["Status"])
	})
	k := receiptKey{Key: make([]byte, receiptKeySize), Since: time.Now().Add(365 * 24 * time.Hour).UnixMilli()}
	h, ok := k.read("q", k.text(receiptHandle{queue: "q"}, time.Now()), time.Now())
	require.False(t, ok, "it names no message: %v", h)
}
