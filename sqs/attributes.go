package sqs

import (
	"encoding/json"
	"errors"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs/schemas"

	"fdbfifo/internal/strict"
	"fdbfifo/layer"
)

// The attributes of queues that the server looks at.
const (
	visibilityTimeout  = "VisibilityTimeout"
	maximumMessageSize = "MaximumMessageSize"
	retentionPeriod    = "MessageRetentionPeriod"
	delaySeconds       = "DelaySeconds"
	receiveWait        = "ReceiveMessageWaitTimeSeconds"
	fifoQueue          = "FifoQueue"
	contentBased       = "ContentBasedDeduplication"
	dedupScope         = "DeduplicationScope"
	throughputLimit    = "FifoThroughputLimit"
	redrivePolicy      = "RedrivePolicy"
	redriveAllowPolicy = "RedriveAllowPolicy"
	policyAttribute    = "Policy"
	kmsKey             = "KmsMasterKeyId"
	kmsReuse           = "KmsDataKeyReusePeriodSeconds"
	managedEncryption  = "SqsManagedSseEnabled"

	// visibilityOf says whether each message in flight or each claim has a visibility timeout of its own in a FIFO
	// queue. AWS does not have this attribute. It is fixed when the queue is made.
	visibilityOf   = "fdbfifo.Visibility"
	visibleByClaim = "claim"
	visibleByItem  = "item"

	scopeQueue, scopeGroup = "queue", "messageGroup"
	perQueue, perGroup     = "perQueue", "perMessageGroupId"
)

// numbers are the attributes that are numbers: the least, the greatest, and the default.
var numbers = map[string]struct{ least, most, otherwise int64 }{
	visibilityTimeout:  {0, 43_200, 30},
	maximumMessageSize: {1024, 1 << 20, 1 << 20},
	retentionPeriod:    {60, 1_209_600, 345_600},
	delaySeconds:       {0, 900, 0},
	receiveWait:        {0, 20, 0},
	kmsReuse:           {60, 86_400, 300},
}

// choices are the attributes that have few values. The first value is the default.
var choices = map[string][]string{
	fifoQueue:         {"false", "true"},
	contentBased:      {"false", "true"},
	dedupScope:        {scopeQueue, scopeGroup},
	visibilityOf:      {visibleByClaim, visibleByItem},
	throughputLimit:   {perQueue, perGroup},
	managedEncryption: {"true", "false"},
}

// fifoOnly are the attributes of FIFO queues.
var fifoOnly = []string{fifoQueue, contentBased, dedupScope, throughputLimit, visibilityOf}

// texts are the attributes that a client can set to a text. See also numbers and choices.
var texts = []string{redrivePolicy, redriveAllowPolicy, policyAttribute, kmsKey}

// counted are the attributes that the server computes.
var counted = []string{
	"ApproximateNumberOfMessages", "ApproximateNumberOfMessagesDelayed", "ApproximateNumberOfMessagesNotVisible",
	"CreatedTimestamp", "LastModifiedTimestamp", "QueueArn",
}

// plainTruths are attributes with True and FALSE as true and false.
func plainTruths(attributes map[string]string) map[string]string {
	plain := maps.Clone(attributes)
	for name, value := range plain {
		if lower := strings.ToLower(value); slices.Contains(choices[name], lower) {
			plain[name] = lower
		}
	}
	return plain
}

// settable reports whether there is an attribute of the name that can be set.
func settable(name string) bool {
	_, number := numbers[name]
	_, choice := choices[name]
	return number || choice || slices.Contains(texts, name)
}

func unknownAttribute(name string) error {
	return fail(schemas.InvalidAttributeName, "Unknown Attribute %s.", name)
}

func invalidAttribute(name string) *apiError {
	return fail(schemas.InvalidAttributeValue, "Invalid value for the parameter %s.", name)
}

