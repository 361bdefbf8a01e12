package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
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
)

// demoFlags are the flags of demo.
type demoFlags struct {
	data      string
	workers   int
	keep      bool
	processes int
	kill      bool
	lease     time.Duration
}

const demoHelp = `Load 20,000 real departures of US airports into a durable queue in a fresh folder, one group an airport,
drain it with several workers, and watch them: no group may be in two hands at once, every group must come in
order, no message may be lost or come twice. The exit code is 1 if one of these is broken.

With --processes the workers are spread over processes, which share nothing but the database: the engine must be
one that several processes can open, a FoundationDB cluster. What handling a message does is then written in the
transaction that acks it, and judged afterwards by what is in the database. --kill ends one of them with SIGKILL
half-way, when it has groups in flight; they are taken over when their lease runs out.

--data takes any other CSV file with a column "origin", which is kept in memory for the comparison.`

func newDemoCmd(s *session) *cobra.Command {
	var f demoFlags
	c := &cobra.Command{
		Use:   "demo [flags]",
		Short: "Run 20,000 real departures through a queue and prove that order holds",
		Long:  demoHelp,
		RunE: func(c *cobra.Command, _ []string) error {
			if err := s.checkDemo(c, f); err != nil {
				return err
			}
			if !c.Flags().Changed("queue") {
				s.queue = "demo"
			}
			flights, err := readDeparturesFile(f.data)
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
	c.Flags().BoolVar(&f.keep, "keep", false, "keep the folder with the queue, to look at it")
	c.Flags().IntVar(&f.processes, "processes", 1, "spread the workers over `N` processes")
	c.Flags().BoolVar(&f.kill, "kill", false, "end one of the processes with SIGKILL half-way")
	c.Flags().DurationVar(&f.lease, "lease", demoLease, "`TIME` after which a dead process's groups are free again")
	return c
}

// checkDemo finds what is wrong with the flags.
func (s *session) checkDemo(c *cobra.Command, f demoFlags) error {
	name, _, _ := strings.Cut(s.engine, ":")
	_, known := s.app.Engines[name]
	switch {
	case f.workers < 1:
		return usagef("--workers is %d: 1 or more", f.workers)
	case f.processes < 1:
		return usagef("--processes is %d: 1 or more", f.processes)
	case f.lease < layer.MinLease || f.lease > layer.MaxLease:
		return usagef("--lease is %s: %s to %s are allowed", f.lease, layer.MinLease, layer.MaxLease)
	case f.keep && c.Flags().Changed("engine"):
		return usagef("--keep goes with the folder that the demo makes; with --engine everything is kept")
	case f.processes > f.workers:
		return usagef("--processes is %d and --workers is %d: each process needs a worker", f.processes, f.workers)
	case f.processes == 1 && f.kill:
		return usagef("--kill needs a process that is left: --processes 2 or more")
	case f.processes == 1 && c.Flags().Changed("lease"):
		return usagef("--lease goes with --processes 2 or more")
	case f.processes > 1 && known && !slices.Contains(s.app.Shared, name):
		shared := "a FoundationDB cluster, with a build of fdbfifo that has it (see --engine fdb)"
		if len(s.app.Shared) > 0 {
			shared = "--engine " + strings.Join(s.app.Shared, " or ")
		}
		return usagef("--processes %d: only one process at a time can use the engine %s; this needs %s", f.processes, name, shared)
	}
	return nil
}

// demoFolder makes a fresh folder the engine. remove deletes it, unless it is to be kept.
func (s *session) demoFolder(keep bool) (remove func(), err error) {
	folder, err := os.MkdirTemp("", "fdbfifo-demo-")
	if err != nil {
		return nil, err
	}
	s.engine = "disk:" + folder
	s.notice("a durable queue in the fresh folder %s", folder)
	return func() {
		if keep {
			s.notice("kept; look at it with: fdbfifo --engine disk:%s --queue %s stats", folder, s.queue)
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

// demo loads the departures, drains them under the eyes of a witness, checks the queue and reports.
func (s *session) demo(ctx context.Context, flights []departure, f demoFlags) error {
	db, err := s.openEngine(ctx, true)
	if err != nil {
		return err
	}
	counting := record.WrapCounting(db)
	report, err := s.demoOn(ctx, counting, flights, f)
	closeEngine(counting, &err)
	if err != nil {
		return err
	}
	if err := s.printDemo(report); err != nil {
		return err
	}
	return report.verdict()
}

func (s *session) demoOn(ctx context.Context, db *record.Recorder, flights []departure, f demoFlags) (r demoReport, err error) {
	q, err := s.demoQueue(ctx, db)
	if err != nil {
		return r, err
	}
	defer closeQueue(ctx, q, &err)
	if f.processes > 1 {
		if err := newEffects(s.queue).clear(ctx, db); err != nil {
			return r, err
		}
	}

	before := db.Counters()
	begun := s.app.Now()
	if err := s.load(ctx, q, flights); err != nil {
		return r, err
	}
	loading := s.app.Now().Sub(begun)
	w := newWitness(flights)
	of := ""
	if f.processes > 1 {
		of = fmt.Sprintf("%d processes with ", f.processes)
	}
	s.notice("loaded %s in %s in %.2f s; now %s%s", plural(int64(len(flights)), "message"),
		plural(int64(len(w.groups)), "group"), loading.Seconds(), of, plural(int64(f.workers), "worker"))
	if f.processes > 1 {
		r, err = s.drainByProcesses(ctx, db, q, w, f)
	} else {
		r, err = s.drainHere(ctx, q, w, f.workers)
	}
	if err != nil {
		return r, err
	}
	r.Processes, r.Workers, r.Lease, r.Loading = f.processes, f.workers, f.lease, loading
	r.Conflicts += db.Counters().Sub(before).Conflicts
	if r.Check, err = q.Admin().Check(ctx, layer.CheckOptions{}); err != nil {
		return r, err
	}
	return r, nil
}

// drainHere empties the queue with workers of this process.
func (s *session) drainHere(ctx context.Context, q *layer.Queue, w *witness, workers int) (demoReport, error) {
	begun := s.app.Now()
	if err := s.drain(ctx, q, w, workers); err != nil {
		return demoReport{}, err
	}
	draining := s.app.Now().Sub(begun)
	r := w.report()
	r.Draining = draining
	return r, nil
}

// demoQueue opens the queue or creates it. A queue with messages of others is not touched.
func (s *session) demoQueue(ctx context.Context, db kv.DB) (q *layer.Queue, err error) {
	q, err = s.openQueue(ctx, db, true)
	if err != nil {
		return nil, err
	}
	vacant, err := empty(ctx, q)
	if err == nil && !vacant {
		err = &Error{
			Text: fmt.Sprintf("queue %q has messages: the demo needs an empty one", s.queue),
			Hint: "Name another one with --queue, or empty this one with: fdbfifo work --until-empty --batch 100 --exec true",
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

// demoWork is what handling a departure is pretended to take. Without it a group would be out of a worker's
// hands before the next worker had one, and nothing could overlap.
const demoWork = 200 * time.Microsecond

// drain empties the queue with workers that show w every message.
func (s *session) drain(ctx context.Context, q *layer.Queue, w *witness, workers int) error {
	p := s.newProgress("draining", "message", int64(len(w.seen)))
	defer p.close()
	fatal := make(chan error, 1)
	worker, err := layer.NewWorker(q,
		layer.HandleBatch(func(ctx context.Context, ds []*layer.Delivery) error {
			for _, d := range ds {
				w.begin(d.Item)
				time.Sleep(demoWork)
				w.end(d.Item)
			}
			return ctx.Err()
		}),
		layer.WorkerOptions{
			Concurrency: workers,
			Logger:      slog.New(slog.DiscardHandler), // the progress is shown here
			// Any error is one too many: the demo judges by what it saw.
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
