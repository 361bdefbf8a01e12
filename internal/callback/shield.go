package callback

import (
	"bytes"
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
)

// Shield calls functions of the user's, each on a goroutine of its own. So a function that panics, that ends its
// goroutine, or that never returns does not take its caller with it. The value is how long a call waits; 0 = without a
// bound.
type Shield time.Duration

// Patience is how long a function may take that must return soon: a hook, a log.
const Patience = 2 * time.Minute

// LogPatience is how long a server waits for its log. It is short, because the answer to a request waits as long.
const LogPatience = time.Second

// ErrGoexit: a function of the user's has ended its goroutine. It is the Value of the PanicError of such a function.
var ErrGoexit = errors.New("runtime.Goexit has ended the goroutine, as require does in a test")

// StuckError: a function of the user's has not returned in time. The function still runs.
type StuckError struct {
	What     string       // the function
	Since    time.Time    // of its call
	Returned <-chan error // gets a value when the function has returned

	caller string // the number of the caller's goroutine
}

// Stack is the stack of the function's goroutine, if it still runs, and of earlier calls of the same caller that are
// stuck.
func (e *StuckError) Stack() string {
	return Stacks("callback.Shield.Try in goroutine " + e.caller + "\n")
}

// Error has the stack, too.
func (e *StuckError) Error() string {
	if e == nil {
		return "<nil>"
	}
	return fmt.Sprintf("%s: stuck since %s\n%s", e.What, e.Since.Format(time.RFC3339), e.Stack())
}

// Try calls fn and waits for it. The error is nil, a *PanicError, or a *StuckError. After a *StuckError fn still runs:
// the caller must not read the variables that fn writes.
func (f Shield) Try(what string, fn func()) error {
	begun, done := time.Now(), make(chan error, 1)
	go func() {
		err := error(&PanicError{What: what, Value: ErrGoexit})
		defer func() { done <- err }()
		err = Try(what, fn)
	}()
	// A function that returns at once needs no timer. The timer would take longer than the function.
	runtime.Gosched()
	select {
	case err := <-done:
		return err
	default:
	}
	var over <-chan time.Time
	if f > 0 {
		timer := time.NewTimer(time.Duration(f))
		defer timer.Stop() // in virtual time a timer that nothing stops stays until its end
		over = timer.C
	}
	select {
	case err := <-done:
		return err
	case <-over:
		return &StuckError{What: what, Since: begun, Returned: done, caller: GoroutineID()}
	}
}

// TryCounted is Try. If the error is a *StuckError, running counts the call until fn returns.
func (f Shield) TryCounted(running *atomic.Int64, what string, fn func()) error {
	err := f.Try(what, fn)
	if stuck, ok := errors.AsType[*StuckError](err); ok {
		running.Add(1)
		go func() {
			<-stuck.Returned
			running.Add(-1)
		}()
	}
	return err
}

// GoroutineID is the number that the runtime has for this goroutine.
func GoroutineID() string {
	var buf [64]byte
	_, after, _ := bytes.Cut(buf[:runtime.Stack(buf[:], false)], []byte(" "))
	id, _, _ := bytes.Cut(after, []byte(" "))
	return string(id)
}

// Stacks returns the stacks of the goroutines whose stack contains part.
func Stacks(part string) string {
	all := make([]byte, 4<<20)
	all = all[:runtime.Stack(all, true)]
	var found [][]byte
	for stack := range bytes.SplitSeq(all, []byte("\n\n")) {
		if bytes.Contains(append(bytes.Clone(stack), '\n'), []byte(part)) {
			found = append(found, stack)
		}
	}
	return string(bytes.Join(found, []byte("\n\n")))
}
