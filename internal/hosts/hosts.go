// Package hosts guards listeners that ask for no credentials, because they serve only this machine. A browser on this
// machine reaches such a listener too. A page of evil.example can make that name resolve to 127.0.0.1 (DNS rebinding).
// Its requests are then requests of the same origin, but their Host header still has evil.example.
package hosts

import (
	"fmt"
	"net"
	"net/http"
	"slices"
	"strings"
)

// Name returns the name in a Host header, or in an address to listen at: in lower case, without the port, and without
// the brackets of an IPv6 address.
func Name(host string) string {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	return strings.ToLower(strings.TrimSuffix(strings.TrimPrefix(host, "["), "]"))
}

// Local reports whether host, with or without a port, names this machine: localhost, an address of 127.0.0.0/8, or ::1.
func Local(host string) bool {
	name := Name(host)
	ip := net.ParseIP(name)
	return name == "localhost" || ip != nil && ip.IsLoopback()
}

// Known reports whether host is Local, or has one of the names, whatever its port. The name "" is not known.
func Known(host string, names ...string) bool {
	name := Name(host)
	return Local(host) || name != "" && slices.Contains(names, name)
}

// Guard answers a request whose Host is not Known with 421, and passes all others to h.
func Guard(h http.Handler, names ...string) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !Known(r.Host, names...) {
			http.Error(w, fmt.Sprintf("nothing is served under the name %q: ask for localhost or 127.0.0.1", r.Host),
				http.StatusMisdirectedRequest)
			return
		}
		h.ServeHTTP(w, r)
	})
}
