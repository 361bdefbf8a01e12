package sqs

import (
	"context"

	"github.com/aws/aws-sdk-go-v2/service/sqs/schemas"
	"github.com/aws/smithy-go"

	"fdbfifo/internal/strict"
)

// operation is one of the service's operations.
type operation struct {
	in, out *smithy.Schema // out is nil if the answer has no members
	// call reads the request from JSON, and returns the answer, or nil.
	call func(ctx context.Context, s *Server, c *call, request []byte) (any, error)
	// empty is an empty request and an empty answer, for the test that compares both with the schemas.
	empty [2]any
}

// answering makes an operation of a function that returns an answer.
func answering[I, O any](
	in, out *smithy.Schema, f func(s *Server, ctx context.Context, c *call, in *I) (*O, error),
) operation {
	return operation{
		in: in, out: out, empty: [2]any{*new(I), *new(O)},
		call: func(ctx context.Context, s *Server, c *call, request []byte) (any, error) {
			var i I
			if err := checkValues(request); err != nil {
				return nil, malformed(err)
			}
			if err := strict.Unmarshal(request, &i); err != nil {
				return nil, malformed(err)
			}
			o, err := f(s, ctx, c, &i)
			if err != nil {
				return nil, err
			}
			return o, nil
		},
	}
}

// silent makes an operation of a function that returns nothing.
func silent[I any](in *smithy.Schema, f func(s *Server, ctx context.Context, c *call, in *I) error) operation {
	o := answering(in, nil, func(s *Server, ctx context.Context, c *call, in *I) (*struct{}, error) {
		return &struct{}{}, f(s, ctx, c, in)
	})
	return o
}

// operations are the 23 operations of the service's version 2012-11-05.
var operations map[string]operation

func init() {
	operations = map[string]operation{
		"AddPermission":           silent(schemas.AddPermissionRequest, (*Server).addPermission),
		"ChangeMessageVisibility": silent(schemas.ChangeMessageVisibilityRequest, (*Server).changeMessageVisibility),
		"DeleteMessage":           silent(schemas.DeleteMessageRequest, (*Server).deleteMessage),
		"DeleteQueue":             silent(schemas.DeleteQueueRequest, (*Server).deleteQueue),
		"PurgeQueue":              silent(schemas.PurgeQueueRequest, (*Server).purgeQueue),
		"RemovePermission":        silent(schemas.RemovePermissionRequest, (*Server).removePermission),
		"SetQueueAttributes":      silent(schemas.SetQueueAttributesRequest, (*Server).setQueueAttributes),
		"TagQueue":                silent(schemas.TagQueueRequest, (*Server).tagQueue),
		"UntagQueue":              silent(schemas.UntagQueueRequest, (*Server).untagQueue),

		"CancelMessageMoveTask": answering(
			schemas.CancelMessageMoveTaskRequest, schemas.CancelMessageMoveTaskResult, (*Server).cancelMessageMoveTask),
		"ChangeMessageVisibilityBatch": answering(
			schemas.ChangeMessageVisibilityBatchRequest, schemas.ChangeMessageVisibilityBatchResult,
			(*Server).changeMessageVisibilityBatch),
		"CreateQueue": answering(schemas.CreateQueueRequest, schemas.CreateQueueResult, (*Server).createQueue),
		"DeleteMessageBatch": answering(
			schemas.DeleteMessageBatchRequest, schemas.DeleteMessageBatchResult, (*Server).deleteMessageBatch),
		"GetQueueAttributes": answering(
			schemas.GetQueueAttributesRequest, schemas.GetQueueAttributesResult, (*Server).getQueueAttributes),
		"GetQueueUrl": answering(schemas.GetQueueUrlRequest, schemas.GetQueueUrlResult, (*Server).getQueueURL),
		"ListDeadLetterSourceQueues": answering(
			schemas.ListDeadLetterSourceQueuesRequest, schemas.ListDeadLetterSourceQueuesResult,
			(*Server).listDeadLetterSourceQueues),
		"ListMessageMoveTasks": answering(
			schemas.ListMessageMoveTasksRequest, schemas.ListMessageMoveTasksResult, (*Server).listMessageMoveTasks),
		"ListQueues":    answering(schemas.ListQueuesRequest, schemas.ListQueuesResult, (*Server).listQueues),
		"ListQueueTags": answering(schemas.ListQueueTagsRequest, schemas.ListQueueTagsResult, (*Server).listQueueTags),
		"ReceiveMessage": answering(
			schemas.ReceiveMessageRequest, schemas.ReceiveMessageResult, (*Server).receiveMessage),
		"SendMessage": answering(schemas.SendMessageRequest, schemas.SendMessageResult, (*Server).sendMessage),
		"SendMessageBatch": answering(
			schemas.SendMessageBatchRequest, schemas.SendMessageBatchResult, (*Server).sendMessageBatch),
		"StartMessageMoveTask": answering(
			schemas.StartMessageMoveTaskRequest, schemas.StartMessageMoveTaskResult, (*Server).startMessageMoveTask),
	}
}
