package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"fdbfifo/data"
	"fdbfifo/kv"
	"fdbfifo/kv/record"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// demoProcesses is how many processes the workers of a demo are spread over.
const demoProcesses = 4

// demoFlags are the flags of demo.
type demoFlags struct {
	data      string
	workers   int
	keep      bool
	inProcess bool
	processes int
	kill      bool
	lease     time.Duration
}

const demoHelp = `Load 20,000 real departures of US airports into a durable queue in a fresh folder, one group for each
airport. Drain it with several worker processes, and check them: two workers must never hold one group at once, every
group must come in order, and no message may be lost or come twice. The exit code is 1 if one of these rules is broken.

The processes share nothing except the database. One of them serves the folder to the others. Handling a message writes
a row in the transaction that acks it, and the rows are checked afterwards. Two processes are ended with SIGKILL on the
way: a worker with groups in flight, which other workers take over when the lease expires, and the process that serves,
whose place another takes. With --processes none is killed unless --kill is given, too.

With --in-process all workers are of this one process, and every delivery is checked as it happens. The same holds for
an engine that only one process can use.

With --metrics each process is a target for Prometheus: this one at the ADDRESS, process N at a port N higher, as
separate processes of fdbfifo work would be. While the processes drain, --console and --metrics show the queue.

--data takes any other CSV file with a column "origin", which is kept in memory for the comparison.`

func newDemoCmd(s *session) *cobra.Command {
	var f demoFlags
	c := &cobra.Command{
		Use:   "demo [flags]",
		Short: "Run 20,000 real departures through a queue and prove that order holds",
		Long:  demoHelp,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := s.checkDemo(c, &f); err != nil {
				return err
			}
			if !c.Flags().Changed("queue") {
				s.queue = "demo"
			}
			flights, err := waitFor(c.Context(), func() ([]departure, error) { return readDeparturesFile(f.data) })
			if err != nil {
				return err
			}
			if f.processes > 1 {
				if err := fitEffects(flights); err != nil {
					return err
				}
			}
			if !c.Flags().Changed("engine") {
				remove, err := s.demoFolder(f.keep)
				if err != nil {
					return err
				}
				defer remove()
			}
			return s.demo(c.Context(), flights, f)
		},
	}
	c.Flags().StringVar(&f.data, "data", "", "a CSV `FILE` with a column \"origin\"; left out, the departures built in")
	c.Flags().IntVar(&f.workers, "workers", 8, "drain with `N` workers, each with one group in flight at a time")
	s.beside.add(c)
	s.addLog(c, workersLog)
	c.Flags().BoolVar(&f.keep, "keep", false, "keep the folder with the queue, to look at it")
	c.Flags().BoolVar(&f.inProcess, "in-process", false, "let the workers be of this process, as --processes 1 does")
	c.Flags().IntVar(&f.processes, "processes", demoProcesses, "spread the workers over `N` processes")
	c.Flags().BoolVar(&f.kill, "kill", false,
		"end a worker with SIGKILL on the way, and the process that serves; the default without --processes")
	c.Flags().DurationVar(&f.lease, "lease", demoLease, "`TIME` after which a dead process's groups are free again")
	return c
}

// checkDemo checks the flags, and sets those that depend on others.
func (s *session) checkDemo(c *cobra.Command, f *demoFlags) error {
	name, _ := s.engineParts()
	_, known := s.app.Engines[name]
	alone := known && !slices.Contains(s.app.Shared, name)
	changed := c.Flags().Changed
	if !changed("processes") {
		f.processes = max(1, min(f.processes, f.workers))
		if !changed("kill") {
			f.kill = true
		}
		if f.inProcess || alone {
			f.processes = 1
		}
	}
	if f.processes == 1 && !changed("kill") {
		f.kill = false
	}
	switch {
	case f.workers < 1:
		return usagef("--workers is %d: give 1 or more", f.workers)
	case f.processes < 1:
		return usagef("--processes is %d: give 1 or more", f.processes)
	case f.inProcess && f.processes > 1:
		return usagef("--in-process goes with no --processes but 1")
	case f.lease < layer.MinLease || f.lease > layer.MaxLease:
		return usagef("--lease is %s: %s to %s are allowed", f.lease, layer.MinLease, layer.MaxLease)
	case f.keep && changed("engine"):
		return usagef("--keep goes with the folder that the demo makes; with --engine everything is kept")
	case f.processes > f.workers:
		return usagef("--processes is %d and --workers is %d: each process needs a worker", f.processes, f.workers)
	case f.processes == 1 && f.kill:
		return usagef("--kill needs a process that is left: --processes 2 or more")
	case f.processes == 1 && changed("lease"):
		return usagef("--lease goes with --processes 2 or more")
	case f.processes > 1 && alone:
		shared := "a FoundationDB cluster, with a build of fdbfifo that has it (see --engine fdb)"
		if len(s.app.Shared) > 0 {
			shared = "--engine " + strings.Join(s.app.Shared, " or ")
		}
		return usagef("--processes %d: only one process at a time can use the engine %s; this needs %s", f.processes, name, shared)
	}
	_, err := s.beside.metricsOf(f.processes)
	return err
}

