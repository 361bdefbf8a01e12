package sqs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
)

// env is a server over a database in memory, in virtual time: a wait costs nothing.
type env struct {
	*testing.T
	db kv.DB
	s  *Server
}

// inMemory is a database in memory.
func inMemory(*testing.T) kv.DB { return embedded.OpenMemory(embedded.Options{}) }

// onDisk is a database in a folder of its own.
func onDisk(t *testing.T) kv.DB {
	db, err := embedded.OpenDisk(t.TempDir(), embedded.Options{Exclusive: true})
	require.NoError(t, err)
	return db
}

// bubble is bubbleOn with a database in memory.
func bubble(t *testing.T, o Options, test func(e *env)) { bubbleOn(t, inMemory, o, test) }

// bubbleOn runs a test in a bubble of testing/synctest. At its end each queue is held to the layer's rules.
func bubbleOn(t *testing.T, open func(t *testing.T) kv.DB, o Options, test func(e *env)) {
	synctest.Test(t, func(t *testing.T) {
		db := open(t)
		e := &env{T: t, db: db, s: NewServer(db, o)}
		defer func() { // also if the test has failed, because a bubble must come to an end
			synctest.Wait()
			require.NoError(t, db.Close())
		}()
		defer func() { require.NoError(t, e.s.Close(t.Context())) }()
		test(e)
		require.NoError(t, e.s.Close(t.Context()))
		checkAll(t, db, o.Prefix)
	})
}

// logText is the text of a log. The server's goroutines may write it while a test reads it.
type logText struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logText) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logText) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// checkAll holds each queue to the layer's rules.
func checkAll(t *testing.T, db kv.DB, prefix []byte) {
	t.Helper()
	names, err := layer.Queues(t.Context(), db, prefix)
	require.NoError(t, err)
	for _, name := range names {
		q, err := layer.Open(t.Context(), db, prefix, name, layer.Options{})
		require.NoError(t, err)
		report, err := q.Admin().Check(t.Context(), layer.CheckOptions{})
		require.NoError(t, err)
		require.Empty(t, report.Violations, name)
		require.NoError(t, q.Close(t.Context()))
	}
}

type object = map[string]any

// do sends a request, and returns the answer's status, header and body.
func (e *env) do(r *http.Request) (int, http.Header, string) {
	e.Helper()
	w := httptest.NewRecorder()
	e.s.ServeHTTP(w, r.WithContext(e.Context()))
	require.NotEmpty(e, w.Header().Get("X-Amzn-Requestid"))
	return w.Code, w.Header(), w.Body.String()
}

// post is a request of the JSON protocol.
func post(action string, body any) *http.Request {
	text, err := json.Marshal(body)
	if err != nil {
		panic(err)
	}
	r := httptest.NewRequest(http.MethodPost, "http://localhost:9324/", bytes.NewReader(text))
	r.Header.Set("Content-Type", jsonType)
	r.Header.Set("X-Amz-Target", targetPrefix+action)
	return r
}

// call calls an operation by JSON, which must succeed.
func (e *env) call(action string, request object) object {
	e.Helper()
	status, header, body := e.do(post(action, request))
	require.Equal(e, http.StatusOK, status, "%s: %s", action, body)
	require.Equal(e, jsonType, header.Get("Content-Type"))
	answer := object{}
	if body != "" {
		require.NoError(e, json.Unmarshal([]byte(body), &answer))
	}
	return answer
}

// refused calls an operation by JSON, which must fail, and returns the code of the error and its text.
func (e *env) refused(action string, request object) (code, text string) {
	e.Helper()
	status, _, body := e.do(post(action, request))
	require.GreaterOrEqual(e, status, 400, body)
	require.Less(e, status, 500, body)
	var answer struct {
		Type    string `json:"__type"`
		Message string `json:"message"`
	}
	require.NoError(e, json.Unmarshal([]byte(body), &answer))
	return answer.Type[strings.IndexByte(answer.Type, '#')+1:], answer.Message
}

// query calls an operation by Query, and returns the status and the XML.
func (e *env) query(parameters string) (int, string) {
	e.Helper()
	r := httptest.NewRequest(http.MethodPost, "http://localhost:9324/", strings.NewReader(parameters))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded; charset=utf-8")
	status, header, body := e.do(r)
	require.Equal(e, "text/xml", header.Get("Content-Type"))
	return status, strings.ReplaceAll(body, header.Get("X-Amzn-Requestid"), "ID")
}

// create makes a queue and returns its URL. FIFO queues take bodies for their deduplication.
func (e *env) create(name string, attributes ...string) string {
	e.Helper()
	all := object{}
	if strings.HasSuffix(name, fifoSuffix) {
		all[fifoQueue], all[contentBased] = "true", "true"
	}
	for i := 0; i < len(attributes); i += 2 {
		all[attributes[i]] = attributes[i+1]
	}
	return e.call("CreateQueue", object{"QueueName": name, "Attributes": all})["QueueUrl"].(string)
}

// send sends bodies to a group, or, if that is "", to a standard queue.
func (e *env) send(url, group string, bodies ...string) {
	e.Helper()
	for _, body := range bodies {
		m := object{"QueueUrl": url, "MessageBody": body}
		if group != "" {
			m["MessageGroupId"] = group
		}
		e.call("SendMessage", m)
	}
}

