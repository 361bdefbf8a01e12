package sqs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"net/http"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/service/sqs/schemas"
	"github.com/aws/smithy-go"
	"github.com/stretchr/testify/require"
)

// fields are the fields of a struct by their names on the wire, those of embedded structs among them.
func fields(t reflect.Type) map[string]reflect.Type {
	all := make(map[string]reflect.Type)
	for i := range t.NumField() {
		f := t.Field(i)
		if f.Anonymous {
			for name, of := range fields(f.Type) {
				all[name] = of
			}
			continue
		}
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" {
			name = f.Name
		}
		all[name] = f.Type
	}
	return all
}

// agree holds a Go type to a shape, with all below. A member that a request may leave out may be a pointer.
func agree(t *testing.T, path string, s *smithy.Schema, of reflect.Type) {
	if of.Kind() == reflect.Pointer {
		of = of.Elem()
	}
	switch s.Type() {
	case smithy.ShapeTypeStructure:
		have := fields(of)
		for name, member := range s.Members() {
			if strings.HasSuffix(name, "ListValues") {
				continue // of message attributes: the service has no such type
			}
			require.Contains(t, have, name, "%s lacks a member", path)
			agree(t, path+"."+name, member, have[name])
			delete(have, name)
		}
		require.Empty(t, have, "%s has what the schema has not", path)
	case smithy.ShapeTypeList:
		require.Equal(t, reflect.Slice, of.Kind(), path)
		agree(t, path+"[]", s.ListMember(), of.Elem())
	case smithy.ShapeTypeMap:
		require.Equal(t, reflect.Map, of.Kind(), path)
		agree(t, path+"{}", s.MapValue(), of.Elem())
	case smithy.ShapeTypeInteger, smithy.ShapeTypeLong:
		require.Equal(t, reflect.Int64, of.Kind(), path)
	case smithy.ShapeTypeBoolean:
		require.Equal(t, reflect.Bool, of.Kind(), path)
	case smithy.ShapeTypeBlob:
		require.Equal(t, reflect.TypeFor[[]byte](), of, path)
	default:
		require.Equal(t, reflect.String, of.Kind(), path)
	}
}

// TestShapes holds the structs of all 23 operations to the schemas: a version of the SDK in which one of them has
// changed is found here.
func TestShapes(t *testing.T) {
	require.Len(t, operations, 23)
	for name, op := range operations {
		require.Equal(t, name+"Request", op.in.ID().Name)
		agree(t, name, op.in, reflect.TypeOf(op.empty[0]))
		if op.out != nil {
			require.Equal(t, name+"Result", op.out.ID().Name)
			agree(t, name, op.out, reflect.TypeOf(op.empty[1]))
		}
	}
}

// example is a tree of a shape in which everything is there, each text another.
func example(s *smithy.Schema, n *int) tree {
	*n++
	switch s.Type() {
	case smithy.ShapeTypeStructure:
		members := make(map[string]any)
		for name, member := range s.Members() {
			if !strings.HasSuffix(name, "ListValues") {
				members[name] = example(member, n)
			}
		}
		return members
	case smithy.ShapeTypeList:
		return []any{example(s.ListMember(), n), example(s.ListMember(), n)}
	case smithy.ShapeTypeMap:
		return map[string]any{
			fmt.Sprint("key", *n): example(s.MapValue(), n), fmt.Sprint("other", *n): example(s.MapValue(), n),
		}
	case smithy.ShapeTypeInteger, smithy.ShapeTypeLong:
		return json.Number(fmt.Sprint(*n))
	case smithy.ShapeTypeBoolean:
		return true
	case smithy.ShapeTypeBlob:
		return "AAEC"
	}
	return fmt.Sprintf("text %d <&>\r\n", *n)
}

// encode writes a tree as the parameters of a Query request.
func encode(form url.Values, s *smithy.Schema, name string, t tree) {
	switch s.Type() {
	case smithy.ShapeTypeStructure:
		for member, v := range t.(map[string]any) {
			below := wireName(s.Member(member), member)
			if name != "" {
				below = name + "." + below
			}
			encode(form, s.Member(member), below, v)
		}
	case smithy.ShapeTypeList:
		for i, v := range t.([]any) {
			encode(form, s.ListMember(), fmt.Sprintf("%s.%d", name, i+1), v)
		}
	case smithy.ShapeTypeMap:
		i := 0
		for key, v := range t.(map[string]any) {
			i++
			form.Set(fmt.Sprintf("%s.%d.%s", name, i, wireName(s.MapKey(), "key")), key)
			encode(form, s.MapValue(), fmt.Sprintf("%s.%d.%s", name, i, wireName(s.MapValue(), "value")), v)
		}
	default:
		form.Set(name, fmt.Sprint(t))
	}
}

