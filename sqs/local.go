package sqs

import (
	"net/http"
	"strings"

	"fdbfifo/internal/hosts"
)

// checkLocal protects a server without keys from web pages in a browser on this machine: it refuses the requests that
// such a page could send. A page whose host name was made to resolve to this machine (DNS rebinding) has the same
// origin as the server. Only the Host header shows such a page.
func (s *Server) checkLocal(r *http.Request) error {
	if !hosts.Known(r.Host, s.host) {
		return refuse(http.StatusMisdirectedRequest, "MisdirectedRequest", "MisdirectedRequest", "A server without "+
			"keys does not answer to the name %q, but to localhost and the host of --url.", r.Host)
	}
	if r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "" {
		return denied("AccessDenied", "A server without keys does not serve web pages.")
	}
	return nil
}

// checkMethod refuses, for a server without keys, a GET that changes anything: a link or a picture of a page is one. An
// SDK's GET has a signature in its header, and a browser sends none to another site without asking there first.
func (s *Server) checkMethod(r *http.Request, action string) error {
	if s.options.Keys != nil || r.Method != http.MethodGet || strings.HasPrefix(action, "Get") ||
		strings.HasPrefix(action, "List") || strings.HasPrefix(r.Header.Get("Authorization"), algorithm) {
		return nil
	}
	return refuse(http.StatusMethodNotAllowed, "UnsupportedOperation", "UnsupportedOperation",
		"A server without keys does not do %s by GET: use POST.", action)
}