// checkAttributes returns an error if a FIFO queue, or a standard queue, cannot have these attributes.
func checkAttributes(fifo bool, attributes map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		value := attributes[name]
		switch {
		case !fifo && (name == dedupScope || name == throughputLimit):
			return fail(schemas.InvalidAttributeName,
				"You can specify the %s only when FifoQueue is set to true.", name)
		case !settable(name), !fifo && slices.Contains(fifoOnly, name):
			return unknownAttribute(name)
		case name == fifoQueue && value != "true":
			e := invalidAttribute(name)
			e.text += " Reason: Modifying queue type is not supported."
			return e
		}
		if err := checkAttribute(name, value); err != nil {
			return err
		}
	}
	if attributes[kmsKey] != "" && attributes[managedEncryption] == "true" {
		return fail(schemas.InvalidAttributeName, "You can use one type of server-side encryption (SSE) at one time. "+
			"You can either enable KMS SSE or SQS SSE.")
	}
	return nil
}

func checkAttribute(name, value string) error {
	if n, ok := numbers[name]; ok && value != "" {
		v, err := strconv.ParseInt(value, 10, 64)
		if err != nil || v < n.least || v > n.most {
			return invalidAttribute(name)
		}
	}
	if all, ok := choices[name]; ok && value != "" && !slices.Contains(all, value) {
		return invalidAttribute(name)
	}
	switch {
	case value == "":
	case name == redrivePolicy:
		_, err := parseRedrivePolicy(value, strict.Unmarshal)
		return err
	case name == policyAttribute:
		if err := checkPolicy(value); err != nil {
			return invalidPolicy(err)
		}
	case name == redriveAllowPolicy:
		_, err := parseRedriveAllowPolicy(value)
		return err
	}
	return nil
}

// isSame reports whether two values of an attribute are the same number, policy or text. Example: "30" and "030".
func isSame(name, a, b string) bool {
	if a == b {
		return true
	}
	if _, ok := numbers[name]; ok {
		n, errN := strconv.ParseInt(a, 10, 64)
		m, errM := strconv.ParseInt(b, 10, 64)
		return errN == nil && errM == nil && n == m
	}
	switch name {
	case redrivePolicy:
		p, errP := parseRedrivePolicy(a, json.Unmarshal)
		q, errQ := parseRedrivePolicy(b, json.Unmarshal)
		return errP == nil && errQ == nil && p == q
	case redriveAllowPolicy, policyAttribute:
		var p, q any
		return json.Unmarshal([]byte(a), &p) == nil && json.Unmarshal([]byte(b), &q) == nil && reflect.DeepEqual(p, q)
	}
	return false
}

// checkNotEmpty returns an error if a number or a choice is empty. An empty value removes only a text, for example a
// Policy. A number would get its default, and a shorter retention drops messages. CreateQueue accepts an empty value as
// the default, because a new queue has nothing to lose.
func checkNotEmpty(attributes map[string]string) error {
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		if attributes[name] == "" && settable(name) && !slices.Contains(texts, name) {
			return invalidAttribute(name)
		}
	}
	return nil
}

// setAttributes adds attributes to those of a queue. An empty value removes an attribute.
func setAttributes(into, attributes map[string]string) {
	for name, value := range attributes {
		if value == "" {
			delete(into, name)
		} else {
			into[name] = value
		}
	}
	key, named := attributes[kmsKey]
	if key != "" {
		into[managedEncryption] = "false"
		return
	}
	if named || attributes[managedEncryption] == "true" {
		delete(into, kmsKey)
		delete(into, kmsReuse)
	}
}

// number is an attribute of the queue that is a number.
func (r record) number(name string) int64 {
	if v, err := strconv.ParseInt(r.Attributes[name], 10, 64); err == nil {
		return v
	}
	return numbers[name].otherwise
}

func (r record) duration(name string) time.Duration {
	return time.Duration(r.number(name)) * time.Second
}

// choice is an attribute of the queue that has few values.
func (r record) choice(name string) string {
	if v := r.Attributes[name]; v != "" {
		return v
	}
	return choices[name][0]
}

// fifo reports whether the queue is a FIFO queue.
func (r record) fifo() bool { return r.choice(fifoQueue) == "true" }

// dedupInGroup reports whether duplicates are looked for within groups.
func (r record) dedupInGroup() bool { return r.choice(dedupScope) == scopeGroup }

// leasePerItem reports whether each message, and not each claim, has a visibility timeout of its own.
func (r record) leasePerItem() bool { return r.fifo() && r.choice(visibilityOf) == visibleByItem }