// TestQueryRequests: what all 23 operations can be asked comes out of the parameters as it went in.
func TestQueryRequests(t *testing.T) {
	for name, op := range operations {
		n := 0
		want := example(op.in, &n)
		if name == "ReceiveMessage" { // two members have one name in the Query protocol, and mean the same
			members := want.(map[string]any)
			members["MessageSystemAttributeNames"] = members["AttributeNames"]
		}
		form := url.Values{}
		encode(form, op.in, "", want)
		asked := newParams(form)
		require.Equal(t, want, asked.tree(op.in), name)
		require.NoError(t, *asked.bad, name)
		text, err := json.Marshal(want)
		require.NoError(t, err)
		request := reflect.New(reflect.TypeOf(op.empty[0]))
		require.NoError(t, json.Unmarshal(text, request.Interface()), name)
	}
}

// TestQueryNames are the names of parameters as AWS's documentation has them, and as older clients send them.
func TestQueryNames(t *testing.T) {
	for parameters, want := range map[string]struct {
		of   *smithy.Schema
		tree object
	}{
		"Attribute.1.Name=DelaySeconds&Attribute.1.Value=5&Attribute.7.Name=A&Attribute.7.Value=B&Tag.1.Key=k" +
			"&Tag.1.Value=v&QueueName=q&...=no": {schemas.CreateQueueRequest, object{
			"QueueName": "q", "Attributes": object{"DelaySeconds": "5", "A": "B"}, "tags": object{"k": "v"},
		}},
		"QueueUrl=u&AttributeName=All": { // boto 2, Amazon::SQS::Simple
			schemas.GetQueueAttributesRequest, object{"QueueUrl": "u", "AttributeNames": []any{"All"}},
		},
		"QueueUrl=u&AttributeName=": { // an empty list of the SDKs for Python and Java
			schemas.GetQueueAttributesRequest, object{"QueueUrl": "u"},
		},
		"Attribute.Name=DelaySeconds&Attribute.Value=5": {
			schemas.SetQueueAttributesRequest, object{"Attributes": object{"DelaySeconds": "5"}},
		},
		"SendMessageBatchRequestEntry.1.Id=a&SendMessageBatchRequestEntry.1.DelaySeconds=0" +
			"&SendMessageBatchRequestEntry.1.MessageAttribute.1.Name=n" +
			"&SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.DataType=Number" +
			"&SendMessageBatchRequestEntry.1.MessageAttribute.1.Value.StringValue=1": {
			schemas.SendMessageBatchRequest, object{"Entries": []any{object{
				"Id": "a", "DelaySeconds": json.Number("0"),
				"MessageAttributes": object{"n": object{"DataType": "Number", "StringValue": "1"}},
			}}},
		},
	} {
		form, err := url.ParseQuery(parameters)
		require.NoError(t, err)
		asked := newParams(form)
		require.Equal(t, want.tree, asked.tree(want.of), parameters)
		require.NoError(t, *asked.bad, parameters)
	}
}

// TestQueryEntries: no entry of a list or a map is left out in silence. A client that counts from 0, for example, would
// take its batch for sent. The error names the parameter.
func TestQueryEntries(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		url := e.create("jobs", delaySeconds, "5")
		const batch, entry = "Action=SendMessageBatch&QueueUrl=jobs", "&SendMessageBatchRequestEntry."
		const set = "Action=SetQueueAttributes&QueueUrl=jobs&Attribute.1.Name=DelaySeconds&Attribute.1.Value=7"
		const alone = "Action=SetQueueAttributes&QueueUrl=jobs&Attribute.Name=A&Attribute.Value=5"
		one := entry + "1.Id=b" + entry + "1.MessageBody=b"
		for parameters, named := range map[string]string{
			batch + one + entry + "0.Id=a" + entry + "0.MessageBody=a":           "SendMessageBatchRequestEntry.0",
			batch + one + entry + "02.Id=a" + entry + "02.MessageBody=a":         "SendMessageBatchRequestEntry.02",
			batch + one + entry + "Id=a" + entry + "MessageBody=a":               "SendMessageBatchRequestEntry",
			batch + entry + "Id=a" + entry + "MessageBody=a" + entry + "-1.Id=b": "SendMessageBatchRequestEntry.-1",
			batch + one + entry + "1.MessageAttribute.0.Name=n" + entry + "1.MessageAttribute.0.Value.DataType=String" +
				entry + "1.MessageAttribute.0.Value.StringValue=v": entry[1:] + "1.MessageAttribute.0",
			batch + one + entry + "1.MessageAttribute.1.Value.DataType=String" +
				entry + "1.MessageAttribute.1.Value.StringValue=v": entry[1:] + "1.MessageAttribute.1",
			set + "&Attribute.0.Name=Policy&Attribute.0.Value=":                "Attribute.0",
			set + "&Attribute.2.Value=5":                                       "Attribute.2",
			set + "&Attribute.2=VisibilityTimeout":                             "Attribute.2",
			set + "&Attribute=VisibilityTimeout":                               "Attribute",
			set + "&Attribute.Name=VisibilityTimeout&Attribute.Value=5":        "Attribute",
			alone + "&Attribute=B":                                             "Attribute",
			"Action=SetQueueAttributes&QueueUrl=jobs&Attribute.entry.1.Name=A": "Attribute.entry",
			"Action=UntagQueue&QueueUrl=jobs&TagKey.0=a&TagKey.1=b":            "TagKey.0",
			"Action=UntagQueue&QueueUrl=jobs&TagKey.member.1=a":                "TagKey.member",
			"Action=UntagQueue&QueueUrl=jobs&TagKey.1=a&TagKey.2.b=c":          "TagKey.2",
			"Action=PurgeQueue&QueueUrl.1=jobs":                                "QueueUrl",
		} {
			status, answer := e.query(parameters)
			require.Equal(e, http.StatusBadRequest, status, "%s: %s", parameters, answer)
			require.Contains(e, answer, "<Code>MalformedInput</Code>", parameters)
			require.Contains(e, html.UnescapeString(answer), `the parameter "`+named+`"`, parameters)
		}
		require.Equal(e, "5", e.attributes(url)[delaySeconds])
		time.Sleep(10 * time.Second)
		require.Empty(e, e.receive(url))
	})
}

