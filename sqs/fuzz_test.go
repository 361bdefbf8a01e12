package sqs

import (
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// FuzzQuery: the server answers any sequence of requests of the Query protocol. It does not panic, and no status is 500
// or above. The answer is valid XML, or valid JSON if a GET asks for JSON. It comes after the longest wait at the
// latest, and its size is bounded by the size of the requests. The queues keep the layer's invariants.
//
// Each line is a request: a body, or, with a slash at its beginning, a path with a query. HANDLE is the last receipt
// handle that was given.
func FuzzQuery(f *testing.F) {
	for _, requests := range querySeeds(f) {
		f.Add(requests)
	}
	f.Fuzz(func(t *testing.T, requests string) {
		const maxLines, maxSize = 10, 64 << 10
		lines := strings.SplitN(requests, "\n", maxLines+1)
		if len(lines) > maxLines || len(requests) > maxSize {
			t.Skip()
		}
		bubble(t, Options{ReuseNames: true}, func(e *env) {
			e.create("dead.fifo")
			e.create("jobs", visibilityTimeout, "2")
			e.create("orders.fifo", redrivePolicy,
				`{"deadLetterTargetArn":"`+e.s.arn("dead.fifo")+`","maxReceiveCount":2}`)
			e.send("jobs", "", "1", "2")
			e.send("orders.fifo", "a", "a1", "a2")
			handle := e.receive("orders.fifo", "MaxNumberOfMessages", 1)[0].ReceiptHandle
			for _, line := range lines {
				handle = e.ask(strings.ReplaceAll(line, "HANDLE", url.QueryEscape(handle)), handle, len(requests))
			}
			time.Sleep(5 * time.Second) // until a deleted queue is dropped
		})
	})
}

// given is a receipt handle in an answer.
var given = regexp.MustCompile(`<ReceiptHandle>([^<]+)</|"ReceiptHandle":"([^"]+)"`)

// ask sends a line of FuzzQuery and checks the answer as FuzzQuery says. It returns the receipt handle of the answer,
// or handle if the answer has none. sent is the size of all requests so far, in bytes.
func (e *env) ask(line, handle string, sent int) string {
	r := httptest.NewRequest(http.MethodPost, "http://localhost/", strings.NewReader(line))
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	if strings.HasPrefix(line, "/") {
		u, err := url.ParseRequestURI(line)
		if err != nil {
			return handle // no HTTP server lets it in
		}
		r = httptest.NewRequest(http.MethodGet, "http://localhost/", nil)
		r.URL.Path, r.URL.RawQuery = u.Path, u.RawQuery
		if u.Query().Has("json") {
			r.Header.Set("Accept", "application/json")
		}
	}
	begun := time.Now()
	status, header, body := e.do(r)
	require.Less(e, status, http.StatusInternalServerError, "%q: %s", line, body)
	require.LessOrEqual(e, time.Since(begun), (maxWait+5)*time.Second, line)
	if header.Get("Content-Type") == "application/json" {
		require.True(e, json.Valid([]byte(body)), "%q: %s", line, body)
	} else {
		d := xml.NewDecoder(strings.NewReader(body))
		for {
			if _, err := d.Token(); errors.Is(err, io.EOF) {
				break
			} else {
				require.NoError(e, err, "%q: %s", line, body)
			}
		}
	}
	if status == http.StatusOK {
		require.Less(e, len(body), 64<<10+8*maxEntries*sent, line)
	} else {
		require.Less(e, len(body), 8*maxText, line) // each letter may be escaped
		require.NotContains(e, body, "<Code></Code>")
	}
	if found := given.FindStringSubmatch(body); found != nil {
		return found[1] + found[2]
	}
	return handle
}

// querySeeds are requests for all operations, those that are refused among them, and some that belong together.
func querySeeds(f *testing.F) []string {
	text := func(action string, in any) string {
		form := url.Values{"Action": {action}}
		encode(form, operations[action].in, "", in)
		return form.Encode()
	}
	seeds := []string{
		"Action=ReceiveMessage&QueueUrl=orders.fifo&WaitTimeSeconds=20&AttributeName.1=All&MessageAttributeName.1=*\n" +
			"Action=ReceiveMessage&QueueUrl=jobs&MaxNumberOfMessages=10&VisibilityTimeout=0\n" +
			"Action=DeleteMessage&QueueUrl=orders.fifo&ReceiptHandle=HANDLE",
		"Action=ChangeMessageVisibility&QueueUrl=orders.fifo&ReceiptHandle=HANDLE&VisibilityTimeout=0\n" +
			"Action=ReceiveMessage&QueueUrl=orders.fifo&ReceiveRequestAttemptId=x&VisibilityTimeout=1\n" +
			"Action=ReceiveMessage&QueueUrl=orders.fifo&ReceiveRequestAttemptId=x&WaitTimeSeconds=3\n" +
			"Action=DeleteMessageBatch&QueueUrl=orders.fifo&DeleteMessageBatchRequestEntry.1.Id=a" +
			"&DeleteMessageBatchRequestEntry.1.ReceiptHandle=HANDLE\nAction=ReceiveMessage&QueueUrl=dead.fifo\n" +
			"Action=StartMessageMoveTask&SourceArn=arn:aws:sqs:us-east-1:000000000000:dead.fifo\n" +
			"Action=ListMessageMoveTasks&SourceArn=arn:aws:sqs:us-east-1:000000000000:dead.fifo",
		"/000000000000/jobs?Action=GetQueueAttributes&AttributeName.1=All&json=1\n/?Action=ListQueues&json=1\n/a/jobs",
		"Action=DeleteMessage&QueueUrl=orders.fifo&ReceiptHandle=AQ==\n" +
			"Action=DeleteMessage&QueueUrl=orders.fifo&ReceiptHandle=Ag==\n" +
			"Action=DeleteMessage&QueueUrl=orders.fifo&ReceiptHandle=HANDLE==",
		"Action=SetQueueAttributes&QueueUrl=jobs&Attribute.Name=Policy&Attribute.Value=" +
			url.QueryEscape(`{"Statement":[{"Effect":"Deny","Principal":"*","Action":"sqs:*"}]}`) +
			"\nAction=AddPermission&QueueUrl=jobs&Label=l&AWSAccountId.1=111122223333&ActionName.1=*" +
			"\nAction=RemovePermission&QueueUrl=jobs&Label=l\nAction=PurgeQueue&QueueUrl=jobs",
		"Action=DeleteQueue&QueueUrl=jobs\nAction=CreateQueue&QueueName=jobs\nAction=DeleteQueue&QueueUrl=dead.fifo" +
			"\nAction=SendMessage&QueueUrl=orders.fifo&MessageBody=b&MessageGroupId=g",
	}
	for action, op := range operations {
		n := 0
		seeds = append(seeds, text(action, example(op.in, &n)))
	}
	refusals, err := os.ReadFile("testdata/refusals.txt")
	require.NoError(f, err)
	for block := range strings.SplitSeq(strings.TrimSpace(string(refusals)), "\n\n") {
		asked, _, _ := strings.Cut(block, "\n")
		parts := strings.SplitN(asked, " ", 3)
		d := json.NewDecoder(strings.NewReader(parts[2]))
		d.UseNumber()
		request := object{}
		require.NoError(f, d.Decode(&request))
		if parts[1] != "-" {
			request["QueueUrl"] = parts[1]
		}
		seeds = append(seeds, text(parts[0], request))
	}
	return seeds
}
