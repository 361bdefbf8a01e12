// Package cli is fdbfifo's command line as a library: commands are functions of a context, arguments and three
// streams, and main is a shell around them.
//
// It knows engines only by the names in App.Engines, so that a program of another module can add its own.
// Results go to stdout, everything else (progress, notices, errors) to stderr.
package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
)

// App is the command line and its environment. New returns the usual one. Of the fields only Engines must be set.
type App struct {
	// Engines are those that --engine can name: NAME or NAME:ARG.
	Engines map[string]OpenFunc
	// Shared names those of Engines that several processes can have open at once.
	Shared []string
	// EngineHelp is the text of --help about engines other than the embedded ones.
	EngineHelp string
	// Now is the clock for leases, ages and durations. Defaults to time.Now.
	Now func() time.Time
	// Seed and Owner are given to every queue that is opened, see layer.Options.
	Seed  uint64
	Owner string
	// Kill is closed by the second Ctrl-C. It ends the work that still runs after the context has ended. nil = never.
	Kill <-chan struct{}

	// spawn starts this command line once more, as a process of its own. nil = the running program's file.
	spawn spawnFunc
	// size returns the width in columns and the height in lines of the terminal that w is, if it is one.
	size func(w io.Writer) (width, height int, ok bool)
	// terminal reports whether a terminal is read through r.
	terminal func(r io.Reader) bool
}

// New returns the command line with the embedded engines.
func New() *App {
	a := &App{Engines: Embedded()}
	if embedded.Sharable {
		a.Shared = []string{"disk"}
	}
	return a
}

func terminalSize(w io.Writer) (width, height int, ok bool) {
	if p, wrapped := w.(*plainWriter); wrapped {
		w = p.w
	}
	if r, wrapped := w.(*results); wrapped {
		w = r.w
	}
	f, isFile := w.(*os.File)
	if !isFile {
		return 0, 0, false
	}
	width, height, err := term.GetSize(int(f.Fd()))
	return width, height, err == nil && width > 0
}

func terminalInput(r io.Reader) bool {
	f, isFile := r.(*os.File)
	return isFile && term.IsTerminal(int(f.Fd()))
}

// Run runs one command line on the embedded engines, as App.Run does.
func Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	return New().Run(ctx, args, stdin, stdout, stderr)
}

// Run runs one command line; args is without the program's name. Run prints an error to stderr and then returns it.
// ExitCode returns the exit code for the error. When ctx ends, commands stop in good order: they return their claims
// and print a summary.
func (a *App) Run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) error {
	app := *a
	if app.Now == nil {
		app.Now = time.Now
	}
	if app.size == nil {
		app.size = terminalSize
	}
	if app.terminal == nil {
		app.terminal = terminalInput
	}
	if app.spawn == nil {
		app.spawn = spawnSelf
	}
	s := &session{app: &app, args: args, stdin: stdin, raw: &results{stdout}, stderr: stderr}
	s.stdout = &plainWriter{s.raw}
	s.troubles.Say = s.sayTrouble
	root, parsed := s.root()
	root.SetArgs(args)
	root.SetIn(stdin)
	root.SetOut(s.stdout)
	root.SetErr(stderr)
	c, err := root.ExecuteContextC(kv.WithTrouble(ctx, s.troubles.Note))
	if err == nil {
		return nil
	}
	if !*parsed {
		err = asUsage(err)
	}
	text := s.explain(err)
	if ctx.Err() != nil {
		text = strings.ReplaceAll(text, context.Canceled.Error(), errInterrupted.Error())
	}
	if !quiet(c, err) {
		s.fail(c, err, text)
	}
	return err
}

// fail prints an error: the command that failed, its object, the reason, and advice if there is any.
func (s *session) fail(c *cobra.Command, err error, text string) {
	// Errors of the layer begin with the name of its verb, which is mostly the command's.
	text = strings.TrimPrefix(strings.TrimPrefix(text, "layer: "), c.Name()+": ")
	if ExitCode(err) == ExitUsage {
		see := " (see " + c.CommandPath() + " --help)"
		if strings.Contains(text, "\n") {
			see = "\n  See " + c.CommandPath() + " --help."
		}
		text += see
	}
	s.stderr.Write(plain(fmt.Appendf(nil, "%s: %s\n", c.CommandPath(), text)))
}

