package cli

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"fdbfifo/layer"
)

// command is what work runs for each item.
type command struct {
	line   string // for sh -c
	stdout func(line []byte)
	stderr func(line []byte)
}

// killGrace is how long the output of a killed command is waited for.
const killGrace = 2 * time.Second

// run runs the command with the item's body on its stdin. When ctx ends the command is killed, with what it
// has started.
func (c *command) run(ctx context.Context, item layer.Item) error {
	cmd := exec.CommandContext(ctx, "sh", "-c", c.line)
	cmd.Stdin = bytes.NewReader(item.Body)
	cmd.Env = environment(item)
	out, errs := &lines{print: c.stdout}, &lines{print: c.stderr}
	last := &tail{}
	cmd.Stdout = out
	cmd.Stderr = io.MultiWriter(errs, last)
	cmd.WaitDelay = killGrace
	ownGroup(cmd)
	err := cmd.Run()
	out.flush()
	errs.flush()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	// ErrWaitDelay: the command has ended well, and something that it left running keeps its output open.
	if err == nil || errors.Is(err, exec.ErrWaitDelay) {
		return nil
	}
	if text := last.text(); text != "" {
		return fmt.Errorf("%w: %s", err, text)
	}
	return err
}

// environment is this process's and what the item is.
func environment(item layer.Item) []string {
	env := append(os.Environ(),
		"FDBFIFO_ID="+item.ID.String(),
		"FDBFIFO_GROUP="+item.ID.Group,
		"FDBFIFO_ATTEMPTS="+strconv.Itoa(item.Attempts),
	)
	for name, value := range item.Headers {
		env = append(env, "FDBFIFO_HEADER_"+headerVariable(name)+"="+value)
	}
	for i, v := range env {
		// A zero byte would keep the command from being started at all.
		env[i] = strings.ReplaceAll(v, "\x00", "")
	}
	return env
}

// headerVariable makes a header's name one that a shell can read: letters in upper case, digits, underscores.
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

// lines hands on whole lines, so that the output of commands that run together is not mixed within one.
type lines struct {
	print func(line []byte)
	held  []byte
}

// maxHeldLine is how much of a line is kept until its end comes.
const maxHeldLine = 64 << 10 // bytes

func (l *lines) Write(p []byte) (int, error) {
	l.held = append(l.held, p...)
	if end := bytes.LastIndexByte(l.held, '\n') + 1; end > 0 {
		l.print(l.held[:end])
		l.held = append(l.held[:0], l.held[end:]...)
	}
	if len(l.held) > maxHeldLine {
		l.flush()
	}
	return len(p), nil
}

// flush hands on the rest, and the end of line that it lacks.
func (l *lines) flush() {
	if len(l.held) > 0 {
		l.print(append(l.held, '\n'))
		l.held = l.held[:0]
	}
}

// tail keeps the end of what is written.
type tail struct{ held []byte }

const maxTail = 1000 // bytes

func (t *tail) Write(p []byte) (int, error) {
	t.held = append(t.held, p...)
	if cut := len(t.held) - maxTail; cut > 0 {
		t.held = append(t.held[:0], t.held[cut:]...)
	}
	return len(p), nil
}

func (t *tail) text() string { return strings.TrimSpace(string(t.held)) }
