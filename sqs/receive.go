package sqs

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

const (
	// receiveBytes bounds the bodies of a receive: ten of the largest, with their attributes in base64.
	receiveBytes = 16 << 20 // bytes
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
		Max: 1, Lease: max(visible, layer.MinLease), Wait: q.record.duration(receiveWait),
		CountExpired: true, // ApproximateReceiveCount and maxReceiveCount count receives
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
	key, err := s.receiptKey(ctx)
	if err != nil {
		return nil, err
	}
	begun := s.options.Now()
	claims, err := s.receiveUnspent(ctx, c, q, o)
	if err == nil && o.ReceiveID != "" && visible >= layer.MinLease {
		claims, err = s.extendRepeated(ctx, q, o, claims, begun.Add(o.Lease))
	}
	if err != nil {
		return nil, err
	}
	result, now := &receiveMessageResult{}, s.options.Now()
	var failed []error
	for _, claim := range claims {
		until := now
		if visible >= layer.MinLease {
			until = claim.Until
		}
		for _, item := range claim.Items {
			h := receiptHandle{queue: q.Name(), id: item.ID, token: claim.Token, received: now, until: until}
			m := load(item)
			if !c.json {
				m.toXML()
			}
			result.Messages = append(result.Messages, s.received(q, m, key.text(h, now), in))
		}
		if visible < layer.MinLease { // the layer has no such lease: received, and visible again
			err := q.Nack(ctx, claim, layer.NackOptions{AtOnce: true})
			if err != nil && !errors.Is(err, layer.ErrClaimLost) {
				failed = append(failed, err)
			}
		}
	}
	if len(failed) > 0 {
		return nil, errors.Join(failed...)
	}
	return result, nil
}

// spentFor is how long a receive that need not wait goes on past messages that become dead letters.
const spentFor = time.Second

// receiveUnspent is receive without the messages that were received as often as the redrive policy says. There are such
// messages after the policy has changed. They become dead letters, and the receive goes on.
func (s *Server) receiveUnspent(
	ctx context.Context, c *call, q *queue, o layer.ReceiveOptions,
) ([]*layer.Claim, error) {
	begun, wait := time.Now(), o.Wait
	for {
		claims, err := s.receive(ctx, c, q, o)
		if err != nil || len(claims) == 0 || o.ReceiveID != "" { // a repetition may have the messages of an earlier one
			return claims, err
		}
		claims = s.rejectSpent(ctx, q, claims)
		if len(claims) > 0 || time.Since(begun) > max(wait, spentFor) {
			return claims, err
		}
		c.room.release()
		c.room = nil
		o.Wait = max(0, wait-time.Since(begun))
	}
}

// rejectSpent makes the messages dead letters that were received too often, and returns the claims of the others. A
// claim of several messages ends with its first message; those behind it are free for the next receive.
func (s *Server) rejectSpent(ctx context.Context, q *queue, claims []*layer.Claim) (unspent []*layer.Claim) {
	config := q.Config()
	for _, claim := range claims {
		received := claim.Items[0].Attempts
		if config.MaxAttempts <= 0 || received < config.MaxAttempts || config.OnFailure != layer.DeadLetterItem {
			unspent = append(unspent, claim)
			continue
		}
		reason := fmt.Sprintf("received %d times, before maxReceiveCount became %d", received, config.MaxAttempts)
		// If this fails the message comes again after its timeout, and is rejected then.
		_ = q.Nack(ctx, claim, layer.NackOptions{Reject: reason})
	}
	return unspent
}

