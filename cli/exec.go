package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"fdbfifo/layer"
)

// command is the command that work runs for each item.
type command struct {
	line   string                  // for sh -c
	stdout func(line []byte) error // an error makes the command one that has failed
	stderr func(line []byte)
	// unset is called with the variables that could not be set, and the reason. It may be nil.
	unset   func(variables []string, why string)
	timeout time.Duration // after which the command is killed; 0 = never
}

// killGrace is how long the end of the output is waited for when a command has ended. A process that the command has
// left running may keep the output open.
const killGrace = 2 * time.Second

// notRun says why the shell could not run the command line, or a command in it. The item is not the cause.
type notRun struct {
	code int // 126 or 127, by POSIX; -1 = there is no shell
	text string
}

// shortage says that the system has no room for another process or its pipes. The next attempt may find room.
type shortage struct{ err error }

func (e *shortage) Error() string { return "--exec: the shell cannot be started now: " + e.err.Error() }
func (e *shortage) Unwrap() error { return e.err }

// shortages are the errors that pass when other processes end. EBADF: the child that becomes the shell moves its files
// to free numbers, and a number above the limit of open files is refused so (dup(2)).
var shortages = []error{syscall.EMFILE, syscall.ENFILE, syscall.EBADF, syscall.EAGAIN, syscall.ENOMEM}

func (e *notRun) Error() string {
	if e.code < 0 {
		return "--exec: the shell cannot be started: " + e.text
	}
	why := "a command was not found"
	if e.code == 126 {
		why = "a command could not be run"
	}
	return fmt.Sprintf("--exec: the shell says that %s (exit code %d): %s", why, e.code, e.text)
}

// checkLine returns a usage error if the shell cannot read a command line, for example because a quote is missing. It
// does not run the line. If there is no shell it returns nil, because run says so.
func checkLine(ctx context.Context, line string) error {
	text, err := exec.CommandContext(ctx, "sh", "-n", "-c", line).CombinedOutput()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() > 0 {
		return usagef("--exec: the shell cannot read the command: %s", strings.TrimSpace(string(text)))
	}
	return nil
}

// commandTimeout is the cause with which the context of a command ends after --timeout.
type commandTimeout struct{ after time.Duration }

func (e *commandTimeout) Error() string {
	return fmt.Sprintf("the command has not ended after %s", e.after)
}

// Unwrap returns context.DeadlineExceeded.
func (e *commandTimeout) Unwrap() error { return context.DeadlineExceeded }

// allowance ends the context of a command after the command's timeout. The time does not pass while this process waits
// until it can print the command's output: that is not the fault of the command, which may have ended.
type allowance struct {
	mu    sync.Mutex
	timer *time.Timer   // nil = the command has no timeout
	left  time.Duration // guarded by mu; when timer was started last
	since time.Time     // guarded by mu; of the start
	holds int           // guarded by mu; how many outputs wait
}

// allow returns the context of a command, and its allowance. The caller must call free.
func (c *command) allow(of context.Context) (ctx context.Context, a *allowance, free func()) {
	ctx, cancel := context.WithCancelCause(of)
	a = &allowance{left: c.timeout, since: time.Now()}
	if c.timeout == 0 {
		return ctx, a, func() { cancel(nil) }
	}
	a.timer = time.AfterFunc(c.timeout, func() { cancel(&commandTimeout{c.timeout}) })
	return ctx, a, func() {
		a.timer.Stop()
		cancel(nil)
	}
}

// during calls print while the time does not pass.
func (a *allowance) during(print func()) {
	if a.timer == nil {
		print()
		return
	}
	a.mu.Lock()
	if a.holds++; a.holds == 1 && a.timer.Stop() {
		a.left -= time.Since(a.since)
	}
	a.mu.Unlock()
	print()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.holds--; a.holds == 0 {
		a.since = time.Now()
		a.timer.Reset(max(a.left, 0))
	}
}

