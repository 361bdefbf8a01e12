package clienttest

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"sync"
	"time"
)

// surely is for how long a worker may take a message for its own, counted from before it asked for it. It is well
// below the visibility timeout of the queue.
const surely = time.Second

// ledger notes what the workers of a test do with messages. A body is GROUP:NUMBER.
type ledger struct {
	mu     sync.Mutex
	random *rand.Rand
	last   map[string]string // the body that was begun last, of each group
	holder map[string]hold   // of each group
	gone   map[string]bool   // bodies whose delete was answered
	begun  map[string]bool
	by     map[string]int // how many each worker has handled
	failed int
	faults []string
}

// hold is a worker at work on a message of a group, until when the message is surely its own.
type hold struct {
	worker string
	until  time.Time
}

func newLedger(seed uint64) *ledger {
	return &ledger{
		random: rand.New(rand.NewPCG(seed, 0)), last: make(map[string]string), holder: make(map[string]hold),
		gone: make(map[string]bool), begun: make(map[string]bool), by: make(map[string]int),
	}
}

// worker enters a worker.
func (l *ledger) worker(name string) string {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.by[name] = 0
	return name
}

// verdict is what a worker is to do with a message that it has got.
type verdict string

const (
	handle verdict = "handle" // delete the message
	fail   verdict = "fail"   // give the message back, with a visibility timeout of 0
	leave  verdict = "leave"  // it may be another's by now
)

// got notes that a worker has received a message, and does the work of its handler. age is how long ago the worker sent
// the receive. A message must not come after a later one of its group, after its own delete, or while another worker
// works on the group. The work ends before the worker deletes the message, so the worker that gets the next message may
// start at once.
func (l *ledger) got(worker, body string, age time.Duration) verdict {
	v, lasts := l.begin(worker, body, age)
	time.Sleep(lasts)
	l.mu.Lock()
	defer l.mu.Unlock()
	if g := group(body); l.holder[g].worker == worker {
		delete(l.holder, g)
	}
	return v
}

func (l *ledger) begin(worker, body string, age time.Duration) (v verdict, lasts time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if age > surely {
		return leave, 0
	}
	group, now := group(body), time.Now()
	fault := func(format string, args ...any) {
		l.faults = append(l.faults, fmt.Sprintf("%s got %s ", worker, body)+fmt.Sprintf(format, args...))
	}
	if l.gone[body] {
		fault("after its delete")
	}
	if before := l.last[group]; body < before {
		fault("after %s", before)
	}
	if h := l.holder[group]; h.worker != "" && now.Before(h.until) {
		fault("while %s was at work on the group", h.worker)
	}
	l.last[group], l.begun[body] = body, true
	l.holder[group] = hold{worker: worker, until: now.Add(surely - age)}
	lasts = time.Duration(l.random.IntN(20)) * time.Millisecond
	if l.random.IntN(6) == 0 {
		l.failed++
		return fail, lasts
	}
	l.by[worker]++
	return handle, lasts
}

// deleted notes that the delete of a message was answered.
func (l *ledger) deleted(body string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone[body] = true
}

// left is how many messages of those sent were never deleted with an answer.
func (l *ledger) left(sent int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return sent - len(l.begun)
}

// reached is the number of the group's message that was begun last; -1 = none.
func (l *ledger) reached(group int) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	_, text, _ := strings.Cut(l.last[strconv.Itoa(group)], ":")
	if n, err := strconv.Atoi(text); err == nil {
		return n
	}
	return -1
}

func group(body string) string {
	g, _, _ := strings.Cut(body, ":")
	return g
}