// looking are the read-only commands.
var looking = map[string]bool{
	"peek": true, "groups": true, "blocked": true, "top": true, "why": true, "find": true, "queues": true,
	"stats": true, "subscriptions": true, "check": true, "dead list": true, "archive list": true, "key": true,
	"decode": true,
}

// quiet reports whether err is the end of a pipe, as of groups | head, and the command has changed nothing.
func quiet(c *cobra.Command, err error) bool {
	return looking[commandName(c)] && onlyOutput(err) && errors.Is(err, syscall.EPIPE)
}

// session is one run of the command line: its streams and the flags that all commands share.
type session struct {
	app    *App
	args   []string
	stdin  io.Reader
	stdout io.Writer // takes text, and prints it plain
	raw    io.Writer // the same, and prints as it is
	stderr io.Writer

	engine string
	queue  string
	place  place
	json   bool
	beside beside
	acting acting
	// troubles says on stderr that the database keeps the command waiting.
	troubles kv.Troubles
}

const rootHelp = `fdbfifo keeps grouped FIFO queues. The messages of a group are delivered in order, to one worker at a
time. Groups are not declared, their number is not limited, and they run in parallel.

Exit codes: 0 done, 1 failed, 2 wrong usage, 3 no such queue, 4 no usable cluster file, 5 cluster unreachable, 6
database locked, 7 wrong FoundationDB API version, 8 done, but the result could not be printed, 9 unknown: the change
may have landed, 10 a duplicate was refused, 130 interrupted before it was done.`

// root builds the command tree. parsed becomes true when the command line has proved well formed.
func (s *session) root() (root *cobra.Command, parsed *bool) {
	parsed = new(bool)
	root = &cobra.Command{
		Use:               "fdbfifo",
		Short:             "Grouped FIFO queues",
		Long:              rootHelp,
		Version:           version(),
		SilenceErrors:     true,
		SilenceUsage:      true,
		CompletionOptions: cobra.CompletionOptions{HiddenDefaultCmd: true},
		PersistentPreRunE: func(c *cobra.Command, _ []string) error {
			*parsed = true
			return cmp.Or(s.checkEngine(), s.place.parse(c))
		},
		Args: knownCommand,
		RunE: func(c *cobra.Command, _ []string) error { return c.Help() },
	}
	root.SuggestionsMinimumDistance = 2
	root.Flags().Bool("version", false, "print what this program was built from")
	root.SetVersionTemplate("fdbfifo {{.Version}}\n")
	root.SetHelpCommand(newHelpCmd())
	root.SetFlagErrorFunc(func(c *cobra.Command, err error) error {
		if c == root {
			// The flag may be right, and the command before it misspelt: "enqeue --body x".
			if i := slices.IndexFunc(s.args, func(a string) bool { return !strings.HasPrefix(a, "-") }); i == 0 {
				return knownCommand(root, s.args[:1])
			}
		}
		return flagError(c, err)
	})
	flags := root.PersistentFlags()
	engines := "where queues are kept: disk (in your data directory), `disk:PATH`, or memory"
	if s.app.EngineHelp != "" {
		engines += "; " + s.app.EngineHelp
	}
	flags.StringVar(&s.engine, "engine", defaultEngine, engines)
	flags.StringVar(&s.queue, "queue", defaultQueue, "the queue's `NAME`")
	s.place.add(root)
	flags.BoolVar(&s.json, "json", false, "print JSON: an object, or for lists one on each line")
	root.AddCommand(
		newDemoCmd(s),
		newDemoWorkerCmd(s),
		newCreateCmd(s),
		newEnqueueCmd(s),
		newReceiveCmd(s),
		newAckCmd(s),
		newNackCmd(s),
		newExtendCmd(s),
		newWorkCmd(s),
		newServeCmd(s),
		newPeekCmd(s),
		newGroupsCmd(s),
		newBlockedCmd(s),
		newTopCmd(s),
		newConsoleCmd(s),
		newWhyCmd(s),
		newFindCmd(s),
		newCancelCmd(s),
		newRescheduleCmd(s),
		newReplaceCmd(s),
		newEditCmd(s),
		newSkipCmd(s),
		newReleaseCmd(s),
		newRetryCmd(s),
		newStateCmd(s),
		newPurgeCmd(s),
		newPauseCmd(s),
		newResumeCmd(s),
		newQueuesCmd(s),
		newDropCmd(s),
		newStatsCmd(s),
		newConfigCmd(s),
		newDeadCmd(s),
		newArchiveCmd(s),
		newSubscriptionsCmd(s),
		newUnsubscribeCmd(s),
		newSweepCmd(s),
		newCheckCmd(s),
		newBenchCmd(s),
		newBenchPeerCmd(s),
		newKeyCmd(s),
		newDecodeCmd(s),
	)
	for _, c := range root.Commands() {
		if c.Args == nil {
			c.Args = noArgs
		}
		c.DisableFlagsInUseLine = true
	}
	checkAllGiven(root, s.args)
	return root, parsed
}

