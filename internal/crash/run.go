package crash

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"fdbfifo/kv"
	"fdbfifo/kv/embedded"
	"fdbfifo/layer"
)

// Options of a run.
type Options struct {
	Seed   uint64
	Kills  int
	Folder string           // for the files; the caller removes it
	Child  func() *exec.Cmd // a process that calls Child

	// Together lets other processes have the folder open at the same time as the child, and serve it. They are killed
	// too, and stopped with the signal Stop until Continue.
	Together       bool
	Stop, Continue os.Signal

	// For tests of the checks. Lie makes the disk lie once: it loses all that was acknowledged after some commit.
	// Tamper is called after each kill and the check, and followed by another, until it says that it has done
	// something.
	Lie    bool
	Tamper func(ctx context.Context, db kv.DB) (done bool, err error)
}

// Report is what a run has come to.
type Report struct {
	Kills        map[string]int // by their kind
	Acknowledged map[string]int // operations by their kind
	Unknown      map[string]*outcomes
	Messages     int // that were enqueued, for certain
	Stops        int // of a process that served
	Takeovers    int
	Took         time.Duration
}

func total(m map[string]int) (n int) {
	for _, v := range m {
		n += v
	}
	return n
}

func (r *Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%d kills in %.1f s:", total(r.Kills), r.Took.Seconds())
	for _, k := range slices.Sorted(maps.Keys(r.Kills)) {
		fmt.Fprintf(&b, " %s %d", k, r.Kills[k])
	}
	if r.Takeovers > 0 {
		fmt.Fprintf(&b, "; %d takeovers, %d stops", r.Takeovers, r.Stops)
	}
	fmt.Fprintf(&b, "\n%d operations acknowledged, %d messages:", total(r.Acknowledged), r.Messages)
	for _, k := range slices.Sorted(maps.Keys(r.Acknowledged)) {
		fmt.Fprintf(&b, " %s %d", k, r.Acknowledged[k])
	}
	var all outcomes
	for _, u := range r.Unknown {
		all.Found += u.Found
		all.NotFound += u.NotFound
		all.Open += u.Open
	}
	fmt.Fprintf(&b, "\n%d operations of unknown outcome: %d found, %d not found, %d that leave no trace of their own;",
		all.Found+all.NotFound+all.Open, all.Found, all.NotFound, all.Open)
	for _, k := range slices.Sorted(maps.Keys(r.Unknown)) {
		u := r.Unknown[k]
		fmt.Fprintf(&b, " %s %d/%d/%d", k, u.Found, u.NotFound, u.Open)
	}
	return b.String()
}

// roundLives is after how many kills a run goes on with a new file: each check reads all of it.
const roundLives = 10

// run is one round: a database file, and the model of its content.
type run struct {
	o      Options
	report *Report
	m      *model
	folder string
	ahead  time.Duration
	lies   bool
	done   bool // with tampering
}

// Run kills o.Kills children and checks after each. An error says what was broken, and at which kill.
func Run(ctx context.Context, o Options) (*Report, error) {
	begun := time.Now()
	report := &Report{Kills: make(map[string]int), Acknowledged: make(map[string]int), Unknown: make(map[string]*outcomes)}
	defer func() { report.Took = time.Since(begun) }()
	for n := 0; total(report.Kills) < o.Kills; n += roundLives {
		r := &run{o: o, report: report, lies: o.Lie && n == 0, folder: filepath.Join(o.Folder, fmt.Sprint("round", n/roundLives))}
		if err := r.round(ctx, n); err != nil {
			return report, err
		}
	}
	return report, nil
}

