package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"fdbfifo/kv"
	"fdbfifo/kv/record"
	"fdbfifo/layer"
	"fdbfifo/worker"
)

// demoWorkerName is the command that demo --processes starts. It is not for users.
const demoWorkerName = "demo-worker"

// demoWorkerFlags are the flags of demo-worker.
type demoWorkerFlags struct {
	number  int
	workers int
	lease   time.Duration
	metrics string // see type beside
	log     string // as of acting
}

// args is the command line that gives f to a process.
func (f demoWorkerFlags) args(engine, queue string) []string {
	args := []string{
		demoWorkerName, "--engine", engine, "--queue", queue, "--number", strconv.Itoa(f.number),
		"--workers", strconv.Itoa(f.workers), "--lease", f.lease.String(),
	}
	if f.metrics != "" {
		args = append(args, "--metrics", f.metrics)
	}
	if f.log != "" {
		args = append(args, "--log", f.log)
	}
	return args
}

// owner is what the process's locks say.
func (f demoWorkerFlags) owner() string { return fmt.Sprintf("demo process %d", f.number) }

func newDemoWorkerCmd(s *session) *cobra.Command {
	var f demoWorkerFlags
	c := &cobra.Command{
		Use:    demoWorkerName,
		Short:  "One process of demo --processes, until its stdin ends",
		Hidden: true,
		RunE: func(c *cobra.Command, _ []string) error {
			return s.demoWorker(c.Context(), f)
		},
	}
	c.Flags().IntVar(&f.number, "number", 1, "")
	c.Flags().IntVar(&f.workers, "workers", 1, "")
	c.Flags().DurationVar(&f.lease, "lease", demoLease, "")
	s.beside.addMetrics(c)
	s.addLog(c, workersLog)
	return c
}

// demoWorkerLine is a line that a process says of itself on its stdout.
type demoWorkerLine struct {
	Ready     bool  `json:"ready,omitempty"`     // it has opened the queue
	Serves    bool  `json:"serves,omitempty"`    // the others use the database through it
	Conflicts int64 `json:"conflicts,omitempty"` // at its end
}

// servesEvery is how often a process looks whether it serves the database now.
const servesEvery = 2 * time.Millisecond

// demoWorker handles messages until stdin or ctx ends.
func (s *session) demoWorker(ctx context.Context, f demoWorkerFlags) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	go func() {
		// Nothing is read from it: it ends when the demo wants this process to end, or has died.
		_, _ = io.Copy(io.Discard, s.stdin)
		stop()
	}()
	s.app.Owner = f.owner()
	var counting *record.Recorder
	err := s.withEngine(ctx, false, func(db kv.DB) (err error) {
		counting = record.WrapCounting(db)
		q, err := s.openQueue(ctx, counting, false)
		if err != nil {
			return err
		}
		defer closeQueue(ctx, q, &err)
		stopBeside, err := s.beside.start(ctx, s, db, q)
		if err != nil {
			return err
		}
		defer stopBeside()
		serves := servesOthers(db)
		served := serves()
		if err := printJSON(s.stdout, demoWorkerLine{Ready: true, Serves: served}); err != nil {
			return err
		}
		var told sync.WaitGroup
		defer told.Wait()
		defer stop()
		told.Go(func() {
			for !served && ctx.Err() == nil {
				time.Sleep(servesEvery)
				if served = serves(); served {
					_ = printJSON(s.stdout, demoWorkerLine{Serves: true}) // the parent has ended
				}
			}
		})
		return s.demoWork(ctx, q, f)
	})
	if err != nil {
		return err
	}
	return printJSON(s.stdout, demoWorkerLine{Conflicts: counting.Counters().Conflicts})
}

// demoWork is a worker as a service runs one: it handles each departure, and commits the effect together with the ack.
// It returns when ctx has ended and nothing is in flight any more, or with an error.
func (s *session) demoWork(ctx context.Context, q *layer.Queue, f demoWorkerFlags) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	effects := newEffects(s.queue)
	worker, err := worker.New(q,
		worker.HandleCommit(
			func(_ context.Context, d *worker.Delivery) (effect, error) {
				time.Sleep(demoWork)
				return newEffect(d, f.number), nil
			},
			func(_ context.Context, tx kv.Tx, _ *worker.Delivery, done effect) error {
				return effects.write(tx, done)
			}),
		worker.Options{
			Concurrency: f.workers,
			Lease:       f.lease,
			Logger:      s.acting.workers(), // the demo shows the progress
			Events:      s.beside.hooks(),
			OnError: func(err error) {
				// One that was frozen goes on. If that was past its lease another has the group; if it was for as long
				// as a transaction may last the message is tried again. In both cases the effect was not written.
				if !errors.Is(err, layer.ErrClaimLost) && !errors.Is(err, context.DeadlineExceeded) {
					fail(err)
				}
			},
		})
	if err != nil {
		return err
	}
	s.beside.watch(q, worker)
	worker.Start()
	<-ctx.Done()
	if err := s.stop(worker); err != nil {
		return err
	}
	if err := context.Cause(ctx); !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}
