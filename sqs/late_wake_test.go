package sqs

import (
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
)

// TestLongPollBesideACommit (G5): a long poll begins while a request that makes a message visible is being committed.
// The transaction of the request has looked for receives that wait, and found none. It is answered as late again at
// most, not at the server's next poll, which comes after 2.25 s at the earliest.
func TestLongPollBesideACommit(t *testing.T) {
	send := func(e *env, url string, _ []message) { e.send(url, "a", "a3") }
	visible := func(e *env, url string, got []message) {
		e.call("ChangeMessageVisibility", object{
			"QueueUrl": url, "ReceiptHandle": got[0].ReceiptHandle, "VisibilityTimeout": 0,
		})
	}
	remove := func(e *env, url string, got []message) { e.delete(url, got[0]) }
	for name, c := range map[string]struct {
		call   string // of the transaction that commits late
		bodies int    // sent before, and the first of them received
		does   func(e *env, url string, got []message)
		want   string
	}{
		"SendMessage":             {"enqueue", 0, send, "a3"},
		"ChangeMessageVisibility": {"nack", 1, visible, "a1"},
		"DeleteMessage":           {"ack", 2, remove, "a2"},
	} {
		for _, late := range []time.Duration{2 * time.Millisecond, 40 * time.Millisecond, 600 * time.Millisecond} {
			t.Run(name+"/"+late.String(), func(t *testing.T) {
				var held atomic.Bool
				hold := func(call string) error {
					if call == c.call && held.CompareAndSwap(true, false) {
						time.Sleep(late)
					}
					return nil
				}
				open := func(t *testing.T) kv.DB { return failingDB{DB: inMemory(t), fails: hold} }
				bubbleOn(t, open, Options{}, func(e *env) {
					url := e.create("orders.fifo")
					e.send(url, "a", []string{"a1", "a2"}[:c.bodies]...)
					got := e.receive(url, "MaxNumberOfMessages", 1)
					held.Store(true)
					answered := make(chan struct{})
					go func() { defer close(answered); c.does(e, url, got) }()
					synctest.Wait()
					require.False(t, held.Load(), "the commit is under way")
					begun := time.Now()
					require.Equal(t, c.want, bodies(e.receive(url, "WaitTimeSeconds", 20)))
					require.GreaterOrEqual(t, time.Since(begun), late)
					require.Less(t, time.Since(begun), 2*late+50*time.Millisecond)
					<-answered // the server closes after that
				})
			})
		}
	}
}