// knownCommand returns the error for a word that is no command.
func knownCommand(root *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	names := root.SuggestionsFor(args[0])
	if name, ok := elsewhereNames[args[0]]; ok {
		names = []string{name}
	}
	if len(names) > 0 {
		return usagef("unknown command %q: did you mean %s?", args[0], strings.Join(names, " or "))
	}
	return usagef("unknown command %q", args[0])
}

// elsewhereNames are the names that other queues have for the commands.
var elsewhereNames = map[string]string{
	"send": "enqueue", "push": "enqueue", "put": "enqueue", "publish": "enqueue", "add": "enqueue",
	"read": "receive", "pop": "receive", "get": "receive", "dequeue": "receive", "pull": "receive", "take": "receive",
	"delete": "ack", "complete": "ack", "done": "ack", "finish": "ack",
	"fail": "nack", "abandon": "nack", "requeue": "nack", "reject": "nack",
	"renew": "extend", "heartbeat": "extend",
	"worker": "work", "consume": "work", "run": "work",
	"list": "queues", "ls": "queues", "rm": "drop", "remove": "drop", "clear": "purge", "truncate": "purge",
	"metrics": "stats", "status": "stats", "count": "stats", "depth": "stats", "info": "stats",
	"set": "config", "configure": "config", "alter": "config", "dlq": "dead", "replay": "archive", "redrive": "dead",
	"unpause": "resume", "verify": "check", "lookup": "find", "search": "find", "snooze": "reschedule",
}

// newHelpCmd is cobra's help command with one difference: it returns an error if no command has the given name.
func newHelpCmd() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]...",
		Short: "Help about any command",
		Args:  cobra.ArbitraryArgs,
		RunE: func(c *cobra.Command, args []string) error {
			found, rest, err := c.Root().Find(args)
			switch {
			case found == c.Root() && len(args) > 0:
				return knownCommand(found, args)
			case err != nil:
				return asUsage(err)
			case len(rest) > 0 && found.HasSubCommands():
				return knownSubcommand(found, rest)
			case len(rest) > 0:
				return usagef("unknown command %q: %s has no commands below it", rest[0], found.CommandPath())
			}
			found.InitDefaultHelpFlag()
			return found.Help()
		},
	}
}

// noArgs is for commands that take flags only.
func noArgs(c *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usagef("unexpected argument %q: the command takes flags only, and --queue names a queue", args[0])
	}
	return nil
}

// notice tells the user something that is not the result.
func (s *session) notice(format string, args ...any) {
	s.stderr.Write(plain(fmt.Appendf(nil, "fdbfifo: "+format+"\n", args...)))
}
