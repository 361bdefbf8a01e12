package sqs

import (
	"cmp"
	"crypto/md5" // #nosec: the protocol's checksum
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/aws/aws-sdk-go-v2/service/sqs/schemas"

	"fdbfifo/layer"
)

// The headers of the layer's message that hold the parts of an SQS message. All other headers, which a Go program may
// set, are delivered as attributes.
const (
	headerPrefix = "sqs-"
	// headerAttributes has the attributes as JSON, or, if they are large, headerInBody how many bytes at the
	// beginning of the body have them.
	headerAttributes = "sqs-attributes"
	headerInBody     = "sqs-attributes-in-body"
	headerTrace      = "sqs-trace"
	headerSender     = "sqs-sender"
	headerGroup      = "sqs-group" // of a standard queue's message
	// Of a message that was moved from another queue: its id there, that queue, its receives and the time of its
	// sending.
	headerID       = "sqs-id"
	headerSource   = "sqs-source"
	headerReceived = "sqs-received"
	headerSent     = "sqs-sent" // ms
)

// maxAttributesHeader is the largest size of attributes that are stored in a header.
const maxAttributesHeader = 8 << 10 // bytes

const (
	traceHeader = "AWSTraceHeader"
	maxTrace    = 1024 // bytes
)

// noTenant is the tenant, in a standard queue, of messages without a MessageGroupId, which cannot have a space.
const noTenant = " "

// store is the message as the layer keeps it.
func (m *outgoing) store(q *queue, c *call) layer.Message {
	headers := map[string]string{}
	out := layer.Message{Body: []byte(*m.MessageBody), Headers: headers}
	if len(m.MessageAttributes) > 0 {
		text := marshal(m.MessageAttributes)
		if len(text) <= maxAttributesHeader {
			headers[headerAttributes] = string(text)
		} else {
			headers[headerInBody] = strconv.Itoa(len(text))
			out.Body = append(text, out.Body...)
		}
	}
	if v := m.MessageSystemAttributes[traceHeader].StringValue; v != nil {
		headers[headerTrace] = *v
	} else if c.trace != "" && len(c.trace) <= maxTrace && utf8.ValidString(c.trace) {
		headers[headerTrace] = c.trace
	}
	if sender := c.sender(q.server); sender != "" {
		headers[headerSender] = sender
	}
	if m.DelaySeconds != nil && !q.fifo() {
		out.Delay = time.Duration(*m.DelaySeconds) * time.Second
		out.AtOnce = out.Delay == 0
	}
	if !q.fifo() {
		out.Alone, out.Tenant = true, noTenant
		if m.MessageGroupId != nil {
			headers[headerGroup], out.Tenant = *m.MessageGroupId, *m.MessageGroupId
		}
		return out
	}
	out.Group = *m.MessageGroupId
	if m.MessageDeduplicationId != nil {
		out.DedupID = *m.MessageDeduplicationId
	} else {
		out.DedupID = sha(*m.MessageBody)
	}
	return out
}

// stored is a message as the layer has kept it.
type stored struct {
	layer.Item
	body       string
	attributes map[string]attributeValue
}

// load reads what store has made, or what a program has enqueued without this API.
func load(item layer.Item) stored {
	m := stored{Item: item}
	body, text := item.Body, []byte(item.Headers[headerAttributes])
	if n, err := strconv.Atoi(item.Headers[headerInBody]); err == nil && n > 0 && n <= len(body) {
		text, body = body[:n], body[n:]
	}
	m.body = strings.ToValidUTF8(string(body), "\uFFFD")
	if len(text) > 0 && json.Unmarshal(text, &m.attributes) != nil {
		m.attributes = nil
	}
	for name, value := range item.Headers {
		if !strings.HasPrefix(name, headerPrefix) && value != "" && badAttributeName(name) == "" {
			if m.attributes == nil {
				m.attributes = make(map[string]attributeValue)
			}
			m.attributes[name] = attributeValue{StringValue: &value, DataType: "String"}
		}
	}
	return m
}

// toXML replaces characters that XML cannot have, which only programs without this API can enqueue. The checksums are
// then those of the replaced text, because clients check them.
func (m *stored) toXML() {
	m.body = xmlText(m.body)
	for name, v := range m.attributes {
		if v.StringValue != nil {
			text := xmlText(*v.StringValue)
			v.StringValue = &text
		}
		v.DataType = xmlText(v.DataType)
		m.attributes[name] = v
	}
}

