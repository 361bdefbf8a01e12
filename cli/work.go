package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/spf13/cobra"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// workFlags are the flags of work.
type workFlags struct {
	exec       string
	workers    int
	maxWorkers int
	batch      int
	max        int64
	lease      time.Duration
	timeout    time.Duration
	group      groupFlag
	where      whereFlag
	unordered  bool
	advance    whereFlag
	untilEmpty bool
}

const workHelp = `Run a command for each message, in order within each group, groups in parallel.

The command is run by sh -c with the message's body on its stdin and FDBFIFO_GROUP, FDBFIFO_ID,
FDBFIFO_ATTEMPTS (failed deliveries before this one), FDBFIFO_HEADER_NAME and FDBFIFO_ITEM (all of it, as JSON) in its
environment. A variable that cannot hold its value is not set: read FDBFIFO_ITEM instead. A COMMAND that the shell
cannot read, because a quote is missing for example, is refused.

Exit code 0 finishes the message. Any other gives it back, with the end of stderr as the reason, and it is tried again
after a delay that grows. The messages behind it in its group wait; other groups continue. With 126 and 127 the shell
says that it cannot run the command: work ends then, and counts no attempt. Read large bodies from stdin: one that has
no room in an argument, as "$(cat)", counts a failed attempt. A message may come more than once, for example after a
crash: the command must be repeatable. If it enqueues the message in another queue, give that enqueue
--dedup-id "${FDBFIFO_ID%%@*}", which no other message has. Then a command that is repeated within the dedup_window of
that queue enqueues nothing twice. The default is 5 minutes: give that queue a longer one first, with create or config.
With --refuse-duplicates a repeated command would fail until the message is a dead letter here.

In a queue with facets --where takes only the messages with these facets. --advance gives a message that was handled
other facets, in its place, instead of finishing it: a stage of a pipeline.

The output of the commands goes to a pipe or a file as it is, and a last line without an end gets one. Lines of
commands that run at the same time do not mix, up to 4 MiB a line. A command waits while its output is not read, and
the time of --timeout does not pass then. On a terminal the control characters of the output are escaped, because a
message may have some.

The first Ctrl-C, SIGTERM or SIGHUP lets the commands that run finish, gives back the messages that were not tried, and
prints a summary. The second one kills the commands, and the process ends within 10 s. The exit code is then 0, or 130
with --until-empty or --max. With --until-empty it is 1 if messages have failed for good: see dead list.`

