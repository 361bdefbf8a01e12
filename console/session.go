package console

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// A browser sends a cookie to every port of a host, so a server on another port of this machine could get the console's
// cookie. Therefore the pages of a session are under a path of their own, which only the printed link has. The cookie
// is bound to that path: the browser sends it nowhere else, and the console accepts none outside of it. A page of
// another port cannot ask for the path, because it does not know the path.

// NewToken returns a random token for Options.Token. The caller must keep it secret, because a client with the token is
// an operator.
func NewToken() string { return rand.Text() }

// LoginPath is the path, with the query, of the link that logs a user in. The link has the token, so the program must
// keep it secret.
func LoginPath(token string) string {
	return "/" + place(token) + "/login?" + url.Values{"token": {token}}.Encode()
}

// place is the first part of the path of all pages of a token. It does not tell the token.
func place(token string) string {
	mac := hmac.New(sha256.New, []byte(token))
	mac.Write([]byte("path"))
	return hex.EncodeToString(mac.Sum(nil)[:16])
}

type ownKey struct{}

// inOwn reports whether a request is for the path of the token.
func (c *Console) inOwn(r *http.Request) bool {
	if !c.logsIn() {
		return false
	}
	first, _, ok := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/")
	return ok && same(first, place(c.o.Token))
}

// logsIn reports whether users log in with the link of the token.
func (c *Console) logsIn() bool { return c.o.Token != "" && c.o.Role == nil }

// cookieName begins as a browser wants it of a cookie that only TLS can set. (The prefix __Host- wants the path "/".)
func cookieName(r *http.Request) string {
	if r.TLS != nil {
		return "__Secure-fdbfifo-console"
	}
	return "fdbfifo-console"
}

// setCookie gives a browser a session, or removes it if maxAge is negative. The cookie names no path. So the browser
// binds it to the folder of the requested URL, wherever the console is mounted.
func setCookie(w http.ResponseWriter, r *http.Request, value string, maxAge int) {
	http.SetCookie(w, &http.Cookie{
		Name: cookieName(r), Value: value, MaxAge: maxAge, HttpOnly: true, SameSite: http.SameSiteStrictMode,
		Secure: r.TLS != nil,
	})
}

// maxSessions bounds the sessions of a console. One more ends the one that was idle for longest.
const maxSessions = 100

// sessions are the sessions of browsers that have logged in by the link. They end with the process.
type sessions struct {
	mu   sync.Mutex
	used map[[sha256.Size]byte]time.Time // when the session of a cookie was used last; guarded by mu
}

// begin returns the cookie of a new session.
func (s *sessions) begin(now time.Time) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.used == nil {
		s.used = map[[sha256.Size]byte]time.Time{}
	}
	if len(s.used) >= maxSessions {
		var idlest [sha256.Size]byte
		for k, used := range s.used {
			if oldest, ok := s.used[idlest]; !ok || used.Before(oldest) {
				idlest = k
			}
		}
		delete(s.used, idlest)
	}
	cookie := rand.Text()
	s.used[sha256.Sum256([]byte(cookie))] = now
	return cookie
}

// live reports whether a cookie's session has not ended; if use is set, it was used now. idle < 0 = it does not end by
// itself.
func (s *sessions) live(cookie string, now time.Time, idle time.Duration, use bool) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	k := sha256.Sum256([]byte(cookie))
	used, ok := s.used[k]
	if ok && idle >= 0 && !isInUse(used, now, idle) {
		delete(s.used, k)
		return false
	}
	if ok && use {
		s.used[k] = now
	}
	return ok
}

// isInUse reports whether a session that was used last at a time is in use now. The clock that measures durations may
// stand while the computer sleeps, so the wall clock counts too. A clock that was set back tells nothing about the time
// between, and ends the session.
func isInUse(used, now time.Time, idle time.Duration) bool {
	ran, wall := now.Sub(used), now.Round(0).Sub(used.Round(0))
	return ran < idle && wall < idle && wall > -clockSlack
}

// clockSlack is by how much a clock may be set back during a session.
const clockSlack = 5 * time.Minute

func (s *sessions) end(cookie string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.used, sha256.Sum256([]byte(cookie)))
}

// inSession reports whether a request has the cookie of a session, at the path to which the cookie is bound. A page
// that refreshes itself is no use of the session.
func (c *Console) inSession(r *http.Request) bool {
	if own, _ := r.Context().Value(ownKey{}).(bool); !own {
		return false
	}
	for _, k := range r.CookiesNamed(cookieName(r)) {
		if c.sessions.live(k.Value, c.o.Now(), c.o.Idle, r.URL.Path != eventsPath) {
			return true
		}
	}
	return false
}

// oldLink tells a user with the link of an ended console what to do.
const oldLink = "this link is not valid any more: open the link that the console printed when it started last"

func (c *Console) login(w http.ResponseWriter, r *http.Request) {
	own, _ := r.Context().Value(ownKey{}).(bool)
	if !own || !same(r.URL.Query().Get("token"), c.o.Token) {
		c.refuse(w, r, http.StatusUnauthorized, oldLink)
		return
	}
	setCookie(w, r, c.sessions.begin(c.o.Now()), 0)
	c.audit.log.Info("console: login", "from", r.RemoteAddr)
	// A page, and no redirect: with SameSite=Strict the browser would not send the cookie along from another site's
	// link.
	w.Header().Set("Refresh", "0; url=./")
	c.render(w, http.StatusOK, &page{Title: "Welcome", Name: "welcome", Role: Nobody})
}

func (c *Console) logout(w http.ResponseWriter, r *http.Request) {
	for _, k := range r.CookiesNamed(cookieName(r)) {
		c.sessions.end(k.Value)
	}
	setCookie(w, r, "", -1)
	c.audit.log.Info("console: logout", "by", asking(r).name, "from", r.RemoteAddr)
	c.render(w, http.StatusOK, &page{Title: "Logged out", Name: "left", Role: Nobody})
}
