package sqs

import (
	"bytes"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// failingDB fails a commit if fails returns an error for the call. The commit is not applied.
type failingDB struct {
	kv.DB
	fails func(call string) error
}

func (d failingDB) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := d.DB.Begin(o)
	return failingTx{tx, func() error { return d.fails(o.Call) }}, err
}

type failingTx struct {
	kv.ManagedTx
	fails func() error
}

func (t failingTx) Commit() kv.Future[struct{}] {
	if err := t.fails(); err != nil {
		return kv.Done(struct{}{}, err)
	}
	return t.ManagedTx.Commit()
}

// TestServerSaysTrouble: the log of a server says that the database keeps the server waiting, and which call waits: at
// most once in ten seconds for all queues, requests and the server's own work. At the end the log says that the
// database answers again.
func TestServerSaysTrouble(t *testing.T) {
	var log bytes.Buffer
	var behind atomic.Bool
	fails := func(string) error {
		if behind.Load() {
			return &kv.Error{Code: kv.CodeProcessBehind}
		}
		return nil
	}
	open := func(t *testing.T) kv.DB { return failingDB{inMemory(t), fails} }
	bubbleOn(t, open, Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}, func(e *env) {
		a, b := e.create("a"), e.create("b")
		behind.Store(true)
		for _, url := range []string{a, b} {
			go e.do(post("SendMessage", object{"QueueUrl": url, "MessageBody": "x"}))
			go e.do(post("CreateQueue", object{"QueueName": "c"}))
		}
		time.Sleep(65 * time.Second)
		behind.Store(false)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		said := strings.Count(log.String(), "sqs: the database keeps a transaction waiting")
		require.Contains(t, []int{6, 7}, said, log.String())
		require.NotContains(t, log.String(), `call=""`)
		require.Contains(t, log.String(), "(1037)")
		require.Equal(t, 1, strings.Count(log.String(), "sqs: the database answers again"))
	})
}

// TestNoVisibilityAtAll: a receive with a visibility timeout of 0 makes the messages of all its groups visible again,
// also if that fails for one group.
func TestNoVisibilityAtAll(t *testing.T) {
	var refused atomic.Bool
	fails := func(call string) error {
		if call == string(layer.VerbNack) && refused.CompareAndSwap(false, true) {
			return &kv.Error{Code: kv.CodeClientInvalidOperation}
		}
		return nil
	}
	open := func(t *testing.T) kv.DB { return failingDB{inMemory(t), fails} }
	bubbleOn(t, open, Options{}, func(e *env) {
		url := e.create("orders.fifo")
		for _, group := range []string{"a", "b", "c"} {
			e.send(url, group, group)
		}
		status, _, body := e.do(post("ReceiveMessage", object{
			"QueueUrl": url, "MaxNumberOfMessages": 10, "VisibilityTimeout": 0,
		}))
		require.True(e, refused.Load())
		require.GreaterOrEqual(e, status, 500, body)
		require.Equal(e, "2 visible, 1 in flight", e.numbers(url))
	})
}