// TestXMLAnswer is an answer as AWS's documentation has it.
func TestXMLAnswer(t *testing.T) {
	var b bytes.Buffer
	writeMembers(&b, schemas.ReceiveMessageResult, map[string]any{"Messages": []any{map[string]any{
		"Body": "a\r<&>", "Attributes": map[string]any{"SenderId": "1", "SentTimestamp": "2"},
		"MessageAttributes": map[string]any{"n": map[string]any{"DataType": "Binary", "BinaryValue": "AAE="}},
	}}})
	require.Equal(t, "<Message><Attribute><Name>SenderId</Name><Value>1</Value></Attribute>"+
		"<Attribute><Name>SentTimestamp</Name><Value>2</Value></Attribute><Body>a&#xD;&lt;&amp;&gt;</Body>"+
		"<MessageAttribute><Name>n</Name><Value><BinaryValue>AAE=</BinaryValue><DataType>Binary</DataType></Value>"+
		"</MessageAttribute></Message>", b.String())
	b.Reset()
	writeMembers(&b, schemas.ListDeadLetterSourceQueuesResult, map[string]any{"queueUrls": []any{"u", "v"}})
	require.Equal(t, "<QueueUrl>u</QueueUrl><QueueUrl>v</QueueUrl>", b.String())
}

// TestErrorCodes: JSON's type, Query's code and the status of each error that the service's model has.
func TestErrorCodes(t *testing.T) {
	const long = "AWS.SimpleQueueService."
	for s, want := range map[*smithy.Schema]struct {
		code   string
		status int
	}{
		schemas.QueueDoesNotExist:            {long + "NonExistentQueue", 400},
		schemas.QueueNameExists:              {"QueueAlreadyExists", 400},
		schemas.QueueDeletedRecently:         {long + "QueueDeletedRecently", 400},
		schemas.UnsupportedOperation:         {long + "UnsupportedOperation", 400},
		schemas.MessageNotInflight:           {long + "MessageNotInflight", 400},
		schemas.BatchEntryIdsNotDistinct:     {long + "BatchEntryIdsNotDistinct", 400},
		schemas.BatchRequestTooLong:          {long + "BatchRequestTooLong", 400},
		schemas.EmptyBatchRequest:            {long + "EmptyBatchRequest", 400},
		schemas.InvalidBatchEntryId:          {long + "InvalidBatchEntryId", 400},
		schemas.TooManyEntriesInBatchRequest: {long + "TooManyEntriesInBatchRequest", 400},
		schemas.PurgeQueueInProgress:         {long + "PurgeQueueInProgress", 403},
		schemas.OverLimit:                    {"OverLimit", 403},
		schemas.RequestThrottled:             {"RequestThrottled", 403},
		schemas.InvalidSecurity:              {"InvalidSecurity", 403},
		schemas.ReceiptHandleIsInvalid:       {"ReceiptHandleIsInvalid", 404},
		schemas.InvalidAddress:               {"InvalidAddress", 404},
		schemas.ResourceNotFoundException:    {"ResourceNotFoundException", 404},
		schemas.InvalidAttributeName:         {"InvalidAttributeName", 400},
		schemas.InvalidAttributeValue:        {"InvalidAttributeValue", 400},
		schemas.InvalidMessageContents:       {"InvalidMessageContents", 400},
	} {
		e := fail(s, "text %d", 1)
		require.Equal(t, modelled+s.ID().Name, e.shape)
		require.Equal(t, want.code, e.code)
		require.Equal(t, want.status, e.status, want.code)
		require.Equal(t, "text 1", e.text)
	}
}
