package sqs

import (
	"bytes"
	"encoding/xml"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/layer"
)

// TestContentsAreNotReplaced: a request with bytes that are no UTF-8, or with half of a surrogate pair, is refused.
// With a replacement two different messages would be duplicates by content.
func TestContentsAreNotReplaced(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		url := e.create("orders.fifo")
		send := func(body string) (int, string) {
			text := `{"QueueUrl":"orders.fifo","MessageGroupId":"g","MessageBody":"` + body + `"}`
			r := httptest.NewRequest(http.MethodPost, "http://localhost:9324/", strings.NewReader(text))
			r.Header.Set("Content-Type", jsonType)
			r.Header.Set("X-Amz-Target", targetPrefix+"SendMessage")
			status, _, answer := e.do(r)
			return status, answer
		}
		for _, body := range []string{
			"a\xe9b", "\xff", "\xed\xa0\x80", `a\ud800b`, `\udc00`, `\ud83d`, `\ud83d\ud83d`, `\ud83d\n`,
			`\ude00\ud83d`, `\\\ud83d`, `\uD83D\\uDE00`,
		} {
			status, answer := send(body)
			require.Equal(e, http.StatusBadRequest, status, "%q: %s", body, answer)
			require.Contains(e, answer, "InvalidMessageContents", "%q", body)
		}
		for _, body := range []string{`\ud83d\ude00`, `\\ud83d`, `\uD83D\uDE00,\uD83D\uDE01`, "\U0001F602", `\u00e9`} {
			status, answer := send(body)
			require.Equal(e, http.StatusOK, status, "%q: %s", body, answer)
		}
		require.Equal(e, `😀 \ud83d 😀,😁 😂 é`, bodies(e.receive(url)))
		for _, parameters := range []string{
			"Action=SendMessage&QueueUrl=orders.fifo&MessageGroupId=g&MessageBody=a%E9b", "Action=ListQueues&%E9=1",
		} {
			status, answer := e.query(parameters)
			require.Equal(e, http.StatusBadRequest, status, answer)
			require.Contains(e, answer, "InvalidMessageContents")
		}
	})
}

// TestNumbers: the value of an attribute of the type Number is a decimal number, not too large and not too small.
func TestNumbers(t *testing.T) {
	for text, want := range map[string]bool{
		"0": true, "-1": true, "+1.5": true, ".5": true, "5.": true, "1e126": true, "-1E-128": true, "0e999": true,
		"007": true, "3.14159265358979323846264338327950288419": true,
		"NaN": false, "Infinity": false, "-inf": false, "0x1p4": false, "1_000": false, "1e127": false, "1e-129": false,
		"1e400": false, "": false, " 5": false, "5 ": false, "1,5": false, ".": false, "e5": false, "1e": false,
		"1.2.3": false, "٣": false, "1e-400": false, "-0.1E-9999": false, "0.00": true, "0e-999": true,
	} {
		require.Equal(t, want, isNumber(text), "%q", text)
	}
}

// TestValueOfAnotherType: an attribute has no value except that of its type. The limits of a queue and the checksum do
// not see another one.
func TestValueOfAnotherType(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		url := e.create("jobs", maximumMessageSize, "1024")
		text, large := "x", bytes.Repeat([]byte("y"), 2000)
		for _, v := range []object{
			{"DataType": "String", "StringValue": text, "BinaryValue": large},
			{"DataType": "Number", "StringValue": "1", "BinaryValue": []byte(text)},
			{"DataType": "Binary", "StringValue": "\x00", "BinaryValue": []byte(text)},
		} {
			m := object{"QueueUrl": url, "MessageBody": "b", "MessageAttributes": object{"a": v}}
			code, _ := e.refused("SendMessage", m)
			require.Equal(e, "InvalidParameterValueException", code, "%v", v)
		}
		for _, v := range []object{
			{"DataType": "String", "StringValue": "a\x01"},
			{"DataType": "String", "StringValue": text, "BinaryValue": large},
		} {
			m := object{"QueueUrl": url, "MessageBody": "b", "MessageSystemAttributes": object{traceHeader: v}}
			code, _ := e.refused("SendMessage", m)
			require.Equal(e, "InvalidParameterValueException", code, "%v", v)
		}
		require.Equal(e, "0 visible, 0 in flight", e.numbers(url))
	})
}

// TestNumbersInXML: a large number in an answer of the Query protocol has all its digits, and no exponent.
func TestNumbersInXML(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		e.withDead("orders.fifo", "dead.fifo", 1)
		arn := e.s.arn("dead.fifo")
		e.call("StartMessageMoveTask", object{"SourceArn": arn})
		status, body := e.query("Action=ListMessageMoveTasks&SourceArn=" + url.QueryEscape(arn))
		require.Equal(e, http.StatusOK, status, body)
		require.Regexp(e, "<StartedTimestamp>[0-9]+</StartedTimestamp>", body)
		time.Sleep(5 * time.Second) // until the task has ended
	})
	for _, asJSON := range []bool{false, true} {
		c := &call{action: "CancelMessageMoveTask", asJSON: asJSON}
		const moved = 1<<53 + 1
		require.Regexp(t, "Moved\"?[:>]9007199254740993\\D", string(c.success(&cancelMessageMoveTaskResult{moved})))
	}
}

// TestChecksumsInXML: a message of a Go program may have characters that XML cannot have. The Query protocol replaces
// them, and gives the checksums of the result.
func TestChecksumsInXML(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		url := e.create("orders.fifo", visibilityTimeout, "0")
		q, err := layer.Open(e.Context(), e.db, nil, "orders.fifo", layer.Options{})
		require.NoError(e, err)
		defer q.Close(e.Context())
		m := layer.Message{Group: "g", Body: []byte("a\x01b"), Headers: map[string]string{"kind": "\x02<"}}
		_, err = q.Enqueue(e.Context(), m)
		require.NoError(e, err)
		status, answer := e.query("Action=ReceiveMessage&QueueUrl=orders.fifo&MessageAttributeName.1=All")
		require.Equal(e, http.StatusOK, status, answer)
		var got struct {
			Message struct {
				Body, MD5OfBody, MD5OfMessageAttributes string
				MessageAttribute                        struct {
					Name  string
					Value struct{ StringValue, DataType string }
				}
			} `xml:"ReceiveMessageResult>Message"`
		}
		require.NoError(e, xml.Unmarshal([]byte(answer), &got))
		require.Equal(e, "a\uFFFDb", got.Message.Body)
		require.Equal(e, digest("a\uFFFDb"), got.Message.MD5OfBody)
		attribute := got.Message.MessageAttribute
		require.Equal(e, "\uFFFD<", attribute.Value.StringValue)
		sum := digestAttributes(map[string]attributeValue{
			attribute.Name: {StringValue: &attribute.Value.StringValue, DataType: attribute.Value.DataType},
		})
		require.Equal(e, sum, got.Message.MD5OfMessageAttributes)
		require.Equal(e, "a\x01b", bodies(e.receive(url)), "JSON can have them")
		_, text := e.refused("SendMessage", object{
			"QueueUrl": url, "MessageGroupId": "g", "MessageBody": "x",
			"MessageAttributes": object{"a": object{"DataType": "String.\x01", "StringValue": "x"}},
		})
		require.Contains(e, text, "Invalid characters")
	})
}
