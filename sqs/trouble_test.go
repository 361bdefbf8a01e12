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

// behindDB fails all commits with an error that is tried again, while it is behind.
type behindDB struct {
	kv.DB
	behind *atomic.Bool
}

func (d behindDB) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := d.DB.Begin(o)
	return behindTx{tx, d.behind}, err
}

type behindTx struct {
	kv.ManagedTx
	behind *atomic.Bool
}

func (t behindTx) Commit() kv.Future[struct{}] {
	if t.behind.Load() {
		return kv.Done(struct{}{}, &kv.Error{Code: kv.CodeProcessBehind})
	}
	return t.ManagedTx.Commit()
}

// TestServerSaysTrouble: the log of a server says that the database keeps the server waiting, and which call waits: at
// most once in ten seconds for all queues, requests and the server's own work. At the end the log says that the
// database answers again.
func TestServerSaysTrouble(t *testing.T) {
	var log bytes.Buffer
	var behind atomic.Bool
	open := func(t *testing.T) kv.DB { return behindDB{inMemory(t), &behind} }
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

// refusingDB refuses the first commit of a nack.
type refusingDB struct {
	kv.DB
	refused *atomic.Bool
}

func (d refusingDB) Begin(o kv.TxOptions) (kv.ManagedTx, error) {
	tx, err := d.DB.Begin(o)
	if err == nil && o.Call == string(layer.VerbNack) {
		tx = refusingTx{tx, d.refused}
	}
	return tx, err
}

type refusingTx struct {
	kv.ManagedTx
	refused *atomic.Bool
}

func (t refusingTx) Commit() kv.Future[struct{}] {
	if t.refused.CompareAndSwap(false, true) {
		return kv.Done(struct{}{}, &kv.Error{Code: kv.CodeClientInvalidOperation})
	}
	return t.ManagedTx.Commit()
}

// TestNoVisibilityAtAll: a receive with a visibility timeout of 0 makes the messages of all its groups visible again,
// also if that fails for one group.
func TestNoVisibilityAtAll(t *testing.T) {
	var refused atomic.Bool
	open := func(t *testing.T) kv.DB { return refusingDB{inMemory(t), &refused} }
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
