package sqs

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/layer"
)

// Of queues with fdbfifo.Visibility=item. inBothKinds tests the promises about groups in both kinds of queues.

// inBothKinds is bubble for queues of which each receive, and then of which each message, has a visibility timeout.
func inBothKinds(t *testing.T, test func(e *env)) {
	for _, per := range choices[visibilityOf] {
		o := Options{VisibilityPerClaim: per == visibleByClaim}
		t.Run(per, func(t *testing.T) { bubble(t, o, test) })
	}
}

// inItemKind is bubble for queues of which each message has a visibility timeout.
func inItemKind(t *testing.T, test func(e *env)) {
	bubble(t, Options{}, test)
}

// counts are how often messages were received.
func counts(messages []message) string {
	all := make([]string, len(messages))
	for i, m := range messages {
		all[i] = m.Attributes["ApproximateReceiveCount"]
	}
	return strings.Join(all, " ")
}

// numbers are how many messages of a queue are visible, and how many in flight.
func (e *env) numbers(url string) string {
	e.Helper()
	all := e.attributes(url)
	return fmt.Sprintf("%s visible, %s in flight", all[counted[0]], all[counted[2]])
}

// TestMessagesEndOneByOne: a message whose timeout is over comes again, and counts a receive, whatever becomes of those
// that were received with it, but not while one before it is in flight.
func TestMessagesEndOneByOne(t *testing.T) {
	inItemKind(t, func(e *env) {
		url := e.create("orders.fifo", visibilityTimeout, "5")
		e.send(url, "a", "a1", "a2", "a3")
		got := e.receive(url)
		require.Equal(e, "a1 a2 a3", bodies(got))
		require.Equal(e, "0 visible, 3 in flight", e.numbers(url))
		e.visible(url, got[0], 60)
		time.Sleep(6 * time.Second)
		require.Equal(e, "2 visible, 1 in flight", e.numbers(url))
		require.Empty(e, e.receive(url), "a1 is in flight")
		for _, m := range got[1:] {
			_, text := e.refused("DeleteMessage", object{"QueueUrl": url, "ReceiptHandle": m.ReceiptHandle})
			require.Contains(e, text, "Reason: The receipt handle has expired.")
			_, text = e.refused("ChangeMessageVisibility",
				object{"QueueUrl": url, "ReceiptHandle": m.ReceiptHandle, "VisibilityTimeout": 9})
			require.Contains(e, text, "not available for visibility timeout change")
		}
		time.AfterFunc(7*time.Second, func() { e.delete(url, got[0]) })
		begun := time.Now()
		again := e.receive(url, "WaitTimeSeconds", 20)
		require.Equal(e, "a2 a3", bodies(again), "the delete wakes who waits")
		require.InDelta(e, 7, time.Since(begun).Seconds(), 1)
		require.Equal(e, "2 2", counts(again), "every delivery counts")
		const firstReceived = "ApproximateFirstReceiveTimestamp"
		for i, m := range again {
			require.Equal(e, got[i+1].Attributes[firstReceived], m.Attributes[firstReceived])
		}
		time.Sleep(6 * time.Second) // no other receive has taken over
		require.Equal(e, "2 visible, 0 in flight", e.numbers(url))
		again = e.receive(url, "VisibilityTimeout", 0)
		require.Equal(e, "3 3", counts(again))
		again = e.receive(url, "MaxNumberOfMessages", 1)
		require.Equal(e, "a2 4", bodies(again)+" "+counts(again), "a timeout of 0 has ended at once")
		require.Equal(e, "1 visible, 1 in flight", e.numbers(url))
	})
}

