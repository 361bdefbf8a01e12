package sqs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"time"

	"fdbfifo/internal/strict"
)

// Declared is a queue that must exist when a server starts.
type Declared struct {
	Name string
	// Attributes are those of CreateQueue. A name that ends in .fifo is enough for FifoQueue.
	Attributes map[string]string
	Tags       map[string]string
}

// maxDeclaration bounds what ReadQueues reads.
const maxDeclaration = 8 << 20 // bytes

// ReadQueues reads declarations of queues, JSON such as
//
//	[
//	  {"name": "dead.fifo"},
//	  {"name": "orders.fifo", "attributes": {"VisibilityTimeout": 60,
//	    "RedrivePolicy": {"deadLetterTargetArn": "dead.fifo", "maxReceiveCount": 5}}, "tags": {"team": "shop"}}
//	]
//
// Values of attributes may be texts as in CreateQueue, or numbers, truths and objects, but not null. In a RedrivePolicy
// the queue's name may stand for its ARN.
func ReadQueues(r io.Reader) ([]Declared, error) {
	decoder := json.NewDecoder(io.LimitReader(r, maxDeclaration))
	var text json.RawMessage
	var read []struct {
		Name       string          `json:"name"`
		Attributes json.RawMessage `json:"attributes"`
		Tags       json.RawMessage `json:"tags"`
	}
	err := decoder.Decode(&text)
	if err == nil {
		err = strict.UnmarshalKnown(text, &read)
	}
	if err == nil && read == nil {
		err = errors.New("it is null")
	}
	if err != nil {
		return nil, fmt.Errorf("a list of queues is wanted: %w", err)
	}
	if _, err := decoder.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("there is text behind the list of queues: remove it")
	}
	declared, seen := make([]Declared, len(read)), make(map[string]bool)
	for i, q := range read {
		if err := checkName(q.Name, strings.HasSuffix(q.Name, fifoSuffix)); err != nil {
			return nil, fmt.Errorf("queue %d, %q: %w", i+1, q.Name, err)
		}
		if seen[q.Name] {
			return nil, fmt.Errorf("queue %d, %q: it was there before", i+1, q.Name)
		}
		seen[q.Name] = true
		if declared[i], err = declaredAs(q.Name, q.Attributes, q.Tags); err != nil {
			return nil, fmt.Errorf("queue %d, %q: %w", i+1, q.Name, err)
		}
	}
	return declared, nil
}

// declaredAs returns the declaration of a queue from its JSON. It refuses null, as settings does: a template whose
// variable is not set would otherwise remove a policy.
func declaredAs(queue string, attributes, tags json.RawMessage) (Declared, error) {
	d := Declared{Name: queue, Attributes: make(map[string]string), Tags: make(map[string]string)}
	if strings.HasSuffix(queue, fifoSuffix) {
		d.Attributes[fifoQueue] = "true"
	}
	values, err := membersNamed[json.RawMessage]("attributes", attributes)
	if err != nil {
		return d, err
	}
	for name, value := range values {
		var text *string
		switch err := json.Unmarshal(value, &text); {
		case err != nil:
			d.Attributes[name] = string(value)
		case text == nil:
			return d, fmt.Errorf("the attribute %q is null", name)
		default:
			d.Attributes[name] = *text
		}
	}
	texts, err := membersNamed[*string]("tags", tags)
	if err != nil {
		return d, err
	}
	for name, value := range texts {
		if value == nil {
			return d, fmt.Errorf("the tag %q is null", name)
		}
		d.Tags[name] = *value
	}
	d.Attributes = plainTruths(d.Attributes)
	return d, nil
}

// membersNamed returns the members of an object that is itself the member of a name. It returns none if the object is
// left out, and refuses null.
func membersNamed[V any](name string, object json.RawMessage) (map[string]V, error) {
	var members map[string]V
	if object == nil {
		return nil, nil
	}
	if err := json.Unmarshal(object, &members); err != nil {
		return nil, fmt.Errorf("the member %q: %w", name, err)
	}
	if members == nil {
		return nil, fmt.Errorf("the member %q is null", name)
	}
	return members, nil
}