// message is one that was received.
type message struct {
	MessageId, ReceiptHandle, Body string
	Attributes                     map[string]string
	MessageAttributes              map[string]struct{ DataType, StringValue string }
}

// receive receives up to ten messages, without waiting unless more says so.
func (e *env) receive(url string, more ...any) (messages []message) {
	e.Helper()
	request := object{"QueueUrl": url, "MaxNumberOfMessages": 10, "AttributeNames": []string{"All"}}
	for i := 0; i < len(more); i += 2 {
		request[more[i].(string)] = more[i+1]
	}
	text, err := json.Marshal(e.call("ReceiveMessage", request)["Messages"])
	require.NoError(e, err)
	require.NoError(e, json.Unmarshal(text, &messages))
	return messages
}

func bodies(messages []message) string {
	all := make([]string, len(messages))
	for i, m := range messages {
		all[i] = m.Body
	}
	return strings.Join(all, " ")
}

func (e *env) delete(url string, messages ...message) {
	e.Helper()
	for _, m := range messages {
		e.call("DeleteMessage", object{"QueueUrl": url, "ReceiptHandle": m.ReceiptHandle})
	}
}

func (e *env) visible(url string, m message, seconds int) {
	e.Helper()
	e.call("ChangeMessageVisibility",
		object{"QueueUrl": url, "ReceiptHandle": m.ReceiptHandle, "VisibilityTimeout": seconds})
}

// attributes are those of a queue.
func (e *env) attributes(url string) object {
	e.Helper()
	answer := e.call("GetQueueAttributes", object{"QueueUrl": url, "AttributeNames": []string{"All"}})
	return answer["Attributes"].(object)
}

// TestGroups: a group is delivered in order. While one of its messages is in flight, no other receive gets messages of
// the group. Other groups are delivered.
func TestGroups(t *testing.T) {
	inBothKinds(t, func(e *env) {
		url := e.create("orders.fifo")
		e.send(url, "a", "a1", "a2", "a3")
		e.send(url, "b", "b1")
		got := e.receive(url, "MaxNumberOfMessages", 2)
		require.Equal(e, "a1 a2", bodies(got))
		require.Equal(e, "b1", bodies(e.receive(url)), "a3 waits for a1 and a2")
		e.delete(url, got[0])
		require.Empty(e, e.receive(url))
		e.delete(url, got[1], got[1])
		got = e.receive(url, "WaitTimeSeconds", 1)
		require.Equal(e, "a3", bodies(got))
		require.Equal(e, "a", got[0].Attributes["MessageGroupId"])
	})
}

// TestVisibilityEnds: a message that is not deleted in time comes again, before those behind it, and counts a
// receive; the old receipt handle is worth nothing.
func TestVisibilityEnds(t *testing.T) {
	inBothKinds(t, func(e *env) {
		url := e.create("orders.fifo", visibilityTimeout, "5")
		e.send(url, "a", "a1", "a2")
		first := e.receive(url, "MaxNumberOfMessages", 1)
		require.Equal(e, "1", first[0].Attributes["ApproximateReceiveCount"])
		begun := time.Now()
		again := e.receive(url, "WaitTimeSeconds", 20)
		require.Equal(e, "a1 a2", bodies(again))
		require.InDelta(e, 5, time.Since(begun).Seconds(), 1)
		require.Equal(e, "2", again[0].Attributes["ApproximateReceiveCount"])
		require.NotEqual(e, first[0].ReceiptHandle, again[0].ReceiptHandle)
		code, text := e.refused("DeleteMessage", object{"QueueUrl": url, "ReceiptHandle": first[0].ReceiptHandle})
		require.Equal(e, "InvalidParameterValueException", code)
		require.Contains(e, text, "Reason: The receipt handle has expired.")
		time.Sleep(6 * time.Second) // no other receive has taken over
		_, text = e.refused("DeleteMessage", object{"QueueUrl": url, "ReceiptHandle": again[0].ReceiptHandle})
		require.Contains(e, text, "Reason: The receipt handle has expired.")
		require.Equal(e, "a1 a2", bodies(e.receive(url)))
	})
}

// TestChangeVisibility: longer, and at once. In a queue with a visibility timeout for each receive, a returned message
// takes the messages behind it along, and none before it.
func TestChangeVisibility(t *testing.T) {
	bubble(t, Options{VisibilityPerClaim: true}, func(e *env) {
		url := e.create("orders.fifo", visibilityTimeout, "5")
		e.send(url, "a", "a1", "a2", "a3")
		got := e.receive(url)
		e.visible(url, got[0], 60)
		time.Sleep(30 * time.Second)
		require.Empty(e, e.receive(url))
		e.visible(url, got[1], 0)
		require.Empty(e, e.receive(url), "a1 is in flight")
		e.delete(url, got[0])
		got = e.receive(url)
		require.Equal(e, "a2 a3", bodies(got))
		e.visible(url, got[0], 0)
		got = e.receive(url, "VisibilityTimeout", 0)
		require.Equal(e, "a2 a3", bodies(got))
		require.Equal(e, "2", got[0].Attributes["ApproximateReceiveCount"])
		got = e.receive(url)
		require.Equal(e, "3", got[0].Attributes["ApproximateReceiveCount"], "a timeout of 0 has ended at once")
		code, text := e.refused("ChangeMessageVisibility",
			object{"QueueUrl": url, "ReceiptHandle": got[0].ReceiptHandle, "VisibilityTimeout": 43_201})
		require.Equal(e, "InvalidParameterValueException", code)
		require.Contains(e, text, "Value 43201 for parameter VisibilityTimeout is invalid.")
		time.Sleep(4 * time.Second)
		_, text = e.refused("ChangeMessageVisibility",
			object{"QueueUrl": url, "ReceiptHandle": got[0].ReceiptHandle, "VisibilityTimeout": 43_200})
		require.Contains(e, text, "beyond the limit [43200 seconds]")
		e.delete(url, got...)
		_, text = e.refused("ChangeMessageVisibility",
			object{"QueueUrl": url, "ReceiptHandle": got[0].ReceiptHandle, "VisibilityTimeout": 1})
		require.Contains(e, text, "Message does not exist or is not available for visibility timeout change.")
	})
}

