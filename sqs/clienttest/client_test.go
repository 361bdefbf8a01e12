// Package clienttest has the tests of package sqs with AWS's own SDK for Go, and with clients in other languages
// where they are installed. It is a module of its own, because the SDK is nothing that the command needs.
package clienttest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"os/exec"
	"path/filepath"
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
	good := newClient(endpoint, "AKIDA", "secret/a+b")
	url := create(t, good, "jobs", nil)
	_, err = good.SendMessage(t.Context(), &client.SendMessageInput{QueueUrl: url, MessageBody: aws.String("b")})
	require.NoError(t, err)
	got, err := newClient(endpoint, "AKIDB", "other").ReceiveMessage(t.Context(), &client.ReceiveMessageInput{
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
	_, err = good.ListQueues(t.Context(), nil, client.WithSigV4SigningName("s3"))
	require.Error(t, err, "signed for another service")
	unsigned, err := http.Get(endpoint + "/?Action=ListQueues")
	require.NoError(t, err)
	require.NoError(t, unsigned.Body.Close())
	require.Equal(t, http.StatusForbidden, unsigned.StatusCode)
	mu.Lock()
	now = now.Add(-20 * time.Minute)
	mu.Unlock()
	_, err = good.ListQueues(t.Context(), nil, once)
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

// server is fdbfifo serve as a process, on a folder.
type server struct {
	binary, folder, address string
	process                 *exec.Cmd
}

func build(t *testing.T) string {
	binary := filepath.Join(t.TempDir(), "fdbfifo")
	make := exec.Command("go", "build", "-o", binary, "./cmd/fdbfifo")
	make.Dir = "../.."
	out, err := make.CombinedOutput()
	require.NoError(t, err, "%s", out)
	return binary
}

// start starts the server, at the address that it had before if it had one, and waits until it listens.
func (s *server) start() error {
	s.process = exec.Command(s.binary, "serve", "--sqs", s.address, "--engine", "disk:"+s.folder)
	notices, err := s.process.StderrPipe()
	if err != nil {
		return err
	}
	if err := s.process.Start(); err != nil {
		return err
	}
	lines := bufio.NewScanner(notices)
	for lines.Scan() {
		if _, at, ok := strings.Cut(lines.Text(), "serving SQS at http://"); ok {
			s.address = at
			go func() {
				for lines.Scan() {
				}
			}()
			return nil
		}
	}
	return errors.Join(errors.New("the server has ended"), s.process.Wait())
}

func (s *server) kill() { _ = s.process.Process.Kill(); _ = s.process.Wait() }

// TestKilled: eight workers whose handlers fail now and then, and a server on disk that is killed by SIGKILL again
// and again: each group is handled in order, one message at a time, and nothing is lost.
func TestKilled(t *testing.T) {
	if testing.Short() {
		t.Skip("kills processes for a while")
	}
	const groups, each, kills = 6, 25, 6
	s := &server{binary: build(t), folder: t.TempDir(), address: "127.0.0.1:0"}
	require.NoError(t, s.start())
	c := newClient("http://"+s.address, "x", "x")
	url := create(t, c, "orders.fifo", map[string]string{"VisibilityTimeout": "3"})
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	again := func(do func() error) bool { // an answer may be lost with the server
		for ctx.Err() == nil {
			if do() == nil {
				return true
			}
			time.Sleep(50 * time.Millisecond)
		}
		return false
	}
	var workers, senders sync.WaitGroup
	for g := range groups {
		senders.Go(func() {
			for i := range each {
				again(func() error {
					_, err := c.SendMessage(ctx, &client.SendMessageInput{
						QueueUrl:       url,
						MessageGroupId: aws.String(fmt.Sprint(g)),
						MessageBody:    aws.String(fmt.Sprintf("%d:%03d", g, i)),
					})
					return err
				})
			}
		})
	}
	handled := newLedger()
	finished, finish := context.WithCancel(ctx)
	for w := range 8 {
		workers.Go(func() {
			for finished.Err() == nil {
				work(finished, c, url, handled, w)
			}
		})
	}
	for range kills {
		time.Sleep(1500 * time.Millisecond)
		s.kill()
		require.NoError(t, s.start())
	}
	senders.Wait()
	for ctx.Err() == nil && !empty(ctx, c, url) {
		time.Sleep(100 * time.Millisecond)
	}
	finish()
	workers.Wait()
	s.kill()
	require.NoError(t, ctx.Err(), "not all was handled in time")
	require.Empty(t, handled.faults)
	require.Len(t, handled.begun, groups*each)
}

// work receives once, and handles what has come, as long as it is surely its own.
func work(ctx context.Context, c *client.Client, url *string, handled *ledger, worker int) {
	asked := time.Now()
	got, err := c.ReceiveMessage(ctx, &client.ReceiveMessageInput{QueueUrl: url, MaxNumberOfMessages: 3}, once)
	if err != nil || len(got.Messages) == 0 {
		time.Sleep(50 * time.Millisecond)
		return
	}
	for _, m := range got.Messages {
		if time.Since(asked) > time.Second {
			return
		}
		if handled.fails(worker, *m.Body) { // those behind it in its group come again too
			_, _ = c.ChangeMessageVisibility(ctx, &client.ChangeMessageVisibilityInput{
				QueueUrl: url, ReceiptHandle: m.ReceiptHandle, VisibilityTimeout: 0,
			}, once)
			return
		}
		handled.begin(*m.Body)
		_, err := c.DeleteMessage(ctx, &client.DeleteMessageInput{QueueUrl: url, ReceiptHandle: m.ReceiptHandle}, once)
		if err != nil {
			return
		}
		handled.done(*m.Body)
	}
}

// empty reports whether there are no messages in the queue.
func empty(ctx context.Context, c *client.Client, url *string) bool {
	got, err := c.GetQueueAttributes(ctx, &client.GetQueueAttributesInput{
		QueueUrl: url, AttributeNames: []types.QueueAttributeName{"All"}})
	if err != nil {
		return false
	}
	return got.Attributes["ApproximateNumberOfMessages"] == "0" &&
		got.Attributes["ApproximateNumberOfMessagesNotVisible"] == "0"
}
