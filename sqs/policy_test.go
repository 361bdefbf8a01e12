package sqs

import (
	"bytes"
	"crypto/sha256"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/aws/smithy-go/aws-http-auth/credentials"
	"github.com/aws/smithy-go/aws-http-auth/sigv4"
	"github.com/stretchr/testify/require"
)

// signed is a request of the JSON protocol by the owner of a key.
func signed(t *testing.T, access, secret, action string, body object) *http.Request {
	r := post(action, body)
	text, err := io.ReadAll(r.Body)
	require.NoError(t, err)
	r.Body = io.NopCloser(bytes.NewReader(text))
	sum := sha256.Sum256(text)
	err = sigv4.New().SignRequest(&sigv4.SignRequestInput{
		Request: r, Service: "sqs", Region: "us-east-1", Time: time.Now(),
		PayloadHash: sum[:],
		Credentials: credentials.Credentials{AccessKeyID: access, SecretAccessKey: secret},
	})
	require.NoError(t, err)
	return r
}

// TestPolicies: a key of another account may do with a queue what the queue's policy allows, and nothing else.
func TestPolicies(t *testing.T) {
	keys := map[string]Key{"OWN": {Secret: "a"}, "GUEST": {Secret: "b", Account: "111122223333"}}
	bubble(t, Options{Keys: keys}, func(e *env) {
		owner := func(action string, body object) (int, string) {
			status, _, answer := e.do(signed(e.T, "OWN", "a", action, body))
			return status, answer
		}
		guest := func(action string, body object) (int, string) {
			status, _, answer := e.do(signed(e.T, "GUEST", "b", action, body))
			return status, answer
		}
		status, answer := owner("CreateQueue", object{"QueueName": "jobs"})
		require.Equal(e, http.StatusOK, status, answer)
		send := object{"QueueUrl": "jobs", "MessageBody": "b"}
		refused := func(action string, body object) {
			e.Helper()
			status, answer := guest(action, body)
			require.Equal(e, http.StatusForbidden, status, answer)
			require.Contains(e, answer, "AccessDenied")
			require.Contains(e, answer, "User: arn:aws:iam::111122223333:root is not authorized to perform: sqs:")
		}
		refused("SendMessage", send)
		for _, action := range ownerOnly {
			refused(action, object{"QueueUrl": "jobs", "QueueName": "more"})
		}
		status, answer = owner("AddPermission", object{
			"QueueUrl": "jobs", "Label": "guest", "AWSAccountIds": []string{"111122223333"},
			"Actions": []string{"SendMessage"},
		})
		require.Equal(e, http.StatusOK, status, answer)
		status, answer = guest("SendMessage", send)
		require.Equal(e, http.StatusOK, status, answer)
		status, answer = guest("SendMessageBatch", object{
			"QueueUrl": "jobs", "Entries": []object{{"Id": "1", "MessageBody": "b"}},
		})
		require.Equal(e, http.StatusOK, status, answer)
		refused("ReceiveMessage", object{"QueueUrl": "jobs"})
		refused("GetQueueUrl", object{"QueueName": "jobs"})
		_, answer = owner("ReceiveMessage", object{"QueueUrl": "jobs", "AttributeNames": []string{"SenderId"}})
		require.Contains(e, answer, "111122223333")
		status, answer = owner("RemovePermission", object{"QueueUrl": "jobs", "Label": "guest"})
		require.Equal(e, http.StatusOK, status, answer)
		time.Sleep(freshFor) // as long as a server goes by what it has read
		refused("SendMessage", send)
		status, answer = guest("SendMessage", object{"QueueUrl": "none", "MessageBody": "b"})
		require.Equal(e, http.StatusBadRequest, status, answer)
	})
}

// TestPolicyStatements: what statements allow, and that what is not understood allows nothing.
func TestPolicyStatements(t *testing.T) {
	const (
		arn  = "arn:aws:sqs:us-east-1:000000000000:jobs"
		root = "arn:aws:iam::111122223333:root"
		user = "arn:aws:iam::111122223333:user/x"
	)
	allow := func(rest string) string {
		return `{"Effect": "Allow", "Principal": {"AWS": "111122223333"}, "Action": "sqs:*"` + rest + `}`
	}
	for _, c := range []struct {
		statements string
		want       bool
	}{
		{allow(``), true},
		{allow(`, "Resource": "` + arn + `"`), true},
		{allow(`, "Resource": "*"`), true},
		{allow(`, "Resource": "arn:aws:sqs:us-east-1:000000000000:other"`), false},
		{allow(`, "Condition": {"Bool": {"aws:SecureTransport": "true"}}`), false},
		{allow(``) + `, {"Effect": "Deny", "Principal": "*", "Action": "SQS:SendMessage"}`, false},
		{allow(``) + `, {"Effect": "Deny", "Principal": "*", "Action": "SQS:ReceiveMessage"}`, true},
		{allow(``) + `, {"Effect": "Deny", "Principal": {"AWS": "444455556666"}, "Action": "SQS:*"}`, true},
		{allow(``) + `, {"Effect": "Deny", "Principal": {"AWS": "` + user + `"}, "Action": "*"}`, false},
		{allow(``) + `, {"Effect": "Deny", "NotPrincipal": "*", "Action": "SQS:ReceiveMessage"}`, false},
		{allow(``) + `, {"Effect": "Odd", "Principal": "*", "Action": "*"}`, false},
		{`{"Effect": "Allow", "Principal": "*", "Action": ["SQS:Receive*", "SQS:Send*"]}`, true},
		{`{"Effect": "Allow", "Principal": {"AWS": "*"}, "Action": "*"}`, true},
		{`{"Effect": "Allow", "Principal": {"AWS": ["` + root + `", "x"]}, "Action": "sqs:sendmessage"}`, true},
		{`{"Effect": "Allow", "Principal": {"AWS": "` + user + `"}, "Action": "*"}`, false},
		{`{"Effect": "Allow", "Principal": {"Service": "sns.amazonaws.com"}, "Action": "*"}`, false},
		{`{"Effect": "Allow", "Principal": "*", "Action": "SendMessage"}`, false},
		{`{"Effect": "Allow", "Principal": "*", "Action": "sqs:[` + strings.Repeat("*", 1000) + `"}`, false},
		{`{"Effect": "Allow", "Principal": "*", "NotAction": "sqs:ReceiveMessage"}`, false},
		{``, false},
	} {
		text := fmt.Sprintf(`{"Statement": [%s]}`, c.statements)
		require.Equal(t, c.want, allows(text, "111122223333", "SendMessage", arn), text)
	}
	require.True(t, allows(`{"Statement": `+allow(``)+`}`, "111122223333", "SendMessage", arn), "one, without a list")
	require.False(t, allows(``, "111122223333", "SendMessage", arn))
	require.False(t, allows(`{"Statement": 7}`, "111122223333", "SendMessage", arn))
}

// TestFirstReceive: a message says when it was first received, however often it comes again.
func TestFirstReceive(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		url := e.create("orders.fifo", contentBased, "true")
		e.call("SendMessage", object{"QueueUrl": url, "MessageBody": "b", "MessageGroupId": "g"})
		first := time.Now().UnixMilli()
		for range 3 {
			answer := e.call("ReceiveMessage", object{
				"QueueUrl": url, "VisibilityTimeout": 5, "AttributeNames": []string{"All"},
			})
			m := answer["Messages"].([]any)[0].(object)
			require.Equal(e, fmt.Sprint(first), m["Attributes"].(object)["ApproximateFirstReceiveTimestamp"])
			time.Sleep(6 * time.Second)
		}
	})
}
