package sqs

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/layer"
)

// TestFullGroup: a send to a full group is refused, and says why. In a batch it stops no other message.
func TestFullGroup(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		url := e.create("orders.fifo")
		q, err := layer.Open(e.Context(), e.db, nil, "orders.fifo", layer.Options{})
		require.NoError(e, err)
		_, _, err = q.Admin().Configure(e.Context(), func(c *layer.Config) { c.MaxWaiting = 2 })
		require.NoError(e, err)
		require.NoError(e, q.Close(e.Context()))
		time.Sleep(3 * time.Second) // the server follows
		e.send(url, "a", "a1", "a2")
		code, text := e.refused("SendMessage", object{"QueueUrl": url, "MessageBody": "a3", "MessageGroupId": "a"})
		require.Equal(e, "RequestThrottled", code)
		require.Contains(e, text, `"a" may have 2 messages`)
		var entries []object
		for i, body := range []string{"b1", "a3", "b2", "a4", "b3", "c1"} {
			entries = append(entries, object{"Id": fmt.Sprint(i), "MessageBody": body, "MessageGroupId": body[:1]})
		}
		answer := e.call("SendMessageBatch", object{"QueueUrl": url, "Entries": entries})
		require.Len(e, answer["Successful"], 3)
		failed := map[any]any{}
		for _, entry := range answer["Failed"].([]any) {
			failed[entry.(object)["Id"]] = entry.(object)["Code"]
		}
		require.Equal(e, map[any]any{"1": "RequestThrottled", "3": "RequestThrottled", "4": "RequestThrottled"}, failed)
		require.Equal(e, "a1 a2 b1 b2 c1", bodies(e.receive(url)))
	})
}
