package sqs

import (
	"context"
	"encoding/base64"
	"encoding/binary"
	"slices"
	"time"

	"github.com/google/uuid"

	"fdbfifo/layer"
)

const (
	// receiveBytes bounds the bodies of a receive: ten of the largest, with their attributes in base64.
	receiveBytes = 16 << 20
	maxWait      = 20
	maxVisible   = 43_200 // s
)

func (in *receiveMessageRequest) check() error {
	if n := in.MaxNumberOfMessages; n != nil && (*n < 1 || *n > maxEntries) {
		return invalidValue(*n, "MaxNumberOfMessages", "Must be between 1 and 10, if provided.")
	}
	if n := in.WaitTimeSeconds; n != nil && (*n < 0 || *n > maxWait) {
		return invalidValue(*n, "WaitTimeSeconds", "Must be >= 0 and <= 20, if provided.")
	}
	if err := checkVisibility(in.VisibilityTimeout); err != nil {
		return err
	}
	if id := in.ReceiveRequestAttemptId; id != nil && !isPunctuated(*id) {
		return invalidValue(*id, "ReceiveRequestAttemptId",
			"ReceiveRequestAttemptId can only include alphanumeric and punctuation characters. 1 to 128 in length.")
	}
	for _, name := range slices.Concat(in.AttributeNames, in.MessageSystemAttributeNames) {
		if !slices.Contains(systemNames, name) && !settable(name) && !slices.Contains(counted, name) {
			return unknownAttribute(name)
		}
	}
	return nil
}

func checkVisibility(v *int64) error {
	if v != nil && (*v < 0 || *v > maxVisible) {
		return invalidValue(*v, visibilityTimeout, "Must be >= 0 and <= 43200, if provided.")
	}
	return nil
}

func (s *Server) receiveMessage(
	ctx context.Context, c *call, in *receiveMessageRequest,
) (*receiveMessageResult, error) {
	q, err := s.queue(ctx, c, in.QueueUrl)
	if err != nil {
		return nil, err
	}
	defer q.release()
	if err := in.check(); err != nil {
		return nil, err
	}
	visible := q.record.duration(visibilityTimeout)
	if in.VisibilityTimeout != nil {
		visible = time.Duration(*in.VisibilityTimeout) * time.Second
	}
	o := layer.ReceiveOptions{
		Max: 1, MaxBytes: receiveBytes, Lease: max(visible, layer.MinLease), Wait: q.record.duration(receiveWait),
	}
	if in.MaxNumberOfMessages != nil {
		o.Max = int(*in.MaxNumberOfMessages)
	}
	if in.WaitTimeSeconds != nil {
		o.Wait = time.Duration(*in.WaitTimeSeconds) * time.Second
	}
	if in.ReceiveRequestAttemptId != nil && q.fifo() {
		o.ReceiveID = *in.ReceiveRequestAttemptId
	}
	claims, err := s.receive(ctx, q, o)
	if err != nil {
		return nil, err
	}
	result, now := &receiveMessageResult{}, s.options.Now()
	for _, claim := range claims {
		for _, item := range claim.Items {
			h := receiptHandle{
				queue: q.Name(), id: item.ID, token: claim.Token, received: now, until: now.Add(visible),
			}
			result.Messages = append(result.Messages, s.received(q, load(item), h, in))
		}
		if visible < layer.MinLease { // the layer has no such lease: received, and visible again
			if err := q.Nack(ctx, claim, layer.NackOptions{AtOnce: true}); err != nil {
				return nil, err
			}
		}
	}
	return result, nil
}

// receive receives, until the server is stopped.
func (s *Server) receive(ctx context.Context, q *queue, o layer.ReceiveOptions) ([]*layer.Claim, error) {
	for _, source := range q.dead {
		if err := s.moveDead(ctx, source); err != nil {
			return nil, err
		}
	}
	if o.Wait == 0 {
		return q.Receive(ctx, o)
	}
	waiting, end := context.WithCancel(ctx)
	defer end()
	defer context.AfterFunc(s.stopped, end)()
	until := time.Now().Add(o.Wait)
	if !q.opened.line.enter(waiting, until) {
		return nil, context.Cause(ctx) // nil if its time is over, or the server is stopped
	}
	o.Wait = max(time.Until(until), 0)
	claims, err := q.Receive(waiting, o)
	q.opened.line.leave(len(claims) > 0)
	if err != nil && s.stopped.Err() != nil && ctx.Err() == nil {
		return nil, nil
	}
	return claims, err
}

