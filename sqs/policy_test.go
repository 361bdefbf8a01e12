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
		time.Sleep(freshFor) // then the server reads the record again
		refused("SendMessage", send)
		refused("SendMessage", object{"QueueUrl": "none", "MessageBody": "b"})
	})
}

// TestHiddenQueues: a key of another account is told the same of a queue that it may not use, of one that is deleted
// and of one that was never there, whatever it asks; and so it cannot have the server open a queue.
func TestHiddenQueues(t *testing.T) {
	keys := map[string]Key{"OWN": {Secret: "a"}, "GUEST": {Secret: "b", Account: "111122223333"}}
	bubble(t, Options{Keys: keys}, func(e *env) {
		for _, name := range []string{"jobs", "gone"} {
			status, _, answer := e.do(signed(e.T, "OWN", "a", "CreateQueue", object{"QueueName": name}))
			require.Equal(e, http.StatusOK, status, answer)
		}
		status, _, answer := e.do(signed(e.T, "OWN", "a", "DeleteQueue", object{"QueueUrl": "gone"}))
		require.Equal(e, http.StatusOK, status, answer)
		e.s.forget("jobs")
		for action := range operations {
			told := make(map[string]bool)
			for _, name := range []string{"jobs", "gone", "none"} {
				arn := e.s.arn(name)
				r := signed(e.T, "GUEST", "b", action, object{
					"QueueUrl": name, "QueueName": name, "SourceArn": arn, "ReceiptHandle": "x", "Entries": []object{},
				})
				status, header, body := e.do(r)
				require.Equal(e, http.StatusForbidden, status, "%s of %s: %s", action, name, body)
				told[header.Get("X-Amzn-Query-Error")+" "+strings.ReplaceAll(body, name, "NAME")] = true
			}
			require.Len(e, told, 1, action)
		}
		time.Sleep(3 * time.Second) // until the queue is dropped
		e.s.mu.Lock()
		defer e.s.mu.Unlock()
		require.Empty(e, e.s.queues)
	})
}

