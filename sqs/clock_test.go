package sqs

import (
	"encoding/base64"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestAServersClockAYearAhead: a server whose clock is a year ahead stores times, and dies. No time keeps a name, a
// purge or a move task from the other servers for longer than the time of a right clock, nor receipt handles unsigned.
func TestAServersClockAYearAhead(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		right := e.s
		ahead := NewServer(e.db, Options{Now: func() time.Time { return time.Now().Add(365 * 24 * time.Hour) }})
		dead, to := e.create("dead"), e.create("to")
		arn := e.attributes(dead)["QueueArn"].(string)
		e.create("orders", redrivePolicy, fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":2}`, arn))
		for i := range 100 {
			e.send(dead, "", fmt.Sprint(i))
		}
		gone := e.create("gone")
		e.s = ahead
		e.call("PurgeQueue", object{"QueueUrl": to})
		e.call("DeleteQueue", object{"QueueUrl": gone})
		e.call("StartMessageMoveTask", object{
			"SourceArn": arn, "DestinationArn": e.attributes(to)["QueueArn"], "MaxNumberOfMessagesPerSecond": 1,
		})
		time.Sleep(5 * time.Second)
		require.NoError(e, ahead.Close(e.Context()))
		e.s = right
		time.Sleep(2 * time.Minute)
		e.create("gone")
		e.call("PurgeQueue", object{"QueueUrl": to})
		task := e.call("ListMessageMoveTasks", object{"SourceArn": arn})["Results"].([]any)[0].(object)
		require.Equal(e, "COMPLETED", task["Status"])
	})
}

// TestKeyOfAClockAYearAhead: a server whose clock is a year ahead has made the key of receipt handles in a database of
// an earlier version. The other servers sign their handles at once. For twelve hours, in which a message of before may
// be in flight, they accept handles that are not signed, and then no more.
func TestKeyOfAClockAYearAhead(t *testing.T) {
	inItemKind(t, func(e *env) {
		url := e.create("orders.fifo")
		year := 365 * 24 * time.Hour
		k := receiptKey{Key: make([]byte, receiptKeySize), Since: time.Now().Add(year + plainFor).UnixMilli()}
		e.set(e.s.key("receipts"), marshal(k))
		e.s.signs.Store(nil)
		e.send(url, "a", "a1", "a2")
		got := e.receive(url, "VisibilityTimeout", 43_200)
		require.Equal(e, "a1 a2", bodies(got))
		plain := make([][]byte, len(got))
		for i, m := range got {
			h, b := e.receipt("orders.fifo", m.ReceiptHandle)
			require.EqualValues(e, signedReceipt, b[0])
			plain[i] = append([]byte{plainReceipt}, h.pack()...)
		}
		time.Sleep(11 * time.Hour)
		e.delete(url, message{ReceiptHandle: base64.StdEncoding.EncodeToString(plain[0])})
		time.Sleep(2 * time.Hour)
		e.notReceipt(url, plain[1], "not signed")
		got = e.receive(url)
		require.Equal(e, "a2", bodies(got))
		e.delete(url, got...)
	})
}

// TestServersWithWrongClocks: a server whose clock is wrong delivers a message, or deletes it, or changes its
// visibility. In time the server does what it is asked, and no message becomes a dead letter. If the timeout is over, a
// server whose clock is ahead refuses, as one with a right clock does.
func TestServersWithWrongClocks(t *testing.T) {
	for name, off := range map[string]time.Duration{
		"a minute ahead": time.Minute, "a day ahead": 24 * time.Hour, "a year ahead": 365 * 24 * time.Hour,
		"a minute behind": -time.Minute, "a year behind": -365 * 24 * time.Hour,
	} {
		for _, delivers := range []bool{true, false} {
			t.Run(fmt.Sprintf("%s, delivers=%t", name, delivers), func(t *testing.T) {
				inBothKinds(t, func(e *env) {
					wrong, end := e.withClock(func() time.Time { return time.Now().Add(off) })
					defer end()
					if delivers {
						e.settlesInTime(wrong)
					} else {
						wrong.settlesInTime(e)
					}
				})
			})
		}
	}
}

