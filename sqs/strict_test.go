package sqs

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestPolicyWithTwoMeanings: a policy that has a member twice, or a member whose name differs from the known one in
// case, is refused when it is set. If it is stored already, it allows no other account anything.
func TestPolicyWithTwoMeanings(t *testing.T) {
	const (
		guest = "111122223333"
		arn   = "arn:aws:sqs:us-east-1:000000000000:jobs"
		allow = `{"Effect": "Allow", "Principal": "*", "Action": "sqs:*"}`
		deny  = `{"Effect": "Deny", "Principal": "*", "Action": "sqs:*"}`
	)
	require.True(t, allows(`{"Statement": [`+allow+`]}`, guest, "SendMessage", arn))
	var policies []string
	for _, second := range []string{"Statement", "statement", `Stat\u0065ment`, "ſtatement"} {
		policies = append(policies, `{"Statement": [`+deny+`], "`+second+`": [`+allow+`]}`)
	}
	policies = append(policies, `{"statement": [`+allow+`]}`, `{"Id": "i", "id": "i", "Statement": [`+allow+`]}`)
	for _, statement := range []string{
		`{"Effect": "Deny", "Effect": "Allow", "Principal": "*", "Action": "sqs:*"}`,
		`{"Effect": "Deny", "effect": "Allow", "Principal": "*", "Action": "sqs:*"}`,
		`{"Effect": "Deny", "Principal": "*", "Action": "sqs:*", "Action": "sqs:ReceiveMessage"}`,
		`{"Effect": "Deny", "Principal": "*", "Action": "sqs:*", "action": "sqs:ReceiveMessage"}`,
		`{"Effect": "Deny", "Principal": {"AWS": "*", "AWS": "444455556666"}, "Action": "sqs:*"}`,
		`{"Effect": "Deny", "Principal": {"AWS": "*", "aws": "444455556666"}, "Action": "sqs:*"}`,
		`{"Effect": "Deny", "Principal": "*", "Action": "sqs:*", "Resource": "*", "RESOURCE": "arn:aws:sqs:::x"}`,
		`{"Effect": "Deny", "Principal": "*", "Action": "sqs:*", "Condition": {"Bool": {"a": "b", "a": "c"}}}`,
	} {
		policies = append(policies, `{"Statement": [`+allow+`, `+statement+`]}`)
	}
	for _, policy := range policies {
		require.Error(t, checkPolicy(policy), policy)
		require.False(t, allows(policy, guest, "SendMessage", arn), policy)
	}
	bubble(t, Options{}, func(e *env) {
		url := e.create("jobs")
		stored := policies[0]
		_, err := e.s.changeRecord(e.Context(), "jobs", func(r *record) error {
			r.Attributes[policyAttribute] = stored
			return nil
		})
		require.NoError(e, err)
		time.Sleep(freshFor)
		e.refused("AddPermission", object{
			"QueueUrl": url, "Label": "l", "AWSAccountIds": []string{guest}, "Actions": []string{"SendMessage"},
		})
		require.Equal(e, stored, e.attributes(url)[policyAttribute], "AddPermission does not lose the Deny")
	})
}

// TestRequestsWithTwoMeanings: a request is refused if it has a member or a parameter with two values, or a member
// whose name differs from the known one in case. So are the attributes that are JSON, and a declaration of queues. A
// stored RedrivePolicy keeps its meaning.
func TestRequestsWithTwoMeanings(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		url := e.create("jobs")
		e.create("dead")
		e.create("other")
		for _, body := range []string{
			`{"QueueUrl": "jobs", "QueueUrl": "dead"}`, `{"QueueUrl": "jobs", "queueUrl": "dead"}`,
			`{"queueurl": "jobs"}`,
			`{"QueueUrl": "jobs", "Attributes": {"DelaySeconds": "1", "DelaySeconds": "2"}}`,
		} {
			for _, action := range []string{"SetQueueAttributes", "PurgeQueue"} {
				r := post(action, nil)
				r.Body = io.NopCloser(strings.NewReader(body))
				status, _, answer := e.do(r)
				require.Equal(e, http.StatusBadRequest, status, "%s %s: %s", action, body, answer)
				require.Contains(e, answer, "SerializationException")
			}
		}
		for _, parameters := range []string{
			"Action=ReceiveMessage&QueueUrl=jobs&QueueUrl=dead",
			"Action=ReceiveMessage&Action=PurgeQueue&QueueUrl=jobs",
			"Action=SetQueueAttributes&QueueUrl=jobs&Attribute.1.Name=DelaySeconds&Attribute.1.Value=1" +
				"&Attribute.2.Name=DelaySeconds&Attribute.2.Value=2",
		} {
			status, answer := e.query(parameters)
			require.Equal(e, http.StatusBadRequest, status, "%s: %s", parameters, answer)
			require.Contains(e, answer, "MalformedInput")
		}
		// Names that differ in case are different tags, and different attributes of a message.
		tags := object{"team": "a", "Team": "b", "tags": "c", "queueurl": "d"}
		e.call("TagQueue", object{"QueueUrl": url, "Tags": tags})
		value := object{"DataType": "String", "StringValue": "v"}
		attributes := object{"a": value, "A": value}
		e.call("SendMessage", object{"QueueUrl": url, "MessageBody": "b", "MessageAttributes": attributes})

		dead, other := e.s.arn("dead"), e.s.arn("other")
		const target = `"deadLetterTargetArn": "`
		twice := `{` + target + other + `", ` + target + dead + `", "maxReceiveCount": 2}`
		for name, values := range map[string][]string{
			redrivePolicy: {twice, `{"DeadLetterTargetArn": "` + dead + `", "maxReceiveCount": 2}`},
			redriveAllowPolicy: {
				`{"redrivePermission": "denyAll", "redrivePermission": "allowAll"}`,
				`{"RedrivePermission": "allowAll"}`,
			},
		} {
			for _, text := range values {
				e.refused("SetQueueAttributes", object{"QueueUrl": url, "Attributes": object{name: text}})
				file := `[{"name": "jobs", "attributes": {"` + name + `": ` + text + `}}]`
				_, err := ReadQueues(strings.NewReader(file))
				declared := Declared{Name: "jobs", Attributes: map[string]string{name: text}}
				if err == nil {
					err = e.s.Declare(e.Context(), []Declared{declared})
				}
				require.Error(e, err, text)
				require.Error(e, e.s.Declare(e.Context(), []Declared{declared}), text)
			}
		}
		for _, text := range []string{`[{"name": "jobs", "name": "dead"}]`, `[{"Name": "jobs"}]`} {
			_, err := ReadQueues(strings.NewReader(text))
			require.Error(e, err, text)
		}
		policy, err := parseRedrivePolicy(twice, json.Unmarshal)
		require.NoError(e, err)
		require.Equal(e, "dead", policy.queue)
	})
}
