package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
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
	data    string
	workers int
	keep    bool
}

const demoHelp = `Load 20,000 real departures of US airports into a durable queue in a fresh folder, one group an airport,
drain it with several workers, and watch them: no group may be in two hands at once, every group must come in
order, no message may be lost or come twice. The exit code is 1 if one of these is broken.

--data takes any other CSV file with a column "origin", which is kept in memory for the comparison.`

func newDemoCmd(s *session) *cobra.Command {
	var f demoFlags
	c := &cobra.Command{
		Use:   "demo [flags]",
		Short: "Run 20,000 real departures through a queue and prove that order holds",
		Long:  demoHelp,
		RunE: func(c *cobra.Command, _ []string) error {
			if f.workers < 1 {
				return usagef("--workers is %d: 1 or more", f.workers)
			}
			if f.keep && c.Flags().Changed("engine") {
				return usagef("--keep goes with the folder that the demo makes; with --engine everything is kept")
			}
			if !c.Flags().Changed("queue") {
				s.queue = "demo"
			}
			flights, err := readDeparturesFile(f.data)
			if err != nil {
				return err
			}
			if !c.Flags().Changed("engine") {
				remove, err := s.demoFolder(f.keep)
				if err != nil {
					return err
				}
				defer remove()
			}
			return s.demo(c.Context(), flights, f.workers)
		},
	}
	c.Flags().StringVar(&f.data, "data", "", "a CSV `FILE` with a column \"origin\"; left out, the departures built in")
	c.Flags().IntVar(&f.workers, "workers", 8, "drain with `N` workers, each with one group in hand at a time")
	c.Flags().BoolVar(&f.keep, "keep", false, "keep the folder with the queue, to look at it")
	return c
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
func (s *session) demo(ctx context.Context, flights []departure, workers int) error {
	db, err := s.openEngine(ctx, true)
	if err != nil {
		return err
	}
	counting := record.WrapCounting(db)
	report, err := s.demoOn(ctx, counting, flights, workers)
	closeEngine(counting, &err)
	if err != nil {
		return err
	}
	if err := s.printDemo(report); err != nil {
		return err
	}
	return report.verdict()
}

func (s *session) demoOn(ctx context.Context, db *record.Recorder, flights []departure, workers int) (r demoReport, err error) {
	q, err := s.demoQueue(ctx, db)
	if err != nil {
		return r, err
	}
	defer closeQueue(ctx, q, &err)

	before := db.Counters()
	begun := s.app.Now()
	if err := s.load(ctx, q, flights); err != nil {
		return r, err
	}
	loaded := s.app.Now()
	w := newWitness(flights)
	s.notice("loaded %s in %s in %.2f s; now %s",
		plural(int64(len(flights)), "message"), plural(int64(len(w.groups)), "group"), loaded.Sub(begun).Seconds(),
		plural(int64(workers), "worker"))
	if err := s.drain(ctx, q, w, workers); err != nil {
		return r, err
	}
	drained := s.app.Now()
	r = w.report()
	r.Workers, r.Loading, r.Draining = workers, loaded.Sub(begun), drained.Sub(loaded)
	r.Conflicts = db.Counters().Sub(before).Conflicts
	if r.Check, err = q.Check(ctx, layer.CheckOptions{}); err != nil {
		return r, err
	}
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
		err = fmt.Errorf("queue %q has messages: the demo needs an empty one, name another with --queue", s.queue)
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
		func(ctx context.Context, item layer.Item) error {
			w.begin(item)
			defer w.end(item)
			time.Sleep(demoWork)
			return ctx.Err()
		},
		layer.WorkerOptions{
			Concurrency: workers,
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
