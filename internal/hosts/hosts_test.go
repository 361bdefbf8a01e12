package hosts

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestGuard: a name that a page could have led here is answered with 421, and those of this machine are served.
func TestGuard(t *testing.T) {
	h := Guard(http.NotFoundHandler(), "sqs.example.com", "2001:db8::1", "")
	for host, want := range map[string]int{
		"localhost": 404, "LOCALHOST:80": 404, "127.0.0.1:9324": 404, "127.1.2.3": 404, "[::1]": 404, "[::1]:1": 404,
		"sqs.example.com": 404, "SQS.example.com:8443": 404, "[2001:db8::1]:80": 404,
		"": 421, ":80": 421, "evil.example": 421, "evil.example:9324": 421, "localhost.evil.example": 421,
		"127.0.0.1.evil.example": 421, "0.0.0.0": 421, "[::]:80": 421, "192.168.0.1": 421, "x.sqs.example.com": 421,
	} {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Host = host
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		require.Equal(t, want, w.Code, host)
	}
}
