package layer_test

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/stretchr/testify/require"

	"fdbfifo/kv"
	"fdbfifo/kv/fault"
	"fdbfifo/kv/tuple"
	"fdbfifo/layer"
)

// The schedules of scenarios: commands that stop before a commit while others run, or run in parallel with them. See
// TestScenarios for the verbs.

// virtualTime is the line that a scenario begins with, after its comments, that runs in virtual time.
const virtualTime = "virtual-time"

// TestScenariosInVirtualTime replays the scenarios with commands that run in parallel with others. It uses a bubble of
// testing/synctest, in which a command has come as far as it can when all goroutines wait. So it runs only on the
// engine in memory, without seeded faults.
//
// To write the output again: go test ./layer/layertest -run TestScenariosInVirtualTime -rewrite
func TestScenariosInVirtualTime(t *testing.T) {
	datadriven.Walk(t, "testdata/scenarios", func(t *testing.T, path string) {
		if !inVirtualTime(t, path) {
			return
		}
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			e := newEnv(t, inMemory, false)
			e.clock.real.Store(true) // which is the bubble's
			s := newScenario(t, e, true)
			datadriven.RunTest(t, path, s.run)
			s.finish()
		})
	})
}

func inVirtualTime(t *testing.T, path string) bool {
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return slices.Contains(strings.Split(string(text), "\n"), virtualTime)
}

// aside is a command that was begun and has not told its result yet.
type aside struct {
	worker *scenarioWorker
	at     *stop // the commit that it stops before; nil = none
	giveUp context.CancelFunc
	ended  chan struct{} // closed when err is there
	err    error
	print  func(err error) (string, error)
}

// stop is where one commit of a worker waits for the transcript.
type stop struct {
	reached chan struct{} // closed by the commit
	goOn    chan fault.Kind
}

// stops lets a worker's next commit stop.
type stops struct {
	ctx  context.Context
	next atomic.Pointer[stop] // nil = it does not
	told *atomic.Bool         // set when the transcript says what becomes of the commit under way
}

func (s *stops) hold() *stop {
	at := &stop{reached: make(chan struct{}), goOn: make(chan fault.Kind)}
	s.next.Store(at)
	return at
}

// onCommit is the hook of the worker's plan.
func (s *stops) onCommit(int, kv.Tx) fault.Kind {
	at := s.next.Swap(nil)
	if at == nil {
		return fault.None
	}
	close(at.reached)
	select {
	case kind := <-at.goOn:
		s.told.Store(kind == fault.None || kind == fault.UnknownApplied) // which come to the engine
		return kind
	case <-s.ctx.Done():
		return fault.None
	}
}

// onCommit is the hook of the scenario's plan, below those of the workers: the commits that a transcript lets go on meet
// no seeded fault, so that the schedule is what it says.
func (s *scenario) onCommit(int, kv.Tx) fault.Kind {
	if s.told.Swap(false) {
		return fault.None
	}
	return fault.Chance
}

// call makes the call of the layer that a directive stands for, and prints its result. With hold=NAME or beside=NAME a
// later directive prints the result. Only do runs in parallel with the transcript.
func (s *scenario) call(a *arguments, do func(ctx context.Context) error, print func(err error) (string, error)) (string, error) {
	held, beside := a.text("hold", ""), a.text("beside", "")
	name := cmp.Or(held, beside)
	if name == "" {
		return print(do(s.e.ctx))
	}
	if s.asides[name] != nil {
		a.d.Fatalf(a.t, "%q is still under way", name)
	}
	if beside != "" && !s.virtual {
		a.d.Fatalf(a.t, "beside= needs %s", virtualTime)
	}
	x := &aside{worker: s.worker(a), ended: make(chan struct{}), print: print}
	if held != "" {
		x.at = x.worker.stops.hold()
	}
	ctx, cancel := context.WithCancel(s.e.ctx)
	x.giveUp = cancel
	s.asides[name] = x
	go func() {
		defer close(x.ended)
		x.err = do(ctx)
	}()
	return s.come(name)
}

// come prints how far the command has come.
func (s *scenario) come(name string) (string, error) {
	x := s.asides[name]
	var reached chan struct{}
	if x.at != nil {
		reached = x.at.reached
	}
	if s.virtual {
		synctest.Wait()
		select {
		case <-x.ended:
		case <-reached:
			return "before its commit", nil
		default:
			return "not yet", nil
		}
	} else {
		select {
		case <-x.ended:
		case <-reached:
			return "before its commit", nil
		}
	}
	delete(s.asides, name)
	x.giveUp()
	if x.at != nil {
		x.worker.stops.next.CompareAndSwap(x.at, nil)
	}
	return x.print(x.err)
}

