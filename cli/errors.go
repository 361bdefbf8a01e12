package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
)

// Exit codes of the process.
const (
	ExitOK          = 0
	ExitFailed      = 1
	ExitUsage       = 2
	ExitNoQueue     = 3
	ExitClusterFile = 4 // missing, unreadable or malformed
	ExitUnreachable = 5
	ExitLocked      = 6   // the database, by an operator
	ExitAPIVersion  = 7   // the client library does not have the needed one
	ExitOutput      = 8   // the work is done, but the result could not be printed
	ExitUnknown     = 9   // it may have landed: the outcome of a commit is unknown
	ExitDuplicate   = 10  // all others were enqueued, and --refuse-duplicates was given
	ExitInterrupted = 130 // as a shell reports a process that Ctrl-C has ended
)

// errInterrupted says that Ctrl-C came before the command was done.
var errInterrupted = errors.New("interrupted")

// ExitCode returns the exit code of the process for an error of Run.
func ExitCode(err error) int {
	var usage *usageError
	var own *Error
	switch {
	case err == nil:
		return ExitOK
	case kv.MaybeCommitted(err):
		return ExitUnknown // also if it was interrupted, or a retry has met something else
	case errors.Is(err, errInterrupted), errors.Is(err, context.Canceled):
		return ExitInterrupted
	case errors.As(err, &usage):
		return ExitUsage
	case errors.As(err, &own) && own.Exit != 0:
		return own.Exit
	case kv.Code(err) == kv.CodeDatabaseLocked:
		return ExitLocked
	case onlyOutput(err):
		return ExitOutput
	}
	return ExitFailed
}

// Error is an error with a hint for the user, or with an exit code. Commands and the OpenFunc of an engine make such
// errors.
type Error struct {
	Text string
	Hint string // what the user can do; may be empty
	Exit int    // 0 = ExitFailed
	Err  error  // the cause; may be nil
}

func (e *Error) Error() string {
	if e == nil {
		return "<nil>"
	}
	return e.Text
}
func (e *Error) Unwrap() error {
	if e == nil {
		return nil
	}
	return e.Err
}

// outputError says that a result, or a line of a log, could not be written. A command that stops because of one, before
// its work is done, must wrap it in an Error.
type outputError struct {
	doing string
	err   error
}

func (e *outputError) Error() string { return e.doing + ": " + e.err.Error() }
func (e *outputError) Unwrap() error { return e.err }

// onlyOutput reports whether err has only errors of output. The command has then done its work.
func onlyOutput(err error) bool {
	switch e := err.(type) {
	case *outputError:
		return true
	case *Error:
		return false
	case interface{ Unwrap() []error }:
		return !slices.ContainsFunc(e.Unwrap(), func(err error) bool { return !onlyOutput(err) })
	case interface{ Unwrap() error }:
		return onlyOutput(e.Unwrap())
	}
	return false
}

// results is stdout. Its errors must not look like errors of the database: a full disk under stdout says nothing about
// the database.
type results struct{ w io.Writer }

func (r *results) Write(p []byte) (int, error) {
	n, err := r.w.Write(p)
	if err != nil {
		err = &outputError{"print the result", err}
	}
	return n, err
}

// usageError is a command line that cannot be understood.
type usageError struct{ err error }

func (e *usageError) Error() string { return e.err.Error() }
func (e *usageError) Unwrap() error { return e.err }

func usagef(format string, args ...any) error {
	return &usageError{fmt.Errorf(format, args...)}
}

func asUsage(err error) error {
	var usage *usageError
	if errors.As(err, &usage) {
		return err
	}
	return &usageError{err}
}

// wanted says which values a flag takes, by the type of its value.
var wanted = map[string]string{
	"duration": "a duration is wanted, such as 30s, 5m or 2h", "bool": "true or false is wanted",
	"int": "a whole number is wanted", "int64": "a whole number is wanted",
}

// flagError puts an error about a flag into words, and names the nearest flag to one that is unknown.
func flagError(c *cobra.Command, err error) error {
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		f := invalid.GetFlag()
		if want, known := wanted[f.Value.Type()]; known {
			return usagef("--%s is %q: %s", f.Name, invalid.GetValue(), want)
		}
		why := strings.TrimPrefix(errors.Unwrap(invalid).Error(), "layer: ")
		return usagef("--%s is %q: %s", f.Name, invalid.GetValue(), why)
	}
	var valueless *pflag.ValueRequiredError
	if errors.As(err, &valueless) {
		return usagef("--%s has no value: give one", valueless.GetFlag().Name)
	}
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return usagef("%w", err)
	}
	name := unknown.GetSpecifiedName()
	nearest, best := "", 3 // a suggestion farther off than two letters is a riddle
	c.Flags().VisitAll(func(f *pflag.Flag) {
		if d := distance(name, f.Name); d < best || strings.HasPrefix(f.Name, name) && len(name) > 1 && best > 1 {
			nearest, best = f.Name, min(d, 1)
		}
	})
	if nearest == "" {
		return usagef("%w", err)
	}
	return usagef("%w: did you mean --%s?", err, nearest)
}