// TestStandardQueue: no message waits for another, and a message can be deleted with any receipt of it.
func TestStandardQueue(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		url := e.create("jobs", visibilityTimeout, "5")
		e.send(url, "", "1", "2", "3")
		first := e.receive(url, "MaxNumberOfMessages", 1)
		require.Len(e, e.receive(url), 2)
		time.Sleep(6 * time.Second)
		require.Len(e, e.receive(url), 3)
		e.delete(url, first...)
		require.Equal(e, "2", e.attributes(url)["ApproximateNumberOfMessagesNotVisible"])
		time.Sleep(6 * time.Second)
		require.Len(e, e.receive(url), 2)
		e.call("SendMessage", object{"QueueUrl": url, "MessageBody": "later", "DelaySeconds": 30})
		require.Equal(e, "1", e.attributes(url)["ApproximateNumberOfMessagesDelayed"])
		begun := time.Now()
		time.Sleep(6 * time.Second)
		require.Len(e, e.receive(url, "VisibilityTimeout", 100), 2)
		require.Empty(e, e.receive(url, "WaitTimeSeconds", 20))
		require.Equal(e, "later", bodies(e.receive(url, "WaitTimeSeconds", 20)))
		require.GreaterOrEqual(e, time.Since(begun), 30*time.Second)
	})
}

// TestChangeOfDelay: in a FIFO queue a change of the delay applies also to the messages that are in the queue. In a
// standard queue it applies to later messages. Both hold on a server that has not made the change, too.
func TestChangeOfDelay(t *testing.T) {
	inBothKinds(t, func(e *env) {
		other := &env{T: e.T, db: e.db, s: NewServer(e.db, Options{})}
		defer func() { require.NoError(e, other.s.Close(e.Context())) }()
		set := func(url string, seconds string) {
			e.call("SetQueueAttributes", object{"QueueUrl": url, "Attributes": object{delaySeconds: seconds}})
		}
		orders, jobs := e.create("orders.fifo", delaySeconds, "900"), e.create("jobs", delaySeconds, "900")
		e.send(orders, "a", "a1", "a2")
		e.send(jobs, "", "1")
		require.Equal(e, "2", e.attributes(orders)["ApproximateNumberOfMessagesDelayed"])
		time.AfterFunc(10*time.Second, func() { set(orders, "5"); set(jobs, "5") })
		begun := time.Now()
		got := other.receive(orders, "WaitTimeSeconds", 20)
		require.Equal(e, "a1 a2", bodies(got))
		require.InDelta(e, 10, time.Since(begun).Seconds(), 3)
		require.Empty(e, e.receive(jobs, "WaitTimeSeconds", 20))
		require.Equal(e, "1", e.attributes(jobs)["ApproximateNumberOfMessagesDelayed"])
		other.delete(orders, got...)

		e.send(orders, "a", "a3")
		set(orders, "60")
		time.Sleep(10 * time.Second)
		require.Empty(e, other.receive(orders), "the delay is longer now")
		require.Equal(e, "1", e.attributes(orders)["ApproximateNumberOfMessagesDelayed"])
		require.Empty(e, other.receive(orders, "WaitTimeSeconds", 20))
		require.Empty(e, other.receive(orders, "WaitTimeSeconds", 20))
		require.Equal(e, "a3", bodies(other.receive(orders, "WaitTimeSeconds", 20)))
		require.InDelta(e, 60, time.Since(begun).Seconds()-30, 5)
	})
}

// TestDeduplication: by an id or by the body, for five minutes, over the queue or in each group.
func TestDeduplication(t *testing.T) {
	inBothKinds(t, func(e *env) {
		url := e.create("orders.fifo")
		send := func(group, body, id string) object {
			m := object{"QueueUrl": url, "MessageBody": body, "MessageGroupId": group}
			if id != "" {
				m["MessageDeduplicationId"] = id
			}
			return e.call("SendMessage", m)
		}
		a := send("g", "body", "")
		require.Equal(e, a, send("h", "body", ""))
		require.NotEqual(e, a["MessageId"], send("g", "body", "id")["MessageId"])
		require.Len(e, a["SequenceNumber"], 39)
		got := e.receive(url)
		require.Equal(e, "body body", bodies(got))
		require.Equal(e, "id", got[1].Attributes["MessageDeduplicationId"])
		e.delete(url, got...)
		send("g", "body", "")
		require.Empty(e, e.receive(url), "remembered after the delete")
		time.Sleep(5 * time.Minute)
		send("g", "body", "")
		require.Equal(e, "body", bodies(e.receive(url)))
		url = e.create("scoped.fifo", dedupScope, scopeGroup, throughputLimit, perGroup)
		send("g", "body", "")
		send("h", "body", "")
		send("h", "body", "")
		require.Equal(e, "body body", bodies(e.receive(url)))
	})
}

