package cli

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strconv"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"fdbfifo/kv"
	"fdbfifo/kv/record"
	"fdbfifo/layer"
)

// demoWorkerName is the command that demo --processes starts. It is not for users.
const demoWorkerName = "demo-worker"

// demoWorkerFlags are the flags of demo-worker.
type demoWorkerFlags struct {
	number  int
	workers int
	lease   time.Duration
}

// args is the command line that gives f to a process.
func (f demoWorkerFlags) args(engine, queue string) []string {
	return []string{
		demoWorkerName, "--engine", engine, "--queue", queue, "--number", strconv.Itoa(f.number),
		"--workers", strconv.Itoa(f.workers), "--lease", f.lease.String(),
	}
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
	w := &demoWorker{flags: f, effects: newEffects(s.queue)}
	err := s.withEngine(ctx, false, func(db kv.DB) (err error) {
		counting = record.WrapCounting(db)
		if w.q, err = s.openQueue(ctx, counting, false); err != nil {
			return err
		}
		defer closeQueue(ctx, w.q, &err)
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
					_ = printJSON(s.stdout, demoWorkerLine{Serves: true}) // nobody is there any more
				}
			}
		})
		return w.run(ctx)
	})
	if err != nil {
		return err
	}
	return printJSON(s.stdout, demoWorkerLine{Conflicts: counting.Counters().Conflicts})
}

// demoWorker is one run of demo-worker.
type demoWorker struct {
	q       *layer.Queue
	flags   demoWorkerFlags
	effects effects
}

// run returns when ctx has ended and nothing is in flight any more, or with an error.
func (w *demoWorker) run(ctx context.Context) error {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	// Transactions outlast ctx for a while: a receive cut short might have claimed a group and not know it.
	txCtx, giveUp := context.WithCancel(context.WithoutCancel(ctx))
	defer giveUp()
	defer context.AfterFunc(ctx, func() { time.AfterFunc(closeTimeout, giveUp) })()
	var wg sync.WaitGroup
	for range w.flags.workers {
		wg.Go(func() {
			if err := w.loop(ctx, txCtx); err != nil {
				fail(err)
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil && !errors.Is(err, context.Canceled) {
		return err
	}
	return nil
}

// demoIdle is the longest wait before another look at a queue in which nothing was ready.
const demoIdle = 50 * time.Millisecond

func (w *demoWorker) loop(ctx, txCtx context.Context) error {
	for ctx.Err() == nil {
		claims, err := w.q.Receive(txCtx, layer.ReceiveOptions{MaxGroups: 1, Lease: w.flags.lease})
		if err != nil {
			return err
		}
		if len(claims) == 0 {
			select {
			case <-ctx.Done():
			case <-time.After(rand.N(demoIdle)):
			}
			continue
		}
		if err := w.handle(ctx, txCtx, claims[0]); err != nil {
			return err
		}
	}
	return nil
}

// handle handles all of a claim and commits the effects together with the ack; what was not handled is given back.
func (w *demoWorker) handle(ctx, txCtx context.Context, c *layer.Claim) error {
	select {
	case <-ctx.Done():
	case <-time.After(time.Duration(len(c.Items)) * demoWork):
	}
	var err error
	if ctx.Err() != nil {
		err = w.q.Nack(txCtx, c, layer.NackOptions{Release: true})
	} else {
		err = w.q.Once(txCtx, func(tx kv.Tx) error {
			if err := w.q.AckTx(txCtx, tx, c); err != nil {
				return err
			}
			return w.effects.write(tx, c, w.flags.number)
		})
	}
	if errors.Is(err, layer.ErrClaimLost) {
		return nil // another has it now, and these effects were not written
	}
	return err
}
