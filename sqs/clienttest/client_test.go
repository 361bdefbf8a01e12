// Package clienttest has the tests of package sqs with AWS's own SDK for Go, and with clients in other languages
// where they are installed. It is a module of its own, because the SDK is nothing that the command needs.
package clienttest

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	client "github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv/embedded"
	"fdbfifo/sqs"
)

// serve starts a server in memory, and returns its address.
func serve(t *testing.T, o sqs.Options) string {
	db := embedded.OpenMemory(embedded.Options{})
	t.Cleanup(func() { require.NoError(t, db.Close()) })
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- sqs.NewServer(db, o).Serve(ctx, l, 0) }()
	t.Cleanup(func() { stop(); require.NoError(t, <-done) })
	return "http://" + l.Addr().String()
}

// once lets a client try a request once.
func once(o *client.Options) { o.RetryMaxAttempts = 1 }

func newClient(endpoint, access, secret string) *client.Client {
	return client.New(client.Options{
		BaseEndpoint: &endpoint, Region: "us-east-1",
		Credentials: credentials.NewStaticCredentialsProvider(access, secret, ""),
	})
}

// create makes a queue. FIFO queues take the body for deduplication.
func create(t *testing.T, c *client.Client, name string, attributes map[string]string) *string {
	t.Helper()
	all := map[string]string{}
	if strings.HasSuffix(name, ".fifo") {
		all["FifoQueue"], all["ContentBasedDeduplication"] = "true", "true"
	}
	for k, v := range attributes {
		all[k] = v
	}
	made, err := c.CreateQueue(t.Context(), &client.CreateQueueInput{QueueName: &name, Attributes: all})
	require.NoError(t, err)
	return made.QueueUrl
}

// TestGoSDK: what programs do with the SDK for Go, which verifies the checksums of all that it sends and receives.
func TestGoSDK(t *testing.T) {
	ctx, c := t.Context(), newClient(serve(t, sqs.Options{}), "x", "x")
	url := create(t, c, "orders.fifo", nil)
	sent, err := c.SendMessage(ctx, &client.SendMessageInput{
		QueueUrl: url, MessageBody: aws.String("<a & b>\r\n\U0001F600"), MessageGroupId: aws.String("g"),
		MessageAttributes: map[string]types.MessageAttributeValue{
			"text":   {DataType: aws.String("String"), StringValue: aws.String("v")},
			"number": {DataType: aws.String("Number.java.lang.Long"), StringValue: aws.String("12")},
			"binary": {DataType: aws.String("Binary.png"), BinaryValue: []byte{0, 1, 255}},
		},
	})
	require.NoError(t, err)
	var entries []types.SendMessageBatchRequestEntry
	for i := range 5 {
		id := aws.String(fmt.Sprint(i))
		entries = append(entries, types.SendMessageBatchRequestEntry{
			Id: id, MessageBody: id, MessageGroupId: aws.String("g"),
		})
	}
	batch, err := c.SendMessageBatch(ctx, &client.SendMessageBatchInput{QueueUrl: url, Entries: entries})
	require.NoError(t, err)
	require.Len(t, batch.Successful, 5)
	got, err := c.ReceiveMessage(ctx, &client.ReceiveMessageInput{
		QueueUrl: url, MaxNumberOfMessages: 10, MessageAttributeNames: []string{"All"},
		MessageSystemAttributeNames: []types.MessageSystemAttributeName{"All"},
	})
	require.NoError(t, err)
	require.Len(t, got.Messages, 6)
	first := got.Messages[0]
	require.Equal(t, "<a & b>\r\n\U0001F600", *first.Body)
	require.Equal(t, []byte{0, 1, 255}, first.MessageAttributes["binary"].BinaryValue)
	require.Equal(t, *sent.MessageId, *first.MessageId)
	require.Equal(t, *sent.SequenceNumber, first.Attributes["SequenceNumber"])
	var deletes []types.DeleteMessageBatchRequestEntry
	for _, m := range got.Messages {
		deletes = append(deletes, types.DeleteMessageBatchRequestEntry{Id: m.MessageId, ReceiptHandle: m.ReceiptHandle})
	}
	deleted, err := c.DeleteMessageBatch(ctx, &client.DeleteMessageBatchInput{QueueUrl: url, Entries: deletes})
	require.NoError(t, err)
	require.Len(t, deleted.Successful, 6)

	_, err = c.SendMessage(ctx, &client.SendMessageInput{QueueUrl: aws.String("none"), MessageBody: aws.String("b")})
	var none *types.QueueDoesNotExist
	require.ErrorAs(t, err, &none)
	_, err = c.DeleteMessage(ctx, &client.DeleteMessageInput{QueueUrl: url, ReceiptHandle: aws.String("x")})
	var bad *types.ReceiptHandleIsInvalid
	require.ErrorAs(t, err, &bad)
	listed, err := c.ListQueues(ctx, &client.ListQueuesInput{QueueNamePrefix: aws.String("ord")})
	require.NoError(t, err)
	require.Equal(t, []string{*url}, listed.QueueUrls)
}