func newWorkCmd(s *session) *cobra.Command {
	var f workFlags
	c := &cobra.Command{
		Use:     "work --exec COMMAND [flags]",
		Short:   "Run a command for each message",
		Long:    workHelp,
		Example: `  fdbfifo work --exec 'curl -sf -d @- https://example.com/hook' --workers 4`,
		RunE: func(c *cobra.Command, _ []string) error {
			if f.exec == "" {
				return usagef("no command is named: give --exec COMMAND")
			}
			if err := checkLine(c.Context(), f.exec); err != nil {
				return err
			}
			if f.workers < 1 {
				return usagef("--workers is %d: 1 or more is wanted", f.workers)
			}
			if c.Flags().Changed("max-workers") && f.maxWorkers < f.workers {
				return usagef("--max-workers is %d: %d, which is --workers, or more is wanted", f.maxWorkers, f.workers)
			}
			if f.batch < 1 || f.batch > layer.MaxBatch {
				return usagef("--batch is %d: 1 to %d are allowed", f.batch, layer.MaxBatch)
			}
			if c.Flags().Changed("max") && f.max < 1 {
				return usagef("--max is %d: 1 or more is wanted", f.max)
			}
			if err := checkLease(c, f.lease); err != nil {
				return err
			}
			if f.timeout < 0 {
				return usagef("--timeout is %s: 0s or more is wanted", f.timeout)
			}
			if c.Flags().Changed("advance") && f.advance.template == nil {
				return usagef("--advance names no facet: give a TEMPLATE, as state=PAID")
			}
			if f.advance.template != nil && f.where.template == nil {
				return usagef("--advance needs --where: it says which messages advance")
			}
			return s.withQueue(c.Context(), false, func(q *layer.Queue) error { return s.work(c.Context(), q, f) })
		},
	}
	c.Flags().StringVar(&f.exec, "exec", "", "the `COMMAND`, run by sh -c")
	c.Flags().IntVar(&f.workers, "workers", worker.DefaultConcurrency, "run at most `N` commands at a time")
	c.Flags().IntVar(&f.maxWorkers, "max-workers", 0, "up to `N` while there is work for them; left out, as --workers")
	c.Flags().IntVar(&f.batch, "batch", 1, "take, and finish, at most `N` messages of a group together")
	c.Flags().DurationVar(&f.lease, "lease", 0,
		"the `TIME` after which the group of a dead worker is free; left out, the queue's")
	c.Flags().Int64Var(&f.max, "max", 0, "end when `N` messages were tried, failed ones included")
	c.Flags().DurationVar(&f.timeout, "timeout", 0,
		"`TIME` after which a command is killed, and has failed; left out, never")
	f.group.add(c, "only messages of this `GROUP`; --until-empty then means the group")
	c.Flags().BoolVar(&f.unordered, "unordered", false,
		"messages that no worker holds, out of order, in a queue with the setting unordered")
	c.Flags().Var(&f.where, "where", "only messages with these facets: a `TEMPLATE` of the queue's views, as state=NEW")
	c.Flags().Var(&f.advance, "advance",
		"a message that is handled stays in its place, with the facets of this `TEMPLATE`, as state=PAID")
	s.beside.add(c)
	s.addLog(c, workersLog)
	c.Flags().BoolVar(&f.untilEmpty, "until-empty", false, "end when no message is left that it may take")
	return c
}

// workResult is the summary of work. A message that is delivered twice counts twice.
type workResult struct {
	Handled   int64 `json:"handled"`
	Failed    int64 `json:"failed"`
	GivenBack int64 `json:"given_back"` // failed, and cut off by a kill
	// LostClaims are claims that another worker has taken over. Messages under them count as handled if their commands
	// succeeded, and come again.
	LostClaims int64   `json:"lost_claims"`
	Dead       int64   `json:"dead"` // of the queue, since work began; only with --until-empty
	Seconds    float64 `json:"seconds"`
}

// working is one run of work.
type working struct {
	s        *session
	progress *progress
	command  command
	alive    context.Context // ends when the commands are killed
	max      int64           // of messages that are tried; 0 = no end
	filled   chan struct{}   // closed when max messages have begun
	enough   chan struct{}   // closed when these have ended, and the worker with them
	quit     chan struct{}   // closed when work is about to stop the worker

	running atomic.Int64
	started atomic.Int64
	handled atomic.Int64
	failed  atomic.Int64
	cutOff  atomic.Int64
	lost    atomic.Int64  // claims
	fatal   chan error    // the first error that ends work
	over    chan struct{} // closed with that error
	ending  sync.Once
	// aside are writes to stderr for which work does not wait until it has stopped: stderr may have no reader.
	aside sync.WaitGroup

	mu   sync.Mutex
	told string // the text of the last engine error that was printed; guarded by mu
	// unset has the notices about variables that were printed; guarded by mu.
	unset map[string]bool
}

