package sqs

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestWithoutKeysForThisMachine: a server without keys answers to the names of this machine and to the host of its URL.
// A page whose name was made to lead here reads and changes nothing. With keys the name does not matter.
func TestWithoutKeysForThisMachine(t *testing.T) {
	for _, o := range []Options{{}, {URL: "https://sqs.example.com:8443"}} {
		bubble(t, o, func(e *env) {
			url := e.create("jobs")
			e.send(url, "", "b")
			for host, want := range map[string]bool{
				"localhost": true, "LOCALHOST:9324": true, "127.0.0.1:9324": true, "127.9.9.9": true, "[::1]:1": true,
				"sqs.example.com": o.URL != "", "SQS.example.com:8443": o.URL != "",
				"evil.example": false, "evil.example:9324": false, "localhost.evil.example:9324": false, "": false,
				"0.0.0.0:9324": false,
			} {
				asked := httptest.NewRequest(http.MethodGet, "/?Action=ListQueues", nil)
				purge := post("PurgeQueue", object{"QueueUrl": url})
				for _, r := range []*http.Request{asked, purge} {
					r.Host = host
					status, _, body := e.do(r)
					if want {
						require.NotEqual(e, http.StatusMisdirectedRequest, status, "%s: %s", host, body)
						continue
					}
					require.Equal(e, http.StatusMisdirectedRequest, status, "%s: %s", host, body)
					require.Contains(e, body, "--url")
				}
			}
		})
	}
	bubble(t, Options{Keys: map[string]Key{"AKID": {Secret: "s"}}}, func(e *env) {
		r := post("ListQueues", object{})
		r.Host = "sqs.example.com"
		status, _, _ := e.do(r)
		require.Equal(e, http.StatusForbidden, status, "unsigned, but not misdirected")
	})
}

// TestHealthWithoutKeys: the two paths for health have no other names than the queues.
func TestHealthWithoutKeys(t *testing.T) {
	for host, want := range map[string]int{"localhost:1": 200, "evil.example": http.StatusMisdirectedRequest} {
		bubble(t, Options{}, func(e *env) {
			for _, path := range []string{healthPath, readyPath} {
				r := httptest.NewRequest(http.MethodGet, path, nil)
				r.Host = host
				w := httptest.NewRecorder()
				e.s.routes().ServeHTTP(w, r)
				require.Equal(e, want, w.Code, "%s %s", host, path)
			}
		})
	}
}

// TestLinksChangeNothing: without keys a GET reads. One that changes anything, as a link of a page does, is refused,
// unless it has a signature in its header as old SDKs send it, which no page can send elsewhere.
func TestLinksChangeNothing(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		url := e.create("jobs")
		e.send(url, "", "b")
		get := func(query, authorization string) int {
			r := httptest.NewRequest(http.MethodGet, "http://localhost/000000000000/jobs?Action="+query, nil)
			if authorization != "" {
				r.Header.Set("Authorization", authorization)
			}
			status, _, _ := e.do(r)
			return status
		}
		for _, action := range []string{
			"PurgeQueue", "DeleteQueue", "SendMessage&MessageBody=b", "ReceiveMessage&VisibilityTimeout=100",
			"ReceiveMessage&X-Amz-Signature=0", "SetQueueAttributes&Attribute.Name=DelaySeconds&Attribute.Value=9",
		} {
			require.Equal(e, http.StatusMethodNotAllowed, get(action, ""), action)
			require.Equal(e, http.StatusMethodNotAllowed, get(action, "Basic YTpi"), action) // http://a:b@localhost/
		}
		require.Equal(e, "b", bodies(e.receive(url)), "as it was")
		for _, action := range []string{"GetQueueUrl&QueueName=jobs", "GetQueueAttributes", "ListQueueTags"} {
			require.Equal(e, http.StatusOK, get(action, ""), action)
		}
		signed := algorithm + " Credential=x/20260101/us-east-1/sqs/aws4_request,SignedHeaders=host,Signature=0"
		require.Equal(e, http.StatusOK, get("SendMessage&MessageBody=b", signed), "boto 2 sends by GET")
	})
}