func (r *run) round(ctx context.Context, first int) error {
	archive := rand.New(rand.NewPCG(r.o.Seed, uint64(first))).IntN(2) == 0
	r.m = newModel(archive)
	var retry [][]message
	lives := roundLives
	if !r.o.Together {
		lives = min(lives, r.o.Kills-first)
	}
	for life := range lives {
		rng := rand.New(rand.NewPCG(r.o.Seed, uint64(first+life+1)))
		o := &orders{
			Folder: r.folder, Seed: rng.Uint64(), Life: first + life + 1, Ahead: r.ahead, Archive: archive,
			Kill: drawKill(rng), Retry: retry,
		}
		if r.lies && life == lives-1 {
			o.Kill = kill{Kind: killLie, Count: 5}
		}
		what := fmt.Sprintf("kill %d (%s)", o.Life, o.Kill)
		if r.o.Together {
			o.Kill, what = kill{}, fmt.Sprintf("life %d", o.Life)
			if err := r.lifeTogether(o, rng); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
		} else {
			if err := r.life(o); err != nil {
				return fmt.Errorf("%s: %w", what, err)
			}
			r.report.Kills[o.Kill.Kind]++
		}
		how := ""
		var err error
		switch o.Kill.Kind {
		case killPower:
			how, err = cutPower(r.folder, rng)
		case killLie:
			err = forgetSyncs(r.folder)
		}
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		r.m.history.note(r.m.now, "%s %s; the parent opens the folder and checks it", what, how)
		// Half of the time the leases of the dead have run out.
		if rng.IntN(2) == 0 {
			r.ahead += 2 * time.Hour
		}
		retry = r.unknownEnqueues()
		last := life == lives-1 || total(r.report.Kills) >= r.o.Kills
		if err := r.check(ctx, last); err != nil {
			return fmt.Errorf("%s %s: %w", what, how, err)
		}
		if last {
			break
		}
	}
	for _, it := range r.m.items {
		if it.at&absent == 0 {
			r.report.Messages++
		}
	}
	return os.RemoveAll(r.folder)
}

// unknownEnqueues are those that a careful client sends again: with a dedup id for each message, to groups in which no
// purge makes it forgotten.
func (r *run) unknownEnqueues() (retry [][]message) {
	for _, op := range slices.Sorted(maps.Keys(r.m.open)) {
		o := r.m.open[op]
		if (o.Kind == kindEnqueue || o.Kind == kindResend) && !slices.ContainsFunc(o.Msgs, func(m message) bool {
			return m.Dedup == "" || isPurged(m.Group)
		}) {
			retry = append(retry, o.Msgs)
		}
	}
	return retry
}

// stuck is how long a child may live: far longer than any kill takes to come.
const stuck = 5 * time.Minute

// child is a process at work.
type child struct {
	*exec.Cmd
	stderr bytes.Buffer
	lines  *bufio.Reader
	guard  *time.Timer
	once   sync.Once
	late   atomic.Bool
}

// start starts a child, and gives it its orders. It is killed if it lives too long.
func (r *run) start(o *orders) (*child, error) {
	told, err := json.Marshal(o)
	if err != nil {
		return nil, err
	}
	c := &child{Cmd: r.o.Child()}
	c.Stdin, c.Stderr = bytes.NewReader(told), &c.stderr
	out, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	c.lines = bufio.NewReaderSize(out, 1<<20)
	if err := c.Start(); err != nil {
		return nil, err
	}
	c.guard = time.AfterFunc(stuck, func() {
		c.late.Store(true)
		c.slay()
	})
	return c, nil
}

func (c *child) slay() { c.once.Do(func() { _ = c.Process.Kill() }) } // it may be dead already

// next returns the next line of the child's journal; false if there will be no more.
func (c *child) next() (e event, more bool, err error) {
	line, err := c.lines.ReadBytes('\n')
	if errors.Is(err, io.EOF) {
		return e, false, nil // a last line that was cut short was not told
	}
	if err == nil {
		err = json.Unmarshal(line, &e)
	}
	if err != nil {
		return e, false, fmt.Errorf("journal: %w", err)
	}
	return e, true, nil
}

// end waits for the child's end, when all that it told was read. It must have been killed.
func (c *child) end() error {
	err := c.Wait()
	c.guard.Stop()
	var exit *exec.ExitError
	switch {
	case c.late.Load():
		return fmt.Errorf("the child did not come to its end within %s", stuck)
	case !errors.As(err, &exit) || exit.Exited():
		return fmt.Errorf("the child was not killed: %v: %s", err, &c.stderr)
	case c.stderr.Len() > 0: // a race, if it was built to look for them
		return fmt.Errorf("the child said: %s", &c.stderr)
	}
	return nil
}