// TestSequenceNumbersDiffer: two servers send to a group at the same time, so that neither sees the message of the
// other. The messages have different SequenceNumbers, which grow in the order of delivery.
func TestSequenceNumbersDiffer(t *testing.T) {
	var held atomic.Bool
	hold := func(call string) error {
		if call == "enqueue" && held.CompareAndSwap(true, false) {
			time.Sleep(time.Second)
		}
		return nil
	}
	open := func(t *testing.T) kv.DB { return failingDB{DB: inMemory(t), fails: hold} }
	bubbleOn(t, open, Options{}, func(e *env) {
		other, end := e.withClock(time.Now)
		defer end()
		url := e.create("orders.fifo")
		other.attributes(url) // it has the queue open
		held.Store(true)
		var sending sync.WaitGroup
		sending.Go(func() { e.send(url, "a", "one") })
		synctest.Wait()
		require.False(e, held.Load(), "the commit is under way")
		other.send(url, "a", "two")
		sending.Wait()
		got := e.receive(url)
		require.Len(e, got, 2)
		require.Less(e, got[0].Attributes["SequenceNumber"], got[1].Attributes["SequenceNumber"])
	})
}

// TestContentIsAnID: an explicit MessageDeduplicationId that is the SHA-256 of a body, in hexadecimal, and the body
// itself are duplicates of each other, as on AWS.
func TestContentIsAnID(t *testing.T) {
	inBothKinds(t, func(e *env) {
		url := e.create("orders.fifo")
		send := func(body, id string) any {
			m := object{"QueueUrl": url, "MessageBody": body, "MessageGroupId": "g"}
			if id != "" {
				m["MessageDeduplicationId"] = id
			}
			return e.call("SendMessage", m)["MessageId"]
		}
		require.Equal(e, send("a", ""), send("other", sha("a")))
		require.Equal(e, send("other", sha("b")), send("b", ""))
		got := e.receive(url)
		require.Equal(e, "a other", bodies(got))
		require.Equal(e, sha("a"), got[0].Attributes["MessageDeduplicationId"])
	})
}

// TestAttributeNamesOfReceive: which message attributes a receive returns.
func TestAttributeNamesOfReceive(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		url := e.create("jobs")
		text := func(v string) object { return object{"DataType": "String", "StringValue": v} }
		e.call("SendMessage", object{"QueueUrl": url, "MessageBody": "b",
			"MessageAttributes": object{"Help.Me": text("1"), "Hello": text("2"), "General": text("3")}})
		for names, want := range map[string]int{
			"": 0, "All": 3, "*": 3, ".*": 3, "Foo Help": 0, "Hello General": 2, "Foo Hello": 1, "Hel.*": 2,
			"Hel*": 0, "all": 0,
		} {
			got := e.receive(url, "MessageAttributeNames", strings.Fields(names), "VisibilityTimeout", 0)
			require.Len(e, got[0].MessageAttributes, want, names)
		}
	})
}

// TestEncryptionKeyCleared: with the key goes the time for which its data keys are used.
func TestEncryptionKeyCleared(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		url := e.create("jobs", kmsKey, "alias/k", kmsReuse, "600")
		require.Equal(e, "600", e.attributes(url)[kmsReuse])
		e.call("SetQueueAttributes", object{"QueueUrl": url, "Attributes": object{kmsKey: ""}})
		require.NotContains(e, e.attributes(url), kmsKey)
		require.NotContains(e, e.attributes(url), kmsReuse)
		e.call("SetQueueAttributes", object{"QueueUrl": url, "Attributes": object{kmsKey: "alias/k"}})
		require.Equal(e, "300", e.attributes(url)[kmsReuse])
	})
}