func xmlText(text string) string {
	return strings.Map(func(r rune) rune {
		if !inXML(r) {
			return utf8.RuneError
		}
		return r
	}, text)
}

// id is the MessageId, which a message keeps on its way to a dead letter queue.
func (m stored) id() string {
	if id := m.Headers[headerID]; id != "" {
		return id
	}
	return m.ID.Random.String()
}

// receives is how often the message was received before, in all queues.
func (m stored) receives() int {
	n, _ := strconv.Atoi(m.Headers[headerReceived]) // 0 if there is none
	return n + m.Attempts
}

// sent returns when the message was sent, in ms. For a message that was moved between standard queues it is the time of
// the first send. Otherwise it is when the message came to this queue.
func (m stored) sent() int64 {
	if ms, err := strconv.ParseInt(m.Headers[headerSent], 10, 64); err == nil {
		return ms
	}
	return m.Enqueued.UnixMilli()
}

// sequence is the SequenceNumber, of 128 bits. The index alone is not unique in a group: two servers that send at the
// same time may choose the same. Like the keys of the layer, the numbers are then in the order of the random parts.
func sequence(id layer.ID) string {
	return fmt.Sprintf("%020d%019d", id.Index, binary.BigEndian.Uint64(id.Random[:])>>1) // 63 bits are below 10^19
}

// keptIn are the system attributes that are kept in headers.
var keptIn = map[string]string{"SenderId": headerSender, traceHeader: headerTrace, "MessageGroupId": headerGroup}

// system are the message's system attributes.
func (m stored) system(s *Server, fifo bool) map[string]string {
	all := map[string]string{
		"SenderId":                         s.options.Account,
		"SentTimestamp":                    strconv.FormatInt(m.sent(), 10),
		"ApproximateReceiveCount":          strconv.Itoa(m.receives() + 1),
		"ApproximateFirstReceiveTimestamp": strconv.FormatInt(m.FirstDelivered.UnixMilli(), 10),
	}
	for name, header := range keptIn {
		if v := m.Headers[header]; v != "" {
			all[name] = v
		}
	}
	if v := m.Headers[headerSource]; v != "" {
		all["DeadLetterQueueSourceArn"] = s.arn(v)
	}
	if fifo {
		all["MessageGroupId"] = m.ID.Group
		all["SequenceNumber"] = sequence(m.ID)
		// In a dead letter queue it is the MessageId. A message that a Go program has enqueued may have none.
		all["MessageDeduplicationId"] = cmp.Or(m.DedupID, m.id())
		if m.Headers[headerID] != "" {
			all["MessageDeduplicationId"] = m.id()
		}
	}
	return all
}

// systemNames are the system attributes that can be asked for.
var systemNames = []string{
	"All", "SenderId", "SentTimestamp", "ApproximateReceiveCount", "ApproximateFirstReceiveTimestamp", "SequenceNumber",
	"MessageDeduplicationId", "MessageGroupId", traceHeader, "DeadLetterQueueSourceArn",
}

// matches reports whether an attribute is among those that were asked for: by name, by the beginning of the name
// before ".*", or all. AWS takes "*" for all, too, though its documentation has "All" and ".*".
func matches(wanted []string, name string) bool {
	return slices.ContainsFunc(wanted, func(w string) bool {
		prefix, ok := strings.CutSuffix(w, ".*")
		return w == "All" || w == "*" || w == name || ok && strings.HasPrefix(name, prefix)
	})
}

// check checks a message to send by AWS's rules.
func (m *outgoing) check(q *queue) error {
	if m.MessageBody == nil || *m.MessageBody == "" {
		return missing("MessageBody")
	}
	if m.DelaySeconds != nil {
		switch {
		case q.fifo() && *m.DelaySeconds != 0:
			return invalidValue(*m.DelaySeconds, delaySeconds,
				"The request include parameter that is not valid for this queue type.")
		case *m.DelaySeconds < 0 || *m.DelaySeconds > 900:
			return invalidValue(*m.DelaySeconds, delaySeconds, "DelaySeconds must be >= 0 and <= 900.")
		}
	}
	if !wellFormed(*m.MessageBody) {
		return fail(schemas.InvalidMessageContents, "%s", badCharacters)
	}
	if err := checkMessageAttributes(m.MessageAttributes); err != nil {
		return err
	}
	for name, v := range m.MessageSystemAttributes {
		if name != traceHeader || v.DataType != "String" || len(v.value()) == 0 || len(v.value()) > maxTrace ||
			v.hasOther() || !wellFormed(*v.StringValue) {
			return invalid("Message system attribute name '%s' is invalid.", name)
		}
	}
	if err := m.checkIDs(q); err != nil {
		return err
	}
	if most := q.record.number(maximumMessageSize); int64(m.size()) > most {
		return invalid("One or more parameters are invalid. Reason: Message must be shorter than %d bytes.", most)
	}
	return nil
}