// received is a message as it is answered.
func (s *Server) received(q *queue, m stored, h receiptHandle, in *receiveMessageRequest) receivedMessage {
	r := receivedMessage{MessageId: m.id(), ReceiptHandle: h.String(), MD5OfBody: digest(m.body), Body: m.body}
	wanted := slices.Concat(in.AttributeNames, in.MessageSystemAttributeNames)
	if len(wanted) > 0 {
		for name, value := range m.system(s, q.fifo()) {
			if slices.Contains(wanted, "All") || slices.Contains(wanted, name) {
				if r.Attributes == nil {
					r.Attributes = make(map[string]string)
				}
				r.Attributes[name] = value
			}
		}
	}
	for name, value := range m.attributes {
		if matches(in.MessageAttributeNames, name) {
			if r.MessageAttributes == nil {
				r.MessageAttributes = make(map[string]attributeValue)
			}
			r.MessageAttributes[name] = value
		}
	}
	r.MD5OfMessageAttributes = digestAttributes(r.MessageAttributes)
	return r
}

// receiptHandle is what a receipt handle says: of which message of which claim, and until when at first.
type receiptHandle struct {
	queue           string
	id              layer.ID
	token           int64
	received, until time.Time // ms
}

const receiptVersion = 1

// String is the receipt handle.
func (h receiptHandle) String() string {
	b := []byte{receiptVersion}
	b = append(binary.AppendUvarint(b, uint64(len(h.queue))), h.queue...)
	b = append(b, h.id.Random[:]...)
	for _, n := range []int64{h.id.Index, h.token, h.received.UnixMilli(), h.until.UnixMilli()} {
		b = binary.BigEndian.AppendUint64(b, uint64(n))
	}
	return base64.StdEncoding.EncodeToString(append(b, h.id.Group...))
}

// parseReceipt reads a receipt handle of a queue.
func parseReceipt(queue string, text *string) (receiptHandle, error) {
	if text == nil {
		return receiptHandle{}, missing("ReceiptHandle")
	}
	bad := badHandle(*text)
	b, err := base64.StdEncoding.DecodeString(*text)
	if err != nil || len(b) == 0 || b[0] != receiptVersion {
		return receiptHandle{}, bad
	}
	n, used := binary.Uvarint(b[1:])
	b = b[1+max(used, 0):]
	if used <= 0 || n > uint64(len(b)) || string(b[:n]) != queue || len(b[n:]) < len(uuid.UUID{})+4*8 {
		return receiptHandle{}, bad
	}
	h := receiptHandle{queue: queue}
	b = b[n:]
	b = b[copy(h.id.Random[:], b):]
	var numbers [4]int64
	for i := range numbers {
		numbers[i], b = int64(binary.BigEndian.Uint64(b)), b[8:]
	}
	h.id.Index, h.token = numbers[0], numbers[1]
	h.received, h.until = time.UnixMilli(numbers[2]), time.UnixMilli(numbers[3])
	h.id.Group = string(b)
	if _, err := layer.ParseID(h.id.String()); err != nil || h.id.Random == uuid.Nil {
		return receiptHandle{}, bad
	}
	return h, nil
}

// claim is the claim of one message, for the calls of the layer that settle it. What kind of claim a receipt handle is
// of the queue says, not the handle: a handle of another queue that had the name before names a message that is gone.
func (q *queue) claim(h receiptHandle) *layer.Claim {
	c := &layer.Claim{
		Queue: h.queue, Group: h.id.Group, Token: h.token, Items: []layer.Item{{ID: h.id}}, Until: h.until,
	}
	if q.perItem() {
		c.Hold = h.id
	}
	return c
}