// run runs the command with the item's body on its stdin. When the context ends, or after the timeout, run kills the
// command and its children. A command that has ended with exit code 0 has done its work, also if the context ends while
// run waits for the rest of its output. Errors: *notRun, *shortage, those of the command and of its output.
func (c *command) run(of context.Context, item layer.Item) error {
	ctx, allowed, free := c.allow(of)
	defer free()
	cmd := exec.CommandContext(ctx, "sh", "-c", c.line)
	cmd.Stdin = bytes.NewReader(item.Body)
	env, err := c.environment(item)
	if err != nil {
		return err
	}
	cmd.Env = env
	var lost error
	out := &lines{print: func(line []byte) {
		if lost == nil {
			allowed.during(func() { lost = c.stdout(line) })
		}
	}}
	errs := &lines{print: func(line []byte) { allowed.during(func() { c.stderr(line) }) }}
	last := &tail{}
	cmd.WaitDelay = killGrace // for the copy to its stdin
	ownGroup(cmd)
	if err = runCopied(cmd, out, io.MultiWriter(errs, last)); cmd.ProcessState != nil && cmd.ProcessState.Success() {
		err = nil // something that it left running may keep its stdin open, and ctx may have ended since
	}
	out.flush()
	errs.flush()
	err = errors.Join(err, lost)
	switch {
	case err == nil:
		return nil
	case ctx.Err() != nil:
		return context.Cause(ctx)
	}
	text := last.text()
	switch code := cmd.ProcessState.ExitCode(); {
	case cmd.ProcessState == nil && slices.ContainsFunc(shortages, func(e error) bool { return errors.Is(err, e) }):
		return &shortage{err}
	case cmd.ProcessState == nil && !errors.Is(err, syscall.E2BIG): // E2BIG: the headers of this item are too long
		return &notRun{-1, err.Error()}
	case lost == nil && (code == 126 || code == 127) && !(code == 126 && tooLong(text)):
		return &notRun{code, text}
	}
	if text != "" {
		return fmt.Errorf("%w: %s", err, text)
	}
	return err
}

// tooLong reports whether a shell says that an argument, such as "$(cat)", has no room in a command line. The body of
// the item is the cause then.
func tooLong(text string) bool {
	return strings.Contains(strings.ToLower(text), "argument list too long")
}

// runCopied runs cmd, and copies its stdout and its stderr. When runCopied returns, no copy is under way. os/exec would
// give up a copy killGrace after the end of the command, with the rest of the output, also if the copy has to wait
// until this process can print. Example: the output of this process is read by a pager.
func runCopied(cmd *exec.Cmd, stdout, stderr io.Writer) error {
	out, err := newCopying(stdout)
	if err != nil {
		return err
	}
	errs, err := newCopying(stderr)
	if err != nil {
		out.end()
		return err
	}
	cmd.Stdout, cmd.Stderr = out.in, errs.in
	err = cmd.Run()
	out.end()
	errs.end()
	return err
}

// copying is a goroutine that copies what a command writes to a pipe.
type copying struct {
	in, out *os.File // the two ends of the pipe
	to      io.Writer
	ended   atomic.Bool   // the command has ended
	done    chan struct{} // closed when the goroutine has ended
}

// maxPipe is more than a pipe holds (bytes). When a command has ended, bytes beyond it are of a process that it has
// left.
const maxPipe = 1 << 20

func newCopying(to io.Writer) (*copying, error) {
	out, in, err := os.Pipe()
	if err != nil {
		return nil, fmt.Errorf("pipe for a command: %w", err)
	}
	c := &copying{in: in, out: out, to: to, done: make(chan struct{})}
	go c.copy()
	return c, nil
}

// copy copies until the pipe has no writer, or its end is not waited for any longer.
func (c *copying) copy() {
	defer close(c.done)
	page := make([]byte, 32<<10)
	for left := maxPipe; left > 0; {
		n, err := c.out.Read(page)
		if n > 0 {
			_, _ = c.to.Write(page[:n]) // lines and tail give no error
		}
		if err != nil {
			return
		}
		if c.ended.Load() {
			left -= n
			c.limit() // again, because the write may have taken long
		}
	}
}

// end returns when the output of the command, which has ended, is copied. It waits for more for up to killGrace.
func (c *copying) end() {
	_ = c.in.Close()
	c.ended.Store(true)
	c.limit()
	<-c.done
	_ = c.out.Close()
}

// limit bounds the wait for the next bytes by killGrace. Where a pipe knows no deadline, it ends the copy then.
func (c *copying) limit() {
	if err := c.out.SetReadDeadline(time.Now().Add(killGrace)); err != nil {
		time.AfterFunc(killGrace, func() { _ = c.out.Close() })
	}
}

// itemVariable has the item as JSON: the values of all other variables, and the values that those cannot hold.
const itemVariable = "FDBFIFO_ITEM"

