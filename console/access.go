package console

import (
	"context"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
)

// NewToken returns a random token for Options.Token.
func NewToken() string { return rand.Text() }

// LoginPath is the path, with the query, of the link that logs somebody in.
func LoginPath(token string) string { return "/login?" + url.Values{"token": {token}}.Encode() }

const cookieName = "fdbfifo-console"

// cookie is what the browser keeps in the token's place: the cookie does not tell the token.
func cookie(token string) string {
	mac := hmac.New(sha256.New, []byte(token))
	mac.Write([]byte("cookie"))
	return hex.EncodeToString(mac.Sum(nil))
}

func same(a, b string) bool { return hmac.Equal([]byte(a), []byte(b)) }

func (c *Console) login(w http.ResponseWriter, r *http.Request) {
	token := r.URL.Query().Get("token")
	if c.o.Token == "" || !same(token, c.o.Token) {
		c.refuse(w, r, http.StatusUnauthorized, "this link is not valid any more: the console prints a new one")
		return
	}
	http.SetCookie(w, &http.Cookie{
		Name: cookieName, Value: cookie(token), Path: "/", HttpOnly: true, SameSite: http.SameSiteStrictMode,
		Secure: r.TLS != nil,
	})
	// A page, and no redirect: with SameSite=Strict the browser would not send the cookie along from another site's
	// link.
	w.Header().Set("Refresh", "0; url=./")
	c.render(w, http.StatusOK, &page{Title: "Welcome", Name: "welcome", Role: Nobody})
}

// who says who asks. The name is for the audit.
func (c *Console) who(r *http.Request) (Role, string) {
	role, name := Nobody, ""
	switch {
	case c.o.Role != nil:
		role, name = c.o.Role(r)
	case c.o.Token == "":
		role, name = Operator, "operator"
	default:
		if k, err := r.Cookie(cookieName); err == nil && same(k.Value, cookie(c.o.Token)) {
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

// asking returns who asks, as allow has found.
func asking(r *http.Request) identity {
	who, _ := r.Context().Value(whoKey{}).(identity)
	return who
}

// allow lets a request pass if the role of whoever asks is at least least.
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
			next(w, r.WithContext(context.WithValue(r.Context(), whoKey{}, identity{role, name})))
		}
	}
}

// strange says what somebody must do whom the console does not know.
func (c *Console) strange(r *http.Request) string {
	words := "use the link that the console printed when it started"
	if _, err := r.Cookie(cookieName); c.o.Role == nil && err == nil {
		words = "the console was started anew since you came in: open the link that it printed then"
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
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = host
	}
	return slices.Contains([]string{"localhost", "127.0.0.1", "::1", "[::1]"}, strings.ToLower(name))
}
