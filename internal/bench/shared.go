package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"fdbfifo/kv"
	"fdbfifo/layer"
)

// Folder is an empty folder of the disk engine, which several processes can have open.
type Folder struct {
	// Open opens the database in it; exclusively, or for other processes too.
	Open func(ctx context.Context, exclusive bool) (kv.DB, error)
	// Start starts a process that opens it too, and calls Peer.
	Start  func(ctx context.Context, stdout io.Writer) (Process, error)
	Remove func() error
}

// Process is another process. Writing to it writes to its stdin.
type Process interface {
	io.Writer
	// Stop asks it to come to an end, by the end of its stdin. Wait must be called, once.
	Stop() error
	// Kill ends it on the spot: SIGKILL, where there are signals.
	Kill() error
	Wait() error
}

// peerPrefix is where a peer works.
var peerPrefix = []byte("peer")

// peerOrder is a line that a peer is told.
type peerOrder struct {
	Queue   string // creates it, and works on it from now on
	Cycles  int    // goes through so many lifecycles
	Batch   int    // of so many items each
	Working bool   // goes through lifecycles until its end
}

// peerAnswer is the line that answers it.
type peerAnswer struct {
	Seconds float64
	Serves  bool
	Error   string
}

// Peer is the life of a process that a benchmark has started: it does what it is told on db, until in ends.
func Peer(ctx context.Context, db kv.DB, in io.Reader, out io.Writer) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var working sync.WaitGroup
	defer working.Wait()
	defer stop()
	var q *layer.Queue
	orders, answers := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var o peerOrder
		err := orders.Decode(&o)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		var a peerAnswer
		switch {
		case o.Queue != "":
			q, err = layer.Create(ctx, db, peerPrefix, o.Queue, layer.Options{})
			s, ok := db.(interface{ Serves() bool })
			a.Serves = ok && s.Serves()
		case o.Working:
			working.Go(func() {
				for ctx.Err() == nil {
					_, _ = lifecycles(ctx, q, 1, o.Batch) // it may be killed amid one
				}
			})
		default:
			var took time.Duration
			took, err = lifecycles(ctx, q, o.Cycles, o.Batch)
			a.Seconds = took.Seconds()
		}
		if err != nil {
			a.Error = err.Error()
		}
		if err := answers.Encode(a); err != nil {
			return err
		}
	}
}

// lifecycles enqueues a batch of one group, receives it and acks it, so many times, and returns how long that took.
func lifecycles(ctx context.Context, q *layer.Queue, cycles, batch int) (time.Duration, error) {
	begun := time.Now()
	for range cycles {
		if _, err := q.Enqueue(ctx, messages("a", batch)...); err != nil {
			return 0, err
		}
		claims, err := q.Receive(ctx, layer.ReceiveOptions{Max: batch})
		if err != nil {
			return 0, err
		}
		if len(claims) != 1 || len(claims[0].Items) != batch {
			return 0, fmt.Errorf("%w: %d claims of the items just enqueued", errWrong, len(claims))
		}
		if err := q.Ack(ctx, claims[0]); err != nil {
			return 0, err
		}
	}
	return time.Since(begun), nil
}

// peer is a process that runs Peer, as seen from here.
type peer struct {
	Process
	answers *json.Decoder
	ended   chan struct{}
}

func startPeer(ctx context.Context, f Folder, queue string) (*peer, peerAnswer, error) {
	if ctx.Err() != nil {
		return nil, peerAnswer{}, context.Cause(ctx)
	}
	r, w := io.Pipe()
	process, err := f.Start(ctx, w)
	if err != nil {
		return nil, peerAnswer{}, err
	}
	p := &peer{Process: process, answers: json.NewDecoder(r), ended: make(chan struct{})}
	go func() {
		_ = w.CloseWithError(errors.Join(io.ErrUnexpectedEOF, process.Wait()))
		close(p.ended)
	}()
	a, err := p.ask(peerOrder{Queue: queue})
	if err != nil {
		return nil, a, errors.Join(err, p.end(process.Kill))
	}
	return p, a, nil
}

