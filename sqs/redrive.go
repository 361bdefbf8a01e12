package sqs

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"fdbfifo/internal/strict"
)

// redrive is a RedrivePolicy. The zero value is none.
type redrive struct {
	queue string // the name of the dead letter queue
	count int    // after so many receives
}

// parseRedrivePolicy reads a RedrivePolicy, whose number may be a text. A new policy is read by strict.Unmarshal, and a
// stored one by json.Unmarshal: earlier versions accepted more, and a queue must keep its dead letter queue.
func parseRedrivePolicy(text string, unmarshal func([]byte, any) error) (redrive, error) {
	if text == "" {
		return redrive{}, nil
	}
	bad := func(reason string) error { return invalidValue(text, redrivePolicy, reason) }
	var p struct {
		Target *string `json:"deadLetterTargetArn"`
		Count  any     `json:"maxReceiveCount"`
	}
	if err := unmarshal([]byte(text), &p); err != nil {
		return redrive{}, bad("Redrive policy is not a valid JSON map.")
	}
	if p.Target == nil {
		return redrive{}, bad("Redrive policy does not contain mandatory attribute: deadLetterTargetArn.")
	}
	if p.Count == nil {
		return redrive{}, bad("Redrive policy does not contain mandatory attribute: maxReceiveCount.")
	}
	name, err := arnName(*p.Target)
	if err != nil {
		return redrive{}, bad("Invalid value for deadLetterTargetArn.")
	}
	count, err := strconv.Atoi(fmt.Sprint(p.Count))
	if err != nil || count < 1 || count > 1000 {
		return redrive{}, bad(fmt.Sprintf(
			"Invalid value for maxReceiveCount: %v, valid values are from 1 to 1000 both inclusive.", p.Count))
	}
	return redrive{queue: name, count: count}, nil
}

// redriveAllow is a RedriveAllowPolicy: which queues may use a queue as their dead letter queue.
type redriveAllow struct {
	Permission string   `json:"redrivePermission"`
	Sources    []string `json:"sourceQueueArns"`
}

const allowAll, denyAll, byQueue = "allowAll", "denyAll", "byQueue"

// maxSourceARNs bounds the list of a RedriveAllowPolicy, as on AWS.
const maxSourceARNs = 10

// parseRedriveAllowPolicy reads a RedriveAllowPolicy. "" allows all queues. As on AWS, any other policy must name its
// permission, so an empty one is refused.
func parseRedriveAllowPolicy(text string) (redriveAllow, error) {
	p := redriveAllow{Permission: allowAll}
	if text == "" {
		return p, nil
	}
	bad := func(reason string) error { return invalidValue(text, redriveAllowPolicy, reason) }
	p.Permission = ""
	switch err := strict.UnmarshalKnown([]byte(text), &p); {
	case err != nil:
		return p, bad("It is no JSON map of redrivePermission and sourceQueueArns.")
	case !slices.Contains([]string{allowAll, denyAll, byQueue}, p.Permission):
		return p, bad("The redrivePermission must be allowAll, denyAll or byQueue.")
	case p.Permission != byQueue && len(p.Sources) > 0:
		return p, bad("Only the redrivePermission byQueue has sourceQueueArns.")
	case p.Permission == byQueue && (len(p.Sources) == 0 || len(p.Sources) > maxSourceARNs):
		return p, bad(fmt.Sprintf("The redrivePermission byQueue wants 1 to %d sourceQueueArns.", maxSourceARNs))
	}
	for _, arn := range p.Sources {
		if _, err := arnName(arn); err != nil {
			return p, bad(fmt.Sprintf("%q in sourceQueueArns is no ARN of a queue.", arn))
		}
	}
	return p, nil
}

// allows reports whether the queue of the name may use the policy's queue as its dead letter queue.
func (p redriveAllow) allows(name string) bool {
	return p.Permission == allowAll || p.Permission == byQueue && slices.ContainsFunc(p.Sources, func(arn string) bool {
		source, err := arnName(arn)
		return err == nil && source == name
	})
}

// checkDeadLetterQueue checks by AWS's rules that the dead letter queue of a record may be one. It also refuses the
// queue itself, which AWS allows: its dead letters would never expire. An earlier version may have stored a
// RedriveAllowPolicy that this server refuses. Such a policy allows no further queue.
func (s *Server) checkDeadLetterQueue(ctx context.Context, name string, r record) error {
	dead := r.deadLetterQueue()
	if dead == "" {
		return nil
	}
	bad := func(reason string) error { return invalidValue(r.Attributes[redrivePolicy], redrivePolicy, reason) }
	if dead == name {
		return bad("The dead letter queue must be another queue than its source.")
	}
	target, _, err := s.look(ctx, dead)
	if err != nil {
		return err
	}
	if !target.live() {
		return bad("Dead letter target does not exist.")
	}
	if target.fifo() != r.fifo() {
		return bad("Dead-letter queue must be same type of queue as the source.")
	}
	allow, err := parseRedriveAllowPolicy(target.Attributes[redriveAllowPolicy])
	if err != nil {
		return bad("The RedriveAllowPolicy of the dead letter queue cannot be read: set it again.")
	}
	if !allow.allows(name) {
		return bad("The RedriveAllowPolicy of the dead letter queue does not allow the queue " + name + ".")
	}
	return nil
}