// TestDeadLetters: a message that was received as often as the policy says goes to the dead letter queue, with its
// id, its group and its attributes, and a move task brings it back.
func TestDeadLetters(t *testing.T) {
	for _, suffix := range []string{"", fifoSuffix} {
		inBothKinds(t, func(e *env) {
			dead := e.create("dead" + suffix)
			arn := e.attributes(dead)["QueueArn"].(string)
			policy := fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":"2"}`, arn)
			url := e.create("orders"+suffix, redrivePolicy, policy, visibilityTimeout, "5")
			group := strings.TrimPrefix(suffix, ".")
			sent := object{"QueueUrl": url, "MessageBody": "poison",
				"MessageAttributes": object{"a": object{"DataType": "String", "StringValue": "v"}}}
			if group != "" {
				sent["MessageGroupId"] = group
			}
			id := e.call("SendMessage", sent)["MessageId"]
			e.visible(url, e.receive(url)[0], 0)
			require.Len(e, e.receive(url), 1)
			time.Sleep(6 * time.Second)
			e.send(url, group, "next")
			require.Equal(e, "next", bodies(e.receive(url)))
			got := e.receive(dead, "MessageAttributeNames", []string{"All"})
			require.Equal(e, "poison", bodies(got))
			require.Equal(e, id, got[0].MessageId)
			require.Equal(e, "3", got[0].Attributes["ApproximateReceiveCount"])
			require.Equal(e, "v", got[0].MessageAttributes["a"].StringValue)
			require.Equal(e, strings.Replace(arn, "dead", "orders", 1), got[0].Attributes["DeadLetterQueueSourceArn"])
			require.Equal(e, []any{url}, e.call("ListDeadLetterSourceQueues", object{"QueueUrl": dead})["queueUrls"])
			e.visible(dead, got[0], 0)

			_, text := e.refused("StartMessageMoveTask", object{"SourceArn": strings.Replace(arn, "dead", "orders", 1)})
			require.Equal(e, "Source queue must be configured as a Dead Letter Queue.", text)
			e.call("StartMessageMoveTask", object{"SourceArn": arn, "MaxNumberOfMessagesPerSecond": 1})
			time.Sleep(3 * time.Second)
			task := e.call("ListMessageMoveTasks", object{"SourceArn": arn})["Results"].([]any)[0].(object)
			require.Equal(e, "COMPLETED", task["Status"])
			require.EqualValues(e, 1, task["ApproximateNumberOfMessagesMoved"])
			time.Sleep(3 * time.Second)
			back := e.receive(url)
			require.Contains(e, bodies(back), "poison")
			for _, m := range back { // every message of a FIFO queue has one
				require.Equal(e, group == "", m.Attributes["MessageDeduplicationId"] == "", m.Body)
			}
			require.Empty(e, e.receive(dead))
		})
	}
}

// TestOpenedIsNotIdle: a queue that a request has just opened does not count as idle.
func TestOpenedIsNotIdle(t *testing.T) {
	db := embedded.OpenMemory(embedded.Options{})
	e := &env{T: t, db: db, s: NewServer(db, Options{})}
	done := make(chan struct{})
	var sweeps sync.WaitGroup
	sweeps.Go(func() {
		for {
			select {
			case <-done:
				return
			default:
				e.s.closeIdle()
			}
		}
	})
	for i := range 100 {
		e.create(fmt.Sprint("jobs", i))
	}
	close(done)
	sweeps.Wait()
	require.NoError(t, e.s.Close(t.Context()))
	require.NoError(t, db.Close())
}

// TestQueueLife: a queue is created twice, changed, purged, deleted, and re-created after a minute.
func TestQueueLife(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		url := e.create("jobs", delaySeconds, "0")
		require.Equal(e, "http://localhost:9324/000000000000/jobs", url)
		require.Equal(e, url, e.create("jobs"))
		code, text := e.refused("CreateQueue", object{"QueueName": "jobs", "Attributes": object{delaySeconds: "1"}})
		require.Equal(e, "QueueNameExists", code)
		require.Contains(e, text, "a different value for attribute DelaySeconds")
		e.call("SetQueueAttributes",
			object{"QueueUrl": url, "Attributes": object{delaySeconds: "7", retentionPeriod: "60"}})
		require.Equal(e, "7", e.attributes(url)[delaySeconds])
		e.send(url, "", "1")
		require.Empty(e, e.receive(url))
		require.Equal(e, "1", bodies(e.receive(url, "WaitTimeSeconds", 10)))
		e.call("PurgeQueue", object{"QueueUrl": url})
		code, _ = e.refused("PurgeQueue", object{"QueueUrl": url})
		require.Equal(e, "PurgeQueueInProgress", code)
		require.Equal(e, "0", e.attributes(url)["ApproximateNumberOfMessagesNotVisible"])
		e.call("TagQueue", object{"QueueUrl": url, "Tags": object{"a": "b", "c": ""}})
		e.call("UntagQueue", object{"QueueUrl": url, "TagKeys": []string{"a"}})
		require.Equal(e, object{"Tags": object{"c": ""}}, e.call("ListQueueTags", object{"QueueUrl": url}))

		e.call("DeleteQueue", object{"QueueUrl": url})
		code, text = e.refused("ReceiveMessage", object{"QueueUrl": url})
		require.Equal(e, "QueueDoesNotExist", code)
		require.Equal(e, "The specified queue does not exist.", text)
		require.Empty(e, e.call("ListQueues", object{}))
		time.Sleep(59 * time.Second)
		code, _ = e.refused("CreateQueue", object{"QueueName": "jobs"})
		require.Equal(e, "QueueDeletedRecently", code)
		time.Sleep(2 * time.Second)
		require.Equal(e, "0", e.attributes(e.create("jobs"))[delaySeconds])
	})
}

// TestDeleteWhileWaiting: a receive that waits is told that its queue is gone.
func TestDeleteWhileWaiting(t *testing.T) {
	bubble(t, Options{ReuseNames: true}, func(e *env) {
		url := e.create("jobs")
		done := make(chan string)
		go func() {
			code, _ := e.refused("ReceiveMessage", object{"QueueUrl": url, "WaitTimeSeconds": 20})
			done <- code
		}()
		time.Sleep(time.Second)
		begun := time.Now()
		e.call("DeleteQueue", object{"QueueUrl": url})
		require.Equal(e, "QueueDoesNotExist", <-done)
		require.Less(e, time.Since(begun), 5*time.Second)
		e.create("jobs")
	})
}

