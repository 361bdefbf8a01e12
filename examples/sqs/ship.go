package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/aws/aws-sdk-go-v2/service/sqs"
	"github.com/aws/aws-sdk-go-v2/service/sqs/types"
)

// order is the body of a message.
type order struct {
	Customer string `json:"customer"`
	Number   int    `json:"number"` // of the customer's orders, from 1 on
}

func newClient(endpoint string) *sqs.Client {
	return sqs.New(sqs.Options{
		BaseEndpoint: &endpoint, Region: "us-east-1",
		Credentials: credentials.NewStaticCredentialsProvider("x", "x", ""),
	})
}

// ship is the process of a worker: it ships what was packed, until ctx or stdin ends. It may be killed anywhere.
func ship(ctx context.Context, endpoint, url, books, name string, stdin io.Reader, stdout io.Writer) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		_, _ = io.Copy(io.Discard, stdin) // nothing is sent: stdin ends when the parent process ends
		stop()
	}()
	client := newClient(endpoint)
	fmt.Fprintln(stdout, "working")
	for ctx.Err() == nil {
		got, err := client.ReceiveMessage(ctx, &sqs.ReceiveMessageInput{
			QueueUrl: &url, MaxNumberOfMessages: 10, WaitTimeSeconds: 5,
		})
		if err != nil {
			time.Sleep(100 * time.Millisecond) // the server is away
			continue
		}
		failed := make(map[string]bool) // customers: what follows of theirs comes again too
		for _, m := range got.Messages {
			var o order
			if err := json.Unmarshal([]byte(*m.Body), &o); err != nil {
				return fmt.Errorf("body of a shipment: %w", err)
			}
			if !failed[o.Customer] {
				failed[o.Customer] = shipOne(ctx, client, url, books, name, m, o) != nil
			}
		}
	}
	return nil
}

func shipOne(ctx context.Context, c *sqs.Client, url, books, name string, m types.Message, o order) error {
	if err := write(filepath.Join(books, o.Customer), o.Number, name); err != nil {
		return err
	}
	_, err := c.DeleteMessage(ctx, &sqs.DeleteMessageInput{QueueUrl: &url, ReceiptHandle: m.ReceiptHandle})
	return err
}

// write writes a line into a book; one that says "again" if the book has the number already. The lock is for a worker
// that was thought dead, and goes on.
func write(book string, number int, name string) error {
	f, err := os.OpenFile(book, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close() // releases the lock
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return err
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	lines, err := parse(string(text))
	if err != nil {
		return err
	}
	e := entry{number: number, worker: name}
	for _, l := range lines {
		e.again = e.again || l.number == number
	}
	_, err = io.WriteString(f, e.String())
	return err
}

// create makes a FIFO queue.
func create(ctx context.Context, c *sqs.Client, name string, visibility time.Duration) (string, error) {
	made, err := c.CreateQueue(ctx, &sqs.CreateQueueInput{QueueName: &name, Attributes: map[string]string{
		"FifoQueue": "true", "VisibilityTimeout": strconv.Itoa(int(visibility / time.Second)),
	}})
	if err != nil {
		return "", err
	}
	return aws.ToString(made.QueueUrl), nil
}

// empty reports whether a queue has no messages, neither waiting nor in flight.
func empty(ctx context.Context, c *sqs.Client, url string) (bool, error) {
	got, err := c.GetQueueAttributes(ctx, &sqs.GetQueueAttributesInput{
		QueueUrl: &url, AttributeNames: []types.QueueAttributeName{types.QueueAttributeNameAll},
	})
	if err != nil {
		return false, err
	}
	return got.Attributes["ApproximateNumberOfMessages"] == "0" &&
		got.Attributes["ApproximateNumberOfMessagesNotVisible"] == "0", nil
}