// distance is the edit distance of two names: insertions, deletions and replacements of a byte.
func distance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			replace := diagonal
			if a[i] != b[j] {
				replace++
			}
			diagonal = row[j+1]
			row[j+1] = min(replace, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}

// explain returns the text of err. If the user can act on the error, advice follows on lines of its own.
func (s *session) explain(err error) string {
	text := strings.TrimSpace(err.Error())
	if advice := s.advise(err); advice != "" {
		return text + "\n  " + advice
	}
	return text
}

// unknownAdvice is for a command whose outcome is unknown.
const unknownAdvice = `It may have landed. Look before you do it again: %s and %s show the queue.
  You can repeat an ack, nack or extend, and an enqueue with a dedup id. A count above leaves it out.`

func (s *session) advise(err error) string {
	if !kv.MaybeCommitted(err) {
		return cure(err)
	}
	look := fmt.Sprintf(unknownAdvice, s.command("stats"), s.command("peek"))
	if cause := cure(err); cause != "" {
		return look + "\n  " + cause
	}
	return look
}

// cure returns advice for the cause of err; "" = there is none.
func cure(err error) string {
	var own *Error
	var folder *folderError
	switch {
	case errors.As(err, &own):
		return own.Hint
	case onlyOutput(err):
		return "Only the output is lost. The work of the command is done: do not do it again for that."
	case errors.Is(err, layer.ErrClock):
		return "Correct the clocks of the hosts first, or choose without a time."
	case errors.Is(err, &kv.Error{Code: kv.CodeDatabaseLocked}):
		return "An operator has locked the database. fdbcli's command unlock, with the UID that lock printed, frees it."
	case errors.Is(err, embedded.ErrLocked):
		return "Another process has the folder open, and does not share it or does not answer. Wait until it ends,\n" +
			"  stop it, or use another folder with --engine disk:PATH."
	case errors.Is(err, embedded.ErrOtherUser):
		return "Root can use the folder as a client while a process of its owner has it open."
	case errors.Is(err, embedded.ErrReadOnly):
		return "Nothing was written. You can read it with stats, groups, peek, why, dead list and check.\n" +
			"  To change it, give this user write permission, or copy the folder."
	case errors.Is(err, embedded.ErrNewerFormat):
		return "Use the newer fdbfifo, or another folder with --engine disk:PATH."
	case errors.Is(err, embedded.ErrGone):
		return "The open queues are not there any more. Stop all processes of the folder first. Then put the\n" +
			"  folder back, or restore a copy: a folder that is missing begins empty, without confirmed messages."
	case errors.Is(err, embedded.ErrCorrupt):
		return "The folder was left as it is. Restore it from a copy, or use another folder with --engine disk:PATH."
	case errors.Is(err, syscall.ENOSPC), errors.Is(err, syscall.EDQUOT):
		return "The disk, or this user's quota, is full: make room first. Messages that were confirmed are kept:\n" +
			"  do not enqueue them again."
	case errors.As(err, &folder) && (errors.Is(err, syscall.EROFS) || errors.Is(err, fs.ErrPermission)):
		return "This user may not write there. Use a folder of your own with --engine disk:PATH."
	case errors.Is(err, syscall.ENOMEM), errors.Is(err, syscall.ENODEV), errors.Is(err, syscall.ENOLCK):
		return "This is a limit of the process or of the file system, and no damage. Messages that were confirmed\n" +
			"  are kept: do not enqueue them again."
	case errors.Is(err, &kv.Error{Code: kv.CodeIOError}):
		return "The error above says why the folder cannot be used. Remove the cause, and run the command again.\n" +
			"  If a process that has the folder open repeats the error, restart that process."
	}
	return ""
}

// checkPage checks the -n of a command that lists all rows at once.
func checkPage(n int) error {
	if n < 1 || n > layer.MaxBatch {
		return usagef("-n is %d: 1 to %d are allowed", n, layer.MaxBatch)
	}
	return nil
}

// checkSome checks the -n of a command that changes messages. A number that is given is never without a limit.
func checkSome(c *cobra.Command, n int) error {
	if c.Flags().Changed("number") && n < 1 {
		return usagef("-n is %d: 1 or more is wanted, or leave it out for all", n)
	}
	return nil
}

// checkMost checks the -n of a command that may run without a limit; 0 = no limit.
func checkMost(n int) error {
	if n < 0 {
		return usagef("-n is %d: 0, for all, or more is wanted", n)
	}
	return nil
}