// TestServersShareAll: one server deletes a message that another has received, and a new server knows all queues and
// messages.
func TestServersShareAll(t *testing.T) {
	inBothKinds(t, func(e *env) {
		url := e.create("orders.fifo")
		e.send(url, "a", "a1", "a2")
		got := e.receive(url, "MaxNumberOfMessages", 1)
		first := e.s
		e.s = NewServer(e.db, Options{})
		e.delete(url, got...)
		require.Equal(e, "a2", bodies(e.receive(url)))
		e.call("SetQueueAttributes", object{"QueueUrl": url, "Attributes": object{visibilityTimeout: "77"}})
		time.Sleep(2 * time.Second)
		require.NoError(e, e.s.Close(e.Context()))
		e.s = first
		require.Equal(e, "77", e.attributes(url)[visibilityTimeout])
	})
}

// TestGoPrograms: a message that a Go program has enqueued is received with its headers as attributes, and the
// other way around the body is what was sent.
func TestGoPrograms(t *testing.T) {
	inBothKinds(t, func(e *env) {
		url := e.create("orders.fifo")
		q, err := layer.Open(e.Context(), e.db, nil, "orders.fifo", layer.Options{})
		require.NoError(e, err)
		_, err = q.Enqueue(e.Context(), layer.Message{
			Group: "g", Body: []byte("from Go \xff"), Headers: map[string]string{"trace": "t", "": "no", "a b": "no"},
		})
		require.NoError(e, err)
		got := e.receive(url, "MessageAttributeNames", []string{"tr.*"})
		require.Equal(e, "from Go \uFFFD", bodies(got))
		require.Equal(e, got[0].MessageId, got[0].Attributes["MessageDeduplicationId"])
		require.Equal(e, "t", got[0].MessageAttributes["trace"].StringValue)
		e.delete(url, got...)
		e.send(url, "g", "from SQS")
		claims, err := q.Receive(e.Context(), layer.ReceiveOptions{})
		require.NoError(e, err)
		require.Equal(e, "from SQS", string(claims[0].Items[0].Body))
		require.NoError(e, q.Close(e.Context()))
	})
}

// TestLargeAttributes: attributes that are too large for a header travel with the body.
func TestLargeAttributes(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		url := e.create("jobs")
		value := strings.Repeat("v", 500_000)
		e.call("SendMessage", object{"QueueUrl": url, "MessageBody": strings.Repeat("b", 500_000),
			"MessageAttributes": object{"a": object{"DataType": "String", "StringValue": value}}})
		got := e.receive(url, "MessageAttributeNames", []string{"All"})
		require.Len(e, got[0].Body, 500_000)
		require.Equal(e, value, got[0].MessageAttributes["a"].StringValue)
		code, text := e.refused("SendMessage", object{"QueueUrl": url, "MessageBody": strings.Repeat("b", 1<<20+1)})
		require.Equal(e, "InvalidParameterValueException", code)
		require.Contains(e, text, "Reason: Message must be shorter than 1048576 bytes.")
	})
}

// TestQueryProtocol: requests as AWS's documentation has them, by POST and GET, and the answers in XML.
func TestQueryProtocol(t *testing.T) {
	const header = xmlHeader
	metadata := func(action string) string {
		return "<ResponseMetadata><RequestId>ID</RequestId></ResponseMetadata></" + action + "Response>"
	}
	open := func(action string) string { return header + "<" + action + `Response xmlns="` + namespace + `">` }
	bubble(t, Options{}, func(e *env) {
		status, body := e.query("Action=CreateQueue&QueueName=jobs" +
			"&Attribute.1.Name=VisibilityTimeout&Attribute.1.Value=40&Tag.1.Key=k&Tag.1.Value=v&Version=2012-11-05")
		require.Equal(e, http.StatusOK, status, body)
		require.Equal(e, open("CreateQueue")+"<CreateQueueResult>"+
			"<QueueUrl>http://localhost:9324/000000000000/jobs</QueueUrl></CreateQueueResult>"+
			metadata("CreateQueue"), body)
		at := "&QueueUrl=" + url.QueryEscape("http://localhost:9324/000000000000/jobs")
		_, body = e.query("Action=SendMessage&MessageBody=a%0D%26&MessageAttribute.1.Name=n" +
			"&MessageAttribute.1.Value.DataType=Binary&MessageAttribute.1.Value.BinaryValue=AAE%3D&DelaySeconds=0" + at)
		require.Contains(e, body, "<MD5OfMessageBody>"+digest("a\r&")+"</MD5OfMessageBody>")
		_, body = e.query("Action=ReceiveMessage&AttributeName.1=SenderId&MessageAttributeName.1=All" + at)
		require.Contains(e, body, "<Body>a&#xD;&amp;</Body>")
		require.Contains(e, body, "<Attribute><Name>SenderId</Name><Value>000000000000</Value></Attribute>")
		require.Contains(e, body, "<BinaryValue>AAE=</BinaryValue>")
		_, body = e.query("Action=ReceiveMessage" + at)
		require.Equal(e, open("ReceiveMessage")+"<ReceiveMessageResult/>"+
			metadata("ReceiveMessage"), body)
		_, body = e.query("Action=ListQueueTags" + at)
		require.Contains(e, body, "<Tag><Key>k</Key><Value>v</Value></Tag>")
		_, body = e.query("Action=SetQueueAttributes&Attribute.Name=DelaySeconds&Attribute.Value=0" + at)
		require.Equal(e, open("SetQueueAttributes")+metadata("SetQueueAttributes"), body)

		status, body = e.query("Action=SendMessage&MessageBody=b&QueueUrl=none")
		require.Equal(e, http.StatusBadRequest, status)
		require.Equal(e, header+`<ErrorResponse xmlns="`+namespace+`"><Error><Type>Sender</Type>`+
			"<Code>AWS.SimpleQueueService.NonExistentQueue</Code>"+
			"<Message>The specified queue does not exist for this wsdl version.</Message><Detail/></Error>"+
			"<RequestId>ID</RequestId></ErrorResponse>", body)
		_, body = e.query("Action=Nothing")
		require.Contains(e, body, "<Code>InvalidAction</Code>")
		_, body = e.query("a=b")
		require.Contains(e, body, "<Code>MissingAction</Code>")

		get := httptest.NewRequest(http.MethodGet, "http://localhost/000000000000/jobs"+
			"?Action=GetQueueAttributes&AttributeName.1=VisibilityTimeout", nil)
		_, _, body = e.do(get)
		require.Contains(e, body, "<Attribute><Name>VisibilityTimeout</Name><Value>40</Value></Attribute>")
		get.Header.Set("Accept", "application/json")
		_, h, body := e.do(get)
		require.Equal(e, "application/json", h.Get("Content-Type"))
		require.Contains(e, body, `{"Attributes":[{"Name":"VisibilityTimeout","Value":"40"}]}`)
	})
}

