package sqs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/uuid"
	"github.com/stretchr/testify/require"

	"fdbfifo/internal/earlier"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
)

// storedFolder has databases that an earlier version wrote. Every later version must serve them: see package earlier.
//
// One expectation is not the earlier version's own: the messages m17 to m29 of servers.want have a new MessageId,
// because a redrive gives a message a new id (docs/sqs.md).
const storedFolder = "testdata/stored"

func storedNames(t *testing.T) []string {
	t.Helper()
	names, err := earlier.Names(storedFolder)
	require.NoError(t, err)
	require.NotEmpty(t, names)
	return names
}

// storedClient serves a database, and writes down what a client is told.
type storedClient struct {
	*env
	d     *earlier.Database
	lines []string
}

func (c *storedClient) say(format string, args ...any) {
	c.lines = append(c.lines, fmt.Sprintf(format, args...))
}

// text is an answer as it is written down: JSON, with the members in the order of their names.
func text(answer any) string {
	b, err := json.Marshal(answer)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// readAll serves the database of that name, and returns what a client was told, a line for each fact.
func readAll(t *testing.T, name string) (found []string) {
	synctest.Test(t, func(t *testing.T) {
		d, err := earlier.Read(storedFolder, name)
		require.NoError(t, err)
		db := embedded.OpenMemory(embedded.Options{}) // its versions have passed those of the rows by then
		time.Sleep(time.Until(d.At))                  // takes no real time
		defer func() {
			synctest.Wait()
			require.NoError(t, db.Close())
		}()
		require.NoError(t, d.Load(t.Context(), db))
		c := &storedClient{env: &env{T: t, db: db, s: NewServer(db, Options{})}, d: d}
		c.run()
		require.NoError(t, c.s.Close(t.Context()))
		checkAll(t, db, nil)
		found = c.lines
	})
	return found
}

// run looks at all queues, uses the receipt handles of the earlier version, and receives until all queues are empty.
func (c *storedClient) run() {
	var urls []string
	all, _ := c.call("ListQueues", object{})["QueueUrls"].([]any)
	for _, url := range all {
		urls = append(urls, url.(string))
		c.look(url.(string))
	}
	for _, note := range c.d.Notes {
		require.Equal(c, "handle", note.Kind)
		queue, rest, _ := strings.Cut(note.Words, " ")
		body, handle, _ := strings.Cut(rest, " ")
		url := urls[slices.IndexFunc(urls, func(url string) bool { return strings.HasSuffix(url, "/"+queue) })]
		status, _, answer := c.do(post("ChangeMessageVisibility",
			object{"QueueUrl": url, "ReceiptHandle": handle, "VisibilityTimeout": 600}))
		c.say("%s: the handle of %q stays valid: %d %s", queue, body, status, strings.TrimSpace(answer))
	}
	c.again(urls)
	for begun := time.Now(); time.Since(begun) < time.Hour; time.Sleep(10 * time.Second) {
		for _, url := range urls {
			// The move task goes on, at a time that another version may choose otherwise.
			if moves := strings.HasPrefix(queueOf(url), "standard-"); !moves || time.Since(begun) == 30*time.Minute {
				c.drain(url, time.Since(begun))
			}
		}
	}
	for _, url := range urls {
		a := c.attributes(url)
		for _, task := range c.tasks(a) {
			c.say("%s: move task %s, %v moved", queueOf(url), task["Status"], task["ApproximateNumberOfMessagesMoved"])
		}
		c.say("%s at the end: %s, %s, %s", queueOf(url), a["ApproximateNumberOfMessages"],
			a["ApproximateNumberOfMessagesNotVisible"], a["ApproximateNumberOfMessagesDelayed"])
	}
	names, err := layer.Queues(c.Context(), c.db, nil)
	require.NoError(c, err)
	c.say("queues of the layer: %q", names)
}

// tasks lists the move tasks of a queue with these attributes.
func (c *storedClient) tasks(attributes object) (tasks []object) {
	results, _ := c.call("ListMessageMoveTasks", object{"SourceArn": attributes["QueueArn"]})["Results"].([]any)
	for _, task := range results {
		tasks = append(tasks, task.(object))
	}
	return tasks
}

func queueOf(url string) string { return url[strings.LastIndexByte(url, '/')+1:] }

// look writes down what is told of a queue.
func (c *storedClient) look(url string) {
	a := c.call("GetQueueAttributes", object{"QueueUrl": url, "AttributeNames": []string{"All"}})["Attributes"].(object)
	c.say("%s:", queueOf(url))
	if strings.HasSuffix(url, fifoSuffix) {
		own := c.call("GetQueueAttributes", object{"QueueUrl": url, "AttributeNames": []string{visibilityOf}})
		maps.Copy(a, own["Attributes"].(object))
	}
	for _, name := range slices.Sorted(maps.Keys(a)) {
		c.say("  %s %s", name, a[name])
	}
	c.say("  tags %s", text(c.call("ListQueueTags", object{"QueueUrl": url})["Tags"]))
	for _, source := range c.call("ListDeadLetterSourceQueues", object{"QueueUrl": url})["queueUrls"].([]any) {
		c.say("  source %s", queueOf(source.(string)))
	}
	for _, task := range c.tasks(a) {
		delete(task, "ApproximateNumberOfMessagesMoved") // it goes on
		c.say("  move task %s", text(task))
	}
}

// again sends what was sent before, and repeats a receive.
func (c *storedClient) again(urls []string) {
	for _, url := range urls {
		if queueOf(url) != "orders.fifo" {
			continue
		}
		sent := c.call("SendMessage", object{"QueueUrl": url, "MessageBody": "a1", "MessageGroupId": "A",
			"MessageDeduplicationId": "one"})
		c.say("sent again: %s", c.known(sent["MessageId"].(string)))
		got := c.receive(url, "ReceiveRequestAttemptId", "attempt-1", "MaxNumberOfMessages", 2,
			"VisibilityTimeout", 3600)
		c.say("received again: %s", bodies(got))
		for _, m := range got {
			c.visible(url, m, 600)
		}
	}
}

// known is the id of a message, or "a new one" if the message was sent after the moment of the database.
func (c *storedClient) known(id string) string {
	random := uuid.MustParse(id)
	for _, row := range c.d.Rows { // moved messages have the id in a header
		if bytes.Contains(row.Key, random[:]) || bytes.Contains(row.Value, random[:]) ||
			bytes.Contains(row.Value, []byte(id)) {
			return id
		}
	}
	return "a new one"
}

// drain receives and deletes what there is, and writes down when it came. In standard queues there is no order.
func (c *storedClient) drain(url string, since time.Duration) {
	var lines []string
	for {
		got := c.receive(url, "MessageAttributeNames", []string{"All"})
		if len(got) == 0 {
			break
		}
		for _, m := range got {
			lines = append(lines, fmt.Sprintf("%s after %s: %s", queueOf(url), since, c.told(m)))
		}
		c.delete(url, got...)
	}
	if !strings.HasSuffix(url, fifoSuffix) {
		slices.Sort(lines)
	}
	c.lines = append(c.lines, lines...)
}

// told is a message as it is written down, without what a later move or receive decides.
func (c *storedClient) told(m message) string {
	if c.known(m.MessageId) != m.MessageId || m.Attributes["DeadLetterQueueSourceArn"] != "" {
		delete(m.Attributes, "SentTimestamp")
	}
	delete(m.Attributes, "ApproximateFirstReceiveTimestamp")
	delete(m.Attributes, "SequenceNumber")
	for name, v := range m.MessageAttributes {
		if len(v.StringValue) > 100 {
			v.StringValue = fmt.Sprintf("%d bytes", len(v.StringValue))
			m.MessageAttributes[name] = v
		}
	}
	return strings.Join([]string{m.Body, c.known(m.MessageId), text(m.Attributes), text(m.MessageAttributes)}, " ")
}

// TestStored: this version serves the database of an earlier version as that version served it. The test compares
// attributes, tags, policies, move tasks, receipt handles, duplicates, repeated receives and all messages at their
// times. The delay of their queue was changed while the messages waited.
func TestStored(t *testing.T) {
	for _, name := range storedNames(t) {
		t.Run(name, func(t *testing.T) {
			want, err := os.ReadFile(filepath.Join(storedFolder, name+".want"))
			require.NoError(t, err)
			require.Equal(t, strings.Split(strings.TrimSpace(string(want)), "\n"), readAll(t, name))
		})
	}
}