// checkIDs checks the group id and the deduplication id by AWS's rules.
func (m *outgoing) checkIDs(q *queue) error {
	switch {
	case q.fifo() && m.MessageGroupId == nil:
		return missing("MessageGroupId")
	case m.MessageGroupId != nil && !isPunctuated(*m.MessageGroupId):
		return invalidValue(*m.MessageGroupId, "MessageGroupId",
			"MessageGroupId can only include alphanumeric and punctuation characters. 1 to 128 in length.")
	case !q.fifo() && m.MessageDeduplicationId != nil:
		return invalidValue(*m.MessageDeduplicationId, "MessageDeduplicationId",
			"The request includes a parameter that is not valid for this queue type.")
	case m.MessageDeduplicationId != nil && !isPunctuated(*m.MessageDeduplicationId):
		return invalidValue(*m.MessageDeduplicationId, "MessageDeduplicationId",
			"MessageDeduplicationId can only include alphanumeric and punctuation characters. 1 to 128 in length.")
	case q.fifo() && m.MessageDeduplicationId == nil && q.record.choice(contentBased) != "true":
		return noDedupID()
	}
	return nil
}

func noDedupID() error {
	return invalid("The queue should either have ContentBasedDeduplication enabled or " +
		"MessageDeduplicationId provided explicitly")
}

// isPunctuated reports whether text is an id of 1 to 128 ASCII letters, digits and punctuation.
func isPunctuated(text string) bool {
	return len(text) >= 1 && len(text) <= 128 &&
		!strings.ContainsFunc(text, func(r rune) bool { return r < '!' || r > '~' })
}

const badCharacters = "Invalid characters found. Valid unicode characters are " +
	"#x9 | #xA | #xD | #x20 to #xD7FF | #xE000 to #xFFFD | #x10000 to #x10FFFF"

// wellFormed reports whether text has only characters that XML can have.
func wellFormed(text string) bool {
	return utf8.ValidString(text) && !strings.ContainsFunc(text, func(r rune) bool { return !inXML(r) })
}

// inXML reports whether XML can have a character.
func inXML(r rune) bool {
	return (r >= ' ' || r == '\t' || r == '\n' || r == '\r') && r != 0xFFFE && r != 0xFFFF
}

// maxText bounds an error's text, which may repeat a part of the request. It is long enough for a whole receipt handle.
const maxText = 2048 // bytes

// readable returns the text of an error without characters that do not print. It cuts the middle out of a long text,
// because the reason is at the end.
func readable(text string) string {
	text = strings.Map(func(r rune) rune {
		if r == '\n' || r == '\t' || unicode.IsGraphic(r) {
			return r
		}
		return unicode.ReplacementChar
	}, text)
	if len(text) <= maxText {
		return text
	}
	head, tail := text[:maxText*3/4], text[len(text)-maxText/4+len(" … "):]
	return strings.ToValidUTF8(head, "") + " … " + strings.ToValidUTF8(tail, "") // a cut may divide a letter
}

// maxAttributes is how many attributes a message may have.
const maxAttributes = 10

func checkMessageAttributes(attributes map[string]attributeValue) error {
	if len(attributes) > maxAttributes {
		return invalid("Number of message attributes [%d] exceeds the allowed maximum [%d].",
			len(attributes), maxAttributes)
	}
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		if reason := badAttributeName(name); reason != "" {
			return invalid("%s", reason)
		}
		if err := attributes[name].check(name); err != nil {
			return err
		}
	}
	return nil
}