// TestMessagesGivenBack: a client returns a single message. It is delivered again before the messages behind it, also
// while another client has those in flight, and that client can delete them.
func TestMessagesGivenBack(t *testing.T) {
	inItemKind(t, func(e *env) {
		url := e.create("orders.fifo", visibilityTimeout, "60")
		e.send(url, "a", "a1", "a2", "a3", "a4")
		got := e.receive(url, "MaxNumberOfMessages", 3)
		e.visible(url, got[1], 0)
		require.Empty(e, e.receive(url), "a1 is in flight")
		require.Equal(e, "2 visible, 2 in flight", e.numbers(url))
		e.visible(url, got[0], 0)
		again := e.receive(url)
		require.Equal(e, "a1 a2", bodies(again), "up to a3, which is in flight")
		require.Equal(e, "2 2", counts(again))
		e.delete(url, got[2])
		require.Empty(e, e.receive(url), "a4 waits for a1 and a2")
		e.delete(url, again[1])
		require.Empty(e, e.receive(url), "a4 waits for a1")
		_, text := e.refused("DeleteMessage", object{"QueueUrl": url, "ReceiptHandle": got[0].ReceiptHandle})
		require.Contains(e, text, "Reason: The receipt handle has expired.", "a1 is another's")
		e.visible(url, again[0], 0)
		last := e.receive(url)
		require.Equal(e, "a1 a4", bodies(last))
		require.Equal(e, "3 1", counts(last))
		e.delete(url, last...)
		e.delete(url, last...) // no error
		require.Equal(e, "0 visible, 0 in flight", e.numbers(url))
	})
}

// TestBatchesByMessage: the entries of a batch are messages, of one receive or of several: each has its own timeout and
// its own outcome.
func TestBatchesByMessage(t *testing.T) {
	inItemKind(t, func(e *env) {
		url := e.create("orders.fifo", visibilityTimeout, "60")
		entries := func(messages []message, timeouts ...int) object {
			all := make([]object, len(messages))
			for i, m := range messages {
				all[i] = object{"Id": fmt.Sprint(i), "ReceiptHandle": m.ReceiptHandle}
				if timeouts != nil {
					all[i]["VisibilityTimeout"] = timeouts[i]
				}
			}
			return object{"QueueUrl": url, "Entries": all}
		}
		fails := func(answer object) string {
			var all []string
			failed, _ := answer["Failed"].([]any) // absent, if none
			for _, f := range failed {
				all = append(all, fmt.Sprintf("%s %s", f.(object)["Id"], f.(object)["Code"]))
			}
			return strings.Join(all, ", ")
		}
		e.send(url, "a", "a1", "a2", "a3", "a4")
		e.send(url, "b", "b1")
		first := e.receive(url, "MaxNumberOfMessages", 4)
		second := e.receive(url)
		all := append(first, second...)
		require.Equal(e, "a1 a2 a3 a4 b1", bodies(all))
		require.Empty(e, fails(e.call("ChangeMessageVisibilityBatch", entries(all, 10, 0, 30, 0, 0))))
		again := e.receive(url)
		require.Equal(e, "b1", bodies(again), "a1 is in flight")
		time.Sleep(11 * time.Second)
		again = append(again, e.receive(url)...)
		require.Equal(e, "b1 a1 a2", bodies(again), "up to a3, which is in flight")
		require.Equal(e, "2 2 2", counts(again))
		// The handles of b1, a1 and a2 are overtaken, that of a4 was given back; a3 is in flight.
		const expired = "InvalidParameterValue"
		require.Equal(e, fmt.Sprintf("0 %s, 1 %[1]s, 3 %[1]s, 4 %[1]s", expired),
			fails(e.call("ChangeMessageVisibilityBatch", entries(all, 40, 40, 40, 40, 40))))
		require.Equal(e, fmt.Sprintf("0 %s, 1 %[1]s, 3 %[1]s, 4 %[1]s", expired),
			fails(e.call("DeleteMessageBatch", entries(all))))
		require.Equal(e, "1 visible, 3 in flight", e.numbers(url))
		require.Empty(e, fails(e.call("DeleteMessageBatch", entries(append(again, again[0], first[2])))),
			"one of them twice, and one that is deleted")
		last := e.receive(url)
		require.Equal(e, "a4", bodies(last))
		require.Equal(e, "2", counts(last))
		e.delete(url, last...)
		require.Equal(e, "0 visible, 0 in flight", e.numbers(url))
	})
}

