package sqs

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

// longAnswer is more than any error that is answered has, however much was asked.
const longAnswer = 4 << 10 // bytes

// TestErrorsRepeatLittle: an error repeats little of the request, and only printable characters. It has its reason,
// however long the refused value is. The answer to a name that no queue can have is that there is no such queue.
func TestErrorsRepeatLittle(t *testing.T) {
	const strange = "\x1b[31m\u009b31m\u202e\u0000"
	long := strange + strings.Repeat("~\u00e9", 50_000)
	batch := func(entry object) object {
		entry["Id"] = "1"
		return object{"QueueUrl": "orders.fifo", "Entries": []object{entry}}
	}
	send := func(more object) object {
		all := object{"QueueUrl": "orders.fifo", "MessageBody": "b", "MessageGroupId": "g"}
		for k, v := range more {
			all[k] = v
		}
		return all
	}
	typed := object{"DataType": long, "StringValue": "v"}
	bubble(t, Options{}, func(e *env) {
		e.create("orders.fifo")
		set := func(name, value string) object {
			return object{"QueueUrl": "orders.fifo", "Attributes": object{name: value}}
		}
		receipt := object{"QueueUrl": "orders.fifo", "ReceiptHandle": long}
		for _, c := range []struct {
			action string
			in     object
			reason string
		}{
			{"DeleteMessage", receipt, "is not a valid receipt handle."},
			{"DeleteMessageBatch", batch(object{"ReceiptHandle": long}), "is not a valid receipt handle."},
			{"ChangeMessageVisibilityBatch", batch(object{"ReceiptHandle": long}), "is not a valid receipt handle."},
			{"ReceiveMessage", object{"QueueUrl": "orders.fifo", "ReceiveRequestAttemptId": long}, "Reason: "},
			{"ReceiveMessage", object{"QueueUrl": "orders.fifo", "AttributeNames": []string{long}}, "at most 100"},
			{"ReceiveMessage", object{"QueueUrl": long}, "The specified queue does not exist."},
			{"ReceiveMessage", object{"QueueUrl": "a/" + long}, "The specified queue does not exist."},
			{"GetQueueUrl", object{"QueueName": long}, "The specified queue does not exist."},
			{"DeleteQueue", object{"QueueUrl": long}, "The specified queue does not exist."},
			{"ListQueueTags", object{"QueueUrl": long}, "The specified queue does not exist."},
			{"CreateQueue", object{"QueueName": long}, "1 to 80 in length"},
			{"SendMessage", send(object{"MessageGroupId": long}), "1 to 128 in length."},
			{"SendMessage", send(object{"MessageDeduplicationId": long}), "1 to 128 in length."},
			{"SendMessage", send(object{"MessageAttributes": object{"n": typed}}), "256 Bytes"},
			{"SendMessage", send(object{"MessageSystemAttributes": object{long: typed}}), "is invalid."},
			{"AddPermission", object{
				"QueueUrl": "orders.fifo", "Label": "l", "AWSAccountIds": []string{long}, "Actions": []string{"*"},
			}, "Reason: Unable to verify."},
			{"RemovePermission", object{"QueueUrl": "orders.fifo", "Label": long}, "Reason: can't find label."},
			{"TagQueue", object{"QueueUrl": "orders.fifo", "Tags": object{long: "v"}}, "is not valid."},
			{"SetQueueAttributes", set(long, "v"), "Unknown Attribute"},
			{"SetQueueAttributes", set(redrivePolicy, long), "JSON map."},
			{"SetQueueAttributes", set(redrivePolicy, fmt.Sprintf(
				`{"deadLetterTargetArn":"arn:aws:sqs:r:a:%s","maxReceiveCount":1}`, long[20:],
			)), "Dead letter target does not exist."},
			{"SetQueueAttributes", set(policyAttribute,
				`{"Statement":{"Effect":"Allow","Principal":"*","Action":"`+long[20:]+`"}}`,
			), "is none of SQS"},
			{"ListMessageMoveTasks", object{"SourceArn": "arn:aws:sqs:r:a:" + long}, "doesn't exist."},
			{"CancelMessageMoveTask", object{"TaskHandle": long}, "TaskHandle is invalid."},
		} {
			status, _, body := e.do(post(c.action, c.in))
			require.Less(e, status, http.StatusInternalServerError, "%s: %.300s", c.action, body)
			require.Less(e, len(body), longAnswer, c.action)
			require.Contains(e, body, c.reason, c.action)
			hidden := strings.ContainsFunc(body, func(r rune) bool { return r != '\n' && !unicode.IsGraphic(r) })
			require.False(e, hidden, "%s: %.300q", c.action, body)
		}
		require.Empty(e, e.call("ListQueues", object{"QueueNamePrefix": long}))
		status, body := e.query("Action=" + url.QueryEscape(long))
		require.Equal(e, http.StatusBadRequest, status)
		require.Less(e, len(body), longAnswer)
		require.Contains(e, body, "is not valid for this endpoint.")
		// A text has as much of a value as a client needs: all of a receipt handle, which has at most 1,024 bytes.
		handle := strings.Repeat("h", 1024)
		_, text := e.refused("DeleteMessage", object{"QueueUrl": "orders.fifo", "ReceiptHandle": handle})
		require.Contains(e, text, handle)
	})
}
