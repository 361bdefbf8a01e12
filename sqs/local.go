package sqs

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strings"

	"fdbfifo/internal/hosts"
)

// isLocal reports whether only programs of this machine reach an address.
func isLocal(a net.Addr) bool {
	return strings.HasPrefix(a.Network(), "unix") || hosts.Local(a.String())
}

// checkListener refuses a listener that would serve clients of other machines without authentication, unless the
// program has said that it means this.
func (s *Server) checkListener(l net.Listener) error {
	switch {
	case s.options.Open && s.options.Keys != nil:
		return errors.New("sqs: Open, with Keys")
	case s.options.Keys == nil && !s.options.Open && !isLocal(l.Addr()):
		return fmt.Errorf("sqs: anybody could use the queues at %s: set Keys, or Open if that is meant", l.Addr())
	}
	return nil
}

// checkLocal protects a server without keys from web pages in a browser on this machine: it refuses the requests that
// such a page could send. A page whose host name was made to resolve to this machine (DNS rebinding) has the same
// origin as the server. Only the Host header shows such a page. checkLocal also refuses what checkListener could not:
// the requests that another HTTP server of the program passes on from other machines.
func (s *Server) checkLocal(r *http.Request) error {
	if at, ok := r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok && !s.options.Open && !isLocal(at) {
		return denied("AccessDenied", "A server without keys serves only this machine.")
	}
	if !hosts.Known(r.Host, s.host) {
		return refuse(http.StatusMisdirectedRequest, "MisdirectedRequest", "MisdirectedRequest", "A server without "+
			"keys does not answer to the name %q, but to localhost and the host of --url.", r.Host)
	}
	if r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "" {
		return denied("AccessDenied", "A server without keys does not serve web pages.")
	}
	return nil
}

// checkMethod refuses a GET that changes anything, for a server without keys, because a link or an image of a web page
// sends a GET. The GET of an SDK has a signature in its header. A browser sends such a header to another site only if
// that site allows it first.
func (s *Server) checkMethod(r *http.Request, action string) error {
	if s.options.Keys != nil || r.Method != http.MethodGet || changesNothing(action) ||
		strings.HasPrefix(r.Header.Get("Authorization"), algorithm) {
		return nil
	}
	return refuse(http.StatusMethodNotAllowed, "UnsupportedOperation", "UnsupportedOperation",
		"A server without keys does not do %s by GET: use POST.", action)
}

// changesNothing reports whether an action only reads.
func changesNothing(action string) bool {
	return strings.HasPrefix(action, "Get") || strings.HasPrefix(action, "List")
}