// TestDeadLettersOfABatch: messages that were received together become dead letters together, in their order, because
// every delivery counts for each.
func TestDeadLettersOfABatch(t *testing.T) {
	inItemKind(t, func(e *env) {
		dead := e.create("dead.fifo")
		url := e.create("orders.fifo", visibilityTimeout, "5", redrivePolicy,
			fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":2}`, e.attributes(dead)["QueueArn"]))
		e.send(url, "a", "a1", "a2", "a3")
		require.Equal(e, "1 1 1", counts(e.receive(url)))
		time.Sleep(6 * time.Second)
		got := e.receive(url)
		require.Equal(e, "2 2 2", counts(got))
		e.visible(url, got[1], 0) // while a1 is in flight
		e.delete(url, got[2])
		e.send(url, "a", "a4")
		time.Sleep(6 * time.Second)
		require.Equal(e, "a4", bodies(e.receive(url)))
		letters := e.receive(dead)
		require.ElementsMatch(e, []string{"a1", "a2"}, strings.Fields(bodies(letters)))
		require.Equal(e, "3 3", counts(letters))
		e.delete(dead, letters...)
		require.Equal(e, "0 visible, 0 in flight", e.numbers(dead))
	})
}

// TestRepeatedReceive: a receive that is repeated under its ReceiveRequestAttemptId returns the same messages. It
// restarts the visibility timeouts of all of them. No receipt handle names a later end than the stored one.
func TestRepeatedReceive(t *testing.T) {
	inBothKinds(t, func(e *env) {
		url := e.create("orders.fifo", visibilityTimeout, "8")
		e.send(url, "a", "a1", "a2")
		e.send(url, "b", "b1")
		attempt := func(more ...any) []message {
			return e.receive(url, append(more, "ReceiveRequestAttemptId", "once")...)
		}
		first := attempt()
		require.Equal(e, "a1 a2 b1", bodies(first))
		time.Sleep(5 * time.Second)
		again := attempt()
		require.Equal(e, "a1 a2 b1", bodies(again))
		require.Equal(e, "1 1 1", counts(again))
		time.Sleep(5 * time.Second)
		require.Empty(e, e.receive(url), "3 s are left")
		e.delete(url, first[0])
		time.Sleep(2 * time.Second)
		again = attempt()
		require.Equal(e, "a2 b1", bodies(again), "a1 is deleted")
		e.visible(url, again[1], 30)
		again = attempt()
		time.Sleep(7 * time.Second)
		require.Empty(e, e.receive(url))
		time.Sleep(2 * time.Second)
		require.Equal(e, "a2", bodies(e.receive(url)), "b1 has what it was given")
		e.delete(url, again[1])

		e.send(url, "c", "c1")
		require.Equal(e, "c1", bodies(e.receive(url, "ReceiveRequestAttemptId", "longer")))
		require.Equal(e, "c1", bodies(e.receive(url, "ReceiveRequestAttemptId", "longer", "VisibilityTimeout", 60)))
		time.Sleep(50 * time.Second)
		require.Equal(e, "a2", bodies(e.receive(url)))
	})
}

// TestRepeatedReceiveDoesNotWait: a receive that is repeated under its ReceiveRequestAttemptId returns its messages at
// once, also while other receives wait for messages. It returns no message that another receive has got since.
func TestRepeatedReceiveDoesNotWait(t *testing.T) {
	inBothKinds(t, func(e *env) {
		url := e.create("orders.fifo", visibilityTimeout, "30")
		e.send(url, "a", "a1")
		attempt := func() string {
			return bodies(e.receive(url, "ReceiveRequestAttemptId", "once", "WaitTimeSeconds", 20))
		}
		require.Equal(e, "a1", attempt())
		waits := make(chan string)
		go func() { waits <- bodies(e.receive(url, "WaitTimeSeconds", 20)) }()
		time.Sleep(time.Second)
		begun := time.Now()
		require.Equal(e, "a1", attempt())
		require.Less(e, time.Since(begun), time.Second)
		require.Empty(e, <-waits)
		time.Sleep(31 * time.Second)
		require.Equal(e, "a1", bodies(e.receive(url)))
		require.Empty(e, attempt())
	})
}

// TestRepeatedReceiveAfterLoss: if a message is taken over before a repeated receive can extend its claims, those
// behind the message in its group are not returned, and those of other groups are.
func TestRepeatedReceiveAfterLoss(t *testing.T) {
	inItemKind(t, func(e *env) {
		url := e.create("orders.fifo", visibilityTimeout, "8")
		e.send(url, "a", "a1", "a2")
		e.send(url, "b", "b1")
		q, err := e.s.open(e.Context(), "orders.fifo")
		require.NoError(e, err)
		defer q.release()
		o := layer.ReceiveOptions{ReceiveID: "once", Lease: 8 * time.Second}
		claims, err := q.Receive(e.Context(), o)
		require.NoError(e, err)
		require.Len(e, claims, 3)
		for _, c := range claims[1:] {
			_, err = q.Extend(e.Context(), c, time.Minute)
			require.NoError(e, err)
		}
		time.Sleep(9 * time.Second)
		require.Equal(e, "a1", bodies(e.receive(url)))
		least := time.Now().Add(2 * time.Minute)
		o.Lease = 3 * time.Minute
		claims, err = e.s.extendRepeated(e.Context(), q, o, claims, least)
		require.NoError(e, err)
		require.Len(e, claims, 1)
		require.Equal(e, "b1", string(claims[0].Items[0].Body))
		require.False(e, claims[0].Until.Before(least))
	})
}

// TestReceiptSaysNoMore: the time in a receipt handle is never later than the end of the claim that is stored.
func TestReceiptSaysNoMore(t *testing.T) {
	inBothKinds(t, func(e *env) {
		url := e.create("orders.fifo", visibilityTimeout, "8")
		e.send(url, "a", "a1", "a2")
		q, err := layer.Open(e.Context(), e.db, nil, "orders.fifo", layer.Options{})
		require.NoError(e, err)
		for _, wait := range []time.Duration{0, 3 * time.Second, time.Second} {
			time.Sleep(wait)
			for _, m := range e.receive(url, "ReceiveRequestAttemptId", "once") {
				h, _ := e.receipt("orders.fifo", m.ReceiptHandle)
				why, err := q.Admin().Why(e.Context(), h.id, nil)
				require.NoError(e, err)
				stored := time.Now().Add(why.Reasons[0].Left)
				require.False(e, h.until.After(stored), "%s, %s is stored", h.until, stored)
				require.InDelta(e, 8, time.Until(h.until).Seconds(), 0.1)
			}
		}
		require.NoError(e, q.Close(e.Context()))
	})
}

// TestPurgeOfMessagesInFlight: nothing is left, old receipt handles are worth nothing, and the group goes on.
func TestPurgeOfMessagesInFlight(t *testing.T) {
	inBothKinds(t, func(e *env) {
		url := e.create("orders.fifo")
		e.send(url, "a", "a1", "a2", "a3")
		got := e.receive(url, "MaxNumberOfMessages", 2)
		e.call("PurgeQueue", object{"QueueUrl": url})
		require.Equal(e, "0 visible, 0 in flight", e.numbers(url))
		e.delete(url, got[0])
		_, text := e.refused("ChangeMessageVisibility",
			object{"QueueUrl": url, "ReceiptHandle": got[1].ReceiptHandle, "VisibilityTimeout": 9})
		require.Contains(e, text, "Message does not exist")
		e.send(url, "a", "a4")
		require.Equal(e, "a4", bodies(e.receive(url)))
	})
}

// TestMessagesOfServers: what one server has delivered another extends, gives back and deletes, also when the first has
// gone.
func TestMessagesOfServers(t *testing.T) {
	inBothKinds(t, func(e *env) {
		url := e.create("orders.fifo", visibilityTimeout, "5")
		e.send(url, "a", "a1", "a2")
		got := e.receive(url)
		require.NoError(e, e.s.Close(e.Context()))
		e.s = NewServer(e.db, Options{}) // its own default is another
		for _, m := range got {
			e.visible(url, m, 60)
		}
		time.Sleep(30 * time.Second)
		require.Empty(e, e.receive(url))
		e.delete(url, got[0])
		e.visible(url, got[1], 0)
		require.Equal(e, "a2", bodies(e.receive(url)))
	})
}

// TestQueueOfTheOtherKind: a queue is deleted and re-created with timeouts of the other kind. Receipt handles of the
// first queue then name messages that are gone, also on a server that has used the first queue.
func TestQueueOfTheOtherKind(t *testing.T) {
	kinds := choices[visibilityOf]
	for i, before := range kinds {
		after := kinds[1-i]
		bubble(t, Options{ReuseNames: true}, func(e *env) {
			other := &env{T: e.T, db: e.db, s: NewServer(e.db, Options{ReuseNames: true})}
			defer func() { require.NoError(e, other.s.Close(e.Context())) }()
			url := e.create("orders.fifo", visibilityOf, before)
			e.send(url, "a", "a1", "a2")
			old := other.receive(url)
			require.Equal(e, "a1 a2", bodies(old))
			e.call("DeleteQueue", object{"QueueUrl": url})
			time.Sleep(3 * time.Second)
			e.create("orders.fifo", visibilityOf, after)
			e.send(url, "a", "b1", "b2")
			for _, s := range []*env{e, other} {
				for _, m := range old {
					s.delete(url, m)
					_, text := s.refused("ChangeMessageVisibility",
						object{"QueueUrl": url, "ReceiptHandle": m.ReceiptHandle, "VisibilityTimeout": 0})
					require.Contains(e, text, "Message does not exist")
				}
			}
			got := other.receive(url)
			require.Equal(e, "b1 b2", bodies(got), "%s, then %s", before, after)
			e.delete(url, got...)
		})
	}
}

// TestVisibilityOfQueues: what has a timeout of its own is said when a queue is made, by its attribute or by the
// server's setting, and then it stays.
func TestVisibilityOfQueues(t *testing.T) {
	inItemKind(t, func(e *env) {
		of := func(url string) any {
			answer := e.call("GetQueueAttributes", object{"QueueUrl": url, "AttributeNames": []string{visibilityOf}})
			all, _ := answer["Attributes"].(object) // absent, if there is none
			return all[visibilityOf]
		}
		mine := e.create("mine.fifo")
		require.Equal(e, "item", of(mine))
		require.NotContains(e, e.attributes(mine), visibilityOf, "All has AWS's attributes alone")
		_, body := e.query("Action=CreateQueue&QueueName=theirs.fifo&Attribute.1.Name=FifoQueue" +
			"&Attribute.1.Value=true&Attribute.2.Name=fdbfifo.Visibility&Attribute.2.Value=claim")
		require.Contains(e, body, "/theirs.fifo</QueueUrl>")
		theirs := e.create("theirs.fifo", contentBased, "false") // without saying it again
		require.Equal(e, "claim", of(theirs))
		code, text := e.refused("CreateQueue",
			object{"QueueName": "theirs.fifo", "Attributes": object{fifoQueue: "true", visibilityOf: "item"}})
		require.Equal(e, "QueueNameExists", code)
		require.Contains(e, text, "a different value for attribute fdbfifo.Visibility")
		for value, reason := range map[string]string{"claim": "It is fixed when the queue is made.", "": visibilityOf} {
			code, text = e.refused("SetQueueAttributes",
				object{"QueueUrl": mine, "Attributes": object{visibilityOf: value, delaySeconds: "7"}})
			require.Equal(e, "InvalidAttributeValue", code)
			require.Contains(e, text, reason)
		}
		e.call("SetQueueAttributes",
			object{"QueueUrl": mine, "Attributes": object{visibilityOf: "item", visibilityTimeout: "77"}})
		require.Equal(e, "item", of(mine))
		require.Equal(e, "0", e.attributes(mine)[delaySeconds])
		require.Equal(e, "77", e.attributes(mine)[visibilityTimeout])
		require.Nil(e, of(e.create("jobs")), "a standard queue has none")

		declared, err := ReadQueues(strings.NewReader(`[{"name": "mine.fifo", "attributes": {"DelaySeconds": 1}},
			{"name": "new.fifo", "attributes": {"fdbfifo.Visibility": "claim"}}]`))
		require.NoError(e, err)
		require.NoError(e, e.s.Declare(e.Context(), declared))
		require.Equal(e, "claim", of("new.fifo"))
		require.Equal(e, "item", of(mine))
		declared[1].Attributes[visibilityOf] = "item"
		var refused *RefusedError
		require.ErrorAs(e, e.s.Declare(e.Context(), declared), &refused)
	})
}

// TestBatchInAnyOrder: a batch that returns messages of one receive does so in whatever order it names them. The
// messages come again in the order of the group.
func TestBatchInAnyOrder(t *testing.T) {
	inBothKinds(t, func(e *env) {
		for i, order := range [][]int{{0, 1, 2}, {2, 1, 0}, {1, 2, 0}} {
			for j, timeouts := range [][]int{{0, 0, 0}, {9, 0, 0}, {9, 9, 0}} {
				url := e.create(fmt.Sprintf("orders-%d-%d.fifo", i, j))
				e.send(url, "a", "0", "1", "2")
				got := e.receive(url)
				entries := make([]object, len(order))
				for at, n := range order {
					entries[at] = object{
						"Id": fmt.Sprint(n), "ReceiptHandle": got[n].ReceiptHandle, "VisibilityTimeout": timeouts[n],
					}
				}
				done := e.call("ChangeMessageVisibilityBatch", object{"QueueUrl": url, "Entries": entries})
				require.Empty(e, done["Failed"], "%v %v", order, timeouts)
				time.Sleep(10 * time.Second)
				require.Equal(e, "0 1 2", bodies(e.receive(url)), "%v %v", order, timeouts)
			}
		}
	})
}

// TestCountsOfManyMessages: the counts of a standard queue are right also if more messages are in flight or delayed
// than the layer looks at one by one.
func TestCountsOfManyMessages(t *testing.T) {
	inItemKind(t, func(e *env) {
		const all, batch = 10_500, 500
		url := e.create("jobs")
		q, err := layer.Open(e.Context(), e.db, nil, "jobs", layer.Options{})
		require.NoError(e, err)
		defer q.Close(e.Context())
		send := func(delay time.Duration) {
			messages := make([]layer.Message, batch)
			for i := range messages {
				messages[i] = layer.Message{Body: []byte("b"), Alone: true, Tenant: noTenant, Delay: delay}
			}
			for range all / batch {
				_, err := q.Enqueue(e.Context(), messages...)
				require.NoError(e, err)
			}
		}
		send(0)
		for got := 0; got < all; {
			o := layer.ReceiveOptions{Max: batch, Lease: time.Hour, CountExpired: true}
			claims, err := q.Receive(e.Context(), o)
			require.NoError(e, err)
			got += len(claims)
		}
		require.Equal(e, fmt.Sprint("0 visible, ", all, " in flight"), e.numbers(url))
		e.call("PurgeQueue", object{"QueueUrl": url})
		send(time.Hour)
		e.send(url, "", "now")
		require.Equal(e, "1 visible, 0 in flight", e.numbers(url))
		require.Equal(e, fmt.Sprint(all), e.attributes(url)[counted[1]])
	})
}