// life runs a child until it is dead, and gives the model the answers that the child got.
func (r *run) life(o *orders) error {
	c, err := r.start(o)
	if err != nil {
		return err
	}
	if o.Kill.Kind == killOpening {
		defer time.AfterFunc(o.Kill.After, c.slay).Stop()
	}
	for done := 0; ; {
		e, more, err := c.next()
		if err != nil {
			return err
		}
		if !more {
			break
		}
		r.m.see(e)
		switch {
		case e.Kind == kindReady && o.Kill.Kind == killTimed:
			defer time.AfterFunc(o.Kill.After, c.slay).Stop()
		case e.Done:
			done++
			if o.Kill.Kind == killCounted && done == o.Kill.Count || o.Kill.Kind == killLie && done == 300 {
				c.slay()
			}
		}
	}
	if err := c.end(); err != nil {
		return err
	}
	r.acknowledge()
	return nil
}

func (r *run) acknowledge() {
	for kind, n := range r.m.Acknowledged {
		r.report.Acknowledged[kind] += n
	}
	clear(r.m.Acknowledged)
}

// check opens the file, and holds what is in it to the model; with last, to the end of the queue.
func (r *run) check(ctx context.Context, last bool) (err error) {
	db, err := embedded.OpenDisk(r.folder, embedded.Options{})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, db.Close()) }()
	o := orders{Ahead: r.ahead, Archive: r.m.archive}
	q, err := layer.Open(ctx, db, prefix, queueName, o.options(9))
	if errors.Is(err, layer.ErrNoQueue) && len(r.m.items) == 0 {
		return nil // killed before there was one
	}
	if err != nil {
		return err
	}
	if err := r.m.check(ctx, db, q, r.report.Unknown); err != nil {
		return err
	}
	if r.o.Tamper != nil && !r.done {
		// After a check nothing is open any more: what is missing then cannot be what a purge under way took.
		if r.done, err = r.o.Tamper(ctx, db); err != nil {
			return err
		}
		if err := r.m.check(ctx, db, q, make(map[string]*outcomes)); err != nil {
			return err
		}
	}
	if r.o.Together {
		if err := r.checkOther(ctx, db, o); err != nil {
			return err
		}
	}
	if last && len(r.m.problems) == 0 {
		if err := r.drain(ctx, db); err != nil {
			return err
		}
	}
	if err := q.Close(ctx); err != nil {
		return err
	}
	return r.m.broken()
}

// drain works off what is left, when all leases have run out, and checks once more.
func (r *run) drain(ctx context.Context, db kv.DB) error {
	o := orders{Ahead: r.ahead + 2*time.Hour, Archive: r.m.archive}
	q, err := layer.Open(ctx, db, prefix, queueName, o.options(10))
	if err != nil {
		return err
	}
	if err := r.m.drain(ctx, q); err != nil {
		return fmt.Errorf("drain: %w", err)
	}
	if err := r.m.check(ctx, db, q, make(map[string]*outcomes)); err != nil {
		return err
	}
	for _, it := range r.m.sorted() {
		if it.at&(waiting|dead) != 0 {
			r.m.wrong(it.N, "G3: message %d of group %q is %s, and was never delivered", it.N, it.Group, it.at)
		}
	}
	return q.Close(ctx)
}

func (m *model) broken() error {
	if len(m.problems) == 0 {
		return nil
	}
	const most = 20
	more := ""
	if n := len(m.problems) - most; n > 0 {
		m.problems, more = m.problems[:most], fmt.Sprintf("\nand %d more", n)
	}
	return fmt.Errorf("%w:\n%s%s\n%s", ErrBroken, strings.Join(m.problems, "\n"), more, m.explain())
}

// ErrBroken: what is left is not what was told.
var ErrBroken = errors.New("crash: broken")