// aside runs the verbs that go on with a command that was begun.
func (s *scenario) aside(a *arguments) (string, error) {
	name := a.word(0)
	x := s.asides[name]
	if x == nil {
		a.d.Fatalf(a.t, "nothing called %q is under way", name)
	}
	switch a.d.Cmd {
	case "commit":
		s.commit(a, x)
	case "hold":
		x.at = x.worker.stops.hold()
		return "", nil
	case "give-up":
		x.giveUp()
		if x.at != nil && !s.virtual {
			a.d.Fatalf(a.t, "give-up needs %s", virtualTime)
		}
	}
	return s.come(name)
}

// commit lets a commit go on that has stopped, and meet a fault.
func (s *scenario) commit(a *arguments, x *aside) {
	kind, again := fault.None, false
	for _, word := range a.words()[1:] {
		if word == "hold" {
			again = true
		} else {
			kind = a.fault(word)
		}
	}
	at := x.at
	if at == nil {
		a.d.Fatalf(a.t, "it does not stop before a commit")
	}
	select {
	case <-at.reached:
	default:
		a.d.Fatalf(a.t, "it has not come to a commit")
	}
	if x.at = nil; again {
		x.at = x.worker.stops.hold()
	}
	at.goOn <- kind
}

// land sends the late commits of all workers. The later content of the queue shows whether they were applied.
func (s *scenario) land(*arguments) (string, error) {
	for _, w := range s.workers {
		if err := w.plan.Land(s.e.ctx); err != nil {
			return "", err
		}
	}
	return "", nil
}

// once runs a transaction of the caller's that does nothing on the queue.
func (s *scenario) once(a *arguments) (string, error) {
	w, panics := s.worker(a), slices.Contains(a.words(), "panic")
	return s.call(a, func(ctx context.Context) (err error) {
		defer func() {
			if v := recover(); v != nil {
				err = fmt.Errorf("panic: %v", v)
			}
		}()
		return w.q.Once(ctx, func(tx kv.Tx) error {
			if panics {
				panic("of the caller")
			}
			tx.Set([]byte("own"), nil)
			return nil
		})
	}, noResult)
}

func (s *scenario) close(a *arguments) (string, error) {
	w := s.worker(a)
	return s.call(a, w.q.Close, noResult)
}

func (s *scenario) drop(a *arguments) (string, error) {
	s.dropped = true
	return s.call(a, func(ctx context.Context) error {
		return layer.Drop(ctx, s.db, testPrefix, s.queue, layer.DropOptions{})
	}, noResult)
}

// rows counts the keys of the queue of some kinds, or of all.
func (s *scenario) rows(a *arguments) (string, error) {
	counts := make(map[string]int)
	for _, row := range s.e.rows(kv.PrefixRange(append(slices.Clone(testPrefix), tuple.Tuple{s.queue}.Pack()...))) {
		t, err := tuple.Unpack(row.Key[len(testPrefix):])
		require.NoError(a.t, err)
		counts[fmt.Sprint(t[1])]++
	}
	if len(a.words()) == 0 {
		n := 0
		for _, of := range counts {
			n += of
		}
		return fmt.Sprint(n), nil
	}
	var out []string
	for _, kind := range a.words() {
		out = append(out, fmt.Sprintf("%s=%d", kind, counts[kind]))
	}
	return strings.Join(out, " "), nil
}

// spoil makes the item of a body unreadable, and mend readable again.
func (s *scenario) spoil(a *arguments) (string, error) {
	id := s.id(a, a.word(0))
	at := append(slices.Clone(testPrefix), tuple.Tuple{s.queue, "item", id.Group, id.Index, id.Random}.Pack()...)
	value := []byte("?")
	if a.d.Cmd == "mend" {
		value = s.spoilt
	} else {
		s.spoilt = s.e.rows(kv.SingleKey(at))[0].Value
	}
	s.e.write(func(tx kv.Tx) { tx.Set(at, value) })
	return "", nil
}

// moveClock moves the clock of all workers. In virtual time whatever waits for that happens.
func (s *scenario) moveClock(a *arguments) (string, error) {
	d := a.parseDuration(a.word(0))
	if !s.virtual {
		s.e.clock.advance(d)
		return "", nil
	}
	time.Sleep(d)
	synctest.Wait()
	return "", nil
}

func noResult(err error) (string, error) { return "", err }