func (p *peer) ask(o peerOrder) (a peerAnswer, err error) {
	if err := json.NewEncoder(p).Encode(o); err != nil {
		return a, fmt.Errorf("tell the other process: %w", err)
	}
	if err := p.answers.Decode(&a); err != nil {
		return a, fmt.Errorf("the other process: %w", err)
	}
	if a.Error != "" {
		return a, fmt.Errorf("the other process: %s", a.Error)
	}
	return a, nil
}

// end ends it one way or another.
func (p *peer) end(how func() error) error {
	err := how()
	<-p.ended
	return err
}

// A disk is fast for a while and then slow: slices are short, and many.
const (
	sharedCycles = 1  // lifecycles in a slice
	sharedSlices = 25 // times as many slices in a round as others have
)

// sharedRatio compares the speed of a process that reaches the folder over a socket with that of the one that serves.
func sharedRatio(s Sizes) Benchmark {
	const (
		name  = "shared_ratio"
		means = "lifecycles/s of a process on a folder that another serves, to those of the one that serves; one caller"
	)
	return Benchmark{name, means, func(ctx context.Context, env Env) (results []Result, err error) {
		f, err := env.Folder(ctx)
		if err != nil {
			return nil, err
		}
		defer f.removing(&err)
		db, err := f.Open(ctx, false)
		if err != nil {
			return nil, err
		}
		space := Space{DB: db, Prefix: []byte("here")}
		defer space.closing(&err)
		q, err := newQueue(ctx, env, space, "here")
		if err != nil {
			return nil, err
		}
		p, a, err := startPeer(ctx, f, "there")
		if err != nil {
			return nil, err
		}
		defer func() { err = errors.Join(err, p.end(p.Stop)) }()
		if a.Serves {
			return nil, errors.New("the other process serves the folder")
		}
		of := func(batch int) (comparison, error) {
			return compare(ctx, env, s.SharedRounds, sharedSlices*s.Slices,
				func(ctx context.Context) (float64, error) {
					took, err := lifecycles(ctx, q.Queue, sharedCycles, batch)
					return took.Seconds(), err
				},
				func(context.Context) (float64, error) {
					a, err := p.ask(peerOrder{Cycles: sharedCycles, Batch: batch})
					return a.Seconds, err
				})
		}
		many, err := of(batch)
		if err != nil {
			return nil, err
		}
		one, err := of(1)
		if err != nil {
			return nil, err
		}
		perS := func(seconds float64) float64 { return sharedCycles / seconds }
		sizes := fmt.Sprintf("batches of %d, %d bytes each", batch, bodySize)
		const here, there = "enqueue + claim + ack, where the folder is served", "the same from another process"
		detail := sizes + ", inverted: " + many.spread()
		return []Result{
			{name, 1 / many.ratio(), "ratio", means, detail, atLeast(0.3)},
			{name + "_single", 1 / one.ratio(), "ratio", "with batches of one", "inverted: " + one.spread(), Target{}},
			{"shared_here_per_s", perS(many.a), "lifecycles/s", here, sizes, Target{}},
			{"shared_there_per_s", perS(many.b), "lifecycles/s", there, sizes, Target{}},
		}, q.verify(ctx)
	}}
}

// sharedCost compares a process alone in a folder that others could open with one that keeps others out.
func sharedCost(s Sizes) Benchmark {
	const (
		name  = "shared_cost"
		means = "lifecycles/s of a process alone in a folder, to those with the folder opened exclusively; one caller"
	)
	return Benchmark{name, means, func(ctx context.Context, env Env) (results []Result, err error) {
		var queues [2]*queue
		for i, exclusive := range []bool{true, false} {
			f, err := env.Folder(ctx)
			if err != nil {
				return nil, err
			}
			defer f.removing(&err)
			space := Space{Prefix: []byte("here")}
			if space.DB, err = f.Open(ctx, exclusive); err != nil {
				return nil, err
			}
			defer space.closing(&err)
			if queues[i], err = newQueue(ctx, env, space, "here"); err != nil {
				return nil, err
			}
		}
		of := func(q *queue) side {
			return func(ctx context.Context) (float64, error) {
				took, err := lifecycles(ctx, q.Queue, sharedCycles, batch)
				return took.Seconds(), err
			}
		}
		c, err := compare(ctx, env, s.SharedRounds, sharedSlices*s.Slices, of(queues[0]), of(queues[1]))
		if err != nil {
			return nil, err
		}
		sizes := fmt.Sprintf("batches of %d, inverted: %s", batch, c.spread())
		return []Result{{name, 1 / c.ratio(), "ratio", means, sizes, atLeast(0.95)}},
			errors.Join(queues[0].verify(ctx), queues[1].verify(ctx))
	}}
}

