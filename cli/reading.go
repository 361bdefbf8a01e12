package cli

import (
	"context"
	"io"
	"os"
)

// waitFor calls f, which may hang in a read of a pipe, a terminal or a device. It returns errInterrupted as soon as ctx
// ends, and leaves f behind: f must change nothing that is used afterwards.
func waitFor[T any](ctx context.Context, f func() (T, error)) (result T, err error) {
	if ctx.Err() != nil {
		return result, errInterrupted
	}
	type outcome struct {
		result T
		err    error
	}
	done := make(chan outcome, 1)
	go func() {
		result, err := f()
		done <- outcome{result, err}
	}()
	select {
	case o := <-done:
		return o.result, o.err
	case <-ctx.Done():
		return result, errInterrupted
	}
}

// openFile opens a file to read it. A named pipe has to wait for its writer.
func openFile(ctx context.Context, name string) (*os.File, error) {
	return waitFor(ctx, func() (*os.File, error) { return os.Open(name) })
}

// interruptible is a reader whose reads end as soon as ctx ends. It is for one goroutine.
type interruptible struct {
	ctx  context.Context
	r    io.Reader
	buf  []byte // belongs to the read, as long as it lasts
	held []byte // of buf: not returned yet
	err  error  // comes after held
}

func untilInterrupted(ctx context.Context, r io.Reader) *interruptible {
	return &interruptible{ctx: ctx, r: r, buf: make([]byte, 64<<10)}
}

func (r *interruptible) Read(p []byte) (int, error) {
	if len(r.held) == 0 && r.err == nil {
		n, err := waitFor(r.ctx, func() (int, error) { return r.r.Read(r.buf) })
		r.held, r.err = r.buf[:n], err
	}
	if len(r.held) == 0 {
		return 0, r.err
	}
	n := copy(p, r.held)
	r.held = r.held[n:]
	return n, nil
}

// input is stdin for a command that reads it. On a terminal it says so.
func (s *session) input(ctx context.Context) io.Reader {
	if s.app.terminal(s.stdin) {
		s.notice("reading from the terminal; Ctrl-D ends the input, Ctrl-C the command")
	}
	return untilInterrupted(ctx, s.stdin)
}