// TestLongPoll: a receive that waits has a message as soon as it is sent, and returns when the server is stopped.
func TestLongPoll(t *testing.T) {
	ctx, c := t.Context(), newClient(serve(t, sqs.Options{}), "x", "x")
	url := create(t, c, "jobs", nil)
	bodies := make(chan string)
	go func() {
		got, err := c.ReceiveMessage(ctx, &client.ReceiveMessageInput{QueueUrl: url, WaitTimeSeconds: 20})
		if err != nil || len(got.Messages) != 1 {
			bodies <- fmt.Sprint(err)
			return
		}
		bodies <- *got.Messages[0].Body
	}()
	time.Sleep(100 * time.Millisecond) // as a rule it waits by now
	_, err := c.SendMessage(ctx, &client.SendMessageInput{QueueUrl: url, MessageBody: aws.String("b")})
	require.NoError(t, err)
	require.Equal(t, "b", <-bodies)
}

// TestKeys: requests of the SDK are verified by their signatures.
func TestKeys(t *testing.T) {
	keys, err := sqs.ReadKeys(strings.NewReader("# a comment\nAKIDA secret/a+b 111122223333\n\nAKIDB other\n"))
	require.NoError(t, err)
	now, mu := time.Now(), sync.Mutex{}
	clock := func() time.Time { mu.Lock(); defer mu.Unlock(); return now }
	endpoint := serve(t, sqs.Options{Keys: keys, Now: clock})
	good, owner := newClient(endpoint, "AKIDA", "secret/a+b"), newClient(endpoint, "AKIDB", "other")
	url := create(t, owner, "jobs", nil)
	_, err = good.SendMessage(t.Context(), &client.SendMessageInput{QueueUrl: url, MessageBody: aws.String("b")})
	require.ErrorContains(t, err, "AccessDenied", "of another account")
	_, err = owner.AddPermission(t.Context(), &client.AddPermissionInput{
		QueueUrl: url, Label: aws.String("partner"), AWSAccountIds: []string{"111122223333"},
		Actions: []string{"SendMessage"},
	})
	require.NoError(t, err)
	_, err = good.SendMessage(t.Context(), &client.SendMessageInput{QueueUrl: url, MessageBody: aws.String("b")})
	require.NoError(t, err)
	got, err := owner.ReceiveMessage(t.Context(), &client.ReceiveMessageInput{
		QueueUrl: url, MessageSystemAttributeNames: []types.MessageSystemAttributeName{"SenderId"},
	})
	require.NoError(t, err)
	require.Equal(t, "111122223333", got.Messages[0].Attributes["SenderId"])
	for code, c := range map[string]*client.Client{
		"SignatureDoesNotMatch": newClient(endpoint, "AKIDA", "wrong"),
		"InvalidClientTokenId":  newClient(endpoint, "AKIDC", "secret/a+b"),
	} {
		_, err = c.ListQueues(t.Context(), nil)
		require.ErrorContains(t, err, code)
	}
	_, err = owner.ListQueues(t.Context(), nil, client.WithSigV4SigningName("s3"))
	require.Error(t, err, "signed for another service")
	unsigned, err := http.Get(endpoint + "/?Action=ListQueues")
	require.NoError(t, err)
	require.NoError(t, unsigned.Body.Close())
	require.Equal(t, http.StatusForbidden, unsigned.StatusCode)
	mu.Lock()
	now = now.Add(-20 * time.Minute)
	mu.Unlock()
	_, err = owner.ListQueues(t.Context(), nil, once)
	require.ErrorContains(t, err, "Signature expired")
}

// tamper changes each request that it sends on.
type tamper struct {
	to     string
	change func(r *http.Request)
}

func (p tamper) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	out := r.Clone(r.Context())
	p.change(out)
	out.RequestURI, out.URL.Scheme, out.URL.Host = "", "http", p.to
	answer, err := http.DefaultTransport.RoundTrip(out)
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadGateway)
		return
	}
	defer answer.Body.Close()
	w.WriteHeader(answer.StatusCode)
}

// TestTampered: a signed request that was changed on its way is refused.
func TestTampered(t *testing.T) {
	endpoint := serve(t, sqs.Options{Keys: map[string]sqs.Key{"AKIDA": {Secret: "s"}}})
	for name, change := range map[string]func(r *http.Request){
		"body":   func(r *http.Request) { r.Body = http.NoBody; r.ContentLength = 0 },
		"query":  func(r *http.Request) { r.URL.RawQuery = "a=b" },
		"target": func(r *http.Request) { r.Header.Set("X-Amz-Target", "AmazonSQS.ListQueueTags") },
		"date": func(r *http.Request) {
			r.Header.Set("X-Amz-Date", time.Now().UTC().Add(time.Minute).Format("20060102T150405Z"))
		},
		"nobody": func(r *http.Request) { r.Header.Del("Authorization") },
		"scheme": func(r *http.Request) { r.Header.Set("Authorization", "Basic YTpi") },
	} {
		t.Run(name, func(t *testing.T) {
			proxy := httptest.NewServer(tamper{strings.TrimPrefix(endpoint, "http://"), change})
			defer proxy.Close()
			_, err := newClient(proxy.URL, "AKIDA", "s").ListQueues(t.Context(), nil, once)
			require.Error(t, err)
		})
	}
}