// TestPolicyStatements: what statements allow, and that what is not understood allows nothing.
func TestPolicyStatements(t *testing.T) {
	const (
		arn  = "arn:aws:sqs:us-east-1:000000000000:jobs"
		root = "arn:aws:iam::111122223333:root"
		user = "arn:aws:iam::111122223333:user/x"

		china = "arn:aws-cn:iam::111122223333:root"
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
		{`{"Effect": "Allow", "Principal": {"AWS": ["` + root + `", "` + user + `"]}, "Action": "sqs:send*"}`, true},
		{`{"Effect": "Allow", "Principal": {"AWS": ["` + root + `", "x"]}, "Action": "sqs:sendmessage"}`, false},
		{`{"Effect": "Allow", "Principal": {"AWS": "` + root + `"}, "Action": "s3:SendMessage"}`, false},
		{`{"Effect": "Allow", "Principal": "*", "Action": "*", "Conditions": {}}`, false},
		{`{"Effect": "Allow", "Principal": "*", "Action": "sqs:Send?essage"}`, true},
		{`{"Effect": "Allow", "Principal": "*", "Action": "*", "Resource": ["jobs", "arn:aws:sqs:*:jobs"]}`, true},
		{allow(``) + `, {"Effect": "Deny", "Principal": {"AWS": "` + china + `"}, "Action": "*"}`, false},
		{allow(``) + `, {"Effect": "Deny", "Principal": "*", "Action": "sqs:SendMessageBatch"}`, false},
		{allow(``) + `, {"Effect": "Deny", "Principal": {"Service": "sns.amazonaws.com"}, "Action": "*"}`, true},
		{allow(``) + `, {"Effect": "Deny", "Principal": "*", "Action": "SQS:*", "Resource": "` + arn + `x"}`, true},
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

// notUnderstood are statements, without their effects, that the server does not understand.
var notUnderstood = []string{
	`"Principal": "111122223333", "Action": "sqs:*"`,
	`"Principal": {"AWS": "jobs"}, "Action": "sqs:*"`,
	`"Principal": {"AWS": "arn:aws:iam::*:root"}, "Action": "sqs:*"`,
	`"Principal": {"CanonicalUser": "79a59d"}, "Action": "sqs:*"`,
	`"Principal": {"AWS": []}, "Action": "sqs:*"`,
	`"Action": "sqs:*"`,
	`"Principal": "*", "Action": "SendMessage"`,
	`"Principal": "*", "Action": ["sqs:*", "sqs:SendMesage"]`,
	`"Principal": "*", "Action": "s3:*"`,
	`"Principal": "*", "Action": "sqs:[a-z*"`,
	`"Principal": "*"`,
	`"Principal": "*", "Action": []`,
	`"Principal": "*", "Action": "sqs:*", "Resouce": "*"`,
}

// TestPolicyNotUnderstood: a policy that the server cannot decide by is refused when it is set. If it is stored already
// it allows nothing to other accounts, and a Deny in it holds for everybody.
func TestPolicyNotUnderstood(t *testing.T) {
	const allow = `{"Effect": "Allow", "Principal": "*", "Action": "sqs:*"}`
	keys := map[string]Key{"OWN": {Secret: "a"}, "GUEST": {Secret: "b", Account: "111122223333"}}
	bubble(t, Options{Keys: keys}, func(e *env) {
		owner := func(action string, body object) (int, string) {
			status, _, answer := e.do(signed(e.T, "OWN", "a", action, body))
			return status, answer
		}
		send := func() int {
			m := object{"QueueUrl": "jobs", "MessageBody": "b"}
			status, _, _ := e.do(signed(e.T, "GUEST", "b", "SendMessage", m))
			return status
		}
		status, answer := owner("CreateQueue", object{"QueueName": "jobs"})
		require.Equal(e, http.StatusOK, status, answer)
		set := func(statements string) (int, string) {
			attributes := object{policyAttribute: `{"Version": "2012-10-17", "Statement": [` + statements + `]}`}
			return owner("SetQueueAttributes", object{"QueueUrl": "jobs", "Attributes": attributes})
		}
		var statements []string
		for _, rest := range notUnderstood {
			statements = append(statements, `{"Effect": "Allow", `+rest+`}`, allow+`, {"Effect": "Deny", `+rest+`}`)
		}
		// AWS takes any text for a Resource. A Deny of such a text would deny nothing.
		for _, resource := range []string{"jobs", "jobs*", "arn:aws:sqs:jobs", "arn:aws:sqs:*:*:${aws:username}"} {
			rest := `"Principal": "*", "Action": "sqs:*", "Resource": "` + resource + `"}`
			statements = append(statements, allow+`, {"Effect": "Deny", `+rest)
			status, answer = set(`{"Effect": "Allow", ` + rest)
			require.Equal(e, http.StatusOK, status, answer)
			require.Equal(e, http.StatusForbidden, send(), resource)
		}
		for _, s := range statements {
			status, answer = set(s)
			require.Equal(e, http.StatusBadRequest, status, "%s: %s", s, answer)
			require.Contains(e, answer, "InvalidAttributeValue")
			require.Contains(e, answer, "Invalid value for the parameter Policy. Reason: ")

			// As a server of an earlier version has stored it.
			_, err := e.s.changeRecord(e.Context(), "jobs", func(r *record) error {
				r.Attributes[policyAttribute] = `{"Statement": [` + s + `]}`
				return nil
			})
			require.NoError(e, err)
			time.Sleep(freshFor)
			require.Equal(e, http.StatusForbidden, send(), s)
		}
		status, answer = set(allow)
		require.Equal(e, http.StatusOK, status, answer)
		require.Equal(e, http.StatusOK, send())
	})
}

// TestPolicyUnderstood: what AWS takes, in its forms, can be set, parts that the server does not weigh among it.
func TestPolicyUnderstood(t *testing.T) {
	for _, s := range []string{
		`[]`,
		`{"Sid": "1", "Effect": "Allow", "Principal": "*", "Action": "*", "Resource": "*"}`,
		`[{"Effect": "Deny", "Principal": {"AWS": "*"}, "Action": "SQS:*", "Resource": "arn:aws:sqs:*"}]`,
		`[{"Effect": "Deny", "Principal": {"AWS": ["111122223333", "arn:aws:iam::111122223333:role/a/b"]},
			"Action": ["sqs:SendMessage", "SQS:Receive*"], "Resource": ["arn:aws:sqs:us-east-1:000000000000:jobs"]}]`,
		`[{"Effect": "Allow", "Principal": {"Service": ["sns.amazonaws.com"]}, "Action": "sqs:sendmessage",
			"Condition": {"ArnEquals": {"aws:SourceArn": "arn:aws:sns:us-east-1:000000000000:t"}}}]`,
		`[{"Effect": "Deny", "NotPrincipal": "*", "NotAction": "sqs:SendMessage", "NotResource": "x"}]`,
		`[{"Effect": "Deny", "Principal": {"AWS": "arn:aws:sts::111122223333:assumed-role/r/s"}, "Action": "sqs:*"}]`,
	} {
		require.NoError(t, checkPolicy(`{"Version": "2012-10-17", "Id": "i", "Statement": `+s+`}`), s)
	}
	for _, text := range []string{``, `{`, `7`, `[]`, `{"Statement": 7}`, `{"Statements": []}`, `{} {}`} {
		require.Error(t, checkPolicy(text), text)
	}
}

// TestPermissionKeepsStatements: AddPermission and RemovePermission leave the other statements of a policy as they are,
// also a single one without a list.
func TestPermissionKeepsStatements(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		const deny = `{"Sid": "d", "Effect": "Deny", "Principal": "*", "Action": "sqs:SendMessage"}`
		url := e.create("jobs", policyAttribute, `{"Id": "i", "Version": "2012-10-17", "Statement": `+deny+`}`)
		e.call("AddPermission", object{
			"QueueUrl": url, "Label": "guest", "AWSAccountIds": []string{"111122223333"}, "Actions": []string{"*"},
		})
		e.call("RemovePermission", object{"QueueUrl": url, "Label": "guest"})
		require.JSONEq(e, `{"Id": "i", "Version": "2012-10-17", "Statement": [`+deny+`]}`,
			e.attributes(url)[policyAttribute].(string))
		code, text := e.refused("AddPermission", object{
			"QueueUrl": url, "Label": "odd", "AWSAccountIds": []string{"guest"}, "Actions": []string{"*"},
		})
		require.Equal(e, "InvalidParameterValueException", code)
		require.Contains(e, text, "Value guest for parameter PrincipalId is invalid.")
	})
}

