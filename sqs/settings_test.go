package sqs

import (
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/layer"
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

// TestDeclaredNull: a file of queues with null for an attribute or a tag is refused, as a request is, and so is null
// for all of them or for the whole file. A template whose variable is not set would otherwise remove a policy, or
// shorten a retention.
func TestDeclaredNull(t *testing.T) {
	for _, test := range []struct{ queue, names string }{
		{`"attributes": {"MessageRetentionPeriod": null}`, `"MessageRetentionPeriod"`},
		{`"attributes": {"DelaySeconds": 5, "Policy":  null }`, `"Policy"`},
		{`"tags": {"team": null}`, `"team"`},
		{`"attributes": null`, `"attributes"`},
		{`"tags": null`, `"tags"`},
	} {
		_, err := ReadQueues(strings.NewReader(`[{"name": "first"}, {"name": "jobs", ` + test.queue + `}]`))
		require.ErrorContains(t, err, test.names+" is null", test.queue)
		require.ErrorContains(t, err, `queue 2, "jobs"`)
	}
	_, err := ReadQueues(strings.NewReader(" null "))
	require.ErrorContains(t, err, "it is null")
	const empty = `[{"name": "jobs", "attributes": {"Policy": ""}, "tags": {"a": ""}}]`
	declared, err := ReadQueues(strings.NewReader(empty))
	require.NoError(t, err)
	require.Equal(t, []Declared{{
		Name: "jobs", Attributes: map[string]string{policyAttribute: ""}, Tags: map[string]string{"a": ""},
	}}, declared)
}

// TestEmptyValues: SetQueueAttributes and a declaration of queues refuse an empty number or choice, and then change
// nothing. The default would drop messages, for example by a shorter retention. An empty text removes a text.
func TestEmptyValues(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		queues := map[string]string{
			"orders.fifo": e.create("orders.fifo", retentionPeriod, "1209600", contentBased, "true", kmsKey, "k"),
			"jobs":        e.create("jobs", retentionPeriod, "1209600", managedEncryption, "false"),
		}
		for name, url := range queues {
			before := e.attributes(url)
			all := []string{retentionPeriod, contentBased, managedEncryption, kmsReuse, visibilityOf}
			for _, attribute := range all {
				if name == "jobs" && slices.Contains(fifoOnly, attribute) {
					continue
				}
				in := map[string]string{attribute: "", delaySeconds: "7"}
				if name == "orders.fifo" {
					in[fifoQueue] = "true"
				}
				code, text := e.refused("SetQueueAttributes", object{"QueueUrl": url, "Attributes": in})
				require.Equal(e, "InvalidAttributeValue", code)
				require.Contains(e, text, attribute)
				for _, name := range []string{name, "new-" + name} {
					var refused *RefusedError
					err := e.s.Declare(e.Context(), []Declared{{Name: name, Attributes: in}})
					require.ErrorAs(e, err, &refused, attribute)
					require.Equal(e, name, refused.Queue)
				}
			}
			require.Equal(e, before, e.attributes(url))
			e.refused("GetQueueUrl", object{"QueueName": "new-" + name})
			in := map[string]string{kmsKey: "", policyAttribute: "", redrivePolicy: "", redriveAllowPolicy: ""}
			e.call("SetQueueAttributes", object{"QueueUrl": url, "Attributes": in})
			require.NoError(e, e.s.Declare(e.Context(), []Declared{{Name: name, Attributes: in}}))
			require.NotContains(e, e.attributes(url), kmsKey)
		}
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

// TestAttributesSetTogether: two servers set attributes of a queue at the same time, and one of them comes late to the
// layer's queue. The queue then works by both changes, as its attributes say.
func TestAttributesSetTogether(t *testing.T) {
	var late atomic.Bool
	open := func(t *testing.T) kv.DB {
		return failingDB{DB: inMemory(t), fails: func(of string) error {
			if of == string(layer.VerbConfigure) && late.Load() {
				return &kv.Error{Code: kv.CodeProcessBehind}
			}
			return nil
		}}
	}
	bubbleOn(t, open, Options{}, func(e *env) {
		other := &env{T: e.T, db: e.db, s: NewServer(e.db.(failingDB).DB, Options{})}
		defer func() { require.NoError(e, other.s.Close(e.Context())) }()
		url := e.create("orders.fifo")
		late.Store(true)
		var first sync.WaitGroup
		first.Go(func() {
			e.call("SetQueueAttributes", object{"QueueUrl": url, "Attributes": object{visibilityTimeout: "10"}})
		})
		time.Sleep(time.Second)
		other.call("SetQueueAttributes", object{"QueueUrl": url, "Attributes": object{delaySeconds: "5"}})
		late.Store(false)
		first.Wait()
		time.Sleep(freshFor)
		require.Equal(e, "10", other.attributes(url)[visibilityTimeout])
		require.Equal(e, "5", e.attributes(url)[delaySeconds])
		e.send(url, "a", "a1")
		require.Empty(e, e.receive(url))
		time.Sleep(6 * time.Second)
		require.Equal(e, "a1", bodies(e.receive(url)))
	})
}

// TestSameInAnotherForm: CreateQueue returns an existing queue if the request has its attributes in another form. It
// refuses a request with other values.
func TestSameInAnotherForm(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		e.create("dead")
		arn := e.s.arn("dead")
		policy := func(form string) string { return strings.ReplaceAll(form, "ARN", arn) }
		e.create("jobs", visibilityTimeout, "30", delaySeconds, "5",
			redrivePolicy, policy(`{"deadLetterTargetArn":"ARN","maxReceiveCount":5}`),
			redriveAllowPolicy, `{"redrivePermission":"denyAll"}`)
		e.create("jobs", visibilityTimeout, "030", delaySeconds, "+5",
			redrivePolicy, policy(`{"maxReceiveCount":"5", "deadLetterTargetArn":"ARN"}`),
			redriveAllowPolicy, ` {"redrivePermission": "denyAll"}`)
		for name, value := range map[string]string{
			visibilityTimeout: "31", redriveAllowPolicy: `{"redrivePermission":"allowAll"}`,
			redrivePolicy: policy(`{"deadLetterTargetArn":"ARN","maxReceiveCount":6}`),
		} {
			code, _ := e.refused("CreateQueue", object{"QueueName": "jobs", "Attributes": object{name: value}})
			require.Equal(e, "QueueNameExists", code, name)
		}
	})
}