func (s *session) work(ctx context.Context, q *layer.Queue, f workFlags) error {
	if f.advance.template != nil {
		config := q.Config()
		if err := config.CheckFacets(f.advance.template); err != nil {
			return usagef("--advance: %v", err)
		}
	}
	total, before := int64(-1), layer.Stats{}
	if f.untilEmpty {
		var err error
		if before, err = q.Stats(ctx, layer.StatsOptions{}); err != nil {
			return err
		}
		total = before.Depth
	}
	if f.max > 0 {
		total = f.max
	}
	alive, cancel := s.untilKilled()
	defer cancel()
	w := &working{
		s: s, alive: alive, max: f.max,
		filled: make(chan struct{}), enough: make(chan struct{}), quit: make(chan struct{}),
		fatal: make(chan error, 1), over: make(chan struct{}),
		unset:    make(map[string]bool),
		progress: s.newProgress("working", "message", total),
	}
	defer w.progress.close()
	out, errs := s.exact(s.raw), s.exact(s.stderr)
	w.command = command{
		line:   f.exec,
		stdout: func(text []byte) error { return w.print(out, text) },
		stderr: func(text []byte) { w.progress.print(func() { errs.Write(text) }) },
		unset:  w.tellUnset, timeout: f.timeout,
	}
	handler := worker.Handle(w.handle)
	if next := f.advance.template; next != nil {
		handler = worker.HandleStage(func(ctx context.Context, d *worker.Delivery) (layer.Template, error) {
			return next, w.handle(ctx, d)
		})
	}
	workers, most := f.workers, f.maxWorkers
	if f.max > 0 { // more would claim groups that are not handled
		workers, most = int(min(int64(workers), f.max)), int(min(int64(most), f.max))
	}
	worker, err := worker.New(q, handler, worker.Options{
		Concurrency: workers, MaxConcurrency: most, Batch: f.batch, Lease: f.lease,
		Timeout: -1, OnError: w.failure, Where: f.where.template, Group: f.group.given(), Unordered: f.unordered,
		Logger: s.acting.workers(), // the screen is told by failure
		Events: s.beside.hooks(),
	})
	if err != nil {
		return asUsageIfOptions(err)
	}
	s.beside.watch(q, worker)
	begun := s.app.Now()
	worker.Start()
	stop := sync.OnceValue(func() error { return s.stop(worker) })
	go func() { // the last messages may take long, and a group that the worker claims is kept from other processes
		select {
		case <-w.filled:
			_ = stop() // returned again below
			close(w.enough)
		case <-w.quit:
		}
	}()
	err = w.watch(ctx, q, f)
	close(w.quit)
	interrupted := ctx.Err() != nil && !w.isEnough()
	if interrupted {
		w.aside.Go(func() {
			w.progress.print(func() { s.notice("stopping: the commands that run may finish; Ctrl-C again kills them") })
		})
	}
	stopped := stop()
	w.aside.Wait()
	killed := errors.Is(stopped, errInterrupted)
	if err == nil {
		select {
		case err = <-w.fatal: // of a command that was still running when watch returned
		default:
		}
	}
	if !killed && err == nil {
		err = stopped
	}
	w.progress.close()
	dead := int64(0)
	if f.untilEmpty && err == nil {
		last, cancel := ending(ctx)
		defer cancel()
		after, e := q.Stats(last, layer.StatsOptions{})
		switch {
		case e == nil:
			dead = after.DeadLettered - before.DeadLettered
		case !interrupted && !killed: // the exit code says the other two, also without the figure
			err = e
		}
	}
	printed := w.summary(begun, dead)
	switch {
	case err != nil:
	case killed || interrupted && (f.untilEmpty || f.max > 0):
		err = errInterrupted
	case dead > 0:
		died := plural(dead, "message")
		if f.group.given() != nil {
			died += " of the queue"
		}
		err = &Error{
			Text: fmt.Sprintf("%s failed for good while the %s was emptied", died, f.group.place()),
			Hint: s.command("dead list"+f.group.words()) + " says why; " +
				s.command("dead redrive"+cmp.Or(f.group.words(), " --all")+" --yes") +
				" gives all dead letters of the " + f.group.place() + " back, also older ones.",
		}
	}
	return errors.Join(err, printed)
}