// jsonVariable is the value of FDBFIFO_ITEM.
type jsonVariable struct {
	ID       string            `json:"id"`
	Group    string            `json:"group"`
	Attempts int               `json:"attempts"`
	Enqueued time.Time         `json:"enqueued"`
	DedupID  string            `json:"dedup_id,omitempty"`
	Headers  map[string]string `json:"headers,omitempty"`
}

// environment returns the environment of this process and the variables of the item. A variable is not set if its value
// has a zero byte. It is also not set if the names of two headers map to it, because their names differ only in case,
// or in characters other than letters and digits.
func (c *command) environment(item layer.Item) ([]string, error) {
	all, err := json.Marshal(jsonVariable{
		ID: item.ID.String(), Group: item.ID.Group, Attempts: item.Attempts, Enqueued: item.Enqueued.UTC(),
		DedupID: item.DedupID, Headers: item.Headers,
	})
	if err != nil {
		return nil, err
	}
	values := map[string]string{
		"FDBFIFO_ID":       item.ID.String(),
		"FDBFIFO_GROUP":    item.ID.Group,
		"FDBFIFO_ATTEMPTS": strconv.Itoa(item.Attempts),
		itemVariable:       string(all),
	}
	var doubled, zeroes []string
	for name, value := range item.Headers {
		variable := "FDBFIFO_HEADER_" + headerVariable(name)
		if _, twice := values[variable]; twice {
			doubled = append(doubled, variable)
		}
		values[variable] = value
	}
	for _, variable := range doubled {
		delete(values, variable)
	}
	// A command must not take a variable of this process for one of the item.
	env := slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "FDBFIFO_HEADER_") || strings.HasPrefix(v, "FDBFIFO_GROUP=") ||
			strings.HasPrefix(v, "FDBFIFO_ID=")
	})
	for _, variable := range slices.Sorted(maps.Keys(values)) {
		if strings.Contains(values[variable], "\x00") {
			zeroes = append(zeroes, variable)
			continue
		}
		env = append(env, variable+"="+values[variable])
	}
	if c.unset != nil && len(doubled) > 0 {
		slices.Sort(doubled)
		c.unset(slices.Compact(doubled), "the names of several headers come to it")
	}
	if c.unset != nil && len(zeroes) > 0 {
		c.unset(zeroes, "its value has a zero byte")
	}
	return env, nil
}

// headerVariable turns a header's name into a name that a shell can read: upper-case letters, digits and underscores.
func headerVariable(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z':
			return r - 'a' + 'A'
		case r >= 'A' && r <= 'Z', r >= '0' && r <= '9':
			return r
		}
		return '_'
	}, name)
}

// lines passes on whole lines, so that the outputs of concurrent commands do not mix within a line. It adds no byte to
// an output, except a line end behind the last line if that has none.
type lines struct {
	print func(text []byte)
	held  []byte // of the last line
	begun bool   // a part of the last line was passed on
}

// maxHeldLine is how much of a line is kept until the line ends. A command that prints its message needs as much. A
// longer line is passed on in parts.
const maxHeldLine = layer.MaxBodySize

func (l *lines) Write(p []byte) (int, error) {
	whole := 0
	if end := bytes.LastIndexByte(p, '\n') + 1; end > 0 {
		whole, l.begun = len(l.held)+end, false
	}
	l.held = append(l.held, p...)
	if whole == 0 && len(l.held) > maxHeldLine {
		whole, l.begun = len(l.held), true
	}
	if whole > 0 {
		l.print(l.held[:whole])
		l.held = append(l.held[:0], l.held[whole:]...)
	}
	return len(p), nil
}

// flush passes on the rest, with the missing line end.
func (l *lines) flush() {
	if len(l.held) > 0 || l.begun {
		l.print(append(l.held, '\n'))
		l.held, l.begun = l.held[:0], false
	}
}

// tail is a writer that keeps the last maxTail bytes.
type tail struct{ held []byte }

// maxTail leaves room for the words before it: the stored text of an error keeps its first 1,000 bytes.
const maxTail = 900 // bytes

func (t *tail) Write(p []byte) (int, error) {
	t.held = append(t.held, p...)
	if cut := len(t.held) - maxTail; cut > 0 {
		t.held = append(t.held[:0], t.held[cut:]...)
	}
	return len(p), nil
}

func (t *tail) text() string { return strings.TrimSpace(string(t.held)) }