// TestURLOfQueue: the answer to a GET of a queue's URL, and the requests that the URL refuses.
func TestURLOfQueue(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		e.create("jobs")
		get := func(query string) (int, string) {
			r := httptest.NewRequest(http.MethodGet, "http://localhost/000000000000/jobs"+query, nil)
			status, _, body := e.do(r)
			return status, body
		}
		status, body := get("")
		require.Equal(e, http.StatusNotFound, status)
		require.Contains(e, body, "<UnknownOperationException")
		for _, action := range []string{"ListQueues", "CreateQueue"} {
			status, body = get("?Action=" + action)
			require.Equal(e, http.StatusBadRequest, status)
			require.Contains(e, body, "The action "+action+" is not valid for this endpoint.")
		}
		status, body = get("?Action=GetQueueUrl&QueueName=jobs")
		require.Equal(e, http.StatusOK, status)
		require.Contains(e, body, "/000000000000/jobs</QueueUrl>")
	})
}

// TestStandardVisibility: of a standard queue any receipt handle of a message changes its visibility, also when its
// time is over; and True is true.
func TestStandardVisibility(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		e.create("orders.fifo", fifoQueue, "True", contentBased, "TRUE")
		url := e.create("jobs", visibilityTimeout, "2")
		e.send(url, "", "b")
		first := e.receive(url)[0]
		time.Sleep(3 * time.Second)
		require.Equal(e, "0", e.attributes(url)["ApproximateNumberOfMessagesNotVisible"])
		require.Equal(e, "1", e.attributes(url)["ApproximateNumberOfMessages"])
		require.Len(e, e.receive(url, "VisibilityTimeout", 60), 1)
		e.visible(url, first, 0)
		again := e.receive(url)
		require.Len(e, again, 1)
		require.Equal(e, "3", again[0].Attributes["ApproximateReceiveCount"])
		e.visible(url, again[0], 0)
		e.visible(url, again[0], 5) // no client has it
		require.Len(e, e.receive(url), 1)
	})
}

// TestTraceHeader: a message carries the trace of the request that has sent it.
func TestTraceHeader(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		url := e.create("jobs")
		r := post("SendMessage", object{"QueueUrl": url, "MessageBody": "b"})
		r.Header.Set("X-Amzn-Trace-Id", "Root=1")
		status, _, _ := e.do(r)
		require.Equal(e, http.StatusOK, status)
		require.Equal(e, "Root=1", e.receive(url)[0].Attributes[traceHeader])
	})
}

// TestJSONErrors: an error in JSON has Query's code in a header, and the server refuses bodies that it cannot read.
func TestJSONErrors(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		status, header, body := e.do(post("GetQueueUrl", object{"QueueName": "none"}))
		require.Equal(e, http.StatusBadRequest, status)
		require.Equal(e, "AWS.SimpleQueueService.NonExistentQueue;Sender", header.Get("X-Amzn-Query-Error"))
		require.JSONEq(e, `{"__type":"com.amazonaws.sqs#QueueDoesNotExist",
			"message":"The specified queue does not exist."}`, body)
		code, _ := e.refused("Nothing", object{})
		require.Equal(e, "UnknownOperationException", code)
		for _, text := range []string{"", "{", "[]", `{"QueueName": 5}`, "null null", strings.Repeat("[", 100_000)} {
			r := post("GetQueueUrl", nil)
			r.Body = io.NopCloser(strings.NewReader(text))
			status, _, body = e.do(r)
			require.Equal(e, http.StatusBadRequest, status, body)
			require.Contains(e, body, "SerializationException", text)
			require.NotContains(e, body, "Go ", text)
			if text == `{"QueueName": 5}` {
				require.Contains(e, body, "QueueName cannot be a JSON number")
			}
		}
		r := post("GetQueueUrl", nil)
		r.Body = io.NopCloser(io.LimitReader(strings.NewReader(strings.Repeat(" ", maxBody+1)), maxBody+1))
		r.ContentLength = -1
		status, _, _ = e.do(r)
		require.Equal(e, http.StatusRequestEntityTooLarge, status)
		for _, method := range []string{http.MethodPut, http.MethodHead, http.MethodOptions} {
			status, _, _ = e.do(httptest.NewRequest(method, "http://localhost/", nil))
			require.Equal(e, http.StatusMethodNotAllowed, status)
		}
		r = post("ListQueues", object{})
		r.Header.Set("Origin", "http://evil.test")
		status, _, _ = e.do(r)
		require.Equal(e, http.StatusForbidden, status, "pages are not served without keys")
	})
}