// print prints what a command has written. If that cannot be, work cannot go on: the output may be what it is for. A
// write to a pipe without a reader ends when the commands are killed.
func (w *working) print(out io.Writer, text []byte) (err error) {
	w.progress.print(func() {
		text = slices.Clone(text)
		_, err = waitFor(w.alive, func() (int, error) { return out.Write(text) })
	})
	if errors.Is(err, errInterrupted) {
		return err
	}
	if err != nil {
		w.end(&Error{Text: err.Error(), Hint: "The messages in flight were given back, and come again.", Err: err})
	}
	return err
}

// tellUnset tells once of each variable that could not be set.
func (w *working) tellUnset(variables []string, why string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	text := fmt.Sprintf("%s not set: %s; see %s", strings.Join(variables, ", "), why, itemVariable)
	if !w.unset[text] && len(w.unset) < maxUnsetNotices {
		w.unset[text] = true
		w.progress.print(func() { w.s.notice("%s", text) })
	}
}

// maxUnsetNotices keeps messages with headers of ever other names from filling the screen.
const maxUnsetNotices = 20

// end makes work end with err, unless it does so already.
func (w *working) end(err error) {
	w.ending.Do(func() {
		w.fatal <- err
		close(w.over)
	})
}

// stop stops a worker in good order, or at once when Kill is closed; the error says that it was the latter.
func (s *session) stop(worker *worker.Worker) error {
	ctx, cancel := s.untilKilled()
	defer cancel()
	return worker.Stop(ctx)
}

// untilKilled returns a context that ends when Kill is closed. The caller must call cancel.
func (s *session) untilKilled() (_ context.Context, cancel func()) {
	ctx, end := context.WithCancelCause(context.Background())
	go func() {
		select {
		case <-s.app.Kill:
			end(errInterrupted)
		case <-ctx.Done():
		}
	}()
	return ctx, func() { end(nil) }
}

// watchEvery is how often work looks whether the queue is empty, and shows its progress.
const watchEvery = 50 * time.Millisecond

// stillAfter is how long work waits without a command until it says which commands tell why.
const stillAfter = 10 * time.Second

// watch returns when work is to end: ctx has ended, the queue is empty, or an error leaves no other way.
func (w *working) watch(ctx context.Context, q *layer.Queue, f workFlags) error {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	moved, ended, rest, still := time.Now(), int64(0), time.Time{}, false
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-w.fatal:
			return err
		case <-w.enough:
			return nil
		case <-ticker.C:
		}
		w.aside.Go(func() { w.progress.set(w.handled.Load()) })
		if !f.untilEmpty || time.Now().Before(rest) {
			continue
		}
		begun := time.Now()
		over, err := emptyOf(ctx, q, f.group.given(), f.where.template)
		rest = time.Now().Add(3 * time.Since(begun)) // with a template each group is looked at, which may take long
		if ctx.Err() != nil {
			return nil
		}
		if over || err != nil {
			return err
		}
		if n := w.handled.Load() + w.failed.Load() + w.cutOff.Load(); n != ended || w.running.Load() > 0 {
			moved, ended = time.Now(), n
		} else if !still && time.Since(moved) >= stillAfter {
			still = true
			w.aside.Go(func() {
				w.tell("nothing is ready, and messages wait: " + w.s.command("blocked") + " and " +
					w.s.command("groups") + " say why")
			})
		}
	}
}

func (w *working) handle(ctx context.Context, d *worker.Delivery) error {
	select {
	case <-w.over:
		return &worker.RetryError{Uncounted: true, Err: errUntried}
	default:
	}
	if w.max > 0 {
		switch n := w.started.Add(1); {
		case n > w.max: // the worker is being stopped
			return &worker.RetryError{Uncounted: true, Err: errUntried}
		case n == w.max:
			close(w.filled)
		}
	}
	w.running.Add(1)
	defer w.running.Add(-1)
	err := w.attempt(ctx, d.Item)
	var not *notRun
	var short *shortage
	var output *outputError
	switch {
	case err == nil:
		w.handled.Add(1)
	case errors.As(err, &output), errors.Is(err, errInterrupted): // print has ended work, or was ended itself
		w.cutOff.Add(1)
		return &worker.RetryError{Uncounted: true, Err: errUntried}
	case errors.As(err, &short):
		return &worker.RetryError{Uncounted: true, After: shortPause, Err: errUntried}
	case errors.As(err, &not):
		w.cutOff.Add(1)
		w.end(&Error{Text: not.Error(), Hint: notRunHint, Err: not})
		return &worker.RetryError{Uncounted: true, Err: errUntried}
	case ctx.Err() != nil:
		w.cutOff.Add(1)
	default:
		w.failed.Add(1)
	}
	return err
}

