package sqs

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestHalfClosedConnections: a client that ends its side of the connection after its request gets the true answer, or
// none. An empty answer with status 200 would say that a message is deleted.
func TestHalfClosedConnections(t *testing.T) {
	const clients = 20
	s := NewServer(slowDB{inMemory(t), 5 * time.Millisecond}, Options{}) // a call outlasts the end of its input
	defer func() { require.NoError(t, s.db.Close()) }()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	served := make(chan error, 1)
	go func() { served <- s.Serve(ctx, l, 0) }()
	defer func() { stop(); require.NoError(t, <-served) }()
	ask := func(r *http.Request) (answer string) {
		c, err := net.Dial("tcp", l.Addr().String())
		if err == nil {
			err = r.Write(c)
		}
		if err == nil {
			err = c.(*net.TCPConn).CloseWrite()
		}
		if err == nil {
			var all []byte
			all, _ = io.ReadAll(c) // an error is a connection without an answer
			answer, err = string(all), c.Close()
		}
		if err != nil {
			return err.Error()
		}
		return answer
	}
	require.Contains(t, ask(post("CreateQueue", object{"QueueName": "jobs"})), "QueueUrl")
	answers := make([]string, clients)
	var asking sync.WaitGroup
	for i := range answers {
		asking.Go(func() { answers[i] = ask(post("SendMessage", object{"QueueUrl": "jobs", "MessageBody": "b"})) })
	}
	asking.Wait()
	for _, answer := range answers {
		require.Contains(t, answer, "MessageId")
	}
	counted := object{"QueueUrl": "jobs", "AttributeNames": []string{"ApproximateNumberOfMessages"}}
	require.Contains(t, ask(post("GetQueueAttributes", counted)), `"20"`)
	for range clients {
		ready, err := http.NewRequest(http.MethodGet, "http://localhost"+readyPath, nil)
		require.NoError(t, err)
		require.Contains(t, ask(ready), "200 OK")
	}
	for range clients {
		require.Contains(t, ask(post("ReceiveMessage", object{"QueueUrl": "jobs"})), `"Body":"b"`)
	}
	require.Contains(t, ask(post("CreateQueue", object{"QueueName": "empty"})), "QueueUrl")
	waits := ask(post("ReceiveMessage", object{"QueueUrl": "empty", "WaitTimeSeconds": 20}))
	require.True(t, waits == "" || strings.HasSuffix(waits, "{}"), waits)
}
