package sqs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"slices"
	"strings"

	"github.com/aws/aws-sdk-go-v2/service/sqs/schemas"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

const (
	// maxEntries is how many entries a batch has, and how many messages a receive returns.
	maxEntries = 10
	// maxBatchSize bounds the messages of a batch together.
	maxBatchSize = 1 << 20 // bytes
)

func sha(body string) string {
	sum := sha256.Sum256([]byte(body))
	return hex.EncodeToString(sum[:])
}

func (s *Server) sendMessage(ctx context.Context, c *call, in *sendMessageRequest) (*sendMessageResult, error) {
	q, err := s.queue(ctx, c, in.QueueUrl)
	if err != nil {
		return nil, err
	}
	defer q.release()
	if err := in.check(q); err != nil {
		return nil, err
	}
	sent, err := q.Enqueue(ctx, in.store(q, c))
	if err != nil {
		return nil, err
	}
	result := in.result(q, sent[0])
	return &result, nil
}

// sender is the client's account if it is not the server's.
func (c *call) sender(s *Server) string {
	if c.account == s.options.Account {
		return ""
	}
	return c.account
}

// result is the answer for a message that was sent.
func (m *outgoing) result(q *queue, sent layer.Sent) sendMessageResult {
	r := sendMessageResult{
		MD5OfMessageBody: digest(*m.MessageBody), MD5OfMessageAttributes: digestAttributes(m.MessageAttributes),
		MD5OfMessageSystemAttributes: digestAttributes(m.MessageSystemAttributes), MessageId: sent.ID.Random.String(),
	}
	if q.fifo() {
		r.SequenceNumber = sequence(sent.ID)
	}
	return r
}

// checkBatch checks the ids of a batch's entries by AWS's rules. entry is AWS's name for such an entry.
func checkBatch(entry string, ids []string) error {
	switch {
	case len(ids) == 0:
		return fail(schemas.EmptyBatchRequest, "There should be at least one %s in the request.", entry)
	case len(ids) > maxEntries:
		return fail(schemas.TooManyEntriesInBatchRequest,
			"Maximum number of entries per request are %d. You have sent %d.", maxEntries, len(ids))
	}
	seen := make(map[string]bool)
	for _, id := range ids {
		good := len(id) >= 1 && len(id) <= 80
		for _, r := range id {
			good = good && (isWord(r) || r == '-')
		}
		if !good {
			return fail(schemas.InvalidBatchEntryId, "A batch entry id can only contain alphanumeric characters, "+
				"hyphens and underscores. It can be at most 80 letters long.")
		}
		if seen[id] {
			return fail(schemas.BatchEntryIdsNotDistinct, "Id %s repeated.", id)
		}
		seen[id] = true
	}
	return nil
}

// failed returns the answer for an entry of a batch that has failed.
func failed(id string, err error) batchResultErrorEntry {
	e := told(err)
	text := strings.Replace(e.text, "parameters are invalid.", "parameters cannot be validated.", 1)
	return batchResultErrorEntry{Id: id, Code: e.code, Message: text, SenderFault: e.senderFault()}
}

func (s *Server) sendMessageBatch(
	ctx context.Context, c *call, in *sendMessageBatchRequest,
) (*sendMessageBatchResult, error) {
	q, err := s.queue(ctx, c, in.QueueUrl)
	if err != nil {
		return nil, err
	}
	defer q.release()
	if err := in.check(q); err != nil {
		return nil, err
	}
	result := &sendMessageBatchResult{Successful: []sendMessageBatchResultEntry{}}
	var good []sendMessageBatchRequestEntry
	var messages []layer.Message
	for _, e := range in.Entries {
		if err := e.check(q); err != nil {
			result.Failed = append(result.Failed, failed(e.Id, err))
			continue
		}
		good, messages = append(good, e), append(messages, e.store(q, c))
	}
	sent, err := q.Enqueue(ctx, messages...)
	for bad := refusedAt(messages, err); bad >= 0; bad = refusedAt(messages, err) { // it must not stop the others
		result.Failed = append(result.Failed, failed(good[bad].Id, err))
		good, messages = slices.Delete(good, bad, bad+1), slices.Delete(messages, bad, bad+1)
		sent, err = q.Enqueue(ctx, messages...)
	}
	if err != nil {
		return nil, err
	}
	for i, e := range good {
		result.Successful = append(result.Successful, sendMessageBatchResultEntry{e.Id, e.result(q, sent[i])})
	}
	return result, nil
}

// refusedAt returns the place of a message for which alone an enqueue was refused; -1 = there is none. Of a full group
// it is the last one, because those before it may have room.
func refusedAt(messages []layer.Message, err error) int {
	var full *layer.FullError
	var bad *layer.MessageError
	switch {
	case kv.MaybeCommitted(err):
	case errors.As(err, &full):
		for i, m := range slices.Backward(messages) {
			if m.Group == full.Group {
				return i
			}
		}
	case errors.As(err, &bad):
		return bad.Index
	}
	return -1
}

// check returns an error if the batch must fail as a whole.
func (in *sendMessageBatchRequest) check(q *queue) error {
	ids, size := make([]string, len(in.Entries)), 0
	for i := range in.Entries {
		ids[i] = in.Entries[i].Id
		size += in.Entries[i].size()
	}
	if err := checkBatch("SendMessageBatchRequestEntry", ids); err != nil {
		return err
	}
	if size > maxBatchSize {
		return fail(schemas.BatchRequestTooLong,
			"Batch requests cannot be longer than %d bytes. You have sent %d bytes.", maxBatchSize, size)
	}
	if !q.fifo() {
		return nil
	}
	for i := range in.Entries {
		switch e := &in.Entries[i]; {
		case e.MessageGroupId == nil || *e.MessageGroupId == "":
			return invalid("The request must contain the parameter MessageGroupId.")
		case e.MessageDeduplicationId == nil && q.record.choice(contentBased) != "true":
			return noDedupID()
		}
	}
	return nil
}