// keepsVisibility returns an error if after has another visibilityOf: that is fixed when the queue is made.
func (r record) keepsVisibility(after record) error {
	if r.leasePerItem() == after.leasePerItem() {
		return nil
	}
	e := invalidAttribute(visibilityOf)
	e.text += " Reason: It is fixed when the queue is made."
	return e
}

// checkThroughput returns an error for a FifoThroughputLimit that does not go with the DeduplicationScope.
func (r record) checkThroughput() error {
	if r.choice(throughputLimit) != perGroup || r.dedupInGroup() {
		return nil
	}
	e := invalidAttribute(throughputLimit)
	e.text += " Reason: perMessageGroupId goes with the DeduplicationScope messageGroup."
	return e
}

// all returns the attributes of the queue that clients can set, and when it was created and changed. An attribute that
// no client has set has its default.
func (r record) all() map[string]string {
	all := make(map[string]string)
	for name, n := range numbers {
		if name != kmsReuse || r.Attributes[kmsKey] != "" {
			all[name] = strconv.FormatInt(n.otherwise, 10)
		}
	}
	for name, values := range choices {
		if r.fifo() || !slices.Contains(fifoOnly, name) {
			all[name] = values[0]
		}
	}
	maps.Copy(all, r.Attributes)
	all["CreatedTimestamp"] = strconv.FormatInt(r.Created, 10)
	all["LastModifiedTimestamp"] = strconv.FormatInt(r.Modified, 10)
	return all
}

// configure sets the settings of the layer that follow from the queue's attributes. The operator sets all others.
func (r record) configure(c *layer.Config) {
	c.Lease = max(r.duration(visibilityTimeout), layer.MinLease)
	c.Delay = r.duration(delaySeconds) // in a FIFO queue also for the messages that are there
	c.Retention, c.DeadLetterExpired = r.duration(retentionPeriod), false
	c.RoundRobin = true // otherwise a message that always fails is the oldest and always comes first
	c.Retry = layer.RetryPolicy{Kind: layer.RetryAtOnce}
	c.MaxAttempts, c.OnFailure = layer.Unlimited, layer.DeadLetterItem
	policy, err := parseRedrivePolicy(r.Attributes[redrivePolicy], json.Unmarshal)
	if err == nil && policy.queue != "" {
		c.MaxAttempts = policy.count
	}
	c.DedupByContent, c.DedupForPending, c.DedupWindow = false, false, 5*time.Minute
	c.GroupRequired, c.RetroactiveDelay, c.Fair = r.fifo(), r.fifo(), !r.fifo()
	c.DedupInGroup = r.dedupInGroup()
}

var errARN = errors.New("no ARN of a queue")

// arnName is the name of the queue that an ARN is of: arn:aws:sqs:us-east-1:000000000000:NAME.
func arnName(arn string) (string, error) {
	parts := strings.Split(arn, ":")
	if len(parts) != 6 || parts[0] != "arn" || parts[2] != "sqs" || parts[5] == "" {
		return "", errARN
	}
	return parts[5], nil
}

func (s *Server) arn(name string) string {
	return "arn:aws:sqs:" + s.options.Region + ":" + s.options.Account + ":" + name
}

// fifoSuffix ends the names of FIFO queues, and of no others.
const fifoSuffix = ".fifo"

// checkName checks the name of a new queue by AWS's rules.
func checkName(name string, fifo bool) error {
	plain := strings.TrimSuffix(name, fifoSuffix)
	good := len(name) >= 1 && len(name) <= 80 && plain != "" && !strings.ContainsFunc(plain, func(r rune) bool {
		return !isWord(r) && r != '-'
	})
	if fifo && (!good || plain == name) {
		return invalid("The name of a FIFO queue can only include alphanumeric characters, hyphens, or underscores, " +
			"must end with .fifo suffix and be 1 to 80 in length.")
	}
	if !fifo && (!good || plain != name) {
		return refuse(http.StatusBadRequest, "InvalidParameterValueException", "InvalidParameterValue",
			"Can only include alphanumeric characters, hyphens, or underscores. 1 to 80 in length")
	}
	return nil
}

// isWord reports whether r is an ASCII letter, a digit, or an underscore.
func isWord(r rune) bool {
	return r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '_'
}
