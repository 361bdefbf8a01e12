package sqs

import (
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestMissingValues: an attribute or a tag without a value is refused. It does not become the default: a policy would
// be removed.
func TestMissingValues(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		const policy = `{"Statement": {"Effect": "Deny", "Principal": "*", "Action": "*"}}`
		url := e.create("jobs", policyAttribute, strings.ReplaceAll(policy, `"*"}`, `"sqs:*"}`))
		for action, member := range map[string]string{
			"SetQueueAttributes": "Attributes", "CreateQueue": "Attributes", "TagQueue": "Tags",
		} {
			in := object{"QueueUrl": url, "QueueName": "other", member: object{policyAttribute: nil}}
			code, text := e.refused(action, in)
			require.Equal(e, "InvalidParameterValueException", code, action)
			require.Contains(e, text, `The value of "Policy" is missing.`)
		}
		status, body := e.query("Action=SetQueueAttributes&QueueUrl=jobs&Attribute.1.Name=Policy")
		require.Equal(e, http.StatusBadRequest, status, body)
		require.Contains(e, e.attributes(url), policyAttribute)
		e.call("SetQueueAttributes", object{"QueueUrl": url, "Attributes": object{policyAttribute: ""}})
		require.NotContains(e, e.attributes(url), policyAttribute)
	})
}

// TestCreateAgain: a CreateQueue that was answered is answered again. What SetQueueAttributes refuses, CreateQueue
// refuses too.
func TestCreateAgain(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		for range 2 {
			e.create("jobs", visibilityTimeout, "", policyAttribute, "", delaySeconds, "5")
		}
		code, _ := e.refused("CreateQueue", object{"QueueName": "jobs", "Attributes": object{delaySeconds: ""}})
		require.Equal(e, "QueueNameExists", code)
		all := object{fifoQueue: "true", throughputLimit: perGroup}
		code, _ = e.refused("CreateQueue", object{"QueueName": "a.fifo", "Attributes": all})
		require.Equal(e, "InvalidAttributeValue", code)
		all[dedupScope] = scopeGroup
		e.call("CreateQueue", object{"QueueName": "a.fifo", "Attributes": all})
	})
}

// TestNamesAreNoURLs: GetQueueUrl takes the name of a queue, and neither a URL nor the path of the request.
func TestNamesAreNoURLs(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		url := e.create("jobs")
		code, text := e.refused("GetQueueUrl", object{"QueueName": ""})
		require.Equal(e, "MissingRequiredParameterException", code)
		require.Contains(e, text, "QueueName")
		for _, name := range []string{url, "a/jobs", "jobs/"} {
			code, _ := e.refused("GetQueueUrl", object{"QueueName": name})
			require.Equal(e, "QueueDoesNotExist", code)
		}
	})
}

// TestLongTags: the length of a tag is in letters.
func TestLongTags(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		url := e.create("jobs")
		tags := object{strings.Repeat("é", 128): strings.Repeat("é", 256)}
		e.call("TagQueue", object{"QueueUrl": url, "Tags": tags})
		for _, bad := range []object{{strings.Repeat("é", 129): "v"}, {"k": strings.Repeat("é", 257)}, {"": "v"}} {
			e.refused("TagQueue", object{"QueueUrl": url, "Tags": bad})
		}
	})
}
