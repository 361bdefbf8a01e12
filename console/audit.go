package console

import (
	"log/slog"
	"strings"
	"sync"
	"time"
)

// Action is an operator's action in the console, done or refused.
type Action struct {
	N      int64     `json:"n"`
	At     time.Time `json:"at"`
	By     string    `json:"by"`
	Verb   string    `json:"verb"`
	Queue  string    `json:"queue"`
	Target string    `json:"target,omitempty"` // a group or an id
	Reason string    `json:"reason,omitempty"`
	Result string    `json:"result"`
	Failed bool      `json:"failed,omitempty"`
	// Next is a link of a replay that has done a portion: to the confirmation of the next one. Its query has the fields
	// after and before for a call of the API.
	Next string `json:"next,omitempty"`
	// Once is the number that a replay must have, and that its dry run has answered.
	Once string `json:"once,omitempty"`
}

// maxActions is how many actions the console remembers; the log has them all.
const maxActions = 1000

type audit struct {
	log *slog.Logger
	mu  sync.Mutex
	all []Action // the oldest first; guarded by mu
	n   int64    // guarded by mu
}

// maxWords bounds each text of an action that is remembered and logged. A form may have megabytes.
const maxWords = 4 << 10 // bytes

// add remembers an action, and returns its number.
func (a *audit) add(x Action) int64 {
	for _, text := range []*string{&x.By, &x.Verb, &x.Queue, &x.Target, &x.Reason, &x.Result} {
		if len(*text) > maxWords {
			*text = strings.ToValidUTF8((*text)[:maxWords], "") + " …"
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.n++
	x.N = a.n
	if len(a.all) == maxActions {
		a.all = append(a.all[:0], a.all[1:]...)
	}
	a.all = append(a.all, x)
	a.log.Info("console: action", "by", x.By, "verb", x.Verb, "queue", x.Queue, "target", x.Target, "reason", x.Reason,
		"result", x.Result, "failed", x.Failed)
	return x.N
}

// find returns an action by its number.
func (a *audit) find(n int64) *Action {
	a.mu.Lock()
	defer a.mu.Unlock()
	for i := range a.all {
		if a.all[i].N == n {
			x := a.all[i]
			return &x
		}
	}
	return nil
}

// latest returns the actions, the latest first.
func (a *audit) latest() []Action {
	a.mu.Lock()
	defer a.mu.Unlock()
	all := make([]Action, len(a.all))
	for i, x := range a.all {
		all[len(all)-1-i] = x
	}
	return all
}
