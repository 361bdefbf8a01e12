package sqs

import (
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
)

// TestDocumentedBounds: docs/guarantees.md has the bounds of requests and of queues.
func TestDocumentedBounds(t *testing.T) {
	text, err := os.ReadFile("../docs/guarantees.md")
	require.NoError(t, err)
	for _, bound := range []string{
		fmt.Sprintf("| a request that sends messages | %d MiB |", maxBody>>20),
		fmt.Sprintf("| any other request | %d KiB |", maxOther>>10),
		fmt.Sprintf("| values of a request | %d,%03d |", maxValues/1000, maxValues%1000),
		fmt.Sprintf("| names in a request | %d, each of %d bytes |", maxNames, maxName),
		fmt.Sprintf("| %d,%03d bytes; the stored row %d,%03d |",
			maxSettings/1000, maxSettings%1000, maxSettings/1000+1, maxSettings%1000),
	} {
		require.Contains(t, string(text), bound)
	}
}

// largePolicy is a policy whose only statement has a Sid of so many bytes.
func largePolicy(size int) string {
	return fmt.Sprintf(`{"Statement":[{"Sid":%q,"Effect":"Allow","Principal":"*","Action":"sqs:SendMessage"}]}`,
		strings.Repeat("s", size))
}

// TestLargestQueueIsDeleted: a queue with as many bytes of attributes as a client can set is purged and deleted, and
// its name is free again after a minute. The bound of the attributes leaves room for the fields of the server.
func TestLargestQueueIsDeleted(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		create := func(name string, size int) bool {
			request := object{"QueueName": name, "Attributes": object{policyAttribute: largePolicy(size)}}
			status, _, answer := e.do(post("CreateQueue", request))
			if status != http.StatusOK {
				require.Contains(e, answer, "attributes and tags have more than 90000 bytes")
			}
			return status == http.StatusOK
		}
		accepted, refused := 89_000, 91_000
		require.True(e, create("first", accepted))
		require.False(e, create("jobs", refused))
		for accepted+1 < refused {
			size := (accepted + refused) / 2
			name := fmt.Sprintf("jobs-%d", size)
			if !create(name, size) {
				refused = size
				continue
			}
			accepted = size
		}
		name := fmt.Sprintf("jobs-%d", accepted)
		url := e.create(name, policyAttribute, largePolicy(accepted))
		e.call("PurgeQueue", object{"QueueUrl": url})
		rows, err := e.s.rows(e.Context(), "test", kv.PrefixRange(e.s.recordKey(name)), 1)
		require.NoError(e, err)
		require.Greater(e, len(rows[0].Value), maxSettings)
		require.LessOrEqual(e, len(rows[0].Value), maxSettings+1000, "the value of docs/guarantees.md")
		for _, url := range e.call("ListQueues", object{"QueueNamePrefix": "jobs"})["QueueUrls"].([]any) {
			e.call("DeleteQueue", object{"QueueUrl": url})
		}
		time.Sleep(nameFreeAfter + 3*tidyEvery)
		names, _, err := e.s.names(e.Context(), "", "", 1000, "queue")
		require.NoError(e, err)
		require.Equal(e, []string{"first"}, names, "the records of deleted queues")

		require.True(e, create(name, accepted))
		set := func(size int) object {
			return object{"QueueUrl": url, "Attributes": object{policyAttribute: largePolicy(size)}}
		}
		e.call("SetQueueAttributes", set(1))
		e.call("SetQueueAttributes", set(accepted))
		code, _ := e.refused("SetQueueAttributes", set(accepted+1))
		require.Equal(e, "InvalidParameterValueException", code)
		code, _ = e.refused("TagQueue", object{"QueueUrl": url, "Tags": object{"team": "shop"}})
		require.Equal(e, "InvalidParameterValueException", code)
	})
}
