package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/user"

	"github.com/spf13/cobra"

	"fdbfifo/layer"
)

// acting is the name of the operator of a command, and the log that the command writes.
type acting struct {
	by  string // "" = the user that runs the command
	log string // "" = no log, - = stderr, or a file
	// logger is nil if there is no log. It is set while an engine is open.
	logger *slog.Logger
}

// addActing adds --by and --log to a command of an operator.
func (s *session) addActing(c *cobra.Command) {
	c.Flags().StringVar(&s.acting.by, "by", "", "the `NAME` that is kept as the actor; left out, you")
	s.addLog(c, "append each action, and its actor, to `FILE`; - is stderr")
}

func (s *session) addLog(c *cobra.Command, help string) {
	c.Flags().StringVar(&s.acting.log, "log", "", help)
}

// workersLog is the help of --log of the commands that run workers.
const workersLog = "append failures, lost claims and dead letters to `FILE`; - is stderr"

// admin returns the operator's side of the queue. The queue's log of actions names the operator.
func (s *session) admin(q *layer.Queue) layer.Admin { return q.Admin().As(s.operator()) }

// operator returns the name for the queue's log of actions: --by, or else the user that runs the command.
func (s *session) operator() string {
	if who := cmp.Or(s.acting.by, s.app.Owner); who != "" {
		return who
	}
	name := "unknown"
	if u, err := user.Current(); err == nil {
		name = u.Username
	}
	host, err := os.Hostname()
	if err != nil {
		return name
	}
	return name + "@" + host
}

// openLog opens the log that --log names. Call it before the work that the log should show. Processes may share the
// file, because each line is one write at its end.
func (s *session) openLog(ctx context.Context) (end func() error, err error) {
	if s.acting.log == "" {
		return func() error { return nil }, nil
	}
	told := &logWriter{out: s.stderr}
	end = func() error { return told.err }
	if s.acting.log != "-" {
		file, err := waitFor(ctx, func() (*os.File, error) {
			path, shared, err := trusted(s.acting.log)
			if err != nil {
				return nil, err
			}
			if shared {
				return nil, fmt.Errorf("other users can put a link at %s: name a folder that only root can change",
					path)
			}
			return os.OpenFile(path, os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
		})
		if err != nil {
			return nil, usagef("--log: %w", err)
		}
		told.out = file
		end = func() error { return told.close(file) }
	}
	s.acting.logger = slog.New(slog.NewTextHandler(told, nil))
	return end, nil
}

// logWriter remembers that a line could not be written, because slog does not return that error.
type logWriter struct {
	out io.Writer
	err error // the first; slog's handler writes one line at a time
}

func (w *logWriter) Write(p []byte) (int, error) {
	n, err := w.out.Write(p)
	if err != nil && w.err == nil {
		w.err = &outputError{"write --log", err}
	}
	return n, err
}

// close closes the file of the log. It returns the errors of the log, which are errors of output: the work of the
// command is done.
func (w *logWriter) close(file io.Closer) error {
	err := file.Close()
	if err != nil {
		err = &outputError{"close --log", err}
	}
	return errors.Join(w.err, err)
}

// hooks returns the hooks that write a handle's operations to the log.
func (a *acting) hooks() []layer.Hook {
	if a.logger == nil {
		return nil
	}
	return []layer.Hook{layer.LogHook(a.logger)}
}

// workers returns the log of workers.
func (a *acting) workers() *slog.Logger {
	if a.logger == nil {
		return slog.New(slog.DiscardHandler)
	}
	return a.logger
}