// Declare makes the queues that do not exist, and sets the attributes and tags of those that do. Attributes, tags and
// queues that are not named stay as they are. Dead letter queues may be declared behind the queues that name them. If
// a queue of the same name was deleted less than a minute ago, Declare waits until the name is free. If CreateQueue or
// SetQueueAttributes would refuse a queue, Declare ends with *RefusedError, and the caller must correct the
// declaration. An empty number or choice is refused for a new queue, too: it would be refused when the server starts
// the next time. Any other error is the database's or that of ctx, with the queue's name, and the caller may call
// again. Queues before that one are made or set by then.
func (s *Server) Declare(ctx context.Context, queues []Declared) error {
	c := &call{account: s.options.Account}
	// The RedrivePolicy comes last: by then each dead letter queue is there, and has its RedriveAllowPolicy.
	for _, without := range []string{redrivePolicy, ""} {
		for _, q := range queues {
			if err := s.declareWhenFree(ctx, c, q, without); err != nil {
				return notDeclared(q, err)
			}
		}
	}
	return nil
}

// notDeclared returns the error of Declare: a RefusedError if the declaration can never succeed, otherwise the
// database's error. A queue that another client deletes at that moment is no fault of the declaration.
func notDeclared(q Declared, err error) error {
	if told(err).senderFault() && ignoreNoQueue(err) != nil {
		return &RefusedError{Queue: q.Name, Err: err}
	}
	return fmt.Errorf("queue %q: %w", q.Name, err)
}

// declareWhenFree declares a queue. It waits while the name of a deleted queue cannot be used again.
func (s *Server) declareWhenFree(ctx context.Context, c *call, q Declared, without string) error {
	for waits := false; ; waits = true {
		err := s.declare(ctx, c, q, without)
		if told(err).code != told(recentlyDeleted()).code {
			s.forgetLost(err, q.Name)
			return err
		}
		if !waits {
			s.options.Logger.Warn("sqs: a declared queue was deleted just now, the server waits for its name",
				"queue", q.Name)
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
			return fmt.Errorf("its name is not free yet after a deletion: %w", ctx.Err())
		}
	}
}

// declare declares a queue without one of its attributes.
func (s *Server) declare(ctx context.Context, c *call, q Declared, without string) error {
	if err := checkNotEmpty(q.Attributes); err != nil {
		return err
	}
	attributes := maps.Clone(q.Attributes)
	delete(attributes, without)
	if text, ok := attributes[redrivePolicy]; ok {
		attributes[redrivePolicy] = s.fullPolicy(text)
	}
	r, _, err := s.look(ctx, q.Name)
	if err != nil {
		return err
	}
	if !r.live() {
		_, err := s.createQueue(ctx, c, &createQueueRequest{QueueName: &q.Name, Attributes: attributes, Tags: q.Tags})
		return err
	}
	there := r.all()
	maps.DeleteFunc(attributes, func(name, value string) bool { return there[name] == value })
	if len(attributes) > 0 {
		in := &setQueueAttributesRequest{QueueUrl: q.Name, Attributes: attributes}
		if err := s.setQueueAttributes(ctx, c, in); err != nil {
			return err
		}
	}
	for name, value := range q.Tags {
		if old, ok := r.Tags[name]; !ok || old != value {
			return s.tagQueue(ctx, c, &tagQueueRequest{QueueUrl: q.Name, Tags: q.Tags})
		}
	}
	return nil
}

// fullPolicy is a RedrivePolicy with the ARN of the queue that it names.
func (s *Server) fullPolicy(text string) string {
	var p map[string]any
	if strict.Unmarshal([]byte(text), &p) != nil {
		return text // SetQueueAttributes says what is wrong
	}
	if name, ok := p["deadLetterTargetArn"].(string); ok && name != "" && !strings.Contains(name, ":") {
		p["deadLetterTargetArn"] = s.arn(name)
		return string(marshal(p))
	}
	return text
}
