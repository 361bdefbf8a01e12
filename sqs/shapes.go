package sqs

// The requests and answers of the 23 operations, with the names that they have in JSON. A pointer is nil if the member
// is absent, which differs from zero and from empty. A test holds the structs to the schemas.

type (
	attributeValue struct {
		StringValue *string `json:",omitempty"`
		BinaryValue []byte  `json:",omitempty"`
		DataType    string
	}

	addPermissionRequest struct {
		QueueUrl, Label string
		AWSAccountIds   []string
		Actions         []string
	}
	cancelMessageMoveTaskRequest struct{ TaskHandle string }
	cancelMessageMoveTaskResult  struct{ ApproximateNumberOfMessagesMoved int64 }

	changeMessageVisibilityRequest struct {
		QueueUrl          string
		ReceiptHandle     *string
		VisibilityTimeout *int64
	}
	changeMessageVisibilityBatchRequest struct {
		QueueUrl string
		Entries  []changeMessageVisibilityBatchRequestEntry
	}
	changeMessageVisibilityBatchRequestEntry struct {
		Id                string
		ReceiptHandle     *string
		VisibilityTimeout *int64
	}

	createQueueRequest struct {
		QueueName  *string
		Attributes settings
		Tags       settings `json:"tags"`
	}
	queueUrlResult struct{ QueueUrl string }

	deleteMessageRequest struct {
		QueueUrl      string
		ReceiptHandle *string
	}
	deleteMessageBatchRequest struct {
		QueueUrl string
		Entries  []deleteMessageBatchRequestEntry
	}
	deleteMessageBatchRequestEntry struct {
		Id            string
		ReceiptHandle *string
	}
	batchResult struct {
		Successful []batchResultEntry
		Failed     []batchResultErrorEntry `json:",omitempty"`
	}
	batchResultEntry      struct{ Id string }
	batchResultErrorEntry struct {
		Id, Code    string
		Message     string `json:",omitempty"`
		SenderFault bool
	}

	queueRequest struct{ QueueUrl string }

	getQueueAttributesRequest struct {
		QueueUrl       string
		AttributeNames names
	}
	getQueueAttributesResult struct {
		Attributes map[string]string `json:",omitempty"`
	}
	getQueueUrlRequest struct {
		QueueName              *string
		QueueOwnerAWSAccountId *string
	}

	listDeadLetterSourceQueuesRequest struct {
		QueueUrl   string
		NextToken  *string
		MaxResults *int64
	}
	listDeadLetterSourceQueuesResult struct {
		QueueUrls []string `json:"queueUrls"`
		NextToken string   `json:",omitempty"`
	}
	listMessageMoveTasksRequest struct {
		SourceArn  *string
		MaxResults *int64
	}
	listMessageMoveTasksResult struct {
		Results []moveTaskEntry `json:",omitempty"`
	}
	moveTaskEntry struct {
		TaskHandle                        string `json:",omitempty"`
		Status                            string
		SourceArn                         string
		DestinationArn                    string `json:",omitempty"`
		MaxNumberOfMessagesPerSecond      int64  `json:",omitempty"`
		ApproximateNumberOfMessagesMoved  int64
		ApproximateNumberOfMessagesToMove int64
		FailureReason                     string `json:",omitempty"`
		StartedTimestamp                  int64
	}
	listQueuesRequest struct {
		QueueNamePrefix string
		NextToken       *string
		MaxResults      *int64
	}
	listQueuesResult struct {
		QueueUrls []string `json:",omitempty"`
		NextToken string   `json:",omitempty"`
	}
	listQueueTagsResult struct {
		Tags map[string]string `json:",omitempty"`
	}

	receiveMessageRequest struct {
		QueueUrl                    string
		AttributeNames              names
		MessageSystemAttributeNames names
		MessageAttributeNames       names
		MaxNumberOfMessages         *int64
		VisibilityTimeout           *int64
		WaitTimeSeconds             *int64
		ReceiveRequestAttemptId     *string
	}
	receiveMessageResult struct {
		Messages []receivedMessage `json:",omitempty"`
	}
	receivedMessage struct {
		MessageId              string
		ReceiptHandle          string
		MD5OfBody              string
		Body                   string
		Attributes             map[string]string         `json:",omitempty"`
		MD5OfMessageAttributes string                    `json:",omitempty"`
		MessageAttributes      map[string]attributeValue `json:",omitempty"`
	}

	removePermissionRequest struct{ QueueUrl, Label string }

	sendMessageRequest struct {
		QueueUrl string
		outgoing
	}
	outgoing struct {
		MessageBody             *string
		DelaySeconds            *int64
		MessageAttributes       map[string]attributeValue
		MessageSystemAttributes map[string]attributeValue
		MessageDeduplicationId  *string
		MessageGroupId          *string
	}
	sendMessageResult struct {
		MD5OfMessageBody             string
		MD5OfMessageAttributes       string `json:",omitempty"`
		MD5OfMessageSystemAttributes string `json:",omitempty"`
		MessageId                    string
		SequenceNumber               string `json:",omitempty"`
	}
	sendMessageBatchRequest struct {
		QueueUrl string
		Entries  []sendMessageBatchRequestEntry
	}
	sendMessageBatchRequestEntry struct {
		Id string
		outgoing
	}
	sendMessageBatchResult struct {
		Successful []sendMessageBatchResultEntry
		Failed     []batchResultErrorEntry `json:",omitempty"`
	}
	sendMessageBatchResultEntry struct {
		Id string
		sendMessageResult
	}

	setQueueAttributesRequest struct {
		QueueUrl   string
		Attributes settings
	}
	startMessageMoveTaskRequest struct {
		SourceArn                    *string
		DestinationArn               *string
		MaxNumberOfMessagesPerSecond *int64
	}
	startMessageMoveTaskResult struct{ TaskHandle string }

	tagQueueRequest struct {
		QueueUrl string
		Tags     settings
	}
	untagQueueRequest struct {
		QueueUrl string
		TagKeys  []string
	}
)