// demoFolder makes a new folder, and makes it the engine. remove deletes the folder unless keep is set.
func (s *session) demoFolder(keep bool) (remove func(), err error) {
	folder, err := os.MkdirTemp("", "fdbfifo-demo-")
	if err != nil {
		return nil, err
	}
	s.engine = "disk:" + folder
	s.notice("a durable queue in the fresh folder %s", folder)
	return func() {
		if keep {
			s.notice("kept; look at it with: %s", s.command("stats"))
			return
		}
		if err := os.RemoveAll(folder); err != nil {
			s.notice("could not remove the folder: %v", err)
		}
	}, nil
}

// demoGroupField is the column that is the group.
const demoGroupField = "origin"

// departure is one message of the demo.
type departure struct {
	line  int
	group string
	body  []byte
}

func readDeparturesFile(name string) ([]departure, error) {
	if name == "" {
		return readDepartures(strings.NewReader(data.Flights()))
	}
	file, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	flights, err := readDepartures(file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return flights, nil
}

func readDepartures(r io.Reader) ([]departure, error) {
	src, err := newSource(r, sourceOptions{format: "csv", groupField: demoGroupField})
	if err != nil {
		return nil, err
	}
	var all []departure
	for {
		m, line, err := src.next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		all = append(all, departure{line: line, group: m.Group, body: m.Body})
	}
	if len(all) == 0 {
		return nil, &inputError{2, errors.New("there are no departures")}
	}
	return all, nil
}

// demo loads the departures, drains them, checks the queue and reports.
func (s *session) demo(ctx context.Context, flights []departure, f demoFlags) error {
	run := s.demoHere
	if f.processes > 1 {
		run = s.demoTogether
	}
	report, err := run(ctx, newWitness(flights), f)
	if err != nil {
		return err
	}
	report.Processes, report.Workers, report.Lease = f.processes, f.workers, f.lease
	return errors.Join(s.printDemo(report), report.verdict())
}

// demoEngine is the open database of a demo, and its queue.
type demoEngine struct {
	*record.Recorder
	db     kv.DB // without the counter
	q      *layer.Queue
	serves func() bool // reports whether other processes use the database through this one
}

// withDemo opens the database and the queue. With fresh set it creates the queue if there is none, and the queue must
// be empty.
func (s *session) withDemo(ctx context.Context, fresh bool, fn func(e demoEngine) error) error {
	return s.withEngine(ctx, fresh, func(db kv.DB) (err error) {
		e := demoEngine{Recorder: record.WrapCounting(db), db: db, serves: servesOthers(db)}
		if fresh {
			e.q, err = s.demoQueue(ctx, e)
		} else {
			e.q, err = s.openQueue(ctx, e, false)
		}
		if err != nil {
			return err
		}
		defer closeQueue(ctx, e.q, &err)
		return fn(e)
	})
}

// servesOthers returns a function that reports whether other processes use the database through this one. With a
// cluster they never do.
func servesOthers(db kv.DB) func() bool {
	if s, ok := db.(interface{ Serves() bool }); ok {
		return s.Serves
	}
	return func() bool { return false }
}

// demoHere is a demo whose workers run in this process. A witness sees each delivery.
func (s *session) demoHere(ctx context.Context, w *witness, f demoFlags) (r demoReport, err error) {
	err = s.withDemo(ctx, true, func(e demoEngine) error {
		stop, err := s.beside.start(ctx, s, e.db, e.q)
		if err != nil {
			return err
		}
		defer stop()
		before := e.Counters()
		loading, err := s.loadDemo(ctx, e.q, w, plural(int64(f.workers), "worker"))
		if err != nil {
			return err
		}
		begun := s.app.Now()
		if err := s.drain(ctx, e.q, w, f.workers); err != nil {
			return err
		}
		r = w.report()
		r.Loading, r.Draining = loading, s.app.Now().Sub(begun)
		r.Conflicts = e.Counters().Sub(before).Conflicts
		r.Check, err = e.q.Admin().Check(ctx, layer.CheckOptions{})
		return err
	})
	return r, err
}

// loadDemo enqueues the departures. It returns how long that took, and prints it with drains, the text that says which
// workers drain the queue.
func (s *session) loadDemo(ctx context.Context, q *layer.Queue, w *witness, drains string) (time.Duration, error) {
	begun := s.app.Now()
	if err := s.load(ctx, q, w.flights); err != nil {
		return 0, err
	}
	took := s.app.Now().Sub(begun)
	s.notice("loaded %s in %s in %.2f s; now %s", plural(int64(len(w.flights)), "message"),
		plural(int64(len(w.groups)), "group"), took.Seconds(), drains)
	return took, nil
}

// demoQueue opens the queue or creates it. It is an error if the queue has messages that are not the demo's.
func (s *session) demoQueue(ctx context.Context, db kv.DB) (q *layer.Queue, err error) {
	q, err = s.openQueue(ctx, db, true)
	if err != nil {
		return nil, err
	}
	vacant, err := empty(ctx, q)
	if err == nil && !vacant {
		err = &Error{
			Text: fmt.Sprintf("queue %q has messages: the demo needs an empty one", s.queue),
			Hint: "Name another one with --queue, or empty this one with: " +
				s.command("work --until-empty --batch 100 --exec true"),
		}
	}
	if err != nil {
		closeQueue(ctx, q, &err)
		return nil, err
	}
	return q, nil
}

// lineHeader is the header that says which line of the file a message is.
const lineHeader = "line"

func (s *session) load(ctx context.Context, q *layer.Queue, flights []departure) error {
	p := s.newProgress("loading", "message", int64(len(flights)))
	defer p.close()
	for done := 0; done < len(flights); {
		if ctx.Err() != nil {
			return fmt.Errorf("%w after loading %s", errInterrupted, plural(int64(done), "message"))
		}
		batch := flights[done:min(done+enqueueBatch, len(flights))]
		messages := make([]layer.Message, len(batch))
		for i, d := range batch {
			messages[i] = layer.Message{
				Group: d.group, Body: d.body, Headers: map[string]string{lineHeader: strconv.Itoa(d.line)},
			}
		}
		if _, err := q.Enqueue(ctx, messages...); err != nil {
			return err
		}
		done += len(batch)
		p.set(int64(done))
	}
	return nil
}

// demoWork is the simulated time of the handling of a departure. Without it a worker would finish a group before the
// next worker has one, and nothing would overlap.
const demoWork = 200 * time.Microsecond

// drain empties the queue with workers that show w every message.
func (s *session) drain(ctx context.Context, q *layer.Queue, w *witness, workers int) error {
	p := s.newProgress("draining", "message", int64(len(w.seen)))
	defer p.close()
	fatal := make(chan error, 1)
	worker, err := worker.New(q,
		worker.HandleBatch(func(ctx context.Context, ds []*worker.Delivery) error {
			for _, d := range ds {
				w.begin(d.Item)
				time.Sleep(demoWork)
				w.end(d.Item)
			}
			return ctx.Err()
		}),
		worker.Options{
			Concurrency: workers,
			Logger:      s.acting.workers(), // the progress is shown here
			Events:      s.beside.hooks(),
			// The demo ends at the first error, because its verdict counts deliveries.
			OnError: func(err error) {
				select {
				case fatal <- err:
				default:
				}
			},
		})
	if err != nil {
		return err
	}
	s.beside.watch(q, worker)
	worker.Start()
	err = s.watchDrain(ctx, q, w, p, fatal)
	if e := s.stop(worker); err == nil {
		err = e
	}
	if err == nil {
		select {
		case err = <-fatal:
		default:
		}
	}
	return err
}

// watchDrain shows progress until the queue is empty.
func (s *session) watchDrain(ctx context.Context, q *layer.Queue, w *witness, p *progress, fatal <-chan error) error {
	ticker := time.NewTicker(watchEvery)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w after %s", errInterrupted, plural(w.delivered(), "message"))
		case err := <-fatal:
			return err
		case <-ticker.C:
		}
		p.set(w.delivered(), w.details()...)
		over, err := empty(ctx, q)
		if ctx.Err() != nil {
			continue
		}
		if over || err != nil {
			return err
		}
	}
}