// TestRepeatedReceiveOfAnotherClock: a receive is repeated under its ReceiveRequestAttemptId on a server whose clock is
// behind. Its messages have their whole timeout from then on: no other client gets one, and a delete is taken.
func TestRepeatedReceiveOfAnotherClock(t *testing.T) {
	for name, off := range map[string]time.Duration{
		"10 s behind": -10 * time.Second, "a minute behind": -time.Minute, "an hour behind": -time.Hour,
		"10 hours behind": -10 * time.Hour,
	} {
		t.Run(name, func(t *testing.T) {
			inBothKinds(t, func(e *env) {
				wrong, end := e.withClock(func() time.Time { return time.Now().Add(off) })
				defer end()
				url := e.create("orders.fifo", visibilityTimeout, "20")
				e.send(url, "a", "a1")
				e.send(url, "b", "b1")
				require.Equal(e, "a1 b1", bodies(e.receive(url, "ReceiveRequestAttemptId", "once")))
				time.Sleep(15 * time.Second)
				got := wrong.receive(url, "ReceiveRequestAttemptId", "once")
				require.Equal(e, "a1 b1", bodies(got))
				time.Sleep(9 * time.Second) // the first timeout is over
				require.Empty(e, bodies(e.receive(url)))
				e.delete(url, got[0])
				wrong.delete(url, got[1])
				require.Equal(e, "0 visible, 0 in flight", e.numbers(url))
			})
		})
	}
}

// withClock is e with another server of the database, until end.
func (e *env) withClock(now func() time.Time) (other *env, end func()) {
	o := e.s.options
	o.Now = now
	other = &env{T: e.T, db: e.db, s: NewServer(e.db, o)}
	return other, func() { require.NoError(e, other.s.Close(e.Context())) }
}

// settlesInTime holds the server of e to settling in time what another server has delivered.
func (e *env) settlesInTime(other *env) {
	e.Helper()
	dead := other.create("dead.fifo")
	arn := other.attributes(dead)["QueueArn"].(string)
	url := other.create("orders.fifo", visibilityTimeout, "20",
		redrivePolicy, fmt.Sprintf(`{"deadLetterTargetArn":%q,"maxReceiveCount":2}`, arn))
	batch := func(messages []message) (entries []object) {
		for i, m := range messages {
			entries = append(entries, object{"Id": fmt.Sprint(i), "ReceiptHandle": m.ReceiptHandle})
		}
		return entries
	}
	other.send(url, "a", "a1", "a2", "a3", "a4")
	other.send(url, "b", "b1")
	got := other.receive(url)
	require.Equal(e, "a1 a2 a3 a4 b1", bodies(got))
	time.Sleep(15 * time.Second)
	e.visible(url, got[4], 43_100)
	e.delete(url, got[0])
	answer := e.call("DeleteMessageBatch", object{"QueueUrl": url, "Entries": batch(got[1:3])})
	require.Empty(e, answer["Failed"])
	e.delete(url, got[3:]...)
	require.Equal(e, "0 visible, 0 in flight", other.numbers(url))

	other.send(url, "c", "c1", "c2")
	got = other.receive(url, "MaxNumberOfMessages", 1)
	time.Sleep(15 * time.Second)
	e.visible(url, got[0], 0)
	got = other.receive(url)
	require.Equal(e, "c1 c2", bodies(got))
	require.Equal(e, "2 1", counts(got))
	time.Sleep(15 * time.Second)
	e.delete(url, got[0])
	if e.s.options.Now().After(other.s.options.Now()) {
		time.Sleep(6 * time.Second)
		_, text := e.refused("DeleteMessage", object{"QueueUrl": url, "ReceiptHandle": got[1].ReceiptHandle})
		require.Contains(e, text, "Reason: The receipt handle has expired.")
		_, text = e.refused("ChangeMessageVisibility",
			object{"QueueUrl": url, "ReceiptHandle": got[1].ReceiptHandle, "VisibilityTimeout": 9})
		require.Contains(e, text, "not available for visibility timeout change")
		_, text = e.refused("ChangeMessageVisibility",
			object{"QueueUrl": url, "ReceiptHandle": got[1].ReceiptHandle, "VisibilityTimeout": 43_190})
		require.Contains(e, text, "is invalid")
		got[1] = other.receive(url)[0]
	}
	e.delete(url, got[1])
	require.Equal(e, "0 visible, 0 in flight", other.numbers(dead))
}

// TestAServersClockSteps: the clock of a server steps between a receive and a delete.
func TestAServersClockSteps(t *testing.T) {
	inBothKinds(t, func(e *env) {
		var off atomic.Int64
		steps, end := e.withClock(func() time.Time { return time.Now().Add(time.Duration(off.Load())) })
		defer end()
		url := steps.create("orders.fifo", visibilityTimeout, "20")
		for i, step := range []time.Duration{time.Minute, -2 * time.Hour, 48 * time.Hour, -365 * 24 * time.Hour} {
			steps.send(url, "a", fmt.Sprint(i))
			got := steps.receive(url)
			require.Equal(e, fmt.Sprint(i), bodies(got))
			time.Sleep(15 * time.Second)
			off.Add(int64(step))
			steps.delete(url, got...)
		}
	})
}
