package sqs

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestLongHost: a Host header that is longer than the name of any host is refused. Each URL of a list would repeat it.
func TestLongHost(t *testing.T) {
	bubble(t, Options{}, func(e *env) {
		e.create("jobs")
		for digits, want := range map[int]int{5: http.StatusOK, 290: http.StatusOK, 10_000: http.StatusBadRequest} {
			r := post("ListQueues", object{})
			r.Host = "localhost:" + strings.Repeat("1", digits)
			status, _, body := e.do(r)
			require.Equal(e, want, status, "%d digits: %.100s", digits, body)
			require.Less(e, len(body), 1000)
		}
	})
}

// TestSlashesOfURLs: a queue's URL may end in a slash, as in examples of AWS. A request may have more slashes than
// needed, and the path of Options.URL, which a proxy may remove or not.
func TestSlashesOfURLs(t *testing.T) {
	for _, root := range []string{"", "/sqs"} {
		bubble(t, Options{URL: "http://localhost" + root + "/"}, func(e *env) {
			url := e.create("jobs")
			require.Equal(e, "http://localhost"+root+"/000000000000/jobs", url)
			e.send(url+"/", "", "a")
			ask := func(path, parameters string) int {
				r := httptest.NewRequest(http.MethodPost, "http://localhost"+path, strings.NewReader(parameters))
				r.Header.Set("Content-Type", formType)
				w := httptest.NewRecorder()
				e.s.routes().ServeHTTP(w, r.WithContext(e.Context()))
				return w.Code
			}
			for _, path := range []string{"/", "//", root, root + "/", root + "//"} {
				require.Equal(e, http.StatusOK, ask(path+"?", "Action=ListQueues"), path)
				require.Equal(e, http.StatusOK, ask(path+"?", "Action=CreateQueue&QueueName=more"), path)
			}
			for _, path := range []string{"/000000000000/jobs", "/000000000000/jobs/", "//000000000000/jobs"} {
				require.Equal(e, http.StatusOK, ask(root+path, "Action=SendMessage&MessageBody=b"), path)
				require.Equal(e, http.StatusOK, ask(path, "Action=SendMessage&MessageBody=b"), path)
				require.Equal(e, http.StatusBadRequest, ask(root+path, "Action=ListQueues"), path)
			}
			require.Len(e, e.receive(url), 7)
		})
	}
}