// badAttributeName says what is wrong with a name; "" = nothing.
func badAttributeName(name string) string {
	lower := strings.ToLower(name)
	switch {
	case name == "" || len(name) > 256:
		return "Message (user) attribute names must be shorter than 256 Bytes"
	case strings.ContainsFunc(name, func(r rune) bool {
		return !unicode.IsLetter(r) && !isWord(r) && r != '-' && r != '.'
	}):
		return "Message (user) attributes name can only contain upper and lower score characters, digits, periods, " +
			"hyphens and underscores. "
	case strings.HasPrefix(lower, "aws."), strings.HasPrefix(lower, "amazon."),
		name[0] == '.', name[len(name)-1] == '.', strings.Contains(name, ".."):
		return "You can't use message attribute names beginning with 'AWS.' or 'Amazon.'. " +
			"These strings are reserved for internal use. Additionally, they cannot start or end with '.'."
	}
	return ""
}

// kind returns String, Number or Binary, without a custom label after a dot.
func (v attributeValue) kind() string {
	kind, _, _ := strings.Cut(v.DataType, ".")
	return kind
}

// hasOther reports whether there is a value in the field that the type does not name.
func (v attributeValue) hasOther() bool {
	if v.kind() == "Binary" {
		return v.StringValue != nil && *v.StringValue != ""
	}
	return len(v.BinaryValue) > 0
}

func (v attributeValue) check(name string) error {
	empty := func() error {
		return invalid("Message (user) attribute '%s' must contain a non-empty value of type '%s'.", name, v.DataType)
	}
	if len(v.DataType) > 256 {
		return invalid("Message (user) attribute types must be shorter than 256 Bytes")
	}
	if !wellFormed(v.DataType) {
		return invalid("%s", badCharacters)
	}
	switch v.kind() {
	case "String", "Number":
		if v.StringValue == nil || *v.StringValue == "" {
			return empty()
		}
		if !wellFormed(*v.StringValue) {
			return invalid("%s", badCharacters)
		}
		if v.kind() == "Number" && !isNumber(*v.StringValue) {
			return invalid("Can't cast the value of message (user) attribute '%s' to a number.", name)
		}
	case "Binary":
		if len(v.BinaryValue) == 0 {
			return empty()
		}
	case "":
		return invalid("The message attribute '%s' must contain non-empty message attribute type.", name)
	default:
		return invalid("The message attribute '%s' has an invalid message attribute type, the set of supported type "+
			"prefixes is Binary, Number, and String.", name)
	}
	if v.hasOther() { // the limits, the checks and the checksum are of the field that the type names
		return invalid("The message attribute '%s' with type '%s' has a value in another field than that of its type.",
			name, v.DataType)
	}
	return nil
}

var number = regexp.MustCompile(`^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$`)

// isNumber reports whether text is a number by AWS's rules: decimal, and 0 or between 1e-128 and 1e126.
func isNumber(text string) bool {
	n, err := strconv.ParseFloat(text, 64)
	if n == 0 { // or too small for a float64
		mantissa, _, _ := strings.Cut(strings.ToLower(text), "e")
		return number.MatchString(text) && !strings.ContainsAny(mantissa, "123456789")
	}
	return err == nil && number.MatchString(text) && math.Abs(n) >= 1e-128 && math.Abs(n) <= 1e126
}

// value is the value's bytes.
func (v attributeValue) value() []byte {
	if v.kind() == "Binary" {
		return v.BinaryValue
	}
	if v.StringValue == nil {
		return nil
	}
	return []byte(*v.StringValue)
}

// size returns the bytes that count towards the limits.
func (m *outgoing) size() int {
	n := 0
	if m.MessageBody != nil {
		n = len(*m.MessageBody)
	}
	for name, v := range m.MessageAttributes {
		n += len(name) + len(v.DataType) + len(v.value())
	}
	return n
}

func digest(body string) string {
	sum := md5.Sum([]byte(body))
	return hex.EncodeToString(sum[:])
}

// digestAttributes is the checksum of attributes: of names, types and values with their lengths, in the order of
// the names. "" = there are none.
func digestAttributes(attributes map[string]attributeValue) string {
	if len(attributes) == 0 {
		return ""
	}
	var b []byte
	put := func(part []byte) { b = append(binary.BigEndian.AppendUint32(b, uint32(len(part))), part...) }
	for _, name := range slices.Sorted(maps.Keys(attributes)) {
		v := attributes[name]
		put([]byte(name))
		put([]byte(v.DataType))
		if v.kind() == "Binary" {
			b = append(b, 2)
		} else {
			b = append(b, 1)
		}
		put(v.value())
	}
	return digest(string(b))
}
