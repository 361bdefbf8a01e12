package console

import (
	"context"
	"crypto/hmac"
	"net/http"
	"slices"
	"strings"

	"fdbfifo/internal/hosts"

	"fdbfifo/internal/doors"
)

func same(a, b string) bool { return hmac.Equal([]byte(a), []byte(b)) }

// who returns the role and the name of a request's user. The name is for the audit.
func (c *Console) who(r *http.Request) (Role, string) {
	role, name := Nobody, ""
	switch {
	case c.o.Role != nil:
		role, name = c.o.Role(r)
	case c.o.Open:
		role, name = Operator, "operator"
	default:
		if c.inSession(r) {
			role, name = Operator, "operator"
		}
		bearer, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if ok && same(bearer, c.o.Token) {
			role, name = Operator, "operator"
		}
	}
	if c.o.ReadOnly {
		role = min(role, Viewer)
	}
	return role, name
}

type whoKey struct{}

type identity struct {
	role Role
	name string
}

// asking returns the user of a request, which allow has found.
func asking(r *http.Request) identity {
	who, _ := r.Context().Value(whoKey{}).(identity)
	return who
}

// allow lets a request pass if the role of its user is at least least.
func (c *Console) allow(least Role, next http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		role, name := c.who(r)
		switch {
		case role == Nobody:
			c.refuse(w, r, http.StatusUnauthorized, c.strange(r))
		case role < least && c.o.ReadOnly:
			c.refuse(w, r, http.StatusForbidden, "this console is read-only")
		case role < least:
			c.refuse(w, r, http.StatusForbidden, "this is for operators")
		default:
			doors.AtWork(r)
			next(w, r.WithContext(context.WithValue(r.Context(), whoKey{}, identity{role, name})))
		}
	}
}

// strange returns a text that tells an unknown user how to log in.
func (c *Console) strange(r *http.Request) string {
	words := "use the link that the console printed when it started"
	switch {
	case c.o.Role != nil:
		words = "the console does not know who you are: come in by the proxy that says so"
	case strings.HasSuffix(r.URL.Path, "/login"):
		words = oldLink
	case len(r.CookiesNamed(cookieName(r))) > 0:
		words = "your session has ended, by a logout, because it was idle, or because the console was started again: " +
			"open the link that the console printed when it started last"
	}
	if r.Method == http.MethodPost {
		words += "; nothing was done"
	}
	return words
}

// knownHost reports whether a Host header names this console.
func (c *Console) knownHost(host string) bool {
	if c.o.Hosts != nil {
		return slices.Contains(c.o.Hosts, strings.ToLower(host))
	}
	return hosts.Local(host)
}