// TestChangeBesideARead: a change of a queue's attributes applies at once on the server that has made it. It does so
// though another request of that server has read the old attributes, and ends later.
func TestChangeBesideARead(t *testing.T) {
	for name, open := range map[string]bool{"open": true, "not open": false} {
		t.Run(name, func(t *testing.T) {
			var held atomic.Int64 // which commit of those that open a queue
			hold := func(call string) error {
				if call == "open" && held.Add(-1) == 0 {
					time.Sleep(freshFor / 2)
				}
				return nil
			}
			bubbleOn(t, func(t *testing.T) kv.DB { return failingDB{DB: inMemory(t), fails: hold} }, Options{},
				func(e *env) {
					url := e.create("jobs", visibilityTimeout, "5")
					time.Sleep(2 * freshFor)
					held.Store(1) // of the read of the attributes
					if !open {
						e.s.forget("jobs")
						held.Store(2) // after that read
					}
					var reading sync.WaitGroup
					reading.Go(func() { e.attributes(url) })
					synctest.Wait()
					require.LessOrEqual(e, held.Load(), int64(0), "the request is under way")
					e.call("SetQueueAttributes",
						object{"QueueUrl": url, "Attributes": object{visibilityTimeout: "7"}})
					require.Equal(e, "7", e.attributes(url)[visibilityTimeout])
					reading.Wait()
					require.Equal(e, "7", e.attributes(url)[visibilityTimeout])
				})
		})
	}
}
