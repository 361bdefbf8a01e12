package sqs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

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
		Name       string                     `json:"name"`
		Attributes map[string]json.RawMessage `json:"attributes"`
		Tags       map[string]*string         `json:"tags"`
	}
	err := decoder.Decode(&text)
	if err == nil {
		err = strict.UnmarshalKnown(text, &read)
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
func declaredAs(queue string, attributes map[string]json.RawMessage, tags map[string]*string) (Declared, error) {
	d := Declared{Name: queue, Attributes: make(map[string]string), Tags: make(map[string]string)}
	if strings.HasSuffix(queue, fifoSuffix) {
		d.Attributes[fifoQueue] = "true"
	}
	for name, value := range attributes {
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
	for name, value := range tags {
		if value == nil {
			return d, fmt.Errorf("the tag %q is null", name)
		}
		d.Tags[name] = *value
	}
	d.Attributes = plainTruths(d.Attributes)
	return d, nil
}

// Declare makes the queues that do not exist, and sets the attributes and tags of those that do. Attributes, tags and
// queues that are not named stay as they are. Dead letter queues may be declared behind the queues that name them. If
// CreateQueue or SetQueueAttributes would refuse a queue, Declare ends with *RefusedError, and the caller must correct
// the declaration. An empty number or choice is refused for a new queue, too: it would be refused when the server
// starts the next time. Any other error is the database's, with the queue's name, and the caller may call again. Queues
// before that one are made or set by then.
func (s *Server) Declare(ctx context.Context, queues []Declared) error {
	c := &call{account: s.options.Account}
	for _, q := range queues { // without what names other queues
		if err := s.declare(ctx, c, q, redrivePolicy, redriveAllowPolicy); err != nil {
			return notDeclared(q, err)
		}
	}
	for _, q := range queues {
		if err := s.declare(ctx, c, q); err != nil {
			return notDeclared(q, err)
		}
	}
	return nil
}

// notDeclared returns the error of Declare: a RefusedError if the declaration can never succeed, otherwise the
// database's error.
func notDeclared(q Declared, err error) error {
	if told(err).senderFault() {
		return &RefusedError{Queue: q.Name, Err: err}
	}
	return fmt.Errorf("queue %q: %w", q.Name, err)
}

func (s *Server) declare(ctx context.Context, c *call, q Declared, without ...string) error {
	if err := checkNotEmpty(q.Attributes); err != nil {
		return err
	}
	attributes := maps.Clone(q.Attributes)
	maps.DeleteFunc(attributes, func(name, _ string) bool { return slices.Contains(without, name) })
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