// TestRefusals: the server refuses requests with the codes and words of AWS. testdata/refusals.txt has them: a line
// with the operation, its queue and the request, and below it the code and a part of the text.
func TestRefusals(t *testing.T) {
	text, err := os.ReadFile("testdata/refusals.txt")
	require.NoError(t, err)
	bubble(t, Options{}, func(e *env) {
		e.create("orders.fifo", contentBased, "false")
		standard, seen := e.create("jobs"), 0
		for block := range strings.SplitSeq(strings.TrimSpace(string(text)), "\n\n") {
			asked, answer, _ := strings.Cut(block, "\n")
			action, rest, _ := strings.Cut(asked, " ")
			queue, body, _ := strings.Cut(rest, " ")
			wantCode, wantText, _ := strings.Cut(answer, " ")
			request := object{}
			require.NoError(e, json.Unmarshal([]byte(body), &request), body)
			if queue != "-" {
				request["QueueUrl"] = queue
			}
			code, text := e.refused(action, request)
			require.Equal(e, wantCode, code, "%s: %s", asked, text)
			require.Contains(e, text, wantText, asked)
			seen++
		}
		require.Greater(e, seen, 35)
		// Only the wrong entries of a batch fail.
		answer := e.call("SendMessageBatch", object{"QueueUrl": standard, "Entries": []object{
			{"Id": "good", "MessageBody": "b"}, {"Id": "bad", "MessageBody": "\x01"},
		}})
		require.Equal(e, "good", answer["Successful"].([]any)[0].(object)["Id"])
		require.Equal(e, "InvalidMessageContents", answer["Failed"].([]any)[0].(object)["Code"])
	})
}

// TestAttributeDigest against the checksum that AWS's documentation and SDKs agree on.
func TestAttributeDigest(t *testing.T) {
	text := "traceparent\x1e00-774062d6c37081a5a0b9b5b88e30627c-2d2482211f6489da-01"
	require.Equal(t, "8cbe4db156db8a94db8b801b7addb984",
		digestAttributes(map[string]attributeValue{"attr1": {DataType: "Binary", BinaryValue: []byte(text)}}))
	v := "foobar"
	require.Equal(t, "adb59cd4678ea5a855436b949cd07ab6",
		digestAttributes(map[string]attributeValue{"MyAttribute": {DataType: "String", StringValue: &v}}))
	require.Empty(t, digestAttributes(nil))
}

// TestLongPollsStandInLine: of many polls one is in the database; each message reaches one of them at once, and
// those that get none return when their time is over.
func TestLongPollsStandInLine(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		const polls, sent = 50, 20
		url := e.create("jobs")
		var got, none atomic.Int64
		var group sync.WaitGroup
		begun := time.Now()
		for range polls {
			group.Go(func() {
				n := len(e.receive(url, "WaitTimeSeconds", 20, "MaxNumberOfMessages", 1, "VisibilityTimeout", 100))
				got.Add(int64(n))
				if n == 0 {
					none.Add(1)
					require.Equal(e, 20, int(time.Since(begun).Round(time.Second).Seconds()))
				}
			})
		}
		time.Sleep(3 * time.Second)
		for range sent {
			e.send(url, "", "b")
		}
		time.Sleep(time.Second)
		require.EqualValues(e, sent, got.Load())
		group.Wait()
		require.EqualValues(e, polls-sent, none.Load())
	})
}

// TestFairQueue: in a standard queue a tenant with one message, named by MessageGroupId, does not wait for the backlog
// of another, and neither do messages without a MessageGroupId together hold up a tenant.
func TestFairQueue(t *testing.T) {
	for _, loud := range []object{{"MessageGroupId": "loud"}, {}} {
		bubble(t, Options{}, func(e *env) {
			url := e.create("plain")
			for i := range 40 {
				request := object{"QueueUrl": url, "MessageBody": fmt.Sprint("loud ", i)}
				for k, v := range loud {
					request[k] = v
				}
				e.call("SendMessage", request)
			}
			e.call("SendMessage", object{"QueueUrl": url, "MessageBody": "quiet", "MessageGroupId": "quiet"})
			var order []string
			for range 4 {
				answer := e.call("ReceiveMessage", object{"QueueUrl": url})
				order = append(order, answer["Messages"].([]any)[0].(object)["Body"].(string))
			}
			require.Contains(e, order, "quiet")
			require.Contains(e, order, "loud 0")
		})
	}
}