// TestLike: * is any text, ? is any byte, and no other letter is special.
func TestLike(t *testing.T) {
	for _, c := range []struct {
		pattern, text string
		want          bool
	}{
		{"", "", true}, {"", "a", false}, {"*", "", true}, {"*", "a:b/c", true}, {"a*", "a", true}, {"a?", "a", false},
		{"?", "a", true}, {"a*c", "abcbc", true}, {"a*b*c", "aXbYbZc", true}, {"a*b", "abc", false},
		{"[a]", "a", false},
		{"[a]", "[a]", true}, {`\*`, `\x`, true}, {"ab", "a", false}, {"a**", "a", true},
		{strings.Repeat("*a", 10_000) + "b", strings.Repeat("a", 10_000), false},
	} {
		require.Equal(t, c.want, like(c.pattern, c.text), "%.20s %.20s", c.pattern, c.text)
	}
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

// TestEmptyPartsAllowNothing: an empty list of resources is refused and allows nothing, a permission without a label
// is none, and a key without a secret, or without a name, opens nothing.
func TestEmptyPartsAllowNothing(t *testing.T) {
	const guest = "111122223333"
	policy := func(resource string) string {
		return `{"Statement": {"Effect": "Allow", "Principal": "*", "Action": "sqs:*"` + resource + `}}`
	}
	const arn = "arn:aws:sqs:us-east-1:000000000000:jobs"
	require.True(t, allows(policy(""), guest, "SendMessage", arn), "left out, it is the queue of the policy")
	for _, resource := range []string{
		`, "Resource": []`, `, "Resource": ""`, `, "Resource": [""]`, `, "Resource": null`,
	} {
		require.False(t, allows(policy(resource), guest, "SendMessage", arn), resource)
	}
	require.Error(t, checkPolicy(policy(`, "Resource": []`)))
	bubble(t, Options{}, func(e *env) {
		const deny = `{"Statement": [{"Sid": "", "Effect": "Deny", "Principal": "*", "Action": "sqs:SendMessage"}]}`
		url := e.create("jobs", policyAttribute, deny)
		for _, body := range []object{
			{"QueueUrl": url}, {"QueueUrl": url, "Label": ""}, {"QueueUrl": url, "Label": nil},
		} {
			code, _ := e.refused("RemovePermission", body)
			require.Equal(e, "MissingRequiredParameterException", code)
		}
		require.JSONEq(e, deny, e.attributes(url)[policyAttribute].(string))
	})
	bubble(t, Options{Keys: map[string]Key{"OWN": {Secret: "a"}, "UNSET": {}, "": {Secret: "b"}}}, func(e *env) {
		for access, secret := range map[string]string{"UNSET": "", "": "b"} {
			status, _, answer := e.do(signed(e.T, access, secret, "ListQueues", object{}))
			require.Equal(e, http.StatusForbidden, status, "%q: %s", access, answer)
		}
		status, _, answer := e.do(signed(e.T, "OWN", "a", "ListQueues", object{}))
		require.Equal(e, http.StatusOK, status, answer)
	})
}
