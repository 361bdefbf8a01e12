package clienttest

import (
	"testing"

	"github.com/aws/aws-sdk-go/aws"
	"github.com/aws/aws-sdk-go/aws/credentials"
	"github.com/aws/aws-sdk-go/aws/session"
	v1 "github.com/aws/aws-sdk-go/service/sqs"
	"github.com/stretchr/testify/require"
	"gocloud.dev/pubsub"
	"gocloud.dev/pubsub/awssnssqs"

	"fdbfifo/sqs"
)

// TestGoV1: what programs do with version 1 of the SDK for Go.
func TestGoV1(t *testing.T) {
	endpoint := serve(t, sqs.Options{Keys: map[string]sqs.Key{"AKIDA": {Secret: "secret"}}})
	s, err := session.NewSession(&aws.Config{
		Endpoint: &endpoint, Region: aws.String("us-east-1"),
		Credentials: credentials.NewStaticCredentials("AKIDA", "secret", ""),
	})
	require.NoError(t, err)
	c := v1.New(s)
	made, err := c.CreateQueue(&v1.CreateQueueInput{QueueName: aws.String("v1.fifo"), Attributes: map[string]*string{
		"FifoQueue": aws.String("true"), "ContentBasedDeduplication": aws.String("true"),
	}})
	require.NoError(t, err)
	for _, body := range []string{"a", "b", "c"} {
		_, err := c.SendMessage(&v1.SendMessageInput{
			QueueUrl: made.QueueUrl, MessageBody: &body, MessageGroupId: aws.String("g"),
			MessageAttributes: map[string]*v1.MessageAttributeValue{
				"k": {DataType: aws.String("Binary"), BinaryValue: []byte{0, 255}},
			},
		})
		require.NoError(t, err)
	}
	receive := func() (bodies []string, got []*v1.Message) {
		out, err := c.ReceiveMessage(&v1.ReceiveMessageInput{
			QueueUrl: made.QueueUrl, MaxNumberOfMessages: aws.Int64(10), WaitTimeSeconds: aws.Int64(1),
			MessageAttributeNames: []*string{aws.String("All")},
		})
		require.NoError(t, err)
		for _, m := range out.Messages {
			bodies = append(bodies, *m.Body)
			require.Equal(t, []byte{0, 255}, m.MessageAttributes["k"].BinaryValue)
		}
		return bodies, out.Messages
	}
	bodies, got := receive()
	require.Equal(t, []string{"a", "b", "c"}, bodies)
	_, err = c.DeleteMessage(&v1.DeleteMessageInput{QueueUrl: made.QueueUrl, ReceiptHandle: got[0].ReceiptHandle})
	require.NoError(t, err)
	_, err = c.ChangeMessageVisibility(&v1.ChangeMessageVisibilityInput{
		QueueUrl: made.QueueUrl, ReceiptHandle: got[1].ReceiptHandle, VisibilityTimeout: aws.Int64(0),
	})
	require.NoError(t, err)
	bodies, _ = receive()
	require.Equal(t, []string{"b"}, bodies, "c is in flight")
	_, err = c.GetQueueUrl(&v1.GetQueueUrlInput{QueueName: aws.String("none")})
	require.ErrorContains(t, err, v1.ErrCodeQueueDoesNotExist)
}

// TestGoCDK: a topic and a subscription of the Go CDK, which nacks by a visibility timeout of 0.
func TestGoCDK(t *testing.T) {
	ctx, c := t.Context(), newClient(serve(t, sqs.Options{}), "x", "x")
	url := create(t, c, "cdk", map[string]string{"VisibilityTimeout": "20"})
	topic := awssnssqs.OpenSQSTopicV2(ctx, c, *url, nil)
	subscription := awssnssqs.OpenSubscriptionV2(ctx, c, *url, nil)
	defer func() {
		require.NoError(t, topic.Shutdown(ctx))
		require.NoError(t, subscription.Shutdown(ctx))
	}()
	for _, body := range []string{"a", "b", "c"} {
		require.NoError(t, topic.Send(ctx, &pubsub.Message{
			Body: []byte(body), Metadata: map[string]string{"key": "<" + body + ">"},
		}))
	}
	left, failed := map[string]bool{"a": true, "b": true, "c": true}, false
	for len(left) > 0 {
		m, err := subscription.Receive(ctx)
		require.NoError(t, err)
		body := string(m.Body)
		require.Equal(t, "<"+body+">", m.Metadata["key"])
		require.True(t, left[body], body)
		if body == "b" && !failed {
			failed = true
			m.Nack()
			continue
		}
		delete(left, body)
		m.Ack()
	}
	require.True(t, failed)
}