// shortPause is how long a message waits when there was no room for a process.
const shortPause = time.Second

// attempt runs the command. If there is no room for its process, a message of --max waits here and is tried again until
// work is to end: no other message is tried in its place. Without --max it is given back, for another process perhaps.
func (w *working) attempt(ctx context.Context, item layer.Item) error {
	for {
		err := w.command.run(ctx, item)
		var short *shortage
		if !errors.As(err, &short) {
			return err
		}
		w.tell(short.Error() + ": the message waits and counts no attempt; use fewer --workers, or raise the limits " +
			"with ulimit -n or -u")
		if w.max == 0 {
			return err
		}
		select {
		case <-time.After(shortPause):
		case <-w.quit:
			return err
		case <-ctx.Done():
			return err
		}
	}
}

const notRunHint = `No failed attempt was counted: the message was given back. Correct --exec, and run work again. A
  script that ends with 126 or 127 for a reason of its own must use another exit code.`

// isEnough reports whether as many messages were tried as --max says, and the worker has ended.
func (w *working) isEnough() bool {
	select {
	case <-w.enough:
		return true
	default:
		return false
	}
}

// errUntried says that a message was given back untried, for example because --max was reached before its turn came.
var errUntried = errors.New("not tried")

// failure tells of an error: a command's each time, the engine's not again and again, as it comes with each look. A row
// that cannot be read stops its own group, and work continues with the others. If the row is the configuration, work
// waits until that can be read again.
func (w *working) failure(err error) {
	var handler *worker.HandlerError
	switch {
	case errors.Is(err, errUntried):
	case errors.As(err, &handler):
		w.progress.print(func() { w.s.notice("given back: %s: %v", handler.ID, handler.Err) })
	case kv.Code(err) == kv.CodeIOError, errors.Is(err, embedded.ErrReadOnly), errors.Is(err, worker.ErrStuck):
		w.end(err)
	case errors.Is(err, layer.ErrClaimLost):
		w.lost.Add(1)
		w.tell(err.Error())
	case errors.Is(err, layer.ErrNoQueue): // the worker has ended
		w.end(&Error{Text: fmt.Sprintf("queue %q was dropped", w.s.queue), Exit: ExitNoQueue, Err: err})
	default:
		w.tell(err.Error())
	}
}

func (w *working) tell(text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if text != w.told {
		w.told = text
		w.progress.print(func() { w.s.notice("%s", text) })
	}
}

func (w *working) summary(begun time.Time, dead int64) error {
	r := workResult{
		Handled: w.handled.Load(), Failed: w.failed.Load(), GivenBack: w.failed.Load() + w.cutOff.Load(), Dead: dead,
		LostClaims: w.lost.Load(), Seconds: w.s.app.Now().Sub(begun).Seconds(),
	}
	if w.s.json {
		return printJSON(w.s.stdout, r)
	}
	// All is done, and the exit code says how it went. So a stderr that takes no more text is not an error.
	lost := ""
	if r.LostClaims > 0 {
		lost = ", " + plural(r.LostClaims, "claim") + " lost"
	}
	_, _ = fmt.Fprintf(w.s.stderr, "fdbfifo: handled %s, %s failed, %s given back%s, in %.1f s\n",
		plural(r.Handled, "message"), commas(r.Failed), commas(r.GivenBack), lost, r.Seconds)
	return nil
}