// takeover measures how long no process can commit after the process that serves was killed under load.
func takeover(s Sizes) Benchmark {
	const (
		name  = "takeover_ms"
		means = "from SIGKILL of the process that serves a folder, under load, to the first commit by another"
	)
	return Benchmark{name, means, func(ctx context.Context, env Env) ([]Result, error) {
		var took []float64
		for round := range s.Takeovers {
			env.progress("killing", round, s.Takeovers)
			d, err := takeOver(ctx, env)
			if err != nil {
				return nil, err
			}
			took = append(took, float64(d.Microseconds())/1000)
		}
		slices.Sort(took)
		detail := fmt.Sprintf("the longest of %d kills, median %.3g", len(took), median(took))
		return []Result{{name, took[len(took)-1], "ms", means, detail, atMost(1000)}}, nil
	}}
}

// takeOver is one takeover: a process serves and works, another works, and so do goroutines of this one; the first is
// killed.
func takeOver(ctx context.Context, env Env) (took time.Duration, err error) {
	f, err := env.Folder(ctx)
	if err != nil {
		return 0, err
	}
	defer f.removing(&err)
	var peers [2]*peer
	for i := range peers {
		p, a, err := startPeer(ctx, f, fmt.Sprint("peer", i))
		if err != nil {
			return 0, err
		}
		peers[i] = p
		defer func() {
			select {
			case <-p.ended:
			default:
				err = errors.Join(err, p.end(p.Stop))
			}
		}()
		if a.Serves != (i == 0) {
			return 0, fmt.Errorf("process %d serves the folder: %t", i, a.Serves)
		}
	}
	db, err := f.Open(ctx, false)
	if err != nil {
		return 0, err
	}
	space := Space{DB: db, Prefix: []byte("here")}
	defer space.closing(&err)
	q, err := newQueue(ctx, env, space, "here")
	if err != nil {
		return 0, err
	}
	for _, p := range peers {
		if _, err := p.ask(peerOrder{Working: true, Batch: batch}); err != nil {
			return 0, err
		}
	}
	var dead atomic.Int64 // nanoseconds
	var at time.Time
	first := make(chan time.Duration, 1)
	var over atomic.Bool
	var all sync.WaitGroup
	errs := make([]error, takeoverCallers)
	for i := range errs {
		all.Go(func() {
			for !over.Load() {
				begun := time.Now()
				if errs[i] = q.enqueue(ctx, messages(groupName(i), 1)...); errs[i] != nil {
					return
				}
				if since := dead.Load(); since != 0 && begun.UnixNano() > since {
					select {
					case first <- time.Since(at):
					default:
					}
				}
			}
		})
	}
	time.Sleep(takeoverLoad)
	at = time.Now()
	err = peers[0].end(peers[0].Kill)
	dead.Store(time.Now().UnixNano())
	select {
	case took = <-first:
	case <-time.After(takeoverLimit):
		err = errors.Join(err, fmt.Errorf("no commit within %s", takeoverLimit))
	}
	over.Store(true)
	all.Wait()
	if err := errors.Join(err, errors.Join(errs...)); err != nil {
		return 0, err
	}
	return took, q.verify(ctx)
}

const (
	takeoverCallers = 2                      // goroutines of the process that measures
	takeoverLoad    = 100 * time.Millisecond // under load before the kill
	takeoverLimit   = 30 * time.Second
)

// removing joins what removing the folder says to the error of the work in it.
func (f Folder) removing(err *error) { *err = errors.Join(*err, f.Remove()) }