// receive receives. It waits until the server is stopped, or the client has gone.
func (s *Server) receive(ctx context.Context, c *call, q *queue, o layer.ReceiveOptions) ([]*layer.Claim, error) {
	begun := time.Now()
	until := begun.Add(o.Wait)
	if err := s.moveSources(ctx, q, begun.Add(sourcesTime)); err != nil {
		return nil, err
	}
	if o.Wait = max(0, time.Until(until)); o.Wait == 0 {
		return s.receiveNow(ctx, c, q, o, nil)
	}
	if o.ReceiveID != "" { // a repetition already has its messages, so it does not wait in line
		if claims, err := s.receiveNow(ctx, c, q, o, nil); err != nil || len(claims) > 0 {
			return claims, err
		}
	}
	waiting, end := context.WithCancel(ctx)
	defer end()
	defer context.AfterFunc(s.stopped, end)()
	defer context.AfterFunc(c.client, end)()
	line, ahead, found := &q.opened.line, false, false
	enter := func() bool {
		ahead = ahead || line.enter(waiting, until)
		return ahead
	}
	leave := func() {
		if ahead {
			ahead = false
			line.leave(found)
		}
	}
	if !enter() {
		return nil, context.Cause(c.client) // nil if its time is over, or the server is stopped
	}
	defer leave() // also if the database panics
	claims, err := s.receiveNow(waiting, c, q, o, leave)
	if err == nil && len(claims) == 0 {
		if !enter() { // it has left the line, to wait for memory
			return nil, context.Cause(c.client)
		}
		if o.Wait = time.Until(until); o.Wait > 0 {
			claims, err = s.receiveLater(waiting, c, q, o, leave)
		}
	}
	found = len(claims) > 0
	if err != nil && s.stopped.Err() != nil && c.client.Err() == nil {
		return nil, nil
	}
	return claims, err
}

// extendRepeated extends the claims of a receive that may be a repetition, because the claims of the first receive are
// older. No claim then expires before least, or, if another server whose clock is ahead of this one's has made it,
// before the whole lease is over by versions. It extends all claims or none. If one of them was lost, it repeats the
// receive once more and returns the claims that are left.
func (s *Server) extendRepeated(
	ctx context.Context, q *queue, o layer.ReceiveOptions, claims []*layer.Claim, least time.Time,
) ([]*layer.Claim, error) {
	for least = least.Truncate(time.Millisecond); ; { // as the layer stores times
		ends, leases := make([]time.Time, len(claims)), make([]time.Duration, len(claims))
		for i, c := range claims {
			var err error
			if leases[i], err = s.leaseAgain(ctx, q, c, o.Lease, least); err != nil {
				return nil, err
			}
		}
		if !slices.ContainsFunc(leases, func(d time.Duration) bool { return d > 0 }) {
			return claims, nil
		}
		err := q.Once(ctx, func(tx kv.Tx) error {
			for i, c := range claims {
				ends[i] = c.Until
				if leases[i] == 0 {
					continue
				}
				var err error
				if ends[i], err = q.ExtendTx(ctx, tx, c, leases[i]); err != nil {
					return err
				}
			}
			return nil
		})
		if err == nil {
			for i, c := range claims {
				c.Until = ends[i]
			}
			return claims, nil
		}
		if !errors.Is(err, layer.ErrClaimLost) {
			return nil, err
		}
		o.Wait, o.MaxBytes = 0, receiveBytes
		if claims, err = q.Receive(ctx, o); err != nil {
			return nil, err
		}
	}
}

// leaseAgain returns the lease with which a claim of a repeated receive is extended; 0 = it is not. An end that lies
// further ahead than this receive could make it is by a clock that is ahead of this server's, or it is that of a longer
// timeout. Then the claim's age by versions tells what is left of it. If this server's clock is behind by more than the
// longest lease, no end by its clock is right for the others, so the old one stays.
func (s *Server) leaseAgain(
	ctx context.Context, q *queue, c *layer.Claim, lease time.Duration, least time.Time,
) (time.Duration, error) {
	left := c.Until.Sub(s.options.Now())
	switch {
	case c.Until.Before(least):
		return lease, nil
	case left <= lease:
		return 0, nil
	}
	why, err := q.Admin().Why(ctx, c.Items[0].ID, nil)
	if errors.Is(err, layer.ErrNoItem) {
		return 0, nil
	}
	if err != nil {
		return 0, err
	}
	for _, r := range why.Reasons {
		short := lease - (r.Lease - r.Age)
		if r.Token == c.Token && r.Lease > 0 && short > 0 && left+short <= layer.MaxLease {
			return left + short, nil
		}
	}
	return 0, nil
}

// received returns a message as the client gets it.
func (s *Server) received(q *queue, m stored, handle string, in *receiveMessageRequest) receivedMessage {
	r := receivedMessage{MessageId: m.id(), ReceiptHandle: handle, MD5OfBody: digest(m.body), Body: m.body}
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
